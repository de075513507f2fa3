"""Corpora in their downloaded form: every layout's splits, speakers, texts and samples; hostile and broken ones."""

from __future__ import annotations

import gzip
import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

import downloaded
from tiny_audio import write_audio
from vaak.audio.audio_file import read_header
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.containers import ffmpeg as ffmpeg_formats
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.cuts.reading import get_text, read_cut
from vaak.audio.cuts.recordings import split_utterances
from vaak.audio.cuts.store import CutStore, write_cuts
from vaak.core.errors import DataError
from vaak.tasks.speech_task import recipe

RATE = downloaded.RATE
TEXT = "so it is"


def corpus_of(kind: str, folder: Path, **options: Any) -> AudioCorpus:
    return AudioCorpus(DatasetConfig(name="d", type=kind, corpus_dir=str(folder), **options), AudioConfig())


def said_in(corpus: AudioCorpus) -> downloaded.Said:
    return {
        split: [(one.speaker, one.text) for cut in corpus.cuts(split) for one in cut.supervisions]
        for split in corpus.splits
    }


@pytest.mark.parametrize("kind", downloaded.WRITERS)
def test_a_layout_has_the_splits_speakers_texts_and_samples_of_its_files(kind: str, tmp_path: Path):
    written = downloaded.WRITERS[kind](tmp_path / "corpus")
    corpus = corpus_of(kind, tmp_path / "corpus")
    assert said_in(corpus) == written
    assert all(path.is_file() for path in corpus.files)
    assert all(path.is_file() for _, path in corpus.named_files())
    for split in corpus.splits:
        store = write_cuts(tmp_path / split, corpus.cuts(split))
        for cut in CutStore(store.folder):
            samples = read_cut(cut, AudioConfig()).samples
            assert len(samples) == round(cut.duration * RATE)
            assert np.abs(samples).max() > 0.05


def test_samples_in_an_archive_are_those_of_the_file(tmp_path: Path):
    content = downloaded.audio_bytes(1.0, seed=3)
    expected = soundfile.read(io.BytesIO(content), dtype="float32")[0]
    downloaded.write_tar(
        tmp_path / "train.tar", {"x.flac": downloaded.audio_bytes(), "y.flac": content, "y.txt": b"so"}
    )
    [cut] = corpus_of("webdataset", tmp_path, train_fraction=1, valid_fraction=0).cuts("train")
    labelled = read_cut(cut, AudioConfig())
    assert (cut.id, labelled.text) == ("y", "so")
    np.testing.assert_array_equal(labelled.samples, expected)


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG", "MP3"])
def test_a_part_of_a_file_is_read_as_the_file_is_window_by_window(kind: str, tmp_path: Path):
    from vaak.audio.audio_file import AudioFile
    from vaak.audio.embedded import parse_part

    content = downloaded.audio_bytes(2.0, kind)
    (tmp_path / "whole").write_bytes(content)
    (tmp_path / "packed").write_bytes(b"x" * 513 + content + b"y" * 100)
    part = parse_part(f"{tmp_path}/packed@bytes=513+{len(content)}")
    assert read_header(part) == read_header(tmp_path / "whole")
    with AudioFile(part, 8000) as packed, AudioFile(tmp_path / "whole", 8000) as whole:
        for start, end in ((1.1, 1.9), (0.0, 0.4), (0.5, 2.0)):
            np.testing.assert_array_equal(packed.read(start, end), whole.read(start, end))


def test_parquet_is_read_row_by_row_in_any_order(tmp_path: Path):
    downloaded.parquet(tmp_path)
    cuts = list(corpus_of("parquet", tmp_path).cuts("train"))
    for number in (19, 0, 8, 9, 17):
        expected = soundfile.read(io.BytesIO(downloaded.audio_bytes(seed=number)), dtype="float32")[0]
        np.testing.assert_array_equal(read_cut(cuts[number], AudioConfig()).samples, expected)
    assert cuts[3].id == "data-train-00000-of-00001-0000003"


