"""The loop tells its callbacks what their docstring draws, does what they ask, and names the one that fails."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from toy import ToyMeters, ToyTask, toy_trainer
from vaak.core.errors import UserError
from vaak.engine.callback import Callback, StepReport
from vaak.engine.checkpoint.files import list_checkpoints, load_checkpoint, step_folder
from vaak.engine.trainer import Trainer

EVENTS = [name for name in vars(Callback) if name.startswith("on_")]
EVERY_EPOCH: dict[str, Any] = {"validation": {"interval_epochs": 1}, "checkpoint": {"interval_epochs": 1}}


class Listening(Callback):
    """Writes every event down with its step, and does what ``at`` says: event and step to a method of the trainer."""

    def __init__(self, at: dict[tuple[str, int], tuple[str, ...]] | None = None) -> None:
        self.heard: list[tuple[str, int]] = []
        self.arguments: list[tuple[Any, ...]] = []
        self.at = at or {}

    def hear(self, event: str, trainer: Any, *arguments: Any) -> str:
        self.heard.append((event, trainer.position.step))
        self.arguments.append(arguments)
        method, *values = self.at.get((event, trainer.position.step), ("",))
        if method:
            getattr(trainer, method)(*values)
        return "what a callback returns is ignored"

    def events(self) -> list[str]:
        return [event for event, _ in self.heard]


for name in EVENTS:
    setattr(Listening, name, lambda self, trainer, *arguments, name=name: self.hear(name, trainer, *arguments))


def drawing() -> list[str]:
    """The lines of the drawing in Callback's docstring."""
    text = inspect.getdoc(Callback) or ""
    block = text.split("::\n\n")[1].split("\n\n")[0]
    return block.splitlines()


def as_drawn(total_steps: int, happens: dict[str, set[int]]) -> list[tuple[str, int]]:
    """The events that the drawing gives, where what it makes conditional ``happens`` at these steps."""
    before: list[str] = []
    steps: list[tuple[str, str | None]] = []
    after: list[tuple[str, str | None]] = []
    for line in drawing():
        event = re.search(r"\bon_\w+", line)
        if event is None:
            assert line.strip() == "for each optimizer step:"
            continue
        condition = re.match(r"\s*(?:if (.*?):)?\s*on_", line)
        assert condition is not None
        if line.startswith(" " * 8):
            steps.append((event[0], condition[1]))
        elif steps:
            after.append((event[0], condition[1]))
        else:
            before.append(event[0])
    drawn = [(event, 0) for event in before]
    for step in range(1, total_steps + 1):
        drawn += [(event, step) for event, condition in steps if condition is None or step in happens[condition]]
    return drawn + [
        (event, total_steps) for event, condition in after if condition is None or total_steps in happens[condition]
    ]


def waits_for_its_checkpoints(trainer: Trainer) -> Trainer:
    """The trainer, whose checkpoints are all written before its next step begins."""
    writer = trainer.saving.writer
    write = writer.write

    def write_and_wait(*given: Any) -> None:
        write(*given)
        writer.wait()

    writer.write = write_and_wait  # type: ignore[method-assign, assignment]
    return trainer


def test_the_events_are_those_drawn(tmp_path: Path):
    """Epochs of four steps; scheduled evaluations every 3 steps, saves every 5; one of each asked for."""
    listening = Listening({("on_step_end", 2): ("request_evaluate",), ("on_step_end", 7): ("request_save",)})
    training: dict[str, Any] = {"validation": {"interval": 3}, "checkpoint": {"interval": 5}, "epochs": 3}
    task = ToyTask(scripted=map(float, range(1, 100)))  # none after the first is the best
    trainer = waits_for_its_checkpoints(toy_trainer(tmp_path, listening, task=task, **training))
    assert trainer.fit() == "finished"
    happens = {
        "an evaluation is due or asked for": {2, 3, 6, 9, 12},
        "the epoch ends here": {4, 8, 12},
        "a checkpoint has been written": {4, 6, 8, 11},  # those of 3 (the best), 5, 7 and 10
        "a checkpoint was still being written": {12},
    }
    assert listening.heard == as_drawn(12, happens)


