"""A task that a YAML names by a file or a package: every command works on it, and a foreign run asks for trust."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import vowels
from vaak.config.load import load
from vaak.config.resolved import as_yaml
from vaak.config.yaml.tree import ConfigError
from vaak.engine.checkpoint.files import load_checkpoint, resolve_checkpoint

YAML = """\
task: ./own/vowels.py:VowelTask
model: {width: 8}
training:
  max_steps: 6
  device: cpu
  optimizer: {lr: 0.05}
  validation: {interval: 3}
  checkpoint: {interval: 3}
  logging: {interval: 1, tensorboard: false, progress_bar: false}
"""

SOURCE = str(Path(load_checkpoint.__code__.co_filename).parents[3])

Vaak = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with ``vowels.yml`` and the task that it names."""
    (tmp_path / "own").mkdir()
    shutil.copy(vowels.__file__, tmp_path / "own" / "vowels.py")
    (tmp_path / "vowels.yml").write_text(YAML)
    return tmp_path


@pytest.fixture
def run(vaak: Vaak, project: Path) -> Path:
    code, _, err = vaak("train", project / "vowels.yml", f"run_dir={project / 'run'}")
    assert code == 0, err
    return project / "run"


def mistakes(folder: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        load([folder / "vowels.yml"], overrides)
    return str(error.value)


def test_its_options_are_checked_and_have_its_defaults(project: Path):
    experiment = load([project / "vowels.yml"], ["model.size=24"]).experiment
    assert (experiment.model.width, experiment.model.dropout, experiment.data.num_words) == (24, 0.1, 40)
    assert experiment.training.batch_size == 8
    assert "model.widht: unknown key; did you mean width?" in mistakes(project, "model.widht=8")
    assert "no letter needs more than 1000 numbers" in mistakes(project, "model.width=1001")
    (project / "again.yml").write_text(as_yaml(experiment))
    assert load([project / "again.yml"]).experiment == experiment.model_copy(update={"name": "vowels"})


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("./own/vowels.py:VowelTsk", "vowels.py has no VowelTsk; did you mean VowelTask?"),
        ("./own/consonants.py:VowelTask", "consonants.py can't be read: No such file or directory"),
        ("./own/vowels.py:Unfinished", "vowels.py:Unfinished is not a task: it has no SPEC"),
        ("nowhere.at_all:Task", "no package nowhere in this environment"),
        ("vowel", "task: is 'vowel'; expected one of "),
    ],
)
def test_a_task_that_cannot_be_used_is_one_line(project: Path, task: str, message: str):
    said = mistakes(project, f"task={project}/{task[2:]}" if task.startswith("./") else f"task={task}")
    assert message in said
    assert said.count("\n") == 0


def test_a_task_that_cannot_be_imported_says_why(project: Path):
    (project / "own" / "vowels.py").write_text("import vowels_of_nobody\nVowelTask = 1\n")
    assert "can't be loaded: No module named 'vowels_of_nobody'" in mistakes(project)


def test_every_command_works_on_it(vaak: Vaak, run: Path, project: Path):
    assert (run / "code" / "vowels.py").read_text() == Path(vowels.__file__).read_text()
    assert 'task: "./code/vowels.py:VowelTask"' in (run / "config.yml").read_text()
    for arguments in (
        ("eval", run, "--trust-code"),
        ("eval", run, "data.num_words=40", "--trust-code"),
        ("replay", run, "--step", "4", "--trust-code"),
        ("config", "check", run / "config.yml", "--trust-code"),
        ("config", "check", project / "vowels.yml"),
        ("config", "schema", project / "vowels.yml"),
        ("model", "show", project / "vowels.yml"),
        ("doctor", project / "vowels.yml"),
        ("runs", project),
    ):
        code, _, err = vaak(*arguments)
        assert code == 0, (arguments, err)
    code, out, err = vaak("predict", run, "abba", "vowel", "--trust-code")
    assert (code, err) == (0, "")
    assert [word.lower() for word in out.split()] == ["abba", "vowel"]


