"""Texts with times: subtitles (SRT, WebVTT) and annotations of ELAN (EAF), as segments in seconds.

SRT   a number, ``00:00:01,000 --> 00:00:02,500``, lines of text; blank lines between
VTT   ``WEBVTT``, the same with dots; ``<v Ann>`` is a speaker; NOTE, STYLE and REGION are passed over
      a line of YouTube's captions that repeats the one before it is passed over (``<00:00:01.200>`` is in such files)
TXT   of Audacity: start, end and text of a label, with tabs between them
JSON  of Whisper, WhisperX, CHiME: a list of segments, or ``segments`` in an object; or an object with a ``text``
EAF   XML: time slots in milliseconds, and tiers. Tiers with their own times are read, those below others are not;
      the speaker is the tier's PARTICIPANT, or else its name

Tags (``<i>``, ``{\\an8}``) are not text. Only times, texts and speakers of tiers are needed from an EAF, so it
takes no further package such as pympi.
Sources: W3C 2019, "WebVTT: The Web Video Text Tracks Format"; Max Planck Institute for Psycholinguistics, "EAF 3.0".
"""

from __future__ import annotations

import html
import json
import re
import xml.etree.ElementTree
from collections.abc import Iterator
from typing import Any

from vaak.core.errors import DataError
from vaak.core.storage.text_lines import split_lines

