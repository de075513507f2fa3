"""Networks from options: for the tasks, and for those who use Vaak as a library.

ModelFactory({"model_type": "decoder", "d_model": 256, "attention_type": "causal_linear"}).create_model(8000)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from vaak.config.base import from_options
from vaak.core.errors import UserError
from vaak.nn.config import EncoderDecoderConfig, SingleStackConfig
from vaak.nn.models import EncoderDecoderModel, TransformerModel
from vaak.nn.stack import TransformerStack

MODEL_TYPES = ("encoder", "decoder", "encoder_decoder")


class ModelFactory:
    """Makes what a ``model:`` section describes: ``model_type`` encoder, decoder or encoder_decoder.

    ``global_config`` holds options of both sides; what ``encoder`` or ``decoder`` say overrides it. A single stack may
    have its options flat, too. Weights are drawn from torch's default generator: seed it first.

    Raises UserError, with every mistake, where the options are wrong.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        model_type = options.get("model_type", "encoder_decoder" if "encoder" in options else "decoder")
        if model_type not in MODEL_TYPES:
            raise UserError(f"model.model_type is {model_type!r}; expected one of {', '.join(MODEL_TYPES)}")
        given = _inherited(dict(options), model_type)
        self.config: EncoderDecoderConfig | SingleStackConfig
        if model_type == "encoder_decoder":
            self.config = from_options(EncoderDecoderConfig, given, "model")
        else:
            self.config = from_options(SingleStackConfig, given, "model")

    def create_model(
        self,
        vocab_size: int,
        target_vocab_size: int | None = None,
        *,
        max_length: int | None = None,
        max_target_length: int | None = None,
    ) -> nn.Module:
        """A ``TransformerModel`` or an ``EncoderDecoderModel`` over tokens.

        ``vocab_size`` is the source's; the target's is the same unless given. The lengths are needed by learned
        positions alone.

        Raises UserError where embeddings can't be shared, or the lengths are missing.
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

    def create_encoder(self, *, max_length: int | None = None) -> TransformerStack:
        """The encoder alone: vectors in, vectors out, ``(batch, time, d_model)``."""
        config = self.config.encoder if isinstance(self.config, EncoderDecoderConfig) else self.config
        return TransformerStack(config, causal=False, max_length=max_length)

    def create_decoder(self, *, memory_width: int | None = None, max_length: int | None = None) -> TransformerStack:
        """The decoder alone; with ``memory_width`` it looks at vectors of that width."""
        config = self.config.decoder if isinstance(self.config, EncoderDecoderConfig) else self.config
        return TransformerStack(config, causal=True, memory_width=memory_width, max_length=max_length)


def _inherited(options: dict[str, Any], model_type: str) -> dict[str, Any]:
    """The options with what ``global_config`` says where it belongs."""
    shared = dict(options.pop("global_config", {}))
    if model_type == "encoder_decoder":
        only_decoders = {key: shared.pop(key) for key in ("cross_attention_type",) if key in shared}
        options["encoder"] = shared | dict(options.get("encoder", {}))
        options["decoder"] = shared | only_decoders | dict(options.get("decoder", {}))
        return options
    return shared | dict(options.pop(model_type, {})) | options | {"model_type": model_type}
