"""Roman numerals in words: after headings, names of sovereigns and popes, and before words such as "century"."""

from __future__ import annotations

import re

from vaak.text.speech.abbreviations import sentence_ends
from vaak.text.speech.guesses import report_guess
from vaak.text.speech.words import cardinal, ordinal

HEADINGS = (
    *("Chapter", "Part", "Section", "Volume", "Book", "Act", "Scene", "Article", "Title", "Appendix", "Table"),
    *("Figure", "Type", "Class", "Phase", "Stage", "Grade", "Level", "War", "Mark", "Exhibit", "Unit", "Division"),
    *(
        "Group",
        "Schedule",
        "Canto",
        "Psalm",
        "Sonnet",
        "Page",
        "Plate",
        "Number",
        "Bowl",
        "Apollo",
        "Rocky",
        "Amendment",
    ),
    *("Symphony", "Sonata", "Opus", "Vatican", "Episode", "Series", "Verse", "Form", "Rule", "Zone", "Corps", "Game"),
    *(
        "Annex",
        "Annexure",
        "Sector",
        "Tier",
        "Category",
        "Generation",
        "Semester",
        "Saturn",
        "Titan",
        "Agni",
        "Prithvi",
    ),
    *("Fantasy", "Wars", "Kombat", "Fighter", "Quest", "Souls", "Auto", "Civilization", "Warcraft", "Empires", "Trek"),
    *("Count", "Proposition", "Question", "Item", "Division", "Lecture", "Lesson", "Module", "Step", "Paper", "Note"),
    *("Diablo", "Godfather", "Terminator", "Rambo", "Halloween"),
)
SOVEREIGNS = (
    *("Charles", "George", "William", "James", "Henry", "Edward", "Richard", "Louis", "Elizabeth", "Philip", "Mary"),
    *("Napoleon", "Pius", "John", "Paul", "Benedict", "Leo", "Gregory", "Innocent", "Urban", "Clement", "Nicholas"),
    *("Alexander", "Frederick", "Wilhelm", "Catherine", "Ferdinand", "Ramses", "Ptolemy", "Darius", "Xerxes", "Peter"),
    *("Francis", "Leopold", "Albert", "Victor", "Umberto", "Christian", "Gustav", "Haakon", "Olaf", "Otto", "Rudolf"),
    *("Boniface", "Adrian", "Mehmed", "Murad", "Ramesses", "Thutmose", "Amenhotep", "Sixtus", "Julius", "Casimir"),
    *("Sigismund", "Ivan", "Selim", "Baldwin", "Celestine", "Honorius", "Eugene", "Callixtus", "Rama", "Constantine"),
    *("Maximilian", "Isabella", "Alfonso", "Carlos", "Juan", "Felipe", "Stephen", "Margaret", "Robert", "David"),
)
"""Names after which I, V and X are numbers too; after any other name only longer numerals are."""
_ROMAN = r"(?:M{0,3}(?:CM|CD|D?C{0,3})(?:XC|XL|L?X{0,3})(?:IX|IV|V?I{0,3})(?<=[IVXLCDM]))"
_SMALL = r"(?:X{0,3}(?:IX|IV|V?I{0,3})(?<=[IVX]))"
_AFTER_FIRST = (
    r"\.|(?=$|[,;:!?)\"'’—]|\s+(?:of|and|was|in|who|had|has|is|to|on|by|at|for|made|became|himself|herself)\b)"
)
_HEADING = re.compile(rf"(?<!question )\b((?i:{'|'.join(HEADINGS)})s?) (?=[IVXLCDM])({_ROMAN})\b(?!['’-]\w)")
_SMALL_HEADING = re.compile(
    rf"\b((?i:{'|'.join(HEADINGS)})s?) (?=[ivx]{{2,}}\b)(x{{0,3}}(?:ix|iv|v?i{{0,3}})(?<=[ivx]))\b(?!['’-]\w)"
)
_HEADINGS_LIST = re.compile(
    rf"\b((?i:{'|'.join(HEADINGS)})s?) (?=[IVXLCDM])({_ROMAN}(?:(?:\s?[-–/]\s?|, | to |,? and | or )(?=[IVX]{{2}}|[VX])"
    rf"{_SMALL}\b)+)(?!['’-]\w)"
)
"""Several numerals after a heading: Phase I-IV, Parts I, II and III."""
_SEVERAL = re.compile(r"[IVXLC](?:\s?[-–/]\s?|, | to |,? and | or )[IVX]")
"""Much faster to look for than a heading before it."""
_DASH = re.compile(r"\s?([-–/])\s?")
_FIRST_OF_KIND = re.compile(
    r"(\b(?:type|phase|class|stage|grade) )I(?=(?:[,)/]|"
    r" (?:membrane|errors?|diabetes|(?:clinical )?trials?|study|studies|"
    r"proteins?|receptors?|interferons?|collagen|disease|tumou?rs?|cancers?|reactions?|restriction)\b))"
    r"|(\b[Aa]ngiotensin )I\b(?!['’])"
)
"""In small letters I is a pronoun, unless a noun follows: a type I membrane protein, but the type I like."""
_SOVEREIGN = re.compile(rf"\b({'|'.join(SOVEREIGNS)}) (?:(?=[VX]|I[IVX])({_SMALL})\b('s)?\.?|I\b(?:'s|{_AFTER_FIRST}))")
_REIGNED = (
    "never|rul(?:es|ed)|reign(?:s|ed)|wed|died|married|built|fought|signed|succeeded|ordered|founded|conquered|defeated|"
    "invaded|abdicated|fled|granted|issued|visited|wrote|led|lost|won"
)
_I_SAY = (
    "am|think|know|have|met|saw|will|would|do|did|can|could|should|love|like|mean|believe|read|learned|mentioned|told"
)
_FIRST = re.compile(
    rf"(\b(?:King|Queen|Pope|Emperor|Empress|Tsar|Czar|Kaiser|Sultan|Shah|Maharaja) [A-Z][a-z]+) I"
    rf"(?=$|\W)(?! (?:{_I_SAY})\b)"
    rf"|\b({'|'.join(SOVEREIGNS)}) I(?= (?:{_REIGNED})\b)"
)
"""The first of a name where a title is before it, or what only a sovereign does follows."""
_NUMBERED_EVENT = re.compile(
    rf"\b(?=[IVXLC]{{2}}|[VX]\s)({_ROMAN})(?:th)?(?= (?:Olympiad|Olympics|Games|Congress|Corps|Dynasty|Army|Legion|"
    r"Summit|Conference|Session|Schedule|Plan)\b)"
)
_FOUR_LETTERS = re.compile(rf"(?<![\w'’-])(?=[IVXLCDM]{{4}})({_ROMAN})(?![\w'’-])")
"""That many letters can hardly be anything else."""
_LAST_OF_HEADING = re.compile(rf"(?<=[A-Z]{{2}} )(?=[IVX]{{2}})({_SMALL})(?=\.?$)")
"""The number of a chapter after its name, all in capitals."""
_AFTER_NOUN = re.compile(rf"(?<=[a-z]{{3}} )(?!IV|XX)(?=[IVX]{{2}})({_SMALL})\b(?![\w'’-])")
_NOUN_BEFORE = re.compile(r"(?<![\w'’-])(?!(?:the|and|for|via|per|with|from|that|when) )[a-z]{3,} $")
"""``count II``; IV after a small letter is more often a drip, and XX a size."""
_NAME = re.compile(rf"\b([A-Z][a-z]+) (?=[IVX]{{2}})({_SMALL})\b('s)?\.?(?!\w)")
MOST_OF_UNKNOWN = 5
"""The highest number of a sovereign that isn't in the list; Orange Pips VI is a chapter."""
_TITLE_BEFORE = re.compile(
    r"(?:(?:The|A|An) )(?:(?:[A-Z][\w'’-]*|of|in|the|and|a|an|for|to|with|on|at|by),? )+[A-Z][\w'’-]*"
)
"""A heading: all of its words in capitals but the short ones."""
_PLACE_BEFORE = re.compile(r"\b[Ii]n $")
"""A place follows, which has no number of its own: A Scandal in Bohemia II."""
_ELEVEN = re.compile(r"(?<='s )XI\b(?!['’-]\w)")
"""A team's eleven players."""
_ROMAN_LETTERS = re.compile(r"[IVXLCDM]{2}|[ivx]{2}|WW|\b[IVXLCDM]\b")
"""Letters that every numeral has: a search for them is much faster than one for numerals."""
_WORLD_WAR = re.compile(r"\bWW ?(?:(II|2)|(?:I|1))(?!\w)")
_CENTURY = re.compile(rf"\b(?=[IVX])({_SMALL})(?:th)?(?=[ -]century\b)")
_ITEM = re.compile(r"^\(?(?=[ivx]{2})((?:x{0,3})(?:ix|iv|v?i{0,3}))[.)](?=\s)")
"""The number of an item in a list."""
_VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}


