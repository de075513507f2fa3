"""A decoder's cache whose shapes don't change, and its step as a CUDA graph.

    grown cache ──copied into buffers of ``capacity`` tokens──▶ step, captured once ──replayed for each token──▶ logits

A small model waits for the program that starts its operators; a graph starts all of them at once. Its tensors stay
where they are, so a new token's place is a number on the device, and attention reads whole buffers, in which a mask
hides what isn't written yet. Rows are a power of two, of which some may be idle, so that a graph outlives texts that
end or join. Numbers are those of the grown cache up to rounding.

Only softmax attention on positions that are computed (rotary, sinusoidal, none) has such a step: others wait for the
device, or keep what this mask doesn't hide.

Source: Nguyen et al. 2021, "Accelerating PyTorch with CUDA Graphs".
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

from vaak.nn.decoding.cache import LayerCache, StackCache, count_needed

_CAPTURES = threading.Lock()
"""torch allows one capture at a time in a process."""
CAPACITY_STEP = 256
"""Tokens; buffers are as long as a multiple of this."""
TOLERANCE = 0.02
"""How far logits of a graph may be from those of the same step without, as a part of the largest."""


class StaticLayerCache(LayerCache):
    """Keys and values of a layer, in buffers ``(rows, heads, capacity, head_width)``."""

    def __init__(self, grown: LayerCache, rows: int, capacity: int, place: Tensor) -> None:
        """``place`` ``(1,)`` is the index of the next token."""
        super().__init__()
        self.place = place
        for name, tensor in grown.tensors.items():
            self.tensors[name] = tensor.new_zeros(rows, tensor.shape[1], capacity, tensor.shape[3])

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Write those of one token at its place; return the whole buffers."""
        for name, new in (("keys", keys), ("values", values)):
            self.tensors[name].index_copy_(2, self.place, new)
        return self.tensors["keys"], self.tensors["values"]

    def fill(self, source: LayerCache, first_row: int, begin: int, tokens: int) -> None:
        """Write the last ``tokens`` of all rows of ``source`` from row ``first_row`` and token ``begin`` on."""
        for name, buffer in self.tensors.items():
            new = source.tensors[name][:, :, source.length - tokens : source.length]
            buffer[first_row : first_row + len(new), :, begin : begin + tokens] = new


