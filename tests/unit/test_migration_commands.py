"""Commands, launchers and names of the original systems: how training is started, and where their imports are."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tiny_runs import MODEL_AND_DATA
from vaak.config.load import load
from vaak.config.training import TrainingConfig
from vaak.core.errors import UserError
from vaak.engine.distributed.launcher import check_microbatches, pick_device, precision_from_launcher
from vaak.engine.distributed.ranks import start_ranks

ROOT = Path(__file__).parents[2]

TINY = f"{MODEL_AND_DATA}training: {{max_steps: 4, batch_size: 8, logging: {{interval: 1, tensorboard: false}}}}\n"


def test_accelerates_configuration_is_honoured(monkeypatch):
    """accelerate launch hands its configuration on in the environment."""
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert precision_from_launcher("no", given=False) == "fp16"
    assert precision_from_launcher("fp16", given=True) == "fp16"
    assert pick_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="accelerate's configuration says fp16; change one"):
        precision_from_launcher("bf16", given=True)
    with pytest.raises(UserError, match="use_cpu: true; change one"):
        pick_device("cuda")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp8")
    with pytest.raises(UserError, match="fp8, which isn't supported"):
        precision_from_launcher("no", given=False)


def test_another_number_of_processes_is_an_error(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="world_size is 8 but 2 process"):
        start_ranks(TrainingConfig.model_validate({"distributed": {"world_size": 8}}))
    with pytest.raises(UserError, match="2 processes share the 1 microbatch"):
        check_microbatches(TrainingConfig(), 2)


def test_devices_of_tts_trainer():
    assert pick_device("cpu").type == "cpu"
    assert pick_device("auto").type in ("cuda", "mps", "cpu")
    if not torch.backends.mps.is_available():
        with pytest.raises(UserError, match=r"training.device is mps but this machine has none"):
            pick_device("mps")


def test_a_json_file_is_a_configuration(tmp_path):
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"task": "lm", "model": {"d_model": 64}, "training": {"learning_rate": 2e-4}}, indent=2))
    experiment = load([path]).experiment
    assert (experiment.name, experiment.model.d_model, experiment.training.optimizer.lr) == ("run", 64, 2e-4)


@pytest.mark.parametrize("path", ["configs/quickstart.yml", "configs/lm/hindi.yml"])
def test_the_shipped_configurations_load(path, monkeypatch):
    monkeypatch.setenv("VAAK_DATA", "somewhere")
    assert load([ROOT / path]).experiment.task == "lm"


def test_public_names_have_short_paths():
    code = (
        "import sys, vaak; assert 'torch' not in sys.modules and 'pydantic' not in sys.modules\n"
        "import vaak.engine; assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    engine, callbacks = importlib.import_module("vaak.engine"), importlib.import_module("vaak.callbacks")
    assert {*engine.__all__} >= {
        "Trainer",
        "LossRegistry",
        "find_latest_checkpoint",
        "save_checkpoint",
        "load_checkpoint",
    }
    assert all(getattr(engine, name) for name in engine.__all__)
    for name in ("", "EarlyStopping", "FeatureRedraw", "LRMonitor", "GradientClipping"):
        assert getattr(callbacks, f"{name}Callback")
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = engine.Nothing


def test_requirements_pin_what_the_project_needs():
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    extras = "accelerate,augmentation,cleaning,hf,seq2seq,tensorboard,wandb,plot,audio,lilcom,asr,umap,tts,tts-eval"
    assert {"-c constraints.txt", f"-e .[{extras}]"} <= set(lines)
    makefile = (ROOT / "Makefile").read_text()
    assert f"TORCH := {next(line for line in lines if line.startswith('torch=='))}\n" in makefile
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(line for extra in project["optional-dependencies"].values() for line in extra),
    ]
    needed = {canonicalize_name(Requirement(requirement).name) for requirement in wanted}
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(line.partition("==")[0]) for line in pins if "==" in line}
    assert needed - pinned == {"torch"}


def run_in(folder, *command):
    """Run a command of the repository on one thread, and return what it said."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "HF_HOME": str(folder / "hf")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture
def tiny_folder(tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(f"राम ने {number} फल देखे ।" for number in range(40)), encoding="utf-8")
    (tmp_path / "tiny.yml").write_text(TINY, encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_train_py_trains(tiny_folder):
    said = run_in(tiny_folder, sys.executable, ROOT / "train.py", "--config", "tiny.yml", "training.device=cpu")
    assert "finished step 4; the run is in runs/tiny" in said


PREPROCESS = ROOT / "scripts" / "preprocess.sh"


@pytest.mark.slow
def test_the_preprocessing_script_prepares_what_training_finds(tiny_folder):
    said = run_in(tiny_folder, "bash", PREPROCESS, "tiny.yml")
    assert f"prepared data are in {tiny_folder / 'runs' / 'tiny' / 'prepared'}" in said
    assert not (tiny_folder / "runs" / "tiny" / "metrics.jsonl").exists()


@pytest.mark.slow
def test_the_preprocessing_script_has_the_options_of_the_research_kits_own(tiny_folder):
    (tiny_folder / "raw").mkdir()
    (tiny_folder / "corpus.txt").rename(tiny_folder / "raw" / "corpus.txt")
    config = "data: {corpus: {type: text}, tokenizer: {type: character}}\n"
    (tiny_folder / "data_config.yaml").write_text(config, encoding="utf-8")
    options = ("--input_dir", "raw", "--output_dir", "processed", "--config", "data_config.yaml")
    said = run_in(tiny_folder, "bash", PREPROCESS, *options)
    [made] = (path for path in (tiny_folder / "processed").iterdir() if path.is_dir())
    assert f"prepared data are in {made}" in said


def test_the_preprocessing_script_alone_prepares_the_quick_start(tmp_path):
    """A stand-in for ``vaak`` prints the command that would run, as the data themselves take a while."""
    (tmp_path / "vaak").write_text('#!/bin/sh\necho "$@"\n')
    (tmp_path / "vaak").chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for words, expected in (((), None), (("a.yml", "x=1"), "a.yml x=1")):
        command = ["bash", str(PREPROCESS), *words]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        path = done.stdout.split()[2]
        assert done.stdout.startswith("data preprocess ")
        if expected is None:
            assert Path(path).resolve() == ROOT / "configs" / "quickstart.yml"
        else:
            assert done.stdout == f"data preprocess {expected}\n"


@pytest.mark.slow
def test_the_launch_script_trains_under_accelerate(tiny_folder):
    """With accelerate's own configuration file, as the research kit writes it, for one process on a CPU."""
    (tiny_folder / "hf" / "accelerate").mkdir(parents=True)
    (tiny_folder / "hf" / "accelerate" / "default_config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: 'NO'\ndowncast_bf16: 'no'\nmachine_rank: 0\n"
        "main_training_function: main\nmixed_precision: bf16\nnum_machines: 1\nnum_processes: 1\nrdzv_backend: static\n"
        "same_network: true\ntpu_env: []\ntpu_use_cluster: false\ntpu_use_sudo: false\nuse_cpu: true\n"
    )
    said = run_in(tiny_folder, "bash", ROOT / "scripts" / "train.sh", "--config", "tiny.yml")
    assert "on cpu, 1 process(es), precision bf16" in said
    assert "finished step 4; the run is in runs/tiny" in said
