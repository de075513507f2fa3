"""The first non-finite value is located: a weight, the data, a module, code between modules, a loss, a backward."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from backwards import NanBackwards
from vaak.core.batch import Batch, Term
from vaak.engine.inspection import ModulePlace, NonFiniteFinding, culprits, first_non_finite, watching


class Attention(nn.Module):
    """Its products and its softmax aren't modules. ``forwards`` and ``backwards`` are done to the scores."""

    def __init__(self, forwards: Callable[[Tensor], Tensor] = lambda scores: scores) -> None:
        super().__init__()
        self.query, self.key, self.output = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
        self.forwards = forwards

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-1, -2)
        if mask is not None:
            scores = scores + mask
        return self.output(self.forwards(scores).softmax(-1) @ x)


class Block(nn.Module):
    """Attention, an identity and an in-place activation, added to what comes in; ``recompute`` keeps no activations."""

    def __init__(self, attention: Attention) -> None:
        super().__init__()
        self.attention, self.identity, self.activation = attention, nn.Identity(), nn.ReLU(inplace=True)
        self.norm, self.recompute = nn.LayerNorm(4), False

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        attention: Any = self.attention
        attended = checkpoint(attention, x, mask, use_reentrant=False) if self.recompute else attention(x, mask=mask)
        return self.norm(x + self.activation(self.identity(attended)))


class Model(nn.Module):
    def __init__(self, forwards: Callable[[Tensor], Tensor] = lambda scores: scores, recompute: bool = False) -> None:
        super().__init__()
        self.first, self.blocks = nn.Linear(4, 4), nn.ModuleList()
        for attention in (Attention(), Attention(), Attention(forwards)):
            block = Block(attention)
            block.recompute = recompute
            self.blocks.append(block)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x, mask = self.first(x), torch.zeros(x.shape[1], x.shape[1]).masked_fill(torch.ones(()).bool(), 0.0)
        mask[:, 0] = float("-inf")
        for block in self.blocks:
            x = block(x, mask)
        return self.head(x)


def a_batch(rows: int = 3) -> Batch:
    features = torch.randn(rows, 5, 4, generator=torch.Generator().manual_seed(1))
    return Batch({"features": features}, {"frame": torch.full((rows,), 5)}, [[10 + row] for row in range(rows)])


def found(
    model: nn.Module, batch: Batch | None = None, loss: Callable[[Tensor], Tensor] = Tensor.sum
) -> NonFiniteFinding | None:
    def terms(batch: Batch) -> dict[str, Term]:
        outputs = model(batch["features"])
        return {"plain": Term(outputs.square().sum(), "frame"), "other": Term(loss(outputs), "frame")}

    def descend(terms: dict[str, Term]) -> None:
        torch.stack([term.total for term in terms.values()]).sum().backward()

    return first_non_finite(model, batch or a_batch(), terms, descend).finding


either = pytest.mark.parametrize("recompute", [False, True], ids=["", "recomputed"])


@either
def test_nothing_is_found_where_all_is_finite(recompute: bool):
    assert found(Model(recompute=recompute)) is None


@either
def test_a_weight(recompute: bool):
    model = Model(recompute=recompute)
    with torch.no_grad():
        model.get_parameter("blocks.1.attention.key.weight")[2, 1] = math.nan
    name = "blocks.1.attention.key"
    assert found(model) == NonFiniteFinding("weight", ModulePlace(name, "output"), f"{name}.weight", None, "plain")


def test_data_and_a_weight_that_is_to_blame_before_it():
    batch, model = a_batch(), Model()
    batch["features"][1, 2, 3] = math.inf
    assert found(model, batch) == NonFiniteFinding("data", ModulePlace("model", "input"), None, "features", "plain")
    with torch.no_grad():
        model.head.bias[0] = math.nan
    finding = found(model, batch)
    assert finding is not None
    assert (finding.kind, finding.parameter) == ("weight", "head.bias")


def test_a_buffer_is_to_blame_for_its_own_module_alone():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(5), nn.Linear(4, 4)).eval()
    model.get_buffer("1.running_var")[2] = math.nan
    assert found(model) == NonFiniteFinding("weight", ModulePlace("1", "output"), "1.running_var", None, "plain")
    model = nn.Sequential(nn.Threshold(1e9, math.nan), nn.BatchNorm1d(5), nn.Linear(4, 4))
    for _ in range(2):  # the first leaves a NaN in the running mean
        assert found(model) == NonFiniteFinding("output", ModulePlace("0", "output"), loss="plain")
    assert model.get_buffer("1.running_mean").isnan().any()


@either
def test_code_between_the_parts_of_a_module_is_its_own(recompute: bool):
    model = Model(lambda scores: scores + torch.where(scores > -1e9, math.nan, 0.0), recompute)
    assert found(model) == NonFiniteFinding(
        "output", ModulePlace("blocks.2.attention", "inside, before blocks.2.attention.output"), loss="plain"
    )


