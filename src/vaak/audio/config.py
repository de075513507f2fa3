"""The options of audio: features, corpora, augmentation. Imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from vaak.audio.mel_config import MelConfig, PitchConfig
from vaak.config.base import (
    LARGEST_COUNT,
    DialectConfig,
    DividedSection,
    Place,
    ResumeClass,
    Section,
    Source,
    SourceOrName,
    dialect_option,
    fold_option,
    folds_file_option,
    option,
    test_examples_option,
    valid_examples_option,
)

AUDIO_ALIASES = {
    "global_config.num_filters": "global_config.num_mel_bins",
    "global_config.extraction_num_jobs": "global_config.num_jobs",
}

SECONDS_OF_A_DAY = 86_400


def to_samples(seconds: float, sampling_rate: int) -> int:
    """Whole samples in this many seconds, rounded down as in Kaldi, but never because of a float's last digits.

    >>> to_samples(0.025, 16000), to_samples(0.0115, 8000), 0.29 * 100, to_samples(0.29, 100)
    (400, 92, 28.999999999999996, 29)
    """
    return int(seconds * sampling_rate + 1e-6)


class AudioConfig(Section):
    """Features of all datasets, and the folders of corpora. Names and meanings are Lhotse's, and so Kaldi's."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    corpus_dir: SourceOrName = option("Folder of the corpora, with one folder for each.", "./data", resume="free")
    output_dir: Place | None = option(
        "Folder for manifests of prepared corpora; null is ./manifests, and for built-in voices a cache (VAAK_CACHE, "
        "by default ~/.cache/vaak).",
        None,
        resume="free",
    )
    feature_type: Literal["fbank", "mfcc", "spectrogram", "mel"] = option(
        "fbank: log-mel filter banks; mfcc: cepstral coefficients; spectrogram: log power spectrum; mel: mel "
        "spectrograms for speech synthesis, by the options of mel.",
        "fbank",
    )
    mel: MelConfig | None = option(
        "mel: its options, which replace those of the other types; null: their defaults.", None
    )
    pitch: PitchConfig | None = option("mel: add the energy and F0 in Hz (0: unvoiced) to each frame.", None)
    sampling_rate: int = option(
        "Sampling rate of the features, in Hz; other recordings are resampled.", 16000, gt=0, le=10_000_000
    )
    num_mel_bins: int = option("fbank, mfcc: number of mel filters.", 80, gt=0, le=65_536)
    frame_length: float = option("Length of an analysis window, in seconds.", 0.025, gt=0, le=60)
    frame_shift: float = option("Seconds between frames.", 0.01, gt=0, le=60)
    round_to_power_of_two: bool = option("Round the length of the FFT up to a power of two.", True)
    remove_dc_offset: bool = option("Subtract the mean of each window.", True)
    preemph_coeff: float = option("Pre-emphasis coefficient; 0 disables it.", 0.97, ge=0, le=1)
    window_type: Literal["povey", "hanning", "hamming", "rectangular", "blackman"] = option(
        "The window function.", "povey"
    )
    dither: float = option(
        "Standard deviation of noise added in training, for samples between -1 and 1; 0 disables it.", 0.0, ge=0
    )
    snip_edges: bool = option("true: only complete windows; false: a frame for every shift.", False)
    energy_floor: float = option("use_energy: minimum energy, before the logarithm.", 1e-10, gt=0)
    raw_energy: bool = option("Compute energy before pre-emphasis and window.", True)
    use_energy: bool = option(
        "Add the log energy: before the bins of fbank, in place of mfcc's first coefficient or spectrogram's "
        "first bin.",
        False,
    )
    use_fft_mag: bool = option("Use magnitudes instead of powers.", False)
    low_freq: float = option("fbank, mfcc: lowest frequency of the filters, in Hz.", 20.0, ge=0)
    high_freq: float = option(
        "fbank, mfcc: highest frequency, in Hz; values up to 0 are relative to half the sampling rate.", -400.0
    )
    norm_filters: bool = option("fbank, mfcc: normalise filters to equal area.", False)
    num_ceps: int = option("mfcc: number of coefficients.", 13, gt=0)
    cepstral_lifter: int = option("mfcc: liftering; 0 disables it.", 22, ge=0)
    storage_path: Place | None = option(
        "Folder of stored features; null: they are computed when needed.",
        None,
        resume="free",
        resume_switch="refused",
    )
    storage_type: Literal["float32", "float16", "lilcom"] = option(
        "Format of stored features: exact, half precision, or compressed by Lhotse's lilcom.", "float32"
    )
    num_jobs: int = option("Number of processes that extract stored features.", 1, gt=0, le=4096, resume="free")
    progress_bar: bool = option("Show the progress of extraction.", True, resume="free")
    cache_gigabytes: float = option(
        "Memory per process and dataset for caching audio and features; 0 disables caching.",
        0.5,
        ge=0,
        resume="free",
    )
    channels: Literal["mix", "first"] = option(
        "How recordings with several channels become one: by their mean, or by taking the first channel.", "mix"
    )

    @model_validator(mode="after")
    def _follows_mel(self) -> AudioConfig:
        """The options of mel say that it is the type; those of the same meaning get its values, before any is read."""
        if (self.mel is not None or self.pitch is not None) and self.feature_type != "mel":
            if "feature_type" in self.model_fields_set:
                raise ValueError(f"mel and pitch are options of feature_type mel, but it is {self.feature_type}")
            # Sections are frozen. This way the value also stays out of ``model_fields_set``: the user didn't set it.
            object.__setattr__(self, "feature_type", "mel")
        if self.feature_type != "mel":
            return self
        mel = MelConfig() if self.mel is None else self.mel
        values = {"sampling_rate": mel.sampling_rate, "num_mel_bins": mel.n_mels, "frame_shift": mel.frame_shift}
        for name, value in values.items():
            if name in self.model_fields_set and getattr(self, name) != value:
                options = "mel" if self.mel is not None or self.pitch is None else "mel, to which pitch belongs"
                raise ValueError(
                    f"{name} is {getattr(self, name)}, but {value} by the options of {options}: leave {name} out"
                )
            object.__setattr__(self, name, value)
        object.__setattr__(self, "mel", mel)
        return self

    @model_validator(mode="after")
    def _sizes_fit(self) -> AudioConfig:
        if self.storage_path is not None and self.dither:
            raise ValueError("dither is random each time, so features with it can't be stored in storage_path")
        # MelConfig checks its own sizes; none of the options below applies to mel.
        if self.feature_type == "mel":
            return self
        nyquist = self.sampling_rate / 2
        high = self.high_freq if self.high_freq > 0 else nyquist + self.high_freq
        if not self.low_freq < high <= nyquist:
            raise ValueError(
                f"low_freq ({self.low_freq}) to high_freq ({high}) is not a valid frequency range up to half of "
                f"sampling_rate ({nyquist})"
            )
        window, shift = (to_samples(seconds, self.sampling_rate) for seconds in (self.frame_length, self.frame_shift))
        if shift < 1 or window < 2:
            raise ValueError(
                f"frame_length ({self.frame_length}) and frame_shift ({self.frame_shift}) are {window} and {shift} "
                f"samples at sampling_rate ({self.sampling_rate}); expected at least 2 and 1"
            )
        if self.feature_type != "spectrogram" and self.num_mel_bins < 4:
            raise ValueError(f"num_mel_bins ({self.num_mel_bins}) is less than 4")
        # Without rounding to a power of two, the window is the FFT size, and Lhotse's mel filters need an even one.
        if self.feature_type != "spectrogram" and window % 2 and not self.round_to_power_of_two:
            raise ValueError(
                f"frame_length ({self.frame_length}) is {window} samples, but mel filters require an even number if "
                "round_to_power_of_two is false"
            )
        if self.feature_type == "mfcc" and self.num_ceps > self.num_mel_bins:
            raise ValueError(f"num_ceps ({self.num_ceps}) is more than num_mel_bins ({self.num_mel_bins})")
        if self.frame_shift > self.frame_length:
            raise ValueError(f"frame_shift ({self.frame_shift}) is longer than frame_length ({self.frame_length})")
        return self


