"""What each rank holds of a model and its optimizer, where that isn't all: ``training.distributed.strategy``.

With ``zero1``, a rank updates some of the weights, keeps what the optimizer remembers of these alone, and gives them to
the others. The bits are those of ``ddp``: a parameter is updated whole.

With ``fsdp``, each rank holds a part of every parameter, of its gradient and of what the optimizer keeps for it. The
parameters of a block are gathered while it computes, forward and backward, and its gradients are added over ranks and
divided in one go; what is in no block (embeddings, head, last norm) is gathered for the whole pass. All of that is
torch's ``fully_shard``. The engine sees parameters as ``DTensor``, whose shape is the whole one.

Every pass of training gathers, so every rank must make equally many; one that has fewer pieces computes one again, for
nothing (gradient.py). What isn't training (an evaluation, a diagnosis, samples) calls ``IndependentModel``, of which
ranks gather a block when any of them needs it: so each of them may call it as often as it likes, or not at all.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(arXiv:1910.02054), stage 1; Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel"
(arXiv:2304.11277).
"""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vaak.config.training import DistributedConfig
from vaak.core.batch import Batch, read_together, send
from vaak.core.errors import UserError
from vaak.core.torch_internals import unwatched
from vaak.engine.distributed.exchange import GradientBuckets, OwnGradients, total_norm
from vaak.engine.distributed.ranks import Ranks


class ShardedModel(nn.Module):
    """A model that is divided over ranks; what is called in training.

    ``blocks`` are the modules that are gathered one at a time. In ``precision`` bf16 or fp16 parameters are gathered in
    16 bits; gradients are added in 32, or in ``ranks.sum_dtype``. Raises UserError where the ranks can't be divided as
    ``config`` asks.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        ranks: Ranks,
        config: DistributedConfig,
        precision: str,
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
            if isinstance(module, FSDPModule):  # a gradient is a sum over microbatches, not a mean over ranks
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
                module.set_reduce_scatter_unused_params(True)  # what one rank's batch reaches, another's may not
            vars(module)["_is_fsdp_managed_module"] = True  # transformers then computes the layers it would leave out
        self.shards: Any = mesh.get_group("shard") if mesh.ndim > 1 else mesh.get_group()

    def forward(self, function: Callable[[nn.Module, Batch], Any], batch: Batch) -> Any:
        """The terms that ``function`` makes of the model and a batch, and their sums, where torch looks for tensors.

        From these, the backward finds its way back to what is in no block.
        """
        terms = function(self.model, batch)
        return terms, [term.total for term in terms.values()]

    def independent(self, averages: Mapping[str, Tensor]) -> contextlib.AbstractContextManager[nn.Module]:
        """Within this context, which every rank enters, a model that each of them calls as often as it likes.

        It has the weights of this one, or ``averages`` in place of those that they name; buffers are this model's own.
        """
        return self._independent.of(self.model, self.shards, averages)


class IndependentModel:
    """A model that is divided over ranks, as one that each of them calls by itself.

    What is in no block is whole as long as ``of`` lasts, a block while it computes. A block needs the parts of all
    ranks: so each says which it needs, all give their parts of the first of these, and whoever needs it computes. Ranks
    that compute the same stay together; one that needs nothing, since it has no batch left or waits for the others
    elsewhere (``Ranks.before_meeting``), gives its parts until nobody needs any. It holds what it sends and receives
    from the start, so memory can only run out between two such exchanges, where a batch can be tried again.

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
        return checkpoint(computed, *args, use_reentrant=False, context_fn=_uncounted, **kwargs)

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
    """What stands for the values of a parameter that isn't there: its shape, and no memory."""
    nothing = math.nan if parameter.is_floating_point() else 0
    return torch.full((), nothing, dtype=parameter.dtype, device=device).expand(parameter.shape)


def _uncounted() -> tuple[contextlib.AbstractContextManager[Any], contextlib.AbstractContextManager[Any]]:
    """The contexts of a block's forward and of its computing it again, which isn't work of the model."""
    return contextlib.nullcontext(), unwatched()


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
        self._parts = parts_of(self.parameters, ranks.world_size)
        self.of_others = frozenset(self.parameters) - frozenset(self._parts[ranks.rank])

    @contextlib.contextmanager
    def updating(self) -> Iterator[None]:
        for parameter in self.of_others:
            parameter.grad = None  # its optimizer passes it over
        yield
        for rank, part in enumerate(self._parts):
            self._ranks.share([one.data for one in part if one.requires_grad], rank)


def parts_of(parameters: Sequence[nn.Parameter], world_size: int) -> list[list[nn.Parameter]]:
    """The parameters that each rank updates: the largest first, each to the rank that has least so far.

    >>> [[one.numel() for one in part] for part in parts_of([nn.Parameter(torch.zeros(n)) for n in (5, 9, 3, 1)], 2)]
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


def on_main(tensor: Tensor) -> Tensor | None:
    """A tensor as one, on the CPU of rank 0, and nothing on the others; every rank calls it."""
    found = whole(tensor)
    return found.cpu().contiguous() if torch.distributed.get_rank() == 0 else None


def local(tensor: Tensor) -> Tensor:
    """Return what this rank has of a tensor."""
    return tensor.to_local() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def part_of(value: Tensor, like: Tensor) -> Tensor:
    """The part of a whole tensor that this rank has of ``like``; all of it where that isn't divided."""
    if not is_sharded(like) or is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    place: Any = like
    device = value.to(place.device) if place.device.type != "cpu" else value
    return distribute_tensor(device, place.device_mesh, place.placements, src_data_rank=None)
