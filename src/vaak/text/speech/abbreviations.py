"""Short forms of words with a full stop, and symbols, in words: titles, companies, headings, streets, saints."""

from __future__ import annotations

import re

from vaak.text.speech.currencies import CURRENCIES
from vaak.text.speech.dates_and_times import SHORT_DAYS
from vaak.text.speech.guesses import report_guess
from vaak.text.speech.short_words import FORMS
from vaak.text.speech.words import DIGITS, RewriteRule, rewrite, table, words

TITLES = table(
    """
    Mr=Mister Mrs=Missus Ms=Miz Dr=Doctor Drs=Doctors Messrs=Messers Prof=Professor Rev=Reverend Hon=Honorable
    Fr=Father Pres=President Gov=Governor Sen=Senator Rep=Representative Gen=General Col=Colonel Maj=Major
    Capt=Captain Lt=Lieutenant Cmdr=Commander Adm=Admiral Sgt=Sergeant Cpl=Corporal Pvt=Private Insp=Inspector
    Mt=Mount Ft=Fort Smt=Shrimati Adv=Advocate
    """
)
TITLES |= {one.upper(): TITLES[one] for one in words("Mr Mrs Ms Dr Prof Rev Hon Gen Col Capt Lt Sgt")}
TITLES |= {one: TITLES[one.capitalize()].lower() for one in words("mr mrs ms dr prof messrs")}
"""Titles, read in full before a name."""
ABBREVIATIONS = table(
    """
    Jr=Junior Sr=Senior Esq=Esquire Ltd=Limited Co=Company Inc=Incorporated Corp=Corporation Bros=Brothers
    Dept=Department Assn=Association Univ=University Ave=Avenue Blvd=Boulevard Rd=Road Hwy=Highway Pkwy=Parkway
    Ln=Lane vs=versus etc=et_cetera viz=namely cf=compare approx=approximately dept=department est=established
    incl=including al=al misc=miscellaneous Tel=Telephone
    Temp=Temperature Avg=Average avg=average Max=Maximum Qty=Quantity qty=quantity
    Asst=Assistant Addl=Additional Secy=Secretary Mgr=Manager Intl=International Govt=Government Hosp=Hospital
    asst=assistant addl=additional secy=secretary mgr=manager intl=international hosp=hospital Est=Established
    Bldg=Building bldg=building Mfg=Manufacturing mfg=manufacturing Engg=Engineering Pvt=Private Tech=Tech
    Commn=Commission Admn=Administration Stn=Station Dist=District Inst=Institute Mins=Minutes Soc=Society
    tel=telephone govt=government pct=percent vol=volume Vol=Volume vols=volumes Vols=Volumes
    """
)
ABBREVIATIONS |= FORMS["company"]
ABBREVIATIONS |= {one: ABBREVIATIONS[one.capitalize()].lower() for one in words("jr sr bros inc ltd corp ave blvd")}
ABBREVIATIONS |= {
    short.capitalize(): said.capitalize() for short, said in ABBREVIATIONS.items() if short.islower() and short != "al"
}
ABBREVIATIONS |= {
    one.upper(): ABBREVIATIONS[one] for one in words("Jr Sr Esq Ltd Co Inc Corp Bros Dept Ave Blvd vs etc")
}
"""Words with a full stop that may end a sentence. (Al. is a name.)"""
BEFORE_NUMBERS = table(
    """
    No=Number no=number Nos=Numbers nos=numbers №=Number p=page pp=pages Fig=Figure fig=figure Figs=Figures
    figs=figures Ch=Chapter ch=chapter Sec=Section sec=section Art=Article art=article Eq=Equation eq=equation
    Sect=Section sect=section Ref=Reference Arts=Articles arts=articles Cl=Clause cl=clause Cls=Clauses cls=clauses
    Para=Paragraph para=paragraph Paras=Paragraphs paras=paragraphs Pg=Page pg=page Pgs=Pages pgs=pages Pt=Part
    pt=part Pts=Parts Sch=Schedule App=Appendix app=appendix Tab=Table tab=table Chs=Chapters chs=chapters
    Secs=Sections secs=sections Eqs=Equations eqs=equations Refs=References refs=references Reg=Regulation
    reg=regulation Regs=Regulations Bk=Book bk=book Thm=Theorem Prop=Proposition Def=Definition Rm=Room rm=room
    n=note nn=notes l=line ll=lines fn=footnote Ep=Episode ep=episode Blk=Block blk=block Flt=Flight Rte=Route
    Ex=Exhibit Ord=Ordinance Amend=Amendment Dk=Deck Ste=Suite ste=suite Lvl=Level Gr=Grade Wk=Week Yr=Year
    Qn=Question qn=question Iss=Issue iss=issue Op=Opus op=opus Elev=Elevation Pop=Population pop=population
    Ser=Series ser=series col=column cols=columns vv=verses ref=reference c=circa ca=circa Ext=Extension
    ext=extension Extn=Extension extn=extension Apt=Apartment apt=apartment
    """
)
BEFORE_NUMBERS = FORMS["number"] | BEFORE_NUMBERS
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
    "p.a.": "per annum",
    "w.e.f.": "with effect from",
    "w.r.t.": "with respect to",
}
_TECHNOLOGY = re.compile(r"(\bInst(?:\.|itute)(?: of)? )Tech\.")
_SECTION_OF = re.compile(r"(?<![\w.])([Ss])(s?)\.\s?(?=\d+[A-Z]?(?:\(\w+\))*(?:(?:, | and | ?[-–] ?)\d+\w*)* of the\b)")
_SECTION_OF_CODE = re.compile(r"(?<![\w.])[Ss]\.\s?(?=\d+[A-Z]?(?:\(\w+\))* (?:IPC|CrPC|CPC|BNS|BNSS|RPC)\b)")
_UNDER_SECTION = re.compile(r"(?<!\w)([Uu])/s\.?\s?(?=\d)")
_LATIN_PHRASE = re.compile(
    "|".join(rf"(?<![\w.]){re.escape(one)}(?!\w)" for one in sorted(LATIN, key=len, reverse=True))
)
_AVERAGES: tuple[RewriteRule, ...] = (
    (
        re.compile(r"(\b(?:[Tt]he|high|low|max\.?|min\.?|body|room|air|oven|water|mean|outside) )temp\.(?=\s[a-z\d])"),
        r"\1temperature",
    ),
    (re.compile(r"\bmax\.(?=\s[a-z\d]|,)"), "maximum"),
    (re.compile(r"(\b(?:the|and|or) )min\.(?=\s[a-z\d]|,)"), r"\1minimum"),
    (re.compile(r"(?<![\d½¼¾] )(?<!\d)\b([Mm])in\. ?(?=\d)"), r"\1inimum "),
    (re.compile(r"(\ba )min\.(?=\s(?:of|wage|age|order|fee)\b)"), r"\1minimum"),
)
"""Short words of statistics; ``a few min.`` are minutes."""
_VERSUS = re.compile(
    r"(?<=[A-Za-z.,)] )vs?\.(?= (?:[A-Z]|\d(?!\d*\.\d)|the\b))|(?<=[a-z)] )vs?(?= [A-Z\d])|(?<=[a-z] )vs(?= )"
)
_COMPANY = re.compile(r"(\b[A-Z][\w&'-]+,? )(Inc|Ltd|Corp|Bros|INC|LTD|CORP|Co(?=[,;:)]|$| [a-z]))(?![\w.'-])")
"""A company without its full stop."""
_AND_COMPANY = re.compile(r"(?<=& )co\.(?= [a-z]|,)")
_HONOURABLE = re.compile(r"\bHon'ble\b")
_TITLE = re.compile(
    rf"\b(?!(?<=\d )ms\b|dr\.(?! [a-z\"']))({'|'.join(TITLES)})"
    r"(?:\.(?=\s?[A-Z\"']|\s|$)|(?<=Mr|Ms|Dr)(?=\s[A-Z])|(?<=Mrs)(?=\s[A-Z])"
    r"|(?<=mr|rs)(?=\s[a-z]))"
)
_ABBREVIATION = re.compile(rf"(?<![%@$&])\b({'|'.join(ABBREVIATIONS)})\.(?!\w)")
_WEEKDAY = re.compile(
    rf"\b((?!Sat|Sun)(?:{'|'.join(SHORT_DAYS)})|(?:(?<=\. and )|(?<=\. or )|(?<=\.[–-]))(?:Sat|Sun)"
    r"|(?:Sat|Sun)(?=\.(?:[,;:)–-]|\s(?:and|or|to|through|from|at|morning|afternoon|evening|night)\b)))\.(?!\w)"
)
_NUMBERED = re.compile(
    rf"(?<![\w.])({'|'.join(BEFORE_NUMBERS)})\.?\s?(?=#?[0-9]|[IVX]+\b|(?:{'|'.join(DIGITS)})\b|[A-Z]{{1,3}}-?\d"
    r"|\((?=\w{1,3}\))|(?<=Ex\. )[A-Z]\b)|(№)\s?(?=\d)"
)
_STREET = re.compile(
    r"(?<=[a-z0-9]) (St|Dr|Pl|Ct|Sq|Rd|Ave?|Blvd|Ln|Hwy|Pkwy|Cres|Expy|Fwy|Tpke|Cir|Terr?|Trl|Plz|Byp|Cv|Tce|Gdns)\.?"
    r"(?=\s*$|[,;:!?)]|\s+(?:[a-z]|[NSEW][.EW]?\b|Apt|Suite|Ste|Unit|#))"
)
_STREETS = table(
    """
    St=Street Dr=Drive Pl=Place Ct=Court Sq=Square Rd=Road Ave=Avenue Av=Avenue Blvd=Boulevard Ln=Lane Hwy=Highway
    Pkwy=Parkway Cres=Crescent Expy=Expressway Fwy=Freeway Tpke=Turnpike Cir=Circle Ter=Terrace Terr=Terrace
    Trl=Trail Plz=Plaza Aly=Alley Byp=Bypass Cv=Cove Xing=Crossing Tce=Terrace Gdns=Gardens
    """
)
_DIRECTION = re.compile(
    r"(?<=\d )(N|S|E|W|NE|NW|SE|SW)\.? (?=(?:[A-Z][a-z]+ |\d+(?:st|nd|rd|th) ){1,3}"
    rf"(?:{'|'.join((*_STREETS, *_STREETS.values(), 'Way'))})\b)"
)
_DIRECTIONS = table("N=North S=South E=East W=West NE=Northeast NW=Northwest SE=Southeast SW=Southwest")
_NAME_BEFORE = re.compile(r"(?:\b[A-Z][\w'.-]*|\d(?:st|nd|rd|th))$")
_UNSTOPPED = words("Fig Figs Nos Ext Apt pp Rm Blk Flt Rte Ste Lvl Qn Sec Vol Ch")
"""No words of English, so that they need no full stop before a number."""
_SAINT_IN_SMALL = re.compile(
    r"\bst\.? (?=(?:andrews?|anthony|augustine|barts|catherine|clair|elmo|francis|george|helena|james|john|joseph|"
    r"kitts|lawrence|louis|lucia|mary|michael|moritz|nicholas|patrick|paul|peter|petersburg|thomas|tropez|vincent)\b)"
)
_JUNIOR = re.compile(r"\b([Jj])r\b(?!\.|\w)")
_SAINT = re.compile(r"\bSt(?:\.\s?|\s)(?=[A-Z])")
_SAINTS = re.compile(r"\bSts\.\s?(?=[A-Z])")
_STARTERS = re.compile(
    r"\s+[\"'(]?(?:The|He|She|It|They|We|I|A|An|In|On|At|This|That|These|There|But|And|Or|So|If|His|Her|Their|Its|Our|"
    r"My|You|When|Then|As|For|From|To|By|With|After|Before|What|Who|Why|How|Where|No|Not|One|Some|All|Most|While|"
    r"Although|However)\b"
)


