"""A CUDA device on a machine without one: tensors say ``cuda:0``, and the CPU computes their numbers.

    with plugged_in(build(folder)) as device:           # from here on, torch has a GPU
        ...
        device.waits()                                  # where the program waited for it, with file and line

What a GPU refuses is refused: tensors of two devices in one operator, operators without a kernel for CUDA (or for
these numbers), under ``torch.use_deterministic_algorithms`` those that aren't repeatable, and more memory than there
is. Noted are the calls in which the program waits for the device, and float64, which most GPUs compute slowly.
A copy to page-locked memory that nobody waits for isn't there: it comes when the program waits, as late as on a GPU
that is busy (``late``; or at once, as on an idle one).

Processes that have one each add up over gloo, with which torch's ``fully_shard`` works, too.

It doesn't show: speed, streams, the rounding of CUDA's kernels, several devices of a process, NCCL. cuDNN, cuBLAS and
fused attention are taken to be absent, so attention is what torch computes without them.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._ops import OpOverload

import vaak
from mock_cuda import operators
from mock_cuda.graphs import Graph

SOURCE = Path(__file__).with_name("device.cpp")
OURS = str(Path(vaak.__file__).parent)
NAME = "NVIDIA H100 80GB HBM3"
MEMORY = 80 << 30


def build(folder: Path) -> Path:
    """Return the compiled device, made in ``folder`` once for each torch. Raises FileNotFoundError without a compiler.

    Raises RuntimeError where it can't be compiled.
    """
    key = hashlib.sha256(f"{torch.__version__} {sys.platform}".encode() + SOURCE.read_bytes()).hexdigest()[:16]
    made = folder / f"mock-cuda-{key}.so"
    if made.exists():
        return made
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    if compiler is None:
        raise FileNotFoundError("there is no C++ compiler (c++, g++, clang++)")
    home = Path(torch.__file__).parent
    includes = [f"-I{home / 'include'}", f"-I{home / 'include' / 'torch' / 'csrc' / 'api' / 'include'}"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    command = [compiler, "-shared", "-fPIC", "-std=c++20", "-O0", abi, *includes, str(SOURCE), f"-L{home / 'lib'}"]
    unfinished = made.with_suffix(".unfinished")
    ended = subprocess.run(
        [*command, "-ltorch_cpu", "-lc10", "-o", str(unfinished)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        raise RuntimeError(f"{compiler} can't compile {SOURCE}:\n{ended.stderr[-4000:]}")
    unfinished.rename(made)
    return made


def _softmax(operator: OpOverload, x: Tensor, dim: int, half_to_float: bool, **out: Tensor) -> Tensor:
    result: Tensor = operator(x.float() if half_to_float else x, dim, False, **out)
    return result


def _softmax_backward(
    operator: OpOverload, gradient: Tensor, y: Tensor, dim: int, dtype: torch.dtype, **out: Tensor
) -> Tensor:
    ((name, result),) = out.items()
    found = operator(gradient, y, dim, y.dtype, **{name: torch.empty(0, dtype=y.dtype)})
    return result.resize_(found.shape).copy_(found)


def _lstm_cell(
    _: OpOverload, inputs: Tensor, hidden: Tensor, cell: Tensor, *biases: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    gates = torch.stack([inputs, hidden, *(one.expand_as(inputs) for one in biases if one is not None)]).sum(0)
    write, keep, new, show = gates.chunk(4, 1)
    write, keep, new, show = write.sigmoid(), keep.sigmoid(), new.tanh(), show.sigmoid()
    after = keep * cell + write * new
    return show * after.tanh(), after, torch.cat([write, keep, new, show], 1)


def _lstm_cell_backward(
    _: OpOverload,
    of_hidden: Tensor | None,
    of_cell: Tensor | None,
    before: Tensor,
    after: Tensor,
    gates: Tensor,
    has_bias: bool,
) -> tuple[Tensor, Tensor, Tensor | None]:
    write, keep, new, show = gates.chunk(4, 1)
    of_hidden = torch.zeros_like(after) if of_hidden is None else of_hidden
    inner = of_hidden * show * (1 - after.tanh().square()) + (0.0 if of_cell is None else of_cell)
    slopes = (write * (1 - write), keep * (1 - keep), 1 - new.square(), show * (1 - show))
    sides = (inner * new, inner * before, inner * write, of_hidden * after.tanh())
    of_gates = torch.cat([side * slope for side, slope in zip(sides, slopes, strict=True)], 1)
    return of_gates, inner * keep, of_gates.sum(0) if has_bias else None


def _histogram(operator: OpOverload, x: Tensor, *given: Any) -> Tensor:
    found: Tensor = operator(x if x.is_floating_point() else x.double(), *given)
    return found.to(x.dtype)


SPECIAL: dict[str, Callable[..., Any]] = {
    "aten::histc": _histogram,
    "aten::_softmax": _softmax,
    "aten::_log_softmax": _softmax,
    "aten::_softmax_backward_data": _softmax_backward,
    "aten::_log_softmax_backward_data": _softmax_backward,
    "aten::_thnn_fused_lstm_cell": _lstm_cell,
    "aten::_thnn_fused_lstm_cell_backward_impl": _lstm_cell_backward,
}
"""Operators that CUDA alone has, or with other types: softmax may have 32 bits on one side and 16 on the other."""


@dataclass(frozen=True)
class Note:
    """Something to know about, ``waits`` or ``float64``: in which call, and where in Vaak's code, innermost first."""

    kind: str
    what: str
    where: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}: {' < '.join(self.where)}"


