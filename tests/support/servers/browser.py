"""A headless Chromium, driven by its DevTools protocol over a pipe, to check a page's drawing, log and requests.

Debian: ``apt-get install chromium-headless-shell``.
"""

from __future__ import annotations

import base64
import json
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
SECONDS = 60.0
PIPE = 'exec 3<&0 4>&1 1>&2; exec "$@"'
"""Chromium reads commands from file 3 and writes answers to file 4."""


class Tab:
    """A page. ``said`` are the messages of its console and its errors, ``requests`` the addresses it asked for."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process, self.unread, self.number, self.session = process, b"", 0, ""
        self.said: list[str] = []
        self.requests: list[str] = []
        self.loaded = 0
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give a command and return its result. Raises RuntimeError where it fails."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        message |= {"sessionId": self.session} if self.session else {}
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\0")
        self.process.stdin.flush()
        while True:
            answer = self._next()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def _next(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        while b"\0" not in self.unread:
            ready, _, _ = select.select([self.process.stdout], [], [], SECONDS)
            found = self.process.stdout.read1(1 << 16) if ready else b""  # type: ignore[attr-defined]
            if not found:
                raise RuntimeError("Chromium doesn't answer")
            self.unread += found
        text, _, self.unread = self.unread.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, method: str, about: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled":
            self.said.append(" ".join(str(one.get("value", one.get("description"))) for one in about["args"]))
        elif method == "Runtime.exceptionThrown":
            self.said.append(str(about["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.said.append(about["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not about["request"]["url"].startswith("data:"):
            self.requests.append(about["request"]["url"])
        elif method == "Page.loadEventFired":
            self.loaded += 1

    def open(self, address: str) -> None:
        """Go to an address and wait until it is loaded."""
        before = self.loaded
        self.call("Page.navigate", url=address)
        while self.loaded == before:
            self._next()

    def value(self, script: str) -> Any:
        """The value of a JavaScript expression, of a promise once it is kept. Raises RuntimeError where it throws."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait(self, script: str) -> Any:
        """The value of an expression once it holds. Raises RuntimeError after a minute."""
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            if found := self.value(script):
                return found
            time.sleep(0.05)
        raise RuntimeError(f"never true: {script}")

    def size(self, width: int, height: int = 900) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def dark(self, on: bool) -> None:
        features = [{"name": "prefers-color-scheme", "value": "dark" if on else "light"}]
        self.call("Emulation.setEmulatedMedia", features=features)

    def mouse(self, kind: str, x: float, y: float) -> None:
        pressed = {"button": "left", "buttons": 1, "clickCount": 1} if kind != "mouseMoved" else {}
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **pressed)

    def key(self, name: str) -> None:
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=name, code=name)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        """Write a PNG of what is seen, or of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser(*more: str) -> Iterator[Tab]:
    """A tab of a new browser, begun with ``more`` options, which is closed in the end."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--mute-audio"]
    options += [
        "--autoplay-policy=no-user-gesture-required",
        "--no-first-run",
        "--disable-background-networking",
        *more,
    ]
    command = ["bash", "-c", PIPE, "chromium", str(CHROMIUM), *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            yield Tab(process)
        finally:
            process.kill()
