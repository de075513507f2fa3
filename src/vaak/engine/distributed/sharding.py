"""Models and optimizers divided over ranks (``training.distributed.strategy``).

With ``zero1``, a rank updates some of the weights, keeps what the optimizer remembers of these alone, and gives them to
the others. The bits are those of ``ddp``: a parameter is updated whole.

With ``fsdp``, each rank holds a part of every parameter, of its gradient and of what the optimizer keeps for it. The
parameters of a block are gathered while it computes, forward and backward, and its gradients are added over ranks and
divided in one go; parameters outside blocks (embeddings, head, last norm) are gathered for the whole pass. All of that
is torch's ``fully_shard``. The engine sees parameters as ``DTensor``, whose shape is the whole one.

Every pass of training gathers, so every rank must make equally many; one that has fewer pieces computes one again, for
nothing (gradient.py). Everything but training (an evaluation, a diagnosis, samples) calls ``IndependentModel``, whose
blocks ranks gather when any rank needs one: so each rank may call it any number of times.

No process of ``fsdp`` has the whole model when it starts, either: ``made_in_parts``.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(arXiv:1910.02054), stage 1; Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel"
(arXiv:2304.11277).
"""

from __future__ import annotations

import contextlib
import copy
import gc
import math
import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from vaak.config.training import DistributedConfig
from vaak.core.batch import Batch, read_together, send
from vaak.core.errors import UserError
from vaak.core.out_of_memory import is_host_error
from vaak.core.torch_internals import is_watching, unwatched
from vaak.engine.distributed.exchange import GradientBuckets, OwnGradients, total_norm
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.memory import free_memory


