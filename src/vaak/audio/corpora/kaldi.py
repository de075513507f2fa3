"""Folders of Kaldi's, and those that ESPnet dumps: the audio of each recording, and who says what in it.

kaldi    {train,dev,test}/ or data/…: wav.scp, text, utt2spk (segments, rttm, utt2lang, spk2gender)
espnet   dump/raw/{train_nodev,train_dev,test}/: the same; audio in files, or in archives (ark) of wav and flac

Nothing runs: an entry of wav.scp that is a pipe (``sph2pipe … |``) is refused by its name.

Sources: Kaldi, "Data preparation", kaldi-asr.org/doc/data_prep.html; ESPnet 2, egs2/TEMPLATE/asr1; kaldiio.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from vaak.audio.corpora.entries import named_file
from vaak.audio.corpora.json_manifest import PLACE, PROBLEM
from vaak.audio.corpora.layouts import LayoutReader, Line, Row, by_split, keyed_lines
from vaak.audio.cuts.recordings import ReadRecording
from vaak.audio.formats.annotation_lines import read_rttm, read_seconds
from vaak.core.errors import DataError
from vaak.core.storage.archives import ByteRange

_IN_ARCHIVE = re.compile(r"(.+):(\d{1,18})")


class KaldiReader(LayoutReader):
    """Folders of Kaldi's; with ``segments`` or ``rttm`` an entry is a recording with the labels of all of it."""

    EXPECTED = "folders with wav.scp, text and utt2spk"
    PLACES: ClassVar[tuple[str, ...]] = (".", "*", "data/*")
    FILES = ("wav.scp", "segments", "rttm", "text", "utt2spk", "utt2lang", "spk2gender")

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return any(cls._folders(folder))

    @classmethod
    def _folders(cls, folder: Path) -> Iterator[Path]:
        for place in cls.PLACES:
            found = [folder] if place == "." else sorted(folder.glob(place))
            yield from (one for one in found if (one / "wav.scp").is_file() and cls.is_used(one))

    @classmethod
    def is_used(cls, folder: Path) -> bool:
        """Return whether a folder holds original data, not an augmented copy of another folder."""
        return not re.search(r"_(sp|volp|aug|hires)(_|$)", folder.name)

    def find_parts(self) -> dict[str, list[Path]]:
        return by_split(self._folders(self.root), self.root)

    def list_files(self, part: Path) -> list[Path]:
        found = [part / name for name in self.FILES if (part / name).is_file()]
        if not found or found[0].name != "wav.scp":
            raise DataError(f"{self.where}: {part} has no wav.scp; give folders of Kaldi's")
        return found

    def list_folders(self, part: Path) -> tuple[Path, ...]:
        return (self.root, part, *self.roots)

    def lines(self, part: Path) -> Iterator[Line]:
        said: dict[str, dict[str, str]] = {"text": {}, "utt2spk": {}, "utt2lang": {}, "spk2gender": {}}
        for name, values in said.items():
            if (part / name).is_file():
                values.update({key: value for _, key, value in keyed_lines(part / name)})

        def about(utterance: str) -> Row:
            speaker = said["utt2spk"].get(utterance)
            more = {"language": said["utt2lang"].get(utterance), "gender": said["spk2gender"].get(speaker or "")}
            known = {"text": said["text"].get(utterance), "speaker": speaker, **more}
            # Absent values are left out, not null: the reader then takes them for missing keys.
            return {key: value for key, value in known.items() if value is not None}

        segments = self._segments(part, about)
        for where, name, audio in keyed_lines(part / "wav.scp"):
            entry: Row = {"id": name, "audio": audio.strip()}
            yield Line(where, entry | (about(name) if segments is None else {"segments": segments.get(name)}))

    def _segments(self, part: Path, about: Callable[[str], Row]) -> dict[str, list[Row]] | None:
        """Who says what when in each recording; None if the entries are utterances."""
        found: dict[str, list[Row]] = defaultdict(list)
        # If there are both, RTTM wins over ``segments``; its speech then has no texts.
        if (part / "rttm").is_file():
            for name, segments in read_rttm(part / "rttm", keep_bad=True).items():
                found[name] = [
                    {"start": one.start, "end": one.end, "speaker": one.speaker}
                    | {PLACE: getattr(one, "where", ""), PROBLEM: getattr(one, "problem", "")}
                    for one in segments
                ]
            return found
        if not (part / "segments").is_file():
            return None
        for where, utterance, rest in keyed_lines(part / "segments"):
            fields = rest.split()
            expected = "expected UTTERANCE RECORDING START END, in seconds"
            if not fields:
                raise DataError(f"{where}: {expected}")
            # The recording is known, so the bad line counts as a label of it that can't be used.
            if len(fields) < 3:
                found[fields[0]].append({"start": 0.0, "end": 0.0, PLACE: where, PROBLEM: expected})
                continue
            (start, problem), (end, later) = (
                read_seconds(text, what, where, keep_bad=True)
                for text, what in zip(fields[1:3], ("start", "end"), strict=True)
            )
            one = {"start": start, "end": end, **about(utterance), PLACE: where, PROBLEM: problem or later}
            found[fields[0]].append(one)
        return found

    def named_files(self) -> Iterator[tuple[str, Path]]:
        for name, path in super().named_files():
            archive = _IN_ARCHIVE.fullmatch(str(path))
            yield name, path if archive is None else Path(archive[1])

    def reading(self, line: Line, part: Path) -> ReadRecording:
        """Return a line of ``wav.scp``, which may name an entry of an archive: FILE.ark:OFFSET."""
        name = str(line.entry["audio"])
        if name == "-":
            raise DataError(f"{line.where}: audio from standard input is refused; save it as a file")
        # Pipes ("sox … |") don't match and fail later as files that don't exist: nothing is executed.
        archive = _IN_ARCHIVE.fullmatch(name)
        if archive is not None:
            path = named_file(self.list_folders(part), archive[1], line.where)
            line = line._replace(part=ark_entry(path, int(archive[2]), line.where))
        return super().reading(line, part)


