"""A network of the user's own in place of a stack: a class by name, called as a stack is.

    tokens ──embedding──▶ x ──▶ Net(x, mask) ──▶ hidden ──head──▶ …          all but the network stays the task's

    class Net(nn.Module):
        def __init__(self, d_model, causal, ...): ...       # it may also ask for dropout and memory_width
        def forward(self, x, mask): ...                     # and for memory, memory_mask and documents
        def decode_step(self, x, state): ...                # if it has it: to write token by token without rereading

``x`` and what comes back are ``(batch, time, d_model)``, ``mask`` ``(batch, time)`` is True where a place is real, with
padding on the right. Properties that a task relies on are tested when the network is made, on a few random numbers. A
causal network that sees a later token, for example, has a loss near 0 and is useless, and no metric of training reveals
it.
"""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated as Bool
from typing import Annotated as Float
from typing import Annotated as Int
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import vaak
from vaak.config.components import check_options, resolve_component, without_folder
from vaak.config.training import Recomputation
from vaak.core.errors import OptionError, UserError
from vaak.nn.config import StackConfig
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.kernels.random_features import SquaredNorms
from vaak.nn.recomputation import RECOMPUTES
from vaak.nn.stack import TransformerStack


class OwnNetwork(nn.Module):
    """The user's module in ``network``; its arguments, and those of ``forward``, are those of ``TransformerStack``.

    ``section`` is the section with the options, for messages. Raises OptionError, in one line, for a class that can't
    be made, or that doesn't do what a stack does.
    """

    def __init__(
        self, config: StackConfig, *, causal: bool, memory_width: int | None = None, section: str = "model"
    ) -> None:
        super().__init__()
        self.config, self.causal, self.key, self.name = config, causal, f"{section}.type", without_folder(config.type)
        self.gradient_checkpointing: Recomputation = False
        self.network = self._made(memory_width)
        takes = inspect.signature(self.network.forward).parameters
        self.takes_documents = "documents" in takes
        self.has_steps = causal and hasattr(self.network, "decode_step")
        if memory_width is not None and not {"memory", "memory_mask"} <= {*takes}:
            raise self._wrong("this decoder looks at an encoder: its forward must take memory and memory_mask")
        # Under vaak.engine.dry_pass, and on the device meta, tensors have shapes alone.
        made = torch.empty(0)
        if type(made) is Tensor and not made.is_meta:
            with without_dropout(self.network), torch.no_grad(), torch.random.fork_rng(devices=[]):
                self._try(_Trial(self.network, config.d_model, memory_width))

    def _made(self, memory_width: int | None) -> nn.Module:
        config = self.config
        found = resolve_component(config.key, config.type, Path())
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise self._wrong("is not a torch.nn.Module class")
        check_options(self.key, self.name, found, config.options, config.given)
        own = {"d_model": config.d_model, "causal": self.causal, "dropout": config.dropout}
        own |= {} if memory_width is None else {"memory_width": memory_width}
        asked = inspect.signature(found).parameters
        with self._telling("can't be made"):
            return found(**{name: value for name, value in own.items() if name in asked}, **config.options)

    def forward(
        self,
        x: Float[Tensor, "batch time d_model"],
        *,
        documents: Int[Tensor, "batch time"] | None = None,
        mask: Bool[Tensor, "batch time"] | None = None,
        cache: InputCache | StateCache | None = None,
        memory: Float[Tensor, "batch memory_time memory_width"] | None = None,
        memory_mask: Bool[Tensor, "batch memory_time"] | None = None,
        positions: None = None,
        norms: tuple[SquaredNorms, SquaredNorms] | None = None,
        num_documents: int | None = None,
    ) -> Float[Tensor, "batch time d_model"]:
        """Return the network's output for ``x``. ``norms`` and ``num_documents`` are not its concern.

        With a cache of states it continues from these; with one of inputs it reads all tokens so far again, each
        row's moved so that its padding is on the right.
        """
        if isinstance(cache, StateCache):
            return self._continued(x, documents, cache, memory, memory_mask)
        if cache is None:
            if documents is not None:
                self.require_packing("documents are packed into rows")
            return self._call(x, mask, documents, memory, memory_mask)
        time, (x, documents) = x.shape[1], cache.append(x, documents)
        if documents is None:
            return self._call(x, None, None, memory, memory_mask)[:, -time:]
        lengths, total = (documents >= 0).sum(1, keepdim=True), x.shape[1]
        places = torch.arange(total, device=x.device)
        moved = x.gather(1, ((places - lengths) % total)[..., None].expand_as(x))
        found = self._call(moved, places < lengths, None, memory, memory_mask)
        new = (places[-time:] + lengths - total).clamp(min=0)
        return found.gather(1, new[..., None].expand(-1, -1, found.shape[2]))

    def _call(
        self,
        x: Tensor,
        mask: Tensor | None,
        documents: Tensor | None,
        memory: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        if mask is None:
            mask = _all_true(x) if documents is None else documents >= 0
        further: dict[str, Any] = {}
        if memory is not None:
            further = {"memory": memory, "memory_mask": _all_true(memory) if memory_mask is None else memory_mask}
        if self.takes_documents:
            further["documents"] = torch.where(mask, 0, -1) if documents is None else documents
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            found: Tensor = checkpoint(self.network, x, mask, use_reentrant=False, **further)
        else:
            found = self.network(x, mask, **further)
        return found

    def _continued(
        self,
        x: Tensor,
        documents: Tensor | None,
        cache: StateCache,
        memory: Tensor | None,
        memory_mask: Tensor | None,
    ) -> Tensor:
        """What ``decode_step`` makes of new places: rows that have read as many go together, without padding."""
        time = x.shape[1]
        if not cache.groups:
            lengths = x.new_full(x.shape[:1], time) if documents is None else (documents >= 0).sum(1)
            groups = [torch.nonzero(lengths == length)[:, 0] for length in lengths.unique()]
            cache.groups = [RowsInStep(rows, None) for rows in groups]
        found: Tensor | None = None
        for group in cache.groups:
            rows = slice(None) if len(cache.groups) == 1 else group.rows
            # only a first call has rows of different lengths
            unread = time if documents is None or time == 1 else int((documents[group.rows[0]] >= 0).sum())
            further: dict[str, Any] = {}
            if memory is not None:
                seen = _all_true(memory) if memory_mask is None else memory_mask
                further = {"memory": memory[rows], "memory_mask": seen[rows]}
            step: Any = self.network.decode_step
            made, group.state = step(x[rows, time - unread :], group.state, **further)
            found = made.new_zeros(x.shape) if found is None else found
            found[rows, time - unread :] = made
        assert found is not None
        return found

    def new_cache(self) -> InputCache | StateCache:
        """Return an empty cache, for decoding token by token."""
        return StateCache() if self.has_steps else InputCache()

    def recompute(self, parts: Recomputation) -> None:
        """Keep only the network's input in training, and compute the rest again in the backward pass, or not.

        Raises OptionError for ``"attention"``, which nothing tells from the rest of it.
        """
        if parts == "attention":
            raise OptionError(RECOMPUTES, f"which part of {self.name} is attention isn't known; set it to block")
        self.gradient_checkpointing = parts

    def require_packing(self, what: str) -> None:
        """Raises OptionError where the network doesn't tell the documents of one row apart, as ``what`` asks."""
        if not self.takes_documents:
            raise self._wrong(
                f"{what}, which its forward must take as documents (batch, time), the number of each token's document; "
                "add that, or use training.batching: {type: bucketed}"
            )

    # What a task relies on.

    def _try(self, trial: _Trial) -> None:
        """Raise OptionError for what doesn't do what a stack does, on the few numbers of a ``trial``."""
        x, mask = trial.x, trial.mask
        with self._telling(f"doesn't take x {_shape(x)} and mask {_shape(mask)}"):
            found: Any = self._called(trial)
        if not isinstance(found, Tensor) or found.shape != x.shape:
            given = _shape(found) if isinstance(found, Tensor) else f"a {type(found).__name__}"
            raise self._wrong(f"gives {given} for x {_shape(x)}; expected the same shape (batch, time, d_model)")
        if found.dtype != x.dtype:
            raise self._wrong(f"gives {found.dtype} for x of {x.dtype}; expected the same type")
        if not found.isfinite().all():
            raise self._wrong("gives numbers that aren't finite for random ones; look at how its weights begin")
        if not torch.equal(found, self._called(trial)):
            raise self._wrong(
                "gives other numbers each time in evaluation; draw only in training (self.training, nn.Dropout)"
            )
        with _open_gates(self.network, trial.generator), self._telling("fails on the rows of a batch one by one"):
            self._try_dependencies(trial)

    def _try_dependencies(self, trial: _Trial) -> None:
        """Raise OptionError where the output at a real place depends on inputs that it mustn't see."""
        mask, found = trial.mask, self._called(trial)
        if self.causal:
            self._try_later_places(trial, found)
        if self.has_steps:
            self._try_steps(trial)
        if _differ(found[mask], self._called(trial, x=trial.changed(trial.x, ~mask))[mask]):
            raise self._wrong(
                "what it makes of real places changes with the padding, where mask is False; leave it out"
            )
        if trial.memory is not None and trial.memory_mask is not None:
            other = trial.changed(trial.memory, ~trial.memory_mask)
            if _differ(found[mask], self._called(trial, memory=other)[mask]):
                raise self._wrong("what it makes of real places changes with padding, where memory_mask is False")
        for row, length in enumerate(mask.sum(1).tolist()):
            if _differ(found[row : row + 1, :length], self._called(trial.alone(row, length)), CLOSE):
                raise self._wrong(
                    "what it makes of a row changes with the other rows of its batch, or with how much padding there is"
                )
        # last: it assumes what the checks above have shown for single rows
        if self.takes_documents and trial.memory is None:
            packed, (first, second) = trial.packed()
            parts = [self._called(trial.alone(row, length)) for row, length in (first, second)]
            if _differ(self._called(packed), torch.cat(parts, 1), CLOSE):
                raise self._wrong("what it makes of a document changes with the others of its row (documents)")

    def _try_later_places(self, trial: _Trial, found: Tensor) -> None:
        """Raise OptionError where ``found``, which is made of a ``trial``, depends on later places."""
        mask = trial.mask
        for place in range(1, trial.x.shape[1]):
            later = torch.zeros_like(mask)
            later[:, place:] = True
            if _differ(found[:1, :place], self._called(trial, x=trial.changed(trial.x, later))[:1, :place]):
                raise self._wrong(
                    f"what it makes of the first {place} places changes with those after them, which a decoder has to "
                    "predict; when causal is True, let no place see a later one"
                )
        if _differ(found[mask], self._called(trial, mask=torch.ones_like(mask))[mask]):
            raise self._wrong("what it makes of a place changes with the mask of later ones; a decoder has none")

    def _try_steps(self, trial: _Trial) -> None:
        """Raise OptionError where ``decode_step`` gives other numbers than a whole pass, or rows can't be chosen."""
        x, memory, memory_mask = trial.x, trial.memory, trial.memory_mask
        whole = self._called(trial, mask=torch.ones_like(trial.mask))
        cache, order = StateCache(), torch.tensor([2, 0, 1], device=x.device)
        with self._telling("decode_step fails"):
            parts = [self._continued(x[:, :4], None, cache, memory, memory_mask)]
            # as beam search does between tokens
            cache.select(order)
            if memory is not None and memory_mask is not None:
                memory, memory_mask = memory[order], memory_mask[order]
            for place in (slice(4, 5), slice(5, x.shape[1])):
                parts.append(self._continued(x[order, place], None, cache, memory, memory_mask)[order.argsort()])
        if _differ(torch.cat(parts, 1), whole, CLOSE):
            raise self._wrong(
                "decode_step gives other numbers than forward for the same places; it continues after those that state "
                "is of, and the first dimension of each tensor in state is the batch"
            )

    def _called(self, trial: _Trial, **other: Tensor) -> Tensor:
        given: dict[str, Any] = {"x": trial.x, "mask": trial.mask, "memory": trial.memory, **other}
        return self._call(**given, documents=trial.documents, memory_mask=trial.memory_mask)

    @contextlib.contextmanager
    def _telling(self, what: str) -> Iterator[None]:
        """Within this context, an error of the user's code is one line that says where it is."""
        try:
            yield
        except UserError:
            raise
        except Exception as error:
            known = [Path(str(package.__file__)).parent for package in (torch, vaak)]
            whole = traceback.extract_tb(error.__traceback__)
            frames = [one for one in whole if not any(map(Path(one.filename).is_relative_to, known))]
            place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
            said = " ".join(str(error).split())
            raise self._wrong(f"{what}: {type(error).__name__}: {said}{place}") from error

    def _wrong(self, problem: str) -> OptionError:
        return OptionError(self.key, f"{self.name} {problem}" if problem[:4] != "what" else f"{self.name}: {problem}")


CLOSE, SAME = 1e-4, 1e-5
"""The largest difference that is one of rounding, as a part of the largest number: in other shapes, and in the same."""


class _Trial:
    """A few random numbers to try a network on: rows of several lengths, one of them 1, as while decoding."""

    def __init__(self, network: nn.Module, width: int, memory_width: int | None) -> None:
        one = next((one for one in network.parameters() if one.is_floating_point()), torch.empty(0))
        self.like = torch.empty(0, dtype=one.dtype, device=one.device)
        self.generator = torch.Generator("cpu").manual_seed(0)
        self.x, self.mask = self._drawn(3, 9, width), self._lengths(9, 6, 1)
        self.documents: Tensor | None = None
        self.memory = None if memory_width is None else self._drawn(3, 7, memory_width)
        self.memory_mask = None if memory_width is None else self._lengths(5, 7, 1)

    def _drawn(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, device="cpu").to(self.like)

    def _lengths(self, *lengths: int) -> Tensor:
        places = torch.arange(max(lengths), device="cpu")
        return (places < torch.tensor(lengths, device="cpu")[:, None]).to(self.like.device)

    def changed(self, x: Tensor, where: Tensor) -> Tensor:
        """``x`` with other, larger numbers in some places."""
        return torch.where(where[..., None], 4 * self._drawn(*x.shape), x)

    def alone(self, row: int, length: int) -> _Trial:
        """One row without its padding."""
        found = self._copy(self.x[row : row + 1, :length], self.mask[row : row + 1, :length])
        if self.memory is not None and self.memory_mask is not None:
            real = int(self.memory_mask[row].sum())
            found.memory, found.memory_mask = self.memory[row : row + 1, :real], self.memory_mask[row : row + 1, :real]
        return found

    def packed(self) -> tuple[_Trial, tuple[tuple[int, int], tuple[int, int]]]:
        """Two documents in one row, and the row and length of each."""
        parts = (0, 4), (1, 5)
        x = torch.cat([self.x[row : row + 1, :length] for row, length in parts], 1)
        found = self._copy(x, torch.ones_like(x[..., 0], dtype=torch.bool))
        found.documents = torch.tensor([[0] * 4 + [1] * 5], device=x.device)
        return found, parts

    def _copy(self, x: Tensor, mask: Tensor) -> _Trial:
        found = object.__new__(_Trial)
        found.__dict__ = {**self.__dict__, "x": x, "mask": mask}
        return found


@contextlib.contextmanager
def _open_gates(network: nn.Module, generator: torch.Generator) -> Iterator[None]:
    """Within this context, all-zero weights are replaced: a gate that starts at 0 would hide every dependency."""
    closed = [one for one in network.parameters() if one.is_floating_point() and not one.any()]
    kept = [one.clone() for one in closed]
    for one in closed:
        one.copy_(torch.randn(one.shape, generator=generator, device="cpu") / 10)
    try:
        yield
    finally:
        for one, before in zip(closed, kept, strict=True):
            one.copy_(before)


def _differ(one: Tensor, other: Tensor, most: float = SAME) -> bool:
    if one.shape != other.shape:
        return True
    return bool((one - other).abs().max() > most * other.abs().max())


def _all_true(x: Tensor) -> Tensor:
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)


