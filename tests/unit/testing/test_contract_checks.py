"""Every check of the contract fails on a task with the defect it is for, and passes on the task of docs/testing.md."""

from __future__ import annotations

import random
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from commands import Commands
from vaak import testing
from vaak.core.batch import Batch, Term
from vaak.tasks.base import as_term
from vaak.testing import CHECKS, Case, check_task

ROOT = Path(__file__).parents[3]


def documented() -> SimpleNamespace:
    """Return the names that the first block of docs/testing.md defines."""
    source = re.search(r"```python\n(# vowels\.py\n.*?)```", (ROOT / "docs" / "testing.md").read_text(), re.DOTALL)
    assert source is not None
    names: dict[str, Any] = {"__name__": "vowels"}
    exec(compile(source[1], "vowels.py", "exec"), names)
    return SimpleNamespace(**names)


vowels = documented()
Words: Any = vowels.Words
VowelTask: Any = vowels.VowelTask
VowelModel: Any = vowels.VowelModel
VowelMeters: Any = vowels.VowelMeters


def real_letters(batch: Batch) -> dict[str, float]:
    return {"letter": float((batch["targets"] != vowels.NOWHERE).sum())}


def case(make_task: Any) -> Case:
    return Case(make_task, inputs=["queue", "rhythm"], counted=real_letters, learning_rate=0.1)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_sound_task_passes(check):
    check(case(VowelTask))


# Defects of the data.


class DrawsElsewhere(Words):
    def example(self, index, rng):
        return super().example(index, np.random.default_rng(np.random.randint(1 << 30)))


class DrawsWhereItSays(DrawsElsewhere):
    draws_globally = True


class Remembers(Words):
    def example(self, index, rng):
        self.words[index] = super().example(index, rng)[0]  # smudged for ever, and a little more each time
        return super().example(index, rng)


class CollateDraws(Words):
    def collate(self, rows):
        batch = super().collate(rows)
        batch.tensors["noise"] = torch.randn(batch.num_rows)
        return batch


class CollateChanges(Words):
    def collate(self, rows):
        batch = super().collate(rows)
        for row in rows:
            for letters, _ in row:
                letters.sort()
        return batch


class ShortLengths(Words):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lengths -= 1


class CountsWhatIsPadded(Words):
    def collate(self, rows):
        batch = super().collate(rows)
        return Batch(batch.tensors, {"letter": torch.full((batch.num_rows,), batch["letters"].shape[1])})


class CountsTheBatch(Words):
    def collate(self, rows):
        batch = super().collate(rows)
        return Batch(batch.tensors, {"letter": batch.counts["letter"].sum()[None]})


class CountsAnotherUnit(Words):
    def collate(self, rows):
        batch = super().collate(rows)
        return Batch(batch.tensors, {"word": torch.ones(batch.num_rows), "letter of words": batch.counts["letter"]})


def with_data(kind: Any) -> Any:
    class Task(VowelTask):
        def dataset(self, split):
            return kind(split, 40 if split == "train" else 20)

    return Task


def test_a_dataset_that_says_that_it_draws_globally_may():
    testing.check_examples(case(with_data(DrawsWhereItSays)))


# Defects of the losses.


def with_losses(losses: Any) -> Any:
    class Task(VowelTask):
        def losses(self, model, batch):
            term = super().losses(model, batch)["vowels"]
            return {"vowels": Term(losses(self, model, batch, term.total), "letter")}

    return Task


def scores_padding(task, model, batch, total):
    targets = batch["targets"].clamp(min=0).flatten()
    return nn.functional.cross_entropy(model(batch["letters"]).flatten(0, 1), targets, reduction="sum")


def is_a_mean(task, model, batch, total):
    return total / batch.totals()["letter"]


def is_a_mean_of_rows(task, model, batch, total):
    return total / batch.num_rows


def depends_on_the_others(task, model, batch, total):
    return total * batch.num_rows


def counts_its_calls(task, model, batch, total):
    task.calls = getattr(task, "calls", 0) + 1
    return total * (1 + task.calls / 10)


def draws_from_nowhere(task, model, batch, total):
    return total * (1 + np.random.default_rng().random())


def is_nothing(task, model, batch, total):
    return total * 0


def stays_as_it_is(task, model, batch, total):
    return total.detach() + 0 * total


# Defects of the model and of its use.


