"""``/v1/audio/transcriptions`` and ``/v1/audio/translations``: transcripts, also of each speaker, by a diarizer."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from fastapi import Form, UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from vaak.audio.formats.annotation_lines import name_recordings
from vaak.audio.segments import join_texts
from vaak.core.errors import UserError
from vaak.serve.batching import Job, Kind
from vaak.serve.errors import ApiError
from vaak.serve.forms import Audio, ModelField
from vaak.serve.models import Served, Server, compute, stream
from vaak.serve.speakers import NAMES, NamesField, ReferencesField, Voices, diarize_job, receive
from vaak.serve.uploads import recordings
from vaak.serve.writing import LEAST_LOGPROB, name_token

if TYPE_CHECKING:
    from vaak.tasks.asr.long_form import Recording
    from vaak.tasks.asr.predict import Transcriber
    from vaak.tasks.asr.transcripts import Segment, Transcript

ResponseFormat = Literal["json", "text", "srt", "vtt", "verbose_json", "diarized_json"]
TranslationFormat = Literal["json", "text", "srt", "vtt", "verbose_json"]
Granularity = Literal["segment", "word"]
DONE = "data: [DONE]\n\n"
WINDOWS_AT_FIRST = 1
"""Windows of one recording that are transcribed together, before it is known how long that takes."""
MOST_PADDING = 4.0
"""Where windows are padded to the longest: how many times longer it may be than others that are computed with it."""
PromptField = Annotated[str | None, Form(description="A text that is read as if it had been said before.")]
TemperatureField = Annotated[float | None, Form(ge=0, description="0 writes the most probable text.")]
Chunking = Annotated[Literal["auto"] | None, Form(description="Only auto: long recordings are cut where it is quiet.")]
DiarizerField = Annotated[str | None, Form(description="With diarized_json: the diarizer, if several are served.")]

FIELDS = {"timestamps": "timestamp_granularities"}
"""Fields of requests whose options have other names."""


@dataclass(frozen=True)
class Listening:
    """How a recording is transcribed: by which model, and with which options over its own."""

    served: Served
    transcriber: Transcriber
    options: tuple[tuple[str, Any], ...]

    def job(self, path: Path, tell: Callable[[Any], None] = lambda result: None) -> tuple[Job, Recording]:
        """Return the job of a recording, and what knows its duration in the end; results are lists of segments.

        With ``long_form: seek``, this takes a while: it reads the recording. Raises UserError if that fails.
        """
        from vaak.tasks.asr.long_form import Recording, speech_seconds

        if self.transcriber.decoding.long_form == "seek":
            return self._seeking_job(path, tell)
        recording = Recording(path)
        kind = Kind(self.key, self.transcriber.segments_of_windows, speech_seconds, self.most_padding, WINDOWS_AT_FIRST)
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

        kind = Kind((*self.key, "seek"), compute, is_sequential=True)
        return Job(kind, listener.windows_left(), tell), listener.recording

    @property
    def key(self) -> tuple[object, ...]:
        return ("transcribe", self.served.name, self.options)

    @property
    def most_padding(self) -> float:
        """A Whisper pads each window to the same length anyway."""
        return math.inf if self.transcriber.pads_windows else MOST_PADDING


async def transcribe(
    request: Request,
    file: Audio,
    model: ModelField = None,
    language: Annotated[str | None, Form(description="Whisper: such as hi, or auto.")] = None,
    prompt: PromptField = None,
    temperature: TemperatureField = None,
    response_format: Annotated[ResponseFormat, Form(description="diarized_json: with a diarization run.")] = "json",
    granularities: Annotated[list[Granularity] | None, Form(alias="timestamp_granularities[]")] = None,
    stream: Annotated[bool, Form(description="Segments come as server-sent events.")] = False,
    include: Annotated[
        list[Literal["logprobs"]] | None, Form(alias="include[]", description="Whisper, json: of each token.")
    ] = None,
    diarizer: DiarizerField = None,
    names: NamesField = None,
    references: ReferencesField = None,
    chunking_strategy: Chunking = None,
) -> Response:
    """Transcribe a recording. Options that are not given come from the run, as for vaak transcribe."""
    options: dict[str, Any] = {"language": language, "prompt": prompt, "temperature": temperature}
    words, speakers = "word" in (granularities or []), response_format == "diarized_json"
    require_that_fields_fit(
        {
            "timestamp_granularities": (not granularities or response_format == "verbose_json", "verbose_json"),
            "include": (not include or response_format == "json", "json"),
            "stream": (not stream or response_format == "json", "json"),
            "diarizer": (diarizer is None or speakers, "diarized_json"),
            NAMES: (not (names or references) or speakers, "diarized_json"),
        }
    )
    options |= {"timestamps": "word"} if words else {}
    listening = _listening(request, "transcriptions", model, options, scores=bool(include))
    if speakers:
        server: Server = request.app.state.server
        if not any("diarize" in one.endpoints for one in server.models.values()):
            message = "diarized_json: no diarization run is served; start vaak serve with one besides the recogniser"
            raise ApiError(400, message, param="response_format")
        who = server.choose("diarize", diarizer)
        async with receive(server, file, names, references) as (path, voices):
            return await _transcribe_speakers(request, listening, path, (who, Voices(voices)))
    return await _answer(request, listening, file, response_format, streams=stream)


def require_that_fields_fit(fields: Mapping[str, tuple[bool, str]]) -> None:
    """Raise ApiError for the first field that doesn't hold, with the ``response_format`` that it needs."""
    for name, (fits, format) in fields.items():
        if not fits:
            raise ApiError(400, f"{name}: it needs response_format {format}", param=name)


