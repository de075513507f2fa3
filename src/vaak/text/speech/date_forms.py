"""Short forms of dates and times, rewritten in full: ranges, ISO 8601, quarters, military times, days by letters.

They become the forms that ``vaak.text.speech.dates_and_times`` reads: ``2024-02-29T14:30Z`` becomes ``2024-02-29 14:30
UTC``, ``7–9 p.m.`` becomes ``7 to 9 p.m.``.
"""

from __future__ import annotations

import re

from vaak.text.speech.dates_and_times import DAY, MONTHS, SHORT_DAYS, SHORT_MONTHS, year_of_century
from vaak.text.speech.words import RewriteRule, cardinal, grouped, ordinal, plural, rewrite, table, year

_SHORT_MONTH_NAMES = "|".join(sorted(SHORT_MONTHS, key=len, reverse=True))
_MONTH = f"(?:(?:{'|'.join(MONTHS)})|(?:{_SHORT_MONTH_NAMES})\\b\\.?)"
_ORDINAL = "(?:st|nd|rd|th)"
_TO = r"\s?[–-]\s?"
_HALF_DAY = r"\s?[AaPp]\.?\s?[Mm]\b\.?"
_OTHER_CASE = "|".join(
    sorted({form for name in SHORT_MONTHS for form in (name.lower(), name.upper())}, key=len, reverse=True)
)
_DAYS_BY_LETTER = (
    table(
        "M=Monday Mo=Monday Tu=Tuesday T=Tuesday W=Wednesday We=Wednesday Th=Thursday R=Thursday F=Friday Fr=Friday "
        "Sa=Saturday Su=Sunday"
    )
    | SHORT_DAYS
)
_DAY_LETTERS = "|".join(sorted(_DAYS_BY_LETTER, key=len, reverse=True))
_SOFTWARE = (
    "Python|[Vv]ersion|[Rr]elease|[Bb]uild|[Uu]pdate|[Pp]atch|[Ff]irmware|[Kk]ernel|iOS|iPadOS|macOS|Android|Windows|Linux|"
    "Ubuntu|Debian|Fedora|Node(?:\\.js)?|Java|Ruby|Go|Rust|PHP|MySQL|PostgreSQL|SQLite|Redis|Django|Flask|React|Angular|Vue|Rails|"
    "TensorFlow|PyTorch|NumPy|pandas|OpenSSL|Docker|Kubernetes|Git|Chrome|Firefox|Safari|"
    "Swift|Kotlin|Scala|Perl|GCC|Clang"
)
_AT_TIME = "(?:at|by|from|until|till|before|after|since|around|about)"
_AT = r"(?:at|by|from|until|till|before|after|since|to|around|about|between|and|for|–|-)"


def _expand_month(match: re.Match[str]) -> str:
    return match[1] + SHORT_MONTHS[match[2].capitalize()]


def _name_day_range(match: re.Match[str]) -> str:
    return f"{_DAYS_BY_LETTER[match[1]]} to {_DAYS_BY_LETTER[match[2]]}"


def _list_days(match: re.Match[str]) -> str:
    days = [_DAYS_BY_LETTER[one] for one in re.findall(_DAY_LETTERS, match[0])]
    return ", ".join(days[:-1]) + f" and {days[-1]}"


def _read_watch(match: re.Match[str]) -> str:
    """``0800 hrs``: hours and minutes without a colon."""
    hour, minute = match[2], match[3]
    first = f"oh {cardinal(int(hour))}" if hour[0] == "0" else cardinal(int(hour))
    return f"{match[1] or ''}{first} {'hundred' if minute == '00' else year_of_century(minute)} hours"


def _read_month_of_year(match: re.Match[str]) -> str:
    """``2024-01`` is a month; ``2011-12`` may be two years."""
    first, month = int(match[1]), int(match[2])
    return match[0] if (first + 1) % 100 == month else f"{MONTHS[month - 1]} {first}"


def _read_quarter(match: re.Match[str]) -> str:
    part = {"Q": "quarter", "H": "half"}[match[2]]
    return f"{ordinal(int(match[1]))} {part} of {year(int(match[3]) % 100 + 2000)}"


def _read_offset(match: re.Match[str]) -> str:
    if match[3] is None or match[3] == "Z":
        return f"{match[1]} {match[2]}{' UTC' if match[3] else ''}"
    return f"{match[1]} {match[2]} UTC {'plus' if match[3][0] == '+' else 'minus'} {match[3][1:].lstrip('0')}"


