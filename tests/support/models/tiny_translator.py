"""A translator that was never trained: small, with weights so large that what it writes varies."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import Any

import torch

from networks import draw_weights
from vaak.nn.config import EncoderDecoderConfig
from vaak.nn.models import EncoderDecoderModel
from vaak.tasks.seq2seq.predict import Translator
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

SENTENCES = {
    "source": ["the boy goes home", "she reads a book", "we eat rice at night", "where is the red house", "no"],
    "target": ["लड़का घर जाता है", "वह किताब पढ़ती है", "हम रात को चावल खाते हैं", "लाल घर कहाँ है", "नहीं"],
}
SIZES = {"d_model": 16, "num_layers": 2, "num_heads": 2}


@cache
def tokenizer(side: str) -> Tokenizer:
    options = SimpleNamespace(type="wordpiece", vocab_size=64, min_frequency=1, training_characters=None, path=None)
    return TokenizerFactory(options).create_tokenizer(SENTENCES[side])


def tiny_translator(
    seed: int = 0, max_source_length: int = 64, dtype: torch.dtype = torch.float64, **options: Any
) -> Translator:
    """``options`` go to both stacks."""
    torch.manual_seed(seed)
    stacks: dict[str, Any] = {"encoder": SIZES | options, "decoder": SIZES | options}
    if options.get("attention_type") == "linear":
        stacks["decoder"]["attention_type"] = "causal_linear"
    config = EncoderDecoderConfig(**stacks, share_embeddings=False)
    vocab_sizes = tokenizer("source").vocab_size, tokenizer("target").vocab_size
    model = EncoderDecoderModel(config, *vocab_sizes, max_source_length=64, max_target_length=64).to(dtype)
    draw_weights(model, 0.4)
    with torch.no_grad():
        model.target_embedding.weight[tokenizer("target").eos_id] *= 2  # so that some targets end
    return Translator(model, tokenizer("source"), tokenizer("target"), max_source_length)
