"""Recordings that are sent: files while they are in use, looked at before they are decoded."""

from __future__ import annotations

import asyncio
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request

from vaak.audio.audio_file import read_header
from vaak.audio.containers.ffmpeg import TooLargeError, decoding_at_most
from vaak.core.errors import UserError
from vaak.core.names import list_names
from vaak.serve.errors import ApiError
from vaak.serve.gate import Limits
from vaak.serve.models import Server


@asynccontextmanager
async def recordings(server: Server, files: Sequence[UploadFile]) -> AsyncIterator[list[Path]]:
    """The paths of recordings, under the names that they were sent with, until the end of this context.

    Raises ApiError for what can't be read, with the line that commands have for it, and for what is too long.
    """
    if len(files) > server.limits.max_inputs:
        message = f"there are {len(files)} files; at most {server.limits.max_inputs} at once"
        raise ApiError(400, message, param="file")
    folder = Path(tempfile.mkdtemp(dir=server.folder))
    try:
        paths = [await asyncio.to_thread(_keep, folder / str(number), file) for number, file in enumerate(files)]
        with naming_files(paths):
            for path in paths:
                await asyncio.to_thread(require_limits, path, server.limits)
            yield paths
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_multipart(request: Request) -> bool:
    """Return whether a request's body is a form with files."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower() == "multipart/form-data"


async def require_known_fields(request: Request) -> None:
    """Raise ApiError for a field of a form that its endpoint doesn't have, or reads once and that is there twice.

    So nothing that is asked for is left out.
    """
    if not is_multipart(request):
        raise ApiError(400, "expected Content-Type: multipart/form-data, with the recording in file", param="file")
    known, form = [one.alias for one in request.scope["route"].dependant.body_params], await request.form()
    for name in form:
        if name not in known:
            raise ApiError(400, f"unknown field {name[:100]!r}; expected {list_names(known)}", param=name[:100])
    require_once(form, [name for name in known if not name.endswith("[]")])


def require_once(form: FormData, names: Sequence[str]) -> None:
    """Raise ApiError for a field that is there twice: one of them would be left out."""
    for name in names:
        if (number := len(form.getlist(name))) > 1:
            raise ApiError(400, f"{name}: it was sent {number} times; expected one", param=name)


@contextmanager
def naming_files(paths: Sequence[Path]) -> Iterator[None]:
    """Within this context, errors of files are the request's, and name the files as they were sent."""
    try:
        yield
    except UserError as error:
        message = str(error)
        for path in paths:
            message = message.replace(f"{path.parent}/", "")
        raise ApiError(400, message, param="file") from error


def _keep(folder: Path, file: UploadFile) -> Path:
    folder.mkdir()
    path = folder / safe_name(file.filename)
    with path.open("xb") as kept:
        shutil.copyfileobj(file.file, kept)
    return path


def safe_name(sent: str | None) -> str:
    """Return the name that a file was sent under, without folders and characters that names can't have.

    >>> safe_name("../../etc/talk.wav"), safe_name(".."), safe_name(None)
    ('talk.wav', 'recording', 'recording')
    """
    name = re.sub(r"[\x00-\x1f\x7f]", "_", re.split(r"[/\\\\]", sent or "")[-1]).strip()
    return "recording" if name.strip(".") == "" or len(name.encode()) > 200 else name


def require_limits(path: Path, limits: Limits) -> None:
    """Raise ApiError for a recording that is too long, before it is decoded; UserError for what isn't one."""
    try:
        with decoding_at_most(limits.max_decoded):
            header = read_header(path)
    except TooLargeError as error:
        raise ApiError(413, str(error).replace(f"{path.parent}/", ""), param="file", code="audio_too_long") from error
    if header.duration > limits.max_duration:
        about = f"{path.name}: {header.duration:.0f} s long, and at most {limits.max_duration:g} s are taken"
        raise ApiError(413, f"{about} (--max-duration)", param="file", code="audio_too_long")
    if header.num_channels > limits.max_channels:
        about = f"{path.name}: {header.num_channels} channels, and at most {limits.max_channels} are taken"
        raise ApiError(413, about, param="file", code="too_many_channels")
