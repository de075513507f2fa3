"""Some 400 bad inputs to all commands, in real processes: each is one line that says what to do, and exit code 2."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_diarizer
import tiny_runs
from bad_input import Bad, all_cases, write_files
from commands import Commands, write_jobs
from vaak.config.load import load
from vaak.runs.folder.listing import OF_A_START
from vaak.runs.start import train as train_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made() -> Iterator[Path]:
    """A folder with a run of each task and files of every bad kind, which commands only read."""
    with tempfile.TemporaryDirectory(prefix="vaak-bad-input-") as name:
        _fill(Path(name))
        yield Path(name)


def _fill(folder: Path) -> None:
    tiny_runs.write_corpus(folder)
    (folder / "tiny.yml").rename(folder / "lm.yml")
    train_run(load([folder / "lm.yml"], [f"run_dir={folder / 'run_lm'}"]))
    recordings = folder / "recordings"
    tiny_diarizer.write_corpus(recordings)
    tiny_diarizer.train(recordings, folder / "run_dia", "training.max_steps=2", "training.validation.interval=2")
    jobs = folder / "jobs"
    jobs.mkdir()
    write_jobs(jobs)
    train_run(load([jobs / "translator.yml"], [f"run_dir={folder / 'run_seq'}", "training.max_steps=6"]))
    (folder / "directory_with_files").mkdir()
    (folder / "directory_with_files" / "notes").write_text("mine")
    write_files(folder)


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """The size and time of change of every file below a folder, and folders as such; locks may be taken and left."""
    found = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        if path.name != ".lock":
            found[str(path.relative_to(folder))] = (0, 0) if path.is_dir() else (about.st_size, about.st_mtime_ns)
    return found


def _is_of_a_start(path: str) -> bool:
    """Whether a path is one of those that a start which failed leaves, so that ``vaak runs --all`` shows it."""
    _, *parts = Path(path).parts
    return parts[:1] == ["runs"] and not {*parts[2:3]} - OF_A_START and not path.endswith((".tmp", ".old"))


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    folder = tmp_path_factory.mktemp("streams")
    found = Commands(folder)
    yield found
    found.close()


@pytest.mark.parametrize("bad", all_cases(), ids=lambda bad: bad.name.replace("/", "|")[:80])
def test_bad_input_is_one_line_and_exit_code_2(bad: Bad, made: Path, commands: Commands) -> None:
    place = Path(tempfile.mkdtemp(dir=made))
    for entry in made.iterdir():
        if not entry.is_relative_to(place):
            (place / entry.name).symlink_to(entry)
    if bad.circumstances == ("without privileges",):
        place.chmod(0o555)
    arguments = shlex.split(re.sub(r"\{(.*?)\}", rf"{made}/\1", bad.line))
    before = _files(made)
    ended = commands.start(arguments, place, circumstances=bad.circumstances).wait()
    place.chmod(0o755)
    after = _files(made)
    shutil.rmtree(place)
    changed = {path for path in {*before, *after} if before.get(path) != after.get(path)}
    assert changed == {path for path in changed if _is_of_a_start(path)}, ended
    assert not changed or any(path.endswith("/config.yml") for path in changed), (changed, ended)
    said = ended.errors if bad.own_place == "stderr" else ended.output
    assert ended.status == 2, ended
    assert "Traceback" not in ended.errors, ended.errors
    lines = [line for line in said.splitlines() if not re.match(r"warning: |files 0, |.* elapsed", line)]
    if "gone" in bad.line and bad.line.startswith("train"):
        lines = lines[-1:]  # what the preparation says comes before
    assert re.search(bad.says, said), said
    if bad.own_place == "stderr":
        assert len(lines) == 1, said
        assert not re.search("[╭│╰]", said), said
