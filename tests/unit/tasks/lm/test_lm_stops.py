"""A base that stops at several tokens, as GLM's: a run on it, and each of its exports, stops at every one of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_runs
from tiny_decoder import write_folder
from vaak.runs.open_run import open_run
from vaak.runs.use import available_formats

ENDS = ("<|endoftext|>", "<|user|>", "<|observation|>")
ASKED, ANSWERS = "klm", "abc"
"""After a letter of the first, the base writes that of the second, and then the end in the same place."""


@pytest.fixture(scope="module")
def run(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with low-rank adapters on the base; it has learned next to nothing."""
    folder = tmp_path_factory.mktemp("several")
    write_base(folder / "base")
    adapters = "{rank: 2, targets: [query, value]}"
    tiny_runs.train(
        tiny_text, folder / "run", f"model={{pretrained: {folder / 'base'}, lora: {adapters}}}", "data.tokenizer={}",
        "data.token_dropout=0", "training.max_steps=1", "training.optimizer.lr=1e-9", "training.validation.interval=1",
        "training.checkpoint.interval=1",
    )  # fmt: skip
    return folder / "run"


def write_base(folder: Path) -> None:
    transformers = pytest.importorskip("transformers")
    auto: Any = transformers
    model = write_folder(folder, "llama", bos_token_id=0, eos_token_id=0)
    # llama.cpp requires a merge.
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["vocab"]["th"], content["model"]["merges"] = len(content["model"]["vocab"]), [["t", "h"]]
    (folder / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = auto.AutoTokenizer.from_pretrained(folder)
    tokenizer.add_special_tokens({"additional_special_tokens": [*ENDS[1:]]})
    tokenizer.save_pretrained(folder)
    ends = tokenizer.convert_tokens_to_ids([*ENDS])
    asked, answers = (tokenizer.convert_tokens_to_ids([*letters]) for letters in (ASKED, ANSWERS))
    with torch.no_grad():
        # What follows a token depends on it alone.
        for name, one in model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                one.zero_()
        reads, writes = model.get_input_embeddings().weight, model.get_output_embeddings().weight
        reads.zero_()
        writes.zero_()
        # After all other tokens, and so after an end that is passed over, comes a z.
        reads[:, 0], writes[tokenizer.convert_tokens_to_ids("z"), 0] = 1, 10
        pairs = [*zip(asked, answers, strict=True), *zip(answers, ends, strict=True)]
        for place, (before, after) in enumerate(pairs, 1):
            reads[before] = torch.eye(reads.shape[1])[place]
            writes[after, place] = 10
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)


def test_a_run_stops_where_its_base_does(run: Path, vaak: Any):
    for asked, answer in zip(ASKED, ANSWERS, strict=True):
        assert vaak("generate", run, asked, "--temperature", 0, "--max-new-tokens", 9)[:2] == (0, f"{asked}{answer}\n")


Write = Callable[[list[int]], list[int]]
"""Returns what is written after a prompt, up to 9 tokens, with the token that ended it where the tool gives it."""


def open_transformers(folder: Path) -> Write:
    auto: Any = pytest.importorskip("transformers").AutoModelForCausalLM
    return lambda prompt: _generate(auto.from_pretrained(folder), prompt)


def open_peft(folder: Path) -> Write:
    """peft leaves the settings in the adapter's folder to the caller."""
    model = pytest.importorskip("peft").AutoPeftModelForCausalLM.from_pretrained(folder)
    settings: Any = pytest.importorskip("transformers").GenerationConfig
    return lambda prompt: _generate(model, prompt, generation_config=settings.from_pretrained(folder))


def _generate(model: Any, prompt: list[int], **options: Any) -> list[int]:
    found: list[int] = model.generate(
        input_ids=torch.tensor([prompt]), max_new_tokens=9, do_sample=False, **options
    )[0, len(prompt) :].tolist()  # fmt: skip
    return found


