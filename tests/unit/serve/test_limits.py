"""What a server refuses, before it costs anything; and what of a request is written down."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from coded_audio import SECONDS, TABLE, write_coded
from served_runs import wait_until
from vaak.core.errors import UserError
from vaak.serve import gate as gates
from vaak.serve.gate import MEBIBYTE, Limits
from vaak.serve.models import Served
from vaak.serve.running import listen

LONG = {"prompt": "लड़की", "max_tokens": 4000, "truncation": "auto"}
"""A request that takes many seconds, unless it is dropped."""
SHORT = {"prompt": "लड़की", "max_tokens": 2}


def error_of(answer: httpx.Response) -> dict[str, str | None]:
    found: dict[str, str | None] = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def raw_answer(port: int, request: bytes) -> str:
    """Send bytes to a server and return its answer until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(request)
        found = b""
        while more := connection.recv(65536):
            found += more
    return found.decode()


BEGUN = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
"""A request whose body doesn't come to its end."""


def test_one_too_many_is_told_to_come_back(live, run_of):
    server = live(run_of("lm").folder, limits=Limits(max_requests=1))
    with httpx.Client(base_url=server.address, timeout=60) as client:
        with socket.create_connection(("127.0.0.1", server.port)) as waiting:
            waiting.sendall(BEGUN)  # and no more of it
            wait_until(lambda: server.gate.metrics.in_flight == 1)
            refused = client.post("/v1/completions", json=SHORT)
            assert client.get("/ready").status_code == client.get("/metrics").status_code == 200
        assert refused.status_code == 429
        assert refused.headers["Retry-After"] == "1"
        assert error_of(refused)["code"] == "rate_limit_exceeded"
        wait_until(lambda: server.gate.metrics.in_flight == 0)
        assert client.post("/v1/completions", json=SHORT).status_code == 200


@pytest.mark.parametrize("asked", [{**LONG, "stream": True}, {**LONG, "prompt": ["लड़की"] * 160}])
def test_a_client_that_leaves_frees_its_place(live, run_of, asked):
    server = live(run_of("lm").folder, limits=Limits(max_requests=1))
    [worker] = [one.worker for one in server.gate.app.state.server.models.values()]
    with httpx.Client(base_url=server.address, timeout=60) as client:
        with (
            contextlib.suppress(httpx.ReadTimeout),
            client.stream("POST", "/v1/completions", json=asked, timeout=0.5) as answer,
        ):
            next(answer.iter_lines())
        wait_until(lambda: server.gate.metrics.in_flight == 0, 10)
        assert client.post("/v1/completions", json=SHORT).status_code == 200  # the model is free, too
        wait_until(lambda: not worker.jobs, 10)
    assert sum(server.gate.metrics.batches["lm"].counts) < 160 / worker.size


def test_a_body_that_is_too_large_is_not_read(live, run_of, monkeypatch):
    monkeypatch.setattr(gates, "LINGER_SECONDS", 0.5)
    server = live(run_of("lm").folder, limits=Limits(max_upload=MEBIBYTE))
    head = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    begun = time.monotonic()
    answer = raw_answer(server.port, head % 10**12)  # of which nothing comes
    assert answer.startswith("HTTP/1.1 413 ")
    assert "(--max-upload)" in answer
    assert time.monotonic() - begun < 10
    with httpx.Client(base_url=server.address, timeout=60) as client:
        large = b'{"inputs": ["' + b"a" * (3 * MEBIBYTE) + b'"]}'
        headers = {"Content-Type": "application/json"}
        sent = client.post("/predict", content=large, headers=headers)
        pieces = client.post("/predict", content=iter([large[:MEBIBYTE], large[MEBIBYTE:]]), headers=headers)
        for one in (sent, pieces):  # with its size, and without
            assert one.status_code == 413
            assert error_of(one)["code"] == "request_too_large"
        files = {"file": ("talk.wav", large)}
        assert client.post("/predict", files=files).status_code == 413
        assert client.post("/predict", json={"inputs": ["a"]}).status_code == 200
    assert server.gate.metrics.received_bytes < 3 * MEBIBYTE


