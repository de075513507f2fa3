"""``vaak score der``: a table, JSON with the protocol, folders, and mistakes in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from vaak.audio.formats.annotation_lines import write_rttm, write_uem
from vaak.audio.segments import Segment

REFERENCE = {"one": [Segment(0, 10, "A")], "two": [Segment(0, 20, "A"), Segment(20, 30, "B")]}
HYPOTHESIS = {"one": [Segment(0, 8, "x"), Segment(8, 12, "y")], "two": [Segment(0, 20, "x"), Segment(20, 30, "y")]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rttm("ref.rttm", REFERENCE)
    write_rttm("hyp.rttm", HYPOTHESIS)
    write_uem("some.uem", {"one": [(0, 11)]})
    return tmp_path


def test_a_table_with_a_row_for_each_recording_and_the_total(vaak, folder):
    code, out, errors = vaak("score", "der", "ref.rttm", "hyp.rttm")
    assert (code, errors) == (0, "")
    assert out.splitlines() == [
        "recording  DER %  miss %  false alarm %  confusion %  JER %  scored s",
        "one        20.00    0.00           0.00        20.00  20.00     10.00",
        "two         0.00    0.00           0.00         0.00   0.00     30.00",
        "total       5.00    0.00           0.00         5.00   6.67     40.00",
        "collar 0 s each side, overlap scored, uem first to last reference time, recordings 2",
    ]


def test_json_says_the_same_with_the_protocol(vaak, folder):
    code, out, _ = vaak(
        "score", "der", "ref.rttm", "hyp.rttm", "--uem", "some.uem", "--collar", 1, "--skip-overlap", "--json"
    )
    assert code == 0
    found = json.loads(out)
    conditions = {"collar": "1 s each side", "overlap": "skipped", "uem": "given"}
    assert found["protocol"] == {**conditions, "recordings": "1", "of the reference": "2"}
    assert list(found["recordings"]) == ["one"]
    assert found["total"] == found["recordings"]["one"] == {
        "der": 1 / 8, "jer": 1 / 8, "der_percent": 12.5, "jer_percent": 12.5, "scored_seconds": 8,
        "miss_seconds": 0, "false_alarm_seconds": 0,
        "confusion_seconds": 1, "num_speakers": 1,
    }  # fmt: skip


def test_speech_beyond_the_uem_is_not_scored(vaak, folder):
    out = json.loads(vaak("score", "der", "ref.rttm", "hyp.rttm", "--uem", "some.uem", "--json")[1])
    assert (out["total"]["false_alarm_seconds"], out["total"]["scored_seconds"]) == (1, 10)


def test_folders(vaak, folder):
    for name, recordings in (("ref", REFERENCE), ("hyp", HYPOTHESIS)):
        (folder / name).mkdir()
        for recording, segments in recordings.items():
            write_rttm(folder / name / f"{recording}.rttm", {recording: segments})
    assert vaak("score", "der", "ref", "hyp") == vaak("score", "der", "ref.rttm", "hyp.rttm")


def test_where_nothing_counts_there_is_no_rate(vaak, folder):
    write_uem("late.uem", {"one": [(11, 12)]})
    arguments = ("score", "der", "ref.rttm", "hyp.rttm", "--uem", "late.uem")
    assert vaak(*arguments)[1].splitlines()[2].split() == ["total", "-", "-", "-", "-", "-", "0.00"]
    none = json.loads(vaak(*arguments, "--json")[1])["total"]
    assert none["der"] is none["der_percent"] is None


def test_missing_recordings_are_said_on_stderr(folder):
    write_rttm("hyp.rttm", {"two": HYPOTHESIS["two"]})
    code = "from vaak.cli.main import main; main()"
    command = [sys.executable, "-c", code, "score", "der", "ref.rttm", "hyp.rttm", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0
    assert json.loads(done.stdout)["recordings"]["one"]["der"] == 1
    assert done.stderr == "one: the hypothesis has nothing of this recording; all its speech counts as missed\n"


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (["none.rttm", "hyp.rttm"], "none.rttm: can't be read: No such file or directory"),
        (["ref.rttm", "empty"], "empty: no *.rttm file in this folder"),
        (["ref.rttm", "broken.rttm"], "broken.rttm:1: the duration is -1 s, which is negative"),
        (["ref.rttm", "hyp.rttm", "--collar", "-1"], "--collar -1: expected seconds, 0 or more"),
        (["ref.rttm", "hyp.rttm", "--collar", "nan"], "--collar nan: expected seconds, 0 or more"),
        (
            ["ref.rttm", "hyp.rttm", "--uem", "ref.rttm"],
            "ref.rttm:1: this is a line of an RTTM; a UEM has: recording channel start end",
        ),
        (
            ["empty.rttm", "hyp.rttm"],
            "empty.rttm is empty: it has no line SPEAKER; give the file of the reference",
        ),
        (
            ["ref.rttm", "hyp.rttm", "--uem", "empty.rttm"],
            "empty.rttm is empty: it has no line of a UEM (recording channel start end); give another file",
        ),
    ],
)
def test_mistakes(vaak, folder, arguments, wrong):
    (folder / "broken.rttm").write_text("SPEAKER one 1 0 -1 <NA> <NA> A\n")
    (folder / "empty.rttm").write_text("")
    (folder / "empty").mkdir()
    code, out, errors = vaak("score", "der", *arguments)
    assert (code, out, errors) == (2, "", f"{wrong}\n")


@pytest.fixture
def speech(tmp_path: Path) -> tuple[Path, Path]:
    """Two recordings of espeak-ng's voice, and the same without a word, at another rate."""
    from vaak.audio.corpora.voices import make_voices, utter

    (voice,) = make_voices(1, seed=0)
    texts = {"a": "Peter said that the bus driver would go to work by bus.", "b": "Ruth hoped it would stop."}
    (tmp_path / "texts.csv").write_text("".join(f"{name}|x|{text}\n" for name, text in texts.items()))
    for folder, words in (("ref", ""), ("hyp", "bus ")):
        (tmp_path / folder).mkdir()
        for name, text in texts.items():
            samples = utter(voice, text.replace(words, "", 1)).samples
            soundfile.write(tmp_path / folder / f"{name}.wav", samples, 16_000)
    return tmp_path / "ref", tmp_path / "hyp"


