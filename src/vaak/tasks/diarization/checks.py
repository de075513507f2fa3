"""Options of a diarizer that don't go together, or have no effect."""

from __future__ import annotations

from collections.abc import Iterator

from vaak.config.task_spec import CheckFinding, impossible, remark
from vaak.nn.checks import stack_findings
from vaak.tasks.diarization.config import LABEL_TYPE, LABEL_TYPES, DiarizationExperiment

WITH_CLASSES = ("speaker_id", "powerset")
WITH_SPEAKERS_OF_THE_WINDOW = ("multilabel", "powerset")
OF_CLASSES = ("focal",)
OF_OUTPUTS = ("bce", "mse", "l1", "smooth_l1", "huber")


def checks(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    """The findings on an experiment of this task; nothing is known about a user's own label type."""
    yield from stack_findings("model", experiment.model, is_encoder=True)
    yield from _remarks_on_storage(experiment)
    yield from _speakers_without_room(experiment)
    yield from _impossible(experiment)


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
            "training.loss.auxiliary.speaker", "model.embedding_dim is 0, so there are no speaker embeddings"
        )


def _speakers_without_room(experiment: DiarizationExperiment) -> Iterator[CheckFinding]:
    if experiment.training.eval_knobs.label_type.type not in WITH_SPEAKERS_OF_THE_WINDOW:
        return
    room = experiment.model.max_speakers
    for number, dataset in enumerate(experiment.datasets):
        if dataset.conversations is not None and dataset.conversations.num_speakers[1] > room:
            yield remark(
                f"datasets.{number}.conversations.num_speakers",
                f"the model has {room} outputs for speakers (model.max_speakers): if there are more, it learns those "
                "who speak longest, and the others count as silence",
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
