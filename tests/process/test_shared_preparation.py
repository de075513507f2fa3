"""Several processes prepare together: the bytes of one, whoever did what; one that fails or ends ends all of them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from folders import contents
from processes import run_on_ranks
from shared_preparation import Witness, extract_together, prepare_together, share_key
from tiny_runs import write_corpus

LENGTHS = [16000, 0, 24000, 8000, 100, 48000, 16000, 16000, 5000, 32000]
SECONDS = 1.0
"""Of a shard: each of the longer recordings ends one, six in all."""


def extracted(folder: Path, world_size: int, num_jobs: int = 1, fault: str = "") -> tuple[list[int | None], Path]:
    """The exit codes of processes that extract features together, and the folder of these."""
    (folder / "witness").mkdir(parents=True, exist_ok=True)
    arguments = (world_size, folder, LENGTHS, SECONDS, num_jobs, fault)
    codes = run_on_ranks(world_size, extract_together, *arguments, seconds=60)
    (made,) = (folder / "features").iterdir()
    return codes, made


def said(folder: Path, rank: int) -> str:
    told: dict[str, Any] = json.loads((folder / f"{rank}.json").read_text())
    assert told["seconds"] < 30
    return str(told["said"])


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files that one process makes."""
    codes, made = extracted(tmp_path_factory.mktemp("alone"), 1)
    assert codes == [0]
    assert len(list(made.glob("shard-*.bin"))) == 6
    return contents(made)


@pytest.mark.parametrize(("world_size", "num_jobs"), [(2, 1), (3, 1), pytest.param(2, 2, marks=pytest.mark.slow)])
def test_features_are_the_same_bytes_on_any_number_of_processes(
    world_size: int, num_jobs: int, features: dict[str, bytes], tmp_path: Path
) -> None:
    codes, made = extracted(tmp_path, world_size, num_jobs)
    assert codes == [0] * world_size
    assert contents(made) == features
    assert Witness(tmp_path / "witness", world_size).ranks() == set(range(world_size))


CHATS = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": "yes " * (1 + n % 4)}]}
    for n in range(90)
]
CONVERSATIONS = (
    "data.corpus={type: chat, train: [FOLDER/chats.jsonl], valid: [], test: [], train_fraction: 0.8}",
    "data.chat_template=chatml",
)


@pytest.mark.parametrize("others", [[2, 3], pytest.param([4], marks=pytest.mark.slow)])
@pytest.mark.parametrize("given", [(), CONVERSATIONS], ids=["texts", "conversations"])
def test_tokens_are_the_same_bytes_on_any_number_of_processes(
    given: tuple[str, ...], others: list[int], tmp_path: Path
) -> None:
    write_corpus(tmp_path)
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in CHATS))
    overrides = [one.replace("FOLDER", str(tmp_path)) for one in given]
    made = {}
    for world_size in (1, *others):
        run = tmp_path / f"on-{world_size}"
        for name in ("witness", "said"):
            run.with_name(f"{run.name}-{name}").mkdir()
        codes = run_on_ranks(world_size, prepare_together, world_size, tmp_path, run, overrides, seconds=60)
        assert codes == [0] * world_size
        assert Witness(run.with_name(f"{run.name}-witness"), world_size).ranks() == set(range(world_size))
        made[world_size] = contents(run / "prepared")
    assert "train/tokens.bin" in made[1]
    for world_size in others:
        assert made[world_size] == made[1]


@pytest.mark.parametrize(
    ("fault", "codes"),
    [("mistake", [2, 2]), ("bug", [1, 2]), ("kill", [2, -signal.SIGKILL]), ("interrupt", [2, 130])],
)
def test_what_happens_to_another_rank_ends_all_and_what_is_made_stays(
    fault: str, codes: list[int], features: dict[str, bytes], tmp_path: Path
) -> None:
    found, made = extracted(tmp_path, 2, fault=fault)
    assert found == codes
    line = said(tmp_path, 0)
    if fault == "mistake":
        assert line == "one.wav: this isn't audio"
        assert said(tmp_path, 1) == ""  # rank 0 has said it
    elif fault == "bug":
        assert "on rank 1:\nTraceback" in line
        assert line.count("meet(self.fault)") == 1
        assert said(tmp_path, 1).startswith("rank 0 (process ")
    else:
        assert line.startswith("rank 1 (process ")
        assert "has ended, and so this one (rank 0)" in line
    there = {name: content for name, content in contents(made).items() if not name.startswith(".")}
    assert there
    assert "features.json" not in there
    assert there.items() <= features.items()
    assert not list(made.glob(".*.tmp")) or fault == "kill"
    assert extracted(tmp_path, 2)[0] == [0, 0]
    assert contents(made) == features


@pytest.mark.parametrize(("forger", "victim"), [(0, 1), (1, 0)])
def test_a_message_of_someone_else_ends_all_before_it_is_unpickled(forger: int, victim: int, tmp_path: Path) -> None:
    codes, _ = extracted(tmp_path, 2, fault=f"forged by {forger}")
    assert codes == [2, 2]
    line = said(tmp_path, victim)
    assert line.startswith(f"rank {victim} received a message that isn't message 0 of rank {forger}, and didn't use it")
    assert "\n" not in line
    assert said(tmp_path, forger).startswith(f"rank {victim} (process ")
    assert not (tmp_path / "planted").exists()


def test_where_storage_keeps_no_secret_rank_0_prepares_alone(features: dict[str, bytes], tmp_path: Path) -> None:
    codes, made = extracted(tmp_path, 2, fault="unkept")
    assert codes == [0, 0]
    assert contents(made) == features
    assert Witness(tmp_path / "witness", 2).ranks() == {0}


@pytest.mark.parametrize("killed", [0, 1])
def test_a_key_of_a_killed_start_is_replaced_and_then_gone(killed: int, tmp_path: Path) -> None:
    codes = run_on_ranks(2, share_key, tmp_path, killed, seconds=60)
    assert codes[killed] == -signal.SIGKILL
    assert codes[1 - killed] == 2
    assert said(tmp_path, 1 - killed).startswith(f"rank {killed} (process ")
    assert len(list(tmp_path.glob(".key-*"))) == (1 if killed == 0 else 0)
    assert run_on_ranks(2, share_key, tmp_path, None, seconds=60) == [0, 0]
    assert not list(tmp_path.glob(".key-*"))