async def _transcribe_speakers(
    request: Request, listening: Listening, path: Path, diarizer: tuple[Served, Voices]
) -> Response:
    """Answer with what each speaker says, as vaak transcribe --diarize finds it."""
    from vaak.tasks.asr.speaker_transcripts import DiarizedRecording, SpeakerTranscriber

    [(found, _)] = await compute(request, diarizer[0], diarize_job(diarizer[0], path, diarizer[1]))
    recording = DiarizedRecording(path, found.name)
    together = SpeakerTranscriber(listening.transcriber, lambda _: (found.segments, found.duration))
    kind = Kind(
        ("turns", *listening.key),
        together.texts,
        lambda piece: float(piece.seconds),
        listening.most_padding,
        WINDOWS_AT_FIRST,
    )
    said = await compute(request, listening.served, Job(kind, together.pieces(recording)))
    turns = [
        {"type": "transcript.text.segment", "id": f"seg_{number:03}", **turn._asdict()}
        for number, turn in enumerate(recording.transcript(said, 0.0).turns)
    ]
    text = join_texts(str(turn["text"]) for turn in turns)
    about = {"task": "transcribe", "duration": found.duration, "text": text, "segments": turns}
    return JSONResponse(about)


async def translate_speech(
    request: Request,
    file: Audio,
    model: ModelField = None,
    prompt: PromptField = None,
    temperature: TemperatureField = None,
    response_format: Annotated[TranslationFormat, Form()] = "json",
) -> Response:
    """Transcribe a recording in English, whatever is spoken in it, if the model can."""
    options = {"task": "translate", "prompt": prompt, "temperature": temperature}
    listening = _listening(request, "translations", model, options)
    return await _answer(request, listening, file, response_format, streams=False)


def _listening(
    request: Request, endpoint: str, model: str | None, options: dict[str, Any], *, scores: bool = False
) -> Listening:
    server: Server = request.app.state.server
    served = server.choose(endpoint, model)
    given = {name: value for name, value in options.items() if value not in (None, "")}
    _require_effect(served, given)
    try:
        transcriber = served.task.transcriber(served.opened.model, **given)
    except UserError as error:
        # The configuration's name of a field.
        option, _, said = str(error).removeprefix("data.decoding.").partition(": ")
        if option not in given:
            raise ApiError(400, str(error)) from error
        field = FIELDS.get(option, option)
        raise ApiError(400, f"{field}: {said}", param=field) from error
    if scores:
        try:
            transcriber, given = transcriber.scoring_tokens(), {**given, "scores_tokens": True}
        except UserError as error:
            raise ApiError(400, f"include: {served.name}: {error}", param="include") from error
    return Listening(served, transcriber, tuple(sorted(given.items())))


def _require_effect(served: Served, given: Mapping[str, Any]) -> None:
    """Raise ApiError for an option that the model doesn't read, unless it is what the model does anyway."""
    experiment = served.opened.experiment
    unread = {one.key: one.message for one in experiment.spec.checks(experiment) if one.kind == "no effect"}
    for name, value in given.items():
        message = unread.get(f"data.decoding.{name}")
        if message is not None and value != getattr(experiment.data.decoding, name):
            field = FIELDS.get(name, name)
            raise ApiError(400, f"{field}: {served.name} doesn't read it: {message}", param=field)


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
        scored = [one for segment in found.segments for one in segment.token_logprobs]
        asked = dict(listening.options).get("scores_tokens")
        scores = {"logprobs": _name_scores(scored)} if asked else {}
        return JSONResponse({"text": found.text} | scores | _warnings(listening))
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
    return JSONResponse({**about, "segments": segments, **spoken, **_warnings(listening)})


def _warnings(listening: Listening) -> dict[str, list[str]]:
    """Return what is to be said of the language that was asked for, if anything."""
    from vaak.tasks.asr.languages import choose_language

    asked, taken = dict(listening.options).get("language"), listening.transcriber.decoding.language
    remark = choose_language(asked, [taken]).remark if asked and taken else ""
    return {"warnings": [remark]} if remark else {}


def _name_scores(scores: Iterable[tuple[bytes, float]]) -> list[dict[str, Any]]:
    return [
        {"token": name_token(written), "bytes": list(written), "logprob": max(logprob, LEAST_LOGPROB)}
        for written, logprob in scores
    ]


async def _events(listening: Listening, path: Path, kept: AsyncExitStack) -> AsyncIterator[str]:
    """Yield the text of each window once it is final, then the whole text, in the form of OpenAI's events."""
    said = ""
    scores: list[dict[str, Any]] = []
    asked = dict(listening.options).get("scores_tokens")
    try:
        async with kept:
            async for segments in stream(listening.served, lambda tell: listening.job(path, tell)[0]):
                for one in (one for one in segments if one.text):
                    own = _name_scores(one.token_logprobs)
                    logprobs = {"logprobs": own} if asked else {}
                    longer = join_texts((said, one.text))
                    yield _event({"type": "transcript.text.delta", "delta": longer[len(said) :], **logprobs})
                    said = longer
                    scores += own
        logprobs = {"logprobs": scores} if asked else {}
        yield _event({"type": "transcript.text.done", "text": said, **logprobs})
    except ApiError as error:
        # The answer has begun with status 200.
        yield _event(error.body)
    yield DONE


def _event(value: Any) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\n\n"
