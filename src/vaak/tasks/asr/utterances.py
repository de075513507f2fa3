"""Utterances of a split on disk: those with a transcript that fit the model; long ones are split where possible.

An empty transcript means that there is no speech: the model learns to write nothing.

FOLDER/
  cuts/               the utterances of a split that fit the encoder (vaak.audio.cuts.store)
  groups.bin          int32, the group of each
  used.bin            int64, the indices of those that are used, in order
  left_out.jsonl      the name of each utterance that is left out, with the reason
  utterances.json     names of the groups, and the label that they come from; written last
"""

from __future__ import annotations

import json
import logging
import math
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Protocol

import numpy as np

from vaak.audio.cuts.reading import get_label, get_text, list_labels, merge_alignments
from vaak.audio.cuts.recordings import (
    UNUSABLE,
    LeftOut,
    alignment_items,
    describe,
    is_without_speech,
    section,
    split_utterances,
)
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.audio.segments import Interval
from vaak.core.artifact import Artifact
from vaak.core.errors import DataError
from vaak.core.names import list_names, nearest_name, quote_unmatched, require_known
from vaak.core.storage.files import compute_fingerprint, sync_file, write_text
from vaak.core.storage.mapped_lines import mapped
from vaak.data.plan import sample_size, stratified_sample
from vaak.tasks.asr.config import AsrDataConfig
from vaak.tasks.asr.vocabulary import Vocabulary

if TYPE_CHECKING:
    from lhotse.cut import Cut

log = logging.getLogger("vaak")

UTTERANCES_FILE, GROUPS, USED, LEFT_OUT = "utterances.json", "groups.bin", "used.bin", "left_out.jsonl"
GROUP_LABELS = ("etiology", "accent", "severity", "group")
"""Labels that may define groups; the first one that the data have does."""
NO_GROUP = "all"
UNLABELLED_REASON = "unlabelled"
TOO_LONG = "utterances longer than data.max_duration"
NO_WORD_TIMES = "utterances longer than data.max_duration whose words have no times, so that they can't be cut"
TOO_MANY_TOKENS = "utterances with more tokens than the decoder writes"
SEGMENT = "segment"
"""The alignment tier with the times of utterances that were joined."""
TOLERATED_SECONDS = 0.01
"""An utterance may be this much longer than max_duration; the excess is cut off, instead of the utterance left out."""


class TokenLimit(NamedTuple):
    """How many tokens a transcript may have.

    ``excess(ids, seconds)`` returns the reason why an utterance of ``seconds`` with these tokens doesn't fit; None if
    it does. Utterances that don't fit are counted under ``kind``.
    """

    kind: str
    excess: Callable[[list[int], float], str | None]
    depends_on_audio: bool = False
    """Whether the limit grows with the duration, so that a part of an utterance fits no better than the whole."""


def decoder_limit(most_tokens: int) -> TokenLimit:
    """Return the limit of a decoder that writes at most ``most_tokens`` after its prompt."""

    def excess(ids: list[int], seconds: float) -> str | None:
        fits = len(ids) <= most_tokens
        return None if fits else f"{len(ids)} tokens, more than the {most_tokens} that the decoder writes"

    return TokenLimit(TOO_MANY_TOKENS, excess)


class Limits(NamedTuple):
    """Limits on utterances, and how many of them are used."""

    data: AsrDataConfig
    percent: float = 100.0
    most: int | None = None
    """The maximum number of utterances to use; ``percent`` applies, too."""
    joins: bool = False
    """Whether neighbouring utterances of a recording are joined."""


