"""English text as spoken, in words and punctuation: characters in one form, then rules for each written form.

Each rule rewrites one class of written forms as words, which later rules leave alone. So rules
for the longest forms come first: an address before its dots, a date before its numbers, a measure before its unit's
letters. Figures are read as in the recordings of LJ Speech: "one hundred ninety-nine" without "and", "May four" where
"May 4" is written, "thirteen dollars, eighty-seven cents", years by their hundreds.

Characters that English can't read, as those of another script, are an error.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container

from vaak.core.errors import DataError
from vaak.text.speech.abbreviations import abbreviations, find_unspoken, symbols
from vaak.text.speech.addresses import addresses
from vaak.text.speech.codes import codes
from vaak.text.speech.currencies import CURRENCIES
from vaak.text.speech.date_forms import date_forms
from vaak.text.speech.dates_and_times import calendar_names, dates_and_times
from vaak.text.speech.figures import code, numerals
from vaak.text.speech.identifiers import compile_cues, read_after, read_digits
from vaak.text.speech.initialisms import letters, spell_small
from vaak.text.speech.measures import bare_units, units
from vaak.text.speech.money import money
from vaak.text.speech.operators import GREEK, READ_AS_OPERATORS, greek_name, operators
from vaak.text.speech.ranges import ranges
from vaak.text.speech.ratios import VULGAR
from vaak.text.speech.roman import roman_numerals
from vaak.text.speech.short_words import short_words
from vaak.text.speech.unspoken import leave_out_markup
from vaak.text.speech.words import Locale, digits, grouped, read_in_locale, table

FOLDED = table(
    """
    ⁄=/ ∕=/ ˚=° º=° µ=μ ∗=* ․=. ß=ss æ=ae Æ=Ae œ=oe Œ=Oe ø=o Ø=O ł=l Ł=L đ=d Đ=D þ=th Þ=Th ð=th Ð=Th ı=i ŋ=ng Ŋ=Ng
    """
) | {
    **dict.fromkeys("‘’‚‛`´ʼʹ", "'"),
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‐‑‒⁃", "-"),
    **dict.fromkeys("―⸺⸻", "—"),
    **dict.fromkeys("¡¿", ""),
}
"""Characters that are read as others."""
READ_CHARACTERS = READ_AS_OPERATORS | frozenset("£€¥₹₩₽¢°–—…′″×÷±≈≠≤≥−§¶●▪■◦‣►©®™²³¹½¼¾⅓⅔⅛⅜⅝⅞·•†‡√∞αβγδπμΩ№‰")
"""Characters outside ASCII that a rule reads; the Greek ones are read by name."""
READ_CHARACTERS |= {one for mark in CURRENCIES for one in mark if not one.isascii()}
ACCENTED = re.compile(r"\b(?:r[ée]sumé|exposé|rosé|pâté|lamé)s?\b", re.IGNORECASE)
"""Words that without their accents are others; they keep them."""
_RESUME = re.compile(r"\b(r)e(?=sumé)", re.IGNORECASE)
ACCENTED_LETTERS = "éâÉÂ"
_SPACES = re.compile(r"\s+")
_SHOWN = 60


def cleaned(text: str, *, drop_unknown: bool = False, kept: Container[str] = ()) -> str:
    """``text`` in the characters that the rules know, in one line.

    Accents are dropped (café, Zoë), except where another word would be left (résumé); control and format characters
    too; line breaks become spaces. Characters that are ``kept`` stay.

    Raises DataError for letters of another script and for unknown symbols, unless these are to be dropped; the message
    has them and the text.

    >>> cleaned("“Café”\\u200b …\\tat Zoë’s")
    '"Cafe" … at Zoe\\'s'
    """
    # The usual case, and much faster than looking at each character.
    if text.isascii() and text.isprintable():
        return _SPACES.sub(" ", text).strip()
    text = unicodedata.normalize("NFC", text)
    # Before folding, which would refuse Greek letters as another script.
    text = GREEK.sub(lambda found: f" {greek_name(found[0])} ", text)
    text = _RESUME.sub(r"\1é", text)
    accented = {index for word in ACCENTED.finditer(text) for index in range(*word.span())}
    found: list[str] = []
    foreign: dict[str, None] = {}
    for index, character in enumerate(text):
        folded = character if index in accented or character in kept else _folded(character)
        if folded is None:
            foreign[character] = None
        else:
            found.append(folded)
    if foreign and not drop_unknown:
        # of letters, a Unicode name starts with the script
        letters = [one for one in foreign if unicodedata.category(one)[0] in "LM"]
        scripts = {unicodedata.name(one, "").split(" ")[0].capitalize() for one in letters}
        named = ", ".join(sorted(script for script in scripts if script))
        characters = " ".join(list(foreign)[:12]) + (" …" if len(foreign) > 12 else "")
        said = f"{characters} ({named})" if named else characters
        raise DataError(f"{shown(text)}: {said} can't be read in English; replace or remove them")
    return _SPACES.sub(" ", "".join(found)).strip()


def without_accents(text: str) -> str:
    """
    >>> without_accents("résumé")
    'resume'
    """
    return "".join(one for one in unicodedata.normalize("NFKD", text) if not unicodedata.combining(one))


def shown(text: str) -> str:
    """A text as an error shows it, cut if it is long."""
    line = "".join(one if one.isprintable() else " " for one in text)
    return repr(line if len(line) <= _SHOWN else f"{line[: _SHOWN - 1]}…")


def _folded(character: str) -> str | None:
    """Return what a character is read as; None for what isn't known."""
    if character in FOLDED:
        return FOLDED[character]
    category = unicodedata.category(character)
    if category.startswith("Z") or character in "\t\n\r\v\f\x85":
        return " "
    if character in READ_CHARACTERS or (character.isascii() and category != "Cc"):
        return character
    # Invisible characters are dropped; marks without a letter, and unassigned or private ones, are unknown.
    if category in ("Cc", "Cf", "Mn", "Me", "Co", "Cn", "Cs"):
        return "" if category in ("Cc", "Cf") or character == "\ufe0f" else None
    plain = "".join(
        FOLDED.get(one, one) for one in unicodedata.normalize("NFKD", character) if not unicodedata.combining(one)
    )
    return plain if plain.isascii() and plain else None


