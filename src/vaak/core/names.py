"""Names that select something: the ones that match nothing are an error, which says what there is."""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable

from vaak.core.errors import DataError, UserError

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


def from_home(name: str) -> str:
    """Return the name of a file with the home that a leading ~ or ~user stands for; for an unknown user, unchanged.

    A shell does so only where a word begins with it, so ``run_dir=~/x`` arrives here unexpanded.

    >>> from_home("a/~/b"), from_home("~nobody-has-this-name/x")
    ('a/~/b', '~nobody-has-this-name/x')
    """
    return os.path.expanduser(name) if name.startswith("~") else name


def nearest_name(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean …?`` with the name that is nearest but for case and spaces, or nothing.

    >>> nearest_name("Quary", ["query", "value"])
    "; did you mean 'query'?"
    """
    plain = {_plain(one): one for one in reversed([*known])}
    near = difflib.get_close_matches(_plain(name), [*plain], n=1)
    return f"; did you mean {plain[near[0]]!r}?" if near else ""


def find_unmatched(
    asked: Iterable[str], there: Iterable[str], matches: Callable[[str, str], bool] = str.__eq__
) -> list[str]:
    """Return the names ``asked`` for that mean nothing of what is ``there``, as ``matches(asked, name)`` says.

    >>> find_unmatched(["query", "valeu"], ["query", "value"])
    ['valeu']
    """
    known = list(dict.fromkeys(there))
    return [name for name in dict.fromkeys(asked) if not any(matches(name, one) for one in known)]


def quote_unmatched(unmatched: Iterable[str], there: Iterable[str]) -> str:
    """Return the names that mean nothing, each with the nearest one that there is.

    >>> quote_unmatched(["valeu", "xyz"], ["query", "value"])
    "'valeu'; did you mean 'value'?, 'xyz'"
    """
    known = list(there)
    return ", ".join(f"{name!r}{nearest_name(name, known)}" for name in unmatched)


def require_known(
    asked: Iterable[str],
    there: Iterable[str],
    what: str,
    *,
    remedy: str = "",
    error: type[UserError] = DataError,
    matches: Callable[[str, str], bool] = str.__eq__,
) -> None:
    """Raise an error where one of the names ``asked`` for means nothing of what is ``there``, as ``matches`` says.

    It begins with ``what`` was asked for, and has each such name with its nearest one, then the ``remedy``: by default
    the names that there are.

    >>> require_known(["query", "valeu"], ["query", "value"], "no layer is called")
    Traceback (most recent call last):
    vaak.core.errors.DataError: no layer is called 'valeu'; did you mean 'value'?; expected one of query, value
    """
    known = list(dict.fromkeys(there))
    if unmatched := find_unmatched(asked, known, matches):
        raise error(f"{what} {quote_unmatched(unmatched, known)}; {remedy or f'expected one of {list_names(known)}'}")


def _plain(name: str) -> str:
    return " ".join(name.casefold().split())
