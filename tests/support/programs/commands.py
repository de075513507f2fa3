"""Starts ``vaak`` commands in separate processes, watches them, and ends them; compares what they left."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tiny_listener
import vaak
from toy_speech import RATE, make_dataset_from, write_recordings, write_utterances
from vaak.config.yaml.text import flow_text, yaml_text
from vaak.engine.checkpoint.files import read_state, verify

PATIENCE_SECONDS = 120.0

TINY = """
task: lm
name: tiny
model: {d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}
data:
  corpus: {type: grammar, num_sentences: 200}
  tokenizer: {type: byte_level, vocab_size: 600}
  max_length: 48
  token_dropout: 0.1
training:
  epochs: 3
  batch_size: 8
  gradient_accumulation_steps: 3
  optimizer: {type: adamw, lr: 1e-3}
  scheduler: {type: cosine, warmup_steps: 5}
  validation: {interval: 4}
  checkpoint: {interval: 3, resume: auto}
  logging: {interval: 1, tensorboard: false}
"""
TOTAL_STEPS = 21

TRANSLATOR = """
task: seq2seq
name: translator
model:
  global_config: {d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}
data:
  corpus: {type: grammar, num_sentences: 240, train_fraction: 0.7, valid_fraction: 0.05}
  tokenizer: {type: byte_level, vocab_size: 600}
  decoding: {max_new_tokens: 4}
training:
  max_steps: 21
  batch_size: 8
  gradient_accumulation_steps: 3
  optimizer: {type: adamw, lr: 1e-3}
  scheduler: {type: cosine, warmup_steps: 5}
  validation: {interval: 4}
  checkpoint: {interval: 3, resume: auto}
  logging: {interval: 1, tensorboard: false}
"""

DIARIZER = f"""
task: diarization
name: diarizer
model: {{d_model: 32, num_layers: 1, num_heads: 2, num_convolutions: 1, embedding_dim: 8, dropout: 0.1}}
global_config: {{sampling_rate: {RATE}, num_mel_bins: 16, high_freq: 0, cache_gigabytes: 0.0001}}
datasets:
  - {yaml_text(make_dataset_from("FOLDER/recordings")).strip().replace(chr(10), chr(10) + "    ")}
  - {yaml_text(make_dataset_from("FOLDER/utterances")).strip().replace(chr(10), chr(10) + "    ")}
    conversations: {{train: 8, valid: 2, test: 2, duration: [0.8, 1.6], beta: 0.3, speed: [0.9, 1.0], room: 0.2}}
data:
  window: 1.5
  augmentation: {{speed: [0.9, 1.1], noise: coloured, spec_augment: {{time_mask: 0.1}}}}
training:
  max_steps: 21
  batching: {{type: bucketed, max_duration: 8, num_buckets: 2}}
  gradient_accumulation_steps: 3
  optimizer: {{type: adamw, lr: 1e-3}}
  scheduler: {{type: cosine, warmup_steps: 5}}
  loss: {{auxiliary: {{clustering: 0.5, speaker: 0.1}}}}
  eval_knobs: {{label_type: multilabel}}
  validation: {{interval: 4}}
  checkpoint: {{interval: 3, resume: auto}}
  logging: {{interval: 1, tensorboard: false}}
"""
VOICE = """
task: tts
name: voice
model:
  encoder: {d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}
  duration_predictor: {width: 16}
  decoder_type: flow_matching
  flow_matching: {width: 16}
  pitch: true
global_config: {mel: {sampling_rate: 8000, n_fft: 256, win_length: 256, hop_length: 128, n_mels: 12, f_max: null}}
datasets:
  - {name: voices, type: voices, num_voices: 2, num_sentences: 40, valid_fraction: 0.1, output_dir: FOLDER/voices}
data: {samples: [], cache_dir: FOLDER/prepared}
training:
  max_steps: 21
  batch_size: 4
  gradient_accumulation_steps: 3
  optimizer: {type: adamw, lr: 1e-3}
  scheduler: {type: cosine, warmup_steps: 5}
  validation: {interval: 4}
  checkpoint: {interval: 3, resume: auto}
  logging: {interval: 1, tensorboard: false}
"""
SEVERAL = """
task: multitask
name: several
tasks:
  words: {task: lm, model: &sizes {d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}, data: &texts {
    corpus: {type: grammar, num_sentences: 120}, tokenizer: {type: byte_level, vocab_size: 600}, max_length: 48}}
  rules: {task: classification, model: *sizes, data: *texts}
