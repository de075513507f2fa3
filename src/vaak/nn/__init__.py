"""Building blocks of networks: one idea per file, with its papers. No forward pass writes state.

Those to use alone are ``vaak.nn.Attention``, ``vaak.nn.encoder`` and ``vaak.nn.decoder``.
"""

from typing import TYPE_CHECKING

from vaak.core.lazy import attributes

if TYPE_CHECKING:
    from vaak.nn.factory import Attention, ModelFactory, decoder, encoder

__all__ = ["Attention", "ModelFactory", "decoder", "encoder"]

_PARTS = "vaak.nn.factory"

__getattr__ = attributes(
    __name__,
    {"Attention": _PARTS, "ModelFactory": "vaak.nn.factory", "decoder": _PARTS, "encoder": _PARTS},
)
