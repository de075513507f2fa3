"""Gradients that are the same bits on any number of processes: sums of integers don't depend on their order.

    a microbatch's gradient g ──▶ round(g · 2^k), 64 bits ──▶ added on its rank, then over ranks ──▶ · 2^-k, 32 bits

``k`` belongs to a parameter. It follows from the first microbatch that the step has, on any rank: its largest number,
at 2^e, may grow 2^6 times as large, over 2^14 microbatches, so k = 42 - e. Where another microbatch has larger numbers,
the step is computed again with the ``k`` of the largest, which is the same for all ranks, too: nothing saturates. A
microbatch adds an error of at most 2^-43 of the largest number, which is less than float32 rounds to for all numbers
above 2^-19 of it.

Terms of the losses are sent microbatch by microbatch and added up in their order. A gradient that isn't finite makes
its parameter's sum NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vaak.config.training import MOST_EXACT
from vaak.engine.distributed.exchange import OwnGradients, World

GROWTH_BITS = 6
BINARY_PLACES = 62 - (MOST_EXACT.bit_length() - 1) - GROWTH_BITS
"""Binary places of the largest number that the first microbatch has."""
FARTHEST = 100
"""A power of 2 beyond which a product doesn't fit 32 bits."""
VALUES_AT_ONCE = 2**24
"""Elements that are added over ranks together."""
UNREACHED, ZERO, NOT_FINITE = -3000, -2000, 3000
"""In place of an exponent: no gradient, only zeros, or something that isn't finite."""


class ExactGradients(OwnGradients):
    """The gradients of a run that are added up exactly, by one process or several.

    ``begin``, then for each microbatch a backward and ``take_in``, then ``reduce``; where that returns None, the step
    is computed again, without ``begin``.
    """

    may_repeat = True

    def __init__(self, parameters: Iterable[nn.Parameter], world: World) -> None:
        super().__init__(parameters)
        self._world = world
        self._trained: list[nn.Parameter] = []
        self._flat = torch.empty(0, dtype=torch.int64)
        self._views: tuple[Tensor, ...] = ()
        self._exponents: list[int] | None = None
        self._highest = torch.empty(0)
        self._reached: list[bool] = []
        self._parts: list[tuple[int, dict[str, float]]] = []

    def begin(self) -> None:
        """A step begins; its numbers' sizes aren't known yet."""
        self._exponents = None
        self.restart()

    def restart(self) -> None:
        """Set every sum to 0: a step's backwards follow, again."""
        trained = [parameter for parameter in self.parameters if parameter.requires_grad]
        if list(map(id, trained)) != list(map(id, self._trained)):
            self._trained, sizes = trained, [parameter.numel() for parameter in trained]
            self._flat = torch.empty(sum(sizes), dtype=torch.int64, device=self._world.device)
            self._views = self._flat.split(sizes) if sizes else ()
        self.clear()
        self._flat.zero_()
        self._highest = torch.zeros(len(trained), device=self._world.device)
        self._reached, self._parts = [False] * len(trained), []

    @torch.no_grad()
    def take_in(self, number: int, sums: dict[str, Tensor]) -> None:
        """Add the gradients of microbatch ``number`` of the step, and drop them; keep its terms' ``sums``."""
        places = [place for place, parameter in enumerate(self._trained) if parameter.grad is not None]
        gradients = [self._trained[place].grad for place in places]
        highest = torch.zeros_like(self._highest)
        if places:
            each = torch._foreach_norm(gradients, torch.inf)  # type: ignore[arg-type]
            highest[places] = torch.stack([one.float() for one in each])
        for place in places:
            self._reached[place] = True
        if self._exponents is None:
            self._agree_on_exponents(highest, set(places), number)
        assert self._exponents is not None
        # NaN where either is.
        self._highest = torch.maximum(self._highest, highest)
        for place, gradient in zip(places, gradients, strict=True):
            assert gradient is not None
            scaled = scale_exactly(gradient, BINARY_PLACES - self._exponents[place])
            self._views[place].add_(scaled.round_().flatten().to(torch.int64))
            self._trained[place].grad = None
        self._parts.append((number, {name: float(total) for name, total in sums.items()}))

    @torch.no_grad()
    def reduce(self, sums: dict[str, Tensor], units: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]] | None:
        """Leave the sums over all microbatches of the step in the parameters; return the terms', and their units.

        None if numbers were too large for the sums: all ranks then compute the step again.
        """
        if self._exponents is None:
            # This rank has no microbatch.
            self._agree_on_exponents(self._highest, set(), None)
        assert self._exponents is not None
        own = get_exponents(self._highest, self._reached)
        every = self._world.gather([own, self._parts, units])
        highest = [max(column) for column in zip(*(codes for codes, _, _ in every), strict=True)]
        if any(
            ZERO < code < NOT_FINITE and code > exponent + GROWTH_BITS
            for code, exponent in zip(highest, self._exponents, strict=True)
        ):
            self._exponents = _filled_in(highest)
            self.restart()
            return None
        if self._world.world_size > 1:
            for part in self._flat.split(VALUES_AT_ONCE):
                self._world.add_up(part)
        for parameter, view, code, exponent in zip(self._trained, self._views, highest, self._exponents, strict=True):
            if code == UNREACHED:
                continue
            # The only rounding of a sum.
            rounded = view.to(choose_dtype(parameter)).view(parameter.shape)
            parameter.grad = scale_exactly(rounded, exponent - BINARY_PLACES).to(parameter.dtype)
            if code >= NOT_FINITE:
                parameter.grad.fill_(torch.nan)
        # Sums are added in the order of microbatches.
        totals = sum_in_order(part for _, parts, _ in every for part in parts)
        every_unit = {name: unit for _, _, own_units in every for name, unit in own_units.items()}
        values = torch.tensor(list(totals.values()), device=self._world.device)
        return dict(zip(totals, values.unbind(), strict=True)), {name: every_unit[name] for name in totals}

    def drop(self) -> None:
        """Drop every gradient and free the sums."""
        self.clear()
        self._trained, self._views = [], ()
        self._flat = torch.empty(0, dtype=torch.int64)

    def _agree_on_exponents(self, highest: Tensor, reached: set[int], number: int | None) -> None:
        """Learn the sizes of the numbers of the step's first microbatch, of the ranks' first ones; it may not be 0.

        ``number`` is that of this rank's, which had those ``highest`` where it ``reached``; None: it has none.
        """
        codes = get_exponents(highest, [place in reached for place in range(len(self._trained))])
        firsts = [one for one in self._world.gather(None if number is None else [number, codes]) if one is not None]
        self._exponents = _filled_in(min(firsts)[1] if firsts else codes)


