"""The options of a diarizer. Imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from vaak.audio.config import AUDIO_ALIASES, AudioConfig, AugmentationConfig, DatasetConfig
from vaak.config.base import Component, ResumeClass, Section, option
from vaak.config.experiment import Experiment
from vaak.config.training import TrainingConfig
from vaak.nn.config import STACK_ALIASES, StackConfig

PRESETS: dict[str, dict[str, Any]] = {
    "small": {"d_model": 128, "num_layers": 3, "num_heads": 4, "attention_dropout": 0.0},
    "sa_eend": {  # Fujita et al. 2019, section 4.3
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
    "binary": "vaak.tasks.diarization.examples.labels:BinaryCollator",
    "speaker_id": "vaak.tasks.diarization.examples.labels:SpeakerIdCollator",
    "multilabel": "vaak.tasks.diarization.examples.labels:MultilabelCollator",
    "powerset": "vaak.tasks.diarization.examples.labels:PowersetCollator",
    "custom": "vaak.tasks.diarization.examples.labels:DiarizationCollator",
}
"""Short names for training.eval_knobs.label_type."""

SHARED = {"model.global_config": ("model",)}
SIDES = {"encoder": "model.encoder"}


class DiarizationModelConfig(StackConfig):
    """An encoder over frames with a head that says who speaks; a preset gives sizes that any other key replaces."""

    bare: ClassVar[str | None] = "preset"

    preset: Literal["small", "sa_eend"] | None = option("Sizes by name.", None, resume="free")
    model_type: Literal["encoder"] = option("A diarizer sees both sides.", "encoder")
    name: str | None = option("A name for people; nothing depends on it.", None, resume="free")
    front_end: Literal["convolutional", "stacked"] = option(
        "How features reach the encoder: through convolutions, or stacked with the frames around them.", "convolutional"
    )
    context: int = option("stacked: frames on each side that are stacked.", 7, ge=0)
    subsampling: int = option("Frames of features for each frame of the encoder.", 4, gt=0)
    upsampling: int = option(
        "Output frames, and so labels, for each frame of the encoder; divides subsampling.", 2, gt=0
    )
    kernel_size: int = option("convolutional: width of its convolutions, in frames; odd.", 7, gt=0)
    num_convolutions: int = option("convolutional: residual convolutions before subsampling.", 2, ge=0)
    max_speakers: int = option("Speakers of a window; windows are joined to recordings of any number.", 2, gt=0)
    head: Literal["linear", "attractors"] = option(
        "linear: an output for each speaker; attractors: an unknown number, found one after another (EEND-EDA).",
        "linear",
    )
    embedding_dim: int = option("Width of the speaker embeddings that join windows; 0 has none.", 64, ge=0)

    @model_validator(mode="before")
    @classmethod
    def _preset_beneath(cls, values: Any) -> Any:
        preset = values.get("preset") if isinstance(values, dict) else None
        return {**PRESETS[preset], **values} if isinstance(preset, str) and preset in PRESETS else values

    @model_validator(mode="after")
    def _frames_fit(self) -> DiarizationModelConfig:
        if self.subsampling % self.upsampling:
            raise ValueError(f"subsampling ({self.subsampling}) must be a multiple of upsampling ({self.upsampling})")
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size ({self.kernel_size}) must be odd, so that a frame is in its middle")
        return self

    @property
    def output_subsampling(self) -> int:
        """Frames of features for each output frame."""
        return self.subsampling // self.upsampling

    @model_validator(mode="after")
    def _sees_both_sides(self) -> DiarizationModelConfig:
        if self.attention_type == "causal_linear":
            raise ValueError("attention_type causal_linear hides later frames; a diarizer takes linear")
        return self


class InferenceConfig(Section):
    """From what the model says of each frame to who spoke when."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    threshold: float = option("Probability from which a speaker speaks.", 0.5, gt=0, lt=1)
    median_filter: float = option("Seconds of the median filter over each speaker's decisions; 0 has none.", 0.0, ge=0)
    min_duration_on: float = option("Seconds; shorter stretches of speech are dropped.", 0.0, ge=0)
    min_duration_off: float = option("Seconds; shorter pauses of a speaker are filled.", 0.0, ge=0)
    window: float = option("Seconds that the model reads at once; longer recordings are read in windows.", 60.0, gt=0)
    window_overlap: float = option("Part of a window that the next one has in common with it.", 0.5, ge=0, lt=1)
    num_speakers: int | None = option("Number of speakers of a recording; null finds it.", None, gt=0)
    min_speakers: int = option("Least number of speakers, where it is found.", 1, gt=0)
    max_speakers: int | None = option("Greatest number of speakers of a recording; null is 64.", None, gt=0)
    clustering_threshold: float = option(
        "Cosine distance of speaker embeddings from which two windows' speakers are two.", 0.5, gt=0, lt=2
    )

    @model_validator(mode="after")
    def _bounds_rise(self) -> InferenceConfig:
        if self.max_speakers is not None and self.min_speakers > self.max_speakers:
            raise ValueError(f"min_speakers ({self.min_speakers}) is more than max_speakers ({self.max_speakers})")
        return self


class ScoringConfig(Section):
    """Under which conditions a diarization is scored."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    collar: float = option("Seconds on each side of every boundary of the reference that aren't scored.", 0.0, ge=0)
    skip_overlap: bool = option("Leave out where the reference has several speakers at once.", False)


class DiarizationDataConfig(Section):
    """How recordings become examples, and what the model says becomes speakers."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    window: float = option("Seconds of a training example; longer recordings are cut.", 30.0, gt=0)
    shift_windows: bool = option("The windows of a recording begin elsewhere in every epoch.", True)
    augmentation: AugmentationConfig = option("What is done to training audio.", AugmentationConfig())
    inference: InferenceConfig = option("From frames to segments.", InferenceConfig())
    scoring: ScoringConfig = option("How figures are made.", ScoringConfig())
    on_bad_example: Literal["fail", "skip"] = option(
        "What happens with an example that can't be read.", "fail", resume="other numbers"
    )
    cache_dir: str | None = option("Prepared data lie here, shared by runs; null is RUN/prepared.", None, resume="free")


class EvalKnobsConfig(Section):
    """What labels are; ``max_duration``, which the universal pipeline has here, is batching.max_duration."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    label_type: Component = option(
        "What a frame is called. binary: speech or none; speaker_id: which of the training speakers; multilabel: who "
        "of the window's speakers, overlap and all, in any order; powerset: which set of at most two of them; custom: "
        "a subclass of DiarizationCollator, by ./file.py:Name.",
        Component(type="binary"),
        resume="refused",
    )


class DiarizationTrainingConfig(TrainingConfig):
    """The loop, and what a diarizer's labels are."""

    eval_knobs: EvalKnobsConfig = option("Options of diarization.", EvalKnobsConfig())


DiarizationExperiment = Experiment[
    DiarizationModelConfig, DiarizationDataConfig, AudioConfig, DatasetConfig, DiarizationTrainingConfig
]
