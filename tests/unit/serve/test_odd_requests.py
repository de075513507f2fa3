"""Requests as clients of OpenAI's API write them, and as nobody should: each works, or is refused by its field."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from pydantic import ValidationError
from starlette.testclient import TestClient

from served_runs import train_chat, wait_until
from vaak.runs.open_run import open_run
from vaak.serve import gate as gates
from vaak.serve import running
from vaak.serve.errors import ApiError
from vaak.serve.forms import ChatRequest, CompletionRequest, EmbeddingsRequest, SpeechRequest
from vaak.serve.gate import Limits
from vaak.serve.json_bodies import MOST_DEPTH, first_mistake, parse_json
from vaak.serve.prompts import _unread
from vaak.serve.realtime import ClosingError, read_event, read_rate
from vaak.tasks.lm.predict import Reading, generate

PROMPT = "लड़की"
ASKED: dict[str, Any] = {"model": "lm", "max_tokens": 6, "seed": 3}
HELLO = [{"role": "user", "content": "?"}]
PART = {"type": "text", "text": "?", "cache_control": {"type": "ephemeral"}}


@pytest.fixture(scope="module")
def http(client_of, run_of) -> TestClient:
    client: TestClient = client_of(run_of("lm").folder)
    return client


@pytest.fixture(scope="module")
def client(http) -> openai.OpenAI:
    return openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", max_retries=0, http_client=http)


@pytest.fixture(scope="module")
def opened(run_of) -> Any:
    return open_run(run_of("lm").folder, device="cpu", precision="auto")


def error_of(answer: Any) -> dict[str, str | None]:
    assert answer.status_code == 400, answer.text
    found: dict[str, str | None] = answer.json()["error"]
    assert set(found) == {"message", "type", "param", "code"}
    return found


def test_a_prompt_may_be_tokens(client, opened):
    create = client.completions.create
    ids = opened.task.prompt(PROMPT)
    as_text = create(**ASKED, prompt=PROMPT)
    as_tokens = create(**ASKED, prompt=ids)
    assert as_tokens.choices[0].text == as_text.choices[0].text
    assert as_tokens.usage == as_text.usage
    several = create(**ASKED, prompt=[ids, ids[:3]], n=2)
    assert [one.text for one in several.choices[:2]] == [
        one.text for one in create(**ASKED, prompt=PROMPT, n=2).choices
    ]
    assert several.choices[2].text == create(**ASKED, prompt=ids[:3]).choices[0].text
    pieces = list(create(**ASKED, prompt=ids, echo=True, stream=True))
    assert "".join(one.choices[0].text for one in pieces) == PROMPT + as_text.choices[0].text


def test_tokens_are_read_as_they_are(client, opened):
    """Nothing is put before them, and the text continues after the first."""
    alone = opened.task.prompt(PROMPT)[1:2]
    settings = opened.task.sampling(max_new_tokens=6, temperature=0.8, seed=3)
    expected = [*alone, *generate(opened.model, alone, settings, Reading(opened.task.data.max_length))]
    [choice] = client.completions.create(**ASKED, prompt=alone, echo=True).choices
    assert choice.text == opened.task.tokenizer.decode(expected)


@pytest.mark.parametrize("tokens", [[-1], [10**9], [[1, 2], [10**30]], [[]], [], [1, "a"], [1.5], [True], None])
def test_what_is_no_token_is_refused(http, tokens):
    found = error_of(http.post("/v1/completions", json={"prompt": tokens, "max_tokens": 2}))
    assert found["param"] == "prompt"


def stream_texts(found: Any) -> tuple[dict[int, str], dict[int, str]]:
    """Return the texts of a stream, and why each ended, by their numbers."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    for event in found:
        [choice] = event.choices
        assert choice.index not in reasons, "nothing comes after the end of a text"
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        reasons |= {choice.index: choice.finish_reason} if choice.finish_reason else {}
    return texts, reasons


def test_several_texts_may_be_streamed_together(client):
    """It was refused; OpenAI's API has them in one stream, by their numbers."""
    asked = {**ASKED, "prompt": [PROMPT, "वह"], "n": 2, "echo": True}
    whole = client.completions.create(**asked).choices
    texts, reasons = stream_texts(client.completions.create(**asked, stream=True))
    assert texts == {one.index: one.text for one in whole}
    assert reasons == {one.index: one.finish_reason for one in whole}
    assert len(texts) == 4


