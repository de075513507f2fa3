"""Decoding: the cache changes nothing, samples follow the filtered distribution, and nonsense is refused."""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from networks import draw_weights
from tiny_decoder import assert_joined_rows_are_right
from vaak.core.errors import UserError
from vaak.nn.decoding import static_cache
from vaak.nn.decoding.sampling import SamplingSettings, probabilities
from vaak.nn.decoding.static_cache import StaticStep
from vaak.tasks.lm import predict
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.predict import WITHOUT_END, Reading, RowDecoder, TokenReader, draw_rows, generate, generate_batch

VOCAB_SIZE = 30
GREEDY = SamplingSettings(temperature=0, max_new_tokens=20)


def small_model(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 4, "num_key_value_heads": 2, "dropout": 0.2}
    model = LanguageModel(LanguageModelConfig(**(sizes | options)), VOCAB_SIZE)
    draw_weights(model)
    return model


@torch.inference_mode()
def greedy_without_cache(model: LanguageModel, prompt: list[int], count: int, max_length: int) -> Iterator[int]:
    """The whole context read again for every token."""
    model.eval()
    context = list(prompt)
    while count:
        context = context[-(max_length // 2) :] if len(context) > max_length else context
        token = int(model(torch.tensor([context]))[0, -1].argmax())
        yield token
        context.append(token)
        count -= 1


def test_logits_with_the_cache_are_those_of_the_whole_context():
    model = small_model().eval()
    reader = RowDecoder(model, [[1, 2, 3], [4, 5, 6, 7, 8, 9]], WITHOUT_END)
    for token in range(12):
        logits = reader.next_logits()
        for row, context in enumerate(reader.contexts):
            torch.testing.assert_close(logits[row], model(torch.tensor([context]))[0, -1], rtol=0, atol=1e-5)
        reader.append([token, token + 1])


def test_a_row_taken_twice_goes_on_as_two():
    reader = RowDecoder(small_model(), [[1, 2], [3, 4]], WITHOUT_END)
    reader.next_logits()
    reader.select([1, 1])
    reader.append([5, 6])
    assert reader.contexts == [[3, 4, 5], [3, 4, 6]]


@pytest.mark.parametrize("options", [{}, {"position_type": "alibi"}, {"position_type": "sinusoidal"}])
def test_rows_may_join_others(options: dict[str, Any]):
    assert_joined_rows_are_right(small_model(**options))


def test_a_cache_whose_rows_come_and_go_doesnt_grow():
    reader = RowDecoder(small_model(), [[1, 2]], WITHOUT_END)
    for step in range(60):
        reader.next_logits()
        reader.append([step % VOCAB_SIZE] * len(reader.contexts))
        reader.join([[1, 2]])
        reader.select(range(max(0, len(reader.contexts) - 3), len(reader.contexts)))
        assert reader.cache.length <= 6


def test_a_cache_of_sums_lets_nobody_join():
    reader = RowDecoder(small_model(attention_type="local", num_key_value_heads=4), [[1, 2]], WITHOUT_END)
    reader.next_logits()
    assert not reader.can_join


def test_rows_that_join_are_drawn_as_alone():
    model, seeds = small_model(), [3, 4, 5, 6]
    prompts = [[7, 8], [1, 2, 3, 4, 5, 6, 7], [9], [4, 4]]
    settings = SamplingSettings(max_new_tokens=12, top_k=10)

    def write(chosen: list[int], waiting: list[int]) -> list[list[int]]:
        """The tokens of ``chosen``, and then of ``waiting``, of which one joins in each step."""
        rest, found = list(waiting), [list[int]() for _ in (*chosen, *waiting)]
        reader = TokenReader(take=lambda _: [(prompts[one], seeds[one]) for one in (rest.pop(0),)] if rest else [])
        own = [seeds[one] for one in chosen]
        for tokens in draw_rows(model, [prompts[one] for one in chosen], settings, WITHOUT_END, own, reader):
            for texts, token in zip(found, tokens, strict=False):
                texts += [] if token is None else [token]
        return found

    assert write([2], [0, 3, 1]) == [write([one], [])[0] for one in (2, 0, 3, 1)]


@pytest.mark.parametrize("max_length", [1000, 8, 2])
def test_greedy_with_the_cache_equals_greedy_without(max_length: int):
    model = small_model(qk_norm=True)
    for prompt in ([3], [5, 1, 5, 1, 5, 2, 2, 9, 9, 9, 4]):
        cached = list(generate(model, prompt, GREEDY, Reading(max_length)))
        assert cached == list(greedy_without_cache(model, prompt, 20, max_length))


def test_the_model_never_reads_more_than_max_length():
    model, lengths = small_model(), []
    reader = RowDecoder(model, [[1] * 9, [2] * 3], Reading(6))
    for token in range(20):
        reader.next_logits()
        lengths.append(reader.cache.length if reader.cache else 0)
        assert all(len(context) <= 6 for context in reader.contexts)
        reader.append([token, token])
    assert max(lengths) <= 6


def test_what_is_left_of_a_text_begins_as_the_model_was_taught_and_is_said(caplog: pytest.LogCaptureFixture):
    begins = Reading(6, begins_with=0)
    assert begins.keep_recent([0, 1, 2, 3, 4, 5]) == [0, 1, 2, 3, 4, 5]
    assert begins.keep_recent([0, 1, 2, 3, 4, 5, 6]) == [0, 5, 6]
    assert Reading(6).keep_recent([0, 1, 2, 3, 4, 5, 6]) == [4, 5, 6]
    model = small_model()
    for _ in range(2):
        list(generate(model, [0, 1, 2, 3], GREEDY, begins))
    assert [one.message for one in caplog.records] == [
        "a text has grown beyond the 6 tokens that the model reads: all but the last 3 are forgotten"
    ]


@pytest.mark.parametrize("settings", [GREEDY, SamplingSettings(max_new_tokens=20, top_k=10, top_p=0.95, seed=3)])
@pytest.mark.parametrize("max_length", [None, 8])
def test_a_prompt_in_a_batch_gets_the_text_it_gets_alone(settings: SamplingSettings, max_length: int | None):
    model = small_model()
    prompts = [[7, 8], [1, 2, 3, 4, 5, 6, 7], [9]]
    together = generate_batch(model, prompts, settings, Reading(max_length))
    assert together[0] == list(generate(model, prompts[0], settings, Reading(max_length)))
    if settings.temperature == 0:
        assert together == [list(generate(model, prompt, settings, Reading(max_length))) for prompt in prompts]
    assert generate_batch(model, [], settings) == []


def test_a_seed_gives_one_text_and_rows_differ():
    model, settings = small_model(), SamplingSettings(max_new_tokens=30, temperature=2.0, seed=1)
    first = list(generate(model, [1], settings))
    torch.rand(5)
    assert list(generate(model, [1], settings)) == first
    second = list(generate(model, [1], replace(settings, seed=2)))
    assert second != first
    assert generate_batch(model, [[1], [1]], settings, seeds=[2, 1]) == [second, first]
    same, other = generate_batch(model, [[1], [1]], settings)
    assert same == first
    assert other != first


def test_streams_and_leaves_the_model_as_it_was():
    model = small_model().train()
    state = torch.get_rng_state()
    assert len(list(islice(generate(model, [1], SamplingSettings(max_new_tokens=10**9)), 3))) == 3
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.is_grad_enabled()


def test_stop_tokens_end_the_text_and_are_not_given_out():
    model = small_model()
    text = list(generate(model, [1], GREEDY))
    stop = text[5]
    assert list(generate(model, [1], replace(GREEDY, stop_ids=(stop,)))) == text[: text.index(stop)]


def test_one_row_goes_on_where_another_has_ended():
    model = small_model()
    first, second = generate_batch(model, [[1], [2, 3]], GREEDY)
    stop = next(token for token in first if token not in second)
    ended, whole = generate_batch(model, [[1], [2, 3]], replace(GREEDY, stop_ids=(stop,)))
    assert ended == first[: first.index(stop)]
    assert whole == second


@pytest.mark.parametrize(
    "settings",
    [
        SamplingSettings(temperature=0.7),
        SamplingSettings(top_k=4),
        SamplingSettings(top_p=0.8, temperature=1.3),
        SamplingSettings(top_k=6, top_p=0.9),
    ],
)
def test_sampled_frequencies_follow_the_filtered_softmax(settings: SamplingSettings):
    model = small_model().eval()
    rows = 4000
    drawn = generate_batch(model, [[5]] * rows, replace(settings, max_new_tokens=1, seed=11))
    counts = torch.bincount(torch.tensor(drawn).flatten(), minlength=VOCAB_SIZE).double()
    scores = model(torch.tensor([[5]]))[0, -1].detach().double()
    expected = filtered_by_loops(scores.tolist(), settings) * rows
    possible = expected > 0
    assert counts[~possible].sum() == 0
    # Cells with few expected draws go together, as the chi-square test wants.
    rare = possible & (expected < 5)
    common = possible & ~rare
    observed = torch.cat([counts[common], counts[rare].sum()[None]])
    wanted = torch.cat([expected[common], expected[rare].sum()[None]])
    observed, wanted = observed[wanted > 0], wanted[wanted > 0]
    freedom = len(wanted) - 1
    statistic = ((observed - wanted) ** 2 / wanted).sum().item()
    # The normal approximation of Wilson and Hilferty: beyond 3.1 once in a thousand.
    deviation = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    assert deviation < 3.1


def filtered_by_loops(scores: list[float], settings: SamplingSettings) -> torch.Tensor:
    """The definition of temperature, top-k and top-p, one token at a time."""
    weights = [math.exp(score / settings.temperature) for score in scores]
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    order = order[: settings.top_k or None]
    total = sum(weights[token] for token in order)
    kept: list[int] = []
    reached = 0.0
    for token in order:
        if kept and reached >= settings.top_p:
            break
        kept.append(token)
        reached += weights[token] / total
    result = torch.zeros(len(scores), dtype=torch.float64)
    for token in kept:
        result[token] = weights[token] / sum(weights[other] for other in kept)
    return result


# Equal or well apart: of scores that differ by less than rounding, either may be ranked first.
scores_well_apart = st.integers(-320, 320).map(lambda units: units / 64)


@given(
    st.lists(scores_well_apart, min_size=1, max_size=8),
    st.floats(0.2, 3),
    st.integers(0, 10),
    st.floats(0, 1),
)
def test_probabilities_are_the_definition(scores: list[float], temperature: float, top_k: int, top_p: float):
    settings = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p)
    filtered = probabilities(torch.tensor(scores, dtype=torch.float64), settings)
    expected = filtered_by_loops(scores, settings)
    assert math.isclose(filtered.sum().item(), 1)
    if torch.equal(filtered > 0, expected > 0):
        torch.testing.assert_close(filtered, expected, rtol=1e-6, atol=1e-9)
    else:  # rounding moved the border: the token in question is on top_p to within rounding
        full = filtered_by_loops(scores, replace(settings, top_p=1.0))
        kept = [full[distribution > 0].sum().item() for distribution in (filtered, expected)]
        smaller = min(kept)
        assert math.isclose(smaller, top_p, abs_tol=1e-9)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 0}, [0, 0, 1, 0]),
        ({"top_k": 1}, [0, 0, 1, 0]),
        ({"top_p": 0}, [0, 0, 1, 0]),
        ({"temperature": 1e-300}, [0, 0, 1, 0]),
        ({"top_k": 0, "top_p": 1}, [0.1, 0.2, 0.4, 0.3]),
        ({"top_k": 99}, [0.1, 0.2, 0.4, 0.3]),
        ({"top_k": 2}, [0, 0, 4 / 7, 3 / 7]),
        ({"top_p": 0.5}, [0, 0, 4 / 7, 3 / 7]),
        ({"temperature": 1e9}, [0.25, 0.25, 0.25, 0.25]),
    ],
)
def test_edges_of_the_filters(options: dict[str, Any], expected: list[float]):
    logits = torch.tensor([0.1, 0.2, 0.4, 0.3], dtype=torch.float64).log()
    filtered = probabilities(logits, SamplingSettings(**options))
    torch.testing.assert_close(filtered, torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-8)


