"""Options of a diarizer that don't go together: as ``limits``, of which this is a part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from vaak.config.catalog import LABEL_TYPES
from vaak.config.experiment import Experiment

Remark = tuple[str, str]

LABEL_TYPE = "training.eval_knobs.label_type"
WITH_CLASSES = ("speaker_id", "powerset")
WITH_SPEAKERS_OF_THE_WINDOW = ("multilabel", "powerset")
OF_CLASSES = ("focal",)
OF_OUTPUTS = ("bce", "mse", "l1", "smooth_l1", "huber")


def impossible_diarizers(experiment: Experiment[Any, Any]) -> Iterator[Remark]:
    """Dotted keys whose values can't be done, each with the reason; of a user's own label type, nothing is known."""
    training, model = experiment.training, experiment.model
    audio: Any = experiment.global_config
    if audio.snip_edges:
        yield "global_config.snip_edges", "true leaves out the frames at the ends of a recording, and who speaks there"
    label_type, auxiliary, main = training.eval_knobs.label_type.type, training.loss.auxiliary, training.loss.main.type
    if label_type == "custom":
        yield LABEL_TYPE, "custom is a label type of your own: name its class, a DiarizationCollator, by ./file.py:Name"
        return
    is_known, has_classes = label_type in LABEL_TYPES, label_type in WITH_CLASSES
    if main in (OF_OUTPUTS if has_classes else OF_CLASSES) and is_known:
        kind = "one of several classes" if has_classes else "several outputs, each there or not"
        yield "training.loss.main", f"{main} doesn't fit label_type {label_type}, of {kind}; leave it out"
    if model.head == "attractors" and is_known and label_type != "multilabel":
        yield "model.head", f"attractors need label_type multilabel, and it is {label_type}"
    if model.head == "attractors" and "attractor" not in auxiliary:
        yield "model.head", "attractors need training.loss.auxiliary.attractor: it teaches how many speakers there are"
    if "attractor" in auxiliary and model.head != "attractors":
        yield "training.loss.auxiliary.attractor", f"model.head is {model.head}; only attractors have this loss"
    if "speaker" in auxiliary and is_known and label_type not in WITH_SPEAKERS_OF_THE_WINDOW:
        yield "training.loss.auxiliary.speaker", f"label_type {label_type} has no speaker embeddings; leave it out"
    if "speaker" in auxiliary and not model.embedding_dim:
        yield "training.loss.auxiliary.speaker", "model.embedding_dim is 0, so there are no speaker embeddings"


def remarks_on_diarizers(experiment: Experiment[Any, Any]) -> Iterator[Remark]:
    """Dotted keys that do something else than one may think, each with what happens."""
    yield from _remarks_on_storage(experiment)
    if experiment.training.eval_knobs.label_type.type not in WITH_SPEAKERS_OF_THE_WINDOW:
        return
    room = experiment.model.max_speakers
    for number, dataset in enumerate(experiment.datasets):
        if dataset.conversations is not None and dataset.conversations.num_speakers[1] > room:
            yield (
                f"datasets.{number}.conversations.num_speakers",
                f"the model has room for {room} (model.max_speakers): where more speak, it learns those who speak "
                "longest, and the others count as silence",
            )


def _remarks_on_storage(experiment: Experiment[Any, Any]) -> Iterator[Remark]:
    audio: Any = experiment.global_config
    key = "global_config.storage_path"
    simulated = [dataset.name for dataset in experiment.datasets if dataset.conversations is not None]
    if audio.storage_path is None:
        yield "global_config.storage_type", "storage_path is null, so no features are stored"
    elif simulated and len(simulated) == len(experiment.datasets):
        yield key, "all datasets are simulated conversations, made as they are needed: no features are stored"
    else:
        if simulated:
            yield key, f"conversations are made as they are needed: no features of {', '.join(simulated)} are stored"
        if experiment.data.augmentation.changes_audio:
            yield key, "data.augmentation changes the audio of train: only features of valid are stored"
