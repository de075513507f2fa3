"""Copying: the mixture of the paper, and a translator that says what it never learned to say."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from vaak.nn.config import EncoderDecoderConfig
from vaak.nn.models import Copying, EncoderDecoderModel

VOCAB = 7


def test_probabilities_are_those_of_the_paper():
    torch.manual_seed(0)
    copying = Copying(6, 4).double()
    logits, hidden = torch.randn(2, 3, VOCAB, dtype=torch.double), torch.randn(2, 3, 6, dtype=torch.double)
    memory, source = torch.randn(2, 5, 4, dtype=torch.double), torch.tensor([[1, 2, 2, 0, 0], [3, 3, 3, 4, 6]])
    mask = torch.tensor([[True, True, True, False, False], [True] * 5])
    found = copying(logits, hidden, memory, source, mask).exp()
    for row in range(2):
        for time in range(3):
            state = hidden[row, time]
            scores = torch.stack([copying.query(state) @ copying.key(place) / 6**0.5 for place in memory[row]])
            attention = scores[mask[row]].softmax(0)
            generate = copying.generates(state).sigmoid()
            expected = generate * logits[row, time].softmax(0)
            for place, token in enumerate(source[row][mask[row]].tolist()):
                expected[token] = expected[token] + (1 - generate[0]) * attention[place]
            torch.testing.assert_close(found[row, time], expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 3, dtype=torch.double))


def test_gradients_are_right_also_where_nothing_points():
    torch.manual_seed(1)
    copying = Copying(4, 4).double()
    source, mask = torch.tensor([[1, 2, 0]]), torch.tensor([[True, True, False]])
    inputs = [torch.randn(1, 2, width, dtype=torch.double, requires_grad=True) for width in (VOCAB, 4)]
    memory = torch.randn(1, 3, 4, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(lambda *some: copying(*some, source, mask), (*inputs, memory), fast_mode=True)
    copying.float()(inputs[0].float(), inputs[1].float(), memory.float(), source, mask).sum().backward()
    gradients = [parameter.grad for parameter in copying.parameters()]
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients)


def trained(*, copy_source: bool) -> float:
    """How many tokens of unseen sequences are right, of a model that learned to repeat others in 150 steps."""
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.0}
    config = EncoderDecoderConfig.model_validate({"encoder": sizes, "decoder": sizes, "copy_source": copy_source})
    model = EncoderDecoderModel(config, 40, 40)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    mask = torch.ones(32, 6, dtype=torch.bool)
    for _ in range(150):
        source = torch.randint(2, 20, (32, 6))  # half of the tokens are never seen
        loss = F.cross_entropy(model(source, mask, F.pad(source, (1, -1), value=1)).flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    source = torch.randint(20, 40, (32, 6))
    return float((model(source, mask, F.pad(source, (1, -1), value=1)).argmax(-1) == source).float().mean())


@pytest.mark.slow
def test_what_was_never_seen_in_training_can_be_said():
    assert trained(copy_source=True) > 0.3 > 0.05 > trained(copy_source=False)
