"""Figures in words that measures, dates and money leave: ordinals, fractions, ranges, codes, houses and counts."""

from __future__ import annotations

import re

from vaak.text.speech.dates_and_times import MONTH, year_of_century
from vaak.text.speech.guesses import report_guess
from vaak.text.speech.initialisms import SPELLED, is_readable
from vaak.text.speech.money import MAGNITUDES
from vaak.text.speech.ratios import ratios
from vaak.text.speech.words import (
    GROUPED,
    cardinal,
    decimal,
    digits,
    grouped,
    ordinal,
    plural,
    whole,
    words,
    year,
)

STREETS = "Street|Avenue|Road|Lane|Drive|Boulevard|Court|Place|Square|Highway|Parkway|Terrace|Way"
DIRECTIONS = "North|South|East|West|Northeast|Northwest|Southeast|Southwest"
IN_GROUPS = (
    "Number|Room|[Ff]light(?: (?:[A-Z]{2}|[A-Z]\\d|\\d[A-Z]))?|Boeing|Airbus|"
    "Porsche|Peugeot|Nokia|Gate|Ward|Locker|Cabin|"
    "Route|Highway|Interstate|Exhibit|Apartment|Suite|Channel|Bus|Train|P\\.S\\.|area code|frame"
)
"""Words before a number that is read in pairs of digits: Room one oh five."""
YEAR_BEFORE = (
    r"in|since|until|till|by|during|before|after|year|early|late|mid|circa|summer of|spring of|fall of|winter of"
)
_FEW = rf"{GROUPED}|\d+"
_PHONE = re.compile(
    r"(?<![\w.,-])(?:\+?(\d{1,3})[ .-])?(?:\((\d{3})\) ?|(\d{3})[-. ])(\d{3})[-.](\d{4})(?![\w-])|"
    r"(?<![\w.,-])(?<!year )(?<!years )(\d{3})-(\d{4})(?![\w-])"
)
_FOREIGN_PHONE = re.compile(r"(?<![\w.,-])(?:\+\d{1,3}|0\d{2,4})(?:[ -]\d{2,4}){2,5}(?![\w-])")
_LARGE = re.compile(rf"(?<![\w.,])(\d+\.\d+)({'|'.join(MAGNITUDES)})(?!\w)")
_MODEL = re.compile(
    r"(\b[A-Z]{2,4} )(?!1\d{3}|20\d\d|\d+00\b)(\d{4})\b(?![.,]\d)|(?<![\w.,])(\d{4})(?= (?:T I|XT|XTX|Super)\b)"
)
"""Numbers of products, bills and flights: RTX 3060; 1100 to 2099 may be a year."""
_CARD = re.compile(r"(?<=\b\d{4} )Ti\b")
"""A graphics card's suffix: RTX 3060 Ti."""
_FOUR_FIGURES = re.compile(r"\d{4}")
"""Much faster to look for than the forms that have them."""
_WITH_LETTERS = re.compile(r"(?<![\w.])(\d*\.\d+)([A-Za-z]+\d*)(?!\w|\.\d)")
_DOT = re.compile(r"(?<=[A-Z])\.(?=\d)")
_CARET = re.compile(r"(?<=\w)\^(?=-?\w)")
_VERSION = re.compile(r"(?<![\w.])\d+(?:\.\d+){2,}(?!\w)")
_PEOPLE_OF_NUMBER = re.compile(r"(?<![\w.,])(\d{1,2})(ers?)\b")
"""49ers, 76ers."""
_ORDINALS = re.compile(r"(?<=\d)(st|nd|rd|th)\s?[-–]\s?(?=\d+(?:st|nd|rd|th)\b)")
_ORDINAL = re.compile(rf"(?<![\w.,])({_FEW})(?:st|nd|rd|th)\b")
_YEARS = re.compile(r"(?<![\w.,$£€-])(1[1-9]\d\d|20\d\d)\s?[–-]\s?(?:(1[1-9]\d\d|20\d\d)|(\d\d))(?![\w-]|[.,]\d)")
_RANGE = re.compile(rf"(?<![\w.,/-])({_FEW}|\d+\.\d+)(?:\s?–\s?|-)({_FEW}|\d+\.\d+)(?![\w/-]|[.,]\d)")
_OF_RANGES = re.compile(
    r"\b(?:pages?|ages?|aged|chapters?|verses?|lines?|rows?|years?|numbers?|items?|grades?|levels?|weeks?|days?|from)\s$",
    re.IGNORECASE,
)
_RATIO = re.compile(r"(?<![\w:.])(\d+):(\d+)(?![\w:])")
_NEGATIVE = re.compile(r"(?<![\w.,)\"'-])[-−](?=\.?\d)")
_CALIBER = re.compile(
    r"(?<![\w.])\.(\d\d)(?!\d)(?=-?\s?(?:[Cc]al|[Ss]pecial|[Mm]agnum|[Rr]ifle|[Pp]istol|[Rr]evolver|ACP))"
)
_DIALLED = re.compile(
    r"\b((?:[Bb]ox|[Cc]all(?:ed|ing|s)?|[Dd]ial(?:l?ed|l?ing|s)?|[Pp]hon(?:e|ed|ing)|[Rr]ang|[Rr]ing) )"
    r"(\d{3,}(?:(?:, \d{3})*,? or \d{3})?)\b(?![,.]\d)"
)
_EMERGENCY = re.compile(
    r"(?:^|\bto )(911|999|112)(?=[.!?]*$)|(?<![\w.,$£€-])(911|999|112)(?=-?\s?"
    r"(?:calls?|callers?|operators?|dispatch\w*|emergency|emergencies|system|services?|tapes?|recordings?|centers?)\b)"
)
_ISH = re.compile(r"(?<=\d)-?ish\b")
_LETTERS_AND_FIGURES = re.compile(r"(?<![\w.,])(?=[A-Za-z]*\d+[A-Za-z]|[A-Za-z]+\d)([A-Za-z\d]+)(?!\w)")
_GROUPED = re.compile(rf"(?<=\b)((?:{IN_GROUPS})s? #?)(\d{{3,4}}(?:\s?[-–]\s?\d{{3,4}})?)(?:[-–]?([A-Z]))?\b(?![,.]\d)")
_ADDRESS = re.compile(
    rf"(?<![\w.,])(\d{{3,5}})(?= (?:(?:{DIRECTIONS}|[NSEW]\.?) (?!of\b)[A-Z\d]|(?:[A-Z][a-z]+ ){{1,2}}(?:{STREETS})\b))"
)
_BLOCK = re.compile(r"(?<![\w.,])(\d{3,4})(?=[ -]block\b)")
_LETTER_AFTER = re.compile(r"(?<![\w.,])(\d{1,3})-([A-Z])(?![\w'])")
_THOUSANDS = re.compile(rf"(?<![\w.,]){GROUPED}(?:\.\d+)?(?!\d)")
_YEAR_CUE = re.compile(
    rf"(?:\b(?:{YEAR_BEFORE}|{MONTH},?)|['\"(]"
    r"|\b(?:war|strike|act|crisis|crash|revolution|elections?|treaty|battle|floods?|fire|earthquake|rebellion|uprising|"
    r"mutiny|constitution|class|season|olympics|riots?|famine|depression|plague|vintage) of)\s?$",
    re.IGNORECASE,
)
_COUNT_CUE = re.compile(r"\b(?:average|averag(?:es|ed|ing)|total(?:s|ed|ing)?)(?: of)? $", re.IGNORECASE)
_FOUR = re.compile(r"(?<![\w.,#])([12]\d{3})(?![\w]|[.,]\d)")
_FOLLOWS = re.compile(r"[ -]([a-z]+)(?: ([a-z]+))?")
_SINGULAR = words("was is has as this his its us thus across always perhaps towards besides unless yes less")
_EVENTS = words(
    """
    riots protests elections uprisings floods earthquakes fires games championships celebrations hearings trials
    massacres rebellions revolts strikes wars olympics negotiations talks riot
    """
)
"""Words that follow a year, rather than are counted, unless a quantity precedes: the 1780 riots, some 1200 protests."""
_QUANTITY = re.compile(
    r"\b(?:about|around|over|some|nearly|almost|than|all|those|these|least|most|of|exactly)\s$", re.IGNORECASE
)
_FUNCTION = words(
    """
    the a an and or but to in of on at by for from with who which that when while where he she it they we i you had has
    have was were is are been be did do said made saw became began came went found not no so as if than then there this
    still also only never ever again soon later already often just even once both now therefore thereby
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
    # Numbers that name something first, counts last: at the end, only plain numbers remain.
    text = _PHONE.sub(lambda match: ", ".join(digits(part) for part in match.groups() if part), text)
    text = _FOREIGN_PHONE.sub(lambda match: ", ".join(map(digits, re.findall(r"\d+", match[0]))), text)
    text = _ISH.sub("-ish", text)
    text = _LARGE.sub(lambda match: f"{decimal(match[1])} {MAGNITUDES[match[2]]}", text)
    if _FOUR_FIGURES.search(text):
        text = _MODEL.sub(lambda match: (match[1] or "") + grouped(match[2] or match[3]), _CARD.sub("T I", text))
    text = _WITH_LETTERS.sub(lambda match: f"{decimal(match[1])} {code(match[2])}", text)
    text = _DOT.sub(" dot ", text)
    text = _CARET.sub(" to the power of ", text)
    text = _VERSION.sub(_read_version, text)
    text = _PEOPLE_OF_NUMBER.sub(lambda match: f"{cardinal(int(match[1])).removesuffix('e')}{match[2]}", text)
    text = _ORDINALS.sub(r"\1 to ", text)
    text = _ORDINAL.sub(lambda match: ordinal(int(match[1].replace(",", ""))), text)
    text = ratios(text)
    text = _CALIBER.sub(lambda match: cardinal(int(match[1])), text)
    text = _DIALLED.sub(_read_dialled, text)
    text = _EMERGENCY.sub(lambda match: re.sub(r"\d+", lambda number: digits(number[0]), match[0]), text)
    text = _GROUPED.sub(
        lambda match: (
            match[1] + " to ".join(map(grouped, re.findall(r"\d+", match[2]))) + (f" {match[3]}" if match[3] else "")
        ),
        text,
    )
    text = _LETTER_AFTER.sub(lambda match: f"{grouped(match[1])} {match[2]}", text)
    text = _YEARS.sub(_years, text)
    text = _RANGE.sub(_read_range, text)
    text = _RATIO.sub(r"\1 to \2", text)
    text = _NEGATIVE.sub("minus ", text)
    text = _LETTERS_AND_FIGURES.sub(lambda match: code(match[1]), text)
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
    >>> code("A100"), code("Win32"), code("int16"), code("utf8")
    ('A one hundred', 'Win thirty-two', 'int sixteen', 'U T F eight')
    """
    said = list[str]()
    for piece in re.findall(r"[A-Za-z]+|\d+", written):
        if piece.isdigit():
            # After an abbreviation of several letters, 1900 to 2099 are a year: FY2020, but not B2020.
            of_year = len(said) == 1 and " " in said[0] and re.fullmatch(r"(?:19|20)\d\d", piece)
            is_count = len(piece) < 3 or (len(piece) == 3 and piece.endswith("00"))
            said.append(year(int(piece)) if of_year else whole(piece) if is_count else digits(piece))
        elif piece == "s" and len(said) > 1:
            said[-1] = plural(said[-1])
        elif len(piece) > 5 or (len(piece) > 3 and not piece.isupper()) or _is_word(piece):
            said.append(piece)
        else:
            said.append(" ".join(piece.upper()))
    return " ".join(said)


def _is_word(piece: str) -> bool:
    """Return whether three letters, not in capitals, are a word: int16, but utf8 and api2."""
    return len(piece) == 3 and not piece.isupper() and piece.upper() not in SPELLED and is_readable(piece.upper())


def _read_version(match: re.Match[str]) -> str:
    """``3.10.2``; one that begins with a year was released in it: 2024.11.1."""
    first, *parts = match[0].split(".")
    released = year(int(first)) if re.fullmatch(r"20\d\d", first) else whole(first)
    return " point ".join((released, *map(whole, parts)))


def _read_dialled(match: re.Match[str]) -> str:
    """``dial 999 or 112``: each digit by digit."""
    return match[1] + re.sub(r"\d+", lambda number: digits(number[0]), match[2])


def _read_range(match: re.Match[str]) -> str:
    """``3-4``, which could be a score; after "pages" and the like, or with a dash of ranges, it can't."""
    if "–" not in match[0] and not _OF_RANGES.search(_before(match)):
        report_guess("3-4 as a range")
    return f"{match[1]} to {match[2]}"


def _years(match: re.Match[str]) -> str:
    ends = year(int(match[2])) if match[2] else year_of_century(match[3])
    return f"{year(int(match[1]))} to {ends}"


def _year_or_count(match: re.Match[str]) -> str:
    """Four figures without a comma are a year, unless several things are counted (1308 prisoners)."""
    number = int(match[1])
    # From 2100 on a count, unless it is called a year; below 1100 a year only after a cue, such as "in".
    if number >= 2100 and _before(match).lower().endswith("the year "):
        return year(number)
    if number >= 2100 or (number < 1100 and not _YEAR_CUE.search(_before(match))):
        return cardinal(number)
    if _YEAR_CUE.search(_before(match)):
        return year(number)
    if _COUNT_CUE.search(_before(match)):
        return cardinal(number)
    following = _FOLLOWS.match(match.string, match.end())
    if following is None:
        report_guess("1984 as a year")
        return year(number)
    first, second = following[1], following[2] or ""
    if first in _EVENTS:
        return cardinal(number) if _QUANTITY.search(_before(match)) else year(number)
    # A plural after it, or after one adjective, is counted: 1308 prisoners, 1308 young prisoners.
    counted = _is_plural(first) or (first not in _FUNCTION and _is_plural(second))
    report_guess("1984 as a count" if counted else "1984 as a year")
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
