"""Word and character error rates (WER, CER) of transcripts, in total and by group, with intervals.

A rate is a sum of errors over a sum of words, never a mean of rates. Intervals are percentiles of bootstrap samples of
whole utterances, drawn with a fixed seed; or of whole speakers, where these are known: the utterances of one are alike,
so that intervals over utterances are too narrow for what is to hold of other speakers. Source: Bisani and Ney 2004,
"Bootstrap Estimates for Confidence Intervals in ASR Performance Evaluation".

Transcripts of any system are read by the name of the utterance::

    JSON lines   {"id": "a", "text": "so it is", "accent": "en"}     other keys: NAME_KEYS and TEXT_KEYS
    tables       the same with a header, .csv and .tsv
    texts        a line per utterance, named by its number; with ``named``, by its first word (Kaldi's "text")
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vaak.audio.corpora.entries import manifest_lines
from vaak.core.errors import DataError, UserError
from vaak.core.matching import quote_names, rename_like
from vaak.core.names import require_known
from vaak.core.storage.tables import is_table
from vaak.core.storage.text_lines import read_text_lines
from vaak.scoring.normalisers import BASIC, Normaliser

log = logging.getLogger("vaak")
NUM_INTERVAL_SAMPLES = 1000
SAMPLES_AT_ONCE = 50
CONFIDENCE = 0.95


class ErrorCounts(NamedTuple):
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
class ErrorRates:
    """The error rates of some utterances (1 is 100 %; None without any word), each with its interval."""

    utterances: int
    counts: ErrorCounts
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
    total: ErrorRates
    groups: dict[str, ErrorRates]

    def to_json(self) -> dict[str, Any]:
        groups = {name: rates.to_json() for name, rates in self.groups.items()}
        return {"protocol": self.protocol, "total": self.total.to_json(), "groups": groups}


def count_errors(reference: str, hypothesis: str) -> ErrorCounts:
    """Return the errors of a text, neither of them normalised: do that before.

    >>> count_errors("so it is", "so is it is")[:4]
    (0, 0, 1, 3)
    """
    try:
        import jiwer
    except ImportError as error:
        raise UserError(f"error rates require jiwer ({error}); pip install 'vaak[asr]'") from error
    # Spaces count as characters, so there must be exactly one between words.
    reference, hypothesis = " ".join(reference.split()), " ".join(hypothesis.split())
    words = jiwer.process_words(reference, hypothesis)
    letters = jiwer.process_characters(reference, hypothesis)
    return ErrorCounts(
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
    normalise: Normaliser = BASIC,
    speakers: Mapping[str, str] | None = None,
) -> TextScores:
    """Return the error rates of ``hypotheses`` by name; one of ``references`` without any counts as entirely missed.

    ``groups`` are those of some names, and ``normalise`` is applied to both sides. Intervals are over
    ``speakers``, of some names, where these are given; a name without one is another speaker. Names that differ only
    as ``vaak.core.matching`` says are the same. Raises DataError if a hypothesis has no reference, or no reference
    any word.
    """
    hypotheses = rename_like(references, hypotheses)
    if others := hypotheses.keys() - references.keys():
        raise DataError(f"no reference for {quote_names(others)}")
    counts = {
        name: count_errors(normalise(text), normalise(hypotheses.get(name, ""))) for name, text in references.items()
    }
    if not any(one.words for one in counts.values()):
        raise DataError("no reference has any word")
    by_group: dict[str, dict[str, ErrorCounts]] = {}
    # Sorted by group, so that reports list groups in a fixed order.
    for name, group in sorted((groups or {}).items(), key=lambda item: item[1]):
        if name in counts:
            by_group.setdefault(group, {})[name] = counts[name]
    protocol = {"normaliser": normalise.name, "utterances": str(len(counts))}
    if speakers is not None:
        protocol["intervals over"] = f"{len({_find_speaker(name, speakers) for name in counts})} speakers"
    if silent := [one.word_errors for one in counts.values() if not one.words]:
        protocol["hallucinated words"] = f"{sum(silent):,} in {len(silent):,} without speech"
    missing = len(references.keys() - hypotheses.keys())
    if missing:
        protocol["without hypothesis"] = str(missing)

    def rates(own: Mapping[str, ErrorCounts]) -> ErrorRates:
        return compute_rates(
            own.values(), None if speakers is None else [_find_speaker(name, speakers) for name in own]
        )

    return TextScores(protocol, rates(counts), {name: rates(own) for name, own in by_group.items()})


def _find_speaker(name: str, speakers: Mapping[str, str]) -> tuple[str, bool]:
    """Return the speaker of an utterance; one without a known speaker has its own."""
    return (speakers[name], True) if name in speakers else (name, False)


def compute_rates(counts: Iterable[ErrorCounts], clusters: Sequence[Hashable] | None = None) -> ErrorRates:
    """Return the rates of utterances together; intervals are over ``clusters``, of which each utterance is in one."""
    rows = list(counts)
    together: dict[Hashable, list[ErrorCounts]] = {}
    for one, cluster in zip(rows, range(len(rows)) if clusters is None else clusters, strict=True):
        together.setdefault(cluster, []).append(one)
    drawn = [_add_up(own) for own in together.values()]
    words = rate_with_interval([(one.word_errors, one.words) for one in drawn])
    characters = rate_with_interval([(one.character_errors, one.characters) for one in drawn])
    return ErrorRates(len(rows), _add_up(rows), *words, *characters)


def _add_up(rows: Sequence[ErrorCounts]) -> ErrorCounts:
    return ErrorCounts(*(sum(column) for column in zip(*rows, strict=True))) if rows else ErrorCounts(0, 0, 0, 0, 0, 0)


def rate_with_interval(pairs: Sequence[tuple[float, float]]) -> tuple[float | None, tuple[float, float] | None]:
    """Errors over what they are divided by, and the interval of that."""
    table = np.array(pairs, np.float64).reshape(-1, 2)
    errors, number = table.sum(0)
    if not number:
        return None, None
    rng, rates = np.random.default_rng(0), list[np.ndarray]()
    for _ in range(NUM_INTERVAL_SAMPLES // SAMPLES_AT_ONCE):
        # A bootstrap: draw as many speakers or utterances as there are, with replacement, and pool their errors.
        drawn = table[rng.integers(len(table), size=(SAMPLES_AT_ONCE, len(table)))].sum(1)
        rates.append(drawn[:, 0] / np.maximum(drawn[:, 1], 1))
    low, high = np.quantile(np.concatenate(rates), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(errors / number), (float(low), float(high))


NAME_KEYS = ("id", "name", "utterance", "audio", "file")
TEXT_KEYS = ("text", "transcript", "transcription", "sentence", "prediction", "hypothesis", "pred_text")


class Transcripts(NamedTuple):
    """Texts and groups, by name; no groups where none were asked for. ``num_lines`` where names are lines' numbers."""

    texts: dict[str, str]
    groups: dict[str, str]
    num_lines: int | None = None


