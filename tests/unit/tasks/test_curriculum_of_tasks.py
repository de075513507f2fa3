"""Easy examples first: the data of every task know how hard they are, or its options say that they do not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from contract_cases import CASES
from vaak.config.load import load
from vaak.config.tasks import TASKS
from vaak.config.training import TrainingConfig
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.data.batching import training_planner

OF_TASKS = {task: next(case for case in CASES.values() if case.task == task) for task in TASKS}
CURRICULUM = {"difficulty": "length", "initial_difficulty": 0.4, "num_epochs": 2}


@pytest.mark.parametrize("task", OF_TASKS)
def test_every_task_trains_on_its_easiest_examples_first(task, tmp_path: Path):
    options = OF_TASKS[task].options
    if task == "lm":
        options = {**options, "data": {**options["data"], "layout": "document"}}
    case = replace(OF_TASKS[task], options=options, training={"curriculum": CURRICULUM}).prepared(tmp_path)
    dataset = case.make_task().dataset("train")
    difficulties = dataset.difficulty("length")
    assert difficulties.shape == (len(dataset.lengths),)
    planner = training_planner(TrainingConfig.model_validate({"batch_size": 1, "curriculum": CURRICULUM}), dataset)
    first = planner.plan(0).microbatch(0)[0][0]
    own = slice(None) if dataset.parts is None else dataset.parts == dataset.parts[first]
    assert np.mean(difficulties[own] < difficulties[first]) <= 0.5


@pytest.mark.parametrize("task", sorted({"asr", "classification", "diarization", "multitask", "tts", "vocoder"}))
def test_a_difficulty_that_the_data_do_not_have_is_known_before_there_are_data(task, tmp_path: Path):
    text = yaml_text({"task": task, **OF_TASKS[task].options, "training": {"curriculum": "lexical"}})
    (tmp_path / "case.yml").write_text(text.replace("FOLDER", str(tmp_path)), encoding="utf-8")
    with pytest.raises(UserError, match=r"case.yml:\d+: training.curriculum.difficulty: lexical: .*expected length"):
        load([tmp_path / "case.yml"])


def test_windows_of_a_stream_are_not_compared_by_length_nor_are_those_of_a_part(tmp_path: Path):
    words = {"task": "lm", "data": {"layout": "stream"}}
    for options, name in ((words, ""), ({"tasks": {"a": words, "b": words}}, "a: ")):
        (tmp_path / "case.yml").write_text(yaml_text({**options, "training": {"curriculum": "length"}}))
        with pytest.raises(UserError, match=f"length: {name}windows of a stream .*expected lexical or morphology"):
            load([tmp_path / "case.yml"])
