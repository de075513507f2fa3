"""How weights begin: normal with a small deviation, and smaller where a layer adds to the residual stream.

    matrices, embeddings, learned positions, T5's numbers   normal, deviation 0.02
    outputs into the residual stream                        normal, deviation 0.02 / sqrt(n) for n of them in a stack
    kernels of convolutional positions                      normal, deviation 1 / sqrt(kernel size)
    kernels of feed-forward layers                          normal, deviation 1 / sqrt(width · kernel size)
    biases                                                  0
    gains of norms                                          1, of ScaleNorm sqrt(width)

A stack of L blocks adds n = 2 · L outputs to the stream (attention and feed-forward), a decoder that looks at an
encoder n = 3 · L, a Conformer n = 4 · L. Dividing their deviation by sqrt(n) keeps the stream's variance from growing
with depth. n is counted in the model, so the two sides of an encoder–decoder may differ in depth. The rule is the same
wherever the norms stand: after the sum (post), small outputs keep each norm close to the identity, and gradients from
vanishing; after the layer (sandwich), the norm takes the factor out again.

Sources: Radford et al. 2019, "Language Models are Unsupervised Multitask Learners" (GPT-2), section 2.3; Zhang, Titov
and Sennrich 2019, "Improving Deep Transformer with Depth-Scaled Initialization and Merged Attention" (post). Differs
from the second: one factor for all blocks, not one that grows with each.
"""

from __future__ import annotations

import re
from collections import Counter

from torch import nn

from vaak.nn.feed_forward import TimeConvolution
from vaak.nn.own_network import OwnNetwork
from vaak.nn.positional_encodings import ConvolutionalPositions

DEVIATION = 0.02
RESIDUAL_OUTPUTS = ("attention.output", "feed_forward.down", "convolution.output")
EXPERT = re.compile(r"feed_forward\.(?:experts\.\d+|shared)\.")
WIDENING = ("feed_forward.up", "feed_forward.gate")


def initialise(model: nn.Module) -> None:
    """Draw every weight again, in the order of the modules' names, from torch's default generator.

    So the weights are a function of the generator's random seed. Gains of norms don't change, nor do the weights of a
    user's network.
    """
    own = {id(part) for one in model.modules() if isinstance(one, OwnNetwork) for part in one.modules()}
    # by name, not by definition: a model built in another order draws the same weights
    modules = sorted((name, one) for name, one in model.named_modules() if id(one) not in own)
    layers = {_get_layer_name(name) for name, _ in modules}
    num_outputs = Counter(_get_stack_name(name) for name in layers if name.endswith(RESIDUAL_OUTPUTS))
    for path, module in modules:
        name = _get_layer_name(path)
        if isinstance(module, nn.Linear | nn.Embedding):
            # GPT-2: outputs that are added to the residual stream are scaled by their number, so its variance stays
            # bounded
            scale = num_outputs[_get_stack_name(name)] ** 0.5 if name.endswith(RESIDUAL_OUTPUTS) else 1.0
            nn.init.normal_(module.weight, std=DEVIATION / scale)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, ConvolutionalPositions):
            module.reset_parameters()
        elif isinstance(module, TimeConvolution) and name.endswith(WIDENING):
            nn.init.normal_(module.weight, std=module.weight[0].numel() ** -0.5)
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def _get_layer_name(name: str) -> str:
    """Return the layer that a module is, or, of experts, is one of: their outputs are weighed, and add up to one.

    >>> _get_layer_name("stack.blocks.3.feed_forward.experts.7.down")
    'stack.blocks.3.feed_forward.down'
    """
    return EXPERT.sub("feed_forward.", name)


def _get_stack_name(name: str) -> str:
    """Return the stack that a block's module is in: ``decoder.`` of ``decoder.blocks.3.cross_attention.output``."""
    return name.rpartition("blocks.")[0]
