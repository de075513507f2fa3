"""``/v1/realtime``: the final texts of ``vaak transcribe --live``, and what a WebSocket is refused."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import socket
import struct
import threading
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient, WebSocketDenialResponse

import tiny_listener
from json_values import ANYTHING
from served_runs import serving, wait_until
from vaak.runs.open_run import open_run
from vaak.serve import gate, realtime
from vaak.serve.gate import Limits
from vaak.serve.realtime import MOST_MESSAGE_BYTES
from vaak.tasks.asr.live import LiveOptions, make_live

websockets = pytest.importorskip("websockets.sync.client")
ConnectionClosed = pytest.importorskip("websockets.exceptions").ConnectionClosed
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
    """Return the final texts that ``vaak transcribe --live`` writes."""
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


def test_audio_that_was_not_meant_is_dropped(client_of, run_of, talk):
    client = client_of(run_of("asr").folder)
    with open_socket(client) as socket:
        socket.receive_json()
        socket.send_text(update(RATE))
        socket.receive_json()
        socket.send_bytes(talk[:RATE].tobytes() + b"?")
        socket.send_text('{"type": "input_audio_buffer.clear"}')
        while (told := socket.receive_json())["type"] != "input_audio_buffer.cleared":
            assert told["type"].endswith(".delta")
        socket.send_text('{"type": "input_audio_buffer.commit"}')
        assert socket.receive_json()["type"] == "input_audio_buffer.committed"


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("no JSON", "expected a JSON object"),
        ('{"type": "response.create"}', "unknown type 'response.create'; there are session.update"),
        ('{"type": "input_audio_buffer.append", "audio": "?"}', "expected 16-bit samples in base64"),
        (update(10), "expected 4000 to 192000 samples a second"),
        (update(16_000).replace("16000", "16000.5"), "expected 4000 to 192000 samples a second"),
        (update(16_000).replace("16000", "true"), "expected 4000 to 192000 samples a second"),
        (update(10).replace("10", "1e400"), "a number is too large"),
        ('{"type": "session.update", "session": {"voice": "a"}}', r"session\.voice: it isn't read; leave it out"),
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
    assert "WS /v1/realtime" in client.get("/docs").text
    with pytest.raises(WebSocketDenialResponse) as refused, open_socket(client, "/v1/realtime?model=other"):
        pass
    assert refused.value.status_code == 404
    assert "no model 'other' is served" in refused.value.json()["error"]["message"]


def read_events(socket: Any, until: str) -> list[dict[str, Any]]:
    """The events that a client is told, up to one of this type."""
    found: list[dict[str, Any]] = []
    while not found or found[-1]["type"] != until:
        found.append(json.loads(socket.recv(timeout=60)))
    return found


def test_a_client_that_sends_faster_than_the_model_reads_has_to_wait(live, run_of, talk, monkeypatch):
    """Otherwise, all of the audio would stay in the server's memory."""
    server = live(run_of("asr").folder)
    may_read, heard = threading.Event(), list[int]()
    hear = realtime.Session.hear

    async def slowly(session: realtime.Session, content: bytes) -> None:
        await asyncio.to_thread(may_read.wait, 60)
        heard.append(len(content))
        await hear(session, content)

    monkeypatch.setattr(realtime.Session, "hear", slowly)
    silence = np.zeros(MOST_MESSAGE_BYTES // 2, "<i2").tobytes()
    with websockets.connect(f"ws://127.0.0.1:{server.port}/v1/realtime", compression=None) as opened:
        opened.recv(timeout=30)
        raw: Any = opened.socket
        raw.settimeout(1.0)
        sent = 0
        with contextlib.suppress(TimeoutError):
            # Its own frames, as the package's send would wait for ever.
            while sent < 100:
                raw.sendall(frame(silence))
                sent += 1
        assert sent < 50, "a megabyte each: what the sockets' buffers hold, and no more"
        assert heard == []
        may_read.set()


def frame(content: bytes, opcode: int = 2) -> bytes:
    """A WebSocket frame of bytes (2) or text (1), as a client sends it: its mask is 0."""
    return bytes([0x80 | opcode, 0xFF]) + struct.pack("!Q", len(content)) + bytes(4) + content


def test_a_client_that_never_reads_holds_up_nobody_and_frees_its_place(live, run_of, talk, monkeypatch):
    """It used to keep its place until it left, as its unread messages waited for ever."""
    monkeypatch.setattr(gate, "UNREAD_SECONDS", 0.5)
    run = run_of("asr").folder
    server = live(run)
    asked = update(RATE).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=2) as deaf:
        deaf.sendall(
            b"GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n"
        )
        wait_until(lambda: server.gate.metrics.in_flight == 1)
        with contextlib.suppress(OSError):
            # It reads none of the answers to all this.
            for _ in range(100_000):
                deaf.sendall(frame(asked, opcode=1) * 100)
        path = next(run.parent.rglob("*.wav"))
        with httpx.Client(base_url=server.address, timeout=60) as client:
            files = {"file": (path.name, path.read_bytes())}
            assert client.post("/v1/audio/transcriptions", files=files).status_code == 200
        wait_until(lambda: server.gate.metrics.in_flight == 0)


@pytest.mark.slow
def test_a_signal_amid_a_session_ends_it_and_the_server(commands, run_of, talk, tmp_path):
    with serving(commands, tmp_path, run_of("asr").folder) as server:
        address = server.address.replace("http", "ws")
        with websockets.connect(f"{address}/v1/realtime") as opened:
            opened.send(update(RATE))
            opened.send(talk[: len(talk) // 2].tobytes())
            read_events(opened, "session.updated")
            server.command.send(signal.SIGTERM)
            with contextlib.suppress(ConnectionClosed):
                while opened.recv(timeout=60):
                    pass
            assert opened.close_code == 1012  # the service restarts: try again
        ended = server.command.wait()
    assert ended.status == 0
    assert "Traceback" not in ended.errors


MESSAGES = st.one_of(
    st.binary(max_size=40),
    st.text(max_size=20),
    st.sampled_from([COMMIT, update(16_000), update(RATE), append(np.arange(50, dtype="<i2")), "[]", "1", "null"]),
    st.builds(
        lambda kind, more: json.dumps({"type": kind, **more}),
        st.sampled_from(["session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "x", None, 3]),
        st.dictionaries(st.sampled_from(["session", "audio", "event_id"]), ANYTHING, max_size=3),
    ),
)


@pytest.mark.slow
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=st.lists(MESSAGES, max_size=6))
def test_no_message_is_a_fault_of_the_server(client_of_recogniser, caplog, messages):
    caplog.clear()
    with open_socket(client_of_recogniser) as socket:
        assert socket.receive_json()["type"] == "session.created"
        with contextlib.suppress(RuntimeError):  # the server has closed it
            for one in messages:
                socket.send({"type": "websocket.receive", "bytes" if isinstance(one, bytes) else "text": one})
        socket.send({"type": "websocket.receive", "text": COMMIT})
        while (told := socket.receive())["type"] != "websocket.close":
            event = json.loads(told["text"])
            assert set(event) >= {"type"}
            if event["type"] == "input_audio_buffer.committed":
                break
        if told["type"] == "websocket.close":
            assert told["code"] in (1007, 1009)
    assert "failed" not in caplog.text


@pytest.fixture(scope="module")
def client_of_recogniser(client_of, run_of):
    return client_of(run_of("asr").folder)
