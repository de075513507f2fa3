"""Dates, times of day, durations, decades and years."""

from __future__ import annotations

import re

from vaak.text.speech.guesses import report_guess
from vaak.text.speech.words import cardinal, decimal, has_day_first, ordinal, plural, table, year

MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
SHORT_MONTHS = {name[:3]: name for name in MONTHS if name != "May"} | {"Sept": "September", "Febr": "February"}
SHORT_DAYS = table(
    """
    Mon=Monday Tue=Tuesday Tues=Tuesday Wed=Wednesday Weds=Wednesday Thu=Thursday Thur=Thursday Thurs=Thursday
    Fri=Friday Sat=Saturday Sun=Sunday
    """
)

MONTH = f"(?:{'|'.join(MONTHS)})"
DAY = r"(?:[12]\d|3[01]|0?[1-9])"
_SHORT_MONTH = re.compile(
    rf"\b({'|'.join(SHORT_MONTHS)})(?:\.(?=,?\s+\d)|(?=,?\s+\d{{1,2}}\b(?!:))|\.(?=\s*$))(?![a-z])"
    rf"|(?:(?<=\d )|(?<=\d(?:st|nd|rd|th) ))({'|'.join(SHORT_MONTHS)})\b\.?(?=,?\s+\d{{4}}|[.,;!?]?$)"
    rf"|(?<=\d-)({'|'.join(SHORT_MONTHS)})(?=-\d{{4}})"
    rf"|\b({'|'.join(SHORT_MONTHS)})(?=\s['’]\d\d\b)"
)
_SHORT_DAY = re.compile(
    rf"\b({'|'.join(SHORT_DAYS)})(?:\.,?|,|)(?=\s+(?:{MONTH}|\d{{1,2}}(?:st|nd|rd|th)? {MONTH}))"
    rf"|(?<![\w-])({'|'.join(SHORT_DAYS)})(?:\.,?|,)(?=\s+\d)"
    rf"|(?<![\w-])({'|'.join(SHORT_DAYS)})(?=\s\d{{1,2}}/\d{{1,2}})"
)
_ISO = re.compile(
    r"(?<![\d/.-])(1\d{3}|20\d\d|21\d\d)([-/])(1[0-2]|0?[1-9])\2([12]\d|3[01]|0?[1-9])(?!\d|[/.-]\d)(?:T(?=\d))?"
)
_NUMERIC = re.compile(r"(?<![\w/.-])(\d{1,2})([/.-])(\d{1,2})\2(\d{4}|\d\d)(?![\d/-]|\.\d)")
_NAMED = re.compile(rf"(?<![\d-])({DAY})-({MONTH})-(\d{{4}})(?![\d-])")
_DAY_NAMES = "|".join((*SHORT_DAYS, *dict.fromkeys(SHORT_DAYS.values())))
_MONTH_NAMES = "|".join((*SHORT_MONTHS, *MONTHS))
_NAMES_RANGE = re.compile(
    rf"\b({_DAY_NAMES})\.?\s?[-–]\s?({_DAY_NAMES})\b(?:\.(?!\s*$))?(?!\w)"
    rf"|\b({_MONTH_NAMES})\.?\s?[-–]\s?({_MONTH_NAMES})\b(?:\.(?!\s*$))?(?!\w)"
)
_MONTH_STOPPED = re.compile(
    rf"\b({'|'.join(SHORT_MONTHS)})\.(?=,?\s+[a-z\d(&]|[,;:)–-])"
    rf"|\b(?!Jan|Mar|Jun)({'|'.join(SHORT_MONTHS)})(?=\.(?:\s|$|[\"')]))"
)
"""Jan. at the end of a sentence may be a name."""
_AFTER_PREPOSITION = re.compile(
    rf"\b((?:[Ii]n|[Ss]ince|[Ll]ast|[Nn]ext|[Tt]his|[Ee]arly|[Ll]ate|[Mm]id) )({'|'.join(SHORT_MONTHS)})"
    r"(?![\w'’-]|\.\w|\s+[A-Z]|\s(?:de[lr]?|di|da|van|von)\b)"
    rf"|\b((?:[Oo]n|[Ll]ast|[Nn]ext|[Tt]his|[Ee]very) )({'|'.join(SHORT_DAYS)})(?![\w'’-]|\.\w|\s+[A-Z])"
)
_MONTH_OF_DAY = re.compile(
    rf"(?:(?<=\b\d )|(?<=\b[12]\d )|(?<=\b3[01] )|(?<=\d(?:st|nd|rd|th) ))"
    rf"({'|'.join(SHORT_MONTHS)})\b(?!\.\w|\s+[A-Z]|['’-])"
)
_DAYS_LIST = re.compile(
    rf"\b(?:{'|'.join(SHORT_DAYS)})\.?(?:(?:, ?| ?& ?| and |, and | ?/ ?)(?:{'|'.join(SHORT_DAYS)})\b\.?)+(?!\w)"
)
_OTHER_DAY = re.compile(rf"\b(?:{'|'.join(dict.fromkeys(SHORT_DAYS.values()))})s?\b")
_WEEKEND = re.compile(r"(?<![\w-])(?<![Tt]he )(Sat|Sun)(?:\.(?=\s[a-z]))?(?![\w'’-]|\.\w|\s+[A-Z])")
"""In a text with another day; elsewhere a verb and a star."""
_DAY_OF_TIME = re.compile(rf"\b({'|'.join(SHORT_DAYS)})(?= \d{{1,2}}(?:[:.]\d\d)?(?: ?[AaPp]\.?[Mm]|\s?[-–]\s?\d))")
_FISCAL = re.compile(r"(?<![\w.,/$£€₹-])((?:1[89]|20)\d\d)/(\d\d)(?![\w/]|[.,]\d)")
_CENTURY = re.compile(r"(?<=\d(?:st|nd|rd|th)) c(?:\.(?=\s|$|[,;:)])|(?=\s(?:BC|AD|CE|B\.|A\.)))")
_STOPWATCH = re.compile(r"(?<![\d:.,])([0-5]?\d):([0-5]\d)(\.\d{1,3})(?![\d:])")
_RANGE_OF_ERA = re.compile(r"(?<![\d.,])(\d{1,4})\s?[-–]\s?(?=\d{1,4} (?:B\.\s?C\.|A\.\s?D\.|BCE?\b|AD\b|CE\b))")
_MONTH_DAY = r"(\d{1,2})/(\d{1,2})(?![/\d]|\.\d)"
_NO_FRACTION = r"(?!(?:9/11|1/[2348]|2/3|3/[48]|[57]/8)(?!\d))"
_NO_FRACTION_OF = r"(?!\d+/\d+ (?:of|cups?|off|hours?|inch)\b)"
_DATED = (
    re.compile(rf"(\b(?:[Oo]n|[Dd]ue|[Dd]ated|[Aa]s of|[Ww]eek of|[Ee]ffective|{_DAY_NAMES})\b[.,]*\s){_MONTH_DAY}"),
    re.compile(rf"(\d\s?[AaPp]\.?[Mm]\b\.?(?: [A-Z]{{2,4}})?,? ){_MONTH_DAY}"),
    re.compile(
        r"(\b(?:[Bb]y|[Uu]ntil|[Tt]ill|[Tt]hrough|[Tt]hru|[Ss]ince|[Ss]tart(?:s|ing)|[Ee]nd(?:s|ing)|[Ee]xpir(?:es|ing)|"
        rf"[Bb]efore|[Aa]fter|[Dd]eadline(?: is)?|[Bb]egin(?:s|ning)|[Ss]hip(?:s|ped)|[Pp]osted|[Ss]ent):? )"
        rf"{_NO_FRACTION}{_MONTH_DAY}(?! of\b)"
    ),
    re.compile(
        rf"(\b(?:[Tt]he|[Mm]y|[Oo]ur|[Yy]our) ){_NO_FRACTION}{_MONTH_DAY}"
        r"(?= (?:meeting|call|minutes|e-?mail|game|deadline|session|release|"
        r"report|memo|letter|class|show|flight|event|article|draft|update|hearing|appointment|order|invoice|payment|"
        r"statement|episode|match|paper|issue|trip|visit|dinner|lunch|party|concert|lecture|exam|test)s?\b)"
    ),
    re.compile(r"(?<![\w.,/])()(0\d)/(\d\d?)(?![/\d]|\.\d)"),
    re.compile(r"(?<![\w.,/])()(\d{1,2})/(\d{1,2})(?=,? (?:at|@|from) (?:\d|noon\b|midnight\b))"),
    re.compile(
        r"(\b(?:planned|scheduled|reserv\w+|book(?:ed|ing)?|set|slated|appointments?|meetings?|flights?|tickets?|moved|alarm|"
        rf"remind\w*|table|hotels?|rooms?|car)\b[^.!?;]{{0,40}} (?:for|on|from) ){_NO_FRACTION_OF}{_MONTH_DAY}"
    ),
)
"""A month and a day, by what stands before, or after; ``by 1/2`` may be a half."""
_DATES_RANGE = re.compile(
    r"(?<![\w.,/])(\d{1,2})/(\d{1,2})\s?(?:[-–]|to|through|thru|until|till)\s?"
    r"(\d{1,2})/(\d{1,2})(?![/\d]|\.\d| (?:cups?|inch|of|tsp|tbsp|lbs?|oz))"
)
_OF_TIME = re.compile("through|thru|until|till")
_MONTH_YEAR = re.compile(rf"\b({MONTH},?(?: (?:{DAY}(?:st|nd|rd|th)?),?)? )([12]\d{{3}})\b(?![,.]\d)")
_DAY_MONTH = re.compile(rf"\b(?<![\d.,:/£$€-])({DAY}) ({MONTH})(?!\w| \d{{1,2}}\b)")

