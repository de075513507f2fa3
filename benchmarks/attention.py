"""Time and memory of attention, forward and backward, by length: torch's SDPA, Vaak's linear and local attention, and
the package performer-pytorch.

    python benchmarks/attention.py [--lengths 512 1024 ...] [--rounds 5] [--device cpu] [--threads 2] [--longest 4]

One example with several heads. At each length every arm is a separate process, so its memory is separate; the processes
take turns, round after round. A figure is the median over rounds, a ratio the median over rounds of two arms of the
same round. Memory is the most that a pass adds to what the process held before it. An arm that took more than
``--longest`` seconds at one length is skipped at longer ones. performer-pytorch is not a dependency: it is measured
if it can be imported, for example from a folder on PYTHONPATH that ``pip install --no-deps --target FOLDER
performer-pytorch einops axial-positional-embedding local-attention hyper-connections`` filled.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
LENGTHS = [2**power for power in range(9, 16)]


def sdpa(causal: bool, head_width: int, device: str) -> Attend:
    return lambda query, key, value: F.scaled_dot_product_attention(query, key, value, is_causal=causal)


def linear(causal: bool, head_width: int, device: str) -> Attend:
    from vaak.nn.kernels.linear_attention import linear_attention
    from vaak.nn.kernels.random_features import RandomFeatures
    from vaak.nn.kernels.visibility import Visibility

    features = RandomFeatures(head_width).to(device)
    return lambda query, key, value: linear_attention(features, query, key, value, Visibility(causal))


def local(causal: bool, head_width: int, device: str) -> Attend:
    from vaak.nn.kernels.softmax_attention import local_attention
    from vaak.nn.kernels.visibility import Visibility

    return lambda query, key, value: local_attention(query, key, value, Visibility(causal), window=128, dropout=0.0)


def performer(causal: bool, head_width: int, device: str) -> Attend:
    warnings.simplefilter("ignore")  # it imports what newer Pythons call outdated
    from performer_pytorch import FastAttention

    attend: Attend = FastAttention(head_width, causal=causal).to(device)
    return attend


ARMS: dict[str, tuple[Callable[[bool, int, str], Attend], bool]] = {
    "SDPA": (sdpa, False),
    "linear": (linear, False),
    "local": (local, False),
    "performer-pytorch": (performer, False),
    "SDPA, causal": (sdpa, True),
    "causal_linear": (linear, True),
    "local, causal": (local, True),
    "performer-pytorch, causal": (performer, True),
}
PEERS = {"linear": ("SDPA", "performer-pytorch"), "causal_linear": ("SDPA, causal", "performer-pytorch, causal")}


def held(device: str, most: bool = False) -> float:
    """MB in use now, or the most there were."""
    if device == "cuda":
        return (torch.cuda.max_memory_allocated() if most else torch.cuda.memory_allocated()) / 1e6
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM" if most else "VmRSS")) / 1e3


def serve(name: str, job: dict[str, Any]) -> None:
    """Answer each line on the input with the seconds of one pass and the most MB that any has added."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is not an answer
    torch.set_num_threads(job["threads"])
    device, width = job["device"], job["head_width"]
    make, causal = ARMS[name]
    try:
        attend = make(causal, width, device)
    except ImportError as error:
        answers.write(json.dumps({"missing": error.name}) + "\n")
        return
    run_pass(attend, drawn(job | {"length": 64}))  # what a library makes once
    tensors = drawn(job)
    before = held(device)
    for _ in sys.stdin:
        seconds = run_pass(attend, tensors)
        answers.write(json.dumps({"seconds": seconds, "memory": held(device, most=True) - before}) + "\n")


def drawn(job: dict[str, Any]) -> list[Tensor]:
    """Queries, keys, values, and the gradient of the result."""
    dtype = getattr(torch, job["dtype"])
    shape = (1, job["heads"], job["length"], job["head_width"])
    tensors = [torch.randn(shape, device=job["device"], dtype=dtype) for _ in range(4)]
    return [*(tensor.requires_grad_() for tensor in tensors[:3]), tensors[3]]


def run_pass(attend: Attend, tensors: list[Tensor]) -> float:
    """Seconds of one forward and backward pass."""
    *inputs, gradient = tensors
    if gradient.is_cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    torch.autograd.grad(attend(*inputs), inputs, gradient)
    if gradient.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


class Process:
    """An arm at one length."""

    def __init__(self, name: str, job: dict[str, Any]) -> None:
        self.name, self.memory = name, 0.0
        self.seconds: list[float] = []
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--serve", name, json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(job["threads"])},
            stderr=subprocess.DEVNULL,
        )

    def take_turn(self) -> dict[str, Any] | None:
        """Figures of one pass; None where the arm is missing or failed, most likely for want of memory."""
        with contextlib.suppress(BrokenPipeError):
            print(file=self.process.stdin, flush=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = json.loads(line) if line else {"missing": "it failed"}
        return None if "missing" in found else found

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def race(names: Sequence[str], job: dict[str, Any], rounds: int) -> dict[str, Process]:
    """The arms' figures at one length; those that are missing are left out."""
    processes = {name: Process(name, job) for name in names}
    try:
        running = {name: process for name, process in processes.items() if process.take_turn() is not None}
        for number in range(rounds):
            for process in list(running.values())[:: 1 if number % 2 else -1]:
                found = process.take_turn()
                if found is None:
                    del running[process.name]
                else:
                    process.seconds.append(found["seconds"])
                    process.memory = found["memory"]
        return running
    finally:
        for process in processes.values():
            process.end()


def ratio(slower: Process, quicker: Process) -> float:
    return statistics.median(one / other for one, other in zip(slower.seconds, quicker.seconds, strict=True))


def report(results: dict[int, dict[str, Process]]) -> None:
    """Milliseconds, MB, and how many times as long the peers take, in Markdown."""
    shown = [name for name in ARMS if any(name in of_length for of_length in results.values())]
    figures: dict[str, Callable[[Process], str]] = {
        "milliseconds": lambda process: f"{1e3 * statistics.median(process.seconds):.1f}",
        "MB": lambda process: f"{process.memory:.0f}",
    }
    for title, figure in figures.items():
        print(f"\n| tokens, {title} | {' | '.join(shown)} |\n|{'---|' * (len(shown) + 1)}")
        for length, found in results.items():
            cells = (figure(found[name]) if name in found else "" for name in shown)
            print(f"| {length:,} | {' | '.join(cells)} |")
    pairs = [(ours, peer) for ours, peers in PEERS.items() for peer in peers if peer in shown and ours in shown]
    print(f"\n| tokens, times as long | {' | '.join(f'{peer} ÷ {ours}' for ours, peer in pairs)} |")
    print(f"|{'---|' * (len(pairs) + 1)}")
    for length, found in results.items():
        both = ((found.get(peer), found.get(ours)) for ours, peer in pairs)
        print(f"| {length:,} | {' | '.join(f'{ratio(a, b):.2f}' if a and b else '' for a, b in both)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--longest", type=float, default=4.0)
    parser.add_argument("--serve", nargs=2, metavar=("ARM", "JOB"), help="be one arm (for its own use)")
    options = parser.parse_args()
    if options.serve:
        return serve(options.serve[0], json.loads(options.serve[1]))
    names, results = options.arms, {}
    job = {key: getattr(options, key) for key in ("heads", "head_width", "dtype", "device", "threads")}
    for length in sorted(options.lengths):
        results[length] = race(names, job | {"length": length}, options.rounds)
        names = [
            name for name, process in results[length].items() if statistics.median(process.seconds) <= options.longest
        ]
    report(results)
    return None


if __name__ == "__main__":
    main()
