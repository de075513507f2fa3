"""Panels of texts: those that a language model writes, labels, translations, and what any other task predicts."""

from __future__ import annotations

import queue
from collections.abc import Iterator, Sequence
from typing import Any

import gradio as gr

from vaak.report.html import Html, element
from vaak.runs.use import reads_files, to_json
from vaak.serve.answers import translate_job
from vaak.serve.batching import Job, Kind
from vaak.serve.demo import drawing
from vaak.serve.demo.panels import (
    Page,
    columns,
    fill_columns,
    name_outputs,
    offer_with_reference,
    require_recording,
    require_text,
    side_by_side,
    submit,
)
from vaak.serve.forms import ChatRequest, CompletionRequest
from vaak.serve.models import Served
from vaak.serve.speakers import predict_files_job
from vaak.serve.uploads import naming_files
from vaak.serve.writing import Asked, Row, read_request
from vaak.text.corpora.conversations import read_conversation

Message = dict[str, Any]


def _sampling_controls(page: Page) -> list[Any]:
    """Make the options of a text that is written; they begin with those of ``vaak generate``."""
    from vaak.tasks.lm.config import GenerationOptions

    usual = GenerationOptions()
    with gr.Row():
        most = gr.Slider(1, page.limits.max_tokens, value=usual.max_new_tokens, step=1, label="New tokens, at most")
        temperature = gr.Slider(0, 2, value=usual.temperature, step=0.05, label="Temperature")
        seed = gr.Number(0, label="Seed", precision=0)
    return [most, temperature, seed]


def _read_controls(most: float, temperature: float, seed: float) -> dict[str, Any]:
    """Return a request's fields; a text that outgrows the context continues from its end, as in ``vaak generate``."""
    return {"max_tokens": int(most), "temperature": temperature, "seed": int(seed), "truncation": "auto"}


def complete_panel(page: Page, models: Sequence[Served]) -> None:
    """A prompt, which models continue token by token."""
    prompt = gr.Textbox(label="Prompt", lines=3)
    controls = _sampling_controls(page)
    with gr.Row():
        button = gr.Button("Continue", variant="primary")
        stop = gr.Button("Stop")
    reference = gr.Textbox(label="Its continuation in the data", lines=2, interactive=False, visible=False)
    shown = columns(models)

    def run(given: str, most: float, temperature: float, seed: float) -> Iterator[dict[Any, str]]:
        def show(served: Served) -> Iterator[Html]:
            text = require_text(page, given)
            form = CompletionRequest(prompt=text, **_read_controls(most, temperature, seed))
            asked = read_request(page.server, served, form, [served.task.prompt(text)], chat=False)
            remarks = Html("".join(map(drawing.note, asked.warnings)))
            for written in write(asked):
                yield Html(drawing.plain_text(written, text) + remarks)

        yield from fill_columns(shown, models, show)

    running = button.click(run, [prompt, *controls], shown, api_visibility="private")
    stop.click(None, None, None, cancels=[running])
    offer_with_reference(page, models, prompt, reference)


def write(asked: Asked) -> Iterator[str]:
    """Yield the text that a model writes, longer and longer; the last is that of ``vaak generate``."""
    told: queue.Queue[str | None] = queue.Queue()
    rows = asked.rows(lambda row, piece: told.put(piece))
    job = asked.job(rows)
    job.future.add_done_callback(lambda _: told.put(None))
    asked.served.worker.submit(job)
    text = ""
    try:
        yield text
        while (piece := told.get()) is not None:
            text += piece
            yield text
        written: list[Row] = job.future.result()
        yield written[0].text
    finally:
        job.has_left = True


