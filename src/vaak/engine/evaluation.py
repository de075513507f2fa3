"""A model's results on a split: sums and counts over the whole set and all ranks, divided once; and pictures.

Meters that have ``pictures`` (vaak.core.task.Meters) are asked after their evaluation, on the main process. So is
their ``audio``, WAV files, and their ``summary``, JSON: single examples and what the report shows of them. The newest
of each name are kept, and the best: ``RUN/pictures/NAME/step-00001000.png`` (or ``.wav``, ``.json``); a recording that
hasn't changed is not written again. Pictures are not records: ``metrics.jsonl`` and the state don't know them, and one
that can't be drawn or written doesn't stop a run.
"""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import nn

from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, require_kind
from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.core.random_keys import EVALUATION_SEED, Purpose, draw_key
from vaak.core.storage.files import remove_leftovers, write_bytes
from vaak.core.summaries import SUMMARY
from vaak.core.task import Meters, Task
from vaak.data.batching import evaluation_plan
from vaak.data.loader import MicrobatchReader, evaluation_addresses, load
from vaak.data.plan import BatchPlan
from vaak.engine.distributed.exact import sum_in_order
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.memory import free_memory, is_out_of_memory
from vaak.engine.precision import Precision, seed_everything

log = logging.getLogger("vaak")
PREFIXES = {"valid": "val_"}


class EvaluationInterruptedError(Exception):
    """An evaluation was abandoned because the run is to stop."""


MEETING_EVERY = 4
"""Number of batches after which ranks ask each other whether to abandon an evaluation."""
Divide = Callable[[int, str], None]


def _log_division(num_chunks: int, reason: str) -> None:
    log.warning("%s: in %d chunks", reason, num_chunks)


class Interruption:
    """Whether to abandon an evaluation, decided by all ranks together where ``wanted()`` holds on any.

    Ranks meet equally often, even when one starts over because it ran out of memory.
    """

    def __init__(self, ranks: Ranks, wanted: Callable[[], bool] = lambda: False) -> None:
        self._ranks, self._wanted, self._met = ranks, wanted, 0
        self._every = MEETING_EVERY if ranks.world_size > 1 else 1

    def check(self, batch: int) -> None:
        """Raise EvaluationInterruptedError, on every rank before the same batch, where any wants to leave."""
        meetings = batch // self._every + 1
        if meetings > self._met:
            self._met = meetings
            if self._ranks.any(self._wanted()):
                raise EvaluationInterruptedError


@dataclass(frozen=True)
class _Share:
    """Every ``stride``-th batch of a plan from ``first`` on.

    ``check(number)`` is called before each batch, ``rounds`` times on every rank, even on ranks with one batch less.
    ``is_rehearsal``: the measurements will be discarded.
    """

    plan: BatchPlan
    first: int
    stride: int
    rounds: int = 0
    check: Callable[[int], None] = lambda number: None
    is_rehearsal: bool = False


