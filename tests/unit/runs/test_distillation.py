"""A run that learns from another: the formula to the last digit, however steps are put together; mistakes, one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from contract_cases import CASES
from vaak.config.load import load
from vaak.config.tasks import task_class
from vaak.config.yaml.text import yaml_text
from vaak.core.batch import Batch, Term
from vaak.core.errors import UserError
from vaak.core.task import Task
from vaak.engine.metrics_file import read_records
from vaak.nn.losses import divergence
from vaak.runs.distillation import distilled
from vaak.runs.start import train
from vaak.testing import Case, check_replay, check_resume, check_task
from vaak.testing.case import exact

GOOD, BAD = ("good", "fine", "great"), ("bad", "poor", "awful")
DATA: dict[str, Any] = {
    "corpus": {"train": "texts.json", "label_columns": ["label", "kind"], "train_fraction": 0.6, "valid_fraction": 0.2},
    "tokenizer": {"type": "word", "vocab_size": 200, "min_frequency": 1},
    "max_length": 20,
}
TRANSFORMER: dict[str, Any] = {
    "architecture": "transformer",
    "d_model": 16,
    "num_layers": 1,
    "num_heads": 2,
    "dropout": 0.1,
}
CNN: dict[str, Any] = {
    "architecture": "cnn",
    "embed_size": 8,
    "num_filters": 8,
    "filter_sizes": [1, 2],
    "label_weights": [1.0, 0.5],
}
LOOP: dict[str, Any] = {
    "max_steps": 4,
    "batch_size": 4,
    "device": "cpu",
    "checkpoint": {"interval": 2},
    "logging": {"tensorboard": False, "interval": 1},
}


def rows() -> list[dict[str, Any]]:
    texts = (f"w{number % 9} {(GOOD, BAD)[number % 2][number % 3]} " + "w1 " * (number % 5) for number in range(60))
    return [
        {"text": f"{text}w{number % 11}", "label": ("yes", "no")[number % 2], "kind": number % 3}
        for number, text in enumerate(texts)
    ]


def config(name: str, **sections: Any) -> Path:
    """The file of a classifier, or of a task that ``sections`` name."""
    values = {"task": "classification", "name": name, "model": TRANSFORMER, "data": DATA, "training": LOOP, **sections}
    file = Path(f"{name}.yml")
    file.write_text(json.dumps(values))
    return file


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a teacher, in ``runs/teacher``."""
    made = tmp_path_factory.mktemp("distillation")
    (made / "texts.json").write_text(json.dumps(rows()))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        train(load([config("teacher")]))
    return made


@pytest.fixture(autouse=True)
def _inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def make_task(file: Path, run: Path, *overrides: str) -> Task:
    """The task of a configuration, prepared in ``run``."""
    experiment = load([file], overrides).experiment
    task = distilled(task_class(experiment.reference)(experiment, run, Path()), experiment, run)
    task.prepare()
    return task


TEACHER: dict[str, Any] = {"teacher": "runs/teacher", "temperature": 2.0, "alpha": 0.7}


def direct(task: Any, model: torch.nn.Module, batches: list[Batch]) -> torch.Tensor:
    """The loss of a step as the paper has it, of all its texts in one batch."""
    options, teacher = task.options, task.teacher
    total, number = torch.zeros((), dtype=torch.float64), sum(batch.num_rows for batch in batches)
    texts = task.dataset("train")
    wanted = task.stored if task.is_stored else None
    for batch in batches:
        found = task.task.logits(model, batch)
        taught = teacher.logits(batch) if wanted is None else dict(zip(found, wanted.of(batch), strict=True))
        targets = torch.tensor(np.array([texts.targets[row[0]] for row in batch.indices]))
        for place, (name, weight) in enumerate(zip(found, task.task.weights, strict=True)):
            p = F.softmax(taught[name].double() / options.temperature, -1)
            q = F.softmax(found[name] / options.temperature, -1)
            soft = (p * (p / q).log()).sum()
            hard = -F.softmax(found[name], -1)[torch.arange(len(targets)), targets[:, place]].log().sum()
            total = total + weight * (options.alpha * options.temperature**2 * soft + (1 - options.alpha) * hard)
    return total / number


