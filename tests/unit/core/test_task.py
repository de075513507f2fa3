"""What a task must define and doesn't is named, with its class, wherever the engine asks for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from vaak.core.errors import UserError
from vaak.core.task import Dataset, Meters, Task, require_dataset


class Nothing(Task, Dataset, Meters):
    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("ask", "method"),
    [
        (lambda it: it.model(), "model()"),
        (lambda it: it.losses(None, None), "losses(model, batch)"),
        (lambda it: it.logits(None, None), "logits(model, batch)"),
        (lambda it: it.dataset("train"), "dataset(split)"),
        (lambda it: it.meters("valid"), "meters(split)"),
        (lambda it: it.example(0, None), "example(index, rng)"),
        (lambda it: it.collate([]), "collate(rows)"),
        (lambda it: it.update(None, None), "update(model, batch)"),
        (lambda it: it.sums(), "sums()"),
        (lambda it: it.results({}), "results(sums)"),
    ],
)
def test_what_a_class_does_not_define_is_named(ask: Callable[[Any], object], method: str):
    with pytest.raises(UserError, match=rf"^Nothing has no {re.escape(method)}, which vaak.core.task describes$"):
        ask(Nothing())


def test_a_dataset_has_examples_lengths_and_a_fingerprint():
    about = SimpleNamespace(lengths=[1], fingerprint="one")
    with pytest.raises(UserError, match=r"^dataset\('train'\) gave a SimpleNamespace; expected a vaak.Dataset"):
        require_dataset(about, "dataset('train')")
    with pytest.raises(UserError, match=r"gave a SimpleNamespace without fingerprint, which vaak.Dataset describes"):
        require_dataset(SimpleNamespace(example=len, lengths=[1]), "dataset('train')")
    require_dataset(SimpleNamespace(example=len, **vars(about)), "dataset('train')")
