"""``moe-asr`` in real processes: any hash seed of Python gives the same bytes, two processes the same as one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import tiny_listener
import tiny_mixture
from commands import Commands, free_port
from tiny_whisper import write_whisper
from vaak.core.storage.files import read_json

VAAK = "from vaak.cli.main import main; main()"
TARGETS = ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"]


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Options of the pipeline on tones."""
    folder = tmp_path_factory.mktemp("tones")
    tiny_listener.write_listener(folder)
    lora = {"rank": 2, "alpha": 4.0, "targets": TARGETS}
    return tiny_mixture.options(folder, write_whisper(tmp_path_factory.mktemp("whisper"), seconds=2), lora=lora)


def python(*arguments: object, hash_seed: int) -> str:
    """Return the output of a new Python with this hash seed, which must succeed."""
    environment = {**os.environ, "PYTHONHASHSEED": str(hash_seed), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *map(str, arguments)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.slow
def test_an_adapter_is_written_in_the_same_order_by_every_process(tmp_path: Path) -> None:
    code = """
import sys
import time
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


def numbers_in(value: Any) -> list[float]:
    """All numbers in a JSON value, in order."""
    if isinstance(value, dict | list):
        return [one for part in (value.values() if isinstance(value, dict) else value) for one in numbers_in(part)]
    return [float(value)] if isinstance(value, int | float) else []


@pytest.mark.slow
def test_two_processes_give_what_one_does_and_resume_on_one(
    given: dict[str, Any], commands: Commands, tmp_path: Path
) -> None:
    """Rows are the same bits, whoever made them, and trained weights are equal up to rounding."""
    (dataset,) = given["datasets"]
    folder = Path(shutil.copytree(Path(dataset["train"][0]).parent, tmp_path / "data"))
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    many = [{**line, "id": f"{line['audio']}-{time}"} for time in range(10) for line in lines]  # more than a shard
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in many))
    fewer = {"expert_percent": 10.0, "asr_percent": 10.0}
    (tmp_path / "options.json").write_text(
        json.dumps({**given, **fewer, "datasets": [tiny_listener.make_dataset_from(folder)]})
    )
    arguments: list[str | Path] = ["pipeline", "moe-asr", "--config", tmp_path / "options.json", "--output-dir"]
    two = commands.start_ranks(2, [*arguments, "two"], tmp_path)
    ended = [command.wait(400) for command in two]
    assert [one.status for one in ended] == [0, 0], ended
    assert "the results are in two" in ended[0].output
    assert ended[1].output == ""
    one = commands.start([*arguments, "one"], tmp_path).wait(400)
    assert one.status == 0, one.errors
    for name in ("embeddings/rows/rows-00000.bin", "embeddings/rows/rows-00001.bin", "clusters/clusters.json"):
        assert (tmp_path / "two" / name).read_bytes() == (tmp_path / "one" / name).read_bytes(), name
    for name in ("gate/gate.json", "experts/experts.json", "joint/joint.json"):
        found, expected = (read_json(tmp_path / run / name) for run in ("two", "one"))
        assert numbers_in(found) == pytest.approx(numbers_in(expected), abs=1e-4), name
    weights = [*(tmp_path / "one").glob("*/*/checkpoints/step-*/model.safetensors")]
    assert len({path.parents[2] for path in weights}) == 4, "the gate's, two experts', and joint training's"
    for path in weights:
        found = load_file(tmp_path / "two" / path.relative_to(tmp_path / "one"))
        for name, tensor in load_file(path).items():
            # within a hundredth of one step (lr): where a gradient is nearly 0, Adam's step follows its rounding
            torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-4)
    assert not (tmp_path / "two" / ".orders").exists()
    (tmp_path / "two" / "joint" / "manifest.json").unlink()
    again = commands.start([*arguments, "two", "--resume"], tmp_path).wait(400)
    assert again.status == 0, again.errors
    assert "joint: resumes (was cut)" in again.errors


def test_a_mistake_on_rank_0_ends_one_that_starts_later(
    given: dict[str, Any], commands: Commands, tmp_path: Path
) -> None:
    """It looked for a rank 0 that had ended, for five minutes."""
    (tmp_path / "options.json").write_text(json.dumps({**given, "whisper_model": str(tmp_path)}))
    arguments: list[str | Path] = ["pipeline", "moe-asr", "--config", tmp_path / "options.json", "--output-dir", "run"]
    places = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    first, second = ({**places, "RANK": rank, "LOCAL_RANK": rank} for rank in ("0", "1"))
    main = commands.start(arguments, tmp_path, first)
    time.sleep(1.5)  # by now it has seen its mistake, and has ended or waits for the other
    helper = commands.start(arguments, tmp_path, second)
    assert (main.wait(100).status, helper.wait(100).status) == (2, 2)


def test_a_mistake_on_rank_0_ends_the_others(given: dict[str, Any], commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "options.json").write_text(json.dumps({**given, "whisper_model": str(tmp_path)}))
    arguments: list[str | Path] = ["pipeline", "moe-asr", "--config", tmp_path / "options.json", "--output-dir", "run"]
    first, second = [command.wait(100) for command in commands.start_ranks(2, arguments, tmp_path)]
    assert (first.status, second.status) == (2, 2), first.errors + second.errors
    assert "expected model.safetensors and config.json" in first.errors
    assert "Traceback" not in first.errors + second.errors
