"""Texts in a folder: plain, with labels, or pairs of a source and a target; and the options that read them."""

from __future__ import annotations

import glob
import json
import logging
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.audio_file import is_audio
from vaak.audio.corpora.layouts import split_in_names, split_named
from vaak.config.base import DialectConfig, from_options
from vaak.core.errors import UserError, optional_import
from vaak.core.splits import SPLITS
from vaak.core.storage.archives import find_archive, list_files, locate_on_disk, open_file, read_state
from vaak.core.storage.dialects import GivenDialect
from vaak.core.storage.spreadsheets import SPREADSHEETS
from vaak.core.storage.tables import Table, is_table
from vaak.runs.preflight.doctor.columns import NAMES_BY_ROLE, find_columns, look_at, plain_name, rank_name
from vaak.runs.preflight.doctor.text_layouts import (
    PAIRS,
    are_files_of_classes,
    describe_corpus,
    find_classes,
    find_language,
    find_parallel,
    is_fasttext,
    is_token_list,
    language_in,
    recognize_texts,
)
from vaak.text.corpora.conversation_files import read_chats, read_preferences
from vaak.text.corpora.conversations import detect_form
from vaak.text.corpora.labelled import NAMED, read_named
from vaak.text.corpora.parallel import detect_script, read_rows
from vaak.text.corpora.readers import find_files, json_entries, read_documents, read_records

log = logging.getLogger("vaak")
TEXT_ENDINGS = (".txt", ".text", ".md", ".tokens")
KIND_BY_ENDING = {
    **dict.fromkeys(TEXT_ENDINGS, "text"), ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv",
    ".parquet": "parquet", **dict.fromkeys(SPREADSHEETS, "csv"),
}  # fmt: skip
CONVERSATION_READERS = {"chat": read_chats, "preferences": read_preferences}
SAMPLE_ROWS = 1000
Dialect = Mapping[str, str]
"""The dialect of tables as given by options, under the names of ``DialectConfig``."""


class ReadText(NamedTuple):
    """A text as read, with its label or its translation; ``problem`` is the reason that it can't be used."""

    text: str
    label: str | None = None
    target: str | None = None
    problem: str = ""


class Sample(NamedTuple):
    """The first rows of a table, by the names of its columns; numbers where it has no header.

    ``entries`` are those of JSON and Parquet, still nested.
    """

    names: list[str]
    rows: list[dict[str, Any]]
    has_header: bool = True
    entries: Sequence[Any] = ()


class FoundTexts(NamedTuple):
    """The options of a corpus of texts; ``note`` says what is taken for what, and what isn't read."""

    corpus: dict[str, Any]
    note: str
    unread_audio: int = 0


def find_texts(place: Path, dialect: Dialect | None = None) -> FoundTexts | None:
    """Return the texts that a file is, or a folder's or an archive's files of the most frequent ending, by split.

    None without any. The ``dialect`` applies to its tables.
    """
    root = place if place.is_dir() else place.parent
    files = [path for path in list_files(place) if not path.name.startswith((".", "README", "LICENSE", "LICENCE"))]
    columns: Sequence[str] = ()
    if pairs := find_parallel([path for path in files if _is_plain(path)], root):
        corpus: dict[str, Any] | None = _parallel_corpus(pairs, root)
    else:
        corpus, columns = _find_by_ending(files, root, dialect)
    if corpus is None:
        return None
    named = [key for key in corpus if key.removesuffix("_target") in SPLITS]
    used = {path for key in named for path in find_files(corpus[key], key)}
    left = [path for path in files if path not in used]
    return FoundTexts(corpus, describe_corpus(corpus, columns, left), sum(map(is_audio, left)))


