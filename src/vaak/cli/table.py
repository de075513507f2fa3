"""The table of commands, each loaded when it is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from vaak import __version__
from vaak.cli.streams import telling
from vaak.core.errors import UserError
from vaak.core.names import from_home

GROUPS: dict[str, dict[str, tuple[str, str]]] = {
    "Start": {
        "init": ("vaak.cli.init:init", "Write a YAML to begin with, or copy a recipe."),
        "train": ("vaak.cli.train:train", "Train the model that a YAML file describes."),
        "doctor": ("vaak.cli.preflight:doctor", "Report what this machine can train, and what is missing."),
    },
    "Use": {
        "predict": ("vaak.cli.tasks.predict:predict", "Run a trained model of any task on inputs."),
        "generate": ("vaak.cli.tasks.generate:generate", "Continue a text with a trained language model."),
        "translate": ("vaak.cli.tasks.translate:translate", "Translate texts with a trained model."),
        "classify": ("vaak.cli.tasks.classify:classify", "Label texts with a trained classifier."),
        "transcribe": ("vaak.cli.tasks.transcribe:transcribe", "Transcribe recordings."),
        "diarize": ("vaak.cli.tasks.diarize:diarize", "Find who speaks when in recordings."),
        "speak": ("vaak.cli.tasks.speak:speak", "Speak texts with a trained text-to-speech model."),
        "serve": ("vaak.cli.serve:serve", "Serve runs over HTTP with an OpenAI-compatible API."),
        "demo": ("vaak.cli.serve:demo", "Open a web page to try runs."),
        "export": ("vaak.cli.export:export", "Convert a run for use in other software."),
    },
    "Look": {
        "eval": ("vaak.cli.eval:evaluate", "Evaluate a run or a pretrained model."),
        "report": ("vaak.cli.runs:report", "Write an HTML page about a run, or several."),
        "runs": ("vaak.cli.runs:app", "List runs with task, state and best metric."),
        "plot": ("vaak.cli.runs:plot", "Plot the training curves of a run."),
    },
    "Prove": {
        "verify": ("vaak.cli.replay:verify", "Recompute steps and check them against a run's records."),
        "replay": ("vaak.cli.replay:replay", "Rerun a past step of a run and inspect it."),
        "bisect": ("vaak.cli.replay:bisect", "Find the first step and tensor in which two runs differ."),
        "fork": ("vaak.cli.train:fork", "Continue from a step of another run with other options."),
        "inspect": ("vaak.cli.replay:inspect", "Show a run's parameters, gradients and dead units."),
        "check-gradients": ("vaak.cli.preflight:check_gradients", "Compare gradients with finite differences."),
    },
    "Compare": {
        "compare": ("vaak.cli.study:compare", "Test whether runs differ by more than chance."),
        "crossval": ("vaak.cli.study:crossval", "Train and test on each fold of the data."),
        "sweep": ("vaak.cli.study:sweep", "Search for the best values of some options."),
        "baseline": ("vaak.cli.eval:baseline", "Score simple baselines without a neural network."),
        "score": ("vaak.cli.score:app", "Score the output of any system."),
        "lm-eval": ("vaak.cli.eval:lm_eval", "Evaluate a language model on tasks of lm-eval."),
    },
    "Data": {
        "align": ("vaak.cli.tasks.align:align", "Find when each word of a known text is spoken."),
        "data": ("vaak.cli.data:app", "Get, prepare, simulate, segment, clean and check data."),
        "tokenizer": ("vaak.cli.text:app", "Inspect a tokenizer."),
        "phonemes": ("vaak.cli.text:phonemes", "Show how text is normalised and pronounced."),
    },
    "More": {
        "config": ("vaak.cli.config:app", "Check and show configurations."),
        "model": ("vaak.cli.model:app", "Inspect the model that a configuration describes."),
        "tune": ("vaak.cli.tasks.tune:tune", "Tune inference options of a diarizer or CTC recogniser."),
        "find-lr": ("vaak.cli.preflight:find_lr", "Try learning rates and suggest one."),
        "find-batch-size": ("vaak.cli.preflight:find_batch_size", "Find the largest batch that fits."),
        "launch": ("vaak.cli.launch:app", "Train on a cluster or in a cloud."),
        "pipeline": ("vaak.cli.pipeline:app", "Run stages that feed each other, and resume them."),
        "publish": ("vaak.cli.export:publish", "Upload a run to the Hugging Face Hub."),
    },
}
"""Groups of commands, in the order of ``vaak --help``. Those a newcomer needs are within its first 24 lines.

Name → where the command is (a function, or a typer app of several) and its line in the help.
"""
COMMANDS = {name: found for group in GROUPS.values() for name, found in group.items()}
HYPHEN = "\u2011"
"""The one at which no line is broken."""


class HelpText(TyperGroup.context_class.formatter_class):  # type: ignore[misc, name-defined] # typer has no types
    """Help as plain text. Lines are broken between words, but not at hyphens: names of options stay whole."""

    def write(self, text: str) -> None:
        super().write(text.replace(HYPHEN, "-"))

    def write_text(self, text: str) -> None:
        super().write_text(text.replace("-", HYPHEN))

    def write_dl(self, rows: Sequence[tuple[str, str]], *arguments: Any, **more: Any) -> None:
        super().write_dl([(name, text.replace("-", HYPHEN)) for name, text in rows], *arguments, **more)


WRITING = {
    *("init", "train", "launch ray", "pipeline", "tune", "export", "publish", "fork", "runs clean", "plot"),
    *("report", "compare", "crossval", "sweep"),
    *("data simulate", "data segment", "data get", "data prepare", "data clean", "data preprocess"),
}
"""Commands whose result is what they write, send or delete; others print it, unless they are given where to write.

