"""A mixture in other people's tools: all of it, and one of its experts, as much of it as the mixture applies."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from transformers import WhisperForConditionalGeneration

import tiny_listener
from tiny_wav2vec2 import write_base
from tiny_whisper import write_whisper
from vaak.runs.open_run import OpenedRun, open_run
from vaak.tasks.asr.whisper.network import loaded_whisper

Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(corpus: Path, whisper_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained mixture of two experts whose gate is undecided; each is chosen by some utterances."""
    experts = {"num_experts": 2, "rank": 2, "gate_width": 8, "targets": ["q_proj", "fc1"], "balancing_bias": 0.01}
    model = {"base": str(whisper_folder), "experts": experts}
    training = {"max_steps": 20, "loss": {"auxiliary": {"load_balancing": 0.1}}}
    folder = tmp_path_factory.mktemp("mixture") / "run"
    return tiny_listener.train(corpus, folder, model=model, training=training)


@pytest.fixture(scope="module")
def opened(run: Path) -> OpenedRun:
    return open_run(run, device="cpu")


def validation(opened: OpenedRun) -> tuple[torch.Tensor, torch.Tensor]:
    """The features of validation utterances, and a few tokens of each."""
    dataset = opened.task.dataset("valid")
    examples = [dataset.example(index, np.random.default_rng(0)) for index in range(len(dataset.utterances))]
    tokens = torch.tensor([[*opened.task.prepared.vocabulary.ids.prompt, 7, 8]] * len(examples))
    return torch.from_numpy(np.stack([one.features for one in examples])), tokens


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@torch.no_grad()
def test_an_exported_expert_changes_the_base_as_much_as_the_mixture_does(
    run: Path, opened: OpenedRun, whisper_folder: Path, vaak: Command, tmp_path: Path
) -> None:
    """At the weight that the gate gave it in an utterance, to rounding; by default at the mean of these."""
    import peft

    features, tokens = validation(opened)
    found: Any = opened.model(features, tokens)
    weights = found.encoded.weights
    assert 0.3 < float(weights.max(1).values.mean()) < 0.95, "the gate is undecided"
    for row in (0, 3):
        expert = int(weights[row].argmax())
        given = ["--expert", str(expert), "--expert-weight", repr(float(weights[row, expert])), "--json"]
        code, out, err = vaak("export", run, "--format", "hf", "--output", tmp_path / f"hf-{row}", *given)
        assert code == 0, err
        whole = WhisperForConditionalGeneration.from_pretrained(tmp_path / f"hf-{row}").eval()
        code, out, err = vaak("export", run, "--format", "peft", "--output", tmp_path / f"peft-{row}", *given)
        assert code == 0, err
        base = loaded_whisper(str(whisper_folder), tiny_listener.SECONDS)
        adapted = peft.PeftModel.from_pretrained(base, str(tmp_path / f"peft-{row}")).eval()
        one = slice(row, row + 1)
        for model in (whole, adapted):
            logits = model(input_features=features[one], decoder_input_ids=tokens[one]).logits
            torch.testing.assert_close(logits, found.logits[one], rtol=1e-4, atol=1e-4)
    for expert in range(2):
        code, out, err = vaak("export", run, "--expert", str(expert), "--output", tmp_path / f"mean-{expert}", "--json")
        own = weights[:, expert][weights[:, expert] > 0]
        if len(own):
            assert json.loads(out)["weight"] == pytest.approx(float(own.mean()), rel=1e-5), err
        else:
            assert (code, "no validation utterance chose it" in err) == (2, True), err


@torch.no_grad()
def balanced(opened: OpenedRun) -> Any:
    """The model, with a bias by which half of the validation utterances choose either expert."""
    model: Any = copy.deepcopy(opened.model)
    model.gate.bias.zero_()
    chances = model.gate(model.read_for_gate(validation(opened)[0])).softmax(-1)
    model.gate.bias[0] = (chances[:, 1] - chances[:, 0]).sort().values[2:4].mean()
    return model


def lines_in(folder: Path) -> dict[str, Any]:
    """The functions of the README of a folder, which are in the documents, too."""
    blocks = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.S)
    (loader,) = [block for block in blocks if "def load_mixture" in block]
    assert loader in (Path(__file__).parents[4] / "docs" / "asr-mixture.md").read_text()
    assert not re.search(r"(from|import) vaak", loader)
    lines: dict[str, Any] = {}
    exec(loader, lines)
    return lines


