"""Trust is inherited: whatever a stranger's run brings in, by whatever way and command, executes nothing unasked.

The ways are a product of three: which option names the code (found in the types), how the run comes to name it (its own
configuration, what that extends, its tuned options, a session, a checkpoint alone, …), and the command (from the table
of commands: one that isn't listed here fails a test).
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import vaak as library
from option_sweep import leaf_options
from users_classes import NETWORK
from vaak.cli.table import COMMANDS, imported
from vaak.config.experiment import experiment_type
from vaak.config.inner import InnerExperiment
from vaak.config.load import load, load_layers
from vaak.config.tasks import built_in
from vaak.config.trust import judge_file
from vaak.config.yaml.fields import (
    SectionType,
    alternatives,
    get_item_annotation,
    get_section,
    get_value_annotation,
    names_class,
)
from vaak.config.yaml.recipes import recipes_folder
from vaak.config.yaml.text import read_yaml, yaml_text
from vaak.core.errors import UserError
from vaak.pipeline.jobs import Jobs
from vaak.pipeline.stage import StageWork
from vaak.runs.folder.user_code import require_trust
from vaak.tasks.asr.stages import comparison
from vaak.tasks.asr.stages.options import MoeOptions

CODE = """\
from pathlib import Path

import torch

import vaak

(Path({folder!r}) / "executed").touch()

class Thing(torch.nn.Module):
    def __init__(self, **options):
        super().__init__()

    def forward(self, outputs, targets):
        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")
"""
FILE, PACKAGE = "./stranger.py:Thing", "strangers_parts.stranger:Thing"
Vaak = Callable[..., tuple[int, str, str]]

# Which option names the code.


def keys_naming_code(kind: SectionType, path: str = "") -> Iterator[str]:
    """Every option of an experiment's type that may name code, by its dotted key; a list's by its first item."""
    for name, field in kind.model_fields.items():
        key, annotation = f"{path}.{name}".lstrip("."), field.annotation
        found = (
            (key, annotation),
            (f"{key}.0", get_item_annotation(annotation)),
            (f"{key}.own", get_value_annotation(annotation)),
        )
        for place, inside in found:
            section = get_section(inside)
            if section is not None and issubclass(section, InnerExperiment):
                yield f"{place}.task"
            elif section is not None:
                yield from [f"{place}.type"] * names_class(section)
                yield from keys_naming_code(section, place)


KEYS = {task: ["task", *keys_naming_code(experiment_type(task))] for task in sorted(built_in())}
OF_LM = KEYS["lm"]


def values_with(key: str, reference: str) -> dict[str, Any]:
    """Sections in which an option names code, with what else a section of its kind must have."""
    *sections, last = key.split(".")
    inside: Any = {last: reference, **({"weight": 0.1} if "auxiliary" in sections else {})}
    for name in reversed(sections):
        inside = [inside] if name == "0" else {name: inside}
    return dict(inside)


# How the run comes to name it: each gives a run, or a checkpoint, of a stranger.


class Stranger:
    """A stranger's run, a copy of a trained one, in a folder of its own."""

    def __init__(self, trained: Path, folder: Path) -> None:
        self.trained, self.folder, self.run = trained, folder, folder / "theirs"
        shutil.copytree(trained, self.run, symlinks=True)
        self.config = self.run / "config.yml"
        values = read_yaml(self.config)
        self.without_task = {name: one for name, one in values.items() if name not in ("task", "run_dir")}
        self.values = {"task": values["task"], **self.without_task}
        code = CODE.format(folder=str(folder))
        (self.run / "stranger.py").write_text(code)
        package = folder / "importable" / "strangers_parts"
        package.mkdir(parents=True)
        for name in ("__init__.py", "stranger.py"):
            (package / name).write_text(code)

    def write(self, file: Path, *layers: dict[str, Any], extends: str | None = None) -> Path:
        """Write sections, the later over the earlier, to a file that extends another."""
        values = load_tree([*layers]) if layers else {}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml_text({**({"extends": extends} if extends else {}), **values}))
        return file


