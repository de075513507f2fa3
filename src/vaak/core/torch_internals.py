"""torch's private names that a training step uses, in this file only, each with a public fallback.

Tried with torch 2.13 (``TRIED_WITH``). Where a torch lacks one of these names, or it works otherwise there, torch's
public functions do the same: slower, the same numbers to the bit.

torch imports its compiler (``torch._dynamo``: 70 MB, a second or more of the start) when a parameter group is added, a
step is taken, or a backward begins with given gradients. Vaak compiles models, on request, and neither of these: the
functions that torch wraps are called unwrapped here (``uncompiled``, ``backward``).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from inspect import unwrap
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer
from torch.utils import _python_dispatch

TRIED_WITH = "2.13"
LONGEST_WAIT_SECONDS = 1.0
"""For a thread that writes to a worker: one that has been killed may have left a pipe full."""


def unwatched() -> contextlib.AbstractContextManager[Any]:
    """Within this context, modes that watch all operations, as a counter does, don't (with public names they do)."""
    disable: Any = getattr(_python_dispatch, "_disable_current_modes", contextlib.nullcontext)
    return disable()  # type: ignore[no-any-return]


def is_watching(mode: Any) -> bool:
    """Return whether a mode that watches operations, and was entered, isn't suspended by ``unwatched``."""
    current = getattr(_python_dispatch, "_get_current_dispatch_mode_stack", lambda: [mode])
    return mode in current()


@cache
def uncompiled(rule: Any) -> Any:
    """Return the optimizer class ``rule`` with methods that don't import the compiler; gradients are off in its step.

    Hooks and the profiler see its steps. Where there are none, a step skips what torch does for them, which takes a
    quarter of the time of a small model's update. Return ``rule`` itself where torch has its hooks elsewhere.
    """
    # whether hooks are kept, and the profiler's state, where ``step`` looks
    own = {"_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"} <= set(Optimizer.__annotations__)
    of_all = hasattr(torch_optimizer, "_global_optimizer_pre_hooks")
    of_all = of_all and hasattr(torch_optimizer, "_global_optimizer_post_hooks")
    profiler = hasattr(getattr(torch._C, "_autograd", None), "_profiler_enabled")
    if not (own and of_all and profiler and hasattr(Optimizer, "profile_hook_step")):
        return rule
    update = torch.no_grad()(unwrap(rule.step))
    watched = Optimizer.profile_hook_step(update)

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        own = self._optimizer_step_pre_hooks or self._optimizer_step_post_hooks
        of_all = torch_optimizer._global_optimizer_pre_hooks or torch_optimizer._global_optimizer_post_hooks
        is_watched = own or of_all or torch._C._autograd._profiler_enabled()
        return (watched if is_watched else update)(self, closure)

    step.hooked = True  # type: ignore[attr-defined]  # or torch would wrap it once more
    methods = {"__module__": rule.__module__, "add_param_group": unwrap(rule.add_param_group), "step": step}
    return type(rule.__name__, (rule,), methods)


def constant_when_compiled(function: Any) -> Any:
    """``torch.compiler.assume_constant_result``: torch.compile takes the function's result as a constant.

    torch imports its compiler to set this one attribute, which every earlier and later torch ignores or reads.
    """
    function._dynamo_marked_constant = True
    return function


def is_fake(x: Tensor) -> bool:
    """Return whether a tensor has a shape and no numbers; none is, where nothing has imported torch's fake tensors."""
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(x, module.FakeTensor)


def backward(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """``torch.autograd.backward``, whose checks take as long as the backward of a tiny model.

    It adds to each leaf's ``grad`` what it has to do with ``roots``; ``gradients`` are those of the roots, alike in
    shape and dtype.
    """
    (_run_engine if _engine_is_known() else torch.autograd.backward)(tuple(roots), tuple(gradients))


def _run_engine(roots: tuple[Tensor, ...], gradients: tuple[Tensor, ...]) -> None:
    torch.autograd.Variable._execution_engine.run_backward(
        roots, gradients, False, False, (), allow_unreachable=True, accumulate_grad=True
    )


@cache
def _engine_is_known() -> bool:
    """Return whether the engine takes what ``_run_engine`` gives it, found by one number when it is first needed."""
    number = torch.zeros((), requires_grad=True)
    with contextlib.suppress(AttributeError, TypeError), torch.enable_grad():
        _run_engine((3 * number,), (torch.ones(()),))
    return number.grad is not None and number.grad.item() == 3


def iterate_with_workers(loader: Any) -> tuple[Iterator[Any], list[BaseProcess]]:
    """Begin to iterate over a DataLoader; return the iterator and the processes that it started."""
    before = set(multiprocessing.active_children())
    try:
        batches = iter(loader)
    except Exception as error:
        _end_half_made(error)
        raise
    started = getattr(batches, "_workers", None)
    if started is None:
        started = [process for process in multiprocessing.active_children() if process not in before]
    return batches, list(started)


def _end_half_made(error: Exception) -> None:
    """End the processes of an iterator that failed while it was made, and keep it from failing again when it is freed.

    Only the error's frames have it.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        half_made: Any = frame.f_locals.get("self")
        if hasattr(half_made, "_shutdown_workers"):
            for worker in getattr(half_made, "_workers", ()):
                with contextlib.suppress(AssertionError):
                    # One that wasn't started.
                    worker.kill()
            # It has nothing left to do.
            half_made._shutdown = True


def end_workers(batches: Iterator[Any], workers: Collection[BaseProcess]) -> None:
    """End a loader's processes, at once."""
    if hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()
        # Their threads write to the workers, and free locks when they end. If Python ended meanwhile, its tracker of
        # semaphores would warn of one that had gone.
        for queue in getattr(batches, "_index_queues", ()):
            thread = getattr(queue, "_thread", None)
            if thread is not None:
                thread.join(LONGEST_WAIT_SECONDS)
        return
    for worker in workers:
        # Workers ignore SIGTERM.
        worker.kill()
        worker.join()


def terminate_by_kill(worker: BaseProcess) -> None:
    """Have ``terminate``, by which torch and Python's exit end a worker, kill it: workers ignore SIGTERM."""
    process: Any = getattr(worker, "_popen", worker)
    process.terminate = process.kill


def require_workers_alive(workers: Collection[BaseProcess]) -> None:
    """Raise RuntimeError, which begins with "DataLoader worker", where one of them was killed or failed."""
    check = getattr(torch._C, "_error_if_any_worker_fails", None)
    if check is not None:
        check()
        return
    for worker in workers:
        if worker.exitcode:
            raise RuntimeError(f"DataLoader worker (pid {worker.pid}) exited unexpectedly with code {worker.exitcode}")
