"""docs/step.md is true: its lines run in one step, in its order; and a step runs through few files."""

from __future__ import annotations

import ast
import re
from itertools import dropwhile
from pathlib import Path

import pytest

from shape import Function, TracedStep, traced_step

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src/vaak"

MOST_INSIDE, MOST_IN_ALL, MOST_OF_NUMBERS = 10, 31, 8
"""In all, six are of what is logged: one writer of records, links and secrets, and a wait for data that ends."""
LOOP = "engine/trainer.py"


@pytest.fixture(scope="module")
def step() -> TracedStep:
    return traced_step()


def page() -> list[tuple[str, str, str]]:
    """Return the file, the function and the text of each line of the page."""
    (block,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/step.md").read_text(), re.MULTILINE | re.DOTALL)
    rows, file, function = [], "", ""
    for line in block.splitlines():
        if line.startswith("# "):
            file, function = line.removeprefix("# ").partition(":")[0].split(" ")
        else:
            rows.append((file, function, line))
    return rows


def lines_of(file: str, function: str, text: str) -> set[int]:
    """Return the numbers of the lines with this text in a function, which may be a method or within another."""
    content = (SRC / file).read_text()
    found: ast.AST = ast.parse(content)
    for name in function.split("."):
        inner = (node for node in ast.walk(found) if isinstance(node, Function | ast.ClassDef) and node.name == name)
        found = next(inner)
    assert isinstance(found, Function)
    own = range(found.lineno, (found.end_lineno or 0) + 1)
    lines = content.splitlines()
    return {number for number in own if lines[number - 1].strip() == text}


def test_the_page_has_the_lines_of_a_step_in_their_order(step: TracedStep):
    left = iter(step.lines)
    for file, function, text in page():
        wanted = {(str(SRC / file), number) for number in lines_of(file, function, text)}
        assert wanted, f"{file} {function} has no line {text!r}"
        reached = next(dropwhile(lambda line, wanted=wanted: line not in wanted, left), None)  # type: ignore[misc]
        assert reached, f"{file} {function}: {text!r} doesn't run, or not after what is above it"


def test_the_page_is_a_page_and_names_few_files():
    rows = page()
    assert len(rows) <= 40
    assert len({file for file, _, _ in rows} - {LOOP}) <= MOST_OF_NUMBERS


def test_a_step_runs_through_few_files(step: TracedStep):
    assert len(step.files_inside) <= MOST_INSIDE, sorted(step.files_inside)
    assert len(step.files) <= MOST_IN_ALL, sorted(step.files)
