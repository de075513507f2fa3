"""Languages as people name them, found among the codes that a base knows.

hi, Hindi, HI      codes and English names, in any case
he, jv             codes that tokenizers have an older or a newer one for (iw, jw)
hi-IN, pt_BR       tags of BCP 47: region, script and variant can't be told to a model
hin, ger, deu      ISO 639-2 and 639-3, also of the usual form of a language (cmn: zh)
zh-HK, hbs         may be one of several, which are suggested
"""

from __future__ import annotations

import functools
import logging
import re
from collections.abc import Collection
from typing import NamedTuple

from vaak.core.names import list_names, nearest_name

log = logging.getLogger("vaak")

_RENAMED = {"he": "iw", "iw": "he", "jv": "jw", "jw": "jv"}
"""Codes of Hebrew and Javanese: tokenizers of Whisper have the older or the newer one."""
_CODES = """
en eng|zh zho chi cmn|de deu ger|es spa|ru rus|ko kor|fr fra fre|ja jpn|pt por|tr tur|pl pol|ca cat|nl nld dut
ar ara arb|sv swe|it ita|id ind in|hi hin|fi fin|vi vie|he heb|uk ukr|el ell gre|ms msa may zsm|cs ces cze
ro ron rum mo|da dan|hu hun|ta tam|no nor nob nb|th tha|ur urd|hr hrv|bg bul|lt lit|la lat|mi mri mao|ml mal
cy cym wel|sk slk slo|te tel|fa fas per pes|lv lav lvs|bn ben|sr srp|az aze azj|sl slv|kn kan|et est ekk
mk mkd mac|br bre|eu eus baq|is isl ice|hy hye arm|ne nep npi|mn mon khk|bs bos|kk kaz|sq sqi alb als|sw swa swh
gl glg|mr mar|pa pan|si sin|km khm|sn sna|yo yor|so som|af afr|oc oci|ka kat geo|be bel|tg tgk|sd snd|gu guj
am amh|yi yid ydd ji|lo lao|uz uzb uzn|fo fao|ht hat|ps pus pbt|tk tuk tkm|nn nno|mt mlt|sa san|lb ltz
my mya bur|bo bod tib|tl tgl fil|mg mlg plt|as asm|tt tat|ln lin|ha hau|ba bak|jv jav|su sun
"""
"""Codes of two letters, each with those of three letters and with others that mean the same."""
_GROUPS = [group.split() for group in _CODES.strip().replace("\n", "|").split("|")]
_SAME = {other: code for code, *others in _GROUPS for other in others}
_SEVERAL = {
    **dict.fromkeys(("hbs", "sh"), ("sr", "hr", "bs")),
    **dict.fromkeys(("zh-hk", "zh-mo", "zh-hant-hk", "zh-hant-mo", "zh-yue"), ("yue", "zh")),
    **dict.fromkeys(("arz", "ary", "apc", "ajp", "acm", "afb", "aeb", "arq"), ("ar",)),
    **dict.fromkeys(("nan", "hak", "wuu", "zh-min-nan"), ("zh",)),
    "prs": ("fa",),
    "gsw": ("de",),
    "scc": ("sr",),
}
"""Tags of what no code of Whisper's means alone: languages close to these, or one of several."""


class LanguageChoice(NamedTuple):
    """The code by which a base knows a language; None where it doesn't.

    ``remark`` says, in a line, what another form was taken as; without a code, what it may be.
    """

    code: str | None
    remark: str = ""


def choose_language(asked: str, known: Collection[str]) -> LanguageChoice:
    """Return the code among those ``known`` of a language as somebody named it.

    >>> choose_language("hi-IN", ["en", "hi"])
    LanguageChoice(code='hi', remark='hi-IN is taken as hi: IN is ignored')
    >>> choose_language("zh_HK", ["en", "zh", "yue"])
    LanguageChoice(code=None, remark='zh_HK may be yue, zh: give one of them')
    """
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    tag = asked.strip().replace("_", "-").lower()
    for one in (asked, tag, _RENAMED.get(tag, ""), TO_LANGUAGE_CODE.get(tag, "")):
        if one in known:
            return LanguageChoice(one)
    language, *rest = tag.split("-")
    if (near := _SEVERAL.get(tag) or _SEVERAL.get(language)) is not None:
        usable = [one for one in near if one in known]
        advice = "one of them" if len(usable) > 1 else f"{list_names(usable)}, if that is meant"
        return LanguageChoice(None, f"{asked} may be {list_names(usable)}: give {advice}" if usable else "")
    same = _SAME.get(language, language)
    code = next((one for one in (language, same, _RENAMED.get(same, "")) if one in known), None)
    if code is None:
        return LanguageChoice(None)
    ignored = asked.strip()[len(language) + 1 :]
    return LanguageChoice(code, f"{asked} is taken as {code}" + (f": {ignored} is ignored" if rest else ""))


def read_code(named: str) -> str | None:
    """Return the code of a language by its code, tag or English name; one of three letters for others. None: it's none.

    >>> read_code("Hindi"), read_code("eng"), read_code("mni"), read_code("auto")
    ('hi', 'en', 'mni', None)
    """
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    found = choose_language(named, LANGUAGES).code
    return found or (named if re.fullmatch("[a-z]{2,3}", named) else None)


def suggest_language(asked: str, known: Collection[str]) -> str:
    """Return what follows the name of an unknown language in an error: what may have been meant, or nothing."""
    choice = choose_language(asked, known)
    return f" ({choice.remark})" if choice.remark else nearest_name(asked, known)


@functools.cache
def tell_choice(key: str, remark: str) -> None:
    """Log, once in a process, the ``remark`` on the language that the option ``key`` names, if there is one."""
    if remark:
        log.warning("%s: %s", key, remark)
