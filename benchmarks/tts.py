"""What training an acoustic model costs: steps, padding, loading, memory, watching, alignment; against transformers.

    python benchmarks/tts.py [--rounds 9] [--threads 1] [--json FILE]

Built-in voices, the small preset (width 256, 4 + 4 layers), AdamW, about 50 seconds of speech a step. All arms are in
one process and take turns, step by step, each with the same batches. A figure is processor time, which other processes
disturb less than the wall clock; a ratio is the median over rounds of this arm's step against the first arm's of the
same round, with its quartiles. What watching adds, milliseconds whatever the model's size, is measured on a tiny one,
where they can be seen, and related to a step of the small one.

The peer is FastSpeech2ConformerModel of transformers in the same width, depth and about the same number of parameters,
trained by a hand-written loop on the same batches. It also has convolutions, and predictors of pitch and energy.

Activations are the bytes that the allocator holds after the forward pass and didn't hold before it, the peak the most
of them until the end of the backward pass, gradients included (torch.profiler's records of allocations).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from racing import quartiles, say
from torch import Tensor, nn

from vaak.callbacks.profiler import InterbatchProfiler
from vaak.config.load import load
from vaak.core.batch import Batch
from vaak.engine.callback import Run
from vaak.engine.trainer import Trainer
from vaak.nn.recomputation import set_gradient_checkpointing
from vaak.runs.start import temporary_trainer

TINY = ("model={global_config: {d_model: 32, num_layers: 1, num_heads: 2}, duration_predictor: {width: 32}}",)
TINY_ROUNDS = 12
"""Times as many rounds as of the small model."""
LEARNED = ("model.durations=learned",)
FIXED = ("training.batching={type: fixed}", "training.batch_size=16")
Step = Callable[[], tuple[float, float]]
"""Takes a step; seconds of processor time that loading took, and all of it."""


def configuration(folder: Path) -> Path:
    """The YAML of all arms."""
    file = folder / "bench.yml"
    file.write_text(f"""
task: tts
name: bench
model: {{preset: small, global_config: {{dropout: 0.1}}}}
global_config: {{mel: {{sampling_rate: 16000, n_fft: 1024, win_length: 800, hop_length: 200}}}}
datasets: [{{name: voices, type: voices, num_voices: 2, num_sentences: 90, output_dir: {folder / "voices"},
             train_fraction: 0.9, valid_fraction: 0.05}}]
data: {{samples: [], cache_dir: {folder / "cache"}}}
training:
  max_steps: 100000
  device: cpu
  batching: {{type: bucketed, max_duration: 56, num_buckets: 16}}
  optimizer: {{type: adamw, lr: 1e-4}}
  validation: {{interval: 1000000, interval_epochs: null}}
  checkpoint: {{interval: 1000000, interval_epochs: null}}
  memory: {{rehearsal: false}}
""")
    return file


def vaak_step(trainer: Trainer, profiler: InterbatchProfiler | None = None) -> Step:
    """A step of Vaak's own loop, with a profiler told of it if there is one."""
    steps: Generator[Any, None, None] = trainer.upcoming()
    run: Run = trainer
    if profiler is not None:
        profiler.on_fit_start(run)

    def take() -> tuple[float, float]:
        begun = time.process_time()
        data = next(steps)
        loaded = time.process_time()
        report = trainer.take_step(data)
        if profiler is not None:
            profiler.on_step_end(run, report)
        return loaded - begun, time.process_time() - begun

    return take


def peer_step(trainer: Trainer, num_symbols: int) -> Step | None:
    """A step of the model of transformers on the batches of a trainer that takes none; None if it isn't installed."""
    try:
        from transformers import FastSpeech2ConformerConfig, FastSpeech2ConformerModel
    except ImportError:
        return None
    each = {"layers": 4, "num_attention_heads": 4, "linear_units": 352}  # two feed-forward layers a block, half as wide
    sizes: dict[str, Any] = {f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in each.items()}
    sizes |= {"positionwise_conv_kernel_size": 1, "pitch_predictor_layers": 2, "speech_decoder_postnet_layers": 0}
    config = FastSpeech2ConformerConfig(hidden_size=256, vocab_size=num_symbols, **sizes)
    model = FastSpeech2ConformerModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01, fused=True)
    steps = trainer.upcoming()
    say(f"transformers: {sum(one.numel() for one in model.parameters()):,} parameters")

    def take() -> tuple[float, float]:
        begun = time.process_time()
        data = next(steps)
        loaded = time.process_time()
        for microbatch in data.microbatches:
            peer_loss(model, microbatch.batch).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loaded - begun, time.process_time() - begun

    return take


def peer_loss(model: Any, batch: Batch | None) -> Tensor:
    """Its own loss, with pitch and energy that are always the same."""
    assert batch is not None
    symbols, lengths = batch["symbols"], batch["symbol_lengths"]
    mask = torch.arange(symbols.shape[1]) < lengths[:, None]
    flat = torch.zeros(*symbols.shape, 1)
    mel = batch["mel"].masked_fill(
        torch.arange(batch["mel"].shape[1])[:, None] >= batch["frame_lengths"][:, None, None], -100
    )
    outputs = model(
        symbols,
        attention_mask=mask.long(),
        spectrogram_labels=mel,
        duration_labels=batch["durations"],
        pitch_labels=flat,
        energy_labels=flat,
    )
    loss: Tensor = outputs.loss
    return loss


def race(steps: dict[str, Step], rounds: int) -> dict[str, list[tuple[float, float]]]:
    """Seconds of each arm by round; each has taken a step before, and every second round goes the other way."""
    for step in steps.values():
        step()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for turn in range(rounds):
        for name in list(steps)[:: 1 if turn % 2 else -1]:
            found[name].append(steps[name]())
    return found


