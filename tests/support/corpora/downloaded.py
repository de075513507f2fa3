"""Small corpora in the layouts in which they are downloaded, with the file names and columns of the real ones.

Each function writes one to a folder and returns the speaker and text of each utterance, by split.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from tiny_audio import noise, write_audio

Said = dict[str, list[tuple[str | None, str | None]]]
RATE = 16000
SECONDS = 0.3
CV_COLUMNS = (
    *("client_id", "path", "sentence_id", "sentence", "sentence_domain", "up_votes", "down_votes", "age", "gender"),
    *("accents", "variant", "locale", "segment"),
)
TEXTS = ("वह घर गया।", "She said so.", "so it is", "no more")


def audio_bytes(seconds: float = SECONDS, kind: str = "FLAC", seed: int = 0) -> bytes:
    """An encoded file of noise."""
    buffer = io.BytesIO()
    soundfile.write(buffer, noise(round(seconds * RATE), seed=seed), RATE, format=kind)
    return buffer.getvalue()


def commonvoice(folder: Path, language: str = "hi") -> Said:
    """A tarball of Common Voice, unpacked: cv-corpus-21.0-2025-03-14/hi with MP3 of 32 kHz."""
    root = folder / "cv-corpus-21.0-2025-03-14" / language
    quoted = '"""Go"", he said."'
    rows = {
        "train": [("s1" * 64, "1", TEXTS[0]), ("s2" * 64, "2", quoted)],
        "dev": [("s3" * 64, "3", 'the "other" one')],
        "test": [("s4" * 64, "4", TEXTS[2])],
        "validated": [("s1" * 64, "1", TEXTS[0])],
        "other": [],
    }
    for name, utterances in rows.items():
        lines = ["\t".join(CV_COLUMNS)]
        for speaker, number, text in utterances:
            path = f"common_voice_{language}_{number}.mp3"
            write_audio(root / "clips" / path, SECONDS, 32000, format="MP3")
            cells = (speaker, path, "0" * 64, text, "", "2", "0", "twenties", "female_feminine", "", "", language, "")
            lines.append("\t".join(cells))
        (root / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (root / "clip_durations.tsv").write_text("clip\tduration[ms]\ncommon_voice_hi_1.mp3\t300\n")
    return {
        "train": [("s1" * 64, TEXTS[0]), ("s2" * 64, '"Go", he said.')],
        "valid": [("s3" * 64, 'the "other" one')],
        "test": [("s4" * 64, TEXTS[2])],
    }


def fleurs(folder: Path) -> Said:
    """FLEURS: hi_in with tables without a header, and a folder of audio for each."""
    said: Said = {}
    for split, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        lines = []
        for number, text in enumerate(TEXTS[:2]):
            file = f"{split}{number}.wav"
            write_audio(folder / "hi_in" / "audio" / name / file, SECONDS, RATE)
            spelled = " ".join(text.replace(" ", "|"))
            lines.append("\t".join(("1", file, text.upper(), text, spelled, str(round(SECONDS * RATE)), "FEMALE")))
        (folder / "hi_in" / f"{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        said[split] = [(None, text) for text in TEXTS[:2]]
    return said


def librispeech(folder: Path) -> Said:
    """LibriSpeech: a file of transcripts for each chapter."""
    root, said = folder / "LibriSpeech", dict[str, list[tuple[str | None, str | None]]]()
    parts = {"train-clean-100": (19, "train"), "train-other-500": (20, "train"), "dev-clean": (84, "valid")}
    for part, (speaker, split) in {**parts, "test-clean": (61, "test")}.items():
        chapter = root / part / str(speaker) / "198"
        lines = []
        for number, text in enumerate(TEXTS[2:]):
            name = f"{speaker}-198-{number:04}"
            write_audio(chapter / f"{name}.flac", SECONDS, RATE)
            lines.append(f"{name} {text.upper()}")
            said.setdefault(split, []).append((str(speaker), text.upper()))
        (chapter / f"{speaker}-198.trans.txt").write_text("\n".join(lines) + "\n")
    about = "; ID | SEX | SUBSET | MINUTES | NAME\n19   | F | train-clean-100 | 25.0 | Kara Shallenberg\n"
    (root / "SPEAKERS.TXT").write_text(about)
    return said


def voxpopuli(folder: Path) -> Said:
    """VoxPopuli: tables of transcripts, one of them compressed, and a folder for each year, or of Hugging Face's."""
    root = folder / "transcribed_data" / "hr"
    header = ("id", "raw_text", "normalized_text", "speaker_id", "split", "gender", "is_gold_transcript", "accent")
    said: Said = {}
    for split, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        lines = ["\t".join(header)]
        for number, speaker in enumerate(("118860", "None")):
            one = f"2009020{number}-0900-PLENARY-{name}-hr_20090202-18:00:5{number}_2"
            place = "2009" if number else f"{name}/{name}_part_0"
            write_audio(root / place / f"{one}.{'ogg' if number else 'wav'}", SECONDS, RATE)
            lines.append("\t".join((one, "To je to.", "to je to", speaker, name, "male", "True", "None")))
        text = "\n".join(lines) + "\n"
        if split == "train":
            (root / f"asr_{name}.tsv.gz").write_bytes(gzip.compress(text.encode()))
        else:
            (root / f"asr_{name}.tsv").write_text(text)
        said[split] = [("118860", "to je to"), (None, "to je to")]
    return said


def nemo(folder: Path) -> Said:
    """Manifests of NeMo: absolute and relative names, and a section of a longer file."""
    said: Said = {}
    write_audio(folder / "wavs" / "long.wav", 4 * SECONDS, RATE)
    for split, name in (("train", "train"), ("valid", "dev"), ("test", "test")):
        file = folder / "wavs" / f"{name}.wav"
        write_audio(file, SECONDS, RATE)
        lines = [
            {"audio_filepath": str(file.absolute()), "duration": SECONDS, "text": TEXTS[0], "lang": "hi"},
            {"audio_filepath": "wavs/long.wav", "offset": SECONDS, "duration": SECONDS, "text": "so", "speaker": name},
        ]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / f"{name}_manifest.json").write_text(text)
        said[split] = [(None, TEXTS[0]), (name, "so")]
    (folder / "config.json").write_text('{\n  "sample_rate": 16000\n}\n')
    return said


def _kaldi_folder(folder: Path, audio: list[str], names: list[str], texts: bool = True) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "wav.scp").write_text("".join(f"{n} {a}\n" for n, a in zip(names, audio, strict=True)))
    if texts:
        (folder / "text").write_text("".join(f"{n} {TEXTS[0]}\n" for n in names), encoding="utf-8")
        (folder / "utt2spk").write_text("".join(f"{n} {n.partition('-')[0]}\n" for n in names))


