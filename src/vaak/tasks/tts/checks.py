"""Options of text-to-speech that don't go together, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from vaak.audio.mel_config import REPLACED_BY_MEL
from vaak.config.task_spec import CheckFinding, impossible, no_effect, remark
from vaak.nn.checks import stack_findings, stack_parameters
from vaak.tasks.tts.config import PredictorConfig, TtsExperiment

MEL, DURATION, STOP = "mel", "duration", "stop"
ALIGNMENT, BINARISATION = "alignment", "binarisation"
LEARNING = (ALIGNMENT, BINARISATION)
LOSSES = (MEL, DURATION, STOP, *LEARNING, "norm_reg")
"""All have the weight 1 unless training.loss.auxiliary gives another; norm_reg is computed only where it does."""

SPOKEN_FIGURES = ("mcd_db", "f0_rmse_hz", "f0_rmse_cents", "voicing_error", "real_time_factor")
WORD_FIGURES = tuple(
    f"{whose}{name}" for name in ("wer", "skipped_words", "repeated_words") for whose in ("", "recorded_")
)
"""Figures of what is spoken (speech_scores.py)."""

SYMBOLS_PER_SECOND = 30
"""More than anyone speaks, with boundaries and punctuation."""


def checks(experiment: TtsExperiment) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task."""
    model, audio, longest = experiment.model, experiment.global_config, experiment.data.max_duration
    yield from stack_findings("model.encoder", model.encoder, is_encoder=True, longest=longest * SYMBOLS_PER_SECOND)
    yield from stack_findings("model.decoder", model.decoder, is_encoder=True, longest=longest / audio.frame_shift)
    yield from _audio(experiment)
    yield from _datasets(experiment)
    if experiment.data.evaluation.recogniser and experiment.data.evaluation.speak == 0:
        yield no_effect("data.evaluation.recogniser", "data.evaluation.speak is 0: nothing is spoken")
    budget = experiment.training.batching.max_duration
    if budget is not None and budget < longest:
        yield impossible(
            "training.batching.max_duration",
            f"{budget:g} s is less than the longest utterances (data.max_duration is {longest:g} s); raise it or lower "
            "that",
        )
    if model.durations == "given":
        for name in LEARNING:
            if name in experiment.training.loss.auxiliary:
                yield impossible(f"training.loss.auxiliary.{name}", "model.durations is given, so nothing is aligned")


def _audio(experiment: TtsExperiment) -> Iterator[CheckFinding]:
    audio = experiment.global_config
    if audio.feature_type != "mel":
        yield impossible(
            "global_config.feature_type", f"{audio.feature_type} is not for speech synthesis; expected mel"
        )
        return
    for name in REPLACED_BY_MEL:
        yield no_effect(f"global_config.{name}", "feature_type is mel: its options are in global_config.mel")
    for name in ("dither", "storage_path", "cache_gigabytes"):
        yield no_effect(
            f"global_config.{name}", "text-to-speech stores the features of unchanged audio with its prepared data"
        )


def _datasets(experiment: TtsExperiment) -> Iterator[CheckFinding]:
    for number, dataset in enumerate(experiment.datasets):
        if dataset.conversations is not None:
            yield impossible(
                f"datasets.{number}.conversations", "an utterance has one speaker; leave conversations out"
            )
        if dataset.split_by == "speaker" and dataset.type != "recipe":
            yield remark(
                f"datasets.{number}.split_by",
                "speaker: the speakers of valid and test are unknown to the model, which can't speak like them; "
                "recording is usual",
            )


def losses(experiment: TtsExperiment) -> tuple[str, ...]:
    """The main losses that fit spectrograms."""
    return ("l1", "mse", "smooth_l1", "huber")


def metrics(experiment: TtsExperiment) -> list[str]:
    """The figures that evaluations give."""
    learned = LEARNING if experiment.model.durations == "learned" else ()
    names = ["loss", MEL, DURATION, STOP, *learned, "norm_reg", "duration_error_ms"]
    evaluation = experiment.data.evaluation
    if evaluation.speak != 0:
        names += [*SPOKEN_FIGURES, *(WORD_FIGURES if evaluation.recogniser else ())]
    return [f"val_{name}" for name in names]


def num_parameters(experiment: TtsExperiment) -> int:
    """About how many parameters the model has."""
    model, num_bins = experiment.model, experiment.global_config.num_mel_bins
    width = model.encoder.d_model
    bridge = 0 if width == model.decoder.d_model else width * model.decoder.d_model
    aligner = 7 * width * width if model.durations == "learned" else 0
    outputs = model.decoder.d_model * (num_bins + 1)
    predictor = predictor_parameters(model.duration_predictor, width)
    return stack_parameters(model.encoder) + stack_parameters(model.decoder) + bridge + aligner + outputs + predictor


def predictor_parameters(predictor: PredictorConfig, input_width: int) -> int:
    """Of the convolutions of a predictor."""
    return predictor.kernel_size * predictor.width * (input_width + (predictor.num_layers - 1) * predictor.width)
