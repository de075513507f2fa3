"""What only a GPU can show, in one command that takes a quarter of an hour: how fast is it, and does everything train?

    python benchmarks/gpu.py --page gpu.md --json gpu.json [--minutes 14] [--options training.performance.X=Y ...]
                             [--models 110M] [--lengths 1024] [--rounds 3] [--parts machine speech inference ...]

The parts come in this order, the most wanted first. Each has its own limit (``LIMITS``), and its results so
far are written when it ends, or is ended. A part that fails says why on the page, and the others still run.

- machine: the card, versions, what ``vaak doctor`` says
- speech: training of Whisper small, whole and by LoRA, text-to-speech and diarization: time of a step, the share of it
  that the GPU works (its operations in a trace of later steps, joined, by the time of untraced ones), operations
  started, audio a second, memory; with ``--options``, each task with these options, too, after it without
- inference: transcribing with a Whisper small, in turns: file by file and batched, in fp32 and bf16, and transformers'
  pipeline and faster-whisper with the same weights
- throughput: tokens a second, MFU and memory of language models, in bf16, without dropout, which take turns on the card
  (racing.py, arms.py): a hand-written loop, transformers.Trainer and litgpt (if installed), not compiled and compiled;
  an arm is compared with the loop that is compiled in the same way
- snapshot: how long a checkpoint's copy holds training up, and its page-locked memory: staged in pieces, as Vaak's is,
  and page-locked all at once; the weights and moments of the last of the models
- decoding: tokens a second of a language model: Vaak's, transformers', and transformers' with a static cache, which
  it compiles and records as CUDA graphs; in turns
- loaders: what training waits for data, without and with processes that load them
- memory: the largest batch that was found, and a batch four times as large, which is computed in chunks
- attention: a row of 16 documents with a mask of all pairs, and by kernels of variable length, which must agree
- recipes: each quick start in bf16, in fp16, and deterministic: the last is also killed and resumed, to the same bits

Without a GPU the same code runs on the CPU at toy sizes, and the page says so: its numbers mean nothing then. What the
GPU would have done is then what the processor did.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import json
import math
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from racing import HERE, Bench, Process, figures_of, say

from vaak.engine.flops import peak_flops
from vaak.engine.snapshot import copy_to_cpu
from vaak.library.trained_run import TrainedRun
from vaak.nn.config import StackConfig
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.nn.stack import TransformerStack, set_variable_length
from vaak.runs.open_run import open_run
from vaak.tasks.lm.predict import generate_batch

VAAK = (sys.executable, "-c", "from vaak.cli.main import main; main()")
MODELS: dict[str, dict[str, int]] = {
    "toy": {"width": 64, "layers": 2, "heads": 2},
    "110M": {"width": 768, "layers": 12, "heads": 12},
    "1B": {"width": 2048, "layers": 20, "heads": 16},
}
TOKENS = 16_384
"""Of the largest batch that is tried; it is halved until all arms have room for it."""
ARMS = {
    "by hand": "by hand",
    "by hand, compiled": "by hand, compiled",
    "litgpt, by hand": "litgpt",
    "transformers.Trainer": "transformers",
    "Vaak, the same model": "Vaak",
    "Vaak, the same model, compiled": "Vaak",
    "Vaak, its own model": "Vaak",
    "Vaak, its own model, compiled": "Vaak",
}
RECIPES = ("quickstart", "classification/quickstart", "asr/quickstart", "tts/quickstart", "diarization/quickstart")
MODES = {
    "bf16": ("training.mixed_precision=bf16",),
    "fp16": ("training.mixed_precision=fp16",),
    "deterministic": ("training.mixed_precision=no", "training.deterministic=true"),
}
WHISPER_SMALL = "{d_model: 768, encoder_layers: 12, decoder_layers: 12, num_heads: 12, dropout: 0.0}"
WHISPER_TOY = "{d_model: 32, encoder_layers: 1, decoder_layers: 1, num_heads: 2, dropout: 0.0}"


@dataclass
class Card:
    """Where it runs and at which sizes; ``page`` gathers the lines that are written, ``figures`` the numbers."""

    options: argparse.Namespace
    folder: Path
    page: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    deadline: float = math.inf
    """When the part at work is ended, by ``time.monotonic``."""

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def toy(self) -> bool:
        return self.device == "cpu"

    def write(self, *lines: str) -> None:
        """Say lines, and write them to the page; the figures so far are written, too."""
        self.page.extend(lines)
        say("\n".join(lines))
        if self.options.page:
            self.options.page.write_text("\n".join(self.page) + "\n", encoding="utf-8")
        if self.options.json:
            self.options.json.write_text(json.dumps(self.figures, indent=2) + "\n", encoding="utf-8")

    @contextlib.contextmanager
    def rows(self, *header: str) -> Iterator[list[list[str]]]:
        """The rows of a table, which is written with those that there are however the block ends."""
        found: list[list[str]] = []
        try:
            yield found
        finally:
            if found:
                self.table(header, found)

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.write("", f"| {' | '.join(header)} |", "|" + "---|" * len(header))
        self.write(*(f"| {' | '.join(row)} |" for row in rows), "")

    def command(self, *arguments: str, seconds: float = 900.0) -> subprocess.CompletedProcess[str]:
        """Run a ``vaak`` command. Raises RuntimeError with the end of what it printed where it fails."""
        seconds = max(1.0, min(seconds, self.deadline - time.monotonic()))
        done = subprocess.run(
            [*VAAK, *arguments], capture_output=True, text=True, timeout=seconds, env=environment(), check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"vaak {' '.join(arguments)}: {(done.stdout + done.stderr)[-1500:]}")
        return done

    def training(self, run: Path, recipe: Path | str, steps: int, *overrides: str) -> list[str]:
        """The arguments of ``vaak train`` for a short training."""
        return [
            "train",
            str(recipe),
            f"run_dir={run}",
            f"training.device={self.device}",
            f"training.max_steps={steps}",
            "training.scheduler.warmup_steps=1",
            "training.logging={interval: 2, progress_bar: false}",
            "training.validation={interval: 1000000, interval_epochs: null}",
            f"training.checkpoint.interval={max(1, steps // 2)}",
            *overrides,
        ]


def environment() -> dict[str, str]:
    paths = [str(HERE / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "COLUMNS": "160"}


def machine(card: Card) -> None:
    names = [f"Python {platform.python_version()}", f"torch {torch.__version__}"]
    if card.toy:
        names.insert(0, f"no GPU: {platform.processor() or platform.machine()}, toy sizes")
    else:
        about = torch.cuda.get_device_properties(0)
        names.insert(0, f"{about.name}, {about.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}")
    card.write(", ".join(names) + ".", "", "```")
    done = subprocess.run([*VAAK, "doctor"], capture_output=True, text=True, env=environment(), check=False)
    card.write(*done.stdout.strip().splitlines()[-30:], "```")


def recipes(card: Card) -> None:
    """Train each quick start in each mode, up to eight at once on the card."""
    steps = 4 if card.toy else 40
    jobs = [(recipe, mode) for recipe in (RECIPES[:1] if card.toy else RECIPES) for mode in MODES]
    with ThreadPoolExecutor(1 if card.toy else 8) as pool:
        rows = list(pool.map(lambda job: [*job, *_recipe(card, job[0], job[1], steps)], jobs))
    card.table(["recipe", "mode", "result", "loss at the end", "killed and resumed"], rows)


def _recipe(card: Card, recipe: str, mode: str, steps: int) -> list[str]:
    """Return what came of a recipe: whether it ended, its last loss, and whether a kill changed any bit."""
    file = HERE / "configs" / f"{recipe}.yml"
    run = Path(tempfile.mkdtemp(dir=card.folder)) / "run"
    try:
        card.command(*card.training(run, file, steps, *MODES[mode], *_small(recipe)))
        loss = f"{records(run, 'step')[-1]['loss']:.4f}"
        if mode != "deterministic":
            return ["trains", loss, ""]
        again = run.with_name("killed")
        _killed(card, card.training(again, file, steps, *MODES[mode], *_small(recipe)), again, steps // 2)
        card.command(*card.training(again, file, steps, *MODES[mode], *_small(recipe)), "--resume", "auto")
        same = weights_hash(run) == weights_hash(again)
        return ["trains", loss, "the same bits" if same else "**other bits**"]
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return [f"**fails**: {str(error)[-400:]}".replace("\n", " ").replace("|", "/"), "", ""]


def _small(recipe: str) -> tuple[str, ...]:
    """Less data than a quick start has: it is made first, by the processor."""
    if recipe.startswith("diarization"):
        return ("datasets.0.num_voices=40", "datasets.0.num_sentences=4", "datasets.0.conversations.train=64")
    if recipe.startswith("tts"):
        return ("datasets.0.num_sentences=40", "datasets.0.valid_fraction=0.05", "datasets.0.train_fraction=0.9")
    return ("datasets.0.num_sentences=8",) if recipe.startswith("asr") else ()


def _killed(card: Card, arguments: list[str], run: Path, step: int) -> None:
    """Start a training and kill it once it has a checkpoint of ``step``. Raises RuntimeError where it ends before."""
    with (card.folder / "killed.log").open("w") as log:
        process = subprocess.Popen([*VAAK, *arguments], stdout=log, stderr=log, env=environment())
        while not checkpoint(run, step).is_dir():
            if process.poll() is not None:
                raise RuntimeError(f"ended before it was killed, with {process.returncode}")
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()


def checkpoint(run: Path, step: int) -> Path:
    return next((run / "checkpoints").glob(f"step-*{step}"), run / "checkpoints" / f"step-{step}")


def weights_hash(run: Path) -> str:
    newest = max((run / "checkpoints").glob("step-*"), key=lambda path: int(path.name.split("-")[1]))
    return hashlib.sha256((newest / "model.safetensors").read_bytes()).hexdigest()


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def memory(card: Card) -> None:
    """Find the largest batch, and train with four times as many rows: they are computed in chunks."""
    yaml = _language_model(card, "toy" if card.toy else "110M", 64 if card.toy else 1024, "document")
    precision = "training.mixed_precision=" + ("no" if card.toy else "bf16")
    limit = ("--up-to", "4") if card.toy else ()
    found = card.command("find-batch-size", str(yaml), f"training.device={card.device}", precision, "--json", *limit)
    answer = json.loads(found.stdout)
    card.write("```json", json.dumps(answer, indent=2)[:2000], "```")
    largest = int(answer["largest"])
    run = card.folder / "provoked"
    done = card.command(*card.training(run, yaml, 6, precision, f"training.batch_size={4 * largest}"))
    said = [line for line in (done.stdout + done.stderr).splitlines() if "memory" in line or "chunks" in line]
    card.write(f"Batches of {4 * largest}, four times as many:", "```", *said[:8], "```")


def throughput(card: Card) -> None:
    models = ["toy"] if card.toy else card.options.models
    lengths = [64] if card.toy else card.options.lengths
    for name in models:
        for length in lengths:
            raced = _raced(card, name, length)
            if raced is None:
                card.write(f"{name} at length {length}: no batch fits.")
                continue
            size, processes = raced
            card.write(f"{name}, {size['batch']} × {length} tokens, bf16, no dropout:")
            card.table(
                ["", "ms a step", "tokens/s", "MFU", "times the hand-written loop, as compiled", "memory, GB"],
                [_throughput_row(card, process, _loop(process, processes), size) for process in processes],
            )


def _loop(process: Process, others: Sequence[Process]) -> Process:
    """The hand-written loop that is compiled as an arm is; the first arm where there is none."""
    name = "by hand, compiled" if "compiled" in process.name else "by hand"
    return next((one for one in others if one.name == name), others[0])


def attention(card: Card) -> None:
    """Compare a mask of all pairs with kernels of variable length: a row of 16 documents, forward and backward."""
    config = StackConfig(d_model=64 if card.toy else 1024, num_layers=2, num_heads=8, dropout=0.0)
    for length in [256] if card.toy else [8192, 32_768]:
        torch.manual_seed(0)
        stack = TransformerStack(config, causal=True).to(card.device)
        x = torch.randn(1, length, config.d_model, device=card.device)
        documents = torch.arange(16, device=card.device).repeat_interleave(length // 16)[None]
        rows, expected = list[list[str]](), list[torch.Tensor]()
        for way in ("masked", "auto"):
            set_variable_length(stack, way == "auto")
            found, seconds, memory = _attended(card, stack, x, documents)
            expected = expected or found
            pairs = zip(found, expected, strict=True)
            apart = max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)
            rows.append([way, f"{1000 * seconds:.1f}", f"{memory / 1e9:.2f}", f"{apart:.4f}"])
            card.figures[f"attention, {way}, {length}"] = {"seconds": seconds, "memory": memory, "apart": apart}
        card.write(f"{length} tokens{', where both are masked: there is no GPU' if card.toy else ''}:")
        card.table(["", "ms", "peak memory, GB", "greatest difference, of the largest number"], rows)


def _attended(
    card: Card, stack: TransformerStack, x: torch.Tensor, documents: torch.Tensor
) -> tuple[list[torch.Tensor], float, int]:
    """Return results and gradients of a stack, the seconds of the quickest of five passes, and their peak of memory."""
    taken, found = [], list[torch.Tensor]()
    if not card.toy:
        torch.cuda.reset_peak_memory_stats()
    for _ in range(5):
        begun = time.perf_counter()
        with torch.autocast(card.device, dtype=torch.bfloat16):
            outputs = stack(x, documents=documents, num_documents=16)
        found = [outputs.detach(), *torch.autograd.grad(outputs.float().mul(x).sum(), [*stack.parameters()])]
        if not card.toy:
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - begun)
    return found, min(taken), 0 if card.toy else torch.cuda.max_memory_allocated()


def snapshot(card: Card) -> None:
    """Copy a model's weights and moments to the CPU, twice by each way: the first time page-locks memory."""
    size = MODELS["toy" if card.toy else card.options.models[-1]]
    width, vocab = size["width"], 600 if card.toy else 32_000
    layer = [(4 * width, width), (width, 4 * width), (3 * width, width), (width, width), (width,), (width,)]
    shapes = [(vocab, width), *(size["layers"] * layer)]
    state = {
        f"{part}.{number}": torch.randn(shape, device=card.device)
        for part in ("weight", "exp_avg", "exp_avg_sq")
        for number, shape in enumerate(shapes)
    }
    nbytes = sum(tensor.nbytes for tensor in state.values())
    rows, before = list[list[str]](), _page_locked_bytes("current")
    # staged first: torch keeps page-locked memory, and gives it to whoever asks next
    ways: dict[str, Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]] = {
        "staged in pieces": copy_to_cpu,
        "page-locked at once": _page_locked,
    }
    for name, copy in ways.items():
        for time_of_it in ("first", "second"):
            if not card.toy:
                torch.cuda.synchronize()
            begun = time.perf_counter()
            copies = copy(state)
            seconds = time.perf_counter() - begun
            for key in (next(iter(state)), next(reversed(state))):
                assert torch.equal(copies[key], state[key].cpu())
            del copies
            locked = _page_locked_bytes("peak") - before
            rows.append([name, time_of_it, f"{seconds:.3f}", f"{nbytes / seconds / 1e9:.2f}", f"{locked / 2**30:.2f}"])
            card.figures[f"snapshot, {name}, {time_of_it}"] = {"seconds": seconds, "bytes": nbytes, "locked": locked}
    where = ", on the CPU, where nothing is staged" if card.toy else ""
    card.write(f"{nbytes / 1e6:,.1f} MB in {len(state)} tensors{where}:")
    card.table(["snapshot", "", "stall, s", "GB/s", "page-locked, GiB"], rows)


