"""The options of a speech recogniser. Imports no torch."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, model_validator

from vaak.audio.config import AUDIO_ALIASES, AudioConfig, AugmentationConfig, DatasetConfig
from vaak.config.base import (
    LARGEST_COUNT,
    LARGEST_LENGTH,
    PathRead,
    Place,
    ResumeClass,
    Section,
    Source,
    SourceOrName,
    option,
)
from vaak.config.experiment import Experiment
from vaak.nn.config import LARGEST_WIDTH, ConformerConfig, LoraConfig
from vaak.scoring.normalisers import NormaliserName
from vaak.text.config import TokenizerConfig, max_unknown_option

SCRATCH = "scratch"
WHISPER, CTC, DECODER = "whisper", "ctc", "decoder"
"""Values of model.architecture."""
LOAD_BALANCING = "load_balancing"
"""The only name in training.loss.auxiliary: the balance loss of models with experts."""
VERSIONS = {"v2": "openai/whisper-large-v2", "v3": "openai/whisper-large-v3"}
"""Short names of bases on the Hugging Face Hub."""
CONTEXT_SECONDS, CONTEXT_TOKENS = 30.0, 448
"""Sizes of what every Whisper reads and writes at once."""


def seconds_read_by(base: str, folder: Path = Path()) -> float | None:
    """Return the seconds of audio that a base's encoder reads at most; None if it isn't a folder that gives them."""
    for place in (Path(base).expanduser(), folder / base):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            # No folder of transformers: others say it.
            positions = json.loads((place / "config.json").read_text(encoding="utf-8")).get("max_source_positions")
            if isinstance(positions, int) and positions > 0:
                return min(2 * positions / 100, CONTEXT_SECONDS)
    return None


def has_whole_steps(seconds: float) -> bool:
    """Return whether a Whisper's encoder, which takes a step each 0.02 s, can read exactly ``seconds``."""
    return not round(seconds * 100) % 2 and abs(seconds * 100 - round(seconds * 100)) <= 1e-6


DEFAULTS: dict[str, Any] = {
    "data": {"tokenizer": {"type": "character", "vocab_size": 1000}},
    "training": {
        "epochs": 10,
        "batch_size": 16,
        "optimizer": {"type": "adamw", "lr": 1e-4, "weight_decay": 0.01},
        "gradient_clipping": {"norm": 1.0},
        "checkpoint": {"metric": "val_wer"},
        "logging": {"interval": 10},
    },
}

ALIASES: dict[str, str] = {
    **AUDIO_ALIASES,
    "whisper_model": "model.base",
    "model.whisper_model": "model.base",
    "data_percent": "data.percent",
    "data.data_percent": "data.percent",
}


class ScratchConfig(Section):
    """The sizes of a Whisper that is trained from scratch."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    d_model: int = option("Width.", 128, gt=0, le=LARGEST_WIDTH)
    encoder_layers: int = option("Layers of the encoder.", 2, gt=0, le=1000)
    decoder_layers: int = option("Layers of the decoder.", 2, gt=0, le=1000)
    num_heads: int = option("Attention heads per layer.", 4, gt=0, le=1000)
    d_ff: int | None = option("Width of the feed-forward layers; null is 4 times d_model.", None, gt=0)
    max_target_length: int = option(
        "Longest transcript, in tokens, including its start and end.", CONTEXT_TOKENS, gt=2, le=LARGEST_LENGTH
    )
    dropout: float = option("Dropout.", 0.1, ge=0, lt=1, resume="other numbers")

    @model_validator(mode="after")
    def _heads_fit(self) -> ScratchConfig:
        if self.d_model % self.num_heads or self.d_model % 2:
            raise ValueError(f"d_model ({self.d_model}) must be even and a multiple of num_heads ({self.num_heads})")
        return self


class WhisperLoraConfig(LoraConfig):
    """Low-rank adapters of a Whisper, by the names of its layers."""

    targets: tuple[str, ...] = option("Linear layers to adapt, by the end of their names.", ("q_proj", "v_proj"))


class ExpertsConfig(WhisperLoraConfig):
    """A mixture of experts: for each utterance, a gate chooses some of several low-rank adapters."""

    num_experts: int = option("Number of experts.", 8, gt=1, le=10_000)
    top_k: int = option("Number of experts chosen for an utterance.", 1, gt=0, le=10_000)
    gate_width: int = option("Width of the gate's hidden layer.", 256, gt=0, le=LARGEST_WIDTH)
    balancing_bias: float = option(
        "Load balancing without a loss: each step raises the bias of an expert in the choice by this if it was "
        "chosen less often than the mean, else lowers it; 0 disables it, 0.001 is usual. Source: Wang et al. "
        "2024.",
        0.0,
        ge=0,
    )

    @model_validator(mode="after")
    def _there_are_as_many(self) -> ExpertsConfig:
        if self.top_k > self.num_experts:
            raise ValueError(f"top_k ({self.top_k}) is more than num_experts ({self.num_experts})")
        if self.dora:
            raise ValueError("dora is for one adapter (model.lora): an example has the change of several experts")
        return self


class MaskingConfig(Section):
    """Masks over a base's frames in training. Source: Baevski et al. 2020, "wav2vec 2.0", section 4.3."""

    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    time_prob: float = option("Fraction of the frames to mask, in spans that may overlap.", 0.05, ge=0, le=1)
    time_length: int = option("Length of a span, in frames.", 10, gt=0, le=LARGEST_LENGTH)
    channel_prob: float = option("Fraction of the channels to mask in all frames, in spans.", 0.0, ge=0, le=1)
    channel_length: int = option("Width of a span, in channels.", 10, gt=0, le=LARGEST_WIDTH)


