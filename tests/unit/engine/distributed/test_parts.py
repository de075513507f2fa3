"""Parts of a model that no process makes whole have the numbers of the whole one, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

import tiny_decoder
from contract_cases import CASES
from held_bytes import bytes_of_all_tensors
from vaak.core import torch_internals
from vaak.engine.distributed.sharding import made_in_parts
from vaak.engine.dry_pass import LiveStorages
from vaak.nn.factory import ModelFactory
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.pretrained import load_model, save_base

SEED = 7
OPTIONS = {"d_model": 64, "num_layers": 6, "num_heads": 4, "position_type": "learned"}


class Drawn(nn.Module):
    """Weights that are drawn, written, tied, replaced, frozen and padded in many ways, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 4, padding_idx=7)
        self.head = nn.Linear(4, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.filter, self.norm = nn.Conv1d(4, 5, 3), nn.LayerNorm(4)
        self.gain = nn.Parameter(torch.randn(5, 2) * 3)
        self.table = nn.Parameter(torch.arange(14.0).view(7, 2), requires_grad=False)
        self.empty, self.offset = nn.Parameter(torch.empty(0, 3)), nn.Parameter(torch.rand(1))
        self.register_buffer("mean", torch.randn(3))
        nn.init.xavier_normal_(self.filter.weight, gain=2.0)
        with torch.no_grad():
            self.filter.weight[1:4].copy_(torch.arange(12.0).view(4, 3))
            self.filter.weight[4].div_(3)
            assert self.filter.bias is not None
            self.filter.bias.data.fill_(0.5).add_(1)
            self.embedding.weight[5:].uniform_(2, 3)


class ReadsItself(nn.Module):
    def __init__(self, hides: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        try:
            self.scale = float(self.linear.weight.detach().norm())
        except RuntimeError:
            self.scale = 1.0
            if not hides:
                raise


class RealStorages(LiveStorages):
    def _count(self, tensor: Tensor) -> Tensor:
        return tensor if tensor.is_meta else super()._count(tensor)


def require_same(maker: Callable[[], Callable[[], nn.Module]]) -> None:
    """Three parts of what a maker makes are the whole of it."""
    make = maker()
    torch.manual_seed(SEED)
    whole, after = make(), torch.rand(3)
    found = []
    for rank in range(3):
        make = maker()
        torch.manual_seed(SEED)
        model, parts, why = made_in_parts(make, rank, 3)
        assert parts is not None, why
        assert torch.equal(torch.rand(3), after)
        assert all(one.is_meta for one in model.parameters())
        assert [one.requires_grad for one in model.parameters()] == [one.requires_grad for one in whole.parameters()]
        assert len([*model.parameters()]) == len([*whole.parameters()]), "tied ones"
        found.append(parts)
    for name, parameter in whole.named_parameters(remove_duplicate=False):
        assert torch.equal(torch.cat([parts[name] for parts in found]), parameter.detach()), name
    ours, theirs = dict(model.named_buffers()), dict(whole.named_buffers())
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_parts_have_the_numbers_of_the_whole():
    require_same(lambda: Drawn)
    factory = ModelFactory({"model_type": "decoder", **OPTIONS})
    require_same(lambda: lambda: factory.create_model(100, max_length=9))


def test_no_process_ever_has_the_whole_model():
    """Nor more than its part, and the largest parameter twice."""

    model = ModelFactory({"model_type": "decoder", **OPTIONS})
    whole = sum(one.nbytes for one in model.create_model(60, max_length=9).parameters())
    with RealStorages([]) as storages:
        made_in_parts(lambda: model.create_model(60, max_length=9), 0, 4)
    assert 0.25 * whole < storages.peak < 0.4 * whole


@pytest.mark.slow
def test_no_process_reads_ahead_of_its_part(tmp_path: Path):
    """Neither transformers nor what finds out what a model can do holds more than a few layers of it."""
    pytest.importorskip("transformers")
    wide = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": 16}
    peer = tiny_decoder.write_folder(tmp_path / "theirs", "gpt_neox", **wide)
    whole = sum(one.nbytes for one in peer.parameters())
    del peer
    save_base(str(tmp_path / "theirs"), tmp_path / "prepared", 48)
    own, before, held = LanguageModelConfig(pretrained=str(tmp_path / "theirs")), bytes_of_all_tensors(), [0]

    def weigh(*_: Any) -> None:
        held.append(bytes_of_all_tensors() - before)

    def read() -> nn.Module:
        return load_model(str(tmp_path / "theirs"), tmp_path / "prepared", own, tiny_decoder.VOCAB_SIZE)

    with register_module_parameter_registration_hook(weigh):
        made_in_parts(read, 0, 4)
    assert 0.25 * whole < max(held) < 0.5 * whole


def test_where_torch_can_not_make_one_to_try_meanwhile_the_model_is_made_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("transformers")
    tiny_decoder.write_folder(tmp_path / "theirs", "gpt_neox")
    save_base(str(tmp_path / "theirs"), tmp_path / "prepared", 48)
    own = LanguageModelConfig(pretrained=str(tmp_path / "theirs"))
    monkeypatch.setattr(torch_internals, "_python_dispatch", SimpleNamespace())
    make = partial(load_model, str(tmp_path / "theirs"), tmp_path / "prepared", own, tiny_decoder.VOCAB_SIZE)
    model, parts, why = made_in_parts(make, 0, 2)
    assert parts is None
    assert "embedding" in why
    assert not any(one.is_meta for one in model.parameters())


@pytest.mark.parametrize("hides", [False, True])
def test_a_model_that_uses_its_weights_is_made_whole(hides: bool):
    torch.manual_seed(SEED)
    whole = ReadsItself(hides)
    torch.manual_seed(SEED)
    model: Any
    model, parts, why = made_in_parts(lambda: ReadsItself(hides), 0, 2)
    assert parts is None
    assert "Linear.bias" in why
    assert model.scale == whole.scale != 1.0
    assert torch.equal(model.linear.weight, whole.linear.weight)


WHOLE = {
    "asr, experts": "clone",
    "asr, ctc, pretrained": "weight_norm",
    "asr, ctc, experts": "weight_norm",
    "vocoder": "norm",
}
"""Models that use their weights while they are made, and how: they are made whole."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_the_models_of_all_tasks(case: str, tmp_path: Path):
    prepared = CASES[case].prepared(tmp_path)
    if case in WHOLE:
        model, parts, why = made_in_parts(prepared.make_task().model, 0, 3)
        assert parts is None
        assert WHOLE[case] in why
        assert not any(one.is_meta for one in model.parameters())
    else:
        require_same(lambda: prepared.make_task().model)