def _page_locked_bytes(kind: str) -> int:
    """Return what torch has page-locked, ``current`` or ``peak``."""
    return int(torch.cuda.host_memory_stats()[f"allocated_bytes.{kind}"]) if torch.cuda.is_available() else 0


def _page_locked(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return copies in page-locked memory, waited for once: as Vaak did before it staged them."""
    on_gpu = torch.cuda.is_available()
    copies = {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=on_gpu).copy_(tensor, non_blocking=True)
        for name, tensor in tensors.items()
    }
    if on_gpu:
        torch.cuda.synchronize()
    return copies


def _raced(card: Card, name: str, length: int) -> tuple[dict[str, int], list[Process]] | None:
    """Race the arms with the largest batch that they have room for; None where that is not even one row."""
    batch = max(1, (256 if card.toy else TOKENS) // length)
    bench = Bench(card.options, card.folder, device=card.device, precision="bf16", corpus=_corpus(card))
    while batch:
        size = {**MODELS[name], "vocab": 600 if card.toy else 32_000, "length": length, "batch": batch, "steps": 6}
        compiled = "training.performance.compile=default"
        jobs = {arm: bench.job(size, "Vaak" in arm, own_model="own" in arm) for arm in ARMS if "compiled" not in arm}
        jobs["by hand, compiled"] = bench.job(size, False)
        jobs["Vaak, the same model, compiled"] = bench.job(size, True, (compiled,))
        jobs["Vaak, its own model, compiled"] = bench.job(size, True, (compiled,), own_model=True)
        chosen = card.options.arms
        in_turns = card.toy or len(chosen) * memory_of(size) < torch.cuda.get_device_properties(0).total_memory
        arms = [(arm, ARMS[arm], jobs[arm]) for arm in chosen]
        if not in_turns:
            card.write("There is no room for all at once: each trains all its rounds, one after another.")
        try:
            return size, bench.race(arms, 4 if card.toy else 20, in_turns)
        except SystemExit as error:
            if "out of memory" not in str(error):
                raise RuntimeError(str(error)) from error
            batch //= 2
    return None


def _throughput_row(card: Card, process: Process, base: Process, size: dict[str, int]) -> list[str]:
    figures = figures_of(process, base)
    tokens = size["batch"] * size["length"] * figures["steps_per_second"]
    per_token = 6 * list_parameters(size) + 12 * size["layers"] * size["length"] * size["width"]  # PaLM, appendix B
    peak = peak_flops(torch.cuda.get_device_name(0), "bf16", tf32=False) if not card.toy else None
    used = "" if peak is None else f"{tokens * per_token / peak:.1%}"
    found = {"tokens_per_second": tokens, "mfu": used, **figures}
    card.figures[f"{process.name}, {size['width']} x {size['length']}"] = found
    return [
        process.name,
        f"{figures['step_ms']:.1f}",
        f"{tokens:,.0f}",
        used,
        f"{figures['ratio']:.3f}" + (", another network" if "own" in process.name or "litgpt" in process.name else ""),
        f"{figures['memory'] / 1000:.2f}",
    ]


def list_parameters(size: dict[str, int]) -> int:
    """Return the number of parameters of an arm's model: its matrices and its embeddings, which are tied."""
    return int(12 * size["layers"] * size["width"] ** 2 + size["vocab"] * size["width"])


def memory_of(size: dict[str, int]) -> int:
    """Return about how many bytes an arm takes: weights, gradients and moments, logits, and activations."""
    tokens = size["batch"] * size["length"]
    return 16 * list_parameters(size) + tokens * (12 * size["vocab"] + 40 * size["layers"] * size["width"])


def _corpus(card: Card) -> str:
    """Return the corpus of the language models: random words, as many different ones as a vocabulary needs."""
    path = card.folder / "words.txt"
    if not path.exists():
        rng = np.random.default_rng(0)
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
        words = ["".join(rng.choice(letters, 6)) for _ in range(1_000 if card.toy else 60_000)]
        with path.open("w") as stream:
            for _ in range(600 if card.toy else 20_000):
                stream.write(" ".join(words[index] for index in rng.integers(len(words), size=100)) + "\n")
    return f"{{type: text, train: [{path}], train_fraction: 0.9, valid_fraction: 0.05}}"


def _language_model(card: Card, name: str, length: int, layout: str) -> Path:
    size = MODELS[name]
    yaml = card.folder / f"lm-{name}-{length}.yml"
    yaml.write_text(
        f"task: lm\nname: lm\n"
        f"model: {{d_model: {size['width']}, num_layers: {size['layers']}, num_heads: {size['heads']}}}\n"
        f"data:\n  corpus: {_corpus(card)}\n  tokenizer: {{type: byte_level, vocab_size: 32000}}\n"
        f"  max_length: {length}\n  layout: {layout}\n  cache_dir: {card.folder / 'cache'}\n"
        "training: {batch_size: 1, optimizer: {type: adamw, lr: 1e-4}}\n"
    )
    return yaml


def _speech_jobs(card: Card) -> dict[str, tuple[Path, str, tuple[str, ...]]]:
    """Run, recipe and options of each training of speech."""
    small = WHISPER_TOY if card.toy else WHISPER_SMALL
    whole = card.folder / "whisper"
    # so slow that the weights keep their initial values: a model that has learned a little ends its transcripts early
    asr = ("training.optimizer={type: adamw, lr: 1e-9}", "data.max_duration=30", *_small("asr"))
    wider = () if card.toy else ("model.global_config.d_model=256", "model.global_config.num_layers=4")
    return {
        "Whisper small, whole": (whole, "asr/quickstart", (f"model={{scratch: {small}}}", *asr)),
        "text-to-speech": (card.folder / "tts", "tts/quickstart", (*_small("tts"), *wider)),
        "diarization": (card.folder / "diarization", "diarization/quickstart", _small("diarization")),
        "Whisper small, LoRA": (
            card.folder / "lora",
            "asr/quickstart",
            (f"model={{base: {card.folder / 'base'}, lora: {{rank: 16}}}}", *asr),
        ),
    }


TRACED = {"cpu": (3, 1, 2), "cuda": (20, 2, 6)}
"""Steps before the traced ones, those that warm the profiler up, and those that are traced."""


def speech(card: Card) -> None:
    """Train each task of speech for some steps; the share of a step that the GPU works is that of its operations."""
    wait, warm_up, active = TRACED[card.device]
    trace = f"training.callbacks=[{{type: trace, wait: {wait}, warm_up: {warm_up}, active: {active}}}]"
    log = "training.logging={interval: 1, progress_bar: false}"
    header = ("", "in training", "ms a step", "of which the GPU works", "busy", "operations", "memory, GiB")
    ways = {"": (), f", {' '.join(card.options.options)}": tuple(card.options.options)}
    with card.rows(*header) as rows:
        for name, (run, recipe, more) in _speech_jobs(card).items():
            file = HERE / "configs" / f"{recipe}.yml"
            if name.endswith("LoRA"):
                card.command(
                    "export", str(card.folder / "whisper"), "--format", "hf", "--output", str(card.folder / "base")
                )
            for number, (way, options) in enumerate(ways.items() if card.options.options else [("", ())]):
                place = run if number == 0 else run.with_name(f"{run.name}-{number}")
                how = (trace, log, "training.mixed_precision=bf16", *more, *options)
                try:
                    card.command(*card.training(place, file, wait + warm_up + active + 1, *how))
                    rows.append([name + way, *_trained_row(card, name + way, place, wait)])
                except RuntimeError as error:
                    rows.append([name + way, str(error)[-300:].replace("\n", " ").replace("|", "/"), *[""] * 5])
                say(": ".join(rows[-1][:5]))


def _trained_row(card: Card, name: str, run: Path, wait: int) -> list[str]:
    """Return what a training did in a step: audio a second, time, the device's time, its share, operations, memory."""
    steps = [one for one in records(run, "step") if one["step"] <= wait][wait // 3 :]
    seconds = statistics.median(one["clock"]["seconds"] for one in steps)
    rates = {key: value for key, value in steps[-1]["clock"].items() if key.endswith("_per_second")}
    working, operations = read_trace(next((run / "trace").glob("*.json.gz")), card.device)
    system = [one["clock"] for one in records(run, "system")]
    used = max((one["device_memory_gib"] for one in system if "device_memory_gib" in one), default=None)
    figures = {"seconds": seconds, "device_seconds": working, "busy": working / seconds, "operations": operations}
    card.figures[name] = figures | rates | ({} if used is None else {"memory_gib": used})
    rate = ", ".join(f"{value:,.1f} {key.replace('_per_second', '/s')}" for key, value in rates.items())
    busy = f"{working / seconds:.0%}"
    cells = [rate, f"{1000 * seconds:.1f}", f"{1000 * working:.1f}", busy, f"{operations:,.0f}"]
    return [*cells, "" if used is None else f"{used:.2f}"]


def read_trace(path: Path, device: str) -> tuple[float, float]:
    """Return the seconds in which a device works in a step of a trace, and the operations that it does.

    Operations at the same time count once. On the CPU they are torch's own.
    """
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"} if device == "cuda" else {"cpu_op"}
    with gzip.open(path, "rt") as stream:
        events = json.load(stream)["traceEvents"]
    first, last = (int(part) for part in path.name.split("-rank")[0].removeprefix("steps-").split("-to-"))
    spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in events if one.get("cat") in kinds and "dur" in one)
    working, until = 0.0, -math.inf
    for begin, end in spans:
        working += max(0.0, end - max(begin, until))
        until = max(until, end)
    num_steps = last - first + 1
    return working / 1e6 / num_steps, len(spans) / num_steps


def loaders(card: Card) -> None:
    """Train each task of speech, and say how long it waits for data, without and with processes that load them."""
    steps = 4 if card.toy else 30
    with card.rows("", "processes", "of a step waits for data", "examples/s") as rows:
        for name, (run, recipe, more) in _speech_jobs(card).items():
            if name.endswith("LoRA"):
                continue
            for workers in ("0", "null"):
                place = run.with_name(f"{run.name}-workers-{workers}")
                how = (
                    "training.profiling=true",
                    "training.mixed_precision=bf16",
                    f"training.performance.num_workers={workers}",
                )
                card.command(*card.training(place, HERE / "configs" / f"{recipe}.yml", steps, *how, *more))
                clock = records(place, "profile")[-1]["clock"]
                examples = next((value for key, value in clock.items() if key.startswith("examples")), math.nan)
                rows.append(
                    [name, {"null": "chosen"}.get(workers, workers), f"{clock['loading']:.1%}", f"{examples:.1f}"]
                )
                card.figures[f"loading, {name}, {workers}"] = clock
                say(": ".join(rows[-1]))


def decoding(card: Card) -> None:
    """Write greedily with one random language model in each tool, in turns; none ends early."""
    import decoding as of_decoding

    size = MODELS["toy" if card.toy else "110M"]
    tokens, most = (4, 2) if card.toy else (128, 16)
    about: dict[str, Any] = {
        "width": size["width"],
        "layers": size["layers"],
        "vocab": 600 if card.toy else 32_000,
        "tokens": tokens,
    }
    about |= {"llama": False, "rows": [most], "threads": card.options.threads}
    ours, theirs, _ = of_decoding._models(argparse.Namespace(**about))
    ours, theirs = ours.to(card.device), theirs.to(card.device)
    settings = SamplingSettings(tokens, temperature=0.0)
    lengths: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
    lengths |= {"do_sample": False}
    columns = ("Vaak", "transformers", "transformers, static cache", "Vaak ÷ transformers", "÷ static cache")
    with card.rows("rows", *(f"{one}, tokens/s" for one in columns[:3]), *columns[3:]) as rows:
        for count in (1, most):
            prompts = torch.randint(2, ours.vocab_size, (count, 16), generator=torch.Generator().manual_seed(1))
            placed = prompts.to(card.device)
            given = {"attention_mask": torch.ones_like(placed), **lengths}
            arms: list[Callable[[], Any]] = [
                partial(generate_batch, ours, prompts.tolist(), settings),
                partial(theirs.generate, placed, **given),
                partial(theirs.generate, placed, **given, cache_implementation="static"),
            ]
            taken = _in_turns(card, arms, 3 if card.toy else 5)
            rates = [count * tokens / statistics.median(one) for one in taken]
            rows.append(
                [str(count), *(f"{rate:,.0f}" for rate in rates), *(f"{rates[0] / one:.2f}" for one in rates[1:])]
            )
            card.figures[f"decoding, {count} rows"] = dict(zip(columns, rates, strict=False))


def _in_turns(card: Card, arms: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Return each arm's seconds by round; all have been called once before."""
    taken: list[list[float]] = [[] for _ in arms]
    for number in range(rounds + 1):
        for arm, own in zip(arms, taken, strict=True):
            begun = time.perf_counter()
            arm()
            if not card.toy:
                torch.cuda.synchronize()
            if number:
                own.append(time.perf_counter() - begun)
    return taken


def inference(card: Card) -> None:
    """Transcribe clips with one untrained Whisper in each tool, in turns: all write as many tokens as they may."""
    run, base = card.folder / "whisper", card.folder / "base"  # the second is what LoRA was trained over
    if not base.is_dir():
        raise RuntimeError("needs the part speech before it")
    clips = list(_clips(card, 4 if card.toy else 32))
    tokens = 16 if card.toy else 60
    makers: dict[str, tuple[Callable[[], Callable[[Sequence[str]], Any]], int]] = {}
    for precision in ("fp32",) if card.toy else ("bf16", "fp32"):
        for batch, count in ((16, len(clips)), (1, 4)):
            make = partial(_vaak_transcriber, card, run, precision, batch, tokens)
            makers[f"Vaak, {precision}, {batch} at once"] = make, count
    makers[PIPELINE] = partial(_transformers, card, base, tokens), len(clips)
    makers["faster-whisper, batched"] = partial(_faster_whisper, card, base, card.folder / "ct2", tokens), len(clips)
    ready = dict[str, tuple[Callable[[Sequence[str]], Any], int]]()
    with card.rows("", "seconds", "times real time", "time ÷ pipeline's") as rows:
        for name, (make_one, count) in makers.items():
            try:
                ready[name] = make_one(), count
                ready[name][0]([str(clips[0][0])])
            except Exception as error:  # a peer that isn't installed, or refuses random weights, is named in the table
                ready.pop(name, None)
                what = f"{type(error).__name__}: {str(error)[-200:]}".replace("\n", " ").replace("|", "/")
                rows.append([name, what, "", ""])
        arms = [partial(way, [str(path) for path, _ in clips[:count]]) for way, count in ready.values()]
        taken = dict(zip(ready, _in_turns(card, arms, card.options.rounds), strict=True))
        heard = {name: sum(seconds for _, seconds in clips[:count]) for name, (_, count) in ready.items()}
        for name, seconds in taken.items():
            took, ratio = statistics.median(seconds), ""
            if PIPELINE in taken:
                pairs = zip(seconds, taken[PIPELINE], strict=True)
                of_pipeline = heard[PIPELINE] / heard[name]
                ratio = f"{statistics.median(own / its for own, its in pairs) * of_pipeline:.2f}"
            rows.append([name, f"{took:.2f}", f"{heard[name] / took:,.1f}", ratio])
            card.figures[name] = {"times_real_time": heard[name] / took, "seconds": seconds}


PIPELINE = "transformers' pipeline, 16 at once"


def _vaak_transcriber(card: Card, run: Path, precision: str, batch: int, tokens: int) -> Callable[[Sequence[str]], Any]:
    opened = open_run(run, (), [f"data.decoding.max_new_tokens={tokens}"], card.device, precision=precision)
    trained = TrainedRun(opened)
    return lambda files: trained.predict([*files], batch_size=batch)


def _clips(card: Card, count: int) -> Iterator[tuple[Path, float]]:
    """Write clips of noise of 4 to 28 seconds; yield their paths and seconds."""
    import soundfile

    rng = np.random.default_rng(0)
    folder = card.folder / "clips"
    folder.mkdir(exist_ok=True)
    for number, seconds in enumerate(rng.uniform(1, 3, count) if card.toy else rng.uniform(4, 28, count)):
        path = folder / f"{number:03}.wav"
        soundfile.write(path, 0.05 * rng.standard_normal(int(16_000 * seconds)), 16_000)
        yield path, float(seconds)


def _transformers(card: Card, folder: Path, tokens: int) -> Callable[[Sequence[str]], Any]:
    import soundfile
    from transformers import pipeline

    whisper: Any = pipeline("automatic-speech-recognition", str(folder), device=card.device, batch_size=16)
    whisper.tokenizer.pad_token_id = whisper.model.config.pad_token_id
    if not card.toy:
        whisper.model.to(torch.bfloat16)

    def transcribe(files: Sequence[str]) -> Any:
        read = [{"raw": soundfile.read(file, dtype="float32")[0], "sampling_rate": 16_000} for file in files]
        return list(whisper(read, generate_kwargs={"max_new_tokens": tokens}))

    return transcribe


def _faster_whisper(card: Card, base: Path, folder: Path, tokens: int) -> Callable[[Sequence[str]], Any]:
    from ctranslate2.converters import TransformersConverter
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    beside = [name for name in ("tokenizer.json", "preprocessor_config.json") if (base / name).exists()]
    TransformersConverter(str(base), copy_files=beside).convert(str(folder), force=True)
    pipeline = BatchedInferencePipeline(WhisperModel(str(folder), device=card.device, compute_type="default"))
    how: dict[str, Any] = {
        "beam_size": 1,
        "max_new_tokens": tokens,
        "vad_filter": False,
        "without_timestamps": True,
    }
    return lambda files: [list(pipeline.transcribe(file, batch_size=16, **how)[0]) for file in files]


PARTS: dict[str, Callable[[Card], None]] = {
    "machine": machine,
    "speech": speech,
    "inference": inference,
    "throughput": throughput,
    "snapshot": snapshot,
    "decoding": decoding,
    "loaders": loaders,
    "memory": memory,
    "attention": attention,
    "recipes": recipes,
}
LIMITS = {"machine": 30, "speech": 270, "inference": 120, "throughput": 240, "snapshot": 30, "decoding": 60}
"""Seconds after which a part is ended; the others may take all that remains of ``--minutes``."""


@contextlib.contextmanager
def limited(card: Card, seconds: float) -> Iterator[None]:
    """Raise TimeoutError in this block once it has taken so long; commands that it started are killed."""

    def stop(*_: Any) -> None:
        raise TimeoutError(f"ended after {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, stop)
    # commands end by themselves a moment before: one that another thread waits for isn't interrupted
    card.deadline = time.monotonic() + seconds - min(1.0, seconds / 2)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="the Markdown page that is written; default: only printed")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["110M"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="of the throughput")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=14.0, help="of all parts together; 0: no limits")
    parser.add_argument("--options", nargs="+", default=[], help="overrides to compare the trainings of speech with")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.python = sys.executable
    folder = Path(tempfile.mkdtemp(prefix="vaak-gpu-"))
    card = Card(options, folder)
    card.write("# On a GPU", "", f"`python benchmarks/gpu.py`, {time.strftime('%Y-%m-%d')}. ")
    ends = time.monotonic() + 60 * options.minutes if options.minutes else math.inf
    try:
        for name in options.parts:
            begun, left = time.perf_counter(), ends - time.monotonic()
            card.write("", f"## {name.capitalize()}", "")
            limit = min(left, LIMITS.get(name, left)) if options.minutes else 86_400.0
            try:
                if limit < 5:
                    raise TimeoutError("no time was left for it")
                with limited(card, limit):
                    PARTS[name](card)
            except Exception as error:  # the page says it, and the other parts are still worth their time
                card.write("", f"**Failed**: {type(error).__name__}: {str(error)[-1500:]}")
            card.figures[f"{name}, seconds"] = time.perf_counter() - begun
            card.write()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
