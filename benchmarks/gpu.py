"""What only a GPU can show, in one command: does everything train there, to the bit, and how fast is it?

    python benchmarks/gpu.py [--page docs/gpu.md] [--models 110M 1B] [--lengths 1024 8192] [--rounds 3] [--json FILE]
                             [--parts machine recipes memory throughput attention snapshot speech inference]

Writes a page of tables; about 20 minutes on an H100. A part that fails says why on the page, and the others go on.

- machine: the card, versions, what ``vaak doctor`` says
- recipes: each quick start in bf16, in fp16, and deterministic: the last is also killed and resumed, to the same bits
- memory: the largest batch that was found, and a batch four times as large, which is computed in chunks
- throughput: tokens a second, MFU and memory of language models, in bf16, against a hand-written loop,
  transformers.Trainer and litgpt (if installed), which take turns on the card (racing.py, arms.py)
- attention: a row of 16 documents with a mask of all pairs, and by kernels of variable length, which must agree
- snapshot: how long a checkpoint's copy holds training up, and its page-locked memory: staged in pieces, as Vaak's is,
  and page-locked all at once; the weights and moments of the last of the models
- speech: seconds of audio a second in training: Whisper small whole and by LoRA, text-to-speech, diarization
- inference: real-time factors of transcribing with a Whisper small: file by file and batched, fp32 and bf16, and
  transformers' pipeline and faster-whisper with the same weights

Without a GPU the same code runs on the CPU at toy sizes, and the page says so: its numbers mean nothing then.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
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
from vaak.nn.config import StackConfig
from vaak.nn.stack import TransformerStack, set_variable_length

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

    @property
    def device(self) -> str:
        return "cuda" if torch.cuda.is_available() else "cpu"

    @property
    def toy(self) -> bool:
        return self.device == "cpu"

    def write(self, *lines: str) -> None:
        self.page.extend(lines)
        say("\n".join(lines))

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.write("", f"| {' | '.join(header)} |", "|" + "---|" * len(header))
        self.write(*(f"| {' | '.join(row)} |" for row in rows), "")

    def command(self, *arguments: str, seconds: float = 900.0) -> subprocess.CompletedProcess[str]:
        """Run a ``vaak`` command. Raises RuntimeError with the end of what it printed where it fails."""
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
    """Train each quick start in each mode; what runs side by side shares the card."""
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
            card.write(f"{name}, {size['batch']} × {length} tokens, bf16:")
            card.table(
                ["", "ms a step", "tokens/s", "MFU", "times the hand-written loop", "memory, GB"],
                [_throughput_row(card, process, processes[0], size) for process in processes],
            )


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
        own = f"training.performance.compile={'default' if not card.toy else 'false'}"
        jobs = {arm: bench.job(size, "Vaak" in arm, own_model="own" in arm) for arm in ARMS if "compiled" not in arm}
        jobs["by hand, compiled"] = bench.job(size, False)
        jobs["Vaak, its own model, compiled"] = bench.job(size, True, (own,), own_model=True)
        chosen = [arm for arm in card.options.arms if not (card.toy and "compiled" in arm)]
        in_turns = card.toy or len(chosen) * memory_of(size) < torch.cuda.get_device_properties(0).total_memory
        arms = [(arm, ARMS[arm], jobs[arm]) for arm in chosen]
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
        f"{figures['ratio']:.3f}",
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


def speech(card: Card) -> None:
    small = WHISPER_TOY if card.toy else WHISPER_SMALL
    steps = 4 if card.toy else 30
    rows = []
    whole = card.folder / "whisper"
    # so slow that the weights stay as they are drawn: a model that has learned a little ends its transcripts early
    asr = ("training.optimizer={type: adamw, lr: 1e-9}", "data.max_duration=30", *_small("asr"))
    jobs: dict[str, tuple[Path, str, tuple[str, ...]]] = {
        "Whisper small, whole": (whole, "asr/quickstart", (f"model={{scratch: {small}}}", *asr)),
        "Whisper small, LoRA": (
            card.folder / "lora",
            "asr/quickstart",
            (f"model={{base: {card.folder / 'base'}, lora: {{rank: 16}}}}", *asr),
        ),
        "text-to-speech": (
            card.folder / "tts",
            "tts/quickstart",
            (
                *_small("tts"),
                *(() if card.toy else ("model.global_config.d_model=256", "model.global_config.num_layers=4")),
            ),
        ),
        "diarization": (card.folder / "diarization", "diarization/quickstart", _small("diarization")),
    }
    for name, (run, recipe, more) in jobs.items():
        if name.endswith("LoRA"):
            card.command("export", str(whole), "--format", "hf", "--output", str(card.folder / "base"))
        try:
            card.command(
                *card.training(run, HERE / "configs" / f"{recipe}.yml", steps, "training.mixed_precision=bf16", *more)
            )
        except RuntimeError as error:
            rows.append([name, str(error)[-300:].replace("\n", " ").replace("|", "/"), ""])
            continue
        clock = records(run, "step")[-1]["clock"]
        rates = {key: value for key, value in clock.items() if key.endswith("_per_second")}
        rate = ", ".join(f"{value:,.1f} {key.replace('_per_second', '/s')}" for key, value in rates.items())
        used = records(run, "system")[-1]["clock"]
        rows.append([name, rate, f"{used['device_memory_gib']:.2f}" if "device_memory_gib" in used else ""])
        card.figures[name] = rates
    card.table(["", "in training", "memory, GiB"], rows)


def inference(card: Card) -> None:
    """Transcribe clips with one untrained Whisper in each tool: all write as many tokens as they may."""
    run = card.folder / "whisper"
    if not run.is_dir():
        raise RuntimeError("needs the part speech before it")
    clips = list(_clips(card, 4 if card.toy else 32))
    files = [str(path) for path, _ in clips]
    tokens = "16" if card.toy else "60"
    rows = []
    ways: dict[str, tuple[Callable[[list[str]], float], int]] = {}
    for precision in ("fp32",) if card.toy else ("bf16", "fp32"):
        for batch, count in (("16", len(files)), ("1", 4)):
            more = ["--precision", precision, "--batch-size", batch, "--max-new-tokens", tokens]
            more += ["--device", card.device]
            ways[f"Vaak, {precision}, {batch} at once"] = (partial(_timed_command, card, run, more), count)
    base, ct2 = card.folder / "base", card.folder / "ct2"  # the first is what LoRA was trained over
    ways["transformers' pipeline, 16 at once"] = (partial(_transformers, card, base, int(tokens)), len(files))
    ways["faster-whisper, batched"] = (partial(_faster_whisper, card, base, ct2, int(tokens)), len(files))
    for name, (way, count) in ways.items():
        try:
            took, seconds = way(files[:count]), sum(duration for _, duration in clips[:count])
            rows.append([name, f"{took:.2f}", f"{seconds / took:,.1f}"])
            card.figures[name] = seconds / took
        except Exception as error:  # a peer that isn't installed, or refuses random weights, is named in the table
            rows.append([name, f"{type(error).__name__}: {str(error)[-200:]}".replace("\n", " ").replace("|", "/"), ""])
        say(": ".join(rows[-1]))
    card.table(["", "seconds", "times real time"], rows)
    card.write("Vaak's times are of whole commands, less that of one which transcribes a single clip.")


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


def _timed_command(card: Card, run: Path, more: Sequence[str], files: Sequence[str]) -> float:
    """Return the seconds that all files take beyond the start-up and the first file."""

    def took(some: Sequence[str]) -> float:
        begun = time.perf_counter()
        card.command("transcribe", str(run), *some, *more)
        return time.perf_counter() - begun

    first = took(files[:1])
    return (took(files) - first) * len(files) / (len(files) - 1)


def _transformers(card: Card, folder: Path, tokens: int, files: Sequence[str]) -> float:
    import soundfile
    from transformers import pipeline

    whisper: Any = pipeline("automatic-speech-recognition", str(folder), device=card.device, batch_size=16)
    whisper.tokenizer.pad_token_id = whisper.model.config.pad_token_id
    if not card.toy:
        whisper.model.to(torch.bfloat16)
    begun = time.perf_counter()
    read = [{"raw": soundfile.read(file, dtype="float32")[0], "sampling_rate": 16_000} for file in files]
    list(whisper(read, generate_kwargs={"max_new_tokens": tokens}))
    return time.perf_counter() - begun


def _faster_whisper(card: Card, base: Path, folder: Path, tokens: int, files: Sequence[str]) -> float:
    from ctranslate2.converters import TransformersConverter
    from faster_whisper import BatchedInferencePipeline, WhisperModel

    beside = [name for name in ("tokenizer.json", "preprocessor_config.json") if (base / name).exists()]
    TransformersConverter(str(base), copy_files=beside).convert(str(folder), force=True)
    pipeline = BatchedInferencePipeline(WhisperModel(str(folder), device=card.device, compute_type="default"))
    begun = time.perf_counter()
    for file in files:
        how: dict[str, Any] = {
            "beam_size": 1,
            "max_new_tokens": tokens,
            "vad_filter": False,
            "without_timestamps": True,
        }
        segments, _ = pipeline.transcribe(file, batch_size=16, **how)
        list(segments)
    return time.perf_counter() - begun


PARTS: dict[str, Callable[[Card], None]] = {
    "machine": machine,
    "recipes": recipes,
    "memory": memory,
    "throughput": throughput,
    "attention": attention,
    "snapshot": snapshot,
    "speech": speech,
    "inference": inference,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, help="the Markdown page that is written; default: only printed")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=["110M", "1B"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[1024, 8192])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), help="of the throughput")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.python = sys.executable
    folder = Path(tempfile.mkdtemp(prefix="vaak-gpu-"))
    card = Card(options, folder)
    card.write("# On a GPU", "", f"`python benchmarks/gpu.py`, {time.strftime('%Y-%m-%d')}. ")
    try:
        for name in options.parts:
            begun = time.perf_counter()
            card.write("", f"## {name.capitalize()}", "")
            try:
                PARTS[name](card)
            except Exception as error:  # the page says it, and the other parts are still worth their time
                card.write("", f"**Failed**: {type(error).__name__}: {str(error)[-1500:]}")
            card.figures[f"{name}, seconds"] = time.perf_counter() - begun
            if options.page:
                options.page.write_text("\n".join(card.page) + "\n", encoding="utf-8")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if options.json:
        options.json.write_text(json.dumps(card.figures, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
