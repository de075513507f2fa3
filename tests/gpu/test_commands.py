"""Commands that use a model run on a GPU, and say there what they say on a CPU."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import onnx
import pytest

import tiny_diarizer
import tiny_listener
import tiny_vocoder
import tiny_voice
from folders import contents
from mock_cuda import MockDevice, plugged_in
from recipe_sizes import OF_A_TASK, QUICK, SIZES
from tiny_speaker_encoder import save_onnx, save_xvector
from tiny_whisper import write_whisper
from vaak.config.load import load

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
REPOSITORY = Path(__file__).parents[2]
EXACTLY = ("--precision", "fp32")


def on_both(vaak: Any, *arguments: object) -> list[str]:
    """Return a command's output on a CPU and on a GPU, without the time that it takes."""
    said = []
    for device in ("cpu", "cuda"):
        code, out, err = vaak(*arguments, "--device", device)
        assert code == 0, err
        said.append(re.sub(r'"(seconds_taken|real_time_factor)": [^,}]+', "", out))
    return said


RECIPES = (
    "quickstart",
    "encoder_decoder_model",
    *(
        f"{task}/quickstart"
        for task in (
            "classification",
            "diarization",
            "tts",
            "vocoder",
            "asr",
            "multitask",
        )
    ),
    "asr/ctc",
)
"""Those of the README, and one with a loss of which torch's own gradient isn't deterministic."""


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_trains(vaak: Any, recipe: str, deterministic: bool, gpu: MockDevice, tmp_path: Path):
    file = REPOSITORY / "configs" / f"{recipe}.yml"
    task = load([file]).experiment.task
    options = (*SIZES[task], *QUICK, *OF_A_TASK.get(task, ()), f"training.deterministic={deterministic}")
    options += ("data.minimal_pairs=[]",) if task == "lm" else ()  # they are longer than these rows
    code, out, err = vaak("train", file, *options, f"run_dir={tmp_path / 'run'}", "training.device=cuda")
    assert code == 0, err
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    assert math.isfinite(steps[-1]["loss"])
    assert "on cuda" in out + err


def test_the_peak_of_memory_is_shown(vaak: Any, gpu: MockDevice, tmp_path: Path):
    """Allocated during a step, without the weights and moments that are held between steps."""
    file, options = REPOSITORY / "configs/quickstart.yml", ["data.max_length=128", "data.minimal_pairs=[]"]
    options += ["training.max_steps=3", "training.batching.max_tokens=8192", "training.mixed_precision=no"]
    options += ["training.logging={interval: 1, progress_bar: false}", "training.device=cuda"]
    code, out, err = vaak("train", file, *options, f"run_dir={tmp_path}")
    assert code == 0, err
    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    peaks = [record["clock"]["device_memory_gib"] for record in records if record["kind"] == "system"]
    shown = [float(found) for found in re.findall(r"^step .* ([\d.]+) GiB", out + err, re.MULTILINE)]
    assert shown == [round(peak, 1) for peak in peaks]
    assert min(shown) > 0.1, "so much that it differs from what is held"


def test_generate_and_predict(vaak: Any, tiny_run: Path, gpu: MockDevice):
    options = ("--max-new-tokens", 12, "--temperature", 0, *EXACTLY)
    cpu, cuda = on_both(vaak, "generate", tiny_run, "लड़की", *options)
    assert cpu == cuda
    cpu, cuda = on_both(vaak, "predict", tiny_run, "लड़की", "वह घर में", *EXACTLY)
    assert cpu == cuda


def test_bf16_is_what_a_gpu_computes_in(vaak: Any, tiny_run: Path, gpu: MockDevice):
    assert vaak("generate", tiny_run, "लड़की", "--max-new-tokens", 4, "--device", "cuda")[0] == 0


def test_eval(vaak: Any, tiny_run: Path, gpu: MockDevice):
    found = [json.loads(said)["metrics"] for said in on_both(vaak, "eval", tiny_run, "--json")]
    for name, one in found[0].items():
        assert found[1][name] == pytest.approx(one, rel=1e-4), name


def test_replay_and_inspect(vaak: Any, tiny_run: Path, gpu: MockDevice):
    for arguments in (("replay", tiny_run, "--step", 2), ("inspect", tiny_run, "--json")):
        code, _, err = vaak(*arguments, "--device", "cuda")
        assert code == 0, err


def test_before_training(vaak: Any, tiny_text: Path, tmp_path: Path, gpu: MockDevice):
    file = tiny_text / "tiny.yml"
    for arguments in (("doctor", file), ("find-batch-size", file, "--up-to", 2), ("check-gradients", file)):
        code, _, err = vaak(*arguments, f"run_dir={tmp_path}", "--device", "cuda")
        assert code == 0, err