Range = tuple[float, float]
"""Minimum and maximum; one number is both."""


def as_range(value: Any) -> Any:
    """Return a range as one number for both ends, or as a list of both."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    # After a validator in Python, pydantic's strict tuple no longer accepts a list.
    return tuple(value) if isinstance(value, list) else value


def rising(value: Range | None) -> Range | None:
    """Return the range. Raises ValueError if its minimum is above its maximum."""
    if value is not None and value[0] > value[1]:
        raise ValueError(f"{list(value)} is not a range; expected [minimum, maximum]")
    return value


def speed_factors(value: tuple[float, ...]) -> tuple[float, ...]:
    """Return the factors. Raises ValueError if one is out of range."""
    if any(not 0.5 <= factor <= 2 for factor in value):
        raise ValueError(f"{list(value)}: speed factors must be between 0.5 and 2")
    return value


class NoiseConfig(Section):
    """Noise added to speech."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type: Literal["coloured", "babble", "files"] = option(
        "coloured: noise with a random spectral slope; babble: voices of the corpus; files: recordings of a folder.",
        "coloured",
    )
    folder: Source | None = option("files: folder of the recordings, searched recursively.", None, only_for=("files",))
    snr: Range = option("Signal-to-noise ratio in decibels.", (10.0, 20.0))
    probability: float = option("Fraction of the examples that are changed.", 1.0, ge=0, le=1)

    _range = field_validator("snr", mode="before")(as_range)
    _rising = field_validator("snr")(rising)

    @model_validator(mode="after")
    def _files_lie_somewhere(self) -> NoiseConfig:
        if self.type == "files" and self.folder is None:
            raise ValueError("noise of type files requires folder, with its recordings")
        return self


