"""Hindi's written forms that come before its figures: abbreviations, addresses, identifiers, units, operators, powers.

Each rule rewrites one kind; figures that it leaves are read by ``vaak.text.speech.hindi``. What has no reading, such as
bullets, is left out and named.
"""

from __future__ import annotations

import re

from vaak.text.speech.hindi_dates import DATES, NAMED_DATES, TIMES, YEARS
from vaak.text.speech.hindi_money import MONEY, SIGNS
from vaak.text.speech.hindi_short_words import (
    BEGINS,
    ENDED,
    LETTER,
    nfc,
    read_table,
)
from vaak.text.speech.hindi_units import UNIT, UNITS
from vaak.text.speech.identifiers import compile_cues
from vaak.text.speech.operators import LOWERED, RAISED
from vaak.text.speech.roman import parse_roman
from vaak.text.speech.words import RewriteRule, table
from vaak.text.speech.words import ordinal as english_ordinal

_NAMES = read_table(
    """
    <=छोटा_है >=बड़ा_है ≤=छोटा_या_बराबर ≥=बड़ा_या_बराबर ≠=बराबर_नहीं ≈=लगभग ~=लगभग ±=प्लस_माइनस √=वर्गमूल ∞=अनंत →=से ←=से ⇒=तो
    −=माइनस ∈=में ∪=संघ ∩=सर्वनिष्ठ ∑=योग ∴=इसलिए §=धारा ©=कॉपीराइट №=नंबर ^=की_घात \\=बैकस्लैश ✓=सही ✔=सही ¢=सेंट
    α=अल्फ़ा β=बीटा γ=गामा δ=डेल्टा Δ=डेल्टा ∆=डेल्टा ε=एप्सिलॉन θ=थीटा λ=लैम्डा μ=म्यू µ=म्यू π=पाई ρ=रो σ=सिग्मा Σ=सिग्मा τ=टाऊ φ=फ़ाई
    ω=ओमेगा Ω=ओम η=ईटा κ=कप्पा ν=न्यू ξ=क्साई χ=काई ψ=साई Φ=फ़ाई Ψ=साई Γ=गामा Λ=लैम्डा Π=पाई Θ=थीटा ζ=ज़ीटा
    ∠=कोण △=त्रिभुज ∥=समांतर ⊥=लंब ∫=समाकलन ∂=आंशिक ∅=रिक्त_समुच्चय ∉=में_नहीं ⊂=उपसमुच्चय ⊆=उपसमुच्चय ∀=सभी_के_लिए ∝=समानुपाती
    ≡=सर्वसम ⇔=यदि_और_केवल_यदि ↔=से ↑=ऊपर ↓=नीचे ∵=क्योंकि ✗=गलत ✘=गलत ⋅=गुणा ∙=गुणा ∏=गुणनफल ∇=डेल
    """
)
DROPPED = "*|_•●▪■◦‣►®™†‡"
"""Characters that aren't spoken where no rule takes them."""
VULGAR_IN_FIGURES = table("⅓=1/3 ⅔=2/3 ⅛=1/8 ⅜=3/8 ⅝=5/8 ⅞=7/8 ⅕=1/5 ⅖=2/5 ⅗=3/5 ⅘=4/5 ⅙=1/6 ⅚=5/6")
READ_IN_HINDI = frozenset((*_NAMES, *DROPPED, *VULGAR_IN_FIGURES, *RAISED, *LOWERED, *SIGNS, *"★☆⭐‰₨℃℉′″"))
"""Characters that are read here."""
_SAID = read_table(
    """
    .=डॉट @=ऐट /=स्लैश -=डैश :=कोलन ?=प्रश्नचिह्न &=और #=हैश %=प्रतिशत +=प्लस ~=टिल्ड
    """
) | {"_": nfc("अंडरस्कोर"), "=": nfc("बराबर")}
_PIECE = re.compile(r"[A-Za-z]+|[0-9]+|.")
_HUMPS = re.compile(r"(?<=[a-z])(?=[A-Z])|_")
CUES = compile_cues(
    nfc(
        r"पिन ?कोड|पिन|ओ\.?टी\.?पी\.?|OTP|PIN|PNR|IFSC|आधार|कोड|ट्रेन|गाड़ी|पासवर्ड|खाता|खाते|पीएनआर|फ़ोन|फोन|मोबाइल|"
        r"दूरभाष|टेलीफ़ोन|टेलीफोन|Tel|Mob|AWB|UTR|अनुक्रमांक|फ़ैक्स|टोल ?फ्री|हेल्पलाइन|कॉल|डायल|एसएमएस|SMS|ID|आईडी"
    ),
    nfc(
        r"बिल|रोल|सीट|मीटर|पॉलिसी|ग्राहक|उपभोक्ता|कर्मचारी|बुकिंग|चालान|इनवॉइस|लाइसेंस|ऑर्डर|रसीद|टिकट|केस|आईडी|पासपोर्ट|मेरा|हमारा|सदस्यता|पंजीकरण|रजिस्ट्रेशन|कार्ड|"
        r"चेक|ट्रैकिंग|कूरियर|एनरोलमेंट|नामांकन|आवेदन|वोटर|मतदाता|ट्रांज़ैक्शन|लेनदेन|रेफ़रेंस|शिकायत|वाउचर|इंजन|चेसिस|सिम|अनुमति"
    ),
    nfc(r"नंबर|नम्बर|नं\.?|संख्या|सं\.|क्रमांक|आईडी"),
)
CITIES = nfc(
    "दिल्ली|मुंबई|मुम्बई|कोलकाता|चेन्नई|बेंगलुरु|बेंगलूरु|बंगलौर|हैदराबाद|पुणे|अहमदाबाद|लखनऊ|कानपुर|पटना|जयपुर|भोपाल|इंदौर|इन्दौर|"
    "नागपुर|वाराणसी|आगरा|नोएडा|गुरुग्राम|गुड़गाँव|गाज़ियाबाद|गाजियाबाद|फ़रीदाबाद|फरीदाबाद|राँची|रांची|देहरादून|शिमला|चंडीगढ़|अमृतसर|"
    "लुधियाना|जोधपुर|उदयपुर|कोटा|मेरठ|प्रयागराज|इलाहाबाद|रायपुर|गुवाहाटी|सूरत|वडोदरा|कोच्चि|गोरखपुर|बरेली|अलीगढ़|मथुरा|जम्मू|"
    "श्रीनगर|जबलपुर|ग्वालियर|धनबाद|जमशेदपुर|भुवनेश्वर|नासिक|नाशिक|राजकोट|मैसूर|मैसूरु|अजमेर|बीकानेर|झाँसी|झांसी|हरिद्वार|गया|भागलपुर"
)
"""Cities; six figures after one are a postcode."""
_PLACES = nfc(
    "नगर|पुर|बाद|गंज|गढ़|रोड|मार्ग|कॉलोनी|चौक|बाज़ार|ईस्ट|वेस्ट|प्रदेश|बिहार|राजस्थान|महाराष्ट्र|हरियाणा|पंजाब|झारखंड|उत्तराखंड|गुजरात|"
    "कर्नाटक"
)
"""Ends of names before six figures at the end, too."""
_N = r"\d+(?:,\d+)*(?:\.\d+)?"
_GREEK = "[\u0370-\u03ff\u1f00-\u1fff]"
_RAISED = f"[{''.join(RAISED)}]"
_DOMAIN_ENDINGS = "com|org|net|edu|gov|info|in|io|ai|uk|us|co"


