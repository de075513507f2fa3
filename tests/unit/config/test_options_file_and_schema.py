"""The file of all options follows the types; the schema describes what the loader takes."""

import json
from pathlib import Path

from vaak.config.all_options import all_options
from vaak.config.experiment import aliases_of, experiment_type
from vaak.config.load import load
from vaak.config.schema import json_schema
from vaak.config.shape import item_of, section_of

ROOT = Path(__file__).parents[3]
FILE = ROOT / "configs" / "comprehensive_all_options.yml"


def options(section, indent=0):
    """Every option of the types with its indentation in the file."""
    for name, field in section.model_fields.items():
        if indent == 0 and name in ("global_config", "datasets"):
            continue
        yield name, field
        inner = section_of(field.annotation) or section_of(item_of(field.annotation))
        if inner is not None:
            yield from options(inner, indent + 2)


def test_the_shipped_file_is_what_the_types_say():
    assert FILE.read_text(encoding="utf-8") == all_options("lm"), (
        "run: vaak config show --all-options > configs/comprehensive_all_options.yml"
    )


def test_the_shipped_file_loads_to_the_defaults(tmp_path):
    loaded = load([FILE])
    path = tmp_path / "comprehensive_all_options.yml"
    path.write_text("task: lm\n")
    assert loaded.experiment == load([path]).experiment


def test_every_option_is_there_with_its_description():
    text = FILE.read_text(encoding="utf-8")
    words = " ".join(line.strip().lstrip("# ") for line in text.splitlines())
    for name, field in options(experiment_type("lm")):
        assert f"{name}:" in words
        assert field.description, name
        assert " ".join(field.description.split()) in words


def test_the_schema_has_every_option_and_is_json():
    schema = json_schema("lm")
    assert json.loads(json.dumps(schema)) == schema
    text = json.dumps(schema)
    for name, _ in options(experiment_type("lm")):
        assert f'"{name}"' in text
    assert schema["properties"]["task"]["const"] == "lm"
    optimizer = schema["$defs"]["OptimizerConfig"]["anyOf"]
    assert optimizer[0]["properties"]["type"]["enum"] == optimizer[1]["enum"]
    for alias in aliases_of("lm"):
        if "." not in alias:
            assert alias in schema["properties"]
