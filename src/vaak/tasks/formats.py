"""Formats of exports that several tasks have, with the Python code that opens a model in each; no torch."""

from __future__ import annotations

from collections.abc import Callable

from vaak.config.tasks import ExportedFolder, ExportFormat


def code_from(text: str) -> Callable[[ExportedFolder], str]:
    """Return a function that fills a card's code template, in which ``{folder}`` stands for the exported folder."""
    return lambda exported: text.replace("{folder}", exported.name)


def transformers_format(hub_tag: str, *options: str) -> ExportFormat:
    """Return the format that transformers loads, as its pipeline of this tag."""
    code = f'from transformers import pipeline\n\nmodel = pipeline("{hub_tag}", model="{{folder}}")'
    return ExportFormat("transformers", code_from(code), options=options)


def _onnx_code(exported: ExportedFolder) -> str:
    file = next((name for name in exported.files if name.endswith(".onnx")), "model.onnx")
    return f'import onnxruntime\n\nsession = onnxruntime.InferenceSession("{exported.name}/{file}")'


ONNX = ExportFormat("onnx", _onnx_code)
PEFT = ExportFormat("peft", is_unmerged=True)
DCP_CODE = """\
import torch
import torch.distributed.checkpoint as dcp

about = dcp.FileSystemReader("{folder}").read_metadata().state_dict_metadata
weights = {name: torch.empty(one.size, dtype=one.properties.dtype) for name, one in about.items()}
dcp.load(weights, checkpoint_id="{folder}")"""
DCP = ExportFormat("pytorch", code_from(DCP_CODE), is_weights_alone=True)
SHERPA = "sherpa-onnx"


def ct2_format(code: str) -> ExportFormat:
    """Return CTranslate2's format, with the code that uses it."""
    quantizations = (
        *("int8", "int8_float32", "int8_float16", "int8_bfloat16", "int16", "float16", "bfloat16", "float32"),
    )
    return ExportFormat("ctranslate2", code_from(code), quantizations=quantizations)
