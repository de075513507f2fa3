"""Metrics of a translator, sums over the whole set, divided once; and translators without a network, to be beaten.

loss               nats per target token, [eos] included, each predicted given the true tokens before it
perplexity         exp(loss)
expert_load/L/E    of experts (moe), with max_violation and dead_experts, as of a language model (vaak.tasks.lm.metrics)
accuracy           tokens whose most probable prediction is right / tokens
bleu               words that translations share with their references, 0 to 100
chrf               the same of characters; chrf_plus_plus: of characters and words

The last three are ratios of counts of n-grams. The counts add up over batches and ranks, and the ratio is taken of
their sums, so a score is sacrebleu's of the whole set. A row without references is not translated.
Sources: Papineni et al. 2002, "BLEU"; Popović 2015, "chrF", and 2017, "chrF++"; Post 2018, "A Call for Clarity in
Reporting BLEU Scores" (signatures); of the baselines Brown et al. 1993, "The Mathematics of Statistical Machine
Translation", section 4.1 (Model 1, with its empty word); Salton and Buckley 1988, "Term-Weighting Approaches in
Automatic Text Retrieval".
"""

from __future__ import annotations

import math
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import nn

from vaak.core.batch import Batch, read_together, send
from vaak.core.errors import optional_import
from vaak.core.progress import track
from vaak.core.summaries import LONGEST_TEXT, ExampleLog, make_summary
from vaak.core.task import Meters
from vaak.nn.cross_entropy import IGNORED, target_losses, unless_many
from vaak.nn.feed_forward import compute_load_metrics, counted_loads
from vaak.tasks.seq2seq.config import METHOD_OPTIONS, DecodingConfig
from vaak.text.phrase_dictionary import AlignedPairs
from vaak.text.word_dictionary import ROUNDS, Links, words

# At the top of the module, so that a run says it before it trains.
with optional_import("the task seq2seq requires sacrebleu", "seq2seq"):
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

Translate = Callable[[nn.Module, Batch, bool], list[str]]
SENTENCE_CHRF = "sentence_chrf"
"""chrF of single sentences, whose mean isn't that of the set: for examples, and for pairs of runs."""


