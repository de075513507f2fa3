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
    LAN WAN DAX EBCDIC STDIN STDOUT STDERR TOEFL
    """
)
"""Acronyms that are read as words."""
SPELLED = frozenset(
    words(
        """
        IBAN ICAO UCLA USDA NDTV ASCAP IRCTC NAACP LGBTQIA LGBTQ AARP ADHD COPD PTSD ESPN CCTV HVAC AFAIK INFP ENTP
        INTJ ENFJ ISTJ UNFPA UNDP UNHCR EPFO CBSE ICSE EMEA MSRP GDPR SMTP HTTPS HTTP IIIT APAC AFCON ACLU AAPL
        MSFT NYPD LAPD NOPD NYSE ECDSA
        ABA AFA AMA APA API ATM CEO CFO CIA CIO CIS CLI COO DIY DOA DOE DOJ EMI EMT EPA ESA ESL ESP ETA ETF FAA FAQ GED
        GOP GUI HIV HOA ICU IED IMO IPA IPO IRA IRS ISP IUD IVF LED MIA MIT MOU MPA NIH OEM OSI POS POV RIP ROI SAP SAT
        SEC SEO SOS SUV NYU UAE UAV UFC UFO UPC UPS URI URL USA USB USC USD VAT VIN VIP
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
    AGE AGO AIR ARM ASS BAG BAR BAT BEE BEG BIT BOW BUG BUS CAP CAT COW CRY CUP DEN DEW DID DIE DIG DIM DRY DUE EAR EGG
    EYE FAN FAT FEE FIT FIX FLY FOX FUR GAP GAS GEM GUY HAT HAY HEN HEY HID HIP HIT ICE ILL INN INK JAR JAW JET JOY KID
    LEG LET LIE LIP LOG MAD MAX MIX MUD NAP NET NON NOD NUT OAK ODD OIL OWE PAN PAW PAY PEN PIE PIG PIT POP POT PUB RAN
    RAT RAW ROW RUB RUG SAD SAW SEA SHY SIN SIR SKY SOB SON SPY SUM TAB TAP TEA TIE TIN TIP TOE TOY VAN VIA WEB WET WIN
    YE OH AH HA HO JIM JOE JOHN SAM TOM BOB DAN BEN TIM ANN
    """
)
"""Short words that stand in capitals for emphasis more often than as initials."""
_OF_IT = (
    "admin|budgets?|compan(?:y|ies)|consult\\w+|departments?|desk|director|firms?|guys?|industry|infrastructure|jobs?|managers?|"
    "people|professionals?|sector|security|services?|skills|solutions|specialists?|staff|support|systems?|teams?|workers?"
)
"""Words before which IT is information technology, in a sentence that has no other word in capitals next to it."""
_DOTTED_INITIALS = re.compile(r"(?<![\w.])((?:[A-Za-z]\.[ ]?){2,}|(?<!\b[A-Z] )[A-Z]\.(?=\s?[A-Z]))(?:('s)|(s)\b)?")
_CAPITALS = re.compile(r"(?<![A-Za-z'])[A-Z]{2,}(?:(?:'[sS]|s)\b)?(?![A-Za-z])")
_CONTRACTION = re.compile(r"(?<![A-Za-z'])(?:[A-Z]{2,}'(?:T|LL|RE|VE|M|D)|I'(?:LL|VE|D|M))(?![A-Za-z'])")
"""DON'T, CAN'T, I'LL; what is before the apostrophe needn't be a word."""
_ARTICLE = re.compile(r"\b(?:[Tt]he|[Aa]n?)\s$")
_INFORMATION_TECHNOLOGY = re.compile(rf"[ -](?:{_OF_IT})\b|(?<=\b[Ii]n IT)(?:[.,;:!?)]|$| and\b)")
_NEIGHBOURS = re.compile(r"([A-Z]{2,})[\s!?—\"']{1,3}$"), re.compile(r"[\s!?—\"']{1,3}([A-Z]{2,})\b")
"""Words in capitals next to a place; commas divide lists of initialisms."""
_ONSET = re.compile(
    r"^(?:[BCDFGHJKLMNPQRSTVWXYZ]|[BCFGKPS]L|[BCDFGKPTW]R|S[CKMNPTWQ]|SH|CH|TH|WH|PH|KN|GN|GH|RH|KH|CHR|QU|SC[RH]|S[PT]R|SPL|SHR|THR|TW|DW)"
    r"?[AEIOUY]"
)
_UNREADABLE = re.compile(r"[^AEIOUY]{4}|^[AEIOU]+$|^(?:AA|II|UU|UC|US[B-DFGJ-NP-TV-Z])|[AEIOU]{4}")
_UNREADABLE_LONG = re.compile(
    r"^[^AEIOUY]*$|^[^AEIOUY]{4}|[^AEIOUY]{6}"
    r"|(?<!GHTS|GHTH|NGTH|NTHS|RLDS|RTHS|RMTH|PTHS|RSTS|NGST|NCTS|THMS|LFTH|XTHS|MPTS|MPHS|GTHS)(?<=[^AEIOUY]{4})$"
)
"""What words of six letters and more haven't: no vowel, many consonants at the beginning, within or at the end."""
_CODAS = frozenset(
    words(
        """
        CK CT FF FT GH GN HM LB LC LD LF LK LL LM LN LP LT LV MB MN MP MS NC ND NG NK NN NT NX PT RB RC RD RF RG RK
        RL RM RN RP RT RV SK SM SP SS ST TT WD WK WL WN XT ZZ CH SH TH PH LLS GHT RST RLD TCH LTH NTH RTH NCH RCH
        LCH LPS CKS NGS NDS NTS RDS RTS RKS RMS RNS LLS LDS LTS MPS NKS STS CTS FTS PTS LKS RLS SKS MPT RSH TTS BS
        CS DS FS GS HS KS LS NS PS RS TS WS YS DD GG BB RR
        BT BTS GGS MBS WLS WNS XTH XTHS FTH FTHS PTH PTHS NST NSTS RNT LBS RBS THS FFS HN DTH DTHS DDS NNS RPS WKS MPTS
        SCS LTZ CHT RB WT WTS DST GNS SC XTS MNS
        """
    )
)
"""Consonants that end words or syllables."""
_SMALL = re.compile(
    r"(?<![\w'@/_-])(?!(?:hm+|mm+|sh+|ssh|pst|grr|brr|tsk|zzz|nth|th|st|nd|rd|ll|mr|mrs|ms|dr|jr|sr|vs|pls|thx)\b)"
    r"[bcdfghj-np-tv-xz]{2,3}(?=(?:'s)?\b)(?![@/_-]|'(?!s\b))"
)
_LAST_CONSONANTS = re.compile(r"[^AEIOUY]{2,}$")
_INNER_CONSONANTS = re.compile(r"(?<=[AEIOUY])[^AEIOUY]{2,}(?=[AEIOUY])")


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
    text = _CONTRACTION.sub(_lower_contraction, _DOTTED_INITIALS.sub(dotted, text))
    return _CAPITALS.sub(lambda match: _capitals(match, shouted), text)


