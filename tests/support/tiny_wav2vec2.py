"""A wav2vec 2.0, a HuBERT or a WavLM as the Hub has them, but tiny: weights, sizes, and how it reads audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCTC, HubertConfig, Wav2Vec2Config, Wav2Vec2FeatureExtractor, WavLMConfig

CONFIGS: dict[str, Any] = {"wav2vec2": Wav2Vec2Config, "hubert": HubertConfig, "wavlm": WavLMConfig}


def write_base(folder: Path, family: str, norm: str) -> Path:
    """A folder that ``from_pretrained`` reads; of wav2vec2's sizes, a frame is 20 ms."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
    config = CONFIGS[family](
        **sizes,
        conv_dim=(16,) * 7,
        feat_extract_norm=norm,
        do_stable_layer_norm=norm == "layer",
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        vocab_size=12,
    )
    torch.manual_seed(0)
    auto: Any = AutoModelForCTC  # it has no types
    auto.from_config(config).save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return folder
