"""The feed-forward layer: each token alone, or with its neighbours, widened, bent and narrowed again.

    plain      down(activation(up(x)))             GELU, ReLU, SiLU
    gated      down(activation(gate(x)) · up(x))   SwiGLU, GEGLU: one projection opens and closes the other's channels
    ConvNeXt   x + scale · down(GELU(up(norm(convolution(x)))))     the convolution depthwise, over time
    mixture    Σ over chosen e of g_e · expert_e(x), + shared(x)    each token chooses some of many such layers

With a ``kernel_size``, ``up`` and ``gate`` are convolutions (Ren et al. 2021, "FastSpeech 2": 9 tokens, and 1 on the
way down). A condition of ConvNeXt scales and shifts the normalised values. Padding is never read.

Sources: Vaswani et al. 2017, "Attention Is All You Need" (ReLU); Hendrycks and Gimpel 2016, "Gaussian Error Linear
Units (GELUs)", the exact form and that with tanh; Shazeer 2020, "GLU Variants Improve Transformer" (SwiGLU, GEGLU); Liu
et al. 2022, "A ConvNet for the 2020s"; Siuzdak 2024, "Vocos", section 3.3 (over time); Perez et al. 2018, "FiLM: Visual
Reasoning with a General Conditioning Layer" (scale and shift); DeepSeek-AI 2024, "DeepSeek-V3 Technical Report",
section 2.1.2 (the mixture); Wang et al. 2024, "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts",
arXiv:2408.15664 (its bias).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vaak.core.batch import Term
from vaak.core.torch_internals import is_fake
from vaak.nn.config import FACTORS_END, MoeConfig
from vaak.nn.norms import ROUNDED, LayerNorm, can_be_joined, join, project

Activation = Callable[[Tensor], Tensor]


class FeedForward(nn.Module):
    """``down(activation(up(x)))``."""

    activation: Activation

    def __init__(self, width: int, inner_width: int, bias: bool = False, kernel_size: int = 1) -> None:
        super().__init__()
        self.up = _widening(width, inner_width, bias, kernel_size)
        self.down = nn.Linear(inner_width, width, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Return the output of each token; a kernel reads its neighbours where ``mask`` is True."""
        out: Tensor = self.down(self.activation(_widened(self.up, x, mask)))
        return out


class GatedFeedForward(nn.Module):
    """``down(activation(gate(x)) · up(x))``."""

    activation: Activation

    def __init__(self, width: int, inner_width: int, bias: bool = False, kernel_size: int = 1) -> None:
        super().__init__()
        self.gate = _widening(width, inner_width, bias, kernel_size)
        self.up = _widening(width, inner_width, bias, kernel_size)
        self.down = nn.Linear(inner_width, width, bias=bias)

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Return the output of each token; a kernel reads its neighbours where ``mask`` is True."""
        if mask is not None and isinstance(self.gate, TimeConvolution):
            # once for both
            x = x.masked_fill(~mask[..., None], 0.0)
        if can_be_joined(x, (self.gate, self.up), TimeConvolution):
            gate, up = self._convolve_together(x)
        else:
            gate, up = project(x, self.gate, self.up)
        out: Tensor = self.down(self.activation(gate) * up)
        return out

    def _convolve_together(self, x: Tensor) -> tuple[Tensor, Tensor]:
        assert isinstance(self.gate, TimeConvolution)
        wide = F.conv1d(x.transpose(1, 2), *join((self.gate, self.up)), padding=self.gate.padding)
        gate, up = wide.transpose(1, 2).chunk(2, -1)
        return gate, up


def _widening(width: int, inner_width: int, bias: bool, kernel_size: int) -> nn.Module:
    if kernel_size == 1:
        return nn.Linear(width, inner_width, bias=bias)
    return TimeConvolution(width, inner_width, kernel_size, bias=bias)


def _widened(layer: nn.Module, x: Tensor, mask: Tensor | None) -> Tensor:
    wide: Tensor = layer(x, mask) if isinstance(layer, TimeConvolution) else layer(x)
    return wide


class GELU(FeedForward):
    """``down(gelu(up(x)))``."""

    activation = staticmethod(F.gelu)


class GELUTanh(FeedForward):
    """``down(gelu(up(x)))`` with GPT-2's approximation of gelu by tanh."""

    activation = staticmethod(partial(F.gelu, approximate="tanh"))


class ReLU(FeedForward):
    """``down(relu(up(x)))``."""

    activation = staticmethod(F.relu)


