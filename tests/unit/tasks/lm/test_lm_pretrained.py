"""Decoders of transformers become ours with the same logits, and go out again as they came in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tiny_decoder import MODELS, VOCAB_SIZE, write_folder
from vaak.core.errors import UserError
from vaak.nn.config import LoraConfig
from vaak.nn.lora import add_lora, merged
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.export import export_hf, export_peft
from vaak.tasks.lm.pretrained import load_model, longest_of, save_base

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
    export_hf(model, file, names, longest_of(tmp_path / "prepared"), tmp_path / "again")
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


@pytest.mark.parametrize(
    ("kind", "others", "said"),
    [
        ("llama", {"attention_bias": True}, "has attention_bias True, which"),
        ("llama", {"hidden_act": "gelu"}, "has hidden_act gelu, which"),
        ("qwen3", {"use_sliding_window": True, "max_window_layers": 1}, "has use_sliding_window True, which"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "has scale_attn_by_inverse_layer_idx True"),
    ],
)
def test_what_does_not_fit_is_named(kind: str, others: dict[str, Any], said: str, tmp_path: Path):
    write_folder(tmp_path / "theirs", kind, **others)
    with pytest.raises(UserError, match=rf"^model\.pretrained: .*theirs {said}"):
        save_base(str(tmp_path / "theirs"), tmp_path / "prepared", 48)


def test_other_folders_are_refused_in_a_line(tmp_path: Path):
    write_folder(tmp_path / "gpt2", "gpt2")
    with pytest.raises(UserError, match=r"data.max_length is 65, but .* reads at most 64"):
        save_base(str(tmp_path / "gpt2"), tmp_path / "prepared", 65)
    tokenizer = save_base(str(tmp_path / "gpt2"), tmp_path / "prepared", 64)
    about = json.loads((tmp_path / "gpt2" / "config.json").read_text())
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps({**about, "model_type": "opt"}))
    with pytest.raises(UserError, match=r"gpt2 is a opt; expected one of llama, qwen3, gpt2"):
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
    export_hf(model, tmp_path / "prepared" / "tokenizer" / "tokenizer.json", names, 64, tmp_path / "hf")
    adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / "peft")).eval()
    whole = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf")
    with torch.no_grad():
        torch.testing.assert_close(adapted(ids).logits, changed, rtol=0, atol=1e-4)
        torch.testing.assert_close(whole(ids).logits, changed, rtol=0, atol=1e-4)
