"""Pairs of answers, of which one is preferred: their examples, what the reference says of them, and their metrics.

SPLIT (in prepared data)
  a token store of conversations     document 2i has the chosen answer of pair i, document 2i + 1 the rejected one
  reference.bin                      float32 per document: the log-probability of its answer by the model that training
                                     begins with; NaN where no answer is within data.max_length. DPO's alone

The answer counts, with what ends it; turns of the assistant before it don't.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vaak.core.batch import Batch, Term, find_counted
from vaak.core.errors import DataError
from vaak.core.progress import progress
from vaak.core.storage.files import sync_file
from vaak.core.task import Dataset, Meters, Padding
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.decoding.sampling import without_dropout
from vaak.nn.feed_forward import list_mixtures
from vaak.nn.losses import Loss
from vaak.nn.preferences import DirectPreference, OddsRatio
from vaak.runs.prepared import Recipe, fingerprint_with_files
from vaak.tasks.lm.data import TokenSequence, answers_within, collate, token_padding
from vaak.text.corpora.stores import TokenStore

REFERENCE_FILE = "reference.bin"
REFERENCE_ROWS = 8
"""Pairs that the reference reads together."""


class PreferencePair(NamedTuple):
    """A pair: both conversations, and the reference's log-probabilities of their answers ``(2,)``."""

    chosen: TokenSequence
    rejected: TokenSequence
    reference: np.ndarray


class PreferenceDataset(Dataset):
    """Pairs as examples: a row ``(2, time)`` has the chosen answer's conversation, then the rejected one's.

    Conversations longer than ``max_length`` are cut, or their pairs dropped, as ``longer`` says; so is a pair with an
    answer of which nothing is left. ``num_cut`` and ``num_dropped`` count pairs.
    """

    draws_globally, is_constant = False, True

    def __init__(self, store: TokenStore, pad: int, *, max_length: int, longer: str, reference: bool) -> None:
        """``pad`` fills rows. With ``reference``, its log-probabilities are read, which are then with the store."""
        self.store, self.pad = store, pad
        sizes, is_long, has_answer = (one.reshape(-1, 2) for one in answers_within(store, max_length))
        kept = has_answer.all(1) & ~((longer == "drop") & is_long.any(1))
        self.num_cut, self.num_dropped = int((is_long.any(1) & kept).sum()), int((~kept).sum())
        self.pairs, self.sizes = np.flatnonzero(kept), sizes
        self.lengths = sizes[self.pairs].max(1)
        self.reference = np.zeros(sizes.shape, np.float32)
        if reference:
            self.reference = np.fromfile(store.folder / REFERENCE_FILE, np.float32).reshape(-1, 2)
        self.fingerprint = f"{store.fingerprint}-{max_length}-{longer}-pairs"

    def example(self, index: int, rng: np.random.Generator) -> PreferencePair:
        pair = int(self.pairs[index])
        chosen, rejected = (self._sequence(2 * pair + side, int(self.sizes[pair, side])) for side in (0, 1))
        return PreferencePair(chosen, rejected, self.reference[pair])

    def _sequence(self, document: int, size: int) -> TokenSequence:
        ids = self.store.document(document)[: size + 1].astype(np.int64)
        first = int(self.store.offsets[document]) + 1
        assert self.store.answers is not None
        return TokenSequence(ids[:-1], np.where(self.store.answers[first : first + size], ids[1:], IGNORED), 0)

    def collate(self, rows: list[list[PreferencePair]]) -> Batch:
        return collate_pairs(rows, self.pad)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        return token_padding(self.pad, longest=int(self.longest), axis=2)

    def describe(self, index: int) -> str:
        return f"pair {self.pairs[index]} of {self.store.folder}"


def collate_pairs(rows: list[list[PreferencePair]], pad: int) -> Batch:
    """Rows ``(pair, 2, time)``, padded on the right. Counts are ``pair``, ``token`` (of chosen answers), and others."""
    pairs = [pair for row in rows for pair in row]
    flat = collate([[sequence] for pair in pairs for sequence in pair[:2]], pad)
    tensors = {name: tensor.unflatten(0, (len(pairs), 2)) for name, tensor in flat.tensors.items()}
    tensors["reference"] = torch.from_numpy(np.stack([pair.reference for pair in pairs]))
    scored = tensors["targets"] != IGNORED
    counts = {
        "pair": torch.ones(len(pairs), dtype=torch.long),
        "token": scored[:, 0].sum(-1),
        "answer_token": scored.sum((1, 2)),
        "position": flat.counts["position"].view(-1, 2).sum(1),
        "example": torch.ones(len(pairs), dtype=torch.long),
    }
    return replace(flat, tensors=tensors, counts=counts)


