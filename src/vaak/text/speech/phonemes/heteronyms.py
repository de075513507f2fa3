"""Words that are spelled alike and pronounced differently (read, lead, record), told apart by the words around them.

A word's sense is decided by rules on the nearest words: what governs it (the first word before it that isn't an
adverb), what follows it, and for a few words what the text is about. ``heteronyms.tsv`` has the senses of each word,
each with a phrase whose last word espeak-ng pronounces so, in the accent of its voice, and with ARPAbet; where there is
no such phrase, ARPAbet is used for espeak-ng, too.

The phrases of a text carry the sense after an underscore: ``he read_past the record_noun``.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib.resources import files
from typing import NamedTuple

from vaak.text.speech.words import words

MARK = "_"
_SIBILANT = re.compile(r"(?:s|x|z|ch|sh|[sz]e|ce|ge)$")


class Heteronym(NamedTuple):
    """How one sense of a word is pronounced: the last word of ``espeak``, or ``arpabet``; then ``ending``."""

    espeak: str
    arpabet: tuple[str, ...]
    ending: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def heteronyms() -> dict[str, Heteronym]:
    """Each sense by its mark (``record_verb``), with the forms in -s of nouns and verbs that have two senses."""
    with files(__package__).joinpath("heteronyms.tsv").open(encoding="utf-8") as file:
        rows = [
            (row["word"], row["sense"], row["espeak"], row["arpabet"]) for row in csv.DictReader(file, delimiter="\t")
        ]
    found = dict[str, Heteronym]()
    for word, sense, espeak, arpabet in rows:
        phonemes = tuple(arpabet.split())
        found[f"{word}{MARK}{sense}"] = Heteronym(espeak, phonemes)
        if word not in _WITHOUT_S:
            plural = f"{word}es" if re.search("(?:s|x|sh|ch)$", word) else f"{word}s"
            found[f"{plural}{MARK}{sense}"] = Heteronym(espeak, phonemes, ending_after(phonemes[-1]))
    return found


def ending_after(last: str) -> tuple[str, ...]:
    """The ending -s, of plurals, verbs and possessives, in ARPAbet, after a phoneme of ARPAbet or phonemes of IPA.

    >>> ending_after("K"), ending_after("maɪs")
    (('S',), ('IH0', 'Z'))
    """
    if last.endswith(("S", "Z", "SH", "ZH", "CH", "JH", "s", "z", "ʃ", "ʒ")):
        return ("IH0", "Z")
    return ("S",) if last.endswith(("P", "T", "K", "F", "TH", "p", "t", "k", "f", "θ")) else ("Z",)


def unmarked(phrase: str) -> str:
    """A phrase without the senses of its words.

    >>> unmarked("he read_past it")
    'he read it'
    """
    return re.sub(rf"{MARK}\w+", "", phrase)


def find_sense(text: Sequence[str], place: int, written: str) -> str | None:
    """The sense of the word at ``place`` of a text in lower case; None for words that aren't heteronyms.

    A punctuation mark is a comma in ``text``; ``written`` is the word with its capitals.
    """
    word = text[place]
    base = _bases().get(word)
    if base is None:
        return None
    around = _Around.of(text, place, word != base)
    if rule := _RULES.get(base):
        return rule(around, written)
    return "verb" if around.is_verb else "noun"


DETERMINERS = frozenset(
    words(
        """
        a an the this that these those my your his her its our their some any no each every another either neither both
        many several few two three four five six ten much more most all what which whose one such
        """
    )
)
PREPOSITIONS = frozenset(
    words(
        """
        of in on at by for from with without into onto over under about against between through during before after
        around among toward towards upon within across behind beyond near as like than per
        """
    )
)
ADVERBS = frozenset(
    words(
        """
        not never ever always often also just then really still soon usually sometimes only even now already again once
        first please kindly quickly slowly both all better best please
        """
    )
)
NO_ADVERBS = frozenset(
    words("family only fly supply reply apply rely july italy daily assembly anomaly monopoly ally lily")
)
HELPING = frozenset(
    words(
        """
        will would shall should can could may might must do does did don't doesn't didn't won't wouldn't shan't
        shouldn't can't cannot couldn't mustn't i'll you'll he'll she'll we'll they'll it'll let's lets let i'd
        you'd we'd they'd
        """
    )
)
HAVE = frozenset(words("have has had having haven't hasn't hadn't i've you've we've they've"))
BE = frozenset(
    words("am is are was were be been being isn't aren't wasn't weren't i'm you're we're they're it's he's she's")
)
PLURAL_SUBJECTS = frozenset(words("i you we they who people children men women police mice cattle sheep"))
SINGULAR_SUBJECTS = frozenset(
    words("he she it who which that nobody everybody somebody everyone someone anyone nothing")
)
OBJECTS = DETERMINERS - {"which"} | frozenset(words("it them him me us you everything something nothing everyone how"))
LETTING = frozenset(words("let lets make made makes help helps helped see saw"))
PARTICLES = frozenset(words("up down off out apart away"))
REFLEXIVE = frozenset(words("myself yourself himself herself itself ourselves themselves it them him"))
CONJUNCTIONS = frozenset(words("and or but nor"))
NOUNS_WITH_TO = frozenset(
    words("according due thanks subject close next similar addicted opposed contrary owing prior near back relative")
)
"""After these, ``to`` is a preposition."""

_WITHOUT_S = frozenset(
    words("read wound close dove house perfect content minute polish separate appropriate résumé exposé rosé pâté lamé")
)
_SINGULAR_S = frozenset(
    words(
        """
        this his its is was has does news us as yes always perhaps thus across less glass class boss business comes goes
        gets sits stands stays keeps
        """
    )
)


class _Around(NamedTuple):
    """The words of a clause before a word (nearest first) and after it."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    text: frozenset[str]
    has_s: bool

    @classmethod
    def of(cls, text: Sequence[str], place: int, has_s: bool) -> _Around:
        before = text[:place]
        before = before[len(before) - before[::-1].index(",") :] if "," in before else before
        after = text[place + 1 :]
        after = after[: after.index(",")] if "," in after else after
        return cls(tuple(before[::-1]), tuple(after), frozenset(text), has_s)

    @property
    def next(self) -> str:
        return self.after[0] if self.after else ""

    @property
    def governors(self) -> tuple[str, ...]:
        """The words before, from the nearest on that isn't an adverb."""
        for number, word in enumerate(self.before):
            if word not in ADVERBS and (not word.endswith("ly") or word in NO_ADVERBS):
                return self.before[number:]
        return ()

    @property
    def governor(self) -> str:
        return (*self.governors, "")[0]

    @property
    def is_verb(self) -> bool:
        """Whether the word is a verb here, not a noun or an adjective."""
        governors, governor = self.governors, self.governor
        takes_object = self.next in OBJECTS
        if self.next in REFLEXIVE or governor in HELPING:
            return True
        if not governor or governor in CONJUNCTIONS:
            return takes_object or self.next in PARTICLES
        # An infinitive, unless ``to`` is a preposition: from use to use, close to use.
        if governor == "to":
            # From perfect misery to perfect happiness.
            ranges = "from" in governors and not takes_object
            return not (ranges or (len(governors) > 1 and governors[1] in NOUNS_WITH_TO))
        if governor in BE:
            return False
        # A form in -s is a verb after a singular subject (he records), or before an object (the band records it).
        if self.has_s:
            subject = governor in SINGULAR_SUBJECTS | {"this", "that"} and self.next not in HELPING
            return subject or (takes_object and not self.is_after_determiner)
        return self._follows_its_subject

    @property
    def _follows_its_subject(self) -> bool:
        """Whether a form without -s is a verb after the word that governs it: they record, critics object to."""
        governor, takes_object = self.governor, self.next in OBJECTS
        if governor in ("he", "she", "it"):
            # Only verbs that are their own past tense have no -s here: it upset him.
            return takes_object
        if governor in PLURAL_SUBJECTS:
            return True
        if governor in ("him", "them", "us", "me") and len(self.governors) > 1:
            return self.governors[1] in LETTING
        if self.is_after_determiner or not governor.endswith("s") or governor in _SINGULAR_S:
            return False
        return takes_object or not self.after or self.next in (PREPOSITIONS | {"to", "when", "if"}) - {"of"}

    @property
    def is_after_determiner(self) -> bool:
        """Whether a word that begins a noun phrase governs it: the, their, the world's, of."""
        return self.governor in DETERMINERS or self.governor in PREPOSITIONS or self.governor.endswith("'s")

    @property
    def is_past(self) -> bool:
        """Return whether the text is about the past: by an adverb of time, or by its other verbs."""
        return bool(self.text & _PAST) or any(word.endswith("ed") and len(word) > 4 for word in self.text)

    def mentions(self, listed: frozenset[str]) -> bool:
        return bool(self.text & listed)


