"""A speaker encoder as an ONNX file, which was never trained: it pools what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest


def save_onnx(path: Path, shape: tuple[int | str, ...], time: int, *, inputs: int = 1, log: bool = False) -> Path:
    """A network that gives the greatest numbers over axis ``time``, and the means of their squares (of their logs)."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    make, number = onnx.helper, onnx.TensorProto.FLOAT
    axes = make.make_tensor("axes", onnx.TensorProto.INT64, [1], [time])
    nodes = [
        make.make_node("ReduceMax", ["x", "axes"], ["most"], keepdims=0),
        make.make_node("Log" if log else "Mul", ["x"] if log else ["x", "x"], ["squares"]),
        make.make_node("ReduceMean", ["squares", "axes"], ["power"], keepdims=0),
        make.make_node("Concat", ["most", "power"], ["embedding"], axis=-1),
    ]
    if len(shape) == 2:  # a waveform has no other axis that would become the embedding
        nodes[0] = make.make_node("ReduceMax", ["x", "axes"], ["most"], keepdims=1)
        nodes[2] = make.make_node("ReduceMean", ["squares", "axes"], ["power"], keepdims=1)
    given = [make.make_tensor_value_info(name, number, shape) for name in ("x", "y")[:inputs]]
    found = [make.make_tensor_value_info("embedding", number, None)]
    graph = make.make_graph(nodes, "encoder", given, found, [axes])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 18)], ir_version=9), path)
    return path
