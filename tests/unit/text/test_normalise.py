import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.text.tokenizer import normalise


@given(st.text())
def test_normalising_twice_changes_nothing(text: str) -> None:
    once = normalise(text)
    assert normalise(once) == once
    assert unicodedata.is_normalized("NFC", once)


@given(st.text(st.characters(min_codepoint=0x900, max_codepoint=0x97F), max_size=30))
def test_devanagari_loses_nothing(text: str) -> None:
    assert unicodedata.normalize("NFD", normalise(text)) == unicodedata.normalize("NFD", text)


@pytest.mark.parametrize("text", ["क्\u200dष", "क्\u200cष", "ZWJ \u200d alone", "१२३।॥", "ﬁ ½ ²"])
def test_joiners_digits_and_compatibility_forms_stay(text: str) -> None:
    assert normalise(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\u0958", "\u0915\u093c"),  # क़: excluded from composition, becomes letter and nukta
        ("\u0928\u093c", "\u0929"),  # ऩ: composes
        ("e\u0301", "é"),
        ("\ufeffक\ufeff", "क"),
        ("a\ufeff\u0301", "á"),
        ("a\r\nb\r\r\nc\rd", "a\nb\nc\rd"),
    ],
)
def test_canonical_form(text: str, expected: str) -> None:
    assert normalise(text) == expected
