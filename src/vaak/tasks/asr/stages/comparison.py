"""Transcripts of each system (stages ``…_texts``), and whether the experts help (stage ``comparison``).

The system of a stage of transcripts is the run of the stage that has the role ``system``; without one, the base as it
is. The utterances are those of test, where the data have it and the mode is full; else those of valid.

transcripts.jsonl    a line for each utterance: id, reference, text, group, speaker (null where the data have none)
transcripts.json     which split, how texts are compared, how many parameters were trained, in how many steps
part.jsonl           what a stage that was cut has so far
comparison.json      rates of every system and differences, in total and by group, with intervals; the verdict
comparison.md        the same as a table

Intervals hold 95 % of bootstrap samples of speakers, whose utterances are drawn together; of utterances where the data
name no speakers. A difference is that of two systems in the same samples (vaak.study.comparison.significance).
"""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.core.errors import DataError
from vaak.core.out_of_memory import is_host_error
from vaak.core.progress import progress
from vaak.core.storage.files import read_json, write_json, write_text
from vaak.pipeline.stage import StageWork
from vaak.report.tables import aligned, markdown_table
from vaak.scoring.normalisers import Normaliser, normaliser
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import Values, get_precision, make_data_section, make_model_section, prepared_task

if TYPE_CHECKING:
    from vaak.scoring.word_errors import ErrorCounts

log = logging.getLogger("vaak")

RESULTS, TABLE = "comparison.json", "comparison.md"
MIXTURE = "mixture"
SYSTEMS = {"base": "the base", "one_lora": "one LoRA", "random": "random clusters", MIXTURE: "the mixture"}
"""Names of systems in stages, and for readers; the mixture is compared with the others."""
FEWEST_SPEAKERS = 6
"""Fewest speakers for a claim about others: five all differ in one direction by chance in 2/2⁵ of cases."""
ALL = ""
"""All utterances, where a name of a group would be."""
LINE_KEYS = ("reference", "text", "group")
Lines = Mapping[str, Mapping[str, Any]]
"""The lines of transcripts.jsonl, by the names of utterances."""
HELP, DONT, UNKNOWN = "help", "don't help", "can't be told apart"


@dataclass(frozen=True)
class RateDifference:
    """The mixture's WER minus a control's, in points of percent, with the interval over speakers, if there is one."""

    points: float | None
    interval: tuple[float, float] | None

    @property
    def is_below(self) -> bool:
        """Return whether the mixture is better than chance explains."""
        return self.interval is not None and self.interval[1] < 0

    @property
    def is_above(self) -> bool:
        """Return whether the mixture is worse than chance explains."""
        return self.interval is not None and self.interval[0] > 0

    def __str__(self) -> str:
        if self.points is None:
            return "-"
        interval = "" if self.interval is None else f" [{self.interval[0]:+.2f}, {self.interval[1]:+.2f}]"
        return f"{self.points:+.2f}{interval}"


def comparison(work: StageWork) -> dict[str, Any]:
    """Write the comparison of the mixture with its controls, as JSON and as a table."""
    found = compare_systems({name: work.inputs[name] for name in SYSTEMS if name in work.inputs})
    write_json(work.folder / RESULTS, found)
    write_text(work.folder / TABLE, markdown(found))
    rates = {f"wer of {SYSTEMS[name]}": about["total"]["wer"] for name, about in found["systems"].items()}
    return {"experts": found["verdict"], **rates}