def load_tree(layers: list[dict[str, Any]]) -> Any:
    """Merge sections key by key, lists as a whole."""
    from vaak.config.yaml.layers import merge_all
    from vaak.config.yaml.tree import place_all

    return merge_all(map(place_all, layers), None)[0]


def own_configuration(stranger: Stranger, named: dict[str, Any]) -> Path:
    stranger.write(stranger.config, stranger.values, named)
    return stranger.run


def extended(stranger: Stranger, named: dict[str, Any]) -> Path:
    stranger.write(stranger.run / "base.yml", stranger.values, named)
    stranger.config.write_text("extends: base.yml\n")
    return sessions(stranger, named)


def extended_twice(stranger: Stranger, named: dict[str, Any]) -> Path:
    stranger.write(stranger.run / "parts" / "deep.yml", stranger.values, moved(named))
    (stranger.run / "base.yml").write_text("extends: [parts/deep.yml]\n")
    stranger.config.write_text("extends: ./base.yml\n")
    return stranger.run


def extended_elsewhere(stranger: Stranger, named: dict[str, Any]) -> Path:
    """The base lies outside of the run: as a run that was made by hand may have it."""
    shutil.copy(stranger.run / "stranger.py", stranger.folder)
    stranger.write(stranger.folder / "outside.yml", stranger.values, named)
    stranger.config.write_text(f"extends: {stranger.folder}/outside.yml\n")
    return stranger.run


def extended_through_a_link(stranger: Stranger, named: dict[str, Any]) -> Path:
    stranger.write(stranger.run / "real.yml", stranger.values, named)
    os.symlink("real.yml", stranger.run / "base.yml")
    stranger.config.write_text("extends: base.yml\n")
    return stranger.run


def tuned(stranger: Stranger, named: dict[str, Any]) -> Path:
    stranger.write(stranger.run / "tuned.yml", named)
    return stranger.run


def tuned_that_extends(stranger: Stranger, named: dict[str, Any]) -> Path:
    stranger.write(stranger.run / "found.yml", named)
    (stranger.run / "tuned.yml").write_text("extends: found.yml\n")
    return stranger.run


def copied(stranger: Stranger, named: dict[str, Any]) -> Path:
    """A copy without anything that marks a run but the names of its files."""
    extended(stranger, named)
    for name in ("run.json", "environment.json", "sessions.jsonl"):
        (stranger.run / name).unlink(missing_ok=True)
    return stranger.run


def linked(stranger: Stranger, named: dict[str, Any]) -> Path:
    os.symlink(extended(stranger, named), link := stranger.folder / "link")
    return link


def checkpoint_in_the_run(stranger: Stranger, named: dict[str, Any]) -> Path:
    return extended(stranger, named) / "checkpoints" / "best"


def checkpoint_alone(stranger: Stranger, named: dict[str, Any]) -> Path:
    alone = stranger.folder / "step-00000008"
    shutil.copytree(stranger.run / "checkpoints" / alone.name, alone)
    shutil.copy(stranger.run / "stranger.py", alone)
    stranger.write(alone / "base.yml", stranger.values, named)
    (alone / "config.yml").write_text("extends: base.yml\n")
    return alone


def sessions(stranger: Stranger, named: dict[str, Any]) -> Path:
    """Only the configurations of its sessions name it."""
    for session in (stranger.run / "sessions").glob("*.yml"):
        stranger.write(stranger.run / "base.yml", stranger.values, named)
        session.write_text("extends: ../base.yml\n")
    return stranger.run


def moved(named: Any) -> Any:
    """The same from a folder below."""
    if isinstance(named, dict):
        return {key: moved(one) for key, one in named.items()}
    if isinstance(named, list):
        return [moved(one) for one in named]
    return named.replace("./", "../") if isinstance(named, str) else named


