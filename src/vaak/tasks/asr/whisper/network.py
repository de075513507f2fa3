"""A Whisper as training begins with it: its weights from the Hugging Face Hub, from a folder, or drawn at random."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.core.errors import UserError
from vaak.nn.new_tokens import begin_new_rows
from vaak.tasks.asr.config import SCRATCH, AsrExperiment, ScratchConfig
from vaak.tasks.fetching import SAFELY, fetch_model, import_transformers
from vaak.tasks.kept_base import NewIds
from vaak.tasks.quantised import Frozen, layers_in_nf4

if TYPE_CHECKING:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

from vaak.tasks.asr.model import BASE_KEY, PURPOSE, resolve_base
from vaak.tasks.asr.vocabulary import SpecialIds, make_unnamed_ids

FRAMES_PER_SECOND = 100
"""The rate of Whisper's features; the encoder halves it."""
log = logging.getLogger("vaak")


def scratch_config(options: ScratchConfig, ids: SpecialIds, num_mel_bins: int, seconds: float) -> WhisperConfig:
    """A Whisper of the given sizes, for ``ids`` of a vocabulary and ``seconds`` of audio in ``num_mel_bins`` bins."""
    transformers = import_transformers(PURPOSE, "asr")
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
        max_source_positions=count_positions(seconds),
        max_target_positions=options.max_target_length,
        dropout=options.dropout,
        pad_token_id=ids.pad,
        bos_token_id=ids.prompt[0],
        eos_token_id=ids.end,
        decoder_start_token_id=ids.prompt[0],
        # None has to be given: the defaults are ids of Whisper's own vocabulary.
        suppress_tokens=None,
        begin_suppress_tokens=None,
    )
    return config


def config_before(experiment: AsrExperiment, folder: Path, fetches: bool = False) -> WhisperConfig | None:
    """Return the sizes of the model before its data are prepared; None for a base of the Hub, unless it ``fetches``.

    Raises UserError where they can't be read.
    """
    options, data = experiment.model, experiment.data
    if options.base == SCRATCH:
        ids, num_bins = make_unnamed_ids(data.tokenizer.vocab_size), experiment.global_config.num_mel_bins
        return scratch_config(options.scratch, ids, num_bins, data.max_duration)
    source = resolve_base(options, folder)
    if not fetches and not Path(source).is_dir():
        return None
    sizes = import_transformers(PURPOSE, "asr").WhisperConfig
    config: WhisperConfig = fetch_model(BASE_KEY, source, lambda: sizes.from_pretrained(source))
    if options.window is not None:
        config.max_source_positions = count_positions(options.window)
    return config


def count_positions(seconds: float) -> int:
    """Return the encoder's positions in this many seconds."""
    return round(seconds * FRAMES_PER_SECOND) // 2


def seconds_read(config: WhisperConfig) -> float:
    """Return the seconds of audio that fill all positions of an encoder."""
    return 2 * int(config.max_source_positions) / FRAMES_PER_SECOND


def random_whisper(config: WhisperConfig) -> WhisperForConditionalGeneration:
    """Return a Whisper whose weights are drawn from torch's default generator."""
    transformers = import_transformers(PURPOSE, "asr")
    model: WhisperForConditionalGeneration = transformers.WhisperForConditionalGeneration(config)
    return model


def loaded_whisper(
    source: str, window: float | None, new: NewIds | None = None, frozen: Frozen | None = None
) -> WhisperForConditionalGeneration:
    """Return the Whisper of a folder or of the Hub, in 32 bits; its encoder is cut to a ``window`` of seconds, if any.

    It has rows for ``new`` tokens, too; ``frozen`` says which layers are in four bits. Raises UserError where it can't
    be loaded.
    """
    import torch

    transformers = import_transformers(PURPOSE, "asr")
    whisper = transformers.WhisperForConditionalGeneration
    how: dict[str, Any] = {"use_safetensors": True, "dtype": torch.float32, **SAFELY}
    with layers_in_nf4(source, frozen):
        model: WhisperForConditionalGeneration = fetch_model(
            BASE_KEY, source, lambda: whisper.from_pretrained(source, **how)
        )
    if window is not None:
        shorten(model, count_positions(window), source)
    if new is not None and new.ids:
        model.resize_token_embeddings(new.ids.stop, mean_resizing=False)
        begin_new_rows([model.get_input_embeddings(), model.get_output_embeddings()], *new)
    return model


def shorten(model: WhisperForConditionalGeneration, positions: int, source: str) -> None:
    """Leave the encoder its first ``positions``. Raises UserError where it doesn't have as many."""
    import torch

    table = model.model.encoder.embed_positions
    if positions > table.num_embeddings:
        raise UserError(f"model.window: {source} reads at most {seconds_read(model.config):g} s")
    # Sinusoids, which aren't trained. A clone, since a slice would keep the whole table in memory.
    table.weight = torch.nn.Parameter(table.weight[:positions].detach().clone(), requires_grad=False)
    table.num_embeddings = model.config.max_source_positions = positions
    model.model.encoder.max_source_positions = positions
