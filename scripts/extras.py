"""Builds the wheel, installs it with each extra alone in a new environment, and tries there what the extra is for.

    python scripts/extras.py [--torch torch==2.13.0] [--constraints constraints.txt] [EXTRA …]

Without arguments, every extra for users is tried, and the core alone. The core is installed once (1.2 GB) and copied
for each. Its command must work; or, where it requires a second extra or something no package brings, exit with
status 2 and one line that names it. Prints a table as documentation has it; the exit code is 1 where one fails.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/support/corpora"))
from spreadsheets import write_spreadsheet  # noqa: E402

CPU_TORCH = "https://download.pytorch.org/whl/cpu"
RUN = "runs/training-minimal"
SHORT = "training.max_steps=4 training.scheduler.warmup_steps=0 training.logging.tensorboard=false"
LLAMA = "model.feed_forward_type=swiglu model.norm_type=rmsnorm model.position_type=rotary"
WORDNET = " ".join(
    f"data.augmentation.{one}" for one in ("enabled=true", "techniques=[synonym_replacement]", "synonyms=wordnet")
)
TASK = """task: agreement
dataset_path: json
dataset_kwargs: {data_files: {validation: pairs.jsonl}}
output_type: multiple_choice
validation_split: validation
num_fewshot: 0
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[sentence_good, sentence_bad]}}"
metric_list: [{metric: acc}]
"""
PAIR = json.dumps({"sentence_good": "The dogs bark.", "sentence_bad": "The dogs barks."}) + "\n"
FILES = {
    "pairs.jsonl": PAIR * 4,
    **dict.fromkeys(("recorded/one.wav", "spoken/one.wav", "corpus/Train/one.wav"), ""),
    "agreement.yaml": TASK,
    "texts.csv": "one|So it is.\n",
    "lines.txt": "".join(f"Sentence number {number} is not like any other of these.\n" for number in range(50)),
}
"""Files that the commands read."""


@dataclass(frozen=True)
class Use:
    """Commands for which an extra is installed.

    ``says``: how the last ends in one line, where it can't work alone. ``program`` is what runs it, and ``asks``, where
    that is a server, the path that must be answered; it is then ended by a signal.
    """

    commands: tuple[str, ...]
    says: str | None = None
    program: str = "vaak"
    asks: str | None = None


USES = {
    "core": Use((f"train training_minimal {SHORT}", f"eval {RUN}")),
    "accelerate": Use((f"train training_minimal {SHORT} training.logging.trackers=[mlflow]",), "mlflow"),
    "augmentation": Use(
        (f"train classification/quickstart --try {WORDNET}",),
        "nltk.downloader wordnet",
    ),
    "hf": Use((f"train training_minimal {SHORT} {LLAMA}", f"export {RUN} --format hf")),
    "ct2": Use((f"train training_minimal {SHORT} {LLAMA}", f"export {RUN} --format ct2")),
    "gguf": Use((f"train training_minimal {SHORT} {LLAMA}", f"export {RUN} --format gguf")),
    "m4a": Use(("train diarization/quickstart --try",), r"vaak\[audio\]"),
    "spreadsheets": Use(("data check table.xlsx",)),
    "cleaning": Use(("data clean shards lines.txt --language en",)),
    "seq2seq": Use(("train encoder_decoder_model --try",)),
    "tensorboard": Use(
        (
            f"train training_minimal {SHORT} training.logging.tensorboard=true",
            f"--inspect --logdir {RUN}",
        ),
        program="tensorboard",
    ),
    "cloud": Use((f"train training_minimal {SHORT} training.checkpoint.upload_to=s3://vaak/run",), "credentials"),
    "lilcom": Use(("train diarization/quickstart --try global_config.storage_type=lilcom",), r"vaak\[audio\]"),
    "umap": Use(("pipeline moe-asr --dataset-root corpus --reduce umap",), r"vaak\[asr\]"),
    "live": Use((f"train training_minimal {SHORT}", f"transcribe {RUN} --live"), "requires a run of task asr"),
    "serve": Use((f"train training_minimal {SHORT}", f"serve {RUN} --port 0"), asks="/v1/models"),
    "demo": Use((f"train training_minimal {SHORT}", f"demo {RUN} --port 0"), asks="/"),
    "wandb": Use((f"train training_minimal {SHORT} training.logging.wandb=true",)),
    "trackio": Use((f"train training_minimal {SHORT} training.logging.trackers=[trackio]",)),
    "plot": Use((f"train training_minimal {SHORT}", f"plot {RUN}")),
    "audio": Use(("train diarization/quickstart --try",)),
    "asr": Use(("train asr/quickstart --try",), r"vaak\[audio\]"),
    "study": Use(
        (f"sweep training_minimal {SHORT} --random training.optimizer.lr=log:1e-3:1e-2 --trials 2 --sampler tpe",)
    ),
    "ray": Use((f"launch ray training_minimal {SHORT} training.device=cpu",)),
    "liger": Use((f"train training_minimal {SHORT} training.performance.logits=liger",), "CUDA"),
    "tts": Use(("train tts/quickstart --try",), r"vaak\[audio\]"),
    "lm-eval": Use((f"train training_minimal {SHORT}", f"lm-eval {RUN} --tasks agreement.yaml")),
    "tts-eval": Use(("score speech recorded spoken --texts texts.csv",), r"vaak\[audio\]"),
}


def run(command: Sequence[str | Path], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder."""
    return subprocess.run(list(map(str, command)), cwd=folder, capture_output=True, text=True, env=environment(folder))


