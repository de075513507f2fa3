"""Layouts of speech that people have: each is recognised, counted right, and read with the right texts and speakers."""

from __future__ import annotations

import contextlib
import csv
import json
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import downloaded
from commands import Commands
from documents import read_layout_table
from made_speech import NUMBER, SECONDS, SPEAKERS, TEXTS, Said, listed, said, wavs, write
from spreadsheets import write_spreadsheet
from tiny_audio import write_audio
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.config.load import load
from vaak.config.yaml.text import read_yaml
from vaak.core.errors import DataError, UserError
from vaak.runs.preflight.doctor.folder import survey_folder


def beside(root: Path) -> Said:
    wavs(root)
    for name, text in zip("abcdef", TEXTS, strict=True):
        write(root / f"{name}.txt", f"{text}\n")
    return said()


def side_by_side(root: Path) -> Said:
    wavs(root / "मेरी wav")
    for name, text in zip("abcdef", TEXTS, strict=True):
        write(root / "txt" / f"{name}.txt", text)
    return said()


def vctk(root: Path) -> Said:
    for number, text in enumerate(TEXTS):
        speaker = SPEAKERS[number % 2]
        for microphone in "12":
            name = f"{speaker}_{number:03}_mic{microphone}.flac"
            write_audio(root / "wav48_silence_trimmed" / speaker / name, SECONDS, 48000, format="FLAC", seed=number)
        write(root / "txt" / speaker / f"{speaker}_{number:03}.txt", text)
    write(root / "speaker-info.txt", "ID  AGE  GENDER  ACCENTS\np225  23  F  English\n")
    return said(speakers=True)


def table(root: Path, header: str, row: str, file: str = "metadata.csv", folder: str = "wavs") -> Said:
    wavs(root / folder)
    rows = [
        row.format(name=name, text=f'"{text}"' if "," in text else text, speaker=SPEAKERS[number % 2])
        for number, (name, text) in enumerate(zip("abcdef", TEXTS, strict=True))
    ]
    write(root / file, "\n".join([header, *rows]) + "\n")
    return said("speaker" in row)


def srt(root: Path, head: str = "", ending: str = ".srt", comma: str = ",", voice: bool = False) -> Said:
    wavs(root)
    for number, (name, text) in enumerate(zip("abcdef", TEXTS, strict=True)):
        words = f"<v {SPEAKERS[number % 2]}>{text}</v>" if voice else f"<i>{text}</i>"
        write(root / f"{name}{ending}", f"{head}1\n00:00:00{comma}100 --> 00:00:02{comma}900\n{words}\n\n")
    return said(voice)


def eaf(root: Path) -> Said:
    wavs(root)
    for number, (name, text) in enumerate(zip("abcdef", TEXTS, strict=True)):
        write(
            root / f"{name}.eaf",
            f"""<?xml version="1.0" encoding="UTF-8"?>
<ANNOTATION_DOCUMENT VERSION="3.0"><TIME_ORDER><TIME_SLOT TIME_SLOT_ID="ts1" TIME_VALUE="100"/>
<TIME_SLOT TIME_SLOT_ID="ts2" TIME_VALUE="2900"/></TIME_ORDER>
<TIER TIER_ID="said" PARTICIPANT="{SPEAKERS[number % 2]}"><ANNOTATION>
<ALIGNABLE_ANNOTATION ANNOTATION_ID="a1" TIME_SLOT_REF1="ts1" TIME_SLOT_REF2="ts2">
<ANNOTATION_VALUE>{text}</ANNOTATION_VALUE></ALIGNABLE_ANNOTATION></ANNOTATION></TIER>
<TIER TIER_ID="gloss" PARENT_REF="said"><ANNOTATION><REF_ANNOTATION ANNOTATION_ID="a2" ANNOTATION_REF="a1">
<ANNOTATION_VALUE>gloss</ANNOTATION_VALUE></REF_ANNOTATION></ANNOTATION></TIER></ANNOTATION_DOCUMENT>
""",
        )
    return said(speakers=True)


