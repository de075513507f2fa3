"""Measure the overhead of a request without a model: an endpoint that returns a field of its JSON.

python benchmarks/request_cost.py [--clients 8] [--requests 800] [--rounds 3]

Prints the server's processor time per request in milliseconds, the median of the rounds: with uvicorn's own parser and
asyncio's loop, with httptools, and with uvloop added, as far as they are installed. ``vaak serve`` uses both if they
are. The clients' cost isn't counted.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import httpx
import psutil

SERVER = """
import sys
import fastapi, pydantic, uvicorn
class Asked(pydantic.BaseModel):
    input: str
app = fastapi.FastAPI()
@app.post("/")
async def answer(asked: Asked):
    return fastapi.responses.JSONResponse({"input": asked.input})
number, http, loop = sys.argv[1:]
uvicorn.run(app, fd=int(number), http=http, loop=loop, access_log=False, log_level="error")
"""
KINDS = {"h11, asyncio": ("h11", "asyncio"), "httptools": ("httptools", "asyncio"), "uvloop": ("httptools", "uvloop")}


@contextlib.contextmanager
def serve_field(http: str, loop: str) -> Iterator[tuple[str, psutil.Process]]:
    """The address of a server with the endpoint, and its process."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        command = [sys.executable, "-c", SERVER, str(listening.fileno()), http, loop]
        with subprocess.Popen(command, pass_fds=[listening.fileno()]) as process:
            try:
                yield f"http://127.0.0.1:{listening.getsockname()[1]}", psutil.Process(process.pid)
            finally:
                process.terminate()


def measure_milliseconds(client: httpx.Client, server: psutil.Process, clients: int, number: int) -> float:
    """Return the processor time of the server for each of a number of requests."""

    def ask(_: int) -> None:
        client.post("/", json={"input": "a sentence that is not long"}).raise_for_status()

    before = server.cpu_times()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(ask, range(number)))
    after = server.cpu_times()
    seconds: float = after.user + after.system - before.user - before.system
    return 1000 * seconds / number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--requests", type=int, default=800)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    print(f"load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} processors")
    for name, parts in KINDS.items():
        missing = [one for one in parts if one not in ("h11", "asyncio") and not importlib.util.find_spec(one)]
        if missing:
            print(f"{name}: {missing[0]} isn't installed")
            continue
        with serve_field(*parts) as (address, server), httpx.Client(timeout=600, base_url=address) as client:
            # The first requests wait for the server to start.
            measure_milliseconds(client, server, asked.clients, asked.clients)
            costs = [measure_milliseconds(client, server, asked.clients, asked.requests) for _ in range(asked.rounds)]
        print(f"{name}: {median(costs):.2f} ms a request ({min(costs):.2f} to {max(costs):.2f})", flush=True)


if __name__ == "__main__":
    main()