def test_of_equal_scores_top_k_keeps_exactly_k():
    logits = torch.zeros(2, 6)
    assert probabilities(logits, SamplingSettings(top_k=2)).tolist() == [[0.5, 0.5, 0, 0, 0, 0]] * 2
    assert (probabilities(logits, SamplingSettings(top_p=0)) > 0).sum(-1).tolist() == [1, 1]


def test_repetition_penalty_makes_what_was_read_less_probable():
    model = small_model()
    plain = list(generate(model, [1], replace(GREEDY, max_new_tokens=25)))
    penalised = list(generate(model, [1], replace(GREEDY, max_new_tokens=25, repetition_penalty=1e6)))
    assert len(set(penalised)) > len(set(plain))
    assert len(set(penalised)) == 25
    assert 1 not in penalised


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": math.inf}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": -0.1}, "top_p"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
    ],
)
def test_settings_without_sense_are_refused(options: dict[str, Any], name: str):
    with pytest.raises(UserError, match=f"^{name} is .*must be"):
        SamplingSettings(**options)


def test_wrong_prompts_and_models_are_refused_before_the_first_token():
    model = small_model()
    with pytest.raises(UserError, match="no tokens"):
        generate(model, [], GREEDY)
    with pytest.raises(UserError, match=r"Token 30 .* 30 tokens"):
        generate(model, [1, 30], GREEDY)
    with pytest.raises(UserError, match="max_length"):
        generate(model, [1], GREEDY, Reading(0))
    with pytest.raises(UserError, match="encoder"):
        generate(small_model(model_type="encoder"), [1], GREEDY)


