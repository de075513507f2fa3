"""An n-gram model as sorted arrays, against a dictionary of its file's lines."""

from __future__ import annotations

import gzip
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from vaak.core.errors import DataError
from vaak.text.ngram import Ngram

WORDS = "abcdefgh"
Entries = dict[tuple[str, ...], tuple[float, float]]


def draw_entries(rng: np.random.Generator, order: int, *, has_unknown: bool) -> Entries:
    """N-grams of which each has its first words, but not always its last ones; with their scores and back-offs."""
    found: Entries = {(word,): (0.0, 0.0) for word in ("<s>", "</s>", *WORDS, *(["<unk>"] if has_unknown else []))}
    for length in range(2, order + 1):
        before = [one for one in found if len(one) == length - 1]
        for _ in range(60):
            found[(*before[int(rng.integers(len(before)))], str(rng.choice(list(WORDS))))] = (0.0, 0.0)
    numbers = np.round(-3 * rng.random((len(found), 2)), 4)
    return {words: (float(one), float(two)) for words, (one, two) in zip(found, numbers, strict=True)}


def write_arpa(path: Path, entries: Entries) -> Path:
    order = max(map(len, entries))
    sections = [[words for words in entries if len(words) == length] for length in range(1, order + 1)]
    lines = ["\\data\\", *(f"ngram {length}={len(one)}" for length, one in enumerate(sections, start=1))]
    for length, section in enumerate(sections, start=1):
        lines += ["", f"\\{length}-grams:"]
        for words in section:
            score, back_off = entries[words]
            lines.append(f"{score}\t{' '.join(words)}" + (f"\t{back_off}" if length < order else ""))
    with gzip.open(path, "wt") if path.suffix == ".gz" else open(path, "w") as file:
        file.write("\n".join([*lines, "", "\\end\\", ""]))
    return path


def look_up(entries: Entries, before: tuple[str, ...], word: str) -> float:
    """The log10 of the probability, by the formula of back-off."""
    if (*before, word) in entries:
        return entries[(*before, word)][0]
    return -100.0 if not before else entries.get(before, (0, 0.0))[1] + look_up(entries, before[1:], word)


@pytest.mark.parametrize("order", [1, 2, 3, 4])
@pytest.mark.parametrize("has_unknown", [True, False])
def test_scores_are_those_of_the_file(tmp_path: Path, order: int, has_unknown: bool):
    rng = np.random.default_rng(order)
    entries = draw_entries(rng, order, has_unknown=has_unknown)
    model = Ngram(write_arpa(tmp_path / "words.arpa.gz", entries))
    assert model.counts == [sum(len(one) == length for one in entries) for length in range(1, order + 1)]
    for _ in range(60):
        state, said = model.begin(), ["<s>"]
        for word in [*rng.choice([*WORDS, "other"], 8), "</s>"]:
            known = [one if (one,) in entries else "<unk>" for one in (*said, str(word))]
            expected = look_up(entries, tuple(known[:-1][-(order - 1) :] if order > 1 else ()), known[-1])
            [(score, state)] = model.read([(state, str(word))])
            assert score / math.log(10) == pytest.approx(expected, rel=1e-6, abs=1e-5)
            assert score <= model.highest
            said.append(str(word))


def test_a_file_is_read_once_and_again_when_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    entries = draw_entries(np.random.default_rng(0), 3, has_unknown=True)
    path = write_arpa(tmp_path / "words.arpa", entries)
    first = Ngram(path)
    assert first.num_bytes <= 28 * len(entries)
    assert sum(one.stat().st_size for one in (tmp_path / "words.arpa.ngram").glob("*.bin")) == first.num_bytes
    with monkeypatch.context() as patch:
        patch.setattr("vaak.text.ngram._Builder", None)
        assert Ngram(path).score(("a",), "b") == first.score(("a",), "b")
    changed = {words: (score - 1, back_off) for words, (score, back_off) in entries.items()}
    assert Ngram(write_arpa(path, changed)).score((), "b") == pytest.approx(
        first.score((), "b") - math.log(10), abs=1e-5
    )
    for file in (tmp_path / "words.arpa.ngram").glob("scores.bin"):
        file.write_bytes(b"cut")
    assert Ngram(path).score((), "b") == pytest.approx(first.score((), "b") - math.log(10), abs=1e-5)


def test_a_file_in_a_folder_that_cannot_be_written_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = write_arpa(tmp_path / "words.arpa", draw_entries(np.random.default_rng(0), 2, has_unknown=True))
    expected = Ngram(path).score((), "b")
    shutil.rmtree(tmp_path / "words.arpa.ngram")
    (tmp_path / "words.arpa.ngram").write_text("a file where the folder would be")
    assert Ngram(path).score((), "b") == expected
    assert "temporary folder" in caplog.text


def test_n_grams_that_cannot_be_used_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    entries: Entries = {("a",): (-1.0, 0.0), ("b",): (-1.0, 0.0), ("a", "b"): (-0.5, 0.0), ("a", "x"): (-0.5, 0.0)}
    assert Ngram(write_arpa(tmp_path / "lost.arpa", entries)).counts == [2, 1]
    assert "1 n-grams have words that \\1-grams lacks" in caplog.text
    with pytest.raises(DataError, match="the n-gram 'b a b' can't be used: the n-gram of its first 2 words"):
        Ngram(write_arpa(tmp_path / "context.arpa", {**entries, ("b", "a", "b"): (-0.1, 0.0)}))
    assert not (tmp_path / "context.arpa.ngram").exists(), "nothing half-made is left"
    (tmp_path / "words.bin").write_bytes(b"mmap lm http://kheafield.com/code format version 5\n\0")
    with pytest.raises(DataError, match=r"KenLM's binary form; give the ARPA file"):
        Ngram(tmp_path / "words.bin")
