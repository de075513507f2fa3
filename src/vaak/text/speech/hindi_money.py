"""Money in Hindi text: each way to write an amount becomes its sign and the amount (रु. 5 lakh is ₹5 लाख).

``vaak.text.speech.hindi`` reads these, with paise and the plural.
"""

from __future__ import annotations

import re

from vaak.text.speech.hindi_short_words import BEGINS, ENDED, match_any, nfc, read_table
from vaak.text.speech.hindi_units import NUMBER, PER, name_below
from vaak.text.speech.words import RewriteRule

SIGNS = read_table("$=डॉलर €=यूरो £=पाउंड ¥=येन ₩=वॉन ₺=लीरा ৳=टका ₦=नाइरा ₽=रूबल ₫=डोंग ฿=बाट ₪=शेकेल ₿=बिटकॉइन")
"""Signs other than that of the rupee, and what the money is called."""
_SIGN_BY_CODE = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "INR": "₹", "KRW": "₩", "BDT": "৳", "RUB": "₽"}
_NAME_BY_CODE = read_table(
    """
    AED=दिरहम SAR=रियाल CAD=कनाडाई_डॉलर AUD=ऑस्ट्रेलियाई_डॉलर SGD=सिंगापुर_डॉलर HKD=हांगकांग_डॉलर NZD=न्यूज़ीलैंड_डॉलर CHF=स्विस_फ़्रैंक
    CNY=युआन NPR=नेपाली_रुपये PKR=पाकिस्तानी_रुपये LKR=श्रीलंकाई_रुपये KWD=दीनार QAR=रियाल OMR=रियाल MYR=रिंगिट THB=बाट
    """
)
_LATIN_SCALES = read_table(
    """
    K=हज़ार k=हज़ार L=लाख lakh=लाख lakhs=लाख Lakh=लाख Lakhs=लाख lac=लाख lacs=लाख Lac=लाख Cr=करोड़ cr=करोड़ Crore=करोड़
    crore=करोड़ crores=करोड़ Crores=करोड़
    M=मिलियन m=मिलियन mn=मिलियन Mn=मिलियन million=मिलियन B=बिलियन bn=बिलियन Bn=बिलियन
    billion=बिलियन tn=ट्रिलियन trillion=ट्रिलियन
    """
)
_SCALES_OF_RUPEES = match_any(one for one in _LATIN_SCALES if "akh" in one or one.lower().startswith(("lac", "cr")))
_SCALE = nfc("(?:हज़ार|हजार|लाख|करोड़|अरब|खरब|मिलियन|बिलियन|ट्रिलियन)")
_SIGN = f"[₹{''.join(SIGNS)}]"
_END = r"(?![\d.,]*\d|\s?%)"
_RUPEES = nfc("रुपये|रुपए")
_SAID_SCALES = ")(?<!".join(read_table("हज़ार_= हजार_= लाख_= लाखों_= करोड़_= करोड़ों_= अरब_= सौ_="))
_PER, _TO = nfc(" प्रति "), nfc(" से ")

MONEY: tuple[RewriteRule, ...] = (
    (re.compile(nfc(rf"(?<!\d )(?<!\d){BEGINS}(?:रु|रू|Rs|Re|INR)(?:\.|:)?\s?(?=\d)|₨\s?(?=\d)")), "₹"),
    (  # not of "5 करोड़ रुपये 45 लोगों", or of a year
        re.compile(
            rf"(?<!\d )(?<!{_SAID_SCALES}){BEGINS}(?:{_RUPEES})\s(?=\d{{2}}|\d(?:\.\d+)?\s?{_SCALE})"
            r"(?!(?:1[5-9]|20)\d\d(?![\d,/]))"
        ),
        "₹",
    ),
    (re.compile(rf"\b({'|'.join(_SIGN_BY_CODE)})\s?(?={NUMBER})"), lambda found: _SIGN_BY_CODE[found[1]]),
    (re.compile(r"\b(US|A|C|CA|AU|NZ|HK|S)\$\s?(?=\d)"), r"\1 $"),
    (
        re.compile(rf"({_SIGN}\s?{NUMBER})\s?({match_any(_LATIN_SCALES)})(?![A-Za-z\d])\.?"),
        lambda found: f"{found[1]} {_LATIN_SCALES[found[2]]}",
    ),
    (
        re.compile(rf"(?<![\w.,])({NUMBER})\s?({_SCALES_OF_RUPEES})\b\.?"),
        lambda found: f"{found[1]} {_LATIN_SCALES[found[2]]}",
    ),
    (re.compile(rf"₹\s?({NUMBER})\s?LPA\b"), nfc("₹\\1 लाख प्रति वर्ष")),
    (re.compile(rf"({_SIGN}\s?{NUMBER})\s?/[-–=]+"), r"\1 "),
    (re.compile(rf"(?<![\w.,/{_SIGN[1:-1]}-])({NUMBER})\s?/[-–](?![\d\w])=?"), r"₹\1 "),
    (
        re.compile(nfc(rf"(?<![\d.,₹])({NUMBER})((?:\s?{_SCALE}){{0,2}})\s?(?:(?:रु|रू)(?:\.|{ENDED})|₹(?!\d)|INR\b)")),
        r"₹\1\2 ",
    ),
    (
        re.compile(rf"\b({'|'.join(_NAME_BY_CODE)})\s?({NUMBER}(?:\s{_SCALE})*)"),
        lambda found: f"{found[2]} {_NAME_BY_CODE[found[1]]}",
    ),
    (
        re.compile(rf"(?<=\d )({'|'.join(_NAME_BY_CODE)})\b"),
        lambda found: _NAME_BY_CODE[found[1]],
    ),
    (
        re.compile(rf"(?<![\d.,])({NUMBER})\s?({'|'.join(_SIGN_BY_CODE)})\b"),
        lambda found: f"{_SIGN_BY_CODE[found[2]]}{found[1]}",
    ),
    (  # the money once, of both: ₹500-₹700, 5-₹10 लाख, ₹5 लाख-10 लाख
        re.compile(rf"({_SIGN})?\s?({NUMBER}(?:\s?{_SCALE})?)\s?[-–~]\s?(?:({_SIGN})\s?)?({NUMBER})(?=\D|$){_END}"),
        lambda found: f"{found[2]}{_TO}{found[3] or found[1]}{found[4]}" if found[1] or found[3] else found[0],
    ),
    (
        re.compile(rf"({_SIGN}\s?{NUMBER}(?:\s?{_SCALE})?)\s?/\s?(?:({PER}){ENDED}|(?=[\u0900-\u097f]))"),
        lambda found: f"{found[1]}{_PER}{name_below(found[2] or '')}",
    ),
)
"""Rules for money; they come before those for units, which have the same strokes and figures."""
