"""The tree of a model: equal blocks once, tied weights marked, and lines that add up."""

import torch
from torch import nn

from vaak.runs.preflight.estimate import model_tree


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Linear(4, width)
        self.dropout = nn.Dropout()


def tree_of(model):
    return [(branch.depth, branch.name, branch.repeats, branch.parameters) for branch in model_tree(model)]


def test_equal_blocks_in_a_row_are_one_line():
    model = nn.Module()
    model.blocks = nn.ModuleList([Block(2), Block(2), Block(3), Block(2)])
    assert tree_of(model) == [
        (0, "model", 1, 45), (1, "blocks", 1, 45),
        (2, "0–1", 2, 20), (3, "inner", 1, 10),
        (2, "2", 1, 15), (3, "inner", 1, 15),
        (2, "3", 1, 10), (3, "inner", 1, 10),
    ]  # fmt: skip


def test_tied_weights_are_marked_and_counted_once():
    model = nn.Module()
    model.embedding = nn.Embedding(5, 4)
    model.again = model.embedding
    model.out = nn.Linear(4, 5, bias=False)
    model.out.weight = model.embedding.weight
    branches = {branch.name: branch for branch in model_tree(model)}
    assert branches["model"].parameters == branches["embedding"].parameters == 20
    assert {name: branches[name].same_as for name in ("embedding", "again", "out")} == {
        "embedding": None, "again": "embedding", "out": "embedding",
    }  # fmt: skip


def test_own_tensors_have_their_shapes_buffers_too():
    model = nn.Linear(3, 2)
    model.register_buffer("table", torch.zeros(7, 1))
    assert model_tree(model)[0].tensors == {"weight": [2, 3], "bias": [2], "table": [7, 1]}
