"""Stages that train what a mixture is compared with: one LoRA of as many parameters, and experts of random clusters.

one_lora    ``pretraining`` on what the experts together were trained on, then ``run`` on what joint training reads: the
            same utterances, passes, batches, rates and early stopping as the mixture had. Only the gate's own training,
            on the embeddings, has no counterpart.
random_…    the stages of the mixture themselves, after ``random_clusters``: of equal size, as many as the mixture has

The rank of the one LoRA is the lowest with at least as many trained parameters as gate and experts have; alpha stays,
as the rate then needn't be tuned again (Hu et al. 2021, section 4.1).
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vaak.core.storage.files import read_json, write_json
from vaak.pipeline.stage import StageWork
from vaak.tasks.asr.stages.clusters import Clusters, clusters
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import (
    NOT_LORA,
    Values,
    best_metrics,
    get_metric,
    make_data_section,
    make_model_section,
    make_task,
    make_training_section,
    wants_pretraining,
)

if TYPE_CHECKING:
    from vaak.tasks.asr.task import SpeechRecognitionTask

log = logging.getLogger("vaak")

PARAMETERS, RESULTS, PRETRAINING = "parameters.json", "one_lora.json", "pretraining"


def is_compared(options: MoeOptions) -> bool:
    """Return whether controls are trained."""
    return options.has_controls


def has_random_clusters(options: MoeOptions) -> bool:
    """Return whether random clusters are a control: not without clusters, nor where the mixture's own are random."""
    return options.has_controls and wants_pretraining(options) and options.algorithm != "random"


def parameters(work: StageWork) -> dict[str, Any]:
    """The body of the stage that counts what the mixture trains, from which the rank of the one LoRA follows."""
    options: MoeOptions = work.options
    in_all = Clusters.read(work.inputs["clusters"]).num_clusters if "clusters" in work.inputs else options.experts
    # top_k changes no number of parameters.
    gate = {"num_experts": in_all, "gate_width": options.gate_width, "top_k": 1}
    model = {**make_model_section(work), "experts": {**options.lora.model_dump(mode="json"), **gate}}
    about = count_parameters(
        make_task({**make_data_section(options, "joint"), "model": model}, work.folder, options.asr_config)
    )
    log.info(
        "the mixture trains %s parameters (%d experts %s, gate %s); one LoRA of rank %d has %s",
        *(f"{about['mixture']:,}", in_all, f"{about['experts']:,}", f"{about['gate']:,}", about["rank"]),
        f"{about['one_lora']:,}",
    )
    write_json(work.folder / PARAMETERS, {"num_experts": in_all, **about})
    return about


def count_parameters(task: SpeechRecognitionTask) -> dict[str, int]:
    """The parameters that a task's mixture trains, and the rank of one LoRA with at least as many; and how many.

    An output layer, which both train, isn't counted. No weights are read: the model has sizes only. Raises UserError
    where the base's aren't found.
    """
    import torch

    from vaak.engine.dry_pass import numberless

    with numberless(torch.device("cpu")):
        model = task.meta_model(fetches=True)
    experts = task.options.experts
    assert model is not None
    assert experts is not None
    sizes = {name: one.numel() for name, one in model.named_parameters() if one.requires_grad}
    of_experts = sum(size for name, size in sizes.items() if name.endswith(("lora_a", "lora_b")))
    of_all = of_experts + sum(size for name, size in sizes.items() if name.startswith("gate."))
    of_a_rank = of_experts // (experts.num_experts * experts.rank)
    # Rounded up: the control may have a few parameters more than the mixture, never fewer, or it would be beaten too
    # easily.
    rank = -(-of_all // of_a_rank)
    parts = {"mixture": of_all, "experts": of_experts, "gate": of_all - of_experts}
    return {**parts, "rank": rank, "one_lora": rank * of_a_rank}


def one_lora(work: StageWork) -> dict[str, Any]:
    """The body of the stage that trains one LoRA."""
    from vaak.engine.checkpoint.bundled_files import share_between_runs

    options: MoeOptions = work.options
    sizes = read_json(work.inputs["parameters"] / PARAMETERS)
    steps: dict[str, int] = {}
    if wants_pretraining(options):
        of_experts = for_one(options.expert_config, sizes["num_experts"])
        steps["pretraining_steps"] = _train(work, "experts", of_experts, PRETRAINING).step
    outcome = _train(work, "joint", for_one(options.asr_config), "run")
    share_between_runs([work.folder / PRETRAINING, outcome.directory])
    best = best_metrics(outcome.directory)
    about = {"rank": sizes["rank"], "parameters": sizes["one_lora"], "steps": outcome.step, **steps}
    write_json(work.folder / RESULTS, {**about, "step": best.pop("step"), "figures": best})
    return {"wer": best["val_wer"], **about}


def _train(work: StageWork, stage: str, config: Values, name: str) -> Any:
    """Train the one LoRA as a ``stage`` of the mixture is, in the folder ``name``; after pretraining, from there."""
    options: MoeOptions = work.options
    rank = read_json(work.inputs["parameters"] / PARAMETERS)["rank"]
    lora = {**options.lora.model_dump(mode="json"), "rank": rank}
    training = make_training_section(options, stage, get_metric(options))
    if name != PRETRAINING and wants_pretraining(options):
        training["checkpoint"] |= {"init_from": str(work.folder / PRETRAINING), "init_except": [NOT_LORA]}
    values = {
        **make_data_section(options, stage),
        "model": {**make_model_section(work), "lora": lora},
        "training": training,
    }
    return work.train(values, config, options.one_lora_config, name=name)


def for_one(config: Values, num_runs: int = 1) -> Values:
    """Sections of ``num_runs`` runs of the mixture for one run: without what only mixtures have, the steps of all.

    >>> for_one({"model": {"experts": {"top_k": 2}}, "training": {"max_steps": 5, "ema": 0.9}}, num_runs=3)
    {'training': {'max_steps': 15, 'ema': 0.9}}
    """
    found = {name: value for name, value in config.items() if name != "model"}
    training = dict(found.get("training") or {})
    if training.get("max_steps"):
        training["max_steps"] *= num_runs
    if (training.get("loss") or {}).get("auxiliary"):
        others = {name: one for name, one in training["loss"]["auxiliary"].items() if name != "load_balancing"}
        training["loss"] = {**training["loss"], "auxiliary": others}
    return {**found, "training": training} if training else found


def random_clusters(work: StageWork) -> dict[str, Any]:
    """The body of the stage of random clusters, as many as there are in the ``clusters`` that it reads."""
    number = Clusters.read(work.inputs["clusters"]).num_clusters
    changes = {"algorithm": "random", "num_experts": number, "balanced": False, "bootstraps": 0, "draw": False}
    return clusters(replace(work, options=work.options.model_copy(update=changes)))
