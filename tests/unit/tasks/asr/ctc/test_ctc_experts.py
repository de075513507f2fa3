"""Low-rank adapters, and mixtures of them, on encoders trained by CTC: pretrained ones, and a Conformer's run."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCTC

import tiny_listener
import tiny_mixture
from quick_cases import mostly_slow
from tiny_wav2vec2 import write_base
from toy import one_step
from vaak.audio.audio_file import AudioFile
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.core.storage.files import hash_file, read_json, write_json
from vaak.engine.trainer import Trainer
from vaak.nn.lora import merged
from vaak.pipeline.rows import PipelineRowStore
from vaak.runs.open_run import open_run
from vaak.runs.start import train
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.ctc.pretrained import PretrainedCtc
from vaak.tasks.asr.stages.embeddings import means
from vaak.tasks.asr.stages.pipeline import translate_options

Command = Callable[..., tuple[int, str, str]]
EXPERTS: dict[str, Any] = {"num_experts": 3, "rank": 2, "gate_width": 8}
CONFORMER = {"d_model": 32, "num_layers": 1, "num_heads": 2, "kernel_size": 5, "dropout": 0.0}


def drawn(model: nn.Module) -> Any:
    """The model, its adapters no longer nothing."""
    for name, weight in model.named_parameters():
        if "lora_b" in name.lower():
            nn.init.normal_(weight, std=0.3)
    return model.eval()


@pytest.mark.parametrize(
    ("family", "norm"), mostly_slow([("wav2vec2", "layer"), ("hubert", "group"), ("wavlm", "layer")], "wavlm")
)
def test_adapters_and_each_rows_expert_are_changes_of_the_weights(tmp_path: Path, family: str, norm: str) -> None:
    """WavLM's attention, too, whose projections transformers reads without calling them."""
    folder = write_base(tmp_path / "base", family, norm)
    generator = torch.Generator().manual_seed(0)
    rows, lengths = torch.randn(4, 1, 8000, generator=generator), torch.tensor([8000, 8000, 6000, 3000])

    def network(**more: Any) -> PretrainedCtc:
        return PretrainedCtc(AutoModelForCTC.from_pretrained(folder), AsrModelConfig(architecture="ctc", **more)).eval()

    def alone(base: Any, row: int) -> Tensor:
        """The logits of a row in a base with the changes in its weights."""
        model = PretrainedCtc(base, AsrModelConfig(architecture="ctc")).eval()
        logits: Tensor = model(rows[row : row + 1, :, : lengths[row]], lengths[row : row + 1]).logits[0]
        return logits

    targets = ["q_proj", "v_proj", "out_proj"]
    plain = network()(rows, lengths).logits
    for options in ({"lora": {"rank": 2, "targets": targets}}, {"experts": {**EXPERTS, "targets": targets}}):
        model = network(**options)
        torch.testing.assert_close(model(rows, lengths).logits, plain, rtol=1e-5, atol=1e-6)
        found = drawn(model)(rows, lengths)
        assert (found.logits - plain).abs().max() > 0.1
        for row, frames in enumerate(found.lengths.tolist()):
            chosen: dict[str, Any] = {}
            if found.weights is not None:
                expert = int(found.weights[row].argmax())
                chosen = {"expert": expert, "weight": found.weights[row, expert].item()}
            expected = alone(merged(model.base, **chosen), row)
            torch.testing.assert_close(found.logits[row, :frames], expected, rtol=1e-4, atol=1e-5)
        found.logits.sum().backward()
        trained = {name: one.grad for name, one in model.named_parameters() if one.requires_grad}
        assert all("lora_" in name or name.startswith(("gate.", "base.lm_head.")) for name in trained)
        assert all(one is not None for name, one in trained.items() if "lora_A" in name or "lora_b" in name)


@pytest.fixture(scope="module")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_base(tmp_path_factory.mktemp("wav2vec2") / "base", "wav2vec2", "layer")


