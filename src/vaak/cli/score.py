"""``vaak score``: error rates of any system's output: diarization (der), words (wer), by speaker (cpwer), speech."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from vaak.cli.arguments import AsJson
from vaak.core.errors import UserError
from vaak.core.metrics import percent
from vaak.report.tables import aligned

if TYPE_CHECKING:
    from vaak.scoring.diarization_errors import Score, Scores
    from vaak.scoring.word_errors import ErrorRates

app = typer.Typer(
    help="Score any system's output.",
    epilog="Example: vaak score der reference.rttm hypothesis.rttm",
    no_args_is_help=True,
    add_completion=False,
)

WER_HEADER = ("group", "WER %", "95 %", "CER %", "95 %", "substituted", "deleted", "inserted", "words")
CPWER_HEADER = ("recording", "cpWER %", "tcpWER %", "words", "cp errors", "tcp errors", "speakers found")
DER_HEADER = ("recording", "DER %", "miss %", "false alarm %", "confusion %", "JER %", "scored s")


@app.callback()
def score() -> None:
    """Score any system's output."""


@app.command()
def der(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="An RTTM file, or a folder of them.")],
    hypothesis: Annotated[Path, typer.Argument(metavar="HYP", help="An RTTM file, or a folder of them.")],
    uem: Annotated[Path | None, typer.Option(help="The regions to score: a UEM file, or a folder of them.")] = None,
    collar: Annotated[
        float, typer.Option(help="Seconds on each side of reference boundaries that are not scored.")
    ] = 0.0,
    skip_overlap: Annotated[
        bool, typer.Option("--skip-overlap", help="Don't score overlapping speech of the reference.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print diarization and Jaccard error rates of every recording and in total, with their protocol.

    Example: vaak score der reference.rttm hypothesis.rttm --collar 0.25
    """
    from vaak.audio.formats.annotation_lines import read_rttm
    from vaak.scoring.diarization_errors import read_reference, read_scored_regions, score_recordings

    if not 0 <= collar < math.inf:
        raise UserError(f"--collar {collar:g}: expected seconds, 0 or more")
    parts = None if uem is None else read_scored_regions(uem)
    scores = score_recordings(read_reference(reference), read_rttm(hypothesis), parts, collar, skip_overlap)
    if as_json:
        print(json.dumps(to_values(scores), ensure_ascii=False))
    else:
        print_scores(scores)


@app.command()
def wer(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="JSON lines, a table (CSV, TSV), or lines of text.")],
    hypothesis: Annotated[Path, typer.Argument(metavar="HYP", help="The same, from the system to score.")],
    normaliser: Annotated[str, typer.Option(help="Text normalisation: whisper-english, basic or none.")] = "basic",
    group: Annotated[str | None, typer.Option(help="A key of REF: also print rates for each of its values.")] = None,
    speaker: Annotated[
        str | None, typer.Option(help="A key of REF: compute intervals over its values, not over utterances.")
    ] = None,
    named: Annotated[bool, typer.Option("--named", help="Lines of text begin with the utterance's name.")] = False,
    as_json: AsJson = False,
) -> None:
    """Print word and character error rates with their intervals, in total and by group, with their protocol.

    Utterances are matched by name (id), lines of text by their number. Utterances missing from HYP count as missed.

    Example: vaak score wer reference.jsonl hypothesis.jsonl --normaliser whisper-english --group accent
    """
    from vaak.scoring.normalisers import normaliser as find_normaliser
    from vaak.scoring.word_errors import read_transcripts, require_same_lines, score_texts

    references, found = read_transcripts(reference, group, named=named), read_transcripts(hypothesis, named=named)
    require_same_lines(references, reference, found, hypothesis)
    speakers = None if speaker is None else read_transcripts(reference, speaker, named=named).groups
    scores = score_texts(references.texts, found.texts, references.groups, find_normaliser(normaliser), speakers)
    if as_json:
        print(json.dumps(scores.to_json(), ensure_ascii=False))
        return
    rows = [WER_HEADER, *(_wer_cells(name, rates) for name, rates in (*scores.groups.items(), ("total", scores.total)))]
    _print_table(rows, scores.protocol, None)


@app.command()
def cpwer(
    reference: Annotated[
        Path,
        typer.Argument(metavar="REF", help="Turns with speaker and text: .stm, .rttm, .json, .jsonl; or a folder."),
    ],
    hypothesis: Annotated[Path, typer.Argument(metavar="HYP", help="The same, from the system to score.")],
    normaliser: Annotated[str, typer.Option(help="Text normalisation: whisper-english, basic or none.")] = "basic",
    collar: Annotated[float, typer.Option(help="tcpWER: seconds by which a word's time may be off.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Print word error rates for transcripts with speakers: cpWER, and tcpWER, which also requires the right times.

    Speakers may have any names: they are matched so that errors are fewest. Utterances that HYP lacks count as missed.

    Example: vaak score cpwer reference.stm found.stm --collar 5
    """
    from vaak.scoring.normalisers import normaliser as find_normaliser
    from vaak.scoring.speaker_errors import read_turns, score_turns

    if not 0 <= collar < math.inf:
        raise UserError(f"--collar {collar:g}: expected seconds, 0 or more")
    scores = score_turns(read_turns(reference), read_turns(hypothesis), find_normaliser(normaliser), collar)
    values = {name: counts.to_json() for name, counts in scores.recordings.items()}
    total = scores.total.to_json()
    if as_json:
        print(json.dumps({"protocol": scores.protocol, "total": total, "recordings": values}, ensure_ascii=False))
        return
    rows: list[tuple[str, ...]] = [CPWER_HEADER]
    for name, found in (*values.items(), ("total", total)):
        rates = ("-" if found[rate] is None else f"{100 * found[rate]:.2f}" for rate in ("cpwer", "tcpwer"))
        errors = (str(found[count]) for count in ("words", "cp_errors", "tcp_errors"))
        rows.append((name, *rates, *errors, f"{found['found_speakers']} of {found['speakers']}"))
    _print_table(rows, scores.protocol, None)


def _wer_cells(name: str, rates: ErrorRates) -> tuple[str, ...]:
    def cells(rate: float | None, interval: tuple[float, float] | None) -> tuple[str, str]:
        if rate is None or interval is None:
            return "-", "-"
        return f"{100 * rate:.2f}", f"{100 * interval[0]:.2f}–{100 * interval[1]:.2f}"

    counts = rates.counts
    errors = (str(counts.substitutions), str(counts.deletions), str(counts.insertions), str(counts.words))
    return name, *cells(rates.wer, rates.wer_interval), *cells(rates.cer, rates.cer_interval), *errors


def to_values(scores: Scores) -> dict[str, Any]:
    """The scores as plain values."""
    rows = {row.recording: _value(row) for row in scores.rows}
    return {"protocol": scores.protocol, "total": _value(scores.total), "recordings": rows}


def _value(row: Score) -> dict[str, float | None]:
    """Rates (1 is 100 %; in percent by the names that say so) and their components."""
    error = row.error
    return {
        "der": error.rate,
        "der_percent": percent(error.rate),
        "jer": row.jaccard_rate,
        "jer_percent": percent(row.jaccard_rate),
        "scored_seconds": error.scored,
        "miss_seconds": error.miss,
        "false_alarm_seconds": error.false_alarm,
        "confusion_seconds": error.confusion,
        "num_speakers": row.num_speakers,
    }


def print_scores(scores: Scores, file: TextIO | None = None) -> None:
    """A row for each recording, one for all, and the protocol; to standard output where no ``file`` is given."""
    rows: list[tuple[str, ...]] = [DER_HEADER]
    for row in (*scores.rows, scores.total):
        error = row.error
        parts = (error.miss, error.false_alarm, error.confusion)
        rates = error.rate, *(part / error.scored if error.scored else None for part in parts), row.jaccard_rate
        cells = ("-" if rate is None else f"{100 * rate:.2f}" for rate in rates)
        rows.append((row.recording, *cells, f"{error.scored:.2f}"))
    _print_table(rows, scores.protocol, file)


def _print_table(rows: Sequence[tuple[str, ...]], protocol: Mapping[str, str], file: TextIO | None) -> None:
    print("\n".join(aligned(rows, left=1)), file=file)
    print(", ".join(f"{name} {value}" for name, value in protocol.items()), file=file)


@app.command()
def speech(
    reference: Annotated[Path, typer.Argument(metavar="REF", help="A folder of recordings.")],
    hypothesis: Annotated[Path, typer.Argument(metavar="HYP", help="A folder of spoken audio with the same names.")],
    texts: Annotated[
        Path | None,
        typer.Option(help="NAME|TEXT for each, or a table with id and text: also score words, by PocketSphinx."),
    ] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Score the recordings of HYP only, if REF has more.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compare synthesised speech with recordings of the same texts: spectrum, pitch and, with --texts, words.

    Example: vaak score speech wavs spoken --texts metadata.csv
    """
    from vaak.cli.output import print_metrics
    from vaak.scoring.speech_scores import score_folders

    scores = score_folders(reference, hypothesis, texts, partial=partial)
    if as_json:
        print(json.dumps({"protocol": scores.protocol, "total": scores.total, "utterances": scores.rows}))
        return
    print_metrics({"utterances": len(scores.rows), **scores.total})
    for name, value in scores.protocol.items():
        print(f"{name}: {value}")