def whisperx(root: Path) -> Said:
    wavs(root)
    for number, (name, text) in enumerate(zip("abcdef", TEXTS, strict=True)):
        segment = {"start": 0.1, "end": 2.9, "text": f" {text}", "speaker": SPEAKERS[number % 2]}
        write(root / f"{name}.json", json.dumps({"segments": [segment], "language": "en"}))
    return said(speakers=True)


def packed(root: Path, make: Callable[[Path], Said], kind: str) -> Said:
    result = make(root / "loose")
    files = sorted(path for path in (root / "loose").rglob("*") if path.is_file())
    if kind == "zip":
        with zipfile.ZipFile(root / "data.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in files:
                archive.write(path, str(path.relative_to(root / "loose")))
    else:
        with tarfile.open(root / "data.tar", "w") as tar:
            for path in files:
                tar.add(path, str(path.relative_to(root / "loose")))
    for path in files:
        path.unlink()
    for path in sorted((root / "loose").rglob("*"), reverse=True):
        path.rmdir()
    (root / "loose").rmdir()
    return result


LAYOUTS: dict[str, Callable[[Path], Said]] = {
    "x.wav next to x.txt": beside,
    "wav and txt side by side": side_by_side,
    "VCTK": vctk,
    "wavs and transcripts.txt": listed,
    "transcripts.txt with tabs": lambda root: listed(root, "{name}\t{text}"),
    "transcripts.txt with bars": lambda root: listed(root, "wavs/{name}.wav|{text}", "filelist.txt"),
    "txt.done.data": lambda root: listed(root, '( {name} "{text}" )', "txt.done.data"),
    "filename,transcript,speaker_id": lambda root: table(
        root, "filename,transcript,speaker_id", "{name}.wav,{text},{speaker}"
    ),
    "File name,Transcription": lambda root: table(
        root, "File name,Transcription", "{name},{text}", "my list.csv", "मेरी recordings"
    ),
    "columns by content": lambda root: table(root, "A,B", "{name}.wav,{text}", "list.csv"),
    "SRT": srt,
    "VTT": lambda root: srt(root, "WEBVTT\n\nNOTE a\nnote\n\n", ".vtt", ".", voice=True),
    "JSON of WhisperX": whisperx,
    "EAF": eaf,
    "zip of x.wav and x.txt": lambda root: packed(root, beside, "zip"),
    "zip of VCTK": lambda root: packed(root, vctk, "zip"),
    "zip of a table": lambda root: packed(root, LAYOUTS["filename,transcript,speaker_id"], "zip"),
    "tar of wav and txt": lambda root: packed(root, side_by_side, "tar"),
    "tar of x.wav and x.srt": lambda root: packed(root, srt, "tar"),
}


ROWS: dict[str, list[str]] = {
    "`a.wav`, `a.txt`": ["x.wav next to x.txt", "wav and txt side by side"],
    "VCTK": ["VCTK"],
    "`wavs/a.wav` and a list": [
        *("wavs and transcripts.txt", "transcripts.txt with tabs", "transcripts.txt with bars", "txt.done.data"),
    ],
    "a table with a header": ["filename,transcript,speaker_id", "File name,Transcription", "columns by content"],
    "`a.srt`": ["SRT", "VTT"],
    "`a.json` of Whisper": ["JSON of WhisperX"],
    "ELAN": ["EAF"],
    "a `.zip` or `.tar`": [name for name in LAYOUTS if name.startswith(("zip of", "tar of"))],
}
"""The beginning of each row of the table of speech in docs/datasets.md, and its cases."""
READ_AS = {begins: reads for begins, (_, reads) in zip(ROWS, read_layout_table("### Layouts that people"), strict=True)}


def test_each_row_of_the_table_in_the_documentation_is_tried():
    rows = read_layout_table("### Layouts that people")
    assert sorted(name for names in ROWS.values() for name in names) == sorted(LAYOUTS)
    assert [looks.startswith(begins) for (looks, _), begins in zip(rows, ROWS, strict=True)] == [True] * len(ROWS)


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.fixture(params=LAYOUTS)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path, Said]:
    root = tmp_path / "my डेटा"
    root.mkdir()
    return request.param, root, LAYOUTS[request.param](root)