@pytest.mark.slow
def test_a_mixture_is_loaded_without_vaak(run: Path, opened: OpenedRun, vaak: Command, tmp_path: Path) -> None:
    """By the lines that are in its folder, and in the documents: the same logits, and the same transcripts."""
    model, files = balanced(opened), ["README.md", "mixture.json", "mixture.safetensors", "tokenizer.json"]
    code, out, err = vaak("export", run, "--format", "mixture", "--output", tmp_path / "command")
    assert code == 0, out + err
    assert sorted(path.name for path in (tmp_path / "command").iterdir()) == files
    opened.task.export_mixture(model, tmp_path / "mixture")
    lines = lines_in(tmp_path / "mixture")
    features, tokens = validation(opened)
    whisper, about = lines["load_mixture"](str(tmp_path / "mixture"))
    tokenizer = Tokenizer.from_file(str(tmp_path / "mixture" / "tokenizer.json"))
    texts = [tokenizer.decode(ids).strip() for ids in lines["write_tokens"](whisper, about, features)]
    with torch.no_grad():
        logits = whisper(input_features=features, decoder_input_ids=tokens).logits
        expected = model(features, tokens)
    assert len(set(expected.encoded.weights.argmax(1).tolist())) > 1, "both experts are at work"
    torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-4)
    assert texts == opened.task.transcriber(model).texts(features.numpy())
    assert any(texts)