_NUMBER_WORDS = r"no\.?|No\.?|number|ID|[Rr]ef(?:erence)?\.?|code|#|is|was|to"
_NAMED_BY_NUMBER = (
    r"[Oo]rder|[Cc]ase|[Tt]icket|[Ii]nvoice|[Rr]eference|[Rr]ef\.?|[Pp]assport|[Ss]erial|[Tt]racking|[Cc]ustomer|"
    r"[Bb]ooking|[Rr]egistration|[Ll]icen[cs]e|[Cc]ard|[Mm]ember(?:ship)?|[Uu]ser|[Ii]tem"
)
CUES = (
    compile_cues(
        r"EIN|NPI|ABN|BSB|MRN|"
        r"PINs?|OTP|CVV|VIN|IBAN|[Rr]outing|[Ss]ort code|ISBN(?:-1[03])?:?|ISSN|SSN|IMEI|PNR|UPC|EAN|"
        r"[Aa]adhaar|A/C|[Aa]ccount|[Pp]asscode|[Pp]assword|"
        r"(?:[Pp]ost(?:al)?|[Aa]ccess|[Aa]rea|[Dd]ialling|[Vv]erification|[Ss]ecurity|[Oo]ne-time|[Tt]he|[Yy]our) code|"
        r"(?:[Zz]ip|ZIP|PIN)(?: [Cc]ode)?|(?:[Cc]ard|[Aa]ccount|[Nn]umber|[Mm]obile|[Pp]hone) ending(?: in| with)?",
        _NAMED_BY_NUMBER,
        _NUMBER_WORDS,
    ),
    compile_cues(
        r"IDs?",
        r"[Ee]mployee|[Ss]tudent|[Pp]atient|[Pp]olicy|[Cc]laim|[Cc]onfirmation|[Cc]ontract|[Tt]ransaction|[Pp]roduct|"
        r"[Bb]atch|[Ll]ot|[Ff]ile|[Jj]ob|[Pp]ermit|[Pp]arcel|[Rr]eceipt",
        r"(?:no\.?|No\.?|number|ID|[Rr]ef(?:erence)?\.?|code|#)(?:\s(?:is|was))?",
    ),
    compile_cues(r"[Ee]xt(?:ension|n)?\.?", "extension", r"no\.?|number|is|on", least=3),
    compile_cues(
        r"[Nn]umber|[Pp]hone|[Tt]elephone|[Mm]obile|[Ll]andline|[Ff]ax|[Tt]el\.?|[Cc]all|[Dd]ial|[Rr]ing|[Tt]ext|WhatsApp",
        r"[Oo]ur|[Mm]y",
        _NUMBER_WORDS,
        least=7,
    ),
)
"""Words before a number that is read digit by digit."""


