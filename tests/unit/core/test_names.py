"""Names that select things and match nothing are an error: each option that takes names has what checks them."""

from __future__ import annotations

import importlib
import inspect
import types
import typing
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel
from torch import nn

from vaak.cli.table import COMMANDS, imported
from vaak.config.experiment import experiment_type
from vaak.config.optimization import OptimizerConfig
from vaak.config.tasks import TASKS
from vaak.core.errors import DataError, UserError
from vaak.core.names import require_known
from vaak.engine.optim.optimizers import check_groups, trained_parameters
from vaak.engine.optim.schedules import compile_pattern, freeze_parameters
from vaak.runs.distillation import captured

SHARED = ("require_known", "quote_unmatched", "nearest_name", "did_you_mean", "get_close_matches", "compile_pattern")
"""Functions that report each name without a match, with the nearest existing name."""
COLUMN, WEIGHTS = "vaak.text.corpora.readers:missing_column", "vaak.engine.optim.schedules:compile_pattern"
PART = "vaak.audio.corpora.lhotse_manifests:_chosen"
OPTIONS = {
    "auxiliary": "vaak.nn.losses:auxiliary_losses",
    "columns": "vaak.audio.corpora.entries:require_columns",
    "group": "vaak.tasks.asr.utterances:choose_group_label",
    "groups": "vaak.tasks.asr.utterances:Writing._refuse_missing",
    "init_except": "vaak.engine.trained:initialise",
    "init_rename": "vaak.engine.trained:_rename_weights",
    "label_columns": COLUMN,
    "language": "vaak.tasks.asr.languages:suggest_language",
    "language_like": "vaak.tasks.asr.vocabulary:Vocabulary.with_language",
    "log_metrics": "vaak.config.metric_names:_check_logged",
    "loss_weights": "vaak.tasks.multitask.spec:_model",
    "match": WEIGHTS,
    "metric": "vaak.config.metric_names:check_metrics",
    "name": "vaak.audio.corpora.recipes:recipe_named",
    "new_tokens_like": "vaak.tasks.kept_base:save_new_tokens",
    "options": "vaak.config.component_options:_check_component",
    "shared": "vaak.tasks.multitask.model:MultiTaskModel._module",
    "source_column": COLUMN,
    "speaker": "vaak.tasks.tts.predict:Speaker.__init__",
    "student": "vaak.runs.distillation:captured",
    "target_column": COLUMN,
    "targets": "vaak.nn.lora:require_layers",
    "task": "vaak.config.chosen_task:_describe_unknown_task",
    "teacher": "vaak.runs.distillation:captured",
    "test": PART,
    "text_column": COLUMN,
    "trackers": "vaak.engine.distributed.ranks:accelerate_tracker",
    "train": PART,
    "type": "vaak.config.components:unknown_name",
    "valid": PART,
}
"""Options of a configuration that select by name, and their checks. (Files that don't exist are another error.)"""
COMMAND_LINE = {
    "dataset": "vaak.cli.data:_dataset",
    "data": "vaak.tasks.lm.evaluation_harness:_specifications",
    "filters": "vaak.cli.runs:_require_possible",
    "first": "vaak.pipeline.stage:Pipeline.stage",
    "arguments": "vaak.cli.runs:plot",
    "format": "vaak.runs.use:require_format",
    "group": "vaak.scoring.word_errors:_require_labels",
    "group_by": "vaak.study.crossval:_report_lacking",
    "language": "vaak.text.corpora.cleaning:_language_filter",
    "metric": "vaak.study.compare:compare_runs",
    "name": "vaak.audio.corpora.recipes:recipe_named",
    "normaliser": "vaak.scoring.normalisers:_find_function",
    "only": "vaak.pipeline.stage:Pipeline.stage",
    "options": "vaak.audio.corpora.recipes:prepare",
    "quantization": "vaak.runs.use:require_quantization",
    "speaker": "vaak.tasks.tts.predict:Speaker.__init__",
    "split": "vaak.runs.prepared:PreparedFolder.split_folder",
    "stratify_by": "vaak.study.crossval:_report_lacking",
    "task": "vaak.cli.config:_require_task",
    "tasks": "vaak.tasks.lm.evaluation_harness:_specifications",
    "text_column": COLUMN,
    "what": "vaak.cli.init:_for_data",
}
"""The same of the command line."""
NOT_SELECTING = {
    "adapter", "alignments", "audio_root", "base", "cache_dir", "chat_template", "corpus_dir", "delimiter", "encoding",
    "chat_template_kwargs", "entity", "fold", "hotwords",
    "folder", "folds_file", "global_config", "init_from", "lexicon", "lm", "minimal_pairs",
    "new_tokens", "ngram", "notes", "out_of_scope", "output_dir", "path", "pretrained", "pretrained_model", "project",
    "prompt", "resume", "samples", "save_dir", "speaker_encoder", "speaker_features", "storage_path", "subset",
    "synonyms", "tags", "tasks", "test_target", "train_target", "upload_to", "valid_target", "vocoder",
}  # fmt: skip
"""Files, folders, runs, texts, and new names."""
NOT_SELECTING_HERE = {
    "against", "alignments", "all_of", "config", "corpus_dir", "data_config", "data_license", "delimiter", "device",
    "document", "encoding", "enrol", "executor", "extras", "gpus", "grid", "hardware", "host", "hotwords",
    "input_dir", "inputs", "infra", "lexicon", "license", "limit", "lm", "mount", "ngram", "output_dir", "overrides",
    "prompt", "quotes", "random", "resume", "sampler", "sbatch", "secret", "sources", "speaker_encoder", "text",
    "time", "token", "vocoder", "whisper_model",
}  # fmt: skip
"""Command-line options that take files, values, a few choices, or configuration options, which are checked there."""


