"""The options of audio: features, where recordings come from, what is done to them. Imports no torch."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import field_validator, model_validator

from vaak.config.base import ResumeClass, Section, option

AUDIO_ALIASES = {
    "global_config.num_filters": "global_config.num_mel_bins",
    "global_config.extraction_num_jobs": "global_config.num_jobs",
}


def samples_of(seconds: float, sampling_rate: int) -> int:
    """Whole samples in so many seconds, rounded down as Kaldi does, but never because of the last digits of a float.

    >>> samples_of(0.025, 16000), samples_of(0.0115, 8000), 0.29 * 100, samples_of(0.29, 100)
    (400, 92, 28.999999999999996, 29)
    """
    return int(seconds * sampling_rate + 1e-6)


class AudioConfig(Section):
    """Features of all datasets, and where corpora lie. The names and meanings are those of Lhotse, and so of Kaldi."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    corpus_dir: str = option("Folder of the corpora, one folder for each.", "./data", resume="free")
    output_dir: str = option("Folder where manifests of prepared corpora are written.", "./manifests", resume="free")
    feature_type: Literal["fbank", "mfcc", "spectrogram"] = option(
        "fbank: log-mel filter banks; mfcc: cepstral coefficients; spectrogram: log power spectrum.", "fbank"
    )
    sampling_rate: int = option("Of the features, in Hz; other recordings are resampled.", 16000, gt=0)
    num_mel_bins: int = option("fbank, mfcc: mel filters.", 80, gt=0)
    frame_length: float = option("Seconds of an analysis window.", 0.025, gt=0)
    frame_shift: float = option("Seconds from one frame to the next.", 0.01, gt=0)
    round_to_power_of_two: bool = option("The FFT's length is rounded up to a power of two.", True)
    remove_dc_offset: bool = option("Subtract the mean of each window.", True)
    preemph_coeff: float = option("Pre-emphasis; 0 is none.", 0.97, ge=0, le=1)
    window_type: Literal["povey", "hanning", "hamming", "rectangular", "blackman"] = option("The window.", "povey")
    dither: float = option("Standard deviation of noise added in training, of samples up to 1; 0 adds none.", 0.0, ge=0)
    snip_edges: bool = option("true: only whole windows; false: a frame for every shift.", False)
    energy_floor: float = option("use_energy: least energy, before the logarithm.", 1e-10, gt=0)
    raw_energy: bool = option("Energy is taken before pre-emphasis and window.", True)
    use_energy: bool = option(
        "Log energy: before the bins of fbank, in place of mfcc's first coefficient or spectrogram's first bin.", False
    )
    use_fft_mag: bool = option("Magnitudes in place of powers.", False)
    low_freq: float = option("fbank, mfcc: lowest frequency of the filters, in Hz.", 20.0, ge=0)
    high_freq: float = option("fbank, mfcc: highest frequency; 0 and less count from half the rate.", -400.0)
    norm_filters: bool = option("fbank, mfcc: filters of equal area.", False)
    num_ceps: int = option("mfcc: coefficients.", 13, gt=0)
    cepstral_lifter: int = option("mfcc: liftering; 0 is none.", 22, ge=0)
    storage_path: str | None = option(
        "Folder of stored features; null computes them as they are needed.",
        None,
        resume="free",
        resume_switch="refused",
    )
    storage_type: Literal["float32", "float16", "lilcom"] = option(
        "How stored features are kept: exact, in half precision, or compressed by Lhotse's lilcom.", "float32"
    )
    num_jobs: int = option("Processes that extract features to be stored.", 1, gt=0, resume="free")
    progress_bar: bool = option("Show how far extraction is.", True, resume="free")
    cache_gigabytes: float = option(
        "Memory of each process for audio and features of a dataset that it has read; 0 keeps none.",
        0.5,
        ge=0,
        resume="free",
    )
    channels: Literal["mix", "first"] = option("Several channels: their mean, or the first one.", "mix")

    @model_validator(mode="after")
    def _sizes_fit(self) -> AudioConfig:
        nyquist = self.sampling_rate / 2
        high = self.high_freq if self.high_freq > 0 else nyquist + self.high_freq
        if not self.low_freq < high <= nyquist:
            raise ValueError(
                f"low_freq ({self.low_freq}) to high_freq ({high}) is no range of frequencies up to half of "
                f"sampling_rate ({nyquist})"
            )
        window, shift = (samples_of(seconds, self.sampling_rate) for seconds in (self.frame_length, self.frame_shift))
        if shift < 1 or window < 2:
            raise ValueError(
                f"frame_length ({self.frame_length}) and frame_shift ({self.frame_shift}) are {window} and {shift} "
                f"samples at sampling_rate ({self.sampling_rate}); at least 2 and 1 are needed"
            )
        if self.feature_type != "spectrogram" and self.num_mel_bins < 4:
            raise ValueError(f"num_mel_bins ({self.num_mel_bins}) is less than 4")
        if self.feature_type != "spectrogram" and window % 2 and not self.round_to_power_of_two:
            raise ValueError(
                f"frame_length ({self.frame_length}) is {window} samples, and mel filters need an even number where "
                "round_to_power_of_two is false"
            )
        if self.storage_path is not None and self.dither:
            raise ValueError("dither is drawn anew each time, so features with it can't be kept in storage_path")
        if self.feature_type == "mfcc" and self.num_ceps > self.num_mel_bins:
            raise ValueError(f"num_ceps ({self.num_ceps}) is more than num_mel_bins ({self.num_mel_bins})")
        if self.frame_shift > self.frame_length:
            raise ValueError(f"frame_shift ({self.frame_shift}) is longer than frame_length ({self.frame_length})")
        return self


