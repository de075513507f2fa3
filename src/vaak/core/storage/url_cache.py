"""Local copies of data at URLs: each file is downloaded once, checked, and kept under a fingerprint of its URL.

    CACHE/urls/3f2a…/        one folder of a bucket: CACHE is $VAAK_CACHE, or vaak in the user's cache folder
        .state.json          its URL, and of each file what the service said of it, its size, time and SHA-256
        train.jsonl  audio/a.wav  …                        named as in the bucket

A file that has changed at its URL is downloaded again. Without a network, what was downloaded is used, with a warning.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import os
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError
from vaak.core.progress import progress
from vaak.core.secrets import hide_in_addresses
from vaak.core.storage.files import hash_file, inside, write_json
from vaak.core.storage.lock import locked
from vaak.core.storage.remote import RemoteFolder, StorageError, identify, is_url, md5s, told_md5

log = logging.getLogger("vaak")
STATE, LOCK = ".state.json", ".lock"
_urls: dict[Path, str] = {}
"""The URL of each folder that this process has a copy of."""


def cache_folder() -> Path:
    """Return the folder of files that all runs of a user share and that can be recomputed."""
    base = os.environ.get("VAAK_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "vaak")
    return Path(base).expanduser().absolute()


def fetch_matches(url: str, option: str) -> list[Path]:
    """Return local copies of the files that a URL names; it may be a pattern, ``s3://bucket/texts/**/*.txt``.

    Raises DataError, naming the ``option``, where nothing matches, and StorageError if the service refuses.
    """
    is_pattern, shown = glob.has_magic(url), hide_in_addresses(url.rstrip("/"))
    folder, pattern = url.rpartition("/")[::2]
    while glob.has_magic(folder):
        folder, _, last = folder.rpartition("/")
        pattern = f"{last}/{pattern}"
    if pattern and not _is_root(url) and (found := _fetch(folder, pattern)):
        return found
    if is_pattern:
        raise DataError(f"{option}: no file matches {shown}")
    if RemoteFolder(url).exists():
        raise DataError(f"{option}: {shown} is a folder; give its files, for example {shown}/*.txt")
    raise DataError(f"{option}: no such file: {shown}")


def fetch_folder(url: str, option: str) -> Path:
    """Return the local copy of a folder at a URL, with all that is below it.

    Raises DataError, naming the ``option``, where nothing is there, and StorageError if the service refuses.
    """
    if not _fetch(url.rstrip("/"), "**"):
        raise DataError(f"{option}: no such folder, or nothing in it: {hide_in_addresses(url)}")
    return _place(url.rstrip("/"))


def find_copy(url: str, folder: Path) -> Path | None:
    """Return where a file is below a ``folder`` that is the copy of a URL; None if its own isn't below that."""
    for place in (folder, *folder.parents):
        own = _urls.get(place)
        if own is not None and url.startswith(f"{own}/"):
            return place / url[len(own) + 1 :]
    return None


def _is_root(url: str) -> bool:
    """Return whether a URL names a bucket, and nothing in it.

    >>> _is_root("s3://bucket/"), _is_root("s3://bucket/a.txt")
    (True, False)
    """
    return "/" not in url.partition("://")[2].rstrip("/")


def _place(url: str) -> Path:
    # Passwords in a URL change; its content doesn't.
    return cache_folder() / "urls" / hashlib.sha256(hide_in_addresses(url).encode()).hexdigest()[:16]


def _fetch(url: str, pattern: str) -> list[Path]:
    """Bring the files below a folder at a URL that match a pattern up to date; return their copies, sorted by name."""
    place = _place(url)
    place.mkdir(parents=True, exist_ok=True)
    with locked(place / LOCK):
        known = _read_state(place)
        try:
            names = _list(RemoteFolder(url), pattern)
        except StorageError as error:
            kept = sorted(name for name in known if _matches(name, pattern) and _is_whole(place / name, known[name]))
            if not kept:
                raise
            log.warning("%s; what was downloaded earlier is used: %d file(s) in %s", error, len(kept), place)
        else:
            kept = sorted(names)
            _bring(RemoteFolder(url), place, names, known)
    _urls[place] = url
    return [place / name for name in kept]


