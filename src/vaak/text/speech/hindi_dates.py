"""Hindi's dates, years and times of day, as figures and with names of months, before other figures are read.

Years stand between U+0002 and U+0003, for ``vaak.text.speech.hindi`` to read.
"""

from __future__ import annotations

import re

from vaak.text.speech.hindi_short_words import BEGINS, ENDED, match_any, nfc, read_table
from vaak.text.speech.words import RewriteRule

MONTH_NAMES = read_table(
    """
    जनवरी=जनवरी जन=जनवरी फ़रवरी=फ़रवरी फरवरी=फ़रवरी फर=फ़रवरी फ़र=फ़रवरी मार्च=मार्च अप्रैल=अप्रैल अप्रै=अप्रैल
    मई=मई जून=जून जुलाई=जुलाई जुल=जुलाई
    अगस्त=अगस्त अग=अगस्त सितंबर=सितंबर सितम्बर=सितंबर सित=सितंबर अक्टूबर=अक्टूबर अक्तूबर=अक्टूबर अक्टू=अक्टूबर अक्तू=अक्टूबर
    नवंबर=नवंबर नवम्बर=नवंबर नव=नवंबर दिसंबर=दिसंबर दिसम्बर=दिसंबर दिस=दिसंबर
    """
)
DAY_NAMES = read_table(
    """
    सोम=सोमवार मंगल=मंगलवार बुध=बुधवार गुरु=गुरुवार बृह=बृहस्पतिवार शुक्र=शुक्रवार शनि=शनिवार रवि=रविवार
    सोमवार=सोमवार मंगलवार=मंगलवार
    बुधवार=बुधवार गुरुवार=गुरुवार शुक्रवार=शुक्रवार शनिवार=शनिवार रविवार=रविवार
    """
)
_LATIN_MONTHS = read_table(
    """
    Jan=जनवरी Feb=फ़रवरी Mar=मार्च Apr=अप्रैल May=मई Jun=जून Jul=जुलाई Aug=अगस्त Sep=सितंबर Oct=अक्टूबर Nov=नवंबर Dec=दिसंबर
    """
)
_TO = nfc(" से ")
_LATIN_DAYS = read_table("Mon=सोमवार Tue=मंगलवार Wed=बुधवार Thu=गुरुवार Fri=शुक्रवार Sat=शनिवार Sun=रविवार")
_LATIN_DAY = rf"({'|'.join(_LATIN_DAYS)})(?:day|sday|nesday|rsday|urday)?"
_MONTH_NAMES = tuple(dict.fromkeys(MONTH_NAMES.values()))
_MONTH = match_any(_MONTH_NAMES)
_SHORT_MONTH = nfc("जन|फर|फ़र|अप्रै|जुल|अग|सित|अक्टू|अक्तू|नव|दिस")
_LATIN_MONTH = rf"({'|'.join(_LATIN_MONTHS)})(?:uary|ruary|ch|il|e|y|ust|t|tember|ober|ember)?\.?"
_POSTPOSITION = nfc("में|तक|से|के|की|का|को|ईस्वी|ई॰|ई\\.|ईसवी")
_LAWS = nfc("अधिनियम|संहिता|एक्ट|कानून|क़ानून|नियम|नियमावली|संविधान|आदेश|विधेयक|अध्यादेश|AIR|SCC|SCR|ILR")
_AFTER_YEAR = nfc(
    "बैच|संस्करण|अधिनियम|एक्ट|ओलंपिक|ओलम्पिक|विश्व ?कप|वर्ल्ड ?कप|चुनाव|दंगे|दंगों|युद्ध|जनगणना|आंदोलन|क्रांति|विद्रोह|एशियाड|CE|AD"
)
_PART_OF_DAY = nfc("सुबह|शाम|रात|दोपहर|सवेरे|तड़के|भोर|समय|पूर्वाह्न|अपराह्न")
_SCRIPTURES = nfc(
    "गीता|मानस|बाइबिल|बाइबल|मत्ती|यूहन्ना|लूका|मरकुस|रोमियों|भजन|संहिता|उत्पत्ति|निर्गमन|नीतिवचन|यशायाह|कुरान|क़ुरान|क़ुरआन|सूरा|ऋग्वेद|अथर्ववेद"
)
_DATED = nfc("दि\\.|दिनांक|दिनाँक|ता\\.|तारीख़|तारीख|तिथि|जन्मतिथि|date|Date|DOB|dt\\.|Dt\\.")
_RANGE_OF_NAMES = re.compile(
    rf"{BEGINS}({match_any(DAY_NAMES)})\.?\s?[-–]\s?({match_any(DAY_NAMES)})(?:\.(?!\s*$))?{ENDED}"
    rf"|{BEGINS}({match_any(MONTH_NAMES)})\.?\s?[-–]\s?({match_any(MONTH_NAMES)})(?:\.(?!\s*$))?{ENDED}"
)
_FOREIGN_MONTH = re.compile(
    rf"(?<![\d.,])(\d{{1,2}})(?:st|nd|rd|th)?[ /-]({'|'.join(_LATIN_MONTHS)})(?:[a-z]{{1,6}})?\b\.?"
    rf"(?:,?[ /-]([12]\d{{3}})(?!\d))?"
)
NAMED_DATES: tuple[RewriteRule, ...] = (
    (
        re.compile(rf"\b{_LATIN_DAY}\s?[-–]\s?{_LATIN_DAY}\b"),
        lambda found: f"{_LATIN_DAYS[found[1]]}{_TO}{_LATIN_DAYS[found[2]]}",
    ),
    (re.compile(nfc(rf"(?<=\d)(?:st|nd|rd|th)(?=\s(?:{_MONTH}))")), ""),
    (re.compile(rf"({_MONTH}),(?=\d{{4}})"), r"\1, "),
    (re.compile(rf"(?<=\d )({_SHORT_MONTH})(?=\s[12]\d{{3}}(?!\d))"), lambda found: MONTH_NAMES[found[1]]),
    (
        re.compile(
            rf"\b{_LATIN_MONTH}\s(\d{{1,2}})(?:st|nd|rd|th)?(?:,?\s([12]\d{{3}})(?![\d,.]\d|\d)|(?=\s[\u0900-\u097f]|$))"
        ),
        lambda found: f"{_LATIN_MONTHS[found[1]]} {found[2]}" + (f", \x02{found[3]}\x03" if found[3] else ""),
    ),
    (_RANGE_OF_NAMES, lambda found: _range_of_names(found)),
    (_FOREIGN_MONTH, lambda found: _foreign_month(found)),
    (
        re.compile(rf"\b({'|'.join(_LATIN_MONTHS)})(?:[a-z]{{1,6}})?\.?\s([12]\d{{3}})(?![\d,.]\d|\d)"),
        lambda found: f"{_LATIN_MONTHS[found[1]]} \x02{found[2]}\x03",
    ),
    (
        re.compile(nfc(rf"(?<![\d-])(\d{{1,2}})-({match_any(MONTH_NAMES)})-(\d{{4}})(?![\d-])")),
        lambda found: f"{int(found[1])} {MONTH_NAMES[found[2]]} \x02{found[3]}\x03",
    ),
    (
        re.compile(nfc(rf"{BEGINS}({match_any(MONTH_NAMES.values())})\s(\d{{1,2}}),\s([12]\d{{3}})(?![\d,.]\d|\d)")),
        "\\1 \\2, \x02\\3\x03",
    ),
    (re.compile(rf"({_MONTH})\s{{0,2}}[-–]\s?(?=\d{{1,2}}\s(?:{match_any(MONTH_NAMES)}))"), rf"\1{_TO}"),
)
"""Rules for dates with the name of a month or a day."""
DATES: tuple[RewriteRule, ...] = (
    (
        re.compile(r"(?<![\d/])([12]\d{3})/(\d{1,2})/(\d{1,2})(?![\d/])"),
        lambda found: f"{found[3]}/{found[2]}/{found[1]}" if int(found[2]) <= 12 else found[0],
    ),
    (
        re.compile(rf"((?:{_DATED})\s?:?-?\s?)(\d{{1,2}})([./-])(\d{{1,2}})\3(\d\d)(?![\d./-]\d|\d)"),
        lambda found: found[1] + _date_in_century(found[2], found[4], found[5], found[0][len(found[1]) :]),
    ),
    (
        re.compile(r"(?<![\w./-])(\d\d)-(0[1-9]|1[0-2])-(\d\d)(?![\d./-]\d|[\w-])"),
        lambda found: _date_in_century(found[1], found[2], found[3], found[0]),
    ),
    (re.compile(r"(?<![\d.])(\d\d)\.(\d\d)\.(\d\d)(?![\d.]\d|\d)"), lambda found: _short_date(found)),
    (re.compile(r"(?<![\d/,.-])((?:1[89]|20)\d\d)/(\d\d)(?![\d/])"), lambda found: _fiscal(found)),
    (  # a month and a year, but not the number of a case
        re.compile(nfc(r"(?<!संख्या )(?<!नंबर )(?<!क्रमांक )(?<![\w./-])(0[1-9])[/-]((?:19|20)\d\d)(?![\d/-])")),
        lambda found: f"{_MONTH_NAMES[int(found[1]) - 1]} \x02{found[2]}\x03",
    ),
    (re.compile(r"(?<![\d/.])(26|9)/11(?![\d/])"), r"\1 11"),  # attacks
    (re.compile(r"(?<![\d.,/-])((?:1[89]|20)\d0)s\b"), nfc("\x02\\1\x03 के दशक")),
    (re.compile(r"(?<![\d.,/-])'?([2-9]0)s\b"), nfc(r"\1 के दशक")),
)
"""Rules for dates in figures; they come before those for versions, which have the same form."""
TIMES: tuple[RewriteRule, ...] = (
    (re.compile(r"(?<=\d)(\s?)([ap])\.\s?m\.(?!\w)"), r"\1\2m"),
    (re.compile(r"(?<![\d:.,])(1?\d|2[0-4])\.([0-5]\d)(?=\s?[AaPp][Mm]\b)"), r"\1:\2"),
    (
        re.compile(
            rf"{BEGINS}((?:{_PART_OF_DAY})(?:\s(?:{nfc('के|को|में|करीब')}))?)\s(1?\d|2[0-4])\.([0-5]\d)(?![\d.])"
            rf"(?=\s(?:{nfc('पर|से|तक|को|की|का|के|बजे|और|या|व')}){ENDED}|\s?[,।.;)-]|$)"
        ),
        r"\1 \2:\3",
    ),
    (
        re.compile(
            nfc(r"(?<![\d:.,₹$€£])(1?\d|2[0-4])\.([0-5]\d)(\sसे\s|\s?[-–]\s?)(1?\d|2[0-4])[.:]([0-5]\d)(?=\s?बजे)")
        ),
        lambda found: f"{found[1]}:{found[2]}{found[3]}{found[4]}:{found[5]}",
    ),
    (re.compile(r"(?<=[AaPp][Mm])\s?[-–]\s?(?=\d)"), _TO),
    (
        re.compile(nfc(rf"(?<![\d:.,])(1?\d|2[0-4])\.([0-5]\d)(?=\s*बजे{ENDED})")),
        r"\1:\2",
    ),
    (
        re.compile(
            nfc(
                rf"({BEGINS}(?:{_PART_OF_DAY})(?:\s(?:के|को|में|करीब))?\s)?(?<![\d:])(\d{{1,2}}):([0-5]\d):([0-5]\d)(?![\d:])"
                rf"(?(1)(?:\s?बजे{ENDED})?|\s?बजे{ENDED})"
            )
        ),
        lambda found: nfc(f"{found[1] or ''}{int(found[2])} बजकर {int(found[3])} मिनट {int(found[4])} सेकंड"),
    ),
    (
        re.compile(r"(?<![\d:])(\d{1,2}):([0-5]\d):([0-5]\d)(\.\d+)?(?![\d:])"),
        lambda found: nfc(f"{_count_hours(found[1])} {int(found[2])} मिनट {int(found[3])}{found[4] or ''} सेकंड"),
    ),
    (
        re.compile(r"(?<![\d:])(\d{1,2}):([0-5]\d)\.(\d{1,3})(?![\d:])"),
        lambda found: nfc(f"{int(found[1])} मिनट {int(found[2])}.{found[3]} सेकंड"),
    ),
    (
        re.compile(nfc(rf"(?<![\d:])(\d{{1,2}}):([0-5]\d)\s(?:घंटे|घंटा|घं\.){ENDED}")),
        lambda found: nfc(f"{_count_hours(found[1])} {int(found[2])} मिनट"),
    ),
    (
        re.compile(nfc(rf"(?<![\d:])(\d{{1,2}}):([0-5]\d)\s(?:मिनट|मि\.){ENDED}")),
        lambda found: nfc(f"{int(found[1])} मिनट {int(found[2])} सेकंड"),
    ),
    (
        re.compile(r"\b(GMT|UTC)\s?([+−-])\s?(\d{1,2}):(\d\d)(?!\d)"),
        lambda found: nfc(
            f"{found[1]} {'प्लस' if found[2] == '+' else 'माइनस'} {_count_hours(found[3])}"
            + (f" {int(found[4])} मिनट" if int(found[4]) else "")
        ),
    ),
    (re.compile(rf"{BEGINS}({_SCRIPTURES})\s(\d{{1,3}}):(\d{{1,3}})(?!\d)"), r"\1 \2 \3"),
    (re.compile(r"(?<![\d:.])(\d{1,3}):(\d{1,3}(?:,\d{2,3})+)(?![\d:])"), nfc(r"\1 अनुपात \2")),
    (re.compile(r"(?<=:\d\d)\s?[-–]\s?(?=\d{1,2}(?![\d-]))"), _TO),
    (re.compile(r"(?<![\d.:,-])(\d{1,2})\s?[-–]\s?(?=\d{1,2}:\d\d)"), rf"\1{_TO}"),
    (re.compile(r"(?<![\d:.])(\d{1,3}):(\d{1,3})(?=\s*(?:का अनुपात|के अनुपात|अनुपात)|$)(?<!:\d\d)"), r"\1 \2"),
    (
        re.compile(r"(?<![\w.,])(\d{1,3}) ?(?:hrs?|h) ?(\d{1,2}) ?m(?:ins?)?\b(?! ?\d)"),
        lambda found: nfc(f"{_count_hours(found[1])} {found[2]} मिनट"),
    ),
)
YEARS: tuple[RewriteRule, ...] = (
    (re.compile(r"(?<![\d/.-])(\d{1,2})/(\d{1,2})/(\d\d)(?![\d/])"), lambda found: _short_date(found)),
    (
        re.compile(
            nfc(
                r"(?<![\d.,/:₹$-])(1[5-9]\d\d)(?=(?:,\s(?:1[5-9]|20)\d\d)*\s(?:और|या|व|तथा|एवं)\s(?:1[5-9]|20)\d\d\s(?:में|से|तक|के|की|का|को))"
            )
        ),
        "\x02\\1\x03",
    ),
    (
        re.compile(r"(?<![\d.,/-])(1[1-9]\d\d|20\d\d)\s?[-–]\s?(1[1-9]\d\d|20\d\d|\d\d)(?!\d|[,/-]\d|\.\d)"),
        lambda found: f"\x02{found[1]}\x03 {nfc('से')} " + (f"\x02{found[2]}\x03" if len(found[2]) == 4 else found[2]),
    ),
    (
        re.compile(rf"(?<![\d.,:/₹$€£-])(1[5-9]\d\d)(?=\s+(?:{_POSTPOSITION}){ENDED})"),
        "\x02\\1\x03",
    ),
    (
        re.compile(nfc(r"(?<=जन्म )(1[5-9]\d\d|20\d\d)(?!\d)|(?<=मृत्यु )(1[5-9]\d\d|20\d\d)(?!\d)")),
        "\x02\\g<0>\x03",
    ),
    (re.compile(rf"(?<![\d.,:/₹$€£-])(1[6-9]\d\d)(?=\s(?:{_AFTER_YEAR}){ENDED})"), "\x02\\1\x03"),
    (re.compile(rf"({BEGINS}(?:{_LAWS}),?\s)(1[6-9]\d\d|20\d\d)(?![\d.,/-]\d|\d)"), "\\1\x02\\2\x03"),
    (re.compile(r"(?<=\()(1[5-9]\d\d)(?=\))"), "\x02\\1\x03"),
)
"""Rules for years; they come after those for units, whose ranges look the same."""


