"""Minimal pairs: files of them, what is wrong with one, and the sentences as a model reads them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import tiny_runs
from vaak.core.errors import DataError, UserError
from vaak.engine.distributed.ranks import Ranks
from vaak.engine.evaluation import Evaluator
from vaak.tasks.lm.metrics import GRAMMAR_PAIRS, read_pairs


def write(path: Path, *lines: str | dict[str, str]) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def pair(good: str, bad: str, **more: str) -> dict[str, str]:
    return {"sentence_good": good, "sentence_bad": bad, **more}


def test_files_and_the_grammar_are_read(tmp_path: Path):
    one = write(tmp_path / "one.jsonl", pair("a", "b", UID="order"), "", pair("क\u093c", "c"))
    pairs = read_pairs((one, "grammar"))
    assert [(found.good, found.bad, found.phenomenon, found.origin) for found in pairs[:2]] == [
        ("a", "b", "order", f"{one}:1"),
        ("क\u093c", "c", "one", f"{one}:3"),
    ]
    phenomena = [found.phenomenon for found in pairs[2:]]
    assert len(set(phenomena)) >= 8
    assert all(phenomena.count(name) == GRAMMAR_PAIRS for name in set(phenomena))


@pytest.mark.parametrize(
    "line",
    [
        '{"sentence_good": "a"',
        '{"sentence_good": "a"}',
        '["a", "b"]',
        "7",
        '{"sentence_good": "a", "sentence_bad": null}',
        '{"sentence_good": "a", "sentence_bad": 3}',
        '{"sentence_good": "a", "sentence_bad": " "}',
    ],
)
def test_a_broken_line_is_named(tmp_path: Path, line: str):
    path = write(tmp_path / "pairs.jsonl", pair("a", "b"), line)
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: .*minimal pair"):
        read_pairs((path,))


def test_bytes_that_are_no_text_and_files_that_are_not_there(tmp_path: Path):
    (tmp_path / "bad.jsonl").write_bytes(b'{"sentence_good": "\xff", "sentence_bad": "b"}\n')
    with pytest.raises(DataError, match=r"bad\.jsonl:1: this isn't a minimal pair"):
        read_pairs((str(tmp_path / "bad.jsonl"),))
    with pytest.raises(DataError, match=r"data\.minimal_pairs: no such file"):
        read_pairs((str(tmp_path / "none.jsonl"),))
    with pytest.raises(DataError, match=r"no pairs in .*empty\.jsonl"):
        read_pairs((write(tmp_path / "empty.jsonl"),))
    with pytest.raises(DataError, match="name files of BLiMP JSON lines"):
        read_pairs(())


@pytest.mark.parametrize("layout", ["document", "stream"])
def test_pairs_are_scored_as_the_model_says(tiny_text: Path, tmp_path: Path, layout: str):
    lines = (tiny_text / "test.txt").read_text().splitlines()
    both = list(zip(lines[0::2], lines[1::2], strict=True))
    path = write(tmp_path / "pairs.jsonl", *(pair(good, bad, UID="other") for good, bad in both))
    task = tiny_runs.prepared_task(
        tiny_text, tmp_path / "run", f"data.minimal_pairs=['{path}']", f"data.layout={layout}", "data.max_length=128"
    )
    assert task.evaluation_splits == ("valid", "pairs")
    model, tokenizer = task.model().eval(), task.tokenizer
    torch.nn.init.normal_(model.embedding.weight, std=0.5)

    @torch.no_grad()
    def nats(sentence: str) -> float:
        end = [tokenizer.eos_id] if layout == "document" else []
        ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(sentence), *end]])
        scores = model(ids[:, :-1]).log_softmax(-1)
        return -float(scores.gather(-1, ids[:, 1:, None]).sum())

    expected = sum(nats(good) < nats(bad) for good, bad in both) / len(both)
    assert 0 < expected < 1
    found = Evaluator(task, task.experiment.training, Ranks(torch.device("cpu"))).evaluate(model, "pairs")
    assert found == {"pairs_accuracy": expected, "pairs_accuracy/other": expected}


def test_a_pair_that_is_too_long_is_named_before_training(tiny_text: Path, tmp_path: Path):
    path = write(tmp_path / "pairs.jsonl", pair("a", "b"), pair("क" * 200, "b"))
    with pytest.raises(DataError, match=r"pairs\.jsonl:2: the pair has \d+ tokens, more than data\.max_length 48"):
        tiny_runs.prepared_task(tiny_text, tmp_path / "run", f"data.minimal_pairs=['{path}']")


def test_an_encoder_has_no_pairs(tiny_text: Path, tmp_path: Path):
    with pytest.raises(UserError, match="use model_type: decoder"):
        tiny_runs.prepared_task(tiny_text, tmp_path / "run", "model.model_type=encoder", "data.minimal_pairs=[grammar]")
    task = tiny_runs.prepared_task(tiny_text, tmp_path / "run", "model.model_type=encoder")
    data = task.data.model_copy(update={"minimal_pairs": ("grammar",)})
    others = task.experiment.model_copy(update={"data": data})
    with pytest.raises(UserError, match="use model_type: decoder"):
        type(task)(others, tmp_path / "run", tmp_path)


def test_blimp_loads(vaak_data):
    pairs = read_pairs((str(vaak_data("blimp") / "*.jsonl"),))
    phenomena = {found.phenomenon for found in pairs}
    assert len(pairs) == 13_000
    assert len(phenomena) == 13
    assert "causative" in phenomena
    assert all(found.good != found.bad for found in pairs)
