"""Marks of how to speak a text: ``[[phonemes]]`` in place of a word, and a subset of SSML.

    He [[h ə ˈl oʊ]].                                             ARPAbet (HH AH0 L OW1) or IPA, apart or together
    <speak>It is <say-as interpret-as="ordinal">2</say-as>.<break time="500ms"/>
    <prosody rate="80%" pitch="+2st" volume="-6dB">Slowly.</prosody></speak>

A text becomes spans, each spoken in one way. What has a given pronunciation, there or in a lexicon, is a character of
Unicode's private use area in them, a separate word, so that sentences and numbers around it are read as usual.

Source: Burnett et al. 2010, "Speech Synthesis Markup Language (SSML) Version 1.1", sections 3.1 to 3.2. Differs:
``rate="+20%"`` is a change, as in version 1.0; an unknown tag or attribute and a document type are errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple
from xml.parsers import expat

from vaak.core.errors import DataError
from vaak.text.speech import languages
from vaak.text.speech.dates_and_times import spoken_date
from vaak.text.speech.english import shown
from vaak.text.speech.phonemes.pronunciation import looked_up
from vaak.text.speech.words import DIGITS, decimal, digits, ordinal

FIRST_MARK, LAST_MARK = 0xE000, 0xF8FF
"""Unicode's private use area, of which each pronunciation of a text takes one character."""
MARKS = frozenset(map(chr, range(FIRST_MARK, LAST_MARK + 1)))
LONGEST_BREAK = 60.0
_INLINE = re.compile(r"(?<![\w\]\)])\[\[(?!\s*[\d.,:;+*/=<>-][\d\s.,:;+*/=<>-]*\]\])(.*?)\]\]", re.DOTALL)
"""Not an index (x[[0]]) or a list of numbers ([[1, 2]])."""
_SSML = re.compile(r"\s*<(?:speak[\s>/]|\?xml[\s?])")
_WORD = re.compile(r"[^\W\d_]+(?:['’][^\W\d_]+)*")


class Manner(NamedTuple):
    """How a span is spoken, next to the rest: how fast, semitones higher, decibels louder."""

    speed: float = 1.0
    pitch: float = 0.0
    volume: float = 0.0


USUAL_MANNER = Manner()


@dataclass
class Span:
    """A text that is spoken in one manner, after ``silence`` seconds; None: those between sentences."""

    text: str = ""
    manner: Manner = USUAL_MANNER
    silence: float | None = None


class Marks:
    """The given pronunciations of a text: a mark for each that differs."""

    def __init__(self, lexicon: Mapping[str, str] | None = None, language: str | None = None) -> None:
        """``lexicon`` has phonemes of words in lower case; texts are English, unless a ``language`` is given."""
        self._lexicon, self.language = lexicon or {}, language
        self._marks: dict[tuple[str, str], str] = {}

    @property
    def phonemes(self) -> dict[str, str]:
        """The phonemes of each mark, in ARPAbet or IPA."""
        return {mark: phonemes for (_, phonemes), mark in self._marks.items()}

    def written(self, text: str) -> str:
        """A text with what was written in place of its marks."""
        return text.translate({ord(mark): written for (written, _), mark in self._marks.items()})

    def mark(self, written: str, phonemes: str) -> str:
        """Return the mark of a pronunciation. Raises DataError for an empty one, and for one too many."""
        if not phonemes.strip():
            raise DataError("phonemes in [[…]] or ph are empty; expected such as [[HH AH0 L OW1]]")
        if len(self._marks) >= len(MARKS):
            raise DataError(f"a text has more than {len(MARKS):,} given pronunciations; divide it")
        return self._marks.setdefault((written, phonemes), chr(FIRST_MARK + len(self._marks)))

    def marked(self, text: str) -> str:
        """A text with marks in place of inline phonemes, and of words of the lexicon."""
        text = _INLINE.sub(lambda match: self.mark(match[0], match[1]), text)
        return _WORD.sub(self._look_up, text) if self._lexicon else text

    def _look_up(self, match: re.Match[str]) -> str:
        found = looked_up(match[0].lower(), self._lexicon)
        return match[0] if found is None else self.mark(match[0], " ".join(found))


