"""The contract that every task keeps, as functions that check any task; no test framework is required.

``check_task(Case(make_task))`` runs them all. Each is a function of a ``Case`` that returns nothing, or raises
AssertionError saying what was expected and what came out. How to use them is in docs/testing.md.
"""

from vaak.testing.case import Case
from vaak.testing.contract import CHECKS, check_task
from vaak.testing.evaluation import check_evaluation, check_failing_batch, check_figures
from vaak.testing.learning import check_learning, check_replay, check_resume, check_saved
from vaak.testing.state import check_examples, check_seeds, check_state, check_step
from vaak.testing.sums import (
    check_accumulation,
    check_counts,
    check_lengths,
    check_padding,
    check_ranks,
    check_split,
)

__all__ = [
    "CHECKS",
    "Case",
    "check_accumulation",
    "check_counts",
    "check_evaluation",
    "check_examples",
    "check_failing_batch",
    "check_figures",
    "check_learning",
    "check_lengths",
    "check_padding",
    "check_ranks",
    "check_replay",
    "check_resume",
    "check_saved",
    "check_seeds",
    "check_split",
    "check_state",
    "check_step",
    "check_task",
]
