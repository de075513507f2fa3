"""Every task keeps this contract. A new task adds one entry to tests/support/tasks/contract_cases.py."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from contract_cases import CASES, TOYS
from task_case import TaskCase, ToyCase
from vaak.config.tasks import TASKS
from vaak.testing import (
    CHECKS,
    Case,
    Check,
    check_accumulation,
    check_evaluation,
    check_failing_batch,
    check_learning,
    check_metrics,
    check_ranks,
    check_replay,
    check_resume,
    check_saved,
    check_seeds,
    check_state,
    check_step,
)
from vaak.testing.case import batches, open_trainer

ALL: dict[str, TaskCase | ToyCase] = {**CASES, **TOYS}


def test_every_task_is_under_contract():
    assert {case.task for case in CASES.values()} == set(TASKS)


SLOW = (
    "classification, transformer, two columns, augmented", "classification, several labels",
    "lm pretrained, low-rank adapters", "tts Performer", "tts, learned durations",
    "tts, flow matching by a transformer, learned durations",
    "diarization Performer", "diarization, powerset, augmented", "diarization, speakers by name",
    "seq2seq, two tokenizers", "seq2seq pretrained, low-rank adapters", "asr, a part, augmented",
    "asr, ctc, local attention, augmented", "asr, ctc, pretrained", "asr, ctc, experts", "asr, features on the device",
    "asr, ctc, features on the device", "diarization, features on the device",
    "lm decoder, packed", "lm encoder, packed", "lm chat", "vocoder, no discriminators", "lm preferences, orpo",
    "seq2seq Performer", "lm chat, packed",
    "asr, experts", "tts, flow matching, pitch, energy, learned durations", "diarization, speech, conversations",
    "diarization, attractors, stored features",
)  # fmt: skip
"""Further cases of a task, too slow for every run of the tests."""
OF_STATE = (check_saved, check_resume, check_replay, check_state, check_step)
OF_FURTHER_STATE = (check_resume, check_step)
"""Those that find a state which isn't saved, or isn't put back; the others look at the same once more."""
WITH_STATE = ("lm Performer", "asr, experts")
"""Cases whose steps change more than weights and moments: features that are redrawn, a bias that balances."""
RESUMED = ("lm decoder, documents", "tts", "multitask", "two objectives", *WITH_STATE)
"""Cases with a resume each time; others have `check_state` and `check_step`, of which it is made. What the engine does
about it is tried in tests/unit/engine."""
OF_TRAINING = (
    *OF_STATE, check_learning, check_seeds, check_ranks, check_evaluation, check_failing_batch, check_accumulation,
)  # fmt: skip
"""Checks of what the engine does with any task, run every time for the first case of each.

Microbatches add up in any case whose rows are padded and split as `check_padding` and `check_split` demand."""
LEARNING_STEPS = {
    "lm decoder, documents": 40, "seq2seq": 40, "diarization": 20, "tts": 60, "asr": 40,
    "vocoder": 40, "classification": 20, "multitask": 20, "two objectives": 20,
}  # fmt: skip
"""In how many steps a case that is always trained overfits its batch; others have the number of the check."""
REPLAYED = ("lm decoder, documents", "multitask", "two objectives")
"""Cases with a replay each time: one and several objectives, one and several tasks; of others, a resume and a step."""
OF_FIGURES = ("seq2seq Performer", "seq2seq, glossed, copying")
"""Cases whose figures are made as those of the first case of their task, which is the same but for its network."""


def check_no_term_is_reported(case: Case) -> None:
    """No loss looks like a mean, of any kind of model and of head, in the batches that the others are held on."""
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    setattr(handler, "emit", said.append)  # noqa: B010 (mypy refuses the assignment)
    with open_trainer(case) as trainer:
        forward, rows = trainer.step.objectives[0].gradient.forward, []
        losses = forward.losses
        object.__setattr__(
            forward, "losses", lambda model, batch: (rows.append(batch.num_rows), losses(model, batch))[1]
        )
        logging.getLogger("vaak").addHandler(handler)
        try:
            trainer.rehearse()
        finally:
            logging.getLogger("vaak").removeHandler(handler)
    assert sum(number > 1 for number in rows) >= 2, "a batch that has halves was looked at"
    assert [record.getMessage() for record in said if "looks like a mean" in record.getMessage()] == []


def check_lengths_are_rounded(case: Case) -> None:
    """With ``round_lengths``, batches of few shapes are trained on: of one, where all lengths are below a multiple.

    What a device makes features of keeps its length; they are then as long as the batch's mask.
    """
    found: set[tuple[tuple[str, tuple[int, ...]], ...]] = set()
    with open_trainer(case, batching={"round_lengths": 512}) as trainer:
        for batch in batches(trainer):
            shapes = {name: tuple(tensor.shape[1:]) for name, tensor in batch.tensors.items()}
            made_on_device = ("samples", "masks") if "feature_mask" in shapes else ("masks",)
            found.add(tuple((name, shape) for name, shape in shapes.items() if name not in made_on_device))
    assert len(found) == 1, found


def check_names_of_rows(case: Case) -> None:
    """Rows of weights that stand for something have names, all different: another run's are matched by these."""
    task = case.make_task()
    model, names = task.model(), task.row_names()
    own = {id(one) for one in model.state_dict(keep_vars=True).values()}
    for weight, kind in task.named_rows(model):
        if weight is not None and kind in names:
            assert id(weight) in own, kind
            assert len(set(names[kind])) == len(names[kind]) <= len(weight), kind


def parameters() -> list[Any]:
    """Return each case with each check; those of a case come one after the other."""
    tasks: set[str] = set()
    found = []
    for name, case in ALL.items():
        trained = isinstance(case, ToyCase) or case.task not in tasks
        if isinstance(case, TaskCase):
            tasks.add(case.task)
        own = () if isinstance(case, ToyCase) else (check_lengths_are_rounded,)  # toys don't say how they are padded
        for check in (*CHECKS, check_names_of_rows, check_no_term_is_reported, *own):
            kept = trained or check not in OF_TRAINING or (name in WITH_STATE and check in OF_FURTHER_STATE)
            kept = kept and not (check is check_replay and name not in REPLAYED)
            kept = kept and not (check is check_resume and name not in RESUMED)
            kept = kept and not (check in (check_learning, check_seeds) and name == "vocoder")  # as "two objectives"
            kept = kept and not (check is check_metrics and name in OF_FIGURES)
            marks = [pytest.mark.slow] if name in SLOW or not kept else []
            found.append(pytest.param(name, check, id=f"{name}-{check.__name__}", marks=marks))
    return found


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Case]:
    """Gives a case by its name; its data are prepared once."""

    def made(name: str) -> Case:
        case = ALL[name].prepared(tmp_path_factory.mktemp("prepared"))
        return replace(case, learning_steps=LEARNING_STEPS.get(name, case.learning_steps))

    return functools.cache(made)


@pytest.mark.parametrize(("name", "check"), parameters())
def test_contract(name: str, check: Check, prepared: Callable[[str], Case]):
    check(prepared(name))
