"""Text in any language of espeak-ng as spoken: characters in one form, figures in words, and its phrases.

Figures are written in words where num2words has the language, and of Hindi by ``vaak.text.speech.hindi``; others are
left to espeak-ng, which reads them in all of its languages, as it reads signs such as %. Digits of any script count as
such. Words in Latin letters within a text in another script are read as English, by espeak-ng itself.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Container
from decimal import Decimal
from functools import lru_cache
from typing import Literal

from vaak.core.errors import DataError
from vaak.text.speech import hindi
from vaak.text.speech.english import FOLDED, shown
from vaak.text.speech.hindi_forms import READ_IN_HINDI, with_full_stops
from vaak.text.speech.phonemes.alphabets import PUNCTUATION
from vaak.text.speech.unspoken import leave_out_markup

READ_AS = {
    **{one: other for one, other in FOLDED.items() if not other.isalpha()},
    **dict.fromkeys("।॥。۔።։", "."),
    **dict.fromkeys("،、，፣", ","),
    **dict.fromkeys("؟？՞", "?"),
    **dict.fromkeys("؛；፤", ";"),
    **dict.fromkeys("：፥", ":"),
    **dict.fromkeys("！՜", "!"),
    **dict.fromkeys("「」『』《》〈〉", '"'),
    **dict.fromkeys("（【[{", "("),
    **dict.fromkeys("）】]}", ")"),
    **dict.fromkeys("\u200b\ufeff", ""),
    "–": "-",
    "፡": " ",
    "·": " ",
}
"""Characters, such as the marks of other scripts, and those that they are read as."""
JOINERS = "\u200c\u200d"
"""Format characters that change how a word is read: they don't join or join the letters around them."""
SIGNS = "%&+=@#*/°$£€¥₹×÷½¼¾|_-"
"""Signs that are read in words, or parted from."""
GAPS = "|_"
"""Signs that part words without being read."""
_TYPED_DANDA = re.compile(
    r"(?<=\s)(है|हैं|हूँ|हूं|था|थी|थे|थीं|गया|गयी|गई|गए|गये|किया|दिया|लिया|कहा|रहा|रही|रहे|हुआ|हुई|हुए) [Il](?=\s*$)"
)
"""A capital I or small l for the danda, where keyboards lack it."""
_SPACES = re.compile(r"\s+")
_SPACE_BEFORE = re.compile(r"\s+(?=[,;:!?)…]|\.(?!\w))|(?<=\()\s+")
_NUMBER = re.compile(r"(?<![\w.,])\d+(?:[.,]\d+)*(?![\w])")
_LONGEST = 15


def cleaned(text: str, *, drop_unknown: bool = False, kept: Container[str] = ()) -> str:
    """``text`` of any script in one form and one line: composed (NFC), with ASCII digits and marks.

    Raises DataError, with the text, for symbols that nothing reads, unless they are to be dropped.

    >>> cleaned("वह  २५ का है।")
    'वह 25 का है.'
    """
    found: list[str] = []
    unknown: dict[str, None] = {}
    for one in unicodedata.normalize("NFC", text):
        category = unicodedata.category(one)
        # Joiners are format characters, dropped below, but in Hindi or Persian they change how a word is read.
        if one in kept or one in JOINERS:
            found.append(one)
        elif one in READ_AS:
            found.append(READ_AS[one])
        elif category == "Nd":
            found.append(str(unicodedata.decimal(one)))
        elif category[0] in "LM" or one in SIGNS or one in PUNCTUATION or one == "'":
            found.append(one)
        elif category[0] == "Z" or category == "Cc":
            found.append(" ")
        elif category != "Cf":
            unknown[one] = None
    if unknown and not drop_unknown:
        raise DataError(f"{shown(text)}: {' '.join([*unknown][:12])} can't be read; replace or remove them")
    return _SPACES.sub(" ", "".join(found)).strip()


