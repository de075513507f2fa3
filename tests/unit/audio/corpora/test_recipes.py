"""Lhotse's recipes by name, on tiny corpora of their layout; nothing is fetched."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tiny_audio import write_audio
from toy_corpora import write_ami
from vaak.audio.config import AudioConfig, DatasetConfig
from vaak.audio.corpora import recipes as recipes_module
from vaak.audio.corpora.corpus import AudioCorpus
from vaak.audio.corpora.lhotse_manifests import prepare_corpus
from vaak.audio.corpora.recipes import recipe_named, recipes
from vaak.audio.cuts.reading import lacks_times
from vaak.audio.cuts.recordings import ReadRecording
from vaak.config.load import load
from vaak.core.errors import DataError, UserError

REPOSITORY = Path(__file__).resolve().parents[4]


def write_librispeech(folder: Path) -> None:
    """Three parts; of each two speakers with two utterances."""
    for number, part in enumerate(("train-clean-5", "dev-clean-2", "test-clean")):
        for speaker in (10 * number + 1, 10 * number + 2):
            chapter = folder / part / str(speaker) / "7"
            names = [f"{speaker}-7-{utterance:04}" for utterance in range(2)]
            for name in names:
                write_audio(chapter / f"{name}.flac", 0.5, seed=speaker)
            (chapter / f"{speaker}-7.trans.txt").write_text("".join(f"{name} SO IT IS\n" for name in names))


def write_ljspeech(folder: Path, utterances: int = 4) -> None:
    for number in range(utterances):
        write_audio(folder / "wavs" / f"LJ001-{number:04}.wav", 0.3, 22050)
    rows = "".join(f"LJ001-{number:04}|So it is 2|So it is two\n" for number in range(utterances))
    (folder / "metadata.csv").write_text(rows)


def write_yesno(folder: Path) -> None:
    for number in range(60):
        write_audio(folder / f"{'_'.join(format(number, '08b'))}.wav", 0.1, 8000)


@pytest.fixture
def audio(tmp_path: Path) -> AudioConfig:
    return AudioConfig(corpus_dir=str(tmp_path / "data"), output_dir=str(tmp_path / "manifests"))


def test_librispeech_by_its_name_with_its_own_splits(tmp_path: Path, audio: AudioConfig):
    write_librispeech(tmp_path / "data" / "librispeech")
    dataset = DatasetConfig(name="librispeech")
    corpus = AudioCorpus(dataset, audio)
    assert corpus.splits == ("train", "valid", "test")
    found = {split: list(corpus.cuts(split)) for split in corpus.splits}
    assert {split: sorted({cut.supervisions[0].speaker for cut in cuts}) for split, cuts in found.items()} == {
        "train": ["1", "2"],
        "valid": ["11", "12"],
        "test": ["21", "22"],
    }
    assert all(cut.supervisions[0].text == "SO IT IS" for cuts in found.values() for cut in cuts)
    shutil.rmtree(tmp_path / "data")
    (tmp_path / "data" / "librispeech").mkdir(parents=True)
    assert AudioCorpus(dataset, audio).splits == corpus.splits  # found, not prepared twice


def test_the_labels_of_utterances_are_marked_when_their_cuts_are_written(tmp_path: Path, audio: AudioConfig):
    """Those of a corpus with times aren't; cuts that an earlier version left without marks are recreated."""
    write_librispeech(tmp_path / "data" / "librispeech")
    dataset = DatasetConfig(name="librispeech")
    parts = prepare_corpus(dataset, audio)

    def marks() -> set[bool]:
        lines = [line for path in parts.values() for line in path.read_text().splitlines()]
        return {"no_times" in (json.loads(line)["supervisions"][0].get("custom") or {}) for line in lines}

    assert marks() == {True}
    assert all(lacks_times(cut) for cut in AudioCorpus(dataset, audio).cuts("train"))
    done = tmp_path / "manifests" / "librispeech" / "cuts.json"
    about = json.loads(done.read_text())
    done.write_text(json.dumps({name: value for name, value in about.items() if name != "no_times"}))
    for path in parts.values():
        path.write_text(path.read_text().replace('"no_times": true', '"other": 1'))
    assert marks() == {False}
    prepare_corpus(dataset, audio)
    assert marks() == {True}
    write_ami(tmp_path / "data" / "ami")
    assert not any(lacks_times(cut) for cut in AudioCorpus(DatasetConfig(name="ami"), audio).cuts("train"))


