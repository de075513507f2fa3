"""What each rank holds of a model and its optimizer, where that isn't all: ``training.distributed.strategy``.

With ``zero1``, a rank updates some of the weights, keeps what the optimizer remembers of these alone, and gives them to
the others. The bits are those of ``ddp``: a parameter is updated whole.

With ``fsdp``, each rank holds a part of every parameter, of its gradient and of what the optimizer keeps for it. The
parameters of a block are gathered while it computes, forward and backward, and its gradients are added over ranks and
divided in one go; what is in no block (embeddings, head, last norm) is gathered for the whole pass. All of that is
torch's ``fully_shard``. The engine sees parameters as ``DTensor``, whose shape is the whole one.

Every pass gathers, so every rank must make equally many; one that has fewer pieces computes one again, for nothing
(gradient.py). What isn't training (an evaluation, a diagnosis, samples) gets the model whole, by ``whole``: it may then
be called in any way, by some ranks only, and it is the model that a checkpoint holds.

Sources: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
(arXiv:1910.02054), stage 1; Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel"
(arXiv:2304.11277).
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vaak.config.training import DistributedConfig
from vaak.core.batch import Batch, read_together, send
from vaak.core.errors import UserError
from vaak.engine.distributed.exchange import BUCKET_BYTES, GradientBuckets, OwnGradients, total_norm
from vaak.engine.distributed.ranks import Ranks


class ShardedModel(nn.Module):
    """A model that is divided over ranks; what is called in training.

    ``blocks`` are the modules that are gathered one at a time. In ``precision`` bf16 or fp16 parameters are gathered in
    16 bits; gradients are added in 32. Raises UserError where the ranks can't be divided as ``config`` asks.
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
        self._plain = (_without_parameters(model, ranks.device),)  # a tuple: it isn't a part of this module
        self.model = model
        mesh = _mesh(ranks, config.shard_size)
        gathered = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
        options: dict[str, Any] = {
            "mesh": mesh,
            "reshard_after_forward": config.reshard_after_forward,
            "mp_policy": MixedPrecisionPolicy(
                param_dtype=gathered, reduce_dtype=gathered and torch.float32, cast_forward_inputs=False
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

    @contextlib.contextmanager
    def whole(self, averages: Mapping[str, Tensor]) -> Iterator[nn.Module]:
        """Within this context, a copy of the model that is whole on every rank; with ``averages`` in place of weights.

        Every rank enters it. Buffers are the model's own.
        """
        (copied,) = self._plain
        for own, module in zip(self.model.modules(), copied.modules(), strict=True):
            module._buffers = own._buffers
        plain = dict(copied.named_parameters())
        try:
            for name, parameter in self.model.named_parameters():
                found = whole(averages.get(name, parameter).detach()).to(self.ranks.device)
                plain[name].data = found.to(parameter.dtype)
            yield copied
        finally:
            for parameter in plain.values():
                parameter.data, parameter.grad = torch.empty(0, device=self.ranks.device, dtype=parameter.dtype), None


def _without_parameters(model: nn.Module, device: torch.device) -> nn.Module:
    """A copy of a model whose parameters have no numbers."""
    empty = {
        id(one): nn.Parameter(torch.empty(0, device=device, dtype=one.dtype), requires_grad=one.requires_grad)
        for one in model.parameters()
    }
    return copy.deepcopy(model, memo=dict(empty))


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

    def __init__(self, parameters: Iterable[nn.Parameter], ranks: Ranks, bucket_bytes: int = BUCKET_BYTES) -> None:
        super().__init__(parameters, ranks, bucket_bytes)
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
    """A copy of a tensor as one, on the CPU of rank 0, and nothing on the others; every rank calls it."""
    found = whole(tensor)
    return found.to("cpu", copy=True).contiguous() if torch.distributed.get_rank() == 0 else None


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
