"""Beam search: wide enough, it finds the best there is; narrow, what transformers finds; stopping loses nothing."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tables import TableWriter
from vaak.core.errors import UserError
from vaak.nn.decoding.beam_search import BeamSettings, beam_search
from vaak.nn.decoding.hotword_writer import HotwordWriter
from vaak.nn.decoding.hotwords import Hotwords
from vaak.nn.decoding.sampling import Hypothesis, SamplingSettings, WithoutRepeats, highest, write

END = 1
PENALTIES = st.sampled_from([0.0, 0.6, 1.0, 2.0])
ROWS = st.lists(st.integers(0, 9), min_size=1, max_size=4, unique=True)


def searched(
    begin: list[int], vocab_size: int, seed: int = 0, impossible: tuple[int, ...] = (), **options: Any
) -> list[list[Hypothesis]]:
    table = TableWriter(vocab_size, begin, seed=seed, impossible=impossible)
    found = beam_search(table, torch.tensor(begin), BeamSettings(END, **options))
    assert table.longest <= options.get("max_new_tokens", 100)
    return found


def every_hypothesis(first: int, vocab_size: int, seed: int, greatest: int, penalty: float) -> list[Hypothesis]:
    """All there are, the best first: those that end, and those cut off at the greatest length."""
    table = TableWriter(vocab_size, [first], seed=seed)
    found = []
    for length in range(1, greatest + 1):
        for tokens in itertools.product(range(vocab_size), repeat=length):
            ended = tokens[-1] == END
            if END in tokens[:-1] or not (ended or length == greatest):
                continue
            prefixes = [(first, *tokens[:place]) for place in range(length)]
            total = sum(
                float(table.scores(prefix).log_softmax(-1)[token])
                for prefix, token in zip(prefixes, tokens, strict=True)
            )
            found.append(Hypothesis(tokens[:-1] if ended else tokens, total, ended))
    return sorted(found, key=lambda one: -one.score(penalty))


@given(ROWS, st.integers(2, 4), st.integers(1, 4), PENALTIES, st.integers(0, 100))
def test_of_full_width_it_finds_the_best_of_all(
    begin: list[int], vocab_size: int, greatest: int, penalty: float, seed: int
):
    width = vocab_size**greatest
    options = {"max_new_tokens": greatest, "length_penalty": penalty, "beam_size": width, "n_best": width}
    for first, found in zip(begin, searched(begin, vocab_size, seed, **options), strict=True):
        expected = every_hypothesis(first, vocab_size, seed, greatest, penalty)
        assert math.isclose(sum(math.exp(one.log_probability) for one in expected), 1)
        assert {one.tokens for one in found} == {one.tokens for one in expected}
        scores = [one.score(penalty) for one in found]
        torch.testing.assert_close(scores, [one.score(penalty) for one in expected], rtol=0, atol=1e-9)
    best = searched(begin, vocab_size, seed, **(options | {"n_best": 1}))
    assert [one.tokens for (one,) in best] == [
        every_hypothesis(first, vocab_size, seed, greatest, penalty)[0].tokens for first in begin
    ]


@pytest.mark.parametrize("early", [False, True])
def test_of_full_width_every_hypothesis_has_the_weight_of_its_hotwords(early: bool):
    pieces = ["", "", "a", " a", "b"]
    weights = {"a": 1.5, "ab a": 2.0, "ba": 0.7}
    table, hotwords = TableWriter(len(pieces), [0, 3], seed=3), Hotwords(weights, pieces)
    writer = HotwordWriter(table, hotwords, 2, END, is_greedy=False)
    width = len(pieces) ** 3
    settings = BeamSettings(END, 3, width, 0.6, early_stopping=early, n_best=width)
    for first, found in zip(
        (0, 3), beam_search(writer, torch.tensor([0, 3]), settings, lambda: writer.gains), strict=True
    ):
        expected = [
            dataclasses.replace(
                one, log_probability=one.log_probability + hotwords.score(one.tokens, has_ended=one.ended)
            )
            for one in every_hypothesis(first, len(pieces), 3, 3, 0.6)
        ]
        expected.sort(key=lambda one: -one.score(0.6))
        scores = {one.tokens: one.log_probability for one in expected}
        assert found[0].tokens == expected[0].tokens
        for one in found:
            assert one.log_probability == pytest.approx(scores[one.tokens], abs=1e-5)
    taken = next(one for one in expected if "".join(pieces[token] for token in one.tokens) == " ab")
    assert hotwords.score(taken.tokens) == 0, "a word that goes on as another one has no weight"


def by_hand(first: int, vocab_size: int, seed: int, options: dict[str, Any], impossible: tuple[int, ...]) -> list:
    """The search of one row with lists, which continues to the greatest length unless it is to stop early."""
    table = TableWriter(vocab_size, [first], seed=seed, impossible=impossible)
    size, finished = options["beam_size"], []
    live: list[tuple[tuple[int, ...], float]] = [((first,), 0.0)]
    for length in range(1, options["max_new_tokens"] + 1):
        candidates = []
        for prefix, total in live:
            scores = table.scores(prefix).log_softmax(-1).tolist()
            candidates += [((*prefix, token), total + score) for token, score in enumerate(scores) if score > -math.inf]
        candidates.sort(key=lambda one: -one[1])
        last = length == options["max_new_tokens"]
        for tokens, total in candidates[:size]:
            if tokens[-1] == END or last:
                ended = tokens[-1] == END
                finished.append(Hypothesis(tokens[1:-1] if ended else tokens[1:], total, ended))
        live = [one for one in candidates if one[0][-1] != END][:size]
        if options["early_stopping"] and len(finished) >= size:
            break
    finished.sort(key=lambda one: -one.score(options["length_penalty"]))
    return finished[: options["n_best"]]


@st.composite
def searches(draw: st.DrawFn) -> dict[str, Any]:
    size = draw(st.integers(2, 5))
    n_best = draw(st.integers(1, size))
    return {
        "beam_size": size,
        "n_best": n_best,
        "length_penalty": draw(PENALTIES),
        "max_new_tokens": draw(st.integers(1, 7)),
        "early_stopping": draw(st.booleans()),
    }


@given(ROWS, st.integers(4, 7), searches(), st.integers(0, 1000), st.sampled_from([(), (0,), (0, 3)]))
def test_it_is_the_search_by_hand(
    begin: list[int], vocab_size: int, options: dict[str, Any], seed: int, impossible: tuple[int, ...]
):
    for first, found in zip(begin, searched(begin, vocab_size, seed, impossible, **options), strict=True):
        expected = by_hand(first, vocab_size, seed, options, impossible)
        assert [one.tokens for one in found] == [one.tokens for one in expected]
        for one, other in zip(found, expected, strict=True):
            assert one.ended == other.ended
            assert math.isclose(one.log_probability, other.log_probability, abs_tol=1e-9)
            assert not {*one.tokens} & {*impossible, END}
        scores = [one.score(options["length_penalty"]) for one in found]
        assert scores == sorted(scores, reverse=True)
        assert len({(one.tokens, one.ended) for one in found}) == len(found)


@given(ROWS, searches(), st.integers(0, 1000))
def test_a_row_in_a_batch_finds_what_it_finds_alone(begin: list[int], options: dict[str, Any], seed: int):
    assert searched(begin, 6, seed, **options) == [searched([first], 6, seed, **options)[0] for first in begin]


@given(ROWS, st.integers(0, 1000), PENALTIES)
def test_of_width_1_it_is_greedy(begin: list[int], seed: int, penalty: float):
    found = searched(begin, 5, seed, beam_size=1, max_new_tokens=6, length_penalty=penalty)
    greedy = SamplingSettings(max_new_tokens=6, temperature=0, stop_ids=(END,))
    assert [one for (one,) in found] == write(TableWriter(5, begin, seed=seed), torch.tensor(begin), greedy)


def test_rows_that_are_done_are_not_scored_any_more():
    begin = list(range(20))
    table = TableWriter(6, begin)
    found = beam_search(table, torch.tensor(begin), BeamSettings(END, 30, beam_size=3, length_penalty=0.5))
    assert table.rows_scored[0] == len(begin)
    assert max(table.rows_scored) <= 3 * len(begin)
    assert table.rows_scored == [table.rows_scored[0], *sorted(table.rows_scored[1:], reverse=True)]
    assert len(table.rows_scored) < 30, "the search stops when all rows are done"
    assert all(one.ended for (one,) in found)


def test_equal_hypotheses_stand_in_a_fixed_order():
    class Even:
        """Every token is as probable as any other."""

        def next_logits(self, tokens: Tensor) -> Tensor:
            return torch.zeros(len(tokens), 6)

        def select(self, rows: Tensor) -> None:
            pass

    settings = BeamSettings(END, 2, beam_size=4, n_best=4, length_penalty=1)
    (found,) = beam_search(Even(), torch.tensor([0]), settings)
    assert [(one.tokens, one.ended) for one in found] == [((), True), ((0, 0), False), ((0,), True), ((0, 2), False)]


@given(
    st.lists(st.lists(st.integers(-3, 3), min_size=8, max_size=8), min_size=1, max_size=4),
    st.integers(1, 8),
    st.booleans(),
)
def test_highest_is_a_stable_sort(rows: list[list[int]], count: int, impossible: bool):
    scores = torch.tensor(rows, dtype=torch.float32)
    scores = scores.masked_fill(scores < 0, -math.inf) if impossible else scores
    values, places = highest(scores, count)
    expected = [sorted(range(8), key=lambda place: (-row[place], place))[:count] for row in scores.tolist()]
    assert places.tolist() == expected
    assert values.equal(scores.gather(1, places))


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"beam_size": 0}, "beam_size"),
        ({"length_penalty": -1}, "length_penalty"),
        ({"length_penalty": math.nan}, "length_penalty"),
        ({"n_best": 0}, "n_best"),
        ({"n_best": 5}, "n_best"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_settings_without_sense_are_refused(options: dict[str, Any], name: str):
    with pytest.raises(UserError, match=f"^{name} is .*must be"):
        BeamSettings(END, **options)


def test_a_diverged_model_says_so():
    class Broken(TableWriter):
        def scores(self, prefix: tuple[int, ...]) -> Tensor:
            return super().scores(prefix) * math.nan

    with pytest.raises(UserError, match="diverged"):
        beam_search(Broken(4, [0]), torch.tensor([0]), BeamSettings(END))


class TableWithoutRepeats(TableWriter):
    """Scores of which a loop over every run forbids those that would repeat one of ``size`` tokens."""

    size = 2

    def scores(self, prefix: tuple[int, ...]) -> Tensor:
        scores = super().scores(prefix).clone()
        _, *written = prefix
        runs = [written[place : place + self.size] for place in range(len(written) - self.size + 1)]
        for token in range(len(scores)):
            if [*written, token][-self.size :] in runs:
                scores[token] = -math.inf
        return scores


@pytest.mark.parametrize("beam_size", [1, 3])
@given(ROWS, st.integers(1, 3), st.integers(0, 100))
def test_no_run_is_repeated(beam_size: int, begin: list[int], size: int, seed: int):
    """In rows that are reordered and leave the batch, too; rows may begin with the token that ends them."""
    settings = BeamSettings(END, 9, beam_size, n_best=beam_size)
    table, expected = TableWriter(4, begin, seed=seed), TableWithoutRepeats(4, begin, seed=seed)
    expected.size = size
    found = beam_search(WithoutRepeats(table, size), torch.tensor(begin), settings)
    assert found == beam_search(expected, torch.tensor(begin), settings)


@pytest.mark.parametrize("size", [1, 2, 3])
@torch.inference_mode()
def test_what_repeats_nothing_is_what_transformers_writes(bart: Any, size: int):
    torch.manual_seed(5)
    source, mask = torch.randint(3, 12, (16, 7)), torch.arange(7) < torch.randint(2, 8, (16, 1))
    options = {"max_length": 16, "do_sample": False, "suppress_tokens": [0, 2]}
    theirs = bart.generate(source, attention_mask=mask.long(), no_repeat_ngram_size=size, **options)
    bart_writer = BartWriter(bart, source, mask.long())
    bart_writer.impossible = [0, 2]
    writer = WithoutRepeats(bart_writer, size)
    ours = write(writer, torch.zeros(16, dtype=torch.long), SamplingSettings(15, temperature=0, stop_ids=(END,)))
    expected = [[token for token in row[1:] if token not in (END, 2)] for row in theirs.tolist()]
    assert [list(one.tokens) for one in ours] == expected


class BartWriter:
    """A model of transformers that follows our protocol, with its own cache."""

    def __init__(self, model: Any, source: Tensor, mask: Tensor) -> None:
        self.model, self.mask = model, mask
        self.cache: Any = None
        self.impossible: list[int] = []
        self.memory = model.get_encoder()(source, attention_mask=mask)

    def next_logits(self, tokens: Tensor) -> Tensor:
        output = self.model(
            attention_mask=self.mask,
            decoder_input_ids=tokens[:, None],
            encoder_outputs=self.memory,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = output.past_key_values
        logits = output.logits[:, -1].clone()
        logits[:, self.impossible] = -math.inf
        return logits

    def select(self, rows: Tensor) -> None:
        self.memory.last_hidden_state = self.memory.last_hidden_state[rows]
        self.mask = self.mask[rows]
        self.cache.reorder_cache(rows)


@pytest.fixture(scope="module")
def bart() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "init_std": 0.4, "vocab_size": 12}
    tokens = {"pad_token_id": 2, "bos_token_id": 0, "eos_token_id": END, "decoder_start_token_id": 0}
    config = transformers.BartConfig(**sizes, **heads, **tokens, forced_eos_token_id=None, max_position_embeddings=40)
    return transformers.BartForConditionalGeneration(config).eval()


@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 1.0, 2.0])
@pytest.mark.parametrize("early_stopping", [True, False])
@torch.inference_mode()
def test_it_finds_what_transformers_finds(bart: Any, beam_size: int, length_penalty: float, early_stopping: bool):
    """Their early stopping "never" is our False; their False is a guess.

    Their limit counts the token that begins. Of one beam they give no score, and ignore the penalty, as ours must.
    """
    torch.manual_seed(5)
    source = torch.randint(3, 12, (16, 7))
    mask = torch.arange(7) < torch.randint(2, 8, (16, 1))
    theirs = bart.generate(
        source,
        attention_mask=mask.long(),
        num_beams=beam_size,
        num_return_sequences=beam_size,
        length_penalty=length_penalty,
        early_stopping=False if beam_size == 1 else early_stopping or "never",
        max_length=16,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    settings = BeamSettings(END, 15, beam_size, length_penalty, early_stopping, n_best=beam_size)
    ours = beam_search(BartWriter(bart, source, mask.long()), torch.zeros(16, dtype=torch.long), settings)
    expected = [[token for token in row[1:] if token not in (END, 2)] for row in theirs.sequences.tolist()]
    assert [list(one.tokens) for found in ours for one in found] == expected
    if not early_stopping or beam_size == 1:
        assert len({one.ended for found in ours for one in found}) == 2, "some end, some are cut off"
    if beam_size > 1:
        scores = torch.tensor([one.score(length_penalty) for found in ours for one in found])
        torch.testing.assert_close(scores, theirs.sequences_scores, rtol=0, atol=1e-4)