def test_parts_are_chosen_by_name(tmp_path: Path, audio: AudioConfig):
    write_librispeech(tmp_path / "data" / "librispeech")
    chosen = DatasetConfig(name="librispeech", train=("dev-clean-2", "test-clean"), train_fraction=1, valid_fraction=0)
    assert len(list(AudioCorpus(chosen, audio).cuts("train"))) == 8
    with pytest.raises(DataError, match=r"librispeech, train: unknown part 'dev'; expected one of .*train-clean-5"):
        AudioCorpus(DatasetConfig(name="librispeech", train=("dev",)), audio)
    with pytest.raises(DataError, match="a part is in two splits; name each once"):
        AudioCorpus(DatasetConfig(name="librispeech", train=("test-clean",), test=("test-clean",)), audio)
    evaluated = AudioCorpus(DatasetConfig(name="librispeech", test=("test-clean",)), audio)
    assert evaluated.splits == ("test",)
    with pytest.raises(DataError, match=r"train: name some of the parts of librispeech: .*train-clean-5"):
        list(evaluated.cuts("train"))


def test_the_shipped_recipe_of_mini_librispeech_finds_its_parts(tmp_path: Path, audio: AudioConfig):
    write_librispeech(tmp_path / "data" / "librispeech")
    experiment = load([REPOSITORY / "configs/diarization/mini_librispeech.yml"]).experiment
    halves = {"train_fraction": 0.5, "valid_fraction": 0.5}
    corpus = AudioCorpus(experiment.datasets[0].model_copy(update=halves), audio)
    speakers = {split: {cut.supervisions[0].speaker for cut in corpus.cuts(split)} for split in corpus.splits}
    assert speakers["test"] == {"11", "12"}
    assert speakers["train"] | speakers["valid"] == {"1", "2"}


def test_a_corpus_of_one_part_is_split(tmp_path: Path, audio: AudioConfig):
    write_ljspeech(tmp_path / "data" / "ljspeech", 20)
    corpus = AudioCorpus(DatasetConfig(name="ljspeech", train_fraction=0.5, valid_fraction=0.3), audio)
    assert sum(len(list(corpus.cuts(split))) for split in corpus.splits) == 20
    assert [path.name for path in corpus.files] == ["all.jsonl"]


def test_ami_with_an_option(tmp_path: Path, audio: AudioConfig):
    write_ami(tmp_path / "elsewhere")
    place: dict[str, Any] = {"corpus_dir": str(tmp_path / "elsewhere"), "output_dir": str(tmp_path / "out")}
    corpus = AudioCorpus(DatasetConfig(name="ami", options={"normalize_text": "upper"}, **place), audio)
    (cut,) = corpus.cuts("train")
    assert (cut.id, cut.num_channels) == ("ES2002a", 4)
    assert [(s.speaker, s.channel, s.start, s.text) for s in cut.supervisions] == [
        ("A05", 0, 0.6, "YES"),
        ("B05", 1, 1.1, "YES"),
    ]
    with pytest.raises(DataError, match=r"out contains manifests .*normalize_text was .* delete the folder"):
        AudioCorpus(DatasetConfig(name="ami", **place), audio)
    with pytest.raises(DataError, match=r"recipe ami has no option 'microphone'; expected one of data_dir, .*mic, "):
        AudioCorpus(
            DatasetConfig(name="ami", options={"microphone": "sdm"}, **{**place, "output_dir": str(tmp_path / "o")}),
            audio,
        )


def test_manifests_of_the_users_own_lhotse_prepare_are_taken(tmp_path: Path, audio: AudioConfig):
    from lhotse.recipes import prepare_ljspeech

    write_ljspeech(tmp_path / "elsewhere")
    prepare_ljspeech(tmp_path / "elsewhere", tmp_path / "manifests" / "ljspeech")
    corpus = AudioCorpus(DatasetConfig(name="ljspeech", train_fraction=1, valid_fraction=0), audio)
    assert len(list(corpus.cuts("train"))) == 4


