"""Files of scores, as ``vaak compare`` reads them: the number that is written, or the cell that has none."""

import logging

import pytest

from vaak.core.errors import DataError
from vaak.study.compare import read_scores

POINTS = [0.85, 0.87, 0.9]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "score\n0,85\n0,87\n0,9\n"),
        ("a.csv", "score;note\r\n0,85;a\r\n0,87;b\r\n0,9;c\r\n"),
        ("a.csv", '"score"\n"0,85"\n"0,87"\n"0,9"\n'),
        ("a.csv", "0.85;1\n0.87;2\n0.9;3\n"),
        ("a.tsv", "WER\tseed\n0,85\t1\n0,87\t2\n0,9\t3\n"),
        ("a.txt", "0,85\n0,87\n0,9\n"),
        ("a.txt", "\ufeff0.85\n0.87\n\n0.9"),
        ("a.csv", "0.85\n0.87\n0.9\n"),
        ("a.json", "\ufeff[0.85, 0.87, 0.9]"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_score_is_the_number_that_is_written(tmp_path, name, content, encoding):
    path = tmp_path / name
    path.write_bytes(content.removeprefix("\ufeff" if encoding == "utf-16" else "").encode(encoding))
    assert read_scores(path) == POINTS


@pytest.mark.parametrize(
    ("name", "content", "place", "words"),
    [
        ("a.csv", "score\n0.85\n0.8x\n", 3, "column 1 (score): expected a number, found '0.8x'"),
        ("a.csv", "0.8x\n0.85\n", 1, "column 1: expected a number, found '0.8x'"),
        ("a.csv", 'score\n"0,85"\n0.87\n', 2, "a decimal comma, write a point"),
        ("a.csv", "0,85\n0,87\n", 1, "may be one number or two columns"),
        ("a.csv", 'score\n"1,234"\n"2,345"\n', 2, "expected a number, found '1,234'"),
        ("a.csv", "0.85\n0,87\n0.9\n", 2, ""),
        ("a.csv", "score;n\n0,85;1\n0.87;2\n", 2, "expected a number, found '0,85'"),
        ("a.csv", "score,n\n0.85,1\n,2\n", 3, "column 1 (score): expected a number, found ''"),
    ],
)
def test_a_cell_that_is_no_number_is_named(tmp_path, name, content, place, words):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(DataError) as caught:
        read_scores(path)
    assert str(caught.value).startswith(f"{path}:{place}: ")
    assert words in str(caught.value)


def test_the_column_that_is_read_of_several_is_said(tmp_path, caplog):
    path = tmp_path / "a.csv"
    path.write_text("accuracy,seed\n0.85,1\n0.87,2\n")
    with caplog.at_level(logging.WARNING, "vaak"):
        assert read_scores(path) == [0.85, 0.87]
    assert "reads column 1 (accuracy) of 2 columns" in caplog.text
