"""What bounds the training of a tokenizer: a sample, what the library can count, and the length of a piece."""

from __future__ import annotations

from typing import Any

import pytest

from vaak.core.errors import UserError
from vaak.text import tokenizer_training
from vaak.text.config import TokenizerConfig
from vaak.text.grammar import sentences
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory, draw_sample

TEXTS = list(sentences("train", 400, 0))


def made(texts: list[str], **options: Any) -> Tokenizer:
    given = TokenizerConfig.model_validate({"type": "byte_level", "vocab_size": 500} | options)
    return TokenizerFactory(given).create_tokenizer(iter(texts))


def test_a_sample_is_a_function_of_the_texts_and_grows_with_its_size():
    small, large = (draw_sample(iter(TEXTS), most) for most in (2000, 6000))
    assert sum(map(len, small)) <= 2000 < sum(map(len, small)) + max(map(len, TEXTS))
    assert set(small) < set(large) < set(TEXTS)
    assert [text for text in TEXTS if text in set(large)] == large
    assert set(draw_sample(reversed(TEXTS), 6000)) == set(large)
    assert draw_sample(["a" * 50], 20) == ["a" * 20]
    assert made(TEXTS, training_characters=6000).to_json() == made(large).to_json() != made(TEXTS).to_json()


def test_how_much_of_the_text_is_read_is_one_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    caplog.set_level("INFO")
    made(TEXTS, training_characters=6000)
    kept, whole = draw_sample(TEXTS, 6000), sum(map(len, TEXTS))
    read = sum(map(len, kept))
    assert (
        f"is trained on {read:,} of {whole:,} characters ({100 * read / whole:.1f} %), {len(kept)} of {len(TEXTS)} "
        "texts (data.tokenizer.training_characters)"
    ) in caplog.text
    caplog.clear()
    made(TEXTS)
    assert not caplog.records
    monkeypatch.setattr(tokenizer_training, "MANY_CHARACTERS", 6000)
    made(TEXTS)
    assert caplog.text.count("data.tokenizer.training_characters=3000 trains on a sample") == 1


@pytest.mark.parametrize("kind", ["byte_level", "bpe", "wordpiece"])
def test_more_than_the_library_can_count_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch):
    """Above 2**31 occurrences of a pair a merge was lost without an error."""
    monkeypatch.setattr(tokenizer_training, "MOST_OF_A_PAIR", 400)
    with pytest.raises(UserError, match=r"pair occurs about .* counts to 400; train on a sample") as caught:
        made(TEXTS, type=kind, vocab_size=600)
    advised = int(str(caught.value).rpartition("=")[2])
    assert made(TEXTS, type=kind, vocab_size=600, training_characters=advised).vocab_size > 200
    assert made(TEXTS, type="character", vocab_size=600).vocab_size > 256  # counts no pairs


@pytest.mark.parametrize("kind", ["byte_level", "bpe", "unigram", "wordpiece"])
def test_text_without_spaces_is_cut_in_pieces_and_comes_back(kind: str):
    """One piece of 10 MB took 0.9 GB."""
    texts = [*TEXTS, "".join(TEXTS).replace(" ", ""), "१" * 5000, "-" * 500 + " " * 700 + "क"]
    tokenizer = made(texts, type=kind, vocab_size=600)
    pieces = tokenizer.backend.pre_tokenizer.pre_tokenize_str(texts[-3])
    spans = [end - begin for _, (begin, end) in pieces]
    assert max(spans) <= 100
    for text in texts:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokens_are_readable():
    tokenizer = made(TEXTS)
    names = [tokenizer.readable(token) for token in range(tokenizer.vocab_size)]
    assert names[tokenizer.bos_id] == "<s>"
    assert {"␣", "⏎", "a", "‹E0›", "‹FF›"} <= set(names)
    assert any(name.startswith("␣") and name[1:] in "".join(TEXTS) for name in names if len(name) > 2)
    text = "लड़की\na 🙂"
    said = "".join(tokenizer.readable(token) for token in tokenizer.encode(text))
    assert said.startswith("लड़की⏎a␣")
    assert "‹F0›" in said
    assert "‹F0›" in "".join(map(made(TEXTS, type="bpe").readable, made(TEXTS, type="bpe").encode("🙂")))
    with pytest.raises(UserError, match="99999 is not a token"):
        tokenizer.readable(99999)
