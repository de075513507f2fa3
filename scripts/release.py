"""Checks that a release agrees with itself, and writes the hashes of what it needs.

python scripts/release.py check v1.0.0    # before the tag: version, citation and changelog agree
python scripts/release.py hashes          # requirements-hashed.txt of constraints.txt; needs uv (pip install uv)
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HASHED = ROOT / "requirements-hashed.txt"
LEFT_OUT = re.compile(r"-e |(torch|triton|cuda-\w+|nvidia-[\w-]+)==")
"""Vaak itself; torch, whose file depends on the device, and what only its builds for CUDA require."""
HEADER = """\
# All that Vaak needs but torch, with the hash of every file of each version: constraints.txt for Linux, Python 3.11.
# Written by scripts/release.py hashes. Install torch first, then this, then Vaak itself:
#   pip install --require-hashes --no-deps -r requirements-hashed.txt && pip install --no-deps vaak-*.whl
"""


def find_disagreements(tag: str, root: Path = ROOT) -> list[str]:
    """Return what doesn't fit a release of this tag, a line for each."""
    version = tag.removeprefix("v")
    wanted = {
        "src/vaak/__init__.py": f'__version__ = "{version}"',
        "CITATION.cff": f"version: {version}",
        "CHANGELOG.md": f"## [{version}] - ",
    }
    lines = [
        f"{name} has no line that begins with {start}"
        for name, start in wanted.items()
        if not any(line.startswith(start) for line in (root / name).read_text(encoding="utf-8").splitlines())
    ]
    if not re.fullmatch(r"v\d+\.\d+\.\d+((a|b|rc)\d+)?", tag):
        lines.append(f"{tag} is not a version tag, such as v1.2.3 or v1.3.0rc1")
    if not re.search(
        rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$",
        (root / "CHANGELOG.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    ):
        lines.append(f"CHANGELOG.md: the heading of {version} needs the day of the release (YYYY-MM-DD)")
    return lines


def write_hashes() -> None:
    """Write requirements-hashed.txt: requirements.txt without torch, pinned to the versions of constraints.txt."""
    if not (uv := shutil.which("uv")):
        sys.exit("uv isn't installed: pip install uv")
    platform = ["--python-version", "3.11", "--python-platform", "x86_64-manylinux_2_28"]
    command = [uv, "pip", "compile", "requirements.txt", "--generate-hashes", "--no-header", "--no-annotate", *platform]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    blocks = re.split(r"\n(?=\S)", done.stdout.strip())
    HASHED.write_text(HEADER + "\n".join(one for one in blocks if not LEFT_OUT.match(one)) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="does the tree fit this tag?").add_argument("tag")
    commands.add_parser("hashes", help="write requirements-hashed.txt")
    arguments = parser.parse_args()
    if arguments.command == "hashes":
        write_hashes()
    elif lines := find_disagreements(arguments.tag):
        sys.exit("\n".join(lines))


if __name__ == "__main__":
    main()
