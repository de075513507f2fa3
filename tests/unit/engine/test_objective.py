"""Several objectives in one step: in their order, each over its own parameters, all of them followed or none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backwards import out_of_memory
from quick_cases import mostly_slow
from toy import QUIET, StopAt, same_bits, weights
from toy_duel import Duel, DuelTask
from vaak.callbacks.step_log import StepLogCallback
from vaak.config.training import TrainingConfig
from vaak.core.batch import Batch, Term
from vaak.core.errors import NonFiniteError, UserError
from vaak.core.task import Objective
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint.files import find_latest_checkpoint, list_checkpoints, load_checkpoint
from vaak.engine.metrics_file import read_records
from vaak.engine.trainer import Trainer
from vaak.testing.case import in_float64, same
from vaak.testing.state import contents

RULES = ("adamw", "adam", "sgd", "adafactor", "lion", "muon", "adamw_8bit")
Losses = Callable[[nn.Module, Batch], dict[str, Term]]


class Watched(DuelTask):
    """The duel with something that looks at, or changes, an objective's terms; without dropout in float64, if exact."""

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__()
        self.exact = exact
        self.look: Callable[[str, nn.Module, Batch, dict[str, Term]], dict[str, Term] | None] = lambda *_: None
        self.objectives = tuple(replace(one, losses=self._watched(one)) for one in self.objectives)

    def model(self) -> Duel:
        model = super().model()
        if self.exact:
            model = model.double()
            for module in model.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        return model

    def _watched(self, objective: Objective) -> Losses:
        def losses(model: nn.Module, batch: Batch) -> dict[str, Term]:
            terms = objective.losses(model, in_float64(batch) if self.exact else batch)
            return self.look(objective.name, model, batch, terms) or terms

        return losses


def duel(folder: Path, *callbacks: Callback, task: DuelTask | None = None, **training: Any) -> Trainer:
    """A trainer of the duel: steps of 3, 3, 3 and 1 microbatches, two epochs."""
    folder.mkdir(parents=True, exist_ok=True)
    return Trainer(task or Watched(), TrainingConfig(**(QUIET | training)), folder, callbacks)


def take_steps(trainer: Trainer, number: int = 1) -> list[StepReport]:
    with closing(trainer.data.steps(trainer.position)) as steps:
        return [trainer.take_step(data) for data in itertools.islice(steps, number)]


def of(trainer: Trainer, module: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in weights(trainer).items() if name.startswith(f"{module}.")}


def test_the_second_sees_the_weights_that_the_first_has_left(tmp_path: Path):
    """All microbatches of the first come before any of the second."""
    task = Watched()
    trainer = duel(tmp_path, task=task)
    take_steps(trainer, 2)
    start, seen = weights(trainer), []

    def look(name: str, model: nn.Module, *_: Any) -> None:
        seen.append((name, {key: value.clone() for key, value in model.state_dict().items()}))

    task.look = look
    take_steps(trainer)
    assert [name for name, _ in seen] == ["judge"] * 3 + ["maker"] * 3
    end = weights(trainer)
    for name, used in seen:
        judge = {key: value for key, value in used.items() if key.startswith("judge.")}
        assert same_bits(judge, {key: (start if name == "judge" else end)[key] for key in judge})
        maker = {key: value for key, value in used.items() if key.startswith("maker.")}
        assert same_bits(maker, {key: start[key] for key in maker})
    assert all(not end[key].equal(start[key]) for key in end)


def test_each_optimizer_meets_its_own_gradients_and_no_others(tmp_path: Path):
    """The maker's loss goes through the judge, which gets no gradient of it; all need gradients again afterwards."""
    trainer = duel(tmp_path)
    met: list[set[str]] = []

    def remember(*_: Any) -> None:
        met.append({name.split(".")[0] for name, one in trainer.model.named_parameters() if one.grad is not None})

    for optimizer in trainer.state.optimizers:
        optimizer.register_step_pre_hook(remember)
    take_steps(trainer, 2)
    assert met == [{"judge"}, {"maker"}] * 2
    assert all(parameter.grad is None and parameter.requires_grad for parameter in trainer.model.parameters())