def spell_small(text: str) -> str:
    """Initials in a text that has none but small letters: words of two or three without any vowel, but no hmm.

    >>> spell_small("pqd is on mtv's show, hmm, my nth")
    "P Q D is on M T V's show, hmm, my nth"
    """
    return _SMALL.sub(lambda match: " ".join(match[0].upper()), text)


def _lower_contraction(match: re.Match[str]) -> str:
    return match[0].lower().replace("i'", "I'") if match[0].startswith("I'") else match[0].lower()


def _capitals(match: re.Match[str], shouted: bool) -> str:
    word = match[0]
    plain = word.rstrip("sS").rstrip("'") if "'" in word else word.rstrip("s")
    ending = word[len(plain) :].lower()
    spelled = " ".join(plain) + ("'s" if ending else "")
    if plain in ("WHO", "IT") and not shouted and _is_organisation(match):
        return spelled
    if plain in SPELLED:
        return spelled
    if plain in SPOKEN_AS_WORDS:
        return plain.capitalize() + ending
    if len(set(plain)) == 1 and not shouted:  # of a format, such as YYYY, or a grade
        return spelled
    if plain in _EMPHASISED:
        return plain.lower() + ending
    if shouted or (len(plain) > 2 and _is_amid_words(match)):
        return plain.lower() + ending if is_readable(plain) else spelled
    if len(plain) > 3:
        as_word = is_readable(plain)
        report_guess("STOP as a word" if as_word else "FPCC as letters")
        if as_word:
            return plain.lower() + ending
    return spelled


def _is_organisation(match: re.Match[str]) -> bool:
    """Return whether WHO and IT are initials: after an article, and WHO among words that aren't in capitals."""
    before, text = match.string[: match.start()], match.string
    if _ARTICLE.search(before):
        return True
    if _is_amid_words(match):
        return False
    return match[0].startswith("WHO") or _INFORMATION_TECHNOLOGY.match(text, match.start() + 2) is not None


def _is_amid_words(match: re.Match[str]) -> bool:
    """Return whether a word next to this one is in capitals, too, and no initials: THE FAT CAT."""
    before, after = _NEIGHBOURS
    sides = (
        before.search(match.string[max(0, match.start() - 20) : match.start()]),
        after.match(match.string, match.end()),
    )
    return any(side and _is_word(side[1]) for side in sides)


def _is_word(capitals: str) -> bool:
    if capitals in SPELLED or capitals in SPOKEN_AS_WORDS:
        return False
    return capitals in _EMPHASISED or (len(capitals) > 3 and is_readable(capitals))


def is_readable(capitals: str) -> bool:
    """Return whether letters can be read as a word: they begin as an English word may, with vowels all through.

    >>> [is_readable(word) for word in ("STOP", "NIGHT", "FPCC", "WDSU", "ISBN")]
    [True, True, False, False, False]
    """
    if len(capitals) > 5:  # few initialisms are that long
        return not _UNREADABLE_LONG.search(capitals)
    if not _ONSET.match(capitals) or _UNREADABLE.search(capitals):
        return False
    last = _LAST_CONSONANTS.search(capitals)
    if last is not None and last[0] not in _CODAS:
        return False
    return all(map(_can_divide, _INNER_CONSONANTS.findall(capitals)))


def _can_divide(consonants: str) -> bool:
    """Return whether consonants within a word are the end of a syllable and the beginning of the next."""
    return any(
        (cut < 2 or consonants[:cut] in _CODAS) and _ONSET.match(f"{consonants[cut:]}A")
        for cut in range(len(consonants))
    )
