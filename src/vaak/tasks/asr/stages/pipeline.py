"""The pipeline ``moe-asr``: its stages, and what each depends on.

base ──▶ embeddings ──▶ clusters ──▶ gate ──▶ experts ──▶ joint ──▶ mixture_texts ───────────┐
 │                         ├──▶ parameters ──▶ one_lora ──▶ one_lora_texts ──────────────────┤
 │                         └──▶ random_clusters ──▶ random_gate … random_joint ──▶ random_texts
 └──▶ base_texts ────────────────────────────────────────────────────────────────────────────┴──▶ comparison

After joint come controls, by option: their training (controls.py), the transcripts of each system, and whether the
experts help (comparison.py). Keys of the JSON files of the pipeline that this one replaces are translated here, and
here is its function for the first stage: ``extract_embeddings``.
"""

from __future__ import annotations

import os
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.names import quote_unmatched
from vaak.core.storage.files import read_json, write_json
from vaak.pipeline.stage import Pipeline, Stage
from vaak.tasks.asr.stages.clusters import clusters
from vaak.tasks.asr.stages.comparison import RESULTS as OF_COMPARISON
from vaak.tasks.asr.stages.comparison import SYSTEM, SYSTEMS, TABLE, TEXTS_FILE, comparison, transcripts
from vaak.tasks.asr.stages.comparison import TRANSCRIPTS_FILE as OF_TEXTS
from vaak.tasks.asr.stages.controls import (
    PARAMETERS,
    has_random_clusters,
    is_compared,
    one_lora,
    parameters,
    random_clusters,
)
from vaak.tasks.asr.stages.controls import RESULTS as OF_ONE_LORA
from vaak.tasks.asr.stages.embeddings import EMBEDDINGS_FILE, MAPPING, ROWS, embeddings
from vaak.tasks.asr.stages.forecasts import (
    base_forecast,
    clusters_forecast,
    embeddings_forecast,
    experts_forecast,
    gate_forecast,
    instant_forecast,
    joint_forecast,
    one_lora_forecast,
    transcripts_forecast,
)
from vaak.tasks.asr.stages.mixture import (
    ADAPTERS,
    EXPERTS_RESULTS,
    GATE_RESULTS,
    GATE_WEIGHTS,
    INITIAL,
    JOINT_RESULTS,
    experts,
    gate,
    joint,
)
from vaak.tasks.asr.stages.options import ClusteringConfig, MoeOptions
from vaak.tasks.asr.stages.runs import (
    BASE_FOLDER,
    base,
    base_settings,
    data_digest,
    embedding_settings,
    training_settings,
    wants_base,
    wants_pretraining,
)

OVERRIDES = {
    "dataset_root": "dataset_root",
    "audio_root": "audio_root",
    "percent": "embedding_percent",
    "max_samples": "embedding_samples",
    "seed": "seed",
}
"""Keys of data_config_override, and the options that they are."""
KEYS_WITHOUT_OPTION = ("data_config_path", "data_mode", "mapping_path", "overwrite")
"""Keys that no option stands for: extract_embeddings reads the last two."""
KEYS_BY_OPTION = {"clustering_algorithm": "algorithm", "plot": "plot_method", "base": "whisper_model"}


def translate_options(values: dict[str, Any]) -> dict[str, Any]:
    """The options in a file, under the keys of either pipeline. Raises UserError for an unsupported one."""
    found = {KEYS_BY_OPTION.get(name, name): value for name, value in values.items() if name not in KEYS_WITHOUT_OPTION}
    override = found.pop("data_config_override", None) or {}
    if override.get("sampling", "stratified") != "stratified":
        raise UserError("data_config_override.sampling: samples are stratified here; leave it out")
    if str(override.get("split", "train")).lower() != "train":
        raise UserError("data_config_override.split: experts come from the training split; leave it out")
    if override.get("modes"):
        raise UserError("data_config_override.modes: leave it out; give --embedding-, --expert- and --asr-percent")
    for name, option in OVERRIDES.items():
        # What the file says directly counts for more than its override.
        if override.get(name) is not None:
            found.setdefault(option, override[name])
    if unknown := sorted({*override} - {*OVERRIDES, "sampling", "split", "modes"}):
        named = quote_unmatched(unknown, OVERRIDES)
        raise UserError(f"data_config_override: unknown {named}; expected {', '.join(OVERRIDES)}")
    return found