class SiLU(FeedForward):
    """``down(silu(up(x)))``."""

    activation = staticmethod(F.silu)


class SwiGLU(GatedFeedForward):
    """``down(silu(gate(x)) · up(x))``."""

    activation = staticmethod(F.silu)


class GEGLU(GatedFeedForward):
    """``down(gelu(gate(x)) · up(x))``."""

    activation = staticmethod(F.gelu)


class GEGLUTanh(GatedFeedForward):
    """``down(gelu(gate(x)) · up(x))`` with the approximation of gelu by tanh."""

    activation = staticmethod(partial(F.gelu, approximate="tanh"))


FEED_FORWARDS: dict[str, type[FeedForward | GatedFeedForward]] = {
    "gelu": GELU,
    "gelu_tanh": GELUTanh,
    "relu": ReLU,
    "silu": SiLU,
    "swiglu": SwiGLU,
    "geglu": GEGLU,
    "geglu_tanh": GEGLUTanh,
}


def make_feed_forward(
    feed_forward_type: str, width: int, inner_width: int, bias: bool, kernel_size: int = 1
) -> nn.Module:
    """The layer that ``feed_forward_type`` names, from ``width`` to ``inner_width`` and back, with a ``bias`` or none.

    Its first part sees ``kernel_size`` tokens, an odd number.
    """
    return FEED_FORWARDS[feed_forward_type](width, inner_width, bias, kernel_size)


def inner_width(d_model: int, d_ff: int | None, feed_forward_type: str) -> int:
    """Return the width that ``d_ff`` means: itself, below 32 a multiple of ``d_model``, None the layer's default.

    >>> inner_width(512, 2048, "gelu"), inner_width(512, 4, "gelu"), inner_width(512, None, "swiglu")
    (2048, 2048, 1376)
    """
    if d_ff is None:
        is_gated = issubclass(FEED_FORWARDS[feed_forward_type], GatedFeedForward)
        return gated_width(d_model) if is_gated else 4 * d_model
    return d_ff * d_model if d_ff < FACTORS_END else d_ff


