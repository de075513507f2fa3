"""Diarization error rates that a diarizer has to beat, on any recordings (``vaak baseline`` gives those of a recipe's).

    python benchmarks/diarization_baselines.py FOLDER
    python benchmarks/diarization_baselines.py AUDIO --rttm RTTM --uem UEM

FOLDER holds conversations with RTTM, as ``vaak data simulate`` writes them; audio and RTTM are matched by name. A row
of the table for each of ``vaak.tasks.diarization.metrics``, at collar 0 with overlap scored, over all recordings
together. The UEM is scored, or the whole of each recording where there is none.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vaak.audio.audio_file import AudioFile
from vaak.audio.formats.annotation_lines import read_rttm, read_uem
from vaak.audio.segments import Segment, merged
from vaak.core.errors import UserError
from vaak.scoring.diarization_errors import Score, score_recordings
from vaak.tasks.diarization.metrics import AUDIO, BASELINES, Conversation

ENDINGS = (".flac", ".wav", ".ogg", ".mp3", ".opus")


@dataclass(frozen=True)
class FileRecording:
    """A conversation in a file, which is read when it is asked for."""

    path: Path
    reference: list[Segment]

    @property
    def file(self) -> AudioFile:
        return AudioFile(self.path, AUDIO.sampling_rate)

    @property
    def duration(self) -> float:
        return self.file.duration

    @property
    def samples(self) -> np.ndarray:
        file = self.file
        return file.read(0.0, file.duration)


def read_conversations(audio: Path, rttm: Path) -> dict[str, FileRecording]:
    """The recordings that have both audio and a reference, by name."""
    references = read_rttm(rttm)
    paths = {path.stem: path for path in sorted(audio.rglob("*")) if path.suffix.lower() in ENDINGS}
    names = sorted(set(paths) & set(references))
    if not names:
        raise SystemExit(f"no audio under {audio} has its name in the RTTM of {rttm}")
    return {name: FileRecording(paths[name], merged(references[name])) for name in names}


def score(
    baseline: Callable[[Conversation], list[Segment]],
    conversations: dict[str, FileRecording],
    uems: Mapping[str, Sequence[tuple[float, float]]],
) -> Score:
    """The total over all recordings."""
    references = {name: conversation.reference for name, conversation in conversations.items()}
    hypotheses = {name: baseline(conversation) for name, conversation in conversations.items()}
    return score_recordings(references, hypotheses, uems, collar=0.0, skip_overlap=False).total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("audio", type=Path, help="folder of recordings, in any depth")
    parser.add_argument("--rttm", type=Path, help="file or folder; not given, the same folder")
    parser.add_argument("--uem", type=Path, help="file or folder; not given, the whole of each recording")
    options = parser.parse_args()
    conversations = read_conversations(options.audio, options.rttm or options.audio)
    uems: dict[str, Sequence[tuple[float, float]]]
    uems = {name: [(0.0, conversation.duration)] for name, conversation in conversations.items()}
    if options.uem:
        uems |= {name: parts for name, parts in read_uem(options.uem).items() if name in uems}
    seconds = sum(conversation.duration for conversation in conversations.values())
    print(f"{len(conversations)} recordings, {seconds / 60:.1f} minutes, collar 0, overlap scored, per cent\n")
    print("| baseline | DER | miss | false alarm | confusion | JER |\n|---|---|---|---|---|---|")
    for name, baseline in BASELINES.items():
        total = score(baseline, conversations, uems)
        error = total.error
        parts = (error.errors, error.miss, error.false_alarm, error.confusion)
        cells = [f"{100 * seconds / error.scored:.1f}" for seconds in parts]
        print(f"| {name} | {' | '.join(cells)} | {100 * (total.jaccard_rate or 0):.1f} |")


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        raise SystemExit(f"error: {error}") from None