@pytest.fixture(scope="module")
def conformer(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trained Conformer."""
    model = {"architecture": "ctc", "conformer": CONFORMER}
    return tiny_listener.train(corpus, tmp_path_factory.mktemp("conformer") / "run", model=model)


def on_conformer(run: Path, **changes: Any) -> dict[str, Any]:
    """Sections of a run that begins with a Conformer's."""
    return {
        "model": {"architecture": "ctc", "conformer": CONFORMER, **changes},
        "data": {"tokenizer": {"path": str(run / "prepared" / "vocabulary" / "tokenizer.json")}},
    }


def make_task(corpus: Path, folder: Path, **sections: Any) -> Any:
    folder.mkdir()
    (folder / "case.yml").write_text(yaml_text(tiny_listener.options(corpus, **sections)))
    experiment: Any = load([folder / "case.yml"]).experiment
    task: Any = task_class("asr")(experiment, folder, folder)
    task.prepare()
    return task


def test_a_step_of_a_balanced_mixture_has_one_gradient(corpus: Path, base_folder: Path, tmp_path: Path) -> None:
    """However it is divided; experts that balance themselves count over the whole step, too."""
    experts = {**EXPERTS, "targets": ["q_proj"], "balancing_bias": 0.05}
    base = Path(shutil.copytree(base_folder, tmp_path / "base"))
    sizes = read_json(base / "config.json")
    write_json(base / "config.json", {name: 0.0 if "dropout" in name else one for name, one in sizes.items()})
    model = {"architecture": "ctc", "base": str(base), "experts": experts, "masking": {"time_prob": 0.0}}

    def step(size: int) -> tuple[float, dict[str, Tensor], Tensor]:
        training = {"loss": {"auxiliary": {"load_balancing": 0.5}}, "gradient_clipping": {"norm": None}}
        training |= {"batch_size": size, "gradient_accumulation_steps": 8 // size}
        task = make_task(corpus, tmp_path / str(size), model=model, training=training)
        trainer = Trainer(task, task.experiment.training, tmp_path / str(size), ())
        report, gradients = one_step(trainer)
        gate: Any = trainer.model.gate
        return float(report.losses["load_balancing"]), gradients, gate.bias.clone()

    loss, expected, bias = step(8)
    assert loss >= 1.0
    assert bias.abs().max() > 0
    assert max(float(one.abs().max()) for name, one in expected.items() if name.startswith("gate")) > 1e-4
    found = step(2)
    assert found[0] == pytest.approx(loss, rel=1e-5)
    assert torch.equal(found[2], bias)
    for name, gradient in found[1].items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-3, atol=1e-5, msg=name)


def compute_features(opened: Any) -> tuple[Tensor, Tensor]:
    """Two validation utterances, padded."""
    dataset, rng = opened.task.dataset("valid"), np.random.default_rng(0)
    batch = dataset.collate([[dataset.example(index, rng)] for index in (0, 2)])
    return batch["features"], batch["feature_lengths"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["lora", "experts"])
def test_adapters_begin_with_the_conformer_of_a_run_and_go_out(
    corpus: Path, conformer: Path, vaak: Command, tmp_path: Path, kind: str
) -> None:
    """They change nothing at first, nothing else is trained but the output layer, and other tools say the same."""
    import onnxruntime
    import peft

    options = {"rank": 2, "targets": ["query", "value"]}
    options = {"lora": options, "experts": {**EXPERTS, **options, "top_k": 2}}[kind]
    sections = on_conformer(conformer, **{kind: options})
    begins = f"training.checkpoint.init_from={conformer}"
    run = tiny_listener.train(corpus, tmp_path / "run", begins, "training.max_steps=12", **sections)
    one_step = ("training.max_steps=1", "training.optimizer.lr=1e-12", "training.validation.interval=1")
    still = tiny_listener.train(corpus, tmp_path / "still", begins, *one_step, **sections)
    base, began, opened = (open_run(one, device="cpu") for one in (conformer, still, run))
    for one in (base, began, opened):
        one.model.requires_grad_(False)
    features = compute_features(base)
    expected, trained = base.model(*features).logits, opened.model(*features)
    torch.testing.assert_close(began.model(*features).logits, expected, rtol=1e-4, atol=1e-5)
    assert (trained.logits - expected).abs().max() > 1e-2
    before, after = base.model.state_dict(), opened.model.state_dict()
    inner = {name.replace(".base_layer.", ".").replace(".base.", "."): one for name, one in after.items()}
    assert {name for name, one in before.items() if not torch.equal(one, inner[name])} <= {"head.weight", "head.bias"}
    code, out, err = vaak("export", run, "--format", "onnx", "--output", tmp_path / "onnx")
    assert code == 0, out + err
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "ctc.onnx")
    inputs = {"features": features[0].numpy(), "feature_lengths": features[1].numpy()}
    log_probs = torch.from_numpy(session.run(None, inputs)[0])
    torch.testing.assert_close(log_probs, trained.log_probs(), rtol=1e-3, atol=1e-4)
    chosen = [] if kind == "lora" else ["--expert", "1", "--expert-weight", "1"]
    code, out, err = vaak("export", run, "--format", "peft", "--output", tmp_path / "peft", *chosen)
    assert code == 0, out + err
    adapted = peft.PeftModel.from_pretrained(copy.deepcopy(base.model), str(tmp_path / "peft")).eval()
    whole: Any = merged(opened.model, None if kind == "lora" else 1)
    if kind == "experts":
        whole.gate = None
    torch.testing.assert_close(adapted(*features).logits, whole(*features).logits, rtol=1e-4, atol=1e-5)
    whole_only = "has no Conformer of Vaak's" if kind == "experts" else "only a mixture"
    for format, why in (
        ("hf", "no counterpart in transformers"),
        ("mixture", whole_only),
    ):
        code, _, err = vaak("export", run, "--format", format, "--output", tmp_path / format)
        assert (code, why in err) == (2, True), err


