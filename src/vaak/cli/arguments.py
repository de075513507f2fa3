"""Arguments of commands: files and ``key=value``, options that many commands share, options made from a section.

All commands that use a trained model (``on_a_run``) have the options of ``ChosenRun``, and those of the configuration's
section on prediction (``add_options``), so each of these options is defined once, with the same meaning and help.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import re
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from vaak.core.errors import DataError, UserError

if TYPE_CHECKING:
    from vaak.config.base import Section
    from vaak.config.load import Loaded
    from vaak.runs.open_run import OpenedRun

log = logging.getLogger("vaak")
RUNS = "runs"
"""The folder of runs, unless a configuration names another."""
OPTION_KEY = re.compile(r"[a-z_]\w*(\.\w+)*")
RECIPE_NAME = re.compile(r"[\w-]+(/[\w-]+)+")
YAML_ENDINGS = (".yml", ".yaml", ".json")


def complete_configurations(incomplete: str) -> list[str]:
    """Complete names of recipes, folders and YAML files, without reading any."""
    from vaak.config.yaml.recipes import recipes

    return [name for name in recipes() if name.startswith(incomplete)] + _entries(incomplete, YAML_ENDINGS[:2])


def complete_tasks(incomplete: str) -> list[str]:
    """Complete names of tasks."""
    from vaak.config.tasks import TASKS

    return [name for name in TASKS if name.startswith(incomplete)]


def complete_tasks_and_recipes(incomplete: str) -> list[str]:
    """Complete names of tasks and recipes, for ``vaak init``."""
    return [*complete_tasks(incomplete), *complete_configurations(incomplete)]


def complete_runs(incomplete: str) -> list[str]:
    """Complete names of runs, of checkpoints if a run is typed, and of folders."""
    runs = [file.parent for pattern in ("*/config.yml", "*/*/config.yml") for file in Path(RUNS).glob(pattern)]
    found = [str(run) for run in sorted(runs) if str(run).startswith(incomplete)]
    typed = incomplete.rstrip("/")
    if typed in found or Path(typed, "config.yml").is_file():
        found += [str(path) for path in sorted(Path(typed, "checkpoints").glob("*")) if path.is_dir()]
    return [*dict.fromkeys([*found, *_entries(incomplete)])]


def _entries(incomplete: str, endings: tuple[str, ...] = ()) -> list[str]:
    """Return the folders that begin with ``incomplete``, with a slash, and the files with one of the ``endings``."""
    folder, name = os.path.split(incomplete)
    try:
        entries = sorted(os.scandir(folder or os.curdir), key=lambda entry: entry.name)
    except OSError:
        return []
    hidden = name.startswith(".")
    return [
        os.path.join(folder, entry.name) + ("/" if entry.is_dir() else "")
        for entry in entries
        if entry.name.startswith(name)
        and entry.name.startswith(".") == hidden
        # No name ends with a slash, so without endings only folders match.
        and (entry.is_dir() or entry.name.endswith(endings or "/"))
    ]


def require_run(path: Path | None) -> Path | None:
    """Return ``path``. Raises UserError, with the nearest run, if it can't be a run or a checkpoint.

    This only checks which files exist, so that the error comes before torch is imported; ``resolve_run`` decides.
    """
    if path is None:
        return None
    from vaak.runs.base import is_base

    if path.exists() and is_base(path):
        raise UserError(f"{path} is a pretrained model; this command requires a run that Vaak has trained")
    around = (path, path.parent, path.parent.parent)
    signs = ("config.yml", "owner.json", "MANIFEST.json")
    # best and last are files, each of which names a checkpoint.
    is_pointer = path.is_file() and path.suffix != ".json"
    if any((folder / sign).exists() for folder in around for sign in signs) or is_pointer:
        return path
    from vaak.runs.folder.directory import suggest_run

    problem = "is not a run directory, nor inside one (no config.yml)"
    raise UserError(f"{path} {problem}; give a run directory or a checkpoint in it{suggest_run(path)}")


def require_model(path: Path | None) -> Path | None:
    """Return ``path``. Raises UserError if it can't be a run, a checkpoint or a pretrained model."""
    from vaak.runs.base import explain_no_base, is_base

    if path is None or is_base(path):
        return path
    try:
        return require_run(path)
    except UserError as error:
        raise UserError(f"{error}. Nor is it a pretrained model: {explain_no_base(path)}") from error


