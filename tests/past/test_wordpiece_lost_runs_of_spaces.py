"""Two spaces in a row were one unknown WordPiece token: only the first character of a piece could be a space."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from vaak.text.tokenizer_training import TokenizerFactory


@pytest.mark.parametrize("text", ["  ", "\t\t", " \t ", "एक  दो", "एक\t \nदो", "   "])
def test_runs_of_spaces_come_back(text: str):
    options = SimpleNamespace(type="wordpiece", vocab_size=300, min_frequency=1, training_characters=None, path=None)
    tokenizer = TokenizerFactory(options).create_tokenizer(["एक दो तीन", "एक दो"] * 5)
    ids = tokenizer.encode(text)
    assert tokenizer.unk_id not in ids
    assert tokenizer.decode(ids) == text