def test_a_diverged_model_says_so():
    model = small_model()
    with torch.no_grad():
        model.get_parameter("stack.norm.weight").fill_(math.nan)
    with pytest.raises(UserError, match="diverged"):
        list(generate(model, [1], GREEDY))


@pytest.mark.parametrize("options", [{}, {"position_type": "sinusoidal", "norm_placement": "post"}])
def test_steps_with_a_static_cache_give_the_texts_of_one_that_grows(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    model, steps = small_model(**options), list[int]()

    def texts() -> list[list[int]]:
        prompts = [[1, 2, 3], [4, 5, 6, 7, 8, 9], [7]]
        settings = SamplingSettings(max_new_tokens=60, temperature=0.8, seed=1, stop_ids=(3,))
        return generate_batch(model, prompts, settings, Reading(50))

    grown, step = texts(), StaticStep.__call__
    assert len({len(text) for text in grown}) > 1, "a row ends before the others"
    monkeypatch.setattr(StaticStep, "__call__", lambda self, ids: steps.append(len(ids)) or step(self, ids))
    monkeypatch.setattr(predict, "GRAPHED_DEVICES", ("cpu",))
    monkeypatch.setattr(predict, "STEPS_BEFORE_GRAPH", 2)
    monkeypatch.setattr(static_cache, "CAPACITY_STEP", 8)
    assert texts() == grown
    assert len(set(steps)) > 1
    reader, plain = RowDecoder(model, [[1, 2], [3]], WITHOUT_END), RowDecoder(model, [[1, 2], [3]], WITHOUT_END)
    for token in range(30):
        if token == 20:
            reader.join([[5, 6, 7]])
            plain.join([[5, 6, 7]])
        with monkeypatch.context() as patch:
            patch.setattr(predict, "GRAPHED_DEVICES", ())
            expected = plain.next_logits()
        torch.testing.assert_close(reader.next_logits(), expected, rtol=0, atol=1e-5)
        for one in (reader, plain):
            one.append([token % 29] * len(one.contexts))
    assert reader._static is not None


def test_a_static_step_outlives_rows_that_come_and_go(monkeypatch: pytest.MonkeyPatch):
    """A server's texts end and join all the time: a new step used to be made for every change in the number of rows."""
    model, made, make = small_model(), list[int](), StaticStep.__init__
    monkeypatch.setattr(StaticStep, "__init__", lambda self, *given: make(self, *given) or made.append(self.cache.rows))
    monkeypatch.setattr(predict, "STEPS_BEFORE_GRAPH", 2)
    monkeypatch.setattr(static_cache, "CAPACITY_STEP", 64)
    reader, plain = (RowDecoder(model, [[1, 2, 3], [4], [5, 6]], WITHOUT_END) for _ in range(2))
    changes: dict[int, list[int] | list[list[int]]] = {
        6: [2, 0],  # one ends, the others in another order
        9: [[7, 8, 9, 1, 2], [3]],
        12: [list(range(1, 29))],  # longer than all that was written: moved, and no row is left
        15: [0, 1, 2],
        18: [[9, 8]],
        20: [[11]],  # no room: a step of eight rows
        26: [4, 0],  # few of eight rows: a step of two
        30: [[5], [6, 7]],  # that of four rows, again
    }
    assert len(changes[12][0]) > 12  # type: ignore[arg-type]
    replayed = 0
    for step in range(36):
        change = changes.get(step)
        for one in (reader, plain):
            if change and isinstance(change[0], int):
                one.select(change)
            elif change:
                one.join(change)  # type: ignore[arg-type]
        with monkeypatch.context() as patch:
            patch.setattr(predict, "GRAPHED_DEVICES", ())
            expected = plain.next_logits()
        monkeypatch.setattr(predict, "GRAPHED_DEVICES", ("cpu",))
        replayed += reader._static is not None
        torch.testing.assert_close(reader.next_logits(), expected, rtol=0, atol=1e-5)
        for one in (reader, plain):
            one.append([(step + row) % 29 for row in range(len(one.contexts))])
    assert reader._static is not None
    assert (made, reader._static.cache.rows) == ([4, 8, 2], 4), "the step of four rows serves again"
    assert replayed > 20


@pytest.mark.parametrize("fault", ["wrong", "raises"])
def test_a_step_that_cannot_be_captured_is_said_once_and_computed_as_ever(
    fault: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    model = small_model()
    plain = list(generate(model, [1, 2], GREEDY))

    def broken(self: StaticStep, ids: torch.Tensor) -> torch.Tensor:
        if fault == "raises":
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.full((len(ids), VOCAB_SIZE), 9.0)

    monkeypatch.setattr(StaticStep, "__call__", broken)
    monkeypatch.setattr(predict, "GRAPHED_DEVICES", ("cpu",))
    for _ in range(2):
        assert list(generate(model, [1, 2], GREEDY)) == plain
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize("options", [{"position_type": "alibi"}, {"attention_type": "local"}])
def test_what_a_static_cache_does_not_hold_has_no_such_step(options: dict[str, Any]):
    assert not small_model(**options).stack.has_static_step
    assert small_model().stack.has_static_step
