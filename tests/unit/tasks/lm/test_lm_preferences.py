"""Preferred answers: the papers' formulas, their data, what the reference said of them, and runs by the commands."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch

import tiny_decoder
from vaak.core.errors import UserError
from vaak.engine.checkpoint.files import load_checkpoint
from vaak.library.trained_run import open as opened
from vaak.nn.cross_entropy import IGNORED
from vaak.nn.preferences import DirectPreference, OddsRatio
from vaak.tasks.lm.preferences import REFERENCE_FILE

PAIRS = torch.tensor([[-3.0, -9.0], [-20.0, -4.0], [-0.5, -0.75], [-700.0, -2.0]], dtype=torch.float64)
REFERENCES = torch.tensor([[-4.0, -8.5], [-21.0, -6.0], [-0.4, -0.9], [-650.0, -3.0]], dtype=torch.float64)


def by_hand(pair: list[float], reference: list[float], beta: float, smoothing: float) -> float:
    """Equation 7 of DPO, with Mitchell's noise, by sums of logarithms of ratios."""
    margin = np.longdouble(beta) * ((pair[0] - reference[0]) - (pair[1] - reference[1]))
    right, wrong = np.log1p(np.exp(-margin)), np.log1p(np.exp(margin))
    return float((1 - smoothing) * right + smoothing * wrong)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_dpo_is_its_formula_with_its_gradient(smoothing: float):
    loss = DirectPreference(beta=0.3, label_smoothing=smoothing)
    outputs = PAIRS.clone().requires_grad_()
    found = loss(outputs, REFERENCES)
    for value, pair, reference in zip(found.tolist(), PAIRS.tolist(), REFERENCES.tolist(), strict=True):
        assert value == pytest.approx(by_hand(pair, reference, 0.3, smoothing), rel=1e-12)
    margin = 0.3 * ((PAIRS - REFERENCES) @ torch.tensor([1.0, -1.0], dtype=torch.float64))
    slope = -0.3 * (
        (1 - smoothing) * torch.sigmoid(-margin) - smoothing * torch.sigmoid(margin)
    )  # the paper's section 4
    found.sum().backward()
    torch.testing.assert_close(outputs.grad, torch.stack((slope, -slope), 1), rtol=1e-12, atol=0)
    assert torch.autograd.gradcheck(lambda x: loss(x, REFERENCES[:3]), PAIRS[:3].clone().requires_grad_())


def test_orpo_is_its_formula_with_its_gradient():
    loss, means = OddsRatio(weight=0.7), torch.tensor([[-0.2, -3.0], [-4.0, -0.01], [-1e-3, -50.0]]).double()
    outputs = means.clone().requires_grad_()
    found = loss(outputs, means)
    p = means.numpy().astype(np.longdouble)
    odds = np.exp(p) / -np.expm1(p)
    ratio = odds[:, 0] / odds[:, 1]
    np.testing.assert_allclose(found.detach().numpy(), (0.7 * np.log1p(1 / ratio)).astype(float), rtol=1e-10)
    found.sum().backward()
    delta = 1 / (1 + ratio)  # equation 9
    h = (1 / -np.expm1(p[:, 0]), -1 / -np.expm1(p[:, 1]))  # equation 10
    expected = np.stack([-0.7 * delta * one for one in h], 1).astype(float)
    assert outputs.grad is not None
    np.testing.assert_allclose(outputs.grad.numpy(), expected, rtol=1e-10)
    certain = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    loss(certain, certain).sum().backward()
    assert certain.grad is not None
    assert certain.grad.isfinite().all(), "an answer of which the model is certain"


def test_orpo_is_that_of_trl():
    trainers = pytest.importorskip("trl.experimental.orpo", reason="TRL isn't installed")
    its = SimpleNamespace(beta=0.7, accelerator=SimpleNamespace(device="cpu"))
    found = trainers.ORPOTrainer.odds_ratio_loss(its, *PAIRS[:3].unbind(1))[0]
    torch.testing.assert_close(-found.double(), OddsRatio(0.7)(PAIRS[:3], PAIRS[:3]))