def test_code_behind_the_parts_of_a_module_is_its_own():
    class Tail(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return (self.inner(x) - 1e9).exp().log() * 0

    model = nn.Sequential(nn.Linear(4, 4), Tail())
    assert found(model) == NonFiniteFinding("output", ModulePlace("1", "output"), loss="plain")


def test_a_loss():
    finding = found(Model(), loss=lambda outputs: (outputs - outputs).sum() / 0)
    assert finding == NonFiniteFinding("loss", None, loss="other")


@either
def test_a_backward_pass_inside_a_module(recompute: bool):
    finding = found(Model(NanBackwards.apply, recompute))
    assert finding is not None
    assert finding.place is not None
    assert (finding.kind, finding.place.module) == ("gradient", "blocks.2.attention")
    assert finding.place.where.startswith("backward, after blocks.2.attention.")


class Planted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return NanBackwards.apply(x)


@pytest.mark.parametrize("where", ["0", "1", "2", "3"])
def test_a_backward_pass_of_a_module(where: str):
    model = nn.Sequential(nn.Linear(4, 4), nn.Identity(), nn.ReLU(), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    model[int(where)] = nn.Sequential(nn.Linear(4, 4), Planted(), nn.Identity())
    assert found(model) == NonFiniteFinding("gradient", ModulePlace(f"{where}.1", "backward"))


def test_a_backward_pass_of_a_loss():
    finding = found(Model(), loss=lambda outputs: NanBackwards.apply(outputs).sum())
    assert finding == NonFiniteFinding("gradient", ModulePlace("model", "gradient of its output"))


def test_a_gradient_of_a_weight_alone():
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return x * NanBackwards.apply(self.scale)

    finding = found(nn.Sequential(nn.Linear(4, 4), Scaled()))
    assert finding == NonFiniteFinding("gradient", ModulePlace("1", "gradient of a weight", "1.scale"), "1.scale")


@either
def test_watching_changes_no_output_and_leaves_no_hook(recompute: bool):
    torch.manual_seed(3)
    model, batch = Model(recompute=recompute), a_batch()
    plain = model(batch["features"])
    plain.sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad(set_to_none=True)
    with watching(model) as watch:
        outputs = model(batch["features"])
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    watch.backward(outputs.sum().backward)
    assert torch.equal(outputs, plain)
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
        assert not parameter._backward_hooks


def test_of_a_compiled_model_the_plain_one_is_watched():
    model = Model()
    compiled: Any = torch.compile(model, backend="eager")
    with watching(compiled) as watch:
        watch.model(a_batch()["features"])
    assert watch.model is model
    assert watch.statistics[0].module == "first"


def test_hooks_go_even_where_the_forward_raises():
    model = Model()
    with pytest.raises(RuntimeError), watching(model):
        model(torch.zeros(2, 5, 3))
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_no_graph_is_kept():
    model = Model()
    with watching(model) as watch:
        outputs = model(a_batch()["features"])
    graph = weakref.ref(outputs)
    del outputs
    gc.collect()
    assert graph() is None
    assert watch.statistics


def test_statistics_of_every_module_in_order():
    model = Model()
    with watching(model) as watch, torch.no_grad():
        outputs = model(a_batch()["features"])
    names = [module.module for module in watch.statistics]
    assert names[:4] == ["first", "blocks.0.attention.query", "blocks.0.attention.key", "blocks.0.attention.output"]
    assert names[-2:] == ["head", "model"]
    assert set(names) == {name or "model" for name, _ in model.named_modules()} - {"blocks"}
    last = watch.statistics[-1]
    assert (last.kind, last.shape, last.non_finite) == ("Model", (3, 5, 3), 0.0)
    assert last.mean == pytest.approx(float(outputs.mean()))
    assert last.std == pytest.approx(float(outputs.std(correction=0)))
    assert last.absolute_maximum == pytest.approx(float(outputs.abs().max()))


@dataclass
class Wrapped:
    hidden: dict[str, Any]
    count: int


def test_statistics_of_nested_outputs_are_of_their_finite_values():
    class Nested(nn.Module):
        def forward(self, x: Tensor) -> Wrapped:
            return Wrapped({"a": (x, [torch.ones(2, dtype=torch.int64)]), "b": torch.complex(x, x * math.nan)}, 3)

    with watching(Nested()) as watch:
        watch_model = watch.model
        watch_model(torch.tensor([1.0, 3.0]))
    (seen,) = watch.statistics
    assert (seen.shape, seen.mean, seen.std, seen.absolute_maximum) == ((2,), 2.0, 1.0, 3.0)
    assert seen.non_finite == pytest.approx(1 / 3)
    with watching(nn.Identity()) as watch:
        watch.model(torch.full((2,), math.nan))
    assert watch.statistics[0].non_finite == 1.0
    assert math.isnan(watch.statistics[0].mean)


@given(st.integers(1, 17).flatmap(lambda rows: st.tuples(st.just(rows), st.sets(st.integers(0, rows - 1), min_size=1))))
def test_culprits_are_the_rows_that_show_it_alone(case: tuple[int, set[int]]):
    rows, bad = case

    def is_finite(batch: Batch) -> bool:
        return not bad & {row[0] - 10 for row in batch.indices}

    assert set(culprits(a_batch(rows), is_finite)) == {10 + row for row in bad}


@given(st.integers(1, 17))
def test_where_no_half_shows_it_all_rows_are_to_blame(rows: int):
    batch = a_batch(rows)
    assert culprits(batch, lambda some: some.num_rows < rows) == [10 + row for row in range(rows)]


def test_culprits_are_looked_for_in_halves():
    """Two rows that are bad together only: they are in one half, though in two of three parts."""
    assert culprits(a_batch(3), lambda some: not {10, 11} <= {row[0] for row in some.indices}) == [10, 11]
