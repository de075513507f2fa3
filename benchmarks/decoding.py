"""Sampled tokens a second, of Vaak and of transformers' ``generate`` with the same weights, in turns in one process.

The model is a random Llama, exported by Vaak and loaded by transformers. Both sample from the whole distribution, from
the 50 best tokens, or from the nucleus; ``Vaak ÷ transformers`` is the ratio of the median times, above 1 where Vaak is
faster. Needs transformers.

    python benchmarks/decoding.py
    python benchmarks/decoding.py --vocab 32000 --rows 1 16 --tokens 64 --rounds 3
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models

from vaak.nn.decoding.sampling import SamplingSettings
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.export import RunTokenizer, export_hf
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.predict import generate_batch

WAYS: dict[str, dict[str, Any]] = {"greedy": {}, "whole": {}, "top-k 50": {"top_k": 50}, "top-p 0.9": {"top_p": 0.9}}
PROMPT = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=32000)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ours, theirs = _models(options)
    print("| sampling | rows | Vaak, tokens/s | transformers, tokens/s | Vaak ÷ transformers |\n|---|---|---|---|---|")
    for way, filters in WAYS.items():
        for rows in options.rows:
            arms = _arms(ours, theirs, way, filters, rows, options.tokens)
            seconds = _raced(arms, options.rounds)
            rates = [rows * options.tokens / each for each in seconds]
            print(f"| {way} | {rows} | {rates[0]:.0f} | {rates[1]:.0f} | {rates[0] / rates[1]:.2f} |", flush=True)


def _models(options: argparse.Namespace) -> tuple[LanguageModel, Any]:
    """The model of both sides."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = LanguageModelConfig(d_model=options.width, num_layers=options.layers, num_heads=options.width // 64)
    ours = LanguageModel(config, options.vocab).eval()
    torch.nn.init.normal_(ours.embedding.weight, std=0.2)  # scores that differ, as those of a trained model do
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tokenizer.json"
        Tokenizer(models.WordLevel({"<s>": 0}, unk_token="<s>")).save(str(file))
        tokenizer = RunTokenizer(file, {"bos_token": "<s>"})
        export_hf(ours, tokenizer, PROMPT + options.tokens, Path(folder) / "model")
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "model").train(False)
    return ours, theirs


def _arms(
    ours: LanguageModel, theirs: Any, way: str, filters: dict[str, Any], rows: int, tokens: int
) -> tuple[Callable[[], object], Callable[[], object]]:
    """Each writes this many tokens after the same prompts; none ends early."""
    prompts = torch.randint(ours.vocab_size, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    settings = SamplingSettings(tokens, temperature=0.0 if way == "greedy" else 1.0, **filters)
    sampling: dict[str, Any] = {"do_sample": way != "greedy"}
    if way != "greedy":
        sampling |= {"top_k": 0, "top_p": 1.0, "temperature": 1.0} | filters
    lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
    with_mask = {"attention_mask": torch.ones_like(prompts)}
    return (
        lambda: generate_batch(ours, prompts.tolist(), settings),
        lambda: theirs.generate(prompts, **with_mask, **lengths, **sampling),
    )


def _raced(arms: tuple[Callable[[], object], ...], rounds: int) -> list[float]:
    """The median seconds of each arm; they take turns, after one round that isn't counted."""
    seconds: list[list[float]] = [[] for _ in arms]
    for number in range(rounds + 1):
        for arm, own in zip(arms, seconds, strict=True):
            begin = time.perf_counter()
            arm()
            if number:
                own.append(time.perf_counter() - begin)
    return [statistics.median(own) for own in seconds]


if __name__ == "__main__":
    main()
