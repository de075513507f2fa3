"""A run that learns from another, on two processes: the weights of one process with the same microbatches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from commands import Commands

TRANSFORMER = {"architecture": "transformer", "d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
HIDDEN = {"student": "transformer.stack", "teacher": "transformer.stack"}
STUDENTS: dict[str, dict[str, Any]] = {
    "stored": {"temperature": 2.0},
    "computed": {"temperature": 2.0, "stored_gib": 0},
    "hidden": {"temperature": 2.0, "hidden": [HIDDEN]},
}


def write(folder: Path, name: str, model: dict[str, Any], **sections: Any) -> None:
    corpus = {"train": str(folder / "texts.json"), "train_fraction": 0.6, "valid_fraction": 0.2}
    values = {
        "task": "classification",
        "name": name,
        "model": model,
        "data": {"corpus": corpus, "tokenizer": {"type": "word", "min_frequency": 1}, "max_length": 20},
        "training": {
            "max_steps": 5,
            "batch_size": 4,
            "gradient_accumulation_steps": 3,
            "device": "cpu",
            "logging": {"tensorboard": False, "interval": 1},
        },
        **sections,
    }
    (folder / f"{name}.yml").write_text(json.dumps(values))


@pytest.fixture(scope="module")
def folder(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, a teacher in ``runs/teacher``, and the configurations of its students."""
    made = tmp_path_factory.mktemp("distillation")
    words = ("good", "fine", "bad", "poor")
    rows = [{"text": f"w{n % 9} {words[n % 4]} " + "w1 " * (n % 5), "label": n % 4 // 2} for n in range(180)]
    (made / "texts.json").write_text(json.dumps([row | {"text": f"{row['text']}v{n}"} for n, row in enumerate(rows)]))
    write(made, "teacher", TRANSFORMER)
    for name, distillation in STUDENTS.items():
        write(made, name, TRANSFORMER | {"d_model": 8}, distillation={"teacher": "runs/teacher", **distillation})
    ended = commands.start(["train", "teacher.yml"], made).wait()
    assert ended.status == 0, ended.errors
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDENTS)
def test_two_processes_learn_as_one(name: str, folder: Path, commands: Commands):
    for place, started in enumerate(
        (
            [commands.start(["train", f"{name}.yml", f"run_dir={name}-0"], folder)],
            commands.start_ranks(2, ["train", f"{name}.yml", f"run_dir={name}-1"], folder),
        )
    ):
        for command in started:
            ended = command.wait()
            assert ended.status == 0, ended.errors
        assert (folder / f"{name}-{place}" / "teacher" / "logits.f32").exists() == (name == "stored")
    ours, theirs = (load_file(folder / f"{name}-{n}/checkpoints/step-00000005/model.safetensors") for n in (0, 1))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=2e-6)
    one, two = (
        [json.loads(line) for line in (folder / f"{name}-{n}" / "metrics.jsonl").read_text().splitlines()]
        for n in (0, 1)
    )
    for first, second in zip(one, two, strict=True):
        if first["kind"] == "step":
            assert first["distillation"] == pytest.approx(second["distillation"], rel=1e-4)