def test_a_body_that_never_comes_frees_its_place(live, run_of, monkeypatch):
    monkeypatch.setattr(gates, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(gates, "LINGER_SECONDS", 0.1)
    server = live(run_of("lm").folder)
    assert raw_answer(server.port, BEGUN).startswith("HTTP/1.1 408 ")
    wait_until(lambda: server.gate.metrics.in_flight == 0, 10)


def test_a_client_that_never_reads_its_answer_frees_its_place(live, run_of, monkeypatch):
    """It kept its place for ever."""
    monkeypatch.setattr(gates, "UNREAD_SECONDS", 0.5)
    server = live(run_of("lm").folder, limits=Limits(max_requests=1))
    asked = {"prompt": "ल " * 50_000, "max_tokens": 50, "echo": True, "stream": True, "truncation": "auto"}
    body = json.dumps(asked).encode()
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with socket.socket() as deaf:
        # Its buffer is small, as the server's is: the system holds little of the answer, which comes as a stream.
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(head + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        wait_until(lambda: server.gate.metrics.in_flight == 1)
        wait_until(lambda: server.gate.metrics.in_flight == 0)
        with httpx.Client(base_url=server.address, timeout=60) as client:
            assert client.post("/v1/completions", json=SHORT).status_code == 200


def test_a_long_recording_is_not_decoded(client_of, run_of, tmp_path):
    client = client_of(run_of("asr").folder, limits=Limits(max_duration=1.0, max_channels=2))
    for name, shape, expected in (("long", 16_000 * 2, "2 s long"), ("wide", (8_000, 3), "3 channels")):
        path = tmp_path / f"{name}.wav"
        soundfile.write(path, np.zeros(shape), 16_000)
        for place in ("/v1/audio/transcriptions", "/predict"):
            answer = client.post(place, files={"file": (path.name, path.read_bytes())})
            assert answer.status_code == 413
            message = error_of(answer)["message"] or ""
            assert message.startswith(f"{path.name}: ")
            assert expected in message
    metrics = client.get("/metrics").text
    assert "vaak_batch_size_count" not in metrics
    assert 'vaak_requests_total{path="/predict",status="413"} 2' in metrics


def test_recordings_as_browsers_send_them(client_of, run_of, tmp_path):
    """A recorder of a page names its file "blob"; Safari's is MP4, whatever the page calls it."""
    client = client_of(run_of("asr").folder, limits=Limits(max_decoded=2**17))
    for kind, names in (("webm, opus", ("a.webm", "blob", "a.wav")), ("m4a", ("a.m4a", "blob", "a.webm"))):
        coded = TABLE[kind]
        path = tmp_path / f"one.{coded.suffix}"
        write_coded(path, coded, 16_000, 1)
        answers = [client.post("/v1/audio/transcriptions", files={"file": (name, path.read_bytes())}) for name in names]
        assert [one.status_code for one in answers] == [200] * 3, [one.text for one in answers]
        assert len({one.text for one in answers}) == 1
    write_coded(path, coded, 16_000, 1, 6 * SECONDS)
    answer = client.post("/v1/audio/transcriptions", files={"file": ("blob", path.read_bytes())})
    assert answer.status_code == 413
    assert (error_of(answer)["message"] or "").startswith("blob: more than 0.125 MiB of samples in MP4")


def test_texts_have_limits(client_of, run_of):
    limits = Limits(max_inputs=3, max_characters=10, max_tokens=5)
    client = client_of(run_of("lm").folder, limits=limits)
    for place, asked, field in (
        ("/predict", {"inputs": ["a"] * 4}, "inputs"),
        ("/predict", {"inputs": ["a" * 11]}, "inputs"),
        ("/v1/completions", {"prompt": "a" * 11}, "prompt"),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 2}, "n"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 6}, "max_tokens"),
        ("/v1/completions", {"prompt": [], "max_tokens": 2}, "prompt"),
        ("/v1/completions", {"prompt": "a", "frequency_penalty": 1, "max_tokens": 2}, "frequency_penalty"),
    ):
        answer = client.post(place, json=asked)
        assert answer.status_code == 400, asked
        assert (error_of(answer)["param"] or "").startswith(field), asked
    assert client.post("/v1/completions", json={"prompt": ["a"], "n": 3, "max_tokens": 2}).status_code == 200
    for broken in (b"", b"{", b"[]", b'{"inputs": 3}', b"\xff"):
        answer = client.post("/predict", content=broken, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, broken
        error_of(answer)


def test_a_token_is_asked_for(client_of, run_of):
    client = client_of(run_of("lm").folder, token="sesame")
    for headers in ({}, {"Authorization": "Bearer other"}, {"Authorization": "sesame"}, {"Authorization": "Bearer "}):
        answer = client.get("/v1/models", headers=headers)
        assert answer.status_code == 401
        assert error_of(answer)["code"] == "invalid_api_key"
        assert client.get("/metrics", headers=headers).status_code == client.get("/docs", headers=headers).status_code
    for said in ("Bearer sesame", "bearer sesame", "BEARER  sesame"):
        assert client.get("/v1/models", headers={"Authorization": said}).status_code == 200
    assert client.get("/health").json() == client.get("/ready").json() == {"status": "ok"}


def test_pages_from_elsewhere_get_nothing(client_of, run_of):
    client = client_of(run_of("lm").folder)
    for headers in (
        {"Host": "rebound.example"},
        {"Host": "rebound.example:8000"},
        {"Host": ""},
        {"Origin": "https://page.example"},
        {"Origin": "null"},
    ):
        assert client.get("/v1/models", headers=headers).status_code == 403, headers
    asked = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    answer = client.options("/predict", headers=asked)
    assert answer.status_code == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert client.get("/v1/models", headers={"Origin": "http://127.0.0.1:8000"}).status_code == 200
    assert client.get("/v1/models", headers={"Host": "127.0.0.1"}).status_code == 200


def test_http_1_0_needs_no_host(live, run_of):
    """Old monitors and ``ab`` send none; every browser does, so a rebound name is always there to be refused."""
    port = live(run_of("lm").folder).port
    for head, status in (
        (b"GET /v1/models HTTP/1.0\r\n", 200),
        (b"GET /v1/models HTTP/1.0\r\nHost: 127.0.0.1\r\n", 200),
        (b"GET /v1/models HTTP/1.0\r\nHost: rebound.example\r\n", 403),
        (b"GET /v1/models HTTP/1.0\r\nHost:\r\n", 403),
        (b"GET /v1/models HTTP/1.0\r\nOrigin: https://page.example\r\n", 403),
        (b"GET /v1/models HTTP/1.1\r\nConnection: close\r\n", 403),
    ):
        assert raw_answer(port, head + b"\r\n").split()[1] == str(status), head


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_models_of_one_name_are_refused_before_they_are_opened(vaak, run_of, tmp_path, monkeypatch, command):
    if command == "demo":
        pytest.importorskip("gradio")
    run = run_of("lm").folder
    other = shutil.copytree(run, tmp_path / run.name)

    def open_nothing(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a model was opened")

    monkeypatch.setattr("vaak.serve.models.open_run", open_nothing)
    monkeypatch.setattr("vaak.runs.open_run.open_run", open_nothing)
    for paths, said in (
        ((run, other), f"{run} and {other} are both called {run.name}"),
        ((run, run), "is given twice"),
    ):
        code, _, err = vaak(command, *paths, "--port", "0")
        assert (code, said in err, err.count("\n")) == (2, True, 1), err


def test_an_address_that_others_reach_needs_a_token(vaak, run_of):
    with pytest.raises(UserError, match="set VAAK_TOKEN"):
        listen("0.0.0.0", 0, None)
    code, _, err = vaak("serve", run_of("lm").folder, "--host", "0.0.0.0", "--port", 0)
    assert (code, err.count("\n")) == (2, 1)
    assert "other machines can reach this address" in err
    with listen("127.0.0.1", 0, None) as one, pytest.raises(UserError, match="give another --port"):
        listen("127.0.0.1", one.getsockname()[1], None)


def test_nothing_of_a_text_is_logged(client_of, run_of, caplog, monkeypatch):
    client = client_of(run_of("lm").folder)
    caplog.set_level(logging.DEBUG)

    def fail(self: Served, inputs: list[str]) -> list[str]:
        raise ValueError(f"can't read {inputs[0]}")

    assert client.post("/v1/completions", json={"prompt": "sesame", "max_tokens": 2}).status_code == 200
    assert client.post("/v1/completions", json={"prompt": "sesame", "max_tokens": -1}).status_code == 400
    assert client.get("/sesame?sesame=sesame").status_code == 404
    monkeypatch.setattr(Served, "predict", fail)
    answer = client.post("/predict", json={"inputs": ["sesame"]})
    assert answer.status_code == 500
    assert error_of(answer)["type"] == "server_error"
    assert "sesame" not in answer.text
    assert "sesame" not in caplog.text.replace("GET http://127.0.0.1:8000/sesame?sesame=sesame", "")
    assert "ValueError" in caplog.text
    assert "POST /v1/completions: status 200" in caplog.text
    assert "sesame" not in client.get("/metrics").text


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "..", "C:\\talk.wav", "a\x00b.wav", "x" * 500])
def test_no_name_of_a_file_leads_out_of_its_folder(client_of, run_of, tmp_path, name):
    client = client_of(run_of("asr").folder)
    answer = client.post("/v1/audio/transcriptions", files={"file": (name, b"no audio")})
    assert answer.status_code == 400
    message = error_of(answer)["message"] or ""
    assert "not audio" in message
    assert "/" not in message.partition(":")[0]
    assert not list(Path(client.app.app.state.server.folder).iterdir())
