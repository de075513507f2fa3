"""A warm-up longer than training: refused before anything is prepared, or shortened where it is a recipe's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny_diarizer
import tiny_runs
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.core.errors import UserError
from vaak.engine.forecast import steps_at_most
from vaak.engine.metrics_file import read_records
from vaak.engine.trainer import Trainer
from vaak.runs.start import train

RECIPE = "training: {epochs: 2, scheduler: {type: cosine, warmup_steps: 1000}, max_steps: null}\n"


@pytest.fixture
def corpus(tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    tiny_runs.write_corpus(tmp_path)
    return tmp_path


def test_ones_own_is_refused_before_the_corpus_is_prepared(corpus, vaak):
    (corpus / "own.yml").write_text("extends: tiny.yml\n" + RECIPE)
    code, _, errors = vaak("train", "own.yml", "run_dir=run")
    assert code == 2
    line = errors.strip().splitlines()[-1]
    assert "training.scheduler.warmup_steps is 1000, but training has at most " in line
    assert "examples, 2 epochs)" in line
    assert not (corpus / "run" / "prepared").exists()


@pytest.mark.slow
def test_that_of_a_recipe_is_shortened_for_other_data(corpus):
    (corpus / "recipe.yml").write_text("extends: tiny.yml\n" + RECIPE)
    (corpus / "mine.yml").write_text(f"extends: recipe.yml\ndata: {{corpus: {{train: ['{corpus}/train.txt']}}}}\n")
    outcome = train(load(["mine.yml"], ["run_dir=run"]))
    steps = [record for record in read_records(Path("run/metrics.jsonl")) if record["kind"] == "step"]
    warmup = outcome.total_steps // 10
    assert 1 < warmup < 1000
    rates = [record["learning_rate"] for record in steps]
    assert rates.index(max(rates)) == warmup - 1
    said = Path("run/train.log").read_text()
    assert (
        said.count(f"warmup_steps is 1000, but training has {outcome.total_steps} steps: it warms up for {warmup}") == 1
    )
    again = load([Path("run/config.yml")]).experiment.training.scheduler
    assert (again.warmup_steps, again.long_warmup) == (1000, "shorten")


def test_what_decides_is_which_layer_is_above_the_other(corpus):
    (corpus / "recipe.yml").write_text("extends: tiny.yml\n" + RECIPE)
    (corpus / "own.yml").write_text("extends: recipe.yml\ntraining: {scheduler: {warmup_steps: 900}}\n")

    def of(*arguments: str) -> str:
        return load([arguments[0]], arguments[1:]).experiment.training.scheduler.long_warmup

    assert of("recipe.yml") == of("recipe.yml", "training.device=cpu") == of("own.yml") == "refuse"
    assert of("recipe.yml", "training.epochs=1") == of("recipe.yml", "data.corpus.valid=[valid.txt]") == "shorten"
    assert of("own.yml", "training.batch_size=2") == "shorten"
    assert of("own.yml", "training.batch_size=2", "training.scheduler.warmup_steps=9") == "refuse"
    assert of("own.yml", "training.batch_size=2", "training.scheduler.long_warmup=refuse") == "refuse"


def test_a_few_steps_of_a_recipe_need_no_other_warmup(corpus):
    (corpus / "recipe.yml").write_text("extends: tiny.yml\n" + RECIPE)
    assert train(load(["recipe.yml"], ["run_dir=run", "training.max_steps=5"])).step == 5
    (corpus / "own.yml").write_text("extends: recipe.yml\ntraining: {max_steps: 5, scheduler: {warmup_steps: 9}}\n")
    with pytest.raises(UserError, match="is 9, but training ends after 5 steps"):
        load(["own.yml"])


@pytest.mark.parametrize(
    "options",
    [
        ["data.max_length=16", "data.stride=4"],
        ["data.max_length=16", "data.layout=stream"],
        ["training.batching={type: packed}"],
        ["training.batching={type: bucketed, max_tokens: 200}", "training.gradient_accumulation_steps=3"],
        ["data.tokenizer={type: character, vocab_size: 300}"],
        ["data.tokenizer={type: word, vocab_size: 300}"],
    ],
    ids=str,
)
def test_it_is_at_least_the_steps_that_training_has(corpus, options):
    options = [*options, "training.max_steps=null", "training.epochs=3", "run_dir=run"]
    given = load(["tiny.yml"], options)
    task = task_class("lm")(given.experiment, Path("run"), given.folder)
    found = steps_at_most(task, given.experiment.training)
    assert found is not None
    assert found.complete
    assert not Path("run").exists()
    Path("run").mkdir()
    task.prepare()
    trainer = Trainer(task, given.experiment.training, Path("run"))
    assert len(trainer.data.dataset.lengths) <= found.examples
    assert trainer.total_steps <= found.steps < 40 * trainer.total_steps


BUDGETS = (
    ["training.batching={type: bucketed, max_tokens: 640}"],
    ["training.batching={type: bucketed, max_tokens: 64, num_buckets: 2}", "training.gradient_accumulation_steps=2"],
    ["training.batching={type: bucketed, num_buckets: 3}"],
)


@pytest.mark.parametrize("options", BUDGETS, ids=str)
def test_where_batches_are_of_tokens_the_longest_examples_decide(corpus, options, vaak):
    """A full batch has at least as many rows as fit of the longest: far fewer steps than one for each example."""
    options = [*options, "data.max_length=32", "training.max_steps=null", "training.epochs=3", "run_dir=run"]
    given = load(["tiny.yml"], options)
    task = task_class("lm")(given.experiment, Path("run"), given.folder)
    found = steps_at_most(task, given.experiment.training)
    assert found is not None
    Path("run").mkdir()
    task.prepare()
    trainer = Trainer(task, given.experiment.training, Path("run"))
    assert trainer.data.dataset.lengths.max() <= task.longest_example()
    accumulation = given.experiment.training.gradient_accumulation_steps
    assert trainer.total_steps <= found.steps < 3 * found.examples / accumulation
    too_long = f"training.scheduler={{type: cosine, warmup_steps: {found.steps + 1}}}"
    code, _, errors = vaak("config", "check", "tiny.yml", *options, too_long, "--data")
    assert code == 2
    assert f"is {found.steps + 1}, but training has at most {found.steps} steps" in errors


def test_what_cannot_be_known_yet_is_said(corpus, vaak):
    """Without the data, and with them where they leave it open; not where the steps are given, or few."""
    ours = ("tiny.yml", "training.max_steps=null", "training.epochs=3")
    warmup = "training.scheduler={type: cosine, warmup_steps: 5}"
    whether = "not known yet: whether training has the 5 steps of its warm-up"
    assert f"{whether} (--data reads what it trains on)\n" in vaak("config", "check", *ours, warmup)[1]
    assert f"{whether} is known once the data are prepared\n" in vaak("config", "check", *ours, warmup, "--data")[1]
    code, said, _ = vaak("config", "check", *ours, warmup, "--json")
    assert (code, json.loads(said)["unknown"]) == (
        0,
        whether.removeprefix("not known yet: ") + " (--data reads what it trains on)",
    )
    for known in (("training.max_steps=20", warmup), ("training.scheduler.long_warmup=shorten", warmup), ()):
        assert "not known yet" not in vaak("config", "check", *ours, *known)[1]


def test_of_recordings_it_is_of_their_windows(tmp_path, monkeypatch, vaak):
    monkeypatch.chdir(tmp_path)
    tiny_diarizer.write_corpus(tmp_path)
    three = "training.max_steps=null", "training.epochs=3", "run_dir=run"
    code, said, _ = vaak("config", "check", "tiny.yml", *three, "--data", "--json")
    assert code == 0
    about = json.loads(said)
    seconds, window = tiny_diarizer.SECONDS * tiny_diarizer.SIZES["train"], 6.0
    assert 3 * seconds / window / 8 <= about["steps_at_most"] <= 3 * (seconds / window / 8 + 2)
    (tmp_path / "own.yml").write_text(
        "extends: tiny.yml\ntraining: {epochs: 3, max_steps: null, scheduler: {type: cosine, warmup_steps: 1000}}\n"
    )
    assert vaak("config", "check", "own.yml")[0] == 0
    code, _, errors = vaak("config", "check", "own.yml", "--data")
    assert code == 2
    assert "training.scheduler.warmup_steps is 1000, but training has at most" in errors
