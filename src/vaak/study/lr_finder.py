"""Learning-rate range tests: for a configuration by the engine's own step, and for any torch model, then restored."""

from __future__ import annotations

import contextlib
import copy
import importlib.util
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.config.load import Loaded
from vaak.core.batch import Batch
from vaak.core.errors import NonFiniteError, UserError
from vaak.core.progress import track
from vaak.core.storage import files
from vaak.engine.precision import keeping_generators
from vaak.report.charts import draw_range_test
from vaak.report.tables import csv_text
from vaak.runs.start import temporary_trainer
from vaak.study.lr_range import Certainty, Curve, RateRange, assess_certainty

TARGETS = ("targets", "labels")


class LRFinder:
    """Tries learning rates on a model; afterwards it, its optimizer and all generators are restored to the bit.

    ``criterion(outputs, targets)`` gives the loss to descend on. ``device`` is where the test runs, the model's own if
    not given. ``history`` has the last test's ``lr``, ``loss`` and ``smoothed``.

    A batch is a pair ``(inputs, targets)``; or a dictionary, whose ``labels`` or ``targets`` are the targets and whose
    other entries the model is called with by name (without a criterion, labels too: the loss is then the ``loss`` of
    the output); or one of Vaak's, whose ``inputs`` the model gets. For the last two, outputs (..., classes) and targets
    (...) are flattened for ``nn.CrossEntropyLoss``.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        criterion: Callable[[Any, Any], Tensor] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        self.model, self.optimizer, self.criterion = model, optimizer, criterion
        first = next(model.parameters(), None)
        self.device = torch.device(device) if device else first.device if first is not None else torch.device("cpu")
        self.curve = Curve()

    @property
    def history(self) -> dict[str, list[float]]:
        return {"lr": self.curve.rates, "loss": self.curve.losses, "smoothed": self.curve.smoothed}

    def range_test(
        self,
        train_loader: Iterable[Any],
        end_lr: float = 1.0,
        num_iter: int = 100,
        start_lr: float = 1e-7,
        spacing: str = "exponential",
        accumulation_steps: int = 1,
    ) -> None:
        """Take ``num_iter`` steps with rates from ``start_lr`` to ``end_lr``, or until the loss is 4 times the best.

        The rates are those of the group that has the largest; the others keep their proportion to it. A step is of
        ``accumulation_steps`` batches; the loader is restarted when it ends. Raises UserError if it is empty.

        ``train_loader`` gives the batches; ``spacing`` of the rates is exponential or linear.
        """
        rates = RateRange(start_lr, end_lr, num_iter, spacing)  # type: ignore[arg-type]
        self.curve = Curve()
        given = [float(group["lr"]) for group in self.optimizer.param_groups]
        parts = [rate / max(given) if max(given) else 1.0 for rate in given]
        with _preserve_generators(train_loader), restored(self.model, self.optimizer, self.device):
            self.model.train()
            batches = _without_end(train_loader)
            for number in range(num_iter):
                rate = rates.rate(number)
                for group, part in zip(self.optimizer.param_groups, parts, strict=True):
                    group["lr"] = rate * part
                if not self.curve.add(rate, self._step(batches, accumulation_steps)):
                    break

    def suggest_lr(self) -> float | None:
        """A rate to train with, None if it is unsure that the loss fell. Raises UserError before the first test."""
        return self.certainty().suggestion

    def certainty(self) -> Certainty:
        """Return how sure the suggestion is. Raises UserError before the first test."""
        self._require_a_test()
        return assess_certainty(self.curve)

    def plot(self, path: Path | str | None = None) -> Any:
        """A matplotlib figure of the last test, written to ``path`` where one is given. Raises UserError before it."""
        self._require_a_test()
        return draw_range_test(self.curve.as_json(), None if path is None else Path(path))

    def reset(self) -> None:
        """Forget the last test. The model needs no reset: each test restores it."""
        self.curve = Curve()

    def _require_a_test(self) -> None:
        if not self.curve.losses:
            raise UserError("no curve yet: call range_test first (its first loss must be a finite number)")

    def _step(self, batches: Iterator[Any], accumulation_steps: int) -> float:
        """Take a step and return the loss before it; a loss that isn't finite takes none."""
        self.optimizer.zero_grad()
        total = 0.0
        for _ in range(accumulation_steps):
            loss = self._loss(_move_to(next(batches), self.device)) / accumulation_steps
            loss.backward()
            total += float(loss.detach())
        self.optimizer.step()
        return total

    def _loss(self, batch: Any) -> Tensor:
        if isinstance(batch, Batch):
            return self._criterion()(*_flat(self.model(batch["inputs"]), batch["targets"]))
        if not isinstance(batch, Mapping):
            inputs, targets = batch
            outputs = self.model(*inputs) if isinstance(inputs, tuple | list) else self.model(inputs)
            return self._criterion()(outputs, targets)
        if self.criterion is None:
            loss: Tensor = self.model(**batch).loss
            return loss
        name = next((name for name in TARGETS if name in batch), None)
        if name is None:
            raise UserError(f"a batch has {', '.join(map(str, batch))}, but neither {' nor '.join(TARGETS)}")
        outputs = self.model(**{key: value for key, value in batch.items() if key != name})
        return self.criterion(*_flat(getattr(outputs, "logits", outputs), batch[name]))

    def _criterion(self) -> Callable[[Any, Any], Tensor]:
        if self.criterion is None:
            raise UserError("LRFinder needs a criterion unless batches are dictionaries and the model gives its loss")
        return self.criterion