def _find_by_ending(
    files: Sequence[Path], root: Path, dialect: Dialect | None
) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the options that read the files of the most frequent ending, and the columns that they leave out."""
    # All endings at 0, so that among files of equal size (such as empty ones) the order of ENDINGS decides.
    sizes = Counter(dict.fromkeys(KIND_BY_ENDING, 0))
    for path in files:
        if path.suffix.lower() in KIND_BY_ENDING:
            sizes[path.suffix.lower()] += read_state(path)[0]
    there = {path.suffix.lower() for path in files}
    # Empty files count, too.
    ending = max((one for one in sizes if one in there), key=lambda one: sizes[one], default=None)
    if ending is None:
        return None, []
    files = [path for path in files if path.suffix.lower() == ending]
    if is_token_list(files[0]):
        return None, []
    if KIND_BY_ENDING[ending] == "text":
        return _make_lines_corpus(files, root, ending), []
    sample = sample_rows(files[0], dialect)
    corpus = _options_for(ending, sample)
    if corpus is None:
        return None, []
    corpus |= {"dialect": {**dialect}} if dialect and is_table(files[0]) else {}
    named = [corpus[key] for key in ("text_column", "source_column", "target_column") if key in corpus]
    used = {*(named or ["text"]), *corpus.get("label_columns", ())}
    whole = corpus["type"] in CONVERSATION_READERS
    return corpus | _name_files(files, root, ending), [] if whole else [one for one in sample.names if one not in used]


def _make_lines_corpus(files: Sequence[Path], root: Path, ending: str) -> dict[str, Any]:
    """Return the options that read plain texts, whose labels are in their lines, folders or files, if anywhere."""
    if is_fasttext(files[0]):
        return {"type": "fasttext", **_name_files(files, root, ending)}
    if classes := find_classes(files, root):
        named = _by_split(list(classes), root)
        return {"type": "folders", **{split: [classes[one] for one in own] for split, own in named.items()}}
    kind = "lines" if are_files_of_classes(files) else "text"
    return {"type": kind, **_name_files(files, root, ending)}


def _name_files(files: Sequence[Path], root: Path, ending: str) -> dict[str, list[str]]:
    """Return the files of each split; of many, the pattern that matches the same ones."""
    named = _by_split(files, root)
    archives = list(dict.fromkeys(locate_on_disk(path) for path in files if find_archive(path)))
    patterns = [f"{glob.escape(str(one))}/**/*{ending}" for one in archives or [root]]
    if len(named) == 1 and len(files) > 3 and set(find_files(patterns, "data")) == set(files):
        return {next(iter(named)): patterns}
    name = {path: glob.escape(str(path)) if archives else str(path) for path in files}
    return {split: [name[path] for path in own] for split, own in named.items()}


def _is_plain(path: Path) -> bool:
    """Return whether a file's lines are texts by its ending, which may be a language, or a split (FLORES)."""
    ending = path.suffix.lower()
    return ending in TEXT_ENDINGS or find_language(ending[1:]) is not None or split_named(ending) is not None


def _by_split(paths: Sequence[Path], root: Path) -> dict[str, list[Path]]:
    """Return files or folders by the splits that they, or folders that they are in, are named by."""
    named: dict[str, list[Path]] = {}
    for path in paths:
        named.setdefault(split_in_names(path.relative_to(root)) or "train", []).append(path)
    found = {split: named[split] for split in SPLITS if split in named}
    if "train" not in found and found:
        first = next(iter(found))
        log.warning("%s: no file is called train, so those of %s are trained on", root, first)
        found = {"train": found.pop(first), **found}
    return found


def _parallel_corpus(pairs: list[tuple[Path, Path]], root: Path) -> dict[str, Any]:
    targets = dict(pairs)
    named = _by_split(list(targets), root)
    corpus: dict[str, Any] = {"type": "text"}
    for split, own in named.items():
        corpus[split] = [str(path) for path in own]
        corpus[f"{split}_target"] = [str(targets[path]) for path in own]
    return corpus