def test_dpo_is_that_of_trl():
    trl = pytest.importorskip("trl", reason="TRL isn't installed")
    its = MagicMock(beta=0.3, label_smoothing=0.0, loss_types=["sigmoid"], loss_weights=[1.0], ld_alpha=None)
    its.configure_mock(
        precompute_ref_logps=True, aux_loss_enabled=False, use_weighting=False, f_divergence_type="reverse_kl"
    )
    its.accelerator.device = torch.device("cpu")
    its.accelerator.gather_for_metrics = lambda found: found
    inputs = {"input_ids": torch.ones(8, 2, dtype=torch.long), "completion_mask": torch.ones(8, 2, dtype=torch.long)}
    inputs["attention_mask"] = inputs["completion_mask"]
    inputs |= dict(zip(("ref_chosen_logps", "ref_rejected_logps"), REFERENCES.unbind(1), strict=True))
    given = torch.cat(PAIRS.unbind(1))[:, None].clone().requires_grad_()
    outputs = SimpleNamespace(
        log_probs=given, mean_logits=given.detach(), entropy=given.detach(), is_top1=given.detach() > 0
    )
    found = trl.DPOTrainer._compute_loss(its, lambda **_: outputs, inputs, return_outputs=False)
    own = PAIRS.clone().requires_grad_()
    expected = DirectPreference(0.3)(own, REFERENCES).mean()
    torch.testing.assert_close(found, expected)
    found.backward()
    expected.backward()
    assert own.grad is not None
    torch.testing.assert_close(given.grad, torch.cat(own.grad.unbind(1))[:, None])


@pytest.mark.parametrize(("loss", "options"), [(DirectPreference, {"beta": 0}), (OddsRatio, {"weight": -1})])
def test_strengths_are_above_0(loss: Any, options: dict[str, float]):
    with pytest.raises(ValueError, match="must be above 0"):
        loss(**options)


CONFIG = """\
task: lm
name: preferred
model: {pretrained: theirs, dropout: 0.0}
data:
  corpus: {type: preferences, train: train.jsonl, valid: valid.jsonl}
  max_length: 60
  chat_template: chatml
training:
  max_steps: 12
  batch_size: 4
  device: cpu
  loss: {main: {type: dpo, beta: 0.5}}
  optimizer: {lr: 1e-3, weight_decay: 0}
  validation: {interval: 6}
  checkpoint: {interval: 6}
  logging: {interval: 1, tensorboard: false}
"""

SCRATCH = ["model.pretrained=null", "model.d_model=32", "model.num_layers=1", "model.num_heads=2"]


