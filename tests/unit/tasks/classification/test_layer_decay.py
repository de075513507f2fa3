"""Rates of layers, parameter by parameter, in every family of encoders: the lowest for what is under the layers."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from all_parameters import build_optimizers
from small_diarizers import small_diarizer
from vaak.config.optimization import OptimizerConfig
from vaak.tasks.classification.config import ClassifierConfig
from vaak.tasks.classification.model import TransformerClassifier
from vaak.tasks.classification.pretrained import Pretrained

transformers = pytest.importorskip("transformers")

NUM_LAYERS = 3
SIZES: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 16,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
}
DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 8}
OF_XLM = {"emb_dim": 16, "n_layers": NUM_LAYERS, "n_heads": 2}
KINDS: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in ("bert", "roberta", "xlm-roberta", "camembert", "mpnet", "ernie", "big_bird", "fnet")},
    **{kind: {} for kind in ("ibert", "nystromformer", "megatron-bert", "bert-generation", "roberta-prelayernorm")},
    **{kind: {"embedding_size": 8} for kind in ("electra", "albert", "roformer", "convbert")},
    "data2vec-text": {},
    "rembert": {"input_embedding_size": 8},
    "mobilebert": {},
    "esm": {"emb_layer_norm_before": True},
    "distilbert": {"dim": 16, "n_layers": NUM_LAYERS, "n_heads": 2, "hidden_dim": 32},
    "deberta": DISENTANGLED,
    "deberta-v2": {**DISENTANGLED, "norm_rel_ebd": "layer_norm", "conv_kernel_size": 3, "position_buckets": 4},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
    "eurobert": {},
    "xlm": OF_XLM,
    "flaubert": OF_XLM,
}
BELOW = re.compile(
    r"embeddings\.|embeddings_project\.|position_embeddings\.|embed_tokens\.|layer_norm_emb\.|"
    r"encoder\.(embedding_hidden_mapping_in|rel_embeddings|relative_attention_bias|LayerNorm)\."
)
ON_TOP = re.compile(r"pooler|final_norm\.|norm\.|LayerNorm\.|encoder\.(ln|emb_layer_norm_after)\.|contact_head\.")
LAYER = re.compile(
    r"(?:encoder\.layer|encoder\.albert_layer_groups|transformer\.layer|layers|attentions|layer_norm[12]|ffns)\.(\d+)\."
)


def compute_rates(model: nn.Module) -> dict[str, float]:
    optimizers = build_optimizers(model, OptimizerConfig(lr=1.0, layer_decay=0.5))
    return {name: group["base_lr"] for one in optimizers for group in one.param_groups for name in group["names"]}


@pytest.mark.parametrize("kind", KINDS)
def test_everything_under_the_layers_has_the_lowest_rate(kind: str):
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **KINDS[kind]})
    base = Pretrained(transformers.AutoModel.from_config(config))
    rates = compute_rates(TransformerClassifier(ClassifierConfig(), base, 2))
    assert (rates.pop("head.weight"), rates.pop("head.bias")) == (1.0, 1.0)
    own = {name.removeprefix("transformer.base."): rate for name, rate in rates.items()}
    numbers = {int(found[1]) for name in own if (found := LAYER.match(name))}
    num_layers = 1 + max(numbers)  # of ALBERT, one for all
    seen = set()
    for name, rate in own.items():
        if layer := LAYER.match(name):
            expected = 0.5 ** (num_layers - int(layer[1]))
        elif name.startswith("encoder.conv."):  # DeBERTa's, next to the first layer
            expected = 0.5**num_layers
        elif BELOW.match(name):
            expected = 0.5 ** (num_layers + 1)
        else:
            assert ON_TOP.match(name), name
            expected = 1.0
        seen.add(expected)
        assert rate == expected, name
    assert 0.5 ** (num_layers + 1) in seen


class Listener(nn.Module):
    """Like models of speech: convolutions, layers, a norm, and a separate vector, which has no place in the order."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(2))
        self.convolution = nn.Conv1d(4, 4, 3)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.norm = nn.LayerNorm(4)
        self.gate = nn.Sequential(nn.Linear(4, 4))


def test_modules_stand_where_their_parent_has_them_or_where_they_say():
    model: Any = nn.ModuleDict({"front": nn.Sequential(nn.Linear(4, 4)), "listener": Listener()})
    model["front"].layer_number = -1
    rates = compute_rates(model)
    assert (rates["front.0.weight"], rates["listener.convolution.bias"]) == (0.125, 0.125)
    assert (rates["listener.layers.0.weight"], rates["listener.layers.1.weight"]) == (0.25, 0.5)
    assert (rates["listener.norm.weight"], rates["listener.table"]) == (1.0, 1.0)


def test_the_input_layers_of_a_whisper_and_of_a_diarizer_are_below():
    sizes = {f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")}
    config = transformers.WhisperConfig(vocab_size=20, d_model=8, pad_token_id=0, **sizes)
    rates = compute_rates(transformers.WhisperForConditionalGeneration(config))
    assert {rate for name, rate in rates.items() if ".conv" in name or ".embed" in name} == {0.125}
    assert {rate for name, rate in rates.items() if ".layers.0." in name} == {0.25}
    assert {rate for name, rate in rates.items() if "coder.layer_norm." in name} == {1.0}
    rates = compute_rates(small_diarizer())
    lowest = {rate for name, rate in rates.items() if name.startswith("front_end.")}
    assert lowest == {min(rates.values())} != set(rates.values())
