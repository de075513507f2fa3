"""What a tiny run is in while its options are varied: quiet surroundings, and situations that a machine rarely offers.

Nothing that is observed may depend on how fast the machine is, how full its memory, or what else it does: two
undisturbed runs show the same.
"""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import soundfile
import torch

from vaak.audio.features import store
from vaak.callbacks import memory_manager, profiler
from vaak.callbacks.memory_manager import AdaptiveMemoryManager
from vaak.core import console, progress
from vaak.core.errors import DataError
from vaak.core.process_pool import in_processes
from vaak.data import loader as data_loader
from vaak.engine.memory import MemoryReading, free_memory
from vaak.tasks.lm.data import TextDataset
from vaak.text.corpora.stores import TokenStore

GIBIBYTE = 2**30


class Asked:
    """What a run asked for: calls of modules, loaders, compilers, processes, memory freed, recordings opened."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def __str__(self) -> str:
        return "\n".join(f"{what}: {number}" for what, number in sorted(self.counts.items()))


@contextlib.contextmanager
def noted() -> Iterator[Asked]:
    """Count calls of torch and soundfile within this context; models aren't really compiled."""
    asked = Asked()

    def call(module: torch.nn.Module, *_: Any) -> None:
        asked.counts[f"forward of {type(module).__name__}"] += 1

    loader, opened = torch.utils.data.DataLoader.__init__, soundfile.SoundFile.__init__

    def load(self: Any, *arguments: Any, **options: Any) -> None:
        for name in ("num_workers", "prefetch_factor", "pin_memory"):
            asked.counts[f"loader with {name} {options.get(name)}"] += 1
        if "multiprocessing_context" in options:
            asked.counts[f"loader by {options['multiprocessing_context'].get_start_method()}"] += 1
        loader(self, *arguments, **options)

    def read(self: Any, *arguments: Any, **options: Any) -> None:
        asked.counts["recordings opened"] += 1
        opened(self, *arguments, **options)

    def freed(device: torch.device) -> None:
        asked.counts["memory freed"] += 1
        free_memory(device)

    def processes(make: Any, parts: Any, number: int, *rest: Any) -> Any:
        asked.counts[f"{number} processes"] += 1
        return in_processes(make, parts, 1, *rest)

    def compiled(model: torch.nn.Module, **options: Any) -> torch.nn.Module:
        asked.counts[f"compiler with {options}"] += 1
        return model

    hook = torch.nn.modules.module.register_module_forward_pre_hook(call)
    with pytest.MonkeyPatch.context() as patch:
        # How much is read ahead of training's end, time would decide.
        patch.setattr(data_loader, "BURST_SECONDS", 0.0)
        patch.setattr(torch.utils.data.DataLoader, "__init__", load)
        patch.setattr(soundfile.SoundFile, "__init__", read)
        patch.setattr(torch, "compile", compiled)
        patch.setattr(memory_manager, "free_memory", freed)
        patch.setattr(store, "in_processes", processes)
        try:
            yield asked
        finally:
            hook.remove()


@contextlib.contextmanager
def quiet(said: io.StringIO) -> Iterator[None]:
    """Surroundings that never change; ``said`` is the console. Restores what a run switches in torch."""
    threads, tf32 = torch.get_num_threads(), torch.backends.cuda.matmul.allow_tf32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaptiveMemoryManager, "clock", staticmethod(lambda: 0.0))  # so that it looks after each step
        patch.setattr(memory_manager, "read_memory", lambda device: MemoryReading(GIBIBYTE, 10 * GIBIBYTE, GIBIBYTE))
        patch.setattr(profiler, "LEAST_SECONDS", math.inf)
        patch.setattr("matplotlib.figure.Figure.savefig", _instead_of_drawing)  # pictures are counted, not compared
        try:
            with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
                yield
        finally:
            torch.set_num_threads(threads)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32


def _instead_of_drawing(_: Any, file: Any, **options: Any) -> None:
    if isinstance(file, str | os.PathLike):
        Path(file).write_bytes(b"a picture")
    else:
        file.write(b"a picture")


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def at_a_terminal() -> Iterator[None]:
    """The console is one, and progress is shown at once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setattr(progress, "QUIET_SECONDS", 0.0)
        console.console.cache_clear()
        yield
    console.console.cache_clear()


@contextlib.contextmanager
def with_wandb_offline() -> Iterator[None]:
    """W&B writes into the run directory."""
    wandb = pytest.importorskip("wandb")
    wandb.teardown()  # else the patch would put the address of a service that has ended back
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("WANDB_")]:
            patch.delenv(name)
        patch.setenv("WANDB_MODE", "offline")
        patch.setenv("WANDB_SILENT", "true")
        yield
        wandb.teardown()  # as at the end of a process: its service writes the last of it


@contextlib.contextmanager
def with_a_torn_document() -> Iterator[None]:
    """The tokens of one document can't be read."""
    document, ids = TokenStore.document, TextDataset.ids

    def torn_document(self: TokenStore, index: int) -> Any:
        if index == 3 and len(self) > 30:
            raise DataError("document 3 can't be read")
        return document(self, index)

    def torn_example(self: TextDataset, index: int) -> Any:
        return torn_document(self.store, index) if index == 3 else ids(self, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenStore, "document", torn_document)
        patch.setattr(TextDataset, "ids", torn_example)
        yield


@contextlib.contextmanager
def without_the_hub() -> Iterator[None]:
    """Datasets are read from folders, without a network, and cached in a separate folder."""
    datasets = pytest.importorskip("datasets", reason="the extra hf is not installed")
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", Path(folder))
        patch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        yield


SITUATIONS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "@terminal": at_a_terminal,
    "@wandb": with_wandb_offline,
    "@torn": with_a_torn_document,
    "@hub": without_the_hub,
}
"""Circumstances, besides other options, in which alone some options are read."""


def words_of(text: str) -> str:
    """A text without its numbers, their units, and times.

    >>> words_of("12:30 step 3 of 6: 1.2k tokens/s, 950 MiB")
    '# step # of # # tokens/s, #'
    """
    return re.sub(r"[-+]?\d[-\d.:,]*(?:e[-+]\d+)?(?:[kMG]\b| ?[KMG]i?B\b)?", "#", text)
