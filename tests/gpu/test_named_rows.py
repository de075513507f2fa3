"""Weights on a GPU take rows by their names; the mask of known rows is on the same device."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mock_cuda import MockDevice
from vaak.config.training import CheckpointConfig
from vaak.engine import trained
from vaak.engine.trained import NamedRows, initialise


def test_rows_are_taken_by_name_on_the_device(gpu: MockDevice, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    source = torch.arange(6.0).view(3, 2)

    class Found:
        model = {"weight": source}  # noqa: RUF012

    monkeypatch.setattr(trained, "load_checkpoint", lambda *_, **__: Found)
    monkeypatch.setattr(trained, "resolve_checkpoint", lambda path: path)
    model = nn.Embedding(3, 2).to("cuda")
    drawn = model.weight.detach().cpu().clone()
    rows = NamedRows([(model.weight, "labels")], {"labels": ["c", "new", "a"]}, {"labels": ["a", "b", "c"]})
    initialise(model, CheckpointConfig(init_from=str(tmp_path)), rows)
    assert torch.equal(model.weight.detach().cpu(), torch.stack([source[2], drawn[1], source[0]]))
