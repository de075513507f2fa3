"""Measures: numbers with a unit, in powers of ten too, percentages, temperatures, feet and inches."""

from __future__ import annotations

import re

from vaak.text.speech.normalisation.number_words import NUMBER, decimal
from vaak.text.speech.normalisation.tables import table

UNITS = table(
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
    °C=degree_Celsius/degrees_Celsius °_C=degree_Celsius/degrees_Celsius °F=degree_Fahrenheit/degrees_Fahrenheit
    °_F=degree_Fahrenheit/degrees_Fahrenheit °=degree
    """
)
"""Unit → its name; the plural is separated by a slash where it isn't the name with an s."""

ATTACHED_ONLY = frozenset(("s", "h", "in", "bit", "cal"))
"""Those that after a whole number and a space are more often something else."""
CAPITALS = frozenset(("W", "V", "L"))
"""Those that after a whole number and a space may be an initial or a direction: 1026 W Main."""

_SQUARED = {"²": "square", "2": "square", "³": "cubic", "3": "cubic"}
_UNIT = "|".join(re.escape(unit) for unit in sorted(UNITS, key=len, reverse=True))
_SCIENTIFIC = re.compile(
    rf"(?<![\w.,])([-−])?(\d+(?:\.\d+)?)(?:[eE]([-−+])|(?<=\.\d)[eE]()|e())(\d+)(?:\s?({_UNIT}))?(?!\w|[.,]\d)"
)
_MEASURE = re.compile(
    rf"(?P<sign>(?<![\w.%°)])[-−])?(?<![\w.,/])(?P<amount>{NUMBER})"
    rf"(?:\s?(?:{_UNIT})?\s?(?:-|–|to\b)\s?(?P<to>{NUMBER}))?(?P<gap>[\s-]?)(?P<unit>{_UNIT})(?P<power>[²³]|(?<=m)[23])?(?![\w/²³])"
)
_NO_NAME = re.compile(r"[.?!]?$|[,;:!?)]|\s+[a-z(]")
_PER = re.compile(r"(?<=[a-z])/(?=(?:day|night|week|month|year|hour|minute|second|person|mile|kilometer|unit)\b)")
_FEET_INCHES = re.compile(r"(?<![\w.])(\d{1,3})\s?['′]\s?(\d{1,2}(?:\.\d+)?)\s?(?:\"|″|'')")
_ANGLE = re.compile(r"(\d+)°\s?(\d+(?:\.\d+)?)[′'](?:\s?(\d+(?:\.\d+)?)[″\"])?")
_PRIMES = re.compile(rf"({NUMBER})\s?([′″])")
_FEET = re.compile(r"(?<![\w.'])(\d{1,3})'(?![\w'])")
_INCHES = re.compile(rf"(?<![\w.\"])({NUMBER})\"")
_INCHES_SHORT = re.compile(rf"(?<![\w.])({NUMBER})([ -])in\.(?=\s[a-z(]|[,;:)])")
_SHORT_STOP = re.compile(rf"(?<=\d)([ -]?(?:{_UNIT}))\.(?=\s+[a-z\d]|[,;:)])")
_TIMES = re.compile(rf"(?<=[\w'\".])\s*×\s*(?={NUMBER})|(?<=[\d'\".]) x (?={NUMBER}\b)|(?<=\d)x(?=\d)")
_FRACTION_OF_INCH = re.compile(r"(?<=\d)/(\d{1,2})(?:″| in\.)(?!\w)")


def units(text: str) -> str:
    """
    >>> units("5 kg at 20 °C, 60mph, 0.5%, a 10-km run")
    'five kilograms at twenty degrees Celsius, sixty miles per hour, zero point five percent, a ten kilometer run'
    """
    text = _SCIENTIFIC.sub(_scientific, text)
    text = _TIMES.sub(" by ", text)
    text = _FRACTION_OF_INCH.sub(r"/\1 inch", text)
    text = _ANGLE.sub(_angle, text)
    text = _FEET_INCHES.sub(lambda match: f"{decimal(match[1])} foot {decimal(match[2])}", text)
    text = _PRIMES.sub(lambda match: _named(match[1], "foot/feet" if match[2] == "′" else "inch/inches"), text)
    text = _FEET.sub(lambda match: _named(match[1], "foot/feet"), text)
    text = _INCHES.sub(_inches, text)
    text = _INCHES_SHORT.sub(_inches_short, text)
    text = _SHORT_STOP.sub(r"\1", text)
    text = _MEASURE.sub(_measure, text)
    return _PER.sub(" per ", text)


def _scientific(match: re.Match[str]) -> str:
    """``5e-5 m``; a capital E without sign or decimals is left as a code (3E8)."""
    sign, power = "minus " if match[1] else "", "minus " if match[3] in ("-", "−") else ""
    said = f"{sign}{decimal(match[2])} times ten to the power of {power}{decimal(match[6])}"
    return f"{said} {UNITS[match[7]].partition('/')[2] or UNITS[match[7]] + 's'}" if match[7] else said


def _measure(match: re.Match[str]) -> str:
    unit, gap = match["unit"], match["gap"]
    if gap and unit in ATTACHED_ONLY and "." not in match["amount"]:
        return match[0]
    if gap and unit in CAPITALS and not _NO_NAME.match(match.string, match.end()):
        return match[0]
    names = UNITS[unit]
    if match["power"]:
        one, _, many = names.partition("/")
        names = f"{_SQUARED[match['power']]} {one}/{_SQUARED[match['power']]} {many or one + 's'}"
    sign = "minus " if match["sign"] else ""
    if match["to"]:
        return f"{sign}{decimal(match['amount'])} to {_named(match['to'], names, several=True)}"
    if gap == "-":
        return f"{sign}{decimal(match['amount'])} {names.partition('/')[0]}"
    return sign + _named(match["amount"], names)


def _named(amount: str, names: str, several: bool = False) -> str:
    one, _, many = names.partition("/")
    return f"{decimal(amount)} {one if amount == '1' and not several else many or one + 's'}"


def _angle(match: re.Match[str]) -> str:
    said = f"{_named(match[1], 'degree')} {_named(match[2], 'minute')}"
    return f"{said} {_named(match[3], 'second')} " if match[3] else f"{said} "


def _inches_short(match: re.Match[str]) -> str:
    """``6 in. of rain``, ``a 6-in. pipe``."""
    return f"{decimal(match[1])} inch" if match[2] == "-" else _named(match[1], "inch/inches")


def _inches(match: re.Match[str]) -> str:
    """Inches, where the quotation mark doesn't close a quotation."""
    opened = match.string.count('"', 0, match.start()) % 2
    return match[0] if opened else _named(match[1], "inch/inches")
