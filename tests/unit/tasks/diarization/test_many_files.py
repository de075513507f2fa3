"""Files and folders become recordings, each with a unique name that RTTM can hold."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.audio_file import audio_files
from vaak.audio.formats.annotation_lines import name_recordings, read_rttm, write_rttm
from vaak.audio.segments import Segment


def touch(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_folders_are_searched_in_any_depth_and_each_file_comes_once(tmp_path: Path):
    audio = [tmp_path / "b.wav", tmp_path / "deep" / "er" / "a.FLAC", tmp_path / "z.mp3"]
    touch(*audio, tmp_path / "notes.txt", tmp_path / "._b.wav", tmp_path / "odd.name")
    (tmp_path / "folder.wav").mkdir()
    (tmp_path / "again.wav").symlink_to(audio[0])
    found, without = audio_files([audio[2], tmp_path, tmp_path / "odd.name", tmp_path / "gone.wav"])
    assert found[0] == audio[2]
    assert len(found) == len({path.resolve() for path in found})
    assert {path.resolve() for path in found} == {*audio, tmp_path / "odd.name", tmp_path / "gone.wav"}
    assert not without


def test_a_folder_without_audio_is_named(tmp_path: Path):
    touch(tmp_path / "notes.txt")
    found, without = audio_files([tmp_path])
    assert found == []
    assert "no audio in this folder" in str(without[tmp_path])


def test_formats_that_can_not_be_read_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vaak.audio.audio_file.log.propagate", True)
    touch(tmp_path / "a.wav", tmp_path / "a.m4a", tmp_path / "b.m4a", tmp_path / "c.M4A", tmp_path / "d.txt")
    found, without = audio_files([tmp_path])
    assert (found, without) == ([tmp_path / "a.wav"], {})
    [line, others] = caplog.messages
    assert line.startswith(
        f"{tmp_path}: 1 file is read; 2 files left out (audio files in a format that can't be read (.m4a); convert them"
    )
    assert line.endswith("): b.m4a, c.M4A")
    assert others == f"{tmp_path}: 1 file is read; other files in this folder: 1 .txt"
    (tmp_path / "a.wav").unlink()
    found, without = audio_files([tmp_path])
    assert found == []
    assert "; there are 3 audio files in a format that can't be read (.m4a); convert" in str(without[tmp_path])


def test_hidden_files_and_links_to_folders_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("vaak.audio.audio_file.log.propagate", True)
    touch(tmp_path / "in" / "a.wav", tmp_path / "in" / ".b.wav", tmp_path / "in" / ".notes", tmp_path / "out" / "c.wav")
    (tmp_path / "in" / "more").symlink_to(tmp_path / "out")
    (tmp_path / "in" / "gone.wav").symlink_to(tmp_path / "nothing")
    found, _ = audio_files([tmp_path / "in"])
    assert found == [tmp_path / "in" / "a.wav"]
    assert caplog.messages == [
        f"{tmp_path}/in: 1 file is read; 1 file left out (hidden): .b.wav",
        f"{tmp_path}/in: 1 file is read; 1 file left out (not a file): gone.wav",
        f"{tmp_path}/in: 1 file is read; 1 file left out (a link to a folder): more",
    ]


def test_names(tmp_path: Path):
    files = [
        tmp_path / "monday" / "call.wav",
        tmp_path / "tuesday" / "late" / "call.flac",
        tmp_path / "board meeting\t3.wav",
        tmp_path / "ES2002a.Mix-Headset.wav",
        tmp_path / "x.wav",
        tmp_path / "x.flac",
        tmp_path / "X.mp3",
    ]
    named = name_recordings(files, known={"ES2002a"})
    assert list(named.values()) == ["monday-call", "tuesday-late-call", "board_meeting_3", "ES2002a", "x", "x-2", "X-3"]
    assert name_recordings(files[3:4])[files[3]] == "ES2002a.Mix-Headset"


@given(st.lists(st.text(st.characters(exclude_characters="/\0"), min_size=1, max_size=6), min_size=1, max_size=8))
def test_any_names_come_out_apart_and_can_be_read_again(tmp_path_factory: pytest.TempPathFactory, stems: list[str]):
    files = [Path(f"/audio/{folder}/{stem}.wav") for folder, stem in enumerate(stems)]
    names = list(name_recordings(files).values())
    assert len({name.casefold() for name in names}) == len(names)
    path = tmp_path_factory.getbasetemp() / "names.rttm"
    write_rttm(path, {name: [Segment(0.0, 1.0, "speaker_1")] for name in names})
    assert set(read_rttm(path)) == set(names)
