"""Peak memory and processor time of commands that read whole files, by the size of what they read.

Each is a separate process; its peak is that of its resident set, in MB of 10^6 bytes, 0 being a process that imports
the same and reads nothing. Inputs are made in a temporary folder: texts whose words are as frequent as in a language
(Zipf), a run whose log is continued to many steps, copies of it, short recordings, and the configuration of a base
without its weights.

    python benchmarks/whole_files.py
    python benchmarks/whole_files.py --parts tokenizer --megabytes 10 40 160
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

SAMPLE = 5_000_000
WORDS = 400_000
TOKENIZER = """
import sys
from pathlib import Path
from vaak.text.config import TokenizerConfig
from vaak.text.tokenizer_training import TokenizerFactory
given = TokenizerConfig.model_validate({"type": "byte_level", "vocab_size": 16000} | eval(sys.argv[2]))
with open(sys.argv[1], encoding="utf-8") as texts:
    TokenizerFactory(given).create_tokenizer(texts if sys.argv[3] == "all" else iter(["so it is"] * 9))
"""
LANGUAGE_MODEL = """\
task: lm
name: tiny
model: {d_model: 32, num_layers: 1, num_heads: 2}
data:
  corpus: {type: text, train: [texts.txt], valid: [valid.txt]}
  tokenizer: {type: byte_level, vocab_size: 300}
  max_length: 48
training: {max_steps: 4, batch_size: 4, device: cpu, memory: {rehearsal: false}, validation: {interval: 4},
           logging: {interval: 1, tensorboard: false, progress_bar: false}}