class RoomConfig(Section):
    """Rooms simulated by the image-source method."""

    bare: ClassVar[str | None] = "t60"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    t60: Range = option("Reverberation time in seconds.", (0.2, 0.6))
    probability: float = option("Fraction of the examples that are changed.", 1.0, ge=0, le=1)

    _range = field_validator("t60", mode="before")(as_range)

    @field_validator("t60")
    @classmethod
    def _is_of_rooms(cls, value: Range) -> Range:
        if not 0.05 <= value[0] <= value[1] <= 5:
            raise ValueError(f"{list(value)} is not a range of reverberation times from 0.05 to 5 seconds")
        return value


class SpecAugmentConfig(Section):
    """Masks on bands and time intervals of the features. Source: Park et al. 2019, "SpecAugment"."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    num_frequency_masks: int = option("Number of bands.", 2, ge=0)
    frequency_mask: int = option("Maximum width of a band, in bins.", 10, ge=0)
    num_time_masks: int = option("Maximum number of time intervals.", 2, ge=0)
    time_mask: float = option("Maximum length of an interval, in seconds.", 0.25, ge=0)
    probability: float = option("Fraction of the examples that are changed.", 1.0, ge=0, le=1)


class AugmentationConfig(Section):
    """Augmentation of training audio; each draw is a function of random seed, epoch and example."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    speed: tuple[float, ...] = option(
        "Factors of speed and pitch, one drawn for each example; empty disables this.", ()
    )
    volume: Range | None = option("Gain in decibels; null disables this.", None)
    noise: NoiseConfig | None = option("Added noise; null disables this.", None)
    room: RoomConfig | None = option("Simulated rooms; null disables this.", None)
    codecs: tuple[Literal["mulaw", "alaw", "opus", "opus_fast", "mp3", "vorbis"], ...] = option(
        "Codecs, one drawn for each example that gets one; empty disables this. opus_fast: Opus by PyAV, in less time.",
        (),
    )
    codec_probability: float = option("Fraction of the examples that go through a codec.", 0.5, ge=0, le=1)
    spec_augment: SpecAugmentConfig | None = option("Masks on the features; null disables this.", None)

    _range = field_validator("volume", mode="before")(as_range)
    _rising = field_validator("volume")(rising)
    _factors = field_validator("speed")(speed_factors)

    @property
    def changes_audio(self) -> bool:
        """Whether anything but ``spec_augment`` is done, so that features differ each time."""
        return bool(self.speed or self.volume or self.noise or self.room or self.codecs)


