"""Built-in voices: speakers synthesised by espeak-ng, each with its own sentences, with times of words and phonemes.

FOLDER/
  VOICE-FINGERPRINT/     one voice, complete or not there, so an interrupted synthesis continues with the next
    000.flac …           its sentences, 16 bits
    sentences.jsonl      one line per sentence: text, number of samples, times of words and phonemes

A voice's fingerprint is that of the voice, of its sentences and of the synthesiser: a changed option never finds what
was made before, and more voices add to those that are there. Sentences are plain English of a small grammar of our own,
each one breath: no commas, only letters, spaces, apostrophes and its final mark; numbers are spelled out.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from vaak import __version__
from vaak.audio.config import DatasetConfig
from vaak.audio.espeak import EspeakSpeech, Timed, speak
from vaak.audio.simulation.conversations import SPEECH_LEVEL
from vaak.core.errors import UserError, optional_import
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage.files import compute_fingerprint, remove_temporary, replacing_folder, sync_file
from vaak.core.storage.json_lines import read_json_lines
from vaak.core.storage.lock import locked

if TYPE_CHECKING:
    from lhotse import MonoCut

SAMPLING_RATE = 16_000
SILENCE = 0.25
"""Seconds before and after a sentence."""
LANGUAGES = (
    *("en", "en-us", "en-029", "en-gb-scotland", "en-gb-x-gbclan", "en-gb-x-gbcwmd", "en-gb-x-rp", "en-us-nyc"),
)
VARIANTS = (
    *("m1", "m2", "m3", "m4", "m5", "m6", "m7", "m8", "f1", "f2", "f3", "f4", "f5"),
    *("Alicia", "Andy", "Annie", "Gene", "Lee", "Mario", "Michael", "adam", "belinda", "steph"),
)
"""Variants of espeak-ng like people; 23 have no factor in common with 8, so all pairs come before one twice."""


@dataclass(frozen=True)
class Voice:
    """A speaker. ``pitch``, ``pitch_range`` and ``rate`` are espeak-ng's.

    ``size`` above 1 is a smaller head: pitch and formants are multiplied by it. ``tilt`` above 0 is darker.
    """

    name: str
    language: str
    variant: str
    pitch: int
    pitch_range: int
    rate: int
    size: float
    tilt: float


def make_voices(number: int, seed: int) -> list[Voice]:
    """``number`` voices, spread over all properties of voices.

    Voices of one variant have different languages (the first eight) and pitches from different parts of the range.
    """
    rng = np.random.default_rng(draw_key(Purpose.VOICES, seed))

    def spread(least: float, greatest: float) -> np.ndarray:
        # Stratified: the range is divided into ``number`` parts, and each voice gets one of them.
        return least + (greatest - least) * (rng.permutation(number) + rng.random(number)) / number

    variants, languages = rng.permutation(VARIANTS), rng.permutation(LANGUAGES)
    rounds = -(-number // len(variants))
    # Each time a variant is used again, its pitch comes from another part of the range.
    parts = np.stack([rng.permutation(rounds) for _ in variants], axis=1).ravel()[:number]
    pitches = 20 + 70 * (parts + rng.uniform(0.2, 0.8, number)) / rounds
    ranges, rates = spread(20, 90), spread(140, 210)
    sizes, tilts = np.exp(spread(np.log(0.88), np.log(1.14))), spread(-0.4, 0.7)
    return [
        Voice(
            name=f"voice-{index:03}",
            language=str(languages[index % len(languages)]),
            variant=str(variants[index % len(variants)]),
            pitch=int(pitches[index]),
            pitch_range=int(ranges[index]),
            rate=int(rates[index]),
            size=round(float(sizes[index]), 3),
            tilt=round(float(tilts[index]), 3),
        )
        for index in range(number)
    ]


def utter(voice: Voice, text: str) -> EspeakSpeech:
    """``text`` as the voice says it, at 16 kHz and one level, with silence around it."""
    with optional_import("voices require soxr", "audio"):
        import soxr
    spoken = speak(
        text,
        f"{voice.language}+{voice.variant}",
        pitch=voice.pitch,
        pitch_range=voice.pitch_range,
        rate=voice.rate,
    )
    # Resampling as if from a higher rate raises pitch and formants together, like a smaller vocal tract; speech gets
    # faster.
    samples = soxr.resample(spoken.samples, spoken.sampling_rate * voice.size, SAMPLING_RATE)
    # A filter of one zero: a positive tilt weakens high frequencies, a negative one low frequencies.
    samples[1:] += np.float32(voice.tilt) * samples[:-1]
    # All voices at one level, so that loudness doesn't tell speakers apart.
    samples *= SPEECH_LEVEL / np.sqrt(np.mean(np.square(samples, dtype=np.float64)))
    samples = np.pad(samples, round(SILENCE * SAMPLING_RATE))

    def moved(times: tuple[Timed, ...]) -> tuple[Timed, ...]:
        return tuple(
            Timed(label, round(start / voice.size + SILENCE, 5), round(end / voice.size + SILENCE, 5))
            for label, start, end in times
        )

    return EspeakSpeech(samples.clip(-1, 1), SAMPLING_RATE, moved(spoken.words), moved(spoken.phonemes))


def voice_cuts(dataset: DatasetConfig, folder: Path) -> Iterator[MonoCut]:
    """Cuts of all sentences of all voices; those not yet in ``folder`` are made.

    A cut has one supervision: speaker, text, the time of its speech, and alignments "word" and "phone".

    Raises UserError if the folder can't be written.
    """
    for number, voice in enumerate(make_voices(dataset.num_voices, dataset.seed)):
        # By voice: another number of voices doesn't change what the first ones say.
        rng = np.random.default_rng(draw_key(Purpose.SENTENCES, dataset.seed, number))
        texts = (digits if dataset.say == "digits" else sentences)(dataset.num_sentences, rng)
        try:
            there = _ensure_folder(voice, texts, folder)
        except OSError as error:
            raise UserError(
                f"voices can't be written to {folder}: {error.strerror or error}; give another folder by VAAK_CACHE or "
                "by the dataset's output_dir"
            ) from error
        lines = read_json_lines(there / "sentences.jsonl")
        whole = [line for _, line in lines.objects if line.keys() >= {"text", "num_samples", "words", "phonemes"}]
        if len(whole) != len(texts):
            raise UserError(f"{there / 'sentences.jsonl'}: this is damaged; delete {there}, and it is recreated")
        for index, line in enumerate(whole):
            yield _cut(voice, there / f"{index:03}.flac", line)


def _ensure_folder(voice: Voice, texts: list[str], folder: Path) -> Path:
    """Return the folder of the voice's sentences; they are made if they don't exist."""
    try:
        synthesiser = importlib.metadata.version("espeakng-loader")
    except importlib.metadata.PackageNotFoundError:
        raise UserError("voices require espeak-ng, which is not installed: pip install 'vaak[audio]'") from None
    # The versions are included: another espeak-ng or Vaak may speak the same text differently.
    mark = compute_fingerprint([asdict(voice), texts, synthesiser, __version__])
    there = folder / f"{voice.name}-{mark}"
    # Checked without the lock first: the folder appears complete or not at all.
    if there.exists():
        return there
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock"):
        remove_temporary(folder)
        if not there.exists():
            with replacing_folder(there) as temporary:
                _write_sentences(voice, texts, temporary)
    return there


def _write_sentences(voice: Voice, texts: list[str], folder: Path) -> None:
    with optional_import("voices require soundfile", "audio"):
        import soundfile
    with open(folder / "sentences.jsonl", "w", encoding="utf-8") as lines:
        for index, text in enumerate(texts):
            spoken = utter(voice, text)
            path = folder / f"{index:03}.flac"
            soundfile.write(path, spoken.samples, spoken.sampling_rate, subtype="PCM_16")
            sync_file(path)
            about = {"num_samples": len(spoken.samples), "words": spoken.words, "phonemes": spoken.phonemes}
            lines.write(json.dumps({"text": text, **about}, ensure_ascii=False) + "\n")
    sync_file(folder / "sentences.jsonl")


def _cut(voice: Voice, path: Path, about: dict[str, Any]) -> MonoCut:
    """Return a line of ``sentences.jsonl`` as a cut."""
    from lhotse import MonoCut, Recording, SupervisionSegment
    from lhotse.audio import AudioSource
    from lhotse.supervision import AlignmentItem

    name = f"{voice.name}-{path.stem}"
    duration = about["num_samples"] / SAMPLING_RATE
    times = {
        kind: [AlignmentItem(label, start, round(end - start, 5)) for label, start, end in about[key]]
        for kind, key in (("word", "words"), ("phone", "phonemes"))
    }
    # Speech begins with the first phoneme and ends with the last: the silence around it isn't labelled.
    start, end = about["phonemes"][0][1], about["phonemes"][-1][2]
    supervision = SupervisionSegment(
        id=name,
        recording_id=name,
        start=start,
        duration=round(end - start, 5),
        text=about["text"],
        language="English",
        speaker=voice.name,
        alignment=times,
        custom={"accent": voice.language},
    )
    source = AudioSource(type="file", channels=[0], source=str(path))
    recording = Recording(name, [source], SAMPLING_RATE, about["num_samples"], duration)
    return MonoCut(name, 0.0, duration, 0, supervisions=[supervision], recording=recording)


Choice = TypeVar("Choice")
PEOPLE = (
    *("Anna", "Peter", "Nadia", "Oliver", "Ruth", "Samir", "Grace", "Victor", "Joan", "Thomas", "Leila", "George"),
    *("my brother", "our neighbour", "the teacher", "her cousin", "the old gardener", "his daughter", "the postman"),
    *("my aunt", "the young doctor", "their uncle", "the shopkeeper", "a tall stranger", "the choir", "the bus driver"),
)
THINGS = {
    "food": ("apple", "loaf", "cheese", "orange", "pie", "egg", "carrot", "fish", "cake", "pear", "jar of honey"),
    "tool": ("hammer", "ladder", "bucket", "lamp", "brush", "rope", "clock", "kettle", "spade", "box", "basket"),
    "cloth": ("coat", "scarf", "blanket", "shirt", "hat", "towel", "curtain", "jumper", "cushion"),
    "text": ("letter", "map", "newspaper", "ticket", "novel", "picture", "notebook", "report", "poem"),
}
PLURALS = {"loaf": "loaves", "box": "boxes", "fish": "fish", "jar of honey": "jars of honey", "brush": "brushes"}
QUALITIES = {
    "food": ("fresh", "sweet", "small", "ripe", "cheap", "warm", "huge"),
    "tool": ("heavy", "useful", "broken", "shiny", "old", "wooden", "strange"),
    "cloth": ("blue", "thick", "yellow", "soft", "dirty", "woollen", "green"),
    "text": ("short", "curious", "brown", "thin", "long", "funny", "boring"),
}
VERBS = {
    "food": (("bought", "buy"), ("shared", "share"), ("tasted", "taste"), ("chose", "choose"), ("washed", "wash")),
    "tool": (("borrowed", "borrow"), ("mended", "mend"), ("found", "find"), ("carried", "carry"), ("used", "use")),
    "cloth": (("folded", "fold"), ("lost", "lose"), ("sold", "sell"), ("wore", "wear"), ("measured", "measure")),
    "text": (("read", "read"), ("showed us", "show us"), ("forgot", "forget"), ("copied", "copy"), ("kept", "keep")),
}
PLACES = (
    *("in the kitchen", "at the station", "near the river", "on the top shelf", "behind the church", "in the garden"),
    *("under the bridge", "at the market", "outside the library", "beside the fire", "in the village", "at school"),
)
GOALS = (
    *("to the harbour", "to the hospital", "up the hill", "across the field", "into town", "to the theatre"),
    *("through the forest", "to the airport", "home", "down to the beach", "round the lake", "to work"),
)
WAYS = ("by bus", "on foot", "by bicycle", "with a friend", "in a hurry", "very slowly", "without a word", "by train")
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
WEATHER = ("raining", "snowing", "getting dark", "quite foggy", "unusually hot", "far too windy", "still early")
MOTIONS = (("walked", "walk"), ("went", "go"), ("travelled", "travel"), ("hurried", "hurry"), ("returned", "return"))
_UNITS = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
)
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def sentences(number: int, rng: np.random.Generator) -> list[str]:
    """``number`` different sentences."""
    found: dict[str, None] = {}
    while len(found) < number:
        found[sentence(rng)] = None
    return list(found)


def digits(number: int, rng: np.random.Generator) -> list[str]:
    """``number`` different texts of one to six digits.

    >>> digits(2, np.random.default_rng(1))
    ['five seven nine', 'one']
    """
    found: dict[str, None] = {}
    while len(found) < number:
        found[" ".join(spelled(int(digit)) for digit in rng.integers(0, 10, rng.integers(1, 7)))] = None
    return list(found)


def sentence(rng: np.random.Generator) -> str:
    """Return a statement, question or request."""
    text = _one(_KINDS, rng)(rng)
    return text[0].upper() + text[1:]


def spelled(number: int) -> str:
    """Return a number below a million in words.

    >>> spelled(40_312)
    'forty thousand three hundred and twelve'
    """
    if not 0 <= number < 1_000_000:
        raise ValueError(f"{number} is not from 0 to 999,999")
    if number < 20:
        return _UNITS[number]
    if number < 100:
        return _joined(_TENS[number // 10], " ", number % 10)
    if number < 1000:
        return _joined(f"{_UNITS[number // 100]} hundred", " and ", number % 100)
    rest = number % 1000
    return _joined(f"{spelled(number // 1000)} thousand", " and " if rest < 100 else " ", rest)


def _joined(front: str, between: str, rest: int) -> str:
    return f"{front}{between}{spelled(rest)}" if rest else front


def _one(choices: Sequence[Choice], rng: np.random.Generator) -> Choice:
    return choices[int(rng.integers(len(choices)))]


def _kind_of_thing(rng: np.random.Generator) -> str:
    return _one(tuple(THINGS), rng)


def _thing(kind: str, rng: np.random.Generator) -> str:
    quality = f"{_one(QUALITIES[kind], rng)} " if rng.random() < 0.6 else ""
    return quality + _one(THINGS[kind], rng)


def _several(kind: str, rng: np.random.Generator) -> str:
    noun = _one(THINGS[kind], rng)
    return f"{spelled(int(rng.integers(2, 400)))} {PLURALS.get(noun, noun + 's')}"


def _object(kind: str, rng: np.random.Generator) -> str:
    return (
        _several(kind, rng) if rng.random() < 0.3 else f"{_one(('the', 'my', 'your', 'his'), rng)} {_thing(kind, rng)}"
    )


def _hour(rng: np.random.Generator) -> str:
    part = _one(("", "half past ", "a quarter past ", "twenty to ", "ten past "), rng)
    return f"{part}{spelled(int(rng.integers(1, 13)))}"


def _time(rng: np.random.Generator) -> str:
    forms: tuple[Callable[[], str], ...] = (
        lambda: f"on {_one(DAYS, rng)} {_one(('morning', 'afternoon', 'evening'), rng)}",
        lambda: f"at {_hour(rng)}",
        lambda: f"{spelled(int(rng.integers(2, 60)))} {_one(('minutes', 'days', 'weeks', 'years'), rng)} ago",
        lambda: _one(("yesterday", "last summer", "before breakfast", "after the storm", "during the holidays"), rng),
    )
    return _one(forms, rng)()


def _say_deed(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    return f"{_one(PEOPLE, rng)} {_one(VERBS[kind], rng)[0]} {_object(kind, rng)} {_one(PLACES, rng)} {_time(rng)}."


def _say_motion(rng: np.random.Generator) -> str:
    return f"{_one(PEOPLE, rng)} {_one(MOTIONS, rng)[0]} {_one(GOALS, rng)} {_one(WAYS, rng)} {_time(rng)}."


def _say_presence(rng: np.random.Generator) -> str:
    return f"there were {_several(_kind_of_thing(rng), rng)} {_one(PLACES, rng)} when {_one(PEOPLE, rng)} arrived."


def _ask_whether(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    return f"did {_one(PEOPLE, rng)} {_one(VERBS[kind], rng)[1]} {_object(kind, rng)} {_time(rng)}?"


def _ask_question(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    word = _one(("where", "why", "when", "how often"), rng)
    return f"{word} did {_one(PEOPLE, rng)} {_one(VERBS[kind], rng)[1]} the {_thing(kind, rng)}?"


def _make_request(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    verb = _one(("put", "leave", "hide", "look for"), rng)
    return f"please {verb} the {_thing(kind, rng)} {_one(PLACES, rng)} before {_hour(rng)}."


def _say_price(rng: np.random.Generator) -> str:
    price = f"{spelled(int(rng.integers(2, 900)))} pounds and {spelled(int(rng.integers(2, 100)))} pence"
    return f"the {_thing(_kind_of_thing(rng), rng)} {_one(PLACES, rng)} costs {price}."


def _say_weather(rng: np.random.Generator) -> str:
    stayed = _one(("stayed indoors", "turned back", "waited for the next train", "closed every window"), rng)
    return f"it was {_one(WEATHER, rng)} so {_one(PEOPLE, rng)} {stayed} until {_hour(rng)}."


def _say_quotation(rng: np.random.Generator) -> str:
    plan = f"{_one(MOTIONS, rng)[1]} {_one(GOALS, rng)} {_one(WAYS, rng)}"
    speaker, other = (PEOPLE[int(place)] for place in rng.choice(len(PEOPLE), 2, replace=False))
    return f"{speaker} {_one(('said', 'hoped', 'thinks'), rng)} that {other} would {plan}."


def _say_number(rng: np.random.Generator) -> str:
    digits = " ".join(spelled(int(digit)) for digit in rng.integers(0, 10, 6))
    return f"the {_one(('number', 'code', 'answer'), rng)} {_one(PEOPLE, rng)} gave me is {digits}."


_KINDS: tuple[Callable[[np.random.Generator], str], ...] = (
    *(
        _say_deed,
        _say_deed,
        _say_motion,
        _say_presence,
        _ask_whether,
        _ask_question,
        _make_request,
        _say_price,
        _say_weather,
        _say_quotation,
        _say_quotation,
        _say_number,
    ),
)
