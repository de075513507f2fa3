"""The layout of LJ Speech: a line for each utterance of one speaker, without a header.

CORPUS/metadata.csv   LJ001-0007|the Bible of about 1455,|the Bible of about fourteen fifty-five,
CORPUS/wavs/          LJ001-0007.wav
CORPUS/TextGrid/      LJ001-0007.TextGrid, at any depth: alignments, where the corpus has them

The third field, the text in words, is what is spoken; without one it is the second. Blank lines are skipped. The
speaker is called as the dataset. There are no splits: valid and test are split off by the hash of the utterance's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.entries import entries_of, lacks_train, named_file, place_of, roots_of
from vaak.audio.formats.annotation_lines import decoded, read_content
from vaak.audio.labelled import Segment
from vaak.audio.waveforms.audio_file import read_header
from vaak.audio.waveforms.reading import NO_TIMES
from vaak.audio.waveforms.recordings import Labelled, ReadRecording, attempted, label, recording_cut
from vaak.core.errors import DataError
from vaak.core.progress import followed

METADATA, WAVS, TEXTGRIDS = "metadata.csv", "wavs", "TextGrid"


def in_place(dataset: DatasetConfig, audio: AudioConfig) -> DatasetConfig:
    """The dataset with its folder, its metadata and its TextGrids; those that it names itself stay."""
    folder = Path(dataset.corpus_dir or Path(audio.corpus_dir) / dataset.name).expanduser()
    found = {"corpus_dir": str(folder)}
    if dataset.alignments is None and (folder / TEXTGRIDS).is_dir():
        found["alignments"] = str(folder / TEXTGRIDS)
    names = {} if dataset.train or dataset.valid or dataset.test else {"train": (METADATA,)}
    return dataset.model_copy(update={**found, **names})


class LJSpeechReader:
    """The utterances of a corpus (``vaak.core.corpus.Source``)."""

    def __init__(self, dataset: DatasetConfig) -> None:
        """Look up the files of metadata. Raises DataError for those that don't exist."""
        self.lacks_train, self._roots = lacks_train(dataset), roots_of(dataset)
        self.speaker, self._metadata = dataset.name, entries_of(dataset)
        self.given = tuple(self._metadata)
        self.files = sorted({path for paths in self._metadata.values() for path in paths})

    def read(self, split: str) -> Iterator[ReadRecording]:
        for path in self._metadata[split]:
            lines = read_content(path).splitlines()
            for number, line in enumerate(followed(lines, f"utterances of {split}", len(lines)), start=1):
                if line.strip():
                    name, where = line.partition(b"|")[0].decode(errors="replace"), f"{path}:{number}"
                    yield attempted(name, partial(self._reading, line, path.parent, where))

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for path in self.files:
            for line in read_content(path).splitlines():
                name = f"{WAVS}/{line.partition(b'|')[0].decode(errors='replace').strip()}.wav"
                yield name, place_of((path.parent, *self._roots), name)

    def _reading(self, line: bytes, folder: Path, where: str) -> ReadRecording:
        fields = [field.strip() for field in decoded(line, where).split("|")]
        if len(fields) not in (2, 3):
            raise DataError(f"{where}: expected id|text|text in words, found {len(fields)} fields")
        name, text = fields[0], fields[-1] or fields[1]
        if not name or not text:
            raise DataError(f"{where}: {'the text' if name else 'the id'} is empty; remove the line or complete it")
        path = named_file((folder, *self._roots), f"{WAVS}/{name}.wav", where)
        try:
            cut = recording_cut(name, path, read_header(path))
        except DataError as error:
            raise DataError(f"{where}: {error}") from error
        label(cut, [Labelled(Segment(0.0, cut.duration, self.speaker), text, None, {NO_TIMES: True})])
        return ReadRecording(name, cut)
