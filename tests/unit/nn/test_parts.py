"""Parts used alone: attention honours masks and documents, whatever its type; mistakes are one line."""

import pytest
import torch

import vaak
from vaak.core.errors import UserError
from vaak.nn.attention import Attention as Layer
from vaak.nn.config import StackConfig
from vaak.nn.kernels.visibility import Visibility

TYPES = ("softmax", "local", "linear")
types = pytest.mark.parametrize("attention_type", TYPES)
both_ways = pytest.mark.parametrize("causal", [False, True])


def made(attention_type="softmax", **options):
    torch.manual_seed(0)
    return vaak.nn.Attention(16, 2, attention_type=attention_type, window=3, **options).double().eval()


def tokens(time=7):
    return torch.randn(2, time, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@types
@both_ways
@pytest.mark.parametrize("position_type", ["none", "rotary"])
def test_masked_tokens_change_nothing(attention_type, causal, position_type):
    layer, x, mask = made(attention_type, position_type=position_type), tokens(), torch.ones(2, 7, dtype=torch.bool)
    mask[:, 5:] = False
    expected = layer(x[:, :5], causal=causal)
    torch.testing.assert_close(layer(x, mask=mask, causal=causal)[:, :5], expected)
    assert not torch.allclose(layer(x, causal=False)[:, :5], expected)


@types
@both_ways
def test_a_gap_in_a_mask_is_not_seen(attention_type, causal):
    layer, x, mask = made(attention_type), tokens(5), torch.tensor([[True, True, False, True, True]] * 2)
    other = x.clone()
    other[:, 2] += 1
    kept = layer(x, mask=mask, causal=causal)[:, mask[0]]
    torch.testing.assert_close(layer(other, mask=mask, causal=causal)[:, mask[0]], kept)


@types
@both_ways
def test_documents_are_as_alone(attention_type, causal):
    layer, x = made(attention_type, position_type="rotary"), tokens()
    documents = torch.tensor([[0, 0, 0, 1, 1, 1, -1]] * 2)
    found = layer(x, documents=documents, causal=causal)
    torch.testing.assert_close(found[:, :3], layer(x[:, :3], causal=causal))
    torch.testing.assert_close(found[:, 3:6], layer(x[:, 3:6], causal=causal))
    masked = layer(x, documents=documents.clamp(min=1), mask=documents >= 0, causal=causal)
    torch.testing.assert_close(masked[:, :6], layer(x[:, :6], documents=documents[:, :6].clamp(min=1), causal=causal))


def test_alibi_is_added_to_scores_and_causal_hides():
    layer, x = made(position_type="alibi"), tokens()
    other = x.clone()
    other[:, 4:] += 1
    torch.testing.assert_close(layer(x, causal=True)[:, :4], layer(other, causal=True)[:, :4])
    plain = made()
    plain.load_state_dict(layer.state_dict())
    assert not torch.allclose(plain(x, causal=True)[:, 1:], layer(x, causal=True)[:, 1:])


def test_attention_to_a_memory():
    layer, x = made(memory_width=8), tokens()
    memory, mask = torch.randn(2, 4, 8, dtype=torch.float64), torch.tensor([[True, True, False, False]] * 2)
    torch.testing.assert_close(layer(x, memory=memory, mask=mask), layer(x, memory=memory[:, :2]))


def test_the_layer_itself_reads_the_documents_of_its_sight():
    config = StackConfig(d_model=16, num_heads=2, dropout=0.0)
    layer, x, documents = Layer(config, "softmax").double(), tokens(6), torch.tensor([[0, 0, 0, 1, 1, 1]] * 2)
    found = layer(x, Visibility(False, documents, documents))
    torch.testing.assert_close(found[:, :3], layer(x[:, :3], Visibility(False)))


def test_stacks():
    x, mask = tokens().float(), torch.arange(7) < torch.tensor([[5], [7]])
    encoder = vaak.nn.encoder(d_model=16, num_layers=1, num_heads=2).eval()
    torch.testing.assert_close(encoder(x, mask=mask)[:1, :5], encoder(x[:1, :5]))
    decoder = vaak.nn.decoder(memory_width=16, d_model=16, num_layers=1, num_heads=2).eval()
    assert decoder(x, memory=x, memory_mask=mask).shape == x.shape
    assert decoder.causal
    assert not encoder.causal


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: vaak.nn.Attention(15, 2), "attention: d_model (15) must be a multiple of num_heads (2)"),
        (lambda: vaak.nn.Attention(16, 2, head=3), "attention.head: Extra inputs are not permitted"),
        (lambda: vaak.nn.Attention(16, 2, position_type="learned"), "attention alone takes none, rotary, alibi"),
        (lambda: vaak.nn.Attention(16, 2, memory_width=8, position_type="rotary"), "attention alone takes none, and"),
        (lambda: vaak.nn.encoder(d_model=16, num_head=2), "model.num_head: Extra inputs are not permitted"),
        (lambda: made()(tokens(), memory=tokens(), causal=True), "takes no documents and is not causal"),
    ],
)
def test_mistakes_are_one_line(make, said):
    with pytest.raises(UserError) as caught:
        make()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
