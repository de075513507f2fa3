r"""Only ``\n`` and ``\r\n`` end a line of a user's text, in whatever reads one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import vaak
from vaak.core.errors import DataError
from vaak.core.storage.text_lines import read_text_lines, split_lines

INSIDE = ["a\u2028b", "c\x85d", "e\x0cf", "g\x0bh", "i\x1cj\x1dk\x1el", "m\u2029n", "o\rp", "वह\u2028घर"]
OWN = {
    "text/grammar/lexicon.py": "a table of the package",
    "scoring/normalisers.py": "a table of the package",
    "text/speech/hindi_units.py": "a table of the package",
    "config/reference.py": "what it has written itself",
    "config/yaml/recipes.py": "recipes of the package",
    "engine/checkpoint/conditions.py": "/proc/cpuinfo",
    "audio/corpora/recipes.py": "a list of checksums",
    "runs/preflight/doctor/devices.py": "what nvidia-smi says",
    "runs/preflight/doctor/packages.py": "the log of a build",
    "core/console.py": "a doctest",
    "core/machine.py": "control groups",
}
"""Files that may split lines as Python does: their texts have none of these characters, and aren't a user's."""


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "end"])
def test_other_separators_are_inside_of_lines(tmp_path: Path, encoding: str, end: str, last: str):
    path = tmp_path / "a.txt"
    path.write_bytes((end.join(INSIDE) + (end if last else "")).encode(encoding))
    assert read_text_lines(path) == INSIDE
    assert split_lines(end.join(INSIDE)) == INSIDE


def test_bytes_of_another_encoding_are_named(tmp_path: Path):
    path = tmp_path / "a.txt"
    path.write_bytes("so\ncafé\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.txt:2: byte 6 \(0xE9\) is not UTF-8; convert the file"):
        read_text_lines(path)


def test_no_users_text_is_split_as_python_splits_lines():
    root = Path(vaak.__file__).parent
    for path in sorted(root.rglob("*.py")):
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            is_message = re.search(r"\.splitlines\(\)(\[0\]| or \[\"\"\]| if \"rank\" in line)", line) is not None
            is_message = is_message or "str(error).splitlines()" in line
            if ".splitlines(" in line and not is_message:
                name = str(path.relative_to(root))
                assert name in OWN, f"{name}:{number}: use vaak.core.storage.text_lines"