def parse_spans(text: str, marks: Marks) -> list[Span]:
    """The spans of a text, which is SSML where it begins with ``<speak``; their pronunciations are added to ``marks``.

    The last is empty where the text ends with a silence. Raises DataError for what can't be read.

    >>> marks = Marks({"sql": "S IY1 K W AH0 L"})
    >>> [span] = parse_spans("SQL [[oʊ]]", marks)
    >>> list(marks.phonemes.values()), marks.written(span.text)
    (['oʊ', 'S IY1 K W AH0 L'], 'SQL [[oʊ]]')
    """
    if any(character in MARKS for character in text):
        raise DataError(f"{shown(text)}: characters of Unicode's private use can't be read; remove them")
    return _Reader(text, marks).spans if is_ssml(text) else [Span(marks.marked(text))]


def is_ssml(text: str) -> bool:
    """Return whether a text is SSML, rather than one that begins with ``<speaker>`` or another tag."""
    return _SSML.match(text) is not None


RATES = {"x-slow": 0.5, "slow": 0.75, "medium": 1.0, "default": 1.0, "fast": 1.25, "x-fast": 1.75}
PITCHES = {"x-low": -6.0, "low": -3.0, "medium": 0.0, "default": 0.0, "high": 3.0, "x-high": 6.0}
VOLUMES = {
    "silent": -math.inf,
    "x-soft": -12.0,
    "soft": -6.0,
    "medium": 0.0,
    "default": 0.0,
    "loud": 3.0,
    "x-loud": 6.0,
}
STRENGTHS = {"none": 0.0, "x-weak": 0.1, "weak": 0.25, "medium": 0.5, "strong": 0.75, "x-strong": 1.25}
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "speak": ("version", "xmlns", "xml:lang", "xmlns:xsi", "xsi:schemaLocation"),
    "p": ("xml:lang",),
    "s": ("xml:lang",),
    "break": ("time", "strength"),
    "say-as": ("interpret-as", "format", "detail"),
    "prosody": ("rate", "pitch", "volume"),
    "phoneme": ("alphabet", "ph"),
    "sub": ("alias",),
}
"""The tags that are read, with their attributes."""


MOST_OPEN = 100


