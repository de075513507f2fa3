"""Whether rerun steps give what the run logged, and what is different where they don't."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vaak.callbacks.step_log import StepLogCallback
from vaak.core.errors import CheckpointError
from vaak.core.report import StepReport
from vaak.engine.checkpoint.files import load_checkpoint, model_tensors, step_folder
from vaak.engine.records.metrics_file import read_records
from vaak.engine.resuming.conditions import differences
from vaak.engine.trainer import Trainer

NEVER = 1 << 62
NOT_COMPARED = ("kind", "step", "epoch", "scheduled", "clock")


class ReplayAgreement:
    """The figures of a replay compared with ``metrics.jsonl``, and its weights with a checkpoint's.

    ``before`` are the conditions of the checkpoint that the replay started from; None where it started with the run.
    """

    def __init__(self, directory: Path, trainer: Trainer, before: dict[str, Any] | None) -> None:
        self.directory, self.trainer = directory, trainer
        self.begun_at = trainer.position.step
        self.logged = {_key(record): record for record in self.records(directory)}
        now = trainer.conditions()
        changed = differences(before or now, now)
        self.conditions = [f"{name}: {then} then, {value} now" for name, then, value in changed]
        self.known_rules = len(trainer.state.piece_rules.rules)

    @staticmethod
    def records(directory: Path) -> list[dict[str, Any]]:
        """The records of a run that are whole, oldest first."""
        path = directory / "metrics.jsonl"
        records: list[Any] = read_records(path) if path.exists() else []
        return [record for record in records if isinstance(record, dict) and isinstance(record.get("step"), int)]

    def tell(self, report: StepReport) -> None:
        """Report a step to the callbacks; it is logged where the run logged it, so that means span the same steps."""
        step_log = self.trainer.callbacks[0]
        assert isinstance(step_log, StepLogCallback)
        step_log.every = 1 if ("step", report.step, None) in self.logged else NEVER
        self.trainer.tell("on_step_end", report)

    def as_json(self) -> dict[str, Any]:
        """What was compared, how much of it is the same, and what isn't."""
        same, differences = 0, []
        for record in self.records(self.trainer.directory):
            before = self.logged.get(_key(record), {})
            for name in record.keys() & before.keys() - set(NOT_COMPARED):
                then, now = before[name], record[name]
                same += then == now
                if then != now:
                    differences.append({"step": record["step"], "name": name, "then": then, "now": now})
        changed = list(self.conditions)
        if len(self.trainer.state.piece_rules.rules) > self.known_rules:
            changed.append("memory ran out here, so batches were computed in smaller pieces")
        return {
            "begun_at": self.begun_at,
            "same": same,
            "differences": sorted(differences, key=lambda entry: (entry["step"], entry["name"])),
            "same_weights": self._same_weights(),
            "conditions": changed,
        }

    def _same_weights(self) -> bool | None:
        """Whether the weights are, to the bit, those of the run's checkpoint of this step; None where it has none."""
        try:
            saved = load_checkpoint(self.directory / "checkpoints" / step_folder(self.trainer.position.step)).model
        except CheckpointError:
            return None
        now = model_tensors(self.trainer.model)
        return saved.keys() == now.keys() and all(
            torch.equal(_bits(tensor), _bits(now[name].cpu())) for name, tensor in saved.items()
        )


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record.get("kind"), record["step"], record.get("scheduled")


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
