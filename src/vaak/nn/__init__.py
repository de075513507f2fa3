"""Building blocks of networks: one idea per file, with its papers. No forward pass writes state.

Shapes stand at the arguments, as jaxtyping writes them: ``x: Float[Tensor, "batch time d_model"]``. ``Float``, ``Int``
and ``Bool`` are ``typing.Annotated`` here, which costs nothing at run time. ``#batch`` may be 1, ``*shape`` is any
number of dimensions, and a name is one size within a call (tests/unit/nn/test_shapes.py).

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
