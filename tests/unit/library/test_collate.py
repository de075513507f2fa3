"""Examples are put together by their fields, padded, masked and counted."""

from typing import NamedTuple

import numpy as np
import pytest
import torch

from vaak.core.batch import Batch
from vaak.core.errors import UserError
from vaak.library.simple_task import Examples, as_batch, measure_length, padded


class Speech(NamedTuple):
    frames: np.ndarray
    labels: list[int]
    text: str


def test_sequences_are_padded_masked_and_counted():
    batch = padded([Speech(np.ones((2, 3)), [1, -100], "a"), Speech(np.ones((4, 3)), [0, 1, 1], "bc")])
    assert batch["frames"].shape == (2, 4, 3)
    assert batch["frames"].dtype == torch.float32
    assert batch["frames_mask"].tolist() == [[True, True, False, False], [True] * 4]
    assert batch["labels"].tolist() == [[1, -100, -100], [0, 1, 1]]
    assert batch.extra == {"text": ["a", "bc"]}
    assert batch.totals() == {"example": 2, "frames": 6, "labels": 4}
    batch.check_rows()


def test_numbers_flags_and_pairs():
    batch = padded([([True, False], 2), ([True], -100)])
    assert batch["inputs"].dtype == torch.bool
    assert batch["targets"].tolist() == [2, -100]
    assert batch.totals() == {"example": 2, "inputs": 3, "targets": 1}
    flags = padded([{"x": 1.0, "targets": [True, False]}, {"x": 2.0, "targets": [True]}])
    assert flags["targets"].tolist() == [[1, 0], [1, -100]]
    assert flags["x"].dtype == torch.float32
    assert padded([torch.ones(2), torch.ones(2)])["inputs"].shape == (2, 2)


def test_a_users_dict_is_counted():
    batch = as_batch({"x": torch.ones(2, 3), "mask": torch.tensor([[1, 0], [1, 1]]).bool(), "names": ["a", "b"]}, "f")
    assert batch.totals() == {"example": 2, "mask": 3}
    assert batch.extra == {"names": ["a", "b"]}
    own = Batch({}, {})
    assert as_batch(own, "f") is own


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: as_batch(torch.ones(2), "collate of train"), "collate of train gave a Tensor; expected a vaak.Batch"),
        (lambda: padded([{"x": "a"}]), "have no numbers to collate"),
        (lambda: padded([np.ones((2, 3)), np.ones((2, 4))]), "only the first dimension may differ"),
        (lambda: Examples(iter([1]), "train", padded), "the data of train are a list_iterator; expected a list"),
        (lambda: Examples([], "valid", padded), "the data of valid have no examples"),
    ],
)
def test_mistakes_are_said(make, said):
    with pytest.raises(UserError, match=said):
        make()


class Drawing(torch.utils.data.Dataset):
    """Draws from torch's own generator, as many do."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return torch.randn(index + 1), index % 2


def test_a_dataset_of_torchs_has_lengths_and_a_lasting_fingerprint():
    before = torch.get_rng_state()
    first, second = (Examples(Drawing(), "train", padded) for _ in range(2))
    assert torch.equal(before, torch.get_rng_state())
    assert first.lengths.tolist() == [1, 2, 3, 4, 5]
    assert first.draws_globally
    assert first.fingerprint == second.fingerprint
    fingerprints = {Examples(data, "train", padded).fingerprint for data in ([1, 2], [2, 1], [1.0, 2], [[1], [2]])}
    assert len(fingerprints) == 4
    assert measure_length({"a": 1, "b": "text"}) == 1
