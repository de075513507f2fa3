"""The options of a diarizer. Imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from vaak.audio.config import AUDIO_ALIASES, SECONDS_OF_A_DAY, AudioConfig, AugmentationConfig, DatasetConfig
from vaak.config.base import Component, Place, ResumeClass, Section, SourceOrName, option
from vaak.config.experiment import Experiment
from vaak.config.training import TrainingConfig
from vaak.nn.config import LARGEST_WIDTH, STACK_ALIASES, LoraConfig, StackConfig, lora_option

PRESETS: dict[str, dict[str, Any]] = {
    "small": {"d_model": 128, "num_layers": 3, "num_heads": 4, "attention_dropout": 0.0},
    # Fujita et al. 2019, section 4.3.
    "sa_eend": {
        "d_model": 256,
        "num_layers": 4,
        "num_heads": 4,
        "d_ff": 2048,
        "feed_forward_type": "relu",
        "norm_type": "layernorm",
        "position_type": "none",
        "bias": True,
        "front_end": "stacked",
        "context": 7,
        "subsampling": 10,
        "upsampling": 1,
    },
}

DEFAULTS: dict[str, Any] = {
    "training": {
        "epochs": 50,
        "batch_size": 32,
        "optimizer": {"type": "adamw", "lr": 2e-4, "betas": [0.9, 0.999], "weight_decay": 0.01},
        "gradient_clipping": {"norm": 1.0},
    },
}

ALIASES: dict[str, str] = {
    **{f"model.{alias}": f"model.{name}" for alias, name in STACK_ALIASES.items()},
    **AUDIO_ALIASES,
}

LABEL_TYPE = "training.eval_knobs.label_type"

LABEL_TYPES: dict[str, str] = {
    "binary": "vaak.tasks.diarization.labels:BinaryCollator",
    "speaker_id": "vaak.tasks.diarization.labels:SpeakerIdCollator",
    "multilabel": "vaak.tasks.diarization.labels:MultilabelCollator",
    "powerset": "vaak.tasks.diarization.labels:PowersetCollator",
    "custom": "vaak.tasks.diarization.labels:DiarizationCollator",
}
"""Short names for training.eval_knobs.label_type."""

SHARED = {"model.global_config": ("model",)}
ENCODER_SECTION = {"encoder": "model.encoder"}


class DiarizationModelConfig(StackConfig):
    """An encoder over frames with a head that predicts who speaks; other keys override the sizes of a preset."""

    bare: ClassVar[str | None] = "preset"

    preset: Literal["small", "sa_eend"] | None = option("Preset sizes.", None, resume="free")
    lora: LoraConfig | None = lora_option()
    base: SourceOrName | None = option(
        "A segmentation network of pyannote.audio, as a checkpoint (pytorch_model.bin) or a folder with one, in place "
        "of Vaak's; null: Vaak's.",
        None,
    )
    model_type: Literal["encoder"] = option("Fixed: a diarizer is an encoder.", "encoder")
    name: str | None = option("A descriptive name; it has no effect.", None, resume="free")
    front_end: Literal["convolutional", "stacked"] = option(
        "Input layers of the encoder: convolutions, or stacking of neighbouring frames.", "convolutional"
    )
    context: int = option("stacked: number of frames stacked on each side.", 7, ge=0, le=10_000)
    subsampling: int = option("Feature frames per encoder frame.", 4, gt=0, le=10_000)
    upsampling: int = option(
        "Output frames, and so labels, per encoder frame; must divide subsampling.", 2, gt=0, le=10_000
    )
    kernel_size: int = option("convolutional: kernel size, in frames; odd.", 7, gt=0, le=10_001)
    num_convolutions: int = option(
        "convolutional: number of residual convolutions before subsampling.", 2, ge=0, le=10_000
    )
    max_speakers: int = option("Maximum number of speakers in a window; a recording may have more.", 2, gt=0, le=1000)
    head: Literal["linear", "attractors"] = option(
        "linear: an output for each speaker; attractors: an unknown number of speakers, one after another (EEND-EDA).",
        "linear",
    )
    embedding_dim: int = option(
        "Width of the speaker embeddings that match speakers across windows; 0 disables them.",
        64,
        ge=0,
        le=LARGEST_WIDTH,
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        preset = values.get("preset") if isinstance(values, dict) else None
        return cls.with_preset(PRESETS[preset], values) if isinstance(preset, str) and preset in PRESETS else values

    @model_validator(mode="after")
    def _follows_base(self) -> DiarizationModelConfig:
        """A base has an output for each of its frames, and no embeddings unless they are asked for."""
        if self.base is None:
            return self
        for name, value in (("subsampling", 1), ("upsampling", 1)):
            if name in self.model_fields_set and getattr(self, name) != value:
                raise ValueError(f"{name} is {getattr(self, name)}, but a base has an output for each of its frames")
            # Sections are frozen. This way the value also stays out of ``model_fields_set``: the user didn't set it.
            object.__setattr__(self, name, value)
        if "embedding_dim" not in self.model_fields_set:
            object.__setattr__(self, "embedding_dim", 0)
        return self

    @model_validator(mode="after")
    def _frames_fit(self) -> DiarizationModelConfig:
        if self.subsampling % self.upsampling:
            raise ValueError(f"subsampling ({self.subsampling}) must be a multiple of upsampling ({self.upsampling})")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size ({self.kernel_size}) must be odd, so that it has a middle frame")
        return self

    @property
    def output_subsampling(self) -> int:
        """Frames of features for each output frame."""
        return self.subsampling // self.upsampling

    @model_validator(mode="after")
    def _sees_both_sides(self) -> DiarizationModelConfig:
        if self.attention_type == "causal_linear":
            raise ValueError("attention_type causal_linear hides later frames; use linear")
        return self


USUAL_THRESHOLD = 0.5
"""The clustering threshold for embeddings whose distances weren't measured: the model's own, and of most encoders."""


class InferenceConfig(Section):
    """Postprocessing: from the model's output for each frame to who spoke when."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    threshold: float = option("Probability above which a speaker counts as speaking.", 0.5, gt=0, lt=1)
    median_filter: float = option(
        "Length in seconds of the median filter over each speaker's decisions; 0 disables it.", 0.0, ge=0
    )
    min_duration_on: float = option("Seconds; shorter speech segments are dropped.", 0.0, ge=0)
    min_duration_off: float = option("Seconds; shorter pauses of a speaker are filled.", 0.0, ge=0)
    window: float | None = option(
        "Window length in seconds; longer recordings are read in windows. null: the length of the longest "
        "training examples.",
        None,
        gt=0,
        le=SECONDS_OF_A_DAY,
    )
    window_overlap: float = option("Fraction of a window that overlaps with the next.", 0.5, ge=0, lt=1)
    num_speakers: int | None = option("Number of speakers in a recording; null: it is estimated.", None, gt=0)
    min_speakers: int = option("Minimum number of speakers, if it is estimated.", 1, gt=0)
    max_speakers: int | None = option("Maximum number of speakers in a recording; null is 64.", None, gt=0, le=1000)
    speaker_encoder: SourceOrName | None = option(
        "Network whose embeddings match speakers across windows: an ONNX file, a GE2E encoder of Resemblyzer (.pt), or "
        "a folder or name of a model of transformers with an x-vector head; null: the model's own embeddings.",
        None,
    )
    speaker_features: dict[str, Any] = option(
        "speaker_encoder: options of the features that an ONNX file reads, as in global_config, where they aren't "
        "Kaldi's filterbank.",
        {},
    )
    clustering_threshold: float | None = option(
        "Cosine distance of embeddings above which speakers of two windows are different. null: what was measured for "
        "the speaker_encoder (GE2E: 0.25), otherwise 0.5.",
        None,
        gt=0,
        lt=2,
    )
    clustering: Literal["agglomerative", "centred", "vbx"] = option(
        "How embeddings of windows become speakers: agglomerative; centred, which repeats that without what all "
        "embeddings have in common, where it finds at least three; or VBx, which begins with the first.",
        "agglomerative",
    )
    centred_threshold: float = option(
        "centred: as clustering_threshold, without what all embeddings of the recording have in common.",
        0.8,
        gt=0,
        lt=2,
    )
    min_share: float = option(
        "Fraction of a recording's speech; smaller clusters are not speakers; their members go to the nearest.",
        0.0,
        ge=0,
        lt=1,
    )
    vbx_fa: float = option("vbx: F_A, the weight of the evidence from the embeddings.", 0.07, gt=0)
    vbx_fb: float = option("vbx: F_B, the speaker regularisation; larger values find fewer speakers.", 0.8, gt=0)

    def get_clustering_threshold(self, same_below: float | None = None) -> float:
        """Return ``clustering_threshold``, or by default the distance that was measured for an encoder, if it was."""
        if self.clustering_threshold is not None:
            return self.clustering_threshold
        return USUAL_THRESHOLD if same_below is None else same_below

    @model_validator(mode="after")
    def _bounds_rise(self) -> InferenceConfig:
        if self.max_speakers is not None and self.min_speakers > self.max_speakers:
            raise ValueError(f"min_speakers ({self.min_speakers}) is more than max_speakers ({self.max_speakers})")
        return self


