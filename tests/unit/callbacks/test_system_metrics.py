"""The machine's figures are under ``clock`` and correct, and a missing one never stops training."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from toy import toy_trainer
from vaak.callbacks.step_log import StepLogCallback, SystemMetricsCallback
from vaak.core.machine import GIB
from vaak.engine.metrics_file import read_records


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def systems_in(folder: Path) -> list[dict[str, Any]]:
    return [record for record in read_records(folder / "metrics.jsonl") if record["kind"] == "system"]


def test_a_system_record_stands_beside_each_step_record(tmp_path: Path):
    toy_trainer(tmp_path, StepLogCallback(3), SystemMetricsCallback(3)).fit()
    records = read_records(tmp_path / "metrics.jsonl")
    steps = [record["step"] for record in records if record["kind"] == "step"]
    assert [record["step"] for record in systems_in(tmp_path)] == steps == [1, 3, 6, 8]
    for record in systems_in(tmp_path):
        assert set(record) == {"kind", "step", "epoch", "clock"}  # all else depends on the world
        clock = record["clock"]
        assert 0 < clock["memory_pressure"] < 1
        assert 0.01 < clock["process_memory_gib"] < clock["memory_limit_gib"]
        assert clock["cpu_percent"] >= 0
        assert clock["machine_load"] >= 0
        assert clock["disk_free_gib"] > 0


def test_the_processors_share_is_that_since_the_last_record(monkeypatch: pytest.MonkeyPatch):
    times = {"process": 10.0, "clock": 100.0}
    monkeypatch.setattr("time.process_time", lambda: times["process"])
    monkeypatch.setattr("time.monotonic", lambda: times["clock"])
    callback = SystemMetricsCallback()
    times.update(process=13.0, clock=102.0)
    assert callback.machine()["cpu_percent"] == 150.0
    times.update(process=13.5, clock=103.0)
    assert callback.machine()["cpu_percent"] == 50.0


def test_a_disk_that_is_nearly_full_is_said_once(tmp_path: Path, monkeypatch, caplog: pytest.LogCaptureFixture):
    trainer = toy_trainer(tmp_path, StepLogCallback(1), SystemMetricsCallback(1))
    free = 2 * sum(3 * weights.nbytes for weights in trainer.model.parameters()) - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, free))
    trainer.fit()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"{tmp_path} has 0.0 GiB left, too little for 2 checkpoints" in warnings[0]
    assert systems_in(tmp_path)[0]["clock"]["disk_free_gib"] == round(free / GIB, 4)


def test_a_machine_that_does_not_tell_is_said_once_and_training_goes_on(tmp_path: Path, monkeypatch, caplog):
    def fail(_: object) -> None:
        raise OSError("/proc isn't mounted")

    monkeypatch.setattr("vaak.callbacks.step_log.read_memory", fail)
    assert toy_trainer(tmp_path, StepLogCallback(1), SystemMetricsCallback(1)).fit() == "finished"
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == ["system metrics are left out from now on: /proc isn't mounted"]
    assert not systems_in(tmp_path)
