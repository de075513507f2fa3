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
    """Sections for the data found; each choice says why."""
    data: dict[str, Any] = {}
    budget, per_epoch = choose_seconds(amounts, device, 60, 10), amounts.hours * 3600
    gib = device.total / GIB
    if device.kind == "cpu":
        longest = min(30, math.ceil(amounts.seconds[-1]) + 1 if amounts.seconds else 30)
        data["max_duration"] = Choice(longest, "seconds; the longest recording, or 30")
        size = (96, 2) if amounts.hours < 2 else (144, 4)
        why = "from scratch, as a processor allows; with a GPU, model: {base: openai/whisper-small} needs less speech"
        model: dict[str, Any] = {
            "architecture": Choice("ctc", why),
            "conformer": {"d_model": Choice(size[0], f"for {amounts.hours:,.1f} hours"), "num_layers": size[1]},
        }
        optimizer: dict[str, Any] = {"type": "muon", "lr": 1e-2, "adamw_lr": 3e-3}
    else:
        base, parameters = ("openai/whisper-large-v3-turbo", "809M") if gib >= 20 else ("openai/whisper-small", "244M")
        model = {
            "base": Choice(base, f"{parameters} parameters, fit into {format_bytes(device.total)}; downloaded once")
        }
        # A pretrained Whisper reads 30 s, to which audio is padded: so much of a step is each recording.
        per_epoch = max(per_epoch, CONTEXT_SECONDS * amounts.examples)
        budget = budget._replace(value=max(round(CONTEXT_SECONDS), budget.value))
        is_little = amounts.hours < 20 or gib < 10
        if is_little:
            why = f"{amounts.hours:,.1f} hours: low-rank adapters forget less than all weights would"
            model["lora"] = {"rank": Choice(16, why), "alpha": 32, "targets": ["q_proj", "v_proj"]}
        optimizer = {
            "type": "adamw",
            "lr": Choice(RATES.adapters, "usual for adapters") if is_little else Choice(RATES.whole, "Whisper's"),
        }
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
