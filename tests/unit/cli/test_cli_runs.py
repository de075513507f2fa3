"""``vaak runs`` and what the other quick commands import."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_table_and_json(vaak, tiny_run: Path, tmp_path: Path):
    code, out, _ = vaak("runs", tiny_run.parent)
    assert code == 0
    header, row = (line.split() for line in out.splitlines())
    assert header == ["run", "state", "step", "checkpoint", "best", "time"]
    assert row[:5] == ["tiny", "finished", "8/8", "8", "val_loss"]
    (run,) = json.loads(vaak("runs", tiny_run.parent, "--json")[1])
    assert (run["name"], run["state"], run["step"], run["total_steps"]) == ("tiny", "finished", 8, 8)
    assert vaak("runs", tmp_path / "none")[:2] == (0, f"no runs in {tmp_path / 'none'}\n")
    assert vaak("runs", tmp_path, "--json")[:2] == (0, "[]\n")


def test_it_says_how_a_crashed_run_goes_on_and_what_is_damaged(vaak, tiny_run: Path, tmp_path: Path):
    run = shutil.copytree(tiny_run, tmp_path / "tiny")
    (run / "status.json").unlink()
    (run / "checkpoints" / "step-00000008" / "state.json").unlink()
    code, out, _ = vaak("runs", tmp_path)
    assert code == 0
    assert out.splitlines()[1].split()[:4] == ["tiny", "crashed", "8", "4"]
    assert "tiny: step-00000008 is damaged: state.json is missing\n" in out
    last = out.splitlines()[-1]
    assert last == f"tiny: crashed; resume from step 4 with: vaak train {run}/config.yml --resume auto"
    go_on = last.partition("with: ")[2].split()[1:]
    assert vaak(*go_on)[0] == 0
    assert vaak("runs", tmp_path)[1].splitlines()[1].split()[:4] == ["tiny", "finished", "8/8", "8"]


@pytest.mark.parametrize("arguments", [["runs", "."], ["config", "check", "tiny.yml"], ["config", "show", "tiny.yml"]])
def test_quick_commands_import_no_torch(tiny_text: Path, arguments: list[str]):
    code = (
        "import sys\nfrom vaak.cli.main import main\n"
        f"sys.argv = {['vaak', *arguments]!r}\n"
        "main()\nassert not {'torch', 'numpy', 'tokenizers', 'accelerate'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tiny_text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
