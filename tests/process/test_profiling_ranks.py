"""Two processes are profiled together: one profile, and a trace of each."""

from __future__ import annotations

from pathlib import Path

import pytest

from commands import TOTAL_STEPS, Commands, stat_records
from vaak.core.storage.files import read_json


@pytest.mark.slow
def test_two_ranks_make_one_profile_and_two_traces(commands: Commands, tiny: Path, tmp_path: Path):
    run = tmp_path / "run"
    arguments: list[str | Path] = [
        "train",
        tiny,
        f"run_dir={run}",
        "training.profiling=trace",
        "training.logging.interval=2",
    ]
    ranks = commands.start_ranks(2, arguments, tmp_path)
    assert [rank.wait().status for rank in ranks] == [0, 0]
    assert sorted(path.name for path in (run / "trace").iterdir()) == [
        "steps-6-to-8-rank-0.json.gz",
        "steps-6-to-8-rank-1.json.gz",
    ]
    profiles = [record for record in stat_records(run) if record["kind"] == "profile"]
    assert [record["step"] for record in profiles] == [10, 12, 14, 16, 18, 20, 21]
    stored = read_json(run / "profile.json")
    assert stored["steps"] == TOTAL_STEPS - 9
    assert abs(sum(stored["shares"].values()) - 1) < 1e-9
    assert stored["verdict"]
