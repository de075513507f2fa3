"""Files at URLs (s3://, gs://, file://, memory://, …), through fsspec; credentials are those of the environment.

An object store has no rename and no folders, and a file there appears when it was sent whole. So what consists of
several files is complete when the one is there that is sent last. Every error is a ``StorageError`` of one line that
names the URL without the secrets in it.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError, optional_import
from vaak.core.secrets import hide_secrets
from vaak.core.storage.files import replacing

URL = re.compile(r"(?P<protocol>[A-Za-z][A-Za-z0-9+.-]*)://(?P<path>.*)", re.DOTALL)
READ_BYTES = 4 * 2**20
PART_BYTES = 50 * 2**20
"""The size of the parts in which s3fs sends a large file, whose MD5s make its ETag."""


OTHER_REGION = re.compile(
    r"PermanentRedirect|must be addressed using the specified endpoint|region '[^']*' is wrong", re.IGNORECASE
)
"""S3's messages about a bucket in another region than the one asked."""


class StorageError(UserError):
    """An error that a storage service answers, or data that differ from those requested."""


def is_url(text: str) -> bool:
    """Return whether a text is the URL of a file or a folder, rather than a path on this machine.

    >>> is_url("s3://bucket/run"), is_url("runs/mine"), is_url("C:/runs")
    (True, False, False)
    """
    return URL.match(text) is not None


