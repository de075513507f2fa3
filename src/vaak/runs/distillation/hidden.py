"""Hidden states of a student and its teacher: what modules give, by name, while a model is called."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vaak.config.components import did_you_mean
from vaak.config.distillation import HiddenConfig
from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.engine.objective.distillation import hidden_difference

KEY = "distillation.hidden"
UNIT = "position"
"""The unit of hidden states, which batches count: rows are padded on the right."""


class Once(nn.Module):
    """A model that is called once: called again, it gives what it gave."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.given: list[Any] = []

    def forward(self, *inputs: Any, **options: Any) -> Any:
        if not self.given:
            self.given.append(self.model(*inputs, **options))
        return self.given[0]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.model, name)


@contextlib.contextmanager
def captured(model: nn.Module, names: Sequence[str]) -> Iterator[list[Tensor]]:
    """Within this context, what these modules give is put in the list, in the order of the names.

    Raises UserError for a name that no module has, or for one that gives something else than ``(row, time, width)``.
    """
    found: dict[int, Tensor] = {}
    outputs: list[Tensor] = []
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(names):
            module = dict(model.named_modules()).get(name)
            if module is None:
                known = [known for known, _ in model.named_modules() if known]
                whose = type(model).__name__
                raise UserError(f"{KEY}: {whose} has no module {name}{did_you_mean(name, known)}; see vaak model show")

            def keep(_: nn.Module, __: Any, output: Any, number: int = number) -> None:
                if not isinstance(output, Tensor) or output.ndim != 3:
                    what = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
                    raise UserError(
                        f"{KEY}: {names[number]} gives {what}; expected a module that gives (row, time, width)"
                    )
                found[number] = output

            stack.callback(module.register_forward_hook(keep).remove)
        yield outputs
        missing = [name for number, name in enumerate(names) if number not in found]
        if missing:
            raise UserError(f"{KEY}: {missing[0]} isn't called when the model predicts; name another module")
        outputs += [found[number] for number in range(len(names))]


class HiddenLoss(nn.Module):
    """The weighted sum of the differences of hidden states; the student's are projected where widths differ."""

    def __init__(self, options: Sequence[HiddenConfig], student: Sequence[Tensor], teacher: Sequence[Tensor]) -> None:
        """``student`` and ``teacher`` are hidden states of one batch."""
        super().__init__()
        self.weights = [one.weight for one in options]
        widths = [(own.shape[2], other.shape[2]) for own, other in zip(student, teacher, strict=True)]
        self.projections = nn.ModuleList(
            nn.Identity() if one == other else nn.Linear(one, other, bias=False) for one, other in widths
        )

    def forward(self, student: Sequence[Tensor], teacher: Sequence[Tensor], batch: Batch) -> Tensor:
        """The sum over real positions."""
        total = torch.zeros((), device=student[0].device)
        for weight, project, own, other in zip(self.weights, self.projections, student, teacher, strict=True):
            total = total + weight * hidden_difference(project(own), other, batch.counts[UNIT])
        return total
