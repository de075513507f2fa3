"""The script that assembles the folder of real data, run as a process against a server on this machine."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import soundfile

from file_server import Server, serving
from real_data.lists import LISTS, read_contents, read_sources
from real_data.recipes import FILES, LINES
from real_data.write_lists import described

ROOT = Path(__file__).parents[2]
COMMIT = "0123456789012345678901234567890123456789"
SAMPLES = (np.sin(np.arange(8000) / 9) * 9000).astype(np.int16)


def encoded(samples: np.ndarray, kind: str, subtype: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, 16000, format=kind, subtype=subtype)
    return file.getvalue()


def json_lines(*rows: dict[str, object]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def json_list(*rows: dict[str, str]) -> bytes:
    return ("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n]\n").encode()


def zipped(files: dict[str, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return file.getvalue()


SPEECH = encoded(SAMPLES, "FLAC", "PCM_16")
MEETING = encoded((SAMPLES / 2**15).astype(np.float32), "WAV", "FLOAT")
TMX = """<?xml version="1.0" encoding="UTF-8"?><tmx version="1.4"><header></header><body>
<tu tuid="A:1"><prop type="note">x</prop><tuv xml:lang="en">
<seg>it&apos;s one </seg></tuv><tuv xml:lang="hi"><seg>एक</seg></tuv></tu>
<tu tuid="A:2"><tuv xml:lang="en"><seg>two</seg></tuv><tuv xml:lang="hi"><seg>दो</seg></tuv></tu></body></tmx>"""
CONTEXTS = ["पहला वाक्य।  दूसरा (1.5) वाक्य? तीसरा!", "चौथा।"]
FILMS = {
    "films/README": "é",
    "films/rt-polarity.neg": "bad \nclichés . \n",
    "films/rt-polarity.pos": "amélie \ngood \n",
}
REQUESTS = {"val": [["play a  song ", "music"], ["hello", "greet"]], "oos_val": [["who won", "oos"]], "train": []}
SERVED: dict[str, str | bytes] = {
    "a/text/news.txt": "तीसरा\n पहला  वाक्य \n\nदूसरा\nक\u093c\n",  # ka and nukta: in NFC as in the folder
    "a/text/more-ñ.txt": "चौथा \n",
    "a/squad.json": json.dumps({"data": [{"paragraphs": [{"context": text} for text in CONTEXTS]}]}),
    "a/hin.txt": "Run!\tभागो!\tby A\nGo .\tजाओ\tby B\n",
    "a/all.tmx": TMX,
    "a/dev.hi": "एक\nदो\n",
    "a/dev.en.0": "one  1 \ntwo\n",
    "a/dev.en.1": "One\nTwo\n",
    "a/films.zip": zipped(FILMS),
    "a/requests.json": json.dumps(REQUESTS),
    "a/domains.json": json.dumps({"home": ["alarm", "music"], "talk": ["greet"]}),
    "b/7-1-0.flac": SPEECH,
    "b/texts.tsv": '7-1-0\thello there\t[]\t["x"]\n',
    "b/cut.json": json.dumps([{"tracks": [{"cut": {"supervisions": [{"id": "8-1-0", "text": "BYE"}]}}]}]),
    "b/9-1-0.lab": "THREE\n",
    "b/3_ann_4.wav": encoded(SAMPLES, "WAV", "PCM_16"),
    "b/0_ann_17.wav": encoded(SAMPLES[:999], "WAV", "PCM_16"),
    "b/words.TextGrid": "xmin = 0\r\n",
    "c/trñ00.wav": MEETING,
    "c/all.rttm": "SPEAKER trñ00 1 0.1 0.2 <NA> <NA> MÉO1 <NA> <NA>\r\nSPEAKER x 1 0 1 <NA> <NA> A <NA> <NA>\r\n",
    "c/ref.uem": "FILE1 1  0 15\n",
}
CONTENTS = """
text/news.test.txt | text | a:text/news.txt a:text/more-ñ.txt | 0
text/wiki.test.txt | squad | a:squad.json | 0
pairs/tatoeba.jsonl | tatoeba | a:hin.txt | 0
pairs/tico.jsonl | tmx | a:all.tmx | 0
pairs/dev.jsonl | references | a:dev.hi a:dev.en.0 a:dev.en.1 | 0
labels/films.json | opinions | a:films.zip | 0
labels/requests.json | intents | a:requests.json a:domains.json | 0
labels/others.json | intents | a:requests.json a:domains.json | 0
digits/recordings/3_ann_4.flac | audio | b:3_ann_4.wav | male USA/neutral
digits/recordings/0_ann_17.flac | audio | b:0_ann_17.wav | male BEL/French
digits/manifest.jsonl | digits | - | digits/recordings/
voice/wavs/1.wav | unchanged | b:3_ann_4.wav | -
voice/words.TextGrid | unchanged | b:words.TextGrid | -
speech/audio/7-1-0.flac | audio | b:7-1-0.flac | F Read/test
speech/manifest.jsonl | utterances | b:texts.tsv b:cut.json b:9-1-0.lab | speech/audio/
speech/speakers.jsonl | speakers | - | speech/audio/
diarization/audio/trn00.flac | audio | c:trñ00.wav | -
diarization/rttm/trn00.rttm | fields | c:all.rttm | -
diarization/uem/trn00.uem | whole | - | diarization/audio/trn00.flac
diarization/manifest.jsonl | excerpts | - | diarization/audio/
diarization/scoring/ref.uem | fields | c:ref.uem | -
diarization/scoring/expected.json | ours | - | -
"""
READ = {"speaker": "7", "gender": "F", "corpus": "Read/test", "duration": 0.5, "sampling_rate": 16000}
DIGIT = {"gender": "male", "accent": "USA/neutral", "native_english": True, "duration": 0.5, "sampling_rate": 16000}
FRENCH = {"gender": "male", "accent": "BEL/French", "native_english": False, "duration": 0.0624, "sampling_rate": 16000}
EXPECTED: dict[str, bytes] = {
    "text/news.test.txt": "चौथा\nपहला वाक्य\n\nक\u093c\nपहला वाक्य\n".encode(),
    "text/wiki.test.txt": "दूसरा (1.5) वाक्य?\nतीसरा!\n\nचौथा।\n".encode(),
    "pairs/tatoeba.jsonl": json_lines({"en": "Go .", "hi": "जाओ", "attribution": "by B"}),
    "pairs/tico.jsonl": json_lines({"id": "A:2", "en": "two", "hi": "दो"}, {"id": "A:1", "en": "it's one", "hi": "एक"}),
    "pairs/dev.jsonl": json_lines({"hi": "दो", "en": ["two", "Two"]}, {"hi": "एक", "en": ["one  1", "One"]}),
    "labels/films.json": json_list(  # one sentence was read as UTF-8, one as Latin-1
        {"text": "good", "label": "positive"},
        {"text": "clichés .", "label": "negative"},
        {"text": "amÃ©lie", "label": "positive"},
    ),
    "labels/requests.json": json_list(
        {"text": "hello", "label": "greet", "domain": "talk"},
        {"text": "play a  song", "label": "music", "domain": "home"},
    ),
    "labels/others.json": json_list({"text": "who won", "label": "oos"}),
    "digits/recordings/3_ann_4.flac": SPEECH,
    "digits/recordings/0_ann_17.flac": encoded(SAMPLES[:999], "FLAC", "PCM_16"),
    "digits/manifest.jsonl": json_lines(
        {
            "id": "3_ann_4",
            "audio": "recordings/3_ann_4.flac",
            "text": "three",
            "digit": 3,
            "speaker": "ann",
            **DIGIT,
            "split": "test",
        },
        {
            "id": "0_ann_17",
            "audio": "recordings/0_ann_17.flac",
            "text": "zero",
            "digit": 0,
            "speaker": "ann",
            **FRENCH,
            "split": "train",
        },
    ),
    "voice/wavs/1.wav": encoded(SAMPLES, "WAV", "PCM_16"),
    "voice/words.TextGrid": b"xmin = 0\r\n",
    "speech/audio/7-1-0.flac": SPEECH,
    "speech/manifest.jsonl": json_lines(
        {"id": "7-1-0", "audio": "audio/7-1-0.flac", "text": "HELLO THERE", **READ, "split": "test"}
    ),
    "speech/speakers.jsonl": json_lines({"id": "7-1-0", "audio": "audio/7-1-0.flac", **READ}),
    "diarization/audio/trn00.flac": SPEECH,
    "diarization/rttm/trn00.rttm": b"SPEAKER trn00 1 0.1 0.2 <NA> <NA> MEO1 <NA> <NA>\n",
    "diarization/uem/trn00.uem": b"trn00 1 0.000 0.500\n",
    "diarization/manifest.jsonl": b'{"uri": "trn00", "audio": "audio/trn00.flac", "rttm": "rttm/trn00.rttm", '
    b'"uem": "uem/trn00.uem", "duration": 0.5, "speakers": ["MEO1"], "segments": 1, "speech_s": 0.2, '
    b'"overlap_s": 0.0, "peak": 0.275, "rms": 0.1942}\n',
    "diarization/scoring/ref.uem": b"FILE1 1 0 15\n",
    "diarization/scoring/expected.json": b'{"DER": 1}',
}


@dataclass
class Job:
    """The lists, the server with the sources, and the folder that is assembled."""

    lists: Path
    server: Server
    folder: Path
    said: str = field(default="", init=False)

    def run(self, *options: str) -> int:
        done = python("real_data", self.folder, "--server", self.server.url, "--lists", self.lists, *options)
        self.said = done.stdout + done.stderr
        return done.returncode

    def files(self) -> dict[str, bytes]:
        paths = (path for path in self.folder.rglob("*") if path.is_file() and path.name != "SOURCES.txt")
        return {path.relative_to(self.folder).as_posix(): path.read_bytes() for path in paths}


def python(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'scripts'}{os.pathsep}{ROOT / 'src'}", "PYTHONUTF8": "1"}
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lists of the expected folder, written by the second script."""
    lists, expected = tmp_path_factory.mktemp("lists"), tmp_path_factory.mktemp("expected")
    for name, content in EXPECTED.items():
        (expected / name).parent.mkdir(parents=True, exist_ok=True)
        (expected / name).write_bytes(content)
    given = lists / "ours/diarization/scoring/expected.json"
    given.parent.mkdir(parents=True)
    given.write_bytes(EXPECTED["diarization/scoring/expected.json"])
    (lists / "sources.tsv").write_text("".join(f"{one}\tx/{one}\t{COMMIT}\tfree\n" for one in "abc"), encoding="utf-8")
    rows = [["" if cell == "-" else cell for cell in line.split(" | ")] for line in CONTENTS.strip().splitlines()]
    table = "".join(f"{file}\t{recipe}\t{found}\t\t{remark}\n" for file, recipe, found, remark in rows)
    (lists / "contents.tsv").write_text(table, encoding="utf-8")
    (lists / "lines.bin").write_bytes(b"")
    done = python("real_data.write_lists", expected, lists)
    assert done.returncode == 0, done.stderr
    return lists