@pytest.mark.parametrize("stored", [1.0, 0.0])
def test_the_gradient_of_a_step_is_that_of_the_direct_formula(tmp_path: Path, stored: float):
    file = config("student", model=TRANSFORMER | {"label_weights": [1.0, 0.5]}, distillation=TEACHER)
    task: Any = make_task(file, tmp_path / "run", f"distillation.stored_gib={stored}")
    assert task.is_stored == bool(stored)
    training = {"gradient_accumulation_steps": 3, "batch_size": 3, "max_steps": 1}
    trainer = Case(lambda: task, training=training).trainer(tmp_path / "fit", task=exact(task))
    assert trainer.loss_weights == {"cross_entropy": pytest.approx(0.3), "distillation": 0.7}
    data = next(trainer.data.steps(trainer.position))
    batches = [one.batch for one in data.microbatches if one.batch is not None]
    assert len(batches) == 3
    expected = torch.autograd.grad(direct(task, trainer.model.eval(), batches), list(trainer.model.parameters()))
    descent = trainer.step.objectives[0]
    descent.gradient.accumulate(trainer.state.chunk_rules, data, trainer.step.gradients[0])
    for parameter, wanted in zip(trainer.model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, wanted, rtol=1e-9, atol=1e-12)


def test_the_divergence_is_zero_for_the_teacher_itself_and_its_gradient_is_the_difference_of_probabilities():
    teacher = torch.randn(5, 4, dtype=torch.float64)
    student = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    assert float(divergence(teacher, teacher, 4.0)) == 0.0
    divergence(student, teacher, 4.0).backward()
    expected = 4.0 * (F.softmax(student / 4, -1) - F.softmax(teacher / 4, -1))
    torch.testing.assert_close(student.grad, expected.detach())


def test_a_student_of_another_kind_learns_from_stored_predictions():
    """A transformer's rows have special tokens at both ends, a TextCNN's none: the teacher reads the texts itself."""
    file = config("cnn", model=CNN, distillation=TEACHER | {"temperature": 4.0, "alpha": 1.0})
    longer = ["training.max_steps=30", "training.optimizer.lr=0.03"]
    outcome = train(load([file], longer))
    with open("runs/cnn/metrics.jsonl") as lines:
        records = [json.loads(line) for line in lines]
    steps = [record for record in records if record["kind"] == "step"]
    assert steps[-1]["distillation"] < 0.3 * steps[0]["distillation"]
    assert np.isclose(steps[0]["loss"], steps[0]["distillation"])
    assert "val_distillation" not in outcome.metrics
    assert outcome.metrics["val_loss"] > 0
    stored = Path("runs/cnn/teacher/logits.f32")
    assert stored.stat().st_size == 4 * 5 * 36
    before = stored.stat().st_mtime_ns
    train(load([file], [*longer, "training.max_steps=31", "training.checkpoint.resume=auto"]))
    assert stored.stat().st_mtime_ns == before


@pytest.mark.slow
def test_predictions_are_shared_through_the_cache():
    for name, temperature in (("first", 2.0), ("second", 8.0)):
        data = DATA | {"cache_dir": "cache"}
        train(load([config(name, data=data, distillation=TEACHER | {"temperature": temperature})]))
    assert len([*Path("cache").glob("teacher-*")]) == 1


HIDDEN: dict[str, Any] = {
    "model": TRANSFORMER | {"d_model": 8},
    "distillation": TEACHER | {"hidden": [{"student": "transformer.stack", "teacher": "transformer.stack"}]},
}


def test_hidden_states_are_projected_and_their_difference_is_a_mean_over_positions(tmp_path: Path):
    task: Any = make_task(config("hidden", **HIDDEN), tmp_path / "run")
    trainer = Case(lambda: task).trainer(tmp_path / "fit", task=exact(task))
    data = next(trainer.data.steps(trainer.position))
    (projection,) = (value for name, value in trainer.state.loss.module.named_parameters())
    assert projection.shape == (16, 8)
    total, number = torch.zeros((), dtype=torch.float64), 0
    for microbatch in data.microbatches:
        batch = microbatch.batch
        assert batch is not None
        kept: list[torch.Tensor] = []
        for model in (trainer.model.eval(), task.teacher.model):
            stack: Any = model.get_submodule("transformer.stack")
            hook = stack.register_forward_hook(lambda *given, kept=kept: kept.append(given[2]))
            model(batch["inputs"], batch["mask"])
            hook.remove()
        for student, teacher, mask in zip(*kept, batch["mask"], strict=True):
            for place in range(int(mask.sum())):
                total = total + (projection @ student[place] - teacher[place]).square().mean()
                number += 1
    expected = torch.autograd.grad(total / number, projection)[0]
    trainer.step.objectives[0].gradient.accumulate(trainer.state.chunk_rules, data, trainer.step.gradients[0])
    torch.testing.assert_close(projection.grad, expected, rtol=1e-9, atol=1e-12)


OF_SPEECH = ("diarization, attractors, stored features", "diarization, speakers by name")