def roman_numerals(text: str) -> str:
    """Numerals in words; a question mark in an address is not a heading.

    >>> roman_numerals("Charles I. and George IV met in Chapter XII of World War II, in the XIX century.")
    'Charles the first and George the fourth met in Chapter twelve of World War two, in the nineteenth century.'
    """
    if not _ROMAN_LETTERS.search(text):
        return text
    text = _WORLD_WAR.sub(lambda match: f"World War {'two' if match[1] else 'one'}", text)
    text = _CENTURY.sub(lambda match: ordinal(parse_roman(match[1])), text)
    text = _ELEVEN.sub("eleven", text)
    text = _ITEM.sub(lambda match: f"{cardinal(parse_roman(match[1].upper()))}.", text)
    text = _SMALL_HEADING.sub(lambda match: f"{match[1]} {cardinal(parse_roman(match[2].upper()))}", text)
    if _SEVERAL.search(text):
        text = _HEADINGS_LIST.sub(_read_headings_list, text)
    text = _HEADING.sub(_read_heading, text)
    text = _FIRST_OF_KIND.sub(lambda match: f"{match[1] or match[2]}one", text)
    text = _FIRST.sub(lambda match: f"{match[1] or match[2]} the first", text)
    text = _NUMBERED_EVENT.sub(lambda match: ordinal(parse_roman(match[1])), text)
    if text.isupper():
        text = _LAST_OF_HEADING.sub(lambda match: cardinal(parse_roman(match[1])), text)
    text = _AFTER_NOUN.sub(_read_after_noun, text)
    text = _SOVEREIGN.sub(_sovereign, text)
    text = _NAME.sub(_read_name, text)
    return _FOUR_LETTERS.sub(lambda match: cardinal(parse_roman(match[1])), text)