def normalise(text: str, language: str, kept: Container[str] = (), unspoken: list[str] | None = None) -> str:
    """``text`` as spoken in a language of espeak-ng. Raises DataError as ``cleaned``.

    Symbols that nothing reads, such as those of markup, are added to ``unspoken``.

    >>> normalise("Ich habe 21 Bücher.", "de"), normalise("मेरे पास २१ किताबें हैं।", "hi")
    ('Ich habe einundzwanzig Bücher.', 'मेरे पास इक्कीस किताबें हैं.')
    """
    text = leave_out_markup(text, unspoken)
    if language == "hi":
        # A danda ends a sentence, never an abbreviation: "1945 से।" has no seconds.
        text = cleaned(
            with_full_stops(_TYPED_DANDA.sub(r"\1 ।", text)).replace("।", " । "), kept=_Either(kept, READ_IN_HINDI)
        )
        return _tidied(hindi.in_words(text, unspoken))
    text = cleaned(text, kept=kept)
    if unspoken is not None:
        unspoken.extend(one for one in text if one in GAPS)
    if (library := _in_num2words(language)) is not None:
        text = _MONEY.sub(lambda found: _money(found, library) or found[0], text)
        text = _NUMBER.sub(lambda found: _number(found[0], library), text)
    return _tidied(text)


def _tidied(text: str) -> str:
    return _SPACE_BEFORE.sub("", _SPACES.sub(" ", text)).strip()


class _Either:
    """A container of the members of both."""

    def __init__(self, *both: Container[str]) -> None:
        self._both = both

    def __contains__(self, one: object) -> bool:
        return any(one in part for part in self._both)


@lru_cache
def _in_num2words(language: str) -> str | None:
    """Return num2words' name of a language; None if it lacks the language."""
    from num2words import CONVERTER_CLASSES

    base, _, region = language.partition("-")
    names = (f"{base}_{region.upper()}", {"nb": "no"}.get(base, base))
    return next((name for name in names if name in CONVERTER_CLASSES), None)


def _number(text: str, language: str) -> str:
    """A number in words; unchanged, for espeak-ng, if the library can't read it or its meaning is unclear."""
    from num2words import num2words

    grouped = re.fullmatch(r"\d{1,3}(?:,\d{3})+|\d{1,3}(?:\.\d{3})+", text)
    plain = re.sub(r"[.,]", "", text) if grouped else text
    # A leading zero, or too many digits: an identifier, not a count.
    if (len(plain) > 1 and plain[0] == "0" and plain.isdigit()) or len(plain) > _LONGEST:
        return text
    # 1.234 is over a thousand in one language and less than two in another: espeak-ng knows which.
    if not re.fullmatch(r"\d+(?:[.,]\d+)?", plain) or (grouped and text.count(".") == 1):
        # 1.234 is a thousand in one language, and less than two in another: espeak-ng knows.
        return text
    try:
        value = int(plain) if plain.isdigit() else Decimal(plain.replace(",", "."))
        said: str = num2words(value, lang=language)
    except Exception:
        # Each language of the library has other limits, and other exceptions.
        return text
    return said if said.strip() else text


CURRENCIES = {"€": "EUR", "$": "USD", "£": "GBP", "¥": "JPY", "₹": "INR"}
_SIGN = rf"(?P<{{}}>[{''.join(CURRENCIES)}]|{'|'.join(CURRENCIES.values())})"
_AMOUNT = r"(?P<{}>\d{{1,12}}(?:[.,]\d\d)?)"
_MONEY = re.compile(
    rf"(?<![\w.,]){_SIGN.format('sign')} ?{_AMOUNT.format('amount')}(?![\w]|[.,]\d)"
    rf"|(?<![\w.,]){_AMOUNT.format('before')} ?{_SIGN.format('after')}(?!\w)"
)


def _money(found: re.Match[str], language: str) -> str | None:
    """An amount in words; None where the library has no words of the language for its currency."""
    from num2words import CONVERTER_CLASSES, num2words
    from num2words.lang_EU import Num2Word_EU

    sign, amount = found["sign"] or found["after"], (found["amount"] or found["before"]).replace(",", ".")
    code, own = CURRENCIES.get(sign, sign), getattr(CONVERTER_CLASSES[language], "CURRENCY_FORMS", {})
    # The base class's names of currencies are English, which languages without their own would inherit.
    if code not in own or own[code] == Num2Word_EU.CURRENCY_FORMS.get(code):
        return None
    try:
        # An int would be cents.
        value = Decimal(amount).quantize(Decimal("0.01"))
        if value % 1:
            said: str = num2words(value, lang=language, to="currency", currency=code)
        else:
            # The cents come after the separator, and are left out.
            said = num2words(value, lang=language, to="currency", currency=code, separator="|").partition("|")[0]
    except Exception:
        # As with numbers, each language has other limits and exceptions.
        return None
    return said.strip() or None


