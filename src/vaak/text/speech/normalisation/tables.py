"""How the tables of the rules are written: words, or pairs of a written form and its words."""

from __future__ import annotations


def table(pairs: str) -> dict[str, str]:
    """``written=said`` pairs separated by white space; an underscore stands for a space.

    >>> table("NJ=New_Jersey Mr=Mister")
    {'NJ': 'New Jersey', 'Mr': 'Mister'}
    """
    written = (pair.partition("=") for pair in pairs.split())
    return {key.replace("_", " "): said.replace("_", " ") for key, _, said in written}


def words(listed: str) -> tuple[str, ...]:
    """Words separated by white space.

    >>> words("one two")
    ('one', 'two')
    """
    return tuple(listed.split())
