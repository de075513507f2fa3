"""A past step computed again: the same batch, loss, gradient and weights to the bit, and a run left unchanged."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_runs
from toy import StopAt
from vaak.config.load import load
from vaak.core.batch import Batch, Term
from vaak.core.errors import NonFiniteError, UserError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint.files import load_checkpoint, step_folder
from vaak.engine.metrics_file import read_records
from vaak.runs.replay import replay_step
from vaak.runs.start import train as train_run
from vaak.tasks.lm.data import TextDataset
from vaak.tasks.lm.task import LanguageModelTask

Vaak = Callable[..., tuple[int, str, str]]

FOUR_STEPS_AN_EPOCH = (
    "training.batch_size=32",
    "training.gradient_accumulation_steps=3",
    "training.checkpoint.interval=1",
    "training.checkpoint.save_total_limit=null",
    "training.logging.interval=2",
)
PLATEAU = (
    "training.scheduler={type: plateau, patience: 0, factor: 0.5, mode: max}",
    "training.validation.interval=1",
)


def without(run: Path, *steps: int) -> Path:
    """The run without the checkpoints of some steps."""
    for step in steps:
        shutil.rmtree(run / "checkpoints" / step_folder(step))
    return run


def record_of(run: Path, step: int) -> dict[str, Any]:
    records = read_records(run / "metrics.jsonl")
    return next(record for record in records if (record["kind"], record["step"]) == ("step", step))


def replayed(run: Path, step: int, **options: Any) -> dict[str, Any]:
    """A replay, which leaves the run unchanged."""
    before = tiny_runs.hashes(run)
    found = replay_step(run, step, **options)
    assert tiny_runs.hashes(run) == before
    return found


def assert_the_same(run: Path, found: dict[str, Any], begun_at: int) -> None:
    """A replay agrees with all that the run logged of its steps, and with its weights."""
    step, agreement = found["step"], found["agreement"]
    assert agreement["begun_at"] == begun_at
    assert found["from"] == (str(run / "checkpoints" / step_folder(begun_at)) if begun_at else None)
    assert agreement["differences"] == []
    assert agreement["conditions"] == []
    assert agreement["same_weights"] is True
    logged = [record for record in read_records(run / "metrics.jsonl") if begun_at < record["step"] <= step]
    assert agreement["same"] >= 4 * sum(record["kind"] == "step" for record in logged)
    if any((record["kind"], record["step"]) == ("step", step) for record in logged):
        assert found["gradient_norm"] == record_of(run, step)["gradient_norm"]


@pytest.fixture(scope="module")
def run(tiny_text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight steps over two epochs, with dropout, token dropout, accumulation and a rate that evaluations change."""
    run = tmp_path_factory.mktemp("replay") / "run"
    tiny_runs.train(tiny_text, run, *FOUR_STEPS_AN_EPOCH, *PLATEAU)
    return run


@pytest.mark.parametrize(("step", "debug"), [(1, False), (3, True), (8, False)])
def test_a_step_beside_its_checkpoint(run: Path, step: int, debug: bool):
    assert_the_same(run, replayed(run, step, debug=debug), begun_at=step - 1)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_steps_over_an_epochs_end_and_evaluations_that_change_the_rate(
    workers: int, tiny_text: Path, tmp_path: Path, run: Path
):
    other = tmp_path / "run"
    tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH, *PLATEAU, f"training.performance.num_workers={workers}")
    found = replayed(without(other, 3, 4, 5, 6), 7)
    assert_the_same(other, found, begun_at=2)
    assert (found["epoch"], len(found["microbatches"])) == (1, 3)
    rates = [record["learning_rate"] for record in read_records(other / "metrics.jsonl") if record["kind"] == "step"]
    assert len(set(rates)) > 2
    assert found["learning_rate"] < rates[0]


def test_from_the_beginning(run: Path, tmp_path: Path):
    copy = shutil.copytree(run, tmp_path / "run")
    assert_the_same(copy, replayed(without(copy, 1, 2, 3, 4, 5), 6), begun_at=0)


@pytest.mark.slow
def test_a_run_that_began_with_other_weights(run: Path, tiny_text: Path, tmp_path: Path):
    other = tmp_path / "run"
    tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH, f"training.checkpoint.init_from={run}")
    assert_the_same(other, replayed(without(other, 1, 2), 3), begun_at=0)
    third = tmp_path / "third"
    shutil.copytree(run / "prepared", third / "prepared")
    last = run / "checkpoints" / step_folder(6)
    tiny_runs.train(tiny_text, third, *FOUR_STEPS_AN_EPOCH, *PLATEAU, f"training.checkpoint.resume={last}")
    found = replayed(without(third, 6, 7), 8)  # it has a separate checkpoint where it resumed
    assert (found["from"], found["agreement"]["begun_at"]) == (str(last), 6)
    assert (found["agreement"]["differences"], found["agreement"]["same_weights"]) == ([], True)
    with pytest.raises(UserError, match="its first step is 7"):
        replay_step(third, 3)


