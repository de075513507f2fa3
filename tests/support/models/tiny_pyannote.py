"""Checkpoints as pyannote.audio writes them, of small networks that were never trained."""

from __future__ import annotations

import sys
import types
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import torch

from vaak.tasks.diarization.pyannote import PyanNet, Sizes

SMALL = Sizes(lstm_size=4, lstm_layers=2, linear_size=6, linear_layers=2)


def save_pyannote(path: Path, sizes: Sizes = SMALL, further: Any = None, **hyper: Any) -> PyanNet:
    """Write a pickle of Lightning with objects of classes that aren't installed here; return the network."""
    torch.manual_seed(0)
    network = PyanNet(sizes).eval()
    with pytest.MonkeyPatch.context() as patch:
        made: dict[str, type] = {}
        for name in ("pyannote.audio.core.task.Specifications", "omegaconf.listconfig.ListConfig"):
            module, _, own = name.rpartition(".")
            places = module.split(".")
            for depth in range(1, len(places) + 1):
                place = ".".join(places[:depth])
                patch.setitem(sys.modules, place, types.ModuleType(place))
            made[own] = type(own, (), {"__module__": module})
            setattr(sys.modules[module], own, made[own])
        specifications = made["Specifications"]()
        classes = [f"speaker#{number}" for number in range(1, sizes.num_speakers + 1)]
        specifications.__dict__.update(duration=sizes.duration, classes=classes)
        if sizes.max_set is not None:
            specifications.powerset_max_classes = sizes.max_set
        torch.save(
            {
                "state_dict": network.state_dict(),
                "hyper_parameters": {
                    "sample_rate": 16000,
                    "num_channels": 1,
                    "sincnet": {"stride": 10, "sample_rate": 16000},
                    "lstm": {"hidden_size": sizes.lstm_size, "num_layers": sizes.lstm_layers, "bidirectional": True},
                    "linear": {"hidden_size": sizes.linear_size, "num_layers": sizes.linear_layers},
                    **hyper,
                },
                "pyannote.audio": {
                    "architecture": {"module": "pyannote.audio.models.segmentation.PyanNet", "class": "PyanNet"},
                    "specifications": specifications,
                },
                "callbacks": [made["ListConfig"](), defaultdict(list), further],
            },
            path,
        )
    return network
