"""What real pretrained weights learn, on few data: rates by how a model begins, and proof against what it was before.

    python benchmarks/pretrained.py rates --weights W --data D
    python benchmarks/pretrained.py proof --weights W --data D

W has the folders ``minilm`` (all-MiniLM-L6-v2), ``whisper-tiny.en``, ``whisper-base`` and ``gemma`` (Gemma 3 270M) as
downloaded; D is the folder of data (docs/results.md). Each trial trains a base in one way at one rate, and appends a
line of JSON to FOLDER/rates.jsonl; started again, it skips those that are there, and prints the tables. Of each seed
and way the run with the best rate on validation is kept for ``proof``. That evaluates it on test next to the base as it
was, or to the baselines of ``vaak baseline``, with intervals (95 % of 1,000 bootstrap samples of examples), exports it,
and compares what transformers (onnxruntime, of classifiers) makes of the export with what Vaak makes of the run.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import soundfile
import torch
import transformers

import vaak
from vaak.config.load import load_values
from vaak.runs.evaluate import make_baselines, make_data_overrides
from vaak.runs.start import train
from vaak.study.compare import Examples, compare_runs, evaluate_examples

HERE = Path("pretrained.yml")
"""The place that messages give for options in memory."""
INTENTS, EACH = 50, {"train": 4, "valid": 4, "test": 10}
UTTERANCES = {"train": slice(0, 4), "valid": slice(4, 6), "test": slice(6, 10)}
"""Of the ten of each reader."""
WINDOW_SECONDS = 29.0
HINDI_BYTES = {"train": 60_000, "valid": 4_000, "test": 8_000}
HINDI_SOURCES = ("commonvoice", "premchand", "wiki")
LINEAR = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

Options = dict[str, Any]
TRIAL = ("base", "how", "seed", "rate")
"""The options by which trials differ."""


@dataclass(frozen=True)
class Base:
    """A pretrained model, what it is taught, and at which rates.

    ``draw`` writes the data of a seed into a folder. ``rates`` has those of each way. ``metric`` is the figure of the
    tables; ``higher`` says whether more of it is better. ``outputs`` gives those of a run, and of its
    export to ``format``: transformers has no BERT for classification by the mean of its tokens.
    """

    folder: str
    draw: Callable[[Path, Path, int], None]
    options: Callable[[Path, Path, str], Options]
    rates: Mapping[str, tuple[float, ...]]
    metric: str
    outputs: Callable[[Any, Path], tuple[list[str], list[str]]]
    format: str = "hf"
    higher: bool = False


def draw_intents(data: Path, folder: Path, seed: int) -> None:
    """Write texts of some of clinc150's intents: other ones for each seed."""
    splits = {split: json.loads((data / "classification" / "clinc150" / f"{split}.json").read_text()) for split in EACH}
    rng = random.Random(seed)
    known = sorted({row["label"] for row in splits["train"]})
    intents = rng.sample(known, min(INTENTS, len(known)))
    for split, rows in splits.items():
        kept = []
        for intent in intents:
            own = [{"text": row["text"], "label": row["label"]} for row in rows if row["label"] == intent]
            kept += rng.sample(own, min(EACH[split], len(own)))
        (folder / f"{split}.json").write_text(json.dumps(kept))


def draw_readings(data: Path, folder: Path, seed: int) -> None:
    """Write manifests of read speech; for training, a reader's utterances are joined, up to a window of Whisper's."""
    del seed  # There is little of it: all seeds have the same.
    source = data / "read_speech"
    rows = [json.loads(line) for line in (source / "manifest.jsonl").read_text().splitlines()]
    readers = sorted({row["speaker"] for row in rows})
    by_reader = {name: [row for row in rows if row["speaker"] == name] for name in readers}
    for split, part in UTTERANCES.items():
        written = []
        for reader, own in by_reader.items():
            if len(own) < 10:
                continue
            groups = join(own[part]) if split == "train" else [[row] for row in own[part]]
            for group in groups:
                written.append(write_joined(source, folder, reader, group))
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in written))


def join(rows: Iterable[Options]) -> list[list[Options]]:
    """Return the rows in groups that fit into a window, in their order."""
    groups: list[list[Options]] = []
    for row in rows:
        if not groups or sum(one["duration"] for one in groups[-1]) + row["duration"] > WINDOW_SECONDS:
            groups.append([])
        groups[-1].append(row)
    return groups