@pytest.mark.slow
def test_the_log_of_a_run_that_went_on_is_compared_as_it_was_written(tiny_text: Path, tmp_path: Path):
    other = tmp_path / "run"
    tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH, "training.max_steps=3")  # logs the last step, 3, too
    resumed = ("training.max_steps=8", "training.checkpoint.resume=auto", "training.logging.interval=3")
    tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH[:-1], *resumed)
    assert_the_same(other, replayed(without(other, 1, 2, 4, 5), 6), begun_at=3)
    with pytest.raises(UserError, match=r"resumed after it with other options \(training\.max_steps was 3, is 8\)"):
        replay_step(without(other, 3), 6)


@pytest.mark.slow
def test_a_run_that_went_on_with_another_log_is_followed_over_the_resume(tiny_text: Path, tmp_path: Path):
    other = tmp_path / "run"
    train_run(tiny_runs.loaded(tiny_text, other, *FOUR_STEPS_AN_EPOCH), (StopAt(3),))
    resumed = ("training.checkpoint.resume=auto", "training.logging.interval=3")
    tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH[:-1], *resumed)
    assert_the_same(other, replayed(without(other, 1, 2, 3, 4, 5), 6), begun_at=0)


def test_what_is_shown(run: Path):
    found = replayed(run, 2)
    assert [microbatch["number"] for microbatch in found["microbatches"]] == [0, 1, 2]
    rows = [row for microbatch in found["microbatches"] for row in microbatch["rows"]]
    assert len(rows) == 96
    for row in rows:
        (example,) = row["examples"]
        assert example["description"].startswith(f"document {example['index']} of ")
        assert row["shown"]
    assert sum(row["length"] for row in rows) == found["counts"]["token"]
    assert found["units"] == {"cross_entropy": "token"}
    assert found["loss"] == found["losses"]["cross_entropy"]
    assert (found["clip_factor"], found["skipped"], found["non_finite"]) == (1.0, None, None)
    assert not {"pieces", "parameters"} & found.keys()
    json.dumps(found, allow_nan=False)


def test_debugging_shows_modules_gradients_and_updates(run: Path):
    found = replayed(run, 2, debug=True)
    assert [(chunk["microbatch"], chunk["piece"]) for chunk in found["pieces"]] == [(0, 0), (1, 0), (2, 0)]
    tokens = [sum(row["length"] for row in microbatch["rows"]) for microbatch in found["microbatches"]]
    means = [chunk["losses"]["cross_entropy"] for chunk in found["pieces"]]
    whole = sum(mean * count for mean, count in zip(means, tokens, strict=True)) / sum(tokens)
    assert whole == pytest.approx(found["loss"])
    assert found["pieces"][0]["modules"][-1]["kind"] == "LanguageModel"
    gradient = math.hypot(*(parameter["gradient_norm"] for parameter in found["parameters"]))
    assert gradient == pytest.approx(found["gradient_norm"])
    now = load_checkpoint(run / "checkpoints" / step_folder(2)).model
    before = load_checkpoint(run / "checkpoints" / step_folder(1)).model
    for parameter in found["parameters"]:
        update = now[parameter["name"]] - before[parameter["name"]]
        assert parameter["update_norm"] == pytest.approx(float(update.norm()))


def test_examples_that_were_skipped_once_stay_skipped(
    tiny_text: Path, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
):
    bad = replay_step(run, 2)["microbatches"][1]["rows"][5]["examples"][0]["index"]
    read = TextDataset.example

    def torn(self: TextDataset, index: int, rng: Any) -> Any:
        if index == bad:
            raise OSError("the file is torn")
        return read(self, index, rng)

    other = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(TextDataset, "example", torn)
        tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH, "data.on_bad_example=skip")
    found = replayed(without(other, 1), 2)  # now it could be read
    assert_the_same(other, found, begun_at=0)
    assert [skip["index"] for skip in found["microbatches"][1]["skipped"]] == [bad]
    assert len(found["microbatches"][1]["rows"]) == 31


