"""``/v1/realtime``: the final texts of ``vaak transcribe --live``, and what a WebSocket is refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient, WebSocketDenialResponse

import tiny_listener
from vaak.runs.open_run import open_run
from vaak.serve.gate import Limits
from vaak.tasks.asr.live import LiveOptions, make_live

websockets = pytest.importorskip("websockets.sync.client")
RATE = tiny_listener.RATE
DONE = "conversation.item.input_audio_transcription.completed"
DELTA = "conversation.item.input_audio_transcription.delta"


@pytest.fixture(scope="module")
def talk() -> np.ndarray:
    """Two utterances of tones, with pauses, as 16-bit samples."""
    rng = np.random.default_rng(0)
    pause = 1e-3 * rng.standard_normal(RATE)
    parts = [
        part for words in (["ba", "do"], ["mi"]) for part in (pause, tiny_listener.make_samples(words, "low", rng))
    ]
    return (32767 * np.concatenate([*parts, pause])).astype("<i2")


def update(rate: int) -> str:
    return json.dumps({"type": "session.update", "session": {"audio": {"input": {"format": {"rate": rate}}}}})


def append(samples: np.ndarray) -> str:
    content = base64.b64encode(samples.tobytes()).decode()
    return json.dumps({"type": "input_audio_buffer.append", "audio": content})


COMMIT = json.dumps({"type": "input_audio_buffer.commit"})


def expected_texts(run: Any, talk: np.ndarray) -> list[str]:
    """What ``vaak transcribe --live`` writes."""
    from vaak.audio.live_audio import make_resampler

    opened: Any = open_run(run)
    live = make_live(opened.task.transcriber(opened.model, long_form="silences"), LiveOptions())
    samples = make_resampler(RATE, live.rate)(talk.astype(np.float32) / np.float32(32768), True)
    events = [*live.feed(samples), *live.finish()]
    return [one.text for one in events if one.type == "final"]


def test_the_final_texts_are_those_of_the_command(live, run_of, talk):
    run = run_of("asr").folder
    server = live(run)
    finals = {}
    for how in ("base64", "bytes"):
        with websockets.connect(f"ws://127.0.0.1:{server.port}/v1/realtime") as socket:
            assert json.loads(socket.recv(timeout=30))["type"] == "session.created"
            socket.send(update(RATE))
            assert json.loads(socket.recv(timeout=30))["session"]["rate"] == RATE
            for part in np.array_split(talk, 31):
                socket.send(append(part) if how == "base64" else part.tobytes())
            socket.send(COMMIT)
            events = []
            while (event := json.loads(socket.recv(timeout=60)))["type"] != "input_audio_buffer.committed":
                events.append(event)
        finals[how] = [one["transcript"] for one in events if one["type"] == DONE]
        assert {one["type"] for one in events} <= {DONE, DELTA}
    expected = expected_texts(run, talk)
    assert len(expected) == 2
    assert finals == {"base64": expected, "bytes": expected}


def open_socket(client: TestClient, path: str = "/v1/realtime", **headers: str) -> Any:
    return client.websocket_connect(path, headers={"host": "127.0.0.1:8000", **headers})


def test_who_may_not_ask_is_refused_before_anything_is_heard(client_of, run_of):
    client = client_of(run_of("asr").folder, token="secret")
    for headers, status in (({}, 401), ({"authorization": "Bearer wrong"}, 401), ({"origin": "http://evil"}, 403)):
        with pytest.raises(WebSocketDenialResponse) as refused, open_socket(client, **headers):
            pass
        assert refused.value.status_code == status
    with open_socket(client, authorization="Bearer secret") as socket:
        assert socket.receive_json()["type"] == "session.created"


def test_limits_hold(client_of, run_of, talk):
    client = client_of(run_of("asr").folder, limits=Limits(max_requests=1, max_duration=1.0))
    with open_socket(client) as socket:
        socket.receive_json()
        with pytest.raises(WebSocketDenialResponse) as refused, open_socket(client):
            pass
        assert refused.value.status_code == 429
        socket.send_text(update(RATE))
        socket.receive_json()
        socket.send_bytes(talk[: 2 * RATE].tobytes())
        error = socket.receive_json()
        assert error["type"] == "error"
        assert "a session has 1 s of audio (--max-duration)" in error["error"]["message"]
        assert socket.receive()["code"] == 1009
    with open_socket(client) as socket:
        assert socket.receive_json()["type"] == "session.created"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("no JSON", "expected a JSON object"),
        ('{"type": "response.create"}', "unknown type 'response.create'; there are session.update"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "expected 16-bit samples in base64"),
        (update(10), "expected 4000 to 192000 samples a second"),
        (update(10).replace("10", "1e400"), "expected 4000 to 192000 samples a second"),
        ('{"type": "session.update", "session": {"voice": "a"}}', r"takes session\.audio\.input\.format\.rate alone"),
    ],
)
def test_what_can_not_be_understood_is_said(client_of, run_of, message, said):
    import re

    client = client_of(run_of("asr").folder)
    with open_socket(client) as socket:
        socket.receive_json()
        socket.send_text(message)
        assert re.search(said, socket.receive_json()["error"]["message"])
        assert socket.receive()["code"] == 1007


def test_a_model_that_is_not_there_is_named(client_of, run_of):
    client = client_of(run_of("asr").folder)
    with pytest.raises(WebSocketDenialResponse) as refused, open_socket(client, "/v1/realtime?model=other"):
        pass
    assert refused.value.status_code == 404
    assert "no model 'other' is served" in refused.value.json()["error"]["message"]
