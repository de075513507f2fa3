"""A configuration to begin with, for the data found and the device present; each choice says why.

The sizes are rules of thumb, meant to train at once and to be changed then. A language model's parameters grow with its
tokens (about one for ten; Hoffmann et al. 2022 have one for twenty, of data seen once). Steps are as many as show
whether it learns: minutes to an hour on a processor, hours on a GPU.

It has more than 500 lines because the tasks' configurations share their sizes, and are read side by side.
"""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vaak.config.tasks import TASKS, StarterData, built_in, load_name, spec_by_name
from vaak.config.yaml.text import entry_text
from vaak.core.errors import UserError
from vaak.core.machine import format_bytes
from vaak.core.splits import SPLITS
from vaak.core.storage.text_lines import split_lines
from vaak.runs.preflight.doctor.devices import Device
from vaak.runs.preflight.doctor.folder import CorpusSurvey
from vaak.runs.preflight.doctor.text_layouts import recognize_texts
from vaak.runs.preflight.doctor.unusable import describe_unusable

GIB = 1 << 30
CHARACTERS_PER_TOKEN = 4
WIDTH = 80
SIZES = ((64, 2, 2), (128, 3, 4), (256, 4, 4), (384, 6, 6), (512, 8, 8), (768, 12, 12))
"""Width, layers and heads; with the tokens from which on each is used:"""
TOKENS = (0, 50_000, 1_000_000, 10_000_000, 100_000_000, 1_000_000_000)


class Choice(NamedTuple):
    """A value, and why it was chosen."""

    value: Any
    why: str


