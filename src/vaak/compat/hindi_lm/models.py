"""Models of a configuration: made, saved and loaded."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from vaak.compat.hindi_lm.config import ExperimentConfig
from vaak.core.errors import CheckpointError, UserError
from vaak.core.random_keys import Purpose, draw_key
from vaak.core.storage import files
from vaak.engine.checkpoint.files import copy_to_cpu, load_weights, model_tensors
from vaak.tasks.lm.config import LanguageModelConfig
from vaak.tasks.lm.model import LanguageModel
from vaak.text.tokenizers.tokenizer import Tokenizer


class ModelFactory:
    """Makes the configuration's model, and keeps models under RUN/models/NAME."""

    def __init__(self, config: ExperimentConfig) -> None:
        self.config = config

    def create_model(self, vocab_size: int) -> LanguageModel:
        """A new model: the same weights that a run of this configuration begins with."""
        training = self.config.experiment.training
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(draw_key(Purpose.INITIALISE, training.random_seed))
            model = LanguageModel(self.config.experiment.model, vocab_size)
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

    def load_model(self, name: str) -> tuple[LanguageModel, Tokenizer]:
        """What ``save_model`` wrote, the model in evaluation mode. Raises CheckpointError if it can't be read."""
        folder = self._folder(name)
        try:
            options = files.read_json(folder / "model.json")
            tensors = load_file(folder / "model.safetensors")
        except (OSError, ValueError, SafetensorError) as error:
            raise CheckpointError(f"{folder} is not a saved model: {error}") from error
        model = LanguageModel(LanguageModelConfig.model_validate(options["model"]), options["vocab_size"])
        load_weights(model, tensors, folder)
        return model.eval(), Tokenizer.load(folder)

    def _folder(self, name: str) -> Path:
        if Path(name).name != name:
            raise UserError(f"{name!r} is not a valid model name: give one without a folder")
        return self.config.experiment.run_dir / "models" / name
