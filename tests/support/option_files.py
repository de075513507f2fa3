"""The data that options are varied on, of each task, in a folder: FOLDER in option_tables.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile

import tiny_runs
import toy_speech
from option_sweep import Sweep
from option_tables import BASES
from toy_corpora import write_ami
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.recipe_corpus import prepare_corpus
from vaak.config.load import load
from vaak.runs.start import train

OWN = """\
import torch
from vaak.core.batch import Term


class SignDescent(torch.optim.Optimizer):
    def __init__(self, params, lr, momentum=0.9):
        super().__init__(params, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    mean = self.state[parameter].setdefault("mean", torch.zeros_like(parameter))
                    mean.lerp_(parameter.grad, 1 - group["momentum"])
                    parameter.sub_(mean.sign(), alpha=group["lr"])


class Stairs:
    def __init__(self, every=1):
        self.every = every

    def __call__(self, step, total_steps):
        return 0.5 ** ((step - 1) // self.every)


def short(outputs, targets, valid, per):
    if len(outputs) > 4:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB")
    return Term(outputs.sum() * 0, per)


class Characters:
    def __init__(self, unknown="?"):
        self.characters = [unknown]

    def train(self, texts):
        self.characters += sorted({one for text in texts for one in text} - set(self.characters))

    def encode(self, text):
        ids = {one: place for place, one in enumerate(self.characters)}
        return [ids.get(one, 0) for one in text]

    def decode(self, ids):
        return "".join(self.characters[one] for one in ids)

    def __len__(self):
        return len(self.characters)

    def state_dict(self):
        return {"characters": self.characters}

    def load_state_dict(self, state):
        self.characters = state["characters"]
"""


def sweep_of(task: str, folder: Path) -> Sweep:
    """The runs of a task's options, in a folder, with its data."""
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "own.py").write_text(OWN)
    (data / "base.yml").write_text(BASES[task].replace("FOLDER", str(data)))
    {"lm": _write_texts, "seq2seq": _write_pairs, "diarization": _write_recordings}[task](data)
    return Sweep(task, folder, data / "base.yml")


def _write_texts(data: Path) -> None:
    """Texts, some of them twice, minimal pairs, and another run of the same model."""
    tiny_runs.write_corpus(data)
    lines = (data / "train.txt").read_text().splitlines()
    (data / "train.txt").write_text("\n".join([*lines, *lines[:30]]))
    (data / "more.txt").write_text("\n".join(lines[:50]))
    (data / "torn.txt").write_bytes("\n".join(lines).encode() + b"\n\xe0\xa4\n")
    columns = [{"text": line, "other": f"{line} {line}"} for line in lines]
    _write_lines(data / "train.jsonl", columns)
    _write_hub(data / "hub", columns, columns[50:])
    _write_hub(data / "other_hub", columns[100:], columns)
    _write_lines(data / "pairs.jsonl", [{"sentence_good": lines[1], "sentence_bad": lines[2], "UID": "some"}])
    train(load([data / "base.yml"], [f"run_dir={data / 'other'}"]))
    shutil.copytree(data / "other" / "prepared" / "tokenizer", data / "tokenizer")


def _write_pairs(data: Path) -> None:
    """Pairs with two references each, some of them twice, and parallel files."""
    for split, size in (("train", 40), ("valid", 6)):
        sides = [(f"a boy reads {number} books of {split}", f"किताब {number} {split}") for number in range(size)]
        pairs = [{"en": one, "hi": [two, f"{two} फिर"], "other": f"{one} and {two}"} for one, two in sides]
        _write_lines(data / f"{split}.jsonl", [*pairs, *pairs[:5]])
        (data / f"{split}.en").write_text("\n".join(one for one, _ in sides))
        (data / f"{split}.hi").write_text("\n".join(two for _, two in sides))
    for split, name in (("train", "swapped.hi"), ("valid", "swapped_valid.hi")):
        (data / name).write_text("\n".join(reversed((data / f"{split}.hi").read_text().splitlines())))
    rows = [{"en": f"a girl sees {number} birds", "hi": f"लड़की {number} चिड़िया"} for number in range(200)]
    _write_hub(data / "hub", rows, rows[10:])
    _write_hub(data / "other_hub", rows[20:], rows)
    table = "".join(f"{row['en']}\t{row['hi']}\n" for row in rows)
    (data / "torn.tsv").write_bytes(f"en\thi\n{table}".encode() + b"a cat\t\xe0\xa4\n")
    tiny_runs.write_corpus(data / "lm")
    shutil.copytree(
        tiny_runs.prepared_task(data / "lm", data / "lm" / "run").prepared.folder / "tokenizer", data / "tokenizer"
    )


def _write_recordings(data: Path) -> None:
    """Conversations, utterances, a damaged recording, and a corpus by its recipe, twice."""
    toy_speech.write_recordings(data)
    toy_speech.write_utterances(data / "voices")
    (data / "alignments").mkdir()
    (data / "alignments" / "train0.json").write_text('{"word": [[0, 0.3, "so"]]}')
    whole, rate = soundfile.read(data / "train0.wav")
    for path in data.glob("train*.wav"):
        samples, _ = soundfile.read(path)
        soundfile.write(path, np.stack([samples, samples[::-1]], axis=1), rate)  # two channels
    soundfile.write(data / "damaged.flac", whole, rate)
    content = bytearray((data / "damaged.flac").read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)  # the header says that all of it is there
    (data / "damaged.flac").write_bytes(content)
    for split in ("train", "valid", "test"):
        lines = [json.loads(line) for line in (data / f"{split}.jsonl").read_text().splitlines()]
        _write_lines(data / f"fewer_{split}.jsonl", lines[1:])
        if split == "train":
            _write_lines(data / "damaged.jsonl", [*lines[1:], {**lines[0], "audio": "damaged.flac"}])
    write_ami(data / "corpora" / "ami")
    write_ami(data / "other_corpora" / "ami", seed=10)
    corpus, manifests = str(data / "other_corpora" / "ami"), str(data / "manifests" / "ami")
    prepare_corpus(DatasetConfig(name="ami", corpus_dir=corpus, output_dir=manifests), AudioConfig())


def _write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write_hub(folder: Path, one: Sequence[Mapping[str, object]], two: Sequence[Mapping[str, object]]) -> None:
    """A dataset with two configurations, as a folder of the Hub has them."""
    folder.mkdir()
    _write_lines(folder / "one.jsonl", one)
    _write_lines(folder / "two.jsonl", two)
    configurations = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("one", "two"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")
