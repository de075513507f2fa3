"""Each sentence of docs/migration has a test, named by migration_sentences.json; configurations are tried here.

A row with one statement is shown by the test that it names. Where a row has several, and for the text around the
tables, migration_sentences.json names the test of each: a statement that isn't in it fails here, until somebody
says which test shows it.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import operator
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from vaak.audio.config import AudioConfig
from vaak.config.load import load_layers
from vaak.config.yaml.tree import ConfigError
from vaak.core.significance import ttest_rel
from vaak.data.plan import stratified_sample
from vaak.nn.feed_forward import inner_width
from vaak.study import LRFinder

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "migration").glob("*.md"))
SHOWN = json.loads((Path(__file__).parent / "migration_sentences.json").read_text(encoding="utf-8"))
"""By page, ``[row, statement, test]``."""
BETWEEN = re.compile(r"(?<=[^.])[;.]\s+(?=\S)")


def statements(text: str) -> list[str]:
    """The statements of a text, which end in a full stop or a semicolon."""
    return [one.strip(" .") for one in BETWEEN.split(text.strip()) if one.strip(" .")]


def said_by(page: Path) -> Iterator[tuple[str, str]]:
    """(row, statement) of every row that has several, and ("", statement) of the text outside of tables and code."""
    is_code, paragraph = False, list[str]()
    for line in [*page.read_text(encoding="utf-8").splitlines(), ""]:
        is_code ^= line.startswith("```")
        is_text = not is_code and not line.startswith(("```", "#", "|", "<!--"))
        if is_text and line:
            paragraph.append(line)
        elif paragraph:
            yield from (("", one) for one in statements(" ".join(paragraph)))
            paragraph = []
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 4 and len(found := statements(cells[2])) > 1:
            yield from ((cells[0], one) for one in found)


@functools.cache
def functions_of(file: str) -> set[str]:
    tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_statement_has_its_test(page: Path):
    listed = {(row, statement): test for row, statement, test in SHOWN[page.stem]}
    said = list(said_by(page))
    assert not [one for one in said if one not in listed], "name the test of each in migration_sentences.json"
    assert not [one for one in listed if one not in said], "no longer there: remove it from migration_sentences.json"
    for test in {test for test in listed.values() if test != "no behaviour"}:
        file, _, name = test.partition("::")
        assert name in functions_of(file), test


def test_a_statement_without_a_test_is_found(tmp_path: Path):
    page = tmp_path / "page.md"
    page.write_text(
        "# Title\n\nIt reads e.g. this. It is new.\n\n| `a` | `b` | first; second | `t` |\n| `c` | `d` | one | `t` |\n"
    )
    assert list(said_by(page)) == [
        ("", "It reads e.g"),
        ("", "this"),
        ("", "It is new"),
        ("`a`", "first"),
        ("`a`", "second"),
    ]


DEFAULT = re.compile(r"\| `global_config\.(\w+)` \|[^|]*\|[^|]*?default ([^;,| ]+)")


def test_the_defaults_that_sentences_name():
    """Audio's defaults on the page are those of ``AudioConfig``."""
    found = DEFAULT.findall((ROOT / "docs" / "migration" / "universal-pipeline.md").read_text(encoding="utf-8"))
    assert len(found) > 15
    options, alone = AudioConfig(), load_layers([{"task": "diarization"}]).experiment
    for name, said in found:
        value: Any = getattr(options, name)
        if name == "output_dir":  # ./manifests if none is given
            value = value or "./manifests"
        words = {"None": "null", "True": "true", "False": "false"}.get(str(value), str(value))
        assert words == said.strip("`:"), name
        assert getattr(alone.global_config, name) == getattr(options, name), name


TTS = {"task": "tts", "name": "x"}
LM = {"task": "lm", "name": "x"}
DIARIZER = {"task": "diarization", "name": "x"}
VOICES = {"datasets": [{"name": "voices", "type": "voices"}], "training": {"epochs": 1}}
ERROR, WARNING = "error", "warning"


