"""Tiny corpora in the layout that a recipe expects."""

from __future__ import annotations

from pathlib import Path

from tiny_audio import write_audio


def write_ami(folder: Path, seed: int = 0) -> None:
    """A meeting of each part: four headsets, a word of each of two speakers."""
    notes, meetings = folder / "ami_public_manual_1.6.2", ""
    for name in ("corpusResources", "segments", "words"):
        (notes / name).mkdir(parents=True)
    for meeting in ("ES2002a", "ES2011a", "ES2004a"):
        for channel in range(4):
            write_audio(folder / meeting / "audio" / f"{meeting}.Headset-{channel}.wav", 3.0, seed=seed + channel)
        speakers = ""
        for channel, (agent, start) in enumerate((("A", 0.5), ("B", 1.0))):
            speakers += f'<speaker nxt_agent="{agent}" global_name="{agent}05" channel="{channel}"/>'
            segment = f'<segment transcriber_start="{start}" transcriber_end="{start + 1}"/>'
            (notes / "segments" / f"{meeting}.{agent}.segments.xml").write_text(f"<root>{segment}</root>")
            word = f'<w starttime="{start + 0.1}" endtime="{start + 0.4}">yes</w>'
            (notes / "words" / f"{meeting}.{agent}.words.xml").write_text(f"<root>{word}</root>")
        meetings += f'<meeting observation="{meeting}">{speakers}</meeting>'
    (notes / "corpusResources" / "meetings.xml").write_text(f"<meetings>{meetings}</meetings>")
