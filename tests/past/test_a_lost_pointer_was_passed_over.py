"""``checkpoints/best`` that held garbage was passed over without a word; bytes that aren't text were a traceback."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from toy import StopAt, toy_trainer
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint.files import pointed, resolve_checkpoint

GARBAGE = [b"", b"rubbish", b"\xff\xfe\x00", b"set-aside", b"step-00000099", b"a\0b", b"../checkpoints"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    toy_trainer(tmp_path, StopAt(3), checkpoint={"interval": 1}, validation={"interval": 2}).fit()
    (tmp_path / "checkpoints" / "set-aside").mkdir()
    return tmp_path


@pytest.mark.parametrize("content", GARBAGE)
def test_it_is_said_and_the_newest_is_used(run: Path, content: bytes, caplog: pytest.LogCaptureFixture):
    folder = run / "checkpoints"
    (folder / "best").write_bytes(content)
    with caplog.at_level(logging.WARNING, "vaak"):
        assert resolve_checkpoint(run) == folder / "step-00000003"
    assert f"{folder / 'best'} does not name a checkpoint there" in caplog.text
    assert "the newest checkpoint is used" in caplog.text
    with pytest.raises(CheckpointError, match=r"no checkpoint at .*best: it does not name one"):
        resolve_checkpoint(folder / "best")


def test_a_resume_says_it_and_rewrites_it(run: Path, caplog: pytest.LogCaptureFixture):
    folder = run / "checkpoints"
    for name in ("best", "last"):
        (folder / name).write_bytes(b"rubbish")
    trainer = toy_trainer(run, checkpoint={"interval": 1}, validation={"interval": 2})
    with caplog.at_level(logging.WARNING, "vaak"):
        assert trainer.resume("auto")
    for name in ("best", "last"):
        lost = f"{folder / name} does not name a checkpoint there (its content is 'rubbish'); it is rewritten"
        assert lost in caplog.text
    assert pointed(folder, "best") == folder / "step-00000002"
    assert pointed(folder, "last") == folder / "step-00000003"


def test_a_good_one_is_not_said(run: Path, caplog: pytest.LogCaptureFixture):
    assert resolve_checkpoint(run) == run / "checkpoints" / "step-00000002"
    assert caplog.text == ""