class ConversationsConfig(Section):
    """Conversations simulated from utterances of single speakers.

    Source: Fujita et al. 2019, "End-to-End Neural Speaker Diarization with Self-Attention", section 4.1.
    """

    resume_class: ClassVar[ResumeClass | None] = "refused"

    train: int = option(
        "Number of training conversations in an epoch; each epoch has different ones.", 10000, ge=0, le=LARGEST_COUNT
    )
    valid: int = option("Number of validation conversations; always the same.", 100, ge=0, le=LARGEST_COUNT)
    test: int = option("Number of test conversations; always the same.", 100, ge=0, le=LARGEST_COUNT)
    num_speakers: tuple[int, int] = option("Minimum and maximum number of speakers.", (2, 2))
    beta: float = option(
        "Mean pause between a speaker's utterances, in seconds: smaller values give more overlap.", 2.0, gt=0
    )
    duration: Range = option("Duration of a conversation, in seconds.", (30.0, 60.0))
    train_duration: Range | None = option("Duration of training conversations; null is duration.", None)
    speed: tuple[float, ...] = option("train: factors of a speaker's speed and pitch, one drawn for each speaker.", ())
    silence: float = option("train: fraction of conversations without any speech.", 0.0, ge=0, lt=1)
    level_difference: float = option("Maximum deviation of a speaker's level, in decibels.", 5.0, ge=0)
    noise: NoiseConfig | None = option("Noise in the conversation; null disables this.", NoiseConfig())
    room: RoomConfig | None = option("A room with a place for each speaker; null disables this.", None)
    seed: int = option("Random seed of the conversations of valid and test.", 0, ge=0)

    _factors = field_validator("speed")(speed_factors)

    def durations(self, split: str) -> Range:
        """Minimum and maximum duration in seconds of a split's conversations."""
        return (self.train_duration or self.duration) if split == "train" else self.duration

    @field_validator("num_speakers", "duration", "train_duration", mode="before")
    @classmethod
    def _one_number_is_both_ends(cls, value: Any) -> Any:
        return as_range(value)

    @model_validator(mode="after")
    def _ranges_rise(self) -> ConversationsConfig:
        for name in ("num_speakers", "duration", "train_duration"):
            value = getattr(self, name)
            if value is not None and not 0 < value[0] <= value[1]:
                raise ValueError(f"{name} {list(value)} is not a range of numbers above 0; expected [minimum, maximum]")
            if value is not None and value[1] > SECONDS_OF_A_DAY:
                raise ValueError(f"{name} {list(value)} is more than {SECONDS_OF_A_DAY}")
        return self


DatasetType = Literal[
    "recipe",
    "cuts",
    "folder",
    "json",
    "ljspeech",
    "splits",
    "voices",
    "ami",
    "commonvoice",
    "espnet",
    "fleurs",
    "kaldi",
    "librispeech",
    "nemo",
    "parquet",
    "shar",
    "transcripts",
    "voxpopuli",
    "webdataset",
]
BY_SPEAKER = ("splits", "commonvoice", "librispeech", "voxpopuli")
"""Types whose utterances have one speaker each, whom a split that is made shouldn't share."""