class _Reader:
    """Reads SSML by expat, which expands no entities here: a document type, which defines them, is refused."""

    def __init__(self, text: str, marks: Marks) -> None:
        self.spans, self._marks = [Span()], marks
        self._open: list[tuple[str, dict[str, str], Manner]] = []
        # The text in a tag that replaces it.
        self._held = ""
        parser = expat.ParserCreate()
        # Otherwise expat hands a text over in pieces, and a pronunciation in brackets could be cut in two.
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._begin, self._end
        parser.CharacterDataHandler = self._add
        parser.StartDoctypeDeclHandler = self._refuse_doctype
        try:
            parser.Parse(text.strip(), True)
        except expat.ExpatError as error:
            raise DataError(f"SSML, line {error.lineno}: {expat.ErrorString(error.code)}") from error
        # A tag at the end opens a span that stays empty; keep it only if it is a pause.
        if len(self.spans) > 1 and not self.spans[-1].text.strip() and not self.spans[-1].silence:
            del self.spans[-1]

    def _refuse_doctype(self, *_: object) -> None:
        raise DataError("SSML: a document type (<!DOCTYPE …>) isn't read; leave it out")

    def _begin(self, tag: str, attributes: dict[str, str]) -> None:
        if tag not in ATTRIBUTES:
            raise DataError(f"SSML: unknown tag <{tag[:40]}>; expected one of {', '.join(ATTRIBUTES)}")
        if unknown := [name for name in attributes if name not in ATTRIBUTES[tag]]:
            raise DataError(
                f"SSML: <{tag}> has no attribute {unknown[0][:40]} here; expected {', '.join(ATTRIBUTES[tag])}"
            )
        if len(self._open) > MOST_OPEN:
            raise DataError(f"SSML: more than {MOST_OPEN} tags stand in each other")
        if bool(self._open) == (tag == "speak"):
            raise DataError("SSML: <speak> is the outermost tag, and stands nowhere else")
        outer = self._open[-1][2] if self._open else USUAL_MANNER
        # The text in these tags is replaced as a whole, so nothing can be inside.
        if any(one in REPLACING for one, _, _ in self._open):
            raise DataError(f"SSML: <{tag}> can't stand in <{self._open[-1][0]}>")
        self._open.append((tag, attributes, _changed(outer, attributes) if tag == "prosody" else outer))
        if tag == "prosody":
            self._start_span()
        elif tag == "break":
            self._start_span(_seconds(attributes))
        elif tag in ("p", "s"):
            self._end_sentence()

    def _end(self, tag: str) -> None:
        _, attributes, _ = self._open.pop()
        span = self.spans[-1]
        if tag == "prosody":
            self._start_span()
        elif tag in ("p", "s"):
            self._end_sentence()
        elif tag == "phoneme":
            span.text += self._marks.mark(self._held.strip(), attributes.get("ph", ""))
        # English has its own rules; other languages ask theirs.
        elif tag == "say-as" and self._marks.language is not None:
            span.text += self._marks.marked(_said_in(self._marks.language, self._held.strip(), attributes))
        elif tag in REPLACING:
            span.text += self._marks.marked(REPLACING[tag](self._held.strip(), attributes))
        self._held = ""

    def _add(self, text: str) -> None:
        if self._open[-1][0] in REPLACING:
            self._held += text
        else:
            self.spans[-1].text += self._marks.marked(text)

    def _start_span(self, silence: float | None = None) -> None:
        """Begin a span in the manner of the innermost tag, after ``silence`` more seconds if given."""
        manner, last = self._open[-1][2] if self._open else USUAL_MANNER, self.spans[-1]
        if last.text.strip():
            # within a sentence, what follows is spoken at once
            gap = None if last.text.rstrip().endswith(tuple(".?!…;")) else 0.0
            self.spans.append(Span(manner=manner, silence=gap if silence is None else silence))
        else:
            # The last span has no text yet, so it takes over the manner; breaks in a row add up, to a limit.
            last.manner, last.text = manner, ""
            if silence is not None:
                last.silence = min((last.silence or 0.0) + silence, LONGEST_BREAK)

    def _end_sentence(self) -> None:
        text = self.spans[-1].text.rstrip()
        # A paragraph or sentence without a full stop gets one, so that it is spoken as the end.
        if text and not text.endswith(tuple(".?!…;:,")):
            self.spans[-1].text = f"{text}."
        self.spans[-1].text += " "


def _seconds(attributes: dict[str, str]) -> float:
    """The silence of a break. Raises DataError for one that isn't between 0 and a minute."""
    time, strength = attributes.get("time"), attributes.get("strength", "medium")
    if time is None:
        if strength not in STRENGTHS:
            raise DataError(f"SSML: strength {strength[:40]!r}; expected one of {', '.join(STRENGTHS)}")
        return STRENGTHS[strength]
    match = re.fullmatch(r"\+?(\d{1,9}(?:\.\d{1,9})?|\.\d{1,9})(ms|s)", time.strip())
    seconds = float(match[1]) / (1000 if match[2] == "ms" else 1) if match else math.inf
    if seconds > LONGEST_BREAK:
        raise DataError(f"SSML: time {time[:40]!r}; expected such as 500ms or 2s, up to {LONGEST_BREAK:g}s")
    return seconds


