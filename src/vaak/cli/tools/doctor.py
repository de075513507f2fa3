"""``vaak doctor``: what this machine has, and what can be trained on it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from vaak.cli.config import AsJson, OptionalArguments, TrainingDevice, TrustCode, files_and_overrides

if TYPE_CHECKING:
    from vaak.runs.doctor import DoctorFinding


def doctor(
    arguments: OptionalArguments = None,
    device: TrainingDevice = None,
    read_data: Annotated[
        bool, typer.Option("--read-data", help="Prepare the YAML's data and read every example of every split once.")
    ] = False,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Check the machine, the packages and what can be trained here; with a YAML, check that configuration.

    The exit code is 2 if something makes training impossible (a problem), otherwise 0, even with warnings.

    Example: vaak doctor configs/quickstart.yml --read-data
    """
    from vaak.runs.doctor import examine

    findings: list[DoctorFinding] = []
    given = files_and_overrides(arguments or [], device if arguments else None)
    for finding in examine(*given, trust_code=trust_code, read_data=read_data):
        if not as_json:
            if not findings or findings[-1].about != finding.about:
                print(("" if not findings else "\n") + finding.about)
            _print(finding)
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


def _print(finding: DoctorFinding) -> None:
    """A line, and one of advice below it."""
    print(f"  {finding.mark:<8} {finding.name:<14} {finding.said}", flush=True)
    if finding.advice:
        print(f"           {'':<14} → {finding.advice}", flush=True)
