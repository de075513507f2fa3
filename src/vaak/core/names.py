"""Names that select something: the ones that match nothing are an error, which says what there is."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable

from vaak.core.errors import UserError

MOST = 12
"""Names that a line lists."""


def list_names(names: Iterable[object], most: int = MOST) -> str:
    """Return names, and how many more there are.

    >>> list_names(range(14), 3)
    '0, 1, 2 and 11 more'
    """
    listed = [str(one) for one in names]
    rest = len(listed) - most
    return f"{', '.join(listed[:most])} and {rest:,} more" if rest > 0 else ", ".join(listed) or "none"


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the name that is nearest but for case and spaces, or nothing.

    >>> nearest_name("Quary", ["query", "value"])
    "; did you mean 'query'?"
    """
    plain = {_plain(one): one for one in reversed([*known])}
    near = difflib.get_close_matches(_plain(name), [*plain], n=1)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""


def describe_unmatched(
    option: str,
    asked: Iterable[str],
    there: Iterable[str],
    matches: Callable[[str, str], bool] = str.__eq__,
    kind: str = "there are",
) -> str | None:
    """Return what is wrong with the names ``asked`` for in an ``option``: those that match nothing; None if all do.

    ``matches(asked, name)`` says whether a name is meant; ``kind`` begins the list of those that are there.

    >>> describe_unmatched("model.lora.targets", ["query", "valeu"], ["query", "value"])
    "model.lora.targets: 'valeu' matches nothing (did you mean 'value'?); there are query, value"
    """
    known = list(dict.fromkeys(there))
    unmatched = [name for name in dict.fromkeys(asked) if not any(matches(name, one) for one in known)]
    if not unmatched:
        return None
    hints = [nearest_name(name, known).removeprefix("; ") for name in unmatched]
    named = ", ".join(f"{name!r}" + (f" ({hint})" if hint else "") for name, hint in zip(unmatched, hints, strict=True))
    verb = "matches" if len(unmatched) == 1 else "match"
    return f"{option}: {named} {verb} nothing; {kind} {list_names(known)}"


def demand_names(
    option: str,
    asked: Iterable[str],
    there: Iterable[str],
    matches: Callable[[str, str], bool] = str.__eq__,
    kind: str = "there are",
    error: type[UserError] = UserError,
) -> None:
    """Raise an ``error`` where some of the names ``asked`` for match nothing (``describe_unmatched``)."""
    if (wrong := describe_unmatched(option, asked, there, matches, kind)) is not None:
        raise error(wrong)


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())
