"""What several ranks cost: the time of a step on 1, 2 and 4 gloo processes, and what they send to each other.

    PYTHONPATH=src python benchmarks/ranks.py [--before OTHER_CHECKOUT] [--exact] [--strategies zero1 fsdp] [--small]
                                           [--ranks 1 2 4] [--rounds 5] [--options training.device=cuda …] [--json FILE]

It prints three tables:

  steps     a small language model trained by the real trainer: milliseconds of a step (median of the rounds' medians,
            and their spread), collectives and payload bytes a step, counted at the calls of torch.distributed
  parts     the messages before a step, and the sum of gradients of some million numbers, alone; the most memory that
            the process had used, with all gradients summed
  computed  what 8 and 64 ranks and a billion parameters would send and hold, from the sizes of the messages

With ``--before`` each round also runs the Vaak of another checkout, in turn, so that a noisy machine is noisy for both;
with ``--exact`` also steps with exact sums, and with ``--strategies`` those whose model or update is divided, where the
peak of a process counts; the bytes exclude those that torch's ``fully_shard`` sends. ``--options`` go into the YAML:
another device, a larger model. ``--small`` has a model of 4 layers of width 128, with 8 × 128 tokens.

    PYTHONPATH=src python benchmarks/ranks.py --fake 1024

trains as rank 0 of that number, with no others running: torch's ``fake`` backend answers for them at once. So it shows
what this process itself does for that number: plan, messages, memory; not how long a network takes.

    PYTHONPATH=src python benchmarks/ranks.py --peers [--ranks 2 4] [--rounds 5]

races Vaak with torch's DistributedDataParallel in a hand-written loop, and with accelerate: the same model, tokens,
optimizer and rows of each process, in turns (arms.py). Reports a step's seconds on rank 0 and its processor time
over all processes, each as a ratio to DDP's in the same round: the median of the rounds, and their spread.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from racing import SIZES, Bench

HERE = Path(__file__).resolve()
SOURCE = HERE.parents[1] / "src"

CONFIG = """
task: lm
name: ranks
model: {d_model: 64, num_layers: 2, num_heads: 4}
data:
  corpus: {type: grammar, num_sentences: 4000}
  tokenizer: {type: byte_level, vocab_size: 600}
  max_length: 48
training:
  device: cpu
  max_steps: STEPS
  batch_size: 4
  gradient_accumulation_steps: 4
  optimizer: {type: adamw, lr: 1e-3}
  memory: {rehearsal: false}
  validation: {interval: null, interval_epochs: null}
  checkpoint: {interval_epochs: null, resume: null}
  logging: {interval: 100000, tensorboard: false, progress_bar: false}
"""
WARM_UP = 10
PART_NUMBERS = 20_000_000
"""Gradients of the second table; in tensors of a quarter of a million, as a model of that size has them."""
PART_TENSORS = 80


class Counted:
    """The collectives of this process: names and payload bytes."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self.calls: list[tuple[str, int]] = []
        for name, place in (("all_gather", 1), ("all_reduce", 0), ("broadcast", 0)):
            setattr(dist, name, self._counting(name, getattr(dist, name), place))

    def _counting(self, name: str, inner: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, arguments[place].nbytes))
            return inner(*arguments, **options)

        return call


def train_steps(folder: Path, steps: int) -> dict[str, Any]:
    """Train with the real trainer and say what its steps took and sent."""
    from vaak.config.load import load
    from vaak.engine.callback import Callback
    from vaak.runs.start import train

    counted = Counted()
    times: list[float] = []
    sent: list[int] = []

    class Watch(Callback):
        def on_step_end(self, *_: Any) -> None:
            times.append(time.perf_counter())
            sent.append(len(counted.calls))

    (folder / "job.yml").write_text(CONFIG.replace("STEPS", str(steps)))
    options = json.loads(os.environ.get("OPTIONS", "[]"))
    train(load([folder / "job.yml"], [f"run_dir={folder / 'run'}", *options]), (Watch(),))
    laps = [1e3 * (after - before) for before, after in zip(times[WARM_UP:], times[WARM_UP + 1 :], strict=False)]
    calls = counted.calls[sent[WARM_UP] : sent[-2]]
    steps_counted = len(sent) - 2 - WARM_UP
    return {
        "ms": statistics.median(laps),
        "calls": len(calls) / steps_counted,
        "bytes": sum(nbytes for _, nbytes in calls) / steps_counted,
        "peak_mb": _peak_mb(),
    }


