"""``vaak find-batch-size``: its table, its JSON, its errors."""

from __future__ import annotations

import json

import pytest

import tiny_runs
from vaak.cli.preflight import parse_bytes
from vaak.core.errors import UserError


def test_the_table_and_what_to_take(vaak, tiny_text, tmp_path):
    code, out, _ = vaak("find-batch-size", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", "--up-to", "4")
    assert code == 0
    lines = out.splitlines()
    assert [line.split()[:3] for line in lines[:3]] == [["1", "1", "rows"], ["2", "2", "rows"], ["4", "4", "rows"]]
    assert all("GiB" in line and "tokens/s" in line and "examples/s" in line for line in lines[:3])
    assert lines[3].startswith("largest training.batch_size that fits in ")
    assert lines[3].endswith(" GiB: 4")
    assert lines[4].startswith("fastest: ")
    assert lines[5].startswith("for the effective batch of the configuration: training.batch_size=")
    assert not (tmp_path / "run").exists()


def test_json_of_a_trained_run_that_is_left_as_it_was(vaak, tiny_run):
    before = tiny_runs.hashes(tiny_run)
    code, out, _ = vaak("find-batch-size", tiny_run / "config.yml", "--up-to", "2", "--json")
    assert code == 0
    report = json.loads(out)
    assert [(trial["size"], trial["fits"], trial["problem"]) for trial in report["trials"]] == [
        (1, True, None),
        (2, True, None),
    ]
    assert (report["option"], report["device"], report["largest"]) == ("training.batch_size", "cpu", 2)
    advice = report["advice"]
    assert advice["training.batch_size"] * advice["training.gradient_accumulation_steps"] == 8
    assert tiny_runs.hashes(tiny_run) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--limit", "much"], "--limit is 'much'; expected a size such as 8GiB"),
        (["--limit", "1MiB"], "not even one row fits in memory: example "),
        (["training.batch_sizes=3"], "did you mean batch_size"),
        (["--up-to", "0"], "--up-to"),
    ],
)
def test_mistakes_are_said_in_a_line(vaak, tiny_text, tmp_path, arguments, said):
    code, out, err = vaak("find-batch-size", tiny_text / "tiny.yml", f"run_dir={tmp_path / 'run'}", *arguments)
    assert code == 2
    assert said in err
    assert "Traceback" not in out + err


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 2**33), ("8g", 2**33), ("1.5 MiB", 3 * 2**19), ("500MB", 500 * 2**20), ("1e9", 10**9), ("12B", 12)],
)
def test_sizes_are_read(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-3GiB", "1.2.3G", "0", "8 apples"])
def test_other_texts_are_no_sizes(text):
    with pytest.raises(UserError, match="expected a size"):
        parse_bytes(text)
