"""``/v1/realtime``: a WebSocket that hears 16-bit samples and tells the text while they come (docs/serving.md).

A subset of OpenAI's realtime transcription. The client appends audio, the server tells what is settled and, at the end
of each utterance, its final text, as ``vaak transcribe --live`` does. Audio is read message by message, each once
the one before is computed, so a client that sends faster than the model reads has to wait.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import Query, WebSocket, WebSocketDisconnect
from starlette.responses import JSONResponse

from vaak.audio.live_audio import BYTES_OF_A_SAMPLE, make_resampler
from vaak.core.errors import UserError
from vaak.serve.batching import Job, Kind
from vaak.serve.errors import ApiError
from vaak.serve.gate import BODY_SECONDS
from vaak.serve.json_bodies import parse_json
from vaak.serve.models import Served, Server

if TYPE_CHECKING:
    from vaak.tasks.asr.live import Event, LiveTranscriber

USUAL_RATE = 24_000
"""Samples in a second, unless the client says another number: OpenAI's."""
MOST_MESSAGE_BYTES = 2**20
"""Of one message; uvicorn closes a connection that sends more (1009)."""
EVENT_KEYS = ("type", "event_id")
INPUT = ("audio", "input")
RATE = (*INPUT, "format", "rate")
"""Where ``session.update`` has the samples in a second."""
HARMLESS: dict[tuple[str, ...], tuple[Any, ...]] = {
    ("type",): (None, "transcription"),
    ("include",): (None, []),
    (*INPUT, "format", "type"): (None, "audio/pcm"),
    (*INPUT, "noise_reduction"): (None,),
    (*INPUT, "turn_detection", "type"): ("server_vad",),
    (*INPUT, "transcription"): (None,),
    (*INPUT, "transcription", "language"): (None,),
    (*INPUT, "transcription", "prompt"): (None, ""),
}
"""Other options of OpenAI's sessions, with the values that ask for what happens anyway: clients send them."""
TRANSCRIPTION = "conversation.item.input_audio_transcription"
TOO_MUCH, BAD_MESSAGE, SILENT = 1009, 1007, 1008
"""Why a connection is closed, in WebSocket's numbers."""
Model = Annotated[str | None, Query(description="Default: the only recogniser that is served.")]
Chunk = Annotated[float | None, Query(gt=0, description="Seconds, of a Conformer that streams.")]


class ClosingError(Exception):
    """Ends a session, with what the client is told."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Session:
    """One client's audio and its transcript."""

    websocket: WebSocket
    served: Served
    make: Callable[[], LiveTranscriber]
    most_seconds: float

    def __post_init__(self) -> None:
        self.rate, self.seconds, self.number = USUAL_RATE, 0.0, 0
        self.begin()
        self.heard = time.monotonic()
        """When audio came last: messages without any keep no place."""

    def begin(self) -> None:
        """Begin new audio; text of the previous audio that wasn't final is dropped."""
        self.live, self.rest, self.shown = self.make(), b"", ""
        self.resample = make_resampler(self.rate, self.live.rate)

    async def run(self) -> None:
        """Answer messages until the client leaves."""
        await self.tell("session.created", session={"model": self.served.name, "rate": self.rate})
        while True:
            try:
                async with asyncio.timeout(BODY_SECONDS - (time.monotonic() - self.heard)):
                    message = await self.websocket.receive()
            except TimeoutError:
                raise ClosingError(SILENT, f"no audio came for {BODY_SECONDS:g} s") from None
            if message["type"] == "websocket.disconnect":
                return
            if message.get("bytes") is not None:
                await self.hear(message["bytes"])
            else:
                await self.obey(read_event(message.get("text") or ""))

    async def obey(self, event: dict[str, Any]) -> None:
        """Do what an event of the client asks. Raises ClosingError for one that there isn't."""
        kind = event.get("type")
        if kind == "input_audio_buffer.append":
            require_keys(event, (*EVENT_KEYS, "audio"))
            await self.hear(read_audio(event))
        elif kind == "input_audio_buffer.commit":
            require_keys(event, EVENT_KEYS)
            await self.commit()
        elif kind == "input_audio_buffer.clear":
            require_keys(event, EVENT_KEYS)
            self.begin()
            await self.tell("input_audio_buffer.cleared")
        elif kind == "session.update":
            self.update(event)
            await self.tell("session.updated", session={"model": self.served.name, "rate": self.rate})
        else:
            known = "session.update, input_audio_buffer.append, input_audio_buffer.commit, input_audio_buffer.clear"
            raise ClosingError(BAD_MESSAGE, f"unknown type {str(kind)[:100]!r}; there are {known}")

    def update(self, event: dict[str, Any]) -> None:
        """Take the rate of the audio to come. Raises ClosingError for another option, and after audio has begun."""
        rate = read_rate(event, self.served.name)
        if rate is None or rate == self.rate:
            return
        if self.seconds:
            raise ClosingError(BAD_MESSAGE, "the rate can't change once audio has been sent: begin another session")
        try:
            if isinstance(rate, bool) or rate != int(rate):
                raise ValueError
            self.resample, self.rate = make_resampler(int(rate), self.live.rate), int(rate)
        except (UserError, ValueError, TypeError):
            raise ClosingError(
                BAD_MESSAGE, f"rate {str(rate)[:20]}: expected 4000 to 192000 samples a second"
            ) from None

    async def hear(self, content: bytes) -> None:
        """Take raw samples in. Raises ClosingError if the session has had all that one may have."""
        self.seconds += len(content) / BYTES_OF_A_SAMPLE / self.rate
        if self.seconds > self.most_seconds:
            raise ClosingError(TOO_MUCH, f"a session has {self.most_seconds:g} s of audio (--max-duration)")
        if content:
            self.heard = time.monotonic()
        content = self.rest + content
        whole = len(content) // BYTES_OF_A_SAMPLE * BYTES_OF_A_SAMPLE
        self.rest = content[whole:]
        await self._compute(lambda: self.live.feed(self._to_samples(content[:whole], is_last=False)))

    async def commit(self) -> None:
        """End the audio: the last utterance is final. Audio appended later begins a new utterance."""

        def finish() -> Iterable[Event]:
            yield from self.live.feed(self._to_samples(b"", is_last=True))
            yield from self.live.finish()

        await self._compute(finish)
        await self.tell("input_audio_buffer.committed")
        self.begin()

    async def _compute(self, work: Callable[[], Iterable[Event]]) -> None:
        """Have the model's thread do some work, and tell what it finds."""
        kind = Kind(("realtime", id(self)), lambda parts: [list(part()) for part in parts], is_shared=False)
        job, begun = Job(kind, iter([work])), time.monotonic()
        self.served.worker.submit(job)
        try:
            [events] = await asyncio.wrap_future(job.future)
        finally:
            job.has_left = True
        for event in events:
            await self._tell_event(event)
        # The client waited meanwhile.
        self.heard += time.monotonic() - begun

    async def _tell_event(self, event: Event) -> None:
        item = {"item_id": f"utterance-{self.number}", "start": event.start, "end": event.end}
        if event.type == "partial":
            added, self.shown = event.text.removeprefix(self.shown), event.text
            await self.tell(f"{TRANSCRIPTION}.delta", **item, delta=added, text=event.text)
            return
        self.number, self.shown = self.number + 1, ""
        await self.tell(f"{TRANSCRIPTION}.completed", **item, transcript=event.text)

    async def tell(self, kind: str, **content: Any) -> None:
        await self.websocket.send_text(json.dumps({"type": kind, **content}, ensure_ascii=False))

    def _to_samples(self, content: bytes, *, is_last: bool) -> np.ndarray:
        samples = np.frombuffer(content, "<i2").astype(np.float32) / np.float32(32768)
        found: np.ndarray = self.resample(samples, is_last)
        return found


