"""YAML text read as values with line numbers, and plain values written so that reading gives them back exactly.

Reading is safe: no tags beyond the core schema, no key twice, variables of the environment but no secrets.

Source: YAML 1.2.2, section 10.3.2 (core schema): ``2e-4`` is a float; ``no`` and ``2026-01-01`` are text.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from vaak.config.trust import Doubt
from vaak.config.yaml.tree import (
    COMMAND_LINE,
    ConfigError,
    Placed,
    PlacedDict,
    PlacedList,
    Problem,
    YamlPlace,
    copy_tree,
    entries,
    walk,
)
from vaak.core.secrets import REFERENCE, is_secret, note
from vaak.core.storage.files import require_file

Scalar = str | int | float | bool | None
_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_VARIABLE = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^{}]*))?\}|\$\{")
_SECRET_WORDS = {"KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASS", "CREDENTIAL", "CREDENTIALS"}
_MOST_DIGITS = 4000


def plain_scalar(text: str) -> Scalar:
    """Return the value of a scalar written without quotes.

    >>> [plain_scalar(text) for text in ("2e-4", "no", "12", "true", "~", "1.5.2")]
    [0.0002, 'no', 12, True, None, '1.5.2']
    """
    if text in _WORDS:
        return _WORDS[text]
    # int() refuses texts of more than 4,300 digits (sys.set_int_max_str_digits).
    if len(text) > _MOST_DIGITS:
        return text
    if _INTEGER.fullmatch(text):
        return int(text)
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        return float(text)
    if _NO_NUMBER.fullmatch(text):
        return float(text.replace(".", ""))
    return text


def expand(text: str, environment: Mapping[str, str]) -> str:
    """Return the text with ``${NAME}`` and ``${NAME:-default}`` replaced; ``$${`` stands for ``${``.

    An empty variable takes the default, as in a shell. A variable whose name looks secret is refused, since values
    are shown and stored with the run.

    >>> expand("${ROOT:-/data}/hi", {})
    '/data/hi'

    Raises ValueError with what is wrong; it never holds the value of a variable.
    """

    def get_value(match: re.Match[str]) -> str:
        name, default = match.groups()
        if match[0] == "$${":
            return "${"
        if name is None:
            raise ValueError("a variable is written ${NAME} or ${NAME:-default}, and ${ itself is written $${")
        if looks_secret(name):
            raise ValueError(
                f"${{{name}}} looks like a secret, and a configuration is shown and stored with the run; "
                "leave it in the environment only"
            )
        if value := environment.get(name):
            return value
        if default is not None:
            return default
        if name in environment:
            return ""
        raise ValueError(f"the environment variable {name} is not set; set it, or write ${{{name}:-default}}")

    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("holds half of a surrogate pair, which is not valid text") from None
    return _VARIABLE.sub(get_value, text)


def looks_secret(name: str) -> bool:
    """Return whether an environment variable of this name holds a secret, so that its value is never shown.

    >>> looks_secret("WANDB_API_KEY"), looks_secret("WANDB_MODE")
    (True, False)
    """
    return bool(_SECRET_WORDS & set(name.upper().split("_")))


_MOST_VALUES = 100_000
_MOST_LEVELS = 60
_MOST_TEXTS = 64
_EVENTS_OF: dict[str, list[Any]] = {}
"""The events of the texts that were read last: a command reads the configuration of its run several times."""


def read_yaml(path: Path | str, doubt: Doubt | None = None) -> PlacedDict:
    """Return the mapping in a YAML file, with its places; ``doubt`` is why that isn't the user's own, if it isn't.

    Raises ConfigError if it can't be read, is empty, is not a mapping, or is not YAML.
    """
    file = str(path)
    try:
        require_file(Path(path))
        content = Path(path).read_bytes()
    except OSError as error:
        raise ConfigError([Problem(YamlPlace(file), "", f"can't be read: {error.strerror or error}")]) from None
    try:
        # Some editors begin a file with a byte order mark.
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        problem = Problem(YamlPlace(file, line), "", f"not UTF-8 text (byte 0x{content[error.start]:02x})")
        raise ConfigError([problem]) from None
    tree = _Composer(lambda line: YamlPlace(file, line, doubt=doubt)).compose(text)
    if tree is None:
        raise ConfigError([Problem(YamlPlace(file), "", "the file is empty; expected sections such as training:")])
    if not isinstance(tree, PlacedDict):
        raise ConfigError([Problem(YamlPlace(file, 1), "", "expected sections such as training: at the top level")])
    return tree


def read_value(text: str, key: str) -> Any:
    """Return the value of ``key=value`` on the command line, read as YAML.

    Raises ConfigError if it is not YAML.
    """
    try:
        return _Composer(lambda line: COMMAND_LINE, key).compose(text)
    except ConfigError as error:
        problems = [Problem(problem.place, problem.key or key, problem.message) for problem in error.problems]
        raise ConfigError(problems) from None


def _events(text: str) -> Iterator[Any]:
    """Yield the parser's events; nothing changes them, so they may be those of an earlier reading.

    A text that has mistakes is kept by no one: it is parsed up to the first.
    """
    # Taken out, and put back at the end: the first in the dictionary was used least recently.
    if (events := _EVENTS_OF.pop(text, None)) is None:
        events = []
        for event in YAML(typ="safe", pure=True).parse(text):
            events.append(event)
            yield event
    else:
        yield from events
    _EVENTS_OF[text] = events
    if len(_EVENTS_OF) > _MOST_TEXTS:
        del _EVENTS_OF[next(iter(_EVENTS_OF))]


class _Composer:
    """Turns the parser's events into values with places; collects mistakes that don't stop it from reading."""

    def __init__(self, find_place: Callable[[int], YamlPlace], key: str = "") -> None:
        """``key`` is that of the option whose value the text is."""
        self.key = key
        self.find_place = find_place
        self.events: Iterator[Any] = iter(())
        self.anchors: dict[str, Placed | None] = {}
        self.problems: list[Problem] = []
        self.num_values = 0
        self.num_levels = 0

    def compose(self, text: str) -> Any:
        """Return the values of the one document in a text; None if there is none. Raises ConfigError."""
        tree, self.events = None, _events(text)
        is_first = True
        try:
            for event in self.events:
                if isinstance(event, DocumentStartEvent):
                    if not is_first:
                        place = self.find_place(event.start_mark.line + 1)
                        raise ConfigError([Problem(place, "", "a second YAML document; expected one")])
                    is_first = False
                    # Read here, inside the loop over the same events, which resumes after the document's last one.
                    first = next(self.events)
                    tree = self._value(first, self.find_place(first.start_mark.line + 1), "")
        except ConfigError as error:
            raise ConfigError([*self.problems, *error.problems]) from None
        except YAMLError as error:
            raise ConfigError([self._explain(error)]) from None
        if self.problems:
            raise ConfigError(self.problems)
        return tree

    def _explain(self, error: YAMLError) -> Problem:
        """Return the problem that a text which isn't YAML has."""
        if not isinstance(error, MarkedYAMLError):
            return Problem(self.find_place(1), "", f"not valid YAML: {str(error).splitlines()[0]}")
        mark = error.problem_mark or error.context_mark
        what = " ".join(part for part in (error.context, error.problem) if part)
        hint = "; is a colon, a quote or a bracket missing on this line or the one before?" if what else ""
        if "'\\t'" in what:
            what, hint = "a tab; indent with spaces", ""
        return Problem(self.find_place(mark.line + 1 if mark else 1), "", f"not valid YAML: {what}{hint}")

    def _value(self, event: Any, place: YamlPlace, key: str) -> Any:
        """Return the value that begins with this event; ``place`` is its key's, or where it begins."""
        self._count(1, place)
        if isinstance(event, AliasEvent):
            target = self.anchors.get(event.anchor)
            if target is None:
                word = "refers to itself" if event.anchor in self.anchors else "is not defined above"
                raise ConfigError([Problem(place, key, f"the alias *{event.anchor} {word}")])
            # The copy counts in full: aliases of aliases grow exponentially ("billion laughs").
            self._count(sum(1 for _ in walk(target.value)), place)
            return copy_tree(target.value)
        if event.anchor:
            # Known, but without a value yet: an alias that comes before its end would contain itself.
            self.anchors[event.anchor] = None
        value: Any
        if isinstance(event, ScalarEvent):
            value = self._scalar(event, place, key)
        else:
            self.num_levels += 1
            if self.num_levels > _MOST_LEVELS:
                raise ConfigError([Problem(place, "", f"nested deeper than {_MOST_LEVELS} levels")])
            is_list = isinstance(event, SequenceStartEvent)
            value = self._sequence(event, place, key) if is_list else self._mapping(event, place, key)
            self.num_levels -= 1
        if event.anchor:
            self.anchors[event.anchor] = Placed(value, place)
        return value

    def _count(self, num_values: int, place: YamlPlace) -> None:
        self.num_values += num_values
        if self.num_values > _MOST_VALUES:
            raise ConfigError([Problem(place, "", f"more than {_MOST_VALUES} values; is an alias repeated too often?")])

    def _scalar(self, event: ScalarEvent, place: YamlPlace, key: str) -> Any:
        self._check_tag(event.tag, ("str",), place, key)
        if is_secret(key or self.key, event.value):
            if REFERENCE.fullmatch(event.value):
                # It is looked up where the run needs it.
                return str(event.value)
            note(event.value)
        try:
            text = expand(event.value, os.environ)
        except ValueError as error:
            self._complain(place, key, str(error))
            return None
        return plain_scalar(text) if event.style in (None, "") and not event.tag else text

    def _check_tag(self, tag: Any, allowed: tuple[str, ...], place: YamlPlace, key: str) -> None:
        """A tag can name a Python object to make; only those that change nothing are accepted."""
        name = str(tag or "!").replace("tag:yaml.org,2002:", "!!")
        if name != "!" and name.removeprefix("!!") not in allowed:
            self._complain(place, key, f"the tag {name} is not allowed; expected plain values")

    def _sequence(self, event: SequenceStartEvent, place: YamlPlace, key: str) -> PlacedList:
        self._check_tag(event.tag, ("map", "seq"), place, key)
        items: list[Placed] = []
        while not isinstance(event := next(self.events), SequenceEndEvent):
            begins = self.find_place(event.start_mark.line + 1)
            items.append(Placed(self._value(event, begins, f"{key}.{len(items)}".lstrip(".")), begins))
        return PlacedList(items)

    def _mapping(self, event: MappingStartEvent, place: YamlPlace, key: str) -> PlacedDict:
        self._check_tag(event.tag, ("map", "seq"), place, key)
        children: dict[str, Placed] = {}
        merged: dict[str, Placed] = {}
        while not isinstance(event := next(self.events), MappingEndEvent):
            line = self.find_place(event.start_mark.line + 1)
            if not isinstance(event, ScalarEvent):
                raise ConfigError([Problem(line, key, "a key must be text")])
            # An escape may make half a surrogate pair, which no file can be written with.
            name = event.value.encode("utf-8", "replace").decode()
            full = f"{key}.{name}".lstrip(".")
            child = Placed(self._value(next(self.events), line, full), line)
            # In quotes it is a key like any other.
            if name == "<<" and event.style in (None, ""):
                self._merge_keys(merged, child, full)
            elif name in children:
                self._complain(line, full, f"given twice: first at {children[name].place}")
            else:
                children[name] = child
        # What the mapping says itself wins over what it merges, wherever << stands.
        return PlacedDict({**merged, **children}, place)

    def _merge_keys(self, merged: dict[str, Placed], child: Placed, key: str) -> None:
        """YAML's ``<<: *anchor``; of several, the first wins."""
        for source in child.value if isinstance(child.value, list) else [child.value]:
            if not isinstance(source, PlacedDict):
                self._complain(child.place, key, "expected an alias of a mapping")
                return
            for name, one in entries(source):
                merged.setdefault(name, one)

    def _complain(self, place: YamlPlace | None, key: str, message: str) -> None:
        self.problems.append(Problem(place, key, message))


_SAFE_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./+-]*")


def yaml_text(value: dict[str, Any], indent: int = 0) -> str:
    """Return a mapping as lines; mappings and lists of mappings in blocks, all else on one line.

    >>> print(yaml_text({"lr": 0.001, "betas": [0.9, 0.999], "groups": [{"match": "head"}], "notes": None}), end="")
    lr: 0.001
    betas: [0.9, 0.999]
    groups:
      - match: head
    notes: null
    """
    return "".join(entry_text(key, child, indent) for key, child in value.items())


def entry_text(key: str, value: Any, indent: int = 0) -> str:
    """``key: value`` as lines."""
    margin = " " * indent
    if isinstance(value, dict) and value:
        return f"{margin}{_key_text(key)}:\n{yaml_text(value, indent + 2)}"
    if isinstance(value, list) and value and all(isinstance(item, dict) and item for item in value):
        items = "".join(f"{margin}  - {yaml_text(item, indent + 4)[indent + 4 :]}" for item in value)
        return f"{margin}{_key_text(key)}:\n{items}"
    return f"{margin}{_key_text(key)}: {flow_text(value, key)}\n"


def flow_text(value: Any, key: str = "") -> str:
    """Return a value on one line; ``key`` is its option's, by which a reference to a secret is told from other text."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key_text(name)}: {flow_text(item, name)}" for name, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(flow_text(item, key) for item in value) + "]"
    if isinstance(value, str) and REFERENCE.fullmatch(value) and is_secret(key, value):
        return f'"{value}"'
    return scalar_text(value)


def scalar_text(value: Any) -> str:
    """Return a scalar; text is quoted where it could read as anything else.

    >>> [scalar_text(value) for value in ("adamw", "true", "a: b", "${HOME}", 1e-4, float("inf"))]
    ['adamw', '"true"', '"a: b"', '"$${HOME}"', '0.0001', '.inf']
    """
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value).replace("Infinity", ".inf").replace("NaN", ".nan")
    if not isinstance(value, str):
        return json.dumps(value)
    if _is_plain(value):
        return value
    return _quoted(value.replace("${", "$${"))


def _key_text(key: str) -> str:
    """Return a key, in which variables are not replaced."""
    return key if _is_plain(key) else _quoted(key)


def _is_plain(text: str) -> bool:
    return bool(_SAFE_PLAIN.fullmatch(text)) and plain_scalar(text) == text


def _quoted(text: str) -> str:
    quoted = json.dumps(text, ensure_ascii=False)
    return "".join(char if char.isprintable() else f"\\U{ord(char):08x}" for char in quoted)
