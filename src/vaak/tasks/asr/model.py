"""Whisper as a model to train: audio features and the tokens before, the logits of the next token out.

    features ──encoder──▶ states ──┐
                    tokens ──▶ decoder ──▶ logits

The network is transformers' own, so its logits are. With ``model.lora`` its weights are frozen, and low-rank changes of
some layers are trained (peft).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.tasks.asr.config import LoraConfig

if TYPE_CHECKING:
    from transformers import WhisperForConditionalGeneration


class AsrModel(nn.Module):
    """A Whisper, whole or with low-rank changes."""

    def __init__(self, whisper: WhisperForConditionalGeneration, lora: LoraConfig | None = None) -> None:
        """What ``lora`` adds is drawn from torch's default generator."""
        super().__init__()
        whisper.config.apply_spec_augment = False  # features are masked with the data (data.augmentation)
        self.whisper = whisper
        if lora is not None:
            add_lora(whisper, lora)

    @property
    def max_target_length(self) -> int:
        """Tokens that the decoder reads at most, those of the prompt among them."""
        return int(self.whisper.config.max_target_positions)

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:
        """Logits ``(row, token, vocab)`` of what follows ``tokens``, for features ``(row, bin, frame)``."""
        logits: Tensor = self.decode(tokens, self.encode(features))
        return logits

    def encode(self, features: Tensor) -> Tensor:
        """The encoder's states ``(row, position, width)``."""
        states: Tensor = self.whisper.model.encoder(features).last_hidden_state
        return states

    def decode(self, tokens: Tensor, states: Tensor, cache: Any = None) -> Tensor:
        """Logits ``(row, token, vocab)`` of what follows tokens; with a ``cache``, of tokens that follow its own."""
        hidden = self.whisper.model.decoder(
            input_ids=tokens, encoder_hidden_states=states, past_key_values=cache, use_cache=cache is not None
        ).last_hidden_state
        logits: Tensor = self.whisper.proj_out(hidden)
        return logits


def add_lora(model: nn.Module, options: LoraConfig) -> None:
    """Freeze a model and add low-rank changes to its layers, in place.

    Raises UserError where peft isn't installed, or no layer has a name of ``options.targets``.
    """
    try:
        import peft
    except ImportError as error:
        raise UserError(f"model.lora requires peft ({error}); pip install 'vaak[asr]'") from error
    make: Any = peft.LoraConfig  # alpha may be any number
    config = make(
        r=options.rank, lora_alpha=options.alpha, lora_dropout=options.dropout, target_modules=list(options.targets)
    )
    try:
        peft.inject_adapter_in_model(config, model)
    except ValueError as error:
        layers = sorted({name.rpartition(".")[2] for name, one in model.named_modules() if isinstance(one, nn.Linear)})
        raise UserError(
            f"model.lora.targets: no layer is called {' or '.join(options.targets)}; there are {', '.join(layers)}"
        ) from error
