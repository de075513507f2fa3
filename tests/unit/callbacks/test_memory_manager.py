"""What AdaptiveMemoryManager does in each band, how often, and at what cost; readings and clock are scripted."""

from __future__ import annotations

import gc
import logging
from types import SimpleNamespace

import pytest
import torch

import tiny_runs
from toy import toy_trainer
from vaak.callbacks import memory_manager
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.engine.memory import Band, MemoryReading
from vaak.engine.metrics_file import read_records
from vaak.runs.build_callbacks import build_callbacks


class Trainer:
    """The parts of a trainer that a memory manager uses: steps, chunks, requests."""

    def __init__(self, device="cpu", total_steps=1000):
        self.ranks = SimpleNamespace(device=torch.device(device))
        self.total_steps, self.in_chunks, self.obeys = total_steps, 1, True
        self.asked, self.records = [], []

    def count_chunks(self):
        return self.in_chunks

    def split_microbatches(self, reason):
        self.asked.append(reason)
        if self.obeys:
            self.in_chunks *= 2

    def record(self, kind, values):
        self.records.append((kind, values))


class World:
    """Memory, time and clean-ups. Each reading costs ``cost`` seconds, each clean-up a thousand times as much."""

    def __init__(self, monkeypatch, cost=0.0):
        self.now, self.cost, self.own_share, self.pressure, self.peak = 0.0, cost, 1.0, 0.0, 5
        self.done: list[str] = []
        self.readings = 0
        monkeypatch.setattr(AdaptiveMemoryManager, "clock", staticmethod(lambda: self.now))
        monkeypatch.setattr(memory_manager, "read_memory", self.read)
        monkeypatch.setattr(memory_manager, "read_peak", lambda device: self.peak)
        monkeypatch.setattr(memory_manager, "reset_peak", lambda device: self.done.append("reset"))
        monkeypatch.setattr(memory_manager, "free_memory", lambda device: self.clean("empty cache"))
        monkeypatch.setattr(gc, "collect", lambda: self.clean("collect"))

    def read(self, device):
        self.now, self.readings = self.now + self.cost, self.readings + 1
        used = int(self.pressure * 1000 * 2**30)
        return MemoryReading(used, 1000 * 2**30, int(used * self.own_share))

    def clean(self, what):
        self.now += 1000 * self.cost
        self.done.append(what)

    def steps(self, manager, trainer, pressures, first=1, seconds=1.0):
        """Take one step for each pressure; return the manager's actions in each."""
        done = []
        for step, self.pressure in enumerate(pressures, first):
            self.now += seconds
            self.done = []
            manager.on_step_end(trainer, SimpleNamespace(step=step))
            done.append([what for what in self.done if what != "reset"])
        return done


@pytest.fixture
def world(monkeypatch):
    return World(monkeypatch)


EDGES = (0.60, 0.75, 0.85)


def begun(trainer, **options):
    manager = AdaptiveMemoryManager(**options)
    manager.on_fit_start(trainer)
    return manager


def test_each_band_has_its_action_on_entering_it(world, caplog):
    trainer = Trainer()
    manager = begun(trainer, thresholds=EDGES)
    with caplog.at_level(logging.WARNING, logger="vaak"):
        done = world.steps(manager, trainer, [0.3, 0.65, 0.7, 0.8, 0.78])
    assert done == [[], ["collect"], [], ["empty cache"], []]
    assert (manager.band, manager.pressure, manager.highest) == (Band.HIGH, 0.78, 0.8)
    assert trainer.asked == []
    assert not caplog.messages


def test_at_critical_it_warns_once_empties_the_cache_and_cuts_only_if_that_was_no_help(world, caplog):
    trainer = Trainer()
    manager = begun(trainer, thresholds=EDGES)
    with caplog.at_level(logging.WARNING, logger="vaak"):
        assert world.steps(manager, trainer, [0.9]) == [["empty cache"]]
        assert trainer.asked == []
        assert world.steps(manager, trainer, [0.9, 0.7, 0.7]) == [[], [], []]
    assert len(trainer.asked) == 1
    assert "90 % full (900.0 of 1000.0 GiB, 900.0 GiB by this process)" in trainer.asked[0]
    assert len(caplog.messages) == 1
    assert "smaller chunks" in caplog.messages[0]
    assert manager.band is Band.MODERATE


def test_an_emptied_cache_that_helps_spares_the_cut(world):
    trainer = Trainer()
    world.steps(begun(trainer, thresholds=EDGES), trainer, [0.9, 0.7, 0.8, 0.7])
    assert trainer.asked == []


