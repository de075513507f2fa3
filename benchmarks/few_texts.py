"""How many texts a classifier needs before a pretrained encoder no longer helps: baselines on parts of clinc150.

    python benchmarks/few_texts.py ENCODER DATA     ENCODER: a folder such as MiniLM's; DATA: .../clinc150

Fifteen intents are drawn, and a few training texts of each; the figures are those of ``vaak baseline`` on all
validation texts of these intents: TF-IDF with a linear SVM, and logistic regression on the encoder's mean vectors.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

INTENTS = 15


def draw(data: Path, folder: Path, number: int, seed: int) -> None:
    """Write ``number`` training texts of each of the drawn intents, and their validation texts."""
    splits = {split: json.loads((data / f"{split}.json").read_text()) for split in ("train", "valid")}
    rng = random.Random(seed)
    intents = rng.sample(sorted({row["label"] for row in splits["train"]}), INTENTS)
    for split, rows in splits.items():
        kept = []
        for intent in intents:
            own = [{"text": row["text"], "label": row["label"]} for row in rows if row["label"] == intent]
            kept += rng.sample(own, min(number, len(own))) if split == "train" else own
        (folder / f"{split}.json").write_text(json.dumps(kept))


def main() -> None:
    """Print a line for each number of texts, with the accuracies of all seeds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("encoder", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--numbers", type=int, nargs="+", default=[4, 20, 100], help="training texts of each intent")
    parser.add_argument("--max-length", type=int, default=64)
    asked = parser.parse_args()
    for number in asked.numbers:
        found: dict[str, list[float]] = {}
        for seed in range(asked.seeds):
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                draw(asked.data, folder, number, seed)
                config = folder / "few.yml"
                config.write_text(
                    f"task: classification\nname: few\nrun_dir: {folder}/run\n"
                    f"model: {{architecture: transformer, pretrained_model: {asked.encoder}, pooling: mean}}\n"
                    f"data: {{max_length: {asked.max_length}, corpus: {{type: files, train: [{folder}/train.json], "
                    f"valid: [{folder}/valid.json], label_columns: [label]}}}}\n"
                )
                command = [sys.executable, "-m", "vaak", "baseline", str(config), "--json"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    raise SystemExit(done.stderr)
                for method, figures in json.loads(done.stdout.splitlines()[-1])["figures"].items():
                    found.setdefault(method, []).append(100 * figures["accuracy"])
        listed = "; ".join(f"{method} {' '.join(f'{one:.1f}' for one in values)}" for method, values in found.items())
        print(f"{number} texts of each of {INTENTS} intents: {listed}", flush=True)


if __name__ == "__main__":
    main()
