"""Where the time of a step goes: microseconds of each part, Vaak's and the hand-written loop's, and what is added.

    python benchmarks/step_parts.py [--size micro] [--rounds 15] [--windows 8] [--quiet] [--clock wall|cpu]
                                    [--before PATH] [--json FILE]

The arms are separate processes that take turns, round after round (racing.py). In each, the functions of PARTS are
wrapped by a watch that counts a function's own time, without that of other parts called inside it, and without the
watch's. A window is as many steps as there are between two logs, so each window has all parts alike, also those that
few steps run; the median over windows is shown, then over rounds. The watch makes steps longer, so the whole comes from
engine.py; ``(not in a part)`` is what is between the parts: the loop, generators, calls.

``--clock cpu`` counts the thread's processor time in place of wall time: for a machine that others use, too.
``--before`` names another checkout of Vaak, measured by this one's PARTS.

``--muon LAYERSxWIDTH`` instead measures, in one process, the update of the matrices of LAYERS layers by Muon:
those of one shape together and one after the other, which must give the same bits, and by torch's own rule.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import arms
import numpy as np
import torch
from arms import SmallGPT, Watch, adamw, factor, loss_of, number_tokens
from racing import HERE, SIZES, Bench, say
from torch import nn

PARTS: dict[str, tuple[str, ...]] = {
    "fetch: read": ("vaak.data.loader:MicrobatchReader.__getitem__",),
    "fetch: the rest": ("vaak.engine.training_data:TrainingData.fetch", "vaak.data.loader:_ErrorsAsValues.__getitem__"),
    "skipped examples": ("vaak.engine.journal:SkippedExamples.add",),
    "count units": ("vaak.engine.trainer:count_units",),
    "meet other ranks": ("vaak.engine.trainer:Trainer.exchange",),
    "exchange": ("vaak.engine.distributed.ranks:Ranks.exchange", "vaak.engine.distributed.ranks:Ranks.gather"),
    "save, evaluate if due": ("vaak.engine.trainer:Trainer.run_scheduled",),
    "step: the rest": ("vaak.engine.step:Step.__call__", "vaak.engine.trainer:Trainer.take_step"),
    "chunks": ("vaak.engine.gradient:GradientPass.split",),
    "key of the draws": ("vaak.engine.gradient:draw_key",),
    "seed": ("vaak.engine.gradient:seed_everything",),
    "batch to device": ("vaak.core.batch:Batch.to",),
    "forward": ("arms:SmallGPT.__call__",),
    "loss": ("vaak.tasks.lm.task:losses_of_logits",),
    "task's losses, the rest": ("vaak.tasks.lm.task:LanguageModelTask.losses",),
    "losses: add": ("vaak.engine.gradient:LossSums.add",),
    "clear gradients": ("vaak.engine.distributed.exchange:OwnGradients.clear",),
    "begin gradients": ("vaak.engine.distributed.exchange:OwnGradients.begin",),
    "backward": ("vaak.engine.gradient:backward", "torch.autograd:backward"),
    "gather gradients": ("vaak.engine.distributed.exchange:OwnGradients.reduce",),
    "norm": ("vaak.engine.distributed.exchange:OwnGradients.norm",),
    "finite?": ("vaak.engine.step:reason_to_skip",),
    "clip": ("vaak.engine.step:clip_gradients",),
    "rates": ("vaak.engine.step:set_learning_rates",),
    "optimizer": ("vaak.core.torch_internals:uncompiled(AdamW).step", "torch.optim:AdamW.step"),
    "update, the rest": ("vaak.engine.step:update_weights",),
    "position": ("vaak.engine.state:Position.advance",),
    "report": ("vaak.engine.step:StepReport",),
    "callbacks: step log": ("vaak.callbacks.step_log:StepLogCallback.on_step_end",),
    "callbacks: memory manager": ("vaak.callbacks.memory_manager:AdaptiveMemoryManager.on_step_end",),
    "callbacks: system metrics": ("vaak.callbacks.step_log:SystemMetricsCallback.on_step_end",),
    "callbacks: console": ("vaak.callbacks.console:ConsoleCallback.on_step_end",),
    "records: JSONL": ("vaak.engine.metrics_file:Records.write",),
    "records: console": ("vaak.callbacks.console:ConsoleCallback.say",),
    "records: TensorBoard": ("vaak.callbacks.trackers:TensorBoardCallback.write",),
    "tell callbacks": ("vaak.engine.trainer:Trainer.notify",),
}
"""Each part's function, as module:qualified name, in the module that looks it up; of several, the first there is."""

