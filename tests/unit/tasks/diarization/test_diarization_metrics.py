"""Figures: sums add up over batches, and are those of pyannote.metrics on the whole set."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyannote.core import Annotation, Timeline
from pyannote.core import Segment as Stretch
from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate
from torch import nn

from small_diarizers import COLLATORS, FRAME_SHIFT, SPEAKERS, conversation, small_diarizer
from vaak.audio.segments import Segment
from vaak.config.experiment import experiment_type
from vaak.core.batch import Batch
from vaak.tasks.diarization.config import DiarizationDataConfig, InferenceConfig, ScoringConfig
from vaak.tasks.diarization.labels import DiarizationExample
from vaak.tasks.diarization.metrics import DiarizationMeters, cut_window, scoring_protocol
from vaak.tasks.diarization.model import DiarizationModel
from vaak.tasks.diarization.predict import Diarizer
from vaak.tasks.diarization.task import DiarizationTask

EXAMPLES = [conversation(seed, frames, f"r{seed}") for seed, frames in enumerate((900, 333, 1501, 40, 700))]


def meters_of(model: DiarizationModel, **data: Any) -> DiarizationMeters:
    """Meters whose losses are the task's."""
    config = DiarizationDataConfig(**data)
    experiment: Any = experiment_type("diarization")(
        task="diarization", name="made", run_dir=Path("made"), model=model.config.model_dump(), data=config.model_dump()
    )
    task = DiarizationTask(experiment, None, None)  # type: ignore[arg-type]
    task.collator = model.collator

    def diarizer(_: nn.Module) -> Diarizer:
        return Diarizer(model, config.inference, FRAME_SHIFT)

    return DiarizationMeters(config, "valid", diarizer, task.score)


def batch_of(model: DiarizationModel, examples: list[DiarizationExample]) -> Batch:
    return model.collator(examples)


def annotation(segments: list[Segment]) -> Annotation:
    found = Annotation()
    for number, (start, end, speaker) in enumerate(segments):
        found[Stretch(start, end), number] = speaker
    return found


def measured(model: DiarizationModel, *groups: list[DiarizationExample], **data: Any) -> DiarizationMeters:
    meters = meters_of(model, **data)
    with torch.no_grad():
        for group in groups:
            meters.update(model, batch_of(model, group))
    return meters


@pytest.mark.parametrize("label_type", COLLATORS)
def test_sums_add_up_over_batches_and_ranks(label_type: str):
    model = small_diarizer(label_type)
    whole = measured(model, EXAMPLES)
    batches = measured(model, EXAMPLES[:2], EXAMPLES[2:])
    ranks: Counter[str] = Counter()
    for share in (EXAMPLES[::2], EXAMPLES[1::2]):
        ranks.update(measured(model, share).sums())
    assert whole.sums() == pytest.approx(batches.sums(), rel=1e-5)
    assert whole.sums() == pytest.approx(dict(ranks), rel=1e-5)
    assert whole.results(whole.sums()) == pytest.approx(batches.results(dict(ranks)), rel=1e-5)
    assert whole.sums()["recordings"] == len(EXAMPLES)


@pytest.mark.parametrize("conditions", [{}, {"collar": 0.25}, {"skip_overlap": True}])
def test_the_figures_are_pyannotes_on_the_whole(conditions: dict[str, Any]):
    model = small_diarizer(seed=1)  # one whose speakers pyannote, which cuts before it maps, maps as we do
    meters = measured(model, EXAMPLES[:3], EXAMPLES[3:], scoring=conditions, inference={"window": 4.0})
    results = meters.results(meters.sums())
    options = {"collar": 2 * conditions.get("collar", 0.0), "skip_overlap": conditions.get("skip_overlap", False)}
    error, jaccard, miscounted = DiarizationErrorRate(**options), JaccardErrorRate(**options), []
    diarizer = meters.diarizer(model)
    for example in EXAMPLES:
        hypothesis = diarizer.segments(diarizer.probabilities(example.features))
        reference = list(example.segments)
        scored = Timeline([Stretch(reference[0].start, max(segment.end for segment in reference))])
        for metric in (error, jaccard):
            metric(annotation(reference), annotation(hypothesis), uem=scored)
        speakers = [{segment.speaker for segment in segments} for segments in (reference, hypothesis)]
        miscounted.append(abs(len(speakers[0]) - len(speakers[1])))
    assert results["der"] == pytest.approx(abs(error), rel=1e-6)
    assert results["der"] == pytest.approx(results["miss"] + results["false_alarm"] + results["confusion"])
    assert results["jer"] == pytest.approx(abs(jaccard), rel=1e-6)
    assert results["speaker_error"] == np.mean(miscounted)


def test_uem_says_what_counts():
    model, example = small_diarizer(), conversation(3, 800)
    part = DiarizationExample("part", example.features, example.segments, example.duration, ((1.0, 3.0),))
    whole, in_part = (measured(model, [one]).sums() for one in (example, part))
    assert 0 < in_part["scored"] < whole["scored"]
    expected = sum(max(0.0, min(end, 3.0) - max(start, 1.0)) for start, end, _ in example.segments)
    assert in_part["scored"] == pytest.approx(expected)


