"""A report as HTML: its elements, and the document around them, with its style, its scripts and the data of its charts.

Text may be a stranger's: all of it is escaped that isn't an element made here. A document is one file. Its own policy
(CSP) lets it run two scripts, by their hashes, and load nothing; one that is served on this machine (``vaak report
--watch``) may ask there whether it has changed.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from vaak import __version__
from vaak.config.metrics import add_unit
from vaak.config.yaml.text import flow_text
from vaak.core.errors import UserError
from vaak.core.storage.files import write_text
from vaak.report.curves import Curve, Event, Panel, drawn

LONGEST_VALUE = 2000
"""Characters of a value that are shown."""
MOST_TEXT = 100_000
ROWS_UNFOLDED = 12
"""A table with more rows is folded up."""


class Html(str):
    """Text that is HTML already; all other text is escaped."""


def to_html(value: object) -> Html:
    """Return a value as HTML: escaped, shortened where it is very long, without signs that no page may have.

    >>> to_html("<b> & 'c'"), to_html(Html("<b>"))
    ('&lt;b&gt; &amp; &#x27;c&#x27;', '<b>')
    """
    if isinstance(value, Html):
        return value
    text = str(value)
    return long_html(text if len(text) <= LONGEST_VALUE else f"{text[:LONGEST_VALUE]} …")


def long_html(text: str) -> Html:
    """Return a text as HTML, whole up to a length that no option file has."""
    return Html(
        escape(re.sub(r"[^\n\t\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\ufffd", text[:MOST_TEXT]))
    )


def element(name: str, *children: object, **attributes: object) -> Html:
    """Return an element; ``css`` is its class, and underscores in names of attributes are hyphens."""
    given = {key.replace("css", "class").replace("_", "-"): value for key, value in attributes.items()}
    written = "".join(f' {key}="{to_html(value)}"' for key, value in given.items() if value is not None)
    return Html(f"<{name}{written}>{''.join(map(to_html, children))}</{name}>")


def section(title: str, *children: object, identity: str) -> Html:
    return element("section", element("h2", title, id=identity), *children, aria_labelledby=identity)


def data_table(rows: Sequence[Sequence[object]], caption: str, folded: int = ROWS_UNFOLDED) -> Html:
    """Return a table whose first row is its head; one with more rows than ``folded`` is folded up."""
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


PAGE = """<!DOCTYPE html>
<html lang="en"{live}>
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; media-src data:; style-src 'unsafe-inline'; script-src {hashes}{connect}">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
{body}
<footer>Made by Vaak {version} from the files of the run; everything is in this file, which loads nothing. Charts: uPlot, MIT licence.</footer>
<!-- uPlot: {licence} -->
<script type="application/json" id="data">{data}</script>
<script>{library}</script>
<script>{script}</script>
</body>
</html>
"""  # noqa: E501


def write_page(path: Path, page: str) -> None:
    """Write a page. Raises UserError if it can't be written."""
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error


def _to_json(panel: Panel) -> dict[str, Any]:
    """Return a chart as the page's script reads it."""
    curves = [
        {
            "label": shortened(curve.label),
            "colour": number if curve.colour is None else curve.colour,
            "x": curve.steps,
            "y": [None if value is None else float(f"{value:.6g}") for value in curve.values],
        }
        for number, curve in enumerate(panel.curves)
    ]
    return {
        "unit": panel.unit,
        "bands": [{"from": start, "text": text} for start, text in panel.bands],
        "curves": curves,
    }


def document(
    title: str, body: Sequence[Html], charts: Sequence[Panel] = (), happened: Sequence[Event] = (), live: bool = False
) -> str:
    """Return the page: a title, the elements of its body, its charts and the events in them.

    One that is ``live`` asks its server every two seconds for ``version``, and shows what is new.
    """
    assets = files("vaak.report") / "assets"
    library, script, style, licence = (
        (assets / name).read_text(encoding="utf-8")
        for name in ("uPlot.iife.min.js", "report.js", "report.css", "uPlot.LICENSE")
    )
    data = {
        "panels": [_to_json(panel) for panel in charts],
        "events": [{**one._asdict(), "text": shortened(one.text)} for one in happened],
    }
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'" for one in (library, script)
    )
    return PAGE.format(
        title=to_html(title),
        style=(assets / "uPlot.min.css").read_text(encoding="utf-8") + style,
        body="\n".join(body),
        version=to_html(__version__),
        licence=licence.strip(),
        hashes=hashes,
        connect="; connect-src 'self'" if live else "",
        live=" data-live" if live else "",
        # A text in the data could otherwise end the script element that holds them.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
        library=library,
        script=script,
    )


