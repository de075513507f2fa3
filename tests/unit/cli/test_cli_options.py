"""Options have the same names everywhere: a table of commands and of what they take."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from vaak.cli import table
from vaak.cli.arguments import add_options
from vaak.config.base import Section, option

# Command: --output (a file or folder to write), --device, --json.
TAKES = {
    "init": "output json",  # --hardware is what the YAML is for
    "train": "device json",  # writes run_dir=
    "launch slurm": "output",  # the file of the job
    "launch sky": "output",  # the file of the job
    "launch ray": "",  # training.device=
    "eval": "output device json",
    "lm-eval": "output device json",
    "predict": "output device json",
    "generate": "output device json",
    "translate": "output device json",
    "classify": "output device json",
    "diarize": "output device json",
    "speak": "output device json",
    "tune": "device json",  # writes RUN/tuned.yml
    "transcribe": "output device json",
    "serve": "device",  # its results are answers
    "demo": "device",  # its results are on a page
    "align": "output device json",
    "data segment": "output device json",
    "plot": "output",
    "report": "output",  # of a running or crashed run, too, and of a folder of runs; no network, so no device
    "score wer": "json",
    "export": "output json",  # copies weights: no device matters
    "publish": "json",  # to the Hub; copies weights
    "find-batch-size": "device json",
    "sweep": "output device json",
    "crossval": "output device json",
    "inspect": "device json",
    "compare": "output device json",
    "baseline": "json",  # of a YAML or a run; no network, so no device
    "find-lr": "output device json",
    "check-gradients": "device json",
    "doctor": "device json",
    "replay": "output device json",
    "verify": "device json",  # writes RUN/verification.json
    "bisect": "device json",
    "fork": "device json",  # has --run-dir
    "runs list": "json",
    "runs clean": "json",
    "config check": "json",
    "config show": "json",
    "config schema": "",  # is JSON
    "model show": "device json",
    "tokenizer show": "json",
    "phonemes": "output json",
    "data check": "output json",  # the YAML to begin with
    "data clean": "json",  # the folder is its argument
    "data simulate": "json",  # the folder is its argument
    "data list": "output json",
    "data get": "json",  # writes --corpus-dir
    "data prepare": "output json",
    "data preprocess": "output json",  # the YAML's training.device has no part in it
    "pipeline moe-asr": "device json",  # has --output-dir
    "score der": "json",
    "score cpwer": "json",
    "score speech": "json",
}


def commands() -> dict[str, Any]:
    """Each command by its full name."""
    found: dict[str, Any] = {}
    for name in table.COMMANDS:
        command = table.imported(name)
        subcommands = getattr(command, "commands", None)
        found |= {name: command} if subcommands is None else {f"{name} {sub}": it for sub, it in subcommands.items()}
    return found


def test_every_command_takes_what_the_table_says():
    found = {}
    for name, command in commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        found[name] = " ".join(option for option in ("output", "device", "json") if f"--{option}" in options)
    assert found == TAKES


def test_help_has_whole_names_in_80_columns(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("COLUMNS", "80")
    for name, command in commands().items():
        shown = CliRunner().invoke(table.app, [*name.split(), "--help"], prog_name="vaak").output
        words = set(re.findall(r"(?<!\S)--?[a-z][\w-]*", shown))
        for parameter in command.params:
            if parameter.param_type_name == "option" and not parameter.hidden:
                assert {*parameter.opts, *parameter.secondary_opts} <= words, name
        assert not re.search(r"--[\w-]*-$", shown, re.MULTILINE), name
        # Defaults as a user types them, not (0.8) or (None); each example begins a line.
        assert not re.search(r"default:\s+\(", shown), name
        assert all(line.strip().startswith("Example:") for line in shown.splitlines() if "Example:" in line), name


@pytest.mark.parametrize("name", sorted({name.partition(" ")[0] for name in TAKES if " " in name}))
def test_each_group_shows_an_example(name: str):
    result = CliRunner().invoke(table.app, [name, "--help"], prog_name="vaak")
    assert result.exit_code == 0
    assert f"Example: vaak {name} " in result.output
    # Completion is installed for vaak as a whole.
    assert "--install-completion" not in result.output


def test_completion_can_be_installed():
    assert "--install-completion" in CliRunner().invoke(table.app, ["--help"], prog_name="vaak").output


def test_a_device_that_is_not_there_is_said_in_a_line(vaak, tiny_text: Path):
    for command in ("find-lr", "find-batch-size", "check-gradients", "model show"):
        code, _, err = vaak(*command.split(), tiny_text / "tiny.yml", "--device", "abacus")
        assert code == 2, command
        assert "abacus" in err
        assert len(err.splitlines()) == 1


def test_predictions_and_continuations_are_written_to_a_file(vaak, tiny_run: Path, tmp_path: Path):
    for command in ("predict", "generate"):
        printed = vaak(command, tiny_run, "the", "--device", "cpu", "--json")[1]
        code, out, _ = vaak(command, tiny_run, "the", "--device", "cpu", "--json", "--output", tmp_path / command)
        assert (code, out) == (0, "")
        assert (tmp_path / command).read_text(encoding="utf-8") == printed != ""
        code, _, err = vaak(command, tiny_run, "the", "--device", "cpu", "--output", tmp_path / "none" / "file")
        assert code == 2
        assert err.startswith("--output ")


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "status", "said"), [(["export", "nothing"], 2, True), (["runs", "."], 0, False)])
def test_a_terminal_says_that_torch_is_loaded(tmp_path: Path, arguments: list[str], status: int, said: bool):
    (tmp_path / "nothing").mkdir()
    (tmp_path / "nothing" / "config.yml").touch()  # looks like a run, so only opening it tells
    command = [sys.executable, "-c", "from vaak.cli.main import main; main()", *arguments]
    leader, follower = pty.openpty()
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=follower)
    os.close(follower)
    written = b""
    try:
        while piece := os.read(leader, 4096):
            written += piece
    except OSError:  # the end of a terminal
        pass
    os.close(leader)
    assert process.wait() == status, written
    assert ("loading torch" in written.decode()) == said


def test_options_may_be_spelled_with_underscores(vaak, tiny_run, tmp_path):
    code, _, err = vaak("eval", tiny_run, "--output_dir", tmp_path / "figures", "--json")
    assert (code, err) == (0, "")
    assert (tmp_path / "figures" / "evaluation.json").is_file()
    assert vaak("runs", "--sort", "name", tmp_path)[0] == 0


class Numbers(Section):
    """A section with a number that may be null."""

    threshold: float | None = option("Leave out what is below; null: leave out none.", -5.0)
    size: int = option("How many.", 3)


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ([], {}),
        (["--threshold", "null"], {"threshold": None}),
        (["--threshold", "-2.5", "--size", "4"], {"threshold": -2.5, "size": 4}),
    ],
)
def test_a_number_of_a_section_may_be_null_where_the_section_allows_it(typed: list[str], given: dict[str, Any]):
    app, found = typer.Typer(), list[dict[str, Any]]()

    @app.command()
    @add_options(Numbers, into="numbers")
    def command(numbers: dict[str, Any]) -> None:
        found.append(numbers)

    CliRunner().invoke(app, typed, catch_exceptions=False)
    assert found == [given]
    for wrong in (["--threshold", "none"], ["--size", "null"]):
        assert CliRunner().invoke(app, wrong).exit_code == 2
