"""What a release has besides its code: versions that agree, licences as the packages state them, a wheel that works."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import licences
import vaak
from required import PROJECT, link_required
from vaak.config.yaml.text import read_yaml
from vaak.config.yaml.tree import to_plain

ROOT = Path(__file__).parents[2]
TASKS_OF_EXTRAS = {"seq2seq": "encoder_decoder_model", "audio": "diarization/quickstart"}
"""Recipes for which an extra is enough."""
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in licences.NOT_FOR_USERS]


def test_the_citation_is_of_this_version_and_licence():
    cited = to_plain(read_yaml(ROOT / "CITATION.cff"))
    assert {"cff-version", "title", "message", "authors"} <= cited.keys()
    assert (cited["version"], cited["license"]) == (vaak.__version__, PROJECT["license"])


def test_each_requirement_has_its_licence_as_the_package_states_it():
    rows = licences.rows_of(licences.PAGE.read_text(encoding="utf-8"))
    assert {name: ", ".join(extras) for name, extras in licences.requirements().items()} == {
        name: extras for name, (extras, _) in rows.items()
    }, "python scripts/licences.py writes them"
    for name, (extras, licence) in rows.items():
        assert licence != "unknown", name
        assert licences.licence_of(name) in (None, licence), "python scripts/licences.py writes them"
        assert "core" not in extras.split(", ") or not re.search(r"GPL", licence), f"{name}: the core has no copyleft"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout. Its backend comes from pip's index."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode and re.search(
        "No matching distribution|Connection|Temporary failure|No module named pip", done.stderr
    ):
        pytest.skip(f"no wheel can be built without pip and its index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("*.whl")
    return found


@pytest.mark.slow
def test_a_wheel_has_recipes_data_and_nothing_else(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    of_configs = {
        f"vaak/recipes/{path.relative_to(ROOT / 'configs').as_posix()}"
        for path in (ROOT / "configs").rglob("*")
        if path.is_file()
    }
    of_package = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*") if path.is_file()}
    of_package = {name for name in of_package if "__pycache__" not in name and ".egg-info" not in name}
    assert {name for name in names if ".dist-info/" not in name} == of_configs | of_package


@pytest.mark.slow
@pytest.mark.parametrize("extra", [None, *EXTRAS])
def test_an_installed_wheel_trains_with_each_extra_alone(extra: str | None, wheel: Path, tmp_path: Path):
    """In a new environment, with links to those installed packages that the core and this extra require."""
    environment = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    if missing := link_required(site, extra):
        pytest.skip(f"not installed here: {', '.join(sorted(missing))}")
    with zipfile.ZipFile(wheel) as content:
        content.extractall(site)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}

    def run(code: str, *words: str) -> subprocess.CompletedProcess[str]:
        command = [str(environment / "bin/python"), "-P", "-c", code, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=clean)

    program = "import sys; from vaak.cli.main import main; sys.argv[0] = 'vaak'; main()"
    asked = ["training.max_steps=2", "training.logging.tensorboard=false", "training.scheduler.warmup_steps=0"]
    done = run(program, "train", "training_minimal", *asked)
    assert done.returncode == 0, done.stderr
    assert f"the recipe that Vaak brings along, {site}" in done.stderr
    done = run(program, "doctor", "--thorough", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["trains"]) == (0, True), done.stdout
    said = {one["name"]: one["said"] for one in report["findings"] if one["about"] == "packages"}
    for line in PROJECT["optional-dependencies"].get(extra, ()):
        if (name := Requirement(line).name.replace("-", "_")) in said:
            assert said[name].startswith(metadata.version(name)), said[name]
    assert not [name for name, words in said.items() if "broken" in words]
    if extra in TASKS_OF_EXTRAS:
        done = run(program, "train", f"{TASKS_OF_EXTRAS[extra]}", "--try")
        assert done.returncode == 0, done.stderr
