"""What each of several real processes does in tests of the ranks: they talk, and write down what they heard."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import vaak.engine.distributed.ranks
from processes import join
from vaak.core.errors import UserError
from vaak.engine.distributed.exchange import StepMessage
from vaak.engine.distributed.ranks import Ranks


def talk(rank: int, port: int, world_size: int, case: str, folder: Path, *arguments: Any) -> None:
    """Join, do what ``case`` names, and write its result, or a user's error, to CASE-RANK.json."""
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    ranks = join(rank, port, world_size)
    begun = time.monotonic()
    try:
        said = {"result": CASES[case](ranks, *arguments)}
    except UserError as error:
        said = {"error": str(error), "kind": type(error).__name__}
    said["seconds"] = time.monotonic() - begun
    (folder / f"{case}-{rank}.json").write_text(json.dumps(said))
    if "error" in said:
        os._exit(2)  # as a command does: another rank is no more, and closing waits for it
    ranks.close()


def heard(folder: Path, case: str, world_size: int) -> list[dict[str, Any]]:
    """Return the notes of every rank."""
    return [json.loads((folder / f"{case}-{rank}.json").read_text()) for rank in range(world_size)]


def exchange(ranks: Ranks, rounds: list[list[dict[str, Any]]]) -> list[Any]:
    """Each round's message of this rank, exchanged; and how many collectives each round took."""
    calls = counted(dist)
    results = []
    for messages in rounds:
        before = len(calls)
        result = ranks.exchange(StepMessage(**messages[ranks.rank]))
        results.append([vars(result), len(calls) - before])
    return results


def counted(module: Any) -> list[tuple[str, int]]:
    """A list that grows by the name and the bytes of every collective of this process."""
    calls: list[tuple[str, int]] = []

    def counting(name: str, inner: Callable[..., Any], place: int) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            calls.append((name, arguments[place].nbytes))
            return inner(*arguments, **options)

        return call

    module.all_gather = counting("all_gather", module.all_gather, 1)
    module.all_reduce = counting("all_reduce", module.all_reduce, 0)
    return calls


def decide(ranks: Ranks, seconds: float, failure: str | None) -> Any:
    """Rank 0 thinks so long, and its machine is asked meanwhile whether it is there; no other rank thinks."""
    vaak.engine.distributed.ranks.ANSWER_SECONDS = 0.3
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=1))

    def think() -> Any:
        assert ranks.is_main
        time.sleep(seconds)
        if failure == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if failure:
            raise UserError(failure)
        return {"path": "checkpoints/step-00000003", "step": 3, "long": "x" * 5000}

    return ranks.run_on_main(think)


def compare(ranks: Ranks, every: list[dict[str, Any]]) -> Any:
    ranks.compare("at the start", every[ranks.rank])
    return "the same"


def ask_any(ranks: Ranks, rounds: list[list[bool]]) -> list[bool]:
    return [ranks.any(flags[ranks.rank]) for flags in rounds]


def die(ranks: Ranks, victim: int, during: str) -> Any:
    """One rank is killed while the others wait in a collective."""
    if ranks.rank == victim:
        time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    if during == "exchange":
        return vars(ranks.exchange(StepMessage()))
    if during == "any":
        return ranks.any(False)
    if during == "reduction":
        return ranks.add_up(torch.ones(100_000))
    return ranks.wait()


class Branching(nn.Module):
    """Parameters that are reached by some batches only; one of them of 16 bits."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.shared = nn.Parameter(torch.randn(7, 3))
        self.left = nn.Parameter(torch.randn(3))
        self.right = nn.Parameter(torch.randn(()))
        self.never = nn.Parameter(torch.randn(5))
        self.later = nn.Parameter(torch.randn(3), requires_grad=False)
        self.coarse = nn.Parameter(torch.randn(40).to(torch.bfloat16))

    def loss(self, number: int) -> dict[str, Tensor]:
        """Terms of microbatch ``number``: the odd ones go left, the even ones right, every third has a term more."""
        torch.manual_seed(number)
        mixed = torch.randn(4, 7) @ self.shared
        branch = (mixed * self.left).sum() if number % 2 else mixed.sum() * self.right
        terms = {"main": branch + self.coarse.float().square().sum() + self.later.sum()}
        if number % 3 == 0:
            terms["extra"] = mixed.square().sum()
        return terms


def gradients(ranks: Ranks, steps: list[list[int]], bucket_bytes: int, early: bool = False) -> list[Any]:
    """The gradients and terms of steps, each a list of microbatches that are shared out; ``later`` thaws at step 1.

    ``early``: sums may begin in the last backward.
    """
    ranks.bucket_bytes = bucket_bytes
    calls = counted(dist)
    model = Branching()
    held = ranks.gradients(model.parameters())
    results = []
    for step, numbers in enumerate(steps):
        model.later.requires_grad_(step >= 1)
        held.begin()
        sums: dict[str, Tensor] = {}
        own = numbers[ranks.rank :: ranks.world_size]
        for number in own:
            terms = model.loss(number)
            if early and number == own[-1]:
                held.start_when_full()
            torch.autograd.backward(list(terms.values()))
            for name, total in terms.items():
                sums[name] = sums[name] + total.detach() if name in sums else total.detach()
        before = len(calls)
        reduced = held.reduce(sums, dict.fromkeys(sums, "row"))
        assert reduced is not None
        sums, units = reduced
        results.append(
            {
                "gradients": {
                    name: None if parameter.grad is None else parameter.grad.float().flatten().tolist()
                    for name, parameter in model.named_parameters()
                },
                "sums": {name: float(total) for name, total in sums.items()},
                "units": units,
                "calls": len(calls) - before,
                "reached": len(held.gradients),
            }
        )
    held.drop()
    assert all(parameter.grad is None for parameter in model.parameters())
    return results


CASES: dict[str, Callable[..., Any]] = {
    "exchange": exchange,
    "decide": decide,
    "compare": compare,
    "any": ask_any,
    "die": die,
    "gradients": gradients,
}
