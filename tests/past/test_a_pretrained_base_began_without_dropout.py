"""A model with parts in evaluation mode, as ``from_pretrained`` leaves them, trained so until the first evaluation.

Its first steps, and those after each resume, had no dropout where nothing was rehearsed.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toy import StopAt, ToyModel, ToyTask, same_bits, toy_trainer, weights

QUICK: dict[str, Any] = {"memory": {"rehearsal": False}, "epochs": 1}


@dataclass
class Loaded(ToyTask):
    def model(self) -> ToyModel:
        model = super().model()
        for part in model.children():
            part.eval()
        return model


def test_the_first_steps_have_dropout_and_so_have_those_after_a_resume(tmp_path: Path):
    ends = []
    for task, name in ((ToyTask(), "own"), (Loaded(), "loaded")):
        whole = toy_trainer(tmp_path / name, task=task, **QUICK)
        whole.fit()
        ends.append(weights(whole))
    assert same_bits(*ends)
    toy_trainer(tmp_path / "cut", StopAt(2), task=Loaded(), **QUICK).fit()
    resumed = toy_trainer(tmp_path / "cut", task=Loaded(), **QUICK)
    assert resumed.resume("auto")
    resumed.fit()
    assert same_bits(ends[0], weights(resumed))
