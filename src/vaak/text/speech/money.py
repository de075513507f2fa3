"""Amounts of money in words: signs and codes of currencies, magnitudes, ranges, cents, and old shillings and pence."""

from __future__ import annotations

import re

from vaak.text.speech.currencies import BY_CODE, CODES_AFTER, CODES_BEFORE, CURRENCIES, DOLLAR, Currency
from vaak.text.speech.words import NUMBER, cardinal, decimal, table, whole

MAGNITUDES = table(
    """
    k=thousand K=thousand m=million M=million mn=million Mn=million mln=million mm=million MM=million b=billion
    B=billion bn=billion Bn=billion BN=billion bln=billion tn=trillion trn=trillion T=trillion
    """
)
_OF_RUPEES = table("cr=crore Cr=crore lac=lakh lacs=lakh Lac=lakh Lacs=lakh L=lakh lakhs=lakh crores=crore mil=million")
_MARK = "|".join(re.escape(mark) for mark in sorted(CURRENCIES, key=len, reverse=True))
_MAGNITUDE_WORDS = (
    "[Hh]undred|[Tt]housand|[Ll]akhs?|[Mm]illion|[Cc]rores?|[Bb]illion|[Tt]rillion|dozen|zillion|quadrillion|grand"
)
_SHORT_MAGNITUDE = "|".join(MAGNITUDES)
_MAGNITUDE = (
    rf"(?P<magnitude>[ -]?(?:{_MAGNITUDE_WORDS})(?: (?:{_MAGNITUDE_WORDS}))?\b| ?(?:{_SHORT_MAGNITUDE})\b(?!\.\w)"
    rf"| ?(?:cr|Cr|[Ll]acs?|mil)\b\.?(?=[\s,;)]|$)|L\b)"
)
_SIGN = r"(?P<sign>(?<![\w\d.])[-−])?"
_AMOUNT = re.compile(
    rf"{_SIGN}(?<![A-Za-z])(?P<mark>{_MARK})\s?(?P<amount>{NUMBER})"
    rf"(?:\s?(?:-|–|to)\s?(?:(?P=mark))?(?P<to>{NUMBER}))?{_MAGNITUDE}?(?P<bill>[ -](?:bill|note|coin)\b)?"
)
_TWO_MAGNITUDES = re.compile(
    rf"(?<![A-Za-z])({_MARK})\s?({NUMBER})\s?({_SHORT_MAGNITUDE})\s?(?:-|–|to)\s?(?:\1)?({NUMBER})\s?({_SHORT_MAGNITUDE})(?!\w)"
)
_BEFORE, _AFTER = ("|".join(sorted(codes, key=len, reverse=True)) for codes in (CODES_BEFORE, CODES_AFTER))
_SIGNS_AFTER = "€|₽|₩|₹|₴|₺|₫|kr|zl|Kc"
_CODE_BEFORE = re.compile(
    rf"\b(?P<mark>{_BEFORE})\s?(?:(?P<least>{NUMBER})\s?(?:-|–|to)\s?)?(?P<amount>{NUMBER}){_MAGNITUDE}?(?![\w/]|\.\d)"
)
_CODE_AFTER = re.compile(
    rf"(?<![\w.,])(?:(?P<least>{NUMBER})\s?(?:-|–|to)\s?)?(?P<amount>{NUMBER})\s?{_MAGNITUDE}?\s?"
    rf"(?P<mark>{_AFTER}|{_SIGNS_AFTER})(?!\w)"
)
_HAS_CODE = re.compile(rf"[A-Z]{{3}}|{_SIGNS_AFTER}")
"""Much faster to look for than an amount."""
_SIGN_AND_CODE = re.compile(
    rf"[$£€¥₹]\s?(?=(?:{NUMBER}\s?(?:-|–|to)\s?)?{NUMBER}"
    rf"(?: ?(?:{_SHORT_MAGNITUDE}|{_MAGNITUDE_WORDS}))? ?(?:{_AFTER})\b)"
)
_RUPEES_ONLY = re.compile(r"(?<=\d)/-(?!\w)")
"""The stroke and dash that close an amount in rupees without paise."""
_EUROPEAN = re.compile(
    r"(?<=€)\s?(\d{1,3}(?:\.\d{3})+|\d+)(,\d\d)?(?![\d,])"
    r"|(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+)(,\d\d)?(?=\s?(?:€|EUR\b|kr\b|zl\b|Kc\b))"
)
"""Points between thousands and a decimal comma, as with euros."""
_NO_CENTS = re.compile(r"(?<=[€£$₹\d]\d)[,.](?:[-–—]{1,2}|—)(?=\s|$|[.,;)])")
"""``€ 20,-``."""
_SPACED_DECIMALS = re.compile(r"(?:(?<=[$£€₹]\d\.)|(?<=[$£€₹]\d\d\.)) (?=\d)")
"""Text in tokens has spaces within amounts: $1. 8 million."""
_PLAIN_MAGNITUDE = re.compile(r"(?<=\d)\s?(mn|mln|bn|bln|trn|tn)\b(?!\.\w)(?=\s[a-z]|[.,;:)]|$)")
_CENTS = re.compile(rf"(?<![\d.,])({NUMBER})\s?¢")
_CHANGE = re.compile(
    r"(?<![\w.,$£€])([1-9]\d?)([pc])(?![\w-]|\.\w)(?:(?<=p)|(?= (?:each|a|per|off|coin|piece|stamp|an)\b|[.,;!?]|$))"
)
_OF_CHANGE = {"p": BY_CODE["GBP"], "c": DOLLAR}
_RAND = re.compile(
    r"(?<![\w.])R ?(?=\d{1,3}(?:,\d{3})+\b|\d+\.\d\d\b|\d+(?:\.\d+)? ?(?:million|billion|trillion|bn|m)\b)"
)
"""R500 may be a model."""
_A_DAY = re.compile(rf"([$£€₹])({NUMBER})(?=-(?:a|per|an)-[a-z]+)")
_SHILLINGS = re.compile(r"(?<![\d.,])(?:(\d+)s\. ?)(?:(\d+)d\.)")
_SHILLINGS_ALONE = re.compile(r"(?<![\d.,£])(\d{1,2})(s|d)\.(?! ?\d+d\.)(?<!\ds\. \dd\.)(?<!\ds\. \d\dd\.)(?!\w)")
"""8s. or 8d. in a text that has both together, too."""
_AFTER_POUNDS = re.compile(r"(?<=\bpounds )(\d{1,2})s\b\.?")
_OLD_POUNDS = re.compile(r"(?<=£)([\d,]+) (\d+)s(?:\.| (?=\d+d\b))(?: ?(\d+)d\b\.?)?")
_NOUN_AFTER = re.compile(
    r" (?!(?:of|per|and|or|nor|but|in|to|at|from|a|an|the|is|was|were|are|has|had|each|off|more|less|on|for|with|by|"
    r"into|above|below|over|under|than|as|if|when|while|because|every|through|after|before|since|until|that|which|so|"
    r"only|worth|apiece|back|out|up|down|away|extra|cash|plus|minus|last|next|this|yesterday|today|tomorrow|then|now|later)"
    r"\b)[a-z]{3,}"
)
_ARTICLE = re.compile(r"\b[Aa]n? $")
_CLAUSE_ENDS = re.compile(r"\s*(?:$|[.,;:!?)\"]|(?:in|for|to|from|by|of|and|or|at|on|a)\b)")


