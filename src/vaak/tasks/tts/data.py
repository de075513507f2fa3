"""The utterances of a split on disk, their means and deviations, and examples: symbols and mel spectrogram.

FOLDER/
  cuts/                  the cuts, trimmed (vaak.audio.cuts.store)
  features/FINGERPRINT/  their features (vaak.audio.features.store)
  utterances.jsonl       a line for each cut: text, symbols, speaker and durations (vaak.core.storage.mapped_lines)
  used.bin               int64, the numbers of the cuts that are used: those with features
"""

from __future__ import annotations

import json
import logging
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch

from vaak.audio.audio_file import samples_in
from vaak.audio.config import AudioConfig
from vaak.audio.cuts.reading import get_text, merge_alignments, read_samples, read_segments
from vaak.audio.cuts.recordings import LeftOut, describe
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.audio.features.pitch import frame_durations
from vaak.audio.features.store import FeatureStore, extract_cuts
from vaak.core.batch import Batch
from vaak.core.errors import DataError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import compute_fingerprint, sync_file
from vaak.core.storage.mapped_lines import LineWriter, MappedLines, mapped, writing_lines
from vaak.core.task import DataFinding, Dataset, Padding
from vaak.nn.speech.flow_matching import row_draws
from vaak.tasks.base import pad_rows
from vaak.tasks.tts.recordings import aligned_symbols, get_phones
from vaak.text.coverage import Coverage
from vaak.text.speech.processor import PhonemeProcessor, Processed

if TYPE_CHECKING:
    from lhotse.cut import Cut

log = logging.getLogger("vaak")

LINES, USED = "utterances.jsonl", "used.bin"
UTTERANCES_AT_ONCE = 256
"""Texts that are pronounced together."""


class UtteranceRecord(NamedTuple):
    """An utterance without its audio; durations are in frames, None if none are given."""

    name: str
    speaker: str
    text: str
    ids: list[int]
    durations: list[int] | None


