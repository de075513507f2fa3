"""n-grams of tokens: against a model of dictionaries, and mixed with a network wherever a run is used."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tiny_decoder
from commands import Commands, stat_records
from networks import draw_weights
from ngram_reference import NgramModel
from vaak.core.errors import DataError
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.runs.open_run import open_run
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel, TransformersDecoder
from vaak.tasks.lm.ngram import TokenNgram, count_ngrams, write_ngrams
from vaak.tasks.lm.predict import WITHOUT_END, Reading, RowDecoder, generate, generate_batch

BOS, VOCAB_SIZE, ORDER = 6, 8, 4


def draw_texts(seed: int, number: int = 30) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 6, rng.integers(1, 40)) for _ in range(number)]


def make_ngram(texts: list[np.ndarray], begins: int | None = None, weight: float = 0.3) -> TokenNgram:
    arrays = count_ngrams(texts, ORDER, VOCAB_SIZE, begins)
    return TokenNgram({name: torch.from_numpy(array) for name, array in arrays.items()}, weight, begins)


def newest_first(before: list[int]) -> torch.Tensor:
    return torch.tensor([[*reversed(before), *[-1] * ORDER][: ORDER - 1]])


@pytest.mark.parametrize("number", [0, 1, 30])
def test_probabilities_are_those_of_dictionaries(number: int):
    texts = draw_texts(number, number)
    ngram, reference = make_ngram(texts), NgramModel([text.tolist() for text in texts], ORDER, VOCAB_SIZE)
    rng, every = np.random.default_rng(1), torch.arange(VOCAB_SIZE)
    for size in range(ORDER + 2):
        before = rng.integers(0, VOCAB_SIZE, size).tolist()
        found = ngram.probabilities(newest_first(before))[0]
        expected = [reference.probability(before, token) for token in range(VOCAB_SIZE)]
        assert found.tolist() == pytest.approx(expected, abs=1e-12)
        assert ngram.probability(newest_first(before).expand(VOCAB_SIZE, -1), every).tolist() == pytest.approx(
            expected, abs=1e-12
        )
        assert float(found.sum()) == pytest.approx(1.0, abs=1e-12)


def test_what_begins_a_text_counts_as_often_as_it_occurs():
    # After [bos] come 1, 1, 1, 2: different tokens before "[bos] 1" there are none.
    texts = [np.array([BOS, *rest]) for rest in ([1, 2, 3], [1, 3, 3], [1, 5], [2, 4])]
    found = make_ngram(texts, BOS).probabilities(newest_first([BOS]))[0]
    assert found[1] > 2 * found[2] > 4 * found[4]
    alike = make_ngram(texts).probabilities(newest_first([BOS]))[0]
    assert alike.tolist() == pytest.approx(make_ngram(texts).probabilities(newest_first([]))[0].tolist())


def test_contexts_end_where_a_document_begins():
    ngram = make_ngram([np.array([1])], BOS)
    rows = torch.tensor([[1, 2, BOS, 3, 4], [0, 0, 1, 2, 3]])
    documents = torch.tensor([[0, 0, 0, 0, 0], [-1, -1, 0, 1, 1]])
    found = ngram.find_contexts(rows, documents)
    assert found[0].tolist() == [[1, -1, -1], [2, 1, -1], [BOS, -1, -1], [3, BOS, -1], [4, 3, BOS]]
    assert found[1, 2:].tolist() == [[1, -1, -1], [2, -1, -1], [3, 2, -1]]


def small_model(**options: Any) -> LanguageModel:
    torch.manual_seed(0)
    sizes = {"d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
    model = LanguageModel(LanguageModelConfig(**(sizes | options)), VOCAB_SIZE)
    draw_weights(model)
    return model


@pytest.mark.parametrize("geometric", [0.0, 0.4])
def test_a_decoder_is_mixed_in_use_and_trained_alone(geometric: float):
    model, rows = small_model(), torch.tensor([[BOS, 1, 2, 3, 1], [1, 2, 4, 5, 0]])
    alone = model.eval()(rows)
    ngram = model.ngram = make_ngram(draw_texts(0), BOS).float()
    own = ngram.probabilities(ngram.find_contexts(rows).flatten(0, 1))
    ngram.geometric = geometric
    both = alone.flatten(0, 1).softmax(-1) ** (1 - geometric) * own**geometric
    expected = 0.3 * own + 0.7 * both / both.sum(-1, keepdim=True)
    mixed = model(rows)
    torch.testing.assert_close(mixed.flatten(0, 1).exp(), expected)
    is_chosen = torch.tensor([[True, False, False, True, False], [False, False, False, False, True]])
    torch.testing.assert_close(model(rows, select=is_chosen, project=False), mixed[is_chosen])
    torch.testing.assert_close(model(rows, select=is_chosen.flatten().nonzero()[:, 0]), mixed[is_chosen])
    assert torch.equal(model.train()(rows), alone)
    assert torch.equal(model.without_ngram().eval()(rows), alone)
    assert model.ngram is ngram
    assert not [name for name in model.state_dict() if "ngram" in name]


def test_a_mixture_reads_token_by_token_what_it_reads_at_once():
    model = small_model().eval()
    model.ngram = make_ngram(draw_texts(1), BOS).float()
    reader = RowDecoder(model, [[BOS, 1], [4, 5, 1, 2, 3, 0]], WITHOUT_END)
    for token in (1, 2, 3, 4, 5):
        logits = reader.next_logits()
        for row, context in enumerate(reader.contexts):
            torch.testing.assert_close(logits[row], model(torch.tensor([context]))[0, -1], atol=1e-5, rtol=1e-5)
        reader.append([token, token])
    reader.select([1])
    torch.testing.assert_close(
        reader.next_logits()[0], model(torch.tensor([reader.contexts[0]]))[0, -1], atol=1e-5, rtol=1e-5
    )
    settings = SamplingSettings(temperature=1.0, max_new_tokens=12, seed=3)
    prompts = [[BOS, 1], [1, 2, 3, 4]]
    assert generate_batch(model, prompts, settings, Reading(6), [3, 3]) == [
        list(generate(model, prompt, settings, Reading(6))) for prompt in prompts
    ]


def test_a_damaged_file_is_named(tmp_path: Path):
    file = tmp_path / "ngram.safetensors"
    for content in (None, b"", b"12345678"):
        if content is not None:
            file.write_bytes(content)
        with pytest.raises(DataError, match=r"ngram\.safetensors: the n-grams of model\.ngram can't be read"):
            TokenNgram.load(file, 0.3, BOS)
    write_ngrams(file, count_ngrams(draw_texts(2), ORDER, VOCAB_SIZE))
    assert TokenNgram.load(file, 0.3, BOS).order == ORDER


@pytest.mark.parametrize("kind", ["llama", pytest.param("gpt_neox", marks=pytest.mark.slow)])
def test_a_base_is_mixed_with_the_texts_of_its_run(
    vaak: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.chdir(tmp_path)
    tiny_decoder.write_folder(tmp_path / "base", kind)
    about = {"d_model: 16, num_layers: 1, num_heads: 2, dropout: 0.1, NGRAM": "pretrained: base, ngram: {order: 3}"}
    about |= {"tokenizer: {vocab_size: 300}, ": "", "NAME": "mixed", "max_steps: 6": "max_steps: 1"}
    recipe = RECIPE
    for old, new in about.items():
        recipe = recipe.replace(old, new)
    (tmp_path / "mixed.yml").write_text(recipe)
    code, _, errors = vaak("train", "mixed.yml")
    assert code == 0, errors
    opened = open_run(Path("runs/mixed"), device="cpu")
    model: Any = opened.model
    assert isinstance(model, LanguageModel if kind == "llama" else TransformersDecoder)
    task: Any = opened.task
    rows = torch.tensor([task.prepared.store("train").document(0)[:9].tolist()])
    ngram: Any = model.ngram
    network = model.without_ngram().eval()(rows).softmax(-1)
    own = ngram.probabilities(ngram.find_contexts(rows)[0])[None]
    expected = 0.75 * network + 0.25 * nn.functional.pad(own, (0, network.shape[-1] - own.shape[-1]))
    torch.testing.assert_close(model.eval()(rows).exp(), expected, atol=1e-6, rtol=1e-4)
    reader = RowDecoder(model, [rows[0, :4].tolist(), rows[0, :2].tolist()], WITHOUT_END)
    for at in range(4, 8):
        logits = reader.next_logits()
        torch.testing.assert_close(logits[0].exp(), expected[0, at - 1], atol=1e-6, rtol=1e-4)
        reader.append(rows[0, [at, at - 2]].tolist())
    reader.join([rows[0, :3].tolist()])
    logits = reader.next_logits()[[0, 2]].exp()
    torch.testing.assert_close(logits, expected[0, [7, 2]], atol=1e-6, rtol=1e-4)


RECIPE = """\
task: lm
name: NAME
model: {d_model: 16, num_layers: 1, num_heads: 2, dropout: 0.1, NGRAM}
data: {corpus: {num_sentences: 300}, tokenizer: {vocab_size: 300}, max_length: 32}
training: {max_steps: 6, batch_size: 8, device: cpu, logging: {tensorboard: false, interval: 1}}
"""


@pytest.fixture(scope="module")
def runs(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two runs that differ in model.ngram alone."""
    folder = tmp_path_factory.mktemp("mixtures")
    for name, ngram in (("alone", "ngram: null"), ("mixed", "ngram: {order: 3, weight: 0.4}")):
        (folder / f"{name}.yml").write_text(RECIPE.replace("NAME", name).replace("NGRAM", ngram))
        done = commands.start(["train", f"{name}.yml"], folder).wait()
        assert done.status == 0, done.errors
    return folder / "runs"


