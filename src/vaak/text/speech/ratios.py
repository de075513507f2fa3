"""Two numbers with a slash between them in words: fractions, mixed numbers, and scores.

``3/4`` alone is a fraction; ``scored 9/10`` and ``88/100`` are read with *out of*, and ``made 287/6`` are runs for
wickets. What else stands around the slash decides, so a score that nothing announces is read as a fraction.
"""

from __future__ import annotations

import re
from math import gcd

from vaak.text.speech.guesses import report_guess
from vaak.text.speech.words import decimal, fraction, table, whole

VULGAR = table(
    """
    ½=1/2 ¼=1/4 ¾=3/4 ⅓=1/3 ⅔=2/3 ⅛=1/8 ⅜=3/8 ⅝=5/8 ⅞=7/8
    """
)
DENOMINATORS = (2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 20, 32, 50, 64, 100, 128, 256, 512)
"""Denominators of fractions that are read as such: 9/11 and 24/7 are not."""
MOST_WICKETS = 10
LEAST_RUNS = 11
THOUSAND = 1000
"""Fewer may be a date, such as 9/11."""
_FULL_MARKS = (5, 10, 100)
"""All of these are a score: 10/10; 50/50 and 20/20 are not."""
_VULGAR = re.compile(rf"(?:(\d+)\s?)?([{''.join(VULGAR)}])")
_MIXED_NUMBER = re.compile(r"(?<![\w./])(\d+)[ -](\d{1,2})/(\d{1,2})(?![\w/])")
_FRACTION = re.compile(r"(?<![\w./,])(\d{1,3})/(1000|\d{1,3})(?!(?!(?:th|rd)s?\b)\w|/|[.,]\d)((?:th|rd)s?\b)?")
_RANGE_OF_FRACTIONS = re.compile(r"(?<![\w./])(\d{1,2}/\d{1,2})\s?[-–]\s?(?=\d{1,2}/\d{1,2}(?![\w/]))")
_RATE = re.compile(r"(?<![\w./,])(\d+(?:\.\d+)?)/(\d{1,3}(?:,\d{3})+)(?![\w/]|[.,]\d)")
"""A rate per number of people: 0.31/100,000."""
_RATING = re.compile(r"(?<![\w./,])(\d+\.\d+)/((?:4|5|9|10|20|50|100)(?:\.0)?)(?![\w/]|[.,]\d)")
_PLOT = re.compile(
    r",? (?:[A-Z][\w.']*\s){1,3}(?:Road|Street|Lane|Avenue|Marg|Nagar|Colony|Layout|Block|Market|Main|Cross|Rd|St)\b"
)
_PLOT_NUMBER = re.compile(r"\b(?:[Hh]ouse|[Pp]lot|[Ff]lat|[Dd]oor|[Ss]urvey|[Kk]hasra)(?: [Nn]umber| [Nn]o\.?)?\s$")
"""A word before the number of a building; ``_PLOT`` is a street after one: 45/2, M.G. Road."""
_ODDS_BEFORE = re.compile(r"\b[Oo]dds\b[^.!?;]{0,25}$")
_ODDS_AFTER = re.compile(r" (?:favou?rites?|outsiders?|shots?|odds)\b")
_PRESSURE = re.compile(r"\b(?:BP|B P|[Bb]lood pressure)(?:\s(?:is|was|of|at))?[: ]\s?$")
_MARKED = re.compile(
    r"\b(?:scor(?:e|es|ed|ing)|rat(?:e|es|ed|ings?)|got|gets|mark(?:s|ed)?|graded?|gave|gives|earned|reviews?|quiz|exam|test)\b"
    r"[^.!?;]{0,25}$",
    re.IGNORECASE,
)
_OF_MARKS = re.compile(
    r" (?:stars?|marks?|points?|correct|right|would recommend)\b| (?:in|on) (?:the |my |his |her |an? )?[a-z]"
)
_BATTED = re.compile(r"\b(?:made|were|was|are|reach(?:ed)?|post(?:ed)?|declared(?: at)?|[Tt]otal of)\s$")
_BOWLED = re.compile(
    r"\b(?:took|takes|taking|claim(?:s|ed)|bag(?:s|ged)|grab(?:s|bed)|picked(?: up)?|figures of|return(?:s|ed))\s$"
)
_AT_TEA = re.compile(r" (?:at (?:tea|lunch|drinks|stumps|the close)|(?:in|after|off) \d|declared|dec\b)")


