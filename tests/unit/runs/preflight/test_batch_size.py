"""The largest and the quickest batch: found by trying, without a size that a CPU's kernel would kill for."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch
from annotated_types import Le
from hypothesis import given
from hypothesis import strategies as st

import tiny_runs
from toy import toy_trainer
from vaak.config.load import load
from vaak.config.training import TrainingConfig
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.engine.memory import MemoryReading
from vaak.runs.preflight import largest_batch as batch_trials
from vaak.runs.preflight.largest_batch import PRECISION, Trial, Trials, find_batch_size, keep_effective, search
from vaak.tasks.lm.task import LanguageModelTask

GIBIBYTE = 2**30


@pytest.fixture(autouse=True)
def one_timed_step(monkeypatch):
    monkeypatch.setattr(batch_trials, "STEPS", 1)


def sizes(advice):
    return [trial.size for trial in advice.trials]


def test_sizes_double_up_to_the_last_and_the_run_directory_stays_untouched(tiny_text, tmp_path):
    run = tmp_path / "run"
    heard: list[Trial] = []
    advice = find_batch_size(tiny_runs.loaded(tiny_text, run), up_to=20, tell=heard.append)
    assert sizes(advice) == [1, 2, 4, 8, 16, 20]
    assert heard == advice.trials
    assert all(trial.fits and trial.rows == trial.size for trial in advice.trials)
    assert all(set(trial.per_second) == {"token", "example", "position", "byte"} for trial in advice.trials)
    assert all(trial.memory_bytes > 2**20 for trial in advice.trials)
    assert advice.largest == 20
    assert not run.exists()


@pytest.mark.slow
def test_all_the_data_is_where_it_ends(tiny_text, tmp_path):
    advice = find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"))
    assert advice.trials[-1].holds_all
    assert advice.trials[-1].rows == tiny_runs.SIZES["train"]
    assert not any(trial.holds_all for trial in advice.trials[:-1])


def test_several_tasks_have_a_largest_batch(tmp_path):
    """A microbatch is of one task, so an epoch is never one: sizes went on doubling without end."""
    words = {
        "task": "lm",
        "model": {"d_model": 16, "num_layers": 1, "num_heads": 2},
        "data": {"corpus": {"type": "grammar", "num_sentences": 60}, "tokenizer": {"type": "character"}},
    }
    options = {"tasks": {"a": words, "b": words}, "run_dir": str(tmp_path / "run"), "training": {"device": "cpu"}}
    (tmp_path / "two.yml").write_text(yaml_text(options))
    advice = find_batch_size(load([tmp_path / "two.yml"]))
    number = advice.trials[-1].rows
    assert advice.trials[-1].holds_all
    assert number <= sizes(advice)[-1] <= 2 * number


def test_no_size_is_tried_that_the_option_cannot_have(tiny_text, tmp_path, monkeypatch):
    monkeypatch.setattr(TrainingConfig.model_fields["batch_size"], "metadata", [Le(6)])
    assert sizes(find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"), up_to=50)) == [1, 2, 4, 6]


def test_a_budget_of_bucketed_batches_begins_with_the_longest_example(tiny_text, tmp_path):
    bucketed = "training.batching={type: bucketed, max_tokens: 512, num_buckets: 4}"
    advice = find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run", bucketed), up_to=200)
    assert advice.option == "training.batching.max_tokens"
    assert sizes(advice)[-1] == 200
    assert sizes(advice)[0] < 49
    assert advice.as_json()["advice"].keys() == {advice.option, "training.gradient_accumulation_steps"}


def out_of_memory_above(monkeypatch, rows):
    """Have the task run out of memory as CUDA says it, with more than some number of rows."""
    real, asked = LanguageModelTask.losses, []

    def losses(self, model, batch):
        asked.append(batch.num_rows)
        if batch.num_rows > rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(self, model, batch)

    monkeypatch.setattr(LanguageModelTask, "losses", losses)
    return asked


def test_out_of_memory_ends_the_doubling_and_nothing_is_split(tiny_text, tmp_path, monkeypatch):
    asked = out_of_memory_above(monkeypatch, 21)
    advice = find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run", "training.batch_size=64"))
    assert advice.largest == 21
    assert {trial.size: trial.problem for trial in advice.trials if not trial.fits} == dict.fromkeys(
        (32, 24, 22), "out of memory"
    )
    assert sorted(set(asked)) == sorted(set(sizes(advice)))
    assert (advice.size * advice.accumulation, advice.size <= advice.quickest) == (64, True)


def test_an_example_that_does_not_fit_alone_is_named(tiny_text, tmp_path, monkeypatch):
    out_of_memory_above(monkeypatch, 0)
    with pytest.raises(UserError, match=r"example \d+ \(.+train.*\) does not fit even alone"):
        find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"))


def test_a_limit_that_not_even_the_model_keeps_is_said_with_numbers(tiny_text, tmp_path):
    with pytest.raises(UserError, match=r"not even one row fits.* needs \d+\.\d\d GiB, of which \d+\.\d\d without any"):
        find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"), limit=2**20)


def test_a_limit_is_kept_and_nearly_reached(tiny_text, tmp_path):
    free = find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"), up_to=128)
    memory = {trial.size: trial.memory_bytes for trial in free.trials}
    limit = int((memory[16] + memory[128]) / 2 / 0.9)
    advice = find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"), limit=limit, up_to=128)
    refused = [trial for trial in advice.trials if not trial.fits]
    assert refused
    assert all(trial.memory_bytes <= advice.available_bytes for trial in advice.trials if trial.fits)
    assert all(trial.memory_bytes > advice.available_bytes for trial in refused)
    smallest_refused = min(trial.size for trial in refused)
    assert 0 < smallest_refused - advice.largest <= max(1, advice.largest // PRECISION)


class FakeTrials(Trials):
    """Sizes up to ``capacity`` fit; from ``num_examples`` on one batch holds all."""

    def __init__(self, capacity, num_examples):
        self.capacity, self.num_examples = capacity, num_examples

    def run(self, size):
        problem = None if size <= self.capacity else "too large"
        return Trial(size, min(size, self.num_examples), 0, {}, problem, holds_all=size >= self.num_examples)


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(1, 10_000), st.integers(1, 50))
def test_search_ends_next_to_the_truth(capacity, num_examples, up_to, smallest):
    tried = search(FakeTrials(capacity, num_examples), smallest, max(up_to, smallest), lambda trial: None)
    assert len({trial.size for trial in tried}) == len(tried)
    largest = max((trial.size for trial in tried if trial.fits), default=0)
    refused = min((trial.size for trial in tried if not trial.fits), default=None)
    if refused is None:
        assert largest >= min(max(up_to, smallest), num_examples)
    elif largest:
        assert largest <= capacity < refused
        assert refused - largest <= max(1, largest // PRECISION)
    else:
        assert capacity < smallest


@given(st.integers(1, 512), st.integers(1, 64), st.integers(1, 600))
def test_the_effective_batch_is_kept_exactly_in_rows_and_not_passed_in_a_budget(given_size, accumulation, most):
    size, steps = keep_effective(given_size, accumulation, most, "batch_size")
    assert size * steps == given_size * accumulation
    assert 1 <= size <= most
    size, steps = keep_effective(given_size, accumulation, most, "max_tokens")
    assert size <= most
    assert given_size * accumulation - steps < size * steps <= given_size * accumulation


@pytest.mark.parametrize(("resting", "per_cell"), [(10_000, 1.0), (60_000, 40.0), (60_000, 1000.0)])
def test_on_a_cpu_no_size_is_tried_that_the_kernel_would_kill_for(tmp_path, monkeypatch, per_cell, resting):
    """A machine on which 20,000 bytes are others', and a model of which gradients take 9,000 bytes in a step."""
    limit, trainer = 200_000, toy_trainer(tmp_path)
    trials = Trials(trainer, "batch_size", None)
    padded_size, attempted = [0.0], []

    def attempt(microbatch):
        padded_size[0] = float(microbatch.batch["inputs"].numel())
        attempted.append(used())
        return 1.0, None

    def used():
        return resting + (9_000 + int(per_cell * padded_size[0]) if padded_size[0] else 0)

    monkeypatch.setattr(trials, "_attempt", attempt)
    monkeypatch.setattr(batch_trials, "read_memory", lambda device: MemoryReading(20_000 + used(), limit, used()))
    monkeypatch.setattr(batch_trials, "reset_peak", lambda device: padded_size.__setitem__(0, 0.0))
    tried = search(trials, 1, 2**20, lambda trial: None)
    available = 0.9 * limit - 20_000
    assert all(memory <= available for memory in attempted)
    if tried[-1].fits and tried[-1].holds_all:
        return
    largest = max(trial.size for trial in tried if trial.fits)
    rows_that_would_fit = int((available - resting - 9_000) / per_cell / 9)
    assert largest >= 0.8 * rows_that_would_fit - 1


