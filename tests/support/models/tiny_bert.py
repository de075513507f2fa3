"""A tiny BERT as a folder of transformers, with its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch


def write_bert(folder: Path, words: Sequence[str], places: int = 20) -> Path:
    """Two layers of width 16 over ``words``, with ``places`` for tokens."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir(exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    transformers.BertTokenizerFast(str(folder / "vocab.txt")).save_pretrained(folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=len(vocabulary), max_position_embeddings=places, **sizes)
    transformers.BertModel(config).save_pretrained(folder)
    return folder