_INDIAN_POSTCODE = re.compile(
    r"(?<=[a-z,] )(?<!\d )((?!Code|Section|Act|Rule|Case|Number|Order|Bill|Law)[A-Z][a-z]+(?:,| ?[-–])? ?)"
    r"([1-8]\d{5}|[1-8]\d\d \d{3})(?=$|[.,;:!?)]|\s(?:is|was|or|and|to|by|from)\b)"
)
"""Six figures after a name within a sentence: an Indian postcode, which a count without commas resembles."""
_SHORT_CODE = re.compile(
    r"(\b(?:SMS|[Tt]ext(?:ed|ing)?|[Mm]essage|[A-Z]{3,})\b(?: [\w']+){0,4} (?:to|on|at) "
    r"|\b[Tt]ext )(\d{4,6})(?!\w|[ .,-]\d)"
)

_UNEQUAL_GROUPS = re.compile(
    rf"(\b(?:{_NAMED_BY_NUMBER}) )(?!\d{{1,2}}-\d{{1,2}}-\d{{4}}\b|\d{{4}}-\d\d-\d\d\b)"
    r"(\d{2,8}-\d{3,10}|\d{1,8}(?:-\d{1,10}){2,})(?![\w-]|[.,]\d)"
)
"""Groups after a word such as reference (``774-20891``), which seldom have equal lengths, as the ends of a range do."""
_HELPLINE = re.compile(
    r"(\b(?:[Hh]elp|[Hh]ot|[Ll]ife|[Tt]ip|[Cc]risis |[Ee]mergency )[ -]?lines?,?(?: number)?(?: is| on| at|:)? )"
    r"(\d{3,6})(?!\w|[.,-]\d)"
    r"|(\b(?:answer(?:s|ed)?|[Rr]each(?:ed|able)?|available|[Hh]elp|contact)(?: \w+){0,2} (?:on|at) )"
    r"(1\d\d|[2-9]11|98[78]|999|000)(?=[.,;!?]*$|[.,;!?]? (?:for|or|and|to|in|at|if|when|from)\b)"
)
"""Numbers of three figures and more that are dialled without a word such as *call* before them."""
_STAR_CODE = re.compile(r"(?<![\w*#])\*\d{1,6}(?:\*\d+)*#|(?<=\b[Dd]ial )[*#]+\d{1,6}(?:\*\d+)*#?(?!\w)")
_FLIGHT = re.compile(
    r"(\b[Ff]lights?\b(?: (?:is|was|no\.?|number|on|are))? )([A-Z]{2}|[A-Z]\d|\d[A-Z])[ -]?(\d{1,4})(?![\w-])"
)
_TRAIN = re.compile(r"(\b[Tt]rains? (?:[Nn]os?\.? |number )?)(\d{5})(?!\w|[.,-]\d)")


_CITY_POSTCODE = re.compile(r"(, (?:NYC|[A-Z][a-z]+(?: [A-Z][a-z]+)?),? )(\d{5})(?=[.,;)]?\s*$|[.;)])")
"""Five figures at the end of an address."""
_QUOTED_REFERENCE = re.compile(
    r"(\b(?:[Qq]uot(?:e|ed|ing)|[Uu]s(?:e|ing)|[Ee]nter|[Mm]ention) (?:reference|ref\.?|code) )(\d{4,12})(?!\w|[.,-]\d)"
)
_HEXADECIMAL = re.compile(r"(?<!\w)0[xX]([\dA-Fa-f][\dA-Fa-f_]{1,18})(?!\w)")


_HASH = re.compile(r"(?<!\w)[\da-f]{12,64}(?!\w)")
_PLATE = re.compile(r"\b([A-Z]{2})[ -]?(\d{2})[ -]?([A-Z]{1,3})[ -]?(\d{4})(?![\w-])")
"""An Indian vehicle's number plate: a state, a district, a series and a number."""


