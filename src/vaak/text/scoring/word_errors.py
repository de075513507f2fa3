"""Word and character error rates (WER, CER) of recognised texts, in total and by group, with intervals.

A rate is a sum of errors over a sum of words, never a mean of rates. Intervals are percentiles of bootstrap samples of
whole utterances, drawn with a fixed seed; or of whole speakers, where these are known: the utterances of one are alike,
so that intervals over utterances are too narrow for what is to hold of other speakers. Source: Bisani and Ney 2004,
"Bootstrap Estimates for Confidence Intervals in ASR Performance Evaluation".
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from vaak.core.errors import DataError, UserError
from vaak.text.scoring.normalisers import normaliser

NUM_SAMPLES = 1000
SAMPLES_AT_ONCE = 50
LEVEL = 0.95


class Counts(NamedTuple):
    """Errors of a text and what they are divided by; ``characters`` include the spaces between words."""

    substitutions: int
    deletions: int
    insertions: int
    words: int
    character_errors: int
    characters: int

    @property
    def word_errors(self) -> int:
        return self.substitutions + self.deletions + self.insertions


@dataclass(frozen=True)
class Rates:
    """The error rates of some utterances (1 is 100 %; None without any word), each with its interval."""

    utterances: int
    counts: Counts
    wer: float | None
    wer_interval: tuple[float, float] | None
    cer: float | None
    cer_interval: tuple[float, float] | None

    def to_json(self) -> dict[str, Any]:
        rates = {name: getattr(self, name) for name in ("wer", "wer_interval", "cer", "cer_interval")}
        percents = {
            f"{name}_percent": None if rate is None else round(100 * rate, 2)
            for name, rate in (("wer", self.wer), ("cer", self.cer))
        }
        return {"utterances": self.utterances, **rates, **percents, **self.counts._asdict()}


@dataclass(frozen=True)
class TextScores:
    """Rates of all utterances and of each group; ``protocol`` says under which conditions they were made."""

    protocol: dict[str, str]
    total: Rates
    groups: dict[str, Rates]

    def to_json(self) -> dict[str, Any]:
        groups = {name: rates.to_json() for name, rates in self.groups.items()}
        return {"protocol": self.protocol, "total": self.total.to_json(), "groups": groups}


def count_errors(reference: str, hypothesis: str) -> Counts:
    """The errors of a text, both as they are: normalise them before.

    >>> count_errors("so it is", "so is it is")[:4]
    (0, 0, 1, 3)
    """
    try:
        import jiwer
    except ImportError as error:
        raise UserError(f"error rates require jiwer ({error}); pip install 'vaak[asr]'") from error
    reference, hypothesis = " ".join(reference.split()), " ".join(hypothesis.split())
    words = jiwer.process_words(reference, hypothesis)
    letters = jiwer.process_characters(reference, hypothesis)
    return Counts(
        words.substitutions,
        words.deletions,
        words.insertions,
        len(reference.split()),
        letters.substitutions + letters.deletions + letters.insertions,
        len(reference),
    )


def score_texts(
    references: Mapping[str, str],
    hypotheses: Mapping[str, str],
    groups: Mapping[str, str] | None = None,
    normaliser_name: str = "basic",
    speakers: Mapping[str, str] | None = None,
) -> TextScores:
    """The error rates of ``hypotheses`` by name; one of ``references`` without any counts as entirely missed.

    ``groups`` are those of some names, and ``normaliser_name`` is applied to both sides. Intervals are over
    ``speakers``, of some names, where these are given; a name without one is a speaker of its own. Raises DataError
    where a hypothesis has no reference, or no reference any word.
    """
    others = sorted(hypotheses.keys() - references.keys())
    if others:
        raise DataError(f"there is no reference for {others[0]}" + (f" and {len(others) - 1} more" * (len(others) > 1)))
    normalise = normaliser(normaliser_name)
    counts = {
        name: count_errors(normalise(text), normalise(hypotheses.get(name, ""))) for name, text in references.items()
    }
    if not any(one.words for one in counts.values()):
        raise DataError("no reference has any word")
    by_group: dict[str, dict[str, Counts]] = {}
    for name, group in sorted((groups or {}).items(), key=lambda item: item[1]):
        if name in counts:
            by_group.setdefault(group, {})[name] = counts[name]
    protocol = {"normaliser": normaliser_name, "utterances": str(len(counts))}
    if speakers is not None:
        protocol["intervals over"] = f"{len({_speaker_of(name, speakers) for name in counts})} speakers"
    missing = len(references.keys() - hypotheses.keys())
    if missing:
        protocol["without hypothesis"] = str(missing)

    def rates(own: Mapping[str, Counts]) -> Rates:
        return rates_of(own.values(), None if speakers is None else [_speaker_of(name, speakers) for name in own])

    return TextScores(protocol, rates(counts), {name: rates(own) for name, own in by_group.items()})


def _speaker_of(name: str, speakers: Mapping[str, str]) -> tuple[str, bool]:
    """Who says an utterance; one that isn't known is nobody else."""
    return (speakers[name], True) if name in speakers else (name, False)


def rates_of(counts: Iterable[Counts], clusters: Sequence[Hashable] | None = None) -> Rates:
    """The rates of utterances together; intervals are over ``clusters``, of which each utterance is in one."""
    rows = list(counts)
    together: dict[Hashable, list[Counts]] = {}
    for one, cluster in zip(rows, range(len(rows)) if clusters is None else clusters, strict=True):
        together.setdefault(cluster, []).append(one)
    drawn = [_sum_of(own) for own in together.values()]
    words = _rate([(one.word_errors, one.words) for one in drawn])
    characters = _rate([(one.character_errors, one.characters) for one in drawn])
    return Rates(len(rows), _sum_of(rows), *words, *characters)


def _sum_of(rows: Sequence[Counts]) -> Counts:
    return Counts(*(sum(column) for column in zip(*rows, strict=True))) if rows else Counts(0, 0, 0, 0, 0, 0)


def _rate(pairs: Sequence[tuple[int, int]]) -> tuple[float | None, tuple[float, float] | None]:
    """Errors over what they are divided by, and the interval of that."""
    table = np.array(pairs, np.float64).reshape(-1, 2)
    errors, number = table.sum(0)
    if not number:
        return None, None
    rng, rates = np.random.default_rng(0), list[np.ndarray]()
    for _ in range(NUM_SAMPLES // SAMPLES_AT_ONCE):
        drawn = table[rng.integers(len(table), size=(SAMPLES_AT_ONCE, len(table)))].sum(1)
        rates.append(drawn[:, 0] / np.maximum(drawn[:, 1], 1))
    low, high = np.quantile(np.concatenate(rates), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(errors / number), (float(low), float(high))
