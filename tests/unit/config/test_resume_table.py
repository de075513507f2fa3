"""Every option has a class on resume, docs/resuming.md says it, and a change of the option is reported with it."""

from __future__ import annotations

import copy
import itertools
import json
import re
import typing
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import TypeAdapter, ValidationError

from vaak.config.base import ResumeClass, Section, option
from vaak.config.changes import EQUAL_VALUES, Leaf, changes_between, get_rule, leaves, of_class, resume_class
from vaak.config.experiment import experiment_type
from vaak.config.load import load
from vaak.config.reference import SWITCHED, TOP, resume_page
from vaak.config.resolved import default_experiment, resolved_values
from vaak.config.tasks import TASKS
from vaak.config.yaml.fields import alternatives, get_item_annotation, get_section, is_component, types_reading

PAGE = Path(__file__).parents[3] / "docs" / "resuming.md"
CLASSES = typing.get_args(ResumeClass)
UNCHANGEABLE = {
    ("seq2seq", "model.model_type"),  # has one value only
    ("diarization", "model.model_type"),
    ("asr", "model.conformer.norm_placement"),
    ("multitask", "data.tasks"),  # has experiments, whose options change; it has its own test
    *((task, "task") for task in TASKS),  # all else is then not to be compared; it has its own test
}
"""Options of which no change alone can be made up."""

tasks = pytest.mark.parametrize("task", TASKS)


def classes_on_the_page() -> dict[str, dict[str, str]]:
    """Of each task, the class that the page gives each option, with its mark."""
    found: dict[str, dict[str, str]] = {}
    for part in PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        rows = re.findall(r"^\| (.+?) \| (.+?) \| (`.+`.*) \|$", part, re.MULTILINE)
        options = {
            f"{'' if section == TOP else section.strip('`') + '.'}{name}": kind + mark
            for section, kind, names in rows
            for name, mark in re.findall(r"`(\w+)`(\\\*)?", names)
        }
        found[part.partition("\n")[0]] = options
    shared = found.pop("All tasks")
    return {task: {**shared, **own} for task, own in found.items()}


def resolved(task: str, values: dict[str, Any]) -> dict[str, Any]:
    return {**resolved_values(default_experiment(task, "run", "runs/run")), **values}


@tasks
def test_the_page_has_exactly_the_options_of_the_types(task):
    ours = {leaf.key for leaf in leaves(task)}
    assert classes_on_the_page()[task].keys() == ours
    assert {key.partition(".")[0] for key in ours} <= set(experiment_type(task).model_fields)


def test_the_page_is_what_the_types_say():
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("<!-- begin of the table -->\n")[2].partition("<!-- end of the table -->")[0]
    assert table.strip() == resume_page().strip(), "run: vaak config show --on-resume, between the page's two marks"


@tasks
def test_every_option_has_one_class_its_own_or_its_sections(task):
    on_the_page = classes_on_the_page()[task]
    for leaf in leaves(task):
        assert leaf.rule is not None, f"{leaf.key}: give it resume=, or its section a resume_class"
        assert {leaf.rule.always, leaf.rule.switch} <= set(CLASSES), leaf.key
        key = leaf.key.replace(".N", ".0")
        assert get_rule(task, key) == leaf.rule, key
        assert resume_class(task, key) == leaf.rule.always, key
        mark = SWITCHED if leaf.rule.switch != leaf.rule.always else ""
        assert on_the_page[leaf.key] == leaf.rule.always + mark, key


def test_an_option_without_a_class_has_none_by_default(monkeypatch):
    class Undeclared(Section):
        new: int = option("New.", 3)

    kind = experiment_type("lm")
    monkeypatch.setitem(kind.model_fields, "added", type(kind.model_fields["wandb"])(annotation=Undeclared))
    assert [leaf.key for leaf in leaves("lm") if leaf.rule is None] == ["added.new"]
    with pytest.raises(KeyError):
        resume_class("lm", "added.new")
    with pytest.raises(ValueError, match=r"added\.new has no class"):
        resume_page()


