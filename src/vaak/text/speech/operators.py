"""English operators, powers, formulas and ratings in words, before other rules take their figures for counts."""

from __future__ import annotations

import re
import unicodedata

from vaak.text.speech.currencies import CURRENCIES
from vaak.text.speech.unit_names import NAME_BY_UNIT
from vaak.text.speech.unit_names import plural as plural_unit
from vaak.text.speech.words import RewriteRule, cardinal, plural, rewrite, table

NAMES_BY_SIGN = table(
    """
    ∈=in ∉=not_in ∩=intersection ∪=union ∅=the_empty_set ∑=sum ∏=product ∫=the_integral ∂=partial ∇=del ∀=for_all
    ∃=there_exists ⊂=a_subset_of ⊆=a_subset_of_or_equal_to ⊃=a_superset_of ∝=proportional_to ∠=angle
    ≦=less_than_or_equal_to ≧=greater_than_or_equal_to ⊥=perpendicular_to ∛=the_cube_root_of ∜=the_fourth_root_of
    ≉=not_about ≢=is_not_identical_to ⊄=not_a_subset_of ⊇=a_superset_of_or_equal_to ∄=there_does_not_exist ⊕=plus
    ⊗=times ∓=minus_or_plus ∶=to ⇐=implied_by ⟶=to ⟹=implies ↦=maps_to ℏ=h-bar ℓ=l ⌀=diameter
    ∮=the_contour_integral ⊢=proves ℝ=R ℤ=Z ℕ=N ℚ=Q ℂ=C ♀=female ♂=male ♥=heart ♡=heart ℅=care_of ℮= ⌘=Command
    ⌥=Option ⇧=Shift ⏎=Enter ♭=flat ♯=sharp ♮=natural ∥=parallel_to ¬=not ∧=and ∨=or ∴=therefore ∵=because →=to
    ←=from ↔=to_and_from ⇒=implies ⇔=if_and_only_if ≡=is_identical_to ∼=about ⋅=times ∙=times ≪=much_less_than
    ≫=much_greater_than ≅=about ℃=degrees_Celsius ℉=degrees_Fahrenheit ✓=check ✔=check ✗=cross ✘=cross ↑=up ↓=down
    ✕=times ∆=delta
    """
)
"""Symbols and their names, besides those of ``vaak.text.speech.abbreviations``."""
RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿ", "0123456789+-=()n", strict=True))
LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", "0123456789+-=()", strict=True))
STARS = "★☆⭐"
READ_AS_OPERATORS = frozenset((*NAMES_BY_SIGN, *RAISED, *LOWERED, *STARS, *"☉⊙‱"))
"""Characters that ``operators`` reads."""

GREEK = re.compile(
    r"(?<![\u0370-\u03ff\u1f00-\u1fff])(?![αβγδπμΩ])[\u0391-\u03a9\u03b1-\u03c9](?![\u0370-\u03ff\u1f00-\u1fff])"
)
"""A Greek letter by itself; several are a word of Greek."""


def greek_name(letter: str) -> str:
    """
    >>> greek_name("λ"), greek_name("Σ")
    ('lambda', 'sigma')
    """
    name = unicodedata.name(letter).removesuffix(" SYMBOL").rpartition(" ")[2].lower()
    return "lambda" if name == "lamda" else name


