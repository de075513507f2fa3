"""``vaak diarize``: who speaks when in recordings; ``vaak tune``: a diarizer's settings by development recordings."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vaak.cli.arguments import (
    AudioFiles,
    BatchSize,
    ModelInUse,
    add_options,
    make_overrides,
    on_a_run,
)
from vaak.cli.output import create_folder, failed_to_json
from vaak.core.errors import UserError
from vaak.core.left_out import ReadFiles, files_to_json, noting_files
from vaak.core.matching import pair_names, quote_names, rename_like
from vaak.core.progress import track
from vaak.tasks.diarization.config import InferenceConfig

if TYPE_CHECKING:
    from vaak.audio.segments import Segment
    from vaak.runs.open_run import OpenedRun
    from vaak.scoring.diarization_errors import Scores
    from vaak.tasks.diarization.enrolment import Enrolment, Named
    from vaak.tasks.diarization.predict import Diarized

log = logging.getLogger("vaak")
LATE_SECONDS = 0.1
"""By which a label may end after its recording, for annotations are rounded."""


@on_a_run
@add_options(InferenceConfig, into="inference", leave_out=["speaker_features"])
def diarize(
    chosen: ModelInUse,
    audio: AudioFiles,
    inference: dict[str, Any],
    output: Annotated[
        Path | None,
        typer.Option(help="FILE.rttm for all recordings, or a folder for one file each; default: standard output."),
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="A folder for timelines, or FILE.png for a single recording.")
    ] = None,
    reference: Annotated[
        Path | None, typer.Option(help="Reference RTTM, a file or a folder: prints DER, and adds it to the timeline.")
    ] = None,
    uem: Annotated[
        Path | None, typer.Option(help="The regions scored in DER: a UEM file, or a folder of them.")
    ] = None,
    enrol: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE: a recording of one known speaker; may be repeated. Requires a speaker encoder."),
    ] = None,
    enrol_threshold: Annotated[
        float | None,
        typer.Option(
            min=0, max=2, help="Cosine distance above which nobody is a known speaker; default: the encoder's own."
        ),
    ] = None,
    batch_size: BatchSize = None,
) -> None:
    """Find who speaks when, and write RTTM. Audio may have any sampling rate, number of channels and length.

    Options default to those of the run: the ones that vaak tune found, otherwise data.inference of its YAML.
    Files that can't be read are reported; the others are still processed, and the exit code is 2.

    Example: vaak diarize runs/diarizer meetings --output rttm --picture timelines
    """
    from vaak.tasks.diarization.enrolment import Enrolment, parse_enrolled

    known, enrolled = References.read(reference, uem), parse_enrolled(enrol or [])
    if enrol_threshold is not None and not enrolled:
        raise UserError("--enrol-threshold is for known speakers, who are given by --enrol NAME=FILE")
    work = DiarizationJob.of(audio, known, output, picture)
    bounds = [name for name in ("min_speakers", "max_speakers") if name in inference]
    if bounds and "num_speakers" in inference:
        raise UserError(f"--num-speakers fixes the number; leave out --{bounds[0].replace('_', '-')}")
    # bounds of the number override a number that is given in the run
    options = ({"num_speakers": None} if bounds else {}) | inference
    opened = chosen.open_for("diarize", make_overrides("data.inference", options))
    counts = [name for name in inference if name.endswith("_speakers")]
    if counts and opened.task.collator.names is not None:
        kind = opened.task.experiment.training.eval_knobs.label_type.type
        raise UserError(
            f"--{counts[0].replace('_', '-')}: a model with label_type {kind} finds speakers by name; leave it out"
        )
    # A folder that can't be made is reported before hours of work.
    for option, path, file in (("--output", output, ".rttm"), ("--picture", picture, ".png")):
        create_folder(path.parent if path is not None and path.suffix == file else path, option)
    with opened.precision.autocast():
        enrolment = Enrolment.open(enrolled, opened, enrol_threshold) if enrolled else None
        found, failed = _diarize_all(work, opened, batch_size, enrolment, quiet=chosen.as_json)
    scores, mistake = None, None
    try:
        scores = _scores(found.values(), known, opened)
    # A mistake of the reference: the result itself is still printed, then this is raised.
    except UserError as error:
        mistake = error
    _say(found, failed, scores, opened, work, as_json=chosen.as_json)
    if mistake is not None:
        raise mistake
    if failed:
        raise typer.Exit(2)


@dataclass(frozen=True)
class References:
    """The reference, if there is one, and the regions of it that are scored."""

    references: dict[str, list[Segment]] | None
    uems: Mapping[str, Sequence[tuple[float, float]]] | None

    @classmethod
    def read(cls, reference: Path | None, uem: Path | None) -> References:
        from vaak.scoring.diarization_errors import read_reference, read_scored_regions

        if uem is not None and reference is None:
            raise UserError("--uem limits what is scored in DER, which requires --reference")
        references = None if reference is None else read_reference(reference)
        return cls(references, None if uem is None else read_scored_regions(uem))


@dataclass(frozen=True)
class DiarizationJob:
    """The files to process, their names, and where the results are written."""

    names: dict[Path, str]
    without: dict[Path, UserError]
    known: References
    output: Path | None
    picture: Path | None
    looked_through: dict[str, ReadFiles]
    """The contents of folders that were read and left out."""
    named: dict[Path, Named] = field(default_factory=dict)
    """The recordings in which known speakers were looked for."""

    @classmethod
    def of(cls, audio: list[Path], known: References, output: Path | None, picture: Path | None) -> DiarizationJob:
        """Raises UserError if the reference is of other recordings, or if one picture is to show several."""
        from vaak.audio.audio_file import audio_files
        from vaak.audio.formats.annotation_lines import name_recordings

        with noting_files() as noted:
            files, without = audio_files(audio)
        names = name_recordings(files, known.references or ())
        if known.references is not None and files and not pair_names(known.references, names.values()):
            there, here = min(known.references, default="nothing"), min(names.values())
            raise UserError(
                f"--reference has none of these recordings (it has {there}, not {here}); use the same names"
            )
        if picture is not None and picture.suffix == ".png" and len(names) > 1:
            raise UserError(f"--picture {picture} is for one recording, but there are {len(names)}: give a folder")
        return cls(names, without, known, output, picture, noted)

    @property
    def output_is_file(self) -> bool:
        """Whether all recordings go to one RTTM file."""
        return self.output is not None and self.output.suffix == ".rttm"

    def keep(self, found: Diarized, quiet: bool) -> None:
        """Write, draw or print a recording."""
        from vaak.audio.formats.annotation_lines import rttm_text
        from vaak.report.audio import draw_timeline

        if self.output is None and not quiet:
            sys.stdout.write(rttm_text({found.name: found.segments}, Path(found.name)))
            sys.stdout.flush()
        if self.output is not None and not self.output_is_file:
            _write(self.output / f"{found.name}.rttm", [found])
        if self.picture is not None:
            path = self.picture if self.picture.suffix == ".png" else self.picture / f"{found.name}.png"
            right = None if self.known.references is None else self.known.references.get(found.name)
            draw_timeline(path, found.segments, right, found.duration, found.name)


def _diarize_all(
    work: DiarizationJob, opened: OpenedRun, batch_size: int | None, enrolment: Enrolment | None, quiet: bool
) -> tuple[dict[Path, Diarized], dict[Path, UserError]]:
    """Process all files; results and errors by file. Each is printed at once."""
    found, failed = dict[Path, "Diarized"](), dict(work.without)
    for error in failed.values():
        print(error, file=sys.stderr)
    diarizer = opened.task.diarizer(opened.model, opened.experiment.data.inference)
    diarized = diarizer.diarize_files(work.names.items(), opened.task.audio, batch_size)
    for path, one in track(diarized, "recordings", len(work.names)):
        if isinstance(one, UserError):
            failed[path] = one
            print(one, file=sys.stderr, flush=True)
            continue
        if enrolment is not None:
            named = enrolment.name_speakers(path, one)
            one, work.named[path] = named.diarized, named
            print(f"{path}: {named.to_line()}; threshold {enrolment.threshold:g}", file=sys.stderr, flush=True)
        found[path] = one
        work.keep(one, quiet)
        if not quiet:
            speakers = len({segment.speaker for segment in one.segments})
            most = "; as many speakers as the model can tell apart: there may be more" if one.at_ceiling else ""
            print(f"{path}: speakers {speakers}, {_pace([one])}{most}", file=sys.stderr, flush=True)
    if work.output is not None and work.output_is_file:
        _write(work.output, found.values())
    return found, failed


def _write(path: Path, recordings: Iterable[Diarized]) -> None:
    from vaak.audio.formats.annotation_lines import write_rttm

    try:
        write_rttm(path, {one.name: one.segments for one in recordings})
    except OSError as error:
        raise UserError(f"{path} can't be written: {error.strerror or error}") from error


def _scores(found: Collection[Diarized], known: References, opened: OpenedRun) -> Scores | None:
    """The scores of those recordings that the reference has; logs which of the reference aren't scored, and why."""
    from vaak.scoring.diarization_errors import score_recordings

    if known.references is None:
        return None
    hypotheses = rename_like(known.references, {one.name: one for one in found})
    scored = known.references.keys() & hypotheses.keys()
    if not scored:
        return None
    if others := known.references.keys() - scored:
        log.warning("--reference has %d recordings more, which aren't scored: %s", len(others), quote_names(others))
    for name in sorted(scored):
        _require_within(known.references[name], hypotheses[name])
    references = {name: known.references[name] for name in scored}
    segments = {name: one.segments for name, one in hypotheses.items()}
    uems = known.uems
    if uems is not None:
        uems = {name: parts for name, parts in rename_like(hypotheses, uems).items() if name in hypotheses}
    return score_recordings(references, segments, uems, **opened.experiment.data.scoring.model_dump())


