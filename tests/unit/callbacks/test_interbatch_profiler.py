"""Shares are exact by a clock that only planted work moves; profiling changes no bit, and when off there is nothing."""

from __future__ import annotations

import functools
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_runs
from toy import ToyDataset, ToyMeters, ToyTask, same_bits, toy_trainer, weights
from vaak.callbacks import InterbatchProfiler
from vaak.callbacks.profiler import TraceCallback, WaitingForDataCallback
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.storage.files import read_json
from vaak.engine.callback import Callback, StepReport
from vaak.engine.metrics_file import read_records
from vaak.engine.phases import Phases
from vaak.runs.build_callbacks import build_callbacks

EXAMPLE, FORWARD, BACKWARD, OPTIMIZER, OTHERS, EVALUATION = 0.25, 2.0, 4.0, 0.5, 0.125, 64.0
"""Seconds of an example read, a microbatch forward and backward, an update, other callbacks, a batch evaluated."""


class Clock:
    """A clock that goes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


class TimedDataset(ToyDataset):
    clock: Clock
    seconds: float

    def example(self, index: int, rng: np.random.Generator) -> np.ndarray:
        self.clock.work(self.seconds)
        return super().example(index, rng)


class TimedMeters(ToyMeters):
    clock: Clock

    def update(self, model: torch.nn.Module, batch: Batch) -> None:
        self.clock.work(EVALUATION)
        super().update(model, batch)


class TimedTask(ToyTask):
    """Everything takes the seconds planted here, and no others."""

    def __init__(self, clock: Clock, example_seconds: float = EXAMPLE) -> None:
        super().__init__()
        self.clock, self.example_seconds = clock, example_seconds

    def dataset(self, split: str) -> ToyDataset:
        dataset = TimedDataset(self.num_examples, self.noise) if split == "train" else TimedDataset(10)
        dataset.clock, dataset.seconds = self.clock, self.example_seconds
        return dataset

    def meters(self, split: str) -> ToyMeters:
        meters = TimedMeters()
        meters.clock = self.clock
        return meters

    def losses(self, model: torch.nn.Module, batch: Batch) -> dict[str, Term]:
        self.clock.work(FORWARD)
        terms = super().losses(model, batch)
        terms["main"].total.register_hook(lambda _: self.clock.work(BACKWARD))
        return terms


class Another(Callback):
    """Takes time in every step."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        self.clock.work(OTHERS)


def timed_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, profiler: Callback, example_seconds: float, **training: Any
) -> list[dict[str, Any]]:
    """Train 8 steps of 3, 3, 3, 1, 3, 3, 3, 1 microbatches of 4 rows; return the profile records."""
    clock = Clock()
    monkeypatch.setattr("vaak.engine.trainer.Phases", functools.partial(Phases, clock=clock))
    monkeypatch.setattr("vaak.data.loader.BURST_SECONDS", 0.0)  # true seconds
    trainer = toy_trainer(folder, Another(clock), profiler, task=TimedTask(clock, example_seconds), **training)
    trainer.state.optimizers[0].register_step_pre_hook(lambda *_: clock.work(OPTIMIZER))
    trainer.fit()
    assert not trainer.phases.running
    file = folder / "metrics.jsonl"
    return [record for record in read_records(file) if record["kind"] == "profile"] if file.exists() else []


def test_every_phase_has_exactly_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    records = timed_run(tmp_path, monkeypatch, InterbatchProfiler(every=2, warm_up=3), EXAMPLE)
    assert [(record["step"], record["steps"]) for record in records] == [(4, 1), (6, 2), (8, 2)]
    for record, microbatches in zip(records, (1, 6, 4), strict=True):
        steps, clock = record["steps"], record["clock"]
        expected = {
            "loading": 4 * EXAMPLE * microbatches,
            "forward": FORWARD * microbatches,
            "backward": BACKWARD * microbatches,
            "optimizer": OPTIMIZER * steps,
            "gap": OTHERS * steps,
        }
        whole = sum(expected.values())
        assert clock["seconds"] == whole
        for name, seconds in expected.items():
            assert clock[f"{name}_seconds"] == seconds
            assert clock[name] == pytest.approx(seconds / whole, abs=1e-6)
        assert clock["examples_per_second"] == pytest.approx(4 * microbatches / whole, abs=1e-6)
        assert "mfu" not in clock


