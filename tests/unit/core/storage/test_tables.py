"""Tables: each dialect is told by evidence, written by an independent writer; no row is lost, a ragged one is named."""

from __future__ import annotations

import csv
import gzip
import io
import logging
import random
from pathlib import Path

import pytest

from vaak.core.errors import DataError
from vaak.core.storage.dialects import AS_FOUND, SAMPLE_LINES, GivenDialect, decide
from vaak.core.storage.tables import Table

STRAY = ["so it is", '"mi su', "no more", '"do ba', "go", "he said", "one", "two"]


def rows_of(path: Path, content: str | bytes, **options) -> list[list[str]]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    rows = list(Table(path, **options).rows())
    assert [str(row.problem) for row in rows if row.problem] == []
    return [row.cells for row in rows]


def problems_of(path: Path, content: str) -> list[str]:
    path.write_text(content)
    return [str(row.problem).rpartition("/")[2] for row in Table(path).rows() if row.problem]


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_python_writes_is_read_again(tmp_path: Path, delimiter: str, quoting: int, end: str):
    rng = random.Random(f"{delimiter}{quoting}")
    parts = ["so", "वह", '"', '""', ",", ";", "|", "\n", " ", "\u2028", "\x85", "\x0c", "\\", "it's", "7"]
    for number in range(20):
        width = rng.randint(2, 4)
        rows = [
            [f"{row}.wav", *("".join(rng.choices(parts, k=rng.randint(1, 6))) for _ in range(width - 1))]
            for row in range(rng.randint(2, 30))
        ]
        text = io.StringIO()
        writer = csv.writer(text, delimiter=delimiter, quoting=quoting, lineterminator=end)  # type: ignore[arg-type]
        writer.writerows([["name", *map(str, range(width - 1))], *rows])
        assert rows_of(tmp_path / f"{number}.csv", text.getvalue()) == rows


@pytest.mark.parametrize("delimiter", [",", "\t", ";", "|"])
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".tsv.gz", ""])
@pytest.mark.parametrize("closed", [False, True])
def test_quotes_that_are_text_take_no_row_away(tmp_path: Path, delimiter: str, ending: str, closed: bool):
    texts = [text.replace('"do ba', 'do ba"') if closed else text for text in STRAY]
    rows = [[f"{number}.wav", text, "ann"] for number, text in enumerate(texts)]
    content = "".join(delimiter.join(row) + "\n" for row in [["path", "text", "speaker"], *rows]).encode()
    assert (
        rows_of(tmp_path / f"a{ending}", gzip.compress(content, mtime=0) if ending.endswith("gz") else content) == rows
    )


def test_lines_within_quotes_are_one_cell_although_they_look_like_rows(tmp_path: Path):
    lines = ["id,text", '1,"one', 'two, three"', "2,four", '3,"five, six"', '4,"a', 'b, c"']
    expected = [["1", "one\ntwo, three"], ["2", "four"], ["3", "five, six"], ["4", "a\nb, c"]]
    assert rows_of(tmp_path / "a.csv", "\n".join(lines)) == expected
    assert rows_of(tmp_path / "b.csv", 'text\n"a, b"\n"c\nd"\n') == [["a, b"], ["c\nd"]]


def test_backslashes_protect_quotes_where_quotes_alone_would_not(tmp_path: Path):
    content = 'id,text\n1,"he said \\"go\\", and went"\n2,"C:\\new, \\\\ too"\n'
    assert rows_of(tmp_path / "a.csv", content) == [["1", 'he said "go", and went'], ["2", "C:\\new, \\ too"]]
    assert rows_of(tmp_path / "b.csv", 'id,text\n1,"C:\\new, x"\n') == [["1", "C:\\new, x"]]


