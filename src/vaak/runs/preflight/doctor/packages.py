"""The packages: what Vaak needs, what more it can use, and, where it is asked for, what is installed but broken.

Looking a package up imports none. Binary wheels built for another torch install silently and fail when they are
imported, with OSError or ImportError, and whatever imports them fails along. So a thorough examination imports each
in a separate process: one that crashes Python is named, too.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vaak
from vaak.core.extras import find_package, get_install_command, requirements
from vaak.core.progress import progress
from vaak.runs.preflight.doctor import DoctorFinding

PACKAGES = "packages"
IMPORT_TIMEOUT_SECONDS = 180.0
POLLING_SECONDS = 0.05

MODULES = {"ruamel-yaml": "ruamel.yaml"}
"""Packages whose module has another name than the package with underscores."""

OPTIONAL = {
    "accelerate": "training.logging.trackers and accelerate launch",
    "av": "reading M4A, MP4, WebM and other audio by FFmpeg",
    "ctranslate2": "vaak export --format ct2",
    "datasets": "data.corpus.type huggingface and parquet",
    "espeakng_loader": "voices that are synthesised, and phonemes by espeak-ng",
    "fastapi": "vaak serve",
    "gguf": "vaak export --format gguf, and bases in GGUF",
    "gradio": "vaak demo",
    "jiwer": "word error rates of the task asr",
    "lhotse": "the tasks asr, diarization, tts and vocoder",
    "liger_kernel": "training.performance.logits: liger, on CUDA",
    "lilcom": "storage_type: lilcom",
    "lm_eval": "vaak lm-eval",
    "matplotlib": "vaak plot, and pictures of vaak find-lr",
    "nltk": "data.augmentation.synonyms: wordnet",
    "num2words": "the task tts",
    "optuna": "vaak sweep",
    "pocketsphinx": "the words of vaak score speech",
    "py3langid": "vaak data clean",
    "python_calamine": "reading spreadsheets",
    "ray": "vaak launch ray, and sweeps on it",
    "s3fs": "training.checkpoint.upload_to and data at s3:// URLs",
    "sacrebleu": "the task seq2seq",
    "scipy": "the task diarization, augmentation of audio, vaak crossval",
    "sounddevice": "the microphone of vaak transcribe --live",
    "soundfile": "reading audio",
    "tensorboard": "looking at RUN/tensorboard; writing it needs nothing",
    "trackio": "training.logging.trackers: [trackio]",
    "transformers": "pretrained models, and reading exported ones",
    "umap": "clustering.reduce and plot_method: umap",
    "wandb": "training.logging.wandb",
}
"""Packages of Vaak's extras, at least one of each, and what they are for."""

OTHERS = {
    "bitsandbytes": "8-bit optimizers of other libraries",
    "deepspeed": "accelerate, which imports it where it is installed",
    "flash_attn": "transformers models that ask for flash attention",
    "pandas": "datasets",
    "peft": "adapters of transformers models",
    "pyarrow": "datasets, and data.corpus.type parquet",
    "torchao": "transformers and peft, which import it where it is installed",
    "torchaudio": "speechbrain, vocos and encodec; nothing of Vaak's",
    "torchcodec": "decoding audio in datasets; nothing of Vaak's",
    "torchvision": "image models of transformers; nothing of Vaak's",
    "triton": "training.performance.compile on CUDA",
    "xformers": "transformers and diffusers models; nothing of Vaak's",
}
"""Packages that are often broken, and what breaks with them."""

TRIAL = """
import importlib, importlib.util, json, sys
for name in sys.argv[1:]:
    try:
        found = importlib.util.find_spec(name)
    except Exception:
        found = None
    if found is None or found.origin is None:
        print(json.dumps({"name": name, "there": False}), flush=True)
        continue
    print(json.dumps({"name": name, "there": True, "error": "it crashes Python"}), flush=True)
    error = None
    try:
        importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as problem:
        error = f"{type(problem).__name__}: {problem}"
    print(json.dumps({"name": name, "there": True, "error": error}), flush=True)
"""


@dataclass(frozen=True)
class Import:
    """Whether a module is installed, and what went wrong when it was imported, if anything did."""

    there: bool
    error: str | None = None


def look_up(names: Sequence[str] | None = None) -> dict[str, Import]:
    """Return whether each module is installed, without importing any."""
    return {name: Import(_is_there(name)) for name in names or _all_names()}


def torch_imported() -> Import:
    """Import torch into this process and return the outcome."""
    try:
        importlib.import_module("torch")
    except ModuleNotFoundError as problem:
        return Import(problem.name != "torch", f"{type(problem).__name__}: {problem}")
    except Exception as problem:
        return Import(True, f"{type(problem).__name__}: {problem}")
    return Import(True)


def _is_there(name: str) -> bool:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        # The parent may be missing, or the module was put there by another one.
        return False
    return found is not None and found.origin is not None


def _all_names() -> list[str]:
    return [*map(find_module, required()), *OPTIONAL, *OTHERS]


def try_imports(names: Sequence[str] | None = None) -> dict[str, Import]:
    """Return the result of importing each module, tried in separate processes; by default all that matter to Vaak."""
    names, found = list(dict.fromkeys(_all_names() if names is None else names)), dict[str, Import]()
    with progress("importing each package", len(names)) as advance:
        while left := [name for name in names if name not in found]:
            found |= _try_imports(left, advance)
    return found


