"""``vaak serve``: runs as a server, with the endpoints of OpenAI's clients; ``vaak demo``: a page to try them."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import (
    Device,
    Exact,
    Precision,
    TrustCode,
    Weights,
    WhichPrecision,
    WhichWeights,
    complete_runs,
    require_model,
    warn_of_rounding,
)
from vaak.core.errors import UserError, optional_import

if TYPE_CHECKING:
    from vaak.serve.models import Server


def serve(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Runs, checkpoints, or pretrained models.", autocompletion=complete_runs),
    ],
    host: Annotated[str, typer.Option(help="The address; any but this machine's own requires a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(envvar="VAAK_TOKEN", help="A secret that requests have to send; better set in VAAK_TOKEN."),
    ] = None,
    max_batch: Annotated[int, typer.Option(min=1, help="Maximum number of parts of requests computed together.")] = 16,
    max_wait: Annotated[
        float,
        typer.Option(
            min=0,
            max=1000,
            help="Time in milliseconds that a part waits for others; after a long batch, a tenth of its time.",
        ),
    ] = 5.0,
    exact: Exact = False,
    max_requests: Annotated[
        int, typer.Option(min=1, help="Maximum number of open requests; further ones get status 429.")
    ] = 256,
    max_upload: Annotated[float, typer.Option(min=0.001, help="Maximum size of a request in MiB.")] = 100.0,
    max_duration: Annotated[float, typer.Option(min=1, help="Maximum length of a recording in seconds.")] = 14400.0,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of new tokens of one text.")] = 4096,
    log_texts: Annotated[
        bool, typer.Option("--log-texts", help="Also log error messages, which may contain texts of requests.")
    ] = False,
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    precision: Precision = WhichPrecision.auto,
    trust_code: TrustCode = False,
) -> None:
    """Serve runs over HTTP with an OpenAI-compatible API: transcriptions, speech, completions, chat and more.

    Results are those of vaak transcribe, speak, generate and so on. GET /docs lists the endpoints. A signal ends the
    server after it has answered all accepted requests; a second one ends it at once.

    Example: vaak serve runs/asr-quickstart runs/quickstart --port 8000
    """
    for run in runs:
        require_model(run)
    with optional_import("vaak serve requires FastAPI and uvicorn", "serve"):
        import fastapi  # noqa: F401
        import python_multipart  # noqa: F401

        from vaak.serve.running import listen, run_server
    from vaak.core.storage.files import scratch_folder
    from vaak.serve.batching import Batching
    from vaak.serve.gate import MEBIBYTE, Limits
    from vaak.serve.metrics import Metrics
    from vaak.serve.models import Server, open_model, require_names, serve_models

    require_token(token)
    require_names(runs)
    limits = Limits(
        max_requests=max_requests,
        max_upload=round(max_upload * MEBIBYTE),
        max_duration=max_duration,
        max_tokens=max_tokens,
    )
    how: dict[str, Any] = {"weights": weights, "precision": precision, "trust_code": trust_code}
    if exact:
        warn_of_rounding(device)
    batching, metrics = Batching(max_batch, max_wait / 1000, is_exact=exact), Metrics()
    with (
        # It listens before the seconds that opening models takes.
        listen(host, port, token) as listening,
        scratch_folder("serve") as folder,
    ):
        opened = [(run, open_model(run, device=device, **how)) for run in runs]
        server = Server(serve_models(opened, metrics, batching), limits, metrics, folder, log_texts)
        address = _name_address(host, listening)
        with _logged_requests():
            ready = partial(_announce, server, address)
            run_server(server, listening, token, any_host=token is not None, when_ready=ready)


def demo(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN…", help="Runs, checkpoints, or pretrained models.", autocompletion=complete_runs),
    ],
    keep: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="A folder for recordings and transcripts that the user saves on the page."),
    ] = None,
    host: Annotated[str, typer.Option(help="The address; any but this machine's own requires a token.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 takes a free one.")] = 7860,
    token: Annotated[
        str | None,
        typer.Option(envvar="VAAK_TOKEN", help="A secret that a browser asks for, as a password; see VAAK_TOKEN."),
    ] = None,
    max_upload: Annotated[float, typer.Option(min=0.001, help="Maximum size of a recording's file in MiB.")] = 100.0,
    max_duration: Annotated[float, typer.Option(min=1, help="Maximum length of a recording in seconds.")] = 3600.0,
    device: Device = "auto",
    weights: Weights = WhichWeights.auto,
    precision: Precision = WhichPrecision.auto,
    trust_code: TrustCode = False,
) -> None:
    """Open a web page to try runs: record, speak, write, classify, translate; it shows several runs side by side.

    Results are those of vaak transcribe, speak, generate and so on. The page loads nothing from elsewhere, and sends
    nothing elsewhere. With --keep, recordings with corrected texts become data for vaak init and vaak train.

    Example: vaak demo runs/asr-quickstart --keep recordings
    """
    for run in runs:
        require_model(run)
    require_token(token)
    from vaak.core.storage.files import scratch_folder
    from vaak.serve.gate import MEBIBYTE, Limits

    limits = Limits(max_upload=round(max_upload * MEBIBYTE), max_duration=max_duration)
    how: dict[str, Any] = {"weights": weights, "precision": precision, "trust_code": trust_code}
    with scratch_folder("demo") as folder:
        _keep_gradio_quiet(folder)
        with optional_import("vaak demo requires gradio, FastAPI and uvicorn", "demo"):
            import gradio  # noqa: F401

            from vaak.serve.demo.page import DemoPage
            from vaak.serve.running import listen
        from vaak.runs.open_run import open_run
        from vaak.serve.batching import Batching
        from vaak.serve.demo.keeping import KeptRecordings
        from vaak.serve.metrics import Metrics
        from vaak.serve.models import Server, require_names, serve_models

        require_names(runs)
        kept = None if keep is None else KeptRecordings(keep)
        with listen(host, port, token) as listening:
            opened = [(run, open_run(run, device=device, **how)) for run in runs]
            metrics = Metrics()
            server = Server(serve_models(opened, metrics, Batching()), limits, metrics, folder)
            address = _name_address(host, listening)
            page = DemoPage(server, kept, folder)
            page.run(listening, token, when_ready=lambda: print(f"open {address}  (Ctrl-C ends it)", flush=True))


def _keep_gradio_quiet(folder: Path) -> None:
    """Say to gradio, before it is imported, that it sends nothing elsewhere, and where it may write."""
    os.environ |= {
        "GRADIO_ANALYTICS_ENABLED": "False",
        "GRADIO_TEMP_DIR": str(folder / "gradio"),
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }


def require_token(token: str | None) -> None:
    """Raise UserError for a token that no request can send."""
    if token is not None and (not token.strip() or not token.isascii()):
        raise UserError("--token (VAAK_TOKEN) is empty, or has other characters than ASCII's")


def _name_address(host: str, listening: socket.socket) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"


@contextmanager
def _logged_requests() -> Iterator[None]:
    """Within this context, what is logged, such as a line for each request, goes to standard error with its time."""
    from vaak.runs.folder.logs import SafeFormatter

    log = logging.getLogger("vaak")
    handler, before = logging.StreamHandler(), (log.level, log.propagate)
    handler.setFormatter(SafeFormatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before[0])
        log.propagate = before[1]


def _announce(server: Server, address: str) -> None:
    """Say where the server is, and what it serves."""
    for one in server.models.values():
        print(f"{one.name}: {', '.join(['predict', *one.endpoints])}", file=sys.stderr)
    print(f"serving on {address}", flush=True)
