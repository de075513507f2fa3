"""Requests that /openapi.json allows, and some that it doesn't: none is a fault of the server; /docs loads nothing."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from json_values import ANYTHING

LENGTHS = {"max_tokens": 3, "max_completion_tokens": 3, "max_new_tokens": 3}
KEPT_SMALL = {**LENGTHS, "n": 2, "beam_size": 3, "num_samples": 2}
"""Numbers that would make a request long, and the largest that are drawn."""
SERVED = ("lm", "classification", "seq2seq", "asr", "tts", "diarization")
TEXTS = st.sampled_from(["ab ba", "", "लड़की", "a\x00b", "😀", "<speak>", "x" * 50]) | st.text(max_size=12)


def make_strategy(schema: Mapping[str, Any], schemas: Mapping[str, Any], name: str = "") -> st.SearchStrategy[Any]:
    """Draws what a schema allows."""
    if "$ref" in schema:
        return make_strategy(schemas[schema["$ref"].rpartition("/")[2]], schemas, name)
    if "const" in schema or "enum" in schema:
        return st.sampled_from(schema.get("enum", [schema.get("const")]))
    if "anyOf" in schema:
        return st.one_of([make_strategy(one, schemas, name) for one in schema["anyOf"]])
    kind = schema.get("type")
    if kind == "object":
        own = {
            key: make_strategy(one, schemas, key) for key, one in schema.get("properties", {}).items() if key != "model"
        }
        needed = {key: own.pop(key) for key in schema.get("required", ()) if key in own}
        return st.fixed_dictionaries(needed, optional=own)
    if kind == "array":
        items = make_strategy(schema.get("items", {}), schemas)
        return st.lists(items, min_size=schema.get("minItems", 0), max_size=3)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        "null": st.none(),
        "boolean": st.booleans(),
        "string": TEXTS,
        "integer": st.integers(-1, KEPT_SMALL.get(name, 30)),
        "number": st.floats(allow_nan=False) | st.sampled_from([0, 0.5, 1, -1]),
    }
    return simple.get(kind, ANYTHING)


@pytest.mark.slow
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_no_request_is_a_fault_of_the_server(client_of_all, data):
    described = client_of_all.get("/openapi.json").json()
    schemas = described["components"]["schemas"]
    routes = sorted(path for path, methods in described["paths"].items() if "post" in methods)
    path = data.draw(st.sampled_from(routes), label="path")
    [(kind, content), *_] = described["paths"][path]["post"]["requestBody"]["content"].items()
    asked = data.draw(make_strategy(content["schema"], schemas), label="asked")
    if data.draw(st.booleans(), label="spoiled"):
        name = data.draw(st.sampled_from([*asked, "other"]), label="field")
        asked = {**asked, name: data.draw(ANYTHING, label="value")}
    if "model" in schemas.get(content["schema"].get("$ref", "").rpartition("/")[2], content["schema"])["properties"]:
        names = st.sampled_from([*SERVED, "none"])
        asked |= {"model": data.draw(names, label="model")}
    if kind == "application/json":
        answer = client_of_all.post(path, json=None if not asked else without_infinities(asked))
    else:
        form = {key: str(without_infinities(value)) for key, value in asked.items() if key != "file"}
        sent = data.draw(st.binary(max_size=60) | st.sampled_from([make_wav(0), make_wav(1), make_wav(4_000)]))
        answer = client_of_all.post(path, data=form, files={"file": ("a.wav", sent)})
    assert answer.status_code < 500, answer.text
    if answer.status_code != 200:
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


def make_wav(num_samples: int) -> bytes:
    """A recording of a tone."""
    file = io.BytesIO()
    soundfile.write(file, np.sin(np.arange(num_samples) / 9) / 4, 16_000, format="WAV", subtype="PCM_16")
    return file.getvalue()


def without_infinities(value: Any) -> Any:
    """Replace infinities, NaN and lone surrogates, which httpx refuses to write as JSON."""
    if isinstance(value, dict):
        return {name: without_infinities(one) for name, one in value.items()}
    if isinstance(value, list):
        return [without_infinities(one) for one in value]
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    return 0.5 if isinstance(value, float) and not math.isfinite(value) else value


@pytest.fixture(scope="module")
def client_of_all(client_of, run_of):
    return client_of(*(run_of(task).folder for task in SERVED))


@pytest.mark.slow
def test_numbers_that_json_does_not_have_are_mistakes_of_the_request(client_of_all):
    for path, body in (
        ("/predict", '{"model": "lm", "inputs": [NaN]}'),
        ("/v1/completions", '{"model": "lm", "prompt": "a", "temperature": Infinity}'),
        ("/v1/completions", '{"model": "lm", "prompt": "a", "max_tokens": 1e400}'),
        ("/v1/classify", '{"model": "classification", "input": "\\ud800"}'),
        ("/v1/translate", '{"model": "seq2seq", "input": "a", "temperature": -Infinity}'),
    ):
        answer = client_of_all.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400, (body, answer.text)


def test_the_page_of_endpoints_names_each_field_and_loads_nothing(client_of, run_of):
    client = client_of(run_of("lm").folder)
    page = client.get("/docs").text
    described = client.get("/openapi.json").json()
    assert all(path in page for path in described["paths"])
    fields = described["components"]["schemas"]["CompletionRequest"]["properties"]
    assert {"logprobs", "prompt", "seed"} <= set(fields)
    assert all(f">{name}<" in page for name in fields)
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//|@import|url\(""", page)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"n": True}, "n"),
        ({"logprobs": False}, "logprobs"),
        ({"max_tokens": "3"}, "max_tokens"),
        ({"temperature": "1"}, "temperature"),
        ({"stream": "no"}, "stream"),
        ({"presence_penalty": False}, "presence_penalty"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ],
)
def test_a_field_has_the_type_that_is_described(client_of_lm, given, wrong):
    answer = client_of_lm.post("/v1/completions", json={"prompt": "ab", "max_tokens": 1} | given)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == wrong


def test_a_whole_number_may_be_written_with_a_point(client_of_lm):
    asked = {"prompt": "ab", "max_tokens": 3, "n": 2, "seed": 1, "temperature": 1, "presence_penalty": 0}
    plain, pointed = (
        client_of_lm.post("/v1/completions", json={name: change(one) for name, one in asked.items()})
        for change in (lambda one: one, lambda one: float(one) if isinstance(one, int) else one)
    )
    assert pointed.status_code == 200, pointed.text
    assert pointed.json()["choices"] == plain.json()["choices"]


def test_the_answers_of_errors_are_described(client_of_lm):
    described = client_of_lm.get("/openapi.json").json()["paths"]
    for path, methods in described.items():
        for about in methods.values():
            answers = about["responses"]
            assert "422" not in answers, path  # nothing answers so
            [content] = answers["default"]["content"].values()
            assert content["schema"]["$ref"].endswith("/ErrorAnswer"), path
    assert client_of_lm.get("/v1/models/0").status_code == 404


@pytest.fixture(scope="module")
def client_of_lm(client_of, run_of):
    return client_of(run_of("lm").folder)
