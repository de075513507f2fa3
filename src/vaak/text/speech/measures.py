"""Measures in words: a number and its unit, quotients of units, temperatures, feet and inches, powers of ten."""

from __future__ import annotations

import re

from vaak.text.speech.money import MAGNITUDES
from vaak.text.speech.unit_names import BARE, NAME_BY_UNIT, UNITS_WITH_STOP, plural
from vaak.text.speech.words import NUMBER, cardinal, decimal, ordinal, table, whole

ATTACHED_ONLY = frozenset(("s", "h", "d", "in", "bit", "cal", "Cal", "deg", "min.", "ga", "mil"))
"""Units that after a whole number and a space are more often something else."""
MOST_OF_4K = 3
"""Digits of the shortest number whose K is kelvin: 4K and 8K are sizes of pictures."""
CAPITALS = frozenset(("W", "V", "L", "J", "N", "K", "A", "T", "t", "Mt", "Gt", "NM", "MT", "Ma", "Ga", "ac", "au"))
"""Units that after a whole number and a space may be an initial, a direction or a name: 1026 W Main."""
WITH_SPACE = frozenset(("A", "T", "t", "d", "ac", "PA", "MA", "GA"))
"""Symbols that next to a figure are more often a letter of a code: bus 42A."""
_NAMED_BY_LETTER = re.compile(
    r"\b(?:Grade|Class|Section|Room|Exhibit|Part|Group|Table|Figure|Type|Schedule|Division|Vitamin|Bus|Gate|Form|Level|"
    r"Appendix|Annex|Annexure|Flat|Unit|Block|Seat|Row|Article|Category|Series|Line|Platform|Sector|"
    r"Paragraph|Clause|Rule|Regulation|Para|Volume|Art) $|§ ?$",
    re.IGNORECASE,
)
_AFTER_HYPHEN = re.compile(r"[A-Za-z]-$")
"""Letters and a hyphen before the number of a version: Apache-2.0 A copy."""
_BY_CONTEXT: tuple[tuple[str, re.Pattern[str], re.Pattern[str], str], ...] = tuple(
    (unit, re.compile(before), re.compile(after), names)
    for unit, before, after, names in (
        ("pt", r"\b(?:[Ff]ont|[Ss]ize|[Tt]ype|Arial|Roman|Helvetica|Calibri)\b[^.;]{0,12}$", r"", "point"),
        ("pt", r"", r" (?:font|type|text|bold|Times|Arial|Helvetica|Calibri|serif)", "point/point"),
        ("kt", r"", r"[ -](?:gold|white|yellow|rose|diamond|ring|chain|jewel)", "karat/karat"),
        (
            "ct",
            r"",
            r"(?!\.?[ -](?:diamond|gold|stone|ring|rub|sapph|emer|solit|total|tw\b|white|yellow|lab|round|oval))(?!\.)",
            "count/count",
        ),
        ("pc", r"", r"(?! (?:away|across|from|in diameter))", "piece"),
        ("bp", r"\b(?:by|rates?|yields?|spreads?|cut|hike|of|another)\b[^.;]{0,16}$", r"", "basis point"),
        ("bp", r"", r" (?:cut|hike|rise|increase|move|higher|lower|wider|tighter)", "basis point"),
        ("mil", r"[$£€]$", r"", "million/million"),
    )
)
"""A unit that by what is before and after it has another name."""
_OF_QUOTIENTS = (
    "day|night|week|month|year|hour|minute|second|person|people|dose|serving|cells?|kilo|liter|gallon|pound|ounce|mile|"
    "acre|square foot|head|capita|game|session|visit|page|use|user|item|unit|share|student|patient|household|vehicle|"
    "iter|iteration|op|operation|call|step|frame|token|query|request|sample|line|epoch|batch|yr|wk|mo|d(?!L)"
)
"""Words below the line of a quotient of units; d is a day."""
_POWER_WORDS = {"²": "square", "2": "square", "³": "cubic", "3": "cubic"}
_UNIT = "|".join(
    re.escape(unit) + (r"(?=\s+[a-z(=]|[,;:)])" if unit in UNITS_WITH_STOP else "")
    for unit in sorted(NAME_BY_UNIT, key=len, reverse=True)
)
_SCIENTIFIC = re.compile(
    rf"(?<![\w.,])([-−])?(\d+(?:\.\d+)?)(?:[eE]([-−+])|(?<=\.\d)[eE]()|e())(\d+)(?:\s?({_UNIT}))?(?!\w|[.,]\d)"
)
_MEASURE = re.compile(
    rf"(?P<sign>(?<![\w.%°)])[-−])?(?<![\w.,/])(?P<amount>{NUMBER})"
    rf"(?:\s?(?P<first>{_UNIT})?\s?(?:-|–|to\b)\s?(?P<to>{NUMBER}))?(?P<gap>[\s-]?)(?P<unit>{_UNIT})(?P<power>[²³]|(?:(?<=m)|(?<=ft|in|mi|yd))[23])?(?!\w|[²³]|/|[-–]\d)"
)
_PER_UNIT = re.compile(
    rf"((?<![\w.%°)])[-−])?(?<![\w.,])(?:({NUMBER})\s?[–-]\s?)?({NUMBER})\s?({_UNIT})([²³]?)((?:/(?:{_OF_QUOTIENTS}|{_UNIT})[²³]?)+)(?![\w/²³])"
)
_BELOW = re.compile(rf"/({_OF_QUOTIENTS}|{_UNIT})([²³]?)(?![A-Za-z])")
_PER_COUNT = re.compile(r"(?<=[\da-z]) ?/(L|mL|dL|μL|h|hr|min|sec|s|d|wk|yr|kg|ha|km|cm|mm|m)([²³]?)(?![\w/²³])")
"""A count per unit: 11.2 × 10⁹/L."""
_WITH_VULGAR = re.compile(rf"(?<![\w.,])(\d+\s?[½¼¾⅓⅔⅛⅜⅝⅞])\s?(?!(?:in|s|h|m)\b)({_UNIT})(?![\w/²³])")
_WITH_FRACTION = re.compile(
    rf"(?<![\w.,/])((?:\d+[ -])?)(\d{{1,2}}/\d{{1,2}}|[½¼¾⅓⅔⅛⅜⅝⅞])"
    rf"(?:\s?(?![A-Za-z](?![a-z])(?!\.(?<=[cTt]\.))|in\b)({_UNIT})\.?(?=\s+[a-z]|[,;:!?)]|$)"
    rf"|\s(?![A-Za-z](?![a-z])|in\b)({_UNIT})(?![\w/²³]))"
)
_PREPOSITION = re.compile(
    r"\s(?:their|the|an?|our|your|its|his|her|this|that|these|those|which|order|any|all|some|each|both|addition|place|use|"
    r"production|general|[A-Z][a-z]+|\d{4})\b"
)
"""What follows *in* where it isn't inches: version 3.7 in their repositories."""
_SECONDS = re.compile(r"[.?!]?$|[,;:!?)]|\s+[a-z]")
_NO_NAME = re.compile(r"[.?!]?$|[,;:!?)]|\s+[a-z(]")
_PER = re.compile(r"(?<=[a-z\d])/(?=(?:day|night|week|month|year|hour|minute|second|person|mile|kilometer|unit)\b)")
_PRICE_PER_UNIT = re.compile(rf"\b(dollars?|rupees?|pounds?|euros?|cents?|pence|paise|yen)/({_UNIT})(?![\w/²³])")
_VULGAR_PART = "(?:[ -]?[½¼¾⅓⅔⅛⅜⅝⅞]|[ -][1-9]/(?:2|4|8|16)(?![\\w/]))"
"""A fraction after a whole number."""
_SHORT_FEET_INCHES = re.compile(
    rf"(?<![\w.])(\d{{1,3}}) ?ft\.? (\d{{1,2}}{_VULGAR_PART}?) ?in\b(?:\.(?!\s*$))?(?=$|[\s,;:!?).])"
)
_FEET_INCHES_OPEN = re.compile(r"(?<![\w.'])([3-7])'(1[01]|\d)(?![\w'\"″.]|\s?(?:\"|ft))")
"""5'6 without a mark of inches, as heights are written."""
_FEET_INCHES = re.compile(rf"(?<![\w.])(\d{{1,3}})\s?['′]\s?(\d{{1,2}}(?:\.\d+|{_VULGAR_PART})?)\s?(?:\"|″|'')")
_INCHES_AND_PART = re.compile(rf"(?<![\w.])(\d{{1,3}}{_VULGAR_PART})(?:\"|″| in\.(?=\s[a-z(]|[,;:)]))")
_OF_TWO_UNITS = re.compile(rf"((?<![\w.,/]){NUMBER}\s?({_UNIT}))\s?/\s?(?={NUMBER}\s?({_UNIT})(?![\w/]))")
"""The same measure in two units (180°C/350°F), or two of one (8GB/16GB)."""
_SHORT_COUNT = re.compile(r"\d[KkMB]")
"""Much faster to look for than what follows."""
_THOUSANDS_OF = re.compile(
    r"(?<![\w.,])(?!40[13][kK]\b|(?:4|5|8|10)K (?:run|race|walk|video|screen|display|monitor|resolution)\b)(\d+)"
    r"([KkMB](?=\+(?:[ ,.;)]|$))"
    r"|[KkM](?=\+? (?:people|of|per|[a-z]+ (?:people|of|per)|(?:[a-z]{3,} )?[a-z]{2,}[a-rt-z]s)\b)"
    r"|B(?=\+? (?:people|users|views|downloads|parameters|tokens|dollars|years)\b))"
)
"""``300K views`` are thousands of what follows, not kelvins."""
_MAGNITUDE = "hundred|thousand|million|billion|trillion|lakh|crore|dozen"
_OF_MAGNITUDE = re.compile(
    rf"(?<![\w.,])(?:{NUMBER}(?:\s?(?:-|–|to)\s?{NUMBER})? |\b)({_MAGNITUDE}) "
    rf"(?!in\b|[a-zA-Z]\b|mo\b|mil\b)({_UNIT})(?![\w/²³])"
)
_IN_WORDS = (
    "two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|forty|fifty|sixty|seventy|eighty|"
    "ninety|hundred|few|several|many|couple of|dozen|extra|more|fewer|less"
)
_SEVERAL_OF = re.compile(
    rf"\b((?i:{_IN_WORDS})) (ft|mi|m|g|pts|pkgs|pcs|wks|yrs|mos|gal|qts|secs|min|hr|cc|l|L)\b\.?(?= [a-z]|[,;)]|$)"
)
_HALF_OR_ONE = re.compile(r"\b(?:per|an?|one|half|each|every|quarter|this|the)[ -](?:an? )?$", re.IGNORECASE)
_BARE_UNIT = "|".join(re.escape(one) for one in sorted(BARE, key=len, reverse=True))
_BARE = re.compile(rf"(?<![\w/.@#-])({_BARE_UNIT})(?:(?<![.²³])\.(?= [a-z]|[,;)]))?(?![\w/@²³-]|\.\w)")
_HEAT = re.compile(
    r"\b(?:bak\w+|oven|(?:pre)?heat\w*|temp(?:erature)?s?|roast\w*|high|low|fry\w*|cook\w*|fever|freez\w+|warm\w*|cool\w*|"
    r"boil\w*|chill\w*|grill\w*|smoke\w*|simmer\w*|cold|hot\w*|reach\w*|degrees?|drop\w*|weather|melt\w*)\b[^.!?;]{0,45}$",
    re.IGNORECASE,
)
_HEAT_AFTER = re.compile(r" (?:for|oven|outside|inside|until|heat|today|tonight|fan|degrees)\b|/\d{2,3} ?[CF]\b")
_TEMPERATURE = re.compile(
    r"(?<![\w.,-])([-−]?\d{2,3}(?:\.\d+)?)(?:(?:\s?[–-]\s?| to )(\d{2,3}(?:\.\d+)?))? ?([FC])(?=$|[\s.,;:)/])(/(?=\d))?"
)
_SCALE = re.compile(r"(\d(?:\s|-)degrees?) ([CF])\b(?!['’])")
_MINUTE_OF_ORDINAL = re.compile(r"(?<=\d(?:st|nd|rd|th) )min\b\.?(?=[\s,;:)]|$)")
_AGO = re.compile(r"(?<![\w.,])(\d{1,3}) ?(y|mo|w|d|h|m|s)(?= (?:ago|old|left|later|earlier|remaining|apart)\b)")
_ONE_OF_AGE = re.compile(r"\b(?:an?|[Tt]he|my|our|his|her) $")
_OF_AGO = table("y=year mo=month w=week d=day h=hour m=minute s=second")
_YEAR_BOND = re.compile(
    r"(?<![\w.,])(\d{1,2})[yY](?=[ -](?:bond|note|yield|Treasur|gilt|bund|swap|fixed|mortgage|loan|ARM|rate)\w*)"
)
_STONES = re.compile(r"(?<![\w.,])(\d{1,2}) ?st\.? ?(\d{1,2}(?:\.\d)?) ?(?:lbs?\b\.?|pounds\b)?(?= |[,;.!?)]|$)")
_STONES_ALONE = re.compile(r"(\b(?:weigh\w*|lost|gained|lose|at) (?:about |over |under |nearly )?\d{1,2}) ?st\b(?!\.)")
_PART_OF_SECOND = re.compile(r"(?<![\w./])1/(\d{2,5}) ?s(?:ec)?(?:\.(?= [a-z]))?(?![\w/])")
_APERTURE = re.compile(r"(?<!°)\b([fF])/(?=\d)")
_AMPS = re.compile(
    r"(?<![\w.,])(\d+(?:\.\d+)?)A(?=[ -](?:fuse|socket|plug|breaker|circuit|charg|current|outlet|supply|load|rated))"
)
_PER_AREA = re.compile(r"(?<=[a-z]) ?(w/w|v/v|w/v|m/m)(?!\w)")
_OF_AREA = table("w/w=weight_by_weight v/v=volume_by_volume w/v=weight_by_volume m/m=mass_by_mass")
_CONSUMPTION = re.compile(rf"({NUMBER}) ?(L|l|kWh) ?/ ?100 ?km\b")
_PAPER = re.compile(rf"(\d ?(?:×|x|by) ?{NUMBER}) in\b\.?(?=$|[\s,;:)])")
_ONE = re.compile(r"\b(?:[Aa]n?|[Aa]nother|[Ee]ach|[Ee]very)\s$")
_NOUN_FOLLOWS = re.compile(
    r"\s(?!(?:of|per|and|or|nor|but|in|to|at|from|a|an|the|is|was|were|are|has|had|away|apart|ago|later|more|less|each|off|"
    r"up|down|on|by|with|for|after|before|above|below|over|under|than|so|as|if|when|while|because|every)\b)[a-z]{3,}"
)
"""Between these a unit is singular: a 12 V battery."""
_ANGLE = re.compile(r"(\d+)°\s?(\d+(?:\.\d+)?)[′'](?:\s?(\d+(?:\.\d+)?)[″\"])?")
_PRIMES = re.compile(rf"({NUMBER})\s?([′″])")
_MINUTES_OF_MATCH = re.compile(r"(?<=\()(\d{1,3})(?:\+(\d{1,2}))?'(?=[,;)])|(?<=, )(\d{1,3})(?:\+(\d{1,2}))?'(?=[,;)])")
"""Minutes of a match, in brackets after a name: Messi (87')."""
_OPENED = re.compile(r"(?<!\w)[`'][^`']*$")
_FEET = re.compile(r"(?<![\w.'])(\d{1,3})'(?![\w'])")
_INCHES = re.compile(rf"(?<![\w.\"])({NUMBER})\"")
_INCHES_SHORT = re.compile(rf"(?<![\w.])({NUMBER})([ -])in\.(?=\s[a-z(]|[,;:)])")
_SHORT_STOP = re.compile(rf"(?<=\d)([ -]?(?!(?:c|T|t|ct|pt|pc)\.)(?:{_UNIT}))\.(?=\s+[a-z\d&+(=]|\s?[–-]\s?\d|[,;:)])")
_PER_SHORT = re.compile(r"\bper (gal|lb|oz|kg|km|mi|hr|min|sec|sq\.? ft|qt|pt|mL|L)\b\.?")
_TIMES = re.compile(rf"(?<=[\w'\".])\s*×\s*(?={NUMBER})|(?<=[\d'\".]) x (?={NUMBER}\b)|(?<=\d)x(?=\d)")
_FRACTION_OF_INCH = re.compile(r"(?<=\d)/(\d{1,2})(?:″|\"| in\.)(?!\w)")