def chat_panel(page: Page, models: Sequence[Served]) -> None:
    """A conversation with each model."""
    logs = list[gr.Chatbot]()
    with gr.Row():
        for one in models:
            with gr.Column(min_width=320):
                logs.append(gr.Chatbot(label=one.name, render_markdown=False, buttons=["copy"], height=360))
    message = gr.Textbox(label="Message", lines=2)
    controls = _sampling_controls(page)
    with gr.Row():
        button = gr.Button("Send", variant="primary")
        stop = gr.Button("Stop")
        clear = gr.Button("Begin again")
    failed = gr.HTML()

    def run(given: str, most: float, temperature: float, seed: float, *before: list[Message]) -> Iterator[list[Any]]:
        talks = [[*_plain_messages(one), {"role": "user", "content": given}] for one in before]

        def show(served: Served) -> Iterator[Html]:
            number = models.index(served)
            messages = talks[number]
            require_text(page, given)
            form = ChatRequest(messages=messages, **_read_controls(most, temperature, seed))
            found = read_conversation({"messages": messages, "tools": None}, "messages")
            prompt = served.task.chat_template.prompt(found.messages, "messages", found.tools)
            asked = read_request(page.server, served, form, [prompt], chat=True)
            for written in write(asked):
                talks[number] = [*messages, {"role": "assistant", "content": written}]
                yield Html("".join(map(drawing.note, asked.warnings)))

        for shown in side_by_side(models, show):
            remarks = Html("".join(one for one in shown if 'role="alert"' in one))
            yield [*talks, remarks, ""] if given.strip() else [*before, remarks, given]

    events = (button.click, message.submit)
    outputs = [*logs, failed, message]
    running: list[Any] = [
        event(run, [message, *controls, *logs], outputs, api_visibility="private") for event in events
    ]
    stop.click(None, None, None, cancels=running)
    clear.click(lambda: name_outputs(logs, [[] for _ in logs]), None, logs, api_visibility="private")


def _plain_messages(talk: Sequence[Message] | None) -> list[Message]:
    """Return the messages of a chatbot as a model reads them: its texts come back in parts."""
    found = []
    for one in talk or ():
        content = one["content"]
        if isinstance(content, list):
            content = "".join(part.get("text", "") for part in content if isinstance(part, dict))
        found.append({"role": one["role"], "content": content})
    return found


def classify_panel(page: Page, models: Sequence[Served]) -> None:
    """A text with its labels, as bars."""
    text = gr.Textbox(label="Text", lines=3)
    button = gr.Button("Classify", variant="primary")
    reference = gr.Textbox(label="Reference", interactive=False, visible=False)
    shown = columns(models)

    def run(given: str) -> Iterator[dict[Any, str]]:
        def show(served: Served) -> Iterator[Html]:
            found = _predict(served, require_text(page, given))
            several = len(found.labels) > 1
            parts: list[Html] = []
            for column, labels in found.labels.items():
                said = ", ".join(labels) or "no label"
                parts.append(drawing.plain_text(f"{column}: {said}" if several else said))
                parts.append(drawing.bars(found.probabilities[column]))
            yield Html("".join(parts))

        yield from fill_columns(shown, models, show)

    button.click(run, [text], shown, api_visibility="private")
    offer_with_reference(page, models, text, reference)


def _predict(served: Served, given: Any) -> Any:
    """Return the prediction for one input, as ``vaak predict`` makes it."""
    length = len if isinstance(given, str) else (lambda _: 1.0)
    [found] = submit(served, Job(Kind(("predict", served.name), served.predict, length), iter([given])))
    return found


def translate_panel(page: Page, models: Sequence[Served]) -> None:
    """A text and its translations."""
    text = gr.Textbox(label="Text", lines=3)
    button = gr.Button("Translate", variant="primary")
    reference = gr.Textbox(label="Reference", lines=2, interactive=False, visible=False)
    shown = columns(models)

    def run(given: str) -> Iterator[dict[Any, str]]:
        def show(served: Served) -> Iterator[Html]:
            [found] = submit(served, translate_job(served, [require_text(page, given)]))
            parts = [drawing.plain_text(found.text)]
            others = [one.text for one in found.candidates[1:]]
            if others:
                listed = element("ol", *(element("li", one) for one in others))
                parts.append(element("details", element("summary", "Other translations"), listed))
            yield Html("".join(parts))

        yield from fill_columns(shown, models, show)

    button.click(run, [text], shown, api_visibility="private")
    offer_with_reference(page, models, text, reference)


def predict_panel(page: Page, models: Sequence[Served]) -> None:
    """Show the predictions of other tasks for a text or a recording, as JSON."""
    hears = reads_files(models[0].task)
    if hears:
        given: Any = gr.Audio(sources=["microphone", "upload"], type="filepath", label="Recording", buttons=[])
    else:
        given = gr.Textbox(label="Input", lines=3)
    button = gr.Button("Predict", variant="primary")
    shown = columns(models)

    def run(value: str | None) -> Iterator[dict[Any, str]]:
        def show(served: Served) -> Iterator[Html]:
            if hears:
                path = require_recording(page, value)
                with naming_files([path]):
                    [[found]] = submit(served, predict_files_job(served, [path]))
            else:
                found = _predict(served, require_text(page, value))
            yield drawing.as_json(to_json(found))

        yield from fill_columns(shown, models, show)

    button.click(run, [given], shown, api_visibility="private")
