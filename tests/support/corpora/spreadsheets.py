"""Spreadsheets as Excel and LibreOffice write them, of one or several sheets; rows of None are empty."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

Cell = object
"""A text, a number, or None."""
Sheets = Mapping[str, Sequence[Sequence[Cell]]]
_XLSX = "http://schemas.openxmlformats.org"
_ODF = "urn:oasis:names:tc:opendocument:xmlns"


def write_spreadsheet(path: Path, rows: Sequence[Sequence[Cell]], others: Sheets | None = None) -> Path:
    """Write an .xlsx or .ods, by the ending."""
    sheets = {"Sheet1": rows, **(others or {})}
    parts = _xlsx(sheets) if path.suffix == ".xlsx" else _ods(sheets)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in parts.items():
            file.writestr(name, content)
    return path


def _xlsx(sheets: Sheets) -> dict[str, str]:
    main = f"{_XLSX}/spreadsheetml/2006/main"
    related = f"{_XLSX}/officeDocument/2006/relationships"
    package = f"{_XLSX}/package/2006"
    names = "".join(
        f'<sheet name="{escape(name)}" sheetId="{number}" r:id="r{number}"/>' for number, name in enumerate(sheets, 1)
    )
    targets = "".join(
        f'<Relationship Id="r{number}" Type="{related}/worksheet" Target="worksheets/sheet{number}.xml"/>'
        for number in range(1, len(sheets) + 1)
    )
    kinds = "".join(
        f'<Override PartName="/xl/worksheets/sheet{number}.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.worksheet+xml"/>'
        for number in range(1, len(sheets) + 1)
    )
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="rels" '
        'ContentType="application/vnd.openxmlformats-package.relationships+xml"/><Override PartName="/xl/workbook.xml" '
        'ContentType="application/vnd.openxmlformats-officedocument.spreadsheetml.sheet.main+xml"/>'
        f"{kinds}</Types>",
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="r1" '
        f'Type="{related}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/workbook.xml": f'<workbook xmlns="{main}" xmlns:r="{related}"><sheets>{names}</sheets></workbook>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">{targets}</Relationships>',
    }
    for number, rows in enumerate(sheets.values(), 1):
        lines = "".join(
            f'<row r="{row}">'
            + "".join(_xlsx_cell(cell, chr(65 + place), row) for place, cell in enumerate(cells))
            + "</row>"
            for row, cells in enumerate(rows, 1)
        )
        parts[f"xl/worksheets/sheet{number}.xml"] = (
            f'<worksheet xmlns="{main}"><sheetData>{lines}</sheetData></worksheet>'
        )
    return parts


def _xlsx_cell(cell: Cell, column: str, row: int) -> str:
    if cell is None:
        return ""
    if isinstance(cell, str):
        return f'<c r="{column}{row}" t="inlineStr"><is><t xml:space="preserve">{escape(cell)}</t></is></c>'
    return f'<c r="{column}{row}"><v>{cell}</v></c>'


def _ods(sheets: Sheets) -> dict[str, str]:
    def written(cell: Cell) -> str:
        if cell is None:
            return "<table:table-cell/>"
        if isinstance(cell, str):
            return f'<table:table-cell office:value-type="string"><text:p>{escape(cell)}</text:p></table:table-cell>'
        return f'<table:table-cell office:value-type="float" office:value="{cell}"/>'

    tables = "".join(
        f'<table:table table:name="{escape(name)}">'
        + "".join(f"<table:table-row>{''.join(map(written, cells))}</table:table-row>" for cells in rows)
        + "</table:table>"
        for name, rows in sheets.items()
    )
    spaces = " ".join(f'xmlns:{name}="{_ODF}:{name}:1.0"' for name in ("office", "table", "text"))
    body = f"<office:body><office:spreadsheet>{tables}</office:spreadsheet></office:body>"
    content = f"<office:document-content {spaces}>{body}</office:document-content>"
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    manifest = (
        f'<manifest:manifest xmlns:manifest="{_ODF}:manifest:1.0">'
        f'<manifest:file-entry manifest:full-path="/" manifest:media-type="{kind}"/></manifest:manifest>'
    )
    return {"mimetype": kind, "META-INF/manifest.xml": manifest, "content.xml": content}
