"""The speech recognition task's specification; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.components import TOKENIZERS
from vaak.config.tasks import (
    CheckFinding,
    ExportedFolder,
    ExportFormat,
    StarterData,
    TaskPipeline,
    TaskSpec,
    impossible,
    no_effect,
    only_length,
    remark,
    unread_input,
)
from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.nn.config import own_network_findings, stack_findings, stack_parameters
from vaak.nn.decoding.hotword_list import is_spelt, read_hotwords
from vaak.tasks.asr import METRICS
from vaak.tasks.asr.bases import (
    CTC_BASES,
    DECODER_BASES,
    explain_kind,
    read_decoder_kind,
    read_kind,
    read_letters,
    read_type,
)
from vaak.tasks.asr.config import (
    ALIASES,
    CONTEXT_SECONDS,
    DEFAULTS,
    HOTWORD_FILES,
    SCRATCH,
    VERSIONS,
    AsrDataConfig,
    AsrDecodingConfig,
    AsrExperiment,
    AsrModelConfig,
    find_window,
    seconds_read_by,
)
from vaak.tasks.audio_checks import augmentation_findings, dataset_findings, unread_feature_findings
from vaak.tasks.fetching import base_findings, count_base_parameters
from vaak.tasks.formats import ONNX, PEFT, SHERPA, ct2_format, transformers_format
from vaak.tasks.rates import UsualRates, rate_findings
from vaak.text.config import losses_of_tokens, tokenizer_findings

LOAD_BALANCING = "load_balancing"
WHISPER, CTC, DECODER = "whisper", "ctc", "decoder"
RATES, CTC_RATES = UsualRates(1e-5, 1e-3), UsualRates(1e-4, 1e-3)
"""The learning rates that a pretrained base is usually trained at, a CTC model at its own."""
ONLY_WHISPERS_BEAM = ("length_penalty", "early_stopping")
ONLY_WHISPERS = (
    "language",
    "task",
    "prompt",
    "max_initial_timestamp",
    "long_form",
    "condition_on_previous",
    "temperature",
    "temperature_step",
    "compression_ratio_threshold",
    "logprob_threshold",
    "no_speech_threshold",
)
"""Options of data.decoding that only a Whisper reads."""
NOT_OF_SCRATCH = ("language", "task", "prompt", "timestamps", "long_form", "no_speech_threshold")
"""Options that need tokens that only a base has."""
ONLY_CTC_BEAM = ("token_min_logp", "beam_threshold", "ngram", "lm", "alpha", "beta")
ONLY_STREAMING = ("largest_chunk", "left_frames")
USUAL_CHUNK = 0.32
"""Seconds of a chunk in an export where data.decoding.chunk is null."""
NOT_READ_BY_CTC = ("mel", "pitch", "dither", "storage_path", "storage_type", "progress_bar")
READ_AUDIO = frozenset({"corpus_dir", "output_dir", "num_jobs", "cache_gigabytes", "channels", "num_mel_bins"})
"""Options of global_config that a Whisper reads: its features are its own."""


def checks(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task."""
    data, model = experiment.data, experiment.model
    if model.lora is not None and model.experts is not None:
        yield impossible("model.experts", "given together with model.lora; keep one of them")
    if model.experts is None and LOAD_BALANCING in experiment.training.loss.auxiliary:
        yield impossible(f"training.loss.auxiliary.{LOAD_BALANCING}", "model.experts is null")
    yield from FINDINGS[model.architecture](experiment)
    kind = read_type(model.base)
    reason = None if kind is None else explain_kind(kind, model.architecture)
    if reason is not None:
        yield impossible("model.base", f"{model.base} {reason}")
    if model.base != SCRATCH:
        yield from base_findings("model.base", VERSIONS.get(model.base, model.base))
        adapted = model.lora is not None or model.experts is not None
        yield from rate_findings(experiment, CTC_RATES if model.architecture == CTC else RATES, "model.base", adapted)
    if all(dataset.type != "recipe" for dataset in experiment.datasets):
        yield no_effect("global_config.num_jobs", "no dataset is a recipe, which several processes would prepare")
    yield from dataset_findings(experiment.datasets, reads_times=False)
    yield from augmentation_findings(data.augmentation)
    yield from _base(experiment)
    if data.decoding.method != "beam":
        for name in ("beam_size", *ONLY_WHISPERS_BEAM, *ONLY_CTC_BEAM):
            yield no_effect(f"data.decoding.{name}", f"the method is {data.decoding.method}")
    elif data.decoding.ngram is None and data.decoding.lm is None:
        yield no_effect("data.decoding.alpha", "data.decoding.ngram and data.decoding.lm are null")
    if data.decoding.ngram is not None and data.decoding.lm is not None:
        yield impossible("data.decoding.lm", "given together with data.decoding.ngram; keep one of them")
    yield from _hotword_findings(data.decoding, model.architecture, model.base)
    yield from _budget_findings(experiment)


