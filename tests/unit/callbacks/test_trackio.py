"""trackio shows what metrics.jsonl says, as TensorBoard and W&B do: each point once, over a resume, offline."""

from __future__ import annotations

import base64
import sys
import wave
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from toy import StopAt, ToyMeters, ToyTask, toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.callbacks.trackers import TrackioCallback, numbers
from vaak.core.errors import UserError
from vaak.engine.metrics_file import read_records

OPTIONS: dict[str, Any] = {"validation": {"interval": 3}, "checkpoint": {"interval": 3, "save_total_limit": None}}


def points_in(project: str) -> dict[str, list[tuple[int, float]]]:
    """Every figure of the only run of a project, as trackio's dashboard reads it: name to (step, value) in order."""
    from trackio.sqlite_storage import SQLiteStorage

    (run,) = SQLiteStorage.get_run_records(project)
    found: dict[str, list[tuple[int, float]]] = {}
    for row in SQLiteStorage.get_logs(project, run["name"], run_id=run["id"]):
        for name, value in row.items():
            if "/" in name and isinstance(value, int | float):
                found.setdefault(name, []).append((row["step"], value))
    return {name: sorted(points) for name, points in found.items()}


def test_it_shows_metrics_jsonl_once_over_a_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Stopped at step 7 and resumed from step 3: steps 4 to 7 are written twice and shown once."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio isn't installed: pip install 'vaak[trackio]'")
    run = tmp_path / "run"

    def callbacks() -> tuple[Any, ...]:
        return StepLogCallback(1), TrackioCallback("toy", {"training": {"max_steps": 8}})

    toy_trainer(run, *callbacks(), StopAt(7), **OPTIONS).fit()
    resumed = toy_trainer(run, *callbacks(), **OPTIONS)
    assert resumed.resume(str(run / "checkpoints" / "step-00000003"))
    resumed.fit()
    expected: dict[str, list[tuple[int, Any]]] = {}
    for record in read_records(run / "metrics.jsonl"):
        for name, value in numbers(record, None).items():
            expected.setdefault(name, []).append((record["step"], pytest.approx(value, rel=1e-6)))
    shown = points_in("toy")
    assert [step for step, _ in shown["train/loss"]] == list(range(1, 9))
    assert shown == {name: sorted(points, key=lambda one: one[0]) for name, points in expected.items()}
    assert capsys.readouterr().out == ""


def test_without_the_package_it_is_named_before_training(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "trackio", None)
    with pytest.raises(UserError, match=r"pip install 'vaak\[trackio\]'"):
        TrackioCallback("toy", {})


PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.mark.usefixtures("pictures")
def test_pictures_and_sound_go_there_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="trackio isn't installed: pip install 'vaak[trackio]'")
    from trackio.sqlite_storage import SQLiteStorage

    sound = BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(1600))

    class Showing(ToyMeters):
        def pictures(self) -> dict[str, bytes]:
            return {"dot": PIXEL}

        def audio(self) -> dict[str, bytes]:
            return {"silence": sound.getvalue()}

    class Task(ToyTask):
        def meters(self, split: str) -> ToyMeters:
            return Showing()

    toy_trainer(tmp_path / "run", StepLogCallback(1), TrackioCallback("shown", {}), task=Task(), **OPTIONS).fit()
    (run,) = SQLiteStorage.get_run_records("shown")
    shown: dict[str, list[int]] = {}
    for row in SQLiteStorage.get_logs("shown", run["name"], run_id=run["id"]):
        for name in ("evaluation/val_dot", "evaluation/val_silence"):
            if name in row:
                shown.setdefault(name, []).append(row["step"])
    assert shown == {"evaluation/val_dot": [3, 6, 8], "evaluation/val_silence": [3]}


def test_a_run_of_another_directory_is_never_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """A stranger's trackio.json named a run of the user's, which training in the stranger's run removed."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    trackio = pytest.importorskip("trackio", reason="trackio isn't installed: pip install 'vaak[trackio]'")
    toy_trainer(tmp_path / "mine", StepLogCallback(1), TrackioCallback("toy", {}), StopAt(2), **OPTIONS).fit()
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "trackio.json").write_bytes((tmp_path / "mine" / "trackio.json").read_bytes())
    toy_trainer(tmp_path / "theirs", StepLogCallback(1), TrackioCallback("toy", {}), StopAt(2), **OPTIONS).fit()
    names = {run.name.rpartition("-")[0] for run in trackio.Api().runs("toy")}
    assert {"mine", "theirs"} <= names
    assert any("is of another run directory" in record.getMessage() for record in caplog.records)
