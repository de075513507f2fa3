"""Whether the processes of a run are all there, and agree: with the launcher, with the YAML, and with each other.

What torchrun, accelerate launch and the machine say is compared with the YAML: contradictions are errors. Ranks compare
hashes of what they run, and say what is different where the hashes are. Which process is which rank, and on which
machine, is written where all can read it, so that one that is missing or has ended can be named.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError

log = logging.getLogger("vaak")
PLUGINS = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}


def world_size() -> int:
    """Return the number of processes that were started together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def with_batches_per_process(config: TrainingConfig, processes: int) -> TrainingConfig:
    """The options of a run that starts on this many processes: as accelerate has it, where they are too many.

    With more processes than microbatches, ``batch_size`` is per process: a step has as many times more microbatches.
    They are then an option of the run like any other, whatever number of processes it resumes on.

    Raises UserError with exact sums, which promise the same bits on any number of processes: one has smaller steps.
    """
    microbatches = config.gradient_accumulation_steps
    if processes <= microbatches or config.distributed.processes_at_start is not None:
        return config
    if config.distributed.reduction == "exact":
        raise UserError(explain_too_few_microbatches(microbatches, processes))
    return multiplied_by(config, processes)


def explain_too_few_microbatches(microbatches: int, processes: int) -> str:
    """Return why exact sums aren't possible with more processes than microbatches, and the number to set."""
    return (
        f"training.distributed.reduction: exact needs a microbatch for each process: {processes} processes would "
        f"multiply the batch of gradient_accumulation_steps: {microbatches}, so that one process has other bits; set "
        f"training.gradient_accumulation_steps to {processes} or more, with training.batch_size smaller"
    )


def multiplied_by(config: TrainingConfig, processes: int) -> TrainingConfig:
    """The options with a step's microbatches times this number of processes, which is noted."""
    distributed = config.distributed.model_copy(update={"processes_at_start": processes})
    steps = config.gradient_accumulation_steps * processes
    return config.model_copy(update={"distributed": distributed, "gradient_accumulation_steps": steps})


def check_launcher(config: TrainingConfig, world_size: int) -> None:
    """Raise UserError if what was launched is not what the YAML asks for, or can't be done."""
    wanted = config.distributed.world_size
    if wanted is not None and wanted != world_size:
        raise UserError(
            f"training.distributed.world_size is {wanted} but {world_size} process(es) were started: start them with "
            f"vaak train FILE --processes {wanted}, or remove the option"
        )
    for variable, name in PLUGINS.items():
        if os.environ.get(variable, "").lower() == "true":
            raise UserError(
                f"accelerate's configuration asks for {name}, which isn't supported; use distributed_type MULTI_GPU"
            )
    compiler = os.environ.get("ACCELERATE_DYNAMO_BACKEND", "no").lower()
    if compiler != "no" and not config.performance.compile:
        raise UserError(
            f"accelerate's configuration asks for the compiler {compiler}: set training.performance.compile: true, "
            "or dynamo_backend: no there"
        )


def check_microbatches(config: TrainingConfig, world_size: int) -> None:
    """Raise UserError if a process would have no microbatch of a step."""
    if world_size > config.gradient_accumulation_steps:
        raise UserError(
            f"{world_size} processes share the {config.gradient_accumulation_steps} microbatch(es) of a step: set "
            f"training.gradient_accumulation_steps to {world_size} or more, with training.batch_size smaller"
        )


def pick_device(name: str) -> torch.device:
    """The device of this name; ``auto`` is CUDA, else MPS, else the CPU."""
    if os.environ.get("ACCELERATE_USE_CPU", "").lower() == "true" and os.environ.get("ACCELERATE_MIXED_PRECISION"):
        if name in ("cuda", "mps"):
            raise UserError(f"training.device is {name} but accelerate's configuration says use_cpu: true; change one")
        return torch.device("cpu")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    if name == "auto":
        name = next(kind for kind, there in available.items() if there)
    if name not in available:
        raise UserError(f"unknown device {name!r}; expected auto, cuda, mps or cpu")
    if not available[name]:
        raise UserError(f"training.device is {name} but this machine has none; use device: auto or cpu")
    return torch.device(name)


def say_what_has_no_effect(config: TrainingConfig, device: torch.device, processes: int) -> None:
    """Warn about options that have no effect on this device, and note those that have none with one process."""
    _warn_of_what_a_device_lacks(config, device)
    given = config.distributed
    for name in ("backend", "sync_gradient_barrier", "timeout_minutes") if processes == 1 else ():
        if getattr(given, name) != type(given).model_fields[name].default:
            log.info("training.distributed.%s has no effect: there is one process (--processes starts several)", name)


