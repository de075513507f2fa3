"""A configuration to begin with, for the data found and the device present; each choice says why.

The sizes are rules of thumb, meant to train at once and to be changed then. A language model's parameters grow with its
tokens (about one for ten; Hoffmann et al. 2022 have one for twenty, of data seen once). Steps are as many as show
whether it learns: minutes to an hour on a processor, hours on a GPU.

Each task fills its own sections (``TaskSpec.starter``), by the choices here that several share.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vaak.audio.config import DatasetConfig
from vaak.config.base import from_options
from vaak.config.tasks import TASKS, StarterData, built_in, load_name, spec_by_name
from vaak.config.yaml.text import entry_text
from vaak.core.errors import UserError
from vaak.core.machine import GIB, format_bytes
from vaak.core.storage.text_lines import split_lines
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.preflight.doctor.text_layouts import recognize_texts
from vaak.runs.preflight.doctor.unusable import describe_unusable

CHARACTERS_PER_TOKEN = 4
WIDTH = 80
NONE_LEFT = "none can be spared to evaluate on: give more, or a split called valid"
ENOUGH = 200
"""Examples of which a tenth, by their hashes, is never none."""
TEXT_SIZES = ((64, 2, 2), (128, 3, 4), (256, 4, 4), (384, 6, 6), (512, 8, 8), (768, 12, 12))
"""Width, layers and heads; with the tokens from which on each is used:"""
TOKENS = (0, 50_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)


class Choice(NamedTuple):
    """A value, and why it was chosen."""

    value: Any
    why: str


@dataclass(frozen=True)
class Amounts:
    """Amounts of training data in all corpora together."""

    examples: int
    characters: int
    hours: float
    seconds: list[float]
    lengths: list[int]
    """Characters of texts."""
    rates: Counter[int]
    languages: Counter[str]
    labels: Counter[str]
    speakers: int
    most_speakers: int
    has_texts: bool

    @property
    def tokens(self) -> int:
        return max(1, self.characters // CHARACTERS_PER_TOKEN)

    @property
    def rate(self) -> int:
        """The most frequent sampling rate."""
        return self.rates.most_common(1)[0][0] if self.rates else 16000

    @property
    def language(self) -> str | None:
        """The code of the most frequent language, such as hi."""
        code = self.languages.most_common(1)[0][0] if self.languages else None
        return code and code.replace("_", "-").partition("-")[0].lower()


def list_tasks() -> list[str]:
    """Return the tasks for which there is such a configuration; one of several tasks is put together by hand."""
    return [name for name, spec in TASKS.items() if spec.starter is not None]


def add_up_amounts(corpora: Sequence[CorpusSurvey]) -> Amounts:
    """Add up the training splits; of labels, languages and rates, all splits count."""
    splits = [split for one in corpora for split in one.splits.values()]
    train = [one.splits["train"] for one in corpora if "train" in one.splits] or splits

    def counted(name: str) -> Counter[Any]:
        return sum((getattr(split, name) for split in splits), Counter[Any]())

    return Amounts(
        examples=sum(split.num_entries for split in train),
        characters=sum(split.num_characters for split in train),
        hours=sum(split.hours or 0.0 for split in train),
        seconds=sorted(one for split in train for one in split.durations),
        lengths=sorted(one for split in train for one in split.lengths),
        rates=counted("rates"),
        languages=counted("languages"),
        labels=counted("labels"),
        speakers=len(set().union(*(split.speakers for split in train))),
        most_speakers=max((split.most_speakers for split in splits), default=0),
        has_texts=any(split.num_texts for split in splits),
    )


def task_for(corpora: Sequence[CorpusSurvey]) -> str:
    """Return the task that data like these are for: audio first, then the first texts.

    Raises UserError for texts with recordings that nobody reads: they are hardly meant to be trained on alone; and
    if no task is for such data.
    """
    usable = select_usable(corpora)
    audio = [one for one in usable if not one.is_text]
    kind = _detect_audio_kind(audio) if audio else recognize_texts(usable[0].options["corpus"])
    # An installed task may be for the same data as one of Vaak's, which comes first.
    names = sorted(list_tasks(), key=lambda name: name not in built_in())
    task = next((name for name in names if (need := TASKS[name].starter_data) and need.usual_for == kind), None)
    if task is None:
        raise UserError(f"no task here is for {kind} alone; name one of {', '.join(names)}")
    if not audio and (reason := usable[0].audio_problem):
        raise UserError(f"{reason}; to train on the texts alone: vaak init {task} --data {usable[0].folder}")
    if not audio and (number := usable[0].unread_audio):
        raise UserError(
            f"{describe_unusable(usable[0].folder)}. Texts there don't say which of the {number:,} recordings they "
            f"belong to; to train on the texts alone: vaak init {task} --data {usable[0].folder}"
        )
    return task


def _detect_audio_kind(corpora: Sequence[CorpusSurvey]) -> str:
    """Return the kind of recordings, as ``StarterData.usual_for`` names it."""
    amounts = add_up_amounts(corpora)
    if not amounts.has_texts:
        return "conversations" if amounts.most_speakers > 1 else "audio"
    return "voice" if all(one.kind == "ljspeech" for one in corpora) else "transcribed audio"


def select_usable(corpora: Sequence[CorpusSurvey]) -> list[CorpusSurvey]:
    """Return the readable ones. Raises UserError, with the reason, where there are none."""
    usable = [one for one in corpora if one.problem is None and one.splits]
    if not usable:
        raise UserError("; ".join(str(one.problem) for one in corpora if one.problem) or "there is nothing to train on")
    return usable


def starter(
    corpora: Sequence[CorpusSurvey], device: Device, task: str | None = None, folder: Path | None = None
) -> str:
    """Return a YAML with comments that trains a task (that which fits the data) on what was found.

    The run is called as the ``folder`` in which it was found, which may be above that of a corpus.

    Raises UserError for a task that these data don't have what it needs for.
    """
    task = task or task_for(corpora)
    fill = spec_by_name(task).starter
    if fill is None:
        raise UserError(f"{task}: no YAML is made for it: its spec names no starter")
    chosen = select_corpora(select_usable(corpora), task)
    amounts = add_up_amounts(chosen)
    sections = load_name(fill)(chosen, amounts, device)
    name = (folder or chosen[0].folder).resolve().name.lower() or "data"
    body = {"task": task, "name": name if name != task else f"{name}-1", **sections}
    return "\n".join([*_head(amounts, device, task), *_lines(body)]) + "\n"


def select_corpora(corpora: Sequence[CorpusSurvey], task: str) -> list[CorpusSurvey]:
    """Return the corpora that a task reads: all of audio, the first of texts. Raises UserError if there are none."""
    spec = spec_by_name(task)
    usual = StarterData("texts", "texts") if spec.audio is None else StarterData("audio", "audio")
    needed = spec.starter_data or usual
    found = [one for one in corpora if needed.reads in _kinds(one)]
    if not found:
        reasons = [one.audio_problem for one in corpora if one.audio_problem and spec.audio is not None]
        if reasons:
            raise UserError(reasons[0])
        raise UserError(f"{task} needs {needed.described}, and there is {' and '.join(one.kind for one in corpora)}")
    return found if spec.audio is not None else found[:1]


def _kinds(corpus: CorpusSurvey) -> set[str]:
    """Return the kinds as which a corpus can be read, in the words of ``StarterData.reads``.

    Labelled or paired texts are texts, too, unless labels are in the lines.
    """
    if corpus.is_text:
        options = corpus.options["corpus"]
        return {recognize_texts(options), *(("texts",) if options["type"] != "fasttext" else ())}
    splits = corpus.splits.values()
    has_texts, has_speakers = any(split.num_texts for split in splits), any(split.speakers for split in splits)
    return {"audio", *["transcribed audio"] * has_texts, *["audio with speakers"] * has_speakers}


def _head(amounts: Amounts, device: Device, task: str) -> Iterator[str]:
    """Yield comments that say what was found, and what to do next."""
    said = []
    if amounts.hours:
        said.append(f"{amounts.hours:,.1f} hours" if amounts.hours >= 1 else f"{60 * amounts.hours:,.0f} minutes")
        said.append(f"{amounts.examples:,} recordings of {amounts.rate:,} Hz")
        said += [f"{amounts.speakers:,} speaker{'s' * (amounts.speakers > 1)}"] if amounts.speakers else []
    else:
        said.append(f"{amounts.examples:,} texts, {amounts.characters:,} characters")
    said += [f"{len(amounts.labels):,} labels"] if amounts.labels else []
    said += [f"languages {', '.join(sorted(amounts.languages)[:5])}"] if amounts.languages else []
    where = device.name if device.kind == "cpu" else f"{device.name}, {format_bytes(device.total)}"
    yield from _comment(f"Made by vaak init for {', '.join(said)} to train on; for {device.kind} ({where}).")
    yield "# vaak train FILE --try: all of it once, in seconds; vaak train FILE: the run"
    yield from _comment(f"All other options: vaak config show --all {task}")


def _comment(text: str, indent: int = 0) -> list[str]:
    margin = f"{' ' * indent}# "
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


def _lines(values: dict[str, Any], indent: int = 0) -> Iterator[str]:
    """Yield the YAML of sections, with the reasons of choices next to them, or above them where they don't fit."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from ([""] if not indent else [])
            yield f"{' ' * indent}{key}:"
            yield from _lines(value, indent + 2)
            continue
        if key == "datasets":
            yield ""
        why = value.why if isinstance(value, Choice) else ""
        lines = split_lines(entry_text(key, value.value if isinstance(value, Choice) else value, indent))
        if why and len(lines) == 1 and len(lines[0]) + len(why) + 3 <= WIDTH:
            yield f"{lines[0]} # {why}"
            continue
        yield from _comment(why, indent) if why else ()
        yield from lines