class ShardedModel(nn.Module):
    """A model that is divided over ranks, as training calls it.

    ``blocks`` are the modules that are gathered one at a time. In ``precision`` bf16 or fp16 parameters are gathered in
    16 bits; gradients are added in 32, or in ``ranks.sum_dtype``. ``parts`` are this rank's of a model that was
    ``made_in_parts``. Raises UserError if the ranks can't be divided as ``config`` asks.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        ranks: Ranks,
        config: DistributedConfig,
        precision: str,
        parts: dict[str, Tensor] | None = None,
    ) -> None:
        from torch.distributed.fsdp import (
            CPUOffloadPolicy,
            FSDPModule,
            MixedPrecisionPolicy,
            OffloadPolicy,
            fully_shard,
        )

        if not hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            raise UserError(
                f"training.distributed.strategy: fsdp needs torch 2.13 or newer; this is {torch.__version__}"
            )
        super().__init__()
        self.ranks = ranks
        self._independent = IndependentModel(model, blocks, ranks)
        self.model = model
        mesh = _mesh(ranks, config.shard_size)
        gathered = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        options: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": config.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=gathered,
                reduce_dtype=ranks.sum_dtype or (gathered and torch.float32),
                cast_forward_inputs=False,
            ),
            "offload_policy": CPUOffloadPolicy() if config.cpu_offload else OffloadPolicy(),
        }
        for block in blocks:
            fully_shard(block, **options)
        fully_shard(self, **options)
        for module in self.modules():
            if isinstance(module, FSDPModule):
                # A gradient is a sum over microbatches, not a mean over ranks.
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                # What one rank's batch reaches, another's may not.
                module.set_reduce_scatter_unused_params(True)
            # transformers then computes the layers it would leave out; torch's compiler asks for the second
            vars(module).update(_is_fsdp_managed_module=True, _fsdp_use_orig_params=True)
        if parts is not None:
            _fill(model, parts, torch.device("cpu") if config.cpu_offload else ranks.device)
        self.shards: Any = mesh.get_group("shard") if mesh.ndim > 1 else mesh.get_group()

    def compile_blocks(self, blocks: Sequence[nn.Module], compiler: Callable[[Any], Any]) -> None:
        """Have ``compiler`` compile what each block computes; gathering and freeing its weights stays outside."""
        for block in blocks:
            vars(block)["forward"] = compiler(block.forward)

    def forward(self, function: Callable[[nn.Module, Batch], Any], batch: Batch) -> Any:
        """The terms that ``function`` makes of the model and a batch, and their sums, where torch looks for tensors.

        From these, the backward finds its way back to the parameters outside blocks.
        """
        terms = function(self.model, batch)
        return terms, [term.total for term in terms.values()]

    def independent(self, averages: Mapping[str, Tensor]) -> contextlib.AbstractContextManager[nn.Module]:
        """Within this context, which every rank enters, a model that each rank may call any number of times.

        It has the weights of this one, or ``averages`` in place of those that they name; buffers are this model's own.
        """
        return self._independent.of(self.model, self.shards, averages)


def made_in_parts(
    make: Callable[[], nn.Module], rank: int, num_parts: int
) -> tuple[nn.Module, dict[str, Tensor] | None, str]:
    """The model that ``make`` makes, its parameters on the device meta, and part ``rank`` of each, by all its names.

    A parameter is whole while it is drawn or read, one after another: their numbers are those of the whole model, to
    the bit. Where what is done to one of them can't be done to its parts, there are none, but the whole model; the
    text says why. Part r of n has the rows r · k to (r + 1) · k, where k is the number of rows, divided by n, rounded
    up. ``make`` may be called twice, and begins with the same random numbers then.
    """
    drawing, state = _PartsOfParameters(rank, num_parts), torch.get_rng_state()
    # transformers' threads would read all weights ahead of what is done to them
    os.environ.setdefault("HF_DEACTIVATE_ASYNC_LOAD", "1")
    try:
        with drawing:
            model = make()
        parts = drawing.slice_parameters(model)
    except Exception as error:
        # This includes exceptions of the user's code, which then come again.
        if is_host_error(error):
            # Whole, it needs even more.
            raise
        why = drawing.refusal or str(error)
    else:
        if drawing.refusal is None:
            return model, parts, ""
        # Somebody has caught it.
        why = drawing.refusal
    del drawing
    torch.set_rng_state(state)
    return make(), None, why


class _PartsOfParameters(TorchDispatchMode):
    """Within this context, a module that gets a parameter has it on the device meta, and a part of it is kept here.

    What is drawn or written into a parameter, or into some of its rows, is written into the part; numbers are drawn for
    all of it. Every other use of its values is refused by a RuntimeError. What is frozen from the start (tables of
    positions, a front end) stays whole until the model is made.
    """

    def __init__(self, rank: int, num_parts: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.refusal: str | None = None
        self._rank, self._num_parts = rank, num_parts
        # The key is the parameter's storage, which its views share.
        self._kept: dict[int, tuple[nn.Parameter, Tensor]] = {}
        self._last, self._since = "", 0

    def __enter__(self) -> Self:
        hook: Any = self._registered
        self._hook = register_module_parameter_registration_hook(hook)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        self._hook.remove()

    def slice_parameters(self, model: nn.Module) -> dict[str, Tensor]:
        """The parts of a model's parameters, which then are all on the device meta. Raises RuntimeError."""
        found, replaced, used = dict[str, Tensor](), dict[nn.Parameter, nn.Parameter](), set[int]()
        for name, parameter in [*model.named_parameters(remove_duplicate=False)]:
            if not parameter.is_meta:
                replaced[parameter] = replaced.get(parameter) or self._keep(parameter, name)
                module, _, own = name.rpartition(".")
                setattr(model.get_submodule(module), own, replaced[parameter])
            meta = replaced.get(parameter, parameter)
            storage = meta.untyped_storage()._cdata
            kept, found[name] = self._kept.get(storage, (None, meta))
            used.add(storage)
            if kept is not meta:
                self._refuse(f"{name} was made in another way")
        others = [weakref.ref(self._kept.pop(storage)[0]) for storage in self._kept.keys() - used]
        # cycles of modules that were replaced while the model was made would look like other users
        gc.collect()
        if any(other() is not None for other in others):
            # They weren't only replaced while the model was made.
            self._refuse("other modules were made with it")
        return found

    def _registered(self, module: nn.Module, name: str, parameter: nn.Parameter) -> nn.Parameter | None:
        """Return the replacement for ``parameter`` in a module; None keeps it."""
        if not is_watching(self):
            return None
        self._last = f"{type(module).__name__}.{name}"
        # one on meta is tied to one that is kept, or the library's, which will fill it
        return None if parameter.is_meta or not parameter.requires_grad else self._keep(parameter, self._last)

    def _keep(self, parameter: nn.Parameter, name: str) -> nn.Parameter:
        """The parameter on the device meta; its part is kept."""
        if type(parameter) is not nn.Parameter or parameter.ndim == 0 or not parameter.is_contiguous():
            self._refuse(f"{name} is a {type(parameter).__name__} of shape {tuple(parameter.shape)}")
        empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        kept = nn.Parameter(empty, parameter.requires_grad)
        vars(kept).update(vars(parameter))
        start, stop = self._rows(parameter)
        self._kept[kept.untyped_storage()._cdata] = kept, parameter.detach()[start:stop].clone()
        self._passed(parameter.nbytes)
        return kept

    def _passed(self, nbytes: int) -> None:
        """Give back now and then what whole parameters took: small ones in between keep glibc from using it again."""
        self._since += nbytes
        if self._since > HELD_AT_MOST:
            self._since = 0
            free_memory(torch.device("cpu"))

    def _rows(self, parameter: Tensor) -> tuple[int, int]:
        num_rows = -(-len(parameter) // self._num_parts)
        return min(self._rank * num_rows, len(parameter)), min((self._rank + 1) * num_rows, len(parameter))

    def _refuse(self, why: str) -> None:
        self.refusal = self.refusal or why
        raise RuntimeError(why)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = (one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor) and one.is_meta)
        kept = [one for one in tensors if one.untyped_storage()._cdata in self._kept]
        if kept and not func.is_view:
            if len(kept) > 1 or kept[0] is not args[0] or not func.overloadpacket.__name__.endswith("_"):
                self._refuse(f"the values of a weight are used ({func}; after {self._last})")
            self._write(func, *args, **kwargs)
            return args[0]
        return func(*args, **kwargs)

    def _write(self, func: Any, target: Tensor, *args: Any, **kwargs: Any) -> None:
        """Do to the part what ``func`` does in place to the parameter, or to its rows from one to another."""
        parameter, part = self._kept[target.untyped_storage()._cdata]
        rows = target if target.ndim == parameter.ndim else target[None]
        if rows.shape[1:] != parameter.shape[1:] or rows.stride() != parameter.stride():
            self._refuse(f"a weight is written in pieces ({func}; after {self._last})")
        begin, (start, stop) = target.storage_offset() // max(parameter.stride(0), 1), self._rows(parameter)
        first, last = (min(max(row, start), stop) for row in (begin, begin + len(rows)))
        own, within = part[first - start : last - start], slice(max(first - begin, 0), max(last - begin, 0))
        if func is torch.ops.aten.copy_.default:
            own.copy_(args[0].expand_as(rows)[within])
        elif torch.Tag.nondeterministic_seeded in func.tags:
            # drawn whole and then cut: the generator moves on as in a single process, on every rank
            drawn = torch.empty(rows.shape, dtype=target.dtype)
            func(drawn, *args, **kwargs)
            own.copy_(drawn[within])
            self._passed(drawn.nbytes)
        elif (
            func.overloadpacket in ROUNDED_ALONE
            and not kwargs
            and not any(isinstance(one, Tensor) and one.ndim for one in args)
        ):
            func(own, *args)
        else:
            self._refuse(f"a weight is computed by {func} (after {self._last})")