@pytest.mark.parametrize(("limit", "told"), [(None, range(1, 9)), (2, range(3, 9))])
def test_every_checkpoint_is_told_of_once_and_is_there_however_late_it_is_written(
    limit: int | None, told: range, tmp_path: Path
):
    """On a slow disk nothing is known to be written before step 5. Where few are kept, some are gone by then."""
    heard: list[str] = []

    class Uploads(Callback):
        def on_checkpoint(self, trainer: Any, path: Path) -> None:
            assert (path / "MANIFEST.json").exists()
            assert trainer.position.step >= 5
            heard.append(path.name)

    trainer = toy_trainer(tmp_path, Uploads(), checkpoint={"interval": 1, "save_total_limit": limit})

    class Late(list[Path]):
        def __bool__(self) -> bool:
            return trainer.position.step >= 5 and len(self) > 0

    waits_for_its_checkpoints(trainer).saving.writer.finished = Late()
    trainer.fit()
    assert heard == [f"step-{step:08d}" for step in told]


def test_the_drawing_has_every_event():
    documented = set(re.findall(r"\bon_\w+", inspect.getdoc(Callback) or ""))
    assert documented == set(EVENTS)


def test_events_get_what_is_drawn(tmp_path: Path):
    listening = Listening()
    trainer = toy_trainer(tmp_path, listening, **EVERY_EPOCH)
    trainer.fit()
    heard = dict(zip(listening.heard, listening.arguments, strict=True))
    assert heard["on_epoch_end", 4] == (0, heard["on_evaluate_end", 4][0] | {"evaluation_step": 4})
    assert heard["on_epoch_end", 8] == (1, trainer.metrics | {"evaluation_step": 8})
    assert heard["on_checkpoint", 8] == (tmp_path / "checkpoints" / "step-00000008",)
    assert heard["on_fit_end", 8] == ("finished",)
    report: StepReport = heard["on_step_end", 4][0]
    assert (report.step, report.epoch, report.ends_epoch) == (4, 0, True)
    assert report.counts["example"] == 4  # the last step of an epoch has one microbatch


def test_a_stop_asked_for_saves_and_ends_after_the_step(tmp_path: Path):
    listening = Listening({("on_step_end", 3): ("request_stop", "enough")})
    assert toy_trainer(tmp_path, listening).fit() == "enough"
    assert listening.heard[-3:] == [("on_step_end", 3), ("on_checkpoint", 3), ("on_fit_end", 3)]
    assert load_checkpoint(tmp_path / "checkpoints" / "step-00000003").step == 3


def test_a_stop_asked_for_after_an_evaluation_that_was_asked_for_comes_after_the_same_step(tmp_path: Path):
    asked = {("on_step_end", 2): ("request_evaluate",), ("on_evaluate_end", 2): ("request_stop", "enough")}
    listening = Listening(asked)
    assert toy_trainer(tmp_path, listening).fit() == "enough"
    assert listening.heard[-3:] == [("on_evaluate_end", 2), ("on_checkpoint", 2), ("on_fit_end", 2)]


def test_a_stop_leaves_the_scheduled_evaluation_to_the_run_that_resumes(tmp_path: Path):
    listening = Listening({("on_step_end", 4): ("request_stop", "enough")})
    stopped = toy_trainer(tmp_path, listening, **EVERY_EPOCH)
    stopped.fit()
    assert listening.events()[-3:] == ["on_step_end", "on_checkpoint", "on_fit_end"]
    left = stopped.checkpoints / "step-00000004"
    assert load_checkpoint(left).state["position"]["duties_pending"]
    resumed = Listening()
    trainer = toy_trainer(tmp_path, resumed, **EVERY_EPOCH)
    assert trainer.resume("auto")
    trainer.fit()
    assert resumed.heard[:3] == [("on_fit_start", 4), ("on_evaluate_end", 4), ("on_epoch_end", 4)]
    assert resumed.heard[3] == ("on_step_end", 5)
    completed = load_checkpoint(left).state
    assert not completed["position"]["duties_pending"]
    assert completed["best"]["step"] == 4


def test_what_is_due_is_saved_before_its_step_is_evaluated(tmp_path: Path):
    """A process that is killed in a long evaluation then loses no step."""
    saved: dict[int, list[str]] = {}

    class Killed(ToyTask):
        def meters(self, split: str) -> ToyMeters:
            trainer.saving.writer.wait()
            saved[trainer.position.step] = [path.name for path in list_checkpoints(trainer.checkpoints)]
            return super().meters(split)

    due: dict[str, Any] = {"validation": {"interval": 2}, "checkpoint": {"interval": 2, "save_total_limit": None}}
    trainer = toy_trainer(tmp_path, task=Killed(), memory={"rehearsal": False}, **due)
    trainer.fit()
    assert saved == {last: [step_folder(step) for step in range(2, last + 1, 2)] for last in (2, 4, 6, 8)}


