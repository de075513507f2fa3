"""Trackers: which numbers of a record they get, and that they can't stop a run; those of accelerate, by name.

These are MLflow, Comet, Aim and others.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from vaak.config.yaml.text import looks_secret
from vaak.core.callback import Callback, Run
from vaak.engine.distributed.ranks import accelerate_tracker
from vaak.engine.metrics_file import Record

log = logging.getLogger("vaak")
GROUPS = {"step": "train", "evaluation": "evaluation", "epoch": "epoch", "learning_rates": "learning_rates"}
NO_NUMBERS = ("nan", "inf", "-inf")  # as metrics.jsonl writes them
LONGEST_REASON = 200  # characters


class Tracker(Callback):
    """Repeats the records of a run elsewhere: a subclass opens, writes and closes.

    A failure is logged once; the tracker is then closed and skipped, and training continues.
    """

    main_process_only = True
    name: str

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        self.only = only
        self.works = False

    def open(self, trainer: Run) -> None:
        """Begin, where the run starts or resumes."""

    def write(self, record: Record) -> None:
        """Repeat one record."""
        raise NotImplementedError

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        """Repeat the pictures and the audio of an evaluation, PNG and WAV files by name; by default, not at all."""

    def close(self) -> None:
        """End; also called where ``open`` or ``write`` failed."""

    def on_fit_start(self, trainer: Run) -> None:
        self.works = True
        self.attempt("begin", lambda: self.open(trainer))
        trainer.records.subscribe(self._repeat)
        trainer.pictures.subscribe(self._repeat_pictures)

    def on_fit_end(self, trainer: Run, reason: str) -> None:
        if self.works:
            self.attempt("end", self.close)
        self.works = False

    def attempt(self, what: str, work: Callable[[], object]) -> None:
        """Do ``work``; where it fails, say so and leave this tracker out from now on."""
        try:
            work()
        except Exception as error:
            self.works = False
            with contextlib.suppress(Exception):
                self.close()
            log.warning(
                "%s can't %s (%s); training continues without it, and metrics.jsonl has everything",
                self.name,
                what,
                reason_of(error),
            )

    def _repeat(self, record: Record) -> None:
        if self.works:
            self.attempt("continue", lambda: self.write(record))

    def _repeat_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        if self.works and pictures:
            self.attempt("continue", lambda: self.write_pictures(step, pictures))


def numbers(record: Record, only: tuple[str, ...] | None) -> dict[str, float]:
    """The numbers of a record by ``group/name``; with ``only``, those names alone.

    >>> numbers({"kind": "step", "step": 3, "epoch": 0, "loss": "nan", "clock": {"seconds": 0.5}}, None)
    {'train/loss': nan, 'train/seconds': 0.5}
    """
    group = GROUPS.get(record["kind"], record["kind"])
    flat = {**record, **record.get("clock", {})}
    return {
        f"{group}/{name}": float(value)
        for name, value in flat.items()
        if _is_number(value) and name not in ("step", "epoch")
        if only is None or name in only or name.removeprefix("val_") in only
    }


def _is_number(value: Any) -> bool:
    return (isinstance(value, int | float) and not isinstance(value, bool)) or value in NO_NUMBERS


def reason_of(error: BaseException) -> str:
    """The first line of an error, without the values of environment variables that hold secrets."""
    text = str(error).strip().split("\n")[0] or type(error).__name__
    for name, value in os.environ.items():
        if value and looks_secret(name):
            text = text.replace(value, "***")
    return text[:LONGEST_REASON]


class AccelerateTrackerCallback(Tracker):
    """Hands every record to a tracker of accelerate.

    Raises UserError where there is none of this name, or it isn't installed.
    """

    def __init__(self, name: str, config: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        super().__init__(only)
        self.name = name
        self.config = config
        self.kind = accelerate_tracker(name)
        self.tracker: Any = None

    def open(self, trainer: Run) -> None:
        folder = {"logging_dir": str(trainer.directory)} if self.kind.requires_logging_directory else {}
        if self.name == "wandb":  # it writes into the current folder otherwise
            folder = {"dir": str(trainer.directory)}
        self.tracker = self.kind(trainer.directory.name, **folder)
        if hasattr(self.tracker, "start"):
            self.tracker.start()
        self.tracker.store_init_configuration(flat(self.config))

    def write(self, record: Record) -> None:
        self.tracker.log(numbers(record, self.only), step=record["step"])

    def close(self) -> None:
        if self.tracker is not None:
            self.tracker.finish()


def flat(options: Mapping[str, Any], prefix: str = "") -> dict[str, bool | int | float | str]:
    """Options by their dotted names, as trackers take them: what isn't a number or text is JSON.

    >>> flat({"name": "run", "training": {"epochs": 3, "freeze": [], "ema": None}})
    {'name': 'run', 'training.epochs': 3, 'training.freeze': '[]', 'training.ema': 'null'}
    """
    values: dict[str, bool | int | float | str] = {}
    for name, value in options.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[prefix + name] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return values