def test_a_text_stops_wherever_in_tokens_that_begins(client):
    create = client.completions.create
    text = create(**ASKED, prompt=PROMPT).choices[0].text
    for begin in range(len(text)):
        stop = text[begin : begin + 3]
        expected = text[: text.index(stop)]
        assert create(**ASKED, prompt=PROMPT, stop=["\x00", stop]).choices[0].text == expected
        texts, reasons = stream_texts(create(**ASKED, prompt=PROMPT, stop=stop, stream=True))
        assert (texts, reasons) == ({0: expected}, {0: "stop"})


@pytest.mark.parametrize("seed", [-(2**63), -1, 2**63 - 1])
def test_a_seed_may_be_any_of_64_bits(client, seed):
    first, second = client.completions.create(**{**ASKED, "seed": seed}, prompt=PROMPT, n=2).choices
    assert client.completions.create(**{**ASKED, "seed": seed}, prompt=PROMPT).choices[0].text == first.text
    if seed < 2**63 - 1:
        assert client.completions.create(**{**ASKED, "seed": seed + 1}, prompt=PROMPT).choices[0].text == second.text


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"seed": 2**63}, "seed"),
        ({"seed": True}, "seed"),
        ({"logit_bias": {"5": -100}}, "logit_bias"),
        ({"n": 0}, "n"),
        ({"n": 257}, "n"),
        ({"logprobs": 21}, "logprobs"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"extra_body": {"min_tokens": 1}}, "min_tokens"),
    ],
)
def test_what_is_not_done_is_refused_by_name(client, given, param):
    with pytest.raises(openai.BadRequestError) as raised:
        client.completions.create(**{**ASKED, "prompt": PROMPT, **given})
    assert (raised.value.param, raised.value.type) == (param, "invalid_request_error")
    assert param in str(raised.value)


def test_the_extremes_of_sampling_are_answered(client):
    create = client.completions.create
    greedy = create(**ASKED, prompt=PROMPT, temperature=0).choices[0].text
    for given in ({"temperature": 1e-300}, {"top_p": 0}, {"extra_body": {"top_k": 1}}, {"extra_body": {"min_p": 1}}):
        assert create(**ASKED, prompt=PROMPT, **given).choices[0].text == greedy
    assert create(**ASKED, prompt=PROMPT, temperature=1e300, n=3).choices[2].text
    assert create(**{**ASKED, "max_tokens": 1}, prompt="", logprobs=20).choices[0].logprobs.top_logprobs


def test_what_does_not_fit_into_the_context_is_refused_as_by_openai(client, opened):
    """The last half of a prompt was read, and the answer had a field that clients don't look at."""
    longest, create = opened.task.reads.max_length, client.completions.create
    [token] = opened.task.tokenizer.encode(PROMPT)[:1]
    for size, given, param in (
        (longest + 1, {}, "prompt"),
        (longest, {"max_tokens": None}, "prompt"),
        (longest - 3, {"max_tokens": 4}, "max_tokens"),
    ):
        with pytest.raises(openai.BadRequestError, match=f"maximum context length is {longest} tokens") as raised:
            create(**{**ASKED, **given}, prompt=[[token], [token] * size])
        assert (raised.value.code, raised.value.param) == ("context_length_exceeded", param)
    for most in (3, None):
        found = create(**{**ASKED, "max_tokens": most}, prompt=[[token], [token] * (longest - 3)])
        assert found.usage.completion_tokens <= (6 if most else longest + 2)
    cut = create(**ASKED, prompt=[token] * (longest + 1), extra_body={"truncation": "auto"})
    [warning] = cut.model_extra["warnings"]
    assert f"the prompt has {longest + 1} tokens" in warning


def message_of(form: type[Any], **asked: Any) -> tuple[str | None, str]:
    with pytest.raises(ValidationError) as caught:
        form.model_validate(asked)
    error = first_mistake(caught.value.errors())
    return error.param, error.message


