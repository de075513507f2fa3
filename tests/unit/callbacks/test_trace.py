"""A trace is a whole file that any viewer of Chrome traces reads, of the steps that its name says."""

from __future__ import annotations

import gzip
import json
import logging
from pathlib import Path
from typing import Any

import pytest

import tiny_runs
from toy import StopAt, toy_trainer
from vaak.callbacks.profiler import TraceCallback


def events_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return json.load(file)["traceEvents"]


def steps_in(path: Path) -> set[str]:
    return {name for event in events_of(path) if (name := str(event.get("name"))).startswith("ProfilerStep#")}


def test_the_trace_holds_three_steps_of_the_language_model(tiny_text: Path, tmp_path: Path):
    run = tmp_path / "run"
    tiny_runs.train(tiny_text, run, "training.profiling=trace")
    (path,) = (run / "trace").iterdir()
    assert path.name == "steps-6-to-8-rank-0.json.gz"
    names = {event.get("name") for event in events_of(path)}
    assert {"aten::embedding", "aten::scaled_dot_product_attention", "aten::mm", "aten::_fused_adamw_"} <= names
    assert any("Backward" in str(name) for name in names)
    assert steps_in(path) == {"ProfilerStep#5", "ProfilerStep#6", "ProfilerStep#7"}  # counted from 0
    assert f"trace of steps 6 to 8: {path}" in (run / "train.log").read_text()


def test_a_run_that_ends_amid_the_steps_has_a_trace_of_those_it_took(tmp_path: Path):
    toy_trainer(tmp_path, TraceCallback(wait=1, warm_up=1, active=5), StopAt(4)).fit()
    (path,) = (tmp_path / "trace").iterdir()
    assert path.name == "steps-3-to-4-rank-0.json.gz"
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= steps_in(path)


@pytest.mark.parametrize("last", [1, 2])
def test_a_run_that_ends_before_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture, last: int):
    caplog.set_level(logging.INFO, "vaak")
    toy_trainer(tmp_path, TraceCallback(wait=1, warm_up=2, active=1), StopAt(last)).fit()
    assert "the run ended before step 4, the first to be traced" in caplog.text
    assert not (tmp_path / "trace").exists()


def test_a_resumed_run_is_traced_from_where_it_goes_on(tmp_path: Path):
    toy_trainer(tmp_path, max_steps=3).fit()
    trainer = toy_trainer(tmp_path, TraceCallback(wait=1, warm_up=1, active=2))
    assert trainer.resume("auto")
    trainer.fit()
    assert [path.name for path in (tmp_path / "trace").iterdir()] == ["steps-6-to-7-rank-0.json.gz"]


def test_every_rank_writes_a_file_of_its_own(tmp_path: Path):
    trainer = toy_trainer(tmp_path, TraceCallback(wait=0, warm_up=1, active=1))
    trace = trainer.callbacks[0]
    assert isinstance(trace, TraceCallback)
    trace.on_fit_start(trainer)
    trainer.ranks.rank = 3
    assert not TraceCallback.main_process_only
    trace.last = 2
    trace.profiler.step()
    trace.stop()
    assert [path.name for path in (tmp_path / "trace").iterdir()] == ["steps-2-to-2-rank-3.json.gz"]
