"""How a stack knows the order of its tokens: which of the kinds of positions it has, and where each acts.

    sinusoidal (and in halves), learned, convolutional    added to the stream before the first block
    rotary                                queries and keys are turned in every layer
    alibi, t5                             added to the score of every pair of tokens

Each kind has its own file.
"""

from __future__ import annotations

from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.nn.config import StackConfig
from vaak.nn.decoding.cache import LayerCache
from vaak.nn.positions.alibi import Alibi
from vaak.nn.positions.convolutional import ConvolutionalPositions
from vaak.nn.positions.learned import LearnedPositions
from vaak.nn.positions.rotary import Rotation, Scaling, rotation
from vaak.nn.positions.sinusoidal import Sinusoidal
from vaak.nn.positions.t5_bias import RelativeBias

SINUSOIDAL = ("sinusoidal", "sinusoidal_halves")


class Positions(nn.Module):
    """The positions of one stack; ``max_length`` is the longest sequence that learned ones have a vector for."""

    def __init__(self, config: StackConfig, *, causal: bool, max_length: int | None) -> None:
        super().__init__()
        self.config = config
        kind = config.position_type
        self.added: Sinusoidal | LearnedPositions | ConvolutionalPositions | None = None
        self.bias: Alibi | RelativeBias | None = None
        if kind in SINUSOIDAL:
            self.added = Sinusoidal(config.d_model, in_halves=kind == "sinusoidal_halves")
        elif kind == "learned":
            if max_length is None:
                raise UserError("position_type learned has a vector for each position; give max_length")
            self.added = LearnedPositions(config.d_model, max_length)
        elif kind == "convolutional":
            self.added = ConvolutionalPositions(config.d_model, causal)
        elif kind == "alibi":
            self.bias = Alibi(config.num_heads)
        elif kind == "t5":
            self.bias = RelativeBias(config.num_heads, bidirectional=not causal)

    def add(self, x: Tensor, positions: Tensor, documents: Tensor | None, cache: LayerCache | None) -> Tensor:
        """The stream ``(batch, time, width)``, with positions ``(batch or 1, time)`` added if they are of that kind."""
        if self.added is None:
            return x
        around = (documents, cache) if isinstance(self.added, ConvolutionalPositions) else (positions,)
        placed: Tensor = self.added(x, *around)
        return placed

    def rotation(self, positions: Tensor) -> Rotation | None:
        """The turn of queries and keys at these positions; None where they don't turn."""
        config = self.config
        if config.position_type != "rotary":
            return None
        return rotation(
            positions,
            config.head_width,
            config.rope_theta,
            Scaling(
                config.rope_scaling_type,
                config.rope_scaling_factor,
                config.rope_original_length,
                config.rope_scaling_bounds,
            ),
        )
