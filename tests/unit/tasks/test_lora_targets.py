"""A name in ``model.lora.targets`` that is that of no layer is an error in each task, before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from contract_cases import CASES
from task_case import TaskCase
from vaak.core.errors import UserError


def _two_tasks(case: Any) -> TaskCase:
    tasks = {name: {"task": case.task, **case.options} for name in ("a", "b")}
    return TaskCase("multitask", {"tasks": tasks}, write=case.write)


PATHS = {
    "lm": CASES["lm decoder, documents"],
    "seq2seq": CASES["seq2seq"],
    "classification": CASES["classification, transformer, two columns, augmented"],
    "diarization": CASES["diarization"],
    "tts": CASES["tts"],
    "vocoder": CASES["vocoder"],
    "asr, ctc": CASES["asr, ctc"],
    "asr, ctc, pretrained": CASES["asr, ctc, pretrained"],
    "asr, whisper": CASES["asr, experts"],
    "multitask": _two_tasks(CASES["asr, ctc, pretrained"]),
}


def _with_targets(options: dict[str, Any], targets: list[str]) -> dict[str, Any]:
    """The options of a task, or of each of several, with these targets and no others."""
    if "tasks" in options:
        own = {name: _with_targets(one, targets) for name, one in options["tasks"].items()}
        return {**options, "tasks": own}
    model = {name: one for name, one in options.get("model", {}).items() if name != "experts"}
    return {**options, "model": {**model, "lora": {"rank": 2, "targets": targets}}}


@pytest.mark.parametrize("path", PATHS)
def test_a_target_that_no_layer_has_is_an_error_with_the_nearest_ones(path: str, tiny_run: Path, tmp_path: Path):
    case = PATHS[path]
    assert isinstance(case, TaskCase)
    options = _with_targets(case.options, ["nowhere"])
    # Adapters belong to a model that was trained before: one that is pretrained, or that of a run.
    begun = {} if path in ("asr, ctc, pretrained", "asr, whisper", "multitask") else {"init_from": str(tiny_run)}
    training = {**case.training, "checkpoint": begun}
    prepared = replace(case, options=options, training=training).prepared(tmp_path)
    with pytest.raises(UserError, match=r"model\.lora\.targets: no layer is called .*; there are "):
        prepared.make_task().model()
