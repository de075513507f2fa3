"""Three readers of tables had three rules for quotes: ``"mi su`` and ``"do ba`` made eight rows seven, in silence."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.config.load import load
from vaak.scoring.word_errors import read_transcripts
from vaak.tasks.classification.config import LabelledCorpusConfig
from vaak.tasks.lm.config import CorpusConfig
from vaak.tasks.seq2seq.config import ParallelCorpusConfig
from vaak.text.corpora.cleaning import CleaningOptions, parse_source
from vaak.text.corpora.corpus import CorpusBuilder
from vaak.text.corpora.labelled import LabelledCorpus
from vaak.text.corpora.parallel import ParallelCorpus

TEXTS = ["so it is", '"mi su', "no more", '"do ba', "go", "he said", 'the "other" one', "two"]
Reader = Callable[[Path], list[str]]


def write_table(path: Path, columns: tuple[str, ...], delimiter: str = "\t") -> Path:
    rows = [columns] if columns[0] else []
    rows += [(f"{number}.wav", text, "ann") for number, text in enumerate(TEXTS)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(delimiter.join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def audio_texts(**options: Any) -> list[str]:
    corpus = AudioCorpus(DatasetConfig(name="data", train_fraction=1.0, valid_fraction=0.0, **options), AudioConfig())
    return [cut.supervisions[0].text for cut in corpus.cuts("train")]


def wavs(folder: Path) -> None:
    for number in range(len(TEXTS)):
        write_audio(folder / f"{number}.wav", 0.1)


def commonvoice(folder: Path) -> list[str]:
    write_table(folder / "train.tsv", ("path", "sentence", "client_id"))
    wavs(folder / "clips")
    return audio_texts(type="commonvoice", corpus_dir=str(folder))


def manifest(folder: Path) -> list[str]:
    wavs(folder)
    return audio_texts(type="json", train=(str(write_table(folder / "a.tsv", ("audio", "text", "speaker"))),))


def csv_manifest(folder: Path) -> list[str]:
    wavs(folder)
    return audio_texts(type="json", train=(str(write_table(folder / "a.csv", ("audio", "text", "speaker"), ",")),))


def split_folders(folder: Path) -> list[str]:
    wavs(folder / "Train")
    write_table(folder / "Train" / "a.tsv", ("audio", "text", "speaker"))
    return audio_texts(type="splits", corpus_dir=str(folder))


def ljspeech(folder: Path) -> list[str]:
    wavs(folder / "wavs")
    (folder / "metadata.csv").write_text("".join(f"{number}|{text}\n" for number, text in enumerate(TEXTS)))
    return audio_texts(type="ljspeech", corpus_dir=str(folder))


def fleurs(folder: Path) -> list[str]:
    wavs(folder / "audio" / "train")
    rows = [("1", f"{number}.wav", text, text, "", "1", "F") for number, text in enumerate(TEXTS)]
    (folder / "train.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return audio_texts(type="fleurs", corpus_dir=str(folder))


def labelled(folder: Path) -> list[str]:
    path = write_table(folder / "a.tsv", ("name", "text", "label"))
    options = LabelledCorpusConfig(test=(str(path),))
    return [one.text for one in LabelledCorpus(options).read("test")]


def documents(folder: Path) -> list[str]:
    path = write_table(folder / "a.tsv", ("name", "text", "speaker"))
    return [one.text for one in CorpusBuilder(CorpusConfig(type="csv", test=(str(path),))).read("test")]


def cleaned(folder: Path) -> list[str]:
    path = write_table(folder / "a.tsv", ("name", "text", "speaker"))
    return list(parse_source(str(path), CleaningOptions()).read())


def pairs(folder: Path) -> list[str]:
    path = write_table(folder / "a.tsv", ("name", "en", "hi"))
    options = ParallelCorpusConfig(type="tsv", test=(str(path),), source_column="en", target_column="hi")
    return [pair.source for pair in ParallelCorpus(options).read("test")]


def pairs_without_names(folder: Path) -> list[str]:
    path = write_table(folder / "a.tsv", ("",))
    options = ParallelCorpusConfig(type="tsv", test=(str(path),), source_column="1", target_column="2")
    return [pair.source for pair in ParallelCorpus(options).read("test")]


def scored(folder: Path) -> list[str]:
    return list(read_transcripts(write_table(folder / "a.tsv", ("id", "text", "speaker"))).texts.values())


READERS: tuple[Reader, ...] = (
    *(commonvoice, manifest, csv_manifest, split_folders, ljspeech, fleurs),
    *(labelled, documents, cleaned, pairs, pairs_without_names, scored),
)


@pytest.mark.parametrize("read", READERS, ids=lambda read: read.__name__)
def test_every_reader_of_tables_has_all_rows(tmp_path: Path, read: Reader):
    assert read(tmp_path) == TEXTS


def test_a_look_at_the_folder_and_the_yaml_that_it_writes_have_all_rows(vaak, caplog, tmp_path: Path):
    wavs(tmp_path / "data")
    write_table(tmp_path / "data" / "a.tsv", ("audio", "text", "speaker"))
    code, out, errors = vaak("data", "check", tmp_path / "data", "--json", "--output", tmp_path / "begin.yml")
    assert code == 0, errors
    [corpus] = json.loads(out)["corpora"]
    assert corpus["splits"]["train"]["texts"] == len(TEXTS)
    assert "quotation marks are text: 8 rows in 9 lines" in caplog.text
    [dataset] = load([str(tmp_path / "begin.yml")]).experiment.datasets
    corpus = AudioCorpus(dataset, AudioConfig())
    assert sorted(cut.supervisions[0].text for split in corpus.splits for cut in corpus.cuts(split)) == sorted(TEXTS)
