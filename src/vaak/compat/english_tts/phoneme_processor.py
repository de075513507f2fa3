"""The phoneme processor next to checkpoints; a run has its own, so its checkpoints speak without this."""

from __future__ import annotations

from pathlib import Path

from vaak.text.speech.processor import PROCESSOR_FILE, PhonemeProcessor


def save_phoneme_processor(processor: PhonemeProcessor, checkpoint_dir: str | Path) -> Path:
    """Write the processor to a folder of checkpoints, and return the file."""
    path = Path(checkpoint_dir) / PROCESSOR_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    processor.save(path)
    return path


def load_phoneme_processor(checkpoint_dir: str | Path) -> PhonemeProcessor:
    """The processor in such a folder, or in a run's. Raises DataError where there is none."""
    folder = Path(checkpoint_dir)
    prepared = folder / "prepared" / PROCESSOR_FILE
    return PhonemeProcessor.load(prepared if prepared.exists() else folder / PROCESSOR_FILE)
