"""The options of a speech recogniser that don't go together, or have no effect. No torch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from vaak.audio.config import AudioConfig
from vaak.config.components import TOKENIZERS
from vaak.config.tasks import CheckFinding, impossible, no_effect, remark, unread_input
from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.nn.decoding.hotword_list import read_hotwords
from vaak.nn.stack_checks import check_own_networks, check_stack
from vaak.tasks.adapter_checks import lora_findings, target_findings
from vaak.tasks.asr.bases import (
    CTC_BASES,
    DECODER_BASES,
    explain_kind,
    find_unspelt,
    read_decoder_kind,
    read_kind,
    read_type,
)
from vaak.tasks.asr.config import (
    CONTEXT_SECONDS,
    CTC,
    DECODER,
    HOTWORD_FILES,
    LOAD_BALANCING,
    SCRATCH,
    VERSIONS,
    WHISPER,
    AsrDecodingConfig,
    AsrExperiment,
    find_window,
    seconds_read_by,
)
from vaak.tasks.audio_checks import augmentation_findings, dataset_findings, unread_feature_findings
from vaak.tasks.rates import UsualRates, rate_findings
from vaak.text.config import tokenizer_findings

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
NOT_READ_BY_CTC = ("mel", "pitch", "dither", "storage_path", "storage_type", "progress_bar")
READ_AUDIO = frozenset({"corpus_dir", "output_dir", "num_jobs", "cache_gigabytes", "channels", "num_mel_bins"})
"""Options of global_config that a Whisper reads: its features are its own."""


def checks(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task."""
    data, model = experiment.data, experiment.model
    yield from _check_experts(experiment)
    yield from FINDINGS[model.architecture](experiment)
    kind = read_type(model.base)
    reason = None if kind is None else explain_kind(kind, model.architecture)
    if kind and reason is not None:
        yield impossible("model.base", f"{model.base} {reason}")
    if model.base != SCRATCH:
        source = VERSIONS.get(model.base, model.base)
        yield from target_findings("model.lora", source, model.lora)
        yield from target_findings("model.experts", source, model.experts)
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
    yield from _hotword_findings(data.decoding, model.architecture, model.base, data.tokenizer.path is None)
    yield from _budget_findings(experiment)


def _check_experts(experiment: AsrExperiment) -> Iterator[CheckFinding]:
    """Yield what experts exclude, or lack."""
    model, performance = experiment.model, experiment.training.performance
    if model.lora is not None and model.experts is not None:
        yield impossible("model.experts", "given together with model.lora; keep one of them")
    if model.experts is not None and performance.compile and performance.gradient_checkpointing:
        yield impossible(
            "training.performance.gradient_checkpointing",
            "torch's compiler doesn't know which of model.experts were chosen when it computes again; leave it or "
            "training.performance.compile out",
        )
    if model.experts is None and LOAD_BALANCING in experiment.training.loss.auxiliary:
        yield impossible(f"training.loss.auxiliary.{LOAD_BALANCING}", "model.experts is null")


def _hotword_findings(
    decoding: AsrDecodingConfig, architecture: str, base: str, has_own_tokens: bool
) -> Iterator[CheckFinding]:
    """Yield hotwords that can't be read, or aren't."""
    key = "data.decoding.hotwords"
    if not decoding.hotwords:
        yield no_effect("data.decoding.hotword_weight", f"{key} is empty")
    elif architecture == DECODER:
        yield impossible(key, f"model.architecture is {architecture}, which takes no hotwords; leave them out")
    elif architecture == CTC and decoding.method != "beam":
        yield impossible(
            key, "a CTC model reads them only in a beam search; give data.decoding.method=beam, or leave them out"
        )
    try:
        hotwords = read_hotwords(decoding.hotwords, decoding.hotword_weight, HOTWORD_FILES)
    except UserError as error:
        yield impossible(key, str(error))
        return
    lost = find_unspelt(base, hotwords) if architecture == CTC and has_own_tokens else []
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
    yield from check_own_networks("model.conformer", experiment.model.conformer, own)
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
    yield no_effect("training.performance.logits", "model.architecture is ctc, whose loss reads all logits")
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
    yield from check_stack("model.conformer", model.conformer, is_encoder=True, longest=longest)


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
    yield from check_own_networks("model.conformer", model.conformer, f"model.base {model.base} has its own network")
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
    yield from check_own_networks("model.conformer", model.conformer, f"{what}, which has its own network")
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
            elif begins:
                yield from lora_findings(experiment, getattr(model, name), False, f"model.{name}")
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