def test_each_objective_draws_for_itself(tmp_path: Path):
    """Of one microbatch, a judge and a maker with the same draws would see the same dropout and the same noise."""
    task, drawn = DuelTask(), []

    def drawing(objective: Objective) -> Losses:
        def losses(model: nn.Module, batch: Batch) -> dict[str, Term]:
            drawn.append((objective.name, tuple(torch.rand(4).tolist())))  # before what depends on earlier draws
            return objective.losses(model, batch)

        return losses

    task.objectives = tuple(replace(one, losses=drawing(one)) for one in task.objectives)
    take_steps(duel(tmp_path, task=task))
    assert [name for name, _ in drawn] == ["judge"] * 3 + ["maker"] * 3
    assert len({draws for _, draws in drawn}) == 6


def test_what_is_frozen_stays_frozen_in_every_objective(tmp_path: Path):
    freeze = [{"match": r"judge\.0", "until_step": 2}, {"match": r"maker\.2\.bias"}]
    trainer = duel(tmp_path, freeze=freeze)
    start = weights(trainer)
    take_steps(trainer, 2)
    changed = {name for name, tensor in weights(trainer).items() if not tensor.equal(start[name])}
    assert changed == set(start) - {"judge.0.weight", "judge.0.bias", "maker.2.bias"}
    take_steps(trainer)
    assert not weights(trainer)["judge.0.weight"].equal(start["judge.0.weight"])
    assert weights(trainer)["maker.2.bias"].equal(start["maker.2.bias"])


class LateJudge(DuelTask):
    """The judge begins in the third step."""

    def judge_losses(self, model: Any, batch: Batch) -> dict[str, Term]:
        return super().judge_losses(model, batch) if batch.step is None or batch.step > 2 else {}


def test_without_terms_in_a_step_an_objective_stays_as_it_is(tmp_path: Path):
    trainer = duel(tmp_path, task=LateJudge(), optimizer={"lr": 0.02, "weight_decay": 0.1})
    start = of(trainer, "judge"), of(trainer, "maker")
    for report in take_steps(trainer, 2):
        assert list(report.losses) == ["distance", "disguise"]
        assert report.skipped is None
    assert same_bits(of(trainer, "judge"), start[0])
    assert not same_bits(of(trainer, "maker"), start[1])
    assert list(take_steps(trainer)[0].losses) == ["judge", "distance", "disguise"]
    assert not same_bits(of(trainer, "judge"), start[0])


def test_a_report_has_the_losses_and_norms_of_each(tmp_path: Path):
    trainer = duel(tmp_path, StepLogCallback(1), max_steps=2)
    trainer.fit()
    report = take_steps(duel(tmp_path / "again"))[0]
    assert list(report.losses) == ["judge", "distance", "disguise"]
    assert report.units == {"judge": "letter", "distance": "letter", "disguise": "word"}
    assert list(report.gradient_norms) == ["judge", "maker"]
    norms = [float(norm) for norm in report.gradient_norms.values()]
    assert float(report.gradient_norm) == pytest.approx(math.hypot(*norms))
    record = read_records(tmp_path / "metrics.jsonl")[0]
    assert [record["gradient_norm/judge"], record["gradient_norm/maker"]] == pytest.approx(norms)


