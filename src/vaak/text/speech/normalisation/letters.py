"""Symbols by their names, initialisms letter by letter, emphasis in capitals as words."""

from __future__ import annotations

import re

from vaak.text.speech.normalisation.abbreviations import sentence_ends
from vaak.text.speech.normalisation.tables import table, words

SYMBOLS = (
    table(
        """
    &=and +=plus @=at *= ~=about ^= |= <=less_than >=greater_than ≤=at_most ≥=at_least ≈=about ≠=is_not_equal_to
    ×=times ÷=divided_by ±=plus_or_minus −=minus √=the_square_root_of ∞=infinity §=section ¶=paragraph ©=copyright
    ®= ™= °=degrees %=percent $=dollars £=pounds €=euros ¥=yen ¢=cents ₹=rupees ₩=won ₽=rubles α=alpha β=beta
    γ=gamma δ=delta π=pi μ=mu Ω=ohm ‰=per_mille ²=squared ³=cubed №=number #=number
    """
    )
    | {"=": "equals", "\\": "backslash"}
    | dict.fromkeys("_`′″·•†‡¹", "")
)
"""What a symbol is called; empty where it is not spoken."""

SPOKEN_AS_WORDS = words(
    """
    ZIP NASA NATO UNESCO UNICEF AIDS OPEC RADAR SONAR LASER SCUBA NAFTA ASCII PIN SIM RAM ROM GIF JPEG NASDAQ SWAT NORAD
    FEMA OSHA COVID CAPTCHA HAZMAT POTUS SCOTUS FIFA UEFA ASEAN INTERPOL GULAG BASIC COBOL FORTRAN TASER YOLO
    """
)
"""Acronyms that are read as words."""

_WORDS = words(
    """
    A I OF TO IN IT IS BE AS AT SO WE HE BY OR ON DO IF ME MY UP AN GO NO AM THE AND FOR ARE BUT NOT YOU ALL ANY CAN
    HAD HER WAS ONE OUR OUT DAY GET HAS HIM HIS HOW MAN NEW NOW OLD SEE TWO WAY WHO BOY DID ITS LET PUT SAY SHE TOO USE
    DAD MOM YES END MEN BIG BAD WAR LAW ACT WHY OFF OWN RUN SET SIT TEN TOP TRY ASK BED BOX BUY CAR CUT DOG EAT FAR FEW
    FUN GOD GOT GUN HOT JOB KEY LAY LOT LOW MAY RED SIX SUN TAX WON YET
    """
)
"""Short words that stand in capitals for emphasis more often than as initials."""

_MARKS = {"[": "(", "]": ")", "{": "(", "}": ")"}
_PUNCTUATION = (
    (re.compile(r"\.(?:\s?\.)+"), "… "),
    (re.compile(r"\s*(?:--+|—|(?<=\s)[-–](?=\s))\s*"), " — "),
    (re.compile("–"), "-"),
    (re.compile(r"[\[\]{}]"), lambda match: _MARKS[match[0]]),
    (re.compile(r"(?<=[a-z])\.(?=[A-Z][a-z])"), ". "),
    (re.compile(r"(?<=[a-z]{2})\.(?=[a-z])|(?<!\S)\.(?=[A-Za-z])"), " dot "),
    (re.compile(r"(?<=\b[CF])#"), " sharp"),
    (re.compile(r"\b([A-Z]+)&([A-Z]+)\b"), lambda match: f"{' '.join(match[1])} and {' '.join(match[2])}"),
)
_SYMBOL = re.compile(f"[{re.escape(''.join(SYMBOLS))}]")
_REPEATED = re.compile(r"([*_=~+#])\1{2,}")
_SLASH = re.compile(r"(?<=[A-Za-z.])\s?/\s?(?=[A-Za-z\"'])")
_SHORT = (
    (re.compile(r"\b(and)/(or)\b", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"\bw/o\b"), "without"),
    (re.compile(r"\bw/(?=\s)"), "with"),
)
_DOTTED = re.compile(r"(?<![\w.])((?:[A-Za-z]\.[ ]?){2,}|(?<!\b[A-Z] )[A-Z]\.(?=\s?[A-Z]))(?:('s)|(s)\b)?")
_CAPITALS = re.compile(r"(?<![A-Za-z'])[A-Z]{2,}(?:(?:['’]s|s)\b)?(?![A-Za-z])")
_ONSET = re.compile(
    r"^(?:[BCDFGHJKLMNPQRSTVWXYZ]|[BCFGKPS]L|[BCDFGKPTW]R|S[CKMNPTWQ]|SH|CH|TH|WH|PH|KN|GN|QU|SC[RH]|S[PT]R|SPL|SHR|THR|TW|DW)"
    r"?[AEIOUY]"
)
_UNREADABLE = re.compile(r"[^AEIOUY]{4}|[^AEIOUY]{3}(?<!GHT|RST|RLD|TCH|LTH|NTH|RTH)(?<!S)$|^[AEIOU]+$")


def symbols(text: str) -> str:
    """
    >>> symbols("3+4=7, and/or w/o he/she")
    '3 plus 4 equals 7, and or without he slash she'
    """
    for pattern, said in _PUNCTUATION:
        text = pattern.sub(said, text)
    text = _REPEATED.sub(" ", text)
    for pattern, said in _SHORT:
        text = pattern.sub(said, text)
    text = _SLASH.sub(" slash ", text).replace("/", " ")
    return _SYMBOL.sub(lambda match: f" {SYMBOLS[match[0]]} ", text)


def letters(text: str) -> str:
    """Initialisms as single capitals, which are read by their names; everything else that isn't a name in lower case.

    A word in capitals is an initialism if it has up to five letters and can't be read as a word, or up to three; in a
    text that is all in capitals nothing is.

    >>> letters("The FBI, the U.S. and NASA say STOP, J. Edgar.")
    'The F B I, the U S and Nasa say stop, J Edgar.'
    """

    def dotted(match: re.Match[str]) -> str:
        said = " ".join(one.upper() for one in match[1] if one.isalpha())
        if match[2] or match[3]:
            return f"{said}'s"
        gap = " " if match[1].endswith(" ") else ""
        end = match.start(1) + len(match[1].rstrip())
        return said + ("." if sentence_ends(match.string, end) and len(said) > 1 else "") + gap

    shouted = text.isupper() and len(text.split()) > 1
    return _CAPITALS.sub(lambda match: _capitals(match[0], shouted), _DOTTED.sub(dotted, text))


def _capitals(word: str, shouted: bool) -> str:
    plain = word.rstrip("s").rstrip("'’")
    ending = word[len(plain) :].replace("’", "'")
    if plain in SPOKEN_AS_WORDS:
        return plain.capitalize() + ending
    if shouted or plain in _WORDS or (len(plain) > 3 and is_readable(plain)):
        return plain.lower() + ending
    return " ".join(plain) + ("'s" if ending else "")


def is_readable(capitals: str) -> bool:
    """Whether letters can be read as a word: they begin as an English word may, with vowels all through.

    >>> [is_readable(word) for word in ("STOP", "NIGHT", "FPCC", "WDSU", "ISBN")]
    [True, True, False, False, False]
    """
    if len(capitals) > 5:
        return True
    return bool(_ONSET.match(capitals)) and not _UNREADABLE.search(capitals)