# A change of each option.


def simple_values(annotation: Any, default: Any) -> list[Any]:
    """Values that an option of this type may have."""
    found: list[Any] = []
    for kind in alternatives(annotation):
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind is type(None):
            found.append(None)
        elif origin is typing.Literal:
            found += arguments
        elif origin is dict:
            found += [{"other": 0.5}, {"other": "one"}]
        elif origin is tuple and arguments[1:] == (Ellipsis,):
            found += [[value] for value in simple_values(arguments[0], None)]
        elif origin is tuple:
            found += [[low + 0.1 * place for place in range(len(arguments))] for low in (0.1, 1.0)]
            found.append([5 + place for place in range(len(arguments))])
        else:
            simple: dict[Any, list[Any]] = {bool: [True, False], int: [1, 3, 1001, 2048], float: [0.123, 1.5, 30.5]}
            found += simple.get(kind, ["one", "other", "memory://other"])
    return [value for value in found if value != default]


def changed_value(leaf: Leaf, default: Any) -> Any:
    """A valid value of an option that is another than ``default``."""
    annotation: Any = leaf.option.annotation
    taken: TypeAdapter[Any] = TypeAdapter(
        Annotated[annotation, *leaf.option.metadata] if leaf.option.metadata else annotation
    )
    for value in simple_values(leaf.option.annotation, default):
        try:
            taken.validate_python(value)
        except ValidationError:
            continue
        return value
    raise AssertionError(f"{leaf.key}: no other value is known; add it to UNCHANGEABLE with a reason")


def section_at(task: str, values: dict[str, Any], key: str) -> dict[str, Any]:
    """The section that an option stands in, made where it isn't there, of the type that reads the option."""
    kind: Any = experiment_type(task)
    here: Any = values
    for part in key.split(".")[:-1]:
        if part != "N":
            if read_by := types_reading(kind, part):
                here["type"] = read_by[0]
            annotation = kind.model_fields[part].annotation
            item = get_section(get_item_annotation(annotation))
            here[part] = here.get(part) or ([{}] if item else {})
        kind, here = (item, here[0]) if part == "N" else (get_section(annotation) or item, here[part])
    if is_component(kind):
        here["type"] = "some"
    only_for = types_reading(kind, key.rpartition(".")[2])
    if only_for:
        here["type"] = only_for[0]
    return here


@pytest.mark.parametrize("shared", [False, pytest.param(True, marks=pytest.mark.slow)])
@tasks
def test_a_change_of_an_option_is_reported_with_its_class(task, shared):
    """Those that an earlier task has, too, are changed for each of their tasks by `make test-slow`."""
    untouched = default_experiment(task, "run", "runs/run")
    values = resolved_values(untouched)
    assert changes_between(values, copy.deepcopy(values)) == []
    earlier = {leaf.key for other in itertools.takewhile(task.__ne__, TASKS) for leaf in leaves(other)}
    changed = [leaf for leaf in leaves(task) if (leaf.key in earlier) == shared]
    for leaf in changed:
        if (task, leaf.key) not in UNCHANGEABLE:
            check_a_change(task, leaf, untouched, copy.deepcopy(values))


def check_a_change(task: str, leaf: Leaf, untouched: Any, before: dict[str, Any]) -> None:
    """Change one option of the values ``before``, and back; ``untouched`` is the experiment that they are of."""
    key, name = leaf.key.replace(".N", ".0"), leaf.key.rpartition(".")[2]
    section = section_at(task, before, leaf.key)
    if name not in section and leaf.option.is_required():
        section[name] = changed_value(leaf, None)
    old = section.get(name, default_of(untouched, key, leaf))
    after = copy.deepcopy(before)
    new = section_at(task, after, leaf.key)[name] = changed_value(leaf, old)
    changes = changes_between(before, after)
    assert [(one.key, one.before, one.after) for one in changes] == [(key, old, new)], key
    assert leaf.rule is not None, key
    alike = key in EQUAL_VALUES and {old, new} <= EQUAL_VALUES[key]
    assert changes[0].resume_class == ("free" if alike else leaf.rule.of(old, new)), key
    assert str(changes[0]).startswith(f"{key} was ")
    (back,) = changes_between(after, before)
    assert (back.key, back.before, back.after, back.resume_class) == (key, new, old, changes[0].resume_class)


