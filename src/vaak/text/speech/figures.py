"""Figures in words: measures with a unit, and all figures that are left after these, dates and money.

Measures are in powers of ten too, percentages, temperatures, feet and inches; the rest are ordinals, fractions,
ranges, codes, house numbers and counts.
"""

from __future__ import annotations

import re

from vaak.text.speech.dates_and_times import MONTH, year_of_century
from vaak.text.speech.guesses import report_guess
from vaak.text.speech.money import MAGNITUDES
from vaak.text.speech.ratios import ratios
from vaak.text.speech.words import (
    GROUPED,
    NUMBER,
    cardinal,
    decimal,
    digits,
    grouped,
    ordinal,
    plural,
    table,
    whole,
    words,
    year,
)

NAME_BY_UNIT = table(
    """
    %=percent/percent ‰=per_mille/per_mille mm=millimeter cm=centimeter m=meter km=kilometer μm=micrometer
    μg=microgram mcg=microgram
    μs=microsecond μL=microliter μl=microliter μV=microvolt μA=microamp nm=nanometer ft=foot/feet yd=yard
    yds=yard mi=mile mg=milligram g=gram kg=kilogram lb=pound lbs=pound oz=ounce
    l=liter L=liter ml=milliliter mL=milliliter cl=centiliter gal=gallon ha=hectare s=second sec=second secs=second
    ms=millisecond min=minute mins=minute h=hour hr=hour hrs=hour Hz=hertz/hertz kHz=kilohertz/kilohertz
    MHz=megahertz/megahertz GHz=gigahertz/gigahertz W=watt kW=kilowatt MW=megawatt kWh=kilowatt_hour V=volt
    kV=kilovolt mA=milliamp mAh=milliamp_hour dB=decibel Pa=pascal hPa=hectopascal kPa=kilopascal psi=P_S_I/P_S_I
    kJ=kilojoule cal=calorie kcal=kilocalorie bit=bit KB=kilobyte kB=kilobyte MB=megabyte GB=gigabyte TB=terabyte
    kbps=kilobit_per_second/kilobits_per_second Mbps=megabit_per_second/megabits_per_second
    Gbps=gigabit_per_second/gigabits_per_second mph=mile_per_hour/miles_per_hour
    kph=kilometer_per_hour/kilometers_per_hour km/h=kilometer_per_hour/kilometers_per_hour
    kmh=kilometer_per_hour/kilometers_per_hour m/s=meter_per_second/meters_per_second
    m/s²=meter_per_second_squared/meters_per_second_squared mpg=mile_per_gallon/miles_per_gallon
    rpm=revolution_per_minute/revolutions_per_minute bpm=beat_per_minute/beats_per_minute
    sq_ft=square_foot/square_feet sq._ft.=square_foot/square_feet sq_mi=square_mile sq._mi.=square_mile
    in=inch/inches qt=quart tbsp=tablespoon tsp=teaspoon cu_ft=cubic_foot/cubic_feet
    J=joule N=newton kN=kilonewton K=kelvin kΩ=kiloohm MΩ=megaohm Ω=ohm dL=deciliter dl=deciliter mol=mole
    mmol=millimole ng=nanogram fl_oz=fluid_ounce fl._oz.=fluid_ounce GPa=gigapascal MPa=megapascal
    mbar=millibar/millibars mW=milliwatt GW=gigawatt MJ=megajoule
    mmHg=millimeter_of_mercury/millimeters_of_mercury px=pixel fps=frame_per_second/frames_per_second
    mV=millivolt ppm=part_per_million/parts_per_million ppb=part_per_billion/parts_per_billion Wh=watt_hour
    Ah=amp_hour bps=basis_point yr=year yrs=year wk=week wks=week mos=month kgs=kilogram kms=kilometer gm=gram gms=gram
    ltr=liter ltrs=liter hp=horsepower/horsepower sq_m=square_meter sq._m.=square_meter sq_km=square_kilometer
    mya=million_years_ago/million_years_ago Ga=billion_years/billion_years Ma=million_years/million_years
    ka=thousand_years/thousand_years Gyr=billion_years/billion_years Myr=million_years/million_years
    kyr=thousand_years/thousand_years ly=light-year AU=astronomical_unit kpc=kiloparsec Mpc=megaparsec
    eV=electron_volt keV=kiloelectron_volt MeV=megaelectron_volt GeV=gigaelectron_volt TeV=teraelectron_volt
    mT=millitesla nT=nanotesla μT=microtesla pF=picofarad nF=nanofarad μF=microfarad Nm=newton_meter atm=atmosphere
    PB=petabyte MWh=megawatt_hour GWh=gigawatt_hour TWh=terawatt_hour kVA=kilovolt-amp cc=cc/cc
    bhp=brake_horsepower/brake_horsepower kmph=kilometer_per_hour/kilometers_per_hour
    kmpl=kilometer_per_liter/kilometers_per_liter sqft=square_foot/square_feet
    Tbsp=tablespoon Tsp=teaspoon wkt=wicket wkts=wicket
    °C=degree_Celsius/degrees_Celsius °_C=degree_Celsius/degrees_Celsius °F=degree_Fahrenheit/degrees_Fahrenheit
    °_F=degree_Fahrenheit/degrees_Fahrenheit °=degree
    """
)
"""Unit → its name; the plural is separated by a slash where it isn't the name with an s."""
ATTACHED_ONLY = frozenset(("s", "h", "in", "bit", "cal"))
"""Units that after a whole number and a space are more often something else."""
MOST_OF_4K = 3
"""With at least this many digits, a K next to them is kelvin."""
CAPITALS = frozenset(("W", "V", "L", "J", "N", "K"))
"""Units that after a whole number and a space may be an initial or a direction: 1026 W Main."""
_SQUARED = {"²": "square", "2": "square", "³": "cubic", "3": "cubic"}
_UNIT = "|".join(re.escape(unit) for unit in sorted(NAME_BY_UNIT, key=len, reverse=True))
_SCIENTIFIC = re.compile(
    rf"(?<![\w.,])([-−])?(\d+(?:\.\d+)?)(?:[eE]([-−+])|(?<=\.\d)[eE]()|e())(\d+)(?:\s?({_UNIT}))?(?!\w|[.,]\d)"
)
_MEASURE = re.compile(
    rf"(?P<sign>(?<![\w.%°)])[-−])?(?<![\w.,/])(?P<amount>{NUMBER})"
    rf"(?:\s?(?P<first>{_UNIT})?\s?(?:-|–|to\b)\s?(?P<to>{NUMBER}))?(?P<gap>[\s-]?)(?P<unit>{_UNIT})(?P<power>[²³]|(?<=m)[23])?(?!\w|[²³]|/)"
)
_PER_UNIT = re.compile(rf"(?<![\w.,])({NUMBER})\s?({_UNIT})([²³]?)/({_UNIT})([²³]?)(?![\w/²³])")
_WITH_VULGAR = re.compile(rf"(?<![\w.,])(\d+\s?[½¼¾⅓⅔⅛⅜⅝⅞])\s?(?!(?:in|s|h|m)\b)({_UNIT})(?![\w/²³])")
_WITH_FRACTION = re.compile(
    rf"(?<![\w.,/])((?:\d+[ -])?)(\d{{1,2}}/\d{{1,2}}|[½¼¾⅓⅔⅛⅜⅝⅞])"
    rf"(?:\s?(?![A-Za-z](?![a-z])|in\b)({_UNIT})\.?(?=\s+[a-z]|[,;:!?)]|$)"
    rf"|\s(?![A-Za-z](?![a-z])|in\b)({_UNIT})(?![\w/²³]))"
)
_SECONDS = re.compile(r"[.?!]?$|[,;:!?)]|\s+[a-z]")
_NO_NAME = re.compile(r"[.?!]?$|[,;:!?)]|\s+[a-z(]")
_PER = re.compile(r"(?<=[a-z])/(?=(?:day|night|week|month|year|hour|minute|second|person|mile|kilometer|unit)\b)")
_PRICE_PER_UNIT = re.compile(rf"\b(dollars?|rupees?|pounds?|euros?|cents?|pence|paise|yen)/({_UNIT})(?![\w/²³])")
_PART = "(?:[ -]?[½¼¾⅓⅔⅛⅜⅝⅞]|[ -][1-9]/(?:2|4|8|16)(?![\\w/]))"
"""A fraction after a whole number."""
_SHORT_FEET_INCHES = re.compile(
    rf"(?<![\w.])(\d{{1,3}}) ?ft\.? (\d{{1,2}}{_PART}?) ?in\b(?:\.(?!\s*$))?(?=$|[\s,;:!?).])"
)
_FEET_INCHES = re.compile(rf"(?<![\w.])(\d{{1,3}})\s?['′]\s?(\d{{1,2}}(?:\.\d+|{_PART})?)\s?(?:\"|″|'')")
_INCHES_AND_PART = re.compile(rf"(?<![\w.])(\d{{1,3}}{_PART})(?:\"|″| in\.(?=\s[a-z(]|[,;:)]))")
_OF_TWO_UNITS = re.compile(rf"((?<![\w.,/]){NUMBER}\s?({_UNIT}))\s?/\s?(?={NUMBER}\s?({_UNIT})(?![\w/]))")
"""The same measure in two units (180°C/350°F), or two of one (8GB/16GB)."""
_ONE = re.compile(r"\b(?:[Aa]n?|[Aa]nother|[Ee]ach|[Ee]very)\s$")
_NOUN = re.compile(
    r"\s(?!(?:of|per|and|or|nor|but|in|to|at|from|a|an|the|is|was|were|are|has|had|away|apart|ago|later|more|less|each|off|"
    r"up|down|on|by|with|for|after|before|above|below|over|under|than|so|as|if|when|while|because|every)\b)[a-z]{3,}"
)
"""Between these a unit is singular: a 12 V battery."""
_ANGLE = re.compile(r"(\d+)°\s?(\d+(?:\.\d+)?)[′'](?:\s?(\d+(?:\.\d+)?)[″\"])?")
_PRIMES = re.compile(rf"({NUMBER})\s?([′″])")
_FEET = re.compile(r"(?<![\w.'])(\d{1,3})'(?![\w'])")
_INCHES = re.compile(rf"(?<![\w.\"])({NUMBER})\"")
_INCHES_SHORT = re.compile(rf"(?<![\w.])({NUMBER})([ -])in\.(?=\s[a-z(]|[,;:)])")
_SHORT_STOP = re.compile(rf"(?<=\d)([ -]?(?:{_UNIT}))\.(?=\s+[a-z\d]|[,;:)])")
_TIMES = re.compile(rf"(?<=[\w'\".])\s*×\s*(?={NUMBER})|(?<=[\d'\".]) x (?={NUMBER}\b)|(?<=\d)x(?=\d)")
_FRACTION_OF_INCH = re.compile(r"(?<=\d)/(\d{1,2})(?:″|\"| in\.)(?!\w)")


