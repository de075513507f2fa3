"""Cross-entropy from hidden states and a head: the plain formula's numbers, and never as many logits as there are."""

from __future__ import annotations

import dataclasses
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from contract_cases import CASES
from vaak.config.load import load
from vaak.config.training import LossConfig
from vaak.config.yaml.tree import ConfigError
from vaak.core.errors import UserError
from vaak.nn import cross_entropy
from vaak.nn.cross_entropy import HeadInputs, head_cross_entropy, liger_cross_entropy, target_losses
from vaak.nn.losses import losses_of_logits, make_loss
from vaak.testing.case import batches, in_float64, open_trainer

EXACT: dict[str, Any] = {"rtol": 1e-11, "atol": 1e-12}


def drawn(rows: int, classes: int, width: int, bias: bool, seed: int) -> tuple[HeadInputs, Tensor]:
    """In 64 bits; a third of the targets don't count."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((rows, width), (classes, width), (classes,))
    tensors = [torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    targets = torch.randint(0, classes, (rows,), generator=generator)
    head = HeadInputs(tensors[0], tensors[1], tensors[2] if bias else None)
    return head, targets.masked_fill(torch.rand(rows, generator=generator) < 1 / 3, -100)


def plain(head: HeadInputs, targets: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    logits = head.logits()
    squares = logits.logsumexp(-1).square().masked_fill(targets < 0, 0.0).sum()
    return F.cross_entropy(logits, targets, reduction="sum", label_smoothing=smoothing), squares


def gradients(loss: Tensor, head: HeadInputs, **options: Any) -> tuple[Tensor, ...]:
    return torch.autograd.grad(loss, [one for one in head if one is not None], **options)


@given(
    rows=st.integers(0, 12),
    classes=st.integers(1, 9),
    bias=st.booleans(),
    smoothing=st.sampled_from([0.0, 0.1]),
    weights=st.tuples(st.floats(-3, 3), st.sampled_from([0.0, 0.7])),
    at_once=st.integers(1, 30),
    seed=st.integers(0, 2**31),
)
def test_sums_and_gradients_are_those_of_the_plain_formula(rows, classes, bias, smoothing, weights, at_once, seed):
    head, targets = drawn(rows, classes, 5, bias, seed)
    with pytest.MonkeyPatch.context() as patch:
        for name in ("CPU_LOGITS_AT_ONCE", "CPU_PRODUCTS_AT_ONCE"):
            patch.setattr(cross_entropy, name, at_once)
        patch.setattr(cross_entropy, "FEWEST_ROWS", 2)
        own = head_cross_entropy(head, targets, smoothing, squares=bool(weights[1]))
        expected = plain(head, targets, smoothing)
        for one, other in zip(own, expected, strict=True):
            torch.testing.assert_close(one, other, **EXACT)
        total, formula = (weights[0] * losses + weights[1] * squares for losses, squares in (own, expected))
        wanted = gradients(formula, head)
        for again in (True, False):  # a second pass through the same graph, too
            for one, other in zip(gradients(total, head, retain_graph=again), wanted, strict=True):
                torch.testing.assert_close(one, other, **EXACT)


def test_a_frozen_head_gets_no_gradient_and_none_is_made_where_none_is_wanted():
    head, targets = drawn(9, 7, 5, False, 0)
    frozen = HeadInputs(head.hidden, head.weight.detach())
    total = head_cross_entropy(frozen, targets)[0]
    (own,) = torch.autograd.grad(total, head.hidden)
    torch.testing.assert_close(own, gradients(plain(head, targets, 0.0)[0], head)[0], **EXACT)
    with torch.no_grad():
        assert not head_cross_entropy(head, targets)[0].requires_grad


def test_ignored_rows_may_hold_anything_on_a_cpu():
    head, targets = drawn(9, 7, 5, False, 1)
    spoilt = HeadInputs(head.hidden.detach().masked_fill(targets[:, None] < 0, torch.nan).requires_grad_(), head.weight)
    own, expected = (gradients(head_cross_entropy(one, targets)[0], one) for one in (spoilt, head))
    for one, other in zip(own, expected, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("squares", [False, True])
def test_under_autocast_it_is_as_near_to_the_truth_as_the_plain_formula(squares):
    drawn_head, targets = drawn(300, 500, 64, True, 2)
    assert drawn_head.bias is not None
    scaled = [drawn_head.hidden, drawn_head.weight / 8, drawn_head.bias]
    exact = HeadInputs(*(one.detach().requires_grad_() for one in scaled))
    head = HeadInputs(*(one.detach().float().requires_grad_() for one in scaled))
    losses, log_z = plain(exact, targets, 0.1)
    truth = gradients(losses + squares * log_z, exact)
    with torch.autocast("cpu", torch.bfloat16):
        own = head_cross_entropy(head, targets, 0.1, squares=squares)
        logits = head.logits()
        assert logits.dtype == torch.bfloat16
        usual = F.cross_entropy(logits.float(), targets, reduction="sum", label_smoothing=0.1)
        usual = usual + squares * (logits.float().logsumexp(-1).square() * (targets >= 0)).sum()
    assert own[0].dtype == torch.float32
    for one, other, true in zip(gradients(own[0] + squares * own[1], head), gradients(usual, head), truth, strict=True):
        assert one.dtype == torch.float32
        error, usual_error = ((grad - true).norm() / true.norm() for grad in (one, other))
        assert error < max(1.2 * usual_error, 1e-3)
        assert error < 0.02


def test_in_fp16_the_loss_scale_saves_small_probabilities():
    """Of 300,000 classes each has 3e-6, which fp16 by itself knows to a hundredth."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(shape, generator=generator) / 100 for shape in ((4, 4), (300_000, 4)))
    targets, scale, found = torch.tensor([1, 2, 3, 4]), 2.0**12, []
    for dtype in (torch.float64, torch.float16):
        head = HeadInputs(hidden.half().to(dtype).requires_grad_(), weight.half().to(dtype).requires_grad_())
        total, _ = head_cross_entropy(head, targets)
        found.append(gradients(scale * total, head)[1].double())
    torch.testing.assert_close(found[1], found[0], rtol=3e-3, atol=1e-3 * float(found[0][10:].abs().max()))


