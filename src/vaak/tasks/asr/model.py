"""The model with which speech recognition begins (``model.base``): its folder, its name on the Hub, or a run."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from vaak.tasks.asr.config import VERSIONS, AsrModelConfig
from vaak.tasks.pretrained import find_model, resolve_source
from vaak.tasks.quantised import Frozen

PURPOSE, BASE_KEY = "speech recognition", "model.base"


def resolve_base(options: AsrModelConfig, folder: Path) -> str:
    """The folder or the name on the Hub of a base; a relative folder is looked for in ``folder``, too.

    Raises UserError for a folder that isn't there, or one without weights.
    """
    return resolve_source(BASE_KEY, VERSIONS.get(options.base, options.base), folder)


def find_frozen(options: AsrModelConfig, folder: Path, besides: Collection[str] = ()) -> Frozen | None:
    """Return what a base's layers are kept as, for ``layers_in_nf4``; ``folder`` is that of prepared data."""
    adapters = options.lora or options.experts
    return None if adapters is None else Frozen(folder, adapters, besides)


def name_base(base: str, folder: Path) -> str:
    """Return the name of a base for other software: its whole name on the Hub, or the absolute path of its folder."""
    return find_model(VERSIONS.get(base, base), folder)


def _places(name: str, folder: Path) -> tuple[Path, Path]:
    return Path(name).expanduser(), folder / name


def find_run(base: str, folder: Path) -> Path | None:
    """Return the run directory that a base is, if it is one of Vaak's."""
    return next((path.resolve() for path in _places(base, folder) if (path / "config.yml").is_file()), None)
