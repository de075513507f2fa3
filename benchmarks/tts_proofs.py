"""Whether trained voices speak as they should: the figures of docs/tts-scoring.md, next to their aims.

    vaak train configs/tts/ljspeech_mini.yml
    vaak train configs/tts/ljspeech_mini.yml run_dir=runs/tts-lj-learned model.durations=learned
    python benchmarks/tts_proofs.py seen runs/tts-ljspeech-mini/checkpoints/last runs/tts-lj-learned/checkpoints/last

    vaak train configs/tts/builtin_voice.yml
    python benchmarks/tts_proofs.py unseen runs/tts-builtin-voice

    python benchmarks/tts_proofs.py copied $VAAK_DATA/ljspeech_mini

    vaak train configs/tts/quickstart.yml
    python benchmarks/tts_proofs.py new runs/tts-quickstart --utterances 25

``seen`` speaks the sentences that a run was trained on (its last checkpoint: the best one is that of unheard
sentences, before it knew these), and compares the alignment that the second run has learned
with the one that was given to the first. ``unseen`` speaks 50 sentences of the split test. ``copied`` turns
recordings in LJ Speech's layout into mel spectrograms and back by Griffin-Lim, as the best that such a voice can do.
``new`` has each built-in voice of a run speak sentences that aren't in its data, by each way to make audio, and turns
their recordings into spectrograms and back by the same ways: so errors of the voice and of the way are told apart.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import soundfile
import torch

from vaak.audio.corpora.voices import make_voices, sentences, utter
from vaak.audio.features.mel import MelSpectrogram, reconstruct_waveform
from vaak.audio.features.pitch import fundamental_frequency
from vaak.audio.mel_config import MelConfig
from vaak.config.metrics import in_words
from vaak.core.random_keys import Purpose, draw_key
from vaak.runs.evaluate import evaluate_run
from vaak.runs.open_run import open_run
from vaak.scoring.recogniser import Recogniser
from vaak.scoring.speech_scores import SpeechScores, compute_metrics
from vaak.tasks.tts.data import collate
from vaak.tasks.tts.task import TtsTask

SILENCE = 0.1
"""Seconds before and after a new sentence, as data.silence has it."""


def figures(run: Path, split: str, number: str, vocoder: str | None) -> dict[str, float]:
    """Return the metrics of an evaluation of the split without their prefix, and print them with its protocol."""
    overrides = [f"data.evaluation={{speak: {number}, recogniser: true}}"]
    overrides += [f"data.speaking.vocoder={vocoder}"] if vocoder else []
    report = evaluate_run(run, [], overrides, [split], "cpu")
    print(f"\n{run}, {split}: " + ", ".join(f"{name} {value}" for name, value in report["protocol"][split].items()))
    found = {name.partition("_")[2]: value for name, value in report["metrics"].items()}
    for name, value in found.items():
        print(f"  {name:<24} {in_words('x_' + name, value)}")
    return found


def judge(what: str, value: float, aim: float, unit: str) -> None:
    """A figure and the most that it should be."""
    print(f"  {'reached' if value <= aim else 'MISSED '}  {what}: {value:.2f} {unit}; aim: at most {aim:g}")


def judge_words(found: dict[str, float], points: float) -> None:
    """Wrong, skipped and repeated words, against those of the recordings."""
    judge("WER above the recordings'", 100 * (found["wer"] - found["recorded_wer"]), points, "points")
    for name in ("skipped_words", "repeated_words"):
        own, recorded = 100 * found[name], 100 * found[f"recorded_{name}"]
        judge(f"{name} ({recorded:.2f} % are found in the recordings)", own, recorded, "%")


def boundaries(run: Path) -> dict[str, tuple[list[int], np.ndarray]]:
    """The symbols of each training utterance, and when each of them ends, in ms, as the decoder was trained.

    Pauses are left out: given durations have those that were heard, too.
    """
    opened = open_run(run, device="cpu")
    task = cast("TtsTask", opened.task)
    dataset, model, found = task.dataset("train"), opened.model.eval(), {}
    for index in range(len(dataset.store)):
        example = dataset.example(index, np.random.default_rng(0))
        with torch.inference_mode():
            durations = task.score(model, collate([example], dataset.pad_id))[1].durations[0]
        spoken = example.ids != task.prepared.processor.pause_id
        ends = 1000 * task.audio.frame_shift * durations.cumsum(0).numpy()
        found[example.name] = example.ids[spoken].tolist(), ends[spoken]
    return found


def compare_alignments(given: Path, learned: Path) -> None:
    """How far apart the ends of symbols are; the last one's is that of the utterance."""
    ours, theirs = boundaries(given), boundaries(learned)
    same = [name for name in ours if name in theirs and ours[name][0] == theirs[name][0]]
    distances = np.concatenate([np.abs(ours[name][1] - theirs[name][1])[:-1] for name in same])
    near = ", ".join(f"{100 * np.mean(distances <= limit):.1f} % within {limit} ms" for limit in (25, 50, 100))
    middle = f"mean {distances.mean():.1f} ms, median {np.median(distances):.1f} ms"
    print(f"\nends of {len(distances):,} symbols, given against learned: {middle}, {near}")


