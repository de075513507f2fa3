"""Count the operators that a step launches on a GPU, by recipe and phase.

    python benchmarks/launches.py RECIPE ... [--precision bf16|no] [--where] [--json FILE]

Recipes are those of configs/, such as tts/quickstart, with less data. Counted are the operators of one microbatch's
forward, its backward and the update, on the mock device of the tests, or on the GPU that is there. Views and empty
memory aren't computed. An operator of several tensors (``_foreach``) counts once, and so do attention, RMSNorm and
rotary positions, which CUDA has kernels for and the mock device computes in several operators; a kernel of cuDNN or
cuBLAS may launch others. ``--where`` names the lines of Vaak, of a backward those of its forward. Another checkout
is counted with ``PYTHONPATH=CHECKOUT/src``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import re
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from racing import HERE, say
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import vaak.nn.attention
from vaak.config.load import load
from vaak.config.tasks import TASKS, load_name
from vaak.engine.trainer import Trainer

sys.path.append(str(HERE / "tests" / "support" / "devices"))
import mock_cuda

FEW_SENTENCES = ("datasets.0.num_sentences=40", "datasets.0.valid_fraction=0.05", "datasets.0.train_fraction=0.9")
SMALL_DATA = {
    "asr/quickstart": ("datasets.0.num_sentences=8",),
    "diarization/quickstart": (
        *("datasets.0.num_voices=40", "datasets.0.num_sentences=4"),
        "datasets.0.conversations.train=64",
    ),
    "tts/quickstart": FEW_SENTENCES,
    # the steps with discriminators are most of a run
    "vocoder/quickstart": (*FEW_SENTENCES, "model.discriminators.start_step=1"),
}
"""Options of recipes whose data take long to make."""
NOT_COMPUTED = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_", "set_"),
    *("_local_scalar_dense", "_reshape_alias", "_unsafe_view", "lift_fresh", "record_stream"),
    *("is_pinned", "pin_memory", "_pin_memory"),
}
"""Operators that make memory, views or numbers, and nothing on a device."""
REST = "the rest"
LINES = re.compile(r'/src/vaak/(\S+)", line (\d+)')


class Launches(TorchDispatchMode):
    """Counts the operators that the device computes, by phase, name and place in Vaak's code."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.phase, self.is_paused = REST, False

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operator(*args, **(kwargs or {}))
        name = operator._schema.name.partition("::")[2]
        is_view = any(one.alias_info is not None and not one.alias_info.is_write for one in operator._schema.returns)
        if not (is_view or name in NOT_COMPUTED):
            leaves = tree_leaves((args, kwargs, found))
            if any(isinstance(one, torch.Tensor) and one.is_cuda for one in leaves):
                self.add(name)
        return found

    def add(self, name: str) -> None:
        """Count an operator, unless it is part of one that is counted."""
        if not self.is_paused:
            self.counts[self.phase, name, self._place()] += 1

    @staticmethod
    def _place() -> str:
        node: Any = torch._C._current_autograd_node()
        # of a backward, the line whose derivative it is
        said = "" if node is None else "".join(node.metadata.get("traceback_", ()))
        lines = [one for one in LINES.findall(said) if one[0] != "core/torch_internals.py"]
        if lines:
            return ":".join(lines[-1])
        frame: FrameType | None = sys._getframe(2)
        while frame is not None:
            _, found, file = frame.f_code.co_filename.rpartition("/src/vaak/")
            if found and file != "core/torch_internals.py":
                return f"{file}:{frame.f_lineno}"
            frame = frame.f_back
        return ""

    @contextlib.contextmanager
    def within(self, phase: str) -> Iterator[None]:
        """Within this context, count under a phase."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def as_one(self, name: str, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """The function, counted as one operator, and one in its backward."""

        def call(*given: Any, **options: Any) -> torch.Tensor:
            tensors, structure = tree_flatten((given, options))

            def compute(*tensors: Any) -> torch.Tensor:
                given, options = tree_unflatten(tensors, structure)
                return function(*given, **options)

            result: torch.Tensor = _OneKernel.apply(self, name, compute, *tensors)  # type: ignore[no-untyped-call]
            return result

        return call


class _OneKernel(torch.autograd.Function):
    """A function whose operators aren't counted, but it is, as its backward is."""

    @staticmethod
    def forward(ctx: Any, launches: Launches, name: str, function: Any, *given: Any) -> torch.Tensor:
        launches.add(name)
        ctx.launches, ctx.name, before = launches, name, launches.is_paused
        launches.is_paused = True
        ctx.given = [
            one.detach().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one for one in given
        ]
        with torch.enable_grad():
            ctx.result = function(*ctx.given)
        launches.is_paused = before
        result: torch.Tensor = ctx.result.detach()
        return result

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.launches.add(f"{ctx.name}_backward")
        ctx.launches.is_paused = True
        wanted = [one for one in ctx.given if isinstance(one, torch.Tensor) and one.requires_grad]
        found = iter(torch.autograd.grad(ctx.result, wanted, gradient))
        ctx.launches.is_paused = False
        needed = (isinstance(one, torch.Tensor) and one.requires_grad for one in ctx.given)
        return None, None, None, *(next(found) if one else None for one in needed)


