"""The text-to-speech task's specification; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

from collections.abc import Iterator

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.tasks import (
    OF_STACKS,
    CheckFinding,
    ExportedFolder,
    ExportFormat,
    StarterData,
    TaskSpec,
    impossible,
    no_effect,
    only_length,
    remark,
)
from vaak.nn.config import ConvolutionalStackConfig, stack_parameters
from vaak.nn.stack_checks import check_own_networks, check_presets, check_stack
from vaak.tasks.adapter_checks import lora_findings
from vaak.tasks.audio_checks import dataset_findings, mel_findings
from vaak.tasks.formats import DCP, ONNX, PEFT, SHERPA
from vaak.tasks.tts import METRICS
from vaak.tasks.tts.config import (
    ALIASES,
    DEFAULTS,
    SHARED,
    SMALL_STACK,
    FlowMatchingConfig,
    SpeakingConfig,
    TtsDataConfig,
    TtsExperiment,
    TtsModelConfig,
)
from vaak.text.speech.config import FrontEndConfig

MEL, DURATION, STOP = "mel", "duration", "stop"
ALIGNMENT = "alignment"
LOSSES = (MEL, DURATION, STOP, ALIGNMENT, "pitch", "voicing", "energy", "flow", "norm_reg")
"""All have the weight 1 unless training.loss.auxiliary gives another; norm_reg is computed only where it does."""

SPOKEN_METRICS = ("mcd_db", "f0_rmse_hz", "f0_rmse_cents", "voicing_error", "real_time_factor")
WORD_METRICS = tuple(
    f"{whose}{name}" for name in ("wer", "skipped_words", "repeated_words") for whose in ("", "recorded_")
)
"""Figures of what is spoken (speech_scores.py)."""

UNREAD_OPTIONS = ("dither", "storage_path", "cache_gigabytes")

SYMBOLS_PER_SECOND = 30
"""More than anyone speaks, with boundaries and punctuation."""


def checks(experiment: TtsExperiment) -> Iterator[CheckFinding]:
    """Yield the findings on an experiment of this task."""
    model, audio, longest = experiment.model, experiment.global_config, experiment.data.max_duration
    yield from check_stack("model.encoder", model.encoder, is_encoder=True, longest=longest * SYMBOLS_PER_SECOND)
    if model.has_decoder_stack:
        yield from check_stack("model.decoder", model.decoder, is_encoder=True, longest=longest / audio.frame_shift)
    stacks = (model.encoder, model.decoder) if model.has_decoder_stack else (model.encoder,)
    overridden = [list(check_presets(model.preset, {"small": SMALL_STACK}, stack)) for stack in stacks]
    if all(overridden):
        yield from overridden[0]
    yield from lora_findings(experiment, model.lora, is_pretrained=False)
    yield from _unread_by_decoder(model)
    yield from _unread_by_front_end(experiment.data.front_end, experiment.data.evaluation.recogniser)
    yield from mel_findings(
        experiment, UNREAD_OPTIONS, "text-to-speech stores the features of unchanged audio with its prepared data"
    )
    if not model.has_prosody:
        yield no_effect("global_config.pitch", "neither model.pitch nor model.energy is true")
    yield from _datasets(experiment)
    if experiment.data.evaluation.recogniser and experiment.data.evaluation.speak == 0:
        yield no_effect("data.evaluation.recogniser", "data.evaluation.speak is 0: nothing is spoken")
    yield from _unread_by_vocoder(experiment.data.speaking)
    budget = experiment.training.batching.max_duration
    if budget is not None and budget < longest:
        yield impossible(
            "training.batching.max_duration",
            f"{budget:g} s is less than the longest utterances (data.max_duration is {longest:g} s); raise it or lower "
            "that",
        )
    for name, reason in _without_loss(model):
        if name in experiment.training.loss.auxiliary:
            yield impossible(f"training.loss.auxiliary.{name}", reason)
    for name, message in without_control(model, experiment.data.speaking):
        yield impossible(f"data.speaking.{name}", message)


def _unread_by_vocoder(speaking: SpeakingConfig) -> Iterator[CheckFinding]:
    """Options of Griffin–Lim that what makes audio hasn't."""
    if speaking.vocoder is not None:
        yield no_effect("data.speaking.num_iterations", "data.speaking.vocoder is given, which has no iterations")
        yield no_effect("data.speaking.phases", "data.speaking.vocoder is given, which makes its own phases")
    elif speaking.phases == "pitch":
        yield no_effect("data.speaking.num_iterations", "data.speaking.phases is pitch, which has no iterations")


