"""Before training: ``vaak doctor``, ``vaak find-batch-size``, ``vaak find-lr`` and ``vaak check-gradients``.

What can be trained on this machine, the largest batch that fits and the fastest, a learning rate, and whether
autograd's gradients are right.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.arguments import (
    Arguments,
    AsJson,
    OptionalArguments,
    TrainingDevice,
    TrustCode,
    files_and_overrides,
    load_trusted,
)
from vaak.core.errors import UserError

if TYPE_CHECKING:
    from vaak.runs.preflight.doctor import DoctorFinding
    from vaak.runs.preflight.largest_batch import Trial


def doctor(
    arguments: OptionalArguments = None,
    device: TrainingDevice = None,
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Prepare the YAML's data and read every example of every split once.")
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Import each package, too: some are installed but broken (10 seconds).")
    ] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Check the machine, the packages and what can be trained here; with a YAML, check that configuration.

    The exit code is 2 if something makes training impossible (a problem), otherwise 0, even with warnings.

    Example: vaak doctor configs/quickstart.yml --read-data
    """
    from vaak.runs.preflight.doctor import examine

    findings: list[DoctorFinding] = []
    given = files_and_overrides(arguments or [], device if arguments else None)
    for finding in examine(*given, trust_code=trust_code, read_data=read_data, thorough=thorough):
        if not as_json:
            if not findings or findings[-1].about != finding.about:
                print(("" if not findings else "\n") + finding.about)
            # At once: the next finding may take seconds.
            print(f"  {finding.mark:<8} {finding.name:<14} {finding.said}", flush=True)
            if finding.advice:
                print(f"           {'':<14} → {finding.advice}", flush=True)
        findings.append(finding)
    problems = [finding for finding in findings if finding.mark == "problem"]
    if as_json:
        report = {"trains": not problems, "findings": [asdict(finding) for finding in findings]}
        print(json.dumps(report, ensure_ascii=False))
    elif problems:
        what = "this configuration can't be trained here" if arguments else "nothing can be trained here"
        print(f"\n{len(problems)} problem(s): {what}")
    else:
        print("\nno problems: it can be trained here" if arguments else "\nno problems: models can be trained here")
    if problems:
        raise typer.Exit(2)


BYTES_BY_UNIT = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


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
    files, overrides = files_and_overrides(arguments, device)
    most = None if limit is None else parse_bytes(limit)
    loaded = load_trusted(files, overrides, trust_code)

    from vaak.runs.preflight.largest_batch import find_batch_size as find

    advice = find(loaded, most, up_to, tell=(lambda trial: None) if as_json else print_trial)
    if as_json:
        print(json.dumps(advice.as_json(), ensure_ascii=False))
        return
    largest = next(trial for trial in advice.trials if trial.size == advice.largest)
    beyond = "; this is all the data" if largest.holds_all else ""
    print(
        f"largest {advice.option} that fits in {advice.available_bytes / BYTES_BY_UNIT['G']:.2f} "
        f"GiB: {advice.largest}{beyond}"
    )
    print(f"fastest: {advice.quickest}")
    steps = f"training.gradient_accumulation_steps={advice.accumulation}"
    print(f"for the effective batch of the configuration: {advice.option}={advice.size} {steps}")


def parse_bytes(text: str) -> int:
    """The bytes that ``8GiB``, ``8G``, ``500MB`` or ``1e9`` mean; units are powers of 1,024. Raises UserError.

    >>> parse_bytes("8GiB") == parse_bytes("8g") == 8 * 2**30
    True
    """

    found = re.fullmatch(r"([\d.]+(?:e\d+)?) *([KMGT]?)(?:i?B)?", text, re.IGNORECASE)
    try:
        size = float(found[1]) * BYTES_BY_UNIT[found[2].upper()] if found else 0
    except ValueError:
        size = 0
    if not found or size < 1:
        raise UserError(f"--limit is {text!r}; expected a size such as 8GiB or 500MiB")
    return int(size)


def print_trial(trial: Trial) -> None:
    """Print the size, rows, memory and rates (or problem) of a trial in one line."""
    memory = f"{trial.memory_bytes / BYTES_BY_UNIT['G']:.2f} GiB"
    rates = "  ".join(f"{rate:,.0f} {unit}s/s" for unit, rate in trial.per_second.items())
    print(f"{trial.size:>8}  {trial.rows:>6} rows  {memory:>10}  {trial.problem or rates}", flush=True)