def address(text: str) -> str:
    """An address piece by piece.

    >>> address("jo@mail.com")
    ' jo ऐट mail डॉट com '
    """
    said = (piece if piece.isalnum() else _SAID.get(piece, "") for piece in _PIECE.findall(text.rstrip("/")))
    return f" {' '.join(filter(None, said))} "


def _power(found: re.Match[str]) -> str:
    figures = "".join(RAISED[one] for one in found[0])
    return nfc(f" की घात {figures.replace('-', 'माइनस ')} ")


def _stars(found: re.Match[str]) -> str:
    stars, missing = len(found[1]), len(found[2])
    return nfc(f" {stars + missing} में से {stars} सितारे " if missing else f" {stars} सितारे ")


ADDRESSES: tuple[RewriteRule, ...] = (
    (re.compile(r"\b(?:https?|ftp)://([\w./?=&%#~:@+-]*[\w/])", re.ASCII), lambda found: address(found[1])),
    (re.compile(r"(?<![\w.+-])[\w.+%-]+@[\w-]+(?:\.[\w-]+)+", re.ASCII), lambda found: address(found[0])),
    (
        re.compile(rf"\b(?:[A-Za-z0-9][\w-]*\.)+(?:{_DOMAIN_ENDINGS})\b(?:/[\w./?=&%#~-]*\w)?", re.ASCII),
        lambda found: address(found[0]),
    ),
    (re.compile(r"\b[A-Za-z_][\w-]*\.[a-z]{2,4}\d?\b", re.ASCII), lambda found: address(found[0])),
    (
        re.compile(r"(?<![\w.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![\w.]\w)"),
        lambda found: nfc(" डॉट ").join(found.groups()),
    ),
    (
        re.compile(r"(?<!\w)#(\d+)([A-Z][a-z][A-Za-z]*)", re.ASCII),
        lambda found: nfc(f"हैशटैग {found[1]} {_HUMPS.sub(' ', found[2])}"),
    ),
    (re.compile(r"(?<!\w)#(?=\d)"), nfc("नंबर ")),
    (re.compile(rf"(?<!\w)#((?!\d){LETTER}+)"), lambda found: nfc(f"हैशटैग {_HUMPS.sub(' ', found[1])}")),
    (re.compile(rf"(?<!\w)@((?!\d){LETTER}+)"), lambda found: nfc(f"ऐट {_HUMPS.sub(' ', found[1])}")),
)
_MINUS, _POWER = nfc(" माइनस "), nfc(" की घात")
_DIRECTIONS = read_table("N=उत्तर S=दक्षिण E=पूर्व W=पश्चिम")
_HALVED = nfc(
    "कप|चम्मच|छोटा चम्मच|बड़ा चम्मच|टी ?स्पून|टेबल ?स्पून|किलो|किलोग्राम|लीटर|गिलास|ग्लास|घंटा|घंटे|दिन|किलोमीटर|किमी|इंच|पैकेट|एकड़|"
    "बीघा|नींबू|प्याज़|प्याज"
)
"""Masculine words: of others, half is आधी."""
_COUNTED = nfc(
    "लाइक|लाइक्स|व्यूज़|व्यूज|व्यू|फ़ॉलोअर्स|फॉलोअर्स|फ़ॉलोअर|फॉलोअर|सब्सक्राइबर|सब्सक्राइबर्स|लोग|लोगों|यूज़र्स|यूजर्स|यूज़र|रुपये|रुपए|रेटिंग|रिव्यू|"
    "डाउनलोड|डाउनलोड्स|कमेंट|शेयर|वोट|ट्वीट|views|likes|followers|subscribers|downloads|users|people"
)
_SCALES = read_table("k=हज़ार K=हज़ार M=मिलियन L=लाख B=बिलियन")
_LENGTHS = nfc("फुट|फ़ुट|फीट|फ़ीट|इंच|मीटर|मी|मी\\.|सेमी|से\\.मी\\.|मिमी|किमी|cm|mm|m|ft|in|inch|सेंटीमीटर|मिलीमीटर|गज")
_RELATIONS = read_table("s=पुत्र d=पुत्री w=पत्नी c=द्वारा")
ORDINALS = read_table("1=प्रथम 2=द्वितीय 3=तृतीय 4=चतुर्थ 5=पंचम 6=षष्ठ 7=सप्तम 8=अष्टम 9=नवम 10=दशम")
"""Ordinals of sovereigns and popes up to ten; from eleven on the usual ones are used."""
_HEADINGS = nfc(
    "अध्याय|भाग|खंड|खण्ड|कक्षा|अनुच्छेद|अनुसूची|सूची|परिशिष्ट|युद्ध|टाइप|प्रकार|चरण|अंक|श्रेणी|समूह|वर्ग|ग्रेड|स्तर|सत्र|सेमेस्टर|"
    "टियर|वार्ड|संस्करण|योजना|राजमार्ग|कड़ी|मिशन|आदेश|नियम|ज़ोन|सीज़न|एपिसोड|खण्ड|परंतुक|उपखंड|उपधारा|उप-धारा|बिंदु|मद|विकल्प|"
    "इकाई|यूनिट|मॉड्यूल|पेपर|प्रश्नपत्र|पर्व|सर्ग|धारा|तालिका|सारणी|चित्र|वॉल्यूम|पार्ट|चैप्टर|क्लास|फ़ेज़|फेज|स्टेज|लेवल|ग्रुप"
)
_SOVEREIGNS = nfc(
    "चार्ल्स|जॉर्ज|जार्ज|विलियम|जेम्स|हेनरी|एडवर्ड|रिचर्ड|लुई|एलिज़ाबेथ|एलिजाबेथ|फ़िलिप|फिलिप|नेपोलियन|पायस|पॉल|लियो|ग्रेगरी|बेनेडिक्ट|"
    "निकोलस|अलेक्ज़ेंडर|फ्रेडरिक|फ़्रेडरिक|कैथरीन|रामसेस|टॉलेमी|पीटर|चंद्रगुप्त|चन्द्रगुप्त|पुलकेशिन|राजराज|राजेंद्र|विक्रमादित्य|शाहजहाँ|अकबर"
)
"""Names after which a single letter is a number too."""
_ROMAN = r"(?:X{0,3}(?:IX|IV|V?I{0,3})(?<=[IVX]))"
_LONG_ROMAN = (
    rf"(?:{_ROMAN}(?![LCDM])"
    r"|(?=[IVXLCDM]{3}|[XL]{2})M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3}))"
)
_NOT_NAMES = nfc("को|में|से|का|के|की|ने|पर|और|या|है|हैं|तक|एक|कि|तो|भी|था|थे|थी|यह|वह")
_ROMAN_ITEM = re.compile(r"^\(?(?=[ivx]{2})((?:x{0,3})(?:ix|iv|v?i{0,3}))[.)](?=\s)\s*")
_ROMAN_BEFORE = re.compile(nfc(rf"(?<![\w.])({_ROMAN})(?=\s(?:विश्व युद्ध|विश्वयुद्ध){ENDED})"))
_ROMAN_CENTURY = re.compile(nfc(rf"(?<![\w.])({_ROMAN})(?:वीं|वी)?(?=\s(?:सदी|शताब्दी|शती){ENDED})"))
_ROMAN_HEADING = re.compile(
    rf"{BEGINS}(?P<heading>{_HEADINGS})[\s-](?P<roman>{_LONG_ROMAN})(?:\s?[-–]\s?(?P<to>{_LONG_ROMAN}))?(?![\w.'-])"
)
_ROMAN_NAME = re.compile(
    rf"{BEGINS}(?P<name>{_SOVEREIGNS})\s(?P<roman>{_ROMAN})(?![\w'-])(?=(?P<after>\s(?:{_NOT_NAMES}){ENDED})?)"
)
_ROMAN_OTHER = re.compile(
    rf"{BEGINS}(?!(?:{_NOT_NAMES}|{_SOVEREIGNS})\s)({LETTER}*[\u0900-\u097f])\s(?=[IVX]{{2}})(?!IV\b)({_ROMAN})(?![\w.'-])"
)
_ROMAN_AFTER_HYPHEN = re.compile(rf"(?<=[\u0900-\u097f])-({_ROMAN})(?![\w.'-])")
_ROMAN_ORDINAL = re.compile(nfc(rf"(?<![\w.])({_LONG_ROMAN})(?=(?:वीं|वें|वाँ|वां|थी|था|ला|ली|रा|री){ENDED})"))
_ROMAN_CLAUSE = re.compile(
    rf"{BEGINS}({_HEADINGS})\s?\((?=[ivx])((?:x{{0,3}})(?:ix|iv|v?i{{0,3}}))\)|\((?=[ivx]{{2}})((?:x{{0,3}})(?:ix|iv|v?i{{0,3}}))\)"
)
"""Names in no list are counted: एंजियोटेंसिन II is दो, like most things numbered so."""
_TRAINS = nfc("एक्सप्रेस|राजधानी|शताब्दी|मेल|दुरंतो|वंदे|सुपरफ़ास्ट|सुपरफास्ट|पैसेंजर|हमसफ़र|हमसफर|तेजस|ट्रेन|गाड़ी")
WORDS: tuple[RewriteRule, ...] = (
    (  # of cars: KA 05 MN 4410, UP-32-AB-1234
        re.compile(r"\b([A-Z]{2})[ -]?(\d{1,2})[ -]?([A-Z]{1,3}(?:[ -][A-Z]{2})?)[ -]?(\d{4})\b"),
        lambda found: f"{found[1]} {found[2]} {found[3]} {' '.join(found[4])}",
    ),
    (  # of tax payers, such as 09ABCDE1234F1Z5
        re.compile(r"(?<![\w-])(?=(?:[A-Z]*\d){4})(?=\d*[A-Z])[A-Z\d]{9,}(?![\w-])"),
        lambda found: re.sub(r"\d", r" \g<0> ", found[0]),
    ),
    (
        re.compile(nfc(r"((?:आख़िरी|आखिरी|अंतिम)\s(?:\S+\s)?अंक\s)(\d{3,6})(?!\d)")),
        lambda found: f"{found[1]}{' '.join(found[2])}",
    ),
    (re.compile(r"(?<![\w./-])(0\d{3,7}-\d{3,8})(?![\d/-])"), lambda found: " ".join(found[1].replace("-", ""))),
    (
        re.compile(rf"({LETTER}*(?:{_PLACES})[,\s]\s?)(\d{{6}})(?=\s*(?:[,।.;)]|$))"),
        lambda found: f"{found[1]}{' '.join(found[2])}",
    ),
    (re.compile(r"(?<![\d+])91[- ](?=[6-9]\d{9}(?!\d))"), "9 1 "),
    (re.compile(r"(?<!\d)(0\d{2,4}-\d{6,8})(?:/(\d{1,4})|(, )(\d{6,8}))(?!\d)"), lambda found: _read_two_phones(found)),
    (
        re.compile(nfc(rf"(?<![\d.,])([012]\d{{4}})(?=\s(?:{LETTER}+\s){{0,2}}(?:{_TRAINS}){ENDED})")),
        lambda found: " ".join(found[1]),
    ),
    (re.compile(r"(?<![\w-])(XX?S|S|M|L)\s?-\s?(M|L|[2-9]?X{1,4}L)(?![\w-])"), nfc(r"\1 से \2")),  # of clothes
    (re.compile(nfc(rf"{BEGINS}डॉ(?=\s[\u0904-\u0939])")), nfc("डॉक्टर")),
    (re.compile(nfc(rf"{BEGINS}और/या{ENDED}")), nfc("और या")),
    (re.compile(r"\bN/A\b"), "N A"),
    (re.compile(r"\bC#"), nfc("C शार्प")),
    (re.compile(r"\b(A|B|AB|O)\s?\+(?:ve\b|(?=\s(?:ब्लड|रक्त|खून|ख़ून)))"), nfc(r"\1 पॉज़िटिव")),
    (re.compile(r"\b(A|B|AB|O)\s?[-−](?:ve\b|(?=\s(?:ब्लड|रक्त|खून|ख़ून)))"), nfc(r"\1 नेगेटिव")),
    (re.compile(r"(?<=[\u0900-\u097f])\s?[-–]\s?(\d{6})(?![\d,.-])"), lambda found: f" {' '.join(found[1])} "),
    (re.compile(r"\b([A-Z]{3,5})((?:19|20)\d\d)\b"), "\\1 \x02\\2\x03"),
    (
        re.compile(r"\b([A-Z]{2,}(?=\d{3})|[A-Z](?=\d{4}))(\d+)([A-Z]?)\b"),
        lambda found: f"{found[1]} {' '.join(found[2])} {found[3]}",
    ),
    (
        re.compile(rf"{BEGINS}({CITIES})((?:,|\s?[-–])?\s?)(\d{{6}}|\d{{3}} \d{{3}})(?![\d,.-]\d|\d)"),
        lambda found: f"{found[1]}{found[2]} {' '.join(found[3].replace(' ', ''))} ",
    ),
    (
        re.compile(
            nfc(
                r"(?<![\d.,₹$-])(\d{3,6})(?=\s(?:डायल|मिलाएँ|मिलाएं|पर\s(?:कॉल|फ़ोन|फोन|डायल|संपर्क|सम्पर्क|भेज|एसएमएस|SMS|मैसेज|संदेश)))"
            )
        ),
        lambda found: " ".join(found[1]),
    ),
    (re.compile(nfc(rf"{BEGINS}(शक|विक्रम)\s+संख्या(?=\s+\d)")), nfc("\\1 संवत")),
    (re.compile(nfc(rf"{BEGINS}नं(?=\s?\d)")), nfc("नंबर ")),
    *NAMED_DATES,
    (re.compile(r"(?<![\w.,])(\d{1,3})(?:st|nd|rd|th)\b"), lambda found: english_ordinal(int(found[1]))),
    (re.compile(r"\b([SsDdWwCc])/[oO]\b\.?"), lambda found: _RELATIONS[found[1].lower()]),
    (
        re.compile(nfc(r"((?:एक्सप्रेस|शताब्दी|राजधानी|मेल|दुरंतो)\s)(\d{5})(?!\d|[.,-]\d)")),
        lambda found: f"{found[1]}{' '.join(found[2])}",
    ),
)
ROMAN: tuple[RewriteRule, ...] = (
    (_ROMAN_ITEM, lambda found: f"{parse_roman(found[1].upper())}. "),
    (_ROMAN_CLAUSE, lambda found: f"{found[1] or ''} ({parse_roman((found[2] or found[3]).upper())})"),
    (_ROMAN_ORDINAL, lambda found: str(parse_roman(found[1]))),
    (_ROMAN_CENTURY, lambda found: nfc(f"{parse_roman(found[1])}वीं")),
    (_ROMAN_BEFORE, lambda found: _ordinal_of_roman(found[1])),
    (_ROMAN_HEADING, lambda found: _read_roman_heading(found)),
    (_ROMAN_AFTER_HYPHEN, lambda found: f" {parse_roman(found[1])}"),
    (_ROMAN_OTHER, lambda found: f"{found[1]} {parse_roman(found[2])}"),
    (_ROMAN_NAME, lambda found: f"{found['name']} {_ordinal_of_roman(found['roman'], oblique=bool(found['after']))}"),
)
HAS_ROMAN = re.compile("[IVXivx]")
HAS_FIGURE = re.compile(r"[^\u0900-\u0965\u0970-\u097fA-Za-z\s.,;:!?()\"'…—-]")
"""A character that the rules for figures need; looking for it is much faster than trying each rule."""
FIGURES: tuple[RewriteRule, ...] = (
    (re.compile(r"(?<![\w.,:/-])0(?=[1-9]\s[\u0904-\u0939a-z])"), ""),  # 05 मार्च
    (re.compile(r"(?<=\d)\s?[-−]\s?(?=\d+(?:\.\d+)?\s?(?:[-−+*/×÷]\s?\d+(?:\.\d+)?\s?)*=)"), _MINUS),
    (
        re.compile(r"(?<![\w.])(\d(?:\.\d+)?)[eE]([+-]?)(\d{1,3})(?!\w)"),
        lambda found: f"{found[1]} × 10{_POWER}{_MINUS if found[2] == '-' else ' '}{found[3]}",
    ),
    (re.compile(r"\^\s?[-−](?=\d)"), _POWER + _MINUS),
    (re.compile(r"(?<=\d)\s?--+\s?(?=\d)"), ", "),
    (re.compile(r"(?<![\d/.-])(\d+)[ -]([13])/([24])(?![\d/])"), lambda found: _mixed(found)),
    (re.compile(rf"(?<![\d/.])1/2(?=\s(?:{_HALVED}){ENDED})"), "½"),
    (re.compile(r"(?<![\d/])(1/2|1/4|3/4|½|¼|¾)-\1(?![\d/])"), r"\1 \1"),
    (re.compile(r"(?:(?<=[½¼¾])|(?<=\d/\d))\s?[-–]\s?(?=\d)|(?<=\d)\s?[-–]\s?(?=\d*[½¼¾])"), nfc(" से ")),
    *MONEY,
    *DATES,
    *TIMES,
    (re.compile(nfc(rf"(?<=\d)\sवी(?=\s(?:कक्षा|सदी|शताब्दी|मंज़िल|मंजिल|पास|बार|वर्षगाँठ){ENDED})")), nfc("वीं")),
    (re.compile(nfc(r"(?<=\d)(वीं|वें|वाँ|वां)\s?[-–]\s?(?=\d+(?:वीं|वें|वाँ|वां))")), nfc(r"\1 से ")),
    (re.compile(r"(?<![\d.,/:₹$-])(\d{1,3})-(\1)(?![\d.,/:-]|\w)"), r"\1 \2"),
    (
        re.compile(
            r"(?<![\d.])(?!\d\d?\.\d\d?\.\d{4}(?!\d))(?!\d\d\.\d\d\.\d\d(?!\d))(\d{1,4}(?:\.\d{1,5}){2,})(?![.,]?\d)"
        ),
        lambda found: nfc(" पॉइंट ").join(found[1].split(".")),
    ),
    (
        re.compile(r"(?<=\d)°\s?(\d{1,2})['′](?:\s?(\d{1,2}(?:\.\d+)?)[\"″])?"),
        lambda found: nfc(f" डिग्री {found[1]} मिनट" + (f" {found[2]} सेकंड" if found[2] else "")),
    ),
    (re.compile(r"(?<=\d)°\s?([NSEW])(?!\w)"), lambda found: f"° {_DIRECTIONS[found[1]]}"),
    (re.compile(nfc(r"((?:मिनट|सेकंड)\s?)([NSEW])(?!\w)")), lambda found: f"{found[1]} {_DIRECTIONS[found[2]]}"),
    (
        re.compile(rf"(?<=\d)\s?([kKMLB])(?=\+?\s(?:{_COUNTED})(?!{LETTER}))"),
        lambda found: f" {_SCALES[found[1]]}",
    ),
    (
        re.compile(rf"(?<![\w\])])({_RAISED}{{1,3}})([A-Z][a-z]?)(?![a-z])"),  # ¹⁴C
        lambda found: f"{found[2]} {''.join(RAISED[one] for one in found[1])}",
    ),
    (re.compile(r"(?<![\w.'])(\d{1,3})['′]\s?[x×X]\s?(\d{1,3})['′](?!\w)"), nfc(r"\1 फुट बाई \2 फुट")),
    (
        re.compile(r"(?<![\w.'])(\d{1,2})['′] ?(\d{1,2})(?:[\"″](?!\w)|(?![\d\w\"″'′]))"),
        lambda found: nfc(f"{found[1]} फुट {found[2]} इंच"),
    ),
    (re.compile(r"(?<![\w.,:'-])(\d{1,3}(?:\.\d{1,2})?)(?:\"|″)(?!\w)"), lambda found: _inches(found)),
    (re.compile(r"(?<=[\u0900-\u097f])\s?/\s?(?=\d)"), ", "),
    (re.compile(nfc(r"(?<=\d)\s?[★⭐*](?=\s?(?:होटल|रिज़ॉर्ट|सितारा))")), nfc(" सितारा")),
    (re.compile(r"(?<=\d)\s?[★⭐](?![★⭐☆])"), nfc(" सितारे")),
    (re.compile(nfc(r"(नाबाद\s\d{1,3})\*")), r"\1"),
    (
        re.compile(nfc(r"(?<![\w.,₹$€£])(\d{1,3})\*(?=\s?\(\d|\s(?:रन|रनों|पर){ENDED})".replace("{ENDED}", ENDED))),
        nfc(r"\1 नाबाद"),
    ),
    (re.compile(r"([★⭐]+)(☆*)"), _stars),
    (re.compile(rf"(?<=\d)(?:{_RAISED}{{2,}}|[⁰¹⁴-⁹⁻]{_RAISED}*)(?![⁺⁻])|(?<=10)[²³]"), _power),
    (re.compile(r"([¹²³⁴]?)([⁺⁻])"), lambda found: f" {RAISED.get(found[1], '')} {'+' if found[2] == '⁺' else '−'} "),
    (re.compile(f"[{''.join(LOWERED)}]+"), lambda found: f" {''.join(LOWERED[one] for one in found[0])} "),
    (re.compile(nfc(r"(?<![\d.])([24])\s?[xX×]\s?(?=\d00\s?(?:मी|m\b))")), nfc(r"\1 गुणा ")),
    (re.compile(rf"(?<=\d)\s?[xX×]\s?(?=\d+(?:\.\d+)?\s?(?:{_LENGTHS}){ENDED})"), nfc(" बाई ")),
    (re.compile(r"\b24\s?[x×]\s?7\b|\b24/7\b"), nfc("24 गुणा 7")),
    (
        re.compile(rf"(?<!\b0)(?<=\d)\s?[xX]\s?(?!10\b)(?=[₹$€£]|\d+(?:\.\d+)?(?:\s?[=+]|[\s-]?(?:{UNIT}){ENDED}))"),
        nfc(" गुणा "),
    ),
    (re.compile(r"(?<!\b0)(?<=\d)\s?[xX]\s?(?=\d)(?!10\b)"), nfc(" बाई ")),
    *UNITS,
    (re.compile(r"\b(AC/DC|TCP/IP|HIV/AIDS|SC/ST|A/C|I/O)\b"), lambda found: found[1].replace("/", " ")),
    (
        re.compile(r"(?<![\w/])([A-Za-z]{2,}|[A-Z](?=/[A-Z]\b))/([A-Za-z]{2,}|(?<=\b[A-Z]/)[A-Z])(?![\w/.])"),
        nfc(r"\1 या \2"),
    ),
    (re.compile(r"(?<![\w/])([ru])/(?=[A-Za-z]{2})"), nfc(r"\1 स्लैश ")),
    (re.compile(r"(?<=[\u0900-\u097f] )[x×]\s?(?=\d)"), nfc("गुणा ")),
    (re.compile(nfc(r"(?<=\d)[xX](?=\s(?:तेज़|तेज|ज़्यादा|ज्यादा|अधिक|बेहतर|बड़ा|ज़ूम|रिटर्न|स्पीड|मुनाफ़ा))")), nfc(" गुना")),
    (re.compile(r"(?<=\d)~(?=\d)"), nfc(" से ")),
    (
        re.compile(
            r"(?<=[A-Za-z])/(?=[\u0900-\u097f])|(?<=[\u0900-\u097f])/(?=[A-Za-z])|(?<=[\u0900-\u097f])\s?/\s?(?=[\u0900-\u097f])"
        ),
        nfc(" या "),
    ),
    (re.compile(r"(?<=[A-Za-z\d)])²"), nfc(" का वर्ग ")),
    (re.compile(r"(?<=[A-Za-z\d)])³"), nfc(" का घन ")),
    (re.compile(_RAISED), lambda found: f" {RAISED[found[0]].strip('()')} "),
    (re.compile(r"(?<![\d/])(\d+) (\d{1,2}/\d{1,2})(?![\d/])"), lambda found: nfc(f"{found[1]} सही {found[2]}")),
    (re.compile(f"[{''.join(VULGAR_IN_FIGURES)}]"), lambda found: f" {VULGAR_IN_FIGURES[found[0]]} "),
    (re.compile(r"(?<![\d.\w])\.(\d+)(?![\d.])"), lambda found: nfc(f"दशमलव {' '.join(found[1])}")),
    (re.compile(nfc(r"(?<=मैं )<3(?!\w)")), nfc("दिल")),
    (re.compile(r"(?<=\d )-(?= \d[^=]*=)"), nfc("माइनस")),
    (re.compile(r"(?:(?<=[\d)])|(?<=\b[A-Za-z]))\s+\*\s+(?=[\d(]|[A-Za-z]\b)|(?<=\d)\*(?=\d)"), nfc(" गुणा ")),
    (re.compile(r"(?<=\d)\s*[×x]\s*(?=10\b)"), " × "),
    (re.compile(r"<="), " ≤ "),
    (re.compile(r">="), " ≥ "),
    (re.compile(r"!="), " ≠ "),
    (re.compile(r"[-=]>"), " → "),
    *YEARS,
    (re.compile(rf"(?<!{_GREEK})[{re.escape(''.join(_NAMES))}](?!{_GREEK})"), lambda found: f" {_NAMES[found[0]]} "),
)


