"""Names that don't exist, losses that don't fit and absurd sizes are found before there are data."""

import json
import time
from pathlib import Path

import pytest
import torch

import tiny_diarizer
import tiny_runs
from vaak.config.components import AUXILIARY_LOSSES, LOSSES, SMOOTHING_LOSSES, resolve_class
from vaak.config.load import load
from vaak.config.metric_names import LOGGED
from vaak.config.tasks import task_class
from vaak.config.yaml.tree import ConfigError
from vaak.engine.dry_pass import numberless
from vaak.runs.start import train


def refused(folder: Path, task: str, *overrides: str) -> str:
    """The only mistake in a configuration."""
    (folder / "f.yml").write_text(f"task: {task}\n")
    with pytest.raises(ConfigError) as error:
        load([folder / "f.yml"], overrides)
    (line,) = str(error.value).splitlines()
    return line


@pytest.mark.parametrize("task", ["lm", "seq2seq", "diarization"])
@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["training.checkpoint.metric=val_los"], ["checkpoint.metric: is val_los, and", "did you mean val_loss?"]),
        (["training.early_stopping.metric=loss"], ["training.early_stopping.metric: is loss", "val_loss"]),
        (["training.scheduler={type: plateau, metric: vall_loss}"], ["training.scheduler.metric", "mean val_loss?"]),
        (["training.callbacks=[{type: early_stopping, metric: x}]"], ["training.callbacks.0.metric: is x"]),
        (["training.loss.auxiliary.norm_rg=0.1"], ["auxiliary.norm_rg: is not known", "did you mean norm_reg?"]),
        (["training.max_steps=10", "training.scheduler.warmup_steps=11"], ["is 11, but training ends after 10 steps"]),
        (["training.scheduler={type: cosine, min_lr: 2.0}"], ["training.scheduler.min_lr: is 2.0, above"]),
        (["training.checkpoint.init_from=nowhere"], ["init_from: nowhere doesn't exist; give a run directory"]),
        (["training.checkpoint.resume=nowhere"], ["resume: nowhere doesn't exist; give a checkpoint, or auto"]),
        (["training.batching=stratified"], ["training.batching.type: ", "no classes"]),
        (["training.loss={main: huber, label_smoothing: 0.1}"], ["huber"]),
    ],
)  # fmt: skip
def test_mistakes_that_training_would_find_late(tmp_path, monkeypatch, task, overrides, words):
    monkeypatch.chdir(tmp_path)
    if task == "diarization" and "huber" in words:
        words = ["huber has no label smoothing"]
    line = refused(tmp_path, task, *overrides)
    assert all(word in line for word in words), line


@pytest.mark.parametrize("task", ["lm", "seq2seq"])
@pytest.mark.parametrize("loss", sorted({*LOSSES} - {"cross_entropy", "focal"}))
def test_losses_that_are_not_of_tokens(tmp_path, task, loss):
    line = refused(tmp_path, task, f"training.loss.main={loss}")
    assert f"training.loss.main: {loss} doesn't fit" in line
    assert "expected one of cross_entropy, focal, ./file.py:Name" in line
    for own in (f"{loss}=1", f"own={{type: {loss}, weight: 1}}") if loss in AUXILIARY_LOSSES else ():
        line = refused(tmp_path, task, f"training.loss.auxiliary.{own}")
        assert f"training.loss.auxiliary.{own.partition('=')[0]}: {loss} doesn't fit" in line


def test_which_losses_smooth_labels_is_what_their_classes_take():
    taking = [name for name in LOSSES if "label_smoothing" in _init_of(name)]
    assert sorted(taking) == sorted(SMOOTHING_LOSSES)


def _init_of(name: str) -> tuple[str, ...]:
    return resolve_class(name, LOSSES, Path()).__init__.__code__.co_varnames


USERS_LOSSES = """\
from torch import nn
class Plain(nn.Module):
    pass
class Smooth(nn.Module):
    def __init__(self, label_smoothing=0.0):
        super().__init__()
class Other(nn.Module):
    def __init__(self, margin=0.0):
        super().__init__()
class Inherits(Other):
    pass
raise SystemExit("a check executes nothing")
"""


@pytest.mark.parametrize(("name", "fits"), [("Plain", False), ("Smooth", True), ("Other", False), ("Inherits", True)])
def test_label_smoothing_with_a_users_loss(tmp_path, name, fits):
    (tmp_path / "losses.py").write_text(USERS_LOSSES)
    loss = f"{{main: './losses.py:{name}', label_smoothing: 0.1}}"
    (tmp_path / "f.yml").write_text(f"task: lm\ntraining: {{loss: {loss}}}\n")
    if fits:
        assert load([tmp_path / "f.yml"]).warnings == []
        return
    with pytest.raises(ConfigError, match=f"label_smoothing: ./losses.py:{name} takes no label_smoothing"):
        load([tmp_path / "f.yml"])


@pytest.mark.parametrize("task", ["lm", "seq2seq", "diarization"])
@pytest.mark.parametrize("number", ["1e20", "1" + "0" * 20, "1000000000", "-1e300", "1" + "0" * 5000])
def test_absurd_sizes_are_refused_at_once(tmp_path, task, number):
    stack = {"lm": "model", "seq2seq": "model.encoder", "diarization": "model"}[task]
    window = {"lm": "data.max_length", "seq2seq": "data.max_source_length", "diarization": "data.window"}[task]
    before = time.process_time()
    for key in (f"{stack}.d_model", f"{stack}.num_layers", f"{stack}.d_ff", f"{stack}.num_heads", window):
        assert key in refused(tmp_path, task, f"{key}={number}")
    assert time.process_time() - before < 5


