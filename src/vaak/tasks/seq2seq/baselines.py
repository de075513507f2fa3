"""Translators without a network, made of the training pairs: what a trained one has to beat.

copy of the source        the source itself
most frequent target      the commonest target of training, for every source
word by word              for each source word its most probable translation by IBM Model 1, in the source's order; a
                          word that training doesn't have is copied
nearest training source   the target of the training source that is most like this one, by the cosine of tf-idf over
                          words and over runs of 2 to 5 characters (a translation memory)

Sources: Brown et al. 1993, "The Mathematics of Statistical Machine Translation", section 4.1 (Model 1, with its empty
word); Salton and Buckley 1988, "Term-Weighting Approaches in Automatic Text Retrieval".
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence

from vaak.core.progress import followed
from vaak.tasks.seq2seq.metrics import corpus_statistics, sacrebleu_scores, score_of
from vaak.text.word_dictionary import ROUNDS, WordDictionary, words

Pair = tuple[str, Sequence[str]]
"""A source and its references."""
Translate = Callable[[str], str]
Vector = dict[str, float]
MOST_SEARCHED = 5_000
"""Pairs of training among which a nearest one is looked for; with more, that takes too long."""


def features(text: str) -> Counter[str]:
    """Words, and runs of 2 to 5 characters within them."""
    found: Counter[str] = Counter()
    for word in words(text.lower()):
        marked = f" {word} "
        found[word] += 1
        for size in range(2, 6):
            found.update(marked[start : start + size] for start in range(len(marked) - size + 1))
    return found


def nearest(training: Sequence[Pair]) -> Translate:
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


def translators(training: Sequence[Pair], rounds: int = ROUNDS) -> dict[str, Translate]:
    """The translators by name; the nearest source only of few pairs."""
    first = ((source, targets[0]) for source, targets in training)
    commonest = Counter(target for _, targets in training for target in targets).most_common(1)[0][0]
    found: dict[str, Translate] = {
        "copy of the source": lambda source: source,
        "most frequent target": lambda source: commonest,
        "word by word (IBM Model 1)": WordDictionary.drawn_from(first, rounds).translate,
    }
    return found | ({"nearest training source": nearest(training)} if len(training) <= MOST_SEARCHED else {})


def scores(translate: Translate, pairs: Sequence[Pair]) -> dict[str, float]:
    """The scores of a set's translations, as ``TranslationMeters`` has them."""
    texts = [translate(source) for source, _ in followed(pairs, "translations", len(pairs))]
    references = [[*targets] for _, targets in pairs]
    metrics = sacrebleu_scores()
    return {name: score_of(metric, corpus_statistics(metric, texts, references)) for name, metric in metrics.items()}