def test_gradients_of_16_bit_weights_are_added_up_in_32_bits():
    """A thousand rows, four at a time: sums in 16 bits would lose most of them."""
    exact, targets = drawn(1000, 20, 8, False, 3)
    head = HeadInputs(*(one.detach().bfloat16().requires_grad_() for one in exact[:2]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "FEWEST_ROWS", 4)
        patch.setattr(cross_entropy, "CPU_PRODUCTS_AT_ONCE", 1)
        own = gradients(head_cross_entropy(head, targets)[0], head)[1]
    rounded = HeadInputs(*(one.detach().double().requires_grad_() for one in head[:2]))
    true = gradients(plain(rounded, targets, 0.0)[0], rounded)[1]
    assert own.dtype == torch.bfloat16
    assert (own.double() - true).norm() / true.norm() < 5e-3


class Logits(TorchDispatchMode):
    """The most rows of a tensor whose last dimension is the classes."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.classes, self.most = classes, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor) and one.ndim and one.shape[-1] == self.classes and not func.is_view:
                self.most = max(self.most, one.numel() // self.classes)
        return result


@contextmanager
def few_rows_at_once() -> Iterator[int]:
    """The most rows of logits that are made at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "FEWEST_ROWS", 4)
        patch.setattr(cross_entropy, "CPU_PRODUCTS_AT_ONCE", 1)
        yield 4


READERS = [
    "lm decoder, packed",
    "lm decoder, all losses",
    "lm encoder",
    "lm pretrained, low-rank adapters",
    "seq2seq",
    "seq2seq, two tokenizers",
    "seq2seq pretrained, low-rank adapters",
    "asr",
    "asr, experts",
]


