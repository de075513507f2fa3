"""W&B shows what metrics.jsonl says, each step once, online, and offline after a sync, over kills and resumes."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import wave
from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import PIL.Image
import pytest

from quick_cases import mostly_slow
from toy import StopAt, ToyTask, toy_trainer
from vaak.callbacks.step_log import StepLogCallback
from vaak.callbacks.trackers import numbers
from vaak.core.errors import UserError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.metrics_file import read_records
from vaak.engine.trainer import Trainer
from wandb_files import artifacts_of, history_of, run_of
from wandb_server import WandbServer

wandb = pytest.importorskip("wandb")

from vaak.callbacks.wandb import WandbCallback, run_id  # noqa: E402

CONFIG = {"name": "दौड़", "training": {"max_steps": 8, "optimizer": {"lr": 0.01}}}
EVERY_3: dict[str, Any] = {"validation": {"interval": 3}, "checkpoint": {"interval": 3, "save_total_limit": None}}
KEY = "0123456789abcdef" * 3


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """W&B's settings, caches and credentials are in the test's folder; its service ends with the test."""
    for name in ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "NETRC"):
        monkeypatch.setenv(name, str(tmp_path / "elsewhere"))
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    wandb.teardown()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbServer]:
    server = WandbServer()
    monkeypatch.setenv("WANDB_BASE_URL", server.url)
    yield server
    wandb.teardown()
    server.close()


def trained(folder: Path, mode: str, *callbacks: Callback, resume: str | None = None, **settings: Any) -> Trainer:
    """A toy run, logged every step and tracked; ``resume`` names the checkpoint that it resumes from."""
    tracking = WandbCallback({"project": "toy", "mode": mode, **settings}, CONFIG)
    trainer = toy_trainer(folder, StepLogCallback(1, smoothing=0.9), tracking, *callbacks, **EVERY_3)
    if resume is not None:
        assert trainer.resume(resume)
    trainer.fit()
    wandb.teardown()  # as at the end of a process: W&B's service writes to the last, then ends
    return trainer


def expected_rows(folder: Path) -> list[dict[str, Any]]:
    """Return the contents of ``metrics.jsonl``, one row per step."""
    rows: dict[int, dict[str, Any]] = {}
    for record in read_records(folder / "metrics.jsonl"):
        rows.setdefault(record["step"], {"_step": record["step"]}).update(numbers(record, None))
    return [rows[step] for step in sorted(rows)]


def without_clock(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    clock = ("train/seconds", "train/gap_ms", "train/tokens_per_second", "train/examples_per_second")
    return [{name: value for name, value in row.items() if name not in clock} for row in rows]


def offline_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("wandb/offline-run-*/*.wandb"))


def wait_for_the_next_second() -> None:
    """W&B names an offline run's folder by the second in which it begins."""
    now = time.time()
    while int(time.time()) == int(now):
        time.sleep(0.01)


@pytest.mark.slow
def test_an_offline_file_holds_the_config_and_every_record(tmp_path: Path):
    trained(tmp_path, "offline")
    (file,) = offline_files(tmp_path)
    assert history_of(file) == expected_rows(tmp_path)
    losses = [row["train/loss"] for row in history_of(file)]
    assert losses == [record["loss"] for record in read_records(tmp_path / "metrics.jsonl") if record["kind"] == "step"]
    run = run_of(file)
    assert (run.run_id, run.project) == ((tmp_path / "wandb" / "id").read_text(), "toy")
    config = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert {name: value for name, value in config.items() if name != "_wandb"} == CONFIG