def extract_embeddings(path: str | PathLike[str]) -> Path:
    """Run the stage of embeddings by a JSON file of options; the path of its ``mapping.json``.

    ``output_dir`` in it is where the pipeline runs, ``mapping_path`` where the mapping is copied to, its files relative
    to the copy; with ``overwrite`` existing results are recomputed. Raises UserError for options that can't be used.
    """
    from vaak.config.base import from_options
    from vaak.pipeline.run import Request, run_pipeline
    from vaak.pipeline.stage import find_pipeline

    pipeline = find_pipeline("moe-asr", Path())
    values = read_json(Path(path))
    given = translate_options(values)
    directory = given.pop("output_dir", None)
    options = from_options(pipeline.options, given, pipeline.name)
    folder = Path(directory) if directory else pipeline.get_directory(options)
    for stage in pipeline.asked_for(options):
        # Stage by stage, and no further than the embeddings: later stages weren't asked for.
        again = stage.name if values.get("overwrite") and stage.name == "embeddings" else None
        run_pipeline(pipeline, options, folder, Request(resume=True, only=stage.name, first=again))
        if stage.name == "embeddings":
            break
    mapping = folder / "embeddings" / "mapping.json"
    if values.get("mapping_path"):
        copy = Path(values["mapping_path"])
        copy.parent.mkdir(parents=True, exist_ok=True)
        seen = read_json(mapping)
        for one in seen.values():
            one["file"] = _seen_from(copy, mapping.parent / one["file"])
        write_json(copy, seen)
        return copy
    return mapping


def _seen_from(copy: Path, file: Path) -> str:
    """A file relative to the folder of a copy; its absolute path where it is on another drive."""
    try:
        return os.path.relpath(file.resolve(), copy.resolve().parent)
    except ValueError:
        return str(file.resolve())


DATA = ("mode", "seed", "datasets", "data_percent")
TRAINING = ("patience", "eval_every_n_epochs", "seed")
RECOGNITION = (*DATA, *TRAINING, "lora", "best_by", "gradient_accumulation_steps", "fp16", "bf16")
CLUSTERING = tuple(ClusteringConfig.model_fields)
OF_EXPERT_TRAINING = (
    *("expert_percent", "expert_samples", "expert_batch_size", "expert_epochs", "expert_lr"),
    "expert_config",
)
EXPERTS = (*RECOGNITION, *OF_EXPERT_TRAINING)
OF_GATE_TRAINING = ("gate_lr_scale", "num_experts", "top_k", "gate_width", "load_balancing", "balancing_bias")
OF_JOINT_TRAINING = ("asr_percent", "asr_samples", "asr_batch_size", "asr_epochs", "asr_lr", "asr_config")
JOINT = (*RECOGNITION, *OF_JOINT_TRAINING, "skip_pretraining", *OF_GATE_TRAINING)
MIXTURE_STAGES = (
    Stage(
        "base",
        base,
        "A tiny Whisper is trained from scratch on built-in voices (--whisper-model scratch).",
        ("mode", "seed", "base_config"),
        outputs=(BASE_FOLDER,),
        settings=base_settings,
        wanted=wants_base,
        forecast=base_forecast,
        repairs=True,
    ),
    Stage(
        "embeddings",
        embeddings,
        "Encoder states of a part of the training data (--embedding-percent).",
        (*DATA, "embedding_percent", "embedding_samples", "pooling", "embedding_type", "fp16", "bf16"),
        after=("base",),
        outputs=(ROWS, MAPPING, EMBEDDINGS_FILE),
        settings=embedding_settings,
        sources=data_digest,
        wanted=wants_pretraining,
        forecast=embeddings_forecast,
        repairs=True,
    ),
    Stage(
        "clusters",
        clusters,
        "Embeddings in clusters, one for each expert.",
        (*CLUSTERING, "draw", "plot_method"),
        after=("embeddings",),
        outputs=("clusters.json",),
        wanted=wants_pretraining,
        forecast=clusters_forecast,
        version=2,
    ),
    Stage(
        "gate",
        gate,
        "A gate learns the cluster of an utterance from its embedding.",
        (*TRAINING, "mode", "gate_width", "gating_batch_size", "gating_epochs", "gating_lr"),
        after=("embeddings", "clusters"),
        outputs=(GATE_WEIGHTS, GATE_RESULTS),
        wanted=wants_pretraining,
        forecast=gate_forecast,
        repairs=True,
    ),
    Stage(
        "experts",
        experts,
        "An expert for each cluster, on a part of the training data (--expert-percent).",
        EXPERTS,
        after=("base", "embeddings", "clusters", "gate"),
        outputs=(ADAPTERS, INITIAL, EXPERTS_RESULTS),
        settings=training_settings,
        sources=data_digest,
        wanted=wants_pretraining,
        forecast=experts_forecast,
        repairs=True,
        digested=(EXPERTS_RESULTS, f"{INITIAL}/*.safetensors"),
    ),
    Stage(
        "joint",
        joint,
        "Gate and experts are trained together on all training data.",
        JOINT,
        after=("base", "embeddings", "clusters", "experts"),
        outputs=(JOINT_RESULTS, "run/checkpoints"),
        settings=training_settings,
        sources=data_digest,
        forecast=joint_forecast,
        repairs=True,
        digested=(JOINT_RESULTS, "run/checkpoints/best", "run/checkpoints/*.safetensors"),
    ),
)
MEASURING = ("mode", "seed", "datasets", "fp16", "bf16", "asr_config")
OF_RANDOM = {name: f"random_{name}" for name in ("clusters", "gate", "experts", "joint")}
"""The stages of the mixture that random clusters have, too."""
OF_TRANSCRIPTS = {
    "base_texts": "base",
    "one_lora_texts": "one_lora",
    "random_texts": "random",
    "mixture_texts": "mixture",
}
"""Stages of transcripts, and whose they are."""


