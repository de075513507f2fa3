"""Diarization error is that of a formula, of NIST, and by hand; recordings not in all files are reported."""

from __future__ import annotations

import itertools
import json
import logging
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyannote.core import Annotation, Timeline
from pyannote.core import Segment as Stretch
from pyannote.metrics.diarization import DiarizationErrorRate

from vaak.audio.formats.annotation_lines import read_rttm
from vaak.audio.segments import Segment
from vaak.core.errors import DataError
from vaak.scoring.diarization_errors import (
    ErrorSeconds,
    diarization_error,
    score_recordings,
    score_segments,
)

CLOSE = pytest.approx


def formula(reference, hypothesis, uem, collar, skip_overlap):
    """The errors by definition: time is cut at every boundary, so that nothing changes within a piece.

    The mapping of speakers is the one that shares the most time in the whole UEM, before collars and overlap are left
    out: all of them are tried. Returns ErrorSeconds with the least confusion of these, the number of reference
    speakers, and the possible sums of their Jaccard errors: where speakers tie there are several.
    """
    if uem is None:
        uem = [(min(s.start for s in reference), max(s.end for s in reference))]
    points = {segment.start for segment in reference if segment.start == segment.end}
    reference, hypothesis = _apart(reference), _apart(hypothesis)
    edges = points | {time for segment in reference for time in segment[:2]}
    cuts = {time for segment in hypothesis for time in segment[:2]} | {time for part in uem for time in part}
    cuts |= {edge + shift for edge in edges for shift in (-collar, 0.0, collar)}
    times = np.array(sorted(cuts))
    middles, lengths = (times[1:] + times[:-1]) / 2, np.diff(times)
    says = [
        {name: _covers([s[:2] for s in side if s.speaker == name], middles) for name in {s.speaker for s in side}}
        for side in (reference, hypothesis)
    ]
    counts = _covers(uem, middles) & ~_covers([(edge - collar, edge + collar) for edge in edges], middles)
    spoken = [np.array(list(side.values())).reshape(-1, len(middles)) for side in says]
    if skip_overlap:
        counts = counts & (spoken[0].sum(0) < 2)
    whole, weights = np.where(_covers(uem, middles), lengths, 0.0), np.where(counts, lengths, 0.0)
    ours, theirs = spoken
    mappings = _mappings(ours * whole, theirs * whole)
    shared = [sum(float((ours[i] * theirs[j] * weights).sum()) for i, j in pairs) for pairs in mappings]
    num_ours, num_theirs = (side.sum(0) for side in spoken)
    error = ErrorSeconds(
        scored=float((num_ours * weights).sum()),
        miss=float((np.maximum(num_ours - num_theirs, 0) * weights).sum()),
        false_alarm=float((np.maximum(num_theirs - num_ours, 0) * weights).sum()),
        confusion=float((np.minimum(num_ours, num_theirs) * weights).sum()) - max(shared),
    )
    ours, theirs = ours * weights, theirs * weights
    said = [number for number, one in enumerate(ours) if one.sum() > 0]
    return error, len(said), {_jaccard_sum(ours, theirs, said, dict(pairs)) for pairs in mappings}


def _mappings(ours, theirs):
    """All one-to-one mappings of speakers that share as much time as can be; a pair shares some."""
    choices = [*range(len(theirs)), *[None] * len(ours)]
    together = np.minimum(ours[:, None], theirs[None]).sum(-1)
    found: dict[float, set[tuple[tuple[int, int], ...]]] = {}
    for mapping in set(itertools.permutations(choices, len(ours))):
        pairs = tuple((i, j) for i, j in enumerate(mapping) if j is not None and together[i, j] > 0)
        found.setdefault(float(sum(together[pair] for pair in pairs)), set()).add(pairs)
    return found[max(found)]


def _jaccard_sum(ours, theirs, said, match):
    silence = np.zeros_like(theirs[0]) if len(theirs) else 0.0
    total = 0.0
    for speaker in said:
        other = theirs[match[speaker]] if speaker in match else silence
        total += 1 - np.minimum(ours[speaker], other).sum() / np.maximum(ours[speaker], other).sum()
    return float(total)


