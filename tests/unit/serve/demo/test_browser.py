"""The page in Chromium, with a microphone that plays a file."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import soundfile

from browser import CHROMIUM, Tab, browser
from commands import Commands
from served_runs import serving, train_chat, train_task, wait_until
from vaak.config.load import load
from vaak.runs.start import train

pytest.importorskip("gradio", reason="the extra demo isn't installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium-headless-shell"),
]
FURTHER = ("diarization", "seq2seq")
HOSTILE = ("<script>alert(1)</script>", "{{value}} ${1+1}<img src=x onerror=alert(2)>")


def seen(selector: str) -> str:
    """An expression for the elements that are seen."""
    return f"[...document.querySelectorAll({selector!r})].filter(x => x.offsetParent !== null)"


@dataclass(frozen=True)
class Opened:
    """The page in a tab; ``folder`` has what it was made of, ``process`` is the server's."""

    tab: Tab
    folder: Path
    address: str
    process: int

    def click(self, text: str, of: str = "button") -> None:
        """Click what is seen with this text, once it is."""
        found = f"{seen(of)}.find(x => x.innerText.trim() === {text!r})"
        self.tab.wait(f"Boolean({found})")
        self.tab.value(f"{found}.click()")

    def fill(self, text: str) -> None:
        """Write a text into the first field that is seen."""
        self.tab.wait(f"{seen('textarea')}.length")
        self.tab.value(f"{seen('textarea')}[0].value = {json.dumps(text)}")
        self.tab.value(f"{seen('textarea')}[0].dispatchEvent(new Event('input', {{bubbles: true}}))")

    def asked_for(self, path: str) -> bool:
        """Whether the page has asked for an address with this in it."""
        self.tab.value("1")  # reads what has happened
        return any(path in one for one in self.tab.requests)

    def uploads(self) -> list[str]:
        """The addresses of files that the page has loaded, each once."""
        self.tab.value("1")
        return [*dict.fromkeys(one for one in self.tab.requests if "/gradio_api/file=" in one)]

    def shown(self, of: str) -> str:
        """The text of the first element of results that is seen, once there is one."""
        self.tab.wait(f"{seen(f'.vaak {of}')}.length")
        return str(self.tab.value(f"{seen(f'.vaak {of}')}[0].innerText"))


def train_hostile(folder: Path) -> Path:
    """A classifier whose labels are code."""
    folder.mkdir()
    rows = [
        {"text": f"{word} {number} so it is", "label": label}
        for number in range(20)
        for word, label in zip(("good", "bad"), HOSTILE, strict=True)
    ]
    (folder / "texts.json").write_text(json.dumps(rows), encoding="utf-8")
    train_task(folder, "classification", evaluates=True)
    options = (folder / "options.yml").read_text(encoding="utf-8")
    file = folder / "hostile.yml"
    file.write_text(options.replace(str(folder / "data" / "texts.json"), str(folder / "texts.json")), encoding="utf-8")
    train(load([file], [f"run_dir={folder / 'hostile'}", "training.validation.interval=2"]))
    return folder / "hostile"


