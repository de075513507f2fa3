"""A user's auxiliary losses: sums with their unit, weighed, trained and saved where they have weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from toy import ToyTask, toy_trainer
from vaak.config.base import REGISTERED
from vaak.config.components import register_auxiliary_loss, register_loss
from vaak.config.training import LossConfig
from vaak.core.batch import Term
from vaak.core.errors import UserError
from vaak.nn.losses import auxiliary_losses, losses_of_logits, make_loss


class Entropy:
    """The entropy of predictions times ``power``, summed over places that count."""

    def __init__(self, power: float = 1.0) -> None:
        self.power = power

    def __call__(self, outputs: Tensor, targets: Tensor, valid: Tensor, per: str) -> Term:
        logs = outputs.log_softmax(-1)
        return Term(-self.power * (logs.exp() * logs).sum(-1)[valid].sum(), per)


def size(outputs: Tensor, targets: Tensor, valid: Tensor, per: str, factor: float = 1.0) -> Term:
    return Term(factor * outputs.square().mean(-1)[valid].sum(), per)


class WithWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, outputs: Tensor, targets: Tensor, valid: Tensor, per: str) -> Term:
        return Term((self.scale * outputs).square().mean(-1)[valid].sum(), per)


def a_mean(outputs: Tensor, targets: Tensor, valid: Tensor, per: str) -> Tensor:
    return outputs.mean()


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("training.loss.main", "training.loss.auxiliary"):
        monkeypatch.setitem(REGISTERED, key, {})
    for loss in (Entropy, size, WithWeights, a_mean):
        register_auxiliary_loss(loss.__name__.lower(), loss)


class PerTarget(nn.Module):
    """A loss as the main one may be: of outputs and targets that count, with a value for each."""

    def __init__(self, power: float = 1.0) -> None:
        super().__init__()
        self.power = power

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets, reduction="none") ** self.power


class AsMean(nn.Module):
    """The same as a mean."""

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, targets)


def function_of_two(outputs: Tensor, targets: Tensor, power: float = 1.0) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none") ** power


def of_three(outputs: Tensor, targets: Tensor, masks: Tensor) -> Tensor:
    return outputs.sum()


def config(**auxiliary: object) -> LossConfig:
    return LossConfig.model_validate({"auxiliary": auxiliary})


def a_batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(2, 5, 7, generator=generator, requires_grad=True)
    targets = torch.randint(7, (2, 5), generator=generator)
    valid = torch.tensor([[True] * 5, [True] * 2 + [False] * 3])
    return outputs, targets, valid


def test_its_term_stands_next_to_the_main_loss():
    outputs, targets, valid = a_batch()
    chosen = config(entropy=0.5, small={"type": "size", "weight": 0.1, "factor": 2.0}, z_loss=1e-4)
    terms = losses_of_logits(make_loss(chosen), chosen.auxiliary, outputs, targets, "token", valid)
    assert list(terms) == ["cross_entropy", "entropy", "small", "z_loss"]
    assert terms["small"].per == "token"
    torch.testing.assert_close(terms["small"].total, 2 * outputs.square().mean(-1)[valid].sum())
    assert auxiliary_losses(chosen) == {"entropy": 0.5, "small": 0.1, "z_loss": 1e-4}


def test_one_in_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from vaak.core.batch import Term\n"
        "def first(outputs, targets, valid, per):\n"
        "    return Term(outputs[valid][:, 0].sum(), per)\n"
    )
    outputs, targets, valid = a_batch()
    chosen = config(first={"type": "./mine.py:first", "weight": 1.0})
    terms = losses_of_logits(make_loss(chosen, tmp_path), chosen.auxiliary, outputs, targets, "token", valid)
    torch.testing.assert_close(terms["first"].total, outputs[valid][:, 0].sum())


@pytest.mark.parametrize("loss", [PerTarget, AsMean, function_of_two])
@pytest.mark.parametrize("register", [register_loss, register_auxiliary_loss])
def test_one_of_outputs_and_targets_is_what_it_is_as_the_main_loss(loss, register):
    register("own", loss)
    outputs, targets, valid = a_batch()
    chosen = LossConfig.model_validate({"main": {"type": "focal"}, "auxiliary": {"own": 0.1}})
    terms = losses_of_logits(make_loss(chosen), chosen.auxiliary, outputs, targets, "token", valid)
    assert terms["own"].per == "token"
    expected = nn.functional.cross_entropy(outputs[valid], targets[valid], reduction="sum")
    torch.testing.assert_close(terms["own"].total, expected)


@pytest.mark.parametrize("loss", [PerTarget, function_of_two])
def test_one_of_outputs_and_targets_has_its_options(loss):
    register_auxiliary_loss("own", loss)
    outputs, targets, valid = a_batch()
    chosen = config(squared={"type": "own", "weight": 1, "power": 2.0})
    terms = losses_of_logits(make_loss(chosen), chosen.auxiliary, outputs, targets, "token", valid)
    each = nn.functional.cross_entropy(outputs[valid], targets[valid], reduction="none")
    torch.testing.assert_close(terms["squared"].total, each.square().sum())


def test_a_built_in_main_loss_may_be_auxiliary():
    outputs, targets, valid = a_batch()
    alone = make_loss(LossConfig.model_validate({"main": {"type": "focal", "gamma": 3.0}}))
    chosen = config(sure={"type": "focal", "weight": 0.5, "gamma": 3.0})
    terms = losses_of_logits(make_loss(chosen), chosen.auxiliary, outputs, targets, "token", valid)
    torch.testing.assert_close(terms["sure"].total, alone(outputs, targets, valid).total)


def test_one_whose_result_has_another_shape_is_named():
    register_loss("own", type("Wrong", (nn.Module,), {"forward": lambda self, outputs, targets: outputs}))
    outputs, targets, valid = a_batch()
    chosen = config(own=1.0)
    with pytest.raises(UserError, match=r"^training.loss.auxiliary.own: own must give one number or one for each"):
        losses_of_logits(make_loss(chosen), chosen.auxiliary, outputs, targets, "token", valid)


@pytest.mark.parametrize("key", ["main", "auxiliary.own"])
def test_other_arguments_are_refused_before_there_are_data(key):
    register_loss("own", type("Wrong", (nn.Module,), {"forward": lambda self, outputs, targets, masks: outputs}))
    register_auxiliary_loss("function", of_three)
    chosen = {"main": {"type": "own"}} if key == "main" else {"auxiliary": {"own": 1.0}}
    message = rf"^training.loss.{key}: own is called with \(outputs, targets\).*it takes \(outputs, targets, masks\)"
    with pytest.raises(UserError, match=message):
        make_loss(LossConfig.model_validate(chosen))


def test_a_loss_registered_again_replaces_the_first():
    for power in (1.0, 2.0):
        register_loss("own", type("Own", (PerTarget,), {"power": power, "__init__": nn.Module.__init__}))
    outputs, targets, valid = a_batch()
    chosen = config(own=1.0)
    terms = losses_of_logits(make_loss(chosen), chosen.auxiliary, outputs, targets, "token", valid)
    each = nn.functional.cross_entropy(outputs[valid], targets[valid], reduction="none")
    torch.testing.assert_close(terms["own"].total, each.square().sum())


def test_a_module_has_its_weights_trained_and_saved():
    loss = make_loss(config(own={"type": "withweights", "weight": 0.3}))
    assert list(loss.modules()) == ["main", "auxiliary_own"]
    assert list(nn.ModuleDict(loss.modules()).state_dict()) == ["auxiliary_own.scale"]


@pytest.mark.parametrize(
    ("auxiliary", "message"),
    [
        (
            {"own": {"type": "entropy", "weight": 1, "powr": 2}},
            "own: entropy has no option powr; its options are power",
        ),
        ({"own": {"type": "size", "weight": 1, "valid": 2}}, "own: size has no option valid; its options are factor"),
        ({"own": {"type": "entropi", "weight": 1}}, "'entropi' is not known; .*did you mean entropy"),
        ({"cross_entropy": {"type": "entropy", "weight": 1}}, "this is the name of the main loss"),
        ({"an entropy": {"type": "entropy", "weight": 1}}, "a loss is named by letters, digits and underscores"),
    ],
)
def test_mistakes_are_one_line(auxiliary, message):
    with pytest.raises(UserError, match=f"^training.loss.auxiliary.*{message}") as error:
        make_loss(config(**auxiliary))
    assert "\n" not in str(error.value)


def test_a_loss_that_is_not_a_sum_with_its_unit_is_refused():
    outputs, targets, valid = a_batch()
    chosen = config(a_mean=1.0)
    with pytest.raises(UserError, match=r"auxiliary.a_mean gives Tensor; expected vaak.core.batch.Term"):
        losses_of_logits(make_loss(chosen), chosen.auxiliary, outputs, targets, "token", valid)


def test_a_name_of_the_task_is_the_tasks():
    with pytest.raises(UserError, match="balance: the task has a loss of this name"):
        auxiliary_losses(config(balance={"type": "entropy", "weight": 1}), ["balance"])


def test_it_is_trained_on_with_its_weight(tmp_path):
    losses = {"auxiliary": {"small": {"type": "size", "weight": 50.0}}}
    plain, small = (toy_trainer(tmp_path / str(number), loss=loss) for number, loss in enumerate(({}, losses)))
    for trainer in (plain, small):
        trainer.fit()
    assert small.loss_weights == {"small": 50.0}
    outputs = [trainer.model(torch.arange(9)[None]).square().mean() for trainer in (plain, small)]
    assert outputs[1] < outputs[0]
    assert isinstance(small.task, ToyTask)
