"""What hotwords find and cost, and whether a word's confidence says that it is right, of a Whisper or a CTC model.

    python benchmarks/words.py hotwords MODEL MANIFEST [--number 20] [--weights 2 4 8] [--beam 5]
    python benchmarks/words.py confidences MODEL MANIFEST [--split test]

MODEL is a run or a pretrained base, MANIFEST has a line of JSON with ``audio`` and ``text`` for each recording; those
without a text are left out.

The hotwords are the words of the first recordings that have any which a recogniser seldom knows: six letters
(--letters) or more, and at least two of the model's tokens in lower and in title case; distractors are such words of
other recordings, 18 at most. The last column is the time of the processor, by that of the same search without hotwords.

A confidence is compared with whether jiwer's alignment has the word in the reference, too. AUC is the probability that
a right word has more of it than a wrong one, with its interval (95 % of 1,000 bootstrap samples of recordings).
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jiwer
import numpy as np

from vaak.runs.open_run import OpenedRun, open_run
from vaak.scoring.normalisers import normaliser

MOST_DISTRACTORS, SAMPLES = 18, 1000
BINS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
Normalise = Callable[[str], str]


class Recording(NamedTuple):
    """An audio file and its text."""

    path: Path
    text: str


class Judged(NamedTuple):
    """A word's confidence, and whether it was spoken."""

    confidence: float
    is_right: bool


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("hotwords", "confidences"))
    parser.add_argument("model")
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--number", type=int, default=20, help="hotwords: number of recordings that have some")
    parser.add_argument("--letters", type=int, default=6, help="hotwords: of the shortest one")
    parser.add_argument("--weights", type=float, nargs="+", default=[2.0, 4.0, 8.0])
    parser.add_argument("--beam", type=int, default=5)
    parser.add_argument("--split", help="of a run: only lines of the manifest that this split of its own has")
    parser.add_argument("--normaliser", default="whisper-english")
    options = parser.parse_args()
    opened, normalise = open_run(Path(options.model), device="cpu"), normaliser(options.normaliser)
    recordings = [*read_manifest(options.manifest, list_names(opened, options.split))]
    if options.what == "hotwords":
        show_hotwords(opened, recordings, normalise, options)
    else:
        show_confidences(opened, recordings, normalise)


def list_names(opened: OpenedRun, split: str | None) -> set[str] | None:
    """The names of the utterances of a run's split; None for all."""
    if split is None:
        return None
    dataset, rng = opened.task.dataset(split), np.random.default_rng(0)
    return {dataset.example(index, rng).name for index in range(len(dataset.lengths))}


def read_manifest(file: Path, names: set[str] | None) -> Iterator[Recording]:
    """The recordings of a manifest that have a text, and one of the ``names``."""
    for line in file.read_text(encoding="utf-8").splitlines():
        about = json.loads(line)
        if about.get("text") and (names is None or about.get("id") in names):
            yield Recording(file.parent / about["audio"], about["text"])


def count_words(texts: Iterable[str], normalise: Normalise) -> Counter[str]:
    return Counter(word for text in texts for word in normalise(text).split())


def choose_hotwords(
    opened: OpenedRun, recordings: list[Recording], normalise: Normalise, number: int, letters: int
) -> tuple[list[Recording], list[str], list[str]]:
    """The first recordings with words that are seldom known, those words, and distractors."""
    vocabulary: Any = opened.task.prepared.vocabulary

    def is_seldom_known(word: str) -> bool:
        return len(word) >= letters and all(len(vocabulary.encode(one)) > 1 for one in (word.lower(), word.title()))

    chosen, words = list[Recording](), list[str]()
    for one in recordings:
        found = [word for word in normalise(one.text).split() if is_seldom_known(word)]
        if found and len(chosen) < number:
            chosen.append(one)
            words += found
    said = count_words((one.text for one in chosen), normalise)
    rest = count_words((one.text for one in recordings if one not in chosen), normalise)
    others = sorted(word for word in rest if is_seldom_known(word) and word not in said)
    return chosen, sorted({*words}), others[:MOST_DISTRACTORS]


