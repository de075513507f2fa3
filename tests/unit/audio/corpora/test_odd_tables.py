"""Sixty odd tables of recordings, of labels and of pairs: each row is read as written or is named; nothing crashes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.core.errors import DataError, UserError
from vaak.tasks.classification.config import LabelledCorpusConfig
from vaak.tasks.seq2seq.config import ParallelCorpusConfig
from vaak.text.corpora.labelled import LabelledCorpus
from vaak.text.corpora.parallel import ParallelCorpus

TEXTS = ["so it is", "वह घर गया", "no more", "don't go", "café au lait", "one two", "he said so", "the end"]
HEADER = ["audio", "text", "label"]


class Odd(NamedTuple):
    """A table that isn't as it should be: how many rows are read, and how many named; None: the file is refused."""

    content: bytes
    read: int | None
    named: int = 0


def rows(texts: list[str] = TEXTS) -> list[list[str]]:
    return [HEADER, *([f"{number}.wav", text, f"class{number % 2}"] for number, text in enumerate(texts))]


def joined(table: list[list[str]], delimiter: str, end: str = "\n") -> str:
    return "".join(delimiter.join(row) + end for row in table)


def with_line(number: int, line: str, delimiter: str) -> bytes:
    """The table with a line changed; line 0 is the header."""
    lines = joined(rows(), delimiter).split("\n")
    lines[number] = line
    return "\n".join(lines).encode()


ODD: dict[str, Callable[[str], Odd]] = {
    "utf-8 with a mark": lambda d: Odd(joined(rows(), d).encode("utf-8-sig"), 8),
    "utf-16": lambda d: Odd(joined(rows(), d).encode("utf-16"), 8),
    "utf-16 without a mark": lambda d: Odd(joined(rows(), d, "\r\n").encode("utf-16-le"), 8),
    "utf-32": lambda d: Odd(joined(rows(), d).encode("utf-32"), None),
    "latin-1": lambda d: Odd(joined(rows(), d).replace(TEXTS[1], "ok").encode("latin-1"), 7, 1),
    "ends of Windows": lambda d: Odd(joined(rows(), d, "\r\n").encode(), 8),
    "ends of old Macs": lambda d: Odd(joined(rows(), d, "\r").encode(), None),
    "no last end": lambda d: Odd(joined(rows(), d).rstrip("\n").encode(), 8),
    "blank lines": lambda d: Odd(joined(rows(), d, "\n\n").encode(), 8),
    "empty": lambda d: Odd(b"", None),
    "only a header": lambda d: Odd(joined(rows()[:1], d).encode(), None),
    "a short row": lambda d: Odd(with_line(3, "2.wav", d), 7, 1),
    "a long row": lambda d: Odd(with_line(3, d.join(["2.wav", "no", "more", "class0"]), d), 7, 1),
    "a row of another delimiter": lambda d: Odd(with_line(3, "2.wav/no more/class0", d), 7, 1),
    "cut in a row": lambda d: Odd(joined(rows(), d).encode()[:-9], 7, 1),
    "cut in a letter": lambda d: Odd(
        joined([*rows(), ["0.wav", "x", "y"]], d).encode()[:-5] + "य".encode()[:2] + b"\n", 8, 1
    ),
    "empty cells at the end": lambda d: Odd(with_line(3, d.join(["2.wav", "no more", "class0", "", ""]), d), 8),
    "a quote that opens": lambda d: Odd(with_line(3, d.join(["2.wav", '"no more', "class0"]), d), 8),
    "a quote that closes": lambda d: Odd(with_line(3, d.join(["2.wav", 'no more"', "class0"]), d), 8),
    "a quote that opens and one that closes": lambda d: Odd(
        joined([*rows()[:3], ["2.wav", '"no more', "class0"], rows()[4], ["4.wav", 'lait"', "class0"], *rows()[6:]], d)
        .encode(),
        8,
    ),
    "bytes of zero": lambda d: Odd(with_line(3, d.join(["2.wav", "no\0more", "class0"]), d), 8),
    "separators of Unicode": lambda d: Odd(with_line(3, d.join(["2.wav", "no\u2028mo\x85re\x0c", "class0"]), d), 8),
}  # fmt: skip


def read_audio(folder: Path, path: Path) -> tuple[int, int]:
    dataset = DatasetConfig(name="data", type="json", train=(str(path),), train_fraction=1.0, valid_fraction=0.0)
    corpus, named = AudioCorpus(dataset, AudioConfig()), list[DataError]()
    corpus.on_bad = lambda error, _: named.append(error)
    corpus.require_text()
    cuts = list(corpus.cuts("train"))
    assert all(f"{path}:" in str(error) for error in named), named
    texts = {cut.id: cut.supervisions[0].text for cut in cuts}
    assert all(text == TEXTS[int(name)] for name, text in texts.items() if name not in ("2", "1", "4"))
    return len(cuts), len(named)


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_table_of_recordings_is_read_or_named(vaak, tmp_path: Path, odd: str, delimiter: str):
    for number in range(len(TEXTS)):
        write_audio(tmp_path / f"{number}.wav", 0.1)
    path = tmp_path / ("a.tsv" if delimiter == "\t" else "a.csv")
    table = ODD[odd](delimiter)
    path.write_bytes(table.content)
    if table.read is None:
        with pytest.raises(UserError, match=r"a\.(t|c)sv|is empty"):
            read_audio(tmp_path, path)
    else:
        assert read_audio(tmp_path, path) == (table.read, table.named)
    code, out, errors = vaak("data", "check", tmp_path, "--json")
    assert code in (0, 2)
    assert "Traceback" not in errors
    if table.read is not None:
        [found] = json.loads(out)["corpora"]
        about = found["splits"]["train"]
        assert (about["recordings"] - len(about["broken"]), len(about["broken"])) == (table.read, table.named)


@pytest.mark.parametrize("delimiter", [",", "\t", ";"])
@pytest.mark.parametrize("odd", ODD)
def test_an_odd_table_of_texts_is_read_or_named(tmp_path: Path, odd: str, delimiter: str):
    path = tmp_path / ("a.tsv" if delimiter == "\t" else "a.csv")
    table = ODD[odd](delimiter)
    path.write_bytes(table.content)
    labelled = LabelledCorpusConfig(test=(str(path),))
    pairs = ParallelCorpusConfig(type="tsv", test=(str(path),), source_column="text", target_column="label")
    corpora: tuple[Any, ...] = LabelledCorpus(labelled), ParallelCorpus(pairs)
    for corpus in corpora:
        if table.read is None or table.named:
            with pytest.raises(UserError, match=r"a\.(t|c)sv"):
                list(corpus.read("test"))
        else:
            assert len(list(corpus.read("test"))) == table.read