CARRIERS = (
    *(own_configuration, extended, extended_twice, extended_elsewhere, extended_through_a_link),
    *(tuned, tuned_that_extends, copied, linked, checkpoint_in_the_run, checkpoint_alone, sessions),
)
IN_USE = (tuned, tuned_that_extends, checkpoint_in_the_run, sessions)
"""Those that only commands which take a run see: its configuration is another, or names nothing."""

# Through which command.

TRAINED_AGAIN: dict[str, tuple[str, ...]] = {
    "train": ("run_dir=mine", "training.checkpoint.resume=null"),
    "launch slurm": ("run_dir=mine",),
    "launch sky": ("run_dir=mine", "training.checkpoint.upload_to=s3://bucket/run"),
    "launch ray": ("run_dir=mine",),
    "find-batch-size": (),
    "find-lr": (),
    "check-gradients": (),
    "crossval": ("--folds", "2", "--output", "studied"),
    "sweep": ("--grid", "training.optimizer.lr=1e-3,1e-2", "--output", "studied"),
    "doctor": ("--read-data",),
    "config check": (),
    "config show": (),
    "config schema": (),
    "model show": (),
    "data check": (),
    "data preprocess": ("run_dir=mine",),
    "baseline": (),
}
"""What takes a configuration, with what follows that."""
OPENED: dict[str, tuple[str, ...]] = {
    "eval": ("--split", "test"),
    "lm-eval": ("--tasks", "arc_easy"),
    "predict": ("वह",),
    "generate": ("वह", "--max-new-tokens", "2"),
    "translate": ("वह",),
    "classify": ("वह",),
    "diarize": ("speech.wav",),
    "speak": ("वह",),
    "transcribe": ("speech.wav",),
    "serve": ("--port", "0"),
    "demo": ("--port", "0"),
    "align": ("speech.wav", "text.txt"),
    "tune": (),
    "export": ("--format", "hf", "--output", "exported"),
    "publish": ("me/it",),
    "replay": ("--step", "4"),
    "verify": ("--from-start",),
    "bisect": ("OTHER",),
    "fork": ("--step", "4", "--run-dir", "forked"),
    "inspect": (),
    "baseline": (),
    "data segment": ("speech.wav", "text.txt", "--output", "cut.jsonl"),
    "runs list": (),
    "runs clean": (),
    "plot": (),
    "report": (),
    "compare": ("RUN",),
    "tokenizer show": (),
}
"""What takes a run, with what follows that."""
WITHOUT_RUNS = {
    "init": "writes a configuration",
    "pipeline moe-asr": "takes options of its own: test_pipeline.py, and below",
    "phonemes": "takes a text",
    "data list": "takes nothing",
    "data get": "takes a corpus by its name",
    "data prepare": "takes a corpus by its name",
    "data clean": "takes texts",
    "data simulate": "takes a configuration of recordings, which must be those of diarization",
    "score der": "takes texts",
    "score wer": "takes texts",
    "score cpwer": "takes texts",
    "score speech": "takes recordings",
}
EXECUTES_NOTHING = {
    "bisect",
    "config check",
    "config show",
    "config schema",
    "runs list",
    "runs clean",
    "plot",
    "report",
} | {*("compare", "tokenizer show")}
"""What only reads a run, and so needs no trust but for a task; the two runs of ``bisect`` here differ in no step."""


def leaf_commands() -> Iterator[str]:
    waiting = [(name, imported(name)) for name in COMMANDS]
    for name, command in waiting:
        below = getattr(command, "commands", {})
        waiting += [(f"{name} {inner}", one) for inner, one in below.items()]
        if not below:
            yield name


def test_every_command_of_the_table_is_tried():
    known = {*TRAINED_AGAIN, *OPENED, *WITHOUT_RUNS}
    assert {*leaf_commands()} == known


def test_there_are_at_least_forty_ways():
    keys = {(task, key) for task, found in KEYS.items() for key in found}
    assert len(keys) >= 40
    assert len(CARRIERS) * len(OF_LM) >= 40