def parse_roman(roman: str) -> int:
    """
    >>> parse_roman("XIV"), parse_roman("MCMXC")
    (14, 1990)
    """
    values = [_VALUES[one] for one in roman]
    following = [*values[1:], 0]
    return sum(-one if one < after else one for one, after in zip(values, following, strict=True))


def _read_heading(match: re.Match[str]) -> str:
    """A numeral after a heading; in "in that part I agree", I is not one."""
    if match[2] == "I" and not match[1][0].isupper():
        return match[0]
    return f"{match[1]} {cardinal(parse_roman(match[2]))}"


def _read_headings_list(match: re.Match[str]) -> str:
    said = _DASH.sub(lambda sign: " slash " if sign[1] == "/" else " to ", match[2])
    return f"{match[1]} " + re.sub("[IVXLCDM]+", lambda numeral: cardinal(parse_roman(numeral[0])), said)


def _read_after_noun(match: re.Match[str]) -> str:
    is_noun = _NOUN_BEFORE.search(match.string[max(0, match.start() - 24) : match.start()])
    return cardinal(parse_roman(match[1])) if is_noun else match[0]


def _read_name(match: re.Match[str]) -> str:
    """A numeral after a name that no list has: of a sovereign, unless it is high, or ends a heading."""
    number, rest = parse_roman(match[2]), match.string[match.end() :].strip(" .\"')")
    if (
        number > MOST_OF_UNKNOWN
        or _PLACE_BEFORE.search(match.string[max(0, match.start() - 4) : match.start()])
        or (not rest and _TITLE_BEFORE.fullmatch(match.string[: match.end(1)]))
    ):
        return match[0].replace(match[2], cardinal(number))
    report_guess("Ashoka II as the second")
    return _sovereign(match)


def _sovereign(match: re.Match[str]) -> str:
    """A sovereign's number; the full stop that old prints put after it is left out, unless it ends a sentence."""
    rest = match.string[match.end() :]
    # An initial before a surname, David I. Lehn, unless that begins a sentence.
    if (
        not match[2]
        and match[0].endswith(".")
        and re.match(r"\s[A-Z][a-z]", rest)
        and not sentence_ends(match.string, match.end())
    ):
        return match[0]
    number = ordinal(parse_roman(match[2])) if match[2] else "first"
    owns = "'s" if "'s" in match[0] else ""
    stop = "." if match[0].endswith(".") and sentence_ends(match.string, match.end()) else ""
    return f"{match[1]} the {number}{owns}{stop}"
