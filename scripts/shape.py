"""The shape of the code in figures: how large, how finely cut, and how much of it one training step passes through.

python scripts/shape.py            # of src/vaak
python scripts/shape.py --step     # trains a few steps of a tiny model, too, and counts what runs in one of them
python scripts/shape.py --override # loads a recipe with an option of the command line, too, and follows that
python scripts/shape.py --check    # exit status 1, and a line each, where a name or a test is against the rules
"""

from __future__ import annotations

import argparse
import ast
import statistics
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
Function = ast.FunctionDef | ast.AsyncFunctionDef
VERBS = frozenset(
    """accept add adopt advance align allow append apply are ask assert assess assign attach attend augment backward
    begin bisect build call can cast change check choose chunk classify clean close cluster collate collect compare
    compile complete compute configure convert convolve copy count cover create cut damage decide decode describe
    detect diarize difference digest discard divide do download draw drop embed encode end ensure estimate evaluate
    examine expand export extract fetch fill filter find finish fit flatten flush fold follow forecast forget fork
    format forward freeze gather generate get give grow guess has hash hear hide hold import infer init initialise
    initialize insert inspect install interpolate invert is iterate join judge keep label lay launch learn leave
    limit link list load locate lock log look make mark mask match measure merge mix move name normalise normalize
    note notify number observe offer open order pack pad parse patch pick place plan play plot predict prepare
    preserve print project prompt publish put query raise read rebuild recompute reconstruct record redirect reduce
    refer refuse register rehearse release remember remove rename render reorder repeat replace replay report
    represent request require resample reset resolve restart restore resume retry return reverse reward rotate round
    route run sample save say score search segment select send set settle shard share shift shorten show shuffle
    simulate skip slice smooth solve sort speak spell split spread stack stage start state step stop store stretch
    strip suggest sum summarize survey swap synthesize take tell test tie to tokenize trace train transcribe
    translate trim try tune turn unfreeze unpack update use validate verify view visit vocode wait walk warn watch
    weigh wrap write""".split()  # noqa: SIM905
)
"""Verbs that begin names of functions, as people in the field write them."""
TINY = (
    "run_dir={folder}/run",
    "model.d_model=16",
    "training.max_steps=8",
    "training.logging.interval=1",
    "training.validation.interval=null",
    "training.checkpoint.interval=null",
    "training.scheduler.warmup_steps=2",
    "training.optimizer.type=adamw",
    "training.batch_size=32",
    "data.corpus.num_sentences=2000",
)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", action="store_true", help="trace a training step")
    parser.add_argument("--override", action="store_true", help="follow an override to its typed field")
    parser.add_argument("--check", action="store_true", help="list names and tests that are against the rules")
    arguments = parser.parse_args()
    if arguments.check:
        wrong = [*wrong_names(), *tests_elsewhere()]
        sys.exit("\n".join(wrong) or None)
    rows = [*sizes(), *grain(), *names(), *tests()]
    if arguments.step:
        rows += [*step_rows()]
    if arguments.override:
        rows += [*override_rows()]
    width = max(len(name) for name, _ in rows)
    for name, figure in rows:
        print(f"{name:<{width}}  {figure:>8,}")


