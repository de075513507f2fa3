"""The acoustic model as an ONNX file: symbols in, mel spectrogram out.

    acoustic.onnx     inputs: symbols (batch, symbol), symbol_lengths and speakers (batch,), int64; float32 numbers:
                      speed and, where the model has them, pitch (semitones), energy (factor) and temperature
                      outputs: mel (batch, frame, bin), frame_lengths (batch,), durations (batch, symbol)
    processor.json    the front end, with the number of each symbol; a pause comes before and after a sentence

Flow matching takes the number of steps and the method of ``data.speaking``. Its noise is drawn by onnxruntime, so the
check against PyTorch is without any: at temperature 0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vaak.audio.mel_config import MelConfig
from vaak.core.storage.files import whole_folder
from vaak.nn.onnx_file import OnnxModule, write_onnx
from vaak.tasks.tts.config import SpeakingConfig
from vaak.tasks.tts.model import Controls, Text, TtsModel
from vaak.text.speech.processor import PROCESSOR_FILE, PhonemeProcessor

OUTPUTS = ("mel", "frame_lengths", "durations")
AXES = {"symbols": {0: "batch", 1: "symbol"}, "symbol_lengths": {0: "batch"}, "speakers": {0: "batch"}}


class Speech(nn.Module):
    """The model as a function of tensors: a text, then the controls that it has, in order."""

    def __init__(self, model: TtsModel, speaking: SpeakingConfig) -> None:
        super().__init__()
        self.model = model
        self.usual = Controls(num_steps=speaking.num_steps, method=speaking.method)
        has = {"pitch": model.config.pitch, "energy": model.config.energy, "temperature": model.config.matches_flows}
        self.controls = ("speed", *(name for name, there in has.items() if there))

    def forward(self, symbols: Tensor, lengths: Tensor, speakers: Tensor, *controls: Tensor) -> tuple[Tensor, ...]:
        options: dict[str, Any] = dict(zip(self.controls, controls, strict=True))
        given = self.usual._replace(**options)
        plan = self.model.plan(Text(symbols, lengths, speakers), given)
        noise = torch.randn_like(self.model.mel(plan.frames)) if self.model.config.matches_flows else None
        spoken = self.model.spectrogram(plan, noise, given)
        return spoken.mel, spoken.plan.frame_lengths, spoken.plan.durations


def export_acoustic(
    model: TtsModel, processor: PhonemeProcessor, mel: MelConfig, speaking: SpeakingConfig, folder: Path
) -> float:
    """Write ``folder``; return the largest difference between its outputs and those of ``model``.

    ``processor`` is the front end of the model, ``mel`` describes its spectrograms, ``speaking`` has the steps of flow
    matching. Raises UserError for a folder that has something in it, and where the file can't be made or is wrong.
    """
    speech = Speech(model, speaking)

    def inputs(*lengths: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(len(lengths))
        symbols = torch.randint(1, processor.num_symbols, (len(lengths), max(lengths)), generator=generator)
        found = {
            "symbols": symbols,
            "symbol_lengths": torch.tensor(lengths),
            "speakers": torch.zeros(len(lengths)).long(),
        }
        usual = {"speed": 1.25, "pitch": 2.0, "energy": 1.5, "temperature": 0.0}
        return found | {name: torch.tensor(usual[name]) for name in speech.controls}

    metadata = {"sampling_rate": str(mel.sampling_rate), "mel": mel.model_dump_json()}
    with whole_folder(folder) as made:
        processor.save(made / PROCESSOR_FILE)
        exported = OnnxModule(speech, inputs(9, 6), AXES, OUTPUTS, [inputs(3), inputs(25, 2, 14)], metadata)
        return write_onnx(made / "acoustic.onnx", exported)
