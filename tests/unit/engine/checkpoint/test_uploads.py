"""Checkpoints at a URL: whole there or nothing, without holding up who writes them; kept and removed as those here."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

fsspec = pytest.importorskip("fsspec", reason="requires the extra cloud")

from vaak.core.errors import CheckpointError  # noqa: E402
from vaak.core.storage.remote import RemoteFolder, StorageError  # noqa: E402
from vaak.engine.checkpoint import uploads as uploading  # noqa: E402
from vaak.engine.checkpoint.files import CheckpointWriter, load_checkpoint, save_checkpoint, verify  # noqa: E402
from vaak.engine.checkpoint.names import MANIFEST, list_checkpoints, step_folder  # noqa: E402
from vaak.engine.checkpoint.uploads import RemoteCheckpoints, Uploads  # noqa: E402
from vaak.engine.snapshot import Snapshot  # noqa: E402


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[RemoteCheckpoints]:
    yield RemoteCheckpoints(f"memory://{tmp_path.name}")
    fsspec.filesystem("memory").store.clear()


@pytest.fixture
def writer(tmp_path: Path) -> CheckpointWriter:
    return CheckpointWriter(tmp_path / "checkpoints", tmp_path / "metrics.jsonl", 2)


@pytest.fixture(autouse=True)
def _without_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "WAITS", (0.0, 0.0))


def snapshot(step: int, value: float | None = None) -> Snapshot:
    weight = torch.full((8,), float(step if value is None else value))
    return Snapshot(step, {"weight": weight, "frozen": torch.ones(64)}, {}, {"position": {"step": step}})


def saved(folder: Path, step: int, **about: Any) -> Path:
    return save_checkpoint(folder, snapshot(step), about, {"prepared/words.txt": "the same in all"})


def look_again(remote: RemoteCheckpoints) -> list[int]:
    """The steps that another machine finds."""
    other = RemoteCheckpoints(remote.store.url)
    other.look()
    return sorted(other.whole)


def after(calls: int, name: str, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a method of RemoteFolder fail, once, after this number of calls."""
    own: Callable[..., Any] = getattr(RemoteFolder, name)
    done = iter(range(1_000))

    def counted(*given: Any) -> Any:
        if next(done) == calls:
            raise error
        return own(*given)

    monkeypatch.setattr(RemoteFolder, name, counted)


def test_a_checkpoint_comes_back_as_it_was_sent(remote: RemoteCheckpoints, tmp_path: Path):
    path = saved(tmp_path / "here", 3)
    remote.send(path)
    other = RemoteCheckpoints(remote.store.url)
    other.look()
    back = other.fetch(3, tmp_path / "there")
    verify(back)
    assert torch.equal(load_checkpoint(back).model["weight"], load_checkpoint(path).model["weight"])
    assert (back / MANIFEST).read_bytes() == (path / MANIFEST).read_bytes()


