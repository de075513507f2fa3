"""One call scores segments, recordings by name and RTTM files alike."""

import pytest

import vaak
from vaak.audio.formats.annotation_lines import write_rttm
from vaak.core.errors import UserError

REFERENCE = [(0.0, 4.0, "a"), (4.0, 8.0, "b"), (9.0, 11.0, "a")]
HYPOTHESIS = [(0.0, 5.0, "x"), (5.0, 8.0, "y"), (8.0, 10.0, "x")]


def test_rates_are_parts_of_the_speech():
    rates = vaak.audio.der(REFERENCE, HYPOTHESIS)
    assert (rates.miss, rates.false_alarm, rates.confusion) == (0.1, 0.1, 0.1)
    assert rates.der == pytest.approx(0.3)
    assert rates.jer == pytest.approx((3 / 8 + 1 / 4) / 2)
    assert str(rates) == "der 30.00 %, miss 10.00 %, false_alarm 10.00 %, confusion 10.00 %, jer 31.25 %"


def test_collar_overlap_and_uem():
    with_collar = vaak.audio.der(REFERENCE, HYPOTHESIS, collar=0.5).der
    assert with_collar is not None
    assert with_collar < 0.3
    assert vaak.audio.der(REFERENCE, HYPOTHESIS, uem=[(0, 4)]).der == 0
    assert vaak.audio.der([(0, 2, "a"), (1, 2, "b")], [(0, 2, "x")], skip_overlap=True).der == 0
    assert vaak.audio.der(REFERENCE, HYPOTHESIS, collar=0.25).protocol["collar"] == "0.25 s each side"


def test_files_and_names_give_the_same(tmp_path):
    segments = {
        name: {"one": [vaak.audio.Segment(*segment) for segment in values]}
        for name, values in (("reference", REFERENCE), ("hypothesis", HYPOTHESIS))
    }
    for name, recordings in segments.items():
        write_rttm(tmp_path / f"{name}.rttm", recordings)
    from_files = vaak.audio.der(str(tmp_path / "reference.rttm"), tmp_path / "hypothesis.rttm")
    assert from_files == vaak.audio.der(segments["reference"], segments["hypothesis"])


@pytest.mark.parametrize("segments", [[(0, 1)], [("x", 1, "a")], [3], [(3, 1, "A")], [(0, float("inf"), "A")]])
def test_what_is_no_segment_is_said(segments):
    with pytest.raises(UserError, match=r"the reference has .*; expected \(start, end, speaker\), in seconds"):
        vaak.audio.der(segments, HYPOTHESIS)
    with pytest.raises(UserError, match="collar is -1"):
        vaak.audio.der(REFERENCE, HYPOTHESIS, collar=-1)
