"""What evaluations keep of single examples is bounded, and the same however these are divided among processes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.summaries import FIRST, LONGEST_TEXT, MOST_EXAMPLES, MOST_SCORES, ExampleLog, make_summary


def joined(logs: list[ExampleLog]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for log in logs:
        for name, rows in log.seen().items():
            found.setdefault(name, []).extend(rows)
    return found


@given(st.integers(0, 2**32 - 1), st.integers(1, 700), st.integers(1, 5))
def test_any_division_among_processes_keeps_the_first_and_the_worst(seed: int, number: int, processes: int):
    rng = np.random.default_rng(seed)
    errors = rng.integers(0, 4, number).tolist()
    logs = [ExampleLog("wer") for _ in range(processes)]
    for index in rng.permutation(number).tolist():
        log = logs[rng.integers(processes)]
        log.add(index, errors[index], (errors[index], 4), f"reference {index}", {"text": "x" * 1000}, str(index % 2))
    found = make_summary("wer", joined(logs))
    rest = sorted(range(FIRST, number), key=lambda index: -errors[index])[: MOST_EXAMPLES - FIRST]
    assert [one["index"] for one in found["examples"]] == [*range(min(FIRST, number)), *sorted(rest)]
    assert [one["error"] for one in found["examples"]] == [errors[one["index"]] for one in found["examples"]]
    assert found["scores"]["sums"] == [[errors[index], 4] for index in range(number)]
    assert found["examples"][0]["text"] == "x" * LONGEST_TEXT
    one = ExampleLog("wer")
    for index in range(number):
        one.add(index, errors[index], (errors[index], 4), f"reference {index}", {"text": "x" * 1000}, str(index % 2))
    assert make_summary("wer", one.seen()) == found


def test_a_large_split_takes_no_more_memory_and_its_first_scores_are_kept():
    log = ExampleLog("der")
    for index in range(3 * MOST_SCORES):
        log.add(index, index, (index, 1), "", {})
        assert len(log.examples) <= 4 * MOST_EXAMPLES
        assert len(log.scores) <= 2 * MOST_SCORES
    found = make_summary("der", log.seen())
    assert found["scores"]["sums"] == [[index, 1] for index in range(MOST_SCORES)]
    assert found["examples"][-1]["index"] == 3 * MOST_SCORES - 1
    assert len(found["examples"]) == MOST_EXAMPLES


def test_other_references_are_told_apart():
    def of(*references: str) -> str:
        log = ExampleLog("wer")
        for index, reference in enumerate(references):
            log.add(index, 0, (0, 1), reference, {})
        return str(make_summary("wer", log.seen())["scores"]["of"])

    assert of("a", "b") == of("a", "b")
    assert len({of("a", "b"), of("a", "c"), of("b", "a"), of("a")}) == 4
