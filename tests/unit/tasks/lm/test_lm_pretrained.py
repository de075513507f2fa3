"""Decoders of transformers become ours with the same logits, and go out again as they came in."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from quick_cases import mostly_slow
from tiny_decoder import MODELS, OTHERS, VOCAB_SIZE, assert_joined_rows_are_right, write_folder
from vaak.core.errors import UserError
from vaak.engine.distributed.sharding import made_in_parts
from vaak.nn.config import LoraConfig
from vaak.nn.cross_entropy import HeadInputs
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.nn.lora import add_lora, merged
from vaak.nn.new_tokens import iterate_new_rows, train_new_rows
from vaak.nn.nf4 import quantise
from vaak.tasks.ct2 import write_ct2
from vaak.tasks.kept_base import KeptBase, read_config
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.export import ct2_logits, export_hf, export_peft
from vaak.tasks.lm.export_tokenizer import RunTokenizer
from vaak.tasks.lm.families import exported_config, find_family
from vaak.tasks.lm.model import TransformersDecoder, add_adapters
from vaak.tasks.lm.predict import WITHOUT_END, RowDecoder, generate, generate_batch
from vaak.tasks.lm.pretrained import init_model, load_model, options_in, read_max_length, save_base
from vaak.tasks.older_names import older_rope
from vaak.tasks.quantised import FOUR_BITS

transformers = pytest.importorskip("transformers")


def ours(source: Path, prepared: Path, **options: Any) -> Any:
    tokenizer = save_base(str(source), prepared, 48)
    own = LanguageModelConfig(pretrained=str(source), **options)
    return load_model(str(source), prepared, own, tokenizer.vocab_size).eval(), tokenizer


@pytest.mark.parametrize("kind", MODELS)
def test_logits_are_those_of_transformers_and_a_round_trip_is_the_identity(kind: str, tmp_path: Path):
    peer = write_folder(tmp_path / "theirs", kind)
    model, tokenizer = ours(tmp_path / "theirs", tmp_path / "prepared")
    assert (model.vocab_size, tokenizer.vocab_size, tokenizer.pad_id) == (VOCAB_SIZE, 257, tokenizer.eos_id)
    ids = torch.randint(0, VOCAB_SIZE, (2, 60), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(model(ids), peer(ids).logits, rtol=0, atol=1e-5)

    names = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    file = tmp_path / "prepared" / "tokenizer" / "tokenizer.json"
    prepared = tmp_path / "prepared"
    export_hf(model, RunTokenizer(file, names), read_max_length(prepared), tmp_path / "again", KeptBase.of(prepared))
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    old, new = (transformers.AutoConfig.from_pretrained(tmp_path / name).to_dict() for name in ("theirs", "again"))
    left_out = {"_name_or_path", "transformers_version", "dtype", "pad_token_id", "bos_token_id", "eos_token_id"}
    drops = {"embd_pdrop", "attn_pdrop", "resid_pdrop", "summary_first_dropout", "n_inner", "rope_parameters"}
    assert {k: v for k, v in old.items() if k not in left_out | drops} == {
        k: v for k, v in new.items() if k not in left_out | drops
    }
    for name, value in (old.get("rope_parameters") or {}).items():
        assert new["rope_parameters"][name] == value
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "again")
    assert tokenizer.chat_template == "{{ messages[0].content }}"


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_an_output_layer_in_the_files_is_read_though_the_configuration_ties_it(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """Logits were 3.6 off at a deviation of 0.6, without a word: transformers 5 has what is in the files."""
    folder = tmp_path / "theirs"
    write_folder(folder, kind, tie_word_embeddings=False)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"tie_word_embeddings": True}))
    peer: Any = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model, _ = ours(folder, tmp_path / "prepared")
    assert "its files have another one, which is used" in caplog.text
    ids = torch.arange(1, 41)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids), peer(ids).logits, rtol=0, atol=1e-5)
        resumed = init_model(tmp_path / "prepared", LanguageModelConfig(pretrained=str(folder)), VOCAB_SIZE)
        resumed.load_state_dict(model.state_dict())
        torch.testing.assert_close(resumed.eval()(ids), peer(ids).logits, rtol=0, atol=1e-5)
    assert not read_config(tmp_path / "prepared")["tie_word_embeddings"]
    # The same weights twice are one.
    tied = load_file(folder / "model.safetensors")
    (embedding,) = (tensor for name, tensor in tied.items() if name.endswith("embed_tokens.weight"))
    save_file({**tied, "lm_head.weight": embedding.clone()}, folder / "model.safetensors", {"format": "pt"})
    caplog.clear()
    ours(folder, tmp_path / "again")
    assert caplog.text == ""
    assert read_config(tmp_path / "again")["tie_word_embeddings"]


PACKED = set(MODELS | OTHERS) - {"opt", "bloom", "mamba"}
PRODUCTS = set(MODELS | OTHERS) - {"gemma2", "granite", "cohere"}
CACHED = set(MODELS | OTHERS) - {"mamba"}


def table_row(kind: str) -> str:
    """The row of a family in the table of docs/pretrained.md."""
    whose = "Vaak's" if kind in MODELS else "transformers'"
    yes = ["yes" if kind in group else "no" for group in (PACKED, CACHED, PRODUCTS)]
    return f"| {kind} | {whose} | {' | '.join(yes)} |"


@pytest.mark.parametrize("kind", mostly_slow(OTHERS, "gemma3_text", "mixtral", "gpt_neox", "phi3", "olmo2"))
def test_any_other_decoder_is_transformers_own_module_and_goes_out_as_it_came_in(kind: str, tmp_path: Path):
    peer = write_folder(tmp_path / "theirs", kind)
    model, tokenizer = ours(tmp_path / "theirs", tmp_path / "prepared")
    assert isinstance(model, TransformersDecoder)
    assert model.vocab_size == VOCAB_SIZE
    drawn = torch.Generator().manual_seed(0)
    ids = torch.randint(1, VOCAB_SIZE, (2, 9), generator=drawn)
    select = torch.rand(2, 9, generator=drawn) < 0.5
    with torch.no_grad():
        expected = peer(ids).logits
        torch.testing.assert_close(model(ids), expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(model(ids, select=select), expected[select], rtol=0, atol=1e-5)
        inputs = model(ids, project=False)
        assert isinstance(inputs, HeadInputs) == (kind in PRODUCTS)
        if isinstance(inputs, HeadInputs):
            torch.testing.assert_close(inputs.logits(), expected, rtol=0, atol=1e-5)
        documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, -1, -1], [0, 0, 1, 1, 1, 1, 1, 2, 2]])
        if kind in PACKED:
            model.require_packing("training.batching")
            packed = model(ids, documents=documents)
            for row, begin, end in ((0, 0, 4), (0, 4, 7), (1, 0, 2), (1, 2, 7), (1, 7, 9)):
                alone = peer(ids[row : row + 1, begin:end]).logits[0]
                torch.testing.assert_close(packed[row, begin:end], alone, rtol=0, atol=1e-5)
        else:
            family = peer.config.model_type
            with pytest.raises(
                UserError, match=rf"^training\.batching: {family}, .* can't keep the documents .* apart"
            ):
                model.require_packing("training.batching")
    assert model._continues == (kind in CACHED)
    reader, scored = RowDecoder(model, [[5, 9]], WITHOUT_END), list[int]()
    counting = model.network.get_output_embeddings().register_forward_hook(
        lambda _module, _inputs, found: scored.append(found.shape[1])
    )
    reader.next_logits()
    counting.remove()
    assert kind not in CACHED or scored == [1]
    # As for an export with adapters merged.
    copy.deepcopy(model)
    # The caches of the others keep the last tokens only.
    assert reader.can_join == (kind not in ("mistral, sliding window", "gemma2", "gemma3_text"))
    if reader.can_join:
        assert_joined_rows_are_right(model)
    prompts, settings = [[5, 9, 200, 7, 31], [4, 8]], SamplingSettings(max_new_tokens=7, temperature=0.0)
    found = generate_batch(model, prompts, settings)
    for prompt, written in zip(prompts, found, strict=True):
        best = peer.generate(torch.tensor([prompt]), max_new_tokens=7, do_sample=False, eos_token_id=None)
        assert written == best[0, len(prompt) :].tolist() == list(generate(model, prompt, settings))

    names = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    prepared = tmp_path / "prepared"
    file = prepared / "tokenizer" / "tokenizer.json"
    export_hf(model, RunTokenizer(file, names), read_max_length(prepared), tmp_path / "again", KeptBase.of(prepared))
    assert_same_folders(tmp_path / "theirs", tmp_path / "again")
    assert table_row(kind) in (Path(__file__).parents[4] / "docs" / "pretrained.md").read_text()


READ_IN_PARTS = [kind for kind in OTHERS if kind != "mamba"]


@pytest.mark.parametrize("kind", mostly_slow(READ_IN_PARTS, "gpt_neox", "mixtral", "cohere"))
def test_a_process_reads_its_part_of_it_alone_and_finds_what_it_can_do_without_its_weights(kind: str, tmp_path: Path):
    write_folder(tmp_path / "theirs", kind)
    whole, _ = ours(tmp_path / "theirs", tmp_path / "prepared")

    def read() -> TransformersDecoder:
        own = LanguageModelConfig(pretrained=str(tmp_path / "theirs"))
        model = load_model(str(tmp_path / "theirs"), tmp_path / "prepared", own, VOCAB_SIZE)
        assert isinstance(model, TransformersDecoder)
        return model

    found = []
    for rank in range(2):
        torch.manual_seed(3)
        model, parts, why = made_in_parts(read, rank, 2)
        assert parts is not None, why
        assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(3)))
        found.append(parts)
        assert isinstance(model, TransformersDecoder)
        assert model._logits_are_product == (kind in PRODUCTS)
        with contextlib.nullcontext() if kind in PACKED else pytest.raises(UserError, match="documents"):
            model.require_packing("training.batching")
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        assert torch.equal(torch.cat([parts[name] for parts in found]), parameter.detach()), name


def assert_same_folders(before: Path, after: Path) -> None:
    """The same weights under the same names, the same options, and tokenizers with the same tokens."""
    one, other = (load_file(folder / "model.safetensors") for folder in (before, after))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
    options = [json.loads((folder / "config.json").read_text()) for folder in (before, after)]
    # transformers 4 doesn't know rope_parameters, so that it is given the same in its own names, too.
    rope = options[0].get("rope_parameters") or {}
    assert options[1] == options[0] | older_rope(rope, options[0]["model_type"])
    tokenizers = [transformers.AutoTokenizer.from_pretrained(folder) for folder in (before, after)]
    assert tokenizers[0].special_tokens_map == tokenizers[1].special_tokens_map
    assert tokenizers[0]("राम घर जाता है।").data == tokenizers[1]("राम घर जाता है।").data


def test_a_row_of_the_table_for_each_family():
    text = (Path(__file__).parents[4] / "docs" / "pretrained.md").read_text()
    expected = [table_row(kind) for kind in [*MODELS, *OTHERS]]
    rows = [line for line in text.splitlines() if line.endswith(("| yes |", "| no |"))]
    # Bases of other tasks are in a table with more columns (test_bases_table.py).
    assert [row for row in rows if row.count("|") == expected[0].count("|")] == expected


@pytest.mark.parametrize(
    ("kind", "others", "said"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act gelu"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 1}, "use_sliding_window True"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx True"),
    ],
)
def test_what_ours_lacks_is_logged_and_left_to_transformers(
    kind: str, others: dict[str, Any], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", logger="vaak")
    write_folder(tmp_path / "theirs", kind, **others)
    model, _ = ours(tmp_path / "theirs", tmp_path / "prepared")
    assert isinstance(model, TransformersDecoder)
    assert f"vaak's own decoder has no {said}, so transformers' own module computes it" in caplog.text


def test_other_folders_are_refused_in_a_line(tmp_path: Path):
    write_folder(tmp_path / "gpt2", "gpt2")
    with pytest.raises(UserError, match=r"data.max_length is 65, but .* reads at most 64"):
        save_base(str(tmp_path / "gpt2"), tmp_path / "prepared", 65)
    tokenizer = save_base(str(tmp_path / "gpt2"), tmp_path / "prepared", 64)
    about = json.loads((tmp_path / "gpt2" / "config.json").read_text())
    dynamic = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    for changed, said in (
        ({"model_type": "bert"}, "is a bert, which isn't a causal language model; give a decoder, such as"),
        ({"model_type": "t5"}, "is a t5, which is an encoder and a decoder; those of task seq2seq are"),
        ({"model_type": "gemma3"}, "is a gemma3, which reads more than text; give a model of text alone"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "is a gpt2, which has quantized weights; give"),
        ({"model_type": "olmo", "rope_parameters": dynamic}, "is a olmo, which has rope_type dynamic, whose"),
    ):
        (tmp_path / "gpt2" / "config.json").write_text(json.dumps({**about, **changed}))
        with pytest.raises(UserError, match=rf"^model\.pretrained: .*gpt2 {said}"):
            save_base(str(tmp_path / "gpt2"), tmp_path / "other", 48)
    write_folder(tmp_path / "llama", "llama")
    own = LanguageModelConfig(pretrained="llama")
    with pytest.raises(UserError, match=r"llama has a weight .*, which vaak's model doesn't"):
        load_model(str(tmp_path / "llama"), tmp_path / "prepared", own, tokenizer.vocab_size)
    with pytest.raises(UserError, match=r"model.pretrained: .*nowhere"):
        save_base(str(tmp_path / "nowhere"), tmp_path / "other", 48)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
def test_low_rank_changes_are_merged_or_written_for_peft(tmp_path: Path):
    peft = pytest.importorskip("peft")
    base = write_folder(tmp_path / "theirs", "qwen3")
    lora = LoraConfig(rank=3, alpha=4.5, targets=("query", "up"))
    model, tokenizer = ours(tmp_path / "theirs", tmp_path / "prepared", lora=lora)
    ids = torch.randint(0, VOCAB_SIZE, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        plain = model(ids)
        model = add_lora(model, lora)
        assert torch.equal(model(ids), plain)
        for name, parameter in model.named_parameters():
            assert parameter.requires_grad == ("lora_" in name)
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
        changed = model.eval()(ids)
        assert (changed - plain).abs().max() > 0.1
        torch.testing.assert_close(merged(model)(ids), changed, rtol=0, atol=1e-4)
    export_peft(model, str(tmp_path / "theirs"), tmp_path / "peft")
    names = {"bos_token": tokenizer.special_tokens["bos"]}
    export_hf(model, RunTokenizer(tmp_path / "prepared" / "tokenizer" / "tokenizer.json", names), 64, tmp_path / "hf")
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "peft")).eval()
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, changed, rtol=0, atol=1e-4)
        torch.testing.assert_close(whole(ids).logits, changed, rtol=0, atol=1e-4)


@pytest.mark.parametrize(("targets", "is_said"), [(("query",), False), (("query", "gate"), True)])
def test_adapters_of_single_experts_are_said_at_export(
    targets: tuple[str, ...], is_said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
):
    monkeypatch.setattr("vaak.tasks.lm.export.log.propagate", True)
    write_folder(tmp_path / "theirs", "qwen3_moe")
    lora = LoraConfig(rank=2, targets=targets)
    model = add_lora(ours(tmp_path / "theirs", tmp_path / "prepared", lora=lora)[0], lora)
    export_peft(model, str(tmp_path / "theirs"), tmp_path / "peft")
    said = [line for line in caplog.messages if "single experts" in line]
    assert len(said) == is_said
    if not is_said:
        return
    [line] = said
    names = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())["target_modules"]
    expected = sum(".experts." in name for name in names)
    assert f"{expected} adapters are of single experts (gate_proj)" in line
    assert 0 < expected < len(names)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.filterwarnings("default:Model has `tie_word_embeddings=True`:UserWarning")  # of peft, to its own users
@pytest.mark.parametrize(
    ("kind", "target"), [("qwen2", "head"), ("qwen2", "lm_head"), ("gemma3_text", "lm_head"), ("gemma", "lm_head")]
)
def test_a_tied_output_layer_that_is_adapted_goes_out_as_untied(kind: str, target: str, tmp_path: Path):
    peft = pytest.importorskip("peft")
    base = write_folder(tmp_path / "theirs", kind, tie_word_embeddings=True)
    lora = LoraConfig(rank=3, alpha=4.5, targets=(target,))
    source, prepared = tmp_path / "theirs", tmp_path / "prepared"
    model, tokenizer = ours(source, prepared, lora=lora)
    add_adapters(model, lora).eval()
    ids = torch.randint(1, 257, (2, 9), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.3)
        changed = model(ids)
        assert (changed - base(ids).logits).abs().max() > 0.1
    names = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    file, kept = prepared / "tokenizer" / "tokenizer.json", KeptBase.of(prepared)
    export_hf(model, RunTokenizer(file, names), read_max_length(prepared), tmp_path / "hf", kept)
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["tie_word_embeddings"] is False
    export_peft(model, str(source), tmp_path / "peft")
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "peft")).eval()
    with torch.no_grad():
        torch.testing.assert_close(whole(ids).logits, changed, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted(ids).logits, changed, rtol=0, atol=1e-4)
    if kind != "gemma3_text":  # what CTranslate2 doesn't convert
        write_ct2(
            lambda to: shutil.copytree(tmp_path / "hf", to), tmp_path / "ct2", None, partial(ct2_logits, model, 48)
        )


@pytest.mark.parametrize("kind", mostly_slow(("qwen2", "gpt2", "glm4_moe", "llama, yarn"), "qwen2"))
def test_a_base_in_four_bits_is_read_tensor_by_tensor_with_the_same_bits(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It is never whole in memory: quantised while it is read from several files, and then read from the cache."""
    whole = write_folder(tmp_path / "theirs", kind)
    (tmp_path / "theirs" / "model.safetensors").unlink()
    whole.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len([*(tmp_path / "theirs").glob("model-*.safetensors")]) > 2
    lora = LoraConfig(rank=2, targets=("query",), base_dtype="nf4")
    source, prepared = tmp_path / "theirs", tmp_path / "prepared"
    tokenizer = save_base(str(source), prepared, 48)
    own = LanguageModelConfig(pretrained=str(source), lora=lora)
    quantised = list[tuple[int, ...]]()

    def watched(weight: torch.Tensor) -> Any:
        quantised.append(tuple(weight.shape))
        return quantise(weight)

    def read() -> Any:
        quantised.clear()
        torch.manual_seed(0)
        return add_adapters(load_model(str(source), prepared, own, tokenizer.vocab_size), lora).eval()

    monkeypatch.setattr("vaak.nn.lora.quantise", watched)
    with monkeypatch.context() as before:
        before.setattr("vaak.tasks.lm.pretrained.can_stream", lambda: False)
        expected = read()
    streamed, count = read(), len(quantised)
    again = read()
    assert (count > 5, len(quantised)) == (True, 0), "the second time nothing is quantised"
    ids, documents = torch.arange(8)[None], torch.zeros(1, 8, dtype=torch.int)
    for model in (streamed, again):
        assert {one.weight.dtype for one in model.token_modules()} == {torch.bfloat16}
        with torch.no_grad():
            logits, inputs = model(ids, documents=documents), model(ids, documents=documents, project=False)
            assert (logits.dtype, inputs.hidden.dtype) == (torch.float32, torch.float32), "they are rounded, no more"
            torch.testing.assert_close(inputs.logits(), logits)
            torch.testing.assert_close(merged(model)(ids, documents=documents), logits, rtol=1e-4, atol=1e-5)
        for name, tensor in expected.state_dict().items():
            assert "lora_A" in name or torch.equal(tensor, model.state_dict()[name]), name
    with torch.no_grad():
        before = again(ids, documents=documents)
        train_new_rows(again.token_modules(), range(5, 7))
        torch.testing.assert_close(again(ids, documents=documents), before)
        torch.testing.assert_close(merged(again)(ids, documents=documents), before, rtol=1e-4, atol=1e-5)
    assert {one.rows.dtype for _, one in iterate_new_rows(again)} == {torch.float32}, "they are trained"
    assert len([*(prepared / FOUR_BITS).glob("*.safetensors")]) == 1
    changed = load_file(source / (first := sorted(path.name for path in source.glob("model-*.safetensors"))[0]))
    save_file({name: one + 0.1 for name, one in changed.items()}, source / first, metadata={"format": "pt"})
    read()
    assert quantised, "other weights have another fingerprint"
    assert len([*(prepared / FOUR_BITS).glob("*.safetensors")]) == 2


