"""TensorBoard repeats what metrics.jsonl says, each point once, over kills, resumes and a clock that jumps."""

from __future__ import annotations

import io
import logging
import shutil
import struct
import subprocess
import sys
import tempfile
import wave
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toy import StopAt, ToyMeters, ToyTask, toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.callbacks.trackers import EventFile, TensorBoardCallback, masked_crc, numbers
from vaak.engine.callback import Callback, StepReport
from vaak.engine.metrics_file import Records, json_line, read_newest_records, read_records

OPTIONS: dict[str, Any] = {
    "validation": {"interval": 3},
    "checkpoint": {"interval": 3, "save_total_limit": None},
}


def events_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Every scalar of a TensorBoard folder as TensorBoard reads it: tag to (step, value) in order."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {
        tag: [(event.step, event.value) for event in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]
    }


def expected_in(folder: Path) -> dict[str, list[tuple[int, Any]]]:
    expected: dict[str, list[tuple[int, Any]]] = {}
    for record in read_records(folder / "metrics.jsonl"):
        for tag, value in numbers(record, None).items():
            expected.setdefault(tag, []).append((record["step"], pytest.approx(value, rel=1e-6, nan_ok=True)))
    return expected


def test_it_repeats_metrics_jsonl_and_no_point_twice_after_a_resume(tmp_path: Path):
    """Stopped at step 7 and resumed from step 3: steps 4 to 7 are written twice and shown once."""
    toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(), StopAt(7), **OPTIONS).fit()
    assert events_in(tmp_path / "tensorboard") == expected_in(tmp_path)
    resumed = toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(), **OPTIONS)
    assert resumed.resume(str(tmp_path / "checkpoints" / "step-00000003"))
    resumed.fit()
    shown = events_in(tmp_path / "tensorboard")
    assert [step for step, _ in shown["train/loss"]] == list(range(1, 9))
    assert [step for step, _ in shown["evaluation/val_loss"]] == [3, 6, 8]
    assert shown == expected_in(tmp_path)


@pytest.mark.parametrize("torn", [0, 1, 30])
def test_after_a_kill_no_point_is_missing(torn: int, tmp_path: Path):
    """The killed process had logged step 5, perhaps with half of its event on disk; the run resumes from step 3."""
    toy_trainer(tmp_path / "killed", StepLogCallback(1), LeaveAt(5, tmp_path / "run"), **OPTIONS).fit()
    folder = tmp_path / "run"
    (file,) = (folder / "tensorboard").iterdir()
    assert [step for step, _ in events_in(folder / "tensorboard")["train/loss"]] == [1, 2, 3, 4, 5]
    if torn:
        file.write_bytes(file.read_bytes()[:-torn])
    resumed = toy_trainer(folder, StepLogCallback(1), TensorBoardCallback(), **OPTIONS)
    assert resumed.resume("auto")
    assert resumed.position.step == 3
    resumed.fit()
    assert events_in(folder / "tensorboard") == expected_in(folder)
    assert [step for step, _ in events_in(folder / "tensorboard")["train/loss"]] == list(range(1, 9))


class LeaveAt(TensorBoardCallback):
    """Copies the run directory during the run, which is its state on disk if the process is killed there."""

    def __init__(self, step: int, target: Path) -> None:
        super().__init__()
        self.step, self.target = step, target

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == self.step:
            trainer.saving.writer.wait()
            shutil.copytree(trainer.directory, self.target)


def test_an_evaluation_done_again_at_the_step_of_the_checkpoint_is_shown_once(tmp_path: Path):
    """Stopped at step 3 with its evaluation left over, gone on, killed before the next checkpoint, gone on again."""
    toy_trainer(tmp_path / "run", StepLogCallback(1), TensorBoardCallback(), StopAt(3), **OPTIONS).fit()
    again = toy_trainer(tmp_path / "run", StepLogCallback(1), LeaveAt(4, tmp_path / "left"), **OPTIONS)
    assert again.resume("auto")
    assert again.position.schedule_pending
    again.fit()
    assert [step for step, _ in events_in(tmp_path / "left" / "tensorboard")["evaluation/val_loss"]] == [3]
    shutil.rmtree(tmp_path / "left" / "checkpoints")
    shutil.copytree(tmp_path / "run" / "checkpoints", tmp_path / "left" / "checkpoints")
    last = toy_trainer(tmp_path / "left", StepLogCallback(1), TensorBoardCallback(), **OPTIONS)
    assert last.resume(str(tmp_path / "left" / "checkpoints" / "step-00000003"))
    last.fit()
    assert events_in(tmp_path / "left" / "tensorboard") == expected_in(tmp_path / "left")
    assert [step for step, _ in events_in(tmp_path / "left" / "tensorboard")["evaluation/val_loss"]] == [3, 6, 8]


