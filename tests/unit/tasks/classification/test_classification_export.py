"""Classifiers on encoders of transformers: in, out and in again, for peft, or refused in a line."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tiny_decoder
from quick_cases import mostly_slow
from tiny_bert import write_bert
from vaak.config.load import load
from vaak.core.errors import UserError
from vaak.runs.open_run import OpenedRun, open_run
from vaak.runs.start import prepare, train
from vaak.runs.use import available_formats, require_format
from vaak.tasks.classification.pretrained import longest_input
from vaak.tasks.classification.task import ClassificationTask

transformers = pytest.importorskip("transformers")

WORDS = ("the", "boy", "##s", "good", "bad", "fine", "poor")
SIZES: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
    "pad_token_id": 0,
    "num_labels": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    **{kind: {} for kind in ("bert", "roberta", "camembert", "mpnet", "deberta", "deberta-v2")},
    **{kind: {"embedding_size": 8} for kind in ("albert", "electra")},
    "distilbert": {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32},
    "modernbert": {"cls_token_id": 2, "sep_token_id": 3, "bos_token_id": 2, "eos_token_id": 3},
}
CONFIG = """\
task: classification
name: tiny
model: {pretrained_model: base, pooling: first, dropout: 0.1}
data: {corpus: {train: texts.json, train_fraction: 0.6, valid_fraction: 0.2}, max_length: 16}
training:
  {max_steps: 2, batch_size: 8, device: cpu, optimizer: {lr: 1e-2}, logging: {tensorboard: false, progress_bar: false}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with texts, in which commands run."""
    monkeypatch.chdir(tmp_path)
    rows = [
        {
            "text": f"the boy {('boys', 'the')[n % 5 % 2]} {('good', 'bad')[n % 2]} {'boys ' * (n % 7)}",
            "label": "yn"[n % 2],
        }
        for n in range(60)
    ]
    (tmp_path / "texts.json").write_text(json.dumps(rows))
    (tmp_path / "tiny.yml").write_text(CONFIG)
    return tmp_path


def write_base(kind: str, architecture: str = "AutoModel", folder: str = "base", **options: Any) -> Any:
    """A tiny model of transformers with BERT's words."""
    write_bert(Path(folder), WORDS)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, **{**SIZES, **KINDS.get(kind, {}), **options})
    model = getattr(transformers, architecture).from_config(config)
    model.save_pretrained(folder)
    return model.eval()


def trained(*options: str, name: str = "tiny") -> OpenedRun:
    train(load(["tiny.yml"], [f"run_dir=runs/{name}", "data.corpus.deduplicate=false", *options]))
    return open_run(Path(f"runs/{name}"), device="cpu")


def some_ids() -> torch.Tensor:
    return torch.randint(4, 12, (2, 7), generator=torch.Generator().manual_seed(0))


def logits_of(run: OpenedRun) -> torch.Tensor:
    ids = some_ids()
    with torch.no_grad():
        found: torch.Tensor = run.model(ids, torch.ones_like(ids, dtype=torch.bool))
    return found


LIKE_OTHERS = ("camembert", "mpnet", "deberta", "albert", "electra", "distilbert", "deberta-v2", "modernbert")


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        *(
            pytest.param(kind, "first", marks=[pytest.mark.slow] if kind in LIKE_OTHERS else [])
            for kind in KINDS
            if kind != "bert"
        ),
        ("modernbert", "mean"),
    ],
)
def test_a_classifier_goes_out_and_comes_in_with_the_same_logits(kind: str, pooling: str, folder: Path, capfd: Any):
    write_base(kind)
    run = trained(f"model.pooling={pooling}")
    assert available_formats(run.task) == ["hf", "onnx", "dcp"]
    run.task.export_hf(run.model, folder / "out")
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "out").eval()
    with torch.no_grad():
        torch.testing.assert_close(peer(some_ids()).logits, logits_of(run), rtol=1e-3, atol=1e-4)
    again = load(["tiny.yml"], ["run_dir=runs/again", f"model.pooling={pooling}", "model.pretrained_model=out"])
    prepare(again)
    model = type(run.task)(again.experiment, Path("runs/again"), folder).model().eval()
    with torch.no_grad():
        found = model(some_ids(), torch.ones(2, 7, dtype=torch.bool))
    torch.testing.assert_close(found, logits_of(run), rtol=1e-4, atol=1e-5)
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


