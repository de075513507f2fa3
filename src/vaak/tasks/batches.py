"""Batches of a trained model's inputs: inputs of similar length, as many as memory allows.

    files ──read──▶ parts, some batches ahead ──the longest first──▶ batches ──▶ results, in the order of the parts

Padding changes nothing that a task makes of an input: its result depends on the others of its batch by rounding only.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import torch

from vaak.core.errors import UserError
from vaak.core.out_of_memory import is_out_of_memory
from vaak.engine.memory import choose_thresholds, free_memory, read_memory, reset_peak

log = logging.getLogger("vaak")
Source = TypeVar("Source")
Part = TypeVar("Part")
Result = TypeVar("Result")
AT_FIRST, AT_MOST = 16, 128
"""Parts in a batch by default, and the most that they may become on a device with enough memory."""
IS_ALONE = ContextVar("IS_ALONE", default=False)
"""Whether each input is computed alone, in this thread."""
BATCHES_AHEAD = 4
"""The number of batches of parts that are read and sorted at a time; with one part in a batch, none is read ahead."""


@contextlib.contextmanager
def compute_alone() -> Iterator[None]:
    """Compute each input alone, whatever batches are asked for: on a CPU, its result has the same bits among any."""
    token = IS_ALONE.set(True)
    try:
        yield
    finally:
        IS_ALONE.reset(token)


def limit_batch(size: int) -> int:
    """Return how many inputs may be computed together: ``size``, but one within ``compute_alone``."""
    return 1 if IS_ALONE.get() else size


class Embedded(NamedTuple):
    """The embedding of a text, the number of tokens that it was made of, and whether the text has more."""

    vector: list[float]
    num_tokens: int
    is_cut: bool


@dataclass(eq=False)
class Done(Generic[Source]):
    """The end of a source's parts: the ``error`` of one that can't be read to its end, and the ``seconds`` it took."""

    source: Source
    seconds: float = 0.0
    error: UserError | None = field(default=None)


class Batches:
    """Computes ``size`` parts together; with None, as many as memory allows, beginning ``at_first``.

    Where memory runs out they become fewer, unless an error is asked for (``recovers`` False). A GPU is given twice as
    many while that fits; a CPU is busy with a few. Within ``compute_alone`` it is one, always.
    """

    def __init__(
        self,
        device: torch.device,
        size: int | None = None,
        at_first: int = AT_FIRST,
        *,
        max_padded_size: int | None = None,
        ahead: int | None = None,
        recovers: bool = True,
    ) -> None:
        """``max_padded_size`` is the maximum padded size of a batch: the number of its parts times the longest.

        ``ahead`` parts are read and sorted at a time; None: those of a few batches.
        """
        self.device, self.size, self.recovers = device, limit_batch(size or at_first), recovers
        self.grows = size is None and device.type == "cuda" and not IS_ALONE.get()
        self.max_padded_size, self.ahead = max_padded_size, ahead

    def results(
        self,
        parts: Iterable[Part],
        length: Callable[[Part], float],
        compute: Callable[[list[Part]], Sequence[Result]],
    ) -> Iterator[Result]:
        """The result of each part, in their order; ``compute`` gives those of a batch, whose longest part is first."""
        for one in self.of_sources([parts], iter, length, compute):
            if not isinstance(one, Done):
                yield one[1]
            elif one.error is not None:
                raise one.error

    def of_sources(
        self,
        sources: Iterable[Source],
        read: Callable[[Source], Iterator[Part]],
        length: Callable[[Part], float],
        compute: Callable[[list[Part]], Sequence[Result]],
    ) -> Iterator[tuple[Source, Result] | Done[Source]]:
        """Yield the results of each source's parts in their order, then its ``Done``; the same for the next source.

        A UserError ends a source only, after the results before it: one of ``read``, or that a part alone doesn't fit
        in memory.
        """
        parts, failed = _parts(sources, read), None
        while some := list(islice(parts, self.ahead or (self.size * BATCHES_AHEAD if self.size > 1 else 1))):
            found: dict[int, Result | UserError] = {}
            places = [place for place, (_, read_parts) in enumerate(some) if read_parts]
            # The longest first: neighbours have similar lengths, so little is padded, and a batch that is too large for
            # the memory is met at the beginning.
            places.sort(key=lambda place: -length(some[place][1][0]))
            while places:
                longest = max(length(some[places[0]][1][0]), 1)
                most = self.size
                if self.max_padded_size is not None:
                    most = max(1, min(most, int(self.max_padded_size // longest)))
                together, places = places[:most], places[most:]
                begun = time.perf_counter()
                results = self._compute_batch([some[place][1][0] for place in together], compute)
                share = (time.perf_counter() - begun) / len(together)
                for place, result in zip(together, results, strict=True):
                    found[place] = result
                    some[place][0].seconds += share
            # Computed by length, given back in the order of the parts.
            for place, (done, read_parts) in enumerate(some):
                if not read_parts:
                    yield done
                    continue
                result = found.pop(place)
                # Only the first error of a source counts; results of its later parts are dropped.
                if isinstance(result, UserError) and done is not failed:
                    done.error, failed = result, done
                elif not isinstance(result, UserError) and done is not failed:
                    yield done.source, result

    def _compute_batch(
        self, parts: list[Part], compute: Callable[[list[Part]], Sequence[Result]]
    ) -> Sequence[Result | UserError]:
        """The results of a batch, in halves where it doesn't fit; for a part that doesn't fit alone, the error."""
        if self.grows:
            reset_peak(self.device)
        before = read_memory(self.device).own if self.grows else 0
        try:
            results = compute(parts)
        except Exception as error:
            if not (self.recovers and is_out_of_memory(error)):
                raise
        else:
            if self.grows and len(parts) == self.size:
                # take twice as many from here on where twice the memory that a batch added fits
                now = read_memory(self.device)
                fits = now.used + (now.own - before) < choose_thresholds(self.device)[1] * now.limit
                self.size, self.grows = (2 * self.size, 2 * self.size < AT_MOST) if fits else (self.size, False)
            return results
        # Outside the except block: while it is handled, the exception's traceback holds the tensors of the failed
        # batch.
        if len(parts) == 1:
            free_memory(self.device)
            return [UserError("out of memory: one input does not fit even alone; shorten it, or use another --device")]
        half = len(parts) // 2
        self.size, self.grows = min(self.size, half), False
        free_memory(self.device)
        log.warning("out of memory with %d inputs together: from here on at most %d (--batch-size)", len(parts), half)
        return [*self._compute_batch(parts[:half], compute), *self._compute_batch(parts[half:], compute)]


def _parts(
    sources: Iterable[Source], read: Callable[[Source], Iterator[Part]]
) -> Iterator[tuple[Done[Source], list[Part]]]:
    """Yield each source's parts, one at a time with how long they took; after them, none."""
    for source in sources:
        done, begun = Done(source), time.perf_counter()
        try:
            for part in read(source):
                done.seconds += time.perf_counter() - begun
                yield done, [part]
                begun = time.perf_counter()
        except UserError as error:
            done.error = error
        done.seconds += time.perf_counter() - begun
        yield done, []
