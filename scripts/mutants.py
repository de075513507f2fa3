"""Mutation testing: how many small mistakes in engine/, data/ and core/ do the tests notice?

    python scripts/mutants.py record runs/covered.json       # once: which tests run which functions; minutes
    python scripts/mutants.py try runs/covered.json --number 150 --seed 0

A mutant is the source with one change: a comparison, an operator or a number is another, a condition is negated, a
statement is left out. Each is tried with the tests that run its function, the quickest first; one that they all pass
has survived. Prints each mutant, the share that was killed, and the survivors.

The tests are collected once; each mutant gets a process that is forked then, in which its function has other code. One
at the top of a module is tried in a copy of ``src``, which has to be imported: that takes longer.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src/vaak/engine", "src/vaak/data", "src/vaak/core")
TESTS = (
    "tests/unit/engine",
    "tests/unit/data",
    "tests/unit/core",
    "tests/unit/callbacks",
    "tests/contract",
    "tests/past",
)
MOST_SECONDS = 120.0
"""A mutant that takes the tests longer than this more than they took is killed, too: it hangs."""
BROKEN = 99
"""How the process of a mutant ends that could not be tried."""

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A change of a file (below the root): the bytes from ``start`` to ``end`` become ``new``.

    ``function`` is the first line of the innermost function around it and ``outer`` of the outermost; None at the top
    of the module.
    """

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    function: int | None
    outer: int | None

    def __str__(self) -> str:
        old, new = (" ".join(text.split())[:90] for text in (self.old, self.new))
        return f"{self.file}:{self.line}: {old}  ->  {new}"


# Mutants of a file.


def changed(node: ast.AST) -> ast.AST | None:
    """Return a node with one mistake in it, None where there is none to make."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        return ast.Compare(node.left, [COMPARISONS[type(node.ops[0])]()], node.comparators)
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        return ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    if isinstance(node, ast.BoolOp):
        return ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        return ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    return changed_statement(node)


def changed_statement(node: ast.AST) -> ast.AST | None:
    """Return ``pass`` in place of a statement that a function can do without and still be a function."""
    if isinstance(node, ast.Raise | ast.AugAssign | ast.Continue | ast.Break) or is_call(node):
        return ast.Pass()
    if isinstance(node, ast.Assign) and not any(isinstance(target, ast.Name | ast.Tuple) for target in node.targets):
        return ast.Pass()
    return None


def is_call(node: ast.AST) -> bool:
    """Whether this is a statement that calls something other than the log."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and not is_log(node.value)


def is_log(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and getattr(call.func.value, "id", None) in ("log", "warnings")


def children(node: ast.AST) -> Iterator[ast.AST]:
    """Return the nodes below this one whose change a test could notice: not annotations, log lines or assertions."""
    left_out: list[Any] = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    left_out += getattr(node, "decorator_list", [])
    for child in ast.iter_child_nodes(node):
        logs = isinstance(child, ast.Expr) and isinstance(child.value, ast.Call) and is_log(child.value)
        if not (logs or isinstance(child, ast.Assert | ast.JoinedStr) or any(child is one for one in left_out)):
            yield child


def mutants_of(path: Path, file: str) -> list[Mutant]:
    """Return every mutant of a file."""
    source = path.read_bytes()
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []

    def add(node: Any, new: ast.AST, around: list[int]) -> None:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(new)
        text = text if isinstance(new, ast.stmt | ast.Constant) else f"({text})"
        function, outer = (around[-1], around[0]) if around else (None, None)
        found.append(Mutant(file, node.lineno, start, end, source[start:end].decode(), text, function, outer))

    def visit(node: ast.AST, around: list[int]) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            around = [*around, min([node.lineno, *(one.lineno for one in node.decorator_list)])]
        new = changed(node)
        if new is not None:
            add(node, new, around)
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
            add(node.test, ast.UnaryOp(ast.Not(), node.test), around)
        for child in children(node):
            visit(child, around)

    visit(ast.parse(source), [])
    return found


def every_mutant() -> list[Mutant]:
    """Return the mutants of all files of SOURCES, in the order of files and places."""
    files = sorted(path for folder in SOURCES for path in (ROOT / folder).rglob("*.py"))
    return [mutant for path in files for mutant in mutants_of(path, str(path.relative_to(ROOT)))]


# Which tests run which functions.


class Recorder:
    """A plugin of pytest that notes which functions of SOURCES each test runs, and its seconds."""

    def __init__(self) -> None:
        self.functions: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        self.seconds: dict[str, float] = {}
        self.seen: set[CodeType] = set()
        self.prefixes = tuple(str(ROOT / folder) for folder in SOURCES)

    def note(self, frame: FrameType, event: str, argument: Any) -> None:
        self.seen.add(frame.f_code)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.seen, start = set(), time.perf_counter()
        threading.settrace(self.note)
        sys.settrace(self.note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)
            self.seconds[item.nodeid] = round(time.perf_counter() - start, 3)
            for code in self.seen.copy():  # a thread of the test may still add to it
                if code.co_filename.startswith(self.prefixes):
                    file = str(Path(code.co_filename).relative_to(ROOT))
                    self.functions[file][str(code.co_firstlineno)].append(item.nodeid)


def record(file: Path, tests: list[str]) -> int:
    """Run the tests once and write which of them run which functions; return pytest's exit status."""
    recorder = Recorder()
    code = pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", *tests], plugins=[recorder])
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"functions": recorder.functions, "seconds": recorder.seconds}))
    return int(code)


