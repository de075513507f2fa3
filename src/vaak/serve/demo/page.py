"""The page: a tab for each way in which what is served is used; and the application that a browser asks for it.

Nothing comes from elsewhere: gradio's own files hold all that the page needs, and a Content-Security-Policy has the
browser refuse anything else. Nothing is sent elsewhere: analytics are off (``vaak.cli.demo`` sets this before gradio
is imported), and a request that names a URL where a file belongs is refused.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gradio as gr
from fastapi import FastAPI
from gradio import processing_utils

from vaak.core.errors import UserError
from vaak.serve.demo import speech_panels, text_panels
from vaak.serve.demo.drawing import STYLE
from vaak.serve.demo.panels import Page
from vaak.serve.gate import Gate
from vaak.serve.models import Served
from vaak.serve.running import LOOPBACK, make_config, run_gate

FONTS = ["system-ui", "sans-serif"]
MONOSPACED = ["ui-monospace", "monospace"]
POLICY = (
    "default-src 'self' data: blob:; script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:; "
    "style-src 'self' 'unsafe-inline'; object-src 'none'; base-uri 'self'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"referrer-policy", b"no-referrer"),
    (b"x-content-type-options", b"nosniff"),
)
REQUESTS_AT_ONCE = 16
"""Requests of pages that are processed at once; their computations are batched by the models' workers."""


class Panel(NamedTuple):
    """A tab for the models with an endpoint."""

    endpoint: str
    title: str
    make: Callable[[Page, Sequence[Served]], None]


PANELS = (
    Panel("transcriptions", "Transcribe", speech_panels.transcribe_panel),
    Panel("diarize", "Who speaks", speech_panels.diarize_panel),
    Panel("speech", "Speak", speech_panels.speak_panel),
    Panel("chat", "Chat", text_panels.chat_panel),
    Panel("completions", "Continue a text", text_panels.complete_panel),
    Panel("classify", "Classify", text_panels.classify_panel),
    Panel("translate", "Translate", text_panels.translate_panel),
)


def make_page(page: Page) -> gr.Blocks:
    """Return the page of what is served."""
    models = list(page.server.models.values())
    blocks: gr.Blocks
    with gr.Blocks(analytics_enabled=False, title="vaak demo", delete_cache=(3600, 24 * 3600)) as blocks, gr.Tabs():
        for panel in PANELS:
            able = [one for one in models if panel.endpoint in one.endpoints]
            if able:
                with gr.Tab(panel.title):
                    panel.make(page, able)
        for one in models:
            if not one.endpoints:
                with gr.Tab(one.name):
                    text_panels.predict_panel(page, [one])
    blocks.queue(default_concurrency_limit=REQUESTS_AT_ONCE, max_size=page.limits.max_requests, api_open=False)
    return blocks


class DemoPage(Page):
    """The page of a server."""

    def run(
        self, listening: socket.socket, token: str | None, *, when_ready: Callable[[], None] = lambda: None
    ) -> None:
        """Serve the page until a signal comes, then answer what was accepted."""
        # Where no event loop runs, gradio makes several, and closes none.
        app = asyncio.run(self._make_app())
        server, hosts = self.server, () if token is not None else LOOPBACK
        gate = Gate(app, server.limits, server.metrics, token, hosts, asks_browsers=True)
        when_ready()
        try:
            run_gate(make_config(gate, has_lifespan=True), listening, "vaak demo", app.end_streams)
        finally:
            server.close()

    async def _make_app(self) -> DemoApp:
        return make_app(self)


@dataclass(frozen=True)
class DemoApp:
    """The application of a page."""

    app: FastAPI
    pages: Any
    """gradio's application, which is mounted in it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def send_safely(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *HEADERS]
            await send(message)

        await self.app(scope, receive, send_safely)

    def end_streams(self) -> None:
        """End the streams by which open pages notice that the server is there; else it would wait for them."""
        self.pages.stop_event.set()


def make_app(page: Page) -> DemoApp:
    """Return the application of the page."""
    processing_utils.async_ssrf_protected_download = _refuse_address
    blocks = make_page(page)
    # gradio checks the location of a requested file only once a page is launched, which a mounted one never is:
    # any file of this machine could be read.
    blocks.has_launched = True
    app = FastAPI(title="vaak demo", docs_url=None, redoc_url=None, openapi_url=None)
    gr.mount_gradio_app(
        app,
        blocks,
        "/",
        footer_links=[],
        run_history=False,
        ssr_mode=False,
        mcp_server=False,
        enable_monitoring=False,
        pwa=False,
        show_error=True,
        max_file_size=page.limits.max_upload,
        theme=gr.themes.Default(font=FONTS, font_mono=MONOSPACED),
        css=STYLE,
    )
    return DemoApp(app, app.routes[-1].app)  # type: ignore[attr-defined]


async def _refuse_address(url: str, cache_dir: str) -> str:
    """Stand for gradio's download of a file that a request names by its URL."""
    raise UserError("no URL is opened: send the file itself")