class AsrModelConfig(Section):
    """The network, and which parts of it are trained; training.freeze can freeze its encoder."""

    bare: ClassVar[str | None] = "base"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    name: str | None = option("A descriptive name; it has no effect.", None, resume="free")
    architecture: Literal["whisper", "ctc", "decoder"] = option(
        "whisper: a decoder writes the transcript token by token; ctc: an encoder predicts a token or none for "
        "each of its frames; decoder: another base with a decoder, such as Moonshine or Qwen3-ASR.",
        "whisper",
    )
    base: SourceOrName = option(
        "scratch: train from scratch; v2, v3: Whisper large; or a name on the Hugging Face Hub, or a folder; for "
        "ctc, also a run that trained a Conformer.",
        SCRATCH,
    )
    window: float | None = option(
        "whisper with a base: seconds that its encoder reads at once; null: as many as the base was trained with "
        "(30). Fewer are faster, but cut its positions: until it has adapted in training, it repeats and loses "
        "words.",
        None,
        gt=0,
        le=CONTEXT_SECONDS,
    )
    scratch: ScratchConfig = option("whisper: sizes, if base is scratch.", ScratchConfig())
    conformer: ConformerConfig = option("ctc: the encoder, if base is scratch.", ConformerConfig())
    masking: MaskingConfig = option(
        "ctc with a base: how its frames and channels are masked in training.", MaskingConfig()
    )
    train_feature_encoder: bool = option("ctc with a base: train its convolutions, too.", False)
    adapter: str | None = option(
        "ctc with a base that has an adapter per language (MMS): train only the adapter of this language, such as "
        "hin, and the output layer. If the base has no output layer for it, a new one is made for the tokens of "
        "data.tokenizer.",
        None,
        pattern=r"^[A-Za-z0-9][\w-]*$",
    )
    lora: WhisperLoraConfig | None = option("Train low-rank adapters of the frozen base; null: train all of it.", None)
    experts: ExpertsConfig | None = option("Train several low-rank adapters, and a gate that chooses among them.", None)

    @model_validator(mode="after")
    def _window_fits(self) -> AsrModelConfig:
        if self.window is not None and not has_whole_steps(self.window):
            raise ValueError(f"window ({self.window:g}) must be a multiple of 0.02, the encoder's step")
        return self


def _split_hotwords(value: Any) -> Any:
    """A text of hotwords with commas between them is a list of them; so is each of a list, as which YAML gives one."""
    if not isinstance(value, str | list | tuple):
        return value
    entries = [value] if isinstance(value, str) else value
    # What isn't a text, pydantic reports.
    return tuple(
        part
        for one in entries
        for part in ([part.strip() for part in one.split(",") if part.strip()] if isinstance(one, str) else [one])
    )


HOTWORD_FILES = (".txt", ".tsv")
"""A hotword that ends so is a file of them."""
Hotwords = Annotated[
    tuple[Annotated[Place, PathRead(endings=HOTWORD_FILES)], ...],
    BeforeValidator(_split_hotwords, json_schema_input_type=str | list[str]),
]