def test_one_stray_quote_among_quoted_cells_costs_nothing(tmp_path: Path):
    content = 'id,text\n1,"a, b"\n2,"stray\n3,"c, d"\n4,e\n5,"f ""g"", h"\n'
    assert rows_of(tmp_path / "a.csv", content) == [
        ["1", "a, b"],
        ["2", '"stray'],
        ["3", "c, d"],
        ["4", "e"],
        ["5", 'f "g", h'],
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_encodings_are_recognised(tmp_path: Path, encoding: str, end: str):
    content = end.join(["text;label", "वह घर गया, और;1", '"a; b";2', "c\u2028\x0bd;3"]).encode(encoding)
    expected = [["वह घर गया, और", "1"], ["a; b", "2"], ["c\u2028\x0bd", "3"]]
    assert rows_of(tmp_path / "a.csv", content) == expected


def test_another_encoding_costs_its_rows_or_characters(tmp_path: Path):
    path = tmp_path / "a.csv"
    path.write_bytes("text,label\na,1\ncafé,2\nc,3\n".encode("latin-1"))
    first, bad, last = Table(path).rows()
    assert (first.cells, last.cells) == (["a", "1"], ["c", "3"])
    assert r"a.csv:3: byte 18 (0xE9) is not UTF-8; convert the file (if it is Latin-1: iconv" in str(bad.problem)
    replaced = list(Table(path, on_invalid_utf8="replace").rows())
    assert [(row.cells[0], row.replaced) for row in replaced] == [("a", 0), ("caf\ufffd", 1), ("c", 0)]


def test_a_single_column_may_contain_delimiters(tmp_path: Path):
    assert rows_of(tmp_path / "a.csv", "text\nhello, you\nso it is\n") == [["hello, you"], ["so it is"]]
    assert rows_of(tmp_path / "a.tsv", "text\na\nb; c\n") == [["a"], ["b; c"]]


def test_a_ragged_row_is_named_and_the_others_are_read(tmp_path: Path):
    content = "text,label\na,1\nb, c,2\n\nd\ne,3,\nf,4\n"
    assert problems_of(tmp_path / "a.csv", content) == [
        "a.csv:3: 3 columns, but the first row has 2: text, label",
        "a.csv:5: 1 columns, but the first row has 2: text, label",
    ]
    kept = [row.cells for row in Table(tmp_path / "a.csv").rows() if not row.problem]
    assert kept == [["a", "1"], ["e", "3"], ["f", "4"]]


def test_a_cell_that_does_not_end_costs_its_line(tmp_path: Path):
    content = 'id,text\n1,"a\nb"\n2,"c\n3,"d\ne"\n4,"f, g"\n'
    assert problems_of(tmp_path / "a.csv", content) == [
        "a.csv:4: a quotation mark opens a cell that doesn't end, or text follows its end; fix the row"
    ]
    kept = [row.cells for row in Table(tmp_path / "a.csv").rows() if not row.problem]
    assert kept == [["1", "a\nb"], ["3", "d\ne"], ["4", "f, g"]]


def test_what_was_decided_is_said_with_rows_and_lines(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO, "vaak")
    rows_of(tmp_path / "plain.csv", "text,label\na,1\nb,2\n")
    rows_of(tmp_path / "quoted.csv", 'text,label\n"a, b",1\nb,2\n')
    rows_of(tmp_path / "plain.tsv", 'text\tlabel\nthe "other" one\t1\n')
    assert caplog.messages == []
    rows_of(tmp_path / "a.tsv", "path\ttext\n" + "".join(f"{n}.wav\t{text}\n" for n, text in enumerate(STRAY)))
    rows_of(tmp_path / "b.csv", 'text;label\n"a\nb";1\n'.encode("utf-16"))
    for _ in Table(tmp_path / "a.tsv").rows():  # once for each file
        pass
    assert [message.rpartition("/")[2] for message in caplog.messages] == [
        "a.tsv: cells separated by tabs, quotation marks are text: 8 rows in 9 lines",
        "b.csv: cells separated by semicolons, quotation marks around cells, UTF-16: 1 rows in 3 lines",
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"text,label\ra,1\rb,2\r", r"its lines end with \\r alone; convert the file: tr"),
        ("a.csv", "text\na\n".encode("utf-32"), "this is UTF-32"),
        ("a.csv.gz", gzip.compress(b"text\na\n" * 100, mtime=0)[:-9], "can't be read: "),
        ("a.csv.gz", b"text\na\n", "can't be read: Not a gzipped file"),
        ("a.csv", b"te\xffxt,a\n", r"a\.csv:1: byte 2 \(0xFF\)"),
    ],
)
def test_what_is_no_table_is_one_line(tmp_path: Path, name: str, content: bytes, message: str):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(Table(tmp_path / name).rows())