shared: [{words: embedding, rules: transformer.embedding}]
loss_weights: uncertainty
sampling: annealed
training:
  epochs: 3
  batch_size: 8
  gradient_accumulation_steps: 4
  optimizer: {type: adamw, lr: 1e-3}
  scheduler: {type: cosine, warmup_steps: 5}
  validation: {interval: 4}
  checkpoint: {interval: 3, resume: auto}
  logging: {interval: 1, tensorboard: false}
"""
END = """
training:
  max_steps: 21
  batch_size: 8
  gradient_accumulation_steps: 2
  optimizer: {type: adamw, lr: 1e-3}
  scheduler: {type: cosine, warmup_steps: 5}
  validation: {interval: 4}
  checkpoint: {interval: 3, resume: auto}
  logging: {interval: 1, tensorboard: false}
"""
CLASSIFIER = f"""
task: classification
name: classifier
model: {{architecture: transformer, d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}}
data:
  corpus: {{type: grammar, num_sentences: 240}}
  tokenizer: {{type: byte_level, vocab_size: 600}}
  max_length: 48
  augmentation: {{enabled: true, techniques: [random_swap, random_deletion], probability: 0.2}}
{END}"""
RECOGNISER = f"""
task: asr
name: recogniser
model: {{scratch: {{d_model: 32, encoder_layers: 1, decoder_layers: 1, max_target_length: 24, dropout: 0.1}}}}
datasets: [{flow_text(tiny_listener.make_dataset_from("FOLDER/words"))}]
data:
  max_duration: 1.0
  tokenizer: {{type: character}}
  augmentation: {{spec_augment: {{}}}}
  decoding: {{max_new_tokens: 8}}
{END}"""
CTC = f"""
task: asr
name: ctc
model: {{architecture: ctc, conformer: {{d_model: 32, num_layers: 1, num_heads: 2, kernel_size: 5, dropout: 0.1}}}}
datasets: [{flow_text(tiny_listener.make_dataset_from("FOLDER/words"))}]
data: {{max_duration: 1.0, tokenizer: {{type: character}}, augmentation: {{spec_augment: {{}}}}}}
{END}"""
PREFERENCES = f"""
task: lm
name: preferences
model: {{d_model: 32, num_layers: 1, num_heads: 2, dropout: 0.1}}
data:
  corpus: {{type: preferences, train: [FOLDER/pairs.json]}}
  tokenizer: {{type: byte_level, vocab_size: 300}}
  max_length: 64
{END}  loss: {{main: orpo}}
"""
JOBS = {
    "classifier": CLASSIFIER,
    "ctc": CTC,
    "preferences": PREFERENCES,
    "recogniser": RECOGNISER,
    "several": SEVERAL,
    "voice": VOICE,
    "tiny": TINY,
    "translator": TRANSLATOR,
    "diarizer": DIARIZER,
}


def write_jobs(folder: Path) -> None:
    """``NAME.yml`` of every job, and the recordings that the diarizer learns from."""
    write_recordings(folder / "recordings")
    write_utterances(folder / "utterances")
    tiny_listener.write_listener(folder / "words")
    pairs = [{"prompt": f"{n}?", "chosen": "yes " * (1 + n % 4), "rejected": "no " * (1 + n % 7)} for n in range(120)]
    (folder / "pairs.json").write_text(json.dumps(pairs))
    for name, text in JOBS.items():
        (folder / f"{name}.yml").write_text(text.replace("FOLDER", str(folder)))


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal) and what it said."""

    status: int
    output: str
    errors: str


class Command:
    """A command that was started."""

    def __init__(self, output: Path, errors: Path) -> None:
        self.output, self.errors = output, errors
        self.pid = 0
        self.status: int | None = None
        self.started, self.ended = threading.Event(), threading.Event()

    def send(self, number: signal.Signals, to_all: bool = False) -> None:
        """Send a signal to the process, or to all of its session that are its group (as a terminal does)."""
        (os.killpg if to_all else os.kill)(self.pid, number)

    def wait(self, seconds: float = PATIENCE_SECONDS) -> Ended:
        """How it ended. Fails, and kills it, where it takes too long."""
        if not self.ended.wait(seconds):
            self.send(signal.SIGKILL, to_all=True)
            raise AssertionError(f"still running after {seconds} s\n{self.said}")
        assert self.status is not None
        return Ended(self.status, self.output.read_text(), self.errors.read_text())

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    @property
    def said(self) -> str:
        return self.output.read_text() + self.errors.read_text()


