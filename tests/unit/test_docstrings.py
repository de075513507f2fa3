"""Docstrings: a function with more than four parameters names each of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import vaak

SOURCE = Path(vaak.__file__).parent
MOST_UNNAMED = 4

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(node: ast.AST, of_class: ast.ClassDef | None = None) -> Iterator[tuple[Function, ast.ClassDef | None]]:
    """All functions below a node, each with the class whose method it is."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child, of_class
        yield from functions(child, child if isinstance(child, ast.ClassDef) else None)


def parameters_of(function: Function) -> list[ast.arg]:
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [one for one in every if one.arg not in ("self", "cls")]


def unnamed(function: Function, of_class: ast.ClassDef | None, with_help: set[str]) -> list[str]:
    """The parameters that neither the docstring names nor, of a command, ``help=`` of typer describes.

    The options of a section, which ``with_options_of(..., into=NAME)`` gives a command, are described in the section.
    """
    text = ast.get_docstring(function) or ""
    if function.name == "__init__" and of_class is not None:
        text += ast.get_docstring(of_class) or ""
    return [
        one.arg
        for one in parameters_of(function)
        if not re.search(rf"\b{one.arg}\b", text)
        and not describes(one.annotation, with_help)
        and one.arg not in sections_of(function)
    ]


def sections_of(function: Function) -> list[str]:
    """The parameters that hold the options of a section."""
    return [
        keyword.value.value
        for decorator in function.decorator_list
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", None) == "with_options_of"
        for keyword in decorator.keywords
        if keyword.arg == "into" and isinstance(keyword.value, ast.Constant) and isinstance(keyword.value.value, str)
    ]


def describes(annotation: ast.expr | None, with_help: set[str]) -> bool:
    """Whether an annotation has typer's ``help=``, or is one of the names of those that do."""
    if isinstance(annotation, ast.Name):
        return annotation.id in with_help
    return annotation is not None and any(
        isinstance(call, ast.keyword) and call.arg == "help" for call in ast.walk(annotation)
    )


def names_with_help(trees: list[ast.Module]) -> set[str]:
    """``Weights = Annotated[…, typer.Option(help=…)]`` and the like, at the top of a module."""
    return {
        target.id
        for tree in trees
        for statement in tree.body
        if isinstance(statement, ast.Assign) and describes(statement.value, set())
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def complaints(trees: dict[str, ast.Module]) -> list[str]:
    with_help = names_with_help(list(trees.values()))
    return [
        f"{name}:{function.lineno} {function.name}: {', '.join(missing)}"
        for name, tree in trees.items()
        for function, of_class in functions(tree)
        if len(parameters_of(function)) > MOST_UNNAMED and (missing := unnamed(function, of_class, with_help))
    ]


def test_more_than_four_parameters_are_named_in_the_docstring() -> None:
    trees = {str(path.relative_to(SOURCE)): ast.parse(path.read_text("utf-8")) for path in SOURCE.rglob("*.py")}
    assert len(trees) > 100
    assert not complaints(trees)


def test_what_is_missing_is_found() -> None:
    source = '''
Known = Annotated[str, typer.Option(help="Described.")]

class Thing:
    """A thing of ``a``, ``b`` and ``c``."""

    def __init__(self, a, b, c, d, e): """With ``d``."""

    def method(self, a, b, c, d, *, e):
        def inner(a, b, c, d, e): """``a``, ``b``, ``c``, ``d``, ``e``"""

def few(a, b, c, d): ...

def command(a: Known, b: Annotated[int, typer.Option(help="A number.")], c: Unknown, d, e): """Of ``d`` and ``e``."""
'''
    assert complaints({"m.py": ast.parse(source)}) == [
        "m.py:7 __init__: e",
        "m.py:9 method: a, b, c, d, e",
        "m.py:14 command: c",
    ]