@pytest.mark.parametrize("calls", range(4))
def test_killed_amid_an_upload_it_does_not_count_and_the_next_start_finishes_it(
    calls: int, remote: RemoteCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = saved(tmp_path / "here", 3)
    with monkeypatch.context() as patched:
        after(calls, "send", Killed(), patched)
        with pytest.raises(Killed):
            remote.send(path)
    assert look_again(remote) == []
    remote.send(path)
    assert look_again(remote) == [3]


def test_killed_before_the_manifest_or_while_one_is_replaced_it_does_not_count(
    remote: RemoteCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = saved(tmp_path / "here", 3)
    with monkeypatch.context() as patched:
        after(0, "write", Killed(), patched)
        with pytest.raises(Killed):
            remote.send(path)
    assert look_again(remote) == []
    remote.send(path)
    other = save_checkpoint(tmp_path / "other", snapshot(3, 7.0))
    with monkeypatch.context() as patched:
        after(0, "send", Killed(), patched)
        with pytest.raises(Killed):
            remote.send(other)
    assert look_again(remote) == []
    remote.send(other)
    remote.look()
    # What only the one before had is gone.
    assert [name for name in remote.store.list_files() if "words" in name] == []
    assert remote.whole[3].manifest == (other / MANIFEST).read_bytes()


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_file_there_is_found(damage: str, remote: RemoteCheckpoints, tmp_path: Path):
    remote.send(saved(tmp_path / "here", 3))
    name = f"checkpoints/{step_folder(3)}/model.safetensors"
    content = remote.store.read(name)
    assert content is not None
    if damage == "missing":
        remote.store.remove([name])
    else:
        remote.store.write(name, content[:-1] if damage == "truncated" else content[:-1] + b"?")
    remote.look()
    if damage != "changed":
        assert remote.whole == {}
        return
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged: it does not match its MANIFEST\.json"):
        remote.fetch(3, tmp_path / "there")
    assert list_checkpoints(tmp_path / "there") == []
    remote.set_aside(3)
    assert look_again(remote) == []
    assert f"set-aside/{step_folder(3)}/model.safetensors" in remote.store.list_files()


def test_the_same_file_in_two_checkpoints_is_sent_once(
    remote: RemoteCheckpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    sent: list[str] = []
    own = RemoteFolder.send
    monkeypatch.setattr(
        RemoteFolder, "send", lambda self, file, name, sha: sent.append(name) or own(self, file, name, sha)
    )
    remote.send(saved(tmp_path / "here", 3))
    remote.send(saved(tmp_path / "here", 6))
    assert [name for name in sent if name.endswith("words.txt")] == [f"checkpoints/{step_folder(3)}/prepared/words.txt"]
    assert look_again(remote) == [3, 6]


def test_those_there_are_kept_and_removed_as_those_here(remote: RemoteCheckpoints, writer: CheckpointWriter):
    writer.keep_every = 5
    uploads = Uploads(remote, writer, dict)
    uploads.start()
    for step in range(1, 9):
        writer.write(snapshot(step), is_best=step == 2)
        writer.finish()
    uploads.close()
    assert look_again(remote) == [2, 5, 7, 8]
    assert (remote.find_pointed("best"), remote.find_pointed("last")) == (2, 8)


def test_a_slow_upload_holds_up_no_save_and_its_checkpoint_stays_here(
    remote: RemoteCheckpoints, writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
):
    begun, goes_on = threading.Event(), threading.Event()
    own = RemoteCheckpoints.send

    def slow(self: RemoteCheckpoints, path: Path) -> None:
        begun.set()
        assert goes_on.wait(20)
        own(self, path)

    monkeypatch.setattr(RemoteCheckpoints, "send", slow)
    uploads = Uploads(remote, writer, dict)
    uploads.start()
    writer.write(snapshot(1), is_best=False)
    assert begun.wait(20)
    for step in range(2, 7):
        # None of these would end if it waited.
        writer.write(snapshot(step), is_best=False)
        writer.finish()
    assert [path.name for path in list_checkpoints(writer.folder)] == [step_folder(step) for step in (1, 5, 6)]
    goes_on.set()
    uploads.close()
    assert [path.name for path in list_checkpoints(writer.folder)] == [step_folder(step) for step in (5, 6)]
    assert look_again(remote) == [5, 6]


def test_failures_are_tried_again_then_said_in_a_line_and_counted(
    remote: RemoteCheckpoints,
    writer: CheckpointWriter,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    caplog.set_level("INFO", logger="vaak")
    tries: list[int] = []

    def refused(*given: Any) -> None:
        tries.append(1)
        raise StorageError("memory://run/model can't be written: 503")

    with monkeypatch.context() as patched:
        patched.setattr(RemoteFolder, "send", refused)
        uploads = Uploads(remote, writer, dict)
        writer.write(snapshot(1), is_best=False)
        writer.finish()
        uploads.start()
        uploads.close()
    assert (len(tries) % 3, uploads.sent, uploads.failures) == (0, 0, len(tries) // 3)
    assert "upload failed after 3 tries: memory://run/model can't be written: 503; training continues" in caplog.text
    assert "step-00000001, the newest, is not there: the next start of this run uploads it" in caplog.text
    caplog.clear()
    # Back again, what is lacking is brought.
    uploads = Uploads(remote, writer, dict)
    uploads.start()
    uploads.close()
    assert look_again(remote) == [1]
    assert "1 checkpoint(s) uploaded to" in caplog.text
    assert "0 upload(s) failed" in caplog.text


def test_what_was_completed_later_is_sent_too(remote: RemoteCheckpoints, writer: CheckpointWriter, tmp_path: Path):
    uploads = Uploads(remote, writer, dict)
    uploads.start()
    writer.write(snapshot(1), is_best=False)
    writer.complete(1, {"position": {"step": 1}, "done": True}, is_best=True)
    uploads.close()
    remote.look()
    back = remote.fetch(1, tmp_path / "there")
    assert (back / "completed.json").read_bytes() == (writer.folder / back.name / "completed.json").read_bytes()
    assert remote.find_pointed("best") == 1


def test_of_two_processes_the_one_that_began_last_writes_and_the_other_says_so(
    remote: RemoteCheckpoints, writer: CheckpointWriter, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """A machine that was given up for lost went on, and removed files of the one that had resumed its run."""
    remote.claim()
    uploads = Uploads(remote, writer, dict)
    uploads.start()
    writer.write(snapshot(1), is_best=False)
    writer.finish()
    while look_again(remote) != [1]:
        time.sleep(0.01)
    other = RemoteCheckpoints(remote.store.url)
    other.claim()
    other.look()
    other.send(saved(tmp_path / "other", 2))
    theirs = other.whole[2].manifest
    for step in (2, 3, 4):
        writer.write(snapshot(step, 9.0), is_best=False)
        writer.finish()
    uploads.close()
    assert look_again(remote) == [1, 2]
    assert other.store.read(f"checkpoints/{step_folder(2)}/{MANIFEST}") == theirs
    [error] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert f"writes to {remote.shown} since " in error.message
    assert "nothing more is uploaded from here" in error.message
    assert "1 checkpoint(s) uploaded" in caplog.text
    other.require_claim()
