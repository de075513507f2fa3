"""Options of a stack without effect are reported; impossible ones are refused, each with its reason."""

import pytest

from vaak.config.load import load
from vaak.config.resolved import as_yaml, resolved_values
from vaak.config.yaml.tree import ConfigError

LINEAR = "task: seq2seq\nmodel: {encoder: {attention_type: linear}, decoder: {attention_type: causal_linear}}\n"

LONG = {
    "lm": ("data.max_length=4096",),
    "seq2seq": ("data.max_source_length=4096", "data.max_target_length=4096"),
    "diarization": ("data.window=60",),
}
"""Rows at which linear attention pays."""


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def from_text(text, *overrides):
        (tmp_path / "f.yml").write_text(text)
        return load(["f.yml"], [*LONG.get(text.split()[1], ()), *overrides])

    return from_text


@pytest.fixture
def warning(loaded):
    """The one warning of a configuration, without its place."""

    def of(text, *overrides):
        found = loaded(text, *overrides).warnings
        assert len(found) == 1, found
        return found[0].partition(": ")[2]

    return of


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        ("window: 64", "model.window: attention_type is softmax; only local has a window"),
        ("num_features: 64", "model.num_features: attention_type is softmax; only linear and causal_linear have"),
        ("kernel_type: relu", "model.kernel_type: attention_type is softmax"),
        ("orthogonal_features: true", "model.orthogonal_features: attention_type is softmax"),
        ("attention_type: causal_linear, attention_dropout: 0.2", "model.attention_dropout: causal_linear attention"),
        ("position_type: none, rope_theta: 5000", "model.rope_theta: position_type is none; only rotary positions"),
        ("position_type: alibi, rope_scaling_factor: 2", "model.rope_scaling_factor: position_type is alibi"),
        ("rope_scaling_type: ntk", "model.rope_scaling_type: rope_scaling_factor is 1, which changes nothing"),
    ],
)
def test_options_without_effect_in_a_decoder(warning, model, expected):
    assert warning(f"task: lm\nmodel: {{{model}}}\n").startswith(expected)


@pytest.mark.parametrize(
    "model",
    [
        "attention_type: local, window: 64",
        "attention_type: causal_linear, num_features: 64, kernel_type: relu, orthogonal_features: false",
        "attention_dropout: 0.2",
        "attention_type: causal_linear, attention_dropout: 0",
        "rope_scaling_type: ntk, rope_scaling_factor: 2, rope_theta: 5000",
    ],
)
def test_options_with_effect_are_not_warned_of(loaded, model):
    assert loaded(f"task: lm\nmodel: {{{model}}}\n").warnings == []


def test_each_side_is_looked_at_by_itself(warning):
    assert warning("task: seq2seq\nmodel: {encoder: {window: 3}, decoder: {attention_type: local, window: 3}}\n") == (
        "model.encoder.window: attention_type is softmax; only local has a window"
    )


def test_features_of_cross_attention_count(loaded, warning):
    text = "task: seq2seq\nmodel: {decoder: {cross_attention_type: linear, num_features: 8, attention_dropout: 0.2}}\n"
    assert loaded(text, "training.feature_redraw_interval=10").warnings == []
    text = "task: seq2seq\nmodel: {decoder: {attention_type: causal_linear, attention_dropout: 0.2}}\n"
    assert "attention_dropout" in warning(text)
    assert loaded(text.replace("attention_dropout", "cross_attention_type: softmax, attention_dropout")).warnings == []


def test_options_without_effect_are_left_out_of_what_is_stored(loaded):
    values = resolved_values(loaded("task: lm\n").experiment)["model"]
    assert not {"window", "kernel_type", "orthogonal_features", "rope_scaling_type"} & set(values)
    values = resolved_values(loaded(LINEAR).experiment)["model"]
    assert "kernel_type" in values["encoder"]
    assert "attention_dropout" not in values["decoder"]


