"""What isn't kept for the backward pass is computed again, with the same bits, for every task and kind of base."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from base_cases import BASE_CASES
from contract_cases import CASES
from quick_cases import mostly_slow
from vaak.core.errors import UserError
from vaak.engine.trainer import Trainer
from vaak.testing import Case
from vaak.testing.case import UNREHEARSED, batches, compute_terms

LAYERLESS = ("vocoder", "vocoder, no discriminators", "classification", "multitask")
"""Networks without layers that recompute."""
WITHOUT_GROUPS = r"gradient_checkpointing: \S+ of transformers has no groups of layers; set it to block"
UNKNOWN_ATTENTION = r"mamba of transformers: which part of a layer is attention isn't known; set it to block"


class Pass(NamedTuple):
    """A microbatch's loss and gradients, and the bytes that the forward pass kept for them besides the weights."""

    results: list[Tensor | None]
    kept: int


def compute(trainer: Trainer) -> Pass:
    weights = {one.untyped_storage().data_ptr() for one in trainer.model.parameters()}
    kept = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    torch.manual_seed(7)
    trainer.model.train()
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        terms = compute_terms(trainer, batches(trainer)[0])
    loss = sum(one.total.float() for one in terms.values() if one.total.requires_grad)
    assert isinstance(loss, Tensor)
    trained = [one for one in trainer.model.parameters() if one.requires_grad]
    gradients = torch.autograd.grad(loss, trained, allow_unused=True)
    return Pass([loss.detach(), *gradients], sum(one.nbytes() for one in kept.values()))


def begin(case: Case, folder: Path, parts: Any) -> Trainer:
    return case.trainer(folder / f"run-{parts}", performance={"gradient_checkpointing": parts}, **UNREHEARSED)


def is_same(ours: list[Tensor | None], theirs: list[Tensor | None]) -> bool:
    pairs = zip(ours, theirs, strict=True)
    return all(one is other if one is None or other is None else torch.equal(one, other) for one, other in pairs)


def check_config(name: str, folder: Path, parts: str) -> str:
    """What ``vaak config check`` says of the option."""
    case = (CASES | BASE_CASES)[name]
    performance = {**case.training.get("performance", {}), "gradient_checkpointing": parts}
    try:
        said = case.load(folder, performance=performance).warnings
    except UserError as error:
        return str(error)
    return "\n".join(one for one in said if "gradient_checkpointing" in one)


def test_experts_are_not_compiled_and_computed_again(tmp_path: Path):
    with pytest.raises(UserError, match=r"torch's compiler doesn't know which of model.experts"):
        CASES["asr, experts"].load(tmp_path, performance={"compile": True, "gradient_checkpointing": "block"})


QUICK = ("asr, ctc, experts",)


@pytest.mark.parametrize("name", mostly_slow([*CASES, *BASE_CASES], *QUICK))
def test_less_is_kept_and_no_bit_changes(name: str, tmp_path: Path):
    case = (CASES | BASE_CASES)[name].prepared(tmp_path)
    whole, kept, refused = compute(begin(case, tmp_path, "none")), dict[str, float](), dict[str, str]()
    for parts in ("attention", "block", "all"):
        said = check_config(name, tmp_path, parts)
        assert ("the model has no layers" in said) == (name in LAYERLESS)
        try:
            found = compute(begin(case, tmp_path, parts))
            assert not said or name in LAYERLESS
        except UserError as error:
            refused[parts] = str(error)
            assert "set it to block" in said or parts == "attention", "of some networks, only the run knows"
            continue
        assert is_same(found.results, whole.results), parts
        kept[parts] = found.kept / whole.kept
    if name in LAYERLESS:
        assert [*kept.values()] == [1, 1, 1]
        return
    for parts, said in refused.items():
        assert re.search({"attention": UNKNOWN_ATTENTION, "all": WITHOUT_GROUPS}[parts], said)
    assert kept["block"] < kept.get("attention", 0.9) < 0.95
    assert kept.get("all", 0) <= kept["block"]
