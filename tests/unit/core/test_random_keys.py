"""Every draw names its purpose by a constant, and no two purposes are one."""

from __future__ import annotations

import ast
from pathlib import Path

import vaak
from vaak.core.random_keys import Purpose, draw_key

SOURCE = Path(vaak.__file__).parent


def purposes_used() -> dict[str, list[ast.expr]]:
    """The first argument of every call of ``draw_key``, by file."""
    found: dict[str, list[ast.expr]] = {}
    for file in SOURCE.rglob("*.py"):
        text = file.read_text(encoding="utf-8")
        calls = [
            node.args[0]
            for node in (ast.walk(ast.parse(text)) if "draw_key" in text else ())
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "draw_key"
        ]
        if calls and file.name != "random_keys.py":
            found[str(file.relative_to(SOURCE))] = calls
    return found


def test_every_key_has_a_purpose_of_the_table_and_every_purpose_a_use():
    used = purposes_used()
    assert len(used) > 15
    text = "".join(file.read_text(encoding="utf-8") for file in SOURCE.rglob("*.py") if file.name != "random_keys.py")
    for file, arguments in used.items():
        for argument in arguments:
            said = ast.unparse(argument)
            assert said.startswith("Purpose.") or said == "self.purpose[0]", f"{file}: draw_key({said}, ...)"
    assert [purpose.name for purpose in Purpose if f"Purpose.{purpose.name}" not in text] == []


def test_keys_are_those_of_the_runs_that_are_there():
    """A changed hash would change every run in silence."""
    assert draw_key(Purpose.DATA, 42, 0, 7, 0) == 463117421
    assert len({draw_key(purpose, 1) for purpose in Purpose}) == len(Purpose)
