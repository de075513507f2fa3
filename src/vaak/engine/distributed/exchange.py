"""The two exchanges of a step: one small message before it, the sum of gradients after every backward.

The message is a row of fixed width, the same for every rank and every step:

    hash of unit names | hash of texts | flags | saved | 16 counts, in the order of the unit names

Names and texts are only sent where a hash says that a rank has others. Gradients are stored in a few flat buckets of
fixed size: each parameter's ``grad`` is a view of its bucket, so that nothing is copied. The layout follows from the
parameters that are trained, so the same ranks get the same bits in every run. Buckets are summed from the last, which
backward fills first, to the first. Each is summed as soon as it is full, unless a rank may have to recompute its part
after an out-of-memory error; then all are summed after the last backward.
After the last gradient the same sum carries a tail:

    which parameters this rank reached | for each rank its own row: unknown term? | which terms | the terms' sums

A rank leaves the others' rows 0, so that all rows arrive as they were sent; they are added in the order of ranks.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vaak.core.batch import send

BUCKET_BYTES = 128 * 2**20
ALIGNED_ELEMENTS = 16
"""Elements: the alignment of each gradient, for vector instructions."""
TERMS = 16
"""Number of terms that fit into a row of the tail; a task with more sends them by name, in every step."""


class World(Protocol):
    """The ranks, as far as buckets need them."""

    rank: int
    world_size: int
    device: torch.device

    def add_up(self, tensor: Tensor) -> None: ...
    def start_adding_up(self, tensor: Tensor) -> Callable[[], None]: ...
    def gather(self, value: Any) -> list[Any]: ...


class OwnGradients:
    """The gradients of a run of one process: nothing is added, nothing is held.

    ``may_repeat`` says whether ``reduce`` may ask for the step to be computed again, ``of_others`` which parameters
    other ranks update.
    """

    may_repeat = False
    of_others: frozenset[nn.Parameter] = frozenset()

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = list(parameters)

    @property
    def gradients(self) -> list[Tensor]:
        """The gradients of the parameters that were reached."""
        return [parameter.grad for parameter in self.parameters if parameter.grad is not None]

    def begin(self) -> None:
        """Drop every gradient: a backward follows."""
        self.clear()

    def restart(self) -> None:
        """Drop what was computed of a step: its backwards follow, again."""
        self.begin()

    def start_when_full(self) -> None:
        """The last backward of the step follows; no other will, whatever happens."""

    def take_in(self, number: int, sums: dict[str, Tensor]) -> None:
        """Microbatch ``number`` of the step has been computed."""

    @torch.no_grad()
    def add(self, found: Sequence[Tensor | None]) -> None:
        """Add a microbatch's gradient of each parameter that it reached, as a backward would; it takes the tensors."""
        reached = [(number, one) for number, one in enumerate(found) if one is not None]
        pairs = [(self.parameters[number].grad, one) for number, one in reached]
        sums = [(total, one) for total, one in pairs if total is not None]
        if sums:
            torch._foreach_add_([total for total, _ in sums], [one for _, one in sums])
        for number, one in reached:
            if self.parameters[number].grad is None:
                self.parameters[number].grad = one
            self._tell_reached(self.parameters[number])

    def _tell_reached(self, parameter: nn.Parameter) -> None:
        """A gradient has been added to this parameter's by no backward, whose hooks would say so."""

    def norm(self) -> Tensor:
        """The 2-norm of all gradients together, once they are added."""
        return total_norm(self.gradients)

    def reduce(self, sums: dict[str, Tensor], units: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """The terms' sums and units, over all ranks; None if the step has to be computed again."""
        return sums, units

    def updating(self) -> contextlib.AbstractContextManager[None]:
        """The context of an update of the weights; after it, every rank has all of them."""
        return contextlib.nullcontext()

    def clear(self) -> None:
        """Drop every gradient."""
        for parameter in self.parameters:
            parameter.grad = None

    drop = clear


def total_norm(gradients: list[Tensor]) -> Tensor:
    """Return the 2-norm of all gradients together."""
    if len({gradient.dtype for gradient in gradients}) != 1:
        # This holds where there are none, too.
        return nn.utils.get_total_norm(gradients) if gradients else torch.zeros(())
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


class GradientBuckets(OwnGradients):
    """The gradients of a run of several processes. ``begin``, the backwards, then ``reduce``, once a step.

    ``drop`` gives the memory back until the next ``begin``. A parameter that is frozen has no place; when one is
    frozen or unfrozen, which has to happen on all ranks in the same step, ``begin`` makes a new layout. ``sum_dtype``
    is what gradients are rounded to before they are added over ranks.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        world: World,
        bucket_bytes: int = BUCKET_BYTES,
        sum_dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(parameters)
        self._world, self._bucket_bytes, self._sum_dtype = world, bucket_bytes, sum_dtype
        # The table: each term's unit, in the order of its places; same on every rank.
        self._units: dict[str, str] = {}
        self._trained: list[nn.Parameter] = []
        self._views: list[Tensor] = []
        self._buckets: list[Tensor] = []
        self._tail = torch.empty(0)
        self._hooks: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._reached: list[bool] = []
        # The order in which buckets are added up.
        self._order: list[int] = []
        self._bucket_of: dict[int, int] = {}
        # What each bucket lacked in the last backward pass.
        self._missing: list[set[int]] = []
        # Waits for the sums that have begun.
        self._waits: list[Callable[[], None]] = []

    def begin(self) -> None:
        """Set every gradient to 0, in its bucket: a backward follows."""
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        if not self._buckets or list(map(id, trained)) != list(map(id, self._trained)):
            self.drop()
            self._lay_out(trained)
        for bucket in self._buckets:
            bucket.zero_()
        for parameter, view in zip(self._trained, self._views, strict=True):
            parameter.grad = view
        self._reached = [False] * len(self._trained)
        self._missing, self._waits = [], []

    def start_when_full(self) -> None:
        self._missing = [set() for _ in self._buckets]
        for number, bucket in self._bucket_of.items():
            self._missing[bucket].add(number)

    def reduce(self, sums: dict[str, Tensor], units: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Add gradients over ranks, and the terms' sums; return these, and the units of all ranks' terms.

        A parameter that no rank's microbatches reached has no gradient, as in a single process: its optimizer leaves
        it alone.
        """
        # 1. Every gradient is in its bucket: where a backward made a new tensor, it is copied there.
        # 2. The tail of the last bucket says what this rank reached, and has its terms in a separate row.
        # 3. The buckets are added over ranks in one order: the only sum of the step, and the same on every rank. Where
        #    gradients are rounded for it, the tail, which isn't, is summed separately.
        # 4. What no rank reached was added up from zeros: it gets no gradient, or its optimizer would decay it.
        # 5. The rows, which no sum has mixed, are added in the order of ranks; unknown names are sent only now.
        for number in range(len(self._trained)):
            self._put_in_place(number)
        self._write_tail(sums, units)
        # some sums may have begun during the backward (see _waits); the order is the same either way
        for bucket in self._order[len(self._waits) :]:
            self._start_adding_up(bucket)()
        for wait in self._waits:
            wait()
        if self._sum_dtype is not None:
            self._world.add_up(self._tail)
        tail = self._tail.cpu()
        for parameter, reached in zip(self._trained, tail[: len(self._trained)].tolist(), strict=True):
            if not reached:
                parameter.grad = None
        rows = tail[len(self._trained) :].view(self._world.world_size, 2 + TERMS)
        return self._terms(rows, sums, units)

    def drop(self) -> None:
        """Drop every gradient and free the buckets."""
        self.clear()
        for hook in self._hooks:
            hook.remove()
        self._trained, self._views, self._buckets, self._hooks = [], [], [], []
        self._order, self._bucket_of = [], {}
        self._tail = torch.empty(0)

    def _lay_out(self, trained: list[nn.Parameter]) -> None:
        """Give every parameter its place: those of a kind together, in their order, until a bucket is full."""
        kinds: dict[tuple[torch.dtype, torch.device], list[list[int]]] = {}
        for number, parameter in enumerate(trained):
            groups = kinds.setdefault((parameter.dtype, parameter.device), [[]])
            size = sum(_room(trained[other]) for other in groups[-1]) + _room(parameter)
            if groups[-1] and size * parameter.dtype.itemsize > self._bucket_bytes:
                groups.append([])
            groups[-1].append(number)
        plan = [(*kind, numbers) for kind, groups in kinds.items() for numbers in groups]
        precise = [index for index, (dtype, _, _) in enumerate(plan) if dtype in (torch.float32, torch.float64)]
        if not precise:
            # Sums of losses need 32 bits.
            precise = [len(plan)]
            plan.append((torch.float32, self._world.device, []))
        tail = len(trained) + self._world.world_size * (2 + TERMS)
        views: dict[int, Tensor] = {}
        for index, (dtype, device, numbers) in enumerate(plan):
            ends_at = sum(_room(trained[number]) for number in numbers)
            with_tail = tail if index == precise[-1] else 0
            bucket = torch.zeros(ends_at + with_tail, dtype=dtype, device=device)
            start = 0
            for number in numbers:
                parameter = trained[number]
                views[number] = bucket[start : start + parameter.numel()].view(parameter.shape)
                start += _room(parameter)
            if with_tail:
                self._tail = bucket[ends_at:]
            self._buckets.append(bucket)
            self._bucket_of |= dict.fromkeys(numbers, index)
        self._order = [*(index for index in reversed(range(len(plan))) if index != precise[-1]), precise[-1]]
        self._trained, self._views = trained, [views[number] for number in range(len(trained))]
        self._numbers = {id(parameter): number for number, parameter in enumerate(trained)}
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._note(number)) for number, parameter in enumerate(trained)
        ]

    def _note(self, number: int) -> Any:
        """Return the hook that a backward calls when it has reached a parameter."""

        def reached(_: Tensor) -> None:
            self._reached[number] = True
            if self._missing:
                self._put_in_place(number)
                # It comes once in a backward.
                self._missing[self._bucket_of[number]].remove(number)
                self._start_full_ones()

        return reached

    def _tell_reached(self, parameter: nn.Parameter) -> None:
        self._note(self._numbers[id(parameter)])(parameter)

    def _put_in_place(self, number: int) -> None:
        """Copy a gradient into its bucket where a backward has made a new tensor."""
        parameter, view = self._trained[number], self._views[number]
        if parameter.grad is not view and parameter.grad is not None:
            view.copy_(parameter.grad)
            parameter.grad = view

    def _start_full_ones(self) -> None:
        """Begin to add up buckets, in their order; the last one waits for its tail."""
        for bucket in self._order[len(self._waits) : -1]:
            if self._missing[bucket]:
                return
            self._waits.append(self._start_adding_up(bucket))

    def _start_adding_up(self, bucket: int) -> Callable[[], None]:
        """Begin to add a bucket over ranks; return what waits for the sum. The tail is never rounded, but left out."""
        whole = self._buckets[bucket]
        if self._sum_dtype is None:
            return self._world.start_adding_up(whole)
        gradients = whole[: len(whole) - len(self._tail)] if bucket == self._order[-1] else whole
        if not len(gradients):
            return lambda: None
        rounded = gradients.to(self._sum_dtype)
        wait = self._world.start_adding_up(rounded)

        def put_back() -> None:
            wait()
            gradients.copy_(rounded)

        return put_back

    def _write_tail(self, sums: dict[str, Tensor], units: dict[str, str]) -> None:
        """Write which parameters this rank reached, and its terms, each in its place."""
        if all(self._reached):
            self._tail[: len(self._trained)] = 1
        else:
            reached = torch.tensor(self._reached, dtype=self._tail.dtype)
            self._tail[: len(self._trained)] = send(reached, self._tail.device)
        row = self._tail[len(self._trained) :].view(self._world.world_size, 2 + TERMS)[self._world.rank]
        if any(self._units.get(name) != units[name] for name in sums) or len(self._units) > TERMS:
            # row[0] = 1 would wait for a GPU.
            row[0].fill_(1)
        elif sums:
            row[1].fill_(sum(1 << place for place, name in enumerate(self._units) if name in sums))
            for place, name in enumerate(self._units):
                if name in sums:
                    row[2 + place] = sums[name]

    def _terms(
        self, rows: Tensor, sums: dict[str, Tensor], units: dict[str, str]
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The terms of all ranks, added in the order of ranks: this rank's names first, then those of the others."""
        if rows[:, 0].any():
            # some rank has a term that the table doesn't: all are sent by name; the table then has them
            mine = [[name, units[name], float(total.to(self._tail.dtype))] for name, total in sums.items()]
            every = self._world.gather(mine)
            self._units |= {name: unit for part in every for name, unit, _ in part}
            parts = [{name: torch.tensor(value, dtype=self._tail.dtype) for name, _, value in part} for part in every]
        else:
            names = list(self._units)
            masks = [int(mask) for mask in rows[:, 1].tolist()]
            parts = [
                {name: row[2 + index] for index, name in enumerate(names) if mask >> index & 1}
                for row, mask in zip(rows, masks, strict=True)
            ]
        totals: dict[str, Tensor] = {}
        for part in parts:
            for name, value in part.items():
                totals[name] = totals[name] + value if name in totals else value
        order = [name for name in sums if name in totals] + [name for name in totals if name not in sums]
        if not order:
            return {}, {}
        values = send(torch.stack([totals[name] for name in order]), self._tail.device)
        return dict(zip(order, values.unbind(), strict=True)), {name: self._units[name] for name in order}


def _room(parameter: nn.Parameter) -> int:
    """The elements that a gradient takes in its bucket."""
    return -(-parameter.numel() // ALIGNED_ELEMENTS) * ALIGNED_ELEMENTS


SLOTS = 16
"""Number of counts that fit into a row; a run with more units sends all of them as text, in every step."""
STATUS_ROW = struct.Struct(f"<4q{SLOTS}d")
EVALUATE, SAVE, TOO_MANY = 1, 2, 4
PRESENT = 3
"""The first of the flags' bits that say which counts this rank has."""


@dataclass
class StepMessage:
    """The counts and requests of one rank before a step; combined, those of all.

    ``counts``: the next step's units on this rank. ``stop``: the reason. ``chunk_rules``: in how many chunks
    microbatches are computed from the next step on (engine/state.py), each with the reason. ``saved``: the step of
    a checkpoint that rank 0 has finished writing.
    """

    counts: dict[str, float] = field(default_factory=dict)
    stop: str | None = None
    evaluate: bool = False
    save: bool = False
    chunk_rules: list[list[Any]] = field(default_factory=list)
    saved: int = 0

    def texts(self) -> list[Any]:
        """Return the parts of the message that don't fit into a row."""
        return [self.stop, self.chunk_rules]


def combine(messages: Sequence[StepMessage]) -> StepMessage:
    """The messages of all ranks, in their order, as one: counts are added, and what any rank requests is requested.

    >>> combine([StepMessage({"token": 3}), StepMessage({"token": 4}, stop="SIGTERM", save=True)])
    StepMessage(counts={'token': 7.0}, stop='SIGTERM', evaluate=False, save=True, chunk_rules=[], saved=0)
    """
    combined = StepMessage(saved=messages[0].saved)
    for message in messages:
        for unit, count in message.counts.items():
            combined.counts[unit] = combined.counts.get(unit, 0.0) + count
        combined.stop = combined.stop or message.stop
        combined.evaluate = combined.evaluate or message.evaluate
        combined.save = combined.save or message.save
        combined.chunk_rules += message.chunk_rules
    return combined


class Exchange:
    """Turns this rank's message into that of all ranks; every rank calls it equally often.

    ``gather_bytes`` gathers as many bytes of each rank, ``gather`` a JSON value of any length. A rank without a
    microbatch has no units: it lays out its zeros under the names that were used before.
    """

    def __init__(self, gather_bytes: Callable[[bytes], list[bytes]], gather: Callable[[Any], list[Any]]) -> None:
        self._gather_bytes, self._gather = gather_bytes, gather
        # The same on every rank.
        self._units: list[str] = []

    def __call__(self, message: StepMessage) -> StepMessage:
        """All ranks' messages, combined."""
        units = self._units if message.counts.keys() <= set(self._units) else self._unit_names(message.counts)
        rows = [STATUS_ROW.unpack(row) for row in self._gather_bytes(_row(message, units))]
        messages = [_message(row, units) for row in rows]
        # every rank sees the same rows, so all take the same branches and their collectives match
        if any(row[0] != rows[0][0] or row[2] & TOO_MANY for row in rows):
            for other, counts in zip(messages, self._gather(message.counts), strict=True):
                other.counts = counts
            units = self._unit_names(*(other.counts for other in messages))
        self._units = units
        if any(row[1] != rows[0][1] for row in rows):
            texts = self._gather(message.texts())
        else:
            texts = [message.texts()] * len(rows)
        for other, (stop, chunk_rules) in zip(messages, texts, strict=True):
            other.stop, other.chunk_rules = stop, chunk_rules
        return combine(messages)

    def _unit_names(self, *counts: dict[str, float]) -> list[str]:
        return sorted(set(self._units).union(*counts))


def hash_value(value: Any) -> int:
    """64 bits that tell JSON values apart; 0 for what is empty."""
    if not value:
        return 0
    text = json.dumps(value, sort_keys=True)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little", signed=True)


def _row(message: StepMessage, units: list[str]) -> bytes:
    flags = EVALUATE * message.evaluate | SAVE * message.save | TOO_MANY * (len(units) > SLOTS)
    slots = [0.0] * SLOTS
    for number, unit in enumerate(units[:SLOTS]):
        if unit in message.counts:
            flags |= 1 << PRESENT + number
            slots[number] = message.counts[unit]
    texts = message.texts()
    return STATUS_ROW.pack(hash_value(units), hash_value(texts if any(texts) else None), flags, message.saved, *slots)


def _message(row: tuple[Any, ...], units: list[str]) -> StepMessage:
    """Decode a row; its counts are right where its rank has the same ``units``."""
    flags, saved = row[2:4]
    counts = {unit: row[4 + number] for number, unit in enumerate(units[:SLOTS]) if flags >> PRESENT + number & 1}
    return StepMessage(counts, None, bool(flags & EVALUATE), bool(flags & SAVE), [], saved)
