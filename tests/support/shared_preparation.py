"""What each of several real processes does in tests of preparing together: it notes which of them did what."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mock_cuda import plugged_in
from processes import join
from tiny_runs import loaded
from toy_recordings import ToyRecordings
from vaak.audio.config import AudioConfig
from vaak.audio.features import store as feature_store
from vaak.audio.segments import LabelledAudio
from vaak.config.load import load
from vaak.core.errors import DataError, RemoteError, UserError
from vaak.engine.distributed import ranks as processes
from vaak.engine.distributed.ranks import Ranks, demand_shared
from vaak.engine.distributed.signed import CODE_BYTES, read_key
from vaak.runs import start
from vaak.tasks.lm import prepare
from vaak.text.corpora import stores
from vaak.text.tokenizer import Tokenizer

PATIENCE_SECONDS = 30.0


@dataclass(frozen=True)
class Witness:
    """A folder with a file for each rank that has done a task; the first of them gives others the time to do one."""

    folder: Path
    world_size: int

    def note(self, what: object) -> int:
        rank = int(os.environ["RANK"])
        (self.folder / f"{rank}-{what}").touch()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while rank == 0 and len(self.ranks()) < self.world_size and time.monotonic() < deadline:
            time.sleep(0.01)
        return rank

    def ranks(self) -> set[int]:
        """Those that have done a task."""
        return {int(path.name.partition("-")[0]) for path in self.folder.iterdir()}


class SharedRecordings(ToyRecordings):
    """Recordings of which rank 1 meets a ``fault`` at one that it reads."""

    def __init__(self, lengths: list[int], witness: Witness, fault: str = "") -> None:
        super().__init__(lengths)
        self.witness, self.fault = witness, fault

    def load(self, index: int, rng: np.random.Generator) -> LabelledAudio:
        assert not list(self.witness.folder.parent.glob(".key-*"))
        if self.witness.note(index) == 1 and self.fault in FAULTS:
            meet(self.fault)
        return super().load(index, rng)


FAULTS = "mistake", "bug", "kill", "interrupt"


def meet(fault: str) -> None:
    """Fail, or be killed or interrupted."""
    if fault == "mistake":
        raise DataError("one.wav: this isn't audio")
    if fault == "bug":
        raise ZeroDivisionError("a bug")
    os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGINT)
    time.sleep(PATIENCE_SECONDS)


class Planted:
    """Whoever unpickles this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[Path]]:
        return Path.touch, (self.path,)


def send_forged(ranks: Ranks, path: Path) -> None:
    """Have a rank's next message replaced by one that creates a file where it is unpickled."""
    send = ranks.send

    def send_other(content: bytes, rank: int) -> None:
        vars(ranks).pop("send")
        send(content[:CODE_BYTES] + pickle.dumps(Planted(path)), rank)

    vars(ranks)["send"] = send_other


def other_mode(path: Path) -> bytes:
    """``read_key`` where storage keeps no mode."""
    path.chmod(0o644)
    return read_key(path)


def share_key(rank: int, port: int, folder: Path, killed: int | None) -> None:
    """Get a key, and send messages by it; the rank that is ``killed`` is so when it reads the key."""

    def work() -> None:
        ranks = join(rank, port)
        if rank == killed:
            vars(processes)["read_key"] = lambda path: meet("kill")
        demand_shared(ranks, folder)
        assert ranks.signed is not None
        if rank == 0:
            ranks.signed.send(b"one", 1)
            assert bytes(ranks.signed.receive(1)) == b"two"
        else:
            assert bytes(ranks.signed.receive(0)) == b"one"
            ranks.signed.send(b"two", 0)
        ranks.close()

    end_as_command(rank, folder, work)