def write_pairs(path: Path, numbers: range) -> None:
    """Questions whose good answer ends otherwise than the bad one, in each of the three forms."""
    rows: list[dict[str, Any]] = []
    for number in numbers:
        asked = {"role": "user", "content": f"{number}?"}
        good, bad = ({"role": "assistant", "content": f"{number} {said}"} for said in ("अब", "नहीं"))
        if number % 3 == 0:
            rows.append({"prompt": asked["content"], "chosen": good["content"], "rejected": bad["content"]})
        elif number % 3 == 1:
            rows.append({"prompt": [asked], "chosen": [good], "rejected": [bad]})
        else:
            before = [asked, {"role": "assistant", "content": "?"}, asked]
            rows.append({"chosen": [*before, good], "rejected": [*before, bad]})
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_pairs(tmp_path / "train.jsonl", range(24))
    write_pairs(tmp_path / "valid.jsonl", range(100, 109))
    (tmp_path / "preferred.yml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def logged(run: str, kind: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (Path("runs") / run / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if row["kind"] == kind]


def test_dpo_prefers_what_it_is_shown_and_resumes_to_the_same_bits(
    vaak: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # or it is asked for long for what is gone
    base = tiny_decoder.write_folder(folder / "theirs", "gpt_neox")
    code, _, err = vaak("train", "preferred.yml")
    assert code == 0, err
    task: Any = opened("runs/preferred", device="cpu").task
    pairs = task.dataset("train")
    assert len(pairs.lengths) == 24
    kept = np.fromfile(f"runs/preferred/prepared/train/{REFERENCE_FILE}", np.float32).reshape(-1, 2)
    for index in (0, 1, 2):  # what the reference said is what transformers' own module says of the answers alone
        example = pairs.example(index, np.random.default_rng(0))
        texts = []
        for side, sequence in enumerate(example[:2]):
            with torch.no_grad():
                logits = base(torch.from_numpy(sequence.inputs)[None]).logits[0].log_softmax(-1)
            scored = np.flatnonzero(sequence.targets != IGNORED)
            wanted = torch.from_numpy(sequence.targets[scored])
            expected = logits[torch.from_numpy(scored), wanted].sum()
            assert kept[index, side] == pytest.approx(float(expected), abs=1e-3)
            texts.append(task.tokenizer.decode(wanted.tolist()))
        assert texts == [f"{index} अब", f"{index} नहीं"], "the last answer alone counts"

    assert logged("preferred", "step")[0]["loss"] == pytest.approx(np.log(2), abs=1e-5), (
        "training begins as the reference"
    )
    evaluations = logged("preferred", "evaluation")
    assert evaluations[-1]["val_loss"] < 0.6
    assert evaluations[-1]["val_accuracy"] == 1
    metrics = {name: evaluations[-1][f"val_{name}"] for name in ("margin", "chosen_reward", "rejected_reward")}
    assert metrics["margin"] == pytest.approx(metrics["chosen_reward"] - metrics["rejected_reward"])
    assert metrics["margin"] > 0.2

    shutil.copytree("runs/preferred", "runs/cut")
    shutil.rmtree("runs/cut/checkpoints/step-00000012")
    shutil.rmtree("theirs")  # what it said is kept
    resume = "training.checkpoint.resume=runs/cut/checkpoints/step-00000006"
    code, _, err = vaak("train", "preferred.yml", "run_dir=runs/cut", resume)
    assert code == 0, err
    last, again = (load_checkpoint(Path(f"runs/{run}/checkpoints/step-00000012")).model for run in ("preferred", "cut"))
    assert [name for name, one in last.items() if not torch.equal(one, again[name])] == []
    code, out, err = vaak("eval", "runs/preferred", "--split", "valid", "--json")
    assert code == 0, err
    assert '"val_margin"' in out


def test_orpo_needs_no_reference_and_dpo_one_to_begin_with(vaak: Any, folder: Path):
    scratch = [*SCRATCH, "data.tokenizer=character", "name=scratch"]
    code, _, err = vaak("train", "preferred.yml", *scratch)
    assert (code, "training.loss.main: dpo compares with the model that training begins with" in err) == (2, True)
    code, _, err = vaak("train", "preferred.yml", *scratch, "training.loss.main={type: orpo, weight: 0.5}")
    assert code == 0, err
    last = logged("scratch", "evaluation")[-1]
    assert last["val_loss"] == pytest.approx(last["val_orpo"] + last["val_cross_entropy"])
    assert not list(Path("runs/scratch/prepared").rglob(REFERENCE_FILE))

    begins = ["training.checkpoint.init_from=runs/scratch", "name=after", "training.max_steps=2"]
    path = "data.tokenizer={path: runs/scratch/prepared/tokenizer, type: character}"
    code, _, err = vaak("train", "preferred.yml", *SCRATCH, path, *begins)
    assert code == 0, err
    assert logged("after", "step")[0]["loss"] == pytest.approx(np.log(2), abs=1e-5)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "?", "chosen": "अब"}, "no pair of answers; expected an object with prompt, chosen and rejected"),
        ({"prompt": "?", "chosen": "अब", "rejected": "अब"}, "chosen and rejected are the same"),
        ({"prompt": "?", "chosen": "अब", "rejected": ""}, "rejected has to be one answer of the assistant"),
        ({"chosen": "अब", "rejected": "कब"}, "nothing was asked; give prompt"),
        ({"prompt": "?", "chosen": 3, "rejected": "कब"}, "chosen is 3; expected text, or a list of messages"),
    ],
)
def test_what_is_no_pair_is_named_with_its_line(vaak: Any, folder: Path, row: dict[str, Any], said: str):
    with open("train.jsonl", "a") as file:
        file.write(json.dumps(row) + "\n")
    orpo = [*SCRATCH, "training.loss.main=orpo"]
    code, _, err = vaak("train", "preferred.yml", *orpo)
    assert (code, f"train.jsonl:25: {said}" in err.replace("\n", " ")) == (2, True), err


def test_pairs_that_teach_both_ways_are_counted_and_those_written_alike_refused(vaak: Any, folder: Path):
    pair = {"prompt": "?", "chosen": "अब", "rejected": "कब"}
    with open("train.jsonl", "a") as file:
        file.writelines(
            json.dumps(row) + "\n"
            for row in (pair, {**pair, "chosen": "कब", "rejected": "अब"}, {**pair, "prompt": "!"})
        )
    orpo = [*SCRATCH, "training.loss.main=orpo", "training.max_steps=1"]
    code, _, err = vaak("train", "preferred.yml", *orpo)
    said = "train: 1 pairs have the answers of another pair in the opposite order; both are kept"
    assert (code, said in err.replace("\n", " ")) == (0, True), err
    with open("train.jsonl", "a") as file:
        file.write(json.dumps({**pair, "chosen": "<think>so</think>अब", "rejected": "अब"}) + "\n")
    code, _, err = vaak("train", "preferred.yml", *orpo, "data.reasoning=drop", "name=alike")
    assert (code, "train.jsonl:28: data.chat_template gives chosen and rejected the same text" in err) == (2, True), err


def test_texts_are_refused_where_answers_are_compared(vaak: Any, folder: Path):
    options = [*SCRATCH, "training.loss.main=orpo", "training.max_steps=1"]
    code, _, err = vaak("train", "preferred.yml", *options, "training.batching=packed")
    assert (code, "a pair of answers is one row" in err) == (2, True)
    assert vaak("train", "preferred.yml", *options)[0] == 0
    with pytest.raises(UserError, match="evaluated on pairs of answers"):
        opened("runs/preferred", device="cpu").task.make_dataset_from(["राम"])
