"""Metrics of a language model: sums over the whole set, divided once; minimal pairs; n-grams, which it has to beat.

loss            nats per token                      sum of -ln p / tokens
perplexity      exp(loss)                           comparable with the same tokenizer only
bits_per_byte   sum of -log2 p / UTF-8 bytes        comparable across tokenizers; only where the tokens reproduce every
                                                    text exactly: else they are more probable than the text
accuracy        tokens whose most probable prediction is right / tokens
max_violation   of a mixture of experts: how far the most chosen is above an equal share of tokens, mean over layers
dead_experts    experts that no token chose
expert_load/L/E tokens that chose expert E of layer L, of all choices of the layer
pairs_accuracy  pairs of sentences of which the one without a mistake is more probable / pairs; a tie is wrong (BLiMP)

The baseline is an interpolated n-gram model on the run's own tokens, scored on the same targets with the same bytes;
its context ends where an example begins, as the network's does (ngram.py).
Source: Warstadt et al. 2020, "BLiMP".
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, find_places
from vaak.core.errors import DataError, UserError
from vaak.core.progress import track
from vaak.core.storage.archives import open_file
from vaak.core.summaries import LONGEST_TEXT, MOST_SCORES, ExampleLog, keep_scores
from vaak.core.task import Dataset, Meters
from vaak.nn.cross_entropy import IGNORED, target_losses, unless_many
from vaak.nn.feed_forward import compute_load_metrics, counted_loads
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.data import SpecialTokens, StreamDataset, TextDataset, TokenSequence, collate
from vaak.tasks.lm.ngram import TokenNgram, count_ngrams
from vaak.text.corpora.readers import find_files
from vaak.text.tokenizer import Tokenizer, normalise

ACCURACY = "accuracy"
"""A metric, and in a protocol why it is withheld."""


class TextMeters(Meters):
    """Loss, perplexity, accuracy and, if every byte is predicted, bits per byte."""

    def __init__(
        self,
        protocol: dict[str, str],
        options: LanguageModelConfig,
        samples: Callable[[nn.Module], list[str]] = lambda model: [],
    ) -> None:
        """``samples`` gives texts that a model writes from nothing."""
        self.protocol, self.options, self._samples = protocol, options, samples
        self._model: nn.Module | None = None
        self.totals = dict.fromkeys(("nats", "token", "byte", "right"), 0.0)
        self._log = ExampleLog("loss")

    def update(self, model: nn.Module, batch: Batch) -> None:
        # A compiled model has the module itself there.
        self._model = getattr(model, "_orig_mod", model)
        counts = batch.totals()
        scored = find_places(batch["targets"] != IGNORED, counts["token"])
        targets = batch["targets"].flatten()[scored]
        options = get_visibility(self.options, batch) | unless_many(model, targets)
        with counted_loads(model) as loads:
            each, right = target_losses(model(batch["inputs"], **options, select=scored), targets)
        # mps has no float64.
        nats = each.sum() if each.device.type == "mps" else each.sum(dtype=torch.float64)
        numbers = torch.stack([number.to(nats.dtype) for number in (nats, right.sum(), *loads.values())])
        rows = scored // batch["targets"].shape[1]
        of_rows = torch.zeros(2, batch.num_rows, dtype=nats.dtype, device=nats.device)
        of_rows[0].index_add_(0, rows, each.to(nats.dtype))
        of_rows[1].index_add_(0, rows, torch.ones_like(each, dtype=nats.dtype))
        # This is the only wait for the device.
        found = torch.cat((numbers, of_rows.flatten())).tolist()
        names = ["nats", "right", *loads, "token", "byte"]
        for name, value in zip(names, [*found[: len(numbers)], counts["token"], counts["byte"]], strict=True):
            self.totals[name] = self.totals.get(name, 0.0) + value
        self._add_scores(batch, found[len(numbers) :])

    def _add_scores(self, batch: Batch, of_rows: list[float]) -> None:
        """Keep the nats and the tokens of each example; those of rows with several aren't known by example."""
        for row, indices in enumerate(batch.indices):
            nats, tokens = of_rows[row], of_rows[batch.num_rows + row]
            if len(indices) == 1 and tokens:
                self._log.add(indices[0], 0.0, (nats, tokens), str(tokens), {})

    def sums(self) -> dict[str, float]:
        return self.totals

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        loss = sums["nats"] / sums["token"]
        results = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        # Where the end of answers isn't known, a share of right tokens would hide that the model may not stop.
        if ACCURACY not in self.protocol:
            results[ACCURACY] = sums["right"] / sums["token"]
        if sums["byte"] and self.protocol["objective"] == "causal":
            results["bits_per_byte"] = sums["nats"] / math.log(2) / sums["byte"]
        return results | compute_load_metrics(sums)

    def seen(self) -> dict[str, list[Any]]:
        return self._log.seen()

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        samples = [] if self._model is None else self._samples(self._model)
        found = {"samples": [text[:LONGEST_TEXT] for text in samples]} if samples else {}
        return found | keep_scores(self._log.figure, seen)


