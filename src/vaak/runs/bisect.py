"""Two runs that should be the same and aren't: the first step where they differ, and the first value in it.

A step is a function of the state before it and of its number. So logs and checkpoints show up to which step two runs
are certainly the same. From there the steps of both are recomputed, each with its own data, options, code and number of
threads, and all values that a step computes are compared, in the order of their computation:

    examples, batch, draws, forward (module by module), loss, gradient (parameter by parameter), update

Where both give the same results again, the runs' records are compared with these. A run that differs from its own steps
was changed by something else (a bit of memory, a file), or computed under other conditions than here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vaak.config.changes import changes_between
from vaak.config.optimization import UPDATE_CONDITIONS
from vaak.config.trust import CODE, HASHES
from vaak.config.yaml.text import flow_text, read_yaml
from vaak.core.errors import UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import read_json
from vaak.engine.checkpoint.conditions import differences
from vaak.engine.checkpoint.files import list_checkpoints, load_checkpoint, read_state
from vaak.engine.checkpoint.names import listed_files, parse_step, step_folder
from vaak.engine.distributed.exchange import hash_value
from vaak.engine.distributed.launcher import INTEGERS, canonical, weights_fingerprint
from vaak.engine.inspection import ROOT, tensors_in
from vaak.engine.precision import keeping_kernels
from vaak.engine.snapshot import TENSORS, Snapshot
from vaak.engine.trainer import Trainer
from vaak.engine.training_data import StepData
from vaak.runs.folder.directory import holds_a_run
from vaak.runs.folder.sessions import find_step_configuration
from vaak.runs.open_run import resolve_run
from vaak.runs.replay import (
    NOT_COMPARED,
    ReplayAgreement,
    approaching,
    iterate_forwards,
    load_step,
    require_one_way,
    take_steps_before,
)

DIFFERENCE_KINDS = ("data", "code", "versions", "hardware", "options")
"""Respects in which two runs may differ."""
NOTHING_DIFFERS = "data, code, versions, hardware and options are the same"
KIND_OF_CONDITION = {
    **dict.fromkeys(("vaak", "code"), "code"),
    **dict.fromkeys(("python", "torch", "numpy", "packages"), "versions"),
    **dict.fromkeys(("device", "driver", "cudnn", "nccl", "nccl settings"), "hardware"),
    **dict.fromkeys(("cpu capability", "processor", "instructions", *UPDATE_CONDITIONS), "hardware"),
}
"""All other conditions are options."""


@dataclass(frozen=True)
class Seen:
    """A value of a step: a hash of its bits, and how it is shown."""

    fingerprint: str
    shown: str


Trace = dict[tuple[str, str], Seen]
"""All values of a step by stage and name, in the order in which they are computed."""


@dataclass(frozen=True)
class Bounds:
    """Records of two runs about the same steps, compared.

    ``differs`` is the first step with a difference, which ``what`` describes; None without one. ``same`` is the newest
    step before it whose checkpoints are the same, 0 for the start. ``compared`` describes the records compared.
    """

    same: int
    differs: int | None
    what: str
    compared: str


@dataclass
class Retaken:
    """Recomputed steps of a run: a hash of the values of each, and the values of the last one.

    ``departure`` is the first step for which the run recorded other values, with these. ``conditions`` are those that
    differ here from the run's, ``reference`` is that of a user's own task.
    """

    hashes: dict[int, int] = field(default_factory=dict)
    step: int = 0
    trace: Trace = field(default_factory=dict)
    departure: tuple[int, str] | None = None
    conditions: list[str] = field(default_factory=list)
    reference: str | None = None

    def add(self, step: int, trace: Trace) -> None:
        """Note what a step gave."""
        values = sorted((stage, name, seen.fingerprint) for (stage, name), seen in trace.items())
        self.step, self.trace, self.hashes[step] = step, trace, hash_value(values)


def bisect_runs(one: Path, other: Path, *, device: str | None = None, trust_code: bool = False) -> dict[str, Any]:
    """Find the first step where two runs differ, the first value in it, and what else differs; return JSON.

    ``step`` is None if all records of both are the same. Nothing is written into the runs. ``device`` None is each
    run's own. User code is executed only with ``trust_code``. Raises UserError if a path isn't a run, or its steps
    can't be recomputed.
    """
    runs = [resolve_run(path) for path in (one, other)]
    for directory in runs:
        if not holds_a_run(directory):
            raise UserError(f"{directory} has not started to train, so there is nothing to compare")
    if runs[0].resolve() == runs[1].resolve():
        raise UserError(f"{one} and {other} are the same run: give two")
    bounds = find_bounds(runs)
    found = {"runs": [str(run) for run in runs], "same_until": bounds.same, "recorded": bounds.what or None}
    if bounds.differs is None:
        return found | {"step": None, "sentence": f"the same: {bounds.compared}"}
    # The first run goes up to the bound; the second stops where its values aren't the first's.
    first = _retake(runs[0], bounds, device, trust_code)
    second = _retake(runs[1], bounds, device, trust_code, first)
    # The first went on past the step that differs, and kept no values of it: those of all steps would take much memory.
    # So take its steps again, only up to there.
    if first.step > second.step:
        first = _retake(runs[0], replace(bounds, differs=second.step), device, trust_code)
    differing = differing_kinds(runs, bounds.differs, first.reference)
    kinds = [f"{kind} ({'; '.join(lines)})" for kind, lines in differing.items() if lines]
    around = f"the runs differ in {', '.join(kinds)}" if kinds else NOTHING_DIFFERS
    step, stage, name, values = _verdict(runs, bounds, first, second)
    shown = f" ({values[0]} and {values[1]})" if values else ""
    where = f"step {step} differs first, in " if step else "they begin differently, in "
    return found | {
        "step": step,
        "stage": stage,
        "name": name,
        "values": values,
        "differing": differing,
        "conditions_here": [first.conditions, second.conditions],
        "sentence": f"{where}{stage}: {name}{shown}; {around}",
    }


def _verdict(
    runs: Sequence[Path], bounds: Bounds, first: Retaken, second: Retaken
) -> tuple[int, str, str, tuple[str, str] | None]:
    """Return the first step that differs, the stage, the name of the value and, where there are two, both as shown."""
    if (key := first_difference(first.trace, second.trace)) is not None:
        one, other = (taken.trace[key].shown if key in taken.trace else "nothing" for taken in (first, second))
        return second.step, *key, (one, other)
    again = f"the steps {bounds.same + 1} to {bounds.differs} of both, recomputed, are the same"
    # Recomputed, both runs are the same, so at least one of them has records that its own steps don't give.
    departures = [(*one.departure, run) for one, run in zip((first, second), runs, strict=True) if one.departure]
    if departures:
        step, what, run = min(departures)
        return step, "what was written down", f"{what}, and {run} isn't what its own steps give: {again}", None
    assert bounds.differs is not None
    return bounds.differs, "what was written down", f"{bounds.what}; {again}", None


def first_difference(one: Trace, other: Trace) -> tuple[str, str] | None:
    """Return the first value, by stage and name, that isn't the same in both; None if all are."""
    nothing = Seen("", "")
    keys = [*one, *(key for key in other if key not in one)]
    return next((key for key in keys if one.get(key, nothing).fingerprint != other.get(key, nothing).fingerprint), None)


