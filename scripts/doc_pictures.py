"""Make the pictures and the sound of docs/images from small runs, by the commands that docs/gallery.md names.

    python scripts/doc_pictures.py FOLDER      # runs are trained in FOLDER, unless they are there; minutes to an hour

Requires Chromium for pictures of pages (Debian: chromium), and the extras audio, tts, plot.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import soundfile
from PIL import Image

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "google-chrome"))), None)
RUNS = {
    "quickstart": "vaak train configs/quickstart.yml training.device=cpu",
    "classification-quickstart": "vaak train configs/classification/quickstart.yml",
    "wider": "vaak train configs/classification/quickstart.yml name=wider model.num_filters=128",
    "tts-quickstart": "vaak train configs/tts/quickstart.yml",
    "diarizer": "vaak train configs/diarization/quickstart.yml name=diarizer training.max_steps=200",
}
OTHERS = {
    "vaak find-lr configs/classification/quickstart.yml": "find-lr",
    "vaak data simulate conversations --number 2": "conversations",
    "vaak diarize runs/diarizer conversations --reference conversations --picture timelines": "timelines",
}
"""Commands with what they make."""
PAGES = {
    "report": ("vaak report runs/quickstart", "runs/quickstart/report.html", (1280, 2010)),
    "comparison": (
        "vaak report runs/classification-quickstart runs/wider --output comparison.html",
        "comparison.html",
        (1200, 900),
    ),
}
"""Picture: a command, the page that it writes, and the window in pixels."""
FILES = {
    "confusion": ("runs/classification-quickstart/pictures/val_confusion/*.png", (0, 0, 1, 1)),
    "reliability": ("runs/classification-quickstart/pictures/val_reliability/*.png", (0, 0, 1, 1)),
    "spectrogram": ("runs/tts-quickstart/pictures/val_speech/*.png", (0, 0, 1, 0.5)),
    "timelines": ("timelines/*.png", (0, 0, 1, 1)),
    "learning-rates": ("find-lr/lr-range.png", (0, 0, 1, 1)),
}
"""Picture: the newest of these files, and the part of it that is shown: left, upper, right, lower."""


def main() -> None:
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "configs").exists():
        (folder / "configs").symlink_to(ROOT / "configs")
    for name, command in RUNS.items():
        if not (folder / "runs" / name / "report.html").exists():
            call(command, folder)
    for command, made in OTHERS.items():
        if not (folder / made).exists():
            call(command, folder)
    for name, (command, page, size) in PAGES.items():
        call(command, folder)
        write(name, screenshot(folder / page, size), (0, 0, 1, 1))
    for name, (pattern, part) in FILES.items():
        write(name, max(folder.glob(pattern)), part)
    samples, rate = soundfile.read(folder / "runs" / "tts-quickstart" / "sample-1.wav")
    soundfile.write(IMAGES / "voice.mp3", samples, rate)


def call(command: str, folder: Path) -> None:
    """Run a command of Vaak in a folder."""
    print(command, flush=True)
    subprocess.run(
        command.replace("vaak", str(Path(sys.executable).with_name("vaak")), 1), shell=True, cwd=folder, check=True
    )


def screenshot(page: Path, size: tuple[int, int]) -> Path:
    """The beginning of a page as a picture next to it, in a window of this width and height."""
    if CHROMIUM is None:
        raise SystemExit("Chromium is not installed")
    path = page.with_suffix(".png")
    options = [
        "--headless",
        "--no-sandbox",
        "--hide-scrollbars",
        f"--window-size={size[0]},{size[1]}",
        f"--screenshot={path}",
    ]
    subprocess.run([CHROMIUM, *options, page.as_uri()], check=True, capture_output=True)
    return path


def write(name: str, path: Path, part: tuple[float, float, float, float]) -> None:
    """A part of a picture in 256 colours, which is small."""
    left, upper, right, lower = part
    with Image.open(path) as image:
        width, height = image.size
        cut = image.convert("RGB").crop((left * width, upper * height, right * width, lower * height))
        cut.quantize(256, dither=Image.Dither.NONE).save(IMAGES / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
