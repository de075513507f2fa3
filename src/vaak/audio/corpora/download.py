"""Files fetched from the network: gone on with after an interruption, checked, there whole or not at all.

FILE.part     what has come so far
FILE.source   the address, and the server's mark of the content: a part of other content is not gone on with

The length is held against the server's, the checksum against ``md5sum.txt`` beside the file, where the server has one
(as openslr.org has).

Differs: Lhotse's ``resumable_download``, for which this stands in, appends the whole file to the part that is there
when a server doesn't know ranges, and takes a connection that breaks for the end of the file.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import importlib
import logging
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.core.storage.files import read_json, sync_file, write_json

log = logging.getLogger("vaak")

CHUNK = 2**18
PATIENCE = 60.0
"""Seconds in which a server must answer."""
CHECKSUMS = "md5sum.txt"
AGENT = "Mozilla/5.0 (compatible; vaak)"
"""Some servers refuse what doesn't call itself a browser."""


@contextlib.contextmanager
def downloads_of(recipe_module: str) -> Iterator[None]:
    """While this holds, a module of Lhotse's recipes fetches its files by ``fetch``."""
    module = importlib.import_module(recipe_module)
    original = getattr(module, "resumable_download", None)
    if original is None:
        yield
        return
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
        for old in (path, *_companions(path)):
            old.unlink(missing_ok=True)
    fetch(url, path, headers=others.get("additional_headers") or {}, missing_ok=missing_ok)


def fetch(url: str, path: Path, *, headers: dict[str, str] | None = None, missing_ok: bool = False) -> None:
    """Fetch ``url`` to ``path`` unless it is there; go on with a part of it.

    With ``missing_ok``, one that the server doesn't have is left out with a warning. Raises UserError where the network
    or the server refuses, or what came isn't what the server has.
    """
    if path.exists():
        log.info("%s is there", path)
        return
    headers = {"User-Agent": AGENT, **(headers or {})}
    part, source = _companions(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetch_part(url, part, source, headers)
        _demand_checksum(url, path.name, part, headers)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404 and missing_ok:
            log.warning("%s: there is no such file; it is left out", url)
            return
        raise UserError(f"{url}: the server refuses: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"{url}: can't be fetched ({reason}); check the network: what has come is kept, the same command goes on"
        ) from error
    sync_file(part)
    part.replace(path)
    source.unlink()


def _companions(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.source")


def _fetch_part(url: str, part: Path, source: Path, headers: dict[str, str]) -> None:
    """Fill the part up to the end of the file."""
    there = part.stat().st_size if part.exists() else 0
    known = _known(source) if there else {}
    if there and known.get("url") == url and known.get("mark"):
        headers = {**headers, "Range": f"bytes={there}-", "If-Range": known["mark"]}
    with _answer(urllib.request.Request(url, headers=headers)) as answer:
        goes_on = answer.status == 206
        begin = there if goes_on else 0
        length = answer.headers.get("Content-Length")
        total = begin + int(length) if length is not None else None
        mark = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        write_json(source, {"url": url, "mark": None if mark is None or mark.startswith("W/") else mark})
        with open(part, "ab" if goes_on else "wb") as file, progress(part.stem, total or begin) as advance:
            advance(begin)
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    have = part.stat().st_size
    if total is not None and have != total:
        raise OSError(f"{have:,} of {total:,} bytes came")


def _answer(request: urllib.request.Request) -> Any:
    """The server's answer. A part that is already whole, or longer, is no range: then all is asked for anew."""
    try:
        return urllib.request.urlopen(request, timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        error.close()
    headers = {key: value for key, value in request.header_items() if key.lower() not in ("range", "if-range")}
    return urllib.request.urlopen(urllib.request.Request(request.full_url, headers=headers), timeout=PATIENCE)


def _known(source: Path) -> dict[str, Any]:
    try:
        known = read_json(source)
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _demand_checksum(url: str, name: str, part: Path, headers: dict[str, str]) -> None:
    """Hold the part against the server's list of checksums, if there is one that has it.

    Raises UserError, and deletes the part, where it is another.
    """
    expected = _checksums(url.rpartition("/")[0] + "/" + CHECKSUMS, headers).get(url.rpartition("/")[2])
    if expected is None:
        return
    with open(part, "rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    if found != expected:
        part.unlink()
        raise UserError(
            f"{url}: what came is damaged: its MD5 is {found}, {CHECKSUMS} says {expected}; it is deleted, "
            "fetch it again"
        )
    log.info("%s: its MD5 is what %s says", name, CHECKSUMS)


def _checksums(url: str, headers: dict[str, str]) -> dict[str, str]:
    """MD5 by name of file; none where the server has no such list."""
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
