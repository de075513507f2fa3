"""Checkpoints of earlier versions have the last figures without a frame, and one hash of data and plan together."""

from __future__ import annotations

from pathlib import Path

from toy import StopAt, same_bits, toy_trainer, weights


def test_a_run_of_an_earlier_version_is_resumed_to_the_bit(tmp_path: Path):
    whole = toy_trainer(tmp_path / "whole")
    whole.fit()
    toy_trainer(tmp_path / "cut", StopAt(3)).fit()
    first = toy_trainer(tmp_path / "read")
    assert first.resume(str(tmp_path / "cut" / "checkpoints" / "last"))
    snapshot = first.saving.snapshot()
    snapshot.state["metrics"] = {"val_loss": 2.5}
    snapshot.state["data"] += " " + snapshot.state.pop("plan")["fingerprint"]
    resumed = toy_trainer(tmp_path / "resumed")
    resumed.restore(snapshot, tmp_path)
    assert resumed.metrics == {"val_loss": 2.5}
    resumed.fit()
    assert same_bits(weights(resumed), weights(whole))
