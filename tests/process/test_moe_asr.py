"""``moe-asr`` in real processes: whatever Python's hash seed is, its outputs are the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import tiny_listener
import tiny_mixture
from tiny_whisper import write_whisper

VAAK = "from vaak.cli.main import main; main()"
TARGETS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of the pipeline on tones."""
    folder = tmp_path_factory.mktemp("tones")
    tiny_listener.write_listener(folder)
    lora = {"rank": 2, "alpha": 4.0, "targets": TARGETS}
    return tiny_mixture.options(folder, write_whisper(tmp_path_factory.mktemp("whisper")), lora=lora)


def python(*arguments: object, hash_seed: int) -> str:
    """What a new Python of this hash seed says; fails where it does."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_an_adapter_is_written_in_the_same_order_by_every_process(tmp_path: Path) -> None:
    code = """
import sys
from pathlib import Path
import torch
from vaak.nn.config import LoraConfig
from vaak.nn.lora import Adapter, write_adapter
names, folder = sys.argv[2:], Path(sys.argv[1])
adapters = [Adapter(name, torch.nn.Linear(4, 4), torch.zeros(2, 4), torch.zeros(4, 2), 1.0) for name in names]
write_adapter(adapters, LoraConfig(targets=names), names, "base", folder)
"""
    for seed in (1, 2, 3):
        python("-c", code, tmp_path / str(seed), *TARGETS, hash_seed=seed)
    one, *others = ({path.name: path.read_bytes() for path in (tmp_path / str(seed)).iterdir()} for seed in (1, 2, 3))
    assert json.loads(one["adapter_config.json"])["target_modules"] == TARGETS
    assert others == [one, one]


@pytest.mark.slow
def test_another_hash_seed_makes_the_same_outputs_and_a_resume_runs_nothing(
    given: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "options.json").write_text(json.dumps(given))

    def run(folder: str, seed: int) -> dict[str, str]:
        place = ("--output-dir", tmp_path / folder, "--resume", "--json")
        said = python("-c", VAAK, "pipeline", "moe-asr", "--config", tmp_path / "options.json", *place, hash_seed=seed)
        return {row["stage"]: row["state"] for row in json.loads(said)["stages"]}

    assert set(run("one", 1).values()) == {"run"}
    assert set(run("other", 2).values()) == {"run"}
    assert tiny_mixture.outputs(tmp_path / "one") == tiny_mixture.outputs(tmp_path / "other")
    lost = tmp_path / "one" / "experts" / "adapters" / "1" / "adapter_config.json"
    lost.unlink()
    assert run("one", 3) == dict.fromkeys(("embeddings", "clusters", "gate", "joint"), "up to date") | {
        "experts": "repaired"
    }
    assert "the corpus may have changed" not in (tmp_path / "one" / "pipeline.log").read_text()
    assert tiny_mixture.outputs(tmp_path / "one") == tiny_mixture.outputs(tmp_path / "other")
