"""Parts of networks to use alone: ``vaak.nn.Attention``, ``vaak.nn.encoder``, ``vaak.nn.decoder``.

    attention = Attention(d_model=64, num_heads=4, position_type="rotary")
    mixed = attention(x, mask=mask, causal=True)

Options are those of a stack (``vaak.nn.config.StackConfig``); each has its default.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from vaak.config.base import from_options
from vaak.core.errors import UserError
from vaak.nn import attention
from vaak.nn.config import LINEAR, StackConfig
from vaak.nn.factory import ModelFactory
from vaak.nn.kernels.documents import positions_in_documents
from vaak.nn.kernels.visibility import Visibility
from vaak.nn.positions.kinds import Positions
from vaak.nn.stack import TransformerStack

POSITIONS = ("none", "rotary", "alibi")
"""The positions that a single layer of attention can have; others belong to a stack."""


class Attention(nn.Module):
    """One layer of attention: tokens in, tokens out; with ``memory_width`` it looks at vectors of that width.

    Raises UserError where options are wrong.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        memory_width: int | None = None,
        position_type: str = "none",
        **options: Any,
    ) -> None:
        super().__init__()
        expected = POSITIONS if memory_width is None else POSITIONS[:1]
        if position_type not in expected:
            raise UserError(
                f"position_type is {position_type!r}; attention alone takes {', '.join(expected)}, and "
                "vaak.nn.encoder takes all of them"
            )
        sizes = {"d_model": d_model, "num_heads": num_heads, "position_type": position_type}
        self.config = from_options(StackConfig, {"dropout": 0.0, **options, **sizes}, "attention")
        self.positions = Positions(self.config, causal=False, max_length=None)
        self.layer = attention.Attention(self.config, self.config.attention_type, memory_width)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        documents: Tensor | None = None,
        causal: bool = False,
        memory: Tensor | None = None,
    ) -> Tensor:
        """Each token's mixture of what it may see, ``(batch, time, d_model)``, from ``x`` of that shape.

        ``mask`` ``(batch, time)`` is True where a token is real. ``documents`` ``(batch, time)`` numbers the document
        of each token, -1 where it is padding: tokens see only their own. ``causal`` hides later tokens from earlier
        ones. What comes out at padded places means nothing.

        With ``memory`` ``(batch, memory time, memory_width)``, tokens attend to it, where ``mask``
        ``(batch, memory time)`` is True.
        """
        if memory is not None:
            if documents is not None or causal:
                raise UserError("attention to a memory takes no documents and is not causal")
            padding = None if mask is None else torch.where(mask, 0, -1)
            attended: Tensor = self.layer(x, Visibility(causal=False, key_documents=padding), memory=memory)
            return attended
        visibility = self._visibility(mask, documents, causal or self.config.attention_type == "causal_linear")
        mixed: Tensor = self.layer(x, visibility, rotation=self.positions.rotation(_positions(x, documents)))
        return mixed

    def _visibility(self, mask: Tensor | None, documents: Tensor | None, causal: bool) -> Visibility:
        """Who sees whom, as each type of attention wants to be told."""
        if mask is not None and documents is not None:
            documents, mask = documents.masked_fill(~mask, -1), None
        if mask is None:
            return Visibility(causal, documents, documents, self.positions.bias)
        padding = torch.where(mask, 0, -1)
        is_linear = self.config.attention_type in LINEAR  # padding may come between the tokens of its one document
        return Visibility(causal, None if is_linear else padding, padding, self.positions.bias)

    def extra_repr(self) -> str:
        return f"{self.config.attention_type}, d_model={self.config.d_model}, num_heads={self.config.num_heads}"


def encoder(*, max_length: int | None = None, **options: Any) -> TransformerStack:
    """A stack that sees both sides: ``encoder(d_model=64, num_layers=2, num_heads=4)(x, mask=mask)``.

    ``max_length`` is needed by learned positions. Raises UserError where options are wrong.
    """
    return ModelFactory({**options, "model_type": "encoder"}).create_encoder(max_length=max_length)


def decoder(*, memory_width: int | None = None, max_length: int | None = None, **options: Any) -> TransformerStack:
    """A stack that sees no later token; with ``memory_width`` it looks at an encoder's output of that width.

    ``max_length`` is needed by learned positions. Raises UserError where options are wrong.
    """
    factory = ModelFactory({**options, "model_type": "decoder"})
    return factory.create_decoder(memory_width=memory_width, max_length=max_length)


def _positions(x: Tensor, documents: Tensor | None) -> Tensor:
    if documents is not None:
        return positions_in_documents(documents)
    return torch.arange(x.shape[1], device=x.device)[None]
