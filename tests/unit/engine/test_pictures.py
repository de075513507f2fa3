"""Pictures of evaluations: written by step, few of them, none beyond a checkpoint, and never in the way of training."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from toy import StopAt, ToyMeters, ToyTask, same_bits, toy_trainer, weights
from vaak.callbacks.step_log import StepLogCallback
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.core.summaries import ExampleLog, make_summary
from vaak.engine import evaluation
from vaak.engine.evaluation import Pictures

pytestmark = pytest.mark.usefixtures("pictures")

OPTIONS: dict[str, Any] = {
    "validation": {"interval": 2},
    "checkpoint": {"interval": 4, "save_total_limit": None},
}


RECORDING = b"RIFF" + bytes(40)


class DrawingMeters(ToyMeters):
    """Draws how many tokens it saw."""

    def pictures(self) -> dict[str, bytes]:
        return {"tokens": str(self.totals["token"]).encode()}


class UnableMeters(ToyMeters):
    def pictures(self) -> dict[str, bytes]:
        raise UserError("the pencil is missing")


class Drawing(ToyTask):
    kind: type[ToyMeters] = DrawingMeters

    def meters(self, split: str) -> ToyMeters:
        return self.kind()


class Unable(Drawing):
    kind = UnableMeters


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.stem.removeprefix("step-")) for path in folder.glob("pictures/val_tokens/*"))


def test_every_evaluation_leaves_its_pictures_and_nothing_else_changes(tmp_path: Path):
    plain = toy_trainer(tmp_path / "plain", StepLogCallback(1), **OPTIONS)
    drawing = toy_trainer(tmp_path / "drawing", StepLogCallback(1), task=Drawing(), **OPTIONS)
    seen: list[tuple[int, Mapping[str, bytes]]] = []
    drawing.pictures.subscribe(lambda step, drawn: seen.append((step, drawn)))
    assert plain.fit() == drawing.fit() == "finished"
    assert steps_in(tmp_path / "drawing") == [step for step, _ in seen] == [2, 4, 6, 8]
    tokens = str(drawing.metrics["val_tokens"]).encode()
    assert all(drawn == {"val_tokens": tokens} for _, drawn in seen)
    assert drawing.pictures.of_step(4) == {"val_tokens": tokens}
    assert not (tmp_path / "plain" / "pictures").exists()
    assert same_bits(weights(plain), weights(drawing))
    records = [(tmp_path / name / "metrics.jsonl").read_text().count("\n") for name in ("plain", "drawing")]
    assert records[0] == records[1]


def test_a_resume_deletes_what_lies_beyond_and_draws_it_again(tmp_path: Path):
    toy_trainer(tmp_path, StopAt(7), task=Drawing(), **OPTIONS).fit()
    assert steps_in(tmp_path) == [2, 4, 6]
    half = tmp_path / "pictures" / "val_tokens" / ".step-00000008.png.99.tmp"
    half.write_bytes(b"half a pic")
    resumed = toy_trainer(tmp_path, task=Drawing(), **OPTIONS)
    assert resumed.resume(str(tmp_path / "checkpoints" / "step-00000004"))
    assert steps_in(tmp_path) == [2, 4]
    assert not half.exists()
    resumed.fit()
    assert steps_in(tmp_path) == [2, 4, 6, 8]


def test_an_evaluation_that_was_left_to_the_resumed_run_has_no_picture_yet(tmp_path: Path):
    """Stopped at step 4, where an evaluation was due: an earlier attempt's picture of that step is redrawn."""
    toy_trainer(tmp_path, StopAt(4), task=Drawing(), **OPTIONS).fit()
    stale = tmp_path / "pictures" / "val_tokens" / "step-00000004.png"
    stale.write_bytes(b"stale")
    resumed = toy_trainer(tmp_path, task=Drawing(), **OPTIONS)
    assert resumed.resume("auto")
    assert resumed.position.schedule_pending
    assert not stale.exists()
    resumed.fit()
    assert stale.read_bytes() != b"stale"


def test_a_run_that_never_saved_begins_without_pictures(tmp_path: Path):
    toy_trainer(tmp_path, task=Drawing(), **OPTIONS).fit()
    shutil.rmtree(tmp_path / "checkpoints")
    assert not toy_trainer(tmp_path, task=Drawing(), **OPTIONS).resume("auto")
    assert steps_in(tmp_path) == []


def test_the_newest_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(evaluation, "KEPT_PICTURES", 3)
    toy_trainer(tmp_path, task=Drawing(), **OPTIONS).fit()
    assert steps_in(tmp_path) == [4, 6, 8]


