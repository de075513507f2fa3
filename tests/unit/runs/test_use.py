"""Every command line that a page or a command prints for a run is one that works on that run, for every task."""

from __future__ import annotations

import html
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

import tiny_listener
import vaak.config.tasks as vaak_tasks
import vowels
from vaak.cli.table import imported
from vaak.config.base import Section, option
from vaak.config.load import load
from vaak.config.metrics import get_unit, in_words
from vaak.config.resolved import default_experiment, resolved_values
from vaak.config.tasks import TASKS, ExportFormat, StarterData, TaskPipeline, TaskSpec, load_name
from vaak.core.errors import UserError
from vaak.core.metrics import Metric
from vaak.core.task import TunedOptions, TunedScore
from vaak.pipeline.stage import Pipeline, Stage, StageWork
from vaak.report.html import Html, element
from vaak.report.model_card import AboutExport, model_card
from vaak.report.page import run_page
from vaak.report.run_facts import RunFacts, read_facts
from vaak.runs.start import train
from vaak.runs.use import command_lines

Vaak = Callable[..., tuple[int, str, str]]
SHORT = "{max_steps: 2, batch_size: 4, device: cpu, logging: {tensorboard: false, progress_bar: false}}"
CLASSIFIER = f"""\
task: classification
model: {{architecture: cnn, embed_size: 8, num_filters: 8, filter_sizes: [1, 2]}}
data: {{corpus: {{num_sentences: 200}}, max_length: 20}}
training: {SHORT}
"""
TRANSLATOR = f"""\
task: seq2seq
model: {{global_config: {{d_model: 16, num_layers: 1, num_heads: 2}}}}
data:
  corpus: {{num_sentences: 40}}
  max_source_length: 80
  max_target_length: 80
  decoding: {{valid_examples: 1, max_new_tokens: 9}}
training: {SHORT}
"""
BOTH = f"""\
name: both
tasks: {{word: classifier.yml, pair: translator.yml}}
training: {SHORT}
"""


def parse(line: str) -> None:
    """Read a command line by the command's own parser. Raises its error for what the command doesn't have."""
    program, name, *arguments = shlex.split(line)
    assert program == "vaak"
    imported(name).make_context(name, arguments)