def test_a_run_begun_anew_shows_nothing_of_the_one_before(tmp_path: Path):
    """Killed before its first checkpoint, it begins again at step 1."""
    options: dict[str, Any] = {"checkpoint": {"interval_epochs": None}}
    for _ in range(2):
        trainer = toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(), **options)
        trainer.resume("auto")
        if not (tmp_path / "tensorboard").exists():
            trainer.total_steps = 3
            trainer.save_due = lambda: False  # type: ignore[method-assign]
        trainer.fit()
    assert events_in(tmp_path / "tensorboard") == expected_in(tmp_path)


def test_a_clock_that_jumped_back_puts_no_file_before_an_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for number, now in enumerate((2_000_000_000.0, 1_000_000_000.0, 1_000_000_000.0)):
        monkeypatch.setattr("time.time", lambda now=now: now)
        file = EventFile(tmp_path, first_step=number + 1)
        for step in range(number + 1, 5):
            file.add_scalars(step, {"a": 10.0 * number + step})
        file.close()
    assert events_in(tmp_path) == {"a": [(1, 1.0), (2, 12.0), (3, 23.0), (4, 24.0)]}


def test_a_number_that_is_none_is_shown_as_such(tmp_path: Path):
    file = EventFile(tmp_path, first_step=0)
    file.add_scalars(1, numbers({"kind": "step", "step": 1, "loss": float("nan"), "gradient_norm": "inf"}, None))
    file.close()
    shown = events_in(tmp_path)
    assert shown["train/gradient_norm"] == [(1, float("inf"))]
    assert shown["train/loss"][0][1] != shown["train/loss"][0][1]


def test_only_the_metrics_asked_for_are_tracked(tmp_path: Path):
    toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(("loss", "learning_rate")), **OPTIONS).fit()
    assert sorted(events_in(tmp_path / "tensorboard")) == ["evaluation/val_loss", "train/learning_rate", "train/loss"]


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    trainer = toy_trainer(tmp_path, StepLogCallback(1), TensorBoardCallback(), **OPTIONS)
    assert trainer.fit() == "finished"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("TensorBoard can't begin (")
    assert "training continues without it" in warnings[0]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has the disk that is always full")
