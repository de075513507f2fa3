"""Panels of recordings and voices: transcripts, who speaks when, and spoken texts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from vaak.core.errors import UserError
from vaak.core.storage.files import hash_file
from vaak.report.html import Html, element
from vaak.serve.answers import Speaking, encode
from vaak.serve.batching import Job, Kind
from vaak.serve.demo import drawing
from vaak.serve.demo.panels import (
    Page,
    columns,
    fill_columns,
    name_outputs,
    offer_examples,
    offer_with_reference,
    require_recording,
    require_text,
    side_by_side,
    submit,
)
from vaak.serve.errors import ApiError
from vaak.serve.hearing import Listening
from vaak.serve.models import Served
from vaak.serve.speakers import predict_files_job
from vaak.serve.uploads import naming_files

if TYPE_CHECKING:
    from vaak.tasks.asr.transcripts import Segment, SpeakerTranscript, Transcript

NOT_ASKED = "not asked"


def make_recorder() -> gr.Audio:
    """Make what records from a microphone, or takes a file."""
    return gr.Audio(sources=["microphone", "upload"], type="filepath", label="Recording", editable=False, buttons=[])


def transcribe_panel(page: Page, models: Sequence[Served]) -> None:
    """A recording as text, with the times and the confidence of words, who speaks, and subtitles."""
    diarizers = {one.name: one for one in page.server.models.values() if "diarize" in one.endpoints}
    recording = make_recorder()
    with gr.Row():
        words = gr.Checkbox(True, label="Times and confidence of words")
        speakers = gr.Dropdown([NOT_ASKED, *diarizers], value=NOT_ASKED, label="Who speaks", visible=bool(diarizers))
    button = gr.Button("Transcribe", variant="primary")
    shown = columns(models)
    text = gr.Textbox(label="Transcript", info="A reference, or the model's transcript with your corrections.", lines=2)

    def run(path: str | None, with_words: bool, diarizer: str, given: str) -> Iterator[dict[Any, str]]:
        first: list[str] = []

        def show(served: Served) -> Iterator[Html]:
            file = require_recording(page, path)
            with naming_files([file]):
                found = transcribe(served, file, with_words, diarizers.get(diarizer))
            first.append(found[1])
            yield found[0]

        for changed in side_by_side(models, show):
            yield name_outputs([*shown, text], [*changed, given or next(iter(first), "")])

    button.click(run, [recording, words, speakers, text], [*shown, text], api_visibility="private")
    for event in (recording.upload, recording.clear, recording.start_recording):
        event(lambda: "", None, text, api_visibility="private")  # the text of another recording
    _keep_row(page, recording, text)
    offer_examples(page.examples(models), recording, text)


def _keep_row(page: Page, recording: gr.Audio, text: gr.Textbox) -> None:
    """Where recordings are kept: a button that adds this one with its text."""
    kept = page.kept
    if kept is None:
        gr.HTML(
            element("div", drawing.note("vaak demo --keep FOLDER collects recordings with their texts."), css="vaak")
        )
        return
    button = gr.Button("Keep this recording with this text")
    answer = gr.HTML()

    def keep(path: str | None, given: str) -> str:
        try:
            file = require_recording(page, path)
            with naming_files([file]):
                made = kept.add(file, given)
        except (UserError, ApiError) as error:
            return element("div", drawing.wrong(str(error)), css="vaak")
        name = made.path.name
        said = f"kept as {name}; vaak init asr --data {kept.folder}"
        if made.before is not None:
            said = f"{name} has this text now; it had: {made.before}" if made.before != " ".join(given.split()) else ""
            said = said or f"it is kept already, as {name}, with this text"
        return element("div", drawing.note(said), css="vaak")

    button.click(keep, [recording, text], answer, api_visibility="private")


def transcribe(served: Served, path: Path, with_words: bool, diarizer: Served | None) -> tuple[Html, str]:
    """Return a transcript for display, and its text, that of ``vaak transcribe``."""
    if diarizer is not None:
        spoken = transcribe_speakers(served, path, diarizer)
        turns = [(one.start, one.end, f"{one.speaker}: {one.text}") for one in spoken.turns]
        parts = [
            drawing.plain_text(spoken.text) if turns else drawing.note("nobody speaks in it"),
            drawing.lanes([(one.start, one.end, one.speaker) for one in spoken.turns], spoken.duration),
            *([drawing.draw_time_table(turns, "turn", "Turns")] if turns else []),
            *_subtitles(spoken, path),
        ]
        return Html("".join(parts)), " ".join(one.text for one in spoken.turns)
    found, remark = transcribe_words(served, path, with_words)
    return Html("".join(_transcript_parts(found, remark, path))), found.text


def _transcript_parts(found: Transcript, remark: str, path: Path) -> Iterator[Html]:
    if not found.text:
        yield drawing.note("no speech recognised")
        return
    yield drawing.coloured_words(found.segments)
    if remark:
        yield drawing.note(remark)
    words = [word for one in found.segments for word in one.words]
    sure = [value for one in found.segments for value in one.probabilities]
    if words and len(sure) == len(words):
        rows = [
            (word.start, word.end, f"{word.text} ({100 * value:.0f} %)")
            for word, value in zip(words, sure, strict=True)
        ]
        yield drawing.draw_time_table(rows, "word", "Words")
    rows = [(one.start, one.end, one.text) for one in found.segments if one.text]
    yield drawing.draw_time_table(rows, "segment", "Segments")
    yield from _subtitles(found, path)


def _subtitles(found: Transcript | SpeakerTranscript, path: Path) -> Iterator[Html]:
    if found.srt:
        links = (drawing.link_file(f"{path.stem}.{kind}", getattr(found, kind), kind) for kind in ("srt", "vtt"))
        yield element("p", "Subtitles: ", *links)


def transcribe_words(served: Served, path: Path, with_words: bool) -> tuple[Transcript, str]:
    """Return a transcript, where it is asked for and the model can with its words' times; and why it can't."""
    remark = ""
    options: dict[str, Any] = {}
    transcriber = served.task.transcriber(served.opened.model)
    if with_words:
        try:
            transcriber = served.task.transcriber(served.opened.model, timestamps="word")
            options = {"timestamps": "word"}
        except UserError as error:
            remark = f"without times of words: {error}"
    job, recording = Listening(served, transcriber, tuple(options.items())).job(path)
    segments = tuple(segment for some in submit(served, job) for segment in some)
    if options and any(one.text for one in segments) and not any(one.words for one in segments):
        remark = "without times of words: this model writes none"
    return _make_transcript(path, segments, recording.duration), remark


def _make_transcript(path: Path, segments: tuple[Segment, ...], duration: float) -> Transcript:
    from vaak.tasks.asr.transcripts import Transcript

    return Transcript(path.stem, segments, duration, 0.0)


def transcribe_speakers(served: Served, path: Path, diarizer: Served) -> SpeakerTranscript:
    """Return who says what, as ``vaak transcribe --diarize`` does."""
    from vaak.tasks.asr.speaker_transcripts import SpeakerTranscriber

    [[found]] = submit(diarizer, predict_files_job(diarizer, [path]))
    together = SpeakerTranscriber(
        served.task.transcriber(served.opened.model), lambda _: (found.segments, found.duration)
    )
    key = ("transcribe speakers", served.name, hash_file(path))
    kind = Kind(key, lambda paths: list(together.transcribe_files((one, one.stem) for one in paths)))
    [spoken] = submit(served, Job(kind, iter([path])))
    result: SpeakerTranscript = spoken
    return result


def diarize_panel(page: Page, models: Sequence[Served]) -> None:
    """Who speaks when in a recording, as a timeline."""
    recording = make_recorder()
    button = gr.Button("Find who speaks when", variant="primary")
    reference = gr.Textbox(label="Reference", lines=2, interactive=False, visible=False)
    shown = columns(models)

    def run(path: str | None) -> Iterator[dict[Any, str]]:
        def show(served: Served) -> Iterator[Html]:
            file = require_recording(page, path)
            with naming_files([file]):
                [[found]] = submit(served, predict_files_job(served, [file]))
            rows = [(one.start, one.end, one.speaker) for one in found.segments]
            parts = [drawing.lanes(rows, found.duration)]
            parts += [drawing.draw_time_table(rows, "speaker", "Who speaks when")] if rows else []
            if found.at_ceiling:
                parts.append(drawing.note("as many speakers as the model can tell apart: there may be more"))
            yield Html("".join(parts))

        yield from fill_columns(shown, models, show)

    button.click(run, [recording], shown, api_visibility="private")
    offer_with_reference(page, models, recording, reference)


def speak_panel(page: Page, models: Sequence[Served]) -> None:
    """A text as speech, with its spectrogram and the durations of its phones."""
    usual = [one.task.speaker(one.opened.model) for one in models]
    voices = list(dict.fromkeys(name for one in usual for name in one.speakers))
    text = gr.Textbox(label="Text", lines=3)
    with gr.Row():
        voice = gr.Dropdown(voices, value=usual[0].speakers[usual[0].number], label="Speaker")
        speed = gr.Slider(0.5, 2.0, value=1.0, step=0.05, label="Speed")
    button = gr.Button("Speak", variant="primary")
    shown = columns(models)
    examples = page.examples(models)
    recorded = gr.Audio(label="Recorded", interactive=False, visible=bool(examples), buttons=[])

    def run(given: str, speaker: str | None, faster: float) -> Iterator[dict[Any, str]]:
        def show(served: Served) -> Iterator[Html]:
            yield speak(served, require_text(page, given), speaker, faster)

        yield from fill_columns(shown, models, show)

    button.click(run, [text, voice, speed], shown, api_visibility="private")
    offer_examples(examples, text, recorded)


def speak(served: Served, given: str, voice: str | None, speed: float) -> Html:
    """Return a text as speech: a player, its spectrogram, and the durations of its phones."""
    from vaak.tasks.tts.predict import SpokenText

    usual = served.task.speaker(served.opened.model)
    options: dict[str, Any] = {} if speed == 1 else {"speed": speed}
    # Of several runs, not each may have this speaker; then it is an error that says whom the run has.
    options |= {} if voice is None or voice == usual.speakers[usual.number] else {"speaker": voice}
    speaker = served.task.speaker(served.opened.model, **options) if options else usual
    text = SpokenText(given, "the text")
    sentences = submit(served, Speaking(served, speaker, text, tuple(sorted(options.items()))).job())
    parts: list[Html] = [drawing.player(encode(sentences, speaker, "wav"))]
    parts += [drawing.note(f"not spoken: {one.message}") for one in text.unspeakable]
    for number, sentence in enumerate(sentences, 1):
        parts += _sentence_parts(number, sentence, speaker.mel.frame_shift)
    return Html("".join(parts))


def _sentence_parts(number: int, sentence: Any, frame_shift: float) -> Iterator[Html]:
    from vaak.report.audio import speech_png
    from vaak.tasks.tts.metrics import make_spectrogram

    yield drawing.picture(
        speech_png([make_spectrogram(sentence, f"sentence {number}")], frame_shift),
        f"spectrogram of sentence {number}, with its phones",
    )
    begin, rows = 0.0, list[tuple[float, float, str]]()
    for symbol, frames in zip(sentence.symbols, sentence.durations, strict=True):
        end = begin + int(frames) * frame_shift
        rows.append((begin, end, symbol))
        begin = end
    yield drawing.draw_time_table(rows, "phone", f"Phones of sentence {number}: {sentence.text}")