def _list(folder: RemoteFolder, pattern: str) -> dict[str, dict[str, Any]]:
    """Return what a service says of each file that matches; one that isn't named by a pattern needs no listing."""
    # A file's own name may look like a pattern: take 1 [final].txt.
    about = folder.ask(pattern) if "[" in pattern or not glob.has_magic(pattern) else None
    if about is not None or not glob.has_magic(pattern):
        return {} if about is None else {pattern: about}
    found = folder.list_files(depth=None if "**" in pattern else pattern.count("/") + 1)
    return {name: about for name, about in found.items() if name and _matches(name, pattern) and not _is_hidden(name)}


def _matches(name: str, pattern: str) -> bool:
    """Return whether a name matches a pattern in which ``**`` stands for any folders.

    >>> [_matches(name, "**/*.txt") for name in ("a.txt", "b/c/a.txt", "a.csv")], _matches("b/a.txt", "*.txt")
    ([True, True, False], False)
    """
    parts = re.compile(r"(\*\*/|\*\*|\*|\?|\[[^\]]+\])").split(pattern)
    written = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    others = {part: part.replace("[!", "[^", 1) if part.startswith("[") else re.escape(part) for part in parts}
    return name == pattern or re.fullmatch("".join((others | written)[part] for part in parts), name) is not None


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _bring(folder: RemoteFolder, place: Path, names: Mapping[str, dict[str, Any]], known: dict[str, Any]) -> None:
    """Download what is lacking here or has changed there, and check its size, and its MD5 if that is told."""
    changed = [name for name, about in names.items() if name in known and not _is_same(known[name]["there"], about)]
    lacking = {
        name: about
        for name, about in names.items()
        if name not in known or name in changed or not _is_whole(place / name, known[name])
    }
    if not lacking:
        return
    if changed:
        said = (folder.shown, len(changed), changed[0])
        log.warning("%s: %d file(s) have changed there, such as %s: they are downloaded again", *said)
    size = sum(int(about.get("size") or 0) for about in lacking.values())
    with progress(f"downloading {folder.shown}", size) as advance:
        try:
            for name, about in lacking.items():
                file = place / inside(posixpath.normpath(name))
                folder.fetch(name, file)
                if about.get("size") not in (None, file.stat().st_size) or told_md5(about) not in (None, *md5s(file)):
                    file.unlink()
                    raise StorageError(f"{folder.shown}/{name} arrived damaged: start again")
                state = file.stat()
                known[name] = {
                    "there": identify(about),
                    "size": state.st_size,
                    "time": state.st_mtime_ns,
                    "sha256": hash_file(file),
                }
                advance(state.st_size)
        finally:
            write_json(place / STATE, {"url": hide_in_addresses(folder.url), "files": known})
    log.info("%d file(s) of %s were downloaded to %s", len(lacking), folder.shown, place)


def _is_same(known: Mapping[str, str], about: dict[str, Any]) -> bool:
    """Return whether a file is the version that is known; a service says more of it in some answers than in others."""
    now = identify(about)
    return all(known[key] == now[key] for key in known.keys() & now.keys())


def _is_whole(file: Path, known: Mapping[str, Any]) -> bool:
    """Return whether a copy is what was downloaded; it is read only where its time has changed."""
    try:
        state = file.stat()
        if state.st_size != known["size"]:
            return False
        return bool(state.st_mtime_ns == known["time"] or hash_file(file) == known["sha256"])
    except (OSError, KeyError):
        return False


def _read_state(place: Path) -> dict[str, Any]:
    try:
        files = json.loads((place / STATE).read_text(encoding="utf-8"))["files"]
        return {str(name): dict(about) for name, about in files.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def localise(names: tuple[str, ...], option: str) -> tuple[str, ...]:
    """Return names of files and folders with copies in the place of URLs."""
    found: list[str] = []
    for name in names:
        if not is_url(name):
            found.append(name)
        elif glob.has_magic(name) or (not _is_root(name) and _fetch(*name.rstrip("/").rpartition("/")[::2])):
            found += map(str, fetch_matches(name.rstrip("/"), option))
        else:
            found.append(str(fetch_folder(name, option)))
    return tuple(found)
