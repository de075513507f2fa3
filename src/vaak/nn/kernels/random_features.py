"""Positive orthogonal random features: vectors whose products are, on average, the softmax kernel (FAVOR+).

With ``x`` scaled by ``head_width ** -0.25`` and Gaussian rows ``w``, the feature ``exp(w·x − |x|²/2) / sqrt(m)`` is
positive, and the mean over draws of ``features(q) · features(k)`` is ``exp(q·k / sqrt(head_width))``. The variance
falls as ``1/m`` and grows exponentially with the norms of ``q`` and ``k``, so training may keep these small: the
auxiliary loss ``norm_reg`` is the mean of their squares. Rows that are orthogonal within blocks of ``head_width`` err
less than independent ones. The other kernel, ``relu(w·x) + 0.001``, stands for no softmax.

Source: Choromanski et al. 2021, "Rethinking Attention with Performers", sections 2.3 and 2.4, lemmas 1 and 2. Differs:
nothing is subtracted that depends on other tokens (the authors' code subtracts the largest exponent of a row of keys,
and adds 1e-4 to each feature). So a token's features depend on itself alone: not on later tokens, padding or other
documents; and the mean is the kernel itself.
"""

from __future__ import annotations

import logging
import math
from typing import Literal, Self

import torch
from torch import Tensor, nn

from vaak.core.batch import Term, send

Kernel = Literal["softmax", "relu"]
RELU_FLOOR = 1e-3
"""Added to the features of the relu kernel, so that no token has none."""
LARGEST_EXPONENT = 60.0
"""exp of it, times a million tokens, times their values, is still finite in float32."""
BOUNDED_WIDTH = 128
"""Up to this head width one shift keeps every exponent below the largest; beyond, larger ones are cut."""
VANISHED = math.log(1e-30)
"""Keys whose largest exponent is below this have no weight: the smallest denominator is larger."""
CHECKED_TOKENS = 64
"""Keys of the first row that are checked at the beginning of an evaluation."""
log = logging.getLogger("vaak")


class RandomFeatures(nn.Module):
    """The features of one attention layer, the same for all of its heads.

    ``projection`` ``(num_features, head_width)`` is a buffer, so it is stored with the model. The first draw takes its
    key from torch's default generator.
    """

    projection: Tensor

    def __init__(
        self, head_width: int, num_features: int | None = None, *, kernel: Kernel = "softmax", orthogonal: bool = True
    ) -> None:
        """``num_features`` None is ``d · ln d`` of the head's width ``d``."""
        super().__init__()
        num_features = num_features or max(1, int(head_width * math.log(head_width)))
        self.kernel: Kernel = kernel
        self.orthogonal = orthogonal
        self._to_check, self._has_warned = False, False
        self.register_buffer("projection", torch.empty(num_features, head_width))
        self.redraw_features(int(torch.randint(2**31, ()).item()))

    def redraw_features(self, key: int) -> None:
        """Draw the projection again: a function of ``key``, with the same bits on every device."""
        num_features, head_width = self.projection.shape
        drawn = draw_projection(num_features, head_width, key, orthogonal=self.orthogonal)
        with torch.no_grad():
            self.projection.copy_(send(drawn, self.projection.device))

    def train(self, mode: bool = True) -> Self:
        """As of every module; keys are checked at the first call in evaluation."""
        self._to_check = not mode
        return super().train(mode)

    @torch.no_grad()
    def warn_of_vanishing(self, key: Tensor) -> None:
        """Warn, once, where keys ``(batch, heads, time, head_width)`` are so long that their features are 0.

        Only a few are looked at, and only once in an evaluation: this waits for the device.
        """
        if not self._to_check or self._has_warned or self.kernel == "relu" or torch.compiler.is_compiling():
            return
        self._to_check = False
        inputs = self.key_inputs(key[:1, :, :CHECKED_TOKENS], self.shift())
        vanished = float(((inputs @ self.weights(inputs.dtype).mT).amax(-1) < VANISHED).float().mean())
        if vanished > 0:
            self._has_warned = True
            log.warning(
                "linear attention, heads of width %d: queries and keys are so long that %.0f %% of the keys have no "
                "weight, and where none has any the result is 0; bound them by qk_norm: true or "
                "training.loss.auxiliary.norm_reg, or use kernel_type: relu or narrower heads (docs/attention.md)",
                key.shape[-1],
                max(100 * vanished, 1),
            )

    def forward(self, x: Tensor) -> Tensor:
        """The features of ``x`` ``(..., head_width)``: ``(..., num_features)``, float32, or float64 of float64."""
        with torch.autocast(x.device.type, enabled=False):
            inputs = self.key_inputs(x)
            products = inputs @ self.weights(inputs.dtype).mT
            features: Tensor = products.relu() + RELU_FLOOR if self.kernel == "relu" else products.exp()
            scale: float = self.projection.shape[0] ** -0.5
            return features * scale

    def key_inputs(self, x: Tensor, shift: Tensor | float = 0.0) -> Tensor:
        """Return the inputs that ``weights`` turn into exponents: ``x``, and ``shift − |scaled x|²/2`` for softmax."""
        x = precise(x)
        if self.kernel == "relu":
            return x
        half_norms = x.square().sum(-1, keepdim=True) * (x.shape[-1] ** -0.5 / 2)
        return torch.cat((x, shift - half_norms), -1)

    def weights(self, dtype: torch.dtype) -> Tensor:
        """Return the projection times the scale of ``x`` and, for the softmax kernel, a column of ones after it."""
        scaled = (self.projection * self.projection.shape[1] ** -0.25).to(dtype)
        return scaled if self.kernel == "relu" else torch.cat((scaled, torch.ones_like(scaled[:, :1])), 1)

    def shift(self) -> Tensor:
        """Return the shift that bounds every key's exponents by the largest, as ``w·x − |x|²/2`` is at most ``|w|²/2``.

        It is a factor that all keys share, so attention doesn't change.
        """
        return (LARGEST_EXPONENT - self.projection.square().sum(-1).amax(0) / 2).clamp(min=-LARGEST_EXPONENT)


