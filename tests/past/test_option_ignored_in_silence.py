"""An option was accepted and had no effect: nobody was told."""

from __future__ import annotations

import pytest
import torch

import tiny_runs
from vaak.config.load import load
from vaak.config.resolved import as_yaml
from vaak.core.errors import UserError
from vaak.engine.distributed.launcher import say_what_has_no_effect
from vaak.tasks.lm.prepare import fingerprint

TOKENS = "task: lm\ntraining:\n  batching: {type: bucketed, max_tokens: 512}\n"
SECONDS = "task: diarization\ntraining:\n  batching: {type: bucketed, max_duration: 60}\n"


@pytest.fixture
def warnings(tmp_path):
    """A function from YAML text and overrides to what loading it warns of."""

    def said(text, *overrides):
        (tmp_path / "run.yml").write_text(text)
        return load([tmp_path / "run.yml"], overrides).warnings

    return said


@pytest.mark.parametrize(
    ("text", "budget"), [(TOKENS, r"batching.max_tokens (512)"), (SECONDS, "batching.max_duration (60.0)")]
)
def test_batch_size_beside_a_budget(warnings, text, budget):
    data_options = f"{budget} decides how many rows a training batch has"
    assert warnings(text) == []
    (said,) = warnings(f"{text}  batch_size: 7\n")
    assert said.endswith(
        f"run.yml:4: training.batch_size: {data_options}; it is only the number of rows in an evaluation batch"
    )
    (said,) = warnings(text, "batch_size=7", "training.validation.batch_size=3")
    assert said == f"command line: training.batch_size: {data_options}; nothing reads it"
    (said,) = warnings(text, "batch_size=7", "training.curriculum=length")
    assert said.endswith(
        "it is only the number of rows in an evaluation batch and the minimum number of examples of a curriculum"
    )


def test_batch_size_is_read_without_a_budget(warnings):
    for batching in ("{type: bucketed, num_buckets: 4}", "fixed", "{type: packed}"):
        assert warnings(f"task: lm\ntraining:\n  batching: {batching}\n  batch_size: 7\n") == []


def test_a_resolved_configuration_warns_of_nothing_the_user_did_not_give(warnings, tmp_path):
    (tmp_path / "run.yml").write_text(TOKENS)
    resolved = as_yaml(load([tmp_path / "run.yml"]).experiment)
    assert warnings(resolved) == []


AUDIO = "task: diarization\nglobal_config: {{{}}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (AUDIO.format("num_jobs: 4"), "global_config.num_jobs: storage_path is null"),
        (AUDIO.format("num_ceps: 20"), "global_config.num_ceps: feature_type is fbank, and only mfcc"),
        (AUDIO.format("cepstral_lifter: 3"), "global_config.cepstral_lifter: feature_type is fbank"),
        (AUDIO.format("feature_type: spectrogram, num_mel_bins: 40"), "num_mel_bins: feature_type is spectrogram"),
        (AUDIO.format("feature_type: spectrogram, low_freq: 40"), "low_freq: feature_type is spectrogram"),
        (AUDIO.format("energy_floor: 0.1"), "global_config.energy_floor: use_energy is false"),
        ("task: diarization\nmodel: {context: 3}\n", "model.context: front_end is convolutional"),
        ("task: diarization\nmodel: {front_end: stacked, kernel_size: 3}\n", "kernel_size: front_end is stacked"),
        ("task: diarization\ndata: {augmentation: {codec_probability: 0.1}}\n", "codecs is empty"),
        (
            "task: lm\nmodel: {preset: tiny, d_model: 8, num_layers: 1, num_heads: 1}\n",
            "model.preset: all of its sizes are overridden: d_model, num_layers, num_heads",
        ),
        ("task: lm\ndata: {corpus: {type: text, num_sentences: 9}}\n", "is read by the type grammar only, not by text"),
        ("task: lm\ndata: {corpus: {text_column: x}}\n", "data.corpus.text_column: is read by the type json"),
        ("task: lm\ndata: {tokenizer: {path: t, vocab_size: 9}}\n", "data.tokenizer.vocab_size: the tokenizer is"),
        (
            "task: lm\ndata: {tokenizer: {path: t, training_characters: 9}}\n",
            "training_characters: the tokenizer is that",
        ),
        (
            "task: lm\ndata: {tokenizer: {type: unigram, min_frequency: 9}}\n",
            "min_frequency: unigram has no minimum count",
        ),
        ("task: lm\ndata: {masking_probability: 0.2}\n", "data.masking_probability: model_type is decoder"),
        ("task: lm\ndata: {layout: document, shift_windows: true}\n", "data.shift_windows: layout is document"),
        ("task: seq2seq\ndata: {corpus: {source_column: x}}\n", "data.corpus.source_column: is read by the type json"),
        ("task: seq2seq\ndata: {decoding: {beam_size: 2}}\n", "method is greedy, and only beam reads it"),
        ("task: lm\ntraining: {checkpoint: {init_except: [head]}}\n", "init_except: init_from is null"),
        (
            "task: lm\ntraining: {performance: {num_workers: 1, persistent_workers: false}}\n",
            "persistent_workers: has no effect: one iteration of the loader spans all epochs",
        ),
    ],
)
def test_an_option_that_waits_for_another(warnings, text, words):
    (said,) = warnings(text)
    assert words in said


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("training.deterministic=true", "training.deterministic has no effect on cpu"),
        ("training.performance.pin_memory=true", "training.performance.pin_memory is for CUDA only"),
        ("training.distributed.backend=gloo", "training.distributed.backend has no effect: there is one process"),
        (
            "training.distributed.sync_gradient_barrier=true",
            "sync_gradient_barrier has no effect: there is one process",
        ),
        ("training.distributed.timeout_minutes=5", "timeout_minutes has no effect: there is one process"),
    ],
)
def test_what_the_device_and_the_number_of_processes_leave_unread_is_said_at_the_start(
    tmp_path, caplog, override, said
):
    (tmp_path / "run.yml").write_text("task: lm\n")
    cpu = torch.device("cpu")
    with caplog.at_level("INFO", "vaak"):
        for overrides in ([], [override]):
            training = load([tmp_path / "run.yml"], overrides).experiment.training
            say_what_has_no_effect(training, cpu, processes=1)
            assert (said in caplog.text) == bool(overrides)
        caplog.clear()
        say_what_has_no_effect(training, cpu, processes=2)
    assert ("distributed" in override) == (not caplog.text)


