"""``model.lora.targets``: a name that is that of no layer is an error in each task, and config check knows it before.

The default is the layers of queries and values by whichever names a family has for them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import tiny_bases
import tiny_decoder
import tiny_encoder_decoder
import tiny_pyannote
from contract_cases import CASES
from task_case import TaskCase
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.nn.config import LoraConfig
from vaak.nn.lora import add_lora
from vaak.tasks.adapter_checks import target_findings
from vaak.tasks.lm.spec import OWN_LAYERS as DECODER_LAYERS
from vaak.tasks.seq2seq.spec import OWN_LAYERS


def _two_tasks(case: Any) -> TaskCase:
    tasks = {name: {"task": case.task, **case.options} for name in ("a", "b")}
    return TaskCase("multitask", {"tasks": tasks}, write=case.write)


PATHS = {
    "lm": CASES["lm decoder, documents"],
    "seq2seq": CASES["seq2seq"],
    "classification": CASES["classification, transformer, two columns, augmented"],
    "diarization": CASES["diarization"],
    "tts": CASES["tts"],
    "vocoder": CASES["vocoder"],
    "asr, ctc": CASES["asr, ctc"],
    "asr, ctc, pretrained": CASES["asr, ctc, pretrained"],
    "asr, whisper": CASES["asr, experts"],
    "multitask": _two_tasks(CASES["asr, ctc, pretrained"]),
}


def _with_targets(options: dict[str, Any], targets: list[str]) -> dict[str, Any]:
    """The options of a task, or of each of several, with these targets and no others."""
    if "tasks" in options:
        own = {name: _with_targets(one, targets) for name, one in options["tasks"].items()}
        return {**options, "tasks": own}
    model = {name: one for name, one in options.get("model", {}).items() if name != "experts"}
    return {**options, "model": {**model, "lora": {"rank": 2, "targets": targets}}}


@pytest.mark.parametrize("path", PATHS)
def test_a_target_that_no_layer_has_is_an_error_with_the_nearest_ones(path: str, tiny_run: Path, tmp_path: Path):
    prepared = _prepare(path, tiny_run, tmp_path)
    with pytest.raises(UserError, match=r"model\.lora\.targets: no layer is called .*; there are "):
        prepared.make_task().model()


def _prepare(path: str, tiny_run: Path, folder: Path) -> Any:
    """The case of a path with a target that no layer has."""
    case = PATHS[path]
    assert isinstance(case, TaskCase)
    options = _with_targets(case.options, ["nowhere"])
    # Adapters belong to a model that was trained before: one that is pretrained, or that of a run.
    begun = {} if path in ("asr, ctc, pretrained", "asr, whisper", "multitask") else {"init_from": str(tiny_run)}
    return replace(case, options=options, training={**case.training, "checkpoint": begun}).prepared(folder)


@pytest.mark.parametrize("path", [pytest.param(one, marks=() if one == "lm" else pytest.mark.slow) for one in PATHS])
def test_config_check_knows_of_a_target_that_no_layer_of_a_base_or_a_run_has(path: str, tiny_run: Path, tmp_path: Path):
    _prepare(path, tiny_run, tmp_path)
    warnings = load([tmp_path / "case.yml"]).warnings
    assert [one for one in warnings if "model.lora.targets" in one and "has no layer called nowhere; there are" in one]


TEXT_ENCODERS = ("bert", "roberta", "xlm-roberta", "electra", "albert", "camembert", "deberta-v2", "distilbert",
                 "mpnet", "modernbert", "roformer", "eurobert")  # fmt: skip
SMALL = {
    "vocab_size": 100,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
DISTILBERT = {"vocab_size": 100, "dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 48}
NETWORKS = [*TEXT_ENCODERS, *tiny_decoder.OTHERS]


def _make_network(name: str) -> Any:
    """A small network of transformers without numbers, as classification or lm has it."""
    if name in TEXT_ENCODERS:
        sizes = DISTILBERT if name == "distilbert" else SMALL
        auto, config = transformers.AutoModel, transformers.AutoConfig.for_model(name, pad_token_id=0, **sizes)
    else:
        kind, sizes = tiny_decoder.OTHERS[name]
        auto, config = (
            transformers.AutoModelForCausalLM,
            getattr(transformers, f"{kind}Config")(vocab_size=100, **sizes),
        )
    with torch.device("meta"):
        return auto.from_config(config)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_default_adapters_are_of_every_layers_queries_whatever_a_family_calls_them(name: str):
    network = _make_network(name)
    inner = [one for one, module in network.named_modules() if isinstance(module, torch.nn.ModuleList)]
    layers = max(len(network.get_submodule(one)) for one in inner)
    add_lora(network, LoraConfig(rank=2))
    adapted = {one.rpartition(".lora_A")[0] for one, _ in network.named_parameters() if ".lora_A" in one}
    assert len(adapted) in (layers, 2 * layers), adapted


@pytest.mark.parametrize("kind", ["modernbert", "xlm-roberta"])
def test_config_check_names_the_layers_that_a_base_has(tmp_path: Path, kind: str):
    base = tiny_bases.ENCODERS[kind](tmp_path / "base")
    assert [*target_findings("model.lora", str(base), LoraConfig())] == []
    own = "Wqkv" if kind == "modernbert" else "query"
    (found,) = target_findings("model.lora", str(base), LoraConfig(targets=(own, "q_proj", "valeu")))
    assert found.key == "model.lora.targets"
    assert "has no layer called q_proj, valeu; there are " in found.message
    assert own in found.message


def test_config_check_takes_the_names_of_vaaks_layers_and_of_the_family_for_a_translator(tmp_path: Path):
    tiny_encoder_decoder.write_folder(tmp_path / "base", "t5")
    known = LoraConfig(targets=("decoder.blocks.0.attention.query", "q", "wi", "head"))
    assert [*target_findings("model.lora", str(tmp_path / "base"), known, OWN_LAYERS)] == []
    (found,) = target_findings("model.lora", str(tmp_path / "base"), LoraConfig(targets=("q_prj",)), OWN_LAYERS)
    assert "has no layer called q_prj; there are k, o, q, v, wi, wo" in found.message


def test_config_check_knows_the_layers_of_a_network_of_pyannote(tmp_path: Path):
    tiny_pyannote.save_pyannote(tmp_path / "pytorch_model.bin")
    place = str(tmp_path / "pytorch_model.bin")
    assert [*target_findings("model.lora", place, LoraConfig(targets=("linear.0", "classifier")))] == []
    (found,) = target_findings("model.lora", place, LoraConfig())
    assert "has no layer called query, value; there are 0, 1, classifier" in found.message


def test_config_check_knows_the_layers_of_a_gguf_by_its_header(tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    file = tmp_path / "m.gguf"

    def write(architecture: str, *layers: str) -> None:
        writer = gguf.GGUFWriter(file, architecture)
        writer.add_array("tokenizer.ggml.tokens", ["a", "b"])
        for layer in layers:
            writer.add_tensor(f"blk.0.{layer}.weight", np.zeros((2, 2), np.float32))
        writer.add_tensor("token_embd.weight", np.zeros((2, 2), np.float32))
        writer.add_tensor("blk.0.attn_norm.weight", np.zeros(2, np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()

    def find(*targets: str) -> list[str]:
        lora = LoraConfig(targets=targets) if targets else LoraConfig()
        return [one.message for one in target_findings("model.lora", str(file), lora, DECODER_LAYERS)]

    write("gemma3", "attn_q", "attn_v", "ffn_down")
    assert find() == find("v_proj", "mlp.down_proj", "lm_head") == []
    assert find("q_prj") == [f"{file} has no layer called q_prj; there are down_proj, q_proj, v_proj"]
    write("gpt2", "attn_qkv", "attn_output")
    assert find("c_attn") == []
    assert find("q_prj") == [f"{file} has no layer called q_prj; there are c_attn, c_proj"]
    # A layer whose name in transformers isn't known, and no header at all: no message.
    write("mamba", "ssm_in")
    assert find("q_prj") == []
    file.write_bytes(file.read_bytes()[:40])
    assert find("q_prj") == []
