"""The gradients of a step on one rank: of one objective, or of several (a discriminator's, then a generator's).

    loss     = sum over microbatches of  sum over terms of  weight x total / counts[unit]
    gradient = d loss / d weights

A batch that does not fit in memory is computed in chunks of its rows. As each term is a sum over rows, and counts are
those of the whole step, the chunks' gradients add up to the same one. A term that depends on more of the whole step
than batches count, as on how often a gate chooses each expert, has that from a first pass without gradients.

Each objective has its own parameters, optimizers and gradient. While one is computed, the others' parameters need no
gradient: their part of the graph is passed through, and nothing is added up in them.

It has more than 500 lines because a step is in two files, this one and step.py, and no third.
"""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer

from vaak.core.batch import Batch, FirstPass, Term, get_divisor, require_terms, send
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.task import Objective, Task
from vaak.core.torch_internals import backward, is_fake
from vaak.data.loader import Microbatch
from vaak.engine.distributed.exchange import OwnGradients
from vaak.engine.distributed.sharding import ShardedModel
from vaak.engine.graphs import ShapeGraphs, Work
from vaak.engine.memory import free_memory, is_out_of_memory
from vaak.engine.phases import Phases
from vaak.engine.precision import Precision, seed_everything
from vaak.engine.state import ChunkRule, ChunkRules
from vaak.engine.training_data import StepData

Sums = dict[str, torch.Tensor]
Result = TypeVar("Result")


class DoesNotFitError(UserError):
    """A step is out of memory, and smaller chunks can't help."""


class LossSums:
    """The terms of an objective: the contribution of each to the gradient, and its sum so far."""

    def __init__(self, weights: dict[str, float], counts: dict[str, float]) -> None:
        self.weights = weights
        self.counts = counts
        self.sums: dict[str, torch.Tensor] = {}
        self.units: dict[str, str] = {}
        self.unsplittable: str | None = None
        self._factors: dict[str, torch.Tensor] = {}

    def add(self, terms: dict[str, Term], scale: float = 1.0) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """Take in the terms of a chunk; return their sums, and the derivative of the step's loss by each of them.

        It is weight x ``scale`` / count. Sums in 16 bits are added up in 32. Raises UserError for an uncounted unit.
        """
        roots = {}
        for name, term in terms.items():
            # a sum in bfloat16 stops growing at 256 times its summands
            total = term.total.float() if term.total.dtype.itemsize < 4 else term.total
            if name in self.sums:
                self.sums[name] = self.sums[name] + total.detach()
            else:
                if term.per not in self.counts:
                    counted = ", ".join(self.counts) or "nothing"
                    raise UserError(
                        f"the loss {name} is a sum per {term.per}, but the batches count {counted}: give its Term "
                        f"a unit that collate counts, or add {term.per!r} to the batch's counts"
                    )
                self.sums[name], self.units[name] = total.detach(), term.per
                self.unsplittable = self.unsplittable if term.splittable else name
            if total.requires_grad:
                # Others are only logged.
                roots[name] = total
        new = {name: self.factor(name, terms[name], scale) for name in roots if name not in self._factors}
        self._factors |= make_factors(new, roots)
        return [*roots.values()], [self._factors[name] for name in roots]

    def factor(self, name: str, term: Term, scale: float) -> float:
        """Return the derivative of the step's loss by a term."""
        # d(weight * sum / count) = (weight / count) * d sum: so every chunk is divided alike
        return self.weights.get(name, 1.0) * scale / get_divisor(self.counts, term.per)

    def taken(self) -> Sums:
        """Return the sums so far, and begin new ones."""
        sums, self.sums = self.sums, {}
        return sums