def test_a_preparation_that_fails_or_is_interrupted_is_made_again(tmp_path: Path, audio: AudioConfig, monkeypatch):
    from vaak.audio.corpora import lhotse_manifests

    folder = tmp_path / "data" / "yesno"
    write_yesno(folder)
    lost = next(folder.iterdir())
    lost.rename(tmp_path / lost.name)
    dataset = DatasetConfig(name="yesno")
    with pytest.raises(
        DataError, match=r"recipe yesno: .*yesno can't be prepared: AssertionError: assert len\(wave_files\) == 60"
    ):
        prepare_corpus(dataset, audio)
    (tmp_path / lost.name).rename(lost)

    def interrupted(*sets: object):
        yield ReadRecording("a", None, ("x",))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(lhotse_manifests, "joined", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(dataset, audio)
    assert {part: len(path.read_text().splitlines()) for part, path in prepare_corpus(dataset, audio).items()} == {
        "train": 30,
        "test": 30,
    }
    corpus = AudioCorpus(dataset, audio)
    assert corpus.splits == ("train", "valid", "test")
    assert len(list(corpus.cuts("train"))) + len(list(corpus.cuts("valid"))) == 30
    about = tmp_path / "manifests" / "yesno" / "cuts.json"
    about.write_text("{")
    with pytest.raises(DataError, match=r"cuts\.json: this is damaged \(.*\); delete .*manifests/yesno and run again"):
        prepare_corpus(dataset, audio)


def test_a_corpus_that_is_not_there_says_what_to_do(audio: AudioConfig):
    with pytest.raises(DataError, match=r"recipe yesno: no corpus in .*data/yesno, .*vaak data get yesno"):
        AudioCorpus(DatasetConfig(name="yesno"), audio)
    with pytest.raises(
        UserError,
        match=r"^datasets, name: Lhotse has no recipe yesnoo; did you mean 'yesno'\? \(vaak data list lists all\)",
    ):
        AudioCorpus(DatasetConfig(name="yesnoo"), audio)


def test_the_list_has_what_lhotse_exports():
    import lhotse.recipes

    exported = [name.removeprefix("prepare_") for name in dir(lhotse.recipes) if name.startswith("prepare_")]
    modules = {recipe.prepare.__name__.removeprefix("prepare_") for recipe in recipes().values()}
    assert all(name in recipes() or name in modules for name in exported)
    assert len(recipes()) > 90
    assert recipe_named("babel").downloads == ()
    assert [one.__name__ for one in recipe_named("voxceleb").downloads] == ["download_voxceleb1", "download_voxceleb2"]
    assert {"mic", "partition", "annotations_dir"} <= set(recipe_named("ami").options)


def test_arguments_that_a_recipe_needs_are_named(tmp_path: Path, audio: AudioConfig):
    (tmp_path / "data" / "heroico").mkdir(parents=True)
    with pytest.raises(DataError, match="recipe heroico requires transcript_dir; give them as options"):
        AudioCorpus(DatasetConfig(name="heroico"), audio)


def test_the_cuts_name_files_from_anywhere(tmp_path: Path, audio: AudioConfig, monkeypatch):
    write_ljspeech(tmp_path / "data" / "ljspeech")
    monkeypatch.chdir(tmp_path)
    relative = AudioConfig(corpus_dir="data", output_dir="manifests")
    (path,) = prepare_corpus(DatasetConfig(name="ljspeech"), relative).values()
    for line in path.read_text().splitlines():
        assert Path(json.loads(line)["recording"]["sources"][0]["source"]).is_absolute()


def test_a_recipe_that_lacks_a_package_is_not_called_unknown(monkeypatch: pytest.MonkeyPatch):
    known, failed = recipes_module._import_recipes()
    monkeypatch.setattr(
        recipes_module, "_import_recipes", lambda: (known, {**failed, "rare": "No module named 'rarity'"})
    )
    with pytest.raises(UserError, match="Lhotse's recipe rare can't be imported: No module named 'rarity'"):
        recipe_named("rare")
    with pytest.raises(UserError, match="Lhotse has no recipe rarer"):
        recipe_named("rarer")
