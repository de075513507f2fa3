"""``vaak runs`` and what the other quick commands import."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tiny_runs
from vaak.cli.runs import SORTS
from vaak.config.load import load
from vaak.core.errors import DataError
from vaak.runs.folder.directory import the_only_writer
from vaak.runs.folder.listing import list_runs, never_trained, remove_start
from vaak.runs.start import train

HEADER = ["run", "date", "task", "parameters", "state", "step", "checkpoint", "best", "time"]


def test_a_table_and_json(vaak, tiny_run: Path, tmp_path: Path):
    code, out, _ = vaak("runs", tiny_run.parent)
    assert code == 0
    header, row = (line.split() for line in out.splitlines())
    assert header == HEADER
    assert row[0] == "tiny"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", " ".join(row[1:3]))
    assert row[3] == "lm"
    assert re.fullmatch(r"[\d.]+K", row[4])
    assert row[5:9] == ["finished", "8/8", "8", "val_loss"]
    (run,) = json.loads(vaak("runs", tiny_run.parent, "--json")[1])
    assert (run["name"], run["state"], run["step"], run["total_steps"]) == ("tiny", "finished", 8, 8)
    assert (run["task"], run["trained"], run["best_mode"]) == ("lm", True, "min")
    assert run["parameters"] > 1000
    assert f"{run['best_value']:.4f}" == run["best"].split()[1]
    assert vaak("runs", tmp_path / "none")[:2] == (0, f"no runs in {tmp_path / 'none'}\n")
    assert vaak("runs", tmp_path, "--json")[:2] == (0, "[]\n")


@pytest.fixture
def several(tiny_text: Path, tiny_run: Path, tmp_path: Path) -> Path:
    """A folder with a finished run, one that crashed, a start that failed, and a user's own ``config.yml``."""
    folder = tmp_path / "runs"
    shutil.copytree(tiny_run, folder / "a")
    (shutil.copytree(tiny_run, folder / "b") / "status.json").unlink()
    os.utime(folder / "a" / "metrics.jsonl", (1, 1))
    with pytest.raises(DataError):
        train(load([tiny_text / "tiny.yml"], [f"run_dir={folder}/failed", "data.corpus.train=[none.txt]"]))
    (folder / "own").mkdir()
    (folder / "own" / "config.yml").write_text("mine: 1\n")
    return folder


def names(out: str) -> list[str]:
    return [run["name"] for run in json.loads(out)]


def test_what_is_listed_and_in_which_order(vaak, several: Path):
    assert names(vaak("runs", several, "--json")[1]) == ["b", "a"]
    assert set(names(vaak("runs", several, "--json", "--all")[1])) == {"a", "b", "failed", "own"}
    assert "2 starts that never trained not shown: --all shows them" in vaak("runs", several)[1]
    for sort in ("name", "task", "parameters", "best", "time", "state"):
        expected = ["b", "a"] if sort == "state" else ["a", "b"]
        found = names(vaak("runs", several, "--json", "--sort", sort)[1])
        assert (found if sort in ("name", "state") else sorted(found)) == expected, sort
    assert names(vaak("runs", several, "--json", "--filter", "state=fin*", "--filter", "task=lm")[1]) == ["a"]
    assert vaak("runs", several, "--filter", "state=running")[:2] == (0, f"no such runs in {several}, of 4\n")
    assert vaak("runs", several, "--filter", "date=1999*")[:2] == (0, f"no such runs in {several}, of 4\n")
    for wrong, message in (
        ("name=z*", "--filter name: nothing is like 'z*'; expected one of a, b, failed, own\n"),
        (
            "name=faled",
            "--filter name: nothing is like 'faled'; did you mean 'failed'?; expected one of ",
        ),
        ("state=finshed", "--filter state: nothing is like 'finshed'; did you mean 'finished'?; expected one of "),
        ("task=ml", "--filter task: nothing is like 'ml'"),
    ):
        code, out, err = vaak("runs", several, "--filter", wrong, "--filter", "state=*")
        assert (code, out) == (2, "")
        assert message in err
    file = several / "a" / "config.yml"
    for command in ((), ("clean",)):
        assert vaak("runs", *command, file) == (2, "", f"{file} is not a folder; give the one that has the runs\n")
    for wrong in ("nothing", "size=3"):
        code, _, err = vaak("runs", several, "--filter", wrong)
        assert code == 2
        assert err.startswith(f"--filter {wrong}: expected WHAT=PATTERN")


