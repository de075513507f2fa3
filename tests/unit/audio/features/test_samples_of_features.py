"""Samples as users have them: with a dimension of one channel, and as whole numbers."""

import numpy as np
import pytest

import vaak.audio
from vaak.core.errors import UserError


def test_a_channel_and_whole_numbers_give_the_same_features():
    """(1, n) gave (0, 80), and 16-bit numbers other values."""
    pytest.importorskip("lhotse")
    whole = np.random.default_rng(0).integers(-9000, 9000, 8000).astype(np.int16)
    features = vaak.audio.Features(feature_type="fbank", num_mel_bins=80)
    expected = features(whole.astype(np.float32) / 32768)
    assert expected.shape == (features.num_frames(8000), 80)
    for samples in (whole, whole[None], whole.astype(np.int32) << 16, (whole / 32768)[None]):
        np.testing.assert_allclose(features(samples), expected, atol=1e-4)
    with pytest.raises(UserError, match=r"samples have the shape \(2, 8000\); expected \(time,\), one channel"):
        features(np.stack([whole, whole]))
    with pytest.raises(UserError, match="samples are uint8; expected float32"):
        features(whole.astype(np.uint8))