def test_a_run_of_someone_else_asks_for_trust(vaak: Vaak, run: Path):
    for arguments in (("eval", run), ("predict", run, "a"), ("config", "check", run / "config.yml")):
        code, out, err = vaak(*arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "names code that is executed to read this configuration: ./code/vowels.py:VowelTask" in err
        assert "--trust-code" in err


def test_other_data_than_the_runs_are_refused_where_it_cannot_prepare_them(vaak: Vaak, run: Path):
    code, _, err = vaak("eval", run, "data.num_words=50", "--trust-code")
    assert code == 2
    assert "VowelTask has no prepare_eval_data" in err


def test_another_model_than_the_runs_is_refused(vaak: Vaak, run: Path):
    code, _, err = vaak("eval", run, "model.width=9", "--trust-code")
    assert code == 2
    assert "model.width is 9, but the run was trained with 8" in err


def test_it_resumes_to_the_same_bits_from_the_copy_too(vaak: Vaak, project: Path, run: Path):
    for name, trust in (("own", ()), ("copied", ("--trust-code",))):
        half = project / name
        assert vaak("train", project / "vowels.yml", f"run_dir={half}", "training.max_steps=3")[0] == 0
        source = half / "config.yml" if trust else project / "vowels.yml"
        code, _, err = vaak("train", source, f"run_dir={half}", "training.max_steps=6", "--resume", "auto", *trust)
        assert code == 0, err
        found, wanted = (
            load_checkpoint(resolve_checkpoint(folder / "checkpoints" / "last")).model for folder in (half, run)
        )
        assert all(found[name].equal(value) for name, value in wanted.items())


def test_an_option_that_a_resume_cannot_change_is_named(vaak: Vaak, project: Path, run: Path):
    code, _, err = vaak("train", project / "vowels.yml", f"run_dir={run}", "model.width=9", "--resume", "auto")
    assert code == 2
    assert "model.width was 8, is 9" in err


def test_a_package_holds_it(project: Path, monkeypatch: pytest.MonkeyPatch):
    (project / "vowel_package").mkdir()
    (project / "vowel_package" / "__init__.py").write_text(Path(vowels.__file__).read_text())
    monkeypatch.syspath_prepend(str(project))
    experiment = load([project / "vowels.yml"], ["task=vowel_package:VowelTask"]).experiment
    assert (experiment.task, experiment.reference) == ("vowel_package:VowelTask",) * 2


def test_without_a_spec_of_its_own_any_key_is_an_option(project: Path):
    source = (project / "own" / "vowels.py").read_text()
    start, end = source.index("    SPEC = TaskSpec("), source.index("    def dataset(self, split):")
    (project / "own" / "open.py").write_text(source[:start] + source[end:])
    experiment = load(
        [project / "vowels.yml"], [f"task={project}/own/open.py:VowelTask", "data.depth.most=3"]
    ).experiment
    assert (experiment.model.width, experiment.data.depth["most"]) == (8, 3)


BROKEN = {
    "gone = not_there:Task": "No module named 'not_there'",
    "broken = broken_module:Task": "it fails when it is imported",
    "ending = ending_module:Task": "over",
    "empty = own_vowels:Nothing": "has no attribute 'Nothing'",
    "other = pathlib:Path": "is not a task: it has no SPEC",
}


CHECK_EACH = """
import contextlib, io, json, sys
from vaak.cli.main import main
ended = []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["vaak", "config", "check", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
    ended.append((code, out.getvalue(), err.getvalue()))
print(json.dumps(ended))
"""


@pytest.mark.slow
def test_broken_packages_stop_only_what_asks_for_their_tasks(project: Path):
    """All are installed at once, every second one without metadata."""
    site = project / "site"
    for number, line in enumerate(["vowels = own_vowels:VowelTask", *BROKEN]):
        folder = site / f"package_{number}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "entry_points.txt").write_text(f"[vaak.tasks]\n{line}\n")
        if number % 2 == 0:
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: package_{number}\nVersion: 1.0\n")
    shutil.copy(vowels.__file__, site / "own_vowels.py")
    (site / "broken_module.py").write_text("raise RuntimeError('it fails when it is imported')\n")
    (site / "ending_module.py").write_text("import sys\nsys.exit('over')\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), SOURCE])}
    yaml, quickstart = str(project / "vowels.yml"), str(Path(SOURCE).parent / "configs" / "quickstart.yml")
    names = [line.partition(" ")[0] for line in BROKEN]
    asked = [[yaml, "task=vowels"], [quickstart], [yaml, "task=vowel"], *([yaml, f"task={name}"] for name in names)]
    command = [sys.executable, "-c", CHECK_EACH, json.dumps(asked)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    ended = [(code, out, err.splitlines()) for code, out, err in json.loads(done.stdout)]
    for task, (code, out, said) in zip(("vowels", "lm"), ended[:2], strict=True):
        assert (code, said) == (0, [])
        assert out.startswith(f"valid: task {task}")
    code, _, said = ended[2]  # which lists all tasks
    assert code == 2
    left_out = [line for line in said if line.endswith("it is left out")]
    assert len(left_out) == len(BROKEN)
    for reason, (code, _, said) in zip(BROKEN.values(), ended[3:], strict=True):
        assert any(reason in one for one in left_out), reason
        assert code == 2
        assert "Traceback" not in "".join(said)
        assert said[-1].startswith("command line: task: ")
        assert reason in said[-1]


MALFORMED = {
    "no_value": b"[vaak.tasks]\nnothing\n",
    "twice": b"[other]\n[other]\n x\n",
    "not_text": b"[vaak.tasks]\nx = \xff\xfe:Task\n",
}
MISSING = b"[pydantic]\nx = not_there:plugin\n[vaak.tasks]\ny = not_there:Task\nz =\n"


@pytest.mark.parametrize(
    ("command", "lines"), [("config check", 0), pytest.param("model show", len(MALFORMED), marks=pytest.mark.slow)]
)
def test_malformed_packages_stop_no_command(project: Path, command: str, lines: int):
    """pydantic reads the entry points of all that is installed when it is imported, torch too; each is named once."""
    site = project / "site"
    for name, content in {**MALFORMED, "missing": MISSING}.items():
        folder = site / f"{name}-1.0.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_bytes(content)
    quickstart = Path(SOURCE).parent / "configs" / "quickstart.yml"
    code = "from vaak.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, *command.split(), str(quickstart), "model.num_layers=1"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(site), SOURCE])},
    )
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert len({name for name in MALFORMED for line in said if f"{name}-1.0.dist-info" in line}) == len(said) == lines
    assert all(line.startswith("warning: ") and line.endswith("reinstall or remove this package") for line in said)


@pytest.mark.slow
def test_an_installed_package_offers_it_by_name(project: Path):
    """An entry point, as pip writes it, in a separate process, as installed packages are read once."""
    site = project / "site"
    (site / "vowels-1.0.dist-info").mkdir(parents=True)
    (site / "vowels-1.0.dist-info" / "entry_points.txt").write_text("[vaak.tasks]\nvowels = own_vowels:VowelTask\n")
    (site / "vowels-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: vowels\nVersion: 1.0\n")
    shutil.copy(vowels.__file__, site / "own_vowels.py")
    code = (
        "import sys; from vaak.config.load import load; from vaak.config.tasks import TASKS, task_class\n"
        f"experiment = load([{str(project / 'vowels.yml')!r}], ['task=vowels']).experiment\n"
        "assert 'vowels' in TASKS and list(TASKS) == sorted(TASKS)\n"
        "print(experiment.model.width, task_class('vowels').__name__)"
    )
    paths = os.pathsep.join([str(site), SOURCE])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": paths}
    )
    assert done.stdout == "8 VowelTask\n", done.stderr