def sizes() -> Iterator[tuple[str, int]]:
    """Return how many files and lines there are, and lines of which kind."""
    lengths = sorted(len(path.read_text().splitlines()) for path in modules().values())
    yield "files", len(lengths)
    yield "lines of a file, median", int(statistics.median(lengths))
    yield "files of under 40 lines", sum(length < 40 for length in lengths)
    yield "files of over 500 lines", sum(length > 500 for length in lengths)
    yield (
        "entries of a folder, at most",
        max(
            sum(1 for entry in folder.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").exists()) - 1
            for folder in {path.parent for path in modules().values()}
        ),
    )
    kinds: Counter[str] = Counter()
    for path in modules().values():
        kinds += kinds_of_lines(path)
    yield "lines", sum(kinds.values())
    for kind in ("code", "blank", "docstrings", "imports", "comments"):
        yield f"  {kind}", kinds[kind]
    yield "comments at the end of a line of code", sum(map(trailing_comments, modules().values()))


def grain() -> Iterator[tuple[str, int]]:
    """Return how finely functions and modules are cut."""
    lengths, private, calls = [], [], Counter[tuple[str, str]]()
    importers: dict[str, set[str]] = defaultdict(set)
    known = modules()
    for name, path in known.items():
        tree = ast.parse(path.read_text())
        for node in ast.walk(tree):
            if isinstance(node, Function):
                lengths.append(lines_of_body(node))
                if node.name.startswith("_") and not node.name.startswith("__"):
                    private.append((name, node.name))
            elif isinstance(node, ast.Name | ast.Attribute):
                calls[name, node.id if isinstance(node, ast.Name) else node.attr] += 1
        for imported in imports_of(tree, known):
            importers[imported].add(name)
    yield "lines of a function's body, median", int(statistics.median(lengths))
    yield "private functions used once", sum(calls[one] == 1 for one in private)
    yield "modules with one importer", sum(len(those) == 1 for those in importers.values())


def names() -> Iterator[tuple[str, int]]:
    """Return how functions and constants are named, and how many lines of comments there are to a thousand."""
    found = [node for path in modules().values() for node in functions(path)]
    yield "functions whose names end in _of", sum(node.name.endswith("_of") for node in found)
    named = [node.name.strip("_").split("_")[0] for node in found if not is_property(node)]
    yield "names that begin with a verb, percent", round(100 * sum(name in VERBS for name in named) / len(named))
    constants: dict[str, set[str]] = defaultdict(set)
    for path in modules().values():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id.isupper():
                constants[node.targets[0].id].add(ast.dump(node.value))
    yield "constants", len(constants)
    yield "  of one name with several values", sum(len(values) > 1 for values in constants.values())


def tests() -> Iterator[tuple[str, int]]:
    """Return how far the folders and files of tests are those of the package."""
    unit = ROOT / "tests" / "unit"
    yield "folders of tests without one of the package", len([*tests_elsewhere()])
    paths = [path.relative_to(SRC / "vaak") for path in modules().values() if path.name != "__init__.py"]
    yield (
        "modules without a test of their name",
        sum(not (unit / path.parent / f"test_{path.stem}.py").exists() for path in paths),
    )


def wrong_names() -> Iterator[str]:
    """Yield a line for each function whose name doesn't say what it does, only what its result is of."""
    for path in modules().values():
        for node in functions(path):
            if node.name.endswith("_of"):
                where = f"{path.relative_to(ROOT)}:{node.lineno}"
                yield f"{where}: {node.name}: begin with what it does: read_, make_, find_"


def tests_elsewhere() -> Iterator[str]:
    """Yield a line for each folder of tests that the package lacks, and each file of their support in no folder."""
    unit = ROOT / "tests" / "unit"
    for folder in sorted({path.parent.relative_to(unit) for path in unit.rglob("test_*.py")}):
        if not (SRC / "vaak" / folder).is_dir():
            yield f"tests/unit/{folder}: src/vaak has no such folder; its tests belong to where their modules are"
    for path in sorted((ROOT / "tests" / "support").glob("*.py")):
        yield f"tests/support/{path.name}: belongs in one of the folders there"


def functions(path: Path) -> Iterator[Function]:
    """Yield the functions of a file, also those in classes and in functions, without those of Python itself."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, Function) and not node.name.startswith("__"):
            yield node


def is_property(function: Function) -> bool:
    """Whether a function is read like a value, so that its name is a noun."""
    return any("property" in ast.unparse(decorator) for decorator in function.decorator_list)


def step_rows() -> Iterator[tuple[str, int]]:
    """Return what runs from the end of one training step to the end of the next, but for the model and its data."""
    step = traced_step()
    yield "files that run inside a step", len(step.files_inside)
    yield "files that run in a step, with loading and logging", len(step.files)
    yield "functions of these", len({code for code in step.codes if code.co_filename in step.files})


OVERRIDDEN = 424242
"""The number that is followed from the command line; nothing else in a configuration has it."""


def override_rows() -> Iterator[tuple[str, int]]:
    """Return what an override goes through from the command line to its typed field, and in the rest of the load.

    A stop is a function of the package that gets or returns the value of the override: as text, as a number, or within
    a container or an object of the package. Parts of functions that have no name (comprehensions) are not counted.
    """
    walk = traced_override()
    yield "stops of an override before its typed field", len(walk.before)
    yield "stops of an override in the load, checks included", len(walk.before | walk.after)
    yield "calls of functions in the load", walk.num_calls


@dataclass
class TracedOverride:
    """The functions that held an override before it was a typed field, and after; and the calls of all functions."""

    before: set[CodeType] = field(default_factory=set)
    after: set[CodeType] = field(default_factory=set)
    num_calls: int = 0
    is_typed: bool = False

    def trace(self, frame: FrameType, event: str, argument: Any) -> None:
        """Take note of who holds the override, for ``sys.setprofile``."""
        code = frame.f_code
        if event not in ("call", "return") or not code.co_filename.startswith(str(SRC)) or code.co_name[0] == "<":
            return
        self.num_calls += event == "call"
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            held = [frame.f_locals.get(name) for name in names]
        else:
            held = [argument]
        if any(map(holds_override, held)):
            (self.after if self.is_typed else self.before).add(code)
        # What checks the value's own type belongs to the way there; an object that has it as a field is its end.
        self.is_typed = self.is_typed or (event == "return" and is_experiment(argument))


def is_experiment(value: Any) -> bool:
    """Whether a value is a typed configuration with the override in it."""
    return type(value).__name__.startswith("Experiment") and holds_override(value)


def holds_override(value: Any, depth: int = 0) -> bool:
    """Whether a value is the override, or has it somewhere inside."""
    if isinstance(value, str):
        return str(OVERRIDDEN) in value
    if isinstance(value, int | float) or depth > 8:
        return bool(value == OVERRIDDEN)
    inside: Any = ()
    if isinstance(value, dict):
        inside = value.values()
    elif isinstance(value, list | tuple):
        inside = value
    elif type(value).__module__.startswith("vaak.") and not isinstance(value, type):
        inside = getattr(value, "__dict__", {}).values()
    return any(holds_override(one, depth + 1) for one in inside)


def traced_override() -> TracedOverride:
    """Load a recipe with an override; return where that went."""
    from vaak.config.load import load

    files, overrides = [ROOT / "configs/quickstart.yml"], [f"training.max_steps={OVERRIDDEN}"]
    # once before, so that nothing that is only done once is counted
    load(files, overrides)
    walk, before = TracedOverride(), sys.getprofile()
    sys.setprofile(walk.trace)
    try:
        load(files, overrides)
    finally:
        sys.setprofile(before)
    return walk


def modules() -> dict[str, Path]:
    """Return the files of the package by the names of their modules."""
    paths = sorted((SRC / "vaak").rglob("*.py"))
    return {".".join(path.relative_to(SRC).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def kinds_of_lines(path: Path) -> Counter[str]:
    """Return how many lines of a file are code, imports, docstrings, comments and blank ones."""
    lines = path.read_text().splitlines()
    kinds = ["code" if line.strip() else "blank" for line in lines]
    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.Import | ast.ImportFrom):
            kind = "imports"
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            kind = "docstrings"
        else:
            continue
        for number in range(node.lineno - 1, node.end_lineno or node.lineno):
            kinds[number] = kind
    for token in comments(path):
        if token.line.strip().startswith("#"):
            kinds[token.start[0] - 1] = "comments"
    return Counter(kinds)


def trailing_comments(path: Path) -> int:
    """Return how many lines of code end in a comment that is for people, and not for a tool."""
    return sum(
        not token.line.strip().startswith("#") and not token.string.startswith(("# noqa", "# type:", "# fmt:"))
        for token in comments(path)
    )


def comments(path: Path) -> list[tokenize.TokenInfo]:
    """Return the comments of a file."""
    with open(path, "rb") as file:
        return [token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT]


def lines_of_body(function: Function) -> int:
    """Return the number of lines below the signature, without the docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def imports_of(tree: ast.AST, known: dict[str, Path]) -> set[str]:
    """Return the modules of the package that a module imports, anywhere in it."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {name if name in known else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found & known.keys()


@dataclass
class TracedStep:
    """The package's code that ran from the end of one training step to the end of the next.

    ``inside`` are the functions within the one whose code is ``call``, ``codes`` all, ``lines`` all lines in their
    order, each with its file.
    """

    call: CodeType
    inside: set[CodeType] = field(default_factory=set)
    codes: set[CodeType] = field(default_factory=set)
    lines: list[tuple[str, int]] = field(default_factory=list)
    depth: int = 0

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        """Take note of what runs, for ``sys.settrace``."""
        code = frame.f_code
        if not code.co_filename.startswith(str(SRC)):
            return None
        if event == "call":
            self.depth += code is self.call
            self.codes.add(code)
            if self.depth:
                self.inside.add(code)
        elif event == "return":
            self.depth -= code is self.call
        elif event == "line":
            self.lines.append((code.co_filename, frame.f_lineno))
        return self.trace

    def begin(self, frame: FrameType | None) -> None:
        """Trace from here on, also what runs already: ``frame`` and those below it."""
        while frame:
            frame.f_trace = self.trace
            frame = frame.f_back
        sys.settrace(self.trace)

    @property
    def files_inside(self) -> set[str]:
        """The files of the step itself."""
        return {code.co_filename for code in self.inside if is_of_training(code)}

    @property
    def files(self) -> set[str]:
        """The files of the step, and of what loads and logs."""
        return {code.co_filename for code in self.codes if is_of_training(code)}


def is_of_training(code: CodeType) -> bool:
    """Return whether a function isn't of a model or its data, which the packages nn, text, audio and tasks have."""
    return Path(code.co_filename).relative_to(SRC / "vaak").parts[0] not in ("nn", "text", "audio", "tasks")


def traced_step() -> TracedStep:
    """Train a tiny model; return what ran in its sixth step, which is logged, and neither evaluated nor saved."""
    from vaak.config.load import load
    from vaak.data import loader
    from vaak.engine.callback import Callback
    from vaak.engine.step import Step
    from vaak.runs.start import open_trainer

    step, before = TracedStep(Step.__call__.__code__), sys.gettrace()

    class Watch(Callback):
        def on_step_end(self, run: Any, report: Any) -> None:
            if report.step == 5:
                step.begin(sys._getframe().f_back)
            elif report.step == 6:
                sys.settrace(before)

    read_ahead, loader.BURST_SECONDS = loader.BURST_SECONDS, 0.0  # each step reads its own data
    try:
        with tempfile.TemporaryDirectory() as folder:
            loaded = load([ROOT / "configs/quickstart.yml"], [one.format(folder=folder) for one in TINY])
            with open_trainer(loaded) as trainer:
                trainer.callbacks.append(Watch())
                trainer.fit()
    finally:
        loader.BURST_SECONDS = read_ahead
        sys.settrace(before)
    return step


if __name__ == "__main__":
    main()
