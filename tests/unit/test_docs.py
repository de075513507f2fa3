"""The documents are true: every path and name exists, every command and example in them runs.

A block that a test can't run comes after ``<!-- not run: why -->``, one of another toolkit after ``<!-- run where NAME
is installed -->``. A YAML or Python block whose first line is a
comment with a file's name is that file for the commands of its document. Runs that take minutes train for two steps.
A server that a document starts runs until the end of it, and later blocks ask it, on the port that it has here.
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import importlib
import importlib.util
import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest
from typer.main import get_command

import readers_data
from served_runs import serving
from vaak.cli import arguments, table
from vaak.config import tasks
from vaak.config.changes import get_rule
from vaak.config.components import USER_MODULE_PREFIX
from vaak.config.load import load
from vaak.config.yaml.aliases import ELSEWHERE, LOOP_OPTIONS
from vaak.tasks.lm.config import ALIASES

ROOT = Path(__file__).parents[2]
OUTSIDE = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("src/vaak/**/README.md")]
DOCUMENTS = sorted([*OUTSIDE, *ROOT.glob("docs/**/*.md")])
NOTEBOOKS = sorted(ROOT.glob("docs/notebooks/*.ipynb"))
BLOCK = re.compile(
    r"^(<!-- (?:not run: [^\n]+|run where \w+ is installed )-->\n+)?```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL
)
SMALL = "data.tokenizer.vocab_size=600 model.d_model=32 model.num_layers=1 model.num_heads=2"
QUICK = (
    f"data.corpus.num_sentences=300 {SMALL} "
    "training.max_steps=2 training.batch_size=8 training.scheduler.warmup_steps=1 training.device=cpu"
)
QUICK_TRANSLATOR = (
    "data.corpus.num_sentences=300 data.tokenizer.vocab_size=600 data.decoding.max_new_tokens=8 "
    "model.global_config.d_model=32 model.global_config.num_layers=1 model.global_config.num_heads=2 "
    "training.max_steps=2 training.batch_size=8 training.scheduler.warmup_steps=1 training.device=cpu"
)
QUICK_DIARIZER = (
    "datasets='[{type: voices, num_voices: 10, num_sentences: 2, split_by: speaker, train_fraction: 0.6, "
    "valid_fraction: 0.2, conversations: {train: 16, valid: 2, test: 2, duration: 4}}]' model.d_model=32 "
    "model.num_layers=1 training.max_steps=2 training.scheduler.warmup_steps=1 training.device=cpu"
)
QUICK_VOICE = (
    "datasets.0.num_sentences=12 datasets.0.train_fraction=0.6 datasets.0.valid_fraction=0.2 "
    "model.global_config.d_model=32 model.global_config.num_layers=1 "
    "data.samples='[So it is.]' "
    "training.max_steps=2 training.scheduler.warmup_steps=1 training.device=cpu"
)
FEW = "datasets.0.train_fraction=0.5 datasets.0.valid_fraction=0.3 training.max_steps=4"
SMALL_SIDES = "model.global_config.d_model=32 model.global_config.num_layers=1"
LONG = {
    "my_language.yml": f"{SMALL} training.epochs=1",
    "my_translator.yml": f"{SMALL_SIDES} data.decoding.max_new_tokens=8 training.epochs=1",
    "my_recogniser.yml": f"{FEW} model.conformer.d_model=32 model.conformer.num_layers=1",
    "my_voice.yml": f"{SMALL_SIDES} data.speaking.num_iterations=2 training.max_steps=2",
    "my_meetings.yml": f"{FEW} model.d_model=32 model.num_layers=1 data.window=4",
    "my_classifier.yml": "training.epochs=8",
    "configs/quickstart.yml": QUICK,
    "configs/encoder_decoder_model.yml": QUICK_TRANSLATOR,
    "configs/classification/quickstart.yml": "data.corpus.num_sentences=400 training.max_steps=4 training.device=cpu",
    "configs/multitask/quickstart.yml": "training.max_steps=2 training.device=cpu",
    "configs/diarization/quickstart.yml": QUICK_DIARIZER,
    "configs/tts/quickstart.yml": QUICK_VOICE,
    "vaak train quickstart": QUICK,
    "vaak data simulate conversations": "datasets.0.num_voices=20 datasets.0.num_sentences=2",
}

OF_OTHER_SYSTEMS = {
    "configs/base_config.yaml",
    "src/training/trainer.py",
}

SLOW = {
    *("README.md", "docs/first-steps.md", *(f"src/vaak/tasks/{task}/README.md" for task in ("lm", "seq2seq"))),
    *(f"docs/tutorials/{name}.md" for name in readers_data.WRITERS),
    *(
        f"docs/{name}.md"
        for name in (
            "audio", "classification", "coming-from", "comparing", "configuration",
            "configuration-concepts", "configuration-examples", "crossval", "curriculum", "diarization",
            "distillation", "doctor", "encoder-decoder", "exporting", "gallery", "library", "memory",
            "model-factory", "multitask", "positional-encodings", "preferences", "profiling", "replay",
            "resuming", "sweeps", "testing", "tracking", "training-tools", "troubleshooting", "tts",
            "hindi-grammar", "pipelines", "tour", "tts-front-end", "tts-scoring",
        )
    ),
}  # fmt: skip
"""Documents whose commands take several seconds. Other tests run the same; here each line is only parsed."""

documents = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))


def in_backticks(document: Path) -> list[str]:
    """Everything in single backticks outside of blocks."""
    text = re.sub(r"```.*?```", "", document.read_text(encoding="utf-8"), flags=re.DOTALL)
    return re.findall(r"`([^`\n]+)`", text)


@documents
def test_every_path_exists(document):
    ours = re.compile(r"(src|configs|docs|tests|scripts|benchmarks)/[\w./*-]+")
    for word in in_backticks(document):
        if ours.fullmatch(word) and word not in OF_OTHER_SYSTEMS:
            assert list(ROOT.glob(word)), word
    for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8")):
        assert (document.parent / link).exists(), link


@documents
def test_every_name_can_be_imported(document):
    for word in in_backticks(document):
        found = re.fullmatch(r"(vaak[\w.]*):(\w+)", word)
        if found:
            assert hasattr(importlib.import_module(found[1]), found[2]), word


@pytest.fixture(scope="module")
def quick_start(tmp_path_factory):
    """A folder for what ``make train`` leaves, which the first document that uses it puts there."""
    return tmp_path_factory.mktemp("quick_start")


@pytest.fixture(autouse=True)
def _modules_of_documents_are_forgotten() -> Iterator[None]:
    """Processes of later tests would import them, too, and what they import is gone."""
    before = {*sys.modules}
    yield
    for name in {*sys.modules} - before:
        if name.startswith(USER_MODULE_PREFIX):
            del sys.modules[name]


@pytest.fixture
def serve(commands) -> Iterator[Callable[..., str]]:
    """Starts servers that end with the test; gives the address of each."""
    with contextlib.ExitStack() as stack:
        yield lambda folder, *words: stack.enter_context(serving(commands, folder, *words)).address


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(
            path,
            id=name,
            marks=[
                *([pytest.mark.slow] if name in SLOW else []),
                *([pytest.mark.filterwarnings("ignore")] if name == "docs/coming-from.md" else []),  # of other toolkits
            ],
        )
        for path, name in ((path, str(path.relative_to(ROOT))) for path in DOCUMENTS)
    ],
)
def test_every_block_runs(document, tmp_path, monkeypatch, vaak, quick_start, serve):
    blocks = BLOCK.findall(document.read_text(encoding="utf-8"))
    wanted = [(kind, text) for remark, kind, text in blocks if runs(remark) and kind in ("bash", "python", "yaml")]
    if not any(kind in ("bash", "python") for kind, _ in wanted):
        return
    set_up(tmp_path, monkeypatch)
    if document.parent.name == "tutorials":
        readers_data.WRITERS[document.stem](tmp_path)
    commands = "".join(text for kind, text in wanted if kind == "bash")
    if "runs/quickstart" in commands and not re.search(r"make train|vaak train quickstart$", commands, re.MULTILINE):
        train_quick_start(tmp_path, quick_start, vaak)
    addresses: dict[str, str] = {}
    for kind, given in wanted:
        text = re.sub("|".join(addresses) or "$^", lambda found: addresses[found[0]], given)
        name = re.match(r"# ([\w/.]+\.(?:py|ya?ml))\n", text)
        if name:
            (tmp_path / name[1]).write_text(text, encoding="utf-8")
            monkeypatch.delitem(sys.modules, Path(name[1]).stem, raising=False)  # of another document
        elif kind == "python":
            exec(compile(text, str(document), "exec"), {"__name__": "example"})
        elif kind == "bash":
            for command in text.replace("\\\n", " ").splitlines():
                if command.startswith("vaak serve "):
                    addresses["http://127.0.0.1:8000"] = serve(tmp_path, *shlex.split(command)[2:])
                else:
                    run(command, tmp_path, vaak)


def train_quick_start(folder: Path, kept: Path, vaak: Callable[..., tuple[int, str, str]]) -> None:
    """Train the quick start, or copy what an earlier document left of it."""
    if not (kept / "runs").exists():
        run("make train", folder, vaak)
        shutil.copytree(folder / "runs", kept / "runs")
    else:
        shutil.copytree(kept / "runs", folder / "runs")


def runs(remark: str) -> bool:
    """Return whether a block after this comment, or after none, can be run here."""
    package = re.match(r"<!-- run where (\w+) is installed", remark)
    return not remark or (package is not None and importlib.util.find_spec(package[1]) is not None)


@documents
def test_every_command_is_one(document, monkeypatch):
    """Its options exist, and so do those of the YAML of ours that it trains; also in blocks that can't run."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("VAAK_DATA", "data")
    monkeypatch.setattr(arguments, "require_run", lambda path: path)  # runs are the reader's
    for _, kind, text in BLOCK.findall(document.read_text(encoding="utf-8")):
        for line in text.replace("\\\n", " ").splitlines() if kind == "bash" else ():
            line = line.replace("torchrun --nproc_per_node=2 train.py --config", "vaak train")
            line = re.sub(r"\{(\w+),(\w+)\}", r"\1 \2", line)
            words = [*itertools.takewhile(lambda word: word not in (">", "|", "&&"), shlex.split(line, comments=True))]
            if words[:1] == ["vaak"]:
                parse(words[1:])
            if words[:2] == ["vaak", "train"] and (ROOT / words[2]).is_file() and "=runs/" not in line:
                load([words[2]], [word for word in words[3:] if re.match(r"[\w.]+=", word)])