def find_bounds(runs: Sequence[Path]) -> Bounds:
    """Compare what two runs wrote down of the same steps: records of the log, then checkpoints until one differs."""
    first, second = (
        {(str(record.get("kind")), record["step"], record.get("scheduled")): record for record in records}
        for records in map(ReplayAgreement.records, runs)
    )
    shared = [key for key in first if key in second]
    found = [(key[1], what) for key in shared if (what := _differing_value(first[key], second[key])) is not None]
    saved = [{path.name: path for path in list_checkpoints(run / "checkpoints")} for run in runs]
    names = sorted(saved[0].keys() & saved[1].keys())
    same = [0]
    for name in names:
        # Manifests have the hashes of files, so tensors are read only where these differ; then the tensors decide.
        paths, tensors = [own[name] for own in saved], {f"{part}.safetensors" for part in TENSORS}
        hashes = [{file: entry for file, entry in listed_files(path).items() if file in tensors} for path in paths]
        step, what = parse_step(paths[0]) or 0, None
        if hashes[0] != hashes[1]:
            what = differing_tensor(*(_collect_tensors(load_checkpoint(path)) for path in paths))
        if what is not None:
            found.append((step, f"the checkpoint {name}: {what}"))
            break
        same.append(step)
    if not found:
        last = max([*same, *(step for _, step, _ in shared)])
        return Bounds(last, None, "", f"{len(shared)} records and {len(names)} checkpoints, until step {last}")
    differs, what = min(found, key=lambda one: one[0])
    return Bounds(max(step for step in same if step < differs), differs, what, "")


