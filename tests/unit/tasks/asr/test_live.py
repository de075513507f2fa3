"""Live transcription: partial texts that only grow, and final texts that depend on the samples alone."""

from __future__ import annotations

import dataclasses
import io
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from json import loads
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import tiny_listener
from vaak.audio.live_audio import Lost, hear_stream, make_resampler
from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.tasks.asr.live import Event, LiveOptions, LiveTranscriber, find_agreed
from vaak.tasks.asr.long_form import Window

RATE = tiny_listener.RATE
WINDOW = 1.6
SENTENCES = [["ba", "do"], ["mi"], ["su", "ba", "do"]]
PAUSE = 0.9
CTC = {"architecture": "ctc", "conformer": {"num_layers": 1, "d_model": 32, "num_heads": 2}}


@pytest.fixture(autouse=True)
def _speech_is_found_by_energy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made sounds aren't speech to silero-vad, which may be installed."""
    monkeypatch.setattr("vaak.audio.silero.find_weights", lambda: None)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Whisper that has learned some of the words."""
    folder = tmp_path_factory.mktemp("live")
    tiny_listener.write_listener(folder / "corpus")
    options = ("training.max_steps=60", "training.validation.interval=60", "data.decoding.max_new_tokens=6")
    return tiny_listener.train(folder / "corpus", folder / "run", *options, data={"max_duration": WINDOW})


@pytest.fixture(scope="module")
def transcriber(run: Path) -> Any:
    opened = open_run(run)
    return opened.task.transcriber(opened.model)


@pytest.fixture(scope="module")
def talk() -> np.ndarray:
    """Sentences of tones, with pauses, as 16-bit samples."""
    rng = np.random.default_rng(0)
    pause = 1e-3 * rng.standard_normal(round(PAUSE * RATE))
    parts = [part for words in SENTENCES for part in (pause, tiny_listener.make_samples(words, "low", rng))]
    return (32767 * np.concatenate([*parts, pause])).astype("<i2")


def speak(words: list[str], rng: np.random.Generator) -> np.ndarray:
    """Words as 16-bit samples."""
    return (32767 * tiny_listener.make_samples(words, "low", rng)).astype("<i2")


def at_rate_of(transcriber: Any, samples: np.ndarray) -> np.ndarray:
    """The samples at the rate of the model, as standard input gives them."""
    stream: Any = io.BytesIO(samples.tobytes())
    blocks = [one.samples for one in hear_stream(stream, RATE, transcriber.features.sampling_rate, Lost())]
    return np.concatenate(blocks)


def hear(transcriber: Any, samples: np.ndarray, size: int, **options: float) -> list[Event]:
    live = LiveTranscriber(transcriber, LiveOptions(**{"interval": 0.2, "pause": 0.4, **options}))
    blocks = (samples[at : at + size] for at in range(0, len(samples), size))
    return [*(event for block in blocks for event in live.feed(block)), *live.finish()]


def finals(events: list[Event]) -> list[Event]:
    return [one._replace(heard=0.0) for one in events if one.type == "final"]


def test_a_final_text_is_that_of_the_utterances_audio(transcriber: Any, talk: np.ndarray):
    samples = at_rate_of(transcriber, talk)
    rate = transcriber.features.sampling_rate
    found = finals(hear(transcriber, samples, rate // 100))
    assert len({one.text for one in found}) > 1
    begin = 0.0
    for event, words in zip(found, SENTENCES, strict=True):
        begin += PAUSE + 0.05
        assert event.start == pytest.approx(begin, abs=0.1)
        begin += 0.25 * len(words) - 0.05
        assert event.end == pytest.approx(begin, abs=0.15)
        # From 0.3 s before it was known that somebody speaks, 0.1 s after the beginning, to 0.2 s after the last
        # loud frame, 0.06 s before the end.
        own = samples[round((event.start - 0.2) * rate) : round((event.end + 0.14) * rate)]
        window = Window(0.0, event.start, event.end, transcriber.features(own), len(own))
        assert event.segments == tuple(transcriber.segments_of_windows([window])[0])


def test_final_texts_do_not_depend_on_how_samples_come(transcriber: Any, talk: np.ndarray):
    samples = at_rate_of(transcriber, talk)
    expected = finals(hear(transcriber, samples, 160))
    for size in (37, 4001, len(samples)):
        assert finals(hear(transcriber, samples, size)) == expected


def test_partial_texts_only_grow_and_two_texts_agree_on_them(transcriber: Any, talk: np.ndarray):
    samples = at_rate_of(transcriber, talk)
    written: list[tuple[str, str]] = []
    live = LiveTranscriber(transcriber, LiveOptions(interval=0.1, pause=0.4))
    quick = live._quick

    class Noting(type(quick)):  # type: ignore[misc]
        def continue_text(self, features: np.ndarray, settled: str) -> str:
            written.append((settled, super().continue_text(features, settled)))
            return written[-1][1]

    live._quick = Noting(**{field.name: getattr(quick, field.name) for field in dataclasses.fields(quick)})
    shown, before = "", 0
    kept = 0
    for at in range(0, len(samples), 160):
        for event in live.feed(samples[at : at + 160]):
            if event.type == "final":
                shown, before = "", len(written)
                continue
            kept += 1
            assert event.text.startswith(shown)
            assert len(event.text) > len(shown)
            shown = event.text
            assert len(written) - before >= 2
            assert all(text.startswith(shown) for _, text in written[-2:])
    assert kept >= 3
    # What is settled is read before the rest is written.
    assert all(text.startswith(settled) for settled, text in written if settled)


def test_settled_words_may_be_all(transcriber: Any):
    rng = np.random.default_rng(0)
    spoken = [at_rate_of(transcriber, speak([word], rng)) for word in tiny_listener.WORDS]
    features = [transcriber.features(one) for one in spoken]
    texts = transcriber.texts_of_windows(features)
    assert len(set(texts)) > 1
    # Greedy search continues the model's own first words to the same text, and adds nothing to the whole text.
    for one, text in zip(features, texts, strict=True):
        assert transcriber.continue_text(one, text) == text
        assert transcriber.continue_text(one, text.split()[0]) == text


def test_speech_without_a_pause_is_cut_and_none_of_it_is_lost(transcriber: Any):
    rng = np.random.default_rng(0)
    words = [str(one) for one in rng.choice(list(tiny_listener.WORDS), 24)]
    samples = at_rate_of(transcriber, speak(words, rng))
    found = finals(hear(transcriber, samples, 160))
    assert len(found) >= 4
    assert all(one.end - one.start <= WINDOW for one in found)
    assert found[-1].end == pytest.approx(len(samples) / transcriber.features.sampling_rate, abs=0.1)
    for one, after in pairwise(found):
        assert after.start == pytest.approx(one.end, abs=0.02)


@pytest.mark.slow
def test_a_ctc_model_is_heard_live(tmp_path: Path, talk: np.ndarray):
    tiny_listener.write_listener(tmp_path / "corpus")
    data, options = {"max_duration": WINDOW}, ("training.max_steps=160", "training.validation.interval=160")
    run = tiny_listener.train(tmp_path / "corpus", tmp_path / "run", *options, model=CTC, data=data)
    opened = open_run(run)
    listener = opened.task.transcriber(opened.model)
    samples = at_rate_of(listener, talk)
    found = hear(listener, samples, 160)
    assert finals(hear(listener, samples, len(samples))) == finals(found)
    assert len(finals(found)) == len(SENTENCES)
    assert any(one.type == "partial" for one in found)
    shown = ""
    for event in found:
        assert event.type == "final" or (event.text.startswith(shown) and event.text != shown)
        shown = event.text if event.type == "partial" else ""


@pytest.mark.parametrize(
    ("first", "second", "agreed"),
    [
        ("", "a word", ""),
        ("a word", "a word more", "a word"),
        ("a word", "a words", "a"),
        ("One. Two", "One, two", "One"),
        ("नमस्ते दुनिया", "नमस्त", ""),
        ("नमस्ते दुनिया", "नमस्ते दुनि", "नमस्ते"),
        ("今日は雨", "今日は晴れ", "今日は"),
        ("ที่นี่", "ที่นั่น", "ที่"),
    ],
)
def test_texts_agree_up_to_the_end_of_a_word(first: str, second: str, agreed: str):
    assert find_agreed(first, second) == agreed


def test_samples_come_whole_however_they_are_read():
    samples = np.random.default_rng(0).integers(-32768, 32767, 5000).astype("<i2")
    draws = random.Random(0)

    class Dribbling:
        def __init__(self) -> None:
            self.rest = samples.tobytes() + b"x"

        def read(self, size: int) -> bytes:
            found = self.rest[: min(size, draws.randint(1, 700))]
            self.rest = self.rest[len(found) :]
            return found

    lost = Lost()
    found = [one.samples for one in hear_stream(Dribbling(), 16_000, 16_000, lost)]  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.concatenate(found) * 32768, samples)
    assert {len(one) for one in found[:-1]} == {320}
    assert lost.num_bytes == 1
    with pytest.raises(UserError, match="--rate 10: expected the samples in a second, 4000 to 192000"):
        next(hear_stream(Dribbling(), 10, 16_000, lost))  # type: ignore[arg-type]


@pytest.mark.parametrize(("rate", "latest"), [(8_000, 0.00626), (16_001, 0.0032), (48_000, 0.0032)])
def test_samples_of_another_rate_are_late_by_half_a_filter(rate: int, latest: float):
    """soxr's streams, which were taken before, are up to 0.115 s late at 8 kHz."""
    seconds, wanted = 0.5, 16_000
    times = np.arange(round(seconds * rate)) / rate
    pitches = (150.0, 1000.0, 0.4 * min(rate, wanted))

    def sing(times: np.ndarray) -> np.ndarray:
        return np.asarray(sum(np.sin(2 * np.pi * pitch * times + pitch) for pitch in pitches)) / 4

    samples, draws = sing(times).astype(np.float32), random.Random(0)
    resample, found, read = make_resampler(rate, wanted), list[np.ndarray](), 0
    while read < len(samples):
        new = samples[read : read + draws.randint(1, 400)]
        read += len(new)
        found.append(resample(new, False))
        assert read / rate - sum(map(len, found)) / wanted < latest + 1 / wanted
    found.append(resample(samples[:0], True))
    whole = np.concatenate(found)
    np.testing.assert_array_equal(whole, make_resampler(rate, wanted)(samples, True))
    assert len(whole) == -(-len(samples) * wanted // rate)
    middle = slice(wanted // 50, -wanted // 50)
    np.testing.assert_allclose(whole[middle], sing(np.arange(len(whole)) / wanted)[middle], atol=3e-5)
    above = np.sin(2 * np.pi * 0.55 * wanted * times).astype(np.float32)
    if rate > 1.2 * wanted:
        assert np.abs(make_resampler(rate, wanted)(above, True)[middle]).max() < 1e-4


def test_a_stream_that_does_not_wait_is_heard_to_its_end():
    samples = np.arange(2000, dtype="<i2")
    receiving, sending = os.pipe()
    os.set_blocking(receiving, False)
    with os.fdopen(receiving, "rb", buffering=0) as stream, os.fdopen(sending, "wb", buffering=0) as source:
        heard = hear_stream(stream, 16_000, 16_000, Lost())
        source.write(samples[:320].tobytes())
        found = [next(heard).samples]
        time.sleep(0.05)
        source.write(samples[320:].tobytes())
        source.close()
        found += [one.samples for one in heard]
    np.testing.assert_array_equal(np.concatenate(found) * 32768, samples)


@pytest.mark.parametrize("name", ["wav", "flac", "ogg", "aiff", "caf"])
def test_a_file_is_not_heard_as_samples(name):
    content = io.BytesIO()
    soundfile.write(content, np.zeros(4000), 16_000, format=name)
    content.seek(0)
    stream: Any = content
    with pytest.raises(UserError, match=rf"standard input is an? {name.upper() if name != 'ogg' else 'Ogg'} file, not"):
        list(hear_stream(stream, 16_000, 16_000, Lost()))


def test_a_stream_that_breaks_is_not_taken_for_its_end():
    class Broken:
        def read(self, size: int) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        list(hear_stream(Broken(), 16_000, 16_000, Lost()))  # type: ignore[arg-type]


# The command.


@pytest.fixture
def said(vaak: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """``said(content, speed, *arguments)``: a command whose standard input gets bytes at a speed, 0 at once."""

    def call(
        content: bytes, speed: float, *arguments: object, then: Callable[[], None] = lambda: None
    ) -> tuple[int, str, str]:
        reading, writing = os.pipe()

        def play() -> None:
            step, begun = round(0.02 * RATE) * 2, time.monotonic()
            with open(writing, "wb", buffering=0) as stream:
                for at in range(0, len(content), step):
                    if speed:
                        time.sleep(max(0.0, begun + at / 2 / RATE / speed - time.monotonic()))
                    stream.write(content[at : at + step])
                then()

        player = threading.Thread(target=play)
        with open(reading, encoding="utf-8") as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            player.start()
            found = vaak(*arguments)
            player.join()
        return found

    return call


@pytest.mark.parametrize("played", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_the_same_text_at_any_speed(played: int, said: Callable[..., Any], run: Path, talk: np.ndarray):
    command, found = ("transcribe", run, "--live", "--rate", RATE, "--pause", 0.4), []
    for speed in (played, 0):
        code, out, err = said(
            talk.tobytes(), speed, "transcribe", run, "--live", "--rate", RATE, "--json", "--pause", 0.4
        )
        assert code == 0
        events = [loads(line) for line in out.splitlines()]
        found.append([{**one, "heard": 0} for one in events if one["type"] == "final"])
        seconds = len(talk) / RATE
        assert err.splitlines() == [
            "standard input: raw 16-bit mono samples, 8,000 in a second",
            f"{int(seconds * 100) / 100:.1f} s heard, utterances: 3, found by energy",
        ]
    assert len(found[0]) == len(SENTENCES)
    assert found[1] == found[0]
    code, out, _ = said(talk.tobytes(), 0, *command)
    assert out.splitlines() == [one["text"] for one in found[0]]


@pytest.mark.slow
def test_ctrl_c_ends_and_the_last_words_are_written(said: Callable[..., Any], run: Path, talk: np.ndarray):
    content, command = talk.tobytes(), ("transcribe", run, "--live", "--rate", RATE, "--pause", 0.4)
    # During the first sentence.
    content = content[: 2 * round(1.4 * RATE)]
    expected = said(content, 0, *command)
    assert expected[0] == 0
    assert expected[1].strip()

    def press() -> None:
        # The stream stays open: nothing but Ctrl-C ends it.
        time.sleep(2.0)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1.5)

    code, out, err = said(content, 0, *command, then=press)
    assert (code, out) == expected[:2]
    assert "interrupted: stopping" in err
    assert err.endswith("utterances: 1, found by energy\n")


@pytest.mark.slow
def test_a_process_whose_input_stays_open_ends_well_by_ctrl_c(run: Path, talk: np.ndarray):
    program = [sys.executable, "-c", "from vaak.cli.main import main; main()", "transcribe", run, "--live", "--rate"]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen([*map(str, program), str(RATE)], **pipes) as process:  # type: ignore[call-overload]
        process.stdin.write(talk.tobytes())
        process.stdin.flush()
        assert process.stdout.readline().strip()
        process.send_signal(signal.SIGINT)
        said = process.stderr.read().decode()
        assert process.wait(60) == 0, said
    assert re.fullmatch(r"[1-5]\.\d s heard, utterances: [0-3], found by (energy|silero-vad)", said.splitlines()[-1])


def test_silence_has_no_text_and_half_a_sample_is_reported(said: Callable[..., Any], run: Path, talk: np.ndarray):
    code, out, err = said(b"\0" * 2 * RATE, 0, "transcribe", run, "--live", "--rate", RATE)
    assert (code, out) == (0, "")
    assert err.endswith("\n1.0 s heard, utterances: 0, found by energy\n")
    code, out, err = said(talk.tobytes()[:-1], 0, "transcribe", run, "--live", "--rate", RATE)
    assert code == 0
    assert (
        err.splitlines()[-1]
        == "standard input: 1 byte at the end is less than a 2-byte sample: is it raw 16-bit audio?"
    )


NOT_LIVE = "can't be taken with --live, which prints text or JSON of what it hears"


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--live", "talk.wav"], f"AUDIO {NOT_LIVE}"),
        (["--live", "--format", "srt"], f"--format {NOT_LIVE}"),
        (["--live", "--long-form", "seek"], f"--long-form {NOT_LIVE}"),
        (["--live", "--rate", "3"], "--rate 3: expected the samples in a second, 4000 to 192000"),
        (["--pause", "1", "talk.wav"], "--pause is of --live only"),
        ([], "give the files to transcribe, or --live"),
    ],
)
def test_options_that_do_not_fit_are_one_line(said: Callable[..., Any], run: Path, arguments: list[str], line: str):
    code, out, err = said(b"", 0, "transcribe", run, *arguments)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1] == line


def test_a_microphone_without_its_package_is_one_line(
    vaak: Callable[..., Any], run: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    terminal, other = os.openpty()
    with open(other, encoding="utf-8") as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        code, out, err = vaak("transcribe", run, "--live")
    os.close(terminal)
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("a microphone is heard by sounddevice and PortAudio")
    assert err.splitlines()[-1].endswith("pip install 'vaak[live]'")
