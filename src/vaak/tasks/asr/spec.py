"""The speech recognition task's specification, which others read without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.tasks import (
    ExportedFolder,
    ExportFormat,
    NetworkKind,
    StarterData,
    TaskPipeline,
    TaskSpec,
    load_name,
    only_length,
)
from vaak.nn.config import stack_parameters
from vaak.tasks.asr import METRICS
from vaak.tasks.asr.bases import CTC_BASES, DECODER_BASES, ListenerBase, read_decoder_kind
from vaak.tasks.asr.checks import checks
from vaak.tasks.asr.config import (
    ALIASES,
    CONTEXT_SECONDS,
    CTC,
    DECODER,
    DEFAULTS,
    LOAD_BALANCING,
    SCRATCH,
    VERSIONS,
    AsrDataConfig,
    AsrExperiment,
    AsrModelConfig,
    seconds_read_by,
)
from vaak.tasks.asr.languages import read_code
from vaak.tasks.audio_checks import BY_LOADER, UNCAPTURED_FEATURES, settle_features
from vaak.tasks.fetching import count_base_parameters, find_local, is_own_run, read_base_config
from vaak.tasks.formats import DCP, ONNX, PEFT, SHERPA, ct2_format, transformers_format
from vaak.text.config import list_token_losses

USUAL_CHUNK = 0.32
"""Seconds of a chunk in an export where data.decoding.chunk is null."""


def metrics(experiment: AsrExperiment) -> Iterable[str]:
    """Return the metrics that evaluations give."""
    routing = (
        ("val_routing_entropy", "val_dead_experts", "val_expert_use/", "val_expert_weight/", "val_expert_wer/")
        if experiment.model.experts
        else ()
    )
    accuracy = ("val_accuracy",) if experiment.model.architecture != CTC else ()
    return ("val_loss", *accuracy, "val_wer", "val_cer", "val_wer/", f"val_{LOAD_BALANCING}", *routing)


def list_networks(experiment: AsrExperiment) -> tuple[NetworkKind, ...]:
    """Return the kind of the network; a CTC run of Vaak's, which may be a base, is of either."""
    model = experiment.model
    if model.architecture == CTC and model.base != SCRATCH and is_own_run(model.base):
        return ()
    return ("stacks",) if model.architecture == CTC and model.base == SCRATCH else ("transformers",)


def explain_uncaptured(experiment: AsrExperiment) -> str | None:
    """Return what a CUDA graph of a step can't have, if anything."""
    model = experiment.model
    if experiment.data.features_on == "device":
        return UNCAPTURED_FEATURES
    if model.experts is not None:
        return "the program reads which of model.experts each utterance chooses"
    if model.architecture == CTC and model.base == SCRATCH and model.conformer.streaming:
        return "streaming draws chunks on the CPU (model.conformer.streaming)"
    if model.architecture == DECODER and isinstance(read_decoder_kind(model.base), ListenerBase):
        return f"{model.base} reads audio in a prompt, whose places for it are counted"
    about = read_base_config(model.base) if model.architecture == CTC and model.base != SCRATCH else {}
    if about.get("feat_extract_norm") == "group":
        return (
            f"{model.base} reads recordings one by one, as a norm of its convolutions does (feat_extract_norm: group)"
        )
    if about.get("model_type") == "wav2vec2-bert" and about.get("add_adapter"):
        return f"the adapter of {model.base} reads recordings one by one (add_adapter)"
    return None


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


def settle_by_base(get: Callable[[str], Any], folder: Path) -> dict[str, tuple[float, str]]:
    """Return a base that reads less than 30 s, or a window, decides how long utterances may be."""
    base, window = get("model.base"), get("model.window")
    is_whisper = get("model.architecture") not in (CTC, DECODER)
    if base != SCRATCH and is_whisper and isinstance(window, int | float) and window > 0:
        return {"data.max_duration": (float(window), "which is model.window")}
    seconds = seconds_read_by(base, folder) if isinstance(base, str) and is_whisper else None
    if seconds is None or seconds >= CONTEXT_SECONDS:
        return {}
    return {"data.max_duration": (seconds, f"which is what {base} reads at most")}