def make_factors(factors: dict[str, float], roots: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return each factor as a number of the type of its root, on its device: to a GPU they are sent together."""
    dtypes = {roots[name].dtype for name in factors}
    if len(dtypes) == 1 and all(roots[name].is_cuda and not is_fake(roots[name]) for name in factors):
        sent = send(torch.tensor([*factors.values()], dtype=dtypes.pop()), roots[next(iter(factors))].device)
        return dict(zip(factors, sent.unbind(), strict=True))
    return {name: torch.full_like(roots[name], factor, requires_grad=False) for name, factor in factors.items()}


@dataclass(frozen=True)
class MicrobatchChunk:
    """Some rows of microbatch ``number``: its chunk ``index`` of ``num_chunks``.

    A filler is computed only because other ranks have more chunks, and adds nothing to the step.
    """

    batch: Batch
    number: int
    index: int
    num_chunks: int
    is_filler: bool = False


@dataclass(frozen=True)
class Forward:
    """How the terms of a chunk are computed: by which losses, of which model, in which precision and with which draws.

    ``model`` is the one to call: compiled, if training compiles, or divided over ranks. ``number`` is that of the
    objective, ``first_pass`` what it has to know of the whole step.
    """

    losses: Callable[[nn.Module, Batch], dict[str, Term]]
    model: nn.Module
    precision: Precision
    seed: int
    number: int = 0
    first_pass: Callable[[nn.Module, Batch], FirstPass] | None = None

    def terms(self, step: int, chunk: MicrobatchChunk) -> dict[str, Term]:
        """Return the terms of a chunk; its draws depend on the step, its microbatch's number and its own alone."""
        return self._call(self.losses, step, chunk)

    def first(self, step: int, chunk: MicrobatchChunk) -> FirstPass:
        """Run the first pass over a chunk, with the draws of ``terms``."""
        assert self.first_pass is not None
        with torch.no_grad():
            return self._call(self.first_pass, step, chunk)

    def draw(self, step: int, chunk: MicrobatchChunk) -> None:
        """Seed all generators by a chunk's place in training."""
        # All that dropout depends on; the first objective's 0 isn't part of it, as before there were several.
        objective = (self.number,) if self.number else ()
        seed_everything(
            draw_key(Purpose.MODEL, self.seed, step, chunk.number, chunk.index, *objective), self.precision.device
        )

    def _call(self, function: Callable[[nn.Module, Batch], Result], step: int, chunk: MicrobatchChunk) -> Result:
        self.draw(step, chunk)
        return self.apply(function, chunk.batch)

    def apply(self, function: Callable[[nn.Module, Batch], Result], batch: Batch) -> Result:
        """Call a function with the model and a batch, with the draws that come next."""
        batch = batch.to(self.precision.device)
        with self.precision.autocast():
            if isinstance(self.model, ShardedModel):
                return self.model(function, batch)[0]  # type: ignore[no-any-return]
            return function(self.model, batch)


@dataclass(frozen=True)
class Replayed:
    """The graphs of a run, and the modules whose weights and buffers they read."""

    graphs: ShapeGraphs
    modules: tuple[nn.Module, ...]


@dataclass(frozen=True)
class GradientPass:
    """Computes the gradient of an objective on this rank, in chunks where memory is short.

    ``recovery`` says whether a step that is out of memory is tried again in smaller chunks. ``padded_size`` and
    ``describe`` know the data: how large a microbatch is, and where an example comes from. Where the ranks share a
    model, ``rounds`` agrees on how many chunks each of them computes, and ``dummy_batch`` is a batch for one that has
    none. ``replayed`` are the graphs in which whole microbatches may be computed.
    """

    forward: Forward
    weights: dict[str, float]
    recovery: bool
    phases: Phases
    padded_size: Callable[[Microbatch], float]
    describe: Callable[[int], str]
    rounds: Callable[[int], int] | None = None
    dummy_batch: Callable[[], Batch] | None = None
    replayed: Replayed | None = None

    def split(self, chunk_rules: ChunkRules, data: StepData) -> list[MicrobatchChunk]:
        """Return this rank's work in a step, chunk by chunk; a rehearsal includes parts that only join later."""
        found = []
        step = None if data.is_rehearsal else data.step
        for microbatch in data.microbatches:
            if microbatch.batch is not None:
                number, read = microbatch.address.number, microbatch.batch
                # what losses put into a batch isn't there when a chunk is computed again
                batch = Batch(dict(read.tensors), read.counts, read.indices, read.extra, step, read.step_sums)
                padded_size = 0.0 if chunk_rules.is_empty else self.padded_size(microbatch)
                batches = batch.split(chunk_rules.count(data.step, number, padded_size, self.forward.number))
                found += [MicrobatchChunk(batch, number, index, len(batches)) for index, batch in enumerate(batches)]
        return found

    def accumulate(
        self,
        chunk_rules: ChunkRules,
        data: StepData,
        gradients: OwnGradients,
        scale: float = 1.0,
        over_ranks: Callable[[dict[int, Sums]], Sums] | None = None,
    ) -> LossSums:
        """Leave this rank's part of the gradient of a step's ``data`` in ``gradients``; return the terms of its loss.

        Microbatches are divided by ``chunk_rules``. Out of memory, all is computed again in chunks half as large.
        ``scale`` is that of an fp16 loss; ``over_ranks`` adds up what a first pass has found in each microbatch. Raises
        UserError if one row alone doesn't fit, or a loss isn't a sum; then no rule is left of what was tried.
        """
        try:
            data = self.after_first_pass(chunk_rules, data, gradients.restart, over_ranks)

            def attempt(chunks: list[MicrobatchChunk]) -> LossSums | _Failure:
                losses = LossSums(self.weights, data.counts)

                def compute(chunk: MicrobatchChunk) -> _Failure | None:
                    if chunk is chunks[-1] and not self.recovery:
                        # With recovery, this rank may have to compute everything again.
                        gradients.start_when_full()
                    if self._replay(chunk, data, losses, scale, gradients):
                        failure = None
                    else:
                        failure = self._backward(chunk, data.step, losses, scale)
                    # exact sums are of whole microbatches, whichever rank has them, so not of chunks
                    if failure is None and chunk.index == chunk.num_chunks - 1 and gradients.may_repeat:
                        gradients.take_in(chunk.number, losses.taken())
                    return failure

                return self._run(chunks, compute) or losses

            losses = self._until_it_fits(chunk_rules, data, gradients.restart, attempt)
            chunk_rules.confirm()
            return losses
        finally:
            chunk_rules.withdraw()

    def after_first_pass(
        self,
        chunk_rules: ChunkRules,
        data: StepData,
        clear: Callable[[], None] = lambda: None,
        over_ranks: Callable[[dict[int, Sums]], Sums] | None = None,
    ) -> StepData:
        """Return the step's data with the sums of a first pass over it, those of this rank without ``over_ranks``."""
        if self.forward.first_pass is None:
            return data

        def attempt(chunks: list[MicrobatchChunk]) -> tuple[dict[int, Sums], dict[int, list[Sums]]] | _Failure:
            sums, kept = dict[int, Sums](), defaultdict[int, list[Sums]](list)

            def look(chunk: MicrobatchChunk) -> None:
                with self.phases.measure("forward"):
                    found = self.forward.first(data.step, chunk)
                sums[chunk.number] = add_up([sums.get(chunk.number, {}), found.sums])
                kept[chunk.number].append(found.kept)

            # a failure is a value: its chunks are run again, smaller, with empty sums
            return self._run(chunks, look) or (sums, kept)

        sums, kept = self._until_it_fits(chunk_rules, data, clear, attempt)
        totals = (over_ranks or (lambda found: add_up(found.values())))(sums)
        microbatches = []
        for microbatch in data.microbatches:
            if microbatch.batch is not None:
                parts = kept[microbatch.address.number]
                # chunks follow the rows' order, so their results line up with the batch
                joined = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
                tensors = {**microbatch.batch.tensors, **joined}
                batch = replace(microbatch.batch, tensors=tensors, step_sums=totals)
                microbatch = replace(microbatch, batch=batch)
            microbatches.append(microbatch)
        return replace(data, microbatches=microbatches)

    def _until_it_fits(
        self,
        chunk_rules: ChunkRules,
        data: StepData,
        clear: Callable[[], None],
        attempt: Callable[[list[MicrobatchChunk]], Result | _Failure],
    ) -> Result:
        """Return the result of an attempt on the chunks of the step, in smaller ones each time that it fails."""
        shortages = 0
        while True:
            found = attempt(self._add_fillers(self.split(chunk_rules, data)))
            if not isinstance(found, _Failure):
                return found
            # A failure comes back as a value: an exception's traceback holds every tensor of the failed attempt. Only
            # here, outside of the except block, is nothing of its graph alive, so that its memory can be given back.
            clear()
            free_memory(self.forward.precision.device)
            if isinstance(found, _NotASum):
                if chunk_rules.proposed:
                    # This step has just been out of memory.
                    raise DoesNotFitError(
                        f"out of memory, and the loss {found.loss} is not a sum over examples, so batches can't be "
                        "split: lower training.batch_size (and raise training.gradient_accumulation_steps)"
                    )
                chunk_rules.keep_whole(self.forward.number, found.loss)
            elif isinstance(found, _Shortage):
                shortages += 1
                self._answer(chunk_rules, data, found, last_try=shortages > 1)

    def _add_fillers(self, chunks: list[MicrobatchChunk]) -> list[MicrobatchChunk]:
        """Return the chunks, and as many fillers as this rank has less than the one with most."""
        missing = 0 if self.rounds is None else self.rounds(len(chunks)) - len(chunks)
        if missing and not chunks:
            assert self.dummy_batch is not None
            return [MicrobatchChunk(self.dummy_batch(), 0, 0, 1, is_filler=True)] * missing
        return [*chunks, *[replace(chunks[0], is_filler=True)] * missing] if missing else chunks

    def _run(self, chunks: list[MicrobatchChunk], do: Callable[[MicrobatchChunk], _Failure | None]) -> _Failure | None:
        """Do something with every chunk; return why it was given up, if it was."""
        chunk = None
        try:
            for chunk in chunks:
                failure = do(chunk)
                if failure is not None:
                    return failure
        except Exception as error:
            if chunk is None or not is_out_of_memory(error):
                raise
            return _Shortage.of(chunk, error)
        return None

    def _backward(self, chunk: MicrobatchChunk, step: int, losses: LossSums, scale: float) -> _Failure | None:
        """Run a chunk forward and backward, unless it is one of several of a batch that can't be divided."""
        with self.phases.measure("forward"):
            terms = self.forward.terms(step, chunk)
            if chunk.is_filler:
                # It only meets the others: the derivative of the step's loss by it is 0.
                roots = [term.total for term in terms.values() if term.total.requires_grad]
                factors = [torch.zeros_like(root) for root in roots]
            else:
                roots, factors = losses.add(terms, scale)
        if chunk.num_chunks > 1 and losses.unsplittable:
            # Known only now, from the term itself.
            return _NotASum(losses.unsplittable)
        with self.phases.measure("backward"):
            backward(roots, factors)
        return None

    def _replay(
        self, chunk: MicrobatchChunk, data: StepData, losses: LossSums, scale: float, gradients: OwnGradients
    ) -> bool:
        """Compute a whole microbatch by a graph; return whether there was one."""
        if self.replayed is None or chunk.num_chunks > 1 or chunk.is_filler or data.is_rehearsal:
            return False
        forward, replayed = self.forward, self.replayed
        autocast = forward.precision.autocast()
        work = Work(
            batch=chunk.batch,
            key=(forward.number, isinstance(autocast, torch.autocast)),
            seed=partial(forward.draw, data.step, chunk),
            terms=partial(forward.apply, forward.losses),
            factors=lambda terms: [losses.factor(name, one, scale) for name, one in terms.items()],
            modules=replayed.modules,
            parameters=gradients.parameters,
        )
        with self.phases.measure("forward"):
            found = replayed.graphs.compute(work)
            if found is not None:
                losses.add(found.terms)
                gradients.add(found.gradients)
        return found is not None

    def _answer(self, chunk_rules: ChunkRules, data: StepData, shortage: _Shortage, *, last_try: bool) -> None:
        """Split microbatches as large as the failed one into more chunks, later ones too; raise if impossible."""
        step = data.step
        if not self.recovery:
            raise DoesNotFitError(
                f"out of memory in step {step} ({shortage.error}); lower training.batch_size, or set "
                "training.memory.recovery: true, which computes the step in smaller chunks"
            )
        if shortage.rows > 1:
            failed = next(one for one in data.microbatches if one.address.number == shortage.number)
            own = tuple(microbatch.address.number for microbatch in data.microbatches)
            # a rehearsal stands for every microbatch of this size; where a model is divided, the step begins again
            numbers = None if data.is_rehearsal or self.rounds is not None else own
            rule = ChunkRule(
                step,
                2 * shortage.num_chunks,
                numbers,
                padded_size=self.padded_size(failed),
                objective=self.forward.number,
            )
            chunk_rules.whole.discard(self.forward.number)
            chunk_rules.propose(rule, f"out of memory in step {step} ({shortage.error})")
            if self.rounds is not None:
                # The others wait in the middle of the step, for what this one can't give.
                chunk_rules.confirm()
                raise DoesNotFitError(
                    f"out of memory in step {step} ({shortage.error}); the model is divided over processes, so all of "
                    "them end here. Smaller chunks are recorded for it: resume with --resume auto"
                )
        elif last_try or self.rounds is not None:
            # It doesn't fit, even with empty caches.
            examples = ", ".join(f"{index} ({self.describe(index)})" for index in shortage.indices[:5])
            raise UserError(
                f"out of memory in step {step}: example {examples} does not fit even alone ({shortage.error}); shorten "
                "or leave it out, or set training.performance.gradient_checkpointing or training.mixed_precision: bf16"
            )


def add_up(sums: Iterable[Sums]) -> Sums:
    """Return the sums of each name, added up in their order."""
    total = Sums()
    for one in sums:
        for name, value in one.items():
            total[name] = total[name] + value if name in total else value
    return total


@dataclass(frozen=True)
class _Failure:
    """The reason why an attempt on a step was given up. It holds no tensors."""


@dataclass(frozen=True)
class _NotASum(_Failure):
    """A loss of a divided batch isn't a sum over examples."""

    loss: str


@dataclass(frozen=True)
class _Shortage(_Failure):
    """Where memory ran out."""

    number: int
    num_chunks: int
    rows: int
    indices: list[int]
    error: str

    @classmethod
    def of(cls, chunk: MicrobatchChunk, error: BaseException) -> _Shortage:
        indices = [index for row in chunk.batch.indices for index in row]
        return cls(chunk.number, chunk.num_chunks, chunk.batch.num_rows, indices, str(error).partition("\n")[0])


ComputeTerms = Callable[[nn.Module, Batch], dict[str, Term]]
MAIN = ""
"""The name of the only objective of a task that doesn't name any."""


def list_objectives(task: Task, model: nn.Module) -> tuple[Objective, ...]:
    """Return the objectives of a task, in order; ``task.losses`` over all of the model where it names none.

    Raises UserError if a parameter that is trained belongs to no objective, or to two.
    """
    if not task.objectives:
        losses = _check_terms(task.losses, f"{type(task).__name__}.losses(model, batch)")
        return (Objective(MAIN, (MAIN,), losses, task.first_pass),)
    # Objectives descend one after another, each on its own parameters: one that two of them had would be updated twice
    # in a step, one that none has never.
    owners: dict[str, list[str]] = {name: [] for name, value in model.named_parameters() if value.requires_grad}
    for objective in task.objectives:
        for name in owners:
            if _belongs(name, objective):
                owners[name].append(objective.name)
    for name, owning in owners.items():
        if len(owning) != 1:
            found = " and ".join(owning) or "none"
            raise UserError(
                f"the parameter {name} must belong to exactly one objective of the task, but belongs to {found}; "
                "each objective's modules name what it trains"
            )
    return tuple(
        replace(one, losses=_check_terms(one.losses, f"the objective {one.name}'s losses(model, batch)"))
        for one in task.objectives
    )


def _check_terms(losses: ComputeTerms, where: str) -> ComputeTerms:
    """Return the losses; they raise UserError where they return something other than terms."""

    def checked(model: nn.Module, batch: Batch) -> dict[str, Term]:
        terms = losses(model, batch)
        require_terms(terms, where)
        return terms

    return checked


def list_parameters(objective: Objective, model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of a model that an objective trains, in the order of the model."""
    named = model.named_parameters()
    return [value for name, value in named if value.requires_grad and _belongs(name, objective)]


def _belongs(parameter: str, objective: Objective) -> bool:
    return any(module == MAIN or parameter.startswith(f"{module}.") for module in objective.modules)


@dataclass(frozen=True)
class ObjectiveRunner:
    """An objective as the step needs it: its gradient pass, its parameters, and the others that are trained."""

    name: str
    gradient: GradientPass
    parameters: Sequence[nn.Parameter]
    others: Sequence[nn.Parameter]

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Within this context, only this objective's parameters need a gradient, as far as freezing lets them."""
        held = [parameter for parameter in self.others if parameter.requires_grad]
        for parameter in held:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter in held:
                parameter.requires_grad_(True)


Copies = list[tuple[torch.Tensor, torch.Tensor]]


def copy_buffers(*modules: nn.Module) -> Copies:
    """Return each buffer of the modules with a copy: a forward pass may leave an infinite mean in it."""
    buffers = [buffer for module in modules for buffer in module.buffers()]
    if len({(buffer.dtype, buffer.is_cuda) for buffer in buffers}) != 1:
        return [(buffer, buffer.clone()) for buffer in buffers]
    copies = [torch.empty_like(buffer) for buffer in buffers]
    torch._foreach_copy_(copies, buffers)
    return list(zip(buffers, copies, strict=True))


@torch.no_grad()
def put_back(buffers: Copies) -> None:
    """Give buffers the values of their copies."""
    for buffer, before in buffers:
        buffer.copy_(before)


def drop_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Free the gradients of parameters."""
    for parameter in parameters:
        parameter.grad = None


@contextlib.contextmanager
def restored(*modules: nn.Module) -> Iterator[None]:
    """Within this context, run modules forward and backward; then their buffers are put back and gradients dropped."""
    buffers = copy_buffers(*modules)
    try:
        yield
    finally:
        for module in modules:
            drop_gradients(module.parameters())
        put_back(buffers)


class Undo:
    """Copies of what a step has changed so far, so that it can be rolled back as a whole."""

    def __init__(self) -> None:
        self._kept: list[tuple[Optimizer, nn.Parameter, torch.Tensor, dict[str, Any] | None]] = []
        self._groups: list[tuple[dict[str, Any], dict[str, Any]]] = []

    def keep(self, optimizers: Sequence[Optimizer]) -> None:
        """Remember the weights, moments and values of groups that these optimizers are about to change."""
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                values = {name: _copy_value(value) for name, value in group.items() if name not in ("params", "names")}
                self._groups.append((group, values))
                for parameter in group["params"]:
                    # None before its first update.
                    state = optimizer.state.get(parameter)
                    moments = None if not state else {name: _copy_value(value) for name, value in state.items()}
                    self._kept.append((optimizer, parameter, parameter.detach().clone(), moments))

    @torch.no_grad()
    def take_back(self) -> None:
        """Put back all that was kept."""
        for optimizer, parameter, weights, moments in self._kept:
            parameter.copy_(weights)
            optimizer.state.pop(parameter, None)
            if moments is not None:
                optimizer.state[parameter] = moments
        for group, values in self._groups:
            group.update(values)
        self._kept, self._groups = [], []


def _copy_value(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value