def kaldi(folder: Path) -> Said:
    """Kaldi's data/train with segments, data/dev of utterances, data/eval with RTTM."""
    for name in ("call1", "call2", "u1", "u2", "meeting"):
        write_audio(folder / "wavs" / f"{name}.wav", 4 * SECONDS, RATE)
    _kaldi_folder(folder / "data" / "train", ["wavs/call1.wav", "wavs/call2.wav"], ["call1", "call2"], texts=False)
    segments = [("ann-1", "call1", 0.0, 0.5), ("bob-1", "call1", 0.6, 1.1), ("ann-2", "call2", 0.1, 1.0)]
    train = folder / "data" / "train"
    (train / "segments").write_text("".join(f"{u} {r} {s:.2f} {e:.2f}\n" for u, r, s, e in segments))
    (train / "text").write_text("ann-1 so it is\nbob-1 no\nann-2 more\n")
    (train / "utt2spk").write_text("ann-1 ann\nann-2 ann\nbob-1 bob\n")
    _kaldi_folder(folder / "data" / "dev", [str((folder / "wavs" / "u1.wav").absolute())], ["cat-1"])
    _kaldi_folder(folder / "data" / "eval", ["wavs/meeting.wav"], ["meeting"], texts=False)
    rttm = "SPEAKER meeting 1 0.10 0.40 <NA> <NA> dan <NA> <NA>\nSPEAKER meeting 1 0.30 0.50 <NA> <NA> eve <NA> <NA>\n"
    (folder / "data" / "eval" / "rttm").write_text(rttm)
    _kaldi_folder(folder / "data" / "train_sp", ["wavs/u2.wav"], ["sp0.9-ann-1"])
    train_said: list[tuple[str | None, str | None]] = [("ann", "so it is"), ("bob", "no"), ("ann", "more")]
    return {"train": train_said, "valid": [("cat", TEXTS[0])], "test": [("dan", None), ("eve", None)]}


