"""Options of text-to-speech that don't go together, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from vaak.config.task_spec import CheckFinding, impossible, no_effect, remark
from vaak.nn.checks import stack_findings, stack_parameters
from vaak.tasks.mel_checks import mel_findings
from vaak.tasks.tts.config import PredictorConfig, TtsExperiment

MEL, DURATION, STOP = "mel", "duration", "stop"
ALIGNMENT, BINARISATION = "alignment", "binarisation"
LEARNING = (ALIGNMENT, BINARISATION)
LOSSES = (MEL, DURATION, STOP, *LEARNING, "norm_reg")
"""All have the weight 1 unless training.loss.auxiliary gives another; norm_reg is computed only where it does."""

UNREAD = ("dither", "storage_path", "cache_gigabytes")

SYMBOLS_PER_SECOND = 30
"""More than anyone speaks, with boundaries and punctuation."""


def checks(experiment: TtsExperiment) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task."""
    model, audio, longest = experiment.model, experiment.global_config, experiment.data.max_duration
    yield from stack_findings("model.encoder", model.encoder, is_encoder=True, longest=longest * SYMBOLS_PER_SECOND)
    yield from stack_findings("model.decoder", model.decoder, is_encoder=True, longest=longest / audio.frame_shift)
    yield from mel_findings(
        experiment, UNREAD, "text-to-speech stores the features of unchanged audio with its prepared data"
    )
    yield from _datasets(experiment)
    if experiment.data.speaking.vocoder is not None:
        yield no_effect("data.speaking.num_iterations", "data.speaking.vocoder is given, which has no iterations")
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


def _datasets(experiment: TtsExperiment) -> Iterator[CheckFinding]:
    for number, dataset in enumerate(experiment.datasets):
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
    return [f"val_{name}" for name in ("loss", MEL, DURATION, STOP, *learned, "norm_reg", "duration_error_ms")]


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
