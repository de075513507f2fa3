"""Figures that are left after dates, money and measures: ordinals, fractions, ranges, codes, house numbers, counts."""

from __future__ import annotations

import re
from math import gcd

from vaak.text.speech.normalisation.dates_and_times import MONTH, year_of_century
from vaak.text.speech.normalisation.money import MAGNITUDES
from vaak.text.speech.normalisation.number_words import (
    GROUPED,
    cardinal,
    decimal,
    digits,
    fraction,
    grouped,
    ordinal,
    plural,
    whole,
    year,
)
from vaak.text.speech.normalisation.tables import table, words

VULGAR = table(
    """
    ½=1/2 ¼=1/4 ¾=3/4 ⅓=1/3 ⅔=2/3 ⅛=1/8 ⅜=3/8 ⅝=5/8 ⅞=7/8
    """
)
DENOMINATORS = (2, 3, 4, 5, 6, 8, 9, 10, 12, 16, 20, 32, 50, 64, 100)
"""Of what are read as fractions: 9/11 and 24/7 are not."""

STREETS = "Street|Avenue|Road|Lane|Drive|Boulevard|Court|Place|Square|Highway|Parkway|Terrace|Way"
DIRECTIONS = "North|South|East|West|Northeast|Northwest|Southeast|Southwest"
IN_GROUPS = (
    "Number|Room|Flight|Route|Highway|Interstate|Exhibit|Apartment|Suite|Channel|Bus|Train|P\\.S\\.|area code|frame"
)
"""What is numbered in pairs of digits: Room one oh five."""
YEAR_BEFORE = (
    r"in|since|until|till|by|during|before|after|year|early|late|mid|circa|summer of|spring of|fall of|winter of"
)

