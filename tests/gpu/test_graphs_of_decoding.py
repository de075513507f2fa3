"""A language model writes by a CUDA graph where there is a GPU, and as ever where none can be captured."""

from __future__ import annotations

import pytest
import torch

from mock_cuda import MockDevice
from networks import draw_weights
from vaak.nn.decoding.sampling import SamplingSettings
from vaak.nn.decoding.static_cache import StaticStep
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.predict import generate_batch


def test_texts_are_those_of_the_cpu_and_a_graph_is_replayed_or_its_lack_is_said(
    gpu: MockDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    torch.manual_seed(0)
    sizes = {"d_model": 32, "num_layers": 2, "num_heads": 4, "num_key_value_heads": 2}
    model = LanguageModel(LanguageModelConfig.model_validate(sizes), 30)
    draw_weights(model)
    prompts, settings = [[1, 2, 3], [4, 5, 6, 7], [8]], SamplingSettings(60, temperature=0, stop_ids=(3,))
    expected, replays, step = generate_batch(model, prompts, settings), list[bool](), StaticStep.__call__
    monkeypatch.setattr(
        StaticStep, "__call__", lambda self, ids: replays.append(self.graph is not None) or step(self, ids)
    )
    assert generate_batch(model.to("cuda"), prompts, settings) == expected
    if torch.backends.cuda.is_built():
        assert replays
        assert all(replays)
        assert not caplog.records
    else:
        assert not replays
        assert ["isn't a CUDA graph" in record.message for record in caplog.records] == [True]