@pytest.mark.slow
def test_a_new_run_of_the_command_is_tracked(
    vaak: Callable[..., tuple[int, str, str]], tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its folder is guarded against links: looking for one in RUN/wandb, which isn't there yet, ended tracking."""
    monkeypatch.setenv("WANDB_MODE", "offline")
    options = ("training.logging.wandb=true", "training.max_steps=2", "training.logging.interval=1", "name=other")
    code, _, errors = vaak("train", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", *options)
    wandb.teardown()
    assert (code, "Weights & Biases" in errors) == (0, False), errors
    (file,) = offline_files(tmp_path / "run")
    assert run_of(file).display_name == "other"
    assert [row["_step"] for row in history_of(file)] == [1, 2]


def test_after_a_resume_the_newest_offline_file_is_the_whole_run_and_the_others_count_as_synced(tmp_path: Path):
    """Stopped at step 7, resumed from step 3."""
    trained(tmp_path, "offline", StopAt(7))
    wait_for_the_next_second()
    trained(tmp_path, "offline", resume=str(tmp_path / "checkpoints" / "step-00000003"))
    older, newer = offline_files(tmp_path)
    assert run_of(older).run_id == run_of(newer).run_id
    assert [row["_step"] for row in history_of(newer)] == list(range(1, 9))
    assert history_of(newer) == expected_rows(tmp_path)
    assert older.with_suffix(".wandb.synced").exists()
    assert not newer.with_suffix(".wandb.synced").exists()


@pytest.mark.slow
def test_wandb_sync_puts_the_run_on_the_server_as_metrics_jsonl_has_it(tmp_path: Path, server: WandbServer):
    """Two sessions, synced at the end, one of them with steps that came again: one run, no step twice."""
    trained(tmp_path, "offline", StopAt(7))
    wait_for_the_next_second()
    trained(tmp_path, "offline", resume=str(tmp_path / "checkpoints" / "step-00000003"))
    sync(tmp_path / "wandb")
    run = (tmp_path / "wandb" / "id").read_text()
    assert list(server.histories) == [run]
    assert server.rows(run) == expected_rows(tmp_path)
    assert server.configs[run]["training"] == {"value": CONFIG["training"]}


@pytest.mark.slow  # test_after_a_resume_the_newest_offline_file_is_the_whole_run… reads the files themselves
def test_what_goes_on_after_a_sync_is_another_run_and_whole(tmp_path: Path, server: WandbServer):
    trained(tmp_path, "offline", StopAt(7))
    sync(tmp_path / "wandb")
    first, first_rows = (tmp_path / "wandb" / "id").read_text(), expected_rows(tmp_path)
    wait_for_the_next_second()
    trained(tmp_path, "offline", resume=str(tmp_path / "checkpoints" / "step-00000003"))
    sync(tmp_path / "wandb")
    second = (tmp_path / "wandb" / "id").read_text()
    assert server.rows(first) == first_rows
    assert server.rows(second) == expected_rows(tmp_path)


def sync(folder: Path) -> None:
    """``wandb sync`` of a folder, as users call it."""
    command = [sys.executable, "-m", "wandb", "sync", "--yes", str(folder)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)


@pytest.mark.slow
def test_online_no_step_is_shown_twice_after_a_resume(tmp_path: Path, server: WandbServer):
    """Steps 4 to 7, sent twice, are on the server once, bit for bit."""
    trained(tmp_path, "online", StopAt(7))
    trained(tmp_path, "online", resume=str(tmp_path / "checkpoints" / "step-00000003"))
    rows = server.rows((tmp_path / "wandb" / "id").read_text())
    assert [row["_step"] for row in rows] == list(range(1, 9))
    assert without_clock(rows) == without_clock(expected_rows(tmp_path))


def test_online_what_was_trained_without_wandb_is_made_up_for(tmp_path: Path, server: WandbServer):
    """Steps 1 to 4 never reached the server; when the run resumes with it, they are there."""
    toy_trainer(tmp_path, StepLogCallback(1, smoothing=0.9), StopAt(4), **EVERY_3).fit()
    trained(tmp_path, "online", resume="auto")
    assert server.rows((tmp_path / "wandb" / "id").read_text()) == expected_rows(tmp_path)


@pytest.mark.parametrize(("which", "steps"), mostly_slow([("none", []), ("best", [3, 6]), ("all", [3, 6, 8])], "best"))
def test_checkpoints_are_artifacts_with_their_files_and_aliases(which: str, steps: list[int], tmp_path: Path):
    """Of three evaluations the second is best; checkpoints that were the best when saved are uploaded."""
    tracking = WandbCallback({"project": "toy", "mode": "offline", "checkpoints": which}, CONFIG)
    task = ToyTask(scripted=iter([2.0, 1.0, 3.0]))
    toy_trainer(tmp_path, StepLogCallback(1), tracking, task=task, **EVERY_3).fit()
    wandb.teardown()
    (file,) = offline_files(tmp_path)
    artifacts = artifacts_of(file)
    assert [json.loads(artifact.metadata)["step"] for artifact in artifacts] == steps
    for artifact, step in zip(artifacts, steps, strict=True):
        assert artifact.type == "model"
        assert set(artifact.aliases) == {"latest", f"step-{step}", *(["best"] if step != 8 else [])}
        sizes = {entry.path: entry.size for entry in artifact.manifest.contents}
        folder = tmp_path / "checkpoints" / f"step-{step:08}"
        assert sizes == {path.name: path.stat().st_size for path in folder.iterdir()}


def test_a_checkpoint_that_cannot_be_uploaded_is_said_once(tmp_path: Path, monkeypatch, caplog):
    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space for artifacts")

    monkeypatch.setattr(wandb.Artifact, "add_dir", fail)
    trained(tmp_path, "offline", checkpoints="all")
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["checkpoints can't be uploaded (no space for artifacts); they stay in the run directory"]
    assert history_of(offline_files(tmp_path)[0]) == expected_rows(tmp_path)


def test_a_service_that_dies_is_said_once_and_training_goes_on(tmp_path: Path, monkeypatch, caplog):
    psutil = pytest.importorskip("psutil")

    class KillService(Callback):
        def on_step_end(self, trainer: Any, report: StepReport) -> None:
            if report.step == 3:
                (service,) = [
                    child for child in psutil.Process().children() if "wandb-core" in " ".join(child.cmdline())
                ]
                service.kill()
                service.wait()

    with monkeypatch.context() as patch:
        patch.setattr(wandb, "teardown", lambda: None)
        trainer = trained(tmp_path, "offline", KillService())
    with pytest.raises(ConnectionResetError):  # nothing is left to end; W&B forgets it all the same
        wandb.teardown()
    assert trainer.is_finished
    assert [record["step"] for record in read_records(tmp_path / "metrics.jsonl") if record["kind"] == "step"] == list(
        range(1, 9)
    )
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert warnings[0].startswith("Weights & Biases can't ")


def test_the_key_is_nowhere_in_the_run_directory(tmp_path: Path):
    trained(tmp_path, "offline")
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if KEY.encode() in path.read_bytes()]


def test_a_failure_is_told_without_the_key(tmp_path: Path, monkeypatch, caplog):
    def fail(**_: Any) -> None:
        raise ValueError(f"401 for {KEY}\nand more lines")

    monkeypatch.setattr(wandb, "init", fail)
    assert trained(tmp_path, "online").is_finished
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "(401 for ***)" in warning


def test_without_the_package_the_run_does_not_begin(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install 'vaak"):
        WandbCallback({"project": "toy"}, {})


def test_ids(tmp_path: Path):
    """One for a run, over resumes and moves; a run that begins again from scratch is another one."""
    first = run_id(tmp_path, is_new=True)
    assert run_id(tmp_path, is_new=False) == first
    assert run_id(tmp_path, is_new=True) != first


def test_pictures_and_audio_are_logged_under_their_step():
    """Not those of steps that W&B has; their files may be deleted once they are logged."""
    logged: list[tuple[int, dict[str, Any]]] = []

    class Run:
        def log(self, media: dict[str, Any], step: int) -> None:
            assert all(Path(one._path).stat().st_size for one in media.values())
            logged.append((step, media))

    picture, sound = BytesIO(), BytesIO()
    PIL.Image.new("RGBA", (6, 4)).save(picture, "PNG")
    with wave.open(sound, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(bytes(20))
    tracking = WandbCallback({}, CONFIG)
    tracking.run, tracking.next_step = Run(), 6
    for step in (3, 6):
        tracking.write_pictures(step, {"val_speech": picture.getvalue(), "val_sample-1": sound.getvalue()})
    ((step, media),) = logged
    assert step == 6
    assert {name: type(one) for name, one in media.items()} == {
        "evaluation/val_speech": wandb.Image,
        "evaluation/val_sample-1": wandb.Audio,
    }