def _hotword_findings(decoding: AsrDecodingConfig, architecture: str, base: str) -> Iterator[CheckFinding]:
    """Yield hotwords that can't be read, or aren't."""
    key = "data.decoding.hotwords"
    if not decoding.hotwords:
        yield no_effect("data.decoding.hotword_weight", f"{key} is empty")
    elif architecture == DECODER:
        yield impossible(key, f"model.architecture is {architecture}, which takes no hotwords; leave them out")
    elif architecture == CTC and decoding.method != "beam":
        yield impossible(
            key, "of a CTC model, only a beam search reads them; give data.decoding.method=beam, or leave them out"
        )
    try:
        hotwords = read_hotwords(decoding.hotwords, decoding.hotword_weight, HOTWORD_FILES)
    except UserError as error:
        yield impossible(key, str(error))
        return
    letters = read_letters(base) if architecture == CTC and hotwords else None
    lost = [] if letters is None else [one for one in hotwords if not is_spelt(one, letters)]
    if lost:
        about = f"{len(lost)} of {len(hotwords)} are left out"
        yield remark(key, f"{about}, which the tokens of {base} can't write: {list_names(lost)}")


def _budget_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield a batch's budget of seconds that is less than one example takes."""
    data, model = experiment.data, experiment.model
    budget = experiment.training.batching.max_duration
    longest, why = data.max_duration, "an example may have (data.max_duration"
    if model.architecture == WHISPER and model.base != SCRATCH:
        longest, why = find_window(model, data), "an example takes (model.window: audio is padded"
    if budget is not None and budget < longest:
        yield impossible("training.batching.max_duration", f"{budget:g} s is less than {why}, {longest:g} s)")


def _whisper_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    for name in AudioConfig.model_fields:
        if name not in READ_AUDIO:
            yield no_effect(f"global_config.{name}", "Whisper has its own features")
    own = "model.architecture is whisper, which has its own network"
    yield from own_network_findings("model.conformer", experiment.model.conformer, own)
    for name in sorted(type(experiment.model.conformer).model_fields.keys() - {"type", "options"}):
        yield no_effect(f"model.conformer.{name}", "model.architecture is whisper")
    for name in (*ONLY_CTC_BEAM, "chunk"):
        yield no_effect(f"data.decoding.{name}", "model.architecture is whisper")
    yield from _window_findings(experiment)
    yield from _decoding_findings(experiment)
    if experiment.data.timestamps and experiment.model.base == SCRATCH:
        yield impossible("data.timestamps", "model.base is scratch, which has no tokens for times; give a base")
    for name in ("train_feature_encoder", *(f"masking.{one}" for one in type(experiment.model.masking).model_fields)):
        yield no_effect(f"model.{name}", "model.architecture is whisper")
    if experiment.model.adapter is not None:
        yield impossible("model.adapter", "model.architecture is whisper, which has no adapters by language")


