"""Names and codes of figures, letters and signs: accounts, laws, doses, formulas, models, scores, lists."""

from __future__ import annotations

import re

from vaak.text.speech.addresses import STATES
from vaak.text.speech.operators import ELEMENTS
from vaak.text.speech.roman import parse_roman
from vaak.text.speech.short_words import FORMS
from vaak.text.speech.words import RewriteRule, cardinal, decimal, digits, grouped, rewrite, table

_LAW = (
    r"[Ss]ections?|[Ss]ec\.|§§?|[Aa]rt(?:icle)?s?\.?|[Rr]ules?|[Cc]lauses?|[Rr]eg(?:ulation)?s?\.?|[Pp]aras?(?:graph)?s?\.?|"
    r"[Vv]ol(?:ume)?s?\.?|\bss?\."
)
_SIZE = "XXS|XS|S|M|L|XL|XXL|XXXL|[2-5]XL"
_DOLLARS = "US|USD|CAD|CDN|AUD|NZD?|HKD?|SGD?|TWD?|A|C|S"
"""The country of a dollar, between its sign and the amount; other letters there are a name, such as $PATH."""
_LISTED = "i{1,3}|iv|vi{0,3}|ix|x"
_SHORT_STATES = FORMS["city"] | {one: said for one, said in FORMS["name"].items() if said in STATES.values()}
_STATES = "|".join(re.escape(one) for one in sorted((*STATES, *_SHORT_STATES, *STATES.values()), key=len, reverse=True))
_ON_PERIOD = table("w/w=week_on_week m/m=month_on_month")
_NTH = table("1=First 2=Second 3=Third 2d=second 3d=third 4th=fourth")
_AT_NIGHT = table("HS=every_night_at_bedtime AM=every_morning PM=every_evening D=every_day d=every_day day=every_day")


def _spell(code: str) -> str:
    return " ".join(digits(one) if one.isdecimal() else one.upper() for one in code if one.isalnum())


def _open_brackets(match: re.Match[str]) -> str:
    """``Section 501(c)(3)``."""
    # A decimal in words, or the letter after it would be its unit: 2.1(a).
    name, _, number = match[1].rpartition(" ")
    named = f"{name} {decimal(number)}" if re.fullmatch(r"\d+\.\d+", number) else match[1]
    return named + re.sub(
        r"\((\w+)\)",
        lambda one: f" {cardinal(int(one[1])) if one[1].isdecimal() else ' '.join(one[1].upper())}",
        match[2],
    )


def _read_vanity(match: re.Match[str]) -> str:
    """``1-800-FLOWERS``: a telephone's number in words."""
    area = "eight hundred" if match[1] == "800" else "nine hundred" if match[1] == "900" else digits(match[1])
    words = [digits(one) if one.isdecimal() else one.capitalize() for one in re.findall(r"\d+|[A-Za-z]+", match[2])]
    return f"one, {area}, {' '.join(words)}"


def _read_processor(match: re.Match[str]) -> str:
    model = match[2]
    said = f"{cardinal(int(model[:-3]))} {grouped(model[-3:])}" if len(model) == 5 else grouped(model)
    return f"I {digits(match[1])} {said} {' '.join(match[3])}".rstrip()


def _read_formula(match: re.Match[str]) -> str:
    """``NaHCO3``, if all of it are elements."""
    parts = re.findall(r"([A-Z][a-z]?)(\d*)", match[0])
    if any(symbol not in ELEMENTS for symbol, _ in parts) or not re.search(r"\d", match[0]):
        return match[0]
    return " ".join(
        " ".join(symbol.upper()) + (f" {cardinal(int(number))}" if number else "") for symbol, number in parts
    )


def _read_party(match: re.Match[str]) -> str:
    """``(D-Calif.)``, a member of Congress."""
    return f"{match[1]} {STATES.get(match[2]) or _SHORT_STATES.get(match[2]) or match[2]}"


def _read_interval(match: re.Match[str]) -> str:
    return f"every {cardinal(int(match[1]))}{f' to {cardinal(int(match[2]))}' if match[2] else ''} hours"


