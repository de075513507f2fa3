"""Stage ``embeddings``: the states of the base's encoder for each utterance, pooled on the fly.

rows/              the embeddings by utterance (vaak.pipeline.rows), 100 in a file
left_out.jsonl     the utterances that can't be used, with the reason, where data.on_bad_example is skip
mapping.json       where each utterance's row is, and its group
embeddings.json    width and positions of the encoder's states, how they are pooled
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.core.errors import DataError
from vaak.core.out_of_memory import is_host_error
from vaak.core.progress import progress
from vaak.core.storage.files import read_json, write_json, write_text
from vaak.core.storage.json_lines import JsonLines, read_json_lines
from vaak.pipeline.rows import Maker, disk_bytes, make_rows
from vaak.pipeline.stage import StageWork
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import (
    Values,
    get_precision,
    make_data_section,
    make_model_section,
    prepared_task,
    warn_fallbacks,
)

if TYPE_CHECKING:
    import numpy as np

    from vaak.tasks.asr.utterances import Utterances

log = logging.getLogger("vaak")

ROWS, MAPPING, EMBEDDINGS_FILE, LEFT_OUT = "rows", "mapping.json", "embeddings.json", "left_out.jsonl"
UTTERANCES_AT_ONCE = 100
"""How many utterances a process reads before it reports."""


def embeddings(work: StageWork) -> dict[str, Any]:
    """Write the embeddings of a part of the training data, with a mapping of their names."""
    options: MoeOptions = work.options
    warn_fallbacks(options)
    embedder = Embedder.of(work, "embeddings", "train")
    task = embedder.task()
    task.require_transcribing_base()
    utterances, (positions, width) = task.prepared.utterances("train"), task.states_shape
    names = readable_names(list_names(utterances), embedder, work, work.folder / LEFT_OUT)
    shape = {"mean": (width,), "flatten": (positions * width,), "none": (positions, width)}[options.pooling]
    size = disk_bytes(len(names), shape, options.embedding_type)
    log.info("embeddings of %s utterances will take %.1f MiB on disk", f"{len(names):,}", size / 2**20)
    store = make_rows(work.folder / ROWS, names, embedder, shape=shape, dtype=options.embedding_type, jobs=work.jobs)
    groups = [utterances.group_names[group] for group in utterances.groups]
    group_of = dict(zip(list_names(utterances), groups, strict=True))
    places = (divmod(number, store.rows_per_shard) for number in range(len(names)))
    mapping = {
        name: {"file": f"{ROWS}/{store.path(shard).name}", "row": row, "group": group_of[name]}
        for name, (shard, row) in zip(names, places, strict=True)
    }
    write_json(work.folder / MAPPING, mapping)
    write_json(work.folder / EMBEDDINGS_FILE, {"width": width, "positions": positions, "pooling": options.pooling})
    left_out = {"left out": number} if (number := len(_read_names(work.folder / LEFT_OUT))) else {}
    return {"utterances": len(names), **left_out, "MiB": round(size / 2**20, 1)}


@dataclass(frozen=True)
class Embedder:
    """Makes the embedder of a split in any process: ``values`` are a run's configuration, its data in ``directory``.

    Both are found from other folders, too, as on a Ray cluster.
    """

    values: Values
    directory: Path
    split: str
    pooling: str
    batch_size: int
    precision: str
    device: str

    @classmethod
    def of(cls, work: StageWork, stage: str, split: str) -> Embedder:
        """Make the embedder of a stage's data, which it prepares in ``data``."""
        options: MoeOptions = work.options
        values, model = make_data_section(options, stage), make_model_section(work)
        base = Path(model["base"])
        values["model"] = {**model, **({"base": str(base.resolve())} if base.is_dir() else {})}
        values["data"] = {**values["data"], "augmentation": None}
        # Each utterance is read once.
        values["global_config"] = {"cache_gigabytes": 0.0}
        about = (options.pooling, options.embedding_batch_size, get_precision(options), options.device)
        return cls(values, (work.folder / "data").resolve(), split, *about)

    def as_json(self) -> dict[str, Any]:
        """Return JSON from which ``from_json`` makes the same in another process (``vaak.pipeline.rows.Portable``)."""
        return {**asdict(self), "directory": str(self.directory)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Embedder:
        return cls(**{**values, "directory": Path(values["directory"])})

    def task(self) -> Any:
        """The task, its data prepared."""
        return prepared_task(self.values, self.directory)

    def reader(self) -> Callable[[list[str]], list[dict[str, str]]]:
        """The function that reads utterances by their names; it returns those that can't be read, and why."""
        features = _features(self.task(), self.split)

        def unread(names: list[str]) -> list[dict[str, str]]:
            found = []
            for name in names:
                try:
                    features(name)
                except Exception as error:
                    if is_host_error(error):
                        raise
                    found.append({"name": name, "reason": f"{type(error).__name__}: {error}"})
            return found

        return unread

    def __call__(self) -> Maker:
        """The function that embeds utterances by their names."""
        import numpy as np
        import torch

        from vaak.engine.distributed.launcher import pick_device
        from vaak.nn.speech.masks import length_mask, masked
        from vaak.tasks.asr.experts import mean_state

        task, device = self.task(), pick_device(self.device)
        compute_features, model = _features(task, self.split), task.model().to(device).eval()
        kind = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(self.precision)

        @torch.inference_mode()
        def make(names: list[str]) -> np.ndarray:
            found = []
            for first in range(0, len(names), self.batch_size):
                features = [compute_features(name) for name in names[first : first + self.batch_size]]
                with torch.autocast(device.type, kind, enabled=kind is not None):
                    states, lengths = task.compute_states(model, features)
                states = states.float()
                if self.pooling == "mean":
                    pooled = mean_state(states, lengths)
                else:
                    # A row has a place for each position, in zeros where an utterance is shorter.
                    if lengths is not None:
                        states = masked(states, length_mask(lengths, states.shape[1]))
                    pooled = torch.nn.functional.pad(states, (0, 0, 0, task.states_shape[0] - states.shape[1]))
                found.append((pooled.flatten(1) if self.pooling == "flatten" else pooled).cpu().numpy())
            return np.concatenate(found)

        return make


def _features(task: Any, split: str) -> Callable[[str], np.ndarray]:
    """The function that reads the features of an utterance of a split by its name."""
    import numpy as np

    # Nothing is drawn from this generator.
    dataset, rng = task.dataset(split), np.random.default_rng(0)
    places = {name: index for index, name in enumerate(list_names(dataset.utterances))}
    return lambda name: dataset.compute_features(dataset.example(places[name], rng))


def readable_names(
    names: list[str], embedder: Embedder, work: StageWork, file: Path, known: Collection[str] = ()
) -> list[str]:
    """The names of utterances that can be read: all, unless ``data.on_bad_example`` is skip.

    Then each of a ``work`` that isn't ``known`` is read once by the ``embedder``, and those that can't be are listed in
    ``file``, after those that its data lack already. Raises DataError where none is left.
    """
    if embedder.values["data"].get("on_bad_example") != "skip":
        return names
    lacking = embedder.task().prepared.about["statistics"][embedder.split]["unusable"]
    if not file.exists():
        unknown = [name for name in names if name not in known]
        parts = [unknown[first : first + UTTERANCES_AT_ONCE] for first in range(0, len(unknown), UTTERANCES_AT_ONCE)]
        found: list[dict[str, str]] = []
        with progress(f"reading {embedder.split}", len(unknown)) as advance:
            for part, bad in work.jobs.map(embedder.reader, parts):
                found += bad
                advance(len(part))
        found.sort(key=lambda one: one["name"])
        write_text(file, "".join(json.dumps(one, ensure_ascii=False) + "\n" for one in [*lacking, *found]))
    # The first lines are of those that the data lack already, which names doesn't have.
    unread = set(_read_names(file)[len(lacking) :])
    left = [name for name in names if name not in unread]
    if unread:
        log.warning("%d of %d utterances can't be read and are left out; see %s", len(unread), len(names), file)
    if not left:
        raise DataError(f"none of the {len(names)} utterances of {embedder.split} can be read; see {file}")
    return left


def _read_names(file: Path) -> list[str]:
    """The names of utterances listed in a file, if it exists. Raises DataError for a line without a name."""
    lines = read_json_lines(file) if file.exists() else JsonLines()
    bad = [number for number, _ in lines.malformed]
    bad += [number for number, one in lines.objects if not isinstance(one.get("name"), str)]
    if bad:
        raise DataError(f"{file}, line {min(bad)}: this isn't an utterance; delete the file, and --resume recreates it")
    return [one["name"] for _, one in lines.objects]


def list_names(utterances: Utterances) -> list[str]:
    """The names of the utterances that are used, in order."""
    return [utterances.cuts[int(place)].id for place in utterances.used]


def groups_in(folder: Path, names: Sequence[str]) -> list[str] | None:
    """The groups of embedded utterances, from the stage's folder; None if there is only one."""
    mapping = read_json(folder / MAPPING)
    groups = [mapping[name]["group"] for name in names]
    return groups if len(set(groups)) > 1 else None


def means(row: Callable[[str], np.ndarray], names: Sequence[str], width: int) -> np.ndarray:
    """The mean state of each utterance, ``(utterance, width)``, however the rows that ``row`` looks up are pooled."""
    import numpy as np

    states = (row(name).reshape(-1, width) for name in names)
    # Rows of zeros are positions that a shorter utterance doesn't have.
    return np.stack([one[one.any(1)].mean(0) for one in states])
