"""Makers of audio of mel spectrograms: Griffin–Lim, or a vocoder that a run has trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from vaak.audio.features.mel import MelSpectrogram, waveform_of
from vaak.audio.mel_config import MelConfig
from vaak.core.errors import UserError
from vaak.runs.folder.directory import places_of_another
from vaak.runs.open_run import open_run

Vocoder = Callable[[Sequence[Tensor]], list[Tensor]]
"""Gives samples ``(time,)``, on the CPU, of each mel spectrogram ``(frame, bin)``: up to its last frame's centre."""


def griffin_lim(mel: MelConfig, num_iterations: int) -> Vocoder:
    """The vocoder that needs no training, for spectrograms as ``mel`` describes them."""
    layer = MelSpectrogram(mel)
    return lambda spectrograms: [waveform_of(one.cpu(), layer, num_iterations) for one in spectrograms]


def trained_vocoder(name: str, directory: Path, mel: MelConfig, device: torch.device) -> Vocoder:
    """The vocoder of the run that the run in ``directory`` names, for spectrograms as ``mel`` describes them.

    Its task has ``vocoder(model)``. Raises UserError where it hasn't, where it was trained on other spectrograms, and
    where there is no such run.
    """
    places = places_of_another(Path(name).expanduser(), directory)
    run = next((place for place in places if place.exists()), None)
    if run is None:
        looked = ", ".join(str(place.absolute()) for place in places)
        raise UserError(f"data.speaking.vocoder: no run {name}; looked for {looked}")
    opened = open_run(run, device=device.type)
    task = opened.experiment.task
    if not hasattr(opened.task, "vocoder"):
        raise UserError(f"data.speaking.vocoder: {run} is a run of task {task}; expected one of task vocoder")
    own: MelConfig = opened.task.audio.mel
    for name, value in own:
        if value != getattr(mel, name):
            raise UserError(
                f"data.speaking.vocoder: {run} was trained with global_config.mel.{name} {value}, but the spectrograms "
                f"to speak have {getattr(mel, name)}: train a vocoder with the same options of mel"
            )
    vocoder: Vocoder = opened.task.vocoder(opened.model)
    return vocoder
