"""An interpolated n-gram model of tokens as sorted arrays: a baseline, and what a decoder may be mixed with.

    p(w | c₁…cₖ) = value(c₁…cₖ w) + back-off(c₁…cₖ) · p(w | c₂…cₖ)        p(w | nothing before) from 1 / vocabulary
    p(w)         = weight · p_ngram(w) + (1 − weight) · p_both(w)          the mixture
    p_both(w)    ∝ p_network(w)^(1 − geometric) · p_ngram(w)^geometric     with geometric 0, the network's

An n-gram is a place in the sorted ``keys`` of its order: the place of its first tokens, times the vocabulary, plus its
last token. So a context is found by one search for each of its tokens, and the n-grams that continue it are in a row.
Counting takes about 100 bytes a token of the corpus; the arrays, 16 bytes a different n-gram.

Sources: Chen and Goodman 1998, "An Empirical Study of Smoothing Techniques for Language Modeling", interpolated
modified Kneser-Ney. Differs: a discount that the counts of counts make negative is 0. Mixed with a network: Mikolov et
al. 2010, "Recurrent neural network based language model"; Klakow 1998, "Log-linear interpolation of language models".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated as Float
from typing import Annotated as Int

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from vaak.core.errors import DataError
from vaak.core.storage.files import write_bytes

NGRAM_FILE = "ngram.safetensors"
"""The arrays, in a run's prepared data."""
NUMBERS_AT_ONCE = 2**22
"""Probabilities that are made together; a common context is continued by thousands of n-grams."""


def count_ngrams(
    texts: Sequence[np.ndarray], order: int, vocab_size: int, begins: int | None = None
) -> dict[str, np.ndarray]:
    """Return the arrays of a model of ``texts``, each of ``(token,)`` ids; nothing is counted across two.

    Below the highest order an n-gram counts once for each different token before it. Before ``begins``, the token with
    which texts begin, there is none: an n-gram that begins with it has its number of occurrences.

        unigram (token,)      probabilities without a context
        keys2 … (n-gram,)     int64, sorted; values2 … of them, and back_offs1 … of contexts, each as long as their keys
    """
    tokens = np.concatenate([np.zeros(0, np.int64), *texts]).astype(np.int64)
    lengths = np.array([len(text) for text in texts], np.int64)
    within = np.arange(len(tokens)) - np.repeat(lengths.cumsum() - lengths, lengths)
    found: dict[str, np.ndarray] = {}
    keys, places = np.arange(vocab_size), tokens
    counts, is_first = np.bincount(tokens, minlength=vocab_size), np.zeros(vocab_size, bool)
    # An n-gram's key is its context's number times the vocabulary, plus its last token: one integer at any order.
    for size in range(2, order + 1):
        ends = np.flatnonzero(within >= size - 1)
        longer, first, inverse, occurrences = np.unique(
            places[ends - 1] * vocab_size + tokens[ends], return_index=True, return_inverse=True, return_counts=True
        )
        different = np.bincount(places[ends[first]], minlength=len(keys))
        _add_order(found, size - 1, keys, np.where(is_first, counts, different), vocab_size)
        keys, counts, is_first = longer, occurrences, tokens[ends[first] - size + 1] == begins
        places = np.full(len(tokens), -1)
        places[ends] = inverse
    _add_order(found, order, keys, counts, vocab_size)
    return found


def _add_order(found: dict[str, np.ndarray], size: int, keys: np.ndarray, counts: np.ndarray, vocab_size: int) -> None:
    """Add the values of one order's n-grams, and what their contexts leave to the order below."""
    of_counts = np.bincount(counts, minlength=5)
    # The discounts divide by these; a small corpus may have no n-gram of one of the counts.
    ones, twos, threes, fours = (float(of_counts[times] or 1) for times in (1, 2, 3, 4))
    y = ones / (ones + 2 * twos)
    discounts = np.array([0.0, 1 - 2 * y * twos / ones, 2 - 3 * y * threes / twos, 3 - 4 * y * fours / threes])
    taken = discounts.clip(0)[np.minimum(counts, 3)]
    contexts = keys // vocab_size
    num_contexts = vocab_size if size == 2 else len(found[f"keys{size - 1}"]) if size > 2 else 1
    totals = np.bincount(contexts, counts, num_contexts)
    # A context of which nothing is counted leaves everything.
    values = (counts - taken) / totals[contexts].clip(1)
    back_offs = np.where(totals > 0, np.bincount(contexts, taken, num_contexts) / totals.clip(1), 1.0)
    if size == 1:
        found["unigram"] = values + back_offs / vocab_size
    else:
        found |= {f"keys{size}": keys, f"values{size}": values, f"back_offs{size - 1}": back_offs}


