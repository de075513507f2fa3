"""The Whisper that training begins with: from the Hugging Face Hub, from a folder, or drawn at random.

Weights are read from safetensors only, and code of a repository is never executed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from vaak.core.errors import UserError
from vaak.tasks.asr.config import VERSIONS, AsrModelConfig, ScratchConfig
from vaak.tasks.asr.vocabulary import SpecialIds

if TYPE_CHECKING:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

Found = TypeVar("Found")
FRAMES_PER_SECOND = 100
"""Of Whisper's features; the encoder halves them."""
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def transformers_of(purpose: str) -> Any:
    """The package transformers. Raises UserError where it is not installed."""
    try:
        import transformers
    except ImportError as error:
        raise UserError(f"{purpose} requires transformers ({error}); pip install 'vaak[asr]'") from error
    return transformers


def source_of(options: AsrModelConfig, folder: Path) -> str:
    """The folder or the name on the Hub of a base; a relative folder is looked for in ``folder``, too.

    Raises UserError for a folder that isn't there, or one without weights.
    """
    name = VERSIONS.get(options.base, options.base)
    for path in (Path(name).expanduser(), folder / name):
        if path.is_dir():
            _demand_weights(path)
            return str(path.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"model.base: no such folder: {name}")
    return name


def _demand_weights(folder: Path) -> None:
    if any((folder / name).exists() for name in WEIGHTS):
        return
    if any(folder.glob("pytorch_model*.bin")):
        raise UserError(
            f"model.base: {folder} has its weights as pickles (pytorch_model.bin), which can run code; save them as "
            "model.safetensors"
        )
    raise UserError(f"model.base: {folder} has no weights; expected model.safetensors and config.json")


def scratch_config(options: ScratchConfig, ids: SpecialIds, num_mel_bins: int, seconds: float) -> WhisperConfig:
    """A Whisper of the given sizes, for ``ids`` of a vocabulary and ``seconds`` of audio in ``num_mel_bins`` bins."""
    transformers = transformers_of("speech recognition")
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
    transformers = transformers_of("speech recognition")
    model: WhisperForConditionalGeneration = transformers.WhisperForConditionalGeneration(config)
    return model


def loaded_whisper(source: str, seconds: float) -> WhisperForConditionalGeneration:
    """The Whisper of a folder or of the Hub, in 32 bits; its encoder reads ``seconds`` of audio.

    Raises UserError where it can't be loaded.
    """
    import torch

    transformers = transformers_of("speech recognition")
    transformers.utils.logging.disable_progress_bar()
    whisper = transformers.WhisperForConditionalGeneration
    model: WhisperForConditionalGeneration = fetched(
        source,
        lambda: whisper.from_pretrained(source, use_safetensors=True, trust_remote_code=False, dtype=torch.float32),
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


def fetched(source: str, fetch: Callable[[], Found]) -> Found:
    """What ``fetch`` gets from a folder or the Hub. Raises UserError with one line where it can't."""
    try:
        return fetch()
    except Exception as error:  # each layer of transformers and of the Hub raises its own
        where = "no such folder, and the Hugging Face Hub has no such model or can't be reached"
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = said[:200] if Path(source).is_dir() else where
        raise UserError(f"model.base: {source} can't be loaded: {reason}") from error
