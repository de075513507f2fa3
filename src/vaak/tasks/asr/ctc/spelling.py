"""Transcripts in the letters that a base has tokens for: case, Unicode form, apostrophes, hyphens and spaces.

    transcripts            tokens         then
    small letters only     capitals       tokens are called by small letters: the model writes as the transcripts do
    both                   capitals       small letters are read as capitals
    any                    both           nothing: which letter is meant isn't clear, and what is unknown is counted
    composed (NFC)         decomposed     texts are decomposed before they become tokens; or the other way round
    ’ or ʼ                 '              is read as it, where the base has one of them

Each change is reported once. A character that has a token is never changed.
"""

from __future__ import annotations

import json
import logging
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from vaak.tasks.asr.vocabulary import Vocabulary

log = logging.getLogger("vaak")
NORMAL_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
EQUIVALENT_SIGNS = ("'’‘ʼ´`′＇", "-‐‑−﹣－")
"""Signs that are one: apostrophes, and hyphens."""
TURKIC = {"upper": {"i": "İ", "ı": "I"}, "lower": {"İ": "i", "I": "ı"}}
"""How letters change their case where there is an i with a dot and one without."""


def adapt(vocabulary: Vocabulary, texts: Callable[[], Iterable[str]], name: str) -> Vocabulary:
    """Return the vocabulary of a base called ``name``, which reads the transcripts as far as that is clear.

    ``texts()`` gives them, again each time.
    """
    counts = _count(texts())
    said = list[str]()
    vocabulary = _in_their_case(vocabulary, counts, said)
    vocabulary = _in_a_form(vocabulary, counts, texts, said)
    changes = _replacements(vocabulary, counts, said)
    if changes:
        vocabulary = _changed(vocabulary, [_replace(one, other) for one, other in changes.items()])
    if said:
        log.info("transcripts are spelled by the tokens of %s: %s", name, "; ".join(said))
    return vocabulary


def _count(texts: Iterable[str]) -> Counter[str]:
    counts = Counter[str]()
    for text in texts:
        counts.update(text)
    return counts


def _letters(vocabulary: Vocabulary) -> dict[str, str]:
    """Return the tokens that are a letter of one case, with the name of this case."""
    silent = {vocabulary.ids.pad, *vocabulary.ids.never}
    names = (one for number, one in enumerate(vocabulary.tokens()) if number not in silent and len(one) == 1)
    cased = {one: "upper" if one.isupper() else "lower" for one in names if one.isupper() or one.islower()}
    return {one: case for one, case in cased.items() if one in "İı" or len(one.swapcase()) == 1}


def _case(letters: Mapping[str, str]) -> str | None:
    """Return the case that all letters of a base have; None if they have both, or none."""
    return next(iter(letters.values())) if len({*letters.values()}) == 1 else None


def _changed_case(one: str, case: str, is_turkic: bool) -> str:
    own = TURKIC[case].get(one) if is_turkic else None
    return own or (one.upper() if case == "upper" else one.lower())


def _unknown(vocabulary: Vocabulary, counts: Mapping[str, int]) -> dict[str, int]:
    """Return the characters that the vocabulary can't write, with their numbers."""
    characters = [*counts]
    missing = vocabulary.find_unwritable(characters)
    return {one: counts[one] for one, lost in zip(characters, missing, strict=True) if lost}


