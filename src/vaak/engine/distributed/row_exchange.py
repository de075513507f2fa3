"""Whole matrices of the rows that ranks have of them, for updates that aren't made of each number by itself."""

from __future__ import annotations

from typing import Annotated as Float
from typing import Any

import torch
from torch import Tensor


class RowExchange:
    """Turns rows of every matrix into some whole matrices, and back; every rank that shares the model calls it.

    ``like`` is a matrix of which each rank has a part, as ``made_in_parts`` says. The matrices are those of its shape.
    """

    def __init__(self, like: Tensor) -> None:
        place: Any = like
        mesh = place.device_mesh
        self._group = mesh.get_group("shard") if mesh.ndim > 1 else mesh.get_group()
        self.num_ranks: int = torch.distributed.get_world_size(self._group)
        kind = mesh.device_type
        self.device = torch.device(kind, torch.cuda.current_device()) if kind == "cuda" else torch.device(kind)
        """The device that computes, also where weights are kept in host memory (``cpu_offload``)."""
        self._num_rows = like.shape[0]
        self._part = -(-self._num_rows // self.num_ranks)

    def whole(self, rows: Float[Tensor, "matrix own_row column"]) -> Float[Tensor, "own_matrix row column"]:
        """Return this rank's share of the matrices, of each of which it gives its rows.

        Matrix number m is of rank m // share, where share is the number of matrices divided by that of ranks, rounded
        up; the last ranks may have fewer, or none.
        """
        own = rows.new_zeros(self._share(len(rows)) * self.num_ranks, self._part, rows.shape[2])
        own[: len(rows), : rows.shape[1]] = rows
        received = torch.empty_like(own)
        torch.distributed.all_to_all_single(received, own, group=self._group)
        # by the ranks that the rows are from, one after another
        whole: Tensor = received.view(self.num_ranks, -1, *own.shape[1:]).transpose(0, 1).flatten(1, 2)
        return whole[: self._own(len(rows)), : self._num_rows]

    def rows(
        self, matrices: Float[Tensor, "own_matrix row column"], number: int
    ) -> Float[Tensor, "matrix own_row column"]:
        """Return this rank's rows of all ``number`` matrices, of which it gives its share: the inverse of ``whole``."""
        share = self._share(number)
        own = matrices.new_zeros(share, self.num_ranks * self._part, matrices.shape[2])
        own[: len(matrices), : self._num_rows] = matrices
        sent = own.unflatten(1, (self.num_ranks, self._part)).transpose(0, 1).contiguous()
        received = torch.empty_like(sent)
        torch.distributed.all_to_all_single(received, sent, group=self._group)
        rank = torch.distributed.get_rank(self._group)
        num_rows = max(0, min(self._part, self._num_rows - rank * self._part))
        return received.flatten(0, 1)[:number, :num_rows]

    def _share(self, number: int) -> int:
        return -(-number // self.num_ranks)

    def _own(self, number: int) -> int:
        share = self._share(number)
        return max(0, min(share, number - torch.distributed.get_rank(self._group) * share))
