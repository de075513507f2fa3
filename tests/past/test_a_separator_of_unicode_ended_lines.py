r"""``str.splitlines`` ended lines at U+2028, U+0085 and form feeds: equal files had a word error rate of 100 %."""

from __future__ import annotations

import json
from pathlib import Path

from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.scoring.word_errors import read_transcripts
from vaak.text.augmentation import listed_synonyms
from vaak.text.corpora.readers import decoded, file_lines

INSIDE = ["so\u2028it is", "no\x85more", "go\x0chome", "one\x1ctwo", "a\rb"]


def texts_of(**options: str) -> list[str]:
    corpus = AudioCorpus(DatasetConfig(name="data", train_fraction=1.0, valid_fraction=0.0, **options), AudioConfig())
    return [cut.supervisions[0].text for cut in corpus.cuts("train")]


def test_equal_files_have_no_word_errors(vaak, tmp_path: Path):
    for name, end in (("reference.txt", "\n"), ("hypothesis.txt", "\r\n")):
        (tmp_path / name).write_bytes("".join(f"{text}{end}" for text in INSIDE).encode())
    code, out, errors = vaak("score", "wer", tmp_path / "reference.txt", tmp_path / "hypothesis.txt", "--json")
    assert code == 0, errors
    total = json.loads(out)["total"]
    assert (total["utterances"], total["wer"], total["cer"]) == (len(INSIDE), 0.0, 0.0)


def test_other_numbers_of_lines_are_an_error_with_both(vaak, tmp_path: Path):
    (tmp_path / "reference.txt").write_text("so it is\nno more\ngo\n")
    (tmp_path / "hypothesis.txt").write_text("so it is\nno more\n")
    code, out, errors = vaak("score", "wer", tmp_path / "reference.txt", tmp_path / "hypothesis.txt")
    assert (code, out) == (2, "")
    assert "reference.txt has 3 lines and" in errors
    assert "hypothesis.txt has 2: line i of both must belong together" in errors


def test_named_lines_keep_their_separators(tmp_path: Path):
    path = tmp_path / "text"
    path.write_bytes("".join(f"u{number} {text}\n" for number, text in enumerate(INSIDE)).encode())
    assert list(read_transcripts(path, named=True).texts.values()) == INSIDE


def test_texts_of_layouts_keep_their_separators(tmp_path: Path):
    lj, kaldi = tmp_path / "lj", tmp_path / "kaldi"
    for number in range(len(INSIDE)):
        write_audio(lj / "wavs" / f"{number}.wav", 0.1)
        write_audio(kaldi / f"{number}.wav", 0.1)
    (lj / "metadata.csv").write_bytes("".join(f"{number}|{text}\n" for number, text in enumerate(INSIDE)).encode())
    assert texts_of(type="ljspeech", corpus_dir=str(lj)) == INSIDE
    (kaldi / "train").mkdir()
    lines = {"text": INSIDE, "wav.scp": [f"{number}.wav" for number in range(len(INSIDE))]}
    for name, values in lines.items():
        text = "\ufeff" + "".join(f"u\u00a0{number} {value}\n" for number, value in enumerate(values))
        (kaldi / "train" / name).write_bytes(text.encode())
    assert texts_of(type="kaldi", corpus_dir=str(kaldi)) == INSIDE


def test_lists_of_words_keep_their_separators(tmp_path: Path):
    (tmp_path / "words.txt").write_bytes("big\tla\u2028rge\r\nsmall, li\x85ttle\n".encode())
    synonyms = listed_synonyms(tmp_path / "words.txt")
    assert (list(synonyms("big")), list(synonyms("small"))) == (["la\u2028rge"], ["li\x85ttle"])


def test_utf_16_is_read_and_never_as_something_else(tmp_path: Path):
    class Options:
        on_invalid_utf8 = "replace"

    path = tmp_path / "a.txt"
    path.write_bytes("so it is\nno\n".encode("utf-16"))
    found = [decoded(piece, path, Options()) for piece in file_lines(path)]
    assert [document.text.rstrip("\n") for document in found] == ["so it is", "no"]