def test_a_name_that_several_columns_have_is_said_and_refused_where_it_is_read(tmp_path: Path, caplog):
    path = tmp_path / "a.csv"
    path.write_text("text,label,text\nso,x,it\n")
    table = Table(path)
    assert caplog.messages == [f"{path}: several columns are called text; none of these can be read"]
    assert [cells for _, cells in table.entries()] == [{"label": "x"}]
    table.require_one("label")
    with pytest.raises(DataError, match=r"a\.csv: several columns are called 'text'; rename all but the one"):
        table.require_one("text")


def test_a_carriage_return_in_quotes_stays_one(tmp_path: Path):
    assert rows_of(tmp_path / "a.csv", 'text,label\n"a, b",1\n"c\rd",2\n"e",3\n') == [
        ["a, b", "1"],
        ["c\rd", "2"],
        ["e", "3"],
    ]


def write_quoted(path: Path, rows: list[list[str]], end: str = "\n") -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator=end).writerows([["id", "text"], *rows])


def is_clean(path: Path) -> bool:
    facts = path.stat()
    return decide(path, (facts.st_size, facts.st_mtime_ns), True, AS_FOUND).is_clean


MANY = [[str(number), "a, b" if number % 7 == 0 else 'so "it" is'] for number in range(3 * SAMPLE_LINES)]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("ending", ["csv", "csv.gz"])
def test_quoted_cells_are_read_at_once_with_their_lines_and_bytes(tmp_path: Path, end: str, ending: str):
    rows = [*MANY[:1500], ["x", f"c{end}d"], ["y", f'"{end}{end}'], *MANY[1500:]]
    path, counted = tmp_path / f"a.{ending}", list[int]()
    write_quoted(path, rows, end)
    size = path.stat().st_size
    if ending == "csv.gz":
        path.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    assert is_clean(path)
    read = list(Table(path).rows())
    assert [row.cells for row in read] == [[cell.replace("\r\n", "\n") for cell in row] for row in rows]
    assert [row.where.rpartition(":")[2] for row in read[1499:1504]] == ["1501", "1502", "1504", "1507", "1508"]
    list(Table(path, count_bytes=counted.append).rows())
    assert sum(counted) == size


def test_what_only_shows_far_below_the_first_lines_decides_about_the_whole(tmp_path: Path):
    path = tmp_path / "a.csv"
    write_quoted(path, [*MANY, ["x", "y"]])
    whole = path.read_text()
    assert is_clean(path)
    for number, (line, kept) in enumerate(
        [('7,"stray', ["7", '"stray']), ('7,stray"', ["7", 'stray"']), ('"7","c\rd"', ["7", "c\rd"])]
    ):
        path = tmp_path / f"{number}.csv"
        path.write_bytes(whole.replace('"x","y"', line + '\n"x","y"').encode())
        assert [row.cells for row in Table(path).rows()] == [*MANY, kept, ["x", "y"]]
    for number, encoded in enumerate([b'"7","caf\xe9"', b'"7","a","b"', b'"7"']):
        path = tmp_path / f"bad{number}.csv"
        path.write_bytes(whole.encode().replace(b'"x","y"', encoded + b'\n"x","y"'))
        assert not is_clean(path)
        rows = list(Table(path).rows())
        assert [row.where.rpartition(":")[2] for row in rows if row.problem] == [str(len(MANY) + 2)]
        assert [row.cells for row in rows if not row.problem] == [*MANY, ["x", "y"]]


