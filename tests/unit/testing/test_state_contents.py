"""The contract finds all of a state's contents, and lists the names that differ between two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from vaak.testing.case import require_same
from vaak.testing.state import contents


@dataclass
class Held:
    """A state in its smallest form."""

    optimizer: torch.optim.Optimizer


def test_options_of_every_group_are_found():
    """They are looked at in dictionaries made for it, which are freed at once: the next may get the address of one."""
    groups = [{"params": [torch.zeros(1)], "momentum": number / 100} for number in range(50)]
    found: dict[str, Any] = contents(Held(torch.optim.SGD(groups)))  # type: ignore[arg-type]
    assert [found[f"optimizer.group {number}.momentum"] for number in range(50)] == [one["momentum"] for one in groups]


def test_names_that_differ_are_listed_and_no_others():
    with pytest.raises(AssertionError, match=r"^the state: without b, but with c, d, e, f, g and 1 more$"):
        require_same(dict.fromkeys("acdefgh"), dict.fromkeys("ab"), "the state")
