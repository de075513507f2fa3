"""Callbacks that set the step's options do to the bit what the configuration does; others only look."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toy import same_bits, toy_trainer, weights
from vaak.callbacks import FeatureRedrawCallback, GradientClippingCallback, LRMonitorCallback
from vaak.config.load import load
from vaak.config.yaml.tree import ConfigError
from vaak.core.errors import UserError
from vaak.engine.callback import Callback
from vaak.engine.metrics_file import read_records

CASES: list[tuple[Callback, dict[str, Any], dict[str, Any]]] = [
    (GradientClippingCallback(0.05), {"gradient_clipping": {"norm": None}}, {"gradient_clipping": {"norm": 0.05}}),
    (
        GradientClippingCallback(None, 0.003),
        {"gradient_clipping": {"norm": None}},
        {"gradient_clipping": {"norm": None, "value": 0.003}},
    ),
    (GradientClippingCallback(), {"gradient_clipping": {"norm": None}}, {"gradient_clipping": {"norm": 1.0}}),
    (FeatureRedrawCallback(3), {}, {"feature_redraw_interval": 3}),
]


@pytest.mark.parametrize(("callback", "training", "option"), CASES)
def test_attached_it_equals_the_option(
    callback: Callback, training: dict[str, Any], option: dict[str, Any], tmp_path: Path
):
    attached, configured = toy_trainer(tmp_path / "a", callback, **training), toy_trainer(tmp_path / "b", **option)
    plain = toy_trainer(tmp_path / "c", gradient_clipping={"norm": None})
    for trainer in (attached, configured, plain):
        trainer.fit()
    assert same_bits(weights(attached), weights(configured))
    if callback is not CASES[2][0]:  # the toy's gradients are never longer than 1
        assert not same_bits(weights(configured), weights(plain))


@pytest.mark.parametrize(
    ("callback", "training", "words"),
    [
        (
            GradientClippingCallback(0.5),
            {"gradient_clipping": {"norm": 0.05}},
            "norm 0.5, value None, and .* norm 0.05",
        ),
        (FeatureRedrawCallback(3), {"fixed_projection": True}, "training.fixed_projection is true"),
        (FeatureRedrawCallback(3), {"feature_redraw_interval": 4}, "interval 3, and .* is 4"),
    ],
)
def test_nothing_of_the_configuration_is_overridden_in_silence(callback, training, words, tmp_path: Path):
    with pytest.raises(UserError, match=words):
        toy_trainer(tmp_path, callback, **training)


REDRAWS = "callbacks: [{type: feature_redraw, interval: 3}]"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (f"model: {{attention_type: softmax}}\ntraining: {{{REDRAWS}}}", None),
        (f"model: {{attention_type: causal_linear}}\ntraining: {{{REDRAWS}, fixed_projection: true}}", "is true"),
        (
            f"model: {{attention_type: causal_linear}}\ntraining: {{{REDRAWS}, feature_redraw_interval: 4}}",
            "is 4 already",
        ),
        ("training: {callbacks: [gradient_clipping], gradient_clipping: 2.0}", "leave one out"),
    ],
)
def test_a_configuration_says_what_its_callbacks_contradict(options: str, words: str | None, tmp_path: Path):
    (tmp_path / "f.yml").write_text(f"task: lm\n{options}\n")
    if words is None:
        (warning,) = load([tmp_path / "f.yml"]).warnings
        assert "training.callbacks.0: no layer of this model draws random features" in warning
        return
    with pytest.raises(ConfigError, match=words):
        load([tmp_path / "f.yml"])


def test_redrawn_features_are_the_same_after_a_resume(tmp_path: Path):
    whole = toy_trainer(tmp_path / "whole", FeatureRedrawCallback(2))
    whole.fit()
    first = toy_trainer(tmp_path / "cut", FeatureRedrawCallback(2))
    first.total_steps = 5
    first.fit()
    second = toy_trainer(tmp_path / "cut", FeatureRedrawCallback(2))
    assert second.resume("auto")
    second.fit()
    assert whole.model.get_buffer("features.projection").any()
    assert second.model.get_buffer("features.projection").equal(whole.model.get_buffer("features.projection"))


def test_every_groups_rate_is_recorded(tmp_path: Path):
    groups = [{"match": "head", "lr_scale": 0.5}]
    trainer = toy_trainer(tmp_path, LRMonitorCallback(every=3), optimizer={"lr": 0.01, "groups": groups})
    trainer.fit()
    records = read_records(tmp_path / "metrics.jsonl")
    assert [record["step"] for record in records] == [3, 6]
    scales = [group["base_lr"] for group in trainer.state.optimizers[0].param_groups]
    assert sorted(set(scales)) == [0.005, 0.01]
    for record in records:
        factor = trainer.step.schedule(record["step"])
        assert [record[f"learning_rate/{number}"] for number in range(len(scales))] == [
            scale * factor for scale in scales
        ]
