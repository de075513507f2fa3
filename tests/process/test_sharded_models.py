"""A model divided over processes trains as a whole one does, is resumed to the bit, and is saved as a whole one is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch.testing import assert_close

import tiny_bases
import tiny_decoder
from commands import Commands, stat_records, state_of
from contract_cases import CASES
from exact_cases import WITHOUT_DROPOUT, trained
from held_bytes import call_by_itself, train_and_weigh
from processes import run_on_two_ranks
from tiny_bert import write_bert
from tiny_runs import write_corpus

WHOLE: dict[str, Any] = {"distributed": {}, "memory": {}}
DIVIDED: dict[str, Any] = {"distributed": {"strategy": "fsdp"}, "memory": {}}
LM = "lm decoder, documents"
REFUSED = {"vocoder": "several objectives", "multitask": "loss functions with parameters"}
CHOOSING = (
    "lm experts", "seq2seq experts", "asr, experts", "tts, flow matching, pitch, energy, learned durations",
)  # fmt: skip
"""What is chosen (an expert, how long a sound lasts) may differ after rounding, and so all that follows from it. And an
expert that no token of a step chose has a zero gradient where the model is divided, so its moments go on."""
FIGURES = ("loss", "gradient_norm", "val_loss")


def figures(run: Path) -> list[dict[str, float]]:
    return [{name: one[name] for name in FIGURES if name in one} for one in stat_records(run)]


def require_same(ours: Path, theirs: Path) -> None:
    """The same bits in the last checkpoint, and the same log."""
    found, expected = (run / "checkpoints" / "step-00000008" for run in (ours, theirs))
    for file in ("model", "optimizer", "average"):
        assert (found / f"{file}.safetensors").read_bytes() == (expected / f"{file}.safetensors").read_bytes(), file
    assert state_of(found) == state_of(expected)
    assert stat_records(ours) == stat_records(theirs)


def require_close(ours: Path, theirs: Path, rtol: float = 2e-4) -> None:
    """The same weights in the last checkpoint and the same figures, up to rounding.

    Moments may be more: those of weights that no batch reaches, whose gradient is zero where the model is divided.
    """
    for file in ("model", "optimizer", "average"):
        found, expected = (load_file(run / f"checkpoints/step-00000008/{file}.safetensors") for run in (ours, theirs))
        assert found.keys() >= expected.keys() if file == "optimizer" else found.keys() == expected.keys()
        if file == "model" and rtol < 1e-3:
            assert_close(found, expected, rtol=0, atol=0.02)
    for mine, others in zip(figures(ours), figures(theirs), strict=True):
        assert_close(mine, others, rtol=rtol, atol=1e-5)


@pytest.mark.slow
def test_killed_and_resumed_it_trains_as_a_whole_one(tmp_path: Path, commands: Commands):
    how: Any = {"whole": (("8:2",), WHOLE), "killed": (("3:2", "8:2"), DIVIDED)}
    whole, killed = trained(commands, tmp_path, LM, **how)
    require_close(killed, whole)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_it_trains_as_a_whole_one_and_is_resumed_to_the_bit(case: str, tmp_path: Path, commands: Commands):
    if case in REFUSED:
        with pytest.raises(AssertionError, match=REFUSED[case]):
            trained(commands, tmp_path, case, refused=(("8:2",), DIVIDED))
        return
    whole, divided, killed = trained(
        commands,
        tmp_path,
        case,
        whole=(("8:2",), WHOLE),
        divided=(("8:2",), DIVIDED),
        killed=(("3:2", "8:2"), DIVIDED),
    )
    require_same(divided, killed)
    require_close(divided, whole, rtol=5e-3 if case in CHOOSING else 2e-4)


@pytest.mark.slow
def test_other_numbers_of_processes_go_on_with_it(tmp_path: Path, commands: Commands):
    whole, divided, copies = trained(
        commands,
        tmp_path,
        LM,
        whole=(("8:2",), WHOLE),
        divided=(("3:3", "5:1", "8:2"), DIVIDED),
        copies=(("8:4",), {"distributed": {"strategy": "fsdp", "shard_size": 2, "reshard_after_forward": False}}),
    )
    require_close(divided, whole)
    require_close(copies, whole)


@pytest.mark.slow
def test_a_resume_may_change_the_strategy(tmp_path: Path, commands: Commands):
    """Of ddp and zero1 to the bit; to and from fsdp, and on one process, up to rounding: the draws are the same."""
    whole, same, through = trained(
        commands,
        tmp_path,
        LM,
        whole=(("8:2",), WHOLE),
        same=(("3:2:zero1", "5:2:ddp", "8:2:zero1"), WHOLE),
        through=(("3:2:ddp", "5:2:fsdp", "7:2:zero1", "8:1:fsdp"), WHOLE),
    )
    require_same(same, whole)
    require_close(through, whole)
    assert stat_records(through)[:2] == stat_records(whole)[:2], "before the first checkpoint"


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["sgd", "lion"])
def test_other_optimizers_and_frozen_weights_are_divided_and_saved(optimizer: str, commands: Commands, tmp_path: Path):
    """SGD without momentum remembers nothing, so its file is empty."""
    how: Any = {"memory": {}, "optimizer": {"type": optimizer, "lr": 1e-3}, "freeze": [{"match": "embedding"}]}
    how["optimizer"] |= {"momentum": 0.0} if optimizer == "sgd" else {}
    fsdp = how | {"distributed": {"strategy": "fsdp"}}
    stages: Any = {"whole": (("8:2",), how | {"distributed": {}}), "divided": (("8:2",), fsdp)}
    whole, divided, killed = trained(commands, tmp_path, LM, **stages, killed=(("3:2", "8:2"), fsdp))
    require_same(killed, divided)
    for file in ("optimizer", "frozen"):
        found, expected = (load_file(one / f"checkpoints/step-00000008/{file}.safetensors") for one in (divided, whole))
        assert bool(found) == (file == "frozen" or optimizer == "lion")
        assert_close(found, expected, rtol=0, atol=0.02)
    if optimizer == "sgd":  # the sign of a rounding error is as large as that of a gradient
        require_close(divided, whole)


@pytest.mark.slow
def test_muon_is_divided_by_matrices_and_goes_on_with_other_numbers_of_processes(commands: Commands, tmp_path: Path):
    options: Any = {"optimizer": {"type": "muon", "lr": 1e-3}}
    whole, divided, killed, other = trained(
        commands,
        tmp_path,
        LM,
        whole=(("8:2",), WHOLE | options),
        divided=(("8:2",), DIVIDED | options),
        killed=(("3:2", "8:2"), DIVIDED | options),
        other=(("3:3", "5:1", "8:2"), DIVIDED | options),
    )
    require_same(killed, divided)
    require_close(divided, whole)
    require_close(other, whole)


@pytest.mark.slow
@pytest.mark.parametrize(
    "performance",
    [{"compile": True}, {"gradient_checkpointing": "all"}, {"gradient_checkpointing": "attention", "compile": True}],
    ids=["compiled", "groups", "attention, compiled"],
)
def test_blocks_are_compiled_and_recomputed(performance: dict[str, Any], commands: Commands, tmp_path: Path):
    case = LM + WITHOUT_DROPOUT if "compile" in performance else LM
    stages: Any = {"whole": (("8:2",), WHOLE), "divided": (("8:2",), DIVIDED | {"performance": performance})}
    stages["killed"] = (("3:2", "8:2"), DIVIDED | {"performance": performance})
    whole, divided, killed = trained(commands, tmp_path, case, **stages)
    require_same(killed, divided)
    require_close(divided, whole)


@pytest.mark.slow
@pytest.mark.parametrize("parts", ["attention", "block"])
def test_layers_of_transformers_are_divided_and_recomputed(parts: str, commands: Commands, tmp_path: Path):
    """Those of a Whisper."""
    again = DIVIDED | {"performance": {"gradient_checkpointing": parts}}
    whole, divided = trained(commands, tmp_path, "asr", whole=(("8:2",), WHOLE), divided=(("8:2",), again))
    require_close(divided, whole)


@pytest.mark.slow
def test_sums_in_bf16_train_as_whole_ones_up_to_their_rounding(commands: Commands, tmp_path: Path):
    rounded: Any = {
        strategy: (("3:2", "8:2"), {"distributed": {"strategy": strategy, "reduce_dtype": "bf16"}, "memory": {}})
        for strategy in ("ddp", "zero1", "fsdp")
    }
    whole, *others = trained(commands, tmp_path, LM, whole=(("8:2",), WHOLE), **rounded)
    require_same(others[1], others[0])
    for one in others:
        assert figures(one) != figures(whole)
        require_close(one, whole, rtol=1e-2)


@pytest.mark.slow
def test_each_process_holds_what_is_forecast(tmp_path: Path):
    """All tensors that it has when the weights have been updated, and gradients are still there."""
    ways: dict[str, dict[str, Any]] = {strategy: {"strategy": strategy} for strategy in ("ddp", "zero1", "fsdp")}
    write_corpus(tmp_path)
    run_on_two_ranks(train_and_weigh, tmp_path, ways | {"exact": {"reduction": "exact"}})
    for name in (*ways, "exact"):
        for rank in (0, 1):
            said = json.loads((tmp_path / f"{name}-{rank}.json").read_text())
            assert said["held"] == pytest.approx(said["forecast"][ways.get(name, ways["ddp"])["strategy"]], rel=0.02), (
                name
            )


@pytest.mark.slow
def test_each_process_calls_a_divided_model_as_it_likes_and_never_holds_it_whole(tmp_path: Path):
    run_on_two_ranks(call_by_itself, tmp_path)


@pytest.mark.parametrize(
    "optimizer", ["adamw", *(pytest.param(one, marks=pytest.mark.slow) for one in ("muon", "adamw_8bit"))]
)
def test_a_divided_update_is_that_of_whole_optimizers_to_the_bit(optimizer: str, tmp_path: Path, commands: Commands):
    how = {"memory": {}, "optimizer": {"type": optimizer}}
    whole, divided = trained(
        commands,
        tmp_path,
        LM,
        whole=(("8:2",), how | {"distributed": {}}),
        divided=(("3:2", "8:2"), how | {"distributed": {"strategy": "zero1"}}),
    )
    require_same(divided, whole)


CLASSIFIER = """\
task: classification
model: {pretrained_model: base, pooling: first, dropout: 0.0}
data: {corpus: {train: first.json, train_fraction: 0.6, valid_fraction: 0.2, deduplicate: false}, max_length: 16}
training:
  max_steps: 1
  batch_size: 8
  device: cpu
  optimizer: {lr: 1e-9}
  memory: {rehearsal: false}
  logging: {tensorboard: false, progress_bar: false}
