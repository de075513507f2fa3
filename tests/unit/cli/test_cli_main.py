"""The command line: help without torch, errors on stderr with their exit codes."""

import errno
import json
import os
import re
import subprocess
import sys

import pytest
import tokenizers
from typer.testing import CliRunner

import vaak
from vaak.cli import main, table
from vaak.config.yaml.recipes import recipes
from vaak.core.errors import UserError

VAAK = [sys.executable, "-c", "from vaak.cli.main import main; main()"]


def run(*arguments, **options):
    return subprocess.run([*VAAK, *arguments], capture_output=True, text=True, **options)


def test_version():
    assert run("--version").stdout == f"vaak {vaak.__version__}\n"


def test_help_lists_every_command_and_imports_no_torch():
    code = (
        "import sys\nfrom vaak.cli.main import main\nsys.argv = ['vaak', '--help']\n"
        "try: main()\nexcept SystemExit: assert not {'torch', 'pydantic', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name, (_, line) in table.COMMANDS.items():
        assert name in done.stdout
        assert line in done.stdout


def test_what_a_newcomer_needs_is_on_the_first_screen():
    """Of 80 columns and 24 lines; each line of a command is one."""
    lines = run("--help", env={**os.environ, "COLUMNS": "80"}).stdout.splitlines()
    assert max(map(len, lines)) <= 80
    words = {line.split()[0] for line in lines[:24] if line.startswith("  ")}
    first = {"init", "train", "doctor", "predict", "generate", "transcribe", "export", "eval", "report", "runs", "plot"}
    assert first <= words
    headings = [line.removesuffix(":") for line in lines if line and line[0].isupper() and line.endswith(":")]
    assert headings == ["Start", "Use", "Look", "Prove", "Compare", "Data", "More", "Options"]
    assert [line.split()[0] for line in lines if re.match(r"  [a-z]", line)] == [*table.COMMANDS]


def test_help_answers_quickly():
    """In the processor's seconds, which no other process takes from it."""

    def seconds():
        before = os.times()
        run("--help")
        after = os.times()
        return after.children_user + after.children_system - before.children_user - before.children_system

    assert min(seconds() for _ in range(3)) < 0.5


def test_reading_a_configuration_imports_nothing_heavy(tmp_path):
    (tmp_path / "f.yml").write_text("task: lm\n")
    code = (
        "import sys, vaak.config.load as load, vaak.config.resolved as show\n"
        "show.as_yaml(load.load(['f.yml']).experiment)\n"
        "assert not {'torch', 'numpy', 'tokenizers', 'accelerate'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)


def test_an_unknown_command_ends_with_2():
    done = run("trian")
    assert done.returncode == 2
    assert "train" in done.stderr


@pytest.mark.parametrize("name", table.COMMANDS)
def test_each_command_has_a_help_with_an_example(name):
    command = table.imported(name)
    result = CliRunner().invoke(table.app, [name, "--help"], prog_name="vaak")
    assert result.exit_code == 0, result.output
    helps = [command.help] if not hasattr(command, "commands") else [sub.help for sub in command.commands.values()]
    assert all("Example: vaak " in text for text in helps)


@pytest.mark.parametrize(
    ("error", "code", "output"),
    [
        (UserError("x.yml:3: wrong"), 2, "x.yml:3: wrong\n"),
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(), 0, ""),
        (SystemExit(7), 7, ""),
        (
            OSError(errno.ESTALE, "Stale file handle", "run/run.json"),
            2,
            "run/run.json: Stale file handle; the disk or its network does not respond properly: check "
            "it, then run this again\n",
        ),
        (
            OSError(errno.EMFILE, "Too many open files", "x.wav"),
            2,
            "x.wav: Too many open files; raise the limit of open files (ulimit -n 65536), or lower "
            "training.performance.num_workers\n",
        ),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            2,
            "this: Resource temporarily unavailable; raise the limit of processes (ulimit -u), or lower "
            "training.performance.num_workers\n",
        ),
        (
            MemoryError(),
            2,
            "memory ran out (MemoryError); end other processes, or use smaller batches, then run this again\n",
        ),
    ],
)
def test_how_a_command_ends(capfd, monkeypatch, error, code, output):
    def fail():
        raise error

    monkeypatch.setattr(main, "_discard_output", lambda: None)
    try:
        main.exit_on_error(fail)
        ended: str | int | None = 0
    except SystemExit as end:
        ended = end.code
    assert ended == code
    assert capfd.readouterr().err == output


def test_a_reader_that_goes_away_while_a_command_prints_is_no_error(monkeypatch):
    """click, in which commands run, answers it with 1: so ended ``vaak train --json | head -1``, once trained."""

    def print_to_nobody():
        try:
            raise BrokenPipeError
        except BrokenPipeError:
            sys.exit(1)

    monkeypatch.setattr(main, "_discard_output", lambda: None)
    main.exit_on_error(print_to_nobody)


def test_a_panic_of_a_library_is_a_line(capfd):
    """It is a BaseException; this one is real."""

    def panic():
        damaged = {"type": "Precompiled", "precompiled_charsmap": "AAAA"}
        tokenizers.Tokenizer.from_str(
            json.dumps(json.loads(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str()) | {"normalizer": damaged})
        )

    with pytest.raises(SystemExit) as end:
        main.exit_on_error(panic)
    assert end.value.code == 2
    assert "a library written in Rust (tokenizers, safetensors) failed: Precompiled" in capfd.readouterr().err


def test_a_bug_shows_its_traceback(capfd):
    with pytest.raises(SystemExit) as end:
        main.exit_on_error(lambda: 1 // 0)
    assert end.value.code == 1
    assert "ZeroDivisionError" in capfd.readouterr().err


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error():
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.Popen(
        [*VAAK, "config", "show", "--all-options"], stdout=writing, stderr=subprocess.PIPE, text=True
    )
    os.close(writing)
    assert done.communicate()[1] == ""


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("train asr/qu", ["asr/quickstart"]),
        ("train my", ["my.yml", "my-texts/"]),
        ("init se", ["seq2seq", *(name for name in recipes() if name.startswith("se"))]),
        ("eval r", ["runs/first", "runs/"]),
        ("transcribe runs/first", ["runs/first", "runs/first/checkpoints/best", "runs/first/"]),
        ("config schema --task voc", ["vocoder"]),
    ],
)
def test_words_are_completed(tmp_path, words, found):
    for name in ("my.yml", "my.txt", "my-texts/a.txt", "runs/first/config.yml", "runs/first/checkpoints/best/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    number = len(words.split())
    asked = {"_VAAK_COMPLETE": "complete_bash", "COMP_WORDS": f"vaak {words}", "COMP_CWORD": str(number)}
    shown = run(cwd=tmp_path, env={**os.environ, **asked}).stdout.split()
    assert sorted(shown) == sorted(found)


@pytest.mark.parametrize(
    "command",
    [
        "eval",
        "eval frist",
        "verify frist",
        "export frist",
        "transcribe frist a.wav",
        "bisect frist x",
        "compare frist x",
        "publish frist name",
        "baseline frist",
        "crossval frist",
        "sweep frist",
        "data check frist",
        "data preprocess frist",
    ],
)
def test_a_command_without_a_run_says_so_before_torch(tmp_path, monkeypatch, capsys, command):
    (tmp_path / "runs/first").mkdir(parents=True)
    (tmp_path / "runs/first/config.yml").touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", None)  # so that importing it is an error
    monkeypatch.setattr("sys.argv", ["vaak", *command.split()])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "RUN" in said or "file not found" in said or "did you mean runs/first?" in said
