"""Embeddings, log-probabilities of transcripts, who says what, and known speakers: as the commands have them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import soundfile
import torch
from pydantic import ValidationError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from tiny_pyannote import save_pyannote
from tiny_whisper import write_whisper
from vaak.runs.open_run import open_run
from vaak.serve.forms import CompletionRequest
from vaak.serve.json_bodies import first_mistake, parse_json
from vaak.tasks.asr.long_form import Recording
from vaak.tasks.diarization.speaker_encoder import GE2E

RATE = 16_000
TEXTS = ["ab ba", "b", "ba ab ba ab"]


def make_client(client: Any) -> openai.OpenAI:
    """OpenAI's client, unmodified, for an application in this process."""
    return openai.OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none", max_retries=0, http_client=client)


def embedded(vaak, model: Path) -> list[list[float]]:
    code, out, err = vaak("predict", model, *TEXTS, "--embeddings")
    assert code == 0, err
    return [json.loads(line)["embedding"] for line in out.splitlines()]


def write_encoder(folder: Path) -> Path:
    """A sentence encoder that was never trained."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=4, max_position_embeddings=16, **sizes)).save_pretrained(folder)
    made = Tokenizer(models.WordLevel({"[PAD]": 0, "[UNK]": 1, "ab": 2, "ba": 3}, "[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    return folder


def test_embeddings_are_those_of_predict(client_of, vaak, tmp_path):
    folder = write_encoder(tmp_path / "encoder")
    http = client_of(folder)
    [about] = http.get("/v1/models").json()["data"]
    assert (about["id"], about["endpoints"]) == ("encoder", ["predict", "embeddings"])
    expected = embedded(vaak, folder)
    found = make_client(http).embeddings.create(model="encoder", input=TEXTS)  # the client asks for base64
    np.testing.assert_allclose([one.embedding for one in found.data], expected, rtol=1e-6)
    assert found.usage.prompt_tokens == 2 + 1 + 4
    written = http.post("/v1/embeddings", json={"input": TEXTS[0]}).json()["data"]
    np.testing.assert_allclose(written[0]["embedding"], expected[0], rtol=1e-6)
    predicted = http.post("/predict", json={"inputs": TEXTS}).json()["predictions"]
    np.testing.assert_allclose([one["embedding"] for one in predicted], expected, rtol=1e-6)
    asked = {"input": ["ab", "ab " * 17]}
    refused = http.post("/v1/embeddings", json=asked)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length: 1 of 2; " in refused.json()["error"]["message"]
    long = http.post("/v1/embeddings", json={**asked, "truncation": "auto"}).json()
    assert long["warnings"] == ["texts longer than the model reads: 1; only their beginning was read"]
    assert http.post("/v1/embeddings", json={"input": "ab", "dimensions": 8}).status_code == 200
    for wrong, field in (({"input": "ab", "dimensions": 4}, "dimensions"), ({"input": ["ab", " "]}, "input")):
        refused = http.post("/v1/embeddings", json=wrong)
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == field


@pytest.mark.slow
def test_embeddings_of_a_classifier_are_those_of_predict(client_of, run_of, vaak):
    folder = run_of("classification").folder
    found = make_client(client_of(folder)).embeddings.create(model="classification", input=TEXTS)
    np.testing.assert_allclose([one.embedding for one in found.data], embedded(vaak, folder), rtol=1e-5, atol=1e-6)


def test_log_probabilities_of_a_transcript_are_those_of_the_model(client_of, run_of):
    run = run_of("asr")
    http = client_of(run.folder)
    recording = Path(run.inputs[0])
    with recording.open("rb") as file:
        found = make_client(http).audio.transcriptions.create(model="asr", file=file, include=["logprobs"])
    tokens: Any = found.logprobs
    assert b"".join(bytes(map(int, one.bytes)) for one in tokens).decode(errors="replace").strip() == found.text
    opened = open_run(run.folder, device="cpu", precision="auto")
    model: Any = opened.model.eval()
    transcriber, expected = opened.task.transcriber(model), list[float]()
    for window in transcriber.windows(Recording(recording)):
        encoded = transcriber.encoded([window.features])
        [decoded] = transcriber.decode(encoded)
        read = torch.tensor([[*decoded.prompt, *decoded.tokens[:-1]]])
        with torch.inference_mode():
            logs = model.decode(read, encoded)[0].log_softmax(-1)
        expected += [float(logs[len(decoded.prompt) - 1 + at, one]) for at, one in enumerate(decoded.tokens)]
    assert len(expected) > 3
    assert [one.logprob for one in tokens] == pytest.approx(expected, abs=1e-3)
    files = {"file": (recording.name, recording.read_bytes())}
    asked = {"include[]": "logprobs", "stream": "true"}
    events = http.post("/v1/audio/transcriptions", files=files, data=asked).text.split("\n\n")[:-2]
    *deltas, done = [json.loads(one.removeprefix("data: ")) for one in events]
    assert [own for one in deltas for own in one["logprobs"]] == done["logprobs"]
    assert len(done["logprobs"]) == len(expected)
    refused = http.post(
        "/v1/audio/transcriptions", files=files, data={"include[]": "logprobs", "response_format": "srt"}
    )
    assert refused.json()["error"]["message"] == "include: it needs response_format json"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
        ({"timestamp_granularities": ["sentence"], "response_format": "verbose_json"}, "timestamp_granularities"),
        # A base that has no tokens for times.
        ({"timestamp_granularities": ["word"], "response_format": "verbose_json"}, "timestamp_granularities"),
        ({"include": ["logprobs"], "response_format": "verbose_json"}, "include"),
        ({"include": ["item"]}, "include"),
        ({"response_format": "xml"}, "response_format"),
        ({"stream": True, "response_format": "verbose_json"}, "stream"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"language": "klingon"}, "language"),
        ({"chunking_strategy": {"type": "server_vad", "threshold": 0.5}}, "chunking_strategy"),
        ({"extra_body": {"stop": "a"}}, "stop"),
    ],
)
def test_what_is_not_done_with_a_recording_is_refused_by_name(client_of, run_of, given, param):
    run = run_of("asr")
    with pytest.raises(openai.BadRequestError) as raised, Path(run.inputs[0]).open("rb") as file:
        make_client(client_of(run.folder)).audio.transcriptions.create(model="asr", file=file, **given)
    assert param in str(raised.value.message), given
    assert (raised.value.param or "").startswith(param), given
    assert raised.value.type == "invalid_request_error"


def test_a_recogniser_of_one_language_translates_nothing(client_of, run_of):
    run = run_of("asr")
    files = {"file": ("a.wav", Path(run.inputs[0]).read_bytes())}
    refused = client_of(run.folder).post("/v1/audio/translations", files=files)
    assert refused.status_code == 400
    assert "can't translate: it knows one language only" in refused.json()["error"]["message"]


def voice(pitch: int, seconds: float) -> np.ndarray:
    return np.sin(2 * np.pi * pitch * np.arange(round(seconds * RATE)) / RATE).astype(np.float32) / 4


@pytest.fixture(scope="module")
def talk(tmp_path_factory) -> Path:
    """A recording of two voices, one of them alone, and a diarizer with a speaker encoder; none was trained."""
    folder = tmp_path_factory.mktemp("talk")
    save_pyannote(folder / "pytorch_model.bin")
    torch.manual_seed(0)
    torch.save({"model_state": GE2E().state_dict()}, folder / "encoder.pt")
    soundfile.write(folder / "talk.wav", np.concatenate([voice(200, 4), voice(800, 4)]), RATE)
    soundfile.write(folder / "anna.wav", voice(200, 2), RATE)
    return folder


def test_known_speakers_are_named_as_by_the_command(client_of, vaak, talk):
    overrides = [f"data.inference.speaker_encoder={talk / 'encoder.pt'}", "data.inference.threshold=0.2"]
    http = client_of(open_run(talk / "pytorch_model.bin", overrides=overrides, device="cpu", precision="auto"))
    given = ["diarize", talk / "pytorch_model.bin", talk / "talk.wav", "--threshold", 0.2, "--json"]
    given += ["--speaker-encoder", talk / "encoder.pt", "--enrol", f"anna={talk / 'anna.wav'}"]
    code, out, err = vaak(*given, "--enrol-threshold", 2)
    assert code == 0, err
    [expected] = json.loads(out)["recordings"]
    content = (talk / "anna.wav").read_bytes()
    asked = {"known_speaker_names[]": "anna", "known_speaker_threshold": "2"}
    sent = [
        ("file", ("talk.wav", (talk / "talk.wav").read_bytes())),
        ("known_speaker_references[]", ("a.wav", content)),
    ]
    found = http.post("/v1/diarize", files=sent, data=asked)
    assert found.status_code == 200, found.text
    assert found.json()["enrolled"] == expected["enrolled"]
    assert {one["speaker"] for one in found.json()["segments"]} == {"anna"}
    url = f"data:audio/wav;base64,{base64.b64encode(content).decode()}"
    as_url = http.post("/v1/diarize", files=sent[:1], data={**asked, "known_speaker_references[]": url})
    assert as_url.json() == found.json()
    assert "enrolled" not in http.post("/v1/diarize", files=sent[:1]).json()
    for data, expected in (
        ({"known_speaker_names[]": "anna"}, "1 and 0; expected one recording for each name"),
        ({**asked, "known_speaker_references[]": "/etc/passwd"}, "expected files, or data: URLs"),
        ({**asked, "known_speaker_references[]": "http://127.0.0.1/a.wav"}, "expected files, or data: URLs"),
        ({**asked, "known_speaker_references[]": url, "known_speaker_names[]": "speaker_1"}, "can't be a name"),
        ({"known_speaker_threshold": "1"}, "it is for known speakers"),
    ):
        refused = http.post("/v1/diarize", files=sent[:1], data=data)
        assert refused.status_code == 400, refused.text
        assert expected in refused.json()["error"]["message"]


def test_who_says_what_is_that_of_transcribe(client_of, run_of, vaak, talk):
    run = run_of("asr")
    recording = Path(run.inputs[0])
    http = client_of(run.folder, talk / "pytorch_model.bin")
    options = ("--diarize", talk / "pytorch_model.bin", "--json")
    code, out, err = vaak("transcribe", run.folder, recording, *options)
    assert code == 0, err
    said = json.loads(out)
    create = make_client(http).audio.transcriptions.create
    with recording.open("rb") as file:
        found = create(model="asr", file=file, response_format="diarized_json", chunking_strategy="auto")
    turns = [{name: getattr(one, name) for name in ("start", "end", "speaker", "text")} for one in found.segments]
    assert turns == said["segments"]
    assert found.duration == said["duration"]
    assert found.text == " ".join(one["text"] for one in said["segments"])
    with pytest.raises(openai.BadRequestError, match="stream: it needs"), recording.open("rb") as file:
        create(model="asr", file=file, response_format="diarized_json", stream=True)
    with pytest.raises(openai.BadRequestError, match="no diarization run is served"), recording.open("rb") as file:
        make_client(client_of(run.folder)).audio.transcriptions.create(
            model="asr", file=file, response_format="diarized_json"
        )


def test_null_is_the_default_of_what_openai_lets_be_null():
    form = CompletionRequest.model_validate({"prompt": "a", "n": None, "stream": None, "echo": None})
    assert (form.n, form.stream, form.echo) == (1, False, False)
    schemas = CompletionRequest.model_json_schema()["properties"]
    assert {"type": "null"} in schemas["n"]["anyOf"]
    assert schemas["echo"]["description"] == "The text begins with the prompt."


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ('{"prompt": [1.5]}', "prompt", "prompt: expected a text, tokens, a list of texts"),
        ('{"prompt": "a", "foo": 2}', "foo", "foo: unknown field; GET /docs lists"),
        ('{"prompt": "a", "n": 0}', "n", "n: Input should be greater than"),
        ("[1]", None, "expected a JSON object as the body, with Content-Type: application/json"),
    ],
)
def test_a_mistake_is_named_by_its_field(body: str, param: str | None, message: str):
    with pytest.raises(ValidationError) as caught:
        CompletionRequest.model_validate(parse_json(body))
    error = first_mistake(caught.value.errors()).body["error"]
    assert error["param"] == param
    assert error["message"].startswith(message)


def test_a_tag_is_the_language_that_it_names_and_the_answer_says_so(client_of, run_of, tmp_path):
    http = client_of(write_whisper(tmp_path / "whisper"))
    files = {"file": ("a.wav", Path(run_of("asr").inputs[0]).read_bytes())}

    def ask(language: str, **more: str) -> dict[str, Any]:
        answer = http.post("/v1/audio/transcriptions", files=files, data={"language": language, **more})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    plain, tagged = ask("hi"), ask("hi-IN")
    assert tagged == {**plain, "warnings": ["hi-IN is taken as hi: IN is ignored"]}
    assert ask("hin", response_format="verbose_json")["language"] == "hi"
