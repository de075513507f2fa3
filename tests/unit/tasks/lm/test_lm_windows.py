"""Windows: every target is scored once, with as much context as was asked for."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vaak.tasks.lm.data import cut_windows


@given(
    num_targets=st.lists(st.integers(0, 60), min_size=1, max_size=8),
    size=st.integers(1, 20),
    part=st.floats(0, 1),
)
def test_every_target_is_scored_once_with_enough_context(num_targets: list[int], size: int, part: float) -> None:
    stride = max(1, round(part * size))
    windows = cut_windows(np.array(num_targets), size, stride)
    scored: list[list[int]] = [[] for _ in num_targets]
    for document, start, length, first in zip(
        windows.documents, windows.starts, windows.sizes, windows.scored_from, strict=True
    ):
        assert 0 < length <= size
        assert 0 <= first < length
        assert start + length <= num_targets[document]
        assert start == 0 or first >= size - stride
        scored[document] += range(start + first, start + length)
    assert scored == [list(range(count)) for count in num_targets]


def test_documents_stay_in_order_and_empty_ones_have_no_window() -> None:
    windows = cut_windows(np.array([0, 5, 0, 2]), size=3, stride=3)
    assert windows.documents.tolist() == [1, 1, 3]
    assert windows.starts.tolist() == [0, 3, 0]
    assert windows.sizes.tolist() == [3, 2, 2]
