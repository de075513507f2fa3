"""``vaak score wer``: error rates of any system's transcripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest


def test_rates_of_two_files(vaak, tmp_path: Path):
    (tmp_path / "ref.csv").write_text("id,text,accent\na,So it is.,en\nb,नमस्ते दुनिया,hi\n")
    (tmp_path / "hyp.jsonl").write_text('{"id": "a", "text": "so it was"}\n{"id": "b", "text": "नमस्ते दुनिया"}\n')
    files = (tmp_path / "ref.csv", tmp_path / "hyp.jsonl")
    code, out, _ = vaak("score", "wer", *files, "--group", "accent", "--json")
    scores = json.loads(out)
    assert code == 0
    assert scores["total"]["wer"] == pytest.approx(1 / 5)
    assert scores["groups"]["hi"]["wer"] == 0
    code, out, _ = vaak("score", "wer", *files, "--normaliser", "none")
    assert code == 0
    assert "40.00" in out
    assert out.splitlines()[-1] == "normaliser none, utterances 2"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--normaliser", "french"), "unknown normaliser french; expected one of whisper-english, basic, none"),
        (("--group", "age"), "no text has a label 'age'; expected one of accent, empty, id, speaker, text"),
        (("--group", "accnt"), "no text has a label 'accnt'; did you mean 'accent'?"),
        (("--speaker", "speakr"), "no text has a label 'speakr'; did you mean 'speaker'?"),
        (("--group", "empty"), "the label empty is empty in all 1 texts"),
    ],
)
def test_mistakes_are_one_line(vaak, tmp_path: Path, options, message: str):
    row = {"id": "a", "text": "so", "accent": "hi", "speaker": "s", "empty": ""}
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    code, out, err = vaak("score", "wer", tmp_path / "a.jsonl", tmp_path / "a.jsonl", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_labels_of_lines_are_refused_and_texts_without_one_are_counted(
    vaak, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    (tmp_path / "a.txt").write_text("so\n")
    code, _, err = vaak("score", "wer", tmp_path / "a.txt", tmp_path / "a.txt", "--group", "accent")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "a.txt: no text has a label 'accent'; lines of text have no labels; give JSON lines or a table" in err
    rows = [{"id": str(n), "text": "so", **({"accent": "hi"} if n else {})} for n in range(3)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = vaak("score", "wer", tmp_path / "a.jsonl", tmp_path / "a.jsonl", "--group", "accent")
    assert code == 0
    assert "hi" in out
    assert "1 of 3 texts have no label accent" in caplog.text