class CutAt(Callback):
    """Asks for finer chunks after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, trainer: Any, report: StepReport) -> None:
        if report.step == self.step:
            trainer.split_microbatches("memory is short")


def test_batches_that_were_split_into_chunks_are_split_again(tiny_text: Path, tmp_path: Path):
    other = tmp_path / "run"
    train_run(tiny_runs.loaded(tiny_text, other, *FOUR_STEPS_AN_EPOCH), (CutAt(2),))
    found = replayed(without(other, 1, 2, 3, 4), 5, debug=True)
    assert_the_same(other, found, begun_at=0)
    cut = json.loads((other / "splits.jsonl").read_text())[
        "cut"
    ]  # for microbatches as large as the one it was asked at
    lengths = [[row["length"] for row in microbatch["rows"]] for microbatch in found["microbatches"]]
    chunks = [2 if len(rows) * max(rows) >= cut["cells"] else 1 for rows in lengths]
    assert [microbatch["pieces"] for microbatch in found["microbatches"]] == chunks
    assert len(found["pieces"]) == sum(chunks) > 3
    (other / "splits.jsonl").unlink()
    found = replay_step(other, 5)
    assert found["agreement"]["differences"]  # so the journal is what it follows
    assert found["agreement"]["same_weights"] is False


@pytest.fixture
def nan_of_one(run: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Gives every loss of one example, which is in the third step of the first epoch, as NaN."""
    bad: int = replay_step(run, 3)["microbatches"][1]["rows"][7]["examples"][0]["index"]
    losses = LanguageModelTask.losses

    def planted(self: LanguageModelTask, model: Any, batch: Batch) -> dict[str, Term]:
        terms = losses(self, model, batch)
        if [bad] in batch.indices:
            terms = {name: Term(term.total * math.nan, term.per) for name, term in terms.items()}
        return terms

    monkeypatch.setattr(LanguageModelTask, "losses", planted)
    return bad


@pytest.mark.slow
def test_a_step_that_is_not_finite_is_shown(nan_of_one: int, tiny_text: Path, tmp_path: Path, vaak: Vaak):
    other = tmp_path / "run"
    with pytest.raises(NonFiniteError, match=rf"step 3: the loss cross_entropy .* example {nan_of_one} \(document"):
        tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH)
    assert replayed(other, 2)["skipped"] is None
    for debug in (False, True):
        found = replayed(other, 3, debug=debug)
        assert (found["skipped"], found["loss"]) == ("non_finite", "nan")
        assert found["non_finite"]["kind"] == "loss"
        assert [example["index"] for example in found["non_finite"]["examples"]] == [nan_of_one]
        assert found["agreement"]["conditions"] == []
    written = json.loads((other / "non_finite" / "step-00000003.json").read_text())
    assert written == found["non_finite"]
    code, out, err = vaak("replay", other, "--step", 3, "--debug")
    assert (code, err) == (0, "")
    assert "not finite first: loss\n  loss cross_entropy\n  microbatch 1, example" in out
    code, _, err = vaak("replay", other, "--step", 4)
    assert code == 2
    assert "has not reached step 4; the last that can be replayed is 3" in err


@pytest.mark.slow
def test_steps_taken_in_fp32_are_so_again(tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    losses = LanguageModelTask.losses

    def overflowing(self: LanguageModelTask, model: Any, batch: Batch) -> dict[str, Term]:
        terms = losses(self, model, batch)
        fails = torch.is_autocast_enabled("cpu") and model.training and min(map(min, batch.indices)) % 3 == 0
        return {name: Term(term.total * (math.inf if fails else 1.0), term.per) for name, term in terms.items()}

    monkeypatch.setattr(LanguageModelTask, "losses", overflowing)
    other = tmp_path / "run"
    options = ("training.mixed_precision=bf16", "training.fp32_fallback=2")
    tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH, *options)
    failures = {step: state_of(other, step)["precision"]["failures"] for step in range(1, 9)}
    last = min(step for step, number in failures.items() if number == 2)
    assert set(failures.values()) <= {0, 1, 2}
    assert 1 < last < 8, failures
    for step in (last, last + 1):
        assert_the_same(other, replayed(other, step, debug=True), begun_at=step - 1)
    assert_the_same(other, replayed(without(other, *range(1, 8)), 8), begun_at=0)


def state_of(run: Path, step: int) -> dict[str, Any]:
    return load_checkpoint(run / "checkpoints" / step_folder(step)).state


@pytest.mark.slow
@pytest.mark.usefixtures("nan_of_one")
def test_a_run_that_skipped_such_a_step_is_followed(tiny_text: Path, tmp_path: Path):
    other = tmp_path / "run"
    tiny_runs.train(tiny_text, other, *FOUR_STEPS_AN_EPOCH, "training.non_finite.max_skipped=2")
    found = replayed(without(other, 2, 3, 4), 5)
    assert_the_same(other, found, begun_at=1)
    assert found["skipped"] is None