def ratios(text: str) -> str:
    """
    >>> ratios("1 1/2 cups, ¾ full, 5/8 of it, 24/7")
    'one and a half cups, three quarters full, five eighths of it, twenty-four seven'
    >>> ratios("She scored 9/10, a 4.5/5 film, India were 287/6")
    'She scored nine out of ten, a four point five out of five film, India were two hundred eighty-seven for six'
    """
    text = _VULGAR.sub(lambda match: f"{match[1]} {VULGAR[match[2]]}" if match[1] else VULGAR[match[2]], text)
    text = _RATE.sub(lambda match: f"{decimal(match[1])} per {whole(match[2])}", text)
    text = _RATING.sub(lambda match: f"{decimal(match[1])} out of {decimal(match[2])}", text)
    text = _RANGE_OF_FRACTIONS.sub(r"\1 to ", text)
    text = _MIXED_NUMBER.sub(_read_mixed_number, text)
    return _FRACTION.sub(_ratio, text)


def _read_mixed_number(match: re.Match[str]) -> str:
    part = fraction(int(match[2]), int(match[3])) if int(match[3]) else match[0]
    return f"{whole(match[1])} and {re.sub('^one (?=half|quarter|eighth)', 'a ', part)}"


def _ratio(match: re.Match[str]) -> str:
    """A score, or a proper fraction; otherwise two numbers, as in 24/7."""
    above, below = int(match[1]), int(match[2])
    if match[3]:
        return fraction(above, below)
    between = _say_stroke(match)
    if between:
        return f"{whole(match[1])} {between} {whole(match[2])}"
    if _is_score(match, above, below):
        return f"{whole(match[1])} out of {whole(match[2])}"
    if _is_bowling(match, above, below):
        return f"{whole(match[1])} for {whole(match[2])}"
    if 0 < above < below and below in DENOMINATORS and gcd(above, below) == 1:
        # Before "of" it can't be a date, nor one of two.
        if not match.string.startswith(" of ", match.end()):
            report_guess("1/2 as a fraction")
        return fraction(above, below)
    if above == 1 and below == THOUSAND:
        return f"{whole(match[1])} {fraction(above, below)[4:]}"
    if _is_innings(match, above, below):
        return f"{whole(match[1])} for {whole(match[2])}"
    if match[0] != "24/7":
        report_guess("9/11 as two numbers")
    return f"{whole(match[1])} {whole(match[2])}"


def _say_stroke(match: re.Match[str]) -> str | None:
    """Return the word for the slash of a blood pressure, a house or odds; None for others."""
    before = match.string[max(0, match.start() - 40) : match.start()]
    if _PRESSURE.search(before):
        return "over"
    if _PLOT.match(match.string, match.end()) or _PLOT_NUMBER.search(before):
        return "slash"
    if _ODDS_BEFORE.search(before) or _ODDS_AFTER.match(match.string, match.end()):
        return "to"
    return None


def _is_score(match: re.Match[str], above: int, below: int) -> bool:
    """Return whether this is a count out of a total, by a word such as "scored" or as no fraction is written so."""
    if above > below or below % 5 or match.string.startswith(" of ", match.end()):
        return False
    if below in _FULL_MARKS and (above == below or gcd(above, below) > 1):
        return True
    before = match.string[max(0, match.start() - 40) : match.start()]
    return bool(_MARKED.search(before)) or (above != below and bool(_OF_MARKS.match(match.string, match.end())))


def _is_bowling(match: re.Match[str], above: int, below: int) -> bool:
    """Return whether this is a bowler's wickets for runs: took 5/23."""
    if above > MOST_WICKETS or below < LEAST_RUNS or match.string.startswith(" of ", match.end()):
        return False
    return bool(_BOWLED.search(match.string[max(0, match.start() - 20) : match.start()]))


def _is_innings(match: re.Match[str], above: int, below: int) -> bool:
    if not (below <= MOST_WICKETS and above >= LEAST_RUNS) or match[0] == "24/7":
        return False
    before = match.string[max(0, match.start() - 20) : match.start()]
    return bool(_BATTED.search(before) or _AT_TEA.match(match.string, match.end()))
