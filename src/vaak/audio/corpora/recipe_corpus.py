"""A corpus by the name of its Lhotse recipe: its cuts are made once, from the corpus on disk.

CORPUS_DIR/         the corpus, as `vaak data get` or the user put it there
  corpus.json       the folder in it that the recipe's prepare function takes, if `vaak data get` downloaded it
OUTPUT_DIR/
  *_recordings_PART.jsonl.gz, *_supervisions_PART.jsonl.gz    what the recipe writes
  cuts/PART.jsonl   recordings and supervisions as cuts; a label as long as its recording, which is what recipes write
                    where a corpus has no times, is marked as being without (vaak.audio.waveforms.reading)
  cuts.json         recipe, options and parts, and that the labels are marked; written last: it means "complete"

Parts are those of the recipe. A split that names none gets the parts with matching names: train*, then dev* and valid*,
then test* and eval*; a corpus of one part is train.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.lhotse_manifests import ManifestReader, joined
from vaak.audio.corpora.recipes import LhotseRecipe, download, prepare, recipe_named
from vaak.audio.waveforms.reading import NO_TIMES, is_labelled_throughout
from vaak.audio.waveforms.recordings import ReadRecording
from vaak.core.errors import DataError, UserError
from vaak.core.split_ranges import SPLITS
from vaak.core.storage.files import read_json, sync_file, unmade_after_errors, write_json
from vaak.core.storage.lock import locked

if TYPE_CHECKING:
    from vaak.audio.corpora.corpus import AudioCorpus

log = logging.getLogger("vaak")

DONE = "cuts.json"
CORPUS = "corpus.json"
LOCK = ".lock"
PREFIXES = {"train": ("train", "tr_", "tr-"), "valid": ("dev", "valid", "val"), "test": ("test", "eval")}
MANIFEST = re.compile(r"(?:(?P<prefix>.+)_)?recordings_(?P<part>.+)\.jsonl(\.gz)?")


def corpus_folder(dataset: DatasetConfig, audio: AudioConfig) -> Path:
    """The folder of the corpus."""
    return Path(dataset.corpus_dir or Path(audio.corpus_dir) / dataset.name).expanduser()


def output_folder(dataset: DatasetConfig, audio: AudioConfig) -> Path:
    """The folder of its manifests."""
    return Path(dataset.output_dir or Path(audio.output_dir or "manifests") / dataset.name).expanduser()


def get_corpus(name: str, folder: Path, options: Mapping[str, Any]) -> Path:
    """Download the corpus to ``folder`` and note where in it its files are; returns that folder."""
    recipe = recipe_named(name)
    with unmade_after_errors(folder, {LOCK}), locked(folder / LOCK):
        inner = download(recipe, folder, options)
        write_json(folder / CORPUS, {"recipe": name, "corpus": os.path.relpath(inner.resolve(), folder.resolve())})
    return inner


def prepare_corpus(dataset: DatasetConfig, audio: AudioConfig) -> dict[str, Path]:
    """The manifest of cuts of each part, made if there is none with these options.

    Raises DataError if the corpus is missing, or the recipe can't read it.
    """
    try:
        recipe = recipe_named(dataset.name)
    except UserError as error:
        raise UserError(f"datasets, name: {error}") from error
    output = output_folder(dataset, audio)
    options = json.loads(json.dumps(dataset.options))
    try:
        with unmade_after_errors(output, {LOCK}), locked(output / LOCK):
            parts = _made(recipe, options, output)
            if parts is None:
                parts = _make(recipe, corpus_folder(dataset, audio), output, options, audio.num_jobs)
    except OSError as error:
        raise UserError(f"manifests can't be written to {output}: {error.strerror or error}") from error
    return {part: output / path for part, path in parts.items()}


def _made(recipe: LhotseRecipe, options: dict[str, Any], output: Path) -> dict[str, str] | None:
    """The parts that were made with these options; None if there are none."""
    try:
        about = read_json(output / DONE)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise DataError(f"{output / DONE}: this is damaged; delete the folder and run again") from error
    if about["recipe"] != recipe.name or about["options"] != options:
        raise DataError(
            f"{output} has {about['recipe']} with options {about['options']}, but {recipe.name} with {options} was "
            "requested: give another output_dir, or delete the folder"
        )
    parts: dict[str, str] = about["parts"]
    return parts if about.get(NO_TIMES) else None  # an earlier version left the marks to whoever reads the cuts


def _make(recipe: LhotseRecipe, corpus: Path, output: Path, options: dict[str, Any], num_jobs: int) -> dict[str, str]:
    """Let the recipe write its manifests, or use existing ones; write cuts of them.

    ``corpus`` is the folder of the audio, ``output`` that of the manifests. ``options`` are the recipe's, and it may
    take ``num_jobs`` processes. Returns each part's file of cuts, relative to ``output``.
    """
    if corpus.is_dir():
        log.info("preparing %s from %s", recipe.name, corpus)
        manifests = dict(_parts(prepare(recipe, inner_folder(corpus), output, options, num_jobs)))
        readings = {part: joined(*sets) for part, sets in manifests.items()}
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
    write_json(output / DONE, {"recipe": recipe.name, "options": options, "parts": parts, NO_TIMES: True})
    return parts


def write_splits(corpus: AudioCorpus, output: Path) -> dict[str, Path]:
    """Write the cuts of each split of a corpus, with their alignments; the files, by split."""
    (output / "cuts").mkdir(parents=True, exist_ok=True)
    paths = {split: output / "cuts" / f"{split}.jsonl" for split in corpus.splits}
    for split, path in paths.items():
        _write(path, (ReadRecording(cut.id, cut) for cut in corpus.cuts(split)))
    return paths


def inner_folder(corpus: Path) -> Path:
    """The folder for the prepare function: the one recorded by `vaak data get`, or the corpus' own."""
    try:
        inner = corpus / str(read_json(corpus / CORPUS)["corpus"])
    except (OSError, ValueError, KeyError, TypeError):
        return corpus
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
    """The parts of manifests that the user's own ``lhotse prepare`` left in a folder."""
    found: dict[str, dict[str, Path]] = {}
    for path in sorted(output.glob("*recordings_*.jsonl*")):
        if match := MANIFEST.fullmatch(path.name):
            found.setdefault(match["prefix"] or "", {})[match["part"]] = path
    if len(found) > 1:
        raise DataError(
            f"{output} has manifests of several kinds ({', '.join(found)}); name those to use: type: cuts, "
            "train: [recordings, supervisions]"
        )
    return {part: _of_files(path) for parts in found.values() for part, path in parts.items()}