def compare_systems(folders: Mapping[str, Path]) -> dict[str, Any]:
    """Return the content of ``comparison.json``; ``folders`` have the transcripts of each system.

    Raises DataError where systems weren't given the same utterances.
    """
    about = {name: read_json(folder / TRANSCRIPTS_FILE) for name, folder in folders.items()}
    lines = {name: {line["id"]: line for line in _read_lines(folder / TEXTS_FILE)} for name, folder in folders.items()}
    own, conditions = lines[MIXTURE], {key: about[MIXTURE][key] for key in ("split", "normaliser", "decoding")}
    for name, others in lines.items():
        if about[name]["split"] != conditions["split"] or _without_text(others) != _without_text(own):
            raise DataError(f"{folders[name]} and {folders[MIXTURE]} have other utterances, which can't be compared")
    speakers = {key: line["speaker"] for key, line in own.items() if line["speaker"] is not None}
    # The flag keeps a speaker apart from an utterance that happens to have the same name.
    units = {key: (speakers[key], True) if key in speakers else (key, False) for key in own}
    groups: dict[str, list[str]] = {}
    for key, line in sorted(own.items(), key=lambda item: str(item[1]["group"])):
        groups.setdefault(line["group"], []).append(key)
    parts = {ALL: list(own), **(groups if len(groups) > 1 else {})}
    normalise = normaliser(conditions["normaliser"])
    differences = _differences(lines, units, parts, normalise)
    found: dict[str, Any] = {
        **conditions,
        "intervals_over": "speakers" if speakers else "utterances",
        "numbers": _total_and_groups({part: len({units[key] for key in keys}) for part, keys in parts.items()}),
        "without_speaker": len(own) - len(speakers),
        "systems": {
            name: {
                **{key: about[name][key] for key in ("parameters", "steps")},
                **_scores(lines[name], normalise, speakers or None),
            }
            for name in lines
        },
        "differences": {
            name: _total_and_groups({part: asdict(one) for part, one in of_parts.items()})
            for name, of_parts in differences.items()
        },
    }
    in_all = {name: of_parts[ALL] for name, of_parts in differences.items()}
    verdict, sentence = judge(in_all, found["numbers"]["total"], found["intervals_over"])
    lines_shown = [*heading(found), *aligned(make_rows(found)), sentence]
    return {"verdict": verdict, "sentence": sentence, **found, "lines": lines_shown}


def _without_text(lines: Lines) -> dict[str, Any]:
    return {name: {key: one for key, one in line.items() if key != "text"} for name, line in lines.items()}


