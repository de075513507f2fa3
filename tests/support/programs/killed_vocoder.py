"""A vocoder that is killed between its two objectives, twice: a program that forks a trainer, which kills itself.

    python killed_vocoder.py FOLDER

Without a word it leaves FOLDER/whole, never disturbed, and FOLDER/killed, resumed each time. On standard output: the
newest checkpoint after each kill, a line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

import all_rooms  # noqa: F401 # before those that it finds
import tiny_vocoder
import tiny_voice
from vaak.tasks.vocoder import task

MORE: dict[str, Any] = {
    "model": {"discriminators": {**tiny_vocoder.DISCRIMINATORS, "start_step": 3}},
    "data": {"num_samples": 0, "num_iterations": 1},
    "training": {
        "max_steps": 8,
        "batch_size": 4,
        "memory": {"rehearsal": False},  # which would score, too
        "checkpoint": {"interval": 2, "save_total_limit": None},
    },
}


def ends(corpus: Path, run: Path, kill_at: int | None = None) -> bool:
    """Train in a process that ends, or that is killed when it scores what the generator made the n-th time.

    The discriminators of that step are then updated, and the generator isn't.
    """
    child = os.fork()
    if child == 0:
        try:
            if kill_at is not None:
                _kill_at(kill_at)
            tiny_vocoder.train(corpus, run, "training.checkpoint.resume=auto", **MORE)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return not os.WIFSIGNALED(status)


def _kill_at(number: int) -> None:
    losses: Any = task
    score, calls = losses.generator_loss, 0

    def scored(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return score(*arguments)

    losses.generator_loss = scored


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    corpus = tiny_voice.write_voice(folder / "corpus")
    assert ends(corpus, folder / "whole")
    newest = []
    for kill_at in (3, 2):
        assert not ends(corpus, folder / "killed", kill_at)
        newest.append(max(path.name for path in (folder / "killed" / "checkpoints").glob("step-*")))
    assert ends(corpus, folder / "killed")
    print(json.dumps(newest))


if __name__ == "__main__":
    main()
