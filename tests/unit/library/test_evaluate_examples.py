"""Examples from a program are evaluated as those of a split: pairs of a translator, recordings of a diarizer."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

import vaak
from vaak.audio.cuts.store import CutStore
from vaak.config.load import load
from vaak.runs.start import train

PAIRS = [(f"the boy number {n} goes home", f"लड़का {n} घर जाता है") for n in range(40)]
MORE = [("the boy number 3 eats", ["लड़का खाता है", "लड़का तीन खाता है"]), ("he goes  home", "वह घर जाता है")]
TRANSLATOR = """\
task: seq2seq
name: translator
model: {global_config: {d_model: 16, num_layers: 1, num_heads: 2}}
data:
  corpus: {type: json, train: [train.jsonl], test: [test.jsonl]}
  tokenizer: {type: byte_level, vocab_size: 330}
  gloss: true
training:
  max_steps: 2
  batch_size: 8
  device: cpu
  logging: {tensorboard: false, progress_bar: false}
"""


def in_lines(pairs: Iterable[tuple[str, object]]) -> str:
    return "".join(json.dumps({"en": source, "hi": target}) + "\n" for source, target in pairs)


@pytest.fixture(scope="module")
def translator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    (folder / "train.jsonl").write_text(in_lines(PAIRS))
    (folder / "test.jsonl").write_text(in_lines(MORE))
    config = TRANSLATOR
    for name in ("train.jsonl", "test.jsonl"):
        config = config.replace(f"[{name}]", f"[{folder / name}]")
    (folder / "translator.yml").write_text(config)
    train(load([folder / "translator.yml"], [f"run_dir={folder / 'run'}"]))
    return folder / "run"


def of_split(run: vaak.TrainedRun, split: str) -> dict[str, float]:
    return {name.removeprefix(f"{split}_"): value for name, value in run.evaluate(split).items()}


@pytest.mark.slow
def test_pairs_are_evaluated_as_those_of_a_split(translator):
    run = vaak.open(translator, device="cpu")
    expected = of_split(run, "test")
    assert {"loss", "bleu", "chrf"} <= expected.keys()
    assert run.evaluate(MORE) == expected
    assert run.evaluate(iter(MORE)) == expected
    assert run.evaluate(MORE[:1]) != expected
    measured = vaak.open(translator, device="cpu", metrics={"ones": lambda model, batch: torch.ones(batch.num_rows)})
    assert measured.evaluate(MORE).keys() == expected.keys() | {"ones"}


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("a text", r"example 1: a translator is evaluated on pairs \(source, target\), not on a str"),
        ((1, "एक"), r"example 1: a pair is \(source, target\) of texts, not \(int, str\)"),
        (("one", []), "example 1: its source or a target is empty or not text"),
        ((" ", "एक"), "example 1: its source or a target is empty or not text"),
        (("one " * 200, "एक"), r"example 1: the source has \d+ tokens, more than data.max_source_length \(128\)"),
    ],
)
def test_what_is_no_pair_is_told(translator, example, message):
    with pytest.raises(vaak.UserError, match=message):
        vaak.open(translator, device="cpu").evaluate([MORE[0], example])


def test_recordings_are_evaluated_as_those_of_a_split(diarizer_run, made_recordings, tmp_path):
    run = vaak.open(diarizer_run, device="cpu")
    expected = of_split(run, "test")
    assert {"loss", "der"} <= expected.keys()
    audio = sorted((made_recordings / "test").glob("*.wav"))
    assert run.evaluate(audio) == expected
    assert run.evaluate([(str(path), path.with_suffix(".rttm")) for path in audio]) == expected
    assert run.evaluate(list(CutStore(diarizer_run / "prepared" / "test" / "0"))) == expected
    assert run.evaluate(audio[:1]) != expected


def test_what_is_no_recording_is_told(diarizer_run, made_recordings, tmp_path):
    run = vaak.open(diarizer_run, device="cpu")
    first = made_recordings / "test" / "test0.wav"
    alone = tmp_path / "alone.wav"
    alone.write_bytes(first.read_bytes())
    with pytest.raises(vaak.UserError, match=r"alone\.wav: no RTTM or TextGrid of a recording alone next to it"):
        run.evaluate([alone])
    with pytest.raises(vaak.UserError, match=r"alone\.wav: no RTTM or TextGrid of a recording alone in .*test0\.rttm"):
        run.evaluate([(alone, first.with_suffix(".rttm"))])
    with pytest.raises(vaak.UserError, match=r"evaluated on cuts, on audio files .*, not on a int"):
        run.evaluate([1])
    with pytest.raises(vaak.UserError, match="two recordings are called test0"):
        run.evaluate([first, first])
