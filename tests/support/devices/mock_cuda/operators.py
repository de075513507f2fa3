"""Facts about torch's operators on CUDA: which lack a kernel, wait for the device, or aren't repeatable.

Kernels and devices come from ``native_functions.yaml``, which torch ships, waiting from the tags of the operators. Two
lists are written here, since torch has them in prose and in its tests; tests/gpu/test_mock_cuda.py compares them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torchgen
from torch import Tensor
from torch._ops import OpOverload

NOT_DETERMINISTIC: dict[str, tuple[str, ...]] = {
    "torch.nn.AvgPool3d": ("avg_pool3d_backward",),
    "torch.nn.AdaptiveAvgPool2d": ("_adaptive_avg_pool2d_backward",),
    "torch.nn.AdaptiveAvgPool3d": ("_adaptive_avg_pool3d_backward",),
    "torch.nn.AdaptiveMaxPool2d": ("adaptive_max_pool2d_backward",),
    "torch.nn.FractionalMaxPool2d": ("fractional_max_pool2d_backward",),
    "torch.nn.FractionalMaxPool3d": ("fractional_max_pool3d_backward",),
    "torch.nn.MaxUnpool1d": ("max_unpool2d",),
    "torch.nn.MaxUnpool2d": ("max_unpool2d",),
    "torch.nn.MaxUnpool3d": ("max_unpool3d",),
    "torch.nn.functional.interpolate": (
        "upsample_linear1d_backward",
        "upsample_bilinear2d_backward",
        "upsample_bicubic2d_backward",
        "upsample_trilinear3d_backward",
    ),
    "torch.nn.ReflectionPad1d": ("reflection_pad1d_backward",),
    "torch.nn.ReflectionPad2d": ("reflection_pad2d_backward",),
    "torch.nn.ReflectionPad3d": ("reflection_pad3d_backward",),
    "torch.nn.NLLLoss": ("nll_loss2d_forward", "nll_loss2d_backward"),
    "torch.nn.CTCLoss": ("_ctc_loss_backward",),
    "torch.nn.EmbeddingBag": ("_embedding_bag_dense_backward",),
    "torch.Tensor.put_": ("put_",),
    "torch.histc": ("histc",),
    "torch.bincount": ("bincount",),
    "torch.median": ("median",),
    "torch.nn.functional.grid_sample": ("grid_sampler_2d_backward", "grid_sampler_3d_backward"),
    "torch.cumsum": ("cumsum",),
    "torch.Tensor.scatter_reduce": ("scatter_reduce",),
    "torch.Tensor.resize_": (),  # of a quantized tensor
}
"""Calls that the docs of ``torch.use_deterministic_algorithms`` list as errors on CUDA, with their operators.

NLLLoss is there only with a class for each place (2d), not with one for each row.
"""
_ALWAYS_OR_WHERE: dict[str, Callable[[dict[str, Any]], bool]] = {
    "cumsum": lambda given: given["self"].is_floating_point(),
    "bincount": lambda given: given["weights"] is not None,
    "median": lambda given: "dim" in given,
    "scatter_reduce": lambda given: given["reduce"] == "prod",
    "_embedding_bag_dense_backward": lambda given: given["mode"] == 2,
}
_RAISING = {name for names in NOT_DETERMINISTIC.values() for name in names}

WITHOUT_INTEGERS = {
    "addmm", "addmv", "addbmm", "baddbmm", "dot", "vdot", "bmm", "mv", "mm", "convolution",
    "avg_pool2d", "avg_pool3d", "max_pool2d_with_indices", "max_pool3d_with_indices", "native_dropout_backward",
}  # fmt: skip
"""Operators whose kernels on CUDA don't take integers, though those on the CPU do."""

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
OF_BOTH_DEVICES = INDEXING | {"copy_", "_foreach_copy_", "set_", "_pack_padded_sequence", "_ctc_loss"}


@cache
def _described() -> dict[str, str]:
    """Return the entry of each operator in ``native_functions.yaml``, by its name and overload."""
    file = Path(torchgen.__file__).parent / "packaged" / "ATen" / "native" / "native_functions.yaml"
    entries = file.read_text(encoding="utf-8").split("\n- func: ")[1:]
    return {entry.partition("(")[0]: entry for entry in entries}


@cache
def _entry(operator: OpOverload) -> str:
    name = operator._schema.name.removeprefix("aten::")
    overload = operator._schema.overload_name
    return _described().get(f"{name}.{overload}" if overload else name, "")


@cache
def has_kernel(operator: OpOverload) -> bool:
    """Return whether CUDA has a kernel for it."""
    entry = _entry(operator)
    delegate = re.search(r"^  structured_delegate: (\S+)", entry, re.MULTILINE)
    entry = _described()[delegate[1]] if delegate else entry
    kernels = re.findall(r"^    ([\w, ]+):", entry, re.MULTILINE)
    if "ufunc_inner_loop" in entry or not kernels:  # a kernel of both, or other operators
        return True
    return any(key == "CUDA" or key.startswith("Composite") for keys in kernels for key in keys.split(", "))


@cache
def takes_numbers_of_the_cpu(operator: OpOverload) -> bool:
    """Return whether it takes tensors without dimensions from the CPU, next to those of the device."""
    return "device_check: NoCheck" in _entry(operator)


def named(operator: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, with the defaults of those that aren't given."""
    arguments = operator._schema.arguments
    defaults = {one.name: one.default_value for one in arguments[len(args) :] if one.has_default_value()}
    return {**defaults, **dict(zip((one.name for one in arguments), args, strict=False)), **kwargs}


def is_deterministic(operator: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
    """Return whether this call gives the same bits every time on CUDA, or at least doesn't say that it doesn't."""
    name = operator._schema.name.removeprefix("aten::")
    if name not in _RAISING:
        return True
    where = _ALWAYS_OR_WHERE.get(name)
    return where is not None and not where(named(operator, args, kwargs))


FACTORING = {"_linalg_svd", "_linalg_eigh"}


def why_it_waits(operator: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """Return why the program waits for the device in this call; None where it doesn't. Copies are not known here."""
    name = operator._schema.name.removeprefix("aten::")
    if name in INDEXING:
        return _why_indexing_waits(name, *args[:3])
    if name in FACTORING:
        return "whether it converged is read"
    if torch.Tag.data_dependent_output in operator.tags:
        return "a number is read"
    if torch.Tag.dynamic_output_shape in operator.tags and kwargs.get("output_size") is None:
        return "the shape of the result is read"
    return None


def _why_indexing_waits(name: str, tensor: Tensor, indices: Sequence[Tensor | None], value: Any = None) -> str | None:
    given = [index for index in indices if index is not None]
    if any(index.device.type == "cpu" for index in given):
        return "an index is copied from the CPU"
    if all(index.dtype not in (torch.bool, torch.uint8) for index in given):
        return None
    fills = name != "index" and isinstance(value, Tensor) and value.device.type == "cpu" and value.numel() == 1
    return None if fills and len(given) == 1 else "the indices of a mask are counted"
