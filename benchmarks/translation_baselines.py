"""Scores that a translator has to beat: baselines made of the training pairs, without a network.

    python benchmarks/translation_baselines.py --train A.jsonl B.jsonl --test C.jsonl D.jsonl

Files are JSON lines, one row of the table for each test file and each baseline:

- copy: the source itself
- most frequent: the commonest target of training, for every source
- word by word: for each source word its most probable translation by IBM Model 1, in the source's order; a word that
  training doesn't have is copied
- nearest: the target of the training source that is most like this one, by the cosine of tf-idf over words and over
  runs of 2 to 5 characters (a translation memory)

Sources: Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1 (Model 1, with its empty
word); Salton and Buckley 1988, "Term-Weighting Approaches in Automatic Text Retrieval".
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from vaak.tasks.seq2seq.metrics import corpus_statistics, sacrebleu_scores, score_of
from vaak.text.tokenizers.normalise import normalise
from vaak.text.word_dictionary import WordDictionary, words

Pair = tuple[str, list[str]]  # a source and its references
Vector = dict[str, float]


def read_pairs(path: Path, source: str, target: str) -> list[Pair]:
    """The pairs of a file; a target that is a list holds several references."""
    rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    several = ((row[source], row[target] if isinstance(row[target], list) else [row[target]]) for row in rows)
    return [(normalise(text), [normalise(reference) for reference in references]) for text, references in several]


def features(text: str) -> Counter[str]:
    """Words, and runs of 2 to 5 characters within them."""
    found: Counter[str] = Counter()
    for word in words(text.lower()):
        marked = f" {word} "
        found[word] += 1
        for size in range(2, 6):
            found.update(marked[start : start + size] for start in range(len(marked) - size + 1))
    return found


def nearest(training: list[Pair]) -> Callable[[str], str]:
    """A translator that gives the target of the training source most like the one it is asked for."""
    counts = [features(source) for source, _ in training]
    documents = Counter(feature for count in counts for feature in count)
    weights = {feature: math.log(len(training) / number) for feature, number in documents.items()}

    def vector(count: Counter[str]) -> Vector:
        weighed = {name: (1 + math.log(times)) * weights[name] for name, times in count.items() if name in weights}
        length = math.sqrt(sum(value * value for value in weighed.values())) or 1.0
        return {name: value / length for name, value in weighed.items()}

    holders: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for place, count in enumerate(counts):
        for name, value in vector(count).items():
            holders[name].append((place, value))

    def translate(source: str) -> str:
        likeness = [0.0] * len(training)
        for name, value in vector(features(source)).items():
            for place, other in holders[name]:
                likeness[place] += value * other
        return training[likeness.index(max(likeness))][1][0]

    return translate


def baselines(training: list[Pair], rounds: int) -> dict[str, Callable[[str], str]]:
    """The baselines by name, each a function from a source to its translation."""
    first = ((source, targets[0]) for source, targets in training)
    commonest = Counter(target for _, targets in training for target in targets).most_common(1)[0][0]
    return {
        "copy of the source": lambda source: source,
        "most frequent target": lambda source: commonest,
        "word by word (IBM Model 1)": WordDictionary.drawn_from(first, rounds).translate,
        "nearest training source": nearest(training),
    }


def scores(translate: Callable[[str], str], pairs: list[Pair]) -> dict[str, float]:
    """The scores of a set's translations, each by its name."""
    texts, references = [translate(source) for source, _ in pairs], [targets for _, targets in pairs]
    metrics = sacrebleu_scores()
    return {name: score_of(metric, corpus_statistics(metric, texts, references)) for name, metric in metrics.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--test", type=Path, nargs="+", required=True)
    parser.add_argument("--source", default="en", help="key of the source")
    parser.add_argument("--target", default="hi", help="key of the target")
    parser.add_argument("--rounds", type=int, default=5, help="of expectation-maximisation")
    options = parser.parse_args()
    training = [pair for path in options.train for pair in read_pairs(path, options.source, options.target)]
    tests = {path.name: read_pairs(path, options.source, options.target) for path in options.test}
    if len(tests) > 1:
        tests["all"] = [pair for pairs in tests.values() for pair in pairs]
    print("| chrF / chrF++ / BLEU | " + " | ".join(f"{name} ({len(pairs)})" for name, pairs in tests.items()) + " |")
    print("|---" * (len(tests) + 1) + "|")
    for name, translate in baselines(training, options.rounds).items():
        found = [scores(translate, pairs) for pairs in tests.values()]
        cells = [f"{one['chrf']:.2f} / {one['chrf_plus_plus']:.2f} / {one['bleu']:.2f}" for one in found]
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