def _unread_by_decoder(model: TtsModelConfig) -> Iterator[CheckFinding]:
    """Options of the decoder that the model hasn't."""
    flow = FlowMatchingConfig.model_fields
    if not model.matches_flows:
        for key in (f"model.flow_matching.{name}" for name in flow):
            yield no_effect(key, "decoder_type is transformer, and only flow_matching has a field")
        for name in ("num_steps", "method", "temperature"):
            yield no_effect(f"data.speaking.{name}", "model.decoder_type is transformer, which has no noise")
    elif model.has_decoder_stack:
        for name in ("width", "num_levels", "blocks_per_level", "kernel_size"):
            yield no_effect(f"model.flow_matching.{name}", "vector_field is transformer: it is sized by model.decoder")
    else:
        own = "model.flow_matching.vector_field is unet, which has its own network"
        yield from check_own_networks("model.decoder", model.decoder, own)
        for name in sorted(ConvolutionalStackConfig.model_fields.keys() - {"type", "options"}):
            yield no_effect(f"model.decoder.{name}", "vector_field is unet: it is sized by model.flow_matching")


def _unread_by_front_end(front_end: FrontEndConfig, is_recognised: bool) -> Iterator[CheckFinding]:
    """Options of pronunciation that the phonemizer doesn't read, and a recogniser that doesn't know the language."""
    if is_recognised and not front_end.is_english:
        message = f"data.front_end.language is {front_end.language}; the recogniser knows English only"
        yield impossible("data.evaluation.recogniser", message)
    kind = f"phonemizer is {front_end.phonemizer}"
    if front_end.phonemizer != "lexicon":
        yield no_effect("data.front_end.unknown_words", f"{kind}, which has no lexicon")
    if front_end.phonemizer == "characters":
        for name in ("language", "alphabet", "stress"):
            yield no_effect(f"data.front_end.{name}", f"{kind}, so nothing is pronounced")


