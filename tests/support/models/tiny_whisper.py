"""A Whisper as the Hub has them, but tiny: weights, sizes, tokenizer and generation options in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration, WhisperTokenizer

SPECIAL = ("<|startoftranscript|>", "<|en|>", "<|hi|>", "<|translate|>", "<|transcribe|>", "<|startofprev|>")
LAST = ("<|startoflm|>", "<|nospeech|>", "<|notimestamps|>")
NUM_TIMES = 5


def whisper_tokenizer(empty: bool = False, num_times: int = NUM_TIMES) -> WhisperTokenizer:
    """Every byte is a token, then the special ones, and some for times.

    With ``empty``, there is a token without characters, by which CTranslate2 knows that it is multilingual.
    """
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *([""] if empty else [])]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    names = ["<|endoftext|>", *SPECIAL, *LAST, *(f"<|{0.02 * number:.2f}|>" for number in range(num_times))]
    backend.add_special_tokens([AddedToken(name, special=True) for name in names])
    return WhisperTokenizer(tokenizer_object=backend)


def write_whisper(
    folder: Path,
    seed: int = 0,
    multilingual: bool = True,
    max_target_positions: int = 24,
    empty: bool = False,
    num_times: int = NUM_TIMES,
    seconds: float = 30.0,
) -> Path:
    """A folder that transformers' ``from_pretrained`` reads; its model has random weights, but not tiny ones."""
    tokenizer = whisper_tokenizer(empty, num_times)
    ids = tokenizer.get_vocab()
    end, start = ids["<|endoftext|>"], ids["<|startoftranscript|>"]
    special = [number for name, number in ids.items() if name.startswith("<|") and number != end]
    config = WhisperConfig(
        vocab_size=max(ids.values()) + 1,
        d_model=32,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=round(50 * seconds),
        max_target_positions=max_target_positions,
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=start,
        suppress_tokens=None,
        begin_suppress_tokens=None,
        init_std=0.4,
    )
    torch.manual_seed(seed)
    model = WhisperForConditionalGeneration(config)
    make: Any = GenerationConfig  # it has no types
    of_languages = {
        "lang_to_id": {"<|en|>": ids["<|en|>"], "<|hi|>": ids["<|hi|>"]},
        "task_to_id": {"transcribe": ids["<|transcribe|>"], "translate": ids["<|translate|>"]},
    }
    model.generation_config = make(
        decoder_start_token_id=start,
        eos_token_id=end,
        pad_token_id=end,
        bos_token_id=end,
        suppress_tokens=[ids["#"], ids["%"], *special],
        begin_suppress_tokens=[ids["Ġ"], end],
        is_multilingual=multilingual,
        **(of_languages if multilingual else {}),
        no_timestamps_token_id=ids["<|notimestamps|>"],
        max_length=max_target_positions,
        return_timestamps=False,
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