def find_lr(
    arguments: Arguments,
    num_iter: Annotated[int, typer.Option(help="Number of steps, each with a larger learning rate.")] = 100,
    start_lr: Annotated[float, typer.Option(help="The first learning rate.")] = 1e-7,
    end_lr: Annotated[float, typer.Option(help="The last learning rate; the test stops when the loss explodes.")] = 1.0,
    linear: Annotated[
        bool, typer.Option("--linear", help="Increase the learning rate linearly, not exponentially.")
    ] = False,
    output: Annotated[Path, typer.Option("--output", "--output-dir", help="Folder for the curve and the plot.")] = Path(
        "find-lr"
    ),
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Run a learning-rate range test of a configuration; print and write the curve, and how sure its suggestion is.

    Example: vaak find-lr configs/quickstart.yml training.optimizer=adamw --num-iter 60
    """
    from vaak.cli.output import create_folder

    files, overrides = files_and_overrides(arguments, device)
    loaded = load_trusted(files, overrides, trust_code)

    from vaak.report.tables import learning_rate_lines, short_rate
    from vaak.study.lr_finder import find_lr as tested
    from vaak.study.lr_finder import write_curve
    from vaak.study.lr_range import RateRange, assess_certainty

    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    rates = RateRange(start_lr, end_lr, num_iter, "linear" if linear else "exponential")
    # A folder that can't be made is reported before the test, not after it.
    create_folder(output)
    curve = tested(loaded, rates)
    written = write_curve(curve, output)
    if as_json:
        print(json.dumps({**curve.as_json(), "files": [str(path) for path in written]}))
        return
    print("\n".join(learning_rate_lines(curve.as_json())))
    end = "the loss exploded" if curve.diverged else "the end of the range"
    print(f"{len(curve.losses)} steps until {end}; {', '.join(map(str, written))}")
    if not any(path.suffix == ".png" for path in written):
        print("no plot was drawn: this requires matplotlib (pip install 'vaak[plot]')", file=sys.stderr)
    certainty = assess_certainty(curve)
    suggestion = certainty.suggestion
    if suggestion is None:
        print("no suggestion: the loss never fell clearly; raise --end-lr or --num-iter")
        print("".join(f"warning: {doubt}\n" for doubt in certainty.doubts), end="")
    else:
        print("\n".join(certainty.lines()))
        print(f"training.optimizer.lr={short_rate(suggestion)}")


def check_gradients(
    arguments: Arguments,
    tolerance: Annotated[float, typer.Option(help="The largest relative error that is accepted.")] = 1e-3,
    rows: Annotated[int, typer.Option(min=1, help="Number of rows of the batch.")] = 4,
    device: TrainingDevice = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Compare all gradients with finite differences in float64 on the first batch; exit code 2 if one is wrong.

    Example: vaak check-gradients configs/quickstart.yml
    """

    if not 0 < tolerance < 1:
        raise UserError(f"--tolerance {tolerance:g}: expected a relative error above 0 and below 1, such as 1e-3")
    files, overrides = files_and_overrides(arguments, device)
    loaded = load_trusted(files, overrides, trust_code)

    from vaak.study.gradient_check import check_first_batch

    checks = check_first_batch(loaded, rows, tolerance)
    wrong = [check for check in checks if not check.is_right]
    if as_json:
        print(json.dumps([{**asdict(check), "error": check.error} for check in checks]))
    else:
        width = max(len(check.name) for check in checks)
        print(f"{'parameter':<{width}}  {'norm':>10}  {'autograd':>11}  {'differences':>11}  {'error':>7}")
        for check in checks:
            slopes = f"{check.autograd:>11.4e}  {check.finite_differences:>11.4e}"
            verdict = "" if check.is_right else "  wrong"
            print(f"{check.name:<{width}}  {check.norm:>10.4e}  {slopes}  {check.error:>7.0e}{verdict}")
    if wrong:
        names = ", ".join(check.name for check in wrong[:5]) + (", …" if len(wrong) > 5 else "")
        raise UserError(
            f"gradients of {len(wrong)} of {len(checks)} parameters disagree with finite differences: {names}; check "
            "the backward pass of the modules that use them"
        )