def _without_loss(model: TtsModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the losses that the model hasn't, with reasons."""
    if model.durations == "given":
        yield ALIGNMENT, "model.durations is given, so nothing is aligned"
    if not model.pitch:
        yield from dict.fromkeys(("pitch", "voicing"), "model.pitch is false, so no pitch is predicted").items()
    if not model.energy:
        yield "energy", "model.energy is false, so no energy is predicted"
    if model.matches_flows:
        yield STOP, "model.decoder_type is flow_matching, which has no stop"
    else:
        yield "flow", "model.decoder_type is transformer; only flow_matching has it"


def without_control(model: TtsModelConfig, speaking: SpeakingConfig) -> Iterator[tuple[str, str]]:
    """Options of speaking that ask for what the model doesn't predict, with messages."""
    for name, usual in (("pitch", 0.0), ("energy", 1.0)):
        value = getattr(speaking, name)
        if value != usual and not getattr(model, name):
            yield name, f"{value:g}, but the model predicts no {name}; train with model.{name}: true, or leave this out"
    if speaking.phases == "pitch" and not model.pitch:
        yield "phases", "pitch, but the model predicts no pitch; train with model.pitch: true, or leave this out"


def _datasets(experiment: TtsExperiment) -> Iterator[CheckFinding]:
    yield from dataset_findings(experiment.datasets, reads_times=False)
    for number, dataset in enumerate(experiment.datasets):
        splits = dataset.type != "recipe" and not (dataset.valid and dataset.test)
        if dataset.split_by == "speaker" and splits:
            yield remark(
                f"datasets.{number}.split_by",
                "speaker: the speakers of valid and test are unknown to the model, which can't speak like them; "
                "recording is usual",
            )


def losses(experiment: TtsExperiment) -> tuple[str, ...]:
    """Return the main losses that fit spectrograms."""
    return ("l1", "mse", "smooth_l1", "huber")


def metrics(experiment: TtsExperiment) -> list[str]:
    """Return the figures that evaluations give."""
    absent, evaluation = dict(_without_loss(experiment.model)), experiment.data.evaluation
    names = ["loss", *(name for name in LOSSES if name not in absent), "duration_error_ms"]
    if evaluation.speak != 0:
        names += [*SPOKEN_METRICS, *(WORD_METRICS if evaluation.recogniser else ())]
    return [f"val_{name}" for name in names]


def num_parameters(experiment: TtsExperiment) -> int:
    """About how many parameters the model has."""
    model, num_bins = experiment.model, experiment.global_config.num_mel_bins
    width, one = model.encoder.d_model, model.duration_predictor
    aligner = 2 * width * width if model.durations == "learned" else 0
    predictor = one.kernel_size * one.width * (width + (one.num_layers - 1) * one.width)
    predictors = (1 + model.pitch + model.energy) * predictor
    decoder = decoder_parameters(model, num_bins)
    return stack_parameters(model.encoder) + decoder + aligner + predictors


def decoder_parameters(model: TtsModelConfig, num_bins: int) -> int:
    """Return the parameters of the decoder's stack or field, with what leads to it and from it."""
    width, own = model.encoder.d_model, model.decoder.d_model
    if not model.matches_flows:
        bridge = 0 if width == own else width * own
        return stack_parameters(model.decoder) + bridge + own * (num_bins + 1)
    if model.has_decoder_stack:
        return stack_parameters(model.decoder) + width * num_bins + own * (2 * num_bins + width + 2 * own)
    flow = model.flow_matching
    blocks = (2 * flow.num_levels - 1) * flow.blocks_per_level * (10 * flow.width + flow.kernel_size) * flow.width
    between = (4 * (flow.num_levels - 1) + 2) * flow.width**2
    return blocks + between + width * num_bins + flow.width * (2 * num_bins + width)


SHERPA_CODE = """\
import sherpa_onnx
import soundfile

voice = sherpa_onnx.OfflineTtsVitsModelConfig(
    model="{folder}/model.onnx", lexicon="{folder}/lexicon.txt", tokens="{folder}/tokens.txt", noise_scale={temperature}
)
model = sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(sherpa_onnx.OfflineTtsModelConfig(vits=voice)))
how = sherpa_onnx.GenerationConfig()
how.sid, how.speed, how.silence_scale = 0, 1.0, 1.0
audio = model.generate("1, 2, 3.", how)
soundfile.write("speech.wav", audio.samples, audio.sample_rate)"""
SHERPA_NOTE = """
It requires sherpa-onnx 2. It speaks the words of `lexicon.txt`, and leaves out others, each with a line on standard \
error: figures above 100, dates, signs and abbreviations must be in words, as Vaak writes them \
(`PhonemeProcessor.load("processor.json").normalise(text)`, of `vaak.text.speech.processor`). `vaak export --words \
FILE` adds words. `sid` is the number of a speaker in `speakers.txt`, if there are several."""


def sherpa_code(exported: ExportedFolder) -> str:
    """Return the code that speaks with a voice in sherpa-onnx, as warm as the run itself speaks."""
    given = exported.option("data.speaking.temperature")
    temperature = given if isinstance(given, int | float) else 0.667
    return SHERPA_CODE.replace("{folder}", exported.name).replace("{temperature}", str(temperature))


SPEC = TaskSpec(
    task="vaak.tasks.tts.task:TtsTask",
    model=TtsModelConfig,
    data=TtsDataConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    used_by_models=("model.encoder", "model.decoder"),
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    metrics=metrics,
    own_metrics=METRICS,
    losses=losses,
    auxiliary_losses=LOSSES,
    refused_batching={
        "stratified": "utterances have no classes to keep in proportion; expected fixed or bucketed",
        "packed": "utterances can't be put together in a row; expected bucketed",
    },
    has_logits=False,
    refused_difficulties=only_length,
    networks=lambda experiment: OF_STACKS,
    num_parameters=num_parameters,
    checks=checks,
    starter="vaak.tasks.tts.starter:fill_options",
    starter_data=StarterData("transcribed audio", "audio with its texts", usual_for="voice"),
    example="vaak.runs.example_data:write_voice",
    commands=lambda get: ("eval {run}", 'speak {run} "…" --output speech.wav'),
    uses={"speak": ()},
    endpoints=lambda get: ("speech",),
    exports={
        "onnx": ONNX,
        "peft": PEFT,
        "dcp": DCP,
        SHERPA: ExportFormat(SHERPA, sherpa_code, SHERPA_NOTE, ("vocoder", "words"), ("int8",)),
    },
    hub_tag="text-to-speech",
)
