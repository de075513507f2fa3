"""A hundred damaged and odd files through preparation and ``vaak data check``: no traceback, and no wrong count.

Audio that is read has the length that FFmpeg finds, or a problem is reported.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_listener
from coded_audio import TABLE, decode, write_coded
from vaak.audio.audio_file import AudioFile, read_header
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import DataError

KINDS = (
    *("wav, 16 bits", "wav, floats", "flac", "mp3, one bit rate", "mp3, bit rate varies"),
    *("mp3, bit rate varies, no header", "opus", "opus that begins later"),
)
FRAME_SECONDS = 576 / 16000
"""Of MP3: FFmpeg decodes one that is cut short, and libsndfile doesn't."""


def cut(content: bytearray, rng: random.Random) -> bytes | bytearray:
    return content[: rng.randrange(1, len(content))]


def edit_header(content: bytearray, rng: random.Random) -> bytes | bytearray:
    for _ in range(rng.randrange(1, 5)):
        content[rng.randrange(80)] = rng.randrange(256)
    return content


def flip(content: bytearray, rng: random.Random) -> bytes | bytearray:
    for _ in range(rng.randrange(1, 20)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return content


def leave_out(content: bytearray, rng: random.Random) -> bytes | bytearray:
    place = rng.randrange(len(content))
    return content[:place] + content[place + rng.randrange(1, 2000) :]


def append(content: bytearray, rng: random.Random) -> bytes | bytearray:
    return content + rng.randbytes(rng.randrange(1, 300))


DAMAGE: tuple[Callable[[bytearray, random.Random], bytes | bytearray], ...] = (
    cut,
    edit_header,
    flip,
    leave_out,
    append,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files that are damaged in ways that are always the same, and a manifest of them."""
    folder, lines = tmp_path_factory.mktemp("damaged"), []
    for kind in KINDS:
        path = folder / f"good.{TABLE[kind].suffix}"
        write_coded(path, TABLE[kind], 16000, 1)
        whole = path.read_bytes()
        for number in range(13):
            rng = random.Random(f"{kind} {number}")
            name = f"{kind.replace(', ', '-').replace(' ', '_')}-{number}{path.suffix}"
            (folder / name).write_bytes(DAMAGE[number % len(DAMAGE)](bytearray(whole), rng))
            lines.append(json.dumps({"id": name, "audio": name, "text": "ba", "accent": "low"}))
    tiny_listener.write_listener(folder)
    with open(folder / "train.jsonl", "a") as manifest:
        manifest.writelines(f"{line}\n" for line in lines)
    return folder


def length(path: Path) -> tuple[float | None, str]:
    """Return the seconds that are read, None where the file is refused, and the messages about it."""
    try:
        header = read_header(path)
        with AudioFile(path, header.sampling_rate) as file:
            assert len(file.samples(0, 10**9)) == file.num_samples
    except DataError as error:
        return None, str(error)
    return header.duration, header.difference


def test_no_length_is_wrong_in_silence(folder: Path):
    files = [path for path in folder.iterdir() if "-" in path.name]
    assert len(files) > 100
    read = 0
    for path in files:
        seconds, said = length(path)
        assert seconds is not None or (said.startswith(str(path)) and "\n" not in said)
        if seconds is None or said:
            continue
        read += 1
        try:
            expected, rate = decode(path)
        except Exception:  # FFmpeg's errors are of many kinds
            continue
        slack = FRAME_SECONDS if path.suffix == ".mp3" else 0.001
        assert seconds == pytest.approx(expected.shape[1] / rate, abs=slack), path.name
    assert read > 20


def test_they_are_counted_and_listed_without_a_traceback(
    folder: Path, vaak: Callable[..., tuple[int, str, str]], tmp_path: Path
):
    odd = {path.name: length(path) for path in folder.iterdir() if "-" in path.name}
    options = tiny_listener.options(folder, data={"on_bad_example": "skip", "max_duration": 3.0})
    (tmp_path / "check.yml").write_text(yaml_text(options))
    code, out, errors = vaak("data", "check", tmp_path / "check.yml")
    assert code == 0, "what is skipped is a warning"
    assert "Traceback" not in out + errors
    listed = "\n".join(line for line in out.splitlines() if line.startswith("  "))
    assert {name for name, (_, said) in odd.items() if said} <= {name for name in odd if name in listed}


@pytest.mark.parametrize(
    ("kind", "muxing"),
    [
        ("m4a", {"movflags": "faststart"}),
        ("m4a, lossless", {"movflags": "faststart"}),
        ("webm, opus", {}),
        ("mka, aac", {}),
        ("wma", {}),
    ],
)
def test_what_ffmpeg_decodes_is_compared_with_the_length_that_is_stated(tmp_path: Path, kind: str, muxing: dict):
    """A file that was cut short is refused, with both numbers where it can be decoded: it was read without a word."""
    path = tmp_path / f"a.{TABLE[kind].suffix}"
    write_coded(path, TABLE[kind]._replace(muxing=muxing), 48000 if "opus" in kind else 16000, 1)
    whole, seconds = path.read_bytes(), read_header(path).duration
    assert read_header(path).difference == ""
    both = 0
    for part in (0.35, 0.5, 0.65, 0.8, 0.9):
        path.write_bytes(whole[: round(part * len(whole))])
        with pytest.raises(DataError) as error:
            read_header(path)
        both += "its header says" in str(error.value)
        assert "truncated" in str(error.value) or "FFmpeg can't decode this" in str(error.value)
    assert both or kind.startswith("m4a")
    if kind == "webm, opus":
        path.write_bytes(re.sub(rb"00:00:00\.\d{3}", b"00:00:00.500", whole))
        assert read_header(path).duration == seconds
        numbers = rf"its header says 24,000 samples \(0.500 s\), but there are [\d,]+ \({seconds:.3f} s\)"
        assert re.match(numbers, read_header(path).difference)
