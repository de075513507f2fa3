"""A task of a few functions keeps the contract; a mistake in one is a line."""

from typing import Any

import pytest
import torch
from torch import nn

import vaak
from vaak.testing import check_counts, check_learning, check_padding

QUICK = (check_counts, check_padding, check_learning)


class Line(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, inputs):
        return self.layer(inputs).squeeze(-1)


def squares(model, batch):
    return (model(batch["inputs"]) - batch["targets"]) ** 2  # one for each row


def points(seed):
    drawn = torch.randn(20, 2, generator=torch.Generator().manual_seed(seed))
    return torch.utils.data.TensorDataset(drawn, drawn.sum(1))


def make_task(**changed):
    given: dict[str, Any] = {"data": {"train": points(0), "valid": points(1)}, "model": Line, "loss": squares}
    return vaak.SimpleTask(**given | changed)


def test_it_keeps_the_whole_contract(vowels):
    vaak.check(vowels.vowels, learning_rate=0.1, inputs=["queue"])
    vaak.check(vowels.Vowels, learning_rate=0.1, checks=QUICK)


@pytest.mark.slow
def test_a_torch_dataset_and_values_for_each_row():
    vaak.check(make_task(), learning_rate=0.1)


def test_a_mean_is_found_out():
    with pytest.raises(AssertionError, match=r"is the mean over each example .* a Term's total is a sum, not a mean"):
        vaak.check(make_task(loss=lambda m, b: (squares(m, b).mean(), "example")), checks=(check_padding,))


def test_several_losses_and_a_model_that_is_there_already(tmp_path):
    def losses(model, batch):
        return {
            "squares": squares(model, batch),
            "size": (model.layer.weight.square().sum() * len(batch["inputs"]), "example"),
        }

    model = Line()
    start = model.layer.weight.detach().clone()
    run = vaak.fit(make_task(loss=losses, model=model), tmp_path / "run", max_steps=2, learning_rate=0.1, device="cpu")
    assert run.metrics["val_loss"] == pytest.approx(run.metrics["val_squares"] + run.metrics["val_size"])
    assert torch.equal(model.layer.weight, start)
    assert not torch.equal(run.model.get_parameter("layer.weight"), start)
    assert run.evaluate(points(2)).keys() == {"loss", "squares", "size"}


def test_without_valid_nothing_is_evaluated(tmp_path):
    run = vaak.fit(make_task(data=[([0.0, 1.0], 1.0)] * 4), str(tmp_path / "run"), epochs=1, device="cpu")
    assert run.metrics == {}
    assert run.history("epoch")[-1]["train_loss"] > 0
    assert run.evaluate("train")["train_loss"] > 0


def mean(model, batch):
    return squares(model, batch).mean()


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"data": {"train": [1], "val": [1]}}, "data has a split val; it is called valid"),
        ({"data": {"valid": [1]}}, "data has no split train; it has valid"),
        ({"data": {"train": 3}}, "the data of train are a int; expected a list"),
        ({"loss": 3}, "loss is a int; expected a function"),
        (
            {"loss": mean},
            r"loss\(model, batch\) gave a Tensor of shape \(\); expected vaak.Term\(sum, per=unit\).*example 4",
        ),
        ({"loss": lambda m, b: None}, r"loss\(model, batch\) gave a NoneType"),
        ({"loss": lambda m, b: (mean(m, b), 4)}, r"loss\(model, batch\) gave a tuple; .* the batch counts example 4"),
        ({"loss": lambda m, b: (mean(m, b), "row")}, "the loss loss is a sum per row, but the batches count example"),
        ({"model": lambda: None}, r"SimpleTask.model\(\) gave None; expected a torch.nn.Module"),
        ({"collate": lambda examples: examples}, "collate of train gave a list; expected a vaak.Batch"),
        ({"metrics": {"off": mean}}, r"the metric off gave a Tensor of shape \(\)"),
    ],
)
def test_mistakes_are_one_line(changed, said, tmp_path):
    with pytest.raises(vaak.UserError, match=said) as caught:
        vaak.fit(make_task(**changed), tmp_path / "run", max_steps=1, batch_size=4, device="cpu")
    assert "\n" not in str(caught.value)


def test_no_predict_is_said(tmp_path):
    run = vaak.fit(make_task(), tmp_path / "run", max_steps=1, device="cpu")
    with pytest.raises(vaak.UserError, match="has no predict: give it predict="):
        run.predict([0.0, 1.0])


class Wrong(vaak.Task):
    """A task that does everything right, which subclasses don't."""

    def dataset(self, split):
        return make_task().dataset(split)

    def model(self):
        return Line()

    def losses(self, model, batch):
        return {"squares": vaak.Term(squares(model, batch).sum(), per="example")}


class GivesTensor(Wrong):
    def losses(self, model, batch):
        return squares(model, batch).sum()


class GivesNumbers(Wrong):
    def losses(self, model, batch):
        return {"squares": squares(model, batch).sum()}


class GivesRows(Wrong):
    def losses(self, model, batch):
        return {"squares": vaak.Term(squares(model, batch), per="example")}


class HasNoModel(Wrong):
    def model(self):
        pass


class GivesTorchs(Wrong):
    def dataset(self, split):
        return points(0)


class Unmeasured(vaak.Dataset):
    def example(self, index, rng):
        return index


class HasNoLengths(Wrong):
    def dataset(self, split):
        return Unmeasured()


class Dicts(vaak.Dataset):
    def __init__(self):
        self.lengths, self.fingerprint = make_task().dataset("train").lengths, "x"

    def example(self, index, rng):
        return index

    def collate(self, rows):
        return {"inputs": torch.ones(2)}


class CollatesDicts(Wrong):
    def dataset(self, split):
        return Dicts()


class MeasuresNothing(Wrong):
    def meters(self, split):
        pass


class HasNothing(vaak.Task):
    pass


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            GivesTensor,
            r"GivesTensor.losses\(model, batch\) gave a Tensor of shape \(\); expected a dict",
        ),
        (
            GivesNumbers,
            r"the loss squares of GivesNumbers.losses.* gave a Tensor of shape \(\); expected vaak.Term",
        ),
        (GivesRows, r"the loss squares of GivesRows.* has a Tensor of shape \(4,\) as its total; expected one number"),
        (HasNoModel, r"HasNoModel.model\(\) gave None; expected a torch.nn.Module"),
        (GivesTorchs, r"GivesTorchs.dataset\('train'\) gave a TensorDataset; expected a vaak.Dataset"),
        (HasNoLengths, r"gave a Unmeasured without lengths, which vaak.Dataset describes: set it"),
        (CollatesDicts, r"Dicts.collate\(rows\) gave a dict; expected vaak.Batch\(tensors, counts\)"),
        (MeasuresNothing, r"MeasuresNothing.meters\('valid'\) gave None; expected a vaak.Meters"),
        (HasNothing, r"HasNothing has no dataset\(split\), which"),
    ],
)
def test_mistakes_of_classes_are_one_line(task, said, tmp_path):
    with pytest.raises(vaak.UserError, match=said) as caught:
        vaak.fit(task, tmp_path / "run", max_steps=1, batch_size=4, device="cpu")
    assert "\n" not in str(caught.value)


def test_a_class_has_figures_without_saying_so(tmp_path):
    run = vaak.fit(Wrong, tmp_path / "run", max_steps=1, batch_size=4, device="cpu")
    assert run.metrics.keys() == {"val_loss"}
