"""What the annotations of ``forward`` say of shapes is what networks are called with, and give."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import pytest
import torch
from torch import Tensor, nn

from vaak.nn.config import DecoderConfig, EncoderDecoderConfig, StackConfig, TokenStackConfig
from vaak.nn.models import EncoderDecoderModel, TransformerModel

SMALL: dict[str, Any] = {"d_model": 12, "num_layers": 2, "num_heads": 2}
TOKENS = torch.arange(15).view(3, 5)
MASK = torch.tensor([[True] * 5, [True] * 3 + [False] * 2, [True] * 4 + [False]])


def shape_of(annotation: Any) -> str | None:
    """The shape that an annotation has, None where it has none."""
    for kind in (annotation, *get_args(annotation)):
        if get_origin(kind) is Annotated:
            return str(get_args(kind)[1])
    return None


def compare(said: str, tensor: Tensor, sizes: dict[str, int]) -> None:
    """Raise AssertionError where a tensor doesn't have the documented shape; ``sizes`` are those of this call."""
    names, shape = said.split(), list(tensor.shape)
    if names[0].startswith("*"):
        names, shape = names[1:], shape[len(shape) - len(names) + 1 :]
    assert len(names) == len(shape), (said, tensor.shape)
    for name, size in zip(names, shape, strict=True):
        if not (name.startswith("#") and size == 1):
            assert sizes.setdefault(name.lstrip("#"), size) == size, (said, tensor.shape, sizes)


@pytest.fixture
def compared() -> Iterator[set[str]]:
    """The classes whose calls are compared with their annotations, from now on."""
    seen: set[str] = set()

    def after(module: nn.Module, arguments: Any, named: dict[str, Any], result: Any) -> None:
        hints = get_type_hints(type(module).forward, include_extras=True)
        given = inspect.signature(type(module).forward).bind(module, *arguments, **named).arguments
        sizes: dict[str, int] = {}
        for name, value in (*given.items(), ("return", result)):
            said = shape_of(hints.get(name))
            if said is not None and isinstance(value, Tensor) and not (name == "return" and "select" in given):
                compare(said, value, sizes)
                seen.add(type(module).__name__)

    handle = nn.modules.module.register_module_forward_hook(after, with_kwargs=True)
    yield seen
    handle.remove()
    nn.modules.module._global_forward_hooks_with_kwargs.pop(handle.id, None)  # which torch 2.13 forgets to remove


@pytest.mark.parametrize("position_type", ["rotary", "sinusoidal", "learned", "alibi", "convolutional"])
@pytest.mark.parametrize("norm_type", ["layernorm", "rmsnorm", "scalenorm"])
def test_a_decoders_calls_have_the_shapes_that_are_written(compared: set[str], position_type: str, norm_type: str):
    config = StackConfig(**SMALL, position_type=position_type, norm_type=norm_type, feed_forward_type="gelu")
    TransformerModel(config, 20, causal=True, max_length=8)(TOKENS, documents=torch.where(MASK, 0, -1))
    assert {"TransformerModel", "TransformerStack", "Block", "Attention"} <= compared


def test_a_translators_calls_have_the_shapes_that_are_written(compared: set[str]):
    config = EncoderDecoderConfig(
        encoder=TokenStackConfig(**SMALL),
        decoder=DecoderConfig(**{**SMALL, "d_model": 16}),
        copy_source=True,
        share_embeddings=False,
    )
    EncoderDecoderModel(config, 20, 20)(TOKENS, MASK, TOKENS[:, :4])
    assert {"EncoderDecoderModel", "Copying", "Attention", "RMSNorm"} <= compared


def test_a_wrong_shape_would_be_seen(compared: set[str]):
    with pytest.raises(AssertionError, match="batch time d_model"):
        compare("batch time d_model", torch.zeros(2, 3, 4), {"time": 4})