KEYS = table("Ctrl=Control Cmd=Command Esc=Escape Del=Delete Ins=Insert Opt=Option PgUp=Page_Up PgDn=Page_Down")
"""Keys of a keyboard."""
_SIGNS = table("*=star |=bar ^=caret ~=tilde /=slash \\=backslash !=bang") | {"_": "underscore", "=": "equals"}
_NAMES_IN_PERL = {"!": " bang", "?": " question mark"}
_ROUND = {
    10: "tens",
    100: "hundreds",
    1000: "thousands",
    10_000: "tens of thousands",
    100_000: "hundreds of thousands",
    1_000_000: "millions",
    1_000_000_000: "billions",
}
_MARK = "|".join(re.escape(mark) for mark in sorted(CURRENCIES, key=len, reverse=True))
_SEVERAL = re.compile(
    rf"(?<![A-Za-z])({_MARK})\s?(\d+(?:,\d{{3}})*)(?:'s|s)\b(?! ?\d)"
    rf"|(?<![\w.,])(10+|\d{{1,3}}(?:,000)+)(?:'s|s)(?= of\b)"
)
"""Round numbers of several: ``$1,000s``, ``100s of people``, ``$20s``."""
_FORMULAS = "NaCl|KCl|HCl|NaOH|KOH|HBr|NaF|KBr|AgCl|MgO|CaO|ZnO|FeO|CuO|SiC|GaN|GaAs|LiCl|NaBr|HCN|NaI|KI"
_ELEMENTS = "U|Pu|Cs|Sr|Co|I|C|K|Th|Ra|Am|Po|Rn|Tc|H|He"
ELEMENTS = table(
    """
    H=hydrogen He=helium Li=lithium Be=beryllium B=boron C=carbon N=nitrogen O=oxygen F=fluorine Ne=neon Na=sodium
    Mg=magnesium Al=aluminum Si=silicon P=phosphorus S=sulfur Cl=chlorine Ar=argon K=potassium Ca=calcium Fe=iron
    Co=cobalt Ni=nickel Cu=copper Zn=zinc Ga=gallium Se=selenium Br=bromine Kr=krypton Rb=rubidium Sr=strontium
    Mo=molybdenum Tc=technetium Ag=silver Cd=cadmium In=indium Sn=tin Te=tellurium I=iodine Xe=xenon Cs=cesium
    Ba=barium Lu=lutetium W=tungsten Ir=iridium Pt=platinum Au=gold Hg=mercury Tl=thallium Pb=lead Bi=bismuth
    Po=polonium At=astatine Rn=radon Ra=radium Ac=actinium Th=thorium U=uranium Np=neptunium Pu=plutonium
    Am=americium
    """
)
_RAISED = f"[{''.join(RAISED)}]"
_RAISED_POWER = re.compile(
    rf"(?<=\d)(?=[⁺⁻]|{_RAISED}{{2}}|[⁰¹⁴⁵⁶⁷⁸⁹ⁿ])({_RAISED}+)|(?<=10)([²³])|(?<=[a-z])([⁴⁵⁶⁷⁸⁹ⁿ]|⁻{_RAISED}+)"
)
_UNIT = "|".join(re.escape(one) for one in sorted(NAME_BY_UNIT, key=len, reverse=True) if len(one) > 1 or one == "m")
_POWER_OF_UNIT = re.compile(rf"(?<=10)({_RAISED}+)\s?({_UNIT})(?![\w/])")
_CHARGE = re.compile(rf"(?<=[A-Za-z\d₀-₉\])])([¹²³⁴]?)([⁺⁻])(?!{_RAISED})")
_OF_TEN = re.compile(r"(?<=\d)\s*[×xX·⋅]\s*(?=10(?:\^|[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]))")
_HUMPED = re.compile(
    r"(?<![A-Za-z\d'])(?!(?:Mc|Mac(?!OS)|De|Van|La|Le|Di|Du)[A-Z])(?=[A-Za-z]*[A-Z]{2})(?=[A-Za-z]*[a-z])[A-Za-z]{4,}(?![A-Za-z])"
)
_HUMP = re.compile(r"(?<=[a-z])(?=[A-Z](?!s(?![a-z])))|(?<=[A-Z])(?=[A-Z][a-z]{2})")
_RULES: tuple[RewriteRule, ...] = (
    (_SEVERAL, lambda found: _several(found)),
    (re.compile(r"(★+|⭐+)(☆*)"), lambda found: _rate(found)),
    (re.compile(r"\bA-Z\b"), "A to Z"),
    (re.compile(r"(?<![\w-])(XX?S|S|M|L)\s?[-–]\s?(M|L|[2-9]?X{1,4}L)(?![\w-])"), r"\1 to \2"),  # sizes of clothes
    (re.compile(r"(?<![\w–-])([A-Z])–([A-Z])(?![\w–-])"), r"\1 to \2"),
    (re.compile(r"\bpH\b"), "P H"),
    (re.compile(r"\b(?:Ca|Fe|Na|Mg|Cu|Zn|Al|Cl|Li|Ag)(?=[¹²³⁴]?[⁺⁻])"), lambda found: " ".join(found[0].upper())),
    (
        re.compile(rf"(?<![\w\])])([⁰¹²³⁴-⁹]{{1,3}})({'|'.join(sorted(ELEMENTS, key=len, reverse=True))})(?![a-z])"),
        lambda found: f"{ELEMENTS[found[2]]} {cardinal(int(_lowered(found[1])))}",
    ),
    (_OF_TEN, lambda _: " times "),
    (re.compile(r"\b(k?N|lbf?|ft|m?Pa|W|A)[·⋅](?=(?:m|ft|lbf?|h|s)\b)"), r"\1-"),  # products of units
    (_CHARGE, lambda found: f" {found[1] and RAISED[found[1]]} {'plus' if found[2] == '⁺' else 'minus'} "),
    (_POWER_OF_UNIT, lambda found: f" to the power of {_lowered(found[1])} {plural_unit(NAME_BY_UNIT[found[2]])}"),
    (_RAISED_POWER, lambda found: f" to the power of {_lowered(found[1] or found[2] or found[3])} "),
    (re.compile(rf"[{''.join(LOWERED)}]+"), lambda found: "".join(LOWERED[one] for one in found[0])),
    (re.compile(rf"\b(?:{_FORMULAS})\b"), lambda found: " ".join(found[0].upper())),
    (
        re.compile(rf"\b({_ELEMENTS})-(\d{{2,3}})\b(?!-)"),
        lambda found: f"{' '.join(found[1].upper())} {_isotope(found[2])}",
    ),
    (re.compile(r"\b(PM|AI|GPT|V|USB|HTML|HTTP) ?(\d+\.\d+)(?![\w.])"), r"\1 \2"),
    (
        re.compile(r"(?:(?<=[a-z)], )|(?<=[a-z)] )(?=[Vv]\. ?\d+\.\d))([Vv])\. ?(?=\d)"),
        lambda found: "version " if found[1] == "v" else "Version ",
    ),
    (re.compile(r"(?<=[A-Z]{2})v(?=\d)|\bv ?(?=\d+\.\d+(?![\w.]))"), " V "),  # GPLv3, v2.1
    (
        re.compile(r"\b(I|[Ww]e|[Yy]ou|[Tt]hey|much) <3(?![\w.])(?! (?:\w+s|%))|(?<=[a-z!] )<3(?=$|[!.])"),
        lambda found: f"{found[1] or ''} love",
    ),
    (re.compile("§§"), " sections "),
    (re.compile(r"(?<!\S)(?<![\d)] )–(?=\.?\d|[$£€₹¥]\d)"), "−"),  # a dash that stands for a minus sign
    (re.compile(rf"\b({'|'.join(KEYS)})(?=\s?[+-]\s?[A-Z\d]|\s(?:keys?|to)\b)"), lambda found: KEYS[found[1]]),
    ("//", re.compile(r"(?<![:/])/{2,}(?!\w)"), lambda found: " slash" * len(found[0])),  # s///
    (":=", re.compile(r"(?<!\S):=(?!\S)"), "colon equals"),
    # The variables of Perl: $! and %!.
    ("$", re.compile(r"(?<=(?<!\w)\$)([!?])(?= (?:[a-z]|=)|[\"',)])"), lambda found: _NAMES_IN_PERL[found[1]]),
    ("%!", re.compile(r"(?<=(?<!\w)%)!(?= (?:[a-z]|=)|[\"',)])"), " bang"),
    ("/", re.compile(r"\b((?:19|20)\d\d) / (?=(?:19|20)\d\d\b)"), r"\1 slash "),
    (re.compile(r"(?<=[²³)])\s?/\s?(?=\d)|(?<=\d) / (?=\d)"), " divided by "),
    (re.compile(r"(?<![\w./])(\d+)/(\d+)(?=\s*=)"), lambda found: _divide(found)),
    (re.compile(r"(?<=[\d)] )-(?= [\d(][^=;!?]{0,24}=)"), "minus"),
    (re.compile(r"(\b(?:[Cc]ompute|[Cc]alculate|[Ee]valuate|[Ss]olve) [\d.,]+) [-−] (?=\d)"), r"\1 minus "),
    (re.compile(r"(?:(?<=[\d)])|(?<=\b[A-Za-z]))\s+\*\s+(?=[\d(]|[A-Za-z]\b)|(?<=\d)\*(?=\d)"), " times "),
    (re.compile(r"(?<=\d) × (?=\d[^=]*=)"), " times "),
    (re.compile(r"(?<=[\w)\]])\s*!==?\s*(?=\S)"), " is not equal to "),
    (re.compile(r"(?<=\b[A-Za-z]) ?≥ ?"), " greater than or equal to "),
    (re.compile(r"(?<=\b[A-Za-z]) ?≤ ?"), " less than or equal to "),
    (re.compile(r"(?<=[\w)\]\s])<=>?(?=[\s\w(-])"), " less than or equal to "),
    (re.compile(r"(?<=[\w)\]\s])>=(?=[\s\w(-])"), " greater than or equal to "),
    (re.compile(r"(?<=\s)(?:<=|>=)$"), " equals "),
    ("->", re.compile(r"(?<=[\w)\]}])->(?=[\w{\[$(@%])"), " arrow "),
    ("->", re.compile(r"(?<=[\"'`])->(?=[\"'`])"), "arrow"),
    (re.compile(r"(?<=[\w)\]\s])(?:-{1,2}|=)>(?=\s)"), " to "),
    (
        "~",
        re.compile(r"(?<![\w~])([!=]~|~[~=])(?![~=])"),
        lambda found: f" {' '.join(_SIGNS[one] for one in found[1])} ",
    ),
    # An option of a command; I and A are words.
    ("-", re.compile(r"(?:(?<=[a-z,:] )|(?<=[\"'`(]))-(?=(?![IAa])[A-Za-z](?:[\s,.;:)\"'`]|$))"), "dash "),
    ("_", re.compile(r"(?:(?<=[\s$@%(])|^)_(?=[\s,.;:)\[{]|$)"), " underscore "),
    (re.compile(r"(?<=[\w)\]])\s*={2,3}\s*(?=[\w(\"'])"), " equals "),
    ("#", re.compile(r"(?<!\b[CF])#(?!\s?\d|\s*(?:$|[:,;)?.]|of\b))|(?<!\S)#(?=[:,;)?.])"), " hash "),
    ("*", re.compile(r"(?<=[$@%])\*(?![\w*])"), " star "),
    (".{", re.compile(r"(?<=\w)\.(?=\{)"), " dot "),
    ("$", re.compile(r"(?<!\$)\$(?![\w\s$]|\.\d)|(?<=[ (\"'])\$(?= (?!\d|sign\b))"), " dollar sign "),
    ("~", re.compile(r"(?:(?<=[\s(\"'/~])|^)~(?=[A-Za-z/]|~)"), " tilde "),
    # Any text, after a part of a name: *.txt, linux.*, SSL_*, SSL_verify*, mac-*.
    (
        "*",
        re.compile(r"(?<![\w*])\*(?=\.\w)|(?<=[\w\]]_)\*(?![\w*])|(?<=[A-Za-z]-)\*(?![\w*])|(?<!\S)\*(?=-[a-z])"),
        " star ",
    ),
    ("*", re.compile(r"(?<=\w)\.\*(?=[,;:)'\"]|\s[a-z]|\s[A-Z]\w+:|\.?$)"), " dot star"),
    (
        "*",
        re.compile(
            r"(\b(?:(?:un)?escaped|literal|single|leading|trailing|initial|final|bare|lone|extra|preceding|following) )"
            r"\*(?= [a-z]{2})"
        ),
        r"\1star",
    ),  # elsewhere it is the bullet of a list, or the border of a comment
    ("*", re.compile(r"(?<!\w)(\w+_\w+)\*(?![\w*])"), r"\1 star"),
    (
        "*",
        re.compile(r"(?:(?<=[a-z(,] )|(?<=\())\*{1,2}(?=[a-z_]\w*\b(?!\*)(?![^*]*[a-z]\*))"),
        lambda found: "star " * len(found[0]),
    ),
    (
        re.compile(r"(?<=[\"'`])([*|^~_/\\])(?=[\"'`])|(\b(?:or|and|the|an|a|with) )([*|^~])(?=[\s),.;:])"),
        lambda found: _name_sign(found),
    ),
    (re.compile(r"(?<!\S)([|^~]) (?=(?:or|and) )"), lambda found: f"{_SIGNS[found[1]]} "),
    ("~", re.compile(r"(?<=[A-Za-z])~(?=[A-Za-z])"), " "),
    ("**", re.compile(r"(?<=\w)\*\*(?=[-\w(])"), " to the power of "),
    (re.compile(r"(?<=\s)&&(?=\s)"), " and "),
    (re.compile(r"(?<=\s)\|\|(?=\s)"), " or "),
    (re.compile(r"(?<![\d.,])(\d+)!(?=\s*[=+*/×÷)-])"), r"\1 factorial "),
    (re.compile(r"(?<=\d)[~～](?=\d)"), " to "),
    (re.compile(rf"(?![¹²³]){_RAISED}"), lambda found: f" {_lowered(found[0])} "),
    (_HUMPED, lambda found: _part_humps(found)),
    (re.compile(f"[{''.join(NAMES_BY_SIGN)}]"), lambda found: f" {NAMES_BY_SIGN[found[0]]} "),
)


