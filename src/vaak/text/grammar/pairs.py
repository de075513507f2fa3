"""Minimal pairs: a sentence and the same one with one wrong word, by phenomenon.

Pairs come in twins that share all but what the target word depends on, so that each one's wrong word is the other's
right one:

    लड़की मेज़ पर सोती है ।    *लड़की मेज़ पर सोता है ।
    लड़का मेज़ पर सोता है ।    *लड़का मेज़ पर सोती है ।

Whoever sees only the words next to the target says the same of both twins, and is right once: where two words or more
stand between (``long_distance``), a trigram has exactly 50 %. Source: Warstadt et al., BLiMP (2020), for the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from vaak.core.random_keys import Purpose, draw_key
from vaak.text.grammar import contrasts
from vaak.text.grammar.composer import Composer, NoChoiceError, meets_held_out
from vaak.text.grammar.contrasts import Marked
from vaak.text.grammar.corpus import is_sound
from vaak.text.grammar.morphology import Words


class Phenomenon(NamedTuple):
    """A rule of Hindi grammar that pairs test; ``contrast`` draws the two good sentences of twins."""

    name: str
    description: str
    term: str
    long_distance: bool
    contrast: Callable[[Composer], tuple[Marked, Marked]]


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences of equal length that differ in one word; the second is ungrammatical."""

    sentence_good: str
    sentence_bad: str
    phenomenon: str
    pair_id: str
    long_distance: bool

    def as_json(self) -> dict[str, str]:
        """The pair under BLiMP's keys."""
        return {
            "sentence_good": self.sentence_good,
            "sentence_bad": self.sentence_bad,
            "UID": self.phenomenon,
            "pairID": self.pair_id,
            "field": "morphology" if _BY_NAME[self.phenomenon].term.endswith("case") else "syntax",
            "linguistics_term": _BY_NAME[self.phenomenon].term,
        }


def minimal_pairs(count_per_phenomenon: int, seed: int) -> Iterator[MinimalPair]:
    """This number of different pairs of each phenomenon, twins in sequence; a pure function of its arguments."""
    for phenomenon in PHENOMENA:
        composer = Composer(draw_key(Purpose.GRAMMAR_PAIRS, phenomenon.name, seed))
        seen: set[Words] = set()
        while len(seen) < count_per_phenomenon:
            try:
                first, second = phenomenon.contrast(composer)
            except NoChoiceError:
                # The words drawn don't do.
                continue
            goods = (first.words, second.words)
            # Sentences of the corpus never contain a held-out combination, those of pairs always do: no pair was seen
            # in training.
            if first.target == second.target or not all(is_sound(words) and meets_held_out(words) for words in goods):
                continue
            if any(good in seen for good in goods):
                continue
            # Each target is right in one sentence and wrong in the other, so a preference for a word alone scores half.
            # They exchange their targets.
            bads = (first.with_target(second.target), second.with_target(first.target))
            for good, bad in list(zip(goods, bads, strict=True))[: count_per_phenomenon - len(seen)]:
                yield MinimalPair(
                    " ".join(good), " ".join(bad), phenomenon.name, str(len(seen)), phenomenon.long_distance
                )
                seen.add(good)


PHENOMENA = (
    Phenomenon(
        "gender_agreement", "The verb has its subject's gender.", "subject-verb agreement", True, contrasts.gender
    ),
    Phenomenon(
        "number_agreement", "The verb has its subject's number.", "subject-verb agreement", True, contrasts.number
    ),
    Phenomenon(
        "person_agreement", "The verb has its subject's person.", "subject-verb agreement", True, contrasts.person
    ),
    Phenomenon(
        "progressive_auxiliary",
        "रहा, रही, रहे in the progressive have the subject's gender.",
        "auxiliary agreement",
        True,
        contrasts.progressive,
    ),
    Phenomenon(
        "honorific_agreement",
        "With someone addressed as जी the verb is plural.",
        "honorific agreement",
        True,
        contrasts.honorific,
    ),
    Phenomenon(
        "predicate_adjective",
        "A predicate adjective has its subject's gender.",
        "adjective agreement",
        True,
        contrasts.predicate_adjective,
    ),
    Phenomenon(
        "ergative_object_agreement",
        "When the subject has ने, the verb has the object's gender.",
        "object agreement",
        True,
        contrasts.ergative_object,
    ),
    Phenomenon(
        "blocked_agreement",
        "को on the object blocks agreement: the verb is masculine singular.",
        "object agreement",
        True,
        contrasts.blocked,
    ),
    Phenomenon(
        "split_ergativity",
        "A transitive subject takes ने in perfective tenses and in no others.",
        "ergative case",
        True,
        contrasts.split_ergativity,
    ),
    Phenomenon(
        "relative_correlative",
        "The correlative pronoun (उसने, उन्होंने) has the number of the noun after जिस, जिन.",
        "relative clause",
        True,
        contrasts.relative,
    ),
    Phenomenon(
        "imperative_honorific", "तुम asks for करो, आप for कीजिए.", "imperative agreement", True, contrasts.imperatives
    ),
    Phenomenon(
        "genitive_distance",
        "का, की have the possessed noun's gender, over two adjectives.",
        "genitive agreement",
        True,
        contrasts.genitive_distance,
    ),
    Phenomenon(
        "genitive_agreement",
        "का, की (मेरा, मेरी; अपना, अपनी) have the possessed noun's gender.",
        "genitive agreement",
        False,
        contrasts.genitive,
    ),
    Phenomenon(
        "adjective_agreement",
        "An adjective has the gender of the noun after it.",
        "adjective agreement",
        False,
        contrasts.attributive,
    ),
    Phenomenon(
        "oblique_case", "A noun is oblique before a postposition only.", "oblique case", False, contrasts.oblique
    ),
    Phenomenon(
        "numeral_agreement",
        "After दो and above a noun is plural, after एक singular.",
        "numeral agreement",
        False,
        contrasts.numeral,
    ),
)
_BY_NAME = {phenomenon.name: phenomenon for phenomenon in PHENOMENA}