@pytest.mark.parametrize(
    ("architecture", "options", "said"),
    [
        ("AutoModelForSequenceClassification", {}, "its classes are LABEL_0, LABEL_1; here they are n, y"),
        (
            "AutoModelForSequenceClassification",
            {"id2label": {0: "y", 1: "n"}, "label2id": {"y": 0, "n": 1}},
            "bert.pooler.dense is a layer that classifiers here don't have",
        ),
        ("AutoModelForMaskedLM", {}, "base, a BertForMaskedLM, the encoder is read, without its head"),
    ],
)
def test_what_is_left_out_is_one_line(
    architecture: str, options: dict[str, Any], said: str, folder: Path, caplog: Any, capfd: Any
):
    write_base("bert", architecture, **options)
    caplog.set_level(logging.INFO, "vaak")
    loaded = load(["tiny.yml"])
    prepare(loaded)
    run = open_task(loaded, folder)
    run.model()
    assert [one.getMessage() for one in caplog.records if said in one.getMessage()] != []
    assert "LOAD REPORT" not in "".join(capfd.readouterr())


def open_task(loaded: Any, folder: Path) -> ClassificationTask:
    return ClassificationTask(loaded.experiment, Path("runs/tiny"), folder)


@pytest.mark.slow
def test_classes_in_another_order_are_put_in_ours(folder: Path):
    write_base("electra")
    run = trained()
    run.task.export_hf(run.model, folder / "out")
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "out")
    about = json.loads((folder / "out" / "config.json").read_text())
    assert about["id2label"] == {"0": "n", "1": "y"}
    about |= {"id2label": {"0": "y", "1": "n"}, "label2id": {"y": 0, "n": 1}}
    (folder / "out" / "config.json").write_text(json.dumps(about))
    loaded = load(["tiny.yml"], ["run_dir=runs/again", "model.pretrained_model=out"])
    prepare(loaded)
    model = ClassificationTask(loaded.experiment, Path("runs/again"), folder).model().eval()
    ids = some_ids()
    with torch.no_grad():
        torch.testing.assert_close(model(ids, ids > 0), peer.eval()(ids).logits.flip(1), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_classes_that_a_base_shares_in_part_are_taken_by_name_and_said(folder: Path, caplog: Any):
    write_base("electra")
    run = trained()
    run.task.export_hf(run.model, folder / "out")
    peer = transformers.AutoModelForSequenceClassification.from_pretrained(folder / "out")
    about = json.loads((folder / "out" / "config.json").read_text())
    about |= {"id2label": {"0": "maybe", "1": "n"}, "label2id": {"maybe": 0, "n": 1}}
    (folder / "out" / "config.json").write_text(json.dumps(about))
    loaded = load(["tiny.yml"], ["run_dir=runs/again", "model.pretrained_model=out"])
    prepare(loaded)
    task = ClassificationTask(loaded.experiment, Path("runs/again"), folder)
    model, ids = task.model().eval(), some_ids()
    with torch.no_grad():
        ours, theirs = model(ids, ids > 0), peer.eval()(ids).logits
    torch.testing.assert_close(ours[:, 0], theirs[:, 1], rtol=1e-4, atol=1e-5)  # n
    assert not torch.allclose(ours[:, 1], theirs[:, 0], rtol=1e-2)
    said = f"{folder / 'out'}: its labels differ: 1 of 2 rows are taken by name; newly drawn: 'y'; not taken: 'maybe'"
    assert [one.getMessage() for one in caplog.records if "its labels" in one.getMessage()] == [said]


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_a_decoder_needs_its_last_token(kind: str, folder: Path):
    write_base(kind, **({"is_decoder": True} if kind == "bert" else {"n_embd": 16, "n_head": 2, "n_layer": 1}))
    said = rf"base is a decoder \({kind}\), whose tokens don't see .*; give model.pooling: last instead of first"
    with pytest.raises(UserError, match=said):
        prepare(load(["tiny.yml"]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize(
    ("kind", "target"), [("gpt_neox", "query_key_value"), pytest.param("gemma2", "q_proj", marks=pytest.mark.slow)]
)
def test_a_decoder_classifies_by_its_last_token(kind: str, target: str, folder: Path, monkeypatch: pytest.MonkeyPatch):
    peft = pytest.importorskip("peft")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it is asked for long for what is gone
    peer = tiny_decoder.write_folder(folder / "base", kind).base_model
    options = ["model.pooling=last", "data.max_length=60", "training.max_steps=4", "training.checkpoint.interval=2"]
    options.append(f"model.lora={{rank: 2, targets: [{target}]}}")
    run = trained(*options)
    ids = torch.randint(1, 257, (2, 9), generator=torch.Generator().manual_seed(0))
    mask = torch.arange(9) < torch.tensor([[9], [6]])
    run.task.export_peft(run.model, folder / "adapter")
    assert "none of transformers'" in run.task.refused_exports()["hf"]
    adapted: Any = peft.PeftModel.from_pretrained(peer, str(folder / "adapter")).eval()
    head: Any = run.model.head
    with torch.no_grad():
        found = run.model(ids, mask)
        for row, length in ((0, 9), (1, 6)):
            alone = adapted(ids[row : row + 1, :length]).last_hidden_state[0, -1]
            torch.testing.assert_close(found[row], head(alone), rtol=0, atol=1e-4)
    shutil.copytree("runs/tiny", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/step-00000004")
    shutil.rmtree("base")  # the checkpoints have all weights
    resume = "training.checkpoint.resume=runs/cut/checkpoints/step-00000002"
    again = trained(*options, resume, name="cut").model.state_dict()
    assert [name for name, one in run.model.state_dict().items() if not torch.equal(one, again[name])] == []


def test_positions_that_begin_after_padding_leave_less_room():
    for kind in ("roberta", "camembert", "mpnet", "xlm-roberta"):
        assert longest_input(transformers.AutoConfig.for_model(kind, max_position_embeddings=24, pad_token_id=1)) == 22


def test_mean_pooling_is_told_to_use_onnx(folder: Path, vaak: Any):
    write_base("bert")
    run = trained("model.pooling=mean")
    with pytest.raises(
        UserError, match=r"^--format hf: transformers' bert has pooling first, not mean; use --format onnx$"
    ):
        require_format(run.task, "hf")
    code, _, err = vaak("export", "runs/tiny", "--format", "peft")
    assert (code, err) == (2, "--format peft: this model has no low-rank adapters (model.lora); use --format onnx\n")
    code, _, err = vaak("export", "runs/tiny", "--format", "onnx", "--expert", "1")
    assert (code, err) == (2, "--expert: this model is not a mixture of experts; leave it out\n")


@pytest.mark.slow
def test_mean_pooling_is_the_same_in_onnxruntime(folder: Path, vaak: Any):
    write_base("bert")
    run = trained("model.pooling=mean")
    code, _, err = vaak("export", "runs/tiny", "--format", "onnx", "--output", folder / "onnx")
    assert code == 0, err
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(folder / "onnx" / "model.onnx")
    ids = some_ids()
    (found,) = session.run(None, {"inputs": ids.numpy(), "mask": (ids > 0).numpy()})
    torch.testing.assert_close(torch.from_numpy(found), logits_of(run), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
@pytest.mark.parametrize(
    ("kind", "pooling"), mostly_slow([("bert", "first"), ("roberta", "first"), ("bert", "mean")], "roberta")
)
def test_adapters_alone_are_loaded_by_peft_on_the_base(kind: str, pooling: str, folder: Path):
    peft = pytest.importorskip("peft")
    write_base(kind)
    lora = "model.lora={rank: 2, targets: [query, value]}"
    run = trained(f"model.pooling={pooling}", lora, "training.optimizer.lr=0.1", "training.max_steps=4")
    run.task.export_peft(run.model, folder / "adapter")
    about = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == str(folder / "base")
    ids, expected = some_ids(), logits_of(run)
    assert all(one.any() for name, one in run.model.named_parameters() if "lora_B" in name)
    if pooling == "first":
        base = transformers.AutoModelForSequenceClassification.from_pretrained("base", num_labels=2)
        model = peft.PeftModel.from_pretrained(base, "adapter").eval()
        auto = peft.AutoPeftModelForSequenceClassification
        by_itself = auto.from_pretrained(str(folder / "adapter"), num_labels=2).eval()
        with torch.no_grad():
            for one in (model, by_itself):
                torch.testing.assert_close(one(ids).logits, expected, rtol=1e-4, atol=1e-4)
        return
    from safetensors.torch import load_file

    model = peft.PeftModel.from_pretrained(transformers.AutoModel.from_pretrained("base"), "adapter").eval()
    head = load_file("adapter/head.safetensors")
    by_itself = peft.AutoPeftModelForFeatureExtraction.from_pretrained(str(folder / "adapter")).eval()
    with torch.no_grad():
        pooled = model(ids).last_hidden_state.mean(1)
        torch.testing.assert_close(by_itself(ids).last_hidden_state.mean(1), pooled, rtol=0, atol=0)
    torch.testing.assert_close(pooled @ head["weight"].T + head["bias"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_synonyms_are_neighbours_among_the_words_of_a_pretrained_encoder(kind: str, folder: Path):
    model = write_base(kind)
    with torch.no_grad():  # good is near fine, bad near poor; neither is near a piece of a word
        table = model.get_input_embeddings().weight
        places = {word: 5 + place for place, word in enumerate(WORDS)}
        for word, other in (("good", "fine"), ("bad", "poor"), ("bad", "##s")):
            table[places[other]] = table[places[word]] * 1.5
    model.save_pretrained("base")
    synonyms = "{enabled: true, synonyms: vectors, techniques: [synonym_replacement], probability: 0.9}"
    options = [f"data.augmentation={synonyms}", "data.corpus.deduplicate=false"]
    loaded = load(["tiny.yml"], ["run_dir=runs/tiny", *options])
    prepare(loaded)
    near = open_task(loaded, folder)._neighbours
    assert (near("good")[0], near("bad")[0], near("##s"), near("unheard")) == ("fine", "poor", [], [])
    assert "##s" not in near("bad")
    one, two = (open_task(loaded, folder).dataset("train") for _ in range(2))
    rows = [[data.example(3, np.random.default_rng(seed)).inputs.tolist() for seed in range(5)] for data in (one, two)]
    assert rows[0] == rows[1]
    assert len({tuple(row) for row in rows[0]}) > 1
    trained(*options, name="whole")


@pytest.mark.parametrize("kind", ["bert", "modernbert"])
def test_the_pipeline_of_transformers_gives_the_same_probabilities(kind: str, folder: Path):
    write_base(kind)
    run = trained("training.max_steps=4", "training.optimizer.lr=0.05")
    run.task.export_hf(run.model, folder / "out")
    classify = transformers.pipeline("text-classification", "out", top_k=None)
    texts = ["the boy good", "boys bad bad", "The boys, unheard of"]
    for text, expected in zip(texts, run.task.predict(run.model, texts), strict=True):
        (scored,) = classify([text])
        found = {one["label"]: one["score"] for one in scored}
        assert found == pytest.approx(expected.probabilities["label"], abs=1e-4)
        assert scored[0]["label"] == str(expected)
