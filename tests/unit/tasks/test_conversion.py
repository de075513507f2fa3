"""Models in other forms become folders of transformers with the same logits."""

from __future__ import annotations

import os
import pickle
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, WhisperForConditionalGeneration

from tiny_whisper import write_whisper
from vaak.core.errors import UserError
from vaak.core.storage.model_formats import count_stored_parameters
from vaak.tasks.conversion import ABANDONED_SECONDS
from vaak.tasks.pretrained import find_model, resolve_source
from vaak.text.tokenizer import Tokenizer

BACK = {
    "self_attn.q_proj": "attn.query", "self_attn.k_proj": "attn.key", "self_attn.v_proj": "attn.value",
    "self_attn.out_proj": "attn.out", "self_attn_layer_norm": "attn_ln", "encoder_attn.q_proj": "cross_attn.query",
    "encoder_attn.k_proj": "cross_attn.key", "encoder_attn.v_proj": "cross_attn.value",
    "encoder_attn.out_proj": "cross_attn.out", "encoder_attn_layer_norm": "cross_attn_ln", "fc1": "mlp.0",
    "fc2": "mlp.2", "final_layer_norm": "mlp_ln",
}  # fmt: skip


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def _as_openai(name: str) -> str:
    name = name.removeprefix("model.").replace("embed_positions.weight", "positional_embedding")
    name = name.replace("embed_tokens", "token_embedding").replace(".layers.", ".blocks.")
    for theirs, openai in BACK.items():
        name = re.sub(rf"\.{re.escape(theirs)}\.", f".{openai}.", name)
    return re.sub(r"^encoder\.layer_norm", "encoder.ln_post", re.sub(r"^decoder\.layer_norm", "decoder.ln", name))


def _write_openai(whisper: Path, folder: Path) -> Path:
    """A Whisper of transformers as OpenAI saves its own, next to its tokenizer."""
    model = WhisperForConditionalGeneration.from_pretrained(whisper)
    sizes: Any = model.config
    dims = {
        "n_mels": sizes.num_mel_bins, "n_audio_ctx": sizes.max_source_positions, "n_audio_state": sizes.d_model,
        "n_audio_head": sizes.encoder_attention_heads, "n_audio_layer": sizes.encoder_layers,
        "n_vocab": sizes.vocab_size, "n_text_ctx": sizes.max_target_positions, "n_text_state": sizes.d_model,
        "n_text_head": sizes.decoder_attention_heads, "n_text_layer": sizes.decoder_layers,
    }  # fmt: skip
    state = {_as_openai(name): tensor for name, tensor in model.state_dict().items() if name != "proj_out.weight"}
    folder.mkdir()
    torch.save({"dims": dims, "model_state_dict": state}, folder / "tiny.pt")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (whisper / name).is_file():
            shutil.copy(whisper / name, folder)
    return folder / "tiny.pt"


def _square_whisper(folder: Path) -> Path:
    """OpenAI's have feed-forward layers of four times the width, and one width on both sides."""
    write_whisper(folder)
    model = WhisperForConditionalGeneration.from_pretrained(folder)
    config: Any = model.config
    config.encoder_ffn_dim = config.decoder_ffn_dim = 4 * config.d_model
    torch.manual_seed(0)
    WhisperForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_a_whisper_of_openais_has_the_logits_of_its_folder(tmp_path: Path, cache: Path):
    whisper = _square_whisper(tmp_path / "hf")
    file = _write_openai(whisper, tmp_path / "openai")
    source = resolve_source("model.base", str(file), Path())
    assert Path(source).is_relative_to(cache)
    assert find_model("openai/tiny.pt", tmp_path) == source
    assert {count_stored_parameters(one) for one in (file, file.parent)} == {count_stored_parameters(whisper)}
    ours, theirs = (WhisperForConditionalGeneration.from_pretrained(one).eval() for one in (source, whisper))
    features = torch.randn(1, ours.config.num_mel_bins, 2 * ours.config.max_source_positions)
    with torch.no_grad():
        logits = [model(features, decoder_input_ids=torch.tensor([[1, 2, 3]])).logits for model in (ours, theirs)]
    torch.testing.assert_close(*logits, rtol=0, atol=0)
    before = (Path(source) / "model.safetensors").stat().st_mtime_ns
    assert resolve_source("model.base", str(tmp_path / "openai"), Path()) == source
    assert (Path(source) / "model.safetensors").stat().st_mtime_ns == before, "converted again"


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("ran",)


