"""Titles and abbreviations."""

from __future__ import annotations

import re

from vaak.text.speech.normalisation.dates_and_times import SHORT_DAYS
from vaak.text.speech.normalisation.tables import table

TITLES = table(
    """
    Mr=Mister Mrs=Missus Ms=Miz Dr=Doctor Drs=Doctors Messrs=Messers Prof=Professor Rev=Reverend Hon=Honorable
    Fr=Father Pres=President Gov=Governor Sen=Senator Rep=Representative Gen=General Col=Colonel Maj=Major
    Capt=Captain Lt=Lieutenant Cmdr=Commander Adm=Admiral Sgt=Sergeant Cpl=Corporal Pvt=Private Insp=Inspector
    Mt=Mount Ft=Fort
    """
)
"""Before a name."""

ABBREVIATIONS = table(
    """
    Jr=Junior Sr=Senior Esq=Esquire Ltd=Limited Co=Company Inc=Incorporated Corp=Corporation Bros=Brothers
    Dept=Department Assn=Association Univ=University Ave=Avenue Blvd=Boulevard Rd=Road Hwy=Highway Pkwy=Parkway
    Ln=Lane vs=versus etc=et_cetera viz=namely cf=compare approx=approximately dept=department est=established
    incl=including al=al misc=miscellaneous Tel=Telephone
    tel=telephone govt=government vol=volume Vol=Volume vols=volumes Vols=Volumes
    """
)
"""With a full stop; what follows may be a new sentence."""

BEFORE_NUMBERS = table(
    """
    No=Number no=number Nos=Numbers nos=numbers №=Number p=page pp=pages Fig=Figure fig=figure Figs=Figures
    figs=figures Ch=Chapter ch=chapter Sec=Section sec=section Art=Article art=article Eq=Equation eq=equation
    Sect=Section sect=section Ref=Reference
    ref=reference c=circa ca=circa Ext=Extension ext=extension Apt=Apartment apt=apartment
    """
)

LATIN = {
    "i.e.": "that is",
    "I.e.": "That is",
    "e.g.": "for example",
    "E.g.": "For example",
    "Ph.D.": "P H D",
    "Ph.D": "P H D",
    "Ph.D.s": "P H D's",
    "PhDs": "P H D's",
    "PhD": "P H D",
}

_LATIN = re.compile("|".join(rf"(?<![\w.]){re.escape(one)}(?!\w)" for one in sorted(LATIN, key=len, reverse=True)))
_TITLE = re.compile(rf"\b({'|'.join(TITLES)})(?:\.(?=\s?[A-Z\"']|\s|$)|(?<=Mr|Ms|Dr)(?=\s[A-Z])|(?<=Mrs)(?=\s[A-Z]))")
_ABBREVIATION = re.compile(rf"\b({'|'.join(ABBREVIATIONS)})\.(?!\w)")
_WEEKDAY = re.compile(
    rf"\b((?!Sat|Sun)(?:{'|'.join(SHORT_DAYS)})|(?:(?<=\. and )|(?<=\. or )|(?<=\.[–-]))(?:Sat|Sun)"
    r"|(?:Sat|Sun)(?=\.(?:[,;:)–-]|\s(?:and|or|to|through|from|at|morning|afternoon|evening|night)\b)))\.(?!\w)"
)
_NUMBERED = re.compile(
    rf"(?<![\w.])({'|'.join(BEFORE_NUMBERS)})\.?\s?(?=#?[0-9]|[IVX]+\b|[A-Z]{{1,3}}-?\d)|(№)\s?(?=\d)"
)
_STREET = re.compile(r"(?<=[a-z0-9]) (St|Dr|Pl|Ct|Sq)\.?(?=\s*$|[,;:!?)]|\s+(?:[a-z]|[NSEW][.EW]?\b|Apt|Suite))")
_STREETS = {"St": "Street", "Dr": "Drive", "Pl": "Place", "Ct": "Court", "Sq": "Square"}
_NAME_BEFORE = re.compile(r"(?:\b[A-Z][\w'.-]*|\d(?:st|nd|rd|th))$")
_SAINT = re.compile(r"\bSt(?:\.\s?|\s)(?=[A-Z])")
_SAINTS = re.compile(r"\bSts\.\s?(?=[A-Z])")
_STARTERS = re.compile(
    r"\s+[\"'(]?(?:The|He|She|It|They|We|I|A|An|In|On|At|This|That|These|There|But|And|Or|So|If|His|Her|Their|Its|Our|"
    r"My|You|When|Then|As|For|From|To|By|With|After|Before|What|Who|Why|How|Where|No|Not|One|Some|All|Most|While|"
    r"Although|However)\b"
)


def sentence_ends(text: str, place: int) -> bool:
    """Whether the full stop of an abbreviation ends a sentence: nothing follows, or a word that begins sentences."""
    return not text[place:].strip(" \"')") or _STARTERS.match(text, place) is not None


def abbreviations(text: str) -> str:
    """
    >>> abbreviations("Mr. & Mrs. Hunt, of Rose & Co., met Dr. Roe on St. John St., No. 5, etc.")
    'Mister & Missus Hunt, of Rose & Company, met Doctor Roe on Saint John Street, Number 5, et cetera.'
    """
    text = _LATIN.sub(lambda match: LATIN[match[0]], text)
    text = _SAINTS.sub("Saints ", text)
    text = _STREET.sub(_street, text)
    text = _TITLE.sub(_title, text)
    text = _SAINT.sub("Saint ", text)
    text = _NUMBERED.sub(_numbered, text)
    text = _WEEKDAY.sub(
        lambda match: SHORT_DAYS[match[1]] + ("." if sentence_ends(match.string, match.end()) else ""), text
    )
    return _ABBREVIATION.sub(
        lambda match: ABBREVIATIONS[match[1]] + ("." if sentence_ends(match.string, match.end()) else ""), text
    )


def _title(match: re.Match[str]) -> str:
    """A title, with a space before a name that was written without one."""
    return TITLES[match[1]] + (" " if match.string[match.end() : match.end() + 1].isalpha() else "")


def _street(match: re.Match[str]) -> str:
    """A street's name ends so; "Dr." and "St." before a name are a doctor and a saint."""
    if not _NAME_BEFORE.search(match.string[max(0, match.start() - 40) : match.start()]):
        return match[0]
    stop = "." if match[0].endswith(".") and sentence_ends(match.string, match.end()) else ""
    return f" {_STREETS[match[1]]}{stop}"


def _numbered(match: re.Match[str]) -> str:
    """An abbreviation before a number; without its full stop only those that aren't words."""
    name = match[1] or match[2]
    dotted = "." in match[0]
    rest = match.string[match.end() :]
    if not dotted and name != "№" and name not in ("Fig", "Figs", "Nos", "Ext", "Apt", "pp"):
        return match[0]
    if name in ("c", "ca") and not re.match(r"(?:1\d{3}|20\d\d)\b", rest):
        return match[0]
    return f"{BEFORE_NUMBERS[name]} "