def said_as(text: str, kind: str, language: str, order: str) -> str | None:
    """A text as SSML's <say-as> reads it in a language other than English; None where it can't be read so.

    ``order`` is that of a date, such as ``dmy`` (of Hindi) or ``y``.
    """
    text, library = cleaned(text), _in_num2words(language)
    if kind in ("characters", "spell-out", "digits", "telephone"):
        chosen = [one for one in text if one.isdigit() or (kind in ("characters", "spell-out") and one.isalpha())]
        return " ".join(normalise(one, language) for one in chosen) or None
    if kind == "currency":
        found = _MONEY.fullmatch(text)
        if found is None or library is None:
            return hindi.in_words(text).strip() if found is not None and language == "hi" else None
        return _money(found, library)
    if kind == "date":
        return _said_date(text, order, language, library)
    if kind not in ("cardinal", "ordinal") or re.fullmatch(r"-?\d{1,15}(?:[.,]\d+)?", text) is None:
        return None
    if kind == "cardinal" or language == "hi":
        said = hindi.ordinal(int(text)) if kind == "ordinal" and text.isdigit() else normalise(text, language)
        return None if any(map(str.isdigit, said)) else said
    return _in_library(text, "ordinal", library)


def _said_date(text: str, order: str, language: str, library: str | None) -> str | None:
    parts = re.findall(r"\d+", text)
    if order == "y" and len(parts) == 1 and parts[0] == text:
        return hindi.year(int(text)) if language == "hi" and len(text) < 6 else _in_library(text, "year", library)
    if language != "hi" or sorted(order) != sorted("dmy") or len(parts) != 3:
        return None
    found = dict(zip(order, parts, strict=True))
    return hindi.date(found["d"], found["m"], found["y"])


def _in_library(text: str, to: str, language: str | None) -> str | None:
    """A whole number as an ordinal or a year; None where the library has no rule for it, or repeats the cardinal."""
    from num2words import num2words

    if language is None or not text.isdigit():
        return None
    try:
        said: str = num2words(int(text), lang=language, to=to)
        # Some languages of the library fall back to the cardinal, which would be wrong, not just less good.
        is_cardinal = to == "ordinal" and said == num2words(int(text), lang=language)
    except Exception:
        # As with numbers, each language has other limits and exceptions.
        return None
    return None if is_cardinal or any(map(str.isdigit, said)) else said.strip() or None


_TOKEN = re.compile(
    rf"(?P<word>\d+(?:[.,:/]\d+)+|[^\s{re.escape(''.join(PUNCTUATION))}'|_-](?:[^\s{re.escape(''.join(PUNCTUATION))}|_-]*"
    rf"[^\s{re.escape(''.join(PUNCTUATION))}'|_-])?)|(?P<mark>[{re.escape(''.join(PUNCTUATION))}])|(?P<gap>[\s'|_-]+)"
)
Kind = Literal["phrase", "mark", "given"]


def pieces(text: str, given: Container[str] = ()) -> list[tuple[Kind, tuple[str, ...]]]:
    """The phrases of a normalised text, the marks between them, and characters that are ``given``.

    Raises DataError for a text without words.

    >>> pieces("मैं school जाता हूँ, 25")
    [('phrase', ('मैं', 'school', 'जाता', 'हूँ')), ('mark', (',',)), ('phrase', ('25',))]
    """
    found: list[tuple[Kind, tuple[str, ...]]] = []

    def add(part: str) -> None:
        for token in _TOKEN.finditer(part):
            if token.lastgroup == "mark":
                found.append(("mark", (token[0],)))
            elif token.lastgroup == "word":
                if found and found[-1][0] == "phrase":
                    found[-1] = ("phrase", (*found[-1][1], token[0]))
                else:
                    found.append(("phrase", (token[0],)))

    start = 0
    for place, one in enumerate(text):
        if one in given:
            add(text[start:place])
            found.append(("given", (one,)))
            start = place + 1
    add(text[start:])
    if not any(kind != "mark" for kind, _ in found):
        raise DataError(f"{shown(text)}: there is nothing to speak in it" if text else "the text is empty")
    return found