class UtteranceStore:
    """The utterances in a folder; ``durations`` are their seconds.

    Pickles as its path, so workers map the same pages of memory instead of copying them.
    """

    def __init__(self, folder: str | Path) -> None:
        """Map the utterances in ``folder``. Raises DataError if there are none, or they are incomplete."""
        self.folder = Path(folder)
        self.cuts = CutStore(self.folder / "cuts")
        (features,) = (self.folder / "features").iterdir()
        self.features = FeatureStore(features)
        self.used = mapped(self.folder / USED, "<i8")
        self._lines = MappedLines(self.folder / LINES, "utterance")
        self.lengths = self.features.lengths[self.used]
        self.durations = self.lengths * self.features.frame_shift
        self.fingerprint = compute_fingerprint([self.cuts.fingerprint, self.features.fingerprint, len(self.used)])

    def __len__(self) -> int:
        return len(self.used)

    @property
    def num_bins(self) -> int:
        """Numbers in a frame of the mel spectrogram."""
        return self.features.dims - 2 * self.features.has_pitch

    def line(self, index: int) -> UtteranceRecord:
        """Return utterance ``index`` without its audio."""
        return UtteranceRecord(**json.loads(self._lines[int(self.used[index])]))

    def mel(self, index: int) -> np.ndarray:
        """Return the mel spectrogram of utterance ``index``, ``(frame, bin)`` float32."""
        return self.frames(index)[0]

    def frames(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The mel spectrogram, and energy and F0 in Hz (0: unvoiced), ``(frame, 2)``; ``(frame, 0)`` if not stored."""
        found = self.features.frames(int(self.used[index]))
        return found[:, : self.num_bins], found[:, self.num_bins :]

    def describe(self, index: int) -> str:
        """Return the name and the file of utterance ``index``."""
        return self.cuts.describe(int(self.used[index]))

    def __reduce__(self) -> tuple[Any, ...]:
        return UtteranceStore, (self.folder,)


def write_utterances(folder: Path, cuts: Iterable[Cut], maker: RecordMaker) -> CutStore:
    """Write the utterances ``cuts`` with their symbols to ``folder``, and return them.

    Raises DataError for one that can't be used, unless the ``maker`` leaves it out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with writing_lines(folder / LINES) as lines:
        return write_cuts(folder / "cuts", _written_cuts(cuts, lines, maker))


def write_features(folder: Path, store: CutStore, audio: AudioConfig, left_out: LeftOut) -> UtteranceStore:
    """Write the features of utterances to their ``folder``, as ``audio`` says which, and return the whole.

    Utterances that can't be read are ``left_out``. Raises DataError for one, unless bad ones are skipped.
    """
    storage = audio.model_copy(update={"storage_path": str(folder / "features")})
    try:
        features = extract_cuts(store, storage, "cpu", skip_bad=left_out.skip_bad)
    except DataError as error:
        left_out.bad(error)
        raise
    for other in features.folder.parent.iterdir():
        # An interrupted preparation with other options leaves some.
        if other != features.folder:
            shutil.rmtree(other)
    used = [index for index in range(len(store)) if _is_usable(store, features, index, storage, left_out)]
    np.array(used, "<i8").tofile(folder / USED)
    sync_file(folder / USED)
    return UtteranceStore(folder)


@dataclass(frozen=True)
class RecordMaker:
    """Makes the line of an utterance: symbols by ``processor``, ``with_durations`` those of its alignment.

    An utterance that can't be used is ``left_out``; the share of all texts that can be ``spoken`` is counted.
    """

    processor: PhonemeProcessor
    audio: AudioConfig
    with_durations: bool
    left_out: LeftOut
    spoken: Coverage = field(default_factory=lambda: Coverage(None, "spoken"))
    guesses: Counter[str] = field(default_factory=Counter)
    """The readings of texts that were guessed, by kind."""

    def of(self, cuts: Sequence[Any]) -> Iterator[tuple[Any, UtteranceRecord]]:
        """Yield the lines of some utterances, without those that can't be used."""
        for cut, processed in zip(cuts, self._process_texts([get_text(cut) or "" for cut in cuts]), strict=True):
            try:
                if isinstance(processed, DataError):
                    unreadable = self.processor.find_unreadable(get_text(cut) or "")
                    self.spoken.add(get_text(cut) or "", unreadable, cut.id)
                    raise processed
                self.spoken.add(processed.text, processed.unspoken, cut.id)
                self.guesses.update(dict(processed.guesses))
                yield cut, self._line(cut, processed)
            except DataError as error:
                self.left_out.bad(DataError(f"{describe(cut)}: {error}"), cut.id)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.processor.symbols)}

    def _process_texts(self, texts: Sequence[str]) -> list[Processed | DataError]:
        """Convert texts to symbols, together; if one is wrong, each alone, with its error in its place."""
        try:
            return [*self.processor.process_all(texts, pictures=True)]
        except DataError as error:
            return [error] if len(texts) == 1 else [one for text in texts for one in self._process_texts([text])]

    def _line(self, cut: Any, processed: Processed) -> UtteranceRecord:
        pause, mel = self.processor.pause_id, self.audio.mel
        assert mel is not None
        num_samples, durations = samples_in(cut.duration, mel.sampling_rate), None
        ids, num_frames = [pause, *processed.ids, pause], mel.num_frames(num_samples)
        if num_frames < len(ids):
            raise DataError(
                f"{len(ids)} symbols in {cut.duration:.2f} s, {num_frames} frames: the text is not that of the audio"
            )
        if self.with_durations:
            phones = get_phones(cut)
            if not phones:
                what = "words but no phones" if merge_alignments(cut) else "no alignment"
                raise DataError(f"it has {what}; give alignments, or set model.durations: learned")
            symbols, ends = aligned_symbols(
                ["sil", *processed.symbols, "sil"], [False, *processed.is_phoneme, False], phones, self.processor
            )
            ids = [self._ids[symbol] for symbol in symbols]
            durations = frame_durations(ends, mel, num_samples).tolist()
        (speaker,) = {segment.speaker for segment in read_segments(cut)}
        return UtteranceRecord(cut.id, speaker, processed.text, ids, durations)


def _written_cuts(cuts: Iterable[Any], lines: LineWriter, maker: RecordMaker) -> Iterator[Any]:
    """Yield the cuts of which a line could be written."""
    cuts = iter(cuts)
    while together := list(islice(cuts, UTTERANCES_AT_ONCE)):
        for cut, line in maker.of(together):
            lines.write(json.dumps(line._asdict(), ensure_ascii=False).encode() + b"\n")
            yield cut