def _changed(outer: Manner, attributes: dict[str, str]) -> Manner:
    """The manner within <prosody>. Raises DataError for values that can't be read or are out of range."""
    speed, pitch, volume = outer
    if "rate" in attributes:
        # Nested rates multiply, as do relative ones (+10%), while pitch and volume add up in semitones and decibels.
        speed *= _number(
            "rate", attributes["rate"], RATES, {"%": lambda x, sign: x / 100 + bool(sign), "": lambda x, sign: x}
        )
    if "pitch" in attributes:
        units = {"st": lambda x, sign: x, "%": lambda x, sign: 12 * math.log2(max(x / 100 + bool(sign), 1e-9))}
        pitch += _number("pitch", attributes["pitch"], PITCHES, units)
    if "volume" in attributes:
        volume += _number("volume", attributes["volume"], VOLUMES, {"dB": lambda x, sign: x})
    if not (0.1 <= speed <= 10 and -36 <= pitch <= 36 and volume <= 40):
        raise DataError("SSML: <prosody> is out of range: rate from 10% to 1000%, pitch within 36st, volume up to 40dB")
    return Manner(speed, pitch, volume)


def _number(name: str, value: str, named: dict[str, float], units: dict[str, Callable[[float, str], float]]) -> float:
    """The number that an attribute means: a name, or a number with its unit, given its sign."""
    if value.strip() in named:
        return named[value.strip()]
    match = re.fullmatch(r"([+-]?)(\d{1,6}(?:\.\d{1,6})?)(%|st|dB|)", value.strip())
    if match is None or match[3] not in units:
        known = ", ".join([*named, *(f"a number with {unit}" for unit in units if unit)])
        raise DataError(f"SSML: {name} {value[:40]!r}; expected one of {known}")
    return units[match[3]](float(match[1] + match[2]), match[1])


def _said_as(text: str, attributes: dict[str, str]) -> str:
    """A text as <say-as> reads it. Raises DataError where it isn't of that kind."""
    kind = attributes.get("interpret-as", "")
    number = re.fullmatch(r"([-−+]?)([\d,]*\d(?:\.\d+)?|\.\d+)", text)
    if kind in ("characters", "spell-out"):
        return " ".join(DIGITS[int(one)] if one in "0123456789" else one.upper() for one in text if one.isalnum())
    if kind in ("digits", "telephone") and any(one in "0123456789" for one in text):
        return digits(text)
    if kind == "cardinal" and number:
        return decimal(text)
    if kind == "ordinal" and number and text.replace(",", "").isdecimal():
        return ordinal(int(text.replace(",", "")[:4000]))
    if kind == "date" and (found := _date(text, attributes.get("format", "mdy"))):
        return found
    if kind not in SAY_AS_KINDS:
        raise DataError(f"SSML: interpret-as {kind[:40]!r}; expected one of {', '.join(SAY_AS_KINDS)}")
    raise DataError(f"SSML: {shown(text)} can't be read as {kind}")


def _said_in(language: str, text: str, attributes: dict[str, str]) -> str:
    """The same in a language other than English. Raises DataError where nothing here has its words."""
    kind = attributes.get("interpret-as", "")
    if kind not in (*SAY_AS_KINDS, "currency"):
        raise DataError(f"SSML: interpret-as {kind[:40]!r}; expected one of {', '.join((*SAY_AS_KINDS, 'currency'))}")
    found = languages.said_as(text, kind, language, attributes.get("format", "dmy"))
    if found is None:
        raise DataError(f"SSML: {shown(text)} can't be read as {kind} in {language}; write it in words")
    return found


SAY_AS_KINDS = ("characters", "spell-out", "cardinal", "ordinal", "digits", "telephone", "date")


def _date(text: str, order: str) -> str | None:
    """A date in figures in the words of its ``order``, such as dmy; None where it isn't one."""
    parts = re.findall(r"\d+", text)
    if sorted(order) != sorted("dmy") or re.fullmatch(r"\d{1,4}(?:[-/. ]\d{1,4}){2}", text) is None:
        return None
    found = {name: int(part) for name, part in zip(order, parts, strict=True)}
    possible = 1 <= found["m"] <= 12 and 1 <= found["d"] <= 31
    return spoken_date(found["y"], found["m"], found["d"]) if possible else None


REPLACING: dict[str, Callable[[str, dict[str, str]], str]] = {
    "say-as": _said_as,
    "sub": lambda text, attributes: attributes.get("alias", text),
    "phoneme": lambda text, attributes: text,
}
"""Tags in place of whose text something else is spoken."""
