"""Classes as a user writes them, as text for a file of a test."""

from __future__ import annotations

CHARACTERS = """\
class Characters:
    def __init__(self, unknown="?"):
        self.unknown, self.characters = unknown, [unknown]

    def train(self, texts):
        self.characters = [self.unknown, *sorted({one for text in texts for one in text} - {self.unknown})]

    def encode(self, text):
        return [max(self.characters.index(one) if one in self.characters else 0, 0) for one in text]

    def decode(self, ids):
        return "".join(self.characters[one] for one in ids)

    def __len__(self):
        return len(self.characters)

    def state_dict(self):
        return {"characters": self.characters}

    def load_state_dict(self, state):
        self.characters = state["characters"]
"""
"""A tokenizer of characters."""

NETWORK = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, d_model, causal, memory_width=None, hidden=8):
        super().__init__()
        self.causal = causal
        self.inner = nn.Linear(2 * d_model, hidden)
        self.output = nn.Linear(hidden, d_model)
        self.look = None if memory_width is None else nn.Linear(memory_width, d_model)

    def forward(self, x, mask, memory=None, memory_mask=None):
        if self.causal:
            mean = x.cumsum(1) / torch.arange(1, x.shape[1] + 1, device=x.device)[:, None]
        else:
            mean = compute_mean(x, mask).expand_as(x)
        y = x + self.output(self.inner(torch.cat((x, mean), -1)).tanh())
        return y if self.look is None else y + self.look(compute_mean(memory, memory_mask))

def compute_mean(x, mask):
    return (x * mask[..., None]).sum(1, keepdim=True) / mask.sum(1)[:, None, None]
"""
"""A network whose places read the mean of those they may see."""
STEPPING = NETWORK.replace(
    "def compute_mean",
    """\
    def decode_step(self, x, state, memory=None, memory_mask=None):
        before = x.new_zeros(x.shape[0], 1, x.shape[2]) if state is None else state["sum"]
        count, sums = 0 if state is None else int(state["count"][0]), before + x.cumsum(1)
        new = torch.arange(count + 1, count + x.shape[1] + 1, device=x.device)
        y = x + self.output(self.inner(torch.cat((x, sums / new[:, None]), -1)).tanh())
        state = {"sum": sums[:, -1:], "count": new[-1:].expand(x.shape[0])}
        return (y if self.look is None else y + self.look(compute_mean(memory, memory_mask))), state

def compute_mean""",
    1,
)
"""The same network with a state: the sum so far, and of how many places."""
