"""Figures: how they are written for people (fractions in percent, all else with four decimals), and which is better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FRACTIONS = frozenset(
    (
        *("accuracy", "frame_accuracy", "token_accuracy", "exact_match", "acc", "acc_norm"),
        *("wer", "cer"),
        *("der", "miss", "false_alarm", "confusion", "jer", "speaker_ceiling"),
        *("voicing_error", "wer", "skipped_words", "repeated_words"),
        *("macro_f1", "micro_f1", "weighted_f1", "ece", "auroc", "fpr95"),
        *("recorded_wer", "recorded_skipped_words", "recorded_repeated_words"),
    )
)
"""Figures from 0 to 1 (an error rate may be above) that are read as percent."""
CHANCE = {"pairs_accuracy": 0.5}
"""The figure of a guess, where that doesn't depend on the data."""


def chance_of(name: str) -> float | None:
    """Return what a guess has of a figure, of a split or of a part, too; None where that depends on the data.

    >>> chance_of("val_pairs_accuracy"), chance_of("pairs_accuracy/gender"), chance_of("val_loss")
    (0.5, 0.5, None)
    """
    figure = name.partition("/")[0]
    return next((chance for known, chance in CHANCE.items() if f"_{figure}".endswith(f"_{known}")), None)


def chance_in_words(name: str) -> str:
    """What a guess has of a figure, as people read it; nothing where that isn't known."""
    chance = chance_of(name)
    return "" if chance is None else in_words(name, chance)


def in_words(name: str, value: float) -> str:
    """A figure's value as people read it.

    >>> in_words("val_accuracy", 0.0264), in_words("val_accuracy/number", 0.5), in_words("val_loss", 5.765)
    ('2.64 %', '50.00 %', '5.7650')
    """
    return f"{100 * value:.2f} %" if is_fraction(name) else f"{value:.4f}"


def percent(rate: float | None) -> float | None:
    """A rate in percent, as the tables have it.

    >>> percent(0.12346), percent(None)
    (12.35, None)
    """
    return None if rate is None else round(100 * rate, 2)


def percents(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that people read as percent, so.

    >>> percents({"test_loss": 2.0, "test_wer": 0.25})
    {'test_wer': 25.0}
    """
    return {name: round(100 * value, 2) for name, value in figures.items() if is_fraction(name)}


def is_fraction(name: str) -> bool:
    """Return whether a figure, whose name begins with its split, is read as percent.

    >>> is_fraction("val_accuracy/number"), is_fraction("val_rules/accuracy"), is_fraction("val_rules/loss")
    (True, True, False)
    """
    of_split, _, further = name.partition("/")
    if of_split in FRACTIONS or of_split.endswith(tuple(f"_{fraction}" for fraction in FRACTIONS)):
        return True
    return further.partition("/")[0] in FRACTIONS  # of one task of several


def improves(value: float, best: float | None, mode: str, min_delta: float = 0.0) -> bool:
    """Return whether ``value`` is better than ``best`` by more than ``min_delta``; any number is better than nothing.

    NaN never is.

    >>> improves(1.0, None, "min"), improves(1.0, 1.0, "min"), improves(2.0, 1.0, "max", min_delta=0.5)
    (True, False, True)
    """
    if value != value:
        return False
    if best is None:
        return True
    return value < best - min_delta if mode == "min" else value > best + min_delta
