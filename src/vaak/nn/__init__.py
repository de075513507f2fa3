"""Building blocks of networks: one idea and one paper per file. No forward pass writes state.

Those to use alone are ``vaak.nn.Attention``, ``vaak.nn.encoder`` and ``vaak.nn.decoder``.
"""

from typing import TYPE_CHECKING

from vaak.core.lazy import attributes

if TYPE_CHECKING:
    from vaak.nn.factory import ModelFactory
    from vaak.nn.parts import Attention, decoder, encoder

__all__ = ["Attention", "ModelFactory", "decoder", "encoder"]

_PARTS = "vaak.nn.parts"

__getattr__ = attributes(
    __name__,
    {"Attention": _PARTS, "ModelFactory": "vaak.nn.factory", "decoder": _PARTS, "encoder": _PARTS},
)
