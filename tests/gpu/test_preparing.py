"""Processes with a GPU each prepare together what one prepares on a CPU, to the bit, and train on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny_diarizer
from folders import contents
from processes import run_on_ranks
from shared_preparation import Witness, train_together
from tiny_runs import write_corpus

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.mark.parametrize("what", ["tokens", "features"])
def test_two_processes_prepare_as_one_on_a_cpu(what: str, device_library: Path, tmp_path: Path) -> None:
    corpus, made = tmp_path / "corpus", {}
    write = write_corpus if what == "tokens" else tiny_diarizer.write_corpus
    write(corpus)
    for run, library in ((tmp_path / "cpu", None), (tmp_path / "cuda", device_library)):
        world_size = 1 if library is None else 2
        for name in ("witness", "said"):
            run.with_name(f"{run.name}-{name}").mkdir()
        overrides = ["training.max_steps=2"]
        overrides += [] if what == "tokens" else [f"global_config.storage_path={run}-features"]
        arguments = (world_size, corpus / "tiny.yml", run, overrides, library)
        codes = run_on_ranks(world_size, train_together, *arguments, seconds=120)
        said = [
            json.loads((run.with_name(f"{run.name}-said") / f"{rank}.json").read_text()) for rank in range(world_size)
        ]
        assert codes == [0] * world_size, said
        assert Witness(run.with_name(f"{run.name}-witness"), world_size).ranks() == set(range(world_size))
        made[run.name] = contents(run / "prepared" if what == "tokens" else Path(f"{run}-features"))
        assert json.loads((run / "status.json").read_text())["state"] == "finished"
    assert len(made["cpu"]) > 3
    assert made["cuda"] == made["cpu"]
