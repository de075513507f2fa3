"""Files uploaded to URLs are compared with the stored ones; errors are a line, without secrets."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

fsspec = pytest.importorskip("fsspec", reason="requires the extra cloud")

from vaak.core.errors import UserError  # noqa: E402
from vaak.core.storage import remote  # noqa: E402
from vaak.core.storage.files import hash_file  # noqa: E402
from vaak.core.storage.remote import RemoteFolder, StorageError, explain, md5s, told_md5  # noqa: E402


@pytest.fixture(params=["memory", "file"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RemoteFolder]:
    yield RemoteFolder(f"memory://{tmp_path.name}/run" if request.param == "memory" else f"file://{tmp_path}/there/run")
    fsspec.filesystem("memory").store.clear()


def a_file(folder: Path, content: bytes = b"weights") -> Path:
    (folder / "model").write_bytes(content)
    return folder / "model"


def test_what_is_sent_is_there_and_comes_back(folder: RemoteFolder, tmp_path: Path):
    file = a_file(tmp_path)
    folder.send(file, "deep/model", hash_file(file))
    folder.write("note", b"text")
    folder.copy("deep/model", "copy/model")
    assert folder.list_files().keys() == {"deep/model", "note", "copy/model"}
    assert folder.list_files("deep").keys() == {"deep/model"}
    folder.fetch("copy/model", tmp_path / "back" / "model")
    assert (tmp_path / "back/model").read_bytes() == b"weights"
    folder.remove(["deep/model", "copy/model", "never there"])
    assert ([*folder.list_files()], folder.read("note"), folder.read("deep/model")) == (["note"], b"text", None)
    assert folder.list_files("no such folder") == {}


def test_a_level_of_a_folder_may_be_listed_alone(folder: RemoteFolder):
    """A bucket of millions of files isn't listed for one pattern at its top."""
    for name in ("a", "deep/b", "deep/deeper/c"):
        folder.write(name, b"text")
    assert folder.list_files(depth=1).keys() == {"a"}
    assert folder.list_files(depth=2).keys() == {"a", "deep/b"}


@pytest.mark.parametrize(
    "said",
    [
        "An error occurred (PermanentRedirect) when calling the GetObject operation",
        "The bucket you are attempting to access must be addressed using the specified endpoint.",
        "The authorization header is malformed; the region 'us-east-1' is wrong; expecting 'eu-west-1'",
    ],
)
def test_another_region_is_named(said: str):
    assert explain(OSError(said)).startswith("the bucket is in another region: set AWS_DEFAULT_REGION to its own")


@pytest.mark.parametrize(("there", "problem"), [(b"weight", "has 6 bytes, and 7 were sent"), (b"w3ights", "differs")])
def test_another_content_than_was_sent_is_found(folder: RemoteFolder, tmp_path: Path, there: bytes, problem: str):
    file = a_file(tmp_path)
    folder.write("model", there)
    with pytest.raises(StorageError, match=problem):
        folder.require("model", file.stat().st_size, hash_file(file), file)


def test_what_a_service_tells_of_a_file_is_its_md5_only_where_it_looks_like_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(remote, "PART_BYTES", 4)
    digest = hashlib.md5(b"weights").hexdigest()
    parts = hashlib.md5(hashlib.md5(b"weig").digest() + hashlib.md5(b"hts").digest()).hexdigest()
    assert md5s(a_file(tmp_path)) == (digest, f"{parts}-2")
    assert told_md5({"ETag": f'"{digest}"'}) == digest
    assert told_md5({"md5Hash": base64.b64encode(bytes.fromhex(digest)).decode()}) == digest
    assert told_md5({"ETag": '"0x8D4BCC2E4835CD0"'}) is None


def test_errors_are_a_line_without_secrets():
    secret = "https://me:hunter2hunter2@host/?token=abcdefgh"
    assert "hunter2" not in RemoteFolder("memory://me:hunter2hunter2@host/run").shown
    said = explain(PermissionError(f"403 for {secret}\nand more"))
    assert said == "access denied (403 for https://me:***@host/?token=***)"
    assert explain(FileNotFoundError("The specified bucket does not exist")).startswith("no such bucket or file")


def test_an_unknown_protocol_and_a_missing_package_say_so(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(UserError, match="s4://bucket/run can't be opened: Protocol not known: s4"):
        RemoteFolder("s4://bucket/run")
    with pytest.raises(UserError, match="runs/mine is not a URL"):
        RemoteFolder("runs/mine")
    monkeypatch.setitem(__import__("sys").modules, "s3fs", None)
    with pytest.raises(UserError, match=r"s3://bucket/run requires s3fs.*: pip install 'vaak\[cloud\]'"):
        RemoteFolder("s3://bucket/run")
