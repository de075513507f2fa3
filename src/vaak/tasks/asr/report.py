"""Parts of a recogniser's report besides its examples: the gate's routing, and results of a pipeline's stages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vaak.report.examples import MOST_CELLS, bar, heat_table, read_list, read_rows
from vaak.report.history import to_number
from vaak.report.html import Html, data_table, element
from vaak.report.model_card import read_json_object
from vaak.report.run_facts import RunFacts, format_metric, is_own


def show_routing(facts: RunFacts) -> Iterator[Html]:
    """Yield how much each expert is used and how well it does in the shown evaluation."""
    step, metrics, _ = facts.shown_evaluation
    uses = {name.rpartition("/")[2]: value for name, value in metrics.items() if name.startswith("val_expert_use/")}
    rows: list[Sequence[object]] = [("expert", "use", "", "mean weight", "WER of its utterances")]
    for expert, use in sorted(uses.items(), key=lambda one: (len(one[0]), one[0]))[:MOST_CELLS]:
        weight, errors = (metrics.get(f"val_{name}/{expert}") for name in ("expert_weight", "expert_wer"))
        cells = (f"{100 * (use or 0):.1f} %", bar(use or 0.0), "" if weight is None else f"{weight:.3f}")
        rows.append((expert, *cells, "" if errors is None else format_metric("val_expert_wer", errors)))
    if len(rows) > 1:
        yield element("h3", f"Routing, step {step:,}")
        yield data_table(rows, "Experts that the gate chooses", folded=30)


def show_pipeline(facts: RunFacts) -> Iterator[Html]:
    """Yield the results of a pipeline's stages: its gate's choices for each cluster, and its experts."""
    folder = facts.pipeline
    if folder is None:
        return
    gate = read_json_object(folder / "gate" / "gate.json") if is_own(folder, folder / "gate" / "gate.json") else {}
    rows = [[to_number(value) or 0.0 for value in read_list(row)] for row in read_list(gate.get("confusion"))]
    names = [str(number) for number in range(len(rows))]
    # The file may be damaged, or a stranger's: only a square table is a confusion.
    if 0 < len(rows) <= MOST_CELLS and [len(row) for row in rows] == [len(rows)] * len(rows):
        shares = [[value / max(1.0, sum(row)) for value in row] for row in rows]
        yield element("h3", "Gate")
        yield heat_table("What the gate chooses: rows are clusters, columns experts", names, names, shares, rows)
    about = (
        read_json_object(folder / "experts" / "experts.json")
        if is_own(folder, folder / "experts" / "experts.json")
        else {}
    )
    table: list[Sequence[object]] = [("expert", "training utterances", "WER alone")]
    for one in read_rows(about.get("experts")):
        errors = to_number(one.get("wer"))
        table.append((str(one.get("expert")), str(one.get("train")), "" if errors is None else f"{100 * errors:.2f} %"))
    if len(table) > 1:
        yield data_table(table, "Experts after their own training", folded=30)