@pytest.mark.parametrize(
    ("name", "harmless", "wrong"),
    [
        ("response_format", {"type": "text"}, {"type": "json_object"}),
        ("tool_choice", "none", "required"),
        ("parallel_tool_calls", True, False),
        ("logit_bias", {}, {"1": 2}),
        ("modalities", ["text"], ["text", "audio"]),
        ("store", False, True),
        ("function_call", "auto", {"name": "f"}),
        ("service_tier", "auto", "priority"),
        ("reasoning_effort", None, "low"),
        ("verbosity", "medium", "low"),
        ("metadata", {}, {"a": "b"}),
        ("stream_options", {"include_obfuscation": False}, {"include_obfuscation": True}),
        ("stop", ["a"] * 16, ["a"] * 17),
        ("stop", "a" * 256, "a" * 257),
        ("stop", ["a", " "], ["a", ""]),
        ("stop", [], ""),
        ("truncation", "disabled", "left"),
        ("presence_penalty", 0.0, 0.5),
        ("frequency_penalty", 0, -2),
    ],
)
def test_a_field_of_openais_asks_for_nothing_or_is_refused(name, harmless, wrong):
    for value in (harmless, None):
        ChatRequest.model_validate({"messages": HELLO, name: value})
    param, message = message_of(ChatRequest, messages=HELLO, **{name: wrong})
    assert str(param).startswith(name)
    assert message.startswith(name)


def test_further_fields_are_refused_by_name():
    CompletionRequest.model_validate({"prompt": "a", "suffix": "", "logit_bias": None, "best_of": 1})
    assert message_of(CompletionRequest, prompt="a", suffix="b")[0] == "suffix"
    assert message_of(SpeechRequest, input="a", instructions="sadly")[0] == "instructions"
    assert message_of(SpeechRequest, input="a", response_format="aac")[0] == "response_format"
    assert message_of(SpeechRequest, input="a", stream_format="sse")[0] == "stream_format"
    for tokens in ([1, 2], [[1, 2]]):
        param, message = message_of(EmbeddingsRequest, input=tokens)
        assert (param, "tokens aren't read" in message) == ("input", True)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"best_of": 2}, "best_of"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"echo": True, "logprobs": 1}, "logprobs"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(http, asked, param):
    assert error_of(http.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, **asked}))["param"] == param


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ({"messages": [{**HELLO[0], "foo": 1}]}, "messages[0].foo: "),
        ({"messages": [*HELLO, {**HELLO[0], "weight": 1}]}, "messages[1].weight: "),
        ({"messages": [{"role": "user", "content": [PART]}]}, "messages[0].content[0].cache_control: "),
        ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "tools[0].type: "),
        ({"tools": [{"type": "function", "function": {"name": "f", "strict": True}}]}, "tools[0].function.strict: "),
        ({"tool_choice": "auto"}, "tool_choice: "),
        ({"chat_template_kwargs": {"thinks": True}}, "chat_template_kwargs: the template doesn't name 'thinks'"),
    ],
)
def test_what_no_model_would_see_of_a_conversation_is_named(asked, place):
    form = ChatRequest.model_validate({"messages": HELLO, **asked})
    [found] = _unread(form, lambda name: False)
    assert found.startswith(place)


def test_an_answer_may_be_sent_back_as_it_came():
    """With the keys of OpenAI's own answers that say nothing."""
    answer: dict[str, Any] = {
        "role": "assistant",
        "content": "!",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "tool_calls": None,
    }
    form = ChatRequest.model_validate({"messages": [*HELLO, answer, *HELLO]})
    assert not list(_unread(form, lambda name: False))


def test_json_is_read_strictly():
    assert parse_json(b'\xef\xbb\xbf{"a": ["\\ud83d\\ude00", 1.0]}') == {"a": ["😀", 1.0]}
    deepest = "[" * MOST_DEPTH + "]" * MOST_DEPTH
    assert parse_json(deepest)
    for wrong, said in (
        ('{"a": 1, "a": 1}', "the key 'a' is there twice"),
        ("[NaN]", "NaN"),
        ("[-Infinity]", "-Infinity"),
        ("[1e400]", "too large"),
        ("9" * 5000, "too many digits"),
        ('["\\udC00"]', "surrogate"),
        (f"[{deepest}]", "nested"),
        ("[" * 10_000, "nested"),
        ('{"a":' * 900 + "1" + "}" * 900, "nested"),
        (b"\xff", "UTF-8"),
        ("{}".encode("utf-16"), "UTF-8"),
        (b"\xed\xa0\x80", "UTF-8"),
        ("", "Expecting value"),
    ):
        with pytest.raises(ValueError, match=said):
            parse_json(wrong)


