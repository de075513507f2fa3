"""How weights begin: normal with a small deviation, and smaller where a layer adds to the residual stream.

Every block adds two outputs to the stream; dividing their deviation by sqrt(2 · num_layers) keeps the stream's variance
from growing with depth.

Source: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.3.
"""

from __future__ import annotations

from torch import nn

DEVIATION = 0.02
RESIDUAL_OUTPUTS = ("attention.output", "feed_forward.down")


def initialise(model: nn.Module, num_layers: int) -> None:
    """Draw every matrix and embedding anew, in the order of their names, from torch's default generator.

    So the weights are a function of the seed that the generator was given. Gains of norms stay one.
    """
    for name, module in sorted(model.named_modules()):
        if isinstance(module, nn.Linear | nn.Embedding):
            is_residual = name.endswith(RESIDUAL_OUTPUTS)
            deviation = DEVIATION / (2 * num_layers) ** 0.5 if is_residual else DEVIATION
            nn.init.normal_(module.weight, std=deviation)
