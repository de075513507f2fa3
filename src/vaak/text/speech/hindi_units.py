"""Hindi's units of measurement: how they are shortened, and what they are called after a figure, a stroke or a word.

Spellings are made from few rows: a prefix before a Latin symbol (k + Hz), and, in Devanagari, parts with or without
full stops and spaces (किमी, कि.मी., कि. मी., कि.मी).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from vaak.text.speech.hindi_short_words import BEGINS, ENDED, LETTER, match_any, nfc, read_table
from vaak.text.speech.words import RewriteRule

_PREFIXES = read_table(
    "k=किलो K=किलो M=मेगा G=गीगा T=टेरा P=पेटा h=हेक्टो d=डेसी c=सेंटी m=मिली µ=माइक्रो μ=माइक्रो n=नैनो p=पिको"
)
_PREFIXED = """
kcmµμnd m मीटर
kKcdmµμn g ग्राम
kmdcµμ L लीटर
kmdcµμ l लीटर
kKMGTm W वॉट
kKMGT Wh वॉट_घंटा
kKmµμ V वोल्ट
kKM VA वोल्ट_ऐंपियर
kmµμ A ऐंपियर
mk Ah ऐंपियर_घंटा
kKMGT Hz हर्ट्ज़
hkMG Pa पास्कल
m bar बार
kKMG J जूल
kK cal कैलोरी
k N न्यूटन
kMGT eV इलेक्ट्रॉनवोल्ट
mµμn s सेकंड
kKMGTP B बाइट
kKMGT bps बिट_प्रति_सेकंड
kKM Ω ओम
µμnp F फ़ैराड
mµμ mol मोल
mµ Eq इक्विवेलेंट
mµμ IU इंटरनेशनल_यूनिट
mµμ Sv सीवर्ट
kMG Bq बेकेरल
"""
"""Prefixes that a symbol is written with, the symbol and its name."""
_LATIN_UNITS = """
किलोमीटर km kms Km Kms KM KMS
मीटर m mtr mtrs mts meter meters metre metres
सेंटीमीटर cms
मील mi mile miles
गज yd yds
फुट ft feet foot
इंच inch inches
किलोग्राम kgs Kg Kgs KG KGS
ग्राम g gm gms Gm grams gram
माइक्रोग्राम mcg
टन ton tons tonne tonnes MT
पाउंड lb lbs
औंस oz
कैरेट ct
लीटर L ltr ltrs Ltr lt Lt litre litres liter liters
मिलीलीटर ML Ml
सीसी cc CC
गैलन gal
क्वार्ट qt
हेक्टेयर ha
एकड़ ac acre acres
घंटा h hr hrs hour hours
मिनट min mins minute minutes
सेकंड s sec secs seconds
दिन day days
सप्ताह wk wks week weeks
महीने mo mos months
वर्ष yr yrs years
दर्जन doz dz dozen
पीस pc pcs
नग nos Nos
बेकेरल Bq
वोल्ट V
वॉट W watt watts
हॉर्सपावर hp HP bhp
हर्ट्ज़ Hz
किलोहर्ट्ज़ Khz khz
मेगाहर्ट्ज़ Mhz
गीगाहर्ट्ज़ Ghz
यूनिट_प्रति_लीटर U/L
किलोवॉट_घंटा kwh KWH
किलोवॉट kw Kw
बाइट byte bytes
मेगाबाइट mb
गीगाबाइट gb Gb
डेसिबल dB
पास्कल Pa
बार bar
पीएसआई psi PSI
मिलीमीटर_मरकरी mmHg mm_Hg
कैलोरी cal Cal
मोल mol
ओम Ω ohm ohms
न्यूटन_मीटर Nm
इलेक्ट्रॉनवोल्ट eV
लक्स lux lx
लुमेन lm
पिक्सेल px
नॉटिकल_मील nmi
मील_प्रति_गैलन mpg
कैंडेला cd
रेडियन rad
प्रकाश_वर्ष ly
मेगापिक्सल MP
पीपीएम ppm
पीपीबी ppb
डीपीआई dpi
एफपीएस fps FPS
चक्कर_प्रति_मिनट rpm RPM
धड़कन_प्रति_मिनट bpm
किलोमीटर_प्रति_घंटा km/h km/hr kmph KMPH kph km/hour
किलोमीटर_प्रति_लीटर kmpl km/l km/L
मील_प्रति_घंटा mph mi/h mi/hr
किलोबिट_प्रति_सेकंड kbps
मेगाबिट_प्रति_सेकंड mbps
चम्मच tsp
बड़ा_चम्मच tbsp
वर्ग_फुट sq_ft sq._ft. sq_ft. sq.ft. sqft sq.ft Sq.ft. Sq._ft. SqFt sq_feet sft
वर्ग_मीटर sq_m sq._m. sq.m. sqm sq_mt
वर्ग_किलोमीटर sq_km sq._km. sq.km. sq._km
वर्ग_मील sq_mi sq._mi.
वर्ग_गज sq_yd sq._yd. sq.yd. sqyd
घन_फुट cu_ft cu._ft. cft
डिग्री_सेल्सियस °C °_C ℃ degC
डिग्री_फ़ारेनहाइट °F °_F ℉
डिग्री °
प्रतिशत %
प्रति_हज़ार ‰
"""
_PARTS = """
किलोमीटर कि मी
मीटर मी
सेंटीमीटर से मी
सेंटीमीटर सें मी
मिलीमीटर मि मी
किलोग्राम कि ग्रा
ग्राम ग्रा
मिलीग्राम मि ग्रा
मिलीलीटर मि ली
मिलीलीटर मि लि
किलोवॉट कि वॉ
किलोवॉट कि वा
मेगावॉट मे वा
मेगावॉट मे वॉ
डिग्री_सेल्सियस डि से
सेल्सियस से ग्रे
वर्ग_फुट व फु
वर्ग_फुट व फ़ु
वर्ग_मीटर व मी
वर्ग_किलोमीटर व कि मी
वर्ग_किलोमीटर व किमी
वर्ग_गज व गज
घन_मीटर घ मी
घन_सेंटीमीटर घ से मी
घन_सेंटीमीटर घ सें मी
प्रकाश_वर्ष प्र व
छोटा_चम्मच छो च
छोटा_चम्मच छ च
छोटा_चम्मच टी स्पू
बड़ा_चम्मच ब च
बड़ा_चम्मच टे स्पू
वर्ग_सेंटीमीटर व सें मी
वर्ग_सेंटीमीटर व से मी
वर्ग_सेंटीमीटर व सें
वर्ग_इंच व इं
वर्ग_गज व ग
वर्ग_फुट व फ़ी
वर्ग_फुट व फी
घन_फुट घ फु
घन_फुट घ फ़ी
घन_फुट घ फी
मिलीसेकंड मि से
नैनोसेकंड नै से
किलोजूल कि जू
न्यूटन_मीटर न्यू मी
डेसीमीटर डे मी
डेसीलीटर डे ली
सेंटीलीटर सें ली
हेक्टोलीटर हे ली
मेगालीटर मे ली
नैनोमीटर नै मी
पिकोमीटर पि मी
माइक्रोग्राम मा ग्रा
मिलीवॉट मि वॉ
किलोपास्कल कि पा
मेगापास्कल मे पा
मिलीऐंपियर मि ए
मील_प्रति_घंटा मी प्र घं
किलोमीटर_प्रति_घंटा कि मी प्र घं
नॉटिकल_मील नॉ मी
टेबलस्पून टे स्पून
घंटा घं
मिनट मि
मिनट मिन
"""
"""Units in Devanagari by the parts of their short forms."""
_STOPPED = """
लीटर ली लि लीट
सेकंड से सेक सेकं
घंटा घंट
इंच इं
फुट फु फ़ु फी फ़ी फुट
फीट फीट
हेक्टेयर हे हेक्ट
क्विंटल क्वि क्विं कुं
दर्जन दर्ज दर्ज़
चम्मच च चम चम्म
अंश अं
पैसे पै
किलोमीटर किलोमी
किलो किलो
किलोग्राम किलोग्रा
डिग्री डि डिग्री
कैलोरी कैल कैलो
पाउंड पौं
औंस औं
वर्ष व
दिन दि
जूल जू
न्यूटन न्यू
पास्कल पा
वॉट वॉ
"""
"""Units in Devanagari that need their full stop: without it, से and ली are words."""
_JOINED = frozenset(
    read_table("किमी= सेमी= सेंमी= मिमी= डेमी= नैमी= किग्रा= मिग्रा= ग्रा= मिली= मिलि= सेंली= किवॉ= मिवॉ= किजू= मी= घं= मि= मिन=")
)
"""Parts that are joined without full stops; others would be words, such as डेली and मेली."""


def _read_spellings(rows: str) -> dict[str, str]:
    names = (row.split() for row in nfc(rows).strip().splitlines())
    return {one.replace("_", " "): name.replace("_", " ") for name, *spellings in names for one in spellings}


def _spell_parts() -> Iterable[tuple[str, str]]:
    for row in nfc(_PARTS).strip().splitlines():
        name, *parts = row.split()
        name = name.replace("_", " ")
        yield ".".join(parts) + ".", name
        if len(parts) > 1:
            yield ".".join(parts), name
            yield ". ".join(parts) + ".", name
        if "".join(parts) in _JOINED:
            yield "".join(parts), name
            yield "".join(parts) + ".", name


def _spell_prefixed() -> Iterable[tuple[str, str]]:
    for row in nfc(_PREFIXED).strip().splitlines():
        prefixes, symbol, name = row.split()
        for one in prefixes:
            yield one + symbol, _PREFIXES[one] + name.replace("_", " ")


HINDI_BY_UNIT = {
    **dict(_spell_prefixed()),
    **_read_spellings(_LATIN_UNITS),
    **dict(_spell_parts()),
    **{f"{short}.": name for short, name in _read_spellings(_STOPPED).items()},
}
HINDI_BY_UNIT |= {name: name for name in HINDI_BY_UNIT.values() if " " not in name}
"""Names of units by their short forms, which follow a figure."""
SPACED_UNITS = read_table("A=ऐंपियर K=केल्विन J=जूल N=न्यूटन t=टन q=क्विंटल l=लीटर")
"""Letters that name a unit after a space only: 42A is a bus."""

UNIT = match_any(HINDI_BY_UNIT)
_SURE = frozenset(read_table("किमी= किग्रा= सेमी= सेंमी= मिमी= मिग्रा="))
_COMPOUND = match_any(one for one in HINDI_BY_UNIT if one[0] > "z" and ("." in one[:-1] or one in _SURE))
"""Units that can't be words, wherever they stand."""
_NAMES_BELOW = HINDI_BY_UNIT | read_table(
    """
    l=लीटर d=दिन से=सेकंड सें=सेकंड ली=लीटर लि=लीटर मा=माह मा.=माह सा.=साल माह=माह महीना=महीना महीने=महीने वर्ष=वर्ष साल=साल
    दिन=दिन सप्ताह=सप्ताह हफ़्ता=हफ़्ता हफ़्ते=हफ़्ते सेकंड=सेकंड सेकेंड=सेकेंड मिनट=मिनट घंटा=घंटा घंटे=घंटे व्यक्ति=व्यक्ति किलो=किलो लीटर=लीटर
    मीटर=मीटर किलोमीटर=किलोमीटर ग्राम=ग्राम एकड़=एकड़ हेक्टेयर=हेक्टेयर क्विंटल=क्विंटल टन=टन यूनिट=यूनिट पीस=पीस प्लेट=प्लेट
    night=रात person=व्यक्ति month=माह year=वर्ष day=दिन
    """
)
"""Below the line of a quotient: km/l, बार/दिन."""
PER = match_any(_NAMES_BELOW)
_SCALE = nfc("(?:हज़ार|हजार|लाख|करोड़|अरब)")
_FEW = nfc("आधा|आधे|चौथाई|पौन|एक|दो|तीन|चार|पाँच|दस|डेढ़|ढाई|प्रति|हर")
NUMBER = r"\d+(?:,\d+)*(?:\.\d+)?"
_STOP = r"(?:(?<!\.)\.(?!\s*$|\w))?"
"""The full stop of a short form, unless it ends the text."""
_RAISED_UNIT = {"²": nfc("वर्ग "), "³": nfc("घन "), "^2": nfc("वर्ग "), "^3": nfc("घन ")}
_HOUR, _HOURS = nfc("घंटा"), nfc("घंटे")
_PER_SAID, _TO = nfc(" प्रति "), nfc(" से ")