"""


def write_classes(folder: Path) -> None:
    """A base of transformers, a YAML, and texts with some labels, and with others of which two are the same."""
    transformers = pytest.importorskip("transformers")
    write_bert(folder / "base", ("the", "boy", "good", "bad", "fine"))
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.ElectraConfig(vocab_size=10, embedding_size=8, max_position_embeddings=24, **sizes)
    transformers.ElectraModel(config).save_pretrained(folder / "base")
    for name, labels in (("first", "bcd"), ("other", "abdx")):
        texts = [f"the boy {'good ' * (n % 5)}{'bad ' * (n % 7)}{'fine ' * (n % 3)}" for n in range(100)]
        rows = [{"text": text, "label": labels[n % len(labels)]} for n, text in enumerate(texts)]
        (folder / f"{name}.json").write_text(json.dumps(rows))
    (folder / "classifier.yml").write_text(CLASSIFIER)


@pytest.mark.slow
@pytest.mark.parametrize("key", ["training.checkpoint.init_from", "model.pretrained_model"])
def test_labels_are_taken_by_name_where_the_model_is_divided(key: str, tmp_path: Path, commands: Commands):
    """Weights hardly move, so that a run has those that it began with."""
    write_classes(tmp_path)
    assert commands.start(["train", "classifier.yml", "run_dir=runs/first"], tmp_path).wait().status == 0
    assert commands.start(["export", "runs/first", "--format", "hf", "--output", "out"], tmp_path).wait().status == 0
    source = "out" if key == "model.pretrained_model" else "runs/first"
    arguments = ["train", "classifier.yml", "data.corpus.train=other.json", f"{key}={source}"]
    assert commands.start([*arguments, "run_dir=runs/whole"], tmp_path).wait().status == 0
    divided = [*arguments, "run_dir=runs/divided", "training.distributed.strategy=fsdp"]
    ended = [rank.wait() for rank in commands.start_ranks(2, divided, tmp_path)]
    assert [one.status for one in ended] == [0, 0], ended[0].errors
    said = [line for one in ended for line in one.errors.splitlines() if "its labels differ" in line]
    assert len(said) == 1
    assert "2 of 4 rows are taken by name" in said[0]
    first, whole, found = (
        load_file(tmp_path / f"runs/{name}/checkpoints/step-00000001/model.safetensors")
        for name in ("first", "whole", "divided")
    )
    assert_close(found, whole, rtol=0, atol=1e-6)
    for ours, theirs in ((1, 0), (2, 2)):  # b and d, of b, c and d
        assert_close(found["head.weight"][ours], first["head.weight"][theirs], rtol=1e-4, atol=1e-6)
    assert not any(torch.allclose(found["head.weight"][0], row, atol=1e-3) for row in first["head.weight"])


NEW_TOKENS = """\
task: lm
model: {pretrained: base, lora: {rank: 2, targets: [query, value]}}
data: {corpus: {train: texts.txt, train_fraction: 0.8, valid_fraction: 0.1}, max_length: 24}
training:
  max_steps: 4
  batch_size: 4
  device: cpu
  optimizer: {lr: 0.05}
  checkpoint: {interval: 2, interval_epochs: null, save_total_limit: null}
  memory: {rehearsal: false}
  logging: {tensorboard: false, progress_bar: false}
