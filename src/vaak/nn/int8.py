"""Linear layers whose products are of 8-bit integers: for a trained model in use on a CPU.

Each row of a weight has its own scale, and so has each vector of the inputs when it comes (dynamic quantization). Sums
are in 32 bits, and the rest of the model computes as before. Source: Jacob et al. 2018, "Quantization and Training of
Neural Networks for Efficient Integer-Arithmetic-Only Inference". Differs: inputs aren't calibrated beforehand.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.nn.lora import HEAD_NAMES

LARGEST_INT8 = 127


def require_int8(device: torch.device) -> None:
    """Raise UserError if products of 8-bit integers aren't available."""
    if device.type != "cpu":
        raise UserError(f"--precision int8: it is for CPUs, and the device is {device.type}; use bf16, or --device cpu")
    if torch.backends.quantized.engine == "none":
        raise UserError("--precision int8: this build of torch has no 8-bit products; use fp32")


class Int8Linear(nn.Module):
    """A linear layer in use, with a weight of 8-bit integers."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        weight = layer.weight.detach().float()
        scales = (weight.abs().amax(1) / LARGEST_INT8).clamp(min=torch.finfo(torch.float32).tiny)
        with warnings.catch_warnings():
            # torch means to replace its quantized tensors by those of torchao, which the products here don't take yet.
            warnings.simplefilter("ignore")
            zeros = torch.zeros(len(weight), dtype=torch.long)
            rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
            self._packed: Any = torch.ops.quantized.linear_prepack(rounded, None)
        self.bias = None if layer.bias is None else layer.bias.detach().float()
        self._bias = torch.zeros(()) if self.bias is None else self.bias

    @property
    def weight(self) -> Tensor:
        """Return the weight that the integers stand for, ``(out, in)`` in fp32: made when it is read."""
        found: Tensor = torch.ops.quantized.linear_unpack(self._packed)[0].dequantize()
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        """``(…, out)`` of ``(…, in)``."""
        rows = inputs.float()
        if rows.numel() == self.in_features:
            # One vector, as for each token that is written: the product gives it its scale.
            found = self._multiply(rows.reshape(1, -1)).add_(self._bias)
            return found.reshape(*inputs.shape[:-1], self.out_features).to(inputs.dtype)
        # The product has one scale for all its inputs: a few large vectors would leave the others a few steps.
        scales = rows.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(torch.float32).tiny)
        found = self._multiply(rows / scales)
        # In place, since writing to new memory takes as long as the product of a small layer.
        torch.addcmul(self._bias, found, scales, out=found)
        return found.to(inputs.dtype)

    def _multiply(self, rows: Tensor) -> Tensor:
        found: Tensor = torch.ops.quantized.linear_dynamic(rows, self._packed, not _has_vnni())
        return found

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"


def compute_in_int8(model: nn.Module) -> tuple[int, int]:
    """Replace linear layers of a model in use, in place; return how many, and how many there were.

    Others stay: those that something is hooked to, classes derived from nn.Linear (adapters), and a model's ``head``
    (``lm_head`` in transformers), whose weight is read without calling it.
    """
    replaced = total = 0
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.Linear):
                continue
            total += 1
            is_plain = type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks
            if is_plain and name not in HEAD_NAMES:
                setattr(parent, name, Int8Linear(layer))
                replaced += 1
    return replaced, total


@functools.cache
def _has_vnni() -> bool:
    """Whether sums of products have 32 bits at once; else inputs need 7 bits, or sums of pairs overflow."""
    return bool(torch.cpu._is_vnni_supported())
