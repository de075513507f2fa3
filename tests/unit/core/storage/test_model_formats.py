"""What a path holds of a pretrained model is recognised by its files, and said with what to do."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from vaak.core.storage.model_formats import count_stored_parameters, list_weights, recognise

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def _files(**contents: str | bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for name, content in contents.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    return write


def _zip(name: str, pickle: bytes) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("archive/data.pkl", pickle)

    return write


INDEX = json.dumps({"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}})
SHARD, SHARDS = "model-00001-of-00002.safetensors", "model.safetensors.index.json"
CASES = [
    (_files(), "empty", "is empty and has no weights; expected model.safetensors and config.json"),
    (_files(**{"config.json": "{}"}), "empty", "has no weights; expected model.safetensors and config.json"),
    (_files(**{"config.json": "{}", "model.safetensors": "x"}), "transformers", "is a model of transformers"),
    (_files(**{"model.safetensors": "x"}), "incomplete", "has weights, but no config.json"),
    (
        _files(**{"config.json": "{}", SHARDS: INDEX, SHARD: "x"}),
        "incomplete",
        "lacks 1 of its 2 files of weights: model-00002-of-00002.safetensors; download the rest",
    ),
    (
        _files(**{"config.json": "{}", SHARDS: INDEX.replace(SHARD, "../model.safetensors")}),
        "damaged",
        "names ../model.safetensors in its model.safetensors.index.json, which isn't a file of the folder",
    ),
    (
        _files(**{"config.json": "{}", SHARDS: INDEX.replace(SHARD, "/etc/model.safetensors")}),
        "damaged",
        "names /etc/model.safetensors in its",
    ),
    (_files(**{"config.json": "{}", SHARD: "x"}), "incomplete", "no model.safetensors.index.json"),
    (_files(**{"config.json": "{}", "model.safetensors": POINTER}), "git-lfs", "run git lfs pull"),
    (
        _files(**{"config.json": "{}", "model.safetensors": "x", "pytorch_model.bin": POINTER, "a.msgpack": POINTER}),
        "transformers",
        "is a model of transformers",
    ),
    (_files(**{"config.json": "{}", "model.safetensors": "x", "tokenizer.json": POINTER}), "git-lfs", "tokenizer.json"),
    (_files(**{"config.json": "{}", "pytorch_model.bin": POINTER}), "git-lfs", "run git lfs pull"),
    (
        _files(**{"config.json": "{}", "model.bin": "x", "vocabulary.json": "[]"}),
        "ctranslate2",
        "is a model of CTranslate2 (faster-whisper), which only runs; give the folder that it was converted from",
    ),
    (_files(**{"adapter_config.json": '{"base_model_name_or_path": "a/b"}'}), "peft", "without its base, a/b"),
    (_files(**{"config.json": "{}", "pytorch_model.bin": "x"}), "pickle", "pickles (pytorch_model.bin)"),
    (_files(**{"ggml-tiny.bin": b"lmgg1234"}), "ggml", "has ggml-tiny.bin, which is a model of whisper.cpp"),
    (_files(**{"m.gguf": b"GGUF1234"}), "gguf", "has m.gguf, which is a model of llama.cpp (GGUF)"),
    (_files(**{"m.gguf": b"GGUF1234", "n.gguf": b"GGUF"}), "several", "m.gguf, n.gguf; name one of these files"),
    (_files(**{"model.nemo": "x"}), "nemo", "is a model of NeMo"),
    (_files(**{"onnx/model.onnx": "x", "config.json": "{}"}), "onnx", "is a model of ONNX (onnx/model.onnx)"),
    (_files(**{"tf_model.h5": "x", "config.json": "{}"}), "tensorflow", "from_tf=True"),
    (_files(**{"flax_model.msgpack": "x", "config.json": "{}"}), "flax", "from_flax=True"),
    (
        _files(**{"0_Transformer/config.json": "{}", "0_Transformer/model.safetensors": "x", "modules.json": "[]"}),
        "nested",
        "0_Transformer in it has; give",
    ),
    (
        _files(
            **{f"snapshots/0123/{name}": "{}" for name in ("config.json", "model.safetensors")}, **{"refs/main": "0"}
        ),
        "nested",
        "snapshots/0123 in it has; give",
    ),
    (
        _files(**{f"models--a--b/snapshots/01/{name}": "{}" for name in ("config.json", "model.safetensors")}),
        "nested",
        "models--a--b/snapshots/01 in it has; give",
    ),
    (_files(**{"params.json": "{}", "consolidated.00.pth": "x"}), "original", "published for transformers"),
    (_files(**{"params.json": "{}", "consolidated.safetensors": "x"}), "original", "published for transformers"),
    (_zip("tiny.pt", b"..dims..n_mels..model_state_dict.."), "openai-whisper", "a Whisper as OpenAI saves it"),
    (_zip("tiny.pt", b"..weights.."), "pickle", "can run code"),
]


@pytest.mark.parametrize(("write", "name", "said"), CASES)
def test_what_a_folder_holds_is_said(write: Callable[[Path], None], name: str, said: str, tmp_path: Path):
    write(tmp_path)
    found = recognise(tmp_path)
    assert found.name == name
    assert said in found.describe(tmp_path)


def test_a_link_to_weights_that_have_gone_is_named(tmp_path: Path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    found = recognise(tmp_path)
    assert found.describe(tmp_path) == (
        f"{tmp_path} has model.safetensors, a link to a file that has gone; download it again"
    )


@pytest.mark.parametrize(
    ("name", "content", "form"),
    [
        ("m.gguf", b"GGUF", "gguf"),
        ("anything", b"GGUF", "gguf"),
        ("ggml.bin", b"lmgg", "ggml"),
        ("a.safetensors", POINTER.encode(), "git-lfs"),
        ("a.safetensors", b"\x08", "safetensors"),
        ("a.pth", b"\x80\x02", "pickle"),
        ("a.onnx", b"\x08", "onnx"),
        ("notes.txt", b"hello", "unknown"),
    ],
)
def test_what_a_file_is_comes_from_its_first_bytes(name: str, content: bytes, form: str, tmp_path: Path):
    (tmp_path / name).write_bytes(content)
    assert recognise(tmp_path / name).name == form


def test_the_parameters_of_a_gguf_are_counted_by_its_header(tmp_path: Path):
    gguf = pytest.importorskip("gguf")
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_token_list(["a", "b" * 70_000, "ç"])
    writer.add_array("some.lengths", [1, 2, 3])
    writer.add_bool("some.flag", True)
    writer.add_tensor("token_embd.weight", np.zeros((5, 32), np.float32))
    writer.add_tensor("blk.0.attn_q.weight", np.zeros((3, 32), np.float16))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()
    assert count_stored_parameters(tmp_path / "small.gguf") == 8 * 32
    assert count_stored_parameters(tmp_path) == 8 * 32, "by the name of its folder"
    whole = (tmp_path / "small.gguf").read_bytes()
    for length in (6, 40, 300, 70_200):
        (tmp_path / "small.gguf").write_bytes(whole[:length])
        assert count_stored_parameters(tmp_path / "small.gguf") == 0, "who loads it says what is wrong with it"


def test_weights_in_two_precisions_are_counted_and_read_once(tmp_path: Path):
    tensors = {"a": np.zeros((5, 3), np.float32)}
    save_file(tensors, tmp_path / "model.safetensors")
    save_file({"a": tensors["a"].astype(np.float16)}, tmp_path / "model.fp16.safetensors")
    (tmp_path / "config.json").write_text("{}")
    assert [path.name for path in list_weights(tmp_path)] == ["model.safetensors"]
    assert count_stored_parameters(tmp_path) == 15
