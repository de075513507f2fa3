"""The time of a CTC beam search, of Vaak and of pyctcdecode, in turns, by beam and length of the recording.

Frames are drawn: letters one after another with blanks between, as certain as those of a trained model (peaked), or
less so (noisy). Both prune by the same defaults (tokens below e^-5, prefixes e^10 behind the best); ``exact`` is Vaak's
time without. ``÷`` is the ratio of the least processor times, below 1 where Vaak is faster; ``together`` is Vaak's time
of one of 16 recordings that it searches together, and ``others`` are those of them whose text pruning changes. With
--arpa, both use an n-gram model (pyctcdecode needs kenlm). By default, pyctcdecode counts 10 less for each unknown
word; ``equal`` is the ratio to its time without that, as Vaak and KenLM score them. Needs pyctcdecode.

    python benchmarks/ctc_search.py
    python benchmarks/ctc_search.py --arpa words.arpa --beams 16 --frames 250 1000 4000

With a trained model, its frames of a split are searched: the texts that pruning changes, of all, the word error rates
with and without pruning, and both times a recording. --make-arpa writes three-grams of its training texts first.

    python benchmarks/ctc_search.py --model runs/digits-ctc --split test --arpa words.arpa --make-arpa
"""

from __future__ import annotations

import argparse
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vaak.nn.decoding.ctc_beam import CtcBeam
from vaak.nn.decoding.ctc_search import search_rows
from vaak.runs.open_run import open_run
from vaak.scoring.word_errors import count_errors
from vaak.text.ngram import Ngram

