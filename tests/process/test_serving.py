"""A server as a process: signals, a kill in the midst of requests, and many clients."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from folders import contents
from served_runs import serving, wait_until

PROMPT = "लड़की"
LONG = {"prompt": [PROMPT] * 48, "max_tokens": 300, "truncation": "auto", "temperature": 2.0}
"""A request that takes some seconds."""
LONGER = {**LONG, "prompt": [PROMPT] * 128}


def ask_in_background(address: str, request: dict[str, Any] = LONG) -> tuple[threading.Thread, list[Any]]:
    """Send a long request, and return while it is computed; the answer, or why there was none, is put into a list."""
    found: list[Any] = []

    def ask() -> None:
        try:
            found.append(httpx.post(f"{address}/v1/completions", json=request, timeout=120))
        except httpx.HTTPError as error:
            found.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: found or "vaak_requests_in_flight 1\n" in httpx.get(f"{address}/metrics").text)
    if not found:
        return thread, found
    # On a busy machine, a request may be answered before anyone sees it in flight.
    assert found[0].status_code == 200
    return ask_in_background(address, request)


def test_a_signal_ends_it_once_it_has_answered(commands, tiny_run: Path, tmp_path: Path):
    with serving(commands, tmp_path, tiny_run) as server:
        thread, found = ask_in_background(server.address)
        server.command.send(signal.SIGTERM)
        wait_until(lambda: "answers what it accepted" in server.command.said)
        wait_until(lambda: refuses(server.address), 10)
        thread.join(120)
        assert found[0].status_code == 200
        assert len(found[0].json()["choices"]) == 48
        ended = server.command.wait()
    assert ended.status == 0
    assert "Traceback" not in ended.errors


def refuses(address: str) -> bool:
    try:
        httpx.get(f"{address}/health", timeout=1)
    except httpx.HTTPError:
        return True
    return False


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(commands, tiny_run: Path, tmp_path: Path):
    with serving(commands, tmp_path, tiny_run) as server:
        thread, found = ask_in_background(server.address, LONGER)
        server.command.send(signal.SIGTERM)
        wait_until(lambda: "answers what it accepted" in server.command.said)
        begun = time.monotonic()
        server.command.send(signal.SIGTERM)
        ended = server.command.wait()
        assert time.monotonic() - begun < 2
        thread.join(60)
    assert ended.status == 128 + signal.SIGTERM
    assert isinstance(found[0], httpx.HTTPError)


@pytest.mark.slow
def test_a_kill_changes_nothing_in_the_run(commands, tiny_run: Path, tmp_path: Path):
    before = contents(tiny_run)
    with serving(commands, tmp_path, tiny_run) as server:
        thread, found = ask_in_background(server.address)
        server.command.send(signal.SIGKILL)
        thread.join(60)
        assert isinstance(found[0], httpx.HTTPError)
        server.command.wait()
    assert contents(tiny_run) == before
    with serving(commands, tmp_path, tiny_run) as server:
        assert httpx.get(f"{server.address}/ready").status_code == 200


@pytest.mark.slow
def test_fifty_clients_lose_nothing_and_memory_stays(commands, tiny_run: Path, tmp_path: Path):
    """10,000 requests, each with a distinct prompt, which its answer repeats."""
    number, clients, warm = 10_000, 50, 2000
    with serving(commands, tmp_path, tiny_run) as server, httpx.Client(timeout=120) as client:
        process = psutil.Process(server.command.pid)

        def ask(one: int) -> tuple[int, str]:
            asked = {"prompt": f"{one} ", "max_tokens": 3, "seed": one, "echo": True}
            answer = client.post(f"{server.address}/v1/completions", json=asked)
            return answer.status_code, answer.json()["choices"][0]["text"]

        with ThreadPoolExecutor(clients) as pool:
            found = list(pool.map(ask, range(warm)))
            before = process.memory_info().rss
            found += list(pool.map(ask, range(warm, number)))
            grown = process.memory_info().rss - before
            print(f"{number:,} requests: {before / 2**20:.1f} MiB after {warm:,}, and then {grown / 2**20:+.1f} MiB")
        assert Counter(status for status, _ in found) == {200: number}
        assert all(text.startswith(f"{one} ") for one, (_, text) in enumerate(found))
        again = [ask(one) for one in range(0, number, 100)]
        assert again == [found[one] for one in range(0, number, 100)]
        metrics = client.get(f"{server.address}/metrics").text
        assert f'vaak_requests_total{{path="/v1/completions",status="200"}} {number + len(again)}' in metrics
    assert grown < 20 * 2**20
