"""Checkpoints for your own training loop, with the interface of the TTS trainer's ``checkpoint_manager.py``.

    save_checkpoint(model, optimizer, scheduler, epoch, loss, config, "checkpoints", scaler)
    checkpoint = load_checkpoint(find_latest_checkpoint("checkpoints"), model, optimizer, scheduler, scaler)
    start_epoch = checkpoint.state["epoch"] + 1

They are folders in the engine's format, whole or not at all, verified, without pickle; the number in a folder's name is
the epoch's. From a run's own checkpoint, ``load_checkpoint`` restores the model alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from vaak.core.errors import CheckpointError, UserError
from vaak.engine.checkpoint import files
from vaak.engine.snapshot import Snapshot, copy_to_cpu, load_weights, model_tensors

DEFAULT_FOLDER = "checkpoints"
"""Where checkpoints go if neither a folder nor a configuration with ``checkpoint_dir`` says it."""
PARTS_KEY = "parts"


class Stateful(Protocol):
    """A schedule, a gradient scaler, or whatever else has a state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> Any: ...


def save_checkpoint(  # noqa: PLR0913 (the original's)
    model: nn.Module | str | PathLike[str],
    optimizer: Optimizer | Snapshot | None = None,
    scheduler: Stateful | None = None,
    epoch: int = 0,
    loss: float | Tensor | None = None,
    *others: Any,
    config: Any = None,
    output_dir: str | PathLike[str] | None = None,
    scaler: Stateful | None = None,
    **how: Any,
) -> Path:
    """Write a checkpoint of a loop and return its folder; one of the same epoch is replaced.

    After ``loss`` may come the configuration (a dictionary or a data class), the folder, and the gradient scaler, in
    any order. The folder is the configuration's ``checkpoint_dir`` if none is given, or else ``checkpoints``.

    ``save_checkpoint(folder, snapshot)`` is the engine's. Raises UserError for what a checkpoint can't hold, and
    CheckpointError if it can't be written.
    """
    if not isinstance(model, nn.Module):
        if not isinstance(optimizer, Snapshot):
            raise UserError("expected save_checkpoint(model, optimizer, scheduler, epoch, loss, …)")
        return files.save_checkpoint(Path(model), optimizer, **how)
    if isinstance(optimizer, Snapshot) or how:
        raise UserError(f"save_checkpoint of a model doesn't take {', '.join(how) or 'a snapshot'}")
    config, output_dir, scaler = _sort_others(others, config, output_dir, scaler)
    options = _config_values(config)
    tensors: dict[str, Tensor] = {}
    parts = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    packed = {name: pack(part.state_dict(), name, tensors) for name, part in parts.items() if part is not None}
    state = {
        "position": {"step": int(epoch), "epoch": int(epoch)},
        "epoch": int(epoch),
        "loss": None if loss is None else float(loss),
        "config": options,
        PARTS_KEY: packed,
    }
    folder = output_dir or (options or {}).get("checkpoint_dir") or DEFAULT_FOLDER
    weights = copy_to_cpu(model_tensors(model))
    return files.save_checkpoint(Path(folder), Snapshot(int(epoch), weights, copy_to_cpu(tensors), state))


def load_checkpoint(
    path: str | PathLike[str],
    model: nn.Module | None = None,
    optimizer: Optimizer | None = None,
    scheduler: Stateful | None = None,
    scaler: Stateful | None = None,
    **how: Any,
) -> Snapshot:
    """Restore a checkpoint, or the best or newest one in a folder, into the given objects, and return it.

    ``state`` of the result has ``epoch``, ``loss`` and ``config``. ``how`` are the engine's own arguments.

    Raises CheckpointError if it is missing, damaged, of another model, or lacks what is to be restored.
    """
    place = files.resolve_checkpoint(Path(path))
    snapshot = files.load_checkpoint(place, **how)
    packed = snapshot.state.get(PARTS_KEY, {})
    wanted = {"optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    missing = [name for name, part in wanted.items() if part is not None and name not in packed]
    if missing:
        reason = (
            "it was saved without" if PARTS_KEY in snapshot.state else "a run's checkpoint is resumed by --resume auto"
        )
        raise CheckpointError(f"{place} has no {' and '.join(missing)} for a loop of your own: {reason}")
    if model is not None:
        load_weights(model, snapshot.model, place)
    for name, part in wanted.items():
        if part is not None:
            part.load_state_dict(unpack(packed[name], snapshot.optimizer))
    return snapshot


def _sort_others(
    others: tuple[Any, ...], config: Any, output_dir: Any, scaler: Any
) -> tuple[Any, str | PathLike[str] | None, Stateful | None]:
    """The configuration, the folder and the scaler among arguments without names, by what they are."""
    given = {"config": config, "output_dir": output_dir, "scaler": scaler}
    for one in others:
        if isinstance(one, str | PathLike):
            name = "output_dir"
        else:
            name = "scaler" if hasattr(one, "state_dict") and hasattr(one, "update") else "config"
        if given[name] is not None:
            raise UserError(f"save_checkpoint was given two values for {name}")
        given[name] = one
    return given["config"], given["output_dir"], given["scaler"]


def _config_values(config: Any) -> dict[str, Any] | None:
    """The values of a configuration as JSON has them."""
    if config is None:
        return None
    if dataclasses.is_dataclass(config) and not isinstance(config, type):
        values: Any = dataclasses.asdict(config)
    else:
        values = config if isinstance(config, Mapping) else getattr(config, "__dict__", config)
    if not isinstance(values, Mapping):
        raise UserError(f"a checkpoint's config is a dictionary or a data class, not {type(config).__name__}")
    return {str(name): _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """A value of a configuration: paths, devices and whatever else JSON hasn't become text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, PathLike):
        return fspath(value)
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def pack(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """Return a state as JSON, and put its tensors into ``tensors``, by their place in it.

    >>> import torch
    >>> found = {}
    >>> pack({"lr": 0.1, 0: {"exp_avg": torch.ones(2)}}, "optimizer", found)
    {'pairs': [['lr', 0.1], [0, {'pairs': [['exp_avg', {'tensor': 'optimizer.0.exp_avg'}]]}]]}
    >>> list(found)
    ['optimizer.0.exp_avg']

    Raises UserError for what neither JSON nor a tensor can hold.
    """
    if isinstance(value, Tensor):
        tensors[place] = value.detach()
        return {"tensor": place}
    if isinstance(value, Mapping):
        return {"pairs": [[key, pack(one, f"{place}.{key}", tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [pack(one, f"{place}.{number}", tensors) for number, one in enumerate(value)]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise UserError(f"{place} is of type {type(value).__name__}, which a checkpoint can't hold: no pickle is written")


def unpack(packed: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return the state that ``pack`` was given."""
    if not isinstance(packed, dict):
        return packed
    [(kind, content)] = packed.items()
    if kind == "tensor":
        return tensors[content].clone()
    if kind == "pairs":
        return {key: unpack(one, tensors) for key, one in content}
    return {"list": list, "tuple": tuple}[kind](unpack(one, tensors) for one in content)


__all__ = ["load_checkpoint", "save_checkpoint"]