def units(text: str) -> str:
    """
    >>> units("5 kg at 20 °C, 60mph, 0.5%, a 10-km run")
    'five kilograms at twenty degrees Celsius, sixty miles per hour, zero point five percent, a ten kilometer run'
    """
    # From the most specific form to the most general: each rule consumes figures that later ones would misread.
    if _SHORT_COUNT.search(text):
        text = _THOUSANDS_OF.sub(lambda match: f"{whole(match[1])} {MAGNITUDES[match[2]]}", text)
    text = _OF_MAGNITUDE.sub(lambda match: match[0].removesuffix(match[2]) + plural(NAME_BY_UNIT[match[2]]), text)
    text = _SCIENTIFIC.sub(_scientific, text)
    text = _read_contexts(text)
    if "/" in text:
        text = text.replace("/1.73 m²", " per 1.73 m²")  # the surface of a body, in kidneys' rates
        text = _CONSUMPTION.sub(
            lambda match: f"{_name_amount(match[1], NAME_BY_UNIT[match[2]])} per one hundred kilometers", text
        )
        text = _PER_UNIT.sub(_measure_per_unit, text)
    if "per " in text:
        text = _PER_SHORT.sub(_per_short, text)
    text = _WITH_VULGAR.sub(_measure_with_vulgar, text)
    text = _PRICE_PER_UNIT.sub(lambda match: f"{match[1]} per {NAME_BY_UNIT[match[2]].partition('/')[0]}", text)
    text = _WITH_FRACTION.sub(_fraction_of_unit, text)
    text = _TIMES.sub(" by ", text)
    text = _FRACTION_OF_INCH.sub(_inch_after_fraction, text)
    text = _OF_TWO_UNITS.sub(lambda match: match[1] + (", " if match[2] == match[3] else " or "), text)
    text = _ANGLE.sub(_angle, text)
    text = _SHORT_FEET_INCHES.sub(lambda match: f"{_name_amount(match[1], 'foot/feet')} {_name_inches(match[2])}", text)
    # ratios reads the rest of a whole number and its fraction
    text = _FEET_INCHES.sub(
        lambda match: (
            f"{decimal(match[1])} foot {decimal(match[2]) if re.fullmatch(NUMBER, match[2]) else f'{match[2]} inches'}"
        ),
        text,
    )
    text = _FEET_INCHES_OPEN.sub(lambda match: f"{cardinal(int(match[1]))} foot {cardinal(int(match[2]))}", text)
    text = _INCHES_AND_PART.sub(r"\1 inches", text)
    text = _PRIMES.sub(lambda match: _name_amount(match[1], "foot/feet" if match[2] == "′" else "inch/inches"), text)
    text = _MINUTES_OF_MATCH.sub(_read_minute_of_match, text)
    text = _FEET.sub(_feet, text)
    text = _INCHES.sub(_inches, text)
    text = _INCHES_SHORT.sub(_inches_short, text)
    text = _SHORT_STOP.sub(r"\1", text)
    text = _MEASURE.sub(_measure, text)
    if "/" not in text:
        return text
    text = _PER_COUNT.sub(lambda match: f" per {_name_below(match[1], match[2])}", text)
    return _PER.sub(" per ", text)