def show_hotwords(opened: OpenedRun, recordings: list[Recording], normalise: Normalise, options: Any) -> None:
    chosen, words, others = choose_hotwords(opened, recordings, normalise, options.number, options.letters)
    references = [normalise(one.text) for one in chosen]
    said = count_words(references, normalise)
    times = sum(said[word] for word in words)
    print(f"{len(chosen)} recordings, {sum(said.values())} words, {len(words)} hotwords, {len(others)} distractors\n")
    print(f"| search | `hotword_weight` | hotwords found, of {times} | written though not said | WER | time |")
    print("|---|---|---|---|---|---|")
    methods = ["beam"] if opened.experiment.model.architecture == "ctc" else ["greedy", "beam"]
    for method in methods:
        alone = 0.0
        for weight in (None, *options.weights):
            search: dict[str, Any] = {"method": method}
            search |= {"beam_size": options.beam} if method == "beam" else {}
            search |= {} if weight is None else {"hotwords": (*words, *others), "hotword_weight": weight}
            texts, seconds = transcribe(opened, chosen, search)
            alone = alone or seconds
            found = [count_words([text], normalise) for text in texts]
            right = [count_words([one], normalise) for one in references]
            hits = sum(min(has[word], ref[word]) for has, ref in zip(found, right, strict=True) for word in words)
            known = (*words, *others)
            extra = sum(max(0, has[word] - ref[word]) for has, ref in zip(found, right, strict=True) for word in known)
            wer = 100 * jiwer.wer(references, [normalise(text) for text in texts])
            name = method if method == "greedy" else f"beam of {options.beam}"
            shown = "none" if weight is None else f"{weight:g}"
            print(f"| {name} | {shown} | {hits} | {extra} | {wer:.1f} % | {seconds / alone:.2f} |", flush=True)


def transcribe(opened: OpenedRun, recordings: list[Recording], search: dict[str, Any]) -> tuple[list[str], float]:
    """The text of each recording, and the seconds of the processor that all take."""
    transcriber = opened.task.transcriber(opened.model, **search)
    begin = time.process_time()
    found = [one.text for one in transcriber.transcribe_files([one.path for one in recordings])]
    return found, time.process_time() - begin


def judge_words(opened: OpenedRun, recordings: list[Recording], normalise: Normalise) -> list[list[Judged]]:
    """Every word that is written of each recording."""
    transcriber = opened.task.transcriber(opened.model, timestamps="word")
    found = []
    for one, transcript in zip(recordings, transcriber.transcribe_files([one.path for one in recordings]), strict=True):
        pairs = [
            (token, probability)
            for segment in transcript.segments
            for word, probability in zip(segment.words, segment.probabilities, strict=True)
            for token in normalise(word.text).split()
        ]
        reference = normalise(one.text)
        right = set[int]()
        if pairs and reference:
            for part in jiwer.process_words(reference, " ".join(token for token, _ in pairs)).alignments[0]:
                right.update(range(part.hyp_start_idx, part.hyp_end_idx) if part.type == "equal" else ())
        found.append([Judged(probability, place in right) for place, (_, probability) in enumerate(pairs)])
    return found


def compute_auc(words: Sequence[Judged]) -> float | None:
    """The probability that a right word has more confidence than a wrong one; of equal ones, half."""
    right, wrong = (np.array([one.confidence for one in words if one.is_right == kind]) for kind in (True, False))
    if not len(right) or not len(wrong):
        return None
    more = np.sign(right[:, None] - wrong[None])
    return float((more.mean() + 1) / 2)


def show_confidences(opened: OpenedRun, recordings: list[Recording], normalise: Normalise) -> None:
    judged = judge_words(opened, recordings, normalise)
    words = [*itertools.chain.from_iterable(judged)]
    rng, samples = np.random.default_rng(0), []
    for _ in range(SAMPLES):
        drawn = rng.integers(len(judged), size=len(judged))
        samples.append(compute_auc([*itertools.chain.from_iterable(judged[place] for place in drawn)]))
    known = [one for one in samples if one is not None]
    auc = compute_auc(words)
    wrong = sum(not one.is_right for one in words)
    print(f"| recordings | words | wrong | AUC | 95 % | {' | '.join(f'to {one:g}' for one in BINS[1:])} |")
    print(f"|{'---|' * (len(BINS) + 4)}")
    interval = "" if auc is None else "{:.3f}–{:.3f}".format(*np.percentile(known, [2.5, 97.5]))
    shown = "none is wrong" if auc is None else f"{auc:.3f}"
    parts = []
    for low, high in itertools.pairwise(BINS):
        inside = [one.is_right for one in words if low < one.confidence <= high or (low == 0 == one.confidence)]
        parts.append(f"{100 * sum(inside) / len(inside):.0f} % of {len(inside)}" if inside else "none")
    print(f"| {len(judged)} | {len(words)} | {wrong} | {shown} | {interval} | {' | '.join(parts)} |")


if __name__ == "__main__":
    main()
