"""Labels of every type, exact to the frame; batches in which nothing of a row depends on the others."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.config import AudioConfig
from vaak.audio.features.extractors import Features
from vaak.audio.segments import Segment
from vaak.config.base import Component
from vaak.core.errors import UserError
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.diarization.labels import (
    BinaryCollator,
    DiarizationCollator,
    DiarizationExample,
    LabelOptions,
    MultilabelCollator,
    PowersetCollator,
    SpeakerIdCollator,
    activity,
    longest_speakers,
    make_collator,
)

FRAME = 0.1
OPTIONS = LabelOptions(FRAME, 2, 4, 2, ("a", "b", "c"))


def example(segments: list[tuple[float, float, str]], num_frames: int = 20, name: str = "x") -> DiarizationExample:
    """``num_frames`` are of features, two for each output frame."""
    features = np.random.default_rng(num_frames).standard_normal((num_frames, 5)).astype(np.float32)
    return DiarizationExample(name, features, tuple(Segment(*one) for one in segments), num_frames * FRAME / 2)


def options(**changed: Any) -> LabelOptions:
    return LabelOptions(**{**vars(OPTIONS), **changed})


milliseconds = st.integers(-200, 3000)


@given(
    times=st.lists(st.tuples(milliseconds, milliseconds, st.sampled_from("abc")), max_size=6),
    frame=st.sampled_from([10, 20, 25, 40, 100]),
    num_frames=st.integers(0, 120),
)
def test_a_frame_is_what_its_centre_is(times: list[tuple[int, int, str]], frame: int, num_frames: int):
    """Against the formula in whole numbers: the centre of frame t is (2 t + 1) / 2 frames from the start."""
    segments = [Segment(start / 1000, end / 1000, speaker) for start, end, speaker in times if start < end]
    found = activity(segments, ["a", "b"], num_frames, frame / 1000)
    expected = np.zeros((num_frames, 2), dtype=bool)
    for start, end, speaker in times:
        for place in range(num_frames):
            if speaker != "c" and 2 * start <= (2 * place + 1) * frame < 2 * end:
                expected[place, "ab".index(speaker)] = True
    np.testing.assert_array_equal(found, expected)


def test_those_who_speak_longest_are_kept_in_the_order_in_which_they_begin():
    segments = [Segment(0, 1, "a"), Segment(1, 4, "b"), Segment(2, 3.5, "c"), Segment(5, 6, "a"), Segment(0.5, 1, "d")]
    assert longest_speakers(segments, 4) == ["a", "d", "b", "c"]
    assert longest_speakers(segments, 3) == ["a", "b", "c"]
    assert longest_speakers(segments, 2) == ["a", "b"], "a spoke for 2 s, c for 1.5 s"
    assert longest_speakers(segments[::-1], 2) == ["a", "b"], "the order of the segments matters"
    assert longest_speakers([], 2) == []


def test_more_speakers_than_the_model_has():
    """Who speaks least is silence; nobody else's labels change."""
    segments = [(0.0, 0.5, "a"), (0.2, 0.4, "b"), (0.5, 1.0, "c")]
    labels = MultilabelCollator(OPTIONS).labels(example(segments), 10)
    np.testing.assert_array_equal(labels[:, 0], [1, 1, 1, 1, 1, 0, 0, 0, 0, 0])
    np.testing.assert_array_equal(labels[:, 1], [0, 0, 0, 0, 0, 1, 1, 1, 1, 1])


def test_binary_is_whether_anybody_speaks():
    collator = BinaryCollator(OPTIONS)
    labels = collator.labels(example([(0.0, 0.3, "a"), (0.2, 0.5, "z"), (0.8, 0.9, "b")]), 10)
    np.testing.assert_array_equal(labels[:, 0], [1, 1, 1, 1, 1, 0, 0, 0, 1, 0])
    assert (labels.shape, collator.num_outputs, collator.names) == ((10, 1), 1, ("speech",))
    reference = collator.reference(example([(0.0, 0.3, "a"), (0.2, 0.5, "b")]))
    assert reference == (Segment(0.0, 0.5, "speech"),)