def test_evaluations_and_checkpoints_are_no_part_of_the_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    options: dict[str, Any] = {"validation": {"interval": 2}, "checkpoint": {"interval": 2}}
    records = timed_run(tmp_path, monkeypatch, InterbatchProfiler(every=4, warm_up=1), EXAMPLE, **options)
    for record, steps, evaluations in zip(records, (3, 4), (1, 2), strict=True):
        assert record["clock"]["gap_seconds"] == OTHERS * steps
        assert record["clock"]["evaluation_seconds"] == evaluations * (3 * EVALUATION + 10 * EXAMPLE)
        assert record["clock"]["saving_seconds"] == 0.0


def test_a_slow_dataset_gives_the_verdict_that_it_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.INFO, "vaak")
    monkeypatch.setattr("vaak.callbacks.profiler.count_own_cores", lambda: 8)
    timed_run(tmp_path, monkeypatch, InterbatchProfiler(every=4, warm_up=1), example_seconds=4.0)
    stored = read_json(tmp_path / "profile.json")
    microbatches, steps = 17, 7  # without those of the first step
    loading = 16.0 * microbatches
    others = (FORWARD + BACKWARD) * microbatches + (OPTIMIZER + OTHERS) * steps
    percent = round(100 * loading / (loading + others))
    said = f"{percent} % of the time is spent waiting for data: raise training.performance.num_workers (now 0)"
    assert stored["verdict"][0] == said
    assert f"profile of 7 steps: {said}" in caplog.text
    assert stored["steps"] == steps
    assert stored["seconds"]["loading"] == loading
    assert sum(stored["shares"].values()) == pytest.approx(1.0)
    assert stored["rates"]["examples_per_second"] == pytest.approx(4 * microbatches / (loading + others))
    assert stored["mfu"] is None


def test_mfu_is_the_work_done_over_what_the_device_could_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    profiler = InterbatchProfiler(every=8, warm_up=1, peak_tflops=1e-9)
    (record,) = timed_run(tmp_path, monkeypatch, profiler, EXAMPLE)
    assert profiler.work is not None
    clock = record["clock"]
    assert clock["mfu"] == pytest.approx(clock["tokens_per_second"] * profiler.work.seconds, rel=1e-4)
    assert clock["mfu"] > 0


def test_of_several_ranks_the_one_that_works_longest_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slower = {"loading": 1000.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.5, "gap": 0.5}
    waiting = {"loading": 1.0, "forward": 1.0, "backward": 2.0, "optimizer": 900.0, "gap": 100.0}
    profiler = InterbatchProfiler(every=8, warm_up=1)
    trainer = toy_trainer(tmp_path, profiler)
    alone = trainer.ranks.gather

    def gather(value: Any) -> list[Any]:
        return [value, slower, waiting] if isinstance(value, dict) and "gap" in value else alone(value)

    monkeypatch.setattr(trainer.ranks, "gather", gather)
    trainer.fit()
    assert profiler.whole.seconds == slower


@pytest.mark.parametrize("every", [3, 50])
def test_the_last_steps_are_measured_though_no_interval_ends_there(tmp_path: Path, every: int):
    profiler = InterbatchProfiler(every=every, warm_up=2)
    toy_trainer(tmp_path, profiler).fit()
    assert profiler.whole.steps == 6
    assert profiler.whole.counts["example"] == 4 * 14


def test_the_first_step_always_warms_up(tmp_path: Path):
    profiler = InterbatchProfiler(warm_up=0)
    toy_trainer(tmp_path, profiler).fit()
    assert profiler.whole.steps == 7


def test_a_run_too_short_to_measure_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "vaak")
    toy_trainer(tmp_path, InterbatchProfiler(), max_steps=2).fit()
    assert "nothing was measured, for the run ended before step 4" in caplog.text
    assert not (tmp_path / "profile.json").exists()


def test_two_profilers_are_refused(tmp_path: Path):
    with pytest.raises(UserError, match=r"leave interbatch_profiler out of training\.callbacks"):
        toy_trainer(tmp_path, InterbatchProfiler(), InterbatchProfiler()).fit()


def test_when_off_nothing_measures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    read: list[float] = []

    def clock() -> float:
        read.append(0.0)
        return 0.0

    monkeypatch.setattr("vaak.engine.trainer.Phases", functools.partial(Phases, clock=clock))
    trainer = toy_trainer(tmp_path)
    begun = len(read)
    trainer.fit()
    assert len(read) == begun
    assert not trainer.phases.phases


