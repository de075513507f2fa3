"""The options of a vocoder. Imports no torch."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator

from vaak.audio.config import AUDIO_ALIASES, AudioConfig, DatasetConfig, Range, as_range, rising
from vaak.config.base import LARGEST_COUNT, Place, ResumeClass, Section, SourceOrName, option
from vaak.config.experiment import Experiment
from vaak.nn.config import LARGEST_WIDTH, LoraConfig, lora_option
from vaak.nn.speech.config import HifiGanConfig

MEL, STFT, ADVERSARIAL, MATCHING, DISCRIMINATOR = "mel", "stft", "adversarial", "feature_matching", "discriminator"
LOSSES = (MEL, STFT, ADVERSARIAL, MATCHING, DISCRIMINATOR)

DEFAULTS: dict[str, Any] = {
    "global_config": {"feature_type": "mel"},
    "training": {
        "epochs": 100,
        "batch_size": 16,
        "optimizer": {"type": "adamw", "lr": 5e-4, "betas": [0.8, 0.9], "weight_decay": 0.01},
        "scheduler": {"type": "cosine"},
        "gradient_clipping": {"norm": None},
        "loss": {"main": {"type": "l1"}, "auxiliary": {MEL: 45.0}},
        "logging": {"interval": 10},
    },
}
"""The options of Vocos, but for the number of epochs."""

ALIASES = dict(AUDIO_ALIASES)

Period = Annotated[int, Field(gt=0, le=1024)]
Length = Annotated[int, Field(ge=16, le=65_536, multiple_of=4)]


class DiscriminatorsConfig(Section):
    """Networks that tell real audio from generated audio, and so train the vocoder."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    periods: tuple[Period, ...] = option(
        "Discriminators that look at every N-th sample, one for each N.", (2, 3, 5, 7, 11)
    )
    period_channels: int = option("Channels of their first layer; the last has 32 times as many.", 32, gt=0, le=65_536)
    resolutions: tuple[Length, ...] = option(
        "Discriminators of spectrograms, one for each length of the FFT, in samples.", (1024, 2048, 512)
    )
    resolution_channels: int = option("Channels of their layers.", 64, gt=0, le=65_536)
    loss: Literal["hinge", "least_squares"] = option("The adversarial loss.", "hinge", resume="other numbers")
    start_step: int = option(
        "The step in which they begin; before it, the vocoder learns from spectra alone, which takes less time.",
        1,
        gt=0,
        le=LARGEST_COUNT,
        resume="other numbers",
    )

    @field_validator("resolutions")
    @classmethod
    def _some_discriminator(cls, value: tuple[int, ...], info: Any) -> tuple[int, ...]:
        if not value and not info.data.get("periods"):
            raise ValueError("neither periods nor resolutions are given; for no discriminators, give null")
        return value


class VocoderModelConfig(Section):
    """Blocks of convolutions that predict an inverse short-time Fourier transform (Vocos), or HiFi-GAN."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    name: str | None = option("A descriptive name; it has no effect.", None, resume="free")
    pretrained: SourceOrName | None = option(
        "Published weights of Vocos or HiFi-GAN to start from: a folder with config.yaml or config.json, the file "
        "of weights in it, or a name on the Hugging Face Hub. Sizes and global_config.mel must be the same.",
        None,
    )
    lora: LoraConfig | None = lora_option()
    hifigan: HifiGanConfig | None = option(
        "Use HiFi-GAN's generator, of these sizes, instead of Vocos; width, num_layers, inner_width and prior are "
        "for Vocos.",
        None,
    )
    width: int = option("Width of the blocks.", 512, gt=0, le=LARGEST_WIDTH)
    num_layers: int = option("Number of blocks.", 8, gt=0, le=10_000)
    inner_width: int = option("Width within a block.", 1536, gt=0, le=LARGEST_WIDTH)
    prior: Literal["pseudo_inverse", "none"] = option(
        "pseudo_inverse: predict corrections to the magnitudes that the pseudo-inverse of the mel filters gives, "
        "which are learned in less time; none: predict magnitudes as a whole, as in Vocos.",
        "pseudo_inverse",
    )
    discriminators: DiscriminatorsConfig | None = option(
        "Adversarial training; null trains by spectra alone.", DiscriminatorsConfig()
    )


class VocoderDataConfig(Section):
    """How recordings become examples."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    crop_frames: int = option(
        "Length of a training example, in frames; shorter recordings end in silence.", 64, gt=1, le=1_000_000
    )
    gain: Range | None = option(
        "train: gain of each example in decibels, drawn from this range; null changes nothing.", (-6.0, 0.0)
    )
    evaluation_window: float = option(
        "valid, test: the longest part, in seconds; longer recordings are divided.", 10.0, gt=0, le=3600
    )
    num_samples: int = option(
        "Number of validation parts to write after training, each as RUN/sample-1.wav, by Griffin–Lim, and as "
        "recorded.",
        3,
        ge=0,
        le=10_000,
        resume="free",
    )
    num_iterations: int = option(
        "Iterations of Griffin–Lim, with which metrics are compared.", 32, gt=0, le=10_000, resume="free"
    )
    on_bad_example: Literal["fail", "skip"] = option(
        "What to do with a recording that can't be used: one that can't be read, is silent, or lacks the frequencies "
        "of the spectrogram.",
        "fail",
        resume="other numbers",
    )
    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs; null is RUN/prepared.", None, resume="free"
    )

    _range = field_validator("gain", mode="before")(as_range)
    _rising = field_validator("gain")(rising)


VocoderExperiment = Experiment[VocoderModelConfig, VocoderDataConfig, AudioConfig, DatasetConfig]
