"""CUDA graphs: the forward and backward of a microbatch as one launch, for each shape of a batch.

    a shape's first batch   try it without a graph ─▶ capture ─▶ replay ─▶ the same gradient? ─▶ keep the graph
    its later batches       copy the batch and the divisors to the graph's inputs ─▶ replay ─▶ add up the gradient

Small models wait for the program that starts their operators: a graph starts all of them at once. The losses, of which
a replay repeats the kernels alone, must be a function of the batch's tensors, of weights and of the device's draws. The
first try watches for everything else, before CUDA's own capture could fail: numbers that the program reads, copies
from or to the CPU, draws of the CPU, and what a batch has besides tensors. Such a shape is computed without a graph,
and one line says why.

Dropout draws as without graphs: torch registers the device's generator with each capture, and its kernels read the
seed, which ``Forward`` sets from (seed, step, microbatch), when they are replayed. A graph whose first replay differs
from the try isn't used: in bits, where kernels are deterministic, else by more than their rounding. Optimizers run
after it, as ever; they needn't be ``capturable``.

Source: Nguyen et al. 2021, "Accelerating PyTorch with CUDA Graphs". Differs: whole microbatches, with losses, are
captured, and nothing is left in a parameter's ``grad``.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vaak.core.batch import Batch, Term
from vaak.core.out_of_memory import is_out_of_memory
from vaak.engine.precision import renew_generator

log = logging.getLogger("vaak")
OPTION = "training.performance.cuda_graphs"
MOST_FAILURES = 4
"""Shapes that fail one after another, before any is captured, until no more are tried."""
TOLERANCE = 0.02
"""How far a replay's gradient may be from that of the try, relative to its norm, where kernels may differ in order."""

Terms = dict[str, Term]


@dataclass(frozen=True)
class Work:
    """A microbatch to compute.

    ``batch`` has its tensors, ``key`` all that its kernels depend on besides shapes. ``seed`` seeds the generators by
    its place in training; ``terms`` computes the terms of a batch that is on the device, and doesn't seed. ``factors``
    gives the derivative of the step's loss by each term. ``modules`` have the weights and buffers that are read,
    ``parameters`` are those that an objective trains.
    """

    batch: Batch
    key: Any
    seed: Callable[[], None]
    terms: Callable[[Batch], Terms]
    factors: Callable[[Terms], list[float]]
    modules: tuple[nn.Module, ...]
    parameters: Sequence[nn.Parameter]


class NotCapturableError(Exception):
    """Why the losses aren't a function of what a graph reads."""


@dataclass(frozen=True)
class Gradient:
    """A microbatch's results: its terms, whose totals have no graph, and the gradient of each parameter or None."""

    terms: Terms
    gradients: list[Tensor | None]


@dataclass
class CapturedShape:
    """A graph with its inputs and results, which every replay overwrites."""

    graph: Any
    inputs: dict[str, Tensor]
    factors: Tensor
    results: Gradient
    pointers: list[int]
    """Where the weights and buffers are that it reads."""


