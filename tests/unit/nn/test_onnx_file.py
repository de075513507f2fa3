"""ONNX files of modules: any size of the named axes, the same numbers as in PyTorch, and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

from vaak.core.errors import UserError
from vaak.nn.onnx_file import OnnxModule, write_onnx


class Repeated(nn.Module):
    """Repeats each number as many times as its value, so that the length of the output depends on the values."""

    def forward(self, numbers: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        longest = numbers.sum(1).max().item()
        torch._check(longest >= 2)
        steps = torch.arange(longest)
        return (steps[None, :] < numbers.sum(1)[:, None]) * scale, numbers.sum(1)


class Noisy(nn.Module):
    def forward(self, numbers: Tensor) -> tuple[Tensor]:
        return (torch.randn_like(numbers),)


class Branching(nn.Module):
    def forward(self, numbers: Tensor) -> tuple[Tensor]:
        return (numbers if numbers.sum() > 0 else -numbers,)


def exported(module: nn.Module, inputs: dict[str, Tensor], others: list[dict[str, Tensor]]) -> OnnxModule:
    axes = {"numbers": {0: "batch", 1: "time"}}
    return OnnxModule(module, inputs, axes, ("found", "lengths")[: len(inputs)], others, {"rate": "8000"})


def test_axes_have_any_size_and_the_file_has_its_metadata(tmp_path: Path):
    path, scale = tmp_path / "repeated.onnx", torch.tensor(2.0)
    first = {"numbers": torch.tensor([[2, 1, 3], [0, 1, 1]]), "scale": scale}
    assert write_onnx(path, exported(Repeated(), first, [{"numbers": torch.tensor([[3]]), "scale": scale}])) == 0
    found, lengths = onnxruntime.InferenceSession(path).run(
        None, {"numbers": np.array([[4, 0, 0, 1], [1, 0, 0, 0]]), "scale": np.array(0.5, np.float32)}
    )
    np.testing.assert_array_equal(found, [[0.5] * 5, [0.5, 0, 0, 0, 0]])
    assert lengths.tolist() == [5, 1]
    assert {one.key: one.value for one in onnx.load(path).metadata_props}["rate"] == "8000"


@pytest.mark.parametrize(
    ("module", "message"),
    [(Noisy(), "the exported model's found differs from PyTorch's by up to"), (Branching(), "can't be exported")],
)
def test_what_cant_be_exported_is_one_line(module: nn.Module, message: str, tmp_path: Path):
    with pytest.raises(UserError, match=message) as raised:
        write_onnx(tmp_path / "m.onnx", exported(module, {"numbers": torch.ones(2, 3)}, []))
    assert len(str(raised.value).splitlines()) == 1