def units(text: str) -> str:
    """
    >>> units("5 kg at 20 °C, 60mph, 0.5%, a 10-km run")
    'five kilograms at twenty degrees Celsius, sixty miles per hour, zero point five percent, a ten kilometer run'
    """
    # From the most specific form to the most general: each rule consumes figures that later ones would misread.
    text = _SCIENTIFIC.sub(_scientific, text)
    text = _PER_UNIT.sub(_measure_per_unit, text)
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
    text = _INCHES_AND_PART.sub(r"\1 inches", text)
    text = _PRIMES.sub(lambda match: _name_amount(match[1], "foot/feet" if match[2] == "′" else "inch/inches"), text)
    text = _FEET.sub(lambda match: _name_amount(match[1], "foot/feet"), text)
    text = _INCHES.sub(_inches, text)
    text = _INCHES_SHORT.sub(_inches_short, text)
    text = _SHORT_STOP.sub(r"\1", text)
    text = _MEASURE.sub(_measure, text)
    return _PER.sub(" per ", text)


def _scientific(match: re.Match[str]) -> str:
    """``5e-5 m``; a capital E without sign or decimals is left as a code (3E8)."""
    sign, power = "minus " if match[1] else "", "minus " if match[3] in ("-", "−") else ""
    said = f"{sign}{decimal(match[2])} times ten to the power of {power}{decimal(match[6])}"
    return f"{said} {NAME_BY_UNIT[match[7]].partition('/')[2] or NAME_BY_UNIT[match[7]] + 's'}" if match[7] else said


