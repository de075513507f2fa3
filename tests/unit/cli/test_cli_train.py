"""``vaak train`` prints figures, samples and the run's folder, or JSON lines; mistakes are one line."""

from __future__ import annotations

import json
import os
import re
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from vaak.report.html import to_html


@pytest.mark.usefixtures("samples")
def test_it_prints_figures_samples_and_where_the_run_is(vaak, tiny_text: Path, tmp_path: Path):
    code, out, err = vaak("train", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}")
    assert code == 0
    lines = out.removesuffix("\n").split("\n")
    assert lines[0].split() == ["metric", "value"]
    assert lines[1].startswith("val_loss ")
    assert lines[3].startswith("val_accuracy ")
    assert lines[3].endswith(" %")
    assert f"best checkpoint: {tmp_path / 'run'}/checkpoints/step-00000008 (val_loss " in out
    assert f"  vaak eval {tmp_path / 'run'} --split test" in lines
    assert lines[-1] == f"finished step 8; the run is in {tmp_path / 'run'}"
    samples = lines[lines.index("samples") + 1 :]
    assert all(line.startswith("  ") for line in samples[:5])
    assert not samples[5]
    assert "step 8/8  loss" in err
    names = {path.name for path in (tmp_path / "run").iterdir()}
    assert {"config.yml", "environment.json", "train.log", "metrics.jsonl", "status.json", "checkpoints"} <= names
    assert "step 8/8  loss" in (tmp_path / "run" / "train.log").read_text()
    report = tmp_path / "run" / "report.html"
    assert f"report: {report}" in lines
    kept = json.loads((tmp_path / "run" / "samples.json").read_text())
    assert kept["step"] == 8
    assert ["  " + " / ".join(sample.split("\n")) for sample in kept["samples"]] == samples[:5]
    page = report.read_text(encoding="utf-8")
    assert all(f"<li>{to_html(sample)}</li>" in page for sample in kept["samples"])


