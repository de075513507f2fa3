"""Translations: each as if alone, in the order given, within the limits; a request's options override the run's."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch

from tiny_translator import SENTENCES, tiny_translator
from vaak.core.errors import UserError
from vaak.tasks.seq2seq import predict
from vaak.tasks.seq2seq.config import DecodingConfig
from vaak.tasks.seq2seq.predict import DecodingSettings, TargetWriter, Translation, decoding_settings, expected_chrf

TEXTS = [*SENTENCES["source"], "a", "the red rice is at the house where we eat", "she goes"]
METHODS = {
    "greedy": DecodingSettings("greedy", 12),
    "beam": DecodingSettings("beam", 12, beam_size=3, n_best=3),
    "sampling": DecodingSettings("sampling", 12, n_best=2, temperature=0.9, top_p=0.95, seed=4),
}
ATTENTIONS = ("softmax", "linear", "local")


def same(found: list[Translation], expected: list[Translation]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (one.source, [best.tokens for best in one.candidates]) == (
            other.source,
            [best.tokens for best in other.candidates],
        )
        for best, wanted in zip(one.candidates, other.candidates, strict=True):
            assert math.isclose(best.score, wanted.score, abs_tol=1e-9)
            assert (best.text, best.ended) == (wanted.text, wanted.ended)


@pytest.mark.parametrize(
    ("method", "attention_type"),
    [
        pytest.param(method, attention, marks=[] if number == place % len(ATTENTIONS) else [pytest.mark.slow])
        for place, method in enumerate(METHODS)
        for number, attention in enumerate(ATTENTIONS)
    ],
)
def test_a_text_in_a_batch_is_translated_as_alone(method: str, attention_type: str):
    translator, asked = tiny_translator(attention_type=attention_type, window=4), METHODS[method]
    alone = [one for text in TEXTS for one in translator.translate([text], asked)]
    assert len({one.text for one in alone}) > 4
    for batch_size, max_tokens in ((64, 32768), (2, 32768), (64, 150)):
        together = replace(asked, batch_size=batch_size, max_tokens=max_tokens)
        same(list(translator.translate(TEXTS, together)), alone)
        same(list(translator.translate(TEXTS[::-1], together))[::-1], alone)


@pytest.mark.parametrize("method", ["greedy", "beam", "sampling", "mbr"])
def test_no_run_of_tokens_is_written_twice(method: str):
    def repeats(settings: DecodingSettings) -> int:
        found = [one.tokens for text in translator.translate(TEXTS, settings) for one in text.candidates]
        runs = [list(pairwise(tokens)) for tokens in found]
        return sum(len(own) - len(set(own)) for own in runs)

    translator, asked = tiny_translator(), DecodingSettings(method, 20)
    assert repeats(asked)
    assert not repeats(replace(asked, no_repeat_ngram_size=2))


@pytest.mark.parametrize("attention_type", ATTENTIONS)
@pytest.mark.parametrize("position_type", ["rotary", "learned", "sinusoidal", "convolutional", "none"])
def test_with_the_cache_scores_are_those_of_the_whole_target(attention_type: str, position_type: str):
    """Also after rows were reordered, repeated and dropped, as beam search does."""
    translator = tiny_translator(attention_type=attention_type, position_type=position_type, window=3)
    model = translator.model.eval()
    sources = [translator.source_ids(text) for text in TEXTS[:3]]
    with torch.inference_mode():
        writer, rows, written = TargetWriter(model, sources, [0, 1]), [0, 1, 2], [[1], [1], [1]]
        for step, kept in enumerate(([0, 1, 2], [2, 2, 0, 1], [3, 0, 1], [1, 2], [0], [0, 0], [1, 0])):
            logits = writer.next_logits(torch.tensor([tokens[-1] for tokens in written]))
            for place, row in enumerate(rows):
                source = torch.tensor([sources[row]])
                expected = model(source, torch.ones_like(source, dtype=torch.bool), torch.tensor([written[place]]))
                torch.testing.assert_close(logits[place, 2:], expected[0, -1, 2:], rtol=0, atol=1e-9)
                assert logits[place, :2].tolist() == [-math.inf, -math.inf]
            writer.select(torch.tensor(kept))
            rows = [rows[place] for place in kept]
            written = [[*written[place], 5 + step + number] for number, place in enumerate(kept)]


@pytest.mark.parametrize("method", METHODS)
def test_blank_texts_stay_blank_and_the_order_is_kept_across_windows(method: str, monkeypatch: pytest.MonkeyPatch):
    translator = tiny_translator()
    expected = list(translator.translate(TEXTS, METHODS[method]))
    monkeypatch.setattr(predict, "SORTED_TOGETHER", 3)
    texts = ["", *TEXTS[:5], " \t", "\u00a0", *TEXTS[5:], ""]
    found = list(translator.translate(texts, METHODS[method]))
    assert [one.source for one in found] == texts
    assert [one for one in found if one.candidates] == [one for one in found if one.source.strip()]
    assert [one.text for one in found if not one.candidates] == [""] * 4
    same([one for one in found if one.candidates], expected)
    assert list(translator.translate([], METHODS[method])) == []


def test_the_first_texts_come_before_the_last_are_translated(monkeypatch: pytest.MonkeyPatch):
    translator = tiny_translator()
    seen: list[int] = []
    monkeypatch.setattr(predict, "SORTED_TOGETHER", 2)
    monkeypatch.setattr(TargetWriter, "__init__", watched(TargetWriter.__init__, seen))
    translations = translator.translate(TEXTS, METHODS["greedy"])
    assert next(translations).source == TEXTS[0]
    assert sum(seen) == 2


def watched(begin: Any, seen: list[int]) -> Any:
    def start(self: TargetWriter, model: Any, sources: Any, impossible: Any) -> None:
        seen.append(len(sources))
        begin(self, model, sources, impossible)

    return start


@pytest.mark.parametrize(("batch_size", "max_tokens"), [(64, 1), (64, 200), (3, 500), (2, 10_000)])
@pytest.mark.parametrize("method", METHODS)
def test_batches_keep_within_the_budget(method: str, batch_size: int, max_tokens: int, monkeypatch: pytest.MonkeyPatch):
    asked = replace(METHODS[method], batch_size=batch_size, max_tokens=max_tokens)
    shapes: list[tuple[int, int]] = []
    begin: Any = TargetWriter.__init__

    def watched(self: TargetWriter, model: Any, sources: Any, impossible: Any) -> None:
        shapes.append((len(sources), max(map(len, sources))))
        begin(self, model, sources, impossible)

    monkeypatch.setattr(TargetWriter, "__init__", watched)
    assert len(list(tiny_translator().translate(TEXTS, asked))) == sum(rows for rows, _ in shapes) == len(TEXTS)
    assert (max(rows for rows, _ in shapes) > 1) == (max_tokens > 1)
    for rows, longest in shapes:
        assert rows == 1 or (rows <= batch_size and asked.width * rows * (longest + 12) <= max_tokens)


@pytest.mark.parametrize("method", METHODS)
def test_translations_are_sorted_and_have_nothing_impossible_in_them(method: str):
    translator, asked = tiny_translator(), METHODS[method]
    target = translator.target
    found = list(translator.translate(TEXTS, asked))
    for one in found:
        scores = [best.score for best in one.candidates]
        assert scores == sorted(scores, reverse=True)
        assert len(one.candidates) == asked.n_best
        for best in one.candidates:
            assert not {*best.tokens} & {target.pad_id, target.bos_id, target.mask_id, target.eos_id}
            assert len(best.tokens) + best.ended <= 12
            assert best.ended or len(best.tokens) == 12
        if method == "beam":
            assert len({(best.tokens, best.ended) for best in one.candidates}) == 3
    assert {best.ended for one in found for best in one.candidates} == {True, False}


def test_scores_are_log_probabilities_of_the_model():
    translator = tiny_translator()
    asked = replace(METHODS["beam"], length_penalty=0.7)
    with torch.inference_mode():
        for one in translator.translate(TEXTS, asked):
            source = torch.tensor([translator.source_ids(one.source)])
            for best in one.candidates:
                ids = [translator.target.bos_id, *best.tokens, *[translator.target.eos_id] * best.ended]
                logits = translator.model.eval()(
                    source, torch.ones_like(source, dtype=torch.bool), torch.tensor([ids[:-1]])
                )
                logits[..., translator.impossible()] = -math.inf
                total = logits.log_softmax(-1)[0].gather(1, torch.tensor(ids[1:])[:, None]).sum()
                assert math.isclose(best.score, float(total) / (len(ids) - 1) ** 0.7, abs_tol=1e-9)


def test_draws_depend_on_the_seed_and_the_text_alone():
    translator, asked = tiny_translator(), METHODS["sampling"]
    first = list(translator.translate(TEXTS, asked))
    torch.rand(3)
    same(list(translator.translate(TEXTS, asked)), first)
    twice = list(translator.translate([TEXTS[0], TEXTS[0]], asked))
    same(twice, [first[0], first[0]])
    others = list(translator.translate(TEXTS, replace(asked, seed=5)))
    assert [one.text for one in others] != [one.text for one in first]
    assert any(one.candidates[0].tokens != one.candidates[1].tokens for one in first)


def test_the_draw_that_is_most_like_the_others_is_taken():
    translator, draws = tiny_translator(), METHODS["sampling"]
    asked = replace(draws, method="mbr", num_samples=8, n_best=8)
    drawn = translator.translate(TEXTS, replace(draws, n_best=8))
    for one, all_draws in zip(translator.translate(TEXTS, asked), drawn, strict=True):
        texts = [candidate.text for candidate in all_draws.candidates]
        likeness = dict(zip(texts, expected_chrf(texts).tolist(), strict=True))
        found = [candidate.text for candidate in one.candidates]
        assert sorted(found) == sorted(likeness), "each text once"
        assert [likeness[text] for text in found] == sorted(likeness.values(), reverse=True)


def test_the_model_stays_as_it_was():
    translator = tiny_translator(dropout=0.3)
    translator.model.train()
    first = [one.text for one in translator.translate(TEXTS, METHODS["greedy"])]
    assert first == [one.text for one in translator.translate(TEXTS, METHODS["greedy"])], "without dropout"
    assert all(module.training for module in translator.model.modules())


def test_a_text_longer_than_the_model_reads_is_named_before_anything_is_translated():
    long, asked = "the boy goes home at night", METHODS["greedy"]
    number = len(tiny_translator().source_ids(long))
    assert next(tiny_translator(max_source_length=number).translate([f" {long}\n"], asked)).candidates
    translator = tiny_translator(max_source_length=number - 1)
    refusal = rf"^text 2 has {number} tokens, .* at most {number - 1} \(data.max_source_length\)"
    with pytest.raises(UserError, match=refusal) as error:
        translator.translate(["no", long, long], asked)
    assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=r"^a.txt:3 has"):
        translator.translate(["", "no", long], asked, lambda index: f"a.txt:{index + 1}")


@pytest.mark.parametrize(
    ("config", "asked", "expected"),
    [
        ({}, {}, {"method": "greedy", "max_new_tokens": 50}),
        ({"method": "beam", "beam_size": 7, "length_penalty": 0.5}, {}, {"method": "beam", "beam_size": 7}),
        ({"method": "beam"}, {"beam_size": None}, {"method": "beam", "beam_size": 4}),
        ({}, {"beam_size": 3}, {"method": "beam", "beam_size": 3}),
        ({}, {"n_best": 3}, {"method": "beam", "n_best": 3}),
        ({}, {"n_best": 1}, {"method": "greedy"}),
        ({"method": "sampling", "top_k": 5}, {"n_best": 3}, {"method": "sampling", "n_best": 3, "top_k": 5}),
        ({"method": "beam"}, {"temperature": 0.5}, {"method": "sampling", "temperature": 0.5}),
        ({"method": "mbr", "top_k": 5}, {"temperature": 0.5}, {"method": "mbr", "temperature": 0.5, "top_k": 5}),
        ({"method": "mbr"}, {"n_best": 3}, {"method": "mbr", "n_best": 3, "num_samples": 16}),
        ({}, {"num_samples": 8}, {"method": "mbr", "num_samples": 8}),
        ({"method": "sampling"}, {"num_samples": 8, "temperature": 0.5}, {"method": "mbr", "num_samples": 8}),
        ({"method": "beam"}, {"method": "greedy"}, {"method": "greedy"}),
        ({"no_repeat_ngram_size": 4}, {"num_samples": 8}, {"method": "mbr", "no_repeat_ngram_size": 4}),
        ({}, {"no_repeat_ngram_size": 4}, {"method": "greedy", "no_repeat_ngram_size": 4}),
        ({"max_new_tokens": 20}, {}, {"max_new_tokens": 20}),
        ({"max_new_tokens": 20}, {"max_new_tokens": 30}, {"max_new_tokens": 30}),
        ({}, {"max_new_tokens": 1000}, {"max_new_tokens": 50}),
    ],
)
def test_what_is_asked_for_goes_over_the_run(config: dict[str, Any], asked: dict[str, Any], expected: dict[str, Any]):
    found = decoding_settings(DecodingConfig(**config), 50, **asked)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (
            {"method": "sampling", "num_samples": 3},
            "num_samples is an option of method mbr, but the method is sampling",
        ),
        ({"method": "mbr", "num_samples": 4, "n_best": 5}, "n_best is 5 of 4 draws"),
        ({"no_repeat_ngram_size": -1}, "no_repeat_ngram_size is -1; it must be 0 \\(off\\) or more"),
        ({"num_samples": 0}, "num_samples is 0; it must be at least 1"),
        ({"method": "greedy", "beam_size": 3}, "beam_size is an option of method beam, but the method is greedy"),
        ({"beam_size": 3, "temperature": 0.5}, "is an option of method"),
        ({"method": "greedy", "n_best": 2}, "n_best is 2"),
        ({"n_best": 5}, r"n_best is 5; it must be from 1 to beam_size \(4\)"),
        ({"method": "best"}, "method is best"),
        ({"beam_size": 0}, "beam_size is 0"),
        ({"temperature": -1.0}, "temperature is -1"),
        ({"max_new_tokens": -1}, "max_new_tokens is -1"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_tokens": 0}, "max_tokens is 0"),
    ],
)
def test_settings_without_sense_are_refused(asked: dict[str, Any], words: str):
    with pytest.raises(UserError, match=words):
        decoding_settings(DecodingConfig(), 50, **asked)
