"""Data at URLs are downloaded once, again where they have changed, and used without a network."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

fsspec = pytest.importorskip("fsspec", reason="requires the extra cloud")

from vaak.core.errors import DataError  # noqa: E402
from vaak.core.storage import url_cache  # noqa: E402
from vaak.core.storage.remote import RemoteFolder, StorageError  # noqa: E402
from vaak.core.storage.url_cache import fetch_folder, fetch_matches, find_copy, localise  # noqa: E402


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("VAAK_CACHE", str(tmp_path / "cache"))
    system, name = fsspec.filesystem("memory"), f"{tmp_path.name}/corpus"
    for file in ("train.jsonl", "valid.jsonl", "audio/a.wav", "audio/b.wav", "notes.txt", ".hidden"):
        system.pipe_file(f"/{name}/{file}", file.encode())
    yield f"memory://{name}"
    system.store.clear()


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that are downloaded."""
    names: list[str] = []
    own = RemoteFolder.fetch
    monkeypatch.setattr(RemoteFolder, "fetch", lambda self, name, file: names.append(name) or own(self, name, file))
    return names


def test_files_and_patterns_are_downloaded_once(bucket: str, fetched: list[str]):
    for _ in range(2):
        found = fetch_matches(f"{bucket}/*.jsonl", "train")
        assert [path.name for path in found] == ["train.jsonl", "valid.jsonl"]
        assert [path.read_text() for path in found] == ["train.jsonl", "valid.jsonl"]
        assert [path.name for path in fetch_matches(f"{bucket}/**/*.wav", "train")] == ["a.wav", "b.wav"]
        assert fetch_matches(f"{bucket}/train.jsonl", "train") == found[:1]
    assert sorted(fetched) == ["audio/a.wav", "audio/b.wav", "train.jsonl", "valid.jsonl"]


def test_a_folder_is_downloaded_whole_and_only_what_is_below_it_is_found_by_its_url(bucket: str, fetched: list[str]):
    folder = fetch_folder(bucket, "corpus_dir")
    assert sorted(fetched) == ["audio/a.wav", "audio/b.wav", "notes.txt", "train.jsonl", "valid.jsonl"]
    assert find_copy(f"{bucket}/audio/a.wav", folder / "audio") == folder / "audio/a.wav"
    assert find_copy("memory://elsewhere/audio/a.wav", folder) is None
    assert find_copy(f"{bucket}-other/a.wav", folder) is None
    assert localise((f"{bucket}/audio", f"{bucket}/notes.txt", "here.txt"), "train")[1:] == (
        str(folder / "notes.txt"),
        "here.txt",
    )


@pytest.mark.parametrize("damage", ["changed there", "truncated here", "changed here"])
def test_what_has_changed_is_downloaded_again(
    damage: str, bucket: str, fetched: list[str], caplog: pytest.LogCaptureFixture
):
    (path,) = fetch_matches(f"{bucket}/notes.txt", "train")
    content = b"notes.txt"
    if damage == "changed there":
        content = b"new notes"
        fsspec.filesystem("memory").pipe_file(f"/{bucket.removeprefix('memory://')}/notes.txt", content)
    else:
        path.write_bytes(b"notes" if damage == "truncated here" else b"NOTES.txt")
    assert fetch_matches(f"{bucket}/notes.txt", "train") == [path]
    assert (path.read_bytes(), len(fetched)) == (content, 2)
    assert ("1 file(s) have changed there, such as notes.txt" in caplog.text) == (damage == "changed there")


def test_without_a_network_what_is_here_is_used(
    bucket: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    (path,) = fetch_matches(f"{bucket}/notes.txt", "train")

    def unreachable(*given: Any) -> None:
        raise StorageError("memory://corpus can't be read: no route to host")

    monkeypatch.setattr(RemoteFolder, "ask", unreachable)
    monkeypatch.setattr(RemoteFolder, "list_files", unreachable)
    assert fetch_matches(f"{bucket}/notes.txt", "train") == [path]
    assert "no route to host; what was downloaded earlier is used: 1 file(s)" in caplog.text
    with pytest.raises(StorageError, match="no route to host"):
        fetch_matches(f"{bucket}/train.jsonl", "train")


def test_what_is_not_there_names_the_option(bucket: str):
    for url, said in ((f"{bucket}/gone.txt", "no such file"), (f"{bucket}/*.csv", "no file matches")):
        with pytest.raises(DataError, match=rf"corpus\.train: {said}:? memory://"):
            fetch_matches(url, "corpus.train")
    with pytest.raises(DataError, match="corpus_dir: no such folder, or nothing in it: memory://"):
        fetch_folder(f"{bucket}/gone", "corpus_dir")


def test_no_secret_of_a_url_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VAAK_CACHE", str(tmp_path))
    place = url_cache._place("https://me:hunter2@host/corpus")
    assert place == url_cache._place("https://me:another@host/corpus")
    monkeypatch.setattr(url_cache, "_list", lambda folder, pattern: {"a.txt": {"size": 1}})
    monkeypatch.setattr(RemoteFolder, "__init__", lambda self, url: self.__dict__.update(url=url, shown=""))
    monkeypatch.setattr(RemoteFolder, "fetch", lambda self, name, file: file.write_bytes(b"a"))
    fetch_matches("https://me:hunter2@host/corpus/a.txt", "train")
    assert json.loads((place / ".state.json").read_text())["url"] == "https://me:***@host/corpus"