@pytest.mark.slow
@pytest.mark.parametrize(("family", "norm"), [("wav2vec2", "layer"), ("hubert", "group"), ("wavlm", "layer")])
def test_a_mixture_on_a_base_says_how_it_routes_resumes_to_the_same_bits_and_goes_out(
    corpus: Path, vaak: Command, tmp_path: Path, family: str, norm: str
) -> None:
    experts = {**EXPERTS, "targets": ["q_proj"], "balancing_bias": 0.01}
    base = write_base(tmp_path / "base", family, norm)
    model = {"architecture": "ctc", "base": str(base), "experts": experts}
    training = {"max_steps": 6, "checkpoint": {"interval": 3, "interval_epochs": None}, "validation": {"interval": 3}}
    training |= {"loss": {"auxiliary": {"load_balancing": 0.1}}}
    (tmp_path / "case.yml").write_text(yaml_text(tiny_listener.options(corpus, model=model, training=training)))

    def weights(run: str, *overrides: str) -> str:
        outcome = train(load([tmp_path / "case.yml"], [f"run_dir={tmp_path / run}", *overrides]))
        return hash_file(outcome.directory / "checkpoints" / f"step-{outcome.step:08}" / "model.safetensors")

    whole = weights("whole")
    weights("parts", "training.max_steps=3")
    assert weights("parts", "training.checkpoint.resume=auto") == whole
    code, out, err = vaak("eval", tmp_path / "whole", "--split", "valid", "--json")
    assert code == 0, err
    assert all(name in out for name in ("routing_entropy", "dead_experts", "expert_use/2", "expert_wer/"))
    opened = open_run(tmp_path / "whole", device="cpu")
    with torch.no_grad():
        found: Any = opened.model(*compute_features(opened))
    expert = int(found.weights[0].argmax())
    chosen = ["--expert", str(expert), "--expert-weight", repr(float(found.weights[0, expert]))]
    for format in ("hf", "peft"):
        code, out, err = vaak("export", tmp_path / "whole", "--format", format, "--output", tmp_path / format, *chosen)
        if (family, format) == ("wavlm", "peft"):
            assert (code, "without calling them" in err) == (2, True), err
        else:
            assert code == 0, out + err
    theirs: Any = AutoModelForCTC.from_pretrained(tmp_path / "hf").eval()
    features, lengths = compute_features(opened)
    with torch.no_grad():
        logits = theirs(features[0, :, : lengths[0]]).logits[0]
    said = [number for number, name in enumerate(opened.task.prepared.vocabulary.tokens()) if len(name) == 1]
    mine = found.logits[0, : found.lengths[0]]
    torch.testing.assert_close(logits[:, said], mine[:, said], rtol=1e-4, atol=1e-4)
    code, _, err = vaak("export", tmp_path / "whole", "--format", "mixture", "--output", tmp_path / "mixture")
    assert (code, "without calling them" in err) == ((2, True) if family == "wavlm" else (0, False)), err


