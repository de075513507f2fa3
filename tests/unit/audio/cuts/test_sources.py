"""Several sources one after another: every index reaches its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from toy_recordings import ToyRecordings
from vaak.audio.cuts.sources import UtteranceSources


def test_every_index_reaches_its_source():
    parts = [ToyRecordings([100, 200]), ToyRecordings([]), ToyRecordings([300], fingerprint="other")]
    parts[0].speakers, parts[2].speakers = ("b", "c"), ("a", "b")
    sources = UtteranceSources(parts)
    assert (sources.durations * 16000).tolist() == [100, 200, 300]
    assert [len(sources.load(index, np.random.default_rng(0)).samples) for index in range(3)] == [100, 200, 300]
    assert [sources.describe(index) for index in range(3)] == ["toy-0", "toy-1", "toy-0"]
    assert (parts[0].loaded, parts[2].loaded) == ([0, 1], [0])
    assert sources.speakers == ("a", "b", "c")


def test_the_fingerprint_is_of_all_in_their_order():
    one, other = ToyRecordings([100]), ToyRecordings([100], fingerprint="other")
    found = {UtteranceSources(parts).fingerprint for parts in ([one], [one, one], [one, other], [other, one])}
    assert len(found) == 4


def test_draws_come_from_the_rng_that_is_given():
    class Drawn(ToyRecordings):
        def load(self, index, rng):
            return replace(super().load(index, rng), name=str(rng.random()))

    sources = UtteranceSources([Drawn([1]), Drawn([1])])
    assert sources.load(1, np.random.default_rng(3)).name == str(np.random.default_rng(3).random())
