"""Stage ``base``: a tiny Whisper, trained from scratch on voices whose accents aren't those that are adapted to.

whisper/    as transformers saves it: model.base of the other stages        run/    its run
"""

from __future__ import annotations

import shutil
from typing import Any

from vaak.pipeline.stage import Work
from vaak.tasks.asr.stages.options import MoeOptions
from vaak.tasks.asr.stages.runs import BASE_ACCENTS, VOICES, Values, best_figures, say_fallbacks, seconds_of

STEPS = {"quick": 100, "full": 1000}
FOLDER = "whisper"


def values_of(options: MoeOptions) -> Values:
    """The run's configuration."""
    return {
        "task": "asr",
        "model": {
            "scratch": {
                "d_model": 96,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "max_target_length": 64,
                "dropout": 0.0,
            }
        },
        "datasets": [VOICES],
        "data": {
            "group": "accent",
            "groups": BASE_ACCENTS,
            "max_duration": seconds_of(options),
            "tokenizer": {"type": "bpe", "vocab_size": 400},
        },
        "training": {
            "max_steps": STEPS[options.mode],
            "random_seed": options.seed,
            "device": options.device,
            "optimizer": {"lr": 2e-3},
            "scheduler": {"type": "linear", "warmup_steps": 30},
            "validation": {"interval": STEPS[options.mode] // 2, "interval_epochs": None},
            "checkpoint": {"interval": 50, "interval_epochs": None},
        },
    }


def settings(options: MoeOptions) -> Values:
    """What of the data changes the base: how long they are at most."""
    return {"data": {"max_duration": seconds_of(options)}}


def base(work: Work) -> dict[str, Any]:
    """The stage's body."""
    from vaak.runs.open_run import open_run

    say_fallbacks(work.options)
    outcome = work.train(values_of(work.options), work.options.base_config)
    folder = work.folder / FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # a file of it may have been lost
    opened = open_run(outcome.directory, device="cpu")
    opened.task.export_hf(opened.model, folder)
    return {"wer": best_figures(outcome.directory)["val_wer"]}
