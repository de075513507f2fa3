"""Runs of earlier versions are read: one of before the format had a version, and one of each release.

Those of later ones are refused.

Options that its configuration kept at their defaults, though its types don't read them, were mistakes.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

import vaak as library
from vaak.core.errors import CheckpointError, UserError
from vaak.engine.checkpoint.names import listed_files
from vaak.runs.folder.directory import RUN_FORMAT

STORED = sorted((Path(__file__).parent / "runs").glob("*.zip"))


@pytest.fixture(params=STORED, ids=[path.stem for path in STORED])
def earlier(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(request.param) as content:
        content.extractall(tmp_path)
    return tmp_path / "earlier"


def test_it_is_used_verified_and_trained_on(vaak, earlier: Path):
    run = library.open(earlier)
    assert run.evaluate("valid")["val_loss"] == pytest.approx(run.metrics["val_loss"], abs=1e-6)
    assert isinstance(run.predict("वह"), str)
    code, out, errors = vaak("verify", earlier, "--json")
    found = json.loads(out.splitlines()[-1])
    assert code == 0, errors
    assert found["verified"], found
    code, _, errors = vaak("train", earlier / "config.yml", "--resume", "auto", "training.max_steps=8")
    assert code == 0, errors
    assert json.loads((earlier / "run.json").read_text())["format"] == RUN_FORMAT
    assert [record["step"] for record in library.open(earlier).history("step")] == list(range(1, 9))


def test_one_of_a_later_version_is_refused_in_a_line(vaak, earlier: Path):
    about = json.loads((earlier / "run.json").read_text()) | {"format": "2.0"}
    (earlier / "run.json").write_text(json.dumps(about))
    for command in (("eval", earlier), ("train", earlier / "config.yml", "--resume", "auto")):
        code, _, errors = vaak(*command)
        said = f"{earlier} was written by a later version of Vaak, in run format 2.0; this one reads up to 1.x"
        assert (code, errors.splitlines()[-1]) == (2, f"{said}: update Vaak")
    (earlier / "run.json").write_text(json.dumps(about | {"format": "1.7"}))
    assert library.open(earlier).metrics, "a later second number only adds"


def test_a_checkpoint_of_a_later_format_is_refused(earlier: Path):
    (checkpoint,) = earlier.glob("checkpoints/step-*")
    manifest = json.loads((checkpoint / "MANIFEST.json").read_text())
    (checkpoint / "MANIFEST.json").write_text(json.dumps(manifest | {"format": 2}))
    with pytest.raises(CheckpointError, match=r"later version of Vaak \(format 2\): update Vaak"):
        listed_files(checkpoint)
    with pytest.raises(UserError, match="later version"):
        library.open(checkpoint)
