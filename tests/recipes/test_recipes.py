"""Every YAML that is shipped loads; those that can be tried quickly train through the real command to a known loss.

``expected.json`` has, for each of these, what is put over the recipe to make it quick, and the loss of its last step.
Machines differ in their last digits, and training magnifies that: the tolerance is for this, not for changes of the
arithmetic, which move a loss further. Where numbers are meant to change, write down the new ones.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from commands import Commands
from recipe_sizes import OF_A_TASK, QUICK, SIZES
from vaak.config.load import load
from vaak.config.reference import all_options
from vaak.config.tasks import TASKS
from vaak.runs.start import temporary_trainer

REPOSITORY = Path(__file__).resolve().parents[2]
RECIPES = sorted(
    str(path.relative_to(REPOSITORY))
    for path in (REPOSITORY / "configs").rglob("*.yml")
    if "pipelines" not in path.parts  # options of pipelines (tests/unit/tasks/asr/stages/test_stage_options.py)
)
EXPECTED: dict[str, Any] = json.loads(Path(__file__).with_name("expected.json").read_text())
ALL_OPTIONS = "configs/comprehensive_all_options.yml"
OF_SEED_1 = {ALL_OPTIONS} | {
    f"configs/{name}.yml"
    for name in (
        "training_simple", "training_example", "training_minimal", "encoder_model", "decoder_model",
        "encoder_decoder_model", "full_experiment", "audio_experiment",
    )
}  # fmt: skip
ON_PURPOSE = (
    "takes less time than softmax from about",  # linear attention at the length of a sentence
    "init_except: init_from is null",  # ami.yml is started with it on the command line
)
LIKE_OTHERS = (
    "configs/diarization/mini_librispeech.yml", "configs/diarization/one_to_four.yml",
    "configs/classification/subjectivity.yml", "configs/diarization/ami.yml", "configs/tts/builtin_voice.yml",
    "configs/vocoder/builtin_voice.yml", "configs/multitask/clinc_intent_domain.yml", "configs/lm/hindi.yml",
    "configs/diarization/read_speech.yml", "configs/seq2seq/en_hi_performer.yml", "configs/asr/digits.yml",
    "configs/asr/digits_base.yml", "configs/tts/ljspeech_mini.yml", "configs/classification/sentence_polarity.yml",
    "configs/classification/clinc150_transformer.yml", "configs/classification/clinc150.yml",
    "configs/seq2seq/en_hi.yml", "configs/asr/digits_ctc.yml", "configs/asr/ctc.yml",
    "configs/lm/preferences.yml", "configs/multitask/quickstart.yml",
)  # fmt: skip
"""Much the same network or data as another recipe's, or as a case of the contract; `make test-slow` trains them."""


def test_every_recipe_is_known_here():
    assert set(RECIPES) == OF_SEED_1 | set(EXPECTED)


@pytest.mark.parametrize("recipe", RECIPES)
def test_it_loads(recipe: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VAAK_DATA", "anywhere")
    loaded = load([REPOSITORY / recipe])
    said = [line for line in loaded.warnings if not any(words in line for words in ON_PURPOSE)]
    assert said == [] or recipe == ALL_OPTIONS


ALIKE = {
    f"configs/{name}.yml"
    for name in ("training_simple", "training_example", "full_experiment", "audio_experiment", "decoder_model")
}
"""Their networks are those of other recipes, of ``--all lm`` or of a case of the contract; all are loaded each time."""


@pytest.mark.parametrize(
    "recipe",
    [
        *(pytest.param(name, marks=[pytest.mark.slow] if name in ALIKE else []) for name in sorted(OF_SEED_1)),
        *(
            pytest.param(f"--all {task}", marks=[] if task == "lm" else [pytest.mark.slow])
            for task in TASKS
            if task != "seq2seq"
        ),
    ],
)
def test_it_trains_in_small(recipe: str, tmp_path: Path, commands: Commands):
    """The recipes of the universal pipeline, and every task with each of its options at its default.

    Of the latter, one is quick: all are loaded in tests/unit/config, and the quick starts are trained below.
    """
    if recipe.startswith("--all "):
        file = tmp_path / "all_options.yml"
        file.write_text(all_options(recipe.removeprefix("--all ")), encoding="utf-8")
        recipe = str(file)
    experiment = load([REPOSITORY / recipe]).experiment
    sizes = SIZES[experiment.task]
    if getattr(experiment.data, "target_tokenizer", None) is not None:
        sizes += ("data.target_tokenizer.vocab_size=500",)
    losses = trained(commands, recipe, tmp_path / "run", [*sizes, *QUICK, *OF_A_TASK.get(experiment.task, ())])
    assert len(losses) == 4
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(
    "recipe", [pytest.param(name, marks=pytest.mark.slow) if name in LIKE_OTHERS else name for name in EXPECTED]
)
def test_it_trains_to_its_loss(
    recipe: str, tmp_path: Path, vaak_data: Callable[[str], Path], commands: Commands, monkeypatch: pytest.MonkeyPatch
):
    expected = EXPECTED[recipe]
    if expected["data"]:
        monkeypatch.setenv("VAAK_DATA", str(vaak_data(expected["data"]).parent))
    places = {"${VAAK_DATA}": os.environ.get("VAAK_DATA", ""), "REPOSITORY": str(REPOSITORY)}
    overrides = expected["overrides"]
    for name, place in places.items():
        overrides = [text.replace(name, place) for text in overrides]
    losses = trained(commands, recipe, tmp_path / "run", overrides)
    assert losses[-1] == pytest.approx(expected["loss"], abs=expected["tolerance"])
    assert losses[0] - losses[-1] > 10 * expected["tolerance"]


def trained(commands: Commands, recipe: str, run: Path, overrides: list[str]) -> list[float]:
    """The loss of each step of a recipe trained through the real command."""
    quick = (f"run_dir={run}", "training.device=cpu", "training.logging.interval=1")
    environment = {name: value for name, value in os.environ.items() if name == "VAAK_DATA"}
    arguments: list[str | Path] = ["train", REPOSITORY / recipe, *quick, *overrides]
    ended = commands.start(arguments, run.parent, environment, circumstances=["without pictures"]).wait(600)
    assert ended.status == 0, ended.errors
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [record["loss"] for record in records if record["kind"] == "step"]


@pytest.mark.slow
def test_the_quick_start_pads_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Without bucketing, 52 % of its batches were padding."""
    monkeypatch.chdir(tmp_path)
    fewer = ("data.corpus.num_sentences=1000", "data.tokenizer.vocab_size=500", "training.device=cpu")
    with temporary_trainer(load([REPOSITORY / "configs/quickstart.yml"], fewer)) as trainer:
        assert trainer.padding_waste < 0.1
