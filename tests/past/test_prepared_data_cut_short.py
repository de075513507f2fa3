"""A prepared file that had been cut short was found at the first evaluation, when steps were trained already."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tiny_diarizer
import tiny_runs
from commands import checkpoints_of
from quick_cases import mostly_slow
from vaak.config.load import load
from vaak.core.artifact import damage_in, list_sizes
from vaak.core.errors import DataError, UserError
from vaak.runs.open_run import open_run
from vaak.runs.start import train

SEQ2SEQ = """\
task: seq2seq
name: tiny
model:
  encoder: {d_model: 16, num_layers: 1, num_heads: 2}
  decoder: {d_model: 16, num_layers: 1, num_heads: 2}
data:
  corpus:
    type: tsv
    train: [FOLDER/train.tsv]
    valid: [FOLDER/valid.tsv]
    test: [FOLDER/test.tsv]
    source_column: source
    target_column: target
  tokenizer: {type: character}
  decoding: {valid_examples: 1, max_new_tokens: 2}
training: {batch_size: 8, device: cpu, logging: {tensorboard: false, progress_bar: false}}
"""
SHORT = (
    "training.max_steps=2",
    "training.validation.interval=2",
    "training.checkpoint.interval=1",
    "training.logging.tensorboard=false",
)


def write_pairs(folder: Path) -> None:
    folder.mkdir()
    for split in ("train", "valid", "test"):
        lines = [f"{split} {number}\tnumber {number} of {split}" for number in range(20)]
        (folder / f"{split}.tsv").write_text("source\ttarget\n" + "".join(f"{line}\n" for line in lines))
    (folder / "tiny.yml").write_text(SEQ2SEQ.replace("FOLDER", str(folder)))


CORPORA: dict[str, Callable[[Path], None]] = {
    "lm": tiny_runs.write_corpus,
    "seq2seq": write_pairs,
    "diarization": tiny_diarizer.write_corpus,
}
Begun = tuple[Path, Path]


@pytest.fixture(scope="module", params=mostly_slow(CORPORA, "lm", "diarization"))
def begun(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    """A corpus, and a run after two steps."""
    folder = tmp_path_factory.mktemp(request.param)
    CORPORA[request.param](folder / "corpus")
    trained(folder / "corpus", folder / "run")
    return folder / "corpus", folder / "run"


as_any_task = pytest.mark.parametrize(
    "begun", [pytest.param(task, marks=[] if task == "lm" else [pytest.mark.slow]) for task in CORPORA], indirect=True
)
"""For what one code does for all tasks (vaak.runs.prepared)."""


def trained(corpus: Path, run: Path, *overrides: str) -> None:
    train(load([corpus / "tiny.yml"], [f"run_dir={run}", *SHORT, *overrides]))


def resumed(corpus: Path, run: Path, *overrides: str) -> None:
    trained(corpus, run, "training.checkpoint.resume=auto", "training.max_steps=4", *overrides)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def list_files(run: Path) -> list[str]:
    """Those that training reads."""
    about = json.loads((run / "prepared" / "prepared.json").read_text())
    return [name for name in about["sizes"] if not name.startswith("test/")]


def test_every_file_is_looked_at_before_a_step_is_trained(begun: Begun, tmp_path: Path):
    corpus, run = begun
    names = list_files(run)
    assert {name.partition("/")[0] for name in names} >= {"train", "valid"}
    for number, name in enumerate(names):
        copy = shutil.copytree(run, tmp_path / "run", symlinks=True)
        path = copy / "prepared" / name
        if number % 2:
            path.unlink()
            said = "this file is missing"
        else:
            size = path.stat().st_size
            path.write_bytes(path.read_bytes()[:-1] if size else b"x")
            said = f"this file has {path.stat().st_size} bytes where {size} were written"
        with pytest.raises(UserError) as caught:
            resumed(corpus, copy)
        repair = f"delete {copy / 'prepared'}, and training recreates the data from their sources"
        assert str(caught.value) == f"{path}: {said}; {repair}"
        assert checkpoints_of(copy) == checkpoints_of(run)
        assert (copy / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
        shutil.rmtree(copy)


@as_any_task
def test_what_the_line_says_to_do_helps(begun: Begun, tmp_path: Path):
    corpus, run = begun
    copy, whole = (shutil.copytree(run, tmp_path / name, symlinks=True) for name in ("run", "whole"))
    shutil.rmtree(copy / "prepared")
    resumed(corpus, copy)
    resumed(corpus, whole)
    final = "checkpoints/step-00000004/model.safetensors"
    assert (copy / final).read_bytes() == (whole / final).read_bytes()


def test_a_damaged_split_that_training_does_not_read_fails_its_evaluation_alone(begun: Begun, tmp_path: Path):
    corpus, run = begun
    copy = shutil.copytree(run, tmp_path / "run", symlinks=True)
    damaged = max((copy / "prepared" / "test").rglob("*.*"), key=lambda path: path.stat().st_size)
    cut(damaged)
    if "diarization" not in str(corpus):  # which looks for too few speakers in every split
        resumed(corpus, copy)
    task = open_run(copy).task
    with pytest.raises(DataError, match=rf"{damaged.name}: this file has \d+ bytes where \d+ were written; delete"):
        task.dataset("test")


@as_any_task
def test_a_damaged_cache_is_made_again_by_a_new_run_and_refused_by_one_that_has_begun(
    begun: Begun, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    corpus, _ = begun
    in_cache = f"data.cache_dir={tmp_path / 'cache'}"
    trained(corpus, tmp_path / "first", in_cache)
    (cache,) = (tmp_path / "cache").iterdir()
    before = tiny_runs.hashes(cache)
    mapped = {path: path.open("rb") for path in (cache / "valid").rglob("*.bin")}
    contents = {path: path.read_bytes() for path in mapped}
    damaged = max((cache / "train").rglob("*.*"), key=lambda path: path.stat().st_size)
    cut(damaged)
    with pytest.raises(UserError, match=f"{damaged.name}: .*; delete {cache}, and training recreates the data"):
        resumed(corpus, tmp_path / "first", in_cache)
    capfd.readouterr()
    trained(corpus, tmp_path / "second", in_cache)
    assert f"{damaged.name}: this file has" in capfd.readouterr().err
    assert {name: mark for name, mark in tiny_runs.hashes(cache).items() if name in before} == before
    for path, file in mapped.items():  # of another run that reads them
        assert file.read() == contents[path]
        file.close()
    resumed(corpus, tmp_path / "first", in_cache)


@as_any_task
def test_folders_made_before_sizes_were_recorded_still_work(begun: Begun, tmp_path: Path):
    corpus, run = begun
    copy = shutil.copytree(run, tmp_path / "run", symlinks=True)
    for number, path in enumerate((copy / "prepared" / "prepared.json", *cached(corpus, tmp_path))):
        about = json.loads(path.read_text())
        del about["sizes"]
        path.write_text(json.dumps(about))
        if number == 0:
            resumed(corpus, copy)
    trained(corpus, tmp_path / "another", f"data.cache_dir={tmp_path / 'cache'}")


def cached(corpus: Path, folder: Path) -> list[Path]:
    """The ``prepared.json`` of a cache that a run has made."""
    trained(corpus, folder / "cached", f"data.cache_dir={folder / 'cache'}")
    return list((folder / "cache").glob("*/prepared.json"))


@as_any_task
@pytest.mark.parametrize("content", ["", '{"fingerprint": "', "[]", "null"])
def test_what_says_complete_may_be_cut_short_itself(begun: Begun, tmp_path: Path, content: str):
    corpus, run = begun
    copy = shutil.copytree(run, tmp_path / "run", symlinks=True)
    (copy / "prepared" / "prepared.json").write_text(content)
    with pytest.raises(
        UserError, match=r"prepared.json: this is damaged.*; delete .*, and training recreates the data"
    ):
        resumed(corpus, copy)


TOKENS = ("vaak tokens 2", "vaak tokens 1", "tokens: they are vaak tokens 1, and it reads vaak tokens 2")
EARLIER = {
    "lm": {"train/store.json": TOKENS, "valid/store.json": TOKENS},
    "seq2seq": {
        "train/source/store.json": TOKENS,
        "valid/target/store.json": TOKENS,
        "train/pairs.jsonl": (
            '"where": ',
            '"place": ',
            "pairs: they are source and targets and place, and it reads source and targets and where",
        ),
    },
    "diarization": {
        "train/0/store.json": (
            '"speakers"',
            '"talkers "',
            "cuts: they are without speakers, and it reads those with them",
        ),
        "valid/0/store.json": ('"fingerprint"', '"fingerprint "', "cuts: they are without fingerprint, and it reads"),
    },
}


def test_data_of_an_earlier_format_are_named_with_the_folder_to_delete(begun: Begun, tmp_path: Path):
    corpus, run = begun
    task = next(task for task in EARLIER if corpus.parent.name.startswith(task))
    copy = tmp_path / "run"
    for name, (now, then, said) in EARLIER[task].items():
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(run, copy, symlinks=True)
        path = copy / "prepared" / name
        path.write_text(path.read_text(encoding="utf-8").replace(now, then), encoding="utf-8")
        about = json.loads((copy / "prepared" / "prepared.json").read_text())
        about["sizes"][name] = path.stat().st_size
        (copy / "prepared" / "prepared.json").write_text(json.dumps(about))
        repair = f"delete {copy / 'prepared'}, and training recreates the data from their sources"
        with pytest.raises(DataError) as caught:
            resumed(corpus, copy)
        assert str(caught.value).startswith(f"{path}: this version can't read these {said}"), caught.value
        assert str(caught.value).endswith(f"; {repair}")
        assert "\n" not in str(caught.value)
        assert checkpoints_of(copy) == checkpoints_of(run)
        assert (copy / "metrics.jsonl").read_bytes() == (run / "metrics.jsonl").read_bytes()
    shutil.rmtree(copy / "prepared")
    resumed(corpus, copy)


def test_sizes_are_of_visible_files(tmp_path: Path):
    for name in ("a/b.bin", ".lock", "a/.b.bin.1.tmp", ".old/c.bin", "done.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("four")
    assert list_sizes(tmp_path, leave_out={"done.json"}) == {"a/b.bin": 4}
    assert damage_in(tmp_path, {"a/b.bin": 4}) is None
    assert damage_in(tmp_path, {"a/b.bin/c": 4}) == f"{tmp_path}/a/b.bin/c: this file is missing"
