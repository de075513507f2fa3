"""``/v1/audio/transcriptions``, ``/v1/audio/translations`` and ``/v1/diarize``: transcripts, and who speaks when."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastapi import File, Form, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from vaak.audio.formats.annotation_lines import name_recordings, rttm_text
from vaak.core.errors import UserError
from vaak.serve.batching import Job, Kind
from vaak.serve.errors import ApiError
from vaak.serve.models import Served, Server, compute, naming_fields, stream
from vaak.serve.uploads import recordings

if TYPE_CHECKING:
    from vaak.tasks.asr.long_form import Recording
    from vaak.tasks.asr.predict import Transcriber
    from vaak.tasks.asr.transcripts import Segment, Transcript

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity = Literal["segment", "word"]
DONE = "data: [DONE]\n\n"
WINDOWS_AT_FIRST = 1
"""Windows of one recording that are transcribed together, before it is known how long that takes."""
MOST_PADDING = 4.0
"""Where windows are padded to the longest: how many times longer it may be than others that are computed with it."""
Audio = Annotated[UploadFile, File(description="A recording; the documentation lists the formats.")]
ModelField = Annotated[str | None, Form(description="The model's name; optional where only one can answer.")]
PromptField = Annotated[str | None, Form(description="A text that is read as if it had been said before.")]
TemperatureField = Annotated[float | None, Form(ge=0, description="0 writes the most probable text.")]
FormatField = Annotated[ResponseFormat, Form()]


@dataclass(frozen=True)
class Listening:
    """How a recording is transcribed: by which model, and with which options over its own."""

    served: Served
    transcriber: Transcriber
    options: tuple[tuple[str, Any], ...]

    def job(self, path: Path, tell: Callable[[Any], None] = lambda result: None) -> tuple[Job, Recording]:
        """Return the job of a recording, and what knows its duration in the end; results are lists of segments.

        With ``long_form: seek``, this takes a while: it reads the recording. Raises UserError where that fails.
        """
        from vaak.tasks.asr.long_form import Recording, speech_seconds

        if self.transcriber.decoding.long_form == "seek":
            return self._seeking_job(path, tell)
        recording = Recording(path)
        kind = Kind(
            self._key, self.transcriber.segments_of_windows, speech_seconds, self._most_padding, WINDOWS_AT_FIRST
        )
        return Job(kind, self.transcriber.windows(recording), tell), recording

    def _seeking_job(self, path: Path, tell: Callable[[Any], None]) -> tuple[Job, Recording]:
        """Return the job of a recording in which the next window begins where the text of the last one ends."""
        from vaak.tasks.asr.whisper.seeking import Listener, SeekingTranscriber, listen_on, open_listener

        transcriber = cast("SeekingTranscriber", self.transcriber)
        listener = open_listener(transcriber, path)
        if isinstance(listener, UserError):
            raise listener

        def compute(listeners: list[Listener]) -> list[list[Segment]]:
            listen_on(transcriber, listeners)
            return [one.take_segments() for one in listeners]

        kind = Kind((*self._key, "seek"), compute, is_sequential=True)
        return Job(kind, listener.windows_left(), tell), listener.recording

    @property
    def _key(self) -> tuple[object, ...]:
        return ("transcribe", self.served.name, self.options)

    @property
    def _most_padding(self) -> float:
        """A Whisper pads each window to the same length anyway."""
        return math.inf if self.transcriber.pads_windows else MOST_PADDING


async def transcribe(
    request: Request,
    file: Audio,
    model: ModelField = None,
    language: Annotated[str | None, Form(description="Whisper: such as hi, or auto.")] = None,
    prompt: PromptField = None,
    temperature: TemperatureField = None,
    response_format: FormatField = "json",
    granularities: Annotated[list[Granularity] | None, Form(alias="timestamp_granularities[]")] = None,
    stream: Annotated[bool, Form(description="Segments come as server-sent events.")] = False,
) -> Response:
    """Transcribe a recording. Options that are not given come from the run, as for vaak transcribe."""
    options: dict[str, Any] = {"language": language, "prompt": prompt, "temperature": temperature}
    words = "word" in (granularities or [])
    if granularities and response_format != "verbose_json":
        message = "timestamp_granularities: only response_format verbose_json has times"
        raise ApiError(400, message, param="timestamp_granularities")
    options |= {"timestamps": "word"} if words else {}
    listening = _listening(request, "transcriptions", model, options)
    return await _answer(request, listening, file, response_format, streams=stream)


async def translate_speech(
    request: Request,
    file: Audio,
    model: ModelField = None,
    prompt: PromptField = None,
    temperature: TemperatureField = None,
    response_format: FormatField = "json",
) -> Response:
    """Transcribe a recording in English, whatever is spoken in it, if the model can."""
    options = {"task": "translate", "prompt": prompt, "temperature": temperature}
    listening = _listening(request, "translations", model, options)
    return await _answer(request, listening, file, response_format, streams=False)


def _listening(request: Request, endpoint: str, model: str | None, options: dict[str, Any]) -> Listening:
    server: Server = request.app.state.server
    served = server.choose(endpoint, model)
    given = {name: value for name, value in options.items() if value is not None}
    with naming_fields():
        transcriber = served.task.transcriber(served.opened.model, **given)
    return Listening(served, transcriber, tuple(sorted(given.items())))


async def _answer(
    request: Request, listening: Listening, file: UploadFile, format: ResponseFormat, *, streams: bool
) -> Response:
    server: Server = request.app.state.server
    if streams:
        kept = AsyncExitStack()
        [path] = await kept.enter_async_context(recordings(server, [file]))
        headers = {"Cache-Control": "no-store"}
        return StreamingResponse(_events(listening, path, kept), media_type="text/event-stream", headers=headers)
    async with recordings(server, [file]) as [path]:
        job, recording = await asyncio.to_thread(listening.job, path)
        begun = time.perf_counter()
        found = await compute(request, listening.served, job)
        segments = tuple(segment for some in found for segment in some)
        name = name_recordings([path])[path]
        transcript = _make_transcript(name, segments, recording.duration, time.perf_counter() - begun)
    return _format(transcript, format, listening)


def _make_transcript(name: str, segments: tuple[Segment, ...], duration: float, seconds: float) -> Transcript:
    from vaak.tasks.asr.transcripts import Transcript

    return Transcript(name, segments, duration, seconds)


def _format(found: Transcript, format: ResponseFormat, listening: Listening) -> Response:
    if format == "json":
        return JSONResponse({"text": found.text})
    if format == "text":
        return PlainTextResponse(found.text + "\n")
    if format == "srt":
        return PlainTextResponse(found.srt, media_type="application/x-subrip")
    if format == "vtt":
        return PlainTextResponse(found.vtt, media_type="text/vtt")
    decoding = listening.transcriber.decoding
    languages = {one.language for one in found.segments if one.language}
    language = decoding.language if len(languages) != 1 else languages.pop()
    words = [word for one in found.segments for word in one.words]
    segments = [
        {"id": number, "start": one.start, "end": one.end, "text": one.text}
        | ({"language": one.language} if one.language else {})
        for number, one in enumerate(found.segments)
    ]
    about = {"task": decoding.task, "language": language, "duration": found.duration, "text": found.text}
    spoken = {"words": [{"word": one.text, "start": one.start, "end": one.end} for one in words]} if words else {}
    return JSONResponse({**about, "segments": segments, **spoken})


async def _events(listening: Listening, path: Path, kept: AsyncExitStack) -> AsyncIterator[str]:
    """Yield the text of each window once it is final, then the whole text, in the form of OpenAI's events."""
    said: list[str] = []
    try:
        async with kept:
            async for segments in stream(listening.served, lambda tell: listening.job(path, tell)[0]):
                for text in (one.text for one in segments if one.text):
                    yield _event({"type": "transcript.text.delta", "delta": f" {text}" if said else text})
                    said.append(text)
        yield _event({"type": "transcript.text.done", "text": " ".join(said)})
    except ApiError as error:
        # The answer has begun with status 200.
        yield _event(error.body)
    yield DONE


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"


