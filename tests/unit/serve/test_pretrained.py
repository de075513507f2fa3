"""``vaak serve BASE``: real pretrained models of each kind answer as the commands do. Needs real weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
from transformers import Wav2Vec2CTCTokenizer

from tiny_wav2vec2 import write_base

WEIGHTS = Path(os.environ.get("VAAK_WEIGHTS", "nowhere"))
SPEECH = Path(os.environ.get("VAAK_DATA", "nowhere")) / "read_speech"


def find_weights(name: str) -> Path:
    if not (WEIGHTS / name).exists():
        pytest.skip(f"VAAK_WEIGHTS names no folder with {name}: real weights are needed")
    return WEIGHTS / name


@pytest.mark.slow
def test_a_whisper_transcribes(client_of, vaak):
    folder = find_weights("whisper-tiny.en")
    if not SPEECH.is_dir():
        pytest.skip("VAAK_DATA is not set: there is no speech")
    first = json.loads((SPEECH / "manifest.jsonl").read_text(encoding="utf-8").splitlines()[0])
    recording = SPEECH / first["audio"]
    client = client_of(folder)
    files = {"file": (recording.name, recording.read_bytes())}
    answer = client.post("/v1/audio/transcriptions", files=files, data={"include[]": "logprobs"}).json()
    assert answer["text"] + "\n" == vaak("transcribe", folder, recording)[1]
    assert bytes(byte for one in answer["logprobs"] for byte in one["bytes"]).decode().strip() == answer["text"]
    assert client.get("/v1/models").json()["data"][0]["endpoints"] == ["predict", "transcriptions"]
    refused = client.post("/v1/audio/translations", files=files)
    assert refused.status_code == 400
    assert "can't translate" in refused.json()["error"]["message"]


def test_a_ctc_model_transcribes(client_of, vaak, tmp_path):
    folder = write_base(tmp_path / "ctc", "wav2vec2", "layer")
    letters = {name: place for place, name in enumerate(("<pad>", "<unk>", "|", *"abdeimosu"))}
    (folder / "vocab.json").write_text(json.dumps(letters))
    Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), bos_token=None, eos_token=None).save_pretrained(folder)
    recording = tmp_path / "noise.wav"
    soundfile.write(recording, np.random.default_rng(0).uniform(-0.5, 0.5, 16_000), 16_000)
    code, out, err = vaak("transcribe", folder, recording, "--json")
    assert code == 0, err
    client, files = client_of(folder), {"file": (recording.name, recording.read_bytes())}
    assert client.get("/v1/models").json()["data"][0]["endpoints"] == ["predict", "transcriptions"]
    answer = client.post("/v1/audio/transcriptions", files=files, data={"response_format": "verbose_json"}).json()
    said = json.loads(out)
    assert answer["text"] == said["text"]
    assert len(answer["text"]) > 3
    assert [one["text"] for one in answer["segments"]] == [one["text"] for one in said["segments"]]
    refused = client.post("/v1/audio/transcriptions", files=files, data={"include[]": "logprobs"})
    assert (
        refused.json()["error"]["message"] == "include: ctc: it has no log-probabilities of tokens; only a Whisper has"
    )
    unread = {"language": "hi", "prompt": "Names", "temperature": "0.5"}
    for name, value in unread.items():
        refused = client.post("/v1/audio/transcriptions", files=files, data={name: value})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, name), refused.text
        assert "doesn't read it: model.architecture is ctc" in refused.json()["error"]["message"]
    as_it_is = client.post("/v1/audio/transcriptions", files=files, data={"temperature": "0", "prompt": ""})
    assert as_it_is.json()["text"] == said["text"]


@pytest.mark.slow
def test_a_sentence_encoder_embeds(client_of, vaak):
    folder = find_weights("minilm")
    texts = ["The boy is good.", "A good boy.", "Stocks fell on Monday."]
    printed = vaak("predict", folder, *texts, "--embeddings")[1].splitlines()
    found = client_of(folder).post("/v1/embeddings", json={"input": texts}).json()["data"]
    vectors = np.array([one["embedding"] for one in found])
    np.testing.assert_allclose(vectors, [json.loads(line)["embedding"] for line in printed], atol=1e-5)
    near = vectors @ vectors.T  # MiniLM's have length 1
    assert near[0, 1] > 0.6 > near[0, 2]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma", "gguf"])
def test_a_decoder_continues(client_of, vaak, kind):
    path = find_weights("gemma") if kind == "gemma" else Path(os.environ.get("VAAK_GGUF", "nowhere"))
    if not path.exists():
        pytest.skip("VAAK_GGUF names no file of llama.cpp")
    asked = {"prompt": "The capital of France is", "max_tokens": 5, "temperature": 0, "logprobs": 2}
    [choice] = client_of(path).post("/v1/completions", json=asked).json()["choices"]
    code, out, err = vaak("generate", path, asked["prompt"], "--max-new-tokens", 5, "--temperature", 0)
    assert code == 0, err
    assert asked["prompt"] + choice["text"] + "\n" == out
    assert "".join(choice["logprobs"]["tokens"]) == choice["text"]
    assert choice["text"].strip()