@pytest.fixture
def stranger(tiny_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stranger]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path / "importable"))
    monkeypatch.setenv("VAAK_DATA", str(tmp_path))
    (tmp_path / "text.txt").write_text("वह\n")
    yield Stranger(tiny_run, tmp_path)
    for name in [name for name in sys.modules if name.startswith("strangers_parts")]:
        del sys.modules[name]


def command_line(command: str, opened: Path, stranger: Stranger) -> list[str]:
    if command in TRAINED_AGAIN and (command not in OPENED or opened.name != "theirs"):
        return [*command.split(), str(opened / "config.yml"), *TRAINED_AGAIN[command]]
    words = {"RUN": str(opened), "OTHER": str(stranger.trained)}
    more = (words.get(word, word) for word in OPENED[command])
    return [*command.split(), str(opened), *more]


def require_nothing_ran(vaak: Vaak, stranger: Stranger, command: str, opened: Path, *, refuses: bool = False) -> None:
    """Raise AssertionError where a command executes a stranger's code, or, if it ``refuses``, doesn't say why not."""
    code, out, err = vaak(*command_line(command, opened, stranger))
    said = " ".join((out + err).split())
    assert not (stranger.folder / "executed").exists(), (command, opened, said)
    assert "Traceback" not in said or command == "lm-eval", (
        command,
        said,
    )
    if refuses:
        assert "--trust-code" in said or "is a link to" in said, (command, said)  # a link out of a run is refused first
        assert code == 2 or command in ("doctor",), (command, said)


QUICK = {"train", "eval", "generate", "export", "verify", "replay", "fork", "inspect", "serve", "sweep", "crossval"} | {
    *("config check", "doctor", "baseline", "model show", "data check", "runs list"),
}
"""The commands that are tried each time; the others load more."""
slow = pytest.mark.slow
ALL_COMMANDS = [*dict.fromkeys([*TRAINED_AGAIN, *OPENED])]
ASK = [one for one in ALL_COMMANDS if one not in EXECUTES_NOTHING]


@pytest.mark.parametrize("command", [pytest.param(one, marks=() if one in QUICK else slow) for one in ALL_COMMANDS])
def test_a_task_in_what_a_run_extends(vaak: Vaak, stranger: Stranger, command: str):
    opened = extended(stranger, {"task": FILE})
    asks = command != "bisect" and (
        command in ASK or command.startswith("config ")
    )  # it is the same run: no step is taken
    require_nothing_ran(vaak, stranger, command, opened, refuses=asks)


@pytest.mark.parametrize("command", ["generate", "eval", "export", "tune", "predict", "inspect"])
def test_a_task_in_tuned_options(vaak: Vaak, stranger: Stranger, command: str):
    require_nothing_ran(vaak, stranger, command, tuned(stranger, {"task": FILE}), refuses=command != "inspect")


@pytest.mark.parametrize("carrier", CARRIERS)
@pytest.mark.parametrize("reference", [FILE, pytest.param(PACKAGE, marks=slow)])
def test_each_way_to_name_a_network(
    vaak: Vaak, stranger: Stranger, carrier: Callable[[Stranger, Any], Path], reference: str
):
    opened = carrier(stranger, {"model": {"type": reference}})
    refuses = carrier is not sessions  # where config.yml names nothing, there is nothing to ask for
    require_nothing_ran(vaak, stranger, "generate", opened, refuses=refuses and carrier is not checkpoint_in_the_run)
    if carrier not in IN_USE:
        require_nothing_ran(vaak, stranger, "train", opened, refuses=True)


@pytest.mark.parametrize("key", OF_LM)
def test_each_option_of_a_language_model(vaak: Vaak, stranger: Stranger, key: str):
    opened = extended(stranger, values_with(key, FILE))
    for command in ("train", "verify"):
        require_nothing_ran(vaak, stranger, command, opened, refuses=command == "train")


