"""``vaak runs`` and what the other quick commands import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_table_and_json(vaak, tiny_run: Path, tmp_path: Path):
    code, out, _ = vaak("runs", tiny_run.parent)
    assert code == 0
    header, row = (line.split() for line in out.splitlines())
    assert header == ["run", "state", "step", "best", "time"]
    assert row[:4] == ["tiny", "finished", "8/8", "val_loss"]
    (run,) = json.loads(vaak("runs", tiny_run.parent, "--json")[1])
    assert (run["name"], run["state"], run["step"], run["total_steps"]) == ("tiny", "finished", 8, 8)
    assert vaak("runs", tmp_path / "none")[:2] == (0, f"no runs in {tmp_path / 'none'}\n")
    assert vaak("runs", tmp_path, "--json")[:2] == (0, "[]\n")


@pytest.mark.parametrize("arguments", [["runs", "."], ["config", "check", "tiny.yml"], ["config", "show", "tiny.yml"]])
def test_quick_commands_import_no_torch(tiny_text: Path, arguments: list[str]):
    code = (
        "import sys\nfrom vaak.cli.main import main\n"
        f"sys.argv = {['vaak', *arguments]!r}\n"
        "main()\nassert not {'torch', 'numpy', 'tokenizers', 'accelerate'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tiny_text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
