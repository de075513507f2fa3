"""Findings on the options of audio that several tasks share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from vaak.audio.config import AudioConfig, AugmentationConfig, DatasetConfig
from vaak.audio.mel_config import REPLACED_BY_MEL
from vaak.config.experiment import Experiment
from vaak.config.tasks import CheckFinding, impossible, no_effect, remark


def mel_findings(
    experiment: Experiment[Any, Any, Any, Any, Any], unread: Iterable[str], reason: str
) -> Iterator[CheckFinding]:
    """Features other than mel, and options of audio that aren't read: ``unread`` ones have a ``reason``."""
    audio = experiment.global_config
    if audio.feature_type != "mel":
        yield impossible(
            "global_config.feature_type", f"{audio.feature_type} is not for speech synthesis; expected mel"
        )
        return
    for name in REPLACED_BY_MEL:
        yield no_effect(f"global_config.{name}", "feature_type is mel: its options are in global_config.mel")
    for name in unread:
        yield no_effect(f"global_config.{name}", reason)


def unread_feature_findings(audio: AudioConfig) -> Iterator[CheckFinding]:
    """Options of another type of features, and of energy, where the type isn't mel."""
    kind = f"feature_type is {audio.feature_type}"
    if audio.feature_type != "mfcc":
        for name in ("num_ceps", "cepstral_lifter"):
            yield no_effect(f"global_config.{name}", f"{kind}, and only mfcc has cepstral coefficients")
    if audio.feature_type == "spectrogram":
        for name in ("num_mel_bins", "low_freq", "high_freq", "norm_filters"):
            yield no_effect(f"global_config.{name}", f"{kind}, and only fbank and mfcc have mel filters")
    if not audio.use_energy:
        for name in ("energy_floor", "raw_energy"):
            yield no_effect(f"global_config.{name}", "use_energy is false, so no energy is computed")


def dataset_findings(datasets: Iterable[DatasetConfig], *, reads_times: bool) -> Iterator[CheckFinding]:
    """Options of datasets that aren't read; ``reads_times`` says whether the task learns when someone speaks."""
    for number, dataset in enumerate(datasets):
        unread = _find_unread_split_options(dataset)
        if not reads_times:
            unread["find_speech"] = "the task doesn't learn when someone speaks"
            if dataset.conversations is not None:
                message = "an utterance has one speaker; leave conversations out"
                yield impossible(f"datasets.{number}.conversations", message)
        if dataset.type == "voices":
            for name in ("corpus_dir", "train", "valid", "test"):
                if getattr(dataset, name):
                    message = "voices are synthesised, so nothing is read; leave it out, or give another type"
                    yield impossible(f"datasets.{number}.{name}", message)
        for name, reason in unread.items():
            # An option of a resolved configuration may have been written out with its default: that isn't worth a word.
            if getattr(dataset, name) != type(dataset).model_fields[name].default:
                yield no_effect(f"datasets.{number}.{name}", reason)


def _find_unread_split_options(dataset: DatasetConfig) -> dict[str, str]:
    """Return the options by which train would be split, where it isn't, or by others; with the reason."""
    if dataset.valid and dataset.test:
        of_a_split = ("split_by", "train_fraction", "valid_fraction", "valid_examples", "test_examples")
        return dict.fromkeys(of_a_split, "valid and test are given, so train isn't split")
    if dataset.valid_examples is not None or dataset.test_examples is not None:
        return dict.fromkeys(("train_fraction", "valid_fraction"), "valid_examples or test_examples is given")
    return {}


FEATURES_ON = "data.features_on"
UNCAPTURED_FEATURES = f"{FEATURES_ON} is device, and what makes them can't be captured; set it to loader"
BY_LOADER = {FEATURES_ON: "loader"}
"""How runs that began before the option make features."""


def settle_features(
    experiment: Experiment[Any, Any, Any, Any, Any], device: str, *, by_loader: bool, stored: bool = False
) -> dict[str, tuple[str, str]]:
    """Where features of training audio are computed on a ``device`` of a type, and why, where that is left open.

    ``by_loader`` says that the model reads what only the loader makes; ``stored`` features are read.
    """
    key = FEATURES_ON
    if experiment.data.features_on != "auto":
        return {}
    if by_loader:
        return {key: ("loader", "the model reads what the loader makes")}
    if stored:
        return {key: ("loader", "they are stored")}
    if experiment.training.performance.cuda_graphs:
        return {key: ("loader", "a CUDA graph can't make them (training.performance.cuda_graphs)")}
    if device == "cuda":
        return {key: ("device", "the GPU makes them faster than processes that load data do")}
    return {key: ("loader", "there is no GPU to make them")}


def augmentation_findings(augmentation: AugmentationConfig | None) -> Iterator[CheckFinding]:
    """Yield findings on options of ``data.augmentation`` that aren't read, or that cost much."""
    if augmentation is not None and not augmentation.codecs:
        yield no_effect("data.augmentation.codec_probability", "codecs is empty")
    if augmentation is not None and "opus" in augmentation.codecs and augmentation.codec_probability:
        # Five seconds of noise at 16 kHz, one core, 2026-11-29: 165 ms by opus, 29, 18 and 1.4 by the others.
        yield remark(
            "data.augmentation.codecs",
            "opus takes a core about 30 ms for each second of audio, opus_fast (vaak[m4a]) 10 to 12 for the same "
            "distortion, mp3 6, vorbis 4, mulaw and alaw 0.3; vaak doctor measures what an example takes",
        )