_ANY_MONTH = f"(?:{'|'.join((*MONTHS, *SHORT_MONTHS))})"
_OF_LIVES = table("b=born d=died m=married fl=flourished r=reigned bef=before aft=after")
_LIFE = re.compile(
    rf"(?<![\w.])(?<!\d )(?:({'|'.join(_OF_LIVES)})\.\s?(?=(?:ca?\.\s?)?(?:1\d{{3}}|20\d\d)\b(?![,.]\d)"
    rf"|\d{{1,4}}s?(?:\s?[-–]\s?\d{{1,4}})?\s(?:B\.|A\.|BC|AD|CE)|{DAY} {_ANY_MONTH}\b|{_ANY_MONTH}\b)"
    rf"|(ca?)\.\s?(?=\d{{3}}|\d{{1,2}}(?:st|nd|rd|th)\b))"
)
"""Short words of lives before a date, and ``c.`` before a year or a century (in old statutes it is a chapter)."""
_HALF_DAY = r"(?:\s?([AaPp])\.?\s?[Mm]\b\.?)"
_CLOCK = re.compile(rf"(?<![\d:.,])([01]?\d|2[0-4]):([0-5]\d)(?::([0-5]\d)(?:\.\d+)?)?(?![\d:]){_HALF_DAY}?")
_CLOCK_H = re.compile(r"(?<![\w.,:])([01]?\d|2[0-4])h([0-5]\d)(?!\w|[.,]\d)")
_TAKEN = re.compile(
    r"(?<![\d:.,])(?<!\bat )(?<!\buntil )(?<!\bsince )(\d?\d):([0-5]\d):([0-5]\d)(?![\d:]|\.\d|\s?[AaPp]\.?[Mm]\b)"
)
"""Hours, minutes and seconds that something took; a time of day has a word before it, or two figures of the hour."""
_TOOK = re.compile(r"\b(?:in|of|took|takes|lasts?|lasted|for|time|ran|runs|within|under|just|over)[:\s]\s?$")
_BOOKS = (
    "Genesis|Exodus|Leviticus|Numbers|Deuteronomy|Joshua|Judges|Ruth|Samuel|Kings|Chronicles|Ezra|Nehemiah|Esther|Job|"
    "Psalms?|Proverbs|Ecclesiastes|Isaiah|Jeremiah|Ezekiel|Daniel|Hosea|Joel|Amos|Jonah|Micah|Matthew|Mark|Luke|John|"
    "Acts|Romans|Corinthians|Galatians|Ephesians|Philippians|Colossians|Thessalonians|Timothy|Titus|Hebrews|James|"
    "Peter|Jude|Revelation|Gita|Qur'?an|Koran|Surah"
)
_VERSES = re.compile(
    rf"\b({_BOOKS}) (\d{{1,3}}):(\d{{1,3}})(?:\s?[-–]\s?(\d{{1,3}}))?(?![\d:]|[.,]\d|\s?[AaPp]\.?[Mm]\b)"
)
_HOUR_OF_HALF_DAY = re.compile(rf"(?<![\d:.,/$£€-])(1[0-2]|0?[1-9])(?=\s?[AaPp]\.?\s?[Mm]\b){_HALF_DAY}")
_DOTTED_TIME = re.compile(rf"(?<![\d:.,$£€])(1[0-2]|0?[1-9])\.([0-5]\d){_HALF_DAY}")
_TIME_RANGE = re.compile(r"(?:(?<=\d:\d\d)|(?<=[ap]\.m\.)|(?<=\d[AaPp][Mm])|(?<=\d [AaPp][Mm]))\s?[-–]\s?(?=\d)")
_ZONE = re.compile(rf"\s+(?:{MONTH}|[A-Z][a-z]+day|Eastern|Central|Mountain|Pacific|Greenwich|[A-Z]{{2,}})\b")

