"""The utterances of a split on disk: random access, none in memory.

FOLDER/
  cuts/                  the cuts, trimmed (vaak.audio.sources.cut_store)
  features/FINGERPRINT/  their features (vaak.audio.features.store)
  utterances.jsonl       a line for each cut: text, symbols, speaker and durations (vaak.core.storage.mapped_lines)
  used.bin               int64, the numbers of the cuts that are used: those with features
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vaak.audio.config import AudioConfig
from vaak.audio.features.prosody import frame_durations
from vaak.audio.features.store import FeatureStore
from vaak.audio.sources.cut_store import CutStore, write_cuts
from vaak.audio.sources.stored_source import extract_cuts
from vaak.audio.sources.utterances import LeftOut, describe
from vaak.audio.waveforms.audio_file import samples_in
from vaak.audio.waveforms.reading import alignment_of, read_samples, segments_of, text_of
from vaak.core.errors import DataError
from vaak.core.storage.files import fingerprint_of, sync_file
from vaak.core.storage.mapped_lines import LineWriter, MappedLines, mapped, writing_lines
from vaak.tasks.tts.utterances.durations import Aligned, aligned_symbols
from vaak.tasks.tts.utterances.reading import phones_of
from vaak.text.speech.processor import PhonemeProcessor, Processed

if TYPE_CHECKING:
    from lhotse.cut import Cut

LINES, USED = "utterances.jsonl", "used.bin"
AT_ONCE = 256
"""Texts that are pronounced together."""


class Line(NamedTuple):
    """What is known of an utterance besides its audio; durations are in frames, None where none are given."""

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
        self.fingerprint = fingerprint_of([self.cuts.fingerprint, self.features.fingerprint, len(self.used)])

    def __len__(self) -> int:
        return len(self.used)

    @property
    def num_bins(self) -> int:
        """Numbers in a frame of the mel spectrogram."""
        return self.features.dims - 2 * self.features.has_pitch

    def line(self, index: int) -> Line:
        """What is known of utterance ``index``."""
        return Line(**json.loads(self._lines[int(self.used[index])]))

    def mel(self, index: int) -> np.ndarray:
        """The mel spectrogram of utterance ``index``, ``(frame, bin)`` float32."""
        return self.frames(index)[0]

    def frames(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """The mel spectrogram, and energy and F0 in Hz (0: unvoiced), ``(frame, 2)``; ``(frame, 0)`` if not stored."""
        found = self.features.frames(int(self.used[index]))
        return found[:, : self.num_bins], found[:, self.num_bins :]

    def describe(self, index: int) -> str:
        """The name and the file of utterance ``index``."""
        return self.cuts.describe(int(self.used[index]))

    def __reduce__(self) -> tuple[Any, ...]:
        return UtteranceStore, (self.folder,)


def write_utterances(
    folder: Path,
    cuts: Iterable[Cut],
    processor: PhonemeProcessor,
    audio: AudioConfig,
    with_durations: bool,
    left_out: LeftOut,
) -> UtteranceStore:
    """Write the utterances ``cuts`` to ``folder`` with their symbols and features, and return the store.

    ``processor`` makes symbols of texts, ``audio`` says which features; ``with_durations``, each utterance must have
    an alignment. What can't be used is ``left_out``. Raises DataError for it, unless bad ones are skipped.
    """
    folder.mkdir(parents=True, exist_ok=True)
    ids = {symbol: number for number, symbol in enumerate(processor.symbols)}
    notes = _Notes(processor, audio, with_durations, left_out, ids)
    with writing_lines(folder / LINES) as lines:
        store = write_cuts(folder / "cuts", _noted(cuts, lines, notes))
    storage = audio.model_copy(update={"storage_path": str(folder / "features")})
    try:
        features = extract_cuts(store, storage, "cpu", skip_bad=left_out.skip_bad)
    except DataError as error:
        left_out.bad(error)
        raise
    for other in features.folder.parent.iterdir():  # of a preparation with other options that was interrupted
        if other != features.folder:
            shutil.rmtree(other)
    used = [index for index in range(len(store)) if _is_usable(store, features, index, storage, left_out)]
    np.array(used, "<i8").tofile(folder / USED)
    sync_file(folder / USED)
    return UtteranceStore(folder)


class _Notes(NamedTuple):
    """What makes the line of an utterance."""

    processor: PhonemeProcessor
    audio: AudioConfig
    with_durations: bool
    left_out: LeftOut
    ids: dict[str, int]
    """Of the processor's symbols."""

    def of(self, cuts: Sequence[Any]) -> Iterator[tuple[Any, Line]]:
        """The lines of some utterances, without those that can't be used."""
        for cut, processed in zip(cuts, self._processed([text_of(cut) or "" for cut in cuts]), strict=True):
            try:
                if isinstance(processed, DataError):
                    raise processed
                yield cut, self._line(cut, processed)
            except DataError as error:
                self.left_out.bad(DataError(f"{describe(cut)}: {error}"))

    def _processed(self, texts: Sequence[str]) -> list[Processed | DataError]:
        """All texts as symbols; where one is wrong, each alone."""
        try:
            return [*self.processor.process_all(texts)]
        except DataError as error:
            return [error] if len(texts) == 1 else [one for text in texts for one in self._processed([text])]

    def _line(self, cut: Any, processed: Processed) -> Line:
        pause, mel = self.processor.pause_id, self.audio.mel
        assert mel is not None
        num_samples, durations = samples_in(cut.duration, mel.sampling_rate), None
        ids, num_frames = [pause, *processed.ids, pause], mel.num_frames(num_samples)
        if num_frames < len(ids):
            raise DataError(
                f"{len(ids)} symbols in {cut.duration:.2f} s, {num_frames} frames: the text is not that of the audio"
            )
        if self.with_durations:
            symbols, ends = self._aligned(cut, processed)
            ids = [self.ids[symbol] for symbol in symbols]
            durations = frame_durations(ends, mel, num_samples).tolist()
        (speaker,) = {segment.speaker for segment in segments_of(cut)}
        return Line(cut.id, speaker, processed.text, ids, durations)

    def _aligned(self, cut: Any, processed: Processed) -> Aligned:
        phones = phones_of(cut)
        if not phones:
            what = "words but no phones" if alignment_of(cut) else "no alignment"
            raise DataError(f"it has {what}; give alignments, or set model.durations: learned")
        symbols = ["sil", *processed.symbols, "sil"]
        return aligned_symbols(symbols, [False, *processed.is_phoneme, False], phones, self.processor)


def _noted(cuts: Iterable[Any], lines: LineWriter, notes: _Notes) -> Iterator[Any]:
    """The cuts of which a line could be written."""
    cuts = iter(cuts)
    while together := list(islice(cuts, AT_ONCE)):
        for cut, line in notes.of(together):
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
        left_out.bad(error)
    return False
