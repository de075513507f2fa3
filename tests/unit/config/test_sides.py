"""model.global_config applies to both sides, a side's own section overrides it, and mistakes are one line each."""

import pytest

from vaak.config.load import load
from vaak.config.reference import json_schema
from vaak.config.resolved import resolved_values
from vaak.config.yaml.tree import ConfigError

BOTH = "task: seq2seq\nmodel:\n  global_config: {d_model: 64, num_heads: 4, dropout: 0.1}\n"


@pytest.fixture
def loaded(tmp_path, monkeypatch):
    """A function from YAML texts, and overrides, to what they load to."""
    monkeypatch.chdir(tmp_path)

    def from_text(*texts, overrides=()):
        for number, text in enumerate(texts):
            (tmp_path / f"f{number}.yml").write_text(text)
        return load([f"f{number}.yml" for number in range(len(texts))], overrides)

    return from_text


@pytest.fixture
def model(loaded):
    return lambda *texts, overrides=(): loaded(*texts, overrides=overrides).experiment.model


@pytest.fixture
def mistakes(loaded):
    def lines(*texts, overrides=()):
        with pytest.raises(ConfigError) as error:
            loaded(*texts, overrides=overrides)
        return str(error.value).splitlines()

    return lines


# An encoder–decoder.


def test_both_sides_inherit_and_each_may_have_its_own(model):
    found = model(BOTH + "  encoder: {dropout: 0.3}\n  decoder: {num_layers: 2}\n")
    assert (found.encoder.d_model, found.decoder.d_model) == (64, 64)
    assert (found.encoder.dropout, found.decoder.dropout) == (0.3, 0.1)
    assert (found.encoder.num_layers, found.decoder.num_layers) == (6, 2)


def test_an_alias_of_a_side_is_its_own_option(model):
    found = model(BOTH + "  encoder: {hidden_size: 128, dropout_prob: 0}\n")
    assert (found.encoder.d_model, found.decoder.d_model) == (128, 64)
    assert (found.encoder.dropout, found.decoder.dropout) == (0, 0.1)


def test_aliases_hold_in_global_config_too(model):
    found = model("task: seq2seq\nmodel: {global_config: {hidden_size: 64, num_attention_heads: 2}}\n")
    assert {(side.d_model, side.num_heads) for side in (found.encoder, found.decoder)} == {(64, 2)}


def test_a_later_layer_sets_both_sides_again(model):
    below = BOTH + "  encoder: {dropout: 0.3}\n"
    found = model(below, overrides=["model.global_config.dropout=0"])
    assert (found.encoder.dropout, found.decoder.dropout) == (0, 0)
    found = model(below, "model: {global_config: {dropout: 0.5}, decoder: {dropout: 0.6}}\n")
    assert (found.encoder.dropout, found.decoder.dropout) == (0.5, 0.6)
    found = model(below, overrides=["model.global_config.dropout=0", "model.encoder.dropout=0.2"])
    assert (found.encoder.dropout, found.decoder.dropout) == (0.2, 0)


def test_what_only_decoders_have_goes_to_the_decoder(model):
    found = model(BOTH.replace("dropout: 0.1", "cross_attention_type: linear"))
    assert found.decoder.cross_attention_type == "linear"
    assert not hasattr(found.encoder, "cross_attention_type")


def test_nothing_of_that_name_is_left(loaded):
    result = loaded(BOTH + "  encoder: {num_layers: 2}\n")
    values = resolved_values(result.experiment)
    assert "global_config" not in values["model"]
    assert values["model"]["encoder"]["num_layers"] == 2
    assert not any("global_config" in key for key in result.given)


def test_the_batch_size_is_trainings(loaded):
    experiment = loaded(BOTH.replace("dropout: 0.1", "batch_size: 7")).experiment
    assert experiment.training.batch_size == 7


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("{drpout: 0.1}", "f0.yml:3: model.global_config.drpout: unknown key; did you mean dropout?"),
        ("{dropout: 2}", "f0.yml:3: model.global_config.dropout: is 2; expected a number at least 0 and below 1"),
        ("{d_model: 65}", "f0.yml:3: model.global_config.d_model: d_model (65) must be a multiple of num_heads (8)"),
        ("{attention_type: liner}", "f0.yml:3: model.global_config.attention_type: is \"liner\"; expected one of"),
        ("{attention_type: linear}",
         "f0.yml:3: model.global_config.attention_type: attention_type linear sees later tokens; a decoder takes"),
        ("{position_type: alibi, attention_type: causal_linear}", "f0.yml:3: model.global_config.position_type: "),
        ("5", "f0.yml:3: model.global_config: expected a section of keys, or leave it out"),
        ("null", "f0.yml:3: model.global_config: expected a section of keys, or leave it out"),
        ("{d_model: 64, hidden_size: 32}",
         "f0.yml:3: model.global_config.hidden_size: the same option as model.global_config.d_model at f0.yml:3"),
    ],
)  # fmt: skip
def test_one_line_for_each_mistake(mistakes, section, line):
    lines = mistakes(f"task: seq2seq\nmodel:\n  global_config: {section}\n")
    assert len(lines) == 1, lines
    assert lines[0].startswith(line)


