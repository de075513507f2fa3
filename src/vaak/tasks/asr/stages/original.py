"""Names of the pipeline that this one replaces: keys of its JSON files, and its function for the first stage."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.storage.files import read_json, write_json

OVERRIDES = {
    "dataset_root": "dataset_root",
    "percent": "embedding_percent",
    "max_samples": "embedding_samples",
    "seed": "seed",
}
"""Keys of data_config_override, and the options that they are."""
PLACES = ("data_config_path", "data_mode", "mapping_path", "overwrite")
"""Keys that no option stands for: extract_embeddings reads the last two."""
KEYS = {"clustering_algorithm": "algorithm", "plot": "plot_method"}


def translated(values: dict[str, Any]) -> dict[str, Any]:
    """The options that a file gives, its keys those of either pipeline. Raises UserError for what isn't done here."""
    found = {KEYS.get(name, name): value for name, value in values.items() if name not in PLACES}
    override = found.pop("data_config_override", None) or {}
    if override.get("sampling", "stratified") != "stratified":
        raise UserError("data_config_override.sampling: samples are stratified here; leave it out")
    if str(override.get("split", "train")).lower() != "train":
        raise UserError("data_config_override.split: experts come from the training split; leave it out")
    if override.get("modes"):
        raise UserError("data_config_override.modes: leave it out; give --embedding-, --expert- and --asr-percent")
    for name, option in OVERRIDES.items():
        if override.get(name) is not None:
            found.setdefault(option, override[name])
    if unknown := sorted({*override} - {*OVERRIDES, "sampling", "split", "modes"}):
        raise UserError(f"data_config_override.{unknown[0]} is unknown; expected {', '.join(OVERRIDES)}")
    return found


def extract_embeddings(path: str | PathLike[str]) -> Path:
    """Run the stage of embeddings by a JSON file of options; the path of its ``mapping.json``.

    ``output_dir`` in it is where the pipeline runs, ``mapping_path`` where the mapping is copied to, its files relative
    to the copy; with ``overwrite`` what is there is recomputed. Raises UserError for options that can't be used.
    """
    from vaak.config.base import from_options
    from vaak.pipeline.registry import find_pipeline
    from vaak.pipeline.run import Request, run_pipeline

    pipeline = find_pipeline("moe-asr", Path())
    values = read_json(Path(path))
    given = translated(values)
    directory = given.pop("output_dir", None)
    options = from_options(pipeline.options, given, pipeline.name)
    folder = Path(directory) if directory else pipeline.place_of(options)
    for stage in pipeline.asked_for(options):
        again = stage.name if values.get("overwrite") and stage.name == "embeddings" else None
        run_pipeline(pipeline, options, folder, Request(resume=True, only=stage.name, first=again))
        if stage.name == "embeddings":
            break
    mapping = folder / "embeddings" / "mapping.json"
    if values.get("mapping_path"):
        copy = Path(values["mapping_path"])
        copy.parent.mkdir(parents=True, exist_ok=True)
        seen = read_json(mapping)
        for one in seen.values():
            one["file"] = _seen_from(copy, mapping.parent / one["file"])
        write_json(copy, seen)
        return copy
    return mapping


def _seen_from(copy: Path, file: Path) -> str:
    """A file relative to the folder of a copy; its absolute path where it is on another drive."""
    try:
        return os.path.relpath(file.resolve(), copy.resolve().parent)
    except ValueError:
        return str(file.resolve())