def _require_within(reference: Sequence[Segment], found: Diarized) -> None:
    """Warn of labels that end after their recording. Raises UserError where most do: they aren't in seconds."""
    late = [one for one in reference if one.end > found.duration + LATE_SECONDS]
    if len(late) > len(reference) / 2:
        raise UserError(
            f"--reference: {len(late)} of {len(reference)} labels of {found.name} end after its {found.duration:.2f} s"
            f" (at {late[-1].end:g}): they are of another recording, or not in seconds"
        )
    if late:
        log.warning("%s: %d labels of the reference end after the recording", found.name, len(late))


def _say(
    found: Mapping[Path, Diarized],
    failed: Mapping[Path, UserError],
    scores: Scores | None,
    opened: OpenedRun,
    work: DiarizationJob,
    *,
    as_json: bool,
) -> None:
    """Print the summary of all files.

    ``found`` has the results by file and ``failed`` the reasons by file; ``scores`` are None without a reference.
    ``opened`` is the run, ``work`` has the files left out, and ``as_json`` prints one line of JSON.
    """
    from vaak.cli.score import print_scores, to_values

    if not as_json:
        if scores is not None:
            print_scores(scores, sys.stderr)
        failures = f"; {len(failed)} failed" if failed else ""
        print(f"files {len(found)}, {_pace(list(found.values()))}{failures}", file=sys.stderr)
        return
    said = {
        "checkpoint": str(opened.checkpoint),
        "inference": opened.task.diarizer(opened.model).settled.model_dump(mode="json"),
        "recordings": [_values(path, one, work.named.get(path)) for path, one in found.items()],
        "failed": failed_to_json(failed),
        "files": files_to_json(work.looked_through),
        "total": {"recordings": len(found), "failed": len(failed), **_times(list(found.values()))},
    }
    print(json.dumps(said | ({} if scores is None else {"scores": to_values(scores)}), ensure_ascii=False))


def _values(path: Path, one: Diarized, named: Named | None) -> dict[str, Any]:
    segments = [segment._asdict() for segment in one.segments]
    speakers = sorted({segment.speaker for segment in one.segments})
    return {
        "file": str(path),
        "name": one.name,
        "speakers": speakers,
        "at_ceiling": one.at_ceiling,
        **_times([one]),
        "segments": segments,
        **({} if named is None else {"enrolled": named.to_json()}),
    }


def _times(recordings: list[Diarized]) -> dict[str, float | None]:
    duration, taken = (sum(getattr(one, name) for one in recordings) for name in ("duration", "seconds_taken"))
    return {
        "duration": duration,
        "seconds_taken": round(taken, 3),
        "real_time_factor": round(taken / duration, 5) if duration else None,
    }


def _pace(recordings: list[Diarized]) -> str:
    times = _times(recordings)
    factor = times["real_time_factor"]
    said = "" if factor is None else f", real-time factor {factor:.4f}"
    return f"{times['duration']:.1f} s of audio in {times['seconds_taken']:.2f} s{said}"
