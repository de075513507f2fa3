"""scripts/mutants.py makes one mistake at a time where a test could notice, and finds the tests that run the place."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from mutants import Covered, mutants_of, read_log

SOURCE = '''\
"""Docstring of 3 lines."""
LIMIT = 3

@dataclass(frozen=True)
class Rule:
    size: int = 1

def check(rule: "Rule | None", given: list[int]) -> bool:
    assert rule is not None
    if rule:
        log.warning("more than %d", 4)
        given.append(LIMIT)
    return rule.size < len(given) and not given[0] % 2
'''
EXPECTED = [
    (2, "3", "4"),
    (6, "1", "2"),
    (10, "rule", "(not rule)"),
    (12, "given.append(LIMIT)", "pass"),
    (13, "rule.size < len(given) and not given[0] % 2", "(rule.size < len(given) or not given[0] % 2)"),
    (13, "rule.size < len(given)", "(rule.size <= len(given))"),
    (13, "not given[0] % 2", "(given[0] % 2)"),
    (13, "given[0] % 2", "(given[0] * 2)"),
    (13, "0", "1"),
    (13, "2", "3"),
]


def test_each_place_has_its_mistake_and_what_no_test_could_notice_none(tmp_path: Path):
    (tmp_path / "rules.py").write_text(SOURCE)
    found = mutants_of(tmp_path / "rules.py", "rules.py")
    assert [(one.line, one.old, one.new) for one in found] == EXPECTED
    assert [one.function for one in found] == [None] * 2 + [8] * 8
    for one in found:
        text = SOURCE[: one.start] + one.new + SOURCE[one.end :]
        compile(text, "rules.py", "exec")
        assert text != SOURCE


def test_the_quickest_tests_of_the_function_come_first_within_the_time(tmp_path: Path):
    (tmp_path / "rules.py").write_text(SOURCE)
    first, *_, last = mutants_of(tmp_path / "rules.py", "rules.py")
    functions = {"rules.py": {"8": ["slow", "quick"], "20": ["other"]}}
    seconds = {"slow": 5.0, "quick": 1.0, "other": 2.0}
    covered = Covered(functions, {"rules.py": {"8": ["other"]}}, seconds)
    assert covered.tests_of(last, 10.0) == ["quick", "slow"]
    assert covered.tests_of(last, 5.0) == ["quick"]
    assert covered.tests_of(last, 0.5) == ["quick"]
    assert covered.tests_of(first, 10.0) == ["quick", "other", "slow"]
    assert covered.tests_of(replace(last, file="others.py"), 10.0) == []
    assert covered.tests_of(last, 10.0, elsewhere=True) == ["other"]


def test_a_recording_says_which_test_ran_what_here_and_which_in_a_process_that_it_started(tmp_path: Path):
    """What ran between two tests, as a server that both use, is of neither; a test recorded again replaces itself."""
    place, own = f"{tmp_path}/src/rules.py", os.getpid()

    def ran(process: int, first: int) -> str:
        return f"ran\t{process}\t{place}\t{first}"

    lines = [ran(own, 1), "test\tone", ran(own, 8), ran(own + 1, 8), ran(own + 1, 20), "took\t2.000"]
    lines += [ran(own + 1, 30), "test\ttwo", ran(own, 8), ran(own, 8), "took\t0.500"]
    first = read_log(lines, tmp_path)
    assert first.functions == {"src/rules.py": {"8": ["one", "two"]}}
    assert first.elsewhere == {"src/rules.py": {"8": ["one"], "20": ["one"]}}
    assert first.seconds == {"one": 2.0, "two": 0.5}
    both = first.updated(read_log(["test\tone", ran(own, 20), "took\t1.000"], tmp_path))
    assert both.functions == {"src/rules.py": {"8": ["two"], "20": ["one"]}}
    assert both.elsewhere == {"src/rules.py": {"8": [], "20": []}}
    assert both.seconds == {"one": 1.0, "two": 0.5}