def test_a_recording_longer_than_the_window_is_read_in_windows():
    """Its loss is that of the windows, its figures are those of the whole."""
    model, example = small_diarizer(), conversation(5, 1000)
    meters = measured(model, [example], inference={"window": 4.0})
    diarizer = meters.diarizer(model)
    windows = [cut_window(example, first, last, FRAME_SHIFT) for first, last in diarizer.windows(1000)]
    assert len(windows) == 4
    with torch.no_grad():
        scored = [meters.score(model, batch_of(model, [window])) for window in windows]
    expected = sum(float(one.terms[one.main].total) for one in scored)
    assert meters.sums()["loss"] == pytest.approx(expected, rel=1e-5)
    assert meters.sums()["frame"] == 4 * 200
    [shown] = meters.shown.values()
    assert shown.hypothesis == diarizer.segments(diarizer.probabilities(example.features))
    assert shown.reference == list(example.segments)


def test_a_window_has_what_is_said_in_it():
    example = conversation(5, 1000)
    window = cut_window(example, 200, 500, FRAME_SHIFT)
    np.testing.assert_array_equal(window.features, example.features[200:500])
    assert window.duration == pytest.approx(3.0)
    collator = small_diarizer("binary").collator
    np.testing.assert_array_equal(collator.labels(window, 150), collator.labels(example, 500)[100:250])
    assert cut_window(example, 0, 1000, FRAME_SHIFT) is example


@pytest.mark.parametrize("label_type", COLLATORS)
def test_frames_are_right_where_every_label_is(label_type: str):
    """A model that says the truth has every frame right; one that says the opposite none."""
    model, example = small_diarizer(label_type), conversation(1, 600)
    collator = model.collator
    labels = batch_of(model, [example])["labels"]
    truth = torch.nn.functional.one_hot(collator.targets(labels)) if collator.has_classes else labels
    for sign, expected in ((1.0, 1.0), (-1.0, 0.0)):
        scores = sign * 20.0 * (2.0 * truth.float() - 1.0)
        scores = torch.nn.functional.pad(scores, (0, collator.num_outputs - scores.shape[-1]), value=-20.0 * sign)
        model.head.forward = lambda hidden, scores=scores: scores  # type: ignore[method-assign]
        results = measured(model, [example])
        if collator.orders and sign < 0:
            continue  # the opposite of two speakers in turn is the other order
        metrics = results.results(results.sums())
        assert metrics["frame_accuracy"] == expected
        if sign > 0:
            assert metrics["loss"] < 1e-4
            assert metrics["der"] < 0.15 if label_type == "speaker_id" else metrics["der"] < 0.02


def test_speakers_that_training_never_had_are_no_frames():
    model = small_diarizer("speaker_id")
    example = conversation(1, 600)
    strangers = tuple(segment._replace(speaker="stranger") for segment in example.segments)
    sums = measured(model, [DiarizationExample("x", example.features, strangers, example.duration)]).sums()
    silent = (model.collator.labels(example, 300) == 0).sum()
    assert sums["frame"] == silent
    assert sums["right"] <= silent
    assert np.isfinite(sums["loss"])


def test_nothing_is_shown_of_a_batch_that_failed(monkeypatch: pytest.MonkeyPatch):
    model = small_diarizer()
    meters = meters_of(model)
    monkeypatch.setattr("vaak.tasks.diarization.metrics.score_segments", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError), torch.no_grad():
        meters.update(model, batch_of(model, EXAMPLES[:2]))
    assert not meters.shown
    assert not any(meters.sums().values())


def test_silence_has_figures_that_need_no_speech():
    model = small_diarizer()
    silent = DiarizationExample("mute", np.zeros((300, 6), np.float32), (), 3.0)
    meters = measured(model, [silent])
    results = meters.results(meters.sums())
    assert set(results) == {"loss", "frame_accuracy", "speaker_error", "speaker_ceiling"}
    assert meters.results(meters_of(model).sums()) == {}


def test_errors_in_the_number_of_speakers_by_the_true_number_and_how_often_the_model_is_at_its_limit():
    """A model for two speakers, which says one or two of them whatever there is."""
    model = small_diarizer(max_speakers=2)
    sums: Counter[str] = Counter()
    # The true number, then the number found: it is off by 0, 1, 0, 1, 2 and 7.
    for place, (true, found) in enumerate(((1, 1), (1, 2), (2, 2), (2, 1), (4, 2), (9, 2))):
        turns = tuple(Segment(float(turn), turn + 1.0, f"speaker {turn % true}") for turn in range(10))
        example = DiarizationExample(f"r{place}", np.zeros((1000, 6), np.float32), turns, 10.0)
        scores = torch.full((1, 500, 2), -20.0)
        scores[:, :250, 0] = 20.0
        scores[:, 250:, found - 1] = 20.0
        model.head.forward = lambda hidden, scores=scores: scores  # type: ignore[method-assign]
        sums.update(measured(model, [example]).sums())
    results = meters_of(model).results(dict(sums))
    counts = {name: value for name, value in results.items() if name.startswith("speaker_")}
    assert counts == {
        "speaker_error": (0 + 1 + 0 + 1 + 2 + 7) / 6,
        "speaker_ceiling": 4 / 6,
        "speaker_error/1": 0.5,
        "speaker_error/2": 0.5,
        "speaker_error/4": 2.0,
    }


def test_figures_carry_their_conditions():
    scoring, inference = ScoringConfig(collar=0.25, skip_overlap=True), InferenceConfig(threshold=0.4)
    data = DiarizationDataConfig(scoring=scoring, inference=inference)
    protocol = scoring_protocol(data, "test")
    assert protocol["split"] == "test"
    assert (protocol["collar"], protocol["overlap"], protocol["threshold"]) == ("0.25", "skipped", "0.4")
    assert scoring_protocol(DiarizationDataConfig(), "test")["overlap"] == "scored"
    assert len(SPEAKERS) == 3
