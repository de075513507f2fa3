"""Downloads of files: resumed after an interruption, verified, complete or not at all.

FILE.part     what was received so far
FILE.source   the address, and the server's mark of the content: a part of other content is not resumed

The length is compared with the server's, the checksum with ``md5sum.txt`` next to the file, if the server has one
(like openslr.org).

Differs: Lhotse's ``resumable_download``, which this replaces, appends the whole file to the existing part
when a server doesn't support ranges, and treats a broken connection as the end of the file.
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
"""Some servers refuse clients that aren't browsers."""


@contextlib.contextmanager
def downloads_of(recipe_module: str) -> Iterator[None]:
    """In this context, a module of Lhotse's recipes downloads its files by ``fetch``."""
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
    part, source = _companions(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        _fetch_part(url, part, source, headers)
        if server_checksums:
            _demand_checksum(url, path.name, part, headers)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404 and missing_ok:
            log.warning("%s: not found; skipped", url)
            return
        raise UserError(f"{url}: the server refuses: {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        raise UserError(
            f"{url}: can't be downloaded ({reason}); check the network: the partial download is kept, and the same "
            "command resumes it"
        ) from error
    sync_file(part)
    part.replace(path)
    source.unlink()


def _companions(path: Path) -> tuple[Path, Path]:
    return path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.source")


def _fetch_part(url: str, part: Path, source: Path, headers: dict[str, str]) -> None:
    """Download the rest of the file."""
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
        with open(part, "ab" if goes_on else "wb") as file, progress(part.stem, total, already=begin) as advance:
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                advance(len(chunk))
    have = part.stat().st_size
    if total is not None and have != total:
        raise OSError(f"received {have:,} of {total:,} bytes")


def _answer(request: urllib.request.Request) -> Any:
    """The server's answer. A complete part has no valid range: then everything is requested again."""
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