class LooksAtPadding(VowelModel):
    def forward(self, letters):
        return super().forward(letters) * (1 + self.embedding(letters).mean((1, 2)))[:, None, None]


class KeepsWeightsBesideItsState(VowelModel):
    def __init__(self):
        super().__init__()
        self.offsets = [torch.randn(2)]

    def forward(self, letters):
        return super().forward(letters) + self.offsets[0]


class CountsItsCalls(VowelModel):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, letters):
        self.calls += 1
        return super().forward(letters) * (1 + self.calls / 10)


class KeepsABufferToItself(VowelModel):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()), persistent=False)

    def forward(self, letters):
        self.seen += letters.numel()
        return super().forward(letters)


def with_model(kind: Any) -> Any:
    class Task(VowelTask):
        def model(self):
            return kind()

    return Task


class DrawsWhenItIsMade(VowelTask):
    def __init__(self):
        self.temperature = 1 + random.random()

    def losses(self, model, batch):
        term = super().losses(model, batch)["vowels"]
        return {"vowels": Term(term.total * self.temperature, "letter")}


class PredictsByLot(VowelTask):
    def predict(self, model, inputs):
        return (np.random.default_rng().random() for _ in inputs)


# Defects of the meters.


class MeanOfMeans(VowelMeters):
    def update(self, model, batch):
        right = float((model(batch["letters"]).argmax(-1) == batch["targets"]).sum())
        self.right += right / batch.totals()["letter"]
        self.letters += 1


class WithoutProtocol(VowelMeters):
    def __init__(self, split):
        super().__init__(split)
        self.protocol = {}


class ChangesWeights(VowelMeters):
    def update(self, model, batch):
        super().update(model, batch)
        model.head.bias += 1e-3


class Freezes(VowelMeters):
    def update(self, model, batch):
        super().update(model, batch)
        model.requires_grad_(False)


class Trains(VowelMeters):
    def update(self, model, batch):
        super().update(model, batch)
        model.dropout.train()


class DrawsOnWeights(VowelMeters):
    def update(self, model, batch):
        super().update(model, batch)
        self.model = model

    def pictures(self):
        self.model.head.bias.data += 1e-3
        return {}


class CountsBeforeItKnows(VowelMeters):
    def update(self, model, batch):
        self.letters += batch.totals()["letter"]
        super().update(model, batch)
        self.letters -= batch.totals()["letter"]


def with_meters(kind: Any) -> Any:
    class Task(VowelTask):
        def meters(self, split):
            return kind(split)

    return Task


DEFECTS = [
    ("check_examples", with_data(DrawsElsewhere), r"example \d+ \(word \d+\) was different"),
    ("check_examples", with_data(Remembers), "was different"),
    ("check_examples", with_data(CollateDraws), "collated twice: tensors not equal"),
    ("check_examples", with_data(CollateChanges), r"collate\(\) changed the examples"),
    ("check_lengths", with_data(ShortLengths), "lengths must be upper bounds"),
    (
        "check_counts",
        with_data(CountsAnotherUnit),
        "vowels is a sum per letter, but the batch counts word, letter of words",
    ),
    ("check_counts", with_data(CountsWhatIsPadded), "case.counted"),
    ("check_padding", with_data(CountsWhatIsPadded), "count of letter"),
    ("check_padding", with_losses(scores_padding), "loss vowels: .* was expected"),
    ("check_padding", with_model(LooksAtPadding), "loss vowels"),
    (
        "check_split",
        with_losses(is_a_mean),
        "mean over each letter of its batch; .* is a sum, not a mean",
    ),
    ("check_split", with_losses(is_a_mean_of_rows), "mean over each row of its batch; .* is a sum, not a mean"),
    ("check_split", with_losses(depends_on_the_others), "2 chunks against the whole batch: loss vowels"),
    ("check_accumulation", with_losses(is_a_mean), "gradient of "),
    ("check_accumulation", with_data(CountsWhatIsPadded), "count of letter"),
    ("check_ranks", with_losses(counts_its_calls), "gradients of 2 ranks"),
    ("check_ranks", with_model(CountsItsCalls), "gradients of 2 ranks"),
    ("check_seeds", with_losses(draws_from_nowhere), "same seed"),
    ("check_seeds", with_losses(is_nothing), "another seed gave the very same losses"),
    ("check_step", with_losses(counts_its_calls), "step 3 of a separate trainer, from the same state: .* not equal"),
    ("check_step", with_losses(draws_from_nowhere), "step 3 of a separate trainer"),
    ("check_step", DrawsWhenItIsMade, "step 3 of a separate trainer"),
    (
        "check_state",
        with_model(CountsItsCalls),
        r"after 2 more steps, .*: model\.module\.calls not equal",
    ),
    ("check_state", with_model(KeepsABufferToItself), r"after 2 more steps, .*: model\.module\.seen not equal"),
    ("check_state", with_model(KeepsWeightsBesideItsState), "restored elsewhere from a checkpoint"),
    ("check_learning", with_losses(stays_as_it_is), "one batch shown 80 times: the loss vowels went from"),
    ("check_saved", with_model(KeepsWeightsBesideItsState), "losses of a model saved and loaded"),
    ("check_saved", PredictsByLot, "predictions"),
    ("check_resume", with_model(CountsItsCalls), "weights of a resumed run"),
    ("check_replay", with_model(CountsItsCalls), "losses of step 3, run again"),
    ("check_metrics", with_meters(MeanOfMeans), "metrics in batches of 5"),
    ("check_metrics", with_meters(WithoutProtocol), "the protocol of valid's metrics says that the split is None"),
    ("check_evaluation", with_meters(ChangesWeights), "the model after an evaluation against before: head.bias"),
    ("check_evaluation", with_meters(DrawsOnWeights), "the model after an evaluation against before: head.bias"),
    ("check_evaluation", with_meters(Freezes), "requires_grad of embedding.weight"),
    ("check_evaluation", with_meters(Trains), "put modules into training mode: dropout"),
    ("check_failing_batch", with_meters(CountsBeforeItKnows), "sums of valid after batches that failed: letters"),
]


