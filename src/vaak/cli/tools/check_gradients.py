"""``vaak check-gradients``: check autograd's gradients."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer

from vaak.cli.config import Arguments, AsJson, TrainingDevice, TrustCode, files_and_overrides


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
    from vaak.config.load import load
    from vaak.core.errors import UserError

    if not 0 < tolerance < 1:
        raise UserError(f"--tolerance {tolerance:g}: expected a relative error above 0 and below 1, such as 1e-3")
    files, overrides = files_and_overrides(arguments, device)
    loaded = load(files, overrides, trust_code=trust_code)
    from vaak.runs.folder.user_code import demand_trust

    demand_trust(loaded)

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
