"""Files in archives are read in place, to the same bytes as outside; unsafe or truncated ones are refused."""

from __future__ import annotations

import io
import os
import random
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import pytest

from vaak.core.errors import DataError
from vaak.core.storage import archives
from vaak.core.storage.archives import find_in_archives, list_files, list_members, open_file, read_state

ENDINGS = ["zip", "tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"]
CONTENTS = {"a/b.txt": b"one\ntwo\n" * 9_000, "a/c [1].txt": b"", "d.txt": random.Random(0).randbytes(90_000)}


def write_archive(path: Path, contents: dict[str, bytes]) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in contents.items():
                archive.writestr(name, content)
        return path
    mode: Any = f"w:{ {'.tar': '', '.tgz': 'gz'}.get(path.suffix, path.suffix[1:]) }"
    with tarfile.open(path, mode) as tar:
        for name, content in contents.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    return path


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("large", [archives.LARGE_BYTES, 1000])
def test_members_are_read_as_files_are(ending: str, large: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """In stored order, in another, interleaved, and from the middle; a zip's members in memory and streamed."""
    monkeypatch.setattr(archives, "LARGE_BYTES", large)
    path = write_archive(tmp_path / f"मेरा.{ending}", CONTENTS)
    assert list_files(path) == [path / name for name in CONTENTS]
    for name in (*CONTENTS, *reversed(CONTENTS)):
        with open_file(path / name) as file:
            assert file.read() == CONTENTS[name]
        assert read_state(path / name) == (len(CONTENTS[name]), path.stat().st_mtime_ns)
    with open_file(path / "a/b.txt") as first, open_file(path / "d.txt") as second:
        for _ in range(5):
            assert (first.readline(), first.readline()) == (b"one\n", b"two\n")
            second.seek(65_000 + (place := random.Random(1).randrange(1000)))
            assert second.read(10) == CONTENTS["d.txt"][65_000 + place :][:10]
            second.seek(3)
            assert second.read(1) == CONTENTS["d.txt"][3:4]


@pytest.mark.parametrize("ending", ENDINGS)
def test_patterns_choose_members(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_archive(tmp_path / f"x[1].{ending}", CONTENTS)
    monkeypatch.chdir(tmp_path)
    for pattern, names in {
        "**/*.txt": [*CONTENTS],
        "*.txt": ["d.txt"],
        "a/*": ["a/b.txt", "a/c [1].txt"],
        "a/c [[]1].txt": ["a/c [1].txt"],
        "a/?.txt": ["a/b.txt"],
        "?/b.txt": ["a/b.txt"],
        "**/[bd].txt": ["a/b.txt", "d.txt"],
        "**": [*CONTENTS],
        "*.csv": [],
    }.items():
        assert find_in_archives(f"x[[]1].{ending}/{pattern}") == [Path(path.name) / one for one in names], pattern
    assert find_in_archives("folder/*.txt") is None


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz"])
@pytest.mark.parametrize("name", ["../a.txt", "/etc/a.txt", "a/../../b.txt", "."])
def test_names_that_lead_out_are_refused(ending: str, name: str, tmp_path: Path):
    path = write_archive(tmp_path / f"a.{ending}", {"b.txt": b"b", name: b"a"})
    with pytest.raises(DataError, match="leads out of the archive, which is refused"):
        list_members(path)


def test_a_second_member_of_a_name_is_not_silent(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for content in (b"first", b"last"):
            about = tarfile.TarInfo("a.txt")
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))
    with open_file(tmp_path / "a.tar" / "a.txt") as file:
        assert file.read() == b"last"
    assert "a.tar: two members are called a.txt; the first is left out" in caplog.text


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE])
@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_links_and_devices_are_refused(kind: bytes, ending: str, tmp_path: Path):
    with tarfile.open(tmp_path / f"a.{ending}", "w:gz" if ending.endswith("gz") else "w") as tar:
        about = tarfile.TarInfo("a.txt")
        about.type, about.linkname = kind, "/etc/passwd"
        tar.addfile(about)
    with pytest.raises(DataError, match=r"member a\.txt is a link, a device or sparse, which is refused"):
        list_members(tmp_path / f"a.{ending}")


@pytest.mark.parametrize("ending", ["zip", "tar.gz"])
def test_bombs_are_refused_before_they_unpack(ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(archives, "MOST_BYTES", 1_000_000)
    path = write_archive(tmp_path / f"bomb.{ending}", {"a.txt": bytes(20_000_000)})
    tracemalloc.start()
    with pytest.raises(DataError, match="bytes would unpack to more than 20,000,000, which is refused"):
        list_members(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000


def test_more_bytes_than_a_member_declares_do_not_come_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = write_archive(tmp_path / "a.zip", {"a.txt": bytes(200_000)})
    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = (300_000).to_bytes(4, "little")  # the size that it says
    path.write_bytes(content)
    for large in (archives.LARGE_BYTES, 1000):
        monkeypatch.setattr(archives, "LARGE_BYTES", large)
        with pytest.raises(DataError, match="200,000 bytes come out, not 300,000"), open_file(path / "a.txt") as file:
            file.read()


@pytest.mark.parametrize("ending", ENDINGS)
def test_what_is_cut_short_is_refused(ending: str, tmp_path: Path):
    whole = write_archive(tmp_path / f"a.{ending}", CONTENTS).read_bytes()
    path = tmp_path / f"b.{ending}"
    for share in (0.3, 0.6, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(DataError, match=rf"b\.{ending}"):
            read_all(path)


def read_all(path: Path) -> None:
    for one in list_files(path):
        with open_file(one) as file:
            file.read()


def test_bytes_that_are_changed_never_end_in_anything_but_an_error(tmp_path: Path):
    """Of archives with changed bytes, each is read, or refused by its name."""
    rng, refused = random.Random(0), 0
    for number in range(60):
        ending = ENDINGS[number % len(ENDINGS)]
        path = write_archive(tmp_path / f"a.{ending}", {"a.txt": b"so it is\n" * 50, "b/c.txt": b"no\n"})
        content = bytearray(path.read_bytes())
        for _ in range(rng.randrange(1, 8)):
            content[rng.randrange(len(content))] = rng.randrange(256)
        path.write_bytes(content)
        os.utime(path, ns=(number, number))
        try:
            read_all(path)
        except DataError as error:
            refused += path.name in str(error)
    assert refused > 15


def test_a_folder_called_as_an_archive_is_a_folder_and_archives_in_archives_stay_files(tmp_path: Path):
    folder = tmp_path / "texts.zip"
    folder.mkdir()
    (folder / "a.txt").write_text("so")
    inner = write_archive(tmp_path / "inner.zip", {"b.txt": b"no"}).read_bytes()
    outer = write_archive(folder / "outer.tar", {"inner.zip": inner, "__MACOSX/x.txt": b"", "c/.hidden": b""})
    assert list_files(folder) == [folder / "a.txt", outer / "inner.zip"]
    with open_file(folder / "a.txt") as file:
        assert file.read() == b"so"