def test_speaker_id_is_silence_or_the_one_who_began_first():
    collator = SpeakerIdCollator(OPTIONS)
    labels = collator.labels(example([(0.1, 0.5, "c"), (0.3, 0.7, "a"), (0.8, 1.0, "stranger")]), 10)
    np.testing.assert_array_equal(labels, [0, 3, 3, 3, 3, 1, 1, 0, IGNORED, IGNORED])
    assert (collator.num_outputs, collator.names) == (4, ("a", "b", "c"))
    logits = torch.tensor([[0.0, 0.0, 5.0, 0.0]])
    torch.testing.assert_close(collator.probabilities(logits), logits.softmax(-1)[:, 1:])


def test_frames_that_no_class_is_due_to_are_counted_by_no_one():
    batch = SpeakerIdCollator(OPTIONS)([example([(0.0, 0.2, "stranger")]), example([], 7)])
    assert batch.counts["frame"].tolist() == [8, 4]
    assert batch["mask"].sum(1).tolist() == [10, 4]
    assert (batch["labels"] == IGNORED).sum(1).tolist() == [2, 6]


def test_powerset_names_every_set_of_at_most_two():
    collator = PowersetCollator(options(max_speakers=3))
    assert collator.sets == [(), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2)]
    labels = torch.tensor([[[0, 0, 0], [0, 1, 0], [1, 0, 1], [1, 1, 1]]])
    assert collator.targets(labels.float()).tolist() == [[0, 2, 5, 4]], "of three, the first two"
    for number, members in enumerate(collator.sets):
        probabilities = collator.probabilities(torch.eye(7)[number] * 50)
        assert torch.nonzero(probabilities > 0.5)[:, 0].tolist() == list(members)


@given(seed=st.integers(0, 2**32 - 1), speakers=st.integers(1, 5))
def test_probabilities_of_powerset_are_sums_over_its_sets(seed: int, speakers: int):
    collator = PowersetCollator(options(max_speakers=speakers))
    logits = torch.from_numpy(np.random.default_rng(seed).normal(scale=5, size=(2, 3, collator.num_outputs))).float()
    found, of_sets = collator.probabilities(logits), logits.double().softmax(-1)
    for speaker in range(speakers):
        expected = sum(of_sets[..., number] for number, members in enumerate(collator.sets) if speaker in members)
        torch.testing.assert_close(found[..., speaker].double(), expected, rtol=1e-5, atol=1e-6)
    assert bool(((found >= 0) & (found <= 1 + 1e-6)).all())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(collator.probabilities(logits), found), "16 bits are too few for a threshold"
    assert bool(collator.speaker_scores(logits).isfinite().all())


@pytest.mark.parametrize("collator", [BinaryCollator, SpeakerIdCollator, MultilabelCollator, PowersetCollator])
def test_a_row_of_a_batch_is_what_it_is_alone(collator: type[DiarizationCollator]):
    examples = [
        example([(0.0, 0.5, "b"), (0.3, 0.9, "stranger")], 21, "long"),
        example([(0.1, 0.3, "a")], 5, "short"),
        example([], 8, "silent"),
    ]
    made = collator(OPTIONS)
    together = made(examples)
    for row, one in enumerate(examples):
        alone = made([one])
        frames, times = alone["mask"].shape[1], alone["feature_mask"].shape[1]
        assert together["mask"][row].tolist() == [True] * frames + [False] * (11 - frames)
        assert together["feature_mask"][row].sum() == len(one.features)
        assert torch.equal(together["features"][row, :times], alone["features"][0])
        assert not together["features"][row, len(one.features) :].any()
        for name in ("labels", "activity"):
            assert torch.equal(together[name][row, :frames], alone[name][0])
        padding = IGNORED if made([one])["labels"].ndim == 2 else 0
        assert bool((together["labels"][row, frames:] == padding).all())
        assert torch.equal(together["speaker_numbers"][row], alone["speaker_numbers"][0])
        for unit, counts in together.counts.items():
            assert counts[row] == alone.counts[unit][0], unit
    assert together.extra["examples"] == examples


