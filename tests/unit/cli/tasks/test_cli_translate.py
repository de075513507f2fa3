"""``vaak translate``: a text, a file, standard input; the run's decoding and what goes over it; one-line errors."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vaak.config.load import load
from vaak.runs.start import train

CONFIG = """\
task: seq2seq
name: tiny
model: {global_config: {d_model: 32, num_layers: 1, num_heads: 2}}
data:
  corpus: {type: grammar, num_sentences: 300}
  tokenizer: {type: byte_level, vocab_size: 420}
  max_source_length: 40
  max_target_length: 12
  decoding: {method: beam, beam_size: 3, length_penalty: 0.5, valid_examples: 2}
training:
  max_steps: 4
  batch_size: 8
  device: cpu
  optimizer: {type: adamw, lr: 1e-2}
  validation: {interval: 4}
  logging: {interval: 1, tensorboard: false, progress_bar: false}
"""
TEXTS = ["The boy goes home.", "", "She reads.", "  ", "Fatima is trembling."]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("translator")
    (folder / "tiny.yml").write_text(CONFIG)
    train(load([folder / "tiny.yml"], [f"run_dir={folder / 'run'}"]))
    return folder / "run"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_bytes("\ufeff".encode() + "".join(f"{text}\r\n" for text in TEXTS).encode())
    return path


def said(vaak, *arguments: object) -> list[str]:
    code, out, err = vaak("translate", *arguments)
    assert (code, err) == (0, "")
    assert out.endswith("\n")
    return out.split("\n")[:-1]


def test_a_file_has_a_line_for_each_line_and_each_is_the_text_s_own(vaak, run: Path, file: Path):
    lines = said(vaak, run, file)
    assert len(lines) == len(TEXTS)
    assert [bool(line) for line in lines] == [bool(text.strip()) for text in TEXTS]
    assert lines[0] == said(vaak, run, TEXTS[0])[0]
    assert said(vaak, run, "\n".join(TEXTS)) == lines
    assert said(vaak, run, file, "--batch-size", 1, "--max-tokens", 1) == lines


def test_standard_input(vaak, run: Path, file: Path, monkeypatch: pytest.MonkeyPatch):
    expected = said(vaak, run, file)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(file.read_bytes().removesuffix(b"\r\n"))))
    assert said(vaak, run, "-") == expected


def test_the_run_s_decoding_is_the_default_and_options_go_over_it(vaak, run: Path, file: Path):
    asked = ("--method", "beam", "--beam-size", 3, "--length-penalty", 0.5)
    whole = said(vaak, run, file, "--json")
    assert said(vaak, run, file, *asked, "--json") == whole
    assert said(vaak, run, file, "--method", "greedy", "--json") != whole
    assert said(vaak, run, file, "--length-penalty", 1.5, "--json") != whole
    draws = [said(vaak, run, file, "--temperature", 2.0, "--seed", seed) for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    assert said(vaak, run, file, "--temperature", 0) == said(vaak, run, file, "--method", "greedy")


def test_n_best_and_json(vaak, run: Path, file: Path):
    rows = [line.split("\t") for line in said(vaak, run, file, "--n-best", 3)]
    assert [row[0] for row in rows] == ["1", "1", "1", "3", "3", "3", "5", "5", "5"]
    found = [json.loads(line) for line in said(vaak, run, file, "--n-best", 3, "--json")]
    assert [one["source"] for one in found] == TEXTS
    assert found[1] == {"source": "", "text": "", "translations": []}
    candidates = [one for text in found for one in text["translations"]]
    assert [[f"{one['score']:.4f}", " ".join(one["text"].split())] for one in candidates] == [row[1:] for row in rows]
    for text in found:
        assert text["text"] == next((one["text"] for one in text["translations"]), "")
        scores = [one["score"] for one in text["translations"]]
        assert scores == sorted(scores, reverse=True)


def test_output_is_there_whole_or_not_at_all(vaak, run: Path, file: Path, tmp_path: Path):
    lines, output = said(vaak, run, file), tmp_path / "out.txt"
    assert vaak("translate", run, file, "--output", output) == (0, "", "")
    assert output.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in lines)
    with file.open("a") as more:
        more.write("long " * 100)
    assert vaak("translate", run, file, "--output", output)[0] == 2
    assert output.read_text(encoding="utf-8") == "".join(f"{line}\n" for line in lines)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.txt", "texts.txt"]


def test_the_picture_is_of_the_first_text(vaak, run: Path, tmp_path: Path):
    page = tmp_path / "attention.html"
    lines = said(vaak, run, f"\n{TEXTS[0]}\n{TEXTS[2]}", "--attention", page)
    assert len(lines) == 3
    assert ">Th" in page.read_text(encoding="utf-8")
    assert not list(run.glob("*.tmp"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("no", "--beam-size", 0), "beam_size is 0"),
        (("no", "--n-best", 5), "n_best is 5; it must be from 1 to beam_size (3)"),
        (
            ("no", "--method", "greedy", "--top-k", 3),
            "top_k is an option of method sampling and mbr, but the method is greedy",
        ),
        (("no", "--temperature", -1), "temperature is -1.0"),
        (("no", "--attention", "a.png"), "a.png: the attention picture is an HTML page"),
        (("no", "--output", "missing/out.txt"), "--output missing/out.txt can't be written"),
        (("very " * 60,), "the text has "),
        (("texts/missing.txt",), "file texts/missing.txt does not exist"),
    ],
)
def test_mistakes(vaak, run: Path, options: tuple[object, ...], words: str):
    code, out, err = vaak("translate", run, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert words in err


def test_a_line_that_is_too_long_or_no_utf8_is_named(vaak, run: Path, tmp_path: Path):
    long, broken = tmp_path / "long.txt", tmp_path / "broken.txt"
    long.write_text("no\n" + "very " * 60)
    broken.write_bytes(b"no\n\nb\xffd\n")
    code, out, err = vaak("translate", run, long)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{long}:2 has ")
    assert "at most 40 (data.max_source_length)" in err
    code, out, err = vaak("translate", run, broken)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"{broken}:3: ")


def test_a_language_model_translates_nothing(vaak, tiny_run: Path):
    code, out, err = vaak("translate", tiny_run, "no")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"{tiny_run} is a run of task lm; vaak translate requires a run of task seq2seq" in err