def lm(**training: Any) -> dict[str, Any]:
    return {**LM, "training": training}


CONFIGURED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    (
        "another batch_size",
        {**LM, "model": {"global_config": {"batch_size": 16}}, "training": {"batch_size": 32}},
        {ERROR: "batch_size"},
    ),
    ("global_config without audio", {**LM, "global_config": {"num_mel_bins": 40}}, {ERROR: "audio"}),
    ("a decoder with audio", {**VOICES, "model": {"model_type": "decoder", "d_model": 16}}, {ERROR: "decoder"}),
    ("an encoder-decoder with audio", {**VOICES, "model": {"model_type": "encoder_decoder"}}, {ERROR: "encoder_dec"}),
    ("linear is for encoders", {**LM, "model": {"attention_type": "linear"}}, {ERROR: "causal_linear"}),
    *(
        (f"attention {name}", {**LM, "model": {"attention_type": name}}, {"model.attention_type": name})
        for name in ("causal_linear", "softmax", "local")
    ),
    ("dither and storage_path", {**DIARIZER, "global_config": {"dither": 0.1, "storage_path": "x"}}, {ERROR: "dither"}),
    *(
        (f"window {name}", {**DIARIZER, "global_config": {"window_type": name}}, {"global_config.window_type": name})
        for name in ("povey", "hanning", "hamming", "rectangular", "blackman")
    ),
    ("the bare patience", lm(early_stopping=3), {"training.early_stopping.patience": 3}),
    ("early_stopping null", lm(early_stopping=None), {"training.early_stopping": None}),
    ("off by default", LM, {"training.early_stopping": None, "training.logging.wandb": False}),
    ("validation.interval_epochs", lm(validation={"interval_epochs": 2}), {"training.validation.interval_epochs": 2}),
    (
        "checkpoint intervals",
        lm(checkpoint={"interval": 3, "interval_epochs": 2, "interval_minutes": 4}),
        {"training.checkpoint.interval": 3, "training.checkpoint.interval_epochs": 2,
         "training.checkpoint.interval_minutes": 4},
    ),
    ("tensorboard is on", LM, {"training.logging.tensorboard": True, "training.checkpoint.interval_epochs": 1}),
    ("no layer draws features", lm(feature_redraw_interval=9), {WARNING: "feature_redraw_interval"}),
    ("eval_knobs of another task", lm(eval_knobs={"label_type": "binary"}), {WARNING: "eval_knobs"}),
    ("eval_knobs.max_duration", {**DIARIZER, "training": {"eval_knobs": {"max_duration": 30.0}}},
     {"training.batching.type": "bucketed", "training.batching.max_duration": 30.0}),
    ("nccl on a CPU", lm(device="cpu", distributed={"backend": "nccl"}), {ERROR: "nccl"}),
    *((f"backend {name}", lm(distributed={"backend": name}), {"training.distributed.backend": name})
      for name in ("nccl", "gloo", None)),
    ("true is fp16", lm(mixed_precision=True), {"training.mixed_precision": "fp16"}),
    ("the bare number is the norm", lm(gradient_clipping=2.0), {"training.gradient_clipping.norm": 2.0}),
    *((f"profiling {how}", lm(profiling=how), {"training.profiling": how}) for how in (True, "trace")),
    *((f"device {name}", lm(device=name), {"training.device": name}) for name in ("auto", "cuda", "mps", "cpu")),
    (
        "the class's name and its arguments",
        lm(scheduler={"type": "CosineAnnealingWarmRestarts", "T_0": 2, "T_mult": 3, "eta_min": 1e-6}),
        {"training.scheduler.type": "cosine_restarts", "training.scheduler.first_cycle_epochs": 2,
         "training.scheduler.cycle_growth": 3, "training.scheduler.min_lr": 1e-6},
    ),
    ("another metric", lm(checkpoint={"metric": "val_accuracy", "mode": "max"}),
     {"training.checkpoint.metric": "val_accuracy", "training.checkpoint.mode": "max"}),
    ("clean-ups", LM, {"training.memory.cleanup_interval": None, "training.memory.manager": True}),
    (
        "what task: tts has of the trainer's",
        TTS,
        {"model.encoder.d_model": 512, "model.decoder.num_layers": 6, "training.optimizer.lr": 1e-4,
         "training.batch_size": 16, "training.performance.gradient_checkpointing": False,
         "training.mixed_precision": "auto", "training.checkpoint.interval_epochs": 1,
         "training.performance.num_workers": None},
    ),
    ("80 % train", LM, {"data.corpus.train_fraction": 0.8, "data.corpus.valid_fraction": 0.1}),
    ("weight_decay", LM, {"training.optimizer.weight_decay": 0.01, "training.logging.interval": 50}),
    ("until_epoch", lm(freeze=[{"match": "stack", "until_epoch": 2}]), {"training.freeze.0.until_epoch": 2}),
    ("a curriculum", lm(curriculum={"difficulty": "length"}), {"training.curriculum.difficulty": "length"}),
    ("flat names", {"task": "lm", "learning_rate": 1e-3, "d_model": 32},
     {"training.optimizer.lr": 1e-3, "model.d_model": 32}),
    ("n_decoder_layers", {**TTS, "n_encoder_layers": 3, "n_decoder_layers": 2},
     {"model.encoder.num_layers": 3, "model.decoder.num_layers": 2}),
]  # fmt: skip