def _apart(segments):
    """Return the union of each speaker's segments, by sweeping over their ends; segments that touch stay two."""
    found = []
    for name in {segment.speaker for segment in segments}:
        events = sorted([(s.start, 1) for s in segments if s.speaker == name and s.end > s.start]
                        + [(s.end, -1) for s in segments if s.speaker == name and s.end > s.start])  # fmt: skip
        depth = 0
        for at, change in events:  # an end comes before a start at the same time
            if depth == 0:
                begun = at
            depth += change
            if depth == 0:
                found.append(Segment(begun, at, name))
    return found


def _covers(parts, middles):
    return np.any(
        [np.zeros(len(middles), bool), *((start < middles) & (middles < end) for start, end in parts)], axis=0
    )


def segments(names: str, least: int) -> st.SearchStrategy[list[Segment]]:
    """Segments on a grid of 1/16 s, where sums are exact, so that boundaries often coincide."""
    one = st.builds(
        lambda start, length, name: Segment(start / 16, (start + length) / 16, name),
        st.integers(0, 160), st.integers(1, 64), st.sampled_from(names),
    )  # fmt: skip
    return st.lists(one, min_size=least, max_size=8)


parts = st.lists(
    st.tuples(st.integers(0, 160), st.integers(1, 100)).map(lambda part: (part[0] / 16, sum(part) / 16)),
    min_size=1, max_size=3,
)  # fmt: skip


@given(segments("ABC", 1), segments("abcd", 0), st.none() | parts, st.sampled_from([0.0, 0.125, 0.25]), st.booleans())
def test_against_the_definition(reference, hypothesis, uem, collar, skip_overlap):
    options = {"uem": uem, "collar": collar, "skip_overlap": skip_overlap}
    expected, num_speakers, jaccard_sums = formula(reference, hypothesis, **options)
    found = diarization_error(reference, hypothesis, **options)
    assert (found.scored, found.miss) == CLOSE((expected.scored, expected.miss), abs=1e-6)
    assert (found.false_alarm, found.confusion) == CLOSE((expected.false_alarm, expected.confusion), abs=1e-6)
    score = score_segments(reference, hypothesis, **options)
    assert score.num_speakers == num_speakers
    assert min(abs(score.jaccard_sum - possible) for possible in jaccard_sums) < 1e-6


PLAIN: dict[str, Any] = {"uem": None, "collar": 0.0, "skip_overlap": False}


def jaccard_error(reference, hypothesis):
    score = score_segments(reference, hypothesis, **PLAIN)
    return score.jaccard_sum, score.num_speakers


def random_turns(rng, names, number):
    """Turns at any times, not on a grid; some without length, some of a speaker over themselves."""
    starts, lengths = rng.uniform(0, 20, number), rng.exponential(1.5, number) * (rng.random(number) > 0.1)
    return [Segment(s, s + d, rng.choice(names)) for s, d in zip(starts.tolist(), lengths.tolist(), strict=True)]


@pytest.mark.parametrize("skip_overlap", [False, True])
@pytest.mark.parametrize("collar", [0.0, 0.25])
def test_240_random_recordings_against_brute_force(collar, skip_overlap):
    rng = np.random.default_rng(7)
    for _ in range(60):
        reference = random_turns(rng, ["A", "B", "C"], int(rng.integers(1, 9)))
        hypothesis = random_turns(rng, ["a", "b", "c", "d"], int(rng.integers(0, 9)))
        uem = [(2.0, 9.5), (9.0, 13.0), (14.0, 21.0)] if rng.random() < 0.5 else None
        options = {"uem": uem, "collar": collar, "skip_overlap": skip_overlap}
        expected, num_speakers, jaccard_sums = formula(reference, hypothesis, **options)
        score = score_segments(reference, hypothesis, **options)
        assert vars(score.error) == CLOSE(vars(expected), abs=1e-6)
        assert score.num_speakers == num_speakers
        assert min(abs(score.jaccard_sum - possible) for possible in jaccard_sums) < 1e-6