def test_the_best_are_kept_too_and_a_sound_that_has_not_changed_since_an_earlier_step(tmp_path: Path):
    pictures = Pictures(tmp_path / "pictures")
    for step in range(1, 31):
        sound = RECORDING + (b"a" if step < 5 else bytes([step]))
        made = {"val_tokens": b"%d" % step, "val_sound": sound, "val_examples": b"{}"}
        pictures.show(step, partial(dict, made), best=min(step, 4))
    names = {"val_tokens": [4, *range(11, 31)], "val_examples": [4, *range(11, 31)], "val_sound": [1, *range(11, 31)]}
    kept = {
        name: sorted(int(path.stem.removeprefix("step-")) for path in (tmp_path / "pictures" / name).iterdir())
        for name in names
    }
    assert kept == names


def test_what_fails_is_said_once_and_training_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    trainer = toy_trainer(tmp_path, task=Unable(), **OPTIONS)
    assert trainer.fit() == "finished"
    said = [record.getMessage() for record in caplog.records if "no pictures" in record.getMessage()]
    assert said == ["no pictures of this evaluation (the pencil is missing); training continues without them"]
    assert steps_in(tmp_path) == []
    full = Pictures(tmp_path / "pictures")
    (tmp_path / "pictures").write_text("a file where the folder should be")
    full.show(1, lambda: {"one": b"content"})
    assert "no pictures of this evaluation ([Errno" in caplog.text


def test_an_evaluator_alone_draws_nothing(tmp_path: Path):
    """``vaak eval`` and the like ask for figures only."""
    from vaak.engine.distributed.ranks import Ranks
    from vaak.engine.evaluation import Evaluator

    trainer = toy_trainer(tmp_path, task=Unable(), **OPTIONS)
    evaluator = Evaluator(Unable(), trainer.config, Ranks(torch.device("cpu")))
    assert evaluator.evaluate(trainer.model, "valid")["val_loss"] > 0


class KeepingMeters(DrawingMeters):
    """Keeps what it saw of each row, and a recording that never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.log = ExampleLog("wer")

    def update(self, model: torch.nn.Module, batch: Batch) -> None:
        super().update(model, batch)
        for row in batch.indices:
            self.log.add(row[0], 0, (row[0], 1), str(row[0]), {"text": f"example {row[0]}"})

    def seen(self) -> dict[str, list[Any]]:
        return self.log.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        return {**make_summary("wer", seen), "tokens": sums["token"]}

    def audio(self) -> dict[str, bytes]:
        return {"recording": RECORDING}


class Keeping(Drawing):
    kind = KeepingMeters


def files_in(run: Path, name: str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (run / "pictures" / name).glob("*")}


@pytest.mark.parametrize("reduction", ["plain", "exact"])
def test_single_examples_are_kept_by_step_and_the_same_after_a_resume(tmp_path: Path, reduction: str):
    options = {**OPTIONS, **({"distributed": {"reduction": "exact"}} if reduction == "exact" else {})}
    whole = toy_trainer(tmp_path / "whole", task=Keeping(), **options)
    shown: list[Mapping[str, bytes]] = []
    whole.pictures.subscribe(lambda step, drawn: shown.append(drawn))
    whole.fit()
    kept = files_in(tmp_path / "whole", "val_examples")
    assert sorted(kept) == [f"step-{step:08d}.json" for step in (2, 4, 6, 8)]
    found = json.loads(kept["step-00000008.json"])
    rows = len(Keeping().dataset("valid").lengths)
    assert found["scores"]["sums"] == [[index, 1] for index in range(rows)]
    assert found["examples"][0] == {"index": 0, "error": 0, "text": "example 0"}
    assert found["tokens"] > 0
    assert [sorted(one) for one in shown] == [["val_tokens"], ["val_recording"]] + 3 * [["val_tokens"]]
    assert list(files_in(tmp_path / "whole", "val_recording")) == ["step-00000002.wav"]  # it never changes
    toy_trainer(tmp_path / "cut", StopAt(7), task=Keeping(), **options).fit()
    resumed = toy_trainer(tmp_path / "cut", task=Keeping(), **options)
    assert resumed.resume(str(tmp_path / "cut" / "checkpoints" / "step-00000004"))
    assert max(files_in(tmp_path / "cut", "val_examples")) == "step-00000004.json"
    resumed.fit()
    for name in ("val_examples", "val_recording"):
        assert files_in(tmp_path / "cut", name) == files_in(tmp_path / "whole", name)


def test_no_examples_are_kept_where_they_are_not_wanted(tmp_path: Path):
    toy_trainer(tmp_path, task=Keeping(), **OPTIONS, logging={"examples": False}).fit()
    assert files_in(tmp_path, "val_tokens")
    assert not files_in(tmp_path, "val_examples")