def _of_files(recordings: Path) -> Iterator[ReadRecording]:
    supervisions = recordings.with_name(recordings.name.replace("recordings_", "supervisions_"))
    paths = [recordings, supervisions] if supervisions.exists() else [recordings]
    return ManifestReader(DatasetConfig(name=recordings.name, type="cuts"), {"train": paths}).read("train")


def _write(path: Path, readings: Iterable[ReadRecording]) -> dict[str, int]:
    """Write the cuts; returns the number of recordings without, by reason."""
    dropped: dict[str, int] = {}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as lines:
            for _, cut, remarks, problem in readings:
                if problem is not None:
                    raise problem
                if cut is None:
                    dropped[remarks[0]] = dropped.get(remarks[0], 0) + 1
                    continue
                if is_labelled_throughout(cut):
                    [label] = cut.supervisions
                    label.custom = {**(label.custom or {}), NO_TIMES: True}
                for source in cut.recording.sources:
                    source.source = os.path.abspath(source.source)
                lines.write(json.dumps(cut.to_dict(), ensure_ascii=False) + "\n")
        sync_file(temporary)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return dropped


class RecipeReader:
    """The cuts of a recipe's parts (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig, audio: AudioConfig) -> None:
        """Prepare the corpus unless it is prepared. Raises DataError for parts that it doesn't have."""
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
    """The parts of each split: those it names, or those with matching names."""
    named: dict[str, tuple[str, ...]] = {split: getattr(dataset, split) for split in SPLITS}
    for split, names in named.items():
        for name in names:
            if name not in parts:
                raise DataError(
                    f"datasets, {dataset.name}, {split}: unknown part {name}; expected one of {', '.join(parts)}"
                )
    given = [name for names in named.values() for name in names]
    if given:
        if len(set(given)) < len(given):
            raise DataError(f"datasets, {dataset.name}: a part is in two splits; name each once")
        return {split: list(names) for split, names in named.items() if names}
    if len(parts) == 1:
        return {"train": parts}
    called = {split: [part for part in parts if part.lower().startswith(PREFIXES[split])] for split in SPLITS}
    chosen = {split: own for split, own in called.items() if own}
    if not chosen:
        raise DataError(f"datasets, {dataset.name}: name the parts of train, valid and test: {', '.join(parts)}")
    return chosen