Range = tuple[float, float]
"""Least and greatest; one number stands for both."""


def as_range(value: Any) -> Any:
    """A range as a number that stands for both its ends, or as a list of them."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return (value, value)
    return tuple(value) if isinstance(value, list) else value  # behind a validator, a strict tuple takes no list


def rising(value: Range | None) -> Range | None:
    """The range. Raises ValueError where its least is more than its greatest."""
    if value is not None and value[0] > value[1]:
        raise ValueError(f"{list(value)} is no range; expected [least, greatest]")
    return value


def speed_factors(value: tuple[float, ...]) -> tuple[float, ...]:
    """The factors. Raises ValueError where one is none that leaves speech what it is."""
    if any(not 0.5 <= factor <= 2 for factor in value):
        raise ValueError(f"{list(value)}: factors of speed lie between 0.5 and 2")
    return value


class NoiseConfig(Section):
    """Noise added to speech."""

    bare: ClassVar[str | None] = "type"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    type: Literal["coloured", "babble", "files"] = option(
        "coloured: noise of a drawn spectral slope; babble: voices of the corpus; files: recordings of a folder.",
        "coloured",
    )
    folder: str | None = option("files: where the recordings lie, in any depth.", None, only_for=("files",))
    snr: Range = option("Decibels of speech above noise.", (10.0, 20.0))
    probability: float = option("Part of the examples that get it.", 1.0, ge=0, le=1)

    _range = field_validator("snr", mode="before")(as_range)
    _rising = field_validator("snr")(rising)

    @model_validator(mode="after")
    def _files_lie_somewhere(self) -> NoiseConfig:
        if self.type == "files" and self.folder is None:
            raise ValueError("noise of type files needs folder, where its recordings lie")
        return self


class RoomConfig(Section):
    """Rooms simulated by the image-source method."""

    bare: ClassVar[str | None] = "t60"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    t60: Range = option("Reverberation time in seconds.", (0.2, 0.6))
    probability: float = option("Part of the examples that get one.", 1.0, ge=0, le=1)

    _range = field_validator("t60", mode="before")(as_range)

    @field_validator("t60")
    @classmethod
    def _is_of_rooms(cls, value: Range) -> Range:
        if not 0.05 <= value[0] <= value[1] <= 5:
            raise ValueError(f"{list(value)} is no range of reverberation times from 0.05 to 5 seconds")
        return value


class SpecAugmentConfig(Section):
    """Bands and stretches of the features are masked. Source: Park et al. 2019, "SpecAugment"."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    num_frequency_masks: int = option("How many bands.", 2, ge=0)
    frequency_mask: int = option("Bins of a band, at most.", 10, ge=0)
    num_time_masks: int = option("How many stretches, at most.", 2, ge=0)
    time_mask: float = option("Seconds of a stretch, at most.", 0.25, ge=0)
    probability: float = option("Part of the examples that get it.", 1.0, ge=0, le=1)


