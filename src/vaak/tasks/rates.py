"""Usual learning rates by how a model begins, for ``vaak init`` to write and ``vaak config check`` to compare with.

    scratch     all weights are drawn                       a recipe's, by width (docs/configuration.md)
    whole       a pretrained base, all weights trained      ten times less and below, with a warm-up: above, it forgets
    adapters    a frozen base with low-rank adapters        about ten times as much as whole

They are for AdamW; each task declares its own in its ``spec.py``. Those of small bases were measured, on few data
(benchmarks/pretrained.py; docs/lab has the study). The others are from the literature: Devlin et al. 2019 (BERT: 2e-5
to 5e-5); Raffel et al. 2020 (T5); Touvron et al. 2023 (Llama 2: 2e-5); Hu et al. 2021 and Dettmers et al. 2023 (LoRA,
QLoRA: 1e-4 to 2e-4); Gandhi 2022 (Whisper by Hugging Face: 1e-5), peft's example (Whisper with LoRA: 1e-3); Baevski et
al. 2020 (wav2vec 2.0).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import Any, NamedTuple

from vaak.config.tasks import CheckFinding, remark
from vaak.tasks.fetching import count_base_parameters, is_own_run


class UsualRates(NamedTuple):
    """The usual rates of AdamW for a pretrained base: all of it trained, or low-rank adapters of it.

    ``small`` are those of bases with at most ``SMALL_PARAMETERS``, where they are others.
    """

    whole: float
    adapters: float
    small: UsualRates | None = None


SMALL_PARAMETERS = 50_000_000
FACTOR = 5
"""A rate above this many times the usual one is high; for adapters, one below the usual by its square is low."""


def rate_findings(experiment: Any, usual_rates: UsualRates, key: str, adapted: bool) -> Iterator[CheckFinding]:
    """Yield a remark on a rate that a pretrained base, which the option ``key`` names, isn't usually trained at.

    ``adapted`` says whether the base is frozen, with low-rank adapters. Where other
    parts are frozen, the optimizer isn't Adam's kind, or the base is a run of Vaak's, of any size, nothing is known.
    """
    training = experiment.training
    optimizer, scheduler = training.optimizer, training.scheduler
    if optimizer.type not in ("adamw", "adam") or training.freeze or optimizer.groups:
        return
    base: str = reduce(getattr, key.split("."), experiment)
    if is_own_run(base):
        return
    rates = select_rates(usual_rates, base)
    usual = rates.adapters if adapted else rates.whole
    what = "a low-rank adapter of a pretrained base" if adapted else "a pretrained base, all of it trained,"
    if optimizer.lr > FACTOR * usual:
        why = "" if adapted else "; above, it forgets"
        yield remark(key, f"training.optimizer.lr is {optimizer.lr:g}; {what} usually learns at {usual:g}{why}")
    elif adapted and optimizer.lr < usual / FACTOR**2:
        yield remark(key, f"training.optimizer.lr is {optimizer.lr:g}; {what} usually learns at {usual:g}")
    elif not adapted and not (scheduler.warmup_steps or scheduler.warmup_ratio):
        yield remark(key, f"{what} usually begins with a warm-up; give training.scheduler.warmup_ratio, such as 0.1")


def select_rates(rates: UsualRates, base: str) -> UsualRates:
    """Return a task's usual rates for a base; one whose size isn't known has those of large ones."""
    is_small = 0 < count_base_parameters(base) <= SMALL_PARAMETERS
    return rates.small if is_small and rates.small is not None else rates
