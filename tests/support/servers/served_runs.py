"""A tiny run of each task, to be served, and a server of runs in a separate process."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import PATIENCE_SECONDS, Command, Commands
from contract_cases import CASES
from vaak.config.load import load
from vaak.config.yaml.text import yaml_text
from vaak.runs.start import train

TRAINING = {
    "max_steps": 2,
    "device": "cpu",
    "batch_size": 4,
    "validation": {"interval": None, "interval_epochs": None},
    "logging": {"tensorboard": False, "progress_bar": False},
    "memory": {"rehearsal": False},
}


@dataclass(frozen=True)
class TinyRun:
    """A run, with inputs for ``predict``."""

    folder: Path
    inputs: Sequence[str]


def train_task(folder: Path, task: str, *, evaluates: bool = False) -> None:
    """Train a run of a task, or of a case of the contract, for two steps, FOLDER/TASK; what ``predict`` may read is
    listed next to it.

    ``evaluates``: after them, so that its folder has examples.
    """
    case = CASES.get(task) or next(one for one in CASES.values() if one.task == task)
    inputs = case.about.get("inputs", ()) if case.write is None else case.write(folder / "data")
    text = yaml_text({"task": case.task, "name": case.task, **case.options, "training": {**case.training, **TRAINING}})
    file = folder / "options.yml"
    file.write_text(text.replace("FOLDER", str(folder / "data")), encoding="utf-8")
    (folder / "inputs").write_text("\n".join(map(str, inputs)), encoding="utf-8")
    evaluating = ["training.validation.interval=2"] if evaluates else []
    train(load([file], [f"run_dir={folder / task}", *evaluating]))


def find_task(folder: Path, task: str) -> TinyRun:
    """Return the run that ``train_task`` left in ``folder``, with its inputs."""
    inputs = (folder / "inputs").read_text(encoding="utf-8").splitlines()
    return TinyRun(folder / task, inputs or ["ab ba", "b"])


@dataclass(frozen=True)
class Serving:
    """A server that runs, and where it is."""

    command: Command
    address: str


CHAT = """
task: lm
model: {d_model: 32, num_layers: 1, num_heads: 2}
data:
  corpus: {type: chat, train: [FOLDER/chats.jsonl], train_fraction: 0.6, valid_fraction: 0.2}
  tokenizer: {type: byte_level, vocab_size: 300}
  max_length: 64
training: {max_steps: 2, device: cpu, batch_size: 4, logging: {tensorboard: false, progress_bar: false}}
"""


def train_chat(folder: Path) -> Path:
    """A language model of conversations, which has learned nearly nothing: it writes on and on."""
    folder.mkdir()
    rows = [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n} it is."}]}
        for n in range(40)
    ]
    (folder / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "chat.yml").write_text(CHAT.replace("FOLDER", str(folder)), encoding="utf-8")
    train(load([folder / "chat.yml"], [f"run_dir={folder / 'chat'}"]))
    return folder / "chat"


@contextlib.contextmanager
def serving(
    commands: Commands, folder: Path, *arguments: object, command: str = "serve", **environment: str
) -> Iterator[Serving]:
    """A process that serves on a free port, as an API or a page; it is ended where it is still there at the end."""
    words = [command, *map(str, arguments), "--port", "0", "--device", "cpu"]
    process = commands.start(words, folder, environment)
    try:
        wait_until(process.output.exists)  # it opens its streams itself
        wait_until(lambda: "http://" in process.output.read_text() or not process.is_running)
        assert process.is_running, process.said
        line = process.output.read_text().splitlines()[-1]
        yield Serving(process, next(word for word in line.split() if word.startswith("http://")))
    finally:
        with contextlib.suppress(ProcessLookupError):  # it has ended, and nobody has noted that yet
            if process.is_running:
                process.send(signal.SIGKILL, to_all=True)
        process.wait()


def wait_until(is_true: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until a condition holds; fails where that takes too long."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, f"still not so after {seconds} s"
        time.sleep(0.02)