def test_export(vaak: Any, tiny_run: Path, tmp_path: Path, gpu: MockDevice):
    assert vaak("export", tiny_run, "--output", tmp_path / "out")[0] == 0


@pytest.mark.parametrize("kind", ["voice", "whisper"])
def test_export_for_sherpa_onnx(vaak: Any, kind: str, device_library: Path, tmp_path: Path):
    """Of runs that were trained on a GPU, in bf16: the same files on a machine with it and on one without."""
    corpus, run, options = tmp_path / "corpus", tmp_path / "run", list[Any]()
    with plugged_in(device_library):
        if kind == "voice":
            tiny_voice.train(tiny_voice.write_voice(corpus), run, "training.device=cuda")
            tiny_vocoder.train(corpus, tmp_path / "vocoder", "training.device=cuda")
            options = ["--vocoder", tmp_path / "vocoder"]
        else:
            tiny_listener.write_listener(corpus)
            base = write_whisper(tmp_path / "base", max_target_positions=64)
            tiny_listener.train(corpus, run, "training.device=cuda", "training.max_steps=2", model={"base": str(base)})
        export = ("export", run, "--format", "sherpa-onnx", *options, "--quantization", "int8", "--output")
        code, _, err = vaak(*export, tmp_path / "with")
        assert (code, err) == (0, "")
    said = (run / "train.log").read_text()
    assert "on cuda" in said
    assert "precision bf16" in said
    assert vaak(*export, tmp_path / "without")[0] == 0
    made, expected = (computations(tmp_path / folder) for folder in ("with", "without"))
    assert ("model.int8.onnx" if kind == "voice" else "decoder.int8.onnx") in made
    assert made == expected


def computations(folder: Path) -> dict[str, bytes]:
    """The files of an export, but for the folder (README.md) and where in torch's exporter each node was made."""
    found = contents(folder)
    del found["README.md"]
    for name in [name for name in found if name.endswith(".onnx")]:
        model = onnx.load(folder / name)
        for node in model.graph.node:
            node.ClearField("metadata_props")
        found[name] = model.SerializeToString(deterministic=True)
    return found


def test_transcribe(vaak: Any, tmp_path: Path, gpu: MockDevice):
    tiny_listener.write_listener(tmp_path / "corpus")
    options = ("training.max_steps=20", "data.decoding.max_new_tokens=8", "training.optimizer.lr=0.01")
    run = tiny_listener.train(tmp_path / "corpus", tmp_path / "run", *options)
    files = sorted((tmp_path / "corpus").rglob("*.wav"))[:3]
    for method in ("greedy", "beam"):
        cpu, cuda = on_both(vaak, "transcribe", run, *files, "--json", "--method", method, *EXACTLY)
        assert cpu == cuda


def test_transcribe_with_times(vaak: Any, tmp_path: Path, gpu: MockDevice):
    tiny_listener.write_listener(tmp_path / "corpus")
    base = write_whisper(tmp_path / "base", max_target_positions=32, num_times=101)
    run = tiny_listener.train(tmp_path / "corpus", tmp_path / "run", "training.max_steps=1", model={"base": str(base)})
    file = sorted((tmp_path / "corpus").rglob("*.wav"))[0]
    thresholds = ("--temperature-step", 0.5, "--logprob-threshold", -1.5, "--no-speech-threshold", 0.9)
    options = ("--timestamps", "word", "--language", "auto", "--prompt", "so", "--long-form", "seek", *thresholds)
    cpu, cuda = on_both(vaak, "transcribe", run, file, "--json", *options, *EXACTLY)
    assert cpu == cuda
    assert "words" in cpu


def test_speak(vaak: Any, tmp_path: Path, gpu: MockDevice):
    run = tmp_path / "voice"
    tiny_voice.train(tiny_voice.write_voice(tmp_path / "corpus"), run)
    code, _, err = vaak("speak", run, "He saw me.", "-o", tmp_path / "out.wav", "--device", "cuda", *EXACTLY)
    assert code == 0, err


def test_diarize(vaak: Any, tmp_path: Path, gpu: MockDevice):
    tiny_diarizer.write_corpus(tmp_path / "corpus")
    run = tmp_path / "run"
    tiny_diarizer.train(tmp_path / "corpus", run)
    file = next((tmp_path / "corpus" / "test").glob("*.wav"))
    cpu, cuda = on_both(vaak, "diarize", run, file, *EXACTLY)
    assert cpu == cuda
    save_xvector(tmp_path / "xvector")
    frames = save_onnx(tmp_path / "frames.onnx", ("row", "frame", 40), 1)
    for encoder in (tmp_path / "xvector", frames):  # windows are joined by what it makes of their speakers
        cpu, cuda = on_both(vaak, "diarize", run, file, *EXACTLY, "--speaker-encoder", encoder)
        assert cpu == cuda
        assert "SPEAKER" in cpu