def test_a_model_that_fits_nowhere_is_counted_and_refused(tmp_path):
    sizes = ["model.d_model=1048576", "model.num_layers=10000"]
    assert "model: has about 1.3e+17 parameters, which take" in refused(tmp_path, "lm", *sizes)


@pytest.mark.parametrize(
    ("task", "overrides"),
    [
        ("lm", []),
        ("lm", ["model={feed_forward_type: gelu, num_key_value_heads: 2, tie_embeddings: false}"]),
        ("seq2seq", []),
        ("seq2seq", ["model={encoder: {d_model: 256}, tie_embeddings: false}"]),
        ("diarization", []),
        ("diarization", ["model={preset: sa_eend}"]),
        ("diarization", ["model={head: attractors}", "training.loss.auxiliary={attractor: 1}",
                         "training.eval_knobs={label_type: multilabel}"]),
    ],
)  # fmt: skip
def test_the_count_without_a_model_is_about_that_of_the_model(tmp_path, task, overrides):
    (tmp_path / "f.yml").write_text(f"task: {task}\n")
    loaded = load([tmp_path / "f.yml"], overrides)
    made = task_class(task)(loaded.experiment, tmp_path, tmp_path)
    with numberless(torch.device("cpu")):
        model = made.meta_model()
    true = sum(parameter.numel() for parameter in model.parameters())
    count = loaded.experiment.spec.num_parameters
    assert count is not None
    assert count(loaded.experiment) == pytest.approx(true, rel=0.05)


def _names(run: Path, kind: str) -> set[str]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        name
        for record in records
        if record["kind"] == kind
        for name in {**record, **record.get("clock", {})}
        if name not in ("kind", "step", "epoch", "scheduled", "clock")
    }


@pytest.mark.parametrize("minimal_pairs", ["[]", "[grammar]"])
def test_declared_metrics_of_a_language_model_are_what_an_evaluation_gives(tmp_path, minimal_pairs):
    tiny_runs.write_corpus(tmp_path)
    options = (f"data.minimal_pairs={minimal_pairs}", "data.max_length=64", "training.max_steps=4")
    loaded = tiny_runs.loaded(tmp_path, tmp_path / "run", *options)
    train(loaded)
    _as_declared(loaded, tmp_path / "run")


def test_declared_metrics_of_a_translator_are_what_an_evaluation_gives(tmp_path):
    (tmp_path / "f.yml").write_text(
        "task: seq2seq\nmodel: {global_config: {d_model: 16, num_layers: 1, num_heads: 2}}\n"
        "data: {corpus: {num_sentences: 60}, tokenizer: character, decoding: {max_new_tokens: 4}}\n"
        "training: {max_steps: 2, device: cpu, logging: {interval: 1, tensorboard: false}}\n"
    )
    loaded = load([tmp_path / "f.yml"], [f"run_dir={tmp_path / 'run'}"])
    train(loaded)
    _as_declared(loaded, tmp_path / "run")


def test_declared_metrics_of_a_diarizer_are_what_an_evaluation_gives(tmp_path):
    tiny_diarizer.write_corpus(tmp_path)
    loaded = load([tmp_path / "tiny.yml"], [f"run_dir={tmp_path / 'run'}", "training.max_steps=2"])
    train(loaded)
    _as_declared(loaded, tmp_path / "run")


def _as_declared(loaded, run: Path) -> None:
    """Evaluations gave the declared figures; names that training logs cause no warning."""
    declared = set(loaded.experiment.spec.metrics(loaded.experiment))
    given = _names(run, "evaluation")
    families = {name for name in declared if name.endswith("/")}
    assert {name for name in given if not name.startswith(tuple(families) or ("\n",))} == declared - families
    logged = sorted(_names(run, "step") | _names(run, "system") | given)
    assert set(LOGGED) & set(logged)
    (run / "new.yml").write_text((run / "config.yml").read_text())
    tracked = "training.logging.tensorboard=true"
    asked = [f"training.logging.log_metrics={logged}", f"run_dir={run / 'new'}", tracked]
    assert load([run / "new.yml"], asked).warnings == []
    (warning,) = load([run / "new.yml"], ["training.logging.log_metrics=[lss]", tracked]).warnings
    assert "no metric is called lss" in warning
    # A run that was trained is opened, whatever it watched.
    text = (run / "config.yml").read_text().replace("metric: val_loss", "metric: val_other")
    (run / "config.yml").write_text(text)
    assert load([run / "config.yml"]).experiment.training.checkpoint.metric == "val_other"


@pytest.mark.parametrize("content", [b"class Mine(:\n", b"class Mine: ...\n\0"], ids=["syntax", "null byte"])
@pytest.mark.parametrize("option", ["training.callbacks=[{type: ./own.py:Mine, a: 1}]", "training.loss=./own.py:Mine"])
def test_a_file_that_is_not_python_is_one_line(content: bytes, option: str, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_bytes(content)
    assert "own.py is not valid Python: " in refused(tmp_path, "lm", option)
