"""Runs whose files are written by hand, as training writes them: nothing of them was computed, so it takes no time."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from vaak.core.storage.files import write_json
from vaak.engine.checkpoint.files import complete_checkpoint, point, save_checkpoint, step_folder
from vaak.engine.checkpoint.names import list_checkpoints
from vaak.engine.snapshot import Snapshot
from vaak.runs.audit.files import check_files, check_names
from vaak.runs.audit.inventory import Inventory
from vaak.runs.audit.records import check_log
from vaak.runs.audit.sessions import check_sessions

Records = list[dict[str, Any]]
OPTIONS: dict[str, Any] = {
    "logging": {"interval": 1},
    "validation": {"interval": 4},
    "checkpoint": {"metric": "val_loss", "mode": "min"},
}
CONDITIONS = {"vaak": "1.0", "python": "3.11", "packages": {"torch": "2.0"}, "threads": 1}


@dataclass
class WrittenRun:
    """A run of ``last`` steps, of epochs of ``epoch`` steps, logged every ``logged`` and evaluated every ``evaluated``.

    ``sessions`` has by their first step the options of each; ``saved`` are the steps with a checkpoint. ``better`` are
    the evaluations whose loss is lower than all before.
    """

    directory: Path
    last: int = 12
    epoch: int = 5
    logged: int = 1
    evaluated: int = 4
    first: int = 1
    sessions: Mapping[int, dict[str, Any]] = field(default_factory=lambda: {1: OPTIONS, 7: OPTIONS})
    saved: Sequence[int] = (4, 5, 6, 8, 10, 12)
    better: Sequence[int] = (4, 8)
    change: Callable[[int, dict[str, Any], bool], object] = lambda step, state, is_completed: None
    """Called with the step and the state of each checkpoint before it is written, and with what completes it."""

    def write(self) -> Path:
        self.directory.mkdir()
        records = [one for step in range(self.first, self.last + 1) for one in self.records(step)]
        self.write_log(records)
        self._write_sessions()
        for step in self.saved:
            self._save(step, records)
        self._write_names()
        return self.directory

    def write_log(self, records: Records) -> None:
        (self.directory / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records))

    def records(self, step: int) -> Records:
        """The records of a step."""
        about = {"step": step, "epoch": (step - 1) // self.epoch}
        found: Records = []
        if step in (1, self.last) or step % self.logged == 0:
            found.append({"kind": "step", **about, "loss": 9.0 - step / 2})
        if step == 1:
            found.append({"kind": "model", **about, "parameters": 6})
        if step % self.evaluated == 0:
            found.append({"kind": "evaluation", **about, "scheduled": True, "val_loss": self.loss(step)})
        if step % self.epoch == 0:
            found.append({"kind": "epoch", **about, "train_loss": 9.0})
        return found

    def loss(self, step: int) -> float:
        return 9.0 - step if step in self.better else 9.5

    def session_of(self, step: int) -> int:
        return sum(first <= step for first in self.sessions)

    def _write_sessions(self) -> None:
        (self.directory / "sessions").mkdir()
        lines = []
        for number, (first, options) in enumerate(self.sessions.items(), 1):
            text = json.dumps({"training": options})
            (self.directory / "sessions" / f"{number:04d}.yml").write_text(text)
            (self.directory / "config.yml").write_text(text)
            environment = {"vaak": "1.0", "python": "3.11", "packages": {"torch": "2.0"}}
            write_json(self.directory / "environment.json", environment)
            about = {"number": number, "first_step": first, "after": number - 1 or None, "time": "now"}
            lines.append(json.dumps({**about, **environment, "conditions": CONDITIONS}) + "\n")
        (self.directory / "sessions.jsonl").write_text("".join(lines))

    def _save(self, step: int, records: Records) -> None:
        """A checkpoint, written before what is due at its step, and completed after it."""
        is_due = step % self.evaluated == 0 or step % self.epoch == 0
        state = self._state(step, records, [one for one in records if self._is_before(one, step)])
        state["position"]["duties_pending"] = is_due
        self.change(step, state, False)
        number = self.session_of(step)
        bundled_files = {"config.yml": self.directory / "sessions" / f"{number:04d}.yml"}
        snapshot = Snapshot(step, {"weight": torch.ones(2)}, state=state)
        path = save_checkpoint(self.directory / "checkpoints", snapshot, {"session": number}, bundled_files)
        if is_due:
            after = self._state(step, records, [one for one in records if one["step"] <= step])
            self.change(step, after, True)
            complete_checkpoint(path, after)

    def _is_before(self, record: dict[str, Any], step: int) -> bool:
        return record["step"] < step or (record["step"] == step and record["kind"] in ("step", "model"))

    def _state(self, step: int, records: Records, there: Records) -> dict[str, Any]:
        evaluations = [one for one in there if one["kind"] == "evaluation"]
        best = min(evaluations, key=lambda one: one["val_loss"], default={})
        metrics = [{"val_loss": one["val_loss"]} for one in evaluations]
        return {
            "position": {
                "step": step,
                "epoch": (step - 1) // self.epoch,
                "place": step % self.epoch,
                "duties_pending": False,
            },
            "best": {"metric": "val_loss", "mode": "min", "value": best.get("val_loss"), "step": best.get("step")},
            "metrics": {"figures": metrics[-1], "scheduled": True} if metrics else {},
            "splits": [],
            "callbacks": [["StepLogCallback", {"epoch": {}, "skipped": 0}], ["OtherCallback", {}]],
            "configuration": {"training": list(self.sessions.values())[self.session_of(step) - 1]},
            "conditions": CONDITIONS,
            "metrics_bytes": sum(len(json.dumps(one)) + 1 for one in there),
        }

    def _write_names(self) -> None:
        folder = self.directory / "checkpoints"
        folder.mkdir(exist_ok=True)
        write_json(self.directory / "run.json", {"id": "one"})
        write_json(folder / "owner.json", {"id": "one"})
        newest = self.saved[-1] if self.saved else 0
        about = {"state": "finished", "step": newest, "total_steps": newest, "reason": "finished"}
        write_json(self.directory / "status.json", about)
        if self.saved:
            point(folder, "last", step_folder(newest))
        if self.better and folder / step_folder(self.better[-1]) in list_checkpoints(folder):
            point(folder, "best", step_folder(self.better[-1]))


def audit(run: Path) -> Inventory:
    """What ``verify_run`` does before it computes."""
    found = Inventory(run)
    for check in (check_files, check_sessions, check_names, check_log):
        check(found)
    found.name_uncovered()
    return found
