"""The network: padding changes no real frame, outputs have the frames and names they should, every part is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from small_diarizers import COLLATORS, NUM_BINS, SPEAKERS, small_diarizer
from vaak.nn.stack import TransformerStack
from vaak.tasks.diarization.labels import one_hot_sets
from vaak.tasks.diarization.model import (
    DiarizationModel,
    attractor_loss,
    centred,
    clustering_loss,
    frame_mask,
    lead_over_others,
    speaker_loss,
)

MODELS: dict[str, dict[str, Any]] = {
    "convolutional": {},
    "stacked": {"front_end": "stacked", "context": 2, "subsampling": 5, "upsampling": 1},
    "stacked, narrow": {"front_end": "stacked", "context": 1, "subsampling": 8, "upsampling": 4},
    "linear": {"attention_type": "linear"},
    "local": {"attention_type": "local", "window": 3},
    "attractors": {"head": "attractors", "max_speakers": 3},
    "stacked, no positions": {"front_end": "stacked", "subsampling": 10, "upsampling": 1, "position_type": "none"},
}
models = pytest.mark.parametrize("options", MODELS.values(), ids=MODELS)


def compute_features(*lengths: int, padding: float = 7.0) -> tuple[Tensor, Tensor]:
    """Features in float64 and their mask; padding is anything."""
    longest = max(lengths)
    features = torch.full((len(lengths), longest, NUM_BINS), padding, dtype=torch.float64)
    for row, length in enumerate(lengths):
        features[row, :length] = torch.from_numpy(np.random.default_rng(length).normal(size=(length, NUM_BINS)))
    return features, torch.arange(longest) < torch.tensor(lengths)[:, None]


@models
def test_padding_changes_no_real_frame(options: dict[str, Any]):
    model = small_diarizer(dtype=torch.float64, **options)
    step = model.config.output_subsampling
    together = model.infer(*compute_features(61, 40, 7, 1, 100))
    for row, length in enumerate((61, 40, 7, 1, 100)):
        alone_ = model.infer(*compute_features(length))
        frames = -(-length // step)
        assert alone_.probabilities.shape == (1, frames, model.config.max_speakers)
        torch.testing.assert_close(together.probabilities[row, :frames], alone_.probabilities[0], rtol=1e-5, atol=1e-6)
        assert not together.probabilities[row, frames:].any(), "somebody speaks in padding"
        assert together.embeddings is not None
        assert alone_.embeddings is not None
        torch.testing.assert_close(together.embeddings[row], alone_.embeddings[0], rtol=1e-5, atol=1e-5)


@models
def test_more_padding_changes_no_score_beyond_rounding(options: dict[str, Any]):
    """In float64, where rounding is 1e-16: an influence of the padding would be far larger."""
    model = small_diarizer(dtype=torch.float64, **options)
    features, mask = compute_features(50, 23)
    more, more_mask = F.pad(features, (0, 0, 0, 37), value=-3.0), F.pad(mask, (0, 37))
    short, long = model(features, mask), model(more, more_mask)
    for row, length in enumerate((50, 23)):
        frames = -(-length // model.config.output_subsampling)
        torch.testing.assert_close(short.logits[row, :frames], long.logits[row, :frames], rtol=1e-9, atol=1e-9)
    if short.existence is not None:
        torch.testing.assert_close(short.existence, long.existence, rtol=1e-9, atol=1e-9)


@given(length=st.integers(1, 60), subsampling=st.sampled_from([1, 2, 4, 6]), upsampling=st.sampled_from([1, 2]))
def test_there_is_an_output_for_every_few_frames(length: int, subsampling: int, upsampling: int):
    if subsampling % upsampling:
        return
    for front_end in ("convolutional", "stacked"):
        sizes: dict[str, Any] = {
            "num_layers": 1,
            "subsampling": subsampling,
            "upsampling": upsampling,
            "front_end": front_end,
        }
        model = small_diarizer(dtype=torch.float64, **sizes)
        assert model(*compute_features(length)).logits.shape == (1, -(-length // (subsampling // upsampling)), 2)


@models
def test_every_output_sees_its_own_frames(options: dict[str, Any]):
    """A change in the features of an output frame reaches it; a model whose attention sees nobody shows which do."""
    sizes = {name: value for name, value in options.items() if name not in ("head", "max_speakers")}
    model = small_diarizer(dtype=torch.float64, **sizes, num_convolutions=0)
    assert isinstance(model.encoder, TransformerStack)
    for block in model.encoder.blocks:
        torch.nn.init.zeros_(block.get_parameter("attention.output.weight"))
    features, mask = compute_features(40)
    model.front_end.register_forward_pre_hook(lambda _, inputs: (inputs[0].requires_grad_(), inputs[1]))
    step = model.config.subsampling
    for frame in (1, 2):
        seen = torch.autograd.grad(model.encoder(model.front_end(features, mask)[0]).sum((0, 2))[frame], features)[0]
        seen = torch.nonzero((seen - seen[:, -1:]).abs().sum((0, 2)) > 1e-12)[:, 0]  # the mean is of all frames
        middle = (float(seen.min()) + float(seen.max())) / 2
        assert middle == pytest.approx((frame + 0.5) * step - 0.5, abs=0.5), "labels are of the centre"


def test_a_level_and_a_channel_are_taken_out():
    features, mask = compute_features(30, 20)
    moved = features + torch.linspace(-3, 9, NUM_BINS)
    torch.testing.assert_close(centred(features, mask), centred(moved, mask))
    assert not centred(features, mask)[1, 20:].any()
    torch.testing.assert_close(centred(features, mask)[1, :20], features[1, :20] - features[1, :20].mean(0))


@pytest.mark.parametrize("label_type", COLLATORS)
def test_probabilities_are_some(label_type: str):
    model = small_diarizer(label_type)
    features, mask = compute_features(50, 23)
    found = model.infer(features.float(), mask)
    names = model.collator.names
    assert found.probabilities.shape == (2, 25, 2 if names is None else len(names))
    assert bool(((found.probabilities >= 0) & (found.probabilities <= 1 + 1e-6)).all())
    assert found.probabilities.dtype is torch.float32
    assert (found.embeddings is None) == (label_type in ("binary", "speaker_id"))
    if found.embeddings is not None:
        speaks_alone = (found.probabilities > found.probabilities.sum(-1, keepdim=True) / 2).any(1).float()
        torch.testing.assert_close(found.embeddings.norm(dim=-1), speaks_alone)


def test_it_draws_nothing_and_says_the_same_each_time():
    cases: list[dict[str, Any]] = [{}, {"head": "attractors"}, {"attention_type": "linear"}]
    for options in cases:
        model = small_diarizer(**options)
        features, mask = compute_features(50, 23)
        first = model.infer(features.float(), mask)
        torch.manual_seed(1)
        np.random.seed(1)
        again = model.infer(features.float(), mask)
        assert torch.equal(first.probabilities, again.probabilities)


def test_weights_are_a_function_of_the_seed():
    made = [DiarizationModel(model.config, NUM_BINS, model.collator) for model in [small_diarizer()] for _ in range(2)]
    states = []
    for model, seed in ((made[0], 1), (made[0], 1), (made[0], 2)):
        torch.manual_seed(seed)
        states.append(DiarizationModel(model.config, NUM_BINS, model.collator).state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert not torch.equal(states[0]["head.weight"], states[2]["head.weight"])


def test_speakers_are_those_up_to_the_first_attractor_that_is_none():
    model = small_diarizer(head="attractors", max_speakers=3)
    features, mask = compute_features(30, 30)
    outputs = model(features.float(), mask)
    existence = torch.tensor([[2.0, -1.0, 3.0, 1.0], [1.0, 1.0, 1.0, -1.0]])
    found = model.inferred(type(outputs)(outputs.logits, outputs.hidden, existence), mask).probabilities
    assert found.any(1).tolist() == [[True, False, False], [True, True, True]]


def test_attractors_are_scored_against_their_formula():
    model = small_diarizer(dtype=torch.float64, head="attractors", max_speakers=2)
    outputs = model(*compute_features(30))
    attractors = torch.linalg.lstsq(outputs.hidden[0], outputs.logits[0]).solution
    torch.testing.assert_close(outputs.hidden[0] @ attractors, outputs.logits[0])
    assert outputs.existence is not None
    assert outputs.existence.shape == (1, 3)


@models
def test_every_part_gets_a_gradient(options: dict[str, Any]):
    model = small_diarizer(**options).train()
    features, mask = compute_features(50, 23)
    outputs = model(features.float(), mask)
    labels = (torch.rand(outputs.logits.shape) > 0.5).float()
    embeddings = model.embeddings(outputs, lead_over_others(labels))
    assert embeddings is not None
    real = frame_mask(mask, model.config.output_subsampling)
    numbers = torch.tensor([[0, 1, 2], [2, -1, 0]])[:, : labels.shape[-1]]
    losses = [
        F.binary_cross_entropy_with_logits(outputs.logits, labels),
        clustering_loss(model.cluster_vectors(outputs), one_hot_sets(labels), real).total,
        speaker_loss(embeddings, numbers, model.speaker_table).total,
    ]
    if outputs.existence is not None:
        losses.append(attractor_loss(outputs.existence, torch.tensor([2, 1])).total)
    torch.stack(losses).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(parameter.grad.isfinite().all()), name
        assert bool(parameter.grad.any()) or name == "head.writer.weight_ih_l0", name  # it is fed zeros


def test_who_speaks_alone():
    assert lead_over_others(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.9, 0.3], [0.0, 0.0]])).tolist() == [
        [1.0, 0.0],
        [0.0, 0.0],
        [pytest.approx(0.6), 0.0],
        [0.0, 0.0],
    ]
    assert len(SPEAKERS) == 3
