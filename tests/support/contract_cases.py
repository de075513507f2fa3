"""The tasks that the contract is held against: one entry here and a new task is under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from vaak.core.batch import Batch


@dataclass(frozen=True)
class Case:
    """A task in its smallest form.

    ``options`` is the YAML beside ``task:``; ``counted`` counts a batch's units in another way than the task does;
    ``inputs`` are for ``predict``, none where the task predicts nothing.
    """

    task: str
    options: dict[str, Any]
    counted: Callable[[Batch], dict[str, float]]
    inputs: tuple[Any, ...] = ()
    learning_rate: float = 0.01
    training: dict[str, Any] = field(default_factory=dict)


def _tokens_and_examples(batch: Batch) -> dict[str, float]:
    """Targets that are real; documents by their numbers (-1 is padding)."""
    targets, documents = batch["targets"].tolist(), batch["documents"].tolist()
    return {
        "token": float(sum(target >= 0 for row in targets for target in row)),
        "example": float(sum(len({number for number in row if number >= 0}) for row in documents)),
    }


def _language_model(*, model: dict[str, Any] | None = None, inputs: tuple[str, ...] = (), **rest: Any) -> Case:
    data = {
        "corpus": {"type": "grammar", "num_sentences": 120},
        "tokenizer": {"type": "character"},
        "max_length": 40,
        **rest.pop("data", {}),
    }
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 2, "dropout": 0.1, **(model or {})}
    return Case("lm", {"model": sizes, "data": data}, _tokens_and_examples, inputs, **rest)


CASES = {
    "lm decoder, documents": _language_model(data={"token_dropout": 0.1}, inputs=("", "लड़का")),
    "lm decoder, stream": _language_model(data={"layout": "stream"}, inputs=("लड़का",)),
    "lm decoder, packed": _language_model(inputs=("लड़का",), training={"batching": {"type": "packed"}}),
    "lm decoder, all losses": _language_model(
        inputs=("लड़का",), training={"loss": {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}}}
    ),
    "lm encoder": _language_model(model={"model_type": "encoder"}),
    "lm encoder, packed": _language_model(model={"model_type": "encoder"}, training={"batching": {"type": "packed"}}),
}