def _total_and_groups(by_part: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``total`` and ``groups`` by name, as the JSON of error rates has them."""
    return {"total": by_part[ALL], "groups": {part: one for part, one in by_part.items() if part != ALL}}


def _scores(lines: Lines, normalise: Normaliser, speakers: Mapping[str, str] | None) -> dict[str, Any]:
    from vaak.scoring.word_errors import score_texts

    references, texts, groups = ({name: line[key] for name, line in lines.items()} for key in LINE_KEYS)
    return score_texts(references, texts, groups, normalise, speakers).to_json()


def _differences(
    lines: Mapping[str, Lines], units: Mapping[str, Hashable], parts: Mapping[str, list[str]], normalise: Normaliser
) -> dict[str, dict[str, RateDifference]]:
    """Return how the mixture differs from each control, in each of the ``parts``: utterances by whose ``units`` say."""
    from vaak.scoring.word_errors import count_errors

    counts = {
        name: {key: count_errors(normalise(one["reference"]), normalise(one["text"])) for key, one in own.items()}
        for name, own in lines.items()
    }
    return {
        name: {
            part: difference(counts[MIXTURE], own, {key: units[key] for key in keys}) for part, keys in parts.items()
        }
        for name, own in counts.items()
        if name != MIXTURE
    }


def difference(
    first: Mapping[str, ErrorCounts], second: Mapping[str, ErrorCounts], units: Mapping[str, Hashable]
) -> RateDifference:
    """The WER of one system minus that of another, of the utterances of ``units``, which says whose each is.

    The counts of both are by utterance, of the same references; units are drawn whole.
    """
    import numpy as np

    from vaak.core.significance import compute_mean, paired_bootstrap

    places = {unit: index for index, unit in enumerate(dict.fromkeys(units.values()))}
    tables = np.zeros((2, len(places), 2))
    for name, unit in units.items():
        for table, counts in zip(tables, (first, second), strict=True):
            table[places[unit]] += counts[name].word_errors, counts[name].words
    if not tables[:, :, 1].any():
        return RateDifference(None, None)
    with np.errstate(invalid="ignore"):
        # A draw may have no words.
        test = paired_bootstrap(tables[0], tables[1], compute_mean)
    low, high = (100 * bound for bound in test.interval or (np.nan, np.nan))
    return RateDifference(100 * test.statistic, (low, high) if len(places) > 1 else None)


def judge(differences: Mapping[str, RateDifference], number: int, over: str) -> tuple[str, str]:
    """Return whether the experts help, in a word and a sentence.

    They do where the mixture is better than every control; they don't where one is better than the mixture: where the
    interval of the difference excludes 0. ``number`` is that of the speakers (or utterances) that the interval is
    ``over``.
    """
    shown = {name: f"{SYSTEMS[name]} ({one})" for name, one in differences.items()}
    worse = [shown[name] for name, one in differences.items() if one.is_above]
    same = [shown[name] for name, one in differences.items() if not one.is_above and not one.is_below]
    measure = f"in points of WER with 95 % intervals over {number:,} {over}"
    # Before anything else: over so few speakers, all may differ in one direction by chance, whatever the interval says.
    if number < FEWEST_SPEAKERS:
        return UNKNOWN, (
            f"The mixture can't be told apart from {_list_names(shown.values())}: {measure}, of which at least "
            f"{FEWEST_SPEAKERS} are needed to judge others."
        )
    if worse:
        return DONT, f"The experts don't help: the mixture is worse than {_list_names(worse)}, {measure}."
    if same:
        return UNKNOWN, f"The mixture can't be told apart from {_list_names(same)}, {measure}."
    return HELP, f"The experts help: the mixture is better than {_list_names(shown.values())}, {measure}."


def _list_names(names: Iterable[str]) -> str:
    """Names with commas, and an ``and``.

    >>> _list_names(["a", "b", "c"]), _list_names(["a"])
    ('a, b and c', 'a')
    """
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def heading(found: Mapping[str, Any]) -> list[str]:
    """Return the lines above the table: under which conditions its metrics were computed."""
    over, number, unnamed = found["intervals_over"], found["numbers"]["total"], found["without_speaker"]
    which = f"{found['split']}, which has chosen the checkpoints, too" if found["split"] == "valid" else found["split"]
    about = f"{found['decoding']}, normaliser {found['normaliser']}; intervals of 95 % over {number:,} {over}"
    lines = [f"WER in % on {which} ({about})"]
    if over != "speakers":
        lines.append("the data name no speakers: of other speakers, these intervals say little")
    elif unnamed:
        lines.append(f"{unnamed:,} utterances name no speaker, and each counts as one: intervals may be too narrow")
    return lines


def make_rows(found: Mapping[str, Any]) -> list[list[str]]:
    """The table: a column for each system, with its parameters, steps and rates, and how the mixture differs."""
    systems, numbers = found["systems"], found["numbers"]
    rows = [
        ["", *(SYSTEMS[name] for name in systems)],
        ["trained parameters", *(f"{one['parameters']:,}" for one in systems.values())],
        ["steps", *(f"{one['steps']:,}" for one in systems.values())],
    ]
    parts = [ALL, *numbers["groups"]]
    for part in parts:
        own, number = [_get_value(part, one) for one in systems.values()], _get_value(part, numbers)
        utterances = own[0]["utterances"]
        label = f"{part or 'all'}: {utterances:,} utterance{'s' * (utterances != 1)}"
        if found["intervals_over"] == "speakers":
            label += f" of {number:,} speaker{'s' * (number != 1)}"
        rows.append([label, *(_rate(one, number > 1) for one in own)])
    for part in parts:
        differences = {name: RateDifference(**_get_value(part, one)) for name, one in found["differences"].items()}
        rows.append([f"the mixture minus it, {part or 'all'}", *(str(differences.get(name, "")) for name in systems)])
    return rows


def _get_value(part: str, about: Mapping[str, Any]) -> Any:
    return about["groups"][part] if part else about["total"]


def _rate(rates: Mapping[str, Any], has_interval: bool) -> str:
    """A rate and its interval in percent."""
    if rates["wer"] is None:
        return "-"
    low, high = (100 * bound for bound in rates["wer_interval"])
    return f"{100 * rates['wer']:.2f}" + (f" [{low:.2f}, {high:.2f}]" if has_interval else "")


def markdown(found: Mapping[str, Any]) -> str:
    """The table as Markdown, with its conditions, and the verdict's sentence."""
    about = "".join(f"{line[0].upper()}{line[1:]}.\n" for line in heading(found))
    return f"# Do the experts help?\n\n{found['sentence']}\n\n{markdown_table(make_rows(found))}\n{about}"


TEXTS_FILE, TRANSCRIPTS_FILE, PART_FILE = "transcripts.jsonl", "transcripts.json", "part.jsonl"
SYSTEM = "system"


def transcripts(work: StageWork) -> dict[str, Any]:
    """Write what a system recognises in the utterances of the comparison, with how it was trained."""
    from vaak.scoring.word_errors import score_texts

    task, model, trained = _system(work)
    split = "test" if work.options.mode == "full" and "test" in task.prepared.about["statistics"] else "valid"
    lines = list(_transcribed(work, task, model, split))
    unread = [line for line in lines if "reason" in line]
    for line in unread:
        log.warning("%s can't be read and is left out: %s", line["id"], line["reason"])
    kept = [line for line in lines if "reason" not in line]
    about = {"split": split, "normaliser": task.normalise.name, "decoding": task.data.decoding.method, **trained}
    write_text(work.folder / TEXTS_FILE, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in kept))
    write_json(work.folder / TRANSCRIPTS_FILE, about)
    # Last, after the files that replace it: a stage that is killed before resumes from it.
    (work.folder / PART_FILE).unlink(missing_ok=True)
    references, texts = ({line["id"]: line[key] for line in kept} for key in ("reference", "text"))
    scores = score_texts(references, texts, normalise=task.normalise)
    return {"wer": scores.total.wer, "utterances": len(kept)}