def _read_item(match: re.Match[str]) -> str:
    """``(ii)`` of a list; alone, ``(x)`` is a letter."""
    is_list = "(i)" in match.string or "(ii)" in match.string
    return f"({cardinal(parse_roman(match[1].upper()))})" if is_list else match[0]


_STANDARD = re.compile(
    r"(\b(?:ISO|IEC|IEEE)(?:/[A-Z]{2,})*(?: Standard| Std\.?)? )(\d{3,5}(?:\.\d+)?)"
    r"(?:-(\d{1,2})(?!\d))?(?:[:-]((?:19|20)\d\d)(?!\d))?"
)


def _read_standard(match: re.Match[str]) -> str:
    """``ISO/IEC 10514-1:1996``: the number of a part is read alone, and a year after a comma."""
    return " ".join(filter(None, (match[1] + match[2], match[3]))) + (f", {match[4]}" if match[4] else "")


_RULES: tuple[RewriteRule, ...] = (
    ("(", re.compile(r"\b(40[13]|457)\(([a-z])\)"), lambda match: f"{grouped(match[1])} {match[2].upper()}"),
    ("(", re.compile(rf"((?:{_LAW}) ?\d+[\w.]*)((?:\(\w{{1,4}}\))+)"), _open_brackets),
    ("(", re.compile(rf"\(({_LISTED})\)(?= ?\w)"), _read_item),
    (
        "/",
        re.compile(r"((?:\b[Nn]o\.|\bNumber|\bSI|\bAct|\bOrder) ?)(\d{1,4})/((?:19|20)\d\d)(?![\w/])"),
        r"\1\2 of \3",
    ),
    ("/", re.compile(rf"(?<![\w/])(?:{_SIZE})(?:/(?:{_SIZE}))+(?![\w/])"), lambda match: match[0].replace("/", ", ")),
    ("/", re.compile(r"(°[CF])/(?=[Gg]as)"), r"\1 or "),
    ("-", re.compile(r"\b1[- ](8\d\d|900)[- ]([A-Z][A-Za-z\d]+(?:-[A-Z\d][A-Za-z\d]*)*)\b"), _read_vanity),
    ("-", re.compile(r"\bi([3579])-(\d{4,5})([A-Z]{0,2})\b"), _read_processor),
    ("i", re.compile(r"\bi([3-6])86\b"), lambda match: f"I {cardinal(int(match[1]))} eighty-six"),
    (
        "7",
        re.compile(r"(?<![\w.,$-])(7[0-8]7)(?=s?\b(?: MAX\b| Max\b|-(?:[3-9]|10)\b))-?"),
        lambda match: f"{grouped(match[1])} ",
    ),
    ("-", re.compile(r"(?<=\bBoeing )(7\d7)-(\d{3})(?!\w)"), lambda match: f"{grouped(match[1])} {grouped(match[2])}"),
    ("-", re.compile(r"(?<![\w.,-])50-50(?![\w-])"), "fifty fifty"),
    ("-", re.compile(r"(?<=\bUS)-(?=\d)"), " "),  # roads
    ("-", re.compile(rf"\b([DRI])-({_STATES})\b\.?(?=[),]|\s(?:and|who|said)\b)"), _read_party),
    (
        "#",
        re.compile(r"(?<!\w)#(?=[\da-fA-F]*\d)(?=\d*[a-fA-F])([\da-fA-F]{6})(?!\w)"),
        lambda match: f"hash {_spell(match[1])}",
    ),
    (".", re.compile(r"(\b[a-z]+\d+)\.(?=[A-Z][a-z])"), r"\1 dot "),  # an attribute of h11
    ("Pat", re.compile(r"\bPat\.(?= [Nn]os?\.)"), "Patent"),
    ("Rep", re.compile(r"\bRep\.(?= [Nn]o\.? ?\d)"), "Report"),
    ("/", re.compile(r"\bS/(?=\d{3}\b(?![.,]\d))"), "S "),  # a machine, rather than soles
    # One letter and three figures: F-150, I-405, but not a round number.
    (
        "-",
        re.compile(r"(?<![\w-])([A-Z])-(\d[1-9]\d|\d0[1-9])\b(?!-|\.\d)"),
        lambda match: f"{match[1]}-{grouped(match[2])}",
    ),
    (
        "-",
        re.compile(r"\b[\da-f]{8}-(?:[\da-f]{4}-){3}[\da-f]{12}\b"),
        lambda match: _spell(match[0]),
    ),
    *((mark, _STANDARD, _read_standard) for mark in ("ISO", "IE")),
    (
        "_",
        re.compile(r"(?<![\w-])([a-z]{2})_([A-Z]{2})(?!\w)"),
        lambda match: " ".join(match[1].upper() + match[2]),
    ),  # en_US
    (
        ".",
        re.compile(r"(?<![A-Za-z\d])(v?)([xyzXYZ](?:\.[xyzXYZ])+)(?!\w)"),
        lambda match: ("V " if match[1] else "") + match[2].replace(".", " dot "),
    ),
    (
        re.compile(
            r"(?<=\b[35])['′](?=[- ](?:end|UTRs?|to|untranslated|termin(?:al|us)|cap|splice|exon|overhang|region))"
        ),
        " prime",
    ),
    (
        "ct",
        re.compile(r"(?<=\d) ?ct\.? (?=(?:diamond|gold|ruby|rubies|sapphires?|emeralds?|solitaire)s?\b)"),
        " carat ",
    ),
    ("pp", re.compile(r"(?<=\d) pp\b\.?(?=[,;)]|$)"), " per person"),
    ("X.", re.compile(r"\bX\.(\d{3})\b"), lambda match: f"X dot {grouped(match[1])}"),
    (".g.", re.compile(r"\b(e\.g\.)(?=[a-z(])"), r"\1 "),
    ("i.e", re.compile(r"\b(i\.e\.)(?=[a-z(])"), r"\1 "),
    ("Ph", re.compile(r"\bPh(?=[:.] ?[+(])"), "Phone"),
    ("-", re.compile(r"\bpg-(?=13\b)"), "P G "),
    (
        "-",
        re.compile(r"(?<=\d-)([a-z])([a-z])(?=-\d)"),
        lambda match: f"{match[1].upper()} {match[2].upper()}",
    ),  # 19-cv-412
    ("%", re.compile(r"(?<=%) (w/w|m/m)(?![\w/])"), lambda match: f" {_ON_PERIOD[match[1]]}"),
    (":", re.compile(r"(?<![\w:])[\dA-Fa-f]{2}(?::[\dA-Fa-f]{2}){5}(?![\w:])"), lambda match: _spell(match[0])),
    (re.compile(r"\b[A-Z]{2}\d\d ?[A-Z]{4}(?: ?\d{2,4}){2,7}\b"), lambda match: _spell(match[0])),
    (".", re.compile(r"\bH\.(26\d)\b"), lambda match: f"H {digits(match[1])}"),
    (".", re.compile(r"\bF\.\s?(2d|3d|4th)\b"), lambda match: f"F {_NTH[match[1]]}"),
    (
        ".",
        re.compile(
            r"((?:batting|hitting|hit|average of) )\.(\d{3})\b|(?<![\w.])()\.(\d{3})(?= (?:hitter|average|batting))"
        ),
        lambda match: (match[1] or "") + grouped(match[2] or match[4]),
    ),
    ("'", re.compile(r"(?<![\w.])(\d{1,3})\+(\d{1,2})'(?!\w)"), r"\1 plus \2 minutes"),
    ('"', re.compile(r'(?<![\w.])(\d+(?:\.\d+)?)" ?[x×] ?(\d+(?:\.\d+)?)"'), r"\1 inches by \2 inches"),
    (
        '"',
        re.compile(
            r'(?<![\w.])(\d+(?:\.\d+)?)"(?= (?:TV|television|monitor|screen|display|laptop|pizza|pan|pipe|skillet|'
            r"wheel|rim|tire|tablet|class|strip|piece|square|cake|round)s?\b)"
        ),
        r"\1 inch",
    ),
    (";", re.compile(r"\bTL;\s?DR\b"), "T L D R"),
    ("q", re.compile(r"\b[qQ](\d+)(?:\s?[-–]\s?(\d+))?\s?h(?:rs?)?\b"), _read_interval),
    ("q", re.compile(r"\bq(HS|AM|PM|D|d|day)\b"), lambda match: _AT_NIGHT[match[1]]),
    (
        re.compile(r"\b(480|576|720|1080|1440|2160)([pi])(?![\w-]|\.\d)"),
        lambda match: f"{grouped(match[1])} {match[2].upper()}",
    ),
    (
        re.compile(
            r"(?<![\w.,])(\d+(?:\.\d+)?)[xX](?=(?: (?:faster|slower|more|less|the|bigger|larger|better|higher|longer|"
            r"cheaper|likely|daily|weekly|smaller|lower|stronger)\b|/(?:day|week|wk|month|mo|year|yr)\b))"
        ),
        r"\1 times",
    ),
    (
        "x",
        re.compile(r"(?<=\d{4})(,?) x(\d{1,6})\b(?![.,]\d)"),
        lambda match: f"{match[1]} extension {digits(match[2])}",
    ),
    (re.compile(r"\b(?=[A-Z]\w*[a-z]\w*)(?:[A-Z][a-z]?\d{0,3}){2,}\b"), _read_formula),
    (
        "0",
        re.compile(r"(?<![\w.,-])([1-9]\d{0,2})((?: \d{3})+)(?<= 000)(?= [a-z]|[.,;)]?$)"),
        lambda match: match[0].replace(" ", ","),
    ),
    (".", re.compile(r"(?<![\w.,$£€])(\d{2,3})\.000(?= [a-z]+s\b)"), r"\1,000"),  # as in Europe
    (".", re.compile(r"^(\d{1,2})\.(?=[A-Z][a-z])"), r"\1. "),  # an item of a list
    # Text in tokens has spaces within figures: 3, 000 miles at 5: 00 a.m.
    ("0", re.compile(r"(?<![\w.,])(\d{1,3}), (?=000\b(?![.,]\d))"), r"\1,"),
    (":", re.compile(r"(?<![\w:.])(\d{1,2}): (?=[0-5]\d ?[AaPp]\.? ?[Mm]\b)"), r"\1:"),
    # Others lack them after a comma: 1991,1990 or New York,2002.
    (",", re.compile(r"(?<=[A-Za-z)]),(?=(?:1[5-9]|20)\d\d\b)|(?<=\b(?:19|20)\d\d),(?=(?:19|20)\d\d\b)"), ", "),
    ("©", re.compile(r"\b([Cc]opyright:?|COPYRIGHT:?) ©"), r"\1"),
    ("$", re.compile(r"(?<![\w$])([A-Za-z]{2,6})\$(?=[a-z]{1,3}(?![\w$]))"), r"\1s"),  # Ke$ha
    ("$", re.compile(r"(?<=[a-z])\$(?=[a-z])"), " dollar "),
    ("$", re.compile(rf"(?<![\w$])\$\{{?(?!(?:{_DOLLARS}) ?[\d.])(?=[A-Za-z_])"), "dollar "),  # $PATH
    (  # versions 1.5-2.1 are a range
        "-",
        re.compile(
            r"(\b(?:[Vv]ersion|[Rr]elease)(?: of| is| was| to)? \d+(?:\.\d+)+)-(?=\d)"
            r"|(\b(?:[Vv]ersions|[Rr]eleases) \d+(?:\.\d+)+)-(?=\d+(?!\.?\d))"
        ),
        lambda match: f"{match[1] or match[2]} dash ",
    ),
    ("M", re.compile(r"\bM[Kk]\.? (?=[IVX]+\b|\d)"), "Mark "),
    (
        "I",
        re.compile(r"\b(Phase|Stage|Type|Class|Grade|Tier|Level) (IV|I{1,3}|V)([abcABC])\b"),
        lambda match: f"{match[1]} {cardinal(parse_roman(match[2]))} {match[3].upper()}",
    ),
    (
        re.compile(r"\b([123]) (?=(?:Corinthians|Kings|Samuel|Chronicles|Thessalonians|Timothy|Peter|John) \d)"),
        lambda match: f"{_NTH[match[1]]} ",
    ),
)


def codes(text: str) -> str:
    """
    >>> codes("Section 501(c)(3), 1-800-FLOWERS, q6h, NaHCO3, 10x faster, 1080p")
    'Section 501 C three, one, eight hundred, Flowers, every six hours, N A H C O three, 10 times faster, ten eighty P'
    """
    return rewrite(text, _RULES)