def _try_imports(names: Sequence[str], advance: Callable[[float], None]) -> dict[str, Import]:
    """Return the result for the first names, at least of one: a process that ends early leaves the rest untried."""
    command = [sys.executable, "-P", "-c", TRIAL, *names]
    ending, read, end = "it crashes Python", 0, time.monotonic() + IMPORT_TIMEOUT_SECONDS
    # A pipe would stay open in whatever processes a module leaves running.
    with tempfile.TemporaryFile() as said:
        with subprocess.Popen(command, stdout=said, stderr=subprocess.DEVNULL) as process:
            while process.poll() is None:
                if time.monotonic() > end:
                    process.kill()
                    ending = f"it takes more than {IMPORT_TIMEOUT_SECONDS:.0f} s"
                read, before = len(_read_lines(said)), read
                advance(read - before)
                time.sleep(POLLING_SECONDS)
        lines = _read_lines(said)
    found = {}
    for line in lines:
        try:
            result = json.loads(line)
            name, there, error = result["name"], bool(result["there"]), result.get("error")
        except (ValueError, KeyError, TypeError):
            # A module's own chatter.
            continue
        found[name] = Import(there, ending if error == "it crashes Python" else error)
    return found or {names[0]: Import(True, ending)}


def _read_lines(file: IO[bytes]) -> list[str]:
    """Return the lines so far; where the process writes next is not changed."""
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode("utf-8", "replace").splitlines()


def find_module(package: str) -> str:
    """Return the module that a package brings.

    >>> find_module("ruamel.yaml"), find_module("ruamel-yaml"), find_module("flash-attn")
    ('ruamel.yaml', 'ruamel.yaml', 'flash_attn')
    """
    return MODULES.get(canonicalize_name(package), package.replace("-", "_"))


def examine_packages(imports: dict[str, Import]) -> Iterator[DoctorFinding]:
    """Findings on what is needed, what is optional, and what is broken."""
    yield from _examine_required(imports)
    yield from _optional(imports)
    for name, breaks in OTHERS.items():
        error = imports[name].error
        if error is not None:
            advice = f"pip uninstall {name}, or install the build that fits this torch"
            yield DoctorFinding(
                PACKAGES, name, "warning", f"installed but broken ({short(error)}); it breaks {breaks}", advice
            )
    yield from _other_than_tested()


def _examine_required(imports: dict[str, Import]) -> Iterator[DoctorFinding]:
    """Yield whether the packages that Vaak requires are there, importable, and of a version that will do."""
    right = []
    for name, requirement in required().items():
        found, version = imports[find_module(name)], get_version(name)
        again = f"pip install '{requirement}'"
        if not found.there:
            yield DoctorFinding(PACKAGES, name, "problem", "not installed", again)
        elif found.error is not None:
            yield DoctorFinding(
                PACKAGES, name, "problem", f"installed but broken ({short(found.error)})", f"{again} again"
            )
        elif version is not None and not requirement.specifier.contains(version, prereleases=True):
            yield DoctorFinding(PACKAGES, name, "problem", f"{version}, and Vaak needs {requirement.specifier}", again)
        else:
            right.append(f"{name} {version}")
    yield DoctorFinding(PACKAGES, "needed", "ok", ", ".join(right))


def _optional(imports: dict[str, Import]) -> Iterator[DoctorFinding]:
    """Yield findings about the packages of Vaak's extras."""
    for name, purpose in OPTIONAL.items():
        found, again = imports[name], get_install_command(name)
        if not found.there:
            yield DoctorFinding(PACKAGES, name, "ok", f"not installed; it is for {purpose}: {again}")
        elif found.error is not None:
            said = f"installed but broken ({short(found.error)}); it breaks {purpose}"
            yield DoctorFinding(PACKAGES, name, "warning", said, f"{again} again")
        else:
            yield DoctorFinding(PACKAGES, name, "ok", f"{get_version(find_package(name))}, for {purpose}")


def _other_than_tested() -> Iterator[DoctorFinding]:
    """Versions that differ from those that Vaak was tested with, where its checkout says which these are."""
    constraints = Path(vaak.__file__).parents[2] / "constraints.txt"
    try:
        pinned = re.findall(r"^([\w.-]+)==(\S+)$", constraints.read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return
    tested: dict[str, str] = {canonicalize_name(name): version for name, version in pinned}
    other = [
        f"{name} {version} (tested: {last})"
        for name in (*required(), *map(find_package, OPTIONAL))
        if (last := tested.get(canonicalize_name(name))) and (version := get_version(name)) and version != last
    ]
    if other:
        advice = "if something fails: pip install -r requirements.txt installs the tested versions"
        yield DoctorFinding(PACKAGES, "other than tested", "ok", ", ".join(other), advice)


def required() -> dict[str, Requirement]:
    """Return the packages without which Vaak doesn't start, by name."""
    return {requirement.name: requirement for extra, requirement in requirements() if extra is None}


def get_version(package: str) -> str | None:
    """Return the installed version."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def short(text: str, limit: int = 160) -> str:
    """Return the first line, cut to a limit.

    >>> short("OSError: no such file\\nand more")
    'OSError: no such file'
    """
    line = text.partition("\n")[0]
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