def test_a_base_in_four_bits_that_lacks_a_tensor_is_named(tmp_path: Path):
    write_folder(tmp_path / "theirs", "qwen2")
    file = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(file)
    lacking = "model.layers.1.mlp.up_proj.weight"
    save_file({name: one for name, one in tensors.items() if name != lacking}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=f"lacks {lacking}"):
        ours(tmp_path / "theirs", tmp_path / "prepared", lora=LoraConfig(base_dtype="nf4"))
    assert not [*(tmp_path / "prepared" / FOUR_BITS).glob("*")], "nothing is kept of it"
    narrow = {**tensors, lacking: tensors[lacking][:, :16]}
    save_file({name: one.contiguous() for name, one in narrow.items()}, file, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"has shape \(48, 16\), expected \(48, 32\)"):
        ours(tmp_path / "theirs", tmp_path / "prepared", lora=LoraConfig(base_dtype="nf4"))


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_memory_that_runs_out_says_nothing_about_what_a_model_can_do(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The model used to be reported as needing all its weights in fp32, and as slower than it is."""
    write_folder(tmp_path / "theirs", "opt")
    model, _ = ours(tmp_path / "theirs", tmp_path / "prepared")
    with monkeypatch.context() as full:
        full.setattr(model.network, "forward", Mock(side_effect=error))
        with pytest.raises(type(error)):
            model.require_dtype("base_dtype is nf4")
    model.require_dtype("base_dtype is nf4")


CONVERTED = ("llama", "qwen3", "qwen2", "mistral", "gpt2", "gpt2, erf", "llama, biases", "gemma", "opt", "bloom")
NOT_CONVERTED = {
    "llama, llama3": "can't run the converted model",  # head_dim that isn't width / heads
    "llama, yarn": "can't convert this model: RoPE scaling type 'yarn'",
    "gemma2": "can't convert this model: it doesn't cap the logits of Gemma 2",
    "olmo2": "can't convert this model: No conversion is registered for .* Olmo2Config",
}


def test_each_number_has_its_token_in_ctranslate2_also_after_one_without(tmp_path: Path):
    """A number without a token used to shift all later names, so other texts were read and written."""
    pytest.importorskip("ctranslate2", reason="CTranslate2 isn't installed")
    write_folder(tmp_path / "theirs", "llama")
    file = tmp_path / "theirs" / "tokenizer.json"
    content = json.loads(file.read_text())
    free = len(content["model"]["vocab"]) + len(content["added_tokens"])
    content["model"]["vocab"]["th"], content["model"]["merges"] = free + 2, [["t", "h"]]
    file.write_text(json.dumps(content))
    write_ct2(lambda to: shutil.copytree(tmp_path / "theirs", to), tmp_path / "ct2", None)
    names = json.loads((tmp_path / "ct2" / "vocabulary.json").read_text())
    known = transformers.AutoTokenizer.from_pretrained(tmp_path / "ct2").get_vocab()
    assert len(names) == VOCAB_SIZE
    assert {name: names.index(name) for name in known} == known


@pytest.mark.parametrize(
    ("kind", "quantization"),
    [
        ("llama", None),
        ("qwen3", "int8"),
        *(pytest.param(kind, None, marks=pytest.mark.slow) for kind in CONVERTED[1:]),
        *(pytest.param(kind, "int8_float16", marks=pytest.mark.slow) for kind in CONVERTED),
    ],
)
def test_ctranslate2_gives_the_same_logits_and_text(kind: str, quantization: str | None, tmp_path: Path):
    ctranslate2 = pytest.importorskip("ctranslate2", reason="CTranslate2 isn't installed")
    write_folder(tmp_path / "theirs", kind)
    model, _ = ours(tmp_path / "theirs", tmp_path / "prepared")
    check = partial(ct2_logits, model, 48)
    write_ct2(lambda to: shutil.copytree(tmp_path / "theirs", to), tmp_path / "ct2", quantization, check)
    names = transformers.AutoTokenizer.from_pretrained(tmp_path / "ct2")
    ids = [5, 9, 200, 7, 31]
    with torch.no_grad():
        expected = model(torch.tensor([ids]))[0].numpy()
    generator = ctranslate2.Generator(str(tmp_path / "ct2"), device="cpu", compute_type="float32")
    found = np.array(generator.forward_batch([ids]))[0]
    limit = {None: 1e-5, "int8": 0.04, "int8_float16": 0.04}[quantization]
    assert np.std(found - expected) < limit * np.std(expected)
    if quantization is None:
        (written,) = generator.generate_batch(
            [names.convert_ids_to_tokens(ids)], max_length=7, include_prompt_in_result=False, end_token=[]
        )
        settings = SamplingSettings(max_new_tokens=7, temperature=0.0)
        assert written.sequences_ids[0] == list(generate(model, ids, settings))


@pytest.mark.parametrize(
    "kind", [kind if kind == "gemma2" else pytest.param(kind, marks=pytest.mark.slow) for kind in NOT_CONVERTED]
)
def test_what_ctranslate2_computes_otherwise_is_said(kind: str, tmp_path: Path):
    pytest.importorskip("ctranslate2", reason="CTranslate2 isn't installed")
    write_folder(tmp_path / "theirs", kind)
    model, _ = ours(tmp_path / "theirs", tmp_path / "prepared")
    with pytest.raises(UserError, match=rf"^--format ct2: .*{NOT_CONVERTED[kind]}"):
        write_ct2(
            lambda to: shutil.copytree(tmp_path / "theirs", to), tmp_path / "ct2", None, partial(ct2_logits, model, 48)
        )
    assert not (tmp_path / "ct2").exists()


@pytest.mark.parametrize(("kind", "scaled"), [("llama", "not scaled"), ("llama, llama3", "scaled by its llama3, ")])
def test_training_beyond_a_bases_length_is_a_line(
    kind: str, scaled: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    write_folder(tmp_path / "theirs", kind)
    longest = json.loads((tmp_path / "theirs" / "config.json").read_text())["max_position_embeddings"]
    save_base(str(tmp_path / "theirs"), tmp_path / "prepared", longest)
    assert "was made for" not in caplog.text
    save_base(str(tmp_path / "theirs"), tmp_path / "longer", longest + 1000)
    made_for = f"data.max_length is {longest + 1000:,}, but {tmp_path / 'theirs'} was made for {longest:,} tokens"
    assert made_for in caplog.text
    assert f"its rotary positions are {scaled}" in caplog.text


def test_positions_of_layers_with_windows_are_where_transformers_4_reads_them(tmp_path: Path):
    """It reads ``rope_theta`` and ``rope_local_base_freq`` of Gemma 3, and not ``rope_parameters``."""
    of_layers = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 77_000.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    }
    write_folder(tmp_path / "theirs", "gemma3_text", rope_parameters=of_layers)
    model, tokenizer = ours(tmp_path / "theirs", tmp_path / "prepared")
    file = tmp_path / "prepared" / "tokenizer" / "tokenizer.json"
    names = RunTokenizer(file, {f"{role}_token": token for role, token in tokenizer.special_tokens.items()})
    export_hf(model, names, 64, tmp_path / "out", KeptBase.of(tmp_path / "prepared"))
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["rope_theta"], written["rope_local_base_freq"]) == (77_000.0, 700.0)
    assert written["rope_scaling"] == {"rope_type": "linear", "factor": 8.0}
    # transformers 5 reads the same of both, so of a file that a tool of today reads.
    without = {name: value for name, value in written.items() if name not in ("rope_theta", "rope_local_base_freq")}
    for one in (written, without, {name: value for name, value in without.items() if name != "rope_scaling"}):
        read = transformers.AutoConfig.for_model(**one)
        assert read.rope_parameters["full_attention"] == of_layers["full_attention"]
        assert read.rope_parameters["sliding_attention"] == of_layers["sliding_attention"]
    older = {name: value for name, value in written.items() if name != "rope_parameters"}
    read = transformers.AutoConfig.for_model(**older)
    assert read.rope_parameters["full_attention"]["factor"] == 8.0
    assert read.rope_parameters["sliding_attention"]["rope_theta"] == 700.0


@pytest.mark.parametrize("kind", ["llama, llama3", "llama, yarn"])
def test_scaled_positions_are_where_transformers_4_reads_them(kind: str, tmp_path: Path):
    """It knows ``rope_scaling`` and ``rope_theta`` of the configuration itself, and not ``rope_parameters``."""
    write_folder(tmp_path / "theirs", kind)
    save_base(str(tmp_path / "theirs"), tmp_path / "prepared", 32)
    own = options_in(tmp_path / "prepared", LanguageModelConfig())
    exported = exported_config(own, find_family(own), 320, 128, "float32")
    rope = exported["rope_parameters"]
    assert exported["rope_scaling"] == {name: value for name, value in rope.items() if name != "rope_theta"}
    assert exported["rope_theta"] == rope["rope_theta"]
    # transformers 5 reads both: the same positions, with either or with both.
    read = [
        transformers.AutoConfig.for_model(**{name: value for name, value in exported.items() if name not in left_out})
        for left_out in ((), ("rope_parameters",), ("rope_scaling", "rope_theta"))
    ]
    assert all(one.rope_parameters == read[0].rope_parameters for one in read)
    assert read[0].rope_parameters["rope_type"] == rope["rope_type"]


IN_TRANSFORMERS_4 = """\
import sys, torch, transformers
from safetensors.torch import load_file, save_file
assert transformers.__version__.startswith("4."), transformers.__version__
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()
with torch.no_grad():
    save_file({"logits": model(load_file(sys.argv[2])["ids"]).logits}, sys.argv[3])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    "VAAK_TRANSFORMERS_4" not in os.environ,
    reason="VAAK_TRANSFORMERS_4 names no folder with transformers 4 (pip install --target)",
)
def test_an_export_has_the_same_logits_in_transformers_4(tmp_path: Path):
    """Scaled positions were lost there: transformers 5 writes ``rope_parameters`` alone."""
    peer = write_folder(tmp_path / "theirs", "llama, llama3")
    model, tokenizer = ours(tmp_path / "theirs", tmp_path / "prepared")
    names = {f"{role}_token": token for role, token in tokenizer.special_tokens.items()}
    given = RunTokenizer(tmp_path / "prepared" / "tokenizer" / "tokenizer.json", names)
    export_hf(model, given, 128, tmp_path / "out", KeptBase.of(tmp_path / "prepared"))
    ids = torch.randint(1, 257, (1, 60), generator=torch.Generator().manual_seed(0))
    save_file({"ids": ids}, tmp_path / "ids.safetensors")
    environment = {**os.environ, "PYTHONPATH": os.environ["VAAK_TRANSFORMERS_4"]}
    arguments = [str(tmp_path / name) for name in ("out", "ids.safetensors", "logits.safetensors")]
    subprocess.run([sys.executable, "-c", IN_TRANSFORMERS_4, *arguments], check=True, env=environment)
    found = load_file(tmp_path / "logits.safetensors")["logits"]
    with torch.no_grad():
        expected = peer(ids).logits
    assert (found - expected).abs().max() < 1e-4 * expected.std()
