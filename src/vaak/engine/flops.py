"""How many floating-point operations a model takes to train on a batch, and how many a device could do in that time.

Model FLOPs utilisation (MFU) is their ratio. A product of matrices of n × k and k × m takes 2nkm operations. A training
step of a transformer so takes about 6 for each parameter and token, and 12 · layers · width · length a token for
attention. Masked places count as if they were visible.

Source: Chowdhery et al. 2022, "PaLM", appendix B. Differs: recomputation by gradient checkpointing counts too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from vaak.core.batch import Batch
from vaak.core.task import Task
from vaak.data.loader import training_addresses
from vaak.engine.callback import ForwardWork
from vaak.engine.gradient import list_objectives, list_parameters
from vaak.engine.memory import is_out_of_memory
from vaak.engine.precision import Precision, keeping_generators, uses_tf32
from vaak.engine.state import Position
from vaak.engine.training_data import TrainingData

log = logging.getLogger("vaak")

UNITS_OF_WORK = ("token", "frame")
"""The unit that operations are proportional to, where a batch counts it; else its most frequent unit."""


@dataclass(frozen=True)
class Peak:
    """Dense TFLOP/s of a GPU without sparsity; None if its tensor cores don't support the type."""

    fp32: float
    tf32: float | None
    fp16: float
    bf16: float | None


PEAKS: dict[str, Peak] = {
    "V100-PCIE-*": Peak(14.0, None, 112.0, None),
    "V100-SXM2-*": Peak(15.7, None, 125.0, None),
    "V100S-PCIE-*": Peak(16.4, None, 130.0, None),
    "T4": Peak(8.1, None, 65.0, None),
    "A10": Peak(31.2, 62.5, 125.0, 125.0),
    "A100-*GB": Peak(19.5, 156.0, 312.0, 312.0),
    "A100 80GB PCIe": Peak(19.5, 156.0, 312.0, 312.0),
    "L4": Peak(30.3, 60.0, 121.0, 121.0),
    "L40S": Peak(91.6, 183.0, 362.0, 362.0),
    "RTX 3090": Peak(35.6, 35.6, 71.0, 71.0),
    "RTX 4090": Peak(82.6, 82.6, 165.2, 165.2),
    "H100 PCIe": Peak(51.0, 378.0, 756.0, 756.0),
    "H100 NVL": Peak(60.0, 417.5, 835.5, 835.5),
    "H100 80GB HBM3": Peak(67.0, 494.7, 989.4, 989.4),
    "H200 NVL": Peak(60.0, 417.5, 835.5, 835.5),
    "H200": Peak(67.0, 494.7, 989.4, 989.4),
    "B200": Peak(75.0, 1100.0, 2250.0, 2250.0),
}
"""Throughputs by CUDA's name of a GPU, without its makers; ``*`` is anything. A part of a GPU (MIG) isn't known.

Source: NVIDIA's data sheets, with half of what they give for sparse matrices; for the RTX 3090 and 4090 the white
papers of GA102 and AD102, tensor cores that add up in fp32.
"""


def peak_flops(device_name: str, precision: str, tf32: bool) -> float | None:
    """Return what a GPU of this name could do at most, operations a second; None if that isn't known.

    ``precision`` is "no", bf16 or fp16; with "no", matrices are multiplied in TF32 or in fp32.

    >>> peak_flops("NVIDIA A100-SXM4-80GB", "bf16", tf32=False)
    312000000000000.0
    >>> peak_flops("NVIDIA A10G", "bf16", tf32=False) is None
    True
    """
    name = device_name.removeprefix("NVIDIA ").removeprefix("Tesla ").removeprefix("GeForce ")
    peak = next((peak for pattern, peak in PEAKS.items() if fnmatchcase(name, pattern)), None)
    if peak is None:
        return None
    by_precision = {"no": (peak.tf32 if tf32 else None) or peak.fp32, "bf16": peak.bf16, "fp16": peak.fp16}
    tera = by_precision[precision]
    return None if tera is None else tera * 1e12


