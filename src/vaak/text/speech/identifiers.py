"""Numbers that name something, of telephones, accounts, cards and the like: read digit by digit, in any language.

They are known by their form (a country's code, a leading zero, groups that no count has), or by a word before them.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_BEGINS, _ENDS = r"(?<![\w.,/+-])", r"(?![\w/]|[.,-]\d)"
_OF_PHONES = re.compile(
    rf"(?<![\w.,/])\+\d{{1,3}}(?:[ .-]?\(?\d{{1,12}}\)?){{1,6}}{_ENDS}"  # international
    rf"|{_BEGINS}\(0\d{{1,4}}\)[ -]?\d{{3,4}}[ -]?\d{{3,4}}{_ENDS}"  # (011) 2345 6789
    rf"|{_BEGINS}(?!\d\d-\d\d-\d)0\d{{1,4}}(?:[ -]\d{{2,8}}){{1,4}}{_ENDS}"  # 07700 900123
    rf"|{_BEGINS}(?:1[ -])?1?8\d\d[ -]\d{{2,3}}[ -]\d{{4}}{_ENDS}"  # 1800-11-4477
    rf"|{_BEGINS}[6-9]\d{{4}}[ -]?\d{{5}}{_ENDS}"  # 98450-12345
    rf"|{_BEGINS}(?:\d{{4}} ){{2,3}}\d{{4}}{_ENDS}"  # of identity cards and of banks' cards
    rf"|{_BEGINS}97[89](?:-\d{{1,7}}){{3}}-[\dX]{_ENDS}"  # of books
)
_LONG = re.compile(rf"{_BEGINS}\d{{11,}}{_ENDS}")
LEAST, MOST = 7, 19
"""Digits of a number that is recognized by its form."""


def compile_cues(strong: str, weak: str, number: str, least: int = 4) -> re.Pattern[str]:
    """A pattern of the words before an identifier, and the identifier.

    ``strong`` are words that suffice, ``weak`` those that need a word of ``number`` after them; ``least`` is how many
    digits it has at least.
    """
    return re.compile(
        rf"(?P<cue>(?<!\w)(?:(?:{strong})(?:\s?(?:{number}))*|(?:{weak})\s{{0,2}}(?:{number}))\s{{0,2}}[:#-]?\s?#?)"
        rf"(?P<number>\+?\d(?:[ -]?\d){{{least - 1},18}}){_ENDS}"
    )


def read_after(text: str, cues: re.Pattern[str], digits: Callable[[str], str], plus: str) -> str:
    """The text with each number after one of the ``cues`` digit by digit.

    >>> from vaak.text.speech.words import digits
    >>> read_after("PIN 4821, order 4821", compile_cues("PIN", "order", "no"), digits, "plus")
    'PIN four eight two one, order 4821'
    """
    return cues.sub(lambda match: match["cue"] + _spoken(match["number"], digits, plus), text)


def read_digits(text: str, digits: Callable[[str], str], plus: str) -> str:
    """The text with each number of an identifier's form digit by digit, a comma between its groups.

    >>> from vaak.text.speech.words import digits
    >>> read_digits("+44 20 7946, 20 7946", digits, "plus")
    'plus four four, two zero, seven nine four six, 20 7946'
    """

    def phone(match: re.Match[str]) -> str:
        return _spoken(match[0], digits, plus) if LEAST <= sum(map(str.isdigit, match[0])) <= MOST else match[0]

    return _LONG.sub(lambda match: _spoken(match[0], digits, plus), _OF_PHONES.sub(phone, text))


def _spoken(number: str, digits: Callable[[str], str], plus: str) -> str:
    groups = ", ".join(digits(group) for group in re.findall(r"\d+", number))
    return f"{plus} {groups}".strip() if number.startswith("+") else groups
