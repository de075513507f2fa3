"""A bad input of each kind, in this process; tests/process/test_bad_input.py has all of them in real ones."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from bad_input import CONFIG_COMMANDS, LONG, write_texts

LINES = {
    **{f"{command} gone.yml": "gone.yml: can't be read" for command in CONFIG_COMMANDS if command != "doctor"},
    "config check directory.yml": "directory",
    f"config check {LONG}.yml": "too long",
    "config check empty": "the file is empty",
    "config check binary": "UTF-8|YAML",
    "config check latin1.yml": "latin1.yml:2: not UTF-8",
    "config check /dev/zero": "/dev/zero.*not a file",
    "config check lm.yml model.d_model": "write model.d_model=VALUE",
    "config check lm.yml model.dropout=3.0": r"is 3.0; expected [^;]*$",
    "config check lm.yml model.num_heads=2.0": "write 2",
    "config check lm.yml training.batch_size=0": "batch_size",
    "config check lm.yml training.optimizer.lr=nan": "lr",
    "config show lm.yml --nope": r"No such option: --nope; see vaak config show --help",
    "eval": r"give a run or a checkpoint: vaak eval RUN, or --model-path RUN",
    "eval gone": "gone is not a run directory",
    "eval empty": "not a run",
    f"eval {LONG}": "too long",
    "translate gone": "gone is not a run directory",
    "generate gone text --samples 0": "samples",
    "report directory": "directory is not a run directory",
    "report . --output page.txt": "page.txt: the report is an HTML page",
    "replay gone --step x": "step",
    "check-gradients lm.yml --tolerance -1": "--tolerance -1: expected a relative error above 0",
    "check-gradients lm.yml --tolerance nan": "--tolerance nan",
    "find-lr lm.yml --start-lr 0": "--start-lr",
    "find-batch-size lm.yml --limit lots": "--limit is 'lots'",
    "train lm.yml run_dir=full": "full",
    "train lm.yml data.corpus.train=[empty]": "empty",
    "score der good.rttm gone.rttm": "gone.rttm",
    "score der good.rttm prose.txt": "prose.txt:1",
    "score der good.rttm latin1.rttm": "latin1.rttm:1.*UTF-8",
    "score der good.rttm good.rttm --uem good.rttm": "good.rttm:1: this is a line of an RTTM",
    "score der good.rttm good.rttm --collar nan": "--collar nan",
    "score der /dev/zero good.rttm": "/dev/zero.*not a file",
    "data simulate out --split dev": "split",
    "data get yesno x": "key=value",
    "trian": "No such command 'trian'",
}


@pytest.fixture
def folder(tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "lm.yml").write_text((tiny_text / "tiny.yml").read_text())
    write_texts(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("line", "says"), LINES.items(), ids=lambda text: text.replace("/", "|")[:60])
def test_it_is_one_line_and_exit_code_2(vaak, folder: Path, line: str, says: str) -> None:
    code, _, errors = vaak(*shlex.split(line))
    assert code == 2, errors
    assert "Traceback" not in errors
    assert re.search(says, errors), errors
    assert errors.count("\n") == 1, errors