def _in_their_case(vocabulary: Vocabulary, counts: Mapping[str, int], said: list[str]) -> Vocabulary:
    """Return the vocabulary with its letters in the other case, where transcripts have that one alone."""
    letters = _letters(vocabulary)
    case = _case(letters)
    theirs = {"upper" if one.isupper() else "lower" for one in counts if one.isupper() or one.islower()}
    if case is None or theirs != {"lower" if case == "upper" else "upper"}:
        return vocabulary
    [other] = theirs
    # Turkish and Azerbaijani pair i with İ and ı with I, and no option names the language: the letters tell.
    is_turkic = bool({"İ", "ı"} & {*letters})
    renamed = {one: _changed_case(one, other, is_turkic) for one in letters}
    names = {one: number for number, one in enumerate(vocabulary.tokens())}
    # ß becomes SS, which one token can't be; and two letters may not become one.
    if any(len(new) != 1 or new in names for new in renamed.values()) or len({*renamed.values()}) < len(renamed):
        return vocabulary
    content = json.loads(vocabulary.content)
    content["model"]["vocab"] = {renamed.get(one, one): number for one, number in content["model"]["vocab"].items()}
    kinds = {"upper": "capitals", "lower": "small letters"}
    number = sum(times for one, times in counts.items() if one in renamed.values())
    said.append(f"{number:,} {kinds[other]}, of which it has the {kinds[case]} only, and which the model writes")
    return Vocabulary(json.dumps(content, ensure_ascii=False), vocabulary.ids, vocabulary.config)


def _in_a_form(
    vocabulary: Vocabulary, counts: Mapping[str, int], texts: Callable[[], Iterable[str]], said: list[str]
) -> Vocabulary:
    """Return the vocabulary for texts in the Unicode form of which fewest characters are unknown."""
    fewest, best = sum(_unknown(vocabulary, counts).values()), None
    for form in NORMAL_FORMS if fewest else ():
        formed = _count(unicodedata.normalize(form, text) for text in texts())
        unknown = sum(_unknown(vocabulary, formed).values())
        if unknown < fewest:
            fewest, best = unknown, form
    if best is None:
        return vocabulary
    said.append(f"texts in the form {best}")
    return _changed(vocabulary, [{"type": best}])


def _replacements(vocabulary: Vocabulary, counts: Mapping[str, int], said: list[str]) -> dict[str, str]:
    """Return substitutes for unknown characters: letters of the other case, equal signs, and spaces."""
    letters = _letters(vocabulary)
    case, is_turkic = _case(letters), bool({"İ", "ı"} & {*letters})
    changes = dict[str, str]()
    if case is not None:
        # It is that of all letters of the base, whether transcripts have them or not.
        others = {_changed_case(one, "lower" if case == "upper" else "upper", is_turkic) for one in letters}
        candidates = {one for one in {*others, *counts} if len(one) == 1}
        changes |= {one: _changed_case(one, case, is_turkic) for one in candidates}
    for signs in EQUIVALENT_SIGNS:
        there = [one for one in signs if not vocabulary.find_unwritable([one])[0]]
        changes |= dict.fromkeys(signs, there[0]) if len(there) == 1 else {}
    changes |= {one: " " for one in counts if one.isspace() and one != " "}
    unknown = {*_unknown(vocabulary, dict.fromkeys(changes, 1)), *(one for one in changes if one.isspace())}
    known = {one: other for one, other in changes.items() if one in unknown and one != other}
    found = {one: other for one, other in known.items() if not vocabulary.find_unwritable([other])[0]}
    for kind, names in (("letters of the other case", [*filter(str.isalpha, found)]), *_signs(found)):
        number = sum(counts.get(one, 0) for one in names)
        if number:
            said.append(f"{number:,} {kind}")
    return dict(sorted(found.items()))


def _signs(found: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    kinds = {other: [one for one in found if found[one] == other and not one.isalpha()] for other in found.values()}
    return [(f"{' '.join(names).strip() or 'spaces'} as {other!r}", names) for other, names in kinds.items() if names]


def _replace(one: str, other: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": one}, "content": other}


def _changed(vocabulary: Vocabulary, rules: list[dict[str, Any]]) -> Vocabulary:
    """Return the vocabulary with further rules for texts, before its own."""
    content = json.loads(vocabulary.content)
    own = content["normalizer"]
    before = own["normalizers"] if (own or {}).get("type") == "Sequence" else [own] if own else []
    content["normalizer"] = {"type": "Sequence", "normalizers": [*rules, *before]}
    return Vocabulary(json.dumps(content, ensure_ascii=False), vocabulary.ids, vocabulary.config)