def get(experiment: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        experiment = experiment[int(key)] if key.isdecimal() else operator.attrgetter(key)(experiment)
    return experiment


@pytest.mark.parametrize(("about", "values", "expected"), CONFIGURED, ids=[one[0] for one in CONFIGURED])
def test_a_configuration_is_what_a_sentence_says(about: str, values: dict[str, Any], expected: dict[str, Any]):
    if ERROR in expected:
        with pytest.raises(ConfigError, match=expected[ERROR]):
            load_layers([values])
        return
    loaded = load_layers([values])
    if WARNING in expected:
        assert any(expected[WARNING] in warning for warning in loaded.warnings)
        return
    assert {dotted: get(loaded.experiment, dotted) for dotted in expected} == expected


def test_without_datasets_there_are_built_in_voices():
    task: Any = load_layers([DIARIZER]).task()
    assert [dataset.type for dataset in task.datasets] == ["voices"]


def test_the_smallest_numbers_of_d_ff_are_multiples():
    assert [inner_width(16, d_ff, "gelu") for d_ff in (4, 31, 32, 100)] == [64, 496, 32, 100]


def test_ttest_rel_unpacks_as_scipys():
    first, second = [0.85, 0.87, 0.86, 0.88, 0.85], [0.82, 0.84, 0.83, 0.85, 0.81]
    t_stat, p_value = ttest_rel(first, second)
    theirs = stats.ttest_rel(first, second)
    assert (t_stat, p_value) == pytest.approx((theirs.statistic, theirs.pvalue))


def test_a_loss_that_never_falls_suggests_no_rate():
    model = nn.Linear(2, 1)
    finder = LRFinder(model, torch.optim.SGD(model.parameters(), lr=1e-3), lambda outputs, _: outputs.sum() * 0 + 1.0)
    batches = [(torch.zeros(4, 2), torch.zeros(4, 1)) for _ in range(30)]
    finder.range_test(batches, end_lr=1, num_iter=30)
    assert finder.suggest_lr() is None


def test_a_larger_part_of_the_data_has_all_of_a_smaller_one():
    names, groups = [f"utterance {number}" for number in range(100)], np.array([0] * 30 + [1] * 70)
    parts = [set(stratified_sample(names, groups, size, 42).tolist()) for size in (5, 15, 50, 100)]
    assert all(small < large for small, large in itertools.pairwise(parts))