def test_pyannote_agrees_where_nothing_is_left_out():
    """It maps after it has left out collars and overlap, so only without them."""
    rng = np.random.default_rng(8)
    for _ in range(30):
        reference, hypothesis = random_turns(rng, ["A", "B", "C"], 9), random_turns(rng, ["a", "b", "c"], 9)
        metric = DiarizationErrorRate()
        parts = metric.compute_components(annotation(reference), annotation(hypothesis), uem=Timeline([Stretch(0, 30)]))
        found = diarization_error(reference, hypothesis, uem=[(0, 30)], collar=0.0, skip_overlap=False)
        names = ("total", "missed detection", "false alarm", "confusion")
        assert tuple(vars(found).values()) == CLOSE(tuple(parts[name] for name in names), abs=1e-5)


def annotation(segments):
    made = Annotation()
    for track, (start, end, speaker) in enumerate(_apart(segments)):
        made[Stretch(start, end), track] = speaker
    return made


def test_speakers_are_mapped_before_the_collar_is_cut_out():
    """Twenty short turns are found as x, which are all collar, and one long turn as y: A is x, so y is confusion."""
    short = [Segment(2.0 * turn, 2.0 * turn + 0.5, "A") for turn in range(20)]
    reference = [*short, Segment(50, 54, "A")]
    hypothesis = [*(one._replace(speaker="x") for one in short), Segment(50, 54, "y")]
    assert diarization_error(reference, hypothesis, uem=None, collar=0.25, skip_overlap=False).rate == CLOSE(1.0)
    assert diarization_error(reference, hypothesis, **PLAIN).rate == CLOSE(4 / 14)


def test_speakers_are_mapped_before_overlap_is_skipped():
    reference = [Segment(0, 9, "A"), Segment(0, 9, "B"), Segment(9, 12, "A")]
    hypothesis = [Segment(0, 9, "x"), Segment(9, 12, "y")]
    swapped = [Segment(0, 9, "A"), Segment(0, 5, "B"), Segment(9, 12, "A")]
    error = diarization_error(swapped, hypothesis, uem=None, collar=0.0, skip_overlap=True)
    assert error == ErrorSeconds(scored=7, confusion=3)  # y shares more of A than x, once overlap is left out
    assert diarization_error(reference, hypothesis, uem=None, collar=0.0, skip_overlap=True).rate == 0  # x may be B


def test_a_segment_without_length_extends_what_is_scored():
    """Fixtures of meeteval's have them, and md-eval takes the first and the last time of every line."""
    reference = [Segment(3, 3, "B"), Segment(10, 20, "A"), Segment(40, 40, "A")]
    hypothesis = [Segment(0, 50, "x")]
    assert diarization_error(reference, hypothesis, **PLAIN) == ErrorSeconds(scored=10, false_alarm=27)
    assert score({"one": reference}, {"one": hypothesis}).total.error.false_alarm == 27
    assert diarization_error(reference, hypothesis, uem=None, collar=1.0, skip_overlap=False).false_alarm == 23
    assert score_segments(reference, hypothesis, **PLAIN).num_speakers == 1


def test_names_decide_nothing_where_mappings_tie():
    reference = [Segment(0, 2, "A"), Segment(10, 10.5, "A"), Segment(11, 11.5, "A"), Segment(12, 12.5, "A"),
                 Segment(13, 13.5, "A")]  # fmt: skip
    found = []
    for long, short in (("x", "y"), ("y", "x")):
        hypothesis = [Segment(0, 2, long), *(one._replace(speaker=short) for one in reference[1:])]
        found.append(diarization_error(reference, hypothesis, uem=None, collar=0.25, skip_overlap=False))
    assert found[0] == found[1] == ErrorSeconds(scored=1.5)


def test_by_hand():
    reference = [Segment(0, 10, "Ann"), Segment(8, 12, "Bob")]
    hypothesis = [Segment(1, 9, "x"), Segment(9, 15, "y")]
    error = diarization_error(reference, hypothesis, **PLAIN)
    # 0–1 Ann missed; 8–9 one of two missed; 9–10 likewise; 12–15 is after the last reference time
    assert error == ErrorSeconds(scored=14, miss=3, false_alarm=0, confusion=0)
    assert error.rate == CLOSE(3 / 14)
    assert diarization_error(reference, hypothesis, **{**PLAIN, "uem": [(0, 14)]}).false_alarm == 2
    assert jaccard_error(reference, hypothesis) == (CLOSE((1 - 8 / 10) + (1 - 3 / 4)), 2)


