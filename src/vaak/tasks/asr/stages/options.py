"""Options of the pipeline and of its clustering, and the share of the data that each stage reads. Imports no torch.

of the training data, in %    embeddings    experts    joint
mode full                              5         15      100    times --data-percent / 100
mode quick, utterances                10          5        5
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, get_args

from pydantic import model_validator

from vaak.audio.config import DatasetConfig
from vaak.config.base import LARGEST_COUNT, Section, SourceFolder, SourceOrName, option
from vaak.nn.config import LARGEST_WIDTH
from vaak.tasks.asr.bases import explain_kind, read_type
from vaak.tasks.asr.config import SCRATCH, VERSIONS, WhisperLoraConfig

Reduction = Literal["none", "pca", "umap"]
Metric = Literal[
    "euclidean", "l2", "manhattan", "l1", "cityblock", "chebyshev", "canberra", "braycurtis", "cosine", "correlation"
]
Backend = Literal["best", "generic", "prims_kdtree", "prims_balltree", "boruvka_kdtree", "boruvka_balltree"]
KD_TREE_METRICS = ("euclidean", "l2", "manhattan", "l1", "cityblock", "chebyshev")
BALL_TREE_METRICS = (*KD_TREE_METRICS, "canberra", "braycurtis")
METRICS_OF: dict[str, tuple[str, ...]] = {
    "best": get_args(Metric),
    "generic": get_args(Metric),
    "prims_kdtree": KD_TREE_METRICS,
    "boruvka_kdtree": KD_TREE_METRICS,
    "prims_balltree": BALL_TREE_METRICS,
    "boruvka_balltree": BALL_TREE_METRICS,
}
"""The metrics that each way to compute HDBSCAN can use: a tree needs the triangle inequality, a k-d tree axes too."""


class ClusteringConfig(Section):
    """How embeddings are clustered."""

    algorithm: Literal["hdbscan", "spectral", "random"] = option(
        "hdbscan: one cluster for each dense region of the data; spectral: num_experts clusters; random: as many "
        "random clusters, as a control.",
        "hdbscan",
    )
    num_experts: int = option(
        "Number of clusters of spectral and random; those of HDBSCAN are merged down to it.", 8, ge=1
    )
    balanced: bool | None = option(
        "spectral: make clusters of equal size, give or take a row. null: yes; --no-balanced leaves them as found.",
        None,
    )
    reduce: Reduction = option("Method that reduces the dimensions before clustering.", "pca")
    reduce_dim: int = option("Number of dimensions after the reduction.", 50, ge=1)
    metric: Metric = option("Distance that HDBSCAN uses.", "euclidean")
    hdbscan_algorithm: Backend = option("Implementation of HDBSCAN; each supports some metrics.", "best")
    min_cluster_size: int = option("Minimum size of a cluster of HDBSCAN; lower values give more clusters.", 5, ge=2)
    min_clusters: int = option(
        "Minimum number of clusters, at most num_experts; HDBSCAN is rerun if it finds fewer.", 8, ge=1
    )
    min_samples: int | None = option(
        "Number of neighbours with which a point counts as dense for HDBSCAN; null: min_cluster_size.", None, ge=1
    )
    allow_single_cluster: bool = option("Allow HDBSCAN to find a single cluster.", False)
    max_retries: int = option("Maximum number of times HDBSCAN is rerun, each with a lower min_cluster_size.", 5, ge=0)
    reduce_experts: bool = option(
        "Accept fewer clusters, down to min_experts, and merge surplus ones; otherwise any number but num_experts is "
        "an error.",
        True,
    )
    min_experts: int = option("reduce_experts: minimum number of clusters.", 2, ge=1)
    bootstraps: int = option("Number of resamples that measure the stability of the clusters; 0: none.", 10, ge=0)
    seed: int = option("Random seed.", 42, ge=0, lt=1 << 32)

    @model_validator(mode="after")
    def _only_spectral_is_balanced(self) -> ClusteringConfig:
        if self.balanced and self.algorithm != "spectral":
            raise ValueError(
                f"balanced requires algorithm spectral, not {self.algorithm} (random ones are of equal size)"
            )
        return self

    @model_validator(mode="after")
    def _metric_fits(self) -> ClusteringConfig:
        known = METRICS_OF[self.hdbscan_algorithm]
        if self.algorithm == "hdbscan" and self.metric not in known:
            raise ValueError(
                f"hdbscan_algorithm {self.hdbscan_algorithm} can't use metric {self.metric}: use best or generic, or "
                f"one of {', '.join(known)}"
            )
        return self


NUM_EXPERTS = 8
QUICK = {"embeddings": 10, "experts": 5, "joint": 5}
"""Training utterances of each stage in mode quick."""
QUICK_VALID = 10
"""Validation utterances in mode quick."""
EPOCHS = {"gate": (100, 20), "experts": (10, 2), "joint": (10, 2)}
"""The most passes over the data in mode full, and in mode quick."""
GATE_SCALE = 0.02
"""A pretrained gate's learning rate in joint training, relative to that of the experts."""
BATCH_SIZES = {"gate": 64, "experts": 8, "joint": 8}


