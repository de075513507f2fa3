"""The tasks that the contract is held against: one entry here and a new task is under it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tiny_listener
import tiny_vocoder
import tiny_voice
from task_case import PERFORMER, TaskCase, ToyCase
from text_cases import TEXT_CASES
from tiny_wav2vec2 import write_base
from tiny_whisper import write_whisper
from toy_duel import DuelTask
from toy_speech import RATE, make_dataset_from, write_recordings, write_utterances
from vaak.core.batch import Batch


def _frames_and_speakers(batch: Batch) -> dict[str, float]:
    """Frames of features by fours (the encoder's) and by twos (those with labels), and speakers of training."""
    times = batch["feature_mask"].sum(1).tolist()
    labels = batch["labels"].tolist()
    without = sum(label == -100 for row in labels for label in row) if batch["labels"].ndim == 2 else None
    padding = sum(len(row) for row in labels) - sum(-(-time // 2) for time in times)
    return {
        "frame": float(sum(-(-time // 2) for time in times) - (0 if without is None else without - padding)),
        "position": float(sum(-(-time // 4) for time in times)),
        "speaker": float(sum(len({one.speaker for one in example.segments}) for example in batch.extra["examples"])),
        "example": float(len(times)),
    }


def _longest_seconds(batch: Batch) -> float:
    longest: float = max(example.duration for example in batch.extra["examples"])
    return longest


def _diarizer(
    label_type: str,
    *,
    model: dict[str, Any] | None = None,
    data: dict[str, Any] | None = None,
    audio: dict[str, Any] | None = None,
    conversations: dict[str, Any] | None = None,
    training: dict[str, Any] | None = None,
) -> TaskCase:
    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "num_convolutions": 1, "embedding_dim": 8, "dropout": 0.1}
    options = {
        "model": {**sizes, **(model or {})},
        "global_config": {"sampling_rate": RATE, "num_mel_bins": 16, "high_freq": 0.0, **(audio or {})},
        "datasets": [make_dataset_from("FOLDER") | ({"conversations": conversations} if conversations else {})],
        "data": {"window": 1.5, "inference": {"window": 1.2}, **(data or {})},
    }
    about = {"counted": _frames_and_speakers, "row_length": _longest_seconds}
    settings = {"eval_knobs": {"label_type": {"type": label_type}}, **(training or {})}
    return TaskCase("diarization", options, settings, about, write_utterances if conversations else write_recordings)


def _frames_and_symbols(batch: Batch) -> dict[str, float]:
    """Frames up to the last that isn't silent in any bin, symbols that aren't padding."""
    symbols = float(sum(symbol > 0 for row in batch["symbols"].tolist() for symbol in row))
    frames = float(sum(any(value != 0 for value in frame) for row in batch["mel"].tolist() for frame in row))
    return {
        "frame": frames,
        "mel_bin": frames * batch["mel"].shape[2],
        "phoneme": symbols,
        "position": frames + symbols,
        "example": float(len(batch["symbols"])),
    }


SPEECH_FRAME = 256 / 8000


def _seconds_of_frames(batch: Batch) -> float:
    return float(batch["mel"].shape[1]) * SPEECH_FRAME


def _speech(*, model: dict[str, Any] | None = None, training: dict[str, Any] | None = None) -> TaskCase:
    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
    mel = {"sampling_rate": 8000, "n_fft": 512, "win_length": 512, "hop_length": 256, "n_mels": 12, "f_max": None}
    voices = {"name": "voices", "type": "voices", "num_voices": 2, "num_sentences": 14, "output_dir": "FOLDER"}
    options = {
        "model": {"global_config": sizes, "duration_predictor": {"width": 16}, **(model or {})},
        "global_config": {"mel": mel},
        "datasets": [voices],
        "data": {"speaking": {"num_iterations": 2}},
    }
    about = {"counted": _frames_and_symbols, "row_length": _seconds_of_frames, "inputs": ("Hello.",)}
    about["learned"] = 0.7 if "vector_field" in (model or {}).get("flow_matching", {}) else 0.45
    return TaskCase("tts", options, training or {}, about)


def _about_listening(num_prompt: int) -> dict[str, Any]:
    """What is counted after a prompt of this number of tokens, the last of which predicts the first that is real."""

    def frames(batch: Batch) -> float:
        return batch["features"].shape[2] if "features" in batch.tensors else 100 * tiny_listener.SECONDS

    def counted(batch: Batch) -> dict[str, float]:
        """Targets that are real; the encoder's positions, each of two frames, and the decoder's."""
        rows, tokens = len(batch["targets"]), sum(target >= 0 for row in batch["targets"].tolist() for target in row)
        positions = rows * (frames(batch) / 2 + num_prompt - 1) + tokens
        return {"token": float(tokens), "position": float(positions), "example": float(rows)}

    return {"counted": counted, "row_length": lambda batch: frames(batch) / 100}


def _write_tones_and_base(folder: Path) -> Sequence[Any]:
    write_whisper(folder / "whisper")
    return tiny_listener.write_listener(folder)


def _mixture() -> TaskCase:
    """Experts on a base, balanced by their bias."""
    experts = {"num_experts": 3, "top_k": 2, "rank": 4, "gate_width": 8, "balancing_bias": 0.05}
    model = {"base": "FOLDER/whisper", "experts": {**experts, "targets": ["q_proj", "fc1"]}}
    options = tiny_listener.sections("FOLDER", model=model)
    return TaskCase("asr", options, {}, _about_listening(4) | {"learning_rate": 0.03}, _write_tones_and_base)


def _listener(*, data: dict[str, Any] | None = None, training: dict[str, Any] | None = None) -> TaskCase:
    options = tiny_listener.sections("FOLDER", data=data or {})
    return TaskCase("asr", options, training or {}, _about_listening(1), tiny_listener.write_listener)


def _conformer(*, model: dict[str, Any] | None = None, data: dict[str, Any] | None = None) -> TaskCase:
    sizes = {"d_model": 32, "num_layers": 1, "num_heads": 2, "kernel_size": 5, "dropout": 0.1}
    own: dict[str, Any] = {"architecture": "ctc", "conformer": {**sizes, **(model or {})}}
    options = tiny_listener.sections("FOLDER", model=own, data=data or {})

    def counted(batch: Batch) -> dict[str, float]:
        """Tokens that are real, and the encoder's frames, each of some of features."""
        tokens = sum(target >= 0 for row in batch["targets"].tolist() for target in row)
        frames = sum(
            -(-length // own["conformer"].get("subsampling", 4)) for length in batch["feature_lengths"].tolist()
        )
        return {"token": float(tokens), "position": float(frames), "example": float(len(batch["targets"]))}

    about = {"counted": counted, "row_length": lambda batch: int(batch["feature_lengths"].max()) / 100}
    return TaskCase("asr", options, {}, about, tiny_listener.write_listener)


def _pretrained_ctc(experts: dict[str, Any] | None = None) -> TaskCase:
    """An encoder of samples, of which some frames are hidden in training, with low-rank adapters, or experts."""

    def write(folder: Path) -> Sequence[Any]:
        write_base(folder / "base", "wav2vec2", "layer")
        return tiny_listener.write_listener(folder)

    def counted(batch: Batch) -> dict[str, float]:
        """Tokens that are real, and frames: every 320 samples, but for those that a frame lacks at the end."""
        tokens = sum(target >= 0 for row in batch["targets"].tolist() for target in row)
        frames = sum((length - 400) // 320 + 1 for length in batch["feature_lengths"].tolist())
        return {"token": float(tokens), "position": float(frames), "example": float(len(batch["targets"]))}

    own = {"architecture": "ctc", "base": "FOLDER/base", "masking": {"time_prob": 0.3, "time_length": 3}}
    about = {"counted": counted, "row_length": lambda batch: batch["features"].shape[2] / 16000, "learned": 0.6}
    options = tiny_listener.sections("FOLDER", model={**own, **({"experts": experts} if experts else {"lora": {}})})
    return TaskCase("asr", options, {}, about, write)


def _samples(batch: Batch) -> dict[str, float]:
    return {
        "position": float(sum(1 + int(one) // 64 for one in batch["lengths"])),
        "example": float(len(batch["lengths"])),
    }


def _seconds_of_samples(batch: Batch) -> float:
    return batch["samples"].shape[1] / 8000


def _write_tones(folder: Path) -> Sequence[Any]:
    tiny_voice.write_voice(folder)
    return [str(folder / "test0.wav")]


def _vocoder(model: dict[str, Any] | None = None) -> TaskCase:
    options = tiny_vocoder.options("FOLDER", model=model or {}, data={"num_iterations": 2})
    about = {"counted": _samples, "row_length": _seconds_of_samples, "learned_loss": "mel", "learning_rate": 0.005}
    own = {name: options[name] for name in ("model", "global_config", "datasets", "data")}
    return TaskCase("vocoder", own, {}, about | {"learned": 0.6}, _write_tones)


def _texts_and_tokens(batch: Batch) -> dict[str, float]:
    return {"example": float(len(batch["targets"])), "position": float(sum(map(sum, batch["mask"].tolist())))}


def _write_texts(folder: Path) -> Sequence[Any]:
    """Short texts of two classes, which two words tell apart, with a second label and several of a third kind."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for number in range(40):
        words = [f"w{(number * 7 + place) % 23}" for place in range(2 + number % 6)]
        word = ("good", "bad")[number % 2]
        tags = [name for place, name in enumerate("abc") if number >> place & 1]
        rows.append({"text": " ".join([*words, word, "w1"]), "label": word, "size": len(words), "tags": tags})
    (folder / "texts.json").write_text(json.dumps(rows), encoding="utf-8")
    (folder / "synonyms.txt").write_text("w1, w2, w3\n", encoding="utf-8")
    return ["w1 good", ""]


def _classifier(model: dict[str, Any] | None = None, corpus: dict[str, Any] | None = None, **data: Any) -> TaskCase:
    sizes = {"architecture": "cnn", "embed_size": 16, "num_filters": 8, "filter_sizes": [2, 3], "dropout": 0.1}
    files = {"train": "FOLDER/texts.json", "train_fraction": 0.7, "valid_fraction": 0.2, **(corpus or {})}
    tokenizer = {"type": "word", "vocab_size": 100, "min_frequency": 1}
    options = {"model": model or sizes, "data": {"corpus": files, "tokenizer": tokenizer, "max_length": 12, **data}}
    return TaskCase("classification", options, {}, {"counted": _texts_and_tokens}, _write_texts)


def _counted_by_task(batch: Batch) -> dict[str, float]:
    return {f"{batch.extra['task'][0]}/{unit}": count for unit, count in _texts_and_tokens(batch).items()}


def _two_tasks() -> TaskCase:
    """The word that tells classes apart, and how many words there are, by one TextCNN with two heads."""
    word, size = _classifier().options, _classifier(corpus={"label_columns": "size"}).options
    tasks = {name: {"task": "classification", **options} for name, options in (("word", word), ("size", size))}
    how = {"shared": ["embedding", "filters"], "loss_weights": "uncertainty", "sampling": "temperature"}
    about = {"counted": _counted_by_task, "inputs": (("word", "w1 good"), ("size", "w1 good"), ("size", ""))}
    return TaskCase(
        "multitask", {"tasks": tasks, **how}, {}, {**about, "learned_loss": "word/cross_entropy"}, _write_texts
    )


HELPED = {"loss": {"auxiliary": {"clustering": 0.5, "speaker": 0.1}}}

CASES = {
    **TEXT_CASES,
    "diarization": _diarizer("multilabel", training=HELPED),
    "diarization, powerset, augmented": _diarizer(
        "powerset",
        model={"front_end": "stacked", "position_type": "none"},
        data={"augmentation": {"speed": [0.9, 1.1], "noise": "coloured", "spec_augment": {"time_mask": 0.1}}},
        training=HELPED,
    ),
    "diarization, features on the device": _diarizer(
        "multilabel",
        data={
            "features_on": "device",
            "augmentation": {"speed": [0.9, 1.1], "noise": "coloured", "spec_augment": {"time_mask": 0.1}},
        },
        training=HELPED,
    ),
    "diarization, attractors, stored features": _diarizer(
        "multilabel",
        model={"head": "attractors", "max_speakers": 3},
        audio={"storage_path": "FOLDER/features"},
        training={"loss": {"auxiliary": {"attractor": 1.0, "clustering": 0.5}}},
    ),
    "diarization, speakers by name": _diarizer("speaker_id"),
    "diarization, speech, conversations": _diarizer(
        "binary",
        conversations={"train": 16, "valid": 4, "test": 2, "duration": [0.8, 1.6], "beta": 0.3, "speed": [0.9, 1.0]},
    ),
    "tts": _speech(),
    "tts, learned durations": _speech(model={"durations": "learned"}),
    "tts, flow matching, pitch, energy, learned durations": _speech(
        model={
            "decoder_type": "flow_matching",
            "flow_matching": {"width": 16},
            "durations": "learned",
            "pitch": True,
            "energy": True,
        }
    ),
    "tts, flow matching by a transformer, learned durations": _speech(
        model={
            "decoder_type": "flow_matching",
            "flow_matching": {"vector_field": "transformer"},
            "durations": "learned",
            "pitch": True,
        }
    ),
    "tts Performer": _speech(
        model={"encoder": {"attention_type": "linear"}, "decoder": {"attention_type": "linear"}}, training=PERFORMER
    ),
    "asr": _listener(training={"loss": {"label_smoothing": 0.1}}),
    "asr, features on the device": _listener(
        data={"features_on": "device", "augmentation": {"noise": "coloured", "spec_augment": {"time_mask": 0.1}}},
    ),
    "asr, a part, augmented": _listener(
        data={"percent": 90.0, "augmentation": {"speed": [0.9, 1.1], "noise": "coloured", "spec_augment": {}}},
    ),
    "asr, experts": _mixture(),
    "asr, ctc": _conformer(),
    "asr, ctc, pretrained": _pretrained_ctc(),
    "asr, ctc, experts": _pretrained_ctc(
        {
            "num_experts": 3,
            "top_k": 2,
            "rank": 4,
            "gate_width": 8,
            "targets": ["q_proj", "k_proj"],
            "balancing_bias": 0.05,
        }
    ),
    "asr, ctc, local attention, augmented": _conformer(
        model={"attention_type": "local", "window": 4, "position_type": "none", "subsampling": 2},
        data={"augmentation": {"speed": [0.9, 1.1], "noise": "coloured", "spec_augment": {}}},
    ),
    "asr, ctc, features on the device": _conformer(
        data={"features_on": "device", "augmentation": {"speed": [0.9, 1.1], "noise": "coloured", "spec_augment": {}}},
    ),
    "vocoder": _vocoder(),
    "vocoder, no discriminators": _vocoder({"discriminators": None}),
    "classification": _classifier(),
    "classification, transformer, two columns, augmented": _classifier(
        {"d_model": 16, "num_layers": 1, "num_heads": 2, "label_weights": [1.0, 0.5]},
        {"label_columns": ["label", "size"]},
        augmentation={"enabled": True, "probability": 0.3, "synonyms": "FOLDER/synonyms.txt"},
    ),
    "classification, several labels": _classifier(
        {"d_model": 16, "num_layers": 1, "num_heads": 2, "pooling": "max"},
        {"label_columns": "tags", "multi_label": True},
    ),
    "multitask": _two_tasks(),
    "diarization Performer": _diarizer("multilabel", model={"attention_type": "linear"}, training=PERFORMER),
}


def _letters_and_words(batch: Batch) -> dict[str, float]:
    return {"letter": float(sum(batch["real"].flatten().tolist())), "word": float(len(batch["letters"]))}


ABOUT_THE_DUEL = {
    "counted": _letters_and_words,
    "inputs": ([1, 2, 3], [7]),
    "learning_rate": 0.03,
    "learned_loss": "distance",
}
TOYS = {"two objectives": ToyCase(DuelTask, ABOUT_THE_DUEL)}
