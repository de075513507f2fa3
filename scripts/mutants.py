"""Mutation testing: how many small mistakes in engine/, data/ and core/ do the tests notice?

    python scripts/mutants.py record runs/covered.json       # once: which tests run which functions; minutes
    python scripts/mutants.py try runs/covered.json --number 150 --seed 0

A mutant is the source with one change: a comparison, an operator or a number is another, a condition is negated, a
statement is left out. Each is tried with the tests that run its function, the quickest first; one that they all pass
has survived. Prints each mutant, the share that was killed, and the survivors.

``--sources`` and ``--tests`` say which files or folders to change and which tests to record, in place of those above.

The tests are collected once; each mutant gets a process that is forked then, in which its function has other code. One
at the top of a module is tried in a copy of ``src``, which has to be imported: that takes longer. So is one that
survives and is in a function that a test runs in another process (a rank, a worker, a command): all of them import the
copy.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import doctest
import gc
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("src/vaak/engine", "src/vaak/data", "src/vaak/core")
TESTS = (
    "tests/unit/engine",
    "tests/unit/data",
    "tests/unit/core",
    "tests/unit/callbacks",
    "tests/unit/runs",
    "tests/contract",
    "tests/past",
    "tests/process",
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


def every_mutant(sources: Sequence[str] = SOURCES) -> list[Mutant]:
    """Return the mutants of all files of ``sources``, in the order of files and places."""
    places = [ROOT / one for one in sources]
    files = sorted({file for place in places for file in (place.rglob("*.py") if place.is_dir() else [place])})
    return [mutant for path in files for mutant in mutants_of(path, str(path.relative_to(ROOT)))]


# Which tests run which functions.

TRACER = """
import os as _os, sys as _sys, threading as _threading

_seen = {}


def _note(frame, event, argument):
    code = frame.f_code
    if id(code) not in _seen:
        _seen[id(code)] = code
        if code.co_filename.startswith(PREFIXES):
            line = f"ran\\t{_os.getpid()}\\t{code.co_filename}\\t{code.co_firstlineno}\\n"
            try:
                file = _os.open(LOG, _os.O_WRONLY | _os.O_APPEND)
                _os.write(file, line.encode())
                _os.close(file)
            except OSError:
                pass


