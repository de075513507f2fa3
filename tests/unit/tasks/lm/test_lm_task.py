"""The task as the engine and the commands use it: packing changes nothing; all tokenizers and texts train."""

from __future__ import annotations

import csv
import json
import math
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_runs
from networks import draw_weights
from vaak.config.load import load
from vaak.core.batch import Batch
from vaak.core.storage.files import read_json
from vaak.data.batching import make_planner
from vaak.engine.metrics_file import read_records
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.runs.open_run import open_run
from vaak.runs.start import train as train_run
from vaak.tasks.lm.model import AnyLanguageModel
from vaak.tasks.lm.predict import Reading, generate
from vaak.tasks.lm.task import LanguageModelTask

ORDINARY = ("model.dropout=0", "data.token_dropout=0")


def losses_and_gradients(
    task: LanguageModelTask, model: AnyLanguageModel, batches: list[Batch]
) -> tuple[float, list[torch.Tensor]]:
    """The loss per token over all batches, and its gradient."""
    model.zero_grad()
    tokens = sum(batch.totals()["token"] for batch in batches)
    total = 0.0
    for batch in batches:
        (term,) = task.losses(model, batch).values()
        assert term.per == "token"
        (term.total / tokens).backward()
        total += float(term.total.detach()) / tokens
    return total, [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("model_type", ["decoder", "encoder"])
def test_packed_padded_and_single_documents_are_one_arithmetic(tiny_text: Path, tmp_path: Path, model_type: str):
    task = tiny_runs.prepared_task(
        tiny_text, tmp_path / "run", *ORDINARY, f"model.model_type={model_type}", "training.batching=packed"
    )
    model = task.model().double()
    draw_weights(model, 0.2)
    dataset, training = task.dataset("train"), task.experiment.training
    packed = make_planner(
        training.batching,
        lengths=dataset.lengths,
        strata=None,
        batch_size=4,
        row_capacity=dataset.row_capacity,
        seed=0,
    ).plan(0)
    rows = packed.microbatch(0)
    assert max(map(len, rows)) > 1
    examples: list[list[Any]] = [
        [dataset.example(index, np.random.default_rng(index)) for index in row] for row in rows
    ]
    single = [dataset.collate([[example]]) for row in examples for example in row]
    ways = {
        "packed": [dataset.collate(examples)],
        "padded": [dataset.collate([[example] for row in examples for example in row])],
        "split": dataset.collate(examples).split(3),
    }
    loss, gradients = losses_and_gradients(task, model, single)
    for name, batches in ways.items():
        other_loss, other_gradients = losses_and_gradients(task, model, batches)
        assert other_loss == pytest.approx(loss, rel=1e-12), name
        for one, other in zip(gradients, other_gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_packing_trains_an_epoch_in_fewer_steps(tiny_text: Path, tmp_path: Path):
    epoch = ("training.max_steps=null", "training.epochs=1")
    outcome = tiny_runs.train(tiny_text, tmp_path / "run", "training.batching=packed", *epoch)
    assert outcome.total_steps < 0.6 * tiny_runs.SIZES["train"] / 8
    assert outcome.metrics["val_loss"] < 6


@pytest.mark.parametrize(
    "tokenizer",
    [
        "unigram",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("byte_level", "bpe", "character", "wordpiece")),
    ],
)
def test_every_tokenizer_trains_and_streams_what_it_decodes(tiny_text: Path, tmp_path: Path, tokenizer: str):
    run = tmp_path / "run"
    outcome = tiny_runs.train(tiny_text, run, f"data.tokenizer.type={tokenizer}", "training.max_steps=3")
    assert math.isfinite(outcome.metrics["val_bits_per_byte"])
    trip = read_json(run / "prepared" / "prepared.json")["round_trip"]
    assert trip["exact"] == trip["documents"]
    said = (run / "train.log").read_text()
    assert f"tokenizer: {trip['exact']} of {trip['documents']} documents are reproduced exactly" in said

    loaded = tiny_runs.loaded(tiny_text, run, f"data.tokenizer.type={tokenizer}")
    task = LanguageModelTask(loaded.experiment, run, loaded.folder)
    model = task.model().eval()  # untrained: it says every kind of token, halves of characters too
    prompt = "लड़की ने"
    for seed in range(4):
        settings = task.sampling(max_new_tokens=40, temperature=1.5, seed=seed)
        pieces = list(task.stream(model, prompt, settings))
        assert [piece for piece in pieces[:-1] if piece.endswith("\ufffd")] == []
        drawn = drawn_tokens(task, model, prompt, settings)
        asked = task.tokenizer.encode(unicodedata.normalize("NFC", prompt))
        whole, begun = task.tokenizer.decode([*asked, *drawn]), task.tokenizer.decode(asked)
        assert begun + "".join(pieces) == whole


def drawn_tokens(
    task: LanguageModelTask, model: AnyLanguageModel, prompt: str, settings: SamplingSettings
) -> list[int]:
    ids = [task.tokenizer.bos_id, *task.tokenizer.encode(unicodedata.normalize("NFC", prompt))]
    return list(generate(model, ids, settings, Reading(task.data.max_length)))


def test_wordpiece_reports_what_it_loses(tmp_path: Path):
    tiny_runs.write_corpus(tmp_path)
    with open(tmp_path / "test.txt", "a") as file:
        file.write("漢字\n")
    run = tmp_path / "run"
    tiny_runs.train(tmp_path, run, "data.tokenizer.type=wordpiece", "training.max_steps=1")
    lines = [line for line in (run / "train.log").read_text().splitlines() if "are reproduced exactly" in line]
    assert len(lines) == 1
    assert "WARNING tokenizer: 40 of 41 documents" in lines[0]


def write_table(folder: Path, kind: str, texts: dict[str, list[str]]) -> str:
    """The texts as files or a dataset of a kind; gives the ``corpus:`` section that names them."""
    if kind == "huggingface":
        datasets = pytest.importorskip("datasets")
        splits = {name: datasets.Dataset.from_dict({"body": lines}) for name, lines in texts.items()}
        splits["validation"] = splits.pop("valid")
        datasets.DatasetDict(splits).save_to_disk(str(folder / "saved"))
        return f"{{type: huggingface, name: '{folder / 'saved'}', text_column: body}}"
    for name, lines in texts.items():
        path = folder / f"{name}.{kind}"
        if kind == "parquet":
            parquet = pytest.importorskip("pyarrow.parquet")
            parquet.write_table(pytest.importorskip("pyarrow").table({"body": lines}), path)
            continue
        with open(path, "w", newline="") as file:
            if kind == "csv":
                csv.writer(file).writerows([["id", "body"], *([str(n), line] for n, line in enumerate(lines))])
            else:
                file.writelines(json.dumps({"body": line}) + "\n" for line in lines)
    patterns = ", ".join(f"{name}: ['{folder / name}.{kind}']" for name in texts)
    return f"{{type: {kind.removesuffix('l')}, text_column: body, {patterns}}}"


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet", "huggingface"])
def test_every_source_of_text_gives_the_same_run(tiny_text: Path, tmp_path: Path, kind: str, tiny_run: Path):
    texts = {name: (tiny_text / f"{name}.txt").read_text().splitlines() for name in tiny_runs.SIZES}
    if kind == "jsonl":
        assert write_table(tmp_path, kind, texts).startswith("{type: json,")
    corpus = write_table(tmp_path, kind, texts)
    config = tmp_path / "config.yml"
    lines = [line for line in (tiny_text / "tiny.yml").read_text().splitlines() if "corpus:" not in line]
    lines.insert(lines.index("data:") + 1, f"  corpus: {corpus}")
    config.write_text("\n".join(lines))
    run = tmp_path / "run"
    train_run(load([config], [f"run_dir={run}", "training.max_steps=4"]))
    first = [record for record in read_records(tiny_run / "metrics.jsonl") if record["step"] <= 4]
    again = read_records(run / "metrics.jsonl")
    assert [record.get("loss") for record in again if record["kind"] == "step"] == [
        record.get("loss") for record in first if record["kind"] == "step"
    ]
    assert len([record for record in again if record["kind"] == "step"]) == 4


@pytest.mark.usefixtures("samples")
def test_a_stream_trains_and_its_sample_is_text(tiny_text: Path, tmp_path: Path):
    outcome = tiny_runs.train(
        tiny_text, tmp_path / "run", "data.layout=stream", "data.corpus.document=file", "training.max_steps=60"
    )
    assert outcome.reason == "finished"
    assert len(outcome.samples) == 5
    opened = open_run(tmp_path / "run" / "checkpoints" / "last", device="cpu")
    assert isinstance(opened.model, AnyLanguageModel)
    for seed, line in enumerate(outcome.samples):
        settings = opened.task.sampling(max_new_tokens=40, temperature=0.8, seed=seed)
        drawn = drawn_tokens(opened.task, opened.model, "", settings)
        assert line == opened.task.tokenizer.decode(drawn).split("\n")[0]
    letters = "".join(outcome.samples).replace(" ", "")
    assert sum("\u0900" <= letter <= "\u097f" for letter in letters) > 0.8 * len(letters)


@pytest.mark.usefixtures("samples")
def test_an_encoder_trains_and_has_nothing_to_show(tiny_text: Path, tmp_path: Path):
    outcome = tiny_runs.train(tiny_text, tmp_path / "run", "model.model_type=encoder", "training.max_steps=4")
    assert outcome.samples == []
    assert "val_bits_per_byte" not in outcome.metrics


def test_predict_continues_each_text(tiny_text: Path, tmp_path: Path):
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "run")
    model = task.model().eval()
    texts = list(task.predict(model, ["वह", ""], task.sampling(max_new_tokens=5, temperature=0)))
    assert texts[0].startswith("वह")
    assert texts == list(task.predict(model, ["वह", ""], task.sampling(max_new_tokens=5, temperature=0)))
