"""The names of ``import vaak`` are these, typed and lazy."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import vaak
import vaak.audio
import vaak.nn

NAMES = {
    vaak: {
        *("Batch", "Callback", "Dataset", "Meters", "SimpleTask", "Task", "Term", "TrainedRun", "UserError"),
        *("audio", "callbacks", "check", "fit", "load_config", "nn", "open", "study"),
        *("register_auxiliary_loss", "register_loss", "register_optimizer", "register_schedule"),
        *("register_network", "register_task", "register_tokenizer"),
    },
    vaak.nn: {"Attention", "ModelFactory", "decoder", "encoder"},
    vaak.audio: {
        "AudioConfig",
        "Features",
        "LabelledAudio",
        "MelConfig",
        "MelSpectrogram",
        "Segment",
        "der",
        "simulate",
    },
}
packages = pytest.mark.parametrize("package", NAMES, ids=lambda package: package.__name__)


@packages
def test_the_public_names_are_frozen(package):
    assert set(package.__all__) == NAMES[package]
    assert not hasattr(package, "nothing_of_that_name")
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018


@packages
def test_the_types_are_those_of_the_lazy_names(package):
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    (guarded,) = (node for node in tree.body if isinstance(node, ast.If))
    typed = [
        (node.module or "", alias.name)
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert {name for _, name in typed} == set(package.__all__)
    for module, name in typed:
        assert getattr(importlib.import_module(module), name) is getattr(package, name)


def test_importing_vaak_imports_nothing_else():
    code = "import sys, vaak; print({'torch', 'numpy', 'pydantic', 'accelerate'} & {*sys.modules} or 'none')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none"
    assert (Path(vaak.__file__).parent / "py.typed").exists()
