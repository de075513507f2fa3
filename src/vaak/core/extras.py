"""The requirements of Vaak, of the core and of each extra, as its own metadata have them; no package is imported."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Collection

from packaging.requirements import Requirement

OTHER_NAMES = {"google": "protobuf", "sklearn": "scikit-learn", "umap": "umap-learn"}
"""Modules that are called otherwise than the package that has them."""


@functools.cache
def requirements() -> tuple[tuple[str | None, Requirement], ...]:
    """Return the requirements for this system, each with its extra (None: the core).

    Where Vaak isn't installed, as in a checkout on the path, only torch is known of.
    """
    try:
        about = importlib.metadata.metadata("vaak")
    except importlib.metadata.PackageNotFoundError:
        return ((None, Requirement("torch")),)
    extras = about.get_all("Provides-Extra") or []
    found: list[tuple[str | None, Requirement]] = []
    for one in map(Requirement, about.get_all("Requires-Dist") or []):
        if one.marker is None or one.marker.evaluate({"extra": ""}):
            found.append((None, one))
        else:
            # That of an extra, or for another system.
            found += [(extra, one) for extra in extras if one.marker.evaluate({"extra": extra})]
    return tuple(found)


def find_extra(name: str, preferred: Collection[str] = ()) -> str | None:
    """Return the extra with a package, which is named as it or as its module; None where none has it.

    Of several, it is one of those preferred, else the first by name.

    >>> find_extra("sklearn.cluster"), find_extra("soundfile"), find_extra("torch")
    ('asr', 'audio', None)
    """
    package = name.partition(".")[0]
    package = _normal(OTHER_NAMES.get(package, package))
    having = sorted(extra for extra, one in requirements() if extra is not None and _normal(one.name) == package)
    return next((extra for extra in having if extra in preferred), having[0] if having else None)


def how_to_install(package: str, preferred: Collection[str] = ()) -> str:
    """Return the command that installs a package: by its extra, where it has one."""
    extra = find_extra(package, preferred)
    return f"pip install {package}" if extra is None else f"pip install 'vaak[{extra}]'"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
