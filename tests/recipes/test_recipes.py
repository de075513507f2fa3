"""Every YAML that is shipped loads; those that can be tried quickly train through the real command to a known loss.

``expected.json`` has, for each of these, what is put over the recipe to make it quick, and the loss of its last step.
Machines differ in their last digits, and training magnifies that: the tolerance is for this, not for changes of the
arithmetic, which move a loss further. Where numbers are meant to change, write down the new ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from vaak.config.load import load

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = sorted(str(path.relative_to(REPOSITORY)) for path in (REPOSITORY / "configs").rglob("*.yml"))
EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("expected.json").read_text())
LOADED_ONLY = {"configs/comprehensive_all_options.yml"}


def test_every_recipe_is_known_here():
    assert set(RECIPES) == LOADED_ONLY | set(EXPECTED)


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_loads(recipe: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VAAK_DATA", "anywhere")
    loaded = load([REPOSITORY / recipe])
    assert loaded.warnings == [] or recipe in LOADED_ONLY


@pytest.mark.parametrize("recipe", EXPECTED)
def test_it_trains_to_its_loss(recipe: str, tmp_path: Path, vaak_data: Callable[[str], Path]):
    expected = EXPECTED[recipe]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if expected["data"]:
        environment["VAAK_DATA"] = str(vaak_data(expected["data"]).parent)
    overrides = [text.replace("${VAAK_DATA}", environment.get("VAAK_DATA", "")) for text in expected["overrides"]]
    command = [sys.executable, "-c", "from vaak.cli.main import main; main()", "train", str(REPOSITORY / recipe)]
    done = subprocess.run(
        [*command, f"run_dir={tmp_path / 'run'}", "training.device=cpu", "training.logging.interval=1", *overrides],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    losses = [record["loss"] for record in records if record["kind"] == "step"]
    assert losses[-1] == pytest.approx(expected["loss"], abs=expected["tolerance"])
    assert losses[0] - losses[-1] > 10 * expected["tolerance"]