_FEW = rf"{GROUPED}|\d+"
_PHONE = re.compile(
    r"(?<![\w.,-])(?:\+?(\d{1,3})[ .-])?(?:\((\d{3})\) ?|(\d{3})[-. ])(\d{3})[-.](\d{4})(?![\w-])|"
    r"(?<![\w.,-])(\d{3})-(\d{4})(?![\w-])"
)
_FOREIGN_PHONE = re.compile(r"(?<![\w.,-])(?:\+\d{1,3}|0\d{2,4})(?:[ -]\d{2,4}){2,5}(?![\w-])")
_LARGE = re.compile(rf"(?<![\w.,])(\d+\.\d+)({'|'.join(MAGNITUDES)})(?!\w)")
_WITH_LETTERS = re.compile(r"(?<![\w.])(\d*\.\d+)([A-Za-z]+)(?!\w|\.\d)")
_DOT = re.compile(r"(?<=[A-Z])\.(?=\d)")
_POWER = re.compile(r"(?<=\w)\^(?=-?\w)")
_VERSION = re.compile(r"(?<![\w.])\d+(?:\.\d+){2,}(?!\w)")
_ORDINAL = re.compile(rf"(?<![\w.,])({_FEW})(?:st|nd|rd|th)\b")
_VULGAR = re.compile(rf"(\d+)?\s?([{''.join(VULGAR)}])")
_MIXED = re.compile(r"(?<![\w./])(\d+)[ -](\d{1,2})/(\d{1,2})(?![\w/])")
_FRACTION = re.compile(r"(?<![\w./,])(\d{1,3})/(\d{1,3})(?![\w/]|\.\d)(ths?\b)?")
_YEARS = re.compile(r"(?<![\w.,$£€-])(1[1-9]\d\d|20\d\d)\s?[–-]\s?(?:(1[1-9]\d\d|20\d\d)|(\d\d))(?![\w-]|[.,]\d)")
_RANGE = re.compile(rf"(?<![\w.,/-])({_FEW}|\d+\.\d+)(?:\s?–\s?|-)({_FEW}|\d+\.\d+)(?![\w/-]|[.,]\d)")
_RATIO = re.compile(r"(?<![\w:.])(\d+):(\d+)(?![\w:])")
_NEGATIVE = re.compile(r"(?<![\w.,)\"'-])[-−](?=\.?\d)")
_CALIBER = re.compile(
    r"(?<![\w.])\.(\d\d)(?!\d)(?=-?\s?(?:[Cc]al|[Ss]pecial|[Mm]agnum|[Rr]ifle|[Pp]istol|[Rr]evolver|ACP))"
)
_DIALLED = re.compile(
    r"\b((?:[Bb]ox|[Cc]all(?:ed|ing|s)?|[Dd]ial(?:l?ed|l?ing|s)?|[Pp]hon(?:e|ed|ing)|[Rr]ang|[Rr]ing) )"
    r"(\d{3,})\b(?![,.]\d)"
)
_EMERGENCY = re.compile(
    r"(?:^|\bto )(911|999|112)(?=[.!?]*$)|(?<![\w.,$£€-])(911|999|112)(?=-?\s?"
    r"(?:calls?|callers?|operators?|dispatch\w*|emergency|emergencies|system|services?|tapes?|recordings?|centers?)\b)"
)
_ISH = re.compile(r"(?<=\d)-?ish\b")
_CODE = re.compile(r"(?<![\w.,])(?=[A-Za-z]*\d+[A-Za-z]|[A-Za-z]+\d)([A-Za-z\d]+)(?!\w)")
_GROUPED = re.compile(rf"(?<=\b)((?:{IN_GROUPS})s? #?)(\d{{3,4}})(?:[-–]?([A-Z]))?\b(?![,.]\d)")
_ADDRESS = re.compile(
    rf"(?<![\w.,])(\d{{3,5}})(?= (?:(?:{DIRECTIONS}|[NSEW]\.?) (?!of\b)[A-Z\d]|(?:[A-Z][a-z]+ ){{1,2}}(?:{STREETS})\b))"
)
_BLOCK = re.compile(r"(?<![\w.,])(\d{3,4})(?=[ -]block\b)")
_LETTER_AFTER = re.compile(r"(?<![\w.,])(\d{1,3})-([A-Z])(?![\w'])")
_THOUSANDS = re.compile(rf"(?<![\w.,]){GROUPED}(?:\.\d+)?(?!\d)")
_YEAR_CUE = re.compile(rf"(?:\b(?:{YEAR_BEFORE}|{MONTH},?)|['\"(])\s?$", re.IGNORECASE)
_FOUR = re.compile(r"(?<![\w.,#])([12]\d{3})(?![\w]|[.,]\d)")
_FOLLOWS = re.compile(r"[ -]([a-z]+)(?: ([a-z]+))?")
_SINGULAR = words("was is has as this his its us thus across always perhaps towards besides unless yes less")
_EVENTS = words(
    """
    riots protests elections uprisings floods earthquakes fires games championships celebrations hearings trials
    massacres rebellions revolts strikes wars olympics negotiations talks riot
    """
)
"""Of a year, rather than counted, unless a quantity precedes: the 1780 riots, some 1200 protests."""
_QUANTITY = re.compile(
    r"\b(?:about|around|over|some|nearly|almost|than|all|those|these|least|most|of|exactly)\s$", re.IGNORECASE
)
_FUNCTION = words(
    """
    the a an and or but to in of on at by for from with who which that when while where he she it they we i you had has
    have was were is are been be did do said made saw became began came went found not no so as if than then there this
    these those his her their its our my after before until till during since about against between into over under
    """
)
_DECIMAL = re.compile(r"(?<![\w.])\d*\.\d+(?![\w]|\.\d)")
_LEFT = re.compile(r"\d+")