def open_ct2(folder: Path) -> Write:
    """Its configuration has one end, so the others are given, as the export says."""
    generator = pytest.importorskip("ctranslate2").Generator(str(folder), device="cpu")
    tokenizer = _read_tokenizer(folder)
    options = {"max_length": 9, "include_prompt_in_result": False, "sampling_topk": 1, "return_end_token": True}

    def write(prompt: list[int]) -> list[int]:
        names = [tokenizer.id_to_token(one) for one in prompt]
        ends = [tokenizer.id_to_token(one) for one in _read_ends(folder)]
        (found,) = generator.generate_batch([names], end_token=ends, **options)
        return list(found.sequences_ids[0])

    return write


def open_onnx(folder: Path) -> Write:
    session = pytest.importorskip("onnxruntime").InferenceSession(str(folder / "model.onnx"))
    stops = [int(one) for one in session.get_modelmeta().custom_metadata_map["stop_ids"].split(",")]

    def write(prompt: list[int]) -> list[int]:
        written: list[int] = []
        while len(written) < 9 and (not written or written[-1] not in stops):
            logits = session.run(["logits"], {"inputs": np.array([[*prompt, *written]])})[0]
            written.append(int(logits[0, -1].argmax()))
        return written

    return write


def open_gguf(folder: Path) -> Write:
    """llama.cpp stops by the file's metadata alone, and doesn't give the end."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="llama-cpp-python isn't installed")
    model = llama_cpp.Llama(str(folder / "model.gguf"), n_ctx=64, verbose=False)
    tokenizer = _read_tokenizer(folder.parent / "base")

    def write(prompt: list[int]) -> list[int]:
        found = model(tokenizer.decode(prompt), max_tokens=9, temperature=0.0)["choices"][0]
        assert found["finish_reason"] == "stop"
        ids: list[int] = tokenizer.encode(found["text"], add_special_tokens=False).ids
        return ids

    return write


def _read_tokenizer(folder: Path) -> Any:
    return pytest.importorskip("tokenizers").Tokenizer.from_file(str(folder / "tokenizer.json"))


def _read_ends(folder: Path) -> list[int]:
    found: list[int] = json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    return found


OPENED = {
    "hf": open_transformers,
    "peft": open_peft,
    "ct2": open_ct2,
    "onnx": open_onnx,
    "gguf": open_gguf,
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize("kind", [*OPENED])
def test_every_export_stops_at_each_end_of_the_base(run: Path, vaak: Any, tmp_path: Path, kind: str):
    folder = tmp_path / "out"
    options = ("--quantization", "f32") if kind == "gguf" else ()
    code, _, err = vaak("export", run, "--format", kind, *options, "--output", folder)
    assert code == 0, err
    tokenizer = _read_tokenizer(run.parent / "base")
    if kind == "gguf":
        (tmp_path / "base").symlink_to(run.parent / "base")
        _check_metadata(folder / "model.gguf")
    else:
        assert {*_read_ends(folder)} == {*map(tokenizer.token_to_id, ENDS)}
    write = OPENED[kind](folder)
    for asked, answer, end in zip(ASKED, ANSWERS, ENDS, strict=True):
        written = write([tokenizer.token_to_id(asked)])
        # Some tools leave the end out.
        assert written[:1] == [tokenizer.token_to_id(answer)]
        assert written[1:] in ([], [tokenizer.token_to_id(end)])


def _check_metadata(file: Path) -> None:
    fields = pytest.importorskip("gguf").GGUFReader(file).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    named = [fields[f"tokenizer.ggml.{kind}_token_id"].contents() for kind in ("eos", "eot", "eom")]
    assert {tokens[one] for one in named} == {*ENDS}


def test_formats_of_the_table_are_all_that_a_language_model_has(run: Path):
    assert {*available_formats(open_run(run).task)} == {*OPENED, "dcp"}, "weights alone, which nothing writes with"