def test_labels_of_meetings_and_calls_are_times_of_speakers(tmp_path: Path):
    downloaded.kaldi(tmp_path / "kaldi")
    [first, second] = corpus_of("kaldi", tmp_path / "kaldi").cuts("train")
    assert [(one.speaker, one.start, one.end) for one in first.supervisions] == [("ann", 0, 0.5), ("bob", 0.6, 1.1)]
    assert [get_text(one) for one in split_utterances(first)] == ["so it is", "no"]
    assert (second.id, get_text(second)) == ("call2", "more")
    downloaded.ami(tmp_path / "ami")
    own = corpus_of("ami", tmp_path / "ami", options={"mic": "Headset"})
    assert [(cut.id, {one.speaker for one in cut.supervisions}) for cut in own.cuts("test")] == [
        ("ES2004a.Headset-0", {"F2A"}),
        ("ES2004a.Headset-1", {"F2B"}),
    ]
    with pytest.raises(DataError, match=r"has no audio of Array9 \(options: \{mic: …\}\)"):
        corpus_of("ami", tmp_path / "ami", options={"mic": "Array9"})


def test_what_a_row_says_of_a_speaker_stays_with_the_label(tmp_path: Path):
    downloaded.commonvoice(tmp_path)
    cut = next(iter(corpus_of("commonvoice", tmp_path).cuts("train")))
    custom = cut.supervisions[0].custom
    assert (custom["gender"], custom["age"], custom["language"]) == ("female_feminine", "twenties", "hi")
    assert "accents" not in custom, "an empty cell says nothing"


def test_options_name_other_parts_and_columns(tmp_path: Path):
    downloaded.commonvoice(tmp_path / "cv")
    one = corpus_of("commonvoice", tmp_path / "cv", train=("validated.tsv",), train_fraction=1, valid_fraction=0)
    assert said_in(one) == {"train": [("s1" * 64, downloaded.TEXTS[0])]}
    assert one.dataset.split_by == "speaker"
    downloaded.fleurs(tmp_path / "fleurs")
    upper = corpus_of("fleurs", tmp_path / "fleurs", columns={"text": "raw_transcription"})
    assert said_in(upper)["train"][1] == (None, "SHE SAID SO.")
    with pytest.raises(
        DataError, match=r"train\.tsv:1: columns: there is no column 'words'.*; expected one of sentence_id, "
    ):
        said_in(corpus_of("fleurs", tmp_path / "fleurs", columns={"text": "words"}))


@pytest.mark.parametrize("kind", ["commonvoice", "nemo", "webdataset", "parquet"])
def test_columns_of_sections_are_numbers_and_may_name_the_end(kind: str, tmp_path: Path):
    rows = [{"text": TEXT, "from": 0.1, "to": 0.4}, {"text": TEXT, "from": 0.2, "to": "late"}]
    for number in range(2):
        write_audio(tmp_path / "clips" / f"{number}.wav", 0.5, 8000, seed=number)
    contents = [(tmp_path / "clips" / f"{number}.wav").read_bytes() for number in range(2)]
    if kind == "commonvoice":
        lines = [f"{number}.wav\t{row['text']}\t{row['from']}\t{row['to']}\n" for number, row in enumerate(rows)]
        (tmp_path / "train.tsv").write_text("path\tsentence\tfrom\tto\n" + "".join(lines))
    elif kind == "nemo":
        lines = [json.dumps({"audio_filepath": f"clips/{number}.wav", **row}) for number, row in enumerate(rows)]
        (tmp_path / "train_manifest.json").write_text("\n".join(lines))
    elif kind == "webdataset":
        members = {f"{n}.json": json.dumps(row).encode() for n, row in enumerate(rows)}
        members |= {f"{n}.wav": content for n, content in enumerate(contents)}
        downloaded.write_tar(tmp_path / "train.tar", dict(sorted(members.items())))
    else:
        import pyarrow
        import pyarrow.parquet

        texts = [{**row, "from": str(row["from"]), "to": str(row["to"])} for row in rows]
        table = pyarrow.Table.from_pylist([{"audio": one, **row} for one, row in zip(contents, texts, strict=True)])
        pyarrow.parquet.write_table(table, tmp_path / "train.parquet")
    columns = {"offset": "from", "end": "to"}
    first, second = corpus_of(kind, tmp_path, columns=columns).reader.read("train")
    assert first.cut is not None
    assert (first.cut.start, round(first.cut.duration, 9), get_text(first.cut)) == (0.1, 0.3, TEXT)
    assert second.cut is None
    assert "to is 'late'; expected the end in seconds" in str(second.problem)


