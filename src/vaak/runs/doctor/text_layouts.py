"""Texts that are known by the names of their files: parallel files of two languages, and a folder for each class."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vaak.core.splits import SPLITS
from vaak.core.storage.text_lines import open_utf8

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
MOST_CLASSES = 200
LONGEST_TEXT = 64 << 10
"""Bytes of a file, on average, from which on folders are chapters or authors rather than classes."""


def find_language(name: str) -> str | None:
    """Return the code of a language that a name says as a whole.

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
    """Return the files of sources and of targets, whose names differ in a language and whose lines are as many.

    English is the source, else what comes first by its code; none where the names don't say so of two languages.
    """
    together: dict[tuple[str, ...], dict[str, Path]] = {}
    for path in files:
        words = re.split(r"([\s._\-/]+)", path.relative_to(root).as_posix())
        places = [place for place, word in enumerate(words) if find_language(word)]
        if places:
            code = _CODES[words[places[-1]].casefold()]
            together.setdefault((*words[: places[-1]], "*", *words[places[-1] + 1 :]), {})[code] = path
    pairs = Counter(tuple(sorted(own)) for own in together.values() if len(own) == 2)
    if not pairs:
        return []
    first, second = pairs.most_common(1)[0][0]
    if second in ("en", "source"):
        first, second = second, first
    found = [(own[first], own[second]) for own in together.values() if own.keys() == {first, second}]
    named = all(find_language(path.suffix[1:]) for pair in found for path in pair)
    return found if named or all(_count_lines(one) == _count_lines(other) for one, other in found) else []


def _count_lines(path: Path) -> int:
    with open_utf8(path) as file:
        return sum(1 for _ in file)


def find_classes(files: Sequence[Path], root: Path) -> dict[Path, str] | None:
    """Return the folders of texts, each with its pattern, where each is a class: several short texts in several ones.

    Files that are in no such folder aren't read.
    """
    folders = Counter(path.parent for path in files if path.parent != root)
    names = {folder.name for folder in folders}
    few = 2 <= len(names) <= min(MOST_CLASSES, len(files) // 2)
    if not few or max(folders.values()) < 2 or any(map(find_language, names)):
        return None
    own = [path for path in files if path.parent in folders]
    if sum(path.stat().st_size for path in own) > LONGEST_TEXT * len(own) or len(files) - len(own) > len(own) / 10:
        return None
    return {folder: f"{glob.escape(str(folder))}/*{own[0].suffix}" for folder in sorted(folders)}


def use_of_texts(corpus: Mapping[str, Any]) -> str:
    """Return the task that texts read with these options are for.

    >>> use_of_texts({"type": "text"}), use_of_texts({"type": "tsv", "source_column": "en"})
    ('lm', 'seq2seq')
    """
    if corpus["type"] == "folders" or "label_columns" in corpus:
        return "classification"
    return "seq2seq" if "source_column" in corpus or any(key.endswith("_target") for key in corpus) else "lm"


def describe_corpus(corpus: dict[str, Any]) -> str:
    """Return which columns, files or folders are what, by the options that change it; nothing for plain texts.

    >>> describe_corpus({"type": "files", "text_column": "Text", "label_columns": ["Label"], "train": ["a.csv"]})
    "text_column is 'Text', label_columns is 'Label'"
    """
    if targets := [key for key in corpus if key.endswith("_target")]:
        source, target = (Path(corpus[key][0]).name for key in (targets[0].removesuffix("_target"), targets[0]))
        return f"sources are the lines of {source}, targets those of {target} ({targets[0]})"
    if corpus["type"] == "folders":
        names = sorted({Path(one).parent.name for one in next(corpus[split] for split in SPLITS if split in corpus)})
        return f"the names of {len(names)} folders are the labels: {', '.join(names[:10])}"
    named = {key: value for key, value in corpus.items() if key.endswith(("_column", "_columns"))}
    if named:
        named = {"text_column": "text", **named} if "label_columns" in named else named
    shown = {key: value[0] if isinstance(value, list) else value for key, value in named.items()}
    return ", ".join(f"{key} is {value!r}" for key, value in shown.items())