def write_ngrams(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the arrays of ``count_ngrams`` to a file, probabilities in 32 bits."""
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    write_bytes(path, save({name: one if name.startswith("keys") else one.float() for name, one in tensors.items()}))


def search(keys: Int[Tensor, "key"], numbers: Int[Tensor, "row"]) -> Int[Tensor, "row"]:
    """Return how many of the sorted keys are below each number.

    ONNX has no search: exported, a place is found bit by bit.
    """
    if not torch.compiler.is_exporting():
        return torch.searchsorted(keys, numbers)
    bits = len(keys).bit_length()
    padded = torch.cat([keys, keys.new_full((2**bits - len(keys),), torch.iinfo(keys.dtype).max)])
    found = torch.zeros_like(numbers)
    for bit in reversed(range(bits)):
        found = torch.where(padded[found + (2**bit - 1)] < numbers, found + 2**bit, found)
    return found


def repeat_rows(numbers: Int[Tensor, "row"]) -> Int[Tensor, "place"]:
    """Return each row's index, repeated by its number."""
    if not torch.compiler.is_exporting():
        return torch.repeat_interleave(numbers)
    # ONNX can't repeat, either: rows are counted where they begin.
    ends = numbers.cumsum(0)
    total: int = ends[-1].item()  # type: ignore[assignment]
    torch._check(total >= 0)
    begins = numbers.new_zeros(total + 1).scatter_add(0, ends - numbers, torch.ones_like(numbers))
    return begins.cumsum(0)[:-1] - 1


class TokenNgram(nn.Module):
    """The probability of each token after others, on the device and in the precision of the arrays.

    They are neither parameters nor part of the state: they stay with the run's prepared data.
    """

    def __init__(
        self, arrays: Mapping[str, Tensor], weight: float = 0.0, begins: int | None = None, geometric: float = 0.0
    ) -> None:
        """``weight`` and ``geometric`` are those of a mixture; contexts end at the last token ``begins``."""
        super().__init__()
        self.weight, self.begins, self.geometric = weight, begins, geometric
        self.vocab_size, self.order = len(arrays["unigram"]), 1 + sum(name.startswith("keys") for name in arrays)
        for name, array in arrays.items():
            self.register_buffer(name, array, persistent=False)

    @classmethod
    def load(cls, path: Path, weight: float, begins: int | None, geometric: float = 0.0) -> TokenNgram:
        """Read the file of ``write_ngrams``. Raises DataError if it is missing or damaged."""
        try:
            return cls(load(path.read_bytes()), weight, begins, geometric)
        except (OSError, SafetensorError, KeyError) as error:
            raise DataError(
                f"{path}: the n-grams of model.ngram can't be read ({error}); vaak train prepares them"
            ) from error

    def find_contexts(
        self, input_ids: Int[Tensor, "batch time"], documents: Int[Tensor, "batch time"] | None = None
    ) -> Int[Tensor, "batch time lag"]:
        """Return the tokens before each next token, the newest first; −1 where there is none in its document."""
        found, is_open = list[Tensor](), torch.ones_like(input_ids, dtype=torch.bool)
        for lag in range(self.order - 1):
            token = nn.functional.pad(input_ids, (lag, 0), value=-1)[:, : input_ids.shape[1]]
            if documents is not None:
                document = nn.functional.pad(documents, (lag, 0), value=-1)[:, : input_ids.shape[1]]
                is_open = is_open & (document == documents) & (documents >= 0)
            found.append(torch.where(is_open, token, -1))
            is_open = is_open & (found[-1] >= 0) & (token != (-1 if self.begins is None else self.begins))
        return torch.stack(found, -1)

    def probabilities(self, contexts: Int[Tensor, "row lag"]) -> Float[Tensor, "row vocab"]:
        """Return the distribution of the token after each context, the newest token first, −1 where there is none."""
        found = self.unigram.repeat(contexts.shape[0], 1)
        for size, place, is_known in self._known_contexts(contexts):
            keys, values = self._order(size + 1)
            found *= self._back_off(size, place, is_known)[:, None]
            first = search(keys, place * self.vocab_size)
            numbers = torch.where(is_known, search(keys, (place + 1) * self.vocab_size) - first, 0)
            rows = repeat_rows(numbers)
            at = torch.arange(rows.shape[0], device=rows.device) + (first - numbers.cumsum(0) + numbers)[rows]
            # Each token once a row, so this adds the same in every run.
            where = rows, keys[at] % self.vocab_size
            found[where] += values[at]
        return found

    def probability(self, contexts: Int[Tensor, "row lag"], targets: Int[Tensor, "row"]) -> Float[Tensor, "row"]:
        """Return the entry of ``probabilities`` for one token in each context."""
        found = self.unigram[targets]
        for size, place, is_known in self._known_contexts(contexts):
            own, is_there = self._find(size + 1, place, targets, is_known)
            values = self._order(size + 1)[1]
            found = found * self._back_off(size, place, is_known)
            found = found + (torch.where(is_there, values[own], 0.0) if len(values) else 0.0)
        return found

    def mix(
        self, logits: Float[Tensor, "*shape vocab"], contexts: Int[Tensor, "*shape lag"]
    ) -> Float[Tensor, "*shape vocab"]:
        """Return the logarithm of the mixture's probabilities, in float32 at least."""
        exact = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
        if torch.compiler.is_exporting():
            return self._mix_rows(exact.flatten(0, -2), contexts.flatten(0, -2)).view_as(exact)
        # How many n-grams continue a context differs: nothing to compile.
        mix = torch.compiler.disable(self._mix_rows) if torch.compiler.is_compiling() else self._mix_rows
        at_once = max(1, NUMBERS_AT_ONCE // self.vocab_size)
        rows, befores = exact.flatten(0, -2).split(at_once), contexts.flatten(0, -2).split(at_once)
        return torch.cat([mix(row, before) for row, before in zip(rows, befores, strict=True)]).view_as(exact)

    def _mix_rows(self, network: Tensor, contexts: Tensor) -> Tensor:
        own = self.probabilities(contexts).log()
        # A base may have more rows than its tokenizer has tokens; none of these was counted.
        own = nn.functional.pad(own, (0, network.shape[-1] - self.vocab_size), value=-math.inf)
        if self.geometric:
            network = ((1 - self.geometric) * network + self.geometric * own).log_softmax(-1)
        if not self.weight:
            return network
        return torch.logaddexp(network + math.log1p(-self.weight), own + math.log(self.weight))

    def _known_contexts(self, contexts: Tensor) -> Iterator[tuple[int, Tensor, Tensor]]:
        """Yield each number of tokens of contexts, from 1 up, the place of these tokens, and where they occurred."""
        for size in range(1, self.order):
            place = contexts[:, size - 1]
            is_known = place >= 0
            place = place.clamp(min=0)
            for length in range(2, size + 1):
                place, is_known = self._find(length, place, contexts[:, size - length], is_known)
            yield size, place, is_known

    def _find(self, size: int, place: Tensor, token: Tensor, is_known: Tensor) -> tuple[Tensor, Tensor]:
        """Return the place of the n-gram of a place and one more token, and where there is such a one."""
        keys, _ = self._order(size)
        if not len(keys):
            return torch.zeros_like(place), torch.zeros_like(is_known)
        key = place * self.vocab_size + token
        found = search(keys, key).clamp(max=len(keys) - 1)
        return found, is_known & (token >= 0) & (keys[found] == key)

    def _order(self, size: int) -> tuple[Tensor, Tensor]:
        keys: Tensor = getattr(self, f"keys{size}")
        values: Tensor = getattr(self, f"values{size}")
        return keys, values

    def _back_off(self, size: int, place: Tensor, is_known: Tensor) -> Tensor:
        back_offs: Tensor = getattr(self, f"back_offs{size}")
        return torch.where(is_known, back_offs[place] if len(back_offs) else 1.0, 1.0)

    unigram: Tensor