def test_training_is_that_of_the_network_alone(runs: Path):
    def losses(name: str) -> list[float]:
        return [one["loss"] for one in stat_records(runs / name) if one["kind"] == "step"]

    assert losses("mixed") == losses("alone")
    assert not list((runs / "alone" / "prepared").glob("ngram*"))


def score(model: LanguageModel, dataset: Any, weight: float) -> float:
    """Compute a dataset's nats by hand, sentence by sentence, from the network's and the n-grams' probabilities."""
    ngram, alone, nats, rng = model.ngram, model.without_ngram().eval(), 0.0, np.random.default_rng(0)
    assert ngram is not None
    for index in range(len(dataset.lengths)):
        example = dataset.example(index, rng)
        inputs, targets = torch.from_numpy(example.inputs)[None], torch.from_numpy(example.targets)
        with torch.inference_mode():
            network = alone(inputs)[0].softmax(-1)[torch.arange(len(targets)), targets]
        own = ngram.probability(ngram.find_contexts(inputs)[0], targets)
        nats -= float((weight * own + (1 - weight) * network).log().sum())
    return nats


def test_an_evaluation_scores_the_mixture(runs: Path, vaak: Any):
    def evaluate(*options: str) -> dict[str, Any]:
        code, out, errors = vaak("eval", *options, "--split", "test", "--json")
        assert code == 0, errors
        return dict(json.loads(out))

    found = evaluate(str(runs / "mixed"))
    opened = open_run(runs / "mixed", device="cpu")
    dataset: Any = opened.task.dataset("test")
    num_bytes = sum(dataset.example(index, np.random.default_rng(0)).num_bytes for index in range(len(dataset.lengths)))
    alone = evaluate(str(runs / "alone"))["metrics"]["test_bits_per_byte"]
    # Training is the same with n-grams and without.
    assert evaluate(str(runs / "mixed"), "model.ngram.weight=0")["metrics"]["test_bits_per_byte"] == pytest.approx(
        alone
    )
    expected = score(opened.model, dataset, 0.4) / math.log(2) / num_bytes  # type: ignore[arg-type]
    assert found["metrics"]["test_bits_per_byte"] == pytest.approx(expected, abs=1e-6)
    assert "0.4 of a 3-gram model" in json.dumps(found)
    assert expected < 0.9 * alone
    other = evaluate(str(runs / "mixed"), "model.ngram.weight=0.9")["metrics"]["test_bits_per_byte"]
    assert other == pytest.approx(score(opened.model, dataset, 0.9) / math.log(2) / num_bytes, abs=1e-6)  # type: ignore[arg-type]