def money(text: str) -> str:
    """
    >>> money("$13.87, not £72, or $3.5 million, or 50¢")
    'thirteen dollars, eighty-seven cents, not seventy-two pounds, or three point five million dollars, or fifty cents'
    >>> money("a $20 ticket, 1.000,50 €, $5 CAD")
    'a twenty dollar ticket, one thousand euros, fifty cents, five Canadian dollars'
    """
    # First decimal commas become points, then old pounds lose their figures: later rules see plain amounts only.
    text = _SPACED_DECIMALS.sub("", _RUPEES_ONLY.sub("", text))
    text = _NO_CENTS.sub("", _EUROPEAN.sub(_points_for_commas, text))
    text = _RAND.sub("ZAR ", text)
    text = _OLD_POUNDS.sub(_old_pounds, text)
    text = _AFTER_POUNDS.sub(lambda match: _shillings(match[1]), text)
    if _SHILLINGS.search(text):
        text = _SHILLINGS_ALONE.sub(_shillings_or_pence, text)
    text = _SHILLINGS.sub(lambda match: f"{_shillings(match[1])}, {_pence(match[2])}", text)
    text = _A_DAY.sub(lambda match: f"{decimal(match[2])} {CURRENCIES[match[1]].one}", text)
    text = _TWO_MAGNITUDES.sub(_range_of_magnitudes, text)
    if _HAS_CODE.search(text):
        text = _CODE_BEFORE.sub(_code, _CODE_AFTER.sub(_code, _SIGN_AND_CODE.sub("", text)))
    text = _AMOUNT.sub(_amount, text)
    text = _CHANGE.sub(lambda match: say_amount(f"0.{match[1]:0>2}", _OF_CHANGE[match[2]]), text)
    text = _PLAIN_MAGNITUDE.sub(lambda match: f" {MAGNITUDES[match[1]]}", text)
    return _CENTS.sub(lambda match: f"{decimal(match[1])} {'cent' if match[1] == '1' else 'cents'}", text)


