"""Label types and what goes with them: each mistake is one line, at the line where it stands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vaak.config.load import Loaded, load
from vaak.core.errors import UserError
from vaak.tasks.diarization.config import DiarizationTrainingConfig, EvalKnobsConfig

Read = Callable[..., Loaded]


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """Loads a diarizer's YAML: ``label_type`` on line 4, then other lines."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.py").write_text("raise SystemExit('this is executed')\nclass Mine: ...\n")

    def loaded(label_type: str, *lines: str) -> Loaded:
        head = ["task: diarization", "training:", "  eval_knobs:", f"    label_type: {label_type}"]
        Path("f.yml").write_text("\n".join([*head, *lines]) + "\n")
        return load(["f.yml"])

    return loaded


def knobs(loaded: Loaded) -> EvalKnobsConfig:
    training = loaded.experiment.training
    assert isinstance(training, DiarizationTrainingConfig)
    return training.eval_knobs


@pytest.mark.parametrize("label_type", ["binary", "speaker_id", "multilabel", "powerset", "./own.py:Mine"])
def test_label_types_are_names_or_classes_none_of_which_is_executed(read: Read, label_type: str):
    loaded = read(label_type)
    assert knobs(loaded).label_type.type == label_type
    assert loaded.warnings == []


def test_options_of_a_class_stand_beside_it(read: Read):
    component = knobs(read("{type: ./own.py:Mine, least: 3}")).label_type
    assert component.options == {"least": 3}


def test_a_class_named_in_a_base_is_seen_from_there(read: Read, tmp_path: Path):
    read("./own.py:Mine")
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "run.yml").write_text("extends: ../f.yml\n")
    loaded = load([tmp_path / "deeper" / "run.yml"])
    assert knobs(loaded).label_type.type == "../own.py:Mine"


CONVERSATIONS = "datasets: [{type: voices, conversations: {train: 8, duration: 5}}]"


@pytest.mark.parametrize(
    ("datasets", "said"),
    [(CONVERSATIONS, True), (CONVERSATIONS[:-1] + ", {type: voices, name: others}]", False), ("", False)],
    ids=["conversations alone", "recordings, too", "built-in voices"],
)
def test_conversations_are_not_cut_into_windows(read: Read, datasets: str, said: bool):
    warnings = "\n".join(read("binary", "data: {window: 5, shift_windows: false}", datasets).warnings)
    for name in ("window", "shift_windows"):
        assert (f"data.{name}: has no effect on simulated data" in warnings) == said, warnings


KEY = "f.yml:4: training.eval_knobs.label_type"


@pytest.mark.parametrize(
    ("label_type", "lines", "expected"),
    [
        ("custom", [], f"{KEY}: custom means your own label type: give its class, a DiarizationCollator, as ./file"),
        ("multilable", [], f"{KEY}.type: 'multilable' is not known; expected one of binary, custom, multilabel"),
        ("./own.py:Mien", [], f"{KEY}.type: own.py has no Mien; did you mean Mine?"),
        ("./none.py:Mine", [], f"{KEY}.type: none.py can't be read"),
        ("binary", ["  loss: focal"], "f.yml:5: training.loss.main: focal doesn't fit label_type binary"),
        ("powerset", ["  loss: bce"], "f.yml:5: training.loss.main: bce doesn't fit label_type powerset"),
        (
            "powerset",
            ["  loss: {auxiliary: {attractor: 1}}", "model: {head: attractors}"],
            "f.yml:6: model.head: attractors require label_type multilabel, but it is powerset",
        ),
        (
            "multilabel",
            ["model: {head: attractors}"],
            "f.yml:5: model.head: attractors require training.loss.auxiliary.attractor",
        ),
        (
            "multilabel",
            ["  loss: {auxiliary: {attractor: 1}}"],
            "f.yml:5: training.loss.auxiliary.attractor: model.head is linear",
        ),
        (
            "speaker_id",
            ["  loss: {auxiliary: {speaker: 1}}"],
            "f.yml:5: training.loss.auxiliary.speaker: label_type speaker_id has no speaker embeddings",
        ),
        (
            "multilabel",
            ["  loss: {auxiliary: {speaker: 1}}", "model: {embedding_dim: 0}"],
            "f.yml:5: training.loss.auxiliary.speaker: model.embedding_dim is 0",
        ),
        (
            "multilabel",
            ["  batching: {type: bucketed, max_tokens: 30}"],
            "f.yml:5: training.batching.max_tokens: audio has no tokens; expected training.batching.max_duration",
        ),
        (
            "multilabel",
            ["  batching: {type: bucketed, max_duration: 20}"],
            "f.yml:5: training.batching.max_duration: 20 s is less than the longest training examples (30 s",
        ),
        (
            "multilabel",
            ["model: {embedding_dim: 0}", "data: {inference: {num_speakers: 3}}"],
            "f.yml:6: data.inference.num_speakers: the model tells at most 2 speakers apart",
        ),
    ],
)
def test_one_wrong_option(read: Read, label_type: str, lines: list[str], expected: str):
    with pytest.raises(UserError) as error:
        read(label_type, *lines)
    [line] = str(error.value).splitlines()
    assert line.startswith(expected)


def test_what_fits_is_no_mistake(read: Read):
    read("multilabel", "  loss: {auxiliary: {attractor: 1, speaker: 0.1}}", "model: {head: attractors}")
    read("powerset", "  loss: {main: focal, auxiliary: {speaker: 0.1}}")
    read("binary", "  loss: bce")
    read("./own.py:Mine", "  loss: {main: focal, auxiliary: {attractor: 1}}", "model: {head: attractors}")


def test_conversations_of_more_speakers_than_the_model_has_are_remarked_on(read: Read):
    datasets = "datasets: [{type: voices, conversations: {num_speakers: [2, 3]}}]"
    [warning] = read("multilabel", datasets).warnings
    assert warning.startswith("f.yml:5: datasets.0.conversations.num_speakers: the model has 2 outputs for speakers (m")
    assert read("multilabel", datasets, "model: {max_speakers: 3}").warnings == []
    assert read("binary", datasets).warnings == []


@pytest.mark.parametrize(
    ("augmentation", "warned"),
    [("codecs: [mulaw, opus]", 1), ("codecs: [mulaw, mp3]", 0), ("codecs: [opus], codec_probability: 0", 0)],
)
def test_what_the_codec_opus_costs_is_remarked_on(read: Read, augmentation: str, warned: int):
    warnings = read("multilabel", f"data: {{augmentation: {{{augmentation}}}}}").warnings
    assert len(warnings) == warned
    assert all(
        "data.augmentation.codecs: opus takes a core about 30 ms for each second of audio, opus_fast (vaak[m4a]) 10"
        in one
        for one in warnings
    )