_threading.settrace(_note)
_sys.settrace(_note)
"""
"""What a copy of the package does first while tests are recorded, in each process that imports it."""


class Recorder:
    """A plugin of pytest that notes in ``log`` which test runs from when to when, and its seconds."""

    def __init__(self, log: Path) -> None:
        self.log = log

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        seen, start = sys.modules["vaak"]._seen, time.perf_counter()
        seen.clear()
        self.write("test", item.nodeid)
        sys.settrace(sys.modules["vaak"]._note)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            self.write("took", f"{time.perf_counter() - start:.3f}")

    def write(self, *words: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write("\t".join(words) + "\n")


def record(file: Path, tests: list[str], sources: Sequence[str] = SOURCES) -> int:
    """Run the tests once and write which of them run which functions; return pytest's exit status.

    What ``file`` has of other tests is kept.
    """
    old = Covered(**json.loads(file.read_text())) if file.exists() else Covered({}, {}, {})
    with tempfile.TemporaryDirectory() as folder:
        copy, log = copy_of_sources(Path(folder).resolve()), Path(folder).resolve() / "log"
        prefixes = tuple(f"{copy / one}{'' if one.endswith('.py') else '/'}" for one in sources)
        package = copy / "src/vaak/__init__.py"
        settings = f"\nPREFIXES, LOG = {prefixes!r}, {str(log)!r}\n"
        package.write_text(package.read_text(encoding="utf-8") + settings + TRACER, encoding="utf-8")
        log.touch()
        sys.path.insert(0, str(copy / "src"))
        os.environ["PYTHONPATH"] = str(copy / "src")
        options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", *tests]
        code = pytest.main(options, plugins=[Recorder(log)])
        found = read_log(log.read_text(encoding="utf-8").splitlines(), copy)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(old.updated(found))))
    return int(code)


def read_log(lines: list[str], copy: Path) -> Covered:
    """Return what the lines of a recording say."""
    found, test = Covered({}, {}, {}), ""
    for line in lines:
        kind, *words = line.split("\t")
        if kind == "test":
            test = words[0]
        elif kind == "took":
            found.seconds[test], test = float(words[0]), ""
        elif test:
            process, path, first = words
            functions = found.functions if int(process) == os.getpid() else found.elsewhere
            tests = functions.setdefault(str(Path(path).relative_to(copy)), {}).setdefault(first, [])
            if test not in tests:
                tests.append(test)
    return found


# Trying mutants.


@dataclass(frozen=True)
class Covered:
    """What ``record`` wrote: for each file and the first line of each function of it the tests that run it.

    Those in ``elsewhere`` start the processes that run it.
    """

    functions: dict[str, dict[str, list[str]]]
    elsewhere: dict[str, dict[str, list[str]]]
    seconds: dict[str, float]

    def tests_of(self, mutant: Mutant, most: float, elsewhere: bool = False) -> list[str]:
        """Return the tests that run the mutant's function (of one at the top: any of the file), the quickest first.

        They take ``most`` seconds together, but for the first.
        """
        functions = (self.elsewhere if elsewhere else self.functions).get(mutant.file, {})
        names = set().union(*functions.values()) if mutant.function is None else functions.get(str(mutant.function), [])
        chosen: list[str] = []
        for name in sorted(set(names), key=lambda name: (self.seconds[name], name)):
            if chosen and sum(map(self.seconds.__getitem__, chosen)) + self.seconds[name] > most:
                break
            chosen.append(name)
        return chosen

    def updated(self, new: Covered) -> Covered:
        """Return this with the tests of ``new``, unchanged."""

        def merged(old: dict[str, dict[str, list[str]]], new: dict[str, dict[str, list[str]]]) -> Any:
            both: dict[str, dict[str, list[str]]] = {}
            for found, left_out in ((old, again), (new, set())):
                for file, functions in found.items():
                    for first, tests in functions.items():
                        both.setdefault(file, {}).setdefault(first, []).extend(set(tests) - left_out)
            return both

        again = set(new.seconds)
        functions, elsewhere = merged(self.functions, new.functions), merged(self.elsewhere, new.elsewhere)
        return Covered(functions, elsewhere, {**self.seconds, **new.seconds})


class Trials:
    """A plugin of pytest that, in place of running the tests, tries mutants with them."""

    def __init__(self, covered: Covered, mutants: list[Mutant], most: float) -> None:
        self.covered, self.mutants, self.most = covered, mutants, most
        self.num_tried = 0
        self.survived: list[Mutant] = []

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        items = {item.nodeid: item for item in session.items}
        with tempfile.TemporaryDirectory() as folder:
            copy = copy_of_sources(Path(folder))
            for mutant in self.mutants:
                names = [name for name in self.covered.tests_of(mutant, self.most) if name in items]
                killed = bool(names) and self.is_killed(mutant, [items[name] for name in names], copy)
                if not killed:
                    others = [name for name in self.covered.tests_of(mutant, self.most, True) if name in items]
                    killed = bool(others) and self.is_killed(mutant, [items[name] for name in others], copy, True)
                    names += others
                self.survived += [] if killed else [mutant]
                self.num_tried += 1
                print("killed  " if killed else "SURVIVED", mutant, f"({len(names)} tests)", flush=True)
        return True

    def is_killed(self, mutant: Mutant, items: list[pytest.Item], copy: Path, everywhere: bool = False) -> bool:
        """Whether a test fails in a process that has the mutant; ``everywhere``: and those that it starts."""
        child = os.fork()
        if child == 0:
            status = BROKEN
            with contextlib.suppress(BaseException):
                keep_silent()
                names = [item.nodeid for item in items]
                status = run(mutant, items) if not everywhere and has_code(mutant) else run_in_copy(mutant, names, copy)
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


def run(mutant: Mutant, items: list[pytest.Item]) -> int:
    """Run the examples of the file's docstrings, then tests until one fails; return 1 if one does."""
    try:
        module = sys.modules.get(".".join(Path(mutant.file).relative_to("src").with_suffix("").parts))
        if module is not None and doctest.testmod(module).failed:
            return 1
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


def try_mutants(
    covered: Covered, number: int, seed: int, most: float, sources: Sequence[str] = SOURCES
) -> list[Mutant]:
    """Try ``number`` mutants and print each; return those that survived."""
    every = every_mutant(sources)
    chosen = random.Random(seed).sample(every, min(number, len(every)))
    files = sorted({name.partition("::")[0] for name in covered.seconds})
    trials = Trials(covered, chosen, most)
    pytest.main(["-q", "-s", "-n", "0", "-p", "no:cacheprovider", "-m", "not slow", *files], plugins=[trials])
    killed = trials.num_tried - len(trials.survived)
    print(f"\n{killed} of {trials.num_tried} mutants killed (seed {seed}, of {len(every)})")
    return trials.survived


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "try"])
    parser.add_argument("file", type=Path, help="what record writes, and try reads")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="folders of tests to record")
    parser.add_argument("--sources", nargs="+", default=list(SOURCES), help="files or folders to change")
    parser.add_argument("--number", type=int, default=150, help="mutants to try")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--seconds", type=float, default=60.0, help="of tests for a mutant, as recorded")
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.what == "record":
        raise SystemExit(record(given.file, given.tests, given.sources))
    covered = Covered(**json.loads(given.file.read_text()))
    survived = try_mutants(covered, given.number, given.seed, given.seconds, given.sources)
    for mutant in survived:
        print("survived:", mutant)


if __name__ == "__main__":
    main()