def test_a_description_that_is_no_json_costs_its_recording(tmp_path: Path):
    content = downloaded.audio_bytes()
    members = {"a.flac": content, "a.json": b"{", "b.flac": content, "b.txt": b"so it is", "c.flac": content}
    downloaded.write_tar(tmp_path / "train.tar", members | {"c.txt": b"\xff"})
    found = list(corpus_of("webdataset", tmp_path).reader.read("train"))
    assert [one.cut and get_text(one.cut) for one in found] == [None, "so it is", None]
    assert "a.json: this is not JSON" in str(found[0].problem)
    assert "c.txt: this is not UTF-8" in str(found[2].problem)


def test_several_languages_in_a_folder_are_named(tmp_path: Path):
    downloaded.commonvoice(tmp_path, "hi")
    downloaded.commonvoice(tmp_path, "ta")
    with pytest.raises(DataError, match=r"has several corpora \(.*/hi, .*/ta\); give one: corpus_dir: .*/hi"):
        corpus_of("commonvoice", tmp_path)


def test_a_language_with_few_utterances_is_told_what_to_read(tmp_path: Path):
    downloaded.commonvoice(tmp_path)
    path = next(tmp_path.rglob("train.tsv"))
    path.write_text("\t".join(downloaded.CV_COLUMNS) + "\n")
    with pytest.raises(DataError, match=r"has no utterances in train\.tsv.*train: \[validated\.tsv\]"):
        list(corpus_of("commonvoice", tmp_path).cuts("train"))


@pytest.mark.parametrize("kind", downloaded.WRITERS)
def test_another_folder_is_refused_with_what_is_expected(kind: str, tmp_path: Path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "a.txt").write_text("so")
    with pytest.raises(DataError, match=rf"datasets, d: .* isn't a corpus of type {kind}: expected "):
        corpus_of(kind, tmp_path)
    with pytest.raises(DataError, match="corpus_dir: no such folder"):
        corpus_of(kind, tmp_path / "gone")


# Names of audio that someone who means no good may write.

HOSTILE = {
    "a command": ("touch {mark}; cat a.wav |", "is a command or an address, which is refused"),
    "a command in front": ("|touch {mark}", "is a command or an address, which is refused"),
    "a pipe": ("pipe:touch {mark}", "is a command or an address, which is refused"),
    "an address": ("http://localhost:1/a.wav", "is a command or an address, which is refused"),
    "upwards": ("../../private/secret.wav", r"(is outside of|is a link)"),
    "absolute": ("{private}/secret.wav", r"is outside of .*audio_root: \[.*private\]"),
    "a link": ("link.wav", "is a link to .*secret.wav, outside of"),
}


def name_audio(kind: str, root: Path, name: str) -> None:
    """Let the first line of train call its audio so, wherever the layout has names."""
    if kind in ("commonvoice", "fleurs"):
        path = next(root.rglob("train.tsv"))
        rows = [line.split("\t") for line in path.read_text().splitlines()]
        rows[1 if kind == "commonvoice" else 0][1] = name
        path.write_text("".join("\t".join(row) + "\n" for row in rows))
    elif kind == "nemo":
        (root / "train_manifest.json").write_text(json.dumps({"audio_filepath": name, "text": "so"}) + "\n")
    elif kind in ("kaldi", "espnet"):
        path = root / ("data/train" if kind == "kaldi" else "dump/raw/train_nodev") / "wav.scp"
        path.write_text(f"call1 {name}\n")
        (path.parent / "text").write_text("call1 so\n")
        (path.parent / "segments").unlink(missing_ok=True)
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(
            pyarrow.table({"audio": [{"path": name}], "text": ["so"]}),
            root / "data" / "train-00000-of-00001.parquet",
        )


@pytest.mark.parametrize("attack", HOSTILE)
@pytest.mark.parametrize("kind", ["commonvoice", "fleurs", "nemo", "kaldi", "espnet", "parquet"])
def test_a_name_that_leads_out_or_is_a_command_is_refused(kind: str, attack: str, tmp_path: Path):
    root, private = tmp_path / "corpus", tmp_path / "private"
    downloaded.WRITERS[kind](root)
    write_audio(private / "secret.wav", 0.3, RATE)
    for folder in (root, *(path for path in root.rglob("*") if path.is_dir())):
        if not (folder / "link.wav").exists():
            (folder / "link.wav").symlink_to(private / "secret.wav")
    name, message = HOSTILE[attack]
    upwards = {"commonvoice": "../../../../private/secret.wav", "fleurs": "../../../../private/secret.wav"}
    name = upwards.get(kind, "../private/secret.wav") if attack == "upwards" else name
    name_audio(kind, root, name.format(mark=tmp_path / "was_run", private=private))
    if kind in ("commonvoice", "fleurs") and attack in ("a command", "a command in front", "a pipe", "an address"):
        message = r"No such file|refused"  # a name below clips, or audio
    with pytest.raises(DataError, match=message):
        said_in(corpus_of(kind, root))
    assert not (tmp_path / "was_run").exists()
    if attack == "absolute":
        allowed = corpus_of(kind, root, audio_root=(str(private),))
        assert next(iter(allowed.cuts("train"))).recording.sources[0].source == str(private / "secret.wav")