def test_n_grams_of_a_run_count_whole_sentences(runs: Path):
    opened = open_run(runs / "mixed", device="cpu")
    task: Any = opened.task
    ngram: Any = opened.model.ngram
    store, bos, end = task.prepared.store("train"), task.tokenizer.bos_id, task.tokenizer.eos_id
    texts = [np.array([bos, *store.document(index), end]) for index in range(len(store))]
    expected = count_ngrams(texts, 3, task.tokenizer.vocab_size, bos)
    assert {name: list(getattr(ngram, name).shape) for name in expected} == {
        name: list(array.shape) for name, array in expected.items()
    }
    torch.testing.assert_close(ngram.values3.double(), torch.from_numpy(expected["values3"]), atol=1e-6, rtol=1e-6)
    assert torch.equal(ngram.keys3, torch.from_numpy(expected["keys3"]))


def test_a_checkpoint_alone_has_its_n_grams(runs: Path, vaak: Any, tmp_path: Path):
    (last,) = (runs / "mixed" / "checkpoints").glob("step-*")
    copied = tmp_path / "checkpoint"
    shutil.copytree(last, copied)
    texts = []
    for source in (last, copied):
        code, out, errors = vaak("generate", source, "वह", "--seed", "1", "--max-new-tokens", "20", "--device", "cpu")
        assert code == 0, errors
        texts.append(out)
    assert texts[0] == texts[1]
    code, alone, _ = vaak("generate", runs / "alone", "वह", "--seed", "1", "--max-new-tokens", "20", "--device", "cpu")
    assert code == 0
    assert alone != texts[0]