def test_the_best_comes_first_by_the_metrics_mode(tiny_run: Path):
    (run,) = list_runs(tiny_run.parent)
    values = {"low": 1.0, "high": 2.0, "none": None}
    for mode, order in (("min", ["low", "high", "none"]), ("max", ["high", "low", "none"])):
        runs = [
            replace(run, name=name, best="-" if value is None else f"m {value}", best_value=value, best_mode=mode)
            for name, value in values.items()
        ]
        assert [one.name for one in sorted(runs, key=SORTS["best"])] == order


def test_clean_removes_only_starts_that_never_trained(vaak, several: Path):
    before = tiny_runs.hashes(several / "a")
    for name in ("with_files", "running", "damaged"):
        shutil.copytree(several / "failed", several / name)
    (several / "with_files" / "notes.txt").write_text("mine")
    (several / "damaged" / "checkpoints" / "step-00000004").mkdir(parents=True)
    failed = several / "failed"
    with the_only_writer(several / "running"):
        code, out, err = vaak("runs", "clean", several)
        assert (code, out) == (2, f"{failed}\n")
        assert err.endswith("add --yes to remove without being asked\n")
        assert failed.exists()
        assert vaak("runs", "clean", several, "--yes")[1] == f"{failed}\nremoved 1 start that never trained\n"
    assert sorted(path.name for path in several.iterdir()) == ["a", "b", "damaged", "own", "running", "with_files"]
    assert json.loads(vaak("runs", "clean", several, "--json", "--yes")[1]) == {"removed": [str(several / "running")]}
    assert vaak("runs", "clean", several)[:2] == (0, f"no starts in {several} that never trained\n")
    assert tiny_runs.hashes(several / "a") == before


def test_a_start_that_came_to_life_meanwhile_stays(several: Path):
    found = never_trained(several)
    assert found == [several / "failed"]
    (several / "failed" / "metrics.jsonl").write_text("")
    assert not remove_start(several / "failed")
    assert (several / "failed").exists()


@pytest.mark.parametrize(("answer", "stays"), [pytest.param(b"n\n", True, marks=pytest.mark.slow), (b"y\n", False)])
def test_clean_asks_on_a_terminal(several: Path, answer: bytes, stays: bool):
    leader, follower = pty.openpty()
    command = [sys.executable, "-c", "from vaak.cli.main import main; main()", "runs", "clean", str(several)]
    os.write(leader, answer)
    done = subprocess.run(command, stdin=follower, capture_output=True, text=True)
    os.close(follower)
    os.close(leader)
    assert done.returncode == 0, done.stderr
    assert "Remove 1 start that never trained?" in done.stdout
    assert (several / "failed").exists() == stays


@pytest.mark.slow
@pytest.mark.parametrize(("columns", "expected"), [(130, HEADER), (50, ["run", "state", "best"])])
def test_a_narrow_terminal_has_fewer_columns(tiny_run: Path, columns: int, expected: list[str]):
    code = "from vaak.cli.main import main; main()"
    leader, follower = pty.openpty()
    variables = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-c", code, "runs", str(tiny_run.parent)]
    assert subprocess.run(command, stdout=follower, env=variables).returncode == 0
    os.close(follower)
    lines = os.read(leader, 4096).decode().splitlines()
    os.close(leader)
    assert [name for name in lines[0].split() if name in expected] == expected
    assert max(map(len, lines)) <= columns


def test_it_says_how_a_crashed_run_goes_on_and_what_is_damaged(vaak, tiny_run: Path, tmp_path: Path):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    (run / "status.json").unlink()
    (run / "checkpoints" / "step-00000008" / "state.json").unlink()
    code, out, _ = vaak("runs", tmp_path)
    assert code == 0
    assert out.splitlines()[1].split()[5:8] == ["crashed", "8", "4"]
    assert "tiny: step-00000008 is damaged: state.json is missing\n" in out
    last = out.splitlines()[-1]
    assert last == f"tiny: crashed; resume from step 4 with: vaak train {run}/config.yml --resume auto"
    go_on = last.partition("with: ")[2].split()[1:]
    assert vaak(*go_on)[0] == 0
    assert vaak("runs", tmp_path)[1].splitlines()[1].split()[5:8] == ["finished", "8/8", "8"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["runs", "."],
        ["config", "check", "tiny.yml"],
        pytest.param(["config", "show", "tiny.yml"], marks=pytest.mark.slow),
    ],
)
def test_quick_commands_import_no_torch(tiny_text: Path, arguments: list[str]):
    code = (
        "import sys\nfrom vaak.cli.main import main\n"
        f"sys.argv = {['vaak', *arguments]!r}\n"
        "main()\nassert not {'torch', 'numpy', 'tokenizers', 'accelerate'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tiny_text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
