"""The server's counters in Prometheus' format (``GET /metrics``). They never contain a request's text."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator

BUCKET_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper ends of the buckets of durations."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """Values counted by bucket."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        below = 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {below}'
        yield f"{name}_sum{{{labels}}} {self.total:.6f}"
        yield f"{name}_count{{{labels}}} {below}"


class Metrics:
    """Requests by path and status, their durations and bytes, and the sizes of batches by model."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: Counter[tuple[str, int]] = Counter()
        self.durations: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(BUCKET_SECONDS))
        self.batches: defaultdict[str, Histogram] = defaultdict(lambda: Histogram(SIZES))
        self.received_bytes = 0
        self.in_flight = 0

    def count_request(self, path: str, status: int, seconds: float, received: int) -> None:
        with self.lock:
            self.requests[path, status] += 1
            self.durations[path].add(seconds)
            self.received_bytes += received

    def count_batch(self, model: str, size: int) -> None:
        with self.lock:
            self.batches[model].add(size)

    def text(self) -> str:
        """Return Prometheus' text format, version 0.0.4."""
        with self.lock:
            return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        yield "# HELP vaak_requests_total Requests that were answered, by path and status."
        yield "# TYPE vaak_requests_total counter"
        for (path, status), count in sorted(self.requests.items()):
            yield f'vaak_requests_total{{path="{escaped(path)}",status="{status}"}} {count}'
        yield "# HELP vaak_requests_in_flight Requests that were accepted and aren't answered yet."
        yield "# TYPE vaak_requests_in_flight gauge"
        yield f"vaak_requests_in_flight {self.in_flight}"
        yield "# HELP vaak_received_bytes_total Bytes of the bodies of requests."
        yield "# TYPE vaak_received_bytes_total counter"
        yield f"vaak_received_bytes_total {self.received_bytes}"
        yield "# HELP vaak_request_seconds Time from a request's first byte to the last of its answer."
        yield "# TYPE vaak_request_seconds histogram"
        for path, histogram in sorted(self.durations.items()):
            yield from histogram.lines("vaak_request_seconds", f'path="{escaped(path)}"')
        yield "# HELP vaak_batch_size Parts of requests that were computed together."
        yield "# TYPE vaak_batch_size histogram"
        for model, histogram in sorted(self.batches.items()):
            yield from histogram.lines("vaak_batch_size", f'model="{escaped(model)}"')


def escaped(label: str) -> str:
    r"""Return the value of a label as Prometheus writes it.

    >>> escaped('a "name"')
    'a \\"name\\"'
    """
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