def choose_dtype(x: Tensor) -> torch.dtype:
    """Return 64 bits for what has them, else 32."""
    return torch.promote_types(x.dtype, torch.float32)


def scale_exactly(x: Tensor, power: int) -> Tensor:
    """Return x · 2^power, in 32 bits where it fits and ``x`` has no more: the digits are the same."""
    precise = choose_dtype(x) if abs(power) < FARTHEST else torch.float64
    return x.to(precise) * 2.0**power


def sum_in_order(parts: Iterable[Sequence[Any]]) -> dict[str, float]:
    """Return the sums of each name; ``parts`` are pairs of a batch's number and its sums, added in that order."""
    total: dict[str, float] = {}
    for _, sums in sorted(parts, key=lambda part: part[0]):
        for name, value in sums.items():
            total[name] = total.get(name, 0.0) + value
    return total


def get_exponents(highest: Tensor, reached: list[bool]) -> list[int]:
    """Return the exponents e of numbers below 2^e, or a marker in their place."""
    values = highest.tolist()
    exponents = torch.frexp(highest).exponent.tolist()
    found = []
    for value, exponent, is_reached in zip(values, exponents, reached, strict=True):
        if not is_reached:
            found.append(UNREACHED)
        elif value == 0:
            found.append(ZERO)
        else:
            found.append(exponent if value < torch.inf else NOT_FINITE)
    return found


def _filled_in(codes: list[int]) -> list[int]:
    """The exponents; where there is none, the largest of the others."""
    known = [code for code in codes if ZERO < code < NOT_FINITE]
    largest = max(known, default=0)
    return [code if ZERO < code < NOT_FINITE else largest for code in codes]