def takes_names(kind: Any) -> bool:
    if kind is str:
        return True
    if typing.get_origin(kind) is typing.Annotated:  # such as a path, in which ~ is a home
        return takes_names(typing.get_args(kind)[0])
    inner = [one for one in typing.get_args(kind) if one is not Ellipsis]
    return typing.get_origin(kind) in (typing.Union, types.UnionType, list, tuple, dict) and any(
        map(takes_names, inner)
    )


def sections_in(kind: Any) -> Iterator[type[BaseModel]]:
    if inspect.isclass(kind) and issubclass(kind, BaseModel):
        yield kind
    for one in typing.get_args(kind):
        yield from sections_in(one)


def names_of_options() -> set[str]:
    seen, found = set[Any](), set[str]()
    waiting: list[type[BaseModel]] = [experiment_type(task) for task in TASKS]
    while waiting:
        section = waiting.pop()
        if section not in seen:
            seen.add(section)
            found |= {name for name, field in section.model_fields.items() if takes_names(field.annotation)}
            waiting += [one for field in section.model_fields.values() for one in sections_in(field.annotation)]
    return found


def names_of_arguments(command: Any) -> set[str]:
    if getattr(command, "commands", None):
        return set.union(*map(names_of_arguments, command.commands.values()))
    kinds = {one.name: one.type_descriptor for one in command.params}
    return {name for name, kind in kinds.items() if kind is not None and takes_names(kind.annotation)}


def test_every_option_that_takes_names_is_in_the_tables():
    assert names_of_options() == {*OPTIONS} | NOT_SELECTING
    assert not {*OPTIONS} & NOT_SELECTING
    assert set.union(*(names_of_arguments(imported(name)) for name in COMMANDS)) == {*COMMAND_LINE} | NOT_SELECTING_HERE
    assert not {*COMMAND_LINE} & NOT_SELECTING_HERE


@pytest.mark.parametrize("place", sorted({*OPTIONS.values(), *COMMAND_LINE.values()}))
def test_what_checks_names_says_the_nearest(place: str):
    module, _, path = place.partition(":")
    found: Any = importlib.import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    assert any(one in inspect.getsource(found) for one in SHARED)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(2, 2), nn.Linear(2, 2)


def test_each_name_that_matches_nothing_is_named():
    require_known(["b"], ["a", "b"], "there is no")
    with pytest.raises(DataError, match=r"there is no 'x', 'cee'; did you mean 'Cees'\?; expected one of b, Cees$"):
        require_known(["b", "x", "cee"], ["b", "Cees"], "there is no")
    model = Model()
    freeze_parameters(model, ["head"])
    with pytest.raises(
        UserError, match=r"no parameter or module 'hed'; did you mean 'head'\?, 'encodr'; did you mean 'encoder'\?"
    ):
        freeze_parameters(model, ["hed", "encoder", "encodr"])
    assert [one.requires_grad for one in model.parameters()] == [True, True, False, False]
    expected = r"hidden: Model has no module 'hed'; did you mean 'head'\?, 'x'; see vaak model show"
    with pytest.raises(UserError, match=expected), captured(model, ["encoder", "hed", "x"]):
        pass


def test_patterns_of_weights_that_match_nothing_name_the_nearest():
    parameters = trained_parameters(Model())
    groups = [{"match": r"^head", "lr_scale": 2.0}, {"match": "encoder.wieght", "lr_scale": 2.0}]
    with pytest.raises(UserError, match=r"groups: 'encoder.wieght' matches no trained .*mean 'encoder.weight'\?"):
        check_groups(parameters, OptimizerConfig.model_validate({"groups": groups}))
    with pytest.raises(UserError, match=r"k: 'hed.bias' matches no parameter; .*did you mean 'head.bias'\?"):
        compile_pattern("hed.bias", [one.name for one in parameters], "k")
