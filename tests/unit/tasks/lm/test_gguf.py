"""A GGUF file gives, in transformers and in llama.cpp, the run's tokens and logits."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny_decoder import write_folder
from vaak.core.errors import UserError
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.runs.open_run import open_run
from vaak.tasks.lm.gguf import NEAREST, write_gguf
from vaak.tasks.lm.predict import generate
from vaak.text.grammar import sentences

transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

KINDS = ("llama", "llama, llama3", "llama, yarn", "qwen3", "qwen2", "mistral", "llama, biases")
LIMITS = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2, "q8_0": 0.04}
"""The difference of logits, relative to their deviation."""


def made(tmp_path: Path, kind: str, quantization: str | None = None, **others: Any) -> Any:
    """A model of transformers in ``theirs``, and ``gguf/model.gguf`` of it; its tokenizer has a merge."""
    model, source = write_folder(tmp_path / "theirs", kind, **others), tmp_path / "theirs"
    content = json.loads((source / "tokenizer.json").read_text())
    content["model"]["vocab"]["th"] = len(content["model"]["vocab"])
    content["model"]["merges"] = [["t", "h"]]
    (source / "tokenizer.json").write_text(json.dumps(content))
    write_gguf(lambda to: shutil.copytree(source, to), tmp_path / "gguf", quantization)
    return model


def logits_of(model: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        found: np.ndarray = model(torch.tensor([ids])).logits[0].float().numpy()
    return found


IDS = torch.randint(1, 257, (40,), generator=torch.Generator().manual_seed(0)).tolist()


def assert_near(found: np.ndarray, expected: np.ndarray, quantization: str) -> None:
    assert np.std(found - expected) < LIMITS[quantization] * np.std(expected)


@pytest.mark.parametrize(("kind", "quantization"), [("llama", "f32"), ("qwen2", "f16"), ("mistral", "q8_0")])
def test_transformers_reads_it_back(kind: str, quantization: str, tmp_path: Path):
    """It sorts Llama's rows back, so a wrong order in the file would be seen."""
    model = made(tmp_path, kind, quantization)
    auto: Any = transformers.AutoModelForCausalLM
    again = auto.from_pretrained(tmp_path / "gguf", gguf_file="model.gguf").eval()
    assert_near(logits_of(again, IDS), logits_of(model, IDS), quantization)
    own, theirs = (
        transformers.AutoTokenizer.from_pretrained(tmp_path / name, **file)
        for name, file in (("theirs", {}), ("gguf", {"gguf_file": "model.gguf"}))
    )
    for text in ("the theatre, 1984", "राम घर जाता है।"):
        assert own(text)["input_ids"] == theirs(text)["input_ids"]


@pytest.mark.parametrize("quantization", LIMITS)
@pytest.mark.parametrize("kind", KINDS)
def test_llama_cpp_gives_the_same_logits(kind: str, quantization: str, tmp_path: Path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python isn't installed")
    model = made(tmp_path, kind, quantization)
    found = llama_cpp.Llama(  # its cache has 16 bits unless told otherwise
        str(tmp_path / "gguf" / "model.gguf"), n_ctx=64, logits_all=True, verbose=False, type_k=0, type_v=0
    )
    found.eval(IDS)
    assert_near(np.array(found._scores)[: len(IDS)], logits_of(model, IDS), quantization)


def test_a_run_continues_in_llama_cpp_as_here(
    tiny_run: Path, vaak: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    code, _, err = vaak("export", tiny_run, "--format", "gguf", "--quantization", "f32", "--output", tmp_path / "out")
    assert (code, err) == (0, "")
    assert f"its nearest rule ({NEAREST})" in caplog.text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["README.md", "model.gguf"]
    assert 'Llama("out/model.gguf")' in (tmp_path / "out" / "README.md").read_text()
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python isn't installed")
    found = llama_cpp.Llama(str(tmp_path / "out" / "model.gguf"), n_ctx=64, verbose=False)
    opened: Any = open_run(tiny_run, device="cpu")
    tokenizer = opened.task.tokenizer
    for text in [*sentences("test", 200, 0), "क्ष\u200dत्र 🙂  x", "It's 1984, and 12345 things."]:
        assert found.tokenize(text.encode(), add_bos=True) == [tokenizer.bos_id, *tokenizer.encode(text)]
    assert (found.token_bos(), found.token_eos()) == (tokenizer.bos_id, tokenizer.eos_id)
    ids = [tokenizer.bos_id, *tokenizer.encode("वह")]
    settings = SamplingSettings(max_new_tokens=9, temperature=0, stop_ids=(tokenizer.eos_id,))
    expected = tokenizer.decode([one for one in generate(opened.model, ids, settings) if one != tokenizer.eos_id])
    assert found("वह", max_tokens=9, temperature=0.0)["choices"][0]["text"] == expected


@pytest.mark.parametrize(
    ("kind", "others", "said"),
    [
        ("mistral", {"sliding_window": 4}, "llama has no sliding_window 4"),
        ("llama", {"hidden_act": "gelu"}, "llama has no hidden_act gelu"),
    ],
)
def test_what_llama_cpp_has_not_is_said(kind: str, others: dict[str, Any], said: str, tmp_path: Path):
    with pytest.raises(UserError, match=rf"^--format gguf: llama\.cpp's {said}$"):
        made(tmp_path, kind, **others)
    assert not (tmp_path / "gguf").exists()


def test_tokenizers_of_other_kinds_are_refused(tmp_path: Path):
    source = tmp_path / "theirs"
    write_folder(source, "llama")
    with pytest.raises(UserError, match=r"llama\.cpp requires a tokenizer with merges"):
        write_gguf(lambda to: shutil.copytree(source, to), tmp_path / "gguf", None)
    content = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").write_text(json.dumps({**content, "decoder": None}))
    with pytest.raises(UserError, match="only tokenizers of merged bytes are written"):
        write_gguf(lambda to: shutil.copytree(source, to), tmp_path / "gguf", None)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