def _is_usable(store: CutStore, features: FeatureStore, index: int, audio: AudioConfig, left_out: LeftOut) -> bool:
    """Whether utterance ``index`` has ``features``, and only finite ones; ``audio`` says how the ``store`` is read.

    One that hasn't is ``left_out``, with the reason.
    """
    frames = features.frames(index)
    if len(frames) and np.isfinite(frames).all():
        return True
    try:
        if not len(frames):
            read_samples(store[index], audio)
        raise DataError(f"{store.describe(index)}: its features are not finite")
    except DataError as error:
        left_out.bad(error, store[index].id)
    return False


LEAST_DEVIATION = 1e-3
"""A deviation that a constant gets, so that dividing by it does nothing wild; and the least energy."""


@dataclass(frozen=True)
class Normalisation:
    """Means and deviations of each mel bin, of the base-2 logarithms of F0 in Hz where it is voiced, and of energy."""

    mel_mean: list[float]
    mel_deviation: list[float]
    pitch: Sequence[float] = (0.0, 1.0)
    """Mean and deviation."""
    energy: Sequence[float] = (0.0, 1.0)

    @classmethod
    def of(cls, store: UtteranceStore) -> Self:
        """Return the statistics of all frames of the utterances, in one pass."""
        mel, pitch, energy = _Moments(), _Moments(), _Moments()
        for index in range(len(store)):
            frames, prosody = store.frames(index)
            mel.add(frames)
            if store.features.has_pitch:
                loudness, f0 = prosody.T
                energy.add(np.log2(loudness.clip(min=LEAST_DEVIATION)))
                pitch.add(np.log2(f0[f0 > 0]))
        mean, deviation = mel.result()
        return cls(mean.tolist(), deviation.tolist(), _numbers(pitch), _numbers(energy))

    @classmethod
    def none(cls, num_bins: int) -> Self:
        """Return a normalisation that changes nothing, for use before there are data."""
        return cls([0.0] * num_bins, [1.0] * num_bins)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return cls(**values)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class _Moments:
    """Adds up values ``(frame, ...)`` for their means and deviations."""

    def __init__(self) -> None:
        self.count, self.total, self.squares = 0, np.zeros(()), np.zeros(())

    def add(self, values: np.ndarray) -> None:
        exact = values.astype(np.float64)
        self.count += len(exact)
        self.total, self.squares = self.total + exact.sum(0), self.squares + np.square(exact).sum(0)

    def result(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and deviation of each value."""
        mean = self.total / self.count
        return mean, np.sqrt((self.squares / self.count - np.square(mean)).clip(min=0)).clip(min=LEAST_DEVIATION)


def _numbers(moments: _Moments) -> tuple[float, float]:
    """Mean and deviation of one value; those that change nothing if there is none."""
    if not moments.count:
        return (0.0, 1.0)
    mean, deviation = moments.result()
    return float(mean), float(deviation)


LEAST_FRAMES = 8
"""Utterances below which nothing is usual."""
FACTOR, DEVIATIONS = 1.6, 5.0
"""How much faster or slower than the median is unusual: both of these, for corpora of short and of alike utterances."""


def unusual_rates(store: UtteranceStore) -> Iterator[DataFinding]:
    """Warnings of utterances with many more or fewer symbols per second than the median."""
    if len(store) < LEAST_FRAMES:
        return
    rates = np.array([len(store.line(index).ids) for index in range(len(store))]) / store.durations
    median = float(np.median(rates))
    distances = np.abs(np.log(rates / median))
    # 1.4826 times the median distance from the median estimates a standard deviation, and outliers don't move it.
    # Logarithms, so that twice as fast and half as fast are equally far.
    limit = max(np.log(FACTOR), DEVIATIONS * 1.4826 * float(np.median(distances)))
    for index in np.flatnonzero(distances > limit).tolist():
        yield DataFinding(
            store.describe(index),
            "rate",
            f"{rates[index]:.1f} symbols per second, while {median:.1f} are usual; is its text that of the audio?",
            "warning",
        )


BATCH_SECONDS = 600.0
"""The size of an evaluation's batch: rows, times the longest."""


@dataclass(frozen=True)
class TtsExample:
    """An utterance. ``ids`` and ``durations`` (in frames, or None) are ``(symbol,)``, ``mel`` is ``(frame, bin)``.

    ``prosody`` ``(frame, 2)`` is energy and F0 in Hz (0: unvoiced), of which ``(frame, 0)`` has none. ``noise_key`` is
    what flow matching draws from, None without it.
    """

    name: str
    text: str
    ids: np.ndarray
    mel: np.ndarray
    durations: np.ndarray | None
    speaker: int
    prosody: np.ndarray
    noise_key: int | None = None


class TtsDataset(Dataset):
    """A split's utterances; an example's length is its seconds."""

    draws_globally = False
    evaluation_budget = BATCH_SECONDS

    def __init__(self, store: UtteranceStore, speakers: Sequence[str], pad_id: int, *, draws_noise: bool) -> None:
        """``speakers`` are those of training; an utterance of another is an error when it is read.

        With ``draws_noise``, each has the draws of flow matching.
        """
        self.store, self.pad_id, self.draws_noise = store, pad_id, draws_noise
        self.speakers = {name: number for number, name in enumerate(speakers)}
        self.lengths, self.fingerprint = store.durations, store.fingerprint
        self.length_of_position = store.features.frame_shift

    def example(self, index: int, rng: np.random.Generator) -> TtsExample:
        """Utterance ``index``. Raises DataError for a speaker that training doesn't have."""
        line = self.store.line(index)
        if line.speaker not in self.speakers and len(self.speakers) > 1:
            raise DataError(
                f"{self.describe(index)}: {line.speaker} is not a speaker of training; leave the utterance out, or "
                "split by recording (split_by)"
            )
        durations = None if line.durations is None else np.array(line.durations)
        speaker = self.speakers.get(line.speaker, 0)
        mel, prosody = self.store.frames(index)
        noise_key = draw_key(Purpose.NOISE, int(rng.integers(1 << 32))) if self.draws_noise else None
        return TtsExample(line.name, line.text, np.array(line.ids), mel, durations, speaker, prosody, noise_key)

    def collate(self, rows: list[list[TtsExample]]) -> Batch:
        """Return a batch; each row is one utterance."""
        return collate([row[0] for row in rows], self.pad_id)

    def padding(self, batch: Batch) -> Mapping[str, Padding]:
        frames = Padding(longest=round(self.longest / self.length_of_position))
        symbols = {"symbols": Padding(self.pad_id), "durations": Padding()}
        return {"mel": frames, "noise": frames, "prosody": frames, **symbols}

    def describe(self, index: int) -> str:
        return self.store.describe(index)


def collate(examples: Sequence[TtsExample], pad_id: int) -> Batch:
    """Return a batch of utterances, padded on the right.

    Its tensors: ``mel`` and ``noise`` ``(row, frame, bin)``, ``prosody`` ``(row, frame, 2)``, ``symbols`` and
    ``durations`` ``(row, symbol)``, and ``(row,)`` ``frame_lengths``, ``symbol_lengths``, ``speakers`` and ``times``;
    those that examples don't have are left out.
    """
    symbol_lengths = torch.tensor([len(one.ids) for one in examples])
    frame_lengths = torch.tensor([len(one.mel) for one in examples])
    tensors = {
        "mel": torch.from_numpy(pad_rows([one.mel for one in examples])),
        "symbols": torch.from_numpy(pad_rows([one.ids for one in examples], pad_id)),
        "frame_lengths": frame_lengths,
        "symbol_lengths": symbol_lengths,
        "speakers": torch.tensor([one.speaker for one in examples]),
    }
    durations = [one.durations for one in examples if one.durations is not None]
    if durations:
        tensors["durations"] = torch.from_numpy(pad_rows(durations))
    if examples[0].prosody.shape[1]:
        tensors["prosody"] = torch.from_numpy(pad_rows([one.prosody for one in examples]))
    keys = [one.noise_key for one in examples if one.noise_key is not None]
    if keys:
        # By each example's own key, so noise doesn't depend on which others are in the batch.
        draws = row_draws(keys, frame_lengths.tolist(), tensors["mel"].shape[2])
        tensors |= {"noise": draws.noise, "times": draws.times}
    counts = {
        "frame": frame_lengths,
        "mel_bin": frame_lengths * tensors["mel"].shape[2],
        "phoneme": symbol_lengths,
        "position": frame_lengths + symbol_lengths,
        "example": torch.ones(len(examples)),
    }
    names = {"names": [one.name for one in examples], "texts": [one.text for one in examples]}
    return Batch(tensors, counts, extra=names)
