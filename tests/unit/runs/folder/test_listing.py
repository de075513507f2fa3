"""The list of runs: how each stands, whatever happened to it and to its files."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_runs
from commands import Commands, wait_until
from vaak.core.errors import UserError
from vaak.runs.folder.directory import holds_a_run, make_directory, the_only_writer, write_status
from vaak.runs.folder.listing import list_runs


def states(folder: Path) -> dict[str, str]:
    return {run.name: run.state for run in list_runs(folder)}


@pytest.mark.slow
def test_states_of_processes_that_end_in_every_way(commands: Commands, tiny_text: Path, tmp_path: Path):
    def start(name: str, *overrides: str):
        run = tmp_path / "runs" / name
        run.parent.mkdir(exist_ok=True)
        command = commands.start(
            ["train", tiny_text / "tiny.yml", f"run_dir={run}", "training.max_steps=100000", *overrides], tmp_path
        )
        wait_until((run / "metrics.jsonl").exists, command)
        return command

    stopped, killed = start("stopped"), start("killed")
    assert states(tmp_path / "runs") == {"stopped": "running", "killed": "running"}
    stopped.send(signal.SIGTERM)
    killed.send(signal.SIGKILL)
    assert stopped.wait().status == 0
    killed.wait()
    (tmp_path / "boom.py").write_text(
        "from vaak.engine.callback import Callback\n"
        "class Boom(Callback):\n    def on_step_end(self, trainer, report):\n        raise LookupError('boom')\n"
    )
    shutil.copyfile(tiny_text / "tiny.yml", tmp_path / "boom.yml")
    boom = ["train", "boom.yml", "run_dir=runs/failed", "training.callbacks=[./boom.py:Boom]"]
    assert commands.start(boom, tmp_path).wait().status == 1
    nothing: list[str | Path] = [
        "train",
        tiny_text / "tiny.yml",
        "run_dir=runs/nothing",
        "data.corpus.train=[none.txt]",
    ]
    assert commands.start(nothing, tmp_path).wait().status == 2
    assert commands.start(["train", tiny_text / "tiny.yml", "run_dir=runs/deep/one"], tmp_path).wait().status == 0
    assert states(tmp_path / "runs") == {
        "stopped": "stopped",
        "killed": "crashed",
        "failed": "failed",
        "nothing": "not begun",
        "deep/one": "finished",
    }
    by_name = {run.name: run for run in list_runs(tmp_path / "runs")}
    assert {run.name for run in by_name.values() if run.go_on} == {"stopped"} | {
        name for name in ("killed", "failed") if by_name[name].checkpoint
    }
    one = by_name["deep/one"]
    assert (one.step, one.total_steps) == (8, 8)
    assert one.best.startswith("val_loss ")
    assert 0 < one.seconds < 60
    assert by_name["stopped"].step > 0
    assert next(iter(by_name)) == "deep/one"  # the last one written


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[]", b"7\nnull\n", b'{"step": "x"}\n', b'{"step": 3}\n{"ki']
)
def test_broken_files_break_no_list(tiny_run: Path, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture):
    for name in ("metrics.jsonl", "status.json", "config.yml", ".lock", "checkpoints/step-00000008/state.json"):
        run = shutil.copytree(tiny_run, tmp_path / name.replace("/", "_"))
        (run / name).write_bytes(content)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yml").write_bytes(content)
    with caplog.at_level("WARNING", "vaak"):
        found = {run.name: run for run in list_runs(tmp_path)}
    assert len(found) == 6
    if content in (b"", b"\xff\xfe\x00", b'{"step": 3}\n{"ki'):
        assert f"{tmp_path / 'status.json' / 'status.json'} can't be read, and is left out: " in caplog.text
    if content[:1] == b"\xff":
        assert f"{tmp_path / 'config.yml' / 'config.yml'} can't be read, and is left out: " in caplog.text
    assert found["bare"].state == "not begun"
    assert found["config.yml"].state == "finished"
    assert found["status.json"].state == "crashed"
    assert found["checkpoints_step-00000008_state.json"].checkpoint == 4
    assert found["metrics.jsonl"].step == 8


@pytest.mark.parametrize(("name", "step"), [("totals.jsonl", 8), ("metrics.jsonl", 8)])
def test_a_file_that_can_not_be_opened_is_named(
    tiny_run: Path, tmp_path: Path, name: str, step: int, caplog: pytest.LogCaptureFixture, monkeypatch
):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (run / "totals.jsonl").write_text("")
    opened = io.open

    def refuse(file, *arguments, **options):
        if not isinstance(file, int) and Path(file) == run / name:
            raise PermissionError(errno.EACCES, "Permission denied", str(file))
        return opened(file, *arguments, **options)

    monkeypatch.setattr(io, "open", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    with caplog.at_level("WARNING", "vaak"):
        (found,) = list_runs(tmp_path)
    assert (found.step, found.state) == (step, "finished")
    assert f"{run / name} can't be read, and is left out: Permission denied" in caplog.text


def test_a_run_that_crashed_goes_on_with_the_command_shown(tiny_run: Path, tmp_path: Path):
    run = shutil.copytree(tiny_run, tmp_path / "a run")
    (run / "status.json").unlink()
    (found,) = list_runs(tmp_path)
    assert (found.state, found.step, found.checkpoint, found.reason) == ("crashed", 8, 8, "")
    assert found.best.startswith("val_loss ")
    assert found.go_on == f"vaak train '{run}'/config.yml --resume auto"
    (run / "code").mkdir()
    assert list_runs(tmp_path)[0].go_on == f"vaak train '{run}'/config.yml --resume auto --trust-code"


def test_why_it_ended_and_what_goes_on(tiny_run: Path, tmp_path: Path):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    for state, goes_on in (("finished", False), ("stopped", True), ("failed", True)):
        write_status(run, {"state": state, "reason": "because\nof much", "step": 8, "total_steps": 8})
        (found,) = list_runs(tmp_path)
        assert (found.state, found.reason, found.go_on is not None) == (state, "because", goes_on)
    with the_only_writer(run):
        assert (list_runs(tmp_path)[0].state, list_runs(tmp_path)[0].go_on) == ("running", None)
    shutil.rmtree(run / "checkpoints")
    (found,) = list_runs(tmp_path)
    assert (found.state, found.checkpoint, found.go_on) == ("failed", None, None)


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
        (lambda folder: os.truncate(folder / "optimizer.safetensors", 5), "optimizer.safetensors has 5 bytes of "),
        (lambda folder: (folder / "MANIFEST.json").unlink(), "its MANIFEST.json can't be read"),
        (lambda folder: (folder / "MANIFEST.json").write_text("[]"), "its MANIFEST.json can't be read"),
        (
            lambda folder: (folder / "MANIFEST.json").write_text('{"files": {"model.safetensors": {"bytes": 1e400}}}'),
            "its MANIFEST.json can't be read",
        ),
        (shutil.rmtree, None),
    ],
)
def test_damaged_checkpoints_are_noticed_by_their_sizes(tiny_run: Path, tmp_path: Path, harm, said: str | None):
    run = shutil.copytree(tiny_run, tmp_path / "run")
    (run / "status.json").unlink()
    harm(run / "checkpoints" / "step-00000008")
    (found,) = list_runs(tmp_path)
    assert found.checkpoint == 4
    assert found.go_on is not None
    assert found.best.startswith("val_loss ")
    if said is None:
        assert found.damaged == ()
    else:
        (damage,) = found.damaged
        assert damage.startswith(f"step-00000008 is damaged: {said}")
    shutil.rmtree(run / "checkpoints" / "step-00000004")
    assert (list_runs(tmp_path)[0].checkpoint, list_runs(tmp_path)[0].go_on) == (None, None)


def test_the_process_that_writes_a_run_may_list_it(tmp_path: Path):
    run = tmp_path / "runs" / "mine"
    make_directory(run, None)
    (run / "config.yml").touch()
    with the_only_writer(run):
        assert states(tmp_path / "runs") == {"mine": "running"}
        code = (
            "import sys; from vaak.cli.main import main; sys.argv = ['vaak', 'runs', '--json', *sys.argv[1:]]; main()"
        )
        (seen,) = json.loads(subprocess.check_output([sys.executable, "-c", code, str(tmp_path / "runs")], text=True))
        assert seen["state"] == "running"
    assert states(tmp_path / "runs") == {"mine": "not begun"}


READ_ONLY = """
import errno, os, sys
def refuse(event, arguments):
    writes = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes or event in ("os.mkdir", "os.rename", "os.remove"):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), arguments[0])
