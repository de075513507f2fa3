"""Stage ``joint``: gate and experts are trained together on all data, each expert on the utterances routed to it.

run/          its run, an ordinary one of the task asr: vaak transcribe RUN, vaak export RUN --expert 3
joint.json    figures of the best checkpoint; how the gate routes, and how often that is to an utterance's cluster
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.core.storage.files import read_json, write_json
from vaak.pipeline.rows import RowStore
from vaak.pipeline.stage import Work
from vaak.tasks.asr.clustering.files import Clusters
from vaak.tasks.asr.stages.embeddings import ABOUT, ROWS, means
from vaak.tasks.asr.stages.experts import INITIAL
from vaak.tasks.asr.stages.gate import probabilities
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import Values, base_for, best_figures, data_of, metric_of, say_fallbacks, training_of

RESULTS = "joint.json"
NOT_PRETRAINED = r"^(?!gate\.layers\.|.*\.lora_[ab]$)"
"""Parameters that aren't in what the stage of experts leaves: the base's, and the bias that balances the choice."""


def values_of(work: Work) -> Values:
    """The run's configuration."""
    options: MoeOptions = work.options
    values, pretrained = data_of(options, "joint"), "experts" in work.inputs
    num_experts = Clusters.read(work.inputs["clusters"]).num_clusters if pretrained else options.experts
    gate = {"num_experts": num_experts, "top_k": min(options.top_k, num_experts), "gate_width": options.gate_width}
    lora, bias = options.lora.model_dump(mode="json"), {"balancing_bias": options.balancing_bias}
    values["model"] = {"base": base_for(work), "experts": {**lora, **gate, **bias}}
    training = training_of(options, "joint", metric_of(options))
    if options.gate_scale != 1:
        training["optimizer"]["groups"] = [{"match": r"^gate\.", "lr_scale": options.gate_scale}]
    if options.load_balancing:
        training["loss"] = {"auxiliary": {"load_balancing": options.load_balancing}}
    if pretrained:
        training["checkpoint"] |= {"init_from": str(work.inputs["experts"] / INITIAL), "init_except": [NOT_PRETRAINED]}
    return {**values, "training": training}


def joint(work: Work) -> dict[str, Any]:
    """The stage's body."""
    say_fallbacks(work.options)
    outcome = work.train(values_of(work), work.options.asr_config)
    best = best_figures(outcome.directory)
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
    write_json(work.folder / RESULTS, about)
    shown = {name: about[name] for name in ("entropy", "dead_experts", "agreement")}
    return {"wer": best["val_wer"], **shown, "steps": outcome.step}


def agreement(work: Work, run: Path) -> float:
    """The share of embedded utterances that the trained gate routes to the expert of their cluster."""
    from vaak.runs.open_run import open_run

    folder, clusters = work.inputs["embeddings"], Clusters.read(work.inputs["clusters"])
    store = RowStore(folder / ROWS)
    gate: Any = open_run(run, device="cpu").model.gate
    chances = probabilities(gate, means(store.row, store.keys, read_json(folder / ABOUT)["width"]))
    if gate.bias is not None:
        chances = chances + gate.bias.numpy()
    chosen = chances.argmax(1).tolist()
    same = [clusters.labels[name] == expert for name, expert in zip(store.keys, chosen, strict=True)]
    return sum(map(int, same)) / len(same)
