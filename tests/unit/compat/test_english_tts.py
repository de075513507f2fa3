"""Names of the TTS trainer: its gradient scaler in a loop of one's own, its devices."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from vaak.compat.english_tts import DeviceType, MPSGradScaler
from vaak.core.errors import UserError


def trained(scaler: MPSGradScaler | torch.amp.GradScaler, model: nn.Module, overflow_at: int) -> list[float]:
    """Ten steps of a loop as the TTS trainer writes it; the scale after each."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    generator, scales = torch.Generator().manual_seed(0), []
    for step in range(10):
        loss = model(torch.randn(4, 3, generator=generator)).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss * (float("inf") if step == overflow_at else 1.0)).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


def test_a_loop_with_the_scaler_gives_the_weights_of_torchs():
    torch.manual_seed(0)
    ours = nn.Linear(3, 2)
    theirs = copy.deepcopy(ours)
    scales = trained(MPSGradScaler(), ours, overflow_at=3)
    assert scales == trained(torch.amp.GradScaler("cpu"), theirs, overflow_at=3)
    assert scales == [65536.0] * 3 + [32768.0] * 7
    assert torch.equal(ours.weight, theirs.weight)


def test_its_state_goes_on_and_disabled_it_does_nothing():
    scaler, other, off = MPSGradScaler(), MPSGradScaler(), MPSGradScaler(enabled=False)
    trained(scaler, nn.Linear(3, 2), overflow_at=0)
    other.load_state_dict(scaler.state_dict())
    assert other.get_scale() == 32768
    assert (off.scale(torch.ones(())).item(), off.get_scale(), off.is_enabled()) == (1.0, 1.0, False)


def test_unscaling_twice_is_an_error():
    optimizer = torch.optim.SGD(nn.Linear(3, 2).parameters(), lr=0.1)
    scaler = MPSGradScaler()
    scaler.unscale_(optimizer)
    with pytest.raises(UserError, match="already been called"):
        scaler.unscale_(optimizer)


def test_devices_are_those_of_the_configuration():
    assert [kind.value for kind in DeviceType] == ["cuda", "mps", "cpu"]
    assert DeviceType("cpu").device == torch.device("cpu")
    assert DeviceType.best() in DeviceType