def test_several_processes_are_sent_away(tiny_text, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="one process"):
        find_batch_size(tiny_runs.loaded(tiny_text, tmp_path / "run"))


LIMITED = """
import resource, sys
from pathlib import Path
import torch._dynamo
import tiny_runs
from vaak.runs.preflight.largest_batch import find_batch_size
given = tiny_runs.loaded(Path(sys.argv[1]), Path(sys.argv[2]), "model.d_model=256")
size = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmSize")) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (160 << 20),) * 2)
advice = find_batch_size(given)
print(advice.largest, [trial.problem for trial in advice.trials if not trial.fits][0])
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the address space is limited through /proc")
def test_a_process_that_is_really_out_of_memory_finds_what_fits(tiny_text, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(LIMITED), str(tiny_text), str(tmp_path / "run")],
        capture_output=True,
        text=True,
        check=False,
        # One arena for all threads: the thread that shows progress would reserve 128 MB for its own, used or not.
        env={"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1", "PYTHONPATH": str(tiny_runs.__file__).rpartition("/")[0]},
    )
    assert done.returncode == 0, done.stderr
    largest, problem = done.stdout.split(maxsplit=1)
    assert 1 <= int(largest) < tiny_runs.SIZES["train"]
    assert problem.strip() == "out of memory"
