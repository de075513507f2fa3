"""Ctrl-C ends every long phase before training within two seconds, in whatever library it is: as real processes."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tiny_diarizer
import tiny_voice
import vaak
from vaak.config.yaml.text import yaml_text

MARKED = """
import functools, importlib, os, sys
place = sys.argv.pop(1)
if __name__ == "__main__":
    module, _, name = place.partition(":")
    *holders, last = name.split(".")
    holder = functools.reduce(getattr, holders, importlib.import_module(module))
    function = getattr(holder, last)
    def marked(*arguments, **options):
        os.write(2, b"the phase begins\\n")
        return function(*arguments, **options)
    setattr(holder, last, marked)
    from vaak.cli.main import main
    main()
"""
"""Runs a command that says when it calls a function."""

ALONE = """
import os, sys
import numpy as np
rng = np.random.default_rng(0)
def phase():
    {imports}
    os.write(2, b"the phase begins\\n")
    {work}
from vaak.cli.main import exit_on_error
exit_on_error(phase)
"""
"""One phase, as a command runs it."""

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(vaak.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
LIMIT_SECONDS = 8.0
"""Two, with allowance for a busy machine; the phases last for half a minute and more."""


@contextlib.contextmanager
def begun(arguments: list[str], folder: Path, **environment: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """A process whose phase has begun, and the lines that it says on standard error."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env=ENVIRONMENT | environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as command:
        said: list[str] = []
        has_begun = threading.Event()

        def read() -> None:
            assert command.stderr is not None
            for line in command.stderr:
                said.append(line)
                if "the phase begins" in line:
                    has_begun.set()
            has_begun.set()

        thread = threading.Thread(target=read)
        thread.start()
        try:
            assert has_begun.wait(300), said
            yield command, said
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
            thread.join()


def assert_interrupted(command: subprocess.Popen[str], said: list[str], after: float) -> None:
    """It is at work after some seconds, and Ctrl-C ends it in time, without a traceback."""
    time.sleep(after)
    assert command.poll() is None, said
    sent = time.monotonic()
    command.send_signal(signal.SIGINT)
    status = command.wait(60)
    seconds = time.monotonic() - sent
    assert status == 130, said
    assert seconds < LIMIT_SECONDS
    text = "".join(said)
    assert text.count("interrupted: stopping") == 1
    assert "Traceback" not in text