def _shape(tensor: Tensor) -> str:
    return str(tuple(tensor.shape))


class InputCache:
    """The past of a network that keeps none: the vectors it has read, and which of them are padding."""

    def __init__(self) -> None:
        self.x: Tensor | None = None
        self.documents: Tensor | None = None

    def append(self, x: Tensor, documents: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return all vectors so far ``(batch, time, d_model)``, the new ones last, and their documents, if told."""
        self.x = x if self.x is None else torch.cat((self.x, x), 1)
        if documents is not None:
            self.documents = documents if self.documents is None else torch.cat((self.documents, documents), 1)
        return self.x, self.documents

    def select(self, rows: Tensor, *, memory: bool = True) -> None:
        """Keep these rows, in this order; the memory of a decoder is passed with each call."""
        self.x = None if self.x is None else self.x.index_select(0, rows)
        if self.documents is not None:
            self.documents = self.documents.index_select(0, rows)


@dataclass
class RowsInStep:
    """Rows that have read equally many tokens: which they are, and the network's state of them."""

    rows: Int[Tensor, "row"]
    state: Any


class StateCache:
    """The past of a network with ``decode_step``: its states, of rows that have read as many tokens together."""

    def __init__(self) -> None:
        self.groups: list[RowsInStep] = []

    def select(self, rows: Tensor, *, memory: bool = True) -> None:
        """Keep these rows, in this order; the memory of a decoder is passed with each call."""
        kept = []
        for group in self.groups:
            new, old = torch.nonzero(rows[:, None] == group.rows, as_tuple=True)
            if len(new):
                kept.append(RowsInStep(new, _select_rows(group.state, old)))
        self.groups = kept


def _select_rows(state: Any, rows: Tensor) -> Any:
    """Return some rows of each tensor in a state, which may be a tensor, or a tuple, list or dict of states."""
    if isinstance(state, Tensor):
        return state.index_select(0, rows)
    if isinstance(state, dict):
        return {name: _select_rows(one, rows) for name, one in state.items()}
    if isinstance(state, list | tuple):
        found = [_select_rows(one, rows) for one in state]
        # A NamedTuple takes each alone.
        return type(state)(*found) if hasattr(state, "_fields") else type(state)(found)
    return state


Stack = TransformerStack | OwnNetwork


def make_stack(
    config: StackConfig,
    *,
    causal: bool,
    memory_width: int | None = None,
    max_length: int | None = None,
    section: str = "model",
) -> Stack:
    """Return the stack that the options of a ``section`` describe, Vaak's or a network of the user's."""
    if config.is_own:
        return OwnNetwork(config, causal=causal, memory_width=memory_width, section=section)
    return TransformerStack(config, causal=causal, memory_width=memory_width, max_length=max_length)
