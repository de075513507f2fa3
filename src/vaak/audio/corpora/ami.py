"""Meetings of AMI with its manual annotations, as downloaded: who says what when, on a microphone.

amicorpus/MEETING/audio/MEETING.MIC.wav
ami_public_manual_1.6.2/words/MEETING.A.words.xml  segments/MEETING.A.segments.xml  corpusResources/meetings.xml

Splits are those of the full corpus for ASR. Sources: Carletta et al. 2005, "The AMI Meeting Corpus";
groups.inf.ed.ac.uk/ami/corpus/datasets.shtml.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree
from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from vaak.audio.corpora.json_manifest import PLACE, PROBLEM
from vaak.audio.corpora.layouts import LayoutReader, Line, Row
from vaak.audio.formats.annotation_lines import read_content, read_seconds
from vaak.core.errors import DataError, optional_import
from vaak.core.splits import SPLITS


class AmiReader(LayoutReader):
    """The meetings on the microphone of ``options: {mic: …}``, the name of a file between its dots.

    Mix-Headset (default), Array1-01, … have all speakers; Headset is the microphone of each, with what its own says.
    """

    EXPECTED = "words and segments of the manual annotations, and MEETING/audio/MEETING.Mix-Headset.wav"

    @classmethod
    def is_root(cls, folder: Path) -> bool:
        return cls._annotations_in(folder) is not None and any(folder.glob("**/audio/*.wav"))

    @classmethod
    def _annotations_in(cls, folder: Path) -> Path | None:
        places = (folder, *sorted(folder.glob("*")))
        return next((one for one in places if (one / "words").is_dir() and (one / "segments").is_dir()), None)

    @cached_property
    def annotations(self) -> Path:
        found = self._annotations_in(self.root)
        assert found is not None
        return found

    def find_parts(self) -> dict[str, list[Path]]:
        with optional_import("type: ami requires lhotse", "audio"):
            from lhotse.recipes.ami import PARTITIONS
        mic = str(self.dataset.options.get("mic", "Mix-Headset"))
        places = {name: split for split, names in PARTITIONS["full-corpus-asr"].items() for name in names}
        # Headset stands for the headsets of all speakers, each a recording with its own speaker's segments.
        pattern = re.compile(rf"{re.escape(mic)}(-\d+)?" if mic == "Headset" else re.escape(mic))
        parts: dict[str, list[Path]] = defaultdict(list)
        for path in sorted(self.root.glob("**/audio/*.wav")):
            meeting, _, own = path.stem.partition(".")
            if meeting in places and pattern.fullmatch(own):
                parts[{"dev": "valid"}.get(places[meeting], places[meeting])].append(path)
        if not parts:
            raise DataError(f"{self.where}: {self.root} has no audio of {mic} (options: {{mic: …}})")
        return {split: parts[split] for split in SPLITS if split in parts}

    @cached_property
    def _speakers(self) -> dict[tuple[str, str], tuple[str, str]]:
        """Name and channel of each speaker, by meeting and letter."""
        path = self.annotations / "corpusResources" / "meetings.xml"
        if not path.is_file():
            return {}
        return {
            (meeting.get("observation", ""), one.get("nxt_agent", "")): (
                one.get("global_name", ""),
                one.get("channel", ""),
            )
            for meeting in read_xml(path).iter("meeting")
            for one in meeting.iter("speaker")
        }

    def list_files(self, part: Path) -> list[Path]:
        meeting = part.name.partition(".")[0]
        folders = (self.annotations / "words", self.annotations / "segments")
        return [part, *(path for folder in folders for path in sorted(folder.glob(f"{meeting}.*.xml")))]

    def lines(self, part: Path) -> Iterator[Line]:
        meeting, _, mic = part.stem.partition(".")
        headset = re.fullmatch(r"Headset-(\d+)", mic)
        segments: list[Row] = []
        for path in sorted((self.annotations / "segments").glob(f"{meeting}.*.segments.xml")):
            letter = path.name.split(".")[1]
            # Without meetings.xml, speakers are named by meeting, and letters give the headsets in order.
            unknown = f"{meeting}.{letter}", str("ABCDE".find(letter))
            name, channel = self._speakers.get((meeting, letter), unknown)
            if headset is None or channel == headset[1]:
                segments += self._read_segments(path, name)
        audio = str(part.absolute().relative_to(self.root.absolute()))
        yield Line(str(part), {"id": part.stem, "audio": audio, "segments": segments})

    def _read_segments(self, path: Path, speaker: str) -> Iterator[Row]:
        """Who speaks when, and the words between the first and the last that a segment names."""
        of_words = self.annotations / "words" / path.name.replace(".segments.", ".words.")
        spoken = list(read_xml(of_words)) if of_words.is_file() else []
        places = {one.get(_ID): place for place, one in enumerate(spoken)}
        content = read_content(path)
        for segment in read_xml(path).iter("segment"):
            named = [
                places[name] for child in segment for name in _HREF.findall(child.get("href", "")) if name in places
            ]
            # A segment names its first and last word; all words between belong to it, but not vocal sounds and gaps.
            own = [one for one in spoken[min(named) : max(named) + 1] if one.tag == "w"] if named else []
            # punctuation has no space before it
            words = (("" if one.get("punc") == "true" else " ") + (one.text or "").strip() for one in own)
            text = "".join(words).strip()
            times, problem = list[float](), ""
            for name in ("transcriber_start", "transcriber_end"):
                seconds, why = read_seconds(segment.get(name, ""), name, "", keep_bad=True)
                times, problem = [*times, seconds], problem or why
            said = {"text": text} if text else {}
            place = f"{_find_place(segment, path, content)}, segment {segment.get(_ID)}"
            about = {PLACE: place, **({PROBLEM: problem} if problem else {})}
            yield {"start": times[0], "end": times[1], "speaker": speaker, **said, **about}


def _find_place(segment: xml.etree.ElementTree.Element, path: Path, content: bytes) -> str:
    """File and line of a segment: those of its id, which only it has."""
    found = content.find(f'"{segment.get(_ID)}"'.encode())
    line = content[: max(found, 0)].count(b"\n") + 1
    return f"{path}:{line}" if found >= 0 else str(path)


_ID = "{http://nite.sourceforge.net/}id"
_HREF = re.compile(r"id\(([^)]*)\)")


def read_xml(path: Path) -> xml.etree.ElementTree.Element:
    """Return the root of a file. Entities aren't expanded and nothing else is opened. Raises DataError."""
    content = read_content(path)
    if b"<!ENTITY" in content:
        raise DataError(f"{path}: this XML defines entities, which is refused")
    try:
        return xml.etree.ElementTree.fromstring(content)
    except xml.etree.ElementTree.ParseError as error:
        raise DataError(f"{path}: this is not XML: {error}") from error