BETWEEN = "(not in a part)"
CLOCKS = {"wall": time.perf_counter_ns, "cpu": time.thread_time_ns}


class PartWatch:
    """Sums up each part's own nanoseconds, window by window."""

    def __init__(self, now: Callable[[], int]) -> None:
        self.now = now
        self.inside = [0.0]  # of the parts that run now: time of others in them; the first is of the whole
        self.own: dict[str, float] = defaultdict(float)
        self.windows: list[dict[str, float]] = []
        self.taken, self.begun = 0, now()
        self.within = self.around = 0.0
        self._calibrate()

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, with its time put down under ``name``."""

        def watched(*args: Any, **kwargs: Any) -> Any:
            inside, now = self.inside, self.now
            inside.append(0.0)
            begun = now()
            try:
                return function(*args, **kwargs)
            finally:
                spent = now() - begun
                self.own[name] += spent - inside.pop() - self.within
                inside[-1] += spent + self.around

        if hasattr(function, "hooked"):  # torch's mark of an optimizer's step that it need not wrap
            watched.hooked = function.hooked  # type: ignore[attr-defined]
        return watched

    def _calibrate(self) -> None:
        """Find what the watch itself adds, inside of what it measures and around it."""
        empty = self.timed("nothing", lambda: None)
        inner, outer = [], []
        for _ in range(3000):
            self.own["nothing"], begun = 0.0, self.now()
            empty()
            outer.append(self.now() - begun)
            inner.append(self.own["nothing"])
        self.within = statistics.median(inner)
        self.around = statistics.median(outer) - self.within
        self.own.clear()
        self.inside = [0.0]

    def end_step(self) -> None:
        """A step is over; at the end of a window, put its parts down."""
        self.taken += 1
        if self.taken % arms.LOG_EVERY == 0:
            ended = self.now()
            self.own[BETWEEN] += ended - self.begun - sum(self.own.values())
            self.windows.append(dict(self.own))
            self.own.clear()
            self.begun = self.now()
            self.inside[-1] += self.begun - ended

    def microseconds(self) -> dict[str, float]:
        """Each part's time of a step; the first window, in which things are made, is left out."""
        windows = self.windows[1:]
        names = dict.fromkeys(name for window in windows for name in window)
        return {
            name: statistics.median(window.get(name, 0.0) for window in windows) / arms.LOG_EVERY / 1000
            for name in names
        }


def watch_vaak(watch: PartWatch) -> None:
    """Wrap the functions of PARTS; those that this Vaak lacks are left out."""
    for name, places in PARTS.items():
        for place in places:
            module_name, _, qualified = place.partition(":")
            owner, _, attribute = qualified.rpartition(".")
            try:
                module = importlib.import_module(module_name)
                holder = eval(owner, vars(module)) if owner else module
                function = getattr(holder, attribute)
            except (ImportError, AttributeError, NameError):
                continue
            setattr(holder, attribute, watch.timed(name, function))
            break


