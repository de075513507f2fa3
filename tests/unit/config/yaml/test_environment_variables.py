"""``${NAME}`` and ``${NAME:-default}`` in values."""

import pytest

from vaak.config.yaml.text import expand, read_yaml
from vaak.config.yaml.tree import ConfigError


def test_values_are_read_again_as_plain_scalars(tmp_path, monkeypatch):
    monkeypatch.setenv("VAAK_LR", "2e-4")
    monkeypatch.setenv("VAAK_EMPTY", "")
    path = tmp_path / "f.yml"
    path.write_text(
        "lr: ${VAAK_LR}\nquoted: '${VAAK_LR}'\nepochs: ${VAAK_NONE:-3}\nflag: ${VAAK_NONE:-true}\n"
        "path: ${VAAK_NONE:-/data}/hi.txt\nempty: ${VAAK_EMPTY}\nfallback: ${VAAK_EMPTY:-x}\nliteral: $${HOME}\n"
    )
    assert read_yaml(path) == {
        "lr": 2e-4,
        "quoted": "2e-4",
        "epochs": 3,
        "flag": True,
        "path": "/data/hi.txt",
        "empty": None,
        "fallback": "x",
        "literal": "${HOME}",
    }


def test_an_unset_variable_names_file_and_line(tmp_path):
    path = tmp_path / "f.yml"
    path.write_text("a: 1\nb:\n  c: ${VAAK_NOT_SET}\n")
    with pytest.raises(ConfigError) as error:
        read_yaml(path)
    assert str(error.value) == (
        f"{path}:3: b.c: the environment variable VAAK_NOT_SET is not set; set it, or write ${{VAAK_NOT_SET:-default}}"
    )


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "DB_PASSWORD", "MY_SECRET"])
def test_a_secret_is_refused_and_never_shown(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "hunter2")
    path = tmp_path / "f.yml"
    path.write_text(f"training:\n  epochs: ${{{name}}}\n")
    with pytest.raises(ConfigError, match="looks like a secret") as error:
        read_yaml(path)
    assert "hunter2" not in str(error.value)


def test_a_value_is_not_expanded_twice():
    assert expand("${A}", {"A": "${B}"}) == "${B}"


@pytest.mark.parametrize("text", ["${", "${A", "${A:default}", "${1}", "${A:-${B}}", "${}"])
def test_a_malformed_variable_is_an_error(text):
    with pytest.raises(ValueError, match=r"a variable is written \$\{NAME\}"):
        expand(text, {"A": "x", "B": "y"})