def name_below(short: str) -> str:
    """The name of a unit below the line of a quotient; other words stay.

    >>> name_below("dL"), name_below("प्लेट")
    ('डेसीलीटर', 'प्लेट')
    """
    return _NAMES_BELOW.get(short, _NAMES_BELOW.get(f"{short}.", short))


def _measure(found: re.Match[str]) -> str:
    unit = HINDI_BY_UNIT[found["unit"]]
    if unit == _HOUR != found["unit"] and found["number"] not in ("1", "0.5"):
        unit = _HOURS
    quotient = re.sub(
        rf"/({PER}|{LETTER}+)([²³]|\^[23](?!\d))?",
        lambda per: f"{_PER_SAID}{_RAISED_UNIT.get(per[2] or '', '')}{name_below(per[1])}",
        found["quotient"],
    )
    return f"{found['number']} {_RAISED_UNIT.get(found['power'] or '', '')}{unit}{quotient}"


UNITS_ALONE: tuple[RewriteRule, ...] = (
    (  # the unit of a column, or after वर्ग and प्रति
        re.compile(rf"(?<!(?!\d){LETTER})({_COMPOUND})(?:/({PER}))?{_STOP}{ENDED}"),
        lambda found: HINDI_BY_UNIT[found[1]] + (_PER_SAID + name_below(found[2]) if found[2] else ""),
    ),
    (
        re.compile(r"(?<![\w/])([mµμ]?[gU]|mol|mmol|mIU|IU|mEq)/(dL|dl|mL|ml|L|kg)(?![\w/])"),
        lambda found: f"{HINDI_BY_UNIT.get(found[1], found[1])}{_PER_SAID}{HINDI_BY_UNIT[found[2]]}",
    ),
    (
        re.compile(nfc(rf"({BEGINS}(?:{_FEW})\s)({UNIT}){ENDED}")),
        lambda found: found[1] + HINDI_BY_UNIT[found[2]],
    ),
    (re.compile(nfc(rf"(?<=वर्ग )(मी\.|मी{ENDED})|(?<=घन )(मी\.|मी{ENDED})")), nfc("मीटर")),
    (re.compile(nfc(r"(?<=[\d°] )से\.\s?ग्रे\.?|(?<=डिग्री )(?:से\.|C\b)|(?<=°)\s?(?:से\.|सेल्सियस)")), nfc(" सेल्सियस")),
)
"""Without a figure; applied before abbreviations, which would spell them."""
UNITS: tuple[RewriteRule, ...] = (
    (
        re.compile(nfc(rf"(?<=\d )({_SCALE})(\s)({UNIT}){ENDED}")),
        lambda found: f"{found[1]}{found[2]}{HINDI_BY_UNIT[found[3]]}",
    ),
    (
        re.compile(rf"(?<=\d)({UNIT})\s?[-–]\s?(?=\d)|(?<=\d )({UNIT})\s?[-–]\s?(?=\d)"),
        lambda found: (found[1] or found[2]) + _TO,
    ),
    (
        re.compile(rf"(?<![\d.,/:-])({NUMBER})\s?[-–~]\s?({NUMBER})(?=[\s-]?(?:{UNIT}){ENDED})"),
        rf"\1{_TO}\2",
    ),
    (
        re.compile(
            rf"(?:(?<![\d.,:/])|(?<=[A-Za-z]/))(?P<number>{NUMBER})(?:\s{{0,2}}|-(?={LETTER}{{2}}))(?P<unit>{UNIT})"
            rf"(?P<power>[²³]|\^[23](?!\d))?(?P<quotient>(?:/(?:{PER}|[\u0900-\u097f]+)(?:[²³]|\^[23](?!\d))?)*)"
            rf"(?!{LETTER}|[²³])(?:{_STOP})"
        ),
        _measure,
    ),
    (
        re.compile(rf"(?<![./])(\d{{1,3}}/\d{{1,3}}|[½¼¾⅓⅔])\s?({UNIT})(?!{LETTER}|[²³/])"),
        lambda found: f"{found[1]} {HINDI_BY_UNIT[found[2]]}",
    ),
    (  # counts: 72/मिनट, 10⁹/L, 3 बार/दिन
        re.compile(rf"(?<=\d)\s?/\s?({PER})([²³])?{ENDED}|(?<=\d )({LETTER}+)\s?/\s?({PER})([²³])?{ENDED}"),
        lambda found: (
            f"{found[3] or ''}{_PER_SAID}{_RAISED_UNIT.get(found[2] or found[5] or '', '')}"
            + name_below(found[1] or found[4])
        ),
    ),
    (  # not 5 in 1, or 3 in box
        re.compile(r"(?<=\d)(?: ?in\b\.?(?=\s*(?:$|[,;)।×x/]|[\u0900-\u097f]))|-inch\b)"),
        nfc(" इंच"),
    ),
    (
        re.compile(rf"(?<=\d )([{''.join(SPACED_UNITS)}])(?=\s+[\u0900-\u097f]|[,।.;)]|$)"),
        lambda found: SPACED_UNITS[found[1]],
    ),
)
"""Applied once money has been read: ₹50/किग्रा."""