def _numbers_by_digit(text: str) -> str:
    text = _PLATE.sub(
        lambda match: f"{' '.join(match[1])} {digits(match[2])} {' '.join(match[3])} {digits(match[4])}", text
    )
    # Characters that a form has are much faster to look for than the form.
    if "x" in text or "X" in text:
        text = _HEXADECIMAL.sub(lambda match: f"zero X {_spell(match[1].replace('_', ''))}", text)
    text = _HASH.sub(_read_hash, text)
    if "*" in text or "#" in text:
        text = _STAR_CODE.sub(_read_star_code, text)
    if "light" in text:
        text = _FLIGHT.sub(_read_flight, text)
    text = _UNEQUAL_GROUPS.sub(_read_groups, text)
    text = _HELPLINE.sub(lambda match: (match[1] or match[3]) + digits(match[2] or match[4]), text)
    for pattern in (_INDIAN_POSTCODE, _CITY_POSTCODE, _SHORT_CODE, _TRAIN, _QUOTED_REFERENCE):
        text = pattern.sub(lambda match: match[1] + digits(match[2]), text)
    for cues in CUES:
        text = read_after(text, cues, digits, "")
    return read_digits(text, digits, "")


def _read_flight(match: re.Match[str]) -> str:
    return f"{match[1]}{code(match[2])} {digits(match[3]) if len(match[3]) > 2 else grouped(match[3])}"


def _read_hash(match: re.Match[str]) -> str:
    """A hash of letters and figures; of figures alone it's a number."""
    return match[0] if match[0].isdecimal() or match[0].isalpha() else _spell(match[0])


def _spell(code: str) -> str:
    """Letters and figures one by one."""
    return " ".join(digits(one) if one.isdecimal() else one.upper() for one in code)


def _read_star_code(match: re.Match[str]) -> str:
    """``*121#``, which a telephone dials."""
    said = [{"*": "star", "#": "hash"}.get(one) or digits(one) for one in match[0]]
    return " ".join(said)


def _read_groups(match: re.Match[str]) -> str:
    groups = match[2].split("-")
    if len(groups) == 2 and len(groups[0]) == len(groups[1]):
        return match[0]
    return match[1] + ", ".join(map(digits, groups))


RULES = (
    addresses,
    short_words,
    ranges,
    codes,
    operators,
    date_forms,
    _numbers_by_digit,
    dates_and_times,
    calendar_names,
    money,
    abbreviations,
    roman_numerals,
    units,
    bare_units,
    numerals,
    symbols,
    letters,
)
OF_FIGURES = (ranges, date_forms, _numbers_by_digit, dates_and_times, money, units, numerals)
"""Rules that change nothing in a text without figures."""
_FIGURE = re.compile(rf"[0-9{''.join(VULGAR)}]")
_SPACE_BEFORE = re.compile(r"\s+(?=[,;:!?)…]|\.(?!\w))|(?<=\()\s+")


def normalise(text: str, kept: Container[str] = (), unspoken: list[str] | None = None, locale: Locale = "en-US") -> str:
    """``text`` as spoken: words and punctuation, without figures and symbols; characters ``kept`` stay.

    Symbols that no rule reads are added to ``unspoken``.

    Letters that are read by their names are single capitals. Numbers and dates in figures are read as in the locale.

    Raises DataError for letters of another script and for unknown symbols.

    >>> normalise("Dr. Roe paid £372 on Oct. 18, 1939, at 11:40 a.m.")
    'Doctor Roe paid three hundred seventy-two pounds on October eighteen, nineteen thirty-nine, at eleven forty A M.'
    """
    text = cleaned(leave_out_markup(text, unspoken), kept=kept)
    with read_in_locale(locale):
        text = _apply_rules(text, unspoken)
    return _SPACE_BEFORE.sub("", _SPACES.sub(" ", text)).strip()


def _apply_rules(text: str, unspoken: list[str] | None) -> str:
    figures, is_small = False, text.islower()
    for rule in RULES:
        # Last, since earlier rules read short words and units.
        if rule is letters and is_small:
            text = spell_small(text)
        # Earlier rules may write figures (H₂O becomes H2O), so look again until there are some.
        figures = figures or _FIGURE.search(text) is not None
        # Just before the rule that removes them: the rest has been read by no rule.
        if rule is symbols and unspoken is not None:
            unspoken.extend(find_unspoken(text))
        if figures or rule not in OF_FIGURES:
            text = rule(text)
    return text
