"""Documents laid end to end are attended to as with a mask; masks serve wherever the kernels can't.

torch has them on CUDA alone, so the CPU takes CUDA's path here, and computes them by the formula.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import varlen_reference
from vaak.nn.config import StackConfig
from vaak.nn.kernels import variable_length
from vaak.nn.kernels.device_paths import PATHS
from vaak.nn.kernels.visibility import Visibility, find_segments
from vaak.nn.stack import TransformerStack, set_variable_length

DOCUMENTS = torch.tensor([[0] * 11 + [1] * 2 + [2] * 27, [0] * 20 + [1] * 10 + [-1] * 10, [0] * 40])
REAL = DOCUMENTS >= 0


@pytest.fixture(autouse=True)
def _cpu_has_the_kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(PATHS, "cpu", PATHS["cuda"])
    torch.use_deterministic_algorithms(False)  # a run that an earlier test trained may have left it on
    with varlen_reference.kernels_on_cpu(monkeypatch):
        yield


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether a mask of pairs was made, in each forward pass of a stack."""
    noted, visibility = list[bool](), TransformerStack._visibility

    def note(*arguments: Any) -> tuple[Visibility, Tensor | None]:
        found = visibility(*arguments)
        noted.append(found[0].segments is not None)
        assert not noted[-1] or found[0].pairs is None
        return found

    monkeypatch.setattr(TransformerStack, "_visibility", note)
    return noted


def stack_of(causal: bool = True, **options: Any) -> TransformerStack:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"d_model": 32, "num_layers": 2, "num_heads": 4, "dropout": 0.0, **options}
    return TransformerStack(StackConfig(**sizes), causal=causal)


def results(stack: TransformerStack, inputs: dict[str, Any], autocast: bool = True) -> list[Tensor]:
    """Return a stack's outputs at real tokens, and the gradients of its input and weights."""
    x = torch.randn(3, 40, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        outputs = stack(x, **inputs)[REAL]
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    return [outputs, *torch.autograd.grad((outputs.float() * weights).sum(), [x, *stack.parameters()])]


@pytest.mark.parametrize("inputs", [{"documents": DOCUMENTS, "num_documents": 6}, {"mask": REAL}])
@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("num_key_heads", [None, 2])
def test_it_is_what_a_mask_gives(inputs: dict[str, Any], causal: bool, num_key_heads: int | None, used: list[bool]):
    stack = stack_of(causal, num_key_value_heads=num_key_heads, qk_norm=num_key_heads is None)
    found = results(stack, inputs)
    set_variable_length(stack, False)
    expected = results(stack, inputs)
    needs_none = causal and "mask" in inputs  # nothing sees what comes after it
    assert used == [not needs_none, False]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.03 * other.abs().max().item())


IN_ITS_PLACE: dict[str, dict[str, Any]] = {
    "fp32": {"autocast": False},
    "weights are dropped": {"options": {"attention_dropout": 0.1}},
    "a bias": {"options": {"position_type": "alibi"}},
    "heads of another width": {"options": {"d_model": 32, "num_heads": 8}},
    "how many there are isn't known": {"inputs": {"documents": DOCUMENTS}},
}


@pytest.mark.parametrize("what", IN_ITS_PLACE)
def test_masks_do_what_the_kernels_can_not(what: str, used: list[bool]):
    case = IN_ITS_PLACE[what]
    stack = stack_of(**case.get("options", {}))
    results(stack, case.get("inputs", {"documents": DOCUMENTS, "num_documents": 6}), case.get("autocast", True))
    assert used == [False]
    if what == "weights are dropped":
        results(stack.eval(), {"documents": DOCUMENTS, "num_documents": 6})
        assert used == [False, True]


def test_what_must_repeat_is_masked(used: list[bool]):
    torch.use_deterministic_algorithms(True)
    try:
        results(stack_of(), {"documents": DOCUMENTS, "num_documents": 6})
    finally:
        torch.use_deterministic_algorithms(False)
    assert used == [False]


@pytest.mark.parametrize("fault", ["later tokens are seen", "it fails", "another gradient"])
def test_kernels_that_are_wrong_are_not_used(
    fault: str, used: list[bool], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    attend_segments = variable_length.attend_segments

    def faulty(query: Tensor, *others: Any, causal: bool) -> Tensor:
        if fault == "it fails":
            raise RuntimeError("no kernel image is available")
        if fault == "another gradient":
            return attend_segments(query.detach() + (query - query.detach()) / 2, *others, causal=causal)
        return attend_segments(query, *others, causal=False)

    monkeypatch.setattr(variable_length, "attend_segments", faulty)
    with caplog.at_level(logging.WARNING, "vaak"):
        results(stack_of(), {"documents": DOCUMENTS, "num_documents": 6})
        results(stack_of(), {"documents": DOCUMENTS, "num_documents": 6})
    assert used == [False, False]
    assert caplog.text.count("aren't used on cpu") == 1, "the warning is logged once"


def test_bounds_are_those_of_the_runs_and_too_few_are_an_error():
    found = find_segments(DOCUMENTS, 8)
    assert found.bounds.tolist() == [0, 11, 13, 40, 60, 70, 80, 120, 120]
    assert found.bounds.dtype == torch.int32
    assert found.longest == 40
    with pytest.raises(RuntimeError, match="more documents than at_most"):
        find_segments(DOCUMENTS, 6)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch does that itself
def test_a_stack_is_compiled_whole():
    stack = stack_of()
    inputs = {"documents": DOCUMENTS, "num_documents": 6}
    expected = results(stack, inputs)
    torch._dynamo.reset()
    stack.compile(backend="aot_eager", fullgraph=True)
    for one, other in zip(results(stack, inputs), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0.03 * other.abs().max().item())
