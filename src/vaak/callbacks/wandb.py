"""Weights & Biases, online or offline (``WANDB_MODE=offline``), repeating what ``metrics.jsonl`` says."""

from __future__ import annotations

from typing import Any

from vaak.callbacks.tracked import numbers
from vaak.core.callback import Callback
from vaak.core.errors import UserError
from vaak.core.files import fingerprint_of
from vaak.engine.records import Record


class WandbCallback(Callback):
    """One W&B run for one run directory: a resume goes on with the same id, on its own step axis."""

    main_process_only = True

    def __init__(self, settings: dict[str, Any], config: dict[str, Any], only: tuple[str, ...] | None = None) -> None:
        self.settings, self.config, self.only = settings, config, only
        self.run: Any = None

    def on_fit_start(self, trainer: Any) -> None:
        try:
            import wandb
        except ImportError as error:
            raise UserError(
                "training.logging.wandb is true but wandb isn't installed: pip install 'vaak[wandb]'"
            ) from error
        directory = trainer.directory.resolve()
        self.run = wandb.init(
            id=fingerprint_of(str(directory)), resume="allow", dir=str(directory), config=self.config, **self.settings
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")
        trainer.records.subscribe(self.write)

    def write(self, record: Record) -> None:
        self.run.log({**numbers(record, self.only), "step": record["step"]})

    def on_fit_end(self, trainer: Any, reason: str) -> None:
        if self.run is not None:
            self.run.finish()