ZONES = table(
    """
    PST=Pacific_Standard_Time PDT=Pacific_Daylight_Time PT=Pacific_Time MST=Mountain_Standard_Time
    MDT=Mountain_Daylight_Time MT=Mountain_Time CST=Central_Standard_Time CDT=Central_Daylight_Time CT=Central_Time
    EST=Eastern_Standard_Time EDT=Eastern_Daylight_Time ET=Eastern_Time GMT=Greenwich_Mean_Time
    BST=British_Summer_Time CET=Central_European_Time CEST=Central_European_Summer_Time IST=Indian_Standard_Time
    UTC=U_T_C AEST=Australian_Eastern_Standard_Time AEDT=Australian_Eastern_Daylight_Time
    NZST=New_Zealand_Standard_Time NZDT=New_Zealand_Daylight_Time JST=Japan_Standard_Time KST=Korea_Standard_Time
    SGT=Singapore_Time HKT=Hong_Kong_Time MSK=Moscow_Time EET=Eastern_European_Time
    EEST=Eastern_European_Summer_Time WET=Western_European_Time AKST=Alaska_Standard_Time AKDT=Alaska_Daylight_Time
    HST=Hawaii_Standard_Time SAST=South_African_Standard_Time PKT=Pakistan_Standard_Time EAT=East_Africa_Time
    WAT=West_Africa_Time
    """
)
_AFTER_TIME = re.compile(rf"(\d|(?<![A-Za-z])[AaPp]\.?[Mm]\.?)(\s)({'|'.join(ZONES)})\b")
_DURATION = re.compile(r"(?<![\w.,])(?:\d+\s?(?:d|h|hrs?|m|min|s|sec)\b\s?|\d+(?:d|h|m|s)(?=\d)){2,}(?!\w|\.\d)")
_DURATION_PART = re.compile(r"(\d+)\s?([dhms])[a-z]*")
_OF_DURATION = table("d=day h=hour m=minute s=second")
_CENTURY_DECADE = re.compile(r"\b([12]\d)(\d0)(?:'s|s)\b")
_DECADE = re.compile(r"(?<![\w'.,])'?([2-9]0)(?:'s|s)\b")
_FIRST_DECADES = re.compile(r"(?<![\w'.,])(?:'?(00)|'10)(?:'s|s)\b")
_SHORT_YEAR = re.compile(r"(?<![\w'])'(\d\d)(?![\d'])(?!s\b)")
_YEARS_OF_ERA = re.compile(
    r"(?<![\d.,])(\d{3,4})(?=(?:(?:\s?[-–]\s?| to )\d{1,4})? (?:B\.\s?C\.|A\.\s?D\.|BCE?\b|AD\b|CE\b))"
    r"|(?<=A\.D\. )(\d{3,4})\b|(?<=AD )(\d{3,4})\b"
)
_EARLY_YEAR = re.compile(
    r"(?<=\b[Ii]n )(\d{3})(?=,(?! \d)|\.$|\.\s|\s(?:[A-Z]|the\b|he\b|she\b|they\b|it\b|his\b|her\b))"
    r"|(?<=\byear )(\d{3})\b(?!\s?[-–]\d)"
)


