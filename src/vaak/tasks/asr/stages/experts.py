"""Stage ``experts``: a low-rank adapter of the base for each cluster, trained on its own utterances.

An utterance is its cluster's where the stage of clusters has seen it; the gate assigns the others, by their embeddings.

expert-0/ …     a run for each, with its utterances in lists/        rows/     embeddings that stage 1 doesn't have
adapters/0/ …   for peft                                             initial/  what joint training begins with
experts.json    what each was trained on, and its error rates
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.core.storage.files import read_json, write_json, write_text
from vaak.pipeline.rows import Rows, RowStore, completed, make_rows
from vaak.pipeline.stage import Work
from vaak.tasks.asr.clustering.files import Clusters
from vaak.tasks.asr.stages.clusters import few_utterances
from vaak.tasks.asr.stages.embeddings import ABOUT, ROWS, Embedder, means, names_of, readable
from vaak.tasks.asr.stages.gate import load_gate, probabilities
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import Values, base_for, base_of, best_figures, data_of, metric_of, training_of

if TYPE_CHECKING:
    from torch import Tensor

    from vaak.tasks.asr.utterances import Utterances

log = logging.getLogger("vaak")

RESULTS, INITIAL, ADAPTERS = "experts.json", "initial", "adapters"
OF_PEFT = ("adapter_config.json", "adapter_model.safetensors")
LORA = {"lora_A.default.weight": "lora_a", "lora_B.default.weight": "lora_b"}
"""Tensors of peft's layers, and those of a mixture's."""


def experts(work: Work) -> dict[str, Any]:
    """The stage's body."""
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
    write_json(work.folder / RESULTS, {"experts": about})
    write_initial(work, tensors, clusters.num_clusters)
    trained = [one for one in about if one["wer"] is not None]
    utterances = sum(one["valid"] for one in trained)
    mean = sum(one["wer"] * one["valid"] for one in trained) / utterances if utterances else None
    return {"experts": len(about), "trained": len(trained), "wer": mean}


def assign(work: Work, split: str, clusters: Clusters) -> dict[int, list[str]]:
    """The utterances of a split by expert, as lines of Lhotse's manifests."""
    embedder = Embedder.of(work, "experts", split)
    utterances = embedder.task().prepared.utterances(split)
    names, folder = names_of(utterances), work.inputs["embeddings"]
    width, store = read_json(folder / ABOUT)["width"], RowStore(folder / ROWS)
    known = {name for name in names if split == "train" and name in clusters.labels}
    lines = dict(zip(names, lines_of(utterances), strict=True))
    names = readable(names, embedder, work, work.folder / f"left_out-{split}.jsonl", known)
    there = [name for name in names if name in known]
    rows = [*completed(store, there, work.folder / "missing", embedder, work.jobs).stores]
    rest = sorted(set(names) - known)
    if rest:
        mean = replace(embedder, pooling="mean")
        rows.insert(0, make_rows(work.folder / ROWS / split, rest, mean, shape=(width,), jobs=work.jobs))
    chances = probabilities(load_gate(work.inputs["gate"]), means(Rows(*rows).row, names, width))
    chosen = dict(zip(names, chances.argmax(1).tolist(), strict=True)) | {name: clusters.labels[name] for name in known}
    found = defaultdict[int, list[str]](list)
    for name in names:
        found[chosen[name]].append(lines[name])
    return found


def lines_of(utterances: Utterances) -> Iterable[str]:
    """The utterances that are used as lines of a manifest."""
    for place in utterances.used:
        yield json.dumps(utterances.cuts[int(place)].to_dict(), ensure_ascii=False) + "\n"


def train_expert(work: Work, expert: int, lists: dict[str, list[str]]) -> tuple[Values, dict[str, Tensor]]:
    """Train an expert on the utterances of ``lists``; its figures, and its tensors under their names in a mixture."""
    from vaak.engine.checkpoint.companions import share_between_runs
    from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint

    options: MoeOptions = work.options
    paths = {split: work.folder / "lists" / f"expert-{expert}-{split}.jsonl" for split in lists}
    for split, path in paths.items():
        path.parent.mkdir(exist_ok=True)
        lines = "".join(lists[split])
        if not path.exists() or path.read_bytes() != lines.encode():  # else its run would say that its data changed
            write_text(path, lines)
    values = data_of(options, "experts")
    values["data"] |= {"percent": 100.0, "max_samples": None, "max_valid_samples": None}
    values["datasets"] = [
        {"name": f"expert-{expert}", "type": "cuts", **{one: [str(path)] for one, path in paths.items()}}
    ]
    values["model"] = {"base": base_for(work), "lora": options.lora.model_dump(mode="json")}
    values["training"] = training_of(options, "experts", metric_of(options))
    outcome = work.train(values, options.expert_config, name=f"expert-{expert}")
    share_between_runs(work.folder / f"expert-{one}" for one in range(expert + 1))  # the base is in each of them
    export(work, outcome.directory, work.folder / ADAPTERS / str(expert))
    best = best_figures(outcome.directory)
    figures = {name: best[f"val_{name}"] for name in ("wer", "cer", "loss")}
    groups = {name.removeprefix("val_wer/"): value for name, value in best.items() if name.startswith("val_wer/")}
    weights = load_checkpoint(resolve_checkpoint(outcome.directory), weights_only=True).model
    tensors = {
        name.removesuffix(theirs) + ours: weight
        for name, weight in weights.items()
        for theirs, ours in LORA.items()
        if name.endswith(theirs)
    }
    return {**figures, "groups": groups, "best_step": best["step"], "steps": outcome.step}, tensors


def export(work: Work, run: Path, folder: Path) -> None:
    """Write the adapter of a run for peft; a base that was made here is named without the place of this pipeline."""
    from vaak.runs.open_run import open_run
    from vaak.tasks.asr.base import name_of
    from vaak.tasks.asr.export import write_adapter

    if all((folder / name).is_file() for name in OF_PEFT):
        return
    shutil.rmtree(folder, ignore_errors=True)
    opened = open_run(run, device="cpu")
    model: Any = opened.model
    name = "../../../base/whisper" if "base" in work.inputs else name_of(base_of(work.options), Path())
    write_adapter(model, opened.experiment.model.model_copy(update={"base": name}), folder)


def write_initial(work: Work, tensors: dict[int, dict[str, Tensor]], num_experts: int) -> None:
    """Write a checkpoint of the gate and of all experts; one that wasn't trained changes nothing yet."""
    import torch

    from vaak.engine.checkpoint.files import Snapshot, save_checkpoint

    some = next(iter(tensors.values()))
    none = {name: torch.zeros_like(one) if name.endswith("lora_b") else one for name, one in some.items()}
    weights = {name: torch.stack([tensors.get(expert, none)[name] for expert in range(num_experts)]) for name in some}
    gate = {f"gate.{name}": one for name, one in load_gate(work.inputs["gate"]).state_dict().items()}
    save_checkpoint(work.folder / INITIAL, Snapshot(0, {**weights, **gate}, state={"position": {"step": 0}}))