def default_of(untouched: Any, key: str, leaf: Leaf) -> Any:
    """Return what an option is that nobody gave, by the experiment without options."""
    here: Any = untouched
    for part in key.split("."):
        here = getattr(here, part, None) if here is not None else None
    default = leaf.option.get_default(call_default_factory=True) if here is None else here
    return json.loads(json.dumps(default)) if isinstance(default, tuple) else default


# Two configurations.


def lines(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [str(change) for change in changes_between(before, after)]


def from_yaml(folder: Path, text: str, *overrides: str) -> dict[str, Any]:
    (folder / "run.yml").write_text(text)
    return resolved_values(load([folder / "run.yml"], overrides).experiment)


def test_all_refused_changes_come_at_once_in_the_order_of_the_options(tmp_path):
    text = "task: lm\nmodel: tiny\ntraining: {optimizer: adamw}\n"
    before = from_yaml(tmp_path, text)
    overrides = ("training.optimizer=muon", "training.batch_size=4", "model.d_model=128", "name=other", "epochs=3")
    changes = changes_between(before, from_yaml(tmp_path, text, *overrides))
    assert list(map(str, of_class(changes, "refused"))) == [
        "model.d_model was 64, is 128",
        "training.optimizer.type was adamw, is muon",
    ]
    assert list(map(str, of_class(changes, "converts"))) == ["training.batch_size was 32, is 4"]
    assert list(map(str, of_class(changes, "other numbers"))) == ["training.epochs was 10, is 3"]
    assert list(map(str, of_class(changes, "free"))) == [
        "name was run, is other",
        "run_dir was runs/run, is runs/other",
    ]


def test_options_that_only_one_type_reads_are_no_changes_of_their_own(tmp_path):
    before = from_yaml(tmp_path, "task: lm\ntraining: {scheduler: {type: plateau, patience: 9}}\n")
    after = from_yaml(tmp_path, "task: lm\ntraining: {scheduler: {type: wsd, decay_ratio: 0.4}}\n")
    assert lines(before, after) == ["training.scheduler.type was plateau, is wsd"]


def test_options_left_out_where_they_have_no_effect_are_compared_with_their_defaults(tmp_path):
    before = from_yaml(tmp_path, "task: lm\ntraining: {max_steps: 5}\n")
    after = from_yaml(tmp_path, "task: lm\ntraining: {max_steps: null, performance: {num_workers: 1}}\n")
    assert "epochs" not in before["training"]
    assert lines(before, after) == [
        "training.max_steps was 5, is null",
        "training.performance.num_workers was null, is 1",
    ]


def test_a_configuration_of_an_earlier_version_has_the_defaults_of_what_it_lacks(tmp_path):
    now = from_yaml(tmp_path, "task: diarization\ndatasets: [{name: own, type: folder, train: [a]}]\n")
    old = {**now, "datasets": [{"name": "own", "type": "folder", "train": ["a"]}], "data": {}}
    old["training"] = {"epochs": 50, "optimizer": {"type": "adamw", "lr": 1e-3}, "left": {"over": 3}}
    assert lines(old, now) == [
        "training.optimizer.lr was 0.001, is 0.0002",
        "training.left was {over: 3}, is not given",
    ]
    assert [change.resume_class for change in changes_between(old, now)] == ["other numbers", "other numbers"]
    del old["training"]
    assert lines(old, now) == []


def test_a_run_that_began_before_there_was_an_option_keeps_what_it_did(tmp_path):
    """Until model.window came, the longest utterance was all that the encoder of a pretrained Whisper read."""
    text = "task: asr\nmodel: {base: openai/whisper-tiny}\ndata: {max_duration: 7}\n"
    now = from_yaml(tmp_path, text)
    assert now["model"]["window"] is None, "a user's YAML has no older meaning"
    before = copy.deepcopy(now)
    del before["model"]["window"]
    assert lines(before, now) == ["model.window was 7.0, is null"]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "config.yml").write_text(text)
    own = resolved_values(load([folder / "config.yml"], trust_code=True).experiment)
    assert own["model"]["window"] == 7
    assert [one for one in lines(before, {**own, "name": now["name"]}) if "window" in one] == []
    overridden = load([folder / "config.yml"], ["data.max_duration=5"], trust_code=True).experiment
    assert overridden.model.window == 7, "it began with 7"
    (folder / "config.yml").write_text(text.replace("base:", "window: null, base:"))
    assert load([folder / "config.yml"], trust_code=True).experiment.model.window is None, "it was begun later"


