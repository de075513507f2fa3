"""A pretrained model used as it is: a folder or a file, or a name on the Hugging Face Hub.

Each task says which models it opens, and with which options (``TaskSpec.opens``). Such a model is opened like a run
whose training hasn't begun, in a temporary folder: nothing is written where the model is.

FOLDER/config.yml   the options            FOLDER/prepared   what the model brings: tokens, sizes
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.config.tasks import TASKS, load_name
from vaak.config.yaml.text import yaml_text
from vaak.core.errors import UserError
from vaak.core.storage.files import write_text
from vaak.core.storage.model_formats import CONFIG, GGUF, PYANNOTE, TRANSFORMERS, WHISPER_PT, recognise
from vaak.engine.checkpoint.names import is_checkpoint, parse_step
from vaak.runs.folder.directory import RUNS, suggest_run

HUB_NAME = re.compile(r"\w[\w.-]*/\w[\w.-]*")
OF_A_RUN = ("config.yml", "run.json", "owner.json", "MANIFEST.json", "checkpoints")
CONFIG_FILES = ("config.json", "config.yaml")
HUB_ADDRESS = re.compile(r"https?:/+(?:www\.)?(?:huggingface\.co|hf\.co)/(\w[\w.-]*/\w[\w.-]*)(?:/.*)?")
"""The address of a model's page, also as a path, in which // is /."""
HUB_REVISION = re.compile(rf"({HUB_NAME.pattern})@([\w./-]+)")
READ = (TRANSFORMERS, GGUF, WHISPER_PT, PYANNOTE)
UNTOLD = ("empty", "nested", "unknown")
"""Kinds of ``recognise`` for paths that hold nothing like a model."""


def is_base(path: Path) -> bool:
    """Return whether a path is a pretrained model, in whatever form, and not a run, a checkpoint, or nothing at all.

    A path that isn't there may be a name on the Hub, OWNER/NAME, unless there is a folder OWNER here. Raises UserError
    for a path that can't be read.
    """
    path = path.expanduser()
    if not path.exists():
        owner = path.parts[0] if path.parts else ""
        return HUB_NAME.fullmatch(str(path)) is not None and owner != RUNS and not Path(owner).exists()
    if path.is_dir() and (_is_of_a_run(path) or any((path / name).is_file() for name in CONFIG_FILES)):
        return not _is_of_a_run(path)
    try:
        return recognise(path).name not in UNTOLD
    except OSError as error:
        raise UserError(f"{path} can't be read: {error.strerror or error}") from error


def explain_no_base(path: Path) -> str:
    """Return why a path that ``is_base`` refuses isn't a pretrained model, with what to give instead."""
    if page := HUB_ADDRESS.fullmatch(str(path)):
        return f"give a model of the Hugging Face Hub by its name, {page[1]}"
    if named := HUB_REVISION.fullmatch(str(path)):
        fetch = f"hf download {named[1]} --revision {named[2]} --local-dir FOLDER"
        return f"a revision can't be named; fetch it ({fetch}), and give the folder"
    path = path.expanduser()
    if not path.exists():
        return "there is no such file or folder, and names of the Hugging Face Hub are OWNER/NAME"
    if path.name == CONFIG:
        return f"give its folder, {path.parent}"
    form = recognise(path)
    return f"it {form.what}{f'; {form.remedy}' if form.remedy else ''}"


def _is_of_a_run(folder: Path) -> bool:
    is_one = is_checkpoint(folder) or parse_step(folder) is not None
    return is_one or any((folder / name).exists() for name in OF_A_RUN)


@dataclass(frozen=True)
class Base:
    """A pretrained model, where its ``source`` is (a folder, a file, a name on the Hub), and the task that opens it."""

    source: str
    task: str
    options: Mapping[str, Any]

    @classmethod
    def find(cls, path: Path) -> Base:
        """Return the model that ``path`` names; of one on the Hub, only its configuration is fetched.

        Raises UserError, which says what there is and what to do, where no task can use it.
        """
        try:
            source, about = load_name("vaak.tasks.pretrained:read_about")(str(path))
        except UserError as error:
            # A name that isn't there may be a mistyped run.
            raise UserError(f"{error}{'' if path.exists() else suggest_run(path)}") from error
        reasons = []
        for name, spec in TASKS.items():
            found = spec.opens(about, source)
            if isinstance(found, str):
                reasons.append(found)
            elif found is not None:
                return cls(source, name, found)
        form = recognise(Path(source)) if Path(source).exists() else None
        if form is not None and form.name not in READ:
            raise UserError(form.describe(path))
        if not about.get("architectures"):
            example = "such as LlamaForCausalLM: add the configuration that the model came with"
            raise UserError(f"{path} has a configuration that doesn't say what it computes (architectures), {example}")
        architecture = about["architectures"][0]
        reason = reasons[0] if reasons else f"is a {architecture}, which can't be used before it is trained"
        raise UserError(f"{path} {reason}; train it first, or give a run")

    def write_options(self, directory: Path) -> Path:
        """Write ``config.yml`` to a directory, and return it."""
        name = re.sub(r"[^\w.-]", "-", Path(self.source).name) or "base"
        about = {"task": self.task, "name": name, "run_dir": str(directory), **self.options}
        write_text(directory / "config.yml", yaml_text(about))
        return directory / "config.yml"
