"""A trained module as an ONNX file, which onnxruntime runs without Vaak, checked against PyTorch when it is written."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import sync_file, usual_mode

ONNX_TOLERANCE = 1e-3
"""The largest difference from PyTorch's output, relative to the largest number in it or to 1."""


@dataclass(frozen=True)
class OnnxModule:
    """A module with what exporting it requires; it is called with ``inputs`` in their order, and gives a tuple."""

    module: nn.Module
    inputs: Mapping[str, Tensor]
    """Each by its name; sizes above 1 of axes that may have others."""
    axes: Mapping[str, Mapping[int, str]]
    """The axes of each input that may have any size; those of one name have the same size."""
    outputs: Sequence[str]
    """Their names."""
    others: Sequence[Mapping[str, Tensor]]
    """Inputs of other sizes, with which the file is checked."""
    metadata: Mapping[str, str] = field(default_factory=dict)
    """Stored in the file."""
    multiples: Mapping[str, int] = field(default_factory=dict)
    """Numbers, by the names of axes, that their sizes are multiples of."""


class ExportWrapper(nn.Module):
    """A model as what is exported: ``call`` gives a tuple of tensors, from the model and the inputs."""

    def __init__(self, model: nn.Module, call: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.model, self.call = model, call

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return self.call(self.model, *inputs)


def some_tokens(vocab_size: int, num_rows: int, length: int, names: Sequence[str]) -> dict[str, Tensor]:
    """Ids ``(row, token)`` and their mask, True where they are real, by two ``names``; the same each time."""
    generator = torch.Generator().manual_seed(num_rows)
    ids = torch.randint(vocab_size, (num_rows, length), generator=generator)
    lengths = torch.randint(1, length + 1, (num_rows, 1), generator=generator)
    return dict(zip(names, (ids, torch.arange(length) < lengths), strict=True))


def write_onnx(path: Path, exported: OnnxModule) -> float:
    """Write the file at ``path``; return the largest difference between its outputs and PyTorch's.

    Raises UserError if onnx, onnxscript or onnxruntime is missing, the module can't be exported, or outputs differ.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 - torch's exporter imports it late, and with a long traceback
    except ImportError as error:
        raise UserError(
            f"exporting to ONNX requires onnx, onnxscript and onnxruntime ({error}): pip install 'vaak[tts]'"
        ) from error
    names = {name for axes in exported.axes.values() for name in axes.values()}
    sizes = {name: exported.multiples.get(name, 1) * torch.export.Dim(name) for name in sorted(names)}
    shapes = tuple({axis: sizes[name] for axis, name in exported.axes.get(one, {}).items()} for one in exported.inputs)
    with _quiet(), torch.no_grad():
        try:
            program = torch.onnx.export(
                _AnyInputs(exported.module).eval(),
                tuple(exported.inputs.values()),
                dynamo=True,
                verbose=False,
                dynamic_shapes=(shapes,),
                input_names=list(exported.inputs),
                output_names=list(exported.outputs),
            )
        except torch.onnx.OnnxExporterError as error:
            reason = str(error.__cause__ or error).strip().splitlines()[0]
            raise UserError(f"the model can't be exported to ONNX: {reason}") from error
    assert program is not None
    program.model.metadata_props.update(exported.metadata)
    with usual_mode(path):
        program.save(path)
    options = onnxruntime.SessionOptions()
    # Errors are raised, too.
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return max(_difference(session, exported, inputs) for inputs in (exported.inputs, *exported.others))


class _AnyInputs(nn.Module):
    """A module whose inputs the exporter sees as one tuple, however many there are."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Any:
        return self.module(*inputs)


def _difference(session: Any, exported: OnnxModule, inputs: Mapping[str, Tensor]) -> float:
    """Return how far the outputs for ``inputs`` are from PyTorch's. Raises UserError if that is too far."""
    with torch.inference_mode():
        expected = [one.numpy() for one in exported.module(*inputs.values())]
    try:
        found = session.run(list(exported.outputs), {name: value.numpy() for name, value in inputs.items()})
    except Exception as error:
        # onnxruntime has its own, without a common class.
        raise UserError(f"the exported model can't be run: {str(error).strip().splitlines()[0]}") from error
    largest = 0.0
    for name, ours, theirs in zip(exported.outputs, expected, found, strict=True):
        if ours.shape != theirs.shape:
            raise UserError(f"the exported model's {name} has the shape {theirs.shape}, in PyTorch {ours.shape}")
        difference = float(np.abs(theirs - ours).max(initial=0.0))
        if not difference <= ONNX_TOLERANCE * max(1.0, float(np.abs(ours).max(initial=0.0))):
            raise UserError(f"the exported model's {name} differs from PyTorch's by up to {difference:.3g}")
        largest = max(largest, difference)
    return largest


def quantize(source: Path, target: Path) -> None:
    """Write ``target``, a network with weights of matrices in 8 bits."""
    with optional_import("--quantization int8 requires onnxruntime and onnx", "tts"):
        from onnxruntime.quantization import QuantType, quantize_dynamic
    log = logging.getLogger()
    level = log.level
    # It advises a preprocessing that dynamic quantization doesn't need.
    log.setLevel(logging.ERROR)
    try:
        quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    finally:
        log.setLevel(level)
    sync_file(target)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without what torch's exporter says about itself."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
