"""Values of a YAML are plain dicts and lists whose places go where the values go."""

import copy
import json

import pytest

from vaak.config.yaml.text import read_yaml
from vaak.config.yaml.tree import Placed, PlacedDict, copy_tree, find_place, place_all, put, take, walk

TEXT = "a:\n  b: 1\n  c:\n    - x\n    - {y: null}\nd: e\n"
VALUES = {"a": {"b": 1, "c": ["x", {"y": None}]}, "d": "e"}


@pytest.fixture
def tree(tmp_path) -> PlacedDict:
    path = tmp_path / "f.yml"
    path.write_text(TEXT)
    return read_yaml(path)


def lines(tree: PlacedDict) -> dict[str, int | None]:
    return {".".join(path): one.place.line if one.place else None for path, one in walk(tree)}


def test_values_are_plain(tree):
    assert tree == VALUES
    assert json.loads(json.dumps(tree)) == VALUES


def test_a_moved_value_takes_its_places_along(tree):
    taken = take(tree, ("a", "c"))
    assert taken is not None
    assert put(tree, ("new", "inside"), taken) is None
    assert tree == {"a": {"b": 1}, "d": "e", "new": {"inside": ["x", {"y": None}]}}
    assert lines(tree) == {
        "a": 1,
        "a.b": 2,
        "d": 6,
        "new": 3,
        "new.inside": 3,
        "new.inside.0": 4,
        "new.inside.1": 5,
        "new.inside.1.y": 5,
    }


def test_what_is_taken_out_leaves_no_empty_section(tree):
    assert take(tree, ("a", "b")) is not None
    assert take(tree, ("a", "c")) is not None
    assert tree == {"d": "e"}
    assert take(tree, ("d", "e")) is None
    assert tree == {"d": "e"}


def test_a_value_that_nobody_wrote_has_no_line_of_its_own(tree):
    assert put(tree, ("a", "new"), Placed(2)) is None
    assert lines(tree)["a.new"] is None
    place = find_place(tree, ("a", "new"))
    assert place is not None
    assert place.line == 1


def test_a_value_in_the_way_is_returned(tree):
    in_the_way = put(tree, ("d", "f"), Placed(1))
    assert in_the_way is not None
    assert in_the_way.value == "e"
    assert str(in_the_way.place).endswith("f.yml:6")
    assert tree == VALUES


@pytest.mark.parametrize("copied", [copy_tree, copy.deepcopy])
def test_a_copy_shares_no_values(tree, copied):
    other = copied(tree)
    assert (other, lines(other)) == (tree, lines(tree))
    other["a"]["c"][1]["y"] = 3
    assert tree == VALUES


def test_python_values_have_one_place():
    tree = place_all({1: ({"a": 2},)})
    assert tree == {"1": [{"a": 2}]}
    assert set(lines(tree).values()) == {None}
