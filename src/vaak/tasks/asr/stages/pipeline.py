"""The pipeline ``moe-asr``: its stages, and what each depends on.

base ──▶ embeddings ──▶ clusters ──▶ gate ──▶ experts ──▶ joint
"""

from __future__ import annotations

from pathlib import Path

from vaak.pipeline.stage import Pipeline, Stage
from vaak.tasks.asr.clustering.config import ClusteringConfig
from vaak.tasks.asr.stages.base import FOLDER, base
from vaak.tasks.asr.stages.base import settings as base_settings
from vaak.tasks.asr.stages.clusters import clusters
from vaak.tasks.asr.stages.embeddings import ABOUT, MAPPING, ROWS, embeddings
from vaak.tasks.asr.stages.experts import ADAPTERS, INITIAL, experts
from vaak.tasks.asr.stages.experts import RESULTS as OF_EXPERTS
from vaak.tasks.asr.stages.forecasts import (
    base_forecast,
    clusters_forecast,
    embeddings_forecast,
    experts_forecast,
    gate_forecast,
    joint_forecast,
)
from vaak.tasks.asr.stages.gate import RESULTS as OF_GATE
from vaak.tasks.asr.stages.gate import WEIGHTS, gate
from vaak.tasks.asr.stages.joint import RESULTS as OF_JOINT
from vaak.tasks.asr.stages.joint import joint
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.original import translated
from vaak.tasks.asr.stages.runs import embedding_settings, pretrains, reads, training_settings, trains_base

DATA = ("mode", "seed", "datasets", "data_percent")
TRAINING = ("patience", "eval_every_n_epochs", "seed")
RECOGNITION = (*DATA, *TRAINING, "lora", "best_by", "gradient_accumulation_steps", "fp16", "bf16")
CLUSTERING = tuple(ClusteringConfig.model_fields)

PIPELINE = Pipeline(
    name="moe-asr",
    about="Train a mixture of low-rank experts on a Whisper: embeddings, clusters, gate, experts, all together.",
    options=MoeOptions,
    stages=(
        Stage(
            "base",
            base,
            "A tiny Whisper is trained from scratch on built-in voices (--whisper-model scratch).",
            ("mode", "seed", "base_config"),
            outputs=(FOLDER,),
            settings=base_settings,
            wanted=trains_base,
            forecast=base_forecast,
            repairs=True,
        ),
        Stage(
            "embeddings",
            embeddings,
            "What the encoder makes of 5 % of the training data.",
            (*DATA, "embedding_percent", "embedding_samples", "pooling", "embedding_type", "fp16", "bf16"),
            after=("base",),
            outputs=(ROWS, MAPPING, ABOUT),
            settings=embedding_settings,
            sources=reads,
            wanted=pretrains,
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
            wanted=pretrains,
            forecast=clusters_forecast,
            version=2,
        ),
        Stage(
            "gate",
            gate,
            "A gate learns the cluster of an utterance from its embedding.",
            (*TRAINING, "mode", "gate_width", "gating_batch_size", "gating_epochs", "gating_lr"),
            after=("embeddings", "clusters"),
            outputs=(WEIGHTS, OF_GATE),
            wanted=pretrains,
            forecast=gate_forecast,
            repairs=True,
        ),
        Stage(
            "experts",
            experts,
            "An expert for each cluster, on 15 % of the training data.",
            (
                *RECOGNITION,
                "expert_percent",
                "expert_samples",
                "expert_batch_size",
                "expert_epochs",
                "expert_lr",
                "expert_config",
            ),
            after=("base", "embeddings", "clusters", "gate"),
            outputs=(ADAPTERS, INITIAL, OF_EXPERTS),
            settings=training_settings,
            sources=reads,
            wanted=pretrains,
            forecast=experts_forecast,
            repairs=True,
            digested=(OF_EXPERTS, f"{INITIAL}/*.safetensors"),
        ),
        Stage(
            "joint",
            joint,
            "Gate and experts are trained together on all training data.",
            (
                *RECOGNITION,
                "asr_percent",
                "asr_samples",
                "asr_batch_size",
                "asr_epochs",
                "asr_lr",
                "gate_lr_scale",
                "asr_config",
                "skip_pretraining",
                "num_experts",
                "top_k",
                "gate_width",
                "load_balancing",
                "balancing_bias",
            ),
            after=("base", "embeddings", "clusters", "experts"),
            outputs=(OF_JOINT, "run/checkpoints"),
            settings=training_settings,
            sources=reads,
            forecast=joint_forecast,
            repairs=True,
            digested=(OF_JOINT, "run/checkpoints/best", "run/checkpoints/*.safetensors"),
        ),
    ),
    directory=lambda options: Path("Runs") / options.mode,
    flags={
        "algorithm": ("--clustering-algorithm", "--algorithm"),
        "plot_method": ("--plot-method", "--plot"),
        "draw": ("--draw/--no-plot",),
    },
    translate=translated,
)