def gated_width(width: int, multiple_of: int = 32) -> int:
    """Return the inner width at which three matrices weigh what two of ``4 · width`` do: 8/3 of it, rounded up.

    >>> gated_width(512)
    1376
    """
    return -(-8 * width // (3 * multiple_of)) * multiple_of


LOAD = "expert_load"
"""Name of a term, with a layer and an expert after slashes: how many tokens chose the expert."""


class MixtureOfExperts(nn.Module):
    """Feed-forward layers, of which a router chooses ``top_k`` for each token, and perhaps one that all tokens read.

        s = sigmoid(router(x)), or its softmax
        y = scale · Σ over the top_k of s + bias of g_e · expert_e(x), + shared(x)     g = s, over the chosen's sum

    No token is dropped, however many choose one expert. Once a step, ``follow_step`` raises the bias of experts that
    fewer tokens chose than the mean of the whole step, and lowers that of the others. The bias only affects the choice,
    so balancing needs neither a loss nor a gradient. Source: Wang et al. 2024, algorithm 1. ``layer`` is its name in
    the terms of a step; within ``counted_loads``, ``tally`` gets how many real tokens chose each expert.
    """

    bias: Tensor | None

    def __init__(self, config: MoeConfig, width: int, inner_width: int, make: Callable[[int], nn.Module]) -> None:
        """``make`` gives a feed-forward layer from ``width`` to an inner width and back.

        ``inner_width`` is that of an expert, unless ``config`` sets one.
        """
        super().__init__()
        self.config, self.layer = config, ""
        inner = config.d_ff or inner_width
        self.router = nn.Linear(width, config.num_experts, bias=False)
        self.experts = nn.ModuleList(make(inner) for _ in range(config.num_experts))
        self.shared = make(config.num_shared * inner) if config.num_shared else None
        self.register_buffer("bias", torch.zeros(config.num_experts) if config.balancing_bias else None)
        self.tally: dict[str, Tensor] | None = None

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time width"]:
        """Return the output of each token; those where ``mask`` is False aren't counted."""
        tokens = x.flatten(0, -2)
        weights, chosen = self.route(tokens)
        choices = torch.zeros(weights.shape[0], len(self.experts), device=x.device).scatter(1, chosen, 1.0)
        if self.tally is not None:
            loads = (choices if mask is None else choices * mask.flatten()[:, None]).sum(0)
            self.tally |= dict(zip(load_names([self.layer], len(loads)), loads.unbind(), strict=True))
        compute = self._all if torch.compiler.is_exporting() else self._chosen
        if torch.compiler.is_compiling() and compute == self._chosen:
            # Its shapes change in every step.
            compute = torch.compiler.disable(compute)
        y = compute(tokens, weights, chosen).to(x.dtype).view_as(x)
        return y if self.shared is None else y + self.shared(x)

    def route(
        self, tokens: Float[Tensor, "token width"]
    ) -> tuple[Float[Tensor, "token top_k"], Int[Tensor, "token top_k"]]:
        """Return the weights of each token's experts, and which they are; of equal ones the first."""
        logits = self.router(tokens)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        scores = logits.sigmoid() if self.config.scores == "sigmoid" else logits.softmax(-1)
        wanted = scores.detach() if self.bias is None else scores.detach() + self.bias
        if torch.compiler.is_exporting():
            # ONNX has no order that keeps equal ones.
            chosen = wanted.topk(self.config.top_k).indices
        else:
            chosen = wanted.argsort(dim=-1, descending=True, stable=True)[:, : self.config.top_k]
        weights = scores.gather(1, chosen)
        if self.config.normalise:
            weights = weights / (weights.sum(-1, keepdim=True) + LEAST_PROBABILITY)
        return weights * self.config.scale, chosen

    def _chosen(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Each expert reads its tokens, which stand together for it; then each token's outputs are added up."""
        order, number = chosen.flatten().argsort(stable=True), len(self.experts)
        if is_fake(tokens):
            # An equal part for each.
            sizes = [part.shape[0] for part in order.tensor_split(number)]
        else:
            # Waits for a GPU.
            sizes = chosen.flatten().bincount(minlength=number).tolist()
        read = tokens[order // chosen.shape[1]].split(sizes)
        outputs = torch.cat([expert(part) for expert, part in zip(self.experts, read, strict=True) if len(part)])
        of_token = outputs[order.argsort()].view(*chosen.shape, -1)
        return (of_token * weights[..., None]).sum(1)

    def _all(self, tokens: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """Every expert reads all tokens, as an exported graph needs it, whose shapes don't depend on numbers."""
        spread = weights.new_zeros(tokens.shape[0], len(self.experts)).scatter(1, chosen, weights)
        each = torch.stack([expert(tokens) for expert in self.experts], 1)
        return (each * spread[..., None]).sum(1)

    def follow_step(self, sums: Mapping[str, Tensor]) -> None:
        """Change the bias by the loads of a step, over all ranks: ``sums`` are those of its terms.

        Where they have no loads of this layer, as with a pretrained base, the bias stays unchanged.
        """
        names = [] if self.bias is None else load_names([self.layer], len(self.bias))
        if self.bias is not None and names[0] in sums:
            balance(self.bias, torch.stack([sums[name] for name in names]), self.config.balancing_bias)


LEAST_PROBABILITY = 1e-20
"""Added to the sum of weights, as DeepSeek's does: all of them may be 0."""


def balance(bias: Tensor, uses: Float[Tensor, "expert"], rate: float) -> None:
    """Raise the bias of experts used less than the mean by ``rate``, and lower that of those used more, in place."""
    bias += rate * (uses.sum() - len(uses) * uses).sign().to(bias.dtype)


def load_names(layers: Iterable[str], num_experts: int) -> list[str]:
    """Return the names of the terms that count the tokens of experts, in the order of layers.

    >>> load_names(["3"], 2)
    ['expert_load/3/0', 'expert_load/3/1']
    """
    return [f"{LOAD}/{layer}/{expert}" for layer in layers for expert in range(num_experts)]


def list_mixtures(model: nn.Module) -> list[MixtureOfExperts]:
    """Return the mixtures of experts in a model, in the order of its layers."""
    return [module for module in model.modules() if isinstance(module, MixtureOfExperts)]


@contextmanager
def counted_loads(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Within, count how many tokens choose each expert of a model in the batch that it reads, by ``load_names``."""
    found: dict[str, Tensor] = {}
    mixtures = list_mixtures(model)
    for mixture in mixtures:
        mixture.tally = found
    try:
        yield found
    finally:
        for mixture in mixtures:
            mixture.tally = None


def load_terms(loads: Mapping[str, Tensor], logged_terms: Container[str]) -> dict[str, Term]:
    """Return the loads of experts that are ``logged_terms`` as sums over what a batch counts as its positions."""
    return {name: Term(load, "position") for name, load in loads.items() if name in logged_terms}


def compute_load_metrics(sums: Mapping[str, float]) -> dict[str, float]:
    """Return how evenly tokens are spread over experts, by the loads among ``sums``; empty if there are none.

    Each expert's share of a layer's choices; ``max_violation``, how far the largest load is above an equal one, as a
    mean over layers (Wang et al. 2024, equation 4); ``dead_experts``, the number that no token chose.

    >>> found = compute_load_metrics(dict(zip(load_names(["0", "1"], 2), (3.0, 1.0, 4.0, 0.0))))
    >>> found["expert_load/0/0"], found["max_violation"], found["dead_experts"]
    (0.75, 0.75, 1.0)
    """
    layers: dict[str, dict[str, float]] = {}
    for name, load in sums.items():
        if name.startswith(f"{LOAD}/"):
            layers.setdefault(name.split("/")[1], {})[name] = load
    if not layers:
        return {}
    shares = {name: load / sum(one.values()) for one in layers.values() for name, load in one.items()}
    above = sum(max(shares[name] for name in one) * len(one) - 1 for one in layers.values()) / len(layers)
    return {**shares, "max_violation": above, "dead_experts": float(sum(share == 0 for share in shares.values()))}


class TimeConvolution(nn.Conv1d):
    """A convolution of ``(batch, time, width)`` to ``(batch, time, out_width)``; ``kernel_size`` is odd.

    With as many ``groups`` as channels, each has its own kernel. ``bias`` adds a number to each channel. Where it is
    ``causal``, a frame stands at the end of its kernel.
    """

    def __init__(
        self,
        width: int,
        out_width: int,
        kernel_size: int,
        groups: int = 1,
        bias: bool = True,
        *,
        causal: bool = False,
    ) -> None:
        assert kernel_size % 2, "a frame stands in the middle of its kernel"
        padding = 0 if causal else kernel_size // 2
        super().__init__(width, out_width, kernel_size, padding=padding, groups=groups, bias=bias)
        self.past_frames = kernel_size - 1 if causal else 0

    def forward(
        self, x: Float[Tensor, "batch time width"], mask: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch time out_width"]:
        """Return the convolution over time; values outside ``mask`` count as 0, like those beyond the ends."""
        x = x if mask is None else x.masked_fill(~mask[..., None], 0.0)
        x = F.pad(x, (0, 0, self.past_frames, 0)) if self.past_frames else x
        return super().forward(x.transpose(1, 2)).transpose(1, 2)

    def continued(self, x: Float[Tensor, "batch time width"]) -> Float[Tensor, "batch later out_width"]:
        """Return a causal convolution of the frames after the first ``past_frames``, which are only read."""
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


ROUNDED.add(TimeConvolution)


class ConvNeXtBlock(nn.Module):
    """Adds to each frame what its neighbours make of it."""

    def __init__(
        self,
        width: int,
        inner_width: int,
        kernel_size: int = 7,
        *,
        layer_scale: float = 1.0,
        condition_width: int | None = None,
    ) -> None:
        """Multiply what is added by a learned number per channel, at first ``layer_scale``.

        ``width`` is that of the frames, ``inner_width`` that between the two layers; ``kernel_size`` is odd.
        ``condition_width`` is that of a vector per row that scales and shifts the normalised frames.
        """
        super().__init__()
        self.over_time = TimeConvolution(width, width, kernel_size, groups=width)
        self.norm = LayerNorm(width, eps=1e-6)
        self.modulation = None if condition_width is None else nn.Linear(condition_width, 2 * width)
        self.pointwise = GELU(width, inner_width, bias=True)
        self.layer_scale = nn.Parameter(torch.full((width,), layer_scale))

    def forward(
        self,
        x: Float[Tensor, "batch time width"],
        mask: Bool[Tensor, "batch time"] | None = None,
        condition: Float[Tensor, "batch condition_width"] | None = None,
    ) -> Float[Tensor, "batch time width"]:
        """Return ``x`` with what each frame's neighbours add to it."""
        y = self.norm(self.over_time(x, mask))
        if self.modulation is not None:
            assert condition is not None, "a block with a condition_width needs its condition"
            scale, shift = self.modulation(F.silu(condition))[:, None].chunk(2, -1)
            y = y * (1 + scale) + shift
        added: Tensor = x + self.layer_scale * self.pointwise(y)
        return added