def untie(folder: Path) -> None:
    """Give the base in a folder a separate output layer."""
    whisper = cast("Any", WhisperForConditionalGeneration.from_pretrained(folder))
    whisper.config.tie_word_embeddings = False
    whisper.proj_out.weight = torch.nn.Parameter(1.5 * whisper.proj_out.weight.detach().flip(0))
    whisper.save_pretrained(folder)


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_a_mixture_that_learned_a_new_language_goes_out(tied: bool, corpus: Path, tmp_path: Path) -> None:
    """The row of its token is in the folder, and its loader gives it to the base; in ONNX and of one expert, too."""
    import onnxruntime

    base = write_whisper(tmp_path / "base", max_target_positions=48)
    if not tied:
        untie(base)
    size = len(WhisperForConditionalGeneration.from_pretrained(base).get_input_embeddings().weight)
    experts = {"num_experts": 2, "rank": 2, "gate_width": 8, "targets": ["q_proj", "fc1"], "balancing_bias": 0.01}
    data = {"max_duration": 2, "language": "mni", "language_like": "hi"}
    run = tiny_listener.train(
        corpus, tmp_path / "run", "training.max_steps=6", model={"base": str(base), "experts": experts}, data=data
    )
    opened = open_run(run, device="cpu")
    model = balanced(opened)
    features, tokens = validation(opened)
    assert size in tokens, "the prompt has the new token"
    with torch.no_grad():
        expected = model(features, tokens)
    assert expected.logits.shape[-1] == size + 1
    assert len(set(expected.encoded.weights.argmax(1).tolist())) > 1, "both experts are at work"

    opened.task.export_mixture(model, tmp_path / "mixture")
    lines = lines_in(tmp_path / "mixture")
    whisper, about = lines["load_mixture"](str(tmp_path / "mixture"))
    with torch.no_grad():
        logits = whisper(input_features=features, decoder_input_ids=tokens).logits
    torch.testing.assert_close(logits, expected.logits, rtol=1e-4, atol=1e-4)
    tokenizer = Tokenizer.from_file(str(tmp_path / "mixture" / "tokenizer.json"))
    assert tokenizer.token_to_id("<|mni|>") == size
    texts = [tokenizer.decode(ids).strip() for ids in lines["write_tokens"](whisper, about, features)]
    assert texts == opened.task.transcriber(model).texts(features.numpy())
    assert any(texts)

    opened.task.export_onnx(model, tmp_path / "onnx")
    sessions = {name: onnxruntime.InferenceSession(tmp_path / f"onnx/{name}.onnx") for name in ("encoder", "decoder")}
    encoded = sessions["encoder"].run(None, {"features": features.numpy()})
    given = {"tokens": tokens.numpy(), **dict(zip(("states", "experts", "weights"), encoded, strict=True))}
    np.testing.assert_allclose(sessions["decoder"].run(None, given)[0], expected.logits.numpy(), rtol=1e-3, atol=1e-3)

    row = 0
    expert = int(expected.encoded.weights[row].argmax())
    weight = float(expected.encoded.weights[row, expert])
    opened.task.export_hf(model, tmp_path / "hf", expert, weight)
    whole = WhisperForConditionalGeneration.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        logits = whole(input_features=features[:1], decoder_input_ids=tokens[:1]).logits
    torch.testing.assert_close(logits, expected.logits[:1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "norm", "targets"),
    [
        ("wav2vec2", "layer", ["q_proj", "v_proj"]),
        ("hubert", "group", ["q_proj", "output_dense"]),
        ("wavlm", "layer", ["intermediate_dense"]),
    ],
)
@pytest.mark.parametrize("top_k", [1, 2])
@pytest.mark.filterwarnings("ignore:Support for mismatched key_padding_mask")  # WavLM's own masks
@torch.no_grad()
def test_a_mixture_on_an_encoder_is_loaded_without_vaak(
    family: str, norm: str, targets: list[str], top_k: int, corpus: Path, vaak: Command, tmp_path: Path
) -> None:
    """Each utterance chooses its experts: the same logits, and the same transcripts; padded rows, too."""
    base = write_base(tmp_path / "base", family, norm)
    experts = {"num_experts": 3, "rank": 2, "gate_width": 8, "top_k": top_k, "targets": targets, "balancing_bias": 0.01}
    model = {"architecture": "ctc", "base": str(base), "experts": experts}
    with torch.enable_grad():
        run = tiny_listener.train(corpus, tmp_path / "run", model=model)
    code, out, err = vaak("export", run, "--format", "mixture", "--output", tmp_path / "mixture")
    assert code == 0, out + err
    opened = open_run(run, device="cpu")
    lines, model = lines_in(tmp_path / "mixture"), cast("Any", opened.model)
    features = [opened.task.dataset("valid").example(index, np.random.default_rng(0)).features for index in range(6)]
    values = [torch.tensor(one) for one in features]
    heard = torch.cat([model.read_for_gate(one[None], torch.tensor([one.shape[1]])) for one in values])
    chances = model.gate(heard).softmax(-1)
    model.gate.bias.copy_(-chances.mean(0))  # several are chosen
    model.base.lm_head.bias[opened.task.prepared.vocabulary.ids.pad] -= 2.0  # else blanks are all that it has learned
    opened.task.export_mixture(model, tmp_path / "balanced")
    theirs, about = lines["load_mixture"](str(tmp_path / "balanced"))
    assert about["base"] == str(base)
    tokenizer = Tokenizer.from_file(str(tmp_path / "balanced" / "tokenizer.json"))
    chosen, texts = set[int](), list[str]()
    for one in values:
        expected = model(one[None], torch.tensor([one.shape[1]]))
        chosen |= {*expected.weights.nonzero()[:, 1].tolist()}
        torch.testing.assert_close(theirs(one).logits, expected.logits, rtol=1e-4, atol=1e-4)
        texts += [tokenizer.decode(ids).strip() for ids in lines["read_tokens"](theirs, about, one)]
    assert len(chosen) > 1
    assert texts == opened.task.transcriber(model).texts(features)
    assert any(texts)
    if norm == "layer":
        two = [values[0], values[2]]
        longest = max(one.shape[1] for one in two)
        rows = torch.cat([torch.nn.functional.pad(one, (0, longest - one.shape[1])) for one in two])
        mask = torch.stack([torch.arange(longest) < one.shape[1] for one in two])
        found = theirs(rows, attention_mask=mask.long()).logits
        for row, one in enumerate(two):
            alone = theirs(one).logits[0]
            torch.testing.assert_close(found[row, : len(alone)], alone, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("top_k", [1, 2])
def test_onnxruntime_computes_what_the_mixture_does(top_k: int, opened: OpenedRun, tmp_path: Path) -> None:
    import onnxruntime

    model = balanced(opened)
    model.experts = model.experts.model_copy(update={"top_k": top_k})
    opened.task.export_onnx(model, tmp_path / "onnx")
    features, tokens = validation(opened)
    sessions = {
        name: onnxruntime.InferenceSession(tmp_path / "onnx" / f"{name}.onnx", providers=["CPUExecutionProvider"])
        for name in ("encoder", "decoder")
    }
    encoded = sessions["encoder"].run(None, {"features": features.numpy()})
    names = ("states", "experts", "weights")
    given = {"tokens": tokens.numpy(), **dict(zip(names, encoded, strict=True))}
    (logits,) = sessions["decoder"].run(None, given)
    with torch.no_grad():
        expected = model(features, tokens)
    weights = np.zeros((len(features), 2), np.float32)
    np.put_along_axis(weights, encoded[1], encoded[2], axis=1)
    np.testing.assert_allclose(weights, expected.encoded.weights.numpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(logits, expected.logits.numpy(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--format", "mixture", "--expert", "1"), "writes the whole mixture"),
        (("--format", "hf", "--expert", "7"), "choose one of the experts, 0 to 1"),
    ],
)
def test_what_cannot_be_is_one_line(options: tuple[str, ...], message: str, run: Path, vaak: Command) -> None:
    code, out, err = vaak("export", run, *options)
    assert (code, message in err.splitlines()[-1], "Traceback" in out + err) == (2, True, False), err


def test_a_weight_without_an_expert_is_one_line(run: Path, vaak: Command) -> None:
    code, _, err = vaak("export", run, "--expert-weight", "0.5")
    assert (code, "--expert-weight requires --expert" in err) == (2, True), err
