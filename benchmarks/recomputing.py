"""What memory that is saved costs in time: activations that are computed again, and moments in 8 bits.

    python benchmarks/recomputing.py [--layers 12] [--width 256] [--rows 4] [--tokens 256] [--dropout 0.1] [--rounds 7]

For each value of training.performance.gradient_checkpointing: processor time of a forward and a backward pass on one
thread, in turns with the others, as a multiple of ``none``'s; and the bytes of all storages that live together at the
peak, without weights. For optimizers: nanoseconds of an update a weight, of one matrix.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

from vaak.engine.dry_pass import LiveStorages
from vaak.engine.optim.adamw_8bit import AdamW8bit
from vaak.nn.config import StackConfig
from vaak.nn.initialisation import initialise
from vaak.nn.stack import TransformerStack

LEVELS: dict[str, Any] = {"none": False, "attention": "attention", "block": True, "all": "all"}


def spent(work: Callable[[], object]) -> float:
    """Processor seconds of a call."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def run_pass(stack: TransformerStack, x: torch.Tensor, level: Any) -> None:
    stack.gradient_checkpointing = level
    stack(x).square().sum().backward()


def measure_levels(asked: argparse.Namespace) -> None:
    """Print the table of activations."""
    sizes = StackConfig(d_model=asked.width, num_layers=asked.layers, num_heads=4, dropout=asked.dropout)
    stack = TransformerStack(sizes, causal=True)
    initialise(stack)
    x = torch.randn(asked.rows, asked.tokens, asked.width)
    passes = {name: partial(run_pass, stack, x, level) for name, level in LEVELS.items()}
    passes["none"]()
    gradients = [one.grad for one in stack.parameters() if one.grad is not None]
    times: dict[str, list[float]] = {name: [] for name in passes}
    for _ in range(asked.rounds):
        for name, work in passes.items():
            times[name].append(spent(work))
    print("| gradient_checkpointing | time | peak, MiB |\n|---|---|---|")
    for name, work in passes.items():
        with LiveStorages([x, *stack.parameters(), *gradients]) as storages:
            work()
        ratio = statistics.median(own / base for own, base in zip(times[name], times["none"], strict=True))
        print(f"| {name} | {ratio:.2f} | {storages.peak / 2**20:,.0f} |")


def measure_updates(asked: argparse.Namespace) -> None:
    """Print the table of updates."""
    shape = (4 * asked.width, 4 * asked.width)
    rules: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "AdamW, fused": partial(torch.optim.AdamW, fused=True),
        "adamw_8bit": AdamW8bit,
    }
    optimizers = {}
    for name, rule in rules.items():
        weight = nn.Parameter(torch.randn(shape))
        weight.grad = torch.randn(shape)
        optimizers[name] = rule([weight], lr=1e-3)
        optimizers[name].step()
    times: dict[str, list[float]] = {name: [] for name in rules}
    for _ in range(asked.rounds):
        for name, optimizer in optimizers.items():
            times[name].append(spent(optimizer.step))
    print("\n| update | ns a weight |\n|---|---|")
    for name, own in times.items():
        print(f"| {name} | {statistics.median(own) / (shape[0] * shape[1]) * 1e9:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 12), ("width", 256), ("rows", 4), ("tokens", 256), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    measure_levels(asked)
    measure_updates(asked)


if __name__ == "__main__":
    main()