def bare_units(text: str) -> str:
    """Units without a figure.

    >>> bare_units("Sold by the kg, a few km away, weight (lbs), in m/s²")
    'Sold by the kilogram, a few kilometers away, weight (pounds), in meters per second squared'
    """
    text = _SEVERAL_OF.sub(lambda match: f"{match[1]} {plural(NAME_BY_UNIT[match[2]])}", text)
    return _BARE.sub(_name_bare, text)


def _name_bare(match: re.Match[str]) -> str:
    """The unit in the singular after a word such as per or half, otherwise in the plural."""
    names = NAME_BY_UNIT.get(match[1]) or _raise_unit(NAME_BY_UNIT[match[1][:-1]], match[1][-1])
    single = _HALF_OR_ONE.search(match.string[max(0, match.start() - 12) : match.start()])
    return names.partition("/")[0] if single else plural(names)


def _read_contexts(text: str) -> str:
    """Letters after figures that are units only by the words around them."""
    if "C" in text or "F" in text:
        text = _TEMPERATURE.sub(_read_temperature, text)
    if "A" in text:
        text = _AMPS.sub(lambda match: _name_amount(match[1], "amp").removesuffix("s"), text)
    if "/" in text:
        text = _APERTURE.sub(r"\1 ", text)
        text = _PART_OF_SECOND.sub(lambda match: f"one {ordinal(int(match[1]))} of a second", text)
        text = _PER_AREA.sub(lambda match: f" {_OF_AREA[match[1]]}", text)
    if "degree" in text:
        text = _SCALE.sub(lambda match: f"{match[1]} {'Celsius' if match[2] == 'C' else 'Fahrenheit'}", text)
    text = _YEAR_BOND.sub(lambda match: f"{cardinal(int(match[1]))} year", text)
    text = _AGO.sub(_read_age, text)
    text = _STONES.sub(lambda match: f"{cardinal(int(match[1]))} stone {decimal(match[2])}", text)
    text = _STONES_ALONE.sub(r"\1 stone", text)
    text = _MINUTE_OF_ORDINAL.sub("minute", text)
    return _PAPER.sub(r"\1 inches", text)