RECIPES = {
    "asr": "asr/ctc",
    "classification": "classification/clinc150_transformer",
    "diarization": "diarization/quickstart",
    "lm": "quickstart",
    "multitask": "multitask/quickstart",
    "seq2seq": "seq2seq/en_hi_performer",
    "tts": "tts/quickstart",
    "vocoder": "vocoder/quickstart",
}


@pytest.mark.parametrize("task", KEYS)
def test_each_option_of_each_task_is_doubted_where_a_run_brings_it_in(stranger: Stranger, task: str):
    base = recipes_folder() / f"{RECIPES[task]}.yml"
    (stranger.folder / "mine.yml").write_text("extends: theirs/config.yml\nname: mine\n")
    stranger.config.write_text("extends: base.yml\n")
    for key in KEYS[task]:
        values = values_with(key.replace("tasks.own.", "tasks.intent."), FILE)
        stranger.write(stranger.run / "base.yml", FITTING.get(task, {}), values, extends=str(base))
        expected = REFUSED.get((task, key), "--trust-code")
        with pytest.raises(UserError, match=expected):
            require_trust(load_layers([stranger.folder / "mine.yml", {"name": "in memory"}]))
    assert not (stranger.folder / "executed").exists()


FITTING = {"seq2seq": {"model": {"copy_source": False}, "data": {"gloss": False}}}
"""What of a recipe doesn't go with code from outside Vaak."""
REFUSED = {
    ("asr", "data.tokenizer.type"): "can't use a tokenizer of your own",
    ("asr", "training.loss.auxiliary.own.type"): "model.architecture is ctc, which has no such loss",
}
"""What a task can't have from outside Vaak, with what is said instead."""


# What a run names besides code: another run, which may bring code in.

NAMING_RUNS: dict[str, dict[str, Any]] = {
    "distillation.teacher": {"distillation": {"teacher": "theirs"}},
    "training.checkpoint.init_from": {"training": {"checkpoint": {"init_from": "theirs"}}},
    "a file that extends it": {"extends": "theirs/config.yml"},
    "an inner experiment": {"task": "multitask", "data": {"tasks": {"a": "theirs/config.yml", "b": "b.yml"}}},
    "an inner experiment over it": {
        "task": "multitask",
        "data": {"tasks": {"a": {"extends": "theirs/config.yml"}, "b": "b.yml"}},
    },
}


@pytest.mark.parametrize(
    "carrier", [extended, pytest.param(tuned, marks=slow), pytest.param(checkpoint_alone, marks=slow)]
)
@pytest.mark.parametrize("way", ["distillation.teacher", pytest.param("training.checkpoint.init_from", marks=slow)])
def test_a_run_that_a_configuration_of_ones_own_names(
    vaak: Vaak, stranger: Stranger, tiny_text: Path, way: str, carrier: Callable[[Stranger, Any], Path]
):
    for named in ({"task": FILE}, {"model": {"type": FILE}}):
        opened = carrier(stranger, named)
        values = {name: one for name, one in NAMING_RUNS[way].items() if name != "extends"}
        text = yaml_text(values).replace("theirs", str(opened))
        (stranger.folder / "mine.yml").write_text(f"extends: {tiny_text}/tiny.yml\n{text}")
        vaak("train", "mine.yml", "run_dir=mine", "training.max_steps=1")
        assert not (stranger.folder / "executed").exists()
        shutil.rmtree(stranger.folder / "mine", ignore_errors=True)
        shutil.rmtree(stranger.folder / "step-00000008", ignore_errors=True)