def write_joined(source: Path, folder: Path, reader: str, group: list[Options]) -> Options:
    """Write the audio of some utterances one after another; return the row of a manifest."""
    parts = [soundfile.read(source / row["audio"], dtype="float32") for row in group]
    path = folder / "audio" / f"{group[0]['id']}.flac"
    path.parent.mkdir(exist_ok=True)
    soundfile.write(path, np.concatenate([samples for samples, _ in parts]), parts[0][1])
    return {"audio": f"audio/{path.name}", "text": " ".join(row["text"] for row in group), "speaker": reader}


def draw_hindi(data: Path, folder: Path, seed: int) -> None:
    """Write lines of each source of Hindi, in proportion, up to a number of bytes; test is the same for all seeds."""
    for split, size in HINDI_BYTES.items():
        rng = random.Random(0 if split != "train" else seed)
        lines: list[str] = []
        texts = {name: (data / "hindi" / f"{name}.{split}.txt").read_text("utf-8") for name in HINDI_SOURCES}
        whole = sum(len(text.encode()) for text in texts.values())
        for text in texts.values():
            own, left = text.splitlines(), round(size * len(text.encode()) / whole)
            begin = rng.randrange(len(own))
            for line in own[begin:] + own[:begin]:
                if left <= 0:
                    break
                lines.append(line)
                left -= len(line.encode()) + 1
        (folder / f"{split}.txt").write_text("".join(f"{line}\n" for line in lines), "utf-8")


def classifier(base: Path, data: Path, how: str) -> Options:
    """Options of a classifier on an encoder: all of it, adapters of it, or its head alone."""
    model: Options = {"architecture": "transformer", "pretrained_model": str(base), "pooling": "mean"}
    if how == "lora":
        model["lora"] = {"rank": 8, "alpha": 16, "targets": ["query", "value"]}
    frozen = {"freeze": [{"match": "^transformer"}]} if how == "frozen" else {}
    files = {split: [str(data / f"{split}.json")] for split in EACH}
    corpus = {"type": "files", **files, "label_columns": ["label"]}
    return {
        "task": "classification",
        "model": model,
        "data": {"max_length": 64, "corpus": corpus},
        "training": {"epochs": 6, "batch_size": 16, "batching": "bucketed", **frozen},
    }


def recogniser(base: Path, data: Path, how: str) -> Options:
    """Options of a Whisper."""
    model: Options = {"base": str(base)}
    if how == "lora":
        model["lora"] = {"rank": 16, "alpha": 32, "targets": ["q_proj", "v_proj"]}
    files = {split: [str(data / f"{split}.jsonl")] for split in UTTERANCES}
    return {
        "task": "asr",
        "datasets": [{"name": "readings", "type": "json", **files}],
        "model": model,
        "data": {"language": "en", "group": "speaker"},
        "training": {"max_steps": 10, "batch_size": 2, "validation": {"batch_size": 7}},
    }


def language_model(base: Path, data: Path, how: str) -> Options:
    """Options of a causal language model."""
    model: Options = {"pretrained": str(base)}
    if how == "lora":
        model["lora"] = {"rank": 8, "alpha": 16, "targets": LINEAR}
    files = {split: [str(data / f"{split}.txt")] for split in HINDI_BYTES}
    return {
        "task": "lm",
        "model": model,
        "data": {
            "corpus": {"type": "text", "document": "file", **files},
            "layout": "stream",
            "max_length": 128,
            "stride": 64,
        },
        "training": {"max_steps": 8, "batch_size": 4, "validation": {"batch_size": 8}},
    }


QUIET = {"interval": 1_000_000, "tensorboard": False, "progress_bar": False, "system_metrics": False, "examples": False}


def data_folder(asked: argparse.Namespace, name: str, seed: int) -> Path:
    """The folder with the data of a seed, which are drawn where they aren't there."""
    draw = BASES[name].draw
    folder: Path = (asked.folder / "data" / f"{draw.__name__.removeprefix('draw_')}-{seed}").resolve()
    if not (folder / "drawn").exists():
        folder.mkdir(parents=True, exist_ok=True)
        draw(asked.data, folder, seed)
        (folder / "drawn").touch()
    return folder


