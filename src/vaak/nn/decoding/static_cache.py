"""A decoder's cache whose shapes don't change, and its step as a CUDA graph.

    grown cache ──copied into buffers of ``capacity`` tokens──▶ step, captured once ──replayed for each token──▶ logits

A small model waits for the program that starts its operators; a graph starts all of them at once. Its tensors stay
where they are, so a new token's place is a number on the device, and attention reads whole buffers, in which a mask
hides what isn't written yet. Numbers are those of the grown cache up to rounding.

Only softmax attention on positions that are computed (rotary, sinusoidal, none) has such a step: others wait for the
device, or keep what this mask doesn't hide.

Source: Nguyen et al. 2021, "Accelerating PyTorch with CUDA Graphs".
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from vaak.nn.decoding.cache import LayerCache, StackCache

_CAPTURES = threading.Lock()
"""torch allows one capture at a time in a process."""
CAPACITY_STEP = 256
"""Tokens; buffers are as long as a multiple of this."""
TOLERANCE = 0.02
"""How far logits of a graph may be from those of the same step without, as a part of the largest."""


class StaticLayerCache(LayerCache):
    """Keys and values of a layer, in buffers of ``capacity`` tokens."""

    def __init__(self, grown: LayerCache, capacity: int, place: Tensor) -> None:
        """``place`` ``(1,)`` is the index of the next token."""
        super().__init__()
        self.place = place
        for name, tensor in grown.tensors.items():
            buffer = self.tensors[name] = tensor.new_zeros(*tensor.shape[:2], capacity, tensor.shape[3])
            buffer[:, :, : grown.length] = tensor[:, :, : grown.length]

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of one token at its place; return the whole buffers."""
        for name, new in (("keys", keys), ("values", values)):
            self.tensors[name].index_copy_(2, self.place, new)
        return self.tensors["keys"], self.tensors["values"]


class StaticCache(StackCache):
    """The caches of a stack's layers, of the same shapes for each token until ``capacity`` are read."""

    def __init__(self, grown: StackCache, capacity: int) -> None:
        super().__init__(len(grown.self_attention))
        keys = grown.self_attention[0].tensors["keys"]
        rows, device = len(keys), keys.device
        self.capacity, self.length, self.documents = capacity, grown.length, grown.documents
        self.place = torch.full((1,), grown.length, device=device)
        self.visible = torch.zeros(rows, capacity, dtype=torch.bool, device=device)
        self.next_positions = torch.full((rows, 1), grown.length, device=device)
        if grown.documents is None:
            self.visible[:, : grown.length] = True
        else:
            # A row is one document, after its padding.
            self.visible[:, : grown.length] = grown.documents >= 0
            self.next_positions = self.visible.sum(1, keepdim=True)
        self.self_attention = [StaticLayerCache(one, capacity, self.place) for one in grown.self_attention]

    def see_token(self) -> Tensor:
        """Make the next token visible; return what it sees, ``(row, 1, 1, capacity)``."""
        self.visible.index_fill_(1, self.place, True)
        return self.visible[:, None, None]

    def end_token(self) -> None:
        """Move to the place after the token just read."""
        self.place += 1
        self.next_positions += 1

    def rewind(self, tokens: int) -> None:
        """Forget that this many tokens were read; the next ones are written over them."""
        self.place -= tokens
        self.next_positions -= tokens
        self.visible.masked_fill_(torch.arange(self.capacity, device=self.place.device) >= self.place, False)

    def grow(self) -> StackCache:
        """Return a cache that grows, with all that was read here."""
        grown = StackCache(len(self.self_attention))
        for own, static in zip(grown.self_attention, self.self_attention, strict=True):
            own.tensors, own.length = static.tensors, self.length
        grown.length = self.length
        if self.documents is not None:
            new = self.documents[:, -1:].expand(-1, self.length - self.documents.shape[1])
            grown.documents = torch.cat((self.documents, new), 1)
        return grown


class StaticStep:
    """A decoder's step of one token for each row, with its own cache; on CUDA, a graph."""

    def __init__(self, compute: Callable[..., Tensor], grown: StackCache) -> None:
        """Copy the ``grown`` cache; ``compute`` gives logits ``(row, vocab)`` of tokens ``(row, 1)`` with a ``cache``.

        Whatever CUDA, torch or a layer raises where the step can't be captured is raised.
        """
        capacity = -(-(grown.length + CAPACITY_STEP) // CAPACITY_STEP) * CAPACITY_STEP
        self.cache = StaticCache(grown, capacity)
        self._compute = compute
        self.tokens = torch.zeros_like(self.cache.next_positions)
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.empty(0)
        if self.tokens.is_cuda:
            self._capture()

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the logits ``(row, vocab)`` after tokens ``(row, 1)``, which are read."""
        assert not self.is_full, "a full cache is grown first"
        self.cache.length += 1
        if self.graph is None:
            return self._compute(tokens, cache=self.cache)
        self.tokens.copy_(tokens)
        self.graph.replay()
        # The next replay writes over them.
        return self.logits.clone()

    @property
    def is_full(self) -> bool:
        """Whether no token's place is left."""
        return self.cache.length >= self.cache.capacity

    def _capture(self) -> None:
        device = self.tokens.device
        # Weights that autocast rounded before the capture would be freed under the graph: none of them is kept.
        rounding = torch.autocast(
            "cuda", torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda"), cache_enabled=False
        )
        with _CAPTURES, torch.cuda.device(device), rounding:
            stream, current = torch.cuda.Stream(device), torch.cuda.current_stream(device)
            stream.wait_stream(current)
            # Libraries make their workspaces for each stream when they are first called there.
            with torch.cuda.stream(stream):
                self._compute(self.tokens, cache=self.cache)
                self.cache.rewind(1)
            current.wait_stream(stream)
            graph = torch.cuda.CUDAGraph()
            # Other threads, such as a server's, may use the device meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self.logits = self._compute(self.tokens, cache=self.cache)
        self.graph = graph


def are_near(logits: Tensor, expected: Tensor) -> bool:
    """Return whether logits of a static step are those of the same step with a cache that grows, up to rounding."""
    # What can't follow is minus infinity in both.
    difference = (logits - expected).float().nan_to_num(0.0, posinf=torch.inf).abs().max()
    return bool(difference <= TOLERANCE * expected.float().nan_to_num(0.0, 0.0, 0.0).abs().max())