def test_a_disk_that_fills_up_is_said_once_and_metrics_jsonl_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """The file takes two steps' events, then only a part of the third's."""
    tracking = TensorBoardCallback()

    class FullAt3(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            if report.step == 3:
                assert tracking.file is not None
                tracking.file.file.close()
                tracking.file.file = open("/dev/full", "wb", buffering=0)  # noqa: SIM115

    trainer = toy_trainer(tmp_path, FullAt3(), StepLogCallback(1), tracking, **OPTIONS)
    assert trainer.fit() == "finished"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("TensorBoard can't continue (")
    assert [r["step"] for r in read_records(tmp_path / "metrics.jsonl") if r["kind"] == "step"] == list(range(1, 9))
    assert [step for step, _ in events_in(tmp_path / "tensorboard")["train/loss"]] == [1, 2]


@given(st.binary(max_size=300))
def test_checksums_are_tensorflows(content: bytes):
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    assert masked_crc(content) == masked_crc32c(content)


@given(st.integers(0, 12), st.integers(1, 400))
def test_newest_records_are_the_last_lines_of_the_file(step: int, tail: int):
    """Whatever part of the file is read, no half line counts as a record."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        records = Records(Path(folder) / "metrics.jsonl")
        assert read_newest_records(Path(folder) / "metrics.jsonl", 0) == []
        for number in range(10):
            records.write({"kind": "step", "step": number, "clock": {"seconds": 0.5}})
        everything = read_records(Path(folder) / "metrics.jsonl")
        patch.setattr("vaak.engine.metrics_file.TAIL_BYTES", tail)
        read = read_newest_records(Path(folder) / "metrics.jsonl", step)
        wanted = [record for record in everything if record["step"] >= step]
        assert read == wanted[len(wanted) - len(read) :]
        line = len(json_line(everything[0])) + 1
        assert len(read) == min(len(wanted), tail // line)


@pytest.mark.slow
def test_writing_imports_nothing_heavy():
    """Neither TensorBoard's writers nor its messages: the package need not be installed."""
    code = (
        "import sys, tempfile, pathlib, vaak.callbacks.trackers as files\n"
        "files.EventFile(pathlib.Path(tempfile.mkdtemp()), 0).close()\n"
        "print([name for name in ('tensorflow', 'tensorboard', 'google.protobuf') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("pictures")
def test_pictures_are_shown_once_after_a_resume(tmp_path: Path):
    """Stopped at step 7 and resumed from step 3, whose picture is repeated after the purge."""
    toy_trainer(tmp_path, TensorBoardCallback(), StopAt(7), task=DrawingTask(), **OPTIONS).fit()
    resumed = toy_trainer(tmp_path, TensorBoardCallback(), task=DrawingTask(), **OPTIONS)
    assert resumed.resume(str(tmp_path / "checkpoints" / "step-00000003"))
    resumed.fit()
    images = images_in(tmp_path / "tensorboard", "evaluation/val_square")
    assert [(image.step, image.width, image.height) for image in images] == [(3, 6, 4), (6, 6, 4), (8, 6, 4)]
    assert all(image.encoded_image_string == png(6, 4) for image in images)


def images_in(folder: Path, tag: str) -> list[Any]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(str(folder), size_guidance={"images": 0})
    accumulator.Reload()
    return accumulator.Images(tag)


def png(width: int, height: int) -> bytes:
    """The first bytes of a PNG, which say how large it is."""
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + bytes([8, 6, 0, 0, 0])


class DrawingMeters(ToyMeters):
    def pictures(self) -> dict[str, bytes]:
        return {"square": png(6, 4)}


class DrawingTask(ToyTask):
    def meters(self, split: str) -> ToyMeters:
        return DrawingMeters()


def test_events_are_the_bytes_that_tensorboards_own_classes_give(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog

    monkeypatch.setattr("time.time", lambda: 1_234_567_890.125)
    scalars = {"train/loss": 0.1, "zero": 0.0, "whole": 3, "ü": -2.5, "large": 1e300, "low": -1e300, "n": float("inf")}
    sound = io.BytesIO()
    with wave.open(sound, "wb") as recording:
        recording.setparams((2, 2, 22050, 0, "NONE", ""))
        recording.writeframes(bytes(4 * 300))
    file = EventFile(tmp_path, first_step=0)
    file.add_scalars(7, scalars)
    file.add_images(300, {"a": png(640, 2)})
    file.add_audio(2**40, {"b": sound.getvalue()})
    file.close()
    (written,) = tmp_path.iterdir()
    content, found = written.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        found.append(content[12 : 12 + length])
        content = content[16 + length :]

    def event(**given: Any) -> Any:
        return Event(wall_time=1_234_567_890.125, **given)

    expected = [event(file_version="brain.Event:2"), event(session_log=SessionLog(status=SessionLog.START))]
    expected += [event(step=7), event(step=300), event(step=2**40)]
    for tag, value in scalars.items():
        expected[2].summary.value.add(tag=tag, simple_value=value)
    image = expected[3].summary.value.add(tag="a").image
    image.width, image.height, image.colorspace, image.encoded_image_string = 640, 2, 4, png(640, 2)
    one = expected[4].summary.value.add(tag="b")
    one.audio.sample_rate, one.audio.num_channels, one.audio.length_frames = 22050, 2, 300
    one.audio.encoded_audio_string, one.audio.content_type = sound.getvalue(), "audio/wav"
    one.metadata.plugin_data.plugin_name = "audio"
    assert [Event.FromString(content) for content in found] == expected
    assert found == [event.SerializeToString() for event in expected]
