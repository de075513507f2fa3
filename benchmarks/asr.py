"""Speech recognition: experts, embeddings and transcribing, each against another way to do the same, in turns.

The Whisper has random weights, in the sizes of the options. Each row is the median over rounds in which its ways take
turns in one process, so ratios are more reproducible than times.

- routing: a training step's forward and backward pass with each expert on its own utterances only; with every expert
  on all utterances inside the layers; and with the whole network run once for each expert, as in the original pipeline
- embeddings: utterances a second of the encoder, and 10,000 mean-pooled embeddings of width 1280: time and disk of
  writing them, time and memory of clustering them in a separate process
- decoding: real-time factor (seconds of work a second of audio) of Vaak with its KV cache, without it, and of
  transformers' ``generate``, all writing the same tokens
- files: ``--rows`` audio files transcribed as ``vaak transcribe`` does, together and one by one, to the same words
- beams: a search with five hypotheses that end in the second half of ``--tokens``, with and without
  ``early_stopping``, against transformers' with its three ways to stop

::

    python benchmarks/asr.py
    python benchmarks/asr.py --parts routing --experts 8 --rounds 9
"""

from __future__ import annotations

import argparse
import copy
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch import Tensor
from transformers import GenerationConfig, GenerationMixin

from vaak.core.machine import host_memory
from vaak.nn.decoding.sampling import SamplingSettings, next_tokens, without_dropout
from vaak.nn.lora_experts import choices_by
from vaak.pipeline.rows import PipelineRowStore, disk_bytes, make_rows
from vaak.tasks.asr.config import AsrDecodingConfig, ExpertsConfig, ScratchConfig
from vaak.tasks.asr.stages.clustering import cluster
from vaak.tasks.asr.stages.options import ClusteringConfig
from vaak.tasks.asr.vocabulary import SpecialIds, Vocabulary
from vaak.tasks.asr.whisper.features import WhisperFeatures
from vaak.tasks.asr.whisper.model import AsrModel, Encoded
from vaak.tasks.asr.whisper.network import random_whisper, scratch_config
from vaak.tasks.asr.whisper.predict import WhisperTranscriber

PARTS = ("routing", "embeddings", "decoding", "files", "beams")
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
BEGIN, END, PAD = 0, 1, 2
NUM_UTTERANCES, WIDTH, POSITIONS = 10_000, 1280, 1500


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=2, help="of the encoder, and of the decoder")
    parser.add_argument("--vocab", type=int, default=8000)
    parser.add_argument("--seconds", type=float, default=5.0, help="of an utterance")
    parser.add_argument("--rows", type=int, default=16, help="utterances of a batch")
    parser.add_argument("--tokens", type=int, default=32, help="of a transcript")
    parser.add_argument("--experts", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall", help="cpu: processor time, where others work, too")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for part in options.parts:
        parts = {"routing": routing, "embeddings": embeddings, "decoding": decoding, "files": files, "beams": beams}
        parts[part](options)


def whisper_of(options: argparse.Namespace) -> Any:
    torch.manual_seed(0)
    sizes = ScratchConfig(
        d_model=options.width,
        encoder_layers=options.layers,
        decoder_layers=options.layers,
        num_heads=options.width // 64,
        max_target_length=options.tokens + 8,
        dropout=0.0,
    )
    ids = SpecialIds((BEGIN,), END, PAD, options.vocab, ())
    return random_whisper(scratch_config(sizes, ids, 80, options.seconds))


def compute_features(options: argparse.Namespace) -> Tensor:
    return torch.randn(options.rows, 80, round(100 * options.seconds), generator=torch.Generator().manual_seed(1))


def routing(options: argparse.Namespace) -> None:
    """Each way gives the same gradients; the first is Vaak's."""
    experts = ExpertsConfig(num_experts=options.experts, top_k=1, rank=8)
    model = AsrModel(whisper_of(options), experts=experts).train()
    features = compute_features(options)
    tokens = torch.randint(3, options.vocab, (options.rows, options.tokens + 1))
    turns = torch.arange(options.rows) % options.experts
    chosen = 8.0 * torch.nn.functional.one_hot(turns, options.experts).float()
    assert model.gate is not None
    model.gate.register_forward_hook(lambda gate, inputs, logits: 0 * logits + chosen)  # all are used alike

    def step(logits: Callable[[], Tensor]) -> dict[str, Tensor]:
        model.zero_grad()
        torch.nn.functional.cross_entropy(logits().flatten(0, 1), tokens[:, 1:].flatten(), reduction="sum").backward()
        return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}

    def in_layers() -> Tensor:
        """Every expert on every row; the weights of those that weren't chosen are next to nothing."""
        found = model.encode(features)
        assert found.weights is not None
        weights = found.weights.clamp(min=1e-30)
        with model.routing.of(choices_by(weights)):
            states = model._states(features)
        return model.decode(tokens[:, :-1], Encoded(states, found.gate, weights, choices_by(weights)))

    def each_whole() -> Tensor:
        """The network once for each expert, and the outputs weighed."""
        with torch.no_grad():
            states = model._states(features)
        weights = torch.softmax(model.gate(states.mean(1)), -1) * (chosen > 0)  # type: ignore[misc]
        total = torch.zeros(())
        for expert in range(options.experts):
            only = torch.nn.functional.one_hot(torch.full((options.rows,), expert), options.experts).float()
            with model.routing.of(choices_by(only)):
                states = model._states(features)
            logits = model.decode(tokens[:, :-1], Encoded(states, None, only, choices_by(only)))
            total = total + weights[:, expert, None, None] * logits
        return total

    ways = {
        "each expert on its own utterances": lambda: step(lambda: model(features, tokens[:, :-1]).logits),
        "every expert on all, in the layers": lambda: step(in_layers),
        "the network once for each expert": lambda: step(each_whole),
    }
    table(f"{options.experts} experts, top-1", "utterances/s", options.rows, raced(ways, options))


