"""With nothing installed but the core, every task either trains or says in one line which extra it requires."""

from __future__ import annotations

import functools
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from required import PROJECT, link_required
from vaak.cli.main import exit_on_error
from vaak.config.tasks import TASKS
from vaak.core.extras import find_extra

REPOSITORY = Path(__file__).parents[3]
SMALL = ("data.corpus.num_sentences=120", "model.d_model=32", "model.num_layers=1", "data.minimal_pairs=[]")
PART = ("{}.data.corpus.num_sentences=120", "{}.model.d_model=32", "{}.model.num_layers=1")
RECIPES: dict[str, tuple[str, tuple[str, ...]]] = {
    "lm": ("quickstart.yml", SMALL),
    "classification": ("classification/quickstart.yml", SMALL[:1]),
    "multitask": (
        "multitask/quickstart.yml",
        tuple(one.format(f"tasks.{part}") for part in ("rules", "words") for one in PART),
    ),
    "seq2seq": ("encoder_decoder_model.yml", ()),
    "diarization": ("diarization/quickstart.yml", ()),
    "tts": ("tts/quickstart.yml", ()),
    "vocoder": ("vocoder/quickstart.yml", ()),
    "asr": ("asr/quickstart.yml", ()),
}
TRAIN_HERE = {"lm", "classification", "multitask"}
RUNNER = """
import gc, json, os, sys
import torch.utils.data
from vaak.cli.main import main
import vaak.cli.output, vaak.cli.table, vaak.runs.start, vaak.text.grammar.translation
from vaak.config.experiment import experiment_type
for task in ("lm", "classification", "multitask", "asr", "tts", "diarization", "vocoder", "seq2seq"):
    experiment_type(task)
gc.freeze()
for name, arguments in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv = ["vaak", *arguments]
        main()
        sys.stdout.flush()
        os._exit(0)
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Run commands, each in a separate process, with torch imported once for all."""


def _add_extra(requirement: str, extra: str) -> str:
    """Return a requirement as metadata have it, for those who ask for an extra."""
    wanted, _, marker = requirement.partition(";")
    return f"{wanted}; ({marker.strip()}) and extra == '{extra}'" if marker else f"{wanted}; extra == '{extra}'"


def core_only(folder: Path) -> Path:
    """Make a folder with the packages that the core requires, and Vaak's own metadata."""
    folder.mkdir()
    link_required(folder)
    about = folder / "vaak-0.dist-info"
    about.mkdir()
    lines = ["Metadata-Version: 2.4", "Name: vaak", "Version: 0"]
    lines += [f"Requires-Dist: {one}" for one in PROJECT["dependencies"]]
    for extra, wanted_by_it in PROJECT["optional-dependencies"].items():
        lines += [f"Provides-Extra: {extra}", *(f"Requires-Dist: {_add_extra(one, extra)}" for one in wanted_by_it)]
    (about / "METADATA").write_text("\n".join(lines), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """How each task's quick start and the doctor end there: exit code, output, errors."""
    folder = tmp_path_factory.mktemp("core")
    asked = {
        task: ["train", str(REPOSITORY / "configs" / file), f"run_dir=runs/{task}", "training.max_steps=2", *overrides]
        for task, (file, overrides) in RECIPES.items()
    }
    for arguments in asked.values():
        arguments += ["training.scheduler.warmup_steps=0", "training.logging.tensorboard=false"]
    asked |= {"doctor": ["doctor", "--json"]}
    packages = [str(core_only(folder / "packages")), str(REPOSITORY / "src")]
    command = [sys.executable, "-S", "-c", f"import sys; sys.path[:0] = {packages}\n{RUNNER}", json.dumps(asked)]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    codes = dict(line.split() for line in done.stdout.splitlines())
    said = lambda name, stream: (folder / f"{name}.{stream}").read_text("utf-8")  # noqa: E731
    return {name: (int(codes[name]), said(name, "out"), said(name, "err")) for name in asked}


def test_each_task_has_a_case():
    assert RECIPES.keys() == TASKS.keys()


@pytest.mark.parametrize("task", RECIPES)
def test_a_task_trains_or_names_the_extra(task: str, ended: dict[str, tuple[int, str, str]]):
    code, out, errors = ended[task]
    if task in TRAIN_HERE:
        assert code == 0, errors
        assert "finished step 2" in out
        return
    lines = [line for line in errors.splitlines() if not line.startswith(("warning", "torch"))]
    found = re.search(r"pip install 'vaak\[([\w-]+)\]'$", lines[-1])
    assert code == 2, errors
    assert "Traceback" not in errors
    assert found, errors
    assert found[1] in PROJECT["optional-dependencies"]


def test_the_doctor_advises_what_exists(ended: dict[str, tuple[int, str, str]]):
    code, out, errors = ended["doctor"]
    report = json.loads(out)
    assert (code, report["trains"]) == (0, True), errors
    named = set(re.findall(r"pip install 'vaak\[([^\]]+)\]'", out))
    assert {"ct2", "audio", "asr", "hf", "seq2seq"} <= named <= set(PROJECT["optional-dependencies"])
    assert not re.search(r"pip install (?!')", out)


@pytest.mark.parametrize(
    ("module", "extra"),
    [("scipy", "audio"), ("sklearn.svm", "asr"), ("umap", "umap"), ("lm_eval", "lm-eval"), ("numpy", None)],
)
def test_a_module_has_the_extra_that_brings_it(module: str, extra: str | None):
    assert find_extra(module) == extra


def test_a_task_that_lacks_a_package_names_its_own_extra(capsys: pytest.CaptureFixture[str]):
    """As transformers are in four extras, and jiwer in two."""
    asr = {"__name__": "vaak.tasks.asr.whisper.model"}
    for name, extra in (("transformers", "asr"), ("pocketsphinx", "tts-eval")):
        asked = functools.partial(exec, f"raise ModuleNotFoundError('No module', name={name!r})", dict(asr))
        with pytest.raises(SystemExit, match="2"):
            exit_on_error(asked)
        said = f"this requires {name}, which is not installed: pip install 'vaak[{extra}]'"
        assert capsys.readouterr().err.strip() == said
    with pytest.raises(SystemExit, match="1"):  # a mistake in somebody's code
        exit_on_error(lambda: exec("import no_such_module", dict(asr)))
    assert "Traceback" in capsys.readouterr().err
