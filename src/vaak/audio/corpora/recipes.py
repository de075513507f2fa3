"""Lhotse's recipes by name: list them, download a corpus, make manifests of one that is on disk.

A recipe is a pair of functions of ``lhotse.recipes``, ``download_NAME`` and ``prepare_NAME``, with arguments that
differ: folders are passed to those that are folders, all others are options.

Downloads are resumed after an interruption, verified (by length, and by ``md5sum.txt`` next to the file, if the server
has one, like openslr.org), complete or not at all:

    FILE.part     what was received so far
    FILE.source   the address, and the server's mark of the content: a part of other content is not resumed

Differs: Lhotse's ``resumable_download``, which this replaces, appends the whole file to the existing part when a server
doesn't support ranges, and treats a broken connection as the end of the file.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.client
import importlib
import inspect
import logging
import pkgutil
import traceback
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError, UserError, optional_import
from vaak.core.left_out import report_files
from vaak.core.names import nearest_name, require_known
from vaak.core.progress import progress
from vaak.core.storage.files import read_json, sync_file, write_json

CORPUS_PARAMETERS = ("corpus_dir", "data_dir", "tedlium_root", "audio_dir", "corpus_root", "speech_dir", "target_dir")
OUTPUT_PARAMETERS = ("output_dir", "manifest_dir")


@dataclass(frozen=True)
class LhotseRecipe:
    """A recipe: its functions; there may be no or several download functions."""

    name: str
    module: str
    prepare: Callable[..., Any]
    downloads: tuple[Callable[..., Any], ...]

    @property
    def options(self) -> dict[str, inspect.Parameter]:
        """The further arguments of its prepare function."""
        places = {*OUTPUT_PARAMETERS, "num_jobs", _corpus_parameter(self.prepare)}
        return {name: one for name, one in _parameters(self.prepare).items() if name not in places}


def recipes() -> dict[str, LhotseRecipe]:
    """Return all recipes of the installed Lhotse, by name. Raises UserError if it isn't installed."""
    return _import_recipes()[0]


@functools.cache
def _import_recipes() -> tuple[dict[str, LhotseRecipe], dict[str, str]]:
    """Return all recipes of the installed Lhotse, by name, and why modules of others can't be imported."""
    with optional_import("recipes require lhotse", "audio"):
        import lhotse.recipes
    found: dict[str, LhotseRecipe] = {}
    failed: dict[str, str] = {}
    for info in pkgutil.iter_modules(lhotse.recipes.__path__):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                module = importlib.import_module(f"lhotse.recipes.{info.name}")
        except (ImportError, OSError) as error:
            # One that requires a package that isn't installed.
            failed[info.name] = str(error).splitlines()[0]
            continue
        found.update({recipe.name: recipe for recipe in _list_recipes(module, info.name, set(dir(lhotse.recipes)))})
    return dict(sorted(found.items())), failed


def recipe_named(name: str) -> LhotseRecipe:
    """Raises UserError for an unknown recipe, with a suggestion, and for one that can't be imported."""
    known, failed = _import_recipes()
    if name not in known and (module := name.replace("-", "_")) in failed:
        raise UserError(f"Lhotse's recipe {name} can't be imported: {failed[module]}")
    if name not in known:
        raise UserError(f"Lhotse has no recipe {name}{nearest_name(name, known)} (vaak data list lists all)")
    return known[name]


def _list_recipes(module: Any, name: str, exported: set[str]) -> Iterator[LhotseRecipe]:
    """Yield the recipes of a module: those it exports, or those named like it."""
    own = {
        key: one for key, one in vars(module).items() if inspect.isfunction(one) and one.__module__ == module.__name__
    }
    prepares = [key for key in own if key.startswith("prepare_") and (key in exported or key == f"prepare_{name}")]
    for key in prepares:
        called = name if len(prepares) == 1 else key.removeprefix("prepare_")
        wanted = f"download_{called}"
        downloads = [one for one in own if one == wanted] or [
            one for one in own if one.startswith(wanted) and one in exported and len(prepares) == 1
        ]
        yield LhotseRecipe(called, module.__name__, own[key], tuple(own[one] for one in downloads))


def _parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _corpus_parameter(function: Callable[..., Any]) -> str:
    """Return the argument that is the corpus' folder: one of the usual names, or the first."""
    names = list(_parameters(function))
    return next((name for name in CORPUS_PARAMETERS if name in names), names[0])


