"""The factory makes what the options say, and says in one line what doesn't fit."""

from typing import Any

import pytest
import torch

from vaak.core.errors import UserError
from vaak.nn.factory import ModelFactory
from vaak.nn.models import EncoderDecoderModel, TransformerModel
from vaak.nn.stack import TransformerStack

SIZES: dict[str, Any] = {"d_model": 16, "num_layers": 2, "num_heads": 2}


@pytest.mark.parametrize("model_type", ["encoder", "decoder"])
@pytest.mark.parametrize("written", ["flat", "in global_config", "in its section"])
def test_a_single_stack_may_be_written_in_three_places(model_type: str, written: str):
    options: dict[str, Any] = {"model_type": model_type}
    places: dict[str, dict[str, Any]] = {
        "flat": SIZES,
        "in global_config": {"global_config": SIZES},
        "in its section": {model_type: SIZES},
    }
    options |= places[written]
    torch.manual_seed(0)
    model = ModelFactory(options).create_model(30)
    assert isinstance(model, TransformerModel)
    assert model.stack.causal is (model_type == "decoder")
    assert model.stack.config.d_model == 16
    assert model(torch.tensor([[1, 2, 3]])).shape == (1, 3, 30)


def test_each_side_inherits_and_lies_over_what_both_have():
    factory = ModelFactory(
        {
            "model_type": "encoder_decoder",
            "global_config": {**SIZES, "dropout": 0.3, "cross_attention_type": "linear"},
            "encoder": {"dropout": 0.1},
            "decoder": {"num_layers": 3},
        }
    )
    model = factory.create_model(30)
    assert isinstance(model, EncoderDecoderModel)
    encoder, decoder = model.config.encoder, model.config.decoder
    assert isinstance(model.encoder, TransformerStack)
    assert isinstance(model.decoder, TransformerStack)
    assert (encoder.dropout, decoder.dropout, len(model.encoder.blocks), len(model.decoder.blocks)) == (0.1, 0.3, 2, 3)
    assert decoder.cross_type == "linear"
    assert model.source_embedding is model.target_embedding


def test_vocabularies_may_differ_where_nothing_is_shared():
    options = {"model_type": "encoder_decoder", "global_config": SIZES, "share_embeddings": False}
    model = ModelFactory(options).create_model(30, 40)
    mask = torch.ones(1, 2, dtype=torch.bool)
    assert model(torch.tensor([[1, 2]]), mask, torch.tensor([[1, 39]])).shape == (1, 2, 40)


@pytest.mark.parametrize(
    ("options", "arguments", "words"),
    [
        ({"model_type": "both"}, {}, "model.model_type is 'both'; expected one of encoder, decoder, encoder_decoder"),
        ({"model_type": "decoder", "attention_type": "linear"}, {}, "a decoder takes causal_linear"),
        ({"model_type": "decoder", "attention_type": "quadratic"}, {}, "model.attention_type"),
        ({"model_type": "decoder", "d_model": 10, "num_heads": 3}, {}, "d_model (10) must be a multiple of num_heads"),
        (
            {"model_type": "encoder", "attention_type": "linear", "position_type": "alibi"},
            {},
            "adds to the score of each pair of tokens",
        ),
        ({"model_type": "decoder", "position_type": "learned"}, {}, "position_type learned"),
        ({"model_type": "encoder_decoder"}, {"target_vocab_size": 40}, "model.share_embeddings"),
    ],
)
def test_what_does_not_fit_is_one_line(options: dict[str, Any], arguments: dict[str, Any], words: str):
    with pytest.raises(UserError) as caught:
        ModelFactory(options).create_model(30, **arguments)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