@pytest.mark.parametrize("rule", ["adamw", "sgd"])
def test_it_is_what_two_optimizers_do_by_hand(rule: str, tmp_path: Path):
    """Against plain PyTorch in float64: means over the step's letters and words, one optimizer after the other."""
    options: dict[str, Any] = {
        "optimizer": {"type": rule, "lr": 0.01, "weight_decay": 0.0, "momentum": 0.8, "nesterov": False},
        "gradient_clipping": {"norm": 0.5},
        "scheduler": {"type": "constant"},
    }
    trainer = duel(tmp_path, task=Watched(exact=True), **options)
    model = Duel().double().eval()
    model.load_state_dict(trainer.model.state_dict())
    make = torch.optim.AdamW if rule == "adamw" else torch.optim.SGD
    momentum: dict[str, Any] = {"momentum": 0.8, "nesterov": False} if rule == "sgd" else {}
    judge, maker = (
        make(part.parameters(), lr=0.01, weight_decay=0.0, **momentum) for part in (model.judge, model.maker)
    )
    with closing(trainer.data.steps(trainer.position)) as steps:
        for data in itertools.islice(steps, 8):
            batches = [in_float64(one.batch) for one in data.microbatches if one.batch is not None]
            letters, words = data.counts["letter"], data.counts["word"]
            follow(torch.stack([told_apart(model, batch) for batch in batches]).sum() / letters, judge, model.judge)
            distance, disguise = torch.zeros(()), torch.zeros(())
            for b in batches:
                distance = distance + ((model.made(b["letters"]) - b["heights"]) ** 2 * b["real"]).sum()
                disguise = disguise + ((model.truth(model.made(b["letters"])) - 1) ** 2 * b["real"]).sum()
            follow(distance / letters + 0.1 * disguise / words, maker, model.maker)
            trainer.take_step(data)
    assert trainer.position.epoch == 2
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(weights(trainer)[name], tensor, rtol=1e-10, atol=1e-12, msg=name)


def told_apart(model: Duel, batch: Batch) -> Tensor:
    true, made = model.truth(batch["heights"]), model.truth(model.made(batch["letters"]).detach())
    return (((true - 1) ** 2 + made**2) * batch["real"]).sum()


def follow(loss: Tensor, optimizer: torch.optim.Optimizer, part: nn.Module) -> None:
    """Take one step by hand, on this part's gradients alone."""
    part.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(part.parameters(), 0.5)
    optimizer.step()


# A later objective that can't be followed.


