"""Checks of low-rank adapters by ``config check``: that there is something to adapt, and layers of those names.

Imports no torch: layers are known by the names of stored matrices.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vaak.config.experiment import Experiment
from vaak.config.tasks import CheckFinding, impossible, remark
from vaak.core.names import find_unmatched, list_names
from vaak.core.storage.model_formats import (
    GGUF,
    PYANNOTE,
    WHISPER_PT,
    list_checkpoint_matrices,
    list_gguf_layers,
    list_stored_matrices,
    recognise,
)
from vaak.engine.checkpoint.names import is_checkpoint, list_checkpoints
from vaak.nn.config import LoraConfig
from vaak.nn.lora_targets import choose_targets, is_target
from vaak.tasks.fetching import is_own_run, locate_base

NOT_LINEAR = re.compile("embed|^shared$|^w[tp]e$|^relative_attention_bias$")
"""The last part of the names of matrices that are looked up, by family."""
CONVERTED_LAYERS = {
    WHISPER_PT: ["q_proj", "k_proj", "v_proj", "out_proj", "fc1", "fc2"],
    PYANNOTE: ["linear.0", "linear.1", "classifier"],
}
"""The linear layers of the networks that read single files."""


def lora_findings(
    experiment: Experiment[Any, Any, Any, Any, Any],
    lora: LoraConfig | None,
    is_pretrained: bool,
    key: str = "model.lora",
) -> Iterator[CheckFinding]:
    """Yield whether there is something for adapters to adapt, and whether a run that training begins with has it.

    ``key`` is the option that has the adapters.
    """
    begun = experiment.training.checkpoint
    if lora is None:
        return
    if begun.init_from is None:
        if not is_pretrained:
            reason = "there is nothing to adapt: weights are drawn; give training.checkpoint.init_from, a run"
            yield impossible(key, reason)
    elif not begun.init_rename and not is_pretrained:
        yield from _unmatched(key, begun.init_from, lora, _list_run_layers(Path(begun.init_from)))


def target_findings(
    key: str, name: str, lora: LoraConfig | None, own_layers: Sequence[str] = ()
) -> Iterator[CheckFinding]:
    """Yield a remark where a base that is on this machine has no layer for an adapter's target; the option is ``key``.

    ``own_layers`` are the last parts of the names in the network that reads the weights, where that may be one of
    Vaak's.
    """
    place = locate_base(name)
    if lora is None or place is None:
        return
    layers = _list_run_layers(place) if is_own_run(name) else _list_base_layers(place)
    yield from _unmatched(key, name, lora, layers, own_layers)


def _unmatched(
    key: str, name: str, lora: LoraConfig, layers: Sequence[str], own_layers: Sequence[str] = ()
) -> Iterator[CheckFinding]:
    """Yield a remark where a target is that of none of the ``layers``, if any are known, nor of ``own_layers``."""

    def matches(target: str, layer: str) -> bool:
        return is_target(layer, [target])

    unmatched = find_unmatched(choose_targets(lora, layers), layers, matches) if layers else []
    unmatched = [target for target in unmatched if target.rpartition(".")[2] not in own_layers]
    if unmatched:
        known = sorted({one.rpartition(".")[2] for one in layers})
        # A remark is shown only for an option that was given; with the default targets, that is the section.
        own = f"{key}.targets" if "targets" in lora.model_fields_set else key
        yield remark(own, f"{name} has no layer called {list_names(unmatched)}; there are {list_names(known)}")


def _list_base_layers(place: Path) -> list[str]:
    """Return the names of the layers of a base; none if they aren't known."""
    try:
        form = recognise(place)
    except OSError:
        return []
    if form.name == GGUF:
        return [] if form.file is None else list_gguf_layers(form.file)
    return CONVERTED_LAYERS.get(form.name) or _without_embeddings(list_stored_matrices(place))


def _list_run_layers(place: Path) -> list[str]:
    """Return the names of the layers of a run, or of one of its checkpoints; none if they aren't known."""
    folders = [place] if is_checkpoint(place) else list_checkpoints(place / "checkpoints") or list_checkpoints(place)
    return _without_embeddings(list_checkpoint_matrices(folders[-1])) if folders else []


def _without_embeddings(matrices: Iterable[str]) -> list[str]:
    return [one for one in matrices if not NOT_LINEAR.search(one.rpartition(".")[2])]