@dataclass
class ShapeGraphs:
    """The graphs of a run, by objective and shape; ``most`` are kept, later shapes are computed without.

    They aren't part of a run's state: a resumed run captures its own.
    """

    device: torch.device
    most: int
    exactly: bool
    """Whether kernels are deterministic."""
    captured: dict[Any, CapturedShape] = field(default_factory=dict)
    refused: set[Any] = field(default_factory=set)
    questions: dict[Any, set[Question]] = field(default_factory=dict)
    """What the losses have asked batches of a shape besides their tensors. The answers are part of a graph's key."""
    failures: int = 0
    pool: Any = None
    stream: Any = None
    _has_told_limit: bool = False

    def compute(self, work: Work) -> Gradient | None:
        """Return the terms and the gradient of a microbatch; None if they are to be computed without a graph.

        There is an entry for each parameter, and the tensors belong to the caller. Raises what memory that runs out in
        the first try does.
        """
        shapes = tuple((name, tuple(one.shape), one.dtype) for name, one in work.batch.tensors.items())
        plain = _plain_extra(work.batch)
        shape = (work.key, shapes, tuple(plain.items()), tuple(one.requires_grad for one in work.parameters))
        key = self._add_answers(shape, work.batch)
        if key in self.refused:
            return None
        found = self.captured.get(key)
        if found is not None and found.pointers != _pointers(work.modules):
            # weights have moved: a graph would read their old places
            del self.captured[key]
            found = None
        if found is None:
            return self._begin(shape, work) if self._may_capture() else None
        _replay(found, work)
        return _own(found.results)

    def _add_answers(self, shape: Any, batch: Batch) -> Any:
        """Return a graph's key: the shape, with the batch's answers to what the losses ask."""
        asked = sorted(self.questions.get(shape, ()))
        return shape, tuple((name, given, getattr(batch, name)(given)) for name, given in asked)

    def _may_capture(self) -> bool:
        if self.failures >= MOST_FAILURES and not self.captured:
            return False
        if len(self.captured) < self.most:
            return True
        if not self._has_told_limit:
            self._has_told_limit = True
            log.warning(
                "%s: %d shapes have a graph, as many as cuda_graph_shapes allows; others are computed without one "
                "(training.batching.round_lengths makes fewer shapes)",
                *(OPTION, self.most),
            )
        return False

    def _begin(self, shape_key: Any, work: Work) -> Gradient | None:
        """Capture a graph of a new shape and return its first result, or refuse the shape."""
        buffers = [(buffer, buffer.clone()) for module in work.modules for buffer in module.buffers()]
        shape, asked = describe(work.batch), self.questions.setdefault(shape_key, set())
        reason = "a replay doesn't give the gradient of the same microbatch without a graph"
        try:
            tried, captured = self._capture(work, buffers, asked)
            _replay(captured, work)
            if self._agree(tried, captured.results):
                self.captured[self._add_answers(shape_key, work.batch)] = captured
                log.info("%s: captured %s (%d of %d)", OPTION, shape, len(self.captured), self.most)
                return _own(captured.results)
        except NotCapturableError as error:
            reason = str(error)
        except _CaptureError as error:
            reason = f"{type(error.__cause__).__name__}: {str(error.__cause__).partition(chr(10))[0]}"
            self._start_over()
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # it comes again without a graph, where its traceback is that of the losses
            reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        _put_back(buffers)
        self.refused.add(self._add_answers(shape_key, work.batch))
        self.failures += 1
        log.warning("%s: %s is computed without a graph: %s", OPTION, shape, reason)
        if self.failures == MOST_FAILURES and not self.captured:
            log.warning("%s: none of %d shapes could be captured; no more are tried", OPTION, self.failures)
        return None

    def _capture(
        self, work: Work, buffers: list[tuple[Tensor, Tensor]], asked: set[Question]
    ) -> tuple[Gradient, CapturedShape]:
        """Return the result of a try without a graph, and the graph, which hasn't been replayed.

        What the losses ask the batch is added to ``asked``.
        """
        if self.stream is None:
            self.stream, self.pool = torch.cuda.Stream(self.device), torch.cuda.graph_pool_handle()
        inputs = {name: torch.empty_like(one, device=self.device) for name, one in work.batch.tensors.items()}
        _fill(inputs, work.batch)
        still = TensorsOnly(inputs, _plain_extra(work.batch), work.batch, asked)
        # on the stream of the capture: libraries make their workspaces for each stream when they are first called there
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            work.seed()
            with watched_for_captures():
                terms = work.terms(still)
            if not terms:
                raise NotCapturableError("there are no losses yet")
            factors = torch.tensor(work.factors(terms), dtype=torch.float32).to(self.device)
            with watched_for_captures():
                tried = _differentiate(terms, factors, work.parameters)
            _put_back(buffers)
        torch.cuda.current_stream(self.device).wait_stream(self.stream)
        del terms
        graph = torch.cuda.CUDAGraph()
        try:
            with _capturing(graph, self.pool, self.stream):
                results = _differentiate(work.terms(still), factors, work.parameters)
        except Exception as error:
            raise _CaptureError from error
        return tried, CapturedShape(graph, inputs, factors, results, _pointers(work.modules))

    def _agree(self, tried: Gradient, replayed: Gradient) -> bool:
        """Return whether a replay has the numbers of the try; both have gone through the same kernels."""
        totals = [(one.total, replayed.terms[name].total) for name, one in tried.terms.items()]
        both = list(zip(tried.gradients, replayed.gradients, strict=True))
        if any((one is None) != (other is None) for one, other in both):
            return False
        gradients = [(one, other) for one, other in both if one is not None and other is not None]
        return all(self._are_alike(pairs) for pairs in (totals, gradients) if pairs)

    def _are_alike(self, pairs: list[tuple[Tensor, Tensor]]) -> bool:
        if self.exactly:
            same = [((one == other) | (one.isnan() & other.isnan())).all() for one, other in pairs]
            return bool(torch.stack(same).all())
        size = torch.stack([one.float().norm() for one, _ in pairs]).norm()
        error = torch.stack([(one - other).float().norm() for one, other in pairs]).norm()
        # what isn't finite is looked into by the step
        return bool((error <= TOLERANCE * size) | ~size.isfinite())

    def _start_over(self) -> None:
        """Give the device's generator a fresh state: a capture that failed leaves it as if still captured.

        Graphs that were captured read the former state, so they are captured again.
        """
        self.captured.clear()
        self.stream = self.pool = None
        renew_generator(self.device)


