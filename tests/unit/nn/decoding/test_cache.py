"""Caches that grow in place hold the same as by concatenation, with little copying."""

import pytest
import torch
from torch import Tensor

from vaak.nn.config import StackConfig
from vaak.nn.decoding.cache import SMALLEST_BUFFER, LayerCache, StackCache
from vaak.nn.positional_encodings import Positions


def test_keys_and_values_are_those_appended_in_buffers_that_double():
    cache, given = LayerCache(), torch.randn(2, 3, 2, 200, 4)
    buffers, begin = [], 0
    for size in (5, 1, 1, 60, 1, 100, 32):
        keys, values = cache.append(*(each[:, :, begin : begin + size] for each in given))
        begin += size
        assert torch.equal(keys, given[0, :, :, :begin])
        assert torch.equal(values, given[1, :, :, :begin])
        buffers.append(cache.tensors["keys"])
    assert begin == 200
    assert len({buffer.data_ptr() for buffer in buffers}) == 3, "a token must not copy all before it"
    assert buffers[0].shape[2] == SMALLEST_BUFFER
    assert buffers[-1].shape[2] <= 2 * 200


def test_selected_rows_go_on_growing():
    cache, given = LayerCache(), torch.randn(2, 3, 2, 50, 4)
    cache.append(*given[..., :40, :])
    rows = torch.tensor([2, 0, 2, 1])
    cache.select(rows)
    keys, values = cache.append(*given[:, rows][..., 40:, :])
    assert torch.equal(keys, given[0, rows])
    assert torch.equal(values, given[1, rows])


def test_what_cross_attention_looks_at_is_not_copied_where_rows_keep_their_source():
    cache = StackCache(1)
    cache.cross_attention[0].tensors["keys"] = torch.randn(4, 1, 3, 2)
    cache.self_attention[0].append(torch.randn(4, 1, 3, 2), torch.randn(4, 1, 3, 2))
    before: Tensor = cache.cross_attention[0].tensors["keys"]
    newest = cache.self_attention[0].tensors["keys"].clone()
    cache.select(torch.tensor([1, 0, 3, 3]), memory=False)
    assert cache.cross_attention[0].tensors["keys"] is before
    assert torch.equal(cache.self_attention[0].tensors["keys"][:, :, :3], newest[[1, 0, 3, 3]][:, :, :3])
    cache.select(torch.tensor([3, 1]))
    assert torch.equal(cache.cross_attention[0].tensors["keys"], before[[3, 1]])


@pytest.mark.parametrize("scaling", ["linear", "yarn"])
def test_rotations_read_from_the_cache_are_those_computed_to_the_bit(scaling: str):
    config = StackConfig.model_validate(
        {"d_model": 64, "num_heads": 1, "rope_scaling_type": scaling, "rope_scaling_factor": 3.0}
    )
    positions, cache, tables = Positions(config, causal=True, max_length=None), StackCache(1), set[int]()
    for time in (5, 1, 1, 40, *[1] * 70):
        here = torch.arange(cache.length, cache.length + time)[None]
        behind = torch.cat((here - 2, here)).clamp(min=0)
        for asked, in_order in ((here, True), (behind, False)):
            found, computed = positions.continued_rotation(asked, cache, in_order=in_order), positions.rotation(asked)
            assert found is not None
            assert computed is not None
            assert torch.equal(found.cosine, computed.cosine)
            assert torch.equal(found.sine, computed.sine)
            tables.add(found.cosine.untyped_storage().nbytes() if in_order else 0)
        cache.length += time
    assert len(tables) == 4, "angles are computed seldom"
