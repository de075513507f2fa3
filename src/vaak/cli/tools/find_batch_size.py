"""``vaak find-batch-size``: the largest batch that fits in memory, and the fastest."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.config import Arguments, AsJson, TrainingDevice, TrustCode, files_and_overrides

if TYPE_CHECKING:
    from vaak.runs.batch_size.search import Advice
    from vaak.runs.batch_size.trials import Trial

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def find_batch_size(
    arguments: Arguments,
    limit: Annotated[
        str | None, typer.Option(help="Memory limit, such as 8GiB; default: all available memory.")
    ] = None,
    up_to: Annotated[int | None, typer.Option(min=1, help="The largest size to try; default: all the data.")] = None,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Train with batches of growing size; print the largest that fits and the fastest.

    Example: vaak find-batch-size configs/quickstart.yml --up-to 64
    """
    from vaak.config.load import load

    files, overrides = files_and_overrides(arguments, device)
    loaded = load(files, overrides, trust_code=trust_code)
    most = None if limit is None else bytes_of(limit)
    from vaak.runs.folder.user_code import demand_trust

    demand_trust(loaded)

    from vaak.runs.batch_size.search import find_batch_size as find

    advice = find(loaded, most, up_to, tell=(lambda trial: None) if as_json else print_trial)
    if as_json:
        print(json.dumps(advice.as_json(), ensure_ascii=False))
        return
    print_advice(advice)


def bytes_of(text: str) -> int:
    """The bytes that ``8GiB``, ``8G``, ``500MB`` or ``1e9`` mean; units are powers of 1,024. Raises UserError.

    >>> bytes_of("8GiB") == bytes_of("8g") == 8 * 2**30
    True
    """
    from vaak.core.errors import UserError

    found = re.fullmatch(r"([\d.]+(?:e\d+)?) *([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    try:
        size = float(found[1]) * UNITS[found[2].upper()] if found else 0
    except ValueError:
        size = 0
    if not found or size < 1:
        raise UserError(f"--limit is {text!r}; expected a size such as 8GiB or 500MiB")
    return int(size)


def print_trial(trial: Trial) -> None:
    """One line per size."""
    memory = f"{trial.memory_bytes / UNITS['G']:.2f} GiB"
    rates = "  ".join(f"{rate:,.0f} {unit}s/s" for unit, rate in trial.per_second.items())
    print(f"{trial.size:>8}  {trial.rows:>6} rows  {memory:>10}  {trial.problem or rates}", flush=True)


def print_advice(advice: Advice) -> None:
    """Print what was found, and the options to use."""
    largest = next(trial for trial in advice.trials if trial.size == advice.largest)
    beyond = "; this is all the data" if largest.holds_all else ""
    print(
        f"largest {advice.option} that fits in {advice.available_bytes / UNITS['G']:.2f} GiB: {advice.largest}{beyond}"
    )
    print(f"fastest: {advice.quickest}")
    steps = f"training.gradient_accumulation_steps={advice.accumulation}"
    print(f"for the effective batch of the configuration: {advice.option}={advice.size} {steps}")
