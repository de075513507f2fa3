"""A picture of cross-attention: which source tokens the decoder looked at as it wrote each target token.

    rows: target tokens      columns: source tokens      darker: more attention; each row adds up to 1

All tables of a page, means and single heads, have one scale: from 0 to the highest attention on the page.
One HTML page without dependencies: a browser has fonts for every script, and matplotlib's own has no Devanagari.
Source: Bahdanau et al. 2015, "Neural Machine Translation by Jointly Learning to Align and Translate", figure 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np

from vaak.core.errors import UserError
from vaak.core.storage.files import write_text

SHADES = 20

ATTENTION_PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Cross-attention</title><style>
body {{ font-family: sans-serif; color: #222; background: #fff; margin: 2em; }}
.panels {{ display: flex; flex-wrap: wrap; gap: 2em; align-items: flex-start; }}
h2 {{ font-size: 1em; }}
table {{ border-collapse: collapse; }}
th {{ font-weight: normal; white-space: pre; padding: 2px 6px; text-align: right; }}
thead th {{ writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; padding: 6px 2px; }}
td, .legend i {{ width: 1.6em; min-width: 1.6em; height: 1.6em; border: 1px solid #eee; }}
.legend i {{ display: inline-block; vertical-align: middle; box-sizing: border-box; margin: 0 -1px 0 0; }}
dt {{ float: left; clear: left; width: 7em; color: #666; }}
dd {{ margin: 0 0 0.3em 7em; }}
summary {{ cursor: pointer; margin: 1.5em 0 0.5em; }}
{shades}
</style></head><body>
<h1>Cross-attention</h1>
<dl><dt>source</dt><dd>{source}</dd><dt>translation</dt><dd>{target}</dd></dl>
<p>Rows: target tokens in order. Columns: source tokens. Each row adds up to 1. Hover over a cell to see its
value.</p>
<p class="legend">0 {legend} {highest:.2f}, the highest on this page; all tables have this scale</p>
<div class="panels">
{panels}
</div>
{heads}
</body></html>
"""


class Sentence(NamedTuple):
    """A text, and the texts of its tokens."""

    text: str
    tokens: Sequence[str]


def draw_attention(weights: np.ndarray, source: Sentence, target: Sentence, path: Path) -> None:
    """Write a page with the cross-attention of every layer, their mean first, and of every head, folded up.

    ``weights`` are ``(layer, head, target, source)``. Raises UserError if ``path`` can't be written or has another
    extension.
    """
    if path.suffix.lower() not in (".html", ".htm"):
        raise UserError(f"{path}: the attention picture is an HTML page; use a file name that ends in .html")
    assert weights.shape[2:] == (len(target.tokens), len(source.tokens))
    layers, highest = weights.mean(1), float(weights.max())
    means = {f"layer {number}": layer for number, layer in enumerate(layers, 1)}
    if len(layers) > 1:
        means = {"mean of all layers": layers.mean(0)} | means

    def panels(shown: Mapping[str, np.ndarray]) -> str:
        return "\n".join(_panel(title, one, highest, source.tokens, target.tokens) for title, one in shown.items())

    heads = (
        f'<details><summary>the heads of layer {number}</summary><div class="panels">\n'
        f"{panels({f'layer {number}, head {head}': one for head, one in enumerate(layer, 1)})}\n</div></details>"
        for number, layer in enumerate(weights, 1)
        if len(layer) > 1
    )
    # Shades go from white to dark blue.
    opacities = [number / SHADES for number in range(SHADES + 1)]
    shades = (f".w{one} {{ background: rgba(23, 64, 120, {opacity:.2f}); }}" for one, opacity in enumerate(opacities))
    page = ATTENTION_PAGE.format(
        shades="\n".join(shades),
        source=_show_token(source.text),
        target=_show_token(target.text),
        legend="".join(f'<i class="w{number}"></i>' for number in range(SHADES + 1)),
        highest=highest,
        panels=panels(means),
        heads="\n".join(heads),
    )
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error


def _panel(
    title: str, weights: np.ndarray, highest: float, source_tokens: Sequence[str], target_tokens: Sequence[str]
) -> str:
    """One table under its ``title``; ``weights`` is ``(target, source)``, and ``highest`` has the darkest shade.

    ``source_tokens`` head the columns, ``target_tokens`` the rows.
    """
    head = "".join(f'<th scope="col">{_show_token(token)}</th>' for token in source_tokens)
    rows = []
    for token, row in zip(target_tokens, weights.tolist(), strict=True):
        cells = (f'<td class="w{round(weight / highest * SHADES)}" title="{weight:.2f}"></td>' for weight in row)
        rows.append(f'<tr><th scope="row">{_show_token(token)}</th>{"".join(cells)}</tr>')
    body = "\n".join(rows)
    return (
        f"<section><h2>{escape(title)}</h2><table><thead><tr><th></th>{head}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></section>"
    )


def _show_token(token: str) -> str:
    """Return a token as text of the page, with newlines to be seen."""
    return escape(token.replace("\n", "⏎"))