class ScoringConfig(Section):
    """The conditions under which a diarization is scored."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    collar: float = option("Seconds on each side of every reference boundary that are not scored.", 0.0, ge=0)
    skip_overlap: bool = option("Don't score overlapping speech of the reference.", False)


class DiarizationDataConfig(Section):
    """How recordings become examples, and model outputs become speakers."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    window: float = option("Seconds of a training example; longer recordings are cut.", 30.0, gt=0, le=SECONDS_OF_A_DAY)
    shift_windows: bool = option("Windows of a recording begin at different places in every epoch.", True)
    augmentation: AugmentationConfig = option("Augmentation of training audio.", AugmentationConfig())
    features_on: Literal["auto", "loader", "device"] = option(
        "Where features of training audio are computed. device: on the model's device, as part of the step, so "
        "that the loader only reads audio; the features are the same up to rounding. auto: device on a CUDA GPU, "
        "loader elsewhere. device doesn't read stored ones, which auto does.",
        "auto",
        resume="other numbers",
    )
    inference: InferenceConfig = option("From frames to segments.", InferenceConfig())
    scoring: ScoringConfig = option("How diarization is scored.", ScoringConfig())
    on_bad_example: Literal["fail", "skip"] = option(
        "Fail on an example that can't be read, or skip it.", "fail", resume="other numbers"
    )
    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs; null is RUN/prepared.", None, resume="free"
    )


class EvalKnobsConfig(Section):
    """The type of labels; ``max_duration``, which the universal pipeline has here, is batching.max_duration."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    label_type: Component = option(
        "Labels of a frame. binary: speech or none; speaker_id: which of the training speakers; multilabel: which of "
        "the window's speakers, with overlap, in any order; powerset: which set of at most two of them; custom: "
        "a subclass of DiarizationCollator, by ./file.py:Name.",
        Component(type="binary"),
        resume="refused",
    )


class DiarizationTrainingConfig(TrainingConfig):
    """The training loop, and the labels of a diarizer."""

    eval_knobs: EvalKnobsConfig = option("Options of diarization.", EvalKnobsConfig())


DiarizationExperiment = Experiment[
    DiarizationModelConfig, DiarizationDataConfig, AudioConfig, DatasetConfig, DiarizationTrainingConfig
]


def longest_example(experiment: DiarizationExperiment) -> float:
    """Seconds of training's longest examples, before augmentation: windows of recordings, or whole conversations."""
    window = experiment.data.window
    simulated = [dataset.conversations for dataset in experiment.datasets]
    return max((window if one is None else one.durations("train")[1] for one in simulated), default=window)