def test_kaldis_pipe_is_refused_by_its_place(tmp_path: Path):
    downloaded.kaldi(tmp_path)
    scp = tmp_path / "data" / "train" / "wav.scp"
    scp.write_text(f"call1 sph2pipe -f wav -p wavs/call1.wav; touch {tmp_path}/was_run |\n")
    with pytest.raises(DataError, match=r"wav\.scp:1: 'sph2pipe .*' is a command .* refused: nothing is run"):
        said_in(corpus_of("kaldi", tmp_path))
    scp.write_text("call1 -\n")
    with pytest.raises(DataError, match=r"wav\.scp:1: audio from standard input is refused"):
        said_in(corpus_of("kaldi", tmp_path))
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"PKL\x80\x04N.", "isn't audio of an archive"),
        (b"\0BFM \4", "isn't audio of an archive"),
        (b"AUDIO\xff", "can't be read|no samples|0 bytes"),
        (b"AUDIO\x01\x09abcdefghi", "isn't audio|not audio"),
    ],
)
def test_an_archive_of_something_else_is_refused_and_never_unpickled(tmp_path: Path, content: bytes, message: str):
    downloaded.kaldi(tmp_path)
    (tmp_path / "x.ark").write_bytes(b"call1 " + content)
    folder = tmp_path / "data" / "train"
    (folder / "segments").unlink()
    (folder / "wav.scp").write_text("ann-1 x.ark:6\n")
    with pytest.raises(DataError, match=message):
        said_in(corpus_of("kaldi", tmp_path))


def tar_with(folder: Path, member: tarfile.TarInfo, content: bytes = b"") -> Path:
    member.size = len(content)
    with tarfile.open(folder / "train.tar", "w") as tar:
        tar.addfile(member, io.BytesIO(content))
    return folder


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("../../x.flac", tarfile.REGTYPE, r"member \.\./\.\./x\.flac leads out of the archive, which is refused"),
        ("/etc/x.flac", tarfile.REGTYPE, "leads out of the archive"),
        ("x.flac", tarfile.SYMTYPE, "is a link, a device or sparse, which is refused"),
        ("x.flac", tarfile.LNKTYPE, "is a link, a device or sparse"),
        ("x.flac", tarfile.CHRTYPE, "is a link, a device or sparse"),
    ],
)
def test_a_tars_member_never_leads_out(tmp_path: Path, name: str, kind: bytes, message: str):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, "/etc/passwd"
    tar_with(tmp_path, member)
    with pytest.raises(DataError, match=message):
        list(corpus_of("webdataset", tmp_path).cuts("train"))


def test_tars_that_are_compressed_cut_short_or_too_long_in_text_are_one_line(tmp_path: Path):
    path = tar_with(tmp_path, tarfile.TarInfo("x.flac"), downloaded.audio_bytes()) / "train.tar"
    whole = path.read_bytes()
    path.write_bytes(whole[:2000])
    with pytest.raises(DataError, match=r"train\.tar: it ends in the middle of x\.flac; download it again"):
        list(corpus_of("webdataset", tmp_path).cuts("train"))
    import gzip

    path.write_bytes(gzip.compress(whole))
    with pytest.raises(
        DataError, match=r"a compressed tar can't be read from the middle; unpack it: gunzip train\.tar"
    ):
        list(corpus_of("webdataset", tmp_path).cuts("train"))
    downloaded.write_tar(path, {"x.flac": downloaded.audio_bytes(), "x.json": b"{" + b" " * 2**20})
    with pytest.raises(DataError, match="bytes are more than a label has"):
        list(corpus_of("webdataset", tmp_path).cuts("train"))


