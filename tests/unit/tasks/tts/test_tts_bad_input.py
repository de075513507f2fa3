"""Bad input to speech synthesis: training says it in one line, and the check of data finds it.

For bad input to vaak speak, see test_cli_speak.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile

import tiny_voice
from quick_cases import mostly_slow
from tiny_voice import RATE, utterance
from vaak.config.yaml.text import yaml_text

SECOND = 1
"""The utterance that is bad."""


def write(folder: Path) -> Path:
    """A corpus with the layout of LJ Speech, ``folder/corpus``, and ``folder/voice.yml``; the corpus."""
    corpus = tiny_voice.write_ljspeech(folder / "corpus", number=8)
    dataset = {"name": "ann", "type": "ljspeech", "corpus_dir": "corpus", "valid": ["valid.csv"]}
    lines = (corpus / "metadata.csv").read_text().splitlines(keepends=True)
    (corpus / "valid.csv").write_text("".join(lines[6:]))
    (corpus / "metadata.csv").write_text("".join(lines[:6]))
    options = {**tiny_voice.options(""), "datasets": [{**dataset, "train": ["metadata.csv"]}]}
    options["training"] |= {"max_steps": 1, "batch_size": 2}
    (folder / "voice.yml").write_text(yaml_text(options))
    return corpus


def change_text(corpus: Path, text: str) -> None:
    change_line(corpus, f"a{SECOND}|{text}|{text}")


def change_line(corpus: Path, line: str) -> None:
    path = corpus / "metadata.csv"
    lines = path.read_text().splitlines()
    lines[SECOND] = line
    path.write_text("\n".join(lines) + "\n")


def wav(corpus: Path) -> Path:
    return corpus / "wavs" / f"a{SECOND}.wav"


def textgrid(corpus: Path) -> Path:
    return corpus / "TextGrid" / f"a{SECOND}.TextGrid"


def realign(corpus: Path, last: int, beyond: float = 0.0) -> None:
    """The first phones of the utterance, up to ``last``, which ends ``beyond`` seconds later."""
    rng = np.random.default_rng(0)
    found = [utterance(rng, int(rng.integers(2, 7)))[2] for _ in range(SECOND + 1)]
    *others, (label, start, end) = found[SECOND][:last]
    tiny_voice.write_phones(textgrid(corpus), [*others, (label, start, end + beyond)])


def at_a_low_rate(corpus: Path) -> None:
    samples, _ = soundfile.read(wav(corpus))
    soundfile.write(wav(corpus), samples[::2], RATE // 2)


def with_nan(corpus: Path) -> None:
    samples, _ = soundfile.read(wav(corpus))
    samples[1000] = np.nan
    soundfile.write(wav(corpus), samples, RATE, subtype="FLOAT")


BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing to speak": (lambda corpus: change_text(corpus, "?!"), r"a1 .*'\?!': there is nothing to speak in it"),
    "2,000 words": (lambda corpus: change_text(corpus, "he saw " * 1000), r"a1 .*symbols in .*not that of the audio"),
    "other letters": (lambda corpus: change_text(corpus, "он me."), r"a1 .*Cyrillic.*can't be read in English"),
    "no text": (lambda corpus: change_line(corpus, "a1||"), r"metadata\.csv:2: the text is empty"),
    "half a line": (lambda corpus: change_line(corpus, "a1"), r"metadata\.csv:2: expected id\|text"),
    "duplicate": (lambda corpus: change_line(corpus, "a0|He.|He."), "two cuts with the name a0"),
    "no wav": (lambda corpus: wav(corpus).unlink(), r"metadata\.csv:2: .*a1\.wav: .*No such file"),
    "empty wav": (lambda corpus: wav(corpus).write_bytes(b""), r"a1\.wav: the file is empty"),
    "silent wav": (lambda corpus: silence(corpus), "a1 .*silent"),
    "silent wav without alignment": (lambda corpus: (silence(corpus), textgrid(corpus).unlink()), "a1 .*silent"),
    "low rate": (at_a_low_rate, r"a1 .*it has 4,000 Hz.*f_max is 4,000 Hz; leave it out, or lower f_max"),
    "NaN": (with_nan, r"a1\.wav: the sample at 0\.125 s is nan, not a number"),
    "no alignment": (lambda corpus: textgrid(corpus).unlink(), r"a1 .*it has no alignment"),
    "alignment of a part": (lambda corpus: realign(corpus, 3), r"a1 .*its alignment ends at .*, but speech at"),
    "alignment beyond": (lambda corpus: realign(corpus, -1, 3.0), r"a1 .*its alignment goes to .*but it lasts"),
    "damaged alignment": (lambda corpus: textgrid(corpus).write_text("oo"), r"a1\.TextGrid"),
}


def silence(corpus: Path) -> None:
    samples, _ = soundfile.read(wav(corpus))
    soundfile.write(wav(corpus), np.zeros_like(samples), RATE)


@pytest.fixture
def corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return write(tmp_path)


@pytest.mark.parametrize("name", mostly_slow(BAD, *list(BAD)[::3]))
def test_training_stops_with_one_line_and_the_check_finds_it(vaak, corpus: Path, name: str):
    change, message = BAD[name]
    change(corpus)
    code, _, errors = vaak("train", "voice.yml")
    said = [line for line in errors.splitlines() if not line.startswith(("warning: ", "files 0, "))]
    assert (code, len(said)) == (2, 1), errors
    assert re.search(message, said[0]), said
    code, out, _ = vaak("data", "check", "voice.yml")
    [found] = [line for line in out.splitlines() if re.search(message, line)]
    assert code == 2
    assert found.startswith("  problem"), found


def test_the_check_finds_all_at_once_and_training_can_skip_them(vaak, corpus: Path):
    wav(corpus).unlink()
    (corpus / "wavs" / "a7.wav").unlink()
    (corpus / "TextGrid" / "a2.TextGrid").unlink()
    samples, _ = soundfile.read(corpus / "wavs" / "a3.wav")
    soundfile.write(corpus / "wavs" / "a3.wav", np.clip(samples * 20, -1, 1), RATE)
    samples, _ = soundfile.read(corpus / "wavs" / "a4.wav")
    samples[1000] = np.nan
    soundfile.write(corpus / "wavs" / "a4.wav", samples, RATE, subtype="FLOAT")
    code, out, _ = vaak("data", "check", "voice.yml")
    assert code == 2
    lines = out.splitlines()
    assert lines[-1] == "4 problems, 1 warning", out
    for name in ("a1.wav", "a2.wav", "a3.wav", "a4.wav", "a7.wav"):
        assert sum(name in line for line in lines if line.startswith("  ")) == 1, (name, out)
    code, _, errors = vaak("train", "voice.yml", "data.on_bad_example=skip")
    assert code == 0, errors


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("data.front_end.language=hindi", "language"),
        ("data.front_end={phonemizer: lexicon, lexicon: gone.dict}", "gone.dict"),
        ("datasets.0.corpus_dir=gone", "no such file or folder: gone/metadata.csv"),
        ("datasets.0.alignments=gone", "no such folder: gone"),
    ],
)
def test_a_bad_option_is_one_line(vaak, corpus: Path, override: str, message: str):
    code, _, errors = vaak("train", "voice.yml", override)
    said = [line for line in errors.splitlines() if not line.startswith("warning: ")]
    assert (code, len(said)) == (2, 1), errors
    assert message in said[0]


def test_a_small_corpus_gets_a_validation_clip_where_it_asks_for_one(vaak, tmp_path: Path):
    """One per cent of four clips is none; the error says what to do, and that works."""
    dataset = {"name": "ann", "type": "ljspeech", "corpus_dir": str(tiny_voice.write_ljspeech(tmp_path / "ann", 4))}
    options = tiny_voice.options("")
    options["training"] |= {"max_steps": 1, "batch_size": 2}

    def train(**numbers: float) -> tuple[int, str, str]:
        (tmp_path / "voice.yml").write_text(yaml_text({**options, "datasets": [{**dataset, **numbers}]}))
        code, out, err = vaak("train", tmp_path / "voice.yml", f"run_dir={tmp_path / 'run'}")
        return code, out, err

    code, _, err = train(train_fraction=0.99, valid_fraction=0.01)
    assert code == 2
    assert "valid is empty: no dataset has a usable utterance; give more, or ask a dataset for valid_examples: 1" in err
    code, out, err = train(valid_examples=1)
    assert code == 0, err
    assert "train: 3 utterances" in err
    assert "valid: 1 utterances" in err
    assert "--split test" not in out