def test_a_sample_of_the_training_text_makes_other_prepared_data(tmp_path):
    tiny_runs.write_corpus(tmp_path)
    marks = {
        fingerprint(tiny_runs.loaded(tmp_path, tmp_path / "run", *overrides).experiment.data)
        for overrides in ([], ["data.tokenizer.training_characters=500"], ["data.tokenizer.training_characters=600"])
    }
    assert len(marks) == 3


def test_a_tokenizer_of_the_target_that_exists_is_resolved(tmp_path):
    text = "task: seq2seq\ndata: {target_tokenizer: {path: t}}\n"
    (tmp_path / "run.yml").write_text(text)
    assert f"path: {tmp_path / 't'}" in as_yaml(load([tmp_path / "run.yml"]).experiment)


@pytest.mark.parametrize(
    ("text", "override", "corpus_type"),
    [
        ("task: lm", "data.corpus.train=a.txt", "text"),
        ("task: lm", "data.corpus.train=[a.jsonl, b.json]", "json"),
        ("task: lm", "data.corpus.valid=a.tsv", "csv"),
        ("task: lm", "data.corpus.name=dataset", "huggingface"),
        ("task: seq2seq", "data.corpus.train=a.tsv", "tsv"),
        ("task: seq2seq", "data.corpus={train: a.en, train_target: a.hi}", "text"),
        ("task: classification", "data.corpus.test=a.csv", "files"),
        ("task: classification", "data.corpus.name=dataset", "huggingface"),
        ("task: classification\ndata: {corpus: {type: files, train: [a.json]}}", "data.corpus.type=grammar", "grammar"),
    ],
)
def test_what_a_corpus_names_is_what_it_is_of(tmp_path, text, override, corpus_type):
    (tmp_path / "run.yml").write_text(text)
    loaded = load([tmp_path / "run.yml"], [override])
    assert loaded.experiment.data.corpus.type == corpus_type
    assert load([tmp_path / "run.yml"]).experiment.data.corpus.type == ("files" if "files" in text else "grammar")


@pytest.mark.parametrize(
    ("text", "override", "words"),
    [
        ("task: lm\ndata: {corpus: {type: grammar}}", "data.corpus.train=a.txt", "the type here is grammar"),
        ("task: lm\ndata: {corpus: {type: grammar}}", "data.corpus.name=dataset", "the type here is grammar"),
        ("task: lm\ndata: {corpus: {train: a.txt}}", "data.corpus.name=dataset", "the type here is text"),
        ("task: lm", "data.corpus.train=texts/*", "texts/* don't tell it; give type: one of text, json, csv"),
        ("task: lm", "data.corpus={train: a.txt, test: b.json}", "a.txt, b.json don't tell it"),
        ("task: seq2seq\ndata: {corpus: {type: grammar}}", "data.corpus.test=a.tsv", "the type here is grammar"),
        (
            "task: classification\ndata: {corpus: {type: grammar}}",
            "data.corpus.valid=a.csv",
            "the type here is grammar",
        ),
        ("task: classification\nmodel: {word_vectors: v.txt}", "model.architecture=transformer", "only cnn reads it"),
        (
            "task: classification\ndata: {augmentation: {enabled: true, techniques: [random_swap]}}",
            "data.augmentation.synonyms=words.txt",
            "no technique needs synonyms; leave it out",
        ),
        ("task: classification\nmodel: {pretrained_model: b}", "data.tokenizer.path=t", "pretrained_model has its own"),
        ("task: lm\nmodel: {pretrained: b}", "data.tokenizer.path=t", "model.pretrained has its own; leave it out"),
        (
            "task: seq2seq\nmodel: {pretrained: b}",
            "data.tokenizer.path=t",
            "model.pretrained has its own; leave it out",
        ),
        ("task: asr\nmodel: {base: v2}", "data.tokenizer.path=t", "model.base is v2, which has its own tokenizer"),
        ("task: lm", "data.chat_template=chat.jinja", "only chat and preferences have conversations; leave it out"),
        ("task: tts\ndatasets: [{name: v, type: voices}]", "datasets.0.corpus_dir=d", "voices are synthesised"),
        ("task: diarization\ndatasets: [{name: v, type: voices}]", "datasets.0.train=[d]", "voices are synthesised"),
    ],
)
def test_an_input_that_would_not_be_read_is_an_error(tmp_path, text, override, words):
    (tmp_path / "run.yml").write_text(text)
    with pytest.raises(UserError) as caught:
        load([tmp_path / "run.yml"], [override])
    assert words in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
