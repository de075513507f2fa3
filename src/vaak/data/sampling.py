"""A part of a set that has its proportions of groups, as a function of a seed."""

from __future__ import annotations

import numpy as np

from vaak.core.random_keys import Purpose, draw_key


def stratified_sample(names: list[str], groups: np.ndarray, size: int, seed: int) -> np.ndarray:
    """The indices of ``size`` examples, in order, of each group its proportion to within one example.

    ``names`` and ``groups`` ``(example,)`` are those of all examples. Which ones of a group are chosen depends on their
    names and ``seed`` alone, so a larger sample of a group has all of a smaller one.
    """
    size = min(size, len(names))
    present, members = np.unique(groups, return_inverse=True)
    exact = np.bincount(members, minlength=len(present)) * (size / max(len(names), 1))
    shares = np.floor(exact).astype(np.int64)
    largest_rests = np.argsort(shares - exact, kind="stable")
    shares[largest_rests[: size - shares.sum()]] += 1
    keys = np.array([draw_key(Purpose.SAMPLE, seed, name) for name in names], np.int64)
    chosen = []
    for number, share in enumerate(shares):
        own = np.flatnonzero(members == number)
        chosen.append(own[np.argsort(keys[own], kind="stable")[:share]])
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def sample_size(number: int, percent: float, most: int | None) -> int:
    """How many of ``number`` examples ``percent`` of them are, at least one and at most ``most``.

    >>> sample_size(1000, 0.5, None), sample_size(30, 1.5, None), sample_size(1000, 100, 10), sample_size(0, 5, None)
    (5, 1, 10, 0)
    """
    share = max(1, round(number * percent / 100)) if number else 0
    return share if most is None else min(share, most)