def _measure_per_unit(match: re.Match[str]) -> str:
    """``50 mg/dL``; a quotient with a name (km/h) is left to the rule of that name."""
    amount, above, power, below, power_below = match.groups()
    if f"{above}/{below}{power_below}" in NAME_BY_UNIT:
        return match[0]
    several = _name_amount(amount, _raise_unit(NAME_BY_UNIT[above], power))
    return f"{several} per {_raise_unit(NAME_BY_UNIT[below], power_below).partition('/')[0]}"


def _raise_unit(names: str, power: str) -> str:
    one, _, many = names.partition("/")
    return f"{_SQUARED[power]} {one}/{_SQUARED[power]} {many or one + 's'}" if power else names


def _measure_with_vulgar(match: re.Match[str]) -> str:
    one, _, many = NAME_BY_UNIT[match[2]].partition("/")
    return f"{match[1]} {many or one + 's'}"


def _fraction_of_unit(match: re.Match[str]) -> str:
    """``3/4 tsp`` is three quarters teaspoon, ``1 1/2 lbs`` one and a half pounds; ``ratios`` reads the figures."""
    one, _, many = NAME_BY_UNIT[match[3] or match[4]].partition("/")
    return f"{match[1]}{match[2]} {many or one + 's' if match[1] else one}"


