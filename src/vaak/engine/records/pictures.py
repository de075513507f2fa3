"""Pictures of evaluations, as PNG files: ``RUN/pictures/NAME/step-00001000.png``, the newest of each name.

Meters that have ``pictures`` (vaak.core.task.Meters) are asked after their evaluation, on the main process. So is
their ``audio``, WAV files that are kept in the same way, ``step-00001000.wav``.
Pictures are not records: ``metrics.jsonl`` and the state don't know them, and one that can't be drawn or written
doesn't stop a run.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path

from vaak.core.errors import UserError
from vaak.core.storage.files import write_bytes
from vaak.engine.checkpoint.writer import remove_leftovers

log = logging.getLogger("vaak")

KEPT = 20
"""Pictures of a name."""
STEP = re.compile(r"step-(\d{8})\.(png|wav)")

Listener = Callable[[int, Mapping[str, bytes]], None]


def is_audio(content: bytes) -> bool:
    """Whether it is a WAV file; otherwise it is a picture."""
    return content[:4] == b"RIFF"


class Pictures:
    """The pictures of a run, written to a folder and handed to those who subscribed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.listeners: list[Listener] = []
        self.fails = False

    def subscribe(self, listener: Listener) -> None:
        """Have ``listener`` called with every step and its pictures, PNG by name, from now on."""
        self.listeners.append(listener)

    def show(self, step: int, draw: Callable[[], Mapping[str, bytes]]) -> None:
        """Draw the pictures of a step, write them, and pass them on. The first failure is logged."""
        try:
            drawn = draw()
            for name, content in drawn.items():
                self._write(step, name, content)
        except Exception as error:
            if not self.fails:
                reason = error if isinstance(error, UserError | OSError) else repr(error)
                log.warning("no pictures of this evaluation (%s); training continues without them", reason)
            self.fails = True
            return
        for listener in self.listeners if drawn else ():
            listener(step, drawn)

    def of_step(self, step: int) -> dict[str, bytes]:
        """The pictures of a step that are there, by name."""
        return {path.parent.name: path.read_bytes() for path in self.folder.glob(f"*/step-{step:08d}.*")}

    def cut(self, step: int, aside: Path | None = None) -> None:
        """Delete the pictures of later steps, or move them to the folder ``aside``; and what a killed process left."""
        for folder in self.folder.glob("*/"):
            remove_leftovers(folder)
            for later, path in _by_step(folder):
                if later <= step:
                    continue
                if aside is None:
                    path.unlink()
                else:
                    (aside / folder.name).mkdir(parents=True, exist_ok=True)
                    path.rename(aside / folder.name / path.name)

    def _write(self, step: int, name: str, content: bytes) -> None:
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes(folder / f"step-{step:08d}.{'wav' if is_audio(content) else 'png'}", content)
        for _, path in _by_step(folder)[:-KEPT]:
            path.unlink()


def _by_step(folder: Path) -> list[tuple[int, Path]]:
    """The pictures of a folder with their steps, in order."""
    found = [(STEP.fullmatch(path.name), path) for path in folder.iterdir()]
    return sorted((int(match[1]), path) for match, path in found if match)
