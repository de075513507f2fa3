"""Run the notebooks of docs/notebooks and store what they show: python scripts/notebooks.py [NAME ...]."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def executed(notebook: Path, folder: Path) -> Any:
    """A notebook with new outputs, run in an empty folder. Raises CellExecutionError where a cell fails."""
    book = nbformat.read(notebook, as_version=4)  # type: ignore[no-untyped-call]
    where = {"metadata": {"path": str(folder)}}
    client = NotebookClient(book, timeout=1800, startup_timeout=600, coalesce_streams=True, resources=where)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # cells call vaak
    client.execute(env={**os.environ, "PATH": path, "PYTHONWARNINGS": "ignore"})
    return book


def without_traces(book: Any, folder: Path) -> Any:
    """The notebook in its stored form: without times, terminal colours, and the folder that it was run in."""
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if "text" in output:
                output["text"] = re.sub(r"\x1b\[[0-9;]*m", "", output["text"]).replace(str(folder), ".")
    return book


def main() -> None:
    for notebook in sorted(NOTEBOOKS.glob("*.ipynb")):
        if not sys.argv[1:] or notebook.stem in sys.argv[1:]:
            with tempfile.TemporaryDirectory() as folder:
                book = without_traces(executed(notebook, Path(folder)), Path(folder))
            nbformat.write(book, notebook)  # type: ignore[no-untyped-call]
            print(f"{notebook.name}: {notebook.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main()
