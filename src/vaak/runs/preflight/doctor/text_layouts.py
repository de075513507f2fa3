"""Texts that are known by the names of their files, or by their lines: parallel files, a folder for each class, …"""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, islice
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError
from vaak.core.names import list_names
from vaak.core.splits import SPLITS
from vaak.core.storage.archives import is_archive, read_state
from vaak.core.storage.text_lines import open_utf8
from vaak.runs.preflight.doctor.columns import plain_name, rank_name
from vaak.text.corpora.labelled import FASTTEXT_PREFIX

LANGUAGES: dict[str, str] = {
    "en": "eng english अंग्रेज़ी अंग्रेजी", "hi": "hin hindi हिन्दी हिंदी", "de": "deu ger german deutsch",
    "fr": "fra fre french français", "es": "spa spanish español", "pt": "por portuguese", "it": "ita italian",
    "nl": "nld dutch", "ru": "rus russian", "uk": "ukr ukrainian", "pl": "pol polish", "cs": "ces czech",
    "ro": "ron romanian", "sv": "swe swedish", "fi": "fin finnish", "da": "dan danish", "el": "ell greek",
    "hu": "hun hungarian", "tr": "tur turkish", "ar": "ara arabic", "fa": "fas persian farsi", "he": "heb hebrew",
    "ur": "urd urdu", "bn": "ben bengali bangla", "mr": "mar marathi", "ne": "nep nepali", "gu": "guj gujarati",
    "pa": "pan punjabi", "ta": "tam tamil", "te": "tel telugu", "kn": "kan kannada", "ml": "mal malayalam",
    "or": "ori odia", "as": "asm assamese", "sa": "san sanskrit", "si": "sin sinhala", "zh": "zho chinese",
    "ja": "jpn japanese", "ko": "kor korean", "th": "tha thai", "vi": "vie vietnamese", "id": "ind indonesian",
    "sw": "swa swahili", "source": "src", "target": "tgt trg",
}  # fmt: skip
"""Codes of languages and their other names; ``source`` and ``target`` are used like them."""
_CODES = {name: code for code, names in LANGUAGES.items() for name in (code, *names.split())}
PAIRS = (("source", "target"), ("src", "tgt"), ("src", "trg"), ("question", "answer"),
         ("instruction", "output"), ("instruction", "response"), ("prompt", "response"), ("input", "output"),
         ("prompt", "completion"), ("document", "summary"), ("article", "summary"), ("article", "highlights"),
         ("text", "summary"), ("sentence", "translation"), ("text", "translation"))  # fmt: skip
"""Usual names of the columns of pairs; two languages are such names, too."""
MOST_CLASSES = 200
CLASSES = frozenset({
    "pos", "neg", "neu", "positive", "negative", "neutral", "ham", "spam", "true", "false", "real", "fake", "hate",
    "offensive", "toxic", "normal", "good", "bad", "subjective", "objective", "human", "machine",
})  # fmt: skip
"""Names of files of which each is a class, where all have such names."""
UNLABELLED = frozenset({"unsup", "unlabeled", "unlabelled"})
_SCRIPT = re.compile(r"\b([a-z]{3})_[A-Z][a-z]{3}\b")
"""A language with its script, as FLORES has them: eng_Latn."""
SIDE_NAMES = frozenset(plain_name(name) for pair in PAIRS for name in pair)
FIRST_LINES = 200
MOST_FEW = 5
LONGEST_TEXT = 64 << 10
"""Bytes of a file, on average, from which on folders are chapters or authors rather than classes."""


def find_language(name: str) -> str | None:
    """Return the code of the language that a whole name means.

    >>> find_language("Hindi"), find_language("en"), find_language("hello")
    ('hi', 'en', None)
    """
    return _CODES.get(name.strip().casefold())


def language_in(name: str) -> str | None:
    """Return the code of the one language that is among the words of a column's name, such as ``text_en``."""
    words = [word for word in re.split(r"[\s._\-]+", name) if word]
    found = [code for word in words if (code := find_language(word))]
    return found[0] if len(found) == 1 and (len(words) == 1 or found[0] != "id") else None


def find_parallel(files: Sequence[Path], root: Path) -> list[tuple[Path, Path]]:
    """Return pairs of source and target files: their names differ in a language, their numbers of lines are equal.

    English is the source, else the first language by code; among several languages, the pair of most files. None if
    the names don't show two languages.
    """
    together: dict[tuple[str, ...], dict[str, Path]] = {}
    for path in files:
        # FLORES names files by language and script (eng_Latn); only the language is looked up.
        plain = _SCRIPT.sub(r"\1", path.relative_to(root).as_posix())
        words = re.split(r"([\s._\-/]+)", plain)
        places = [place for place, word in enumerate(words) if find_language(word)]
        if places:
            # The last word that is a language tells the side; folders may be called after both (en-de/train.de).
            code = _CODES[words[places[-1]].casefold()]
            together.setdefault((*words[: places[-1]], "*", *words[places[-1] + 1 :]), {})[code] = path
    pairs = Counter(pair for own in together.values() for pair in combinations(sorted(own, key=_rank), 2))
    for first, second in sorted(pairs, key=lambda pair: (-pairs[pair], _rank(pair[0]), _rank(pair[1]))):
        found = [(own[first], own[second]) for own in together.values() if own.keys() >= {first, second}]
        # An ending that is a language (.en, .de) is enough. Elsewhere in a name it may be chance, so lines must be as
        # many.
        named = all(find_language(path.suffix[1:]) for pair in found for path in pair)
        if named or all(_count_lines(one) == _count_lines(other) for one, other in found):
            return found
    return []


def _rank(code: str) -> tuple[bool, str]:
    """By which languages are sources first."""
    return code not in ("en", "source"), code


