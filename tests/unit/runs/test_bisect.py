"""Two runs that should be the same: what makes them differ is named, with the step and value where it shows first."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_runs
from vaak.engine.checkpoint.files import load_checkpoint, save_checkpoint, step_folder
from vaak.engine.distributed.launcher import INTEGERS
from vaak.runs.bisect import bisect_runs, differing_tensor

Vaak = Callable[..., tuple[int, str, str]]
OPTIONS = ("training.checkpoint.interval=2", "training.checkpoint.save_total_limit=null")
SAME = "data, code, versions, hardware and options are the same"
CALLBACK = """
from vaak.engine.callback import Callback

class Mine(Callback):
    def on_step_end(self, trainer, report):
        if report.step == 3:
            next(trainer.model.parameters()).data.mul_({factor})
"""


@pytest.fixture(scope="module")
def run(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps with dropout and token dropout, and a checkpoint after every other one."""
    run = tmp_path_factory.mktemp("bisected") / "run"
    tiny_runs.train(tiny_text, run, *OPTIONS)
    return run


def bisected(one: Path, other: Path, **options: Any) -> dict[str, Any]:
    """What is found; both are left as they were."""
    before = [tiny_runs.hashes(each) for each in (one, other)]
    found = bisect_runs(one, other, **options)
    assert [tiny_runs.hashes(each) for each in (one, other)] == before
    return found


def flip(run: Path, step: int) -> str:
    """Flip a bit in a parameter of a checkpoint, as a run with a broken memory would write it; return which."""
    snapshot = load_checkpoint(run / "checkpoints" / step_folder(step))
    name = "stack.blocks.0.attention.key.weight"
    tensor = snapshot.model[name].clone()
    tensor.view(-1).view(torch.int32)[17] ^= 1 << 30
    snapshot.model[name] = tensor
    save_checkpoint(run / "checkpoints", snapshot)
    return f"model {name}, 1 of {tensor.numel()} values: number 17 is "


@pytest.mark.slow
def test_an_edited_augmentation(run: Path, tiny_text: Path, tmp_path: Path):
    """The examples are the same, and what becomes of them is not."""
    tiny_runs.train(tiny_text, tmp_path / "other", *OPTIONS, "data.token_dropout=0.2", "training.max_steps=2")
    found = bisected(run, tmp_path / "other")
    assert (found["step"], found["stage"], found["same_until"]) == (1, "batch", 0)
    assert found["sentence"].startswith("step 1 differs first, in batch: inputs, microbatch 0 (norm ")
    assert "; the runs differ in options (data.token_dropout 0.1 and 0.2" in found["sentence"]
    assert not found["differing"]["data"] + found["differing"]["code"]


def test_a_flipped_bit_in_a_parameter(run: Path, tmp_path: Path, vaak: Vaak):
    """In memory, before a checkpoint was written: the run goes on from it."""
    other = shutil.copytree(run, tmp_path / "other")
    for step in (6, 8):
        shutil.rmtree(other / "checkpoints" / step_folder(step))
    flipped = flip(other, 4)
    code, _, err = vaak("train", other / "config.yml", "--resume", "auto")
    assert code == 0, err
    code, out, err = vaak("bisect", run, other)
    assert (code, err) == (2, "")
    assert out.splitlines()[0].startswith("the same until step 2; first in the records: the checkpoint step-00000004: ")
    sentence = out.splitlines()[-1]
    assert sentence.startswith(f"step 4 differs first, in what was written down: the checkpoint's {flipped}")
    assert "(bit 30) when it is computed again" in sentence
    assert f"{other} isn't what its own steps give: the steps 3 to 4 of both, recomputed, are the same" in sentence
    assert sentence.endswith(SAME)
    shutil.rmtree(other / "checkpoints" / step_folder(4))  # then only the log shows it
    found = json.loads(vaak("bisect", other, run, "--json")[1])
    assert (found["step"], found["stage"], found["same_until"]) == (5, "what was written down", 2)
    assert f"{other} isn't what its own steps give" in found["name"]


