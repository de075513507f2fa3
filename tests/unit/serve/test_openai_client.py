"""The published ``openai`` package gets the commands' outputs from a server in a separate process."""

from __future__ import annotations

import io
import json
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import openai
import pytest
import soundfile

from served_runs import serving
from vaak.runs.open_run import open_run
from vaak.tasks.lm.model import LanguageModel
from vaak.tasks.lm.predict import Reading, generate, token_scores

PROMPT = "लड़की"


@pytest.fixture(scope="module")
def served(run_of, voice_run, commands, tmp_path_factory):
    folders = (run_of("lm").folder, run_of("asr").folder, voice_run)
    with (
        serving(commands, tmp_path_factory.mktemp("server"), *folders) as running,
        openai.OpenAI(base_url=f"{running.address}/v1", api_key="none", max_retries=0) as client,
    ):
        yield SimpleNamespace(client=client, address=running.address)


@pytest.fixture
def runs(run_of, voice_run):
    return {"lm": run_of("lm").folder, "asr": run_of("asr").folder, "voice": voice_run}


@pytest.fixture
def recording(run_of) -> Path:
    return Path(run_of("asr").inputs[0])


def test_models_are_listed(served):
    assert [one.id for one in served.client.models.list()] == ["lm", "asr", "voice"]
    assert served.client.models.retrieve("asr").owned_by == "vaak"
    # It stays, whatever a run that trains on does with its checkpoints.
    assert served.client.models.retrieve("asr").created > 1_700_000_000


def test_completions_are_those_of_generate(served, runs, vaak):
    code, out, _ = vaak("generate", runs["lm"], PROMPT, "--samples", 3, "--max-new-tokens", 12, "--json")
    assert code == 0
    expected = [json.loads(line)["text"].removeprefix(PROMPT) for line in out.splitlines()]
    found = served.client.completions.create(model="lm", prompt=PROMPT, n=3, max_tokens=12)
    assert [one.text for one in found.choices] == expected
    assert [one.index for one in found.choices] == [0, 1, 2]
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    streamed = served.client.completions.create(
        model="lm", prompt=PROMPT, max_tokens=12, stream=True, stream_options={"include_usage": True}
    )
    *pieces, last = list(streamed)
    assert "".join(one.choices[0].text for one in pieces) == expected[0]
    assert len(pieces) > 3
    assert last.usage.completion_tokens <= 12
    alone = vaak("generate", runs["lm"], PROMPT, "--max-new-tokens", 7, "--temperature", 0)[1]
    greedy = served.client.completions.create(model="lm", prompt=PROMPT, max_tokens=7, temperature=0)
    assert PROMPT + greedy.choices[0].text + "\n" == alone


def test_a_text_ends_before_what_it_is_to_stop_at(served):
    create = served.client.completions.create
    whole = create(model="lm", prompt=PROMPT, max_tokens=20, seed=4).choices[0].text
    stop = whole[4:6]
    cut = create(model="lm", prompt=PROMPT, max_tokens=20, seed=4, stop=[stop, "never there"]).choices[0]
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    pieces = create(model="lm", prompt=PROMPT, max_tokens=20, seed=4, stop=stop, stream=True)
    assert "".join(one.choices[0].text for one in pieces) == cut.text
    assert create(model="lm", prompt=PROMPT, max_tokens=2, seed=4).choices[0].finish_reason == "length"


def test_several_prompts_are_what_each_is_alone(served):
    create = served.client.completions.create
    prompts = [PROMPT, "वह", "क"]
    together = create(model="lm", prompt=prompts, max_tokens=8, n=2, seed=3)
    alone = [create(model="lm", prompt=one, max_tokens=8, n=2, seed=3) for one in prompts]
    assert [one.text for one in together.choices] == [one.text for each in alone for one in each.choices]


def test_log_probabilities_are_those_of_the_model(served, runs):
    opened = open_run(runs["lm"], device="cpu", precision="auto")
    prompt = opened.task.prompt(PROMPT)
    create = served.client.completions.create
    asked = {"model": "lm", "prompt": PROMPT, "max_tokens": 8, "temperature": 1.5, "seed": 2}
    choice = create(**asked, logprobs=3).choices[0]
    assert choice.text == create(**asked).choices[0].text
    assert create(**asked).choices[0].logprobs is None
    settings = opened.task.sampling(max_new_tokens=8, temperature=1.5, seed=2)
    model = cast("LanguageModel", opened.model)
    ids = list(generate(model, prompt, settings, Reading(opened.task.data.max_length)))
    [(expected, _)] = token_scores(model, [[*prompt, *ids]], [len(ids)])
    assert choice.logprobs.token_logprobs == pytest.approx(expected.tolist(), abs=1e-4)
    offsets = choice.logprobs.text_offset
    assert offsets == sorted(offsets)
    assert (offsets[0], len(offsets)) == (0, len(ids))
    for token, own, top in zip(
        choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
    ):
        assert top[token] == own <= max(top.values())
        assert 3 <= len(top) <= 4
    pieces = list(create(**asked, logprobs=3, stream=True))
    streamed = [one.choices[0].logprobs for one in pieces]
    assert [own for one in streamed for own in one.tokens] == choice.logprobs.tokens
    assert [own for one in streamed for own in one.token_logprobs] == pytest.approx(choice.logprobs.token_logprobs)
    bare = create(**asked, logprobs=0).choices[0].logprobs
    assert (bare.tokens, bare.top_logprobs) == (choice.logprobs.tokens, None)


