"""Hindi as spoken: figures, dates, times, money and abbreviations in words, in Devanagari.

Each number below a hundred has its own word; above, they are counted in hundreds, thousands, lakhs (10⁵),
crores (10⁷), arabs (10⁹) and kharabs (10¹¹). Spellings are those of Unicode's CLDR (``spellout-cardinal`` of hi), but
for पंद्रह and हज़ार, which are more usual now. Of 15/8/1947, the day comes first.
"""

from __future__ import annotations

import re

from vaak.text.speech import hindi_forms
from vaak.text.speech.hindi_money import SIGNS
from vaak.text.speech.hindi_short_words import BEGINS, ENDED, HAS_SHORT_WORD, SHORT_WORDS, nfc
from vaak.text.speech.hindi_units import UNITS_ALONE
from vaak.text.speech.identifiers import read_after, read_digits
from vaak.text.speech.words import RewriteRule, rewrite, table, words

_nfc = nfc


SMALL = words(
    _nfc(
        """
        शून्य एक दो तीन चार पाँच छह सात आठ नौ
        दस ग्यारह बारह तेरह चौदह पंद्रह सोलह सत्रह अठारह उन्नीस
        बीस इक्कीस बाईस तेईस चौबीस पच्चीस छब्बीस सत्ताईस अट्ठाईस उनतीस
        तीस इकतीस बत्तीस तैंतीस चौंतीस पैंतीस छत्तीस सैंतीस अड़तीस उनतालीस
        चालीस इकतालीस बयालीस तैंतालीस चौवालीस पैंतालीस छियालीस सैंतालीस अड़तालीस उनचास
        पचास इक्यावन बावन तिरेपन चौवन पचपन छप्पन सत्तावन अट्ठावन उनसठ
        साठ इकसठ बासठ तिरेसठ चौंसठ पैंसठ छियासठ सड़सठ अड़सठ उनहत्तर
        सत्तर इकहत्तर बहत्तर तिहत्तर चौहत्तर पचहत्तर छिहत्तर सतहत्तर अठहत्तर उनासी
        अस्सी इक्यासी बयासी तिरासी चौरासी पचासी छियासी सत्तासी अट्ठासी नवासी
        नब्बे इक्यानबे बानबे तिरानबे चौरानबे पंचानबे छियानबे सत्तानबे अट्ठानबे निन्यानबे
        """
    )
)
"""The words of 0 to 99."""
POWERS_OF_TEN = tuple(
    (10**power, _nfc(name))
    for power, name in ((11, "खरब"), (9, "अरब"), (7, "करोड़"), (5, "लाख"), (3, "हज़ार"), (2, "सौ"))
)
MOST_DIGITS = 13
"""Digits of the longest number that is read as one; longer ones are read digit by digit."""
MONTHS = words(_nfc("जनवरी फ़रवरी मार्च अप्रैल मई जून जुलाई अगस्त सितंबर अक्टूबर नवंबर दिसंबर"))
_MONTHS_WRITTEN = "|".join((*MONTHS, *words(_nfc("फरवरी सितम्बर अक्तूबर नवम्बर दिसम्बर"))))
_ROOTS = {1: "पहल", 2: "दूसर", 3: "तीसर", 4: "चौथ", 6: "छठ"}
_ORDINAL_ENDINGS = table("वाँ=ा वां=ा वा=ा वीं=ी वी=ी वें=े वे=े ला=ा ली=ी ले=े रा=ा री=ी रे=े था=ा थी=ी थे=े ठा=ा ठी=ी ठे=े")
"""Endings of ordinals in figures (5वाँ, 1ला), and those of their irregular words."""
_SYMBOLS = (
    {
        one: f" {_nfc(said)} "
        for one, said in table("&=और +=प्लस @=ऐट ×=गुणा ÷=भाग %=प्रतिशत °=डिग्री #=हैश /=बटा ₹=रुपये").items()
    }
    | {"=": " बराबर "}
    | {sign: f" {name} " for sign, name in SIGNS.items()}
)
_SYMBOLS |= dict.fromkeys(hindi_forms.DROPPED, " ")
_N = r"(?<![\d.,])(?P<number>\d+(?:,\d+)*(?:\.\d+)?)"


def cardinal(number: int) -> str:
    """The words of a whole number.

    >>> cardinal(46), cardinal(1947), cardinal(12_50_000)
    ('छियालीस', 'एक हज़ार नौ सौ सैंतालीस', 'बारह लाख पचास हज़ार')
    """
    if number < 100:
        return SMALL[number]
    size, name = next(unit for unit in POWERS_OF_TEN if unit[0] <= number)
    count, rest = divmod(number, size)
    return f"{cardinal(count)} {name}" + (f" {cardinal(rest)}" if rest else "")