def count_work(
    task: Task, model: nn.Module, precision: Precision, data: TrainingData, position: Position, peak: float | None
) -> ForwardWork | None:
    """Return the work of a run, counted once on its next microbatch; ``peak`` in TFLOP/s, None looks the device up.

    None, with a log line, where the device's peak isn't known or that microbatch doesn't fit in memory.

    The next microbatch of ``task`` is that of ``data`` at ``position``; ``model`` computes it in ``precision``.
    """
    device = precision.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    known = peak_flops(name, precision.name, uses_tf32(data.config, device))
    flops_per_second = 1e12 * peak if peak else known
    if flops_per_second is None:
        log.info("profiling: the peak of this device (%s) isn't known, so MFU is left out", name)
        return None
    try:
        places = {"step": position.step, "epoch": position.epoch, "place": position.place}
        address = next(training_addresses(data.planner, 1, **places, rank=0, world_size=1))
        with keeping_generators(data.ranks.device):
            # None where nothing in it can be read.
            batch = data.reader[address].batch
        flops = count_flops(task, model, batch, precision) if batch else None
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        batch = None
    if batch is None or flops is None:
        log.info("profiling: the next microbatch can't be run whole, so MFU is left out")
        return None
    counts = batch.totals()
    unit = main_unit(counts)
    return ForwardWork(unit, flops / counts[unit] / (flops_per_second * data.ranks.world_size))


def main_unit(counts: dict[str, float]) -> str:
    """Return the unit that operations are proportional to, of those that a batch counts."""
    return next((unit for unit in UNITS_OF_WORK if counts.get(unit)), max(counts, key=lambda unit: counts[unit]))


def count_flops(task: Task, model: nn.Module, batch: Batch, precision: Precision) -> int:
    """Operations of one forward and backward pass over a batch; the batch may be on another device.

    Weights, gradients, buffers, the model's mode and all generators don't change. ``model`` is the one that
    isn't compiled: operations that a compiler has fused can't be counted.
    """
    from torch.utils.flop_counter import FlopCounterMode

    modules = [model, *task.loss_modules().values()]
    # Restored below: a forward pass in training mode may write them (BatchNorm), and this one isn't a step.
    buffers = [(buffer, buffer.clone()) for module in modules for buffer in module.buffers()]
    counter = FlopCounterMode(display=False, custom_mapping=_attention_formulas())
    counter.mod_tracker = _OneModule()  # type: ignore[assignment]
    was_training = model.training
    with keeping_generators(precision.device):
        model.train()
        try:
            with counter:
                for objective in list_objectives(task, model):
                    with precision.autocast():
                        terms = objective.losses(model, batch.to(precision.device))
                    loss = torch.stack([term.total.float() for term in terms.values()]).sum()
                    trained = list_parameters(objective, model)
                    with _dropping_gradients(trained):
                        loss.backward(inputs=trained)
        finally:
            model.train(was_training)
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)
    return int(counter.get_total_flops())


@contextlib.contextmanager
def _dropping_gradients(parameters: Sequence[nn.Parameter]) -> Iterator[None]:
    """Within this context, a backward pass gives a parameter its gradient and takes it away: never are there two.

    A process that has a part of a model has no memory for the gradients of all.
    """
    before = [parameter.grad for parameter in parameters]
    hooks = [parameter.register_post_accumulate_grad_hook(_drop) for parameter in parameters]
    try:
        for parameter in parameters:
            parameter.grad = None
        yield
    finally:
        for parameter, hook, gradient in zip(parameters, hooks, before, strict=True):
            hook.remove()
            parameter.grad = gradient


def _drop(parameter: torch.Tensor) -> None:
    parameter.grad = None


class _OneModule:
    """Stands for torch's ModuleTracker: all operations are the model's, and no module gets hooks.

    Its hooks fail in ``autograd.grad`` where a module's input is a parameter, as that of weight normalisation is.
    """

    parents = frozenset({"Global"})

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        pass


def _attention_formulas() -> dict[Any, Callable[..., int]]:
    """Attention by what it is, whichever kernel does it: the CPU's kernels, of which torch's counter doesn't know, and
    backward passes without the scores that they compute again."""
    from torch.utils.flop_counter import sdpa_flop_count

    def forward(query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return int(sdpa_flop_count(query, key, value))

    def backward(gradient: Any, query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
        """Operations for the shapes of ``query``, ``key`` and ``value`` alone; not of ``gradient`` or ``out_shape``."""
        return 2 * int(sdpa_flop_count(query, key, value))

    kernels = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
    aten = torch.ops.aten
    forwards = {getattr(aten, f"_scaled_dot_product_{kernel}"): forward for kernel in kernels}
    return forwards | {getattr(aten, f"_scaled_dot_product_{kernel}_backward"): backward for kernel in kernels}
