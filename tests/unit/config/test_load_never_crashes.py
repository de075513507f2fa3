"""Whatever stands in a YAML, loading gives an experiment or a ConfigError whose every line has a place."""

import contextlib

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.resolved import as_yaml
from vaak.config.tasks import TASKS
from vaak.config.yaml.aliases import option_aliases
from vaak.config.yaml.fields import get_item_annotation, get_section
from vaak.config.yaml.text import yaml_text
from vaak.config.yaml.tree import ConfigError


def names_of(section):
    """All keys that mean something somewhere."""
    for name, field in section.model_fields.items():
        yield name
        inner = get_section(field.annotation) or get_section(get_item_annotation(field.annotation))
        if inner is not None:
            yield from names_of(inner)


words = {key for task in TASKS for alias in option_aliases(TASKS[task].aliases) for key in alias.split(".")}
words |= {name for task in TASKS for name in names_of(experiment_type(task))}
keys = st.sampled_from(sorted({*words, "0", "1", "extends", "tasks", "nonsense"}))
scalars = st.sampled_from(
    [None, True, False, 0, 1, -1, 2.5, 1e400, float("nan"), "", "adamw", "sgd", "no", "x:y", "./a.py:B"]
)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(keys, inner, max_size=3))
sections = st.dictionaries(keys, values, max_size=5)
sides = st.dictionaries(st.sampled_from(["global_config", "encoder", "decoder"]), sections | scalars, min_size=1)
models = sections | st.builds(dict.__or__, sections, sides)
documents = (
    st.fixed_dictionaries({"task": st.sampled_from(sorted(TASKS))}, optional={"training": sections, "model": models})
    | sections
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(documents, documents, st.lists(st.tuples(st.lists(keys, min_size=1, max_size=3), scalars), max_size=2))
def test_loading_never_crashes(tmp_path, lower, upper, overrides):
    files = [tmp_path / "lower.yml", tmp_path / "upper.yml"]
    for file, values in zip(files, (lower, upper), strict=True):
        file.write_text(yaml_text({"wandb": "x", **values}), encoding="utf-8")
    texts = [f"{'.'.join(path)}={yaml_text({'v': value})[3:].strip()}" for path, value in overrides]
    with contextlib.suppress(ConfigError):
        try:
            experiment = load(files, texts).experiment
        except ConfigError as error:
            for line in str(error).splitlines():
                assert line.startswith((str(tmp_path), "command line")), line
            raise
        as_yaml(experiment)
