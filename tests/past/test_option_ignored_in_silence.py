"""An option was accepted and had no effect: nobody was told."""

from __future__ import annotations

import pytest

from vaak.config.load import load
from vaak.config.show.resolved import as_yaml

TOKENS = "task: lm\ntraining:\n  batching: {type: bucketed, max_tokens: 512}\n"
SECONDS = "task: diarization\ntraining:\n  batching: {type: bucketed, max_duration: 60}\n"


@pytest.fixture
def warnings(tmp_path):
    """A function from YAML text and overrides to what loading it warns of."""

    def said(text, *overrides):
        (tmp_path / "run.yml").write_text(text)
        return load([tmp_path / "run.yml"], overrides).warnings

    return said


@pytest.mark.parametrize(
    ("text", "budget"), [(TOKENS, r"batching.max_tokens (512)"), (SECONDS, "batching.max_duration (60.0)")]
)
def test_batch_size_beside_a_budget(warnings, text, budget):
    decides = f"{budget} decides how many rows a training batch has"
    assert warnings(text) == []
    (said,) = warnings(f"{text}  batch_size: 7\n")
    assert said.endswith(f"run.yml:4: training.batch_size: {decides}; it is only the rows of an evaluation batch")
    (said,) = warnings(text, "batch_size=7", "training.validation.batch_size=3")
    assert said == f"command line: training.batch_size: {decides}; nothing reads it"
    (said,) = warnings(text, "batch_size=7", "training.curriculum=length")
    assert said.endswith("it is only the rows of an evaluation batch and the fewest examples of a curriculum")


def test_batch_size_is_read_without_a_budget(warnings):
    for batching in ("{type: bucketed, num_buckets: 4}", "fixed", "{type: packed}"):
        assert warnings(f"task: lm\ntraining:\n  batching: {batching}\n  batch_size: 7\n") == []


def test_a_resolved_configuration_warns_of_nothing_the_user_did_not_give(warnings, tmp_path):
    (tmp_path / "run.yml").write_text(TOKENS)
    resolved = as_yaml(load([tmp_path / "run.yml"]).experiment)
    assert warnings(resolved) == []
