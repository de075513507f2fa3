"""The command ``vaak``: a table of commands, each loaded when it is called, and how errors end it."""

from __future__ import annotations

import errno
import importlib
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from vaak import __version__
from vaak.core.child_processes import end_with_launcher
from vaak.core.errors import SaidByMainProcessError, UserError

COMMANDS: dict[str, tuple[str, str]] = {
    "train": ("vaak.cli.train:train", "Train the model that a YAML file describes."),
    "eval": ("vaak.cli.eval:evaluate", "Evaluate a run or a checkpoint."),
    "predict": ("vaak.cli.predict:predict", "Run a trained model of any task on inputs."),
    "generate": ("vaak.cli.tasks.generate:generate", "Continue a text with a trained language model."),
    "translate": ("vaak.cli.tasks.translate:translate", "Translate texts with a trained model."),
    "diarize": ("vaak.cli.tasks.diarize:diarize", "Find out who speaks when in recordings."),
    "tune": ("vaak.cli.tasks.tune:tune", "Tune a diarizer's settings on development recordings."),
    "export": ("vaak.cli.export:export", "Write a run in another format."),
    "find-batch-size": (
        "vaak.cli.tools.find_batch_size:find_batch_size",
        "Find the largest batch that fits.",
    ),
    "replay": ("vaak.cli.tools.replay:replay", "Rerun a past step of a run and inspect it."),
    "runs": ("vaak.cli.runs:runs", "List runs with state, step, best metric and time."),
    "find-lr": ("vaak.cli.tools.find_lr:find_lr", "Try learning rates and suggest one."),
    "check-gradients": ("vaak.cli.tools.check_gradients:check_gradients", "Compare gradients with finite differences."),
    "doctor": ("vaak.cli.tools.doctor:doctor", "Report what this machine has and what can be trained on it."),
    "config": ("vaak.cli.config:app", "Check and show configurations."),
    "model": ("vaak.cli.model:app", "Inspect the model that a configuration describes."),
    "data": ("vaak.cli.data.commands:app", "List, download, prepare and simulate data."),
    "score": ("vaak.cli.tools.score:app", "Score any system's output."),
}
"""Name → where the command is (a function, or a typer app of several) and its line in the help."""


CANT_WRITE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


class LazyCommand(TyperCommand):
    """Represents a command in the list of commands; imports it when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return imported(str(self.name)).make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The commands of the table; listing them imports none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: LazyCommand(name=name, help=line) for name, (_, line) in COMMANDS.items()}


def imported(name: str) -> Any:
    """The command itself, from its module."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, typer.Typer):
        command = _app_of(command)
    found = get_command(command)
    found.name = name
    return found


def _app_of(function: Callable[..., Any]) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return app


app = typer.Typer(cls=LazyGroup, no_args_is_help=True, context_settings={"help_option_names": ["-h", "--help"]})


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"vaak {__version__}")
        raise typer.Exit


@app.callback()
def vaak(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Train speech and language models from one YAML file.

    Example: vaak train configs/quickstart.yml training.optimizer.lr=1e-3
    """


def main() -> None:
    """Run the command line; exits as ``guarded`` says."""
    command = get_command(app)
    guarded(lambda: command(prog_name="vaak"))


def guarded(function: Callable[[], Any]) -> None:
    """Call, flush and exit: 0, or 2 with a user's error on stderr, 130 after Ctrl-C, 1 with a traceback otherwise.

    A reader that closes the pipe (``| head``) is not an error.
    """
    end_with_launcher()  # before the seconds that importing torch takes
    try:
        _call(function)
    except SystemExit as leaving:
        _leave_at_once(leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None))
        raise
    _leave_at_once(0)


def _leave_at_once(code: int) -> None:
    """End one of several processes here: everything it had to close is closed, and its workers end with it.

    In one of ten runs torch 2.13 with gloo aborts when C++ ends its threads after Python has exited ("terminate called
    without an active exception"), and torchrun then reports a finished run as a failure.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _call(function: Callable[[], Any]) -> None:
    try:
        function()
        sys.stdout.flush()
    except UserError as error:
        if not isinstance(error, SaidByMainProcessError):
            print(error, file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _write_to_nowhere()
    except OSError as error:
        if error.errno not in CANT_WRITE:
            traceback.print_exc()
            sys.exit(1)
        print(f"nothing more can be written: {error}; fix this and resume with --resume auto", file=sys.stderr)
        sys.exit(2)
    except SystemExit:
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            _write_to_nowhere()
        raise
    except Exception:
        traceback.print_exc()
        sys.exit(1)


def _write_to_nowhere() -> None:
    """So that Python's last flush at exit finds an open file."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