def sentence_ends(text: str, place: int) -> bool:
    """Return whether an abbreviation's full stop ends a sentence: nothing follows, or a word that begins sentences."""
    return not text[place:].strip(" \"')") or _STARTERS.match(text, place) is not None


def abbreviations(text: str) -> str:
    """
    >>> abbreviations("Mr. & Mrs. Hunt, of Rose & Co., met Dr. Roe on St. John St., No. 5, etc.")
    'Mister & Missus Hunt, of Rose & Company, met Doctor Roe on Saint John Street, Number 5, et cetera.'
    """
    text = _LATIN_PHRASE.sub(
        lambda match: (
            LATIN[match[0]] + ("." if match[0] == "p.a." and sentence_ends(match.string, match.end()) else "")
        ),
        text,
    )
    text = _TECHNOLOGY.sub(r"\1Technology", text)
    text = _AND_COMPANY.sub("company", text)
    text = _HONOURABLE.sub("Honorable", _VERSUS.sub("versus", text))
    text = _SECTION_OF.sub(lambda match: f"{'S' if match[1] == 'S' else 's'}ection{match[2]} ", text)
    text = _SECTION_OF_CODE.sub("Section ", text)
    text = _UNDER_SECTION.sub(lambda match: f"{match[1]}nder section ", text)
    text = rewrite(text, _AVERAGES)
    text = _COMPANY.sub(lambda match: match[1] + ABBREVIATIONS[match[2]], text)
    text = _JUNIOR.sub(r"\1unior", _SAINT_IN_SMALL.sub("saint ", text))
    text = _SAINTS.sub("Saints ", text)
    text = _DIRECTION.sub(lambda match: f"{_DIRECTIONS[match[1]]} ", text)
    # Streets before titles and saints: "St. John St." has both, told apart by what is next to them.
    text = _STREET.sub(_read_street, text)
    # A name written right after its title ("Dr.Roe") gets a space.
    text = _TITLE.sub(
        lambda match: TITLES[match[1]] + (" " if match.string[match.end() : match.end() + 1].isalpha() else ""), text
    )
    text = _SAINT.sub(_read_saint, text)
    text = _NUMBERED.sub(_read_before_number, text)
    text = _WEEKDAY.sub(
        lambda match: SHORT_DAYS[match[1]] + ("." if sentence_ends(match.string, match.end()) else ""), text
    )
    return _ABBREVIATION.sub(
        lambda match: ABBREVIATIONS[match[1]] + ("." if sentence_ends(match.string, match.end()) else ""), text
    )


