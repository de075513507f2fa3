"""The doctor on a YAML: every reason why it would not run, found without running or changing anything."""

from __future__ import annotations

import os
import shutil
from collections import namedtuple
from pathlib import Path

import pytest

import tiny_runs
from vaak.engine.memory import MemoryReading
from vaak.runs.folder.directory import the_only_writer
from vaak.runs.preflight.doctor import DoctorFinding, training
from vaak.runs.preflight.doctor.training import examine_configuration

Usage = namedtuple("Usage", "total used free")


def examined(folder: Path, *overrides: str) -> dict[str, DoctorFinding]:
    """Findings on the tiny configuration, by name."""
    return {finding.name: finding for finding in examine_configuration([folder / "tiny.yml"], overrides)}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs would be in a folder of the test."""
    monkeypatch.chdir(tmp_path)


def test_a_configuration_that_would_run(tiny_text: Path, tmp_path: Path):
    before = tiny_runs.hashes(tiny_text)
    found = examined(tiny_text)
    assert {name: finding.mark for name, finding in found.items()} == dict.fromkeys(found, "ok")
    assert found["data"].said.startswith("3 files, ")
    assert found["run directory"].said == "runs/tiny (new)"
    assert "a checkpoint takes " in found["space"].said
    assert "up to 5 at a time" in found["space"].said
    assert "parameters; weights, gradients and optimizer take" in found["memory"].said
    assert tiny_runs.hashes(tiny_text) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "name", "mark", "said"),
    [
        (["training.epoch=3"], "mistake", "problem", "training.epoch"),
        (["data.corpus.train=[none.txt]"], "data", "problem", "none.txt"),
        (["data.tokenizer.path=none.json"], "model", "problem", "none.json"),
        (["data.minimal_pairs=[none.jsonl]"], "data", "problem", "none.jsonl"),
        (["training.mixed_precision=fp16"], "precision", "warning", "fp16 needs an accelerator"),
        (["training.amp_loss_scale=8"], "remark", "warning", "only fp16 scales the loss"),
        (["training.distributed.world_size=4"], "device", "problem", "1 process(es) were started"),
        (["model.d_model=100000", "model.num_layers=1"], "memory", "problem", "without any activations"),
    ],
)
def test_what_would_go_wrong(tiny_text: Path, overrides: list[str], name: str, mark: str, said: str):
    found = examined(tiny_text, *overrides)[name]
    assert found.mark == mark
    assert said in found.said


def test_every_mistake_is_a_line(tiny_text: Path):
    found = list(examine_configuration([tiny_text / "tiny.yml"], ["training.epoch=3", "model.d_modell=5"]))
    assert [finding.mark for finding in found] == ["problem", "problem"]
    (missing,) = examine_configuration([tiny_text / "none.yml"], [])
    assert missing.mark == "problem"
    assert "none.yml" in missing.said


def test_a_base_that_cannot_be_used_is_a_mistake(tmp_path: Path):
    (tmp_path / "a.yml").write_text("task: lm\nmodel: {pretrained: ./gone}\ndata: {corpus: {type: text, train: [a]}}\n")
    (found,) = examine_configuration([tmp_path / "a.yml"], [f"run_dir={tmp_path / 'run'}"])
    assert (found.mark, found.said) == ("problem", "model.pretrained: no such folder: ./gone")


def test_a_device_that_is_not_there(tiny_text: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    found = examined(tiny_text, "training.device=cuda")
    assert found["device"].mark == "problem"
    assert "this machine has none" in found["device"].said
    assert "space" in found  # the rest is looked at all the same


def test_a_compiler_that_is_not_there(tiny_text: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "find_missing_for_compile", lambda _: ["C++ compiler"])
    assert "compile" not in examined(tiny_text)
    assert examined(tiny_text, "training.performance.compile=true")["compile"].mark == "problem"


def test_graphs_on_a_device_that_has_none(tiny_text: Path):
    assert "CUDA graphs" not in examined(tiny_text)
    found = examined(tiny_text, "training.performance.cuda_graphs=true", "training.device=cpu")["CUDA graphs"]
    assert (found.mark, found.said) == ("warning", "training.performance.cuda_graphs has no effect on cpu")


def test_graphs_that_can_not_be_captured(tiny_text: Path):
    how = ["training.performance.cuda_graphs=true", "training.device=auto", "model.moe={num_experts: 2}"]
    found = examined(tiny_text, *how)
    assert "CUDA graphs" not in found, "it would promise some"
    assert "no graph can be captured: the program reads how many tokens each expert" in found["remark"].said


def test_run_directories(tiny_text: Path, tiny_run: Path, tmp_path: Path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    found = examined(tiny_text, f"run_dir={run}")["run directory"]
    assert (found.mark, found.said) == ("problem", f"{run} already holds a run")
    found = examined(tiny_text, f"run_dir={run}", "training.checkpoint.resume=auto")["run directory"]
    assert (found.mark, found.said) == ("ok", f"{run} (resumes)")
    with the_only_writer(run):
        found = examined(tiny_text, f"run_dir={run}", "training.checkpoint.resume=auto")["run directory"]
        assert found.mark == "problem"
        assert "is being written" in found.said
    (tmp_path / "file").touch()
    assert examined(tiny_text, f"run_dir={tmp_path}/file/run")["run directory"].mark == "problem"


def test_space_for_checkpoints(tiny_text: Path, monkeypatch: pytest.MonkeyPatch):
    def with_free(free: int, *overrides: str) -> tuple[str, str]:
        monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(free, 0, free))
        found = examined(tiny_text, *overrides)["space"]
        return found.mark, found.said

    mark, said = with_free(1 << 40, "training.checkpoint.save_total_limit=null")
    assert mark == "ok"
    assert "all are kept" in said
    one = 3 * 4 * (500 * 32)  # the embedding alone, with its two moments
    assert with_free(one)[0] == "problem"
    assert with_free(8 * one)[0] == "warning"
    assert with_free(100 * one)[0] == "ok"
    assert with_free(100 * one, "training.checkpoint.save_total_limit=1000")[0] == "warning"


def test_the_moving_average_needs_room_too(tiny_text: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training, "read_memory", lambda _: MemoryReading(0, 1 << 40, 0))
    memory = [examined(tiny_text, *options)["memory"].said for options in ([], ["training.ema.decay=0.9"])]
    numbers = [float(said.split(" take ")[1].split()[0]) for said in memory]
    assert numbers[1] / numbers[0] == pytest.approx(5 / 4, rel=0.2)


def test_weights_and_biases(tiny_text: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setattr(training, "get_version", lambda _: "1.0")
    monkeypatch.setattr(training, "has_wandb_key", lambda: False)
    assert "W&B" not in examined(tiny_text)
    assert examined(tiny_text, "training.logging.wandb=true")["W&B"].mark == "warning"
    assert examined(tiny_text, "training.logging.wandb=true", "wandb.mode=offline")["W&B"].mark == "ok"
    monkeypatch.setattr(training, "get_version", lambda _: None)
    assert examined(tiny_text, "training.logging.wandb=true")["W&B"].mark == "problem"


def test_users_code_is_not_executed(tiny_text: Path, tmp_path: Path):
    (tmp_path / "tiny.yml").write_text((tiny_text / "tiny.yml").read_text())
    (tmp_path / "bad.py").write_text("open('executed', 'w')\nclass Loss: ...\nclass Watch: ...\n")
    found = examined(tmp_path, "training.loss=./bad.py:Loss", "training.callbacks=[./bad.py:Watch]")
    assert found["file"].mark == "ok"
    assert not Path("executed").exists()


def test_unreadable_files_are_named(tiny_text: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("valid.txt") and real(path, mode))
    found = examined(tiny_text)["data"]
    assert found.mark == "problem"
    assert "valid.txt" in found.said
