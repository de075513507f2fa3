"""Checkpoints and exports had mode 0600 whatever the umask: no colleague could read them."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiny_runs
from quick_cases import mostly_slow

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture(params=mostly_slow((0o022, 0o002, 0o077), 0o077))
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_every_file_of_a_run_and_of_an_export_follows_the_umask(
    vaak: Vaak, umask: int, tiny_text: Path, tmp_path: Path
):
    options = ("training.max_steps=1", "training.ema=0.9")
    tiny_runs.train(tiny_text, tmp_path / "run", *options)
    code, _, err = vaak("export", tmp_path / "run", "--output", tmp_path / "exported")
    assert code == 0, err
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    modes = {str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode) for path in files}
    assert len([name for name in modes if name.endswith(".safetensors")]) == 4
    assert {name: oct(mode) for name, mode in modes.items() if mode != 0o666 & ~umask} == {}
    folders = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o777 & ~umask}
