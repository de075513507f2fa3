"""Stages that train the mixture: ``gate``, then ``experts``, then ``joint``, which trains both together.

gate     learns which cluster an utterance is in, so that others can be assigned, too
         gate.safetensors (vaak.nn.lora_experts.Gate)    run/    gate.json: accuracy, confusion, calibration
experts  a low-rank adapter of the base for each cluster, trained on its own utterances: those that were clustered, and
         those that the gate assigns by their embeddings (rows/: embeddings that the stage of embeddings doesn't have)
         expert-0/ … a run each, its utterances in lists/    adapters/0/ … for peft    initial/: what joint begins with
         experts.json: what each was trained on, and its error rates
joint    trains both on all data, each expert on the utterances routed to it
         run/, an ordinary run of the task asr: vaak transcribe RUN, vaak export RUN --expert 3
         joint.json: metrics of the best checkpoint, how the gate routes, how often to an utterance's cluster
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.core.storage.files import read_json, sync_file, write_json, write_text
from vaak.pipeline.rows import PipelineRowStore, Rows, completed, make_rows
from vaak.pipeline.stage import StageWork
from vaak.tasks.asr.stages.clusters import Clusters, few_utterances
from vaak.tasks.asr.stages.embeddings import EMBEDDINGS_FILE, ROWS, Embedder, list_names, means, readable_names
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import (
    Values,
    best_metrics,
    get_metric,
    make_data_section,
    make_model_section,
    make_training_section,
    warn_fallbacks,
)

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from vaak.nn.lora_experts import Gate

log = logging.getLogger("vaak")

GATE_WEIGHTS, GATE_RESULTS = "gate.safetensors", "gate.json"
NUM_BINS = 10


def gate(work: StageWork) -> dict[str, Any]:
    """Train a gate on the clusters of embeddings; write its weights and results."""
    from safetensors.torch import save_file

    from vaak.runs.open_run import open_run
    from vaak.tasks.asr.stages.gate_task import GateTask

    options: MoeOptions = work.options
    places = {name: str(work.inputs[name]) for name in ("embeddings", "clusters")}
    values = {
        "task": f"{GateTask.__module__}:{GateTask.__name__}",
        "model": {
            "hidden": options.gate_width,
            "width": read_json(work.inputs["embeddings"] / EMBEDDINGS_FILE)["width"],
        },
        "data": {**places, "seed": options.seed},
        "training": make_training_section(options, "gate", "val_loss"),
    }
    outcome = work.train(values)
    opened = open_run(outcome.directory, device="cpu")
    save_file(opened.model.state_dict(), work.folder / GATE_WEIGHTS)
    sync_file(work.folder / GATE_WEIGHTS)
    splits, model = opened.task.splits, opened.model
    found = {split: (probabilities(model, rows.vectors), rows.clusters) for split, rows in splits.items()}
    calibration = measure_calibration(*found["valid"])
    best = best_metrics(outcome.directory)
    about = {
        "accuracy": best["val_accuracy"],
        "loss": best["val_loss"],
        "trained_on": len(splits["train"].names),
        # Where clusters are too small for some to be held out, both are the same.
        "held_out": 0 if splits["train"] is splits["valid"] else len(splits["valid"].names),
        "confusion": confusion(*found["valid"]),
        "confusion_train": confusion(*found["train"]),
        "calibration": calibration,
        "temperature": None,
        "best_step": best["step"],
        "steps": outcome.step,
    }
    write_json(work.folder / GATE_RESULTS, about)
    return {"accuracy": about["accuracy"], "calibration error": calibration["error"], "steps": outcome.step}


def load_gate(folder: Path) -> Gate:
    """The gate of a stage's folder."""
    from safetensors.torch import load_file

    from vaak.nn.lora_experts import Gate

    weights = load_file(folder / GATE_WEIGHTS)
    hidden, width = weights["layers.1.weight"].shape
    gate = Gate(width, len(weights["layers.3.bias"]), hidden)
    gate.load_state_dict(weights)
    return gate.eval()