def shortened(text: str) -> str:
    """Text for the script, which shows it as text; shortened."""
    return text if len(text) <= 200 else f"{text[:200]} …"


def render_charts(found: Sequence[Panel], happened: Sequence[Event], left_out: int) -> list[Html]:
    """Return elements that the script draws charts into, a legend of their events, and a table of these."""
    if not found:
        return [element("p", "No step has been logged yet.")]
    kinds = dict.fromkeys(one.kind for one in happened)
    counts = [(kind, sum(one.kind == kind for one in happened)) for kind in kinds]
    legend = (
        element("li", element("i", css=kind, data_kind=kind), element("span", f"{kind} ({count})"))
        for kind, count in counts
    )
    drag = "Hover to read values, drag to zoom, double-click to reset. Keyboard: arrows, + and −, Escape."
    numbered = [*enumerate(drawn(found))]
    charts = [_chart(number, panel) for number, panel in numbered if not panel.is_machine]
    machine = [_chart(number, panel) for number, panel in numbered if panel.is_machine]
    short = [panel for panel in found if panel.is_table]
    rows = ((f"{one.step:,}", one.kind, "" if one.text == one.kind else one.text) for one in happened)
    table = [("step", "event", "about it"), *rows]
    return [
        element("p", drag, css="lead") if charts or machine else Html(""),
        element("ul", *legend, css="kinds", aria_label="Events on the time axis") if happened and charts else Html(""),
        element("div", *charts, css="charts") if charts else Html(""),
        data_table(_to_rows(short), "Metrics of few steps") if short else Html(""),
        _folded(machine),
        element("p", f"{left_out} curves of groups are left out; the tables have them.") if left_out else Html(""),
        data_table(table, "Events") if happened else Html(""),
    ]


def _folded(machine: Sequence[Html]) -> Html:
    if not machine:
        return Html("")
    summary = element("summary", f"The machine: speed, memory, waiting ({len(machine)} charts)")
    return element("details", summary, element("div", *machine, css="charts"), css="machine")


def _to_rows(short: Sequence[Panel]) -> list[Sequence[object]]:
    """Curves of one or two points as rows: a line through them would show nothing."""
    rows: list[Sequence[object]] = [("metric", "", "step", "value")]
    for panel in short:
        for curve in panel.curves:
            for step, value in zip(curve.steps, curve.values, strict=True):
                label = "" if curve.label == panel.title else curve.label
                rows.append((panel.title, label, f"{step:,}", _value(value, panel.unit)))
    return rows


def _value(value: float | None, unit: str) -> str:
    """Return a value of a chart, with its unit where that is short."""
    return "not finite" if value is None else f"{value:.5g}{' %' if unit == '%' else ''}"


def _last_values(panel: Panel) -> Html:
    """Return the newest value of each curve, in a legend that can be read without hovering."""
    said = [
        element(
            "li",
            element("i", css=f"c{(number if curve.colour is None else curve.colour) % 8}"),
            f"{curve.label} ",
            element("b", _value(curve.values[-1], panel.unit)),
        )
        for number, curve in enumerate(panel.curves)
        if curve.values
    ]
    return element("ul", *said, css="last")


def _chart(number: int, panel: Panel) -> Html:
    title = add_unit(panel.title, panel.unit)
    button = element("button", "log", type="button", aria_pressed="true" if panel.log else "false", title="log scale")
    label = f"{title}. {'; '.join(map(_spoken, panel.curves[:4]))}. Arrow keys read the values."
    return element(
        "section",
        element("header", element("h3", title, id=f"chart-{number}"), button),
        element("div", css="plot", tabindex=0, role="group", aria_label=label),
        element("p", css="read", aria_live="polite"),
        _last_values(panel),
        css="chart",
        aria_labelledby=f"chart-{number}",
    )


def _spoken(curve: Curve) -> str:
    """Return a curve in words, for who doesn't see it."""
    values = [value for value in curve.values if value is not None]
    if not values:
        return f"{curve.label}: no finite value"
    span = f"from {values[0]:.4g} to {values[-1]:.4g}, lowest {min(values):.4g}, highest {max(values):.4g}"
    return f"{curve.label}: {span}, steps {curve.steps[0]} to {curve.steps[-1]}"


def option_text(value: Any) -> str:
    return value if isinstance(value, str) else flow_text(value)