def _read_temperature(match: re.Match[str]) -> str:
    """``bake at 350F``: a scale's letter where heat is spoken of."""
    least, most, scale, other = match.groups()
    is_heat = _HEAT.search(match.string[max(0, match.start() - 60) : match.start()])
    if not is_heat and not _HEAT_AFTER.match(match.string, match.end() - len(other or "")):
        return match[0]
    amount = f"{least} to {most}" if most else least
    return f"{amount} degrees {'Celsius' if scale == 'C' else 'Fahrenheit'}{' or ' if other else ''}"


def _read_age(match: re.Match[str]) -> str:
    """``5m ago`` are minutes, ``6m old`` months."""
    unit = "month" if match[2] == "m" and match.string.startswith(" old", match.end()) else _OF_AGO[match[2]]
    one = match[1] == "1" or _ONE_OF_AGE.search(match.string[max(0, match.start() - 6) : match.start()])
    return f"{cardinal(int(match[1]))} {unit}{'' if one else 's'}"


def _scientific(match: re.Match[str]) -> str:
    """``5e-5 m``; a capital E without sign or decimals is left as a code (3E8)."""
    sign, power = "minus " if match[1] else "", "minus " if match[3] in ("-", "−") else ""
    said = f"{sign}{decimal(match[2])} times ten to the power of {power}{decimal(match[6])}"
    return f"{said} {plural(NAME_BY_UNIT[match[7]])}" if match[7] else said


