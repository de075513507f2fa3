"""The list of runs: how each stands, whatever happened to it and to its files."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tiny_runs
from commands import Commands, wait_until
from vaak.core.errors import UserError
from vaak.runs.directory import holds_a_run, make_directory, the_only_writer
from vaak.runs.listing import list_runs


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Commands]:
    server = Commands(tmp_path_factory.mktemp("said"))
    yield server
    server.close()


def states(folder: Path) -> dict[str, str]:
    return {run.name: run.state for run in list_runs(folder)}


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
        "from vaak.core.callback import Callback\n"
        "class Boom(Callback):\n    def on_step_end(self, trainer, report):\n        raise LookupError('boom')\n"
    )
    shutil.copyfile(tiny_text / "tiny.yml", tmp_path / "boom.yml")
    boom = ["train", "boom.yml", "run_dir=runs/failed", "training.callbacks=[./boom.py:Boom]"]
    assert commands.start(boom, tmp_path).wait().status == 1
    nothing = ["train", tiny_text / "tiny.yml", "run_dir=runs/nothing", "data.corpus.train=[none.txt]"]
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
    one = by_name["deep/one"]
    assert (one.step, one.total_steps) == (8, 8)
    assert one.best.startswith("val_loss ")
    assert 0 < one.seconds < 60
    assert by_name["stopped"].step > 0
    assert next(iter(by_name)) == "deep/one"  # the last one written


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe\x00", b"[]", b"7\nnull\n", b'{"step": "x"}\n', b'{"step": 3}\n{"ki']
)
def test_broken_files_break_no_list(tiny_run: Path, tmp_path: Path, content: bytes):
    for name in ("metrics.jsonl", "status.json", "config.yml", ".lock", "checkpoints/step-00000008/state.json"):
        run = shutil.copytree(tiny_run, tmp_path / name.replace("/", "_"))
        (run / name).write_bytes(content)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "config.yml").write_bytes(content)
    found = {run.name: run for run in list_runs(tmp_path)}
    assert len(found) == 6
    assert found["bare"].state == "not begun"
    assert found["config.yml"].state == "finished"
    assert found["status.json"].state == "crashed"
    assert found["checkpoints_step-00000008_state.json"].best == "-"
    assert found["metrics.jsonl"].step in (0, 3)


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
from vaak.runs.directory import the_only_writer
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
        with pytest.raises(UserError, match="is being written by another process"), the_only_writer(tmp_path / "run"):
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
    with pytest.raises(UserError, match=r"which training\.checkpoint\.save_dir asks for"):
        make_directory(run, tmp_path / "third")
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="can't be made"):
        make_directory(tmp_path / "file" / "run", None)


def test_a_run_is_not_overwritten(tiny_text: Path, tiny_run: Path):
    before = tiny_runs.hashes(tiny_run)
    with pytest.raises(UserError, match="holds a run already"):
        tiny_runs.train(tiny_text, tiny_run)
    assert tiny_runs.hashes(tiny_run) == before
