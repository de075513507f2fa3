"""The server's process: it listens, opens the runs, and ends when it has answered what it accepted."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import ipaddress
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import uvicorn
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from vaak.core.errors import UserError
from vaak.serve.app import make_app
from vaak.serve.gate import Gate
from vaak.serve.models import Server
from vaak.serve.realtime import MOST_MESSAGE_BYTES

log = logging.getLogger("vaak")
LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
HEAD_SECONDS = 30.0
"""How long a connection may be open, or a request's head may take to come, before the head is whole."""
MOST_HEAD_BYTES = 2**16
"""Of a request's head; httptools itself keeps however much comes."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listen(host: str, port: int, token: str | None) -> socket.socket:
    """Return a socket at an address; port 0 takes a free one.

    Raises UserError if it isn't available, and for one that other machines can reach without a ``token``.
    """
    if not is_loopback(host) and not token:
        raise UserError(
            f"--host {host}: other machines can reach this address; first set VAAK_TOKEN (or --token) to a secret"
        )
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            # Now, and not once models are open: until then, an address can be taken twice.
            found.listen(128)
        except BaseException:
            found.close()
            raise
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"can't listen on {host}, port {port}: {reason}; give another --port") from error
    return found


TOO_LARGE_HEAD = b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class _Uvicorn(uvicorn.Server):
    """Ends in order by a signal, at once by a second one, and leaves what follows to the caller.

    ``name`` is that of the command, and ``when_ending`` is called by the first signal.
    """

    def __init__(self, config: uvicorn.Config, name: str, when_ending: Callable[[], None]) -> None:
        super().__init__(config)
        self.name, self.when_ending = name, when_ending

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            print(f"{self.name}: ended at once", file=sys.stderr, flush=True)
            os._exit(128 + sig)
        self.should_exit = True
        self.when_ending()
        print(f"{self.name}: answers what it accepted, then ends; a second signal ends it at once", file=sys.stderr)


class _Protocol(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection on which no request's head is whole in ``HEAD_SECONDS``: it would stay open for ever.

    So it does where a head is too large.
    """

    _giving_up: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        cycle = self.cycle
        is_body = cycle is not None and cycle.more_body
        super().data_received(data)
        # Once a head is whole, there is a new cycle.
        self._head_bytes = 0 if is_body or self.cycle is not cycle else self._head_bytes + len(data)
        if self._head_bytes > MOST_HEAD_BYTES and self._is_open:
            self.transport.write(TOO_LARGE_HEAD)
            self.transport.close()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._giving_up is not None:
            self._giving_up.cancel()

    @property
    def _is_waiting(self) -> bool:
        """Whether the last request was answered, or none has begun; a WebSocket has another protocol."""
        return self.cycle is None or self.cycle.response_complete

    def _watch(self) -> None:
        if not self._is_waiting:
            if self._giving_up is not None:
                self._giving_up.cancel()
                self._giving_up = None
        elif self._giving_up is None:
            self._giving_up = self.loop.call_later(HEAD_SECONDS, self._give_up)

    @property
    def _is_open(self) -> bool:
        return self.transport.get_protocol() is self and not self.transport.is_closing()

    def _give_up(self) -> None:
        self._giving_up = None
        if self._is_waiting and self._is_open:
            self.transport.close()


def make_config(gate: Gate, *, has_lifespan: bool = False) -> uvicorn.Config:
    """Return uvicorn's configuration for a gate; ``has_lifespan``: the application hears of startup and shutdown."""
    lifespan: Any = "on" if has_lifespan else "off"
    # The demo doesn't use WebSockets, and its extra has no package for them.
    sockets: Any = "websockets-sansio" if importlib.util.find_spec("websockets") else "none"
    how: dict[str, Any] = {"http": _Protocol, "ws": sockets, "ws_max_size": MOST_MESSAGE_BYTES, "lifespan": lifespan}
    return uvicorn.Config(gate, log_config=None, access_log=False, **how)


def run_server(
    server: Server,
    listening: socket.socket,
    token: str | None,
    *,
    any_host: bool = False,
    when_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until a signal comes, then answer what was accepted."""
    gate = Gate(make_app(server), server.limits, server.metrics, token, () if any_host else LOOPBACK, server.log_texts)
    when_ready()
    try:
        run_gate(make_config(gate), listening, "vaak serve")
    finally:
        server.close()


def run_gate(
    config: uvicorn.Config, listening: socket.socket, name: str, when_ending: Callable[[], None] = lambda: None
) -> None:
    """Serve the gate's application until a signal comes; ``when_ending`` is called then."""
    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    _Uvicorn(config, name, when_ending).run(sockets=[listening])
