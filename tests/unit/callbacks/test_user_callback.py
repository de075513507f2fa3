"""A user's own callback by name in a YAML, with its options, trained through the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.callbacks import EarlyStoppingCallback, LRMonitorCallback
from vaak.config.base import Component
from vaak.core.errors import UserError
from vaak.runs.build_callbacks import built

CODE = '''
from pathlib import Path
from vaak.engine.callback import Callback


class EpochDiary(Callback):
    """Writes a line at every epoch's end, and stops after N epochs."""

    def __init__(self, file: str, epochs: int = 1):
        self.file, self.epochs = Path(file), epochs

    def on_epoch_end(self, trainer, epoch, metrics):
        with open(self.file, "a") as file:
            print(epoch, sorted(metrics), file=file)
        if epoch + 1 == self.epochs:
            trainer.request_stop("the diary is full")
'''

YAML = """
task: lm
model: {d_model: 16, num_layers: 1, num_heads: 2}
data:
  corpus: {type: grammar, num_sentences: 60}
  tokenizer: {type: character}
  max_length: 32
training:
  epochs: 5
  device: cpu
  logging: {tensorboard: false}
  callbacks:
    - type: ./diary.py:EpochDiary
      file: DIARY
      epochs: 2
"""


def test_it_is_told_of_epochs_and_may_stop_the_run(tmp_path: Path):
    from vaak.config.load import load
    from vaak.runs.start import train

    (tmp_path / "diary.py").write_text(CODE)
    (tmp_path / "run.yml").write_text(YAML.replace("DIARY", str(tmp_path / "diary.txt")))
    outcome = train(load([tmp_path / "run.yml"], [f"run_dir={tmp_path / 'run'}"]))
    assert outcome.reason == "the diary is full"
    lines = (tmp_path / "diary.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["0", "1"]
    assert "val_loss" in lines[0]
    assert (tmp_path / "run" / "code" / "diary.py").read_text() == CODE


def test_short_names_stand_for_vaaks_own(tmp_path: Path):
    assert isinstance(built(Component(type="lr_monitor"), tmp_path), LRMonitorCallback)
    stopping = built(Component.model_validate({"type": "early_stopping", "patience": 7}), tmp_path)
    assert isinstance(stopping, EarlyStoppingCallback)
    assert stopping.patience == 7


def test_an_option_that_is_none_is_an_error_with_those_that_are(tmp_path: Path):
    with pytest.raises(UserError, match=r"lr_monitor: .*evry.*its options are every$"):
        built(Component.model_validate({"type": "lr_monitor", "evry": 7}), tmp_path)