def dates_and_times(text: str) -> str:
    """Dates, times and years that can't be anything else; a number alone is left to ``numerals``.

    A day is read as written: ``May 4`` as "May four", ``May 4th`` and a date in figures alone with an ordinal.
    Of a date in figures, the month comes first unless it can't.

    >>> dates_and_times("On Nov. 22, 1963, at 12:30 p.m.")
    'On November 22, nineteen sixty-three, at twelve thirty P M.'
    >>> dates_and_times("From 2024-03-05 to 12/25/1999, in the 1960s.")
    'From March fifth, twenty twenty-four to December twenty-fifth, nineteen ninety-nine, in the nineteen sixties.'
    """
    # From long forms to short ones: a full date must be read before its year or its month alone could be.
    text = _VERSES.sub(_read_verses, text)
    text = _CLOCK_H.sub(r"\1:\2", text)
    text = _TAKEN.sub(_time_taken, text)
    text = _CENTURY.sub(" century", text)
    text = _LIFE.sub(lambda match: f"{_OF_LIVES.get(match[1], 'circa')} ", text)
    text = _SHORT_MONTH.sub(lambda match: SHORT_MONTHS[next(filter(None, match.groups()))], text)
    text = _NAMES_RANGE.sub(_range_of_names, text)
    text = _DAYS_LIST.sub(_list_of_days, text)
    text = _DAY_OF_TIME.sub(lambda match: SHORT_DAYS[match[1]], text)
    text = _SHORT_DAY.sub(lambda match: f"{SHORT_DAYS[match[1] or match[2] or match[3]]},", text)
    text = _NAMED.sub(lambda match: f"{ordinal(int(match[1]))} {match[2]} {match[3]}", text)
    if "/" in text:
        text = _DATES_RANGE.sub(_range_of_dates, text)
        for pattern in _DATED:
            text = pattern.sub(_day_and_month, text)
    text = _ISO.sub(lambda match: spoken_date(int(match[1]), int(match[3]), int(match[4])), text)
    text = _NUMERIC.sub(_numeric, text)
    text = _FISCAL.sub(_fiscal, text)
    text = _RANGE_OF_ERA.sub(r"\1 to ", text)
    text = _STOPWATCH.sub(_stopwatch, text)
    text = _DAY_MONTH.sub(lambda match: f"{ordinal(int(match[1]))} {match[2]}", text)
    text = _MONTH_YEAR.sub(lambda match: match[1] + year(int(match[2])), text)
    text = _DURATION.sub(_duration, text)
    text = _AFTER_TIME.sub(lambda match: f"{match[1]} {ZONES[match[3]]}" if _is_time(match) else match[0], text)
    text = _TIME_RANGE.sub(" to ", text)
    for pattern in (_CLOCK, _DOTTED_TIME, _HOUR_OF_HALF_DAY):
        text = pattern.sub(_time, text)
    text = _CENTURY_DECADE.sub(lambda match: plural(year(int(match[1] + match[2]))), text)
    text = _DECADE.sub(lambda match: plural(cardinal(int(match[1]))), text)
    text = _FIRST_DECADES.sub(lambda match: "two thousands" if match[1] == "00" else "twenty tens", text)
    text = _SHORT_YEAR.sub(lambda match: year_of_century(match[1]), text)
    for pattern in (_YEARS_OF_ERA, _EARLY_YEAR):
        text = pattern.sub(lambda match: year(int(match[0])), text)
    return text


