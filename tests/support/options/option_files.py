"""The data that options are varied on, of each task, in a folder: FOLDER in option_tables.py."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import soundfile

import tiny_listener
import tiny_runs
import tiny_voice
import toy_speech
from option_bases import BASES
from option_sweep import Sweep
from tiny_bert import write_bert
from tiny_decoder import write_folder
from tiny_speaker_encoder import save_onnx
from tiny_wav2vec2 import write_base
from tiny_whisper import write_whisper
from toy_corpora import write_ami
from users_classes import CHARACTERS, NETWORK
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.lhotse_manifests import prepare_corpus
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


def torn(outputs, targets, valid, per):
    return Term(outputs.sum() * float("nan"), per)
"""


def sweep_of(task: str, folder: Path) -> Sweep:
    """The runs of a task's options, in a folder, with its data."""
    data = folder / "data"
    data.mkdir(parents=True)
    (data / "own.py").write_text(f"{OWN}\n\n{CHARACTERS}\n\n{NETWORK}")
    (data / "base.yml").write_text(BASES[task].replace("FOLDER", str(data)))
    WRITERS[task](data)
    if task != "asr":  # another run of the same model
        train(load([data / "base.yml"], [f"run_dir={data / 'other'}"]))
    return Sweep(task, folder, data / "base.yml")


def _write_texts(data: Path) -> None:
    """Texts, some of them twice, minimal pairs, a pretrained decoder, and a tokenizer."""
    tiny_runs.write_corpus(data)
    lines = (data / "train.txt").read_text().splitlines()
    (data / "train.txt").write_text("\n".join([*lines, *lines[:30]]))
    (data / "more.txt").write_text("\n".join(lines[:50]))
    (data / "torn.txt").write_bytes("\n".join(lines).encode() + b"\n\xe0\xa4\n")
    columns = [{"text": line, "other": f"{line} {line}"} for line in lines]
    _write_lines(data / "train.jsonl", columns)
    _write_lines(data / "chats.jsonl", [{"prompt": line[:9], "completion": line} for line in lines])
    _write_hub(data / "hub", columns, columns[50:])
    _write_hub(data / "other_hub", columns[100:], columns)
    _write_lines(data / "pairs.jsonl", [{"sentence_good": lines[1], "sentence_bad": lines[2], "UID": "some"}])
    write_folder(data / "decoder", "llama")
    _write_tokenizer(data)


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
    (data / "birds.tsv").write_text(f"en\thi\n{table}")
    (data / "answers.tsv").write_text("en\thi\n" + "".join(f"{row['en']}\tचिड़िया\n" for row in rows[:50]))
    _write_tokenizer(data)


def _write_recordings(data: Path) -> None:
    """Conversations, utterances, a damaged recording, a speaker encoder, and a corpus by its recipe, twice."""
    toy_speech.write_recordings(data)
    toy_speech.write_utterances(data / "voices")
    for path in (data / "voices").glob("*.wav"):
        samples, rate = soundfile.read(path)
        soundfile.write(path, np.pad(samples, 2000), rate)  # silence before and after speech
    save_onnx(data / "voices.onnx", ("row", "frame", 80), 1)
    (data / "alignments").mkdir()
    (data / "alignments" / "train0.json").write_text('{"word": [[0, 0.3, "so"]]}')
    for path in data.glob("train*.wav"):
        samples, _ = soundfile.read(path)
        soundfile.write(path, np.stack([samples, samples[::-1]], axis=1), rate)  # two channels
    _write_variants(data)
    _write_meetings(data)


