"""Plain English sentences for voices to speak, from a small grammar of our own; numbers are spelled out.

A sentence is one breath: no commas, only letters, spaces, apostrophes and its final mark.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np

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
    """A statement, question or request."""
    text = _one(_KINDS, rng)(rng)
    return text[0].upper() + text[1:]


def spelled(number: int) -> str:
    """A number below a million in words.

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


def _did(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    return f"{_one(PEOPLE, rng)} {_one(VERBS[kind], rng)[0]} {_object(kind, rng)} {_one(PLACES, rng)} {_time(rng)}."


def _moved(rng: np.random.Generator) -> str:
    return f"{_one(PEOPLE, rng)} {_one(MOTIONS, rng)[0]} {_one(GOALS, rng)} {_one(WAYS, rng)} {_time(rng)}."


def _there_were(rng: np.random.Generator) -> str:
    return f"there were {_several(_kind_of_thing(rng), rng)} {_one(PLACES, rng)} when {_one(PEOPLE, rng)} arrived."


def _asked_whether(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    return f"did {_one(PEOPLE, rng)} {_one(VERBS[kind], rng)[1]} {_object(kind, rng)} {_time(rng)}?"


def _asked(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    word = _one(("where", "why", "when", "how often"), rng)
    return f"{word} did {_one(PEOPLE, rng)} {_one(VERBS[kind], rng)[1]} the {_thing(kind, rng)}?"


def _requested(rng: np.random.Generator) -> str:
    kind = _kind_of_thing(rng)
    verb = _one(("put", "leave", "hide", "look for"), rng)
    return f"please {verb} the {_thing(kind, rng)} {_one(PLACES, rng)} before {_hour(rng)}."


def _cost(rng: np.random.Generator) -> str:
    price = f"{spelled(int(rng.integers(2, 900)))} pounds and {spelled(int(rng.integers(2, 100)))} pence"
    return f"the {_thing(_kind_of_thing(rng), rng)} {_one(PLACES, rng)} costs {price}."


def _weather(rng: np.random.Generator) -> str:
    stayed = _one(("stayed indoors", "turned back", "waited for the next train", "closed every window"), rng)
    return f"it was {_one(WEATHER, rng)} so {_one(PEOPLE, rng)} {stayed} until {_hour(rng)}."


def _said(rng: np.random.Generator) -> str:
    plan = f"{_one(MOTIONS, rng)[1]} {_one(GOALS, rng)} {_one(WAYS, rng)}"
    speaker, other = (PEOPLE[int(place)] for place in rng.choice(len(PEOPLE), 2, replace=False))
    return f"{speaker} {_one(('said', 'hoped', 'thinks'), rng)} that {other} would {plan}."


def _number(rng: np.random.Generator) -> str:
    digits = " ".join(spelled(int(digit)) for digit in rng.integers(0, 10, 6))
    return f"the {_one(('number', 'code', 'answer'), rng)} {_one(PEOPLE, rng)} gave me is {digits}."


_KINDS: tuple[Callable[[np.random.Generator], str], ...] = (
    *(_did, _did, _moved, _there_were, _asked_whether, _asked, _requested, _cost, _weather, _said, _said, _number),
)
