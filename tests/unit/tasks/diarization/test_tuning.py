"""Settings found on development recordings: better where possible, never worse, and scored as in use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from vaak.audio.segments import Segment
from vaak.scoring.diarization_errors import diarization_error
from vaak.tasks.diarization.config import InferenceConfig, ScoringConfig
from vaak.tasks.diarization.labels import DiarizationExample
from vaak.tasks.diarization.metrics import scoring_protocol
from vaak.tasks.diarization.predict import Diarizer, tune


class Shy:
    """Says 0.3 where a speaker speaks and 0.1 elsewhere: its features are who speaks, a column for each."""

    class config:  # noqa: N801
        subsampling = output_subsampling = 1

    class collator:  # noqa: N801
        names = None

        @staticmethod
        def reference(example: DiarizationExample) -> tuple[Segment, ...]:
            return example.segments


class ShyDiarizer(Diarizer):
    def outputs(self, read: Any, num_frames: int) -> Any:
        from vaak.tasks.diarization.stitching import WindowOutput

        return [WindowOutput(0, 0.1 + 0.2 * read(0, num_frames).astype(np.float32))]


def examples(number: int = 3) -> list[DiarizationExample]:
    found = []
    for seed in range(number):
        rng = np.random.default_rng(seed)
        changes = np.sort(rng.choice(np.arange(5, 195), 6, replace=False)) * 0.1
        segments = [Segment(changes[i], changes[i + 1], name) for i, name in ((0, "a"), (2, "b"), (4, "a"))]
        speaks = np.zeros((200, 2))
        for start, end, name in segments:
            speaks[round(start * 10) : round(end * 10), "ab".index(name)] = 1
        found.append(DiarizationExample(f"r{seed}", speaks, tuple(segments), 20.0))
    return found


class ForgetfulDiarizer(Diarizer):
    """Reads windows of 5 s, without overlap; hears the same voice rather differently in each."""

    def outputs(self, read: Any, num_frames: int) -> Any:
        from vaak.tasks.diarization.stitching import WindowOutput

        rng = np.random.default_rng(0)
        parts = [(first, read(first, first + 50)) for first in range(0, num_frames, 50)]
        voices = [np.eye(2, 24) + 0.2 * rng.standard_normal((2, 24)) for _ in parts]
        return [
            WindowOutput(first, part.astype(np.float32), own) for (first, part), own in zip(parts, voices, strict=True)
        ]


def test_a_model_that_hears_voices_differently_gets_a_higher_clustering_threshold():
    found = tune(ForgetfulDiarizer(Shy(), InferenceConfig(clustering_threshold=0.2), 0.1), examples(), ScoringConfig())  # type: ignore[arg-type]
    assert found.before.rate is not None
    assert found.before.rate > 0.2
    assert found.after.errors == pytest.approx(0.0, abs=1e-6)
    assert 0.4 < found.inference.get_clustering_threshold() < 1.0
    known = InferenceConfig(clustering_threshold=0.2, num_speakers=2)
    assert tune(ForgetfulDiarizer(Shy(), known, 0.1), examples(), ScoringConfig()).inference == known  # type: ignore[arg-type]


def reading(example: DiarizationExample) -> Callable[[int, int], np.ndarray]:
    return lambda first, last: example.features[first:last]


def shy(**inference: Any) -> Diarizer:
    return ShyDiarizer(Shy(), InferenceConfig(**inference), 0.1)  # type: ignore[arg-type]


def test_a_model_that_says_too_little_gets_a_lower_threshold():
    found = tune(shy(), examples(), ScoringConfig())
    assert found.recordings == 3
    assert found.before.rate == pytest.approx(1.0)
    assert found.after.errors == pytest.approx(0.0, abs=1e-6)
    assert 0.1 < found.inference.threshold <= 0.3


def test_the_figure_is_that_of_the_recordings_diarized_with_the_settings():
    noisy = examples()
    rng = np.random.default_rng(9)
    for example in noisy:
        example.features[:] = np.clip(example.features + 1.5 * rng.standard_normal(example.features.shape), -0.4, 4)
    scoring = ScoringConfig(collar=0.1)
    found = tune(shy(threshold=0.4), noisy, scoring)
    assert 0 < found.after.errors < found.before.errors
    diarizer = shy(**found.inference.model_dump())
    wrong = 0.0
    for example in noisy:
        outputs = diarizer.outputs(reading(example), 200)
        segments = diarizer.segments(diarizer.joined(outputs, 200))
        wrong += diarization_error(example.segments, segments, uem=None, collar=0.1, skip_overlap=False).errors
    assert wrong == pytest.approx(found.after.errors)


def test_what_stitching_makes_worse_is_not_taken(monkeypatch: pytest.MonkeyPatch):
    """The search knows recordings as they were stitched; a threshold that stitches worse is given up."""
    diarizer = shy(threshold=0.2)
    joined = ShyDiarizer.joined

    def torn(self: Diarizer, outputs: Any, num_frames: int) -> np.ndarray:
        whole = joined(self, outputs, num_frames)
        return whole if self.inference.median_filter == 0 else np.zeros_like(whole)

    monkeypatch.setattr(ShyDiarizer, "joined", torn)
    monkeypatch.setattr(
        "vaak.tasks.diarization.predict.tune_segments",
        lambda found, inference, *_: inference.model_copy(update={"median_filter": 0.3}),
    )
    found = tune(diarizer, examples(), ScoringConfig())
    assert found.inference == diarizer.inference
    assert found.after == found.before


def test_the_protocol_says_what_was_used():
    from vaak.tasks.diarization.config import DiarizationDataConfig

    data = DiarizationDataConfig(inference=InferenceConfig(threshold=0.35, median_filter=0.2))
    assert scoring_protocol(data, "test") | {"threshold": "0.35", "median_filter": "0.2"} == scoring_protocol(
        data, "test"
    )
