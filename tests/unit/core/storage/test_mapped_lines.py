"""Lines of a file and where each begins: complete, or an error that names the folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from vaak.core.errors import DataError
from vaak.core.storage.mapped_lines import OFFSETS, MappedLines, writing_lines

LINES = [b"one\n", b"\n", "तीन\n".encode()]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "lines.bin"
    with writing_lines(file) as writer:
        for line in LINES:
            writer.write(line)
    return file


def test_lines_come_back(path: Path):
    lines = MappedLines(path, "line")
    assert [lines[number] for number in range(len(lines))] == LINES


@pytest.mark.parametrize("name", ["lines.bin", OFFSETS])
@pytest.mark.parametrize("by", [1, 8, -1, 1_000])
def test_a_file_that_lost_or_gained_bytes_is_an_error(path: Path, name: str, by: int):
    """Also one that lost a whole line's bytes, or the place of one."""
    file = path.with_name(name)
    content = file.read_bytes()
    file.write_bytes(content[:-by] if by > 0 else content + b"\0" * -by)
    with pytest.raises(DataError, match=str(path.parent)):
        MappedLines(path, "line")


def test_a_folder_without_lines_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=f"{tmp_path}: no lines here"):
        MappedLines(tmp_path / "lines.bin", "line")
