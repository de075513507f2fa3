"""``/predict`` for any task; ``/v1/classify``, ``/v1/translate`` and ``/v1/audio/speech``, of texts."""

from __future__ import annotations

import base64
import io
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from vaak.audio.audio_file import SpeechFile, speech_file
from vaak.core.errors import UserError
from vaak.runs.use import reads_files, to_json
from vaak.serve.batching import Job, Kind
from vaak.serve.errors import OFFER_CUT, TOO_LONG, ApiError
from vaak.serve.forms import ClassifyRequest, EmbeddingsRequest, PredictRequest, SpeechRequest, TranslateRequest
from vaak.serve.json_bodies import read_form
from vaak.serve.models import Served, Server, compute, naming_fields, stream
from vaak.serve.prompts import require_length
from vaak.serve.speakers import predict_files_job
from vaak.serve.uploads import is_multipart, recordings, require_once

if TYPE_CHECKING:
    from vaak.tasks.batches import Embedded
    from vaak.tasks.tts.predict import Sentence, Speaker, SpokenText


async def predict(request: Request) -> Response:
    """Return what vaak predict --json prints, for texts (JSON), or for recordings (multipart/form-data)."""
    server: Server = request.app.state.server
    if is_multipart(request):
        async with request.form(max_files=server.limits.max_inputs) as form:
            return await _predict_files(request, server, form)
    asked = await read_form(request, PredictRequest)
    served = server.choose("predict", asked.model)
    if reads_files(served.task):
        message = f"{served.name} reads recordings: send them as multipart/form-data, in file; no path or URL is opened"
        raise ApiError(400, message, param="inputs")
    # A user's own task may read something else.
    if type(served.task).__module__.startswith("vaak.") and not all(isinstance(one, str) for one in asked.inputs):
        raise ApiError(400, f"inputs: {served.name} reads texts; each input has to be a string", param="inputs")
    require_length(server, [one if isinstance(one, str) else "" for one in asked.inputs], "inputs")
    kind = Kind(
        ("predict", served.name),
        served.predict,
        lambda one: float(len(one)) if isinstance(one, str) else 1.0,
    )
    with naming_fields("inputs"):
        found = await compute(request, served, Job(kind, iter(asked.inputs)))
    return JSONResponse({"model": served.name, "predictions": [to_json(one) for one in found]})


async def _predict_files(request: Request, server: Server, form: Any) -> Response:
    files = form.getlist("file")
    if unknown := set(form) - {"file", "model"}:
        raise ApiError(400, f"unknown field {min(unknown)[:100]!r}; expected file and model", param="file")
    require_once(form, ("model",))
    if not files:
        raise ApiError(400, "no recording was sent: put it into the field file", param="file")
    if not all(isinstance(one, UploadFile) for one in files):
        raise ApiError(400, "file: expected a file: its part of the form has no filename", param="file")
    name = form.get("model")
    served = server.choose("predict", name if isinstance(name, str) else None)
    if not reads_files(served.task):
        raise ApiError(400, f"{served.name} reads no recordings: send its inputs as JSON", param="file")
    async with recordings(server, files) as paths:
        [found] = await compute(request, served, predict_files_job(served, paths))
    return JSONResponse({"model": served.name, "predictions": [to_json(one) for one in found]})


async def classify(request: Request, form: ClassifyRequest) -> Response:
    """Label a text, or each of several, with all probabilities, as vaak classify --json does."""
    server: Server = request.app.state.server
    served = server.choose("classify", form.model)
    texts = [form.input] if isinstance(form.input, str) else form.input
    require_length(server, texts, "input")
    kind = Kind(("predict", served.name), served.predict, len)
    found = await compute(request, served, Job(kind, iter(texts)))
    # Not asdict, which copies each probability.
    data = [{"index": number, **vars(one)} for number, one in enumerate(found)]
    return JSONResponse({"object": "list", "model": served.name, "data": data})


