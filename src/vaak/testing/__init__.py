"""The contract that every task keeps, as functions that check any task; no test framework is required.

``check_task(Case(make_task))`` runs them all. Each is a function of a ``Case`` that returns nothing, or raises
AssertionError saying what was expected and what came out. How to use them is in docs/testing.md.
"""

import re
from collections.abc import Callable, Sequence

from vaak.core.errors import UserError
from vaak.testing.case import Case
from vaak.testing.evaluation import check_evaluation, check_failing_batch, check_metrics
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
    "Check",
    "check_accumulation",
    "check_counts",
    "check_evaluation",
    "check_examples",
    "check_failing_batch",
    "check_figures",
    "check_learning",
    "check_lengths",
    "check_metrics",
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

check_figures = check_metrics
"""The former name of ``check_metrics``."""

Check = Callable[[Case], None]

CHECKS: tuple[Check, ...] = (
    check_examples,
    check_lengths,
    check_counts,
    check_padding,
    check_split,
    check_accumulation,
    check_ranks,
    check_seeds,
    check_step,
    check_state,
    check_learning,
    check_saved,
    check_resume,
    check_replay,
    check_metrics,
    check_evaluation,
    check_failing_batch,
)


def check_task(case: Case, checks: Sequence[Check] = CHECKS) -> None:
    """Check a task's contract. Raises AssertionError with a line for each mistake, and the checks that found it.

    What the engine refuses by a UserError is such a line, too; lines that only differ in numbers are of one mistake.
    Any other exception is the task's own, and says in a note during which check it came.
    """
    broken: dict[str, tuple[str, list[str]]] = {}
    for check in checks:
        try:
            check(case)
        except (AssertionError, UserError) as error:
            _, found_by = broken.setdefault(re.sub(r"\d+", "0", str(error)), (str(error), []))
            found_by.append(check.__name__)
        except Exception as error:
            error.add_note(f"in {check.__name__} of vaak.testing")
            raise
    if broken:
        raise AssertionError("\n".join(f"{', '.join(found_by)}: {error}" for error, found_by in broken.values()))
