"""Texts that mean the same are equal, and names of one thing are paired; ambiguous names are refused."""

from __future__ import annotations

import sys
import unicodedata

import pytest
import regex
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import DataError
from vaak.core.matching import compose, drop_ignorable, pair_names, quote_names, rename_like

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\\x00"), min_size=1)


@pytest.mark.slow
def test_what_unicode_calls_ignorable_is_dropped_and_nothing_else():
    kept = {chr(code) for code in range(sys.maxunicode + 1) if drop_ignorable(chr(code))}
    property_of_unicode = regex.compile(r"\p{Default_Ignorable_Code_Point}")
    assert {chr(code) for code in range(sys.maxunicode + 1) if not property_of_unicode.match(chr(code))} == kept


@given(st.text())
def test_forms_of_a_text_are_one(text: str):
    assert compose(unicodedata.normalize("NFD", text)) == compose(text) == compose(compose(text))


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("call", "Call.WAV"),
        ("board meeting", "board_meeting"),
        ("café", "cafe\u0301"),
        ("call", "call\u200b"),
        ("call", "\ufeffcall"),
        ("call", "/data/calls/call.flac"),
        ("day 1/call", "CALL"),
        ("C:\\calls\\call.wav", "call"),
    ],
)
def test_names_of_one_thing_are_paired(ours: str, theirs: str):
    assert pair_names([ours, "another"], [theirs, "third"]) == {theirs: ours}
    assert rename_like([ours], {theirs: 1, "third": 2}) == {ours: 1, "third": 2}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(["s1/call"], ["s2/call"]), (["call-1"], ["call-2"]), (["call.1"], ["call"]), (["कल"], ["काल"])],
)
def test_names_of_two_things_are_not(ours: list[str], theirs: list[str]):
    assert pair_names(ours, theirs) == {}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(["call"], ["a/call", "b/call"]), (["Call", "CALL"], ["call"]), (["call"], ["call.wav", "CALL"])],
)
def test_a_name_that_could_be_two_is_refused(ours: list[str], theirs: list[str]):
    with pytest.raises(DataError, match="write the same names on both sides"):
        pair_names(ours, theirs)


@given(st.sets(NAMES, max_size=5))
def test_equal_names_come_first(names: set[str]):
    assert pair_names(names, names) == {name: name for name in names}


def test_an_ending_alone_is_not_worth_a_line(caplog: pytest.LogCaptureFixture):
    pair_names(["call"], ["call.wav"])
    assert not caplog.records
    pair_names(["call", "b"], ["Call.wav", "b"])
    assert [record.getMessage() for record in caplog.records] == [
        "1 of 2 names are written differently and taken for the same, such as 'Call.wav' for 'call'"
    ]


def test_names_are_quoted_so_that_they_can_be_told_apart():
    assert quote_names(["call\u200b"]) == "'call\\u200b'"
    assert quote_names(["a\ufe0f"]) == "'a\\ufe0f'"
