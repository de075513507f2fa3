"""The weights that a new run starts with: randomly initialised by its task, or another run's.

``training.checkpoint.init_except`` names what is not taken over: the head of a model that is to learn other classes.
"""

from __future__ import annotations

from pathlib import Path

from torch import nn

from vaak.config.training import CheckpointConfig
from vaak.core.errors import CheckpointError
from vaak.engine.checkpoint.files import load_checkpoint, load_weights, model_tensors, resolve_checkpoint
from vaak.engine.optim.freezing import pattern_of


def initialise(model: nn.Module, options: CheckpointConfig) -> None:
    """Copy the weights of ``options.init_from`` into the model, if any are asked for.

    Raises CheckpointError where they are from another model, and UserError for a pattern that matches nothing.
    """
    if options.init_from is None:
        return
    source, own = resolve_checkpoint(Path(options.init_from)), model_tensors(model)
    patterns = [pattern_of(match, own, "training.checkpoint.init_except") for match in options.init_except]
    drawn = {name: tensor for name, tensor in own.items() if any(one.search(name) for one in patterns)}
    found = load_checkpoint(source, weights_only=True).model
    kept = {name: tensor for name, tensor in found.items() if not any(one.search(name) for one in patterns)}
    try:
        load_weights(model, kept | drawn, source)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; training.checkpoint.init_except lists what to initialise from scratch"
        ) from None