class AsrDecodingConfig(Section):
    """How transcripts are written."""

    bare: ClassVar[str | None] = "method"
    resume_class: ClassVar[ResumeClass | None] = "other numbers"

    method: Literal["greedy", "beam"] = option("The search for the most probable transcript.", "greedy")
    beam_size: int = option("beam: number of hypotheses.", 5, ge=1, le=10_000)
    length_penalty: float = option("whisper, beam: scores are divided by length to this power.", 1.0, ge=0)
    early_stopping: bool = option(
        "whisper, beam: end a search once beam_size hypotheses are complete; false: once no other can win, which "
        "takes several times as long.",
        True,
    )
    max_new_tokens: int | None = option(
        "whisper, decoder: maximum number of tokens per window; null: as many as the decoder can take.", None, gt=0
    )
    token_min_logp: float | None = option(
        "ctc, beam: leave out tokens of a frame with a lower log-probability, except the best one; "
        "null: leave out none.",
        -5.0,
        le=0,
    )
    beam_threshold: float | None = option(
        "ctc, beam: leave out hypotheses whose score is lower than the best one's by more than this; "
        "null: leave out none.",
        10.0,
        gt=0,
    )
    ngram: Source | None = option(
        "ctc, beam: an ARPA file (of KenLM or SRILM; may be gzipped) with an n-gram model of words, spelt as in "
        "the transcripts.",
        None,
    )
    lm: Source | None = option(
        "ctc, beam: a run of task lm (a decoder) instead of an n-gram model, trained on texts spelt as in the "
        "transcripts.",
        None,
    )
    alpha: float = option("ctc, beam: weight of the language model's log-probabilities.", 0.5, ge=0)
    beta: float = option("ctc, beam: score added for each word.", 0.0)
    hotwords: Hotwords = option(
        "whisper; ctc, beam: words and phrases that transcripts should prefer, such as names: a list, or a text "
        "with commas between them; NAME.txt or NAME.tsv is a file with one per line, which may have its own "
        "weight after a tab.",
        (),
    )
    hotword_weight: float = option(
        "Score, as a log-probability, added each time a hotword appears in a transcript.", 4.0, gt=0, le=1000
    )
    chunk: float | None = option(
        "ctc, for a streaming Conformer: length in seconds of the chunks in which audio is read, a multiple of the "
        "encoder's step; null: the whole recording at once.",
        None,
        gt=0,
    )
    language: str | None = option(
        "whisper, or a base that is told the language, such as Qwen3-ASR: language of the recordings, such as hi; "
        "auto: the most probable one of each window (of each recording, if long_form is seek); null is data.language.",
        None,
    )
    task: Literal["transcribe", "translate"] = option(
        "whisper: translate writes English, if the base can.", "transcribe"
    )
    prompt: str | None = option(
        "whisper: a text that the model takes as said before the recording: for names, spelling and style.", None
    )
    timestamps: Literal["none", "segment", "word"] = option(
        "Which times to find. segment: those that a Whisper writes itself; word: also those of words, each with "
        "its probability, from a Whisper's attention to the audio or a CTC model's frames.",
        "none",
    )
    max_initial_timestamp: float | None = option(
        "whisper: seconds of a window within which its first segment must begin; null: anywhere.", 1.0, ge=0
    )
    long_form: Literal["silences", "seek"] = option(
        "whisper: how long recordings are cut into windows. silences: where it is quietest; seek: as Whisper "
        "does, each beginning where the last complete segment of the previous one ends.",
        "silences",
    )
    condition_on_previous: bool = option("whisper, seek: prompt each window with the text before it.", False)
    temperature: float = option(
        "whisper: 0 writes the most probable text (by method); above 0, tokens are drawn.", 0.0, ge=0, le=100
    )
    temperature_step: float | None = option(
        "whisper: transcribe a window whose text fails a threshold again, at a temperature higher by this each "
        "time, up to 1; 0.2 is usual; null: never.",
        None,
        gt=0,
    )
    compression_ratio_threshold: float | None = option(
        "whisper: a text fails, because it repeats itself, if zlib compresses its tokens by more than this "
        "factor. transformers uses 1.35, of tokens as here; OpenAI 2.4, of characters.",
        None,
        gt=0,
    )
    logprob_threshold: float | None = option(
        "whisper: a text fails if the mean log-probability of its tokens is below this; -1 is usual.", None
    )
    no_speech_threshold: float | None = option(
        "whisper: a window that fails logprob_threshold counts as silence if the probability of <|nospeech|> is "
        "above this; 0.6 is usual.",
        None,
        ge=0,
        le=1,
    )
    batch_size: int = option("Maximum number of windows transcribed together.", 16, gt=0, le=LARGEST_COUNT)
    valid_examples: int | None = option(
        "Number of validation examples that are transcribed during training; null is all.", None, ge=0
    )

    @property
    def writes_times(self) -> bool:
        """Whether a Whisper writes the times of segments."""
        return self.timestamps != "none" or self.long_form == "seek"

    @property
    def temperatures(self) -> tuple[float, ...]:
        """The temperatures at which a window is written, one after another until its text is good enough."""
        if self.temperature_step is None:
            return (self.temperature,)
        steps = int((1 - self.temperature) / self.temperature_step + 1e-6)
        return tuple(self.temperature + number * self.temperature_step for number in range(max(0, steps) + 1))


