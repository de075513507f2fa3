"""Whose code a configuration names: each way in asks for ``--trust-code`` where it isn't the user's, and runs nothing.

The table of docs/security.md says what asks; WAYS below is that table.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_runs
from vaak import fit
from vaak import open as open_run
from vaak.compat.hindi_lm.config import ExperimentConfig
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.folder.user_code import require_trust
from vaak.runs.start import train

ROOT = Path(__file__).parents[4]
CODE = """\
import torch
with open({marker!r}, "a") as file:
    file.write("executed ")

class Huber(torch.nn.Module):
    def forward(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

class Tokenizer:
    pass
"""
NAMES_CODE = """\
extends: {base}
training: {{loss: {{main: './code/code.py:Huber'}}}}
data: {{tokenizer: {{type: './code/code.py:Tokenizer'}}}}
"""
Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    tiny_runs.write_corpus(folder)
    return folder / "tiny.yml"


@pytest.fixture
def theirs(tmp_path: Path, base: Path) -> Path:
    """A stranger's folder: a configuration and code, and nothing that training leaves."""
    folder = tmp_path / "theirs"
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "code.py").write_text(CODE.format(marker=str(tmp_path / "executed")))
    (folder / "config.yml").write_text(NAMES_CODE.format(base=base))
    return folder


WAYS: dict[str, tuple[str, ...]] = {
    "vaak train": ("train", "CONFIG", "run_dir=x"),
    "vaak data preprocess": ("data", "preprocess", "CONFIG", "run_dir=x"),
    "vaak data check": ("data", "check", "CONFIG"),
    "vaak model show": ("model", "show", "CONFIG"),
    "vaak find-lr": ("find-lr", "CONFIG"),
    "vaak find-batch-size": ("find-batch-size", "CONFIG"),
    "vaak check-gradients": ("check-gradients", "CONFIG"),
    "vaak sweep": ("sweep", "CONFIG", "--grid", "training.optimizer.lr=1e-3,1e-2"),
    "vaak crossval": ("crossval", "CONFIG", "--folds", "2"),
}


@pytest.fixture
def nothing_ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], bool]:
    monkeypatch.chdir(tmp_path)
    return lambda: not (tmp_path / "executed").exists()


@pytest.mark.parametrize("way", WAYS)
def test_each_way_in_asks_for_trust(vaak: Vaak, theirs: Path, way: str, nothing_ran: Callable[[], bool]):
    config = str(theirs / "config.yml")
    code, _, err = vaak(*(config if word == "CONFIG" else word for word in WAYS[way]))
    assert nothing_ran()
    assert code == 2, err
    assert f"{config} belongs to a run, by its name, and this code would be executed: ./code/code.py:" in err
    assert "--trust-code" in err
    assert not Path("x").exists()


def test_the_doctor_says_it(vaak: Vaak, theirs: Path, nothing_ran: Callable[[], bool]):
    _, out, err = vaak("doctor", theirs / "config.yml", "--read-data")
    assert "this code would be executed" in " ".join((out + err).split())
    assert nothing_ran()


@pytest.mark.parametrize("way", ["config check", "config show", "config schema"])
def test_reading_a_configuration_executes_nothing(vaak: Vaak, theirs: Path, way: str, nothing_ran: Callable[[], bool]):
    vaak(*way.split(), theirs / "config.yml")
    assert nothing_ran()


def test_a_folder_of_another_layout(vaak: Vaak, theirs: Path, nothing_ran: Callable[[], bool]):
    """Sessions, checkpoints, links to them, and a run's code under a configuration of another name."""
    (theirs / "sessions").mkdir()
    session = theirs / "sessions" / "0001.yml"
    session.write_text((theirs / "config.yml").read_text().replace("./code", "../code"))
    os.symlink(theirs / "config.yml", link := theirs / "mine.yml")
    shutil.copytree(theirs, checkpoint := theirs / "checkpoints" / "step-00000004")
    for file in (session, link, checkpoint / "config.yml"):
        code, _, err = vaak("train", file, "run_dir=x")
        assert (code, "add --trust-code" in err) == (2, True), err
    (theirs / "code" / "SHA256.json").write_text("{}")
    shutil.copy(theirs / "config.yml", theirs / "train.yml")
    code, _, err = vaak("train", theirs / "train.yml", "run_dir=x")
    assert code == 2
    assert f"{theirs / 'train.yml'} is in {theirs}, the folder of a run, and this code would be executed" in err
    Path("mine.yml").write_text((theirs / "config.yml").read_text().replace("./code", "./theirs/code"))
    code, _, err = vaak("train", "mine.yml", "run_dir=x")
    assert code == 2
    assert "theirs/code belongs to a run, and this code would be executed" in err
    assert nothing_ran()


