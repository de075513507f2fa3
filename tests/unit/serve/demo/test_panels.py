"""What the page shows is what the commands print; an error is one line in the column in which it arose."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from served_runs import train_task
from vaak.core.errors import UserError
from vaak.serve.demo import drawing

gradio = pytest.importorskip("gradio", reason="the extra demo isn't installed")
pytestmark = pytest.mark.slow


@pytest.fixture
def page_of(server_of, tmp_path: Path):
    from vaak.serve.demo.panels import Page

    return lambda *runs, **limits: Page(server_of(*runs, **limits), None, tmp_path)


def only(page):
    (served,) = page.server.models.values()
    return served


def test_a_transcript_is_that_of_the_command(page_of, run_of, vaak):
    from vaak.serve.demo.speech_panels import transcribe

    run = run_of("asr")
    recording = Path(run.inputs[0])
    page = page_of(run.folder)
    shown, text = transcribe(only(page), recording, True, None)
    assert text + "\n" == vaak("transcribe", run.folder, recording)[1]
    (data,) = re.findall(r'download="[^"]+\.srt" href="data:text/plain;base64,([^"]+)"', shown)
    assert base64.b64decode(data).decode() == vaak("transcribe", run.folder, recording, "--format", "srt")[1]


def test_a_text_grows_to_that_of_the_command(page_of, run_of, vaak):
    from vaak.serve.demo.text_panels import write
    from vaak.serve.forms import CompletionRequest
    from vaak.serve.writing import read_request

    run = run_of("lm")
    page = page_of(run.folder)
    served = only(page)
    form = CompletionRequest(prompt="लड़की", max_tokens=12, seed=3)
    asked = read_request(page.server, served, form, [served.task.prompt("लड़की")], chat=False)
    shown = list(write(asked))
    assert all(after.startswith(before) for before, after in itertools.pairwise(shown))
    assert len(set(shown)) > 2
    printed = vaak("generate", run.folder, "लड़की", "--max-new-tokens", 12, "--seed", 3, "--json")[1]
    assert "लड़की" + shown[-1] == json.loads(printed.splitlines()[0])["text"]


def test_speech_is_that_of_the_command(page_of, run_of, vaak, tmp_path: Path):
    from vaak.serve.demo.speech_panels import speak

    run = run_of("tts")
    shown = speak(only(page_of(run.folder)), "So it is. And so it was.", None, 1.25)
    (data,) = re.findall(r'src="data:audio/wav;base64,([^"]+)"', shown)
    code, _, err = vaak("speak", run.folder, "So it is. And so it was.", "--speed", 1.25, "-o", tmp_path / "own.wav")
    assert code == 0, err
    assert base64.b64decode(data) == (tmp_path / "own.wav").read_bytes()
    assert shown.count("data:image/png") == 2
    assert "Phones of sentence 2" in shown


def test_an_error_is_one_line_in_the_column_in_which_it_arose(page_of, run_of):
    from vaak.serve.demo.panels import side_by_side

    page = page_of(run_of("lm").folder)
    served = only(page)

    def show(one):
        yield drawing.plain_text("before")
        raise UserError("what is\nwrong: <b>")

    *_, [shown] = side_by_side([served], show)
    assert '<p class="wrong" role="alert">what is wrong: &lt;b&gt;</p>' in shown
    assert "before" not in shown


def test_a_fault_is_logged_and_not_shown(page_of, run_of, caplog):
    from vaak.serve.demo.panels import side_by_side

    def show(one):
        raise RuntimeError("a secret")
        yield

    *_, [shown] = side_by_side([only(page_of(run_of("lm").folder))], show)
    assert "fault of the server" in shown
    assert "secret" not in shown
    assert "a secret" in caplog.text


@pytest.mark.parametrize("task", ["asr", "diarization", "tts", "lm", "classification", "seq2seq", "vocoder"])
def test_columns_have_texts_for_gradio_of_however_many_models(page_of, run_of, tmp_path: Path, task):
    from gradio.state_holder import SessionState

    from vaak.serve.demo.page import make_page

    async def run_panels(*runs: Path) -> list[Any]:
        blocks, columns = make_page(page_of(*runs)), []
        for one in blocks.fns.values():
            if one.name == "run":
                given = [getattr(component, "value", None) for component in one.inputs]
                told = (await blocks.process_api(one, given, state=SessionState(blocks)))["data"]
                columns += [value for value, where in zip(told, one.outputs, strict=True) if type(where) is gradio.HTML]
        return columns

    second = shutil.copytree(run_of(task).folder, tmp_path / "second")
    for runs in ([second], [run_of(task).folder, second]):
        columns = asyncio.run(run_panels(*runs))
        assert len(columns) >= len(runs)
        assert all(isinstance(value, str) for value in columns), columns


@pytest.mark.parametrize("task", ["asr", "diarization", "tts", "classification", "seq2seq"])
def test_examples_have_references(pictures: None, tmp_path: Path, server_of, task):
    from vaak.serve.demo.examples import read_examples

    train_task(tmp_path, task, evaluates=True)
    (served,) = server_of(tmp_path / task).models.values()
    found = read_examples(served, tmp_path)
    assert found
    for one in found:
        given, reference = one.given, one.reference
        assert given.is_file() if isinstance(given, Path) else given.strip()
        assert reference.is_file() if isinstance(reference, Path) else reference.strip()


@pytest.mark.parametrize(
    ("limits", "said"), [({"max_duration": 0.01}, "--max-duration"), ({"max_channels": 0}, "channels")]
)
def test_recordings_have_limits(page_of, run_of, limits, said):
    from vaak.serve.demo.panels import require_recording
    from vaak.serve.errors import ApiError

    run = run_of("asr")
    page = page_of(run.folder, **limits)
    with pytest.raises(ApiError, match=said) as refused:
        require_recording(page, run.inputs[0])
    assert str(Path(run.inputs[0]).parent) not in str(refused.value)
    with pytest.raises(UserError, match="no recording yet"):
        require_recording(page, None)


def test_a_language_model_is_tried_on_beginnings_of_its_validation_texts(page_of, run_of):
    page = page_of(run_of("lm").folder)
    found = page.examples([only(page)])
    store = only(page).task.prepared.store("valid")
    texts = [only(page).task.tokenizer.decode(store.document(place).tolist()) for place in range(len(store))]
    assert len(found) == min(5, len(store))
    for one in found:
        assert one.given
        assert one.reference
        assert any(text.split() == f"{one.given} {one.reference}".split() for text in texts)
