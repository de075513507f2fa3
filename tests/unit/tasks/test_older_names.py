"""Exports are read by transformers 4, too: it would take a family's default positions, and refuse the tokenizer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import tiny_bases
from vaak.core.storage.files import read_json
from vaak.tasks.older_names import write_older_names

WITHIN = {"sliding_attention": {"rope_type": "default", "rope_theta": 2e4}}
EXPECTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    # mmBERT, whose layers within a window aren't ModernBERT's
    "modernbert": (
        {"rope_parameters": {**WITHIN, "full_attention": {"rope_type": "default", "rope_theta": 3e4}}},
        {"global_rope_theta": 3e4, "local_rope_theta": 2e4},
    ),
    "gemma3_text": (
        {"rope_parameters": {**WITHIN, "full_attention": {"rope_type": "linear", "rope_theta": 3e4, "factor": 8.0}}},
        {"rope_theta": 3e4, "rope_local_base_freq": 2e4, "rope_scaling": {"rope_type": "linear", "factor": 8.0}},
    ),
    "gpt_neox": ({"rotary_pct": 0.75, "rotary_emb_base": 777}, {"rotary_pct": 0.75, "rotary_emb_base": 777}),
    "phi": ({"partial_rotary_factor": 0.3}, {"rope_theta": 1e4, "partial_rotary_factor": 0.3}),
    "moonshine": ({"partial_rotary_factor": 0.8}, {"rope_theta": 1e4, "partial_rotary_factor": 0.8}),
    "eurobert": ({"rope_parameters": {"rope_type": "default", "rope_theta": 25e4}}, {"rope_theta": 25e4}),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_a_configuration_has_both_and_they_agree(kind: str, tmp_path: Path):
    options, expected = EXPECTED[kind]
    config = transformers.AutoConfig.for_model(kind, **options)
    config.save_pretrained(tmp_path)
    assert not expected.keys() & read_json(tmp_path / "config.json").keys()
    write_older_names(tmp_path)
    written = read_json(tmp_path / "config.json")
    assert {name: written[name] for name in expected} == expected
    again: Any = transformers.AutoConfig.from_pretrained(tmp_path)
    assert again.rope_parameters == config.rope_parameters


def test_a_configuration_inside_of_another_has_both(tmp_path: Path):
    config: Any = transformers.AutoConfig.for_model("voxtral")
    config.save_pretrained(tmp_path)
    write_older_names(tmp_path)
    assert read_json(tmp_path / "config.json")["text_config"]["rope_theta"] == 1e8
    again: Any = transformers.AutoConfig.from_pretrained(tmp_path)
    assert again.text_config.rope_parameters == config.text_config.rope_parameters


SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
NETWORKS = {
    "modernbert": ("AutoModelForMaskedLM", {"local_attention": 8, "pad_token_id": 0, **EXPECTED["modernbert"][0]}),
    "gpt_neox": ("AutoModelForCausalLM", EXPECTED["gpt_neox"][0]),
    "phi": ("AutoModelForCausalLM", EXPECTED["phi"][0]),
    "gemma3_text": (
        "AutoModelForCausalLM",
        {"head_dim": 16, "num_key_value_heads": 1, "sliding_window": 8, **EXPECTED["gemma3_text"][0]},
    ),
}
IN_TRANSFORMERS_4 = """\
import sys, torch, transformers
from safetensors.torch import load_file, save_file
assert transformers.__version__.startswith("4."), transformers.__version__
folder, name = sys.argv[1:]
model = getattr(transformers, name).from_pretrained(folder, dtype=torch.float32).eval()
with torch.no_grad():
    save_file({"logits": model(load_file(folder + "/ids")["ids"]).logits.contiguous()}, folder + "/logits")
print(transformers.AutoTokenizer.from_pretrained(folder)("ba do<extra> mi").input_ids)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    "VAAK_TRANSFORMERS_4" not in os.environ,
    reason="VAAK_TRANSFORMERS_4 names no folder with transformers 4 (pip install --target)",
)
@pytest.mark.parametrize("kind", NETWORKS)
def test_transformers_4_computes_the_same_logits_and_tokens(kind: str, tmp_path: Path):
    name, options = NETWORKS[kind]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **SIZES, **options)
    network: Any = getattr(transformers, name).from_config(config).eval()
    with torch.no_grad():
        for one in network.parameters():
            one += 0.2 * torch.randn_like(one)
        ids = torch.randint(1, 64, (1, 40))
        expected = network(ids).logits
    network.save_pretrained(tmp_path)
    wrap: Any = transformers.PreTrainedTokenizerFast
    pieces = tiny_bases.make_pieces("<unk>", "<s>", "<extra>")
    tokenizer = wrap(tokenizer_object=pieces, unk_token="<unk>", extra_special_tokens=["<extra>"])
    tokenizer.save_pretrained(tmp_path)
    save_file({"ids": ids}, tmp_path / "ids")
    write_older_names(tmp_path)
    environment = {**os.environ, "PYTHONPATH": os.environ["VAAK_TRANSFORMERS_4"]}
    command = [sys.executable, "-c", IN_TRANSFORMERS_4, str(tmp_path), name]
    read = subprocess.run(command, check=True, env=environment, capture_output=True, text=True).stdout
    assert read.strip() == str(tokenizer("ba do<extra> mi").input_ids)
    assert (load_file(tmp_path / "logits")["logits"] - expected).abs().max() < 1e-4 * expected.std()
