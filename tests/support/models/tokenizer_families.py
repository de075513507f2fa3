"""Tokenizers of the families that transformers has, tiny, trained and saved by its own classes."""

from __future__ import annotations

import json
from typing import Any

import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tiny_whisper import whisper_tokenizer

TEXTS = ("the boy reads a good book.", "राम घर जाता है।", "Hello, World! it's 42.", "the good boy")
BYTES = [f"<0x{number:02X}>" for number in range(256)]


def _model_of(backend: Tokenizer) -> dict[str, Any]:
    model = json.loads(backend.to_str())["model"]
    merges = [tuple(one.split(" ") if isinstance(one, str) else one) for one in model["merges"]]
    return {"vocab": model["vocab"], "merges": merges}


def _bytes(special: list[str]) -> Tokenizer:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    backend.train_from_iterator(
        TEXTS,
        trainers.BpeTrainer(vocab_size=290, special_tokens=special, initial_alphabet=alphabet, show_progress=False),
    )
    return backend


def _pieces() -> list[tuple[str, float]]:
    """Pieces of a unigram model, as SentencePiece has them."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]


def gpt2() -> Any:
    """Nothing is put around a text."""
    return transformers.GPT2Tokenizer(**_model_of(_bytes(["<|endoftext|>"])))


def qwen() -> Any:
    """No token begins a document at all."""
    model = _model_of(_bytes(["<|endoftext|>", "<|im_end|>"]))
    return transformers.Qwen2Tokenizer(**model, eos_token="<|im_end|>", pad_token="<|endoftext|>")


def llama(bos: bool = True) -> Any:
    """Pieces as SentencePiece's; with ``bos`` a text begins with ``<s>``."""
    backend = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=310, special_tokens=["<unk>", "<s>", "</s>", *BYTES], show_progress=False)
    backend.train_from_iterator(TEXTS, trainer)
    return transformers.LlamaTokenizer(**_model_of(backend), add_bos_token=bos)


def llama3() -> Any:
    """A tokenizer.json alone, whose post-processor begins a text."""
    backend = _bytes(["<|begin_of_text|>", "<|end_of_text|>"])
    backend.post_processor = processors.TemplateProcessing(
        single="<|begin_of_text|> $A",
        pair="<|begin_of_text|> $A <|begin_of_text|> $B:1",
        special_tokens=[("<|begin_of_text|>", 0)],
    )
    names = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    fast: Any = transformers.PreTrainedTokenizerFast
    return fast(tokenizer_object=backend, model_input_names=["input_ids", "attention_mask"], **names)


def bert() -> Any:
    """``[CLS]`` before a text, ``[SEP]`` after it."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(
        TEXTS, trainers.WordPieceTrainer(vocab_size=100, special_tokens=special, show_progress=False)
    )
    return transformers.BertTokenizer(vocab=backend.get_vocab())


def roberta() -> Any:
    """``<s>`` and ``</s>`` around a text, and two of the last between texts."""
    return transformers.RobertaTokenizer(**_model_of(_bytes(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])))


def xlm_roberta() -> Any:
    """The same around pieces of SentencePiece."""
    special = [(name, 0.0) for name in ("<s>", "<pad>", "</s>", "<unk>")]
    return transformers.XLMRobertaTokenizer(vocab=[*special, *_pieces()[3:], ("<mask>", 0.0)])


def t5() -> Any:
    """``</s>`` after a text, nothing before; sentinels."""
    return transformers.T5Tokenizer(vocab=_pieces(), extra_ids=4)


def whisper() -> Any:
    """Its start before a transcript, without the token for no times, as its configuration says."""
    tokenizer = whisper_tokenizer()
    tokenizer.set_prefix_tokens(predict_timestamps=True)
    return tokenizer