_PAST = frozenset(
    words(
        """
        yesterday ago last earlier was were had did went came said saw took gave found felt thought knew got made told
        wrote sat stood ran began kept left heard put fell brought held met until
        """
    )
)
_PRESENT = frozenset(words("every often usually always sometimes daily each now today nowadays rarely seldom tomorrow"))
_METALS = frozenset(
    words("copper zinc tin iron silver gold steel mercury arsenic cadmium nickel brass molten red white")
)
_OF_LEAD = frozenset(
    words(
        """
        pipe pipes paint paints painted poisoning bullet bullets shot weight weights ore mine mines acid based free foil
        pencil pencils roof roofs glass crystal balloon sinker sinkers coffin coffins oxide content levels exposure
        plates
        """
    )
)
_BODY = frozenset(words("eye eyes cheek cheeks face crying wept weeping joy grief sorrow"))
_WAYS = frozenset(
    words("up down around round through along itself its back tightly slowly his her the it a into over across")
)
_LIVE_NOUNS = frozenset(
    words(
        """
        music show shows concert concerts broadcast audience audiences performance performances television tv coverage
        report reports stream streams band bands wire wires ammunition rounds bait animals birds chat album recording
        events event video entertainment theater radio
        """
    )
)
_LIVE_VERBS = frozenset(
    words(
        "broadcast performed recorded go goes going went played streamed shown air airs aired come sang watch watched"
    )
)
_FISHING = frozenset(
    words("fish fishing lake river pond caught catch striped largemouth smallmouth trout angler hook sea")
)
_MUSIC = frozenset(
    words("guitar band play plays played playing drum drums singer jazz voice clef tenor baritone music notes")
)
_TINY = frozenset(
    words(
        """
        detail details amount amounts quantity quantities particle particles difference differences trace traces
        inspection examination scrutiny fragments organisms changes
        """
    )
)
_DIVING = frozenset(words("into in off under down for deep headfirst through after straight back"))
_CLOSE_NEXT = frozenset(words("to by upon together enough friends friend relatives relative"))
_PLEASED = frozenset(words("quite so perfectly very be feel feels felt seem seems seemed more most less not")) | BE
_TAKES = frozenset(words("took take takes taking make makes made making gave"))
_SHIPS = frozenset(words("canoe ship ships boat boats vessel stern weather starboard port deck sail"))
_HERE = frozenset(words("here there alone together next nearby abroad apart happily"))