def _window_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield what a window costs that is shorter than the one that a base was trained with."""
    model, longest = experiment.model, experiment.data.max_duration
    if model.base == SCRATCH:
        yield no_effect("model.window", "model.base is scratch, whose encoder reads data.max_duration")
        return
    if model.window is None:
        return
    if model.window < longest:
        yield impossible(
            "model.window", f"{model.window:g} s is less than an utterance may have (data.max_duration, {longest:g} s)"
        )
    if model.window < (seconds_read_by(model.base) or CONTEXT_SECONDS):
        yield remark(
            "model.window",
            f"cuts the positions of {model.base} to {model.window:g} s: until it has learned again, it repeats and "
            "loses words, and faster-whisper can't read what it is exported to; leave it out to keep them",
        )


def _decoding_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield the findings on how a Whisper writes."""
    options, key = experiment.data.decoding, "data.decoding"
    if experiment.model.base == SCRATCH:
        for name in NOT_OF_SCRATCH:
            if getattr(options, name) != type(options).model_fields[name].default:
                yield impossible(f"{key}.{name}", "model.base is scratch, which has no tokens for it; give a base")
    if not options.writes_times:
        yield no_effect(f"{key}.max_initial_timestamp", "no times are written (timestamps, long_form)")
    if options.long_form != "seek":
        yield no_effect(f"{key}.condition_on_previous", "long_form isn't seek: windows are written side by side")
    if options.temperature_step is None:
        yield no_effect(f"{key}.compression_ratio_threshold", "temperature_step is null: nothing is written again")
    if options.temperature_step is None and options.no_speech_threshold is None:
        yield no_effect(f"{key}.logprob_threshold", "temperature_step and no_speech_threshold are null")
    if options.compression_ratio_threshold is None and options.logprob_threshold is None:
        yield no_effect(f"{key}.temperature_step", "no threshold is set that a text could fail")
    if options.logprob_threshold is None:
        yield no_effect(f"{key}.no_speech_threshold", "logprob_threshold is null: both have to fail")


def _ctc_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield what CTC doesn't read or have."""
    model, loss = experiment.model, experiment.training.loss
    for name in type(model.scratch).model_fields:
        yield no_effect(f"model.scratch.{name}", "model.architecture is ctc; its encoder is model.conformer")
    for name in (*ONLY_WHISPERS_BEAM, *ONLY_WHISPERS, "max_new_tokens"):
        yield no_effect(f"data.decoding.{name}", "model.architecture is ctc, whose search is over with the last frame")
    if experiment.data.decoding.timestamps == "segment":
        yield no_effect("data.decoding.timestamps", "model.architecture is ctc, whose segments are cut at silences")
    yield no_effect("data.timestamps", "model.architecture is ctc, whose frames have their times")
    yield no_effect("model.window", "model.architecture is ctc, whose audio isn't padded")
    for name in ("lora", "experts"):
        if getattr(model, name) is not None and model.adapter is not None:
            yield impossible("model.adapter", f"given together with model.{name}; keep one of them")
    if loss.label_smoothing:
        yield impossible("training.loss.label_smoothing", "model.architecture is ctc, whose loss has no smoothing")
    for name in loss.auxiliary:
        if name != LOAD_BALANCING:
            yield impossible(f"training.loss.auxiliary.{name}", "model.architecture is ctc, which has no such loss")
    yield from _streaming_findings(experiment)
    yield from _conformer_findings(experiment) if model.base == SCRATCH else _ctc_base_findings(experiment)


def _streaming_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield what can't be read in chunks. A base may be a run that streams, which its task knows."""
    model = experiment.model
    conformer = model.conformer
    if conformer.streaming and model.experts is not None:
        yield impossible("model.conformer.streaming", "the gate of model.experts reads whole utterances; leave one out")
    if not conformer.streaming:
        for name in ONLY_STREAMING:
            yield no_effect(f"model.conformer.{name}", "model.conformer.streaming is false")
    if model.base == SCRATCH and not conformer.streaming and experiment.data.decoding.chunk is not None:
        yield impossible("data.decoding.chunk", "the model doesn't stream (model.conformer.streaming); leave it out")