@pytest.mark.parametrize(
    "name",
    [
        "asr",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in (
                *OF_SPEECH,
                *("diarization", "diarization, powerset, augmented", "diarization, speech, conversations"),
            )
        ),
    ],
)
def test_recognisers_and_diarizers_learn_from_others(tmp_path: Path, name: str):
    case = CASES[name]
    assert case.write is not None
    case.write(tmp_path / "data")
    quick = {"max_steps": 1, "device": "cpu", "logging": {"tensorboard": False, "interval": 1}}
    sections = {"task": case.task, **case.options, "training": {**case.training, **quick}}
    (tmp_path / "case.yml").write_text(yaml_text(sections).replace("FOLDER", str(tmp_path / "data")))
    teacher, student = tmp_path / "teacher", tmp_path / "student"
    train(load([tmp_path / "case.yml"], [f"run_dir={teacher}"]))
    overrides = [f"run_dir={student}", f"distillation={{teacher: {teacher}}}", "training.random_seed=3"]
    train(load([tmp_path / "case.yml"], overrides))
    [step] = [record for record in read_records(student / "metrics.jsonl") if record["kind"] == "step"]
    assert step["distillation"] > 0

    loaded = load([tmp_path / "case.yml"], overrides)
    task: Any = distilled(task_class(case.task)(loaded.experiment, student, tmp_path), loaded.experiment, student)
    task.model()
    dataset = task.dataset("train")
    batch = dataset.collate([[dataset.example(index, np.random.default_rng(index))] for index in range(4)])
    batch.indices = [[index] for index in range(4)]
    own, units = task.teacher.model, batch.totals()[task.outputs.per]
    assert all(len(logits) == units for logits in task.logits(own, batch).values())
    of_a_unit = float(task.losses(own, batch)["distillation"].total) / units
    assert of_a_unit == pytest.approx(0, abs=5e-9)  # float32 has 1.2e-7


@pytest.mark.slow
@pytest.mark.parametrize("sections", [{"distillation": TEACHER, "model": CNN | {"dropout": 0.1}}, HIDDEN])
def test_a_distilled_run_keeps_the_contract_of_training(tmp_path: Path, sections: dict[str, Any]):
    file = config("contract", **sections)

    def make() -> Task:
        return make_task(file, tmp_path / "run")

    check_task(Case(make), (check_resume, check_replay))


@pytest.mark.slow
def test_a_language_model_learns_from_another(tmp_path: Path):
    data = {"corpus": {"type": "grammar", "num_sentences": 60}, "tokenizer": {"type": "character"}, "max_length": 40}
    small = {"d_model": 16, "num_layers": 1, "num_heads": 2}
    train(load([config("lm_teacher", task="lm", model=small, data=data)]))
    file = config("lm_student", task="lm", model=small, data=data, distillation={"teacher": "runs/lm_teacher"})
    stored: Any = make_task(file, tmp_path / "stored")
    computed: Any = make_task(file, tmp_path / "computed", "distillation.stored_gib=0")
    packed = {"batching": {"type": "packed"}}
    terms: list[Term] = []
    for task in (stored, computed):
        trainer = Case(computed.model, training=packed).trainer(tmp_path / f"fit{len(terms)}", task=task)
        batch = next(trainer.data.steps(trainer.position)).microbatches[0].batch
        assert batch is not None
        assert max(map(len, batch.indices)) > 1
        terms.append(task.losses(trainer.model.eval(), batch)["distillation"])
    assert stored.is_stored
    assert not computed.is_stored
    assert terms[0].per == "token"
    torch.testing.assert_close(terms[0].total, terms[1].total)


