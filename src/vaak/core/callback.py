"""Those who watch a run, and may ask it to stop, evaluate or save."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vaak.core.report import StepReport


class Callback:
    """Override what you need; what a method returns is ignored, and the order of callbacks does not matter.

    ::

        on_fit_start
        for each optimizer step:
            on_step_end(report)
            if an evaluation is due or asked for:   on_evaluate_end(metrics)
            if the epoch ends here:                 on_epoch_end(epoch, metrics)
            if a checkpoint is due or asked for:    on_checkpoint(path)
        on_fit_end(reason)                          always, also after on_exception(error)

    A callback may ask through ``trainer.request_stop(reason)``, ``trainer.request_evaluate()`` and
    ``trainer.request_save()``. Every rank calls it, unless ``main_process_only`` is True. An exception in one names the
    callback and stops the run. What must survive a resume goes through ``state_dict`` and ``load_state_dict``, and
    must be JSON.
    """

    main_process_only = False

    def on_fit_start(self, trainer: Any) -> None: ...

    def on_step_end(self, trainer: Any, report: StepReport) -> None: ...

    def on_evaluate_end(self, trainer: Any, metrics: dict[str, float]) -> None: ...

    def on_epoch_end(self, trainer: Any, epoch: int, metrics: dict[str, float]) -> None: ...

    def on_checkpoint(self, trainer: Any, path: Path) -> None: ...

    def on_fit_end(self, trainer: Any, reason: str) -> None: ...

    def on_exception(self, trainer: Any, error: BaseException) -> None: ...

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...
