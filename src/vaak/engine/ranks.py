"""The processes of a run. The only file that knows torch.distributed and accelerate.

Gradients are added over ranks once a step, after every backward, in one flat sum: hooks that start collectives during
the backward would change bits when they rebuild their buckets, and hang when one rank runs out of memory.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from vaak.config.training import TrainingConfig
from vaak.core.errors import SaidByMainProcessError, UserError
from vaak.engine.launcher import check_launcher, pick_device

SHORT = 1024  # bytes of a message that is gathered in one go


class Ranks:
    """This process's place among all, and the few things they do together. With one process, each of them is free.

    ``start`` joins the processes that torchrun or accelerate launch began; ``close`` leaves them.
    """

    def __init__(self, device: torch.device, rank: int = 0, world_size: int = 1, barrier: bool = False) -> None:
        self.device = device
        self.rank = rank
        self.world_size = world_size
        self.barrier_before_sum = barrier

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """A JSON value of each rank, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        texts = self._gather_bytes(json.dumps(value).encode(), room=SHORT)
        longest = max(int.from_bytes(text[:8], "little") for text in texts)
        if longest > SHORT:
            texts = self._gather_bytes(json.dumps(value).encode(), room=longest)
        return [json.loads(text[8 : 8 + int.from_bytes(text[:8], "little")]) for text in texts]

    def _gather_bytes(self, content: bytes, room: int) -> list[bytes]:
        """Each rank's content behind its length in 8 bytes; what has no room in ``room`` bytes is cut."""
        message = (len(content).to_bytes(8, "little") + content)[: 8 + room].ljust(8 + room, b"\0")
        mine = torch.frombuffer(bytearray(message), dtype=torch.uint8)
        gathered = [torch.empty_like(mine) for _ in range(self.world_size)]
        with _naming_lost_ranks():
            dist.all_gather(gathered, mine)
        return [text.numpy().tobytes() for text in gathered]

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """Values added over ranks, name by name, in the order of ranks."""
        if self.world_size == 1:
            return values
        total: dict[str, float] = {}
        for part in self.gather(values):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def sum_tensors(self, tensors: list[torch.Tensor]) -> None:
        """Add tensors over ranks, in place, one flat sum for each kind of number."""
        if self.world_size == 1:
            return
        if self.barrier_before_sum:
            self.wait()
        by_dtype: dict[torch.dtype, list[torch.Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for group in by_dtype.values():
            flat = torch.cat([tensor.reshape(-1) for tensor in group])
            with _naming_lost_ranks():
                dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in group])
            for tensor, part in zip(group, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def main_first(self, work: Callable[[], Any]) -> Any:
        """Do ``work`` on the main process, then on the others; a failure on the main process fails on all."""
        problem = None
        result = None
        if self.is_main:
            try:
                result = work()
            except UserError as error:
                problem = str(error)
        problem = self.gather(problem)[0]
        if problem is not None:
            raise (UserError if self.is_main else SaidByMainProcessError)(problem)
        return result if self.is_main else work()

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            with _naming_lost_ranks():
                dist.barrier()

    def close(self) -> None:
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()


@contextlib.contextmanager
def _naming_lost_ranks() -> Iterator[None]:
    """While this holds, a connection that breaks because another process ended is a UserError."""
    try:
        yield
    except RuntimeError as error:
        if "onnection" not in str(error):
            raise
        raise UserError("another process of the run has ended, and so this one; go on with --resume auto") from error


def start_ranks(config: TrainingConfig) -> Ranks:
    """Join the processes that were started together and pick this one's device.

    Raises UserError where the YAML asks for another number of processes than were started, for a device that isn't
    there, or for something that contradicts accelerate's configuration.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    check_launcher(config, world_size)
    device = pick_device(config.device)
    if world_size == 1:
        return Ranks(device)
    cuda_backend = config.distributed.backend or "nccl"
    backend = f"cpu:gloo,cuda:{cuda_backend}" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group(backend, timeout=timedelta(minutes=30))
    return Ranks(device, dist.get_rank(), dist.get_world_size(), config.distributed.sync_gradient_barrier)


def accelerate_tracker(name: str) -> Any:
    """The class of a tracker of accelerate. Raises UserError for one that is unknown or not installed."""
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    if name not in LOGGER_TYPE_TO_CLASS:
        raise UserError(f"training.logging.trackers: there is no {name}; choose from {', '.join(LOGGER_TYPE_TO_CLASS)}")
    if name not in [str(getattr(kind, "value", kind)) for kind in get_available_trackers()]:
        raise UserError(f"training.logging.trackers: {name} isn't installed; pip install it or remove it")
    return LOGGER_TYPE_TO_CLASS[name]