# Trying mutants.


@dataclass(frozen=True)
class Covered:
    """What ``record`` wrote."""

    functions: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant, most: float) -> list[str]:
        """Return the tests that run the mutant's function (of one at the top: any of the file), the quickest first.

        They take ``most`` seconds together, but for the first.
        """
        functions = self.functions.get(mutant.file, {})
        names = set().union(*functions.values()) if mutant.function is None else functions.get(str(mutant.function), [])
        chosen: list[str] = []
        for name in sorted(set(names), key=lambda name: (self.seconds[name], name)):
            if chosen and sum(map(self.seconds.__getitem__, chosen)) + self.seconds[name] > most:
                break
            chosen.append(name)
        return chosen


class Trials:
    """A plugin of pytest that, in place of running the tests, tries mutants with them."""

    def __init__(self, covered: Covered, mutants: list[Mutant], most: float) -> None:
        self.covered, self.mutants, self.most = covered, mutants, most
        self.survived: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_of_sources(Path(folder))
            for mutant in self.mutants:
                names = [name for name in self.covered.tests_of(mutant, self.most) if name in items]
                killed = bool(names) and self.is_killed(mutant, [items[name] for name in names], copy)
                self.survived += [] if killed else [mutant]
                print("killed  " if killed else "SURVIVED", mutant, f"({len(names)} tests)", flush=True)
        return True

    def is_killed(self, mutant: Mutant, items: list[pytest.Item], copy: Path) -> bool:
        """Whether a test fails in a process that has the mutant."""
        child = os.fork()
        if child == 0:
            status = BROKEN
            with contextlib.suppress(BaseException):
                keep_silent()
                names = [item.nodeid for item in items]
                status = run(items) if has_code(mutant) else run_in_copy(mutant, names, copy)
            os._exit(status)
        status = status_of(child, MOST_SECONDS + 5 * self.most)
        shutil.copy(ROOT / mutant.file, copy / mutant.file)
        if os.waitstatus_to_exitcode(status) == BROKEN:
            raise RuntimeError(f"{mutant} could not be tried")
        return status != 0


def keep_silent() -> None:
    """Begin a group of processes without output."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)


def run(items: list[pytest.Item]) -> int:
    """Run tests until one fails; return 1 if one does."""
    try:
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if item.session.testsfailed:
                return 1
    except BaseException:
        return 1
    return 0


def has_code(mutant: Mutant) -> bool:
    """Give every function that was made of the mutant's outermost one its code; return False where that can't be."""
    path = str(ROOT / mutant.file)
    todo, new = [compile(mutated(mutant), path, "exec")], None
    while todo and new is None and mutant.outer is not None:
        inner = [one for one in todo.pop().co_consts if isinstance(one, CodeType)]
        new = next((one for one in inner if one.co_firstlineno == mutant.outer and one.co_flags & CO_OPTIMIZED), None)
        todo += inner
    if new is None:
        return False
    gc.unfreeze()  # tests/conftest.py has hidden what was imported
    functions = [one for one in gc.get_objects() if type(one) is FunctionType]
    place = path, mutant.outer, new.co_name
    ours = [one for one in functions if (one.__code__.co_filename, one.__code__.co_firstlineno, one.__name__) == place]
    try:
        for function in ours:
            function.__code__ = new
    except ValueError:  # it has other variables of the functions around it
        return False
    return bool(ours)


def mutated(mutant: Mutant) -> bytes:
    source = (ROOT / mutant.file).read_bytes()
    return source[: mutant.start] + mutant.new.encode() + source[mutant.end :]


def run_in_copy(mutant: Mutant, tests: list[str], copy: Path) -> int:
    """Run tests in a process that imports the copy with the mutant in it; return pytest's exit status."""
    (copy / mutant.file).write_bytes(mutated(mutant))
    environment = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]
    return subprocess.run(command, env=environment, check=False).returncode


def status_of(child: int, limit: float) -> int:
    """Return how a process ended; one that takes longer than ``limit`` seconds is killed, with those it started."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def copy_of_sources(folder: Path) -> Path:
    """Copy ``src`` into a folder that otherwise looks like the repository."""
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for path in ROOT.iterdir():
        if path.name not in ("src", ".git"):
            (folder / path.name).symlink_to(path)
    return folder


def try_mutants(covered: Covered, number: int, seed: int, most: float) -> list[Mutant]:
    """Try ``number`` mutants and print each; return those that survived."""
    every = every_mutant()
    chosen = random.Random(seed).sample(every, min(number, len(every)))
    files = sorted({name.partition("::")[0] for name in covered.seconds})
    trials = Trials(covered, chosen, most)
    pytest.main(["-q", "-s", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", *files], plugins=[trials])
    killed = len(chosen) - len(trials.survived)
    print(f"\n{killed} of {len(chosen)} mutants killed (seed {seed}, of {len(every)})")
    return trials.survived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "try"])
    parser.add_argument("file", type=Path, help="what record writes, and try reads")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="folders of tests to record")
    parser.add_argument("--number", type=int, default=150, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for a mutant, as recorded")
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.what == "record":
        raise SystemExit(record(given.file, given.tests))
    survived = try_mutants(Covered(**json.loads(given.file.read_text())), given.number, given.seed, given.seconds)
    for mutant in survived:
        print("survived:", mutant)


if __name__ == "__main__":
    main()
