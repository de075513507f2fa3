"""Timelines of the first development recordings, after each evaluation, in the run and in TensorBoard."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from vaak.runs.open_run import open_run
from vaak.tasks.diarization import metrics

PNG = b"\x89PNG\r\n\x1a\n"


def test_the_run_and_tensorboard_have_a_picture_of_each_evaluation(diarizer_run: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    files = sorted((diarizer_run / "pictures" / "val_timelines").iterdir())
    assert [path.name for path in files] == ["step-00000010.png", "step-00000020.png"]
    assert all(path.read_bytes().startswith(PNG) for path in files)
    accumulator = EventAccumulator(str(diarizer_run / "tensorboard"), size_guidance={"images": 0})
    accumulator.Reload()
    images = accumulator.Images("evaluation/val_timelines")
    assert [image.step for image in images] == [10, 20]
    assert [image.encoded_image_string for image in images] == [path.read_bytes() for path in files]
    summary = json.loads((diarizer_run / "pictures" / "val_examples" / "step-00000020.json").read_text())
    first = summary["examples"][0]
    assert first["reference"]
    wrong, scored = (sum(column) for column in zip(*summary["scores"]["sums"], strict=True))
    (recording,) = (diarizer_run / "pictures" / f"val_{first['audio']}").iterdir()  # which no training changes
    assert recording.name == "step-00000010.wav"
    assert len(recording.read_bytes()) == pytest.approx(44 + 2 * 16_000 * min(first["seconds"], 30), abs=2)
    records = [json.loads(line) for line in (diarizer_run / "metrics.jsonl").read_text().splitlines()]
    rates = [one["val_der"] for one in records if one["kind"] == "evaluation"]
    assert wrong / scored == pytest.approx(rates[-1], abs=1e-3)
    assert not any("timelines" in record for record in records)


def test_the_first_recordings_are_shown_in_whatever_order_they_come(
    diarizer_run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(metrics, "SHOWN_RECORDINGS", 2)
    opened = open_run(diarizer_run)
    dataset, rng = opened.task.dataset("valid"), np.random.default_rng(0)
    shown = []
    for order in ([2, 0, 1], [1, 2, 0]):
        meters = opened.task.meters("valid")
        assert meters.pictures() == {}
        for index in order:
            batch = dataset.collate([[dataset.example(index, rng)]])
            batch.indices = [[index]]
            with torch.no_grad():
                meters.update(opened.model, batch)
        shown.append(meters.shown)
        assert meters.pictures()["timelines"].startswith(PNG)
    assert [one.name for one in shown[0].values()] == ["valid0", "valid1"]
    assert shown[0] == shown[1]


def test_the_log_says_what_an_example_takes_and_who_makes_it(diarizer_run: Path):
    log = (diarizer_run / "train.log").read_text()
    assert re.search(r"an example takes \d+\.\d ms \(.*(reading|features and the rest) \d+\.\d.*\) to make; ", log)
    assert "(training.performance.num_workers), with " in log
