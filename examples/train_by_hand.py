"""A run of Vaak by hand, on one page to copy: data, a plan, a model, the pure step, a checkpoint, a resume.

    python examples/train_by_hand.py configs/training_minimal.yml by_hand        # run it again: it resumes where it was

It gives the same bits as ``vaak train`` on this YAML (AdamW at a constant rate, batches of a fixed size). Vaak adds
other plans and rules, ranks, evaluation, recovery from errors, verified checkpoints, logs.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file

from vaak.config.load import load
from vaak.core.random_keys import Purpose, draw_key
from vaak.data.loader import seed_generators
from vaak.data.plan import plan_generator
from vaak.engine.precision import make_deterministic, seed_everything
from vaak.tasks.lm.task import LanguageModelTask

loaded = load([Path(sys.argv[1])], [f"run_dir={sys.argv[2]}"])  # a mistake in the YAML ends here, with its line
config, folder = loaded.experiment.training, Path(sys.argv[2])
CPU = torch.device("cpu")
make_deterministic(config, CPU)  # kernels that give the same bits each time
task = LanguageModelTask(loaded.experiment, folder, loaded.folder)
task.prepare()  # trains the tokenizer and encodes the text, once
data = task.dataset("train")

seed_everything(draw_key(Purpose.INITIALISE, config.random_seed), CPU)  # weights depend on the seed alone
model = task.model().train()
# Matrices decay; norms and biases don't, because pulling them to zero has no meaning.
matrices = [p for p in model.parameters() if p.ndim >= 2]
vectors = [p for p in model.parameters() if p.ndim < 2]
groups = [{"params": matrices, "weight_decay": config.optimizer.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, config.optimizer.lr, config.optimizer.betas, config.optimizer.eps, fused=True)


def plan(epoch: int) -> list[np.ndarray]:
    """Return which examples are in which batch of an epoch: a function of the seed and the epoch, never of the past."""
    order = plan_generator(config.random_seed, epoch).permutation(len(data.lengths))
    return np.split(order, range(config.batch_size, len(order), config.batch_size))


def take_step(step: int, epoch: int, place: int) -> float:
    """Change the weights and the optimizer's moments: a function of them and of the step's number, of nothing else."""
    # What is drawn for an example (token dropout) depends on its number and the epoch, not on when or where it is read.
    seed, indices = config.random_seed, plan(epoch)[place].tolist()
    keys = [draw_key(Purpose.DATA, seed, epoch, index, 0) for index in indices]
    batch = data.collate([[data.example(*one)] for one in zip(indices, map(seed_generators, keys), strict=True)])
    # The same dropout in step 1000, whether the run was killed at step 999 or not.
    seed_everything(draw_key(Purpose.MODEL, seed, step, 0, 0), CPU)
    logits, targets = model(batch["inputs"]).flatten(0, 1), batch["targets"].flatten()
    # A sum over what was counted: a batch in two halves, or on two machines, gives the same gradient.
    loss = F.cross_entropy(logits, targets, ignore_index=-100, reduction="sum") / batch.counts["token"].sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), config.gradient_clipping.norm)
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def save(position: list[int]) -> None:
    """Write the whole state: weights, moments, and where in the plan the run is."""
    tensors = {f"model.{name}": value for name, value in model.named_parameters()}
    for number, moments in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer.{number}.{name}": value for name, value in moments.items()}
    save_file(tensors, folder / "state.new", metadata={"position": json.dumps(position)})
    (folder / "state.new").rename(folder / "state.safetensors")  # the whole new state, or the old one


def resume() -> list[int]:
    """Put the state back, and return the position. Nothing is replayed or skipped: the plan is computed, not drawn."""
    optimizer_state = optimizer.state_dict()
    if not (folder / "state.safetensors").exists():
        return [0, 0, 0]
    with safe_open(folder / "state.safetensors", "pt") as file:
        for kind, _, name in (key.partition(".") for key in file.keys()):  # noqa: SIM118 (not a mapping)
            value = file.get_tensor(f"{kind}.{name}")
            if kind == "model":
                model.get_parameter(name).data.copy_(value)
                continue
            number, moment = name.split(".")
            optimizer_state["state"].setdefault(int(number), {})[moment] = value
        optimizer.load_state_dict(optimizer_state)
        return json.loads(file.metadata()["position"])


done, epoch, place = resume()
for step in range(done + 1, config.max_steps + 1):
    loss = take_step(step, epoch, place)
    epoch, place = (epoch, place + 1) if place + 1 < len(plan(epoch)) else (epoch + 1, 0)
    save([step, epoch, place])
    print(f"step {step}  loss {loss:.4f}", flush=True)
