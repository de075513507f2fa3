"""Each option of each task, varied alone in a tiny run, changes something, or loading it says that it doesn't.

An option that is read in some circumstances only is varied in those; that it says so in others is for the tests of
the checks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest

from option_bases import BASES, TASKS
from option_files import sweep_of
from option_sweep import Sweep, candidates, differences, leaf_options, own_types, type_override, value_at
from option_tables import CIRCUMSTANCES, LOOP, OF_A_TASK
from option_values import VALUES, VALUES_OF_A_TASK
from vaak.core.errors import UserError

UNSEEN = {
    "task": "another task is another configuration",
    "model.name": "a name for people, documented as having no effect",
    "data.decoding.condition_on_previous": "read where long recordings are transcribed, which a training run doesn't",
    "tts/data.max_unknown": "all of these texts can be spoken; test_tts_data.py has those that can't",
    "training.logging.examples": "evaluations of these runs write nothing; test_pictures.py has it",
}
"""Options, or one task's alone, whose effect a tiny run on a CPU can't show, each with the reason."""
UNSEEN |= {
    f"{table}.dialect.{name}": "the data of these runs are not tables; test_tables.py varies it"
    for table in ("data.corpus", "datasets.0")
    for name in ("delimiter", "quotes", "encoding")
}

BY_MEL = tuple(f"global_config.{name}=1" for name in ("sampling_rate", "num_mel_bins", "frame_shift"))
REFUSED = {
    "diarization": ("global_config.mel={}", "global_config.pitch={}"),
    "tts": ("datasets.0.conversations={}", *BY_MEL),
    "vocoder": ("datasets.0.conversations={}", *BY_MEL),
    "classification": ("model.word_vectors={path: vectors.txt}",),
    "cnn": ("model.lora={}",),
    "asr": ("datasets.0.conversations={}", "data.tokenizer.options={}"),
}
"""Sections that a task doesn't have, and options that follow from others."""

QUICK = ("model.window", "training.optimizer.lr")
"""The only options that are varied in the quick tests."""


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory) -> dict[str, Sweep]:
    """Of each task that was asked for."""

    class Made(dict[str, Sweep]):
        def __missing__(self, task: str) -> Sweep:
            self[task] = sweep_of(task, tmp_path_factory.mktemp(task))
            return self[task]

    return Made()


def _circumstances(task: str, key: str) -> tuple[str, ...]:
    if (task, key) in OF_A_TASK:
        return OF_A_TASK[task, key]
    names = [name for name in CIRCUMSTANCES if key == name or key.startswith(f"{name}.")]
    return CIRCUMSTANCES[max(names, key=len)] if names else ()


def _options() -> Iterator[Any]:
    for task in BASES:
        for key, annotation, section in leaf_options(TASKS.get(task, task)):
            of_the_loop = task != "lm" and key.partition(".")[0] in LOOP
            if of_the_loop or (get_origin(annotation) is Literal and len(get_args(annotation)) == 1):
                continue
            unread = (*UNSEEN, *(override.partition("=")[0] for override in REFUSED.get(task, ())))
            names = (f"{key}.", f"{task}/{key}.")
            unseen = any(one.startswith(f"{name}.") for name in unread for one in names)
            if not unseen and key not in ("global_config", "datasets"):
                marks = () if task == "lm" and key in QUICK else pytest.mark.slow
                yield pytest.param(task, key, annotation, section, id=f"{task}-{key}", marks=marks)


def _in(folder: Path, value: Any) -> Any:
    return json.loads(json.dumps(value).replace("FOLDER", str(folder)))


@pytest.mark.parametrize(("task", "key", "annotation", "section"), list(_options()))
def test_an_option_acts_or_says_that_it_does_not(sweeps, task, key, annotation, section):
    sweep = sweeps[task]
    data = sweep.file.parent
    own = tuple(_in(data, list(_circumstances(task, key))))
    try:
        loaded = sweep.load(own)
    except UserError:
        loaded = None
    circumstances = (*own, *type_override(key, section, loaded))
    present = value_at(sweep.load(circumstances), key)
    metadata = section.model_fields[key.rpartition(".")[2]].metadata
    values = own_types(key, section, present) or candidates(annotation, present, metadata)
    tried = {}
    given = VALUES_OF_A_TASK.get((task, key), VALUES.get(key))
    for value in _in(data, values if given is None else [given]):
        tried[json.dumps(value)] = effect = sweep.effect(key, value, circumstances)
        if effect is not None and (given is not None or not effect.startswith("refused")):
            return
    pytest.fail(f"{key} is silent in {circumstances}, where it is {present!r}: {tried or 'no value to try'}")


@pytest.mark.slow
@pytest.mark.parametrize(("task", "override"), [(task, one) for task, given in REFUSED.items() for one in given])
def test_what_a_task_does_not_have_is_refused(sweeps, task, override):
    named = override.partition("=")[0].rpartition(".")[2]
    with pytest.raises(UserError, match=rf"\b{named}\b|global_config.feature_type: mel is for speech synthesis"):
        sweeps[task].load([override])


@pytest.mark.slow
@pytest.mark.parametrize("task", BASES)
def test_where_nothing_is_varied_nothing_differs(sweeps, task):
    """Otherwise, a difference would say nothing of an option."""
    sweep = sweeps[task]
    first, second = sweep.without(()), sweep.observe(sweep.load(()))
    for name in differences(first, second):
        assert second.get(name) == first.get(name)
