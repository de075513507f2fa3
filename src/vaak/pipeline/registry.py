"""The pipelines that have a name. Others are named as ``./file.py:PIPELINE`` or ``package.module:PIPELINE``."""

from __future__ import annotations

from pathlib import Path

from vaak.config.components import resolve_class
from vaak.core.errors import UserError
from vaak.pipeline.stage import Pipeline

PIPELINES: dict[str, str] = {"moe-asr": "vaak.tasks.asr.stages.pipeline:PIPELINE"}
"""Name → where the pipeline is; it is imported when it is asked for."""


def find_pipeline(reference: str, folder: Path) -> Pipeline:
    """The pipeline that a name or reference, seen from ``folder``, stands for; its module is imported.

    Raises UserError where there is none.
    """
    if ":" not in reference and reference not in PIPELINES:
        known = ", ".join([*PIPELINES, "./file.py:NAME", "package.module:NAME"])
        raise UserError(f"unknown pipeline {reference}; expected one of {known}")
    found = resolve_class(reference, PIPELINES, folder)
    if not isinstance(found, Pipeline):
        raise UserError(f"{reference} is not a pipeline (vaak.pipeline.stage.Pipeline)")
    return found