def test_an_export_has_the_network_alone_and_says_so(
    runs: Path, vaak: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    made = {}
    for name in ("mixed", "alone"):
        caplog.clear()
        code, _, errors = vaak("export", runs / name, "--format", "hf", "--output", tmp_path / name)
        assert code == 0, errors
        made[name] = sorted(path.name for path in (tmp_path / name).iterdir())
        said = [one.message for one in caplog.records if "n-grams of model.ngram are left out" in one.message]
        assert len(said) == (name == "mixed")
    assert made["mixed"] == made["alone"]
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in made]
    assert weights[0] == weights[1]


@pytest.mark.slow
@pytest.mark.parametrize("geometric", [0, 0.25])
def test_an_onnx_file_has_the_mixture(runs: Path, tmp_path: Path, geometric: float, caplog: pytest.LogCaptureFixture):
    onnxruntime = pytest.importorskip("onnxruntime")
    opened = open_run(runs / "mixed", device="cpu")
    task, model = (opened.task, opened.model)  # type: Any, Any
    model.ngram.geometric = geometric
    task.export_onnx(model, tmp_path / "onnx")
    assert "left out" not in caplog.text
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx")
    dataset = task.dataset("test")
    for index in range(0, len(dataset.lengths), 5):
        inputs = dataset.ids(index)[None]
        with torch.inference_mode():
            expected = model(torch.from_numpy(inputs)).numpy()
        (found,) = session.run(["logits"], {"inputs": inputs})
        np.testing.assert_allclose(found, expected, atol=1e-5)
    unknown = np.full((2, 3), task.tokenizer.vocab_size - 1)
    assert np.exp(session.run(["logits"], {"inputs": unknown})[0]).sum(-1) == pytest.approx(np.ones((2, 3)), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["model.model_type=encoder"], "n-grams predict each token from those before it"),
        (["data.corpus={type: chat, train: chats.jsonl}"], "n-grams are those of texts"),
        (["model.ngram.weight=1"], "model.ngram.weight"),
    ],
)
def test_what_n_grams_do_not_fit_is_refused(vaak: Any, tmp_path: Path, options: list[str], expected: str):
    (tmp_path / "mixed.yml").write_text(RECIPE.replace("NAME", "mixed").replace("NGRAM", "ngram: 0.4"))
    code, out, errors = vaak("config", "check", tmp_path / "mixed.yml", *options)
    assert code == 2
    assert expected in out + errors
