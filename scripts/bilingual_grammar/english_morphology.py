"""The inflection of the English words that the built-in grammar is translated with; the spelling is British.

Source: R. Quirk et al., A Comprehensive Grammar of the English Language (1985), chapters 3, 5 and 7.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Agreement = Literal["I", "one", "many"]

_PLURALS = {
    "child": "children",
    "ox": "oxen",
    "mouse": "mice",
    "calf": "calves",
    "thief": "thieves",
    "wife": "wives",
    "knife": "knives",
    "scarf": "scarves",
    "lady": "ladies",
    "mango": "mangoes",
    "potato": "potatoes",
    "tomato": "tomatoes",
    "hero": "heroes",
    "deer": "deer",
    "sheep": "sheep",
    "fish": "fish",
}
# Past and past participle.
_IRREGULAR = {
    "be": ("was", "been"),
    "break": ("broke", "broken"),
    "bring": ("brought", "brought"),
    "buy": ("bought", "bought"),
    "catch": ("caught", "caught"),
    "come": ("came", "come"),
    "do": ("did", "done"),
    "drink": ("drank", "drunk"),
    "drive": ("drove", "driven"),
    "eat": ("ate", "eaten"),
    "fall": ("fell", "fallen"),
    "feed": ("fed", "fed"),
    "fight": ("fought", "fought"),
    "flee": ("fled", "fled"),
    "fly": ("flew", "flown"),
    "get": ("got", "got"),
    "give": ("gave", "given"),
    "go": ("went", "gone"),
    "grow": ("grew", "grown"),
    "hang": ("hung", "hung"),
    "hide": ("hid", "hidden"),
    "leave": ("left", "left"),
    "lie": ("lay", "lain"),
    "light": ("lit", "lit"),
    "make": ("made", "made"),
    "meet": ("met", "met"),
    "put": ("put", "put"),
    "read": ("read", "read"),
    "run": ("ran", "run"),
    "sell": ("sold", "sold"),
    "send": ("sent", "sent"),
    "sew": ("sewed", "sewn"),
    "shine": ("shone", "shone"),
    "show": ("showed", "shown"),
    "sing": ("sang", "sung"),
    "sit": ("sat", "sat"),
    "sleep": ("slept", "slept"),
    "swim": ("swam", "swum"),
    "take": ("took", "taken"),
    "tear": ("tore", "torn"),
    "throw": ("threw", "thrown"),
    "wake": ("woke", "woken"),
    "write": ("wrote", "written"),
}
_DOUBLING = {"get", "put", "quarrel", "rot", "run", "sit", "slip", "stop", "swim"}
_COMPARATIVES = {"good": "better", "bad": "worse", "big": "bigger", "fat": "fatter", "thin": "thinner", "red": "redder"}
# The others have more: more expensive, more useful.
_SHORT = """
black blue brave cheap clever dark deep easy fair green heavy high kind lazy lean light long lovely naughty new old pink
poor rich round shiny shy small smart soft sour spicy strong sweet tall tasty thick weak white wide wise yellow
"""
_WITH_ER = frozenset(_SHORT.split())


class VerbForms(NamedTuple):
    """The five forms of a verb: take, takes, took, taken, taking."""

    base: str
    third: str
    past: str
    participle: str
    progressive: str


def plural(noun: str) -> str:
    """The plural of a noun or a phrase of which the last word, or the one before -in-law, is the noun."""
    if noun.endswith("-in-law"):
        return plural(noun.removesuffix("-in-law")) + "-in-law"
    *before, last = noun.split(" ")
    return " ".join((*before, _plural_word(last)))


def _plural_word(noun: str) -> str:
    if noun in _PLURALS:
        return _PLURALS[noun]
    return noun.removesuffix("man") + "men" if noun.endswith("man") else _with_s(noun)


def _with_s(word: str) -> str:
    """``word`` with its -s: boxes, stories, boys."""
    if word.endswith(("s", "x", "z", "ch", "sh")) or word in ("go", "do"):
        return word + "es"
    if word.endswith("y") and word[-2] not in "aeiou":
        return word[:-1] + "ies"
    return word + "s"


def verb_forms(base: str) -> VerbForms:
    """The forms of a verb given in its base form."""
    doubled = base + base[-1] if base in _DOUBLING else base
    if base.endswith("ie"):
        progressive = base[:-2] + "ying"
    elif base.endswith("e") and not base.endswith("ee"):
        progressive = base[:-1] + "ing"
    else:
        progressive = doubled + "ing"
    past, participle = _IRREGULAR.get(base, (_regular_past(base, doubled),) * 2)
    return VerbForms(base, _with_s(base), past, participle, progressive)


def _regular_past(base: str, doubled: str) -> str:
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return doubled + "ed"


def comparative(adjective: str) -> str:
    """bigger, better, heavier, more expensive."""
    if adjective in _COMPARATIVES:
        return _COMPARATIVES[adjective]
    if adjective not in _WITH_ER:
        return f"more {adjective}"
    if adjective.endswith("e"):
        return adjective + "r"
    return adjective[:-1] + "ier" if adjective.endswith("y") and adjective != "shy" else adjective + "er"


def article(following: str) -> str:
    """a or an, by the sound that follows."""
    if following.startswith("use"):
        return "a"
    return "an" if following[0] in "aeiou" or following.startswith("honest") else "a"


def be(agreement: Agreement, past: bool = False) -> str:
    """am, is, are, was, were."""
    if past:
        return "were" if agreement == "many" else "was"
    return {"I": "am", "one": "is", "many": "are"}[agreement]


def auxiliary_and_verb(base: str, tense: str, agreement: Agreement) -> tuple[str, str, str]:
    """The auxiliary, the verb after it, and the verb where no auxiliary is needed ("" where it always is).

    >>> auxiliary_and_verb("go", "habitual_present", "one"), auxiliary_and_verb("go", "future", "one")
    (('does', 'go', 'goes'), ('will', 'go', ''))
    """
    forms = verb_forms(base)
    single = agreement == "one"
    return {
        "habitual_present": ("does" if single else "do", base, forms.third if single else base),
        "habitual_past": ("did", f"use to {base}", f"used to {base}"),
        "progressive_present": (be(agreement), forms.progressive, ""),
        "progressive_past": (be(agreement, past=True), forms.progressive, ""),
        "perfective": ("did", base, forms.past),
        "perfective_present": ("has" if single else "have", forms.participle, ""),
        "perfective_past": ("had", forms.participle, ""),
        "future": ("will", base, ""),
    }[tense]
