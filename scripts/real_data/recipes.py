"""How each file of the folder is made from what was downloaded.

LINES    candidates for the lines of a text, from its sources; the list of hashes chooses and orders them
FILES    the bytes of any other file
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
import unicodedata
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import soundfile

from real_data.lists import Entry, samples_digest

LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"
LABELS = {
    "rt-polarity.neg": "negative",
    "rt-polarity.pos": "positive",
    "plot.tok.gt9.5000": "objective",
    "quote.tok.gt9.5000": "subjective",
}
DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def tidy(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).split())


def json_line(row: dict[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False)


@dataclass(frozen=True)
class Work:
    """A file to make: its downloaded sources, the folder with the files made so far, and the lists."""

    entry: Entry
    paths: list[Path]
    folder: Path
    contents: list[Entry]
    lists: Path


def text_lines(paths: list[Path]) -> Iterator[str]:
    for path in paths:
        yield from map(tidy, path.read_text(encoding="utf-8").split("\n"))


def sentences_of_squad(paths: list[Path]) -> Iterator[str]:
    """The sentences of the paragraphs of a file like SQuAD's; they end with a danda or a mark."""
    for article in json.loads(paths[0].read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            yield from re.split(r"(?<=[।?!])\s+", tidy(paragraph["context"]))


def tatoeba_pairs(paths: list[Path]) -> Iterator[str]:
    for line in paths[0].read_text(encoding="utf-8").splitlines():
        yield json_line(dict(zip(("en", "hi", "attribution"), map(tidy, line.split("\t")), strict=False)))


def tmx_pairs(paths: list[Path]) -> Iterator[str]:
    for unit in ElementTree.parse(paths[0]).iter("tu"):
        texts = {part.get(LANGUAGE): tidy("".join(part.itertext())) for part in unit.iter("tuv")}
        yield json_line({"id": unit.get("tuid"), "en": texts.get("en"), "hi": texts.get("hi")})


def references(paths: list[Path]) -> Iterator[str]:
    """Line by line, a Hindi sentence and its English translations, one file each."""
    texts = (unicodedata.normalize("NFC", path.read_text(encoding="utf-8")).split("\n") for path in paths)
    for hindi, *english in zip(*texts, strict=True):
        yield json_line({"hi": hindi.strip(), "en": [one.strip() for one in english]})


def opinions(paths: list[Path]) -> Iterator[str]:
    """The sentences of an archive of NLTK, a file for each label. Their encoding isn't known: each is read as two."""
    rows = []
    with zipfile.ZipFile(paths[0]) as archive:
        names = [name for name in archive.namelist() if Path(name).name in LABELS]
        for name, encoding in itertools.product(names, ("utf-8", "latin-1")):
            lines = archive.read(name).decode(encoding, "replace").split("\n")
            rows += [{"text": tidy(line), "label": LABELS[Path(name).name]} for line in lines]
    return _json_list(rows)


def intents(paths: list[Path]) -> Iterator[str]:
    """The requests of clinc150; one within the scope also has the domain of its intent."""
    requests, domains = (json.loads(path.read_text(encoding="utf-8")) for path in paths)
    domain_of = {intent: {"domain": domain} for domain, intents in domains.items() for intent in intents}
    pairs = itertools.chain.from_iterable(requests.values())
    return _json_list({"text": text.strip(), "label": label, **domain_of.get(label, {})} for text, label in pairs)


def _json_list(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The lines of a JSON list. All rows but the last are followed by a comma, and any could be the last."""
    yield from ("[", "]")
    for line in map(json_line, rows):
        yield from (line, line + ",")


def audio(work: Work) -> bytes:
    """FLAC of 16 bits. How floating-point samples were rounded isn't known: the way that gives the listed samples."""
    if work.paths[0].suffix == ".flac":
        return work.paths[0].read_bytes()
    samples, rate = soundfile.read(work.paths[0])
    rounded = np.rint(samples * 2**15).clip(-(2**15), 2**15 - 1).astype(np.int16)
    encoded = [_flac(samples, rate), _flac(rounded, rate)]
    digests = [samples_digest(soundfile.read(io.BytesIO(one), dtype="int16")[0]) for one in encoded]
    return encoded[digests.index(work.entry.digest)] if work.entry.digest in digests else encoded[0]


def _flac(samples: np.ndarray, rate: int) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate, format="FLAC", subtype="PCM_16")
    return file.getvalue()


def fields(work: Work) -> bytes:
    """RTTM or UEM in ASCII, only of the recording of this name if the file has it."""
    text = unicodedata.normalize("NFKD", work.paths[0].read_text(encoding="utf-8")).encode("ascii", "ignore").decode()
    rows = [line.split() for line in text.splitlines()]
    own = [row for row in rows if row[1:2] == [Path(work.entry.file).stem]]
    return "".join(" ".join(row) + "\n" for row in own or rows).encode()


def whole(work: Work) -> bytes:
    """The UEM of a recording that is scored throughout."""
    recording = work.folder / work.entry.remark
    return f"{recording.stem} 1 0.000 {soundfile.info(recording).duration:.3f}\n".encode()


def utterances(work: Work) -> bytes:
    """The manifest of the recordings that have a text."""
    texts = _transcripts(work.paths)
    rows = []
    for row in _recordings(work):
        split = "train" if int(hashlib.md5(row["id"].encode()).hexdigest(), 16) % 5 else "test"
        name, path = row.pop("id"), row.pop("audio")
        rows.append({"id": name, "audio": path, "text": texts[name], **row, "split": split})
    return _manifest(rows)


def speakers(work: Work) -> bytes:
    """The manifest of recordings without a text."""
    return _manifest(_recordings(work))


def digits(work: Work) -> bytes:
    """The manifest of recordings of one digit, DIGIT_SPEAKER_TAKE; its authors test on the first five takes."""
    rows = []
    for row in _recordings(work):
        digit, speaker, take = row["id"].split("_")
        rows.append(
            {
                "id": row["id"],
                "audio": row["audio"],
                "text": DIGITS[int(digit)],
                "digit": int(digit),
                "speaker": speaker,
                "gender": row["gender"],
                "accent": row["corpus"],
                "native_english": row["corpus"].startswith("USA/"),
                "duration": row["duration"],
                "sampling_rate": row["sampling_rate"],
                "split": "test" if int(take) < 5 else "train",
            }
        )
    return _manifest(rows)


def _recordings(work: Work) -> Iterator[dict[str, Any]]:
    """A row for each recording in the folder that the remark names."""
    base = Path(work.entry.file).parent
    for recording in work.contents:
        if recording.file.startswith(work.entry.remark):
            path = Path(recording.file)
            gender, corpus = recording.remark.split()
            header = soundfile.info(work.folder / path)
            yield {
                "id": path.stem,
                "audio": path.relative_to(base).as_posix(),
                "speaker": path.stem.partition("-")[0],
                "gender": gender,
                "corpus": corpus,
                "duration": round(header.duration, 4),
                "sampling_rate": header.samplerate,
            }


def _transcripts(paths: list[Path]) -> dict[str, str]:
    """Texts in capitals by utterance: of tables, of a mixed cut of Lhotse, and of files that hold one text."""
    texts: dict[str, str] = {}
    for path in paths:
        content = path.read_text(encoding="utf-8")
        if path.suffix == ".tsv":
            rows = (line.split("\t") for line in content.splitlines())
            texts.update((name, text) for name, text, *_ in rows)
        elif path.suffix == ".json":
            cuts = (track["cut"] for mixed in json.loads(content) for track in mixed["tracks"])
            texts.update((one["id"], one["text"]) for cut in cuts for one in cut["supervisions"])
        else:
            texts[path.stem] = content.strip()
    return {name: text.upper() for name, text in texts.items()}


def excerpts(work: Work) -> bytes:
    """The manifest of the excerpts of meetings, with seconds of speech and level."""
    rows = []
    for recording in work.contents:
        if recording.file.startswith(work.entry.remark):
            uri = Path(recording.file).stem
            samples, rate = soundfile.read(work.folder / recording.file)
            turns = [line.split() for line in (work.folder / f"diarization/rttm/{uri}.rttm").read_text().splitlines()]
            spans = [(float(turn[3]), float(turn[3]) + float(turn[4])) for turn in turns]
            rows.append(
                {
                    "uri": uri,
                    **{kind: f"{kind}/{uri}.{suffix}" for kind, suffix in PARTS},
                    "duration": round(len(samples) / rate, 3),
                    "speakers": sorted({turn[7] for turn in turns}),
                    "segments": len(turns),
                    "speech_s": round(_seconds_of(spans, 1), 2),
                    "overlap_s": round(_seconds_of(spans, 2), 2),
                    "peak": round(float(np.abs(samples).max()), 3),
                    "rms": round(float(np.sqrt(np.square(samples).mean())), 4),
                }
            )
    return _manifest(rows)


PARTS = (("audio", "flac"), ("rttm", "rttm"), ("uem", "uem"))


def _seconds_of(spans: list[tuple[float, float]], at_least: int) -> float:
    """Seconds in which this number of spans overlap, or more."""
    times = sorted({time for span in spans for time in span})
    active = (sum(begin <= time < end for begin, end in spans) for time in times)
    lengths = (end - begin for begin, end in itertools.pairwise(times))
    return sum((length for length, number in zip(lengths, active, strict=False) if number >= at_least), 0.0)


def _manifest(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def unchanged(work: Work) -> bytes:
    return work.paths[0].read_bytes()


def ours(work: Work) -> bytes:
    """A file that was made for Vaak, and comes with the lists."""
    return (work.lists / "ours" / work.entry.file).read_bytes()


LINES: dict[str, Callable[[list[Path]], Iterator[str]]] = {
    "text": text_lines,
    "squad": sentences_of_squad,
    "tatoeba": tatoeba_pairs,
    "tmx": tmx_pairs,
    "references": references,
    "opinions": opinions,
    "intents": intents,
}
FILES: dict[str, Callable[[Work], bytes]] = {
    one.__name__: one for one in (audio, fields, whole, utterances, speakers, digits, excerpts, unchanged, ours)
}
