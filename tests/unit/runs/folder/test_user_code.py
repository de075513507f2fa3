"""A user's own classes: copied into the run with their hash, executed by training alone, and only when trusted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_runs
from vaak.core.storage.files import hash_file

LOSS = """\
import torch
with open({marker!r}, "a") as file:
    file.write("loss ")

class Huber(torch.nn.Module):
    def __init__(self, scale: float = 1.0):
        super().__init__()
        self.scale = scale

    def forward(self, outputs, targets):
        return self.scale * torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
"""
CALLBACK = """\
from vaak.engine.callback import Callback
with open({marker!r}, "a") as file:
    file.write("callback ")

class Watcher(Callback):
    pass
"""
WITH_CODE = """\
extends: tiny.yml
training:
  loss: {main: {type: './losses/code.py:Huber', scale: 2.0}}
  callbacks: [./callbacks/code.py:Watcher]
"""

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder whose ``mine.yml`` names a loss and a callback in files of the same name; each leaves a mark."""
    folder = tmp_path / "project"
    tiny_runs.write_corpus(folder)
    for name, content in (("losses", LOSS), ("callbacks", CALLBACK)):
        (folder / name).mkdir()
        (folder / name / "code.py").write_text(content.format(marker=str(tmp_path / "marker")))
    (folder / "mine.yml").write_text(WITH_CODE)
    return folder


@pytest.fixture
def marks(tmp_path: Path) -> Callable[[], str]:
    """What user code wrote since the last time."""

    def read() -> str:
        marker = tmp_path / "marker"
        text = marker.read_text() if marker.exists() else ""
        marker.unlink(missing_ok=True)
        return text

    return read


@pytest.fixture
def run(vaak: Vaak, project: Path, tmp_path: Path, marks: Callable[[], str]) -> Path:
    code, _, err = vaak("train", project / "mine.yml", f"run_dir={tmp_path / 'run'}")
    assert code == 0, err
    assert marks() == "loss callback "
    return tmp_path / "run"


def test_files_are_copied_with_their_hashes(run: Path, project: Path):
    copies = {"code.py": "losses/code.py", "code_2.py": "callbacks/code.py"}
    hashes = json.loads((run / "code" / "SHA256.json").read_text())
    assert hashes == {name: hash_file(project / source) for name, source in copies.items()}
    assert hashes == {name: hash_file(run / "code" / name) for name in copies}
    config = (run / "config.yml").read_text()
    assert "./code/code.py:Huber" in config
    assert "./code/code_2.py:Watcher" in config
    assert str(project / "losses") not in config


def test_using_a_run_executes_none_of_its_code(vaak: Vaak, run: Path, tmp_path: Path, marks: Callable[[], str]):
    for name in ("code.py", "code_2.py"):
        copy = run / "code" / name
        copy.write_text(f"{copy.read_text()}\nraise RuntimeError('executed')\n")
    for arguments in (
        ("eval", run),
        ("eval", run, "data.max_length=16", "--split", "test"),
        ("generate", run, "वह", "--max-new-tokens", 3),
        ("export", run, "--output", tmp_path / "exported"),
        ("runs", run),
        ("config", "check", run / "config.yml"),
    ):
        code, _, err = vaak(*arguments)
        assert code == 0, err
        assert marks() == ""


def test_training_a_run_again_asks_for_trust(vaak: Vaak, run: Path, tmp_path: Path, marks: Callable[[], str]):
    again = ("train", run / "config.yml", f"run_dir={tmp_path / 'again'}")
    code, out, err = vaak(*again)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(
        f"{run / 'config.yml'} belongs to a run, by its name, and this code would be executed: ./code/code.py:Huber"
    )
    assert "--trust-code" in err
    assert marks() == ""
    assert not (tmp_path / "again").exists()
    assert vaak(*again, "--trust-code")[0] == 0
    assert marks() == "loss callback "
    last = "checkpoints/step-00000008/model.safetensors"
    assert (tmp_path / "again" / last).read_bytes() == (run / last).read_bytes()


def test_packages_in_a_runs_configuration_need_trust_too(vaak: Vaak, tiny_run: Path, tmp_path: Path):
    again = ("train", tiny_run / "config.yml", f"run_dir={tmp_path / 'again'}")
    code, _, err = vaak(*again, "training.callbacks=[{type: 'subprocess:Popen', args: [touch, owned]}]")
    assert code == 2
    assert "subprocess:Popen" in err
    assert not (tmp_path / "again").exists()
    code, _, err = vaak(*again)  # and where it has no code, no trust is asked for
    assert code == 0, err
    last = "checkpoints/step-00000008"  # config.yml alone repeats the run
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (tmp_path / "again" / last / file).read_bytes() == (tiny_run / last / file).read_bytes()


def test_changed_code_is_said_and_the_old_one_stays(vaak: Vaak, run: Path, project: Path):
    before = (run / "code" / "code.py").read_bytes()
    with open(project / "losses" / "code.py", "a") as file:
        file.write("# changed\n")
    code, _, err = vaak("train", project / "mine.yml", f"run_dir={run}", "training.max_steps=9", "--resume", "auto")
    assert code == 0, err
    assert f"{project / 'losses' / 'code.py'} is not the code that this run started with" in err
    assert err.count("is not the code") == 1
    assert (run / "code" / "code.py").read_bytes() == before
    assert "./code/code_3.py:Huber" in (run / "config.yml").read_text()
    assert "./code/code.py:Huber" in (run / "sessions" / "0001.yml").read_text()


def test_who_is_stopped_is_told_to_trust(vaak: Vaak, project: Path, tmp_path: Path):
    (project / "callbacks" / "code.py").write_text(
        "from vaak.engine.callback import Callback\n"
        "class Watcher(Callback):\n"
        "    def on_step_end(self, trainer, report):\n"
        "        trainer.request_stop('enough')\n"
    )
    code, out, _ = vaak("train", project / "mine.yml", f"run_dir={tmp_path / 'run'}")
    assert code == 0
    assert f"resume with: vaak train {tmp_path / 'run'}/config.yml --resume auto --trust-code\n" in out
