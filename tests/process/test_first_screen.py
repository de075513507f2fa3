"""On a terminal, every command says something within a second, and answers Ctrl-C at once, whatever it is doing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

import tiny_runs
from terminals import OnTerminal
from vaak.engine.interrupts import ANSWER

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs the processor time of processes")

ON_FILES = (
    "train tiny.yml run_dir=new",
    "doctor",
    "doctor tiny.yml",
    "find-lr tiny.yml",
    "find-batch-size tiny.yml",
    "check-gradients tiny.yml",
    "model show tiny.yml",
    "config check tiny.yml",
    "data prepare tiny.yml",
    "data preprocess tiny.yml run_dir=new",
    "data simulate talks",
    "runs",
)
ON_A_RUN = ("eval", "generate", "predict", "export", "tune", "replay --step 3", "tokenizer show")
LONG = ("training.max_steps=100000", "data.corpus={type: grammar, num_sentences: 120000}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("screens")
    tiny_runs.write_corpus(folder)
    return folder


def arguments_of(command: str, run: Path) -> list[str]:
    words = command.split()
    if command in ON_FILES:
        return words
    place = 2 if words[0] == "tokenizer" else 1
    return [*words[:place], str(run), *words[place:], *(["the"] if words[0] in ("generate", "predict") else [])]


QUICK = (
    "train tiny.yml run_dir=new",
    "eval",
)
"""One that trains, and one that opens a run."""


@pytest.mark.parametrize(
    "command",
    [pytest.param(one, marks=[] if one in QUICK else [pytest.mark.slow]) for one in (*ON_FILES, *ON_A_RUN)],
)
def test_something_is_on_the_screen_within_a_second(command: str, folder: Path, tiny_run: Path) -> None:
    """A second of processor time, as the command can't answer for other processes."""
    with OnTerminal(arguments_of(command, tiny_run), folder) as terminal:
        assert terminal.read()
        assert terminal.processor_seconds() < 1.0
        assert "Traceback" not in terminal.said


INTERRUPTED = {
    "preparing": (["data", "preprocess", "tiny.yml", "run_dir=prepared", LONG[1]], "composing"),
    "training": (["train", "tiny.yml", "run_dir=trained", LONG[0]], "step 3/"),
    "trying batch sizes": (["find-batch-size", "tiny.yml"], "rows"),
    "trying learning rates": (["find-lr", "tiny.yml", "--num-iter", "100000"], "trying learning rates"),
    "importing packages": (["doctor", "--thorough"], "machine"),
    "loading torch": (["model", "show", "tiny.yml"], "loading torch"),
    "opening a run": (["eval", "RUN"], "loading torch"),
    "opening a run to write": (["generate", "RUN", "the"], "loading torch"),
    "opening a run to tune": (["tune", "RUN"], "loading torch"),
}


@pytest.mark.slow
@pytest.mark.parametrize("moment", INTERRUPTED)
def test_an_interrupt_is_answered_at_once(moment: str, folder: Path, tiny_run: Path) -> None:
    arguments, words = INTERRUPTED[moment]
    with OnTerminal([str(tiny_run) if word == "RUN" else word for word in arguments], folder) as terminal:
        assert terminal.read(words), terminal.said
        begun = time.monotonic()
        terminal.interrupt()
        assert terminal.read(ANSWER.partition(";")[0], 10), terminal.said
        assert time.monotonic() - begun < 5.0, "seconds on a busy machine, milliseconds on another"
        code = terminal.end()
        assert code in (0, 130), terminal.said
        assert "Traceback" not in terminal.said
        assert terminal.said.count("\x1b[?25l") == terminal.said.count("\x1b[?25h"), "the cursor is there again"
    assert not os.path.exists(f"/proc/{terminal.process.pid}")


@pytest.mark.slow
@pytest.mark.parametrize("columns", [60, 100])
def test_bars_keep_to_one_line(columns: int, folder: Path) -> None:
    """Redrawn output is never wider than the terminal, where its wrapped lines would remain."""
    bar = "training.logging.progress_bar=true"
    with OnTerminal(["train", "tiny.yml", f"run_dir=bars{columns}", bar, *LONG], folder, columns) as terminal:
        assert terminal.read("elapsed"), terminal.said
        assert terminal.read("step 20/"), terminal.said
        terminal.interrupt()
        terminal.end()
    drawn = [line for line in terminal.lines() if "elapsed" in line or " left" in line]
    bars = [line for line in drawn if not line.startswith("step ")]
    assert any("composing" in line for line in bars)
    assert any("loss" in line for line in bars)
    assert all(len(line.rstrip()) <= columns for line in bars), max(bars, key=len)
    assert any("━" in line for line in bars) == (columns >= 70)
