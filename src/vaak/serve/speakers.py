"""``/v1/diarize``: who speaks when; known speakers by name, if recordings of them are sent with it."""

from __future__ import annotations

import base64
import binascii
import io
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import File, Form, UploadFile
from starlette.datastructures import UploadFile as SentFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from vaak.audio.formats.annotation_lines import rttm_text
from vaak.core.errors import UserError
from vaak.serve.batching import Job, Kind
from vaak.serve.errors import ApiError
from vaak.serve.forms import Audio, ModelField
from vaak.serve.models import Served, Server, compute, naming_fields
from vaak.serve.uploads import recordings

if TYPE_CHECKING:
    from vaak.tasks.diarization.enrolment import Named
    from vaak.tasks.diarization.predict import Diarized

NAMES, REFERENCES = "known_speaker_names[]", "known_speaker_references[]"
NamesField = Annotated[list[str] | None, Form(alias=NAMES, description="Names of known speakers.")]
ReferencesField = Annotated[
    list[UploadFile | str] | None,
    File(alias=REFERENCES, description="A recording of each of them: a file, or a data: URL of one in base64."),
]
ThresholdField = Annotated[
    float | None, Form(ge=0, le=2, description="Cosine distance above which nobody is known; default: the encoder's.")
]


@dataclass(frozen=True)
class Voices:
    """Known speakers: the files of each, and the distance up to which one is known."""

    files: dict[str, list[Path]]
    threshold: float | None = None


@asynccontextmanager
async def receive(
    server: Server, file: SentFile, names: Sequence[str] | None, references: Sequence[SentFile | str] | None
) -> AsyncIterator[tuple[Path, dict[str, list[Path]]]]:
    """The paths of a recording, and of those of known speakers by name, until the end of this context.

    Raises ApiError for what can't be read, and for names and recordings that don't belong together.
    """
    from vaak.tasks.diarization.enrolment import require_speaker_name

    names, references = names or [], references or []
    if len(names) != len(references):
        message = f"{NAMES} and {REFERENCES}: {len(names)} and {len(references)}; expected one recording for each name"
        raise ApiError(400, message, param=REFERENCES)
    with naming_fields(NAMES):
        for name in names:
            require_speaker_name(name, NAMES)
    sent = [one if isinstance(one, SentFile) else read_data_url(one, number) for number, one in enumerate(references)]
    async with recordings(server, [file, *sent]) as [path, *others]:
        voices: dict[str, list[Path]] = {}
        for name, other in zip(names, others, strict=True):
            voices.setdefault(name, []).append(other)
        yield path, voices


def read_data_url(url: str, number: int) -> SentFile:
    """Return the file that a data URL holds. Raises ApiError for any other URL: none is opened."""
    head, comma, content = url.partition(",")
    try:
        if not (comma and head.startswith("data:") and head.endswith(";base64")):
            raise ValueError("it isn't one")
        return SentFile(io.BytesIO(base64.b64decode(content, validate=True)), filename=f"reference{number}")
    except (ValueError, binascii.Error) as error:
        message = f"{REFERENCES}: expected files, or data: URLs in base64, such as data:audio/wav;base64,…"
        raise ApiError(400, message, param=REFERENCES) from error


def diarize_job(served: Served, path: Path, voices: Voices) -> Job:
    """Return the job of finding who speaks when; its result is a ``Diarized``, and a ``Named`` with known speakers."""
    from vaak.tasks.diarization.enrolment import Enrolment

    def together(paths: list[Path]) -> list[tuple[Diarized, Named | None] | UserError]:
        [found] = served.predict(paths)
        if isinstance(found, UserError) or not voices.files:
            return [found if isinstance(found, UserError) else (found, None)]
        named = Enrolment.open(voices.files, served.opened, voices.threshold, REFERENCES).name_speakers(path, found)
        return [(named.diarized, named)]

    # Each recording with its own known speakers.
    return Job(Kind(("diarize", served.name, path), together), iter([path]))


async def diarize(
    request: Request,
    file: Audio,
    model: ModelField = None,
    response_format: Annotated[Literal["json", "rttm"], Form()] = "json",
    names: NamesField = None,
    references: ReferencesField = None,
    threshold: Annotated[ThresholdField, Form(alias="known_speaker_threshold")] = None,
) -> Response:
    """Find who speaks when in a recording, as vaak diarize does, with --enrol where known speakers are sent."""
    server: Server = request.app.state.server
    served = server.choose("diarize", model)
    if threshold is not None and not names:
        message = f"known_speaker_threshold: it is for known speakers, who are sent as {NAMES} and {REFERENCES}"
        raise ApiError(400, message, param="known_speaker_threshold")
    async with receive(server, file, names, references) as (path, voices):
        [(found, named)] = await compute(request, served, diarize_job(served, path, Voices(voices, threshold)))
    if response_format == "rttm":
        return PlainTextResponse(rttm_text({found.name: found.segments}, Path(found.name)))
    segments = [{"start": one.start, "end": one.end, "speaker": one.speaker} for one in found.segments]
    about = {"model": served.name, "duration": found.duration, "segments": segments, "at_ceiling": found.at_ceiling}
    return JSONResponse({**about, **({} if named is None else {"enrolled": named.to_json()})})


def predict_files_job(served: Served, paths: Sequence[Path]) -> Job:
    """Return the job of predicting from files together: their names, which results have, are unique among them."""

    def together(some: list[Sequence[Path]]) -> list[list[Any] | UserError]:
        return [_without_errors(served.predict(one)) for one in some]

    return Job(Kind(("predict", served.name), together, len), iter([paths]))


def _without_errors(results: Any) -> list[Any] | UserError:
    """Return the results, or the first error among them."""
    found = list(results)
    return next((one for one in found if isinstance(one, UserError)), found)
