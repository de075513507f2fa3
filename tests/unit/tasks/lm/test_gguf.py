"""A GGUF file gives, in transformers and in llama.cpp, the run's tokens and logits."""

from __future__ import annotations

import json
import os
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
from vaak.tasks.lm.gguf import write_gguf
from vaak.tasks.lm.gguf_tokenizer import NEAREST
from vaak.tasks.lm.predict import generate
from vaak.text.grammar import sentences

transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

GEMMAS = ("gemma", "gemma2", "gemma3_text")
KINDS = ("llama", "llama, llama3", "llama, yarn", "qwen3", "qwen2", "mistral", "llama, biases", *GEMMAS)
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


def assert_near(found: np.ndarray, expected: np.ndarray, quantization: str, kind: str = "") -> None:
    # llama.cpp has a table of GELU in 16 bits.
    limit = max(LIMITS[quantization], 1e-3 if kind in GEMMAS else 0)
    assert np.std(found - expected) < limit * np.std(expected)


@pytest.mark.parametrize(
    ("kind", "quantization"), [("llama", "f32"), ("qwen2", "f16"), ("mistral", "q8_0"), ("gemma3_text", "f32")]
)
def test_transformers_reads_it_back(kind: str, quantization: str, tmp_path: Path):
    """It sorts Llama's rows back, so a wrong order in the file would be seen."""
    # It takes Gemma's scale of attention for that of the published ones.
    published = {"head_dim": 256, "query_pre_attn_scalar": 256} if kind in GEMMAS else {}
    model = made(tmp_path, kind, quantization, **published)
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
    assert_near(np.array(found._scores)[: len(IDS)], logits_of(model, IDS), quantization, kind)


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text"])
def test_layers_of_another_order_have_their_own_windows_in_llama_cpp(kind: str, tmp_path: Path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python isn't installed")
    others: dict[str, Any] = {"layer_types": ["full_attention", "sliding_attention"]}
    if kind == "gemma3_text":
        own = {"rope_type": "default", "rope_theta": 500.0}
        others["rope_parameters"] = {"full_attention": {**own, "rope_theta": 1e4}, "sliding_attention": own}
    model = made(tmp_path, kind, "f32", **others)
    file = str(tmp_path / "gguf" / "model.gguf")
    found = llama_cpp.Llama(file, n_ctx=64, logits_all=True, verbose=False, type_k=0, type_v=0)
    found.eval(IDS)
    assert_near(np.array(found._scores)[: len(IDS)], logits_of(model, IDS), "f32", kind)


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
        ("gemma3_text", {"query_pre_attn_scalar": 64}, "gemma3 has no query_pre_attn_scalar 64"),
        ("gemma2", {"hidden_activation": "silu"}, "gemma2 has no hidden_activation silu"),
    ],
)
def test_what_llama_cpp_has_not_is_said(kind: str, others: dict[str, Any], said: str, tmp_path: Path):
    with pytest.raises(UserError, match=rf"^--format gguf: llama\.cpp's {said}$"):
        made(tmp_path, kind, **others)
    assert not (tmp_path / "gguf").exists()


def pieces_of(merges: list[tuple[str, str]], prefix: bool) -> dict[str, Any]:
    """A tokenizer as transformers has one of SentencePiece's, in JSON."""
    letters = dict.fromkeys("".join(left + right for left, right in merges) + "abc")
    names = ["<pad>", "<s>", "</s>", "\n\n", *(f"<0x{byte:02X}>" for byte in range(256))]
    names += dict.fromkeys(left + right for left, right in merges) | letters
    special = [
        {"id": place, "content": names[place], "special": place < 3, "normalized": False,
         "lstrip": False, "rstrip": False, "single_word": False}
        for place in range(4)
    ]  # fmt: skip
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    steps = [{"type": "Prepend", "prepend": "▁"}, replace] if prefix else [replace]
    decoders = [{**replace, "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "decoder": {"type": "Sequence", "decoders": decoders},
        "model": {
            "type": "BPE", "byte_fallback": True, "fuse_unk": True, "unk_token": "<pad>",
            "vocab": {name: place for place, name in enumerate(names)}, "merges": [list(pair) for pair in merges],
        },
    }  # fmt: skip


MERGES = [("t", "h"), ("▁", "t"), ("▁", "th"), ("▁t", "h"), ("h", "e"), ("t", "he"), ("th", "e"), ("▁", "the"),
          ("▁t", "he"), ("▁th", "e")]  # fmt: skip


def write_pieces(folder: Path, content: dict[str, Any]) -> None:
    """A tiny Gemma with a tokenizer of SentencePiece's."""
    write_folder(folder, "gemma3_text", vocab_size=len(content["model"]["vocab"]))
    (folder / "tokenizer.json").write_text(json.dumps(content))
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about))


