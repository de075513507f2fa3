"""Stage ``gate``: a network learns which cluster an utterance is in, so that others can be assigned, too.

gate.safetensors    its weights (vaak.nn.lora_experts.Gate)        run/    its run
gate.json           accuracy, confusion, calibration
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.core.storage.files import read_json, sync_file, write_json
from vaak.pipeline.stage import Work
from vaak.tasks.asr.stages.embeddings import ABOUT
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import best_figures, training_of

if TYPE_CHECKING:
    import numpy as np

    from vaak.nn.lora_experts import Gate

WEIGHTS, RESULTS = "gate.safetensors", "gate.json"
NUM_BINS = 10


def gate(work: Work) -> dict[str, Any]:
    """The stage's body."""
    from safetensors.torch import save_file

    from vaak.runs.open_run import open_run
    from vaak.tasks.asr.stages.gate_task import GateTask

    options: MoeOptions = work.options
    places = {name: str(work.inputs[name]) for name in ("embeddings", "clusters")}
    values = {
        "task": f"{GateTask.__module__}:{GateTask.__name__}",
        "model": {"hidden": options.gate_width, "width": read_json(work.inputs["embeddings"] / ABOUT)["width"]},
        "data": {**places, "seed": options.seed},
        "training": training_of(options, "gate", "val_loss"),
    }
    outcome = work.train(values)
    opened = open_run(outcome.directory, device="cpu", trust_code=True)
    save_file(opened.model.state_dict(), work.folder / WEIGHTS)
    sync_file(work.folder / WEIGHTS)
    splits, model = opened.task.splits, opened.model
    found = {split: (probabilities(model, rows.vectors), rows.clusters) for split, rows in splits.items()}
    calibration = calibration_of(*found["valid"])
    best = best_figures(outcome.directory)
    about = {
        "accuracy": best["val_accuracy"],
        "loss": best["val_loss"],
        "trained_on": len(splits["train"].names),
        "held_out": 0 if splits["train"] is splits["valid"] else len(splits["valid"].names),
        "confusion": confusion(*found["valid"]),
        "confusion_train": confusion(*found["train"]),
        "calibration": calibration,
        "temperature": None,
        "best_step": best["step"],
        "steps": outcome.step,
    }
    write_json(work.folder / RESULTS, about)
    return {"accuracy": about["accuracy"], "calibration error": calibration["error"], "steps": outcome.step}


def load_gate(folder: Path) -> Gate:
    """The gate of a stage's folder."""
    from safetensors.torch import load_file

    from vaak.nn.lora_experts import Gate

    weights = load_file(folder / WEIGHTS)
    hidden, width = weights["layers.1.weight"].shape
    gate = Gate(width, len(weights["layers.3.bias"]), hidden)
    gate.load_state_dict(weights)
    return gate.eval()


def probabilities(gate: Any, vectors: np.ndarray) -> np.ndarray:
    """What a gate gives to the experts: ``(row, expert)`` of mean states ``(row, width)``."""
    import torch

    with torch.inference_mode():
        found: np.ndarray = gate(torch.from_numpy(vectors)).softmax(-1).numpy()
    return found


def confusion(chances: np.ndarray, clusters: np.ndarray) -> list[list[int]]:
    """How many rows of each cluster (row) get which expert (column), by the gate's ``chances`` ``(row, expert)``."""
    import numpy as np

    size = chances.shape[1]
    counts = np.bincount(clusters * size + chances.argmax(1), minlength=size * size)
    table: list[list[int]] = counts.reshape(size, size).tolist()
    return table


def calibration_of(chances: np.ndarray, clusters: np.ndarray) -> dict[str, Any]:
    """How far the gate's confidence in its choice is from its accuracy: the expected error, and ten bins.

    ``chances`` is ``(row, expert)``, ``clusters`` ``(row,)``. Source: Guo et al. 2017, "On Calibration of Modern Neural
    Networks".
    """
    import numpy as np

    confidence, right = chances.max(1).astype(np.float64), chances.argmax(1) == clusters
    places = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
    bins, error = [], 0.0
    for number in range(NUM_BINS):
        own = places == number
        count = int(own.sum())
        sure, accuracy = (float(confidence[own].mean()), float(right[own].mean())) if count else (None, None)
        edges = {"from": number / NUM_BINS, "to": (number + 1) / NUM_BINS}
        bins.append({**edges, "count": count, "confidence": sure, "accuracy": accuracy})
        if sure is not None and accuracy is not None:
            error += count / len(right) * abs(sure - accuracy)
    return {"error": error, "bins": bins}
