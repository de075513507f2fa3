"""Windows, streams, masks and batches hold each target in its place, and padding is masked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny_runs
from vaak.core.errors import DataError, UserError
from vaak.core.random_keys import Purpose
from vaak.data.batching import training_planner
from vaak.data.loader import Address, MicrobatchReader
from vaak.data.plan import checked_lengths
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.lm.data import Corruption, SpecialTokens, StreamDataset, TextDataset, TokenSequence, collate
from vaak.text.corpora.stores import TokenStore, write_tokens
from vaak.text.tokenizer import Tokenizer
from vaak.text.tokenizer_training import TokenizerFactory

LETTERS = "कखगघच"
DOCUMENTS = st.lists(st.text(LETTERS, max_size=12), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A token for each letter."""
    options = SimpleNamespace(type="character", vocab_size=266, min_frequency=1, training_characters=None, path=None)
    return TokenizerFactory(options).create_tokenizer([LETTERS])


@pytest.fixture(scope="module")
def stored(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], TokenStore]:
    folder = tmp_path_factory.mktemp("stores")
    return lambda documents: write_tokens(folder / "store", documents, tokenizer)


def special(tokenizer: Tokenizer, eos: bool) -> SpecialTokens:
    end = tokenizer.eos_id if eos else None
    return SpecialTokens(tokenizer.pad_id, tokenizer.bos_id, tokenizer.mask_id, end, tokenizer.vocab_size)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(documents=DOCUMENTS, eos=st.booleans(), size=st.integers(1, 6), data=st.data())
def test_windows_of_documents_say_what_stands_there(tokenizer, stored, documents, eos, size, data) -> None:
    stride = data.draw(st.integers(1, size))
    dataset = TextDataset(stored(documents), special(tokenizer, eos), Corruption(), max_length=size, stride=stride)
    assert len(dataset.lengths) == len(dataset.windows.starts)
    scored: list[list[int]] = [[] for _ in documents]
    num_bytes = 0
    for index, length in enumerate(dataset.lengths):
        example = dataset.example(index, rng())
        number, start = dataset.windows.documents[index], dataset.windows.starts[index]
        ids = [tokenizer.bos_id, *tokenizer.encode(documents[number]), *([tokenizer.eos_id] if eos else [])]
        assert len(example.inputs) == len(example.targets) == length
        assert example.inputs.tolist() == ids[start : start + length]
        kept = example.targets != IGNORED
        assert example.targets[kept].tolist() == np.array(ids[start + 1 : start + length + 1])[kept].tolist()
        scored[number] += example.targets[kept].tolist()
        num_bytes += example.num_bytes
        assert str(number) in dataset.describe(index)
    for document, tokens in zip(documents, scored, strict=True):
        assert tokens == [*tokenizer.encode(document), *([tokenizer.eos_id] if eos else [])]
    assert num_bytes == sum(len(document.encode()) + eos for document in documents)


@given(documents=DOCUMENTS, size=st.integers(2, 6))
def test_each_window_begins_with_bos_where_it_should_and_predicts_the_same(tokenizer, stored, documents, size) -> None:
    store, plain = stored(documents), special(tokenizer, True)
    begins = replace(plain, begins_windows=True)
    for make in (
        lambda ids: TextDataset(store, ids, Corruption(), max_length=size, stride=size),
        lambda ids: StreamDataset(store, replace(ids, eos=None), Corruption(), max_length=size, shift=True),
    ):
        one, other = make(plain), make(begins)
        for index in range(len(one.lengths)):
            before, after = one.example(index, rng()), other.example(index, rng())
            assert after.inputs.tolist() == [tokenizer.bos_id, *before.inputs[1:]]
            assert after.targets.tolist() == before.targets.tolist()
            assert after.num_bytes == before.num_bytes


@given(documents=DOCUMENTS, size=st.integers(2, 30))
def test_a_stream_unshifted_holds_every_target_once(tokenizer, stored, documents, size) -> None:
    dataset = StreamDataset(stored(documents), special(tokenizer, False), Corruption(), max_length=size, shift=False)
    stream = stream_of(documents, tokenizer)
    examples = [dataset.example(index, rng()) for index in range(len(dataset.lengths))]
    assert [len(example.inputs) for example in examples] == dataset.lengths.tolist()
    assert [token for example in examples for token in example.inputs] == stream[:-1]
    assert [token for example in examples for token in example.targets] == stream[1:]


