"""How results are printed or written: lines one by one, a table for people, a line of JSON for programs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from vaak.config.metrics import chance_in_words, describe_counts, in_words
from vaak.core.console import format_time
from vaak.core.errors import UserError
from vaak.core.left_out import SplitContents
from vaak.core.progress import track
from vaak.core.storage.files import write_text
from vaak.core.storage.text_lines import split_lines
from vaak.report.tables import aligned
from vaak.runs.folder.directory import command_to_go_on, require_writable

if TYPE_CHECKING:
    from vaak.runs.start import Outcome


def create_folder(folder: Path | None, option: str = "--output") -> None:
    """Create the folder that an ``option`` names, if any, before the work whose results go there.

    Raises UserError if it can't be created or written to.
    """
    try:
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
            require_writable(folder)
    except OSError as error:
        raise UserError(f"{option}: the folder {folder} can't be created: {error.strerror or error}") from error


def print_or_write(lines: Iterable[str], output: Path | None, total: int | None = None) -> None:
    """Print lines one by one; with ``output``, write them to that file, completely or not at all.

    Progress is shown where the lines can't be seen as they come; ``total`` is their number, if it is known.
    """
    if output is not None or (total is not None and not sys.stdout.isatty()):
        lines = track(lines, "results", total)
    if output is None:
        for line in lines:
            print(line, flush=True)
        return
    try:
        write_text(output, "".join(f"{line}\n" for line in lines))
    except OSError as error:
        raise UserError(f"--output {output} can't be written: {error.strerror or error}") from error


EARLY = "early stopping"
"""How the reason of a run that ended as planned begins."""


def print_outcome(outcome: Outcome, as_json: bool, report: Path | None = None) -> None:
    """Print how training ended, its last metrics, its ``report``, and the command that resumes the run."""
    if as_json:
        from vaak.callbacks.console import print_line

        values = {"reason": outcome.reason, "run": str(outcome.directory), "step": outcome.step}
        print_line({"kind": "result", **values, **outcome.metrics})
        return
    from vaak.report.start import compare_with_start, explain_lacking_intervals
    from vaak.runs.evaluate import below_baselines

    if outcome.metrics:
        # None where the run ended after another step than the last evaluation's.
        changes = compare_with_start(outcome.directory, outcome.step)
        print_metrics(outcome.metrics, {one.name: one.cells for one in changes})
        if line := explain_lacking_intervals(changes):
            print(line)

    for line in below_baselines(outcome.directory, outcome.metrics):
        print(line)
    _print_samples(outcome)
    if outcome.best:
        print(f"\nbest checkpoint: {outcome.best}")
    if report is not None:
        print(f"report: {report}")
    ended_early = outcome.reason.startswith(EARLY)
    if ended_early:
        print(f"ended at step {outcome.step} of {outcome.total_steps} ({outcome.reason})")
    elif outcome.reason != "finished":
        print(f"stopped at step {outcome.step} of {outcome.total_steps} ({outcome.reason})")
        print(f"resume with: {command_to_go_on(outcome.directory)}")
        return
    _print_next(outcome, "ended" if ended_early else "finished")


def print_trial(outcome: Outcome, as_json: bool) -> None:
    """Print what a run gave that was only tried."""
    if as_json:
        from vaak.callbacks.console import print_line

        print_line({"kind": "result", "reason": outcome.reason, "run": None, "step": outcome.step, **outcome.metrics})
        return
    if outcome.metrics:
        print_metrics(outcome.metrics)
    _print_samples(outcome)
    how = f"tried: {outcome.step} steps, an evaluation of a few examples, a checkpoint"
    if outcome.reason != "finished":
        how = f"stopped at step {outcome.step} of {outcome.total_steps} ({outcome.reason})"
    print(f"\n{how}; nothing was kept")


def _print_samples(outcome: Outcome) -> None:
    if outcome.samples:
        print("\nsamples")
    for sample in outcome.samples:
        # Each sample is printed on one line.
        print("  " + " / ".join(split_lines(sample)))


def _print_next(outcome: Outcome, how: str) -> None:
    """Print a run's duration, useful next commands, and its folder."""
    print(f"time: {format_time(outcome.seconds)}\n\nnext")
    for command in outcome.commands:
        print(f"  {command}")
    print(f"\n{how} step {outcome.step}; the run is in {shlex.quote(str(outcome.directory))}")


def print_contents(data: Mapping[str, Any], file: TextIO | None = None) -> None:
    """A line for each split: how much was read and left out (``vaak.core.left_out.SplitContents``)."""
    for split, values in data.items():
        print(SplitContents.from_json(values).describe(split), file=file)


def print_failed(done: str, number: int, failed: Mapping[Path, UserError]) -> None:
    """On standard error, why each recording that failed did, and how many were ``done``, unless it is only one."""
    for reason in failed.values():
        print(reason, file=sys.stderr)
    if number + len(failed) > 1:
        failures = f"; left out: {len(failed):,}" if failed else ""
        print(f"{number:,} of {number + len(failed):,} recordings {done}{failures}", file=sys.stderr)


def failed_to_json(failed: Mapping[Path, UserError]) -> list[dict[str, str]]:
    return [{"file": str(path), "reason": str(error)} for path, error in failed.items()]


def print_metrics(metrics: dict[str, Any], changes: Mapping[str, tuple[str, str]] | None = None) -> None:
    """A headed table of names and values, with those of chance, and those before training, where they are known.

    ``changes`` has the value before the first step, and the difference with its interval of 95 %, by name.
    """
    rows = [("metric", "value", "chance", "before", "difference")]
    for name, value in metrics.items():
        shown = in_words(name, value) if isinstance(value, float) else str(value)
        rows.append((name, shown, chance_in_words(name), *(changes or {}).get(name, ("", ""))))
    # A column that is empty but for its heading is left out.
    filled = [place for place in range(len(rows[0])) if place < 2 or any(row[place] for row in rows[1:])]
    rows_shown = [tuple(row[place] for place in filled) for row in rows]
    print("\n".join([*aligned(rows_shown, left=1), *describe_counts(metrics)]))
