"""``vaak doctor`` prints a table or JSON, exits with 0 on warnings and with 2 on problems."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vaak.runs.preflight.doctor import packages
from vaak.runs.preflight.doctor.packages import Import, find_module


@pytest.fixture(autouse=True)
def imports(monkeypatch: pytest.MonkeyPatch) -> dict[str, Import]:
    """Pretend that every import succeeds, which spares trying them in each test."""
    names = [*map(find_module, packages.required()), *packages.OPTIONAL, *packages.OTHERS]
    found = dict.fromkeys(names, Import(True))
    for name in ("try_imports", "look_up"):
        monkeypatch.setattr(packages, name, lambda: found)
    return found


def test_a_table_and_json(vaak, tiny_text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_API_KEY", "s3cret" * 7)
    code, out, errors = vaak("doctor", tiny_text / "tiny.yml")
    assert (code, errors) == (0, "")
    headings = [line for line in out.splitlines() if line and not line.startswith(" ")]
    assert headings == ["machine", "packages", "what would run", "configuration", "no problems: it can be trained here"]
    assert "  ok       device         auto uses " in out
    code, as_json, _ = vaak("doctor", tiny_text / "tiny.yml", "--json")
    report = json.loads(as_json)
    assert (code, report["trains"]) == (0, True)
    assert set(report["findings"][0]) == {"about", "name", "mark", "said", "advice"}
    assert "s3cret" not in out + as_json
    assert list(tmp_path.iterdir()) == []


def test_warnings_exit_with_0_and_problems_with_2(vaak, imports: dict[str, Import], tiny_text: Path):
    imports["torchaudio"] = Import(True, "OSError: libcudart.so.13")
    code, out, _ = vaak("doctor")
    assert code == 0
    assert "  warning  torchaudio     installed but broken (OSError: libcudart.so.13); it breaks speechbrain" in out
    assert out.splitlines()[-1] == "no problems: models can be trained here"
    code, out, _ = vaak("doctor", tiny_text / "tiny.yml", "training.epoch=3")
    assert code == 2
    assert out.splitlines()[-1] == "1 problem(s): this configuration can't be trained here"
    imports["tokenizers"] = Import(False)
    code, out, _ = vaak("doctor")
    assert code == 2
    assert "  problem  tokenizers     not installed\n" in out
    assert "→ pip install 'tokenizers" in out
    code, out, _ = vaak("doctor", "--json")
    assert (code, json.loads(out)["trains"]) == (2, False)


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_it_answers_without_importing_torch(arguments: list[str]):
    """Which takes more than the two seconds that it may take."""
    code = (
        f"import sys\nfrom vaak.cli.main import main\nsys.argv = ['vaak', 'doctor', *{arguments}]\n"
        "try: main()\nexcept SystemExit as end: assert not end.code\n"
        "assert not {'torch', 'lhotse', 'transformers', 'scipy'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