class _CaptureError(Exception):
    """CUDA's capture failed, by the error that is its cause."""


Question = tuple[str, Any]
"""A method of a batch whose results are few, and its argument."""


class TensorsOnly(Batch):
    """A batch of which losses may read the tensors, and what is part of a graph's key.

    That are the plain values of ``extra``, and answers to questions, which come from ``batch`` and are added to
    ``asked``. Everything else is another in each step.
    """

    def __init__(self, tensors: dict[str, Tensor], extra: dict[str, Any], batch: Batch, asked: set[Question]) -> None:
        self.tensors, self._plain, self._batch, self._asked = tensors, extra, batch, asked
        self._answers: dict[Question, Any] = {}

    def count_at_most(self, unit: str) -> int:
        """Return the batch's answer, which becomes part of the key."""
        return int(self._ask(("count_at_most", unit)))

    def has_reached(self, step: int) -> bool:
        """Return whether the batch has, which becomes part of the key."""
        return bool(self._ask(("has_reached", step)))

    def _ask(self, question: Question) -> Any:
        if question not in self._answers:
            name, given = question
            self._answers[question] = getattr(self._batch, name)(given)
            self._asked.add(question)
        return self._answers[question]

    def __getattribute__(self, name: str) -> Any:
        if name == "extra":
            return _PlainOnly(self._plain)
        if name in ("counts", "indices", "step", "step_sums"):
            raise NotCapturableError(f"its losses read batch.{name}, which isn't a tensor on the device")
        return super().__getattribute__(name)

    def to(self, device: torch.device) -> Batch:
        """Return the batch, which is on the device already."""
        return self


class _PlainOnly(dict[str, Any]):
    def __missing__(self, name: str) -> NoReturn:
        raise NotCapturableError(f"its losses read batch.extra[{name!r}], which isn't a tensor on the device")