def test_bodies_that_are_not_what_they_should_be_are_mistakes_of_the_request(http):
    good = {"prompt": "a", "max_tokens": 2}
    usual = "application/json"
    for path in ("/v1/completions", "/predict"):
        for content, kind in (
            (b'{"prompt": "a", "prompt": "b"}', usual),
            (b"[" * 10_000, usual),
            (b'{"prompt": ' + b"[" * 500 + b"]" * 500 + b"}", usual),
            (b'{"prompt": "a", "max_tokens": ' + b"9" * 5000 + b"}", usual),
            (b'{"prompt": "a", "temperature": NaN}', usual),
            (b'{"prompt": "a"', usual),
            (b"", usual),
            (json.dumps(good).encode("utf-16"), usual),
            (json.dumps(good).encode(), "text/plain"),
            (json.dumps(good).encode(), "application/x-www-form-urlencoded"),
            (json.dumps(good).encode(), ""),
            (json.dumps(good).encode(), "multipart/form-data"),
        ):
            answer = http.post(path, content=content, headers={"Content-Type": kind})
            assert error_of(answer)["type"] == "invalid_request_error", (path, content[:40], kind)
    upper = {"Content-Type": "Application/JSON; charset=utf-8"}
    assert http.post("/v1/completions", content=json.dumps(good), headers=upper).status_code == 200
    assert http.app.metrics.in_flight == 0


def test_json_may_be_smaller_than_files(client_of, run_of):
    http = client_of(run_of("lm").folder, limits=Limits(max_json=1000))
    answer = http.post("/v1/completions", json={"prompt": "a" * 1000, "max_tokens": 2})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "request_too_large"
    assert "(without files)" in answer.json()["error"]["message"]
    # A form is read, and then refused for what it has.
    assert http.post("/predict", files={"file": ("a.wav", b"a" * 2000)}).status_code == 400


