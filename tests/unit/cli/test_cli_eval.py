"""``vaak eval``: figures of any split, checkpoint and corpus, and a run that is unchanged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import tiny_runs
from vaak.config.base import REGISTERED
from vaak.config.components import register_auxiliary_loss, register_loss, register_optimizer, register_schedule
from vaak.nn.losses import z_loss


@pytest.fixture
def run(tiny_run: Path, tmp_path: Path) -> Path:
    """A copy of the tiny run that a test may damage."""
    return shutil.copytree(tiny_run, tmp_path / "copy", symlinks=True)


def test_splits_checkpoints_and_an_output_folder(vaak, tiny_run: Path, tmp_path: Path):
    before = tiny_runs.hashes(tiny_run)
    output = tmp_path / "new" / "folder"
    pairs = ("data.minimal_pairs=[grammar]", "data.max_length=64")
    code, out, err = vaak(
        "eval", tiny_run, *pairs, "--split", "test", "--split", "pairs", "--output-dir", output, "--json"
    )
    assert (code, err) == (0, "")
    report = json.loads(out)
    assert json.loads((output / "evaluation.json").read_text()) == report
    assert {"test_loss", "test_perplexity", "test_bits_per_byte", "pairs_accuracy"} <= set(report["metrics"])
    assert report["protocol"]["test"]["precision"] == "fp32"
    assert report["protocol"]["test"]["scored"] == "every token and [eos], after a given [bos]"
    accuracy = report["metrics"]["test_accuracy"]
    assert report["percent"]["test_accuracy"] == pytest.approx(100 * accuracy, abs=0.005)
    assert "test_loss" not in report["percent"]
    assert report["protocol"]["pairs"]["ties"] == "wrong"
    assert tiny_runs.hashes(tiny_run) == before

    evaluations = [json.loads(line) for line in (tiny_run / "metrics.jsonl").read_text().splitlines()]
    trained = {record["step"]: record for record in evaluations if record["kind"] == "evaluation"}
    for name, step in (("best", 8), ("last", 8), ("step-00000004", 4)):
        report = json.loads(vaak("eval", tiny_run / "checkpoints" / name, "--json")[1])
        assert report["checkpoint"].endswith(f"step-{step:08d}")
        assert report["metrics"]["val_loss"] == pytest.approx(trained[step]["val_loss"], rel=1e-6)

    code, out, _ = vaak("eval", tiny_run)
    assert code == 0
    assert "val_perplexity" in out
    assert "valid: objective causal, max_length 48" in out


def test_what_only_the_training_program_registered_is_needed_by_no_evaluation(vaak, tiny_text: Path, tmp_path: Path):
    """A loss, its helper, an optimizer and a schedule, all unknown to the command."""

    class MyLoss(torch.nn.Module):
        def forward(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(outputs, targets)

    register_loss("my_loss", MyLoss)
    register_auxiliary_loss("my_helper", z_loss)
    register_optimizer("my_optimizer", torch.optim.NAdam)
    register_schedule("my_schedule", lambda step, total: 1.0)
    run = tmp_path / "run"
    mine = ("training.optimizer={type: my_optimizer, lr: 1e-2}", "training.scheduler=my_schedule")
    losses = ("training.loss.main=my_loss", "training.loss.auxiliary={my_helper: 0.01}")
    tiny_runs.train(tiny_text, run, *mine, *losses)
    known = {key: dict(names) for key, names in REGISTERED.items()}
    REGISTERED.clear()
    code, out, err = vaak("eval", run, "--json")
    assert code == 0, err
    evaluations = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in evaluations if record["kind"] == "evaluation"][-1]
    assert json.loads(out)["metrics"]["val_loss"] == pytest.approx(last["val_loss"], rel=1e-6)
    assert not any(REGISTERED.values())
    assert vaak("generate", run, "the", "--max-new-tokens", 2)[0] == 0
    code, _, err = vaak("train", run / "config.yml", "--resume", "auto")
    assert code == 2
    assert "if the program that trained this run registered it, register it here, too" in err
    REGISTERED.update(known)


def test_another_corpus_is_read_with_the_runs_tokenizer(vaak, tiny_run: Path, tmp_path: Path):
    (tmp_path / "other.txt").write_text("एक और पाठ ।\n\nदूसरी पंक्ति ।\n")
    (tmp_path / "data.yml").write_text(
        f"data:\n  corpus: {{type: text, document: file, train: [], valid: [], test: ['{tmp_path}/other.txt']}}\n"
        "  layout: stream\n  max_length: 16\n  stride: 8\n"
    )
    before = tiny_runs.hashes(tiny_run)
    code, out, err = vaak("eval", tiny_run, tmp_path / "data.yml", "--split", "test", "--json")
    assert code == 0, err
    report = json.loads(out)
    own = json.loads(vaak("eval", tiny_run, "--split", "test", "--json")[1])
    assert report["protocol"]["test"]["tokenizer"] == own["protocol"]["test"]["tokenizer"]
    assert report["protocol"]["test"]["newline"] == "every one counted"
    assert report["protocol"]["test"]["stride"] == "8"
    assert report["metrics"]["test_loss"] != own["metrics"]["test_loss"]
    assert tiny_runs.hashes(tiny_run) == before


def test_test_files_alone_do_where_the_training_text_is_gone(vaak, tmp_path: Path):
    tiny_runs.write_corpus(tmp_path / "text")
    tiny_runs.train(tmp_path / "text", tmp_path / "run", "training.max_steps=1")
    (tmp_path / "other.txt").write_text("एक और पाठ ।\n")
    for split in tiny_runs.SIZES:
        (tmp_path / "text" / f"{split}.txt").unlink()
    (tmp_path / "data.yml").write_text(f"data: {{corpus: {{test: ['{tmp_path}/other.txt']}}}}\n")
    code, out, err = vaak("eval", tmp_path / "run", tmp_path / "data.yml", "--split", "test", "--json")
    assert code == 0, err
    assert json.loads(out)["metrics"]["test_loss"] > 0
    assert vaak("eval", tmp_path / "run", "--split", "test")[0] == 0
    assert vaak("generate", tmp_path / "run", "एक", "--max-new-tokens", "3")[0] == 0


def test_options_of_windows_use_what_is_prepared(vaak, tiny_run: Path):
    shorter = json.loads(vaak("eval", tiny_run, "data.max_length=8", "data.stride=4", "--json")[1])
    assert shorter["protocol"]["valid"]["stride"] == "4"
    assert shorter["metrics"]["val_loss"] > 0


def test_mistakes_are_one_line(vaak, tiny_run: Path, run: Path, tmp_path: Path):
    def refused(*arguments: object) -> str:
        code, out, err = vaak("eval", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    assert "unknown split 'dev'; expected one of test, train, valid" in refused(tiny_run, "--split", "dev")
    assert "is not a run directory, nor inside one" in refused(tmp_path / "nothing")
    assert "no checkpoint at" in refused(tiny_run / "checkpoints" / "step-00000099")
    assert "name files of BLiMP JSON lines" in refused(tiny_run, "--split", "pairs")
    assert "no such file" in refused(tiny_run, "data.corpus.test=[none.txt]", "--split", "test")
    unread = "data.corpus.test is not read, because only valid is evaluated"
    assert unread in refused(tiny_run, "data.corpus.test=[none.txt]")
    assert "corpus: unknown split 'dev'" in refused(tiny_run, "data.corpus.deduplicate=false", "--split", "dev")
    assert "unknown key" in refused(tiny_run, "data.corpse=1")
    model = run / "checkpoints" / "step-00000008" / "model.safetensors"
    content = bytearray(model.read_bytes())
    content[-5] ^= 1
    model.write_bytes(content)
    assert "step-00000008" in refused(run)
    model.write_bytes(bytes(content[:100]))
    assert "step-00000008" in refused(run)
    (run / "prepared" / "prepared.json").unlink()
    assert "no prepared data" in refused(run)
    shutil.rmtree(run / "checkpoints")
    assert "no checkpoint" in refused(run)
    assert "unknown device 'tpu'" in refused(tiny_run, "--device", "tpu")


def test_a_file_where_the_output_folder_should_be(vaak, tiny_run: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    code, _, err = vaak("eval", tiny_run, "--output-dir", tmp_path / "file")
    assert code == 2
    assert err.count("\n") == 1
