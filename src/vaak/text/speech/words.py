"""The words that rules of normalisation write: from tables of written forms, and for numbers.

Numbers are read as Americans read them, without "and", years by their hundreds; within ``read_in_locale`` as in Britain
or India.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

from vaak.text.speech.guesses import report_guess

Locale = Literal["en-US", "en-GB", "en-IN"]
_LOCALE: ContextVar[Locale] = ContextVar("locale", default="en-US")


@contextmanager
def read_in_locale(locale: Locale) -> Iterator[None]:
    """Within the block, numbers and dates in figures are read as there.

    >>> with read_in_locale("en-IN"):
    ...     whole("1,50,205")
    'one lakh fifty thousand two hundred and five'
    """
    token = _LOCALE.set(locale)
    try:
        yield
    finally:
        _LOCALE.reset(token)


def has_day_first() -> bool:
    """Whether of 3/5/2024 the day comes first."""
    return _LOCALE.get() != "en-US"


def table(pairs: str) -> dict[str, str]:
    """``written=said`` pairs separated by white space; an underscore stands for a space.

    >>> table("NJ=New_Jersey Mr=Mister")
    {'NJ': 'New Jersey', 'Mr': 'Mister'}
    """
    written = (pair.partition("=") for pair in pairs.split())
    return {key.replace("_", " "): said.replace("_", " ") for key, _, said in written}


_Replacement = str | Callable[[re.Match[str]], str]
RewriteRule = tuple[re.Pattern[str], _Replacement] | tuple[str, re.Pattern[str], _Replacement]
"""A pattern and its replacement, after a character that a text must have, if there is one: most texts lack it."""


def rewrite(text: str, rules: Iterable[RewriteRule]) -> str:
    """Return a text after one rule after another.

    >>> rewrite("a-b & c", [("&", re.compile("&"), "and"), (re.compile(r"\\+"), "plus")])
    'a-b and c'
    """
    for rule in rules:
        if len(rule) == 2 or rule[0] in text:
            text = rule[-2].sub(rule[-1], text)
    return text


def words(listed: str) -> tuple[str, ...]:
    """Words separated by white space.

    >>> words("one two")
    ('one', 'two')
    """
    return tuple(listed.split())


DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
GROUPED = r"(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})"
"""A whole number with commas, in thousands or (in India) in lakhs."""
_IN_LAKHS = re.compile(r"\d{1,2}(?:,\d{2})+,\d{3}")
NUMBER = rf"(?:{GROUPED}(?:\.\d+)?|\d+(?:\.\d+)?|\.\d+)"
"""A number as written, without sign."""
MOST_DIGITS = 15
"""Digits of the longest whole number that is read as one; longer ones are read digit by digit."""


def cardinal(number: int) -> str:
    """The words of a whole number.

    >>> cardinal(1_063), cardinal(200_145)
    ('one thousand sixty-three', 'two hundred thousand one hundred forty-five')
    """
    return _spell_by_library(number, "cardinal") if len(str(abs(number))) <= MOST_DIGITS else digits(str(number))


def ordinal(number: int) -> str:
    """
    >>> ordinal(22), ordinal(101)
    ('twenty-second', 'one hundred first')
    """
    return _spell_by_library(number, "ordinal") if len(str(number)) <= MOST_DIGITS else digits(str(number))


def _spell_by_library(number: int, to: str) -> str:
    from num2words import num2words

    words: str = num2words(number, to=to)
    words = words.replace(",", "")
    return words.replace(" and ", " ") if _LOCALE.get() == "en-US" else words


def digits(text: str, zero: str = "zero") -> str:
    """Each digit of ``text``; other characters are left out.

    >>> digits("30-16")
    'three zero one six'
    """
    return " ".join(zero if one == "0" else DIGITS[int(one)] for one in text if one in "0123456789")


def whole(text: str) -> str:
    """A whole number as written: ``1,308`` is a count, ``007`` is read digit by digit.

    >>> whole("1,308"), whole("007"), whole("0")
    ('one thousand three hundred eight', 'zero zero seven', 'zero')
    """
    plain = text.replace(",", "")
    if len(plain) > MOST_DIGITS or (plain.startswith("0") and len(plain) > 1):
        return digits(plain)
    in_lakhs = _IN_LAKHS.fullmatch(text) is not None
    if _LOCALE.get() == "en-IN" and (in_lakhs or "," not in text):
        return _spell_in_lakhs(int(plain))
    if in_lakhs:
        report_guess("1,50,000 in thousands")
    return cardinal(int(plain))


def _spell_in_lakhs(number: int) -> str:
    """A number by crores (10⁷) and lakhs (10⁵), as in India."""
    crores, below = divmod(number, 10**7)
    lakhs, rest = divmod(below, 10**5)
    said = [f"{_spell_in_lakhs(crores)} crore"] if crores else []
    if lakhs:
        said.append(f"{cardinal(lakhs)} lakh")
    if rest or not said:
        said += ["and"] if said and rest < 100 else []
        said.append(cardinal(rest))
    return " ".join(said)


def decimal(text: str) -> str:
    """A number with or without decimals and sign.

    >>> decimal("6.75"), decimal("-1,000.5"), decimal(".5")
    ('six point seven five', 'minus one thousand point five', 'point five')
    """
    sign = "minus " if text[0] in "-−" else ""
    before, point, after = text.lstrip("-−+").partition(".")
    parts = [whole(before)] if before else []
    if point and after:
        parts += ["point", digits(after)]
    return sign + " ".join(parts)


def year(number: int) -> str:
    """
    >>> year(1963), year(1807), year(1900), year(2005), year(626)
    ('nineteen sixty-three', 'eighteen oh seven', 'nineteen hundred', 'two thousand five', 'six twenty-six')
    """
    hundreds, rest = divmod(number, 100)
    # Two thousand five, but nineteen oh five: round thousands are not read by their hundreds.
    if not 100 <= number < 10_000 or (hundreds % 10 == 0 and rest < 10):
        return cardinal(number)
    return f"{cardinal(hundreds)} {_after_hundreds(rest)}"


def grouped(text: str) -> str:
    """The number of a house, a room or an exhibit: in pairs, or digit by digit from five digits on.

    >>> grouped("133"), grouped("602"), grouped("500"), grouped("1026"), grouped("30016")
    ('one thirty-three', 'six oh two', 'five hundred', 'ten twenty-six', 'three zero zero one six')
    """
    if len(text) not in (3, 4) or text.startswith("0"):
        return whole(text) if len(text) < 3 else digits(text)
    if text.endswith("000"):
        return cardinal(int(text))
    hundreds, rest = divmod(int(text), 100)
    return f"{cardinal(hundreds)} {_after_hundreds(rest)}"


def _after_hundreds(rest: int) -> str:
    if rest == 0:
        return "hundred"
    return f"oh {cardinal(rest)}" if rest < 10 else cardinal(rest)


def fraction(numerator: int, denominator: int) -> str:
    """
    >>> fraction(1, 2), fraction(3, 4), fraction(2, 3), fraction(1, 8)
    ('one half', 'three quarters', 'two thirds', 'one eighth')
    """
    name = {2: "half", 4: "quarter"}.get(denominator) or ordinal(denominator)
    if numerator != 1:
        name = "halves" if denominator == 2 else f"{name}s"
    return f"{cardinal(numerator)} {name}"


def plural(words: str) -> str:
    """The plural of a number in words, as decades have it.

    >>> plural("nineteen sixty"), plural("eighteen hundred"), plural("six")
    ('nineteen sixties', 'eighteen hundreds', 'sixes')
    """
    if words.endswith("y"):
        return f"{words[:-1]}ies"
    return f"{words}es" if re.search(r"(six|x|s|h)$", words) else f"{words}s"
