"""What every stack keeps, whichever attention, norms, positions and layers it is put together from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from networks import assert_same, draw_weights, vectors
from vaak.nn.config import LINEAR, DecoderConfig, EncoderDecoderConfig, TokenStackConfig
from vaak.nn.decoding.cache import StackCache
from vaak.nn.feed_forward import FEED_FORWARDS
from vaak.nn.models import EncoderDecoderModel
from vaak.nn.stack import TransformerStack

WIDTH, LONGEST = 16, 12
POSITIONS = ("rotary", "sinusoidal", "sinusoidal_halves", "learned", "convolutional", "none", "alibi", "t5")


@st.composite
def shapes(draw: st.DrawFn, /, causal: bool | None = None, **fixed: Any) -> dict[str, Any]:
    """Options of a stack, and under ``causal`` whether it is a decoder."""
    causal = draw(st.booleans()) if causal is None else causal
    attention_type = draw(st.sampled_from(["softmax", "local", "causal_linear" if causal else "linear"]))
    options = {
        "causal": causal,
        "attention_type": attention_type,
        "window": draw(st.integers(1, 5)),
        "kernel_type": draw(st.sampled_from(["softmax", "relu"])),
        "num_features": draw(st.sampled_from([None, 8])),
        "position_type": draw(st.sampled_from(POSITIONS[:-2] if attention_type in LINEAR else POSITIONS)),
        "rope_scaling_type": draw(st.sampled_from(["linear", "ntk", "llama3", "yarn"])),
        "rope_scaling_factor": draw(st.sampled_from([1.0, 4.0])),
        "num_key_value_heads": draw(st.sampled_from([None, 2, 1])),
        "qk_norm": draw(st.booleans()),
        "scale_scores": draw(st.booleans()),
        "norm_type": draw(st.sampled_from(["layernorm", "rmsnorm", "scalenorm"])),
        "norm_placement": draw(st.sampled_from(["pre", "post", "sandwich"])),
        "feed_forward_type": draw(st.sampled_from(sorted(FEED_FORWARDS))),
        "bias": draw(st.booleans()),
    }
    if causal:
        options["cross_attention_type"] = draw(st.sampled_from([None, "softmax", "linear"]))
    return options | fixed


def load_config(options: dict[str, Any]) -> TokenStackConfig:
    kind: type[TokenStackConfig] = DecoderConfig if options["causal"] else TokenStackConfig
    sizes: dict[str, Any] = {"d_model": WIDTH, "num_heads": 4, "num_layers": 2, "d_ff": 2}
    return kind(**sizes, **{name: value for name, value in options.items() if name != "causal"})


def made(options: dict[str, Any], memory_width: int | None = None) -> TransformerStack:
    """A stack in float64 that isn't training, all of whose parts matter."""
    torch.manual_seed(0)
    stack = TransformerStack(
        load_config(options), causal=options["causal"], memory_width=memory_width, max_length=LONGEST
    )
    draw_weights(stack)
    return stack.double().eval()


lengths = st.integers(1, LONGEST)


@given(shapes(), lengths, st.integers(0, 4), st.integers(0, 4))
def test_padding_changes_nothing(options: dict[str, Any], length: int, left: int, right: int):
    stack, x = made(options), vectors(1, length, WIDTH)
    padded = torch.cat((vectors(1, left, WIDTH), x, 9 + vectors(1, right, WIDTH)), 1)
    documents = torch.tensor([[-1] * left + [0] * length + [-1] * right])
    rows, row_documents = torch.cat((padded, 2 * padded)), torch.cat((documents, torch.zeros_like(documents)))
    if stack.config.position_type == "learned":  # the second row has no padding
        rows, row_documents = padded, documents
    output = stack(rows, documents=row_documents)
    assert_same(output[:1, left : left + length], stack(x))
    assert output.isfinite().all()


@given(shapes(), st.lists(st.integers(1, 6), min_size=2, max_size=4), st.integers(0, 3))
def test_packed_documents_are_as_if_alone(options: dict[str, Any], sizes: list[int], padding: int):
    stack = made(options)
    apart = [vectors(1, size, WIDTH) * (number + 1) for number, size in enumerate(sizes)]
    documents = torch.tensor([[number for number, size in enumerate(sizes) for _ in range(size)] + [-1] * padding])
    packed = stack(torch.cat((*apart, vectors(1, padding, WIDTH)), 1), documents=documents)
    assert_same(packed[:, : sum(sizes)], torch.cat([stack(x) for x in apart], 1))