def test_counts_and_speakers_of_a_batch():
    batch = MultilabelCollator(OPTIONS)([example([(0.4, 0.9, "b"), (0.0, 0.3, "stranger")], 21), example([], 5)])
    assert batch.counts["frame"].tolist() == [11, 3]
    assert batch.counts["position"].tolist() == [6, 2], "frames of the encoder"
    assert batch.counts["speaker"].tolist() == [1, 0]
    assert batch.counts["example"].tolist() == [1, 1]
    assert batch["speaker_numbers"].tolist() == [[-1, 1], [-1, -1]], "in the order in which they begin"
    assert batch["activity"].shape == (2, 11, 2)
    assert batch["labels"].dtype is torch.float32


def test_a_batch_splits_with_its_examples():
    batch = MultilabelCollator(OPTIONS)([example([], 4, "one"), example([], 6, "two")])
    assert [[one.name for one in piece.extra["examples"]] for piece in batch.split(2)] == [["one"], ["two"]]


OWN = """
import numpy as np
from vaak.tasks.diarization.labels import DiarizationCollator

class Loud(DiarizationCollator):
    num_outputs = 1
    def __init__(self, options, least=2):
        super().__init__(options)
        self.least = least
    def labels(self, example, num_frames):
        return (self.speaking(example, num_frames).sum(1, keepdims=True) >= self.least).astype(np.float32)

class Other: ...
"""


def test_a_label_type_of_ones_own(tmp_path: Path):
    (tmp_path / "own.py").write_text(OWN)
    made = make_collator(Component.model_validate({"type": "./own.py:Loud", "least": 1}), OPTIONS, tmp_path)
    assert made.labels(example([(0.0, 0.2, "a")]), 4)[:, 0].tolist() == [1, 1, 0, 0]
    for component, expected in [
        (
            Component(type="./own.py:Other"),
            "Other is not a subclass of vaak.tasks.diarization.labels:DiarizationCollator",
        ),
        (
            Component.model_validate({"type": "./own.py:Loud", "most": 1}),
            "Loud can't be created: .*unexpected keyword argument 'most'",
        ),
        (
            Component.model_validate({"type": "multilabel", "most": 1}),
            "multilabel can't be created: .*unexpected keyword argument 'most'",
        ),
        (Component(type="multi"), "'multi' is not known; expected one of binary, custom, multilabel"),
    ]:
        with pytest.raises(UserError, match=expected):
            make_collator(component, OPTIONS, tmp_path)


@pytest.mark.parametrize(("rate", "shift"), [(16000, 0.01), (8000, 0.0125)])
def test_an_example_is_a_cut_of_lhotse_with_its_frames_labels_and_audio(rate: int, shift: float):
    """Whatever the length, Lhotse counts the same frames, and reads the same features and samples."""
    options = AudioConfig(sampling_rate=rate, frame_shift=shift, high_freq=0.0, num_mel_bins=8)
    extractor = Features(options)
    for number in range(rate // 10, rate // 10 + 400, 37):
        samples = np.random.default_rng(number).normal(size=number).astype(np.float32)
        features = extractor(samples)
        example = DiarizationExample(
            "a", features, (Segment(0.0, 0.05, "ann"),), number / rate, audio=partial(np.asarray, samples),
            frame_shift=extractor.frame_shift, sampling_rate=rate,
        )  # fmt: skip
        cut = example.to_lhotse()
        assert cut.num_frames == len(features)
        assert np.array_equal(cut.load_features(), features)
        assert np.array_equal(cut.load_audio(), samples[None])
        [label] = cut.supervisions
        assert (label.speaker, label.start, label.end, label.duration) == ("ann", 0.0, 0.05, 0.05)
        assert (example.end, example.num_features, example.has_recording) == (cut.duration, 8, True)
        assert pickle.loads(pickle.dumps(replace(example, audio=None))).name == "a"