HELD_AT_MOST = 64 * 2**20
"""Bytes of whole parameters that are gone and not yet given back to the system."""
ROUNDED_ALONE = frozenset(
    getattr(torch.ops.aten, name) for name in ("zero_", "fill_", "mul_", "div_", "add_", "sub_", "clamp_")
)
"""Elementwise operators, whose bits don't depend on the number of elements."""


def _fill(model: nn.Module, parts: dict[str, Tensor], device: torch.device) -> None:
    """Give a divided model without values those of its parameters' parts, which it then has on ``device``.

    ``parts`` is empty afterwards, so that one parameter at a time is held twice.
    """
    filled: dict[int, nn.Parameter] = {}
    named: list[tuple[str, Any]] = list(model.named_parameters(remove_duplicate=False))
    for name, empty in named:
        part = parts.pop(name)
        if id(empty) not in filled:
            # not DTensor.from_local, which takes it to the mesh's device: with ``cpu_offload`` that isn't this one
            divided: Any = torch.empty_like(empty, device=device)
            divided.to_local().copy_(part)
            filled[id(empty)] = nn.Parameter(divided, empty.requires_grad)
        module, _, own = name.rpartition(".")
        setattr(model.get_submodule(module), own, filled[id(empty)])


class IndependentModel:
    """A model that is divided over ranks, as one that each of them calls by itself.

    Parameters outside blocks are whole as long as ``of`` lasts, a block's while it computes. A block needs the parts of
    all ranks: so each says which it needs, all give their parts of the first of these, and whoever needs it computes.
    Ranks that compute the same stay together; one that needs nothing, since it has no batch left or waits for the
    others elsewhere (``Ranks.before_meeting``), gives its parts until nobody needs any. It holds what it sends and
    receives from the start, so memory can only run out between two such exchanges, where a batch can be tried again.

    With gradients, a block is gathered and computed again in the backward, and no weight keeps its gradient. Weights
    that aren't there are NaN.
    """

    def __init__(self, model: nn.Module, blocks: Sequence[nn.Module], ranks: Ranks) -> None:
        self._ranks, blocks = ranks, [block for block in blocks if any(True for _ in block.parameters())]
        empty = {id(one): nn.Parameter(_absent(one, ranks.device), one.requires_grad) for one in model.parameters()}
        self._module = copy.deepcopy(model, memo=dict(empty))
        self._parameters = dict(self._module.named_parameters())
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        copies: dict[nn.Module, Any] = dict(zip(model.modules(), self._module.modules(), strict=True))
        self._blocks = [[names[id(one)] for one in copies[block].parameters()] for block in blocks]
        for number, block in enumerate(blocks):
            copies[block].gathered = partial(self._gathered, number)
            copies[block].forward = partial(self._compute, number, copies[block].forward)
        for parameter in self._parameters.values():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(_drop_gradient)

    @contextlib.contextmanager
    def of(self, model: nn.Module, shards: Any, averages: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """The model with the weights of ``model``, which the group ``shards`` shares, or ``averages`` of them."""
        for own, module in zip(model.modules(), self._module.modules(), strict=True):
            # the copy shares the buffers, so that they are those of the trained model at any time
            module._buffers = own._buffers
        self._sources = {name: averages.get(name, one).detach() for name, one in model.named_parameters()}
        self._shards, self._size = shards, torch.distributed.get_world_size(shards)
        part = max((self._places(number)[-1][1].stop for number in range(len(self._blocks))), default=0)
        self._given = torch.empty(part, dtype=torch.uint8, device=self._ranks.device)
        self._received = torch.empty(part * self._size, dtype=torch.uint8, device=self._ranks.device)
        in_blocks = {name for names in self._blocks for name in names}
        try:
            with self._ranks.naming_lost_ranks():
                for name in (one for one in self._sources if one not in in_blocks):
                    found = whole(self._sources[name]).to(self._ranks.device)
                    self._parameters[name].data = found.to(self._parameters[name].dtype)
            self._ranks.before_meeting = self._serve
            yield self._module
            # a rank that is done keeps giving its parts until no other needs any
            self._serve()
        finally:
            self._ranks.before_meeting = lambda: None
            for parameter in self._parameters.values():
                parameter.data, parameter.grad = _absent(parameter, self._ranks.device), None
            del self._sources, self._given, self._received

    def _compute(self, number: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a block."""

        def computed(*args: Any, **kwargs: Any) -> Any:
            with self._gathered(number):
                return forward(*args, **kwargs)

        if not torch.is_grad_enabled():
            return computed(*args, **kwargs)
        return checkpoint(
            computed,
            *args,
            use_reentrant=False,
            # Computing it again isn't work of the model.
            context_fn=lambda: (contextlib.nullcontext(), unwatched()),
            **kwargs,
        )

    @contextlib.contextmanager
    def _gathered(self, number: int) -> Iterator[None]:
        """Within this context, the parameters of a block are there."""
        self._serve(number)
        received = self._received[: self._size * self._places(number)[-1][1].stop].view(self._size, -1)
        try:
            for name, place in self._places(number):
                parameter = self._parameters[name]
                values = received[:, place].clone(memory_format=torch.contiguous_format).view(-1).view(parameter.dtype)
                parameter.data = values.view(-1, *parameter.shape[1:])[: len(parameter)]
            yield
        finally:
            for name in self._blocks[number]:
                self._parameters[name].data = _absent(self._parameters[name], self._ranks.device)

    @torch.no_grad()
    def _serve(self, needed: int | None = None) -> None:
        """Give this rank's parts of what others need, until it is what this one needs, or nobody needs any more."""
        none = len(self._blocks)
        with self._ranks.naming_lost_ranks():
            while True:
                first = torch.tensor([none if needed is None else needed], dtype=torch.int32)
                # the lowest block that any rank needs comes first, so all agree without a coordinator
                torch.distributed.all_reduce(first, op=torch.distributed.ReduceOp.MIN, group=self._shards)
                number = int(first)
                if number == none:
                    return
                for name, place in self._places(number):
                    own = local(self._sources[name]).to(self._parameters[name].dtype).flatten().view(torch.uint8)
                    self._given[place.start : place.start + len(own)].copy_(own)
                given, received = self._given[: place.stop], self._received[: self._size * place.stop]
                torch.distributed.all_gather_single(received, given, group=self._shards)
                if number == needed:
                    return

    def _places(self, number: int) -> list[tuple[str, slice]]:
        """The parameters of a block, and the bytes that each has in what a rank gives: as many of every rank."""
        places, end = list[tuple[str, slice]](), 0
        for name in self._blocks[number]:
            parameter = self._parameters[name]
            row = parameter.element_size() * math.prod(parameter.shape[1:])
            places.append((name, slice(end, end := end + row * -(-len(parameter) // self._size))))
        return places


def _absent(parameter: Tensor, device: torch.device) -> Tensor:
    """Return a placeholder for an absent parameter: its shape, without memory."""
    nothing = math.nan if parameter.is_floating_point() else 0
    return torch.full((), nothing, dtype=parameter.dtype, device=device).expand(parameter.shape)


def _drop_gradient(parameter: Tensor) -> None:
    parameter.grad = None


def _mesh(ranks: Ranks, shard_size: int | None) -> Any:
    """The ranks as those that share a copy of the model, and, where these are fewer than all, its copies."""
    from torch.distributed.device_mesh import init_device_mesh

    kind, world_size = ranks.device.type, ranks.world_size
    if shard_size is None or shard_size == world_size:
        return init_device_mesh(kind, (world_size,))
    if world_size % shard_size:
        raise UserError(
            f"training.distributed.shard_size: {world_size} processes can't be divided into groups of {shard_size}"
        )
    return init_device_mesh(kind, (world_size // shard_size, shard_size), mesh_dim_names=("copy", "shard"))


class ShardedGradients(OwnGradients):
    """The gradients of a sharded model: this rank's part of each, which torch has added up in the backward."""

    def __init__(self, parameters: Iterable[nn.Parameter], model: ShardedModel) -> None:
        super().__init__(parameters)
        self._model = model

    @property
    def gradients(self) -> list[Tensor]:
        return [local(gradient) for gradient in super().gradients]

    def norm(self) -> Tensor:
        """The 2-norm of all gradients together, over ranks."""
        square = total_norm(self.gradients).square()
        torch.distributed.all_reduce(square, group=self._model.shards)
        return square.sqrt()

    def reduce(self, sums: dict[str, Tensor], units: dict[str, str]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The terms' sums, added in the order of ranks, and their units; gradients are added already."""
        world = self._model.ranks
        totals, found = dict[str, float](), dict(units)
        own = [float(total) for total in read_together(*sums.values())]
        for part in world.gather([[name, units[name], total] for name, total in zip(sums, own, strict=True)]):
            for name, unit, value in part:
                totals[name], found[name] = totals.get(name, 0.0) + value, unit
        order = [*sums, *(name for name in totals if name not in sums)]
        values = send(torch.tensor([totals[name] for name in order]), world.device)
        return dict(zip(order, values.unbind(), strict=True)), found


class DividedUpdate(GradientBuckets):
    """The gradients of a run whose ranks each update a part of the weights."""

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks) -> None:
        super().__init__(parameters, ranks, ranks.bucket_bytes, ranks.sum_dtype)
        self._ranks = ranks
        self._parts = assign_to_ranks(self.parameters, ranks.world_size)
        self.of_others = frozenset(self.parameters) - frozenset(self._parts[ranks.rank])

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        for parameter in self.of_others:
            # Its optimizer passes it over.
            parameter.grad = None
        yield
        for rank, part in enumerate(self._parts):
            self._ranks.share([one.data for one in part if one.requires_grad], rank)


def assign_to_ranks(parameters: Sequence[nn.Parameter], world_size: int) -> list[list[nn.Parameter]]:
    """The parameters that each rank updates: the largest first, each to the rank that has least so far.

    >>> parameters = [nn.Parameter(torch.zeros(n)) for n in (5, 9, 3, 1)]
    >>> [[one.numel() for one in part] for part in assign_to_ranks(parameters, 2)]
    [[9], [5, 3, 1]]
    """
    parts: list[list[nn.Parameter]] = [[] for _ in range(world_size)]
    sizes = [0] * world_size
    for parameter in sorted(parameters, key=lambda one: -one.numel()):
        least = sizes.index(min(sizes))
        parts[least].append(parameter)
        sizes[least] += parameter.numel()
    return parts


def is_sharded(tensor: Tensor) -> bool:
    """Return whether this rank has only a part of a tensor."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """A tensor as one; every rank calls it, and gets it, where it is divided."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or all of it if it isn't sharded."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def slice_for_rank(value: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this rank has of ``like``; all of it where that isn't divided."""
    if not is_sharded(like) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    place: Any = like
    device = value.to(place.device) if place.device.type != "cpu" else value
    return distribute_tensor(device, place.device_mesh, place.placements, src_data_rank=None)


class Gathering:
    """Brings ranks' parts of a state to rank 0, on another thread than training's, over separate connections.

    Every rank makes it, and where the model has several copies, only the ranks of the first give anything.
    """

    def __init__(self, ranks: Ranks, config: DistributedConfig) -> None:
        self._ranks, self._size = ranks, config.shard_size or ranks.world_size
        timeout = timedelta(minutes=config.timeout_minutes)
        self._group = torch.distributed.new_group([*range(self._size)], timeout=timeout, backend="gloo")

    def chunks(self, tensors: Sequence[tuple[Tensor, torch.Size | None]]) -> Iterator[Tensor]:
        """Yield the tensors that rank 0 writes, whole or in parts, one part at a time; nothing on other ranks.

        Each tensor is this rank's, on the CPU, with the shape of the whole one where it is divided. Every rank goes
        through what this yields.
        """
        with self._ranks.naming_lost_ranks():
            for own, shape in tensors:
                if self._ranks.is_main:
                    yield own
                    yield from () if shape is None else self._of_others(shape, own.dtype)
                elif shape is not None and own.numel() and self._ranks.rank < self._size:
                    torch.distributed.send(own.flatten().view(torch.uint8), 0, group=self._group)

    def _of_others(self, shape: torch.Size, dtype: torch.dtype) -> Iterator[Tensor]:
        rows = -(-shape[0] // self._size)
        for source in range(1, self._size):
            part = torch.empty(max(0, min(rows, shape[0] - source * rows)), *shape[1:], dtype=dtype)
            if part.numel():
                torch.distributed.recv(part.flatten().view(torch.uint8), source, group=self._group)
                yield part
