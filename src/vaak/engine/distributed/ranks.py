"""The processes of a run, and where they meet. Only this file and sharding.py know torch.distributed.

Ranks meet in two places of a step: ``exchange``, one small message before it, and the sum of gradients after every
backward (exchange.py). A task with a first pass adds up its few sums in between (``sum``). What one decides for all,
rank 0 decides (``run_on_main``). All must see the folder that rank 0 writes. Messages are numbers and JSON: nothing is
unpickled.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from vaak.config.training import TrainingConfig
from vaak.core.errors import RemoteError, UserError, optional_import
from vaak.core.names import require_known
from vaak.engine.distributed.exact import ExactGradients
from vaak.engine.distributed.exchange import (
    BUCKET_BYTES,
    Exchange,
    GradientBuckets,
    OwnGradients,
    StepMessage,
    hash_value,
)
from vaak.engine.distributed.launcher import (
    RankMonitor,
    canonical,
    check_launcher,
    describe_differences,
    own_place,
    pick_device,
    wait_for_an_answer,
)
from vaak.engine.interrupts import LAUNCHED, end_with_launcher

# Bytes of a message that is gathered in one go.
SHORT = 1024
FOREVER = timedelta(days=3650)
START_SECONDS = 300.0
"""How long ranks wait for each other at the start; launchers start them within seconds."""
LAUNCHER_SECONDS = 5.0
"""How long they wait for a launcher's store, which was there before they were started."""
ANSWER_SECONDS = 10.0
"""How often a rank that waits for rank 0 looks whether its machine still answers, and how long that may take."""