def test_users_code_that_was_edited(tiny_text: Path, tmp_path: Path):
    runs = [tmp_path / name for name in ("one", "other")]
    for run, factor in zip(runs, ("1.0", "1.5"), strict=True):
        (file := tmp_path / f"of-{run.name}" / "mine.py").parent.mkdir()
        file.write_text(CALLBACK.replace("{factor}", factor))
        code = f"training.callbacks=[{{type: '{file}:Mine'}}]"
        tiny_runs.train(tiny_text, run, *OPTIONS, code, "training.max_steps=4", "training.logging.interval=4")
    found = bisected(*runs, trust_code=True)
    assert (found["step"], found["stage"], found["same_until"]) == (3, "update", 2)
    assert found["name"].startswith("model ")
    assert [line for line in found["differing"]["code"] if line.startswith("code/mine")]


def test_another_start(run: Path, tiny_text: Path, tmp_path: Path):
    tiny_runs.train(tiny_text, tmp_path / "other", *OPTIONS, "training.random_seed=1", "training.max_steps=2")
    found = bisected(tmp_path / "other", run)
    assert (found["step"], found["stage"]) == (0, "state")
    assert found["sentence"].startswith("they begin differently, in state: model ")
    assert "training.random_seed 1 and 42" in found["sentence"]


def test_a_figure_that_was_changed_in_the_log(run: Path, tmp_path: Path):
    other = shutil.copytree(run, tmp_path / "other")
    log = other / "metrics.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    number = next(i for i, line in enumerate(lines) if '"kind": "step", "step": 7,' in line)
    record = json.loads(lines[number])
    lines[number] = json.dumps(record | {"cross_entropy": record["cross_entropy"] + 0.5}) + "\n"
    log.write_text("".join(lines))
    found = bisected(run, other)
    assert (found["step"], found["same_until"]) == (7, 6)
    assert found["name"].startswith("cross_entropy of the step is ")
    assert f"{other} isn't what its own steps give" in found["name"]


def test_runs_that_are_the_same(run: Path, tmp_path: Path, vaak: Vaak):
    other = shutil.copytree(run, tmp_path / "other")
    code, out, err = vaak("bisect", run, other)
    assert (code, out, err) == (0, "the same: 20 records and 4 checkpoints, until step 8\n", "")
    code, _, err = vaak("bisect", run, run / "checkpoints" / "best")
    assert code == 2
    assert "the same run: give two" in err


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
@pytest.mark.usefixtures("threads")
def test_another_number_of_threads(tiny_text: Path, tmp_path: Path):
    runs = [tmp_path / str(number) for number in (1, 2)]
    for run in runs:
        given = (f"training.performance.num_threads={run.name}", "training.batch_size=64", "training.max_steps=4")
        tiny_runs.train(tiny_text, run, "training.checkpoint.interval=1", *given)
    found = bisected(*runs)
    if found["step"] is None:
        pytest.skip("these numbers of threads add up in the same order on this machine")
    assert found["stage"] in ("forward", "loss", "gradient")  # not in what comes before or after
    assert "the runs differ in options (threads 1 and 2; training.performance.num_threads 1 and 2" in found["sentence"]
    assert found["conditions_here"] == [[], []]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.bool])
def test_the_bit_that_is_flipped(dtype: torch.dtype):
    one = torch.arange(12).reshape(3, 4).to(dtype)
    for bit in (0, 6) if dtype is not torch.bool else (0,):
        other = one.clone()
        other.view(-1).view(INTEGERS.get(dtype.itemsize, torch.int64))[7] ^= 1 << bit
        said = differing_tensor({"a": one, "b": one}, {"a": one.clone(), "b": other})
        assert said is not None
        assert said.startswith("b, 1 of 12 values: number 7 is ")
        assert said.endswith(f"(bit {bit})")
    assert differing_tensor({"a": one}, {"a": one.clone()}) is None
    assert differing_tensor({"a": one}, {}) == "a, which one of them hasn't"