def test_the_collar_is_on_each_side_of_a_boundary():
    reference, late = [Segment(0, 10, "A")], [Segment(0.25, 10, "x")]
    assert diarization_error(reference, late, uem=None, collar=0.25, skip_overlap=False).rate == 0
    assert diarization_error(reference, late, uem=None, collar=0.25, skip_overlap=False).scored == 9.5
    assert diarization_error(reference, late, uem=None, collar=0.125, skip_overlap=False).miss == 0.125


def test_skipping_overlap():
    reference = [Segment(0, 10, "A"), Segment(8, 12, "B")]
    error = diarization_error(reference, [Segment(0, 12, "x")], uem=None, collar=0, skip_overlap=True)
    assert error == ErrorSeconds(scored=10, miss=0, false_alarm=0, confusion=2)


def test_speech_beyond_the_uem_is_not_scored():
    reference = [Segment(0, 4, "A"), Segment(20, 30, "A")]
    hypothesis = [Segment(0, 4, "x"), Segment(6, 18, "y")]
    error = diarization_error(reference, hypothesis, uem=[(0, 5), (4, 7)], collar=0, skip_overlap=False)
    assert error == ErrorSeconds(scored=4, miss=0, false_alarm=1, confusion=0)


def test_a_recording_without_reference_speech():
    hypothesis = [Segment(1, 3, "x")]
    assert diarization_error([], hypothesis, **PLAIN) == ErrorSeconds()
    assert diarization_error([], hypothesis, **PLAIN).rate is None
    assert diarization_error([], hypothesis, **{**PLAIN, "uem": [(0, 9)]}) == ErrorSeconds(false_alarm=2)
    assert jaccard_error([], hypothesis) == (0.0, 0)


def test_names_of_speakers_do_not_matter():
    reference = [Segment(0, 3, "A"), Segment(2, 5, "B"), Segment(5, 9, "C")]
    swapped = [segment._replace(speaker={"A": "C", "B": "A", "C": "B"}[segment.speaker]) for segment in reference]
    assert diarization_error(reference, swapped, **PLAIN).errors == 0
    assert jaccard_error(reference, swapped) == (0.0, 3)


@pytest.mark.parametrize("name", ["ami_ES2014c", "spyder_fixture"])
def test_the_figures_of_md_eval(name, vaak_data):
    folder = vaak_data("diarization/scoring") / name
    expected = json.loads((folder / "expected.json").read_text())["results"]
    references, hypotheses = read_rttm(folder / "ref.rttm"), read_rttm(folder / "hyp.rttm")
    for conditions, metrics in expected.items():
        options = dict(condition.split("=") for condition in conditions.split(","))
        skip_overlap = options["ignore_overlap"] == "true"
        error = score_recordings(references, hypotheses, None, float(options["collar"]), skip_overlap).total.error
        assert error.rate is not None
        assert 100 * error.rate == CLOSE(metrics["DER_percent"], abs=0.05)
        seconds = (error.scored, error.miss, error.false_alarm, error.confusion)
        names = ("scored_speaker_time", "missed", "false_alarm", "speaker_error")
        assert seconds == CLOSE(tuple(metrics[name] for name in names), abs=0.01)


A, B = [Segment(0, 10, "A")], [Segment(0, 30, "B")]


def score(references, hypotheses, uems=None):
    return score_recordings(references, hypotheses, uems, 0.0, False)


def test_the_total_adds_seconds_and_divides_once(caplog):
    scores = score({"one": A, "two": B}, {"one": [Segment(5, 10, "x")], "two": B})
    assert [row.recording for row in scores.rows] == ["one", "two"]
    assert [row.error.rate for row in scores.rows] == [0.5, 0.0]
    assert scores.total.error.rate == 5 / 40
    assert scores.total.jaccard_rate == 0.25
    assert not caplog.records


def test_every_figure_has_its_protocol():
    assert score({"one": A}, {"one": A}).protocol == {
        "collar": "0 s each side", "overlap": "scored", "uem": "first to last reference time",
        "recordings": "1",
    }  # fmt: skip
    assert score_recordings({"one": A}, {"one": A}, {"one": [(0, 1)]}, 0.25, True).protocol == {
        "collar": "0.25 s each side", "overlap": "skipped", "uem": "given", "recordings": "1",
    }  # fmt: skip


