"""The options of a text-to-speech model. Imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import model_validator

from vaak.audio.config import AUDIO_ALIASES, AudioConfig, DatasetConfig
from vaak.config.base import Place, ResumeClass, Section, Source, SourceOrName, option
from vaak.config.experiment import Experiment
from vaak.nn.config import LARGEST_WIDTH, STACK_ALIASES, ConvolutionalStackConfig, LoraConfig, lora_option
from vaak.text.config import max_unknown_option
from vaak.text.speech.config import FrontEndConfig

SIDES_OF_SPEECH = ("model.encoder", "model.decoder")

SMALL_STACK: dict[str, Any] = {"d_model": 256, "num_layers": 4, "num_heads": 4}
"""A small stack; the default is that of StackConfig."""

DEFAULTS: dict[str, Any] = {
    "global_config": {"feature_type": "mel"},
    "training": {
        "epochs": 100,
        "batch_size": 16,
        "batching": {"type": "bucketed"},
        "optimizer": {"type": "adamw", "lr": 1e-4, "betas": [0.9, 0.98], "weight_decay": 0.01},
        "gradient_clipping": {"norm": 1.0},
        "loss": {"main": {"type": "l1"}},
        "logging": {"interval": 10},
    },
}
"""Sizes and rates of the English TTS trainer."""

ALIASES: dict[str, str] = {
    **{f"{side}.{alias}": f"{side}.{name}" for side in SIDES_OF_SPEECH for alias, name in STACK_ALIASES.items()},
    **{
        f"{prefix}{alias}": f"model.{name}"
        for prefix in ("", "model.")
        for alias, name in {
            "n_encoder_layers": "encoder.num_layers",
            "n_decoder_layers": "decoder.num_layers",
            "hidden_dim": "global_config.d_model",
        }.items()
    },
    **AUDIO_ALIASES,
}

SHARED = {"model.global_config": SIDES_OF_SPEECH}


class PredictorConfig(Section):
    """Convolutions that predict a number for each symbol."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    width: int = option("Width of the convolutions.", 256, gt=0, le=LARGEST_WIDTH)
    kernel_size: int = option("Symbols that a convolution sees; odd.", 3, gt=0, le=1001)
    num_layers: int = option("Number of convolutions.", 2, gt=0, le=1000)
    dropout: float = option("Dropout after each convolution.", 0.1, ge=0, lt=1, resume="other numbers")

    @model_validator(mode="after")
    def _has_a_middle(self) -> PredictorConfig:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size ({self.kernel_size}) must be odd, so that it has a middle symbol")
        return self