def _count_lines(path: Path) -> int:
    with open_utf8(path) as file:
        return sum(1 for _ in file)


def find_classes(files: Sequence[Path], root: Path) -> dict[Path, str] | None:
    """Return the folders of texts with their patterns, where each is a class: several folders of several short texts.

    Files that are in no such folder aren't read, nor those of ``UNLABELLED`` ones.
    """
    files = [path for path in files if path.parent.name.casefold() not in UNLABELLED]
    folders = Counter(path.parent for path in files if path.parent != root and not is_archive(path.parent))
    names = {folder.name for folder in folders}
    few = 2 <= len(names) <= min(MOST_CLASSES, len(files) // 2)
    if not few or max(folders.values()) < 2 or any(map(find_language, names)):
        return None
    own = [path for path in files if path.parent in folders]
    size = sum(read_state(path)[0] for path in own)
    # Long files are documents rather than examples, and many files elsewhere mean that these folders aren't the
    # classes.
    if size > LONGEST_TEXT * len(own) or len(files) - len(own) > len(own) / 10:
        return None
    return {folder: f"{glob.escape(str(folder))}/*{own[0].suffix}" for folder in sorted(folders)}


def are_files_of_classes(files: Sequence[Path]) -> bool:
    """Return whether each file is a class by its name, such as ``pos.txt`` and ``neg.txt``."""
    names = {path.name.partition(".")[0].casefold() for path in files}
    return len(names) > 1 and names <= CLASSES


def is_fasttext(path: Path) -> bool:
    """Return whether lines have their labels as fastText has them: ``__label__good it was``."""
    lines = _first_lines(path)
    return bool(lines) and sum(FASTTEXT_PREFIX in line for line in lines) > len(lines) / 2


def is_token_list(path: Path) -> bool:
    """Return whether each line is a token and its tags, with a blank line after each sentence, as in CoNLL's tasks."""
    lines = [line for line in _first_lines(path) if not line.startswith(("#", "-DOCSTART-"))]
    rows = [line.split("\t") if "\t" in line else line.split(" ") for line in lines if line.strip()]
    has_blank = any(not line.strip() for line in lines[:-1])
    if not has_blank or len(rows) < MOST_FEW or len({len(row) for row in rows}) != 1 or len(rows[0]) < 2:
        return False
    tags = {row[-1] for row in rows}
    return len(tags) <= len(rows) / 2 and all(cell and not re.search(r"\s", cell) for row in rows for cell in row)


def _first_lines(path: Path) -> list[str]:
    """Return the first lines of a file as text; invalid UTF-8 is replaced."""
    try:
        with open_utf8(path) as file:
            return [line.decode(errors="replace").rstrip("\r\n") for line in islice(file, FIRST_LINES)]
    except (DataError, OSError):
        return []


def recognize_texts(corpus: Mapping[str, Any]) -> str:
    """Return the kind of texts that these options read: ``texts``, ``labelled texts`` or ``pairs``.

    >>> recognize_texts({"type": "text"}), recognize_texts({"type": "tsv", "source_column": "en"})
    ('texts', 'pairs')
    """
    if corpus["type"] in ("folders", "lines", "fasttext") or "label_columns" in corpus:
        return "labelled texts"
    return "pairs" if "source_column" in corpus or any(key.endswith("_target") for key in corpus) else "texts"


def describe_corpus(corpus: dict[str, Any], columns: Sequence[str] = (), left: Sequence[Path] = ()) -> str:
    """Describe how columns are read, with the options that change it, and which columns and files aren't read.

    >>> describe_corpus({"type": "files", "text_column": "Text", "label_columns": ["q"], "train": ["a.csv"]}, ["Nr"])
    "text_column is 'Text', label_columns is 'q' (by its contents); columns that aren't read: Nr"
    """
    said = [_describe_reading(corpus)]
    said += [f"columns that aren't read: {list_names(columns)}"] if columns else []
    kinds = Counter(path.suffix.lower() or "without an ending" for path in left)
    said += [f"files that aren't read: {', '.join(f'{number:,} {kind}' for kind, number in kinds.most_common(6))}" + (
        f" ({left[0].name})" if len(left) == 1 else "")] if left else []  # fmt: skip
    return "; ".join(filter(None, said))


def _describe_reading(corpus: dict[str, Any]) -> str:
    first = next(corpus[split] for split in SPLITS if split in corpus)
    if targets := [key for key in corpus if key.endswith("_target")]:
        source, target = (Path(corpus[key][0]).name for key in (targets[0].removesuffix("_target"), targets[0]))
        return f"sources are the lines of {source}, targets those of {target} ({targets[0]})"
    if corpus["type"] == "folders":
        names = sorted({Path(one).parent.name for one in first})
        return f"the names of {len(names)} folders are the labels: {', '.join(names[:10])}"
    if corpus["type"] == "lines":
        return f"a line is a text, the name of its file the label: {', '.join(Path(one).name for one in first)}"
    if corpus["type"] in ("fasttext", "chat", "preferences"):
        return f"data.corpus.type is {corpus['type']}"
    named = {key: value for key, value in corpus.items() if key.endswith(("_column", "_columns"))}
    if named:
        named = {"text_column": "text", **named} if "label_columns" in named else named
    shown = {key: value[0] if isinstance(value, list) else value for key, value in named.items()}
    return ", ".join(f"{key} is {value!r}{_by_content(key, value)}" for key, value in shown.items())


def _by_content(option: str, name: str) -> str:
    """Say that a column was found by its cells, where its name isn't usual."""
    role = {"text_column": "text", "label_columns": "label"}.get(option)
    is_usual = rank_name(name, role) is not None if role else language_in(name) or plain_name(name) in SIDE_NAMES
    return "" if is_usual else " (by its contents)"