def prepare(recipe: LhotseRecipe, corpus: Path, output: Path, options: Mapping[str, Any], num_jobs: int) -> Any:
    """Return the result of the recipe's prepare function; it also writes its manifests to ``output``.

    It reads the folder ``corpus``, with its ``options`` and up to ``num_jobs`` processes.

    Raises DataError for options that it doesn't have or lacks, and for a corpus that it can't read.
    """
    function = recipe.prepare
    parameters = _parameters(function)
    require_known(options, parameters, f"recipe {recipe.name} has no option")
    arguments = dict(options)
    # The user's own options win over the default folder and number of jobs.
    arguments.setdefault(_corpus_parameter(function), corpus)
    arguments |= {name: output for name in OUTPUT_PARAMETERS if name in parameters}
    if "num_jobs" in parameters:
        arguments.setdefault("num_jobs", num_jobs)
    _require_all(arguments, parameters, f"recipe {recipe.name}")
    try:
        return function(**arguments)
    except Exception as error:
        # Recipes raise exceptions of any type, mostly assertions.
        raise DataError(f"recipe {recipe.name}: {corpus} can't be prepared: {describe_error(error)}") from error


def _require_all(arguments: Mapping[str, Any], parameters: Mapping[str, inspect.Parameter], what: str) -> None:
    required = [
        name for name, one in parameters.items() if one.default is one.empty and one.kind is not one.VAR_KEYWORD
    ]
    if missing := [name for name in required if name not in arguments]:
        raise DataError(f"{what} requires {', '.join(missing)}; give them as options")


def describe_error(error: BaseException) -> str:
    """Return the error in a line; for an assertion without a message, the line that failed."""
    if text := str(error).strip():
        return f"{type(error).__name__}: {text.splitlines()[0]}"
    frames = traceback.extract_tb(error.__traceback__)
    return f"{type(error).__name__}: {frames[-1].line}" if frames else type(error).__name__


def download(recipe: LhotseRecipe, folder: Path, options: Mapping[str, Any]) -> Path:
    """Download the corpus to ``folder`` and return the folder in it for its prepare function.

    Raises UserError if the recipe can't download, or the network refuses.
    """
    if not recipe.downloads:
        raise UserError(
            f"recipe {recipe.name}: Lhotse can't download this corpus; get it from its authors, put it in {folder}, "
            f"and run vaak data prepare {recipe.name}"
        )
    found: Any = None
    for function in recipe.downloads:
        parameters = _parameters(function)
        require_known(options, parameters, f"download of {recipe.name} has no option")
        arguments = dict(options)
        arguments.setdefault(_corpus_parameter(function), folder)
        _require_all(arguments, parameters, f"download of {recipe.name}")
        with redirect_downloads(recipe.module):
            try:
                found = function(**arguments)
            except UserError:
                raise
            except Exception as error:
                # Each recipe downloads in its own way.
                raise UserError(
                    f"recipe {recipe.name}: the corpus can't be downloaded: {describe_error(error)}; partial downloads "
                    f"are kept in {folder}, and the same command resumes them (delete damaged files)"
                ) from error
    # Some recipes return the folder that they unpacked. Use it only if it is inside the given one.
    inner = Path(found) if len(recipe.downloads) == 1 and isinstance(found, str | Path) else folder
    return inner if inner.resolve().is_relative_to(folder.resolve()) else folder


log = logging.getLogger("vaak")
CHUNK_BYTES = 2**18
PATIENCE = 60.0
"""Seconds in which a server must answer."""
CHECKSUMS = "md5sum.txt"
AGENT = "Mozilla/5.0 (compatible; vaak)"
"""Some servers refuse clients that aren't browsers."""


@contextlib.contextmanager
def redirect_downloads(recipe_module: str) -> Iterator[None]:
    """In this context, a module of Lhotse's recipes downloads its files by ``fetch``."""
    module = importlib.import_module(recipe_module)
    original = getattr(module, "resumable_download", None)
    if original is None:
        yield
        return
    # Lhotse's own damages partial downloads: see the top of this file.
    module.resumable_download = _as_lhotse_calls_it  # type: ignore[attr-defined]
    try:
        yield
    finally:
        module.resumable_download = original  # type: ignore[attr-defined]


def _as_lhotse_calls_it(
    url: str, filename: Any, force_download: bool = False, *_: Any, missing_ok: bool = False, **others: Any
) -> None:
    """``fetch`` with the arguments of ``lhotse.utils.resumable_download``."""
    path = Path(filename)
    if force_download:
        for old in (path, *_bundled_files(path)):
            old.unlink(missing_ok=True)
    fetch(url, path, headers=others.get("additional_headers") or {}, missing_ok=missing_ok)