def calendar_names(text: str) -> str:
    """Short names of days and months that no figure follows, and ranges of them.

    >>> calendar_names("Open Mon-Sat and from Jan. to Sept., since Nov; on Sun Road I met Jan.")
    'Open Monday to Saturday and from January to September, since November; on Sun Road I met Jan.'
    """
    text = _NAMES_RANGE.sub(_range_of_names, text)
    text = _DAYS_LIST.sub(_list_of_days, text)
    if _OTHER_DAY.search(text):
        text = _WEEKEND.sub(lambda match: SHORT_DAYS[match[1]], text)
    text = _MONTH_OF_DAY.sub(lambda match: SHORT_MONTHS[match[1]], text)
    text = _MONTH_STOPPED.sub(lambda match: SHORT_MONTHS[match[1] or match[2]], text)
    return _AFTER_PREPOSITION.sub(
        lambda match: f"{match[1]}{SHORT_MONTHS[match[2]]}" if match[1] else f"{match[3]}{SHORT_DAYS[match[4]]}", text
    )


def _range_of_names(match: re.Match[str]) -> str:
    known = SHORT_DAYS | SHORT_MONTHS
    return " to ".join(known.get(one, one) for one in match.groups() if one)


def _list_of_days(match: re.Match[str]) -> str:
    return re.sub(r"([A-Z][a-z]+)\.?", lambda one: SHORT_DAYS[one[1]], match[0]).replace("/", " ")


