"""Networks from options, whole or in parts: for the tasks, and for those who use Vaak as a library.

    ModelFactory({"model_type": "decoder", "d_model": 256, "attention_type": "causal_linear"}).create_model(8000)

    attention = Attention(d_model=64, num_heads=4, position_type="rotary")
    mixed = attention(x, mask=mask, causal=True)

Options are those of a stack (``vaak.nn.config.StackConfig``); each has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from vaak.config.base import from_options
from vaak.core.errors import UserError
from vaak.nn import attention
from vaak.nn.config import LINEAR, EncoderDecoderConfig, SingleStackConfig, StackConfig
from vaak.nn.kernels.visibility import Visibility, positions_in_documents
from vaak.nn.models import EncoderDecoderModel, TransformerModel
from vaak.nn.own_network import Stack, make_stack
from vaak.nn.positional_encodings import Positions

MODEL_TYPES = ("encoder", "decoder", "encoder_decoder")


class ModelFactory:
    """Makes what a ``model:`` section describes: ``model_type`` encoder, decoder or encoder_decoder.

    ``global_config`` holds options of both sides; those in ``encoder`` or ``decoder`` override it. A single stack may
    have its options flat, too. Weights are drawn from torch's default generator: seed it first.

    Raises UserError, with every mistake, where the options are wrong.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        model_type = options.get("model_type", "encoder_decoder" if "encoder" in options else "decoder")
        if model_type not in MODEL_TYPES:
            raise UserError(f"model.model_type is {model_type!r}; expected one of {', '.join(MODEL_TYPES)}")
        given = dict(options)
        # Options of all stacks, which each may override.
        shared = dict(given.pop("global_config", {}))
        self.config: EncoderDecoderConfig | SingleStackConfig
        if model_type == "encoder_decoder":
            only_decoders = {key: shared.pop(key) for key in ("cross_attention_type",) if key in shared}
            given["encoder"] = shared | dict(given.get("encoder", {}))
            given["decoder"] = shared | only_decoders | dict(given.get("decoder", {}))
            self.config = from_options(EncoderDecoderConfig, given, "model")
        else:
            given = shared | dict(given.pop(model_type, {})) | given | {"model_type": model_type}
            self.config = from_options(SingleStackConfig, given, "model")

    def create_model(
        self,
        vocab_size: int,
        target_vocab_size: int | None = None,
        *,
        max_length: int | None = None,
        max_target_length: int | None = None,
    ) -> nn.Module:
        """Return a ``TransformerModel`` or an ``EncoderDecoderModel`` over tokens.

        ``vocab_size`` is the source's; the target's is the same unless given. The lengths are needed by learned
        positions alone.

        Raises UserError if embeddings can't be shared, or the lengths are missing.
        """
        config = self.config
        if isinstance(config, EncoderDecoderConfig):
            sides = (vocab_size, config.encoder.d_model), (target_vocab_size or vocab_size, config.decoder.d_model)
            if config.share_embeddings and sides[0] != sides[1]:
                raise UserError(
                    "model.share_embeddings: source and target have different vocabularies or d_model; expected false"
                )
            return EncoderDecoderModel(
                config,
                vocab_size,
                target_vocab_size or vocab_size,
                max_source_length=max_length,
                max_target_length=max_target_length or max_length,
            )
        causal = config.model_type == "decoder"
        return TransformerModel(config, vocab_size, causal=causal, tied=config.tie_embeddings, max_length=max_length)

    def create_encoder(self, *, max_length: int | None = None) -> Stack:
        """Return the encoder alone: vectors in, vectors out, ``(batch, time, d_model)``."""
        config = self.config.encoder if isinstance(self.config, EncoderDecoderConfig) else self.config
        return make_stack(config, causal=False, max_length=max_length)

    def create_decoder(self, *, memory_width: int | None = None, max_length: int | None = None) -> Stack:
        """Return the decoder alone; with ``memory_width`` it looks at vectors of that width."""
        config = self.config.decoder if isinstance(self.config, EncoderDecoderConfig) else self.config
        return make_stack(config, causal=True, memory_width=memory_width, max_length=max_length)


POSITIONS = ("none", "rotary", "alibi")
"""The positions that a single layer of attention can have; others belong to a stack."""


class Attention(nn.Module):
    """One layer of attention: tokens in, tokens out; with ``memory_width`` it looks at vectors of that width.

    Raises UserError if options are wrong.
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
        ones. Outputs at padded places are undefined.

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
        if documents is None:
            places = torch.arange(x.shape[1], device=x.device)[None]
        else:
            places = positions_in_documents(documents)
        mixed: Tensor = self.layer(x, visibility, rotation=self.positions.rotation(places))
        return mixed

    def _visibility(self, mask: Tensor | None, documents: Tensor | None, causal: bool) -> Visibility:
        """Return which token sees which, in the form that the type of attention takes."""
        if mask is not None and documents is not None:
            documents, mask = documents.masked_fill(~mask, -1), None
        if mask is None:
            return Visibility(causal, documents, documents, self.positions.bias)
        padding = torch.where(mask, 0, -1)
        # Padding may come between the tokens of its one document.
        is_linear = self.config.attention_type in LINEAR
        return Visibility(causal, None if is_linear else padding, padding, self.positions.bias)

    def extra_repr(self) -> str:
        return f"{self.config.attention_type}, d_model={self.config.d_model}, num_heads={self.config.num_heads}"


def encoder(*, max_length: int | None = None, **options: Any) -> Stack:
    """Return a stack that sees both sides: ``encoder(d_model=64, num_layers=2, num_heads=4)(x, mask=mask)``.

    ``max_length`` is needed by learned positions. Raises UserError if options are wrong.
    """
    return ModelFactory({**options, "model_type": "encoder"}).create_encoder(max_length=max_length)


def decoder(*, memory_width: int | None = None, max_length: int | None = None, **options: Any) -> Stack:
    """Return a stack that sees no later token; with ``memory_width`` it looks at an encoder's output of that width.

    ``max_length`` is needed by learned positions. Raises UserError if options are wrong.
    """
    factory = ModelFactory({**options, "model_type": "decoder"})
    return factory.create_decoder(memory_width=memory_width, max_length=max_length)