class PairMeters(Meters):
    """Fraction of pairs whose good sentence is more probable: over all pairs, and by phenomenon."""

    def __init__(self, protocol: dict[str, str], options: LanguageModelConfig) -> None:
        self.protocol, self.options = protocol, options
        self.totals: dict[str, float] = {}

    def update(self, model: nn.Module, batch: Batch) -> None:
        inputs, targets = batch["inputs"].flatten(0, 1), batch["targets"].flatten(0, 1)
        # A decoder's: it needs no mask to ignore padding.
        found = model(inputs, **unless_many(model, targets))
        # CUDA's loss gives the same in every run only for logits of two dimensions, so they are flattened.
        whole = isinstance(found, Tensor)
        flat = found.flatten(0, 1) if whole else found._replace(hidden=found.hidden.flatten(0, 1))
        nats = target_losses(flat, targets.flatten())[0].view_as(targets).sum(dim=1)
        right = (nats[0::2] < nats[1::2]).tolist()
        for phenomenon, is_right in zip(batch.extra["phenomena"], right, strict=True):
            for name, value in (("right", float(is_right)), ("pairs", 1.0)):
                key = f"{name}/{phenomenon}"
                self.totals[key] = self.totals.get(key, 0.0) + value

    def sums(self) -> dict[str, float]:
        return self.totals

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        pairs = {key.removeprefix("pairs/"): value for key, value in sorted(sums.items()) if key.startswith("pairs/")}
        right = {phenomenon: sums[f"right/{phenomenon}"] for phenomenon in pairs}
        by_phenomenon = {f"accuracy/{phenomenon}": right[phenomenon] / pairs[phenomenon] for phenomenon in pairs}
        return {"accuracy": sum(right.values()) / sum(pairs.values()), **by_phenomenon}

    def summary(self, sums: dict[str, float], seen: dict[str, list[Any]]) -> dict[str, Any]:
        names = sorted(key.removeprefix("pairs/") for key in sums if key.startswith("pairs/"))
        return {"phenomena": {name: [sums[f"right/{name}"], sums[f"pairs/{name}"]] for name in names[:MOST_SCORES]}}


def get_visibility(options: LanguageModelConfig, batch: Batch) -> dict[str, Any]:
    """Return the model's options on which tokens see which: documents of packed rows; for an encoder, the padding."""
    if batch.extra["packed"]:
        documents = batch["documents"]
        known = {"num_documents": batch.count_at_most("example")} if documents.is_cuda else {}
        return {"documents": documents, **known}
    # A decoder doesn't see the padding after a token; a mixture's experts would count it, though.
    sees_padding = options.model_type == "encoder" or options.moe is not None
    return {"mask": batch["documents"] >= 0} if sees_padding else {}


GRAMMAR_PAIRS = 100  # of each phenomenon: +- 5 % at two standard errors for a model at 90 %


@dataclass(frozen=True)
class MinimalPair:
    """A sentence, its ungrammatical twin, and the phenomenon in which they differ."""

    good: str
    bad: str
    phenomenon: str
    origin: str


def read_pairs(sources: tuple[str, ...]) -> list[MinimalPair]:
    """The pairs of BLiMP JSON lines (files or glob patterns), or of the built-in grammar where a source is ``grammar``.

    Raises DataError naming file and line of one that can't be read, or if there are none at all.
    """
    pairs: list[MinimalPair] = []
    for source in sources:
        if source == "grammar":
            pairs += _of_the_grammar()
        else:
            for file in find_files((source,), "data.minimal_pairs"):
                pairs += _read_file(Path(file))
    if not pairs:
        where = ", ".join(sources) or "it: name files of BLiMP JSON lines, or grammar"
        raise DataError(f"data.minimal_pairs: no pairs in {where}")
    return pairs


# Every evaluation reads them, and composing them takes a second.
@functools.cache
def _of_the_grammar() -> tuple[MinimalPair, ...]:
    # Most runs don't need its words.
    from vaak.text import grammar as hindi

    return tuple(
        MinimalPair(pair.sentence_good, pair.sentence_bad, pair.phenomenon, f"grammar:{pair.pair_id}")
        for pair in hindi.minimal_pairs(GRAMMAR_PAIRS, seed=0)
    )


