"""``vaak generate``: the same seed gives the same text, in pieces or whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny_runs


def texts(output: str) -> list[str]:
    return [json.loads(line)["text"] for line in output.splitlines()]


def test_seeds_and_samples(vaak, tiny_run: Path):
    options = ("--max-new-tokens", 12, "--json")
    code, out, err = vaak("generate", tiny_run, "लड़की", *options, "--samples", 3, "--seed", 5)
    assert (code, err) == (0, "")
    assert [json.loads(line)["seed"] for line in out.splitlines()] == [5, 6, 7]
    three = texts(out)
    assert len(set(three)) == 3
    assert all(text.startswith("लड़की") for text in three)
    assert texts(vaak("generate", tiny_run, "लड़की", *options, "--seed", 6)[1]) == [three[1]]
    assert texts(vaak("generate", tiny_run, "लड़की", *options, "--samples", 3, "--seed", 5)[1]) == three


def test_what_is_streamed_is_the_text(vaak, tiny_run: Path):
    for options in ((), ("--temperature", 0), ("--top-k", 5, "--top-p", 0.9, "--repetition-penalty", 1.3)):
        asked = ("generate", tiny_run, "वह घर", "--max-new-tokens", 20, *options)
        streamed = vaak(*asked)
        assert streamed[0] == 0
        assert streamed[1] == texts(vaak(*asked, "--json")[1])[0] + "\n"


def test_temperature_0_is_the_same_for_every_seed(vaak, tiny_run: Path):
    said = {vaak("generate", tiny_run, "वह", "--temperature", 0, "--seed", seed)[1] for seed in range(3)}
    assert len(said) == 1


def test_nothing_to_begin_with_and_more_than_the_model_can_read(vaak, tiny_run: Path):
    assert vaak("generate", tiny_run, "--max-new-tokens", 5)[0] == 0
    long = "वह घर जाता है । " * 20
    code, out, _ = vaak("generate", tiny_run, long, "--max-new-tokens", 5)
    assert code == 0
    assert out.startswith(long)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--temperature", -1), "temperature is -1.0"),
        (("--top-p", 2), "top_p is 2.0"),
        (("--max-new-tokens", 0), "max_new_tokens is 0"),
        (("--samples", 0), "--samples"),
    ],
)
def test_mistakes(vaak, tiny_run: Path, options: tuple[object, ...], words: str):
    code, _, err = vaak("generate", tiny_run, "वह", *options)
    assert code == 2
    assert words in err


def test_an_encoder_generates_nothing(vaak, tiny_text: Path, tmp_path: Path):
    tiny_runs.train(tiny_text, tmp_path / "run", "model.model_type=encoder", "training.max_steps=1")
    code, out, err = vaak("generate", tmp_path / "run", "वह")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "vaak generate requires a run of task lm with model.model_type: decoder" in err
