"""Sections of a report about single examples, from evaluations' summaries (``vaak.core.summaries``).

    lm               text that the model wrote, step by step; minimal pairs by phenomenon
    seq2seq          source, hypothesis and reference; cross-attention
    classification   confusion, calibration, the worst errors with their texts
    asr              reference and hypothesis aligned, with players; word error rate by group
    diarization      timelines with players; errors by recording, and by the true number of speakers
    tts              recordings and the same texts spoken

A task adds its own (``TaskSpec.sections``). A value of another kind than a run writes is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vaak.config.metrics import find_metric, get_chance_level, is_fraction, split_part
from vaak.config.tasks import load_name, spec_by_name
from vaak.core.summaries import MOST_SCORES
from vaak.report.history import to_number
from vaak.report.html import Html, data_table, element, to_html
from vaak.report.run_facts import (
    RunFacts,
    choose_summary,
    format_metric,
    summaries,
    summaries_at,
)
from vaak.scoring.word_errors import rate_with_interval

Player = Callable[[str], Html]
"""Gives the player of a sound, by its name; empty if it isn't in the report."""
PlayerAtStep = Callable[[str, int], Html]
"""Likewise, by the sound's whole name and the step of the model that made it."""
PHENOMENA = "phenomena"
"""The key of counts by phenomenon in a summary."""
MOST_SHOWN, MOST_CELLS, MOST_LANES = 60, 40, 12
MOST_UNFOLDED = 10
"""The translations that a reader sees at once: a folded table hides what the model does."""


class Scored(NamedTuple):
    """The parts of a metric: ``sums`` (example, 2), whose ratio it is; ``of`` is a hash of the compared data."""

    figure: str
    sums: list[tuple[float, float]]
    groups: list[str]
    of: str


def scored(summary: Mapping[str, Any]) -> Scored | None:
    """Return the scores of a summary; None if there are none."""
    about = summary.get("scores")
    if not isinstance(about, dict) or not isinstance(about.get("sums"), list):
        return None
    rows = [tuple(map(to_number, row)) for row in about["sums"] if isinstance(row, list) and len(row) == 2]
    sums = [(first, second) for first, second in rows if first is not None and second is not None and second >= 0]
    if len(sums) != len(about["sums"]) or not 0 < len(sums) <= MOST_SCORES:
        return None
    groups = about.get("groups")
    known = [str(one) for one in groups] if isinstance(groups, list) and len(groups) == len(sums) else []
    return Scored(str(about.get("figure"))[:40], sums, known, str(about.get("of")))


def wilson(right: float, number: float) -> tuple[float, float]:
    """Return the 95 % interval of a share. Source: Wilson 1927, "Probable Inference".

    >>> [round(limit, 3) for limit in wilson(80, 100)]
    [0.711, 0.867]
    """
    z = 1.959964
    middle, share = right / number + z * z / (2 * number), right / number
    reach = z * math.sqrt(share * (1 - share) / number + z * z / (4 * number * number))
    return (middle - reach) / (1 + z * z / number), (middle + reach) / (1 + z * z / number)


def intervals(facts: RunFacts, step: int) -> dict[str, tuple[float, float]]:
    """Return the 95 % intervals of metrics of the evaluation at a step, by the metric's name in ``metrics.jsonl``."""
    found: dict[str, tuple[float, float]] = {}
    for prefix, summary in summaries_at(facts, step):
        scores, phenomena = scored(summary), read_phenomena(summary)
        if scores is not None and (limits := rate_with_interval(scores.sums)[1]) is not None:
            found[prefix + scores.figure] = limits
        if phenomena:
            limits = wilson(*map(sum, zip(*phenomena.values(), strict=True)))
            found |= dict.fromkeys(_names_counted_in(facts, step, prefix, PHENOMENA), limits)
    return found


