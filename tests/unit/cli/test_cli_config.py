"""``vaak config check|show|schema``."""

import json

import pytest
from typer.testing import CliRunner

from vaak.cli.arguments import files_and_overrides
from vaak.cli.config import app
from vaak.cli.main import exit_on_error


@pytest.fixture
def vaak_config(tmp_path, monkeypatch, capfd):
    """A function from arguments to (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.yml").write_text("task: lm\nmodel: tiny\ntraining: {fixed_projection: true}\n")
    (tmp_path / "bad.yml").write_text("task: lm\ntraining: {epoch: 3}\nmodel: {d_modell: 3}\n")

    def call(*arguments):
        try:
            exit_on_error(lambda: app(list(arguments), standalone_mode=False))
            code: str | int | None = 0
        except SystemExit as end:
            code = end.code
        captured = capfd.readouterr()
        return code, captured.out, captured.err

    return call


def test_check_of_a_right_file(vaak_config):
    code, out, err = vaak_config("check", "run.yml", "name=x")
    assert code == 0
    assert out == "valid: task lm, run x in runs/x; about 2.1 million parameters\n"
    assert err.startswith("warning: run.yml:3: training.fixed_projection: ")


def test_check_as_json(vaak_config):
    code, out, _ = vaak_config("check", "--json", "run.yml")
    report = json.loads(out)
    assert (code, report["task"], report["run_dir"], len(report["warnings"])) == (0, "lm", "runs/run", 1)


@pytest.mark.parametrize("arguments", [("check", "bad.yml"), ("show", "bad.yml"), ("check", "--json", "bad.yml")])
def test_a_wrong_file_ends_with_2_and_every_mistake_on_stderr(vaak_config, arguments):
    assert vaak_config(*arguments) == (
        2,
        "",
        "bad.yml:2: training.epoch: unknown key; did you mean epochs?\n"
        "bad.yml:3: model.d_modell: unknown key; did you mean d_model?\n",
    )


def test_show_gives_yaml_that_loads_and_json_that_says_the_same(vaak_config, tmp_path):
    code, out, _ = vaak_config("show", "run.yml", "training.epochs=4")
    assert code == 0
    (tmp_path / "shown.yml").write_text(out)
    assert vaak_config("show", "shown.yml")[1] == out
    values = json.loads(vaak_config("show", "--json", "shown.yml")[1])
    assert values["training"]["epochs"] == 4
    assert values["model"]["d_model"] == 64


def test_show_all_options(vaak_config):
    code, out, _ = vaak_config("show", "--all", "lm")
    assert code == 0
    assert "# Passes over the training data." in out
    assert vaak_config("show", "--all-options", "--task", "lm")[1] == out
    assert vaak_config("show", "--all", "lmm")[::2] == (
        2,
        "--all lmm: expected one of asr, classification, diarization, lm, multitask, seq2seq, tts, vocoder; "
        "did you mean lm?\n",
    )


def test_schema(vaak_config):
    schema = json.loads(vaak_config("schema")[1])
    assert schema["title"] == "Vaak: lm"
    assert json.loads(vaak_config("schema", "run.yml")[1]) == schema


def test_show_without_a_file(vaak_config):
    assert vaak_config("show") == (2, "", "no configuration file given\n")


def test_usage_errors_end_with_2():
    assert CliRunner().invoke(app, ["check"]).exit_code == 2


def test_a_file_with_an_equals_sign_is_a_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lr=3.yml").write_text("task: lm\n")
    assert files_and_overrides(["lr=3.yml", "a=b"]) == (["lr=3.yml"], ["a=b"])


def test_show_what_a_resume_may_change(vaak_config):
    code, out, _ = vaak_config("show", "--on-resume")
    assert code == 0
    line = "| `training.batching` | converts | `type`, `max_tokens`, `max_duration`, `num_buckets`, `round_lengths`, "
    assert f"{line}`shard_size`, `shards_mixed` |" in out
