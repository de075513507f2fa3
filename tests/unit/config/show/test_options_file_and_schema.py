"""The file of all options follows the types; the schema describes what the loader takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.reference import all_options, json_schema
from vaak.config.tasks import TASKS, spec_of
from vaak.config.yaml.fields import item_of, section_of

ROOT = Path(__file__).parents[4]
FILES = {
    "seq2seq": "configs/comprehensive_all_options.yml",
    "lm": "configs/lm/all_options.yml",
    "diarization": "configs/diarization/all_options.yml",
    "tts": "configs/tts/all_options.yml",
    "vocoder": "configs/vocoder/all_options.yml",
    "asr": "configs/asr/all_options.yml",
    "classification": "configs/classification/all_options.yml",
    "multitask": "configs/multitask/all_options.yml",
}

tasks = pytest.mark.parametrize("task", FILES)


def text_of(task):
    return (ROOT / FILES[task]).read_text(encoding="utf-8")


def options(section, indent=0):
    """Every option of the types with its indentation in the file."""
    for name, field in section.model_fields.items():
        if field.annotation in (dict[str, Any], tuple[Any, ...]):  # global_config and datasets of a task without audio
            continue
        yield name, field
        inner = section_of(field.annotation) or section_of(item_of(field.annotation))
        if inner is not None:
            yield from options(inner, indent + 2)


def test_every_task_has_its_file():
    assert set(FILES) == set(TASKS)


@tasks
def test_the_shipped_file_is_what_the_types_say(task):
    assert text_of(task) == all_options(task), f"run: vaak config show --all-options --task {task} > {FILES[task]}"


@tasks
def test_the_shipped_file_loads_to_the_defaults(task, tmp_path):
    loaded = load([ROOT / FILES[task]])
    path = tmp_path / "all_options.yml"
    path.write_text(f"task: {task}\n")
    assert loaded.experiment == load([path]).experiment


@tasks
def test_every_option_is_there_with_its_description(task):
    words = " ".join(line.strip().lstrip("# ") for line in text_of(task).splitlines())
    for name, field in options(experiment_type(task)):
        assert f"{name}:" in words
        assert field.description, name
        assert " ".join(field.description.split()) in words


@tasks
def test_the_schema_has_every_option_and_is_json(task):
    schema = json_schema(task)
    assert json.loads(json.dumps(schema)) == schema
    text = json.dumps(schema)
    for name, _ in options(experiment_type(task)):
        assert f'"{name}"' in text
    assert schema["properties"]["task"]["const"] == task
    optimizer = schema["$defs"]["OptimizerConfig"]["anyOf"]
    assert optimizer[0]["properties"]["type"]["anyOf"] == optimizer[1]["anyOf"]
    for alias in spec_of(task).aliases:
        if "." not in alias:
            assert alias in schema["properties"]
