"""``vaak data check``: what is wrong with the data of a configuration, before anything is trained."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import typer

from vaak.cli.config import Arguments, AsJson, TrustCode, files_and_overrides


def check(arguments: Arguments, trust_code: TrustCode = False, as_json: AsJson = False) -> None:
    """Check the data of a configuration: read every example, and list what is wrong, by example.

    Found are examples that can't be read or have NaN, and what the task looks for: clipping, silence and gaps of audio.
    The exit code is 2 if there are problems, otherwise 0, even with warnings.

    Example: vaak data check configs/diarization/quickstart.yml
    """
    from vaak.config.load import load
    from vaak.runs.doctor.data_check import check_data

    files, overrides = files_and_overrides(arguments)
    loaded = load(files, overrides, trust_code=trust_code)
    for warning in loaded.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    splits: dict[str, int] = {}
    rows: list[dict[str, str]] = []
    for split in check_data(loaded):
        splits[split.name] = split.num_examples
        if not as_json:
            print(f"{split.name}: {split.num_examples:,} examples", flush=True)
        for finding in split.findings:
            rows.append({"split": split.name, **asdict(finding)})
            if not as_json:
                example = f"{finding.example}: " if finding.example else ""
                print(f"  {finding.mark:<8} {finding.kind:<12} {example}{finding.message}", flush=True)
    problems = sum(row["mark"] == "problem" for row in rows)
    if as_json:
        print(json.dumps({"usable": not problems, "splits": splits, "findings": rows}, ensure_ascii=False))
    else:
        print(f"{_number(problems, 'problem')}, {_number(len(rows) - problems, 'warning')}")
    if problems:
        raise typer.Exit(2)


def _number(number: int, of: str) -> str:
    return f"{number:,} {of}{'' if number == 1 else 's'}"
