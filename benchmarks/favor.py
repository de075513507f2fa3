"""How far FAVOR+'s features are from the softmax kernel they stand for, by their number.

    python benchmarks/favor.py [--head-width 64] [--deviation 0.35] [--draws 200] [--features 16 32 64 ...]

Queries and keys are Gaussian, each coordinate with this deviation. *Bias* is the mean over draws and pairs of the
relative error of a pair's kernel, with its standard error over draws; *error* the root of the mean squared relative
error. *Attention* is the error of the mixtures of 256 values, as part of the exact mixtures' own root mean square.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import torch
from torch import Tensor

from vaak.nn.kernels.random_features import RandomFeatures

NUM_TOKENS = 256


def tokens(head_width: int, deviation: float) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values, ``(token, head_width)``."""
    generator = torch.Generator().manual_seed(2**31)  # no draw has this key: it would draw the tokens themselves
    drawn = torch.randn(3, NUM_TOKENS, head_width, generator=generator, dtype=torch.float64)
    return drawn[0] * deviation, drawn[1] * deviation, drawn[2]


def errors(head_width: int, deviation: float, num_features: int, draws: int, orthogonal: bool) -> tuple[float, ...]:
    """Bias, its standard error, error, and the error of attention."""
    query, key, value = tokens(head_width, deviation)
    exact = (query @ key.mT * head_width**-0.5).exp()
    mixed = exact / exact.sum(-1, keepdim=True) @ value
    features = RandomFeatures(head_width, num_features, orthogonal=orthogonal).double()
    biases, squares, of_mixed = [], [], []
    for number in range(draws):
        features.redraw_features(number)
        kernel = features(query) @ features(key).mT
        relative = kernel / exact - 1
        biases.append(relative.mean())
        squares.append(relative.square().mean())
        of_mixed.append((kernel / kernel.sum(-1, keepdim=True) @ value - mixed).square().mean())
    bias = torch.stack(biases)
    attention = (torch.stack(of_mixed).mean() / mixed.square().mean()).sqrt()
    return (
        bias.mean().item(),
        (bias.std() / draws**0.5).item(),
        torch.stack(squares).mean().sqrt().item(),
        attention.item(),
    )


def table(head_width: int, deviation: float, num_features: Sequence[int], draws: int) -> str:
    """The figures of orthogonal and of independent features, in Markdown."""
    lines = [
        "| features | bias, orthogonal | bias, independent | error, orthogonal | error, independent | ratio | "
        "attention, orthogonal | attention, independent |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for count in num_features:
        both = [errors(head_width, deviation, count, draws, orthogonal) for orthogonal in (True, False)]
        biases = " | ".join(f"{bias:+.4f} ± {standard_error:.4f}" for bias, standard_error, _, _ in both)
        ratio = both[0][2] / both[1][2]
        lines.append(
            f"| {count} | {biases} | {both[0][2]:.3f} | {both[1][2]:.3f} | {ratio:.3f} | "
            f"{both[0][3]:.3f} | {both[1][3]:.3f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--head-width", type=int, default=64)
    parser.add_argument("--deviation", type=float, default=0.35)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--features", type=int, nargs="+", default=[2**power for power in range(4, 11)])
    options = parser.parse_args()
    print(table(options.head_width, options.deviation, options.features, options.draws))


if __name__ == "__main__":
    main()