def _read(around: _Around, _: str) -> str:
    governors, governor = around.governors, around.governor
    # In a question, the auxiliary is before the subject: did you read, have they read.
    asked = governors[1] if len(governors) > 1 and governor in (PLURAL_SUBJECTS | SINGULAR_SUBJECTS) else ""
    if governor in HAVE or governor in BE or asked in HAVE or "well" in around.before[:1]:
        return "past"
    if governor == "to" or governor in HELPING or asked in HELPING or governor in DETERMINERS - {"that", "which"}:
        return "present"
    # Present tense would be "reads", so without -s it is the past.
    if governor in SINGULAR_SUBJECTS and governor != "who":
        return "past"
    if governor in ("i", "we"):
        return "present" if around.mentions(_PRESENT) else "past"
    several = governor in PLURAL_SUBJECTS or governor.endswith("s") or governor in CONJUNCTIONS
    if not governor:
        return "present"
    if several:
        return "past" if around.is_past and not around.mentions(_PRESENT) else "present"
    return "past"


def _lead(around: _Around, _: str) -> str:
    ends = not around.next or around.next in PREPOSITIONS | CONJUNCTIONS | BE
    before = around.before[:2]
    if ends and before in (("to", "turned"), ("to", "turn"), ("to", "turns")):
        return "metal"
    if around.has_s or around.is_verb:
        return "go"
    of_metal = around.governor in ("of", "with", "from", "into", "as", "contain", "contains", "contained", "containing")
    with_metals = around.before[:1] and (before[0] in _METALS or (before[0] in CONJUNCTIONS and _METALS & {*before}))
    return "metal" if around.next in _OF_LEAD or (ends and (of_metal or with_metals)) else "go"


def _tear(around: _Around, _: str) -> str:
    if (
        around.is_verb
        or (around.next in PARTICLES and not around.is_after_determiner)
        or around.before[:2] == ("and", "wear")
    ):
        return "rip"
    in_cloth = not around.has_s and around.next in ("in", "along") and not around.mentions(_BODY)
    return "rip" if in_cloth else "drop"


