"""YAML text as a tree: values, lines, and one clear line for what can't be read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vaak.config.yaml.text import read_value, read_yaml, yaml_text
from vaak.config.yaml.tree import ConfigError, find


def read(tmp_path, text):
    path = tmp_path / "f.yml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(path)


def complaint(tmp_path, text):
    with pytest.raises(ConfigError) as error:
        read(tmp_path, text)
    return str(error.value).replace(str(tmp_path / "f.yml"), "F")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2e-4", 2e-4),
        ("1E5", 1e5),
        (".5", 0.5),
        ("-3", -3),
        ("0x1F", 31),
        ("0o17", 15),
        ("017", 17),
        ("no", "no"),
        ("yes", "yes"),
        ("on", "on"),
        ("12:30:45", "12:30:45"),
        ("2026-01-01", "2026-01-01"),
        ("True", True),
        ("~", None),
        ("", None),
        ("'3'", "3"),
        ("!!str 3", "3"),
        ("1_000", "1_000"),
        ("वाक्", "वाक्"),
    ],
)
def test_scalars_follow_yaml_1_2(tmp_path, text, value):
    read_back = read(tmp_path, f"a: {text}\n")["a"]
    assert read_back == value
    assert type(read_back) is type(value)


def test_every_value_knows_its_line(tmp_path):
    tree = read(tmp_path, "a:\n  b: 1\n  c:\n    - x\n    - {y: 2}\n\nd: |\n  long\n  text\ne: 3\n")
    paths = {("a",): 1, ("a", "b"): 2, ("a", "c"): 3, ("a", "c", 0): 4, ("a", "c", 1, "y"): 5, ("d",): 7, ("e",): 10}
    for path, line in paths.items():
        found = find(tree, path)
        assert found is not None
        assert found.place is not None
        assert found.place.line == line, path


def test_aliases_and_merge_keys(tmp_path):
    tree = read(tmp_path, "base: &b {x: 1, y: 2}\nsame: *b\nmore:\n  <<: *b\n  y: 3\n")
    assert tree == {"base": {"x": 1, "y": 2}, "same": {"x": 1, "y": 2}, "more": {"x": 1, "y": 3}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: 1\nb:\n  c: 1\n  c: 2\n", "F:4: b.c: given twice: first at F:3"),
        ("a:\n\tb: 1\n", "F:2: not valid YAML: a tab; indent with spaces"),
        ("", "F: the file is empty; expected sections such as training:"),
        ("# only a comment\n", "F: the file is empty; expected sections such as training:"),
        ("- 1\n", "F:1: expected sections such as training: at the top level"),
        ("a: 1\n---\nb: 2\n", "F:2: a second YAML document; expected one"),
        ("a: *nope\n", "F:1: a: the alias *nope is not defined above"),
        ("a: &x [*x]\n", "F:1: a.0: the alias *x refers to itself"),
        (
            "a: !!python/name:os.system x\n",
            "F:1: a: the tag !!python/name:os.system is not allowed; expected plain values",
        ),
        ("a: !x {b: 1}\n", "F:1: a: the tag !x is not allowed; expected plain values"),
        ("? [a]\n: 1\n", "F:1: a key must be text"),
        (b"a: 1\nb: \xff\n", "F:2: not UTF-8 text (byte 0xff)"),
        ('a: "\\ud800"\n', "F:1: a: holds half of a surrogate pair, which is not valid text"),
    ],
)
def test_what_cannot_be_read_is_one_clear_line(tmp_path, text, expected):
    assert complaint(tmp_path, text) == expected


@pytest.mark.parametrize("text", ["a: [1, 2\nb: 3\n", "a: 'x\n", "a: b: c\n", "a: 1\n b: 2\n", "a: @x\n", "a: \x01\n"])
def test_bad_syntax_is_one_line_with_a_place(tmp_path, text):
    lines = complaint(tmp_path, text).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("F:")
    assert "not valid YAML" in lines[0]


def test_missing_file_and_folder(tmp_path):
    for path in (tmp_path / "none.yml", tmp_path):
        with pytest.raises(ConfigError, match="can't be read"):
            read_yaml(path)


def test_deep_and_exploding_files_are_refused(tmp_path):
    assert "nested deeper" in complaint(tmp_path, "a: " + "[" * 5000)
    doubling = "a0: &a0 [1, 1]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]\n" for i in range(1, 40))
    assert "more than 100000 values" in complaint(tmp_path, doubling)


def test_mistakes_that_do_not_stop_reading_come_together(tmp_path):
    lines = complaint(tmp_path, "a: ${VAAK_NOT_SET}\nb: 1\nb: 2\nc: !x 1\n").splitlines()
    assert [line.split(":")[1] for line in lines] == ["1", "3", "4"]


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(st.characters(codec="utf-8"))
keys = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3))


@given(st.dictionaries(keys, values, max_size=4))
def test_written_yaml_reads_back_the_same(value):
    text = yaml_text(value)
    assert read_value(text, "") == (value or None)


def test_a_text_that_was_read_before_is_read_with_todays_environment_and_as_another_file(tmp_path, monkeypatch):
    for name, value in (("one.yml", "1"), ("two.yml", "2")):
        (tmp_path / name).write_text('a: &a {b: ["${VAAK_NUMBER}", 3]}\nc: *a\n')
        monkeypatch.setenv("VAAK_NUMBER", value)
        tree = read_yaml(tmp_path / name)
        assert tree == {"a": {"b": [value, 3]}, "c": {"b": [value, 3]}}
        assert str(tree.places["c"]) == f"{tmp_path / name}:2"
        tree.clear()