@given(documents=DOCUMENTS, size=st.integers(2, 30), seed=st.integers(0, 99))
def test_shifted_windows_are_pieces_of_the_stream_at_places_of_their_own(
    tokenizer, stored, documents, size, seed
) -> None:
    dataset = StreamDataset(stored(documents), special(tokenizer, False), Corruption(), max_length=size, shift=True)
    stream = stream_of(documents, tokenizer)
    assert len(dataset.lengths) == max((len(stream) - 1) // size, int(len(stream) > 1))
    for index in range(len(dataset.lengths)):
        example = dataset.example(index, rng(seed))
        assert len(example.inputs) == min(size, len(stream) - 1)
        start = min(index * size + int(rng(seed).integers(size)), len(stream) - 1 - len(example.inputs))
        assert [*example.inputs, example.targets[-1]] == stream[start : start + len(example.inputs) + 1]
        assert example.targets[:-1].tolist() == example.inputs[1:].tolist()


def test_the_shift_is_a_function_of_seed_epoch_and_index(tokenizer, stored) -> None:
    dataset = StreamDataset(stored([LETTERS * 40]), special(tokenizer, False), Corruption(), max_length=8, shift=True)

    def read(seed: int, epoch: int, index: int) -> list[int]:
        batch = MicrobatchReader(dataset, (Purpose.DATA,), seed)[Address(1, 0, epoch, [[index]])].batch
        assert batch is not None
        return batch["inputs"][0].tolist()

    assert read(0, 0, 3) == read(0, 0, 3)
    assert len({tuple(read(0, epoch, 3)) for epoch in range(20)}) > 3
    assert len({tuple(read(seed, 0, 3)) for seed in range(20)}) > 3


def test_shifted_windows_reach_every_target_in_time(tokenizer, stored) -> None:
    dataset = StreamDataset(stored(["कखगघच" * 5]), special(tokenizer, False), Corruption(), max_length=8, shift=True)
    places: set[int] = set()
    for epoch in range(200):
        for index in range(len(dataset.lengths)):
            start = min(index * 8 + int(rng(1000 * epoch + index).integers(8)), dataset.num_targets - 8)
            assert len(dataset.example(index, rng(1000 * epoch + index)).inputs) == 8
            places |= set(range(start + 1, start + 9))
    assert places == set(range(1, 26))


@pytest.mark.parametrize("shift", [True, False])
def test_short_streams(tokenizer, stored, shift) -> None:
    one = special(tokenizer, False)
    letters = tokenizer.encode("कख")
    short = StreamDataset(stored(["क", "ख"]), one, Corruption(), max_length=100, shift=shift)
    assert short.lengths.tolist() == [3]
    example = short.example(0, rng())
    assert example.inputs.tolist() == [tokenizer.bos_id, letters[0], tokenizer.bos_id]
    assert example.targets.tolist() == [letters[0], tokenizer.bos_id, letters[1]]
    for nothing in ([""], []):
        empty = StreamDataset(stored(nothing), one, Corruption(), max_length=100, shift=shift)
        with pytest.raises(DataError, match="the dataset is empty"):
            checked_lengths(empty.lengths)


def test_dropout_hides_inputs_and_never_targets_or_beginnings(tokenizer, stored) -> None:
    store, ids = stored([LETTERS * 100]), special(tokenizer, True)
    dataset = TextDataset(store, ids, Corruption(dropout=0.3), max_length=1000, stride=1000)
    plain = TextDataset(store, ids, Corruption(), max_length=1000, stride=1000).example(0, rng())
    example = dataset.example(0, rng())
    hidden = example.inputs == tokenizer.mask_id
    assert hidden.mean() == pytest.approx(0.3, abs=0.07)
    assert example.inputs[0] == tokenizer.bos_id
    assert (example.inputs[~hidden] == plain.inputs[~hidden]).all()
    assert (example.targets == plain.targets).all()
    always = TextDataset(store, ids, Corruption(dropout=0.999999), max_length=1000, stride=1000).example(0, rng())
    assert always.inputs[0] == tokenizer.bos_id
    assert (always.inputs[1:] == tokenizer.mask_id).all()


def test_masking_asks_for_some_tokens_from_both_sides(tokenizer, stored) -> None:
    ids = special(tokenizer, False)
    dataset = TextDataset(stored([LETTERS * 800, "क"]), ids, Corruption(masking=0.2), max_length=4000, stride=4000)
    text = np.array(tokenizer.encode(LETTERS * 800))
    example = dataset.example(0, rng())
    chosen = example.targets != IGNORED
    assert chosen.mean() == pytest.approx(0.2, abs=0.03)
    assert (example.targets[chosen] == text[chosen]).all()
    assert (example.inputs[~chosen] == text[~chosen]).all()
    assert (example.inputs[chosen] == tokenizer.mask_id).mean() == pytest.approx(0.8, abs=0.05)
    assert (example.inputs[chosen] == text[chosen]).mean() == pytest.approx(0.1, abs=0.05)
    for seed in range(20):  # one token is chosen at least
        assert (dataset.example(1, rng(seed)).targets != IGNORED).all()


def test_rows_are_padded_on_the_right_and_know_their_counts() -> None:
    def sequence(*tokens: int) -> TokenSequence:
        targets = np.array(tokens) + 1
        targets[0] = IGNORED
        return TokenSequence(np.array(tokens), targets, 10 * len(tokens))

    batch = collate([[sequence(5, 6), sequence(7, 8, 9)], [sequence(4, 3)]], pad=0)
    assert batch["inputs"].tolist() == [[5, 6, 7, 8, 9], [4, 3, 0, 0, 0]]
    assert batch["targets"].tolist() == [[-100, 7, -100, 9, 10], [-100, 4, -100, -100, -100]]
    assert batch["documents"].tolist() == [[0, 0, 1, 1, 1], [0, 0, -1, -1, -1]]
    assert {unit: count.tolist() for unit, count in batch.counts.items()} == {
        "token": [3, 1],
        "example": [2, 1],
        "position": [5, 2],
        "byte": [50, 20],
    }
    assert batch.extra["packed"]
    assert not collate([[sequence(1)]], pad=0).extra["packed"]


def stream_of(documents: list[str], tokenizer: Tokenizer) -> list[int]:
    return [token for document in documents for token in (tokenizer.bos_id, *tokenizer.encode(document))]


def test_what_a_user_reads_of_an_example(tokenizer, stored) -> None:
    store = stored(["कख" * 8])
    stream = StreamDataset(store, special(tokenizer, False), Corruption(), max_length=8, shift=False)
    assert stream.describe(1) == f"token 8 of the stream {store.folder}"


# Sources mixed by step.

ALPHABETS = {"low": "abcdef", "high": "uvwxyz"}
MIXED = (
    "data.token_dropout=0",
    "data.mixture=[{step: 0, weights: [1, 0]}, {step: 4, weights: [0, 1]}]",
    "training.scheduler=constant",
)


def two_sources(folder: Path) -> tuple[str, ...]:
    """Files of words of other letters each, and the overrides that name them."""
    rng = np.random.default_rng(0)
    for name, letters in ALPHABETS.items():
        lines = [" ".join("".join(rng.choice(list(letters), 4)) for _ in range(12)) for _ in range(60)]
        (folder / f"{name}.txt").write_text("\n".join(lines))
    return (f"data.corpus.train=[{folder}/low.txt, {folder}/high.txt]", *MIXED)


@pytest.mark.parametrize("layout", ["stream", "document"])
def test_each_step_reads_the_sources_by_its_weights(layout: str, tiny_text: Path, tmp_path: Path):
    options = (*two_sources(tmp_path), f"data.layout={layout}", "training.gradient_accumulation_steps=4")
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "run", *options)
    training, dataset = task.experiment.training, task.dataset("train")
    assert isinstance(dataset, TextDataset | StreamDataset)
    planner, shares = training_planner(training, dataset), []
    for epoch in range(2):
        plan = planner.plan(epoch)
        for place in range(len(plan)):
            rows = [index for row in plan.microbatch(place) for index in row]
            texts = [task.tokenizer.decode(dataset.ids(index)[1:].tolist()) for index in rows]
            high = [sum(one in ALPHABETS["high"] for one in text) / sum(map(str.isalpha, text)) for text in texts]
            shares.append(float(np.mean(high)))
    steps = [float(np.mean(shares[first : first + 4])) for first in range(0, len(shares), 4)]
    assert steps[0] < 0.1, steps  # a window of the stream may cross into the other source
    assert min(steps[4:]) > 0.9, steps
    assert sum(steps[:4]) == pytest.approx(1.5, abs=0.3)  # 0 + 1/4 + 2/4 + 3/4