def probabilities(gate: Any, vectors: np.ndarray) -> np.ndarray:
    """Return a gate's probabilities of the experts ``(row, expert)``, of mean states ``(row, width)``."""
    import torch

    with torch.inference_mode():
        found: np.ndarray = gate(torch.from_numpy(vectors)).softmax(-1).numpy()
    return found


def confusion(chances: np.ndarray, clusters: np.ndarray) -> list[list[int]]:
    """Return how many rows of each cluster (row) get which expert (column), by ``chances`` ``(row, expert)``."""
    import numpy as np

    size = chances.shape[1]
    counts = np.bincount(clusters * size + chances.argmax(1), minlength=size * size)
    table: list[list[int]] = counts.reshape(size, size).tolist()
    return table


def measure_calibration(chances: np.ndarray, clusters: np.ndarray) -> dict[str, Any]:
    """Return how far the gate's confidence in its choice is from its accuracy: the expected error, and ten bins.

    ``chances`` is ``(row, expert)``, ``clusters`` ``(row,)``. Source: Guo et al. 2017, "On Calibration of Modern Neural
    Networks".
    """
    import numpy as np

    confidence, right = chances.max(1).astype(np.float64), chances.argmax(1) == clusters
    # A confidence of exactly 1 belongs to the last bin.
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


EXPERTS_RESULTS, INITIAL, ADAPTERS = "experts.json", "initial", "adapters"
OF_PEFT = ("adapter_config.json", "adapter_model.safetensors")
LORA = {"lora_A.default.weight": "lora_a", "lora_B.default.weight": "lora_b"}
"""Tensors of peft's layers, and those of a mixture's."""


def experts(work: StageWork) -> dict[str, Any]:
    """Train an expert on each cluster; write their adapters and the mixture that joint training begins with."""
    clusters = Clusters.read(work.inputs["clusters"])
    assigned = {split: assign(work, split, clusters) for split in ("train", "valid")}
    sizes = [len(assigned["train"][expert]) for expert in range(clusters.num_clusters)]
    log.info("utterances of each expert: %s", ", ".join(map(str, sizes)))
    if work.options.mode == "full" and (too_few := few_utterances(sizes)):
        log.warning("%s", too_few)
    about: list[Values] = []
    tensors: dict[int, dict[str, Tensor]] = {}
    for expert in range(clusters.num_clusters):
        lists = {split: of_all[expert] for split, of_all in assigned.items()}
        own: Values = {"expert": expert, **{split: len(lines) for split, lines in lists.items()}}
        if not lists["train"]:
            log.warning("expert %d has no utterances: it begins joint training without a change", expert)
            about.append(
                {**own, "validated_on": None, "wer": None, "cer": None, "loss": None, "groups": {}, "steps": 0}
            )
            continue
        own["validated_on"] = "own" if lists["valid"] else "all"
        if not lists["valid"]:
            log.warning("expert %d has no validation utterances: it is validated on all", expert)
            lists["valid"] = [line for lines in assigned["valid"].values() for line in lines]
        log.info("expert %d: %d utterances", expert, len(lists["train"]))
        found, tensors[expert] = train_expert(work, expert, lists)
        about.append({**own, **found})
    write_json(work.folder / EXPERTS_RESULTS, {"experts": about})
    write_initial(work, tensors, clusters.num_clusters)
    # Weighted by utterances, since clusters differ in size; an expert that wasn't trained has no rate.
    trained = [one for one in about if one["wer"] is not None]
    utterances = sum(one["valid"] for one in trained)
    mean = sum(one["wer"] * one["valid"] for one in trained) / utterances if utterances else None
    return {"experts": len(about), "trained": len(trained), "wer": mean}


