"""A lexicon in CMUdict's format, and mistakes in one."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.core.errors import DataError
from vaak.text.speech.phonemes.pronunciation import has_stress, looked_up, read_lexicon


def written(folder: Path, content: str | bytes) -> Path:
    path = folder / "lexicon.dict"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_both_forms_of_cmudict(tmp_path: Path) -> None:
    old = ";;; # CMUdict\nHELLO  HH AH0 L OW1\nHELLO(1)  HH EH0 L OW1\n"
    new = "hello HH AH0 L OW1\nhello(2) HH EH0 L OW1\nd'artagnan D AH0 R T AE1 NG Y AH0 N # foreign french\n\n"
    assert read_lexicon(written(tmp_path, old)) == {"hello": "HH AH0 L OW1"}
    assert read_lexicon(written(tmp_path, new)) == {
        "hello": "HH AH0 L OW1",
        "d'artagnan": "D AH0 R T AE1 NG Y AH0 N",
    }
    assert read_lexicon(written(tmp_path, "d\xe9j\xe0 D EY1 ZH AA2\n".encode("latin-1"))) == {"déjà": "D EY1 ZH AA2"}


def test_stress_or_none(tmp_path: Path) -> None:
    assert has_stress(read_lexicon(written(tmp_path, "a AH0\n")))
    assert not has_stress(read_lexicon(written(tmp_path, "a AH\n")))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hello HH AH0 L OW1\nworld W ж L D\n", ":2: ж is not a phoneme of ARPAbet"),
        ("hello HH AH3 L\n", ":1: AH3 is not a phoneme"),
        ("hello HH1 L\n", ":1: HH1 is not a phoneme"),
        ("hello\n", ":1: hello has no phonemes"),
        (";;; nothing\n\n", "has no words"),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(DataError) as error:
        read_lexicon(written(tmp_path, content))
    assert message in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        read_lexicon(tmp_path / "nothing")
    with pytest.raises(DataError, match="directory"):
        read_lexicon(tmp_path)


def test_possessives_have_the_sound_of_their_ending() -> None:
    entries = {"cat": "K AE1 T", "dog": "D AO1 G", "judge": "JH AH1 JH", "it's": "IH1 T S"}
    endings = {word: " ".join(looked_up(f"{word}'s", entries) or ()) for word in ("cat", "dog", "judge", "it")}
    assert endings == {"cat": "K AE1 T S", "dog": "D AO1 G Z", "judge": "JH AH1 JH IH0 Z", "it": "IH1 T S"}
    assert looked_up("cats'", {"cats": "K AE1 T S"}) == ("K", "AE1", "T", "S")
    assert looked_up("bird", entries) is None