@dataclass
class MockDevice:
    """A device that records in ``notes`` everything that happens on it.

    Copies to page-locked memory that don't block are made where the program waits for them, or at once unless ``late``.
    """

    notes: list[Note] = field(default_factory=list)
    late: bool = True
    copies_begun: int = 0
    pending: deque[Callable[[], Any]] = field(default_factory=deque)

    def waits(self) -> list[Note]:
        """Return each time that the program waited for the device."""
        return [note for note in self.notes if note.kind == "waits"]

    def note(self, kind: str, what: str) -> None:
        """Note something of the operator that is being called. One that waits does so for everything before it."""
        if kind == "waits":
            self.finish(self.copies_begun)
        self.notes.append(Note(kind, what, _where()))

    def finish(self, number: int) -> None:
        """Make the first copies, this number of those that were ever begun."""
        while self.pending and self.copies_begun - len(self.pending) < number:
            self.pending.popleft()()

    def limit_memory(self, size: int) -> None:
        """Let memory run out beyond this number of bytes."""
        torch.ops.mock_cuda.set_limit(size)

    def call(self, operator: OpOverload, *args: Any, **kwargs: Any) -> Any:
        """Call an operator with tensors of the device, as CUDA would."""
        schema = operator._schema
        args = tuple(  # a number in the place of a tensor comes as a number
            torch.tensor(value) if isinstance(value, int | float) and str(one.type) == "Tensor" else value
            for one, value in zip(schema.arguments, args, strict=False)
        )
        self._check(operator, args, kwargs)
        results = [one.name for one in schema.arguments if one.is_out]
        fresh = {name: torch.empty(0, dtype=kwargs[name].dtype) for name in results}
        special = SPECIAL.get(schema.name)
        compute = operator if special is None else partial(special, operator)
        found = compute(*_mapped(args, _on_host), **{**_mapped(kwargs, _on_host), **fresh})
        for name in results:  # an argument ``out`` may have to be resized
            kwargs[name].resize_(fresh[name].shape)
            _on_host(kwargs[name]).copy_(fresh[name])
        if not any(one.alias_info is not None and one.alias_info.is_write for one in schema.returns):
            return _mapped(found, _on_device)
        given = operators.named(operator, args, kwargs)
        changed = [given[one.name] for one in schema.arguments if one.alias_info and one.alias_info.is_write]
        return changed[0] if len(changed) == 1 else tuple(changed)

    def copy(self, to: Tensor, source: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy ``source`` into ``to``, at least one of which is on the device."""
        if to.device != source.device and to.numel():
            one = to if to.device.type == "cpu" else source
            kind = f"{'pinned' if one.is_pinned() else 'pageable'} memory{'' if non_blocking else ', blocking'}"
            if not (non_blocking and one.is_pinned()):
                self.note("waits", f"copy {'to' if one is to else 'from'} the CPU ({kind})")
        if to.dtype == torch.float64 and to.is_cuda:
            self.note("float64", "copy")
        if self.late and non_blocking and source.is_cuda and to.device.type == "cpu" and to.is_pinned():
            now = _on_host(source).clone()  # what the program has the device do next comes after the copy
            self.pending.append(lambda: to.copy_(now))
            self.copies_begun += 1
            return to
        if source.device.type == "cpu":
            self.finish(self.copies_begun)  # the source may be what they copy to
        _on_host(to).copy_(_on_host(source))
        return to

    def collect(self, operator: OpOverload, *args: Any) -> Any:
        """Call an operator of torch.distributed, as NCCL would: only a barrier waits, but here it is gloo's."""
        if operator._schema.name == "c10d::barrier":
            self.note("waits", "barrier")
        return operator(*_mapped(args, _on_host))

    def _check(self, operator: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        name = operator._schema.name.removeprefix("aten::")
        tensors = [*_tensors(args), *_tensors(kwargs.values())]
        if not operators.has_kernel(operator):
            raise NotImplementedError(f"Could not run 'aten::{name}' with arguments from the 'CUDA' backend.")
        own = next((one for one in tensors if one.is_cuda), None)
        if own is not None:
            _require_one_device(operator, name, tensors)
            if name in operators.WITHOUT_INTEGERS and not (own.is_floating_point() or own.is_complex()):
                raise RuntimeError(f'"{name}_cuda" not implemented for {own.dtype}')
        if kwargs.get("generator") is not None:
            raise RuntimeError("Expected a 'cuda' device type for generator but found 'cpu'")
        strict = (
            torch.are_deterministic_algorithms_enabled() and not torch.is_deterministic_algorithms_warn_only_enabled()
        )
        if strict and not operators.is_deterministic(operator, args, kwargs):
            raise RuntimeError(
                f"{name}_cuda does not have a deterministic implementation, but you set "
                "'torch.use_deterministic_algorithms(True)'"
            )
        if any(one.dtype == torch.float64 and one.ndim for one in tensors):
            self.note("float64", name)
        why = operators.why_it_waits(operator, args, kwargs)
        if why is not None:
            self.note("waits", f"{name}, {why}")


def _require_one_device(operator: OpOverload, name: str, tensors: list[Tensor]) -> None:
    lowest = 1 if operators.takes_numbers_of_the_cpu(operator) else 0
    if name not in operators.OF_BOTH_DEVICES and any(not one.is_cuda and one.ndim >= lowest for one in tensors):
        shapes = ", ".join(f"{tuple(one.shape)} on {one.device}" for one in tensors)
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {shapes}")


def _tensors(values: Any) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_mapped(one, change) for one in value)
    if isinstance(value, dict):
        return {name: _mapped(one, change) for name, one in value.items()}
    return change(value)


def _on_host(value: Any) -> Any:
    if isinstance(value, Tensor):
        return torch.ops.mock_cuda.host(value) if value.is_cuda else value
    return torch.device("cpu") if isinstance(value, torch.device) else value


def _on_device(value: Any) -> Any:
    return torch.ops.mock_cuda.adopt(value) if isinstance(value, Tensor) else value


def _where(depth: int = 4) -> tuple[str, ...]:
    """Return the innermost places of Vaak's code that are running, or those of the caller where there are none."""
    ours: list[str] = []
    others: list[str] = []
    frame = sys._getframe(2)
    while frame is not None and len(ours) < depth:
        file, line = frame.f_code.co_filename, frame.f_lineno
        if file.startswith(OURS):
            ours.append(f"{file.removeprefix(OURS)[1:]}:{line}")
        elif "/torch/" not in file and file != __file__:
            others.append(f"{file}:{line}")
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(ours or others[:depth])


@contextlib.contextmanager
def real() -> Iterator[MockDevice]:
    """Within this context, the waits for the GPU that this machine has are noted, as far as torch sees them."""
    device = MockDevice()

    def note(message: Warning | str, *_: Any, **__: Any) -> None:
        if "synchronizing CUDA operation" in str(message):
            device.note("waits", str(message).split(" (Triggered")[0])

    with warnings.catch_warnings(), patch.object(warnings, "showwarning", note):
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield device
        finally:
            torch.cuda.set_sync_debug_mode("default")


@contextlib.contextmanager
def plugged_in(library: Path, memory: int = MEMORY) -> Iterator[MockDevice]:
    """Within this context, torch has a CUDA device, with ``memory`` bytes."""
    torch.ops.load_library(library)
    device, threads = MockDevice(), torch.autograd.is_multithreading_enabled()
    aten, everything, c10d = (torch.library.Library(name, "IMPL") for name in ("aten", "_", "c10d"))
    deterministic = torch.get_deterministic_debug_mode()
    try:
        everything.fallback(device.call, "CUDA")
        aten.impl("copy_", device.copy, "CUDA")
        for name in WITH_COMPOSITES:
            operator = getattr(torch.ops.aten, name).default
            aten.impl(operator, partial(device.call, operator), "CUDA")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own kernels for CUDA ask for a backend that it doesn't have
            for name in COLLECTIVES:
                operator = getattr(torch.ops.c10d, name).default
                c10d.impl(operator, partial(device.collect, operator), "CUDA", allow_override=True)
        torch.ops.mock_cuda.plug_in()
        device.limit_memory(memory)
        torch.autograd.set_multithreading_enabled(False)  # a backward pass runs where it is called, in its stack
        with _of_cuda(device, memory):
            yield device
    finally:
        torch.autograd.set_multithreading_enabled(threads)
        torch.set_deterministic_debug_mode(deterministic)
        torch.ops.mock_cuda.unplug()
        aten._destroy()
        everything._destroy()
        c10d._destroy()


WITH_COMPOSITES = ("convolution", "convolution_backward", "silu_backward")
"""Operators that CUDA has kernels for, and that torch puts together from others on a device that it doesn't know."""
COLLECTIVES = (
    *("allreduce_", "broadcast_", "allgather_", "_allgather_base_", "_reduce_scatter_base_", "scatter_"),
    *("send", "recv_", "barrier"),
)


class Event:
    """A mark in the device's work. All but copies to page-locked memory is done as soon as the program comes to it."""

    device: MockDevice

    def __init__(self, enable_timing: bool = False) -> None:
        self.milliseconds, self.copies_before = 0.0, 0

    def record(self, stream: object = None) -> Event:
        self.milliseconds, self.copies_before = 1000 * time.perf_counter(), self.device.copies_begun
        return self

    def wait(self, stream: object = None) -> None:
        """Have a stream wait: there is one, in which everything before is done."""

    def query(self) -> bool:
        self.device.finish(self.copies_before)
        return True

    def synchronize(self) -> None:
        self.device.finish(self.copies_before)
        self.device.notes.append(Note("waits", "torch.cuda.Event.synchronize", _where()))

    def elapsed_time(self, end: Event) -> float:
        return end.milliseconds - self.milliseconds


class Stream:
    """One of the device's streams, all of which work in step with the program."""

    def __init__(self, device: object = None, priority: int = 0) -> None: ...

    def wait_stream(self, stream: Stream) -> None: ...

    def wait_event(self, event: Event) -> None: ...

    def record_event(self, event: Event | None = None) -> Event:
        return (event or torch.cuda.Event()).record()


def _resize_storage(storage: torch.UntypedStorage, size: int) -> torch.UntypedStorage:
    """Resize a storage, of the device or not."""
    if storage.device.type != "cuda":
        return RESIZE(storage, size)  # type: ignore[no-any-return]
    torch.ops.mock_cuda.resize_storage(torch.empty(0, dtype=torch.uint8, device="cuda").set_(storage), size)
    return storage


RESIZE = torch.UntypedStorage.resize_


def _of_cuda(device: MockDevice, memory: int) -> contextlib.AbstractContextManager[Any]:
    """Within this context, ``torch.cuda`` knows the device. Its draws are the CPU's: both are seeded alike."""
    own = torch.ops.mock_cuda
    about = {"name": NAME, "total_memory": memory, "major": 9, "minor": 0, "multi_processor_count": 132}
    generator = torch.default_generator
    names: dict[str, Any] = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda index: None,
        "device": lambda index: contextlib.nullcontext(),
        "get_device_name": lambda index=None: NAME,
        "get_device_properties": lambda index=None: SimpleNamespace(**about),
        "get_device_capability": lambda index=None: (9, 0),
        "get_arch_list": lambda: ["sm_90"],
        "is_bf16_supported": lambda including_emulation=True: True,
        "is_current_stream_capturing": lambda: False,
        "utilization": lambda index=None: 50,
        "Event": type("Event", (Event,), {"device": device}),
        "Stream": Stream,
        "current_stream": lambda index=None: Stream(),
        "stream": lambda stream: contextlib.nullcontext(),
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: (0, 1),
        "synchronize": lambda index=None: device.note("waits", "torch.cuda.synchronize"),
        "empty_cache": lambda: None,
        "mem_get_info": lambda index=None: (memory - own.used(), memory),
        "memory_allocated": lambda index=None: own.used(),
        "max_memory_allocated": lambda index=None: own.peak(),
        "memory_stats": lambda index=None: {
            "allocated_bytes.all.peak": own.peak(),
            "reserved_bytes.all.current": own.used(),
        },
        "reset_peak_memory_stats": lambda index=None: own.reset_peak(),
        "host_memory_stats": lambda: {  # as if torch gave page-locked memory back as soon as it is freed
            "allocated_bytes.current": own.pinned(),
            "allocated_bytes.peak": own.pinned_peak(),
        },
        "reset_peak_host_memory_stats": own.reset_pinned_peak,
        "default_generators": (generator,),
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "get_rng_state": lambda index=None: generator.get_state(),
        "set_rng_state": lambda state, index=None: generator.set_state(state),
    }
    stack = contextlib.ExitStack()
    stack.enter_context(patch.multiple(torch.cuda, **names))
    stack.enter_context(patch.object(torch.UntypedStorage, "resize_", _resize_storage))
    stack.enter_context(patch.object(torch.Tensor, "record_stream", lambda tensor, stream: None))
    stack.enter_context(patch.object(torch.version, "cuda", "13.0"))
    stack.enter_context(patch.object(torch.backends.cudnn, "is_acceptable", lambda tensor: False))
    return stack