def count_launches(recipe: str, precision: str, folder: Path, with_places: bool) -> Counter[tuple[str, str, str]]:
    """Return the operators of the third step of a recipe: the first ones also make what later ones have."""
    options = (*SMALL_DATA.get(recipe, ()), "training.gradient_accumulation_steps=1", "training.device=cuda")
    experiment = load([HERE / "configs" / f"{recipe}.yml"], options).experiment
    task = load_name(str(TASKS[experiment.task].task))(experiment, folder, folder)
    task.prepare()
    launches = Launches()
    with contextlib.ExitStack() as stack:
        if torch.cuda.is_available():
            stack.enter_context(mock_cuda.real())
        else:
            library = mock_cuda.build(Path(tempfile.gettempdir()))
            stack.enter_context(mock_cuda.plugged_in(library))
            for holder, name in (
                (torch.nn.functional, "scaled_dot_product_attention"),
                (torch.nn.functional, "rms_norm"),
                (vaak.nn.attention, "rotate"),
            ):
                stack.enter_context(patch.object(holder, name, launches.as_one(name, getattr(holder, name))))
        if with_places:
            stack.enter_context(warnings.catch_warnings(action="ignore"))
            stack.enter_context(torch.autograd.set_detect_anomaly(True, check_nan=False))
        training = experiment.training.model_copy(update={"mixed_precision": precision})
        trainer = Trainer(task, training, folder / "run")
        stack.enter_context(patch.object(type(trainer.phases), "measure", lambda _, phase: launches.within(phase)))
        with closing(trainer.upcoming()) as steps:
            for data in itertools.islice(steps, 3):
                launches.counts.clear()
                with launches:
                    trainer.take_step(data)
    return launches.counts


def show_launches(recipes: Sequence[str], precision: str, folder: Path, with_places: bool) -> dict[str, dict[str, int]]:
    """A line for each recipe; with places, the lines of Vaak that most come from."""
    say(f"Operators of a step that the device computes, {precision}\n")
    titles = ["recipe", "forward", "backward", "optimizer", REST]
    say(f"| {' | '.join(titles)} | sum |\n|{'---|' * (len(titles) + 1)}")
    found = {}
    for recipe in recipes:
        own = folder / recipe.replace("/", "-")
        own.mkdir()
        counts = count_launches(recipe, precision, own, with_places)
        phases = {phase: sum(number for one, number in counts.items() if one[0] == phase) for phase in titles[1:]}
        found[recipe] = {**phases, "sum": sum(phases.values())}
        say(f"| {recipe} | {' | '.join(map(str, found[recipe].values()))} |")
        if with_places:
            for (phase, name, place), number in counts.most_common():
                say(f"{number:5} {phase:10} {name:32} {place}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", metavar="RECIPE", nargs="+")
    parser.add_argument("--precision", choices=("no", "bf16"), default="bf16")
    parser.add_argument("--where", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory(prefix="vaak-launches-") as folder:
        counted = show_launches(options.recipes, options.precision, Path(folder), options.where)
    if options.json:
        options.json.write_text(json.dumps(counted, indent=2) + "\n")


if __name__ == "__main__":
    main()