def _random_clusters_stage(name: str) -> Stage:
    """A stage of the mixture, with the same body, that reads what follows from random clusters."""
    stage = next(one for one in MIXTURE_STAGES if one.name == name)
    return replace(
        stage,
        name=OF_RANDOM[name],
        about=f"Like {name}, with the random clusters.",
        after=tuple(OF_RANDOM.get(one, one) for one in stage.after),
        roles={OF_RANDOM[one]: one for one in stage.after if one in OF_RANDOM},
        wanted=has_random_clusters,
    )


def _transcripts(name: str, after: tuple[str, ...], roles: dict[str, str], random: bool = False) -> Stage:
    """The stage that writes down what a system recognises: the run of the stage whose role is ``system``."""
    return Stage(
        name,
        transcripts,
        f"Transcripts of the compared utterances by {SYSTEMS[OF_TRANSCRIPTS[name]]}.",
        MEASURING,
        after=after,
        outputs=(TEXTS_FILE, OF_TEXTS),
        settings=training_settings,
        sources=data_digest,
        wanted=has_random_clusters if random else is_compared,
        forecast=transcripts_forecast,
        roles=roles,
    )


CONTROLS = (
    Stage(
        "parameters",
        parameters,
        "How many parameters the mixture trains, and the rank of one LoRA with as many.",
        ("lora", "num_experts", "gate_width", "skip_pretraining", "asr_config"),
        after=("base", "clusters"),
        outputs=(PARAMETERS,),
        settings=training_settings,
        sources=data_digest,
        wanted=is_compared,
        forecast=instant_forecast,
    ),
    Stage(
        "one_lora",
        one_lora,
        "A control: one LoRA with as many parameters, trained on the same data.",
        (*EXPERTS, *OF_JOINT_TRAINING, "skip_pretraining", "one_lora_config"),
        after=("base", "parameters"),
        outputs=(OF_ONE_LORA, "run/checkpoints"),
        settings=training_settings,
        sources=data_digest,
        wanted=is_compared,
        forecast=one_lora_forecast,
        repairs=True,
        digested=(OF_ONE_LORA, "run/checkpoints/best", "run/checkpoints/*.safetensors"),
    ),
    Stage(
        "random_clusters",
        random_clusters,
        "A control: random clusters of equal size, as many as there are clusters.",
        ("seed", "reduce", "reduce_dim"),
        after=("embeddings", "clusters"),
        outputs=("clusters.json",),
        wanted=has_random_clusters,
        forecast=instant_forecast,
    ),
    *map(_random_clusters_stage, ("gate", "experts", "joint")),
    _transcripts("base_texts", ("base",), {}),
    _transcripts("one_lora_texts", ("base", "one_lora"), {"one_lora": SYSTEM}),
    _transcripts(
        "random_texts",
        ("base", "random_experts", "random_joint"),
        {"random_experts": "experts", "random_joint": SYSTEM},
        random=True,
    ),
    _transcripts("mixture_texts", ("base", "experts", "joint"), {"joint": SYSTEM}),
    Stage(
        "comparison",
        comparison,
        "Do the experts help? The mixture against its controls, with intervals over speakers.",
        after=tuple(OF_TRANSCRIPTS),
        outputs=(OF_COMPARISON, TABLE),
        wanted=is_compared,
        forecast=instant_forecast,
        roles=OF_TRANSCRIPTS,
        report=OF_COMPARISON,
    ),
)
PIPELINE = Pipeline(
    name="moe-asr",
    about="Train a mixture of low-rank experts on a recogniser: embeddings, clusters, gate, experts, all together.",
    options=MoeOptions,
    stages=(*MIXTURE_STAGES, *CONTROLS),
    directory=lambda options: Path("Runs") / options.mode,
    flags={
        "algorithm": ("--clustering-algorithm", "--algorithm"),
        "plot_method": ("--plot-method", "--plot"),
        "draw": ("--draw/--no-plot",),
        "whisper_model": ("--whisper-model", "--base"),
    },
    translate=translate_options,
)