def _wound(around: _Around, _: str) -> str:
    governor = around.governor
    if governor in HAVE or (governor in BE and around.before[:1] == (governor,)):
        return "past"
    if around.is_after_determiner or governor in HELPING or governor == "to":
        return "noun"
    return "past" if governor and around.next in _WAYS | OBJECTS else "noun"


def _close(around: _Around, _: str) -> str:
    if around.governor in ("a", "the") and around.next in ("", "of"):
        # Drew to a close: a noun that sounds like the verb.
        return "verb"
    helped = around.governor in HELPING or around.governor == "to"
    return "verb" if around.is_verb and (helped or around.next not in _CLOSE_NEXT) else "near"


def _live(around: _Around, _: str) -> str:
    if around.has_s:
        follows = around.next in PREPOSITIONS or around.next in _HERE
        return "verb" if not around.is_after_determiner and (around.is_verb or follows) else "adjective"
    if around.next in _LIVE_NOUNS or (around.before[:1] and around.before[0] in _LIVE_VERBS):
        return "adjective"
    named = around.is_after_determiner and around.governor != "that"
    return "adjective" if named or around.governor in BE else "verb"


def _wind(around: _Around, _: str) -> str:
    goes = around.next in ("through", "around", "along", "its", "up", "down") and len(around.governors) > 1
    return "verb" if around.is_verb or (goes and not around.is_after_determiner) else "noun"


def _bow(around: _Around, _: str) -> str:
    governors = around.governors
    bent = governors[:1] in (("low",), ("deep",), ("polite",), ("stiff",), ("slight",)) or (
        governors[:1] == ("a",) and governors[1:2] and governors[1] in _TAKES
    )
    return "bend" if around.is_verb or bent or around.mentions(_SHIPS) else "knot"


def _use(around: _Around, _: str) -> str:
    """A verb, too, if what follows ``uses`` (or ``use`` at the beginning) may be its object: the team uses tools."""
    ends = not around.next or around.next in PREPOSITIONS | CONJUNCTIONS | BE | HAVE | HELPING
    if not ends and not around.is_after_determiner and around.has_s == bool(around.governor):
        return "verb"
    return "verb" if around.is_verb else "noun"


def _bass(around: _Around, _: str) -> str:
    return "fish" if around.mentions(_FISHING) and not around.mentions(_MUSIC) else "low"


def _dove(around: _Around, _: str) -> str:
    return "past" if around.next in _DIVING and around.governor and not around.is_after_determiner else "bird"


def _sow(around: _Around, _: str) -> str:
    return "pig" if around.is_after_determiner and not around.is_verb else "verb"


def _minute(around: _Around, _: str) -> str:
    return "tiny" if around.next in _TINY or around.before[:1] in (("so",), ("very",), ("too",)) else "noun"


def _polish(around: _Around, written: str) -> str:
    starts = not around.before
    return "people" if written[0].isupper() and not (starts and around.is_verb) else "verb"


def _resume(around: _Around, _: str) -> str:
    named = around.is_after_determiner or (len(around.governors) > 1 and around.governors[1] in DETERMINERS)
    return "noun" if named and not around.is_verb else "verb"


def _refuse(around: _Around, _: str) -> str:
    return "verb" if around.has_s or around.is_verb else "noun"


def _upset(around: _Around, _: str) -> str:
    # The adjective sounds like the verb.
    return "noun" if around.is_after_determiner and not around.is_verb else "verb"


def _content(around: _Around, _: str) -> str:
    pleased = around.governor in _PLEASED or around.next in ("with", "to") or around.is_verb
    return "pleased" if pleased and not around.is_after_determiner else "noun"


_RULES: dict[str, Callable[[_Around, str], str]] = {
    "read": _read,
    "lead": _lead,
    "tear": _tear,
    "wound": _wound,
    "close": _close,
    "live": _live,
    "wind": _wind,
    "bow": _bow,
    "use": _use,
    "bass": _bass,
    "dove": _dove,
    "sow": _sow,
    "minute": _minute,
    "polish": _polish,
    "resume": _resume,
    "content": _content,
    "upset": _upset,
    "refuse": _refuse,
}


@lru_cache(maxsize=1)
def _bases() -> dict[str, str]:
    """The word of each form that is in the table."""
    marked = [mark.partition(MARK)[0] for mark in heteronyms()]
    plain = {word for word in marked if f"{word}s" in marked or f"{word}es" in marked or word in _WITHOUT_S}
    return {word: next(one for one in (word, word[:-1], word[:-2]) if one in plain) for word in marked}