def _peak_mb() -> float:
    """The most memory that this process has used: of its GPU where it has one."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure_parts() -> dict[str, Any]:
    """The talk before a step and the sum of many gradients, alone."""
    import torch

    from vaak.config.training import TrainingConfig
    from vaak.engine.distributed.ranks import start_ranks

    torch.set_num_threads(1)
    ranks = start_ranks(TrainingConfig(device="cpu", gradient_accumulation_steps=int(os.environ["WORLD_SIZE"])))
    shape = (PART_NUMBERS // PART_TENSORS,)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for _ in range(PART_TENSORS)]
    sums = {"main": torch.ones(())}
    talk, reduce = (_talk_now, _reduce_now) if hasattr(ranks, "exchange") else (_talk_before, _reduce_before)
    talk_ms = _median_ms(lambda: talk(ranks), 200)
    reduce_ms = _median_ms(reduce(ranks, parameters, sums), 5)
    ranks.wait()
    ranks.close()
    return {"talk_ms": talk_ms, "reduce_ms": reduce_ms, "peak_mb": _peak_mb()}


def train_as_one_of(world_size: int, steps: int) -> dict[str, Any]:
    """Return rank 0's figures in a simulated run of that many processes, of which it is the only real one."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore  # registers the backend

    from vaak.engine.distributed import ranks

    def alone(backend: str, device: Any, timeout: Any) -> ranks.Ranks:
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=world_size)
        return ranks.Ranks(device, 0, world_size)

    ranks._join = alone
    ranks.Ranks._broadcast = lambda self, tensor: None  # type: ignore[method-assign]  # a fake one is never complete
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        figures = train_steps(Path(folder), steps)
    return figures | {"seconds": time.perf_counter() - begun}


def _median_ms(function: Callable[[], Any], times: int) -> float:
    laps = []
    for _ in range(times):
        begun = time.perf_counter()
        function()
        laps.append(1e3 * (time.perf_counter() - begun))
    return statistics.median(laps)


def _talk_now(ranks: Any) -> None:
    from vaak.engine.distributed.exchange import StepMessage

    ranks.exchange(StepMessage({"example": 16.0, "token": 512.0}))


def _talk_before(ranks: Any) -> None:
    ranks.sum({"example": 16.0, "token": 512.0})
    ranks.gather({"stop": None, "evaluate": False, "save": False, "pieces": 1, "shortage": "memory is short"})
    ranks.gather([{"main": "token"}, list(range(PART_TENSORS))])


def _reduce_now(ranks: Any, parameters: list[Any], sums: dict[str, Any]) -> Callable[[], None]:
    gradients = ranks.gradients(parameters)

    def once() -> None:
        gradients.begin()
        for parameter in parameters:
            (parameter * 2.0).sum().backward()
        gradients.reduce(sums, {"main": "token"})

    return once


def _reduce_before(ranks: Any, parameters: list[Any], sums: dict[str, Any]) -> Callable[[], None]:
    def once() -> None:
        for parameter in parameters:
            parameter.grad = None
            (parameter * 2.0).sum().backward()
        ranks.sum_tensors([*(parameter.grad for parameter in parameters), sums["main"].clone()])

    return once