@pytest.mark.slow
def test_a_run_is_a_base_with_its_features_its_tokens_and_its_adapters_merged(
    corpus: Path, conformer: Path, tmp_path: Path
) -> None:
    """The base may be gone once the run has a checkpoint; a run that isn't of a Conformer is refused in one line."""
    begins = f"training.checkpoint.init_from={conformer}"
    lora = {"rank": 2, "targets": ["query", "value"]}
    first = tiny_listener.train(
        corpus, tmp_path / "first", begins, "training.max_steps=6", **on_conformer(conformer, lora=lora)
    )
    model = {"architecture": "ctc", "base": str(first), "lora": lora}
    still = ("training.max_steps=1", "training.optimizer.lr=1e-12", "training.validation.interval=1")
    second = tiny_listener.train(corpus, tmp_path / "second", *still, model=model)
    before, after = (open_run(one, device="cpu") for one in (first, second))
    features = compute_features(before)
    for one, other in zip(features, compute_features(after), strict=True):
        assert torch.equal(one, other)
    with torch.no_grad():
        torch.testing.assert_close(after.model(*features).logits, before.model(*features).logits, rtol=1e-4, atol=1e-5)
    assert after.task.prepared.vocabulary.content == before.task.prepared.vocabulary.content
    sketch = after.task.meta_model()
    assert {name: one.shape for name, one in sketch.named_parameters()} == {
        name: one.shape for name, one in after.model.named_parameters()
    }
    shutil.move(first, tmp_path / "moved")
    again = open_run(second, device="cpu")
    with torch.no_grad():
        assert torch.equal(again.model(*features).logits, after.model(*features).logits)
    whisper = tiny_listener.train(
        corpus, tmp_path / "whisper", "training.max_steps=1", "training.validation.interval=1"
    )
    for base, said in ((whisper, "takes one that trained a Conformer"), (first, "no such folder")):
        with pytest.raises(UserError, match=said):
            tiny_listener.train(
                corpus, tmp_path / "refused" / base.name, model={"architecture": "ctc", "base": str(base)}
            )


def fine_tune(corpus: Path, base: Path, folder: Path) -> Path:
    """A base that writes the transcripts' tokens, as transformers has it."""
    model = {"architecture": "ctc", "base": str(base)}
    steps = ("training.max_steps=6", "training.validation.interval=6")
    opened = open_run(tiny_listener.train(corpus, folder / "fine_tuning", *steps, model=model), device="cpu")
    task: Any = opened.task
    task.export_hf(opened.model, folder / "base")
    return folder / "base"