def test_it_cuts_again_only_when_the_last_cut_has_lowered_the_pressure(world):
    trainer = Trainer()
    manager = begun(trainer, thresholds=EDGES)
    world.steps(manager, trainer, [0.99, 0.99])
    assert len(trainer.asked) == 1
    world.steps(manager, trainer, [0.95])
    assert len(trainer.asked) == 2
    world.steps(manager, trainer, [0.949] * 50)
    assert len(trainer.asked) == 2


def test_a_cut_that_is_not_in_force_yet_is_not_asked_for_again(world):
    trainer = Trainer()
    trainer.obeys = False
    manager = begun(trainer, thresholds=EDGES)
    world.steps(manager, trainer, [0.99, 0.99, 0.95, 0.92, 0.90])
    assert len(trainer.asked) == 1


def test_what_other_processes_hold_cuts_nothing(world, caplog):
    trainer = Trainer()
    manager, world.own_share = begun(trainer, thresholds=EDGES), 0.4
    with caplog.at_level(logging.WARNING, logger="vaak"):
        world.steps(manager, trainer, [0.95] * 20)
    assert trainer.asked == []
    assert len(caplog.messages) == 1
    assert "other processes" in caplog.messages[0]


def test_shrinking_can_be_left_out(world):
    trainer = Trainer()
    world.steps(begun(trainer, thresholds=EDGES, shrink=False), trainer, [0.95] * 20)
    assert trainer.asked == []


def test_trembling_around_critical_warns_once(world, caplog):
    trainer = Trainer()
    manager = begun(trainer, thresholds=EDGES)
    with caplog.at_level(logging.WARNING, logger="vaak"):
        done = world.steps(manager, trainer, [0.84, 0.86] * 20)
    assert len(caplog.messages) == 1
    assert sum(map(len, done)) == 2  # one for high, one for critical
    assert len(trainer.asked) == 1


@pytest.mark.parametrize("device", ["cuda", "mps", "xpu"])
def test_a_gpu_may_be_full(world, caplog, device):
    """Its allocator says when memory has run out: nothing is cut before that, whatever the readings are."""
    trainer = Trainer(device)
    manager = begun(trainer)
    with caplog.at_level(logging.WARNING, logger="vaak"):
        done = world.steps(manager, trainer, [0.3, 0.87, *[0.87] * 20, 0.99, *[0.999] * 20])
    assert trainer.asked == []
    assert [what for what in done if what] == [["empty cache"]]
    assert manager.band is Band.CRITICAL
    assert len(caplog.messages) == 1
    assert "87 % full" in caplog.messages[0]
    assert "chunks" not in caplog.messages[0]


@pytest.mark.parametrize(("device", "band"), [("cuda", Band.CRITICAL), ("mps", Band.CRITICAL), ("cpu", Band.HIGH)])
def test_the_bands_are_the_devices(world, device, band):
    trainer = Trainer(device)
    manager = begun(trainer)
    world.steps(manager, trainer, [0.86])
    assert manager.band is band
    given = begun(trainer, thresholds=[0.1, 0.2, 0.9])
    world.steps(given, trainer, [0.86])
    assert given.band is Band.HIGH


@pytest.mark.parametrize("cost", [1e-5, 1e-3])
@pytest.mark.parametrize("seconds", [1e-4, 1e-3, 1.0])
def test_its_own_time_stays_under_one_per_cent_by_design(monkeypatch, cost, seconds):
    world = World(monkeypatch, cost)
    trainer = Trainer()
    manager = begun(trainer)
    world.steps(manager, trainer, [0.3] * 5000, seconds=seconds)
    at_most_one_look_more = cost / world.now
    assert manager.measured_overhead <= 0.005 + at_most_one_look_more
    assert manager.spent == pytest.approx(world.readings * cost)
    assert world.readings >= min(5000, 0.0049 * world.now / cost)


def test_after_an_expensive_clean_up_it_waits(monkeypatch):
    world = World(monkeypatch, cost=1e-4)
    trainer = Trainer()
    manager = begun(trainer, thresholds=EDGES)
    world.steps(manager, trainer, [0.8], seconds=1.0)
    readings = world.readings
    world.steps(manager, trainer, [0.8] * 150, first=2, seconds=0.1)
    assert world.readings == readings
    world.steps(manager, trainer, [0.8] * 100, first=152, seconds=0.1)
    assert readings < world.readings < readings + 100
    assert manager.measured_overhead < 0.01


def test_a_short_run_on_a_busy_machine_is_reported_too(world, caplog):
    trainer = Trainer()
    manager = begun(trainer)
    manager.spent = 1.0  # its start was held up
    with caplog.at_level("INFO"):
        world.steps(manager, trainer, [0.3, 0.5, 0.4], seconds=0.01)
        manager.on_fit_end(trainer, "finished")
    assert manager.looks == 1
    assert "30 % full at worst" in caplog.text


