"""Files are there whole or not at all, also when writing fails half-way."""

import errno
import os
import stat
from pathlib import Path

import pytest

from vaak.core.errors import UserError
from vaak.core.storage import files


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


def test_fingerprints_ignore_the_order_of_keys_and_see_values():
    assert files.fingerprint_of({"a": 1, "b": Path("x")}) == files.fingerprint_of({"b": Path("x"), "a": 1})
    assert files.fingerprint_of({"a": 1}) != files.fingerprint_of({"a": 2})


def test_sha256_is_that_of_the_content(tmp_path: Path):
    (tmp_path / "empty").touch()
    assert files.sha256_of(tmp_path / "empty").startswith("e3b0c44298fc1c14")


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
        files.demand_file(Path(os.devnull))


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
