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
        (("--group", "age"), "no text has a label age"),
    ],
)
def test_mistakes_are_one_line(vaak, tmp_path: Path, options, message: str):
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "so"}\n')
    code, out, err = vaak("score", "wer", tmp_path / "a.jsonl", tmp_path / "a.jsonl", *options)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1
