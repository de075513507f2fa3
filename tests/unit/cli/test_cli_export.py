"""``vaak export``: a trained run that transformers reads as Vaak does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_runs
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.runs.open_run import open_run
from vaak.tasks.lm.predict import generate


@pytest.mark.parametrize("overrides", [(), ("data.layout=stream", "data.corpus.document=file", "model.qk_norm=true")])
def test_transformers_gives_the_same_scores_and_ids(vaak, tiny_text: Path, tmp_path: Path, overrides):
    transformers = pytest.importorskip("transformers")
    run, folder = tmp_path / "run", tmp_path / "exported"
    tiny_runs.train(tiny_text, run, "training.max_steps=4", *overrides)
    code, out, err = vaak("export", run, "--format", "hf", "--output", folder, "--json")
    assert (code, json.loads(out), err) == (0, {"folder": str(folder)}, "")

    opened = open_run(run, device="cpu")
    ours = opened.task.tokenizer
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    lines = (tiny_text / "test.txt").read_text().splitlines()
    for text in [*lines, "\n".join(lines), "क्ष\u200dत्र 🙂  x", ""]:
        assert theirs(text)["input_ids"] == [ours.bos_id, *ours.encode(text)]
    stream = bool(overrides)
    if not stream:  # what the model reads in training, to the token
        read = opened.task.dataset("test")
        documents = read.windows.documents.tolist()
        for number, line in enumerate(lines):
            inputs = read.example(documents.index(number), None).inputs.tolist()
            assert theirs(line)["input_ids"][: len(inputs)] == inputs
    # The name of a special token in a text is text to us; to transformers it is when it is told so.
    assert theirs("क <mask> ख")["input_ids"][1:] != ours.encode("क <mask> ख")
    assert theirs("क <mask> ख", split_special_tokens=True)["input_ids"][1:] == ours.encode("क <mask> ख")
    assert (theirs.bos_token_id, theirs.eos_token_id) == (ours.bos_id, ours.bos_id if stream else ours.eos_id)

    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    ids = torch.tensor([theirs(" ".join(lines))["input_ids"][: opened.task.data.max_length]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, opened.model(ids), rtol=0, atol=1e-4)


def test_the_pipeline_of_transformers_continues_as_ours(vaak, tiny_run: Path, tmp_path: Path):
    transformers = pytest.importorskip("transformers")
    code, _, err = vaak("export", tiny_run, "--output", tmp_path / "out", "--license", "mit", "--language", "hi")
    assert code == 0, err
    card = pytest.importorskip("huggingface_hub").ModelCard.load(tmp_path / "out" / "README.md")
    assert (card.data.license, card.data.language, card.data.pipeline_tag) == ("mit", ["hi"], "text-generation")
    assert "| `val_loss` |" in card.text
    opened = open_run(tiny_run, device="cpu")
    tokenizer, prompt = opened.task.tokenizer, "वह"
    settings = SamplingSettings(max_new_tokens=9, temperature=0, stop_ids=(tokenizer.eos_id,))
    model: Any = opened.model
    expected = list(generate(model, [tokenizer.bos_id, *tokenizer.encode(prompt)], settings))
    write = transformers.pipeline("text-generation", str(tmp_path / "out"))
    (found,) = write(prompt, max_new_tokens=9, do_sample=False, return_full_text=False)
    assert found["generated_text"] == tokenizer.decode([token for token in expected if token != tokenizer.eos_id])


def test_where_it_is_written(vaak, tiny_run: Path, tmp_path: Path):
    before = tiny_runs.hashes(tiny_run)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    code, out, err = vaak("export", tiny_run, "--output", tmp_path / "full")
    assert (code, out) == (2, "")
    assert err == f"{tmp_path / 'full'} exists and is not an empty folder; choose another one.\n"
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    code, out, err = vaak("export", tiny_run, "--format", "peft")
    assert (code, out) == (2, "")
    reason = "this model has no low-rank adapters (model.lora)"
    assert err == f"--format peft: {reason}; use --format hf, onnx, ct2 or gguf\n"
    code, out, _ = vaak("export", tiny_run / "checkpoints" / "last", "--output", tmp_path / "new")
    assert code == 0
    assert out.endswith(f"to {tmp_path / 'new'}\n")
    assert tiny_runs.hashes(tiny_run) == before