def _fiscal(match: re.Match[str]) -> str:
    """``2023/24`` is two years, if the second is the year after the first."""
    if (int(match[1]) + 1) % 100 != int(match[2]):
        return match[0]
    return f"{year(int(match[1]))} {year_of_century(match[2])}"


def _stopwatch(match: re.Match[str]) -> str:
    """``3:42.5``: minutes and seconds; a time of day has no decimals."""
    minutes, seconds = int(match[1]), decimal(f"{int(match[2])}{match[3]}")
    return f"{cardinal(minutes)} minute{'' if minutes == 1 else 's'} {seconds} seconds"


def _time_taken(match: re.Match[str]) -> str:
    """``2:05:38`` after a word such as "in" or "took" is how long something took."""
    if not _TOOK.search(match.string[max(0, match.start() - 12) : match.start()]):
        return match[0]
    amounts = zip((int(part) for part in match.groups()), ("hour", "minute", "second"), strict=True)
    said = [f"{cardinal(amount)} {unit}{'' if amount == 1 else 's'}" for amount, unit in amounts if amount]
    return " and ".join(filter(None, (" ".join(said[:-1]), *said[-1:]))) or match[0]


def _read_verses(match: re.Match[str]) -> str:
    """``Luke 2:1-14``, a chapter and its verses."""
    book, chapter, first, last = match.groups()
    to = f" to {cardinal(int(last))}" if last else ""
    return f"{book} {cardinal(int(chapter))}, {cardinal(int(first))}{to}"


def year_of_century(two: str) -> str:
    """
    >>> year_of_century("64"), year_of_century("07")
    ('sixty-four', 'oh seven')
    """
    return f"oh {cardinal(int(two))}" if two[0] == "0" else cardinal(int(two))


def spoken_date(of_year: int, month: int, day: int) -> str:
    """
    >>> spoken_date(2024, 3, 5)
    'March fifth, twenty twenty-four'
    """
    return f"{_say_day(month, day)}, {year(of_year)}"


def _duration(match: re.Match[str]) -> str:
    """``2h 5m 39s``: two parts at least, each of a smaller unit than the one before; elsewhere m are meters."""
    parts = _DURATION_PART.findall(match[0])
    order = ["dhms".index(unit) for _, unit in parts]
    if order != sorted(set(order)):
        return match[0]
    said = [f"{cardinal(int(amount))} {_OF_DURATION[unit]}{'' if amount == '1' else 's'}" for amount, unit in parts]
    return " ".join(said) + (" " if match[0][-1].isspace() else "")