def read(options: dict[str, Any]) -> Said:
    plain = {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}
    corpus = AudioCorpus(DatasetConfig(**{"name": "data", **plain}), AudioConfig())
    cuts = (reading.cut for reading in corpus.reader.read("train") if reading.cut is not None)
    return [(label.speaker or None, label.text) for cut in cuts for label in cut.supervisions]


def test_a_layout_is_recognised_counted_and_read(made: tuple[str, Path, Said], vaak: Any, tmp_path: Path):
    name, root, expected = made
    code, out, errors = vaak("init", "asr", "--data", str(root), "--hardware", "cpu", "-o", "mine.yml")
    assert code == 0, errors
    config = load(["mine.yml"])
    assert config.warnings == []
    [corpus] = survey_folder(root)
    assert corpus.problem is None
    assert READ_AS[next(begins for begins, names in ROWS.items() if name in names)] == f"`{corpus.kind}`"
    assert corpus.splits["train"].num_entries >= NUMBER
    assert len(corpus.splits["train"].durations) == NUMBER, "each recording has a text"
    assert corpus.splits["train"].num_texts == NUMBER
    key = lambda one: (one[0] or "", one[1])  # noqa: E731
    found = read(corpus.options)
    assert sorted(found, key=key) == sorted(expected, key=key)
    text = (tmp_path / "mine.yml").read_text()
    assert ("group: speaker" in text) == any(speaker for speaker, _ in expected)
    assert 'name: "my डेटा"' in text or "name: my डेटा" in text, text
    code, out, _ = vaak("data", "check", str(root), "--json")
    assert code == 0
    assert json.loads(out)


@pytest.mark.slow
def test_the_yaml_of_a_layout_is_tried(made: tuple[str, Path, Said], vaak: Any, tmp_path: Path, commands: Commands):
    _, root, _ = made
    assert vaak("init", "asr", "--data", str(root), "--hardware", "cpu", "-o", "mine.yml")[0] == 0
    small = "model.conformer={d_model: 32, num_layers: 1}"
    ended = commands.start(["train", "mine.yml", "--try", small], tmp_path, circumstances=["without pictures"]).wait(
        300
    )
    assert ended.status == 0, ended.errors


def test_without_a_task_audio_with_texts_is_for_recognition(tmp_path: Path, vaak: Any):
    beside(tmp_path / "data")
    assert vaak("init", "--data", "data", "--hardware", "cpu")[0] == 0
    assert "task: asr" in (tmp_path / "begin.yml").read_text(), "not a language model of the transcripts"


def test_the_columns_that_were_found_are_said_and_are_options(tmp_path: Path, vaak: Any):
    LAYOUTS["columns by content"](tmp_path / "data")
    code, _, errors = vaak("init", "asr", "--data", "data", "--hardware", "cpu")
    assert code == 0
    found = "columns audio is 'A' (by its contents), text is 'B' (by its contents) (option columns)"
    assert found in " ".join(errors.split())
    assert "    columns:\n      audio: A\n      text: B\n" in (tmp_path / "asr.yml").read_text()


def test_the_runs_name_is_that_of_the_folder_that_was_given(tmp_path: Path, vaak: Any):
    """A language of Common Voice is in a folder of its code."""
    downloaded.commonvoice(tmp_path / "My Speech")
    assert vaak("init", "asr", "--data", "My Speech", "--hardware", "cpu")[0] == 0
    assert read_yaml(tmp_path / "asr.yml")["name"] == "my speech"


def test_recordings_without_a_text_are_counted(tmp_path: Path):
    beside(tmp_path / "data")
    (tmp_path / "data" / "f.txt").unlink()
    [corpus] = survey_folder(tmp_path / "data")
    assert corpus.splits["train"].without_labels == 1
    assert len(corpus.splits["train"].durations) == NUMBER - 1


