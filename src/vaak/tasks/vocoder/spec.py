"""The vocoder task's specification; options that don't go together, or have no effect. No torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.config.experiment import Experiment
from vaak.config.tasks import (
    LAYERLESS,
    CheckFinding,
    StarterData,
    TaskSpec,
    impossible,
    load_name,
    no_effect,
    only_length,
)
from vaak.tasks.adapter_checks import lora_findings
from vaak.tasks.audio_checks import dataset_findings, mel_findings
from vaak.tasks.formats import DCP, ONNX, PEFT
from vaak.tasks.vocoder import METRICS
from vaak.tasks.vocoder.config import (
    ADVERSARIAL,
    ALIASES,
    DEFAULTS,
    DISCRIMINATOR,
    LOSSES,
    MATCHING,
    VocoderDataConfig,
    VocoderExperiment,
    VocoderModelConfig,
)

NOT_STORED = ("pitch", "dither", "storage_path", "storage_type", "num_jobs", "progress_bar")


def checks(experiment: VocoderExperiment) -> Iterator[CheckFinding]:
    """Yield the findings on an experiment of this task."""
    model, mel, loss = experiment.model, experiment.global_config.mel, experiment.training.loss
    yield from mel_findings(experiment, NOT_STORED, "a vocoder computes spectrograms while it trains")
    yield from dataset_findings(experiment.datasets, reads_times=False)
    yield from lora_findings(experiment, model.lora, model.pretrained is not None)
    if model.hifigan is not None:
        for name in ("width", "num_layers", "inner_width", "prior"):
            yield no_effect(f"model.{name}", "it is of Vocos, and model.hifigan is given")
        if model.lora is not None:
            yield impossible("model.lora", "HiFi-GAN has no linear layers to adapt; leave it out")
        rates = model.hifigan.upsample_rates
        if mel is not None and math.prod(rates) != mel.hop_length:
            yield impossible(
                "model.hifigan.upsample_rates",
                f"their product is {math.prod(rates)}, and must be global_config.mel.hop_length ({mel.hop_length})",
            )
    if mel is not None and not mel.hop_length <= mel.win_length // 2:
        yield impossible(
            "global_config.mel.hop_length",
            f"{mel.hop_length} is more than half of win_length ({mel.win_length}): audio can't be made of frames that "
            "hardly overlap",
        )
    if model.discriminators is None:
        for name in (ADVERSARIAL, MATCHING, DISCRIMINATOR):
            if name in loss.auxiliary:
                yield impossible(
                    f"training.loss.auxiliary.{name}", "model.discriminators is null, so this loss isn't computed"
                )


def losses(experiment: VocoderExperiment) -> tuple[str, ...]:
    """Return the main losses that fit spectrograms."""
    return ("l1", "mse", "smooth_l1", "huber")


def metrics(experiment: VocoderExperiment) -> list[str]:
    """Return the metrics that evaluations give."""
    names = "{}_distance", "griffin_lim_{}_distance", "{}_vs_griffin_lim"
    return ["val_loss", *(f"val_{name.format(kind)}" for name in names for kind in ("mel", "spectral"))]


def num_parameters(experiment: VocoderExperiment) -> int:
    """About how many parameters the model has, those of its discriminators included."""
    model, mel = experiment.model, experiment.global_config.mel
    if mel is None:
        # They are other features, which are an error.
        return 0
    if model.hifigan is not None:
        found = model.hifigan.num_parameters(mel.n_mels)
    else:
        blocks = model.num_layers * model.width * (2 * model.inner_width + 7)
        found = blocks + 7 * mel.n_mels * model.width + 2 * mel.num_bins * model.width
    if (others := model.discriminators) is not None:
        # Convolutions of width 5 from each number of channels to the next: 1, 4, 16, 32 and 32 times the first.
        channels = others.period_channels
        found += len(others.periods) * 5 * channels**2 * (4 + 64 + 512 + 1024)
        found += len(others.resolutions) * others.resolution_channels**2 * (15 + 15 + 9 + 9)
    return found


def opens(about: Mapping[str, Any], source: str) -> dict[str, Any] | None:
    """Return the options with which a published HiFi-GAN or Vocos is used untrained."""
    if not ("upsample_rates" in about or {"feature_extractor", "backbone", "head"} <= about.keys()):
        return None
    from vaak.tasks.vocoding import Published

    found = Published.of("the vocoder", source)
    sizes = {"pretrained": source, "discriminators": None, **found.model}
    return {"model": sizes, "global_config": {"mel": found.mel.model_dump(mode="json")}}


def require_base(experiment: Experiment[Any, Any], folder: Path) -> None:
    """Raise UserError for a published vocoder that isn't read; one of the Hub isn't fetched for that."""
    name = experiment.model.pretrained
    if name is not None and (path := next((one for one in (Path(name), folder / name) if one.exists()), None)):
        load_name("vaak.tasks.vocoding:Published").of("model.pretrained", str(path))


SPEC = TaskSpec(
    task="vaak.tasks.vocoder.task:VocoderTask",
    model=VocoderModelConfig,
    data=VocoderDataConfig,
    audio=AudioConfig,
    corpus=DatasetConfig,
    length_unit="seconds",
    defaults=DEFAULTS,
    aliases=ALIASES,
    metrics=metrics,
    own_metrics=METRICS,
    losses=losses,
    auxiliary_losses=LOSSES,
    refused_batching={
        "stratified": "crops have no classes to keep in proportion; expected fixed",
        "packed": "crops can't be put together in a row; expected fixed",
    },
    has_logits=False,
    refused_difficulties=only_length,
    networks=lambda experiment: LAYERLESS,
    num_parameters=num_parameters,
    checks=checks,
    starter="vaak.tasks.vocoder.starter:fill_options",
    starter_data=StarterData("audio", "audio", usual_for="audio"),
    example="vaak.runs.example_data:write_voice",
    commands=lambda get: ("eval {run}", 'speak TTS_RUN "…" --vocoder {run} --output speech.wav'),
    uses={"data.speaking.vocoder": ()},
    exports={"onnx": ONNX, "peft": PEFT, "dcp": DCP},
    hub_tag="audio-to-audio",
    opens=opens,
    require_base=require_base,
)
