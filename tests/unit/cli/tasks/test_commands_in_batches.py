"""Commands that use a model: the same results in batches as one by one, for odd lengths and what can't be read."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import nn

import tiny_listener
from quick_cases import mostly_slow
from vaak.engine.precision import supported
from vaak.nn.lora import FrozenLinear, keep_frozen_weights_in

TEXTS = ("लड़की", "", "वह मेज़ पर सोती है और", "क", "लड़का घर में")


@pytest.fixture(scope="module")
def listener(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("listener")
    tiny_listener.write_listener(folder / "corpus")
    options = ("training.max_steps=20", "data.decoding.max_new_tokens=8", "training.optimizer.lr=0.01")
    return tiny_listener.train(folder / "corpus", folder / "run", *options)


def in_sizes(vaak: Any, *arguments: object) -> list[tuple[int, str]]:
    """Exit codes and outputs one by one, in batches of 3, and in those that the command chooses."""
    return [vaak(*arguments, *size)[:2] for size in (("--batch-size", 1), ("--batch-size", 3), ())]


def test_generate(vaak, tiny_run: Path):
    options = ("--samples", 5, "--max-new-tokens", 12, "--json")
    alone, together, chosen = in_sizes(vaak, "generate", tiny_run, "लड़की", *options)
    assert alone == together == chosen
    assert alone[0] == 0
    found = [json.loads(line) for line in alone[1].splitlines()]
    assert [one["seed"] for one in found] == list(range(5))
    assert len({one["text"] for one in found}) > 1
    streamed = [vaak("generate", tiny_run, "लड़की", "--max-new-tokens", 12, "--seed", seed)[1] for seed in range(5)]
    assert [one["text"] + "\n" for one in found] == streamed


def test_predict_of_a_language_model(vaak, tiny_run: Path):
    alone, together, chosen = in_sizes(vaak, "predict", tiny_run, *TEXTS)
    assert alone == together == chosen
    assert alone[0] == 0
    assert len(alone[1].splitlines()) >= len(TEXTS)
    assert vaak("generate", tiny_run, "", "--max-new-tokens", 12, "--samples", 2)[0] == 0


CLASSIFIER = """
task: classification
data: {corpus: {type: grammar, num_sentences: 300}, max_length: 16}
model: {architecture: transformer, d_model: 32, num_layers: 1, num_heads: 2}
training: {max_steps: 5, batch_size: 8, logging: {tensorboard: false}}
"""


def test_classify_and_predict_of_a_classifier(vaak, tmp_path: Path):
    (tmp_path / "tiny.yml").write_text(CLASSIFIER)
    assert vaak("train", tmp_path / "tiny.yml", f"run_dir={tmp_path / 'run'}")[0] == 0
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS), encoding="utf-8")
    for command in (("classify", tmp_path / "run", tmp_path / "texts.txt"), ("predict", tmp_path / "run", *TEXTS)):
        alone, *others = (
            [json.loads(line) for line in out.splitlines()] for _, out in in_sizes(vaak, *command, "--json")
        )
        assert len(alone) == len(TEXTS)
        for lines in others:
            for one, other in zip(alone, lines, strict=True):
                assert one["labels"] == other["labels"]
                for column, probabilities in one["probabilities"].items():
                    assert other["probabilities"][column] == pytest.approx(probabilities, rel=1e-5)


def test_results_of_one_by_one_have_the_same_bits_whatever_else_there_is(vaak, tiny_run: Path, tmp_path: Path):
    (tmp_path / "tiny.yml").write_text(CLASSIFIER)
    assert vaak("train", tmp_path / "tiny.yml", f"run_dir={tmp_path / 'run'}")[0] == 0
    others = [f"{first} {second}" for first in TEXTS for second in TEXTS] * 2
    for run in (tmp_path / "run", tiny_run):
        among = vaak("predict", run, *TEXTS, *others, "--json", "--batch-size", 1)[1].splitlines()
        for text, line in zip(TEXTS, among[: len(TEXTS)], strict=True):
            assert vaak("predict", run, text, "--json", "--batch-size", 1)[1].splitlines() == [line]


def recordings(folder: Path, rate: int, seconds: tuple[float, ...]) -> list[Path]:
    """Files of these lengths, one that is silent, one that is damaged and one that is empty, among the others."""
    folder.mkdir()
    paths, rng = [], np.random.default_rng(0)
    for number, length in enumerate(seconds):
        words = [str(word) for word in rng.choice(list(tiny_listener.WORDS), 40)]
        samples = tiny_listener.make_samples(words, "low", rng)[: round(length * tiny_listener.RATE)]
        paths.append(folder / f"{number}.wav")
        soundfile.write(paths[-1], samples, tiny_listener.RATE)
    soundfile.write(folder / "mute.wav", np.zeros(rate), rate)
    (folder / "broken.wav").write_bytes(b"RIFF no audio")
    (folder / "empty.wav").touch()
    return [paths[0], folder / "broken.wav", folder / "mute.wav", *paths[1:3], folder / "empty.wav", *paths[3:]]


def test_transcribe(vaak, listener: Path, tmp_path: Path):
    files = recordings(tmp_path / "in", 16000, (0.7, 5.3, 0.25, 2.1, 0.05))
    alone, together, chosen = in_sizes(vaak, "transcribe", listener, *files, "--json")
    found = [[json.loads(line) for line in out.splitlines()] for _, out in (alone, together, chosen)]
    assert [code for code, _ in (alone, together, chosen)] == [2, 2, 2]
    for one in (line for lines in found for line in lines):
        del one["seconds_taken"], one["real_time_factor"]
    assert found[0] == found[1] == found[2]
    assert [one["name"] for one in found[0]] == ["0", "mute", "1", "2", "3", "4"]
    assert len(found[0][2]["segments"]) > 5
    assert found[0][1]["segments"] == []
    each = [vaak("transcribe", listener, file, "--json")[1] for file in (files[0], files[3])]
    assert [json.loads(one)["text"] for one in each] == [found[0][0]["text"], found[0][2]["text"]]


@pytest.mark.slow
def test_diarize(vaak, diarizer_run: Path, tmp_path: Path):
    files = recordings(tmp_path / "in", 16000, (1.7, 9.3, 0.25, 4.1, 0.05))
    alone, together, chosen = in_sizes(vaak, "diarize", diarizer_run, *files, "--window", 2)
    assert alone == together == chosen
    assert alone[0] == 2
    names = [line.split()[1] for line in alone[1].splitlines()]
    assert "1" in names
    assert "broken" not in names


@pytest.mark.parametrize("voice", mostly_slow(("voice_run", "flow_run"), "voice_run"))
def test_speak(vaak, voice: str, request: pytest.FixtureRequest, tmp_path: Path):
    run = request.getfixturevalue(voice)
    texts = tmp_path / "texts.txt"
    texts.write_text("He saw me.\n\nShe may go. We go now, and he may see her there.\n日本\nGo.\n", encoding="utf-8")
    spoken: dict[str, dict[str, Any]] = {}
    for size in ("1", "3", ""):
        folder = tmp_path / f"in-{size}"
        how = ("--batch-size", size) if size else ()
        code, _, err = vaak("speak", run, texts, "-o", folder, *how)
        assert code == 2
        assert err.count("texts.txt:4") == 1
        spoken[size] = {path.name: soundfile.read(path)[0] for path in folder.iterdir()}
    assert sorted(spoken["1"]) == ["0001.wav", "0002.wav", "0004.wav"]
    for size in ("3", ""):
        assert spoken[size].keys() == spoken["1"].keys()
        for name, samples in spoken["1"].items():
            loudest, step = np.abs(samples).max(), 2**-15  # of 16 bits
            np.testing.assert_allclose(spoken[size][name], samples, atol=0.01 * loudest + step)


@pytest.mark.slow
def test_predict_of_a_vocoder(vaak, vocoder_run: Path, tmp_path: Path):
    files = [path for path in recordings(tmp_path / "in", 16000, (0.4, 1.1, 0.3)) if path.name[0].isdigit()]
    found = [
        [json.loads(line) for line in out.splitlines()]
        for _, out in in_sizes(vaak, "predict", vocoder_run, *files, "--json")
    ]
    for lines in found[1:]:
        for one, other in zip(found[0], lines, strict=True):
            assert one["name"] == other["name"]
            assert other["vocoder"]["spectral"] == pytest.approx(one["vocoder"]["spectral"], rel=1e-4)


def test_int8_computes_linear_layers_in_8_bits_and_says_so(
    vaak, tiny_run: Path, listener: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    files = recordings(tmp_path / "in", 16000, (0.7, 2.1))
    for command in (("transcribe", listener, files[0], "--json"), ("predict", tiny_run, *TEXTS)):
        plain, said = vaak(*command, "--precision", "fp32"), vaak(*command, "--precision", "int8")
        assert plain[0] == said[0] == 0
        found = re.findall(r"precision int8: (\d+) of (\d+) linear layers compute in 8 bits", caplog.text)
        assert found
        assert 0 < int(found[-1][0]) <= int(found[-1][1])
        caplog.clear()
    code, _, err = vaak("predict", tiny_run, "a", "--precision", "int8", "--device", "cuda")
    assert code == 2
    assert "Traceback" not in err


@pytest.mark.parametrize("precision", ["auto", "fp32", "bf16", "fp16"])
def test_precisions(vaak, tiny_run: Path, precision: str, caplog: pytest.LogCaptureFixture):
    """On a CPU auto is fp32, and so is fp16, which a line reports."""
    supported.cache_clear()
    arguments = ("generate", tiny_run, "लड़की", "--max-new-tokens", 8, "--temperature", 0)
    code, out, err = vaak(*arguments, "--precision", precision)
    assert code == 0, err
    if precision != "bf16":
        assert out == vaak(*arguments)[1]
    assert ("fp16 can't be used" in caplog.text) == (precision == "fp16")


@pytest.mark.parametrize(
    "run", mostly_slow(("tiny_run", "listener", "diarizer_run", "flow_run", "vocoder_run"), "tiny_run", "listener")
)
def test_weights_in_16_bits_change_nothing(run: str, vaak, monkeypatch, request: pytest.FixtureRequest, tmp_path: Path):
    """Products of linear layers round their weights to bf16 wherever these are kept."""
    folder, kept = request.getfixturevalue(run), list[int]()
    text = {"tiny_run": "लड़की", "flow_run": "He saw me."}
    given = text.get(run) or next(path for path in recordings(tmp_path / "in", 16000, (1.7,)) if path.stem == "0")

    def in_bf16() -> str:
        out = tmp_path / str(len(kept))
        more = ("-o", out) if run == "flow_run" else ("--json",)
        code, said, err = vaak("speak" if run == "flow_run" else "predict", folder, given, *more, "--precision", "bf16")
        assert code == 0, err
        return "".join(path.read_bytes().hex() for path in out.iterdir()) if run == "flow_run" else said

    def keep(dtype: torch.dtype, model: nn.Module) -> None:
        keep_frozen_weights_in(dtype, model)
        kept.append(sum(isinstance(one, FrozenLinear) for one in model.modules()))

    monkeypatch.setattr("vaak.runs.open_run.keep_frozen_weights_in", keep)
    found = in_bf16()
    assert kept[0] > 0
    monkeypatch.setattr("vaak.runs.open_run.keep_frozen_weights_in", lambda *_: kept.append(0))
    assert without_times(in_bf16()) == without_times(found)


def without_times(said: str) -> str:
    return re.sub(r'"(seconds_taken|real_time_factor)": [^,}]+', "", said)


def test_a_batch_needs_an_input(vaak, tiny_run: Path):
    code, _, err = vaak("generate", tiny_run, "a", "--batch-size", 0)
    assert code == 2
    assert "--batch-size" in err
