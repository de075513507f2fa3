"""Emoji and markup, which nobody speaks: they are left out of a text, counted and named.

A picture is a character that Unicode shows as an emoji: those of the planes above the first, those of the first that
have this form by themselves, and any other that is followed by U+FE0F. Nobody
reads them aloud; a symbol that means something (☃, ∮) is an error until it is replaced.
"""

from __future__ import annotations

import html
import re
from collections import Counter

MOST_NAMED = 8
_ALONE = "⌚⌛⏩-⏬⏰⏳◽◾☔☕♈-♓♿⚓⚡⚪⚫⚽⚾⛄⛅⛎⛔⛪⛲⛳⛵⛺⛽✅✊✋✨❌❎❓-❕❗➕-➗➰➿⬛⬜⭕"
"""Unicode's Emoji_Presentation in the first plane."""
_JOINERS = "\u200d\ufe0f\u20e3\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f"
_PICTURE = re.compile(rf"(?:[{_ALONE}\U0001f000-\U0001faff]|[©®\u2010-\u3299](?=\ufe0f))[{_JOINERS}]*")
_FACE = re.compile(r"(?<!\S)(?:[:;=][-'^o]?[)(\[\]DPp/\\|*]|[)(]-?[:;]|\^_?\^|:'\()(?=$|[\s.,!?])")
"""Faces made of punctuation."""
_TAG = re.compile(
    r"</?(?:a|b|big|blockquote|br|code|del|div|em|font|h[1-6]|hr|i|img|ins|li|mark|ol|p|pre|q|s|small|span|strong|sub|sup"
    r"|table|td|th|tr|u|ul|abbr|acronym|kbd|cite|samp|center|dl|dt|dd|thead|tbody|figcaption|iframe)(?:\s+[a-z-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'))*\s*/?>",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]{2,8}\d?);")
_BRACKETED_ADDRESS = re.compile(
    r"<(?:URL:)?((?:(?:https?|ftp)://|www\.|mailto:)[^<>\s]+|[\w.+%-]+@[\w-]+\.[\w.-]+|[\w.-]+/[\w./#-]+)>_{0,2}"
)
"""An address between the brackets of RFC 3986, and the underscores of a link in reStructuredText."""
_LINK = re.compile(r"(?<![\w\])])!?\[([^\[\]]*[A-Za-z][^\[\]]*)\](\[[^\[\]]*\]|\((?:https?://|\.{0,2}/|#)[^()\s]*\))")
"""A link of Markdown, whose text is spoken, not its address: [text](address), [text][name]."""
_ESCAPES = re.compile(r"(?<![\w\"'/])\\\[([^\\\"']*)\\\]|(?<!\S)\\(?=_)")
"""Signs of Markdown after a backslash."""
_ROLE = re.compile(r"(?<![\w:]):(?:(pep|rfc)|class|func|meth|mod|attr|exc|obj|ref|doc|code|data|py:\w+):(?=[`~\w])`?~?")
"""Roles of reStructuredText, of which only those of numbered documents are spoken."""
_LEADING = re.compile(r"^\s*(#{1,6}|>+)(?=\s)|^\s*(\[ \])(?=\s)")
"""A heading, a quotation or an open box of Markdown."""
_PLACEHOLDER = re.compile(r"<!?([A-Za-z](?:[\w-]|[ .](?=\w)){1,30})>")
"""A word in angle brackets that stands for another, such as <year>."""
_EMPHASIS = re.compile(r"(?<![\w*$@%])(\*{1,3}|_{1,3}|~~)(?=[^\s*_~.,;:!?)])([^*~]*?[^\s*_~])\1(?!\w)")


class Unspoken:
    """Counts of symbols that weren't spoken, with the first text of each."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.first: dict[str, str] = {}

    def add(self, symbols: tuple[str, ...], where: str) -> None:
        """Count the symbols of a text, which is called ``where``."""
        self.counts.update(symbols)
        for one in symbols:
            self.first.setdefault(one, where)

    def __str__(self) -> str:
        """Say how many there are, which are the most frequent, and where each is first.

        >>> unspoken = Unspoken()
        >>> unspoken.add(("*", "*"), "line 3")
        >>> str(unspoken)
        '2 symbols are not spoken: * (2, first in line 3)'
        """
        total, most = sum(self.counts.values()), self.counts.most_common(MOST_NAMED)
        named = ", ".join(f"{one} ({times:,}, first in {self.first[one]})" for one, times in most)
        more = len(self.counts) - len(most)
        said = "1 symbol is" if total == 1 else f"{total:,} symbols are"
        return f"{said} not spoken: {named}" + (f" and {more:,} more" if more else "")


def leave_out_pictures(text: str, unspoken: list[str] | None = None) -> str:
    """The text without pictures, which are added to ``unspoken``.

    >>> found = []
    >>> leave_out_pictures("So happy 😀👍🏽 ❤️", found).split(), found
    (['So', 'happy'], ['😀', '👍🏽', '❤️'])
    """
    return _leave_out(_PICTURE, text, unspoken)


def leave_out_markup(text: str, unspoken: list[str] | None = None) -> str:
    """The text without HTML's tags, Markdown's headings and emphasis, and faces (:-); they are added to ``unspoken``.

    What only resembles a tag, or stands between figures, stays. HTML's character references become their characters,
    and the brackets around an address are left out.

    >>> leave_out_markup("# One <b>two</b> a < b > c, **three** 2 * 3 * 4, x[0]")
    '  One  two  a < b > c, three 2 * 3 * 4, x[0]'
    >>> leave_out_markup("Pok&#233;mon &amp; Jo <jo@example.com>")
    'Pokémon & Jo  jo@example.com '
    >>> leave_out_markup("[The guide](https://example.com) and [notes][1], x[0][1]; :pep:`8`")
    'The guide and notes, x[0][1]; PEP 8`'
    """

    def emphasised(match: re.Match[str]) -> str:
        if unspoken is not None:
            unspoken.extend((match[1], match[1]))
        return match[2]

    def linked(match: re.Match[str]) -> str:
        if unspoken is not None:
            unspoken.append(match[2])
        return match[1]

    text = _leave_out(_FACE, _leave_out(_LEADING, text, unspoken), unspoken)
    text = _BRACKETED_ADDRESS.sub(r" \1 ", _leave_out(_TAG, text, unspoken))
    if "[" in text:
        text = _LINK.sub(linked, text)
    if "\\" in text:
        text = _ESCAPES.sub(lambda match: f"[{match[1]}]" if match[1] else "", text)
    if ":" in text:
        text = _ROLE.sub(lambda match: f"{(match[1] or '').upper()} ", text)
    text = _PLACEHOLDER.sub(r" \1 ", text)
    return _EMPHASIS.sub(emphasised, _ENTITY.sub(lambda match: html.unescape(match[0]), text))


def _leave_out(pattern: re.Pattern[str], text: str, unspoken: list[str] | None) -> str:
    def found(match: re.Match[str]) -> str:
        if unspoken is not None:
            unspoken.append(match[0].strip())
        return " "

    return pattern.sub(found, text)
