"""The first YAML of a vocoder for the data found (``vaak init``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.starter import Amounts, Choice, choose_mel, choose_steps, make_datasets


def fill_options(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    """Sections for the data found; each choice says why."""
    width = 128 if device.kind == "cpu" else 384
    batch = 8 if device.kind == "cpu" else 16
    steps = choose_steps(amounts.examples / batch, device)
    start = steps["max_steps"].value * 4 // 5
    return {
        **choose_mel(amounts),
        "datasets": make_datasets(corpora),
        "model": {
            "width": Choice(width, f"for {device.kind}"),
            "num_layers": 4 if device.kind == "cpu" else 8,
            "inner_width": 3 * width,
            "discriminators": {
                "period_channels": 4 if device.kind == "cpu" else 16,
                "resolution_channels": 8 if device.kind == "cpu" else 16,
                "start_step": Choice(start, "they cost most of a step, and help once the sound is roughly right"),
            },
        },
        "data": {"crop_frames": Choice(32, "frames of an example; crops are enough to learn from")},
        "training": {
            "batch_size": batch,
            "optimizer": {"lr": 2e-3 if width == 128 else 5e-4},
            "gradient_clipping": 10,
            "loss": {"auxiliary": {"stft": Choice(30.0, "spectra at several resolutions, besides mel")}},
            **steps,
        },
    }
