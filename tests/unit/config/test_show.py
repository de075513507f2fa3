"""The resolved YAML says everything and loads to the same experiment."""

import pickle
import string

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vaak.config.load import load
from vaak.config.resolved import as_yaml

texts = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=12)
positive = st.floats(1e-12, 1e6)


def sections(**options):
    return st.fixed_dictionaries({}, optional=options)


experiments = sections(
    name=st.text(string.ascii_letters + " ${}:#-'\"é", min_size=1, max_size=9),
    model=sections(
        preset=st.sampled_from(["tiny", "40m", None]), dropout=st.floats(0, 0.9), tie_embeddings=st.booleans()
    ),
    data=sections(
        corpus=sections(type=st.just("grammar"))  # which reads no files
        | st.fixed_dictionaries({"type": st.just("text")}, optional={"train": st.lists(texts, max_size=2)}),
        tokenizer=st.sampled_from(["bpe", "character"]),
        minimal_pairs=st.lists(texts, max_size=2),
    ),
    training=sections(
        optimizer=st.sampled_from(["adamw", "sgd", "muon", {"type": "lion", "lr": 0.1, "groups": [{"match": "no"}]}]),
        scheduler=st.sampled_from(["constant", "plateau", {"type": "wsd", "decay_ratio": 0.3, "min_lr": 1e-9}]),
        early_stopping=st.none()
        | st.integers(0, 9)
        | sections(metric=st.sampled_from(["val_loss", "val_accuracy"]), min_delta=positive),
        mixed_precision=st.sampled_from(["no", "bf16", "fp16", True, False]),
        gradient_clipping=st.none() | positive,
        profiling=st.booleans(),
        max_steps=st.none() | st.integers(1, 10**12),
        feature_redraw_interval=st.none() | st.just(3),
        performance=sections(num_workers=st.integers(0, 2), prefetch_factor=st.integers(1, 3)),
        eval_knobs=sections(label_type=st.sampled_from(("binary", "multilabel"))),
        loss=st.sampled_from(["focal", {"main": {"type": "focal", "gamma": 2.0}}]),
        callbacks=st.lists(st.sampled_from(["lr_monitor", {"type": "lr_monitor", "every": 3}]), max_size=2),
    ),
    wandb=sections(notes=texts | st.none(), tags=st.lists(texts, max_size=2)),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(experiments)
def test_loading_what_is_shown_gives_an_equal_experiment(tmp_path, values):
    from vaak.config.yaml.text import yaml_text

    path = tmp_path / "run.yml"
    path.write_text(yaml_text({"task": "lm", **values}), encoding="utf-8")
    experiment = load([path]).experiment
    shown = tmp_path / "shown.yml"
    shown.write_text(as_yaml(experiment), encoding="utf-8")
    again = load([shown])
    assert again.experiment == experiment
    assert as_yaml(again.experiment) == as_yaml(experiment)


def test_every_option_that_applies_is_shown(tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("task: lm\n")
    loaded = load([path])
    shown = tmp_path / "shown.yml"
    shown.write_text(as_yaml(loaded.experiment))
    again = load([shown])
    assert again.warnings == []
    assert {"training.optimizer.betas", "training.checkpoint.resume", "data.corpus.type", "model.d_ff"} <= again.given
    assert not {"training.optimizer.momentum", "training.scheduler.min_lr", "training.eval_knobs"} & again.given


def test_an_experiment_is_frozen_and_can_be_pickled(tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("task: lm\n")
    experiment = load([path]).experiment
    assert pickle.loads(pickle.dumps(experiment)) == experiment
    with pytest.raises(Exception, match="frozen"):
        experiment.training.epochs = 3


def test_options_of_other_types_are_left_out_in_lists_too(tmp_path):
    (tmp_path / "a.yml").write_text(
        "task: diarization\ndatasets: [{name: own, type: folder, train: [audio], conversations: {beta: 1}}]\n"
    )
    experiment = load([tmp_path / "a.yml"]).experiment
    assert "num_voices" not in as_yaml(experiment)
    (tmp_path / "b.yml").write_text(as_yaml(experiment))
    assert load([tmp_path / "b.yml"]).experiment == experiment