class AsrDataConfig(Section):
    """How recordings and their transcripts become examples."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    group: str | None = option(
        "The label by which examples are sampled and metrics are broken down: a key of the manifest, speaker or "
        "language. null: the first of etiology, accent, severity and group that the labels have.",
        None,
    )
    groups: tuple[str, ...] = option("Use only utterances of these groups; empty: of all.", ())
    percent: float = option(
        "Percentage of the training utterances to use, from each group in proportion.", 100.0, gt=0, le=100
    )
    max_samples: int | None = option(
        "Maximum number of training utterances, from each group in proportion.", None, gt=0, le=LARGEST_COUNT
    )
    max_valid_samples: int | None = option(
        "The same for the validation split; null: all.", None, gt=0, le=LARGEST_COUNT
    )
    sampling_seed: int = option("Random seed of percent, max_samples and max_valid_samples.", 42, ge=0)
    max_duration: float = option(
        "Longest utterance, in seconds. Audio for a Whisper is padded: to 30 s for a pretrained one "
        "(model.window), to this for one trained from scratch, so a smaller value trains faster.",
        CONTEXT_SECONDS,
        gt=0,
        le=CONTEXT_SECONDS,
    )
    too_long: Literal["fail", "drop", "split"] = option(
        "What to do with utterances longer than max_duration, or with more tokens than the decoder can write or "
        "(ctc) than there are frames. split: cut those whose words have times at silences, and drop the others.",
        "drop",
    )
    join_utterances: bool = option(
        "Train on neighbouring utterances of a recording together, as many as fit into max_duration.", False
    )
    timestamps: float = option(
        "whisper with a base: fraction of the training examples whose targets contain the times of segments: of "
        "joined utterances, of phrases between pauses where words have times, or else of the utterance.",
        0.0,
        ge=0,
        le=1,
        resume="other numbers",
    )
    language: str = option("Language of the transcripts, for a multilingual base.", "en")
    language_like: str | None = option(
        "whisper: for a data.language that the base doesn't know, the closest one that it does, such as bn. The "
        "new language gets a token whose embedding starts as this one's.",
        None,
    )
    tokenizer: TokenizerConfig = option(
        "The tokenizer of transcripts: base: scratch, and architecture: ctc where the base has no tokens, or path is "
        "given.",
        TokenizerConfig(),
    )
    augmentation: AugmentationConfig | None = option("Augmentation of training audio; null disables it.", None)
    features_on: Literal["auto", "loader", "device"] = option(
        "Where features of training audio are computed. device: on the model's device, as part of the step, so "
        "that the loader only reads audio; the features are the same up to rounding. auto: device on a CUDA GPU, "
        "loader elsewhere.",
        "auto",
        resume="other numbers",
    )
    decoding: AsrDecodingConfig = option("How transcripts are written.", AsrDecodingConfig())
    normaliser: NormaliserName = option(
        "How texts are normalised for WER and CER: whisper-english as Whisper does for English; basic (any "
        "script) ignores case and punctuation; none compares them unchanged.",
        "basic",
        resume="other numbers",
    )
    on_bad_example: Literal["fail", "skip"] = option(
        "What to do with an utterance that can't be used, such as audio that can't be read.",
        "fail",
        resume="other numbers",
    )
    refuse_empty_transcripts: bool = option(
        "Whether an utterance whose transcript is given as empty can't be used (on_bad_example). By default it is a "
        "recording without speech, from which a model learns to write nothing. A missing transcript never is one.",
        False,
    )
    max_unknown: float = max_unknown_option()
    cache_dir: Place | None = option(
        "Folder for prepared data, shared by runs; null is RUN/prepared.", None, resume="free"
    )

    @model_validator(mode="after")
    def _frames_fit(self) -> AsrDataConfig:
        if not has_whole_steps(self.max_duration):
            raise ValueError(f"max_duration ({self.max_duration:g}) must be a multiple of 0.02, the encoder's step")
        return self


def find_window(model: AsrModelConfig, data: AsrDataConfig) -> float:
    """Return the seconds to which a Whisper's audio is padded, as far as known before its base is read."""
    if model.base == SCRATCH:
        return data.max_duration
    return model.window or seconds_read_by(model.base) or CONTEXT_SECONDS


AsrExperiment = Experiment[AsrModelConfig, AsrDataConfig, AudioConfig, DatasetConfig]
