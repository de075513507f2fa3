"""``unified_parser`` and the arguments of ``train.py``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vaak.compat.unified_parser import parse_arguments, unified_parser
from vaak.config.training import TrainingConfig
from vaak.tasks.lm.config import LanguageModelConfig, LanguageModelDataConfig

ROOT = Path(__file__).parents[3]


def test_the_four_parts_of_the_first_pipeline(tmp_path):
    path = tmp_path / "run.yml"
    path.write_text("task: lm\nmodel: tiny\n")
    args, model, datasets, training = unified_parser(["--config", str(path), "training.epochs=2", "--resume", "auto"])
    assert isinstance(model, LanguageModelConfig)
    assert [type(dataset) for dataset in datasets] == [LanguageModelDataConfig]
    assert isinstance(training, TrainingConfig)
    assert (training.epochs, training.checkpoint.resume) == (2, "auto")
    assert args.experiment.name == "run"


def test_arguments():
    args = parse_arguments(["--config", "a.yml", "x=1", "--config", "b.yml", "y=2", "--resume", "a: b"])
    assert args.config == ["a.yml", "b.yml"]
    assert args.overrides == ["x=1", "y=2", 'training.checkpoint.resume="a: b"']
    args = parse_arguments(["--config", "a.yml", "--no-mixed-precision"])
    assert args.overrides == ["training.mixed_precision=no"]
    with pytest.raises(SystemExit):
        parse_arguments([])


def test_the_root_file_gives_the_parser_without_torch(tmp_path):
    (tmp_path / "run.yml").write_text("task: lm\n")
    code = (
        "import sys; from parse_args import unified_parser; unified_parser(['--config', 'run.yml']);"
        "assert 'torch' not in sys.modules"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)


def test_train_py_ends_with_2_for_a_wrong_argument(tmp_path):
    done = subprocess.run([sys.executable, ROOT / "train.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2
    assert "--config" in done.stderr