@pytest.mark.parametrize("quoting", [csv.QUOTE_ALL, csv.QUOTE_MINIMAL])
@pytest.mark.parametrize("delimiter", ["\t", "|"])
def test_quotes_around_cells_between_tabs_are_read_at_once(tmp_path: Path, quoting, delimiter: str):
    rows = [[str(number), "a b"] for number in range(2 * SAMPLE_LINES)]
    rows[-3][1] = 'so "it" is'  # far below the first lines
    path = tmp_path / "a.tsv"
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=quoting, delimiter=delimiter, lineterminator="\n").writerows([["id", "text"], *rows])
    assert is_clean(path)
    assert [row.cells for row in Table(path).rows()] == rows
    path.write_text(path.read_text().replace('""', "").replace('"so it is"', '"so it" is'))
    assert not is_clean(path)


def test_what_is_said_of_a_dialect_is_not_decided(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    path = tmp_path / "a.csv"
    content = 'datei;satz\na.wav;"Größe: 1,5\nb.wav;zwei, "drei"\n'
    for encoding in ("cp1252", "latin-1", "utf-16", "utf-16-be", "utf-32", "utf-8"):
        given = GivenDialect(";", "text", encoding)
        assert rows_of(path, content.encode(encoding), given=given) == [
            ["a.wav", '"Größe: 1,5'],
            ["b.wav", 'zwei, "drei"'],
        ]
    assert caplog.messages == []
    comma = GivenDialect(delimiter=",", quotes="text")
    assert rows_of(path, "text,b\na;b,c\n", given=comma) == [["a;b", "c"]]
    quoted = "\n".join(["id,text", *(f'{number},"a"' for number in range(5))])
    assert rows_of(path, quoted, given=GivenDialect(quotes="text"))[0] == ["0", '"a"']
    assert rows_of(path, quoted)[0] == ["0", "a"]
    path.write_text('id,text\n1,"a\n2,"b\n')
    bad = [str(row.problem) for row in Table(path, given=GivenDialect(quotes="cells")).rows()]
    assert all("a quotation mark opens a cell that doesn't end" in problem for problem in bad)


def test_a_dialect_that_cannot_be_told_may_be_said(tmp_path: Path):
    path, given = tmp_path / "a.csv", GivenDialect(can_be_said=True)
    path.write_bytes("text,label\na,1\ncafé,2\nb,c,3\n".encode("latin-1"))
    invalid, ragged = [str(row.problem) for row in Table(path, given=given).rows() if row.problem]
    assert "or set dialect: {encoding: cp1252} (vaak init, vaak data check: --encoding cp1252)" in invalid
    assert "dialect: {delimiter: ';'}" in ragged
    for said in (GivenDialect(encoding="utf-8", delimiter=",", can_be_said=True), AS_FOUND):
        assert "set dialect" not in "".join(str(row.problem) for row in Table(path, given=said).rows())


def test_bytes_of_plain_rows_are_counted(tmp_path: Path):
    path, counted = tmp_path / "a.csv", list[int]()
    path.write_text("id,text\n" + "1,so it is\n\n" * 1000)
    assert len(list(Table(path, count_bytes=counted.append).rows())) == 1000
    assert sum(counted) == path.stat().st_size


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path):
    path = tmp_path / "a.csv"
    write_quoted(path, MANY)
    table = Table(path)
    for content in ('"id","text"\n"1","a","b"\n', '"id","text"\n"1","a\n'):
        path.write_text(content)
        with pytest.raises(DataError, match=r"a\.csv: the file changed while it was read; read it again"):
            list(table.rows())