class DatasetConfig(DividedSection):
    """One corpus of recordings."""

    bare: ClassVar[str | None] = "name"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    name: str = option("A name; for type recipe, the name of a Lhotse recipe (vaak data list).", "voices")
    type: DatasetType = option(
        "recipe: a Lhotse recipe; cuts: Lhotse manifests; folder: audio next to RTTM (and UEM, CTM, "
        "TextGrid) files; json: JSON lines, or tables (CSV, TSV); ljspeech: metadata.csv and wavs; splits: folders "
        "Train, Dev and Test; transcripts: audio with texts in files of the same names (.txt, .lab, .srt, .vtt, .eaf), "
        "or in a list; voices: speech synthesised by espeak-ng; others: that corpus, or what that program wrote, as it "
        "is in corpus_dir (docs/datasets.md).",
        "recipe",
    )
    corpus_dir: Source | None = option(
        "Folder of the corpus; null is global_config.corpus_dir / name.", None, resume="free"
    )
    output_dir: Place | None = option(
        "Folder of its manifests; null is global_config.output_dir / name.", None, resume="free"
    )
    options: dict[str, Any] = option(
        "recipe: further arguments of its prepare function; ami: mic, the microphone (Mix-Headset, Headset, "
        "Array1-01, …).",
        {},
        only_for=("recipe", "ami"),
    )
    columns: dict[str, str] = option(
        "json, and types of tables: keys or columns that have other names in the manifests, such as {audio: path, "
        "text: sentence}.",
        {},
        only_for=("json", "splits", "commonvoice", "fleurs", "nemo", "parquet", "voxpopuli", "webdataset"),
    )
    audio_root: tuple[Source, ...] = option(
        "Folders besides the manifest's own that may contain its audio, by absolute or relative paths; without "
        "any, only the manifest's folder may (cuts: any folder).",
        (),
        resume="free",
        only_for=(
            "cuts", "json", "ljspeech", "splits", "commonvoice", "espnet", "fleurs", "kaldi", "librispeech", "nemo",
            "parquet", "voxpopuli",
        ),
    )  # fmt: skip
    train: tuple[SourceOrName, ...] = option(
        "recipe: its parts; otherwise files, folders or patterns (ljspeech: metadata.csv). Alone, it is split by "
        "train_fraction.",
        (),
    )
    valid: tuple[SourceOrName, ...] = option("The same for the validation split.", ())
    test: tuple[SourceOrName, ...] = option("The same for the test split.", ())
    split_by: Literal["recording", "speaker"] = option(
        "What stays in one split, if valid and test are not given: a recording, or all recordings of a speaker. "
        "With conversations, and for types splits, commonvoice, librispeech and voxpopuli, the default is "
        "speaker, so that no test speaker occurs in training.",
        "recording",
    )
    train_fraction: float = option("Fraction for train, if valid and test are not given.", 0.8, gt=0, le=1)
    valid_fraction: float = option("Fraction for valid; the rest is test.", 0.1, ge=0, lt=1)
    valid_examples: int | None = valid_examples_option("recordings (split_by: speaker: of speakers)")
    test_examples: int | None = test_examples_option()
    num_voices: int = option("voices: number of speakers.", 60, gt=0, le=1_000_000, only_for=("voices",))
    num_sentences: int = option(
        "voices: number of sentences per speaker.", 12, gt=0, le=LARGEST_COUNT, only_for=("voices",)
    )
    say: Literal["sentences", "digits"] = option(
        "Texts of type voices: English sentences, or one to six digits.", "sentences", only_for=("voices",)
    )
    seed: int = option("voices: random seed of speakers and sentences.", 0, ge=0, only_for=("voices",))
    alignments: Source | None = option(
        "Folder of the utterances' alignments, searched recursively: NAME.TextGrid, NAME.ctm or NAME.json with "
        "words and phones; null: the corpus's own (ljspeech: its folder TextGrid).",
        None,
    )
    find_speech: bool = option(
        "For utterances without times of speech: find pauses by energy, so that only speech is labelled.",
        True,
    )
    conversations: ConversationsConfig | None = option(
        "Simulate conversations from its utterances; null uses the recordings unchanged.", None
    )
    dialect: DialectConfig | None = dialect_option(
        "json", "ljspeech", "splits", "commonvoice", "fleurs", "nemo", "transcripts", "voxpopuli"
    )
    fold: str | None = fold_option()
    folds_file: Source | None = folds_file_option()

    @model_validator(mode="after")
    def _splits_share_no_speakers(self) -> DatasetConfig:
        shares_none = self.conversations is not None or self.type in BY_SPEAKER
        if shares_none and "split_by" not in self.model_fields_set:
            # A default, before anyone has read it.
            object.__setattr__(self, "split_by", "speaker")
        return self