def floor_power_of_two(value: float, least: int, greatest: int) -> int:
    """Return the power of two at or below a value, within bounds."""
    return min(greatest, max(least, 1 << int(math.log2(max(1.0, value)))))


def choose_steps(per_epoch: float, device: Device) -> dict[str, Any]:
    """Return the length of training, with five evaluations and checkpoints, for ``per_epoch`` steps in an epoch."""
    target, most = (600, 3000) if device.kind == "cpu" else (5000, 100_000)
    # An epoch at least and 20 at most (200 steps on the smallest data), and no longer than a first run should take.
    steps = round(min(max(target, per_epoch), 20 * max(per_epoch, 10), most))
    epochs = steps / max(per_epoch, 1e-9)
    why = f"{epochs:,.1f} epochs; more help as long as val_loss falls"
    every = max(1, steps // 5)
    return {
        "max_steps": Choice(steps, why),
        "scheduler": {"type": "linear", "warmup_steps": Choice(max(1, steps // 20), "a twentieth of the steps")},
        "validation": {"interval": every},
        "checkpoint": {"interval": every, "resume": Choice("auto", "run it again to resume where it stopped")},
        "logging": {"interval": max(1, steps // 100)},
    }


def choose_muon(width: int) -> dict[str, Any]:
    lr, adamw = (1e-2, 5e-3) if width <= 256 else (5e-3, 2e-3)
    return {
        "type": Choice("muon", "for matrices; AdamW for the rest"),
        "lr": Choice(lr, f"at a width of {width}"),
        "adamw_lr": adamw,
    }


def choose_text_size(amounts: Amounts, device: Device) -> tuple[int, int, int, str]:
    """Return width, layers and heads for so much text on such a device, and why."""
    by_data = max(number for number, least in enumerate(TOKENS) if amounts.tokens >= least)
    most = 2 if device.kind == "cpu" else 4 if device.total < 20 * GIB else 5
    why = f"for about {amounts.tokens:,} tokens"
    if most < by_data:
        why = f"the data would allow more; {'a processor trains it' if device.kind == 'cpu' else 'it fits'} in time"
    return (*TEXT_SIZES[min(by_data, most)], why)


def choose_vocabulary(amounts: Amounts) -> Choice:
    size = floor_power_of_two(math.sqrt(amounts.tokens) * 8, 512, 32768)
    return Choice(size, "so that each token is seen often enough")


def choose_token_budget(amounts: Amounts, device: Device, longest: int) -> int:
    """Return the tokens of a step."""
    most = 2048 if device.kind == "cpu" else floor_power_of_two(device.total / GIB * 700, 4096, 65536)
    return max(longest, floor_power_of_two(amounts.tokens / 20, 256, most))


def explain_token_budget(budget: int, device: Device) -> str:
    memory = "a processor" if device.kind == "cpu" else format_bytes(device.total)
    return f"tokens of a step, for {memory}; a batch that doesn't fit into memory is computed in chunks"


def make_datasets(corpora: Sequence[CorpusSurvey], least: int = 1, **more: Any) -> list[dict[str, Any]]:
    """Return a dataset for each corpus, with a unique name; each split has ``least`` recordings, or speakers.

    Raises UserError if none can be spared to evaluate on.
    """
    found: list[dict[str, Any]] = []
    for one in corpora:
        name = one.folder.resolve().name.lower() or one.kind
        taken = {item["name"] for item in found}
        options = {"name": name if name not in taken else f"{name}-{len(found)}", **one.options, **more}
        found.append(options | _split_recordings(one, options, least))
    if all(one.get("valid_examples") == 0 for one in found):
        number = sum(split.num_entries for one in corpora for split in one.splits.values())
        raise UserError(f"{corpora[0].folder}: recordings: {number:,}; {NONE_LEFT}")
    return found


def _split_recordings(corpus: CorpusSurvey, options: dict[str, Any], least: int) -> dict[str, Any]:
    """Return how valid and test are split off from a corpus's train, where that isn't left to the defaults."""
    train = corpus.splits.get("train")
    if train is None:
        return {}
    by_speaker = from_options(DatasetConfig, options, "datasets").split_by == "speaker" and bool(train.speakers)
    if by_speaker and "split_by" not in options and len(train.speakers) < 3 <= train.num_entries:
        return {"split_by": "recording", **split_few(corpus, train.num_entries)}
    return split_few(corpus, len(train.speakers) if by_speaker else train.num_entries, least, least)


def split_texts(corpus: CorpusSurvey, labels: int = 1) -> dict[str, Any]:
    """Return the options of a corpus of texts, with those that split it where it is too small for fractions.

    Train keeps a text of each of ``labels``. Raises UserError if none can be spared to evaluate on.
    """
    number = len(corpus.splits["train"].texts) if "train" in corpus.splits else 0
    shares = split_few(corpus, number, labels)
    if shares.get("valid_examples") == 0:
        of_labels = f", labels: {labels:,}" if labels > 1 else ""
        raise UserError(f"{corpus.folder}: different texts: {number:,}{of_labels}; {NONE_LEFT}")
    return {**corpus.options["corpus"], **shares}


def split_few(corpus: CorpusSurvey, number: int, kept: int = 1, least: int = 1) -> dict[str, int]:
    """Return how many of a ``number`` of examples, or speakers, valid and test get, where a tenth may be none.

    Train keeps ``kept`` at least; an evaluation split of which it couldn't spare ``least`` isn't there.
    """
    spare = number - kept
    known = {"train", "valid"} & corpus.splits.keys()
    if known != {"train"} or not corpus.splits["train"].is_whole or (number >= ENOUGH and spare >= number // 5):
        return {}
    each = max(least, min(number // 10, spare // 2))
    return {
        "valid_examples": each if spare >= each else 0,
        "test_examples": each if spare >= 2 * each and number > 3 else 0,
    }


def choose_seconds(amounts: Amounts, device: Device, of_cpu: int, of_gib: float) -> Choice:
    """Return the seconds of audio in a step."""
    most = of_cpu if device.kind == "cpu" else floor_power_of_two(of_gib * device.total / GIB, of_cpu, 2048)
    longest = math.ceil(amounts.seconds[-1]) + 1 if amounts.seconds else 30
    budget = max(min(longest, 30), min(most, max(8, round(amounts.hours * 3600 / 20))))
    memory = "a processor" if device.kind == "cpu" else format_bytes(device.total)
    return Choice(budget, f"seconds of audio in a step, for {memory}")


def choose_mel(amounts: Amounts) -> dict[str, Any]:
    """Return mel spectrograms for the rate of the recordings: a frame of 12.5 ms, a window of 50."""
    if amounts.rate >= 22050:
        return {}
    why = f"that of the recordings, {amounts.rate:,} Hz; a frame is 12.5 ms, a window 50"
    hop = amounts.rate // 80
    sizes = {"n_fft": 2 ** math.ceil(math.log2(4 * hop)), "win_length": 4 * hop, "hop_length": hop}
    top = {"f_max": amounts.rate / 2} if amounts.rate < 16000 else {}
    return {"global_config": {"mel": {"sampling_rate": Choice(amounts.rate, why), **sizes, **top}}}
