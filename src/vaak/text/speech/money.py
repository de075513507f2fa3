"""Amounts of money in words: signs and codes of currencies, magnitudes, ranges, cents, and old shillings and pence."""

from __future__ import annotations

import re
from typing import NamedTuple

from vaak.text.speech.words import NUMBER, cardinal, decimal, table, whole


class Currency(NamedTuple):
    """The names of a currency and of its hundredth, one and several."""

    one: str
    many: str
    cent: str = ""
    cents: str = ""


DOLLAR = Currency("dollar", "dollars", "cent", "cents")
CURRENCIES = {
    "$": DOLLAR,
    "US$": Currency("U S dollar", "U S dollars", "cent", "cents"),
    **{
        mark: Currency(f"{of} dollar", f"{of} dollars", "cent", "cents")
        for of, marks in {
            "Canadian": ("C$", "CA$"),
            "Australian": ("A$", "AU$"),
            "New Zealand": ("NZ$",),
            "Hong Kong": ("HK$",),
        }.items()
        for mark in marks
    },
    "£": Currency("pound", "pounds", "penny", "pence"),
    "€": Currency("euro", "euros", "cent", "cents"),
    "¥": Currency("yen", "yen"),
    "₹": Currency("rupee", "rupees", "paisa", "paise"),
    "Rs.": Currency("rupee", "rupees", "paisa", "paise"),
    "Rs": Currency("rupee", "rupees", "paisa", "paise"),
    "₩": Currency("won", "won"),
    "₽": Currency("ruble", "rubles", "kopeck", "kopecks"),
    "₿": Currency("bitcoin", "bitcoins"),
    "₺": Currency("lira", "liras"),
    "₴": Currency("hryvnia", "hryvnias"),
    "₫": Currency("dong", "dong"),
    "₱": Currency("peso", "pesos"),
    "₦": Currency("naira", "naira"),
    "₪": Currency("shekel", "shekels"),
    "฿": Currency("baht", "baht"),
    "৳": Currency("taka", "taka"),
    "CHF": Currency("Swiss franc", "Swiss francs", "rappen", "rappen"),
    "SGD": Currency("Singapore dollar", "Singapore dollars", "cent", "cents"),
    "AED": Currency("dirham", "dirhams"),
    "CNY": Currency("yuan", "yuan"),
    "SEK": Currency("Swedish krona", "Swedish kronor"),
    "NOK": Currency("Norwegian krone", "Norwegian kroner"),
    "PLN": Currency("zloty", "zloty"),
}
CODES = {"USD": "US$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "CAD": "C$", "AUD": "A$", "KRW": "₩", "RUB": "₽"}
CODES |= {code: code for code in ("CHF", "SGD", "AED", "CNY", "SEK", "NOK", "PLN")}
MAGNITUDES = table(
    """
    k=thousand K=thousand m=million M=million mn=million mm=million b=billion B=billion bn=billion tn=trillion
    T=trillion
    """
)
_MARK = "|".join(re.escape(mark) for mark in sorted(CURRENCIES, key=len, reverse=True))
_WORDS = "hundred|thousand|lakh|million|crore|billion|trillion|dozen"
_MAGNITUDE = rf"(?P<magnitude>[ -](?:{_WORDS})(?: (?:{_WORDS}))?\b| ?(?:{'|'.join(MAGNITUDES)})\b(?!\.\w))"
_SIGN = r"(?P<sign>(?<![\w\d.])[-−])?"
_AMOUNT = re.compile(
    rf"{_SIGN}(?<![A-Za-z])(?P<mark>{_MARK})\s?(?P<amount>{NUMBER})"
    rf"(?:\s?(?:-|–|to)\s?(?:(?P=mark))?(?P<to>{NUMBER}))?{_MAGNITUDE}?(?P<bill>[ -](?:bill|note|coin)\b)?"
)
_SHORT_MAGNITUDE = "|".join(MAGNITUDES)
_TWO_MAGNITUDES = re.compile(
    rf"(?<![A-Za-z])({_MARK})\s?({NUMBER})\s?({_SHORT_MAGNITUDE})\s?(?:-|–|to)\s?(?:\1)?({NUMBER})\s?({_SHORT_MAGNITUDE})(?!\w)"
)
_CODE_BEFORE = re.compile(
    rf"\b(?P<mark>{'|'.join(CODES)})\s?(?:(?P<least>{NUMBER})\s?(?:-|–|to)\s?)?(?P<amount>{NUMBER}){_MAGNITUDE}?"
)
_CODE_AFTER = re.compile(
    rf"(?<![\d.,])(?:(?P<least>{NUMBER})\s?(?:-|–|to)\s?)?(?P<amount>{NUMBER})\s?{_MAGNITUDE}?\s?(?P<mark>{'|'.join(CODES)}|€|₽|₩)(?!\w)"
)
_CODE = re.compile(f"{'|'.join(CODES)}|€|₽|₩")
_RUPEES_ONLY = re.compile(r"(?<=\d)/-(?!\w)")
"""After an amount in rupees: and no paise."""
_COMMA = re.compile(r"(?<=€)(\d+),(\d\d)(?!\d)|(?<![\d.,])(\d+),(\d\d)(?=\s?€)")
"""A decimal comma, as with euros."""
_CENTS = re.compile(rf"(?<![\d.,])({NUMBER})\s?¢")
_SHILLINGS = re.compile(r"(?<![\d.,])(?:(\d+)s\. ?)(?:(\d+)d\.)")
_OLD_POUNDS = re.compile(r"(?<=£)([\d,]+) (\d+)s\.(?: (\d+)d\.)?")


def money(text: str) -> str:
    """
    >>> money("$13.87, not £72, or $3.5 million, or 50¢")
    'thirteen dollars, eighty-seven cents, not seventy-two pounds, or three point five million dollars, or fifty cents'
    """
    # First decimal commas become points, then old pounds lose their figures: later rules see plain amounts only.
    text = _RUPEES_ONLY.sub("", text)
    text = _COMMA.sub(lambda match: ".".join(filter(None, match.groups())), text)
    text = _OLD_POUNDS.sub(_old_pounds, text)
    text = _SHILLINGS.sub(lambda match: f"{_shillings(match[1])}, {_pence(match[2])}", text)
    text = _TWO_MAGNITUDES.sub(_range_of_magnitudes, text)
    text = _AMOUNT.sub(_amount, text)
    if _CODE.search(text):  # much faster than to look for amounts
        text = _CODE_AFTER.sub(_code, _CODE_BEFORE.sub(_code, text))
    return _CENTS.sub(lambda match: f"{decimal(match[1])} {'cent' if match[1] == '1' else 'cents'}", text)


def _range_of_magnitudes(match: re.Match[str]) -> str:
    """``$60k-$75k`` names thousands once, ``$500k-$1m`` both."""
    mark, least, magnitude, most, other = match.groups()
    if magnitude == other:
        return f"{mark}{least}-{most}{magnitude}"
    return f"{mark}{least}{magnitude} to {mark}{most}{other}"


def _amount(match: re.Match[str]) -> str:
    currency = CURRENCIES[match["mark"]]
    sign = "minus " if match["sign"] else ""
    magnitude, bill = match["magnitude"], match["bill"] or ""
    if match["to"]:
        words = f"{decimal(match['amount'])} to {decimal(match['to'])}{_magnitude(magnitude)} {currency.many}"
    # A noun follows, so the currency is singular: a ten dollar bill, a two million dollar house.
    elif bill or (magnitude and magnitude.startswith("-")):
        words = f"{decimal(match['amount'])}{_magnitude(magnitude)} {currency.one}{bill.replace('-', ' ')}"
    else:
        words = say_amount(match["amount"], currency, magnitude)
    return sign + words


def _code(match: re.Match[str]) -> str:
    mark = match["mark"]
    currency = CURRENCIES[CODES.get(mark, mark)]
    if match["least"]:
        return (
            f"{decimal(match['least'])} to {decimal(match['amount'])}{_magnitude(match['magnitude'])} {currency.many}"
        )
    return say_amount(match["amount"], currency, match["magnitude"])


def say_amount(amount: str, currency: Currency, magnitude: str | None = None) -> str:
    """An amount in words; with two decimals in the currency and its hundredth.

    ``magnitude`` is a word such as million after the amount, or its abbreviation.

    >>> say_amount("0.99", DOLLAR), say_amount("1.00", DOLLAR), say_amount("2.5", DOLLAR)
    ('ninety-nine cents', 'one dollar', 'two point five dollars')
    """
    if magnitude:
        return f"{decimal(amount)}{_magnitude(magnitude)} {currency.many}"
    written, _, after = amount.partition(".")
    before = written.replace(",", "")
    # Only two decimals are cents: $2.5 is two point five dollars.
    if len(after) != 2 or not currency.cent:
        return f"{decimal(amount)} {currency.one if amount == '1' else currency.many}"
    parts = []
    if int(before or 0) or not int(after):
        # with its commas, which tell lakhs from thousands
        count = whole(written) if int(before or 0) and before[0] != "0" else cardinal(int(before or 0))
        parts.append(f"{count} {currency.one if int(before or 0) == 1 else currency.many}")
    if int(after):
        parts.append(f"{cardinal(int(after))} {currency.cent if int(after) == 1 else currency.cents}")
    return ", ".join(parts)


def _magnitude(written: str | None) -> str:
    word = (written or "").strip(" -")
    return f" {MAGNITUDES.get(word, word)}" if word else ""


def _old_pounds(match: re.Match[str]) -> str:
    """Pounds, shillings and pence; the pounds, whose sign stands before, stay for ``_AMOUNT``."""
    said = f"{match[1]}, {_shillings(match[2])}"
    return f"{said}, {_pence(match[3])}" if match[3] else said


def _shillings(number: str) -> str:
    return f"{cardinal(int(number))} shilling{'' if int(number) == 1 else 's'}"


def _pence(number: str) -> str:
    return f"{cardinal(int(number))} {'penny' if int(number) == 1 else 'pence'}"