class Utterances:
    """The utterances in a folder; pickles as its path."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        about = Artifact(self.folder, UTTERANCES_FILE, "utterances", keys={"groups": list}).read()
        self.cuts = CutStore(self.folder / "cuts")
        self.used = mapped(self.folder / USED, "<i8")
        self.group_names: tuple[str, ...] = tuple(about["groups"])
        self.groups: np.ndarray = mapped(self.folder / GROUPS, "<i4")[self.used]
        self.durations: np.ndarray = self.cuts.durations[self.used]
        self.fingerprint = compute_fingerprint([self.cuts.fingerprint, self.used.tolist(), about["groups"]])

    def __len__(self) -> int:
        return len(self.used)

    def describe(self, index: int) -> str:
        """Return the name and the file of utterance ``index``."""
        return self.cuts.describe(int(self.used[index]))

    def __reduce__(self) -> tuple[Any, ...]:
        return Utterances, (self.folder,)


@dataclass
class Writing:
    """The utterances of a split after the first pass; ``finish`` does what needs tokens and the label of groups."""

    folder: Path
    limits: Limits
    store: CutStore
    labels: set[str]
    """Names of labels that some of them have."""
    left_out: LeftOut

    def texts(self) -> Iterator[str]:
        """Return all transcripts, read when they are needed."""
        return (get_text(cut) or "" for cut in self.store)

    def finish(self, vocabulary: Vocabulary, tokens: TokenLimit, label: str | None) -> dict[str, Any]:
        """Split or leave out utterances beyond the limit on ``tokens``, draw the sample, and return the statistics.

        Utterances are grouped by their ``label``; None makes one group. Raises DataError if train lacks a group of
        ``data.groups``, or an utterance doesn't fit and ``data.too_long`` is fail.
        """
        # If the limit depends on audio (CTC), shorter parts also have fewer frames, so splitting doesn't help.
        if self.limits.data.too_long == "split" and not tokens.depends_on_audio:
            self._split(lambda text: tokens.excess(vocabulary.encode(text), 0.0) is None)
        labels, fitting, names, without_speech = list[str](), list[int](), list[str](), set[int]()
        for index, cut in enumerate(self.store):
            labels.append((get_label(cut.supervisions[0], label) or UNLABELLED_REASON) if label else NO_GROUP)
            if self.limits.data.groups and labels[index] not in self.limits.data.groups:
                continue
            text = get_text(cut) or ""
            reason = tokens.excess(vocabulary.encode(text), cut.duration)
            if reason is None:
                without_speech |= set() if text else {index}
                fitting.append(index)
                names.append(cut.id)
                continue
            _leave_out(cut, tokens.kind, reason, self.limits, self.left_out)
        self._list_left_out()
        missing = [one for one in self.limits.data.groups if one not in labels]
        # Only training needs every group; an evaluation may lack some.
        if missing and self.folder.name == "train":
            self._refuse_missing(missing, sorted({*labels}), label)
        group_names = sorted({labels[index] for index in fitting}) or [NO_GROUP]
        places = {name: place for place, name in enumerate(group_names)}
        groups = np.array([places.get(one, -1) for one in labels], "<i4")
        used = self._draw_sample(np.array(fitting, "<i8"), names, groups)
        self._write_indices(groups, used, {"groups": group_names, "label": label})
        numbers = np.bincount(groups[used], minlength=len(group_names)).tolist()
        return {
            "utterances": len(used),
            "seconds": float(self.store.durations[used].sum()),
            "group": label or NO_GROUP,
            "groups": dict(zip(group_names, numbers, strict=True)),
            "left_out": dict(self.left_out.counts),
            "unusable": self.left_out.listed.get(UNUSABLE, []),
            "without_speech": len(without_speech.intersection(used.tolist())),
        }

    def _draw_sample(self, usable: np.ndarray, names: list[str], groups: np.ndarray) -> np.ndarray:
        """Draw the utterances to use from the ``usable`` ones, whose names are ``names``, stratified by group.

        The percentage is one of usable utterances, so everything that leaves utterances out comes before.
        """
        size = sample_size(len(usable), self.limits.percent, self.limits.most)
        if size >= len(usable):
            return usable
        sample = stratified_sample(names, groups[usable], size, self.limits.data.sampling_seed)
        return np.asarray(usable[sample])

    def _write_indices(self, groups: np.ndarray, used: np.ndarray, about: dict[str, Any]) -> None:
        """Write the group of each utterance and the indices of those used; last the file that marks them complete."""
        for name, array in ((GROUPS, groups), (USED, used)):
            array.tofile(self.folder / name)
            sync_file(self.folder / name)
        Artifact(self.folder, UTTERANCES_FILE, "utterances").finish(about, with_sizes=False)

    def _split(self, fits: Callable[[str], bool]) -> None:
        """Split the utterances whose text doesn't fit, if their words have times."""
        if all(map(fits, self.texts())):
            return
        parts = (
            part
            for cut in self.store
            for part in ((not fits(get_text(cut) or "") and split_at_silences(cut, math.inf, fits)) or [cut])
        )
        whole, split = self.folder / "cuts", self.folder / ".cuts.tmp"
        write_cuts(split, parts)
        shutil.rmtree(whole)
        split.rename(whole)
        self.store = CutStore(whole)

    def _refuse_missing(self, missing: list[str], there: list[str], label: str | None) -> NoReturn:
        """Raise DataError for names in ``data.groups`` that train lacks; it has those ``there``."""
        named = quote_unmatched(missing, there)
        known = list_names(map(repr, there))
        raise DataError(f"data.groups: no utterance of train has the {label or 'label'} {named}; it has {known}")

    def _list_left_out(self) -> None:
        listed = [one for of_kind in self.left_out.listed.values() for one in of_kind]
        lines = (json.dumps(one, ensure_ascii=False) + "\n" for one in listed)
        write_text(self.folder / LEFT_OUT, "".join(lines))
        if listed:
            log.warning("the recordings left out are listed in %s", self.folder / LEFT_OUT)


