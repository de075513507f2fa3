"""Columns of tables are told by their names in any case and several languages, and by what is in them."""

from __future__ import annotations

from itertools import product

import pytest

from vaak.runs.preflight.doctor.columns import find_columns

TEXTS = ["so it is said", "no more of that", "मैं घर जाता हूँ", "they went away", "it rains again", "we know it"]
NAMES = [f"clips/{number}.wav" for number in range(6)]


def rows_of(**columns: list[str]) -> list[dict[str, str]]:
    return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def found(**columns: list[str]) -> dict[str, str]:
    return find_columns(list(columns), rows_of(**columns), is_audio=lambda name: name.endswith(".wav")).columns


@pytest.mark.parametrize(
    ("audio", "text", "speaker"),
    [("filename", "transcript", "speaker_id"), ("File name", "Transcription", "Speaker ID"),
     ("PATH", "Sentence", "client_id"), ("Datei", "Satz", "Sprecher"), ("ऑडियो", "वाक्य", "वक्ता"),
     ("fichier", "texte", "locuteur"), ("Файл", "Текст", "Диктор")],
)  # fmt: skip
def test_columns_are_found_by_their_names(audio: str, text: str, speaker: str):
    table = {audio: NAMES, text: TEXTS, speaker: ["a", "b"] * 3}
    assert found(**table) == {"audio": audio, "text": text, "speaker": speaker}


def test_columns_without_a_known_name_are_found_by_what_is_in_them():
    result = find_columns(
        ["A", "B", "C"],
        rows_of(A=TEXTS, B=["x", "y"] * 3, C=NAMES),
        is_audio=lambda name: name.endswith(".wav"),
    )
    assert result.columns == {"audio": "C", "text": "A", "label": "B"}
    assert result.by_content == {"audio", "text", "label"}
    assert result.describe().count("(by its contents)") == 3


def test_a_name_that_the_contents_contradict_is_not_believed():
    pages = [f"/page/{number}" for number in range(6)]
    assert found(path=pages, text=TEXTS) == {"text": "text"}, "path has no audio"
    assert found(text=[str(n) for n in range(6)], words=TEXTS)["text"] == "words", "text has numbers"
    assert "start" not in found(start=["here", "there"] * 3, text=TEXTS)


@pytest.mark.parametrize(
    ("text", "label"), list(product(("Text", "utterance", "REVIEW"), ("Label", "intent", "Sentiment")))
)
def test_labels(text: str, label: str):
    assert found(**{text: TEXTS, label: ["x", "y", "x", "x", "y", "y"]}) == {"text": text, "label": label}