@dataclass(frozen=True)
class Evaluator:
    """Evaluates models on a task's splits. With ``skip_bad``, examples that can't be read are skipped and counted.

    ``show`` is given what makes the pictures, the audio, then the summary of a split's meters, on the main process;
    it is there on all processes or on none.
    ``precision`` is that of a run in training, which may have left mixed precision; None: the configuration's.
    ``watched`` makes meters of a split's meters, which pass on what they are shown.
    """

    task: Task
    config: TrainingConfig
    ranks: Ranks
    skip_bad: bool = False
    show: Callable[[Callable[[], dict[str, bytes]]], None] | None = None
    precision: Precision | None = None
    watched: Callable[[str, Meters], Meters] | None = None

    def evaluate(
        self,
        model: nn.Module,
        split: str,
        wanted: Callable[[], bool] = lambda: False,
        num_chunks: int = 1,
        divide: Divide = _log_division,
    ) -> dict[str, float]:
        """Return the metrics of ``split`` by name, each with the split's prefix (``val_`` for valid, else ``SPLIT_``).

        Every batch is computed in ``num_chunks`` chunks. When memory runs out, ``divide(num_chunks, reason)`` is called
        and the split is evaluated again in twice as many. The model and its parts keep the modes they had.

        Raises EvaluationInterruptedError if ``wanted()`` holds on any rank, UserError if one row alone doesn't
        fit.
        """
        plan, rank, world_size = self._plan(split), self.ranks.rank, self.ranks.world_size
        share = _Share(plan, rank, world_size, -(-len(plan) // world_size), Interruption(self.ranks, wanted).check)
        measured = self._measure_share(model, split, share, num_chunks, divide)
        meters, sums = measured.meters, measured.sums_over(self.ranks)
        results = meters.results(dict(sums))
        skipped = self.ranks.sum({"skipped": measured.skipped})["skipped"]
        prefix = PREFIXES.get(split, f"{split}_")
        if self.show is not None:
            seen = measured.seen_over(self.ranks) if self.config.logging.examples else {}
            summary = partial(_summary, meters, sums, seen) if self.config.logging.examples else dict
            for made in (meters.pictures, meters.audio, summary) if self.ranks.is_main else ():
                self.show(partial(_name_pictures, prefix, made))
        return {prefix + name: value for name, value in (results | ({"skipped": skipped} if skipped else {})).items()}

    def rehearse(self, model: nn.Module, split: str, num_chunks: int = 1, divide: Divide = _log_division) -> set[str]:
        """Evaluate the longest batch of ``split`` alone, or that of each part, on this rank; return the metrics' names.

        What would fail in the first evaluation, hours later, fails now. The names are empty if these batches don't
        make metrics. The meters are told that it is a rehearsal, so that those of models that write bound their texts.
        """
        plan, parts, sums = self._plan(split), self.task.dataset(split).parts, Counter[str]()
        # the last batch has the longest examples; each part has its own
        last = {0 if parts is None else int(parts[plan.microbatch(at)[0][0]]): at for at in range(len(plan))}
        for place in last.values():
            longest = _Share(plan, first=place, stride=len(plan), is_rehearsal=True)
            measured = self._measure_share(model, split, longest, num_chunks, divide)
            sums.update(measured.sums())
        try:
            results = measured.meters.results(dict(sums))
        except ZeroDivisionError:
            # A mean over something that these few batches lack.
            return set()
        return {PREFIXES.get(split, f"{split}_") + name for name in results}

    def _plan(self, split: str) -> BatchPlan:
        dataset = self.task.dataset(split)
        batch_size = self.config.validation.batch_size or self.config.batch_size
        return evaluation_plan(dataset.lengths, batch_size, dataset.evaluation_budget, dataset.parts)

    def _measure_share(self, model: nn.Module, split: str, share: _Share, num_chunks: int, divide: Divide) -> _Measured:
        """Measure some batches, in ever more chunks until they fit.

        ``share`` of the batches of ``split`` is what this rank evaluates, at first in ``num_chunks`` chunks each.
        ``divide`` is told each larger number of chunks, with the reason. ``model`` is put back into its mode.
        """
        training = [module for module in model.modules() if module.training]
        model.eval()
        try:
            with torch.no_grad():
                while (measured := self._measure(model, split, share, num_chunks)) is None:
                    free_memory(self.ranks.device)
                    num_chunks *= 2
                    divide(num_chunks, f"out of memory while {split} was evaluated")
        finally:
            for module in training:
                # A part that was kept in evaluation mode stays in it.
                module.training = True
        return measured

    def _meters(self, split: str, is_rehearsal: bool) -> Meters:
        meters = self.task.meters(split)
        require_kind(meters, Meters, f"{type(self.task).__name__}.meters({split!r})")
        if is_rehearsal:
            meters.expect_rehearsal()
        return self.watched(split, meters) if self.watched is not None else meters

    def _measure(self, model: nn.Module, split: str, share: _Share, num_chunks: int) -> _Measured | None:
        """Show new meters a share of the batches; return what they say, None if out of memory."""
        dataset, seed, device = self.task.dataset(split), EVALUATION_SEED, self.ranks.device
        meters = self._meters(split, share.is_rehearsal)
        measured = _Measured(meters, by_batch=self.config.distributed.reduction == "exact")
        precision = self.precision or Precision(self.config.mixed_precision, device)
        reader = MicrobatchReader(dataset, (Purpose.EVALUATION, split), seed, skip_bad=self.skip_bad)
        addresses = evaluation_addresses(share.plan, share.first, share.stride)
        microbatches = load(reader, addresses, self.config.performance, pin_memory=device.type == "cuda")
        with progress(f"evaluating {split}", share.rounds) as advance:
            # a rank with one batch less goes round once more, or the others would wait for it at the check
            for number, microbatch in zip_longest(range(share.rounds), microbatches):
                if number is not None:
                    share.check(number)
                    advance(1)
                if microbatch is None:
                    continue
                measured.skipped += len(microbatch.skipped)
                if measured.by_batch and measured.parts:
                    # The first batch has the first meters.
                    meters = self._meters(split, share.is_rehearsal)
                for index, batch in enumerate(microbatch.batch.split(num_chunks) if microbatch.batch else ()):
                    seed_everything(draw_key(Purpose.EVALUATION, seed, split, microbatch.address.number, index), device)
                    if not _fits(meters, model, batch, precision):
                        if batch.num_rows == 1:
                            first = ", ".join(f"{one} ({dataset.describe(one)})" for one in batch.indices[0][:5])
                            raise UserError(
                                f"out of memory while {split} was evaluated: example {first} does not fit even alone; "
                                "shorten it"
                            )
                        return None
                if measured.by_batch:
                    measured.parts.append((microbatch.address.number, meters.sums()))
                    measured.add_seen(meters)
        return measured


@dataclass
class _Measured:
    """The meters of a split on this rank, and how many examples were skipped.

    ``by_batch``: each batch had its own meters, and ``parts`` are the sums of each, with the batch's number; added
    up in its order, they are the same bits on any number of processes. ``meters`` are the first ones.
    """

    meters: Meters
    by_batch: bool
    parts: list[tuple[int, dict[str, float]]] = field(default_factory=list)
    seen: dict[str, list[Any]] = field(default_factory=dict)
    skipped: float = 0.0

    def add_seen(self, meters: Meters) -> None:
        """Join what ``meters`` saw of single examples to that of those before."""
        for name, found in meters.seen().items():
            self.seen.setdefault(name, []).extend(found)

    def seen_over(self, ranks: Ranks) -> dict[str, list[Any]]:
        """Return the records of single examples from all ranks, in their order."""
        if not self.by_batch:
            self.add_seen(self.meters)
        joined: dict[str, list[Any]] = {}
        for of_rank in ranks.gather(self.seen):
            for name, found in of_rank.items():
                joined.setdefault(name, []).extend(found)
        return joined

    def sums(self) -> dict[str, float]:
        """Return the sums of this rank."""
        return sum_in_order(self.parts) if self.by_batch else self.meters.sums()

    def sums_over(self, ranks: Ranks) -> dict[str, float]:
        """Return the sums of all ranks."""
        if not self.by_batch:
            return ranks.sum(self.meters.sums())
        found = sum_in_order(part for parts in ranks.gather(self.parts) for part in parts)
        return found or self.meters.sums()


def _fits(meters: Meters, model: nn.Module, batch: Batch, precision: Precision) -> bool:
    """Show a batch to the meters; return False where memory runs out."""
    try:
        with precision.autocast():
            meters.update(model, batch.to(precision.device))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    return True


def _name_pictures(prefix: str, made: Callable[[], dict[str, bytes]]) -> dict[str, bytes]:
    """Return the pictures made now, by names that begin with ``prefix``."""
    return {prefix + name: content for name, content in made().items()}


def _summary(meters: Meters, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, bytes]:
    """Return the summary of an evaluation as a file, if there is one."""
    found = meters.summary(sums, seen)
    return {SUMMARY: json.dumps(found, ensure_ascii=False, separators=(",", ":")).encode()} if found else {}


KEPT_PICTURES = 20
"""Pictures of a name."""
STEP = re.compile(r"step-(\d{8})\.(png|wav|json)")
Listener = Callable[[int, Mapping[str, bytes]], None]


def is_audio(content: bytes) -> bool:
    """Return whether it is a WAV file; otherwise it is a picture."""
    return content[:4] == b"RIFF"


def _ending(content: bytes) -> str:
    return "wav" if is_audio(content) else "json" if content[:1] == b"{" else "png"


class Pictures:
    """The pictures of a run, written to a folder and handed to those who subscribed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listeners: list[Listener] = []
        self.fails = False

    def subscribe(self, listener: Listener) -> None:
        """Have ``listener`` called with every step and its pictures, PNG by name, from now on."""
        self.listeners.append(listener)

    def show(self, step: int, draw: Callable[[], Mapping[str, bytes]], best: int | None = None) -> None:
        """Draw the pictures of a step, write them, and pass them on. The first failure is logged.

        The newest of each name are kept, and those of the ``best`` step.
        """
        try:
            drawn = draw()
            new = {name: content for name, content in drawn.items() if self._is_new(name, step, content)}
            for name, content in new.items():
                folder = self.folder / name
                folder.mkdir(parents=True, exist_ok=True)
                write_bytes(folder / f"step-{step:08d}.{_ending(content)}", content)
                for path in _list_superseded(folder, best):
                    path.unlink()
        # drawing calls the task's own code, and a picture isn't worth a run
        except Exception as error:
            if not self.fails:
                reason = error if isinstance(error, UserError | OSError) else repr(error)
                log.warning("no pictures of this evaluation (%s); training continues without them", reason)
            self.fails = True
            return
        shown = {name: content for name, content in new.items() if _ending(content) != "json"}
        for listener in self.listeners if shown else ():
            listener(step, shown)

    def _is_new(self, name: str, step: int, content: bytes) -> bool:
        """Return whether a recording, which no training changes, isn't there from an earlier step."""
        there = _pictures_by_step(self.folder / name)[-1:] if is_audio(content) else []
        return not (there and there[0][0] < step and there[0][1].read_bytes() == content)

    def steps(self) -> list[int]:
        """Return the steps of which there are pictures or audio, in order."""
        paths = [*self.folder.glob("*/step-*.png"), *self.folder.glob("*/step-*.wav")]
        return sorted({int(match[1]) for path in paths if (match := STEP.fullmatch(path.name))})

    def of_step(self, step: int) -> dict[str, bytes]:
        """Return the pictures and the audio of a step that are there, by name."""
        paths = [*self.folder.glob(f"*/step-{step:08d}.png"), *self.folder.glob(f"*/step-{step:08d}.wav")]
        return {path.parent.name: path.read_bytes() for path in sorted(paths)}

    def cut(self, step: int, backup: Path | None = None) -> None:
        """Delete the pictures of later steps, or move them to the folder ``backup``; and what a killed process left."""
        for folder in self.folder.glob("*/"):
            remove_leftovers(folder)
            for later, path in _pictures_by_step(folder):
                if later <= step:
                    continue
                if backup is None:
                    path.unlink()
                else:
                    (backup / folder.name).mkdir(parents=True, exist_ok=True)
                    path.rename(backup / folder.name / path.name)


def _list_superseded(folder: Path, best: int | None) -> list[Path]:
    """Return the pictures of a folder that are not among the newest, nor of the best step, nor a first summary."""
    found = _pictures_by_step(folder)
    # A sound that didn't change at the best step is under an earlier one.
    of_best = max((step for step, _ in found if best is not None and step <= best), default=None)
    # The summary from before the first step is what the last one is compared with.
    return [path for step, path in found[:-KEPT_PICTURES] if step != of_best and (step > 0 or path.suffix != ".json")]


def _pictures_by_step(folder: Path) -> list[tuple[int, Path]]:
    """Return the pictures of a folder with their steps, in order."""
    found = [(STEP.fullmatch(path.name), path) for path in folder.glob("*")]
    return sorted((int(match[1]), path) for match, path in found if match)