def _write_variants(data: Path) -> None:
    """Of each manifest: fewer lines; far from its audio; with a recording that can't be read; with a column more."""
    samples, rate = soundfile.read(data / "train0.wav")
    soundfile.write(data / "damaged.flac", samples, rate)
    content = bytearray((data / "damaged.flac").read_bytes())
    content[len(content) // 2 :] = bytes(len(content) - len(content) // 2)  # the header says that all of it is there
    (data / "damaged.flac").write_bytes(content)
    for split in ("train", "valid", "test"):
        lines = [json.loads(line) for line in (data / f"{split}.jsonl").read_text().splitlines()]
        lines = [{**line, "spare": f"x{number}"} for number, line in enumerate(lines)]
        _write_lines(data / f"{split}.jsonl", lines)
        _write_lines(data / f"fewer_{split}.jsonl", lines[1:])
        (data / "far").mkdir(exist_ok=True)
        _write_lines(data / "far" / f"{split}.jsonl", [{**line, "audio": f"../{line['audio']}"} for line in lines])
        if split == "train":
            _write_lines(data / "damaged.jsonl", [*lines[1:], {**lines[0], "audio": "damaged.flac"}])
            _write_lines(data / "silent.jsonl", [*lines[1:], {**lines[0], "text": ""}])


def _write_meetings(data: Path) -> None:
    """A corpus by its recipe, twice."""
    write_ami(data / "corpora" / "ami")
    write_ami(data / "other_corpora" / "ami", seed=10)
    corpus, manifests = str(data / "other_corpora" / "ami"), str(data / "manifests" / "ami")
    prepare_corpus(DatasetConfig(name="ami", corpus_dir=corpus, output_dir=manifests), AudioConfig())


def _write_voices(data: Path) -> None:
    """Sentences of two speakers in two channels, aligned in their manifest and otherwise elsewhere, and lexicons."""
    rng = np.random.default_rng(0)
    (data / "alignments").mkdir()
    for split, number in (("train", 8), ("valid", 2), ("test", 2)):
        lines = []
        for index in range(number):
            text, samples, phones = tiny_voice.utterance(rng, 2)
            name, speaker = f"{split}{index}", ("Ann", "Bob")[index % 2]
            soundfile.write(data / f"{name}.wav", np.stack([samples, samples[::-1]], axis=1), tiny_voice.RATE)
            alignment = [[start, end, label] for label, start, end in phones]
            lines.append({"audio": f"{name}.wav", "text": text, "speaker": speaker, "alignment": alignment})
            earlier = [(label, max(0.0, start - 0.02), end - 0.02) for label, start, end in phones]
            tiny_voice.write_phones(data / "alignments" / f"{name}.TextGrid", earlier)
        _write_lines(data / f"{split}.jsonl", lines)
    _write_variants(data)
    _write_meetings(data)
    for name, words in (("lexicon", ("he", "saw", "me")), ("other_lexicon", ("he", "saw", "may"))):
        entries = (f"{word.upper()}  {' '.join(tiny_voice.WORDS[word])}\n" for word in words)
        (data / f"{name}.txt").write_text("".join(entries))


def _write_sentences(data: Path) -> None:
    """Those, and a vocoder."""
    _write_voices(data)
    (data / "vocoder.yml").write_text(BASES["vocoder"].replace("FOLDER", str(data)))
    train(load([data / "vocoder.yml"], [f"run_dir={data / 'vocoder'}"]))


def _write_words(data: Path) -> None:
    """Words of two groups of speakers, with marks, a tiny Whisper, and a tokenizer."""
    tiny_listener.write_listener(data)
    for path in data.glob("*.jsonl"):
        path.write_text(path.read_text().replace('", "speaker"', '!", "speaker"'))
    for path in data.glob("train*.wav"):
        samples, rate = soundfile.read(path)
        soundfile.write(path, np.stack([samples, samples[::-1]], axis=1), rate)
    (data / "alignments").mkdir()
    (data / "alignments" / "train0.json").write_text('{"word": [[0, 0.3, "so"]]}')
    (data / "voices").mkdir()
    shutil.copy(data / "valid0.wav", data / "voices")
    _write_variants(data)
    _write_meetings(data)
    write_whisper(data / "whisper", seconds=2)
    write_base(data / "wav2vec2", "wav2vec2", "layer")
    unigrams = "".join(f"-0.1\t{word}\n" for word in ("</s>", "mi!"))
    (data / "words.arpa").write_text(f"\\data\\\nngram 1=2\n\n\\1-grams:\n{unigrams}\n\\end\\\n")
    _write_tokenizer(data)


def _write_labelled(data: Path) -> None:
    """Texts of three labels and of two kinds, some of them twice, word vectors, synonyms, and a tiny BERT."""
    words = ("good", "fine", "bad", "poor", "odd", "new")
    for split, size in (("train", 40), ("more", 30), ("valid", 8), ("test", 8), ("outside", 6)):
        texts = [
            f"the {words[n % 6]} w{n % 5} is not {words[n % 4]} " + f"{split} x{n} " * (n % 3) for n in range(size)
        ]
        rows = [
            {"text": text, "other": text[::-1], "label": ("yes", "no", "maybe")[n % 6 // 2], "kind": n % 2}
            for n, text in enumerate(texts)
        ]
        _write_lines(data / f"{split}.jsonl", [*rows, *rows[:5]] if split == "train" else rows)
    lines = (data / "train.jsonl").read_bytes()
    (data / "torn.jsonl").write_bytes(lines + b'{"text": "a \xe0\xa4", "label": "yes", "kind": 0}\n')
    rng = np.random.default_rng(0)
    for name in ("vectors", "other_vectors"):
        table = (f"{word} {' '.join(f'{one:.3f}' for one in rng.normal(size=4))}\n" for word in words)
        (data / f"{name}.txt").write_text("".join(table))
    (data / "synonyms.txt").write_text("good,fine\nbad,poor\nnot,never\n")
    (data / "other_synonyms.txt").write_text("good,great\nbad,awful\nodd,strange\n")
    rows = [json.loads(line) for line in (data / "train.jsonl").read_text().splitlines()]
    _write_hub(data / "hub", rows, rows[10:])
    _write_hub(data / "other_hub", rows[5:], rows)
    write_bert(data / "bert", ("the", "is", "not", *words))
    _write_tokenizer(data)


def _write_tokenizer(data: Path) -> None:
    tiny_runs.write_corpus(data / "lm")
    prepared = tiny_runs.prepared_task(data / "lm", data / "lm" / "run").prepared
    shutil.copytree(prepared.folder / "tokenizer", data / "tokenizer")


def _write_lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _write_hub(folder: Path, one: Sequence[Mapping[str, object]], two: Sequence[Mapping[str, object]]) -> None:
    """A dataset with two configurations, as a folder of the Hub has them."""
    folder.mkdir()
    _write_lines(folder / "one.jsonl", one)
    _write_lines(folder / "two.jsonl", two)
    configurations = "".join(f"- config_name: {name}\n  data_files: {name}.jsonl\n" for name in ("one", "two"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{configurations}---\n")


WRITERS = {
    "lm": _write_texts,
    "seq2seq": _write_pairs,
    "diarization": _write_recordings,
    "tts": _write_sentences,
    "vocoder": _write_voices,
    "asr": _write_words,
    **dict.fromkeys(("classification", "cnn", "multitask"), _write_labelled),
}
"""Of each task's data."""
