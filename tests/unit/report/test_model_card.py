"""A model card has what the run's folder says, as text, in the form that the Hub's own library reads."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import huggingface_hub
import pytest

from vaak.config.tasks import load_spec
from vaak.report.model_card import AboutExport, model_card

CONFIG = """\
task: asr
name: "x](http://evil) <script>alert(1)</script>"
datasets: [{name: village | talks, type: json, train: [/home/me/secret/train.jsonl]}]
model: {base: /home/me/whisper, norm_eps: 1e-05, lora: null}
training: {max_steps: 8, optimizer: {lr: 0.01}}
"""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "config.yml").write_text(CONFIG)
    (tmp_path / "prepared").mkdir()
    statistics = {"train": {"utterances": 1200, "seconds": 5400.0, "left_out": {}}, "valid": {"utterances": 3}}
    (tmp_path / "prepared" / "prepared.json").write_text(json.dumps({"statistics": statistics}))
    records = [{"kind": "evaluation", "step": step, "val_wer": step / 100, "val_wer/ALS": 0.5} for step in (4, 8)]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in records) + '{"kind": "eval')
    return tmp_path


def test_the_hubs_library_reads_its_head_and_the_body_says_what_the_run_does(run: Path):
    about = AboutExport("hf", 4, "out", license="cc-by-4.0", data_licenses=["village: CC0"], languages=["hi"])
    text = model_card(run, about)
    data = huggingface_hub.ModelCard(text).data.to_dict()
    assert data["license"] == "cc-by-4.0"
    assert data["language"] == ["hi"]
    assert data["pipeline_tag"] == "automatic-speech-recognition"
    assert "| train | 1,200 | 1.50 |" in text
    assert "| `val_wer` | 4.00 % |" in text
    assert "| `val_wer/ALS` | 50.00 % |" in text
    assert "village: CC0" in text
    assert "norm_eps: 1e-05" in text
    assert "Not verified" in text
    (run / "verification.json").write_text(
        json.dumps({"verified": True, "sentence": "3 of 3 steps", "time": "2026-11-26"})
    )
    assert "The run is what it says, by `vaak verify` on 2026-11-26: 3 of 3 steps." in model_card(run, about)


@pytest.mark.parametrize(
    ("data", "language"),
    [
        ("{language: hi}", "hi"),
        ("{language: hi, decoding: {language: ta}}", "ta"),
        ("{language: hi, decoding: {language: auto}}", "hi"),
        ("{decoding: beam}", "sw"),
        ("{language: 'en\"); evil(\"'}", "sw"),
    ],
)
def test_a_recogniser_is_opened_in_its_language(run: Path, data: str, language: str):
    (run / "config.yml").write_text(f"{CONFIG}data: {data}\n")
    about = AboutExport("sherpa-onnx", 4, "out", languages=["sw"], files=("encoder.onnx", "decoder.onnx"))
    assert f'"out/tokens.txt", language="{language}"\n' in model_card(run, about)


def test_what_a_stranger_wrote_is_text_and_places_on_this_machine_are_left_out(run: Path):
    (run / "environment.json").write_text(json.dumps({"world_size": "<b>2</b>", "packages": ["torch"]}))
    record = {"kind": "evaluation", "step": 4, "val_wer/x\n\n# Heading": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps(record))
    assert "\n# Heading" not in model_card(run, AboutExport("hf", 4, "out"))
    text = model_card(run, AboutExport("onnx", None, "out folder)", files=("ctc.onnx",)))
    assert "<script>" not in text
    assert "<b>" not in text
    assert "](http" not in text
    assert "/home/me" not in text
    assert "village \\| talks" in text
    assert 'InferenceSession("out_folder_/ctc.onnx")' in text
    assert "Licence: not said" in text
    assert "wasn't evaluated" in text


def test_a_strangers_configuration_shows_nothing_of_the_environment(run: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PLACE", "somewhere private")
    (run / "config.yml").write_text("name: ${PLACE}\ntask: asr\n")
    assert "private" not in model_card(run, AboutExport("hf", 4, "out"))


def test_a_folder_with_nothing_is_a_card_too(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    text = model_card(tmp_path, AboutExport("hf", 1, "out", spec=load_spec("lm")))
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert not caplog.records


@pytest.mark.parametrize("content", ['{"torch": "2', '["torch"]'])
def test_what_a_damaged_file_of_the_run_would_say_is_missing_with_a_warning(
    content: str, run: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    """It used to be treated as if the file didn't exist."""
    damaged = shutil.copytree(run, tmp_path / "damaged")
    (damaged / "environment.json").write_text(content)
    with caplog.at_level("WARNING", "vaak"):
        model_card(damaged, AboutExport("hf", 4, "out"))
        model_card(damaged, AboutExport("hf", 4, "out"))
    assert caplog.text.count(f"{damaged / 'environment.json'} can't be read, and is left out: ") == 1