class Ranks:
    """This process's place among all, and the few things they do together. With one process, each of them is free.

    ``start_ranks`` joins the processes that torchrun or accelerate launch began; ``close`` leaves them.
    ``before_meeting()`` is called before this one waits for the others, who may still need something of it.
    """

    def __init__(
        self, device: torch.device, rank: int = 0, world_size: int = 1, attendance: RankMonitor | None = None
    ) -> None:
        self.device = device
        self.rank = rank
        self.world_size = world_size
        self.barrier_before_sum = False
        self.bucket_bytes = BUCKET_BYTES
        self.sum_dtype: torch.dtype | None = None
        self.before_meeting: Callable[[], None] = lambda: None
        self._attendance = attendance
        self._exchange = Exchange(self._gather_bytes, self.gather)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def exchange(self, message: StepMessage) -> StepMessage:
        """Return what all ranks count and request before a step. Every rank calls it once a step, and gets the same."""
        return message if self.world_size == 1 else self._exchange(message)

    def gradients(self, parameters: Iterable[torch.nn.Parameter], reduction: str = "float") -> OwnGradients:
        """Return the holder of these parameters' gradients, which adds them over ranks."""
        if reduction == "exact":
            return ExactGradients(parameters, self)
        if self.world_size == 1:
            return OwnGradients(parameters)
        return GradientBuckets(parameters, self, self.bucket_bytes, self.sum_dtype)

    def run_on_main(self, function: Callable[[], Any]) -> Any:
        """Return what ``function``, which rank 0 alone calls, returns there: a JSON value, on every rank.

        A UserError of rank 0 is raised on all. The others wait for as long as rank 0 lives.
        """
        if self.world_size == 1:
            return function()
        said: dict[str, Any] = {}
        failure = None
        if self.is_main:
            try:
                said = {"result": function()}
            except UserError as error:
                failure, said = error, {"error": str(error)}
        # sent also after an error: the others are waiting for it
        said = json.loads(self._tell(json.dumps(said).encode()))
        if failure is not None:
            raise failure
        if "error" in said:
            raise RemoteError(said["error"])
        return said["result"]

    def compare(self, what: str, values: dict[str, Any], advice: str = "") -> None:
        """Raise UserError on every rank, with ranks and keys, where one of them has other values than rank 0.

        ``what`` names the moment; ranks send a hash of the values, and the values only where the hashes differ.
        """
        if self.world_size == 1:
            return
        own = hash_value(canonical(values)).to_bytes(8, "little", signed=True)
        if len(set(self._gather_bytes(own))) == 1:
            return
        differences = describe_differences(self.gather(json.loads(canonical(values))))
        advice = advice or "start all processes with the same files and options"
        raise (UserError if self.is_main else RemoteError)(f"{what}: {differences}: {advice}")

    def any(self, flag: bool) -> bool:
        """Return whether the flag is set on any rank. Every rank must call it equally often."""
        return bool(self.most(flag))

    def most(self, number: int) -> int:
        """Return the largest number of any rank. Every rank must call it equally often."""
        if self.world_size == 1:
            return number
        value = torch.tensor([number], dtype=torch.int32)
        with self._meeting():
            dist.all_reduce(value, op=dist.ReduceOp.MAX)
        return int(value)

    def gather(self, value: Any) -> list[Any]:
        """A JSON value of each rank, in the order of ranks, on every rank."""
        if self.world_size == 1:
            return [value]
        content = json.dumps(value).encode()
        texts = self._gather_bytes(_sized(content, SHORT))
        longest = max(int.from_bytes(text[:8], "little") for text in texts)
        if longest > SHORT:
            texts = self._gather_bytes(_sized(content, longest))
        return [json.loads(text[8 : 8 + int.from_bytes(text[:8], "little")]) for text in texts]

    def _gather_bytes(self, content: bytes) -> list[bytes]:
        """Return as many bytes of each rank, in the order of ranks."""
        mine = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        gathered = torch.empty(self.world_size, len(content), dtype=torch.uint8)
        with self._meeting():
            dist.all_gather(list(gathered.unbind()), mine)
        return [row.tobytes() for row in gathered.numpy()]

    def _tell(self, content: bytes) -> bytes:
        """Rank 0's bytes, on every rank, however long rank 0 takes."""
        length = torch.tensor([len(content)])
        self._broadcast(length)
        text = torch.empty(int(length), dtype=torch.uint8)
        if self.is_main:
            text = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        self._broadcast(text)
        return text.numpy().tobytes()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's values, on every rank. While it waits, it notices signals and a machine that no longer answers."""
        options = dist.BroadcastOptions()
        options.rootRank, options.timeout = 0, FOREVER
        group: Any = dist.group.WORLD
        with self._meeting():
            work, pause, answered = group.broadcast([tensor], options), 0.001, time.monotonic()
            while not work.is_completed():
                # Torch's own wait would keep Python from answering signals.
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
                if time.monotonic() - answered > ANSWER_SECONDS:
                    if not wait_for_an_answer(*_meeting_point(), ANSWER_SECONDS):
                        raise self._rank_0_lost()
                    answered = time.monotonic()
            work.wait()

    def sum(self, values: dict[str, float]) -> dict[str, float]:
        """Values added over ranks, name by name, in the order of ranks."""
        if self.world_size == 1:
            return values
        total: dict[str, float] = {}
        for part in self.gather(values):
            for name, value in part.items():
                total[name] = total.get(name, 0.0) + value
        return total

    def share(self, tensors: list[torch.Tensor], source: int) -> None:
        """Give every rank the values that the rank ``source`` has of some tensors, in place."""
        kinds: dict[tuple[torch.dtype, torch.device], list[list[torch.Tensor]]] = {}
        for tensor in tensors:
            groups = kinds.setdefault((tensor.dtype, tensor.device), [[]])
            if sum(one.nbytes for one in groups[-1]) + tensor.nbytes > self.bucket_bytes and groups[-1]:
                groups.append([])
            groups[-1].append(tensor)
        for group in (group for groups in kinds.values() for group in groups):
            together = torch.cat([tensor.flatten() for tensor in group])
            with self._meeting():
                dist.broadcast(together, source)
            if self.rank != source:
                for tensor, values in zip(group, together.split([one.numel() for one in group]), strict=True):
                    tensor.copy_(values.view_as(tensor))

    def collect(self, tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """On rank 0, the tensors of all ranks by name, on the CPU as its own are; on the others, nothing."""
        every = self.gather(
            [[name, list(one.shape), str(one.dtype).removeprefix("torch.")] for name, one in tensors.items()]
        )
        found = dict(tensors) if self.is_main else {}
        with self._meeting():
            for source in range(1, self.world_size):
                for name, shape, dtype in every[source]:
                    if self.rank == source:
                        dist.send(tensors[name].cpu().contiguous(), 0)
                    elif self.is_main:
                        found[name] = torch.empty(shape, dtype=getattr(torch, dtype))
                        dist.recv(found[name], source)
        return found

    def add_up(self, tensor: torch.Tensor) -> None:
        """Add a tensor over ranks, in place."""
        with self._meeting():
            if self.barrier_before_sum:
                dist.barrier()
            dist.all_reduce(tensor)

    def start_adding_up(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin to add a tensor over ranks, in place; return what waits for the sum."""
        if self.barrier_before_sum:
            self.add_up(tensor)
            return lambda: None
        with self._meeting():
            work = dist.all_reduce(tensor, async_op=True)

        def wait() -> None:
            with self._meeting():
                work.wait()

        return wait

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            with self._meeting():
                dist.barrier()

    def close(self) -> None:
        if self.world_size > 1 and dist.is_initialized():
            dist.destroy_process_group()

    @contextlib.contextmanager
    def _meeting(self) -> Iterator[None]:
        self.before_meeting()
        with self.naming_lost_ranks():
            yield

    @contextlib.contextmanager
    def naming_lost_ranks(self) -> Iterator[None]:
        """Within this context, a connection that breaks because another process ended is a UserError that names it."""
        try:
            yield
        except RuntimeError as error:
            said = str(error)
            if "imed out" in said:
                raise UserError(
                    "another process of the run didn't answer for training.distributed.timeout_minutes: it hangs, or "
                    "its work takes longer; see the other processes' output, and resume with --resume auto"
                ) from error
            if "onnection" not in said:
                raise
            raise self._ranks_lost(self._attendance.lost() if self._attendance else []) from error

    def _ranks_lost(self, lost: list[int]) -> UserError:
        """The message for a broken connection; ``lost`` are the ranks known to have ended."""
        who = self._attendance.describe(lost) if self._attendance and lost else "another process of the run"
        has = "have" if len(lost) > 1 else "has"
        # The launcher says it once for all.
        kind = RemoteError if LAUNCHED in os.environ else UserError
        return kind(f"{who} {has} ended, and so this one (rank {self.rank}); resume with --resume auto")

    def _rank_0_lost(self) -> UserError:
        """The message where rank 0's machine doesn't answer: perhaps only its process ended."""
        lost = self._attendance.lost() if self._attendance else []
        if 0 in lost:
            return self._ranks_lost(lost)
        return UserError(
            f"rank 0's machine ({_meeting_point()[0]}) no longer answers, and so this process ends; resume with "
            "--resume auto"
        )


def _sized(content: bytes, size: int) -> bytes:
    """The content's length in 8 bytes, then the content, padded or truncated to ``size`` bytes."""
    return (len(content).to_bytes(8, "little") + content)[: 8 + size].ljust(8 + size, b"\0")


def _meeting_point() -> tuple[str, int]:
    """Return where the ranks' common store is: at torchrun's on the first machine, or at rank 0."""
    return os.environ.get("MASTER_ADDR", "127.0.0.1"), int(os.environ.get("MASTER_PORT", "29500"))


def start_ranks(config: TrainingConfig) -> Ranks:
    """Join the processes that were started together and pick this one's device.

    Raises UserError if the YAML asks for another number of processes than were started, for a device that isn't
    there, or for something that contradicts accelerate's configuration; and if one of them doesn't start.
    """
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    check_launcher(config, world_size)
    device = pick_device(config.device)
    if world_size == 1:
        return Ranks(device)
    end_with_launcher()
    # gloo stays for tensors on the CPU (messages), also where NCCL adds up gradients
    backend = "gloo"
    if device.type == "cuda":
        device, library = torch.device("cuda", _own_device()), config.distributed.backend or "nccl"
        if library == "nccl" and not dist.is_nccl_available():
            raise UserError(
                "training.distributed.backend: this torch has no NCCL; set it to gloo, which adds up gradients on "
                "the CPU, or install a torch with CUDA (vaak doctor)"
            )
        backend = f"cpu:gloo,cuda:{library}"
        # before the group is joined: NCCL binds to the current device
        torch.cuda.set_device(device)
    ranks = _join(backend, device, timedelta(minutes=config.distributed.timeout_minutes))
    ranks.barrier_before_sum = config.distributed.sync_gradient_barrier
    ranks.sum_dtype = torch.bfloat16 if config.distributed.reduce_dtype == "bf16" else None
    return ranks


_STARTS = itertools.count()
"""Numbers the runs that these processes train one after another, the same on every rank."""


@cache
def _store(address: str, port: int, rank: int, world_size: int, by_launcher: bool) -> Any:
    """The common store of ``world_size`` processes, for as long as this one, of the given ``rank``, lives.

    It is served at ``address`` and ``port`` ``by_launcher``, or else by rank 0.
    """
    return dist.TCPStore(  # type: ignore[attr-defined]  # public, but torch's stubs don't export it
        address,
        port,
        world_size,
        is_master=rank == 0 and not by_launcher,
        timeout=timedelta(seconds=START_SECONDS),
        wait_for_workers=False,
        multi_tenant=True,
    )


def common_word(word: str | None) -> tuple[str, dict[str, Any]]:
    """Return what rank 0 gives as ``word``, on every process that was started with it, and the place of rank 0.

    Raises UserError if the processes don't meet.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    try:
        store = _store(*_meeting_point(), rank, world_size, os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True")
        key = f"word {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        if word is not None:
            store.set(key, json.dumps([word, own_place()]))
        found, place = json.loads(store.get(key))
    except (RuntimeError, ValueError) as error:
        said = str(error).splitlines()[0]
        raise UserError(f"rank {rank} doesn't meet the other processes ({said}); start all of them again") from error
    return str(found), dict(place)


def use_own_device() -> None:
    """Have this process use its own CUDA device, if there are any."""
    if torch.cuda.is_available():
        torch.cuda.set_device(_own_device())


def _own_device() -> int:
    """The number of this process's CUDA device. Raises UserError if its machine has fewer than processes."""
    number, devices = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= devices:
        raise UserError(
            f"rank {os.environ.get('RANK', '0')} has no GPU: {devices} for {number + 1} or more processes of its "
            "machine; start one for each GPU, or set training.device: cpu"
        )
    return number


def _join(backend: str, device: torch.device, timeout: timedelta) -> Ranks:
    """Meet the other processes: first at the store, where one that is missing is named, then all with all."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    address, port = _meeting_point()
    by_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    patience = LAUNCHER_SECONDS if by_launcher else START_SECONDS
    if (by_launcher or rank > 0) and not wait_for_an_answer(address, port, patience):
        host = "the launcher of this process" if by_launcher else "rank 0"
        raise UserError(f"{host} doesn't answer at {address}:{port}, so rank {rank} ends; start all processes again")
    starting = timedelta(seconds=START_SECONDS)
    try:
        # What earlier runs of these processes (of a pipeline) left in the store isn't this one's.
        common = _store(address, port, rank, world_size, by_launcher)
        store = dist.PrefixStore(f"run {next(_STARTS)}", common)  # type: ignore[attr-defined]
        attendance = RankMonitor(store, rank, world_size)
        attendance.wait_for_all(START_SECONDS)
        # Without a device_id: with it, torch's barriers would be NCCL's and wait for the GPU, where gloo's wait for
        # ranks alone; and ranks outside of a gloo group of some (sharding.py's Gathering) would wait in ncclCommSplit
        # for those in it, without end. A first sum opens NCCL's connections, so its errors show here all the same.
        dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=min(starting, timeout))
        if device.type == "cuda":
            dist.all_reduce(torch.zeros(1, device=device))
    except RuntimeError as error:
        if "EADDRINUSE" in str(error):
            raise UserError(
                f"port {port} is used by another program; give a free one (torchrun --master-port, or MASTER_PORT)"
            ) from error
        raise UserError(
            f"rank {rank} lost the other processes at {address}:{port} while they were starting "
            f"({str(error).splitlines()[0]}); start all of them again"
        ) from error
    dist.distributed_c10d._set_pg_timeout(timeout)
    return Ranks(device, rank, world_size, attendance)


def accelerate_tracker(name: str) -> Any:
    """Return the class of a tracker of accelerate. Raises UserError for one that is unknown or not installed."""
    with optional_import(f"training.logging.trackers: {name} requires accelerate", "accelerate"):
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    require_known([name], LOGGER_TYPE_TO_CLASS, "training.logging.trackers: unknown tracker", error=UserError)
    if name not in [str(getattr(kind, "value", kind)) for kind in get_available_trackers()]:
        raise UserError(f"training.logging.trackers: {name} isn't installed; pip install it or remove it")
    return LOGGER_TYPE_TO_CLASS[name]


SLOW_RANK_SECONDS = 10.0
"""A network file system may take so long to show other machines a new file."""


def require_shared(ranks: Ranks, folder: Path) -> None:
    """Raise UserError on every rank, with those that don't see it, where rank 0's folder isn't also theirs."""
    if ranks.world_size == 1:
        return
    witness = folder / ranks.run_on_main(lambda: _leave_witness(folder))
    seen = ranks.is_main or _appears(witness)
    told = ranks.gather(None if seen else f"rank {ranks.rank} on {socket.gethostname()}")
    if ranks.is_main:
        with contextlib.suppress(OSError):
            witness.unlink()
    if blind := [said for said in told if said]:
        verb = "doesn't" if len(blind) == 1 else "don't"
        raise (UserError if ranks.is_main else RemoteError)(
            f"{', '.join(blind)} {verb} see {folder} as rank 0 writes it: the run directory must be the same for all "
            "processes, on storage that all machines share; give such a run_dir="
        )


def _leave_witness(folder: Path) -> str:
    """The name of a file that was never looked up, so that no cache has it as missing."""
    name = f".seen-by-all-{os.urandom(8).hex()}"
    try:
        (folder / name).touch()
    except OSError as error:
        raise UserError(
            f"the run directory {folder} can't be written: {error.strerror}; give another run_dir="
        ) from error
    return name


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + SLOW_RANK_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True
