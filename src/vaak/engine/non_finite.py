"""A step whose loss or gradient is not finite: the cause, found by running it once more, chunk by chunk.

The model doesn't change: nothing here updates it, buffers are restored and gradients dropped.
"""

from __future__ import annotations

import logging
import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vaak.core.batch import Batch, Term
from vaak.core.storage import files
from vaak.engine.gradient import GradientPass, LossSums, MicrobatchChunk, ObjectiveRunner, drop_gradients, restored
from vaak.engine.inspection import Inspection, NonFiniteFinding, culprits, first_non_finite
from vaak.engine.state import State
from vaak.engine.training_data import StepData

log = logging.getLogger("vaak")

NON_FINITE_FOLDER = "non_finite"
NAMED_EXAMPLES = 3


@dataclass(frozen=True)
class SuspectExample:
    """An example of the training data: its index and where it comes from."""

    index: int
    description: str


@dataclass(frozen=True)
class NonFinite:
    """The first number in a step that was not finite, as far as this rank's microbatches show it.

    ``finding`` is None if each chunk by itself is finite: then it is their sum, or another rank's. ``losses`` are
    the totals of the chunk it was found in, ``examples`` those that show it by themselves. ``record`` is the file that
    says all this, None if it could not be written.
    """

    step: int
    finding: NonFiniteFinding | None
    losses: dict[str, float]
    microbatch: int | None
    chunk: int | None
    examples: list[SuspectExample]
    record: Path | None

    def sentence(self, run: Path) -> str:
        """Describe the finding in one line: its kind, place and examples, and how to inspect it."""
        parts = [f"step {self.step}: {_describe(self.finding)}"]
        if self.examples and self.finding is not None and self.finding.kind != "weight":
            shown = ", ".join(f"{example.index} ({example.description})" for example in self.examples[:NAMED_EXAMPLES])
            more = len(self.examples) - NAMED_EXAMPLES
            word = "example" if len(self.examples) == 1 else "examples"
            parts.append(f"{word} {shown}" + (f" and {more} more" if more > 0 else ""))
        if self.record is not None:
            parts.append(f"recorded in {self.record}")
        parts.append(f"inspect it with vaak replay {run} --step {self.step} --debug")
        parts.append(f"the weights are those of step {self.step - 1}")
        return "; ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """Return all fields except ``record``, as JSON but for numbers that aren't finite."""
        finding = asdict(self.finding) if self.finding else {"kind": None}
        place = finding.pop("place", None) or {}
        return {
            "step": self.step,
            **finding,
            "module": place.get("module"),
            "where": place.get("where"),
            "losses": self.losses,
            "microbatch": self.microbatch,
            "piece": self.chunk,
            "examples": [asdict(example) for example in self.examples],
        }


@dataclass(frozen=True)
class Diagnosis:
    """Looks into steps that are not finite, and writes what it finds to ``directory``, a file for each rank."""

    directory: Path
    rank: int

    def of(self, objective: ObjectiveRunner, state: State, data: StepData, model: nn.Module) -> NonFinite:
        """Run a step's microbatches of this rank through ``model`` again, and record the first non-finite value.

        No rank waits for another here. Gradients are dropped; weights, buffers and the model's mode don't change.
        """
        # the model itself: a compiled one runs without the modules that are watched
        plain = replace(objective.gradient, forward=replace(objective.gradient.forward, model=model), rounds=None)
        with restored(model, state.loss.module), objective.alone():
            for chunk in plain.split(state.chunk_rules, plain.after_first_pass(state.chunk_rules, data)):
                inspection = _inspected(plain, data.step, chunk, chunk.batch)
                if inspection.finding is not None:
                    indices = _to_blame(plain, data.step, chunk, inspection)
                    examples = [SuspectExample(index, plain.describe(index)) for index in indices]
                    return self._record_diagnosis(data.step, (chunk, inspection), examples)
        return self._record_diagnosis(data.step, None, [])

    def _record_diagnosis(
        self, step: int, found: tuple[MicrobatchChunk, Inspection] | None, examples: list[SuspectExample]
    ) -> NonFinite:
        """Return the diagnosis, written to the run's directory; a failed write doesn't hide it."""
        path = record_path(self.directory, step, self.rank)
        if found is None:
            diagnosis = NonFinite(step, None, {}, None, None, [], path)
        else:
            chunk, inspection = found
            place = (chunk.number, chunk.index)
            diagnosis = NonFinite(step, inspection.finding, inspection.losses, *place, examples, path)
        modules = [asdict(module) for module in found[1].statistics] if found else []
        try:
            path.parent.mkdir(exist_ok=True)
            files.write_json(path, json_value({**diagnosis.as_json(), "modules": modules}))
        except OSError as error:
            log.warning("%s can't be written: %s", path, error.strerror or error)
            return replace(diagnosis, record=None)
        return diagnosis


def record_path(directory: Path, step: int, rank: int) -> Path:
    """Return the path in a run's directory of the record of a step's non-finite values."""
    name = f"step-{step:08d}.json" if rank == 0 else f"step-{step:08d}.rank{rank}.json"
    return directory / NON_FINITE_FOLDER / name


def _inspected(plain: GradientPass, step: int, chunk: MicrobatchChunk, batch: Batch) -> Inspection:
    """Return a forward and backward pass of some rows of a chunk, with the chunk's draws.

    Gradients are not scaled as in fp16: an overflow isn't what is looked for.
    """

    def terms(rows: Batch) -> dict[str, Term]:
        return plain.forward.terms(step, replace(chunk, batch=rows))

    def descend(terms: dict[str, Term]) -> None:
        # divided by the chunk's own counts: how large numbers are doesn't matter here, only which one isn't finite
        torch.autograd.backward(*LossSums(plain.weights, chunk.batch.totals()).add(terms))

    drop_gradients(plain.forward.model.parameters())
    return first_non_finite(plain.forward.model, batch, terms, descend)


def _to_blame(plain: GradientPass, step: int, chunk: MicrobatchChunk, inspection: Inspection) -> list[int]:
    """Return the examples that are not finite by themselves; all of the chunk where its rows can't be told apart."""
    assert inspection.finding is not None
    if inspection.finding.kind == "weight" or not inspection.splittable:
        return [index for row in chunk.batch.indices for index in row]
    return culprits(chunk.batch, lambda rows: _inspected(plain, step, chunk, rows).finding is None)


def _describe(finding: NonFiniteFinding | None) -> str:
    """Describe a non-finite value in words."""
    if finding is None:
        return "the gradient is not finite, though that of each microbatch of this process is"
    what = "the gradient is" if finding.kind == "gradient" else f"the loss {finding.loss} is"
    what += " not a finite number"
    if finding.parameter is not None:
        what += f", nor is {'that of ' if finding.kind == 'gradient' else ''}{finding.parameter}"
    if finding.tensor is not None:
        what += f", nor is {finding.tensor} of the batch"
    if finding.place is not None:
        return f"{what}, first in {finding.place.module} ({finding.place.where})"
    return what if finding.kind != "loss" else f"{what}, though all outputs of the model are"


def json_value(value: Any) -> Any:
    """Return a nested value with those numbers that JSON can't hold as text (``"nan"``)."""
    if isinstance(value, dict):
        return {name: json_value(part) for name, part in value.items()}
    if isinstance(value, list):
        return [json_value(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