def run_argument(about: str, metavar: str | None = None, *, or_model: bool = False) -> Any:
    """Return the argument for a run, with completion; its path is checked before anything heavy is imported.

    With ``or_model`` the command takes pretrained models, too.
    """

    def check(context: typer.Context, path: Path | None) -> Path | None:
        # Completion also parses incomplete paths.
        if path is not None and not context.resilient_parsing:
            (require_model if or_model else require_run)(path)
        return path

    return typer.Argument(help=about, metavar=metavar, callback=check, autocompletion=complete_runs)


A_MODEL = "A run (its best checkpoint), a checkpoint, or a pretrained model: a folder, a file, OWNER/NAME on the Hub."
FILES_AND_OPTIONS = "YAML files or recipes, later ones override earlier ones, and options that override both."
Arguments = Annotated[
    list[str],
    typer.Argument(metavar="FILE… key=value…", help=FILES_AND_OPTIONS, autocompletion=complete_configurations),
]
OptionalArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE… key=value…]", help=FILES_AND_OPTIONS, autocompletion=complete_configurations),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Device = Annotated[str, typer.Option(help="auto, cuda, mps or cpu.")]
TrainingDevice = Annotated[
    str | None, typer.Option("--device", help="auto, cuda, mps or cpu, like training.device=; default: as in the YAML.")
]
Delimiter = Annotated[
    str | None, typer.Option(help="Separator of cells in tables: one character, or tab; default: detected.")
]
Quotes = Annotated[
    str | None, typer.Option(help="Meaning of quotation marks in tables: cells, lines or text; default: detected.")
]
Encoding = Annotated[
    str | None, typer.Option(help="Encoding of tables, such as cp1252; default: UTF-8 or UTF-16, detected.")
]
Output = Annotated[Path | None, typer.Option(help="The file to write; it appears only when it is complete.")]
Text = Annotated[str, typer.Argument(help="A text, a file with a text in each line, or - for standard input.")]
AudioFiles = Annotated[list[Path], typer.Argument(help="Audio files, and folders that are searched for them.")]


class WhichPrecision(StrEnum):
    """The precision in which a trained model computes."""

    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"
    int8 = "int8"


Precision = Annotated[
    WhichPrecision,
    typer.Option(
        "--precision",
        help="auto: bf16 on a GPU that multiplies it in hardware, else fp32; int8: linear layers in 8 bits, on a CPU.",
    ),
]
BatchSize = Annotated[
    int | None,
    typer.Option("--batch-size", min=1, help="Maximum number of inputs computed together; default: as memory allows."),
]
Exact = Annotated[
    bool,
    typer.Option(
        "--exact", help="Compute each input alone: on a CPU, no bit of a result depends on the other inputs. Slower."
    ),
]


class WhichWeights(StrEnum):
    """Which weights of a run to use."""

    auto = "auto"
    own = "own"
    average = "average"


Weights = Annotated[
    WhichWeights,
    typer.Option("--weights", help="own, or average (training.ema); auto: those that the run evaluated."),
]
TrustCode = Annotated[
    bool, typer.Option("--trust-code", help="Execute Python code that comes with a run, if the command needs it.")
]


def dialect_said(delimiter: str | None, quotes: str | None, encoding: str | None) -> dict[str, str]:
    """Return those of the table options ``--delimiter``, ``--quotes`` and ``--encoding`` that are given.

    Raises UserError for an invalid value.
    """
    from vaak.config.base import DialectConfig, from_options

    options = {"delimiter": delimiter, "quotes": quotes, "encoding": encoding}
    given = {name: value for name, value in options.items() if value is not None}
    from_options(DialectConfig, given, "dialect")
    return given


