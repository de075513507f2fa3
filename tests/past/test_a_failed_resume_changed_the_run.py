"""A resume that failed (another model) had written config.yml before: then eval and generate failed, too."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_runs
from vaak.core.errors import UserError

LATER = ("training.max_steps=9", "training.checkpoint.resume=auto")
Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run and its texts."""
    folder = tmp_path_factory.mktemp("kept")
    tiny_runs.train_and_keep(folder)
    return folder


@pytest.fixture
def run(kept: Path) -> Path:
    return tiny_runs.as_trained(kept)


@pytest.mark.parametrize(
    "other",
    [
        "model.d_model=16",
        pytest.param("training.batch_size=5", marks=pytest.mark.slow),
        "data.tokenizer.vocab_size=450",
    ],
)
def test_what_fails_leaves_the_run_as_it_was(vaak: Vaak, run: Path, other: str):
    before = tiny_runs.hashes(run)
    with pytest.raises(UserError):
        tiny_runs.train(run.parent / "text", run, *LATER, other)
    after = tiny_runs.hashes(run)
    assert {name for name in after if after[name] != before.get(name)} <= {"train.log"}
    assert before.keys() == after.keys()
    for command in (("eval", run), ("generate", run, "वह", "--max-new-tokens", 2)):
        code, _, err = vaak(*command)
        assert code == 0, err


def test_a_damaged_checkpoint_stays_in_its_place_where_the_resume_fails(run: Path):
    (run / "checkpoints" / "step-00000008" / "model.safetensors").write_bytes(b"torn")
    before = tiny_runs.hashes(run / "checkpoints")
    with pytest.raises(UserError):
        tiny_runs.train(run.parent / "text", run, *LATER, "model.d_model=16")
    assert tiny_runs.hashes(run / "checkpoints") == before
    assert tiny_runs.train(run.parent / "text", run, *LATER).step == 9
    assert (run / "checkpoints" / "set-aside" / "step-00000008.1").is_dir()


def test_what_succeeds_is_the_runs_configuration(run: Path):
    tiny_runs.train(run.parent / "text", run, *LATER)
    assert "max_steps: 9" in (run / "config.yml").read_text()


def test_a_start_that_fails_leaves_its_configuration_and_a_later_one_replaces_it(tmp_path: Path):
    tiny_runs.write_corpus(tmp_path / "text")
    with pytest.raises(UserError):
        tiny_runs.train(tmp_path / "text", tmp_path / "run", "data.corpus.train=[nowhere.txt]")
    assert "nowhere.txt" in (tmp_path / "run" / "config.yml").read_text()
    assert tiny_runs.train(tmp_path / "text", tmp_path / "run", "training.max_steps=1").step == 1
    assert "nowhere.txt" not in (tmp_path / "run" / "config.yml").read_text()