def test_a_stop_asked_for_during_an_evaluation_interrupts_it(tmp_path: Path):
    """As a signal does: the evaluation is done whole by the run that resumes."""
    trainer = toy_trainer(tmp_path, listening := Listening(), **EVERY_EPOCH, memory={"rehearsal": False})
    meters = trainer.task.meters

    def stopping(split: str) -> Any:
        trainer.request_stop("SIGTERM")
        return meters(split)

    trainer.task.meters = stopping  # type: ignore[method-assign]
    assert trainer.fit() == "SIGTERM"
    assert "on_evaluate_end" not in listening.events()
    assert trainer.position.schedule_pending
    assert load_checkpoint(trainer.checkpoints / "step-00000004").state["position"]["duties_pending"]


def test_a_stop_before_the_first_step_takes_none(tmp_path: Path):
    listening = Listening({("on_fit_start", 0): ("request_stop", "nothing to do")})
    assert toy_trainer(tmp_path, listening).fit() == "nothing to do"
    assert listening.events() == ["on_fit_start", "on_fit_end"]


class Failing(Callback):
    def __init__(self, event: str, error: Exception) -> None:
        def fail(*_: Any) -> None:
            raise error

        setattr(self, event, fail)


@pytest.mark.parametrize("event", ["on_fit_start", "on_step_end", "on_evaluate_end", "on_epoch_end", "on_checkpoint"])
def test_a_failing_callback_is_named_and_the_others_hear_of_the_end(event: str, tmp_path: Path):
    listening = Listening()
    trainer = toy_trainer(tmp_path, Failing(event, RuntimeError("oops")), listening, **EVERY_EPOCH)
    with pytest.raises(RuntimeError, match="oops") as caught:
        trainer.fit()
    assert caught.value.__notes__ == [f"in {event} of the callback Failing"]
    assert listening.events()[-2:] == ["on_exception", "on_fit_end"]
    assert listening.arguments[-2:] == [(caught.value,), ("RuntimeError",)]


def test_a_users_error_from_a_callback_stays_one_clear_line(tmp_path: Path):
    with pytest.raises(UserError, match=r"^watch another metric$") as caught:
        toy_trainer(tmp_path, Failing("on_step_end", UserError("watch another metric"))).fit()
    assert not hasattr(caught.value, "__notes__")


def test_one_that_fails_at_the_end_does_not_keep_the_end_from_the_others(tmp_path: Path):
    listening = Listening()
    trainer = toy_trainer(tmp_path, Failing("on_fit_end", RuntimeError("oops")), listening)
    with pytest.raises(RuntimeError, match="oops"):
        trainer.fit()
    assert listening.events().count("on_fit_end") == 1


def test_a_failing_one_told_of_an_exception_does_not_hide_it(tmp_path: Path):
    listening = Listening()
    failing = Failing("on_step_end", RuntimeError("the first"))
    second = Failing("on_exception", ValueError("the second"))
    with pytest.raises(RuntimeError, match="the first"):
        toy_trainer(tmp_path, failing, second, listening).fit()
    assert listening.events()[-2:] == ["on_exception", "on_fit_end"]


class OfTheMainProcess(Listening):
    main_process_only = True


def test_other_ranks_do_not_call_those_of_the_main_process(tmp_path: Path):
    everyone, main = Listening(), OfTheMainProcess()
    trainer = toy_trainer(tmp_path, everyone, main)
    trainer.ranks.rank = 1
    trainer.notify("on_fit_start")
    assert (everyone.events(), main.events()) == (["on_fit_start"], [])


class Killed(ToyMeters):
    """A kill in the middle of an evaluation: no exception of a run's own."""

    def update(self, model: Any, batch: Any) -> None:
        raise KeyboardInterrupt


def test_what_is_scheduled_is_saved_before_the_evaluation_of_its_step(tmp_path: Path):
    """A kill during an evaluation, which may take hours, then costs no step; the resumed run does the evaluation."""

    class Task(ToyTask):
        def meters(self, split: str) -> ToyMeters:
            return Killed()

    options: dict[str, Any] = {"validation": {"interval": 3}, "checkpoint": {"interval": 3}}
    options["memory"] = {"rehearsal": False}
    with pytest.raises(KeyboardInterrupt):
        toy_trainer(tmp_path, task=Task(), **options).fit()
    (saved,) = list_checkpoints(tmp_path / "checkpoints")
    assert saved.name == "step-00000003"
    listening = Listening()
    trainer = toy_trainer(tmp_path, listening, **options)
    assert trainer.resume("auto")
    trainer.fit()
    assert ("on_evaluate_end", 3) in listening.heard