def test_a_whisper_of_openais_without_a_tokenizer_says_where_to_put_one(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
):
    """transformers 5 makes one of a single token where the Hub can't be reached, and nothing was ever written."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    dims = {"n_mels": 80, "n_vocab": 51865, "n_text_layer": 4, "n_text_state": 384}
    torch.save({"dims": dims, "model_state_dict": {}}, tmp_path / "mine.pt")
    with pytest.raises(UserError, match=r"mine\.pt has no tokenizer, and openai/whisper-\w+ isn't available; put its "):
        resolve_source("model.base", str(tmp_path / "mine.pt"), Path())


def test_a_pickle_that_names_code_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    code = _Runs()
    torch.save(
        {"dims": {"n_mels": 80}, "model_state_dict": {}, "more": code}, tmp_path / "bad.pt", pickle_module=pickle
    )
    with pytest.raises(UserError, match=r"model\.base: .*bad\.pt can't be read as tensors alone"):
        resolve_source("model.base", str(tmp_path / "bad.pt"), Path())
    assert not (tmp_path / "ran").exists()
    assert not [*(tmp_path / "cache").rglob("*.json")]


def test_a_broken_gguf_is_one_line(tmp_path: Path):
    pytest.importorskip("gguf")
    (tmp_path / "m.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(UserError, match=r"model\.pretrained: .*m\.gguf can't be read as GGUF: "):
        resolve_source("model.pretrained", str(tmp_path / "m.gguf"), Path())


@pytest.fixture(scope="module")
def gguf_file(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory, commands: Any) -> Path:
    pytest.importorskip("gguf")
    folder = tmp_path_factory.mktemp("gguf") / "out"
    assert commands.start(["export", tiny_run, "--format", "gguf", "--output", folder], tiny_run).wait().status == 0
    return next(folder.rglob("*.gguf"))


def test_a_gguf_that_is_cut_off_or_an_adapter_says_so(gguf_file: Path, tmp_path: Path, cache: Path):
    gguf: Any = pytest.importorskip("gguf")
    content = gguf_file.read_bytes()
    for part in (len(content) - 1000, 200):
        (tmp_path / "m.gguf").write_bytes(content[:part])
        with pytest.raises(UserError, match=r"m\.gguf can't be read as GGUF: .*; it is cut off: download it again$"):
            resolve_source("model.pretrained", str(tmp_path / "m.gguf"), Path())
    writer = gguf.GGUFWriter(tmp_path / "lora.gguf", "llama")
    writer.add_tensor("blk.0.attn_q.weight.lora_a", np.zeros((4, 32), np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    with pytest.raises(UserError, match=r"lora\.gguf is an adapter \(LoRA\) without its base; give the base$"):
        resolve_source("model.pretrained", str(tmp_path / "lora.gguf"), Path())


def _split_gguf(file: Path, folder: Path) -> list[Path]:
    """The same model in parts of a few tensors each, as llama-gguf-split writes them."""
    folder.mkdir()
    _copy_gguf(file, folder / "m.gguf", num_parts=3)
    return sorted(folder.glob("*.gguf"))


def _copy_gguf(file: Path, copied: Path, num_parts: int | None = None, **changed: Any) -> None:
    """Copy a model, with other values of ``tokenizer.ggml.`` keys; those that are None are left out."""
    gguf: Any = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(file)
    writer = gguf.GGUFWriter(
        copied,
        reader.fields["general.architecture"].contents(),
        split_max_tensors=len(reader.tensors) // num_parts + 1 if num_parts else 0,
    )
    for name, one in reader.fields.items():
        value = changed.get(name.removeprefix("tokenizer.ggml."), one.contents())
        if not name.startswith("GGUF.") and name != "general.architecture" and value is not None:
            inner = one.types[-1] if one.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, value, one.types[0], sub_type=inner)
    for one in reader.tensors:
        writer.add_tensor(one.name, one.data, raw_dtype=one.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_texts_of_a_gguf_are_split_as_llama_cpp_does(
    gguf_file: Path, tiny_run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """transformers took each rule that it doesn't know for GPT-2's: three times as many tokens of Hindi, silently.

    llama.cpp itself gave what is expected here, of 354 lines of prose and code each.
    """

    def convert(**changed: Any) -> Tokenizer:
        _copy_gguf(gguf_file, tmp_path / "other.gguf", **changed)
        return Tokenizer.load(resolve_source("model.pretrained", str(tmp_path / "other.gguf"), Path()))

    own, texts = Tokenizer.load(tiny_run / "prepared" / "tokenizer"), ("राम घर जाता है ।", "लड़की किताबें पढ़ती है")
    # That of tokenizers trained here goes out as bloom's.
    for text in texts:
        assert convert().encode(text) == own.encode(text)
    assert "isn't known here" not in caplog.text
    assert convert(pre="gpt-2").encode(texts[0]) != own.encode(texts[0])
    assert "isn't known here" not in caplog.text
    convert(pre="deepseek-coder")
    assert "other.gguf splits texts by llama.cpp's rule deepseek-coder, which isn't known here" in caplog.text


def test_words_of_a_gguf_that_are_tokens_are_taken_whole(gguf_file: Path, tmp_path: Path):
    """By Llama 3's rule, whether there are merges for them or not; and its texts begin with a token by default."""
    reader = pytest.importorskip("gguf").GGUFReader(gguf_file)
    names = reader.fields["tokenizer.ggml.tokens"].contents()
    place = names.index("ÿ")  # byte 255, which no text has
    names[place] = "Ġxylophones"
    found = {}
    for rule in ("gpt-2", "llama-bpe"):
        _copy_gguf(gguf_file, tmp_path / f"{rule}.gguf", tokens=names, pre=rule, add_bos_token=None)
        folder = Path(resolve_source("model.pretrained", str(tmp_path / f"{rule}.gguf"), Path()))
        found[rule] = AutoTokenizer.from_pretrained(folder)(" xylophones").input_ids
    first = reader.fields["tokenizer.ggml.bos_token_id"].contents()
    assert len(found["gpt-2"]) > 2
    assert found["llama-bpe"] == [first, place]


