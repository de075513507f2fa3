"""Paths in a YAML are seen from the YAML, those of the command line from the working folder."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vaak.cli.pipeline import read_values
from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.paths import rebase_paths
from vaak.config.yaml.text import read_yaml
from vaak.pipeline.stage import find_pipeline

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with configurations, and texts next to these and next to where one stands."""
    monkeypatch.chdir(tmp_path)
    names = ("configs/near.txt", "configs/both.txt", "both.txt", "far.txt", "configs/near.zip", "far.zip")
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text("".join(f"{name} line {number}\n" for number in range(60)))
    return tmp_path


def write(text: str, name: str = "configs/job.yml") -> Path:
    Path(name).write_text(f"task: lm\ndata:\n  corpus: {{type: text, train: {text}}}\n")
    return Path(name)


@pytest.mark.parametrize(
    ("given", "read", "said"),
    [
        ("near.txt", "configs/near.txt", None),
        ("./n*.txt", "configs/n*.txt", None),
        ("../far.txt", "far.txt", None),
        ("near.zip/*.txt", "configs/near.zip/*.txt", None),
        ("far.zip/*.txt", "far.zip/*.txt", "configs/far.zip/*.txt does not exist, but far.zip/*.txt in the working"),
        ("both.txt", "configs/both.txt", "configs/both.txt is read, as seen from this file; both.txt in the working"),
        (
            "far.txt",
            "far.txt",
            "configs/far.txt does not exist, but far.txt in the working folder, which is read: write",
        ),
        ("none.txt", "configs/none.txt", None),
    ],
)
def test_a_path_is_seen_from_its_file(project: Path, given: str, read: str, said: str | None) -> None:
    loaded = load([write(given)])
    assert loaded.experiment.data.corpus.train == (read,)
    found = [line for line in loaded.warnings if "working folder" in line]
    assert len(found) == (said is not None)
    assert said is None or (said in found[0] and found[0].startswith("configs/job.yml:3: data.corpus.train: "))


def test_the_command_line_is_seen_from_the_working_folder(project: Path) -> None:
    loaded = load([write("near.txt")], ["data.corpus.train=[both.txt]", "data.corpus.valid=[far.txt]"])
    assert (loaded.experiment.data.corpus.train, loaded.experiment.data.corpus.valid) == (("both.txt",), ("far.txt",))
    assert not [line for line in loaded.warnings if "working folder" in line]


def test_each_file_that_is_extended_has_its_own_folder(project: Path) -> None:
    (project / "configs/more").mkdir()
    write("near.txt", "configs/base.yml")
    (project / "configs/more/job.yml").write_text("extends: ../base.yml\ndata: {corpus: {valid: ../both.txt}}\n")
    corpus = load(["configs/more/job.yml"]).experiment.data.corpus
    assert (corpus.train, corpus.valid) == (("configs/near.txt",), ("configs/both.txt",))


def test_names_and_results_stay_what_they_are(project: Path) -> None:
    """A model's name isn't a path, and a run's outputs are in the working folder."""
    text = "task: lm\nmodel: {pretrained: sshleifer/tiny-gpt2}\ndata: {corpus: grammar, minimal_pairs: [grammar]}\n"
    Path("configs/job.yml").write_text(text + "run_dir: runs/own\ntraining: {checkpoint: {init_from: runs/base}}\n")
    (project / "runs/base").mkdir(parents=True)
    (project / "runs/base/config.yml").write_text("task: lm\n")
    loaded = load(["configs/job.yml"])
    experiment = loaded.experiment
    assert experiment.model.pretrained == "sshleifer/tiny-gpt2"
    assert experiment.data.minimal_pairs == ("grammar",)
    assert (experiment.run_dir, experiment.training.checkpoint.init_from) == (Path("runs/own"), "runs/base")
    assert not [line for line in loaded.warnings if "working folder" in line]


def test_names_within_a_corpus_are_its_own(project: Path) -> None:
    (project / "speech").mkdir()
    text = "datasets: [{name: own, type: ljspeech, corpus_dir: ../speech, train: [near.txt]}]\n"
    Path("configs/job.yml").write_text(f"task: tts\n{text}")
    found = load(["configs/job.yml"]).experiment.datasets[0]
    assert (found.corpus_dir, found.train) == ("speech", ("near.txt",))


def test_a_missing_file_is_named_as_it_was_looked_for(project: Path, vaak: Vaak) -> None:
    write("none.txt")
    code, _, said = vaak("train", "configs/job.yml", "--device", "cpu")
    assert code == 2
    assert "configs/none.txt" in said


def test_a_run_is_used_and_resumed_from_another_folder(
    project: Path, vaak: Vaak, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("near.txt")
    sizes = [
        "model.d_model=16",
        "model.num_layers=1",
        "model.num_heads=2",
        "data.max_length=16",
        "training.batch_size=8",
    ]
    options = [*sizes, "training.max_steps=2", "training.checkpoint.interval=2", "data.tokenizer=character"]
    code, _, said = vaak("train", "configs/job.yml", "--device", "cpu", *options)
    assert code == 0, said
    (project / "elsewhere").mkdir()
    monkeypatch.chdir(project / "elsewhere")
    shutil.rmtree(project / "runs/job/prepared")  # so that the texts are read again
    code, _, said = vaak("train", "../runs/job/config.yml", "--resume", "auto", "training.max_steps=4")
    assert code == 0, said
    assert load(["../runs/job/config.yml"]).experiment.data.corpus.train == ("../configs/near.txt",)
    code, _, said = vaak("eval", "../runs/job", "--device", "cpu")
    assert code == 0, said


def test_a_yaml_that_init_writes_elsewhere_sees_its_data(project: Path, vaak: Vaak) -> None:
    (project / "texts").mkdir()
    (project / "texts/all.txt").write_text((project / "far.txt").read_text())
    code, _, said = vaak("init", "lm", "--data", "texts", "--hardware", "cpu", "-o", "configs/lm.yml")
    assert code == 0, said
    assert "../texts/all.txt" in Path("configs/lm.yml").read_text()
    loaded = load(["configs/lm.yml"])
    assert loaded.experiment.data.corpus.train[0].startswith("texts/")
    assert not [line for line in loaded.warnings if "working folder" in line]


def test_a_pipelines_file_is_the_origin_of_its_paths(project: Path) -> None:
    (project / "speech").mkdir()
    file = Path("configs/moe.yml")
    file.write_text("dataset_root: ../speech\ndatasets: [{name: own, type: json, train: ../far.txt}]\n")
    values = read_values(find_pipeline("moe-asr", Path()), file)
    assert values["dataset_root"] == "speech"
    assert values["datasets"][0]["train"] == "far.txt"


def test_paths_are_written_as_seen_from_another_folder(project: Path) -> None:
    tree = read_yaml(write("[near.txt, none.txt]"))
    tree["data"]["corpus"]["train"][0] = "far.txt"
    rebase_paths(tree, experiment_type("lm"), Path("sweeps/one"))
    assert tree["data"]["corpus"]["train"] == ["../../far.txt", "none.txt"]
