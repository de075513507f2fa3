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
    """Yield findings one by one: the machine, the packages, usable features, and the given configuration, if any.

    Nothing can be trained here where a finding is a ``problem``. Nothing is imported, not even torch, which takes
    seconds, unless for a configuration, or with ``thorough``: then each package is, in another process, and torch says
    what would run, if it can be imported. With ``read_data``, each example of the configuration's data is read once.
    """
    if read_data and not (files or overrides):
        raise UserError("--read-data reads the data of a configuration: give a YAML")
    from vaak.runs.preflight.doctor.machine import examine_machine
    from vaak.runs.preflight.doctor.packages import examine_packages, look_up, torch_imported, try_imports

    yield from examine_machine(Path.cwd())
    imports = try_imports() if thorough else look_up()
    # A configuration needs torch in this process, so import it now and see whether that works.
    if not thorough and (files or overrides):
        imports["torch"] = torch_imported()
    yield from examine_packages(imports)
    if not imports["torch"].there or imports["torch"].error is not None:
        return
    if not (thorough or files or overrides):
        from vaak.runs.preflight.doctor.devices import examine_devices

        yield from examine_devices()
        return
    from vaak.runs.preflight.doctor.training import examine_configuration, examine_training

    yield from examine_training()
    if files or overrides:
        yield from examine_configuration(files, overrides, trust_code, read_data)


Mark = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class DoctorFinding:
    """A finding: its subject, the observation, and the remedy.

    ``problem`` means that nothing (or not this configuration) can be trained here; ``warning``, that something will be
    slow, missing or other than one may think.
    """

    about: str
    name: str
    mark: Mark
    said: str
    advice: str = ""