def test_what_differs_is_said(run: Path, tmp_path: Path, vaak: Vaak):
    copy = shutil.copytree(run, tmp_path / "run")
    before = record_of(copy, 4)["gradient_norm"]
    log = copy / "metrics.jsonl"
    log.write_text(log.read_text().replace(f'"gradient_norm": {before}', '"gradient_norm": 0.5'))
    sessions = copy / "sessions.jsonl"
    sessions.write_text(
        sessions.read_text().replace(f'"torch": "{torch.__version__}", "numpy"', '"torch": "1.0", "numpy"')
    )
    without(copy, 3)
    agreement = replayed(copy, 4)["agreement"]
    assert agreement["differences"] == [{"step": 4, "name": "gradient_norm", "then": 0.5, "now": before}]
    assert len(agreement["conditions"]) == 1
    assert agreement["conditions"][0].startswith("torch: 1.0 then, ")
    out = vaak("replay", copy, "--step", 4)[1]
    assert f"  step 4 gradient_norm: 0.5 then, {before} now\n" in out
    assert "different here: torch: 1.0 then, " in out


def test_a_damaged_checkpoint_is_passed_over_and_left_where_it_is(
    run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    copy = shutil.copytree(run, tmp_path / "run")
    model = copy / "checkpoints" / step_folder(5) / "model.safetensors"
    model.write_bytes(model.read_bytes()[:-1])
    assert_the_same(copy, replayed(copy, 6), begun_at=4)
    assert "step-00000005 is damaged" in caplog.text


def test_the_command(run: Path, tmp_path: Path, vaak: Vaak):
    code, out, err = vaak("replay", run, "--step", 4, "--output-dir", tmp_path / "new" / "folder")
    assert (code, err) == (0, "")
    assert out.startswith(f"step 4 of {run}, replayed from {run / 'checkpoints' / step_folder(3)}, epoch 0\n")
    assert "microbatch 0: 12 rows\n  example " in out  # the last step of an epoch has what is left
    assert "logged values between step 3 and 4 are equal to the bit\n" in out
    assert "the weights after it are equal to those of the run's checkpoint, compared bit by bit\n" in out
    written = json.loads((tmp_path / "new" / "folder" / "replay.json").read_text())
    code, out, _ = vaak("replay", run, "--step", 4, "--json")
    assert code == 0
    printed = json.loads(out)
    assert {**printed, "seconds": 0} == {**written, "seconds": 0}
    code, out, _ = vaak("replay", run, "--step", 4, "--debug")
    assert code == 0
    assert "stack.blocks.0.attention.query" in out
    assert "largest updates, relative to the weights:" in out


def test_mistakes_are_one_line(run: Path, tmp_path: Path, vaak: Vaak):
    def refused(*arguments: object) -> str:
        code, out, err = vaak("replay", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1), err
        return err

    assert "is not a run directory, nor inside one" in refused(tmp_path, "--step", 1)
    assert "has not reached step 9; the last that can be replayed is 8" in refused(run, "--step", 9)
    (tmp_path / "file").write_text("")
    assert "can't be created" in refused(run, "--step", 1, "--output-dir", tmp_path / "file")
    begun = tmp_path / "begun"
    begun.mkdir()
    shutil.copyfile(run / "config.yml", begun / "config.yml")
    assert "has not started to train" in refused(begun, "--step", 1)
    (begun / "metrics.jsonl").write_text('7\nnull\n{"step": "x"}\n{"ki')
    assert "no prepared data" in refused(begun, "--step", 1)
    (begun / "config.yml").write_bytes(b"\xff\xfe\x00")
    assert "config.yml" in refused(begun, "--step", 1)
    assert "unknown device 'tpu'" in refused(run, "--step", 1, "--device", "tpu")
    assert vaak("replay", run, "--step", 0)[0] == 2
    assert vaak("replay", run)[0] == 2


LOSS = """\
import torch

class Sum(torch.nn.Module):
    def forward(self, outputs, targets):
        return 0.5 * torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
"""
SETTER = """\
import torch

from vaak.config.training import GradientClippingConfig
from vaak.engine.callback import Callback

class Setting(Callback):
    def configure(self, config):
        return config.model_copy(update={"gradient_clipping": GradientClippingConfig(norm=0.02)})

    def on_evaluate_end(self, trainer, metrics):
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.05 * metrics["val_loss"]
"""
WITH_CODE = """\
extends: tiny.yml
training:
  loss: {main: './mine.py:Sum'}
  callbacks: ['./mine.py:Setting']
"""


def test_a_users_code_is_executed_only_when_trusted(tmp_path: Path):
    tiny_runs.write_corpus(tmp_path)
    (tmp_path / "mine.py").write_text(LOSS + SETTER)
    (tmp_path / "mine.yml").write_text(WITH_CODE)
    other = tmp_path / "run"
    options = (*FOUR_STEPS_AN_EPOCH, "training.validation.interval=2")
    train_run(load([tmp_path / "mine.yml"], [f"run_dir={other}", *options]))
    with pytest.raises(UserError, match="add --trust-code"):
        replay_step(other, 4)
    found = replayed(without(other, 1, 2, 3), 4, trust_code=True)
    assert_the_same(other, found, begun_at=0)
    assert found["clip_factor"] < 1.0