@pytest.fixture(scope="module")
def fine_tuned(corpus: Path, base_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fine_tune(corpus, base_folder, tmp_path_factory.mktemp("fine_tuned"))


def stages_of(corpus: Path, base: Path, **more: Any) -> dict[str, Any]:
    """Options of ``moe-asr`` on an encoder."""
    data = {"group": "accent", "max_duration": tiny_listener.SECONDS}
    given = tiny_mixture.options(corpus, base, **{"architecture": "ctc", "data": data, "expert_epochs": 1, **more})
    return {**given, "base": given.pop("whisper_model")}


def options_on(kind: str, corpus: Path, conformer: Path, folder: Path) -> dict[str, Any]:
    """Options of ``moe-asr`` on a base of a kind, which was trained for a few steps."""
    targets = ["q_proj", "v_proj"] if kind != "conformer" else ["query", "value"]
    lora = {"rank": 2, "alpha": 4.0, "targets": targets}
    more: dict[str, Any] = {"controls": True, "asr_epochs": 2, "expert_lr": 0.01, "asr_lr": 0.01, "lora": lora}
    if kind == "conformer":
        return translate_options(stages_of(corpus, conformer, **more))
    norm = "group" if kind == "hubert" else "layer"
    base = fine_tune(corpus, write_base(folder / "drawn", kind, norm), folder)
    return translate_options(stages_of(corpus, base, **more))


def transformers_states(base: Path, values: Tensor) -> Tensor:
    """The states of samples ``(1, time)``."""
    theirs: Any = AutoModelForCTC.from_pretrained(base).eval()
    states: Tensor = getattr(theirs, theirs.base_model_prefix)(values).last_hidden_state
    return states


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["conformer", "wav2vec2", "hubert", "wavlm"])
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # peft's own use of transformers
def test_all_stages_of_a_mixture_work_on_an_encoder(
    kind: str, corpus: Path, conformer: Path, vaak: Command, tmp_path: Path
) -> None:
    """Embeddings, clusters, gate, experts, joint training, controls; killed on its way, it ends with the same bits."""
    import peft

    given = options_on(kind, corpus, conformer, tmp_path)
    base, run = Path(given["whisper_model"]), tmp_path / "run"
    rows = tiny_mixture.run(given, run)
    assert {row.state for row in rows} == {"run"}
    assert {row.state for row in tiny_mixture.run(given, run)} == {"up to date"}
    # An embedding is the mean state that the base gives for the utterance alone, and the gate's input.
    store = PipelineRowStore(run / "embeddings" / "rows")
    opened = open_run(run / "joint" / "run", device="cpu")
    before: Any = open_run(base, device="cpu").model.requires_grad_(False) if kind == "conformer" else None
    task, model = opened.task, cast("Any", opened.model).requires_grad_(False)
    for name in store.keys[:3]:
        with AudioFile(corpus / f"{name}.wav", task.features.sampling_rate, "mix") as file:
            samples = np.asarray(file.read(0.0, file.duration), np.float32)
        values = torch.from_numpy(task.features(samples))
        lengths = torch.tensor([values.shape[1]])
        heard = model.read_for_gate(values[None], lengths)
        states = transformers_states(base, values) if before is None else before.encode(values[None], lengths)[0]
        torch.testing.assert_close(torch.from_numpy(store.row(name))[None], states.mean(1), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(heard, states.mean(1), rtol=1e-4, atol=1e-5)
    # Experts are of the base's output layer, and adapters of its network.
    for expert in range(2):
        own: Any = open_run(run / "experts" / f"expert-{expert}", device="cpu").model.requires_grad_(False)
        logits, folder = own(values[None], lengths).logits, run / "experts" / "adapters" / str(expert)
        assert read_json(folder / "adapter_config.json")["base_model_name_or_path"] == str(base)
        network: Any = copy.deepcopy(before) if before is not None else AutoModelForCTC.from_pretrained(base)
        heads = (network.lm_head, own.base.lm_head) if before is None else (network.head, own.head)
        assert torch.equal(heads[0].weight, heads[1].weight)
        if kind == "wavlm":  # whose projections transformers doesn't call
            found = merged(own.base)(values).logits
        else:
            adapted = peft.PeftModel.from_pretrained(network, str(folder)).eval()
            found = (adapted(values) if before is None else adapted(values[None], lengths)).logits
            if before is None:
                by_itself = peft.AutoPeftModel.from_pretrained(str(folder)).eval()
                torch.testing.assert_close(by_itself(values).logits, found, rtol=0, atol=0)
        torch.testing.assert_close(found, logits, rtol=1e-4, atol=1e-5)
    # Figures by group, and of each system.
    experts, joint = read_json(run / "experts" / "experts.json")["experts"], read_json(run / "joint" / "joint.json")
    assert all(one["groups"].keys() <= {"low", "high"} and one["steps"] for one in experts)
    assert {"val_wer/low", "val_wer/high", "val_expert_use/1"} <= joint["figures"].keys()
    assert joint["agreement"] is not None
    about = read_json(run / "comparison" / "comparison.json")
    assert set(about["systems"]) == {"base", "one_lora", "random", "mixture"}
    assert about["systems"]["one_lora"]["parameters"] >= about["systems"]["mixture"]["parameters"] > 0
    code, out, err = vaak("eval", run / "joint" / "run", "--split", "valid", "--json")
    assert code == 0, err
    assert "wer/high" in out
    assert "expert_wer/" in out
    # Killed in the training of an expert, and in joint training.
    for name in ("experts/expert-1", "joint/run"):
        place = tmp_path / "killed" / name / "metrics.jsonl"
        assert tiny_mixture.run_and_kill({**given, "controls": False}, tmp_path / "killed", place.exists), name
    tiny_mixture.run({**given, "controls": False}, tmp_path / "killed")
    assert tiny_mixture.outputs(tmp_path / "killed")["joint"] == tiny_mixture.outputs(run)["joint"]


@pytest.mark.slow
def test_states_of_all_frames_are_the_same_embeddings_and_a_base_without_tokens_is_one_line(
    corpus: Path, fine_tuned: Path, base_folder: Path, tmp_path: Path
) -> None:
    """Where all states are stored, an utterance's mean is over its frames alone."""
    found = []
    for pooling in ("mean", "none"):
        options = stages_of(corpus, fine_tuned, pooling=pooling, embedding_percent=20.0)
        tiny_mixture.run(translate_options(options), tmp_path / pooling, only="embeddings")
        store = PipelineRowStore(tmp_path / pooling / "embeddings" / "rows")
        found.append(means(store.row, store.keys, 32))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-4, atol=1e-5)
    with pytest.raises(UserError, match=r"has no tokens \(vocab\.json\); fine-tune it by CTC first"):
        tiny_mixture.run(translate_options(stages_of(corpus, base_folder)), tmp_path / "bare", only="embeddings")
    with pytest.raises(UserError, match=r"--architecture ctc requires --base"):
        tiny_mixture.run(translate_options(stages_of(corpus, Path("scratch"))), tmp_path / "scratch")