def read_transcripts(path: Path, group: str | None = None, *, named: bool = False) -> Transcripts:
    """Return the transcripts of a file; ``group`` is the key of a label. Raises DataError, naming file and line."""
    found, keys = Transcripts({}, {}), set[str]()
    is_structured = is_table(path) or path.suffix.lower() in (".jsonl", ".json", ".gz")
    for where, name, text, label in _structured(path, group, keys) if is_structured else _lines(path, named):
        if name in found.texts:
            raise DataError(f"{where}: there are two texts of {name}")
        found.texts[name] = text
        if label is not None:
            found.groups[name] = label
    if not found.texts:
        raise DataError(f"{path}: has no texts")
    if group is not None:
        _require_labels(path, found, group, keys)
    return found if is_structured or named else found._replace(num_lines=len(found.texts))


def _require_labels(path: Path, found: Transcripts, group: str, keys: set[str]) -> None:
    """Raise DataError if no text has the label ``group``; log how many haven't. ``keys`` are those of the file."""
    if not found.groups:
        if group in keys:
            raise DataError(f"{path}: the label {group} is empty in all {len(found.texts):,} texts")
        remedy = "" if keys else "lines of text have no labels; give JSON lines or a table"
        require_known([group], sorted(keys), f"{path}: no text has a label", remedy=remedy)
    if lacking := len(found.texts) - len(found.groups):
        log.warning("%s: %d of %d texts have no label %s", path, lacking, len(found.texts), group)


def require_same_lines(references: Transcripts, reference: Path, hypotheses: Transcripts, hypothesis: Path) -> None:
    """Raises DataError for files without names that have different numbers of lines."""
    ours, theirs = references.num_lines, hypotheses.num_lines
    if None not in (ours, theirs) and ours != theirs:
        raise DataError(
            f"{reference} has {ours} lines and {hypothesis} has {theirs}: line i of both must belong together; give "
            "all, or texts with names"
        )


def _structured(path: Path, group: str | None, keys: set[str]) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield place, name, text and label of each entry of a file; its ``keys`` are collected."""
    for where, entry, problem in manifest_lines(path):
        if problem is not None:
            raise problem
        keys.update(entry)
        label = None if group is None else entry.get(group)
        name, text = (_value(entry, keys, where) for keys in (NAME_KEYS, TEXT_KEYS))
        yield where, name, text, None if label in (None, "") else str(label)


def _value(entry: dict[str, Any], keys: tuple[str, ...], where: str) -> str:
    # Keys in any case; the exact spelling wins where both exist.
    found = {key.lower(): one for key, one in entry.items()} | entry
    value = next((found[key] for key in keys if found.get(key) is not None), None)
    if not isinstance(value, str | int):
        raise DataError(f"{where}: expected a text under {' or '.join(keys[:3])}; there are {', '.join(entry)}")
    return str(value)


def _lines(path: Path, named: bool) -> Iterator[tuple[str, str, str, None]]:
    for number, line in enumerate(read_text_lines(path), start=1):
        name, _, text = line.partition(" ") if named else (str(number), "", line)
        if not named or line.strip():
            yield f"{path}:{number}", name, text, None