def _flat(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs (targets, classes) and targets (targets,), where they were (..., classes) and (...)."""
    if outputs.shape[:-1] == targets.shape:
        return outputs.flatten(0, -2), targets.flatten()
    return outputs, targets


def _move_to(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor | Batch):
        return batch.to(device)
    if isinstance(batch, Mapping):
        return {name: _move_to(value, device) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return tuple(_move_to(value, device) for value in batch)
    return batch


def _without_end(loader: Iterable[Any]) -> Iterator[Any]:
    while True:
        empty = True
        for batch in loader:
            empty = False
            yield batch
        if empty:
            raise UserError("the loader gives no batch")


@contextlib.contextmanager
def _preserve_generators(loader: Iterable[Any]) -> Iterator[None]:
    """Draw batches within this context; on exit, the generators of the loader and its sampler are restored."""
    owners = (loader, getattr(loader, "sampler", None))
    generators = [own for owner in owners if isinstance(own := getattr(owner, "generator", None), torch.Generator)]
    states = [generator.get_state() for generator in generators]
    try:
        yield
    finally:
        for generator, state in zip(generators, states, strict=True):
            generator.set_state(state)


def find_lr(loaded: Loaded, rates: RateRange) -> Curve:
    """Return the losses of the run's first steps, each taken with its rate of the range instead of the schedule's.

    Steps are those of training: accumulated, clipped, in its precision. ``training.optimizer.lr`` is what varies; the
    rates of parameter groups, and muon's ``adamw_lr``, keep their proportion to it. Nothing is kept.
    """
    curve = Curve()
    with temporary_trainer(loaded) as trainer:
        peak = trainer.config.optimizer.lr
        # A schedule is a factor of the peak rate.
        step = replace(trainer.step, schedule=lambda step: rates.rate(step - 1) / peak)
        numbers = track(range(rates.num_iter), "trying learning rates", rates.num_iter)
        with closing(trainer.data.steps(trainer.position)) as steps, closing(numbers):
            for number, data in zip(numbers, steps, strict=False):
                try:
                    report = step(trainer.state, data)
                except NonFiniteError:
                    curve.diverged = True
                    break
                loss = sum(trainer.loss_weights.get(name, 1.0) * float(mean) for name, mean in report.losses.items())
                if not curve.add(rates.rate(number), loss):
                    break
    return curve


def write_curve(curve: Curve, folder: Path) -> list[Path]:
    """Write ``lr-range.json``, ``.csv`` and, where matplotlib is installed, ``.png``; return what was written."""
    written = [folder / "lr-range.json", folder / "lr-range.csv"]
    table = csv_text(("lr", "loss", "smoothed"), zip(curve.rates, curve.losses, curve.smoothed, strict=True))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(written[0], curve.as_json())
        files.write_text(written[1], table)
    except OSError as error:
        raise UserError(f"the curve can't be written to {folder}: {error.strerror or error}") from error
    if importlib.util.find_spec("matplotlib") is not None:
        written.append(folder / "lr-range.png")
        draw_range_test(curve.as_json(), written[-1])
    return written


@contextlib.contextmanager
def restored(model: nn.Module, optimizer: Optimizer, device: torch.device) -> Iterator[None]:
    """Within this context, train freely on ``device``: only copies change.

    Afterwards the model has its own weights, buffers, gradients and modes again, the optimizer its own state and
    options, and every generator its state, after an exception too.
    """
    groups = optimizer.param_groups
    parameters = list(dict.fromkeys([*model.parameters(), *(p for group in groups for p in group["params"])]))
    own = [(parameter, parameter.data, parameter.grad) for parameter in parameters]
    buffers = [(module, name, held) for module in model.modules() for name, held in module._buffers.items()]
    modes = [(module, module.training) for module in model.modules()]
    state, options = optimizer.state, [dict(group) for group in groups]
    with keeping_generators(device):
        try:
            optimizer.state = _copy_moments(state, device)
            for parameter, data, _ in own:
                parameter.grad = None
                parameter.data = data.to(device, copy=True)
            # By identity: a buffer that two modules share stays shared.
            copies = {id(held): held.to(device, copy=True) for _, _, held in buffers if held is not None}
            for module, name, held in buffers:
                module._buffers[name] = None if held is None else copies[id(held)]
            yield
        finally:
            # torch refuses a gradient on another device than its weights, so the weights come first.
            for parameter, data, gradient in own:
                parameter.grad = None
                parameter.data = data
                parameter.grad = gradient
            for module, name, held in buffers:
                module._buffers[name] = held
            for module, mode in modes:
                module.training = mode
            optimizer.state = state
            for group, before in zip(groups, options, strict=True):
                group.clear()
                group.update(before)


def _copy_moments(state: Any, device: torch.device) -> Any:
    """Return a copy of an optimizer's state; tensors as large as their parameter are moved to the device."""
    copied: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
    for parameter, remembered in state.items():
        copied[parameter] = {}
        for name, value in remembered.items():
            if isinstance(value, Tensor):
                moves = value.device == parameter.device and (value.ndim > 0 or parameter.device.type != "cpu")
                copied[parameter][name] = value.to(device if moves else value.device, copy=True)
            else:
                copied[parameter][name] = copy.deepcopy(value)
    return copied
