"""Speaker encoders that were never trained: an ONNX file, which pools what it reads, and an x-vector model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch


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


def save_xvector(folder: Path, head: bool = True) -> Any:
    """A tiny WavLM, with or without its x-vector head, and how it reads audio."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    front = {"conv_dim": (8, 8), "conv_kernel": (10, 8), "conv_stride": (20, 16), "num_feat_extract_layers": 2}
    tdnn = {"tdnn_dim": (12, 12, 12, 12, 24), "xvector_output_dim": 10}
    positions = {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    config = transformers.WavLMConfig(**sizes, **front, **tdnn, **positions)
    torch.manual_seed(0)
    model = (transformers.WavLMForXVector if head else transformers.WavLMModel)(config).eval()
    model.save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True).save_pretrained(folder)
    return model