def _read_file(path: Path) -> Iterator[MinimalPair]:
    with open_file(path) as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                entry = json.loads(line)
                good, bad = (normalise(entry[name]) for name in ("sentence_good", "sentence_bad"))
                phenomenon = str(entry.get("UID", path.stem))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DataError(
                    f"{path}:{number}: this isn't a minimal pair; expected a JSON object with sentence_good and "
                    "sentence_bad"
                ) from error
            if not good.strip() or not bad.strip():
                raise DataError(f"{path}:{number}: a sentence of this minimal pair is empty")
            yield MinimalPair(good, bad, phenomenon, f"{path}:{number}")


class PairDataset(Dataset):
    """Pairs as examples of two sequences each: a row ``(2, time)`` has the good sentence and then the bad one."""

    draws_globally = False

    def __init__(self, pairs: list[MinimalPair], tokenizer: Tokenizer, special: SpecialTokens, max_length: int) -> None:
        self.pairs, self.special = pairs, special
        self.tokens = [(tokenizer.encode(pair.good), tokenizer.encode(pair.bad)) for pair in pairs]
        end = int(special.eos is not None)
        self.lengths = np.array([max(len(good), len(bad)) + end for good, bad in self.tokens])
        longest = int(self.lengths.argmax())
        if self.lengths[longest] > max_length:
            size = f"{self.lengths[longest]} tokens, more than data.max_length {max_length}"
            raise DataError(f"{pairs[longest].origin}: the pair has {size}")
        self.fingerprint = str(len(pairs))

    def example(self, index: int, rng: np.random.Generator) -> tuple[TokenSequence, TokenSequence, str]:
        good, bad = (self._sequence(tokens) for tokens in self.tokens[index])
        return good, bad, self.pairs[index].phenomenon

    def _sequence(self, tokens: list[int]) -> TokenSequence:
        """[bos] sentence [eos]; where documents have no end, the sentence alone is scored."""
        ids = [self.special.bos, *tokens, *([] if self.special.eos is None else [self.special.eos])]
        return TokenSequence(np.array(ids[:-1]), np.array(ids[1:]), 0)

    def collate(self, rows: list[list[tuple[TokenSequence, TokenSequence, str]]]) -> Batch:
        sentences = collate([[sequence] for row in rows for sequence in row[0][:2]], self.special.pad)
        tensors = {name: tensor.unflatten(0, (len(rows), 2)) for name, tensor in sentences.tensors.items()}
        extra = {**sentences.extra, "phenomena": [row[0][2] for row in rows]}
        return Batch(tensors, {"pair": torch.ones(len(rows))}, extra=extra)

    def difficulty(self, measure: str) -> np.ndarray:
        raise UserError(f"minimal pairs are not trained on: they have no difficulty {measure}")

    def describe(self, index: int) -> str:
        return self.pairs[index].origin


NGRAM_ORDER = 5


def ngram_metrics(
    train: TextDataset | StreamDataset, evaluated: TextDataset | StreamDataset, vocab_size: int
) -> dict[str, float]:
    """The loss, the perplexity and, where bytes are counted, the bits per byte of an n-gram model of ``train``."""
    # Every text is a window of training; its n-grams go across the ends of documents, as the network's context does.
    texts = [train.ids(index) for index in range(len(train.lengths))]
    arrays = count_ngrams(texts, NGRAM_ORDER, vocab_size)
    model = TokenNgram({name: torch.from_numpy(array) for name, array in arrays.items()})
    nats, tokens, num_bytes = 0.0, 0, 0
    # Evaluations of decoders draw nothing.
    rng = np.random.default_rng(0)
    for index in track(range(len(evaluated.lengths)), f"scoring by {NGRAM_ORDER}-grams", len(evaluated.lengths)):
        example, ids = evaluated.example(index, rng), torch.from_numpy(evaluated.ids(index))
        num_bytes += int(example.num_bytes)
        # Ids has one token more than targets.
        scored = torch.from_numpy(example.targets != IGNORED)
        contexts = model.find_contexts(ids[None, :-1])[0, scored]
        nats -= float(model.probability(contexts, ids[1:][scored]).log().sum())
        tokens += len(contexts)
    loss = nats / max(tokens, 1)
    # exp overflows above 709.
    found = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    return found | ({"bits_per_byte": nats / math.log(2) / num_bytes} if num_bytes else {})