def extract_together(
    rank: int, port: int, world_size: int, folder: Path, lengths: list[int], seconds: float, num_jobs: int, fault: str
) -> None:
    """Extract features into FOLDER/features, in shards of some seconds."""
    feature_store.SHARD_SECONDS, feature_store.BATCH_SECONDS = seconds, 0.0
    expected = world_size if fault in ("", *FAULTS) else 1  # rank 0 waits for no task of others that do none
    source = SharedRecordings(lengths, Witness(folder / "witness", expected), fault)
    audio = AudioConfig(num_jobs=num_jobs, progress_bar=False)

    def work() -> None:
        if fault == "unkept" and rank == 1:
            vars(processes)["read_key"] = other_mode
        ranks = join(rank, port, world_size)
        demand_shared(ranks, folder)
        if fault == f"forged by {rank}":
            send_forged(ranks, folder / "planted")
        ranks.prepare_on_main(lambda: str(feature_store.extract(source, audio, folder / "features").folder))
        ranks.close()

    end_as_command(rank, folder, work)


def prepare_together(rank: int, port: int, world_size: int, folder: Path, run: Path, overrides: list[str]) -> None:
    """Prepare the tiny job of ``folder`` in a run directory, as ``vaak prepare`` does; some sentences are a task."""
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_PORT": port}
    os.environ |= {name: str(place) for name, place in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
    stores.BATCH_CHARACTERS, prepare.CONVERSATIONS = 2000, 10
    witnessed.append(Witness(run.with_name(f"{run.name}-witness"), world_size))
    vars(stores)["_encoder"], vars(prepare)["_encoder"] = encoder_of_texts, encoder_of_conversations
    given = ["training.gradient_accumulation_steps=4", *overrides]
    end_as_command(rank, run.with_name(f"{run.name}-said"), lambda: start.prepare(loaded(folder, run, *given)))


def train_together(
    rank: int, port: int, world_size: int, file: Path, run: Path, overrides: list[str], library: Path | None
) -> None:
    """Prepare and train, each process on a GPU of its own where there is the ``library`` of one; a task is little."""
    places = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "MASTER_PORT": port}  # each has a machine
    os.environ |= {name: str(place) for name, place in places.items()} | {"MASTER_ADDR": "127.0.0.1"}
    stores.BATCH_CHARACTERS, feature_store.SHARD_SECONDS = 2000, 2.0
    witnessed.append(Witness(run.with_name(f"{run.name}-witness"), world_size))
    vars(stores)["_encoder"], vars(feature_store)["_maker"] = encoder_of_texts, maker_of_shards
    device = "cpu" if library is None else "cuda"
    given = [f"run_dir={run}", f"training.device={device}", "training.gradient_accumulation_steps=4", *overrides]
    given += [] if library is None else ["training.distributed.backend=gloo"]
    with contextlib.nullcontext() if library is None else plugged_in(library):
        end_as_command(rank, run.with_name(f"{run.name}-said"), lambda: start.train(load([file], given)))


witnessed: list[Witness] = []
"""The one of this process."""
shard_maker = vars(feature_store)["_maker"]
text_encoder, conversation_encoder = vars(stores)["_encoder"], vars(prepare)["_encoder"]


def encoder_of_texts(tokenizer: Tokenizer) -> Callable[[list[Any]], list[Any]]:
    return noting(text_encoder(tokenizer))


def encoder_of_conversations(content: str, tokenizer: Tokenizer) -> Callable[[list[Any]], list[Any]]:
    return noting(conversation_encoder(content, tokenizer))


def maker_of_shards(extraction: Any) -> Callable[[int], None]:
    return noting(shard_maker(extraction))


def noting(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def do_and_note(task: Any) -> Any:
        witnessed[0].note(time.monotonic())
        return function(task)

    return do_and_note


def end_as_command(rank: int, folder: Path, work: Callable[[], object]) -> None:
    """Do the work; write what a command would print to RANK.json, and end with its exit code."""
    begun, said, code = time.monotonic(), "", 0
    try:
        work()
    except UserError as error:
        said, code = "" if isinstance(error, RemoteError) else str(error), 2
    except KeyboardInterrupt:
        code = 130
    except Exception:
        said, code = traceback.format_exc(), 1
    (folder / f"{rank}.json").write_text(json.dumps({"said": said, "seconds": time.monotonic() - begun}))
    sys.stdout.flush()
    os._exit(code)