def draw_projection(num_features: int, head_width: int, key: int, *, orthogonal: bool) -> Tensor:
    """Rows with the standard Gaussian's distribution, ``(num_features, head_width)``, float64, on the CPU.

    Orthogonal ones are the columns of uniformly random rotations (one QR for all blocks; the sign of R's diagonal makes
    it uniform), as long as independent Gaussian rows are.
    """
    generator = torch.Generator().manual_seed(key)
    blocks = math.ceil(num_features / head_width)
    gaussian = torch.randn(blocks, head_width, head_width, generator=generator, dtype=torch.float64)
    if not orthogonal:
        return gaussian.flatten(0, 1)[:num_features]
    rotation, upper = torch.linalg.qr(gaussian)
    rotation = rotation * upper.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    lengths = torch.randn(num_features, head_width, generator=generator, dtype=torch.float64).norm(dim=-1)
    rows: Tensor = rotation.mT.flatten(0, 1)[:num_features] * lengths[:, None]
    return rows


def precise(x: Tensor) -> Tensor:
    """``x`` as float32, or float64 where it is that: exponents of less would be off by whole per cents."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def query_map(inputs: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
    """Features of queries ``(..., num_features)``, each query's divided by its largest.

    That factor is the query's own and cancels in attention. So does its norm, which is therefore left out: no query
    is so long that its features vanish.
    """
    products = inputs @ weights[:, : inputs.shape[-1]].mT
    if kernel == "relu":
        return products.relu_().add_(RELU_FLOOR)
    return products.sub_(products.amax(-1, keepdim=True)).exp_()


def key_map(inputs: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
    """Features of keys ``(..., num_features)``, with the factor that is in the shift of the inputs."""
    products = inputs @ weights.mT
    if kernel == "relu":
        return products.relu_().add_(RELU_FLOOR)
    if weights.shape[1] > BOUNDED_WIDTH + 1:
        products.clamp_(max=LARGEST_EXPONENT)
    return products.exp_()


def map_backward(gradient: Tensor, features: Tensor, weights: Tensor, kernel: Kernel) -> Tensor:
    """Return the gradient of a map's inputs, where ``gradient`` is that of its features (and is used up).

    The query's largest counts as a constant, for attention doesn't depend on it.
    """
    gradient.mul_(features > RELU_FLOOR if kernel == "relu" else features)
    return gradient @ weights


NORM_REG = "norm_reg"


class SquaredNorms:
    """Adds up, over the places of one sequence, the squared norms of what they send into feature maps."""

    def __init__(self, real: Tensor) -> None:
        """``real`` ``(batch, time)`` is False where the sequence is padding, which doesn't count."""
        self.real = real
        self.sums: list[Tensor] = []
        self.vectors = 0

    def add(self, x: Tensor) -> None:
        """Add queries or keys ``(batch, heads, time, head_width)``, which enter a feature map divided by width^¼."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        squares = exact.square().sum((1, 3)) * x.shape[-1] ** -0.5
        self.sums.append((squares * self.real).sum())
        self.vectors += x.shape[1]

    def total(self) -> Tensor:
        """Return the sum over places of the mean over the vectors of a place; there must be some."""
        return torch.stack(self.sums).sum() / self.vectors


def norm_reg(*tallies: SquaredNorms) -> Term:
    """Return the mean over all places of these sequences, as a sum with its unit; an empty tally adds nothing."""
    return Term(torch.stack([tally.total() for tally in tallies if tally.sums]).sum(), per="position")