def test_an_evaluations_peak_is_not_held_against_the_microbatches(world):
    trainer = Trainer()
    manager = begun(trainer)
    world.peak, world.done = 700, []
    manager.on_evaluate_end(trainer, {})
    world.peak = 5
    assert world.done == ["reset"]
    world.steps(manager, trainer, [0.3])
    assert manager.peak == 700


def test_out_of_memory_is_answered_by_a_clean_up(world):
    manager = begun(Trainer())
    manager.on_exception(Trainer(), ValueError("no"))
    assert "empty cache" not in world.done
    manager.on_exception(Trainer(), torch.OutOfMemoryError("CUDA out of memory"))
    assert "empty cache" in world.done


def test_the_last_step_writes_what_was_seen(world):
    trainer = Trainer(total_steps=3)
    manager = begun(trainer)
    world.steps(manager, trainer, [0.3, 0.5, 0.4])
    ((kind, values),) = trainer.records
    assert (kind, list(values)) == ("memory", ["clock"])
    assert values["clock"] == {
        "memory_peak_bytes": 5,
        "memory_limit_bytes": 1000 * 2**30,
        "memory_pressure": 0.4,
        "memory_pressure_highest": 0.5,
        "memory_overhead": 0.0,
    }


def test_on_a_real_run_it_changes_nothing_and_reports(tmp_path):
    weights = []
    manager = AdaptiveMemoryManager(overhead=1.0)
    for name in ("without", "with"):
        trainer = toy_trainer(tmp_path / name, *([manager] if name == "with" else []))
        trainer.fit()
        weights.append(trainer.model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert manager.looks >= 7
    assert 0 < manager.pressure <= manager.highest <= 1
    (record,) = [r for r in read_records(tmp_path / "with" / "metrics.jsonl") if r["kind"] == "memory"]
    assert record["step"] == trainer.total_steps
    assert record["clock"]["memory_peak_bytes"] > 2**20


def test_a_real_run_under_pressure_is_cut_finer(tmp_path):
    """The thresholds are so low that any process is critical."""
    manager = AdaptiveMemoryManager(thresholds=[1e-6, 2e-6, 3e-6], own_share=0.0, overhead=1.0)
    trainer = toy_trainer(tmp_path, manager)
    trainer.fit()
    largest = trainer.data.planner.plan(0).padded_sizes(trainer.data.dataset.lengths).max()
    assert trainer.state.chunk_rules.count(trainer.total_steps, 0, largest) == 2
    assert trainer.state.chunk_rules.count(1, 0, largest) == 1


def test_a_yaml_turns_it_off_sets_its_thresholds_or_gives_it_options(tiny_corpus, tmp_path):
    def managers(*overrides):
        loaded = load([tiny_corpus / "tiny.yml"], [f"run_dir={tmp_path}", *overrides])
        found = build_callbacks(loaded.experiment, tiny_corpus)
        return [callback for callback in found if isinstance(callback, AdaptiveMemoryManager)]

    assert managers("training.memory.manager=false") == []
    (manager,) = managers("training.memory.thresholds=[0.5, 0.6, 0.7]")
    assert manager.thresholds == (0.5, 0.6, 0.7)
    (manager,) = managers("training.callbacks=[{type: memory_manager, shrink: false, thresholds: [0.2, 0.3, 0.4]}]")
    assert (manager.shrink, manager.thresholds) == (False, (0.2, 0.3, 0.4))
    with pytest.raises(UserError, match="increase"):
        managers("training.memory.thresholds=[0.7, 0.6, 0.5]")


@pytest.fixture
def tiny_corpus(tmp_path):
    tiny_runs.write_corpus(tmp_path / "corpus")
    return tmp_path / "corpus"


def test_with_an_interval_it_cleans_up_periodically_whatever_the_pressure(world):
    trainer = Trainer()
    manager = begun(trainer, cleanup_interval=3)
    done = world.steps(manager, trainer, [0.1] * 7)
    assert ["empty cache" in one for one in done] == [False, False, True, False, False, True, False]


def test_the_interval_is_an_option(tmp_path, tiny_text):
    loaded = load([tiny_text / "tiny.yml"], ["training.memory.cleanup_interval=5"])
    [manager] = [one for one in build_callbacks(loaded.experiment, tmp_path) if isinstance(one, AdaptiveMemoryManager)]
    assert manager.cleanup_interval == 5
    off = load([tiny_text / "tiny.yml"], ["training.memory={manager: false, cleanup_interval: 5}"])
    assert any("memory.manager is false" in warning for warning in off.warnings)