def _read_street(match: re.Match[str]) -> str:
    """A street's name ends so; "Dr." and "St." before a name are a doctor and a saint."""
    if not _NAME_BEFORE.search(match.string[max(0, match.start() - 40) : match.start()]):
        return match[0]
    stop = "." if match[0].endswith(".") and sentence_ends(match.string, match.end()) else ""
    return f" {_STREETS[match[1]]}{stop}"


def _read_saint(match: re.Match[str]) -> str:
    """``St.`` before a name; after a name it could be a street, too."""
    if re.search(r"\b[A-Z]\w+ $", match.string[max(0, match.start() - 20) : match.start()]):
        report_guess("Hill St. John as Saint")
    return "Saint "


def _read_before_number(match: re.Match[str]) -> str:
    """An abbreviation before a number; without its full stop only those that aren't words."""
    name = match[1] or match[2]
    dotted = "." in match[0]
    rest = match.string[match.end() :]
    if not dotted and name != "№" and name not in _UNSTOPPED:
        return match[0]
    if name in ("c", "ca") and not re.match(r"(?:1\d{3}|20\d\d)\b", rest):
        return match[0]
    if name == "No" and not match.string[: match.start()].strip(" \"'("):
        report_guess("No. 5 as Number")
    return f"{BEFORE_NUMBERS[name]} "