def fetch(
    url: str,
    path: Path,
    *,
    headers: dict[str, str] | None = None,
    missing_ok: bool = False,
    server_checksums: bool = True,
) -> None:
    """Download ``url`` to ``path`` unless it exists; resume a partial download. ``headers`` are sent with requests.

    With ``missing_ok``, a file that the server doesn't have is skipped with a warning. Without ``server_checksums``,
    the server isn't asked for ``md5sum.txt``. Raises UserError if the network or the server refuses, or the downloaded
    file is damaged.
    """
    if path.exists():
        log.info("%s exists", path)
        return
    headers = {"User-Agent": AGENT, **(headers or {})}
    part, source = _bundled_files(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetch_part(url, part, source, headers)
        if server_checksums:
            _require_checksum(url, path.name, part, headers)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404 and missing_ok:
            report_files(url.rpartition("/")[0], 0, {path.name: "not found on the server"})
            return
        raise UserError(f"{url}: the server refuses: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"{url}: can't be downloaded ({reason}); check the network: the partial download is kept, and the same "
            "command resumes it"
        ) from error
    # On disk under its temporary name before it is renamed: a file with the final name is always complete.
    sync_file(part)
    part.replace(path)
    source.unlink()


def _bundled_files(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.source")


def _fetch_part(url: str, part: Path, source: Path, headers: dict[str, str]) -> None:
    """Download the rest of the file."""
    there = part.stat().st_size if part.exists() else 0
    known: Any = None
    if there:
        with contextlib.suppress(OSError, ValueError):
            known = read_json(source)
    # Resume only the same version of the same file: with If-Range, a server that has changed it sends everything.
    if isinstance(known, dict) and known.get("url") == url and known.get("mark"):
        headers = {**headers, "Range": f"bytes={there}-", "If-Range": known["mark"]}
    with _answer(urllib.request.Request(url, headers=headers)) as answer:
        goes_on = answer.status == 206
        begin = there if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = begin + int(length) if length is not None else None
        mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        # Before any byte of it, so an interrupted download can be resumed. A weak ETag (W/) doesn't promise equal
        # bytes.
        write_json(source, {"url": url, "mark": None if mark is None or mark.startswith("W/") else mark})
        with open(part, "ab" if goes_on else "wb") as file, progress(part.stem, total, already=begin) as advance:
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                advance(len(chunk))
    # A connection that closes early looks like the end of the file.
    have = part.stat().st_size
    if total is not None and have != total:
        raise OSError(f"received {have:,} of {total:,} bytes")


def _answer(request: urllib.request.Request) -> Any:
    """Return the server's answer. If the range is refused because the part is complete, the whole file is requested."""
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        # 416: the range begins at the end or beyond it, because the part is complete or the file has become shorter.
        if error.code != 416:
            raise
        error.close()
    headers = {key: value for key, value in request.header_items() if key.lower() not in ("range", "if-range")}
    return urllib.request.urlopen(urllib.request.Request(request.full_url, headers=headers), timeout=PATIENCE)


def _require_checksum(url: str, name: str, part: Path, headers: dict[str, str]) -> None:
    """Verify the part against the server's list of checksums, if it is there.

    Raises UserError, and deletes the part, if it differs.
    """
    expected = _checksums(url.rpartition("/")[0] + "/" + CHECKSUMS, headers).get(url.rpartition("/")[2])
    if expected is None:
        return
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != expected:
        part.unlink()
        raise UserError(
            f"{url}: the download is damaged: its MD5 is {found}, {CHECKSUMS} has {expected}; it was deleted, "
            "download it again"
        )
    log.info("%s: its MD5 agrees with %s", name, CHECKSUMS)


def _checksums(url: str, headers: dict[str, str]) -> dict[str, str]:
    """MD5 by name of file; empty if the server has no such list."""
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=PATIENCE) as answer:
            lines = answer.read(2**20).decode("utf-8", "replace").splitlines()
    except (OSError, http.client.HTTPException):
        return {}
    rows = [line.split(maxsplit=1) for line in lines]
    return {
        row[1].strip().lstrip("*").rpartition("/")[2]: row[0].lower()
        for row in rows
        if len(row) == 2 and len(row[0]) == 32
    }
