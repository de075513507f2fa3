"""Rows of spreadsheets (Excel and OpenDocument) as texts, read by calamine; formulas as their last values.

Only the first sheet of a workbook that isn't empty is read; one line names the others.
"""

from __future__ import annotations

import datetime
import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vaak.core.errors import DataError, RustPanicError, catching_panics, optional_import
from vaak.core.names import list_names
from vaak.core.storage.archives import open_file, read_state

log = logging.getLogger("vaak")

SPREADSHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")


def is_spreadsheet(path: Path) -> bool:
    """Return whether a file is a spreadsheet by its ending."""
    return path.suffix.lower() in SPREADSHEETS


def read_sheet(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield each row's number, as the spreadsheet shows it, and its cells; rows without content are left out.

    Raises DataError for what can't be read, UserError if calamine isn't installed.
    """
    first, rows = _first_sheet(path, read_state(path))
    for number, cells in enumerate(rows, first):
        texts = [_written(cell) for cell in cells]
        if any(texts):
            yield number, texts


@functools.lru_cache(maxsize=2)
def _first_sheet(path: Path, key: tuple[int, int]) -> tuple[int, list[list[Any]]]:
    """Return the number of the first row and the cells of the sheet; ``key`` is the file's state."""
    with optional_import(f"{path}: reading spreadsheets requires python-calamine", "spreadsheets"):
        import python_calamine
    open_book = python_calamine.CalamineWorkbook.from_filelike
    try:
        with catching_panics(quietly=True), open_file(path) as file, open_book(file) as book:
            sheets = {name: book.get_sheet_by_name(name) for name in book.sheet_names}
            filled = [name for name, sheet in sheets.items() if sheet.height]
            if not filled:
                return 1, []
            if len(filled) > 1:
                log.warning("%s: sheet %r is read; not read: %s", path, filled[0], list_names(filled[1:]))
            sheet = sheets[filled[0]]
            # calamine drops empty rows above the first cell, but messages number rows as the program shows them
            return (sheet.start or (0, 0))[0] + 1, sheet.to_python(skip_empty_area=True)
    except (python_calamine.CalamineError, RustPanicError, ValueError) as error:
        reason = str(error).strip() or type(error).__name__
        raise DataError(f"{path}: this is not a spreadsheet that can be read: {reason}") from error


def _written(cell: Any) -> str:
    """Return a cell's text; whole numbers without a fraction, times as ISO 8601.

    >>> [_written(cell) for cell in ("a", 3.0, 2.5, True, "")]
    ['a', '3', '2.5', 'TRUE', '']
    """
    if isinstance(cell, bool):
        return str(cell).upper()
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    if isinstance(cell, datetime.date | datetime.time):
        return cell.isoformat()
    return str(cell)
