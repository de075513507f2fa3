"""Intents of clinc150 (Larson et al. 2019) by several small models: trained, evaluated, and compared; a markdown table.

    export VAAK_DATA=FOLDER
    python benchmarks/clinc.py
    python benchmarks/clinc.py --only cnn transformer --folder runs/trial training.epochs=1

Every model is trained once, one after another; started again, what is done is kept and what was cut is resumed. All are
trained on the same texts and read them by the same words, and all have an output for the domain, too: where only the
intent is to be learned, its loss has no weight. Each row is compared with the one that it differs from in one thing, by
``vaak compare`` (approximate randomisation of the 4,500 test texts, p-values corrected for all that have this
baseline); the figure is the accuracy of the intent.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from vaak.config.load import load
from vaak.runs.evaluate import evaluate_run
from vaak.runs.open_run import open_run
from vaak.runs.start import train
from vaak.study.compare import Comparison, Examples, compare_runs, evaluate_examples

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "classification"
METRIC = "accuracy/label"
INTENT, BOTH = "model.label_weights=[1, 0]", "model.label_weights=[1, 1]"
AUGMENTED = "data.augmentation={enabled: true, techniques: [random_swap, random_deletion], probability: 0.1}"
SMALL = ("model.embed_size=32", "model.num_filters=32", INTENT)
TAUGHT = "distillation={{teacher: '{folder}/cnn', temperature: 2.0, alpha: 0.7}}"


@dataclass(frozen=True)
class Model:
    """A row of the table: its recipe, what is put over it, and the row that it is compared with."""

    title: str
    recipe: str
    options: tuple[str, ...]
    baseline: str | None = None


MODELS = {
    "cnn": Model("TextCNN", "clinc150", (INTENT,)),
    "cnn-augmented": Model("– with augmentation", "clinc150", (INTENT, AUGMENTED), "cnn"),
    "cnn-domains": Model("– and the domain", "clinc150", (BOTH,), "cnn"),
    "small": Model("TextCNN, a quarter as wide", "clinc150", SMALL, "cnn"),
    "small-taught": Model("– taught by the TextCNN", "clinc150", (*SMALL, TAUGHT), "small"),
    "transformer": Model("transformer", "clinc150_transformer", (INTENT,), "cnn"),
    "transformer-swaps": Model("– with swaps, too", "clinc150_transformer", (INTENT, AUGMENTED), "transformer"),
    "transformer-domains": Model("– and the domain", "clinc150_transformer", (BOTH,), "transformer"),
    "transformer-taught": Model(  # a teacher that reads other batches can't follow texts that change
        "– taught by the TextCNN, no deletions",
        "clinc150_transformer",
        (INTENT, TAUGHT, "data.augmentation.enabled=false"),
        "transformer",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="options of all runs")
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--folder", type=Path, default=Path("runs/clinc"))
    arguments = parser.parse_args()
    for name in arguments.only:
        begun = time.perf_counter()
        train(load([CONFIGS / f"{MODELS[name].recipe}.yml"], _options(name, arguments.folder, arguments.overrides)))
        print(f"{name}: {(time.perf_counter() - begun) / 60:.1f} minutes", flush=True)
    print(table(arguments.folder, arguments.only))


def _options(name: str, folder: Path, overrides: list[str]) -> list[str]:
    own = [option.format(folder=folder) if option == TAUGHT else option for option in MODELS[name].options]
    best = f"training.checkpoint={{metric: val_{METRIC}, mode: max, resume: auto}}"
    return [f"name={name}", f"run_dir={folder / name}", best, "training.logging.tensorboard=false", *own, *overrides]


def table(folder: Path, names: list[str]) -> str:
    """The models that were trained, in markdown."""
    examples = {name: evaluate_examples(folder / name, [], [], "test", "cpu") for name in names}
    compared = comparisons(examples)
    titles = ("", "parameters", "accuracy", "difference, points (95 %)", "p", "domain", "out-of-scope AUROC")
    lines = [f"| {' | '.join(titles)} |", f"|{'---|' * len(titles)}"]
    for name in names:
        model, metrics = open_run(folder / name, device="cpu").model, examples[name].figures
        outside = evaluate_run(folder / name, [], [], ["out_of_scope"], "cpu")["metrics"]["out_of_scope_auroc"]
        size = sum(parameter.numel() for parameter in model.parameters())
        domain = f"{100 * metrics['accuracy/domain']:.1f}" if BOTH in MODELS[name].options else "–"
        cells = [MODELS[name].title, f"{size:,}", f"{100 * metrics[METRIC]:.1f}", *_difference(compared.get(name))]
        lines.append(f"| {' | '.join([*cells, domain, f'{outside:.3f}'])} |")
    return "\n".join(lines)


def comparisons(examples: dict[str, Examples]) -> dict[str, Comparison]:
    """Each model against its baseline, if that was trained too."""
    groups: dict[str, list[str]] = defaultdict(list)
    for name in examples:
        if (baseline := MODELS[name].baseline) in examples:
            groups[str(baseline)].append(name)
    found: dict[str, Comparison] = {}
    for baseline, names in groups.items():
        report = compare_runs([examples[baseline], *(examples[name] for name in names)], METRIC)
        found |= dict(zip(names, report.comparisons, strict=True))
    return found


def _difference(found: Comparison | None) -> tuple[str, str]:
    if found is None:
        return "–", "–"
    low, high = (100 * limit for limit in found.interval)
    return f"{100 * found.difference:+.1f} ({low:+.1f} … {high:+.1f})", f"{found.p_value:.4f}"


if __name__ == "__main__":
    main()