def test_what_extends_a_strangers_configuration_is_not_the_users(
    vaak: Vaak, theirs: Path, tmp_path: Path, nothing_ran: Callable[[], bool]
):
    (tmp_path / "mine.yml").write_text("extends: theirs/config.yml\nname: mine\n")
    code, _, err = vaak("train", "mine.yml")
    assert code == 2
    assert re.search(r"theirs/config\.yml belongs to a run, by its name, .*--trust-code", err)
    (tmp_path / "tasks.yml").write_text(
        "task: multitask\ndata: {tasks: {a: {extends: theirs/config.yml}, b: {extends: theirs/config.yml}}}\n"
    )
    code, _, err = vaak("train", "tasks.yml")
    assert code == 2
    assert nothing_ran()


def test_a_task_of_a_stranger_is_not_imported_to_read_its_options(
    vaak: Vaak, theirs: Path, nothing_ran: Callable[[], bool]
):
    (theirs / "config.yml").write_text("task: ./code/code.py:Huber\n")
    for command in (("config", "check"), ("train",), ("doctor",)):
        code, out, err = vaak(*command, theirs / "config.yml")
        assert code != 0
        assert "names code that is executed to read this configuration: ./code/code.py:Huber" in out + err
    assert nothing_ran()


def test_of_python_too(theirs: Path, nothing_ran: Callable[[], bool]):
    with pytest.raises(UserError, match="this code would be executed"):
        fit(theirs / "config.yml", directory=Path("x"))
    with pytest.raises(UserError, match="this code would be executed"):
        ExperimentConfig.load_config(theirs / "config.yml")
    with pytest.raises(UserError, match="this code would be executed"):
        train(load([theirs / "config.yml"]))
    with pytest.raises(UserError):
        open_run(theirs)
    assert nothing_ran()


def test_trust_is_given_by_the_flag(vaak: Vaak, theirs: Path, tmp_path: Path, base: Path):
    (theirs / "config.yml").write_text(
        f"extends: {base}\ntraining: {{loss: {{main: './code/code.py:Huber'}}, max_steps: 1}}\n"
    )
    code, _, err = vaak("train", theirs / "config.yml", f"run_dir={tmp_path / 'x'}", "--trust-code")
    assert code == 0, err
    assert (tmp_path / "executed").exists()


def test_the_users_own_is_not_asked_about(theirs: Path, base: Path, tmp_path: Path):
    """A file of another name, the command line, and a program are the user's, like a script."""
    (tmp_path / "code").mkdir()
    shutil.copy(theirs / "code" / "code.py", tmp_path / "code")
    (tmp_path / "train.yml").write_text(NAMES_CODE.format(base=base))
    require_trust(load([tmp_path / "train.yml"]))
    shutil.copy(base, tmp_path / "config.yml")
    given = f"training.loss.main={tmp_path}/code/code.py:Huber"
    require_trust(load([tmp_path / "config.yml"], [given]))  # no code in the file itself


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have owners on POSIX")
@pytest.mark.parametrize("whose", ["mine.yml", "code/code.py"])
def test_a_file_of_another_user_is_not_the_users(
    theirs: Path, whose: str, monkeypatch: pytest.MonkeyPatch, nothing_ran: Callable[[], bool]
):
    (theirs / "config.yml").rename(theirs / "mine.yml")
    require_trust(load([theirs / "mine.yml"]))
    stat = Path.stat

    def of_a_colleague(path: Path, **how: bool) -> os.stat_result:
        found = stat(path, **how)
        return os.stat_result((*found[:4], 54321, *found[5:])) if path == theirs / whose else found

    monkeypatch.setattr(Path, "stat", of_a_colleague)
    with pytest.raises(UserError, match=rf"{whose} belongs to the user 54321, and this code would be executed"):
        require_trust(load([theirs / "mine.yml"]))
    require_trust(load([theirs / "mine.yml"], trust_code=True))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "54321")  # who calls sudo owns what they call it on
    require_trust(load([theirs / "mine.yml"]))
    assert nothing_ran()


@pytest.mark.parametrize("reference", ["subprocess:Popen", "os:system", "builtins:exec", "shutil:rmtree"])
def test_parts_of_python_are_never_components(vaak: Vaak, base: Path, tmp_path: Path, reference: str):
    (tmp_path / "mine.yml").write_text(f"extends: {base}\ntraining: {{callbacks: [{{type: '{reference}'}}]}}\n")
    code, _, err = vaak("train", tmp_path / "mine.yml", f"run_dir={tmp_path / 'x'}", "--trust-code")
    assert code == 2
    assert (
        f"mine.yml:2: training.callbacks.0.type: '{reference}': {reference.partition(':')[0]} belongs to Python" in err
    )


def test_the_table_of_the_document_has_every_way():
    page = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    commands = " ".join(re.findall(r"`(vaak [a-z -]+)`", page))
    assert [way for way in WAYS if way not in commands] == []