class TranslationMeters(Meters):
    """Loss, perplexity and accuracy of true targets; BLEU and chrF of the texts of ``translate``.

    ``translate(model, batch, is_rehearsal)`` gives a text for each row of the batch.
    """

    def __init__(
        self,
        protocol: dict[str, str],
        translate: Translate,
        get_source: Callable[[int], str] = str,
        attention: Callable[[nn.Module], dict[str, Any]] = lambda model: {},
    ) -> None:
        """``get_source`` gives the source of an example, ``attention`` a model's cross-attention in one translation."""
        self.protocol, self.translate, self._source_of, self._attention = protocol, translate, get_source, attention
        self._model: nn.Module | None = None
        self._log = ExampleLog(SENTENCE_CHRF)
        self.scores = sacrebleu_scores()
        self.totals = dict.fromkeys(("nats", "token", "right", "translated"), 0.0)
        self._is_rehearsal = False

    def expect_rehearsal(self) -> None:
        self._is_rehearsal = True

    def update(self, model: nn.Module, batch: Batch) -> None:
        # A compiled model has the module itself there.
        self._model = getattr(model, "_orig_mod", model)
        found = self._predicted(model, batch) | self._translated(model, batch)
        for name, value in found.items():
            self.totals[name] = self.totals.get(name, 0.0) + value

    def _predicted(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        options, targets = unless_many(model, batch["targets"]), batch["targets"]
        tokens = batch.totals()["token"]
        with counted_loads(model) as loads:
            logits = model(
                batch["source"], batch["source_mask"], batch["inputs"], target_mask=targets != IGNORED, **options
            )
        nats, right, *each = read_together(*target_losses(logits, targets, tokens), *loads.values())
        found = {"nats": float(nats.double().sum()), "right": float(right.sum()), "token": tokens}
        return found | dict(zip(loads, map(float, each), strict=True))

    def _translated(self, model: nn.Module, batch: Batch) -> dict[str, float]:
        rows = [row for row, references in enumerate(batch.extra["references"]) if references is not None]
        if not rows:
            return {}
        chosen = select_rows(batch, rows)
        texts = self.translate(model, chosen, self._is_rehearsal)
        found = {"translated": float(len(rows))}
        for name, metric in self.scores.items():
            counts = corpus_statistics(metric, texts, chosen.extra["references"])
            found |= {f"{name}/{index}": float(count) for index, count in enumerate(counts)}
        for row, text, references in zip(rows, texts, chosen.extra["references"], strict=True):
            score = float(self.scores["chrf"].sentence_score(text, references).score)
            about = {
                "chrf": round(score, 1),
                "hypothesis": text,
                "references": [one[:LONGEST_TEXT] for one in references[:4]],
            }
            index = batch.indices[row][0] if batch.indices else row
            self._log.add(index, 100 - score, (score, 1), "\n".join(references), about)
        return found

    def sums(self) -> dict[str, float]:
        return self.totals

    def seen(self) -> dict[str, list[Any]]:
        return self._log.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        found = make_summary(SENTENCE_CHRF, seen)
        for one in found.get("examples", ()):
            one["source"] = self._source_of(one["index"])[:LONGEST_TEXT]
        attention = self._attention(self._model) if found and self._model is not None else {}
        return {**found, **({"attention": attention} if attention else {})}

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        results: dict[str, float] = {}
        if sums["token"]:
            loss = sums["nats"] / sums["token"]
            accuracy = sums["right"] / sums["token"]
            results |= {"loss": loss, "perplexity": math.exp(min(loss, 700.0)), "accuracy": accuracy}
        if sums["translated"]:
            for name, metric in self.scores.items():
                places = range(sum(key.startswith(f"{name}/") for key in sums))
                results[name] = compute_score(metric, [int(sums[f"{name}/{place}"]) for place in places])
        return results | compute_load_metrics(sums)


def sacrebleu_scores() -> dict[str, Metric]:
    """Return the scores of translations, by the names of their metrics, with sacrebleu's defaults."""
    # ``force`` turns a warning off.
    return {"bleu": BLEU(force=True), "chrf": CHRF(), "chrf_plus_plus": CHRF(word_order=2)}


def corpus_statistics(metric: Metric, texts: Sequence[str], references: Sequence[Sequence[str]]) -> list[int]:
    """Return the counts that a score is made of, added over the texts; each may have several references.

    Those of the parts of a set add up to those of the whole. sacrebleu has no public API for them. Both sides are
    composed (NFC), so that no score depends on how a letter is written.
    """
    assert len(texts) == len(references)
    composed = [[unicodedata.normalize("NFC", one) for one in own] for own in references]
    # As sacrebleu expects them: all first references, all second ones, and so on.
    by_place = list(zip_longest(*composed))
    counts = metric._extract_corpus_statistics([unicodedata.normalize("NFC", text) for text in texts], by_place)
    return [sum(column) for column in zip(*counts, strict=True)]


def compute_score(metric: Metric, counts: list[int]) -> float:
    """Return the score that the counts of a whole set give."""
    return float(metric._compute_score_from_stats(counts).score)


def select_rows(batch: Batch, rows: list[int]) -> Batch:
    """Return the batch of these rows alone."""

    # The usual case, in which nothing needs to be copied.
    if rows == list(range(batch.num_rows)):
        return batch
    places = torch.tensor(rows)

    def picked(values: list[Any]) -> list[Any]:
        return [values[row] for row in rows]

    return Batch(
        {name: tensor[send(places, tensor.device)] for name, tensor in batch.tensors.items()},
        {unit: counts[rows] for unit, counts in batch.counts.items()},
        picked(batch.indices) if batch.indices else [],
        {name: picked(value) if isinstance(value, list) else value for name, value in batch.extra.items()},
    )


def translation_protocol(
    decoding: DecodingConfig, max_target_length: int, num_references: Sequence[int]
) -> dict[str, str]:
    """Return what the scores of translations depend on: decoding options, number of examples, sacrebleu's signatures.

    ``num_references`` are those of each example that is translated; a signature has ``var`` if they differ.
    """
    if not num_references:
        return {"translated": "0"}
    protocol = {"translated": str(len(num_references)), "decoding": decoding.method}
    protocol |= {name: str(getattr(decoding, name)) for name in METHOD_OPTIONS[decoding.method]}
    if decoding.no_repeat_ngram_size:
        protocol["no_repeat_ngram_size"] = str(decoding.no_repeat_ngram_size)
    protocol["max_new_tokens"] = str(min(decoding.max_new_tokens or max_target_length, max_target_length))
    scores, numbers = sacrebleu_scores(), set(num_references)
    for metric in scores.values():
        # One has a signature once the number of references is known.
        corpus_statistics(metric, ["a"] * len(numbers), [["a"] * number for number in numbers])
    return protocol | {f"{name}_signature": str(metric.get_signature()) for name, metric in scores.items()}


Pair = tuple[str, Sequence[str]]
"""A source and its references."""
TranslateText = Callable[[str], str]
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


def nearest(training: Sequence[Pair]) -> TranslateText:
    """Return a translator that gives the target of the training source most like the one it is asked for."""
    counts = [features(source) for source, _ in training]
    documents = Counter(feature for count in counts for feature in count)
    weights = {feature: math.log(len(training) / number) for feature, number in documents.items()}

    def vector(count: Counter[str]) -> Vector:
        weighed = {name: (1 + math.log(times)) * weights[name] for name, times in count.items() if name in weights}
        length = math.sqrt(sum(value * value for value in weighed.values())) or 1.0
        return {name: value / length for name, value in weighed.items()}

    # An inverted index: only texts that share a feature are compared.
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


def translators(training: Sequence[Pair], rounds: int = ROUNDS) -> dict[str, TranslateText]:
    """Return the translators by name; the nearest source only of few pairs."""
    first = [(source, targets[0]) for source, targets in training]
    commonest = Counter(target for _, targets in training for target in targets).most_common(1)[0][0]
    found: dict[str, TranslateText] = {
        "copy of the source": lambda source: source,
        "most frequent target": lambda source: commonest,
        "word by word (IBM Model 1)": Links(first).dictionary(rounds).translate,
        "phrase by phrase": AlignedPairs(first).dictionary(rounds).translate,
    }
    return found | ({"nearest training source": nearest(training)} if len(training) <= MOST_SEARCHED else {})


def scores(translate: TranslateText, pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the scores of a set's translations, as ``TranslationMeters`` has them."""
    texts = [translate(source) for source, _ in track(pairs, "translations", len(pairs))]
    references = [[*targets] for _, targets in pairs]
    metrics = sacrebleu_scores()
    return {
        name: compute_score(metric, corpus_statistics(metric, texts, references)) for name, metric in metrics.items()
    }