def without_time(run: Path) -> list[dict[str, Any]]:
    """The records of a run but for profiles and what the clock says."""
    records = [record for record in read_records(run / "metrics.jsonl") if record["kind"] != "profile"]
    return [{name: value for name, value in record.items() if name != "clock"} for record in records]


@pytest.fixture(scope="module")
def runs(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The tiny job of 12 steps by ``training.profiling``."""
    folder = tmp_path_factory.mktemp("profiling")
    for asked in ("false", "true", "trace"):
        tiny_runs.train(tiny_text, folder / asked, "training.max_steps=12", f"training.profiling={asked}")
    return {asked: folder / asked for asked in ("false", "true", "trace")}


@pytest.mark.parametrize("asked", ["true", "trace"])
def test_profiling_changes_no_bit_and_no_other_record(runs: dict[str, Path], asked: str):
    last = Path("checkpoints") / "step-00000012"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (runs[asked] / last / file).read_bytes() == (runs["false"] / last / file).read_bytes()
    assert without_time(runs[asked]) == without_time(runs["false"])


def test_the_yaml_decides_what_is_left_behind(runs: dict[str, Path]):
    kinds = {asked: {record["kind"] for record in read_records(run / "metrics.jsonl")} for asked, run in runs.items()}
    assert "profile" in kinds["true"] & kinds["trace"]
    assert "profile" not in kinds["false"]
    left = {asked: {path.name for path in run.iterdir()} for asked, run in runs.items()}
    assert left["true"] == left["false"] | {"profile.json"}
    assert left["trace"] == left["false"] | {"profile.json", "trace"}


def test_traced_steps_are_no_part_of_the_shares(runs: dict[str, Path]):
    assert read_json(runs["true"] / "profile.json")["steps"] == 12 - 3
    assert read_json(runs["trace"] / "profile.json")["steps"] == 12 - 9


def test_what_the_yaml_asks_for_is_what_watches(tiny_text: Path, tmp_path: Path):
    def watching(*overrides: str) -> set[type]:
        experiment = tiny_runs.loaded(tiny_text, tmp_path / "run", *overrides).experiment
        return {type(callback) for callback in build_callbacks(experiment, tmp_path)}

    assert {InterbatchProfiler, TraceCallback, WaitingForDataCallback} & watching() == {WaitingForDataCallback}
    others = watching() - {WaitingForDataCallback}
    assert watching("training.profiling=true") == others | {InterbatchProfiler}
    assert watching("training.profiling=trace") == others | {InterbatchProfiler, TraceCallback}
    by_name = "training.callbacks=[{type: interbatch_profiler, peak_tflops: 2.5}, trace]"
    assert watching(by_name) == others | {InterbatchProfiler, TraceCallback}


@pytest.mark.parametrize(("example_seconds", "warnings"), [(4.0, 1), (0.25, 1), (0.05, 0)])
def test_waiting_for_data_is_said_once_without_profiling(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    example_seconds: float,
    warnings: int,
):
    """An example of 0.05 s takes 3 % of the time, one of 0.25 s 13 %."""
    monkeypatch.setattr("vaak.callbacks.profiler.count_own_cores", lambda: 8)
    assert timed_run(tmp_path, monkeypatch, WaitingForDataCallback(every=2), example_seconds) == []
    said = [record.message for record in caplog.records if "waiting for data" in record.message]
    assert len(said) == warnings
    if said:
        assert said[0].endswith("of the time is spent waiting for data: raise training.performance.num_workers (now 0)")


def test_a_resumed_run_may_be_profiled(tmp_path: Path):
    whole = toy_trainer(tmp_path / "whole")
    whole.fit()
    toy_trainer(tmp_path / "run", max_steps=4, scheduler={"type": "constant"}).fit()
    plain, profiled = (toy_trainer(tmp_path / "run", *callbacks) for callbacks in ((), (InterbatchProfiler(2, 1),)))
    results = []
    for trainer in (plain, profiled):
        assert trainer.resume(str(tmp_path / "run" / "checkpoints" / "step-00000004"))
        trainer.fit()
        results.append(weights(trainer))
    assert same_bits(*results)
    assert json.loads((tmp_path / "run" / "profile.json").read_text())["steps"] == 3