def embeddings(options: argparse.Namespace) -> None:
    model, features = AsrModel(whisper_of(options)).eval(), compute_features(options)

    def embed(size: int) -> Callable[[], object]:
        @torch.inference_mode()
        def run() -> object:
            return [model.encode(some).states.mean(1) for some in features.split(size)]

        return run

    ways = {f"{size} at a time": embed(size) for size in (options.rows, 1)}
    table(f"embedding {options.seconds:g} s", "utterances/s", options.rows, raced(ways, options))
    with tempfile.TemporaryDirectory() as folder:
        print("\n| 10,000 embeddings | writing, s | MiB on disk | clustering, s | its peak memory, MiB |")
        print("|---|---|---|---|---|")
        for dtype in ("float32", "float16"):
            rows = Path(folder) / dtype
            begin = CLOCKS[options.clock]()
            make_rows(
                rows, [str(number) for number in range(NUM_UTTERANCES)], lambda: pooled, shape=(WIDTH,), dtype=dtype
            )
            wrote = CLOCKS[options.clock]() - begin
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as alone:
                seconds, peak, num_clusters = alone.submit(clustered, rows, options.clock).result()
            disk = sum(path.stat().st_size for path in rows.iterdir()) / 2**20
            name = f"mean-pooled, {dtype} ({num_clusters} clusters)"
            print(f"| {name} | {wrote:.1f} | {disk:.1f} | {seconds:.1f} | {peak / 2**20:.0f} |", flush=True)
    whole = disk_bytes(NUM_UTTERANCES, (POSITIONS, WIDTH), "float32") / 2**30
    print(f"\nAll {POSITIONS} states of each, float32, as in the original: {whole:.1f} GiB (computed)")


def pooled(keys: list[str]) -> np.ndarray:
    """Rows around twelve places."""
    numbers = np.array(keys, int)
    places = np.random.default_rng(0).normal(size=(12, WIDTH))
    rows: np.ndarray = places[numbers % 12] + np.random.default_rng(numbers[0]).normal(size=(len(keys), WIDTH))
    return rows


def clustered(folder: Path, clock: str) -> tuple[float, int, int]:
    """Seconds, the most bytes in use (all of the process), and the clusters found."""
    os.environ["OMP_NUM_THREADS"] = "1"
    begin = CLOCKS[clock]()
    found = cluster(PipelineRowStore(folder), ClusteringConfig())
    return CLOCKS[clock]() - begin, host_memory().peak(), found.num_clusters


