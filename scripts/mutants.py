"""Mutation testing: how many small mistakes in engine/, data/ and core/ do the tests notice?

    python scripts/mutants.py record runs/covered.json       # once: which tests run which functions; minutes
    python scripts/mutants.py try runs/covered.json --number 150 --seed 0

A mutant is the source with one change: a comparison, an operator or a number is another, a condition is negated, a
statement is left out. Each is tried in a copy of ``src``, with the tests that run its function, the quickest first; one
that they all pass has survived. Prints each mutant, the share that was killed, and the survivors.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src/vaak/engine", "src/vaak/data", "src/vaak/core")
TESTS = ("tests/unit/engine", "tests/unit/data", "tests/unit/core", "tests/unit/callbacks", "tests/contract")
MOST_SECONDS = 120.0
"""A mutant that takes the tests longer than this more than they took is killed, too: it hangs."""

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

    ``function`` is the first line of the innermost function around it, None at the top of the module.
    """

    file: str
    line: int
    start: int
    end: int
    old: str
    new: str
    function: int | None

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

    def add(node: Any, new: ast.AST, function: int | None) -> None:
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(new)
        text = text if isinstance(new, ast.stmt | ast.Constant) else f"({text})"
        found.append(Mutant(file, node.lineno, start, end, source[start:end].decode(), text, function))

    def visit(node: ast.AST, function: int | None) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        new = changed(node)
        if new is not None:
            add(node, new, function)
        if isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(node.test, ast.Compare | ast.UnaryOp):
            add(node.test, ast.UnaryOp(ast.Not(), node.test), function)
        for child in children(node):
            visit(child, function)

    visit(ast.parse(source), None)
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
            for code in self.seen:
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


def is_killed(mutant: Mutant, tests: list[str], copy: Path, limit: float) -> bool:
    """Write the mutant into the copy of the sources, run the tests in a process of their own, and put it back."""
    file = copy / mutant.file
    source = file.read_bytes()
    file.write_bytes(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
    try:
        child = os.fork()
        if child == 0:
            os._exit(run_tests(tests, copy))
        return status_of(child, limit) != 0
    finally:
        file.write_bytes(source)


def run_tests(tests: list[str], copy: Path) -> int:
    """Run tests on the sources of the copy, without output; return pytest's exit status."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nowhere, descriptor)
    os.environ["PYTHONPATH"] = str(copy / "src")
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(copy / "src"))
    try:
        return int(pytest.main(["-q", "-x", "-n", "0", "-p", "no:cacheprovider", *tests]))
    except BaseException:
        return 1


def status_of(child: int, limit: float) -> int:
    """Return how a process ended; one that takes longer than ``limit`` seconds is killed, with those it started."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return status
        time.sleep(0.1)
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
    import torch  # noqa: F401  # once, for all processes that are forked

    every = every_mutant()
    chosen = random.Random(seed).sample(every, min(number, len(every)))
    survived = []
    with tempfile.TemporaryDirectory() as folder:
        copy = copy_of_sources(Path(folder))
        unchanged = replace(chosen[0], new=chosen[0].old)
        for mutant in [unchanged, *chosen]:
            tests = covered.tests_of(mutant, most)
            killed = bool(tests) and is_killed(mutant, tests, copy, MOST_SECONDS + 5 * most)
            if mutant is unchanged:
                if killed:
                    raise SystemExit(f"the tests of {mutant} fail without a mutant, too; record again")
                continue
            survived += [] if killed else [mutant]
            print("killed  " if killed else "SURVIVED", mutant, f"({len(tests)} tests)", flush=True)
    print(f"\n{len(chosen) - len(survived)} of {len(chosen)} mutants killed (seed {seed}, of {len(every)})")
    return survived


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