@pytest.mark.parametrize("way", ["an inner experiment", "an inner experiment over it", "a file that extends it"])
def test_a_configuration_of_ones_own_that_holds_a_strangers(vaak: Vaak, stranger: Stranger, tiny_text: Path, way: str):
    shutil.copy(tiny_text / "tiny.yml", "b.yml")
    for named in ({"task": FILE}, {"model": {"type": FILE}}):
        extended(stranger, named)
        (stranger.folder / "mine.yml").write_text(yaml_text(NAMING_RUNS[way]))
        code, _, err = vaak("train", "mine.yml", "run_dir=mine")
        assert not (stranger.folder / "executed").exists()
        assert (code, "--trust-code" in err) == (2, True), err


def test_python_asks_too(stranger: Stranger):
    extended(stranger, {"training": {"loss": {"main": FILE}}})
    with pytest.raises(UserError, match="--trust-code"):
        library.check(str(stranger.config))  # which builds the loss of what it was given, and never asked
    assert not (stranger.folder / "executed").exists()


# Pipelines: options of a stranger's, and runs in a stranger's folder.


@pytest.mark.parametrize(
    "values",
    [
        {"asr_config": {"model": {"type": "./théirs.py:Ñame"}}},
        {"asr_config": {"data": {"tokenizer": {"type": " blank.py:Name"}}}},
        {"base_config": {"training": {"loss": {"auxiliary": {"./key.py:Name": 1.0}}}}},
        {"base_config": {"data": {"tasks": {"a": {"extends": "theirs/code.yml"}}}}},
        {"base_config": {"extends": ["theirs/code.yml"]}},
    ],
)
def test_what_options_of_a_strangers_pipeline_may_name(vaak: Vaak, stranger: Stranger, values: dict[str, Any]):
    stranger.write(stranger.config, values)
    code, _, err = vaak("pipeline", "moe-asr", "--config", stranger.config, "--output-dir", "made", "--dry-run")
    assert (code, "--trust-code" in err) == (2, True), err


def test_a_run_in_a_strangers_pipeline_is_opened_with_trust_alone(stranger: Stranger):
    """One that an earlier stage trained: the folder may be a stranger's, resumed here."""
    extended(stranger, {"model": {"type": FILE}})
    (stranger.folder / "system").mkdir()
    shutil.move(stranger.run, stranger.folder / "system" / "run")
    options = MoeOptions(mode="quick", device="cpu")
    work = StageWork(stranger.folder / "stage", options, {"system": stranger.folder / "system"}, Jobs())
    with pytest.raises(UserError, match="--trust-code"):
        comparison._system(work)
    assert not (stranger.folder / "executed").exists()


# What stays the user's own, and what trust gives.


def test_what_is_said_over_a_strangers_run_is_the_users(stranger: Stranger):
    extended(stranger, {})
    (stranger.folder / "mine.py").write_text((stranger.run / "stranger.py").read_text())
    mine = "./mine.py:Thing"
    require_trust(load([stranger.config], [f"training.loss.main={stranger.folder}/mine.py:Thing"]))
    (stranger.folder / "mine.yml").write_text(
        yaml_text({"extends": "theirs/config.yml", **values_with("training.loss.main.type", mine)})
    )
    require_trust(load([stranger.folder / "mine.yml"]))
    extended(stranger, {"training": {"callbacks": [{"type": FILE}]}})
    with pytest.raises(UserError, match=r"theirs/base\.yml comes with .*theirs/config\.yml, which belongs to a run"):
        require_trust(load([stranger.folder / "mine.yml"]))


def test_a_file_in_the_folder_of_a_run_is_the_runs(stranger: Stranger):
    stranger.write(stranger.run / "mine.yml", stranger.values, {"training": {"loss": {"main": FILE}}})
    with pytest.raises(UserError, match=r"mine\.yml is in .*theirs, the folder of a run"):
        require_trust(load([stranger.run / "mine.yml"]))
    doubt = judge_file(stranger.run / "mine.yml")
    assert doubt is not None
    assert str(doubt.inherited_by("b.yml").inherited_by("c.yml")) == (
        f"c.yml comes with {stranger.run}/mine.yml, which is in {stranger.run}, the folder of a run"
    )


