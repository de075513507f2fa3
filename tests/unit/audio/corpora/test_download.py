"""Downloads from a server on this machine: resumed downloads, checksums, and a network that refuses."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from file_server import Server, serving
from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.lhotse_manifests import get_corpus
from vaak.audio.corpora.recipes import fetch
from vaak.core.errors import UserError

CONTENT = bytes(range(256)) * 4000


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as found:
        yield found


def interrupted(server: Server, path: Path, after: int = 300_000) -> None:
    server.breaks_after = after
    with pytest.raises(
        UserError,
        match=r"big: can't be downloaded \(.*received 300,000 of 1,024,000 bytes.*\).*the same command resumes it",
    ):
        fetch(f"{server.url}/big", path)
    server.breaks_after = None
    assert not path.exists()


def test_a_broken_connection_is_noticed_and_the_rest_is_fetched(server: Server, tmp_path: Path):
    server.files["/big"] = CONTENT
    interrupted(server, tmp_path / "big")
    fetch(f"{server.url}/big", tmp_path / "big")
    assert (tmp_path / "big").read_bytes() == CONTENT
    assert [asked for path, asked in server.asked if path == "/big"] == [None, "bytes=300000-"]
    assert [path.name for path in tmp_path.iterdir()] == ["big"]
    server.asked.clear()
    fetch(f"{server.url}/big", tmp_path / "big")
    assert server.asked == []


def test_a_server_without_ranges_and_one_whose_file_has_changed(server: Server, tmp_path: Path):
    server.files["/big"] = CONTENT
    interrupted(server, tmp_path / "big")
    server.knows_ranges = False
    fetch(f"{server.url}/big", tmp_path / "big")
    assert (tmp_path / "big").read_bytes() == CONTENT
    server.knows_ranges = True
    interrupted(server, tmp_path / "other")
    server.files["/big"] = CONTENT[::-1]
    fetch(f"{server.url}/big", tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == CONTENT[::-1]


def test_a_part_that_is_already_whole(server: Server, tmp_path: Path):
    server.files["/big"] = CONTENT
    interrupted(server, tmp_path / "big")
    (tmp_path / "big.part").write_bytes(CONTENT)
    fetch(f"{server.url}/big", tmp_path / "big")
    assert (tmp_path / "big").read_bytes() == CONTENT


def test_checksums_beside_the_file(server: Server, tmp_path: Path):
    server.files |= {"/r/a.tar": CONTENT, "/r/md5sum.txt": f"{hashlib.md5(CONTENT).hexdigest()}  ./a.tar\n".encode()}
    fetch(f"{server.url}/r/a.tar", tmp_path / "a.tar")
    server.files["/r/a.tar"] = CONTENT[:-1] + b"x"
    with pytest.raises(UserError, match=r"a\.tar: the download is damaged: its MD5 is \w{32}, md5sum\.txt has \w{32}"):
        fetch(f"{server.url}/r/a.tar", tmp_path / "b.tar")
    assert not (tmp_path / "b.tar").exists()
    assert not (tmp_path / "b.tar.part").exists()


def test_a_network_or_a_server_that_refuses_is_one_line(server: Server, tmp_path: Path):
    with pytest.raises(UserError, match="/absent: the server refuses: 404 Not Found"):
        fetch(f"{server.url}/absent", tmp_path / "a")
    fetch(f"{server.url}/absent", tmp_path / "a", missing_ok=True)
    assert not (tmp_path / "a").exists()
    url = server.url
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"can't be downloaded \(.*refused.*\); check the network") as raised:
        fetch(f"{url}/big", tmp_path / "a")
    assert "\n" not in str(raised.value)


def yesno_archive(folder: Path) -> bytes:
    with tarfile.open(folder / "made.tar.gz", "w:gz") as tar:
        for number in range(60):
            name = f"{'_'.join(format(number, '08b'))}.wav"
            write_audio(folder / "made" / name, 0.1, 8000)
            tar.add(folder / "made" / name, f"waves_yesno/{name}")
    return (folder / "made.tar.gz").read_bytes()


def test_a_recipe_is_fetched_and_prepared_where_it_came_to_lie(server: Server, tmp_path: Path):
    server.files["/1/waves_yesno.tar.gz"] = yesno_archive(tmp_path)
    options = {"url": f"{server.url}/1/waves_yesno.tar.gz"}
    server.breaks_after = 500
    with pytest.raises(UserError, match="the same command resumes it"):
        get_corpus("yesno", tmp_path / "data" / "yesno", options)
    server.breaks_after = None
    found = get_corpus("yesno", tmp_path / "data" / "yesno", options)
    assert found == tmp_path / "data" / "yesno" / "waves_yesno"
    assert server.asked[-2] == ("/1/waves_yesno.tar.gz", "bytes=500-")
    audio = AudioConfig(corpus_dir=str(tmp_path / "data"), output_dir=str(tmp_path / "manifests"))
    assert len(list(AudioCorpus(DatasetConfig(name="yesno"), audio).cuts("test"))) == 30


def test_recipes_that_can_not_be_fetched_say_so(tmp_path: Path, server: Server):
    with pytest.raises(UserError, match=r"Lhotse has no recipe timit_x; did you mean 'timit'\?"):
        get_corpus("timit_x", tmp_path, {})
    with pytest.raises(UserError, match="recipe dihard3: Lhotse can't download this corpus; get it from its authors"):
        get_corpus("dihard3", tmp_path, {})
    with pytest.raises(UserError, match=r"nothing\.tar\.gz: the server refuses: 404"):
        get_corpus("yesno", tmp_path, {"url": f"{server.url}/nothing.tar.gz"})
    server.files["/bad.tar.gz"] = b"no archive"
    with pytest.raises(UserError, match="recipe yesno: the corpus can't be downloaded: ReadError: "):
        get_corpus("yesno", tmp_path, {"url": f"{server.url}/bad.tar.gz"})