``pipeline`` stands for all of its commands: each task brings its own.
"""
OUTPUT_PARAMETERS = ("output", "output_dir", "out", "picture", "plot")
"""Parameters that say where to write."""


def is_written(command: str, values: Mapping[str, Any]) -> bool:
    """Return whether the result of a command, called with these values, is elsewhere than in what it prints."""
    group = command.partition(" ")[0]
    return bool({command, group} & WRITING) or any(isinstance(values.get(name), Path) for name in OUTPUT_PARAMETERS)


class Context(TyperGroup.context_class):  # type: ignore[misc, valid-type]
    """Shows help as ``HelpText``; a command that can't print isn't ended by it if its result is elsewhere.

    ``--output=~/x``, which shells don't expand, means the same as ``--output ~/x``.
    """

    formatter_class = HelpText

    def invoke(self, callback: Callable[..., Any], /, *arguments: Any, **values: Any) -> Any:
        values = {name: _from_home(value) for name, value in values.items()}
        is_told = is_written(self.command_path.partition(" ")[2], values)
        with telling("stderr", *(["stdout"] if is_told else [])):
            # On standard error nothing is a result.
            return super().invoke(callback, *arguments, **values)


def _from_home(value: Any) -> Any:
    """Expand the home in a path that was typed as ``--output=~/x``; any other value is unchanged."""
    if isinstance(value, list):
        return [_from_home(one) for one in value]
    typed = [word.partition("=~")[2] for word in sys.argv if word.startswith("-") and "=~" in word]
    is_typed = isinstance(value, Path) and value in [Path(f"~{rest}") for rest in typed]
    return Path(from_home(str(value))) if is_typed else value


def with_plain_help(command: Any) -> Any:
    """Return the command; its help, and that of its subcommands, is text: rich's table cuts long names off."""
    command.rich_markup_mode, command.context_class = None, Context
    command.short_help = command.short_help or (command.help or "").partition("\n\n")[0]
    for one in getattr(command, "commands", {}).values():
        with_plain_help(one)
    return command


class LazyCommand(TyperCommand):
    """Represents a command in the list of commands; imports it when it is called."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        return imported(str(self.name)).make_context(info_name, args, parent=parent, **extra)


class LazyGroup(TyperGroup):
    """The commands of the table; listing them, by their groups, imports none."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = {name: LazyCommand(name=name, short_help=line) for name, (_, line) in COMMANDS.items()}
        with_plain_help(self)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write what Vaak is, the commands, and its own options below them: on a terminal, the first ones matter."""
        self.format_usage(ctx, formatter)
        about, _, example = (self.help or "").partition("\n\n")
        formatter.write_text(about)
        width = max(map(len, self.commands))
        for number, (group, commands) in enumerate(GROUPS.items()):
            if number:  # no blank line before the first: a terminal has 24
                formatter.write_paragraph()
            formatter.write_heading(group)
            with formatter.indentation():
                formatter.write_dl([(name.ljust(width), line) for name, (_, line) in commands.items()])
        formatter.write("\n")
        formatter.write_text(example)
        formatter.write_text("vaak COMMAND --help tells more about a command.")
        self.format_options(ctx, formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write nothing: ``format_help`` has written them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*self.commands]


def imported(name: str) -> Any:
    """The command itself, from its module."""
    module, _, attribute = COMMANDS[name][0].partition(":")
    command = getattr(importlib.import_module(module), attribute)
    if not isinstance(command, typer.Typer):
        app = typer.Typer(add_completion=False)
        app.command()(command)
        command = app
    found = get_command(command)
    found.name = name
    return with_plain_help(found)


SETTINGS = {
    "help_option_names": ["-h", "--help"],
    # Other programs spell it --output_dir.
    "token_normalize_func": lambda word: word.replace("_", "-"),
}
app = typer.Typer(cls=LazyGroup, no_args_is_help=True, context_settings=SETTINGS)


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

    Example: vaak train quickstart training.optimizer.lr=1e-3
    """


def run_command_line() -> None:
    """Run the command that the arguments name. Raises UserError for a mistake in them, SystemExit for a code."""
    # typer brings a copy of click, and doesn't export its errors.
    usage_error: Any = typer.BadParameter.__base__
    try:
        code = get_command(app)(prog_name="vaak", standalone_mode=False)
    except usage_error as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            error.show()
            raise SystemExit(error.exit_code) from None
        command = error.ctx.command_path if error.ctx is not None else "vaak"
        raise UserError(f"{error.format_message().rstrip('.')}; see {command} --help") from None
    if isinstance(code, int) and code:
        raise SystemExit(code)
