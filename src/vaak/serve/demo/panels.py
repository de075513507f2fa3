"""What all panels of the page have in common: a column for each run, filled one after another from one input."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr

from vaak.core.errors import UserError
from vaak.report.html import Html
from vaak.serve.batching import Job
from vaak.serve.demo import drawing
from vaak.serve.demo.examples import Example, read_examples
from vaak.serve.demo.keeping import KeptRecordings
from vaak.serve.errors import FAULT, ApiError
from vaak.serve.gate import Limits
from vaak.serve.models import Served, Server
from vaak.serve.uploads import naming_files, require_limits

log = logging.getLogger("vaak")
WORKING = Html('<p class="note" aria-busy="true">…</p>')
NO_RECORDING = "no recording yet: record one, or choose a file"
ASK_FOR_TEXT = "no text yet: write one"
Show = Callable[[Served], Iterator[Html]]
"""Yields the output of one model; each replaces the one before."""


@dataclass(frozen=True)
class Page:
    """What is served, where recordings are kept (None: nowhere), and a ``folder`` for files while the page is there."""

    server: Server
    kept: KeptRecordings | None
    folder: Path

    @property
    def limits(self) -> Limits:
        return self.server.limits

    def examples(self, models: Sequence[Served]) -> list[Example]:
        """Return examples of the first of some models that has any."""
        for number, one in enumerate(models):
            folder = self.folder / f"examples-{one.name.replace('/', '_')}-{number}"
            folder.mkdir(parents=True, exist_ok=True)
            if found := read_examples(one, folder):
                return found
        return []


def submit(served: Served, job: Job) -> list[Any]:
    """Return the results of a job. Raises what went wrong with it."""
    served.worker.submit(job)
    try:
        return job.future.result()
    finally:
        job.has_left = True


def columns(models: Sequence[Served]) -> list[gr.HTML]:
    """Make a column for each model, side by side; where a page is narrow, one below the other."""
    made = list[gr.HTML]()
    with gr.Row():
        for one in models:
            with gr.Column(min_width=320):
                made.append(gr.HTML(drawing.frame(one.name)))
    return made


def fill_columns(shown: Sequence[gr.HTML], models: Sequence[Served], show: Show) -> Iterator[dict[Any, str]]:
    """Yield what each column of ``columns`` shows, as it changes."""
    for changed in side_by_side(models, show):
        yield name_outputs(shown, changed)


def name_outputs(outputs: Sequence[Any], values: Iterable[Any]) -> dict[Any, Any]:
    """Return the values of some components as gradio takes them, however many there are.

    A list isn't: when it is returned for a single output, gradio takes the list itself as the value.
    """
    return dict(zip(outputs, values, strict=True))


def side_by_side(models: Sequence[Served], show: Show) -> Iterator[list[str]]:
    """Yield what all columns show, as it changes. An error of the user is shown in the column in which it arose."""
    shown = [drawing.frame(one.name, WORKING) for one in models]
    yield [*shown]
    for number, one in enumerate(models):
        for found in _with_errors(one, show):
            shown[number] = drawing.frame(one.name, found)
            yield [*shown]


def _with_errors(served: Served, show: Show) -> Iterator[Html]:
    try:
        yield from show(served)
    except (UserError, ApiError) as error:
        yield drawing.wrong(str(error))
    except Exception:
        log.exception("%s failed", served.name)
        yield drawing.wrong(FAULT)


def require_recording(page: Page, recording: str | None) -> Path:
    """Return the path of a recording that was sent. Raises UserError or ApiError for none, and one that isn't read."""
    if not recording:
        raise UserError(NO_RECORDING)
    path = Path(recording)
    with naming_files([path]):
        require_limits(path, page.limits)
    return path


def require_text(page: Page, text: str | None) -> str:
    """Return a text that was sent. Raises UserError for none, and for one that is too long."""
    if not text or not text.strip():
        raise UserError(ASK_FOR_TEXT)
    if len(text) > page.limits.max_characters:
        raise UserError(f"the text has {len(text):,} characters; at most {page.limits.max_characters:,} are read")
    return text


def offer_examples(found: Sequence[Example], given: Any, reference: Any) -> None:
    """Show examples, of which the one that is clicked fills two components."""
    if found:
        gr.Examples(
            [[str(one.given), str(one.reference)] for one in found],
            [given, reference],
            label="Examples of validation, with their references",
            examples_per_page=len(found),
            api_visibility="private",
        )


def offer_with_reference(page: Page, models: Sequence[Served], text: Any, reference: gr.Textbox) -> None:
    """Show examples, and the place of their reference where there are any."""
    found = page.examples(models)
    reference.visible = bool(found)
    offer_examples(found, text, reference)