def numerals(text: str) -> str:
    """
    >>> numerals("7 of 1063 beds in 1805, Box 2915, serial C2766")
    'seven of one thousand sixty-three beds in eighteen oh five, Box two nine one five, serial C two seven six six'
    >>> numerals("2½ to 3/4, the 21st, 5-10 and -3.5")
    'two and a half to three quarters, the twenty-first, five to ten and minus three point five'
    >>> numerals("1.5x as fast, 7ish, a 911 call")
    'one point five X as fast, seven-ish, a nine one one call'
    """
    text = _PHONE.sub(lambda match: ", ".join(digits(part) for part in match.groups() if part), text)
    text = _FOREIGN_PHONE.sub(lambda match: ", ".join(map(digits, re.findall(r"\d+", match[0]))), text)
    text = _ISH.sub("-ish", text)
    text = _LARGE.sub(lambda match: f"{decimal(match[1])} {MAGNITUDES[match[2]]}", text)
    text = _WITH_LETTERS.sub(lambda match: f"{decimal(match[1])} {code(match[2])}", text)
    text = _DOT.sub(" dot ", text)
    text = _POWER.sub(" to the power of ", text)
    text = _VERSION.sub(lambda match: " point ".join(whole(part) for part in match[0].split(".")), text)
    text = _ORDINAL.sub(lambda match: ordinal(int(match[1].replace(",", ""))), text)
    text = _VULGAR.sub(lambda match: f"{match[1]} {VULGAR[match[2]]}" if match[1] else VULGAR[match[2]], text)
    text = _MIXED.sub(_mixed, text)
    text = _FRACTION.sub(_fraction, text)
    text = _CALIBER.sub(lambda match: cardinal(int(match[1])), text)
    text = _DIALLED.sub(lambda match: match[1] + digits(match[2]), text)
    text = _EMERGENCY.sub(lambda match: re.sub(r"\d+", lambda number: digits(number[0]), match[0]), text)
    text = _GROUPED.sub(lambda match: match[1] + grouped(match[2]) + (f" {match[3]}" if match[3] else ""), text)
    text = _LETTER_AFTER.sub(lambda match: f"{grouped(match[1])} {match[2]}", text)
    text = _YEARS.sub(_years, text)
    text = _RANGE.sub(r"\1 to \2", text)
    text = _RATIO.sub(r"\1 to \2", text)
    text = _NEGATIVE.sub("minus ", text)
    text = _CODE.sub(lambda match: code(match[1]), text)
    for pattern in (_ADDRESS, _BLOCK):
        text = pattern.sub(lambda match: grouped(match[1]), text)
    text = _FOUR.sub(_year_or_count, text)
    text = _THOUSANDS.sub(lambda match: decimal(match[0]), text)
    text = _DECIMAL.sub(lambda match: decimal(match[0]), text)
    return _LEFT.sub(_left, text)


def code(written: str) -> str:
    """Letters and figures: letter by letter, figures as one number up to two of them, otherwise digit by digit.

    >>> code("C2766"), code("B52"), code("MP3s"), code("H1N1"), code("FY2020"), code("10x")
    ('C two seven six six', 'B fifty-two', 'M P threes', 'H one N one', 'F Y twenty twenty', 'ten X')
    """
    said = list[str]()
    for piece in re.findall(r"[A-Za-z]+|\d+", written):
        if piece.isdigit():
            of_year = len(said) == 1 and " " in said[0] and re.fullmatch(r"(?:19|20)\d\d", piece)
            said.append(year(int(piece)) if of_year else whole(piece) if len(piece) < 3 else digits(piece))
        elif piece == "s" and len(said) > 1:
            said[-1] = plural(said[-1])
        elif len(piece) > 3 and not piece.isupper():
            said.append(piece)
        else:
            said.append(" ".join(piece.upper()))
    return " ".join(said)


def _mixed(match: re.Match[str]) -> str:
    part = fraction(int(match[2]), int(match[3])) if int(match[3]) else match[0]
    return f"{whole(match[1])} and {re.sub('^one (?=half|quarter|eighth)', 'a ', part)}"


def _fraction(match: re.Match[str]) -> str:
    """A proper fraction; otherwise two numbers, as in 24/7."""
    above, below = int(match[1]), int(match[2])
    if match[3] or (0 < above < below and below in DENOMINATORS and gcd(above, below) == 1):
        return fraction(above, below)
    return f"{whole(match[1])} {whole(match[2])}"


def _years(match: re.Match[str]) -> str:
    ends = year(int(match[2])) if match[2] else year_of_century(match[3])
    return f"{year(int(match[1]))} to {ends}"


def _year_or_count(match: re.Match[str]) -> str:
    """Four figures without a comma are a year, unless several things are counted (1308 prisoners)."""
    number = int(match[1])
    if number >= 2100 or (number < 1100 and not _YEAR_CUE.search(_before(match))):
        return cardinal(number)
    following = _FOLLOWS.match(match.string, match.end())
    if following is None or _YEAR_CUE.search(_before(match)):
        return year(number)
    first, second = following[1], following[2] or ""
    if first in _EVENTS:
        return cardinal(number) if _QUANTITY.search(_before(match)) else year(number)
    counted = _is_plural(first) or (first not in _FUNCTION and _is_plural(second))
    return cardinal(number) if counted else year(number)


def _before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - 20) : match.start()]


def _is_plural(word: str) -> bool:
    return len(word) > 3 and word.endswith("s") and not word.endswith("ss") and word not in _SINGULAR


def _left(match: re.Match[str]) -> str:
    """A number by itself; a space keeps it from letters next to it."""
    text = match.string
    before = " " if match.start() and text[match.start() - 1].isalpha() else ""
    after = " " if match.end() < len(text) and text[match.end()].isalpha() else ""
    return f"{before}{whole(match[0])}{after}"