def write_ark(path: Path, files: dict[str, bytes], with_length: bool) -> dict[str, str]:
    """An archive of encoded audio, as kaldiio writes it; the entries of wav.scp."""
    path.parent.mkdir(parents=True, exist_ok=True)
    places: dict[str, str] = {}
    with open(path, "wb") as ark:
        for name, content in files.items():
            ark.write(f"{name} ".encode())
            places[name] = f"{ark.tell()}"
            if with_length:
                width = -(-len(content).bit_length() // 8)
                ark.write(b"AUDIO" + struct.pack("<B", width) + len(content).to_bytes(width, "little"))
            ark.write(content)
    return places


def espnet(folder: Path) -> Said:
    """ESPnet's dump/raw: FLAC in an archive, WAV in an archive, and files; names as seen from the recipe."""
    raw = folder / "dump" / "raw"
    flac = {f"ann-{n}": audio_bytes(seed=n) for n in (1, 2)}
    places = write_ark(raw / "train_nodev" / "data" / "wav_0.ark", flac, with_length=True)
    names = [f"dump/raw/train_nodev/data/wav_0.ark:{place}" for place in places.values()]
    _kaldi_folder(raw / "train_nodev", names, list(places))
    wav = write_ark(raw / "train_dev" / "data" / "wav.ark", {"bob-1": audio_bytes(kind="WAV")}, with_length=False)
    _kaldi_folder(raw / "train_dev", [f"dump/raw/train_dev/data/wav.ark:{place}" for place in wav.values()], list(wav))
    write_audio(raw / "test" / "data" / "format.1" / "cat-1.flac", SECONDS, RATE)
    _kaldi_folder(raw / "test", ["dump/raw/test/data/format.1/cat-1.flac"], ["cat-1"])
    for part in ("train_nodev", "train_dev", "test"):
        (raw / part / "feats_type").write_text("raw\n")
    return {"train": [("ann", TEXTS[0])] * 2, "valid": [("bob", TEXTS[0])], "test": [("cat", TEXTS[0])]}


_NITE = 'xmlns:nite="http://nite.sourceforge.net/"'


def ami(folder: Path) -> Said:
    """AMI: headset mix, two headsets and an array of a meeting of each split, and the manual annotations."""
    manual = folder / "ami_public_manual_1.6.2"
    meetings = {"train": "ES2002a", "valid": "ES2011a", "test": "ES2004a"}
    for kind in ("words", "segments", "corpusResources"):
        (manual / kind).mkdir(parents=True)
    about = []
    for number, meeting in enumerate(meetings.values()):
        for mic in ("Mix-Headset", "Headset-0", "Headset-1", "Array1-01"):
            write_audio(folder / "amicorpus" / meeting / "audio" / f"{meeting}.{mic}.wav", 2.0, RATE)
        agents = []
        for channel, agent in enumerate("AB"):
            agents.append(f'<speaker nite:id="s{number}{agent}" nxt_agent="{agent}" channel="{channel}" '
                          f'global_name="F{number}{agent}"/>')  # fmt: skip
            words = [
                f'<w nite:id="{meeting}.{agent}.words0" starttime="0.1" endtime="0.3">Okay</w>',
                f'<w nite:id="{meeting}.{agent}.words1" starttime="0.3" endtime="0.3" punc="true">,</w>',
                f'<vocalsound nite:id="{meeting}.{agent}.words2" starttime="0.3" endtime="0.4" type="laugh"/>',
                f'<w nite:id="{meeting}.{agent}.words3" starttime="0.4" endtime="0.8">it&#39;s on</w>',
                f'<w nite:id="{meeting}.{agent}.words4" starttime="1.0" endtime="1.2">Yes</w>',
            ]
            text = f'<?xml version="1.0" encoding="ISO-8859-1"?>\n<nite:root {_NITE}>{"".join(words)}</nite:root>'
            (manual / "words" / f"{meeting}.{agent}.words.xml").write_text(text, encoding="iso-8859-1")
            words_of = f"{meeting}.{agent}.words"
            name = f"{words_of}.xml#id({words_of}"
            segments = [
                f'<segment nite:id="1" transcriber_start="0.1" transcriber_end="0.8">'
                f'<nite:child href="{name}0)..id({words_of}3)"/></segment>',
                f'<segment nite:id="2" transcriber_start="1.0" transcriber_end="1.2">'
                f'<nite:child href="{name}4)"/></segment>',
            ]
            text = f'<?xml version="1.0" encoding="ISO-8859-1"?>\n<nite:root {_NITE}>{"".join(segments)}</nite:root>'
            (manual / "segments" / f"{meeting}.{agent}.segments.xml").write_text(text)
        about.append(f'<meeting nite:id="m{number}" observation="{meeting}">{"".join(agents)}</meeting>')
    (manual / "corpusResources" / "meetings.xml").write_text(f"<nite:root {_NITE}>{''.join(about)}</nite:root>")
    return {
        split: [(f"F{number}{agent}", text) for text in ("Okay, it's on", "Yes") for agent in "AB"]
        for number, split in enumerate(meetings)
    }


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            tar.addfile(about, io.BytesIO(content))


def webdataset(folder: Path) -> Said:
    """Tars of WebDataset with the text in a separate file, or in JSON."""
    said: Said = {}
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        for shard in range(2 if split == "train" else 1):
            about = json.dumps({"sentence": TEXTS[1], "speaker_id": f"{name}{shard}", "language": "en"})
            members = {
                f"{shard}/a.b.flac": audio_bytes(seed=shard), f"{shard}/a.txt": TEXTS[0].encode(),
                f"{shard}/c.ogg": audio_bytes(kind="OGG"), f"{shard}/c.json": about.encode(),
                f"{shard}/c.pyd": b"\x80\x04N.",
            }  # fmt: skip
            write_tar(folder / f"{name}-{shard:06}.tar", members)
            said.setdefault(split, []).extend([(None, TEXTS[0]), (f"{name}{shard}", TEXTS[1])])
    return said


def shar(folder: Path) -> Said:
    """Lhotse's own writer: two shards of train, one of dev; with a section of a file, and an array of each cut."""
    from lhotse import NumpyFilesWriter, Recording, SupervisionSegment
    from lhotse.shar import SharWriter

    said: Said = {}
    for split, name, number in (("train", "train", 3), ("valid", "dev", 1)):
        (folder / name).mkdir(parents=True)
        with SharWriter(folder / name, {"recording": "flac", "embedding": "numpy"}, shard_size=2) as writer:
            for index in range(number):
                source = folder.parent / "sources" / f"{name}{index}.wav"
                write_audio(source, 2 * SECONDS, RATE, seed=index)
                cut = Recording.from_file(source).to_cut().truncate(offset=SECONDS / 2, duration=SECONDS)
                cut.id = f"{name}-{index}"
                label = SupervisionSegment(cut.id, source.stem, 0, SECONDS, text=TEXTS[index], speaker=name)
                cut.supervisions = [label]
                with NumpyFilesWriter(folder.parent / "arrays") as arrays:
                    cut.embedding = arrays.store_array(cut.id, np.zeros(4))
                writer.write(cut)
                said.setdefault(split, []).append((name, TEXTS[index]))
    return said


def parquet(folder: Path) -> Said:
    """Parquet as Hugging Face's hub has it: a struct of bytes and path; in test only paths, next to the tables."""
    import pyarrow
    import pyarrow.parquet

    said: Said = {}
    (folder / "data").mkdir(parents=True)
    for split, name in (("train", "train"), ("valid", "validation"), ("test", "test")):
        number = 20 if split == "train" else 2
        audio: list[dict[str, Any]] = [{"bytes": audio_bytes(seed=n), "path": f"{n}.flac"} for n in range(number)]
        for one in audio if split == "test" else ():
            (folder / "data" / one["path"]).write_bytes(one["bytes"])
            one |= {"bytes": None, "path": f"data/{one['path']}"}
        texts = [f"{TEXTS[n % 4]} {n}" for n in range(number)]
        columns = {
            "audio": audio,
            "transcription": texts,
            "speaker_id": [n % 3 for n in range(number)],
            "id": [7] * number,
        }
        kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        table = pyarrow.table({**columns, "audio": pyarrow.array(audio, kind)})
        pyarrow.parquet.write_table(table, folder / "data" / f"{name}-00000-of-00001.parquet", row_group_size=9)
        said[split] = [(str(n % 3), text) for n, text in enumerate(texts)]
    return said


WRITERS: dict[str, Callable[[Path], Said]] = {
    one.__name__: one
    for one in (commonvoice, fleurs, librispeech, voxpopuli, nemo, kaldi, espnet, ami, webdataset, shar, parquet)
}
