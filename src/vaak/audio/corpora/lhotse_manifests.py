"""Lhotse's manifests as cuts, line by line: those that are given, or those that the recipe of a corpus makes once.

CORPUS_DIR/         the corpus, as `vaak data get` or the user put it there
  corpus.json       the folder in it that the recipe's prepare function takes, if `vaak data get` downloaded it
OUTPUT_DIR/
  *_recordings_PART.jsonl.gz, *_supervisions_PART.jsonl.gz    what the recipe writes
  cuts/PART.jsonl   as cuts; a label as long as its recording, which recipes write without times, is marked so
  cuts.json         recipe, options and parts, and that the labels are marked; written last: it means "complete"

A split that names no parts of the recipe gets those with matching names: train*; dev* and valid*; test* and eval*; a
corpus of one part is train. A supervision of another manifest is taken unchanged: only ``custom: {"no_times": true}``
says that it doesn't know when the speaker speaks.

Paths are Lhotse's: absolute, or relative to the current folder; one that doesn't exist is looked up in the manifest's
folder, then in ``audio_root``. With ``audio_root``, audio must be there or in the manifest's folder.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.entries import CorpusReader, list_entries, manifest_lines, require_inside, seconds_in
from vaak.audio.corpora.recipes import LhotseRecipe, download, prepare, recipe_named
from vaak.audio.cuts.reading import (
    NO_TIMES,
    is_labelled_throughout,
    lacks_times,
    lhotse_object,
    recordings_in,
    require_harmless,
)
from vaak.audio.cuts.recordings import ReadRecording, attempted, drop_bad_labels, name_left_out
from vaak.audio.embedded import EMBEDDED_TYPE, parse_part
from vaak.audio.formats.alignments import LeftOutLabels
from vaak.core.artifact import LOCK, Artifact
from vaak.core.errors import DataError, UserError
from vaak.core.names import require_known
from vaak.core.progress import track
from vaak.core.splits import SPLITS
from vaak.core.storage.files import read_json, replacing, unmade_after_errors, write_json
from vaak.core.storage.lock import locked

if TYPE_CHECKING:
    from lhotse import Recording, SupervisionSegment
    from lhotse.cut import Cut


log = logging.getLogger("vaak")
CUTS_FILE = "cuts.json"
CORPUS = "corpus.json"
FILE_PREFIXES = {"train": ("train", "tr_", "tr-"), "valid": ("dev", "valid", "val"), "test": ("test", "eval")}
MANIFEST_NAME = re.compile(r"(?:(?P<prefix>.+)_)?recordings_(?P<part>.+)\.jsonl(\.gz)?")


def output_folder(dataset: DatasetConfig, audio: AudioConfig) -> Path:
    """Return the folder of its manifests."""
    return Path(dataset.output_dir or Path(audio.output_dir or "manifests") / dataset.name).expanduser()


def get_corpus(name: str, folder: Path, options: Mapping[str, Any]) -> Path:
    """Download the corpus to ``folder`` and note where in it its files are; returns that folder."""
    recipe = recipe_named(name)
    # Locked, so that two commands don't download into the same files. After an error, no empty folder is left.
    with unmade_after_errors(folder, {LOCK}), locked(folder / LOCK):
        inner = download(recipe, folder, options)
        write_json(folder / CORPUS, {"recipe": name, "corpus": os.path.relpath(inner.resolve(), folder.resolve())})
    return inner


def prepare_corpus(dataset: DatasetConfig, audio: AudioConfig) -> dict[str, Path]:
    """Return the manifest of cuts of each part, made if there is none with these options.

    Raises DataError if the corpus is missing, or the recipe can't read it.
    """
    try:
        recipe = recipe_named(dataset.name)
    except UserError as error:
        raise UserError(f"datasets, name: {error}") from error
    output = output_folder(dataset, audio)
    # Through JSON and back, so that it compares equal to the file's content (tuples become lists).
    identity: dict[str, Any] = {"recipe": recipe.name, "options": json.loads(json.dumps(dataset.options))}
    artifact = Artifact(output, CUTS_FILE, "manifests", keys={"recipe": str, "options": dict, "parts": dict})

    def is_done() -> bool:
        if not artifact.path.exists():
            return False
        artifact.require_same(identity, "give another output_dir, or delete the folder")
        # Earlier versions didn't mark labels without times when preparing: prepare again.
        return bool(artifact.read().get(NO_TIMES))

    with artifact.making(is_done, keeps_empty=False) as needed:
        if needed:
            corpus = Path(dataset.corpus_dir or Path(audio.corpus_dir) / dataset.name).expanduser()
            parts = _make(recipe, corpus, output, identity["options"], audio.num_jobs)
            artifact.finish({**identity, "parts": parts, NO_TIMES: True}, with_sizes=False)
        return {part: output / path for part, path in artifact.read()["parts"].items()}


def _make(recipe: LhotseRecipe, corpus: Path, output: Path, options: dict[str, Any], num_jobs: int) -> dict[str, str]:
    """Let the recipe write its manifests, or use existing ones; write cuts of them.

    ``corpus`` is the folder of the audio, ``output`` that of the manifests. ``options`` are the recipe's, and it may
    take ``num_jobs`` processes. Returns each part's file of cuts, relative to ``output``.
    """
    # The corpus itself wins over manifests that the folder may have already.
    if corpus.is_dir():
        log.info("preparing %s from %s", recipe.name, corpus)
        manifests = dict(_parts(prepare(recipe, inner_folder(corpus), output, options, num_jobs)))
        readings = {
            part: joined(recordings, ((one, f"{recipe.name}, {part}: supervision {one.id}") for one in supervisions))
            for part, (recordings, supervisions) in manifests.items()
        }
    else:
        readings = _found(output)
        if readings:
            log.info("using the manifests in %s", output)
    if not readings:
        raise DataError(
            f"recipe {recipe.name}: no corpus in {corpus}, and no manifests in {output}: vaak data get "
            f"{recipe.name} downloads it; or set corpus_dir"
        )
    (output / "cuts").mkdir(exist_ok=True)
    parts: dict[str, str] = {}
    for part, cuts in readings.items():
        parts[part] = f"cuts/{part}.jsonl"
        dropped = _write(output / parts[part], cuts)
        if dropped:
            log.warning(
                "%s, %s: dropped %s", recipe.name, part, "; ".join(f"{n:,}: {why}" for why, n in dropped.items())
            )
    return parts


class SplitCuts(Protocol):
    """Cuts by split, as an ``AudioCorpus`` has them."""

    @property
    def splits(self) -> Sequence[str]: ...

    def cuts(self, split: str) -> Iterator[Cut]: ...


def write_splits(corpus: SplitCuts, output: Path) -> dict[str, Path]:
    """Write the cuts of each split of a corpus, with their alignments; the files, by split."""
    (output / "cuts").mkdir(parents=True, exist_ok=True)
    paths = {split: output / "cuts" / f"{split}.jsonl" for split in corpus.splits}
    for split, path in paths.items():
        _write(path, (ReadRecording(cut.id, cut) for cut in corpus.cuts(split)))
    return paths


def inner_folder(corpus: Path) -> Path:
    """Return the folder for the prepare function: the one recorded by `vaak data get`, or the corpus' own."""
    try:
        inner = corpus / str(read_json(corpus / CORPUS)["corpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return corpus
    # A recorded path must not lead out of the corpus: the file may have been edited.
    return inner if inner.resolve().is_relative_to(corpus.resolve()) else corpus


def _parts(result: Any, name: str = "") -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Recordings and supervisions of each part; recipes nest them by language, microphone and split."""
    if not isinstance(result, Mapping):
        return
    if "recordings" in result:
        yield name or "all", (result["recordings"], result.get("supervisions") or ())
        return
    for key, value in result.items():
        yield from _parts(value, f"{name}-{key}" if name else str(key).replace(os.sep, "-"))


def _found(output: Path) -> dict[str, Iterator[ReadRecording]]:
    """Return the parts of manifests that the user's own ``lhotse prepare`` left in a folder."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(output.glob("*recordings_*.jsonl*")):
        # Named as ``lhotse prepare`` names them: PREFIX_recordings_PART.jsonl.gz.
        if match := MANIFEST_NAME.fullmatch(path.name):
            found.setdefault(match["prefix"] or "", {})[match["part"]] = path
    if len(found) > 1:
        raise DataError(
            f"{output} has manifests of several kinds ({', '.join(found)}); name those to use: type: cuts, "
            "train: [recordings, supervisions]"
        )
    readings: dict[str, Iterator[ReadRecording]] = {}
    for part, recordings in next(iter(found.values()), {}).items():
        supervisions = recordings.with_name(recordings.name.replace("recordings_", "supervisions_"))
        paths = [recordings, supervisions] if supervisions.exists() else [recordings]
        dataset = DatasetConfig(name=recordings.name, type="cuts")
        readings[part] = ManifestReader(dataset, {"train": paths}).read("train")
    return readings


def _write(path: Path, readings: Iterable[ReadRecording]) -> dict[str, int]:
    """Write the cuts; returns the number of recordings without, by reason."""
    dropped: dict[str, int] = {}
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as lines:
        for _, cut, remarks, problem in readings:
            if problem is not None:
                raise problem
            if cut is None:
                dropped[remarks[0]] = dropped.get(remarks[0], 0) + 1
                continue
            # Recipes label an utterance from start to end when they only know who speaks: mark it, so that pauses are
            # found later.
            if is_labelled_throughout(cut):
                [label] = cut.supervisions
                label.custom = {**(label.custom or {}), NO_TIMES: True}
            for source in cut.recording.sources:
                if source.type != EMBEDDED_TYPE:
                    # Those have absolute paths.
                    source.source = os.path.abspath(source.source)
            lines.write(json.dumps(cut.to_dict(), ensure_ascii=False) + "\n")
    return dropped


class RecipeReader(CorpusReader):
    """The cuts of a recipe's parts (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        """Prepare the corpus unless it is prepared. Raises DataError for parts that it doesn't have."""
        super().__init__(dataset)
        # A part without cuts is dropped: it can't be a split.
        parts = {part: path for part, path in prepare_corpus(dataset, audio).items() if path.stat().st_size}
        chosen = _chosen(dataset, list(parts))
        self._reader = ManifestReader(dataset, {split: [parts[part] for part in own] for split, own in chosen.items()})
        self.given, self.files = self._reader.given, self._reader.files
        some = f"name some of the parts of {dataset.name}: {', '.join(parts)}"
        self.lacks_train = f"datasets, {dataset.name}: train: {some}"

    def read(self, split: str) -> Iterator[ReadRecording]:
        return self._reader.read(split)

    def named_files(self) -> Iterator[tuple[str, Path]]:
        return self._reader.named_files()


def _chosen(dataset: DatasetConfig, parts: list[str]) -> dict[str, list[str]]:
    """Return the parts of each split: those it names, or those with matching names."""
    named: dict[str, tuple[str, ...]] = {split: getattr(dataset, split) for split in SPLITS}
    for split, names in named.items():
        require_known(names, parts, f"datasets, {dataset.name}, {split}: unknown part")
    given = [name for names in named.values() for name in names]
    if given:
        if len(set(given)) < len(given):
            raise DataError(f"datasets, {dataset.name}: a part is in two splits; name each once")
        return {split: list(names) for split, names in named.items() if names}
    if len(parts) == 1:
        return {"train": parts}
    # By usual prefixes: train-clean-100 and train-other-500 together are train.
    called = {split: [part for part in parts if part.lower().startswith(FILE_PREFIXES[split])] for split in SPLITS}
    chosen = {split: own for split, own in called.items() if own}
    if not chosen:
        raise DataError(f"datasets, {dataset.name}: name the parts of train, valid and test: {', '.join(parts)}")
    return chosen


WITHOUT_SUPERVISIONS = "recordings without supervisions"
WITHOUT_RECORDING = "recordings that only supervisions name"
LABELLED_THROUGHOUT = (
    "utterances with a text and a label of their full length, taken as speech from start to end; if the label only "
    f'names the speaker, add "{NO_TIMES}": true to its custom fields'
)


class Manifests(NamedTuple):
    """The files of a split, by what their lines are."""

    cuts: list[Path]
    recordings: list[Path]
    supervisions: list[Path]


class ManifestReader(CorpusReader):
    """Cuts of Lhotse's manifests (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig, entries: dict[str, list[Path]] | None = None) -> None:
        """Check the first line of each file. Raises DataError if it is not a manifest."""
        super().__init__(dataset)
        self._manifests = {
            split: sorted_by_kind(paths, f"datasets, {dataset.name}, {split}")
            for split, paths in (list_entries(dataset) if entries is None else entries).items()
        }
        self.given = tuple(self._manifests)
        self.files = [path for manifests in self._manifests.values() for paths in manifests for path in paths]

    def read(self, split: str) -> Iterator[ReadRecording]:
        for reading in track(self._read(self._manifests[split]), f"recordings of {split}"):
            cut, remarks = reading.cut, reading.remarks
            yield reading if cut is None else reading._replace(remarks=(*remarks, *remarks_on(cut)))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for manifests in self._manifests.values():
            for path in (*manifests.cuts, *manifests.recordings):
                for _, entry, _ in manifest_lines(path):
                    for name in _audio_in(entry):
                        yield name, _find_file(Path(name), (path.parent, *self.roots))

    def _read(self, manifests: Manifests) -> Iterator[ReadRecording]:
        for path in manifests.cuts:
            for where, entry, problem in manifest_lines(path):
                if problem is not None:
                    yield ReadRecording(where, None, problem=problem)
                else:
                    yield attempted(str(entry.get("id", where)), partial(self._cut, entry, path.parent, where))
        if manifests.recordings:
            problems: list[ReadRecording] = []
            unread: dict[str, LeftOutLabels] = {}
            recordings = (one for one, _ in self._objects(manifests.recordings, problems))
            yield from joined(recordings, self._objects(manifests.supervisions, problems, unread), unread)
            yield from problems

    def _objects(
        self, paths: Iterable[Path], problems: list[ReadRecording], unread: dict[str, LeftOutLabels] | None = None
    ) -> Iterator[tuple[Any, str]]:
        """Yield the recordings of manifests or, with ``unread``, supervisions, each with its file and line.

        Lines that can't be read go to ``problems``; labels whose times can't be read to ``unread``, by recording.
        """
        for path in paths:
            for where, entry, problem in manifest_lines(path):
                try:
                    if problem is not None:
                        raise problem
                    if unread is None:
                        entry = self._resolve_files(entry, path.parent, where)
                    # Before Lhotse builds the object, whose constructor would fail for the whole line.
                    elif _is_unread(entry, where, unread):
                        continue
                    one = lhotse_object(entry, where)
                except DataError as error:
                    problems.append(ReadRecording(str(entry.get("id", where)), None, problem=error))
                    continue
                yield one, where

    def _cut(self, entry: dict[str, Any], folder: Path, where: str) -> ReadRecording:
        has_audio = any(is_read for _, is_read in recordings_in(entry))
        unread = [found for part in _parts_of_cut(entry) for found in _take_unread_labels(part, where)]
        cut = lhotse_object(self._resolve_files(entry, folder, where), where)
        if not has_audio:
            raise DataError(f"{where}: cut {cut.id} has no recording; give a manifest of cuts with recordings")
        # If all labels were unreadable, the cut would look like silence: that is an error.
        remarks = drop_bad_labels(cut, where)
        if unread and not cut.supervisions:
            raise DataError(f"{unread[0][0]}: {unread[0][1]} (no label of cut {cut.id} can be used)")
        remarks = [*name_left_out(unread), *remarks]
        return ReadRecording(getattr(cut, "recording_id", None) or cut.id, cut, tuple(remarks))

    def _resolve_files(self, entry: dict[str, Any], folder: Path, where: str) -> dict[str, Any]:
        """Return the line with absolute paths of audio.

        Raises DataError for what reading it could execute, and for files that are missing or not where they may be.
        """
        require_harmless(entry, where)
        for recording, is_read in recordings_in(entry):
            for source in recording["sources"]:
                part = parse_part(source["source"]) if source["type"] == EMBEDDED_TYPE else None
                path = _find_file(Path(source["source"]) if part is None else part.path, (folder, *self.roots))
                # Only with audio_root are files limited to folders: a plain manifest names audio anywhere, as Lhotse
                # writes it.
                if self.roots:
                    require_inside(path, (folder, *self.roots), where)
                if is_read and not path.is_file():
                    raise DataError(f"{where}: the audio of recording {recording.get('id')} is missing: {path}")
                source["source"] = str(path.absolute() if part is None else part._replace(path=path.absolute()))
        return entry


def _parts_of_cut(entry: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Return the cut of a line, or those of its tracks, as they have supervisions."""
    tracks = entry.get("tracks")
    parts = [one.get("cut") for one in tracks if isinstance(one, dict)] if isinstance(tracks, list) else [entry]
    return (one for one in parts if isinstance(one, dict))


def _take_unread_labels(part: dict[str, Any], where: str) -> LeftOutLabels:
    """Take the supervisions whose times can't be read from a cut's part; where each is, and why it can't be used."""
    labels = part.get("supervisions")
    if not isinstance(labels, list):
        return []
    # In the raw line: Lhotse would refuse the whole cut because of one bad label.
    kept, lost = [], LeftOutLabels()
    for number, one in enumerate(labels, 1):
        place = f"{where}, supervision {one.get('id', number) if isinstance(one, dict) else number}"
        if why := _explain_bad_times(one):
            lost.append((place, why))
        else:
            kept.append(one)
            lost += _take_unread_words(one, place)
    part["supervisions"] = kept
    return lost


def _is_unread(label: dict[str, Any], where: str, unread: dict[str, LeftOutLabels]) -> bool:
    """Whether a supervision's times can't be read: then it goes to ``unread``, by recording, as words without times."""
    lost = unread.setdefault(str(label.get("recording_id")), [])
    lost += _take_unread_words(label, where)
    if why := _explain_bad_times(label):
        lost.append((where, why))
    return bool(why)


def _take_unread_words(label: dict[str, Any], where: str) -> LeftOutLabels:
    """Take the items of an alignment whose times can't be read from a supervision."""
    found, lost = label.get("alignment"), LeftOutLabels()
    tiers: dict[str, Any] = found if isinstance(found, dict) else {}
    for tier, items in tiers.items():
        if isinstance(items, list):
            tiers[tier] = [one for one in items if _is_timed(one)]
            shown = [json.dumps(one, ensure_ascii=False) for one in items if not _is_timed(one)]
            lost += [(where, f"{one} of its alignment is not of the form [symbol, start, duration]") for one in shown]
    return lost


def _is_timed(item: Any) -> bool:
    return isinstance(item, list) and len(item) > 2 and all(seconds_in(one) is not None for one in item[1:3])


def _explain_bad_times(label: Any) -> str:
    """Return why the times of a supervision can't be read; empty if they can."""
    if not isinstance(label, dict):
        return f"a supervision is an object, not a {type(label).__name__}"
    unread = (name for name in ("start", "duration") if seconds_in(label.get(name)) is None)
    return next((f"the {name} is {label.get(name)!r}, which is not a finite number" for name in unread), "")


def remarks_on(cut: Cut) -> tuple[str, ...]:
    """Return a remark on a cut whose label may be one without times, and doesn't say so."""
    unmarked = is_labelled_throughout(cut) and not lacks_times(cut)
    return (LABELLED_THROUGHOUT,) if unmarked and cut.supervisions[0].text else ()


def sorted_by_kind(paths: Iterable[Path], option: str) -> Manifests:
    """Return the files, and those of folders, by their contents; features and other manifests are ignored.

    Raises DataError if a file is not a manifest, or there are neither cuts nor recordings.
    """
    found = Manifests([], [], [])
    for path in paths:
        for file in sorted([*path.glob("*.jsonl"), *path.glob("*.jsonl.gz")]) if path.is_dir() else [path]:
            kind = _detect_kind(file)
            if kind is not None:
                found[("cuts", "recordings", "supervisions").index(kind)].append(file)
            elif not path.is_dir():
                raise DataError(
                    f"{file}: this is not a Lhotse manifest of cuts, recordings or supervisions in JSON lines, which "
                    "type: cuts reads"
                )
    if not found.cuts and not found.recordings:
        raise DataError(f"{option}: give a manifest of cuts, or those of recordings and supervisions together")
    return found


def _detect_kind(path: Path) -> str | None:
    problem: DataError | None = None
    # The first readable line decides; bad lines before it are reported when the file is read.
    for line in manifest_lines(path):
        if line.problem is None:
            keys = line.entry.keys()
            break
        problem = problem or line.problem
    else:
        raise problem or DataError(f"{path}: this manifest is empty")
    if "sources" in keys:
        return "recordings"
    # Only cuts have a type in JSON, and a mixed cut has tracks instead of a duration.
    if "type" in keys and ("duration" in keys or "tracks" in keys):
        return "cuts"
    return "supervisions" if {"recording_id", "start", "duration"} <= keys and "num_features" not in keys else None


def joined(
    recordings: Iterable[Recording],
    supervisions: Iterable[tuple[SupervisionSegment, str]],
    unread: Mapping[str, LeftOutLabels] | None = None,
) -> Iterator[ReadRecording]:
    """Yield a cut of each recording with its supervisions, which are kept in memory: they may be in any order.

    Each supervision has its file and line, or another place. Those that couldn't be read are in ``unread``, by
    recording, once all were read.
    """
    # All supervisions first: the generator also fills ``unread``, which is complete only at its end.
    waiting: dict[str, list[tuple[SupervisionSegment, str]]] = {}
    for one, place in supervisions:
        waiting.setdefault(one.recording_id, []).append((one, place))
    for recording in recordings:
        own, lost = waiting.pop(recording.id, None), (unread or {}).get(recording.id, ())
        if own is None and lost:
            place, why = lost[0]
            problem = DataError(f"{place}: {why} (no label of recording {recording.id} can be used)")
            yield ReadRecording(recording.id, None, problem=problem)
            continue
        if own is None:
            yield ReadRecording(recording.id, None, (WITHOUT_SUPERVISIONS,))
            continue
        cut = recording.to_cut()
        cut.supervisions = [one for one, _ in own]
        remarks = drop_bad_labels(cut, recording.id, {id(one): place for one, place in own})
        yield ReadRecording(recording.id, cut, (*name_left_out(lost), *remarks))
    for name in waiting:
        yield ReadRecording(name, None, (WITHOUT_RECORDING,))


def _find_file(path: Path, folders: Iterable[Path]) -> Path:
    """Return the path of a file that a manifest names: there, or in one of the folders."""
    if path.is_absolute() or path.exists():
        return path
    return next((folder / path for folder in folders if (folder / path).exists()), path)


def _audio_in(entry: dict[str, Any]) -> Iterator[str]:
    """Yield the files that a line names; none for a broken line."""
    with contextlib.suppress(KeyError, TypeError, DataError):
        for recording, is_read in recordings_in(entry):
            for source in recording["sources"] if is_read else ():
                yield str(parse_part(source["source"]).path if source["type"] == EMBEDDED_TYPE else source["source"])
