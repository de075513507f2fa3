"""Tokens that a base lacks are reported, begin sensibly, are learned next to low-rank adapters, and exported."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_decoder
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.engine.optim.optimizers import trained_parameters
from vaak.library.trained_run import open as opened
from vaak.nn.config import LoraConfig
from vaak.nn.lora import merged
from vaak.nn.new_tokens import begin_new_rows, iterate_new_rows
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel, add_adapters

transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

NEW = ("<|im_start|>", "<|im_end|>")
CONFIG = """\
task: lm
name: chat
model: {{pretrained: theirs, lora: {{rank: 2, alpha: 4, targets: [{target}]}}}}
data:
  corpus: {{type: chat, train: chats.jsonl, valid: valid.jsonl}}
  chat_template: chatml
  new_tokens: ["<|im_start|>", "<|im_end|>"]
  max_length: 96
training:
  max_steps: 4
  batch_size: 4
  device: cpu
  optimizer: {{lr: 1e-2}}
  validation: {{interval: 2}}
  checkpoint: {{interval: 2}}
  logging: {{interval: 1, tensorboard: false}}
"""


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize(
    ("kind", "target", "others"),
    [
        ("qwen2", "query", {"tie_word_embeddings": True, "vocab_size": 257}),
        pytest.param("gemma3_text", "q_proj", {"vocab_size": 257}, marks=pytest.mark.slow),
        pytest.param("llama", "query", {"vocab_size": 257}, marks=pytest.mark.slow),
        pytest.param("phi3", "qkv_proj", {"vocab_size": 257, "tie_word_embeddings": False}, marks=pytest.mark.slow),
        pytest.param("llama", "query", {}, marks=pytest.mark.slow),  # which has more rows than tokens
    ],
)
def test_a_chat_with_tokens_that_the_base_lacks(
    vaak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, target: str, others: dict[str, Any]
):
    monkeypatch.chdir(tmp_path)
    tiny_decoder.write_folder(tmp_path / "theirs", kind, **others)
    rows = [
        {"messages": [{"role": "user", "content": f"{one}?"}, {"role": "assistant", "content": f"{one}!"}]}
        for one in range(16)
    ]
    for name, part in (("chats", rows[:12]), ("valid", rows[12:])):
        Path(f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in part))
    Path("chat.yml").write_text(CONFIG.format(target=target))

    def run(*arguments: str) -> str:
        code, out, err = vaak(*arguments)
        assert code == 0, out + err
        return str(out + err)

    log = run("train", "chat.yml") + Path("runs/chat/train.log").read_text()
    assert "2 tokens are new to the base (<|im_start|>, <|im_end|>): the row of each begins as the mean" in log
    early, late = (load_checkpoint(Path(f"runs/chat/checkpoints/step-0000000{step}")).model for step in (2, 4))
    changed = {name for name, one in late.items() if not torch.equal(one, early[name])}
    assert changed == {name for name in late if ".lora_" in name or name.endswith("weight.0.rows")}
    assert any(name.endswith("weight.0.rows") for name in changed)
    shutil.copytree("runs/chat", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/step-00000004")
    run("train", "chat.yml", "run_dir=runs/cut", "training.checkpoint.resume=runs/cut/checkpoints/step-00000002")
    again = load_checkpoint(Path("runs/cut/checkpoints/step-00000004")).model
    assert all(torch.equal(one, again[name]) for name, one in late.items())

    run("export", "runs/chat", "--format", "hf", "--output", "whole")
    run("export", "runs/chat", "--format", "peft", "--output", "adapter")
    model: Any = opened("runs/chat", device="cpu").model
    assert merged(model) is not model  # a copy, of which nothing is changed here
    ids = torch.tensor([[257, 5, 9, 258, 200, 257, 31]])
    whole = transformers.AutoModelForCausalLM.from_pretrained("whole").eval()
    adapted = peft.AutoPeftModelForCausalLM.from_pretrained("adapter").eval()
    with torch.no_grad():
        expected = model(ids)
        torch.testing.assert_close(whole(ids).logits, expected, rtol=0, atol=1e-4)
        torch.testing.assert_close(adapted(ids).logits[..., : expected.shape[-1]], expected, rtol=0, atol=1e-4)
    for folder in ("whole", "adapter"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        assert tokenizer.convert_tokens_to_ids([*NEW]) == [257, 258]


def model_with_rows(tied: bool, lora: LoraConfig | None) -> Any:
    torch.manual_seed(0)
    model = LanguageModel(LanguageModelConfig(d_model=16, num_layers=1, num_heads=2, tie_embeddings=tied), 12)
    begin_new_rows(model.token_modules(), range(9, 12), None)
    return add_adapters(model, lora, range(9, 12)).eval()


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_begin_as_the_mean_and_alone_are_trained(tied: bool):
    plain, model = (model_with_rows(tied, lora) for lora in (None, LoraConfig(rank=1, targets=("query",))))
    ids = torch.arange(12)[None]
    torch.testing.assert_close(plain.embedding.weight[9:], plain.embedding.weight[:9].mean(0).expand(3, -1))
    assert torch.equal(model(ids), plain(ids))
    model(ids).logsumexp(-1).sum().backward()
    trained = {item.name: item for item in trained_parameters(model)}
    rows = {f"{name}.parametrizations.weight.0.rows" for name, _ in iterate_new_rows(model)}
    assert len(rows) == (1 if tied else 2)
    assert rows == {name for name in trained if "lora_" not in name}
    for name in rows:
        one = trained[name]
        assert (one.is_embedding, one.layer, one.parameter.shape) == (True, -1, (3, 16))
        assert one.parameter.grad is not None
        assert one.parameter.grad.any()
    assert not any(item.is_hidden_matrix for item in trained.values() if item.name in rows), "Muon leaves them to AdamW"


def test_a_row_may_begin_as_another_token_and_an_adapted_output_layer_is_refused():
    model = LanguageModel(LanguageModelConfig(d_model=16, num_layers=1, num_heads=2, tie_embeddings=False), 12)
    begin_new_rows(model.token_modules(), range(10, 12), 3)
    modules: list[Any] = model.token_modules()
    for weight in (one.weight for one in modules):
        assert torch.equal(weight[10:], weight[3].expand(2, -1))
    with pytest.raises(UserError, match="the output layer can't be adapted while tokens are added"):
        add_adapters(model, LoraConfig(targets=("head",)), range(10, 12))


def test_a_token_to_begin_like_that_the_base_lacks_is_named(vaak: Any, tmp_path: Path, monkeypatch: Any):
    monkeypatch.chdir(tmp_path)
    tiny_decoder.write_folder(tmp_path / "theirs", "llama")
    for name in ("chats", "valid"):
        Path(f"{name}.jsonl").write_text('{"messages": [{"role": "user", "content": "a"}]}\n')
    Path("chat.yml").write_text(CONFIG.format(target="query"))
    code, _, err = vaak("train", "chat.yml", "data.new_tokens_like=<|endoftxt|>")
    assert code == 2
    assert "data.new_tokens_like: the base has no token '<|endoftxt|>'; did you mean '<|endoftext|>'?" in err