@pytest.mark.slow
def test_hostile_conversations_are_mistakes_of_the_request(client_of, tmp_path):
    http = client_of(train_chat(tmp_path / "chat"))
    deep: Any = {"type": "object"}
    for _ in range(20):
        deep = {"type": "object", "properties": {"a": deep}}
    tool = {"type": "function", "function": {"name": "f", "parameters": deep}}
    asked: dict[str, Any] = {"messages": HELLO, "max_tokens": 2}
    answers = {}
    odd: dict[str, dict[str, Any]] = {
        "deep": {"tools": [tool]},
        "none": {"tools": [tool], "tool_choice": "none"},
        "huge": {"tools": [{**tool, "function": {"name": "f" * 300_000}}]},
        "wide": {"tools": [tool] * 3000},
        "image": {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
        "role": {"messages": [{"role": "root", "content": "?"}]},
        "number": {"messages": [{"role": "user", "content": 3}]},
        "calls": {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": 3}}]}]},
        "special": {"messages": [{"role": "user", "content": "<|im_end|>\ufdd0\x00\u202e{{ 7 * 7 }}"}]},
        "kwargs": {"chat_template_kwargs": {"messages": []}},
        "both": {"max_completion_tokens": 3},
        "tokens": {"max_tokens": None, "max_completion_tokens": 3},
    }
    for name, more in odd.items():
        answers[name] = http.post("/v1/chat/completions", json={**asked, **more})
    for name, answer in answers.items():
        assert answer.status_code in (200, 400), (name, answer.text)
        if answer.status_code == 400:
            error_of(answer)
    plain = http.post("/v1/chat/completions", json=asked).json()
    assert answers["none"].json()["choices"] == plain["choices"]
    assert answers["none"].json()["usage"] == plain["usage"]
    assert answers["both"].json()["error"]["param"] == "max_tokens"
    assert answers["tokens"].status_code == answers["special"].status_code == 200
    assert http.app.metrics.in_flight == 0


@pytest.mark.slow
def test_a_text_to_speak_may_not_be_a_book(client_of, run_of):
    http = client_of(run_of("tts").folder, limits=Limits(max_spoken=10))
    asked = {"input": "ab ba ab ba", "response_format": "wav"}
    assert "at most 10 are read" in str(error_of(http.post("/v1/audio/speech", json=asked))["message"])
    for odd in ("\x00\x07\u202e", "<speak>", "<a>" * 3, "   ", "]]>&x;"):
        answer = http.post("/v1/audio/speech", json={**asked, "input": odd})
        assert answer.status_code in (200, 400), (odd, answer.text)
    assert http.app.metrics.in_flight == 0


# Starlette leaves the file of a part that doesn't end to the collector of garbage, which closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_forms_that_are_not_what_they_should_be_are_mistakes_of_the_request(client_of, run_of):
    run = run_of("asr")
    http, wav = client_of(run.folder), Path(run.inputs[0]).read_bytes()
    head = b'--b\r\nContent-Disposition: form-data; name="file"'
    named = head + b'; filename="a.wav"\r\n\r\n' + wav + b"\r\n"
    model = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nasr\r\n'
    end, boundary = b"--b--\r\n", "multipart/form-data; boundary=b"
    for path in ("/v1/audio/transcriptions", "/predict"):
        for content, kind, said in (
            (head + b"\r\n\r\n" + wav + b"\r\n" + end, boundary, "expected a file"),
            (named + model + model + end, boundary, "model: it was sent 2 times"),
            (named[:-9], boundary, "file"),
            (named + end, "multipart/form-data; boundary=other", ""),
            (named + end, "multipart/form-data", "oundary"),
            (b"", boundary, ""),
            (named + end, "application/octet-stream", "expected "),
            (b'{"file": "/etc/passwd"}', "application/json", ""),
            (b"--b\r\nContent-Disposition: form-data\r\n\r\n1\r\n" + end, boundary, ""),
        ):
            answer = http.post(path, content=content, headers={"Content-Type": kind})
            assert said in str(error_of(answer)["message"]), (path, kind, answer.text)
    twice = http.post("/v1/audio/transcriptions", content=named + named + end, headers={"Content-Type": boundary})
    assert error_of(twice)["message"] == "file: it was sent 2 times; expected one"
    assert http.post("/predict", content=named + named + end, headers={"Content-Type": boundary}).status_code == 200
    streamed = http.post(
        "/v1/audio/transcriptions", files={"file": wav}, data={"stream": "true", "response_format": "srt"}
    )
    assert error_of(streamed)["param"] == "stream"
    assert not list(Path(http.app.app.state.server.folder).iterdir())
    assert http.app.metrics.in_flight == 0


BEGUN = b"POST /predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nContent-Length: 9000\r\n\r\n"


def test_a_body_that_comes_byte_by_byte_frees_its_place(live, run_of, monkeypatch):
    """It was never silent for long."""
    monkeypatch.setattr(gates, "BODY_SECONDS", 0.5)
    monkeypatch.setattr(gates, "LINGER_SECONDS", 0.1)
    server = live(run_of("lm").folder)
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow:
        slow.sendall(BEGUN)
        begun = time.monotonic()
        wait_until(lambda: server.gate.metrics.in_flight == 1)
        while server.gate.metrics.in_flight:
            slow.sendall(b" ")
            time.sleep(0.05)
            assert time.monotonic() - begun < 30
        assert slow.recv(4096).startswith(b"HTTP/1.1 408 ")


def test_a_head_that_comes_byte_by_byte_keeps_no_connection(live, run_of, monkeypatch):
    monkeypatch.setattr(running, "HEAD_SECONDS", 0.5)
    server = live(run_of("lm").folder)
    with (
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as slow,
        socket.create_connection(("127.0.0.1", server.port), timeout=20) as idle,
    ):
        slow.sendall(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert slow.recv(4096).startswith(b"HTTP/1.1 200 ")
        slow.sendall(b"GET /hea")
        assert slow.recv(4096) == idle.recv(4096) == b""


def test_a_head_that_is_too_large_is_not_kept(live, run_of):
    """httptools would keep all of it: a client that sends for as long as it may fills the memory."""
    server, head = live(run_of("lm").folder), b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as client:
        client.sendall(head + b"X: " + b"a" * 30_000 + b"\r\n\r\n")
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        # Both count anew: the body, and the head after it.
        body = json.dumps({"prompt": "a", "max_tokens": 1, "user": "x" * 200_000}).encode()
        about = b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        client.sendall(head.replace(b"GET /health", b"POST /v1/completions") + about + body)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 ")
        sent = 0
        with contextlib.suppress(ConnectionError):
            client.sendall(head)
            for sent in range(2000):
                client.sendall(b"X-%d: " % sent + b"a" * 10_000 + b"\r\n")
        # It may have sent more before it read: then the answer is lost with the connection.
        with contextlib.suppress(ConnectionError):
            assert client.recv(4096).startswith(b"HTTP/1.1 431 ")
        assert sent < 1999


@pytest.mark.parametrize("coding", ["gzip", "BR", "identity, gzip"])
def test_a_compressed_body_is_refused_as_such(http, coding):
    answer = http.post("/v1/completions", content=b"\x1f\x8b", headers={"Content-Encoding": coding})
    assert (answer.status_code, answer.headers["accept-encoding"]) == (415, "identity")
    assert coding.lower() in answer.json()["error"]["message"]
    plain = {"Content-Encoding": "Identity", "Content-Type": "application/json"}
    assert http.post("/v1/completions", content=b'{"prompt": "a", "max_tokens": 1}', headers=plain).status_code == 200


def test_monitors_may_ask_for_the_head_alone(http):
    assert http.head("/health").status_code == http.head("/ready").status_code == 200


def session_update(**given: Any) -> dict[str, Any]:
    return {"type": "session.update", "session": {"audio": {"input": given}}}


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (session_update(format={"type": "audio/pcmu"}), 'only null, "audio/pcm"'),
        (session_update(noise_reduction={"type": "near_field"}), "noise_reduction.type: it isn't read"),
        (session_update(turn_detection=None), "input.turn_detection: it isn't read"),
        (session_update(turn_detection={"type": "server_vad", "threshold": 0.5}), "turn_detection.threshold: it isn't"),
        (session_update(transcription={"model": "other"}), 'transcription.model: only null, "asr"'),
        (session_update(transcription={"model": "asr", "language": "hi"}), "transcription.language: only null"),
        (session_update(format=3), "input.format: it isn't read"),
        ({"type": "session.update", "session": {"type": "realtime"}}, 'session.type: only null, "transcription"'),
        ({"type": "session.update", "session": {"include": [0]}}, "session.include: only"),
        ({"type": "session.update"}, "expected an object as session"),
        ({"type": "session.update", "model": "?", "session": {}}, "'model'"),
    ],
)
def test_an_option_of_a_live_session_that_has_no_effect_is_refused(event, said):
    with pytest.raises(ClosingError, match=said):
        read_rate(event, "asr")


def test_a_live_session_may_be_asked_for_as_openais_is():
    given = session_update(
        format={"type": "audio/pcm", "rate": 24_000},
        noise_reduction=None,
        turn_detection={"type": "server_vad"},
        transcription={"model": "asr", "language": None, "prompt": ""},
    )
    given["session"] |= {"type": "transcription", "include": []}
    assert read_rate(given, "asr") == 24_000
    assert read_rate({"type": "session.update", "session": {}}, "asr") is None


def test_live_events_are_read_strictly():
    for wrong in ("[" * 10_000, '{"type": "a", "type": "b"}', '{"type": NaN}', "1", ""):
        with pytest.raises(ClosingError, match="expected a JSON object"):
            read_event(wrong)


def test_the_length_of_a_body_may_be_no_number(run_of):
    gate = gates.Gate(None, Limits(), None)  # type: ignore[arg-type]
    for size in (b"-1", b"+1", b"1" * 5000, b"", b"1 1", "²".encode()):
        with pytest.raises(ApiError) as refused:
            gate.require_room({b"content-length": size})
        assert refused.value.status == 413