def test_a_run_that_began_with_the_exact_beam_search_of_ctc_keeps_it(tmp_path):
    """Until token_min_logp and beam_threshold came, it left out nothing."""
    text = "task: asr\nmodel: {architecture: ctc}\ndata: {decoding: {method: beam}}\n"
    now = from_yaml(tmp_path, text)
    before = copy.deepcopy(now)
    del before["data"]["decoding"]["token_min_logp"], before["data"]["decoding"]["beam_threshold"]
    said = ["data.decoding.token_min_logp was null, is -5.0", "data.decoding.beam_threshold was null, is 10.0"]
    assert lines(before, now) == said
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")

    def pruning(text: str, *overrides: str) -> tuple[float | None, float | None]:
        (folder / "config.yml").write_text(text)
        found = load([folder / "config.yml"], list(overrides), trust_code=True).experiment.data.decoding
        return found.token_min_logp, found.beam_threshold

    assert pruning(text) == (None, None)
    assert pruning(text, "data.decoding.beam_threshold=7") == (None, 7)
    # Runs of the greedy search have none of these options, so nothing says when they began.
    greedy = text.replace("beam", "greedy")
    assert pruning(greedy, "data.decoding.method=beam") == (-5, 10)


def test_pairs_that_a_run_left_out_before_there_was_an_option_stay_left_out(tmp_path):
    """Until evaluation_overlap came, a target that an evaluation split has was enough."""
    text = "task: seq2seq\ndata: {corpus: {type: grammar}}\n"
    now = from_yaml(tmp_path, text)
    before = copy.deepcopy(now)
    del before["data"]["corpus"]["evaluation_overlap"]
    assert lines(before, now) == ["data.corpus.evaluation_overlap was target, is source"]
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "run.json").write_text("{}")
    (folder / "config.yml").write_text(text)
    assert load([folder / "config.yml"], trust_code=True).experiment.data.corpus.evaluation_overlap == "target"


def test_sections_and_lists_that_one_side_has_not_are_one_change(tmp_path):
    text = "task: lm\ntraining:\n  freeze: [{match: a, until_step: 3}]\n  callbacks: [{type: lr_monitor, every: 3}]\n"
    before = from_yaml(tmp_path, text)
    after = from_yaml(tmp_path, text, "training.ema=0.99", "training.freeze=[]", "training.curriculum=length")
    found = {change.key: change.resume_class for change in changes_between(before, after)}
    assert found == {
        "training.ema": "other numbers",
        "training.freeze": "refused",
        "training.curriculum": "converts",
    }
    assert "training.ema was null, is {decay: 0.99, warmup: true, start_step: 1, evaluate: true}" in lines(
        before, after
    )
    after = from_yaml(tmp_path, text, "training.freeze.0.until_step=9", "training.callbacks.0.every=4")
    assert {str(change): change.resume_class for change in changes_between(before, after)} == {
        "training.freeze.0.until_step was 3, is 9": "other numbers",
        "training.callbacks.0.every was 3, is 4": "other numbers",
    }