def _measure_per_unit(match: re.Match[str]) -> str:
    """``50 mg/dL``, ``5 mg/kg/day``; a quotient with a name (km/h) is left to the rule of that name."""
    sign, least, amount, above, power, below = match.groups()
    if f"{above}{power}{below}" in NAME_BY_UNIT:
        return match[0]
    least = f"{decimal(least)} to " if least else ""
    several = _name_amount(amount, _raise_unit(NAME_BY_UNIT[above], power), several=bool(least))
    return f"{'minus ' if sign else ''}{least}{several}" + "".join(
        f" per {_name_below(*one)}" for one in _BELOW.findall(below)
    )


def _name_below(unit: str, power: str) -> str:
    """The name of a unit below a line, which stands for one of it."""
    name = "day" if unit == "d" else NAME_BY_UNIT.get(unit, unit)
    return _raise_unit(name, power).partition("/")[0]


def _per_short(match: re.Match[str]) -> str:
    """``per gal.``; a full stop that ends the sentence stays."""
    unit = match[1].replace("sq. ft", "sq ft")
    stop = "." if match[0].endswith(".") and not match.string[match.end() :].strip(" \"')") else ""
    return f"per {'pint' if unit == 'pt' else _name_below(unit, '')}{stop}"


def _raise_unit(names: str, power: str) -> str:
    one, _, many = names.partition("/")
    return f"{_POWER_WORDS[power]} {one}/{_POWER_WORDS[power]} {many or one + 's'}" if power else names