"""


@pytest.mark.slow
@pytest.mark.parametrize("base_dtype", ["fp32", "nf4"])
def test_rows_of_new_tokens_learn_next_to_adapters_where_the_model_is_divided(
    base_dtype: str, tmp_path: Path, commands: Commands
):
    """Both those that are read and those that are scored, of a base that isn't tied; as in a whole model."""
    transformers = pytest.importorskip("transformers")
    num_rows = tiny_decoder.write_folder(tmp_path / "base", "llama").config.vocab_size
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    tokenizer.add_tokens([f"<unused-{number}>" for number in range(num_rows - len(tokenizer))])
    tokenizer.add_tokens(["zig", "zag"])
    tokenizer.save_pretrained(tmp_path / "base")
    (tmp_path / "texts.txt").write_text("\n\n".join(f"one zig and {n} zag more" for n in range(80)))
    (tmp_path / "new.yml").write_text(NEW_TOKENS)
    runs, dtype = {"whole": "ddp", "divided": "fsdp"}, f"model.lora.base_dtype={base_dtype}"
    for name, strategy in runs.items():
        how = ["train", "new.yml", f"run_dir=runs/{name}", f"training.distributed.strategy={strategy}", dtype]
        ended = [rank.wait() for rank in commands.start_ranks(2, how, tmp_path)]
        assert [one.status for one in ended] == [0, 0], ended[0].errors
    again = ["train", "new.yml", "run_dir=runs/again", "training.distributed.strategy=fsdp", dtype]
    again.append(f"training.checkpoint.resume={tmp_path / 'runs/divided/checkpoints/step-00000002'}")
    ended = [rank.wait() for rank in commands.start_ranks(2, again, tmp_path)]
    assert [one.status for one in ended] == [0, 0], ended[0].errors
    whole, divided, resumed = (
        load_file(tmp_path / f"runs/{name}/checkpoints/step-00000004/model.safetensors")
        for name in ("whole", "divided", "again")
    )
    rows = [name for name in whole if name.endswith(".rows")]
    first = load_file(tmp_path / "runs/whole/checkpoints/step-00000002/model.safetensors")
    assert len(rows) == 2, "of the embedding, and of the output layer"
    assert all(not torch.allclose(whole[name], first[name], atol=1e-3) for name in rows), "they learn"
    assert_close(divided, whole, rtol=0, atol=1e-3)
    assert all(torch.equal(one, resumed[name]) for name, one in divided.items())