def test_what_is_missing_is_missed_and_said(caplog):
    scores = score({"one": A, "two": B}, {"two": B, "three": B})
    assert [row.error.rate for row in scores.rows] == [1.0, 0.0]
    assert [record.getMessage() for record in caplog.records] == [
        "one: the hypothesis has nothing of this recording; all its speech counts as missed",
        "three: the reference has nothing of this recording; it isn't scored",
    ]
    assert scores.protocol | {"recordings": "2", "without hypothesis": "1", "without reference": "1"} == scores.protocol
    assert score({"one": A}, {}).total.error.rate == 1.0


def test_the_uem_says_which_recordings_count(caplog):
    uems = {"one": [(0.0, 8.0)], "silent": [(0.0, 20.0)], "elsewhere": [(0.0, 9.0)]}
    scores = score({"one": A, "two": B}, {"one": A, "two": B, "silent": A}, uems)
    assert [row.recording for row in scores.rows] == ["one", "silent"]
    assert scores.total.error == ErrorSeconds(scored=8, false_alarm=10)
    assert scores.rows[1].error.rate is None
    assert scores.rows[1].jaccard_rate is None
    assert [record.getMessage() for record in caplog.records] == [
        "two: the UEM doesn't name this recording; it isn't scored",
        "silent: the UEM names this recording, the reference has nothing of it; all its speech counts as false alarm",
    ]
    assert (scores.protocol["recordings"], scores.protocol["of the reference"]) == ("1", "2")


def test_nothing_to_score():
    with pytest.raises(DataError, match="the reference has no segments"):
        score({}, {"one": A})
    with pytest.raises(DataError, match=r"no recording .* is one of the reference \(it has 'b', not 'a'\)"):
        score({"a": A}, {"b": A})
    with pytest.raises(DataError, match="the UEM names no recording of the reference"):
        score({"a": A}, {"a": A}, {"b": [(0.0, 1.0)]})


def test_overlap_of_a_speaker_with_themselves_is_merged_and_said_once_for_each_recording(caplog):
    twice = [Segment(0, 6, "A"), Segment(4, 10, "A"), Segment(9, 10, "A")]
    with caplog.at_level(logging.WARNING):
        scores = score({"one": twice, "two": A}, {"one": [Segment(0, 10, "x")], "two": A})
    assert scores.total.error == ErrorSeconds(scored=20)
    assert [record.getMessage() for record in caplog.records] == [
        "one: segments of one speaker overlap by 3.00 s in the reference; merged"
    ]


def test_two_hours_are_scored_in_a_moment():
    """pyannote.metrics takes seconds for them, at every validation. It is the processor's time, with a wide margin."""
    rng = np.random.default_rng(0)

    def talk(names: str) -> list[Segment]:
        starts = np.sort(rng.uniform(0, 7200, 2400))
        return [Segment(start, start + rng.uniform(0.5, 4.0), str(rng.choice(list(names)))) for start in starts]

    reference, hypothesis = talk("ABCD"), talk("12345")
    begun = time.process_time()
    error = diarization_error(reference, hypothesis, uem=None, collar=0.25, skip_overlap=False)
    assert time.process_time() - begun < 1.0
    assert error.scored > 3000


def test_names_that_differ_in_case_ending_or_form_are_one_recording():
    assert score({"one": A, "café": B}, {"One.wav": A, "cafe\u0301\u200b": B}).total.error.rate == 0
    uems = {"ONE.uem": [(0.0, 5.0)]}
    assert score({"one": A}, {"one": A}, uems).total.error.scored == 5


def test_poor_output_is_scored_and_other_units_are_refused():
    turns = [Segment(4.0 * n, 4.0 * n + 3, "A") for n in range(20)]
    poor = {"a single turn": turns[:1], "nothing right": [Segment(3.2 + 4 * n, 3.9 + 4 * n, "x") for n in range(20)]}
    for found in poor.values():
        assert score({"one": turns}, {"one": found}).total.error.rate > 0.9
    centiseconds = [Segment(100 * one.start, 100 * one.end, "x") for one in turns]
    with pytest.raises(DataError, match="times of the hypothesis look like frames of 10 ms"):
        score({"one": turns}, {"one": centiseconds})