async def embed(request: Request, form: EmbeddingsRequest) -> Response:
    """Return the embedding of a text, or of each of several, as vaak predict --embeddings does."""
    server: Server = request.app.state.server
    served = server.choose("embeddings", form.model)
    texts = [form.input] if isinstance(form.input, str) else form.input
    require_length(server, texts, "input")
    if not texts or not all(one.strip() for one in texts):
        raise ApiError(400, "input: expected a text or a list of texts, not empty", param="input")
    kind = Kind(("embed", served.name), partial(served.task.embed_batch, served.opened.model), len)
    found: list[Embedded] = await compute(request, served, Job(kind, iter(texts)))
    width = len(found[0].vector)
    if form.dimensions not in (None, width):
        message = f"dimensions: this model's embeddings have {width}, and aren't made to be cut; leave it out"
        raise ApiError(400, message, param="dimensions")
    write = to_base64 if form.encoding_format == "base64" else list
    data = [
        {"object": "embedding", "index": number, "embedding": write(one.vector)} for number, one in enumerate(found)
    ]
    read = sum(one.num_tokens for one in found)
    usage, cut = {"prompt_tokens": read, "total_tokens": read}, sum(one.is_cut for one in found)
    if cut and form.truncation != "auto":
        message = f"input: texts longer than the model's maximum context length: {cut} of {len(texts)}; {OFFER_CUT}"
        raise ApiError(400, message, param="input", code=TOO_LONG)
    warnings = {"warnings": [f"texts longer than the model reads: {cut}; only their beginning was read"]} if cut else {}
    return JSONResponse({"object": "list", "model": served.name, "data": data, "usage": usage, **warnings})


def to_base64(vector: Sequence[float]) -> str:
    """Return numbers as OpenAI's clients read them: 32-bit little-endian floats in base64.

    >>> to_base64([1.0])
    'AACAPw=='
    """
    return base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode()


async def translate(request: Request, form: TranslateRequest) -> Response:
    """Translate a text, or each of several, as vaak translate --json does."""
    server: Server = request.app.state.server
    served = server.choose("translate", form.model)
    texts = [form.input] if isinstance(form.input, str) else form.input
    require_length(server, texts, "input")
    given = {name: value for name, value in form if name not in ("model", "input") and value is not None}
    if (form.max_new_tokens or 0) > server.limits.max_tokens:
        message = f"max_new_tokens: at most {server.limits.max_tokens} are written (--max-tokens)"
        raise ApiError(400, message, param="max_new_tokens")
    with naming_fields():
        job = translate_job(served, texts, **given)
    with naming_fields("input"):
        found = await compute(request, served, job)
    data = [
        {
            "index": number,
            "source": one.source,
            "text": one.text,
            "translations": [{"text": best.text, "score": best.score, "ended": best.ended} for best in one.candidates],
        }
        for number, one in enumerate(found)
    ]
    return JSONResponse({"object": "list", "model": served.name, "data": data})


def translate_job(served: Served, texts: Sequence[str], **given: Any) -> Job:
    """Return the job of translating texts, with options over the run's. Raises UserError for a wrong one."""
    settings = served.task.decoding(**given)
    translator = served.task.translator(served.opened.model)
    kind = Kind(
        ("translate", served.name, settings),
        lambda some: list(translator.translate(some, settings, lambda _: "the text")),
        len,
    )
    return Job(kind, iter(texts))


MEDIA = {"wav": "audio/wav", "flac": "audio/flac", "mp3": "audio/mpeg", "opus": "audio/ogg", "pcm": "audio/pcm"}
CODINGS = {"mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS")}
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)


@dataclass(frozen=True)
class Speaking:
    """A text to speak, with its options."""

    served: Served
    speaker: Speaker
    text: SpokenText
    options: tuple[tuple[str, Any], ...]

    def job(self, tell: Any = lambda sentence: None) -> Job:
        kind = Kind(
            ("speak", self.served.name, self.options), self.speaker.speak_parts, lambda part: len(part.processed.ids)
        )
        return Job(kind, self.speaker.split_parts(self.text), tell)