def train_options(asked: argparse.Namespace, trial: Options) -> Options:
    """Return the whole configuration of a trial."""
    name, how, seed, rate = (trial[key] for key in TRIAL)
    base = BASES[name]
    options = base.options((asked.weights / base.folder).resolve(), data_folder(asked, name, seed), how)
    own = options["training"]
    options["training"] = {
        **own,
        "random_seed": seed,
        "mixed_precision": "no",
        "optimizer": {"type": "adamw", "lr": rate},
        "scheduler": {"type": "linear", "warmup_ratio": 0.1},
        "validation": {"interval": None, "interval_epochs": 1000, "at_start": False, **own.get("validation", {})},
        "checkpoint": {"interval": 1_000_000},
        "memory": {"rehearsal": False},
        "logging": QUIET,
        "performance": {"num_workers": 0, "num_threads": 1},
    }
    title = f"{name}-{how}-{seed}-{rate:g}"
    return {**options, "name": title, "run_dir": str(asked.folder / "runs" / title)}


def read_rows(path: Path) -> list[Options]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, row: Options) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(json.dumps(row), flush=True)


def is_better(base: Base, one: Options, other: Options) -> bool:
    """Whether a row's figure on validation is better than another's; ties go by the loss."""
    sign = -1 if base.higher else 1
    first, second = ((sign * row[f"val_{base.metric}"], row["val_loss"]) for row in (one, other))
    return first < second


def run_rates(asked: argparse.Namespace) -> None:
    """Train at every rate; the best run of each seed and way stays on disk."""
    path = asked.folder / "rates.jsonl"
    for trial in itertools.chain.from_iterable(list_trials(asked, name) for name in asked.only):
        rows = read_rows(path)
        if any(trial.items() <= row.items() for row in rows):
            continue
        begun = time.perf_counter()
        options = train_options(asked, trial)
        shutil.rmtree(options["run_dir"], ignore_errors=True)  # one that was cut
        done = train(load_values([{}, options], HERE))
        done.require_not_stopped(options["name"], "start again to train it from scratch")
        row = {**trial, "steps": done.step, "seconds": round(time.perf_counter() - begun, 1)}
        row |= {key: value for key, value in done.metrics.items() if key.startswith("val_")}
        row["run"] = str(done.directory)
        append(path, row)
        drop_worse(BASES[trial["base"]], [*rows, row], row)


def list_trials(asked: argparse.Namespace, name: str) -> list[Options]:
    """Return the base, way, seed and rate of each trial of a base."""
    ways = [(how, asked.rates or rates) for how, rates in BASES[name].rates.items() if how in asked.ways]
    return [
        {"base": name, "how": how, "seed": seed, "rate": rate}
        for seed in asked.seeds
        for how, rates in ways
        for rate in rates
    ]


def drop_worse(base: Base, rows: list[Options], last: Options) -> None:
    """Delete the runs of the last row's seed and way, except the best."""
    own = [row for row in rows if all(row[key] == last[key] for key in ("base", "how", "seed"))]
    best = own[0]
    for row in own[1:]:
        best = row if is_better(base, row, best) else best
    for row in own:
        if row is not best:
            shutil.rmtree(row["run"], ignore_errors=True)


def print_rates(asked: argparse.Namespace) -> None:
    """A table for each base and way: figures of all seeds on validation, by rate."""
    rows = read_rows(asked.folder / "rates.jsonl")
    for name, base in BASES.items():
        for how in base.rates:
            own = [row for row in rows if row["base"] == name and row["how"] == how]
            if not own:
                continue
            print(f"\n{name}, {how}: {own[0]['steps']} steps\n\n| rate | val {base.metric} | val loss |\n|---|---|---|")
            for rate in sorted({row["rate"] for row in own}):
                figures = [row for row in own if row["rate"] == rate]
                cells = [spread([row[key] for row in figures]) for key in (f"val_{base.metric}", "val_loss")]
                print(f"| {rate:g} | {' | '.join(cells)} |")


def spread(values: list[float]) -> str:
    """The mean and each value."""
    each = ", ".join(f"{value:.4g}" for value in values)
    return f"{statistics.mean(values):.4g} ({each})" if len(values) > 1 else each