@pytest.mark.parametrize("task", TASKS)
def test_what_a_task_declares_are_commands_and_options_that_exist(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, run = TASKS[task], tmp_path / "a run"
    for folder in (run, Path("TTS_RUN")):  # a command looks for its run first
        folder.mkdir()
        (folder / "config.yml").touch()
    options = resolved_values(default_experiment(task, "name", str(run)))
    lines = command_lines(spec, options, run, splits=("valid", "test"), formats=[*spec.exports])
    assert f"vaak eval '{run}' --split test" in lines
    assert lines[-1] == f"vaak export '{run}' --format {next(iter(spec.exports))}"
    for line in lines:
        parse(line)
    with pytest.raises(Exception, match="No such option"):
        parse(f"{lines[0]} --no-such-option")


@pytest.mark.parametrize("task", TASKS)
def test_the_formats_that_a_task_declares_are_those_that_it_writes(task: str) -> None:
    spec = TASKS[task]
    classes = [load_name(str(reference)) for reference in (spec.task, *spec.task_where.values())]
    methods = {name for one in classes for name in dir(one) if name.startswith("export_")}
    assert {f"export_{name.replace('-', '_')}" for name in spec.exports} == methods


def test_an_evaluation_is_of_the_split_that_there_is_and_a_name_that_no_format_has_is_left_out(tmp_path: Path) -> None:
    spec, options = TASKS["lm"], {"model": {"model_type": "encoder"}}
    assert command_lines(spec, options, tmp_path, splits=["valid"], formats=["hf; rm"]) == [f"vaak eval {tmp_path}"]
    assert command_lines(spec, options, tmp_path, splits=[], formats=["onnx"]) == [
        f"vaak export {tmp_path} --format onnx"
    ]


def lines_on_page(run: Path) -> list[str]:
    """The command lines on the page of a run, to be used as they are."""
    blocks = re.findall(r"<pre[^>]*>(.*?)</pre>", run_page(read_facts(run)), re.DOTALL)
    text = html.unescape("\n".join(re.sub("<[^>]*>", "", block) for block in blocks))
    return re.findall(r"^vaak (?!train).*$", text, re.MULTILINE)


def train_text(folder: Path, text: str, *overrides: str) -> Path:
    (folder / "classifier.yml").write_text(CLASSIFIER)
    (folder / "translator.yml").write_text(TRANSLATOR)
    (folder / "run.yml").write_text(text)
    train(load([folder / "run.yml"], [f"run_dir={folder / 'run'}", *overrides]))
    return folder / "run"


def train_recogniser(folder: Path) -> Path:
    corpus = folder / "corpus"
    corpus.mkdir()
    tiny_listener.write_listener(corpus)
    sizes = {"d_model": 16, "num_layers": 1, "num_heads": 2, "kernel_size": 3}
    options = tiny_listener.sections(str(corpus), model={"architecture": "ctc", "conformer": sizes})

    return train_text(
        folder, json.dumps({"task": "asr", **options, "training": {"max_steps": 2, "batch_size": 2, "device": "cpu"}})
    )


@pytest.fixture
def run_of_task(task: str, request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A tiny run of a task, which may be written to."""
    texts = {"classification": CLASSIFIER, "seq2seq": TRANSLATOR, "multitask": BOTH}
    if task in texts:
        return train_text(tmp_path, texts[task])
    if task == "asr":
        return train_recogniser(tmp_path)
    fixture = {"lm": "tiny_run", "diarization": "diarizer_run", "tts": "voice_run", "vocoder": "vocoder_run"}[task]
    return shutil.copytree(request.getfixturevalue(fixture), tmp_path / "run", symlinks=True)


def runs_all(vaak: Vaak, run: Path, substitutes: dict[str, str]) -> list[str]:
    """Run each line of a run's page, with real inputs in place of names that stand for them; return the commands."""
    lines = lines_on_page(run)
    for line in lines:
        words = [substitutes.get(word, word) for word in shlex.split(line)]
        code, _, err = vaak(*words[1:])
        assert code == 0, (line, err)
    return [line.split()[1] for line in lines]


def test_the_page_of_a_classifier_names_a_format_that_it_has(tmp_path: Path) -> None:
    """``export --format hf`` was printed, which is refused."""
    run = train_text(tmp_path, CLASSIFIER)
    assert [line.removeprefix("vaak ").replace(str(run), "RUN") for line in lines_on_page(run)] == [
        "eval RUN --split test",
        'classify RUN "…"',
        "export RUN --format onnx",
        "verify RUN",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_each_line_on_the_page_of_a_run_works(
    task: str,
    run_of_task: Path,
    vaak: Vaak,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    recording = next(iter([*tmp_path.rglob("*.wav"), *request.getfixturevalue("made_recordings").rglob("*.wav")]), "")
    substitutes = {"recording.wav": str(recording), "…": "one"}
    if task == "vocoder":
        substitutes["TTS_RUN"] = str(request.getfixturevalue("voice_run"))
    found = runs_all(vaak, run_of_task, substitutes)
    assert {"eval", "verify", "export"} <= {*found}
    assert len(found) > 3


def fill_sorter(corpora: Sequence[Any], amounts: Any, device: Any) -> dict[str, Any]:
    return {"data": {"num_words": amounts.examples}, "training": {"max_steps": 2}}


def write_words(folder: Path) -> None:
    (folder / "train.txt").write_text("one\ntwo\nthree\n")


class RightLetters(vowels.VowelMeters):
    """Gives a metric that no task of Vaak's has."""

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        found = super().results(sums)
        return {"loss": found["loss"], "right_letters": found["accuracy"]}


class ReadingConfig(Section):
    """How words are read."""

    pause: float = option("Seconds between two words.", 0.5)


class SorterDataConfig(vowels.VowelDataConfig):
    reading: ReadingConfig = ReadingConfig()


class Sorter(vowels.VowelTask):
    """A task of another package: it has commands, a format and a tag of its own."""

    SPEC = TaskSpec(
        model=vowels.VowelTask.SPEC.model,
        data=SorterDataConfig,
        defaults=vowels.VowelTask.SPEC.defaults,
        commands=lambda get: ("predict {run} aeiou", "eval {run}"),
        exports={
            "width": ExportFormat("sorters", lambda exported: f'print(open("{exported.name}/width.txt").read())'),
            "table": ExportFormat("sorters"),
        },
        hub_tag="token-classification",
        metrics=lambda experiment: ("val_loss",),
        starter=f"{__name__}:fill_sorter",
        example=f"{__name__}:write_words",
        own_metrics=(Metric("right_letters", percent=True, higher=True), Metric("dither_ms", unit="ms")),
        starter_data=StarterData("texts", "texts without labels", usual_for="texts"),
        drawings={"letters": f"{__name__}:draw_letters"},
        sections=(f"{__name__}:show_letters",),
        uses={"translate": (), "tune": ("name=tunable",), "predict --embeddings": ()},
        pipelines={"sort-letters": TaskPipeline(f"{__name__}:SORTING", shown="learn/run")},
    )

    def meters(self, split: str) -> Any:
        return RightLetters(split)

    def decoding(self, **options: Any) -> None:
        raise UserError("a sorter is asked for its decoding")

    def tune(self, model: Any, split: str = "valid") -> TunedOptions:
        before, after = (TunedScore(f"{share} wrong", f"{share} wrong of 4", {"wrong": share}) for share in (3, 1))
        return TunedOptions("data.reading", {"pause": 0.25}, 4, "words", before, after)

    def embed(self, model: Any, texts: Iterable[str], batch_size: int | None) -> Iterator[tuple[str, list[float]]]:
        yield from ((text, [float(len(text))]) for text in texts)

    def refused_exports(self) -> dict[str, str]:
        return {"table": "this sorter has no table"}

    def export_width(self, model: Any, folder: Path) -> None:
        folder.mkdir()
        (folder / "width.txt").write_text(str(self.experiment.model.width))


class SortingOptions(Section):
    max_steps: int = option("Steps of training.", 2)


def learn(work: StageWork) -> None:
    """Train a sorter, as the only stage of its pipeline."""
    short = {"max_steps": work.options.max_steps, "batch_size": 4, "device": "cpu"}
    work.train({"task": "sorter", "training": {**short, "logging": {"tensorboard": False, "progress_bar": False}}})


SORTING = Pipeline(
    "sort-letters",
    "Sort letters.",
    SortingOptions,
    (Stage("learn", learn, "A sorter is trained.", options=("max_steps",), outputs=("run/checkpoints",)),),
)


def show_letters(facts: RunFacts) -> Iterator[Html]:
    yield element("p", f"letters of {facts.name}")


def draw_letters(folders: Sequence[Path], path: Path) -> None:
    path.write_text(f"letters of {len(folders)}")


@pytest.fixture
def installed_sorter(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A task ``sorter``, as a package offers it, whatever an earlier test found installed."""
    point = EntryPoint("sorter", f"{__name__}:Sorter", "vaak.tasks")
    monkeypatch.setattr(EntryPoint, "load", lambda self: Sorter)
    monkeypatch.setattr(vaak_tasks, "installed", lambda: {"sorter": point})
    _forget_what_is_installed()
    yield
    _forget_what_is_installed()


def _forget_what_is_installed() -> None:
    vaak_tasks._CACHED_SPECS.pop("sorter", None)
    for cached in (vaak_tasks.explain_unusable, vaak_tasks.usable):
        cached.cache_clear()


def test_an_installed_task_is_seen_after_all_tasks_were_listed(request: pytest.FixtureRequest) -> None:
    """By a test before it, or where pytest collects what is parametrized by TASKS."""
    assert "sorter" not in list(TASKS)
    request.getfixturevalue("installed_sorter")
    assert "sorter" in list(TASKS)


@pytest.mark.usefixtures("installed_sorter")
def test_an_installed_task_has_all_that_vaaks_own_have(vaak: Vaak, tmp_path: Path) -> None:
    (tmp_path / "sorter.yml").write_text(f"task: sorter\nname: sorter\ntraining: {SHORT}\n")
    run = tmp_path / "run"
    code, out, err = vaak("train", tmp_path / "sorter.yml", f"run_dir={run}")
    assert code == 0, err
    expected = [f"vaak predict {run} aeiou", f"vaak eval {run}", f"vaak export {run} --format width"]
    printed = [line.strip() for line in out.partition("\nnext\n")[2].splitlines() if "vaak" in line]
    assert [line.removesuffix(" --split test") for line in printed] == expected
    assert [one.split()[1] for one in lines_on_page(run)] == ["predict", "eval", "export", "verify"]
    assert "<p>letters of sorter</p>" in run_page(read_facts(run))
    assert vaak("translate", run, "a")[::2] == (2, "a sorter is asked for its decoding\n")
    assert "vaak speak requires a run of task tts" in vaak("speak", run, "a", "--output", tmp_path / "a.wav")[2]
    runs_all(vaak, run, {})
    assert (run / "export" / "width" / "width.txt").read_text() == "16"
    card = (run / "export" / "width" / "README.md").read_text()
    for said in (
        "library_name: sorters",
        "pipeline_tag: token-classification",
        'print(open("width/width.txt").read())',
    ):
        assert said in card
    code, _, err = vaak("export", run, "--format", "table")
    assert (code, err) == (2, "--format table: this sorter has no table; use --format width\n")


@pytest.mark.usefixtures("installed_sorter")
def test_an_installed_task_brings_its_pipeline_which_runs_and_whose_run_is_reported(vaak: Vaak, tmp_path: Path) -> None:
    """Only Vaak's own pipeline had a name, and only its folder had a report."""
    assert "sort-letters" in vaak("pipeline", "--help")[1]
    code, _, err = vaak("pipeline", "sort-letters", "--output-dir", tmp_path / "sorted")
    assert code == 0, err
    facts = read_facts(tmp_path / "sorted")
    assert (facts.directory, facts.pipeline) == (tmp_path / "sorted" / "learn" / "run", tmp_path / "sorted")
    assert "unknown pipeline sort; expected one of moe-asr, sort-letters, " in vaak("pipeline", "sort")[2]


@pytest.mark.usefixtures("installed_sorter")
def test_an_installed_task_declares_which_of_its_runs_are_tuned(vaak: Vaak, tmp_path: Path) -> None:
    """Only what a diarizer or a recogniser finds could be kept and printed."""
    (tmp_path / "sorter.yml").write_text(f"task: sorter\nname: sorter\ntraining: {SHORT}\n")
    for name in ("tunable", "other"):
        assert vaak("train", tmp_path / "sorter.yml", f"name={name}", f"run_dir={tmp_path / name}")[0] == 0
    code, out, err = vaak("tune", tmp_path / "tunable")
    assert code == 0, err
    assert out.splitlines()[:3] == ["valid: words 4", "before  3 wrong of 4", "after   1 wrong of 4"]
    assert f"{'pause':<17} 0.5 → 0.25" in out
    assert (tmp_path / "tunable" / "tuned.yml").read_text() == (
        "# By vaak tune, on valid (4 words), with step-00000002.\n"
        "# 3 wrong before, 1 wrong with these options.\ndata:\n  reading:\n    pause: 0.25\n"
    )
    found = json.loads(vaak("tune", tmp_path / "tunable", "--json")[1])
    assert (found["words"], found["after"], found["reading"]) == (4, {"wrong": 1}, {"pause": 0.25})
    assert vaak("tune", tmp_path / "other")[::2] == (
        2,
        f"{tmp_path / 'other'} is a run of task sorter with name: other; vaak tune requires a run of task asr with "
        "model.architecture: ctc, or of task diarization, or of task sorter with name: tunable\n",
    )


@pytest.mark.usefixtures("installed_sorter")
def test_an_installed_task_gives_embeddings_and_its_options_that_differ(vaak: Vaak, tmp_path: Path) -> None:
    """Any task with a method of this name was asked; the defaults of tasks from outside Vaak weren't known."""
    (tmp_path / "sorter.yml").write_text(f"task: sorter\nname: sorter\ntraining: {SHORT}\n")
    run = tmp_path / "run"
    assert vaak("train", tmp_path / "sorter.yml", f"run_dir={run}")[0] == 0
    assert vaak("predict", run, "--embeddings", "abc")[1] == '{"text": "abc", "embedding": [3.0]}\n'
    keys = {name for name, _, _ in read_facts(run).changed}
    assert "training.max_steps" in keys
    assert "model.width" not in keys


@pytest.mark.usefixtures("installed_sorter")
def test_init_makes_an_example_and_a_yaml_of_an_installed_task(
    vaak: Vaak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = vaak("init", "sorter", "--example")
    assert code == 0, err
    experiment = load([tmp_path / "sorter.yml"]).experiment
    assert (experiment.task, experiment.data.num_words, experiment.training.max_steps) == ("sorter", 3, 2)
    monkeypatch.setattr(Sorter, "SPEC", replace(Sorter.SPEC, example=None))
    vaak_tasks._CACHED_SPECS.pop("sorter")
    code, _, err = vaak("init", "sorter", "--example", "--data", "there", "--output", "other.yml")
    assert (code, err) == (2, "sorter: no example is made for it; give your own data by --data\n")


@pytest.mark.usefixtures("installed_sorter")
def test_a_metric_of_ones_own_is_declared_once_and_then_watched_and_read_as_it_says(vaak: Vaak, tmp_path: Path) -> None:
    """A metric that only the task's own meters give was refused as ``training.checkpoint.metric``."""
    (tmp_path / "sorter.yml").write_text(f"task: sorter\nname: sorter\ntraining: {SHORT}\n")
    run, watched = tmp_path / "run", "training.checkpoint.metric=val_right_letters"
    code, out, err = vaak("train", tmp_path / "sorter.yml", f"run_dir={run}", watched, "training.checkpoint.mode=max")
    assert code == 0, err
    assert re.search(r"val_right_letters +\d+\.\d\d %", out)
    assert re.search(r"best checkpoint: .*val_right_letters \d+\.\d\d %", out)
    assert "warning" not in err
    assert re.search(r"val_right_letters.{0,40}?\d %", run_page(read_facts(run)), re.DOTALL)
    code, _, err = vaak("config", "check", tmp_path / "sorter.yml", watched)
    assert code == 0
    assert "val_right_letters is better when it is higher; set training.checkpoint.mode to max" in err
    code, _, err = vaak("train", tmp_path / "sorter.yml", "training.checkpoint.metric=val_rihgt_letters")
    assert code == 2
    assert "did you mean val_right_letters?; SPEC.own_metrics of a task declares its own" in err.replace("'", "")


def test_a_format_that_is_declared_and_not_written_says_so(tmp_path: Path, installed_sorter: None, vaak: Vaak) -> None:
    (tmp_path / "sorter.yml").write_text(f"task: sorter\nname: sorter\ntraining: {SHORT}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(Sorter, "export_width")
        train(load([tmp_path / "sorter.yml"], [f"run_dir={tmp_path / 'run'}"]))
        code, _, err = vaak("export", tmp_path / "run", "--format", "width")
    assert (code, err) == (2, "Sorter declares the format width in its SPEC, but has no method export_width\n")


def test_a_card_of_a_strangers_task_executes_and_promises_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.yml").write_text("task: ./stranger.py:Task\nname: x\n")
    (tmp_path / "stranger.py").write_text("raise SystemExit('executed')\n")
    card = model_card(tmp_path, AboutExport("onnx", 1, "out"))
    assert "pipeline_tag" not in card
    assert "```python" not in card


@pytest.mark.usefixtures("installed_sorter")
def test_an_installed_task_has_its_pictures_units_and_data(vaak: Vaak, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    picture = tmp_path / "letters.png"
    code, out, err = vaak("plot", tmp_path / "one", tmp_path / "two", "letters", "--output", picture)
    assert (code, out, err) == (0, f"{picture}\n", "")
    assert picture.read_text() == "letters of 2"
    assert (get_unit("val_dither_ms"), in_words("val_dither_ms", 2.0)) == ("ms", "2.0000 ms")
    assert (get_unit("val_right_letters"), get_unit("val_nothing")) == ("%", "")
    (tmp_path / "texts.txt").write_text("__label__good it was\n__label__bad it was not\n" * 4)
    code, _, err = vaak("init", "sorter", "--data", tmp_path / "texts.txt", "--output", tmp_path / "sorter.yml")
    assert code == 2
    assert "sorter needs texts without labels, and there is labelled text" in err