def _differing_value(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """Return the first figure that two records both have and that differs, in words."""
    for name in one:
        if name in other and name not in NOT_COMPARED and one[name] != other[name]:
            return f"{name} of the {one['kind']} is {one[name]} and {other[name]}"
    return None


def _collect_tensors(snapshot: Snapshot) -> dict[str, Tensor]:
    return {f"{part} {name}": tensor for part in TENSORS for name, tensor in getattr(snapshot, part).items()}


def differing_tensor(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> str | None:
    """Return the first tensor that isn't the same to the bit in both, and how many of its values aren't, in words.

    >>> differing_tensor({"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([1.0, -2.0])})
    'w, 1 of 2 values: number 1 is 2 and -2 (bit 31)'
    """
    for name in [*one, *(name for name in other if name not in one)]:
        ours, theirs = one.get(name), other.get(name)
        if ours is None or theirs is None:
            return f"{name}, which one of them hasn't"
        if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            return f"{name}, whose shape or type is another"
        flat = [tensor.contiguous().reshape(-1) for tensor in (ours, theirs)]
        bits = [tensor.view(INTEGERS.get(tensor.dtype.itemsize, torch.int64)) for tensor in flat]
        places = (bits[0] != bits[1]).nonzero()
        if len(places):
            place = int(places[0])
            values = " and ".join(f"{tensor[place].item():.9g}" for tensor in flat)
            # Python's xor of a negative and a positive integer is negative: the mask keeps the bits of the type. A
            # single flipped bit points to memory or a disk rather than to arithmetic.
            flipped = (int(bits[0][place]) ^ int(bits[1][place])) & (2 ** (8 * bits[0].itemsize) - 1)
            bit = f" (bit {flipped.bit_length() - 1})" if flipped.bit_count() == 1 else ""
            return f"{name}, {len(places)} of {len(bits[0])} values: number {place} is {values}{bit}"
    return None


def _retake(
    directory: Path, bounds: Bounds, device: str | None, trust_code: bool, other: Retaken | None = None
) -> Retaken:
    """Take the steps of a run again from where both are the same, until what differs, or is other than ``other``."""
    found, last = Retaken(), bounds.differs
    assert last is not None
    recorded = dict(_state_around(directory, last).get("conditions") or {})
    with contextlib.ExitStack() as stack:
        stack.enter_context(keeping_kernels())
        # Sums are added in an order that depends on the number of threads, and their bits depend on the order.
        torch.set_num_threads(recorded.get("threads") or torch.get_num_threads())
        begun = approaching(directory, bounds.same + 1, device=device, trust_code=trust_code)
        trainer, steps, agreement, _ = stack.enter_context(begun)
        found.reference = trainer.task.reference
        require_one_way(directory, bounds.same + 1, last, found.reference or "")
        found.conditions = [
            f"{name}: {then} then, {now} now" for name, then, now in differences(recorded, trainer.conditions())
        ]
        found.add(bounds.same, _trace_of_state(trainer))
        for step in range(bounds.same + 1, last + 1):
            # After the first step that differs, all later ones do, too.
            if other is not None and other.hashes[found.step] != found.hashes[found.step]:
                break
            data = take_steps_before(step, trainer, steps, agreement)
            found.add(step, traced_step(trainer, data, agreement))
            if found.departure is None and (what := _departure(trainer, directory, agreement, step)) is not None:
                found.departure = step, what
    return found


def _departure(trainer: Trainer, directory: Path, agreement: ReplayAgreement, step: int) -> str | None:
    """Return the first difference between a run's record of a step and the recomputed step."""
    for record in agreement.records(trainer.directory):
        before = agreement.logged_as(record)
        if record["step"] == step and before is not None and (what := _differing_value(before, record)) is not None:
            return f"{what} when it is computed again"
    saved = load_step(directory, step)
    if saved is None:
        return None
    what = differing_tensor(_collect_tensors(saved), _collect_tensors(trainer.state.snapshot()))
    return None if what is None else f"the checkpoint's {what} when it is computed again"


def traced_step(trainer: Trainer, data: StepData, agreement: ReplayAgreement) -> Trace:
    """Take a step, and return all its values.

    Outputs of modules are those of a forward pass before it, which has the same draws.
    """
    trace: Trace = {}
    batches = [(f"microbatch {one.address.number}", one.batch) for one in data.microbatches]
    for where, batch in batches:
        _note(trace, "examples", where, None if batch is None else batch.indices)
    for where, batch in batches:
        for name, tensor in ({} if batch is None else batch.tensors).items():
            _note(trace, "batch", f"{name}, {where}", tensor)
        _note(trace, "batch", f"counts, {where}", None if batch is None else batch.totals())
    # Outputs first, then the step: its update changes the weights that outputs come from.
    for objective, forward, chunk in iterate_forwards(trainer, data):
        where = f"microbatch {chunk.number}" + (f", chunk {chunk.index}" if chunk.num_chunks > 1 else "")
        where += f", objective {objective.name}" if objective.name else ""
        key = draw_key(Purpose.MODEL, forward.seed, data.step, chunk.number, chunk.index)
        _note(trace, "draws", f"seed of {where}", key)
        with _noting_outputs(trace, trainer.model, where):
            terms = forward.terms(data.step, chunk)
        for name, term in terms.items():
            _note(trace, "loss", f"{name}, {where}", term.total)
    with _noting_gradients(trace, trainer.model):
        report = trainer.take_step(data)
    agreement.notify(report)
    _note(trace, "gradient", "norm of all", torch.as_tensor(report.gradient_norm))
    _note(trace, "update", "learning rates", trainer.learning_rates())
    _note(trace, "update", "skipped", report.skipped)
    for (_, name), seen in _trace_of_state(trainer).items():
        trace["update", name] = seen
    return trace


def _trace_of_state(trainer: Trainer) -> Trace:
    trace: Trace = {}
    for name, tensor in _collect_tensors(trainer.state.snapshot()).items():
        _note(trace, "state", name, tensor)
    return trace


def _note(trace: Trace, stage: str, name: str, value: Any) -> None:
    """Add a value to a trace; a name that comes again, such as a module called twice, is numbered."""
    times, key = 2, (stage, name)
    while key in trace:
        key, times = (stage, f"{name}, time {times}"), times + 1
    if not isinstance(value, Tensor):
        text = canonical(value)
        trace[key] = Seen(text, text if len(text) <= 60 else f"{text[:57]}...")
        return
    # A norm and a fingerprint are made of real numbers: real and imaginary parts count one by one.
    tensor = torch.view_as_real(value.detach().resolve_conj()) if value.is_complex() else value.detach()
    number = tensor.double().item() if tensor.numel() == 1 else float(torch.linalg.vector_norm(tensor.double()))
    shown = f"{number:.9g}" if tensor.numel() == 1 else f"norm {number:.9g}"
    trace[key] = Seen(weights_fingerprint({"": tensor}), shown)


@contextlib.contextmanager
def _noting_outputs(trace: Trace, model: nn.Module, where: str) -> Iterator[None]:
    """Within this context, what each module of a model gives is added to a trace, in the order in which they end."""

    def note(name: str, module: nn.Module, inputs: Any, output: Any) -> None:
        for tensor in tensors_in(output):
            if tensor.layout is torch.strided:
                _note(trace, "forward", f"output of {name or ROOT} ({type(module).__name__}), {where}", tensor)

    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.enter_context(module.register_forward_hook(partial(note, name)))
        yield


@contextlib.contextmanager
def _noting_gradients(trace: Trace, model: nn.Module) -> Iterator[None]:
    """Within this context, each gradient is added to a trace when a backward pass has come to it; sums so far."""

    def note(name: str, parameter: Tensor) -> None:
        if parameter.grad is not None:
            _note(trace, "gradient", name, parameter.grad)

    with contextlib.ExitStack() as hooks:
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                hooks.enter_context(parameter.register_post_accumulate_grad_hook(partial(note, name)))
        yield


def _state_around(directory: Path, step: int) -> dict[str, Any]:
    checkpoints = list_checkpoints(directory / "checkpoints")
    later = [path for path in checkpoints if path.name >= step_folder(step)]
    for path in (*later, *reversed(checkpoints)):
        with contextlib.suppress(OSError, ValueError):
            return dict(read_state(path))
    return {}


def differing_kinds(runs: Sequence[Path], step: int, reference: str | None = None) -> dict[str, list[str]]:
    """Return the differences of two runs at a step, a line for each, by kind; lists are empty if there are none."""
    found: dict[str, list[str]] = {kind: [] for kind in DIFFERENCE_KINDS}
    states = [_state_around(run, step) for run in runs]
    for name, said in (("data", "other training data"), ("plan", "other batches")):
        if states[0].get(name) != states[1].get(name):
            found["data"].append(said)
    one, other = (state.get("conditions") or {} for state in states)
    for name in one:
        for part, before, after in differences({name: one[name]}, {name: other.get(name)}):
            found[KIND_OF_CONDITION.get(name, "options")].append(f"{part} {before} and {after}")
    hashes = [_hash_user_code(run) for run in runs]
    changed = sorted(name for name in hashes[0].keys() | hashes[1].keys() if hashes[0].get(name) != hashes[1].get(name))
    found["code"] += [f"{CODE}/{name}" for name in changed]
    values = [read_yaml(find_step_configuration(run, max(step, 1))) for run in runs]
    changes = changes_between(values[0], values[1], reference)
    # Options that may change freely on resume change no numbers.
    found["options"] += [
        f"{change.key} {flow_text(change.before)} and {flow_text(change.after)}"
        for change in changes
        if change.resume_class != "free"
    ]
    return found


def _hash_user_code(directory: Path) -> dict[str, str]:
    try:
        return {str(name): str(value) for name, value in read_json(directory / CODE / HASHES).items()}
    except (OSError, ValueError, AttributeError):
        return {}
