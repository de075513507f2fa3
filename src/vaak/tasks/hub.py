"""Pretrained models: in a folder or by name on the Hugging Face Hub, with one clear line where they aren't available.

Weights are read from safetensors only, and code of a repository is never executed. ``key`` is the option that names
the model.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from vaak.core.errors import UserError, optional_import
from vaak.core.storage.files import read_json
from vaak.runs.folder.directory import runs_at

log = logging.getLogger("vaak")

Found = TypeVar("Found")
SAFELY: dict[str, Any] = {"trust_remote_code": False}
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
WEIGHTS = ("model.safetensors", "model.safetensors.index.json")


def transformers_of(purpose: str, extra: str = "hf") -> Any:
    """The package transformers. Raises UserError where it is not installed: the ``extra`` brings it."""
    with optional_import(f"{purpose} requires transformers", extra):
        package: Any = importlib.import_module("transformers")
    package.utils.logging.disable_progress_bar()
    return package


@contextmanager
def without_reports(package: Any) -> Iterator[None]:
    """Without the tables of transformers on what a folder's weights are; what matters of them, the caller says."""
    level = package.utils.logging.get_verbosity()
    package.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        package.utils.logging.set_verbosity(level)


def located(name: str, folder: Path) -> str:
    """The absolute path of a model's folder, where there is one; else its name on the Hub."""
    return next((str(path.resolve()) for path in (Path(name).expanduser(), folder / name) if path.is_dir()), name)


def source_of(key: str, name: str, folder: Path) -> str:
    """The folder or the name on the Hub of a model; a relative folder is looked for in ``folder``, too.

    Raises UserError for a folder that isn't there, or that has no weights.
    """
    for path in (Path(name).expanduser(), folder / name):
        if path.is_dir():
            _demand_weights(key, path)
            return str(path.resolve())
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{key}: no such folder: {name}")
    return name


def _demand_weights(key: str, folder: Path) -> None:
    if any((folder / name).exists() for name in WEIGHTS):
        return
    if any(folder.glob("pytorch_model*.bin")):
        raise UserError(
            f"{key}: {folder} has its weights as pickles (pytorch_model.bin), which can run code; save them as "
            "model.safetensors"
        )
    raise UserError(f"{key}: {folder} has no weights; expected model.safetensors and config.json")


PROBE_SECONDS = 3.0
"""How long the Hub has to answer before what was fetched earlier has to do."""


@functools.cache
def _without_network() -> None:
    """Have the Hub's client use its cache alone where the Hub's name isn't found; it would retry for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or any(os.environ.get(name) for name in PROXIES):
        return
    host = urlsplit(constants.ENDPOINT).hostname
    found: list[Any] = []

    def look_up() -> None:
        with contextlib.suppress(OSError):
            found.append(socket.getaddrinfo(host, 443))

    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if not found:
        constants.HF_HUB_OFFLINE = True


def fetched(key: str, source: str, fetch: Callable[[], Found]) -> Found:
    """What ``fetch`` gets from a folder or the Hub. Raises UserError with one line where it can't."""
    if not Path(source).is_dir():
        _without_network()
    try:
        return fetch()
    except Exception as error:  # each layer of transformers and of the Hub raises its own
        where = "no such folder, and the Hugging Face Hub has no such model or can't be reached"
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        reason = said[:200] if Path(source).is_dir() else where
        raise UserError(f"{key}: {source} can't be loaded: {reason}") from error


def config_of(key: str, source: str, local_files_only: bool = False) -> Any:
    """The configuration of a model of transformers; with ``local_files_only``, the Hub isn't contacted.

    Raises UserError where it can't be loaded.
    """
    auto, how = transformers_of(key), {**SAFELY, "local_files_only": local_files_only}
    return fetched(key, source, lambda: auto.AutoConfig.from_pretrained(source, **how))


def tokenizer_of(key: str, source: str) -> Any:
    """The tokenizer of a model of transformers. Raises UserError where it is not one of the tokenizers library."""
    auto = transformers_of(key)
    found = fetched(key, source, lambda: auto.AutoTokenizer.from_pretrained(source, **SAFELY))
    if not getattr(found, "is_fast", False):
        raise UserError(f"{key}: the tokenizer of {source} is not one of the tokenizers library (tokenizer.json)")
    return found


def config_of_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """The ``tokenizer_config.json`` of a tokenizer of transformers, without where it was read."""
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        found: dict[str, Any] = read_json(Path(folder) / "tokenizer_config.json")
    return {name: value for name, value in found.items() if name not in ("is_local", "local_files_only")}


def loaded_or_drawn(directory: Path, load: Callable[[], Found], draw: Callable[[], Found]) -> Found:
    """What ``load`` gives; where it has gone since the run in ``directory`` began, what ``draw`` gives.

    Checkpoints have all weights, so those are replaced. Raises the UserError of ``load`` where there are none yet.
    """
    try:
        return load()
    except UserError as error:
        if not any(path for run in runs_at(directory) for path in (run / "checkpoints").glob("step-*")):
            raise
        log.info("%s; the checkpoints of this run have all weights", error)
        return draw()
