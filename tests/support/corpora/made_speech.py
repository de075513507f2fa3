"""Recordings and their texts, as people have them, for tests of layouts."""

from __future__ import annotations

from pathlib import Path

from tiny_audio import write_audio

TEXTS = ["so it is said", "no more of that", "मैं घर जाता हूँ", "they went, away", "it rains again", "we know it"]
SPEAKERS = ["p225", "p226"]
NUMBER = len(TEXTS)
SECONDS = 3.0
Said = list[tuple[str | None, str]]


def wavs(folder: Path, names: list[str] | None = None) -> None:
    for number, name in enumerate(names or [f"{one}.wav" for one in "abcdef"]):
        write_audio(folder / name, SECONDS, 16000, seed=number)


def said(speakers: bool = False) -> Said:
    return [(SPEAKERS[number % 2] if speakers else None, text) for number, text in enumerate(TEXTS)]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def listed(root: Path, line: str = "{name}.wav {text}", file: str = "transcripts.txt") -> Said:
    wavs(root / "wavs")
    lines = (line.format(name=name, text=text) for name, text in zip("abcdef", TEXTS, strict=True))
    write(root / file, "".join(f"{one}\n" for one in lines))
    return said()