def _names_counted_in(facts: RunFacts, step: int, prefix: str, key: str) -> list[str]:
    """Return the metrics of the evaluation at a step whose metric is counted from the ``key`` of its summary."""
    names = (
        name for name in dict(facts.evaluations).get(step, {}) if name.startswith(prefix) and not split_part(name)[1]
    )
    return [name for name in names if (metric := find_metric(name)) is not None and metric.counts == key]


def make_metric_title(name: str) -> str:
    """How a table calls a metric."""
    metric = find_metric(name)
    return name if metric is None or not metric.title else metric.title


def chances(facts: RunFacts, step: int) -> dict[str, float]:
    """The metrics of guessing, by their names in ``metrics.jsonl``; a classifier's guess is the commonest class."""
    names = dict(facts.evaluations).get(step, {})
    found = {name: chance for name in names if (chance := get_chance_level(name)) is not None}
    for prefix, summary in summaries_at(facts, step):
        matrices, scores = list(_matrices(summary).values()), scored(summary)
        if len(matrices) == 1 and scores is not None:
            of_class = [sum(row) for row in matrices[0][1]]
            if sum(of_class):
                found[prefix + scores.figure] = max(of_class) / sum(of_class)
    return found


def make_example_sections(facts: RunFacts, player: PlayerAtStep) -> list[Html]:
    """Return the page's sections of examples, one for each split, from the checkpoint that its metrics describe.

    A split without a summary of that checkpoint shows its newest, and names its step in the title.
    """
    parts: list[Html] = []
    for prefix, steps in summaries(facts).items():
        step, summary = choose_summary(steps, facts.shown_step)
        split, _, task = prefix.rstrip("_/").partition("_")
        of_task = f"{task}, " if task else ""
        title = of_task + f"{ {'val': 'validation'}.get(split, split) }, step {step:,}" + _name_checkpoint(facts, step)

        def play(name: str, prefix: str = prefix, step: int = step) -> Html:
            return player(prefix.replace("/", "_") + name, step)

        own = [
            *_samples_by_step(steps, step),
            *_pairs_by_phenomenon(summary),
            *_examples(summary, play),
            *_by_group(summary),
            *_confusions(summary),
            *_calibration(summary),
            *_attention(summary),
        ]
        if own:
            parts += [element("h3", title), *own]
    for reference in spec_by_name(facts.summary.task).sections:
        parts += load_name(reference)(facts)
    return parts


def _name_checkpoint(facts: RunFacts, step: int) -> str:
    if step == facts.best_step:
        return " (the best checkpoint)"
    if step == facts.shown_step or not facts.evaluations:
        return ""
    return f" (the newest; of step {facts.shown_step:,}, which the metrics are of, none were kept)"


def bar(value: float, limits: tuple[float, float] | None = None, mark: float | None = None) -> Html:
    """Return a bar for a share; with the ends of its interval, and a mark, such as where chance is."""
    inside = [Html(f'<i style="width:{_percent(value)}"></i>')]
    if limits is not None:
        low, high = limits
        inside.append(Html(f'<b style="left:{_percent(low)};width:{_percent(high - low)}"></b>'))
    if mark is not None:
        inside.append(Html(f'<u style="left:{_percent(mark)}"></u>'))
    return element("span", *inside, css="bar", aria_hidden="true")


def _percent(share: float) -> str:
    return f"{100 * min(1.0, max(0.0, share)):.1f}%"


def read_rows(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)][:MOST_SHOWN] if isinstance(value, list) else []


def read_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


# lm


def _samples_by_step(steps: Sequence[tuple[int, Mapping[str, Any]]], shown: int) -> Iterator[Html]:
    """Yield the texts that were written at each step, the newest first; those of the step ``shown`` are open."""
    for step, one in reversed(steps):
        if texts := [text for text in read_list(one.get("samples")) if isinstance(text, str)]:
            lines = element("ul", *(element("li", text) for text in texts[:MOST_SHOWN]), css="samples")
            summary = element("summary", f"Written at step {step:,}")
            yield element("details", summary, lines, **({"open": ""} if step == shown else {}))