def run_proof(asked: argparse.Namespace) -> None:
    """Evaluate the runs that are kept on test, and what they began with."""
    path = asked.folder / "proof.jsonl"
    rows = read_rows(asked.folder / "rates.jsonl")
    for name in asked.only:
        base = BASES[name]
        before: Examples | None = None
        for row in rows:
            if row["base"] != name or row["how"] not in asked.ways or not Path(row["run"], "config.yml").exists():
                continue
            place = {key: row[key] for key in TRIAL}
            if any(place.items() <= one.items() for one in read_rows(path)):
                continue
            if name != "minilm" and before is None:
                before = evaluate_base(asked, name, row)
                append(path, {"base": name, "how": "before", **figures_by_group(base, before)})
            after = evaluate_examples(Path(row["run"]), [], [], "test", "cpu")
            found = {**place, **figures_by_group(base, after)}
            if before is not None:
                (compared,) = compare_runs([before, after], base.metric).comparisons
                found |= {"difference": compared.difference, "difference_interval": compared.interval}
            else:
                loaded = load_values([{}, train_options(asked, row)], HERE)
                baselines, _ = make_baselines(loaded, "test")
                found["baselines"] = {method: one[base.metric] for method, one in baselines.figures.items()}
            append(path, {**found, **check_export(base, Path(row["run"]))})


def evaluate_base(asked: argparse.Namespace, name: str, row: Options) -> Examples:
    """Evaluate the untrained base on the test data of a run, read as the run reads it."""
    weights, data = (asked.weights / BASES[name].folder).resolve(), data_folder(asked, name, row["seed"])
    (file,) = data.glob("test.*")
    of_run = train_options(asked, row)["data"]
    same = [f"data.{key}={of_run[key]}" for key in ("layout", "max_length", "stride", "group") if key in of_run]
    return evaluate_examples(weights, [], [*make_data_overrides(weights, file, "test"), *same], "test", "cpu")


def figures_by_group(base: Base, examples: Examples) -> Options:
    """The figure of all examples with its interval, and of each reader: names of recordings begin with the reader's."""
    names = examples.select_names(base.metric)
    found: Options = {"examples": len(names), base.metric: examples.figures[base.metric]}
    found["interval"] = interval(examples, names, base.metric)
    readers = sorted({part for name in names if (part := Path(name).stem.split("-")[0]).isdigit()})
    if base.metric == "wer" and len(readers) > 1:
        keys = examples.keys
        for reader in readers:
            own = [name for name in names if Path(name).stem.split("-")[0] == reader]
            total = examples.table(own, keys).sum(0, keepdims=True)
            found[f"wer/{reader}"] = float(examples.figure("wer", total, keys)[0])
    return found


def interval(examples: Examples, names: list[str], metric: str) -> tuple[float, float]:
    """95 % of bootstrap samples of examples."""
    rng, table = np.random.default_rng(0), examples.table(names, examples.keys)
    drawn = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), 1000) @ table
    low, high = np.quantile(examples.figure(metric, drawn, examples.keys), [0.025, 0.975])
    return float(low), float(high)


def check_export(base: Base, run: Path) -> Options:
    """Export a run, and count on how many inputs that gives in its tool what Vaak gives."""
    folder = run / base.format
    command = [sys.executable, "-m", "vaak", "export", str(run), "--format", base.format, "--output", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"export": (done.stderr or done.stdout).strip().splitlines()[-1]}
    ours, theirs = base.outputs(vaak.open(run, device="cpu"), folder)
    shutil.rmtree(folder)
    return {"export": f"{sum(one == other for one, other in zip(ours, theirs, strict=True))} of {len(ours)} equal"}


