"""What the page shows of results, as HTML in which all that comes from models and users is escaped."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vaak.report.html import Html, data_table, element, to_html

if TYPE_CHECKING:
    from vaak.tasks.asr.transcripts import Segment

NUM_COLOURS = 6
MOST_BARS = 8
STYLE = """
.vaak h3 { margin: 0 0 .4em; font-size: 1em; overflow-wrap: anywhere; }
.vaak .text { font-size: 1.15em; line-height: 1.7; white-space: pre-wrap; overflow-wrap: anywhere; }
.vaak .prompt { opacity: .6; }
.vaak .wrong { border-left: 4px solid #d33; padding: .3em .7em; overflow-wrap: anywhere; }
.vaak .note { opacity: .75; font-size: .9em; }
.vaak .word { border-radius: 3px; padding: 0 2px; background: rgba(240, 130, 0, calc((1 - var(--sure)) * .8)); }
.vaak .scroll { overflow-x: auto; }
.vaak table { border-collapse: collapse; font-size: .9em; width: auto; }
.vaak td, .vaak th { padding: .2em .6em; text-align: left; border: 1px solid rgba(128, 128, 128, .3); }
.vaak caption { display: none; }
.vaak summary { cursor: pointer; padding: .3em 0; }
.vaak a { margin-right: 1em; text-decoration: underline; }
.vaak audio, .vaak img { width: 100%; margin: .4em 0; }
.vaak img { background: white; height: auto; max-width: 48em; }
.vaak .bar { display: grid; grid-template-columns: minmax(5em, 30%) 1fr 4.5em; gap: .6em; align-items: center; }
.vaak .bar span { overflow-wrap: anywhere; }
.vaak .bar i { display: block; height: .9em; border-radius: 3px; background: #4477aa; min-width: 1px; }
.vaak .lane { display: grid; grid-template-columns: 6.5em 1fr; gap: .6em; align-items: center; margin: .25em 0; }
.vaak .lane div { position: relative; height: 1.3em; background: rgba(128, 128, 128, .15); border-radius: 3px; }
.vaak .lane i { position: absolute; top: 0; bottom: 0; border-radius: 2px; min-width: 1px; }
.vaak .c0 { background: #4477aa; } .vaak .c1 { background: #cc6677; } .vaak .c2 { background: #228833; }
.vaak .c3 { background: #aa7700; } .vaak .c4 { background: #aa3377; } .vaak .c5 { background: #55aacc; }
.vaak pre { white-space: pre-wrap; overflow-wrap: anywhere; }
"""


def frame(name: str, *parts: object) -> Html:
    """Return the output of one model under its name."""
    return element("div", element("h3", name), *parts, css="vaak")


def wrong(message: str) -> Html:
    """Return an error of the user, in one line."""
    return element("p", " ".join(message.split()), css="wrong", role="alert")


def note(message: str) -> Html:
    """Return a remark on a result."""
    return element("p", message, css="note")


def plain_text(text: str, prompt: str = "") -> Html:
    """Return a text, after its prompt."""
    before = [element("span", prompt, css="prompt")] if prompt else []
    return element("p", *before, text, css="text")


def coloured_words(segments: Sequence[Segment]) -> Html:
    """Return a transcript, in which a word is the more orange the less probable it is; pointed at, it has its times.

    >>> from vaak.audio.segments import Interval
    >>> from vaak.tasks.asr.transcripts import Segment
    >>> str(coloured_words([Segment(0, 1, "a", (Interval(0, 1, "<b>"),), None, (0.25,))]))[16:]
    '<span class="word" title="0.00–1.00 s, 25 %" style="--sure:0.25">&lt;b&gt;</span></p>'
    """
    parts: list[object] = []
    for number, one in enumerate(one for one in segments if one.text):
        parts += [" "] * (number > 0)
        if not one.words:
            parts.append(one.text)
            continue
        for place, word in enumerate(one.words):
            sure = one.probabilities[place] if place < len(one.probabilities) else 1.0
            title = f"{word.start:.2f}–{word.end:.2f} s, {100 * sure:.0f} %"
            shown = element("span", word.text, css="word", title=title, style=f"--sure:{sure:.2f}")
            parts += [" "] * (place > 0) + [shown]
    return element("p", *parts, css="text")


def draw_time_table(rows: Iterable[tuple[float, float, str]], name: str, title: str) -> Html:
    """Return a table, folded up under its title: the start and the end of each, and what it is, called ``name``."""
    written = [(f"{start:.2f}", f"{end:.2f}", text) for start, end, text in rows]
    table = data_table([("from, s", "to, s", name), *written], title, folded=len(written))
    return element("details", element("summary", title), table)


def link_file(name: str, content: str, title: str) -> Html:
    """Return a link under which a text is saved as a file; the link itself has it."""
    data = base64.b64encode(content.encode()).decode()
    return Html(f'<a download="{to_html(name)}" href="data:text/plain;base64,{data}">{title}</a>')


def player(wav: bytes) -> Html:
    """Return what plays a WAV file."""
    data = base64.b64encode(wav).decode()
    return Html(f'<audio controls src="data:audio/wav;base64,{data}"></audio>')


def picture(png: bytes, about: str) -> Html:
    """Return a PNG file; ``about`` says what it shows."""
    data = base64.b64encode(png).decode()
    return Html(f'<img src="data:image/png;base64,{data}" alt="{to_html(about)}">')


def bars(probabilities: Mapping[str, float], caption: str = "") -> Html:
    """Return a bar for each label, the most probable first, and the number of those that are left out."""
    ordered = sorted(probabilities.items(), key=lambda one: -one[1])
    rows = [
        element(
            "div",
            element("span", label),
            element("i", style=f"width:{100 * value:.1f}%"),
            element("span", f"{100 * value:.1f} %"),
            css="bar",
        )
        for label, value in ordered[:MOST_BARS]
    ]
    rest = len(ordered) - MOST_BARS
    more = [note(f"and {rest} more labels, each of at most {100 * ordered[MOST_BARS][1]:.1f} %")] if rest > 0 else []
    return element("div", *([element("p", caption)] if caption else []), *rows, *more)


def lanes(segments: Iterable[Sequence[Any]], duration: float) -> Html:
    """Return who speaks when: a lane for each speaker; segments have start, end and speaker."""
    of_speaker: dict[str, list[tuple[float, float]]] = {}
    for start, end, speaker in (one[:3] for one in segments):
        of_speaker.setdefault(str(speaker), []).append((start, end))
    whole = max(duration, 1e-3)
    rows = []
    for number, (speaker, spans) in enumerate(of_speaker.items()):
        pieces = [
            element(
                "i",
                css=f"c{number % NUM_COLOURS}",
                style=f"left:{100 * start / whole:.2f}%;width:{100 * (end - start) / whole:.2f}%",
            )
            for start, end in spans
        ]
        spoken = sum(end - start for start, end in spans)
        name = element("span", f"{speaker}, {spoken:.1f} s")
        rows.append(element("div", name, element("div", *pieces), css="lane"))
    return element("div", *rows) if rows else note("nobody speaks in it")


def as_json(value: Any) -> Html:
    """Return a value as indented JSON."""
    return element("pre", json.dumps(value, indent=2, ensure_ascii=False))
