"""SpecAugment masks bands and spans of the configured width, drawn by its rng alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.audio.augmentation.pipeline import masked
from vaak.audio.config import SpecAugmentConfig

SHIFT = 0.01


def features(num_frames: int = 60, num_bins: int = 40) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((num_frames, num_bins)).astype(np.float32)


def longest_run(hidden: np.ndarray) -> int:
    """The longest stretch of True."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], hidden, [False]]).astype(int)))
    return int(max(edges[1::2] - edges[::2], default=0))


@given(
    st.integers(0, 2**32 - 1),
    st.integers(0, 70),
    st.integers(1, 50),
    st.builds(
        SpecAugmentConfig,
        num_frequency_masks=st.integers(0, 3),
        frequency_mask=st.integers(0, 60),
        num_time_masks=st.integers(0, 3),
        time_mask=st.floats(0, 1),
        probability=st.sampled_from([0.0, 0.5, 1.0]),
    ),
)
def test_bands_and_stretches(seed: int, num_frames: int, num_bins: int, config: SpecAugmentConfig) -> None:
    before = features(num_frames, num_bins)
    kept = before.copy()
    after = masked(before, config, SHIFT, np.random.default_rng(seed))
    again = masked(before, config, SHIFT, np.random.default_rng(seed))
    assert after.tobytes() == again.tobytes()
    assert before.tobytes() == kept.tobytes()
    assert after.shape == before.shape
    hidden = after != before
    if not hidden.any():
        return
    assert config.probability > 0
    np.testing.assert_allclose(after[hidden], before.mean(dtype=np.float64), rtol=1e-6, atol=1e-7)
    rows, columns = hidden.all(axis=1), hidden.all(axis=0)
    assert np.array_equal(hidden, rows[:, None] | columns)  # nothing but bands and stretches
    if not rows.all() and not columns.all():
        assert rows.sum() <= config.num_time_masks * round(config.time_mask / SHIFT)
        assert columns.sum() <= config.num_frequency_masks * config.frequency_mask


@pytest.mark.parametrize("num_frames", [5, 60])
def test_every_width_up_to_the_limit_is_drawn_evenly(num_frames: int) -> None:
    config = SpecAugmentConfig(num_frequency_masks=0, num_time_masks=1, time_mask=0.04)
    rng = np.random.default_rng(0)
    before = features(num_frames)
    widths = [longest_run((masked(before, config, SHIFT, rng) != before).all(axis=1)) for _ in range(2000)]
    assert np.bincount(widths) == pytest.approx(np.full(5, 400), abs=80)


def test_some_examples_are_left_as_they_are() -> None:
    config = SpecAugmentConfig(frequency_mask=40, probability=0.25)
    rng = np.random.default_rng(0)
    changed = sum(bool((masked(features(), config, SHIFT, rng) != features()).any()) for _ in range(1000))
    assert 200 < changed < 280