def _is_time(match: re.Match[str]) -> bool:
    """Return whether a time of day ends where the name of a zone begins."""
    before = match.string[max(0, match.start(2) - 12) : match.start(2)]
    return re.search(r"(?:\d:[0-5]\d(?::[0-5]\d)?|\d\s?[AaPp]\.?\s?[Mm]\.?)$", before) is not None


def _day_and_month(match: re.Match[str]) -> str:
    """``On 5/6``: the month comes first unless it can't."""
    said = _say_month_and_day(match[2], match[3])
    if said is None:
        return match[0]
    return match[1] + (said.removeprefix("the ") if match[1].lower() in ("the ", "my ", "our ", "your ") else said)


def _say_month_and_day(one: str, other: str) -> str | None:
    first, second = int(one), int(other)
    month, day = _order_month_and_day(first, second)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return None
    if day <= 12 and day != month:
        report_guess(f"3/5 with the {'day' if has_day_first() else 'month'} first")
    return _say_day(month, day)


def _order_month_and_day(first: int, second: int) -> tuple[int, int]:
    """In the locale's order, unless that can't be a month."""
    day_first = first > 12 or (has_day_first() and second <= 12)
    return (second, first) if day_first else (first, second)


def _say_day(month: int, day: int) -> str:
    return f"the {ordinal(day)} of {MONTHS[month - 1]}" if has_day_first() else f"{MONTHS[month - 1]} {ordinal(day)}"


def _range_of_dates(match: re.Match[str]) -> str:
    """``12/23–1/2``: dates, unless both may be fractions."""
    pairs = match.group(1, 2), match.group(3, 4)
    # Fractions have a dash or "to" between them.
    if not _OF_TIME.search(match[0]) and all(
        int(above) < int(below) and int(below) in (2, 3, 4, 8, 16) for above, below in pairs
    ):
        return match[0]
    first, last = (_say_month_and_day(*pair) for pair in pairs)
    return match[0] if first is None or last is None else f"{first} to {last}"


def _numeric(match: re.Match[str]) -> str:
    first, second = int(match[1]), int(match[3])
    # American order, unless the first can't be a month; with full stops (5.6.2024) European.
    month, day = (second, first) if match[2] == "." else _order_month_and_day(first, second)
    if not (1 <= month <= 12 and 1 <= day <= 31):
        return match[0]
    if match[2] != "." and day <= 12 and day != month:
        report_guess(f"3/5/2024 with the {'day' if has_day_first() else 'month'} first")
    if len(match[4]) == 4:
        return spoken_date(int(match[4]), month, day)
    return f"{_say_day(month, day)}, {year_of_century(match[4])}"


def _time(match: re.Match[str]) -> str:
    """A time of day; its groups are the hour, minutes, seconds (of _CLOCK), and a or p."""
    parts = [one for one in match.groups()[:-1] if one is not None]
    half = match[match.re.groups]
    hour, minute = int(parts[0]), int(parts[1]) if len(parts) > 1 else 0
    said = [cardinal(hour)]
    if minute:
        said.append(year_of_century(f"{minute:02}"))
    # 8:00 is eight o'clock, 14:00 fourteen hundred; with a.m. or p.m. neither word is spoken.
    elif len(parts) > 1 and half is None and len(parts) == 2:
        said.append("o'clock" if 1 <= hour <= 12 else "hundred")
    if len(parts) > 2:
        seconds = int(parts[2])
        if seconds:
            said.append(f"and {cardinal(seconds)} second{'' if seconds == 1 else 's'}")
    if half is not None:
        said.append(f"{half.upper()} M{_stop(match)}")
    return " ".join(said)


def _stop(match: re.Match[str]) -> str:
    """Return the full stop after a time that ends a sentence: the text ends, or a capital not of a day or a zone."""
    if not match[0].endswith("."):
        return ""
    rest = match.string[match.end() : match.end() + 20]
    return "." if not rest.strip(" \"')") or (re.match(r"\s+[\"'(]?[A-Z]", rest) and not _ZONE.match(rest)) else ""