def digits(text: str) -> str:
    """The words of each digit; other characters are left out."""
    return " ".join(SMALL[int(one)] for one in text if one.isdigit())


def decimal(text: str) -> str:
    """A number as written, in ASCII digits; one that begins with 0, or is very long, is read digit by digit.

    >>> decimal("1,25,000"), decimal("3.14"), decimal("007")
    ('एक लाख पच्चीस हज़ार', 'तीन दशमलव एक चार', 'शून्य शून्य सात')
    """
    whole, point, after = text.replace(",", "").partition(".")
    by_digit = len(whole) > MOST_DIGITS or (len(whole) > 1 and whole.startswith("0"))
    said = digits(whole) if by_digit else cardinal(int(whole))
    return f"{said} दशमलव {digits(after)}" if point else said


def year(number: int) -> str:
    """
    >>> year(1947), year(1900), year(2024)
    ('उन्नीस सौ सैंतालीस', 'उन्नीस सौ', 'दो हज़ार चौबीस')
    """
    hundreds, rest = divmod(number, 100)
    if not 11 <= hundreds <= 19:
        return cardinal(number)
    return f"{SMALL[hundreds]} सौ" + (f" {SMALL[rest]}" if rest else "")


def ordinal(number: int, ending: str = "वाँ") -> str:
    """
    >>> ordinal(5), ordinal(1, "ली"), ordinal(21, "वीं")
    ('पाँचवाँ', 'पहली', 'इक्कीसवीं')
    """
    if number in _ROOTS:
        return _ROOTS[number] + _ORDINAL_ENDINGS[ending]
    # The hundredth, not the one hundredth.
    said = dict(POWERS_OF_TEN).get(number) or cardinal(number)
    return said + (ending if ending.startswith("व") else f"व{_ORDINAL_ENDINGS[ending]}")


def date(day: str, month: str, number: str) -> str | None:
    """
    >>> date("15", "08", "1947")
    'पंद्रह अगस्त उन्नीस सौ सैंतालीस'
    """
    if not (1 <= int(day) <= 31 and 1 <= int(month) <= 12):
        return None
    return f"{cardinal(int(day))} {MONTHS[int(month) - 1]} {year(int(number))}"


def _time(found: re.Match[str]) -> str:
    hour, minute = int(found["hour"]), int(found["minute"])
    if hour > 24 or minute > 59:
        return found[0]
    return f"{cardinal(hour)} बजकर {cardinal(minute)} मिनट" if minute else f"{cardinal(hour)} बजे"


def _rupees(found: re.Match[str]) -> str:
    """₹1 is one rupee, ₹2.50 has paise, ₹5 करोड़ is a number of them."""
    scale, (whole, _, after) = found["scale"] or "", found["number"].replace(",", "").partition(".")
    if scale:
        return f"{decimal(found['number'])} {scale.strip()} रुपये"
    if len(after.rstrip("0")) > 2:
        return f"{decimal(found['number'])} रुपये"
    said = f"{decimal(whole)} {'रुपया' if int(whole) == 1 else 'रुपये'}"
    paise = int((after + "00")[:2]) if after else 0
    return f"{said} {cardinal(paise)} पैसे" if paise else said


def _quarters(found: re.Match[str]) -> str:
    """1½ and 2½ have their own words; others are a half more, a quarter more, or a quarter less than the next."""
    whole, part = int(found["whole"] or 0), found["part"]
    if not whole:
        return {"½": "आधा", "¼": "चौथाई", "¾": "तीन चौथाई"}[part]
    if part == "½":
        return {1: "डेढ़", 2: "ढाई"}.get(whole, f"साढ़े {cardinal(whole)}")
    if part == "¼":
        return "सवा" if whole == 1 else f"सवा {cardinal(whole)}"
    return f"पौने {cardinal(whole + 1)}"


