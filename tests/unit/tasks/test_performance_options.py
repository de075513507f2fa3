"""Each option of ``training.performance`` acts on each task and kind of base, or ``vaak config check`` says why not.

Here are ``logits`` and ``attention``. Others: ``gradient_checkpointing`` (test_recomputation), ``compile``
(test_compiled), ``cuda_graphs`` (tests/gpu/test_graphs.py), workers (tests/contract/test_workers.py).
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from base_cases import BASE_CASES
from contract_cases import CASES
from quick_cases import mostly_slow
from vaak.core.errors import UserError
from vaak.nn import losses
from vaak.nn.cross_entropy import head_cross_entropy
from vaak.nn.stack import TransformerStack
from vaak.testing.case import UNREHEARSED, batches, compute_terms


@pytest.mark.parametrize("name", mostly_slow([*CASES, *BASE_CASES], "classification"))
def test_logits_and_attention_act_or_are_named(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    case, chunked = (CASES | BASE_CASES)[name], list[bool]()
    compute = head_cross_entropy

    def watch(*args: Any, **options: Any) -> Any:
        chunked.append(True)
        return compute(*args, **options)

    monkeypatch.setattr(losses, "head_cross_entropy", watch)
    if case.write is not None:
        case.write(tmp_path / "data")
    performance = {"logits": "chunked", "attention": "masked", **case.training.get("performance", {})}
    with contextlib.suppress(UserError):
        case.load(tmp_path, performance={**performance, "logits": "whole"})
        is_refused = True
        case.load(tmp_path, performance=performance)
        is_refused = False
    if is_refused:
        performance["logits"] = "whole"
    said = "\n".join(case.load(tmp_path, device="cuda", performance=performance).warnings)
    prepared = replace(case, training={**case.training, "performance": performance}, write=None).prepared(tmp_path)
    trainer = prepared.trainer(tmp_path / "run", **UNREHEARSED)
    compute_terms(trainer, batches(trainer)[0])
    is_asked = not is_refused and "training.performance.logits" not in said
    assert bool(chunked) == is_asked
    stacks = [one for one in trainer.model.modules() if isinstance(one, TransformerStack)]
    assert not any(one.variable_length for one in stacks)
    assert bool(stacks) != ("training.performance.attention" in said)