@dataclasses.dataclass(frozen=True)
class ChosenRun:
    """The trained model that a command uses, and how; each field is an argument or option of every such command."""

    run: Annotated[Path, run_argument("A run (its best checkpoint) or a checkpoint.")]
    device: Device = "auto"
    weights: Weights = WhichWeights.auto
    trust_code: TrustCode = False
    as_json: AsJson = False

    def open(self, overrides: Sequence[str] = (), **data: Any) -> OpenedRun:
        """Open the run, with ``overrides`` of its options; ``data`` are further arguments of ``open_run``."""
        from vaak.runs.open_run import open_run

        how: dict[str, Any] = {"device": self.device, "weights": self.weights, "trust_code": self.trust_code}
        return open_run(self.run, overrides=overrides, **how, **data)

    def computing(self, batch_size: int | None) -> AbstractContextManager[None]:
        """Return the context in which the command runs; it may compute ``batch_size`` inputs together."""
        return nullcontext()

    def open_for(self, use: str, overrides: Sequence[str] = (), *, by: str = "", **data: Any) -> OpenedRun:
        """Open the run for a ``use``, called ``by`` in errors. Raises UserError for a run of a task without that use.

        Such a run is refused before its weights are read.
        """
        from vaak.runs.use import Use

        return self.open(overrides, use=Use(use, by), **data)

    def open_part_for(self, use: str, part: str | None) -> OpenedRun:
        """Open one task of a run of several, or a run of one, as ``open_for`` does."""
        from vaak.runs.open_run import select_task
        from vaak.runs.use import Use

        return select_task(self.open(use=Use(use, of_part=True, part=part)), part)


@dataclasses.dataclass(frozen=True)
class ChosenModel(ChosenRun):
    """The run or pretrained model of a command that writes nothing next to it."""

    run: Annotated[Path, run_argument(A_MODEL, or_model=True)]


@dataclasses.dataclass(frozen=True)
class ModelInUse(ChosenModel):
    """The model of a command that uses it on new inputs; ``vaak tune`` and ``vaak lm-eval`` compute in fp32."""

    precision: Precision = WhichPrecision.auto
    exact: Exact = False

    def open(self, overrides: Sequence[str] = (), **data: Any) -> OpenedRun:
        return super().open(overrides, precision=self.precision, **data)

    def computing(self, batch_size: int | None) -> AbstractContextManager[None]:
        """Return the context in which, with ``--exact``, each input is computed alone.

        Raises UserError for ``--exact`` with a larger batch.
        """
        if not self.exact:
            return nullcontext()
        if batch_size not in (None, 1):
            raise UserError(f"--exact computes each input alone; leave out --batch-size {batch_size}")
        from vaak.tasks.batches import compute_alone

        warn_of_rounding(self.device)
        return compute_alone()


def warn_of_rounding(device: str) -> None:
    """Warn that ``--exact`` is exact to rounding only, unless on a CPU: other libraries choose the order of sums."""
    from vaak.engine.distributed.launcher import pick_device

    kind = pick_device(device).type
    if kind != "cpu":
        log.warning("--exact: on %s, results are the same to rounding; on a CPU, to the bit", kind)


