"""``vaak predict`` and ``/predict`` give the same for every task; so do the commands of tasks and their endpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from quick_cases import mostly_slow
from served_runs import train_chat
from vaak.config.tasks import TASKS
from vaak.serve.app import ENDPOINTS

TIMES = ("seconds_taken", "real_time_factor")


def without_times(value: Any) -> Any:
    """A prediction without what a clock said."""
    if isinstance(value, dict):
        return {name: without_times(one) for name, one in value.items() if name not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def predicted(vaak, run: Path, inputs, *options: object) -> list[Any]:
    code, out, err = vaak("predict", run, *inputs, "--json", *options)
    assert code == 0, err
    return [without_times(json.loads(line)) for line in out.splitlines()]


@pytest.mark.parametrize("task", mostly_slow(sorted(set(TASKS) - {"multitask"}), "lm", "asr"))
def test_the_endpoint_predicts_what_the_command_does(client_of, run_of, vaak, task):
    run = run_of(task)
    client = client_of(run.folder)
    if all(Path(one).is_file() for one in run.inputs):
        files = [("file", (Path(one).name, Path(one).read_bytes())) for one in run.inputs]
        answer = client.post("/predict", files=files, data={"model": task})
    else:
        answer = client.post("/predict", json={"model": task, "inputs": run.inputs})
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == task
    found = without_times(answer.json()["predictions"])
    assert found == predicted(vaak, run.folder, run.inputs)
    assert len(found) == len(run.inputs) >= 1


@pytest.mark.slow
def test_each_task_of_a_run_of_several_is_a_model(client_of, run_of, vaak):
    folder = run_of("multitask").folder
    client = client_of(folder)
    for part in ("word", "size"):
        answer = client.post("/predict", json={"model": f"multitask/{part}", "inputs": ["ab ba", "b"]})
        assert answer.status_code == 200, answer.text
        assert answer.json()["predictions"] == predicted(vaak, folder, ["ab ba", "b"], "--task", part)
    assert client.post("/v1/classify", json={"model": "multitask/word", "input": "b"}).status_code == 200
    assert "several models are served" in client.post("/v1/classify", json={"input": "b"}).text


@pytest.mark.slow
def test_classify_and_translate_say_what_the_commands_do(client_of, run_of, vaak):
    texts = ["ab ba", "b", ""]
    file = run_of("classification").folder.parent / "texts.txt"
    file.write_text("".join(f"{one}\n" for one in texts), encoding="utf-8")
    client = client_of(run_of("classification").folder, run_of("seq2seq").folder)
    found = client.post("/v1/classify", json={"input": texts}).json()["data"]
    printed = vaak("classify", run_of("classification").folder, file, "--json")[1]
    assert found == [{"index": number, **json.loads(line)} for number, line in enumerate(printed.splitlines())]
    asked = {"input": texts, "method": "beam", "n_best": 2, "beam_size": 3, "max_new_tokens": 6}
    found = client.post("/v1/translate", json=asked).json()["data"]
    options = ("--method", "beam", "--n-best", 2, "--beam-size", 3, "--max-new-tokens", 6)
    printed = vaak("translate", run_of("seq2seq").folder, file, *options, "--json")[1]
    assert found == [{"index": number, **json.loads(line)} for number, line in enumerate(printed.splitlines())]
    refused = client.post("/v1/translate", json={"input": "a", "beam_size": -1})
    assert refused.status_code == 400
    assert "beam_size" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_diarize_says_what_the_command_does(client_of, run_of, vaak):
    run = run_of("diarization")
    path = Path(run.inputs[0])
    client = client_of(run.folder)
    asked = {"file": (path.name, path.read_bytes())}
    found = client.post("/v1/diarize", files=asked).json()
    [said] = predicted(vaak, run.folder, [path])
    assert found["duration"] == said["duration"]
    assert [[one["start"], one["end"], one["speaker"]] for one in found["segments"]] == said["segments"]
    rttm = client.post("/v1/diarize", files=asked, data={"response_format": "rttm"}).text
    assert vaak("diarize", run.folder, path)[1] == rttm


def test_every_model_is_listed_with_what_it_answers(client_of, run_of):
    client = client_of(run_of("asr").folder, run_of("lm").folder)
    listed = {one["id"]: one for one in client.get("/v1/models").json()["data"]}
    assert listed["asr"]["endpoints"] == ["predict", "transcriptions"]  # its Whisper knows one language
    assert listed["lm"]["endpoints"] == ["predict", "completions"]
    assert client.get("/v1/models/lm").json()["task"] == "lm"
    assert client.get("/v1/models/other").status_code == 404
    assert client.post("/v1/classify", json={"input": "b"}).status_code == 404
    assert set(client.get("/openapi.json").json()["paths"]) >= {"/predict", "/v1/completions"}


def test_what_a_run_can_not_answer_is_neither_listed_nor_described_and_refused_with_the_reason(client_of, run_of):
    """A language model of texts was listed with chat, and an English Whisper with translations."""
    client = client_of(run_of("lm").folder, run_of("classification").folder)
    for model in ({}, {"model": "lm"}):
        answer = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "?"}], **model})
        error = answer.json()["error"]
        assert (answer.status_code, error["param"]) == (400, "model")
        assert error["message"].startswith("lm doesn't answer this endpoint: the run has no chat template")
    described = client.get("/openapi.json").json()["paths"]
    assert "/v1/completions" in described
    assert "/v1/chat/completions" not in described
    assert "/v1/chat/completions" not in client.get("/docs").text


@pytest.mark.parametrize("task", sorted(TASKS))
def test_what_a_task_declares_is_an_endpoint(task):
    declared = TASKS[task].endpoints(lambda key: None)
    assert set(declared) <= set(ENDPOINTS)


def test_an_audio_task_opens_no_path_of_a_request(client_of, run_of):
    run = run_of("asr")
    answer = client_of(run.folder).post("/predict", json={"inputs": [run.inputs[0]]})
    assert answer.status_code == 400
    assert "no path or URL is opened" in answer.json()["error"]["message"]


@pytest.mark.slow
def test_answers_are_those_of_generate_chat(client_of, vaak, tmp_path):
    run = train_chat(tmp_path / "chats")
    client = client_of(run)
    assert client.get("/v1/models/chat").json()["endpoints"] == ["predict", "completions", "chat"]
    messages = [{"role": "system", "content": "Count."}, {"role": "user", "content": "7?"}]
    (tmp_path / "asked.json").write_text(json.dumps(messages))
    options = ("--chat", "--max-new-tokens", 12, "--samples", 2, "--seed", 3, "--json")
    printed = vaak("generate", run, tmp_path / "asked.json", *options)[1]
    messages[1]["content"] = [{"type": "text", "text": "7"}, {"type": "text", "text": "?"}]  # type: ignore[assignment]
    asked = {"messages": messages, "max_completion_tokens": 12, "seed": 3}
    found = client.post("/v1/chat/completions", json={**asked, "n": 2}).json()
    texts = [one["message"]["content"] for one in found["choices"]]
    assert texts == [json.loads(line)["text"] for line in printed.splitlines()]
    lines = client.post("/v1/chat/completions", json={**asked, "stream": True}).text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    assert "".join(one["choices"][0]["delta"].get("content", "") for one in events) == texts[0]
    assert events[-1]["choices"][0]["finish_reason"] in ("stop", "length")
    scored = client.post("/v1/chat/completions", json={**asked, "logprobs": True, "top_logprobs": 2}).json()["choices"][
        0
    ]
    content = scored["logprobs"]["content"]
    assert scored["message"]["content"] == texts[0]
    assert bytes(byte for one in content for byte in one["bytes"]).decode(errors="replace") == texts[0]
    assert all(len(one["top_logprobs"]) == 2 and one["logprob"] <= 0 for one in content)
    lines = client.post("/v1/chat/completions", json={**asked, "logprobs": True, "stream": True}).text.split("\n\n")[
        :-2
    ]
    events = [json.loads(line.removeprefix("data: ")) for line in lines[1:]]
    tokens = [one["token"] for event in events for one in event["choices"][0]["logprobs"]["content"]]
    assert tokens == [one["token"] for one in content]
    assert (
        client.post("/v1/chat/completions", json={**asked, "top_logprobs": 2}).json()["error"]["param"]
        == "top_logprobs"
    )
    tools = [{"type": "function", "function": {"name": "count", "parameters": {}}}]
    # The template writes more of them than this model reads.
    asked["truncation"] = "auto"
    with_tools = client.post("/v1/chat/completions", json={**asked, "tools": tools}).json()
    without = client.post("/v1/chat/completions", json=asked).json()
    assert with_tools["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"]  # the template wrote them
    for wrong in ([], [{"role": "user"}], [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]):
        refused = client.post("/v1/chat/completions", json={"messages": wrong})
        assert refused.status_code == 400, wrong
        assert refused.json()["error"]["param"] == "messages"