async def diarize(
    request: Request,
    file: Audio,
    model: ModelField = None,
    response_format: Annotated[Literal["json", "rttm"], Form()] = "json",
) -> Response:
    """Find who speaks when in a recording, as vaak diarize does."""
    server: Server = request.app.state.server
    served = server.choose("diarize", model)
    async with recordings(server, [file]) as [path]:
        [[found]] = await compute(request, served, predict_files_job(served, [path]))
    if response_format == "rttm":
        return PlainTextResponse(rttm_text({found.name: found.segments}, Path(found.name)))
    segments = [{"start": one.start, "end": one.end, "speaker": one.speaker} for one in found.segments]
    about = {"model": served.name, "duration": found.duration, "segments": segments, "at_ceiling": found.at_ceiling}
    return JSONResponse(about)


def predict_files_job(served: Served, paths: Sequence[Path]) -> Job:
    """Return the job of predicting from files together: their names, which results have, are unique among them."""

    def together(some: list[Sequence[Path]]) -> list[list[Any] | UserError]:
        return [_without_errors(served.predict(one)) for one in some]

    return Job(Kind(("predict", served.name), together, len), iter([paths]))


def _without_errors(results: Any) -> list[Any] | UserError:
    """Return the results, or the first error among them."""
    found = list(results)
    return next((one for one in found if isinstance(one, UserError)), found)
