"""Messages about a folder without usable training data: its contents, and the needs of each task."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from pathlib import Path

from vaak.audio.audio_file import NOT_READ, is_audio
from vaak.core.storage.archives import list_files, locate_on_disk, read_state
from vaak.runs.preflight.doctor.text_layouts import is_token_list

MOST_FILES = 100_000
MOST_KINDS = 6
EXPORTED = {".cha": "CHAT", ".trs": "Transcriber", ".stm": "STM", ".sbv": "SBV", ".ass": "ASS", ".sgm": "SGML"}
"""Transcripts that aren't read, by their endings."""
TOKEN_ENDINGS = (".txt", ".tsv", ".conll", ".conllu", ".iob", ".bio")
NEEDS = {
    "speech recognition": "put x.txt next to x.wav, or a table with a column of file names and one of texts",
    "voices": "the same, of one speaker",
    "who speaks when": "put x.rttm or x.TextGrid next to x.wav",
    "a vocoder": "recordings, listed in a table with a column of file names and one of speakers",
    "a language model": "texts: .txt, .md, .jsonl, or a table with a column text",
    "a classifier": "a table with a column text and a column label",
    "translation": "a table or .jsonl with columns source and target, or files such as a.en and a.hi of as many lines",
    "a chat model": "JSON lines or Parquet with messages, conversations, or instruction and output",
}


def describe_unusable(place: Path) -> str:
    """Return a message on the contents, and on how to make them data of a task."""
    paths = list(islice(list_files(place), MOST_FILES))
    paths = [path for path in paths if not path.name.startswith(".")]
    if not paths:
        return f"{place} is empty: no data to train on"
    kinds = Counter(path.suffix.lower() or "files without an ending" for path in paths)
    said = [f"{number:,} {kind}" for kind, number in kinds.most_common(MOST_KINDS)]
    said += [f"{len(kinds) - MOST_KINDS} other kinds"] if len(kinds) > MOST_KINDS else []
    said += ["all empty"] if not any(read_state(path)[0] for path in paths) else []
    audio = [path for path in paths if is_audio(path) or path.suffix.lower() in NOT_READ]
    texts = {path.stem for path in paths if path.suffix.lower() in (".txt", ".lab", ".srt", ".vtt", ".eaf")}
    if audio:
        without = sum(path.stem not in texts for path in audio)
        said += [f"no text for {without:,} of {len(audio):,}"]
    tokens = [path for path in paths if path.suffix.lower() in TOKEN_ENDINGS and is_token_list(path)]
    said += [f"{len(tokens):,} of them with a token in each line (as in CoNLL's tasks): no task labels tokens"] * bool(
        tokens
    )
    said += [
        f"{kinds[one]:,} {one} ({name}) aren't read: export ELAN, SRT or a table"
        for one, name in EXPORTED.items()
        if one in kinds
    ]
    archives = {archive.name: None for path in audio if (archive := locate_on_disk(path)) != path}
    said += [f"audio isn't read in {', '.join(archives)}: unpack it"] if archives else []
    unread = sum(path.suffix.lower() in NOT_READ for path in audio)
    said += [f"{unread:,} in a format that isn't read: convert them to FLAC or WAV"] if unread else []
    tasks = ("speech recognition", "voices", "who speaks when", "a vocoder") if audio else tuple(NEEDS)
    needs = "; ".join(f"{task} needs: {NEEDS[task]}" for task in tasks if task in NEEDS)
    return f"{place} has nothing to train on: {', '.join(said)}; {needs}"