def read_event(text: str) -> dict[str, Any]:
    """Return a client's event. Raises ClosingError for what isn't a JSON object."""
    try:
        found = parse_json(text)
    except ValueError as error:
        raise ClosingError(
            BAD_MESSAGE, f"expected a JSON object with a type, or raw samples as bytes: {error}"
        ) from None
    if not isinstance(found, dict):
        raise ClosingError(BAD_MESSAGE, "expected a JSON object with a type, or raw samples as bytes")
    return found


def read_rate(event: dict[str, Any], model: str) -> Any:
    """Return the rate that an event asks for; None if it asks for none.

    Raises ClosingError for any other option, as it would have no effect, unless it asks for what happens anyway.
    """
    require_keys(event, (*EVENT_KEYS, "session"))
    session, rate = event.get("session"), None
    if not isinstance(session, dict):
        raise ClosingError(BAD_MESSAGE, "session.update: expected an object as session")
    harmless = HARMLESS | {(*INPUT, "transcription", "model"): (None, model)}
    for place, value in _leaves(session):
        if place == RATE:
            rate = value
        elif not any(type(value) is type(one) and value == one for one in harmless.get(place, ())):
            name = ".".join(("session", *place))[:200]
            said = (
                f"only {', '.join(map(json.dumps, harmless[place]))}"
                if place in harmless
                else "it isn't read; leave it out"
            )
            raise ClosingError(BAD_MESSAGE, f"{name}: {said}; session.{'.'.join(RATE)} can be set")
    return rate


def _leaves(value: Any, place: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield what objects within each other have, each with its place."""
    if not isinstance(value, dict):
        yield place, value
        return
    for key, inner in value.items():
        yield from _leaves(inner, (*place, key))


def require_keys(given: dict[str, Any], known: Sequence[str]) -> None:
    """Raise ClosingError for a key that isn't known."""
    if unknown := [key for key in given if key not in known]:
        raise ClosingError(BAD_MESSAGE, f"unknown field {unknown[0][:100]!r}; expected {', '.join(known)}")


def read_audio(event: dict[str, Any]) -> bytes:
    """Return the samples of an event. Raises ClosingError if they can't be read."""
    try:
        return base64.b64decode(event["audio"], validate=True)
    except (KeyError, TypeError, ValueError, binascii.Error):
        raise ClosingError(BAD_MESSAGE, "audio: expected 16-bit samples in base64") from None


async def transcribe_live(websocket: WebSocket, model: Model = None, chunk: Chunk = None) -> None:
    """Transcribe a client's audio while it comes."""
    from vaak.tasks.asr.live import LiveOptions, make_live

    server: Server = websocket.app.state.server
    try:
        served = server.choose("transcriptions", model)
        options = {"long_form": "silences", **({} if chunk is None else {"chunk": chunk})}
        transcriber = served.task.transcriber(served.opened.model, **options)
        session = Session(websocket, served, lambda: make_live(transcriber, LiveOptions()), server.limits.max_duration)
    except (ApiError, UserError) as error:
        refused = error if isinstance(error, ApiError) else ApiError(400, str(error))
        await websocket.send_denial_response(JSONResponse(refused.body, refused.status))
        return
    await websocket.accept()
    # A client may leave at any time, also while it is told something.
    with contextlib.suppress(WebSocketDisconnect):
        try:
            await session.run()
        except ClosingError as error:
            await session.tell("error", error={"type": "invalid_request_error", "message": str(error)})
            await websocket.close(error.code)
