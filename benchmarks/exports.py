"""Sizes and speed of one model's exports, each in the tool that it is for, in turns in one process on one thread.

A language model scores rows of tokens, a recogniser by CTC transcribes a clip of noise, a voice with its vocoder
speaks; all hardly trained, so only sizes and times mean something. Times are processor seconds; ``Vaak ÷ tool`` is the
ratio of the medians, above 1 where the tool is faster. Tools that aren't installed are left out.

    python benchmarks/exports.py
    python benchmarks/exports.py --width 512 --layers 8 --rounds 9
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vaak.core.errors import UserError
from vaak.runs.open_run import open_run
from vaak.text.speech.processor import PhonemeProcessor, Processed

HERE = Path(__file__).resolve().parents[1]
TOKENS = 128
Tool = Callable[[], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0, help="of the clip")
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for title, ways in (
            ("language model", language_model(Path(folder), given.width, given.layers)),
            ("CTC", recogniser(Path(folder), given.width, given.layers, given.seconds)),
            ("voice", voice(Path(folder), given.width, given.layers)),
        ):
            report(title, ways, given.rounds)


def report(title: str, ways: dict[str, tuple[Path, Tool]], rounds: int) -> None:
    """Print a table of the size of each way's files, and of its time by Vaak's."""
    took: dict[str, list[float]] = {name: [] for name in ways}
    for round_ in range(rounds + 1):
        for name, (_, call) in ways.items():
            begun = time.process_time()
            call()
            if round_:  # the first warms up
                took[name].append(time.process_time() - begun)
    medians = {name: statistics.median(times) for name, times in took.items()}
    own = next(iter(medians.values()))
    print(f"\n| {title} | MB | Vaak ÷ tool |\n|---|---|---|")
    for name, (file, _) in ways.items():
        print(f"| {name} | {size_of(file) / 1e6:.1f} | {own / medians[name]:.2f} |")


def size_of(path: Path) -> int:
    """The bytes of a file, or of the files of weights in a folder."""
    endings = (".safetensors", ".bin", ".onnx", ".data", ".gguf")
    files = [path] if path.is_file() else [one for one in path.iterdir() if one.name.endswith(endings)]
    return sum(one.stat().st_size for one in files)


def vaak(*arguments: str) -> None:
    subprocess.run([sys.executable, "-c", "from vaak.cli.main import main; main()", *arguments], check=True, cwd=HERE)


def exported(run: Path, name: str, *more: str) -> Path:
    """Export a run in a format, with or without a type of weights (``ct2 int8``), and return the folder."""
    format, _, quantization = name.partition(" ")
    folder = run.parent / f"{run.name}-{name.replace(' ', '-')}"
    typed = ["--quantization", quantization] if quantization else []
    vaak("export", str(run), "--format", format, "--output", str(folder), *typed, *more)
    return folder


def language_model(folder: Path, width: int, layers: int) -> dict[str, tuple[Path, Tool]]:
    run = folder / "lm"
    sizes = (f"model.d_model={width}", f"model.num_layers={layers}", "model.num_heads=4", "data.max_length=256")
    vaak("train", "configs/quickstart.yml", f"run_dir={run}", "training.max_steps=1", "training.device=cpu", *sizes)
    opened: Any = open_run(run, device="cpu")
    ids = np.random.default_rng(0).integers(5, opened.model.vocab_size, TOKENS).tolist()
    rows = torch.tensor([ids])

    def scored(model: Any) -> Tool:
        def call() -> None:
            with torch.inference_mode():
                model(rows)

        return call

    ways = {"Vaak": (opened.checkpoint / "model.safetensors", scored(opened.model.eval()))}
    try_to(ways, "transformers (hf)", lambda: _transformers(exported(run, "hf"), scored))
    try_to(ways, "onnxruntime (onnx)", lambda: _onnxruntime(exported(run, "onnx"), "model", {"inputs": rows.numpy()}))
    for kind in ("float32", "int8"):
        try_to(ways, f"CTranslate2 (ct2 {kind})", partial(_ctranslate2, run, kind, ids))
    for kind in ("f32", "f16", "q8_0"):
        try_to(ways, f"llama.cpp (gguf {kind})", partial(_llama_cpp, run, kind, ids))
    return ways


def recogniser(folder: Path, width: int, layers: int, seconds: float) -> dict[str, tuple[Path, Tool]]:
    run = folder / "ctc"
    sizes = (f"model.conformer.d_model={width}", f"model.conformer.num_layers={layers}", "data.max_duration=30")
    few = ("datasets.0.num_voices=3", "datasets.0.num_sentences=4", "datasets.0.train_fraction=0.34")
    fewer = ("datasets.0.valid_fraction=0.33", "training.max_steps=1", "training.device=cpu", f"run_dir={run}")
    vaak("train", "configs/asr/ctc.yml", *few, *fewer, *sizes)
    opened: Any = open_run(run, device="cpu")
    samples = 0.1 * np.random.default_rng(0).standard_normal(round(seconds * 16_000)).astype(np.float32)
    transcriber = opened.task.transcriber(opened.model)
    features = transcriber.features(samples)
    ways: dict[str, tuple[Path, Tool]] = {
        "Vaak": (opened.checkpoint / "model.safetensors", lambda: transcriber.texts([transcriber.features(samples)]))
    }
    given = {"features": features[None], "feature_lengths": np.array([features.shape[1]])}
    try_to(ways, "onnxruntime (onnx), without features", lambda: _onnxruntime(exported(run, "onnx"), "ctc", given))
    made = exported(run, "sherpa-onnx int8")
    for name in ("model.onnx", "model.int8.onnx"):
        try_to(ways, f"sherpa-onnx ({name})", partial(_sherpa_onnx, made / name, samples))
    return ways


def voice(folder: Path, width: int, layers: int) -> dict[str, tuple[Path, Tool]]:
    run, vocoder = folder / "tts", folder / "vocoder"
    few = ("datasets.0.num_sentences=40", "datasets.0.train_fraction=0.8", "datasets.0.valid_fraction=0.1")
    sizes = (f"model.global_config.d_model={width}", f"model.global_config.num_layers={layers}")
    for name, made, steps, more in (("tts", run, 20, sizes), ("vocoder", vocoder, 1, ())):
        options = ("training.device=cpu", f"training.max_steps={steps}", f"run_dir={made}", *few, *more)
        vaak("train", f"configs/{name}/quickstart.yml", *options)
    opened: Any = open_run(run, device="cpu")
    speaker = opened.task.speaker(opened.model, vocoder=str(vocoder))
    text = "The old man bought a red door, and the young woman carried it to the station on foot."
    processed = speaker.processor.process(text)
    print(f"a sentence of {len(speaker.sentence(text, processed.ids).samples) / speaker.sampling_rate:.1f} s")
    weights = folder / "weights"
    weights.mkdir()
    for name, one in (("voice", opened.model), ("generator", speaker.vocoder.generator)):
        torch.save(one.state_dict(), weights / f"{name}.bin")
    ways: dict[str, tuple[Path, Tool]] = {"Vaak": (weights, lambda: speaker.sentence(text, processed.ids))}
    folder = exported(run, "sherpa-onnx int8", "--vocoder", str(vocoder))
    for name in ("model.onnx", "model.int8.onnx"):
        try_to(ways, f"sherpa-onnx ({name})", partial(_sherpa_onnx_voice, folder / name, speaker.processor, processed))
    return ways


def try_to(ways: dict[str, tuple[Path, Tool]], name: str, make: Callable[[], tuple[Path, Tool]]) -> None:
    try:
        ways[name] = make()
    except (ImportError, UserError) as error:
        print(f"{name} is left out: {error}")


def _transformers(folder: Path, scored: Callable[[Any], Tool]) -> tuple[Path, Tool]:
    import transformers

    auto: Any = transformers.AutoModelForCausalLM
    return folder, scored(auto.from_pretrained(folder).eval())


def _onnxruntime(folder: Path, name: str, inputs: dict[str, np.ndarray]) -> tuple[Path, Tool]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(folder / f"{name}.onnx", options)
    return folder, lambda: session.run(None, inputs)


def _ctranslate2(run: Path, kind: str, ids: list[int]) -> tuple[Path, Tool]:
    import ctranslate2

    folder = exported(run, f"ct2 {kind}")
    generator = ctranslate2.Generator(str(folder), device="cpu", intra_threads=1)
    return folder, lambda: np.array(generator.forward_batch([ids]))


def _llama_cpp(run: Path, kind: str, ids: list[int]) -> tuple[Path, Tool]:
    import llama_cpp

    folder = exported(run, f"gguf {kind}")
    model = llama_cpp.Llama(
        str(folder / "model.gguf"), n_ctx=TOKENS, logits_all=True, verbose=False, n_threads=1, n_threads_batch=1
    )

    def call() -> None:
        model.reset()
        model.eval(ids)

    return folder, call


def _sherpa_onnx(file: Path, samples: np.ndarray) -> tuple[Path, Tool]:
    import sherpa_onnx

    model = sherpa_onnx.OfflineRecognizer.from_zipformer_ctc(str(file), str(file.with_name("tokens.txt")))

    def call() -> None:
        stream = model.create_stream()
        stream.accept_waveform(16_000, samples)
        model.decode_stream(stream)

    return file, call


def _sherpa_onnx_voice(file: Path, processor: PhonemeProcessor, processed: Processed) -> tuple[Path, Tool]:
    import sherpa_onnx

    from vaak.tasks.tts.sherpa import assign_characters

    files = {"model": file, **{name: file.with_name(f"{name}.txt") for name in ("lexicon", "tokens")}}
    vits = sherpa_onnx.OfflineTtsVitsModelConfig(**{name: str(one) for name, one in files.items()})
    config = sherpa_onnx.OfflineTtsModelConfig(vits=vits, num_threads=1)
    model = sherpa_onnx.OfflineTts(sherpa_onnx.OfflineTtsConfig(config))
    characters, how = assign_characters(processor), sherpa_onnx.GenerationConfig()
    how.silence_scale, how.phoneme_codepoints = 1.0, [[ord(characters[one]) for one in processed.symbols]]
    return file, lambda: model.generate("", how)


if __name__ == "__main__":
    main()
