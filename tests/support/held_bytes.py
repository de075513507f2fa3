"""How much each of several processes really holds between backward and update, by how the model is divided."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import torch

from processes import join
from tiny_runs import loaded, prepared_task
from vaak.core.callback import Callback
from vaak.engine.distributed.sharding import is_sharded
from vaak.engine.trainer import Trainer
from vaak.runs.estimate import at_rest

MODEL = "model={d_model: 128, num_layers: 4, num_heads: 4}"


def bytes_of_all_tensors() -> int:
    """The bytes of every storage that a tensor of this process has."""
    storages = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, torch.nn.Parameter) and not is_sharded(one):
            storages[one.untyped_storage().data_ptr()] = one.untyped_storage().nbytes()
    return sum(storages.values())


class Weigh(Callback):
    """Weighs all tensors when the optimizer has updated, while the gradients are still there."""

    held = 0

    def on_fit_start(self, trainer: Any) -> None:
        trainer.state.optimizers[0].register_step_post_hook(lambda *_: setattr(self, "held", bytes_of_all_tensors()))


def train_and_weigh(rank: int, port: int, folder: Path, options: dict[str, dict[str, Any]]) -> None:
    """For each of some ``training.distributed``, write what rank holds, and what it should, into NAME-RANK.json."""
    torch.set_num_threads(1)
    for name, distributed in options.items():
        run = folder / name
        how = (MODEL, f"training.distributed={json.dumps(distributed)}", "training.gradient_accumulation_steps=2")
        task = prepared_task(folder, folder / f"{name}-{rank}", *how)
        config = loaded(
            folder, run, *how, "training.max_steps=3", "training.validation.interval=null"
        ).experiment.training
        ranks, weigh = join(rank, port), Weigh()
        before = bytes_of_all_tensors()
        run.mkdir(exist_ok=True)
        trainer = Trainer(task, config, run, (weigh,), ranks=ranks)
        trainer.fit()
        rest = at_rest(trainer.model, config)
        said = {"held": weigh.held - before, "forecast": rest.of_each(2), "weights": rest.weights}
        (folder / f"{name}-{rank}.json").write_text(json.dumps(said))
        ranks.close()
        del trainer, weigh, rest
        gc.collect()
