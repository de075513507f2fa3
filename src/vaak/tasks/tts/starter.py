"""The first YAML of a voice for the data found (``vaak init``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.starter import (
    Amounts,
    Choice,
    choose_mel,
    choose_muon,
    choose_seconds,
    choose_steps,
    make_datasets,
)


def fill_options(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    """Sections for the data found; each choice says why."""
    has_times = all(next(one.folder.rglob("*.TextGrid"), None) is not None for one in corpora)
    width = 128 if amounts.hours < 1 or device.kind == "cpu" else 256
    durations = "given" if has_times else "learned"
    why = "by the TextGrids" if has_times else "text and audio are aligned while training, without TextGrids"
    longest = min(20, math.ceil(amounts.seconds[-1]) + 1 if amounts.seconds else 20)
    budget = choose_seconds(amounts, device, 40, 8)
    return {
        **choose_mel(amounts),
        "datasets": make_datasets(corpora),
        "model": {
            "durations": Choice(durations, why),
            "global_config": {
                "d_model": Choice(width, f"for {60 * amounts.hours:,.0f} minutes"),
                "num_layers": 2 if width == 128 else 4,
                "num_heads": 2,
                "dropout": 0.0 if width == 128 else 0.1,
            },
            "encoder": {"feed_forward_kernel": 3},
            "decoder": {"feed_forward_kernel": Choice(5, "spectra change within a phoneme after little training")},
            "duration_predictor": {"width": 128},
        },
        "data": {"max_duration": Choice(longest, "seconds; longer utterances are left out")},
        "training": {
            "batching": {"type": "bucketed", "max_duration": budget},
            "optimizer": choose_muon(width),
            **choose_steps(amounts.hours * 3600 / budget.value, device),
        },
    }