@given(shapes(causal=True), st.lists(st.integers(1, 4), min_size=2, max_size=3), st.data())
def test_pieces_through_a_cache_are_the_whole(options: dict[str, Any], sizes: list[int], data: st.DataObject):
    stack, x, memory = made(options, memory_width=10), vectors(3, sum(sizes), WIDTH), vectors(3, 5, 10)
    mask = torch.arange(5) < torch.tensor([[5], [2], [1]])
    documents: list[Tensor | None] = [None] * len(sizes)
    whole_documents = None
    if data.draw(st.booleans(), label="padded on the left"):
        begins = data.draw(st.lists(st.integers(0, sum(sizes) - 1), min_size=3, max_size=3))
        whole_documents = torch.where(torch.arange(sum(sizes)) < torch.tensor(begins)[:, None], -1, 0)
        documents = list(whole_documents.split(sizes, 1))
    whole = stack(x, documents=whole_documents, memory=memory, memory_mask=mask)

    cache, order = StackCache(stack.config.num_layers), torch.tensor([2, 0, 0])
    for number, (piece, own) in enumerate(zip(x.split(sizes, 1), documents, strict=True)):
        if number == 1:  # as beam search does
            cache.select(order)
        rows = order if number else torch.arange(3)
        own = None if own is None else own[rows]
        output = stack(piece[rows], documents=own, cache=cache, memory=memory[rows], memory_mask=mask[rows])
        assert_same(output, whole[rows].split(sizes, 1)[number])


@given(shapes(causal=True), st.integers(1, LONGEST - 1))
def test_a_causal_stack_never_sees_the_future(options: dict[str, Any], now: int):
    stack, x = made(options), vectors(2, LONGEST, WIDTH)
    changed = x.clone()
    changed[:, now:] += 5 * vectors(2, LONGEST - now, WIDTH)
    before, after = stack(x), stack(changed)
    assert_same(after[:, :now], before[:, :now])
    assert not torch.allclose(after[:, now:], before[:, now:])


@given(shapes(causal=False), st.integers(1, LONGEST - 1))
def test_an_encoder_sees_the_future(options: dict[str, Any], now: int):
    stack, x = made(options), vectors(2, LONGEST, WIDTH)
    changed = x.clone()
    changed[:, now:] += 5 * vectors(2, LONGEST - now, WIDTH)
    assert not torch.allclose(stack(changed)[:, now - 1], stack(x)[:, now - 1])


@given(shapes(), st.booleans())
def test_gradient_checkpointing_changes_no_bit_with_dropout_on(options: dict[str, Any], looks_across: bool):
    results = []
    for recompute in (False, "attention", True, "all"):
        stack = made(options | {"dropout": 0.2}, memory_width=10 if looks_across else None).train()
        stack.gradient_checkpointing = recompute
        memory = vectors(2, 4, 10) if looks_across else None
        torch.manual_seed(1)
        output = stack(vectors(2, 7, WIDTH), documents=torch.zeros(2, 7, dtype=torch.long), memory=memory)
        output.square().sum().backward()
        results.append([output, *(parameter.grad for parameter in stack.parameters())])
    for recomputed in results[1:]:
        assert all(torch.equal(*pair) for pair in zip(results[0], recomputed, strict=True))


@example(
    {
        "causal": False,
        "attention_type": "linear",
        "kernel_type": "relu",
        "num_key_value_heads": 1,
        "bias": True,
        "position_type": "sinusoidal",
        "norm_type": "scalenorm",
        "norm_placement": "sandwich",
        "feed_forward_type": "geglu",
        "scale_scores": False,
    },
    True,
)
@given(shapes(), st.booleans())
def test_every_parameter_has_a_gradient(options: dict[str, Any], looks_across: bool):
    stack = made(options, memory_width=10 if looks_across else None)
    memory = vectors(2, 4, 10) if looks_across else None
    output = stack(vectors(2, LONGEST, WIDTH), memory=memory)
    (output * vectors(2, LONGEST, WIDTH)).sum().backward()
    # A key's bias adds the same to all scores of a query. The few features of relu may be 0 for all that there is.
    may_be_flat = ("key.bias", "key.weight", "query.weight") if options["kernel_type"] == "relu" else ("key.bias",)
    for name, parameter in stack.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        if not name.endswith(may_be_flat) and parameter.numel() > 1:  # a lone scale is undone by a norm after the layer
            assert parameter.grad.any(), name