def _measure(match: re.Match[str]) -> str:
    unit, gap = match["unit"], match["gap"]
    # 4K and 8K are pictures' sizes; kelvins have a space, or more figures.
    if unit == "K" and not gap and len(match["amount"]) < MOST_OF_4K:
        return match[0]
    of_time = unit in ("s", "h") and gap == " " and _SECONDS.match(match.string, match.end())
    # "5 in" is rarely inches and "3 s" rarely seconds, unless the number has decimals, or a time ends the clause.
    if gap and unit in ATTACHED_ONLY and "." not in match["amount"] and not of_time:
        return match[0]
    if gap and unit in CAPITALS and not _NO_NAME.match(match.string, match.end()):
        return match[0]
    names = NAME_BY_UNIT[unit]
    if match["power"]:
        names = _raise_unit(names, match["power"])
    sign = "minus " if match["sign"] else ""
    if match["to"]:
        # "5 kg to 7 kg" names the unit once, "40 bps to 8.5%" both.
        first = match["first"]
        if first and NAME_BY_UNIT[first] != NAME_BY_UNIT[unit]:
            return f"{sign}{_name_amount(match['amount'], NAME_BY_UNIT[first])} to {_name_amount(match['to'], names)}"
        return f"{sign}{decimal(match['amount'])} to {_name_amount(match['to'], names, several=True)}"
    # As an adjective the unit is singular: a 10-km run, a 12 V battery.
    if gap == "-" or _is_adjective(match):
        return f"{sign}{decimal(match['amount'])} {names.partition('/')[0]}"
    return sign + _name_amount(match["amount"], names)


def _is_adjective(match: re.Match[str]) -> bool:
    before = match.string[max(0, match.start() - 10) : match.start()]
    return bool(_ONE.search(before) and _NOUN.match(match.string, match.end()))


def _name_inches(amount: str) -> str:
    return _name_amount(amount, "inch/inches") if amount.isdecimal() else f"{amount} inches"


def _name_amount(amount: str, names: str, several: bool = False) -> str:
    one, _, many = names.partition("/")
    return f"{decimal(amount)} {one if amount == '1' and not several else many or one + 's'}"


def _angle(match: re.Match[str]) -> str:
    said = f"{_name_amount(match[1], 'degree')} {_name_amount(match[2], 'minute')}"
    return f"{said} {_name_amount(match[3], 'second')} " if match[3] else f"{said} "


def _inches_short(match: re.Match[str]) -> str:
    """``6 in. of rain``, ``a 6-in. pipe``."""
    return f"{decimal(match[1])} inch" if match[2] == "-" else _name_amount(match[1], "inch/inches")


def _inch_after_fraction(match: re.Match[str]) -> str:
    closes = match[0].endswith('"') and match.string.count('"', 0, match.start()) % 2
    return match[0] if closes else f"/{match[1]} inch"


def _inches(match: re.Match[str]) -> str:
    """Inches, where the quotation mark doesn't close a quotation."""
    # An odd number of quotation marks before means that this one closes a quotation.
    opened = match.string.count('"', 0, match.start()) % 2
    return match[0] if opened else _name_amount(match[1], "inch/inches")


