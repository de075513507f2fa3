"""The text of all options follows the types; the schema describes what the loader takes."""

import json
from pathlib import Path
from typing import Any

import pytest

from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.reference import all_options, json_schema, schema_file, schema_text
from vaak.config.tasks import TASKS, load_spec
from vaak.config.yaml.fields import get_item_annotation, get_section

ROOT = Path(__file__).parents[3]
SHIPPED = "configs/comprehensive_all_options.yml"

tasks = pytest.mark.parametrize("task", TASKS)


def options(section, indent=0):
    """Every option of the types with its indentation in the file."""
    for name, field in section.model_fields.items():
        if field.annotation in (dict[str, Any], tuple[Any, ...]):  # global_config and datasets of a task without audio
            continue
        yield name, field
        inner = get_section(field.annotation) or get_section(get_item_annotation(field.annotation))
        if inner is not None:
            yield from options(inner, indent + 2)


def test_the_shipped_file_is_what_the_types_say():
    shipped = (ROOT / SHIPPED).read_text(encoding="utf-8")
    assert shipped == all_options("seq2seq"), f"run: vaak config show --all seq2seq > {SHIPPED}"


@tasks
def test_the_schema_in_the_package_is_what_the_types_say(task):
    command = f"vaak config schema --task {task} > src/vaak/schemas/{task}.json"
    assert schema_file(task).read_text(encoding="utf-8") == f"{schema_text(task)}\n", f"run: {command}"
    assert json.loads(schema_text(task)) == json_schema(task)


@tasks
def test_the_text_loads_to_the_defaults(task, tmp_path):
    path = tmp_path / "all_options.yml"
    path.write_text(all_options(task), encoding="utf-8")
    loaded = load([path])
    path.write_text(f"task: {task}\n")
    assert loaded.experiment == load([path]).experiment


@tasks
def test_every_option_is_there_with_its_description(task):
    words = " ".join(line.strip().lstrip("# ") for line in all_options(task).splitlines())
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
    for alias in load_spec(task).aliases:
        if "." not in alias:
            assert alias in schema["properties"]