@given(shapes(), lengths)
def test_forward_writes_no_state(options: dict[str, Any], length: int):
    stack = made(options).train()
    before = {name: tensor.clone() for name, tensor in stack.state_dict().items()}
    stack(vectors(2, length, WIDTH))
    after = stack.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], tensor) for name, tensor in after.items())


@given(shapes(), lengths)
def test_lower_precisions_stay_close(options: dict[str, Any], length: int):
    stack, x = made(options), vectors(2, length, WIDTH)
    for parameter in stack.parameters():
        if parameter.ndim > 1:
            parameter.data /= 3  # at the size of trained weights' numbers
    documents = torch.zeros(2, length, dtype=torch.long)
    precise = stack(x, documents=documents)
    single = stack.float()(x.float(), documents=documents)
    assert single.dtype is torch.float32
    torch.testing.assert_close(single.double(), precise, rtol=1e-3, atol=1e-3)
    with torch.autocast("cpu", torch.bfloat16):
        half = stack(x.float(), documents=documents)
    error = (half.double() - precise).square().mean() / precise.square().mean()
    assert error < 0.05


translators = st.fixed_dictionaries(
    {
        "encoder": shapes(causal=False),
        "decoder": shapes(causal=True),
        "tie_embeddings": st.booleans(),
        "share_embeddings": st.booleans(),
        "copy_source": st.booleans(),
    }
)


def translator(options: dict[str, Any]) -> EncoderDecoderModel:
    sides = {side: load_config(options[side]) for side in ("encoder", "decoder")}
    torch.manual_seed(0)
    model = EncoderDecoderModel(
        EncoderDecoderConfig(**options | sides), 20, 20, max_source_length=LONGEST, max_target_length=LONGEST
    )
    draw_weights(model)
    return model.double().eval()


@given(translators, st.integers(1, 6), st.integers(1, 6), st.integers(0, 4), st.integers(0, 4))
def test_padding_of_either_side_changes_no_score(
    options: dict[str, Any], source_length: int, target_length: int, source_padding: int, target_padding: int
):
    model = translator(options)
    source, target = torch.randint(0, 20, (1, source_length)), torch.randint(0, 20, (1, target_length))
    expected = model(source, torch.ones_like(source, dtype=torch.bool), target)
    padded_source = F.pad(source, (0, source_padding), value=3).expand(2, -1)
    padded_target = F.pad(target, (0, target_padding), value=3).expand(2, -1)
    mask = torch.arange(source_length + source_padding) < torch.tensor([[source_length], [LONGEST]])
    output = model(padded_source, mask, padded_target)
    assert_same(output[:1, :target_length], expected)
    assert output.isfinite().all()


@given(translators, st.integers(1, LONGEST))
def test_decoding_token_by_token_is_teacher_forcing(options: dict[str, Any], target_length: int):
    model = translator(options)
    source, target = torch.randint(0, 20, (2, 5)), torch.randint(0, 20, (2, target_length))
    mask = torch.arange(5) < torch.tensor([[5], [3]])
    memory, cache = model.encode(source, mask), model.new_cache()
    steps = [model.decode(token, memory, mask, cache=cache) for token in target.split(1, 1)]
    assert_same(model.logits(torch.cat(steps, 1), source, memory, mask), model(source, mask, target))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("position_type", "attention_type"),
    [
        ("rotary", "softmax"),
        ("rotary", "causal_linear"),
        ("sinusoidal", "local"),
        ("learned", "causal_linear"),
        ("convolutional", "softmax"),
    ],
)
def test_compiled_is_the_same_to_rounding(attention_type: str, position_type: str):
    options = {"causal": True, "attention_type": attention_type, "position_type": position_type, "window": 3}
    stack, x = made(options, memory_width=10), vectors(2, LONGEST, WIDTH)
    memory, documents = vectors(2, 5, 10), torch.zeros(2, LONGEST, dtype=torch.long)
    torch.compiler.reset()
    results = []
    for network in (stack, torch.compile(stack)):
        output = network(x, documents=documents, memory=memory)
        towards = vectors(2, LONGEST, WIDTH)
        results.append([output, *torch.autograd.grad(output, list(stack.parameters()), towards)])
    for plain, compiled in zip(*results, strict=True):  # rotary positions are float32
        torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-5)