def _conformer_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    model, audio = experiment.model, experiment.global_config
    if model.adapter is not None:
        yield impossible("model.adapter", "model.base is scratch: there is nothing to adapt; give a base")
    for name in (*(f"masking.{one}" for one in type(model.masking).model_fields), "train_feature_encoder"):
        yield no_effect(f"model.{name}", "model.base is scratch, which has no layers below features")
    for name in NOT_READ_BY_CTC:
        yield no_effect(f"global_config.{name}", "speech recognition keeps features in memory only")
    if audio.feature_type == "mel":
        yield impossible("global_config.feature_type", "mel is for speech synthesis; expected fbank, mfcc, spectrogram")
        return
    yield from unread_feature_findings(audio)
    longest = experiment.data.max_duration / audio.frame_shift / model.conformer.subsampling
    yield from stack_findings("model.conformer", model.conformer, is_encoder=True, longest=longest)


def _ctc_base_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    model = experiment.model
    if experiment.data.features_on == "device":
        yield impossible("data.features_on", f"device, but model.base is {model.base}, whose audio the loader reads")
    if model.adapter is not None and model.train_feature_encoder:
        yield impossible("model.train_feature_encoder", "model.adapter trains an adapter and the output layer only")
    if model.base in VERSIONS:
        yield impossible("model.base", f"{model.base} is a Whisper; architecture ctc takes {', '.join(CTC_BASES)}")
    for name in AudioConfig.model_fields:
        if name not in READ_AUDIO:
            yield no_effect(f"global_config.{name}", f"model.base is {model.base}, which has its own features")
    yield from own_network_findings("model.conformer", model.conformer, f"model.base {model.base} has its own network")
    for name in sorted(type(model.conformer).model_fields.keys() - {"type", "options"}):
        yield no_effect(f"model.conformer.{name}", f"model.base is {model.base}, which has its own sizes")
    yield from _hiding_findings(experiment)


def _hiding_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield what can't be frozen or hidden in a base of this kind."""
    model, augmentation = experiment.model, experiment.data.augmentation
    kind = read_kind(model.base)
    if kind is not None and kind.reads != "samples":
        yield no_effect("model.train_feature_encoder", f"{kind.title} has no convolutions below its features")
    if kind is not None and not kind.hides_frames:
        for name in type(model.masking).model_fields:
            yield no_effect(f"model.masking.{name}", f"{kind.title} hides features: data.augmentation.spec_augment")
    # Of what is still to be fetched, the task says it.
    is_known = kind is not None or Path(model.base).expanduser().exists() or model.base.count("/") != 1
    reads_features = kind is not None and kind.reads == "features"
    if is_known and not reads_features and augmentation is not None and augmentation.spec_augment is not None:
        yield impossible("data.augmentation.spec_augment", "with a base, model.masking hides frames")


