"""``--exact``: to the bit, a result on a CPU is the same alone and among others."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import soundfile
import torch

import vaak as library
from quick_cases import mostly_slow
from vaak.tasks.batches import Batches, compute_alone, limit_batch

if TYPE_CHECKING:
    from served_runs import TinyRun
    from vaak.tasks.lm.predict import WordScores

TIMES = re.compile(r'"(seconds_taken|real_time_factor)": [^,}]+,? ?')
COMMANDS: dict[str, tuple[str, tuple[object, ...]]] = {
    "classification": ("classify", ()),
    "seq2seq": ("translate", ("--n-best", 2, "--beam-size", 2)),
    "asr": ("transcribe", ()),
    "lm": ("predict", ()),
    "vocoder": ("predict", ()),
    "diarization": ("predict", ()),
}
"""Of each task, the command that says the most of its results, with options."""


def six(run: TinyRun, folder: Path) -> list[str]:
    """Six inputs of different lengths."""
    if Path(run.inputs[0]).is_file():
        return [*run.inputs, *run.inputs][:6]
    return ["ab ba", "b", "ba ab ab ba w1", "ab", "w1 w2 ab ba b ba ab", "w2 b ba"]


@pytest.mark.parametrize("task", mostly_slow(tuple(COMMANDS), "classification", "seq2seq"))
def test_a_result_has_the_same_bits_alone_and_among_five_others(
    vaak, run_of: Callable[[str], TinyRun], task: str, tmp_path: Path
):
    run, (command, options) = run_of(task), COMMANDS[task]
    inputs = list(dict.fromkeys(six(run, tmp_path)))

    def lines(*given: str) -> list[str]:
        named: tuple[object, ...] = given
        if command in ("classify", "translate"):  # they read the lines of a file
            (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in given), encoding="utf-8")
            named = (tmp_path / "texts.txt",)
        code, out, err = vaak(command, run.folder, *named, *options, "--json", "--exact", "--device", "cpu")
        assert code == 0, err
        return [TIMES.sub("", line) for line in out.splitlines()]

    among = lines(*inputs)
    assert len(among) == len(inputs)
    assert any(re.search(r"\d\.\d{9}", line) for line in among) or task in ("asr", "lm", "diarization")  # scores
    for given, line in zip(inputs, among, strict=True):
        assert lines(given) == [line]


def test_one_batch_size_is_refused_and_another_device_is_said(
    vaak, tiny_run: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    code, _, err = vaak("generate", tiny_run, "a", "--samples", 2, "--exact", "--batch-size", 4)
    assert code == 2
    assert "leave out --batch-size 4" in err
    monkeypatch.setattr("vaak.engine.distributed.launcher.pick_device", lambda _: torch.device("cuda"))
    assert vaak("predict", tiny_run, "a", "--exact", "--device", "cpu")[0] == 0
    assert "--exact: on cuda, results are the same to rounding; on a CPU, to the bit" in caplog.text


def test_samples_are_the_same_alone_and_among_others(vaak, tiny_run: Path):
    how = ("--max-new-tokens", 8, "--json", "--exact")
    found = vaak("generate", tiny_run, "लड़की", "--samples", 5, *how)[1].splitlines()
    for seed in (0, 4):
        assert vaak("generate", tiny_run, "लड़की", "--samples", 1, "--seed", seed, *how)[1].splitlines() == [found[seed]]


def test_in_python_exact_is_an_option_of_predict(run_of: Callable[[str], TinyRun], tmp_path: Path):
    run = library.open(run_of("classification").folder, device="cpu")
    texts, sizes = six(run_of("classification"), tmp_path), list[int]()
    compute = Batches._compute_batch

    def note(self: Batches, parts: list[Any], *rest: Any) -> Any:
        sizes.append(len(parts))
        return compute(self, parts, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Batches, "_compute_batch", note)
        together, alone = run.predict(texts), run.predict(texts, exact=True)
    assert sizes == [6, *[1] * 6]
    assert [json.dumps(one.labels) for one in together] == [json.dumps(one.labels) for one in alone]
    assert limit_batch(8) == 8


def test_log_probabilities_of_a_ctc_model_are_the_same_alone_and_among_others(
    run_of: Callable[[str], TinyRun], tmp_path: Path
):
    run, found = library.open(run_of("asr, ctc").folder, device="cpu"), list[list[bytes]]()
    files = [tmp_path / f"{number}.wav" for number in range(6)]
    for number, file in enumerate(files):
        soundfile.write(file, np.random.default_rng(number).normal(size=3000 + 1200 * number) / 9, 16000)
    task: Any = run.task
    transcriber = task.transcriber(run.model, timestamps="word")
    read = type(transcriber)._log_probs

    def note(self: Any, outputs: Any) -> list[np.ndarray]:
        rows: list[np.ndarray] = read(self, outputs)
        found.append([row.tobytes() for row in rows])
        return rows

    with pytest.MonkeyPatch.context() as patch, compute_alone():
        patch.setattr(type(transcriber), "_log_probs", note)
        assert len(list(transcriber.transcribe_files(files))) == 6
        for file in files:
            list(transcriber.transcribe_files([file]))
    assert [len(rows) for rows in found] == [1] * 12
    assert found[:6] == found[6:]
    assert len({rows[0] for rows in found}) == 6


def test_words_of_a_language_model_have_the_same_scores_whatever_else_was_asked(tiny_run: Path):
    """They are asked about together: in a CTC search with ``lm``, those of all recordings."""
    run = library.open(tiny_run, device="cpu")
    task: Any = run.task
    texts = ["लड़की", "लड़का घर में", "वह", "क", "मेज़ पर सोती"]

    def read(words: WordScores, *texts: str) -> list[float]:
        start = words.begin()
        return [score for score, _ in words.read([(start, text) for text in texts])]

    shared = task.words(run.model)
    with torch.inference_mode():
        together = read(shared, *texts)
        with compute_alone():
            alone = [read(task.words(run.model), text)[0] for text in texts]
            assert read(shared, *texts) == alone  # what it knew from before isn't used
    assert together == pytest.approx(alone)
