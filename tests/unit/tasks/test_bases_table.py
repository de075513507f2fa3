"""The table of docs/pretrained.md that says which pretrained bases were tried, in and out: made here, by trying."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import pipeline

import tiny_bases
import tiny_listener
import tiny_speech_models
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.runs.evaluate import evaluate_run
from vaak.runs.open_run import OpenedRun, open_run
from vaak.runs.start import train
from vaak.tasks.asr.bases import CTC_BASES, DECODER_BASES

PAGE = Path(__file__).parents[3] / "docs" / "pretrained.md"
HEAD = "| base | task | whole | adapters | resume | evaluation | `hf` | `peft` |"
TEXTS = ["ba do mi", "su", "do do do ba su"]
TITLES = {"modernbert": "ModernBERT", "mmbert": "mmBERT", "xlm-roberta": "XLM-R, with `pooling: first`"}


def list_bases() -> dict[str, tuple[str, str, Callable[[Path], Path]]]:
    """Every base by its name in the table: the task, or its architecture, the kind, and what writes a small one."""
    found = {kind.title: ("ctc", name, tiny_bases.CTC[name]) for name, kind in CTC_BASES.items()}
    found |= {kind.title: ("decoder", name, tiny_bases.DECODER[name]) for name, kind in DECODER_BASES.items()}
    return found | {TITLES[name]: ("classification", name, write) for name, write in tiny_bases.ENCODERS.items()}


def read_rows() -> dict[str, str]:
    """The lines of the page's table by their first cell."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(HEAD) + 2
    end = next(number for number in range(begin, len(lines)) if not lines[number].startswith("|"))
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines[begin:end]}


def test_the_table_has_a_row_for_every_base_that_is_read():
    assert [*read_rows()] == [*list_bases()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Utterances of tones, and labelled texts."""
    folder = tmp_path_factory.mktemp("tones")
    tiny_listener.write_listener(folder)
    texts = [f"ba {('do', 'mi')[n % 2]} {'su ' * (n % 5)}{n % 3 * 'do '}" for n in range(60)]
    rows = [{"text": text, "label": "yn"[number % 2]} for number, text in enumerate(texts)]
    (folder / "texts.json").write_text(json.dumps(rows))
    return folder


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Support for mismatched")  # of transformers' WavLM
@pytest.mark.parametrize("title", [*list_bases()])
def test_a_row_is_what_happens_when_it_is_tried(corpus: Path, tmp_path: Path, title: str):
    task, _, write = list_bases()[title]
    tried = [title, "`classification`" if task == "classification" else f"`asr`, `architecture: {task}`"]
    base = write(tmp_path / "base")
    run_training(corpus, tmp_path, "whole", make_model(task, base))
    tried.append("yes")
    adapted = make_model(task, base) | {"lora": {"rank": 2}}
    opened = run_training(corpus, tmp_path, "adapted", adapted)
    tried += ["yes", say(is_resumed_to_the_same_bits(corpus, tmp_path, adapted, opened))]
    evaluate_run(tmp_path / "adapted", [], [], ["test"], "cpu")
    tried.append("yes")
    tried += [say(export_hf(opened, tmp_path / "hf")), try_export(opened, "export_peft", tmp_path / "peft")]
    row = "| " + " | ".join(tried) + " |"
    assert read_rows()[title] == row, f"docs/pretrained.md should have: {row}"


def say(is_so: bool) -> str:
    return "yes" if is_so else "no"


def make_model(task: str, base: Path) -> dict[str, Any]:
    if task == "classification":
        return {"pretrained_model": str(base), "pooling": "first"}
    return {"architecture": task, "base": str(base)}


def run_training(corpus: Path, folder: Path, name: str, model: dict[str, Any], *further: str) -> OpenedRun:
    """Train four steps, two of them before a checkpoint, and open the run."""
    options = ["training.max_steps=4", "training.checkpoint.interval=2", *further]
    if model.get("architecture") == "decoder":
        # What is drawn seldom ends a text.
        options.append("data.decoding.max_new_tokens=20")
    if "architecture" in model:
        tiny_listener.train(corpus, folder / name, *options, model=model)
    else:
        file = {"train": str(corpus / "texts.json"), "train_fraction": 0.6, "valid_fraction": 0.2}
        data = {"corpus": {**file, "deduplicate": False}, "max_length": 16}
        logging = {"tensorboard": False, "progress_bar": False}
        training = {"batch_size": 8, "device": "cpu", "optimizer": {"lr": 1e-2}, "logging": logging}
        about = {"task": "classification", "name": name, "model": model, "data": data, "training": training}
        (folder / f"{name}.yml").write_text(yaml_text(about))
        train(load([folder / f"{name}.yml"], [f"run_dir={folder / name}", *options]))
    return open_run(folder / name, device="cpu")


def is_resumed_to_the_same_bits(corpus: Path, folder: Path, model: dict[str, Any], whole: OpenedRun) -> bool:
    shutil.rmtree(folder / "adapted" / "checkpoints" / "step-00000004")
    again = run_training(corpus, folder, "adapted", model, "training.checkpoint.resume=auto").model.state_dict()
    return all(torch.equal(one, again[name]) for name, one in whole.model.state_dict().items())


def export_hf(opened: OpenedRun, folder: Path) -> bool:
    """Whether transformers' pipeline gives the same as the run with what is exported."""
    task: Any = opened.task
    task.export_hf(opened.model, folder)
    if opened.experiment.task == "classification":
        classify: Any = pipeline("text-classification", str(folder), top_k=None)
        found = [{one["label"]: one["score"] for one in row} for row in classify(TEXTS)]
        ours = [one.probabilities["label"] for one in task.predict(opened.model, TEXTS)]
        return all(one == pytest.approx(other, abs=1e-5) for one, other in zip(found, ours, strict=True))
    samples = np.random.default_rng(0).normal(scale=0.1, size=13120).astype(np.float32)
    ours = task.transcriber(opened.model).texts([task.features(samples)])[0]
    if getattr(task, "is_listener", False):
        return bool(tiny_speech_models.transcribe(folder, samples) == ours)
    recognise: Any = pipeline("automatic-speech-recognition", str(folder))
    return bool(recognise({"raw": samples, "sampling_rate": 16000})["text"].strip() == ours)


def try_export(opened: OpenedRun, name: str, folder: Path) -> str:
    """Say whether an export is written, or refused."""
    task: Any = opened.task
    if name.removeprefix("export_") in task.refused_exports():
        return "no"
    try:
        getattr(task, name)(opened.model, folder)
    except UserError:
        return "no"
    return "yes"