@pytest.mark.slow
def test_a_translator_learns_from_another_at_every_target_token(tmp_path: Path):
    corpus = {"type": "grammar", "num_sentences": 80, "train_fraction": 0.7, "valid_fraction": 0.15}
    data = {"corpus": corpus, "tokenizer": {"type": "character"}}
    small = {"global_config": {"d_model": 16, "num_layers": 1, "num_heads": 2}}
    sections: dict[str, Any] = {"task": "seq2seq", "model": small, "data": data}
    quick = {"training": LOOP | {"max_steps": 2, "validation": {"interval": 100}}}
    train(load([config("translator", **sections, **quick)]))
    taught = {"teacher": "runs/translator", "temperature": 2.0}
    file = config("translator_student", **sections, distillation=taught)
    stored: Any = make_task(file, tmp_path / "stored")
    computed: Any = make_task(file, tmp_path / "computed", "distillation.stored_gib=0")
    assert (stored.is_stored, computed.is_stored) == (True, False)
    terms: list[Term] = []
    for task in (stored, computed):
        trainer = Case(computed.model).trainer(tmp_path / f"fit{len(terms)}", task=task)
        batch = next(trainer.data.steps(trainer.position)).microbatches[0].batch
        assert batch is not None
        model = trainer.model.eval()
        terms.append(task.losses(model, batch)["distillation"])
    total, number = torch.zeros(()), 0
    assert batch is not None
    with torch.no_grad():
        scores = [one(batch["source"], batch["source_mask"], batch["inputs"]) for one in (model, stored.teacher.model)]
    for row, targets in enumerate(batch["targets"]):
        for place in (targets >= 0).nonzero().flatten().tolist():
            q, p = (F.softmax(one[row, place] / 2.0, -1) for one in scores)
            total, number = total + 4.0 * (p * (p / q).log()).sum(), number + 1
    assert 0 < number < batch["targets"].numel(), "some are padding"
    assert batch.totals()["token"] == number
    assert {term.per for term in terms} == {"token"}
    for term in terms:
        torch.testing.assert_close(term.total, total, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"distillation": {"teacher": "runs/none"}}, "distillation.teacher: runs/none is not a run directory"),
        (
            {"data": DATA | {"corpus": DATA["corpus"] | {"label_columns": ["label"]}}},
            "predicts label, kind, and this run label",
        ),
        (
            {"data": DATA | {"corpus": DATA["corpus"] | {"train": "others.json"}}},
            r"has other classes of kind than this run \(3 there, 2 here\)",
        ),
        (
            {"model": CNN, "data": DATA | {"augmentation": {"enabled": True, "techniques": ["random_swap"]}}},
            "reads other batches than this run, whose examples are augmented",
        ),
        ({"model": CNN, "distillation": TEACHER | {"stored_gib": 0}}, "distillation.stored_gib is too small"),
        (
            {"distillation": TEACHER | {"hidden": [{"student": "transformer.stak", "teacher": "head"}]}},
            r"TransformerClassifier has no module 'transformer.stak'; did you mean 'transformer.stack'",
        ),
        (
            {"distillation": TEACHER | {"hidden": [{"student": "dropout", "teacher": "dropout"}]}},
            r"distillation.hidden: dropout gives \(1, 16\); expected a module that gives \(row, time, width\)",
        ),
        (
            {"distillation": TEACHER | {"hidden": [{"student": "head", "teacher": "head"}]}},
            "distillation.hidden: head isn't called when the model predicts; name another",
        ),
        (
            {"task": "lm", "model": {}, "data": {"corpus": {"num_sentences": 60}}},
            "predicts label, kind, and this run token",
        ),
    ],
)
def test_mistakes_have_one_line(tmp_path: Path, sections: dict[str, Any], message: str):
    (Path("others.json")).write_text(json.dumps([{**row, "kind": min(row["kind"], 1)} for row in rows()]))
    with pytest.raises(UserError, match=message):
        train(load([config("wrong", **{"distillation": TEACHER, **sections}, run_dir=str(tmp_path / "wrong"))]))


def test_a_task_without_logits_says_so(tmp_path: Path):
    experiment = load([config("student", distillation=TEACHER)]).experiment

    class WithoutLogits(Task):
        def prepare(self) -> None:
            """There is nothing to prepare."""

    with pytest.raises(UserError, match="WithoutLogits has no logits"):
        distilled(WithoutLogits(), experiment, tmp_path).prepare()


def test_a_teacher_that_trained_on_is_not_taken_for_the_one_a_run_began_with():
    train(load([config("growing")]))
    file = config("pupil", distillation=TEACHER | {"teacher": "runs/growing/checkpoints/last"})
    train(load([file]))
    train(load([Path("growing.yml")], ["training.max_steps=6", "training.checkpoint.resume=auto"]))
    with pytest.raises(UserError, match=r"has other weights than when this run began \(then .*step-00000004\)"):
        train(load([file], ["training.max_steps=6", "training.checkpoint.resume=auto"]))


@pytest.mark.slow
def test_a_teacher_may_move_and_another_may_not_take_its_place():
    train(load([config("movable")]))
    file = config("moving", distillation=TEACHER | {"teacher": "runs/movable"})
    train(load([file]))
    Path("runs/movable").rename("moved")
    more = ["training.max_steps=6", "training.checkpoint.resume=auto"]
    with pytest.raises(UserError, match="has other weights than when this run began"):
        train(load([file], [*more, "distillation.teacher=runs/teacher/checkpoints/step-00000002"]))
    train(load([file], [*more[1:], "distillation.teacher=moved"]))
    assert "same draws, same bits" in Path("runs/moving/train.log").read_text()
