"""Files of pretrained models, from a folder or from the Hugging Face Hub; code of a repository is never executed.

A model or a file that isn't available is an error, in one line. A file that a model may lack is left out only where it
isn't there: one that can't be read is an error, too.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import os
import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from vaak.core.errors import UserError, catching_panics, optional_import
from vaak.core.storage.files import read_json
from vaak.core.storage.model_formats import (
    GGUF,
    TRANSFORMERS,
    WHISPER_PT,
    ModelFormat,
    count_stored_parameters,
    recognise,
)
from vaak.runs.folder.directory import RUNS

log = logging.getLogger("vaak")
Found = TypeVar("Found")
SAFELY: dict[str, Any] = {"trust_remote_code": False}
PROXIES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
GENERATION = "generation_config.json"
TOKENIZER_CONFIG = "tokenizer_config.json"


def import_transformers(purpose: str, extra: str = "hf") -> Any:
    """Return the package transformers. Raises UserError where it is not installed: the ``extra`` brings it.

    It downloads no kernels, which are code, unless the environment allows it.
    """
    os.environ.setdefault("USE_HUB_KERNELS", "NO")
    with optional_import(f"{purpose} requires transformers", extra):
        package: Any = importlib.import_module("transformers")
    package.utils.logging.disable_progress_bar()
    return package


@contextmanager
def quiet_transformers(package: Any) -> Iterator[None]:
    """Silence transformers' tables of a folder's weights in this context; the caller says what matters of them."""
    level = package.utils.logging.get_verbosity()
    package.utils.logging.set_verbosity_error()
    try:
        yield
    finally:
        package.utils.logging.set_verbosity(level)


PROBE_SECONDS = 3.0
"""Seconds that the Hub has to answer before only the cache is used."""


@functools.cache
def _without_network() -> None:
    """Have the Hub's client use its cache alone where the Hub's name isn't found; it would retry for half a minute."""
    from huggingface_hub import constants

    # Through a proxy, the Hub may be reached although its name isn't found here.
    if constants.HF_HUB_OFFLINE or any(os.environ.get(name) for name in PROXIES):
        return
    host = urlsplit(constants.ENDPOINT).hostname
    found: list[Any] = []

    def look_up() -> None:
        with contextlib.suppress(OSError):
            found.append(socket.getaddrinfo(host, 443))

    # In a thread, as getaddrinfo has no time limit; a daemon, so that it doesn't keep the process from ending.
    thread = threading.Thread(target=look_up, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    if not found:
        constants.HF_HUB_OFFLINE = True


def _require_no_kernel(key: str, folder: Path) -> None:
    """Raise UserError where a model's configuration names kernels on the Hub, which are code, as ``org/name``.

    transformers would fetch and run them where the package kernels is installed, whatever USE_HUB_KERNELS says.
    """
    path = folder / "config.json"
    try:
        waiting: list[Any] = [read_json(path)]
    except (OSError, ValueError):
        # Whoever reads it says what is wrong with it.
        return
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            for name, one in value.items():
                kernels = [one, *one.values()] if isinstance(one, dict) else [one]
                if name.endswith("_implementation") and any(isinstance(each, str) and "/" in each for each in kernels):
                    raise UserError(f"{key}: {path} has {name}: {one}, which is code on the Hub: remove it from there")
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def fetch_model(key: str, source: str, fetch: Callable[[], Found]) -> Found:
    """Return what ``fetch`` gets from a folder or the Hub. Raises UserError with one line where it can't."""
    if Path(source).is_dir():
        _require_no_kernel(key, Path(source))
    else:
        _without_network()
    try:
        with catching_panics():
            return fetch()
    except Exception as error:
        # Each layer of transformers and of the Hub raises its own.
        raise UserError(f"{key}: {source} can't be loaded: {_explain(error, source)}") from error


def _explain(error: Exception, source: str) -> str:
    """Return in one line why a model can't be loaded: the Hub's answer, if it came from there, or else the error."""
    hub: Any = importlib.import_module("huggingface_hub.errors")
    chain, one = list[BaseException](), error.__cause__ or error.__context__
    while one is not None and one not in chain:
        chain.append(one)
        one = one.__cause__ or one.__context__
    chain = [] if Path(source).is_dir() else [error, *chain]
    if any(isinstance(one, hub.GatedRepoError) for one in chain):
        return f"its authors grant access on request: ask at https://huggingface.co/{source}, and run hf auth login"
    absent = (hub.RepositoryNotFoundError, hub.LocalEntryNotFoundError, hub.HFValidationError, hub.OfflineModeIsEnabled)
    if any(isinstance(one, absent) for one in chain):
        return "no such folder, and the Hugging Face Hub has no such model or can't be reached"
    said = str(error)
    if (unknown := UNKNOWN_KIND.search(said)) is not None:
        version = importlib.import_module("transformers").__version__
        newer = "a newer one may have it (pip install -U transformers)"
        return f"transformers {version} doesn't know its kind, {unknown[1]}; {newer}"
    if OWN_CODE in said:
        return "its network is code in its folder, which isn't run: give a model whose kind transformers has"
    if any(said.startswith(one) for one in TO_INSTALL):
        return "its tokenizer is in files that need a package: pip install sentencepiece tiktoken"
    if type(error).__name__ == "SafetensorError":
        return explain_damage(error)
    # An error of a key that isn't there shows the key alone.
    return f"{'it has an unknown ' if isinstance(error, KeyError) else ''}{_first_line(error)}"


def explain_damage(error: Exception) -> str:
    """Return, in one line, that a file of weights can't be read, with the ``error`` of safetensors."""
    return f"its weights are damaged or not whole ({_first_line(error)}): download them again"


UNKNOWN_KIND = re.compile(r"has model type `([^`]*)` but Transformers does not recognize this architecture")
OWN_CODE = "contains custom code which must be executed"
TO_INSTALL = ("Couldn't instantiate the backend tokenizer",)
"""Parts of transformers' errors."""


def find_file(key: str, source: str, name: str) -> Path | None:
    """Return a model's file, of its folder or fetched from the Hub; None where the model has no such file.

    Without a connection, a file that isn't in the cache counts as one that the model lacks, with a warning. Raises
    UserError for a link that leads nowhere, and where the Hub answers otherwise.
    """
    if Path(source).is_dir():
        path = Path(source) / name
        if path.is_symlink() and not path.exists():
            raise UserError(f"{key}: {path} is a link to a file that has gone: download the model again")
        return path if path.exists() else None
    _without_network()
    hub: Any = importlib.import_module("huggingface_hub")
    errors: Any = importlib.import_module("huggingface_hub.errors")
    if not isinstance(hub.try_to_load_from_cache(source, name), str | None):  # known to be absent
        return None
    try:
        return Path(hub.hf_hub_download(source, name))
    except errors.LocalEntryNotFoundError:
        log.warning(
            "%s: the Hugging Face Hub can't be reached, and %s of %s isn't in the cache: the model is used without it",
            *(key, name, source),
        )
    except errors.EntryNotFoundError:
        pass
    except Exception as error:
        # The Hub's client and the network each raise their own.
        raise UserError(f"{key}: {name} of {source} can't be fetched: {_first_line(error)}") from error
    return None


def load_tokenizer(key: str, source: str, kind: str = "AutoTokenizer") -> Any:
    """Return the tokenizer of a model, of a class of transformers that may be any.

    Raises UserError where there is none, and where it is not one of the tokenizers library.
    """
    auto = getattr(import_transformers(key), kind)
    try:
        found = fetch_model(key, source, lambda: auto.from_pretrained(source, **SAFELY))
    except UserError as error:
        if str(error.__cause__).startswith(NO_TOKENIZER) and not _has_tokenizer_files(key, source):
            raise _lacks_tokenizer(key, source) from error
        raise
    if not getattr(found, "is_fast", False):
        raise UserError(f"{key}: the tokenizer of {source} is not one of the tokenizers library (tokenizer.json)")
    # Without files, transformers makes one that knows its special tokens, and T5's also the sign of a space.
    if len(set(found.get_vocab()) - set(found.all_special_tokens)) <= 1:
        raise _lacks_tokenizer(key, source)
    return found


NO_TOKENIZER = ("Couldn't instantiate the backend tokenizer", "expected str, bytes or os.PathLike")
"""How the errors of transformers begin where a tokenizer has no files, or needs a package to read them."""
TOKENIZER_FILES = (
    *("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model"),
    *("sentencepiece.bpe.model", "tokenizer.tiktoken", "source.spm"),
)


def _has_tokenizer_files(key: str, source: str) -> bool:
    return any(find_file(key, source, name) is not None for name in TOKENIZER_FILES)


def _lacks_tokenizer(key: str, source: str) -> UserError:
    remedy = f"add the files that the model came with ({', '.join(TOKENIZER_FILES[:4])}, …)"
    return UserError(f"{key}: {source} has no tokenizer; {remedy}")


def load_generation(key: str, source: str) -> Any | None:
    """Return how a model generates, as transformers reads it; None where it doesn't say so.

    Raises UserError for a file that can't be read: the model would never stop, or write what it suppresses.
    """
    file = find_file(key, source, GENERATION)
    if file is None:
        return None
    auto = import_transformers(key)
    return fetch_model(key, str(file.parent), lambda: auto.GenerationConfig.from_pretrained(file.parent))


def locate_base(name: str) -> Path | None:
    """Return where the files of a pretrained model are: its path, or a folder of the Hub's cache; None without them."""
    path = Path(name).expanduser()
    if path.exists():
        return path
    try:
        hub: Any = importlib.import_module("huggingface_hub")
        found = hub.try_to_load_from_cache(name, "config.json")
    except (ImportError, ValueError):
        # Without the Hub's client, nothing is cached; the second error is for what can't be a name there.
        return None
    return Path(found).parent if isinstance(found, str) else None


def read_base_config(name: str) -> dict[str, Any]:
    """Return the ``config.json`` of a pretrained model, also in the Hub's cache; empty if none can be read there."""
    place = locate_base(name)
    try:
        found = {} if place is None else read_json(place / "config.json")
    except (OSError, ValueError):
        # Whoever needs it says what is wrong with it.
        return {}
    return found if isinstance(found, dict) else {}


def is_own_run(base: str) -> bool:
    """Return whether a base is a run of Vaak's, or will be one: a pipeline trains it before it is there."""
    path = Path(base)
    return path.parts[:1] == (RUNS,) or (path / "config.yml").is_file()


def count_base_parameters(name: str) -> int:
    """Return about how many parameters a pretrained model has; 0 where its weights aren't on this machine."""
    place = locate_base(name)
    return 0 if place is None else count_stored_parameters(place)


READABLE = (GGUF, WHISPER_PT)
"""Forms of models that are converted before they are read (``vaak.tasks.conversion``)."""


def find_local(key: str, name: str, folder: Path) -> tuple[Path, ModelFormat] | None:
    """Return where a pretrained model is on this machine, and its form, which is read; None: a name on the Hub.

    A relative folder is looked for in ``folder``, too. Raises UserError, which says what is there and what to do, for
    all else that isn't a whole model, and for a path that isn't there.
    """
    for path in (Path(name).expanduser(), folder / name):
        if path.exists():
            try:
                form = recognise(path)
            except OSError as error:
                raise UserError(f"{key}: {path} can't be read: {error.strerror or error}") from error
            if form.name not in (TRANSFORMERS, *READABLE):
                raise UserError(f"{key}: {form.describe(path)}")
            return path, form
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise UserError(f"{key}: no such folder: {name}")
    return None


def read_local_config(key: str, name: str, folder: Path) -> tuple[str, dict[str, Any]] | None:
    """Return the folder of a model of transformers, and its ``config.json``; None where it isn't such a folder here.

    Raises UserError as ``find_local`` does.
    """
    found = find_local(key, name, folder)
    if found is None or found[1].name != TRANSFORMERS:
        return None
    about = read_json(found[0] / "config.json")
    return str(found[0].resolve()), about


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
