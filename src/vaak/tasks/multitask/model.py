"""The models of several tasks, with modules in common, and the weights of their losses that are learned.

tasks.intent    transformer ─┐              the same module, saved once, by its name in the first task
                head         │
tasks.domain    transformer ─┘
                head
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.names import list_names, require_known

SHARED_KEY = "model.shared"
WEIGHTED, REGULARISER = "_weighted", "uncertainty"


class MultiTaskModel(nn.Module):
    """The model of each task, in ``tasks``; each ``shared`` module has its name in the model of each that has it."""

    def __init__(self, tasks: Mapping[str, nn.Module], shared: Sequence[Mapping[str, str]] = ()) -> None:
        """Raises UserError for a shared module that isn't there, or that has other shapes or another side elsewhere."""
        super().__init__()
        for name in tasks:
            if hasattr(nn.ModuleDict, name):
                raise UserError(f"data.tasks.{name}: torch has {name} for itself; give the task another name")
        self.tasks = nn.ModuleDict(tasks)
        for paths in shared:
            (first, path), *others = paths.items()
            module = self._module(first, path)
            for name, own in others:
                _require_same_shapes(f"{first}.{path}", module, f"{name}.{own}", self._module(name, own))
                # The same object: every task's gradient is added to it.
                self.tasks[name].set_submodule(own, module)

    def _module(self, task: str, path: str) -> nn.Module:
        modules: dict[str, nn.Module] = {name: module for name, module in self.tasks[task].named_modules() if name}
        remedy = f"it has {list_names(name for name, _ in self.tasks[task].named_children())}"
        require_known(
            [path], modules, f"{SHARED_KEY}: the model of {task} has no module", remedy=remedy, error=UserError
        )
        return modules[path]


def _require_same_shapes(name: str, module: nn.Module, other: str, own: nn.Module) -> None:
    here, there = (
        {key: tuple(tensor.shape) for key, tensor in one.state_dict(keep_vars=True).items()} for one in (module, own)
    )
    differing = next((key for key in {**here, **there} if here.get(key) != there.get(key)), None)
    if differing is not None:
        raise UserError(
            f"{SHARED_KEY}: {differing} has shape {here.get(differing)} in {name}, and "
            f"{there.get(differing)} in {other}; "
            "give both tasks the same options of the model"
        )
    sees_later = [
        [(path, part.causal) for path, part in one.named_modules() if isinstance(getattr(part, "causal", None), bool)]
        for one in (module, own)
    ]
    # Their shapes are the same, so nothing else would notice; a decoder would see what it has to predict.
    if sees_later[0] != sees_later[1]:
        raise UserError(
            f"{SHARED_KEY}: one of {name} and {other} is a decoder's, which sees no later token; "
            "give both the same model_type"
        )


class Uncertainty(nn.Module):
    """Weights of losses that are learned: exp(-s) · loss + s / 2 for each task, where s = log σ².

    The regulariser s / 2 is a sum over what the task's loss is per, so that it is exact however a step is put together.
    Source: Kendall, Gal and Cipolla 2018, "Multi-Task Learning Using Uncertainty to Weigh Losses", equation 10.
    Differs: every loss is taken for a likelihood of classes, as in their classification.
    """

    def __init__(self, tasks: Sequence[str]) -> None:
        super().__init__()
        self.tasks = list(tasks)
        self.log_variances = nn.Parameter(torch.zeros(len(tasks)))

    def forward(self, task: str, terms: Mapping[str, Term], batch: Batch) -> dict[str, Term]:
        """Return the terms of a task's batch: each unchanged, for logs, and weighted; and the regulariser."""
        log_variance: Tensor = self.log_variances[self.tasks.index(task)]
        weighted = {
            name + WEIGHTED: replace(term, total=torch.exp(-log_variance) * term.total) for name, term in terms.items()
        }
        plain = {name: replace(term, total=term.total.detach()) for name, term in terms.items()}
        # The main loss's unit, by whose count the regulariser is then divided, too.
        unit = next(iter(terms.values())).per
        return {
            **plain,
            **weighted,
            f"{task}/{REGULARISER}": Term(log_variance / 2 * batch.totals()[unit], unit),
        }