def settle_options(experiment: AsrExperiment, device: str) -> dict[str, tuple[str, str]]:
    """Return the options that are open until the device is known."""
    model = experiment.model
    by_loader = model.architecture == DECODER or (model.architecture == CTC and model.base != SCRATCH)
    return settle_features(experiment, device, by_loader=by_loader)


def newer_options(get: Callable[[str], Any]) -> dict[str, Any]:
    """Return the values with which a run began before there were options for them.

    Before ``data.features_on``, the loader made features on every device. Before ``model.window``, the longest
    utterance was what a pretrained Whisper's encoder read, too; before CTC's beam search left out what is unlikely, it
    left out nothing.
    """
    if get("model.architecture") == CTC:
        # A run without beam search has no options of one, whenever it began.
        if get("data.decoding.method") != "beam":
            return dict(BY_LOADER)
        return {**BY_LOADER, "data.decoding.token_min_logp": None, "data.decoding.beam_threshold": None}
    longest = get("data.max_duration")
    is_pretrained_whisper = get("model.base") != SCRATCH and get("model.architecture") != DECODER
    if is_pretrained_whisper and isinstance(longest, int | float) and longest < CONTEXT_SECONDS:
        return {**BY_LOADER, "model.window": float(longest)}
    return dict(BY_LOADER)


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
    codes = (read_code(str(one)) for one in named if one is not None)
    language = next((one for one in codes if one is not None), "en")
    files = f'"{folder}/encoder.onnx", "{folder}/decoder.onnx", "{folder}/tokens.txt", language="{language}"'
    return SHERPA_CODE.replace("{maker}", f"from_whisper(\n    {files}\n)")


ONLINE_CODE = """

# while it comes
model = sherpa_onnx.OnlineRecognizer.from_wenet_ctc(
    "{folder}/tokens.txt", "{folder}/online.onnx", chunk_size={chunk}, num_left_chunks={left}, {audio}
)
stream = model.create_stream()
stream.accept_waveform(rate, samples)
# Only whole chunks are read: silence fills the last one.
stream.accept_waveform(rate, [0.0] * round({silence} * rate))
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
        .replace("{silence}", f"{found['chunk'] + 0.1:g}")
        .replace("{chunk}", str(chunk))
        .replace("{left}", str(round(found["left"]) // chunk))
        .replace("{audio}", f"sample_rate={rate}, feature_dim={bins}")
    )


HUB_TAG = "automatic-speech-recognition"


def opens(about: Mapping[str, Any], source: str) -> dict[str, Any] | str | None:
    """Return the options with which a Whisper, or a base with an output layer of CTC, is used untrained."""
    kind = about.get("model_type")
    # What a model can't write counts as errors, as it does for a trained one.
    data: dict[str, Any] = {"max_unknown": 101}
    if kind == "whisper":
        language = load_name("vaak.tasks.asr.model:read_written_language")(source)
        return {"model": {"base": source}, "data": data | ({} if language is None else {"language": language})}
    if kind in DECODER_BASES:
        return {"model": {"architecture": DECODER, "base": source}, "data": data}
    if kind not in CTC_BASES:
        return None
    if not any(str(name).endswith("ForCTC") for name in about.get("architectures") or ()):
        return f"is a {kind} without an output layer of CTC, which writes nothing before it is trained"
    return {"model": {"architecture": CTC, "base": source}, "data": data}


def require_base(experiment: AsrExperiment, folder: Path) -> None:
    """Raise UserError for a base in a form that isn't read; ``checks`` refuse those of other kinds."""
    base = experiment.model.base
    if base != SCRATCH and not is_own_run(base):
        find_local("model.base", VERSIONS.get(base, base), folder)


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
    losses=list_token_losses,
    loss_reads_head=True,
    auxiliary_losses=(LOAD_BALANCING,),
    refused_batching={"packed": "utterances can't be put together in a row; expected fixed, bucketed or stratified"},
    refused_difficulties=only_length,
    networks=list_networks,
    explain_uncaptured=explain_uncaptured,
    num_parameters=num_parameters,
    follows=settle_by_base,
    newer=newer_options,
    settles=settle_options,
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
        "dcp": DCP,
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
    require_base=require_base,
)