@pytest.fixture(scope="module")
def page(commands, pictures: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("page")
    (folder / "speech").mkdir()
    train_task(folder / "speech", "asr", evaluates=True)
    hostile = train_hostile(folder / "labels")
    time_axis = np.arange(3 * 16_000) / 16_000
    soundfile.write(folder / "microphone.wav", 0.5 * np.sin(2 * np.pi * 440 * time_axis), 16_000, "PCM_16")
    runs = folder / "speech" / "asr", hostile, folder / "labels" / "classification"
    microphone = (
        "--use-fake-ui-for-media-stream",
        "--use-fake-device-for-media-stream",
        f"--use-file-for-fake-audio-capture={folder / 'microphone.wav'}",
    )
    with open_page(commands, folder, *runs, "--keep", folder / "kept", options=microphone) as opened:
        yield opened


@contextmanager
def open_page(commands: Commands, folder: Path, *arguments: object, options: Sequence[str] = ()) -> Iterator[Opened]:
    """The page of some runs in a new browser, which is begun with ``options``."""
    with serving(commands, folder, *arguments, command="demo") as server, browser(*options) as tab:
        tab.size(1280)
        tab.open(f"{server.address}/")
        tab.wait("document.querySelectorAll('[role=tab]').length >= 2")
        yield Opened(tab, folder, server.address, server.command.pid)


@pytest.fixture(scope="module")
def chat_page(commands, pictures: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    folder = tmp_path_factory.mktemp("chat_page")
    with open_page(commands, folder, train_chat(folder / "chats")) as opened:
        yield opened


def test_a_recording_is_transcribed_and_kept(page: Opened):
    page.click("Transcribe", "button.primary")
    assert page.shown(".wrong") == "no recording yet: record one, or choose a file"
    page.click("Record")
    time.sleep(2.5)
    page.click("Stop")
    wait_until(lambda: page.asked_for("/gradio_api/upload"))
    wait_until(lambda: page.asked_for("/gradio_api/file="))  # its waveform is drawn
    page.click("Transcribe", "button.primary")
    said = page.shown(".text, .note:not([aria-busy])")
    assert "asr" in page.tab.value("document.querySelector('.vaak h3').innerText")
    page.fill("so it <b>is</b>")
    page.click("Keep this recording with this text")
    assert page.shown("p.note:last-child")
    page.tab.wait("document.body.innerText.includes('kept as ')")
    (line,) = (page.folder / "kept" / "recordings.jsonl").read_text(encoding="utf-8").splitlines()
    kept = json.loads(line)
    assert kept["text"] == "so it <b>is</b>"
    samples, rate = soundfile.read(page.folder / "kept" / kept["audio_filepath"])
    assert 1 < len(samples) / rate < 20
    assert np.abs(samples).max() > 0.05, "nothing of the microphone was recorded"
    assert said


def test_an_example_brings_its_reference(page: Opened):
    page.click("Classify", "[role=tab]")
    page.tab.wait(f"{seen('tbody tr')}.length")
    page.tab.value(f"{seen('tbody tr')}[0].click()")
    page.tab.wait(f"{seen('textarea')}.filter(x => x.value).length === 2")
    text, reference = page.tab.value(f"{seen('textarea')}.map(x => x.value)")
    assert reference in HOSTILE
    assert "so it is" in text


def test_labels_and_texts_that_are_code_are_texts(page: Opened):
    page.click("Classify", "[role=tab]")
    page.fill("good {{value}} ${1+1} <b>so</b>")
    page.click("Classify", "button.primary")
    page.tab.wait(f"{seen('.vaak .bar')}.length === 4")
    assert page.tab.value(f"{seen('.vaak h3')}.map(x => x.innerText)") == ["hostile", "classification"]
    labels = page.tab.value(f"{seen('.vaak .bar span:first-child')}.map(x => x.textContent)")
    assert {*HOSTILE} <= {*labels}
    assert page.tab.value("document.querySelectorAll('.vaak script, .vaak img, .vaak b').length") == 0


def test_an_answer_is_stopped(chat_page: Opened):
    chat_page.click("Chat", "[role=tab]")
    chat_page.tab.wait(f"{seen('input[type=number]')}.length")
    # More tokens than come in a minute.
    chat_page.tab.value(f"{seen('input[type=number]')}[0].value = 2000")
    for event in ("input", "change", "blur"):
        chat_page.tab.value(f"{seen('input[type=number]')}[0].dispatchEvent(new Event({event!r}, {{bubbles: true}}))")
    chat_page.fill("7?")
    chat_page.click("Send")
    answer = f"{seen('.bot')}.map(x => x.innerText).join('')"
    chat_page.tab.wait(f"{answer}.length > 20")
    chat_page.click("Stop")
    time.sleep(1.0)
    before = chat_page.tab.value(answer)
    time.sleep(2.0)
    assert chat_page.tab.value(answer) == before
    chat_page.click("Begin again")
    chat_page.tab.wait(f"{seen('.bot')}.length === 0")


@pytest.fixture(scope="module")
def further_page(commands, pictures: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """The page of a diarizer and of a translator."""
    folder = tmp_path_factory.mktemp("further_page")
    for task in FURTHER:
        (folder / task).mkdir()
        train_task(folder / task, task, evaluates=True)
    with open_page(commands, folder, *(folder / task / task for task in FURTHER)) as opened:
        yield opened


def test_a_timeline_is_what_the_command_finds(further_page: Opened, vaak):
    page = further_page
    page.click("Who speaks", "[role=tab]")
    page.tab.wait(f"{seen('tbody tr')}.length")
    page.tab.value(f"{seen('tbody tr')}[0].click()")
    page.tab.wait(f"{seen('textarea')}.some(x => x.value)")
    reference = str(page.tab.value(f"{seen('textarea')}[0].value"))
    assert all(re.fullmatch(r"[\d.]+–[\d.]+ s: \w+", line) for line in reference.splitlines()), reference
    page.tab.wait(f"{seen('audio, [aria-label=Play]')}.length")  # the recording is there
    page.click("Find who speaks when", "button.primary")
    page.tab.wait(f"{seen('.vaak .lane')}.length")
    shown = page.tab.value("[...document.querySelectorAll('.vaak td')].map(x => x.textContent)")
    (recording,) = (one for one in page.uploads() if one.endswith("recording-1.wav"))
    (page.folder / "recording.wav").write_bytes(httpx.get(recording).content)
    code, printed, err = vaak("diarize", page.folder / "diarization" / "diarization", page.folder / "recording.wav")
    assert code == 0, err
    found = [line.split() for line in printed.splitlines() if line.startswith("SPEAKER")]
    spans = [(float(one[3]), float(one[3]) + float(one[4]), one[7]) for one in found]
    rows = [shown[place : place + 3] for place in range(0, len(shown), 3)]
    assert len(rows) == len(spans) > 0
    for (start, end, speaker), (begun, ended, name) in zip(rows, spans, strict=True):
        assert (float(start), float(end)) == pytest.approx((begun, ended), abs=0.006)
        assert speaker == name
    lanes = page.tab.value(f"{seen('.vaak .lane div')}.map(x => x.children.length)")
    assert sum(lanes) == len(spans)
    inside = page.tab.value(
        f"{seen('.vaak .lane div')}.every(lane => [...lane.children].every(x => "
        "x.getBoundingClientRect().right <= lane.getBoundingClientRect().right + 1))"
    )
    assert inside


def test_a_translation_is_that_of_the_command(further_page: Opened, vaak):
    page = further_page
    page.click("Translate", "[role=tab]")
    page.fill("ab ba")
    page.click("Translate", "button.primary")
    text = page.shown(".text")
    code, printed, err = vaak("predict", page.folder / "seq2seq" / "seq2seq", "ab ba")
    assert code == 0, err
    assert text == printed.rstrip("\n")
    page.fill("")
    page.click("Translate", "button.primary")
    assert page.shown(".wrong") == "no text yet: write one"


def test_nothing_is_asked_for_elsewhere(page: Opened):
    own = (page.address, f"blob:{page.address}")
    assert len(page.tab.requests) > 20
    assert [one for one in page.tab.requests if not one.startswith(own)] == []
    assert page.tab.said == []
    for one in psutil.Process(page.process).net_connections():
        assert not one.raddr or one.raddr.ip == "127.0.0.1", one


def test_it_fits_a_phone(page: Opened):
    page.tab.size(400)
    for name in ("Transcribe", "Classify"):
        page.click(name, "[role=tab]")
        page.tab.wait(f"{seen('button.primary')}.some(x => x.innerText.trim() === {name!r})")
        assert page.tab.value("document.documentElement.scrollWidth") <= 400
        widths = page.tab.value(f"{seen('.vaak')}.map(x => x.getBoundingClientRect().width)")
        assert min(widths) > 250, "columns are below each other"
    page.tab.size(1280)