LABELS = ("", *"abcdefghijklmnopqrstuvwxyz'", " ")
KINDS = {"peaked": (1.0, 8.0), "noisy": (2.0, 4.0)}
"""The deviation of logits, and what the right one has more."""
ALPHA, BETA, TOGETHER = 0.5, 1.0, 16
DISCOUNT = 0.7
"""Of the counts of n-grams that are written with --make-arpa."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--beams", type=int, nargs="+", default=[16, 64])
    parser.add_argument("--frames", type=int, nargs="+", default=[250, 500, 1000, 2000])
    parser.add_argument("--arpa", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a run with architecture ctc")
    parser.add_argument("--split", default="test")
    parser.add_argument("--make-arpa", action="store_true", help="write --arpa: three-grams of the training texts")
    options = parser.parse_args()
    if options.model is not None:
        compare_on_a_model(options)
        return
    logging.disable(logging.WARNING)  # pyctcdecode's remarks on its vocabulary
    words = [] if options.arpa is None else read_words(options.arpa)
    theirs, model = make_decoder(options.arpa, words), None if options.arpa is None else Ngram(options.arpa)
    equal = theirs if model is None else make_decoder(options.arpa, words, unk_score_offset=0.0)
    ratio = "Vaak, ms | pyctcdecode, ms | Vaak ÷ pyctcdecode | equal"
    print(f"| frames | beam | length | {ratio} | exact, ms | together, ms | others |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for kind in KINDS:
        for beam in options.beams:
            exact = CtcBeam(LABELS, 0, beam, model, ALPHA if model else 0.0, BETA if model else 0.0)
            ours = replace(exact, token_min_logp=-5.0, beam_threshold=10.0)
            for length in options.frames:
                rows = [draw_frames(kind, length, words, seed) for seed in range(TOGETHER)]
                arms: list[Callable[[], Any]] = [
                    partial(search_rows, rows[:1], ours),
                    partial(theirs.decode, rows[0], beam_width=beam),
                    partial(equal.decode, rows[0], beam_width=beam),
                    partial(search_rows, rows[:1], exact),
                    partial(search_rows, rows, ours),
                ]
                own, other, alike, whole, together = race(arms, options.rounds)
                pairs = zip(search_rows(rows, ours), search_rows(rows, exact), strict=True)
                differ = sum(found[0][1] != full[0][1] for found, full in pairs)
                ratios = f"{own:.1f} | {other:.1f} | {own / other:.2f} | {own / alike:.2f}"
                shown = f"{ratios} | {whole:.1f} | {together / TOGETHER:.1f} | {differ}"
                print(f"| {kind} | {beam} | {length} | {shown} |", flush=True)


def compare_on_a_model(options: argparse.Namespace) -> None:
    """Print what pruning changes in the texts of a trained model."""
    opened = open_run(options.model, device="cpu")
    task = opened.task
    transcriber, data = task.transcriber(opened.model, method="beam"), task.dataset(options.split)
    examples = [data.example(index, np.random.default_rng(0)) for index in range(data.num_transcribed)]
    rows = [transcriber.log_probs([one.features])[0] for one in examples]
    if options.make_arpa:
        train = task.dataset("train")
        texts = (train.example(index, np.random.default_rng(0)).text for index in range(train.num_transcribed))
        write_arpa(map(str.split, texts), options.arpa)
    model = None if options.arpa is None else Ngram(options.arpa)
    plain = replace(transcriber.beam, words=model, alpha=ALPHA if model else 0.0, beta=BETA if model else 0.0)
    print("| beam | n-gram | texts that pruning changes | WER pruned, % | WER exact, % | pruned, ms | exact, ms |")
    print("|---|---|---|---|---|---|---|")
    for words in dict.fromkeys([False, model is not None]):
        for beam in options.beams:
            exact = replace(plain, beam_size=beam) if words else replace(transcriber.beam, beam_size=beam)
            ways = (replace(exact, token_min_logp=-5.0, beam_threshold=10.0),
                    replace(exact, token_min_logp=None, beam_threshold=None))  # fmt: skip
            times = race([partial(search_rows, rows, way) for way in ways], options.rounds)
            found = [[transcriber.vocabulary.decode(best[0][1]) for best in search_rows(rows, way)] for way in ways]
            rates = [
                100 * mean_rate([count_errors(task.normalise(one.text), task.normalise(text))
                                 for one, text in zip(examples, texts, strict=True)])
                for texts in found
            ]  # fmt: skip
            changed = sum(one != other for one, other in zip(*found, strict=True))
            shown = " | ".join([*(f"{rate:.2f}" for rate in rates), *(f"{each / len(rows):.1f}" for each in times)])
            print(f"| {beam} | {'yes' if words else 'no'} | {changed} of {len(rows)} | {shown} |", flush=True)


def write_arpa(sentences: Iterable[list[str]], path: Path, order: int = 3) -> None:
    """Write n-grams of words by absolute discounting, whose shorter ones are interpolated: ARPA, as KenLM reads it."""
    counts: list[Counter[tuple[str, ...]]] = [Counter() for _ in range(order)]
    for words in sentences:
        whole = ["<s>", *words, "</s>"]
        for size in range(1, order + 1):
            counts[size - 1].update(tuple(whole[first : first + size]) for first in range(len(whole) - size + 1))
    counts[0].pop(("<s>",))
    scores: dict[tuple[str, ...], float] = {("<unk>",): 0.0}
    back_offs = dict[tuple[str, ...], float]()
    for grams in counts:
        followers, totals = defaultdict[tuple[str, ...], int](int), defaultdict[tuple[str, ...], int](int)
        for gram, count in grams.items():
            followers[gram[:-1]] += 1
            totals[gram[:-1]] += count
        back_offs |= {history: DISCOUNT * followers[history] / totals[history] for history in totals}
        for gram, count in grams.items():
            shorter = scores[gram[1:]] if gram[1:] else 1 / (len(grams) + 1)
            scores[gram] = (count - DISCOUNT) / totals[gram[:-1]] + back_offs[gram[:-1]] * shorter
    scores["<unk>",] = back_offs[()] / (len(counts[0]) + 1)
    lines = ["\\data\\", *(f"ngram {size}={len(grams) + 2 * (size == 1)}" for size, grams in enumerate(counts, 1))]
    for size, grams in enumerate(counts, 1):
        lines += ["", f"\\{size}-grams:"]
        for gram in [*([("<s>",), ("<unk>",)] if size == 1 else []), *grams]:
            own = -99.0 if gram == ("<s>",) else math.log10(scores[gram])
            longer = f"\t{math.log10(back_offs[gram]):.6f}" if gram in back_offs else ""
            lines.append(f"{own:.6f}\t{' '.join(gram)}{longer}")
    path.write_text("\n".join([*lines, "", "\\end\\", ""]), encoding="utf-8")


def mean_rate(counts: list[Any]) -> float:
    """Return the word error rate of all texts together."""
    wrong, words = (float(sum(getattr(one, name) for one in counts)) for name in ("word_errors", "words"))
    return wrong / max(1.0, words)


def make_decoder(arpa: Path | None, words: list[str], **options: float) -> Any:
    """Return pyctcdecode's, with the same weights."""
    from pyctcdecode import build_ctcdecoder

    if arpa is None:
        return build_ctcdecoder(list(LABELS))
    return build_ctcdecoder(list(LABELS), str(arpa), unigrams=words, alpha=ALPHA, beta=BETA, **options)


def race(arms: list[Callable[[], Any]], rounds: int) -> list[float]:
    """Return the least processor time of each in milliseconds, in turns."""
    best = [float("inf")] * len(arms)
    for _ in range(rounds):
        for place, arm in enumerate(arms):
            start = time.process_time()
            arm()
            best[place] = min(best[place], 1000 * (time.process_time() - start))
    return best


def read_words(arpa: Path) -> list[str]:
    """Return the words of an ARPA file that letters spell."""
    found, is_read = list[str](), False
    with open(arpa, encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("\\"):
                is_read = line.strip() == "\\1-grams:"
            elif is_read and line.strip() and set(line.split()[1]) <= set(LABELS[1:-1]):
                found.append(line.split()[1])
    return found


def draw_frames(kind: str, length: int, words: list[str], seed: int) -> np.ndarray:
    """Return log-probabilities ``(frame, token)`` of letters, or of the words of a model."""
    deviation, more = KINDS[kind]
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=(length, len(LABELS))) * deviation
    at = 0
    while at < length:
        word = str(rng.choice(words)) if words else "".join(rng.choice(list(LABELS[1:-1]), 5))
        for letter in f"{word} ":
            if at >= length:
                break
            scores[at, LABELS.index(letter)] += more
            gap = int(rng.integers(1, 4))
            scores[at + 1 : at + 1 + gap, 0] += more + 1
            at += 1 + gap
    found: np.ndarray = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return found.astype(np.float32)


if __name__ == "__main__":
    main()
