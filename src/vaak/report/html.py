"""HTML made of text that may be a stranger's: all of it is escaped that isn't an element made here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape

LONGEST = 2000
"""Characters of a value that are shown."""
MOST_TEXT = 100_000
FOLDED = 12
"""A table with more rows is folded up."""


class Html(str):
    """Text that is HTML already; all other text is escaped."""


def html_of(value: object) -> Html:
    """A value as HTML: escaped, shortened where it is very long, without signs that no page may have.

    >>> html_of("<b> & 'c'"), html_of(Html("<b>"))
    ('&lt;b&gt; &amp; &#x27;c&#x27;', '<b>')
    """
    if isinstance(value, Html):
        return value
    text = str(value)
    return long_html(text if len(text) <= LONGEST else f"{text[:LONGEST]} …")


def long_html(text: str) -> Html:
    """A text as HTML, whole up to a length that no option file has."""
    return Html(
        escape(re.sub(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text[:MOST_TEXT]))
    )


def element(name: str, *children: object, **attributes: object) -> Html:
    """An element; ``css`` is its class, and underscores in names of attributes are hyphens."""
    given = {key.replace("css", "class").replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(f' {key}="{html_of(value)}"' for key, value in given.items() if value is not None)
    return Html(f"<{name}{written}>{''.join(map(html_of, children))}</{name}>")


def section(title: str, *children: object, identity: str) -> Html:
    return element("section", element("h2", title, id=identity), *children, aria_labelledby=identity)


def data_table(rows: Sequence[Sequence[object]], caption: str, folded: int = FOLDED) -> Html:
    """A table whose first row is its head; one with more rows than ``folded`` is folded up."""
    head = element("thead", element("tr", *(element("th", cell, scope="col") for cell in rows[0])))
    body = (element("tr", *(element("td", cell) for cell in row)) for row in rows[1:])
    table = element("table", element("caption", caption), head, element("tbody", *body), css="data")
    scrolled = element("div", table, css="scroll", tabindex=0, role="region", aria_label=caption)
    if len(rows) <= folded + 1:
        return scrolled
    return element("details", element("summary", f"{caption} ({len(rows) - 1} rows)"), scrolled)


def pairs(entries: Iterable[tuple[str, object]]) -> Html:
    shown = (element("dt", name) + element("dd", value) for name, value in entries if value not in (None, ""))
    return element("dl", *map(Html, shown))


def code(text: str) -> Html:
    return element("pre", element("code", text), tabindex=0)