def words_by_chance(folder: Path) -> None:
    """A corpus of words of which hardly one comes twice."""
    rng = random.Random(0)
    letters = "कखगघचछजझटठडढणतथदधनपफबभमयरलवशसह"
    lines = (" ".join("".join(rng.choices(letters, k=rng.randint(3, 9))) for _ in range(12)) for _ in range(100_000))
    (folder / "corpus.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def language_model(folder: Path, corpus: str, tokenizer: str) -> None:
    model = "model: {d_model: 16, num_layers: 1, num_heads: 2}"
    data = f"data: {{corpus: {corpus}, tokenizer: {tokenizer}}}"
    training = "training: {max_steps: 5, device: cpu, logging: {tensorboard: false}}"
    (folder / "run.yml").write_text(f"task: lm\n{model}\n{data}\n{training}\n")


def many_texts(folder: Path, tokenizer: str = "{type: byte_level, vocab_size: 30000}") -> None:
    words_by_chance(folder)
    language_model(folder, "{type: text, train: [corpus.txt]}", tokenizer)


def characters(folder: Path) -> None:
    many_texts(folder, "{type: character, vocab_size: 400}")


def many_sentences(folder: Path) -> None:
    language_model(folder, "{type: grammar, num_sentences: 3000000}", "{type: character, vocab_size: 400}")


def many_recordings(folder: Path, jobs: int = 1) -> None:
    tiny_diarizer.write_corpus(folder)
    for number in range(1500):
        for ending in (".wav", ".rttm"):
            text = folder / "train" / f"train0{ending}"
            if ending == ".wav":
                os.link(text, folder / "train" / f"more{number}{ending}")
            else:
                named = text.read_text().replace("train0", f"more{number}")
                (folder / "train" / f"more{number}{ending}").write_text(named)
    (folder / "run.yml").write_text(
        f"extends: tiny.yml\nglobal_config: {{storage_path: '{folder}/features', num_jobs: {jobs}}}\n"
    )


def many_recordings_in_processes(folder: Path) -> None:
    many_recordings(folder, jobs=2)


def many_utterances(folder: Path) -> None:
    corpus = folder / "voice"
    tiny_voice.write_ljspeech(corpus)
    lines = (corpus / "metadata.csv").read_text().splitlines()
    for number in range(3000):
        for kind, ending in (("wavs", "wav"), ("TextGrid", "TextGrid")):
            os.link(corpus / kind / f"a0.{ending}", corpus / kind / f"more{number}.{ending}")
        lines.append(lines[0].replace("a0|", f"more{number}|"))
    (corpus / "metadata.csv").write_text("\n".join(lines) + "\n")
    dataset = {"name": "voice", "type": "ljspeech", "corpus_dir": str(corpus)}
    audio = {"mel": tiny_voice.MEL}
    model = {"encoder": {"d_model": 16, "num_heads": 2, "num_layers": 1}}
    options = {"task": "tts", "datasets": [dataset], "global_config": audio, "model": model}
    (folder / "run.yml").write_text(yaml_text(options))


def voices(folder: Path) -> None:
    (folder / "run.yml").write_text("task: diarization\nmodel: {d_model: 16, num_layers: 1, num_heads: 2}\n")


PHASES: dict[str, tuple[Callable[[Path], None], str, float]] = {
    "training a tokenizer": (many_texts, "vaak.text.tokenizer_training:TokenizerFactory.create_tokenizer", 6.0),
    "tokenising": (characters, "vaak.tasks.lm.prepare:write_tokens", 0.5),
    "composing sentences": (many_sentences, "vaak.text.grammar:sentences", 2.0),
    "making voices": (voices, "vaak.audio.corpora.corpus:VoicesReader.read", 1.0),
    "extracting features": (many_recordings, "vaak.tasks.diarization.task:store_features", 1.0),
    "in processes": (many_recordings_in_processes, "vaak.tasks.diarization.task:store_features", 8.0),
    "making utterances": (many_utterances, "vaak.tasks.tts.prepare:write_utterances", 1.0),
}
"""What makes each phase long, the function that it begins with, and how many seconds later Ctrl-C comes."""


@pytest.mark.slow
@pytest.mark.parametrize("phase", PHASES)
def test_ctrl_c_ends_a_phase_of_preparation(phase: str, tmp_path: Path) -> None:
    write, place, after = PHASES[phase]
    write(tmp_path)
    command = ["-c", MARKED, place, "train", "run.yml", f"run_dir={tmp_path}/run"]
    with begun(command, tmp_path, VAAK_CACHE=str(tmp_path / "cache")) as (process, said):
        assert_interrupted(process, said, after)


ALONE_PHASES = {
    "planning": (
        "from vaak.data.bucketing import BucketedPlanner",
        "BucketedPlanner(rng.integers(1, 1000, 40_000_000), 20000, 32, 10, 0).plan(0)",
    ),
    "clustering by density": (
        "from vaak.tasks.asr.stages.clustering import density\n    from vaak.tasks.asr.stages.options import "
        "ClusteringConfig\n    import sklearn.cluster",
        "density(rng.standard_normal((60_000, 64)), 5, ClusteringConfig())",
    ),
    "spectral clustering": (
        "from vaak.tasks.asr.stages.clustering import spectral\n    import sklearn.cluster",
        "spectral(rng.standard_normal((20_000, 64)), 8, 0)",
    ),
    "in a library that asks no one": ("import zlib", "zlib.compress(bytes(4_000_000_000))"),
}
QUICK_PHASES = ("in a library that asks no one",)
"""The one that no Python interrupts."""


@pytest.mark.parametrize(
    "phase", [pytest.param(name, marks=[] if name in QUICK_PHASES else [pytest.mark.slow]) for name in ALONE_PHASES]
)
def test_ctrl_c_ends_what_is_in_a_library(phase: str, tmp_path: Path) -> None:
    imports, work = ALONE_PHASES[phase]
    with begun(["-c", ALONE.format(imports=imports, work=work)], tmp_path) as (process, said):
        assert_interrupted(process, said, 1.0)


def test_what_fails_because_of_it_is_no_error(tmp_path: Path) -> None:
    """Like a library that turns the interrupt into its own exception."""
    work = "try:\n        time.sleep(60)\n    except KeyboardInterrupt:\n        raise ValueError('broken')"
    with begun(["-c", ALONE.format(imports="import time", work=work)], tmp_path) as (process, said):
        assert_interrupted(process, said, 0.5)
    assert "broken" not in "".join(said)


def test_threads_that_do_not_end_are_left(tmp_path: Path) -> None:
    work = "import threading, time\n    threading.Thread(target=time.sleep, args=(60,)).start()\n    time.sleep(60)"
    with begun(["-c", ALONE.format(imports="pass", work=work)], tmp_path) as (process, said):
        assert_interrupted(process, said, 0.5)
