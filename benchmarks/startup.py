"""Seconds until a command answers: the help, a checked configuration, and the first step of training.

    python benchmarks/startup.py [rounds]

Each command is a separate process, started ROUNDS times; the best and the median are given. The first step is that of
the quick start on a small part of its text, prepared again each time; then once more, with what was prepared before.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

CONFIGURATION = Path(__file__).resolve().parents[1] / "configs" / "quickstart.yml"
VAAK = (sys.executable, "-c", "from vaak.cli.main import main; main()")
ONE_STEP = ("training.max_steps=1", "training.scheduler.warmup_steps=0", "data.corpus.num_sentences=2000")


def seconds(arguments: tuple[str, ...]) -> float:
    """Wall time of one command."""
    begun = time.perf_counter()
    subprocess.run([*VAAK, *arguments], check=True, capture_output=True)
    return time.perf_counter() - begun


def seconds_to_first_step(run: Path, arguments: tuple[str, ...]) -> float:
    """Wall time until training says that its first step is done."""
    begun = time.perf_counter()
    command = [*VAAK, "train", str(CONFIGURATION), f"run_dir={run}", *ONE_STEP, *arguments]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        taken = next(time.perf_counter() - begun for line in process.stderr if line.startswith("step 1/"))
        process.stderr.read()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return taken


@contextmanager
def fresh_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="vaak-startup-") as folder:
        yield Path(folder)


def first_steps(rounds: int) -> Iterator[tuple[float, float]]:
    """Seconds with nothing prepared, and with everything."""
    for _ in range(rounds):
        with fresh_folder() as folder:
            cache = f"data.cache_dir={folder / 'cache'}"
            yield seconds_to_first_step(folder / "a", (cache,)), seconds_to_first_step(folder / "b", (cache,))


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{'seconds':<36}{'best':>8}{'median':>8}")

    def show(name: str, times: list[float]) -> None:
        print(f"{name:<36}{min(times):>8.2f}{statistics.median(times):>8.2f}", flush=True)

    show("vaak --help", [seconds(("--help",)) for _ in range(rounds)])
    show("vaak config check", [seconds(("config", "check", str(CONFIGURATION))) for _ in range(rounds)])
    unprepared, prepared = zip(*first_steps(rounds), strict=True)
    show("vaak train to the end of step 1", list(unprepared))
    show("the same, data prepared before", list(prepared))


if __name__ == "__main__":
    main()