def _read_roman_heading(found: re.Match[str]) -> str:
    """``अध्याय IV`` is chapter four, ``भाग III-IV`` parts three to four; the figures are read later."""
    first = f"{found['heading']} {parse_roman(found['roman'])}"
    return nfc(f"{first} से {parse_roman(found['to'])}") if found["to"] else first


def _ordinal_of_roman(roman: str, oblique: bool = False) -> str:
    """``III`` after a name is तृतीय; from eleven on, ``XVI`` is सोलहवाँ, and सोलहवें before a postposition."""
    number = parse_roman(roman)
    return ORDINALS.get(str(number), nfc(f"{number}{'वें' if oblique else 'वाँ'}"))


def _mixed(found: re.Match[str]) -> str:
    """``1 1/2`` is 1½, which has a single word."""
    part = {("1", "2"): "½", ("1", "4"): "¼", ("3", "4"): "¾"}.get((found[2], found[3]))
    return f"{found[1]}{part}" if part else found[0]


def _read_two_phones(found: re.Match[str]) -> str:
    """``0522-2345678/79`` and ``011-23456789, 23456790``."""
    return f"{found[1]}{found[3] or ' '}{' '.join(found[2] or found[4])}"


def _inches(found: re.Match[str]) -> str:
    """``1"``, unless the mark closes a quotation."""
    closes = found[0].endswith('"') and found.string.count('"', 0, found.start()) % 2
    return found[0] if closes else nfc(f"{found[1]} इंच")


_SIGN_OF_ABBREVIATION = re.compile(r"(?<=[\u0900-\u0963])[०॰0](?![०-९\d])")


def with_full_stops(text: str) -> str:
    """The text with a full stop in place of the sign of abbreviations, for which a zero is often typed.

    >>> with_full_stops("प्रो० शर्मा, डॉ॰ राव, १०")
    'प्रो. शर्मा, डॉ. राव, १०'
    """
    return _SIGN_OF_ABBREVIATION.sub(".", text)


def find_unspoken(text: str) -> list[str]:
    """The symbols of a text that aren't spoken."""
    return [one for one in text if one in DROPPED]