@pytest.mark.slow
def test_speech_is_scored_with_its_texts(vaak, speech):
    pytest.importorskip("pocketsphinx")
    ref, hyp = map(str, speech)
    code, out, errors = vaak("score", "speech", ref, hyp, "--texts", f"{ref}/../texts.csv", "--json")
    assert (code, errors) == (0, "")
    found = json.loads(out)
    assert found["total"]["skipped_words"] == pytest.approx(1 / 17)
    assert found["total"]["recorded_skipped_words"] == found["total"]["repeated_words"] == 0
    assert found["utterances"]["b"]["mcd_db"] < 1e-3 < found["utterances"]["a"]["mcd_db"]
    assert found["total"]["wer"] >= found["total"]["recorded_wer"]
    assert set(found["protocol"]) == {"speech", "recogniser"}


@pytest.mark.parametrize(
    "content",
    [
        'a|x|"so it is\nb|y|and"\n',
        "a|so it is\nb|x|and\n",
        'name,text\nb,and\na,"so it is"\n',
        "Text;File\nso it is;a\nand;b\n",
        'a;"so it is"\nb;and\n',
        "text\tid\nso it is\ta\nand\tb\n",
        '{"id": "a", "text": "so it is"}\n{"id": "b", "text": "and"}\n',
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_texts_are_of_any_table(tmp_path: Path, content: str, encoding: str):
    from vaak.scoring.speech_scores import _read_texts

    path = tmp_path / ("a.jsonl" if content[0] == "{" else "a.csv")
    path.write_bytes(content.encode(encoding))
    found = {name: text.strip('"') for name, text in _read_texts(path).items()}
    assert found == {"a": "so it is", "b": "and"}


def test_speech_is_scored_without_texts(vaak, speech, caplog):
    ref, hyp = map(str, speech)
    soundfile.write(Path(hyp) / "c.wav", np.zeros(1000), 16_000)
    code, out, errors = vaak("score", "speech", hyp, ref)
    assert (code, out) == (2, "")
    assert f"{ref} has 2 of the 3 recordings of {hyp}, not 'c': add these" in errors
    assert vaak("score", "speech", hyp, ref, "--partial")[0] == 0
    code, out, _ = vaak("score", "speech", ref, hyp)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()][1:6] == [
        "utterances",
        "mcd_db",
        "f0_rmse_hz",
        "f0_rmse_cents",
        "voicing_error",
    ]
    assert "c.wav: only in one of the folders" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere", "ref"), "nowhere is not a folder with audio files"),
        (("ref", "other"), "rename it"),
        (("ref", "hyp", "--texts", "none.csv"), "none.csv: can't be read: No such file"),
        (("ref", "hyp", "--texts", "few.csv"), "few.csv has no text of a; add a line a|TEXT"),
        (("ref", "hyp", "--texts", "twice.csv"), "twice.csv:3: there are two texts of a"),
        (("ref", "hyp", "--texts", "list.txt"), "list.txt:1: expected a name and its text, such as NAME|TEXT"),
    ],
)
def test_speech_that_cant_be_scored(vaak, speech, monkeypatch, arguments, said):
    monkeypatch.chdir(speech[0].parent)
    Path("other").mkdir()
    soundfile.write("other/z.wav", np.zeros(1000), 16_000)
    Path("few.csv").write_text("b|Ruth hoped it would stop.\n")
    Path("twice.csv").write_text("a|one\nb|two\na|three\n")
    Path("list.txt").write_text("a\nb\n")
    code, out, errors = vaak("score", "speech", *arguments)
    assert (code, out) == (2, "")
    assert said in errors
    assert "Traceback" not in errors
