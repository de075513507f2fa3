"""TensorBoard events that repeat what ``metrics.jsonl`` says, and the run's pictures."""

from __future__ import annotations

from collections.abc import Mapping

from vaak.callbacks.tracking.event_file import EventFile
from vaak.callbacks.tracking.tracked import Tracker, numbers
from vaak.core.callback import Run
from vaak.engine.records.metrics_file import Record, read_newest_records
from vaak.engine.records.pictures import is_audio


class TensorBoardCallback(Tracker):
    """Writes RUN/tensorboard; events after the step where the run starts or resumes are purged.

    A run may have resumed before at the same step (its evaluation was still due, and then it was killed). So that step
    is purged too, and what ``metrics.jsonl`` kept of it is written again.
    """

    name = "TensorBoard"

    def __init__(self, only: tuple[str, ...] | None = None) -> None:
        super().__init__(only)
        self.file: EventFile | None = None

    def open(self, trainer: Run) -> None:
        step = trainer.position.step
        self.file = EventFile(trainer.directory / "tensorboard", first_step=step)
        for record in read_newest_records(trainer.directory / "metrics.jsonl", step):
            self.write(record)
        self.write_pictures(step, trainer.pictures.of_step(step))

    def write_pictures(self, step: int, pictures: Mapping[str, bytes]) -> None:
        named = {f"evaluation/{name}": content for name, content in pictures.items()}
        sounds = {name: content for name, content in named.items() if is_audio(content)}
        images = {name: content for name, content in named.items() if name not in sounds}
        if self.file is not None and images:
            self.file.add_images(step, images)
        if self.file is not None and sounds:
            self.file.add_audio(step, sounds)

    def write(self, record: Record) -> None:
        if self.file is not None:
            self.file.add_scalars(record["step"], numbers(record, self.only))

    def close(self) -> None:
        if self.file is not None:
            self.file.close()
