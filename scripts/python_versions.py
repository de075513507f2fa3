"""Installs Vaak's wheel in a new environment of each installed Python, and trains there.

    python scripts/python_versions.py [--torch torch==2.13.0 --torch torch==2.14.1] [PYTHON …]

It prints a table, a row for each Python and torch. Without arguments, python3.11, python3.12 and python3.13 are tried,
as far as they are installed. An installation of the core takes some minutes and 1.2 GB (6 GB with CUDA), which are
freed afterwards. The exit status is 1 if one of them fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SUPPORTED = ("python3.11", "python3.12", "python3.13")
CPU_TORCH = "https://download.pytorch.org/whl/cpu"
COMMANDS = (
    ("--version",),
    ("init", "--list"),
    ("doctor",),
    ("train", "training_minimal"),
    ("eval", "runs/training-minimal"),
)


def try_python(python: str, torch: str) -> tuple[str, str | None]:
    """Return the version of torch that was installed, and how the first failure ends; None where all commands work."""
    with tempfile.TemporaryDirectory(prefix="vaak-python-") as name:
        folder, pip = Path(name), Path(name) / "venv/bin/pip"
        vaak = folder / "venv/bin/vaak"
        steps: list[list[str]] = [
            [python, "-m", "venv", "venv"],
            [str(pip), "install", "--quiet", "--extra-index-url", CPU_TORCH, torch],
            [str(pip), "install", "--quiet", str(ROOT)],
            [str(folder / "venv/bin/python"), "-c", "import torch; print(torch.__version__)"],
            *([str(vaak), *command] for command in COMMANDS),
        ]
        installed = torch
        for step in steps:
            done = subprocess.run(step, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                return installed, f"{' '.join(step)}: {(done.stderr or done.stdout).strip()[-400:]}"
            if step[1] == "-c":
                installed = done.stdout.strip()
    return installed, None


def main() -> None:
    """Try each Python with each torch, and print a table in Markdown of how it went."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--torch", action="append", help="a requirement of torch, such as torch==2.13.0; may be given several times"
    )
    parser.add_argument("pythons", nargs="*", default=SUPPORTED, metavar="PYTHON")
    given = parser.parse_args()
    failed = False
    print("| Python | torch | installs, trains, evaluates |\n|---|---|---|", flush=True)
    for python in given.pythons:
        try:
            about = subprocess.run([python, "--version"], capture_output=True, text=True)
        except OSError:
            about = None
        if about is None or about.returncode:
            print(f"| {python} | | not here |", flush=True)
            continue
        for torch in given.torch or ["torch"]:
            installed, problem = try_python(python, torch)
            failed |= problem is not None
            said = "yes" if problem is None else " ".join(problem.split()).replace("|", "\\|")
            print(f"| {about.stdout.split()[-1]} | {installed} | {said} |", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
