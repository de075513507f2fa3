"""A pipeline of numbers, and what it does written down: ``$DONE`` gets a line for each piece of work that is begun.

``$PAUSE`` is how many seconds a piece takes. Run it by ``vaak pipeline tests/support/runs/tiny_pipeline.py:PIPELINE``.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vaak.config.base import Section, option
from vaak.core.errors import UserError
from vaak.core.storage.files import read_json, write_bytes, write_json
from vaak.pipeline.rows import Maker, PipelineRowStore, make_rows
from vaak.pipeline.stage import Forecast, Pipeline, Stage, StageWork

NUM_SUMS = 8
TINY_MODEL: dict[str, Any] = {
    "task": "lm",
    "model": {"d_model": 16, "num_layers": 1, "num_heads": 2},
    "data": {
        "corpus": {"type": "grammar", "num_sentences": 60},
        "tokenizer": {"type": "byte_level", "vocab_size": 300},
        "max_length": 32,
    },
    "training": {
        "max_steps": 12,
        "batch_size": 4,
        "optimizer": {"type": "adamw", "lr": 1e-3},
        "checkpoint": {"interval": 2, "save_total_limit": 1},
        "logging": {"interval": 1, "tensorboard": False},
        "device": "cpu",
    },
}


class TinyOptions(Section):
    seed: int = option("Seed of the numbers.", 1)
    num_rows: int = option("How many rows.", 350, ge=1)
    power: int = option("What they are raised to.", 2)
    sign: int = option("What the result is multiplied by.", 1)
    trains: bool = option("Whether a model is trained, too.", False)
    notes: tuple[str, ...] = option("Only in files.", ())
    fails: str = option("How the last stage fails: no, bug, mistake or killed.", "no")


def note(piece: str) -> None:
    """Write down that a piece is begun; it then takes its time."""
    if path := os.environ.get("DONE"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{piece}\n")
    time.sleep(float(os.environ.get("PAUSE", "0")))


def begin(seed: int) -> Maker:
    def make(keys: list[str]) -> np.ndarray:
        note(f"numbers {keys[0]}")
        return np.stack([np.random.default_rng([seed, int(key)]).normal(size=64) for key in keys])

    return make


def numbers(work: StageWork) -> dict[str, Any]:
    keys = [str(number) for number in range(work.options.num_rows)]
    store = make_rows(work.folder / "rows", keys, partial(begin, work.options.seed), shape=(64,), jobs=work.jobs)
    return {"rows": len(store)}


def sums(work: StageWork) -> dict[str, Any]:
    """Adds up in pieces; its progress is a file of its own, as stages of any kind may have it."""
    matrix = PipelineRowStore(work.inputs["numbers"] / "rows").matrix().astype(np.float64) ** work.options.power
    progress = work.folder / "progress.json"
    done = read_json(progress) if progress.exists() else []
    for piece in range(len(done), NUM_SUMS):
        note(f"sums {piece}")
        done.append(float(matrix[piece::NUM_SUMS].sum()))
        write_json(progress, done)
    write_bytes(work.folder / "sums.npy", np.array(done).tobytes())
    return {"total": sum(done)}


def model(work: StageWork) -> dict[str, Any]:
    note("model")
    outcome = work.train(TINY_MODEL)
    return {"steps": outcome.step}


def result(work: StageWork) -> dict[str, Any]:
    note("result")
    match work.options.fails:
        case "bug":
            raise ZeroDivisionError
        case "mistake":
            raise UserError("a mistake, in one line")
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
    total = work.options.sign * np.frombuffer((work.inputs["sums"] / "sums.npy").read_bytes()).sum()
    write_json(work.folder / "result.json", float(total))
    return {"result": float(total), "by": os.getpid()}


def expected_size(options: Any, inputs: Any) -> Forecast:
    return Forecast(seconds=1.0, disk_bytes=256 * options.num_rows, memory_bytes=1 << 20)


def trains(options: Any) -> bool:
    return bool(options.trains)


PIPELINE = Pipeline(
    name="tiny",
    about="Draw numbers, add them up.",
    options=TinyOptions,
    stages=(
        Stage(
            "numbers", numbers, "Draw.", ("seed", "num_rows"), outputs=("rows",), forecast=expected_size, repairs=True
        ),
        Stage("sums", sums, "Add up.", ("power",), after=("numbers",), outputs=("sums.npy",)),
        Stage("model", model, "Train.", ("trains",), outputs=("run/checkpoints",), wanted=trains),
        Stage("result", result, "Say it.", ("sign", "fails"), after=("sums",), outputs=("result.json",)),
    ),
    directory=lambda options: Path("Runs") / f"seed-{options.seed}",
    flags={"num_rows": ("--num-rows", "--rows")},
    translate=lambda values: {"power" if name == "exponent" else name: value for name, value in values.items()},
)