def _count_hours(figures: str) -> str:
    return nfc(f"{int(figures)} {'घंटा' if int(figures) == 1 else 'घंटे'}")


def _date_in_century(day: str, month: str, year: str, written: str) -> str:
    """``15-08-47`` is of 1947, ``5.3.24`` of 2024."""
    if not (1 <= int(day) <= 31 and 1 <= int(month) <= 12):
        return written
    return f"{int(day)}/{int(month)}/{'19' if int(year) > 40 else '20'}{year}"


def _range_of_names(found: re.Match[str]) -> str:
    known = DAY_NAMES | MONTH_NAMES
    return nfc(" से ").join(known[one] for one in found.groups() if one)


def _foreign_month(found: re.Match[str]) -> str:
    """``14 Feb 2020``: English names of months in a date."""
    said = f"{int(found[1])} {_LATIN_MONTHS[found[2]]}"
    return f"{said} \x02{found[3]}\x03" if found[3] else said


def _fiscal(found: re.Match[str]) -> str:
    """``2023/24`` is two years, if the second is the year after the first."""
    consecutive = (int(found[1]) + 1) % 100 == int(found[2])
    return f"\x02{found[1]}\x03 {found[2]}" if consecutive else found[0]


def _short_date(found: re.Match[str]) -> str:
    day, month = int(found[1]), int(found[2])
    return f"{day}/{month}/20{found[3]}" if 1 <= day <= 31 and 1 <= month <= 12 else found[0]
