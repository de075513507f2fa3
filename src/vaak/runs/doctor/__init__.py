"""Findings on this machine and what would train on it, one after another; nothing is changed, no secret shown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vaak.core.errors import UserError

__all__ = ["DoctorFinding", "examine"]


def examine(
    files: Sequence[Path | str] = (),
    overrides: Sequence[str] = (),
    trust_code: bool = False,
    read_data: bool = False,
    thorough: bool = False,
) -> Iterator[DoctorFinding]:
    """Yield findings as they are made: the machine, the packages, what would run, and a configuration if one is given.

    Nothing can be trained here where a finding is a ``problem``. Where torch can't be imported, what would run isn't
    looked at. With ``read_data``, each example of the configuration's data is read once; with ``thorough``, each
    package is imported, in another process.
    """
    if read_data and not (files or overrides):
        raise UserError("--read-data reads the data of a configuration: give a YAML")
    from vaak.runs.doctor.machine import examine_machine
    from vaak.runs.doctor.packages import examine_packages, look_up, try_imports

    yield from examine_machine(Path.cwd())
    imports = try_imports() if thorough else look_up()
    yield from examine_packages(imports)
    if not imports["torch"].there or imports["torch"].error is not None:
        return
    from vaak.runs.doctor.training import examine_training

    yield from examine_training()
    if files or overrides:
        from vaak.runs.doctor.configuration import examine_configuration

        yield from examine_configuration(files, overrides, trust_code, read_data)


Mark = Literal["ok", "warning", "problem"]
GIB = 1 << 30


@dataclass(frozen=True)
class DoctorFinding:
    """A finding: what was looked at, what was seen, and what to do about it.

    ``problem`` means that nothing (or not this configuration) can be trained here; ``warning``, that something will be
    slow, missing or other than one may think.
    """

    about: str
    name: str
    mark: Mark
    said: str
    advice: str = ""