def read_phenomena(summary: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    found = summary.get(PHENOMENA)
    rows = (
        {str(name): [*map(to_number, read_list(one))] for name, one in found.items()} if isinstance(found, dict) else {}
    )
    return {
        name: (row[0], row[1])
        for name, row in rows.items()
        if len(row) == 2 and row[0] is not None and row[1] is not None and 0 <= row[0] <= row[1] and row[1] > 0
    }


def _pairs_by_phenomenon(summary: Mapping[str, Any]) -> Iterator[Html]:
    rows: list[Sequence[object]] = [("phenomenon", "right", "pairs", "accuracy", "95 %", "")]
    found = read_phenomena(summary)
    for name, (right, number) in sorted(found.items(), key=lambda one: one[1][0] / one[1][1]):
        low, high = wilson(right, number)
        share = right / number
        limits = f"{100 * low:.1f} to {100 * high:.1f}"
        rows.append(
            (name, f"{right:.0f}", f"{number:.0f}", f"{100 * share:.1f} %", limits, bar(share, (low, high), 0.5))
        )
    if found:
        yield data_table(rows, "Minimal pairs by phenomenon, the hardest first; the line is chance", folded=30)


# classification


def _matrices(summary: Mapping[str, Any]) -> dict[str, tuple[list[str], list[list[float]]]]:
    found = summary.get("confusions")
    matrices = {}
    for column, one in found.items() if isinstance(found, dict) else ():
        classes = [str(name) for name in read_list(one.get("classes"))] if isinstance(one, dict) else []
        rows = (
            [[to_number(value) or 0.0 for value in read_list(row)] for row in read_list(one.get("counts"))]
            if classes
            else []
        )
        if 0 < len(classes) <= MOST_CELLS and [len(row) for row in rows] == [len(classes)] * len(classes):
            matrices[str(column)] = (classes, rows)
    return matrices


def _confusions(summary: Mapping[str, Any]) -> Iterator[Html]:
    found = _matrices(summary)
    for column, (classes, rows) in found.items():
        title = "Confusion: rows are classes, columns predictions" + (f" ({column})" if len(found) > 1 else "")
        yield heat_table(title, classes, classes, [[value / max(1.0, sum(row)) for value in row] for row in rows], rows)


def heat_table(
    title: str,
    rows: Sequence[str],
    columns: Sequence[str],
    shares: Sequence[Sequence[float]],
    shown: Sequence[Sequence[float]],
) -> Html:
    """Return a table whose cells are the darker the greater their share; each says its row, column and value."""
    head = element("tr", element("td"), *(element("th", element("span", one), scope="col") for one in columns))
    body = []
    for name, own, values in zip(rows, shares, shown, strict=True):
        cells = []
        for column, share, value in zip(columns, own, values, strict=True):
            text = "" if not value else f"{value:g}"
            said = to_html(f"{name}, {column}: {value:g}")
            cells.append(Html(f'<td style="--share:{_percent(share)}" title="{said}">{text}</td>'))
        body.append(element("tr", element("th", name, scope="row"), *cells))
    table = element("table", element("caption", title), element("thead", head), element("tbody", *body), css="heat")
    return element("div", table, css="scroll", tabindex=0, role="region", aria_label=title)


def _calibration(summary: Mapping[str, Any]) -> Iterator[Html]:
    given = summary.get("calibration")
    found: dict[str, Any] = given if isinstance(given, dict) else {}
    for column, bins in found.items():
        rows: list[Sequence[object]] = [("confidence", "decisions", "accuracy", "")]
        for one in read_list(bins)[:MOST_CELLS]:
            number, confidence, right = [*(to_number(value) for value in read_list(one)), None, None, None][:3]
            if number and confidence is not None and right is not None:
                sure, share = confidence / number, right / number
                shown = bar(share, None, sure)
                rows.append((f"{100 * sure:.1f} %", f"{number:.0f}", f"{100 * share:.1f} %", shown))
        if len(rows) > 1:
            title = "Calibration: accuracy by confidence; the line is the confidence"
            yield data_table(rows, title if len(found) == 1 else f"{title} ({column})", folded=20)


# Examples


def _examples(summary: Mapping[str, Any], player: Player) -> Iterator[Html]:
    """Yield examples in the form of their task, which is recognised by their keys."""
    rows = read_rows(summary.get("examples"))
    worst = sorted(
        rows, key=lambda one: (-(to_number(one.get("error")) or 0.0), -(to_number(one.get("confidence")) or 0.0))
    )
    if any("predicted" in one for one in rows):
        yield from _errors_of_classes(worst)
    elif any("references" in one for one in rows):
        yield from _translations(rows)
    elif any("speakers" in one for one in rows):
        yield from _recordings(rows, worst, player)
    elif any("hypothesis" in one for one in rows):
        yield from _transcripts(rows, worst, player)
    elif rows:
        yield from _spoken(rows, read_list(summary.get("spoken")), player)


def _errors_of_classes(worst: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    table: list[Sequence[object]] = [("text", "class", "predicted", "confidence")]
    for one in worst:
        if (to_number(one.get("error")) or 0.0) > 0:
            sure = to_number(one.get("confidence"))
            shown = "" if sure is None else f"{100 * sure:.1f} %"
            table.append((one.get("text", ""), one.get("class", ""), one.get("predicted", ""), shown))
    if len(table) > 1:
        yield from _first_rows(table, "The worst errors, with the highest confidence first", "More errors")


def _first_rows(table: Sequence[Sequence[object]], caption: str, of_others: str) -> Iterator[Html]:
    """Yield a table of the first rows, and one of the others that is folded up."""
    head, *rows = table
    yield data_table([head, *rows[:MOST_UNFOLDED]], caption)
    if others := rows[MOST_UNFOLDED:]:
        yield data_table([head, *others], of_others, folded=0)


def _translations(rows: Sequence[Mapping[str, Any]]) -> Iterator[Html]:
    table: list[Sequence[object]] = [("source", "hypothesis", "reference", "chrF")]
    for one in rows:
        references = Html("<br>").join(to_html(text) for text in read_list(one.get("references")))
        score = to_number(one.get("chrf"))
        shown = "" if score is None else f"{score:.1f}"
        table.append((one.get("source", ""), one.get("hypothesis", ""), Html(references), shown))
    yield from _first_rows(table, "Translations: the first ones, and the worst", "More translations")


def _transcripts(
    rows: Sequence[Mapping[str, Any]], worst: Sequence[Mapping[str, Any]], player: Player
) -> Iterator[Html]:
    with_audio = [one for one in rows if player(str(one.get("audio", "")))]
    others = [one for one in worst if one not in with_audio]
    for title, shown in (("With their audio", with_audio), ("The worst, then the others", others)):
        entries = []
        for one in shown:
            about = [str(one[key]) for key in ("name", "group") if key in one]
            about += [f"expert {one['expert']}"] if "expert" in one else []
            wrong = to_number(one.get("error")) or 0
            about += ["1 error" if wrong == 1 else f"{wrong:g} errors"]
            sides = aligned_texts(str(one.get("reference", "")), str(one.get("hypothesis", "")))
            entries.append(
                element("li", element("p", ", ".join(about), css="lead"), sides, player(str(one.get("audio", ""))))
            )
        if entries:
            listed = element("ul", *entries, css="transcripts")
            legend = element(
                "p", "Struck out: in the reference alone. Underlined: in the hypothesis alone.", css="lead"
            )
            yield element("h4", title)
            yield from (legend,) if shown is with_audio or not with_audio else ()
            yield (
                listed
                if len(entries) <= 8
                else element("details", element("summary", f"{len(entries)} utterances"), listed)
            )


def aligned_texts(reference: str, hypothesis: str) -> Html:
    """Return the words of both texts in the order of their best alignment; those of one text alone are marked.

    >>> aligned_texts("so it is", "so he is it")
    '<p class="aligned">so <del>it</del> <ins>he</ins> is <ins>it</ins></p>'
    """
    # The table grows with the product of both lengths.
    left, right = reference.split()[:200], hypothesis.split()[:200]
    costs = [[*range(len(right) + 1)], *([row] + [0] * len(right) for row in range(1, len(left) + 1))]
    for row, word in enumerate(left, 1):
        for column, other in enumerate(right, 1):
            changed = costs[row - 1][column - 1] + (word != other)
            costs[row][column] = min(changed, costs[row - 1][column] + 1, costs[row][column - 1] + 1)
    row, column, found = len(left), len(right), list[Html]()
    while row or column:
        here = costs[row][column]
        if row and column and here == costs[row - 1][column - 1] + (left[row - 1] != right[column - 1]):
            row, column = row - 1, column - 1
            same = left[row] == right[column]
            found += [to_html(left[row])] if same else [element("ins", right[column]), element("del", left[row])]
        elif row and here == costs[row - 1][column] + 1:
            row -= 1
            found.append(element("del", left[row]))
        else:
            column -= 1
            found.append(element("ins", right[column]))
    return element("p", Html(" ".join(reversed(found))), css="aligned")


def _recordings(
    rows: Sequence[Mapping[str, Any]], worst: Sequence[Mapping[str, Any]], player: Player
) -> Iterator[Html]:
    for one in rows:
        if isinstance(one.get("reference"), list) and isinstance(one.get("hypothesis"), list):
            yield timeline(one, player(str(one.get("audio", ""))))
    head = ("recording", "seconds", "speakers", "found", "DER", "missed", "false alarm", "confused")
    table: list[Sequence[object]] = [head]
    for one in worst:
        scored_seconds = to_number(one.get("scored")) or 0.0
        parts = [to_number(one.get(name)) or 0.0 for name in ("miss", "false_alarm", "confusion")]
        shares = [f"{100 * part / scored_seconds:.1f} %" if scored_seconds else "" for part in (sum(parts), *parts)]
        table.append((*(str(one.get(name, "")) for name in ("name", "seconds", "speakers", "found")), *shares))
    yield data_table(table, "Errors by recording, the worst first", folded=25)


def timeline(one: Mapping[str, Any], sound: Html) -> Html:
    """Who speaks when in a recording: the reference above the hypothesis, a lane for each speaker."""
    seconds = max(to_number(one.get("seconds")) or 0.0, 0.1)
    sides = {side: _by_speaker(one.get(side), seconds) for side in ("reference", "hypothesis")}
    colours = _colours(*sides.values())
    lanes: list[Html] = []
    for side, by_speaker in sides.items():
        lanes.append(element("b", side))
        for speaker, segments in by_speaker.items():
            drawn = (
                Html(f'<i style="left:{_percent(start / seconds)};width:{_percent((end - start) / seconds)}"></i>')
                for start, end in segments
            )
            said = f"{side}, {speaker}: speaks {sum(end - start for start, end in segments):.1f} s"
            lanes.append(element("span", speaker))
            css = f"lane c{colours[side, speaker]}"
            lanes.append(element("div", *drawn, css=css, role="img", aria_label=said, title=said))
    drawn_lanes = element("div", *lanes, css="timeline", data_seconds=f"{seconds:.2f}")
    name = f"{one.get('name', '')}: {seconds:.1f} s"
    return element("figure", element("figcaption", name), drawn_lanes, sound, css="recording")


def _by_speaker(segments: Any, seconds: float) -> dict[str, list[tuple[float, float]]]:
    """Starts and ends of each speaker's segments, of the first speakers by name."""
    found: dict[str, list[tuple[float, float]]] = {}
    for segment in read_list(segments):
        start, end, who = [*read_list(segment), None, None, None][:3]
        begun, ended = to_number(start), to_number(end)
        if begun is not None and ended is not None and 0 <= begun < min(ended, seconds):
            found.setdefault(str(who), []).append((begun, min(ended, seconds)))
    return dict(sorted(found.items())[:MOST_LANES])


def _colours(
    reference: Mapping[str, list[tuple[float, float]]], hypothesis: Mapping[str, list[tuple[float, float]]]
) -> dict[tuple[str, str], str]:
    """Return the number of each speaker's colour: in the hypothesis that of the best overlapping reference, or grey."""
    found = {("reference", name): str(number % 6) for number, name in enumerate(reference)}
    shared = {
        (name, other): sum(
            max(0.0, min(end, ends) - max(start, starts)) for start, end in own for starts, ends in theirs
        )
        for name, own in hypothesis.items()
        for other, theirs in reference.items()
    }
    taken: set[str] = set()
    # Greedy, the longest overlap first: this only chooses colours, and no figure depends on it.
    for (name, other), seconds in sorted(shared.items(), key=lambda one: -one[1]):
        if seconds > 0 and ("hypothesis", name) not in found and other not in taken:
            taken.add(other)
            found["hypothesis", name] = found["reference", other]
    return {**{("hypothesis", name): "x" for name in hypothesis}, **found}


def _spoken(rows: Sequence[Mapping[str, Any]], texts: Sequence[Any], player: Player) -> Iterator[Html]:
    for one in rows:
        number = int(to_number(one.get("index")) or 0) + 1
        sides = [(side, player(f"{side}-{number}")) for side in ("recorded", "spoken")]
        shown = [element("div", element("p", side, css="lead"), sound) for side, sound in sides if sound]
        if shown:
            yield element("figure", element("figcaption", str(one.get("text", ""))), *shown, css="spoken")
    for number, text in enumerate(texts[:MOST_SHOWN], 1):
        if sound := player(f"sample-{number}"):
            yield element("figure", element("figcaption", str(text)), sound, css="spoken")


def _by_group(summary: Mapping[str, Any]) -> Iterator[Html]:
    """Yield the metric of each group with its interval; for a diarizer, by the true number of speakers."""
    found = scored(summary)
    if found is None:
        return
    name = make_metric_title(found.figure)
    metric = find_metric(found.figure)
    what = "group" if metric is None else metric.grouped_by
    rows: list[Sequence[object]] = [(what, "examples", name, "95 %", "")]
    # By length first: 10 speakers come after 9.
    groups = sorted(set(found.groups), key=lambda one: (len(one), one)) if found.groups else []
    for group in [*groups[:MOST_CELLS], None]:
        sums = [
            one
            for one, of in zip(found.sums, found.groups or [""] * len(found.sums), strict=True)
            if group in (of, None)
        ]
        value, limits = rate_with_interval(sums)
        if value is None or limits is None:
            continue
        shown = [format_metric(found.figure, one) for one in (value, *limits)]
        drawn = bar(value, limits) if is_fraction(found.figure) else Html("")
        rows.append(("all" if group is None else group, str(len(sums)), shown[0], f"{shown[1]} to {shown[2]}", drawn))
    if len(rows) > 1:
        title = f"{name} with intervals" + (f", by {what}" if groups else "")
        first = f", of the first {MOST_SCORES:,} examples" if len(found.sums) == MOST_SCORES else ""
        yield data_table(rows, title + first, folded=30)


def _attention(summary: Mapping[str, Any]) -> Iterator[Html]:
    found = summary.get("attention")
    if not isinstance(found, dict):
        return
    source, target = ([str(one) for one in read_list(found.get(side))][:MOST_CELLS] for side in ("source", "target"))
    weights = [[to_number(one) or 0.0 for one in read_list(row)] for row in read_list(found.get("weights"))]
    if source and [len(row) for row in weights] == [len(source)] * len(target):
        highest = max(0.01, *(one for row in weights for one in row))
        shares = [[one / highest for one in row] for row in weights]
        blank = [[0.0] * len(source) for _ in target]
        title = "Cross-attention: rows are target tokens, columns source tokens; the mean over layers and heads"
        yield heat_table(title, target, source, shares, blank)
