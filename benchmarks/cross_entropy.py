"""Cross-entropy of a head over many classes, forward and backward: logits whole, or made some rows at a time.

    python benchmarks/cross_entropy.py [--sizes 1024x256x32000 ...] [--rounds 7] [--threads 1] [--ignored 0.0]

A size is tokens x width x classes. The ways take turns in one process, round after round, after a round that isn't
counted. A figure is processor time, which other processes disturb less; ratios are medians over rounds of two ways of
the same round, against *whole*, which is Vaak's with logits as one tensor. Memory is the most that a pass adds to what
the process held, gradients of the head and of the hidden states among it.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import os
import statistics
import time
from collections.abc import Callable

import torch
from long_recordings import most_added
from torch import Tensor
from torch.nn import functional as F

from vaak.nn.cross_entropy import CrossEntropy, HeadInputs, head_cross_entropy

SIZES = ["1024x128x8000", "1024x256x32000", "2048x512x32000", "1024x512x128000"]
Way = Callable[[HeadInputs, Tensor], Tensor]


def by_torch(head: HeadInputs, targets: Tensor) -> Tensor:
    return F.cross_entropy(head.logits().float(), targets, reduction="sum")


def whole(head: HeadInputs, targets: Tensor) -> Tensor:
    total: Tensor = CrossEntropy()(head.logits(), targets)
    return total


def chunked(head: HeadInputs, targets: Tensor) -> Tensor:
    return head_cross_entropy(head, targets)[0]


def with_z_loss(head: HeadInputs, targets: Tensor) -> Tensor:
    losses, squares = head_cross_entropy(head, targets, squares=True)
    return losses + 1e-4 * squares


WAYS: dict[str, Way] = {"whole": whole, "torch": by_torch, "chunked": chunked, "chunked, z_loss": with_z_loss}


def take_turns(size: str, bf16: bool, options: argparse.Namespace) -> dict[str, tuple[list[float], list[float]]]:
    """Processor seconds and MB of each way, round after round."""
    tokens, width, classes = map(int, size.split("x"))
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, width, generator=generator).requires_grad_()
    weight = (torch.randn(classes, width, generator=generator) / width**0.5).requires_grad_()
    targets = torch.randint(0, classes, (tokens,), generator=generator)
    targets[: round(options.ignored * tokens)] = -100
    found: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in WAYS}
    for number in range(options.rounds + 1):
        for name, way in WAYS.items() if number % 2 else reversed(WAYS.items()):
            hidden.grad = weight.grad = None
            ctypes.CDLL(None).malloc_trim(0)

            def work(way: Way = way) -> None:
                with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
                    total = way(HeadInputs(hidden, weight), targets)
                (total / tokens).backward()

            begun = time.process_time()
            added = most_added(work)[1]
            if number:
                found[name][0].append(time.process_time() - begun)
                found[name][1].append(added)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=SIZES, metavar="TOKENSxWIDTHxCLASSES")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--ignored", type=float, default=0.0, help="part of the targets that don't count")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"load {os.getloadavg()[0]:.1f}, {options.rounds} rounds, {options.threads} thread(s)\n")
    print("| tokens x width x classes | | ms | ÷ whole | MB | ÷ whole |\n|---|---|---|---|---|---|")
    for size in options.sizes:
        for bf16 in (False, True):
            found = take_turns(size, bf16, options)
            for name, measured in found.items():
                cells = []
                for figures, base, scale in zip(measured, found["whole"], (1000, 1), strict=True):
                    # At toy sizes nothing may have been added: then there is no ratio.
                    ratios = [one / other if other else math.nan for one, other in zip(figures, base, strict=True)]
                    ratio = statistics.median(ratios)
                    cells += [f"{scale * statistics.median(figures):.0f}", f"{ratio:.2f}"]
                print(f"| {size}{', bf16' if bf16 else ''} | {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
