"""The first YAML of a recogniser for the data found, and example data (``vaak init``)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaak.core.machine import GIB, format_bytes
from vaak.runs import example_data
from vaak.runs.example_data import utter_voices, write_audio, write_table
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.starter import Amounts, Choice, choose_seconds, choose_steps, make_datasets
from vaak.tasks.asr.checks import RATES
from vaak.tasks.asr.config import CONTEXT_SECONDS


def fill_options(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    """Return sections for the data found; each choice says why."""
    budget, per_epoch = choose_seconds(amounts, device, 60, 10), amounts.hours * 3600
    data: dict[str, Any] = {}
    if device.kind == "cpu":
        longest = min(30, math.ceil(amounts.seconds[-1]) + 1 if amounts.seconds else 30)
        data["max_duration"] = Choice(longest, "seconds; the longest recording, or 30")
        model, optimizer = _choose_conformer(amounts)
    else:
        # A pretrained Whisper pads each recording to 30 s.
        per_epoch = max(per_epoch, CONTEXT_SECONDS * amounts.examples)
        budget = budget._replace(value=max(round(CONTEXT_SECONDS), budget.value))
        model, optimizer = _choose_whisper(amounts, device)
        if amounts.language is not None:
            data["language"] = Choice(amounts.language, "most of the recordings")
    if amounts.speakers > 1:
        data["group"] = Choice("speaker", "figures are given for each")
    return {
        "datasets": make_datasets(corpora),
        "model": model,
        "data": data,
        "training": {
            "batching": {"type": "bucketed", "max_duration": budget},
            "optimizer": optimizer,
            **choose_steps(per_epoch / budget.value, device),
        },
    }


def _choose_conformer(amounts: Amounts) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a small model trained from scratch, and of its optimizer."""
    width, layers = (96, 2) if amounts.hours < 2 else (144, 4)
    why = "from scratch, as a processor allows; with a GPU, model: {base: openai/whisper-small} needs less speech"
    model = {
        "architecture": Choice("ctc", why),
        "conformer": {"d_model": Choice(width, f"for {amounts.hours:,.1f} hours"), "num_layers": layers},
    }
    return model, {"type": "muon", "lr": 1e-2, "adamw_lr": 3e-3}


def _choose_whisper(amounts: Amounts, device: Device) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options of a Whisper that fits into the device, adapted if data are few, and of its optimizer."""
    gib = device.total / GIB
    base, parameters = ("openai/whisper-large-v3-turbo", "809M") if gib >= 20 else ("openai/whisper-small", "244M")
    why = f"{parameters} parameters, fit into {format_bytes(device.total)}; downloaded once"
    model: dict[str, Any] = {"base": Choice(base, why)}
    if amounts.hours >= 20 and gib >= 10:
        return model, {"type": "adamw", "lr": Choice(RATES.whole, "Whisper's")}
    why = f"{amounts.hours:,.1f} hours: low-rank adapters forget less than all weights would"
    model["lora"] = {"rank": Choice(16, why), "alpha": 32, "targets": ["q_proj", "v_proj"]}
    return model, {"type": "adamw", "lr": Choice(RATES.adapters, "usual for adapters")}


def write_example(folder: Path) -> None:
    """Digits of several people, in a table with columns that other toolkits have, too."""
    rows: dict[str, list[tuple[str, str, str]]] = {split: [] for split in example_data.SHARES}
    spoken = utter_voices(example_data.NUM_VOICES, example_data.NUM_SENTENCES // 2, True)
    for number, (speaker, text, samples, rate) in enumerate(spoken):
        split = {8: "valid", 9: "test"}.get(number % 10, "train")
        name = f"clips/{speaker}-{number:03}.wav"
        write_audio(folder / name, samples, rate)
        rows[split].append((name, text, speaker))
    for split, lines in rows.items():
        write_table(folder / f"{split}.csv", ("file_name", "transcription", "speaker"), lines)