def decoding(options: argparse.Namespace) -> None:
    whisper, features = whisper_of(options).eval(), compute_features(options)
    ids = SpecialIds((BEGIN,), END, PAD, options.vocab, (END,))  # so that none ends early
    model = AsrModel(copy.deepcopy(whisper)).eval()
    decoding = AsrDecodingConfig(max_new_tokens=options.tokens, batch_size=options.rows)
    transcriber = WhisperTranscriber(model, Vocabulary("", ids), WhisperFeatures(80, options.seconds), decoding)
    settings = SamplingSettings(options.tokens, temperature=0)

    def with_cache(rows: Tensor) -> list[list[int]]:
        with torch.inference_mode():
            return [list(one.tokens) for one in transcriber.written(model.encode(rows))]

    @torch.inference_mode()
    def without_cache(rows: Tensor) -> list[list[int]]:
        with without_dropout(model):
            encoded = model.encode(rows)
            written = torch.full((len(rows), 1), BEGIN)
            for _ in range(options.tokens):
                logits = model.decode(written, encoded)[:, -1].index_fill(1, torch.tensor([END]), -torch.inf)
                written = torch.cat((written, next_tokens(logits, [[]] * len(rows), settings, None)[:, None]), 1)
        return written[:, 1:].tolist()

    make: Any = GenerationConfig  # it has no types
    whisper.generation_config = make(
        max_new_tokens=options.tokens,
        min_new_tokens=options.tokens,
        bos_token_id=BEGIN,
        eos_token_id=END,
        pad_token_id=PAD,
    )

    def by_transformers(rows: Tensor) -> list[list[int]]:
        """The loop that all models of transformers share: no windows, languages or timestamps."""
        begin = torch.full((len(rows), 1), BEGIN)
        found: Any = GenerationMixin.generate(whisper, rows, decoder_input_ids=begin)
        rows_written: list[list[int]] = found[:, 1:].tolist()
        return rows_written

    ways = {"Vaak": with_cache, "Vaak, no cache": without_cache, "transformers": by_transformers}
    for number in (1, options.rows):
        rows = features[:number]
        results = {name: way(rows) for name, way in ways.items()}
        assert all(found == results["Vaak"] for found in results.values()), "the ways write different tokens"
        seconds = raced({name: partial(way, rows) for name, way in ways.items()}, options)
        audio = number * options.seconds
        print(
            f"\n| {number} × {options.seconds:g} s, {options.tokens} tokens | real-time factor | ÷ Vaak |"
            "\n|---|---|---|"
        )
        for name, own in seconds.items():
            ratio = statistics.median(each / base for each, base in zip(own, seconds["Vaak"], strict=True))
            print(f"| {name} | {statistics.median(own) / audio:.4f} | {ratio:.2f} |", flush=True)


class Numbers(Vocabulary):
    """Words are the numbers of tokens."""

    def decode(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))


def files(options: argparse.Namespace) -> None:
    """Noise, of lengths between a quarter of ``seconds`` and all, read from disk; each transcript has all tokens."""
    ids = SpecialIds((BEGIN,), END, PAD, options.vocab, (END,))
    model, rng = AsrModel(whisper_of(options)).eval(), np.random.default_rng(3)
    decoding = AsrDecodingConfig(max_new_tokens=options.tokens)
    transcriber = WhisperTranscriber(model, Numbers("", ids), WhisperFeatures(80, options.seconds), decoding)
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{number}.wav" for number in range(options.rows)]
        for path in paths:
            soundfile.write(
                path, 0.1 * rng.standard_normal(int(rng.uniform(0.25, 1) * options.seconds * 16_000)), 16_000
            )

        def transcribed(batch_size: int) -> list[Any]:
            return list(transcriber.transcribe_files(paths, batch_size))

        together, alone = ([one.text for one in transcribed(size)] for size in (options.rows, 1))
        same = sum(one == other for one, other in zip(together, alone, strict=True))
        ways = {f"{size} at a time": partial(transcribed, size) for size in (options.rows, 1)}
        table(f"{len(paths)} files, the same words in {same}", "files/s", len(paths), raced(ways, options))