def _system(work: StageWork) -> tuple[Any, Any, Values]:
    """The task and the model of what is compared, and how much of it was trained."""
    options: MoeOptions = work.options
    if SYSTEM in work.inputs:
        from vaak.runs.open_run import open_run

        opened = open_run(work.inputs[SYSTEM] / "run", device=options.device, trust_code=work.trusts_runs)
        parameters = sum(one.numel() for one in opened.model.parameters() if one.requires_grad)
        # All that it was trained in: for a mixture, the runs of its experts, too.
        folders = {work.inputs[SYSTEM], work.inputs.get("experts", work.inputs[SYSTEM])}
        runs = [path.parent for folder in folders for path in folder.glob("*/checkpoints")]
        return opened.task, opened.model, {"parameters": parameters, "steps": sum(map(_steps, runs))}
    from vaak.engine.distributed.launcher import pick_device

    own = {name: one for name, one in options.asr_config.items() if name not in ("model", "training")}
    values = {**make_data_section(options, "joint"), "model": make_model_section(work)}
    task = prepared_task(values, work.folder / "data", own)
    return task, task.model().to(pick_device(options.device)).eval(), {"parameters": 0, "steps": 0}


def _steps(run: Path) -> int:
    """The steps that a run has trained."""
    from vaak.engine.checkpoint.files import pointed
    from vaak.engine.checkpoint.names import parse_step

    last = pointed(run / "checkpoints", "last")
    return 0 if last is None else parse_step(last) or 0


def _transcribed(work: StageWork, task: Any, model: Any, split: str) -> Iterator[Values]:
    """A line for each utterance of a split; one that can't be read has a ``reason``, where it may be skipped."""
    dataset, transcriber, part = task.dataset(split), task.transcriber(model), work.folder / PART_FILE
    done, size = _read_lines(part), transcriber.decoding.batch_size
    # Texts of a batch are computed together, so a batch that was written in part is recomputed whole: its rows are then
    # padded as they would have been without the interruption.
    done = done[: len(done) // size * size]
    write_text(part, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in done))
    yield from done
    with (
        part.open("a", encoding="utf-8") as file,
        progress(f"transcribing {split}", len(dataset.utterances)) as advance,
    ):
        advance(len(done))
        for first in range(len(done), len(dataset.utterances), size):
            batch = _load_batch(
                dataset, range(first, min(first + size, len(dataset.utterances))), task.data.on_bad_example
            )
            found = _recognise_batch(batch, transcriber, get_precision(work.options))
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in found)
            file.flush()
            advance(len(found))
            yield from found


def _read_lines(path: Path) -> list[Values]:
    """The complete lines of a file, or none if it doesn't exist."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [json.loads(line) for line in lines]


def _load_batch(dataset: Any, places: range, on_bad: str) -> list[tuple[Values, Any]]:
    """Utterances as lines without their text, each with its features; None for one that can't be read."""
    import numpy as np

    found: list[tuple[Values, Any]] = []
    for place in places:
        cut = dataset.utterances.cuts[int(dataset.utterances.used[place])]
        try:
            # Nothing is drawn from this generator.
            one = dataset.example(place, np.random.default_rng(0))
        except Exception as error:
            if on_bad != "skip" or is_host_error(error):
                raise
            found.append(({"id": cut.id, "reason": f"{type(error).__name__}: {error}"}, None))
            continue
        about = {"id": cut.id, "reference": one.text, "group": one.group}
        found.append(({**about, "speaker": cut.supervisions[0].speaker or None}, dataset.compute_features(one)))
    return found


def _recognise_batch(batch: list[tuple[Values, Any]], transcriber: Any, precision: str) -> list[Values]:
    """The lines of a batch, with the recognised texts."""
    import torch

    features = [own for _, own in batch if own is not None]
    device, kind = next(transcriber.model.parameters()).device, {"fp16": torch.float16, "bf16": torch.bfloat16}
    with torch.autocast(device.type, kind.get(precision), enabled=precision in kind):
        texts = iter(transcriber.texts(features) if features else ())
    return [line if own is None else {**line, "text": next(texts)} for line, own in batch]
