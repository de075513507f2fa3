"""Processor time of turning tokens into text as they come, against decoding the whole text again for each of them.

    python benchmarks/detokenizing.py
    python benchmarks/detokenizing.py --tokens 256 --rounds 5

Answers of 1, 4 and 16 times as many tokens after a short prompt, then an answer of one length after prompts of 1, 4
and 16 times as many. Figures are relative to the smallest size of the same row, so 16 is linear in the first table, and
1 says in the second that the prompt costs nothing. Medians of rounds in which both ways alternate. The tokenizers are
made here, as a decoder's time doesn't depend on how its vocabulary was learned.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models

from vaak.text.detokenizer import Pieces
from vaak.text.tokenizer import Tokenizer

GROWTH = (1, 4, 16)
SENTENCEPIECE = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
KINDS: dict[str, tuple[str, Any]] = {
    "byte-level": ("Ġ", decoders.ByteLevel()),
    "SentencePiece": ("▁", decoders.Sequence(SENTENCEPIECE)),
    "WordPiece": ("", decoders.WordPiece()),
}
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
PROMPT = 8


class WholeText:
    """Compute the result of ``Pieces`` by decoding all tokens for each of them."""

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self.tokenizer, self.ids = tokenizer, list(prompt)
        self.said = tokenizer.decode(self.ids)

    def add(self, token: int) -> str:
        self.ids.append(token)
        whole = self.tokenizer.decode(self.ids)
        piece, self.said = whole[len(self.said) :], whole
        return piece


def make_tokenizer(space: str, decoder: Any) -> Tokenizer:
    """A tokenizer of 4,000 short words."""
    words = [f"{space}w{number}" for number in range(4000)]
    names = {name: number for number, name in enumerate([*SPECIAL, *words])}
    backend = Backend(models.WordLevel(names, unk_token="<unk>"))
    backend.add_special_tokens(SPECIAL)
    backend.decoder = decoder
    return Tokenizer(backend)


def measure(begin: Callable[..., Any], tokenizer: Tokenizer, prompt: list[int], ids: list[int]) -> tuple[float, str]:
    """Return the seconds of processor time that an answer takes once the prompt was read, and its text."""
    found = begin(tokenizer, prompt)
    # What the prompt costs once isn't what this is about.
    first = found.add(ids[0])
    begun = time.process_time()
    text = first + "".join([found.add(token) for token in ids[1:]])
    return time.process_time() - begun, text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    draw = random.Random(0)
    for title, is_answer in (("answers", True), ("prompts", False)):
        print(f"{title} of {asked.tokens} tokens: ×1, ×4, ×16")
        for name, kind in KINDS.items():
            tokenizer = make_tokenizer(*kind)
            ids = [draw.randrange(len(SPECIAL), len(tokenizer)) for _ in range((GROWTH[-1] + 1) * asked.tokens)]
            costs: dict[tuple[Any, int], list[float]] = {
                (way, size): [] for way in (WholeText, Pieces) for size in GROWTH
            }
            for _ in range(asked.rounds):
                for size in GROWTH:
                    prompt = ids[: PROMPT if is_answer else size * asked.tokens]
                    answer = ids[-asked.tokens * (size if is_answer else 1) :]
                    texts = set()
                    for way in (WholeText, Pieces):
                        seconds, text = measure(way, tokenizer, prompt, answer)
                        costs[way, size].append(seconds)
                        texts.add(text)
                    assert len(texts) == 1, "both ways give the same text"
            for way, said in ((WholeText, "whole text"), (Pieces, "as they come")):
                times = [median(costs[way, size]) for size in GROWTH]
                growth = "  ".join(f"{one / times[0]:7.2f}" for one in times)
                print(
                    f"  {name:<14} {said:<13} {growth}   ({1e6 * times[0] / asked.tokens:.1f} µs a token at ×1)",
                    flush=True,
                )


if __name__ == "__main__":
    main()