class AugmentationConfig(Section):
    """What is done to training audio; each draw is a function of seed, epoch and example."""

    resume_class: ClassVar[ResumeClass | None] = "refused"

    speed: tuple[float, ...] = option("Factors of speed and pitch, one drawn for each example; empty changes none.", ())
    volume: Range | None = option("Decibels of gain; null changes none.", None)
    noise: NoiseConfig | None = option("Noise added; null adds none.", None)
    room: RoomConfig | None = option("Simulated rooms; null simulates none.", None)
    codecs: tuple[Literal["mulaw", "alaw", "opus", "mp3", "vorbis"], ...] = option(
        "Codecs, one drawn for each example that gets one; empty codes none.", ()
    )
    codec_probability: float = option("Part of the examples that go through a codec.", 0.5, ge=0, le=1)
    spec_augment: SpecAugmentConfig | None = option("Masks on the features; null masks nothing.", None)

    _range = field_validator("volume", mode="before")(as_range)
    _rising = field_validator("volume")(rising)
    _factors = field_validator("speed")(speed_factors)

    @property
    def changes_audio(self) -> bool:
        """Whether anything but ``spec_augment`` is done, so that features are others each time."""
        return bool(self.speed or self.volume or self.noise or self.room or self.codecs)


class ConversationsConfig(Section):
    """Conversations simulated from utterances of single speakers.

    Source: Fujita et al. 2019, "End-to-End Neural Speaker Diarization with Self-Attention", section 4.1.
    """

    resume_class: ClassVar[ResumeClass | None] = "refused"

    train: int = option("How many of train in an epoch; each epoch has others.", 10000, ge=0)
    valid: int = option("How many of valid; always the same.", 100, ge=0)
    test: int = option("How many of test; always the same.", 100, ge=0)
    num_speakers: tuple[int, int] = option("Least and greatest number of speakers.", (2, 2))
    beta: float = option("Mean pause between a speaker's utterances, in seconds: less makes more overlap.", 2.0, gt=0)
    duration: Range = option("Seconds of a conversation.", (30.0, 60.0))
    train_duration: Range | None = option("Seconds of those of train; null is duration.", None)
    speed: tuple[float, ...] = option("train: factors of a speaker's speed and pitch, one drawn for each.", ())
    silence: float = option("train: part of the conversations in which nobody says a word.", 0.0, ge=0, lt=1)
    level_difference: float = option("Speakers' levels differ by up to so many decibels to each side.", 5.0, ge=0)
    noise: NoiseConfig | None = option("Noise under the conversation; null adds none.", NoiseConfig())
    room: RoomConfig | None = option("A room with a place for each speaker; null simulates none.", None)
    seed: int = option("Of the conversations of valid and test.", 0, ge=0)

    _factors = field_validator("speed")(speed_factors)

    def durations(self, split: str) -> Range:
        """Least and greatest number of seconds of a split's conversations."""
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
                raise ValueError(f"{name} {list(value)} is no range of numbers above 0; expected [least, greatest]")
        return self


class DatasetConfig(Section):
    """One corpus of recordings."""

    bare: ClassVar[str | None] = "name"
    resume_class: ClassVar[ResumeClass | None] = "refused"

    name: str = option("A name; of type recipe, that of a Lhotse recipe (vaak data list).", "voices")
    type: Literal["recipe", "cuts", "folder", "json", "voices"] = option(
        "recipe: a corpus that Lhotse knows; cuts: Lhotse manifests; folder: audio beside RTTM (and UEM, CTM, "
        "TextGrid) files; json: JSON lines; voices: speech synthesised by espeak-ng.",
        "recipe",
    )
    corpus_dir: str | None = option(
        "Folder of the corpus; null is global_config.corpus_dir / name.", None, resume="free"
    )
    output_dir: str | None = option(
        "Folder of its manifests; null is global_config.output_dir / name.", None, resume="free"
    )
    options: dict[str, Any] = option("recipe: further arguments of its prepare function.", {}, only_for=("recipe",))
    train: tuple[str, ...] = option(
        "recipe: its parts; else files, folders or patterns. Alone, it is split by train_fraction.", ()
    )
    valid: tuple[str, ...] = option("The same of the validation split.", ())
    test: tuple[str, ...] = option("The same of the test split.", ())
    split_by: Literal["recording", "speaker"] = option(
        "What stays together where splits are made here: speaker keeps every speaker in one split.", "recording"
    )
    train_fraction: float = option("Part that goes to train where splits are made here.", 0.8, gt=0, le=1)
    valid_fraction: float = option("Part that goes to valid; the rest is test.", 0.1, ge=0, lt=1)
    num_voices: int = option("voices: how many speakers.", 60, gt=1, only_for=("voices",))
    num_sentences: int = option("voices: sentences of each speaker.", 12, gt=0, only_for=("voices",))
    seed: int = option("voices: the seed of speakers and sentences.", 0, ge=0, only_for=("voices",))
    find_speech: bool = option(
        "Utterances without times of speech: find the pauses in them by their energy, so that only speech is labelled.",
        True,
    )
    conversations: ConversationsConfig | None = option(
        "Simulate conversations from its utterances; null takes the recordings as they are.", None
    )
