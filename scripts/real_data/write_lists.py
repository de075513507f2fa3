"""Writes the digests and the hashes of lines in ``contents.tsv`` and ``lines.bin`` again, from an assembled folder.

    PYTHONPATH=scripts python -m real_data.write_lists FOLDER [LISTS]

Which files there are, and from where, stays as ``contents.tsv`` has it.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from real_data.lists import LISTS, Entry, hash_text, hash_value, read_contents, write_contents
from real_data.recipes import LINES


def described(entry: Entry, folder: Path) -> Entry:
    """The entry with the digest, and the hashes of the lines, of its file in ``folder``."""
    path = folder / entry.file
    entry = replace(entry, digest=hash_text(path))
    if entry.recipe not in LINES:
        return entry
    lines = path.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    return replace(entry, hashes=b"".join(map(hash_value, lines)), remark=str(len(lines)))


if __name__ == "__main__":
    folder, lists = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else LISTS
    write_contents(lists, [described(entry, folder) for entry in read_contents(lists)])
