"""Vaak trains speech and language models from one YAML file; a training step is a pure function.

In Python, ``import vaak`` is all (docs/library.md); each name is imported when it is first used.
"""

from typing import TYPE_CHECKING

from vaak.core.lazy import attributes

if TYPE_CHECKING:
    from vaak import audio, callbacks, nn, study
    from vaak.config.components import (
        register_auxiliary_loss,
        register_loss,
        register_network,
        register_optimizer,
        register_schedule,
        register_tokenizer,
    )
    from vaak.config.tasks import register_task
    from vaak.core.batch import Batch, Term
    from vaak.core.errors import UserError
    from vaak.core.task import Dataset, Meters
    from vaak.engine.callback import Callback
    from vaak.library.config import load_config
    from vaak.library.contract import check
    from vaak.library.fit import fit
    from vaak.library.simple_task import SimpleTask
    from vaak.library.trained_run import TrainedRun, open
    from vaak.tasks.base import Task

__version__ = "1.0.0"

__all__ = [
    "Batch",
    "Callback",
    "Dataset",
    "Meters",
    "SimpleTask",
    "Task",
    "Term",
    "TrainedRun",
    "UserError",
    "audio",
    "callbacks",
    "check",
    "fit",
    "load_config",
    "nn",
    "open",
    "register_auxiliary_loss",
    "register_loss",
    "register_network",
    "register_optimizer",
    "register_schedule",
    "register_task",
    "register_tokenizer",
    "study",
]

__getattr__ = attributes(
    __name__,
    {
        "Batch": "vaak.core.batch",
        "Callback": "vaak.engine.callback",
        "Dataset": "vaak.core.task",
        "Meters": "vaak.core.task",
        "SimpleTask": "vaak.library.simple_task",
        "Task": "vaak.tasks.base",
        "Term": "vaak.core.batch",
        "TrainedRun": "vaak.library.trained_run",
        "UserError": "vaak.core.errors",
        "audio": "vaak.audio",
        "callbacks": "vaak.callbacks",
        "check": "vaak.library.contract",
        "fit": "vaak.library.fit",
        "load_config": "vaak.library.config",
        "nn": "vaak.nn",
        "open": "vaak.library.trained_run",
        "register_auxiliary_loss": "vaak.config.components",
        "register_loss": "vaak.config.components",
        "register_network": "vaak.config.components",
        "register_optimizer": "vaak.config.components",
        "register_schedule": "vaak.config.components",
        "register_task": "vaak.config.tasks",
        "register_tokenizer": "vaak.config.components",
        "study": "vaak.study",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