@pytest.fixture
def job(lists: Path, tmp_path: Path) -> Iterator[Job]:
    with serving() as server:
        for name, content in SERVED.items():
            source, _, path = name.partition("/")
            served = f"/x/{source}/{COMMIT}/{path}".replace("ñ", "%C3%B1")
            server.files[served] = content if isinstance(content, bytes) else content.encode()
        yield Job(lists, server, tmp_path / "data")


def test_every_format_is_assembled_to_the_byte(job: Job):
    assert job.run() == 0, job.said
    assert job.files() == EXPECTED
    assert f"diarization: c, x/c @ {COMMIT}: free" in job.said
    assert (job.folder / "SOURCES.txt").read_text(encoding="utf-8").count("free") == 3
    job.server.asked.clear()
    assert job.run() == 0
    assert job.server.asked == []


def test_an_interrupted_download_is_resumed(job: Job):
    job.server.breaks_after = 100
    assert job.run("--only", "speech") == 2
    assert "7-1-0.flac: can't be downloaded" in job.said
    assert job.said.count("\n") == 2  # the licence, and the error
    assert job.files().keys() == {f".downloads/x/b/{COMMIT}/7-1-0.flac{end}" for end in (".part", ".source")}
    job.server.breaks_after = None
    assert job.run("--only", "speech") == 0, job.said
    audio = f"/x/b/{COMMIT}/7-1-0.flac"
    assert [asked for path, asked in job.server.asked if path == audio] == [None, "bytes=100-"]
    kept = {name: content for name, content in job.files().items() if not name.startswith(".downloads")}
    assert kept == {name: content for name, content in EXPECTED.items() if name.startswith("speech")}


