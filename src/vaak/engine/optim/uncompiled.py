"""torch without its compiler: optimizers and the backward pass, the same numbers to the bit.

torch imports its compiler (``torch._dynamo``, and sympy with it: 70 MB, and a second or more of the start) when a
parameter group is added, a step is taken, or a backward begins with gradients that are given: a program that is being
compiled must treat these apart. Vaak compiles models, on request, and neither optimizers nor the backward's call. So
what torch has wrapped is called here as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from inspect import unwrap
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer, optimizer


@cache
def uncompiled(rule: Any) -> Any:
    """The optimizer class ``rule`` with methods that don't import the compiler; gradients are off in its step, too.

    Hooks and the profiler see its steps. Where there are none, a step skips what torch does for them, which takes a
    quarter of the time of a small model's update.
    """
    update = torch.no_grad()(unwrap(rule.step))
    watched = Optimizer.profile_hook_step(update)

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        return (watched if _is_watched(self) else update)(self, closure)

    step.hooked = True  # type: ignore[attr-defined]  # or torch would wrap it once more
    methods = {"__module__": rule.__module__, "add_param_group": unwrap(rule.add_param_group), "step": step}
    return type(rule.__name__, (rule,), methods)


def _is_watched(rule: Any) -> bool:
    """Whether a hook or the profiler wants to know of an optimizer's steps."""
    own = rule._optimizer_step_pre_hooks or rule._optimizer_step_post_hooks
    of_all = optimizer._global_optimizer_pre_hooks or optimizer._global_optimizer_post_hooks
    return bool(own or of_all or torch._C._autograd._profiler_enabled())


def backward(roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """``torch.autograd.backward``, whose checks take as long as the backward of a tiny model.

    It adds to each leaf's ``grad`` what it has to do with ``roots``; ``gradients`` are those of the roots, alike in
    shape and dtype.
    """
    torch.autograd.Variable._execution_engine.run_backward(
        tuple(roots), tuple(gradients), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