@pytest.mark.parametrize("prefix", [False, True])
def test_llama_cpp_splits_by_pieces_as_transformers(prefix: bool, tmp_path: Path):
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python isn't installed")
    write_pieces(tmp_path / "theirs", pieces_of(MERGES, prefix))
    write_gguf(lambda to: shutil.copytree(tmp_path / "theirs", to), tmp_path / "gguf", "f32")
    found = llama_cpp.Llama(str(tmp_path / "gguf" / "model.gguf"), vocab_only=True, verbose=False)
    own = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    for text in ("the theatre", "bathe  a\n\nthe", "राम 🙂 the", "thhe", " t he"):
        assert found.tokenize(text.encode(), add_bos=False) == own(text, add_special_tokens=False)["input_ids"], text


def test_pieces_have_scores_in_the_order_of_merges(tmp_path: Path):
    import gguf

    write_pieces(tmp_path / "theirs", pieces_of(MERGES, prefix=False))
    write_gguf(lambda to: shutil.copytree(tmp_path / "theirs", to), tmp_path / "gguf", "f32")
    fields = gguf.GGUFReader(tmp_path / "gguf" / "model.gguf").fields
    tokens, scores, kinds = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type"))
    of = dict(zip(tokens, scores, strict=True))
    assert [of[one] for one in ("th", "▁t", "▁th", "he", "the", "▁the")] == [0, -1, -2, -3, -4, -5]
    assert max(of[one] for one in "abc") < -5
    assert kinds[:5] == [3, 3, 3, 4, 6], "control, user-defined, byte"
    assert fields["tokenizer.ggml.model"].contents() == "llama"
    assert fields["tokenizer.ggml.add_space_prefix"].contents() is False


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda found: found["model"]["merges"].remove(["▁t", "he"]), "would join ▁t and he, which no merge does"),
        (lambda found: found["model"]["merges"].append(["t", "h"]), "which make th twice"),
        (lambda found: found["normalizer"]["normalizers"].append({"type": "NFKC"}), "has no normalizer NFKC"),
    ],
)
def test_pieces_that_llama_cpp_would_join_otherwise_are_refused(change: Any, said: str, tmp_path: Path):
    content = pieces_of(MERGES, prefix=False)
    change(content)
    write_pieces(tmp_path / "theirs", content)
    with pytest.raises(UserError, match=f"^--format gguf: llama.cpp .*{said}"):
        write_gguf(lambda to: shutil.copytree(tmp_path / "theirs", to), tmp_path / "gguf", None)
    assert not (tmp_path / "gguf").exists()


REAL = Path(os.environ.get("VAAK_WEIGHTS", "/nowhere")) / "gemma"
REAL_FILE = Path(os.environ.get("VAAK_GGUF", "/nowhere"))


@pytest.mark.slow
@pytest.mark.skipif(
    not REAL.is_dir() or not REAL_FILE.is_file(),
    reason="VAAK_WEIGHTS has no folder gemma, or VAAK_GGUF isn't llama.cpp's own file of Gemma 3 270M",
)
def test_a_real_gemma_has_the_keys_and_tensors_of_llama_cpps_own_file(tmp_path: Path):
    import gguf

    write_gguf(lambda to: shutil.copytree(REAL, to), tmp_path / "gguf", "q8_0")
    ours, theirs = gguf.GGUFReader(tmp_path / "gguf" / "model.gguf"), gguf.GGUFReader(REAL_FILE)
    assert {one.name: tuple(one.shape) for one in ours.tensors} == {
        one.name: tuple(one.shape) for one in theirs.tensors
    }
    for name in theirs.fields:
        if name.startswith("gemma3.") or name in ("general.architecture", "general.type"):
            assert ours.fields[name].contents() == theirs.fields[name].contents(), name
    assert {one for one in ours.fields if one.startswith("gemma3.")} <= theirs.fields.keys()
    (own, scores, kinds), (names, their_scores, their_kinds) = (
        [one.fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "scores", "token_type")]
        for one in (ours, theirs)
    )
    # Runs of spaces are tokens that users defined there; in the folder they are pieces.
    assert {their_kinds[place] for place in range(len(own)) if own[place] != names[place]} == {4}
    joined = [place for place in range(len(own)) if kinds[place] == their_kinds[place] == 1]
    assert len(joined) > 255_000
    assert np.array_equal(np.argsort(np.array(scores)[joined]), np.argsort(np.array(their_scores)[joined]))


def test_tokenizers_of_other_kinds_are_refused(tmp_path: Path):
    source = tmp_path / "theirs"
    write_folder(source, "llama")
    with pytest.raises(UserError, match=r"llama\.cpp requires a tokenizer with merges"):
        write_gguf(lambda to: shutil.copytree(source, to), tmp_path / "gguf", None)
    content = json.loads((source / "tokenizer.json").read_text())
    (source / "tokenizer.json").write_text(json.dumps({**content, "decoder": None}))
    with pytest.raises(UserError, match=r"only tokenizers of merged bytes .* are written"):
        write_gguf(lambda to: shutil.copytree(source, to), tmp_path / "gguf", None)
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]
