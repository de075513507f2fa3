"""A run's past: ``vaak replay`` and ``vaak inspect`` show a step from inside, ``vaak verify`` checks many.

The first repeats a past step; the second shows the parameters, and how a step of training moves them. ``vaak bisect``
finds the step from which two runs differ.
"""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from vaak.cli.arguments import AsJson, TrustCode, run_argument
from vaak.report.tables import aligned

SHOWN_UPDATES = 10
NOT_RECORDED = ": not written down then"
WHOLE_WORDS: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}


def replay(
    run: Annotated[Path, run_argument("A run directory.")],
    step: Annotated[int, typer.Option(min=1, help="The optimizer step to rerun.")],
    debug: Annotated[
        bool, typer.Option("--debug", help="Show every module's output, every parameter's gradient and update.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "--output-dir", help="Write replay.json to this folder.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu; default: the run's own.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Rerun a step of a run from the checkpoint before it, and show its batch, losses and gradient.

    Nothing is written to the run directory; the run may be training meanwhile.

    Example: vaak replay runs/quickstart --step 2 --debug
    """
    from vaak.cli.output import create_folder
    from vaak.core.storage.files import write_json
    from vaak.runs.replay import replay_step

    create_folder(output)
    found = replay_step(run, step, debug=debug, device=device, trust_code=trust_code)
    if output is not None:
        write_json(output / "replay.json", found)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    for line in (*_batches(found), *_metrics(found), *_non_finite(found), *_debug(found), *_agreement(found)):
        print(line)


def _batches(found: dict[str, Any]) -> Iterator[str]:
    origin = found["from"] or "its beginning"
    yield f"step {found['step']} of {found['run']}, replayed from {origin}, epoch {found['epoch']}"
    for microbatch in found["microbatches"]:
        cut = f", in {microbatch['pieces']} chunks" if microbatch["pieces"] > 1 else ""
        yield f"microbatch {microbatch['number']}: {len(microbatch['rows'])} rows{cut}"
        for row in microbatch["rows"]:
            yield f"  example {_examples(row['examples'])}, length {row['length']}: {row['shown']}"
        for skip in microbatch["skipped"]:
            yield f"  skipped: example {skip['index']} ({skip['description']}): {skip['reason']}"


def _examples(examples: Sequence[dict[str, Any]]) -> str:
    return ", ".join(f"{example['index']} ({example['description']})" for example in examples)


def _metrics(found: dict[str, Any]) -> Iterator[str]:
    yield f"loss {_loss(found['loss'])}"
    for name, loss in found["losses"].items():
        unit = found["units"][name]
        yield f"  {name} {_loss(loss)} per {unit}, of {found['counts'].get(unit, 0):g}"
    clipped = f", clipped by {shown_number(found['clip_factor'])}" if found["clip_factor"] != 1.0 else ""
    yield f"gradient norm {shown_number(found['gradient_norm'])}{clipped}"
    scale = "" if found["loss_scale"] is None else f", loss scale {found['loss_scale']:g}"
    yield f"learning rate {shown_number(found['learning_rate'])}{scale}, {found['seconds']:.3f} s"
    if found["skipped"]:
        yield f"the weights were not updated: {found['skipped'].replace('_', ' ')}"


def _non_finite(found: dict[str, Any]) -> Iterator[str]:
    diagnosis = found["non_finite"]
    if diagnosis is None:
        return
    place = f" in {diagnosis['module']} ({diagnosis['where']})" if diagnosis["module"] else ""
    yield f"not finite first: {diagnosis['kind'] or 'the sum of all microbatches'}{place}"
    for name in ("parameter", "tensor", "loss"):
        if diagnosis.get(name) is not None:
            yield f"  {name} {diagnosis[name]}"
    if diagnosis["examples"]:
        yield f"  microbatch {diagnosis['microbatch']}, example {_examples(diagnosis['examples'])}"


def _debug(found: dict[str, Any]) -> Iterator[str]:
    for chunk in found.get("pieces", ()):
        losses = ", ".join(f"{name} {_loss(loss)}" for name, loss in chunk["losses"].items())
        yield f"microbatch {chunk['microbatch']}, chunk {chunk['piece']}: {losses}"
        rows: list[tuple[str, ...]] = [("module", "class", "shape", "mean", "std", "largest", "not finite")]
        for module in chunk["modules"]:
            numbers = (module["mean"], module["std"], module["absolute_maximum"], module["non_finite"])
            shape = "x".join(map(str, module["shape"]))
            rows.append((module["module"], module["kind"], shape, *map(shown_number, numbers)))
        yield from table(rows)
    parameters = found.get("parameters", ())
    if parameters:
        rows = [("parameter", "gradient", "weights", "update", "largest")]
        for parameter in parameters:
            norms = ("gradient_norm", "weight_norm", "update_norm", "largest_update")
            rows.append((parameter["name"], *(shown_number(parameter[name]) for name in norms)))
        yield from table(rows)
        largest = sorted(parameters, key=_relative_update, reverse=True)[:SHOWN_UPDATES]
        yield "largest updates, relative to the weights:"
        yield from (f"  {parameter['name']} {_relative_update(parameter):.2e}" for parameter in largest)


def _relative_update(parameter: dict[str, Any]) -> float:
    return float(parameter["update_norm"]) / (float(parameter["weight_norm"]) or 1.0)


def _agreement(found: dict[str, Any]) -> Iterator[str]:
    agreement = found["agreement"]
    between = f"between step {agreement['begun_at']} and {found['step']}"
    differences = agreement["differences"]
    if differences:
        yield f"{agreement['same']} logged values {between} are equal, {len(differences)} differ:"
        for one in differences:
            yield f"  step {one['step']} {one['name']}: {one['then']} then, {one['now']} now"
    elif agreement["same"]:
        yield f"{agreement['same']} logged values {between} are equal to the bit"
    else:
        yield f"the run logged nothing {between} to compare with"
    if agreement["same_weights"] is not None:
        same = "equal to" if agreement["same_weights"] else "different from"
        yield f"the weights after it are {same} those of the run's checkpoint, compared bit by bit"
    yield from (f"different here: {condition}" for condition in agreement["conditions"])


def _loss(value: float | str) -> str:
    """Format a loss with all significant digits of a 32-bit float, so that losses can be compared."""
    return value if isinstance(value, str) else f"{value:.9g}"


def shown_number(value: float | str | None) -> str:
    """Four digits; a dash for what isn't there."""
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"


def table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The lines of an indented table."""
    return (f"  {line}" for line in aligned(rows))


def inspect(
    run: Annotated[Path, run_argument("A run directory, or a checkpoint.")],
    device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu; default: the run's own.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Show a run's parameters, and its gradients, updates and dead units on a training batch.

    Example: vaak inspect runs/quickstart
    """
    from vaak.runs.replay import inspect_run

    found = inspect_run(run, device=device, trust_code=trust_code)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
        return
    header = ("parameter", "shape", "count", "device", "dtype", "trainable", "gradient", "update/weights")
    rows = [
        (
            *(one["name"], "x".join(map(str, one["shape"])) or "-", f"{one['count']:,}", one["device"], one["dtype"]),
            *("yes" if one["trainable"] else "no", shown_number(one["gradient_norm"])),
            shown_number(one["update_to_weight"]),
        )
        for one in found["parameters"]
    ]
    clipped = f", clipped by {found['clip_factor']:.4g}" if found["clip_factor"] != 1.0 else ""
    trainable = sum(one["count"] for one in found["parameters"] if one["trainable"])
    dead = [(one["module"], f"{len(one['dead'])} of {one['units']}") for one in found["dead_units"] if one["dead"]]
    lines = [
        f"{found['checkpoint']}, and a step at a learning rate of {found['learning_rate']:.4g}",
        *table([header, *rows]),
        f"{sum(one['count'] for one in found['parameters']):,} parameters, of which {trainable:,} are trainable",
        f"gradient norm {shown_number(found['gradient_norm'])}{clipped}; by layer:",
        *table([(one["module"], shown_number(one["gradient_norm"])) for one in found["layers"]]),
        "inputs that are 0 in the whole batch, by layer:" if dead else "no layer has an input that is 0 everywhere",
        *(table(dead) if dead else ()),
    ]
    print("\n".join(lines))


def verify(
    run: Annotated[Path, run_argument("A run directory.")],
    steps: Annotated[int, typer.Option(min=1, help="Number of logged steps to recompute, drawn at random.")] = 20,
    from_start: Annotated[bool, typer.Option("--from-start", help="Recompute every step of the run.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed for drawing them; default: a new, printed one.")] = None,
    tolerance: Annotated[
        float, typer.Option(min=0.0, help="Relative difference allowed if versions, device or threads differ.")
    ] = 1e-3,
    device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu; default: the run's own.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Recompute steps of a run and check them against its records, and all files against each other.

    Every file is recomputed, compared or named as not covered. Writes RUN/verification.json. Exit code 2 if
    anything differs from what the run says.

    Example: vaak verify runs/quickstart --steps 5
    """
    from vaak.runs.verify import verify_run, write_verification

    number = None if from_start else steps
    found = verify_run(run, number, seed=seed, tolerance=tolerance, device=device, trust_code=trust_code)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        _print_verification(found, from_start)
    # After the result is printed: a run on a disk that can't be written can be verified, too.
    try:
        write_verification(found)
    except OSError as error:
        print(f"not written to {run}: {error.strerror}", file=sys.stderr)
    if not found["verified"]:
        raise typer.Exit(2)


def _print_verification(found: dict[str, Any], from_start: bool) -> None:
    drawn = "every step" if from_start else f"{len(found['steps'])} steps drawn by seed {found['seed']}"
    print(f"{found['run']}: {drawn}, {found['steps_taken']} taken on the way")
    parts = [f"{some} of {every} logged {name}" for name, (some, every) in found["recomputed"].items()]
    parts[-1] = parts[-1].replace("logged ", "")
    more = "" if all(some == every for some, every in found["recomputed"].values()) else " (--from-start: all)"
    unknown = [line.partition(":")[0] for line in found["conditions"] if line.endswith(NOT_RECORDED)]
    lines = [
        f"recomputed: {', '.join(parts)}{more}",
        f"not covered: {'; '.join(found['not_covered'])}",
        *(f"not checked: {line}" for line in found["not_checked"]),
        *(f"different here: {line}" for line in found["conditions"] if not line.endswith(NOT_RECORDED)),
        *([f"perhaps different here, as{NOT_RECORDED[1:]}: {', '.join(unknown)}"] if unknown else []),
        *(f"differs: {line}" for line in found["findings"]),
    ]
    for line in lines:
        print(textwrap.fill(line, 80, initial_indent="  ", subsequent_indent="    ", **WHOLE_WORDS))
    verdict = "verified" if found["verified"] else "NOT VERIFIED"
    print(textwrap.fill(f"{verdict}: {found['sentence']}", 80, subsequent_indent="  ", **WHOLE_WORDS))


def bisect(
    one: Annotated[Path, run_argument("A run directory.", "RUN_A")],
    other: Annotated[Path, run_argument("Another run, which should be equal.", "RUN_B")],
    device: Annotated[str | None, typer.Option(help="auto, cuda, mps or cpu; default: each run's own.")] = None,
    trust_code: TrustCode = False,
    as_json: AsJson = False,
) -> None:
    """Find the first step and tensor in which two runs differ, and whether data, code or options differ.

    Logs and checkpoints show where the runs stop being equal; from there the steps of both are recomputed. Nothing is
    written. Exit code 2 if they differ.

    Example: vaak bisect runs/one runs/other
    """
    from vaak.runs.bisect import bisect_runs

    found = bisect_runs(one, other, device=device, trust_code=trust_code)
    if as_json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        if found["step"] is not None:
            print(f"the same until step {found['same_until']}; first in the records: {found['recorded']}")
            for run, conditions in zip(found["runs"], found["conditions_here"], strict=True):
                for line in conditions:
                    print(f"  different here than in {run}: {line}")
        print(found["sentence"])
    if found["step"] is not None:
        raise typer.Exit(2)
