"""The requirements of Vaak, of the core and of each extra, as its own metadata have them; no package is imported."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Collection

from packaging.requirements import Requirement

OTHER_NAMES = {"google": "protobuf", "sklearn": "scikit-learn", "umap": "umap-learn"}
"""Modules that are called otherwise than the package that has them."""

FIRST_CHOICES = {
    "espeakng-loader": "audio",
    "fastapi": "serve",
    "fsspec": "cloud",
    "huggingface-hub": "hf",
    "jiwer": "asr",
    "matplotlib": "plot",
    "peft": "hf",
    "pyarrow": "hf",
    "python-multipart": "serve",
    "scikit-learn": "asr",
    "scipy": "audio",
    "starlette": "serve",
    "transformers": "hf",
    "uvicorn": "serve",
}
"""The extra to advise for a package that several bring: matplotlib alone doesn't justify installing a web page."""


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
    """Return the extra with a package, which is named as it or as its module; None if none has it.

    Of several, it is one of those preferred, else the one in ``FIRST_CHOICES``.

    >>> find_extra("sklearn.cluster"), find_extra("soundfile"), find_extra("torch")
    ('asr', 'audio', None)
    """
    package = find_package(name)
    having = sorted(extra for extra, one in requirements() if extra is not None and _normal(one.name) == package)
    having.sort(key=lambda extra: extra != FIRST_CHOICES.get(package))  # a stable sort: the others stay by name
    return next((extra for extra in having if extra in preferred), having[0] if having else None)


def find_package(module: str) -> str:
    """Return the name of the package that has a module, as an index writes it.

    >>> find_package("sklearn.cluster"), find_package("lm_eval")
    ('scikit-learn', 'lm-eval')
    """
    root = module.partition(".")[0]
    return _normal(OTHER_NAMES.get(root, root))


def get_install_command(package: str, preferred: Collection[str] = ()) -> str:
    """Return the command that installs a package: by its extra, where it has one."""
    extra = find_extra(package, preferred)
    return f"pip install {package}" if extra is None else f"pip install 'vaak[{extra}]'"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()