def _plain_extra(batch: Batch) -> dict[str, Any]:
    """Return a batch's plain values (numbers, texts and tuples of them) besides its tensors, sorted by name."""
    return {name: value for name, value in sorted(batch.extra.items()) if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return all(_is_plain(one) for one in value)
    return value is None or isinstance(value, bool | int | str)


@contextlib.contextmanager
def watched_for_captures() -> Iterator[None]:
    """Within this context, raise NotCapturableError for what a graph wouldn't repeat."""
    before = _states_of_cpu()
    with _Watch():  # type: ignore[no-untyped-call]
        yield
    if _states_of_cpu() != before:
        raise NotCapturableError(f"its losses {DRAWS}")


def _states_of_cpu() -> tuple[Any, ...]:
    """Return the states of Python's and NumPy's generators; draws of torch's on the CPU are operators."""
    numpy: Any = np.random.get_state(legacy=False)
    return random.getstate(), numpy["state"]["key"].tobytes(), numpy["state"]["pos"], numpy["has_gauss"]


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        reason = why_not_capturable(operator, args, kwargs)
        if reason is not None:
            raise NotCapturableError(f"its losses {reason} ({operator._schema.name.removeprefix('aten::')})")
        return operator(*args, **kwargs)


DRAWS = "draw random numbers on the CPU"
INDEXING = {"aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


def why_not_capturable(operator: Any, args: Any, kwargs: dict[str, Any]) -> str | None:
    """Return why an operator can't be captured, as a predicate of "the losses"; None if it can.

    A number on the CPU would be the same in every replay, so an operator may not take one from a tensor there.
    """
    tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
    on_device = [one for one in tensors if one.device.type != "cpu"]
    target = kwargs.get("device")
    arrives = target is not None and torch.device(target).type != "cpu"
    if kwargs.get("generator") is not None:
        return "draw from their own generator"
    if not on_device:
        if not arrives and torch.Tag.nondeterministic_seeded in operator.tags:
            return DRAWS
        return "copy from the CPU" if tensors and arrives else None
    name = operator._schema.name
    if name == "aten::lift_fresh":
        return "make a tensor of the program's numbers"
    if name == "aten::fill_" or _fills_a_mask(name, args):
        # by a number, which ``x[...] = 0.0`` gives as a tensor
        return None
    if len(on_device) < len(tensors) or (target is not None and not arrives):
        return "copy between the device and the CPU"
    return _why_it_waits(operator, args, kwargs)


def _fills_a_mask(name: str, args: Any) -> bool:
    """Return whether it is ``x[mask] = 0.0``, which CUDA fills without counting the mask's places."""
    if name not in INDEXING or name == "aten::index":
        return False
    indices = [one for one in args[1] if one is not None]
    is_number = args[2].device.type == "cpu" and args[2].numel() == 1
    return is_number and len(indices) == 1 and indices[0].dtype == torch.bool and indices[0].is_cuda


def _why_it_waits(operator: Any, args: Any, kwargs: dict[str, Any]) -> str | None:
    if operator._schema.name in INDEXING:
        indices = [one for one in tree_leaves(args[1]) if isinstance(one, Tensor)]
        is_counted = any(one.dtype in (torch.bool, torch.uint8) for one in indices)
        return "index by a mask, whose places are counted" if is_counted else None
    if torch.Tag.data_dependent_output in operator.tags:
        return "read a number from the device"
    if torch.Tag.dynamic_output_shape in operator.tags and kwargs.get("output_size") is None:
        return "have a shape that depends on numbers"
    return None


def _differentiate(terms: Terms, factors: Tensor, parameters: Sequence[nn.Parameter]) -> Gradient:
    trained = [one for one in parameters if one.requires_grad]
    # sums in 16 bits are added up in 32, as without a graph
    totals = [one.total.float() if one.total.dtype.itemsize < 4 else one.total for one in terms.values()]
    learned = [(one, by.to(one.dtype)) for one, by in zip(totals, factors.unbind(), strict=True) if one.requires_grad]
    found: Iterator[Tensor | None] = iter(())
    if learned and trained:
        roots, by = zip(*learned, strict=True)
        found = iter(torch.autograd.grad(roots, trained, by, allow_unused=True))
    plain = {
        name: Term(total.detach(), one.per, one.splittable)
        for (name, one), total in zip(terms.items(), totals, strict=True)
    }
    return Gradient(plain, [next(found, None) if one.requires_grad else None for one in parameters])


@contextlib.contextmanager
def _capturing(graph: Any, pool: Any, stream: Any) -> Iterator[None]:
    """As ``torch.cuda.graph``, which leaves its stream the current one where the end of a capture fails.

    Only this thread is kept from what a capture can't have: others pin memory and write checkpoints.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    with torch.cuda.stream(stream):
        graph.capture_begin(pool, capture_error_mode="thread_local")
        try:
            yield
        except BaseException:
            # what it says, that the capture was invalidated, hides the reason
            with contextlib.suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()


def _replay(shape: CapturedShape, work: Work) -> None:
    _fill(shape.inputs, work.batch)
    factors = torch.tensor(work.factors(shape.results.terms), dtype=torch.float32)
    shape.factors.copy_(factors.pin_memory(), non_blocking=True)
    work.seed()
    shape.graph.replay()


def _fill(inputs: dict[str, Tensor], batch: Batch) -> None:
    for name, tensor in batch.tensors.items():
        if tensor.device.type == "cpu" and not tensor.is_pinned():
            tensor = tensor.pin_memory()
        inputs[name].copy_(tensor, non_blocking=True)


def _own(results: Gradient) -> Gradient:
    """Copies: the next replay of any graph may write to where the results are."""
    totals = [one.total for one in results.terms.values()]
    if len({one.dtype for one in totals}) == 1:
        totals = list(torch.stack(totals).unbind())
    else:
        totals = [one.clone() for one in totals]
    found = [one for one in results.gradients if one is not None]
    copies = [torch.empty_like(one) for one in found]
    if found:
        torch._foreach_copy_(copies, found)
    left = iter(copies)
    named = zip(results.terms.items(), totals, strict=True)
    return Gradient(
        {name: Term(total, one.per, one.splittable) for (name, one), total in named},
        [None if one is None else next(left) for one in results.gradients],
    )


@torch.no_grad()
def _put_back(buffers: list[tuple[Tensor, Tensor]]) -> None:
    for buffer, before in buffers:
        buffer.copy_(before)


def _pointers(modules: tuple[nn.Module, ...]) -> list[int]:
    return [one.data_ptr() for module in modules for one in (*module.parameters(), *module.buffers())]


def describe(batch: Batch) -> str:
    """Return a batch's shapes in words.

    >>> describe(Batch({"mel": torch.zeros(8, 400, 80), "lengths": torch.zeros(8)}, {}))
    'a batch of mel 8×400×80, lengths 8'
    """
    shapes = (f"{name} {'×'.join(map(str, one.shape))}" for name, one in batch.tensors.items())
    return f"a batch of {', '.join(shapes)}"
