"""A run opened: one input gives one result, figures are those of the command, what was written down is read."""

import math
from pathlib import Path

import pytest

import vaak
from vaak.config.metrics import in_words
from vaak.report.charts import draw_histories
from vaak.runs.evaluate import evaluate_run


@pytest.fixture(scope="module")
def run(tiny_run):
    return vaak.open(str(tiny_run), device="cpu")


def test_what_it_has(run, tiny_run):
    assert run.directory == tiny_run
    assert run.config.model.d_model == 32
    assert run.tokenizer.encode("वह")
    assert not run.model.training
    assert "TrainedRun(" in repr(run)
    assert "val_loss" in repr(run)


def test_one_text_gives_one_a_list_gives_a_list(run):
    settings = run.task.sampling(max_new_tokens=3, temperature=0)
    one = run.predict("वह घर", settings=settings)
    assert isinstance(one, str)
    assert one.startswith("वह घर")
    assert run.predict(["वह घर", "राम"], settings=settings) == [one, run.predict("राम", settings=settings)]
    assert run.predict(iter(["वह घर"]), settings=settings) == [one]


def test_figures_are_those_of_the_command(run, tiny_run, tiny_text):
    overrides = ["training.device=cpu"]
    expected = evaluate_run(tiny_run, [], overrides, ["test"], "cpu")["metrics"]
    assert run.evaluate("test") == expected
    texts = (tiny_text / "test.txt").read_text().splitlines()
    of_texts = run.evaluate(texts)
    assert of_texts == {name.removeprefix("test_"): value for name, value in expected.items()}
    assert run.evaluate(run.task.dataset("test")) == of_texts
    with pytest.raises(vaak.UserError, match="evaluated on texts, not on a int"):
        run.evaluate([1])
    with pytest.raises(vaak.UserError, match="unknown split 'nothing'"):
        run.evaluate("nothing")


def test_options_go_over_the_runs_own(tiny_run):
    assert vaak.open(tiny_run, data={"stride": 7}).config.data.stride == 7
    with pytest.raises(vaak.UserError, match=r"model.d_model is 16, but the run was trained with 32"):
        vaak.open(tiny_run, model={"d_model": 16})
    with pytest.raises(vaak.UserError, match="is a run of lm: leave task out"):
        vaak.open(tiny_run, task=vaak.Task)


def test_what_was_written_down(run):
    kinds = {record["kind"] for record in run.history()}
    assert {"step", "evaluation", "epoch"} >= {"step", "evaluation"}
    assert {"step", "evaluation"} <= kinds
    assert [record["step"] for record in run.history("step")] == list(range(1, 9))
    assert run.metrics["val_loss"] == run.history("evaluation")[-1]["val_loss"]


@pytest.mark.slow
def test_a_picture(run, tmp_path):
    figure = run.plot(str(tmp_path / "run.png"))
    assert (tmp_path / "run.png").stat().st_size > 1000
    assert figure._repr_png_().startswith(b"\x89PNG")  # what a notebook shows
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["loss", "learning_rate"]
    assert [line.get_label() for line in figure.axes[0].lines] == ["train", "valid"]
    assert draw_histories({"": []}, "empty").axes == []
    with pytest.raises(vaak.UserError, match="can't be written"):
        run.plot(tmp_path / "none" / "run.png")


def test_numbers_that_are_none_are_read_as_such(run, tmp_path, monkeypatch):
    (tmp_path / "metrics.jsonl").write_text('{"kind": "step", "step": 1, "loss": "nan", "note": "text"}\n')
    monkeypatch.setattr(run, "directory", Path(tmp_path))
    (record,) = run.history()
    assert math.isnan(record["loss"])
    assert record["note"] == "text"
    assert run.metrics == {}


def test_a_notebook_shows_tables_and_pandas_takes_the_history(tiny_run: Path):
    pandas = pytest.importorskip("pandas")
    run = vaak.open(tiny_run)
    steps = run.history("step")
    frame = pandas.DataFrame(steps.table())
    assert frame["loss"].tolist() == [record["loss"] for record in steps]
    assert "clock.seconds" in frame.columns
    assert len(pandas.DataFrame(run.history().table())) == len(run.history()), "records of several kinds, too"
    shown = run._repr_html_()
    assert "<td>val_loss</td>" in shown
    assert str(tiny_run) in shown
    assert steps._repr_html_().count("<tr>") == 1 + min(10, len(steps))
    assert type(steps)()._repr_html_() == "<p>no records</p>"
    assert "&lt;script&gt;" in type(run.metrics)({"<script>": 1.0})._repr_html_()
    assert in_words("pairs_accuracy", 0.5) in type(run.metrics)({"val_pairs_accuracy": 0.7})._repr_html_()