class FlowMatchingConfig(Section):
    """The velocity field that turns noise into a spectrogram."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    vector_field: Literal["unet", "transformer"] = option(
        "The network. unet: convolutions at several frame rates, of the sizes below; transformer: a stack of the sizes "
        "of model.decoder.",
        "unet",
    )
    width: int = option("unet: width of the convolutions.", 256, gt=0, le=LARGEST_WIDTH)
    num_levels: int = option("unet: number of frame rates, each half of the one above.", 2, gt=0, le=10)
    blocks_per_level: int = option("unet: number of blocks on the way down and up.", 2, gt=0, le=1000)
    kernel_size: int = option("unet: frames that a convolution sees; odd.", 7, gt=0, le=1001)
    sigma_min: float = option(
        "Standard deviation around the target at the end of a path.", 1e-4, ge=0, lt=1, resume="other numbers"
    )

    @model_validator(mode="after")
    def _has_a_middle(self) -> FlowMatchingConfig:
        if self.kernel_size % 2 == 0:
            raise ValueError(f"kernel_size ({self.kernel_size}) must be odd, so that it has a middle frame")
        return self


class TtsModelConfig(Section):
    """An encoder over phonemes, durations, and a decoder over frames."""

    bare: ClassVar[str | None] = "preset"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    preset: Literal["small"] | None = option("Preset sizes of encoder and decoder.", None, resume="free")
    name: str | None = option("A descriptive name; it has no effect.", None, resume="free")
    lora: LoraConfig | None = lora_option()
    encoder: ConvolutionalStackConfig = option("The stack that reads phonemes.", ConvolutionalStackConfig())
    decoder: ConvolutionalStackConfig = option(
        "The stack that makes frames: with decoder_type: transformer, or as the vector_field of flow matching.",
        ConvolutionalStackConfig(),
    )
    durations: Literal["given", "learned"] = option(
        "Where durations for training come from. given: the corpus's alignments; learned: the model aligns text "
        "and audio while it trains.",
        "given",
    )
    duration_predictor: PredictorConfig = option("Predicts the duration of each symbol.", PredictorConfig())
    pitch: bool = option(
        "Predict the pitch of each symbol, so that it can be changed in speaking; the predictor is like "
        "duration_predictor.",
        False,
    )
    energy: bool = option("Predict the energy of each symbol, in the same way.", False)
    decoder_type: Literal["transformer", "flow_matching"] = option(
        "transformer: the decoder predicts the spectrogram at once; flow_matching: it turns noise into one, in steps.",
        "transformer",
    )
    flow_matching: FlowMatchingConfig = option("flow_matching: its velocity field.", FlowMatchingConfig())
    speaker_embedding: bool = option("A vector for each training speaker, where there are several.", True)

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        if not isinstance(values, dict) or values.get("preset") != "small":
            return values
        sides = {side: values.get(side, {}) for side in ("encoder", "decoder")}
        preset = ConvolutionalStackConfig.with_preset
        return {
            **values,
            **{side: preset(SMALL_STACK, given) for side, given in sides.items() if isinstance(given, dict)},
        }

    @property
    def draws_features(self) -> bool:
        """Whether some layer has random features, which training may redraw."""
        return self.encoder.draws_features or (self.has_decoder_stack and self.decoder.draws_features)

    @property
    def matches_flows(self) -> bool:
        """Whether the decoder is one of flow matching."""
        return self.decoder_type == "flow_matching"

    @property
    def has_decoder_stack(self) -> bool:
        """Whether the options of ``decoder`` are read."""
        return not self.matches_flows or self.flow_matching.vector_field == "transformer"

    @property
    def has_prosody(self) -> bool:
        """Whether pitch or energy are predicted."""
        return self.pitch or self.energy


class SpeakingConfig(Section):
    """Synthesis: from text to audio."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    speaker: str | None = option("Who speaks; null is the first of the training speakers.", None)
    speed: float = option("Speaking rate; 2 is twice as fast as in training.", 1.0, ge=0.1, le=10)
    pitch: float = option(
        "Pitch shift in semitones; 12 is an octave up, -12 an octave down. Requires model.pitch.", 0.0, ge=-36, le=36
    )
    energy: float = option(
        "Loudness, as a factor of the amplitude; 2 is 6 dB more. Requires model.energy.", 1.0, ge=0.01, le=100
    )
    num_steps: int = option("flow_matching: steps from noise to a spectrogram.", 10, gt=0, le=1000)
    method: Literal["euler", "midpoint"] = option(
        "flow_matching: euler evaluates the network once per step, midpoint twice, which is more accurate.", "euler"
    )
    temperature: float = option(
        "flow_matching: factor of the noise; lower values give smoother speech.", 0.667, ge=0, le=2
    )
    pause: float = option("Seconds of silence between sentences.", 0.2, ge=0, le=60)
    vocoder: SourceOrName | None = option(
        "The vocoder, which turns spectrograms into audio: a run of task vocoder, or published weights of "
        "HiFi-GAN or Vocos (their folder, file or name on the Hugging Face Hub); null is Griffin–Lim.",
        None,
    )
    phases: Literal["random", "pitch"] = option(
        "Without a vocoder, the phases that a spectrogram gets. random: Griffin–Lim's, drawn and then improved; pitch: "
        "those of pulses at the predicted pitch, so that voiced sounds are periodic. Requires model.pitch.",
        "random",
    )
    num_iterations: int = option("Iterations of Griffin–Lim.", 32, gt=0, le=10_000)
    lexicon: Source | None = option(
        "A file with the phonemes of words, in ARPAbet or IPA, one word per line (CMUdict's format). They take "
        "precedence over the front end's.",
        None,
    )
    on_unspeakable: Literal["skip", "drop", "error"] = option(
        "What to do with a sentence that has something unspeakable in it, such as an emoji or another script: skip the "
        "sentence, drop these characters, or end with an error. Skipped text is listed at the end.",
        "skip",
    )


class EvaluationConfig(Section):
    """Evaluation of spoken audio, besides the losses."""

    bare: ClassVar[str | None] = "speak"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    speak: int | None = option(
        "Speak the texts of the first N utterances of a split and compare them with the recordings (mel-cepstral "
        "distortion, F0, real-time factor); 0 speaks none, null all.",
        0,
        ge=0,
    )
    recogniser: bool = option(
        "Also count wrong, skipped and repeated words in spoken audio and in the recordings, by PocketSphinx.", False
    )


class TtsDataConfig(Section):
    """How recordings and their texts become examples, and texts audio."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    front_end: FrontEndConfig = option("How text becomes phonemes.", FrontEndConfig())
    silence: float | None = option(
        "Seconds of silence that an utterance keeps before and after its speech; null keeps all.", 0.1, ge=0, le=60
    )
    max_duration: float = option("Longest utterance, in seconds; longer ones are left out.", 20.0, gt=0, le=3600)
    samples: tuple[str, ...] = option(
        "Sentences to speak at every evaluation, and after training as RUN/sample-1.wav and so on.",
        ("The old man bought a red door.", "Where did Mary find the key?", "It was raining, so we stayed at home."),
        resume="free",
    )
    speaking: SpeakingConfig = option("How a trained model speaks.", SpeakingConfig())
    evaluation: EvaluationConfig = option(
        "Metrics of spoken audio in evaluations, besides the losses.", EvaluationConfig()
    )
    on_bad_example: Literal["fail", "skip"] = option(
        "What to do with an utterance that can't be used: audio that can't be read, text that can't be spoken, an "
        "alignment that is missing or wrong.",
        "fail",
        resume="other numbers",
    )
    max_unknown: float = max_unknown_option("the front end can't pronounce")
    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs; null is RUN/prepared.", None, resume="free"
    )


TtsExperiment = Experiment[TtsModelConfig, TtsDataConfig, AudioConfig, DatasetConfig]