Segments = list[dict[str, Any]]
"""Each with ``start`` and ``end`` in seconds, ``text``, ``speaker`` (which may be None) and ``where`` it is.

One whose times can't be read has None for them, and a ``problem``.
"""
_TIME = r"(?:(\d+):)?(\d{1,2}):(\d{1,2})[.,](\d{1,3})"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}(?:\s|$)")
_WITHIN = re.compile(rf"<{_TIME}>")
_CLOCK = re.compile(r"(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_DECIMAL = re.compile(r"\d+[.,]\d+")
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_TAG = re.compile(r"</?(?:[a-z]+[^<>]*|\d[\d:.]*)>|\{\\[^}]*\}", re.IGNORECASE)


def read_subtitles(text: str, where: str) -> Segments:
    r"""Return the cues of SRT or WebVTT.

    >>> read_subtitles("1\n00:00:01,500 --> 00:00:02,000\n<i>so</i>\nit is\n", "a.srt")[0]["text"]
    'so it is'
    """
    found: Segments = []
    lines = split_lines(text)
    # Automatic captions roll: each cue repeats the last line of the one before, above its own. Times within lines give
    # them away.
    is_rolling, before = _WITHIN.search(text) is not None, ""
    number = 0
    while number < len(lines):
        line, number = lines[number], number + 1
        if "-->" not in line:
            continue
        place, said = f"{where}:{number}", []
        while number < len(lines) and lines[number].strip():
            said.append(lines[number])
            number += 1
        if is_rolling:
            said, before = (
                [one for one in said if _plain(one) != before],
                next(filter(None, map(_plain, reversed(said))), before),
            )
        content = " ".join(said)
        voice = _VOICE.search(content)
        spoken = _plain(content)
        if spoken:
            speaker = voice[1].strip() if voice else None
            found.append({**_times_in(line), "text": spoken, "speaker": speaker, "where": place})
    return found


def _plain(line: str) -> str:
    """Return a line of a subtitle without tags."""
    return " ".join(html.unescape(_TAG.sub("", line)).split())


def read_labels_of_audacity(text: str, where: str) -> Segments | None:
    r"""Return the labels that a text of Audacity has, where all of its lines are such.

    >>> read_labels_of_audacity("0.5\t1.25\tso it is\n", "a.txt")[0]["end"], read_labels_of_audacity("so", "a.txt")
    (1.25, None)
    """
    rows = [
        (number, line.split("\t", 2))
        for number, line in enumerate(split_lines(text), 1)
        # The frequencies of a label.
        if line.strip() and not line.startswith("\\\t")
    ]
    if not rows or not all(len(cells) == 3 and all(map(_DECIMAL.fullmatch, cells[:2])) for _, cells in rows):
        return None
    timed = ((number, *(float(one.replace(",", ".")) for one in cells[:2]), cells[2].strip()) for number, cells in rows)
    return [
        {"start": start, "end": end, "text": said, "speaker": None, "where": f"{where}:{number}"}
        for number, start, end, said in timed
        if said
    ]


_KEYS = {
    "start": ("start", "start_time", "begin", "begin_time", "offset"),
    "end": ("end", "end_time", "stop"),
    "text": ("text", "words", "transcript", "transcription", "sentence", "normalized_text"),
    "speaker": ("speaker", "speaker_id"),
}


def read_json(content: bytes, where: str) -> dict[str, Any]:
    """Return the ``segments`` that JSON has, or its ``text`` and speaker; nothing if it has neither.

    Raises DataError for what isn't JSON.

    >>> read_json(b'[{"start": 0.5, "end": 1, "words": "so"}]', "a.json")["segments"][0]["text"]
    'so'
    """
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: this is not JSON: {error}") from error
    # Whisper and others write an object with segments; some tools only the list.
    rows = value.get("segments") if isinstance(value, dict) else value
    if isinstance(rows, list) and all(isinstance(row, dict) for row in rows):
        said = [_segment(row, f"{where}: entry {number}") for number, row in enumerate(rows)]
        return {"segments": [one for one in said if one["text"]]}
    text = _value_in(value, "text") if isinstance(value, dict) else None
    if not isinstance(text, str):
        return {}
    speaker = _value_in(value, "speaker")
    return {"text": " ".join(text.split()), **({"speaker": str(speaker)} if speaker is not None else {})}


def _value_in(row: dict[str, Any], role: str) -> Any:
    return next((row[key] for key in _KEYS[role] if key in row), None)


def _segment(row: dict[str, Any], where: str) -> dict[str, Any]:
    text, speaker = _value_in(row, "text"), _value_in(row, "speaker")
    start, end = (_json_time(_value_in(row, role)) for role in ("start", "end"))
    problem = {} if start is not None and end is not None else {"problem": "its start and end aren't times"}
    said = " ".join(text.split()) if isinstance(text, str) else ""
    return {"start": start, "end": end, "text": said, "speaker": speaker and str(speaker), "where": where, **problem}


def _json_time(value: Any) -> float | None:
    """Seconds, as a number or in text, or ``0:00:03.00``."""
    if isinstance(value, str) and (times := _CLOCK.fullmatch(value.strip())):
        return int(times[1] or 0) * 3600 + int(times[2]) * 60 + float(times[3])
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None


def _times_in(line: str) -> dict[str, Any]:
    times = _TIMES.match(line)
    if times is None:
        return {"start": None, "end": None, "problem": f"{line.strip()!r} is not start --> end of a subtitle"}
    return {"start": _seconds(times.groups()[:4]), "end": _seconds(times.groups()[4:])}


def _seconds(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(f"{seconds}.{fraction}")


def read_eaf(content: bytes, where: str) -> Segments:
    """Return the annotations of ELAN. Raises DataError for a file that isn't an EAF, or has entities."""
    if b"<!ENTITY" in content or b"\0" in content:
        # \0: UTF-16, in which the first would not be seen.
        raise DataError(f"{where}: XML that defines entities, or isn't UTF-8, is refused")
    try:
        root = xml.etree.ElementTree.fromstring(content)
    except (xml.etree.ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{where}: this is not XML, or it is damaged: {error}") from error
    if root.tag != "ANNOTATION_DOCUMENT":
        raise DataError(f"{where}: this is not an annotation of ELAN, but {root.tag!r}")
    slots = {one.get("TIME_SLOT_ID"): one.get("TIME_VALUE") for one in root.iter("TIME_SLOT")}
    found = [one for tier in root.iter("TIER") for one in _read_tier(tier, slots, where)]
    return sorted(found, key=lambda one: (one["start"] or 0.0, one["end"] or 0.0))


def _read_tier(
    tier: xml.etree.ElementTree.Element, slots: dict[str | None, str | None], where: str
) -> Iterator[dict[str, Any]]:
    # A tier with a parent refines its annotations (words of a sentence, a translation): reading both would count speech
    # twice.
    if tier.get("PARENT_REF"):
        return
    name = tier.get("TIER_ID") or ""
    for one in tier.iter("ALIGNABLE_ANNOTATION"):
        place = f"{where}, tier {name}, {one.get('ANNOTATION_ID')}"
        times = [slots.get(one.get(key)) for key in ("TIME_SLOT_REF1", "TIME_SLOT_REF2")]
        # Milliseconds as digits; the limit keeps a damaged number from becoming an endless duration.
        timed = all(time is not None and time.isascii() and time.isdigit() and len(time) < 15 for time in times)
        text = " ".join((one.findtext("ANNOTATION_VALUE") or "").split())
        if text:
            start, end = (int(str(time)) / 1000 if timed else None for time in times)
            problem = {} if timed else {"problem": "it has no time; give it one in ELAN"}
            about = {"text": text, "speaker": tier.get("PARTICIPANT") or name, "where": place}
            yield {"start": start, "end": end, **about, **problem}
