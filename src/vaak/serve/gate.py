"""What stands before every request: who may ask, how much they may send, how many are answered at once.

All of it is decided by the request's head, before its body is read. What is counted and logged is here, too: the path,
the status, sizes and times, and no text.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
import logging
import time
import traceback
from collections.abc import Awaitable, Callable, Generator, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from starlette.responses import JSONResponse
from starlette.websockets import WebSocket

from vaak.serve.errors import FAULT, ApiError
from vaak.serve.metrics import Metrics

log = logging.getLogger("vaak")
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Any, Receive, Send], Awaitable[None]]

OPEN = ("/health", "/ready")
"""Paths that need no token: monitors poll them, and they reveal nothing."""
BODY_SECONDS = 60.0
"""How long a client may be silent while it sends a body, or take for it in all, but for ``LEAST_RATE``."""
LEAST_RATE = 4096
"""Bytes in a second that a body has at least, after its first ``BODY_SECONDS``: a byte a minute would never end."""
UNREAD_SECONDS = 60.0
"""How long a client may leave what it is sent unread, once the buffers of its connection are full."""
LINGER_SECONDS, LINGER_BYTES = 2.0, 2**20
"""Seconds and bytes for which a refused body is read and thrown away, so that the client gets to read the answer."""
MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one request, and of all requests together."""

    max_requests: int = 256
    max_upload: int = 100 * MEBIBYTE
    """Bytes of a body."""
    max_json: int = 16 * MEBIBYTE
    """Bytes of a body that isn't a form with files: read as JSON, it may take twenty times as much memory."""
    max_duration: float = 4 * 3600.0
    """Seconds of a recording."""
    max_channels: int = 16
    max_decoded: int = 1024 * MEBIBYTE
    """Bytes of the samples of a recording that is decoded whole, such as WebM."""
    max_inputs: int = 256
    """Texts of one request, or continuations."""
    max_tokens: int = 4096
    """New tokens of one continuation."""
    max_characters: int = 200_000
    """Characters of one text, or tokens of one prompt."""
    max_spoken: int = 50_000
    """Characters of a text to speak: about an hour, whose samples take 300 MB."""