def test_a_missing_source_is_one_line_and_the_rest_is_assembled(job: Job):
    content = job.server.files.pop(f"/x/a/{COMMIT}/squad.json")
    assert job.run() == 2
    assert f"text/wiki.test.txt: {job.server.url}/x/a/{COMMIT}/squad.json isn't there\n" in job.said
    assert "21 of 22 files are as listed\n" in job.said
    assert "1 files are missing or differ: figures that use them won't repeat exactly" in job.said
    assert job.said.count("wiki") == 1
    job.server.files[f"/x/a/{COMMIT}/squad.json"] = content
    assert job.run() == 0
    assert job.files() == EXPECTED


def test_lines_that_the_sources_no_longer_have_are_counted(job: Job):
    news = f"/x/a/{COMMIT}/text/news.txt"
    job.server.files[news] = job.server.files[news].replace("पहला".encode(), "पहली".encode())
    assert job.run("--only", "text") == 2
    assert "news.test.txt: 2 of its 5 lines aren't in its sources; it is shorter by them\n" in job.said
    assert job.files()["text/news.test.txt"] == "चौथा\n\nक\u093c\n".encode()


@pytest.mark.parametrize(
    ("path", "content", "message"),
    [
        ("b/7-1-0.flac", encoded(SAMPLES[::-1], "FLAC", "PCM_16"), "7-1-0.flac: its SHA-256 isn't the listed one"),
        ("c/trñ00.wav", b"RIFF", r"trn00.flac: can't be made from its sources \(LibsndfileError: .*\)"),
        pytest.param(
            *("a/all.tmx", b"<tmx", r"tico.jsonl: can't be made from its sources \(ParseError: .*\)"),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            *("a/films.zip", b"PK", r"films.json: can't be made from its sources \(BadZipFile: .*\)"),
            marks=pytest.mark.slow,
        ),
        ("b/texts.tsv", b"", r"manifest.jsonl: can't be made from its sources \(KeyError: '7-1-0'\)"),
    ],
    ids=["recording", "damaged recording", "damaged table", "damaged archive", "missing text"],
)
def test_a_source_with_other_content_is_reported(job: Job, path: str, content: bytes, message: str):
    source, _, name = path.partition("/")
    job.server.files[f"/x/{source}/{COMMIT}/{name}".replace("ñ", "%C3%B1")] = content
    assert job.run() == 2
    assert re.search(message + "\n", job.said)
    assert "Traceback" not in job.said


