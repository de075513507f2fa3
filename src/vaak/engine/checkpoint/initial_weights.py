"""The weights that a new run starts with: randomly initialised by its task, or another run's.

``training.checkpoint.init_except`` names what is not taken over: the head of a model that is to learn other classes.
``init_rename`` gives the other run's parameters the names that they have in this model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from vaak.config.training import CheckpointConfig
from vaak.core.errors import CheckpointError, UserError
from vaak.engine.checkpoint.files import load_checkpoint, load_weights, model_tensors, resolve_checkpoint
from vaak.engine.optim.freezing import pattern_of
from vaak.nn.lora import is_of_lora, without_lora

RENAME = "training.checkpoint.init_rename"


def initialise(model: nn.Module, options: CheckpointConfig) -> None:
    """Copy the weights of ``options.init_from`` into the model, if any are asked for.

    Raises CheckpointError where they are from another model, and UserError for a pattern that matches nothing.
    """
    if options.init_from is None:
        return
    source, own = resolve_checkpoint(Path(options.init_from)), model_tensors(model)
    patterns = [pattern_of(match, own, "training.checkpoint.init_except") for match in options.init_except]
    found = without_lora(_renamed(load_checkpoint(source, weights_only=True).model, options.init_rename), own)
    added = {name for name in own if is_of_lora(name) and name not in found}
    drawn = {name: one for name, one in own.items() if name in added or any(each.search(name) for each in patterns)}
    kept = {name: tensor for name, tensor in found.items() if not any(one.search(name) for one in patterns)}
    try:
        load_weights(model, kept | drawn, source)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; training.checkpoint.init_except lists what to initialise from scratch"
        ) from None


def _renamed(weights: Mapping[str, Tensor], rules: Mapping[str, str]) -> dict[str, Tensor]:
    """The weights under the names that the rules, one after another, make of theirs.

    Raises UserError for a rule that matches no name, and where two weights would have one name.
    """
    names = {name: name for name in weights}
    for match, replacement in rules.items():
        pattern = pattern_of(match, names.values(), RENAME)
        try:
            names = {name: pattern.sub(replacement, new) for name, new in names.items()}
        except (re.error, IndexError) as error:
            raise UserError(f"{RENAME}: {replacement!r} can't replace {match!r}: {error}") from error
    renamed = {new: weights[name] for name, new in names.items()}
    if len(renamed) < len(names):
        twice = next(new for new in renamed if list(names.values()).count(new) > 1)
        raise UserError(f"{RENAME} gives two parameters the name {twice}")
    return renamed
