"""One call trains a task into a run directory that every command opens."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest
import torch

import tiny_runs
import vaak
from commands import Commands
from vaak.config.yaml.text import read_yaml
from vaak.engine import load_checkpoint
from vaak.library.fit import _load_configuration

QUICK: dict[str, Any] = {
    "max_steps": 4,
    "batch_size": 8,
    "device": "cpu",
    "checkpoint": {"interval": 2},
    "logging": {"tensorboard": False},
}


def last(directory):
    return load_checkpoint(Path(directory) / "checkpoints" / "step-00000004")


def same_weights(first, second):
    return all(torch.equal(tensor, second.model[name]) for name, tensor in first.model.items())


class Counter(vaak.Callback):
    def __init__(self):
        self.steps = 0

    def on_step_end(self, trainer, report):
        self.steps += 1


def test_a_task_in_a_file_is_a_whole_run(vowels, vaak_command):
    counter = Counter()
    run = vaak.fit(vowels.vowels, "runs/own", callbacks=[counter], learning_rate=0.05, **QUICK)
    name = Path(vowels.__file__).name
    assert counter.steps == 4
    assert read_yaml(Path("runs/own/config.yml"))["task"] == f"./code/{name}:vowels"
    assert (Path("runs/own/code") / name).read_text() == Path(vowels.__file__).read_text()
    assert run.predict("queue").lower() == "queue"
    code, _, said = vaak_command("eval", "runs/own")
    assert code == 2
    assert "add --trust-code" in said
    for arguments in (
        ["eval", "runs/own", "--trust-code", "--device", "cpu"],
        ["replay", "runs/own", "--step", "3", "--trust-code"],
        ["runs"],
        ["train", "runs/own/config.yml", "--resume", "auto", "--trust-code", "training.max_steps=5"],
    ):
        code, _, said = vaak_command(*arguments)
        assert code == 0, said
    assert "5/5" in vaak_command("runs")[1]
    assert vaak.open("runs/own", trust_code=True).metrics.keys() == {"val_loss", "val_accuracy"}


def test_a_class_has_options_of_a_yaml(vowels):
    run = vaak.fit(vowels.Vowels, "runs/own", model={"width": 3}, optimizer={"type": "sgd", "lr": 0.1}, **QUICK)
    assert run.config.model.width == 3
    assert run.config.training.optimizer.type == "sgd"
    assert vaak.fit(vowels.Vowels, "runs/other", optimizer="lion", **QUICK).config.training.optimizer.type == "lion"


def test_a_task_of_a_notebook_is_opened_with_the_task(vowels, vaak_command, caplog, commands: Commands):
    def own():
        return vaak.SimpleTask(
            data={"train": vowels.words(0, 16), "valid": vowels.words(1, 8)}, model=vowels.Model, loss=vowels.loss
        )

    run = vaak.fit(own(), "runs/nb", **QUICK)
    said = (
        "is in no file, so the command line can't open this run: in Python, with the task, vaak.open('runs/nb', task="
    )
    assert said in Path("runs/nb/train.log").read_text()
    again = vaak.open("runs/nb", task=own(), device="cpu")
    assert again.evaluate() == run.evaluate()
    with pytest.raises(vaak.UserError, match=r"runs/own is"):
        vaak.open("runs/own", task=own())
    done = commands.start(["eval", "runs/nb"], Path.cwd()).wait()
    assert done.status == 2
    assert "task: is SimpleTask, which only the Python program that trained this run defines" in done.errors


def test_a_run_goes_on_to_the_same_bits(vowels):
    whole = vaak.fit(vowels.vowels, "runs/whole", **QUICK)
    vaak.fit(vowels.vowels, Path("runs/parts"), **QUICK | {"max_steps": 2})
    with pytest.raises(vaak.UserError, match="runs/parts already holds a run: give resume=True to resume it"):
        vaak.fit(vowels.vowels, "runs/parts", **QUICK)
    parts = vaak.fit(vowels.vowels, "runs/parts", resume=True, **QUICK)
    assert same_weights(last("runs/whole"), last("runs/parts"))
    assert parts.metrics == whole.metrics
    vaak.fit(vowels.vowels, "runs/other", resume="runs/whole/checkpoints/step-00000002", **QUICK)
    assert same_weights(last("runs/whole"), last("runs/other"))


def test_weights_of_another_run_under_other_names(vowels):
    vaak.fit(vowels.vowels, "runs/first", **QUICK)

    Model: Any = vowels.Model  # noqa: N806

    class Renamed(Model):
        def __init__(self):
            super().__init__()
            self.table = self.embedding
            del self.embedding

        def forward(self, letters):
            return self.head(self.table(letters))

    def other():
        return vaak.SimpleTask(data=vowels.words(0, 16), model=Renamed, loss=vowels.loss)

    given = {"init_from": "runs/first", "init_except": ["head"], "init_rename": {"^embedding": "table"}}
    run = vaak.fit(other(), "runs/second", freeze=[{"match": "table"}], **given | QUICK)
    assert run.metrics == {}
    source = vaak.open("runs/first", trust_code=True).model
    assert torch.equal(run.model.get_parameter("table.weight"), source.get_parameter("embedding.weight"))
    assert not torch.equal(run.model.get_parameter("head.weight"), source.get_parameter("head.weight"))
    for rename, said in (
        ({"embeding": "table"}, "init_rename: 'embeding' matches no parameter"),
        ({"(embedding": "table"}, "init_rename: '.embedding' is not a valid regular expression"),
        ({"embedding": r"\9"}, "can't replace 'embedding': invalid group reference"),
        ({"weight": "bias"}, "init_rename gives two parameters the name head.bias"),
    ):
        with pytest.raises(vaak.UserError, match=said):
            vaak.fit(other(), f"runs/{len(said)}", **given | {"init_rename": rename} | QUICK)


def test_further_figures(vowels):
    metrics = {"long": lambda model, batch: (batch["letters_mask"].sum(1) > 5).float()}
    run = vaak.fit(vowels.vowels, "runs/own", metrics=metrics, **QUICK)
    assert run.metrics.keys() == {"val_loss", "val_accuracy", "val_long"}
    assert run.evaluate("train").keys() == {"train_loss", "train_accuracy", "train_long"}
    again = vaak.open("runs/own", trust_code=True, metrics=metrics, device="cpu")
    assert again.evaluate() == run.evaluate()


def test_a_yaml_and_dicts(tiny_text, tmp_path):
    run = vaak.fit([str(tiny_text / "tiny.yml"), {"model": {"d_model": 16}}], tmp_path / "run", max_steps=2)
    assert run.config.model.d_model == 16
    assert run.config.name == "tiny"
    assert isinstance(run.predict("वह"), str)
    sections = json.loads(json.dumps({"task": "lm", "data": {"corpus": {"type": "grammar", "num_sentences": 200}}}))
    config = vaak.load_config(sections, {"name": "x"}, max_steps=3, learning_rate=0.5)
    assert (config.training.max_steps, config.training.optimizer.lr, config.name) == (3, 0.5, "x")
    loaded = tiny_runs.loaded(tiny_text, tmp_path / "run").experiment
    assert vaak.load_config(tiny_text / "tiny.yml", run_dir=tmp_path / "run") == loaded


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: vaak.fit(cast(Any, 3), "runs/x"), "vaak.fit was given a int; expected a vaak.Task"),
        (
            lambda: vaak.fit(cast(Any, torch.nn.Linear), "runs/x"),
            "vaak.fit was given the class Linear; expected a vaak.Task",
        ),
        (lambda: vaak.fit("nothing.yml", "runs/x"), "nothing.yml"),
        (
            lambda: vaak.fit("lm", "runs/x", optimizer=cast(Any, torch.optim.SGD)),
            "optimizer is <class .* expected a name",
        ),
        (lambda: vaak.fit("lm", "runs/x", epoch=3), "training.epoch: unknown key; did you mean epochs"),
        (lambda: vaak.fit("lm", "runs/x", epochs=torch.ones(1)), "epochs is a Tensor; expected a number"),
        (lambda: vaak.load_config(cast(Any, 3)), "a configuration is a YAML file or a dict of sections, not a int"),
        (lambda: vaak.load_config({"task": "speech"}), "task: is 'speech'; expected one of"),
        (lambda: vaak.register_task("lm", vaak.Task), "there is already a task lm"),
        (lambda: vaak.register_task("a b", vaak.Task), "'a b' can't be the name of a task"),
        (lambda: vaak.register_task("own", torch.nn.Linear), "own is not a task: it has no SPEC"),
        (lambda: vaak.check(3), "vaak.check was given a int"),
        (lambda: vaak.open("nowhere"), "nowhere is not a run directory"),
    ],
)
def test_mistakes_are_said(call, said):
    with pytest.raises(vaak.UserError, match=said):
        call()


def test_a_registered_task_is_named_in_a_dict(vowels):
    vaak.register_task("vowels", vowels.Vowels)
    run = vaak.fit({"task": "vowels"}, "runs/own", **QUICK)
    assert run.config.task == "vowels"
    assert vaak.open("runs/own", device="cpu").evaluate() == run.evaluate()
    vaak.register_task("vowels", vowels.vowels)
    assert vaak.open("runs/own", device="cpu").evaluate().keys() == {"val_loss", "val_accuracy"}


def test_a_file_that_trains_as_it_is_imported_says_so(vowels, vaak_command):
    file = Path("script.py")
    file.write_text(Path(vowels.__file__).read_text() + "\n\nvaak.fit(vowels, 'runs/other', max_steps=1)\n")
    Path("run.yml").write_text("task: ./script.py:vowels\n")
    code, _, said = vaak_command("train", "run.yml")
    assert code == 2
    assert "script.py trains while it is imported: put this under if __name__ == '__main__':" in said


SCRIPT = """
import pathlib
pathlib.Path("executions").open("a").write("once\\n")
quick = {"batch_size": 8, "device": "cpu", "logging": {"tensorboard": False}}
run = vaak.fit(vowels, "runs/script", max_steps=2, performance={"num_workers": 1}, **quick)
pathlib.Path(__file__).open("a").write("\\n# edited while it trains\\n")
run = vaak.fit(vowels, "runs/script", max_steps=4, resume=True, **quick)
again = vaak.open("runs/script", device="cpu", trust_code=True)
print(run.predict("queue").lower(), run.evaluate() == again.evaluate())
"""


@pytest.mark.slow
def test_a_plain_script_trains_once_and_has_its_run(vowels):
    """Without ``if __name__ == "__main__"``: the run's copy of the script isn't executed."""
    Path("script.py").write_text(Path(vowels.__file__).read_text() + SCRIPT)
    done = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "queue True"
    assert Path("executions").read_text() == "once\n"
    assert {file.name for file in Path("runs/script/code").glob("*.py")} == {"script.py", "script_2.py"}


def test_ctrl_c_saves_the_run_and_ends_the_program(vowels):
    class Interrupted(vaak.Callback):
        def on_step_end(self, trainer, report):
            if report.step == 2:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        vaak.fit(vowels.vowels, "runs/own", callbacks=[Interrupted()], **QUICK)
    assert vaak.open("runs/own", trust_code=True).checkpoint.name == "step-00000002"
    vaak.fit(vowels.vowels, "runs/own", resume=True, **QUICK)
    vaak.fit(vowels.vowels, "runs/whole", **QUICK)
    assert same_weights(last("runs/own"), last("runs/whole"))


def test_a_loss_is_given_as_an_optimizer_is(tmp_path: Path):
    """By its type, with its options and the section's."""
    options = {"data": {"corpus": "grammar"}}
    given = {"type": "focal", "gamma": 3.0, "label_smoothing": 0.0}
    loss = _load_configuration(
        "lm", tmp_path / "run", {"loss": given, **options}, None, False, ()
    ).experiment.training.loss
    assert (loss.main.type, loss.main.model_extra) == ("focal", {"gamma": 3.0})


def test_an_example_that_fails_is_named_by_its_index(tmp_path: Path):
    class Recordings(list[int]):
        def __getitem__(self, index):
            if index == 13:
                raise ValueError("no such file: x13.wav")
            return super().__getitem__(index)

    task = vaak.SimpleTask(data=Recordings(range(20)), model=torch.nn.Identity, loss=lambda model, batch: None)
    with pytest.raises(vaak.UserError, match=r"example 13 of train can't be read: ValueError: no such file: x13.wav"):
        vaak.fit(task, tmp_path / "run")