def _decoder_findings(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield the options that an encoder-decoder other than Whisper doesn't use or support."""
    model, what = experiment.model, "model.architecture is decoder"
    if model.base == SCRATCH or model.base in VERSIONS:
        kinds = ", ".join(DECODER_BASES)
        yield impossible("model.base", f"{model.base}; architecture decoder begins with a base ({kinds})")
    if experiment.data.features_on == "device":
        yield impossible("data.features_on", f"device, but {what}, whose features the loader makes")
    for name in ("experts", "adapter"):
        if getattr(model, name) is not None:
            yield impossible(f"model.{name}", f"{what}, which has none; use model.lora")
    augmentation = experiment.data.augmentation
    if augmentation is not None and augmentation.spec_augment is not None:
        yield impossible("data.augmentation.spec_augment", f"{what}, whose features aren't masked")
    for name in AudioConfig.model_fields:
        if name not in READ_AUDIO:
            yield no_effect(f"global_config.{name}", f"{what}: the base has its own features")
    yield from own_network_findings("model.conformer", model.conformer, f"{what}, which has its own network")
    yield from _unread_by_decoders(experiment)


def _unread_by_decoders(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    model, what = experiment.model, "model.architecture is decoder"
    of_others = [f"conformer.{name}" for name in type(model.conformer).model_fields.keys() - {"type", "options"}]
    of_others += [f"masking.{name}" for name in type(model.masking).model_fields]
    for name in (*sorted(of_others), "train_feature_encoder", "window"):
        yield no_effect(f"model.{name}", what)
    for name in (*ONLY_CTC_BEAM, *ONLY_WHISPERS, "timestamps", "chunk"):
        if name != "language":
            yield no_effect(f"data.decoding.{name}", what)
    for name in ("timestamps", "language_like"):
        yield no_effect(f"data.{name}", what)
    kind = read_decoder_kind(model.base)
    if kind is not None and kind.languages == "none":
        for name in ("data.language", "data.decoding.language"):
            yield no_effect(name, f"model.base is a {kind.title}, which isn't told the language")


FINDINGS = {WHISPER: _whisper_findings, CTC: _ctc_findings, DECODER: _decoder_findings}


def _base(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield the findings on options that the base decides."""
    model, data = experiment.model, experiment.data
    if model.base == SCRATCH:
        yield from tokenizer_findings("data.tokenizer", data.tokenizer)
        if data.tokenizer.is_users(data.tokenizer.type):
            message = "speech recognition can't use a tokenizer of your own; expected one of"
            yield impossible("data.tokenizer.type", f"is {data.tokenizer.type}; {message} {', '.join(TOKENIZERS)}")
        for name in ("language", "language_like"):
            yield no_effect(f"data.{name}", "model.base is scratch, which knows what its transcripts are in")
        begins = model.architecture == CTC and experiment.training.checkpoint.init_from is not None
        begin = "a base, or training.checkpoint.init_from, a run" if model.architecture == CTC else "a base"
        for name in ("lora", "experts"):
            if getattr(model, name) is not None and not begins:
                yield impossible(f"model.{name}", f"model.base is scratch: there is nothing to adapt; give {begin}")
    else:
        for name in type(model.scratch).model_fields:
            yield no_effect(f"model.scratch.{name}", f"model.base is {model.base}, which has its own sizes")
        yield no_effect("global_config.num_mel_bins", f"model.base is {model.base}, which has its own features")
        if model.architecture == CTC:
            # A base that wasn't fine-tuned has no tokens.
            for name in ("language", "language_like"):
                yield no_effect(f"data.{name}", f"model.base is {model.base}; its tokens say what it writes")
            yield from tokenizer_findings("data.tokenizer", data.tokenizer)
            return
        reason = f"model.base is {model.base}, which has its own tokenizer"
        yield unread_input("data.tokenizer.path", data.tokenizer.path, reason)
        yield no_effect("data.tokenizer", reason)


def metrics(experiment: AsrExperiment) -> Iterable[str]:
    """The figures that evaluations give."""
    routing = (
        ("val_routing_entropy", "val_dead_experts", "val_expert_use/", "val_expert_weight/", "val_expert_wer/")
        if experiment.model.experts
        else ()
    )
    accuracy = ("val_accuracy",) if experiment.model.architecture != CTC else ()
    return ("val_loss", *accuracy, "val_wer", "val_cer", "val_wer/", f"val_{LOAD_BALANCING}", *routing)


def num_parameters(experiment: AsrExperiment) -> int:
    """About how many parameters the model has; 0 for a pretrained one that isn't on this machine."""
    if experiment.model.base != SCRATCH:
        return count_base_parameters(VERSIONS.get(experiment.model.base, experiment.model.base))
    if experiment.model.architecture == CTC:
        conformer, audio = experiment.model.conformer, experiment.global_config
        # Below the stack, convolutions of width 3 halve the frames: one from the bins, log2(subsampling) - 1 from the
        # model's width, then a projection. Above it is the output layer. All are multiples of d_model.
        outside = experiment.data.tokenizer.vocab_size + 3 * audio.num_mel_bins
        outside += 3 * conformer.d_model * max(0, conformer.subsampling.bit_length() - 2) + conformer.d_model
        return stack_parameters(conformer) + outside * conformer.d_model
    sizes = experiment.model.scratch
    width = sizes.d_ff or 4 * sizes.d_model
    # An attention has four square matrices, a feed-forward layer two of d_model by d_ff; a layer of the decoder attends
    # to itself and to the audio.
    layer = 2 * sizes.d_model * width
    attention = 4 * sizes.d_model**2
    layers = sizes.encoder_layers * (attention + layer) + sizes.decoder_layers * (2 * attention + layer)
    embeddings = sizes.d_model * (experiment.data.tokenizer.vocab_size + sizes.max_target_length)
    return layers + embeddings + 3 * sizes.d_model * (sizes.d_model + experiment.global_config.num_mel_bins)


def what_follows(get: Callable[[str], Any], folder: Path) -> dict[str, tuple[float, str]]:
    """A base that reads less than 30 s, or a window, decides how long utterances may be."""
    base, window = get("model.base"), get("model.window")
    is_whisper = get("model.architecture") not in (CTC, DECODER)
    if base != SCRATCH and is_whisper and isinstance(window, int | float) and window > 0:
        return {"data.max_duration": (float(window), "which is model.window")}
    seconds = seconds_read_by(base, folder) if isinstance(base, str) and is_whisper else None
    if seconds is None or seconds >= CONTEXT_SECONDS:
        return {}
    return {"data.max_duration": (seconds, f"which is what {base} reads at most")}


def newer_options(get: Callable[[str], Any]) -> dict[str, float]:
    """Before there was ``model.window``, the longest utterance was what a pretrained Whisper's encoder read, too."""
    longest = get("data.max_duration")
    is_pretrained_whisper = get("model.base") != SCRATCH and get("model.architecture") not in (CTC, DECODER)
    if is_pretrained_whisper and isinstance(longest, int | float) and longest < CONTEXT_SECONDS:
        return {"model.window": float(longest)}
    return {}


CT2_CODE = """\
from faster_whisper import WhisperModel

model = WhisperModel("{folder}")
segments, _ = model.transcribe("recording.wav", without_timestamps=True)
print("".join(segment.text for segment in segments))"""
SHERPA_CODE = """\
import sherpa_onnx
import soundfile

model = sherpa_onnx.OfflineRecognizer.{maker}
samples, rate = soundfile.read("recording.wav", dtype="float32")
stream = model.create_stream()
stream.accept_waveform(rate, samples)
model.decode_stream(stream)
print(stream.result.text)"""


def sherpa_code(exported: ExportedFolder) -> str:
    """Return the code that opens a Whisper, or a CTC recogniser, in sherpa-onnx."""
    folder = exported.name
    if "encoder.onnx" not in exported.files:
        numbers = [exported.option(f"global_config.{name}") for name in ("sampling_rate", "num_mel_bins")]
        rate, bins = (one if isinstance(one, int) else usual for one, usual in zip(numbers, (16_000, 80), strict=True))
        files = f'"{folder}/model.onnx", "{folder}/tokens.txt", sample_rate={rate}, feature_dim={bins}'
        code = SHERPA_CODE.replace("{maker}", f"from_zipformer_ctc(\n    {files}\n)")
        return code + (_online_code(exported, rate, bins) if "online.onnx" in exported.files else "")
    named = (exported.option("data.decoding.language"), exported.option("data.language"), *exported.languages)
    language = next((one for one in named if re.fullmatch("[a-z]{2,3}", str(one))), "en")
    files = f'"{folder}/encoder.onnx", "{folder}/decoder.onnx", "{folder}/tokens.txt", language="{language}"'
    return SHERPA_CODE.replace("{maker}", f"from_whisper(\n    {files}\n)")


ONLINE_CODE = """

# while it comes
model = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
    "{folder}/tokens.txt", "{folder}/online.onnx", chunk_size={chunk}, num_left_chunks={left}, {audio}
)
stream = model.create_stream()
stream.accept_waveform(rate, samples)
while model.is_ready(stream):
    model.decode_stream(stream)
print(model.get_result(stream))"""


def _online_code(exported: ExportedFolder, rate: int, bins: int) -> str:
    """Return the code that opens a Conformer that streams in sherpa-onnx, which is told the size of its chunks."""
    numbers = {
        "chunk": exported.option("data.decoding.chunk") or USUAL_CHUNK,
        "shift": exported.option("global_config.frame_shift"),
        "factor": exported.option("model.conformer.subsampling"),
        "left": exported.option("model.conformer.left_frames"),
    }
    usual = {"chunk": USUAL_CHUNK, "shift": 0.01, "factor": 4, "left": 128}
    found = {name: one if isinstance(one, int | float) else usual[name] for name, one in numbers.items()}
    chunk = round(found["chunk"] / (found["shift"] * found["factor"]))
    return (
        ONLINE_CODE.replace("{folder}", exported.name)
        .replace("{chunk}", str(chunk))
        .replace("{left}", str(round(found["left"]) // chunk))
        .replace("{audio}", f"sample_rate={rate}, feature_dim={bins}")
    )


HUB_TAG = "automatic-speech-recognition"


def opens(about: Mapping[str, Any], source: str) -> dict[str, Any] | str | None:
    """Return the options with which a Whisper, or a base with an output layer of CTC, is used untrained."""
    kind = about.get("model_type")
    # What a model can't write counts as errors, as it does for a trained one.
    data = {"max_unknown": 101}
    if kind == "whisper":
        return {"model": {"base": source}, "data": data}
    if kind in DECODER_BASES:
        return {"model": {"architecture": DECODER, "base": source}, "data": data}
    if kind not in CTC_BASES:
        return None
    if not any(str(name).endswith("ForCTC") for name in about.get("architectures") or ()):
        return f"is a {kind} without an output layer of CTC, which writes nothing before it is trained"
    return {"model": {"architecture": CTC, "base": source}, "data": data}


SPEC = TaskSpec(
    task="vaak.tasks.asr.whisper.task:WhisperTask",
    task_where={
        f"model.architecture={CTC}": "vaak.tasks.asr.ctc.task:CtcTask",
        f"model.architecture={DECODER}": "vaak.tasks.asr.decoder.task:DecoderTask",
    },
    model=AsrModelConfig,
    data=AsrDataConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    used_by_models=("model.conformer",),
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    own_metrics=METRICS,
    losses=losses_of_tokens,
    loss_reads_head=True,
    auxiliary_losses=(LOAD_BALANCING,),
    refused_batching={"packed": "utterances can't be put together in a row; expected fixed, bucketed or stratified"},
    refused_difficulties=only_length,
    num_parameters=num_parameters,
    follows=what_follows,
    newer=newer_options,
    checks=checks,
    starter="vaak.tasks.asr.starter:fill_options",
    starter_data=StarterData("transcribed audio", "audio with its texts", usual_for="transcribed audio"),
    example="vaak.tasks.asr.starter:write_example",
    commands=lambda get: ("eval {run}", "transcribe {run} recording.wav"),
    uses={
        "transcribe": (),
        "align": (f"model.architecture={CTC}",),
        "tune": (f"model.architecture={CTC}",),
    },
    pipelines={"moe-asr": TaskPipeline("vaak.tasks.asr.stages.pipeline:PIPELINE", shown="joint/run")},
    endpoints=lambda get: (
        "transcriptions",
        *(() if get("model.architecture") in (CTC, DECODER) else ("translations",)),
    ),
    exports={
        "hf": transformers_format(HUB_TAG, "expert"),
        "onnx": ONNX,
        "peft": replace(PEFT, options=("expert",)),
        "mixture": ExportFormat("transformers", is_unmerged=True),
        "ct2": replace(ct2_format(CT2_CODE), options=("expert",)),
        SHERPA: ExportFormat(SHERPA, sherpa_code, quantizations=("int8",)),
    },
    drawings={
        "gate": "vaak.tasks.asr.stages.drawings:plot_gate",
        "experts": "vaak.tasks.asr.stages.drawings:plot_experts",
        "asr": "vaak.tasks.asr.stages.drawings:plot_joint_training",
    },
    sections=("vaak.tasks.asr.report:show_routing", "vaak.tasks.asr.report:show_pipeline"),
    hub_tag=HUB_TAG,
    opens=opens,
)