def test_a_list_can_not_write_outside_of_the_folder(job: Job, tmp_path: Path):
    other = tmp_path / "lists"
    other.mkdir()
    for name in ("sources.tsv", "contents.tsv", "lines.bin"):
        (other / name).write_bytes((job.lists / name).read_bytes().replace(b"pairs/tatoeba", b"../../tatoeba"))
    job.lists = other
    assert job.run() == 2
    assert f"error: {other}: ../../tatoeba.jsonl would be outside of {job.folder}; correct the list" in job.said


def test_an_unknown_set(job: Job):
    assert job.run("--only", "french") == 2
    assert "unknown: french; the data sets are diarization, digits, labels, pairs, speech, text, voice\n" in job.said


def test_the_lists_name_known_recipes_and_fixed_commits():
    sources = read_sources(LISTS)
    for entry in read_contents(LISTS):
        assert entry.recipe in LINES.keys() | FILES.keys()
        assert bool(entry.hashes) == (entry.recipe in LINES)
        assert {name for name, _ in entry.sources} <= sources.keys()
    assert all(re.fullmatch(r"[0-9a-f]{40}|v[\d.]+", source.commit) and source.licence for source in sources.values())


@pytest.mark.parametrize("data_set", sorted({entry.data_set for entry in read_contents(LISTS)}))
def test_the_lists_are_those_of_the_data(data_set: str, vaak_data: Callable[[str], Path]):
    folder = vaak_data(data_set).parent
    entries = [entry for entry in read_contents(LISTS) if entry.data_set == data_set]
    differing = [entry.file for entry in entries if described(entry, folder) != entry]
    assert differing in ([], ["read_speech/speaker_pool.jsonl"])  # some of its durations were rounded in another way


def test_the_results_say_which_data_they_need_and_where_they_are_from():
    _, data, *sections = (ROOT / "docs" / "results.md").read_text(encoding="utf-8").split("\n## ")
    assert data.startswith("Data\n")
    for source in read_sources(LISTS).values():
        assert f"`{source.repository}`" in data
        assert source.licence.partition(" (")[0] in data
    data_sets = {entry.data_set for entry in read_contents(LISTS)}
    for section in sections:
        said = re.search(r"^Data: (.*)$", section, re.MULTILINE)
        assert said, section.splitlines()[0]
        named = set(re.findall(r"`(\w+)`", said[1]))
        assert named <= data_sets
        assert bool(named) == ("needs the folder of data" in section)
        assert {name for name in data_sets if f"$VAAK_DATA/{name}" in section} <= named
    for study in (ROOT / "docs/lab").glob("*.md"):
        text = study.read_text(encoding="utf-8")
        named = {name for line in re.findall(r"^Data: (.*)$", text, re.M) for name in re.findall(r"`(\w+)`", line)}
        assert named <= data_sets
        assert {name for name in data_sets if f"$VAAK_DATA/{name}" in text} <= named, study.name
        assert not named or "needs the folder of data" in text, study.name