SYMBOLS = (
    table(
        """
    &=and +=plus @=at *= ~=about ^= |= <=less_than >=greater_than ≤=at_most ≥=at_least ≈=about ≠=is_not_equal_to
    ×=times ÷=divided_by ±=plus_or_minus −=minus √=the_square_root_of ∞=infinity §=section ¶=paragraph ©=copyright
    ®= ™= °=degrees %=percent ¢=cents α=alpha β=beta
    γ=gamma δ=delta π=pi μ=mu Ω=ohm ‰=per_mille ²=squared ³=cubed №=number #=number
    ★=star ☆=star ⭐=star
    """
    )
    | {sign: currency.many for sign, currency in CURRENCIES.items() if len(sign) == 1}
    | table("☉=sun ⊙=sun ‱=basis_points")
    | {"=": "equals", "\\": "backslash"}
    | dict.fromkeys("_`′″·•●▪■◦‣►†‡¹", "")
)
"""The name of a symbol; empty where it is not spoken."""
_MARKS = {"[": "(", "]": ")", "{": "(", "}": ")"}
_PUNCTUATION: tuple[RewriteRule, ...] = (
    (re.compile(r"\.(?:\s?\.)+"), "… "),
    (re.compile(r"\s*(?:--+|—|(?<=\s)[-–](?=\s))\s*"), " — "),
    (re.compile("–"), "-"),
    (re.compile(r"[\[\]{}]"), lambda match: _MARKS[match[0]]),
    (
        re.compile(r"(?<=[a-z])\.(?=[A-Z][a-z])|(?<=[a-z]{2})\.(?=[a-z]|[A-Z]{2,}\b)|(?<=[A-Z]{2})\.(?=[A-Z][a-z])"),
        lambda match: _read_inner_stop(match),
    ),
    (
        re.compile(
            r"(?<=[A-Z]{2})\.(?=[a-z]{2})|(?<![^\s/(])\.(?=[A-Za-z])|(?<=\b[A-Z])\.(?=[a-z]{2})|(?<=(?<![\w.])[a-z])\.(?=[a-z]{2})"
        ),
        " dot ",
    ),
    (re.compile(r"(?<=\b[CF])#"), " sharp"),
    (re.compile(r"\b([A-Z]+)&([A-Z]+)\b"), lambda match: f"{' '.join(match[1])} and {' '.join(match[2])}"),
)
_BEGUN = re.compile(
    r"(?i:the|he|she|it|they|we|an?|in|on|at|this|that|these|there|but|and|or|so|if|his|her|their|its|our|my|you|when|then|as|"
    r"for|from|to|by|with|after|before|what|who|why|how|where|not|some|all|most|while|although|however|also|is|are|was)\b"
)
"""Words that begin sentences, rather than name a part of a program."""
_NOUN_ENDS = re.compile(r"(?:[a-z]{2}(?:tion|sion|ment|ness|ity|ance|ence|ers|ies)|[A-Z][a-z]+ed)$")
_PART_OF_NAME = re.compile(r"\w+(?:\.\w| dot )")
_ONE_WORD = re.compile(r"(?:^|[\s(\"'=])\w+$")
_UNSPACED = re.compile(r"[a-z],[A-Za-z]{2}")
"""A comma without its space, in a text that hence lacks it after full stops, too."""