STREETS = "Street|Avenue|Road|Lane|Drive|Boulevard|Court|Place|Square|Highway|Parkway|Terrace|Way"
DIRECTIONS = "North|South|East|West|Northeast|Northwest|Southeast|Southwest"
IN_GROUPS = (
    "Number|Room|[Ff]light(?: (?:[A-Z]{2}|[A-Z]\\d|\\d[A-Z]))?|Boeing|Airbus|"
    "Porsche|Peugeot|Nokia|Gate|Ward|Locker|Cabin|"
    "Route|Highway|Interstate|Exhibit|Apartment|Suite|Channel|Bus|Train|P\\.S\\.|area code|frame"
)
"""Before numbers that are read in pairs of digits: Room one oh five."""
YEAR_BEFORE = (
    r"in|since|until|till|by|during|before|after|year|early|late|mid|circa|summer of|spring of|fall of|winter of"
)
_FEW = rf"{GROUPED}|\d+"
_PHONE = re.compile(
    r"(?<![\w.,-])(?:\+?(\d{1,3})[ .-])?(?:\((\d{3})\) ?|(\d{3})[-. ])(\d{3})[-.](\d{4})(?![\w-])|"
    r"(?<![\w.,-])(\d{3})-(\d{4})(?![\w-])"
)
_FOREIGN_PHONE = re.compile(r"(?<![\w.,-])(?:\+\d{1,3}|0\d{2,4})(?:[ -]\d{2,4}){2,5}(?![\w-])")
_LARGE = re.compile(rf"(?<![\w.,])(\d+\.\d+)({'|'.join(MAGNITUDES)})(?!\w)")
_WITH_LETTERS = re.compile(r"(?<![\w.])(\d*\.\d+)([A-Za-z]+)(?!\w|\.\d)")
_DOT = re.compile(r"(?<=[A-Z])\.(?=\d)")
_POWER = re.compile(r"(?<=\w)\^(?=-?\w)")
_VERSION = re.compile(r"(?<![\w.])\d+(?:\.\d+){2,}(?!\w)")
_ORDINALS = re.compile(r"(?<=\d)(st|nd|rd|th)\s?[-–]\s?(?=\d+(?:st|nd|rd|th)\b)")
_ORDINAL = re.compile(rf"(?<![\w.,])({_FEW})(?:st|nd|rd|th)\b")
_YEARS = re.compile(r"(?<![\w.,$£€-])(1[1-9]\d\d|20\d\d)\s?[–-]\s?(?:(1[1-9]\d\d|20\d\d)|(\d\d))(?![\w-]|[.,]\d)")
_RANGE = re.compile(rf"(?<![\w.,/-])({_FEW}|\d+\.\d+)(?:\s?–\s?|-)({_FEW}|\d+\.\d+)(?![\w/-]|[.,]\d)")
_OF_RANGES = re.compile(
    r"\b(?:pages?|ages?|aged|chapters?|verses?|lines?|rows?|years?|numbers?|items?|grades?|levels?|weeks?|days?|from)\s$",
    re.IGNORECASE,
)
_RATIO = re.compile(r"(?<![\w:.])(\d+):(\d+)(?![\w:])")
_NEGATIVE = re.compile(r"(?<![\w.,)\"'-])[-−](?=\.?\d)")
_CALIBER = re.compile(
    r"(?<![\w.])\.(\d\d)(?!\d)(?=-?\s?(?:[Cc]al|[Ss]pecial|[Mm]agnum|[Rr]ifle|[Pp]istol|[Rr]evolver|ACP))"
)
_DIALLED = re.compile(
    r"\b((?:[Bb]ox|[Cc]all(?:ed|ing|s)?|[Dd]ial(?:l?ed|l?ing|s)?|[Pp]hon(?:e|ed|ing)|[Rr]ang|[Rr]ing) )"
    r"(\d{3,}(?:(?:, \d{3})*,? or \d{3})?)\b(?![,.]\d)"
)
_EMERGENCY = re.compile(
    r"(?:^|\bto )(911|999|112)(?=[.!?]*$)|(?<![\w.,$£€-])(911|999|112)(?=-?\s?"
    r"(?:calls?|callers?|operators?|dispatch\w*|emergency|emergencies|system|services?|tapes?|recordings?|centers?)\b)"
)
_ISH = re.compile(r"(?<=\d)-?ish\b")
_CODE = re.compile(r"(?<![\w.,])(?=[A-Za-z]*\d+[A-Za-z]|[A-Za-z]+\d)([A-Za-z\d]+)(?!\w)")
_GROUPED = re.compile(rf"(?<=\b)((?:{IN_GROUPS})s? #?)(\d{{3,4}}(?:\s?[-–]\s?\d{{3,4}})?)(?:[-–]?([A-Z]))?\b(?![,.]\d)")
_ADDRESS = re.compile(
    rf"(?<![\w.,])(\d{{3,5}})(?= (?:(?:{DIRECTIONS}|[NSEW]\.?) (?!of\b)[A-Z\d]|(?:[A-Z][a-z]+ ){{1,2}}(?:{STREETS})\b))"
)
_BLOCK = re.compile(r"(?<![\w.,])(\d{3,4})(?=[ -]block\b)")
_LETTER_AFTER = re.compile(r"(?<![\w.,])(\d{1,3})-([A-Z])(?![\w'])")
_THOUSANDS = re.compile(rf"(?<![\w.,]){GROUPED}(?:\.\d+)?(?!\d)")
_YEAR_CUE = re.compile(rf"(?:\b(?:{YEAR_BEFORE}|{MONTH},?)|['\"(])\s?$", re.IGNORECASE)
_FOUR = re.compile(r"(?<![\w.,#])([12]\d{3})(?![\w]|[.,]\d)")
_FOLLOWS = re.compile(r"[ -]([a-z]+)(?: ([a-z]+))?")
_SINGULAR = words("was is has as this his its us thus across always perhaps towards besides unless yes less")
_EVENTS = words(
    """
    riots protests elections uprisings floods earthquakes fires games championships celebrations hearings trials
    massacres rebellions revolts strikes wars olympics negotiations talks riot
    """
)
"""Words that follow a year, rather than are counted, unless a quantity precedes: the 1780 riots, some 1200 protests."""
_QUANTITY = re.compile(
    r"\b(?:about|around|over|some|nearly|almost|than|all|those|these|least|most|of|exactly)\s$", re.IGNORECASE
)
_FUNCTION = words(
    """
    the a an and or but to in of on at by for from with who which that when while where he she it they we i you had has
    have was were is are been be did do said made saw became began came went found not no so as if than then there this
    still also only never ever again soon later already often just even once both now therefore thereby
    these those his her their its our my after before until till during since about against between into over under
    """
)
_DECIMAL = re.compile(r"(?<![\w.])\d*\.\d+(?![\w]|\.\d)")
_LEFT = re.compile(r"\d+")