@pytest.mark.parametrize("name", READERS)
def test_a_task_has_the_same_losses_and_gradients_and_never_all_logits(name: str, tmp_path: Path):
    task: Any = CASES[name].prepared(tmp_path).make_task()
    case = dataclasses.replace(CASES[name].prepared(tmp_path), make_task=lambda: task)
    with open_trainer(case) as trainer:
        model: Any = trainer.model.double().eval()
        batch = in_float64(batches(trainer)[0])
    parameters = [one for one in model.parameters() if one.requires_grad]
    rows = int((batch["targets"] != -100).sum())

    def found(how: str) -> tuple[dict[str, float], list[Tensor | None], int]:
        task.main_loss.logits = how
        with few_rows_at_once(), Logits(model.vocab_size) as seen:
            terms = task.losses(model, batch)
            total = torch.stack([(number + 1) * term.total for number, term in enumerate(terms.values())]).sum()
            made = torch.autograd.grad(total, parameters, allow_unused=True)
        return {key: term.total.item() for key, term in terms.items()}, list(made), seen.most

    whole, chunked = found("whole"), found("chunked")
    assert whole[2] >= rows > 4 >= chunked[2] > 0
    assert chunked[0] == pytest.approx(whole[0], rel=1e-10)
    for one, other in zip(chunked[1], whole[1], strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", ["lm decoder, packed", "lm encoder", "seq2seq", "asr"])
def test_an_evaluation_has_the_same_figures_and_never_all_logits(name: str, tmp_path: Path, monkeypatch):
    task = CASES[name].prepared(tmp_path).make_task()
    model: Any = task.model().eval()
    dataset = task.dataset("valid")
    examples = [dataset.example(index, torch_rng()) for index in range(min(4, len(dataset.lengths)))]
    batch = dataset.collate([[example] for example in examples])
    batch.extra |= {key: [None] * len(examples) for key in ("references", "transcribed") if key in batch.extra}

    def figures() -> tuple[dict[str, float], int]:
        meters = task.meters("valid")
        with torch.no_grad(), few_rows_at_once(), Logits(model.vocab_size) as seen:
            meters.update(model, batch)
        return dict(meters.sums()), seen.most

    whole = figures()
    monkeypatch.setattr(cross_entropy, "MANY_LOGITS", 1)
    chunks = figures()
    assert whole[1] > 4 >= chunks[1] > 0
    assert chunks[0] == pytest.approx(whole[0], rel=1e-5)


def torch_rng() -> Any:
    import numpy as np

    return np.random.default_rng(0)


def test_losses_of_targets_are_made_some_rows_at_a_time():
    head, targets = drawn(40, 30, 8, False, 4)
    counted = targets.clamp(min=0)
    with few_rows_at_once() as most, Logits(30) as seen:
        nats, right = target_losses(head, counted)
    assert seen.most == most
    torch.testing.assert_close(nats, F.cross_entropy(head.logits().float(), counted, reduction="none"))
    assert torch.equal(right, head.logits().argmax(-1) == counted)


def test_auto_leaves_few_logits_whole_and_to_their_bits(monkeypatch):
    model: Any = types.SimpleNamespace(vocab_size=100)
    targets = torch.zeros(10, dtype=torch.long)
    loss = make_loss(LossConfig(auxiliary={"z_loss": 0.1}), logits="auto")
    assert loss.model_options(model, targets) == {}
    monkeypatch.setattr(cross_entropy, "MANY_LOGITS", 1000)
    assert loss.model_options(model, targets) == {"project": False}
    assert loss.model_options(model, targets[1:]) == {}
    focal = make_loss(LossConfig.model_validate({"main": {"type": "focal"}}), logits="auto")
    assert focal.model_options(model, targets) == {}


def test_a_loss_that_reads_logits_gets_them_of_a_head():
    head, targets = drawn(12, 7, 5, True, 5)
    focal = make_loss(LossConfig.model_validate({"main": {"type": "focal"}}))
    own, usual = (losses_of_logits(focal, (), one, targets, "token")["focal"].total for one in (head, head.logits()))
    assert torch.equal(own, usual)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["training.loss=focal"], "the loss focal reads them all; expected whole"),
        (["training.loss.auxiliary={huber: 1.0}"], "the loss huber reads them all"),
        (["training.performance.logits=liger", "training.device=cpu"], "liger runs on CUDA, and device is cpu"),
        (["training.performance.logits=liger", "training.loss.auxiliary={z_loss: 1}"], "liger has no z_loss"),
        (["distillation={teacher: runs/a}"], "compared with its teacher's"),
    ],
)
def test_what_needs_all_logits_is_refused(options: list[str], message: str, tmp_path: Path):
    recipe = Path(__file__).parents[3] / "configs" / "quickstart.yml"
    with pytest.raises(ConfigError, match=f"training.performance.logits: .*{message}"):
        load([recipe], ["training.performance.logits=chunked", *options])