def label_both(run: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Return the labels that a run and its export give 100 of the test texts, which transformers' tokenizer reads."""
    (file,) = run.config.data.corpus.test
    texts = [row["text"] for row in json.loads(Path(file).read_text())][:100]
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    classes = json.loads(session.get_modelmeta().custom_metadata_map["classes"])["label"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(run.config.model.pretrained_model)
    read = tokenizer(texts, padding=True, return_tensors="np")
    (logits,) = session.run(None, {"inputs": read["input_ids"], "mask": read["attention_mask"] > 0})
    return [one.labels["label"][0] for one in run.predict(texts)], [classes[number] for number in logits.argmax(-1)]


def transcribe_both(run: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Return the transcripts that a run and its export write of seven of the test recordings, one of each reader."""
    file = Path(run.config.datasets[0].test[0])
    paths = [file.parent / json.loads(line)["audio"] for line in file.read_text().splitlines()][::4]
    model = transformers.WhisperForConditionalGeneration.from_pretrained(folder)
    processor = transformers.WhisperProcessor.from_pretrained(folder)
    theirs = []
    for path in paths:
        samples, rate = soundfile.read(path, dtype="float32")
        features = processor(samples, sampling_rate=rate, return_tensors="pt").input_features
        theirs += processor.batch_decode(model.generate(features), skip_special_tokens=True)
    return [one.text.strip() for one in run.predict(paths)], [text.strip() for text in theirs]


def continue_both(run: Any, folder: Path) -> tuple[list[str], list[str]]:
    """Return how a run and its export continue four lines, by 16 tokens, always the most probable."""
    (file,) = run.config.data.corpus.test
    prompts = [" ".join(line.split()[:4]) for line in Path(file).read_text("utf-8").splitlines() if line][:4]
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        written = model.generate(ids, max_new_tokens=16, do_sample=False)
        theirs.append(prompt + tokenizer.decode(written[0, ids.shape[1] :], skip_special_tokens=True))
    settings = run.task.sampling(max_new_tokens=16, temperature=0.0)
    return run.predict(prompts, settings=settings), theirs


def print_proof(asked: argparse.Namespace) -> None:
    """Print a line for each base and each run on test: figure, interval, difference, and the export's figure."""
    rows = read_rows(asked.folder / "proof.jsonl")
    if rows:
        titles = ("base", "", "seed", "rate", "test (95 %)", "difference (95 %)", "as exported")
        print(f"\n| {' | '.join(titles)} |\n|{'---|' * len(titles)}")
    for row in rows:
        base = BASES[row["base"]]
        figure = in_words(row[base.metric], row["interval"])
        change = in_words(row["difference"], row["difference_interval"]) if "difference" in row else "–"
        cells = (
            row["base"],
            row["how"],
            row.get("seed", "–"),
            row.get("rate", "–"),
            figure,
            change,
            row.get("export", "–"),
        )
        print(f"| {' | '.join(map(str, cells))} |")
        for method, one in row.get("baselines", {}).items():
            print(f"| | {method} | {row['seed']} | – | {one:.4g} | – | – |")
        by_reader = [
            f"{key.removeprefix('wer/')} {100 * one:.1f}" for key, one in row.items() if key.startswith("wer/")
        ]
        if by_reader:
            print(f"  WER by reader, %: {', '.join(by_reader)}")


def in_words(figure: float, interval: tuple[float, float]) -> str:
    return f"{figure:.4g} ({interval[0]:.4g} … {interval[1]:.4g})"


WHOLE_WHISPER, ADAPTED_WHISPER = (3e-6, 1e-5, 3e-5, 1e-4, 3e-4), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
UPPER = (2e-4, 6e-4, 2e-3, 6e-3, 2e-2)
WHISPER = {"whole": WHOLE_WHISPER, "lora": ADAPTED_WHISPER}
MINILM = {"whole": (2e-5, 6e-5, 2e-4, 6e-4, 2e-3), "lora": UPPER, "frozen": UPPER}
GEMMA = {"lora": (6e-5, 2e-4, 6e-4, 2e-3, 6e-3)}
BASES = {
    "minilm": Base("minilm", draw_intents, classifier, MINILM, "accuracy", label_both, "onnx", higher=True),
    "tiny.en": Base("whisper-tiny.en", draw_readings, recogniser, WHISPER, "wer", transcribe_both),
    "base": Base("whisper-base", draw_readings, recogniser, WHISPER, "wer", transcribe_both),
    "gemma": Base("gemma", draw_hindi, language_model, GEMMA, "bits_per_byte", continue_both),
}


STUDIES = {"rates": run_rates, "proof": run_proof}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", nargs="+", choices=STUDIES, help="one after another")
    parser.add_argument("--weights", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path("runs/pretrained"))
    parser.add_argument("--only", nargs="+", choices=BASES, default=["minilm", "tiny.en", "gemma"])
    parser.add_argument("--ways", nargs="+", choices=("whole", "lora", "frozen"), default=["whole", "lora", "frozen"])
    parser.add_argument("--rates", type=float, nargs="+", help="in place of those of each base and way")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    asked = parser.parse_args()
    torch.set_num_threads(1)
    asked.folder.mkdir(parents=True, exist_ok=True)
    for study in asked.studies:
        STUDIES[study](asked)
    print_rates(asked)
    print_proof(asked)


if __name__ == "__main__":
    main()
