"""Sentence encoders as they are published: one vector for each text, by the pooling that their folder names.

    texts ──tokenizer──▶ encoder ──pooling over real tokens──▶ (unit length) ──▶ embeddings

A folder of sentence-transformers lists its modules in ``modules.json``: Transformer, Pooling and Normalize are read.
Any other encoder has the mean over its tokens. Source: Reimers and Gurevych 2019, "Sentence-BERT".
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json
from vaak.tasks.pretrained import SAFELY, fetch_folder, fetch_model, import_transformers, load_tokenizer

log = logging.getLogger("vaak")
KEY = "--embeddings"
AT_ONCE = 32
POOLINGS = {
    "pooling_mode_cls_token": "first",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
}
"""Ours for the keys of sentence-transformers; a folder that has another one switched on isn't read."""
MODULES = ("Transformer", "Pooling", "Normalize")


@dataclass(frozen=True)
class Pooling:
    """How the vectors of tokens become one; ``max_length`` is that of a text, in tokens."""

    kinds: tuple[str, ...] = ("mean",)
    normalises: bool = False
    max_length: int | None = None

    @classmethod
    def read(cls, folder: Path) -> Pooling:
        """Return that of a folder. Raises UserError for modules that aren't read."""
        if not (folder / "modules.json").is_file():
            log.warning("%s: %s has no modules.json: the embedding of a text is the mean over its tokens", KEY, folder)
            return cls()
        modules = [
            (str(one["type"]).rpartition(".")[2], folder / one["path"]) for one in read_json(folder / "modules.json")
        ]
        if unread := [kind for kind, _ in modules if kind not in MODULES]:
            raise UserError(f"{KEY}: {folder} has a module {unread[0]}; only {', '.join(MODULES)} are read")
        own: dict[str, Any] = next(
            (read_json(place / "config.json") for kind, place in modules if kind == "Pooling"), {}
        )
        on = [name for name, value in own.items() if name.startswith("pooling_mode_") and value is True]
        if unread := [name for name in on if name not in POOLINGS]:
            raise UserError(f"{KEY}: {folder} has {unread[0]}, which isn't read")
        file = folder / "sentence_bert_config.json"
        longest = read_json(file).get("max_seq_length") if file.is_file() else None
        normalises = any(kind == "Normalize" for kind, _ in modules)
        return cls(tuple(POOLINGS[name] for name in on) or ("mean",), normalises, longest)

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The embeddings ``(row, dim)`` of ``hidden (row, token, width)``; ``mask`` is True where a token is real."""
        last = mask.sum(1) - 1
        each = {
            "first": lambda: hidden[:, 0],
            "mean": lambda: hidden.masked_fill(~mask[..., None], 0.0).sum(1) / mask.sum(1, keepdim=True),
            "max": lambda: hidden.masked_fill(~mask[..., None], -torch.inf).amax(1),
            "last": lambda: hidden[torch.arange(len(hidden), device=hidden.device), last],
        }
        found = torch.cat([each[kind]() for kind in self.kinds], 1)
        return F.normalize(found, dim=1) if self.normalises else found


def embed(source: str, texts: Iterable[str], device: torch.device) -> Iterator[tuple[str, list[float]]]:
    """Yield each text with its embedding, by the encoder in a folder, or of a name on the Hub.

    A line counts the texts of which only the beginning was read. Raises UserError where it can't be loaded.
    """
    folder = fetch_folder(source, ("*.safetensors", "*.json", "*.txt", "*.model", "*/config.json"))
    pooling, auto = Pooling.read(folder), import_transformers(KEY)
    tokenizer = load_tokenizer(KEY, str(folder))
    how: dict[str, Any] = {**SAFELY, "use_safetensors": True, "dtype": torch.float32}
    model = fetch_model(KEY, source, lambda: auto.AutoModel.from_pretrained(folder, **how)).to(device).eval()
    longest = pooling.max_length or min(
        tokenizer.model_max_length, getattr(model.config, "max_position_embeddings", 512)
    )
    tokenizer.padding_side, cut, given = "right", 0, iter(texts)
    while some := list(islice(given, AT_ONCE)):
        cut += sum(len(ids) > longest for ids in tokenizer(some, verbose=False)["input_ids"])
        read = tokenizer(some, padding=True, truncation=True, max_length=longest, return_tensors="pt").to(device)
        with torch.inference_mode():
            hidden = model(**read).last_hidden_state.float()
            rows = pooling.pool(hidden, read["attention_mask"].bool()).cpu().tolist()
        yield from zip(some, rows, strict=True)
    if cut:
        log.warning("%s: %d texts are longer than %d tokens; only their beginning was read", KEY, cut, longest)
