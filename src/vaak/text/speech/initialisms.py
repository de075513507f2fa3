"""Words in capitals: initials read letter by letter, acronyms read as words, and emphasis."""

from __future__ import annotations

import re

from vaak.text.speech.abbreviations import sentence_ends
from vaak.text.speech.guesses import report_guess
from vaak.text.speech.words import words

SPOKEN_AS_WORDS = words(
    """
    ZIP NASA NATO UNESCO UNICEF AIDS OPEC RADAR SONAR LASER SCUBA NAFTA ASCII PIN SIM RAM ROM GIF JPEG NASDAQ SWAT
    NORAD FEMA OSHA COVID CAPTCHA HAZMAT POTUS SCOTUS FIFA UEFA ASEAN INTERPOL GULAG BASIC COBOL FORTRAN TASER YOLO
    """
)
"""Acronyms that are read as words."""
SPELLED = frozenset(
    words(
        """
        IBAN ICAO UCLA USDA NDTV ASCAP IRCTC NAACP LGBTQIA LGBTQ AARP ADHD COPD PTSD ESPN CCTV HVAC AFAIK INFP ENTP
        INTJ ENFJ ISTJ UNFPA UNDP UNHCR EPFO CBSE ICSE EMEA MSRP GDPR SMTP HTTPS HTTP IIIT APAC AFCON ACLU AAPL
        MSFT NYPD LAPD NOPD
        """
    )
)
"""Initials that could be read as words, but aren't."""
_EMPHASISED = words(
    """
    A I OF TO IN IT IS BE AS AT SO WE HE BY OR ON DO IF ME MY UP AN GO NO AM THE AND FOR ARE BUT NOT YOU ALL ANY
    CAN HAD HER WAS ONE OUR OUT DAY GET HAS HIM HIS HOW MAN NEW NOW OLD SEE TWO WAY WHO BOY DID ITS LET PUT SAY SHE
    TOO USE DAD MOM YES END MEN BIG BAD WAR LAW ACT WHY OFF OWN RUN SET SIT TEN TOP TRY ASK BED BOX BUY CAR CUT DOG
    EAT FAR FEW FUN GOD GOT GUN HOT JOB KEY LAY LOT LOW MAY RED SIX SUN TAX WON YET
    """
)
"""Short words that stand in capitals for emphasis more often than as initials."""
_DOTTED_INITIALS = re.compile(r"(?<![\w.])((?:[A-Za-z]\.[ ]?){2,}|(?<!\b[A-Z] )[A-Z]\.(?=\s?[A-Z]))(?:('s)|(s)\b)?")
_CAPITALS = re.compile(r"(?<![A-Za-z'])[A-Z]{2,}(?:(?:['’]s|s)\b)?(?![A-Za-z])")
_ARTICLE = re.compile(r"\b(?:[Tt]he|[Aa]n?)\s$")
_ONSET = re.compile(
    r"^(?:[BCDFGHJKLMNPQRSTVWXYZ]|[BCFGKPS]L|[BCDFGKPTW]R|S[CKMNPTWQ]|SH|CH|TH|WH|PH|KN|GN|QU|SC[RH]|S[PT]R|SPL|SHR|THR|TW|DW)"
    r"?[AEIOUY]"
)
_UNREADABLE = re.compile(r"[^AEIOUY]{4}|^[AEIOU]+$|^(?:AA|II|UU|UC|US[B-DF-HJ-NP-TV-Z])|[AEIOU]{4}")
_CODAS = frozenset(
    words(
        """
        CK CT FF FT GH GN HM LB LC LD LF LK LL LM LN LP LT LV MB MN MP MS NC ND NG NK NN NT NX PT RB RC RD RF RG RK
        RL RM RN RP RT RV SK SM SP SS ST TT WD WK WL WN XT ZZ CH SH TH PH LLS GHT RST RLD TCH LTH NTH RTH NCH RCH
        LCH LPS CKS NGS NDS NTS RDS RTS RKS RMS RNS LLS LDS LTS MPS NKS STS CTS FTS PTS LKS RLS SKS MPT RSH TTS BS
        CS DS FS GS HS KS LS NS PS RS TS WS YS DD GG BB RR
        """
    )
)
"""Two or three consonants that end words."""
_LAST_CONSONANTS = re.compile(r"[^AEIOUY]{2,}$")


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
    return _CAPITALS.sub(lambda match: _capitals(match, shouted), _DOTTED_INITIALS.sub(dotted, text))


def _capitals(match: re.Match[str], shouted: bool) -> str:
    word = match[0]
    plain = word.rstrip("s").rstrip("'’")
    ending = word[len(plain) :].replace("’", "'")
    # "The WHO" and "an IT firm": after an article these aren't pronouns.
    if plain in ("WHO", "IT") and not shouted and _ARTICLE.search(match.string[: match.start()]):
        return " ".join(plain) + ("'s" if ending else "")
    if plain in SPELLED and not shouted:
        return " ".join(plain) + ("'s" if ending else "")
    if plain in SPOKEN_AS_WORDS:
        return plain.capitalize() + ending
    if len(set(plain)) == 1 and not shouted:  # of a format, such as YYYY, or a grade
        return " ".join(plain) + ("'s" if ending else "")
    if shouted or plain in _EMPHASISED:
        return plain.lower() + ending
    if len(plain) > 3:
        as_word = is_readable(plain)
        report_guess("STOP as a word" if as_word else "FPCC as letters")
        if as_word:
            return plain.lower() + ending
    return " ".join(plain) + ("'s" if ending else "")


def is_readable(capitals: str) -> bool:
    """Return whether letters can be read as a word: they begin as an English word may, with vowels all through.

    >>> [is_readable(word) for word in ("STOP", "NIGHT", "FPCC", "WDSU", "ISBN")]
    [True, True, False, False, False]
    """
    if len(capitals) > 5:
        return True
    if not _ONSET.match(capitals) or _UNREADABLE.search(capitals):
        return False
    last = _LAST_CONSONANTS.search(capitals)
    return last is None or last[0] in _CODAS