from vaak.cli.main import main
import vaak.cli.runs, vaak.runs.folder.listing
sys.addaudithook(refuse)
sys.argv = ["vaak", "runs", sys.argv[1], "--json"]
main()
"""


def test_runs_on_a_read_only_disk(tiny_run: Path, tmp_path: Path):
    """Every opening for writing is refused, as such a disk does."""
    shutil.copytree(tiny_run, tmp_path / "ended")
    (shutil.copytree(tiny_run, tmp_path / "crashed") / "status.json").unlink()
    shutil.copytree(tiny_run, tmp_path / "running")
    with the_only_writer(tmp_path / "running"):
        command = [sys.executable, "-c", READ_ONLY, str(tmp_path)]
        done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = {run["name"]: run["state"] for run in json.loads(done.stdout)}
    assert found == {"ended": "finished", "crashed": "crashed", "running": "running"}


def test_a_folder_without_runs_and_a_run_itself(tiny_run: Path, tmp_path: Path):
    assert list_runs(tmp_path / "none") == []
    assert list_runs(tmp_path) == []
    assert [run.name for run in list_runs(tiny_run)] == ["tiny"]


def test_what_lists_runs_imports_no_torch(tiny_run: Path):
    code = (
        "import sys\nfrom vaak.cli.main import main\n"
        f"sys.argv = ['vaak', 'runs', {str(tiny_run.parent)!r}, '--json']\n"
        "main()\nassert not {'torch', 'numpy', 'tokenizers'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)[0]["state"] == "finished"


HOLDER = """
import sys
from pathlib import Path
from vaak.runs.folder.directory import the_only_writer
with the_only_writer(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_one_writer_until_its_process_ends(tmp_path: Path):
    make_directory(tmp_path / "run", None)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(UserError, match="is being written by process"), the_only_writer(tmp_path / "run"):
            raise AssertionError
        holder.kill()
    with the_only_writer(tmp_path / "run"):
        assert (tmp_path / "run" / ".lock").exists()


def test_checkpoints_may_lie_elsewhere(tmp_path: Path):
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere" / "run"
    make_directory(run, None)
    make_directory(run, elsewhere)
    make_directory(run, elsewhere)
    assert (run / "checkpoints").resolve() == elsewhere
    assert not holds_a_run(run)
    (elsewhere / "step-00000001").mkdir()
    assert holds_a_run(run)
    with pytest.raises(UserError, match=r"training\.checkpoint\.save_dir says .*: a resume doesn't move them"):
        make_directory(run, tmp_path / "third")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be created"):
        make_directory(tmp_path / "file" / "run", None)
    with pytest.raises(UserError, match="checkpoints can't be written to"):
        make_directory(tmp_path / "new" / "run", tmp_path / "file" / "run")
    assert not (tmp_path / "new").exists()


def test_a_run_is_not_overwritten(tiny_text: Path, tiny_run: Path):
    before = tiny_runs.hashes(tiny_run)
    with pytest.raises(UserError, match="already holds a run"):
        tiny_runs.train(tiny_text, tiny_run)
    assert tiny_runs.hashes(tiny_run) == before
