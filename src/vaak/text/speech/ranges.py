"""Ranges with signs at their ends, or spaces around the dash: ``3 - 5 years``, ``1½–2 hrs``, ``38"-40"``, ``0..16``.

They get a "to" before other rules read their ends one by one; plain ranges (``3-5``) are read in ``figures``.
"""

from __future__ import annotations

import re

from vaak.text.speech.ratios import VULGAR
from vaak.text.speech.words import RewriteRule, rewrite

_VULGAR = "".join(VULGAR)
_FRACTION = "[1-9]/(?:2|3|4|8|16)"
_MEASURED = (
    "hours?|hrs?|minutes?|mins?|seconds?|secs?|days?|weeks?|months?|years?|yrs?|cups?|tsps?|tbsps?|teaspoons?|"
    "tablespoons?|pints?|quarts?|qts?|gallons?|lbs?|pounds?|oz|ounces?|inch(?:es)?|feet|ft|miles?|times|percent|acres?"
)
"""Words after a range of fractions; without one, 1/2-1 may be a date."""
_DASH = r"\s?[-–]\s?"
_NUMBERED = (
    r"\b(?:Chapter|Part|Episode|Step|Week|Day|No\.|Number|Lesson|Unit|Figure|Fig\.|Table|Section|Act|Scene|Season|Vol\.|"
    r"Volume|Book|Level|Round|Game|Rule|Question|Item|Test|Exercise|Appendix|Version|#) ?$"
)
"""Words before a number that a dash divides from its title: Chapter 3 - 10 tips."""
_HEADED = re.compile(_NUMBERED)
_SPACED = re.compile(
    r"(?<![\w.,/:$£€+*^=-])(?<![-–+*=] )((?:0|[1-9]\d{0,3})(?:\.\d+)?%?) [-–] ((?:[1-9]\d{0,3})(?:\.\d+)?)"
    r"(?=[%).,;:!?\"']*(?:$|\s[a-zA-Z(]|, \d{4}\b))(?!\s*[-–+=*/]|[.,]\d)"
)


def _read_spaced(match: re.Match[str]) -> str:
    """``3 - 5`` where the first is the smaller, after no heading; otherwise the dash is a pause or a minus sign."""
    least, most = match[1].rstrip("%"), match[2]
    headed = _HEADED.search(match.string[max(0, match.start() - 12) : match.start()])
    return match[0] if headed or float(least) >= float(most) else f"{match[1]} to {most}"


_RULES: tuple[RewriteRule, ...] = (
    (re.compile(rf"(?<=[{_VULGAR}]){_DASH}(?=[\d{_VULGAR}])|(?<=\d)[-–](?=\d{{1,2}}\s?[{_VULGAR}])"), " to "),
    (
        "/",
        re.compile(
            rf"(?<![\w./,-])((?:\d{{1,2}}[ -])?{_FRACTION}){_DASH}"
            rf"(?=\d{{1,2}}(?:[ -]{_FRACTION})?[ -](?:{_MEASURED})\b)"
            rf"|(?<![\w./,-])(\d{{1,2}}){_DASH}(?=\d{{1,2}} {_FRACTION}[ -](?:{_MEASURED})\b)"
        ),
        lambda match: f"{match[1] or match[2]} to ",
    ),
    ("-", re.compile(rf"(?<![\w.,])(\d{{1,3}}(?:\.\d+)?)[\"″]{_DASH}(?=\d{{1,3}}(?:\.\d+)?[\"″])"), r"\1 to "),
    (re.compile(r"(?<![\w.,/-])(\d{1,3}(?:\.\d+)?)[-–](?=\d{1,3}(?:\.\d+)?[x×](?!\w))"), r"\1 to "),
    ("..", re.compile(r"(?<=\d)\.\.(?=\d)"), " to "),
    (")", re.compile(rf"(\(\w{{1,3}}\)){_DASH}(?=\(\w{{1,3}}\))"), r"\1 to "),
    ("–", re.compile(r"(?<=\b[A-Z]{3})–(?=[A-Z]{3}\b)"), " to "),  # airports
    (_SPACED, _read_spaced),
)


def ranges(text: str) -> str:
    """
    >>> ranges("1½–2 hrs, 4-5x, 0..16, Eqs. (3)–(5), 3 - 5 years, 7 - 2, Chapter 3 - 10 tips")
    '1½ to 2 hrs, 4 to 5x, 0 to 16, Eqs. (3) to (5), 3 to 5 years, 7 - 2, Chapter 3 - 10 tips'
    """
    return rewrite(text, _RULES)