def environment(folder: Path) -> dict[str, str]:
    """Return the variables with which commands run in a folder; trackers send nothing."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VAAK"))}
    return clean | {"WANDB_MODE": "offline", "TRACKIO_DIR": str(folder / "trackio"), "COLUMNS": "200"}


def done(command: Sequence[str | Path], folder: Path) -> None:
    """Run what must work. Raises SystemExit, which ends with its output, where it doesn't."""
    ended = run(command, folder)
    if ended.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {(ended.stderr or ended.stdout).strip()[-2000:]}")


def size(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if not path.is_dir())


def in_one_line(ended: subprocess.CompletedProcess[str]) -> str:
    """Return the last line of what a command said."""
    return ((ended.stderr or ended.stdout).strip().splitlines() or [""])[-1]


def try_use(use: Use, vaak: Path, folder: Path) -> tuple[bool, str]:
    """Return whether the commands of an extra do what they should, and what came of the last."""
    *before, last = use.commands
    for command in before:
        done([vaak, *command.split()], folder)
    program: list[str | Path] = [vaak.with_name(use.program), *last.split()]
    words = f"`{use.program} {last.replace(f' {SHORT}', '')}`"
    if use.asks is not None:
        return ask_server(program, use.asks, words, folder)
    ended = run(program, folder)
    if ended.returncode == 0:
        return True, f"{words} works"
    line = in_one_line(ended)
    known = use.says is not None and re.search(use.says, line) is not None
    good = known and ended.returncode == 2 and "Traceback" not in ended.stderr
    return good, f"{words} ends with {ended.returncode}: {line}"


def ask_server(command: Sequence[str | Path], path: str, words: str, folder: Path) -> tuple[bool, str]:
    """Return whether a server that says its address answers a path, and ends well by a signal; and what came of it."""
    with (folder / "said").open("w+") as said:
        server = subprocess.Popen(
            list(map(str, command)), cwd=folder, stdout=subprocess.PIPE, stderr=said, text=True, env=environment(folder)
        )
        assert server.stdout is not None
        address = next(filter(None, (re.search(r"http://\S+", line) for line in server.stdout)), None)
        try:
            if address is not None:
                with urllib.request.urlopen(f"{address[0]}{path}", timeout=60) as answer:
                    answer.read()
        finally:
            server.terminate()
            ended = server.wait(60)
        said.seek(0)
        if address is None or ended:
            return False, f"{words} ends with {ended}: {(said.read().strip().splitlines() or [''])[-1]}"
    return True, f"{words} answers {path}"


def main() -> None:
    """Try each extra, and print a row of the table for it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--torch", default="torch", help="the requirement of torch, such as torch==2.13.0")
    parser.add_argument("--constraints", type=Path, help="exact versions, such as constraints.txt; default: the newest")
    parser.add_argument("extras", nargs="*", default=list(USES), metavar="EXTRA", help=f"of {', '.join(USES)}")
    given = parser.parse_args()
    if unknown := [extra for extra in given.extras if extra not in USES]:
        parser.error(f"unknown extra {unknown[0]}; expected one of {', '.join(USES)}")
    exactly: list[str | Path] = ["-c", given.constraints.resolve()] if given.constraints else []
    failed = False
    with tempfile.TemporaryDirectory(prefix="vaak-extras-") as name:
        folder = Path(name)
        core = folder / "core"
        done([sys.executable, "-m", "venv", core], folder)
        pip: list[str | Path] = [core / "bin/python", "-m", "pip"]
        done([*pip, "wheel", "--quiet", "--no-deps", "-w", folder, ROOT], folder)
        (wheel,) = folder.glob("vaak-*.whl")
        done([*pip, "install", "--quiet", "--extra-index-url", CPU_TORCH, given.torch], folder)
        done([*pip, "install", "--quiet", *exactly, wheel], folder)
        core_bytes = size(core)
        print("| extra | MB more | s to install | tried |\n|---|---|---|---|", flush=True)
        for extra in given.extras:
            place = folder / "tried"
            shutil.copytree(core, place / "venv", symlinks=True)
            for path, text in FILES.items():
                (place / path).parent.mkdir(parents=True, exist_ok=True)
                (place / path).write_text(text, encoding="utf-8")
            write_spreadsheet(place / "table.xlsx", [("text", "label"), *(("so it is", name) for name in "abab")])
            python, begun = place / "venv/bin/python", time.monotonic()
            # reinstalled: its script has the path of the environment that was copied
            done([python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel], place)
            if extra != "core":
                done([python, "-m", "pip", "install", "--quiet", *exactly, f"{wheel}[{extra}]"], place)
            seconds = time.monotonic() - begun
            more = (size(place / "venv") - core_bytes) / 1e6 if extra != "core" else core_bytes / 1e6
            good, words = try_use(USES[extra], place / "venv/bin/vaak", place)
            failed |= not good
            print(f"| `{extra}` | {more:,.0f} | {seconds:.0f} | {'' if good else '**fails**: '}{words} |", flush=True)
            shutil.rmtree(place)
    sys.exit(failed)


if __name__ == "__main__":
    main()