def _points_for_commas(match: re.Match[str]) -> str:
    """``1.234,50`` as ``1,234.50``."""
    whole_part, cents = match[1] or match[3], match[2] or match[4] or ""
    return whole_part.replace(".", ",") + cents.replace(",", ".")


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
        words = _range_of_amounts(match["amount"], match["to"], currency, magnitude)
    # A noun follows, so the currency is singular: a ten dollar bill, a two million dollar house.
    elif (
        bill
        or (magnitude and magnitude.startswith("-") and not _CLAUSE_ENDS.match(match.string, match.end()))
        or _is_before_noun(match)
    ):
        words = f"{decimal(match['amount'])}{_magnitude(magnitude)} {currency.one}{bill.replace('-', ' ')}"
    else:
        words = say_amount(match["amount"], currency, magnitude)
    return sign + words


def _is_before_noun(match: re.Match[str]) -> bool:
    """Return whether an amount stands between an article and a noun; one with cents is read in full."""
    if "." in match["amount"] and not match["magnitude"]:
        return False
    is_after_article = _ARTICLE.search(match.string[max(0, match.start() - 4) : match.start()])
    return bool(is_after_article and _NOUN_AFTER.match(match.string, match.end()))


def _range_of_amounts(least: str, most: str, currency: Currency, magnitude: str | None) -> str:
    """``$5-$10`` names dollars once, ``$1.50-$2.25`` cents of both."""
    if not magnitude and any(re.fullmatch(r".*\.(?!00)\d\d", one) for one in (least, most)):
        return f"{say_amount(least, currency)} to {say_amount(most, currency)}"
    said = " to ".join(decimal(one if magnitude else one.removesuffix(".00")) for one in (least, most))
    return f"{said}{_magnitude(magnitude)} {currency.many}"


def _code(match: re.Match[str]) -> str:
    mark = match["mark"]
    currency = BY_CODE.get(mark) or CURRENCIES[mark]
    if match["least"]:
        return _range_of_amounts(match["least"], match["amount"], currency, match["magnitude"])
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
    word = (written or "").strip(" -.")
    return f" {MAGNITUDES.get(word) or _OF_RUPEES.get(word) or word.lower()}" if word else ""


def _old_pounds(match: re.Match[str]) -> str:
    """Pounds, shillings and pence; the pounds, whose sign stands before, stay for ``_AMOUNT``."""
    said = f"{match[1]}, {_shillings(match[2])}"
    return f"{said}, {_pence(match[3])}" if match[3] else said


def _shillings(number: str) -> str:
    return f"{cardinal(int(number))} shilling{'' if int(number) == 1 else 's'}"


def _shillings_or_pence(match: re.Match[str]) -> str:
    return _shillings(match[1]) if match[2] == "s" else _pence(match[1])


def _pence(number: str) -> str:
    return f"{cardinal(int(number))} {'penny' if int(number) == 1 else 'pence'}"
