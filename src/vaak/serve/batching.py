"""Dynamic batching: waiting requests are computed together, by one thread for each model.

A request is a job that consists of parts: the windows of a recording, the sentences of a text, or one prompt. A batch
has one part, of similar length, of each waiting job whose parts may be computed together. If there are few jobs, it has
several parts of each, as long as that is quick. So all jobs progress at the same pace, and a short recording never
waits for the end of a long one, only for the batch being computed and its own.

Language models generate token by token, so new texts join those that are being generated, and each is answered when it
is done (continuous batching; Yu et al. 2022, "Orca: A Distributed Serving System for Transformer-Based Generative
Models").

Clients that were answered usually send their next request at once. So a batch waits a moment for as many jobs as there
were at the end of the last one, answered and waiting. Without this, eight clients end up as one and seven, which take
turns forever. Texts wait for as long as a token takes, too, because a text that joins later costs a separate pass, and
not every model lets others join. A single client doesn't wait.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from vaak.serve.metrics import Metrics
from vaak.tasks.batches import Batches, Done, compute_alone

log = logging.getLogger("vaak")
AHEAD = 4
"""The next parts of this many batches of jobs are read, to find some of similar length."""
MOST_JOINING = 512
"""Maximum number of parts of an open batch, which keeps all of them in memory; after that a new batch begins."""
JOINING_STEPS = 4
"""Parts may join an open batch before its first step, and then every this many steps: a pass reads their prompts."""
QUICK_SECONDS = 1.0
"""After a batch that took less, the next one may have twice as many parts of one job; otherwise half as many."""
WAITING_SHARE = 0.1
"""How long a batch waits for the clients that the last one answered, as a share of the time that one took."""


@dataclass(frozen=True)
class Batching:
    """The maximum number of parts that are computed together, and how many seconds the first waits for others.

    After a long batch it waits for up to a tenth of that batch's time, and after one of texts for the time of a token,
    if that is less; with 0 seconds it never waits. With ``is_exact``, each input is computed alone, also those of the
    same request.
    """

    size: int = 16
    seconds: float = 0.005
    is_exact: bool = False


@dataclass(frozen=True)
class Kind:
    """How parts are computed: those with the same ``key`` together, by ``compute``, which returns a result for each.

    The length of a part in a batch and that of the part that has waited longest differ by a factor of at most
    ``most_padding``. ``first_share`` is the maximum number of parts of a job in its first batch.
    """

    key: Hashable
    compute: Callable[[list[Any]], Sequence[Any]]
    length: Callable[[Any], float] = lambda part: 1.0
    most_padding: float = math.inf
    first_share: int | None = None
    is_sequential: bool = False
    """Whether a part may only be read after the result of the one before."""
    is_shared: bool = True
    """Whether other requests may have jobs of this ``key``."""
    compute_open: Callable[[list[Any], Intake], object] | None = None
    """Computes parts while others may join, instead of ``compute``, which is the fallback after an error."""


class Intake(Protocol):
    """Provides further parts while an open batch is computed, and delivers the results of those that are done."""

    def take(self, number: int) -> list[Any]:
        """Return parts that arrived in the meantime, for a batch that has ``number`` unfinished ones."""

    def deliver(self, part: Any, result: Any) -> None:
        """Deliver the result of a part."""


@dataclass(frozen=True)
class Computed:
    """The last batch: its key, the number of its jobs and of those that waited at its end, and when it ended.

    The next batch waits for the clients that it answered for up to ``wait`` seconds.
    """

    key: Hashable
    num_jobs: int
    ended: float
    wait: float


@dataclass(eq=False)
class Job:
    """A request's parts, read on demand; ``on_result`` is called with each result in the worker's thread.

    ``future`` has the results, in the order of the parts. A client that stops waiting for it sets ``has_left``.
    """

    kind: Kind
    parts: Iterator[Any]
    on_result: Callable[[Any], None] = lambda result: None
    has_left: bool = False
    keeps_results: bool = True
    """False: results are only passed to ``on_result``, so that an hour of streamed speech isn't kept in memory."""
    future: Future[list[Any]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)
    results: list[Any] = field(default_factory=list)
    _next: list[Any] = field(default_factory=list)
    _is_read: bool = False
    _share: float = math.inf

    def __post_init__(self) -> None:
        # From here on the future can't be cancelled; only the worker completes it.
        self.future.set_running_or_notify_cancel()
        self._share = math.inf if self.kind.first_share is None else self.kind.first_share

    def may_add(self, taken: int) -> bool:
        """Return whether a batch with ``taken`` parts of this job may have another one, which is then read."""
        return taken < self._share and not self.kind.is_sequential and self.peek()

    def adapt_share(self, seconds: float) -> None:
        """Change how many parts of this job the next batch may have, by the time that the last one took."""
        self._share = 2 * self._share if seconds < QUICK_SECONDS else max(1, self._share // 2)

    def peek(self) -> bool:
        """Read the next part, unless it was read before, and return whether there is one; an error ends the job."""
        if not (self.is_over or self._next or self._is_read):
            try:
                self._next = [next(self.parts)]
            except StopIteration:
                self._is_read = True
            except Exception as error:
                self.fail(error)
        return bool(self._next) and not self.is_over

    def take(self) -> Any:
        """Return the part that ``peek`` has read."""
        return self._next.pop()

    @property
    def next_length(self) -> float:
        return self.kind.length(self._next[0])

    def add(self, result: Any) -> None:
        if self.keeps_results:
            self.results.append(result)
        if not self.has_left:
            self.on_result(result)

    def end_if_done(self) -> None:
        """Complete the future if no part is left. All parts taken so far must have their results."""
        if not self.peek() and not self.is_over:
            self.future.set_result(self.results)

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)

    @property
    def is_over(self) -> bool:
        return self.has_left or self.future.done()


