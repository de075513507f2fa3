"""Examples and batches: their layout; padding changes nothing; lengths are upper bounds."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose
from vaak.data.bucketing import BucketedPlanner
from vaak.data.loader import Address, MicrobatchReader
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.seq2seq.config import Seq2SeqDataConfig
from vaak.tasks.seq2seq.data import PairDataset, PairExample, PairTokens, PreparedPairs, collate, recipe
from vaak.text.difficulties import WordCounts

SPECIAL = PairTokens(source_pad=0, source_eos=2, source_mask=3, target_pad=5, target_bos=6, target_eos=7, target_mask=8)
SIDES = st.lists(st.integers(10, 99), max_size=9)


def example_of(source: list[int], target: list[int]) -> PairExample:
    targets = np.array([*target, SPECIAL.target_eos])
    inputs = np.array([SPECIAL.target_bos, *target])
    return PairExample(np.array([*source, SPECIAL.source_eos]), inputs, targets)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[PreparedPairs, Seq2SeqDataConfig]:
    folder = tmp_path_factory.mktemp("pairs")
    train = "".join(f'{{"en": "{"a " * (n % 7 + 1)}{n}", "hi": "लड़का {n}{" गया" * (n % 5)}"}}\n' for n in range(60))
    (folder / "train.jsonl").write_text(train)
    valid = '{"en": "a", "hi": ["क", "ख"]}\n{"en": "a a", "hi": "ग"}\n{"en": "a a a", "hi": "घ घ घ"}\n'
    (folder / "valid.jsonl").write_text(valid)
    corpus = {"type": "json", "train": (str(folder / "train.jsonl"),), "valid": (str(folder / "valid.jsonl"),)}
    tokenizer = {"type": "character", "vocab_size": 320, "min_frequency": 1}
    data = Seq2SeqDataConfig.model_validate({"corpus": corpus, "tokenizer": tokenizer})
    return PreparedPairs.make(recipe(data), folder / "prepared"), data


def read(dataset: PairDataset, *indices: int):
    batch = MicrobatchReader(dataset, (Purpose.DATA,), 0)[Address(1, 0, 0, [[index] for index in indices])].batch
    assert batch is not None
    return batch


@given(rows=st.lists(st.tuples(SIDES, SIDES), min_size=1, max_size=5))
def test_a_row_of_a_batch_is_its_example_and_the_rest_is_padding(rows: list[tuple[list[int], list[int]]]):
    batch = collate([example_of(*row) for row in rows], SPECIAL, with_texts=False)
    assert batch["source"].dtype == batch["inputs"].dtype == batch["targets"].dtype == torch.int64
    assert batch["source_mask"].dtype == torch.bool
    for row, (source, target) in enumerate(rows):
        real = batch["source_mask"][row]
        assert batch["source"][row][real].tolist() == [*source, SPECIAL.source_eos]
        assert real.tolist() == sorted(real.tolist(), reverse=True)
        assert set(batch["source"][row][~real].tolist()) <= {SPECIAL.source_pad}
        scored = batch["targets"][row] != IGNORED
        assert batch["targets"][row][scored].tolist() == [*target, SPECIAL.target_eos]
        assert batch["inputs"][row][scored].tolist() == [SPECIAL.target_bos, *target]
        assert set(batch["inputs"][row][~scored].tolist()) <= {SPECIAL.target_pad}
        counts = {unit: int(count[row]) for unit, count in batch.counts.items()}
        positions = len(source) + len(target) + 2
        expected = {"token": len(target) + 1, "source_token": len(source) + 1, "position": positions, "example": 1}
        assert counts == expected
    assert batch["source"].shape[1] == max(len(source) + 1 for source, _ in rows)
    assert batch["targets"].shape == batch["inputs"].shape
    assert batch["targets"].shape[1] == max(len(target) + 1 for _, target in rows)
    assert batch.extra == {}


def test_examples_are_the_texts(prepared):
    made, data = prepared
    dataset = PairDataset(made, "train", data)
    tokenizer = made.source_tokenizer
    assert (dataset.strata, dataset.row_capacity, dataset.draws_globally) == (None, None, False)
    for index in range(len(dataset.lengths)):
        example, pair = dataset.example(index, np.random.default_rng(0)), dataset.pairs[index]
        assert tokenizer.decode(example.source[:-1].tolist()) == pair.source
        assert example.source[-1] == example.targets[-1] == tokenizer.eos_id
        assert example.inputs[0] == tokenizer.bos_id
        assert example.inputs[1:].tolist() == example.targets[:-1].tolist()
        assert tokenizer.decode(example.targets[:-1].tolist()) == pair.targets[0]
        assert dataset.lengths[index] == 2 * max(len(example.source), len(example.targets))
        assert dataset.describe(index).endswith(f"train.jsonl:{index + 1}")
    assert read(dataset, 0, 3).extra == {}


def test_dropped_tokens_are_masked_on_both_sides_in_training_alone(prepared):
    made, data = prepared
    dropping = data.model_copy(update={"token_dropout": 0.5})
    indices = range(len(PairDataset(made, "train", data).lengths))
    whole, dropped = (read(PairDataset(made, "train", options), *indices) for options in (data, dropping))
    special = PairTokens.of(made)
    assert torch.equal(whole["targets"], dropped["targets"])
    for name, mask, kept in (
        ("source", special.source_mask, special.source_eos),
        ("inputs", special.target_mask, special.target_bos),
    ):
        changed = whole[name] != dropped[name]
        droppable = (whole[name] != kept) & (whole["source_mask"] if name == "source" else whole["targets"] != IGNORED)
        assert (dropped[name][changed] == mask).all()
        assert not (changed & ~droppable).any()
        assert 0.35 < changed.sum() / droppable.sum() < 0.65
    assert torch.equal(*(read(PairDataset(made, "valid", options), 0, 1)["source"] for options in (data, dropping)))


def test_workers_get_paths_and_not_the_data(prepared):
    made, data = prepared
    dataset = PairDataset(made, "valid", data)
    copy = pickle.loads(pickle.dumps(dataset))
    assert torch.equal(read(copy, 0, 1, 2)["source"], read(dataset, 0, 1, 2)["source"])


def test_evaluation_keeps_all_references_and_splits_them_with_its_rows(prepared):
    made, data = prepared
    batch = read(PairDataset(made, "valid", data), 2, 0, 1)
    assert batch.extra["sources"] == ["a a a", "a", "a a"]
    assert batch.extra["references"] == [["घ घ घ"], ["क", "ख"], ["ग"]]
    first, second = batch.split(2)
    assert first.extra["references"] == [["घ घ घ"], ["क", "ख"]]
    assert second.extra == {"sources": ["a a"], "references": [["ग"]]}
    assert batch["targets"][1][:2].tolist() == [made.target_tokenizer.encode("क")[0], made.target_tokenizer.eos_id]


@pytest.mark.parametrize(
    ("number", "translated"), [(None, [True, True, True]), (1, [True, False, False]), (0, [False] * 3)]
)
def test_only_the_first_of_valid_are_translated(prepared, number, translated):
    made, data = prepared
    limited = data.model_copy(update={"decoding": data.decoding.model_copy(update={"valid_examples": number})})
    batch = read(PairDataset(made, "valid", limited), 0, 1, 2)
    assert [references is not None for references in batch.extra["references"]] == translated
    assert None not in batch.extra["sources"]


@given(
    sides=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=60),
    budget=st.integers(80, 400),
)
def test_lengths_bound_the_padded_places_of_both_sides(sides: list[tuple[int, int]], budget: int):
    source, target = np.array(sides).T
    plan = BucketedPlanner(2 * np.maximum(source, target), budget, 32, 10, 0).plan(0)
    for first, last in zip(plan.microbatch_starts, plan.microbatch_starts[1:], strict=False):
        rows = plan.indices[first:last]
        assert len(rows) * (source[rows].max() + target[rows].max()) <= budget


def test_difficulty_is_that_of_the_words_of_both_sides(prepared):
    made, data = prepared
    dataset = PairDataset(made, "train", data)
    assert np.array_equal(dataset.difficulty("length"), dataset.lengths)
    texts = [f"{pair.source} {pair.targets[0]}" for pair in dataset.pairs]
    counts = WordCounts(texts)
    np.testing.assert_allclose(dataset.difficulty("lexical"), list(map(counts.lexical, texts)), atol=1e-6)
    (kept,) = dataset.pairs.folder.glob("difficulty-lexical-*.bin")
    kept.write_bytes(np.arange(60, dtype="<f8").tobytes())
    assert np.array_equal(dataset.difficulty("lexical"), np.arange(60))
    with pytest.raises(UserError, match="unknown difficulty depth; choose from length, lexical, morphology"):
        dataset.difficulty("depth")


def test_the_fingerprint_changes_with_content_and_limits(prepared, tmp_path: Path):
    made, data = prepared
    mark = PairDataset(made, "train", data).fingerprint
    assert PairDataset(made, "train", data).fingerprint == mark
    assert PairDataset(made, "valid", data).fingerprint != mark
    assert PairDataset(made, "train", data.model_copy(update={"max_target_length": 100})).fingerprint != mark
    with pytest.raises(UserError, match="unknown split 'test'; expected one of train, valid"):
        PairDataset(made, "test", data)
