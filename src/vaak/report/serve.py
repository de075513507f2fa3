"""``vaak report --watch``: pages on this machine alone, renewed whenever their run has changed.

    GET /              the page of the run or of the comparison, or the list of the runs of a folder
    GET /run/NAME/     of a list: the page of a run that is in it
    GET …version       a text that changes with what the page shows; the page asks for it every two seconds

It listens on 127.0.0.1, and answers only requests that name that address, so that no page from elsewhere can read it
through another name that points here (DNS rebinding). A request never becomes a file path: NAME is looked up among the
names of the list.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import quote, unquote

from vaak.core.errors import UserError
from vaak.report.comparison import comparison_page
from vaak.report.html import Html, document, element, section, to_html
from vaak.report.page import REPORT, run_page
from vaak.report.run_facts import is_own, read_facts
from vaak.runs.folder.listing import RunSummary, list_runs

log = logging.getLogger("vaak")
HOST = "127.0.0.1"
WATCHED = ("metrics.jsonl", "status.json", "sessions.jsonl", "verification.json", "samples.json", "baselines.json")
FILTERS = ("name", "task", "state", "best")

Page = tuple[Callable[[], str], Callable[[], str]]
"""The functions that make a page and its version."""


class Reports:
    """The pages to serve: of one run, of several compared, or of all below a folder."""

    def __init__(self, runs: Sequence[Path], folder: Path | None = None) -> None:
        self.runs, self.folder = list(runs), folder

    def find(self, path: str) -> Page | None:
        """Return the page at a path, which begins and ends with a slash; None if there is none."""
        folder = self.folder
        if path == "/":
            if folder is None:
                return self._of_runs, lambda: make_version(self.runs)
            return (
                lambda: list_page(folder, live=True),
                lambda: make_version([folder / one.name for one in list_runs(folder)]),
            )
        if folder is None or not (path.startswith("/run/") and path.endswith("/")):
            return None
        named = {one.name: folder / one.name for one in list_runs(folder)}
        run = named.get(unquote(path.removeprefix("/run/").removesuffix("/")))
        return None if run is None else (lambda: run_page(read_facts(run), live=True), lambda: make_version([run]))

    def _of_runs(self) -> str:
        facts = [read_facts(run) for run in self.runs]
        return run_page(facts[0], live=True) if len(facts) == 1 else comparison_page(facts, live=True)


def make_version(runs: Sequence[Path]) -> str:
    """Return a text that changes when a run writes anything that its page shows."""
    seen = []
    for run in runs:
        for path in (*(run / name for name in WATCHED), *sorted(run.glob("pictures/*/step-*"))):
            try:
                about = path.stat()
            except OSError:
                continue
            seen.append((str(path), about.st_mtime_ns, about.st_size))
    return hashlib.sha256(repr(seen).encode()).hexdigest()[:16]


def list_page(folder: Path, live: bool = False) -> str:
    """Return the runs below a folder as a table with filters; each leads to its page, where there is one."""
    runs = [one for one in list_runs(folder) if one.trained or one.state == "running"]
    inputs = [_filter(name, runs) for name in FILTERS]
    head = element("tr", *(element("th", one, scope="col") for one in ("run", "task", "state", "step", "best", "date")))
    rows = [_row(folder, one, live) for one in runs]
    table = element("table", element("thead", head), element("tbody", *rows), css="data runs", aria_label="The runs")
    shown = element("p", f"{len(runs)} of {len(runs)} runs", css="lead", id="shown", aria_live="polite")
    none = element("p", f"No runs in {folder} have been trained.")
    body = [
        element("header", element("h1", f"Runs in {folder}")),
        element(
            "main",
            section(
                "Runs",
                *([element("div", *inputs, css="filters", role="search"), shown] if runs else [none]),
                element("div", table, css="scroll", tabindex=0, role="region", aria_label="The runs"),
                identity="runs",
            ),
        ),
    ]
    return document(f"Runs in {folder}", body, live=live)


def _filter(name: str, runs: Sequence[RunSummary]) -> Html:
    """Return a search field that filters the rows, or a choice among the values that they have."""
    values = sorted({getattr(one, name) for one in runs}) if name in ("task", "state") else []
    field = Html(f'<input type="search" data-filter="{name}">')
    if values:
        options = (element("option", one, value=one) for one in values)
        field = element("select", element("option", "all", value=""), *options, data_filter=name)
    return element("label", {"best": "metric"}.get(name, name), field)


def _row(folder: Path, run: RunSummary, live: bool) -> Html:
    aim = f"run/{quote(run.name, safe='')}/" if live else quote(f"{run.name}/{REPORT}")
    linked = live or is_own(folder, folder / run.name / REPORT)
    name = element("a", run.name, href=aim) if linked else to_html(run.name)
    step = f"{run.step:,} of {run.total_steps:,}" if run.total_steps else f"{run.step:,}"
    state = element("span", run.state, css=f"state {run.state.replace(' ', '-')}")
    cells = (name, run.task, state, step, run.best, run.date)
    values = {f"data_{one}": getattr(run, one) for one in FILTERS}
    return element("tr", *(element("td", cell) for cell in cells), **values)


class _Handler(BaseHTTPRequestHandler):
    """Answers GET with a page or its version; all else is refused."""

    reports: Reports
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "vaak", ""
    timeout = 30

    def do_GET(self) -> None:
        port = cast("ThreadingHTTPServer", self.server).server_port
        if self.headers.get("Host") not in (f"{HOST}:{port}", f"localhost:{port}"):
            return self._answer(403, "text/plain", "this page is for this machine alone")
        path = self.path.partition("?")[0]
        asks_version = path.endswith("/version")
        try:
            page = self.reports.find(path.removesuffix("version") if asks_version else path)
            if page is None:
                return self._answer(404, "text/plain", "no such page")
            make, version = page
            self._answer(200, *(("text/plain", version()) if asks_version else ("text/html", make())))
        except (UserError, OSError, RecursionError) as error:
            self._answer(500, "text/plain", str(error))

    def _answer(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        headers = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(content)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        log.debug(format, *arguments)


def make_server(reports: Reports, port: int = 0) -> ThreadingHTTPServer:
    """Return a server of these pages, not yet running; port 0 takes a free one. Raises UserError if it can't listen."""
    handler = type("Handler", (_Handler,), {"reports": reports})
    try:
        server = ThreadingHTTPServer((HOST, port), handler)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"can't listen on {HOST}:{port}: {reason}; give another --port, or none") from error
    server.daemon_threads = True
    return server