def answer_log_probabilities(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return the log-probability of each answer ``(pair, 2)``, and the number of its tokens ``(pair, 2)``."""
    inputs, targets = batch["inputs"].flatten(0, 1), batch["targets"].flatten(0, 1)
    scored = targets != IGNORED
    places, is_real = find_counted(scored, batch, "answer_token")
    padding = {"mask": (batch["documents"] >= 0).flatten(0, 1)} if list_mixtures(model) else {}
    logits = model(inputs, select=places, **padding)
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    # the last place, which stands for those that aren't, may have no target
    wanted = targets.flatten()[places].clamp(min=0)
    each = exact.gather(-1, wanted[:, None])[:, 0] - exact.logsumexp(-1)
    spread = each.new_zeros(scored.numel()).index_add(0, places, torch.where(is_real, each, 0.0)).view_as(scored)
    return spread.sum(1).view(-1, 2), scored.sum(1).view(-1, 2)


def preference_losses(loss: Loss, model: nn.Module, batch: Batch) -> dict[str, Term]:
    """Return the terms of DPO, or of ORPO, which has the cross-entropy of chosen answers, too."""
    terms, _, _ = _terms(loss, model, batch)
    return terms


REWARD_ROUNDING = 1e-6
"""Rewards whose difference is less than this share of what they are made of differ by rounding alone."""


def _terms(loss: Loss, model: nn.Module, batch: Batch) -> tuple[dict[str, Term], Tensor, Tensor]:
    """Return the terms, the rewards ``(pair, 2)``, and the rounding of the difference of each pair's ``(pair,)``."""
    module = loss.module
    log_probabilities, counts = answer_log_probabilities(model, batch)
    reference = batch["reference"].to(log_probabilities.dtype)
    if isinstance(module, DirectPreference):
        compared = log_probabilities
        found = {loss.name: Term(module(compared, reference).sum(), "pair")}
    else:
        assert isinstance(module, OddsRatio)
        # ORPO's odds are of the mean of a token: a long answer isn't improbable for its length.
        compared = log_probabilities / counts
        found = {loss.name: Term(module(compared, reference).sum(), "pair")}
        found["cross_entropy"] = Term(-log_probabilities[:, 0].sum(), "token")
    rounding = REWARD_ROUNDING * module.rewards(compared, torch.zeros_like(reference)).abs().amax(1)
    return found, module.rewards(compared, reference), rounding


class PreferenceMeters(Meters):
    """``loss``; ``accuracy``, of pairs whose chosen answer has the higher reward; means of rewards.

    A tie is wrong, also one but for rounding: at its start, a model is as good as its reference.
    A reward is what the loss compares: of DPO β · (log π − log ρ), of ORPO the logarithm of the odds. ``margin`` is the
    mean difference of both, ``chosen_reward`` and ``rejected_reward`` are their means.
    """

    def __init__(self, protocol: dict[str, str], loss: Loss) -> None:
        self.protocol, self.loss = protocol, loss
        self.totals: dict[str, float] = {}

    def update(self, model: nn.Module, batch: Batch) -> None:
        terms, rewards, rounding = _terms(self.loss, model, batch)
        right = (rewards[:, 0] - rewards[:, 1] > rounding).sum()
        totals = [term.total for term in terms.values()]
        # This is the only wait for the device.
        found = torch.stack([*totals, right.to(rewards.dtype), *rewards.sum(0)]).tolist()
        names = [f"{name}/{term.per}" for name, term in terms.items()]
        counts = batch.totals()
        for name, value in zip([*names, "right", "chosen", "rejected"], found, strict=True):
            self.totals[name] = self.totals.get(name, 0.0) + value
        for unit in ("pair", "token"):
            self.totals[unit] = self.totals.get(unit, 0.0) + counts[unit]

    def sums(self) -> dict[str, float]:
        return self.totals

    def results(self, sums: dict[str, float]) -> dict[str, float]:
        means = {name.split("/")[0]: sums[name] / sums[name.split("/")[1]] for name in sums if "/" in name}
        chosen, rejected = sums["chosen"] / sums["pair"], sums["rejected"] / sums["pair"]
        return {
            "loss": sum(means.values()),
            **({} if len(means) == 1 else means),
            "accuracy": sums["right"] / sums["pair"],
            "margin": chosen - rejected,
            "chosen_reward": chosen,
            "rejected_reward": rejected,
        }


def with_reference(
    own: Recipe, about: Mapping[str, Any], weights: Sequence[Path], write: Callable[[Path, tuple[str, ...]], None]
) -> Recipe:
    """Return a recipe whose folder also has the reference, written by ``write(folder, splits)``.

    It depends on ``about``, where answers are cut, and on the files of the folders of ``weights``, that it begins with.
    """

    def make(folder: Path) -> dict[str, Any]:
        found = own.make(folder)
        write(folder, tuple(found["statistics"]))
        return found

    def fingerprint() -> str:
        files = [path for folder in weights if folder.is_dir() for path in sorted(folder.glob("*.safetensors"))]
        return fingerprint_with_files({"data": own.fingerprint(), **about}, files)

    return replace(own, make=make, fingerprint=fingerprint, options={**own.options, "reference": about})


@torch.inference_mode()
def write_reference(model: nn.Module, dataset: PreferenceDataset, device: torch.device) -> None:
    """Write a model's log-probabilities of answers next to their store. Raises DataError if one isn't finite."""
    found = np.full(dataset.reference.shape, np.nan, np.float32)
    # The longest first: little is padded, and a lack of memory shows at once.
    order = np.argsort(-dataset.lengths, kind="stable")
    # Nothing is drawn from this generator.
    rng = np.random.default_rng(0)
    with without_dropout(model), progress(f"reference of {dataset.store.folder.name}", len(order)) as advance:
        for first in range(0, len(order), REFERENCE_ROWS):
            chosen = order[first : first + REFERENCE_ROWS]
            batch = dataset.collate([[dataset.example(int(one), rng)] for one in chosen]).to(device)
            values, _ = answer_log_probabilities(model, batch)
            found[dataset.pairs[chosen]] = values.float().cpu().numpy()
            advance(len(chosen))
    if not np.isfinite(found[dataset.pairs]).all():
        raise DataError(f"{dataset.store.folder}: the model that training begins with gives an answer no finite score")
    path: Path = dataset.store.folder / REFERENCE_FILE
    found.tofile(path)
    sync_file(path)
