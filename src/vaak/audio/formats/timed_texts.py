"""Texts with times: subtitles (SRT, WebVTT) and annotations of ELAN (EAF), as segments in seconds.

SRT   a number, ``00:00:01,000 --> 00:00:02,500``, lines of text; blank lines between
VTT   ``WEBVTT``, the same with dots; ``<v Ann>`` is a speaker; NOTE, STYLE and REGION are passed over
EAF   XML: time slots in milliseconds, and tiers. Tiers with times of their own are read, those below others are not;
      the speaker is the tier's PARTICIPANT, or else its name

Tags (``<i>``, ``{\\an8}``) are no text. Of an EAF only times, texts and speakers of tiers are needed, so there is no
further package for it, such as pympi.
Sources: W3C 2019, "WebVTT: The Web Video Text Tracks Format"; Max Planck Institute for Psycholinguistics, "EAF 3.0".
"""

from __future__ import annotations

import html
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
_VOICE = re.compile(r"<v(?:\.[^\s>]*)?\s+([^>]+)>")
_TAG = re.compile(r"</?(?:[a-z]+[^<>]*|\d[\d:.]*)>|\{\\[^}]*\}", re.IGNORECASE)


def read_subtitles(text: str, where: str) -> Segments:
    r"""Return the cues of SRT or WebVTT.

    >>> read_subtitles("1\n00:00:01,500 --> 00:00:02,000\n<i>so</i>\nit is\n", "a.srt")[0]["text"]
    'so it is'
    """
    found: Segments = []
    lines = split_lines(text)
    number = 0
    while number < len(lines):
        line, number = lines[number], number + 1
        if "-->" not in line:
            continue
        place, said = f"{where}:{number}", []
        while number < len(lines) and lines[number].strip():
            said.append(lines[number])
            number += 1
        content = " ".join(said)
        voice = _VOICE.search(content)
        spoken = " ".join(html.unescape(_TAG.sub("", content)).split())
        if spoken:
            speaker = voice[1].strip() if voice else None
            found.append({**_times_in(line), "text": spoken, "speaker": speaker, "where": place})
    return found


def _times_in(line: str) -> dict[str, Any]:
    times = _TIMES.match(line)
    if times is None:
        return {"start": None, "end": None, "problem": f"{line.strip()!r} is no start --> end of a subtitle"}
    return {"start": _seconds(times.groups()[:4]), "end": _seconds(times.groups()[4:])}


def _seconds(parts: tuple[str | None, ...]) -> float:
    hours, minutes, seconds, fraction = parts
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + float(f"{seconds}.{fraction}")


def read_eaf(content: bytes, where: str) -> Segments:
    """Return the annotations of ELAN. Raises DataError for what is no EAF, or has entities."""
    if b"<!ENTITY" in content or b"\0" in content:  # \0: UTF-16, in which the first would not be seen
        raise DataError(f"{where}: XML that defines entities, or isn't UTF-8, is refused")
    try:
        root = xml.etree.ElementTree.fromstring(content)
    except (xml.etree.ElementTree.ParseError, ValueError) as error:
        raise DataError(f"{where}: this is not XML, or it is damaged: {error}") from error
    if root.tag != "ANNOTATION_DOCUMENT":
        raise DataError(f"{where}: this is no annotation of ELAN, but {root.tag!r}")
    slots = {one.get("TIME_SLOT_ID"): one.get("TIME_VALUE") for one in root.iter("TIME_SLOT")}
    found = [one for tier in root.iter("TIER") for one in _annotations_of(tier, slots, where)]
    return sorted(found, key=lambda one: (one["start"] or 0.0, one["end"] or 0.0))


def _annotations_of(
    tier: xml.etree.ElementTree.Element, slots: dict[str | None, str | None], where: str
) -> Iterator[dict[str, Any]]:
    if tier.get("PARENT_REF"):
        return
    name = tier.get("TIER_ID") or ""
    for one in tier.iter("ALIGNABLE_ANNOTATION"):
        place = f"{where}, tier {name}, {one.get('ANNOTATION_ID')}"
        times = [slots.get(one.get(key)) for key in ("TIME_SLOT_REF1", "TIME_SLOT_REF2")]
        timed = all(time is not None and time.isascii() and time.isdigit() and len(time) < 15 for time in times)
        text = " ".join((one.findtext("ANNOTATION_VALUE") or "").split())
        if text:
            start, end = (int(str(time)) / 1000 if timed else None for time in times)
            problem = {} if timed else {"problem": "it has no time; give it one in ELAN"}
            about = {"text": text, "speaker": tier.get("PARTICIPANT") or name, "where": place}
            yield {"start": start, "end": end, **about, **problem}
