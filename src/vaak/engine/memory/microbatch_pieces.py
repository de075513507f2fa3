"""In how many pieces a microbatch is computed: one, until memory runs out.

Pieces add up to the same loss and gradient up to rounding, but each draws its own dropout. So a rule is written down
before weights follow from it, and the number of pieces depends only on the rules and on the position in the run. A rule
covers microbatches at least as large as the one that did not fit: one long outlier does not slow down the others.

A rule that can't be followed helps nobody, and a run that finds it on resume is stuck. So it is proposed first, and
confirmed, which writes it down, once a step was computed by it; or withdrawn.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vaak.engine.records.journal import Journal

log = logging.getLogger("vaak")


@dataclass(frozen=True)
class PieceRule:
    """From ``step`` on, microbatches of at least ``cells`` (rows × longest) are computed in ``pieces``.

    Within that step the rule applies only to the microbatches ``numbers`` (None: to all), and from its objective number
    ``objective`` on. A rule with a ``split`` is for evaluating that split instead of training, on ``rank`` only.
    """

    step: int
    pieces: int
    numbers: tuple[int, ...] | None = None
    split: str | None = None
    rank: int = 0
    cells: float = 0.0
    objective: int = 0

    @classmethod
    def from_json(cls, found: Any) -> PieceRule:
        """The rule that was written as JSON. Raises ValueError for what is none."""
        try:
            numbers = None if found["numbers"] is None else tuple(map(operator.index, found["numbers"]))
            rule = cls(**{**found, "numbers": numbers})
            whole = [rule.step, rule.pieces, rule.rank, rule.objective]
            if min(map(operator.index, whole)) < 0 or rule.pieces < 1 or not isinstance(rule.split, str | None):
                raise ValueError(found)
            return replace(rule, cells=float(rule.cells))
        except (TypeError, KeyError) as error:
            raise ValueError(found) from error

    def applies(self, step: int, number: int, cells: float, objective: int = 0) -> bool:
        """Whether the rule applies to a microbatch of training."""
        if self.split is not None or self.step > step or cells < self.cells:
            return False
        in_its_step = (self.numbers is None or number in self.numbers) and objective >= self.objective
        return self.step < step or in_its_step

    def covers(self, other: PieceRule) -> bool:
        """Whether whatever ``other`` divides is divided at least as finely by this rule."""
        if self.split is not None or self.pieces < other.pieces or self.cells > other.cells:
            return False
        whole_step = self.numbers is None and self.objective == 0
        return self.step < other.step or (self.step == other.step and whole_step)


class PieceRules:
    """The rules of a run, kept in ``splits.jsonl`` and in its checkpoints.

    ``fresh`` are those that the other ranks haven't been told yet. ``proposed`` apply here, but aren't written down.
    """

    def __init__(self, directory: Path, rank: int, data: str | None = None) -> None:
        self.rank = rank
        self.journal = Journal(directory, "splits", rank, lambda entry: PieceRule.from_json(entry.get("cut")), data)
        self.rules: list[PieceRule] = []
        self.fresh: list[tuple[PieceRule, str]] = []
        self.proposed: list[tuple[PieceRule, str]] = []
        self.whole: set[int] = set()
        """Objectives whose microbatches are never divided."""
        self._add_unknown(self.journal.entries)

    def pieces(self, step: int, number: int, cells: float, objective: int = 0) -> int:
        """Pieces of a microbatch of a step."""
        if self.is_empty or objective in self.whole:
            return 1
        rules = (*self.rules, *(rule for rule, _ in self.proposed))
        return max((rule.pieces for rule in rules if rule.applies(step, number, cells, objective)), default=1)

    @property
    def is_empty(self) -> bool:
        """Whether nothing is divided."""
        return not (self.rules or self.proposed)

    def evaluation_pieces(self, step: int, split: str) -> int:
        """Pieces of a batch when ``split`` is evaluated after a step, on this rank."""
        own = (rule for rule in self.rules if rule.split == split and rule.rank == self.rank and rule.step <= step)
        return max((rule.pieces for rule in own), default=1)

    def divide_evaluation(self, step: int, split: str, pieces: int, reason: str) -> None:
        """Evaluate ``split`` in ``pieces`` pieces on this rank, from the evaluation after ``step`` on."""
        self.add(PieceRule(step, pieces, split=split, rank=self.rank), reason)

    def propose(self, rule: PieceRule, reason: str) -> None:
        """Try a rule for training: it applies until it is confirmed or withdrawn."""
        self.proposed.append((rule, reason))

    def confirm(self) -> None:
        """Add what is proposed, to be sent to the other ranks."""
        confirmed, self.proposed = self.proposed, []
        for rule, reason in confirmed:
            self.add(rule, reason)
        self.fresh += confirmed

    def withdraw(self) -> None:
        """Drop what is proposed."""
        self.proposed = []

    def keep_whole(self, objective: int, loss: str) -> None:
        """Leave the microbatches of an objective whole, whatever the rules say: ``loss`` of it isn't a sum."""
        log.warning(
            "an earlier session computed batches in pieces, but the loss %s is not a sum over examples: they are whole "
            "from now on",
            loss,
        )
        self.whole.add(objective)

    def adopt(self, rule: PieceRule, reason: str) -> None:
        """Add another rank's rule, unless a known one covers it."""
        if not any(known.covers(rule) for known in self.rules):
            self.add(rule, reason)

    def take_fresh(self) -> list[tuple[PieceRule, str]]:
        """The rules for training that the other ranks don't know yet; they count as sent."""
        fresh, self.fresh = self.fresh, []
        return fresh

    def forget(self) -> None:
        """Drop all rules and the journal."""
        self.journal.forget()
        self.rules.clear()

    def add(self, rule: PieceRule, reason: str) -> None:
        """Write a rule to the journal, then apply it."""
        self.journal.append([{"cut": _as_json(rule), "reason": reason}])
        self.rules.append(rule)
        what = f"evaluating {rule.split}" if rule.split else f"from step {rule.step} on"
        size = f" of {rule.cells:g} cells or more" if rule.cells else ""
        log.warning("%s: %s, batches%s are computed in %d pieces", reason, what, size, rule.pieces)

    def state_dict(self) -> list[dict[str, Any]]:
        return [_as_json(rule) for rule in self.rules]

    def load_state_dict(self, state: Sequence[dict[str, Any]]) -> None:
        """Add the rules of a state."""
        self._add_unknown(map(PieceRule.from_json, state))

    def _add_unknown(self, rules: Iterable[PieceRule]) -> None:
        for rule in rules:
            if rule not in self.rules:
                self.rules.append(rule)


def _as_json(rule: PieceRule) -> dict[str, Any]:
    return asdict(rule) | {"numbers": None if rule.numbers is None else list(rule.numbers)}