class OptionsPart(NamedTuple):
    """How much of the training data a stage reads: a percentage of each group, and a maximum number of utterances."""

    percent: float
    most: int | None


class MoeOptions(ClusteringConfig):
    """The options of all stages; those of clustering are here, too."""

    mode: Literal["quick", "full"] = option("quick: a smoke test with 10, 5 and 5 utterances; full: training.", "full")
    skip_pretraining: bool = option("Train gate and experts together from scratch; requires --num-experts.", False)
    controls: bool | None = option(
        "Compare the mixture with controls: the base, one LoRA of as many parameters, random clusters. "
        "null: in mode full.",
        None,
    )
    dataset_root: SourceFolder | None = option(
        "Folder with Train and Dev; null: Data/extracted_data, if it exists. Other data: datasets, in a file.", None
    )
    audio_root: SourceFolder | None = option(
        "A folder outside of dataset_root where its audio may be, such as the target of links in it.", None
    )
    datasets: tuple[DatasetConfig, ...] = option("The data, as in a run's configuration; in place of dataset_root.", ())
    data: dict[str, Any] = option("Further options of the section data of all runs.", {})
    data_percent: float | None = option(
        "Multiplies the percentages of all stages; 100 changes nothing.", None, gt=0, le=100
    )
    embedding_percent: float = option("Percentage of training data for embeddings and clusters.", 5.0, gt=0, le=100)
    expert_percent: float = option("Percentage of training data for the experts.", 15.0, gt=0, le=100)
    asr_percent: float = option("Percentage of training data for joint training.", 100.0, gt=0, le=100)
    embedding_samples: int | None = option(
        "Maximum number of utterances for embeddings; null: 10 in mode quick, else no limit.", None, gt=0
    )
    expert_samples: int | None = option(
        "Maximum number of utterances for the experts; null: 5 in mode quick, else no limit.", None, gt=0
    )
    asr_samples: int | None = option(
        "Maximum number of utterances for joint training; null: 5 in mode quick, else no limit.", None, gt=0
    )
    architecture: Literal["whisper", "ctc"] = option(
        "Architecture of the base; ctc: a wav2vec 2.0, HuBERT or WavLM fine-tuned by CTC, or a run of a Conformer "
        "(--base).",
        "whisper",
    )
    whisper_model: SourceOrName | None = option(
        "The base: v2, v3, a name on the Hugging Face Hub, a folder, or scratch: a small one trained first. "
        "null: v2, or scratch in mode quick if v2 isn't on this machine.",
        None,
    )
    pooling: Literal["mean", "flatten", "none"] = option(
        "Embedding of an utterance: mean of the encoder's states, or all of them, as a vector (flatten) or by position "
        "(none).",
        "mean",
    )
    embedding_type: Literal["float32", "float16"] = option("Number type in which embeddings are stored.", "float32")
    embedding_batch_size: int = option("Number of utterances embedded together.", 16, gt=0, le=LARGEST_COUNT)
    num_experts: int | None = option(  # type: ignore[assignment]
        "Number of experts; surplus clusters of HDBSCAN are merged. --skip-pretraining requires it. null: 8.",
        None,
        ge=2,
    )
    top_k: int = option("Number of experts chosen for each utterance in joint training.", 1, gt=0)
    gate_width: int = option("Width of the gate's hidden layer.", 256, gt=0, le=LARGEST_WIDTH)
    lora: WhisperLoraConfig = option("The low-rank adapter that is an expert.", WhisperLoraConfig())
    load_balancing: float = option("Weight of the load-balancing loss in joint training.", 0.01, ge=0)
    balancing_bias: float = option(
        "Load balancing without a loss: change of the gate's biases in a step; 0: none.", 0.0, ge=0
    )
    draw: bool = option("Draw a picture of the clusters.", True)
    plot_method: Literal["pca", "umap"] = option("Method that gives the picture its two dimensions.", "umap")
    gating_batch_size: int | None = option("Batch size of the gate; null: 64.", None, gt=0)
    expert_batch_size: int | None = option("Batch size of an expert, in utterances; null: 8.", None, gt=0)
    asr_batch_size: int | None = option("Batch size of joint training, in utterances; null: 8.", None, gt=0)
    gradient_accumulation_steps: int = option("Number of batches per step of experts and joint training.", 1, gt=0)
    num_workers: int | None = option("Number of processes that load data; null: chosen by Vaak.", None, ge=0)
    device: Literal["auto", "cuda", "mps", "cpu"] = option(
        "Device for embedding and training; auto: the fastest one available.", "auto"
    )
    fp16: bool | None = option("Mixed precision in float16; null: on CUDA, unless --bf16.", None)
    bf16: bool = option("Mixed precision in bfloat16.", False)
    gating_epochs: int | None = option("Maximum number of epochs of the gate; null: 100, in mode quick 20.", None, gt=0)
    expert_epochs: int | None = option("Maximum number of epochs of an expert; null: 10, in mode quick 2.", None, gt=0)
    asr_epochs: int | None = option(
        "Maximum number of epochs of joint training; null: 10, in mode quick 2.", None, gt=0
    )
    gating_lr: float = option("Learning rate of the gate.", 1e-3, gt=0)
    expert_lr: float = option("Learning rate of the experts.", 1e-4, gt=0)
    asr_lr: float = option("Learning rate of joint training.", 1e-4, gt=0)
    gate_lr_scale: float | None = option(
        "Learning rate of the gate in joint training, as a multiple of --asr-lr: at the rate of the experts, a gate "
        "soon chooses one for all. null: 0.02, or 1 with --skip-pretraining, where the gate starts untrained.",
        None,
        gt=0,
    )
    patience: int = option(
        "Number of evaluations without improvement after which training stops, in every stage.", 5, ge=0
    )
    best_by: Literal["wer", "loss"] = option("Metric that chooses the best checkpoint and stops training.", "wer")
    eval_every_n_epochs: int = option("Evaluate every N epochs.", 1, gt=0)
    save_every_n_epochs: int = option("Save every N epochs, in addition to the best checkpoint.", 5, gt=0)
    base_config: dict[str, Any] = option("Sections of a run that override those of the base trained from scratch.", {})
    expert_config: dict[str, Any] = option("The same for the experts.", {})
    asr_config: dict[str, Any] = option("The same for joint training.", {})
    one_lora_config: dict[str, Any] = option(
        "The same for the one LoRA, after those of experts and joint training.", {}
    )

    @model_validator(mode="after")
    def _options_fit(self) -> MoeOptions:
        if self.architecture == "ctc" and self.whisper_model in (None, SCRATCH, *VERSIONS):
            raise ValueError(
                "--architecture ctc requires --base: a wav2vec 2.0, HuBERT or WavLM, fine-tuned by CTC, or a run of a "
                "Conformer"
            )
        kind = None if self.whisper_model is None else read_type(self.whisper_model)
        reason = None if kind is None else explain_kind(kind, self.architecture)
        if reason is not None:
            raise ValueError(f"--base: {self.whisper_model} {reason}; experts are of a Whisper or a CTC model")
        if self.lora.dora:
            raise ValueError("lora.dora: experts have no separate lengths: an example has the change of several")
        if self.skip_pretraining and self.num_experts is None:
            raise ValueError("--skip-pretraining requires --num-experts: nothing else determines it")
        if self.mode == "quick" and self.data_percent is not None:
            raise ValueError("--data-percent has no effect in mode quick, which takes 10, 5 and 5 utterances")
        if self.dataset_root is not None and self.datasets:
            raise ValueError("dataset_root and datasets are both given; keep one of them")
        if self.audio_root is not None and self.datasets:
            raise ValueError("audio_root belongs to dataset_root; of datasets, each has its own audio_root")
        if self.fp16 and self.bf16:
            raise ValueError("--fp16 and --bf16 are both given; keep one of them")
        if self.top_k > self.experts:
            raise ValueError(f"top_k ({self.top_k}) is more than num_experts ({self.experts})")
        return self

    @property
    def experts(self) -> int:
        """The number of experts that is asked for."""
        return NUM_EXPERTS if self.num_experts is None else self.num_experts

    @property
    def has_controls(self) -> bool:
        """Whether the mixture is compared with controls."""
        return self.mode == "full" if self.controls is None else self.controls

    @property
    def gate_scale(self) -> float:
        """The gate's learning rate in joint training, relative to that of the experts."""
        if self.gate_lr_scale is not None:
            return self.gate_lr_scale
        return 1.0 if self.skip_pretraining else GATE_SCALE

    @property
    def clustering(self) -> ClusteringConfig:
        """The options of clustering."""
        own = {name: getattr(self, name) for name in ClusteringConfig.model_fields}
        return ClusteringConfig(**{**own, "num_experts": self.experts})

    def get_data_share(self, stage: str) -> OptionsPart:
        """Return how much of the training data a stage reads: embeddings, experts or joint."""
        name = {"embeddings": "embedding", "experts": "expert", "joint": "asr"}[stage]
        most: int | None = getattr(self, f"{name}_samples")
        if self.mode == "quick":
            return OptionsPart(100.0, most or QUICK[stage])
        return OptionsPart(getattr(self, f"{name}_percent") * (self.data_percent or 100.0) / 100, most)

    def get_epochs(self, stage: str) -> int:
        """The most passes over the data of a stage: gate, experts or joint."""
        own: int | None = {"gate": self.gating_epochs, "experts": self.expert_epochs, "joint": self.asr_epochs}[stage]
        return own or EPOCHS[stage][self.mode == "quick"]

    def get_batch_size(self, stage: str) -> int:
        """The rows of a batch of a stage: gate, experts or joint."""
        own = {"gate": self.gating_batch_size, "experts": self.expert_batch_size, "joint": self.asr_batch_size}[stage]
        return own or BATCH_SIZES[stage]