@contextmanager
def second_spoiled(task: Watched, spoil: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """While this holds, the maker's terms are changed."""

    def look(name: str, model: nn.Module, batch: Batch, terms: dict[str, Term]) -> dict[str, Term]:
        return (
            terms if name == "judge" else {key: replace(term, total=spoil(term.total)) for key, term in terms.items()}
        )

    task.look = look
    yield
    task.look = lambda *_: None


def raise_a_bug(total: Tensor) -> Tensor:
    raise LookupError("a bug in the second")


@pytest.mark.parametrize("steps_before", [0, 2])
@pytest.mark.parametrize("rule", RULES)
def test_where_the_second_is_not_finite_the_first_is_taken_back_to_the_bit(
    rule: str, steps_before: int, tmp_path: Path
):
    """Weights and moments, also those that there were none of before; the step counts, and the next one continues."""
    options: dict[str, Any] = {"optimizer": {"type": rule, "lr": 0.01, "weight_decay": 0.1}, "ema": {"decay": 0.9}}
    task = Watched()
    trainer = duel(tmp_path, task=task, non_finite={"max_skipped": 1}, **options)
    take_steps(trainer, steps_before)
    before = contents(trainer.state)
    with second_spoiled(task, lambda total: total * math.nan):
        report = take_steps(trainer)[0]
    after = contents(trainer.state)
    assert report.skipped == "non_finite"
    assert list(report.gradient_norms) == ["judge", "maker"]
    assert math.isnan(report.gradient_norms["maker"])
    differing = {way for way in before.keys() | after.keys() if not same(before.get(way), after.get(way))}
    assert {way.split(".")[0] for way in differing} == {"position"}
    assert (trainer.position.step, trainer.position.non_finite_steps) == (steps_before + 1, 1)
    assert take_steps(trainer)[0].skipped is None


def test_where_the_first_is_not_finite_the_second_is_not_computed(tmp_path: Path):
    task, computed = Watched(), []
    trainer = duel(tmp_path, task=task, non_finite={"max_skipped": 1})
    before = weights(trainer)

    def look(name: str, model: nn.Module, batch: Batch, terms: dict[str, Term]) -> dict[str, Term]:
        computed.append(name)
        return {key: replace(term, total=term.total * math.inf) for key, term in terms.items()}

    task.look = look
    report = take_steps(trainer)[0]
    assert set(computed) == {"judge"}
    assert (report.skipped, list(report.gradient_norms), list(report.losses)) == ("non_finite", ["judge"], ["judge"])
    assert same_bits(weights(trainer), before)


def test_no_more_such_steps_are_allowed_and_the_run_ends_with_what_it_had(tmp_path: Path):
    task = Watched()
    trainer = duel(tmp_path, task=task)

    class Spoil(Callback):
        def on_step_end(self, run: Any, report: StepReport) -> None:
            if report.step == 3:
                self.kept = contents(trainer.state)
                self.spoiled = second_spoiled(task, lambda total: total * math.nan)
                self.spoiled.__enter__()

    trainer.callbacks.append(spoil := Spoil())
    with pytest.raises(NonFiniteError, match="step 4: the loss distance is not a finite number"):
        trainer.fit()
    after = contents(trainer.state)
    assert {way for way in spoil.kept if not same(spoil.kept[way], after[way])} <= {"position.duties_pending"}
    newest = find_latest_checkpoint(trainer.checkpoints)
    assert newest is not None
    assert newest.name == "step-00000003"
    assert same_bits(load_checkpoint(newest).model, weights(trainer))


@pytest.mark.parametrize("steps_before", [0, 2])
def test_an_error_in_the_second_takes_the_first_back_and_what_was_reached_is_saved(steps_before: int, tmp_path: Path):
    task = Watched()
    trainer = duel(tmp_path, task=task)
    take_steps(trainer, steps_before)
    before = contents(trainer.state)
    with second_spoiled(task, raise_a_bug), pytest.raises(LookupError, match="a bug in the second"):
        take_steps(trainer)
    after = contents(trainer.state)
    assert {way for way in before.keys() | after.keys() if not same(before.get(way), after.get(way))} == set()
    assert trainer.state.is_whole
    assert all(parameter.grad is None and parameter.requires_grad for parameter in trainer.model.parameters())


def test_an_overflow_of_fp16_in_the_second_takes_the_first_back_too(tmp_path: Path):
    trainer = duel(tmp_path)
    take_steps(trainer, 2)
    trainer.state.loss_scale.enabled, trainer.state.loss_scale.value = True, 4.0
    handle = trainer.model.get_parameter("maker.2.weight").register_hook(lambda gradient: gradient * math.inf)
    before = trainer.saving.snapshot()
    assert take_steps(trainer)[0].skipped == "overflow"
    after = trainer.saving.snapshot()
    assert same_bits(before.model, after.model)
    assert same_bits(before.optimizer, after.optimizer)
    assert trainer.state.loss_scale.value == 2.0
    handle.remove()
    assert take_steps(trainer)[0].skipped is None


# Too little memory, kills, and rerun steps.


class SmallForMaker(Watched):
    """Out of memory where the maker has more than two rows, from step 3 on."""

    trainer: Trainer | None = None

    def __init__(self, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self.computed: list[tuple[int, str, int]] = []
        self.look = self._full

    def _full(self, name: str, model: nn.Module, batch: Batch, terms: dict[str, Term]) -> None:
        if self.trainer is not None:
            step = self.trainer.position.step + 1
            self.computed.append((step, name, batch.num_rows))
            if name == "maker" and step >= 3 and batch.num_rows > 2:
                raise out_of_memory()


def small_duel(
    folder: Path, *callbacks: Callback, exact: bool = False, **training: Any
) -> tuple[Trainer, SmallForMaker]:
    task = SmallForMaker(exact=exact)
    trainer = duel(folder, *callbacks, task=task, **({"memory": {"rehearsal": False}} | training))
    task.trainer = trainer
    return trainer, task


def test_the_second_out_of_memory_is_computed_in_chunks_to_the_same_weights(tmp_path: Path):
    large = duel(tmp_path / "large", task=Watched(exact=True), memory={"rehearsal": False})
    large.fit()
    small, task = small_duel(tmp_path / "small", exact=True)
    small.fit()
    for name, tensor in weights(large).items():
        torch.testing.assert_close(weights(small)[name], tensor, rtol=1e-10, atol=1e-10, msg=name)
    cuts = small.state.chunk_rules.rules
    assert {(cut.step, cut.num_chunks, cut.objective) for cut in cuts if cut.step == 3} == {(3, 2, 1)}
    in_third = [(name, rows) for step, name, rows in task.computed if step == 3]
    assert [rows for name, rows in in_third if name == "judge"] == [4, 4, 4], "the first stays as computed"
    assert [rows for name, rows in in_third if name == "maker"][-6:] == [2] * 6


def test_with_dropout_the_cut_is_repeated_to_the_bit(tmp_path: Path):
    options: dict[str, Any] = {"checkpoint": {"interval": 1, "save_total_limit": None}}
    once, _ = small_duel(tmp_path / "once", **options)
    once.fit()
    for step in range(1, 10):
        again, _ = small_duel(tmp_path / "again", StopAt(step), **options)
        again.resume("auto")
        again.fit()
    assert same_bits(weights(again), weights(once))


@pytest.mark.parametrize("rule", mostly_slow(RULES, "adamw", "muon"))
def test_stopped_at_every_step_it_is_resumed_to_the_bit(rule: str, tmp_path: Path):
    options: dict[str, Any] = {
        "optimizer": {"type": rule, "lr": 0.01, "weight_decay": 0.1},
        "ema": {"decay": 0.9},
        "validation": {"interval": 3},
        "scheduler": {"type": "plateau", "patience": 0, "factor": 0.5},
    }
    once = duel(tmp_path / "once", StopAt(9), **options)  # eight steps: it never stops
    once.fit()
    for step in range(1, 10):
        again = duel(tmp_path / "again", StopAt(step), **options)
        again.resume("auto")
        again.fit()
    first, second = contents(once.state), contents(again.state)
    assert {way for way in first.keys() | second.keys() if not same(first.get(way), second.get(way))} == set()


def test_killed_between_two_objectives_it_is_resumed_to_the_bit(tmp_path: Path):
    options: dict[str, Any] = {"checkpoint": {"interval": 2, "save_total_limit": None}}
    once = duel(tmp_path / "once", **options)
    once.fit()
    task = Watched()
    killed = duel(tmp_path / "again", task=task, **options)

    def kill(name: str, *_: Any) -> None:
        if name == "maker" and killed.position.step == 4:
            raise KeyboardInterrupt

    task.look = kill
    with pytest.raises(KeyboardInterrupt):
        killed.fit()
    assert [path.name for path in list_checkpoints(killed.checkpoints)] == ["step-00000002", "step-00000004"]
    again = duel(tmp_path / "again", **options)
    assert again.resume("auto")
    again.fit()
    assert same_bits(weights(again), weights(once))


def test_a_past_step_is_taken_again_to_the_bit(tmp_path: Path):
    """From the checkpoint before it: the same losses, norms and weights."""
    reports: dict[int, StepReport] = {}

    class Keep(Callback):
        def on_step_end(self, run: Any, report: StepReport) -> None:
            reports[report.step] = report

    options: dict[str, Any] = {"checkpoint": {"interval": 1, "save_total_limit": None}}
    run = duel(tmp_path / "run", Keep(), **options)
    run.fit()
    for step in range(2, 9):
        replay = duel(tmp_path / "replay", **options)
        path = run.checkpoints / f"step-{step - 1:08d}"
        replay.restore(load_checkpoint(path), path)
        report = take_steps(replay)[0]
        for metrics in ("losses", "gradient_norms"):
            assert same(getattr(report, metrics), getattr(reports[step], metrics))
        assert same_bits(weights(replay), load_checkpoint(run.checkpoints / f"step-{step:08d}").model)


@pytest.mark.parametrize("rule", mostly_slow(RULES, "adamw", "muon"))
def test_a_rehearsal_changes_nothing(rule: str, tmp_path: Path):
    ends = []
    for rehearsal in (False, True):
        options: dict[str, Any] = {"optimizer": {"type": rule, "lr": 0.01}, "memory": {"rehearsal": rehearsal}}
        trainer = duel(tmp_path / str(rehearsal), **options)
        trainer.fit()
        ends.append(trainer.saving.snapshot())
    assert same_bits(ends[0].model, ends[1].model)
    assert same_bits(ends[0].optimizer, ends[1].optimizer)


def test_each_objective_draws_for_itself_and_alike_in_any_number_of_trainers(tmp_path: Path):
    """Dropout of the second is not that of the first, and does not depend on it."""
    task, draws = Watched(), []

    def look(name: str, model: nn.Module, batch: Batch, terms: dict[str, Term]) -> None:
        draws.append((name, float(torch.rand(()))))

    task.look = look
    take_steps(duel(tmp_path, task=task))
    first = list(draws)
    draws.clear()
    torch.manual_seed(5)
    take_steps(duel(tmp_path, task=task))
    assert draws == first
    assert len({value for _, value in draws}) == 6


def test_two_objectives_draw_other_numbers_for_the_same_microbatch(tmp_path: Path):
    """Both begin a microbatch with new generators; with one seed, dropout of one would be that of the other."""
    drawn: dict[str, list[float]] = {"judge": [], "maker": []}

    class Drawing(DuelTask):
        def __init__(self) -> None:
            super().__init__()
            judge, maker = self.objectives
            self.objectives = (self.drawing(judge), self.drawing(maker))

        def drawing(self, objective: Objective) -> Objective:
            def losses(model: nn.Module, batch: Batch) -> dict[str, Term]:
                drawn[objective.name].append(float(torch.rand(())))
                return objective.losses(model, batch)

            return replace(objective, losses=losses)

    take_steps(duel(tmp_path, task=Drawing()))
    assert len(drawn["judge"]) == len(drawn["maker"]) > 0
    assert not {*drawn["judge"]} & {*drawn["maker"]}


# Which parameters belong to which.


class Misshared(DuelTask):
    def __init__(self, judge: tuple[str, ...], maker: tuple[str, ...]) -> None:
        super().__init__()
        self.objectives = (
            Objective("judge", judge, self.judge_losses),
            Objective("maker", maker, self.maker_losses),
        )


@pytest.mark.parametrize(
    ("judge", "maker", "said"),
    [
        (("judge.0",), ("maker",), r"judge\.3\.weight must belong to exactly one objective .* belongs to none"),
        (("judge", "maker.2"), ("maker",), r"maker\.2\.weight must belong to .* belongs to judge and maker"),
        (("",), ("maker",), r"maker\.0\.weight must belong to .* belongs to judge and maker"),
        (("judg",), ("maker",), r"judge\.0\.weight must belong to .* belongs to none"),
    ],
)
def test_each_parameter_belongs_to_one_objective(
    judge: tuple[str, ...], maker: tuple[str, ...], said: str, tmp_path: Path
):
    with pytest.raises(UserError, match=said) as raised:
        duel(tmp_path, task=Misshared(judge, maker))
    assert "\n" not in str(raised.value)


def test_one_that_is_never_trained_may_belong_to_none(tmp_path: Path):
    class Fixed(Misshared):
        def model(self) -> Duel:
            model = super().model()
            model.judge[3].requires_grad_(False)
            return model

    trainer = duel(tmp_path, task=Fixed(("judge.0",), ("maker",)))
    before = weights(trainer)
    take_steps(trainer, 2)
    assert not of(trainer, "judge")["judge.0.weight"].equal(before["judge.0.weight"])
    assert weights(trainer)["judge.3.weight"].equal(before["judge.3.weight"])