def on_a_run(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments and options of its parameter ``chosen``, a ``ChosenRun`` or a subclass."""
    kind = get_type_hints(command)["chosen"]
    run, *options = _parameters(kind)

    def called(**arguments: Any) -> None:
        chosen: ChosenRun = kind(**{one.name: arguments.pop(one.name) for one in (run, *options)})
        with chosen.computing(arguments.get("batch_size")):
            command(chosen=chosen, **arguments)

    return _with_parameters(called, command, [run, *_parameters(command, without="chosen"), *options])


def _parameters(command: Callable[..., Any], without: str = "") -> list[inspect.Parameter]:
    """Return the parameters of a command as keyword-only ones, with their annotations; ``without`` is left out."""
    hints = get_type_hints(command, include_extras=True)
    return [
        one.replace(annotation=hints[one.name], kind=one.KEYWORD_ONLY)
        for one in inspect.signature(command).parameters.values()
        if one.name != without
    ]


def _with_parameters(
    called: Callable[..., None], command: Callable[..., None], parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Make the function ``called`` look like ``command``, but with these ``parameters``, and return it."""
    called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    called.__name__, called.__doc__, called.__module__ = command.__name__, command.__doc__, command.__module__
    return called


def files_and_overrides(arguments: list[str], device: str | None = None) -> tuple[list[str], list[str]]:
    """Split arguments into files and ``key=value`` overrides; an existing file whose name contains ``=`` is a file.

    A name that isn't a file stands for the recipe of that name. ``device`` is added as the last override.

    Raises UserError for the key of an option without a value.
    """
    overrides = [text for text in arguments if "=" in text and not os.path.exists(text)]
    files = [resolve_file(text) for text in arguments if text not in overrides]
    return files, overrides + ([] if device is None else [f"training.device={device}"])


def resolve_file(text: str) -> str:
    """Return the file that an argument means, a path or a recipe; print which one, if that isn't obvious.

    Raises UserError, with a suggestion, for a name that is neither.
    """
    from vaak.config.components import did_you_mean
    from vaak.config.yaml.recipes import recipe_named, recipes

    recipe, is_bare = recipe_named(text), bool(OPTION_KEY.fullmatch(text)) and not text.endswith(YAML_ENDINGS)
    found = next((name for name in (text, f"{text}.yml") if os.path.isfile(name)), None)
    if found is not None:
        if recipe is not None and is_bare:
            print(f"{text}: using {found} in this folder, not Vaak's recipe of that name", file=sys.stderr)
        return found
    if os.path.exists(text):
        return text
    if recipe is not None:
        print(f"{text}: using Vaak's recipe {recipe}", file=sys.stderr)
        return str(recipe)
    if is_bare or RECIPE_NAME.fullmatch(text):
        hint = "" if "." in text else did_you_mean(text, recipes())
        otherwise = f"if it is an option, write {text}=VALUE" if is_bare else "vaak init --list names the recipes"
        raise UserError(f"{text}: file not found{hint or f'; {otherwise}'}")
    return text


def load_trusted(files: Sequence[str], overrides: Sequence[str], trust_code: bool) -> Loaded:
    """Load a configuration from which a model will be built.

    Raises UserError if it names code that isn't the user's own, such as that of a run, without ``trust_code``.
    """
    from vaak.config.load import load

    loaded = load(files, overrides, trust_code=trust_code)
    # Imported after loading, so that mistakes are reported without waiting for torch.
    from vaak.runs.folder.user_code import require_trust

    require_trust(loaded)
    return loaded


def load_for_processes(files: Sequence[str], overrides: Sequence[str], trust_code: bool) -> Loaded:
    """Load a configuration before several processes do, so that mistakes are reported once.

    Also raises UserError for a file that only one process can read, such as a pipe.
    """
    for file in files:
        if os.path.exists(file) and not os.path.isfile(file):
            raise UserError(f"{file} is not a file that each process can read: write its text to one")
    return load_trusted(files, overrides, trust_code)


def make_overrides(section: str, given: Mapping[str, Any]) -> list[str]:
    """Return overrides of a ``section`` of the configuration for its ``given`` options.

    >>> make_overrides("data.decoding", {"beam_size": 4, "prompt": None})
    ['data.decoding.beam_size=4', 'data.decoding.prompt=null']
    """
    return [f"{section}.{name}={json.dumps(value)}" for name, value in given.items()]


NULL: Any = object()
"""An option given as ``null`` on the command line; None is one that isn't given."""


def add_options(
    section: type[Section],
    *,
    into: str,
    leave_out: Sequence[str] = (),
    show_defaults: bool = False,
    flags: Mapping[str, Sequence[str]] | None = None,
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command an option for each field of a section, with its name, and its description as help.

    Options that are given are passed to the command as a dictionary, in its parameter ``into``; their bounds are not
    checked here, but by the section. With ``show_defaults`` the help shows the section's defaults, which is only right
    if no run has others. ``flags`` maps fields to other spellings; fields in ``leave_out`` get no option.
    """
    names = [name for name in section.model_fields if name not in leave_out]

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        def called(**arguments: Any) -> None:
            values = {name: arguments.pop(name) for name in names}
            given = {
                name: None if value is NULL else (value.value if isinstance(value, StrEnum) else value)
                for name, value in values.items()
                if value is not None
            }
            command(**arguments, **{into: given})

        own = _parameters(command, without=into)
        arguments = [one for one in own if one.default is one.empty]
        options = [_option(section, name, show_defaults, (flags or {}).get(name, ())) for name in names]
        rest = [one for one in own if one.default is not one.empty]
        return _with_parameters(called, command, [*arguments, *options, *rest])

    return decorate


def _option(section: type[Section], name: str, show_default: bool, flags: Sequence[str]) -> inspect.Parameter:
    field = section.model_fields[name]
    kind: Any = field.annotation
    is_optional = get_origin(kind) in (types.UnionType, Union)
    if is_optional:
        (kind,) = (one for one in get_args(kind) if one is not type(None))
    # The section itself validates annotated types, such as paths.
    kind = get_args(kind)[0] if get_origin(kind) is Annotated else kind
    # A tuple is given as one text, which the section splits.
    kind = str if get_origin(kind) is tuple else kind
    kind = StrEnum(name, {choice: choice for choice in get_args(kind)}) if get_origin(kind) is Literal else kind
    # Written into the help, because typer would put a default that is given as text into parentheses.
    about = f"{field.description}{_describe_default(name, field.default, flags)}" if show_default else field.description
    # null overrides the number that a run has.
    reading = (
        {"parser": _number_or_null(kind), "metavar": f"<{kind.__name__}>"}
        if is_optional and kind in (int, float)
        else {}
    )
    annotation = Annotated[kind | None, typer.Option(*flags, help=about, show_default=False, **reading)]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _number_or_null(kind: type[int] | type[float]) -> Callable[[str], Any]:
    """Return a function that reads a number, or ``null``. It raises typer.BadParameter for other texts."""

    def read(text: str) -> Any:
        if text == "null":
            return NULL
        try:
            return kind(text)
        except ValueError:
            what = "a whole number" if kind is int else "a number"
            raise typer.BadParameter(f"{text!r} is neither {what} nor null") from None

    return read


def _describe_default(name: str, value: Any, flags: Sequence[str]) -> str:
    """Return the end of an option's help; empty for null, whose meaning the help itself explains.

    >>> _describe_default("top_k", 0, ())
    '  [default: 0]'
    >>> _describe_default("word_boundaries", False, ())
    '  [default: no-word-boundaries]'
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        positive, _, negative = (flags[0] if flags else "").partition("/")
        positive = positive or "--" + name.replace("_", "-")
        value = (positive if value else negative or f"--no-{positive.removeprefix('--')}").removeprefix("--")
    return f"  [default: {value}]"


FILE_ENDINGS = (".txt", ".tsv", ".csv", ".json", ".jsonl", ".ssml")


def read_texts(text: str) -> tuple[list[str], Callable[[int], str]]:
    """Return the texts of an argument, and a function that tells where the text with an index comes from.

    They are the argument itself, the lines of the file that it names, or with ``-`` those of standard input. Raises
    UserError for an argument that looks like the name of a file, but isn't one.
    """
    if text == "-":
        return _decode_lines(sys.stdin.buffer.read(), "standard input"), lambda index: f"standard input:{index + 1}"
    # Unlike Path.is_file, this takes a text of any length.
    if os.path.isfile(text):
        return _decode_lines(Path(text).read_bytes(), text), lambda index: f"{text}:{index + 1}"
    if _names_a_file(text):
        raise UserError(f"file {text} does not exist")
    return text.split("\n"), lambda index: "the text"


def _names_a_file(text: str) -> bool:
    """Return whether a text can only be meant as a path: by how it begins or ends, or because its folder is there.

    >>> [_names_a_file(text) for text in ("texts/lines.txt", "./lines", "12/25/2020", "km/h", "https://foo.com/a.txt")]
    [True, True, False, False, False]
    """
    if "://" in text or any(map(str.isspace, text)):
        return False
    folder = text.rpartition("/")[0]
    return (
        text.endswith(FILE_ENDINGS) or text.startswith(("/", "./", "../")) or (bool(folder) and os.path.isdir(folder))
    )


def _decode_lines(content: bytes, name: str) -> list[str]:
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}:{line}: not UTF-8 ({error.reason}); convert it to UTF-8") from error
    return [line.removesuffix("\r") for line in (lines if lines[-1] else lines[:-1])]