def on_ranks(job: str, world_size: int, source: Path, steps: int, training: list[str]) -> dict[str, Any]:
    """A job's figures on this many processes of a checkout: those of rank 0. ``training`` are options of the steps."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        shared["OPTIONS"] = json.dumps(training)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source), **shared}
        processes = [
            subprocess.Popen(
                [sys.executable, HERE, "--job", job, "--folder", folder, "--steps", str(steps)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                stderr=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                text=True,
            )
            for rank in range(world_size)
        ]
        output, errors = processes[0].communicate()
        for process in processes:
            process.wait()
    if processes[0].returncode:
        raise SystemExit(f"{job} on {world_size} ranks of {source} failed:\n{errors}")
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    return said


def computed(world_size: int, parameters: float, tensors: int) -> dict[str, float]:
    """What a rank sends and holds in a step, from the sizes of the messages; a ring sends a sum twice."""
    from vaak.engine.distributed.exchange import BUCKET_BYTES, STATUS_ROW, TERMS

    gradient = 4 * parameters
    tail = 4 * (tensors + world_size * (2 + TERMS))
    ring = 2 * (world_size - 1) / world_size
    return {
        "messages": 1 + -(-gradient // BUCKET_BYTES),
        "said_bytes": STATUS_ROW.size * (world_size - 1),
        "tail_bytes": tail * ring,
        "summed_gb": gradient * ring / 1e9,
        "held_gb": gradient / 1e9,
        "held_before_gb": 2 * gradient / 1e9,
    }


def tables(options: argparse.Namespace) -> dict[str, Any]:
    """Run everything in turn, print the tables, return the figures."""
    sources = {"after": SOURCE if options.source is None else options.source}
    if options.before:
        sources = {"before": options.before / "src", **sources}
    sized = ["model={d_model: 128, num_layers: 4, num_heads: 4}", "data.max_length=128", "training.batch_size=8"]
    given = [*(sized if options.small else []), *options.options]
    ways = {which: (source, given) for which, source in sources.items()}
    others = {"exact": "reduction=exact"} if options.exact else {}
    others |= {strategy: f"strategy={strategy}" for strategy in options.strategies}
    ways |= {which: (sources["after"], [*given, f"training.distributed.{how}"]) for which, how in others.items()}
    figures: dict[str, Any] = {"steps": {}, "parts": {}, "computed": {}}
    for job in ("steps", "parts"):
        for world_size in options.ranks:
            if job == "parts" and world_size == 1:
                continue
            raced = {which: how for which, how in ways.items() if job == "steps" or which not in others}
            rounds: dict[str, list[dict[str, Any]]] = {which: [] for which in raced}
            for _ in range(options.rounds):
                for which, (source, given) in raced.items():
                    rounds[which].append(on_ranks(job, world_size, source, options.steps, given))
            for which, found in rounds.items():
                figures[job][f"{world_size} {which}"] = _over_rounds(found)
    for world_size in (8, 64):
        figures["computed"][f"{world_size} ranks, 1e9 parameters"] = computed(world_size, 1e9, 300)
    _show(figures)
    return figures


PEERS = ("DDP", "accelerate", "Vaak")


class Group:
    """The processes of an arm."""

    def __init__(self, arm: str, job: dict[str, Any], world_size: int, stack: contextlib.ExitStack) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        shared = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(SOURCE), **shared}
        self.processes, self.errors = [], Path(job["folder"])
        for rank in range(world_size):
            started = subprocess.Popen(
                [sys.executable, str(HERE.with_name("arms.py")), arm, json.dumps(job)],
                env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=(Path(job["folder"]) / f"{arm}-{rank}.txt").open("w"),
                text=True,
            )
            stack.callback(started.kill)
            self.processes.append(started)

    def train(self, steps: int) -> dict[str, float]:
        """Have all train; return seconds of a step of rank 0, and processor seconds of all."""
        for process in self.processes:
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):
                print(steps, file=process.stdin, flush=True)
        lines = [process.stdout.readline() if process.stdout else "" for process in self.processes]
        if not all(lines):
            raise SystemExit("\n".join(path.read_text()[-2000:] for path in sorted(self.errors.glob("*.txt"))))
        said = [json.loads(line) for line in lines]
        return {"seconds": said[0]["seconds"], "processor": sum(one["processor"] for one in said)}


def race_peers(options: argparse.Namespace) -> dict[str, Any]:
    """Race the arms on each number of processes; print and return their figures over those of DDP."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(argparse.Namespace(threads=1, rounds=options.rounds), Path(folder))
        for size, world_size in itertools.product(options.sizes, options.ranks):
            job = bench.job(SIZES[size], logging=False, run=str(Path(folder) / f"{size}-{world_size}"))
            job["overrides"] += [f"training.gradient_accumulation_steps={world_size}"]
            with contextlib.ExitStack() as stack:
                groups = {arm: Group(arm, job, world_size, stack) for arm in PEERS}
                for group in groups.values():
                    group.train(10)
                steps = min(SIZES[size]["steps"], options.steps)
                rounds = [{arm: group.train(steps) for arm, group in groups.items()} for _ in range(options.rounds)]
            rows = {f"{size}, {world_size} processes: {arm}": _compare_with_ddp(arm, rounds) for arm in PEERS}
            _show({"a step, over that of DDP": rows})
            found |= rows
    return {"peers": found}