def test_a_text_that_is_cut_has_the_log_probabilities_of_what_is_left(served):
    asked = {"model": "lm", "prompt": PROMPT, "max_tokens": 20, "seed": 4, "logprobs": 0}
    whole = served.client.completions.create(**asked).choices[0]
    stop = whole.text[4:6]
    for found in (
        [served.client.completions.create(**asked, stop=stop)],
        list(served.client.completions.create(**asked, stop=stop, stream=True)),
    ):
        text = "".join(one.choices[0].text for one in found)
        offsets = [at for one in found for at in one.choices[0].logprobs.text_offset]
        assert text == whole.text[: whole.text.index(stop)]
        assert offsets == [at for at in whole.logprobs.text_offset if at < len(text)]


@pytest.mark.parametrize("format", ["text", "srt", "vtt"])
def test_transcripts_are_those_of_transcribe(served, runs, vaak, recording, format):
    code, out, err = vaak("transcribe", runs["asr"], recording, "--format", format)
    assert code == 0, err
    with recording.open("rb") as file:
        found = served.client.audio.transcriptions.create(model="asr", file=file, response_format=format)
    assert found == out


def test_transcripts_as_json(served, runs, vaak, recording):
    said = json.loads(vaak("transcribe", runs["asr"], recording, "--json")[1])
    create = served.client.audio.transcriptions.create
    with recording.open("rb") as file:
        assert create(model="asr", file=file).text == said["text"]
    with recording.open("rb") as file:
        found = create(model="asr", file=file, response_format="verbose_json")
    assert (found.text, found.duration) == (said["text"], said["duration"])
    spoken = [{name: getattr(one, name) for name in ("start", "end", "text")} for one in found.segments]
    assert spoken == said["segments"]
    with recording.open("rb") as file:
        events = list(create(model="asr", file=file, stream=True))
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == "".join(one.delta for one in events[:-1]) == said["text"]


def test_a_bad_recording_is_refused_with_the_line_of_transcribe(served, runs, vaak, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("talk.wav").write_bytes(b"RIFF no audio")
    code, _, err = vaak("transcribe", runs["asr"], "talk.wav")
    assert code == 2
    with pytest.raises(openai.BadRequestError) as raised, open("talk.wav", "rb") as file:
        served.client.audio.transcriptions.create(model="asr", file=file)
    said = cast("dict[str, str]", raised.value.body)
    assert said["message"] in err
    assert said["message"].startswith("talk.wav: ")
    assert said["type"] == "invalid_request_error"


def test_a_field_of_a_form_that_is_not_known_is_refused(served, recording):
    """It was left out without a word."""
    create = served.client.audio.transcriptions.create
    with (
        pytest.raises(openai.BadRequestError, match="unknown field 'best_of'; expected file, "),
        recording.open("rb") as file,
    ):
        create(model="asr", file=file, extra_body={"best_of": 2})


@pytest.mark.parametrize("format", ["wav", "flac"])
def test_speech_is_that_of_speak(served, runs, vaak, tmp_path, format):
    path = tmp_path / f"speech.{format}"
    text = "aba abo. abi aba."
    code, _, err = vaak("speak", runs["voice"], text, "-o", path, "--speed", 1.25)
    create = served.client.audio.speech.create
    found = create(model="voice", voice=openai.omit, input=text, speed=1.25, response_format=format)
    assert found.read() == path.read_bytes(), (code, err)


def test_pcm_is_the_samples_of_the_file(served):
    text = "aba abo. abi aba."
    create = served.client.audio.speech.create
    whole = create(model="voice", voice=openai.omit, input=text, response_format="wav").read()
    assert create(model="voice", voice=openai.omit, input=text, response_format="pcm").read() == whole[44:]


@pytest.mark.parametrize(("format", "kind"), [("mp3", "MP3"), ("wav", "WAV"), ("flac", "FLAC")])
def test_speech_is_a_file_of_the_format_asked_for(served, format, kind):
    create = served.client.audio.speech.create
    content = create(model="voice", voice=openai.omit, input="aba abo.", response_format=format).read()
    with soundfile.SoundFile(io.BytesIO(content)) as file:
        assert (file.format, file.channels) == (kind, 1)
        assert file.frames > 1000
    if format == "mp3":  # what OpenAI's clients get where they name none
        assert create(model="voice", voice=openai.omit, input="aba abo.").read() == content


def test_an_unknown_voice_is_an_error_that_names_those_there_are(served):
    with pytest.raises(openai.BadRequestError, match="the model has") as raised:
        served.client.audio.speech.create(model="voice", voice="alloy", input="aba")
    assert raised.value.param == "voice"


def test_errors_are_those_that_the_client_knows(served):
    with pytest.raises(openai.NotFoundError) as raised:
        served.client.completions.create(model="other", prompt="a")
    assert raised.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError, match="model of task asr"):
        served.client.completions.create(model="asr", prompt="a")
    with pytest.raises(openai.BadRequestError, match="temperature"):
        served.client.completions.create(model="lm", prompt="a", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="logprobs"):
        served.client.completions.create(model="lm", prompt="a", logprobs=3, echo=True)
    with pytest.raises(openai.BadRequestError, match="best_of"):
        served.client.completions.create(model="lm", prompt="a", best_of=3)
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        served.client.chat.completions.create(model="lm", messages=[{"role": "user", "content": "?"}])


def test_curl_gets_the_same(served):
    body = json.dumps({"model": "lm", "prompt": PROMPT, "max_tokens": 5})
    command = ["curl", "-s", f"{served.address}/v1/completions", "-H", "Content-Type: application/json", "-d", body]
    found = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    assert (
        found["choices"][0]["text"]
        == served.client.completions.create(model="lm", prompt=PROMPT, max_tokens=5).choices[0].text
    )
