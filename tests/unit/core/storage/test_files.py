"""Files are there whole or not at all, also when writing fails half-way."""

import errno
import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from vaak.core.errors import UserError
from vaak.core.storage import files
from vaak.core.storage.json_lines import append_json_lines


def test_what_is_written_is_read(tmp_path: Path):
    value = {"metric": 0.1 + 0.2, "name": "वाक्", "list": [1, None, True]}
    files.write_json(tmp_path / "state.json", value)
    assert files.read_json(tmp_path / "state.json") == value
    assert "वाक्" in (tmp_path / "state.json").read_text(encoding="utf-8")
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_beside_it(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "state.json"
    files.write_text(path, "old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        files.write_text(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_replaced_file_and_its_name_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The content before the rename, and the folder after it: else a power cut leaves an empty file, or the old one."""
    (tmp_path / "run.json").write_text("old")
    happened: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda file: happened.append(_state(file, tmp_path)))
    files.write_text(tmp_path / "run.json", "new")
    assert happened == ["a file while there is old", "a folder while there is new"]


def _state(file: int, folder: Path) -> str:
    kind = "folder" if stat.S_ISDIR(os.fstat(file).st_mode) else "file"
    return f"a {kind} while there is {(folder / 'run.json').read_text()}"


def test_fingerprints_ignore_the_order_of_keys_and_see_values():
    assert files.compute_fingerprint({"a": 1, "b": Path("x")}) == files.compute_fingerprint({"b": Path("x"), "a": 1})
    assert files.compute_fingerprint({"a": 1}) != files.compute_fingerprint({"a": 2})


def test_sha256_is_that_of_the_content(tmp_path: Path):
    (tmp_path / "empty").touch()
    assert files.hash_file(tmp_path / "empty").startswith("e3b0c44298fc1c14")


def test_a_device_or_pipe_is_written_to_and_not_replaced(tmp_path):
    """As root, replacing --output /dev/null would take the device from the whole machine."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reading = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    files.write_bytes(pipe, b"text")
    assert os.read(reading, 10) == b"text"
    os.close(reading)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    (tmp_path / "null").symlink_to(os.devnull)
    files.write_bytes(tmp_path / "null", b"text")
    assert (tmp_path / "null").is_symlink()


def test_a_folder_is_not_replaced_by_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    with pytest.raises(IsADirectoryError):
        files.write_bytes(tmp_path / "link", b"text")


def test_a_device_is_no_input():
    with pytest.raises(OSError, match="a device, not a file"):
        files.require_file(Path(os.devnull))


def test_a_folder_made_for_what_failed_goes_with_all_that_is_empty(tmp_path: Path):
    def fail(name: str, written: str) -> None:
        with files.unmade_after_errors(tmp_path / name, {".lock"}):
            (tmp_path / name / written).write_text("")
            raise KeyError

    with files.unmade_after_errors(tmp_path / "kept" / "one"):
        pass
    (tmp_path / "kept" / "mine").write_text("")
    for name in ("new/one/two", "kept/two", "kept/one"):
        with pytest.raises(KeyError):
            fail(name, ".lock")
    assert sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")) == [
        *("kept", "kept/mine", "kept/one", "kept/one/.lock")
    ]
    with pytest.raises(KeyError):
        fail("new/one", "result")
    assert (tmp_path / "new" / "one" / "result").exists()
    with pytest.raises(NotADirectoryError):
        fail("kept/mine/one", ".lock")


def test_a_folder_is_made_whole_and_none_that_has_something_in_it_is_replaced(tmp_path: Path):
    for name in ("new", "empty"):
        if name == "empty":
            (tmp_path / name).mkdir()
        with files.whole_folder(tmp_path / name) as made:
            (made / "file").write_text("1")
            assert not (tmp_path / name / "file").exists()
        assert (tmp_path / name / "file").read_text() == "1"
    (tmp_path / "a file").write_text("mine")
    for name in ("new", "a file"):
        refused = pytest.raises(UserError, match="exists and is not an empty folder; choose another")
        with refused, files.whole_folder(tmp_path / name):
            raise AssertionError("nothing is made for it")
    assert (tmp_path / "new" / "file").read_text() == "1"


@pytest.fixture
def failing_flush(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[[int], None]:
    """Have every flush, or those of folders alone, fail with an error of the system."""
    monkeypatch.setattr(files, "not_flushed", {})
    caplog.set_level("WARNING", "vaak")

    def fail(number: int, folders_only: bool = False) -> None:
        def flush(descriptor: int) -> None:
            if not folders_only or stat.S_ISDIR(os.fstat(descriptor).st_mode):
                raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", flush)

    return fail


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EOPNOTSUPP])
@pytest.mark.parametrize("folders_only", [True, False])
def test_where_nothing_can_be_flushed_that_is_said_once(
    tmp_path: Path,
    failing_flush: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    number: int,
    folders_only: bool,
):
    """SMB and some FUSE mounts can't flush folders."""
    failing_flush(number, folders_only)
    files.write_text(tmp_path / "one", "1")
    files.write_text(tmp_path / "two", "2")
    with files.replacing_folder(tmp_path / "folder") as folder:
        (folder / "file").touch()
    append_json_lines(tmp_path / "lines.jsonl", [{"a": 1}], flushed=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "lines.jsonl", "one", "two"]
    [said] = [record.getMessage() for record in caplog.records]
    assert "can't flush" in said
    assert os.strerror(number) in said


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EDQUOT, errno.ESTALE, errno.EROFS])
def test_a_flush_that_fails_otherwise_is_an_error_that_names_the_file(
    tmp_path: Path, failing_flush: Callable[..., None], number: int
):
    failing_flush(number)
    with pytest.raises(OSError, match=re.escape(os.strerror(number))) as caught:
        files.write_text(tmp_path / "one", "1")
    assert caught.value.errno == number
    assert Path(caught.value.filename).name.startswith((".one", "one"))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_may_be_written_but_not_read_is_one_that_cant_be_flushed(
    tmp_path: Path,
    failing_flush: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(path: object, *others: object) -> int:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(os, "open", refuse)  # root may read all folders
    files.sync_directory(tmp_path)
    assert "can't flush" in caplog.text


def test_the_next_to_write_removes_what_a_killed_process_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A process that lives, one of another machine, and files that aren't ours are left alone."""
    child = os.fork()
    if child == 0:
        files.name_temporary(tmp_path / "report.html").write_text("half")
        files.name_temporary(tmp_path / "export").mkdir()
        os._exit(0)
    os.waitpid(child, 0)
    assert len(list(tmp_path.iterdir())) == 2
    others = [f".report.html.{os.getppid()}-{files._machine_mark()}.tmp", ".report.html.1-000000.tmp", ".mine.77.tmp"]
    for name in others:
        (tmp_path / name).touch()
    old = tmp_path / ".old.1-ffffff.tmp"
    old.touch()
    os.utime(old, (1, 1))
    files.write_text(tmp_path / "report.html", "whole")
    assert {path.name for path in tmp_path.iterdir()} == {"report.html", *others}


def test_a_scratch_folder_of_a_killed_process_is_removed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    child = os.fork()
    if child == 0:
        with files.scratch_folder("eval") as folder:
            (folder / "large").touch()
            os._exit(0)
    os.waitpid(child, 0)
    [left] = tmp_path.iterdir()
    with files.scratch_folder("eval") as folder:
        assert list(tmp_path.iterdir()) == [folder]
        with files.scratch_folder("eval"):
            assert folder.exists()
    assert not left.exists()
    assert not list(tmp_path.iterdir())
