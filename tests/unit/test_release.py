"""What a release has besides its code: versions that agree, licences as the packages state them, a wheel that works."""

from __future__ import annotations

import importlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

import licences
import release
import vaak
from required import PROJECT, link_required
from vaak.config.yaml.text import read_yaml

ROOT = Path(__file__).parents[2]
TASKS_OF_EXTRAS = {"seq2seq": "encoder_decoder_model", "audio": "diarization/quickstart"}
"""Recipes for which an extra is enough."""
EXTRAS = [name for name in PROJECT["optional-dependencies"] if name not in licences.NOT_FOR_USERS]


def test_the_citation_is_of_this_version_and_licence():
    cited = read_yaml(ROOT / "CITATION.cff")
    assert {"cff-version", "title", "message", "authors"} <= cited.keys()
    assert (cited["version"], cited["license"]) == (vaak.__version__, PROJECT["license"])


def test_a_tag_is_released_where_version_citation_and_changelog_agree(tmp_path: Path):
    for name in ("src/vaak/__init__.py", "CITATION.cff", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        text = (ROOT / name).read_text(encoding="utf-8").replace(vaak.__version__, "1.2.3")
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert release.find_disagreements("v1.2.3", tmp_path) == []
    assert len(release.find_disagreements("v1.2.4", tmp_path)) == 4  # each of the three files, and the day of a heading
    assert [line[:5] for line in release.find_disagreements("1.2.3", tmp_path)] == ["1.2.3"]
    (tmp_path / "CITATION.cff").write_text("version: 1.2.2\n")
    assert [line[:12] for line in release.find_disagreements("v1.2.3", tmp_path)] == ["CITATION.cff"]
    changes = (tmp_path / "CHANGELOG.md").read_text(encoding="utf-8")
    (tmp_path / "CHANGELOG.md").write_text(
        re.sub(r"(## \[1.2.3\] - )[\d-]+", r"\1not tagged yet", changes), encoding="utf-8"
    )
    assert [line[:12] for line in release.find_disagreements("v1.2.3", tmp_path)] == ["CITATION.cff", "CHANGELOG.md"]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_pins(path: Path) -> dict[str, str]:
    """The version of each package that a file of requirements names."""
    found = re.findall(r"^([\w.-]+)==([^\s;\\]+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {canonical(name): version for name, version in found}


def test_hashes_are_of_the_versions_of_constraints_and_of_all_that_is_required():
    """Written by ``python scripts/release.py hashes``."""
    hashed, pinned = read_pins(release.HASHED), read_pins(ROOT / "constraints.txt")
    assert {name: version for name, version in hashed.items() if pinned.get(name) != version} == {}
    blocks = re.split(r"\n(?=\w)", release.HASHED.read_text(encoding="utf-8"))[1:]
    assert len(blocks) == len(hashed)
    assert all(re.fullmatch(r"\S+( ;.*?)?( \\\n    --hash=sha256:[0-9a-f]{64})+\n?", block) for block in blocks)
    wanted = [*PROJECT["dependencies"]]
    wanted += [
        line for extra in extras_of(ROOT / "requirements.txt") for line in PROJECT["optional-dependencies"][extra]
    ]
    used = [
        one for one in map(Requirement, wanted) if one.marker is None or one.marker.evaluate({"sys_platform": "linux"})
    ]
    assert {canonical(one.name) for one in used} - {*hashed} == {"torch"}


def extras_of(path: Path) -> list[str]:
    """The extras with which a file installs this folder."""
    (listed,) = re.findall(r"\.\[([\w,-]+)\]", path.read_text(encoding="utf-8"))
    return listed.split(",")


def test_an_image_and_a_conda_environment_install_what_the_requirements_do():
    assert {*extras_of(ROOT / "Dockerfile")} == {*extras_of(ROOT / "requirements.txt")} <= {*EXTRAS}
    torch = read_pins(ROOT / "requirements.txt")["torch"]
    assert f"ARG TORCH={torch}\n" in (ROOT / "Dockerfile").read_text()
    assert f"TORCH := torch=={torch}\n" in (ROOT / "Makefile").read_text()
    wanted = read_yaml(ROOT / "environment.yml")["dependencies"]
    assert wanted == ["python=3.11", "pip", {"pip": ["-r requirements.txt"]}]


def read_dockerfile() -> list[list[str]]:
    """The instructions of the Dockerfile, each as its words."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    return [line.split() for line in lines if line and not line.startswith("#")]


def test_each_instruction_of_the_image_has_what_it_names():
    kinds = {"FROM", "ARG", "RUN", "WORKDIR", "COPY", "ENTRYPOINT", "CMD"}
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for kind, *words in read_dockerfile():
        assert kind in kinds
        assert kind != "RUN" or words[:3] == ["pip", "install", "--no-cache-dir"], words
        for name in words[:-1] if kind == "COPY" else ():
            assert (ROOT / name).exists(), name
            assert name in kept, f"{name} is kept from the image by .dockerignore"
    (entry,) = (json.loads(" ".join(words)) for kind, *words in read_dockerfile() if kind == "ENTRYPOINT")
    assert entry[0] in PROJECT["scripts"]


def test_workflows_run_what_is_here():
    known = r"\.ci/run|python scripts/release\.py check .+|pip install build && python -m build"
    for path in (ROOT / ".github/workflows").glob("*.yml"):
        jobs = YAML(typ="safe").load(path)["jobs"]
        commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
        assert ".ci/run" in commands, path.name
        assert [command for command in commands if not re.fullmatch(known, command)] == []
        assert all("timeout-minutes" in job or "needs" in job for job in jobs.values())
    run = (ROOT / ".ci/run").read_text()
    asked = re.findall(r"^make( -j 2 --output-sync)? ([\w ]+?)(?: #.*)?$", run, re.MULTILINE)
    targets = [target for _, targets in asked for target in targets.split()]
    there = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {"lint", "test"} <= {*targets} <= there


def planned(target: str, folder: Path) -> str:
    """Return the commands that make would run for a target."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PYTHON"))}
    command = ["make", "-n", target]
    return subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=True).stdout


