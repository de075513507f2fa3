"""The first YAML of a diarizer for the data found, and example data (``vaak init``)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.machine import GIB
from vaak.runs import example_data
from vaak.runs.example_data import utter_voices, write_audio
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.starter import Amounts, Choice, choose_steps, floor_power_of_two, make_datasets


def fill_options(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    """Sections for the data found; each choice says why."""
    is_talk = amounts.most_speakers > 1
    if is_talk:
        datasets = make_datasets(corpora)
        number = min(4, amounts.most_speakers)
        why = f"a recording has up to {amounts.most_speakers}; a window keeps the {number} who speak most"
    else:
        if amounts.speakers < 4:
            raise UserError(
                f"diarization needs conversations, or four speakers to simulate some, not {amounts.speakers}"
            )
        number, why = 2, "the conversations are of two"
        talk = {"train": 2000, "valid": 20, "test": 20, "num_speakers": 2, "duration": [20, 30], "train_duration": 20}
        datasets = make_datasets(corpora, 2, split_by="speaker", conversations=talk)
    window = min(30.0, max(4.0, amounts.seconds[-1])) if is_talk and amounts.seconds else 20.0
    batch = 4 if device.kind == "cpu" else floor_power_of_two(device.total / GIB, 8, 32)
    # An epoch of little data still has four steps.
    batch = min(batch, max(1, round(amounts.hours * 3600 / window / 4))) if is_talk else batch
    per_epoch = amounts.hours * 3600 / window / batch if is_talk else 2000 / batch
    data = {"data": {"window": Choice(round(window, 1), "seconds of an example; longer recordings are cut")}}
    return {
        "global_config": {"num_mel_bins": 40},
        "datasets": datasets,
        "model": {
            "preset": "small",
            **({"num_layers": 2, "d_model": Choice(96, "a processor trains it in minutes")} if batch <= 4 else {}),
            "max_speakers": Choice(number, why),
        },
        **(data if is_talk else {}),
        "training": {
            "batch_size": batch,
            "eval_knobs": {"label_type": "multilabel"},
            "optimizer": {"type": "muon", "lr": 5e-3, "adamw_lr": 1e-3},
            **choose_steps(per_epoch, device),
        },
    }


def write_example(folder: Path) -> None:
    """Conversations of two, each with an RTTM file next to it."""
    from vaak.audio.formats.annotation_lines import write_rttm
    from vaak.audio.simulation.conversations import simulate

    said: dict[str, list[Any]] = {}
    rate = 0
    voices = utter_voices(example_data.NUM_VOICES, example_data.NUM_SENTENCES // 6, False)
    for speaker, _, samples, rate in voices:  # noqa: B007 # the rate is the same for all
        said.setdefault(speaker, []).append(samples)
    talks = simulate(said, rate, example_data.NUM_CONVERSATIONS, duration=example_data.EXAMPLE_SECONDS, seed=0)
    for number, talk in enumerate(talks):
        write_audio(folder / f"talk-{number:02}.wav", talk.samples, talk.sampling_rate)
        write_rttm(folder / f"talk-{number:02}.rttm", {f"talk-{number:02}": list(talk.segments)})
