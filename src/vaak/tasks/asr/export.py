"""A trained recogniser for other software: a Whisper for transformers, or an adapter for peft.

    hf      config.json  generation_config.json  model.safetensors  tokenizer.json  vocabulary.json (for model.base)
    peft    adapter_config.json  adapter_model.safetensors

Low-rank adapters are merged in the first, and alone in the second. Of a mixture of experts, one is exported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vaak.core.errors import UserError
from vaak.core.storage.files import whole_folder
from vaak.nn import lora
from vaak.tasks.asr.config import AsrModelConfig
from vaak.tasks.asr.model import AsrModel
from vaak.tasks.asr.vocabulary import Vocabulary


def _demand_one(model: AsrModel, expert: int | None) -> None:
    """Raises UserError where a model has experts, and none of them is chosen."""
    experts = model.experts
    if experts is None and expert is not None:
        raise UserError("an expert was chosen, but this model has none")
    if experts is not None and (expert is None or not 0 <= expert < experts.num_experts):
        raise UserError(f"choose one of the experts, 0 to {experts.num_experts - 1}")


def write_whisper(model: AsrModel, vocabulary: Vocabulary, folder: Path, expert: int | None = None) -> None:
    """Write ``folder``, completely or not at all, with all changes merged.

    Raises UserError where the folder has something in it, or no ``expert`` is chosen of several.
    """
    _demand_one(model, expert)
    merged = lora.merged(model.whisper, expert)
    ids = vocabulary.ids
    settings: Any = merged.generation_config
    settings.update(
        suppress_tokens=list(ids.never),
        begin_suppress_tokens=list(ids.never_first) or None,
        max_length=model.max_target_length,
    )
    with whole_folder(folder) as temporary:
        merged.save_pretrained(temporary)
        vocabulary.save(temporary)


def write_adapter(model: AsrModel, options: AsrModelConfig, folder: Path, expert: int | None = None) -> None:
    """Write ``folder``, completely or not at all, with the low-rank adapters alone.

    They name the base of ``options``, which is to be the one that peft finds (``vaak.tasks.asr.base.name_of``).

    Raises UserError for a model without any, where the folder has something in it, or no ``expert`` is chosen.
    """
    _demand_one(model, expert)
    section = options.experts or options.lora
    targets = section.targets if section is not None else ()
    lora.write_adapter(list(lora.adapters_of(model.whisper, expert)), section, targets, options.base, folder)