def test_make_installs_what_a_target_needs(tmp_path: Path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (listed,) = re.findall(r"^EXTRAS := (\S+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    everything = {*PROJECT["optional-dependencies"]}
    assert {*listed.split(",")} == everything - {"demo", "liger"}  # of slow tests alone; of CUDA, with 1 GB
    extras = {
        target: re.findall(r"-e '?\.(\S*?)'? \|", planned(target, tmp_path)) for target in ("train", "lint", "test")
    }
    assert extras == {"train": [""], "lint": ["", "[dev]"], "test": [f"[{listed}]"]}
    assert planned("train", tmp_path).startswith("python3 -c")
    assert re.search(r'^echo "Setting up .+ on disk', planned("train", tmp_path), re.MULTILINE)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/ready").touch()  # all is there
    assert not any("pip install" in planned(target, tmp_path) for target in ("train", "lint", "test", "setup"))


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
    """The wheel of this checkout."""
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source tree in a folder. Its backend comes from pip's index; skips where that is missing."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(source)]
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


def lacks_library(package: str) -> bool:
    """Whether a package, installed here, doesn't find a library of the system's."""
    try:
        importlib.import_module(package)
    except OSError:
        return True
    except ImportError:  # named otherwise than its module
        return False
    return False


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
    assert f"using Vaak's recipe {site}" in done.stderr
    done = run(program, "doctor", "--thorough", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["trains"]) == (0, True), done.stdout
    said = {one["name"]: one["said"] for one in report["findings"] if one["about"] == "packages"}
    for line in PROJECT["optional-dependencies"].get(extra, ()):
        if (name := Requirement(line).name.replace("-", "_")) in said:
            # The wheel of sounddevice for Linux has no PortAudio: it may lack here.
            found = "installed but broken" if lacks_library(name) else metadata.version(name)
            assert said[name].startswith(found), said[name]
    assert not [name for name, words in said.items() if "broken" in words and not lacks_library(name)]
    if extra in TASKS_OF_EXTRAS:
        done = run(program, "train", f"{TASKS_OF_EXTRAS[extra]}", "--try")
        assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_wheel_that_pip_installs_brings_the_command_and_trains(wheel: Path, tmp_path: Path):
    """In a new environment that has pip's own files and, by a path file, the packages that are installed here."""
    environment, home = tmp_path / "venv", tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    (site,) = environment.glob("lib/python*/site-packages")
    assert not link_required(site)
    install = [str(environment / "bin/pip"), "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    home.mkdir()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV", "VAAK"))}
    clean |= {
        "HOME": str(home),
        "PATH": f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "OMP_NUM_THREADS": "1",
    }

    def run(line: str) -> str:
        done = subprocess.run(line.split(), cwd=tmp_path, capture_output=True, text=True, env=clean)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    assert run("vaak --version") == f"vaak {vaak.__version__}\n"
    train = "vaak train quickstart training.max_steps=2 training.scheduler.warmup_steps=0 training.device=cpu"
    assert str(site) in run(f"{train} data.corpus.num_sentences=300 data.tokenizer.vocab_size=600")
    assert "perplexity" in run("vaak eval runs/quickstart --split test")


@pytest.mark.slow
def test_the_image_has_all_that_its_wheel_is_built_from(wheel: Path, tmp_path: Path):
    source = tmp_path / "src"
    source.mkdir()
    for kind, *words in read_dockerfile():
        for name in words[:-1] if kind == "COPY" else ():
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(ROOT / name, source)
    made = build_wheel(source, tmp_path)
    assert zipfile.ZipFile(made).namelist() == zipfile.ZipFile(wheel).namelist()


@pytest.mark.slow
def test_what_a_conda_environment_installs_by_pip_can_be_resolved(tmp_path: Path):
    """pip finds a version of every requirement; nothing is installed."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    report = tmp_path / "report.json"
    command = [str(tmp_path / "venv/bin/pip"), "install", "--quiet", "--dry-run", "--report", str(report)]
    done = subprocess.run([*command, "-r", "requirements.txt"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode and re.search("Connection|Temporary failure", done.stderr):
        pytest.skip(f"needs pip's index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    found = {
        canonical(one["metadata"]["name"]): one["metadata"]["version"].partition("+")[0]
        for one in json.loads(report.read_text())["install"]
    }
    pinned = {**read_pins(ROOT / "constraints.txt"), **read_pins(ROOT / "requirements.txt")}
    of_torch = {name for name in found if re.match(r"triton$|cuda-|nvidia-", name)}
    assert {name for name, version in found.items() if pinned.get(name) != version} == {"vaak", *of_torch}
