"""The Whisper that training begins with: from the Hugging Face Hub, from a folder, or drawn at random."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from vaak.core.errors import UserError
from vaak.tasks.asr.config import VERSIONS, AsrModelConfig, ScratchConfig
from vaak.tasks.asr.vocabulary import SpecialIds
from vaak.tasks.hub import SAFELY, fetched, source_of, transformers_of

if TYPE_CHECKING:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

FRAMES_PER_SECOND = 100
"""Of Whisper's features; the encoder halves them."""
PURPOSE, KEY = "speech recognition", "model.base"


def base_of(options: AsrModelConfig, folder: Path) -> str:
    """The folder or the name on the Hub of a base; a relative folder is looked for in ``folder``, too.

    Raises UserError for a folder that isn't there, or one without weights.
    """
    return source_of(KEY, VERSIONS.get(options.base, options.base), folder)


def name_of(base: str, folder: Path) -> str:
    """What a base is called for other software: its whole name on the Hub, or the absolute path of its folder."""
    name = VERSIONS.get(base, base)
    places = (Path(name).expanduser(), folder / name)
    return next((str(path.resolve()) for path in places if path.is_dir()), name)


def scratch_config(options: ScratchConfig, ids: SpecialIds, num_mel_bins: int, seconds: float) -> WhisperConfig:
    """A Whisper of the given sizes, for ``ids`` of a vocabulary and ``seconds`` of audio in ``num_mel_bins`` bins."""
    transformers = transformers_of(PURPOSE, "asr")
    width = options.d_ff or 4 * options.d_model
    config: WhisperConfig = transformers.WhisperConfig(
        vocab_size=ids.size,
        num_mel_bins=num_mel_bins,
        d_model=options.d_model,
        encoder_layers=options.encoder_layers,
        decoder_layers=options.decoder_layers,
        encoder_attention_heads=options.num_heads,
        decoder_attention_heads=options.num_heads,
        encoder_ffn_dim=width,
        decoder_ffn_dim=width,
        max_source_positions=positions_of(seconds),
        max_target_positions=options.max_target_length,
        dropout=options.dropout,
        pad_token_id=ids.pad,
        bos_token_id=ids.prompt[0],
        eos_token_id=ids.end,
        decoder_start_token_id=ids.prompt[0],
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return config


def positions_of(seconds: float) -> int:
    """The encoder's positions in this many seconds."""
    return round(seconds * FRAMES_PER_SECOND) // 2


def random_whisper(config: WhisperConfig) -> WhisperForConditionalGeneration:
    """A Whisper whose weights are drawn from torch's default generator."""
    transformers = transformers_of(PURPOSE, "asr")
    model: WhisperForConditionalGeneration = transformers.WhisperForConditionalGeneration(config)
    return model


def loaded_whisper(source: str, seconds: float) -> WhisperForConditionalGeneration:
    """The Whisper of a folder or of the Hub, in 32 bits; its encoder reads ``seconds`` of audio.

    Raises UserError where it can't be loaded.
    """
    import torch

    transformers = transformers_of(PURPOSE, "asr")
    whisper = transformers.WhisperForConditionalGeneration
    model: WhisperForConditionalGeneration = fetched(
        KEY, source, lambda: whisper.from_pretrained(source, use_safetensors=True, dtype=torch.float32, **SAFELY)
    )
    shorten(model, positions_of(seconds), source)
    return model


def shorten(model: WhisperForConditionalGeneration, positions: int, source: str) -> None:
    """Leave the encoder its first ``positions``. Raises UserError where it doesn't have as many."""
    import torch

    table = model.model.encoder.embed_positions
    if positions > table.num_embeddings:
        seconds = 2 * table.num_embeddings / FRAMES_PER_SECOND
        raise UserError(f"data.max_duration: {source} reads at most {seconds:g} s")
    table.weight = torch.nn.Parameter(table.weight[:positions].detach().clone(), requires_grad=False)
    table.num_embeddings = model.config.max_source_positions = positions
    model.model.encoder.max_source_positions = positions