def assign(work: StageWork, split: str, clusters: Clusters) -> dict[int, list[str]]:
    """The utterances of a split by expert, as lines of Lhotse's manifests."""
    embedder = Embedder.of(work, "experts", split)
    utterances = embedder.task().prepared.utterances(split)
    names, folder = list_names(utterances), work.inputs["embeddings"]
    width, store = read_json(folder / EMBEDDINGS_FILE)["width"], PipelineRowStore(folder / ROWS)
    known = {name for name in names if split == "train" and name in clusters.labels}
    cuts = (utterances.cuts[int(place)].to_dict() for place in utterances.used)
    lines = {name: json.dumps(cut, ensure_ascii=False) + "\n" for name, cut in zip(names, cuts, strict=True)}
    names = readable_names(names, embedder, work, work.folder / f"left_out-{split}.jsonl", known)
    there = [name for name in names if name in known]
    rows = [*completed(store, there, work.folder / "missing", embedder, work.jobs).stores]
    rest = sorted(set(names) - known)
    if rest:
        mean = replace(embedder, pooling="mean")
        rows.insert(0, make_rows(work.folder / ROWS / split, rest, mean, shape=(width,), jobs=work.jobs))
    chances = probabilities(load_gate(work.inputs["gate"]), means(Rows(*rows).row, names, width))
    # What was clustered stays in its cluster; the gate decides on the rest only.
    chosen = dict(zip(names, chances.argmax(1).tolist(), strict=True)) | {name: clusters.labels[name] for name in known}
    found = defaultdict[int, list[str]](list)
    for name in names:
        found[chosen[name]].append(lines[name])
    return found


def train_expert(work: StageWork, expert: int, lists: dict[str, list[str]]) -> tuple[Values, dict[str, Tensor]]:
    """Train an expert on the utterances of ``lists``; its metrics, and its tensors under their names in a mixture."""
    from vaak.engine.checkpoint.bundled_files import share_between_runs
    from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint

    options: MoeOptions = work.options
    paths = {split: work.folder / "lists" / f"expert-{expert}-{split}.jsonl" for split in lists}
    for split, path in paths.items():
        path.parent.mkdir(exist_ok=True)
        lines = "".join(lists[split])
        # An unchanged list isn't written again: the expert's run would report that its data have changed.
        if not path.exists() or path.read_bytes() != lines.encode():
            write_text(path, lines)
    values = make_data_section(options, "experts")
    # The lists are the stage's share of the data already: taking the share again would leave less.
    values["data"] |= {"percent": 100.0, "max_samples": None, "max_valid_samples": None}
    values["datasets"] = [
        {"name": f"expert-{expert}", "type": "cuts", **{one: [str(path)] for one, path in paths.items()}}
    ]
    values["model"] = {**make_model_section(work), "lora": options.lora.model_dump(mode="json")}
    values["training"] = make_training_section(options, "experts", get_metric(options))
    outcome = work.train(values, options.expert_config, name=f"expert-{expert}")
    # Each run keeps the base: on disk it is there once.
    share_between_runs(work.folder / f"expert-{one}" for one in range(expert + 1))
    export_adapter(work, outcome.directory, work.folder / ADAPTERS / str(expert))
    best = best_metrics(outcome.directory)
    metrics = {name: best[f"val_{name}"] for name in ("wer", "cer", "loss")}
    groups = {name.removeprefix("val_wer/"): value for name, value in best.items() if name.startswith("val_wer/")}
    weights = load_checkpoint(resolve_checkpoint(outcome.directory), weights_only=True).model
    tensors = {
        name.removesuffix(theirs) + ours: weight
        for name, weight in weights.items()
        for theirs, ours in LORA.items()
        if name.endswith(theirs)
    }
    return {**metrics, "groups": groups, "best_step": best["step"], "steps": outcome.step}, tensors


def export_adapter(work: StageWork, run: Path, folder: Path) -> None:
    """Write the adapter of a run for peft; a base that was made here is named without the place of this pipeline."""
    from vaak.runs.open_run import open_run

    if all((folder / name).is_file() for name in OF_PEFT):
        return
    shutil.rmtree(folder, ignore_errors=True)
    opened: Any = open_run(run, device="cpu")
    opened.task.export_peft(opened.model, folder, base="../../../base/whisper" if "base" in work.inputs else None)


