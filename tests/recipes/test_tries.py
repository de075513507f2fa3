"""``vaak train FILE --try`` of every recipe: all that would come happens, in seconds of a processor."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

CONFIGS = Path(__file__).parents[2] / "configs"
RECIPES = sorted(path for path in CONFIGS.rglob("*.yml") if "pipelines" not in path.parts)
BEGINS_WITH = {
    "asr/digits.yml": "a run of digits_base.yml",
    "diarization/mini_librispeech.yml": "a download",
}
MOST_SECONDS = 90
"""Of a processor. A quiet one with two cores takes half of these; most recipes need 5 to 30, a voice 45."""


@pytest.mark.slow
@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.relative_to(CONFIGS).as_posix())
def test_a_recipe_is_tried_in_seconds(recipe: Path, tmp_path: Path):
    name = recipe.relative_to(CONFIGS).as_posix()
    if name in BEGINS_WITH:
        pytest.skip(f"it begins with {BEGINS_WITH[name]}")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-c", "from vaak.cli.main import main; main()", "train", str(recipe), "--try"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if "the environment variable VAAK_DATA is not set" in done.stderr:
        pytest.skip("it needs the folder of real data")
    assert done.returncode == 0, done.stderr
    assert "tried: 4 steps, an evaluation of a few examples, a checkpoint; nothing was kept" in done.stdout
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < MOST_SECONDS
    made = "manifests"  # of a corpus, by audio_experiment.yml's output_dir, for each run that reads it
    assert [path.name for path in tmp_path.iterdir() if path.name != made] == []
