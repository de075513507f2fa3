"""A translator's figures: sacrebleu's own on the whole set, however the set is cut in batches and ranks."""

from __future__ import annotations

from itertools import zip_longest

import pytest
import sacrebleu
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from vaak.core.batch import Batch
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.seq2seq.config import DecodingConfig
from vaak.tasks.seq2seq.metrics import TranslationMeters, translation_protocol

VOCAB = 7
SCORES = ("bleu", "chrf", "chrf_plus_plus")
PREDICTED = {"loss", "perplexity", "accuracy"}


class Lookup(nn.Module):
    """Scores that are a fixed row for each input token, moved by the number of source tokens."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.register_buffer("table", torch.randn(VOCAB, VOCAB, generator=generator, dtype=torch.float64))

    def forward(self, source: Tensor, source_mask: Tensor, inputs: Tensor, target_mask: Tensor | None = None) -> Tensor:
        return self.table[inputs] * source_mask.sum(1)[:, None, None]


def batch_of(texts: list[str], references: list[list[str] | None]) -> Batch:
    """Rows whose translations are known: ``extra["texts"]`` is what ``read_out`` gives back."""
    lengths = [1 + number % 4 for number in range(len(texts))]
    inputs, targets = torch.zeros(len(texts), 4, dtype=torch.long), torch.full((len(texts), 4), IGNORED)
    source_mask = torch.zeros(len(texts), 5, dtype=torch.bool)
    for row, length in enumerate(lengths):
        inputs[row, :length] = torch.arange(row, row + length) % VOCAB
        targets[row, :length] = (torch.arange(row, row + length) * 2 + 1) % VOCAB
        source_mask[row, : 1 + row % 5] = True
    tensors = {"source": source_mask.long(), "source_mask": source_mask, "inputs": inputs, "targets": targets}
    return Batch(tensors, {"token": torch.tensor(lengths)}, extra={"references": references, "texts": texts})


def read_out(model: nn.Module, batch: Batch, is_rehearsal: bool) -> list[str]:
    assert len(batch["source"]) == len(batch.counts["token"]) == len(batch.extra["texts"])
    return batch.extra["texts"]


def meters() -> TranslationMeters:
    return TranslationMeters({"split": "test"}, read_out)


def figures(batches: list[Batch], num_ranks: int = 1) -> dict[str, float]:
    """The figures of batches that several ranks share."""
    total: dict[str, float] = {}
    for rank in range(num_ranks):
        one = meters()
        for batch in batches[rank::num_ranks]:
            one.update(Lookup(), batch)
        for name, value in one.sums().items():
            total[name] = total.get(name, 0.0) + value
    return meters().results(total)


def by_sacrebleu(texts: list[str], references: list[list[str]]) -> dict[str, float]:
    """sacrebleu's public functions on the whole set."""
    streams = list(zip_longest(*references))
    return {
        "bleu": sacrebleu.corpus_bleu(texts, streams, force=True).score,
        "chrf": sacrebleu.corpus_chrf(texts, streams).score,
        "chrf_plus_plus": sacrebleu.corpus_chrf(texts, streams, word_order=2).score,
    }


words = st.lists(st.sampled_from(["वह", "घर", "जाता", "है।", "the", "garden,", "(5.5%)", "is", "."]), max_size=8)
texts_ = words.map(" ".join) | st.text(max_size=12)
examples = st.lists(st.tuples(texts_, st.lists(texts_, min_size=1, max_size=4)), min_size=1, max_size=9)


@given(examples, st.integers(1, 4), st.integers(1, 3))
def test_scores_are_sacrebleus_of_the_whole_set(found, size, num_ranks):
    """Exactly, whatever the batches, with several references or one, and with empty translations."""
    texts, references = [text for text, _ in found], [several for _, several in found]
    batches = [batch_of(texts[i : i + size], references[i : i + size]) for i in range(0, len(texts), size)]
    results = figures(batches, num_ranks)
    assert {name: results[name] for name in SCORES} == by_sacrebleu(texts, references)


def test_known_scores():
    """A perfect translation has 100; an empty one nothing; the best of several references counts."""
    good = "यह घर बहुत पुराना है।"
    assert {name: figures([batch_of([good], [["x y", good]])])[name] for name in SCORES} == pytest.approx(
        dict.fromkeys(SCORES, 100.0)
    )
    empty = figures([batch_of(["", ""], [[good], [good]])])
    assert [empty[name] for name in SCORES] == [0.0, 0.0, 0.0]


TEXTS = ["a b c d e", "वह घर है", "", "b c d e f", "not seen", "x"]
REFERENCES = [["a b c d f", "a b"], ["वह घर है"], ["c"], ["b c d e g"], None, None]


def test_splitting_a_batch_changes_nothing():
    whole = batch_of(TEXTS, REFERENCES)
    expected = figures([whole])
    for pieces in (2, 3, 6):
        assert figures(whole.split(pieces)) == pytest.approx(expected, rel=1e-12)


def test_only_rows_with_references_are_translated():
    seen: list[str] = []

    def translate(model: nn.Module, batch: Batch, is_rehearsal: bool) -> list[str]:
        seen.extend(batch.extra["texts"])
        return batch.extra["texts"]

    one = TranslationMeters({}, translate)
    one.update(Lookup(), batch_of(TEXTS, [None, REFERENCES[1], None, REFERENCES[3], None, None]))
    assert seen == [TEXTS[1], TEXTS[3]]
    found = {name: one.results(one.sums())[name] for name in SCORES}
    assert found == by_sacrebleu(seen, [["वह घर है"], ["b c d e g"]])