class RemoteFolder:
    """The files below a URL, by their names there. Each method raises StorageError where the service refuses."""

    def __init__(self, url: str) -> None:
        """Raises UserError if the package for this kind of URL isn't installed."""
        self.url = url.rstrip("/")
        self.shown = hide_secrets(self.url)
        found = URL.match(url)
        if found is None:
            raise UserError(f"{self.shown} is not a URL, such as s3://bucket/folder")
        protocol = found["protocol"].lower()
        with optional_import(f"{self.shown} requires fsspec", "cloud"):
            import fsspec
        if protocol in ("s3", "s3a"):
            with optional_import(f"{self.shown} requires s3fs", "cloud"):
                import s3fs  # noqa: F401
        # Listings that are kept would hide what was sent since; only a local folder has folders to make.
        options: dict[str, Any] = {"use_listings_cache": False}
        if protocol in ("file", "local"):
            options = {"auto_mkdir": True}
        try:
            self.system, root = fsspec.core.url_to_fs(self.url, **options)
        except ImportError as error:
            raise UserError(f"{self.shown}: {error}") from error
        except Exception as error:
            raise StorageError(f"{self.shown} can't be opened: {explain(error)}") from error
        self.root = str(root).rstrip("/")

    def _path(self, name: str) -> str:
        return f"{self.root}/{name}" if name else self.root

    @contextlib.contextmanager
    def _asking(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except StorageError:
            raise
        except Exception as error:
            # fsspec's implementations raise their libraries' own kinds besides OSError.
            raise StorageError(f"{self._name(name)} can't be {what}: {explain(error)}") from error

    def _name(self, name: str) -> str:
        return f"{self.shown}/{name}" if name else self.shown

    def list_files(self, folder: str = "", depth: int | None = None) -> dict[str, dict[str, Any]]:
        """Return the service's metadata of each file below a folder, by its name below this one.

        ``depth`` is the number of levels that are listed: 1 leaves out folders below it.
        """
        levels = {} if depth is None else {"maxdepth": depth}
        with self._asking("listed", folder):
            try:
                self.system.invalidate_cache()
                found = self.system.find(self._path(folder), detail=True, **levels)
            except FileNotFoundError:
                return {}
            # A local file system gives absolute paths; its root may end in a link.
            return {path[len(self.root) + 1 :]: about for path, about in found.items() if path.startswith(self.root)}

    def exists(self) -> bool:
        """Return whether there is such a folder, or bucket."""
        with self._asking("read", ""):
            try:
                return bool(self.system.info(self.root)["type"] == "directory")
            except FileNotFoundError:
                return False

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if it isn't there."""
        with self._asking("read", name):
            try:
                return bytes(self.system.cat_file(self._path(name)))
            except FileNotFoundError:
                return None

    def write(self, name: str, content: bytes) -> None:
        """Write a small file."""
        with self._asking("written", name):
            self.system.pipe_file(self._path(name), content)

    def send(self, file: Path, name: str, sha256: str) -> None:
        """Upload a file, and compare the stored copy with its size and SHA-256."""
        with self._asking("written", name):
            self.system.put_file(str(file), self._path(name))
        self.require(name, file.stat().st_size, sha256, file)

    def copy(self, source: str, target: str) -> None:
        """Copy a file within the service."""
        with self._asking("copied", source):
            self.system.cp_file(self._path(source), self._path(target))

    def require(self, name: str, size: int, sha256: str, original: Path | None = None) -> None:
        """Raise StorageError if a file isn't there with this size and SHA-256.

        If the service reports the MD5 of its copy, that is compared with the ``original``; otherwise the copy is read
        back.
        """
        with self._asking("checked", name):
            self.system.invalidate_cache()
            about = self.system.info(self._path(name))
            problem = f"has {about.get('size')} bytes, and {size} were sent" if about.get("size") != size else ""
            told = told_md5(about)
            if not problem and (original is None or told is None or told not in md5s(original)):
                found = hashlib.sha256()
                with self.system.open(self._path(name), "rb", block_size=READ_BYTES, cache_type="readahead") as remote:
                    while block := remote.read(READ_BYTES):
                        found.update(block)
                problem = "" if found.hexdigest() == sha256 else "differs from what was sent"
        if problem:
            raise StorageError(f"{self._name(name)} {problem}")

    def fetch(self, name: str, file: Path) -> None:
        """Download a file, which appears under its name here when it is whole and on the disk."""
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._asking("read", name), replacing(file) as made:
            self.system.get_file(self._path(name), str(made))

    def remove(self, names: list[str]) -> None:
        """Delete files; a file that is already gone is not an error."""
        for name in names:
            with self._asking("removed", name), contextlib.suppress(FileNotFoundError):
                self.system.rm_file(self._path(name))

    def abort_unfinished(self) -> int:
        """Give up uploads in parts below this folder that were begun and never finished; return how many.

        Their parts aren't listed as files, and S3 charges for them. Only a process that alone writes here may do this.
        """
        bucket, _, folder = self.root.partition("/")
        if not hasattr(self.system, "call_s3") or not folder:
            return 0
        number, begin = 0, dict[str, str]()
        with self._asking("looked through for unfinished uploads", ""):
            while True:
                asked = {"Bucket": bucket, "Prefix": f"{folder}/", **begin}
                found = self.system.call_s3("list_multipart_uploads", **asked)
                for one in found.get("Uploads", ()):
                    # Some services know no Prefix here.
                    if one["Key"].startswith(f"{folder}/"):
                        upload = {"Bucket": bucket, "Key": one["Key"], "UploadId": one["UploadId"]}
                        with contextlib.suppress(FileNotFoundError):
                            self.system.call_s3("abort_multipart_upload", **upload)
                        number += 1
                if not found.get("IsTruncated"):
                    return number
                begin = {"KeyMarker": found["NextKeyMarker"], "UploadIdMarker": found["NextUploadIdMarker"]}

    def ask(self, name: str) -> dict[str, Any] | None:
        """Return the service's metadata of a file; None if it isn't there."""
        with self._asking("read", name):
            try:
                self.system.invalidate_cache()
                about = dict(self.system.info(self._path(name)))
            except FileNotFoundError:
                return None
        return about if about.get("type") == "file" else None


def identify(about: dict[str, Any]) -> dict[str, str]:
    """Return the fields that identify a file's version, as far as the service gives them."""
    kept = ("size", "ETag", "etag", "md5Hash", "crc32c", "mtime", "LastModified", "last_modified", "updated", "created")
    found = {key: about[key] for key in kept if about.get(key) is not None}
    # Listings of S3 have times to the millisecond, answers about one file to the second.
    times = {key: one.timestamp() for key, one in found.items() if isinstance(one, datetime)}
    whole = {key: int(one) for key, one in times.items() if "odified" in key}
    return {key: str(one) for key, one in (found | times | whole).items()}


def told_md5(about: dict[str, Any]) -> str | None:
    """Return the MD5 that a service reports of a file, in hexadecimal; S3's MD5 of parts has their number.

    Services that encrypt with a customer's key tell something else in its place, which matches nothing.
    """
    if isinstance(told := about.get("md5Hash"), str):
        with contextlib.suppress(ValueError):
            return base64.b64decode(told).hex()
    tag = about.get("ETag") or about.get("etag")
    tag = tag.strip('"').lower() if isinstance(tag, str) else ""
    return tag if re.fullmatch(r"[0-9a-f]{32}(-\d+)?", tag) else None


def md5s(file: Path) -> tuple[str, str]:
    """Return the MD5 of a file, and the one that S3 reports after an upload in parts.

    It is compared with what the service computed, to find damage on the way; nothing relies on it against an attacker.
    """
    whole, parts, number = hashlib.md5(usedforsecurity=False), hashlib.md5(usedforsecurity=False), 0
    with open(file, "rb") as content:
        while block := content.read(PART_BYTES):
            whole.update(block)
            parts.update(hashlib.md5(block, usedforsecurity=False).digest())
            number += 1
    return whole.hexdigest(), f"{parts.hexdigest()}-{number}"


def explain(error: BaseException) -> str:
    """Return why a service refused, in one line without secrets."""
    text = hide_secrets((str(error).strip() or type(error).__name__).splitlines()[0][:300])
    kind = type(error).__name__
    if "credentials" in text.lower() or kind in ("NoCredentialsError", "PartialCredentialsError"):
        return f"no valid credentials ({text})"
    if OTHER_REGION.search(text):
        return f"the bucket is in another region: set AWS_DEFAULT_REGION to its own ({text})"
    if isinstance(error, PermissionError):
        return f"access denied ({text})"
    if isinstance(error, FileNotFoundError):
        return f"no such bucket or file ({text})"
    return text if isinstance(error, OSError) else f"{text} ({kind})"