def _read_shift(match: re.Match[str]) -> str:
    """``-0500`` after a time: the hours, and minutes if there are any, from UTC."""
    hours, minutes = int(match[2]), f" {cardinal(int(match[3]))}" if int(match[3]) else ""
    return f" {'plus' if match[1] == '+' else 'minus'} {cardinal(hours)}{minutes or ' hours'}"


def _read_digits_plural(match: re.Match[str]) -> str:
    """``1s and 0s``, ``F-16s``."""
    return re.sub(r"(\d+)'?s", lambda one: "zeros" if one[1] == "0" else plural(grouped(one[1])), match[0])


_RULES: tuple[RewriteRule, ...] = (
    ("T", re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d(?::\d\d)?)(?:\.\d+)?(Z|[+-]\d\d:?\d\d)?(?!\w)"), _read_offset),
    ("Z", re.compile(r"(?<=\d:\d\d)Z\b"), " UTC"),
    ("m", re.compile(r"(?<![\w:.,$£€])(1[0-2]|[1-9])([0-5]\d)(?=\s?[ap]\.?m\b)"), r"\1:\2"),  # 615am
    ("M", re.compile(r"(?<![\w:.,$£€])(1[0-2]|[1-9])([0-5]\d)(?=\s?[AP]\.?M\b)"), r"\1:\2"),
    (  # the day of a release or a backup in eight figures: 19990513
        re.compile(r"(?<![\w.,$£€#-])((?:19[6-9]|20[0-4])\d)(0[1-9]|1[0-2])(0[1-9]|[12]\d|3[01])(?![\w-]|[.,]\d)"),
        lambda match: f"{year(int(match[1]))} {year_of_century(match[2])} {year_of_century(match[3])}",
    ),
    (":", re.compile(r"(?<=\d:\d\d) ([+-])([01]\d)([0-5]\d)(?![\w:]|[.,]\d)"), _read_shift),
    (
        "0",
        re.compile(rf"\b({_AT_TIME} )(0\d)([0-5]\d)(?=[.,;:)]?$|[,;)]|\s[a-z])"),
        lambda match: (
            f"{match[1]}oh {cardinal(int(match[2]))} {'hundred' if match[3] == '00' else year_of_century(match[3])}"
        ),
    ),
    ("0", re.compile(rf"(?i)\b((?:{'|'.join(MONTHS)}) )0([1-9])(?!\w|[.:/]\d)"), r"\1\2"),
    (
        ".",
        re.compile(rf"\b((?:{_SOFTWARE}) v?)(?:([1-9]\d*)\.([1-9]\d)(?![.\d]|\.\d)|(\d+)\.(\d+)\.(\d+)(?![.\d]|\.\d))"),
        lambda match: " point ".join(one for one in match.groups()[1:] if one).join((match[1], "")),
    ),
    (re.compile(rf"\b()({_OTHER_CASE})\.?(?= \d{{1,2}}(?:{_ORDINAL})?\b(?!:))"), _expand_month),
    (re.compile(rf"(?<!\S)({DAY}(?:{_ORDINAL})? )({_OTHER_CASE})(?!\w)\.?(?= \d{{4}}|[.,;!?)]|$)"), _expand_month),
    (re.compile(rf"\b()({_SHORT_MONTH_NAMES})\.? (?=\d{{1,2}}{_ORDINAL}\b)"), lambda match: f"{_expand_month(match)} "),
    (re.compile(rf"(\d{_ORDINAL} of )({_SHORT_MONTH_NAMES})\b(?!\w)(?:\.(?= [a-z\d]|[,;]))?"), _expand_month),
    (
        re.compile(
            rf"(?<![\w.,/-])({DAY}(?:{_ORDINAL})? )({_SHORT_MONTH_NAMES})\b\.?"
            r"(?=\s?[–-]\s?\d|,? \d{4}\b|,? (?:at|from|to|in|and|or|for|by|on)\b)"
        ),
        _expand_month,
    ),
    (
        "-",
        re.compile(rf"\b({_SHORT_MONTH_NAMES})-({DAY})-(\d{{4}})\b"),
        lambda match: f"{SHORT_MONTHS[match[1]]} {match[2]}, {match[3]}",
    ),
    (
        "-",
        re.compile(rf"(?<![\w-])({_SHORT_MONTH_NAMES})-({DAY})(?![\w-])"),
        lambda match: f"{SHORT_MONTHS[match[1]]} {match[2]}",
    ),
    (
        re.compile(rf"(?<![\d/.-])({DAY}){_TO}({DAY}) ({_MONTH})(?!\w)"),
        lambda match: (
            f"{ordinal(int(match[1]))} to {ordinal(int(match[2]))} {SHORT_MONTHS.get(match[3].rstrip('.'), match[3])}"
        ),
    ),
    (re.compile(rf"(?<![\d/.-])({DAY} {_MONTH}(?: \d{{4}})?){_TO}(?={DAY} {_MONTH})"), r"\1 to "),
    (re.compile(rf"\b({_MONTH} {DAY}(?:{_ORDINAL})?(?:, \d{{4}})?){_TO}(?={_MONTH} {DAY})"), r"\1 to "),
    (re.compile(rf"\b({_MONTH} \d{{4}}){_TO}(?={_MONTH} \d{{4}})"), r"\1 to "),
    (re.compile(rf"(?<![\w.,/-])(\d{{4}}){_TO}(?=(?:present|date|now|today|ongoing)\b)"), r"\1 to "),
    ("-", re.compile(r"(?<![\w.,/-])(20\d\d)-(0[1-9]|1[0-2])(?![\w/-]|[.,]\d)"), _read_month_of_year),
    (
        "/",
        re.compile(r"(?<![\w.,/])(0?[1-9]|1[0-2])/((?:19|20)\d\d)(?![\w/]|[.,]\d)"),
        lambda match: f"{MONTHS[int(match[1]) - 1]} {match[2]}",
    ),
    (re.compile(r"(?<!\w)([1-4])([QH])(\d\d|20\d\d)(?!\w)"), _read_quarter),
    ("/", re.compile(r"\bFY ?(\d\d)/(\d\d)(?!\w)"), r"FY \1 \2"),
    ("/", re.compile(r"\b24/7/365\b"), "twenty-four seven three sixty-five"),
    (re.compile(rf"(?<![\w.])({_DAY_LETTERS})\s?[–-]\s?({_DAY_LETTERS})(?=[,:]? \d)"), _name_day_range),
    ("/", re.compile(rf"(?<![\w.])(?:{_DAY_LETTERS})(?:/(?:{_DAY_LETTERS}))+(?=[,:]? \d)"), _list_days),
    (re.compile(r"(?<!\w)M(?:W|Tu|T|Th)?W?F(?= \d)"), _list_days),
    (
        re.compile(rf"(\b{_AT} ?)?(?<![\w.,:/])(0\d|(?<= )1\d|(?<= )2[0-3])([0-5]\d) ?(?:[Hh]rs?\b\.?|hours\b|h\b)"),
        lambda match: _read_watch(match) if match[1] or match[2][0] == "0" else match[0],
    ),
    (re.compile(rf"(?<![\d:.,/-])(\d{{1,2}}(?:[:.]\d\d)?){_TO}(?=\d{{1,2}}(?:[:.]\d\d)?{_HALF_DAY})"), r"\1 to "),
    (":", re.compile(rf"(?<![\d:.,/-])(\d{{1,2}}){_TO}(?=\d{{1,2}}:[0-5]\d(?!\d))"), r"\1 to "),
    (re.compile(r"\b(UTC|GMT)\s?[-−–]\s?(?=\d)"), r"\1 minus "),
    (re.compile(r"\bT[-−–](?=\d+ ?(?:min|sec|s\b|h\b|hours?|days?|weeks?|\d*:))"), "T minus "),
    ("/", re.compile(rf"(\d:\d\d(?:{_HALF_DAY})?(?: [A-Z]{{2,4}})?)/(?=\d{{1,2}}:\d\d)"), r"\1 or "),
    ("s", re.compile(rf"(\d0'?s){_TO}(?='?\d0'?s\b|\d{{4}}s\b)"), r"\1 to "),
    ("s", re.compile(r"(\d0'?s)/(?='?\d0'?s\b)"), r"\1 and "),
    (
        "s",
        re.compile(
            r"(?<![\w.,'])\d'?s and \d'?s\b|(?<=[A-Z]-)\d+s\b|(?<=\b(?:Boeing|Airbus) )\d{3}s\b"
            r"|(?<=\b[Oo]ver-)\d+s\b|(?<=\b[Uu]nder-)\d+s\b"
        ),
        _read_digits_plural,
    ),
    ("c", re.compile(r"(?<=\d(?:st|nd|rd|th))-c\.(?= )"), "-century"),
    ("c", re.compile(r"\bc(?:a\.)?(?=1\d{3}\b)"), "circa "),
)


def date_forms(text: str) -> str:
    """
    >>> date_forms("28 Feb–3 Mar 2025, 7–9 p.m., M-F 9-5, 2024-02-29T14:30Z, the 1960s-80s")
    '28 February to 3 March 2025, 7 to 9 p.m., Monday to Friday 9-5, 2024-02-29 14:30 UTC, the 1960s to 80s'
    """
    return rewrite(text, _RULES)