def numerals(text: str) -> str:
    """
    >>> numerals("7 of 1063 beds in 1805, Box 2915, serial C2766")
    'seven of one thousand sixty-three beds in eighteen oh five, Box two nine one five, serial C two seven six six'
    >>> numerals("2½ to 3/4, the 21st, 5-10 and -3.5")
    'two and a half to three quarters, the twenty-first, five to ten and minus three point five'
    >>> numerals("1.5x as fast, 7ish, a 911 call")
    'one point five X as fast, seven-ish, a nine one one call'
    """
    # Numbers that name something first, counts last: at the end, only plain numbers remain.
    text = _PHONE.sub(lambda match: ", ".join(digits(part) for part in match.groups() if part), text)
    text = _FOREIGN_PHONE.sub(lambda match: ", ".join(map(digits, re.findall(r"\d+", match[0]))), text)
    text = _ISH.sub("-ish", text)
    text = _LARGE.sub(lambda match: f"{decimal(match[1])} {MAGNITUDES[match[2]]}", text)
    text = _WITH_LETTERS.sub(lambda match: f"{decimal(match[1])} {code(match[2])}", text)
    text = _DOT.sub(" dot ", text)
    text = _POWER.sub(" to the power of ", text)
    text = _VERSION.sub(lambda match: " point ".join(whole(part) for part in match[0].split(".")), text)
    text = _ORDINALS.sub(r"\1 to ", text)
    text = _ORDINAL.sub(lambda match: ordinal(int(match[1].replace(",", ""))), text)
    text = ratios(text)
    text = _CALIBER.sub(lambda match: cardinal(int(match[1])), text)
    text = _DIALLED.sub(_read_dialled, text)
    text = _EMERGENCY.sub(lambda match: re.sub(r"\d+", lambda number: digits(number[0]), match[0]), text)
    text = _GROUPED.sub(
        lambda match: (
            match[1] + " to ".join(map(grouped, re.findall(r"\d+", match[2]))) + (f" {match[3]}" if match[3] else "")
        ),
        text,
    )
    text = _LETTER_AFTER.sub(lambda match: f"{grouped(match[1])} {match[2]}", text)
    text = _YEARS.sub(_years, text)
    text = _RANGE.sub(_read_range, text)
    text = _RATIO.sub(r"\1 to \2", text)
    text = _NEGATIVE.sub("minus ", text)
    text = _CODE.sub(lambda match: code(match[1]), text)
    for pattern in (_ADDRESS, _BLOCK):
        text = pattern.sub(lambda match: grouped(match[1]), text)
    text = _FOUR.sub(_year_or_count, text)
    text = _THOUSANDS.sub(lambda match: decimal(match[0]), text)
    text = _DECIMAL.sub(lambda match: decimal(match[0]), text)
    return _LEFT.sub(_left, text)


