"""A language model's configuration under flat names, as attributes and as a dictionary."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vaak.config.experiment import Experiment, experiment_type
from vaak.config.load import Loaded, load, load_values
from vaak.config.resolved import resolved_values
from vaak.config.yaml.aliases import flat_names, option_aliases
from vaak.tasks.lm.config import ALIASES

FLAT_NAMES = (
    "experiment_name", "project_name", "checkpoint_dir", "use_wandb", "seed",
    "learning_rate", "weight_decay", "betas", "eps", "warmup_steps", "max_norm", "label_smoothing",
    "batch_size", "num_epochs", "accumulation_steps", "num_workers",
    "model_type", "d_model", "num_layers", "num_heads", "dropout", "vocab_size", "max_length", "tokenizer_type",
)  # fmt: skip
"""The options that an ``ExperimentConfig`` has as attributes."""


class ExperimentConfig:
    """A configuration under flat names (``learning_rate``, ``num_epochs``, …), which may be set.

    ``__dict__`` is plain values: the flat names; ``options``, the whole configuration as loaded; and ``file``,
    where from. A dictionary of flat names alone, or of a YAML's sections, is a configuration too.
    """

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.__dict__.update(values)

    @classmethod
    def load_config(cls, path: str | Path) -> ExperimentConfig:
        """The configuration in a YAML. Raises ConfigError for mistakes, UserError for code that requires trust."""
        from vaak.runs.folder.user_code import require_trust

        loaded = load([path], ["task=lm"])
        require_trust(loaded)
        options = resolved_values(loaded.experiment)
        if "run_dir" not in loaded.given:
            # It follows the name.
            del options["run_dir"]
        return cls({"file": str(path), "options": options, **flat_values(loaded.experiment)})

    @property
    def loaded(self) -> Loaded:
        """The validated experiment, with what was set since. Raises ConfigError for invalid values."""
        values = dict(self.__dict__)
        source = Path(values.pop("file", "experiment.yml"))
        options = values.pop("options", {"task": "lm"})
        before = flat_values(load_values([options], source).experiment)
        changed = {name: value for name, value in values.items() if name not in before or before[name] != value}
        return load_values([options, changed], source)

    @property
    def experiment(self) -> Experiment[Any, Any]:
        return self.loaded.experiment


def flat_values(experiment: Experiment[Any, Any]) -> dict[str, Any]:
    """The options under their flat names."""
    known = {**flat_names(experiment_type("lm")), **option_aliases(ALIASES)}
    values: dict[str, Any] = {}
    for name in FLAT_NAMES:
        value: Any = experiment
        for key in known[name].split("."):
            value = getattr(value, key)
        values[name] = list(value) if isinstance(value, tuple) else value
    return values