"""
RECOGNISER = """\
task: asr
model: {architecture: ctc}
datasets: [{type: json, corpus_dir: ., train: [speech.jsonl], valid: [valid.jsonl]}]
training: {max_steps: 1, device: cpu}
"""
BASE = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
"""Llama 3 8B's."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--megabytes", type=float, nargs="+", default=[40], help="of text")
    parser.add_argument("--steps", type=int, default=200_000, help="of the long run")
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--utterances", type=int, nargs="+", default=[250, 1000, 4000])
    options = parser.parse_args()
    print("| what | of | peak, MB | processor time, s |\n|---|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        for part in options.parts:
            for what, size, command in PARTS[part](options):
                peak, seconds = measure(command)
                print(f"| {what} | {size} | {peak:.0f} | {seconds:.1f} |", flush=True)


Arm = tuple[str, str, list[str]]
"""Its name, the size of its input, and the command."""


def measure(command: list[str]) -> tuple[float, float]:
    """Return the peak memory of a process in MB, and its processor time in seconds."""
    # A small process between: a child's resident set begins with that of the one that forks it.
    code = (
        "import json, resource, subprocess, sys; done = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, "
        "stderr=subprocess.PIPE, text=True); use = resource.getrusage(resource.RUSAGE_CHILDREN); "
        "print(json.dumps([done.returncode, done.stderr[-2000:], use.ru_maxrss, use.ru_utime + use.ru_stime]))"
    )
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([sys.executable, "-c", code, *command], env=environment, stdout=subprocess.PIPE, check=True)
    failed, errors, peak, seconds = json.loads(done.stdout)
    if failed:
        raise SystemExit(f"{' '.join(command)} ended with {failed}: {errors}")
    return peak * 1024 / 1e6, seconds


def vaak(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "vaak", *arguments]


def measure_tokenizer(options: argparse.Namespace) -> Iterator[Arm]:
    """Train a byte-level BPE of 16,000 tokens, on all lines and on a sample."""
    yield "tokenizer", "nothing", [sys.executable, "-c", TOKENIZER, os.devnull, "{}", "none"]
    for megabytes in options.megabytes:
        write_texts(Path("many.txt"), int(1e6 * megabytes))
        for what, chosen in (("all", {}), (f"{SAMPLE:,} characters", {"training_characters": SAMPLE})):
            command = [sys.executable, "-c", TOKENIZER, "many.txt", repr(chosen), "all"]
            yield f"tokenizer, trained on {what}", f"{megabytes:g} MB", command


def write_texts(path: Path, size: int, seed: int = 0) -> None:
    """Write lines of words of a made-up language, of about this many bytes."""
    rng = np.random.default_rng(seed)
    syllables = [f"{one}{other}" for one in "bcdfghjklmnprstvz" for other in "aeiou"]
    lengths = rng.integers(1, 6, WORDS)
    words = ["".join(syllables[place] for place in rng.integers(0, len(syllables), length)) for length in lengths]
    chances = 1 / np.arange(1, WORDS + 1)
    chances /= chances.sum()
    with open(path, "w", encoding="utf-8") as file:
        while file.tell() < size:
            file.write(" ".join(words[place] for place in rng.choice(WORDS, 1000, p=chances)).replace(" su", "\n"))


def measure_check(options: argparse.Namespace) -> Iterator[Arm]:
    """``vaak data check`` on recordings of half a second."""
    import soundfile

    rng, texts = np.random.default_rng(0), ("one", "two", "three four")
    for number in options.utterances:
        rows = list[str]()
        Path("audio").mkdir(exist_ok=True)
        for place in range(number):
            path = Path("audio") / f"{place}.wav"
            if not path.exists():
                soundfile.write(path, rng.normal(size=8000) * 0.1, 16000)
            rows.append(json.dumps({"audio": str(path), "text": texts[place % 3], "speaker": str(place % 7)}))
        for name, chosen in (("speech", rows[8:]), ("valid", rows[:8])):
            Path(f"{name}.jsonl").write_text("\n".join(chosen) + "\n")
        Path("speech.yml").write_text(RECOGNISER)
        yield "data check", f"{number:,} utterances", vaak("data", "check", "speech.yml")


def measure_runs(options: argparse.Namespace) -> Iterator[Arm]:
    """``vaak runs`` over many runs, and with a long one among them; ``vaak report`` of that one."""
    write_texts(Path("texts.txt"), 20_000)
    write_texts(Path("valid.txt"), 2_000, seed=1)
    Path("tiny.yml").write_text(LANGUAGE_MODEL)
    subprocess.run(vaak("train", "tiny.yml", "run_dir=all/run-0"), check=True, capture_output=True)
    first = Path("all/run-0")
    for place in range(1, options.runs):
        shutil.copytree(first, Path("all") / f"run-{place}", ignore=shutil.ignore_patterns("prepared", "*.safetensors"))
    yield "runs", f"{options.runs:,} runs of 4 steps", vaak("runs", "all")
    long = Path("all/long")
    shutil.copytree(first, long)
    lines = (first / "metrics.jsonl").read_text().splitlines()
    step = next(record for record in map(json.loads, lines) if record["kind"] == "step")
    with open(long / "metrics.jsonl", "a", encoding="utf-8") as log:
        for number in range(5, options.steps + 1):
            step["step"] = number
            log.write(json.dumps(step) + "\n")
    yield "runs", f"the same and one of {options.steps:,}", vaak("runs", "all")
    yield "report", "a run of 4 steps", vaak("report", str(first))
    yield "report", f"a run of {options.steps:,} steps", vaak("report", str(long))


def measure_model(options: argparse.Namespace) -> Iterator[Arm]:
    """``vaak model show --gpus 8 --memory 80`` of a base of 8 billion parameters, by its configuration alone."""
    Path("base").mkdir()
    Path("base/config.json").write_text(json.dumps(BASE))
    write_texts(Path("texts.txt"), 20_000)
    write_texts(Path("valid.txt"), 2_000, seed=1)
    text = LANGUAGE_MODEL.replace("{d_model: 32, num_layers: 1, num_heads: 2}", "{pretrained: base}")
    Path("base.yml").write_text(text.replace("device: cpu", "device: cuda"))
    yield "model show", "8B, device: cuda", vaak("model", "show", "base.yml", "--gpus", "8", "--memory", "80")


PARTS: dict[str, Any] = {
    "runs": measure_runs, "model": measure_model, "check": measure_check, "tokenizer": measure_tokenizer,
}  # fmt: skip


if __name__ == "__main__":
    main()
