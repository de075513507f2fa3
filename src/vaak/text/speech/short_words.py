"""Short forms of words that their place tells: after a number or an ordinal, before one, or within a sentence.

Forms that aren't English words (pkg, ppl, yrs) are read wherever they stand, with or without a full stop; those that
are (ed., opt., tab.) only in their places. The forms of trades and sciences are in ``short_forms.tsv``, by place and
domain. Titles, companies and headings are in ``vaak.text.speech.abbreviations``, too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from importlib.resources import files

from vaak.text.speech.words import NUMBER, table


def _read_forms() -> dict[str, dict[str, str]]:
    """The forms of the table, by place."""
    by_place: dict[str, dict[str, str]] = {}
    with files(__package__).joinpath("short_forms.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            by_place.setdefault(row["place"], {}).update(table(row["forms"]))
    return by_place


FORMS = _read_forms()

ALWAYS = table(
    """
    pkg=package pkgs=packages pkt=packet pkts=packets mtg=meeting mtgs=meetings bldg=building bldgs=buildings
    dept=department depts=departments appt=appointment appts=appointments acct=account accts=accounts amt=amount
    amts=amounts mgmt=management mgr=manager mgrs=managers mktg=marketing mfr=manufacturer mfrs=manufacturers
    pymt=payment pymts=payments qty=quantity msg=message msgs=messages govt=government rcvd=received reqd=required
    recd=received hwy=highway pls=please plz=please thx=thanks thnx=thanks ppl=people yrs=years hrs=hours wks=weeks
    mths=months lbs=pounds bdrm=bedroom bdrms=bedrooms natl=national intl=international lvl=level tmrw=tomorrow
    btwn=between nts=nights pkwy=parkway blvd=boulevard xmas=Christmas
    """
)
"""No words of English, so read with or without a full stop, and with a capital."""
ALWAYS = FORMS["anywhere"] | ALWAYS
ALWAYS |= {short.capitalize(): said.capitalize() for short, said in ALWAYS.items()}
SHORT_WITH_STOP = table(
    """
    elev=elevation equiv=equivalent encl=enclosed attn=attention conf=confirmation orig=original prob=probably
    abbrev=abbreviated excl=excluding assoc=association avail=available cont=continued contd=continued dia=diameter
    diam=diameter dist=distance esp=especially ext=extension freq=frequency illus=illustrated immed=immediately
    incr=increase lic=license maint=maintenance mtn=mountain mtns=mountains obs=observed occas=occasionally
    poss=possibly prev=previous proc=proceedings resp=respectively sched=schedule std=standard subj=subject
    suppl=supplement trans=translated usu=usually est=estimated lg=large med=medium sm=small ea=each opt=optional
    ctr=center btw=between cos=companies reqs=requirements recs=recommendations hts=heights twp=township
    """
)
"""Expanded with their full stop where the sentence continues."""
LAST = table("equiv=equivalent cont=continued ea=each opt=optional resp=respectively excl=excluded avail=available")
"""Words that may end a sentence, so that the full stop may be the sentence's: ``$3 ea.``, ``1 tsp cayenne, opt.``"""
NAMES = table(
    """
    Weds=Wednesday Amend=Amendment Ste=Suite Blk=Block Bk=Book Cres=Crescent Ter=Terrace Rte=Route Pop=Population
    Reg=Regulation Regs=Regulations Ord=Ordinance Prop=Proposition Exec=Executive Jct=Junction Pt=Point Ph=Phone
    Mass=Massachusetts Calif=California Conn=Connecticut Penn=Pennsylvania Tenn=Tennessee Fla=Florida Ariz=Arizona
    Mich=Michigan Minn=Minnesota Okla=Oklahoma Ont=Ontario Colo=Colorado Neb=Nebraska Nev=Nevada Wis=Wisconsin
    Wyo=Wyoming
    """
)
"""Short forms that are read only with a capital."""
NAMES = (
    FORMS["name"]
    | NAMES
    | {
        short.capitalize(): said.capitalize()
        for short, said in SHORT_WITH_STOP.items()
        if short not in ("lg", "med", "sm")
    }
)
AFTER_ORDINAL = table(
    """
    ed=edition edn=edition fl=floor flr=floor cent=century amend=amendment cir=circuit dist=district div=division
    gen=generation gr=grade qtr=quarter anniv=anniversary bn=battalion batt=battalion regt=regiment inf=infantry
    cav=cavalry ser=series ave=avenue st=street rd=road vol=volume ch=chapter sess=session cong=congress
    inst=instant ult=ultimo prox=proximo
    """
)
"""Short forms after an ordinal in figures: 3rd ed., 2nd fl., 14th Amend."""
PER = table("mo=month mos=month yr=year yrs=year wk=week hr=hour hrs=hour doz=dozen ea=each pp=person serv=serving")
"""Short forms after a stroke, or a word such as last."""