def _read_inner_stop(match: re.Match[str]) -> str:
    """A full stop without a space: the end of a sentence (``the end.It was``), or *dot* in a name (orjson.Fragment).

    >>> symbols("orjson.Fragment, README.Debian, The end.It was. An infection.WHO said")
    'orjson dot Fragment, README dot Debian, The end. It was. An infection. WHO said'
    """
    text, place = match.string, match.start()
    if _PART_OF_NAME.match(text, match.end()):
        return " dot "
    if _BEGUN.match(text, match.end()) or _UNSPACED.search(text):
        return ". "
    if text[place + 1].islower():
        return " dot "
    before = text[max(0, place - 24) : place]
    if text[match.end() : match.end() + 2].isupper():
        return ". " if _NOUN_ENDS.search(before) else " dot "
    # A sentence has more than one word.
    is_name = text[place - 1].isupper() or (_ONE_WORD.fullmatch(before) and not before[:1].isspace())
    return " dot " if is_name else ". "


_SYMBOL = re.compile(f"[{re.escape(''.join(SYMBOLS))}]")
_REPEATED = re.compile(r"([*_=~+#$])\1{2,}")
_SLASH = re.compile(r"(?<=[A-Za-z.])\s?/\s?(?=[A-Za-z\"'])")
_SLASHED_WORDS: tuple[RewriteRule, ...] = (
    (re.compile(r"\b(and)/(or)\b", re.IGNORECASE), r"\1 \2"),
    (re.compile(r"\bw/o\b"), "without"),
    (re.compile(r"\bc/o\b"), "care of"),
    (re.compile(r"\bw/(?=\s)"), "with"),
)


def symbols(text: str) -> str:
    """
    >>> symbols("3+4=7, and/or w/o he/she")
    '3 plus 4 equals 7, and or without he slash she'
    """
    text = _REPEATED.sub(" ", rewrite(text, _PUNCTUATION))
    text = rewrite(text, _SLASHED_WORDS)
    text = _SLASH.sub(" slash ", text).replace("/", " ")
    return _SYMBOL.sub(lambda match: f" {SYMBOLS[match[0]]} ", text)


def find_unspoken(text: str) -> list[str]:
    """The symbols of a text that ``symbols`` leaves out.

    >>> find_unspoken("a * b © ™ ---- ####")
    ['*', '™', '####']
    """
    repeated = [match[0] for match in _REPEATED.finditer(text)]
    return [one for one in _REPEATED.sub(" ", text) if SYMBOLS.get(one) == "" and one != "`"] + repeated
