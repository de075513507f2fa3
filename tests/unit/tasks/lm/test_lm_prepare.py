"""Prepared data: made once, prepared again when anything they depend on changes, shared between runs and processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import tiny_runs
from vaak.core.errors import DataError, UserError
from vaak.runs.prepared import PREPARED_FILE
from vaak.tasks.lm.prepare import PreparedText, fingerprint, recipe
from vaak.text.corpora.stores import TokenStore
from vaak.text.tokenizer import Tokenizer


@pytest.fixture
def text(tmp_path: Path) -> Path:
    tiny_runs.write_corpus(tmp_path / "text")
    return tmp_path / "text"


def make_data_section(text: Path, *overrides: str):
    return tiny_runs.loaded(text, text / "run", *overrides).experiment.data


def stamps(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}


def test_it_is_done_once(text: Path, tmp_path: Path):
    data, folder = make_data_section(text), tmp_path / "prepared"
    prepared = PreparedText.make(recipe(data), folder)
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock",
        PREPARED_FILE,
        "test",
        "tokenizer",
        "train",
        "valid",
    ]
    lines = (text / "test.txt").read_text().splitlines()
    store = prepared.store("test")
    assert [prepared.tokenizer.decode(store.document(index).tolist()) for index in range(len(store))] == lines
    assert prepared.about["statistics"]["test"]["documents"] == len(lines)
    assert prepared.about["round_trip"]["exact"] == len(lines)
    before = stamps(folder)
    PreparedText.make(recipe(data), folder)
    assert stamps(folder) == before
    with pytest.raises(UserError, match="unknown split 'dev'; expected one of test, train, valid"):
        prepared.store("dev")
    with pytest.raises(DataError, match="no prepared data"):
        PreparedText.open(tmp_path)


def test_the_fingerprint_changes_with_options_and_files(text: Path):
    marks = {fingerprint(make_data_section(text))}
    for number, override in enumerate(
        ("corpus.deduplicate=false", "corpus.test=[]", "tokenizer.vocab_size=400", "tokenizer.type=unigram"), start=2
    ):
        marks.add(fingerprint(make_data_section(text, f"data.{override}")))
        assert len(marks) == number
    assert fingerprint(make_data_section(text, "data.max_length=16", "data.minimal_pairs=[grammar]")) in marks
    with open(text / "train.txt", "a") as file:
        file.write("नया\n")
    assert fingerprint(make_data_section(text)) not in marks


def test_a_changed_file_is_prepared_again(text: Path, tmp_path: Path):
    folder = tmp_path / "prepared"
    documents = len(PreparedText.make(recipe(make_data_section(text)), folder).store("test"))
    with open(text / "test.txt", "a") as file:
        file.write("एक नया वाक्य\n")
    assert len(PreparedText.make(recipe(make_data_section(text)), folder).store("test")) == documents + 1


def test_what_was_interrupted_is_done_again_and_leaves_nothing(text: Path, tmp_path: Path):
    data, folder = make_data_section(text), tmp_path / "prepared"
    PreparedText.make(recipe(data), folder)
    complete = tiny_runs.hashes(folder)
    (folder / PREPARED_FILE).unlink()
    (folder / "train" / "tokens.bin").write_bytes(b"half")
    shutil.rmtree(folder / "test")
    (folder / ".valid.999999.tmp").mkdir()
    (folder / ".valid.999999.tmp" / "tokens.bin").write_bytes(b"half")
    (folder / ".valid.999999.old").mkdir()
    (folder / ".prepared.json.999999.tmp").write_text("{")
    (folder / "tokenizer" / ".tokenizer.json.999999.tmp").write_text("{")
    with pytest.raises(DataError, match="no prepared data"):
        PreparedText.open(folder)
    PreparedText.make(recipe(data), folder)
    assert tiny_runs.hashes(folder) == complete


WORKER = """
import sys
from pathlib import Path
from vaak.config.load import load
from vaak.tasks.lm.prepare import PreparedText, recipe
text, folder = map(Path, sys.argv[1:])
data = load([text / "tiny.yml"]).experiment.data
print("ready", flush=True)
sys.stdin.readline()
store = PreparedText.make(recipe(data), folder).store("train")
print(len(store), int(store.tokens.sum()), flush=True)
"""


def start_worker(text: Path, folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(text), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_processes_share_a_folder_and_a_killed_one_is_no_obstacle(text: Path, tmp_path: Path):
    folder = tmp_path / "prepared"
    processes = [start_worker(text, folder) for _ in range(3)]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    killed, *others = processes
    assert killed.stdin is not None
    killed.stdin.write("\n")
    killed.stdin.flush()
    deadline = time.monotonic() + 60
    while not (folder / "train").exists() and time.monotonic() < deadline:
        time.sleep(0.0005)
    killed.kill()
    killed.communicate()
    for process in others:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0] for process in others]
    assert [process.returncode for process in others] == [0, 0]
    assert said[0] == said[1]
    assert not [path for path in folder.rglob(".*") if path.name != ".lock"]


def test_runs_share_a_cache_and_find_it_when_the_corpus_is_gone(text: Path, tmp_path: Path):
    cache = tmp_path / "cache"
    first = tiny_runs.prepared_task(text, tmp_path / "one", f"data.cache_dir={cache}")
    before = stamps(cache)
    second = tiny_runs.prepared_task(text, tmp_path / "two", f"data.cache_dir={cache}")
    assert stamps(cache) == before
    assert len(list(cache.iterdir())) == 1
    assert first.prepared.folder.resolve() == second.prepared.folder.resolve() == next(cache.iterdir())
    another = tiny_runs.prepared_task(
        text, tmp_path / "two", f"data.cache_dir={cache}", "data.corpus.deduplicate=false"
    )
    assert another.prepared.folder.resolve() != first.prepared.folder.resolve()
    (text / "train.txt").unlink()
    loaded = tiny_runs.loaded(text, tmp_path / "one", f"data.cache_dir={cache}")
    gone = type(first)(loaded.experiment, tmp_path / "one", text)
    assert gone.tokenizer.fingerprint == first.tokenizer.fingerprint


def test_a_run_may_change_to_a_cache_and_back(text: Path, tmp_path: Path):
    run = tmp_path / "run"
    for overrides in ((), (f"data.cache_dir={tmp_path / 'cache'}",), ()):
        task = tiny_runs.prepared_task(text, run, *overrides)
        assert len(task.prepared.store("valid")) == tiny_runs.SIZES["valid"]
        assert (run / "prepared").is_symlink() == bool(overrides)
    assert len(list((tmp_path / "cache").iterdir())) == 1


def test_a_tokenizer_that_is_there_is_used(text: Path, tmp_path: Path):
    PreparedText.make(recipe(make_data_section(text)), tmp_path / "one")
    tokenizer = Tokenizer.load(tmp_path / "one" / "tokenizer")
    with open(text / "train.txt", "a") as file:
        file.write("बिलकुल और ही शब्द\n" * 3)
    other = PreparedText.make(
        recipe(make_data_section(text, f"data.tokenizer.path={tmp_path / 'one' / 'tokenizer'}")), tmp_path / "two"
    )
    assert (
        other.tokenizer.fingerprint == tokenizer.fingerprint == TokenStore(tmp_path / "two/train").tokenizer_fingerprint
    )


def test_wordpiece_says_what_it_loses(text: Path, tmp_path: Path):
    with open(text / "test.txt", "a") as file:
        file.write("漢字 ☂\n")
    wordpiece = PreparedText.make(
        recipe(make_data_section(text, "data.tokenizer.type=wordpiece")), tmp_path / "prepared"
    )
    trip = wordpiece.about["round_trip"]
    assert trip["exact"] == trip["documents"] - 1
    assert trip["unknown_tokens"] > 0
    assert "漢字" in trip["first_difference"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_may_not_be_written(text: Path, tmp_path: Path):
    (tmp_path / "closed").mkdir(mode=0o500)
    with pytest.raises(UserError, match="closed/prepared: Permission denied"):
        PreparedText.make(recipe(make_data_section(text)), tmp_path / "closed" / "prepared")


def test_a_folder_that_is_a_file(text: Path, tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"prepared data can't be written to .*file/prepared"):
        PreparedText.make(recipe(make_data_section(text)), tmp_path / "file" / "prepared")


def test_training_text_is_asked_for(text: Path, tmp_path: Path):
    with pytest.raises(DataError, match=r"corpus\.train: give the files of the training text"):
        PreparedText.make(recipe(make_data_section(text, "data.corpus.train=[]")), tmp_path / "prepared")
    only_test = make_data_section(text, "data.corpus.train=[]", "data.corpus.valid=[]")
    PreparedText.make(recipe(make_data_section(text)), tmp_path / "own")
    tokenizer = only_test.tokenizer.model_copy(update={"path": str(tmp_path / "own" / "tokenizer")})
    prepared = PreparedText.make(
        recipe(only_test.model_copy(update={"tokenizer": tokenizer}), ("test",)), tmp_path / "other"
    )
    assert json.loads((tmp_path / "other" / PREPARED_FILE).read_text())["statistics"].keys() == {"test"}
    assert len(prepared.store("test")) == tiny_runs.SIZES["test"]