def _compare_with_ddp(arm: str, rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """An arm's milliseconds of a step, and its times over those of DDP in the same round."""
    row: dict[str, Any] = {"ms": statistics.median(1e3 * one[arm]["seconds"] for one in rounds)}
    for key in ("seconds", "processor"):
        ratios = sorted(one[arm][key] / one["DDP"][key] for one in rounds)
        row |= {key: statistics.median(ratios), f"{key} spread": [ratios[0], ratios[-1]]}
    return row


def _show(figures: dict[str, Any]) -> None:
    for job, rows in figures.items():
        print(f"\n{job}", flush=True)
        for name, values in rows.items():
            print(f"  {name:32}" + "".join(f"  {key} {_short(value)}" for key, value in values.items()))


def _over_rounds(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    """The median over rounds, and the least and most of the times."""
    found: dict[str, Any] = {}
    for key in rounds[0]:
        values = [one[key] for one in rounds]
        found[key] = statistics.median(values)
        if key.endswith("ms") and len(values) > 1:
            found[f"{key} spread"] = [min(values), max(values)]
    return found


def _short(value: Any) -> str:
    if isinstance(value, list):
        return "-".join(map(_short, value))
    return f"{value:,.2f}" if value < 1000 else f"{value:,.0f}"


def main() -> None:
    """Print the tables, or do one process's part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="another checkout of Vaak to compare with")
    parser.add_argument("--source", type=Path, help="the src to measure; default: this checkout's")
    parser.add_argument("--exact", action="store_true", help="also steps with exact sums")
    parser.add_argument("--strategies", nargs="*", default=[], choices=["zero1", "fsdp"])
    parser.add_argument("--options", nargs="*", default=[], metavar="KEY=VALUE", help="of the YAML that is trained")
    parser.add_argument("--small", action="store_true", help="a larger model")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--peers", action="store_true", help="race DDP, accelerate and Vaak")
    parser.add_argument("--sizes", nargs="+", default=["tiny", "small"], choices=SIZES, help="of --peers")
    parser.add_argument("--fake", type=int, metavar="N", help="train as one of N simulated processes")
    parser.add_argument("--json", type=Path, help="write the figures there")
    parser.add_argument("--job", choices=["steps", "parts"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.fake:
        given = [
            f"training.gradient_accumulation_steps={options.fake}",
            "data.corpus.num_sentences=40000",
            *options.options,
        ]
        os.environ |= {"WORLD_SIZE": str(options.fake), "RANK": "0", "LOCAL_RANK": "0", "OPTIONS": json.dumps(given)}
        print(json.dumps(train_as_one_of(options.fake, options.steps)), flush=True)
        os._exit(0)
    if options.job:
        figures = train_steps(options.folder, options.steps) if options.job == "steps" else measure_parts()
        print(json.dumps(figures), flush=True)
        os._exit(0)
    figures = race_peers(options) if options.peers else tables(options)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
