"""An exponential moving average of the weights, kept in addition to them.

    after step s, with n = s - start_step steps averaged before it:
    average ← w                             n = 0
    average ← d · average + (1 - d) · w     n ≥ 1,   d = min(decay, (1 + n) / (10 + n)) while it warms up

The decay is a function of the step, so the averages are all there is to save. Until ``start_step`` there are none: the
weights stand for them. One fused update a step; the averages take as much memory as the weights do in fp32.

Source: Polyak and Juditsky 1992; the warm-up is that of TensorFlow's ExponentialMovingAverage.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from vaak.config.training import EmaConfig
from vaak.core.errors import CheckpointError


class WeightAverage:
    """Averages of a model's parameters, by name; tied ones once, buffers not at all: the model's own are used.

    They are kept in fp32, or in fp64 where the weights are. ``trained`` are the parameters that training ever changes,
    frozen or not; the others are no different from their average and take no memory. Not given, all are averaged.
    """

    def __init__(self, model: nn.Module, config: EmaConfig, trained: Iterable[nn.Parameter] | None = None) -> None:
        self.config = config
        wanted = {id(parameter) for parameter in (model.parameters() if trained is None else trained)}
        self._parameters = {
            name: parameter
            for name, parameter in model.named_parameters()
            if id(parameter) in wanted and (parameter.is_floating_point() or parameter.is_complex())
        }
        self._averages: list[Tensor] = []

    def decay(self, step: int) -> float:
        """The fraction of the average that is kept in the update after a step from ``start_step`` + 1 on."""
        averaged = step - self.config.start_step
        return min(self.config.decay, (1 + averaged) / (10 + averaged)) if self.config.warmup else self.config.decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights as they are after a step; before ``start_step`` nothing happens."""
        if step < self.config.start_step:
            return
        weights = [_exact(parameter) for parameter in self._parameters.values()]
        if not self._averages:
            self._averages = [weight.clone() for weight in weights]
        else:
            torch._foreach_lerp_(self._averages, weights, 1.0 - self.decay(step))

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Within this context, the model computes with the averages; afterwards with its own weights, to the bit.

        The tensors are exchanged, not copied (but for low-precision weights, whose averages are rounded to them). What
        writes to the weights meanwhile changes the averages.
        """
        if not self._averages:
            yield
            return
        own = [parameter.data for parameter in self._parameters.values()]
        try:
            for parameter, average in zip(self._parameters.values(), self._averages, strict=True):
                parameter.data = average.to(parameter.dtype)
            yield
        finally:
            for parameter, data in zip(self._parameters.values(), own, strict=True):
                parameter.data = data

    def state_dict(self) -> dict[str, Tensor]:
        """The live averages by parameter name, for a checkpoint; none before ``start_step``."""
        return dict(zip(self._parameters, self._averages, strict=True)) if self._averages else {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back, to the bit, what ``state_dict`` gave.

        With nothing, averaging begins at the next step from ``start_step`` on. Raises CheckpointError, with nothing
        changed, where a name or a shape is another than this model's.
        """
        if not tensors:
            self._averages = []
            return
        shapes = {name: tuple(parameter.shape) for name, parameter in self._parameters.items()}
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        wrong = sorted(name for name in {*shapes, *given} if shapes.get(name) != given.get(name))
        if wrong:
            raise CheckpointError(
                "the checkpoint's averaged weights (training.ema) are from another model, or with others frozen: "
                f"{len(wrong)} of them differ, such as {', '.join(wrong[:3])}"
            )
        self._averages = [
            torch.empty_like(_exact(parameter)).copy_(tensors[name]) for name, parameter in self._parameters.items()
        ]


def _exact(parameter: Tensor) -> Tensor:
    """The weights in at least fp32; themselves where they are."""
    return parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32))
