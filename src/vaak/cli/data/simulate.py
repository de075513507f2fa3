"""``vaak data simulate``: write simulated conversations to a folder."""

from __future__ import annotations

import json
import sys
import tempfile
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.config import AsJson, files_and_overrides

if TYPE_CHECKING:
    from vaak.audio.config import DatasetConfig
    from vaak.audio.simulation.folder import Written
    from vaak.config.load import Loaded


class Split(StrEnum):
    """The split whose speakers talk."""

    train = "train"
    valid = "valid"
    test = "test"


def simulate(
    out: Annotated[Path, typer.Argument(help="A new or empty folder, or one to continue.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[FILE… key=value…]", help="YAML files and options that override them; default: built-in voices."
        ),
    ] = None,
    split: Annotated[Split, typer.Option(help="The split whose speakers talk.")] = Split.test,
    number: Annotated[int | None, typer.Option(min=1, help="Number of conversations; default: as in the YAML.")] = None,
    dataset: Annotated[str | None, typer.Option(help="The name of a dataset, if the YAML has several.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write simulated conversations as audio with RTTM, a manifest and Lhotse's cuts.

    The same options give the same bits. Run again, an interrupted simulation continues.

    Example: vaak data simulate conversations --number 20 datasets.0.conversations.beta=1
    """
    import vaak.audio.synthesis
    from vaak.config.load import load

    files, overrides = files_and_overrides(arguments or [])
    loaded = load(files or [Path(vaak.audio.synthesis.__path__[0]) / "built_in_voices.yml"], overrides)
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    written, num_speakers = _simulated(loaded, _dataset(loaded, dataset), out, split.value, number)
    if as_json:
        about = {"number": written.number, "new": written.new, "seconds": round(written.seconds, 3)}
        print(json.dumps({"folder": str(out), **about, "speakers": num_speakers}, ensure_ascii=False))
        return
    minutes = f"{written.seconds / 60:.1f} minutes"
    print(f"{written.number} conversations, {minutes}, of {num_speakers} speakers in {out} ({written.new} new)")


def _simulated(
    loaded: Loaded, dataset: DatasetConfig, out: Path, split: str, number: int | None
) -> tuple[Written, int]:
    """What was written, and the number of speakers in the split.

    ``number`` conversations of speakers of the ``split``, or as many as ``dataset`` says, are written to ``out``;
    ``loaded`` is the configuration.
    """
    from vaak.audio.config import ConversationsConfig
    from vaak.audio.corpora.corpus import AudioCorpus
    from vaak.audio.simulation.conversations import SimulatedConversations
    from vaak.audio.simulation.folder import demand_room, write_conversations
    from vaak.audio.simulation.utterances import CutUtterances
    from vaak.audio.sources.cut_store import write_cuts
    from vaak.core.progress import progress

    audio: Any = loaded.experiment.global_config
    options = dataset.conversations or ConversationsConfig()
    if "split_by" not in dataset.model_fields_set:  # as with conversations in the YAML
        dataset = dataset.model_copy(update={"split_by": "speaker"})
    if number is not None:
        options = options.model_copy(update={split: number})
    demand_room(out)
    with tempfile.TemporaryDirectory(prefix="vaak-simulate-") as folder:
        store = write_cuts(Path(folder), AudioCorpus(dataset, audio).cuts(split))
        utterances = CutUtterances(store, audio, find_speech=dataset.find_speech)
        source = SimulatedConversations(utterances, options, split)
        with progress("conversations", len(source.durations), audio.progress_bar) as advance:
            seed = loaded.experiment.training.random_seed
            return write_conversations(source, out, seed=seed, advance=advance), len(source.speakers)


def _dataset(loaded: Loaded, name: str | None) -> DatasetConfig:
    """The dataset of that name, or the only one. Raises UserError if there is none or the choice is not clear."""
    from vaak.core.errors import UserError

    datasets = loaded.experiment.datasets
    there: dict[str, DatasetConfig] = {one.name: one for one in datasets if hasattr(one, "conversations")}
    if not there:
        raise UserError(f"the YAML of task {loaded.experiment.task} names no audio under datasets")
    if name is None and len(there) == 1:
        return next(iter(there.values()))
    if name not in there:
        what = "there are several datasets" if name is None else f"unknown dataset {name}"
        raise UserError(f"{what}; --dataset takes one of {', '.join(there)}")
    return there[name]
