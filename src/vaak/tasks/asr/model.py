"""The model with which speech recognition begins (``model.base``): its folder, its name on the Hub, or a run."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from vaak.core.storage.files import read_json
from vaak.tasks.asr.config import VERSIONS, AsrModelConfig
from vaak.tasks.fetching import GENERATION, find_file
from vaak.tasks.pretrained import find_model, resolve_source
from vaak.tasks.quantised import Frozen

PURPOSE, BASE_KEY = "speech recognition", "model.base"


def resolve_base(options: AsrModelConfig, folder: Path) -> str:
    """Return the folder or the name on the Hub of a base; a relative folder is looked for in ``folder``, too.

    Raises UserError for a folder that isn't there, or one without weights.
    """
    return resolve_source(BASE_KEY, VERSIONS.get(options.base, options.base), folder)


def read_written_language(source: str) -> str | None:
    """Return the language that a Whisper's ``generation_config.json`` makes it write; None if it doesn't say."""
    file = find_file(BASE_KEY, source, GENERATION)
    return None if file is None else find_written_language(read_json(file))


def find_written_language(generation: Mapping[str, Any]) -> str | None:
    """Return the same of the file's content: its language by code, or that of the tokens that older ones force.

    >>> find_written_language({"language": "Hindi"}), find_written_language({"language": "<|mni|>"})
    ('hi', 'mni')
    >>> find_written_language({"forced_decoder_ids": [[1, 7], [2, 9]], "lang_to_id": {"<|en|>": 6, "<|hi|>": 7}})
    'hi'
    """
    from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

    if generation.get("is_multilingual") is False:
        return None
    if named := generation.get("language"):
        name = str(named).lower().strip("<|>")
        return str(TO_LANGUAGE_CODE.get(name, name))
    # As transformers counts them, the first token after the one that begins a transcript.
    forced, known = generation.get("forced_decoder_ids"), generation.get("lang_to_id")
    if not isinstance(forced, list) or not isinstance(known, Mapping):
        return None
    pairs = [tuple(one) for one in forced if isinstance(one, list | tuple)]
    return next((str(name).strip("<|>") for name, token in known.items() if (1, token) in pairs), None)


def find_frozen(options: AsrModelConfig, folder: Path, besides: Collection[str] = ()) -> Frozen | None:
    """Return how a base's layers are kept, for ``layers_in_nf4``; ``folder`` is that of prepared data."""
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