def test_a_run_that_mixes_by_step_resumes_with_the_same_bits_and_refuses_other_weights(tiny_text: Path, tmp_path: Path):
    options = two_sources(tmp_path)
    tiny_runs.train(tiny_text, tmp_path / "whole", *options)
    tiny_runs.train(tiny_text, tmp_path / "cut", *options, "training.max_steps=3", "training.checkpoint.interval=3")
    resumed = (*options, "training.checkpoint.resume=auto")
    with pytest.raises(UserError, match=r"data\.mixture"):
        tiny_runs.train(tiny_text, tmp_path / "cut", *resumed, "data.mixture=[{weights: [1, 1]}]")
    tiny_runs.train(tiny_text, tmp_path / "cut", *resumed)
    ends = [load_checkpoint(tmp_path / run / "checkpoints" / "step-00000008").model for run in ("whole", "cut")]
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("data.mixture=[{weights: [1]}]", r"mixture\.0\.weights: 1 weights, but data\.corpus\.train has 2 patterns"),
        ("data.mixture=[{weights: [0, 0]}]", "all are 0, so nothing would be read"),
        ("data.mixture=[{weights: [1, -1]}]", r"mixture\.0\.weights"),
        ("data.mixture=[{step: 5, weights: [1, 1]}, {step: 5, weights: [1, 1]}]", "steps must ascend"),
        ("training.batching=packed", "a row has one source"),
        ("data.corpus={type: grammar}", r"data\.mixture: data\.corpus\.type is grammar"),
    ],
)
def test_mixtures_that_cannot_be_are_refused(tiny_text: Path, tmp_path: Path, option: str, message: str):
    with pytest.raises(UserError, match=message):
        tiny_runs.loaded(tiny_text, tmp_path / "run", *two_sources(tmp_path), option)


def test_a_source_without_examples_is_refused(tiny_text: Path, tmp_path: Path):
    options = two_sources(tmp_path)
    (tmp_path / "high.txt").write_text((tmp_path / "low.txt").read_text())  # duplicates are dropped
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "run", *options)
    with pytest.raises(UserError, match=r"data\.mixture: .*high\.txt has no training example"):
        task.dataset("train")
