"""Where the time of some steps went, in shares, rates and words. No torch, no clock: figures in, figures out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from vaak.core.report import rate_name

STEP_PHASES = ("loading", "forward", "backward", "optimizer", "gap")
"""The phases of training; others (evaluation, saving) are measured but not part of its time."""

MUCH_LOADING = MUCH_GAP = 0.10
MUCH_OPTIMIZER = MUCH_PADDING = 0.25
LITTLE_MFU = 0.20


@dataclass
class Profile:
    """Seconds by phase over some steps, and what the steps counted over all ranks."""

    steps: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)

    def add(self, other: Profile) -> None:
        """Take the steps of another profile in."""
        self.steps += other.steps
        for mine, its in ((self.seconds, other.seconds), (self.counts, other.counts)):
            for name, value in its.items():
                mine[name] = mine.get(name, 0.0) + value

    @property
    def training_seconds(self) -> float:
        """All time except that of evaluations and checkpoints."""
        return sum(self.seconds.get(name, 0.0) for name in STEP_PHASES)

    def shares(self) -> dict[str, float]:
        """The fraction of the training time that each phase took; they add up to 1."""
        whole = self.training_seconds
        return {name: self.seconds.get(name, 0.0) / whole if whole else 0.0 for name in STEP_PHASES}

    def rates(self) -> dict[str, float]:
        """``tokens_per_second``, ``examples_per_second``: each unit's count over the training time."""
        whole = self.training_seconds
        return {rate_name(unit): count / whole for unit, count in self.counts.items() if count and whole}

    def figures(self, mfu: float | None) -> dict[str, float]:
        """All of it flat, by the names of a record."""
        seconds = {f"{name}_seconds": value for name, value in self.seconds.items()}
        values = {"seconds": self.training_seconds, **self.shares(), **seconds, **self.rates()}
        return values if mfu is None else values | {"mfu": mfu}

    def as_json(self, mfu: float | None, lines: list[str]) -> dict[str, Any]:
        """All of it as RUN/profile.json holds it, with the lines of its verdict."""
        parts = {"seconds": self.seconds, "shares": self.shares(), "rates": self.rates()}
        return {"steps": self.steps, **parts, "mfu": mfu, "verdict": lines}


@dataclass(frozen=True)
class Circumstances:
    """What advice depends on besides the time; ``cores`` are those of each process, ``mfu`` None where unknown."""

    num_workers: int
    cores: int
    padding_waste: float = 0.0
    world_size: int = 1
    mfu: float | None = None


def verdict(shares: dict[str, float], circumstances: Circumstances) -> list[str]:
    """What takes the time and what to do about it, a line each, what costs most first.

    >>> shares = {"loading": 0.62, "forward": 0.12, "backward": 0.2, "optimizer": 0.05, "gap": 0.01}
    >>> verdict(shares, Circumstances(num_workers=0, cores=8))
    ['62 % of the time is spent waiting for data: raise training.performance.num_workers (now 0)']
    """
    found = sorted(_findings(shares, circumstances), key=lambda finding: -finding[0])
    return [line for _, line in found] or [_busy(shares)]


def waiting_for_data(shares: dict[str, float], circumstances: Circumstances) -> str | None:
    """That data are waited for and what to do about it; None where the time is not worth a line."""
    if shares["loading"] < MUCH_LOADING:
        return None
    return f"{_percent(shares['loading'])} of the time is spent waiting for data: {_load_faster(circumstances)}"


def _findings(shares: dict[str, float], circumstances: Circumstances) -> Iterator[tuple[float, str]]:
    """What is worth a line, each with the part of the time that it costs."""
    working = shares["forward"] + shares["backward"]
    if (waiting := waiting_for_data(shares, circumstances)) is not None:
        yield shares["loading"], waiting
    if shares["gap"] >= MUCH_GAP:
        lost = f"{_percent(shares['gap'])} of the time passes between the parts of a step"
        advice = "raise training.logging.interval, drop callbacks, or make the microbatches larger"
        yield shares["gap"], f"{lost}: {advice}{_or_ranks(circumstances)}"
    if shares["optimizer"] >= MUCH_OPTIMIZER:
        updating = f"{_percent(shares['optimizer'])} of the time is spent in the optimizer"
        advice = (
            "raise training.batch_size or gradient_accumulation_steps, or use an optimizer with fused kernels (adamw)"
        )
        yield shares["optimizer"], f"{updating}: {advice}{_or_ranks(circumstances)}"
    if circumstances.padding_waste >= MUCH_PADDING:
        padding = f"{_percent(circumstances.padding_waste)} of a batch is padding"
        advice = "use training.batching bucketed or packed"
        yield circumstances.padding_waste * working, f"{padding}: {advice}"
    if circumstances.mfu is not None and circumstances.mfu < LITTLE_MFU and working >= 0.5:
        little = f"the device does {_percent(circumstances.mfu)} of what it could (MFU)"
        advice = "raise training.batch_size, use mixed_precision bf16 or performance.compile"
        yield working * (1 - circumstances.mfu) / 2, f"{little}: {advice}"


def _load_faster(circumstances: Circumstances) -> str:
    workers, cores = circumstances.num_workers, circumstances.cores
    if workers < cores:
        return f"raise training.performance.num_workers (now {workers})"
    reason = f"num_workers is {workers} already, with {cores} core(s) for each process"
    return f"{reason}; raise prefetch_factor, use training.batching bucketed, or do more of the work beforehand"


def _or_ranks(circumstances: Circumstances) -> str:
    return "; or it waits for other processes" if circumstances.world_size > 1 else ""


def _busy(shares: dict[str, float]) -> str:
    return f"the device is busy: {_percent(shares['forward'] + shares['backward'])} forward and backward"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
