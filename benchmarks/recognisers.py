"""Word error rates of several recognisers on the test split of one, with intervals, in total and by group.

    python benchmarks/recognisers.py runs/digits base=runs/digits-base fine-tuned=runs/digits …

Intervals hold 95 % of 1,000 bootstrap samples of utterances.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from vaak.runs.open_run import open_run
from vaak.scoring.word_errors import ErrorRates, TextScores, score_texts
from vaak.tasks.asr.data import AsrDataset
from vaak.tasks.asr.utterances import Utterances


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="the run whose test split is read")
    parser.add_argument("runs", nargs="+", metavar="NAME=RUN")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(0)
    utterances: Utterances = open_run(options.data, device="cpu").task.prepared.utterances("test")
    found = {name: scores_of(Path(run), utterances) for name, _, run in (one.partition("=") for one in options.runs)}
    if options.json:
        print(json.dumps({name: scores.to_json() for name, scores in found.items()}))
        return
    groups = sorted({group for scores in found.values() for group in scores.groups})
    print(f"{len(utterances)} utterances; WER, %\n\n| | all | {' | '.join(groups)} |\n|---|---|{'---|' * len(groups)}")
    for name, scores in found.items():
        print(f"| {name} | {' | '.join(map(in_words, [scores.total, *map(scores.groups.__getitem__, groups)]))} |")


def scores_of(run: Path, utterances: Utterances) -> TextScores:
    """The error rates of a run's transcripts of utterances, which needn't be its own."""
    opened = open_run(run, device="cpu")
    transcriber = opened.task.transcriber(opened.model)
    dataset = AsrDataset(utterances, transcriber.vocabulary, opened.task.features, opened.task.audio)
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(len(utterances))]
    texts = transcriber.texts(np.stack([dataset.compute_features(one) for one in examples]))
    names = [one.name for one in examples]
    references = dict(zip(names, (one.text for one in examples), strict=True))
    groups = dict(zip(names, (one.group for one in examples), strict=True))
    return score_texts(references, dict(zip(names, texts, strict=True)), groups)


def in_words(rates: ErrorRates) -> str:
    """A rate and its interval, in percent."""
    assert rates.wer is not None
    assert rates.wer_interval is not None
    low, high = rates.wer_interval
    return f"{100 * rates.wer:.1f} ({100 * low:.1f}–{100 * high:.1f})"


if __name__ == "__main__":
    main()