@documents
def test_every_option_that_is_named_exists(document):
    """Names of files (``data.py``) and those of other systems, which the pages on coming from them have, look alike."""
    named = re.compile(r"`((?:training|data|model|global_config)(?:\.[a-z_0-9]+)+)(?:[:=][^`]*)?`")
    other = "migration" in document.parts or document.name == "coming-from.md"
    keys = set() if other else {*named.findall(document.read_text(encoding="utf-8"))} - {*LOOP_OPTIONS, *ELSEWHERE}
    keys = {key for key in keys if not key.endswith(".py")}
    assert not [key for key in keys if not any(is_option(task, key) for task in tasks.TASKS)]


@functools.cache
def is_option(task: str, key: str) -> bool:
    try:
        return bool(get_rule(task, key))
    except KeyError:
        return False


def parse(words: list[str]) -> None:
    """Parse the words of a command; raises what the command line raises for a mistake in them."""
    context = get_command(table.app).make_context("vaak", words)
    while hasattr(context.command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if ":" in rest[0]:  # a pipeline in a file of the reader
            return
        name, command, rest = context.command.resolve_command(context, rest)
        context = command.make_context(name, rest, parent=context)


def set_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that looks like the repository."""
    for name in ("configs", "train.py", "parse_args.py", "scripts", "benchmarks"):
        (folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(tasks, "REGISTERED_TASKS", {})
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")


def run(command: str, folder: Path, vaak: Callable[..., tuple[int, str, str]]) -> None:
    """Run one line of a block; ``vaak`` in this process."""
    if command.startswith(("#", "source ", "make setup")) or not command.strip():  # what runs this test was set up
        return
    if command == "make train":
        command = "vaak train configs/quickstart.yml training.checkpoint.resume=auto"
    if command.startswith("torchrun "):  # tests/process/test_ranks.py starts it; here, that its options exist
        command = f"vaak config check {command.partition('--config ')[2]}"
    assert not command.startswith("pip "), f"a test installs nothing; mark the block as not run: {command}"
    command = f"{command} {_made_quick(command, folder)}"
    if command.startswith("vaak ") and ">" not in command:
        code, said, errors = vaak(*shlex.split(command, comments=True)[1:])
        assert code == 0, f"{command}\n{said}{errors}"
        return
    done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def _made_quick(command: str, folder: Path) -> str:
    """Options added to what takes minutes: a file or the start of a command in LONG, or a YAML that extends a file."""
    words = command.split()

    def is_yaml(path: Path) -> bool:
        return path.suffix in (".yml", ".yaml") and path.is_file()

    if words[1:2] in (["config"], ["model"]):
        return ""
    texts = [(folder / word).read_text(encoding="utf-8") for word in words if is_yaml(folder / word)]
    for long, options in LONG.items():
        if long in words or command.startswith(long) or any(f"extends: {long}" in text for text in texts):
            return options
    return ""


def test_the_aliases_are_those_of_the_code():
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    tables = dict(re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", text, re.MULTILINE))
    repeated = {f"model.{alias}" for alias in ALIASES}
    assert tables == {**LOOP_OPTIONS, **ELSEWHERE, **{a: n for a, n in ALIASES.items() if a not in repeated}}


def test_the_readme_is_short_and_its_results_are_those_of_the_page_of_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 100
    page = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    table = text.partition("\n## Results\n")[2].partition("\n## ")[0]
    rows = [row for row in table.splitlines() if row.startswith("| ") and "`vaak" in row and "**" in row]
    assert len(rows) >= 6
    for row in rows:
        for number in re.findall(r"\d+\.\d+", row):
            assert re.search(rf"(?<![\d.]){number}(?!\d)", page), f"{number}: {row}"


def test_every_page_is_in_the_navigation_of_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in ROOT.glob("docs/**/*.md")}
    pages |= {f"tasks/{page.parent.name}/index.md" for page in ROOT.glob("src/vaak/tasks/*/README.md")}
    pages |= {f"notebooks/{notebook.stem}.md" for notebook in NOTEBOOKS}
    listed = re.findall(r"[\w/-]+\.md", site.partition("\nnav:\n")[2])
    assert pages | {"index.md", "contributing.md", "security-policy.md", "changelog.md"} == {*listed}
    assert len(listed) == len({*listed})


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_notebook_runs_and_shows_what_it_did(notebook, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    stored, new = (
        nbformat.read(notebook, as_version=4),
        importlib.import_module("notebooks").executed(notebook, tmp_path),
    )
    assert notebook.stat().st_size < 600_000
    for before, now in zip(stored.cells, new.cells, strict=True):
        assert forms(before) == forms(now), before.source


def forms(cell):
    """The forms of what a cell shows, but for its log: pictures, tables, sound."""
    return [sorted(shown.data) for shown in cell.get("outputs", ()) if "data" in shown]


def test_every_example_of_a_docstring_is_true():
    failed, number = [], 0
    for root in (ROOT / "src", ROOT / "scripts", *(ROOT / "tests" / "support").iterdir()):
        for path in root.rglob("*.py"):
            if re.search(r"^ +>>> ", path.read_text(encoding="utf-8"), re.MULTILINE):
                name = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
                found = doctest.testmod(importlib.import_module(name))
                failed += [name] * found.failed
                number += found.attempted
    assert number > 100
    assert not failed