def test_trust_is_given_by_the_flag_to_what_a_run_extends(vaak: Vaak, stranger: Stranger):
    extended(stranger, {"training": {"loss": {"main": FILE}, "max_steps": 1}})
    code, _, err = vaak(*command_line("train", stranger.run, stranger), "--trust-code")
    assert code == 0, err
    assert (stranger.folder / "executed").exists()


@pytest.mark.slow
def test_trust_is_inherited_by_a_teacher(vaak: Vaak, stranger: Stranger, tiny_text: Path):
    """Before, no flag let a run with code of its own teach another."""
    (stranger.run / "network.py").write_text(NETWORK)
    first = stranger.folder / "own.yml"
    first.write_text(f"extends: {tiny_text}/tiny.yml\nmodel: {{type: ./theirs/network.py:Net}}\n")
    short = ("training.max_steps=2", "training.validation.interval=2")
    assert vaak("train", first, "run_dir=taught", "--trust-code", *short)[0] == 0
    (stranger.folder / "mine.yml").write_text(f"extends: {tiny_text}/tiny.yml\ndistillation: {{teacher: taught}}\n")
    code, _, err = vaak("train", "mine.yml", "run_dir=student", *short)
    assert (code, "--trust-code" in err) == (2, True), err
    code, _, err = vaak("train", "mine.yml", "run_dir=student", "--trust-code", *short)
    assert code == 0, err


@pytest.mark.slow
@pytest.mark.parametrize("carrier", CARRIERS)
def test_each_way_through_each_command(
    vaak: Vaak, stranger: Stranger, carrier: Callable[[Stranger, Any], Path], monkeypatch: pytest.MonkeyPatch
):
    """Every way with every command; the options take turns, so that each command meets each of them by some way."""
    # A server or a page that needs none of the stranger's code would serve for ever: it begins, and ends.
    monkeypatch.setattr("uvicorn.Server.main_loop", lambda _: asyncio.sleep(0))
    kept = shutil.copytree(stranger.run, stranger.folder / "kept", symlinks=True)
    for number, command in enumerate(ALL_COMMANDS):
        for name in ("theirs", "link", "step-00000008", "mine", "forked", "exported", "studied", "base.yml"):
            path = stranger.folder / name
            path.unlink() if path.is_symlink() else shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(kept, stranger.run, symlinks=True)
        key = OF_LM[(number + CARRIERS.index(carrier)) % len(OF_LM)]
        opened = carrier(stranger, values_with(key, (FILE, PACKAGE)[number % 2]))
        if command in OPENED or carrier not in IN_USE:
            require_nothing_ran(vaak, stranger, command, opened)


def options_of_text(task: str) -> Iterator[str]:
    """The options that may hold a text, and so the name of a file or a run."""
    for key, annotation, _ in leaf_options(task):
        kinds = [*alternatives(annotation), *alternatives(get_item_annotation(annotation) or int)]
        if str in kinds and key not in ("task", "name"):
            yield key


@pytest.mark.slow
def test_each_option_that_may_name_a_strangers_run(vaak: Vaak, stranger: Stranger, tiny_text: Path):
    """Whatever an option of a stranger's run names, a run or a file of code, executes nothing."""
    extended(stranger, {"task": FILE})
    tried = [*options_of_text("lm")]
    assert {"distillation.teacher", "training.checkpoint.init_from", "data.tokenizer.path"} <= {*tried}
    for key in tried:
        for named in ("theirs", "theirs/config.yml", "theirs/stranger.py", FILE):
            stranger.write(stranger.run / "over.yml", values_with(key, named), extends=f"{tiny_text}/tiny.yml")
            _, out, err = vaak("train", "theirs/over.yml", "run_dir=mine", "training.max_steps=1")
            assert not (stranger.folder / "executed").exists(), (key, named)
            assert "Traceback" not in out + err, (key, named, err)
            shutil.rmtree(stranger.folder / "mine", ignore_errors=True)
