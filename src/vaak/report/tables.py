"""Rows of cells as lines for a terminal or a log, as CSV and as Markdown; the lines of a learning-rate range test."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any


def aligned(rows: Sequence[Sequence[str]], left: int | None = None) -> list[str]:
    """Rows of cells as lines, the first ``left`` columns (None: all) aligned to the left, the others to the right.

    >>> aligned([("a", "bcd"), ("ef", "g")]), aligned([("a", "bcd"), ("ef", "g")], left=1)
    (['a   bcd', 'ef  g'], ['a   bcd', 'ef    g'])
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    forms = [f"{'<' if left is None or number < left else '>'}{width}" for number, width in enumerate(widths)]
    return ["  ".join(map(format, row, forms)).rstrip() for row in rows]


def csv_text(head: Sequence[str], rows: Iterable[Iterable[Any]], decimals: int | None = None) -> str:
    """Return a table as CSV, real numbers with ``decimals`` digits or all; None is an empty cell."""

    def cell(value: Any) -> Any:
        return f"{value:.{decimals}f}" if decimals is not None and isinstance(value, float) else value

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(head)
    writer.writerows(map(cell, row) for row in rows)
    return text.getvalue()


def html_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as HTML, every cell escaped; the first row is its head.

    >>> html_table([("a", "b"), ("1", "<2>")])
    '<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>&lt;2&gt;</td></tr></table>'
    """

    def line(kind: str, row: Sequence[str]) -> str:
        return f"<tr>{''.join(f'<{kind}>{escape(cell)}</{kind}>' for cell in row)}</tr>"

    return f"<table>{''.join(line('td' if number else 'th', row) for number, row in enumerate(rows))}</table>"


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a table as Markdown; the first row is its head.

    >>> print(markdown_table([("a", "b"), ("1", "2|3")]), end="")
    | a | b |
    | --- | --- |
    | 1 | 2\\|3 |
    """
    lines = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |\n" for line in lines)


BAR = 24


def learning_rate_lines(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each step of a range test, from the content of ``lr-range.json``.

    It has the step's learning rate, its loss, and the smoothed loss as a number and as a bar.
    """
    if not found["loss"]:
        return
    low, high = shown_losses(found["smoothed"])
    yield f"{'step':>4}  {'lr':>8}  {'loss':>9}  {'smoothed':>9}"
    for step, (rate, loss, smoothed) in enumerate(zip(found["lr"], found["loss"], found["smoothed"], strict=True), 1):
        part = min(1.0, max(0.0, (smoothed - low) / (high - low)))
        mark = "  < suggestion" if rate == found["suggestion"] else ""
        bar = f"{'#' * round(BAR * part):<{BAR}}{mark}"
        yield f"{step:>4}  {rate:>8.2e}  {loss:>9.4g}  {smoothed:>9.4g}  {bar}".rstrip()


def shown_losses(smoothed: Sequence[float]) -> tuple[float, float]:
    """Return the lowest and the highest loss to show: the last ones of a diverged test would flatten the rest."""
    low, high = min(smoothed), max(smoothed[: max(1, len(smoothed) // 2)])
    margin = 0.25 * (high - low) or 1.0
    return low - margin, high + 2 * margin


def short_rate(rate: float) -> str:
    """Return a learning rate in two digits, in the notation of YAML.

    >>> short_rate(0.00299), short_rate(0.1)
    ('3e-3', '1e-1')
    """
    digits, _, exponent = f"{rate:.1e}".partition("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)}"


def format_hours(hours: float) -> str:
    """Return hours with two decimals, and a few seconds with two digits.

    >>> format_hours(1234.5), format_hours(0.00512)
    ('1,234.50', '0.0051')
    """
    return f"{hours:,.2f}" if hours >= 0.1 or hours == 0 else f"{hours:.2g}"
