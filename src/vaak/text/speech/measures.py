"""Measures in words: a number and its unit, quotients of units, temperatures, feet and inches, powers of ten."""

from __future__ import annotations

import re

from vaak.text.speech.money import MAGNITUDES
from vaak.text.speech.words import NUMBER, cardinal, decimal, ordinal, table, whole

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
    Ah=amp_hour bps=basis_point yr=year yrs=year mths=month wk=week wks=week mos=month kgs=kilogram kms=kilometer
    gm=gram gms=gram ltr=liter ltrs=liter hp=horsepower/horsepower sq_m=square_meter sq._m.=square_meter
    sq_km=square_kilometer
    mya=million_years_ago/million_years_ago Ga=billion_years/billion_years Ma=million_years/million_years
    ka=thousand_years/thousand_years Gyr=billion_years/billion_years Myr=million_years/million_years
    kyr=thousand_years/thousand_years ly=light-year AU=astronomical_unit kpc=kiloparsec Mpc=megaparsec
    eV=electron_volt keV=kiloelectron_volt MeV=megaelectron_volt GeV=gigaelectron_volt TeV=teraelectron_volt
    mT=millitesla nT=nanotesla μT=microtesla pF=picofarad nF=nanofarad μF=microfarad Nm=newton_meter atm=atmosphere
    PB=petabyte MWh=megawatt_hour GWh=gigawatt_hour TWh=terawatt_hour kVA=kilovolt-amp cc=cc/cc
    bhp=brake_horsepower/brake_horsepower kmph=kilometer_per_hour/kilometers_per_hour
    kmpl=kilometer_per_liter/kilometers_per_liter sqft=square_foot/square_feet
    Tbsp=tablespoon Tsp=teaspoon wkt=wicket wkts=wicket tbs=tablespoon pkg=package pkgs=package pkt=packet pkts=packet
    doz=dozen/dozen pts=point gals=gallon qts=quart mtr=meter mtrs=meter ozs=ounce mils=mil pc=parsec kt=knot kts=knot
    cu._ft.=cubic_foot/cubic_feet cu._in.=cubic_inch/cubic_inches sq._in.=square_inch/square_inches
    sq_in=square_inch/square_inches cu_in=cubic_inch/cubic_inches cu_m=cubic_meter cu._m.=cubic_meter
    sq._yd.=square_yard sq_yd=square_yard sq._km.=square_kilometer sq._mi=square_mile sqm=square_meter
    μM=micromolar/micromolar mM=millimolar/millimolar nM=nanomolar/nanomolar kDa=kilodalton Da=dalton bp=base_pair
    kbp=kilobase_pair Gbp=gigabase_pair Mbp=megabase_pair kgf=kilogram-force lbf=pound-force kWp=kilowatt_peak lm=lumen
    lx=lux/lux Sv=sievert mSv=millisievert μSv=microsievert Bq=becquerel kBq=kilobecquerel Gy=gray mGy=milligray
    pmol=picomole nmol=nanomole μmol=micromole pg=picogram fg=femtogram ps=picosecond fs=femtosecond
    ns=nanosecond dpi=dot_per_inch/dots_per_inch ppi=pixel_per_inch/pixels_per_inch gsm=G_S_M/G_S_M MP=megapixel
    Mb=megabit Gb=gigabit Kb=kilobit MB/s=megabyte_per_second/megabytes_per_second IU=international_unit bbl=barrel
    mmol/L=millimole_per_liter/millimoles_per_liter Torr=torr/torr rad=radian mrad=milliradian
    °C=degree_Celsius/degrees_Celsius °_C=degree_Celsius/degrees_Celsius °F=degree_Fahrenheit/degrees_Fahrenheit
    °_F=degree_Fahrenheit/degrees_Fahrenheit °=degree
    """
)
"""Unit → its name; the plural is separated by a slash where it isn't the name with an s."""
_STOPPED = table(
    "c.=cup T.=tablespoon t.=teaspoon tab.=tablet tabs.=tablet cap.=capsule caps.=capsule pt.=pint pts.=point "
    "ct.=count/count pc.=piece pcs.=piece"
)
"""Units only with a full stop, within a sentence: 2 c. flour, but 14 Geo. 3 c. 59."""
NAME_BY_UNIT |= _STOPPED
ATTACHED_ONLY = frozenset(("s", "h", "in", "bit", "cal"))
"""Units that after a whole number and a space are more often something else."""
MOST_OF_4K = 3
"""With at least this many digits, a K next to them is kelvin."""
CAPITALS = frozenset(("W", "V", "L", "J", "N", "K"))
"""Units that after a whole number and a space may be an initial or a direction: 1026 W Main."""
_OF_QUOTIENTS = "day|night|week|month|year|hour|minute|second|person|dose|serving|cell|kilo|d(?!L)"
"""Words below the line of a quotient of units; d is a day."""
_SQUARED = {"²": "square", "2": "square", "³": "cubic", "3": "cubic"}
_UNIT = "|".join(
    re.escape(unit) + (r"(?=\s+[a-z(=]|[,;:)])" if unit in _STOPPED else "")
    for unit in sorted(NAME_BY_UNIT, key=len, reverse=True)
)
_SCIENTIFIC = re.compile(
    rf"(?<![\w.,])([-−])?(\d+(?:\.\d+)?)(?:[eE]([-−+])|(?<=\.\d)[eE]()|e())(\d+)(?:\s?({_UNIT}))?(?!\w|[.,]\d)"
)
_MEASURE = re.compile(
    rf"(?P<sign>(?<![\w.%°)])[-−])?(?<![\w.,/])(?P<amount>{NUMBER})"
    rf"(?:\s?(?P<first>{_UNIT})?\s?(?:-|–|to\b)\s?(?P<to>{NUMBER}))?(?P<gap>[\s-]?)(?P<unit>{_UNIT})(?P<power>[²³]|(?<=m)[23])?(?!\w|[²³]|/)"
)
_PER_UNIT = re.compile(
    rf"(?<![\w.,])(?:({NUMBER})\s?[–-]\s?)?({NUMBER})\s?({_UNIT})([²³]?)((?:/(?:{_OF_QUOTIENTS}|{_UNIT})[²³]?)+)(?![\w/²³])"
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
_AMOUNT = re.compile(r"\d[KkMB]")
"""Much faster to look for than what follows."""
_THOUSANDS_OF = re.compile(
    r"(?<![\w.,])(?!40[13][kK]\b|(?:4|5|8|10)K (?:run|race|walk|video|screen|display|monitor|resolution)\b)(\d+)"
    r"([KkM](?=\+? (?:people|of|per|[a-z]+ (?:people|of|per)|(?:[a-z]{3,} )?[a-z]{2,}[a-rt-z]s)\b)"
    r"|B(?=\+? (?:people|users|views|downloads|parameters|tokens|dollars|years)\b))"
)
"""``300K views`` are thousands of what follows, not kelvins."""
_ONE = re.compile(r"\b(?:[Aa]n?|[Aa]nother|[Ee]ach|[Ee]very)\s$")
_NOUN = re.compile(
    r"\s(?!(?:of|per|and|or|nor|but|in|to|at|from|a|an|the|is|was|were|are|has|had|away|apart|ago|later|more|less|each|off|"
    r"up|down|on|by|with|for|after|before|above|below|over|under|than|so|as|if|when|while|because|every)\b)[a-z]{3,}"
)
"""Between these a unit is singular: a 12 V battery."""
_ANGLE = re.compile(r"(\d+)°\s?(\d+(?:\.\d+)?)[′'](?:\s?(\d+(?:\.\d+)?)[″\"])?")
_PRIMES = re.compile(rf"({NUMBER})\s?([′″])")
_MINUTES_OF_MATCH = re.compile(r"(?<=\()(\d{1,3})(?:\+(\d{1,2}))?'(?=[,;)])|(?<=, )(\d{1,3})(?:\+(\d{1,2}))?'(?=[,;)])")
"""Minutes of a match, in brackets after a name: Messi (87')."""
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
    if _AMOUNT.search(text):
        text = _THOUSANDS_OF.sub(lambda match: f"{whole(match[1])} {MAGNITUDES[match[2]]}", text)
    text = _SCIENTIFIC.sub(_scientific, text)
    if "/" in text:
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
    text = _INCHES_AND_PART.sub(r"\1 inches", text)
    text = _PRIMES.sub(lambda match: _name_amount(match[1], "foot/feet" if match[2] == "′" else "inch/inches"), text)
    text = _MINUTES_OF_MATCH.sub(_read_minute_of_match, text)
    text = _FEET.sub(lambda match: _name_amount(match[1], "foot/feet"), text)
    text = _INCHES.sub(_inches, text)
    text = _INCHES_SHORT.sub(_inches_short, text)
    text = _SHORT_STOP.sub(r"\1", text)
    text = _MEASURE.sub(_measure, text)
    if "/" not in text:
        return text
    text = _PER_COUNT.sub(lambda match: f" per {_name_below(match[1], match[2])}", text)
    return _PER.sub(" per ", text)


def _scientific(match: re.Match[str]) -> str:
    """``5e-5 m``; a capital E without sign or decimals is left as a code (3E8)."""
    sign, power = "minus " if match[1] else "", "minus " if match[3] in ("-", "−") else ""
    said = f"{sign}{decimal(match[2])} times ten to the power of {power}{decimal(match[6])}"
    return f"{said} {NAME_BY_UNIT[match[7]].partition('/')[2] or NAME_BY_UNIT[match[7]] + 's'}" if match[7] else said


def _measure_per_unit(match: re.Match[str]) -> str:
    """``50 mg/dL``, ``5 mg/kg/day``; a quotient with a name (km/h) is left to the rule of that name."""
    least, amount, above, power, below = match.groups()
    if f"{above}{power}{below}" in NAME_BY_UNIT:
        return match[0]
    least = f"{decimal(least)} to " if least else ""
    several = _name_amount(amount, _raise_unit(NAME_BY_UNIT[above], power), several=bool(least))
    return f"{least}{several}" + "".join(f" per {_name_below(*one)}" for one in _BELOW.findall(below))


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


def _inches(match: re.Match[str]) -> str:
    """Inches, where the quotation mark doesn't close a quotation."""
    # An odd number of quotation marks before means that this one closes a quotation.
    opened = match.string.count('"', 0, match.start()) % 2
    return match[0] if opened else _name_amount(match[1], "inch/inches")
