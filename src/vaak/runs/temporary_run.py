"""What a configuration describes, ready to train, in a temporary folder."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from vaak.config.load import Loaded
from vaak.config.tasks import task_class
from vaak.core.errors import UserError
from vaak.core.task import Task
from vaak.engine.checkpoint.initial_weights import initialise
from vaak.engine.devices.randomness import keeping_generators
from vaak.engine.distributed.launcher import pick_device
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.trainer import Trainer
from vaak.runs.distillation.task import distilled


@contextlib.contextmanager
def temporary_trainer(loaded: Loaded) -> Iterator[Trainer]:
    """A trainer at the start of a run, without callbacks; the state of generators is restored.

    It begins with the weights of ``training.checkpoint.init_from``, if any. One process does the work of all: steps
    don't depend on their number. Raises UserError where several were started.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UserError("this runs in one process, with the same steps: start it without torchrun or accelerate launch")
    training = loaded.experiment.training
    device = pick_device(training.device)
    with tempfile.TemporaryDirectory(prefix="vaak-study-") as folder, keeping_generators(device):
        directory = Path(folder)
        experiment = loaded.experiment.model_copy(update={"run_dir": directory})
        task: Task = task_class(experiment.reference)(experiment, directory, loaded.folder)
        task = distilled(task, experiment, directory)
        with loaded.naming_lines():
            task.prepare()
        skip_bad, folder_of_code = experiment.skips_bad_examples, loaded.folder
        trainer = Trainer(
            task, training, directory, ranks=Ranks(device), skip_bad_examples=skip_bad, folder=folder_of_code
        )
        initialise(trainer.model, training.checkpoint)
        yield trainer