def test_an_encoder_that_sees_one_side_is_said(warning):
    for text in (
        "task: seq2seq\nmodel: {encoder: {attention_type: causal_linear}}\n",
        "task: lm\nmodel: {model_type: encoder, attention_type: causal_linear}\n",
    ):
        assert "sees no later token" in warning(text)


def test_redrawing(loaded, warning):
    redraw = "training.feature_redraw_interval=10"
    assert loaded(LINEAR, redraw, "training.fixed_projection=false").warnings == []
    assert "no layer of this model draws random features" in warning("task: seq2seq\n", redraw)
    assert "fixed_projection is true, so features are never redrawn" in warning(
        LINEAR, redraw, "training.fixed_projection=true"
    )


@pytest.mark.parametrize(
    ("text", "overrides", "expected"),
    [
        ("task: lm\n", ["training.loss.auxiliary.norm_reg=0.1"],
         "training.loss.auxiliary.norm_reg: no layer of this model draws random features (Performer); it needs an"),
        ("task: seq2seq\n", ["training.batching.type=packed"], "training.batching.type: a row is one source and"),
        ("task: seq2seq\n", ["training.batching.type=bucketed", "training.batching.max_duration=3"],
         "training.batching.max_duration: text has no duration"),
        ("task: seq2seq\nmodel: {share_embeddings: true, encoder: {d_model: 64}}\n", [],
         "model.share_embeddings: the widths differ (d_model 64 and 512)"),
        ("task: seq2seq\nmodel: {share_embeddings: true}\ndata: {target_tokenizer: {vocab_size: 50}}\n", [],
         "model.share_embeddings: the target has a separate tokenizer"),
    ],
)  # fmt: skip
def test_what_cannot_be_had(loaded, text, overrides, expected):
    with pytest.raises(ConfigError) as error:
        loaded(text, *overrides)
    assert len(str(error.value).splitlines()) == 1
    assert str(error.value).partition(": ")[2].startswith(expected)


def test_a_section_left_out_for_a_mistake_makes_no_other(loaded):
    text = "task: seq2seq\nmodel: {share_embeddings: true, global_config: {d_model: 64}, encoder: {num_heads: 3}}\n"
    with pytest.raises(ConfigError) as error:
        loaded(text)
    assert len(str(error.value).splitlines()) == 1
    assert "d_model (64) must be a multiple of num_heads (3)" in str(error.value)


def test_norm_reg_is_for_linear_attention(loaded):
    assert loaded(LINEAR, "training.loss.auxiliary.norm_reg=0.1").warnings == []


def test_embeddings_that_cannot_be_shared_are_not_by_default(loaded, tmp_path):
    experiment = loaded("task: seq2seq\ndata: {target_tokenizer: {vocab_size: 50}}\n").experiment
    (tmp_path / "again.yml").write_text(as_yaml(experiment))
    assert load(["again.yml"]).experiment == experiment


@pytest.mark.parametrize(
    ("text", "longest", "said"),
    [
        (
            "task: lm\nmodel: {attention_type: causal_linear}\n",
            "data.max_length=1999",
            "about 2,000 tokens on",
        ),
        ("task: lm\nmodel: {attention_type: causal_linear}\n", "data.max_length=2000", None),
        (
            "task: seq2seq\nmodel: {encoder: {attention_type: linear}}\n",
            "data.max_source_length=849",
            "from about 850",
        ),
        ("task: seq2seq\nmodel: {encoder: {attention_type: linear}}\n", "data.max_source_length=850", None),
        ("task: diarization\nmodel: {attention_type: linear}\n", "data.window=30", "at most 750; softmax is faster"),
        ("task: diarization\nmodel: {attention_type: linear}\n", "data.window=40", None),
    ],
)
def test_linear_attention_below_its_crossover_is_said(loaded, text, longest, said):
    found = [line for line in loaded(text, longest).warnings if "takes less time than softmax" in line]
    assert len(found) == (said is not None)
    assert all(said in line and "attention_type: " in line for line in found)
