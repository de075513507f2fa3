"""Texts in a folder: plain, with labels, or pairs of a source and a target; and the options that read them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.corpora.layouts import split_named
from vaak.core.errors import UserError, optional_import
from vaak.core.splits import SPLITS
from vaak.core.storage.tables import Table, is_table
from vaak.text.corpora.readers import find_files, json_entries, read_documents, read_records

ENDINGS = {".txt": "text", ".text": "text", ".md": "text", ".jsonl": "json", ".json": "json", ".csv": "csv",
           ".tsv": "csv", ".parquet": "parquet"}  # fmt: skip
TEXT_COLUMNS = ("text", "content", "sentence", "document", "body")
LABEL_COLUMNS = ("label", "labels", "category", "class", "intent", "sentiment")
PAIRS = (("source", "target"), ("src", "tgt"), ("english", "hindi"))
"""Usual names of the columns of a translator's data; two codes of languages (en, hi) are such names, too."""


class ReadText(NamedTuple):
    """A text as it was read: with its label, or with its translation."""

    text: str
    label: str | None = None
    target: str | None = None


def corpus_of_texts(root: Path) -> dict[str, Any] | None:
    """Return the options of a corpus of texts: its files of the most frequent ending, by split; None without any."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and path.suffix.lower() in ENDINGS]
    files = [path for path in files if not path.name.startswith((".", "README", "LICENSE", "LICENCE"))]
    if not files:
        return None
    sizes = Counter(dict.fromkeys(ENDINGS, 0))
    for path in files:
        sizes[path.suffix.lower()] += path.stat().st_size
    there = {path.suffix.lower() for path in files}
    ending = max((one for one in sizes if one in there), key=lambda one: sizes[one])  # of empty files, too
    files = [path for path in files if path.suffix.lower() == ending]
    corpus = _options_for(ending, columns_of(files[0]))
    if corpus is None:
        return None
    named: dict[str, list[Path]] = {}
    for path in files:
        names = (path.name.partition(".")[0], *reversed(path.relative_to(root).parts[:-1]))
        named.setdefault(next(filter(None, map(split_named, names)), "train"), []).append(path)
    for split in SPLITS:
        if own := named.get(split):
            everything = split == "train" and len(named) == 1 and len(own) > 3
            corpus[split] = [str(root / "**" / f"*{ending}")] if everything else [str(path) for path in own]
    return corpus


def _options_for(ending: str, columns: Sequence[str]) -> dict[str, Any] | None:
    """Return the options that read a table with these columns; None where none of them has a text."""
    kind = ENDINGS[ending]
    if kind == "text":
        return {"type": "text"}
    pairs = [pair for pair in PAIRS if set(pair) <= set(columns)]
    codes = [name for name in columns if re.fullmatch("[a-z]{2,3}", name)]
    pairs += [(codes[0], codes[1])] if len(codes) == len(columns) == 2 else []
    if pairs and ending in (".json", ".jsonl", ".tsv"):
        return {
            "type": "tsv" if ending == ".tsv" else "json",
            "source_column": pairs[0][0],
            "target_column": pairs[0][1],
        }
    text = next((name for name in TEXT_COLUMNS if name in columns), None)
    if text is None:
        return None
    named = {} if text == "text" else {"text_column": text}
    label = next((name for name in LABEL_COLUMNS if name in columns), None)
    if label is not None:
        return {"type": "files", **named, "label_columns": [label]}
    return {"type": kind, **named}


def columns_of(path: Path) -> list[str]:
    """Return the columns of a table, or the keys of its first entry; none where it can't be read as one."""
    try:
        if path.suffix in (".json", ".jsonl"):
            first = next(json_entries(path, AnyBytes()), None)
            return list(first.value) if first is not None and isinstance(first.value, dict) else []
        if is_table(path):
            return Table(path).names
        if path.suffix == ".parquet":
            with optional_import("Parquet requires pyarrow", "hf"):
                import pyarrow.parquet
            return list(pyarrow.parquet.read_schema(path).names)
    except (UserError, OSError, ValueError):
        pass
    return []


class AnyBytes:
    """Reads a column whatever bytes are in it."""

    on_invalid_utf8 = "replace"
    type, text_column, document = "text", "text", "line"

    def __init__(self, corpus: dict[str, Any] | None = None) -> None:
        if corpus:
            self.type, self.text_column = corpus["type"], corpus.get("text_column", "text")


def texts_of(corpus: dict[str, Any], split: str) -> Iterator[ReadText]:
    """Yield the texts of a split, blank ones too."""
    files = find_files(corpus[split], split)
    text = corpus.get("text_column", "text")
    if "source_column" in corpus:
        source, target = corpus["source_column"], corpus["target_column"]
        for row in read_records(files, {source: "source_column", target: "target_column"}, AnyBytes()):
            yield ReadText(_written(row.values[source]), target=_written(row.values[target]))
    elif "label_columns" in corpus:
        (label,) = corpus["label_columns"]
        for row in read_records(files, {text: "text_column", label: "label_columns"}, AnyBytes()):
            yield ReadText(_written(row.values[text]), label=_written(row.values[label]))
    else:
        for document in read_documents(files, AnyBytes(corpus)):
            yield ReadText(document.text)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