def operators(text: str) -> str:
    """
    >>> operators("6.02×10²³, a != b, Ca²⁺, H₂O, 6 × 7 = 42")
    '6.02 times 10 to the power of 23 , a is not equal to b, C A 2 plus , H2O, 6 times 7 = 42'
    """
    # In order: composed forms (10², !=) before the single signs in them.
    return rewrite(text, _RULES)


def _name_sign(found: re.Match[str]) -> str:
    """A sign in quotation marks, or next to a word such as *or*, is spoken of."""
    return f"{found[2] or ''}{_SIGNS[found[1] or found[3]]}"


def _rate(found: re.Match[str]) -> str:
    """Stars of a rating; a single one, or one without those that are missing, is read alone."""
    stars, missing = len(found[1]), len(found[2])
    if missing:
        return f" {cardinal(stars)} out of {cardinal(stars + missing)} stars "
    return f" {cardinal(stars)} stars " if stars > 1 else " star "


def _several(found: re.Match[str]) -> str:
    """``$1,000s`` are thousands of dollars, ``$20s`` twenties; other amounts are counted otherwise."""
    amount = int((found[2] or found[3]).replace(",", ""))
    many = _ROUND.get(amount)
    if found[1] is None:
        return many or found[0]
    return f"{many} of {CURRENCIES[found[1]].many}" if many else plural(cardinal(amount))


def _divide(found: re.Match[str]) -> str:
    """``8/2 =`` is a division, ``1/2 =`` a fraction."""
    return f"{found[1]} divided by {found[2]}" if int(found[1]) >= int(found[2]) else found[0]


def _part_humps(found: re.Match[str]) -> str:
    """``OpenSSL`` and ``JSONEncodeError`` at their capitals, if a part of them is an initialism.

    >>> [_HUMPED.sub(_part_humps, name) for name in ("OpenSSL", "JSONEncodeError", "mTLS", "HCoV", "APIs")]
    ['Open SSL', 'JSON Encode Error', 'M TLS', 'HCoV', 'APIs']
    """
    parts = _HUMP.split(found[0])
    if len(parts) == 1 or not any(len(part) > 1 and part.rstrip("s").isupper() for part in parts):
        return found[0]
    return " ".join(part.upper() if len(part) == 1 else part for part in parts)


def _lowered(raised: str) -> str:
    figures = "".join(RAISED[one] for one in raised)
    return re.sub("[-+=()]", lambda one: {"-": "minus ", "+": "plus ", "=": "equals "}.get(one[0], ""), figures)


def _isotope(number: str) -> str:
    return number if len(number) < 3 else f"{number[0]} {number[1:]}"