def test_a_gguf_in_parts_is_read_whichever_part_is_named(gguf_file: Path, tmp_path: Path, cache: Path):
    parts = _split_gguf(gguf_file, tmp_path / "parts")
    assert [path.name for path in parts] == [f"m-{number:05d}-of-00003.gguf" for number in (1, 2, 3)]
    whole = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    sources = {resolve_source("model.pretrained", str(one), Path()) for one in (tmp_path / "parts", *parts)}
    assert len(sources) == 1, "the folder and each part are the same model"
    joined = AutoModelForCausalLM.from_pretrained(sources.pop()).state_dict()
    assert all(torch.equal(tensor, joined[name]) for name, tensor in whole.state_dict().items())
    assert not [path for path in cache.rglob("*") if ".tmp" in path.name]
    parts[1].unlink()
    for named in (tmp_path / "parts", parts[0], parts[2]):
        with pytest.raises(UserError, match=r"lacks 1 of its 3 parts: m-00002-of-00003\.gguf"):
            resolve_source("model.pretrained", str(named), Path())


def test_one_part_by_another_name_is_not_filled_with_random_weights(gguf_file: Path, tmp_path: Path):
    first = _split_gguf(gguf_file, tmp_path / "parts")[0].rename(tmp_path / "model.gguf")
    with pytest.raises(UserError, match=r"model\.gguf lacks \d+ tensors of its model"):
        resolve_source("model.pretrained", str(first), Path())


def test_a_conversion_that_can_not_be_written_leaves_nothing(gguf_file: Path, tmp_path: Path, cache: Path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, limits[1]))  # a write beyond it fails as on a full disk
    try:
        with pytest.raises(UserError, match="converted model can't be written to"):
            resolve_source("model.pretrained", str(gguf_file), Path())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path for path in cache.rglob("*") if path.is_file()] == []
    assert Path(resolve_source("model.pretrained", str(gguf_file), Path()), "model.safetensors").is_file()