class Commands:
    """The client of command_server.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commands: list[Command] = []
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(vaak.__file__).parents[1])}
        server = Path(__file__).with_name("command_server.py")
        self.server = subprocess.Popen(
            [sys.executable, str(server)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.listener.start()

    def start(
        self,
        arguments: Sequence[str | Path],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        file_size_limit: int | None = None,
        circumstances: Sequence[str] = (),
        script: Path | None = None,
    ) -> Command:
        """Start ``vaak ARGUMENTS``, or a ``script``, in a folder; ``circumstances`` are those of command_server.py."""
        number = len(self.commands)
        command = Command(self.folder / f"{number}.out", self.folder / f"{number}.err")
        self.commands.append(command)
        request = {
            "arguments": [str(argument) for argument in arguments],
            "folder": str(folder),
            "environment": dict(environment or {}),
            "output": str(command.output),
            "errors": str(command.errors),
            "file_size_limit": file_size_limit,
            "circumstances": list(circumstances),
            "script": None if script is None else str(script),
        }
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps([number, request]) + "\n")
        self.server.stdin.flush()
        assert command.started.wait(4 * PATIENCE_SECONDS), "the server is still importing what it serves"
        return command

    def start_ranks(
        self, world_size: int, arguments: Sequence[str | Path], folder: Path, circumstances: Sequence[str] = ()
    ) -> list[Command]:
        """Start a command on several processes, as torchrun does."""
        places = {"WORLD_SIZE": str(world_size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        return [
            self.start(
                arguments,
                folder,
                {**places, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                circumstances=circumstances,
            )
            for rank in range(world_size)
        ]

    def close(self) -> None:
        """End the server by a word: a process that a test forked may hold the pipe open."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write("null\n")
        self.server.stdin.close()
        self.server.wait(PATIENCE_SECONDS)
        self.listener.join()
        self.server.stdout.close()

    def _listen(self) -> None:
        assert self.server.stdout is not None
        for line in self.server.stdout:
            what, number, value = line.split()
            command = self.commands[int(number)]
            if what == "started":
                command.pid = int(value)
                command.started.set()
            else:
                command.status = int(value)
                command.ended.set()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def wait_until(condition: Any, command: Command, seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether ``condition()`` came true while the command ran; looks every millisecond."""
    deadline = time.monotonic() + seconds
    while command.is_running and time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.001)
    return False


def stat_records(run: Path) -> list[dict[str, Any]]:
    """The lines of ``metrics.jsonl`` without ``clock``; the test fails where one isn't a whole record."""
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{name: value for name, value in record.items() if name != "clock"} for record in records]


def steps_of(run: Path) -> list[int]:
    """The steps that ``metrics.jsonl`` has, in its order."""
    return [record["step"] for record in stat_records(run) if record["kind"] == "step"]


def checkpoints_of(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").glob("step-*"))


OF_THE_RUN = ("metrics_bytes", "configuration")


def state_of(checkpoint: Path) -> dict[str, Any]:
    """The state of a checkpoint without what differs between runs: their folders, and the digits that a clock wrote."""
    return {name: value for name, value in read_state(checkpoint).items() if name not in OF_THE_RUN}


def assert_same_run(run: Path, reference: Path, *, saved_on_the_way_out: bool = False) -> None:
    """Two runs left the same: every checkpoint to the bit, the pointers, every record, every step once.

    A process that was ``saved_on_the_way_out``, as another was lost, left checkpoints that the reference doesn't have,
    in place of its oldest.
    """
    names = checkpoints_of(reference)
    if saved_on_the_way_out:
        names = [name for name in names if name >= checkpoints_of(run)[0]]
        further = [name for name in checkpoints_of(run) if name not in names]
        assert len(names) >= 2, (checkpoints_of(run), names)
        for name in further:
            verify(run / "checkpoints" / name)
    else:
        further = []
    assert sorted([*names, *further]) == checkpoints_of(run), (checkpoints_of(run), checkpoints_of(reference))
    for name in names:
        ours, theirs = run / "checkpoints" / name, reference / "checkpoints" / name
        kept = sorted(path.name for path in theirs.glob("*.safetensors"))
        assert sorted(path.name for path in ours.glob("*.safetensors")) == kept
        for file in kept:
            assert (ours / file).read_bytes() == (theirs / file).read_bytes(), f"{file} of {name} differs"
        states = state_of(ours), state_of(theirs)
        assert states[0] == states[1], f"state of {name}: {states[0]} where {states[1]} was expected"
    for pointer in ("best", "last"):
        assert (run / "checkpoints" / pointer).read_text() == (reference / "checkpoints" / pointer).read_text()
    assert stat_records(run) == stat_records(reference)
    assert steps_of(run) == list(range(1, steps_of(reference)[-1] + 1))
    leftovers = [path.name for path in run.rglob(".*") if path.name != ".lock"]
    assert not leftovers, f"half-written files were left: {leftovers}"
