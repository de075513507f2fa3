"""JSON of Lhotse's manifests becomes Lhotse's objects, after a check that reading them can run nothing.

Lhotse reads what a manifest names: a source may be a shell command, an address or bytes, a stored array a pickle, and
a transform may hold a recording of its own. So only what is on the lists below is let through, in every object of a
line, however deep it is: in the tracks of a mixed cut, in the impulse response of a reverberation, in custom fields.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from vaak.core.errors import DataError, optional_import

SOURCES = frozenset({"file"})
"""Where audio may come from. Not from a ``command``, a ``url``, ``memory`` or an archive (``shar``)."""
TRANSFORMS = frozenset({
    *("Clipping", "Compress", "DereverbWPE", "LoudnessNormalization", "Narrowband"),
    *("Resample", "ReverbWithImpulseResponse", "Speed", "Tempo", "Volume"),
})  # fmt: skip
"""What may be done to audio: Lhotse's own; packages that are imported may have registered others."""
STORAGES = frozenset({
    *("chunked_lilcom_hdf5", "lilcom_chunky", "lilcom_files", "lilcom_hdf5", "memory_lilcom", "memory_npy"),
    *("numpy_files", "numpy_hdf5", "pillow_files"),
})  # fmt: skip
"""How arrays may be stored. Not as pickles (``memory_raw``, ``pillow_memory``), nor where a name may be a command
(``kaldiio``) or an address (``lilcom_url``)."""
_CONTAINERS = (dict, list)
_ADDRESS = re.compile(r"[A-Za-z][\w+.-]+:|\||-$")
"""What Lhotse doesn't open as a file: an address, ``pipe:`` with a command, standard input. C: is a drive."""


def lhotse_object(entry: dict[str, Any], where: str) -> Any:
    """A line of a manifest as the cut, recording or supervision that it is; ``entry`` is used up.

    Features are left out: Vaak makes its own. Raises DataError for a line that isn't one, and for what reading it
    could execute.
    """
    demand_harmless(entry, where)
    with optional_import("reading manifests requires lhotse", "audio"):
        from lhotse.serialization import deserialize_item
    try:
        return deserialize_item(entry)
    except Exception as error:  # Lhotse's constructors raise exceptions of any type
        raise DataError(f"{where}: Lhotse can't read this line: {type(error).__name__}: {error}") from error


def demand_harmless(entry: dict[str, Any], where: str) -> None:
    """Take stored features out of a line.

    Raises DataError for a source, a transform or an array in it, or in what it holds, that isn't allowed.
    """
    for part, _ in _objects(entry):
        if "sources" in part:
            _demand_files(part["sources"], where)
        if "transforms" in part:
            _demand_known(part["transforms"], where)
        if "storage_type" in part:
            _demand_stored_in_a_file(part, where)
        if _is_stored(part.get("features")):
            del part["features"]


def _demand_files(sources: Any, where: str) -> None:
    for source in sources if isinstance(sources, list) else ():
        if isinstance(source, dict) and {"source", "channels"} <= source.keys():
            demand_file(source.get("type"), where)


def _demand_known(transforms: Any, where: str) -> None:
    for transform in transforms if isinstance(transforms, list) else ():
        if isinstance(transform, dict) and "kwargs" in transform:
            name = transform.get("name")
            if not isinstance(name, str) or name not in TRANSFORMS:
                raise DataError(
                    f"{where}: its audio is changed by {name}, which is refused; expected one of "
                    f"{', '.join(sorted(TRANSFORMS))}; save the changed audio as a file and use that in the manifest"
                )


def _demand_stored_in_a_file(part: dict[str, Any], where: str) -> None:
    kind, path = str(part["storage_type"]), str(part.get("storage_path", ""))
    if kind not in STORAGES:
        raise DataError(
            f"{where}: it has an array stored as {kind}, which is refused; expected one of "
            f"{', '.join(sorted(STORAGES))}; leave it out or store it again"
        )
    if _ADDRESS.match(path):
        raise DataError(
            f"{where}: it has an array at {path}, which is not a file and is refused; leave it out or store it again"
        )


def demand_file(kind: Any, where: str) -> None:
    """Raises DataError for a type of source other than a file: a manifest's ``command`` could run anything."""
    if not isinstance(kind, str) or kind not in SOURCES:
        raise DataError(
            f"{where}: its audio comes from a {kind}, which is refused; save it as a file and use that in the manifest"
        )


def recordings_in(entry: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """Every recording in a line, with whether its audio is read: custom fields may hold others."""
    for part, is_read in _objects(entry):
        if "sources" in part and ("sampling_rate" in part or part is entry):
            yield part, is_read


def _objects(entry: dict[str, Any]) -> Iterator[tuple[dict[str, Any], bool]]:
    """The objects in a line, it among them, and whether they are outside of custom fields; not those of features.

    Without recursion, since who wrote the line says how deep it is; fast, since each example of training is read so.
    """
    waiting: list[tuple[Any, bool]] = [(entry, True)]
    while waiting:
        value, is_read = waiting.pop()
        if isinstance(value, dict):
            yield value, is_read
            for key, one in value.items():
                if isinstance(one, _CONTAINERS) and not (key == "features" and _is_stored(one)):
                    waiting.append((one, is_read and key != "custom"))
        else:
            waiting += [(one, is_read) for one in value if isinstance(one, _CONTAINERS)]


def _is_stored(value: Any) -> bool:
    """Whether this describes an array in a file, or features, which are one."""
    return isinstance(value, dict) and "storage_type" in value