def _options_for(ending: str, sample: Sample) -> dict[str, Any] | None:
    """Return the options that read a table with these columns; None if no column has texts."""
    kind = KIND_BY_ENDING[ending]
    if kind in ("json", "parquet") and (form := detect_form(sample.entries)):
        return {"type": form}
    found = find_columns(sample.names, sample.rows, ("text", "label"))
    columns = found.columns
    # A label that a column's name tells makes it classification; one guessed by values yields to a pair of texts.
    labelled = "label" in columns and "label" not in found.by_content
    pair = None if labelled else _named_pair(sample.names) or _find_script_pair(sample)
    if pair is not None:
        return {"type": "json" if kind == "json" else "tsv", "source_column": pair[0], "target_column": pair[1]}
    if "text" not in columns:
        return None
    named = {} if columns["text"] == "text" else {"text_column": columns["text"]}
    if "label" in columns:
        return {"type": "files", **named, "label_columns": [columns["label"]]}
    return {"type": kind, **named}


def _named_pair(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the columns of two languages, or with usual names of sources and targets."""
    plain = {plain_name(name): name for name in names}
    for first, second in PAIRS:
        if first in plain and second in plain:
            return plain[first], plain[second]
    spoken = {name: code for name in names if (code := language_in(name))}
    if len(spoken) > 2 and "id" in spoken.values():
        # A column of numbers rather than Indonesian.
        spoken = {name: code for name, code in spoken.items() if code != "id"}
    if len(spoken) < 2 or len(set(spoken.values())) != len(spoken):
        return None
    source = next((name for name, code in spoken.items() if code == "en"), next(iter(spoken)))
    return source, next(name for name in spoken if name != source)


def _find_script_pair(sample: Sample) -> tuple[str, str] | None:
    """Return the two columns of texts in different scripts, or, without a header, the first two of texts."""
    cells = {name: [str(row.get(name) or "") for row in sample.rows] for name in sample.names}
    looks = {name: look_at(own) for name, own in cells.items()}
    texts = [
        name
        for name, look in looks.items()
        if look.may_be("text") and look.values > len(sample.rows) / 2 and (look.words >= 2 or look.length >= 6)
    ]
    # Sentence pairs from Tatoeba come with a column of attributions, which looks like text.
    texts = [name for name in texts if sum("CC-BY" in cell for cell in cells[name]) < len(sample.rows) / 2]
    if len(texts) < 2 or (sample.has_header and len(texts) > 2):
        return None
    scripts = [detect_script(cells[name]) for name in texts]
    return (texts[0], texts[1]) if scripts[0] != scripts[1] or not sample.has_header else None


def sample_rows(path: Path, dialect: Dialect | None = None) -> Sample:
    """Return the first rows of a table, or of JSON; none if it can't be read as one."""
    try:
        if path.suffix.lower() in (".json", ".jsonl"):
            entries = (entry.value for entry in islice(json_entries(path, AnyBytes()), SAMPLE_ROWS))
            return _sample_of_entries(list(entries))
        if is_table(path):
            return _sample_of_table(path, parse_dialect_options(dialect))
        if path.suffix.lower() == ".parquet":
            with optional_import("Parquet requires pyarrow", "hf"):
                import pyarrow.parquet
            with open_file(path) as content, pyarrow.parquet.ParquetFile(content) as file:
                batch = next(file.iter_batches(batch_size=SAMPLE_ROWS), None)
            return _sample_of_entries(batch.to_pylist() if batch is not None else [])
    except (UserError, OSError, ValueError):
        pass
    return Sample([], [])


def _sample_of_entries(entries: list[Any]) -> Sample:
    rows = [_flat(entry) for entry in entries if isinstance(entry, dict)]
    return Sample(list(dict.fromkeys(name for row in rows for name in row)), rows, entries=entries)


def _flat(entry: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Return an object with nested keys after dots; lists of objects, such as messages, aren't cells."""
    flat: dict[str, Any] = {}
    for key, value in entry.items():
        if isinstance(value, list) and any(isinstance(one, dict) for one in value):
            value = None
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


def parse_dialect_options(dialect: Dialect | None) -> GivenDialect:
    """Return the dialect of tables that options give. Raises UserError for invalid ones."""
    return from_options(DialectConfig, dialect or {}, "dialect").given()


def _sample_of_table(path: Path, given: GivenDialect) -> Sample:
    table = Table(path, given=given)
    rows = [row.cells for row in islice(table.rows(), SAMPLE_ROWS) if row.problem is None]
    if _is_header(table.names, rows):
        return Sample(table.names, [dict(zip(table.names, cells, strict=False)) for cells in rows])
    names = [str(number) for number in range(len(table.names))]
    return Sample(names, [dict(zip(names, cells, strict=False)) for cells in [table.names, *rows]], has_header=False)


def _is_header(first: list[str], rows: list[list[str]]) -> bool:
    """Return whether the first row names columns: it has a usual name, or is unlike the other rows.

    It is one where a cell is a number, or again among the few values of its column, or as long as a sentence.
    """
    if any(rank_name(name, role) is not None for name in first for role in NAMES_BY_ROLE) or _named_pair(first):
        return True
    if any(re.fullmatch(r"[+-]?\d+([.,]\d+)?", cell) or len(cell.split()) > 3 for cell in first):
        return False
    return not any(cell and cell in (row[place] for row in rows) for place, cell in enumerate(first))


class AnyBytes:
    """Reads a column whatever bytes are in it."""

    on_invalid_utf8 = "replace"
    type, text_column, document = "text", "text", "line"

    def __init__(self, corpus: dict[str, Any] | None = None) -> None:
        corpus = corpus or {}
        self.type, self.text_column = corpus.get("type", "text"), corpus.get("text_column", "text")
        self.dialect = from_options(DialectConfig, corpus.get("dialect") or {}, "dialect")


class AsTheyAre(AnyBytes):
    """Reads text as training does: bytes that aren't text are an error."""

    on_invalid_utf8 = "fail"


class _Sides(AsTheyAre):
    """The columns of pairs."""

    def __init__(self, corpus: dict[str, Any]) -> None:
        super().__init__(corpus)
        self.source_column, self.target_column = corpus.get("source_column", ""), corpus.get("target_column", "")


def read_texts(corpus: dict[str, Any], split: str) -> Iterator[ReadText]:
    """Yield the texts of a split, blank ones too."""
    files = find_files(corpus[split], split)
    text = corpus.get("text_column", "text")
    if recognize_texts(corpus) == "pairs":
        yield from _pairs(corpus, split, files)
    elif corpus["type"] in CONVERSATION_READERS:
        read = partial(CONVERSATION_READERS[corpus["type"]], options=AsTheyAre(), skip_bad=True)
        yield from (ReadText(one.text, problem=one.problem) for path in files for one in read(path))
    elif corpus["type"] in NAMED:
        labelled = (one for path in files for one in read_named(path, corpus["type"], AsTheyAre()))
        yield from (ReadText(one.text, label="|".join(one.labels[0])) for one in labelled)
    elif "label_columns" in corpus:
        (label,) = corpus["label_columns"]
        for row in read_records(files, {text: "text_column", label: "label_columns"}, AsTheyAre(corpus)):
            yield ReadText(_written(row.values[text]), label=_written(row.values[label]))
    else:
        for document in read_documents(files, AsTheyAre(corpus)):
            yield ReadText(document.text)


def _pairs(corpus: dict[str, Any], split: str, files: list[Path]) -> Iterator[ReadText]:
    others = [find_files(corpus[f"{split}_target"], f"{split}_target")] if f"{split}_target" in corpus else []
    for row in read_rows(list(zip(files, *others, strict=True)), corpus["type"], _Sides(corpus)):
        yield ReadText((row.sources or ("",))[0], target=(row.targets or ("",))[0])


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