async def speak(request: Request, form: SpeechRequest) -> Response:
    """Speak a text, as vaak speak does; pcm is sent sentence by sentence, all else whole."""
    from vaak.tasks.tts.predict import SpokenText

    server: Server = request.app.state.server
    served = server.choose("speech", form.model)
    require_length(server, [form.input], "input", server.limits.max_spoken)
    given = {"speaker": form.voice, "speed": form.speed}
    given = {name: value for name, value in given.items() if value is not None}
    with naming_fields("voice" if form.voice else None):
        speaker = served.task.speaker(served.opened.model, **given)
    text = SpokenText(form.input, "input")
    speaking = Speaking(served, speaker, text, tuple(sorted(given.items())))
    rate = {"Vaak-Sampling-Rate": str(speaker.sampling_rate)}
    if form.response_format == "opus" and speaker.sampling_rate not in OPUS_RATES:
        message = f"opus has no {speaker.sampling_rate} Hz, which this voice has; ask for wav, flac, mp3 or pcm"
        raise ApiError(400, message, param="response_format")
    if form.response_format == "pcm":
        pieces = await _first_then_rest(stream(served, speaking.job), speaker)
        return StreamingResponse(pieces, media_type=MEDIA["pcm"], headers=rate)
    with naming_fields("input"):
        sentences = await compute(request, served, speaking.job())
    missing = [one.message for one in text.unspeakable]
    headers = rate | ({"Vaak-Not-Spoken": str(len(missing))} if missing else {})
    content = encode(sentences, speaker, form.response_format)
    return Response(content, media_type=MEDIA[form.response_format], headers=headers)


async def _first_then_rest(sentences: AsyncIterator[Sentence], speaker: Speaker) -> AsyncIterator[bytes]:
    """Return the samples of sentences as 16-bit PCM; the first is waited for, so that an error is still a status."""
    pieces: list[bytes] = []
    sink = SimpleNamespace(write=lambda samples: pieces.append(to_pcm(samples)))
    file = SpeechFile(sink, speaker.sampling_rate, speaker.options.pause)
    try:
        with naming_fields("input"):
            first = await anext(sentences)
    except StopAsyncIteration:
        raise ApiError(400, "there is nothing to speak in it", param="input") from None

    async def rest() -> AsyncIterator[bytes]:
        file.append(first.samples, first.silence)
        yield b"".join(pieces)
        async for one in sentences:
            pieces.clear()
            file.append(one.samples, one.silence)
            yield b"".join(pieces)

    return rest()


def to_pcm(samples: np.ndarray) -> bytes:
    """Return samples within ±1 as 16-bit little-endian PCM, as files have them."""
    import soundfile

    sink = io.BytesIO()
    with soundfile.SoundFile(sink, "w", 16_000, 1, "PCM_16", endian="LITTLE", format="RAW") as file:
        file.write(samples)
    return sink.getvalue()


def encode(sentences: list[Sentence], speaker: Speaker, format: str) -> bytes:
    """Return a file of sentences; wav and flac are those that vaak speak writes. Raises ApiError for no format."""
    import soundfile

    if format not in CODINGS:
        with tempfile.TemporaryDirectory(prefix="vaak-speech-") as folder:
            path = Path(folder) / f"speech.{format}"
            with speech_file(path, speaker.sampling_rate, speaker.options.pause) as file:
                for one in sentences:
                    file.append(one.samples, one.silence)
            return path.read_bytes()
    container, coding = CODINGS[format]
    sink = io.BytesIO()
    try:
        with soundfile.SoundFile(sink, "w", speaker.sampling_rate, 1, coding, format=container) as made:
            whole = SpeechFile(made, speaker.sampling_rate, speaker.options.pause)
            for one in sentences:
                whole.append(one.samples, one.silence)
    except (ValueError, soundfile.LibsndfileError) as error:
        message = f"{format} can't be written at {speaker.sampling_rate} Hz here: {error}; ask for wav or flac"
        raise ApiError(400, message, param="response_format") from UserError(str(error))
    return sink.getvalue()