def test_what_nobody_can_use_is_described(tmp_path: Path):
    wavs(tmp_path / "data")
    write(tmp_path / "data" / "notes.xyz", "x")
    with pytest.raises(UserError) as error:
        survey_folder(tmp_path / "data")
    message = str(error.value)
    assert "6 .wav, 1 .xyz, no text for 6 of 6; speech recognition needs: put x.txt next to x.wav" in message
    assert "docs/" not in message, "an installed package has no docs"


@pytest.mark.parametrize("name", ["data/list.csv", "data/a.wav", "data.zip"])
def test_a_single_file_is_a_data_set(name: str, tmp_path: Path):
    if name == "data.zip":
        packed(tmp_path, beside, "zip")
    elif name == "data/a.wav":
        beside(tmp_path / "data")
    else:
        LAYOUTS["columns by content"](tmp_path / "data")
    [corpus] = survey_folder(tmp_path / name)
    assert len(corpus.splits["train"].durations) == (1 if name.endswith("a.wav") else NUMBER)


def test_members_that_lead_out_of_a_zip_are_refused(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as archive:
        archive.writestr("../a.txt", "so")
    from vaak.core.storage.archives import read_zip_members

    with pytest.raises(UserError, match="leads out of the archive"):
        list(read_zip_members(tmp_path / "bad.zip"))


@pytest.mark.parametrize("second", ["length", "stop"])
def test_a_table_of_segments(second: str, tmp_path: Path):
    (tmp_path / "data").mkdir()
    for name in "ab":
        write_audio(tmp_path / "data" / f"{name}.wav", 2.0)
    rows = [("a", 0.0, 0.5), ("a", 0.5, 1.0), ("b", 0.2, 1.0), ("b", 1.2, 0.5)]
    lines = [
        f"{name}.wav,{begin},{length if second == 'length' else begin + length},{text.replace(',', '')}"
        for (name, begin, length), text in zip(rows, TEXTS, strict=False)
    ]
    table = tmp_path / "data" / "list.csv"
    table.write_text("\n".join([f"file,begin,{second},transcript", *lines]) + "\n")
    [survey] = survey_folder(tmp_path / "data")
    options = dict(survey.options)
    times = {"offset": "begin", "duration" if second == "length" else "end": second}
    assert options["columns"] == {"audio": "file", "text": "transcript"} | times
    options |= {"train": tuple(options["train"]), "train_fraction": 1.0, "valid_fraction": 0.0}
    corpus = AudioCorpus(DatasetConfig(name="data", **options), AudioConfig())
    found = [(cut.start, round(cut.duration, 6)) for cut in corpus.cuts("train")]
    assert sorted(found) == sorted((begin, length) for _, begin, length in rows)


def test_more_bytes_than_a_member_of_a_zip_declares_do_not_come_out(tmp_path: Path):
    path = tmp_path / "bomb.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.wav", bytes(10_000_000))
    from vaak.core.storage.archives import read_zip_members

    content = bytearray(path.read_bytes())
    directory = content.rindex(b"PK\x01\x02")
    content[directory + 24 : directory + 28] = (1000).to_bytes(4, "little")  # the size that it says
    path.write_bytes(content)
    [member] = read_zip_members(path)
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb\.zip@deflated=.*: 1,001 bytes come out, not 1,000"):
        member.range.open()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


def test_a_damaged_zip_is_refused_by_name(tmp_path: Path):
    path = tmp_path / "data.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.wav", bytes(range(256)) * 50)
    from vaak.core.storage.archives import read_zip_members

    whole = path.read_bytes()
    [member] = read_zip_members(path)
    path.write_bytes(whole[: member.range.offset] + b"\xff" * 40 + whole[member.range.offset + 40 :])
    with pytest.raises(DataError, match=r"data\.zip@deflated=.*: the compressed data are damaged"):
        member.range.open()
    path.write_bytes(whole[:-30])
    with pytest.raises(DataError, match=r"data\.zip: this is not a zip, or it is damaged"):
        list(read_zip_members(path))