class EspnetReader(KaldiReader):
    """Dumps of ESPnet: folders of Kaldi's whose audio is in files or archives; names are as seen from the recipe."""

    EXPECTED = "dump/raw with folders that have wav.scp, text and utt2spk"
    PLACES: ClassVar = ("dump/raw/*", "*")
    DUMP = "dump/raw/"

    def lines(self, part: Path) -> Iterator[Line]:
        for line in super().lines(part):
            name = str(line.entry["audio"])
            if name.startswith(self.DUMP) and not (self.root / self.DUMP).is_dir():
                # corpus_dir is dump/raw itself.
                line.entry["audio"] = name.removeprefix(self.DUMP)
            yield line


def ark_entry(path: Path, offset: int, where: str) -> ByteRange:
    """The audio at an offset of an archive: a WAV or FLAC file, or one with its length before it, as kaldiio writes it.

    Raises DataError for anything else: nothing is unpickled.
    """
    try:
        with open(path, "rb") as file:
            file.seek(offset)
            mark = file.read(5)
            if mark == b"AUDIO":
                # kaldiio writes the number of bytes of the length, then the length.
                width = int.from_bytes(file.read(1))
                size = int.from_bytes(file.read(width), "little") if width <= 8 else 0
                return ByteRange(path, file.tell(), size)
            if mark[:4] == b"RIFF":
                file.seek(offset + 4)
                # RIFF's own length says where the file ends inside the archive.
                return ByteRange(path, offset, struct.unpack("<I", file.read(4))[0] + 8)
            if mark[:4] == b"fLaC":
                # FLAC's header has no size in bytes, so take everything up to the end of the archive.
                return ByteRange(path, offset, path.stat().st_size - offset)
    except (OSError, struct.error) as error:
        raise DataError(f"{where}: {path}: can't be read: {getattr(error, 'strerror', None) or error}") from error
    raise DataError(f"{where}: {path}:{offset} isn't audio of an archive (WAV, FLAC); matrices and pickles aren't read")