def write_initial(work: StageWork, tensors: dict[int, dict[str, Tensor]], num_experts: int) -> None:
    """Write a checkpoint of the gate and of all experts; one that wasn't trained changes nothing yet."""
    import torch

    from vaak.engine.checkpoint.files import save_checkpoint
    from vaak.engine.snapshot import Snapshot

    some = next(iter(tensors.values()))
    none = {name: torch.zeros_like(one) if name.endswith("lora_b") else one for name, one in some.items()}
    weights = {name: torch.stack([tensors.get(expert, none)[name] for expert in range(num_experts)]) for name in some}
    gate = {f"gate.{name}": one for name, one in load_gate(work.inputs["gate"]).state_dict().items()}
    save_checkpoint(work.folder / INITIAL, Snapshot(0, {**weights, **gate}, state={"position": {"step": 0}}))


JOINT_RESULTS = "joint.json"
NOT_PRETRAINED = r"^(?!gate\.layers\.|.*\.lora_[ab]$)"
"""Parameters that aren't in what the stage of experts leaves: the base's, and the bias that balances the choice."""


def joint_values(work: StageWork) -> Values:
    """The run's configuration of stage ``joint``."""
    options: MoeOptions = work.options
    values, pretrained = make_data_section(options, "joint"), "experts" in work.inputs
    num_experts = Clusters.read(work.inputs["clusters"]).num_clusters if pretrained else options.experts
    # Clustering may have found fewer clusters than experts were asked for.
    gate = {"num_experts": num_experts, "top_k": min(options.top_k, num_experts), "gate_width": options.gate_width}
    lora, bias = options.lora.model_dump(mode="json"), {"balancing_bias": options.balancing_bias}
    values["model"] = {**make_model_section(work), "experts": {**lora, **gate, **bias}}
    training = make_training_section(options, "joint", get_metric(options))
    if options.gate_scale != 1:
        training["optimizer"]["groups"] = [{"match": r"^gate\.", "lr_scale": options.gate_scale}]
    if options.load_balancing:
        training["loss"] = {"auxiliary": {"load_balancing": options.load_balancing}}
    if pretrained:
        training["checkpoint"] |= {"init_from": str(work.inputs["experts"] / INITIAL), "init_except": [NOT_PRETRAINED]}
    return {**values, "training": training}


def joint(work: StageWork) -> dict[str, Any]:
    """Train gate and experts together; write the results."""
    warn_fallbacks(work.options)
    outcome = work.train(joint_values(work), work.options.asr_config)
    best = best_metrics(outcome.directory)
    uses = {name: value for name, value in best.items() if name.startswith("val_expert_use/")}
    about = {
        "step": best.pop("step"),
        "steps": outcome.step,
        "figures": best,
        "entropy": best["val_routing_entropy"],
        "use": [uses[f"val_expert_use/{expert}"] for expert in range(len(uses))],
        "dead_experts": int(best["val_dead_experts"]),
        "agreement": agreement(work, outcome.directory) if "clusters" in work.inputs else None,
    }
    write_json(work.folder / JOINT_RESULTS, about)
    shown = {name: about[name] for name in ("entropy", "dead_experts", "agreement")}
    return {"wer": best["val_wer"], **shown, "steps": outcome.step}


def agreement(work: StageWork, run: Path) -> float:
    """The share of embedded utterances that the trained gate routes to the expert of their cluster."""
    from vaak.runs.open_run import open_run

    folder, clusters = work.inputs["embeddings"], Clusters.read(work.inputs["clusters"])
    store = PipelineRowStore(folder / ROWS)
    gate: Any = open_run(run, device="cpu").model.gate
    chances = probabilities(gate, means(store.row, store.keys, read_json(folder / EMBEDDINGS_FILE)["width"]))
    if gate.bias is not None:
        chances = chances + gate.bias.numpy()
    chosen = chances.argmax(1).tolist()
    same = [clusters.labels[name] == expert for name, expert in zip(store.keys, chosen, strict=True)]
    return sum(map(int, same)) / len(same)