def test_without_a_split_test_it_is_not_the_next_thing_to_evaluate(vaak, tiny_text: Path, tmp_path: Path):
    without_test = ("data.corpus.test=[]", "training.max_steps=1")
    code, out, _ = vaak("train", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", *without_test)
    assert code == 0
    assert f"  vaak eval {tmp_path / 'run'}" in out.splitlines()
    assert "--split test" not in out
    code, _, err = vaak("eval", tmp_path / "run")
    assert code == 0, err


def test_json_resume_and_a_run_that_is_finished(vaak, tiny_text: Path, tmp_path: Path):
    run = tmp_path / "run"
    asked = ("train", tiny_text / "tiny.yml", f"run_dir={run}", "--json")
    report = result_in(vaak(*asked)[1])
    assert report["reason"] == "finished"
    assert (report["run"], report["step"]) == (str(run), 8)
    code, out, err = vaak(*asked)
    assert (code, out) == (2, "")
    assert err == (
        f"{run} already holds a run: add training.checkpoint.resume=auto to resume it, "
        "or give another name= or run_dir=\n"
    )
    again = result_in(vaak(*asked, "--resume", "auto")[1])
    assert again == report
    more = result_in(vaak(*asked, "--resume", run / "checkpoints" / "step-00000004", "training.max_steps=9")[1])
    assert more["step"] == 9


@pytest.mark.slow
def test_no_mixed_precision_overrides_the_yaml(vaak, tiny_text: Path, tmp_path: Path):
    """As users of the TTS trainer type it."""
    asked = ("train", tiny_text / "tiny.yml", "training.mixed_precision=bf16", "training.max_steps=1")
    for name, options in (("bf16", ()), ("fp32", ("--no-mixed-precision",))):
        run = tmp_path / name
        code, _, err = vaak(*asked, f"run_dir={run}", *options)
        assert code == 0, err
        assert f"1 process(es), precision {name}" in err
        assert ("mixed_precision: no" in (run / "config.yml").read_text()) == bool(options)


@pytest.mark.slow
def test_a_run_keeps_the_precision_that_it_began_with(vaak, tiny_text: Path, tmp_path: Path):
    """The YAML leaves it open, so a CPU computes in fp32; a run that began in bf16, as on a GPU, keeps it."""
    run, began_in_bf16 = tmp_path / "fp32", tmp_path / "bf16"

    def train(directory: Path, steps: int, *overrides: str) -> str:
        asked = (f"run_dir={directory}", f"training.max_steps={steps}", *overrides)
        code, _, err = vaak("train", tiny_text / "tiny.yml", *asked)
        assert code == 0, err
        return err

    resume, changed = "training.checkpoint.resume=auto", "other numbers from here on: training."
    assert "1 process(es), precision fp32\n" in train(run, 1)
    assert "mixed_precision: no" in (run / "config.yml").read_text()
    assert re.findall(f"{changed}(.*) was", train(run, 2, resume)) == ["max_steps"]
    bf16 = train(began_in_bf16, 1, "training.mixed_precision=bf16", "training.performance.tf32=false")
    assert "precision bf16 (training.mixed_precision: auto would be fp32)\n" in bf16
    resumed = train(began_in_bf16, 2, resume)
    assert "training.mixed_precision stays bf16, with which the run began; auto would be no here" in resumed
    assert re.findall(f"{changed}(.*) was", resumed) == ["max_steps"]
    assert "mixed_precision: bf16" in (began_in_bf16 / "config.yml").read_text()
    elsewhere = train(tmp_path / "other", 3, f"training.checkpoint.resume={began_in_bf16}/checkpoints/last")
    assert re.findall(f"{changed}(.*) was", elsewhere) == ["max_steps"]
    assert f"{changed}mixed_precision was no, is bf16" in train(run, 3, resume, "training.mixed_precision=bf16")


def result_in(out: str) -> dict[str, Any]:
    """The result, which is the last of the lines."""
    result = json.loads(out.splitlines()[-1])
    assert result["kind"] == "result"
    return result


def test_json_lines_are_the_records_and_what_is_said_and_nothing_else(vaak, tiny_text: Path, tmp_path: Path):
    run = tmp_path / "run"
    code, out, err = vaak("train", tiny_text / "tiny.yml", f"run_dir={run}", "--json", "training.scheduler.power=2")
    assert code == 2  # a mistake is a line on standard error, as ever
    assert (out, len(err.splitlines())) == ("", 1)
    code, out, err = vaak("train", tiny_text / "tiny.yml", f"run_dir={run}", "--json", "training.epochs=3")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    said = [json.loads(line) for line in lines]
    records = (run / "metrics.jsonl").read_text().splitlines()
    assert [line for line in lines if json.loads(line)["kind"] not in ("message", "result")] == records
    messages = [entry for entry in said if entry["kind"] == "message"]
    assert {k: v for k, v in messages[0].items() if k != "text"} == {"kind": "message", "level": "warning"}
    assert "training.epochs" in messages[0]["text"]
    for words in ("parameters on cpu", "weights, gradients and optimizer will take"):
        assert any(words in entry["text"] for entry in messages if entry["level"] == "info")
    assert said[-1]["kind"] == "result"
    assert not [entry for entry in messages if "step 8/8" in entry["text"]]
    assert "step 8/8  loss" in (run / "train.log").read_text()


def test_a_reader_of_json_lines_that_goes_away_does_not_end_training(
    commands: Commands, tiny_text: Path, tmp_path: Path
):
    run = tmp_path / "run"
    os.mkfifo(commands.folder / f"{len(commands.commands)}.out")  # in place of the file of what the next one says
    command = commands.start(["train", tiny_text / "tiny.yml", f"run_dir={run}", "--json"], tmp_path)
    with command.output.open() as reader:
        json.loads(reader.readline())
    assert command.ended.wait(120)
    assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert "Traceback" not in command.errors.read_text()
    warnings = [line for line in (run / "train.log").read_text().splitlines() if " WARNING " in line]
    assert len(warnings) == 1
    assert "standard output can't " in warnings[0]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (("data.corpus.train=[none.txt]",), "corpus.train: no such file: none.txt"),
        (("data.corpus.train=[]",), "corpus.train: give the files of the training text"),
        (("data.tokenizer.vocab_size=7",), "vocab"),
        (("data.tokenizer.path=none.json",), "this tokenizer file does not exist"),
        (("data.minimal_pairs=[none.jsonl]",), "data.minimal_pairs: no such file: none.jsonl"),
        (("model.model_type=encoder", "data.minimal_pairs=[grammar]"), "use model_type: decoder"),
        (("training.loss.auxiliary={nothing: 1}",), "nothing"),
        (("training.checkpoint.metric=val_bleu",), "val_bleu"),
        (("data.corpus={type: huggingface}",), "corpus.name: give the name"),
    ],
)
def test_mistakes_are_one_line(vaak, tiny_text: Path, tmp_path: Path, overrides: tuple[str, ...], words: str):
    code, out, err = vaak("train", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", *overrides)
    assert (code, out) == (2, ""), err
    assert words in err.splitlines()[-1]
    assert "Traceback" not in err


def test_bad_text_is_named_by_file_and_line(vaak, tiny_text: Path, tmp_path: Path):
    (tmp_path / "bad.txt").write_bytes("अच्छा\n".encode() + b"b\xffd\n")
    (tmp_path / "empty.txt").write_text("")
    for name, words in (("bad.txt", "bad.txt:2: byte 17 (0xFF) is not UTF-8"), ("empty.txt", "empty.txt has no text")):
        asked = ("train", tiny_text / "tiny.yml", f"run_dir={tmp_path / name}.run")
        code, _, err = vaak(*asked, f"data.corpus.train=['{tmp_path / name}']")
        assert code == 2
        assert words in err


def test_train_py_is_the_same_command(
    tiny_text: Path, tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    def train_py(*arguments: str | Path) -> tuple[int, str, str]:
        """In this process; tests/process/test_ranks.py starts it as torchrun does."""
        monkeypatch.setattr(sys, "argv", ["train.py", "--config", *map(str, arguments)])
        code = 0
        try:
            runpy.run_path(str(Path(__file__).parents[3] / "train.py"), run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        return code, *capfd.readouterr()

    code, out, err = train_py(tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", "training.max_steps=2")
    assert code == 0, err
    assert out.endswith(f"finished step 2; the run is in {tmp_path / 'run'}\n")
    (tmp_path / "config.yml").write_text(
        f"extends: {tiny_run}/config.yml\ntraining: {{callbacks: ['rich.live:Live']}}\n"
    )
    code, _, err = train_py(tmp_path / "config.yml")
    assert code == 2
    assert "add --trust-code" in err