def write_utterances(folder: Path, cuts: Iterable[Cut], limits: Limits, left_out: LeftOut) -> Writing:
    """Write the utterances of recordings that have a transcript and aren't longer than ``data.max_duration``.

    Raises DataError for one that is too long if ``data.too_long`` is fail, and for one without a transcript that may
    not be ``left_out``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    labels = set[str]()

    def kept() -> Iterator[Any]:
        for cut in cuts:
            for one in _select_utterances(cut, limits, left_out):
                labels.update(list_labels(one.supervisions[0]))
                yield one

    return Writing(folder, limits, write_cuts(folder / "cuts", kept()), labels, left_out)


def choose_group_label(writings: Mapping[str, Writing], asked: str | None) -> str | None:
    """Return the label by which utterances of all splits are grouped: ``asked``, or the first one of GROUP_LABELS.

    Warns of a split that doesn't have it. Raises DataError instead if it was ``asked`` for.
    """
    labels = {split: writing.labels for split, writing in writings.items() if len(writing.store)}
    label = asked or next((name for name in GROUP_LABELS if any(name in has for has in labels.values())), None)
    for split in (split for split, has in labels.items() if label and label not in has):
        if asked:
            require_known([asked], sorted(labels[split]), f"data.group: no utterance of {split} has a label")
        log.warning(
            "%s: no utterance has the label %s, by which other splits are grouped, so it is one group (data.group)",
            split,
            label,
        )
    return label


def warn_of_groups(groups: Mapping[str, Mapping[str, int]], label: str | None) -> Iterator[str]:
    """Yield warnings about group names, given the number of utterances by split and group.

    They are about names that train lacks, and names that differ in spelling only.

    >>> list(warn_of_groups({"train": {"ALS": 5, "PD": 4}, "valid": {"ALS": 2, "Als ": 1, "7": 1}}, "etiology"))
    ["valid: train has no etiology 'Als ' (1 utterance; did you mean 'ALS'?), '7' (1 utterance); it has 'ALS', 'PD'"]
    """
    known = groups.get("train", {})
    for split, own in groups.items():
        others = [name for name in own if own[name] and known and name not in known]
        if others:
            number = {name: f"{own[name]:,} utterance{'s' * (own[name] > 1)}" for name in others}
            listed = [f"{name!r} ({number[name]}{nearest_name(name, known)})" for name in others]
            there = ", ".join(map(repr, [*known][:10]))
            yield f"{split}: train has no {label} {', '.join(listed)}; it has {there}"
    for name in known:
        # Each pair is named once.
        same = [other for other in known if other > name and _plain(other) == _plain(name)]
        if same:
            yield f"train: {label} {name!r} and {', '.join(map(repr, same))} differ by case or spaces only"
    if UNLABELLED_REASON in known and len(known) > 1:
        yield f"train: {known[UNLABELLED_REASON]:,} utterances have no {label}; they are a group, {UNLABELLED_REASON}"


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())


def _select_utterances(cut: Any, limits: Limits, left_out: LeftOut) -> Iterator[Any]:
    """Yield the utterances of a recording that have a transcript and fit the encoder, split if necessary."""
    longest, how = limits.data.max_duration, limits.data.too_long
    names = (limits.data.group,) if limits.data.group else GROUP_LABELS
    for one in join_utterances(cut, longest, names) if limits.joins else split_utterances(cut):
        without_speech = is_without_speech(one, cut) and not limits.data.refuse_empty_transcripts
        if get_text(one) is None and not without_speech:
            left_out.without_text(one, cut)
        elif one.duration <= longest + TOLERATED_SECONDS:
            yield one
        else:
            pieces = split_at_silences(one, longest) if how == "split" else []
            yield from pieces
            if not pieces:
                kind = NO_WORD_TIMES if how == "split" else TOO_LONG
                reason = f"{one.duration:.2f} s, more than the {longest:g} s of data.max_duration"
                _leave_out(one, kind, reason, limits, left_out)


def join_utterances(cut: Any, longest: float, names: Sequence[str] = GROUP_LABELS) -> Iterator[Any]:
    """Yield the utterances of a recording, with neighbours joined up to ``longest`` seconds.

    Neighbours are joined if they have transcripts, don't overlap, and agree in the labels ``names``. The pauses before
    and after them are included, up to ``longest``. The alignment has the times of each utterance (tier SEGMENT).
    """
    if len(cut.supervisions) < 2:
        yield cut
        return
    together, before = list[Any](), 0.0
    # None at the end closes the last group.
    for one in (*sorted(cut.supervisions, key=lambda label: label.start), None):
        fits = (
            together
            and one is not None
            and together[-1].end <= one.start
            and min(one.end, cut.duration) - together[0].start <= longest
            and all((label.text or "").strip() for label in (together[-1], one))
            and all(get_label(together[0], name) == get_label(one, name) for name in names)
        )
        if together and not fits:
            start, end = max(0.0, together[0].start), min(together[-1].end, cut.duration)
            spare = max(0.0, longest - (end - start))
            after = cut.duration if one is None else one.start
            # Up to half of the spare time goes to the pause before, which begins at the last utterance's end; the rest
            # goes to the pause after.
            first = max(min(before, start), start - spare / 2)
            yield _make_joined(cut, together, first, max(end, min(after, first + longest)))
            before, together = max(before, end), []
        together += [] if one is None else [one]


def _make_joined(cut: Any, labels: Sequence[Any], start: float, end: float) -> Any:
    """Return the section of a recording from ``start`` to ``end`` seconds as one utterance with these labels."""
    part, own = section(cut, start, end), {label.id for label in labels}
    part.id = f"{cut.id}-{start:09.3f}"
    part.supervisions = [one for one in part.supervisions if one.id in own]
    tiers, text, whole = dict(merge_alignments(part) or {}), get_text(part), part.supervisions[0]
    tiers[SEGMENT] = tuple(
        Interval(one.start - start, min(one.end, end) - start, (one.text or "").strip()) for one in labels
    )
    whole.start, whole.duration, whole.text = 0.0, part.duration, text
    times = {kind: [(one.text, round(one.start, 8), one.end) for one in tier] for kind, tier in tiers.items()}
    whole.alignment = alignment_items(times)
    part.supervisions = [whole]
    return part


def _leave_out(cut: Any, kind: str, reason: str, limits: Limits, left_out: LeftOut) -> None:
    """Add ``cut`` to ``left_out`` under a ``kind``, with the ``reason``.

    Raises DataError if ``data.too_long`` is fail.
    """
    if limits.data.too_long == "fail":
        raise DataError(f"{describe(cut)} has {reason}; set data.too_long to drop or split, or shorten it")
    left_out.add(cut.id, kind, reason)


def split_at_silences(cut: Any, longest: float, fits: Callable[[str], bool] = lambda text: True) -> list[Any]:
    """Split an utterance into parts of at most ``longest`` seconds, cut in the longest pauses between its words.

    The text of each part ``fits``. Returns no parts if words have no times, or one of them alone doesn't fit.
    """
    words = [word for word in (merge_alignments(cut) or {}).get("word", ()) if word.text]
    written = (get_text(cut) or "").split()
    # The transcript's words have punctuation and case, so they are used if there are as many as timed words.
    texts = written if len(written) == len(words) else [word.text for word in words]
    parts = list[Any]()
    for first, last, start, end in parts_at_pauses(words, texts, longest, fits, stop=cut.duration):
        part = section(cut, start, end)
        part.id = f"{cut.id}-{len(parts):03}"
        part.supervisions = part.supervisions[:1]
        part.supervisions[0].text = " ".join(texts[first:last])
        own = [(word.text, round(word.start - start, 8), word.end - start) for word in words[first:last]]
        part.supervisions[0].alignment = alignment_items({"word": own})
        parts.append(part)
    return parts


class Timed(Protocol):
    """Speech from ``start`` to ``end`` seconds."""

    @property
    def start(self) -> float: ...

    @property
    def end(self) -> float: ...


def parts_at_pauses(
    words: Sequence[Timed],
    texts: Sequence[str],
    longest: float,
    fits: Callable[[str], bool] = lambda text: True,
    *,
    begin: float = 0.0,
    stop: float,
) -> list[tuple[int, int, float, float]]:
    """Divide words into parts of at most ``longest`` seconds, cut in the longest pauses, from ``begin`` to ``stop``.

    Each part is the index of its first word, that after its last, and its start and end in seconds. Returns no parts if
    a word alone is too long or its text doesn't fit.
    """
    parts, start, first = list[tuple[int, int, float, float]](), begin, 0
    while first < len(words):
        last = first
        while last < len(words) and words[last].end - start <= longest and fits(" ".join(texts[first : last + 1])):
            last += 1
        if last == first:
            return []
        end = min(stop, start + longest)
        if last < len(words):
            # Only pauses in the second half count, or a long one after the first word would make a part of that word.
            ends = range(first + (last - first) // 2, last)
            last = 1 + max(ends, key=lambda place: words[place + 1].start - words[place].end)
            end = min(end, (words[last - 1].end + words[last].start) / 2)
        parts.append((first, last, start, end))
        start, first = end, last
    return parts
