"""The diarization task's specification; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.mel_config import REPLACED_BY_MEL
from vaak.config.tasks import (
    LAYERLESS,
    OF_STACKS,
    CheckFinding,
    StarterData,
    TaskSpec,
    impossible,
    load_name,
    no_effect,
    only_length,
    remark,
)
from vaak.core.storage.model_formats import PYANNOTE
from vaak.nn.config import stack_parameters
from vaak.nn.stack_checks import check_presets, check_stack
from vaak.tasks.adapter_checks import lora_findings, target_findings
from vaak.tasks.audio_checks import (
    BY_LOADER,
    UNCAPTURED_FEATURES,
    augmentation_findings,
    dataset_findings,
    settle_features,
    unread_feature_findings,
)
from vaak.tasks.diarization import METRICS
from vaak.tasks.diarization.config import (
    ALIASES,
    DEFAULTS,
    ENCODER_SECTION,
    LABEL_TYPE,
    LABEL_TYPES,
    PRESETS,
    SHARED,
    DiarizationDataConfig,
    DiarizationExperiment,
    DiarizationModelConfig,
    DiarizationTrainingConfig,
    longest_example,
)
from vaak.tasks.formats import DCP, ONNX, PEFT

BASE_RATE, BASE_PARAMETERS = 16000, 1_473_000
"""Sampling rate and size of the segmentation networks that pyannote.audio publishes."""
BASE_OVERLAP = 0.9
"""The overlap of windows without training: those of pyannote.audio's pipelines move by a tenth."""
WITH_CLASSES = ("speaker_id", "powerset")
WITH_SPEAKERS_OF_THE_WINDOW = ("multilabel", "powerset")
OF_CLASSES = ("focal",)
OF_OUTPUTS = ("bce", "mse", "l1", "smooth_l1", "huber")