@dataclass
class Gate:
    """Checks each request before the application sees it; ``hosts`` are the names that it accepts (empty: any).

    ``asks_browsers``: a browser asks its user for the token, as the password of any name.
    """

    app: Application
    limits: Limits
    metrics: Metrics
    token: str | None = None
    hosts: tuple[str, ...] = ()
    log_texts: bool = False
    asks_browsers: bool = False

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] == "websocket":
            await self._admit_websocket(scope, receive, send)
            return
        if scope["type"] != "http":
            raise ValueError(f"a connection of type {scope['type']}, and only http and websocket are served")
        await _Exchange(self, scope, receive, send).run()

    async def _admit_websocket(self, scope: Any, receive: Receive, send: Send) -> None:
        """Pass a WebSocket on; while open, it takes the place of a request."""
        begun, status, path = time.perf_counter(), 101, str(scope["path"])
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            self.require_entry(path, headers, str(scope.get("http_version")))
            self.require_room(headers)
            self.metrics.in_flight += 1
            try:
                await self.app(scope, receive, partial(send_in_time, send))
            finally:
                self.metrics.in_flight -= 1
        except ApiError as error:
            status = error.status
            refusal = JSONResponse(error.body, status, headers=error.headers)
            await WebSocket(scope, receive, send).send_denial_response(refusal)
        except Exception as error:
            status = 500
            said = f": {error}" if self.log_texts else ""
            frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
            log.error("websocket failed, %s%s\n%s", type(error).__name__, said, frames)
            await send({"type": "websocket.close", "code": 1011})
        route = str(getattr(scope.get("route"), "path", None) or ("refused" if status != 101 else "unknown"))
        seconds = time.perf_counter() - begun
        self.metrics.count_request(route, status, seconds, 0)
        log.info("websocket %s: status %d, %.3f s", route, status, seconds)

    def require_entry(self, path: str, headers: dict[bytes, bytes], version: str = "1.1") -> None:
        """Raise ApiError for a request that isn't to be answered, by its head and its ``version`` of HTTP."""
        host = headers.get(b"host", b"").decode("latin-1").rpartition("@")[2]
        name = (host if host.endswith("]") else host.rpartition(":")[0] or host).lower()
        # A web page may have its own name point to 127.0.0.1 (DNS rebinding); the Host header still has that name. No
        # browser leaves it out; clients of HTTP/1.0, which doesn't require it, may.
        is_nameless = version == "1.0" and b"host" not in headers
        if self.hosts and name not in self.hosts and not is_nameless:
            raise ApiError(403, "this server is for this machine alone: call it by 127.0.0.1 or localhost")
        origin = headers.get(b"origin")
        if origin is not None and origin.decode("latin-1").partition("://")[2] != host:
            raise ApiError(403, "requests of pages from elsewhere are refused")
        if path in OPEN:
            return
        if self.token is not None:
            given = read_secret(headers.get(b"authorization", b""), takes_password=self.asks_browsers)
            if not hmac.compare_digest(given, self.token.strip().encode()):
                shown = {"WWW-Authenticate": 'Basic realm="vaak: the password is the token"'}
                shown = shown if self.asks_browsers else {"WWW-Authenticate": "Bearer"}
                message = "this server needs its token: send it as Authorization: Bearer TOKEN"
                raise ApiError(401, message, code="invalid_api_key", headers=shown)

    def require_room(self, headers: dict[bytes, bytes]) -> None:
        """Raise ApiError for a request that is too large, or one too many."""
        size, most = headers.get(b"content-length", b"0"), self.most_bytes(headers)
        # Python reads no number of thousands of digits.
        if not size.isdigit() or len(size) > 15 or int(size) > most:
            raise self.too_large(most)
        coding = headers.get(b"content-encoding", b"identity").strip().lower()
        if coding not in (b"", b"identity"):
            message = f"bodies with Content-Encoding {coding[:20].decode('latin-1')} aren't read: send it as it is"
            raise ApiError(415, message, headers={"Accept-Encoding": "identity"})
        if self.metrics.in_flight >= self.limits.max_requests:
            message = f"{self.limits.max_requests} requests are waiting already (--max-requests); try again"
            raise ApiError(429, message, code="rate_limit_exceeded", headers={"Retry-After": "1"})

    def most_bytes(self, headers: dict[bytes, bytes]) -> int:
        """Return how large the body of a request may be, by its head."""
        limits = self.limits
        has_files = headers.get(b"content-type", b"").strip().lower().startswith(b"multipart/form-data")
        return limits.max_upload if has_files else min(limits.max_upload, limits.max_json)

    def too_large(self, most: int) -> ApiError:
        """Return the error for a body of more than ``most`` bytes."""
        why = "--max-upload" if most == self.limits.max_upload else "without files"
        return ApiError(413, f"the body is larger than {most / MEBIBYTE:g} MiB ({why})", code="request_too_large")


async def send_in_time(send: Send, message: Message) -> None:
    """Send a message. Raises TimeoutError for a client that reads nothing: it would keep its place for ever."""
    await wait_within(UNREAD_SECONDS, send(message))


async def wait_within(seconds: float, work: Awaitable[Any]) -> Any:
    """Return the result of ``work``. Raises TimeoutError if it takes longer than that.

    Most parts of requests are there already, and most answers go out at once: those cost no timer.
    """
    steps = work.__await__()
    try:
        waiting_for = next(steps)
    except StopIteration as done:
        return done.value
    async with asyncio.timeout(seconds):
        return await _Begun(steps, waiting_for)


@dataclass
class _Begun:
    """Work that has begun, and is ``waiting_for`` something."""

    steps: Generator[Any, Any, Any]
    waiting_for: Any

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            try:
                sent = yield self.waiting_for
            except BaseException as error:
                resume = partial(self.steps.throw, error)
            else:
                resume = partial(self.steps.send, sent)
            try:
                self.waiting_for = resume()
            except StopIteration as done:
                return done.value


