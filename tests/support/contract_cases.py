"""The tasks that the contract is held against: one entry here and a new task is under it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vaak.config.catalog import task_class
from vaak.config.load import load
from vaak.config.yaml_writer import yaml_text
from vaak.core.batch import Batch
from vaak.core.task import Task
from vaak.testing import Case


@dataclass(frozen=True)
class TaskCase:
    """A task in its smallest form: the YAML beside ``task:`` and ``training:``, and what the checks need to know."""

    task: str
    options: dict[str, Any]
    training: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)

    def prepared(self, folder: Path) -> Case:
        """The case, its data prepared in ``folder``."""
        file = folder / "case.yml"
        file.write_text(yaml_text({"task": self.task, **self.options, "training": self.training}))
        experiment = load([file]).experiment

        def make_task() -> Task:
            task: Task = task_class(self.task)(experiment, folder, folder)
            task.prepare()
            return task

        return Case(make_task, training=self.training, **self.about)


def _tokens_and_examples(batch: Batch) -> dict[str, float]:
    """Targets that are real; documents by their numbers (-1 is padding)."""
    targets, documents = batch["targets"].tolist(), batch["documents"].tolist()
    return {
        "token": float(sum(target >= 0 for row in targets for target in row)),
        "example": float(sum(len({number for number in row if number >= 0}) for row in documents)),
        "position": float(sum(number >= 0 for row in documents for number in row)),
    }


def _language_model(
    *,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    inputs: tuple[str, ...] = (),
    training: dict[str, Any] | None = None,
) -> TaskCase:
    corpus = {"corpus": {"type": "grammar", "num_sentences": 120}, "tokenizer": {"type": "character"}, "max_length": 40}
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 2, "dropout": 0.1, **(model or {})}
    about = {"counted": _tokens_and_examples, "inputs": inputs}
    return TaskCase("lm", {"model": sizes, "data": corpus | (data or {})}, training or {}, about)


def _targets_and_sources(batch: Batch) -> dict[str, float]:
    """Targets and source tokens that are real."""
    targets = float(sum(target >= 0 for row in batch["targets"].tolist() for target in row))
    sources = float(sum(real for row in batch["source_mask"].tolist() for real in row))
    return {
        "token": targets,
        "source_token": sources,
        "position": targets + sources,
        "example": float(len(batch["targets"])),
    }


def _twice_the_longer_side(batch: Batch) -> float:
    return 2.0 * max(batch["source"].shape[1], batch["targets"].shape[1])


def _translator(
    *, model: dict[str, Any] | None = None, data: dict[str, Any] | None = None, training: dict[str, Any] | None = None
) -> TaskCase:
    corpus = {"corpus": {"type": "grammar", "num_sentences": 120}, "tokenizer": {"type": "character"}}
    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
    options = {"model": {"global_config": sizes, **(model or {})}, "data": corpus | (data or {})}
    about = {"counted": _targets_and_sources, "row_length": _twice_the_longer_side, "inputs": ("The boy is good.", "")}
    return TaskCase("seq2seq", options, training or {}, about)


PERFORMER = {"feature_redraw_interval": 2, "loss": {"auxiliary": {"norm_reg": 0.01}}}

CASES = {
    "lm decoder, documents": _language_model(data={"token_dropout": 0.1}, inputs=("", "लड़का")),
    "lm decoder, stream": _language_model(data={"layout": "stream"}, inputs=("लड़का",)),
    "lm decoder, packed": _language_model(inputs=("लड़का",), training={"batching": {"type": "packed"}}),
    "lm decoder, all losses": _language_model(
        inputs=("लड़का",), training={"loss": {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}}}
    ),
    "lm encoder": _language_model(model={"model_type": "encoder"}),
    "lm encoder, packed": _language_model(model={"model_type": "encoder"}, training={"batching": {"type": "packed"}}),
    "lm Performer": _language_model(model={"attention_type": "causal_linear"}, inputs=("", "लड़का"), training=PERFORMER),
    "lm Performer encoder, packed": _language_model(
        model={"model_type": "encoder", "attention_type": "linear"},
        training=PERFORMER | {"batching": {"type": "packed"}},
    ),
    "lm local, convolutional, packed": _language_model(
        model={"attention_type": "local", "window": 4, "position_type": "convolutional"},
        inputs=("लड़का",),
        training={"batching": {"type": "packed"}},
    ),
    "seq2seq": _translator(),
    "seq2seq, two tokenizers": _translator(
        model={"share_embeddings": False},
        data={"target_tokenizer": {"type": "character"}, "token_dropout": 0.2},
        training={"loss": {"label_smoothing": 0.1, "auxiliary": {"z_loss": 0.01}}},
    ),
    "seq2seq Performer": _translator(
        model={"encoder": {"attention_type": "linear"}, "decoder": {"attention_type": "causal_linear"}},
        training=PERFORMER,
    ),
}