@pytest.mark.parametrize(
    ("task", "key", "values", "expected"),
    [
        ("lm", "training.freeze.0.until_step", (3, 9), "other numbers"),
        ("lm", "training.freeze.0.until_step", (None, 9), "refused"),
        ("lm", "training.optimizer.momentum", (0.9, 0.95), "other numbers"),
        ("lm", "training.optimizer.momentum", (0.9, 0.0), "refused"),
        ("diarization", "global_config.storage_path", ("a", "b"), "free"),
        ("diarization", "global_config.storage_path", (None, "b"), "refused"),
    ],
)
def test_switching_an_option_on_or_off_may_be_of_another_class(task, key, values, expected):
    assert get_rule(task, key).of(*values) == get_rule(task, key).of(*reversed(values)) == expected


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("ddp", "zero1", "free"),
        ("zero1", "ddp", "free"),
        ("ddp", "fsdp", "other numbers"),
        ("fsdp", "zero1", "other numbers"),
    ],
)
def test_strategies_with_the_same_bits_are_free(before, after, expected):
    values = [resolved("lm", {}) for _ in range(2)]
    for one, strategy in zip(values, (before, after), strict=True):
        one["training"] = copy.deepcopy(one["training"])
        one["training"]["distributed"]["strategy"] = strategy
    (change,) = changes_between(values[0], values[1])
    assert (change.key, change.resume_class) == ("training.distributed.strategy", expected)


def test_a_users_class_is_the_same_one_in_the_copy_that_a_run_keeps():
    before = resolved("lm", {"training": {"loss": {"main": {"type": "./code/huber.py:Huber", "delta": 1}}}})
    after = resolved("lm", {"training": {"loss": {"main": {"type": "../own/huber.py:Huber", "delta": 2}}}})
    assert lines(before, after) == ["training.loss.main.delta was 1, is 2"]
    after["training"]["loss"]["main"] = {"type": "./huber.py:Other", "slope": 3}
    (change,) = changes_between(before, after)
    assert str(change) == 'training.loss.main.type was "./code/huber.py:Huber", is "./huber.py:Other"'
    assert change.resume_class == "refused"
    after["training"]["loss"]["main"] = {"type": "./huber.py:Huber"}
    assert lines(before, after) == ["training.loss.main.delta was 1, is not given"]


def test_another_task_is_one_refused_change(tmp_path):
    (change,) = changes_between(resolved("lm", {}), resolved("seq2seq", {}))
    assert (str(change), change.resume_class) == ("task was lm, is seq2seq", "refused")


def test_long_values_are_shortened():
    (change,) = changes_between(resolved("lm", {}), resolved("lm", {"wandb": {"notes": "n" * 500}}))
    assert len(str(change)) < 200


def test_unknown_keys_have_no_class():
    for key in ("training.epoch", "data.encoder.d_model", "training.optimizer.groups.0.matches", "nothing"):
        with pytest.raises(KeyError):
            resume_class("lm", key)


@tasks
def test_sections_that_tasks_share_have_one_class(task):
    for leaf in leaves("lm"):
        if leaf.key.startswith(("training.", "wandb.")):
            assert get_rule(task, leaf.key.replace(".N", ".0")) == leaf.rule


def test_paths_that_moved_together_with_the_run_are_the_same():
    model = {"base": "/disk/study/base/whisper"}
    before = resolved("asr", {"run_dir": "/disk/study/joint/run", "model": model})
    moved = resolved("asr", {"run_dir": "/other/copy/joint/run", "model": {"base": "/other/copy/base/whisper"}})
    assert [change.key for change in changes_between(before, moved)] == ["run_dir"]
    other = {**moved, "model": {"base": "/other/base/whisper"}}
    assert [change.key for change in of_class(changes_between(before, other), "refused")] == ["model.base"]