def test_a_folder_called_like_a_tar_is_one_line(tmp_path: Path):
    (tmp_path / "train.tar").mkdir()
    with pytest.raises(DataError, match=r"train\.tar: can't be read: Is a directory"):
        list(corpus_of("webdataset", tmp_path).cuts("train"))


def test_shars_recordings_come_from_their_tar_alone(tmp_path: Path):
    downloaded.shar(tmp_path / "shar")
    tar = tmp_path / "shar" / "dev" / "recording.000000.tar"
    with tarfile.open(tar) as archive:
        files = {one.name: archive.extractfile(one) for one in archive.getmembers()}
        members = {name: file.read() for name, file in files.items() if file is not None}
    about = json.loads(members["dev-0.json"])
    about["sources"][0] |= {"type": "command", "source": f"touch {tmp_path}/was_run"}
    about["transforms"] = [{"name": "Evil", "kwargs": {}}]
    downloaded.write_tar(tar, {**members, "dev-0.json": json.dumps(about).encode()})
    with pytest.raises(DataError, match="its audio is changed by Evil, which is refused"):
        list(corpus_of("shar", tmp_path / "shar").cuts("valid"))
    del about["transforms"]
    downloaded.write_tar(tar, {**members, "dev-0.json": json.dumps(about).encode()})
    [cut] = corpus_of("shar", tmp_path / "shar").cuts("valid")
    assert cut.recording.sources[0].source.startswith(f"{tar}@bytes=")
    assert len(read_cut(cut, AudioConfig()).samples) == round(downloaded.SECONDS * RATE)
    downloaded.write_tar(tar, {name.replace("dev-0", "dev-1"): content for name, content in members.items()})
    with pytest.raises(DataError, match=r"has dev-1\.flac where the recording of dev-0 is expected"):
        list(corpus_of("shar", tmp_path / "shar").cuts("valid"))
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize(
    ("kind", "file", "content", "message"),
    [
        (
            "commonvoice",
            "train.tsv",
            b"client_id\tpath\nx\n",
            r"train\.tsv:2: 1 columns, but the first row has 2: client_id, path",
        ),
        ("commonvoice", "dev.tsv", b"path\xff\n", r"dev\.tsv:1: byte 4 \(0xFF\) is not UTF-8"),
        ("voxpopuli", "asr_train.tsv.gz", b"\x1f\x8b\x08broken", r"asr_train\.tsv\.gz: can't be read"),
        ("kaldi", "segments", b"ann-1 call1 0.0\n", r"segments:1: expected UTTERANCE RECORDING START END"),
        ("ami", "ES2002a.A.segments.xml", b"<root", r"segments\.xml: this is not XML"),
        (
            "ami",
            "ES2002a.A.words.xml",
            b'<!DOCTYPE r [<!ENTITY a "b">]><r>&a;</r>',
            "defines entities, which is refused",
        ),
        ("parquet", "train-00000-of-00001.parquet", b"PAR1 no", "this is not Parquet, or it is cut short"),
    ],
)
def test_a_broken_file_is_one_line_that_names_it(kind: str, file: str, content: bytes, message: str, tmp_path: Path):
    downloaded.WRITERS[kind](tmp_path)
    next(tmp_path.rglob(file)).write_bytes(content)
    with pytest.raises(DataError, match=message) as error:
        said_in(corpus_of(kind, tmp_path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", ["commonvoice", "librispeech", "voxpopuli", "webdataset", "parquet"])
def test_audio_that_is_missing_or_damaged_is_told_by_its_line_and_left_out(kind: str, tmp_path: Path):
    written = downloaded.WRITERS[kind](tmp_path)
    if kind == "webdataset":
        downloaded.write_tar(
            tmp_path / "train-000001.tar", {"a.flac": b"", "a.txt": b"so", "c.flac": b"x", "c.txt": b"so"}
        )
    elif kind == "parquet":
        name_audio(kind, tmp_path, "data/gone.flac")
    else:
        next(path for path in sorted(tmp_path.rglob("*")) if path.suffix in (".mp3", ".flac", ".ogg")).unlink()
    corpus, told = corpus_of(kind, tmp_path), list[str]()
    corpus.on_bad = lambda error, name: told.append(str(error))
    number = sum(len(list(corpus.cuts(split))) for split in corpus.splits if split != "train" or kind != "parquet")
    if kind == "parquet":
        with pytest.raises(DataError, match="train is empty"):
            list(corpus.cuts("train"))
    assert len(told) == (2 if kind == "webdataset" else 1)
    assert number + len(told) == sum(map(len, written.values())) - (20 - 1 if kind == "parquet" else 0)
    assert all("No such file" in one or "0 bytes" in one or "not audio" in one for one in told)


def test_a_table_without_transcripts_is_refused_where_they_are_needed(tmp_path: Path):
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(
        pyarrow.table({"audio": [downloaded.audio_bytes()], "label": ["a"]}), tmp_path / "a.parquet"
    )
    corpus = corpus_of("parquet", tmp_path, train_fraction=1, valid_fraction=0)
    with pytest.raises(DataError, match=r"no column has the transcripts; there are audio, label \(columns"):
        corpus.require_text()
    named = corpus_of("parquet", tmp_path, columns={"text": "label"}, train_fraction=1, valid_fraction=0)
    named.require_text()
    assert said_in(named) == {"train": [(None, "a")]}


def test_classes_of_parquet_are_their_names(tmp_path: Path):
    """As ``datasets`` writes a ``ClassLabel``: numbers in the rows, names in the metadata."""
    import pyarrow
    import pyarrow.parquet

    features = {"speaker": {"names": ["ravi", "ann"], "_type": "ClassLabel"}}
    table = pyarrow.table(
        {"audio": [downloaded.audio_bytes(seed=n) for n in range(3)], "text": ["so", "it", "is"], "speaker": [1, 0, -1]}
    ).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    corpus = corpus_of("parquet", tmp_path, train_fraction=1, valid_fraction=0)
    assert [cut.supervisions[0].speaker for cut in corpus.cuts("train")] == ["ann", "ravi", None]


def test_speakers_of_an_evaluation_whom_training_has_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    downloaded.commonvoice(tmp_path / "cv")
    path = next(tmp_path.rglob("test.tsv"))
    path.write_text(path.read_text().replace("s4" * 64, "s2" * 64))
    datasets = (DatasetConfig(name="cv", type="commonvoice", corpus_dir=str(tmp_path / "cv")),)
    recipe(datasets, AudioConfig()).make(tmp_path / "made")
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert said == [f"cv: 1 of 1 speakers of test are in train, too, such as {'s2' * 64}"]


def test_m4a_is_read_where_its_decoder_is_there_and_is_one_line_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    av = pytest.importorskip("av")
    tone = (0.4 * np.sin(np.arange(3 * RATE) * 2 * np.pi * 440 / RATE)).astype(np.float32)
    with av.open(str(tmp_path / "a.m4a"), "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=RATE, layout="mono")
        frame = av.AudioFrame.from_ndarray(tone[None], format="fltp", layout="mono")
        frame.sample_rate = RATE
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    (tmp_path / "train.json").write_text('{"audio_filepath": "a.m4a", "text": "so"}\n')
    [cut] = corpus_of("nemo", tmp_path, train_fraction=1, valid_fraction=0).cuts("train")
    samples = read_cut(cut, AudioConfig()).samples
    assert len(samples) == pytest.approx(len(tone), abs=2200), "an encoder adds up to two frames"
    spectrum = np.abs(np.fft.rfft(samples[RATE : 2 * RATE]))
    assert (int(spectrum.argmax()), samples.std()) == (440, pytest.approx(0.4 / np.sqrt(2), rel=0.05))
    (tmp_path / "b.m4a").write_bytes(b"#EXTM3U\nfile:///etc/passwd\n")
    with pytest.raises(DataError, match=r"b\.m4a: FFmpeg can't decode this"):
        read_header(tmp_path / "b.m4a")
    ffmpeg_formats._decode_whole.cache_clear()
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DataError, match=r"a\.m4a: this is MP4 \(M4A\), .*pip install 'vaak\[m4a\]'; or convert"):
        read_header(tmp_path / "a.m4a")


def test_a_manifest_that_can_not_be_read_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    downloaded.nemo(tmp_path)
    (tmp_path / "more_train_manifest.jsonl.gz").write_bytes(gzip.compress(b'{"audio_filepath": "a.wav"}\n' * 99)[:-20])
    assert "train" in said_in(corpus_of("nemo", tmp_path))
    assert "more_train_manifest.jsonl.gz" in caplog.text
    assert "it is left out" in caplog.text
