"""Lets a program that is started as a file import from the other folders of tests/support: it imports this first."""

import sys
from pathlib import Path

sys.path.extend(str(room) for room in sorted(Path(__file__).parents[1].iterdir()))