class StaticCache(StackCache):
    """The caches of a stack's layers, of the same shapes for each token until ``capacity`` are read.

    The first ``num_rows`` of ``rows`` are in use. The others are computed, too, each by itself, and nobody reads them:
    so rows come and go while shapes stay.
    """

    def __init__(self, grown: StackCache, rows: int, capacity: int) -> None:
        super().__init__(len(grown.self_attention))
        device = grown.self_attention[0].tensors["keys"].device
        self.rows, self.capacity = rows, capacity
        self.place = torch.zeros(1, dtype=torch.long, device=device)
        self.visible = torch.zeros(rows, capacity, dtype=torch.bool, device=device)
        self.next_positions = torch.zeros(rows, 1, dtype=torch.long, device=device)
        self.layers = [StaticLayerCache(one, rows, capacity, self.place) for one in grown.self_attention]
        self.self_attention = [*self.layers]
        self.load(grown)

    def load(self, grown: StackCache) -> None:
        """Continue from what another cache has read."""
        self.num_rows, self.length = len(grown.self_attention[0].tensors["keys"]), grown.length
        self.is_padded = grown.documents is not None
        for own, other in zip(self.layers, grown.self_attention, strict=True):
            own.fill(other, 0, 0, grown.length)
        self.place.fill_(grown.length)
        self.visible.zero_()
        # A row is one document, after its padding.
        self.visible[: self.num_rows, : grown.length] = True if grown.documents is None else grown.documents >= 0
        self.next_positions.copy_(self.visible.sum(1, keepdim=True))

    @property
    def can_join(self) -> bool:
        """Return True: a cache of this kind keeps all tokens."""
        return True

    def has_room(self, other: StackCache) -> bool:
        """Return whether the rows of ``other`` can be added, and a token read after them."""
        more = len(other.self_attention[0].tensors["keys"])
        return self.num_rows + more <= self.rows and max(self.length, other.length) < self.capacity

    def select(self, rows: Tensor, *, memory: bool = True) -> None:
        """Keep these rows, in this order; at most as many as there are."""
        self.num_rows = len(rows)
        buffers = [tensor for layer in self.layers for tensor in layer.tensors.values()]
        for buffer in (*buffers, self.visible, self.next_positions):
            buffer[: len(rows)] = buffer.index_select(0, rows)

    def join(self, other: StackCache) -> None:
        """Add the rows of ``other``, for which there is room, after these, aligned at the last token."""
        real = other.find_documents() >= 0
        added = count_needed(real)
        if added > self.length:
            self._shift(added - self.length)
        first, last, begin = self.num_rows, self.num_rows + len(real), self.length - added
        for own, new in zip(self.layers, other.self_attention, strict=True):
            own.fill(new, first, begin, added)
        self.visible[first:last] = False
        self.visible[first:last, begin : self.length] = real[:, real.shape[1] - added :]
        self.next_positions[first:last] = real.sum(1, keepdim=True)
        self.num_rows, self.is_padded = last, True

    def _shift(self, tokens: int) -> None:
        """Move the keys and values to later places: keys know their positions, whatever their place."""
        for layer in self.layers:
            for buffer in layer.tensors.values():
                buffer.copy_(buffer.roll(tokens, 2))
        self.visible.copy_(self.visible.roll(tokens, 1))
        self.place += tokens
        self.length, self.is_padded = self.length + tokens, True

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
        """Return a cache that grows, with a copy of all that was read here, but for padding that no row needs."""
        grown, real = StackCache(len(self.layers)), self.visible[: self.num_rows, : self.length]
        grown.length = max(1, count_needed(real)) if self.is_padded else self.length
        begin = self.length - grown.length
        for own, static in zip(grown.self_attention, self.layers, strict=True):
            own.length = grown.length
            # A copy: these buffers may serve other rows next.
            own.tensors = {
                name: buffer[: self.num_rows, :, begin : self.length].clone() for name, buffer in static.tensors.items()
            }
        if self.is_padded:
            grown.documents = real[:, begin:].long() - 1
        return grown


def round_rows(number: int) -> int:
    """Return the rows of the buffers for a number of rows: few sizes, so that rows come and go in one.

    >>> [round_rows(number) for number in (1, 2, 3, 5, 16)]
    [1, 2, 4, 8, 16]
    """
    return 1 << (number - 1).bit_length()


class StaticStep:
    """A decoder's step of one token for each row, with its own cache; on CUDA, a graph.

    It serves any rows up to ``cache.rows``, and is captured once.
    """

    def __init__(self, compute: Callable[..., Tensor], grown: StackCache) -> None:
        """Copy the ``grown`` cache; ``compute`` gives logits ``(row, vocab)`` of tokens ``(row, 1)`` with a ``cache``.

        Whatever CUDA, torch or a layer raises where the step can't be captured is raised.
        """
        capacity = -(-(grown.length + CAPACITY_STEP) // CAPACITY_STEP) * CAPACITY_STEP
        self.cache = StaticCache(grown, round_rows(len(grown.self_attention[0].tensors["keys"])), capacity)
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
        self.tokens[: len(tokens)] = tokens
        if self.graph is None:
            return self._compute(self.tokens, cache=self.cache)[: len(tokens)]
        self.graph.replay()
        # The next replay writes over them.
        return self.logits[: len(tokens)].clone()

    @property
    def is_full(self) -> bool:
        """Whether no token's place is left."""
        return self.cache.length >= self.cache.capacity

    def _capture(self) -> None:
        device = self.tokens.device
        # Weights that autocast rounded before the capture would be freed under the graph, so the cache is off.
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
