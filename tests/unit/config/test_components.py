"""Classes by name, checked without running them and found next to the YAML."""

import gc
import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest

from vaak.config.components import CALLBACKS, LOSSES, explain_missing, resolve_class, seen_from, source_file
from vaak.config.load import load
from vaak.config.tasks import TASKS, load_name
from vaak.core.errors import UserError

CODE = "import sys\nsys.vaak_ran = True\nclass Huber:\n    here = __file__\nSmooth = Huber\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_loss.py").write_text(CODE)
    monkeypatch.delattr(sys, "vaak_ran", raising=False)
    return tmp_path


def test_a_class_of_each_kind(folder):
    builtin = {"path": "numpy:ndarray"}
    assert resolve_class("path", builtin, folder) is np.ndarray
    assert resolve_class("numpy:ndarray", builtin, folder) is np.ndarray
    huber = resolve_class("./my_loss.py:Huber", builtin, folder)
    assert huber.here == str(folder / "my_loss.py")
    assert resolve_class("./my_loss.py:Smooth", builtin, folder) is huber


def test_a_traceback_that_another_thread_formats_meanwhile_disturbs_nothing(folder):
    """Both make syntax trees; until Python 3.11.8, one that was interrupted ended in a SystemError."""

    def format_tracebacks():
        while not ended.is_set():
            try:
                raise ValueError(len("a line that has") + len("more than one expression"))
            except ValueError:
                traceback.format_exc()

    def let_others_run(phase, info):
        """A callback in Python, as profilers have them: at it, other threads get their turn."""

    ended = threading.Event()
    other = threading.Thread(target=format_tracebacks)
    interval, thresholds = sys.getswitchinterval(), gc.get_threshold()
    try:
        gc.callbacks.append(let_others_run)
        gc.set_threshold(50)
        sys.setswitchinterval(1e-6)
        other.start()
        for number in range(50):
            Path("long.py").write_text(f"one = {number}\n" + "".join(f"class A{n}: x = [{n}]\n" for n in range(100)))
            assert explain_missing("./long.py:A99", folder) is None
    finally:
        ended.set()
        gc.callbacks.remove(let_others_run)
        gc.set_threshold(*thresholds)
        sys.setswitchinterval(interval)
        other.join()


def test_a_users_file_is_imported_and_nothing_written_next_to_it(folder, monkeypatch):
    """It may be in a run's folder, which a replay doesn't change."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    resolve_class("./my_loss.py:Huber", {}, folder)
    assert [path.name for path in folder.iterdir()] == ["my_loss.py"]


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("pth", "'pth' is not known; expected one of path, ./file.py:Name or package.module:Name; did you mean path?"),
        ("./none.py:Huber", "none.py can't be read"),
        ("./my_loss.py:Hubber", "has no Hubber; did you mean Huber?"),
        ("./my_loss.py:not a name", "is not of the form ./file.py:Name or package.module:Name"),
        ("no_such_package:X", "no package no_such_package"),
        ("numpy:Nope", "numpy:Nope can't be loaded"),
        ("pathlib:Path", "'pathlib:Path': pathlib belongs to Python; name a class that is made for this"),
        ("../x y:Z", "is not of the form ./file.py:Name or package.module:Name"),
    ],
)
def test_what_is_no_class(folder, reference, expected):
    with pytest.raises(UserError) as error:
        resolve_class(reference, {"path": "numpy:ndarray"}, folder)
    assert expected in str(error.value)


def test_a_broken_file_is_named_with_its_line(folder):
    (folder / "bad.py").write_text("def (\n")
    assert "bad.py is not valid Python" in str(explain_missing("./bad.py:X", folder))


def test_loading_a_configuration_runs_no_code_of_the_user(folder):
    (folder / "f.yml").write_text("task: lm\ntraining: {loss: ./my_loss.py:Huber}\n")
    loaded = load(["f.yml"])
    assert loaded.experiment.training.loss.main.type == "./my_loss.py:Huber"
    assert not hasattr(sys, "vaak_ran")
    (folder / "f.yml").write_text("task: lm\ntraining: {loss: ./my_loss.py:Huberr}\n")
    with pytest.raises(
        UserError, match=r"f.yml:2: training.loss.main.type: my_loss.py has no Huberr; did you mean Huber"
    ):
        load(["f.yml"])


def test_a_name_in_a_base_is_seen_from_the_bases_folder(folder):
    (folder / "base").mkdir()
    (folder / "base" / "own.py").write_text(CODE)
    (folder / "base" / "base.yml").write_text("task: lm\ntraining: {callbacks: [./own.py:Huber]}\n")
    (folder / "f.yml").write_text("extends: base/base.yml\n")
    loaded = load([folder / "f.yml"])
    reference = loaded.experiment.training.callbacks[0].type
    assert reference == "./base/own.py:Huber"
    assert source_file(reference, loaded.folder) == folder / "base" / "own.py"
    (folder / "configs").mkdir()
    (folder / "configs" / "f.yml").write_text("task: lm\n")
    loaded = load(["configs/f.yml"], ["training.callbacks=[./my_loss.py:Huber]"])
    assert loaded.experiment.training.callbacks[0].type == "../my_loss.py:Huber"


def test_references_that_do_not_move():
    assert seen_from("cross_entropy", Path("a"), Path("b")) == "cross_entropy"
    assert seen_from("package.module:Name", Path("a"), Path("b")) == "package.module:Name"
    assert seen_from("/abs/file.py:Name", Path("a"), Path("b")) == "/abs/file.py:Name"
    assert source_file("package.module:Name", Path()) is None


@pytest.mark.parametrize("reference", [*LOSSES.values(), *CALLBACKS.values(), *(spec.task for spec in TASKS.values())])
def test_the_catalog_names_what_exists(reference):
    assert isinstance(load_name(reference), type)


def test_a_configuration_may_name_a_registered_loss(tmp_path):
    from torch import nn

    from vaak.config.load import load
    from vaak.nn.losses import LossRegistry

    class Gentle(nn.Module):
        def forward(self, outputs, targets):
            return nn.functional.cross_entropy(outputs, targets, reduction="none")

    file = tmp_path / "run.yml"
    file.write_text("task: lm\ntraining: {loss: {main: gentle_for_this_test}}")
    with pytest.raises(UserError, match="gentle_for_this_test"):
        load([file])
    LossRegistry.register("gentle_for_this_test", Gentle)
    assert load([file]).experiment.training.loss.main.type == "gentle_for_this_test"
    assert LossRegistry.find("gentle_for_this_test", tmp_path) is Gentle
