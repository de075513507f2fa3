"""Bands: whose thresholds, what is on the border, and that nothing flaps."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.core.machine import THRESHOLDS
from vaak.engine.memory import PRESSURE_MARGIN, Band, choose_thresholds, classify_pressure

LOW, MODERATE, HIGH, CRITICAL = Band


def test_cuda_has_the_seeds_bands():
    bands = [
        classify_pressure(pressure, THRESHOLDS["cuda"]) for pressure in (0.599, 0.6, 0.749, 0.75, 0.85, 0.851, 2.0)
    ]
    assert bands == [LOW, MODERATE, MODERATE, HIGH, HIGH, CRITICAL, CRITICAL]


@pytest.mark.parametrize(("device", "critical"), [("cuda", 0.85), ("mps", 0.80), ("cpu", 0.90)])
def test_every_device_has_its_own(device, critical):
    assert choose_thresholds(torch.device(device))[2] == critical
    assert choose_thresholds(torch.device(device), [0.1, 0.2, 0.3]) == (0.1, 0.2, 0.3)


@pytest.mark.parametrize("given", [[0.5, 0.6], [0.6, 0.5, 0.7], [0.0, 0.5, 0.7], [0.5, 0.6, 1.0], ["a", 0.5, 0.6]])
def test_thresholds_that_are_none_are_refused(given):
    with pytest.raises(UserError, match="thresholds"):
        choose_thresholds(torch.device("cpu"), given)


pressures = st.floats(0, 1.2)
any_thresholds = st.sampled_from(list(THRESHOLDS.values()))


@given(pressures, any_thresholds, st.sampled_from(Band))
def test_a_band_rises_at_once_and_falls_by_a_margin(pressure, thresholds, before):
    plain, band = classify_pressure(pressure, thresholds), classify_pressure(pressure, thresholds, before)
    assert band >= plain
    if plain >= before:
        assert band == plain
    else:
        assert band <= before
        assert band == plain or pressure >= thresholds[band - 1] - PRESSURE_MARGIN


@given(
    st.lists(st.floats(-PRESSURE_MARGIN / 2.1, PRESSURE_MARGIN / 2.1), min_size=2), any_thresholds, st.integers(0, 2)
)
def test_trembling_around_a_threshold_enters_a_band_once(tremors, thresholds, which):
    band, entries = Band.LOW, 0
    for tremor in tremors:
        before, band = band, classify_pressure(thresholds[which] + tremor, thresholds, band)
        entries += band > max(before, which)
    assert entries <= 1