def copied(folder: Path) -> None:
    """The figures of recordings that were turned into mel spectrograms and back."""
    scores, layer = SpeechScores(Recogniser()), MelSpectrogram(MelConfig())
    for line in (folder / "metadata.csv").read_text(encoding="utf-8").splitlines():
        name, *_, text = line.split("|")
        samples, rate = soundfile.read(folder / "wavs" / f"{name}.wav", dtype="float32")
        back = reconstruct_waveform(layer(torch.from_numpy(samples)[None])[0], layer, 32).numpy()
        scores.add(samples, back, rate, text)
    for metric, value in compute_metrics(scores.sums).items():
        print(f"  {metric:<24} {in_words('x_' + metric, value)}")


def new_sentences(dataset: Any, number: int) -> Iterator[tuple[str, str, np.ndarray]]:
    """The speaker, the text and the samples of ``number`` sentences of each built-in voice that ``dataset`` hasn't."""
    for place, voice in enumerate(make_voices(dataset.num_voices, dataset.seed)):
        key = draw_key(Purpose.SENTENCES, dataset.seed, place)
        known = set(sentences(dataset.num_sentences, np.random.default_rng(key)))
        found = (text for text in sentences(4 * number, np.random.default_rng(777 + place)) if text not in known)
        for text in islice(found, number):
            said = utter(voice, text)
            start, end = said.phonemes[0].start - SILENCE, said.phonemes[-1].end + SILENCE
            yield voice.name, text, said.samples[round(start * said.sampling_rate) : round(end * said.sampling_rate)]


def new(run: Path, number: int, vocoder: str | None, *, with_words: bool) -> None:
    """The figures of new sentences of a run's built-in voices, and of their recordings, by each way to make audio."""
    opened = open_run(run, device="cpu")
    task, model = cast("TtsTask", opened.task), opened.model.eval()
    assert task.audio.mel is not None
    layer, recogniser = MelSpectrogram(task.audio.mel), Recogniser() if with_words else None
    ways: dict[str, dict[str, Any]] = {"Griffin-Lim": {"phases": "random"}}
    ways |= {"phases of the pitch": {"phases": "pitch"}} if task.options.pitch else {}
    ways |= {"the vocoder": {"vocoder": vocoder}} if vocoder else {}
    speakers = {name: task.speaker(model, **options) for name, options in ways.items()}
    scores = {f"{what} by {way}": SpeechScores(recogniser) for way in ways for what in ("recordings", "spoken")}
    for voice, text, samples in new_sentences(opened.experiment.datasets[0], number):
        mel = layer(torch.from_numpy(samples)[None])[0]
        for way, speaker in speakers.items():
            if speaker.pitched is None:
                (back,) = speaker.vocoder([mel])
            else:
                (back,) = speaker.pitched([mel], [fundamental_frequency(samples, task.audio.mel)])
            spoken = speaker.sentence(text, speaker.processor.process(text).ids, voice).samples
            for what, made in (("recordings", back.numpy().clip(-1, 1)), ("spoken", spoken)):
                scores[f"{what} by {way}"].add(samples, made, task.audio.sampling_rate, text)
    for name, one in scores.items():
        values = compute_metrics(one.sums).items()
        print(f"{name:<34}" + ", ".join(f"{metric} {in_words('x_' + metric, value)}" for metric, value in values))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proof", choices=("seen", "unseen", "copied", "new"))
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--utterances", help="how many are spoken (null: all)")
    parser.add_argument("--vocoder", help="the run of a vocoder; without one, Griffin-Lim")
    parser.add_argument("--words", action="store_true", help="new: words, too")
    options = parser.parse_args()
    logging.getLogger("vaak").addHandler(logging.NullHandler())
    for run in options.runs:
        if options.proof == "copied":
            copied(run)
        elif options.proof == "new":
            new(run, int(options.utterances or 25), options.vocoder, with_words=options.words)
        elif options.proof == "seen":
            found = figures(run, "train", options.utterances or "null", options.vocoder)
            judge("MCD", found["mcd_db"], 5, "dB")
            judge_words(found, 10)
        else:
            found = figures(run, "test", options.utterances or "50", options.vocoder)
            judge_words(found, 15)
            judge("real-time factor", found["real_time_factor"], 0.3, "")
    if options.proof == "seen" and len(options.runs) == 2:
        compare_alignments(*options.runs)


if __name__ == "__main__":
    main()