def test_loss_and_accuracy_are_those_of_true_targets():
    batch, model = batch_of(TEXTS, [None] * 6), Lookup()
    one = meters()
    one.update(model, batch)
    results = one.results(one.sums())
    scores = model(batch["source"], batch["source_mask"], batch["inputs"]).log_softmax(-1)
    nats, right, tokens = 0.0, 0, 0
    for row, place in (batch["targets"] != IGNORED).nonzero().tolist():
        target = int(batch["targets"][row, place])
        nats -= float(scores[row, place, target])
        right += int(scores[row, place].argmax()) == target
        tokens += 1
    expected = {"loss": nats / tokens, "perplexity": 2.718281828459045 ** (nats / tokens), "accuracy": right / tokens}
    assert results == pytest.approx(expected, rel=1e-6)
    assert 0 < right < tokens


def test_what_was_not_counted_has_no_figure():
    assert meters().results(meters().sums()) == {}
    assert set(figures([batch_of(TEXTS, [None] * 6)])) == PREDICTED
    assert set(figures([batch_of(TEXTS, REFERENCES)])) == {*PREDICTED, *SCORES}


@pytest.mark.parametrize("fails", ["translation", "model"])
def test_an_update_that_fails_adds_nothing(fails, monkeypatch):
    def translate(model: nn.Module, batch: Batch, is_rehearsal: bool) -> list[str]:
        raise RuntimeError("out of memory")

    one, batch, model = meters(), batch_of(TEXTS, REFERENCES), Lookup()
    one.update(model, batch)
    before = dict(one.sums())
    if fails == "translation":
        one.translate = translate
    else:
        monkeypatch.setattr(model, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises((RuntimeError, ZeroDivisionError)):
        one.update(model, batch)
    assert one.sums() == before


@pytest.mark.parametrize(("numbers", "signature"), [([1, 1, 1], "1"), ([4, 4], "4"), ([1, 4, 2], "var")])
def test_the_protocol_has_sacrebleus_signatures(numbers, signature):
    """Those that sacrebleu itself gives for such references."""
    protocol = translation_protocol(DecodingConfig(method="beam", beam_size=3), 64, numbers)
    metrics = {"bleu": sacrebleu.BLEU(), "chrf": sacrebleu.CHRF(), "chrf_plus_plus": sacrebleu.CHRF(word_order=2)}
    for name, metric in metrics.items():
        metric.corpus_score(["a"] * len(numbers), list(zip_longest(*(["a"] * number for number in numbers))))
        assert protocol.pop(f"{name}_signature") == str(metric.get_signature())
        assert f"nrefs:{signature}|" in str(metric.get_signature())
    expected = {"decoding": "beam", "beam_size": "3", "length_penalty": "1.0", "early_stopping": "True"}
    assert protocol == {"translated": str(len(numbers)), "max_new_tokens": "64", **expected}


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("greedy", {}),
        ("beam", {"beam_size": "4", "length_penalty": "1.0", "early_stopping": "True"}),
        ("sampling", {"temperature": "1.0", "top_k": "0", "top_p": "1.0"}),
        ("mbr", {"num_samples": "16", "temperature": "1.0", "top_k": "0", "top_p": "1.0"}),
    ],
)
def test_the_protocol_has_what_the_method_depends_on(method, options):
    protocol = translation_protocol(DecodingConfig(method=method, max_new_tokens=90), 64, [1])
    found = {name: value for name, value in protocol.items() if not name.endswith("_signature")}
    assert found == {"translated": "1", "decoding": method, "max_new_tokens": "64", **options}


def test_the_protocol_has_what_may_not_be_repeated():
    """Only where something may not, so that protocols of earlier evaluations are still equal."""
    protocol = translation_protocol(DecodingConfig(no_repeat_ngram_size=4), 64, [1])
    assert protocol.pop("no_repeat_ngram_size") == "4"
    assert protocol == translation_protocol(DecodingConfig(), 64, [1])


def test_the_protocol_says_that_nothing_was_translated():
    assert translation_protocol(DecodingConfig(), 64, []) == {"translated": "0"}


def test_the_summary_has_sources_hypotheses_and_references():
    one = TranslationMeters({}, read_out, lambda index: f"source {index}", lambda model: {"weights": [[1.0]]})
    one.update(Lookup(), batch_of(["the garden", "is"], [["the garden", "a garden"], ["was"]]))
    found = one.summary(one.sums(), one.seen())
    first, second = found["examples"]
    assert (first["source"], first["hypothesis"]) == ("source 0", "the garden")
    assert (first["references"], first["chrf"], first["error"]) == (["the garden", "a garden"], 100.0, 0.0)
    expected = sacrebleu.sentence_chrf("is", ["was"]).score
    assert (second["chrf"], second["error"]) == (round(expected, 1), pytest.approx(100 - expected, abs=1e-5))
    assert found["scores"]["sums"] == [[100.0, 1.0], [pytest.approx(expected, abs=1e-5), 1.0]]
    assert found["attention"] == {"weights": [[1.0]]}
    assert meters().summary(meters().sums(), meters().seen()) == {}