def _warn_of_what_a_device_lacks(config: TrainingConfig, device: torch.device) -> None:
    if device.type == "cuda":
        return
    if config.deterministic and device.type == "cpu":
        log.info("training.deterministic has no effect on cpu: its kernels always are deterministic")
    if config.performance.tf32:
        log.warning("training.performance.tf32 is for CUDA only: it has no effect on %s", device.type)
    if config.performance.pin_memory:
        log.warning("training.performance.pin_memory is for CUDA only: it has no effect on %s", device.type)
    if config.distributed.backend == "nccl":
        log.warning("training.distributed.backend nccl is for CUDA only: on %s the processes use gloo", device.type)


def precision_from_launcher(chosen: str, given: bool) -> str:
    """Return the precision of the YAML, or of accelerate's configuration where the YAML has none.

    Raises UserError if both speak and differ. Accelerate's ``no`` is its default, so it contradicts nothing, and
    ``auto`` leaves it to others.
    """
    launched = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if launched == "no" or launched == chosen:
        return chosen
    if given and chosen != "auto":
        raise UserError(
            f"training.mixed_precision is {chosen} but accelerate's configuration says {launched}; change one of them"
        )
    if launched not in ("bf16", "fp16"):
        raise UserError(
            f"accelerate's configuration says mixed_precision: {launched}, which isn't supported; use bf16 or fp16"
        )
    return launched


LOG_CHUNK_BYTES = 2**20
"""Elements whose weighted sum is taken at a time: a fingerprint then needs 16 MB of memory."""
MIX = 0x9E3779B97F4A7C15 - 2**64
"""An odd number without a pattern (2**64 over the golden ratio, as a signed one)."""
NUM_SHOWN_LINES = 5
"""Differences that one line names."""
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def canonical(values: Any) -> str:
    """Values as text that is the same wherever they are."""
    return json.dumps(values, sort_keys=True, default=str)


def describe_differences(every: list[Any]) -> str:
    """Describe how the ranks' settings differ from rank 0's.

    >>> describe_differences([{"seed": 42, "data": {"max": 9}}, {"seed": 7, "data": {"max": 9}}])
    'rank 1 runs with seed 7, rank 0 with 42'
    """
    flat = [_flatten(values) for values in every]
    differing: dict[tuple[str, str], list[int]] = {}
    for key in sorted({key for values in flat for key in values}):
        for rank, values in enumerate(flat):
            if values.get(key) != flat[0].get(key):
                differing.setdefault((key, _shown(values.get(key))), []).append(rank)
    said = [
        f"{name_ranks(ranks)} {'runs' if len(ranks) == 1 else 'run'} with {key} {value}, "
        f"rank 0 with {_shown(flat[0].get(key))}"
        for (key, value), ranks in differing.items()
    ]
    more = f"; and {len(said) - NUM_SHOWN_LINES} more" if len(said) > NUM_SHOWN_LINES else ""
    return "; ".join(said[:NUM_SHOWN_LINES]) + more