def test_entities_in_eaf_are_refused():
    from vaak.audio.formats.timed_texts import read_eaf

    with pytest.raises(UserError, match="entities"):
        read_eaf(b'<!DOCTYPE a [<!ENTITY x "y">]><ANNOTATION_DOCUMENT/>', "a.eaf")


GERMAN = ["Es wäre schön, sagt er", "Größe 1,5", 'das "andere" Haus', "überall", "so ist es; nun", "ja, nein"]


@pytest.mark.parametrize("packed_in", ["", "data.zip"])
@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "xlsx"])
def test_a_german_table_is_read_next_to_audio_and_in_a_zip(tmp_path: Path, vaak: Any, packed_in: str, encoding: str):
    """Semicolons, decimal commas, Latin-1 or UTF-16, or a spreadsheet: an option says what can't be told."""
    root = tmp_path / "ton"
    wavs(root)
    rows = [["Datei", "Satz", "Dauer"]]
    rows += [[f"{name}.wav", text, "3,0"] for name, text in zip("abcdef", GERMAN, strict=True)]
    if encoding == "xlsx":
        write_spreadsheet(root / "liste.xlsx", rows)
    else:
        with (root / "liste.csv").open("w", encoding=encoding, newline="") as file:
            csv.writer(file, delimiter=";").writerows(rows)
    place = root
    if packed_in:
        place = tmp_path / "packed"
        place.mkdir()
        with zipfile.ZipFile(place / packed_in, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.iterdir()):
                archive.write(path, f"ton/{path.name}")
    said = ["--encoding", "latin-1"] if encoding == "cp1252" else []
    if said:
        _, out, errors = vaak("data", "check", place)
        assert "--encoding cp1252" in " ".join((out + errors).split())
    yaml = tmp_path / "a.yml"
    code, out, errors = vaak("init", "asr", "--data", place, *said, "--output", yaml)
    assert code == 0, errors
    code, out, errors = vaak("data", "check", place, *said, "--json")
    assert code == 0, out + errors
    [corpus] = json.loads(out)["corpora"]
    assert [one["recordings"] for one in corpus["splits"].values()] == [len(GERMAN)]
    datasets = load([yaml]).experiment.datasets
    with contextlib.chdir(tmp_path):
        corpora = [AudioCorpus(one, AudioConfig()) for one in datasets]
        texts = [
            cut.supervisions[0].text for corpus in corpora for split in corpus.splits for cut in corpus.cuts(split)
        ]
    assert sorted(texts) == sorted(GERMAN)
    code, out, errors = vaak("data", "check", yaml)
    assert code == 0, out + errors


@pytest.mark.parametrize("task", ["diarization", "vocoder"])
@pytest.mark.parametrize("on_bad", ["fail", "skip"])
def test_one_bad_line_of_a_corpus_costs_that_line(tmp_path: Path, vaak: Any, on_bad: str, task: str):
    wavs(tmp_path)
    segments = [{"start": 0.1, "end": 1.5, "speaker": "A"}, {"start": 1.2, "end": 2.8, "speaker": "B"}]
    lines = [json.dumps({"audio": f"{name}.wav", "segments": segments}) for name in "abcdef"]
    lines[2] = lines[2][:-3]
    write(tmp_path / "train.jsonl", "\n".join(lines[:4]))
    write(tmp_path / "valid.jsonl", "\n".join(lines[4:]))
    text = f"task: {task}\nname: d\ndatasets: [{{name: d, type: json, train: [train.jsonl], valid: [valid.jsonl]}}]\n"
    write(tmp_path / "d.yml", f"{text}data: {{on_bad_example: {on_bad}}}\n")
    code, out, errors = vaak("data", "check", "d.yml")
    assert code == (2 if on_bad == "fail" else 0), out + errors
    assert ("1 problem" if on_bad == "fail" else "0 problems") in out
    assert "unusable train.jsonl:3: this is not JSON" in " ".join(out.split())
    assert f"train: {3 if task == 'diarization' else 3 * 5} examples" in out, "five crops of each recording"
