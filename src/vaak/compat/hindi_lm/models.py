"""Models of a configuration: made, saved and loaded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import functional as F

from vaak.compat.hindi_lm.config import ExperimentConfig
from vaak.core.batch import Batch
from vaak.core.errors import CheckpointError, UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage import files
from vaak.engine.optim.schedules import freeze_parameters, unfreeze_parameters
from vaak.engine.snapshot import copy_to_cpu, load_weights, model_tensors
from vaak.nn.cross_entropy import IGNORED
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.metrics import get_visibility
from vaak.tasks.lm.model import LanguageModel
from vaak.text.tokenizer import Tokenizer


class LanguageModelOutput(NamedTuple):
    """The result of a model that was called with ``attention_mask`` or ``labels``."""

    loss: Tensor | None
    logits: Tensor


class HindiLanguageModel(LanguageModel):
    """The language model, which may also be called, frozen and thawed as the original one."""

    def forward(
        self,
        input_ids: Tensor | Batch | Mapping[str, Tensor],
        *,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **options: Any,
    ) -> Any:
        """Scores; with ``attention_mask`` (true where there is text) or ``labels``, the loss and the scores.

        ``labels`` are the ``input_ids``, which are shifted here: each token is scored by what precedes it (an encoder
        scores each in its place). Where a label is -100 or the mask is false, nothing is scored.

        A batch of a loader is scored on its own targets, as in training; a dictionary on its ``labels``, or its
        ``input_ids``. Both are moved to the model's device.
        """
        if isinstance(input_ids, Batch):
            return self._score_batch(input_ids.to(next(self.parameters()).device))
        if isinstance(input_ids, Mapping):
            device = next(self.parameters()).device
            given = {name: tensor.to(device) for name, tensor in input_ids.items()}
            ids = given.pop("input_ids")
            return self(ids, **{"labels": ids, **given})
        if attention_mask is None and labels is None:
            return super().forward(input_ids, **options)
        present = None if attention_mask is None else attention_mask.bool()
        causal = self.config.model_type == "decoder"
        if present is not None and not causal:
            options["mask"] = present
        logits = super().forward(input_ids, **options)
        assert isinstance(logits, Tensor)
        if labels is None:
            return LanguageModelOutput(None, logits)
        targets = labels if present is None else labels.masked_fill(~present, IGNORED)
        scores, targets = (logits[:, :-1], targets[:, 1:]) if causal else (logits, targets)
        loss = F.cross_entropy(scores.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)
        return LanguageModelOutput(loss, logits)

    def _score_batch(self, batch: Batch) -> LanguageModelOutput:
        """The mean loss of the targets of a batch, and the scores."""
        options: dict[str, Any] = {**get_visibility(self.config, batch)}
        logits = super().forward(batch["inputs"], **options)
        assert isinstance(logits, Tensor)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), batch["targets"].flatten(), ignore_index=IGNORED)
        return LanguageModelOutput(loss, logits)

    def freeze_parameters(self, names: Iterable[str]) -> None:
        """Stop training these parameters, or those of these modules, from the next ``train`` on."""
        freeze_parameters(self, names)

    def unfreeze_parameters(self, names: Iterable[str]) -> None:
        """Train these again, from the next ``train`` on."""
        unfreeze_parameters(self, names)


class ModelFactory:
    """Makes the configuration's model, and keeps models under RUN/models/NAME."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config

    def create_model(self, vocab_size: int) -> HindiLanguageModel:
        """A new model: the same weights that a run of this configuration begins with."""
        training = self.config.experiment.training
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(draw_key(Purpose.INITIALISE, training.random_seed))
            model = HindiLanguageModel(self.config.experiment.model, vocab_size)
        model.stack.gradient_checkpointing = training.performance.gradient_checkpointing
        return model

    def save_model(self, model: LanguageModel, tokenizer: Tokenizer, name: str) -> Path:
        """Write model and tokenizer to RUN/models/NAME and return the folder; an existing one is replaced."""
        folder = self._folder(name)
        tokenizer.save(folder)
        files.write_bytes(folder / "model.safetensors", save(copy_to_cpu(model_tensors(model))))
        options = {"vocab_size": model.vocab_size, "model": model.config.model_dump(mode="json")}
        files.write_json(folder / "model.json", options)
        return folder

    def load_model(self, name: str) -> tuple[HindiLanguageModel, Tokenizer]:
        """Return what ``save_model`` wrote, in evaluation mode. Raises CheckpointError if it can't be read."""
        folder = self._folder(name)
        try:
            options = files.read_json(folder / "model.json")
            tensors = load_file(folder / "model.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{folder} is not a saved model: {error}") from error
        model = HindiLanguageModel(LanguageModelConfig.model_validate(options["model"]), options["vocab_size"])
        load_weights(model, tensors, folder)
        return model.eval(), Tokenizer.load(folder)

    def _folder(self, name: str) -> Path:
        if Path(name).name != name:
            raise UserError(f"{name!r} is not a valid model name: give one without a folder")
        return self.config.experiment.run_dir / "models" / name