def table(times: dict[str, list[tuple[float, float]]]) -> dict[str, dict[str, float]]:
    """Print and return an arm's figures against the first one's."""
    base = next(iter(times.values()))
    rows = {}
    say("| | CPU ms a step | ratio (quartiles) | added ms | loading |\n|---|---|---|---|---|")
    for name, own in times.items():
        ratios = [ours / theirs for (_, ours), (_, theirs) in zip(own, base, strict=True)]
        added = statistics.median(ours - theirs for (_, ours), (_, theirs) in zip(own, base, strict=True))
        middle, (low, high) = statistics.median(ratios), quartiles(ratios)
        seconds = statistics.median(step for _, step in own)
        loading = sum(part for part, _ in own) / sum(step for _, step in own)
        rows[name] = {"seconds": seconds, "ratio": middle, "added_ms": 1000 * added, "loading": loading}
        spread = f"{middle:.3f} ({low:.3f} … {high:.3f})"
        say(f"| {name} | {1000 * seconds:.1f} | {spread} | {1000 * added:+.2f} | {100 * loading:.2f} % |")
    return rows


def memory(trainer: Trainer, recompute: bool) -> dict[str, float]:
    """MB of activations, and at the peak, of a forward and backward pass over the first microbatch."""
    set_gradient_checkpointing(trainer.model, recompute)
    (microbatch, *_) = next(trainer.upcoming()).microbatches
    assert microbatch.batch is not None
    trainer.model.train()
    kept: list[float] = []
    for passes in (1, 2):  # the forward pass, and both
        with torch.profiler.profile(profile_memory=True) as profiler:
            terms = trainer.task.losses(trainer.model, microbatch.batch)
            total = torch.stack([term.total for term in terms.values()]).sum()
            if passes == 2:
                total.backward()
        changes = [event.nbytes() for event in _allocations(profiler)]
        kept.append((sum(changes) if passes == 1 else max(accumulate(changes))) / 1e6)
        del terms, total
        trainer.model.zero_grad(set_to_none=True)
    set_gradient_checkpointing(trainer.model, False)
    return {"activations": kept[0], "peak": kept[1]}


def _allocations(profiler: torch.profiler.profile) -> list[Any]:
    """Allocations and releases in their order."""
    assert profiler.profiler is not None
    assert profiler.profiler.kineto_results is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return sorted(events, key=lambda event: event.start_ns())


@contextlib.contextmanager
def trainers(file: Path, arms: dict[str, Sequence[str]]) -> Iterator[dict[str, Trainer]]:
    """A trainer for each arm, with its overrides."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(temporary_trainer(load([file], overrides))) for name, overrides in arms.items()
        }


def small(file: Path, rounds: int) -> dict[str, Any]:
    """The small model: its steps, alignment, recomputing, the peer, padding and memory."""
    arms: dict[str, Sequence[str]] = {
        "given durations": (),
        "learned alignment": LEARNED,
        "gradient checkpointing": ("training.performance.gradient_checkpointing=true",),
        "transformers": (),
    }
    with trainers(file, arms) as racing:
        first = racing["given durations"]
        say(f"Vaak: {sum(one.numel() for one in first.model.parameters()):,} parameters")
        steps = {name: vaak_step(trainer) for name, trainer in racing.items() if name != "transformers"}
        peer = peer_step(racing["transformers"], first.task.prepared.processor.num_symbols)  # type: ignore[attr-defined]
        if peer is not None:
            steps["transformers"] = peer
        usage = {name: memory(first, recompute) for name, recompute in (("kept", False), ("recomputed", True))}
        show_memory(usage)
        with trainers(file, {"fixed": FIXED}) as fixed:
            padding = {"bucketed": first.padding_waste, "fixed": fixed["fixed"].padding_waste}
        say("padding: " + ", ".join(f"{name} {100 * value:.1f} %" for name, value in padding.items()) + "\n")
        return {"memory": usage, "padding": padding, "steps": table(race(steps, rounds))}


def show_memory(usage: dict[str, dict[str, float]]) -> None:
    """Print what recomputing saves."""
    saved = {name: 1 - usage["recomputed"][name] / usage["kept"][name] for name in ("activations", "peak")}
    for name, value in usage.items():
        say(f"activations {name}: {value['activations']:.0f} MB after the forward pass, {value['peak']:.0f} MB at most")
    say(
        f"saved: {100 * saved['activations']:.0f} % of activations (aim: 75 %), {100 * saved['peak']:.0f} % of the peak"
    )


def watching(file: Path, rounds: int, step: float) -> dict[str, Any]:
    """What the memory manager and the profiler add to a step, and as a part of ``step`` seconds."""
    off = (*TINY, "training.memory.manager=false")
    with trainers(file, {"no manager": off, "memory manager": TINY, "profiler": off, "again": off}) as racing:
        steps = {
            name: vaak_step(one, InterbatchProfiler(50) if name == "profiler" else None) for name, one in racing.items()
        }
        rows = table(race(steps, TINY_ROUNDS * rounds))
    for name, aim in (("memory manager", 1), ("profiler", 5), ("again", 0)):
        what, added = f"aim: under {aim} %" if aim else "the same twice: noise", rows[name]["added_ms"]
        say(f"{name}: {added:+.2f} ms, {added / step / 10:+.2f} % of a small step; {what}")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("vaak").addHandler(logging.NullHandler())
    with tempfile.TemporaryDirectory() as place:
        file = configuration(Path(place))
        results = small(file, options.rounds)
        say("")
        results["watching"] = watching(file, options.rounds, results["steps"]["given durations"]["seconds"])
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