IN_FOUR_BITS = """
task: classification
model: {pretrained_model: base, pooling: mean, lora: {rank: 2, base_dtype: nf4}}
data:
  max_length: 16
  max_unknown: 90
  corpus: {type: files, train: [texts.json], train_fraction: 0.6, valid_fraction: 0.2}
training:
  max_steps: 4
  batch_size: 2
  gradient_accumulation_steps: 2
  device: cpu
  optimizer: {lr: 0.05}
  checkpoint: {interval: 2, interval_epochs: null}
  memory: {rehearsal: false}
  logging: {tensorboard: false, progress_bar: false}
"""


@pytest.mark.slow
def test_a_network_of_transformers_in_four_bits_learns_the_same_where_it_is_divided(tmp_path: Path, commands: Commands):
    tiny_bases.ENCODERS["modernbert"](tmp_path / "base")
    rows = [{"text": f"ba {'do mi'[3 * (n % 2) :]} {'su ' * (n % 5)}", "label": "yn"[n % 2]} for n in range(60)]
    (tmp_path / "texts.json").write_text(json.dumps(rows))
    (tmp_path / "case.yml").write_text(IN_FOUR_BITS)
    for strategy in ("ddp", "fsdp"):
        how = ["train", "case.yml", f"run_dir=runs/{strategy}", f"training.distributed.strategy={strategy}"]
        ended = [rank.wait() for rank in commands.start_ranks(2, how, tmp_path)]
        assert [one.status for one in ended] == [0, 0], ended[0].errors
    for name in ("model", "frozen"):
        whole, divided = (
            load_file(tmp_path / f"runs/{strategy}/checkpoints/step-00000004/{name}.safetensors")
            for strategy in ("ddp", "fsdp")
        )
        assert_close(divided, whole, rtol=0, atol=1e-5)
        assert any("lora_B" in one and tensor.any() for one, tensor in whole.items()) == (name == "model")
    assert any(".codes" in one for one in whole), "the base is in four bits"
