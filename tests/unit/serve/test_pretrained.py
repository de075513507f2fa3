"""``vaak serve BASE``: real pretrained models of each kind answer as the commands do. Needs real weights."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

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
