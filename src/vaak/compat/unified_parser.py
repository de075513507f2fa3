"""The arguments of ``train.py`` and the four results of the universal pipeline's ``unified_parser``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from vaak.config.load import load
from vaak.config.training import TrainingConfig


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """``config`` (files) and ``overrides`` (``key.path=value``) of a command line; ``--resume`` is one of them."""
    parser = argparse.ArgumentParser(
        description="Train the model that the YAML files describe; later files override earlier ones.",
        epilog="example: torchrun --nproc_per_node=4 train.py --config run.yml training.optimizer.lr=3e-4",
    )
    parser.add_argument("--config", action="append", required=True, metavar="FILE", help="a YAML; may be given again")
    parser.add_argument("--resume", metavar="auto|PATH", help="resume from the newest checkpoint, or from this one")
    parser.add_argument(
        "--trust-code", action="store_true", help="execute the code that a run brings, to train it again"
    )
    parser.add_argument(
        "--no-mixed-precision", action="store_true", help="train in fp32, like training.mixed_precision=no"
    )
    parser.add_argument("overrides", nargs="*", metavar="key.path=value", help="options that replace the files'")
    arguments = parser.parse_intermixed_args(argv)
    if arguments.resume is not None:
        arguments.overrides.append(f"training.checkpoint.resume={json.dumps(arguments.resume)}")
    if arguments.no_mixed_precision:
        arguments.overrides.append("training.mixed_precision=no")
    return arguments


def unified_parser(
    argv: Sequence[str] | None = None,
) -> tuple[argparse.Namespace, Any, tuple[Any, ...], TrainingConfig]:
    """``(args, model_config, dataset_configs, training_config)`` of a command line.

    ``args.experiment`` is the whole experiment and ``args.warnings`` what there is to say about it. The datasets are
    those of the section ``datasets``, or else the task's one section ``data``.

    Raises ConfigError with every mistake in the files.
    """
    arguments = parse_arguments(argv)
    loaded = load(arguments.config, arguments.overrides, trust_code=arguments.trust_code)
    experiment = loaded.experiment
    arguments.experiment, arguments.warnings = experiment, loaded.warnings
    return arguments, experiment.model, experiment.datasets or (experiment.data,), experiment.training
