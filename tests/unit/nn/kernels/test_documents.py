"""Positions and masks of packed rows, against plain loops."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from vaak.nn.kernels.visibility import attention_mask, positions_in_documents

LENGTHS = st.lists(st.integers(1, 5), min_size=1, max_size=5)


def make_row(lengths: list[int], padding: int) -> torch.Tensor:
    numbers = [number for number, length in enumerate(lengths) for _ in range(length)]
    return torch.tensor([numbers + [-1] * padding])


@given(LENGTHS, st.integers(0, 4))
def test_positions_restart_with_each_document(lengths: list[int], padding: int):
    expected = [place for length in lengths for place in range(length)] + list(range(padding))
    assert positions_in_documents(make_row(lengths, padding)).tolist() == [expected]


@given(LENGTHS, st.integers(0, 4), st.booleans())
def test_a_query_sees_its_own_document_and_in_a_decoder_only_backwards(lengths: list[int], padding: int, causal: bool):
    documents = make_row(lengths, padding)
    mask = attention_mask(documents, documents, causal)[0, 0]
    numbers = documents[0].tolist()
    for query, of_query in enumerate(numbers):
        for key, of_key in enumerate(numbers):
            assert mask[query, key].item() == (of_query == of_key and (key <= query or not causal))
    assert mask.any(-1).all(), "a row of attention without a key is NaN"


def test_queries_are_the_last_of_the_keys():
    documents = make_row([3, 4], 0)
    whole = attention_mask(documents, documents, causal=True)
    assert torch.equal(attention_mask(documents[:, -2:], documents, causal=True), whole[:, :, -2:])