def _any(short: Iterable[str]) -> str:
    return "|".join(re.escape(one) for one in sorted(short, key=len, reverse=True))


_ON = r"(?=\s+[a-z\d(&]|\s?[–-]|[,;:)/])"
"""How a sentence continues after the full stop of a short form."""
_BEGINS = r"(?<![\w.'/@#-])"
_UNITS = "(?:yrs?|hrs|wks?|mths?|lbs|pkgs?|pkts?)"
"""Units; after a figure, ``measures`` reads them in the singular or plural."""
_Rule = tuple[frozenset[str], re.Pattern[str], str | Callable[[re.Match[str]], str]]


def _capitalised(short: Iterable[str]) -> frozenset[str]:
    return frozenset(form for one in short for form in (one, one.capitalize()))


def _initials(short: Iterable[str]) -> frozenset[str]:
    """The first letters together of each form, one of which a text has to have."""
    return frozenset(found[0] for found in map(_WORD.search, short) if found)


_WORD = re.compile("[A-Za-z]+")
_MIXED_CASE = FORMS["mixed"]
_DOTTED_FORMS = FORMS["dotted"]
_JOURNAL, _JOURNAL_ADJECTIVES = FORMS["journal"], FORMS["journal adjective"]
_TITLED = FORMS["title"]
_SCRIPTURE, _OF_CITY = FORMS["scripture"], FORMS["city"]
_LETTERS = frozenset(one for one, said in ALWAYS.items() if re.fullmatch("[A-Z](?: [A-Z])+s?", said))
"""Initials in small letters, which are read next to a slash or hyphen as well: video/dvd."""
_RULES: tuple[_Rule, ...] = (
    (
        _initials(_DOTTED_FORMS),
        re.compile(rf"(?<![\w.&/])({_any(_DOTTED_FORMS)})(?![\w/]|\.\w)(\s*[\"')]*$)?"),
        lambda match: (
            _DOTTED_FORMS[match[1]]
            + (f".{match[2]}" if match[1].endswith(".") and match[2] is not None else match[2] or "")
        ),
    ),
    (
        _initials(_MIXED_CASE),
        re.compile(rf"(?<![\w.'/@#-])({_any(_MIXED_CASE)})(?=('?s)?\b)(?![\w@/]*@)"),
        lambda match: _MIXED_CASE[match[1]],
    ),
    (
        frozenset(_JOURNAL),
        re.compile(rf"(?<![\w.])(?:(?:{_any(_JOURNAL)})\.\s?){{2,}}(?=\w|[,;(]|$)"),
        lambda match: _read_journal(match),
    ),
    (
        frozenset(_SCRIPTURE),
        re.compile(rf"\b({_any(_SCRIPTURE)})\.? (?=\d{{1,3}}:\d)"),
        lambda match: f"{_SCRIPTURE[match[1]]} ",
    ),
    (
        frozenset(_TITLED),
        re.compile(rf"{_BEGINS}({_any(_TITLED)})\.(?=\s(?:[A-Z][a-z]|[A-Z]\.))"),
        lambda match: _TITLED[match[1]],
    ),
    (
        _initials(_OF_CITY),
        re.compile(rf"(?<=[a-z], )({_any(_OF_CITY)})\.(?=\s|[,;:)]|$)(\s*$)?"),
        lambda match: _OF_CITY[match[1]] + ("." if match[2] is not None else ""),
    ),
    (
        _LETTERS,
        re.compile(rf"(?<=[a-z][/-])({_any(_LETTERS)})(?![\w/.-])|(?<![\w./:-])({_any(_LETTERS)})(?=[/-][a-z]{{3,}})"),
        lambda match: ALWAYS[match[1] or match[2]],
    ),
    (frozenset(("btw",)), re.compile(r"\bbtw\.? (?=(?:[\w.]+ ){1,3}(?:&|and) [A-Z\d])"), "between "),
    (frozenset(("ie",)), re.compile(r"(?:(?<=\()|(?<=, ))ie(?=[ ,:])"), "that is"),
    (frozenset(("hrs",)), re.compile(r"(?<=\d )hrs(?=/[a-z]{3,})"), "hours"),
    (frozenset("wW"), re.compile(r"(?<![\w/])([Ww])/o(?=\s)"), r"\1ithout"),
    (frozenset("wW"), re.compile(r"(?<![\w/])([Ww])/(?=\s?[\d½¼¾⅓⅔]|\s|[a-z]{3,})\s?"), r"\1ith "),
    (frozenset("bB"), re.compile(r"(?<![\w/])([Bb])/c(?=\s)"), r"\1ecause"),
    (frozenset(("y", "yo")), re.compile(r"(?<=\d)[ -]?(?:y/o|y\.o\.|yo)(?![\w-])"), " year old"),
    (
        _capitalised(AFTER_ORDINAL),
        re.compile(rf"(?<=\d(?:st|nd|rd|th) )((?i:{_any(AFTER_ORDINAL)}))\.(?!\w)(\s*$)?"),
        lambda match: _keep_capital(match[1], AFTER_ORDINAL[match[1].lower()]) + ("." if match[2] is not None else ""),
    ),
    (
        frozenset(("ed", "eds")),
        re.compile(r"(?<=[(,])( ?)(ed|eds)\.(?=[,)])"),
        lambda match: f"{match[1]}editor{match[2][2:]}",
    ),
    (
        frozenset(("temp",)),
        re.compile(rf"\b((?:room|body|air|oven|water|internal|high|low|mean) )temp\b(?:\.{_ON})?"),
        r"\1temperature",
    ),
    (
        frozenset(("lg", "med", "sm")),
        re.compile(rf"((?:(?<![\w.,]){NUMBER}|\b(?:a|one|two|three|four|five|six)) )(lg|med|sm)\.?(?= [a-z]{{3,}})"),
        lambda match: match[1] + SHORT_WITH_STOP[match[2]],
    ),
    (  # patients, where medicine is spoken of; points elsewhere
        frozenset(("pts",)),
        re.compile(
            r"(\b(?:enrol(?:l?s|led)|trial|treated|recruit\w*|random\w*|admitted|discharged|cohort|included|clinic|ward)\b"
            rf"[^.!?]{{0,40}}(?<![\w.,]){NUMBER} )pts\b(?:\.{_ON})?"
        ),
        r"\1patients",
    ),
    (
        frozenset(PER),
        re.compile(rf"(?<=[\w.)])\s?/\s?({_any(PER)})\b(?:\.{_ON})?"),
        lambda match: " each" if match[1] == "ea" else f" per {PER[match[1]]}",
    ),
    (
        frozenset(PER),
        re.compile(
            r"(\b(?:[Pp]er|[Tt]his|[Ll]ast|[Nn]ext|[Ee]very|[Ee]ach|[Oo]ne|[Pp]revious|[Cc]urrent|[Ff]iscal|[Ss]ame) )"
            rf"(mo|yr|wk|hr|doz)\b(?:\.{_ON})?"
        ),
        lambda match: match[1] + PER[match[2]],
    ),
    (
        frozenset(("est", "Est")),
        re.compile(r"\b([Ee])st\.(?=\s(?:in\s)?(?:1\d{3}|20\d\d)\b)"),
        r"\1stablished",
    ),
    (
        frozenset(ALWAYS) | _initials(one for one in ALWAYS if not one.isalpha()),
        re.compile(rf"{_BEGINS}(?!(?<=\d ){_UNITS}\b)({_any(ALWAYS)})(?![\w@/-]|'(?!s\b)|\.\w)(?:\.{_ON})?"),
        lambda match: ALWAYS[match[1]],
    ),
    (
        frozenset(LAST),
        re.compile(rf"{_BEGINS}({_any(LAST)})\.(?=\s*[\"')]*$)"),
        lambda match: f"{LAST[match[1]]}.",
    ),
    (
        frozenset(SHORT_WITH_STOP),
        re.compile(rf"{_BEGINS}({_any(SHORT_WITH_STOP)})\.{_ON}"),
        lambda match: SHORT_WITH_STOP[match[1]],
    ),
    (frozenset(("Pt",)), re.compile(rf"{_BEGINS}Pt\.(?=\s[a-z])"), "Patient"),
    (
        frozenset(NAMES),
        re.compile(rf"{_BEGINS}({_any(NAMES)})\.(?=\s+[\w(&§\"$£€₹]|\s?[–-]|[,;:)/])"),
        lambda match: NAMES[match[1]],
    ),
)
"""From the places that decide to the forms that need none; each with short forms that a text has to have."""


def short_words(text: str) -> str:
    """
    >>> short_words("Mtgs w/ 12 ppl, 3rd ed., 2 lg. eggs at room temp., opt.")
    'Meetings with 12 people, 3rd edition, 2 large eggs at room temperature, optional.'
    """
    # Much faster than to search for each.
    present = frozenset(_WORD.findall(text))
    for forms, pattern, said in _RULES:
        if not forms.isdisjoint(present):
            text = pattern.sub(said, text)
    return text


def _read_journal(match: re.Match[str]) -> str:
    """``J. Phys. Chem.``: the words before the last are adjectives; a full stop at the end of a text stays."""
    *first, last = _WORD.findall(match[0])
    said = " ".join([*(_JOURNAL_ADJECTIVES.get(one) or _JOURNAL[one] for one in first), _JOURNAL[last]])
    gap = match[0][len(match[0].rstrip()) :]
    return f"{said}{gap or ('.' if match.end() == len(match.string) else '')}"


def _keep_capital(written: str, said: str) -> str:
    return said.capitalize() if written[0].isupper() else said