def test_mistakes_that_only_look_alike_are_all_told(mistakes):
    assert len(mistakes("task: seq2seq\ntraining: {epochs: 0, batch_size: 0}\n")) == 2
    lines = mistakes("task: seq2seq\n", overrides=["model.encoder.d_model=-1", "model.decoder.d_model=-1"])
    assert [line.split(": ")[1] for line in lines] == ["model.encoder.d_model", "model.decoder.d_model"]


def test_a_misspelled_section_is_named(mistakes):
    lines = mistakes("task: seq2seq\nmodel:\n  global_confg: {dropout: 0.1}\n")
    assert lines == ["f0.yml:3: model.global_confg: unknown key; did you mean global_config?"]
    lines = mistakes("task: seq2seq\nmodel:\n  encoder: {hiden_size: 3}\n")
    assert lines == ["f0.yml:3: model.encoder.hiden_size: unknown key; did you mean hidden_size?"]


# A model of one side.


def test_one_side_may_be_written_as_one(model):
    shared = "  global_config: {dropout: 0.2, d_ff: 4, d_model: 64}\n"
    found = model(f"task: lm\nmodel:\n{shared}  decoder: {{hidden_size: 32, name: x}}\n")
    assert (found.d_model, found.dropout, found.d_ff, found.name) == (32, 0.2, 4, "x")


def test_a_flat_option_wins_over_global_config(model):
    assert model("task: lm\nmodel: {dropout: 0.3, global_config: {dropout: 0.1}}\n").dropout == 0.3
    assert model("task: lm\nmodel: {dropout: 0.3}\n", "model: {global_config: {dropout: 0.1}}\n").dropout == 0.1


def test_a_flat_option_beside_its_sides_is_given_twice(mistakes):
    lines = mistakes("task: lm\nmodel:\n  d_model: 64\n  decoder: {d_model: 32}\n")
    assert lines == ["f0.yml:4: model.decoder.d_model: the same option as model.d_model at f0.yml:3; give one of them"]


def test_the_other_side_is_a_mistake(mistakes, model):
    lines = mistakes("task: lm\nmodel:\n  encoder: {d_model: 64}\n  decoder: {d_model: 32}\n")
    expected = "f0.yml:3: model.encoder: model.model_type is decoder, which has no encoder"
    assert [line.partition(";")[0] for line in lines] == [expected]
    text = "task: lm\nmodel:\n  model_type: encoder\n  encoder: {d_model: 64}\n"
    assert model(text).d_model == 64
    assert "model.model_type is encoder" in mistakes(text, "model: {decoder: {d_model: 32}}\n")[0]
    assert "no decoder" in mistakes("task: lm\nmodel: {decoder: {d_model: 32}}\n", overrides=["model_type=encoder"])[0]


def test_unknown_options_of_a_side(mistakes):
    lines = mistakes("task: lm\nmodel:\n  decoder: {d_modl: 64}\n  global_config: {cross_attention_type: linear}\n")
    assert lines[0] == "f0.yml:3: model.decoder.d_modl: unknown key; did you mean d_model?"
    assert lines[1].startswith("f0.yml:4: model.global_config.cross_attention_type: unknown key")
    assert len(lines) == 2


def test_presets_lie_beneath(model):
    found = model("task: lm\nmodel: {preset: tiny, global_config: {num_heads: 2}}\n")
    assert (found.d_model, found.num_layers, found.num_heads) == (64, 2, 2)


# What editors and readers see.


@pytest.mark.parametrize("task", ["seq2seq", "lm"])
def test_the_schema_knows_the_sections(task):
    schema = json_schema(task)
    name = {"seq2seq": "Seq2SeqConfig", "lm": "LanguageModelConfig"}[task]
    definition = schema["$defs"][name]
    model = next((part for part in definition.get("anyOf", ()) if "properties" in part), definition)
    section = model["properties"]["global_config"]
    assert section["additionalProperties"] is False
    assert {"d_model", "dropout", "hidden_size", "batch_size"} <= set(section["properties"])
    assert ("cross_attention_type" in section["properties"]) == (task == "seq2seq")


@pytest.mark.parametrize(
    ("text", "task"),
    [
        ("model: {model_type: encoder_decoder}\n", "seq2seq"),
        ("model: {encoder: {d_model: 64}}\n", "seq2seq"),
        ("data: {corpus: {type: tsv, source_column: a, train: [x]}}\n", "seq2seq"),
        ("model: {model_type: decoder, decoder: {d_model: 64}}\ndata: {corpus: grammar}\n", "lm"),
        ("data: {corpus: grammar}\n", "lm"),
        ("model: tiny\n", None),
        ("model: {preset: tiny}\n", "lm"),
    ],
)
def test_a_task_is_recognised(loaded, mistakes, text, task):
    if task is None:
        assert "write task:" in mistakes(text)[0]
    else:
        assert loaded(text).experiment.task == task


def test_what_fits_two_tasks_must_say(mistakes):
    assert "fits diarization and lm" in mistakes("model: {model_type: encoder, encoder: {d_model: 64}}\n")[0]
