"""Every imported package is declared, and the core imports no optional part of Vaak."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from vaak.core.extras import FIRST_CHOICES, find_extra
from vaak.runs.preflight.doctor.packages import OPTIONAL

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "vaak"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"].keys() - {"test", "dev", "docs"}
"""Those for users."""
PACKAGES = {"google": "protobuf", "ruamel": "ruamel.yaml", "sklearn": "scikit-learn", "umap": "umap-learn"}
"""Packages whose module has another name."""
UNDECLARED = {
    "ipython",  # a notebook's own
    "pandas",  # only frames that a user gives
    "pydantic_core",  # pydantic's own, at the version that it pins
    "triton",  # torch's own, on CUDA
}
LEAVES = ("vaak.compat", "vaak.text.grammar")
ON_DEMAND = {
    "tasks/classification/starter.py",  # vaak init --example
    "tasks/lm/starter.py",
    "tasks/seq2seq/starter.py",
    "tasks/lm/metrics.py",  # data.minimal_pairs: grammar
    "text/corpora/corpus.py",  # data.corpus.type: grammar
    "text/corpora/labelled.py",
    "text/corpora/parallel.py",
}
"""Where the generated Hindi is imported, since a YAML names it."""


@functools.cache
def imported(file: Path) -> tuple[set[str], set[str]]:
    """The modules that a file imports anywhere, or names to import_module; and those that it imports at its top."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    anywhere, top = ({name for node in nodes for name in named(node)} for nodes in (ast.walk(tree), tree.body))
    return anywhere, top


def named(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and "import_module" in (getattr(node.func, name, "") for name in ("id", "attr")):
        yield from (str(argument.value) for argument in node.args if isinstance(argument, ast.Constant))


def name_of(requirement: str) -> str:
    return requirement.split(";")[0].split("[")[0].strip().split(">")[0].split("<")[0].lower().replace("-", "_")


def test_every_package_that_is_imported_is_declared():
    extras = PROJECT["optional-dependencies"]
    declared = {name_of(line) for lines in (PROJECT["dependencies"], *extras.values()) for line in lines}
    used: dict[str, str] = {}
    for file in SOURCE.rglob("*.py"):
        for module in imported(file)[0]:
            root = module.partition(".")[0]
            used.setdefault(PACKAGES.get(root, root).lower().replace("-", "_"), str(file.relative_to(ROOT)))
    standard = {name.lower() for name in sys.stdlib_module_names}
    assert {name: file for name, file in used.items() if name not in declared | standard | UNDECLARED | {"vaak"}} == {}


def test_every_extra_for_users_is_tried_by_its_script():
    """``scripts/extras.py`` has a use of each; docs/doctor.md, what it printed."""
    tree = ast.parse((ROOT / "scripts/extras.py").read_text(encoding="utf-8"))
    uses = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "USES"
    )
    assert isinstance(uses, ast.Dict)
    tried = {key.value for key in uses.keys if isinstance(key, ast.Constant)}
    assert tried == {"core", *EXTRAS}
    page = (ROOT / "docs/doctor.md").read_text(encoding="utf-8")
    section = page.partition("## What each extra is for")[2].partition("\n## ")[0]
    assert {*re.findall(r"^\| `([\w-]+)` \|", section, re.MULTILINE)} == tried


def test_the_doctor_knows_a_package_of_every_extra_for_users():
    assert {find_extra(module) for module in OPTIONAL} == EXTRAS


def test_a_package_of_several_extras_has_one_that_is_advised():
    having: dict[str, list[str]] = {}
    for extra in EXTRAS:
        for line in PROJECT["optional-dependencies"][extra]:
            having.setdefault(name_of(line).replace("_", "-"), []).append(extra)
    shared = {package: extras for package, extras in having.items() if len(extras) > 1}
    assert shared.keys() == FIRST_CHOICES.keys()
    assert [package for package, extra in FIRST_CHOICES.items() if extra not in shared[package]] == []
    assert (find_extra("matplotlib.pyplot"), find_extra("fastapi")) == (
        "plot",
        "serve",
    )  # not demo, which brings gradio


def test_the_core_imports_no_leaf_but_where_a_yaml_names_it():
    found = set()
    for file in SOURCE.rglob("*.py"):
        path = file.relative_to(SOURCE).as_posix()
        inside = "vaak." + path.replace("/", ".")
        if inside.startswith(LEAVES):
            continue
        anywhere, at_the_top = imported(file)
        if any(module.startswith(LEAVES) for module in anywhere):
            found.add(path)
        assert not [module for module in at_the_top if module.startswith(LEAVES)], path
    assert found == ON_DEMAND


PICKLING = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
OBJECT_MESSAGES = re.compile(r"(all_gather|broadcast|gather|scatter|send|recv)_object")
"""torch's collectives that pickle what they send."""


def test_nothing_is_unpickled_but_what_a_process_sends_its_own_loaders():
    files = {file.relative_to(SOURCE).as_posix(): file for file in SOURCE.rglob("*.py")}
    found = {name for name, file in files.items() if PICKLING & {m.partition(".")[0] for m in imported(file)[0]}}
    assert found == {"data/workers.py"}
    assert [name for name, file in files.items() if OBJECT_MESSAGES.search(file.read_text(encoding="utf-8"))] == []


WITHOUT = """
import sys
from vaak.cli.main import exit_on_error
for missing, code in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[missing] = None
    try:
        exit_on_error(lambda: exec(code, {}))
    except SystemExit as end:
        print(end.code)
"""
ASKING = {
    "sacrebleu": ("import vaak.tasks.seq2seq.task", "seq2seq"),
    "accelerate": ("from vaak.engine.distributed.ranks import accelerate_tracker as f; f('mlflow')", "accelerate"),
}


@pytest.mark.slow
def test_without_an_extra_a_line_says_what_to_install():
    given = [word for missing, (code, _) in ASKING.items() for word in (missing, code)]
    done = subprocess.run([sys.executable, "-c", WITHOUT, *given], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "2"]
    for line, (missing, (_, extra)) in zip(done.stderr.splitlines(), ASKING.items(), strict=True):
        assert f"requires {missing}: pip install 'vaak[{extra}]'" in line