@dataclass(frozen=True)
class Amounts:
    """Amounts of training data in all corpora together."""

    examples: int
    characters: int
    hours: float
    seconds: list[float]
    lengths: list[int]
    """Characters of texts."""
    rates: Counter[int]
    languages: Counter[str]
    labels: Counter[str]
    speakers: int
    most_speakers: int
    has_texts: bool

    @property
    def tokens(self) -> int:
        return max(1, self.characters // CHARACTERS_PER_TOKEN)

    @property
    def rate(self) -> int:
        """The most frequent sampling rate."""
        return self.rates.most_common(1)[0][0] if self.rates else 16000

    @property
    def language(self) -> str | None:
        """The code of the most frequent language, such as hi."""
        code = self.languages.most_common(1)[0][0] if self.languages else None
        return code and code.replace("_", "-").partition("-")[0].lower()


def list_tasks() -> list[str]:
    """Return the tasks for which there is such a configuration; one of several tasks is put together by hand."""
    return [name for name, spec in TASKS.items() if spec.starter is not None]


def add_up_amounts(corpora: Sequence[CorpusSurvey]) -> Amounts:
    """Add up the training splits; of labels, languages and rates, all splits count."""
    splits = [split for one in corpora for split in one.splits.values()]
    train = [one.splits["train"] for one in corpora if "train" in one.splits] or splits

    def counted(name: str) -> Counter[Any]:
        return sum((getattr(split, name) for split in splits), Counter[Any]())

    return Amounts(
        examples=sum(split.num_entries for split in train),
        characters=sum(split.num_characters for split in train),
        hours=sum(split.hours or 0.0 for split in train),
        seconds=sorted(one for split in train for one in split.durations),
        lengths=sorted(one for split in train for one in split.lengths),
        rates=counted("rates"),
        languages=counted("languages"),
        labels=counted("labels"),
        speakers=len(set().union(*(split.speakers for split in train))),
        most_speakers=max((split.most_speakers for split in splits), default=0),
        has_texts=any(split.num_texts for split in splits),
    )


def task_for(corpora: Sequence[CorpusSurvey]) -> str:
    """Return the task that data like these are for: audio first, then the first texts.

    Raises UserError for texts with recordings that nobody reads: they are hardly meant to be trained on alone; and
    where no task is for such data.
    """
    usable = select_usable(corpora)
    audio = [one for one in usable if not one.is_text]
    kind = _kind_of_audio(audio) if audio else recognize_texts(usable[0].options["corpus"])
    # An installed task may be for the same data as one of Vaak's, which comes first.
    names = sorted(list_tasks(), key=lambda name: name not in built_in())
    task = next((name for name in names if (need := TASKS[name].starter_data) and need.usual_for == kind), None)
    if task is None:
        raise UserError(f"no task here is for {kind} alone; name one of {', '.join(names)}")
    if not audio and (number := usable[0].unread_audio):
        raise UserError(
            f"{describe_unusable(usable[0].folder)}. Texts there don't say which of the {number:,} recordings they "
            f"belong to; to train on the texts alone: vaak init {task} --data {usable[0].folder}"
        )
    return task


def _kind_of_audio(corpora: Sequence[CorpusSurvey]) -> str:
    """Return what recordings are, as ``StarterData.usual_for`` names it."""
    amounts = add_up_amounts(corpora)
    if not amounts.has_texts:
        return "conversations" if amounts.most_speakers > 1 else "audio"
    return "voice" if all(one.kind == "ljspeech" for one in corpora) else "transcribed audio"


def select_usable(corpora: Sequence[CorpusSurvey]) -> list[CorpusSurvey]:
    """Return the readable ones. Raises UserError, with the reason, where there are none."""
    usable = [one for one in corpora if one.problem is None and one.splits]
    if not usable:
        raise UserError("; ".join(str(one.problem) for one in corpora if one.problem) or "there is nothing to train on")
    return usable


def starter(
    corpora: Sequence[CorpusSurvey], device: Device, task: str | None = None, folder: Path | None = None
) -> str:
    """Return a YAML with comments that trains a task (that which fits the data) on what was found.

    The run is called as the ``folder`` in which it was found, which may be above that of a corpus.

    Raises UserError for a task that these data don't have what it needs for.
    """
    task = task or task_for(corpora)
    fill = spec_by_name(task).starter
    if fill is None:
        raise UserError(f"{task}: no YAML is made for it; vaak init {task}/quickstart copies one to start from")
    chosen = _select_corpora(select_usable(corpora), task)
    amounts = add_up_amounts(chosen)
    sections = load_name(fill)(chosen, amounts, device)
    name = (folder or chosen[0].folder).resolve().name.lower() or "data"
    body = {"task": task, "name": name if name != task else f"{name}-1", **sections}
    return "\n".join([*_head(amounts, device, task), *_lines(body)]) + "\n"


def _select_corpora(corpora: list[CorpusSurvey], task: str) -> list[CorpusSurvey]:
    """Return the corpora that a task reads: all of audio, the first of texts."""
    spec = spec_by_name(task)
    usual = StarterData("texts", "texts") if spec.audio is None else StarterData("audio", "audio")
    needed = spec.starter_data or usual
    found = [one for one in corpora if needed.reads in _kinds(one)]
    if not found:
        raise UserError(f"{task} needs {needed.described}, and there is {' and '.join(one.kind for one in corpora)}")
    return found if spec.audio is not None else found[:1]


def _kinds(corpus: CorpusSurvey) -> set[str]:
    """Return what a corpus can be read as, in the words of ``StarterData.reads``.

    Labelled or paired texts are texts, too, unless labels are in the lines.
    """
    if corpus.is_text:
        options = corpus.options["corpus"]
        return {recognize_texts(options), *(("texts",) if options["type"] != "fasttext" else ())}
    splits = corpus.splits.values()
    has_texts, has_speakers = any(split.num_texts for split in splits), any(split.speakers for split in splits)
    return {"audio", *["transcribed audio"] * has_texts, *["audio with speakers"] * has_speakers}


def _head(amounts: Amounts, device: Device, task: str) -> Iterator[str]:
    """Yield comments that say what was found, and what to do next."""
    said = []
    if amounts.hours:
        said.append(f"{amounts.hours:,.1f} hours" if amounts.hours >= 1 else f"{60 * amounts.hours:,.0f} minutes")
        said.append(f"{amounts.examples:,} recordings of {amounts.rate:,} Hz")
        said += [f"{amounts.speakers:,} speaker{'s' * (amounts.speakers > 1)}"] if amounts.speakers else []
    else:
        said.append(f"{amounts.examples:,} texts, {amounts.characters:,} characters")
    said += [f"{len(amounts.labels):,} labels"] if amounts.labels else []
    said += [f"languages {', '.join(sorted(amounts.languages)[:5])}"] if amounts.languages else []
    where = device.name if device.kind == "cpu" else f"{device.name}, {format_bytes(device.total)}"
    yield from _comment(f"Made by vaak init for {', '.join(said)} to train on; for {device.kind} ({where}).")
    yield "# vaak train FILE --try: all of it once, in seconds; vaak train FILE: the run"
    yield from _comment(f"All other options: vaak config show --all {task}")


def _comment(text: str, indent: int = 0) -> list[str]:
    margin = f"{' ' * indent}# "
    return textwrap.wrap(text, WIDTH, initial_indent=margin, subsequent_indent=margin, break_on_hyphens=False)


def _lines(values: dict[str, Any], indent: int = 0) -> Iterator[str]:
    """Yield the YAML of sections, with the reasons of choices next to them, or above them where they don't fit."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from ([""] if not indent else [])
            yield f"{' ' * indent}{key}:"
            yield from _lines(value, indent + 2)
            continue
        if key == "datasets":
            yield ""
        why = value.why if isinstance(value, Choice) else ""
        lines = split_lines(entry_text(key, value.value if isinstance(value, Choice) else value, indent))
        if why and len(lines) == 1 and len(lines[0]) + len(why) + 3 <= WIDTH:
            yield f"{lines[0]} # {why}"
            continue
        yield from _comment(why, indent) if why else ()
        yield from lines


def _power(value: float, least: int, greatest: int) -> int:
    """Return the power of two at or below a value, within bounds."""
    return min(greatest, max(least, 1 << int(math.log2(max(1.0, value)))))


def _steps(per_epoch: float, device: Device) -> dict[str, Any]:
    """Return the length of training, with five evaluations and checkpoints, for ``per_epoch`` steps in an epoch."""
    target, most = (600, 3000) if device.kind == "cpu" else (5000, 100_000)
    # An epoch at least and 20 at most (200 steps on the smallest data), and no longer than a first run should take.
    steps = round(min(max(target, per_epoch), 20 * max(per_epoch, 10), most))
    epochs = steps / max(per_epoch, 1e-9)
    why = f"{epochs:,.1f} epochs; more help as long as val_loss falls"
    every = max(1, steps // 5)
    return {
        "max_steps": Choice(steps, why),
        "scheduler": {"type": "linear", "warmup_steps": Choice(max(1, steps // 20), "a twentieth of the steps")},
        "validation": {"interval": every},
        "checkpoint": {"interval": every, "resume": Choice("auto", "run it again to resume where it stopped")},
        "logging": {"interval": max(1, steps // 100)},
    }


def _muon(width: int) -> dict[str, Any]:
    lr, adamw = (1e-2, 5e-3) if width <= 256 else (5e-3, 2e-3)
    return {
        "type": Choice("muon", "for matrices; AdamW for the rest"),
        "lr": Choice(lr, f"at a width of {width}"),
        "adamw_lr": adamw,
    }


def _choose_text_size(amounts: Amounts, device: Device) -> tuple[int, int, int, str]:
    """Return width, layers and heads for so much text on such a device, and why."""
    by_data = max(number for number, least in enumerate(TOKENS) if amounts.tokens >= least)
    most = 2 if device.kind == "cpu" else 4 if device.total < 20 * GIB else 5
    why = f"for about {amounts.tokens:,} tokens"
    if most < by_data:
        why = f"the data would allow more; {'a processor trains it' if device.kind == 'cpu' else 'it fits'} in time"
    return (*SIZES[min(by_data, most)], why)


def _vocabulary(amounts: Amounts) -> Choice:
    size = _power(math.sqrt(amounts.tokens) * 8, 512, 32768)
    return Choice(size, "so that each token is seen often enough")


def _token_budget(amounts: Amounts, device: Device, longest: int) -> int:
    """Return the tokens of a step."""
    most = 2048 if device.kind == "cpu" else _power(device.total / GIB * 700, 4096, 65536)
    return max(longest, _power(amounts.tokens / 20, 256, most))


def _tokens_why(budget: int, device: Device) -> str:
    memory = "a processor" if device.kind == "cpu" else format_bytes(device.total)
    return f"tokens of a step, for {memory}; a batch that doesn't fit into memory is computed in pieces"


def fill_lm(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    corpus = dict(corpora[0].options["corpus"])
    is_chat = corpus["type"] in ("chat", "preferences")
    for key in ("label_columns", "target_column"):
        corpus.pop(key, None)
    for key in [one for one in corpus if one.endswith("_target")]:  # both sides are texts
        corpus[key.removesuffix("_target")] = [*corpus[key.removesuffix("_target")], *corpus.pop(key)]
    if "source_column" in corpus:
        corpus["text_column"] = corpus.pop("source_column")
    if corpus["type"] == "folders":
        corpus |= {"type": "text", "document": "file"}
    elif corpus["type"] == "lines":
        corpus["type"] = "text"
    elif corpus["type"] in ("files", "tsv"):
        ending = str(next(corpus[split] for split in SPLITS if split in corpus)[0]).rpartition(".")[2]
        corpus["type"] = {"json": "json", "jsonl": "json", "parquet": "parquet"}.get(ending, "csv")
    width, layers, heads, why = _choose_text_size(amounts, device)
    median = amounts.lengths[len(amounts.lengths) // 2] if amounts.lengths else 100
    most = 256 if device.kind == "cpu" else 1024
    longest = _power(2 * median / CHARACTERS_PER_TOKEN, 128 if is_chat else 32, most)
    is_long = median / CHARACTERS_PER_TOKEN > longest and not is_chat
    budget = _token_budget(amounts, device, longest)
    data: dict[str, Any] = {
        "corpus": corpus,
        "tokenizer": {"type": Choice("byte_level", "reads any script"), "vocab_size": _vocabulary(amounts)},
        "max_length": Choice(longest, f"tokens; half of the texts have up to {median:,} characters"),
    }
    if is_long:
        data["layout"] = Choice("stream", "long texts, one after another, are cut into such lengths")
        batch: dict[str, Any] = {"batch_size": Choice(max(1, budget // longest), _tokens_why(budget, device))}
    else:
        batch = {"batching": {"type": "bucketed", "max_tokens": Choice(budget, _tokens_why(budget, device))}}
    if unusable := sum(len(split.broken) for split in corpora[0].splits.values()):
        data["on_bad_example"] = Choice("skip", f"{unusable:,} texts can't be used: vaak data check names them")
    if corpus["type"] == "preferences":
        batch["loss"] = {"main": Choice("orpo", "learns from scratch; with a trained model as reference: dpo")}
    return {
        "model": {"d_model": Choice(width, why), "num_layers": layers, "num_heads": heads},
        "data": data,
        "training": {**batch, "optimizer": _muon(width), **_steps(amounts.tokens / budget, device)},
    }


def fill_seq2seq(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    width, layers, heads, why = _choose_text_size(amounts, device)
    greatest = amounts.lengths[-1] if amounts.lengths else 200
    longest = _power(2 * greatest / CHARACTERS_PER_TOKEN + 32, 64, 512)
    budget = _token_budget(amounts, device, longest)
    said = f"tokens; the longest source has {greatest:,} characters"
    return {
        "model": {"global_config": {"d_model": Choice(width, why), "num_layers": layers, "num_heads": heads}},
        "data": {
            "corpus": dict(corpora[0].options["corpus"]),
            "tokenizer": {"type": Choice("byte_level", "reads any script"), "vocab_size": _vocabulary(amounts)},
            "max_source_length": Choice(longest, said),
            "max_target_length": longest,
        },
        "training": {
            "batching": {"type": "bucketed", "max_tokens": Choice(budget, _tokens_why(budget, device))},
            "optimizer": _muon(width),
            "loss": {"label_smoothing": Choice(0.1, "against sure mistakes (Vaswani et al. 2017)")},
            **_steps(amounts.tokens / budget, device),
        },
    }


def fill_classification(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    width = 64 if amounts.examples < 10_000 else 128 if device.kind == "cpu" else 300
    longest = _power(2 * (amounts.lengths[-1] if amounts.lengths else 200) / CHARACTERS_PER_TOKEN, 16, 512)
    batch = _power(amounts.examples / 40, 8, 32 if device.kind == "cpu" else 128)
    counts = amounts.labels.most_common()
    rarest = f"the rarest of {len(counts)} labels, {counts[-1][0]!r}, has {counts[-1][1]:,} texts" if counts else ""
    why = f"quick, and hard to beat with {amounts.examples:,} texts; pretrained models: docs/classification.md"
    return {
        "model": {
            "architecture": Choice("cnn", why),
            "embed_size": Choice(width, "by the number of texts"),
            "num_filters": width,
            "filter_sizes": Choice([2, 3, 4], "words that are seen together"),
            "dropout": 0.5,
        },
        "data": {"corpus": Choice(dict(corpora[0].options["corpus"]), rarest), "max_length": longest},
        "training": {
            "batch_size": batch,
            "batching": Choice("bucketed", "texts of like lengths together: little padding"),
            "optimizer": {"lr": 2e-3},
            **_steps(amounts.examples / batch, device),
        },
    }


def _datasets(corpora: Sequence[CorpusSurvey], **more: Any) -> list[dict[str, Any]]:
    """Return a dataset for each corpus, with a unique name."""
    found: list[dict[str, Any]] = []
    for one in corpora:
        name = one.folder.resolve().name.lower() or one.kind
        taken = {item["name"] for item in found}
        found.append({"name": name if name not in taken else f"{name}-{len(found)}", **one.options, **more})
    return found


def _few(corpora: Sequence[CorpusSurvey], amounts: Amounts) -> dict[str, Any]:
    """Return how to split off validation, where a corpus has none and so few recordings that a tenth may be nothing."""
    if all("valid" in one.splits for one in corpora) or amounts.examples >= 200:
        return {}
    number = max(1, amounts.examples // 10)
    return {"valid_examples": number, "test_examples": number if amounts.examples > 3 else 0}


def _seconds(amounts: Amounts, device: Device, of_cpu: int, of_gib: float) -> Choice:
    """Return the seconds of audio in a step."""
    most = of_cpu if device.kind == "cpu" else _power(of_gib * device.total / GIB, of_cpu, 2048)
    longest = math.ceil(amounts.seconds[-1]) + 1 if amounts.seconds else 30
    budget = max(min(longest, 30), min(most, max(8, round(amounts.hours * 3600 / 20))))
    memory = "a processor" if device.kind == "cpu" else format_bytes(device.total)
    return Choice(budget, f"seconds of audio in a step, for {memory}")


def fill_asr(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    longest = min(30, math.ceil(amounts.seconds[-1]) + 1 if amounts.seconds else 30)
    data: dict[str, Any] = {"max_duration": Choice(longest, "seconds; the longest recording, or Whisper's window")}
    gib = device.total / GIB
    if device.kind == "cpu":
        size = (96, 2) if amounts.hours < 2 else (144, 4)
        why = "from scratch, as a processor allows; with a GPU, model: {base: openai/whisper-small} needs less speech"
        model: dict[str, Any] = {
            "architecture": Choice("ctc", why),
            "conformer": {"d_model": Choice(size[0], f"for {amounts.hours:,.1f} hours"), "num_layers": size[1]},
        }
        optimizer: dict[str, Any] = {"type": "muon", "lr": 1e-2, "adamw_lr": 3e-3}
    else:
        base, parameters = ("openai/whisper-large-v3-turbo", "809M") if gib >= 20 else ("openai/whisper-small", "244M")
        model = {
            "base": Choice(base, f"{parameters} parameters, fit into {format_bytes(device.total)}; downloaded once")
        }
        is_little = amounts.hours < 20 or gib < 10
        if is_little:
            why = f"{amounts.hours:,.1f} hours: low-rank adapters forget less than all weights would"
            model["lora"] = {"rank": Choice(16, why), "alpha": 32, "targets": ["q_proj", "v_proj"]}
        optimizer = {
            "type": "adamw",
            "lr": Choice(1e-3, "usual for adapters") if is_little else Choice(1e-5, "Whisper's"),
        }
        if amounts.language is not None:
            data["language"] = Choice(amounts.language, "most of the recordings")
    if amounts.speakers > 1:
        data["group"] = Choice("speaker", "figures are given for each")
    budget = _seconds(amounts, device, 60, 10)
    return {
        "datasets": _datasets(corpora, **_few(corpora, amounts)),
        "model": model,
        "data": data,
        "training": {
            "batching": {"type": "bucketed", "max_duration": budget},
            "optimizer": optimizer,
            **_steps(amounts.hours * 3600 / budget.value, device),
        },
    }


def _mel(amounts: Amounts) -> dict[str, Any]:
    """Return mel spectrograms for the rate of the recordings: a frame of 12.5 ms, a window of 50."""
    if amounts.rate >= 22050:
        return {}
    why = f"that of the recordings, {amounts.rate:,} Hz; a frame is 12.5 ms, a window 50"
    hop = amounts.rate // 80
    sizes = {"n_fft": 2 ** math.ceil(math.log2(4 * hop)), "win_length": 4 * hop, "hop_length": hop}
    top = {"f_max": amounts.rate / 2} if amounts.rate < 16000 else {}
    return {"global_config": {"mel": {"sampling_rate": Choice(amounts.rate, why), **sizes, **top}}}


def fill_tts(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    has_times = all(next(one.folder.rglob("*.TextGrid"), None) is not None for one in corpora)
    width = 128 if amounts.hours < 1 or device.kind == "cpu" else 256
    durations = "given" if has_times else "learned"
    why = "by the TextGrids" if has_times else "text and audio are aligned while training, without TextGrids"
    longest = min(20, math.ceil(amounts.seconds[-1]) + 1 if amounts.seconds else 20)
    budget = _seconds(amounts, device, 40, 8)
    return {
        **_mel(amounts),
        "datasets": _datasets(corpora, **_few(corpora, amounts)),
        "model": {
            "durations": Choice(durations, why),
            "global_config": {
                "d_model": Choice(width, f"for {60 * amounts.hours:,.0f} minutes"),
                "num_layers": 2 if width == 128 else 4,
                "num_heads": 2,
                "dropout": 0.0 if width == 128 else 0.1,
            },
            "encoder": {"feed_forward_kernel": 3},
            "decoder": {"feed_forward_kernel": Choice(5, "spectra change within a phoneme after little training")},
            "duration_predictor": {"width": 128},
        },
        "data": {"max_duration": Choice(longest, "seconds; longer utterances are left out")},
        "training": {
            "batching": {"type": "bucketed", "max_duration": budget},
            "optimizer": _muon(width),
            **_steps(amounts.hours * 3600 / budget.value, device),
        },
    }


def fill_vocoder(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    width = 128 if device.kind == "cpu" else 384
    batch = 8 if device.kind == "cpu" else 16
    steps = _steps(amounts.examples / batch, device)
    start = steps["max_steps"].value * 4 // 5
    return {
        **_mel(amounts),
        "datasets": _datasets(corpora, **_few(corpora, amounts)),
        "model": {
            "width": Choice(width, f"for {device.kind}"),
            "num_layers": 4 if device.kind == "cpu" else 8,
            "inner_width": 3 * width,
            "discriminators": {
                "period_channels": 4 if device.kind == "cpu" else 16,
                "resolution_channels": 8 if device.kind == "cpu" else 16,
                "start_step": Choice(start, "they cost most of a step, and help once the sound is roughly right"),
            },
        },
        "data": {"crop_frames": Choice(32, "frames of an example; crops are enough to learn from")},
        "training": {
            "batch_size": batch,
            "optimizer": {"lr": 2e-3 if width == 128 else 5e-4},
            "gradient_clipping": 10,
            "loss": {"auxiliary": {"stft": Choice(30.0, "spectra at several resolutions, besides mel")}},
            **steps,
        },
    }


def fill_diarization(corpora: Sequence[CorpusSurvey], amounts: Amounts, device: Device) -> dict[str, Any]:
    is_talk = amounts.most_speakers > 1
    if is_talk:
        datasets = _datasets(corpora, **_few(corpora, amounts))
        number = min(4, amounts.most_speakers)
        why = f"a recording has up to {amounts.most_speakers}; a window keeps the {number} who speak most"
    else:
        if amounts.speakers < 4:
            raise UserError(
                f"diarization needs conversations, or four speakers to simulate some, not {amounts.speakers}"
            )
        number, why = 2, "the conversations are of two"
        talk = {"train": 2000, "valid": 20, "test": 20, "num_speakers": 2, "duration": [20, 30], "train_duration": 20}
        datasets = _datasets(corpora, split_by="speaker", conversations=talk)
    window = min(30.0, max(4.0, amounts.seconds[-1])) if is_talk and amounts.seconds else 20.0
    batch = 4 if device.kind == "cpu" else _power(device.total / GIB, 8, 32)
    # An epoch of little data still has four steps.
    batch = min(batch, max(1, round(amounts.hours * 3600 / window / 4))) if is_talk else batch
    per_epoch = amounts.hours * 3600 / window / batch if is_talk else 2000 / batch
    data = {"data": {"window": Choice(round(window, 1), "seconds of an example; longer recordings are cut")}}
    return {
        "global_config": {"num_mel_bins": 40},
        "datasets": datasets,
        "model": {
            "preset": "small",
            **({"num_layers": 2, "d_model": Choice(96, "a processor trains it in minutes")} if batch <= 4 else {}),
            "max_speakers": Choice(number, why),
        },
        **(data if is_talk else {}),
        "training": {
            "batch_size": batch,
            "eval_knobs": {"label_type": "multilabel"},
            "optimizer": {"type": "muon", "lr": 5e-3, "adamw_lr": 1e-3},
            **_steps(per_epoch, device),
        },
    }