def _measure_with_vulgar(match: re.Match[str]) -> str:
    one, _, many = NAME_BY_UNIT[match[2]].partition("/")
    return f"{match[1]} {many or one + 's'}"


def _fraction_of_unit(match: re.Match[str]) -> str:
    """``3/4 tsp`` is three quarters teaspoon, ``1 1/2 lbs`` one and a half pounds; ``ratios`` reads the figures."""
    one, _, many = NAME_BY_UNIT[match[3] or match[4]].partition("/")
    return f"{match[1]}{match[2]} {many or one + 's' if match[1] else one}"


def _is_no_unit(match: re.Match[str]) -> bool:
    """Return whether the letters after a number are a size, a time, a preposition, an initial or a code."""
    unit, gap = match["unit"], match["gap"]
    # 4K and 8K are pictures' sizes; kelvins have a space, or more figures.
    if unit == "K" and not gap and len(match["amount"]) < MOST_OF_4K:
        return True
    of_time = unit in ("s", "h", "d") and gap == " " and _SECONDS.match(match.string, match.end())
    if gap != " " and unit in WITH_SPACE:
        return True
    # "5 in" is rarely inches and "3 s" rarely seconds, unless the number has decimals, or a time ends the clause.
    if gap and unit in ATTACHED_ONLY and not match["power"] and "." not in match["amount"] and not of_time:
        return True
    if unit == "in" and gap == " " and _PREPOSITION.match(match.string, match.end()):
        return True
    before = match.string[max(0, match.start() - 16) : match.start()]
    is_named = _NAMED_BY_LETTER.search(before) or not _NO_NAME.match(match.string, match.end())
    is_initial = _AFTER_HYPHEN.search(before) or ("." not in match["amount"] and is_named)
    return bool(gap and unit in CAPITALS and is_initial)