def test_what_a_killed_conversion_left_is_deleted_by_the_next_one(gguf_file: Path, tmp_path: Path, cache: Path):
    left, recent = (cache / "vaak" / "converted" / name for name in ("left", "recent"))
    for folder in (left, recent):
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"half")
    long_ago = time.time() - 2 * ABANDONED_SECONDS
    os.utime(left, (long_ago, long_ago))
    resolve_source("model.pretrained", str(gguf_file), Path())
    assert (left.exists(), recent.exists()) == (False, True), "another process may be making the recent one"


CONVERTING = """
import importlib, sys
from pathlib import Path
for name in ("gguf", "transformers.modeling_gguf_pytorch_utils", "transformers.models.llama.modeling_llama"):
    importlib.import_module(name)
import vaak.tasks.pretrained as pretrained
pretrained.import_transformers("test").AutoModelForCausalLM
def read_peak():  # unlike getrusage's, not that of the process that started this one
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = read_peak()
pretrained.resolve_source("model.pretrained", sys.argv[1], Path())
print((read_peak() - before) * 1024)
"""


def _list_shapes(num_tokens: int, width: int, blocks: int, experts: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"token_embd": (num_tokens, width), "output_norm": (width,)}
    shapes["output"] = (num_tokens, width)
    for block in range(blocks):
        shapes |= {f"blk.{block}.attn_{name}": (width, width) for name in ("q", "k", "v", "output")}
        shapes |= {f"blk.{block}.{name}_norm": (width,) for name in ("attn", "ffn")}
        inner = (experts, 2 * width, width) if experts else (4 * width, width)
        each = "_exps" if experts else ""
        shapes |= {f"blk.{block}.ffn_{name}{each}": inner for name in ("gate", "up")}
        shapes[f"blk.{block}.ffn_down{each}"] = (*inner[:-2], inner[-1], inner[-2])
        if experts:
            shapes |= {f"blk.{block}.attn_{name}_norm": (width // 8,) for name in ("q", "k")}
            shapes[f"blk.{block}.ffn_gate_inp"] = (experts, width)
    return shapes


def _write_wide(small: Path, file: Path, width: int, blocks: int, experts: int = 0, without: str = "") -> int:
    """Write a GGUF with the tokens of a small one and blocks of another width; return the number of its parameters.

    A Llama; with ``experts``, a Qwen3-MoE. Tensors whose name ends with ``without`` are left out.
    """
    gguf: Any = pytest.importorskip("gguf")
    reader = gguf.GGUFReader(small)
    writer = gguf.GGUFWriter(file, "qwen3moe" if experts else "llama")
    for name, one in reader.fields.items():
        if name.startswith("tokenizer."):
            inner = one.types[-1] if one.types[0] == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, one.contents(), one.types[0], sub_type=inner)
    for add, value in (
        (writer.add_embedding_length, width), (writer.add_block_count, blocks), (writer.add_head_count, 8),
        (writer.add_head_count_kv, 8), (writer.add_feed_forward_length, 4 * width), (writer.add_context_length, 64),
        (writer.add_layer_norm_rms_eps, 1e-5), (writer.add_rope_dimension_count, width // 8),
    ):  # fmt: skip
        add(value)
    if experts:
        for add, value in (
            (writer.add_expert_count, experts), (writer.add_expert_used_count, 2), (writer.add_key_length, width // 8),
            (writer.add_expert_feed_forward_length, 2 * width), (writer.add_value_length, width // 8),
        ):  # fmt: skip
            add(value)
    shapes = _list_shapes(len(reader.fields["tokenizer.ggml.tokens"].data), width, blocks, experts)
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        dtype = np.float32 if len(shape) == 1 else np.float16
        if not without or not name.endswith(without):
            writer.add_tensor(f"{name}.weight", rng.standard_normal(shape, np.float32).astype(dtype))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    return sum(int(np.prod(shape)) for shape in shapes.values())


@pytest.mark.slow
@pytest.mark.parametrize(("width", "experts"), [(512, 0), (256, 8)])
def test_a_conversion_takes_the_memory_of_a_tensor_and_not_of_the_model(
    gguf_file: Path, tmp_path: Path, width: int, experts: int
):
    """It took 11.8 bytes a parameter of Gemma 3 270M, and 6.1 for each that more blocks of experts add."""
    peaks, sizes = [], []
    for blocks in (4, 12):
        file = tmp_path / f"{blocks}.gguf"
        sizes.append(_write_wide(gguf_file, file, width, blocks, experts))
        done = subprocess.run([sys.executable, "-c", CONVERTING, file], check=True, capture_output=True, text=True)
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] - peaks[0] < 1.0 * (sizes[1] - sizes[0]), "bytes a parameter more"


def test_experts_of_a_gguf_are_those_that_transformers_reads_and_none_is_filled_with_zeros(
    gguf_file: Path, tmp_path: Path
):
    file = tmp_path / "experts.gguf"
    _write_wide(gguf_file, file, 32, 2, experts=4)
    config = AutoConfig.from_pretrained(tmp_path, gguf_file=file.name)
    config.moe_intermediate_size = 64  # which transformers doesn't read
    how: Any = {"gguf_file": file.name, "config": config, "dtype": torch.float32}
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, **how).state_dict()
    source = Path(resolve_source("model.pretrained", str(file), Path()))
    ours = AutoModelForCausalLM.from_pretrained(source).state_dict()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.items())
    with safe_open(source / "model.safetensors", "pt") as written:
        assert "model.layers.1.mlp.experts.3.up_proj.weight" in written.keys()  # noqa: SIM118 - it isn't a mapping
    _write_wide(gguf_file, file, 32, 2, experts=4, without="1.ffn_up_exps")
    with pytest.raises(UserError, match=r"experts\.gguf lacks 8 tensors of its model, such as .*experts\.0\."):
        resolve_source("model.pretrained", str(file), Path())


KILLED = """
import os, signal, sys
from pathlib import Path
import vaak.tasks.conversion as conversion
from vaak.tasks.pretrained import resolve_source
def die(model, folder):
    os.kill(os.getpid(), signal.SIGKILL)
conversion._write_sizes = die
resolve_source("model.pretrained", sys.argv[1], Path())
"""


@pytest.mark.slow
def test_a_killed_conversion_is_harmless_and_deleted_by_the_next_command_that_looks_there(
    gguf_file: Path, tmp_path: Path, cache: Path, caplog: pytest.LogCaptureFixture
):
    first, second = (tmp_path / f"{name}.gguf" for name in ("first", "second"))
    for file in (first, second):
        shutil.copy(gguf_file, file)
    done = resolve_source("model.pretrained", str(second), Path())
    killed = subprocess.run([sys.executable, "-c", KILLED, first], check=False)
    assert killed.returncode == -signal.SIGKILL
    [left] = [folder for folder in (cache / "vaak" / "converted").iterdir() if str(folder) != done]
    assert (left / "model.safetensors").stat().st_size > 0
    assert not (left / "converted.json").exists()
    # It is rewritten under the same name; and where another model is used that is converted already, deleted.
    long_ago = time.time() - 2 * ABANDONED_SECONDS
    os.utime(left, (long_ago, long_ago))
    with caplog.at_level("INFO"):
        assert resolve_source("model.pretrained", str(second), Path()) == done
    assert not left.exists()
    assert f"{left} is deleted: a conversion that was killed left" in caplog.text
    subprocess.run([sys.executable, "-c", KILLED, first], check=False)
    assert resolve_source("model.pretrained", str(first), Path()) == str(left)
    assert AutoModelForCausalLM.from_pretrained(left)


def test_a_gguf_has_the_logits_that_transformers_gives_it(gguf_file: Path):
    file = gguf_file
    source = resolve_source("model.pretrained", str(file), Path())
    ours = AutoModelForCausalLM.from_pretrained(source).eval()
    theirs = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32).eval()
    with torch.no_grad():
        logits = [model(torch.tensor([[1, 2, 3, 4]])).logits for model in (ours, theirs)]
    torch.testing.assert_close(*logits, rtol=0, atol=0)