@pytest.mark.parametrize(("check", "task", "said"), DEFECTS)
def test_a_defect_is_found(check: str, task: Any, said: str):
    with pytest.raises(AssertionError, match=said):
        getattr(testing, check)(case(task))


def test_there_is_a_defect_for_every_check_and_a_line_in_the_document():
    names = [check.__name__ for check in CHECKS]
    assert {name for name, _, _ in DEFECTS} == set(names)
    document = (ROOT / "docs" / "testing.md").read_text()
    assert re.findall(r"^\| `(check_\w+)` \|", document, re.MULTILINE) == names
    former = {"check_figures"}
    assert {name for name in testing.__all__ if name.startswith("check_")} == {*names, *former, "check_task"}
    assert testing.check_figures is testing.check_metrics


def test_what_the_engine_refuses_is_said_as_well():
    said = r"check_counts: a batch of 4 rows has counts\['letter'\] of shape \(1,\)"
    with pytest.raises(AssertionError, match=said):
        check_task(case(with_data(CountsTheBatch)), [testing.check_counts])


def test_all_that_is_broken_is_said_at_once():
    class Broken(with_data(CountsWhatIsPadded)):  # type: ignore[misc]
        def meters(self, split):
            return WithoutProtocol(split)

    checks = [testing.check_counts, testing.check_metrics, testing.check_lengths]
    with pytest.raises(AssertionError) as raised:
        check_task(case(Broken), checks)
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == ["check_counts", "check_metrics"]


def test_one_mistake_is_said_once():
    class Mean(VowelTask):
        def losses(self, model, batch):
            whole = next(iter(super().losses(model, batch).values())).total
            return {"loss": as_term(whole / batch.num_rows, batch, "loss(model, batch)")}

    with pytest.raises(AssertionError) as raised:
        check_task(case(Mean))
    (line,) = str(raised.value).splitlines()
    assert line.count("check_") > 10
    assert "leave out .mean()" in line


def test_an_error_of_the_task_is_its_own():
    class Raises(VowelTask):
        def losses(self, model, batch):
            raise LookupError("no such letter")

    with pytest.raises(LookupError, match="no such letter") as raised:
        check_task(case(Raises), [testing.check_split])
    assert raised.value.__notes__ == ["in check_split of vaak.testing"]


def test_no_test_framework_is_imported(commands: Commands, tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("import sys, vaak.testing; assert not {'pytest', 'hypothesis'} & set(sys.modules)")
    ended = commands.start([], tmp_path, script=script).wait()
    assert ended.status == 0, ended.errors
