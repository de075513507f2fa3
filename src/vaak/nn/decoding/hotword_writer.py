"""Hotwords where a model writes token by token: all of them in a beam search; a greedy one finds what it can."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from vaak.core.batch import send
from vaak.nn.decoding.hotwords import BEGIN, Hotwords
from vaak.nn.decoding.sampling import Writer


class HotwordWriter:
    """A writer whose rows prefer hotwords (``vaak.nn.decoding.sampling.Writer``).

    After each of its scores, ``gains`` are what tokens add by hotwords, for a search that adds them to
    log-probabilities. Where ``is_greedy``, they are within the scores, but for those below 0: a search of one
    hypothesis can't go back, and would be held to a hotword that it has begun by mistake. So a hotword that is left
    keeps its parts, which are less than its weight.
    """

    def __init__(self, writer: Writer, hotwords: Hotwords, num_rows: int, end_id: int, *, is_greedy: bool) -> None:
        self.writer, self.hotwords, self.end_id, self.is_greedy = writer, hotwords, end_id, is_greedy
        self.states = np.full(num_rows, BEGIN)
        self.is_first = True
        self.gains = torch.empty(0)
        self._table: tuple[np.ndarray, Tensor] | None = None

    def next_logits(self, tokens: Tensor) -> Tensor:
        logits = self.writer.next_logits(tokens)
        if not self.is_first:
            self.states, _ = self.hotwords.read(self.states, tokens.cpu().numpy())
        self.is_first = False
        table, places = self.hotwords.find_gains(self.states)
        if self._table is None or self._table[0] is not table:
            self._table = table, send(torch.from_numpy(table).to(logits.dtype), logits.device)
        self.gains = self._table[1][send(torch.from_numpy(places), logits.device)]
        ends = torch.from_numpy(self.hotwords.end(self.states)).to(logits.dtype)
        self.gains[:, self.end_id] = send(ends, logits.device)
        return logits + self.gains.clamp(min=0) if self.is_greedy else logits

    def select(self, rows: Tensor) -> None:
        self.writer.select(rows)
        self.states = self.states[rows.numpy()]