def name_ranks(ranks: list[int]) -> str:
    """Return ranks as named in a sentence.

    >>> name_ranks([1]), name_ranks([1, 2, 5])
    ('rank 1', 'ranks 1, 2, 5')
    """
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def weights_fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors' names, shapes and bits, which stay on their device.

    Each tensor gives the sum, modulo 2**64, of its elements' bits, each times an odd weight of its position: a bit
    that changes changes the sum, and so do two elements that trade places.
    """
    sums = [_weighted_bits(tensor.detach()) for tensor in tensors.values()]
    by_device: dict[torch.device, list[int]] = {}
    for place, total in enumerate(sums):
        by_device.setdefault(total.device, []).append(place)
    numbers = [0] * len(sums)
    for places in by_device.values():
        # One wait for each device, not one for each tensor.
        for place, number in zip(places, torch.stack([sums[place] for place in places]).tolist(), strict=True):
            numbers[place] = number
    described = [
        [name, str(tensor.dtype), list(tensor.shape), number]
        for (name, tensor), number in zip(tensors.items(), numbers, strict=True)
    ]
    return hashlib.sha256(canonical(described).encode()).hexdigest()[:16]


def _weighted_bits(tensor: Tensor) -> Tensor:
    flat = tensor.contiguous().reshape(-1)
    bits = flat.view(INTEGERS.get(tensor.dtype.itemsize, torch.int64))
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    weights = torch.arange(min(LOG_CHUNK_BYTES, len(bits)), device=tensor.device).mul_(MIX).bitwise_or_(1)
    for number, chunk in enumerate(bits.split(LOG_CHUNK_BYTES)):
        weighted = chunk.to(torch.int64) * weights[: len(chunk)]
        total = total * MIX + weighted.sum() + number
    return total


def _flatten(values: Any, prefix: str = "") -> dict[str, Any]:
    """Nested values by their dotted keys."""
    if not isinstance(values, dict) or not values:
        return {prefix: values}
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return flat


def _shown(value: Any) -> str:
    text = "nothing" if value is None else value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


LOOK_AGAIN_SECONDS = 0.1
ENDING_SECONDS = 3.0
"""How long a process may take from closing its connections to its end."""
STAYING_SECONDS = 1.0


class Store(Protocol):
    """The ranks' common store (torch's)."""

    def set(self, key: str, value: str) -> Any: ...
    def get(self, key: str) -> bytes: ...
    def check(self, keys: list[str]) -> bool: ...


class RankMonitor:
    """Every rank signs in at the common store; ``lost`` then gives the ranks that have ended.

    A process that shares this one's machine is looked up in the system's table. One elsewhere is known from what a rank
    there wrote into the store.
    """

    def __init__(self, store: Store, rank: int, world_size: int) -> None:
        self.store, self.rank, self.world_size = store, rank, world_size
        self.places: dict[int, dict[str, Any]] = {}
        self._prefix = f"vaak {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"

    def wait_for_all(self, seconds: float) -> None:
        """Sign in and wait until every rank has. Raises UserError, naming the missing ranks, after a timeout.

        Rank 0 looks for all, and tells the others who look for those of their machine alone: N ranks make a number of
        requests that grows with N, not with its square.
        """
        self.store.set(self._key(self.rank), json.dumps(own_place()))
        begun, everyone = time.monotonic(), range(self.world_size)
        first = self.rank - int(os.environ.get("LOCAL_RANK", "0"))
        # Those of this machine.
        neighbours = range(first, first + int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
        while not (self.rank and self.store.check([self._key("all")])):
            late = time.monotonic() - begun > seconds
            for rank in everyone if late or not self.rank else neighbours:
                if rank not in self.places and self.store.check([self._key(rank)]):
                    self.places[rank] = json.loads(self.store.get(self._key(rank)))
            if lost := self._ended_here():
                raise UserError(f"{self.describe(lost)} ended while the others were starting; start all of them again")
            missing = [rank for rank in everyone if rank not in self.places]
            if not self.rank and not missing:
                self.store.set(self._key("all"), json.dumps(list(self.places.items())))
                return
            if late and missing:
                raise UserError(
                    f"{name_ranks(missing)} of {self.world_size} didn't start within {seconds:.0f} s: look at their "
                    "output, and start all of them again"
                )
            time.sleep(LOOK_AGAIN_SECONDS)
        self.places = dict(json.loads(self.store.get(self._key("all"))))

    def lost(self) -> list[int]:
        """The ranks that have ended, as far as any rank knows; this waits some seconds where none does yet.

        The first rank to find out tells the others, and stays for a moment: otherwise they would count it as ended
        too.
        """
        deadline = time.monotonic() + ENDING_SECONDS
        while True:
            found = self._ended_here()
            of_torchrun = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
            if 0 not in found or of_torchrun:
                # Otherwise the store ended with rank 0.
                found = self._agreed_lost_ranks(found)
            if found:
                time.sleep(STAYING_SECONDS)
            if found or time.monotonic() > deadline:
                return found
            time.sleep(LOOK_AGAIN_SECONDS)

    def describe(self, ranks: list[int]) -> str:
        """Ranks, with process and machine.

        Their end is reported in one sentence: "rank 1 (process 4711 on node7)".
        """
        described = []
        for rank in ranks:
            place = self.places.get(rank)
            described.append(f"rank {rank}" + (f" (process {place['pid']} on {place['host']})" if place else ""))
        return ", ".join(described)

    def _agreed_lost_ranks(self, found: list[int]) -> list[int]:
        """Return the ranks that the first to notice listed as lost; that may be this rank now. Empty if none has."""
        with contextlib.suppress(RuntimeError):
            # A store that ended, too.
            key = f"{self._prefix} lost"
            if self.store.check([key]):
                return [int(rank) for rank in json.loads(self.store.get(key))]
            if found:
                self.store.set(key, json.dumps(found))
        return found

    def _ended_here(self) -> list[int]:
        """The ranks of this machine whose process has ended."""
        return [rank for rank, place in sorted(self.places.items()) if rank != self.rank and has_ended(place)]

    def _key(self, rank: int | str) -> str:
        return f"{self._prefix} rank {rank}"


def wait_for_an_answer(address: str, port: int, seconds: float) -> bool:
    """Return whether an address accepts a connection before the timeout."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            socket.create_connection((address, port), timeout=max(1.0, min(seconds, 10.0))).close()
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(LOOK_AGAIN_SECONDS)
        else:
            return True


def own_place() -> dict[str, Any]:
    """This process, its machine, and which table lists it there: containers of a machine may share its name."""
    system = ""
    with contextlib.suppress(OSError):
        system = os.readlink("/proc/self/ns/pid")
    return {"pid": os.getpid(), "host": socket.gethostname(), "system": system}


def has_ended(place: Mapping[str, Any]) -> bool:
    """Whether the process of a place has ended, as far as this machine can tell: not of one on another machine."""
    own = own_place()
    is_here = (place["host"], place["system"]) == (own["host"], own["system"])
    return is_here and not is_alive(place["pid"])


def is_alive(pid: int) -> bool:
    """Return whether a process of this machine runs; one that has ended and is still listed doesn't."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (OSError, IndexError):
        return not Path("/proc/self/stat").exists()