def test_liger_is_called_by_its_signature(monkeypatch):
    """The class stands for liger-kernel's, whose kernels need CUDA, with the arguments of version 0.8."""

    class LigerFusedLinearCrossEntropyLoss:
        def __init__(
            self, ce_weight=None, ignore_index=-100, lse_square_scale=0.0, label_smoothing=0.0, reduction="mean"
        ):
            assert (ce_weight, ignore_index, lse_square_scale, reduction) == (None, -100, 0.0, "sum")
            self.smoothing = label_smoothing

        def __call__(self, lin_weight, _input, target, bias=None):
            assert _input.ndim == 2
            assert target.ndim == 1
            return F.cross_entropy(
                F.linear(_input, lin_weight, bias), target, reduction="sum", label_smoothing=self.smoothing
            )

    module: Any = types.ModuleType("liger_kernel.transformers")
    module.LigerFusedLinearCrossEntropyLoss = LigerFusedLinearCrossEntropyLoss
    monkeypatch.setitem(sys.modules, "liger_kernel", types.ModuleType("liger_kernel"))
    monkeypatch.setitem(sys.modules, "liger_kernel.transformers", module)
    head, targets = drawn(12, 7, 5, True, 6)
    with pytest.raises(UserError, match="liger runs on CUDA, and this is cpu"):
        liger_cross_entropy(head, targets)
    monkeypatch.setattr(cross_entropy, "LIGER_DEVICES", ("cpu",))
    loss = make_loss(LossConfig(label_smoothing=0.1), logits="liger")
    assert loss.model_options(torch.nn.Module(), targets) == {"project": False}
    total = losses_of_logits(loss, (), head, targets, "token")["cross_entropy"].total
    torch.testing.assert_close(total, plain(head, targets, 0.1)[0], **EXACT)


def test_without_liger_a_line_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    monkeypatch.setattr(cross_entropy, "LIGER_DEVICES", ("cpu",))
    with pytest.raises(UserError, match=r"liger requires liger-kernel: pip install 'vaak\[liger\]'"):
        liger_cross_entropy(*drawn(3, 4, 5, False, 7))


def test_the_installed_liger_takes_these_arguments():
    loss = pytest.importorskip("liger_kernel.transformers").LigerFusedLinearCrossEntropyLoss
    loss(ignore_index=-100, label_smoothing=0.1, reduction="sum")


@pytest.mark.parametrize(("rows", "is_in_parts"), [(3, False), (6, True), (18, False)])
@pytest.mark.parametrize("bias", [False, True])
def test_logits_of_a_few_rows_are_computed_in_parts_for_the_same_numbers(
    rows: int, is_in_parts: bool, bias: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cross_entropy, "MANY_WEIGHTS", 1)
    monkeypatch.setattr(cross_entropy, "CLASSES_AT_ONCE", 7)
    inputs, _ = drawn(rows, 30, 5, bias, 0)
    hidden, weight, own_bias = (None if one is None else one.detach().float() for one in inputs)
    assert hidden is not None
    assert weight is not None
    inputs, parts = HeadInputs(hidden.unflatten(0, (rows // 3, 3)), weight, own_bias), list[int]()
    split = cross_entropy._logits_in_parts
    monkeypatch.setattr(cross_entropy, "_logits_in_parts", lambda *args: parts.append(1) or split(*args))
    with torch.no_grad():
        found = inputs.logits()
    assert bool(parts) == is_in_parts
    torch.testing.assert_close(found, F.linear(*inputs), rtol=1e-6, atol=1e-6)
    inputs.logits()
    halved = None if own_bias is None else own_bias.bfloat16()
    HeadInputs(inputs.hidden.bfloat16(), weight.bfloat16(), halved).logits()
    assert len(parts) == is_in_parts, "gradients and other types take the product as it is"