_SCALE = _nfc(rf"(?P<scale>(?:\s*(?:हज़ार|हजार|लाख|करोड़|अरब|खरब|मिलियन|बिलियन|ट्रिलियन){ENDED}){{1,2}})?")
_ENDS = "|".join(sorted(_ORDINAL_ENDINGS, key=len, reverse=True))
RULES: tuple[RewriteRule, ...] = (
    (re.compile("\x02(\\d{4})\x03"), lambda found: year(int(found[1]))),
    (
        re.compile(r"(?<![\d/.-])(\d{1,2})([/.-])(\d{1,2})\2(\d{4})(?![\d/-])"),
        lambda found: date(found[1], found[3], found[4]) or found[0],
    ),
    (
        re.compile(r"(?<![\d-])(\d{4})-(\d{2})-(\d{2})(?![\d-])"),
        lambda found: date(found[3], found[2], found[1]) or found[0],
    ),
    (
        re.compile(rf"(?P<month>{_MONTHS_WRITTEN})(?P<gap>,?\s+)(?P<year>[12]\d{{3}})(?![\d,.]\d|\d)"),
        lambda found: f"{found['month']}{found['gap']}{year(int(found['year']))}",
    ),
    (
        re.compile(
            _nfc(rf"(?P<before>{BEGINS}(?:सन्|सन|वर्ष|ईस्वी|ईसवी|संवत|संवत्)\s+)(?P<year>[12]\d{{3}})(?![\d,.]\d|\d)")
        ),
        lambda found: f"{found['before']}{year(int(found['year']))}",
    ),
    (
        re.compile(_nfc(rf"(?<![\d.,])(?P<year>1[89]\d\d|20\d\d)(?=\s*(?:में|ईस्वी|ई॰){ENDED})")),
        lambda found: year(int(found["year"])),
    ),
    (re.compile(_nfc(rf"(?<![\d:])(?P<hour>\d{{1,2}}):(?P<minute>\d{{2}})(?![\d:])(?:\s*बजे{ENDED})?")), _time),
    (re.compile(rf"{BEGINS}(?<!\.)[-−](?=\d)"), lambda _: "ऋण "),
    (re.compile(rf"₹\s*{_N}{_SCALE}"), _rupees),
    (
        re.compile(rf"(?P<sign>[{''.join(SIGNS)}])\s*{_N}{_SCALE}"),
        lambda found: f"{decimal(found['number'])}{found['scale'] or ''} {SIGNS[found['sign']]}",
    ),
    (re.compile(r"(?:(?<![\d.,])(?P<whole>\d{1,4})\s*)?(?P<part>[½¼¾])"), _quarters),
    (  # not of "4 थे", there were four
        re.compile(rf"(?<![\d.,])(\d{{1,9}})(?:-|\s(?=वाँ|वां|वीं|वें))?({_ENDS}){ENDED}"),
        lambda found: ordinal(int(found[1]), found[2]),
    ),
    (
        re.compile(rf"{BEGINS}(?<!-){_N}\s*[-–]\s*(?P<to>\d+(?:,\d+)*)(?![\d-])"),
        lambda found: f"{decimal(found['number'])} से {decimal(found['to'])}",
    ),
    (re.compile(r"\d+(?:,\d+)*(?:\.\d+)?"), lambda found: f" {decimal(found[0])} "),
    (re.compile(f"[{re.escape(''.join(_SYMBOLS))}]"), lambda found: _SYMBOLS[found[0]]),
)
"""Written forms and their spoken ones, the longest first."""


def in_words(text: str, unspoken: list[str] | None = None) -> str:
    """Text in Devanagari, Latin script and ASCII digits, its figures and symbols in words.

    Symbols that no rule reads are added to ``unspoken``.

    >>> in_words("15/08/1947 को 5वाँ, ₹2.50 और 10:30 बजे")
    'पंद्रह अगस्त उन्नीस सौ सैंतालीस को पाँचवाँ, दो रुपये पचास पैसे और दस बजकर तीस मिनट'
    """
    text = rewrite(text, hindi_forms.ADDRESSES)
    text = rewrite(text, UNITS_ALONE)
    if HAS_SHORT_WORD.search(text):
        text = rewrite(text, SHORT_WORDS)
    text = rewrite(text, hindi_forms.WORDS)
    if hindi_forms.HAS_ROMAN.search(text):
        text = rewrite(text, hindi_forms.ROMAN)
    text = read_digits(read_after(text, hindi_forms.CUES, digits, _nfc("प्लस")), digits, _nfc("प्लस"))
    if hindi_forms.HAS_FIGURE.search(text):
        text = rewrite(text, hindi_forms.FIGURES)
    if unspoken is not None:
        unspoken.extend(hindi_forms.find_unspoken(text))
    if hindi_forms.HAS_FIGURE.search(text):
        text = rewrite(text, RULES)
    return re.sub(r"\s+", " ", text).strip()
