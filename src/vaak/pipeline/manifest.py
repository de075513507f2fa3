"""When a stage is done: its manifest is there, its fingerprint is what it would be now, and its outputs verify.

STAGE/begun.json       what its results depend on: options, digests of the outputs that it reads, sources, code
STAGE/manifest.json    the same, with size and SHA-256 of every output, figures and times; written last: "done"

Neither holds a path, so a copy of the folder is as good. A stage that is to run again with other options has its folder
moved to ``set-aside``, since it may have cost days.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vaak.core.errors import UserError
from vaak.core.progress import progress
from vaak.core.storage.files import read_json, sha256_of
from vaak.core.storage.sizes import sizes_of
from vaak.pipeline.stage import Options, Stage

MANIFEST, BEGUN = "manifest.json", "begun.json"
Parts = dict[str, Any]
"""What a stage's results depend on."""


@dataclass(frozen=True)
class Standing:
    """How a stage stands.

    It is ``done``; or it ``continues`` in its folder, ``starts`` in an empty one, or ``repairs`` the damaged outputs;
    ``why`` says so.
    """

    verdict: Literal["done", "continues", "starts", "repairs"]
    why: str
    manifest: Mapping[str, Any] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()


def parts_of(stage: Stage, options: Options, digests: Mapping[str, str]) -> Parts:
    """What a stage's results depend on now; ``digests`` are those of the stages that ran before."""
    source = inspect.getsourcefile(stage.make)
    values = options.model_dump(mode="json")
    parts = {
        "options": {
            **{name: values[name] for name in stage.options},
            **({} if stage.settings is None else stage.settings(options)),
        },
        "reads": {name: digests[name] for name in stage.after if name in digests},
        "sources": None if stage.sources is None else stage.sources(options),
        "code": {"source": None if source is None else sha256_of(Path(source)), "version": stage.version},
    }
    normal: Parts = json.loads(json.dumps(parts))
    return normal


def standing_of(stage: Stage, folder: Path, parts: Parts, forced: bool = False) -> Standing:
    """How a stage stands in its folder, given what its results depend on now; ``forced``, it starts again.

    Raises UserError where the folder is someone else's.
    """
    begun, manifest = _read(folder / BEGUN), _read(folder / MANIFEST)
    before = manifest or begun
    if before is None:
        if folder.exists() and any(path.name[0] != "." for path in folder.iterdir()):
            raise UserError(
                f"{folder} has no readable {BEGUN}, so it is not stage {stage.name}'s or is damaged: move it away, or "
                "give another --output-dir"
            )
        return Standing("starts", "has not run yet")
    if forced:
        return Standing("starts", "--from asks for it")
    if changed := "; ".join(_changes(before.get("parts", {}), parts)):
        return Standing("starts", changed)
    if manifest is None:
        return Standing("continues", "was cut")
    damage = dict(_damage(folder, manifest["outputs"]))
    if not damage:
        return Standing("done", "up to date", manifest)
    verdict: Literal["repairs", "starts"] = "repairs" if stage.repairs else "starts"
    return Standing(verdict, next(iter(damage.values())), damaged=tuple(damage))


def _read(path: Path) -> dict[str, Any] | None:
    """The content of one of our files; None where it is missing or damaged."""
    try:
        found = read_json(path)
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("parts"), dict) else None


def _changes(before: Parts, now: Parts) -> Iterator[str]:
    """What has changed, in words."""
    options = before.get("options", {})
    yield from _changed_options({name: options[name] for name in now["options"] if name in options}, now["options"])
    read = before.get("reads", {})
    for name in sorted({*read, *now["reads"]}):
        if read.get(name) != now["reads"].get(name):
            yield f"the outputs of {name}, which it reads, have changed"
    was, sources = before.get("sources"), now["sources"]
    if isinstance(was, dict) and isinstance(sources, dict):
        yield from (f"{name} changed" for name in {**sources, **was} if was.get(name) != sources.get(name))
    elif was != sources:
        yield "the data it reads have changed"
    if before.get("code") != now["code"]:
        yield "its code has changed"


def _changed_options(before: Parts, now: Parts, prefix: str = "") -> Iterator[str]:
    """The options whose values differ, in words; of sections, the options in them."""
    for name in [*now, *(name for name in before if name not in now)]:
        if name not in now:
            yield f"{prefix}{name} was {_shown(before[name])}, isn't given now"
        elif name not in before:
            yield f"{prefix}{name} is new, {_shown(now[name])}"
        elif isinstance(before[name], dict) and isinstance(now[name], dict):
            yield from _changed_options(before[name], now[name], f"{prefix}{name}.")
        elif before[name] != now[name]:
            yield f"{prefix}{name} was {_shown(before[name])}, is {_shown(now[name])} now"


def _shown(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def outputs_in(stage: Stage, folder: Path) -> dict[str, list[Any]]:
    """Size and SHA-256 of every output. Raises UserError where the body didn't make one."""
    sizes = sizes_of(folder, leave_out={MANIFEST, BEGUN})
    found = {}
    for declared in stage.outputs:
        names = [name for name in sizes if name == declared or name.startswith(f"{declared}/")]
        if not names:
            raise UserError(f"stage {stage.name} has ended without its output {folder / declared}")
        found.update({name: sizes[name] for name in names})
    with progress(f"checksums of {stage.name}", sum(found.values())) as advance:
        return {name: [size, _sha256(folder / name, size, advance)] for name, size in found.items()}


def _sha256(path: Path, size: int, advance: Any) -> str:
    found = sha256_of(path)
    advance(size)
    return found


def _damage(folder: Path, outputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every output that isn't what was written, with what is wrong with it."""
    with progress(f"checking {folder.name}", sum(size for size, _ in outputs.values())) as advance:
        for name, (size, digest) in outputs.items():
            path = folder / name
            if not path.is_file():
                yield name, f"{path}: this file is missing"
            elif path.stat().st_size != size:
                yield name, f"{path}: this file has {path.stat().st_size} bytes where {size} were written"
            elif sha256_of(path) != digest:
                yield name, f"{path}: the content of this file has changed (SHA-256)"
            advance(size)
