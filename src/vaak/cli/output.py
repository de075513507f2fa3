"""Lines of results: printed as they come, or written to a file."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from vaak.core.errors import UserError
from vaak.core.progress import followed
from vaak.core.storage.files import write_text
from vaak.runs.folder.directory import demand_writable


def create_folder(output: Path | None) -> None:
    """Create the folder of ``--output``, where it is given, before the work that it is for.

    Raises UserError where it can't be created or written to.
    """
    try:
        if output is not None:
            output.mkdir(parents=True, exist_ok=True)
            demand_writable(output)
    except OSError as error:
        raise UserError(f"--output {output} can't be created: {error.strerror}") from error


def print_or_write(lines: Iterable[str], output: Path | None, total: int | None = None) -> None:
    """Print lines one by one; with ``output``, write them to that file, completely or not at all.

    Progress is shown where the lines can't be seen as they come; ``total`` is their number, if it is known.
    """
    if output is not None or (total is not None and not sys.stdout.isatty()):
        lines = followed(lines, "results", total)
    if output is None:
        for line in lines:
            print(line, flush=True)
        return
    try:
        write_text(output, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise UserError(f"--output {output} can't be written: {error.strerror or error}") from error