def _measure(match: re.Match[str]) -> str:
    if _is_no_unit(match):
        return match[0]
    unit, gap = match["unit"], match["gap"]
    names = _find_names(match)
    if match["power"]:
        names = _raise_unit(names, match["power"])
    sign = "minus " if match["sign"] else ""
    if match["to"]:
        # "5 kg to 7 kg" names the unit once, "40 bps to 8.5%" both.
        first = match["first"]
        if first and NAME_BY_UNIT[first] != NAME_BY_UNIT[unit]:
            return f"{sign}{_name_amount(match['amount'], NAME_BY_UNIT[first])} to {_name_amount(match['to'], names)}"
        if first and float(match["amount"].replace(",", "")) > float(match["to"].replace(",", "")):  # by 58% to 42%
            return f"{sign}{_name_amount(match['amount'], names)} to {_name_amount(match['to'], names)}"
        return f"{sign}{decimal(match['amount'])} to {_name_amount(match['to'], names, several=True)}"
    # As an adjective the unit is singular: a 10-km run, a 12 V battery, a 64bit processor.
    if gap == "-" or (unit == "bit" and not gap) or _is_adjective(match):
        return f"{sign}{decimal(match['amount'])} {names.partition('/')[0]}"
    return sign + _name_amount(match["amount"], names)


def _find_names(match: re.Match[str]) -> str:
    """The names of a measure's unit, by what is around it."""
    unit = match["unit"]
    for other, before, after, names in _BY_CONTEXT:
        if unit == other and "." not in match["amount"]:
            is_after = before.search(match.string[max(0, match.start() - 24) : match.start()])
            if is_after and after.match(match.string, match.end()):
                return names
    return NAME_BY_UNIT[unit]


def _is_adjective(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 10) : match.start()]
    return bool(_ONE.search(before) and _NOUN_FOLLOWS.match(match.string, match.end()))


def _name_inches(amount: str) -> str:
    return _name_amount(amount, "inch/inches") if amount.isdecimal() else f"{amount} inches"


def _name_amount(amount: str, names: str, several: bool = False) -> str:
    one, _, many = names.partition("/")
    return f"{decimal(amount)} {one if amount == '1' and not several else many or one + 's'}"


def _read_minute_of_match(match: re.Match[str]) -> str:
    minute, added = match[1] or match[3], match[2] or match[4]
    return f"{cardinal(int(minute))} plus {cardinal(int(added))} minutes" if added else f"{ordinal(int(minute))} minute"


def _angle(match: re.Match[str]) -> str:
    said = f"{_name_amount(match[1], 'degree')} {_name_amount(match[2], 'minute')}"
    return f"{said} {_name_amount(match[3], 'second')} " if match[3] else f"{said} "


def _inches_short(match: re.Match[str]) -> str:
    """``6 in. of rain``, ``a 6-in. pipe``."""
    return f"{decimal(match[1])} inch" if match[2] == "-" else _name_amount(match[1], "inch/inches")


def _inch_after_fraction(match: re.Match[str]) -> str:
    closes = match[0].endswith('"') and match.string.count('"', 0, match.start()) % 2
    return match[0] if closes else f"/{match[1]} inch"


def _feet(match: re.Match[str]) -> str:
    """Feet, where the mark doesn't close a quotation."""
    opened = _OPENED.search(match.string[: match.start()])
    return match[0] if opened else _name_amount(match[1], "foot/feet")


def _inches(match: re.Match[str]) -> str:
    """Inches, where the quotation mark doesn't close a quotation."""
    # An odd number of quotation marks before means that this one closes a quotation.
    opened = match.string.count('"', 0, match.start()) % 2
    return match[0] if opened else _name_amount(match[1], "inch/inches")