def checks(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task; nothing is known about a user's own label type."""
    # in frames of the encoder: the longest example of training or window of inference
    seconds = max(longest_example(experiment), experiment.data.inference.window or 0.0)
    most_frames = seconds / (experiment.global_config.frame_shift * experiment.model.subsampling)
    if experiment.model.base is None:
        yield from check_stack("model", experiment.model, is_encoder=True, longest=most_frames)
        yield from check_presets(experiment.model.preset, PRESETS, experiment.model)
        yield from _unread_by_features(experiment.global_config)
        yield from _unread_front_end(experiment.model)
    else:
        yield from _unread_by_a_base(experiment)
        yield from _impossible_with_a_base(experiment)
    yield from lora_findings(experiment, experiment.model.lora, is_pretrained=experiment.model.base is not None)
    if experiment.model.base is not None:
        yield from target_findings("model.lora", experiment.model.base, experiment.model.lora)
    yield from _remarks_on_storage(experiment)
    yield from _speakers_without_room(experiment)
    yield from _batch_without_room(experiment)
    yield from _unread_by_the_model(experiment)
    yield from _impossible(experiment)


def settle_options(experiment: DiarizationExperiment, device: str) -> dict[str, tuple[str, str]]:
    """Return the options that are open until the device is known."""
    stored = experiment.global_config.storage_path is not None
    return settle_features(experiment, device, by_loader=experiment.model.base is not None, stored=stored)


def explain_uncaptured(experiment: DiarizationExperiment) -> str | None:
    """Return what a CUDA graph of a step can't have, if anything."""
    if experiment.data.features_on == "device":
        return UNCAPTURED_FEATURES
    return "attractors are counted (model.head)" if experiment.model.head == "attractors" else None


WITH_A_BASE = frozenset({"base", "lora", "max_speakers", "embedding_dim", "subsampling", "upsampling"})
"""Options of the model that one with a base reads, or that have one value there."""


def _unread_by_a_base(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    """Options of Vaak's own network, and of features."""
    for name in sorted(type(experiment.model).model_fields.keys() - WITH_A_BASE):
        yield no_effect(f"model.{name}", "the network is that of model.base")
    for name in sorted({*REPLACED_BY_MEL, "feature_type", "mel", "pitch", "num_jobs"} - {"sampling_rate"}):
        yield no_effect(f"global_config.{name}", "model.base reads the samples")


def _impossible_with_a_base(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    audio, training, key = experiment.global_config, experiment.training, "model.base"
    label_type = training.eval_knobs.label_type.type
    if label_type not in WITH_SPEAKERS_OF_THE_WINDOW:
        yield impossible(LABEL_TYPE, f"{key} scores speakers, or sets of them: give multilabel or powerset")
    if audio.sampling_rate != BASE_RATE:
        yield impossible("global_config.sampling_rate", f"{key} reads {BASE_RATE} Hz, but it is {audio.sampling_rate}")
    if audio.storage_path is not None:
        yield impossible("global_config.storage_path", f"{key} reads samples, so features can't be stored")
    if experiment.data.features_on == "device":
        yield impossible("data.features_on", f"{key} reads samples, so features can't be computed on a device")
    if experiment.data.augmentation.spec_augment is not None:
        yield impossible("data.augmentation.spec_augment", f"{key} reads samples, so features can't be masked")
    if "norm_reg" in training.loss.auxiliary:
        yield impossible("training.loss.auxiliary.norm_reg", f"{key} has no attention")


def _unread_by_features(audio: AudioConfig) -> Iterator[CheckFinding]:
    """Options of another type of features, of energy, and of extraction."""
    if audio.feature_type == "mel":
        yield impossible(
            "global_config.feature_type",
            "mel is for speech synthesis; its frames are not at the places of a diarizer's labels: use fbank",
        )
        return
    yield from unread_feature_findings(audio)
    if audio.storage_path is None:
        yield no_effect("global_config.num_jobs", "storage_path is null: features are computed when they are needed")


def _unread_front_end(model: DiarizationModelConfig) -> Iterator[CheckFinding]:
    unread = ("context",) if model.front_end == "convolutional" else ("kernel_size", "num_convolutions")
    for name in unread:
        yield no_effect(f"model.{name}", f"front_end is {model.front_end}, which has none")


def _unread_by_the_model(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    """Options of augmentation and of inference that have no effect."""
    yield from augmentation_findings(experiment.data.augmentation)
    if experiment.datasets and all(dataset.conversations is not None for dataset in experiment.datasets):
        for name in ("window", "shift_windows"):
            why = "conversations aren't cut: they are as long as their train_duration (or duration) says"
            yield no_effect(f"data.{name}", f"has no effect on simulated data: {why}")
    if experiment.data.inference.clustering != "centred":
        yield no_effect("data.inference.centred_threshold", "data.inference.clustering isn't centred")
    if experiment.data.inference.clustering != "vbx":
        for name in ("vbx_fa", "vbx_fb"):
            yield no_effect(f"data.inference.{name}", "data.inference.clustering isn't vbx")
    if experiment.data.inference.speaker_encoder is None:
        yield no_effect("data.inference.speaker_features", "data.inference.speaker_encoder is null")
    elif (label_type := experiment.training.eval_knobs.label_type.type) in ("binary", "speaker_id"):
        why = f"label_type {label_type} has the same speakers in every window"
        yield no_effect("data.inference.speaker_encoder", why)
    if experiment.data.inference.num_speakers is not None:
        for name in ("min_speakers", "max_speakers"):
            yield no_effect(f"data.inference.{name}", "num_speakers is given, so it isn't estimated")
    yield from dataset_findings(experiment.datasets, reads_times=True)


def _impossible(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    training, model = experiment.training, experiment.model
    if experiment.global_config.snip_edges:
        yield impossible(
            "global_config.snip_edges", "true drops the frames at the ends of a recording, and the speech there"
        )
    label_type, auxiliary, main = training.eval_knobs.label_type.type, training.loss.auxiliary, training.loss.main.type
    if label_type == "custom":
        yield impossible(
            LABEL_TYPE, "custom means your own label type: give its class, a DiarizationCollator, as ./file.py:Name"
        )
        return
    is_known, has_classes = label_type in LABEL_TYPES, label_type in WITH_CLASSES
    if main in (OF_OUTPUTS if has_classes else OF_CLASSES) and is_known:
        kind = "one class per frame" if has_classes else "several binary outputs"
        yield impossible("training.loss.main", f"{main} doesn't fit label_type {label_type} ({kind}); leave it out")
    if model.head == "attractors" and is_known and label_type != "multilabel":
        yield impossible("model.head", f"attractors require label_type multilabel, but it is {label_type}")
    if model.head == "attractors" and "attractor" not in auxiliary:
        yield impossible(
            "model.head", "attractors require training.loss.auxiliary.attractor, which trains the number of speakers"
        )
    if "attractor" in auxiliary and model.head != "attractors":
        yield impossible(
            "training.loss.auxiliary.attractor", f"model.head is {model.head}; only attractors have this loss"
        )
    if "speaker" in auxiliary and is_known and label_type not in WITH_SPEAKERS_OF_THE_WINDOW:
        yield impossible(
            "training.loss.auxiliary.speaker", f"label_type {label_type} has no speaker embeddings; leave it out"
        )
    if "speaker" in auxiliary and not model.embedding_dim:
        yield impossible(
            "training.loss.auxiliary.speaker", "model.embedding_dim is 0, so the model has no speaker embeddings"
        )


def _batch_without_room(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    """A budget of a batch that not one example fits in."""
    budget, longest = experiment.training.batching.max_duration, longest_example(experiment)
    if budget is not None and budget < longest:
        yield impossible(
            "training.batching.max_duration",
            f"{budget:g} s is less than the longest training examples ({longest:g} s: data.window, or train_duration "
            "of conversations); raise it or shorten them",
        )


def _speakers_without_room(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    if experiment.training.eval_knobs.label_type.type not in WITH_SPEAKERS_OF_THE_WINDOW:
        return
    max_speakers, inference = experiment.model.max_speakers, experiment.data.inference
    joins = experiment.model.embedding_dim or inference.speaker_encoder
    if (inference.num_speakers or inference.min_speakers) > max_speakers and not joins:
        option = "num_speakers" if inference.num_speakers else "min_speakers"
        yield impossible(
            f"data.inference.{option}",
            f"the model tells at most {max_speakers} speakers apart (model.max_speakers), without embeddings in any "
            "recording",
        )
    for number, dataset in enumerate(experiment.datasets):
        if dataset.conversations is not None and dataset.conversations.num_speakers[1] > max_speakers:
            yield remark(
                f"datasets.{number}.conversations.num_speakers",
                f"the model has {max_speakers} outputs for speakers (model.max_speakers): if there are more, it "
                "learns those who speak longest, and the others count as silence",
            )


def _remarks_on_storage(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    audio = experiment.global_config
    key = "global_config.storage_path"
    simulated = [dataset.name for dataset in experiment.datasets if dataset.conversations is not None]
    if audio.storage_path is None:
        yield remark("global_config.storage_type", "storage_path is null, so no features are stored")
    elif simulated and len(simulated) == len(experiment.datasets):
        yield remark(key, "all datasets are simulated conversations, which are made on demand: no features are stored")
    else:
        if simulated:
            names = ", ".join(simulated)
            yield remark(key, f"conversations are made on demand: no features of {names} are stored")
        if experiment.data.augmentation.changes_audio:
            yield remark(key, "data.augmentation changes the audio of train: only features of valid are stored")


def metrics(experiment: DiarizationExperiment) -> list[str]:
    """The metrics that evaluations give; one that ends with a slash is a metric for each number of speakers."""
    shares, speakers = ("der", "miss", "false_alarm", "confusion", "jer"), ("speaker_error", "speaker_ceiling")
    return [f"val_{name}" for name in ("loss", "frame_accuracy", *shares, *speakers, "speaker_error/")]


def num_parameters(experiment: DiarizationExperiment) -> int:
    """About how many parameters the model has."""
    model, audio = experiment.model, experiment.global_config
    if model.base is not None:
        return BASE_PARAMETERS
    width, bins = model.d_model, audio.num_mel_bins
    if model.front_end == "stacked":
        front_end = (2 * model.context + 1) * bins * width
    else:
        mixing = model.num_convolutions * width * (width + model.kernel_size)
        front_end = width * model.kernel_size * bins + mixing + width * width * model.subsampling
    channels = bins if model.front_end == "stacked" else width
    expanded = width * (width * model.upsampling + channels) if model.upsampling > 1 else 0
    head = 16 * width * width if model.head == "attractors" else 0
    return front_end + stack_parameters(model) + expanded + head + width * model.embedding_dim


def opens(about: Mapping[str, Any], source: str) -> dict[str, Any] | None:
    """Return the options with which a segmentation network of pyannote.audio is used untrained."""
    if about.get("model_type") != PYANNOTE:
        return None
    from vaak.tasks.diarization.pyannote import read_checkpoint

    sizes, _ = read_checkpoint(source)
    return {
        "model": {"base": source, "max_speakers": sizes.num_speakers},
        "data": {"inference": {"window": sizes.duration, "window_overlap": BASE_OVERLAP}},
        "training": {"eval_knobs": {"label_type": sizes.label_type}},
    }


def require_base(experiment: DiarizationExperiment, folder: Path) -> None:
    """Raise UserError for a base that isn't a segmentation network of pyannote.audio."""
    base = experiment.model.base
    if base is not None:
        beside = folder / base
        load_name("vaak.tasks.diarization.pyannote:read_checkpoint")(str(beside) if beside.exists() else base)


SPEC = TaskSpec(
    task="vaak.tasks.diarization.task:DiarizationTask",
    model=DiarizationModelConfig,
    data=DiarizationDataConfig,
    training=DiarizationTrainingConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    short_names={LABEL_TYPE: LABEL_TYPES},
    used_by_models=(LABEL_TYPE, "model"),
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    shared=SHARED,
    sides=ENCODER_SECTION,
    metrics=metrics,
    own_metrics=METRICS,
    auxiliary_losses=("clustering", "speaker", "attractor", "norm_reg"),
    refused_batching={
        "stratified": "recordings have no classes to keep in proportion; expected fixed or bucketed",
        "packed": "recordings can't be put together in a row; expected bucketed",
    },
    refused_difficulties=only_length,
    networks=lambda experiment: OF_STACKS if experiment.model.base is None else LAYERLESS,
    explain_uncaptured=explain_uncaptured,
    num_parameters=num_parameters,
    checks=checks,
    newer=lambda get: BY_LOADER,
    settles=settle_options,
    starter="vaak.tasks.diarization.starter:fill_options",
    starter_data=StarterData(
        "audio with speakers",
        "audio with its speakers (RTTM or TextGrids next to it, or a column speaker)",
        usual_for="conversations",
    ),
    example="vaak.tasks.diarization.starter:write_example",
    commands=lambda get: ("tune {run}", "eval {run}", "diarize {run} recording.wav --output rttm"),
    uses={"diarize": (), "tune": ()},
    endpoints=lambda get: ("diarize",),
    exports={"onnx": ONNX, "peft": PEFT, "dcp": DCP},
    hub_tag="voice-activity-detection",
    opens=opens,
    require_base=require_base,
)