class Worker:
    """The thread that computes for one model, in its precision."""

    def __init__(
        self,
        name: str,
        device: torch.device,
        within: Callable[[], AbstractContextManager[object]],
        metrics: Metrics,
        batching: Batching,
    ) -> None:
        self.name, self.device, self.within, self.metrics = name, device, within, metrics
        self.size, self.seconds = (1, 0.0) if batching.is_exact else (batching.size, batching.seconds)
        self.alone: Callable[[], AbstractContextManager[None]] = compute_alone if batching.is_exact else nullcontext
        self.jobs: list[Job] = []
        self.last: Computed | None = None
        self.changed = threading.Condition()
        self.is_closed, self.enough = False, 1
        """``enough`` is the number of jobs that the thread waits for; fewer don't wake it."""
        self.thread = threading.Thread(target=self._run, name=f"vaak serve {name}", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> None:
        with self.changed:
            self.jobs.append(job)
            if len(self.jobs) >= self.enough:
                self.changed.notify()

    def close(self) -> None:
        """End the thread, once all submitted jobs are done."""
        with self.changed:
            self.is_closed = True
            self.changed.notify()
        self.thread.join()

    def _run(self) -> None:
        while (alike := self._wait_for_jobs()) is not None:
            try:
                if taken := self._take_parts(alike):
                    begun, jobs = time.monotonic(), {job: None for job, _ in taken}
                    taken, num_steps = self._compute_open(taken)
                    if taken:
                        self._compute(taken)
                    self._requeue(jobs, begun, num_steps)
                for job in alike:
                    job.end_if_done()
            except Exception as error:
                # This is a bug. The thread must continue, or all later requests would wait forever.
                for job in alike:
                    job.fail(error)

    def _wait_for_jobs(self) -> list[Job] | None:
        """Return jobs that may be computed together, the one that has waited longest first; None after ``close``."""
        with self.changed:
            while True:
                self.jobs = [job for job in self.jobs if not job.is_over]
                if self.jobs:
                    break
                if self.is_closed:
                    return None
                self.changed.wait()
            first = self.jobs[0]
            self.enough, until = self._plan_wait(first)
            while len(alike := self._alike(first)) < self.enough and (rest := until - time.monotonic()) > 0:
                self.changed.wait(rest)
            self.enough = 1
            return alike[: AHEAD * self.size]

    def _plan_wait(self, first: Job) -> tuple[int, float]:
        """Return how many jobs a batch waits for, and until when, on the clock of ``time.monotonic``."""
        last = self.last
        if not first.kind.is_shared:
            return 1, first.arrived
        if last is None or last.key != first.kind.key:
            # Whoever comes a little later joins an open batch.
            return 1 if self._is_open(first.kind) else self.size, first.arrived + self.seconds
        seconds = max(self.seconds, last.wait) if self.seconds else 0.0
        return min(self.size, last.num_jobs), max(first.arrived, last.ended) + seconds

    def _is_open(self, kind: Kind) -> bool:
        return kind.compute_open is not None and self.size > 1

    def _compute_open(self, taken: list[tuple[Job, Any]]) -> tuple[list[tuple[Job, Any]], int]:
        """Compute parts as an open batch, which others may join.

        Returns the parts that have no result afterwards, and the number of steps at which others could join. These are
        all parts if the kind has no open batches; after an error they are the unfinished ones, which are recomputed
        without the part that may have caused it.
        """
        kind = taken[0][0].kind
        if kind.compute_open is None or not self._is_open(kind):
            return taken, 0
        batch = _OpenBatch(self, taken)
        try:
            with self.within():
                kind.compute_open([part for _, part in taken], batch)
        except Exception as error:
            name = type(error).__name__
            log.info("%s: an open batch failed (%s); its unfinished parts are recomputed", self.name, name)
        self.metrics.count_batch(self.name, batch.num_parts)
        return batch.rest(), batch.num_asked

    def take_joining(self, key: Hashable, room: int) -> list[tuple[Job, Any]]:
        """Return at most ``room`` parts of waiting jobs with this ``key``; none while jobs with another key wait."""
        with self.changed:
            self.jobs = [job for job in self.jobs if not job.is_over]
            if any(job.kind.key != key for job in self.jobs):
                return []
            waiting = list(self.jobs)
        found: list[tuple[Job, Any]] = []
        for job in waiting:
            while len(found) < room and job.peek():
                found.append((job, job.take()))
        return found

    def _alike(self, first: Job) -> list[Job]:
        return [job for job in self.jobs if job.kind.key == first.kind.key]

    def _take_parts(self, alike: list[Job]) -> list[tuple[Job, Any]]:
        """Return the parts of the next batch, each with its job."""
        ready = [job for job in alike if job.peek()]
        if not ready:
            return []
        length, most = ready[0].next_length, ready[0].kind.most_padding
        rest = [one for one in ready[1:] if one.next_length <= most * length and length <= most * one.next_length]
        together = [ready[0], *sorted(rest, key=lambda job: abs(job.next_length - length))][: self.size]
        taken, turn = [(job, job.take()) for job in together], 1
        while len(taken) < self.size and (together := [job for job in together if job.may_add(turn)]):
            taken += [(job, job.take()) for job in together[: self.size - len(taken)]]
            turn += 1
        return taken

    def _requeue(self, jobs: Mapping[Job, None], begun: float, num_steps: int) -> None:
        """Move the jobs of a batch, which started at ``begun``, behind those that arrived while it was computed.

        ``num_steps`` is the number of steps at which others could join it.
        """
        ended, first = time.monotonic(), next(iter(jobs))
        wait = (ended - begun) * min(WAITING_SHARE, 1 / max(1, num_steps))
        for job in jobs:
            job.adapt_share(ended - begun)
        with self.changed:
            self.jobs = [job for job in self.jobs if job not in jobs] + list(jobs)
            self.last = Computed(first.kind.key, len(self._alike(first)), ended, wait)

    def _compute(self, taken: list[tuple[Job, Any]]) -> None:
        """Compute parts together; after an error each alone, so that only the request that causes it fails."""
        self.metrics.count_batch(self.name, len(taken))
        kind, found = taken[0][0].kind, dict[int, Any]()
        # Each part is a source with one item; twice as many, because the end of a source counts, too.
        batches = Batches(self.device, len(taken), ahead=2 * len(taken))
        try:
            with self.within(), self.alone():
                each = batches.of_sources(
                    range(len(taken)),
                    lambda number: iter([number]),
                    lambda number: kind.length(taken[number][1]),
                    lambda numbers: kind.compute([taken[number][1] for number in numbers]),
                )
                for one in each:
                    if not isinstance(one, Done):
                        found[one[0]] = one[1]
                    elif one.error is not None:
                        found[one.source] = one.error
        except Exception as error:
            if len(taken) > 1:
                for pair in taken:
                    self._compute([pair])
                return
            found[0] = error
        for number, (job, _) in enumerate(taken):
            if isinstance(found[number], Exception):
                job.fail(found[number])
            elif not job.is_over:
                job.add(found[number])


class _OpenBatch:
    """The parts of a batch that others may join, with their jobs; an ``Intake``."""

    def __init__(self, worker: Worker, taken: list[tuple[Job, Any]]) -> None:
        self.worker, self.key = worker, taken[0][0].kind.key
        self.parts: dict[Job, list[Any]] = {}
        self.results: dict[int, Any] = {}
        self.num_parts = self.num_asked = 0
        self._add(taken)

    def take(self, number: int) -> list[Any]:
        """Return parts that arrived in the meantime, for a batch that has ``number`` unfinished ones."""
        is_time = self.num_asked % JOINING_STEPS == 0
        self.num_asked += 1
        if not is_time or self.num_parts >= MOST_JOINING:
            return []
        found = self.worker.take_joining(self.key, self.worker.size - number)
        self._add(found)
        return [part for _, part in found]

    def deliver(self, part: Any, result: Any) -> None:
        """Store the result of a part; once all parts of its job have results, pass them to the job in order."""
        self.results[id(part)] = result
        for job, parts in [*self.parts.items()]:
            if all(id(one) in self.results for one in parts):
                del self.parts[job]
                for one in parts:
                    job.add(self.results.pop(id(one)))
                job.end_if_done()

    def rest(self) -> list[tuple[Job, Any]]:
        """Return the parts of unfinished jobs, each with its job."""
        return [(job, part) for job, parts in self.parts.items() for part in parts]

    def _add(self, taken: list[tuple[Job, Any]]) -> None:
        self.num_parts += len(taken)
        for job, part in taken:
            self.parts.setdefault(job, []).append(part)
