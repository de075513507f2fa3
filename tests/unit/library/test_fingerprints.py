"""A fingerprint of examples changes with their content alone, and is the same in every process."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
import torch

import vaak
from commands import Commands
from vaak.library.simple_task import add_to_hash


def hashed(value: Any) -> str:
    content = hashlib.sha256()
    add_to_hash(content, value)
    return content.hexdigest()


class Held:
    def __init__(self, held: Any) -> None:
        self.held = held


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 23], [12, 3]),
        (["a", "b"], ["ab", ""]),
        ({"a": 1}, {"a": 2}),
        (Held(1), Held(2)),
        ([[1], [2]], [[1, 2], []]),
        (torch.ones(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16)),
        (torch.ones(1, 2), torch.ones(2, 1)),
    ],
)
def test_other_content_has_another_hash(one: Any, other: Any):
    assert hashed(one) != hashed(other)
    assert hashed(one) == hashed(one)


def test_it_is_the_same_in_another_process(commands: Commands, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(
        "import hashlib; from vaak.library.simple_task import add_to_hash; content = hashlib.sha256(); "
        "add_to_hash(content, {'a': [1, 2.5, None, b'x'], 'b': ('y',)}); print(content.hexdigest())"
    )
    done = commands.start([], tmp_path, script=script).wait()
    assert done.output.strip() == hashed({"a": [1, 2.5, None, b"x"], "b": ("y",)})


def test_what_cannot_be_told_is_named():
    with pytest.raises(vaak.UserError, match=r"examples hold a set, .*give a vaak.Dataset with a fingerprint"):
        hashed([{1, 2}])
