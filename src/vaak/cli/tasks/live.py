"""``vaak transcribe --live``: transcribe standard input or a microphone, and print the text as it comes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from vaak.core.console import escape, hide, is_terminal, show
from vaak.core.errors import UserError
from vaak.engine.interrupts import in_order

if TYPE_CHECKING:
    from vaak.audio.live_audio import Block, Lost
    from vaak.tasks.asr.live import Event
    from vaak.tasks.asr.predict import Transcriber


class PartialText:
    """The settled text of an utterance, drawn below the lines of the texts before it."""

    def __init__(self) -> None:
        self.text = ""

    def __rich__(self) -> Any:
        from rich.text import Text

        return Text(escape(self.text), style="dim", overflow="fold")

    def __enter__(self) -> PartialText:
        if is_terminal():
            show(self)
        return self

    def __exit__(self, *exception: object) -> None:
        hide(self)


def listen(transcriber: Transcriber, times: dict[str, Any], *, as_json: bool) -> None:
    """Print the transcript until the audio ends or Ctrl-C; then report on standard error how much was heard.

    ``times`` are the rate of standard input and the fields of ``LiveOptions``.
    """
    from vaak.audio.live_audio import BYTES_OF_A_SAMPLE, Lost
    from vaak.tasks.asr.live import LiveOptions, make_live

    lost, number = Lost(), 0
    rate = times.pop("rate", None)
    live = make_live(transcriber, LiveOptions(**times))
    blocks = _open_source(rate, live.rate, lost)
    # A second Ctrl-C leaves at once.
    with in_order(), PartialText() as partial:
        with contextlib.suppress(KeyboardInterrupt):
            for samples, is_behind in blocks:
                for event in live.feed(samples, is_behind=is_behind):
                    number += event.type == "final"
                    _print_event(event, partial, as_json=as_json)
        for event in live.finish():
            number += event.type == "final"
            _print_event(event, partial, as_json=as_json)
    print(f"{live.heard:.1f} s heard, utterances: {number:,}, found by {live.finds_speech_by}", file=sys.stderr)
    if lost.num_bytes:
        cut = (
            f"{lost.num_bytes} byte at the end is less than a {BYTES_OF_A_SAMPLE}-byte sample: is it raw 16-bit audio?"
        )
        print(f"standard input: {cut}", file=sys.stderr)
    if lost.seconds:
        print(f"the microphone gave {lost.seconds:.1f} s that were lost: the model is too slow here", file=sys.stderr)


def _open_source(rate: int | None, wanted_rate: int, lost: Lost) -> Iterator[Block]:
    from vaak.audio.live_audio import hear_microphone, hear_stream

    if sys.stdin is None:
        raise UserError("--live: standard input is closed; pipe raw samples to it")
    if not sys.stdin.isatty():
        print(f"standard input: raw 16-bit mono samples, {rate or wanted_rate:,} in a second", file=sys.stderr)
        stream: Any = sys.stdin.buffer
        return hear_stream(stream.raw, rate or wanted_rate, wanted_rate, lost)
    if rate is not None:
        raise UserError("--rate is of raw samples on standard input, which is a terminal; the microphone needs none")
    print("listening to the microphone; Ctrl-C ends", file=sys.stderr)
    return hear_microphone(wanted_rate, lost)


def _print_event(event: Event, partial: PartialText, *, as_json: bool) -> None:
    is_final = event.type == "final"
    partial.text = "" if is_final else event.text
    if as_json:
        line = event._asdict()
        segments = [one.to_json() for one in line.pop("segments")]
        print(json.dumps(line | ({"segments": segments} if is_final else {}), ensure_ascii=False), flush=True)
    elif is_final and event.text:
        print(event.text, flush=True)