def read_secret(authorization: bytes, *, takes_password: bool = False) -> bytes:
    """Return the token that a request sends, also as the password of a browser's user; empty if it sends none.

    >>> read_secret(b"bearer secret"), read_secret(b"Basic bWU6c2VjcmV0OjE=", takes_password=True)
    (b'secret', b'secret:1')
    >>> read_secret(b"Basic bWU6c2VjcmV0OjE="), read_secret(b"Basic ?", takes_password=True)
    (b'', b'')
    """
    scheme, _, content = authorization.partition(b" ")
    # Schemes have no case.
    if scheme.lower() == b"bearer":
        return content.strip()
    if scheme.lower() != b"basic" or not takes_password:
        return b""
    try:
        return base64.b64decode(content, validate=True).partition(b":")[2]
    except binascii.Error:
        return b""


class _Exchange:
    """One request and its answer."""

    def __init__(self, gate: Gate, scope: Any, receive: Receive, send: Send) -> None:
        self.gate, self.scope, self._receive, self._send = gate, scope, receive, partial(send_in_time, send)
        self.is_unread = False
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.begun, self.status, self.received = time.perf_counter(), 0, 0
        has_body = self.headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in self.headers
        self.is_read = not has_body

    async def run(self) -> None:
        try:
            await self._pass_on()
        except ApiError as error:
            await self._refuse(error)
        except Exception as error:
            if self.is_unread:
                log.info("%s: the client reads nothing, its answer ends here", self._route)
                return
            said = f": {error}" if self.gate.log_texts else ""
            frames = "".join(traceback.format_tb(error.__traceback__)).rstrip()
            log.error("%s failed, %s%s\n%s", self._route, type(error).__name__, said, frames)
            await self._refuse(ApiError(500, FAULT))
        finally:
            seconds = time.perf_counter() - self.begun
            self.gate.metrics.count_request(self._route, self.status, seconds, self.received)
            if self._route not in OPEN:
                about = (self.scope["method"], self._route, self.status, self.received, seconds)
                log.info("%s %s: status %d, %d bytes, %.3f s", *about)

    async def _pass_on(self) -> None:
        gate = self.gate
        gate.require_entry(self.scope["path"], self.headers, self.scope["http_version"])
        # Requests by POST compute.
        counts = self.scope["method"] == "POST"
        if counts:
            gate.require_room(self.headers)
        gate.metrics.in_flight += counts
        try:
            await gate.app(self.scope, self.receive, self.send)
        finally:
            gate.metrics.in_flight -= counts

    @property
    def _route(self) -> str:
        """The path as the application has it; a path that it doesn't have may say anything."""
        found = getattr(self.scope.get("route"), "path", None)
        return str(found or ("refused" if self.status in (401, 403, 413, 429) else "unknown"))

    async def receive(self) -> Message:
        """Return the next part of the body. Raises ApiError for one that is too large or doesn't come."""
        if self.is_read:
            return await self._receive()
        rest = BODY_SECONDS - (time.perf_counter() - self.begun) + self.received / LEAST_RATE
        try:
            message: Message = await wait_within(min(BODY_SECONDS, rest), self._receive())
        except TimeoutError:
            raise ApiError(408, f"the body came too slowly: nothing for {min(BODY_SECONDS, rest):.3g} s") from None
        self.received += len(message.get("body", b""))
        if self.received > (most := self.gate.most_bytes(self.headers)):
            raise self.gate.too_large(most)
        self.is_read = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            if not self.is_read:
                # The rest of the body must not be read as the next request.
                message["headers"] = [*message["headers"], (b"connection", b"close")]
        elif not self.is_read and not message.get("more_body"):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b""}
        try:
            await self._send(message)
        except TimeoutError:
            self.is_unread = True
            raise

    async def _refuse(self, error: ApiError) -> None:
        if self.status:
            log.error("%s: its answer broke off with status %d", self._route, error.status)
            return
        body = json.dumps(error.body, ensure_ascii=False).encode()
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body)), **error.headers}
        listed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": listed})
        await self.send({"type": "http.response.body", "body": body})

    async def _linger(self) -> None:
        """Read on for a moment: a connection that is closed while the client writes loses the answer on its way."""
        until, read = time.monotonic() + LINGER_SECONDS, 0
        while not self.is_read and read < LINGER_BYTES and (rest := until - time.monotonic()) > 0:
            try:
                message = await asyncio.wait_for(self._receive(), rest)
            except TimeoutError:
                return
            read += len(message.get("body", b""))
            self.is_read = not message.get("more_body", False)
