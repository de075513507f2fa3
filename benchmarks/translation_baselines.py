"""Scores that a translator has to beat, on any files of pairs (``vaak baseline`` gives those of a recipe's own data).

    python benchmarks/translation_baselines.py --train A.jsonl B.jsonl --test C.jsonl D.jsonl

Files are JSON lines; a row of the table for each test file and each baseline of ``vaak.tasks.seq2seq.metrics``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from vaak.tasks.seq2seq import metrics
from vaak.tasks.seq2seq.metrics import Pair, scores, translators
from vaak.text.tokenizer import normalise


def read_pairs(path: Path, source: str, target: str) -> list[Pair]:
    """The pairs of a file; a target that is a list holds several references."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    several = ((row[source], row[target] if isinstance(row[target], list) else [row[target]]) for row in rows)
    return [(normalise(text), [normalise(reference) for reference in references]) for text, references in several]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--test", type=Path, nargs="+", required=True)
    parser.add_argument("--source", default="en", help="key of the source")
    parser.add_argument("--target", default="hi", help="key of the target")
    parser.add_argument("--rounds", type=int, default=5, help="of expectation-maximisation")
    options = parser.parse_args()
    metrics.MOST_SEARCHED = 1_000_000_000
    training = [pair for path in options.train for pair in read_pairs(path, options.source, options.target)]
    tests = {path.name: read_pairs(path, options.source, options.target) for path in options.test}
    if len(tests) > 1:
        tests["all"] = [pair for pairs in tests.values() for pair in pairs]
    print("| chrF / chrF++ / BLEU | " + " | ".join(f"{name} ({len(pairs)})" for name, pairs in tests.items()) + " |")
    print("|---" * (len(tests) + 1) + "|")
    for name, translate in translators(training, options.rounds).items():
        found = [scores(translate, pairs) for pairs in tests.values()]
        cells = [f"{one['chrf']:.2f} / {one['chrf_plus_plus']:.2f} / {one['bleu']:.2f}" for one in found]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