def code(written: str) -> str:
    """Letters and figures: letter by letter, figures as one number up to two of them, otherwise digit by digit.

    >>> code("C2766"), code("B52"), code("MP3s"), code("H1N1"), code("FY2020"), code("10x")
    ('C two seven six six', 'B fifty-two', 'M P threes', 'H one N one', 'F Y twenty twenty', 'ten X')
    """
    said = list[str]()
    for piece in re.findall(r"[A-Za-z]+|\d+", written):
        if piece.isdigit():
            # After an abbreviation of several letters, 1900 to 2099 are a year: FY2020, but not B2020.
            of_year = len(said) == 1 and " " in said[0] and re.fullmatch(r"(?:19|20)\d\d", piece)
            said.append(year(int(piece)) if of_year else whole(piece) if len(piece) < 3 else digits(piece))
        elif piece == "s" and len(said) > 1:
            said[-1] = plural(said[-1])
        elif len(piece) > 3 and not piece.isupper():
            said.append(piece)
        else:
            said.append(" ".join(piece.upper()))
    return " ".join(said)


def _read_dialled(match: re.Match[str]) -> str:
    """``dial 999 or 112``: each digit by digit."""
    return match[1] + re.sub(r"\d+", lambda number: digits(number[0]), match[2])


def _read_range(match: re.Match[str]) -> str:
    """``3-4``, which could be a score; after "pages" and the like, or with a dash of ranges, it can't."""
    if "–" not in match[0] and not _OF_RANGES.search(_before(match)):
        report_guess("3-4 as a range")
    return f"{match[1]} to {match[2]}"


def _years(match: re.Match[str]) -> str:
    ends = year(int(match[2])) if match[2] else year_of_century(match[3])
    return f"{year(int(match[1]))} to {ends}"


def _year_or_count(match: re.Match[str]) -> str:
    """Four figures without a comma are a year, unless several things are counted (1308 prisoners)."""
    number = int(match[1])
    # From 2100 on a count; below 1100 a year only after a cue, such as "in".
    if number >= 2100 or (number < 1100 and not _YEAR_CUE.search(_before(match))):
        return cardinal(number)
    if _YEAR_CUE.search(_before(match)):
        return year(number)
    following = _FOLLOWS.match(match.string, match.end())
    if following is None:
        report_guess("1984 as a year")
        return year(number)
    first, second = following[1], following[2] or ""
    if first in _EVENTS:
        return cardinal(number) if _QUANTITY.search(_before(match)) else year(number)
    # A plural after it, or after one adjective, is counted: 1308 prisoners, 1308 young prisoners.
    counted = _is_plural(first) or (first not in _FUNCTION and _is_plural(second))
    report_guess("1984 as a count" if counted else "1984 as a year")
    return cardinal(number) if counted else year(number)


def _before(match: re.Match[str]) -> str:
    return match.string[max(0, match.start() - 20) : match.start()]


def _is_plural(word: str) -> bool:
    return len(word) > 3 and word.endswith("s") and not word.endswith("ss") and word not in _SINGULAR


def _left(match: re.Match[str]) -> str:
    """A number by itself; a space keeps it from letters next to it."""
    text = match.string
    before = " " if match.start() and text[match.start() - 1].isalpha() else ""
    after = " " if match.end() < len(text) and text[match.end()].isalpha() else ""
    return f"{before}{whole(match[0])}{after}"
