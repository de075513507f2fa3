"""Sampled tokens a second, of Vaak and of transformers' ``generate`` with the same weights, in turns in one process.

The model is a random Llama, exported by Vaak and loaded by transformers. Both sample from the whole distribution, from
the 50 best tokens, or from the nucleus; ``Vaak ÷ transformers`` is the ratio of the median times, above 1 where Vaak is
faster. Needs transformers. With ``--llama``, llama.cpp (xllamacpp, whose wheel has it built for AVX2) reads the GGUF
export in 32 bits, and generates in the same process, too; the number of its greedy texts that equal Vaak's is printed.

    python benchmarks/decoding.py
    python benchmarks/decoding.py --vocab 32000 --rows 1 8 --tokens 64 --rounds 5 --clock cpu --llama
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from vaak.nn.decoding.sampling import SamplingSettings
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.export import export_hf
from vaak.tasks.lm.export_tokenizer import RunTokenizer
from vaak.tasks.lm.gguf import write_gguf
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
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time of the process")
    parser.add_argument("--llama", action="store_true", help="llama.cpp, too; needs xllamacpp and gguf")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    ours, theirs, llama = _models(options)
    peers = ["transformers", *(["llama.cpp"] if llama else [])]
    columns = ["sampling", "rows", *(f"{name}, tokens/s" for name in ("Vaak", *peers)), *(f"Vaak ÷ {n}" for n in peers)]
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for way in options.ways:
        for rows in options.rows:
            arms = _arms(ours, theirs, llama, way, rows, options.tokens)
            seconds = _raced(arms, options.rounds, time.process_time if options.clock == "cpu" else time.perf_counter)
            rates = [rows * options.tokens / each for each in seconds]
            cells = [*(f"{rate:.0f}" for rate in rates), *(f"{rates[0] / rate:.2f}" for rate in rates[1:])]
            print(f"| {way} | {rows} | {' | '.join(cells)} |", flush=True)


def _models(options: argparse.Namespace) -> tuple[LanguageModel, Any, Llama | None]:
    """The model of all sides."""
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    config = LanguageModelConfig(d_model=options.width, num_layers=options.layers, num_heads=options.width // 64)
    ours = LanguageModel(config, options.vocab).eval()
    torch.nn.init.normal_(ours.embedding.weight, std=0.2)  # scores that differ, as those of a trained model do
    with tempfile.TemporaryDirectory() as folder:
        tokenizer = RunTokenizer(Path(folder) / "tokenizer.json", {"bos_token": "<s>", "eos_token": "</s>"})
        _tokenizer(options.vocab).save(str(tokenizer.file))
        length = PROMPT + options.tokens
        export_hf(ours, tokenizer, length, Path(folder) / "model")
        theirs = AutoModelForCausalLM.from_pretrained(Path(folder) / "model").train(False)
        llama = None
        if options.llama:
            write_gguf(lambda to: export_hf(ours, tokenizer, length, to), Path(folder) / "gguf", "f32")
            llama = Llama(Path(folder) / "gguf" / "model.gguf", length, max(options.rows), options.threads)
    return ours, theirs, llama


def _tokenizer(size: int) -> Tokenizer:
    """One of merged bytes with this many tokens, of which most are pairs; it is only there to be exported."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [(one, other) for one in letters for other in letters][: max(0, size - len(letters) - 2)]
    tokens = ["<s>", "</s>", *letters, *map("".join, merges)][:size]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return tokenizer


class Llama:
    """llama.cpp in this process: as many texts at once as there are prompts, in one batch."""

    def __init__(self, file: Path, length: int, rows: int, threads: int) -> None:
        """``length`` tokens are what each of ``rows`` texts can have."""
        import xllamacpp

        options = xllamacpp.CommonParams()
        options.model.path, options.n_parallel, options.n_ctx = str(file), rows, rows * (length + 8)
        options.cpuparams.n_threads = options.cpuparams_batch.n_threads = threads
        options.n_gpu_layers, options.warmup, options.cache_ram_mib, options.verbosity = 0, False, 0, -1
        self.server = xllamacpp.Server(options)

    def generate(self, prompts: list[list[int]], tokens: int, way: str) -> list[str]:
        """Return the texts of this many tokens after each prompt."""
        sampling: dict[str, Any] = {"temperature": 0.0}
        if way != "greedy":
            filters = {"top_k": 0, "top_p": 1.0, "min_p": 0.0} | WAYS[way]
            sampling = {"temperature": 1.0, "samplers": ["top_k", "top_p", "temperature"], **filters}
        asked = {"prompt": prompts, "max_tokens": tokens, "ignore_eos": True, "cache_prompt": False}
        answers: list[dict[str, Any]] = []
        self.server.handle_completions(asked | sampling, answers.append)
        choices = [choice for answer in answers for choice in answer["choices"]]
        return [choice["text"] for choice in sorted(choices, key=lambda choice: choice["index"])]


def _arms(
    ours: LanguageModel, theirs: Any, llama: Llama | None, way: str, rows: int, tokens: int
) -> list[Callable[[], Any]]:
    """Each writes this many tokens after the same prompts; none ends early."""
    filters = WAYS[way]
    prompts = torch.randint(2, ours.vocab_size, (rows, PROMPT), generator=torch.Generator().manual_seed(1))
    settings = SamplingSettings(tokens, temperature=0.0 if way == "greedy" else 1.0, **filters)
    sampling: dict[str, Any] = {"do_sample": way != "greedy"}
    if way != "greedy":
        sampling |= {"top_k": 0, "top_p": 1.0, "temperature": 1.0} | filters
    lengths = {"max_new_tokens": tokens, "min_new_tokens": tokens, "pad_token_id": 0}
    with_mask = {"attention_mask": torch.ones_like(prompts)}
    arms: list[Callable[[], Any]] = [
        lambda: generate_batch(ours, prompts.tolist(), settings),
        lambda: theirs.generate(prompts, **with_mask, **lengths, **sampling),
    ]
    if llama is not None:
        arms.append(lambda: llama.generate(prompts.tolist(), tokens, way))
        if way == "greedy":
            decode = _tokenizer(ours.vocab_size).decode
            own = [decode(text) for text in generate_batch(ours, prompts.tolist(), settings)]
            same = sum(one == other for one, other in zip(own, arms[2](), strict=True))
            print(f"# {same} of {rows} greedy texts are the same as llama.cpp's", file=sys.stderr)
    return arms


def _raced(arms: list[Callable[[], Any]], rounds: int, clock: Callable[[], float]) -> list[float]:
    """The median seconds of each arm; they take turns, after one round that isn't counted."""
    seconds: list[list[float]] = [[] for _ in arms]
    for number in range(rounds + 1):
        for arm, own in zip(arms, seconds, strict=True):
            begin = clock()
            arm()
            if number:
                own.append(clock() - begin)
    return [statistics.median(own) for own in seconds]


if __name__ == "__main__":
    main()