def by_hand(job: dict[str, Any], watch: PartWatch) -> arms.Arm:
    """The hand-written loop of arms.py, its parts watched."""
    size, tokens, rng = job["size"], number_tokens(job), np.random.default_rng(0)
    length, starts = size["length"], np.arange(0, len(tokens) - size["length"] - 1, size["length"])

    def read() -> torch.Tensor:
        chosen = rng.choice(starts, size["batch"])
        return torch.from_numpy(np.stack([tokens[start : start + length + 1] for start in chosen]).astype(np.int64))

    def set_rates(optimizer: torch.optim.Optimizer, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = arms.RATE * factor(step)

    read, set_rates = watch.timed("fetch: read", read), watch.timed("rates", set_rates)
    loss_function = watch.timed("loss", loss_of)
    norm_of = watch.timed("norm", nn.utils.get_total_norm)
    clip = watch.timed("clip", nn.utils.clip_grads_with_norm_)
    while True:
        ticks = yield
        model = SmallGPT(size).train()
        optimizer = adamw(model)
        forward, update = watch.timed("forward", model), watch.timed("optimizer", optimizer.step)
        clear = watch.timed("clear gradients", optimizer.zero_grad)
        for step in itertools.count():
            rows = read()
            loss = loss_function(forward(rows[:, :-1]), rows[:, 1:])
            clear(set_to_none=True)
            watch.timed("backward", loss.backward)()
            gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
            clip(model.parameters(), 1.0, norm_of(gradients))
            set_rates(optimizer, step)
            update()
            if ticks.tick():
                break


class PartTicks(Watch):
    """Ends the steps of a round, and puts down their parts."""

    def __init__(self, steps: int, watch: PartWatch) -> None:
        super().__init__(steps)
        self.watch = watch

    def tick(self) -> bool:
        self.watch.end_step()
        return super().tick()


def run_arm(name: str, job: dict[str, Any]) -> None:
    """What an arm's process does: a line on its input is a round, and is answered by the parts of its steps."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    torch.set_num_threads(job["threads"])
    watch = PartWatch(CLOCKS[job["clock"]])
    if name == "by hand":
        arm = by_hand(job, watch)
    else:
        watch_vaak(watch)
        arm = arms.by_vaak(job)
    next(arm)
    for line in sys.stdin:
        watch.windows, watch.taken = [], 0
        watch.own.clear()
        ticks = PartTicks(int(line), watch)
        arm.send(ticks)
        parts = {"parts": watch.microseconds()}
        answers.write(json.dumps({"seconds": ticks.seconds, "memory": ticks.memory} | parts) + "\n")


def measured(bench: Bench) -> dict[str, dict[str, float]]:
    """Microseconds of each part by arm: medians over rounds."""
    options = bench.options
    checkouts = {"by hand": HERE, "Vaak": HERE}
    if options.before is not None:
        checkouts["Vaak before"] = options.before.resolve()
    size, logging = SIZES[options.size], not options.quiet
    racing = [
        (name, name.removesuffix(" before"), bench.job(size, logging, checkout=str(path), clock=options.clock))
        for name, path in checkouts.items()
    ]
    found = {}
    for process in bench.race(racing, arms.LOG_EVERY * (options.windows + 1)):
        rounds = [figures["parts"] for figures in process.rounds]
        names = dict.fromkeys(name for parts in rounds for name in parts)
        found[process.name] = {name: statistics.median(parts.get(name, 0.0) for parts in rounds) for name in names}
    return found


def show(arms_parts: dict[str, dict[str, float]]) -> None:
    """One part a line, in the order of PARTS."""
    hand, ours, before = (arms_parts.get(name, {}) for name in ("by hand", "Vaak", "Vaak before"))
    titles = ["part", "Vaak", "by hand", "added"] + (["Vaak before", "saved"] if before else [])
    say(f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for part in [*PARTS, BETWEEN]:
        if part in hand or part in ours or part in before:
            make_row(part, hand.get(part, 0.0), ours.get(part, 0.0), before.get(part, 0.0) if before else None)
    totals = [sum(parts.values()) for parts in (hand, ours, before)]
    make_row("**sum**", totals[0], totals[1], totals[2] if before else None)


def make_row(part: str, hand: float, ours: float, before: float | None) -> None:
    cells = f"| {part} | {ours:.1f} | {hand:.1f} | {ours - hand:+.1f} |"
    say(cells if before is None else f"{cells} {before:.1f} | {before - ours:+.1f} |")


def muon(sizes: str, rounds: int, clock: str) -> None:
    """A line for each way: milliseconds of an update, and the ratio within rounds with its quartiles."""
    from vaak.config.optimization import OptimizerConfig  # the arms, also of other checkouts, do without
    from vaak.engine.optim import muon
    from vaak.engine.optim.optimizers import NamedParameter, build_parameter_optimizers
    from vaak.engine.precision import muon_dtype

    layers, width = map(int, sizes.split("x"))
    generator = torch.Generator().manual_seed(0)
    shapes = [(width, width)] * 4 + [
        (4 * width, width),
        (width, 4 * width),
    ]  # of attention, and of a feed-forward layer
    values = [torch.randn(shape, generator=generator) for _ in range(layers) for shape in shapes]
    weights = [[nn.Parameter(value.clone()) for value in values] for _ in range(3)]
    config = OptimizerConfig(type="muon", lr=0.02)
    ours = [
        build_parameter_optimizers(
            [NamedParameter(f"{number}.weight", one, nn.Linear(1, 1), False, False) for number, one in enumerate(own)],
            config,
            HERE,
        )[0]
        for own in weights[:2]
    ]
    theirs = torch.optim.Muon(
        weights[2],
        lr=config.lr,
        weight_decay=config.weight_decay,
        momentum=config.momentum,
        nesterov=config.nesterov,
        adjust_lr_fn="original",
    )
    ways, now = (
        dict(zip(("together", "one by one", "one by one, torch's"), (*ours, theirs), strict=True)),
        CLOCKS[clock],
    )
    now, at_once = CLOCKS[clock], dict(zip(ways, (muon.MOST_STACKED, 1, 1), strict=True))
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for alike in zip(*weights, strict=True):
            gradient = torch.randn(alike[0].shape, generator=generator)
            for one in alike:
                one.grad = gradient.clone()
        for name in list(ways)[:: 1 if number % 2 else -1]:
            muon.MOST_STACKED = at_once[name]
            begun = now()
            ways[name].step()
            if number:  # the first makes the moments
                taken[name].append((now() - begun) / 1e6)
    same = all(torch.equal(one, other) for one, other in zip(*weights[:2], strict=True))
    dtype = str(muon_dtype(torch.device("cpu"))).removeprefix("torch.")
    bits = "the same bits" if same else "OTHER BITS"
    say(f"{len(values)} matrices, {rounds} updates in {dtype}, {clock} clock; {bits}\n")
    say("| Muon | ms an update |\n|---|---|")
    for name, times in taken.items():
        say(f"| {name} | {statistics.median(times):.1f} |")
    say("")
    together = taken["together"]
    for name, times in list(taken.items())[1:]:
        quartiles = statistics.quantiles([one / other for one, other in zip(together, times, strict=True)], n=4)
        say(f"together ÷ {name}: {quartiles[1]:.3f} ({quartiles[0]:.3f} to {quartiles[2]:.3f})")


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[2].startswith("{"):
        run_arm(sys.argv[1], json.loads(sys.argv[2]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="micro")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--windows", type=int, default=8, help="of 50 steps, a round")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--quiet", action="store_true", help="without logging")
    parser.add_argument("--before", type=Path, help="another checkout of Vaak, measured along with this one")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--muon", metavar="LAYERSxWIDTH")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.muon:
        torch.set_num_threads(options.threads)
        muon(options.muon, options.rounds, options.clock)
        return
    with tempfile.TemporaryDirectory(prefix="vaak-parts-") as folder:
        results = measured(Bench(options, Path(folder), script=Path(__file__).resolve()))
    say(f"\nMicroseconds of a step, {options.size}, {'quiet' if options.quiet else 'with all logging'}\n")
    show(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