def beams(options: argparse.Namespace) -> None:
    whisper, features = whisper_of(options).eval(), compute_features(options)
    ids = SpecialIds((BEGIN,), END, PAD, options.vocab, ())
    model = AsrModel(whisper).eval()
    _may_end(model, features, options)
    audio, longest = WhisperFeatures(80, options.seconds), options.tokens

    def by_vaak(early_stopping: bool) -> list[list[int]]:
        decoding = AsrDecodingConfig(
            method="beam", max_new_tokens=longest, batch_size=options.rows, early_stopping=early_stopping
        )
        with torch.inference_mode():
            found = WhisperTranscriber(model, Vocabulary("", ids), audio, decoding).written(model.encode(features))
            return [list(one.tokens) for one in found]

    make: Any = GenerationConfig  # it has no types

    def by_transformers(early_stopping: bool | str) -> list[list[int]]:
        whisper.generation_config = make(
            max_new_tokens=longest,
            num_beams=5,
            early_stopping=early_stopping,
            bos_token_id=BEGIN,
            eos_token_id=END,
            pad_token_id=PAD,
        )
        with torch.inference_mode():
            begin = torch.full((len(features), 1), BEGIN)
            found: Any = GenerationMixin.generate(whisper, features, decoder_input_ids=begin)
        return [[token for token in row[1:] if token not in (END, PAD)] for row in found.tolist()]

    ways: dict[str, Callable[[], list[list[int]]]] = {
        "Vaak": partial(by_vaak, True),
        "Vaak, early_stopping: false": partial(by_vaak, False),
        "transformers, early_stopping=True": partial(by_transformers, True),
        "transformers, early_stopping=False": partial(by_transformers, False),
        'transformers, early_stopping="never"': partial(by_transformers, "never"),
    }
    found = {name: way() for name, way in ways.items()}
    print(f"\nMean length of what is written: {statistics.mean(len(row) for row in found['Vaak']):.1f} tokens.")
    for own, theirs in (("Vaak", "True"), ("Vaak, early_stopping: false", '"never"')):
        other = found[f"transformers, early_stopping={theirs}"]
        same = sum(one == another for one, another in zip(found[own], other, strict=True))
        print(f"{own} and transformers' {theirs}: the same tokens in {same} of {len(other)} rows.")
    table(f"{options.rows} × {options.seconds:g} s, five beams", "utterances/s", options.rows, raced(ways, options))


@torch.no_grad()
def _may_end(model: AsrModel, features: Tensor, options: argparse.Namespace) -> None:
    """Make the decoder as sure of its tokens as a trained one is, and let it end in the second half of ``--tokens``.

    The end's logit is the linear function of the state that comes closest, in least squares, to what that demands of
    transcripts of random tokens.
    """
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(3, options.vocab, (8 * len(features), options.tokens), generator=generator)
    head = model.whisper.proj_out
    head.weight = torch.nn.Parameter(30 * head.weight)
    states: list[Tensor] = []
    hook = head.register_forward_hook(lambda module, inputs, output: states.append(inputs[0]))
    logits = model.decode(tokens, model.encode(features.repeat(8, 1, 1)))
    hook.remove()
    odds = torch.where(torch.arange(options.tokens) < options.tokens // 2, -12.0, 12.0)
    wanted = (logits.logsumexp(-1) + odds).flatten()
    head.weight[END] = torch.linalg.lstsq(states[0].flatten(0, 1), wanted[:, None]).solution[:, 0]


def raced(ways: Mapping[str, Callable[[], object]], options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each way by round; they take turns, after one round that isn't counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    clock = CLOCKS[options.clock]
    for number in range(options.rounds + 1):
        for name, way in ways.items():
            begin = clock()
            way()
            if number:
                seconds[name].append(clock() - begin)
    return seconds


def table(title: str, unit: str, number: int, seconds: dict[str, list[float]]) -> None:
    """A line for each way: how many of ``number`` a second, and its time against that of the first way."""
    print(f"\n| {title} | {unit} | time ÷ first |\n|---|---|---|")
    first = next(iter(seconds.values()))
    for name, own in seconds.items():
        ratio = statistics.median(each / base for each, base in zip(own, first, strict=True))
        print(f"| {name} | {number / statistics.median(own):.2f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
